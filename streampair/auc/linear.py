"""Linear learners that maximise the AUC; not private."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from streampair import buffers, losses, schedules
from streampair.base.mixins import Classifier
from streampair.base.online import FlatLearner, OAMRule, OGDRule, SPAUCRule

__all__ = ["OAM", "SPAUC", "PairOGD"]


@dataclass(eq=False, repr=False)
class PairOGD(Classifier, FlatLearner):
    """Online gradient descent on pairs; not private.

    A record is paired with each record in the buffer; the gradient of the pair loss, averaged over the pairs
    (over the records that are actually in the buffer), makes one step, which is projected on the ball of the
    given radius. Records of equal labels have no gradient. The margin of a pair is ``(y - y') w.(x - x')``
    with labels +1 and -1. With ``FIFO(1)`` this is Algorithm 2 of Yang et al. (2021), with ``Reservoir`` the
    online learner of Kar et al. (2013).

    Parameters
    ----------
    loss
        Pair loss; None is `losses.Hinge`.
    buffer
        Which past records are paired with the new one; None is ``buffers.FIFO(1)``.
    learning_rate
        A number c: step j (the j-th record that met a partner) has size ``c / sqrt(j)``. Or a schedule
        (`streampair.schedules`): constant steps, or ``2 / (alpha (j + 1))``. None: the self-tuned
        ``sqrt(2) radius / sqrt(|g_1|^2 + ... + |g_j|^2)`` over the gradients so far: the best constant in the
        regret bound of online gradient descent on this ball, without knowing the gradients' size.
    radius
        Radius R of the l2 ball that the weights are kept in, above 0 and at most 1e12. It bounds the margins;
        the ranking hardly depends on it while features are of order 1.
    l2
        Factor of the ridge term ``l2 / 2 |w|^2``, 0 or above and at most 1e12.
    average
        Publish the average of the iterates weighted by the step sizes, ``sum_j eta_j w_{j-2} / sum_j eta_j``
        (Algorithm 2 of Yang et al.), rather than the last iterate. ``"linear"``: weighted by j,
        ``sum_j j w_{j-2} / sum_j j`` (their Theorem 7 b).
    positive
        The label that ranks high: text, a number, True or False.
    negative
        The label that ranks low; any other is a RecordError. None: the opposite of True, False, 1 or 0;
        beside any other `positive` all labels of its type rank low, and predictions show the first one
        learned.
    seed
        Of what the reservoir draws; None takes one from the operating system. FIFO draws nothing.
    max_features
        Largest number of feature names, which bounds the memory; one more raises RecordError.
    half_life
        For a stream that changes: records after which one counts half in the average and in the sums that set
        the step, which so stays that of ``half_life / ln 2`` records. Needs a FIFO buffer.

    Notes
    -----
    Features are real numbers by name, in any order. A known feature that is missing counts as 0; a new name
    gets a new column. Text, None, NaN, infinity, numbers beyond 1e50 and empty records raise `RecordError`
    before anything has changed. Time and memory of a step are O(d size); with `buffers.FullHistory` they grow
    with the records, unless the loss is `losses.Square`. A record with few of many features (a bag of words)
    costs little more than these with ``FIFO(1)`` and ``l2=0``.

    `predict_proba_one` is a rising logistic curve of the score, learned online beside it (docs/learners.md).

    References
    ----------
    Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
    algorithms for pairwise learning. NeurIPS. Algorithm 2.

    Kar, P., Sriperumbudur, B., Jain, P. and Karnick, H. (2013). On the generalization ability of online
    learning algorithms for pairwise loss functions. ICML.

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
    learning_rate: float | schedules.Schedule | None = None
    _: KW_ONLY
    radius: float = 1.0
    l2: float = 0.0
    average: bool | Literal["linear"] = True
    seed: int | None = None
    max_features: int = 10_000
    half_life: int | None = None

    _rule = OGDRule()
    predict_proba_one = FlatLearner.proba_one  # type: ignore[assignment]  # a call less


@dataclass(eq=False, repr=False)
class OAM(Classifier, FlatLearner):
    """Online AUC maximisation with two reservoirs, gradient version (Zhao et al. 2011); not private.

    A uniform sample of at most `size` records is kept of each class. A record is paired with the whole sample
    of the other class, and every pair with hinge loss pulls the weights along ``x - x'`` (their sum, not
    their mean). Once the other class has more records than its sample, the step is larger by
    ``records / size``: the sample stands for all of them.

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
    Time of a step and memory are O(d size). Features and probabilities as in `auc.PairOGD`.

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
class SPAUC(Classifier, FlatLearner):
    """Stochastic proximal AUC maximisation with the square loss (Lei and Ying 2021); not private.

    The expected square loss over pairs is a sum of one-record terms once the share of positives and the mean
    record of each class are known; both are estimated as the stream goes. So a step pairs a record with all
    before it, in time and memory O(d).

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
    Margins are ``(y - y') w.(x - x')`` with labels +1 and -1. Features, probabilities: as in `auc.PairOGD`.

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
