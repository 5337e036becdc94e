"""The private learners of `metric`: learn a distance under a guarantee."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from streampair import buffers, losses
from streampair._pairdescent import NoisyBase, OutputBase
from streampair._pairftrl import LeaderBase
from streampair._private_metric import MetricPrivate
from streampair.privacy import EntityLimit

__all__ = ["NoisyOGD", "OnPairC", "OnPairStrC", "PairFTRL"]


class PairFTRL(LeaderBase, MetricPrivate):  # type: ignore[misc]  # see MetricLearner
    """Private metric learning: follow the regularised leader, with correlated noise.

    The algorithm of `streampair.auc.PairFTRL` for the loss ``phi(s (1 - u'Wu))`` of a pair, with ``u = x -
    x'`` and s = 1 for two records of one class, else -1. W is symmetric and in a Frobenius ball; what is
    transformed with is its positive semi-definite part.

    Parameters
    ----------
    epsilon, delta, horizon, loss, buffer, clip, radius, features, bounds, warmup, noise_key, seed,
    strategy, max_uses, forks, window, entity
        As in `streampair.auc.PairFTRL`.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (PRIVACY.md 1, 4.3, 4.4): mu-GDP under replacement of one record's content, the class
    included, with ``mu`` exact for (epsilon, delta). Here D = min(2 clip, 2 G), and the noise is that of a
    symmetric matrix: in the d (d + 1) / 2 isometric coordinates, in which the Frobenius norm is the
    Euclidean one. What holds for null records, copies and the report is said in `streampair.auc.PairFTRL`.
    A step that learns from the transformed records, such as neighbours, is not private.

    References
    ----------
    Kairouz, P. et al. (2021). Practical and private (deep) learning without sampling or shuffling. ICML.

    Denisov, S. et al. (2022). Improved differential privacy for SGD via optimal private linear operators on
    adaptive streams. NeurIPS.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import metric
    >>> model = metric.PairFTRL(epsilon=1.0, delta=1e-4, horizon=1000)
    >>> for x, y in datasets.Phishing().take(1000):
    ...     model.learn_one(x, y)
    >>> model.metric_.shape, round(model.privacy.epsilon_spent, 6)
    ((9, 9), 1.0)
    """

    __module__ = "streampair.metric"

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
        noise_key: Any = None,
        seed: int | None = None,
        strategy: str = "auto",
        max_uses: int | None = None,
        forks: int = 0,
        window: int = 4096,
        entity: EntityLimit | None = None,
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
        self.noise_key = noise_key
        self.seed = seed
        self.strategy = strategy
        self.max_uses = max_uses
        self.forks = forks
        self.window = window
        self.entity = entity

        self._init_private()


class OnPairStrC(OutputBase, MetricPrivate):  # type: ignore[misc]  # see MetricLearner
    """Private metric learning: output perturbation, for strongly convex losses.

    The algorithm of `streampair.auc.OnPairStrC` for the loss ``phi(s (1 - u'Wu))`` of a pair, with ``u = x
    - x'`` and s = 1 for two records of one class, else -1. W is symmetric and in a Frobenius ball; what is
    transformed with is its positive semi-definite part.

    Parameters
    ----------
    epsilon, delta, horizon, l2, loss, buffer, releases, calibration, allocation, clip, radius, features,
    bounds, warmup, noise_key, seed, max_uses, forks, window, entity
        As in `streampair.auc.OnPairStrC`.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (PRIVACY.md 1, 4.1, 4.4): mu-GDP under replacement of one record's content, the class
    included, with ``mu`` exact for (epsilon, delta). Here D = min(2 clip, 2 G), and the noise is that of a
    symmetric matrix: in the d (d + 1) / 2 isometric coordinates, in which the Frobenius norm is the
    Euclidean one. What holds for null records, copies and the report is said in `streampair.auc.PairFTRL`.
    A step that learns from the transformed records, such as neighbours, is not private.

    References
    ----------
    Huai, M., Wang, D., Miao, C., Xu, J. and Zhang, A. (2020). Pairwise learning with differential privacy
    guarantees. AAAI.

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

    __module__ = "streampair.metric"

    def __init__(
        self,
        epsilon: float,
        delta: float,
        horizon: int,
        l2: float = 1e-3,
        loss: losses.PairLoss | None = None,
        buffer: buffers.Buffer | None = None,
        releases: int | None = None,
        calibration: str = "tight",
        allocation: str = "minimal",
        clip: float | None = None,
        radius: float | None = None,
        features: Sequence[Hashable] | None = None,
        bounds: Mapping[Hashable, tuple[float, float]] | None = None,
        warmup: int | None = None,
        noise_key: Any = None,
        seed: int | None = None,
        max_uses: int | None = None,
        forks: int = 0,
        window: int = 4096,
        entity: EntityLimit | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.horizon = horizon
        self.l2 = l2
        self.loss = loss
        self.buffer = buffer
        self.releases = releases
        self.calibration = calibration
        self.allocation = allocation
        self.clip = clip
        self.radius = radius
        self.features = features
        self.bounds = bounds
        self.warmup = warmup
        self.noise_key = noise_key
        self.seed = seed
        self.max_uses = max_uses
        self.forks = forks
        self.window = window
        self.entity = entity

        self._init_private()


class OnPairC(OutputBase, MetricPrivate):  # type: ignore[misc]  # see MetricLearner
    """Private metric learning: output perturbation, for convex losses.

    The algorithm of `streampair.auc.OnPairC` for the loss ``phi(s (1 - u'Wu))`` of a pair, with ``u = x -
    x'`` and s = 1 for two records of one class, else -1. W is symmetric and in a Frobenius ball; what is
    transformed with is its positive semi-definite part.

    Parameters
    ----------
    epsilon, delta, horizon, l2, loss, buffer, releases, calibration, allocation, clip, radius, features,
    bounds, warmup, noise_key, seed, max_uses, forks, window, entity
        As in `streampair.auc.OnPairC`.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (PRIVACY.md 1, 4.1, 4.4): mu-GDP under replacement of one record's content, the class
    included, with ``mu`` exact for (epsilon, delta). Here D = min(2 clip, 2 G), and the noise is that of a
    symmetric matrix: in the d (d + 1) / 2 isometric coordinates, in which the Frobenius norm is the
    Euclidean one. What holds for null records, copies and the report is said in `streampair.auc.PairFTRL`.
    A step that learns from the transformed records, such as neighbours, is not private.

    References
    ----------
    Huai, M., Wang, D., Miao, C., Xu, J. and Zhang, A. (2020). Pairwise learning with differential privacy
    guarantees. AAAI.

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

    __module__ = "streampair.metric"
    _centred = True

    def __init__(
        self,
        epsilon: float,
        delta: float,
        horizon: int,
        l2: float | None = None,
        loss: losses.PairLoss | None = None,
        buffer: buffers.Buffer | None = None,
        releases: int | None = None,
        calibration: str = "tight",
        allocation: str = "minimal",
        clip: float | None = None,
        radius: float | None = None,
        features: Sequence[Hashable] | None = None,
        bounds: Mapping[Hashable, tuple[float, float]] | None = None,
        warmup: int | None = None,
        noise_key: Any = None,
        seed: int | None = None,
        max_uses: int | None = None,
        forks: int = 0,
        window: int = 4096,
        entity: EntityLimit | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.horizon = horizon
        self.l2 = l2
        self.loss = loss
        self.buffer = buffer
        self.releases = releases
        self.calibration = calibration
        self.allocation = allocation
        self.clip = clip
        self.radius = radius
        self.features = features
        self.bounds = bounds
        self.warmup = warmup
        self.noise_key = noise_key
        self.seed = seed
        self.max_uses = max_uses
        self.forks = forks
        self.window = window
        self.entity = entity

        self._init_private()


class NoisyOGD(NoisyBase, MetricPrivate):  # type: ignore[misc]  # see MetricLearner
    """Private metric learning: noise in every gradient; a baseline.

    The algorithm of `streampair.auc.NoisyOGD` for the loss ``phi(s (1 - u'Wu))`` of a pair, with ``u = x -
    x'`` and s = 1 for two records of one class, else -1. W is symmetric and in a Frobenius ball; what is
    transformed with is its positive semi-definite part.

    Parameters
    ----------
    epsilon, delta, horizon, l2, loss, buffer, clip, radius, features, bounds, warmup, noise_key, seed,
    max_uses, forks, window, entity
        As in `streampair.auc.NoisyOGD`.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (PRIVACY.md 1, 4.2, 4.4): mu-GDP under replacement of one record's content, the class
    included, with ``mu`` exact for (epsilon, delta). Here D = min(2 clip, 2 G), and the noise is that of a
    symmetric matrix: in the d (d + 1) / 2 isometric coordinates, in which the Frobenius norm is the
    Euclidean one. What holds for null records, copies and the report is said in `streampair.auc.PairFTRL`.
    A step that learns from the transformed records, such as neighbours, is not private.

    References
    ----------
    Dong, J., Roth, A. and Su, W. J. (2022). Gaussian differential privacy. JRSS B.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import metric
    >>> model = metric.NoisyOGD(epsilon=1.0, delta=1e-4, horizon=1000)
    >>> for x, y in datasets.Phishing().take(1000):
    ...     model.learn_one(x, y)
    >>> model.metric_.shape, round(model.privacy.epsilon_spent, 6)
    ((9, 9), 1.0)
    """

    __module__ = "streampair.metric"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        horizon: int | None = None,
        l2: float = 0.0,
        loss: losses.PairLoss | None = None,
        buffer: buffers.Buffer | None = None,
        clip: float | None = None,
        radius: float | None = None,
        features: Sequence[Hashable] | None = None,
        bounds: Mapping[Hashable, tuple[float, float]] | None = None,
        warmup: int | None = None,
        noise_key: Any = None,
        seed: int | None = None,
        max_uses: int | None = None,
        forks: int = 0,
        window: int = 4096,
        entity: EntityLimit | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.horizon = horizon
        self.l2 = l2
        self.loss = loss
        self.buffer = buffer
        self.clip = clip
        self.radius = radius
        self.features = features
        self.bounds = bounds
        self.warmup = warmup
        self.noise_key = noise_key
        self.seed = seed
        self.max_uses = max_uses
        self.forks = forks
        self.window = window
        self.entity = entity

        self._init_private()
