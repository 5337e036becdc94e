"""Learners for the AUC alone, beside which `auc.PairOGD` is measured: OAM and SPAUC. Not private."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import buffers, losses
from streampair import kernels as k
from streampair._families import AUCLearner
from streampair._memory import Classes, Memory
from streampair._ogd import LinearOGD
from streampair.errors import ConfigError

__all__ = ["OAM", "SPAUC"]

Array = NDArray[np.float64]


class _Means(Memory):
    """The mean record of the negatives and that of the positives."""

    def cells(self, cap: int) -> int:
        return 2 * cap

    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        new.reshape(2, new_cap)[:, :d] = old.reshape(2, old_cap)[:, :d]

    def export(self, region: Array, header: Array) -> dict[str, Any]:
        return {"means": region.reshape(2, int(header[k.CAP]))[:, : int(header[k.D])].copy()}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        means = np.asarray(saved["means"], dtype=np.float64)
        if means.shape != (2, d) or not np.isfinite(means).all():
            raise ValueError("means of another shape, or not finite")
        if header[k.POSITIVES] > header[k.RECORDS] or header[k.FILLED] or header[k.NEXT]:
            raise ValueError("counters that do not fit each other")
        return {"means": means}

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        region.reshape(2, d)[:] = kept["means"]


class _OnlineAUC(LinearOGD, AUCLearner):
    """The flat state of OGD with other steps. A subclass names the pair loss that its kernel steps on."""

    l2 = 0.0
    seed: int | None = 0  # only OAM tosses coins

    def _bind(self) -> None:
        self._memory = self._make_memory()
        self._learn, self._learn_many = k.online_auc_learn, k.online_auc_learn_many

    def _make_memory(self) -> Memory:
        raise NotImplementedError


class OAM(_OnlineAUC):
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
    radius
        Radius of the l2 ball that the weights are kept in, above 0 and at most 1e12. (Zhao et al. have no
        ball; Yang et al. 2021 compare with one.)
    average
        Publish the mean of the iterates; False: the last one, as Zhao et al. do.
    positive
        The label that ranks high; every other label is negative.
    seed
        Seed of the reservoirs' coins; None takes one from the operating system.
    max_features
        Largest number of feature names; a record that would exceed it raises RecordError.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    Time of a step and memory are O(d size). Features as in `auc.PairOGD`.

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

    loss = losses.Hinge()

    def __init__(
        self,
        learning_rate: float = 0.01,
        size: int = 100,
        radius: float = 1.0,
        average: bool = True,
        positive: Any = True,
        seed: int | None = None,
        max_features: int = 10_000,
    ) -> None:
        self.learning_rate = learning_rate
        self.size = size
        self.radius = radius
        self.average = average
        self.positive = positive
        self.seed = seed
        self.max_features = max_features
        if learning_rate is None:
            raise ConfigError("learning_rate is None", fix="give a number: OAM does not tune its own step")
        self.buffer = buffers.ClassReservoir(size)
        self._init_labels(positive)
        self._init_ogd()

    def _make_memory(self) -> Memory:
        return Classes(self._policy)


class SPAUC(_OnlineAUC):
    """Stochastic proximal AUC maximisation with the square loss (Lei and Ying 2021); not private.

    The expected square loss over pairs is a sum of one-record terms once the share of positives and the mean
    record of each class are known; both are estimated as the stream goes. So a step pairs a record with all
    before it, in time and memory O(d).

    Parameters
    ----------
    learning_rate
        A number c: step t has size ``c / sqrt(t)``. None: the self-tuned
        ``sqrt(2) radius / sqrt(|g_1|^2 + ... + |g_t|^2)`` of `auc.PairOGD`.
    radius
        Radius of the l2 ball that the weights are kept in, above 0 and at most 1e12.
    l2
        Factor of the ridge term ``l2 / 2 |w|^2``, taken as a proximal step; 0 or above and at most 1e12.
    average
        Publish the average of the iterates weighted by the step sizes rather than the last one.
    positive
        The label that ranks high; every other label is negative.
    max_features
        Largest number of feature names; a record that would exceed it raises RecordError.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    Margins are ``(y - y') w.(x - x')`` with labels +1 and -1, as everywhere in this package. Features as in
    `auc.PairOGD`.

    References
    ----------
    Lei, Y. and Ying, Y. (2021). Stochastic proximal AUC maximization. JMLR 22(61). Algorithm 1.

    Examples
    --------
    >>> from river import datasets, evaluate
    >>> from streampair import auc, evaluation
    >>> metric = evaluation.RollingAUC(window=1250)
    >>> evaluate.progressive_val_score(datasets.Phishing(), auc.SPAUC(), metric)  # doctest: +ELLIPSIS
    RollingAUC: 94...%
    """

    loss = losses.Square()
    buffer = None

    def __init__(
        self,
        learning_rate: float | None = None,
        radius: float = 1.0,
        l2: float = 0.0,
        average: bool = True,
        positive: Any = True,
        max_features: int = 10_000,
    ) -> None:
        self.learning_rate = learning_rate
        self.radius = radius
        self.l2 = l2
        self.average = average
        self.positive = positive
        self.max_features = max_features
        self._init_labels(positive)
        self._init_ogd()

    def _make_memory(self) -> Memory:
        return _Means()
