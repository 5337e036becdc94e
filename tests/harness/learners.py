"""Every learner of the package, for the contract that all of them keep: add a new one to `LEARNERS`.

The contract is in ``tests/river`` (records, states, parameters) and ``tests/privacy/test_contract.py`` (the
life of a private learner).
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from streampair import auc, buffers, losses, metric, privacy, ranking
from streampair.base.learner import Learner
from streampair.engine.snapshot import pack
from streampair.privacy.pipeline_check import class_name

KEY = bytes(range(32))
NAMES = [f"f{i}" for i in range(5)]

LEARNERS: list[Any] = [
    auc.PairOGD(seed=0),
    auc.PairOGD(losses.Logistic(), buffers.Reservoir(8), 0.1, l2=0.01, average=False, seed=1),
    auc.PairOGD(losses.SquaredHinge(), buffers.Reservoir(8, replacement=True), seed=2),
    auc.PairOGD(losses.Logistic(), buffers.ClassReservoir(4), None, seed=3),
    auc.PairOGD(losses.Logistic(), buffers.FullHistory(), None, seed=4),
    auc.PairOGD(losses.Logistic(), buffers.FullHistory("float32"), seed=4),
    auc.PairOGD(losses.Square(), buffers.FullHistory(), seed=5),
    auc.PairOGD(losses.Logistic(), buffers.FIFO(3), half_life=20),
    auc.OAM(size=4, seed=6),
    auc.SPAUC(l2=0.01),
    auc.PairMoments(),
    auc.PairMoments(0.01, None, positive=2),
    auc.PairOGD(losses.Logistic(), buffers.Reservoir(8), None, scale=None, seed=18),
    ranking.PairOGD(seed=7),
    ranking.PairOGD(losses.MinimumErrorEntropy(0.5), buffers.FullHistory(), seed=8),
    ranking.PairOGD(losses.Square(), buffers.FullHistory(), seed=9),
    ranking.PairMoments(half_life=20),
    metric.PairOGD(half_life=20, learning_rate=0.1),
    metric.PairOGD(seed=10),
    metric.PairOGD(losses.Logistic(), buffers.Reservoir(8), l2=0.01, psd=False, seed=11),
    metric.PairOGD(losses.Logistic(), buffers.FullHistory(), seed=12),
    # Small ones: they are as large from the first record on as they ever are.
    auc.Forest(3, 31, seed=13),
    auc.Forest(3, 31, loss=losses.Logistic(), seed=17),
    auc.MulticlassForest(3, 31, positive=2, seed=16),
    ranking.Forest(3, 31, seed=14),
    ranking.Forest(3, 31, relevance=(-2, 4), seed=15),
    # Without a seed, for the draws go with the state; and labels other than True and False.
    auc.PairOGD(losses.Logistic(), buffers.Reservoir(3), l2=0.01),
    auc.OAM(learning_rate=0.1, size=3, average=False, positive=2),
    auc.SPAUC(learning_rate=0.5, l2=0.1, average=False, positive=False),
    # Private ones with a key: under it, and only then, a copy draws the same noise.
    auc.PairFTRL(warmup=100, noise_key=KEY),
    auc.PairFTRL(horizon=5000, delta=1e-4, warmup=100, features=NAMES, noise_key=KEY),
    auc.PairFTRL(warmup=100, mechanism=privacy.DecayedMoments(80), noise_key=KEY),
    auc.OnPairStrC(1.0, 1e-4, 5000, l2=0.1, warmup=100, noise_key=KEY),
    auc.OnPairC(1.0, 1e-4, 5000, buffer=buffers.Reservoir(8), releases=10, warmup=100, noise_key=KEY),
    auc.OnPairStrC(1.0, 1e-4, 5000, l2=0.1, warmup=0, positive_rate="released", noise_key=KEY),
    auc.PairFTRL(1.0, 1e-4, warmup=100, mechanism=privacy.DecayedMoments(80), auc_share=0.05, noise_key=KEY),
    # So much budget that its leaves tell more than noise from the first block on.
    auc.PrivateForest(24.0, 1e-3, warmup=100, trees=5, depth=2, noise_key=KEY),
    ranking.PairFTRL(warmup=20, noise_key=KEY),
    ranking.PairFTRL(warmup=20, mechanism=privacy.PairGradients(), noise_key=KEY),
    ranking.OnPairC(1.0, 1e-4, 5000, releases=500, warmup=100, noise_key=KEY),
    metric.PairFTRL(horizon=5000, warmup=0, noise_key=KEY),
    metric.PairFTRL(warmup=20, classes=["a", "b", "c"], noise_key=KEY),
    metric.OnPairStrC(1.0, 1e-4, 5000, l2=0.1, warmup=0, noise_key=KEY),
]

#: Private ones with short lives, not yet made: `make(noise_key=...)`.
PRIVATE: dict[str, Callable[..., Any]] = {
    "auc-moments": partial(auc.PairFTRL, 1.0, 1e-3, 60),
    "auc-forgetting": partial(auc.PairFTRL, 1.0, 1e-3, warmup=10, mechanism=privacy.DecayedMoments(8)),
    "auc-warm-up": partial(auc.PairFTRL, 1.0, 1e-3, 60, warmup=10),
    "auc-blt": partial(auc.PairFTRL, 1.0, 1e-3, 60, mechanism=privacy.PairGradients(strategy="blt")),
    "auc-toeplitz": partial(auc.PairFTRL, 1.0, 1e-3, 60, mechanism=privacy.PairGradients()),
    "auc-strongly": partial(auc.OnPairStrC, 1.0, 1e-3, 60, l2=0.1),
    "auc-convex": partial(auc.OnPairC, 1.0, 1e-3, 60, buffer=buffers.FullHistory()),
    "auc-paper": partial(auc.OnPairC, 1.0, 1e-3, 60, l2=4.0, calibration="paper"),
    "auc-sampled": partial(auc.OnPairStrC, 1.0, 1e-3, 60, l2=0.1, buffer=buffers.Reservoir(4), releases=7),
}
PRIVATE["ranking-moments"] = partial(
    ranking.PairFTRL, 1.0, 1e-3, 60, warmup=10, mechanism=privacy.SecondMoments()
)
PRIVATE["metric-moments"] = partial(
    metric.PairFTRL, 1.0, 1e-3, 60, warmup=10, mechanism=privacy.SecondMoments(), classes=["a", "b", "c"]
)
PRIVATE["auc-rated"] = partial(
    auc.PairFTRL, 1.0, 1e-3, 60, mechanism=privacy.PairGradients(positive_rate="released")
)
PRIVATE["auc-evaluated"] = partial(auc.PairFTRL, 1.0, 1e-3, 60, warmup=10, auc_share=0.1)
PRIVATE["auc-rated-evaluated"] = partial(
    auc.OnPairStrC, 1.0, 1e-3, 60, l2=0.1, positive_rate="released", auc_share=0.1
)
PRIVATE["auc-forest"] = partial(auc.PrivateForest, 1.0, 1e-3, 60, warmup=10, trees=3, depth=2)
PRIVATE["auc-forest-endless"] = partial(auc.PrivateForest, 1.0, 1e-3, warmup=10, trees=3, depth=2)
PRIVATE["auc-blanked"] = partial(
    auc.PairFTRL, 1.0, 1e-3, 60, mechanism=privacy.PairGradients(buffer=buffers.Reservoir(4, max_uses=9))
)
for family in (auc, ranking, metric):
    kind = family.__name__.split(".")[1]
    PRIVATE[f"{kind}-endless"] = partial(family.PairFTRL, 1.0, 1e-3, warmup=0)
    if family is not auc:
        PRIVATE[f"{kind}-leader"] = partial(family.PairFTRL, 1.0, 1e-3, 60)
        PRIVATE[f"{kind}-strongly"] = partial(family.OnPairStrC, 1.0, 1e-3, 60, l2=0.1)
        PRIVATE[f"{kind}-convex"] = partial(family.OnPairC, 1.0, 1e-3, 60, buffer=buffers.Reservoir(4))


def name_of(model: Any) -> str:
    return ".".join(class_name(model).split(".")[-2:])


def inherited(model: Any) -> object:
    """What a model's class inherits: the code that a contract is about. Trees have some of their own."""
    bases = type(model).__mro__[1:]
    return (bases, hasattr(model, "trees")) if Learner in bases else type(model)


def by_base(models: list[Any]) -> Iterator[tuple[Any, list[pytest.MarkDecorator]]]:
    """Each model, and its marks: all but the first of a base class run with ``--everything``."""
    seen: set[object] = set()
    for model in models:
        yield model, [pytest.mark.everything] if inherited(model) in seen else []
        seen.add(inherited(model))


every_learner = pytest.mark.parametrize(
    "model", LEARNERS, ids=[f"{name_of(m)}-{i}" for i, m in enumerate(LEARNERS)]
)

#: A learner of each base class; with ``--everything`` every learner.
each_base = pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, id=f"{name_of(model)}-{i}", marks=marks)
        for i, (model, marks) in enumerate(by_base(LEARNERS))
    ],
)


def through_state(model: Any) -> Any:
    """Another one, with its state."""
    other = model.clone()
    other.load_state(model.to_state())
    return other


def through_pickle(model: Any) -> Any:
    """An unpickled one, with its noise key, which no pickle holds."""
    other = pickle.loads(pickle.dumps(model))
    if getattr(model, "noise_key", None) is not None:
        other.bind_noise("", key=model.noise_key)
    return other


def is_private(model: Any) -> bool:
    return model.privacy is not None


def keeps_all(model: Any) -> bool:
    """Whether memory grows by design: with the records, up to a limit that is a test of its own."""
    full = isinstance(getattr(model, "buffer", None), buffers.FullHistory)
    return full and not isinstance(model.loss, losses.Square)


def label(model: Any, rng: random.Random) -> Any:
    if type(model).__module__ == "streampair.ranking":
        return rng.uniform(-1, 1)
    if getattr(model, "positive", True) == 2:
        return rng.choice((1, 2, 3))
    return rng.choice("abc") if hasattr(model, "metric_") else rng.random() < 0.4


def stream(model: Any, n: int, seed: int = 0) -> list[tuple[dict[str, float], Any]]:
    rng = random.Random(seed)
    return [({name: rng.gauss(0, 0.5) for name in NAMES}, label(model, rng)) for _ in range(n)]


def taught(model: Any, n: int) -> Any:
    for x, y in stream(model, n):
        model.learn_one(x, y)
    return model


def frozen(model: Any) -> bytes:
    """All that was learned, as bytes; not that it is a copy, nor what the column of labels was called."""
    return pack({**model.to_state(), "continued": None, "restarts": None, "y_name": None})


def looks(model: Any) -> list[Callable[[Any], Any]]:
    """Everything that looks at one record and learns nothing."""
    names = ("score_one", "predict_one", "predict_proba_one", "transform_one", "design")
    return [getattr(model, name) for name in names if hasattr(model, name)]


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit; a dict whatever its order."""
    return bool((a == b).all()) if isinstance(a, np.ndarray) else bool(a == b)
