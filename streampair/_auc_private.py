"""The private learners of `auc`: rank one label above all others, under a guarantee."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from streampair import buffers, losses
from streampair._families import AUCLearner
from streampair._pairftrl import LeaderBase
from streampair._private_base import LinearPrivate

__all__ = ["PairFTRL"]


class PairFTRL(LeaderBase, LinearPrivate, AUCLearner):
    """Private online ranking: follow the regularised leader on pairs, with correlated noise.

    Each record is paired with the last records in a FIFO buffer. The clipped gradients, averaged over the
    places of the buffer, are summed under noise that is correlated over time, so that every prefix sum has
    little of it, and the model is read off the noisy sum. All models of the run together are
    (epsilon, delta)-differentially private for each record.

    Parameters
    ----------
    epsilon, delta
        Budget of one record over the whole run. Take delta at most one over the number of records.
    horizon
        Number of records after which the learner stops learning (it keeps scoring). None: no end; the
        spend stays within the budget on an infinite stream, at a little more noise.
    loss
        Pair loss; None is `losses.Hinge`.
    buffer
        ``buffers.FIFO(s)``, ``FullHistory()`` (needs a horizon) or ``Reservoir(s)``; None is ``FIFO(32)``.
        Others are refused, with the reason.
    clip
        Radius of the ball that each pair's gradient is clipped into; None is 1. It is the ball around 0, or,
        after a warm-up, one that touches 0 (see `streampair.privacy.FTRLPlan`).
    radius
        Radius of the ball of the weights; None is 3, or 30 with a warm-up.
    features
        Names of the features. Without it they are the keys of the first record, which the report then calls
        public. Other features are ignored and counted.
    bounds
        Declared public ``{name: (low, high)}``, scaled to [-1, 1]. Features without bounds are taken as
        scaled already (with a warm-up values beyond are clipped). Never compute them from the stream.
    warmup
        Number of first records that are spent on private means and variances only, which the later ones are
        standardised with. None: a tenth of a horizon of at least 5000, nothing for a shorter one, 2000
        without a horizon. 0: none. Until it is over every score is 0.
    positive
        The label that ranks high; any other ranks low.
    noise_key
        A `streampair.privacy.NoiseKey`, or its at least 32 bytes. The noise is then a function of the key and
        of all records so far: a replay of the same records after a crash repeats the same releases to the
        byte, and discloses nothing new; any other record gives fresh noise. None: noise from the operating
        system, fresh after every start.
    seed
        None draws the noise from the operating system. An integer gives fixed noise, for tests: the report
        then says that nothing is guaranteed.
    max_uses
        For a reservoir: slots after which a record in it is blanked; None is its size. More cost more noise.
    strategy
        ``"toeplitz"`` (square root; needs a horizon), ``"blt"``, or ``"auto"``.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Attributes
    ----------
    slots
        Records taken so far, null ones too.
    null_slots, ignored_features
        Slots without a usable record, and features that are not in the set. Both are functions of raw
        data: for the operator's eyes only.

    Notes
    -----
    Guarantee (PRIVACY.md 1, 4.3, 4.4): mu-GDP under replacement of one record's content, label included, with
    ``mu`` exact for (epsilon, delta). The observer may see every model; the score of the protected record
    itself is not covered. `privacy` tells what is spent, by the releases so far.

    A record that cannot be used (a feature missing, not finite or not a number, no label) takes its slot as a
    null record and raises nothing: whether a slot was null must not show. A score is given for a record
    with features missing (they count as neutral), and refused for one with text or numbers not finite.

    Copies, unpickled learners and restored ones draw noise of their own, and keep the spend. Their report
    says that it cannot vouch for the releases of the other copies, until `mark_restarted` says more.

    `predict_proba_one` is a fixed sigmoid of the score, from the first record on: it ranks, uncalibrated.

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
    ('holds', 1250, 1.0, 0)
    """

    # Its public home, which pickles and snapshots name.
    __module__ = "streampair.auc"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        horizon: int | None = None,
        loss: losses.PairLoss | None = None,
        buffer: buffers.Buffer | None = None,
        clip: float | None = None,
        radius: float | None = None,
        features: Sequence[Hashable] | None = None,
        bounds: Mapping[Hashable, tuple[float, float]] | None = None,
        warmup: int | None = None,
        positive: Any = True,
        noise_key: Any = None,
        seed: int | None = None,
        strategy: str = "auto",
        max_uses: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.horizon = horizon
        self.loss = loss
        self.buffer = buffer
        self.clip = clip
        self.radius = radius
        self.features = features
        self.bounds = bounds
        self.warmup = warmup
        self.positive = positive
        self.noise_key = noise_key
        self.seed = seed
        self.strategy = strategy
        self.max_uses = max_uses

        self._init_labels(positive)
        self._init_private()
