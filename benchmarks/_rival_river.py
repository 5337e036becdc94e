"""River's learners over one pass of a stream. For `rivals.py`.

The trees take texts as they are. AMF has no splits on texts, and LogisticRegression takes numbers: both get a
column of 1 for a text; only numbers are standardised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from _rival import Task, main, one_pass
from river import ensemble, forest, linear_model, preprocessing, tree


def _as_it_is(x: dict[str, Any]) -> dict[str, Any]:
    return x


def _columns(x: dict[str, Any]) -> dict[str, Any]:
    return {f"{k}={v}" if isinstance(v, str) else k: 1.0 if isinstance(v, str) else v for k, v in x.items()}


def _of(make: Callable[[int], Any], encoded: Callable[[Any], Any] = _as_it_is) -> Any:
    def run(task: Task, seed: int) -> Iterator[float]:
        yield from one_pass(task.dicts(), task.labels, make(seed), encoded)

    return run


def _linear(task: Task, seed: int) -> Iterator[float]:
    scaler = preprocessing.StandardScaler()

    def encoded(x: dict[str, Any]) -> dict[str, Any]:
        numbers = {k: v for k, v in x.items() if not isinstance(v, str)}
        scaler.learn_one(numbers)
        ones = {f"{k}={v}": 1.0 for k, v in x.items() if isinstance(v, str)}
        return {**scaler.transform_one(numbers), **ones}

    yield from one_pass(task.dicts(), task.labels, linear_model.LogisticRegression(), encoded)


if __name__ == "__main__":
    main(
        {
            "LogisticRegression": _linear,
            "HAT": _of(lambda seed: tree.HoeffdingAdaptiveTreeClassifier(seed=seed)),
            "AMF": _of(lambda seed: forest.AMFClassifier(seed=seed), _columns),
            "ARF": _of(lambda seed: forest.ARFClassifier(seed=seed)),
            "SRP": _of(lambda seed: ensemble.SRPClassifier(seed=seed)),
        },
        ("river",),
    )
