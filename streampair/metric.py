"""Metric learning: distances that are small within a class and large between classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from streampair import buffers, losses, schedules
from streampair.base import validation
from streampair.base.learner import TransformerMixin
from streampair.base.online import MetricRule, OnlinePairLearner
from streampair.base.private import PrivateLearner
from streampair.privacy.mechanism_options import MechanismOptions

__all__ = ["OnPairC", "OnPairStrC", "PairFTRL", "PairOGD"]


@dataclass(eq=False, repr=False)
class PairOGD(TransformerMixin, OnlinePairLearner):  # type: ignore[misc]  # see Transformer
    """Online gradient descent on a Mahalanobis metric; not private.

    A record is paired with each record in the buffer. The loss of a pair is ``phi(s (1 - u'Wu))`` with
    ``u = x - x'`` and s = 1 for two records of one class, else -1. It is small if the squared distance
    ``u'Wu`` is below 1 within classes and above 1 between them. The gradient, averaged over the pairs, makes
    one step, which is projected onto the symmetric (or positive semi-definite) matrices in a Frobenius ball.

    Parameters
    ----------
    loss
        Pair loss phi; None is `losses.Hinge`.
    buffer
        Which past records are paired with the new one; None is ``buffers.FIFO(1)``.
    learning_rate
        A number c: step j (the j-th record that met a partner) has size ``c / sqrt(j)``. Or a schedule
        (`streampair.schedules`). None: the self-tuned
        ``sqrt(2) radius / sqrt(|g_1|^2 + ... + |g_j|^2)`` over the gradients so far.
    radius
        Radius R of the ball, in the Frobenius norm, that W is kept in: above 0 and at most 1e12.
    l2
        Factor of the ridge term ``l2 / 2 |W|^2``, 0 or above and at most 1e12.
    average
        Publish the average of the iterates weighted by the step sizes rather than the last iterate;
        ``"linear"``: weighted by the number of the step.
    psd
        Keep W positive semi-definite, so that it is a metric. False: only symmetric, as in Huai et al.;
        records are then transformed with its positive semi-definite part.
    seed
        Seed of the reservoir's random draws; None takes one from the operating system. FIFO draws nothing.
    max_features
        Largest number of feature names; a record that would exceed it raises RecordError.
    half_life
        Records after which the weight of a record has halved, as in `streampair.auc.PairOGD`; None: all weigh
        the same.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Attributes
    ----------
    metric_
        W, shape (d, d), in the order of `feature_names`.

    Notes
    -----
    Labels are texts, numbers or booleans, of any number of classes. Features are real numbers by name; a
    missing feature counts as 0. Text, None, NaN, infinity, numbers beyond 1e30 and empty records raise
    `RecordError` before anything has changed. A step takes O(d^2) time for each pair, and O(d^3) to stay
    positive semi-definite. The threshold is a squared distance of 1: scale features to order 1 first.

    In a pipeline, each record is transformed with the current metric. Records that a later step has stored,
    such as the neighbours in `river.neighbors.KNNClassifier`, are not transformed again when the metric
    changes; a short window of neighbours limits this.

    References
    ----------
    Huai, M. et al. (2020). Pairwise learning with differential privacy guarantees. AAAI. Example 1.

    Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
    algorithms for pairwise learning. NeurIPS. Algorithm 2.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, neighbors
    >>> from streampair import metric
    >>> model = metric.PairOGD() | neighbors.KNNClassifier(n_neighbors=3)
    >>> evaluate.progressive_val_score(datasets.Phishing(), model, metrics.Accuracy())  # doctest: +ELLIPSIS
    Accuracy: 8...%
    """

    loss: losses.PairLoss | None = None
    buffer: buffers.Buffer | None = None
    learning_rate: float | schedules.Schedule | None = None
    _: KW_ONLY
    radius: float = 1.0
    l2: float = 0.0
    average: bool | Literal["linear"] = True
    psd: bool = True
    seed: int | None = None
    max_features: int = 256
    half_life: int | None = None

    takes_text = takes_gaps = takes_nulls = False

    _rule = MetricRule()


@dataclass(eq=False, repr=False)
class PairFTRL(TransformerMixin, PrivateLearner):  # type: ignore[misc]  # see Transformer
    """Private metric learning: FTRL on pairs with correlated noise.

    W is symmetric and in a Frobenius ball; records are transformed with its positive semi-definite part. Two
    mechanisms are available:

    `privacy.SecondMoments`, for declared classes
        Second moments of the records, and the sum and the count of each class, are summed over blocks and
        released under noise. They give the scatter within and between classes, and these a metric in closed
        form: the log-likelihood ratio of differences, for normal classes of one covariance. Its rank is one
        less than the number of classes whose sums exceed the noise; with fewer than two, it is the identity.
    `privacy.PairGradients`
        The algorithm of `streampair.auc.PairFTRL` for the loss ``phi(s (1 - u'Wu))`` of a pair, with
        ``u = x - x'`` and s = 1 for two records of one class, else -1.

    Parameters
    ----------
    mechanism
        One of these two; None: as in `streampair.auc.PairFTRL`, and gradients with `entity` or without
        `classes`.
    epsilon, delta, horizon, radius, features, bounds, warmup, noise_key, seed, forks, window, entity
        As in `streampair.auc.PairFTRL`.
    classes
        Declared labels, 2 to 256 texts or numbers; a record with another label is a null record. None: any
        label.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (docs/privacy 1, 4.3, 4.4, 10.4): mu-GDP under replacement of one record's content, the class
    included, with ``mu`` exact for (epsilon, delta). The replacement diameter is D = 3 / sqrt(2) for moments,
    whatever the number of classes, and D = min(2 clip, 2 G) for gradients. The noise of gradients is
    symmetric: it is added in the d (d + 1) / 2 isometric coordinates, in which the Frobenius norm is the
    Euclidean norm. See `auc.PairFTRL` for null records, copies and the report. A later step that learns from
    the transformed records, such as nearest neighbours, is not private.

    References
    ----------
    Koestinger, M. et al. (2012). Large scale metric learning from equivalence constraints. CVPR. For
    gradients as for `streampair.auc.PairFTRL`.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import metric
    >>> model = metric.PairFTRL(epsilon=1.0, delta=1e-4, horizon=1000, classes=[True, False])
    >>> for x, y in datasets.Phishing().take(1000):
    ...     model.learn_one(x, y)
    >>> model.metric_.shape, round(model.privacy.epsilon_spent, 6)
    ((9, 9), 1.0)
    """

    _: KW_ONLY
    mechanism: MechanismOptions | None = None
    classes: Sequence[Any] | None = None

    _select = validation.select_metric_ftrl


@dataclass(eq=False, repr=False)
class OnPairStrC(TransformerMixin, PrivateLearner):  # type: ignore[misc]  # see Transformer
    """Private metric learning: output perturbation for strongly convex losses.

    The algorithm of `streampair.auc.OnPairStrC` for the pair loss ``phi(s (1 - u'Wu))``, with ``u = x - x'``
    and s = 1 for two records of one class, else -1. W is symmetric and in a Frobenius ball; records are
    transformed with its positive semi-definite part.

    Notes
    -----
    Parameters, errors and references are those of `streampair.auc.OnPairStrC`, without what needs two
    classes. The guarantee (docs/privacy 1, 4.1, 4.4) and its preconditions are those of `PairFTRL` with
    gradients.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import metric
    >>> model = metric.OnPairStrC(epsilon=1.0, delta=1e-4, horizon=1000, l2=0.1)
    >>> for x, y in datasets.Phishing().take(1000):
    ...     model.learn_one(x, y)
    >>> model.metric_.shape, round(model.privacy.epsilon_spent, 6)
    ((9, 9), 1.0)
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

    _select = validation.select_output_perturbation


@dataclass(eq=False, repr=False)
class OnPairC(TransformerMixin, PrivateLearner):  # type: ignore[misc]  # see Transformer
    """Private metric learning: output perturbation for convex losses.

    The algorithm of `streampair.auc.OnPairC` for the pair loss ``phi(s (1 - u'Wu))``, with ``u = x - x'`` and
    s = 1 for two records of one class, else -1. W is symmetric and in a Frobenius ball; records are
    transformed with its positive semi-definite part.

    Notes
    -----
    Parameters, errors and references are those of `streampair.auc.OnPairC`, without what needs two
    classes. The guarantee (docs/privacy 1, 4.1, 4.4) and its preconditions are those of `PairFTRL` with
    gradients.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import metric
    >>> model = metric.OnPairC(epsilon=1.0, delta=1e-4, horizon=1000)
    >>> for x, y in datasets.Phishing().take(1000):
    ...     model.learn_one(x, y)
    >>> model.metric_.shape, round(model.privacy.epsilon_spent, 6)
    ((9, 9), 1.0)
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

    _select = validation.select_centred_output_perturbation
