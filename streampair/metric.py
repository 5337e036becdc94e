"""Learners of distances: records of one class near each other, those of different classes far apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import _features, buffers, losses
from streampair import kernels as k
from streampair._families import MetricLearner
from streampair._memory import Blocks, Rows
from streampair._metric_private import NoisyOGD, OnPairC, OnPairStrC, PairFTRL
from streampair._ogd import OGD
from streampair.errors import ConfigError

__all__ = ["NoisyOGD", "OnPairC", "OnPairStrC", "PairFTRL", "PairOGD"]

Array = NDArray[np.float64]


class PairOGD(OGD, MetricLearner):  # type: ignore[misc]  # see MetricLearner
    """Online gradient descent on a Mahalanobis metric; not private.

    A record is paired with each record in the buffer. The loss of a pair is ``phi(s (1 - u'Wu))`` with
    ``u = x - x'`` and s = 1 for two records of one class, else -1: the squared distance ``u'Wu`` is to be
    below 1 within a class and above 1 between classes. The gradient, averaged over the pairs, makes one step,
    which is projected on the symmetric (or positive semi-definite) matrices of the given Frobenius norm.

    Parameters
    ----------
    loss
        Pair loss phi; None is `losses.Hinge`.
    buffer
        Which past records are paired with the new one; None is ``buffers.FIFO(1)``.
    learning_rate
        A number c: step j (the j-th record that met a partner) has size ``c / sqrt(j)``. None: the self-tuned
        ``sqrt(2) radius / sqrt(|g_1|^2 + ... + |g_j|^2)`` over the gradients so far.
    radius
        Radius R of the ball, in the Frobenius norm, that W is kept in: above 0 and at most 1e12.
    l2
        Factor of the ridge term ``l2 / 2 |W|^2``, 0 or above and at most 1e12.
    average
        Publish the average of the iterates weighted by the step sizes rather than the last iterate.
    psd
        Keep W positive semi-definite, so that it is a metric. False: only symmetric, as in Huai et al.; what
        is transformed with is the positive semi-definite part then.
    seed
        Seed of the reservoir's coins; None takes one from the operating system. FIFO has no coins.
    max_features
        Largest number of feature names; a record that would exceed it raises RecordError.

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
    Classes may be any number of texts, numbers or booleans. Features are real numbers by name; a known one
    that is missing counts as 0. Text, None, NaN, infinity, numbers beyond 1e30 and empty records raise
    `RecordError` before anything has changed. A step takes O(d^2) time for each pair, and O(d^3) to stay
    positive semi-definite. The thresholds are at the squared distance 1: scale features to order 1 first.

    In a pipeline, each record is transformed with the metric of that moment. Whatever a later step keeps of
    it, such as the neighbours in `river.neighbors.KNNClassifier`, stays where an older metric has put it; a
    short window of neighbours forgets the old ones soonest.

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

    _limit = k.MAX_ABS_METRIC

    def __init__(
        self,
        loss: losses.PairLoss | None = None,
        buffer: buffers.Buffer | None = None,
        learning_rate: float | None = None,
        radius: float = 1.0,
        l2: float = 0.0,
        average: bool = True,
        psd: bool = True,
        seed: int | None = None,
        max_features: int = 256,
    ) -> None:
        self.loss = loss
        self.buffer = buffer
        self.learning_rate = learning_rate
        self.radius = radius
        self.l2 = l2
        self.average = average
        self.psd = psd
        self.seed = seed
        self.max_features = max_features

        self._init_ogd()

    def _header(self) -> Array:
        header = super()._header()
        header[k.PSD] = bool(self.psd)
        return header

    def _bind(self) -> None:
        policy = self._policy
        if isinstance(policy, buffers.ClassReservoir):
            raise ConfigError(
                f"buffer is {policy!r}, which pairs records of different classes only",
                fix="use buffers.Reservoir: a metric learns from both kinds of pairs",
            )
        if isinstance(policy, buffers.FullHistory):
            blocks = Blocks(policy, k.metric_history_learn, k.metric_history_learn_many)
            self._memory, self._learn, self._learn_many = blocks, blocks.learn, blocks.learn_many
        else:
            self._memory = Rows(policy)
            self._learn, self._learn_many = k.metric_learn, k.metric_learn_many

    @staticmethod
    def _weights_shape(d: int) -> tuple[int, ...]:
        return (d, d)

    @property
    def metric_(self) -> Array:
        """Published W, symmetric, shape (d, d), in the order of `feature_names`: a copy."""
        return self._published().copy()

    def _import(self, saved: Mapping[str, Any]) -> None:
        if any((np.asarray(saved[name]) != np.asarray(saved[name]).T).any() for name in ("w", "averaged")):
            raise ValueError("a metric that is not symmetric")
        super()._import(saved)
        self._root = (-1, None)  # it was of another metric

    def _design_rows(self, columns: list[Any], rows: Array) -> Array:
        self._check_rows(columns, rows)
        return _features.arrange(columns, rows, self._names, self._index)
