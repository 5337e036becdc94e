"""Speed of learners on data frames beside River's LogisticRegression: ratios of one run.

Each line is the median of rounds in which the two take turns on the same frame, so that whatever else the
machine does weighs on both. River has no scores, so `score_many` stands beside its `predict_proba_many`.
A step of PairFTRL by moments adds to d^2 / 2 sums, one of LogisticRegression to d weights, once for a frame.

    python benchmarks/frames.py [--rounds 41] [--rows 100 1000] [--features 9 100] [--json] [--check]
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any

import _timing
import numpy as np
import pandas as pd
import polars as pl
from river import linear_model

from streampair import auc, privacy

GOAL = 1.0
TURN = 2000  # rows that each takes in one turn
MOST_CALLS = 200  # of one turn
HORIZON = 2**20
WARM = HORIZON // 4  # the warm-up is over by then

LIBRARIES: dict[str, Any] = {"pandas": pd, "polars": pl}
LEARNERS: dict[str, Callable[[], Any]] = {
    "PairOGD": auc.PairOGD,
    "PairFTRL": partial(
        auc.PairFTRL, epsilon=1.0, delta=1e-7, horizon=HORIZON, seed=0, mechanism=privacy.SecondMoments()
    ),
}
METHODS = {
    "learn_many": "learn_many",
    "predict_proba_many": "predict_proba_many",
    "predict_many": "predict_many",
    "score_many": "predict_proba_many",
}


def data(library: str, n: int, d: int) -> tuple[Any, Any]:
    """A frame (n, d) of floats with text as names, and a series of booleans."""
    rng = np.random.default_rng(n + d)
    values = rng.uniform(-1.0, 1.0, size=(n, d))
    columns = {f"x{j}": values[:, j].copy() for j in range(d)}
    labels = values[:, 0] + rng.normal(size=n) > 0.0
    module = LIBRARIES[library]
    return module.DataFrame(columns), module.Series(labels)


def warm(make: Callable[[], Any], d: int) -> Any:
    """A learner that knows its features, a private one with its warm-up behind it."""
    model = make()
    X, y = data("pandas", 1000, d)
    model.learn_many(X, y)
    while isinstance(model, auc.PairFTRL) and model.slots < WARM:
        model.learn_many(X, y)
    return model


def turn(model: Any, method: str, X: Any, y: Any) -> float:
    """Seconds of the processor per row."""
    call = getattr(model, method)
    arguments = (X, y) if method == "learn_many" else (X,)
    calls = min(max(1, TURN // len(X)), MOST_CALLS)
    start = time.process_time()
    for _ in range(calls):
        call(*arguments)
    return (time.process_time() - start) / (calls * len(X))


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A line for each learner, library, size of frame and method."""
    for name, d in product(options.learners, options.features):
        ours, theirs = warm(LEARNERS[name], d), warm(linear_model.LogisticRegression, d)
        for library, n in product(LIBRARIES, options.rows):
            X, y = data(library, n, d)
            for method, their_method in METHODS.items():
                mine, river, ratio = _timing.versus(
                    partial(turn, ours, method, X, y),
                    partial(turn, theirs, their_method, X, y),
                    options.rounds,
                    warm=2,
                )
                row = {"learner": name, "library": library, "rows": n, "features": d, "method": method}
                row |= {"river_us": river * 1e6, "streampair_us": mine * 1e6, "ratio": ratio}
                yield _timing.judged(row, "ratio", least=GOAL)
        if isinstance(ours, auc.PairFTRL) and ours.slots >= HORIZON:
            raise RuntimeError("the horizon was reached, after which nothing is learned: raise HORIZON")


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [
        *(("us a row", "learner", "<10"), ("", "library", "<8"), ("rows", "rows", ">5")),
        *(("d", "features", ">5"), ("", "method", ">20"), ("LogisticRegression", "river_us", ">20.2f")),
        *(("ours", "streampair_us", ">9.2f"), ("ratio", "ratio", ">8.2f")),
    ]
    yield from _timing.table(columns, rows, goals=True)
    yield "Ours make a step for each record, LogisticRegression one for the whole frame."


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "--rounds": {"type": int, "default": 41},
        "--rows": {"type": int, "nargs": "+", "default": [100, 1000]},
        "--features": {"type": int, "nargs": "+", "default": [9, 100]},
        "--learners": {"nargs": "+", "choices": LEARNERS, "default": list(LEARNERS)},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
