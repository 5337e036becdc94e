"""Parameters that cannot be: each refused by name, with what to write instead."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from harness.support import at_row

from streampair import auc, buffers, losses, metric, privacy, ranking, schedules
from streampair.errors import ConfigError
from streampair.privacy import EntityLimit

strongly = partial(auc.OnPairStrC, 1.0, 1e-3, features=["a"])
BAD: dict[Callable[..., Any], list[tuple[dict[str, Any], str]]] = {
    auc.PairOGD: [
        ({"loss": "hinge"}, r"loss is "),
        ({"loss": losses.Hinge}, r"loss is "),
        ({"buffer": 3}, r"buffer is "),
        ({"buffer": buffers.Reservoir(4, max_uses=5)}, r"buffer is .* blanks no record"),
        ({"learning_rate": 0.0}, r"learning_rate is "),
        ({"learning_rate": -1.0}, r"learning_rate is "),
        ({"learning_rate": math.inf}, r"learning_rate is "),
        ({"learning_rate": "fast"}, r"learning_rate is "),
        ({"learning_rate": schedules.Schedule()}, r"is no schedule"),
        ({"average": "best"}, r"average is .best."),
        (
            {"average": "linear", "half_life": 50, "learning_rate": None},
            r"more weight, and so does half_life",
        ),
        ({"radius": 0.0}, r"radius is "),
        ({"scale": "standard"}, r"scale is 'standard'.*\"running\""),
        ({"scale": True}, r"scale is True"),
        ({"max_features": 2**22 + 1}, r"max_features is .* to 4194304"),
        ({"radius": math.nan}, r"radius is "),
        ({"radius": True}, r"radius is "),
        ({"radius": 1e13}, r"radius is "),
        ({"l2": -0.1}, r"l2 is "),
        ({"l2": math.inf}, r"l2 is "),
        ({"positive": None}, r"positive is "),
        ({"positive": math.nan}, r"positive is "),
        ({"seed": "x"}, r"seed is "),
        ({"seed": 1.5}, r"seed is "),
        ({"max_features": 0}, r"max_features is "),
        ({"max_features": 1.5}, r"max_features is "),
    ],
    auc.OAM: [
        ({"learning_rate": None}, "learning_rate"),
        ({"learning_rate": schedules.Constant(0.1)}, "learning_rate is"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"size": 0}, "size"),
        ({"radius": 0.0}, "radius"),
        ({"seed": "a"}, "seed"),
    ],
    auc.SPAUC: [
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"l2": -1.0}, "l2"),
        ({"radius": math.nan}, "radius"),
        ({"max_features": 0}, "max_features"),
    ],
    auc.PairMoments: [
        ({"l2": 0.0}, "l2 is 0"),
        ({"half_life": 0}, "half_life is 0"),
        ({"max_features": 0}, "max_features is 0"),
        ({"max_features": 1025}, "from 1 to 1024, or use PairOGD"),
    ],
    metric.PairOGD: [
        ({"loss": losses.MinimumErrorEntropy()}, "compares errors"),
        ({"buffer": buffers.ClassReservoir()}, "different classes only"),
        ({"radius": 0.0}, "radius is"),
        ({"max_features": 0}, "max_features is"),
    ],
    auc.PairFTRL: [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": "1"}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"horizon": 0}, "horizon"),
        ({"horizon": 10.5}, "horizon"),
        ({"horizon": True}, "horizon"),
        ({"warmup": -1}, "warmup"),
        ({"warmup": 100, "horizon": 100}, "warmup"),
        ({"mechanism": privacy.PairGradients(clip=0.0)}, "clip"),
        ({"mechanism": privacy.PairGradients(clip=math.nan)}, "clip"),
        ({"radius": -1.0}, "radius"),
        ({"radius": "big"}, "radius"),
        ({"mechanism": privacy.PairGradients(loss="hinge")}, "loss"),  # type: ignore[arg-type]
        ({"mechanism": privacy.PairGradients(buffer=32)}, "32"),  # type: ignore[arg-type]
        ({"mechanism": losses.Hinge()}, "mechanism is"),
        ({"mechanism": privacy.SecondMoments}, "mechanism is"),
        ({"features": []}, "features"),
        ({"features": "abc"}, "features"),
        ({"features": ["a", "a"]}, "twice"),
        ({"features": list(range(10_001))}, "10000"),
        ({"bounds": [("a", 0, 1)]}, "bounds"),
        ({"bounds": {"a": (1, 0)}}, "bounds of 'a'"),
        ({"bounds": {"a": (0, 0)}}, "bounds of 'a'"),
        ({"bounds": {"a": (0, math.inf)}}, "bounds of 'a'"),
        ({"bounds": {"a": 3}}, "bounds of 'a'"),
        ({"bounds": {"z": (0, 1)}, "features": ["a"]}, "'z'"),
        ({"noise_key": b"secret"}, "noise key"),
        ({"noise_key": "text" * 16}, "noise key"),
        ({"noise_key": bytes(32), "seed": 1}, "noise_key and seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": True}, "seed"),
        ({"mechanism": privacy.PairGradients(strategy="toeplitz")}, "horizon"),
        ({"mechanism": privacy.PairGradients(strategy="magic")}, "magic"),  # type: ignore[arg-type]
        ({"mechanism": privacy.PairGradients(strategy=None)}, "strategy"),  # type: ignore[arg-type]
        ({"positive": None}, "positive"),
        ({"epsilon": 1e-30, "delta": 1e-40, "features": ["a"]}, "memory"),
        ({"mechanism": privacy.PairGradients(buffer=buffers.FullHistory())}, "full history"),
    ],
    partial(strongly, horizon=100): [
        ({"loss": losses.Hinge()}, "not smooth"),
        ({"calibration": "loose"}, "'tight' or 'paper'"),
        ({"releases": 0}, "number of releases"),
        ({"l2": 0.0}, "l2 is"),
        ({"buffer": buffers.ClassReservoir(4)}, "depend on labels"),
        ({"buffer": buffers.Reservoir(4, replacement=True)}, "many copies"),
        ({"buffer": buffers.FullHistory(dtype="float32")}, "float64"),
        ({"buffer": buffers.FullHistory(max_records=50)}, "max_records=50"),
        ({"calibration": "paper", "releases": 5}, "knows no releases"),
        ({"calibration": "paper", "entity": EntityLimit(2)}, "or entities"),
        ({"horizon": None}, "needs a horizon"),
        ({"horizon": 10**8}, "output perturbation"),
    ],
    ranking.PairFTRL: [
        ({"mechanism": privacy.PairGradients(loss=losses.MinimumErrorEntropy(0.5))}, "not convex")
    ],
    metric.PairFTRL: [({"features": [f"f{i}" for i in range(300)]}, "more than 256")],
    metric.OnPairC: [({"epsilon": 1.0, "delta": 1e-3, "horizon": 100, "loss": losses.Hinge()}, "not smooth")],
}


@pytest.mark.parametrize("make", BAD, ids=lambda make: getattr(make, "__name__", "strongly"))
def test_bad_parameters(make: Callable[..., Any]) -> None:
    for options, message in BAD[make]:
        with at_row(options, message):
            with pytest.raises(ConfigError, match=message) as caught:
                make(**options)
            assert "Fix: " in str(caught.value)
            assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "options", "named"),
    [
        (auc.PairOGD, {"lr": 0.1}, "no parameter 'lr', did you mean 'learning_rate'?"),
        (auc.PairFTRL, {"eps": 1.0}, "no parameter 'eps', did you mean 'epsilon'?"),
        (auc.Forest, {"bagging": 3}, "no parameter 'bagging'. Fix: use one of trees, nodes, "),
        (ranking.PairOGD, {"learningrate": 1.0}, "did you mean 'learning_rate'?"),
        (metric.OnPairC, {"buffers": None}, "did you mean 'buffer'?"),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_one_that_may_be_meant(
    make: Any, options: Any, named: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(named)):
        make(**options)


@pytest.mark.parametrize("make", [auc.PairOGD, auc.PairFTRL, auc.Forest, metric.PairOGD])
def test_the_signature_is_that_of_the_constructor(make: Any) -> None:
    signature = inspect.signature(make)
    assert list(signature.parameters) == list(inspect.signature(make.__init__).parameters)[1:]
    assert "seed" in signature.parameters


def test_a_class_of_others_takes_what_its_constructor_takes() -> None:
    class Sized(auc.PairOGD):
        def __init__(self, size: int = 3, **rest: Any) -> None:
            super().__init__(**rest)
            self.size = size

    assert Sized(size=4, learning_rate=0.1).learning_rate == 0.1
    with pytest.raises(TypeError, match="lr"):
        Sized(lr=0.1)
