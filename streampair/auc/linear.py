"""Linear learners that maximise the AUC, without privacy."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from streampair import buffers, losses, schedules
from streampair.base.learner import ClassifierMixin
from streampair.base.online import OAMRule, OGDRule, OnlinePairLearner, SPAUCRule
from streampair.base.pair_moments import MomentsRule, learned_both

__all__ = ["OAM", "SPAUC", "PairMoments", "PairOGD"]


@dataclass(eq=False, repr=False)
class PairOGD(ClassifierMixin, OnlinePairLearner):
    """Online gradient descent on pairs of records; not private.

    A record is paired with each record in the buffer. The gradient of the pair loss, averaged over the
    records in the buffer, makes one step, and the weights are projected onto the l2 ball of the given radius,
    if there is one. Pairs of equal labels have no gradient. The margin of a pair is ``(y - y') w.(x - x')``
    with labels +1 and -1.

    By default features are scaled by their running mean and spread, the steps are AdaGrad's, of a size for
    each weight, and the last iterate is published. With ``scale=None`` and ``learning_rate=c``, another
    schedule or None, all weights have the same step size, and this is Algorithm 2 of Yang et al. (2021): one
    partner, and the average of the iterates. With a `Reservoir`, too, it is the online learner of Kar et al.
    (2013).

    Parameters
    ----------
    loss
        Pair loss; None is `losses.Hinge`.
    buffer
        Which past records are paired with the new one. None is ``buffers.FIFO(16)`` with `schedules.AdaGrad`,
        otherwise ``buffers.FIFO(1)``.
    learning_rate
        ``"adagrad"``: a step size for each weight by its own gradients,
        ``schedules.AdaGrad(1 / 16, start=1)``, or ``schedules.AdaGrad(1 / 8)`` without `scale`. A number c:
        step j (the j-th record that met a partner) has size ``c / sqrt(j)``. Or a schedule
        (`streampair.schedules`), such as constant steps, or ``2 / (alpha (j + 1))``. None: the self-tuned
        ``sqrt(2) radius / sqrt(|g_1|^2 + ... + |g_j|^2)`` over the gradients so far: the best constant in the
        regret bound of online gradient descent on this ball, without knowing the gradients' size.
    scale
        ``"running"``: a number counts as its distance from its running mean, in running standard deviations,
        so that neither its unit nor its offset matters. None takes numbers as they are.
    radius
        Radius R of the l2 ball that the weights are kept in, above 0 and at most 1e12. It bounds the margins.
        None: no ball, but a radius of 2 with self-tuned steps or without `scale`.
    l2
        Factor of the ridge term ``l2 / 2 |w|^2``, 0 or above and at most 1e12.
    average
        False publishes the last iterate, which is all that `schedules.AdaGrad` has. True, otherwise the
        default (None), the average of the iterates weighted by the step sizes,
        ``sum_j eta_j w_{j-2} / sum_j eta_j`` (Algorithm 2 of Yang et al.). ``"linear"``: weighted by j,
        ``sum_j j w_{j-2} / sum_j j`` (their Theorem 7 b).
    positive
        The label that ranks high: text, a number, True or False.
    negative
        The label that ranks low; any other is a RecordError. None: the opposite of True, False, 1 or 0;
        beside any other `positive` all labels of its type rank low, and predictions show the first one
        learned.
    seed
        Seed of the reservoir's random draws; None takes one from the operating system. FIFO draws nothing.
    max_features
        Most feature names with a column of their own, from 1 to 2^22, which bounds the memory. Names beyond
        share ``max_features // 4`` columns, chosen by a hash; one UserWarning says so.
    half_life
        For concept drift: records after which the weight of a record has halved, in the average and in the
        sums that set the step sizes, which then stay those of ``half_life / ln 2`` records. Needs a FIFO
        buffer.

    Notes
    -----
    A feature is a number, a boolean (0 or 1) or a string, by name and in any order; a new name gets a new
    column. A string is an indicator: ``{"kind": "card"}`` is the feature ``"kind=card"`` with the value 1.
    One of more than 100 characters counts by its digest. None, NaN and pandas.NA are missing values: a number
    at its mean, and an indicator ``"kind="``. A name that a record does not have counts as 0. Infinity,
    numbers beyond 1e50, lists, other objects and empty records raise `RecordError` and leave the learner
    unchanged.

    Scaling follows these rules, in this order: a record is scored by the statistics of the records before it;
    then it enters the statistics; then the step is taken. Weights, `radius` and `l2` are in scaled units.
    `weights` are in units of the raw features, and ``score = sum of weights times features + intercept``.
    Scores are centred. A record without a label changes nothing. Columns that have held only two values, and
    indicators, are not scaled by their own spread, which would make much of a rare 1. A column that fewer
    than half of the records have, as in a bag of words, is not centred: its absence would have a value. From
    the 31st value on, one is learned as if it were at most 5 spreads from the centre; each time that happens
    in a column, as twice as many from then on: some ten errors in a column use this up. With `half_life` the
    statistics fade, too, and the limit with them; the spread of a column that has held one value for two
    half-lives fades no more.

    Time of a step is O(s size) for records with s features, whatever the number of names. A `radius`, `l2`
    or `learning_rate` other than AdaGrad's adds O(names). With `buffers.FullHistory` it grows with the
    records, unless the loss is `losses.Square`. Memory is O(names) and the features of the records in the
    buffer.

    The theorems of Yang et al. are about Algorithm 2, ``scale=None`` with one step size for all weights. The
    rate and the number of partners of the default were chosen by the AUC on the streams of
    docs/benchmarks/steps.md, which also has others.

    `predict_proba_one` is Platt scaling of the score with a rising curve, learned online (docs/learners.md).

    References
    ----------
    Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
    algorithms for pairwise learning. NeurIPS. Algorithm 2.

    Kar, P., Sriperumbudur, B., Jain, P. and Karnick, H. (2013). On the generalization ability of online
    learning algorithms for pairwise loss functions. ICML.

    Duchi, J., Hazan, E. and Singer, Y. (2011). Adaptive subgradient methods for online learning and
    stochastic optimization. JMLR 12. (AdaGrad.)

    Streeter, M. and McMahan, H. B. (2010). Less regret via online conditioning. arXiv:1002.4862. (The
    self-tuned step size.)

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streampair import auc
    >>> model = auc.PairOGD()
    >>> evaluate.progressive_val_score(datasets.Phishing(), model, metrics.ROCAUC())  # doctest: +ELLIPSIS
    ROCAUC: 9...%
    """

    loss: losses.PairLoss | None = None
    buffer: buffers.Buffer | None = None
    learning_rate: float | schedules.Schedule | Literal["adagrad"] | None = "adagrad"
    _: KW_ONLY
    scale: Literal["running"] | None = "running"
    radius: float | None = None
    l2: float = 0.0
    average: bool | Literal["linear"] | None = None
    seed: int | None = None
    max_features: int = 1 << 20
    half_life: int | None = None

    _rule = OGDRule()
    explain_one = OnlinePairLearner.linear_reasons
    predict_proba_one = OnlinePairLearner.proba_one  # type: ignore[assignment]  # a call less


@dataclass(eq=False, repr=False)
class OAM(ClassifierMixin, OnlinePairLearner):
    """Online AUC maximisation with two reservoirs, gradient version (Zhao et al. 2011); not private.

    A reservoir keeps a uniform sample of at most `size` records of each class. A record is paired with the
    whole sample of the other class, and the hinge gradients ``x - x'`` of the pairs are summed, not averaged.
    Once the other class has more records than its sample, the step is multiplied by ``records / size``, since
    the sample stands for all of them.

    Parameters
    ----------
    learning_rate
        The factor C of a step, above 0 and at most 1e12. It does not decay: the step of a record is C times
        the sum over all records of the other class. With labels +1 and -1 and margins
        ``(y - y') w.(x - x')``, as everywhere in this package, it is a quarter of the C of Zhao et al.
    size
        Records kept of each class.
    radius
        Radius of the l2 ball that the weights are kept in, in scaled units with `scale`. (Zhao et al. have no
        ball; Yang et al. 2021 compare with one.)
    scale, positive, negative, seed, max_features
        As in `PairOGD`. None for `scale` is the algorithm of Zhao et al.
    average
        Publish the mean of the iterates; False: the last one, as Zhao et al. do.

    Notes
    -----
    Time of a step is O(names + s size) for records with s features. See `auc.PairOGD` for features, strings,
    missing values, scaling and probabilities.

    References
    ----------
    Zhao, P., Hoi, S., Jin, R. and Yang, T. (2011). Online AUC maximization. ICML. Algorithms 1, 2 and 4.

    Examples
    --------
    >>> from river import datasets, evaluate
    >>> from streampair import auc, evaluation
    >>> metric = evaluation.RollingAUC(window=1250)
    >>> evaluate.progressive_val_score(datasets.Phishing(), auc.OAM(seed=1), metric)  # doctest: +ELLIPSIS
    RollingAUC: 95...%
    """

    learning_rate: float = 0.01
    size: int = 100
    radius: float = 1.0
    _: KW_ONLY
    scale: Literal["running"] | None = "running"
    average: bool = True
    seed: int | None = None
    max_features: int = 1 << 20

    _rule = OAMRule()
    explain_one = OnlinePairLearner.linear_reasons


@dataclass(eq=False, repr=False)
class SPAUC(ClassifierMixin, OnlinePairLearner):
    """Stochastic proximal AUC maximisation with the square loss (Lei and Ying 2021); not private.

    Given the share of positives and the mean record of each class, the expected square loss over pairs is a
    sum of terms of one record. Both are estimated online, so a step pairs a record with all previous ones in
    O(d) time and memory.

    Parameters
    ----------
    learning_rate
        A number c: step t has size ``c / sqrt(t)``. None: the self-tuned
        ``sqrt(2) radius / sqrt(|g_1|^2 + ... + |g_t|^2)`` of `auc.PairOGD`.
    radius
        Radius of the l2 ball that the weights are kept in, in scaled units with `scale`.
    scale, average, positive, negative, max_features
        As in `PairOGD`. None for `scale` is the algorithm of Lei and Ying.
    l2
        Factor of the ridge term ``l2 / 2 |w|^2``, taken as a proximal step; 0 or above and at most 1e12.

    Notes
    -----
    Margins are ``(y - y') w.(x - x')`` with labels +1 and -1. See `auc.PairOGD` for features, strings,
    missing values, scaling and probabilities.

    References
    ----------
    Lei, Y. and Ying, Y. (2021). Stochastic proximal AUC maximization. JMLR 22(61). Algorithm 1.

    Examples
    --------
    >>> from river import datasets, evaluate
    >>> from streampair import auc, evaluation
    >>> metric = evaluation.RollingAUC(window=1250)
    >>> evaluate.progressive_val_score(datasets.Phishing(), auc.SPAUC(), metric)  # doctest: +ELLIPSIS
    RollingAUC: 95...%
    """

    learning_rate: float | None = None
    radius: float = 1.0
    l2: float = 0.0
    _: KW_ONLY
    scale: Literal["running"] | None = "running"
    average: bool = True
    max_features: int = 1 << 20

    _rule = SPAUCRule()
    explain_one = OnlinePairLearner.linear_reasons


@dataclass(eq=False, repr=False)
class PairMoments(ClassifierMixin, OnlinePairLearner):
    """Least squares over all pairs of records, in closed form; not private.

    The mean of ``(y - y' - w.(x - x'))^2`` over all pairs has its least at a solution of linear equations in
    the means and the covariances of features and labels, which are kept up to date. There is no step size.
    With D the standard deviations of the features, Z their correlations, delta the gap of the class means in
    standard deviations, and n the number of records that count::

        w = D^-1 (Z + l2 (1 + 20 sqrt(d / n)) I)^-1 delta

    It is multiplied by the number with which the mean of `losses.Square` over pairs of both classes is least,
    if both have the same covariances: so scores keep their scale where the share of the positives changes.

    Parameters
    ----------
    l2
        The ridge, in units of the correlations, from 1e-6 to 1e12; few records for many features raise it.
    half_life
        Records after which the weight of a record has halved. It should be long enough for some dozens of
        the rarer class. None: all records weigh the same, as is right for a table in no order.
    positive, negative
        As in `PairOGD`.
    max_features
        Most feature names with a column of their own, from 1 to 1,024, for the moments of d columns are d^2
        numbers. Names beyond share ``max_features // 4`` columns, chosen by a hash; one UserWarning says so.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    Time of a record is O(d^2): records are added to the moments 64 at a time, and the weights are solved for
    when a twentieth of the weight and d / 3 records are new, from 8 records on. Memory is O(d^2). Best for up
    to some hundred columns, each value of a text being one; with more, or without end, take `PairOGD`.

    ``one + other`` has learned the records of both, such as the parts of a table: its weights are those of
    one learner that is solved at its last record, up to 1e-9 where no value is missing or clipped. Its
    probabilities start from the mean of both curves. See `auc.PairOGD` for features, strings, missing values,
    scaling and probabilities.

    References
    ----------
    Gao, W., Jin, R., Zhu, S. and Zhou, Z.-H. (2013). One-pass AUC optimization. ICML. (AUC from means and
    covariances, by gradient steps.)

    Chan, T. F., Golub, G. H. and LeVeque, R. J. (1979). Updating formulae and a pairwise algorithm for
    computing sample variances. Stanford STAN-CS-79-773.

    Examples
    --------
    >>> from river import datasets, evaluate
    >>> from streampair import auc, evaluation
    >>> metric = evaluation.RollingAUC(window=1250)
    >>> evaluate.progressive_val_score(datasets.Phishing(), auc.PairMoments(), metric)  # doctest: +ELLIPSIS
    RollingAUC: 9...%
    """

    l2: float = 0.1
    half_life: int | None = 1000
    _: KW_ONLY
    max_features: int = 256

    scale = "running"
    average = False
    _rule = MomentsRule()
    explain_one = OnlinePairLearner.linear_reasons
    __add__ = learned_both
