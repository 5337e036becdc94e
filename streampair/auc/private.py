"""Linear learners that maximise the AUC under differential privacy."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from streampair import buffers, losses
from streampair.base import validation
from streampair.base.learner import ClassifierMixin
from streampair.base.private import PrivateLearner
from streampair.privacy.mechanism_options import MechanismOptions

__all__ = ["OnPairC", "OnPairStrC", "PairFTRL"]


@dataclass(eq=False, repr=False)
class PairFTRL(ClassifierMixin, PrivateLearner):
    """Private online AUC maximisation: FTRL on pairs with correlated noise.

    Follow the regularised leader (FTRL): the model is computed from sums over the stream. The sums have noise
    that is correlated over time, so that the noise of every prefix sum is small. All models of the run
    together are (epsilon, delta)-differentially private for each record. The first score is 0. `mechanism`
    says what is summed.

    Parameters
    ----------
    epsilon, delta
        Budget of one record over the whole run. Take delta at most one over the number of records.
    horizon
        Number of records after which the learner stops learning (it keeps scoring). None: no end; the
        spend stays within the budget on an infinite stream, at a little more noise.
    mechanism
        Second moments, whose loss is `losses.Square`: `privacy.SecondMoments` or `privacy.DecayedMoments`.
        Gradients of any pair loss: `privacy.PairGradients`. None: ``SecondMoments()``, and
        ``PairGradients()`` with more than 512 features, a horizon below 100 or ``warmup=0``.
    radius
        Radius of the ball of the weights; None is 3, or 30 with a warm-up.
    features
        Names of the features. None: those with bounds and the keys of the first record, which the report then
        states as public. Other features are ignored and counted.
    bounds
        Declared public ``{name: (low, high)}``, scaled to [-1, 1]. Features without bounds must be scaled
        already (with a warm-up, values outside are clipped). Never compute bounds from the stream.
    warmup
        Number of first records from which only private means and variances are estimated, to standardise the
        later records. None, for moments: ``18 (sqrt(d) + 1) / mu`` within a tenth to a quarter of a horizon,
        and ``100 min(sqrt(d), 7) / mu`` without one. None, for gradients: a tenth of a horizon of at least
        5000, 0 for a shorter one, and 2000 without one. 0, for `PairGradients` alone: no warm-up.
    positive
        The label that ranks high: text, a number, True or False.
    negative
        The label that ranks low. None: the opposite of True, False, 1 or 0; beside any other `positive` it
        has to be declared. A record with a third label is a null record, and the first one causes a warning.
    noise_key
        A `streampair.privacy.NoiseKey`, or its at least 32 bytes. The noise is a function of the key and of
        the records so far, so that a replay repeats all releases to the byte. None: noise from the operating
        system.
    seed
        None: noise from the operating system. An integer: fixed noise for tests, and no guarantee.
    forks, window
        Number of crashes after each of which up to `window` releases may be made a second time: the budget
        covers them, at more noise. With a noise key a replay makes none, and 0 is enough. A lane reserves
        `window` slots at a time.
    auc_share
        Share of mu^2 for a private AUC in the report, which may be published: 0.05 is usual.
    entity
        A `streampair.privacy.EntityLimit`, for user-level privacy: all records of one user are protected
        together. Each user contributes at most as many updates as it says; further records are null. Needs
        `features`; more noise. Not with `DecayedMoments`.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (docs/privacy 1, 4.3, 4.4): mu-GDP under replacement of one record's content, label included,
    with ``mu`` exact for (epsilon, delta). The observer may see every model; the score of the protected
    record itself is not covered. `privacy` reports the spend of the releases so far.

    A record that cannot be used (a feature missing, not finite or not a number, no label) is a null record:
    it takes its slot and raises nothing, so that it is indistinguishable from others. In a score a missing
    feature is neutral; text and infinity raise.

    Copies, unpickled learners and restored ones draw their own noise and keep the spend. Their report is
    "unvouched", since it does not cover the others' releases, until `mark_restarted` says more. A noise key
    has to be given again (`bind_noise`). `predict_proba_one` is computed from releases alone; with moments it
    is calibrated (docs/privacy 10.9).

    References
    ----------
    Kairouz, P. et al. (2021). Practical and private (deep) learning without sampling or shuffling. ICML.

    Denisov, S. et al. (2022). Improved differential privacy for SGD via optimal private linear operators on
    adaptive streams. NeurIPS.

    Dvijotham, K. et al. (2024). Efficient and near-optimal noise generation for streaming differential
    privacy. FOCS.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import auc
    >>> model = auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=1250)
    >>> for x, y in datasets.Phishing():
    ...     model.learn_one(x, y)
    >>> report = model.privacy
    >>> report.kind, report.releases, round(report.epsilon_spent, 6), report.horizon_left
    ('holds', 19, 1.0, 0)
    """

    _: KW_ONLY
    mechanism: MechanismOptions | None = None
    auc_share: float | None = None

    _select = validation.select_ftrl


@dataclass(eq=False, repr=False)
class OnPairStrC(ClassifierMixin, PrivateLearner):
    """Private online AUC maximisation by output perturbation, for strongly convex losses.

    Algorithm 1 of Huai et al. (2020). Gradient descent on pairs runs without noise, in secret, and its
    iterates are released with fresh Gaussian noise. A ridge term makes every step a contraction: the effect
    of one record fades, and the noise can decrease along the stream. The published model is the average of
    the releases, weighted by their precision.

    Parameters
    ----------
    epsilon, delta
        Budget of one record over all releases. Take delta at most one over the number of records.
    horizon
        Number of records after which the learner stops learning (it keeps scoring), from 2 to 4 million.
    l2
        Strength alpha of the ridge term ``alpha / 2 |w|^2``, above 0: the noise is inverse to it.
    loss
        Smooth, convex pair loss; None is `losses.Logistic`. The hinge is refused.
    buffer
        ``buffers.FIFO(s)``, ``Reservoir(s)`` or ``FullHistory()``; None is ``FIFO(32)``. A record that stays
        in a reservoir of s places moves the iterates by up to ``D / (alpha s)``, however late: let it be
        large, or blank records (`max_uses`).
    releases
        Number of releases, evenly spaced, the last at the horizon; None: one after every record.
    calibration
        ``"tight"``: noise for the exact sensitivity to the worst single record. ``"paper"``: steps, random
        first outputs and noise exactly as in the paper; the report says what they guarantee by the exact
        account, for records in the unit ball.
    clip
        Radius of the ball that each pair's gradient is clipped into; None is 1 (none with ``"paper"``).
    radius
        Radius of the ball of the weights; None is 1, or 10 with a warm-up.
    positive_rate
        Share of positives, as in `privacy.PairGradients`.
    features, bounds, warmup, positive, negative, noise_key, seed, forks, window, entity, auc_share
        As in `PairFTRL`.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.
    PrivacyError
        If the exact account of the paper's constants, for records in the unit ball, is above their promise.

    Notes
    -----
    Guarantee (docs/privacy 1, 4.1, 4.4): mu-GDP under replacement of one record's content, label included,
    by exact accounting of the planned releases. Precondition: a convex, smooth pair loss; clipping a pair
    along its own gradient keeps both. The observer may see every release; the score of the protected record
    itself is not covered. The state of the learner holds the iterate without noise and is as secret as the
    data. See `PairFTRL` for null records, scores and copies.

    References
    ----------
    Huai, M., Wang, D., Miao, C., Xu, J. and Zhang, A. (2020). Pairwise learning with differential privacy
    guarantees. AAAI.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import auc
    >>> model = auc.OnPairStrC(epsilon=1.0, delta=1e-4, horizon=1250, l2=0.1)
    >>> for x, y in datasets.Phishing():
    ...     model.learn_one(x, y)
    >>> report = model.privacy
    >>> report.kind, report.releases, round(report.epsilon_spent, 6), report.horizon_left
    ('holds', 1249, 1.0, 0)
    """

    epsilon: float = field()
    delta: float = field()
    horizon: int = field()
    _: KW_ONLY
    loss: losses.PairLoss | None = None
    buffer: buffers.Buffer | None = None
    clip: float | None = None
    l2: float = 1e-3
    releases: int | None = None
    calibration: str = "tight"
    positive_rate: float | str | None = None
    auc_share: float | None = None

    _select = validation.select_output_perturbation


@dataclass(eq=False, repr=False)
class OnPairC(ClassifierMixin, PrivateLearner):
    """Private online AUC maximisation by output perturbation, for convex losses.

    Algorithm 2 of Huai et al. (2020): `OnPairStrC` on the loss plus ``alpha / 2 |w - w_0|^2``, where alpha
    follows from the horizon. With ``calibration="paper"`` w_0 is a random point of the ball, as in the paper;
    else it is 0, which costs nothing.

    Parameters
    ----------
    l2
        Strength alpha of the added term. None: ``2 D / R sqrt(sqrt(d) / (n mu))``, which balances its bias
        with the noise and depends on no data.
    epsilon, delta, horizon, loss, buffer, releases, calibration, clip, radius,
    features, bounds, warmup, positive, negative, noise_key, seed, forks, window, entity, positive_rate,
    auc_share
        As in `OnPairStrC`.

    Notes
    -----
    Guarantee (docs/privacy 1, 4.1, 4.4) and reference: as for `OnPairStrC`.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import auc, buffers
    >>> model = auc.OnPairC(epsilon=1.0, delta=1e-4, horizon=1250, buffer=buffers.FIFO(8))
    >>> for x, y in datasets.Phishing():
    ...     model.learn_one(x, y)
    >>> round(model.privacy.epsilon_spent, 6)
    1.0
    """

    epsilon: float = field()
    delta: float = field()
    horizon: int = field()
    _: KW_ONLY
    loss: losses.PairLoss | None = None
    buffer: buffers.Buffer | None = None
    clip: float | None = None
    l2: float | None = None
    releases: int | None = None
    calibration: str = "tight"
    positive_rate: float | str | None = None
    auc_share: float | None = None

    _select = validation.select_centred_output_perturbation
