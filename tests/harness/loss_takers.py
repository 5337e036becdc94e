"""Every learner that takes a pair loss, small, with what it has learned from a few records under one.

`TAKERS` is compared with the fields of the public learners: a learner that takes a loss and is missing here
fails `tests/unit/test_loss_registry.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from harness.much_budget import much_budget
from harness.options import folded
from streampair import auc, buffers, losses, metric, offline, ranking

KEY = bytes(range(32))
NAMES = ["a", "b", "c"]
BOUNDS = dict.fromkeys(NAMES, (-1.0, 1.0))

#: Learners of a relevance, the only ones that take a loss of errors.
OF_ERRORS = {"ranking.PairOGD"}

Weights = Any


def _table(n: int = 60) -> tuple[Any, Any, Any]:
    """Rows in the unit ball, relevances, and classes."""
    rng = np.random.default_rng(5)
    rows = rng.uniform(-0.55, 0.55, (n, len(NAMES)))
    relevance = np.clip(rows @ [1.0, -0.5, 0.25] + rng.normal(0.0, 0.2, n), -1.0, 1.0)
    return rows, relevance, relevance > 0.0


def _online(module: ModuleType, learner: str, **params: Any) -> Callable[[losses.PairLoss | None], Weights]:
    def weights(loss: losses.PairLoss | None) -> Weights:
        arguments = {**params, "loss": loss}
        rows, relevance, classes = _table()
        labels = relevance if module is ranking else classes
        with much_budget():
            model = getattr(module, learner)(**(folded(arguments) if learner == "PairFTRL" else arguments))
            for row, label in zip(rows.tolist(), labels.tolist(), strict=True):
                model.learn_one(dict(zip(NAMES, row, strict=True)), label)
        if module is metric:
            return np.asarray(model.metric_).ravel()
        rows = rows[:10]
        return np.array([model.score_one(dict(zip(NAMES, row, strict=True))) for row in rows.tolist()])

    return weights


def _batch(learner: str, **params: Any) -> Callable[[losses.PairLoss | None], Weights]:
    def weights(loss: losses.PairLoss | None) -> Weights:
        rows, _, classes = _table()
        with much_budget():
            model = getattr(offline, learner)(loss=loss, random_state=3, **params).fit(rows, classes)
        return np.asarray(model.coef_ if model.task == "auc" else model.metric_).ravel()

    return weights


def _all() -> Iterator[tuple[str, Callable[[losses.PairLoss | None], Weights]]]:
    """Names and learners, each with every part of it that steps along a loss.

    Metrics have a wide ball: in a narrow one no margin is above 1, where a hinge squared and a square differ.
    """
    kept: dict[str, buffers.Buffer] = {
        "rows": buffers.FIFO(4),
        "history": buffers.FullHistory(),
        "single": buffers.FullHistory("float32"),
    }
    for module in (auc, ranking, metric):
        short = module.__name__.split(".")[1]
        ball = {"radius": 20.0} if module is metric else {}
        policies = {**kept, "classes": buffers.ClassReservoir(4)} if module is auc else kept
        for name, policy in policies.items():
            yield f"{short}.PairOGD {name}", _online(module, "PairOGD", buffer=policy, seed=1, **ball)
        # So much budget that noise hides nothing, and so wide a clip that it cuts nothing.
        promise: dict[str, Any] = {"epsilon": 1e5, "delta": 1e-3, "horizon": 60, "warmup": 0}
        promise |= {"bounds": BOUNDS, "noise_key": KEY, "buffer": buffers.FIFO(2), "clip": 40.0, **ball}
        yield f"{short}.PairFTRL", _online(module, "PairFTRL", **promise)
        for learner in ("OnPairC", "OnPairStrC"):
            yield f"{short}.{learner}", _online(module, learner, l2=0.5, **promise)
    yield "auc.Forest", _online(auc, "Forest", trees=3, nodes=31, seed=1)
    for task, radius in (("auc", 1.0), ("metric", 20.0)):
        common = {"task": task, "radius": radius, "epsilon": 1e5, "delta": 1e-3}
        for learner in ("DPEGD", "DPGDC", "DPGDC2", "DPGDSC", "GradientPerturbation", "LocalizedPairSGD"):
            yield f"offline.{learner} {task}", _batch(learner, **common)
        for learner in ("OffPairC", "OffPairStrC"):
            yield f"offline.{learner} {task}", _batch(learner, l2=0.01, **common)
        yield f"offline.PairSGD {task}", _batch("PairSGD", task=task, radius=radius)
    yield (
        "offline.GradientPerturbation network",
        _batch("GradientPerturbation", epsilon=1e5, delta=1e-3, hidden=4, radius=20.0, steps=20),
    )


#: What each has learned from a few records, under a loss.
TAKERS: dict[str, Callable[[losses.PairLoss | None], Weights]] = dict(_all())


def public_takers() -> set[str]:
    """Public learners that have a field `loss`, or a mechanism that has one."""
    found = set()
    for module in (auc, ranking, metric, offline):
        for name in module.__all__:
            made = getattr(module, name)
            fields = dataclasses.fields(made) if dataclasses.is_dataclass(made) else ()
            if any(field.name in ("loss", "mechanism") for field in fields):
                found.add(f"{module.__name__.split('.')[1]}.{name}")
    return found
