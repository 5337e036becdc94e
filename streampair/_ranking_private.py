"""The private learners of `ranking`: order records by a real-valued relevance, under a guarantee."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from streampair import buffers, losses
from streampair._families import RankingLearner
from streampair._pairdescent import NoisyBase, OutputBase
from streampair._pairftrl import LeaderBase
from streampair._private_linear import LinearPrivate
from streampair.privacy import EntityLimit

__all__ = ["NoisyOGD", "OnPairC", "OnPairStrC", "PairFTRL"]


class PairFTRL(LeaderBase, LinearPrivate, RankingLearner):
    """Private ranking by a real-valued relevance: follow the regularised leader, with correlated noise.

    The algorithm of `streampair.auc.PairFTRL` for labels y in [-1, 1]: the margin of a pair is ``(y - y')
    w.(x - x')``.

    Parameters
    ----------
    epsilon, delta, horizon, loss, buffer, clip, radius, features, bounds, warmup, noise_key, seed,
    strategy, max_uses, forks, window, entity
        As in `streampair.auc.PairFTRL`.
    relevance
        Lowest and highest relevance there can be, by declaration; scaled to -1 and 1. A record with any other
        relevance makes a null slot.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (PRIVACY.md 1, 4.3, 4.4): mu-GDP under replacement of one record's content, the relevance
    included, with ``mu`` exact for (epsilon, delta). Here D = min(2 clip, G), for real labels as for two
    classes. What holds for null records, copies and the report is said in `streampair.auc.PairFTRL`.

    References
    ----------
    Kairouz, P. et al. (2021). Practical and private (deep) learning without sampling or shuffling. ICML.

    Denisov, S. et al. (2022). Improved differential privacy for SGD via optimal private linear operators on
    adaptive streams. NeurIPS.

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> rng = random.Random(0)
    >>> model = ranking.PairFTRL(epsilon=1.0, delta=1e-4, horizon=1000)
    >>> for _ in range(1000):
    ...     x = {"price": rng.random(), "stars": rng.random()}
    ...     model.learn_one(x, 0.6 * x["stars"] - 0.4 * x["price"])
    >>> round(model.privacy.epsilon_spent, 6), model.privacy.horizon_left
    (1.0, 0)
    """

    __module__ = "streampair.ranking"

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
        relevance: tuple[float, float] = (-1.0, 1.0),
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
        self.relevance = relevance
        self.noise_key = noise_key
        self.seed = seed
        self.strategy = strategy
        self.max_uses = max_uses
        self.forks = forks
        self.window = window
        self.entity = entity

        self._init_labels(relevance)
        self._init_private()


class OnPairStrC(OutputBase, LinearPrivate, RankingLearner):
    """Private ranking by a real-valued relevance: output perturbation, for strongly convex losses.

    The algorithm of `streampair.auc.OnPairStrC` for labels y in [-1, 1]: the margin of a pair is ``(y - y')
    w.(x - x')``.

    Parameters
    ----------
    epsilon, delta, horizon, l2, loss, buffer, releases, calibration, allocation, clip, radius, features,
    bounds, warmup, noise_key, seed, max_uses, forks, window, entity
        As in `streampair.auc.OnPairStrC`.
    relevance
        Lowest and highest relevance there can be, by declaration; scaled to -1 and 1. A record with any other
        relevance makes a null slot.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (PRIVACY.md 1, 4.1, 4.4): mu-GDP under replacement of one record's content, the relevance
    included, with ``mu`` exact for (epsilon, delta). Here D = min(2 clip, G), for real labels as for two
    classes. What holds for null records, copies and the report is said in `streampair.auc.PairFTRL`.

    References
    ----------
    Huai, M., Wang, D., Miao, C., Xu, J. and Zhang, A. (2020). Pairwise learning with differential privacy
    guarantees. AAAI.

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> rng = random.Random(0)
    >>> model = ranking.OnPairStrC(epsilon=1.0, delta=1e-4, horizon=1000, l2=0.1)
    >>> for _ in range(1000):
    ...     x = {"price": rng.random(), "stars": rng.random()}
    ...     model.learn_one(x, 0.6 * x["stars"] - 0.4 * x["price"])
    >>> round(model.privacy.epsilon_spent, 6), model.privacy.horizon_left
    (1.0, 0)
    """

    __module__ = "streampair.ranking"

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
        relevance: tuple[float, float] = (-1.0, 1.0),
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
        self.relevance = relevance
        self.noise_key = noise_key
        self.seed = seed
        self.max_uses = max_uses
        self.forks = forks
        self.window = window
        self.entity = entity

        self._init_labels(relevance)
        self._init_private()


class OnPairC(OutputBase, LinearPrivate, RankingLearner):
    """Private ranking by a real-valued relevance: output perturbation, for convex losses.

    The algorithm of `streampair.auc.OnPairC` for labels y in [-1, 1]: the margin of a pair is ``(y - y')
    w.(x - x')``.

    Parameters
    ----------
    epsilon, delta, horizon, l2, loss, buffer, releases, calibration, allocation, clip, radius, features,
    bounds, warmup, noise_key, seed, max_uses, forks, window, entity
        As in `streampair.auc.OnPairC`.
    relevance
        Lowest and highest relevance there can be, by declaration; scaled to -1 and 1. A record with any other
        relevance makes a null slot.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (PRIVACY.md 1, 4.1, 4.4): mu-GDP under replacement of one record's content, the relevance
    included, with ``mu`` exact for (epsilon, delta). Here D = min(2 clip, G), for real labels as for two
    classes. What holds for null records, copies and the report is said in `streampair.auc.PairFTRL`.

    References
    ----------
    Huai, M., Wang, D., Miao, C., Xu, J. and Zhang, A. (2020). Pairwise learning with differential privacy
    guarantees. AAAI.

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> rng = random.Random(0)
    >>> model = ranking.OnPairC(epsilon=1.0, delta=1e-4, horizon=1000)
    >>> for _ in range(1000):
    ...     x = {"price": rng.random(), "stars": rng.random()}
    ...     model.learn_one(x, 0.6 * x["stars"] - 0.4 * x["price"])
    >>> round(model.privacy.epsilon_spent, 6), model.privacy.horizon_left
    (1.0, 0)
    """

    __module__ = "streampair.ranking"
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
        relevance: tuple[float, float] = (-1.0, 1.0),
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
        self.relevance = relevance
        self.noise_key = noise_key
        self.seed = seed
        self.max_uses = max_uses
        self.forks = forks
        self.window = window
        self.entity = entity

        self._init_labels(relevance)
        self._init_private()


class NoisyOGD(NoisyBase, LinearPrivate, RankingLearner):
    """Private ranking by a real-valued relevance: noise in every gradient; a baseline.

    The algorithm of `streampair.auc.NoisyOGD` for labels y in [-1, 1]: the margin of a pair is ``(y - y')
    w.(x - x')``.

    Parameters
    ----------
    epsilon, delta, horizon, l2, loss, buffer, clip, radius, features, bounds, warmup, noise_key, seed,
    max_uses, forks, window, entity
        As in `streampair.auc.NoisyOGD`.
    relevance
        Lowest and highest relevance there can be, by declaration; scaled to -1 and 1. A record with any other
        relevance makes a null slot.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or no guarantee can be given with it.

    Notes
    -----
    Guarantee (PRIVACY.md 1, 4.2, 4.4): mu-GDP under replacement of one record's content, the relevance
    included, with ``mu`` exact for (epsilon, delta). Here D = min(2 clip, G), for real labels as for two
    classes. What holds for null records, copies and the report is said in `streampair.auc.PairFTRL`.

    References
    ----------
    Dong, J., Roth, A. and Su, W. J. (2022). Gaussian differential privacy. JRSS B.

    Examples
    --------
    >>> import random
    >>> from streampair import ranking
    >>> rng = random.Random(0)
    >>> model = ranking.NoisyOGD(epsilon=1.0, delta=1e-4, horizon=1000)
    >>> for _ in range(1000):
    ...     x = {"price": rng.random(), "stars": rng.random()}
    ...     model.learn_one(x, 0.6 * x["stars"] - 0.4 * x["price"])
    >>> round(model.privacy.epsilon_spent, 6), model.privacy.horizon_left
    (1.0, 0)
    """

    __module__ = "streampair.ranking"

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
        relevance: tuple[float, float] = (-1.0, 1.0),
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
        self.relevance = relevance
        self.noise_key = noise_key
        self.seed = seed
        self.max_uses = max_uses
        self.forks = forks
        self.window = window
        self.entity = entity

        self._init_labels(relevance)
        self._init_private()
