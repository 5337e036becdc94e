"""Linear learners that maximise the AUC, without privacy."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from streampair import buffers, losses, schedules
from streampair.base.learner import ClassifierMixin
from streampair.base.online import OAMRule, OGDRule, OnlinePairLearner, SPAUCRule

__all__ = ["OAM", "SPAUC", "PairOGD"]


@dataclass(eq=False, repr=False)
class PairOGD(ClassifierMixin, OnlinePairLearner):
    """Online gradient descent on pairs of records; not private.

    A record is paired with each record in the buffer. The gradient of the pair loss, averaged over the
    records in the buffer, makes one step, and the weights are projected onto the l2 ball of the given radius.
    Pairs of equal labels have no gradient. The margin of a pair is ``(y - y') w.(x - x')`` with labels +1 and
    -1.

    By default the steps are AdaGrad's, of a size for each weight, and the last iterate is published. With
    ``learning_rate=c``, another schedule or None all weights have the same step size, and this is Algorithm 2
    of Yang et al. (2021): one partner, and the average of the iterates. With a `Reservoir`, too, it is the
    online learner of Kar et al. (2013).

    Parameters
    ----------
    loss
        Pair loss; None is `losses.Hinge`.
    buffer
        Which past records are paired with the new one. None is ``buffers.FIFO(16)`` with `schedules.AdaGrad`,
        otherwise ``buffers.FIFO(1)``.
    learning_rate
        ``"adagrad"``: a step size for each weight by its own gradients, ``schedules.AdaGrad(1 / 8)``. A
        number c: step j (the j-th record that met a partner) has size ``c / sqrt(j)``. Or a schedule
        (`streampair.schedules`), such as constant steps, or ``2 / (alpha (j + 1))``. None: the self-tuned
        ``sqrt(2) radius / sqrt(|g_1|^2 + ... + |g_j|^2)`` over the gradients so far: the best constant in the
        regret bound of online gradient descent on this ball, without knowing the gradients' size.
    radius
        Radius R of the l2 ball that the weights are kept in, above 0 and at most 1e12. It bounds the margins;
        the ranking hardly depends on it while features are of order 1.
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
        Largest number of feature names, which bounds the memory. A record that would exceed it raises
        RecordError.
    half_life
        For concept drift: records after which the weight of a record has halved, in the average and in the
        sums that set the step sizes, which then stay those of ``half_life / ln 2`` records. Needs a FIFO
        buffer.

    Notes
    -----
    Features are real numbers by name, in any order. A missing feature counts as 0; a new name gets a new
    column. Text, None, NaN, infinity, numbers beyond 1e50 and empty records raise `RecordError` and leave the
    learner unchanged. Time and memory of a step are O(d size); with `buffers.FullHistory` they grow with the
    records, unless the loss is `losses.Square`. With ``FIFO(1)`` and ``l2=0`` the time of a step on a sparse
    record (a bag of words) depends on its own features, not on d: give that buffer to bags of thousands of
    words.

    The theorems of Yang et al. are about Algorithm 2, and cover no step sizes that differ by weight. The rate
    and the number of partners of the default were chosen by the AUC on the streams of
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
    radius: float = 2.0
    l2: float = 0.0
    average: bool | Literal["linear"] | None = None
    seed: int | None = None
    max_features: int = 10_000
    half_life: int | None = None

    _rule = OGDRule()
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
    radius, positive, negative, seed, max_features
        As in `PairOGD`. (Zhao et al. have no ball; Yang et al. 2021 compare with one.)
    average
        Publish the mean of the iterates; False: the last one, as Zhao et al. do.

    Notes
    -----
    Time of a step and memory are O(d size). See `auc.PairOGD` for features and probabilities.

    References
    ----------
    Zhao, P., Hoi, S., Jin, R. and Yang, T. (2011). Online AUC maximization. ICML. Algorithms 1, 2 and 4.

    Examples
    --------
    >>> from river import datasets, evaluate
    >>> from streampair import auc, evaluation
    >>> metric = evaluation.RollingAUC(window=1250)
    >>> evaluate.progressive_val_score(datasets.Phishing(), auc.OAM(seed=1), metric)  # doctest: +ELLIPSIS
    RollingAUC: 94...%
    """

    learning_rate: float = 0.01
    size: int = 100
    radius: float = 1.0
    _: KW_ONLY
    average: bool = True
    seed: int | None = None
    max_features: int = 10_000

    _rule = OAMRule()


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
    radius, average, positive, negative, max_features
        As in `PairOGD`.
    l2
        Factor of the ridge term ``l2 / 2 |w|^2``, taken as a proximal step; 0 or above and at most 1e12.

    Notes
    -----
    Margins are ``(y - y') w.(x - x')`` with labels +1 and -1. See `auc.PairOGD` for features and
    probabilities.

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
    average: bool = True
    max_features: int = 10_000

    _rule = SPAUCRule()
