"""Speed of learners on data frames beside River's LogisticRegression: ratios of one run.

Each line is the median of rounds in which the two take turns on the same frame, so that whatever else the
machine does weighs on both. River has no scores, so `score_many` stands beside its `predict_proba_many`.

    python benchmarks/frames.py [--rounds 41] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
from river import linear_model

from streampair import auc

GOAL = 1.0
TURN = 2000  # rows that each takes in one turn
MOST_CALLS = 200  # of one turn
HORIZON = 2**20
WARM = HORIZON // 4  # the warm-up is over by then

LIBRARIES: dict[str, Any] = {"pandas": pd, "polars": pl}
LEARNERS: dict[str, Callable[[], Any]] = {
    "PairOGD": auc.PairOGD,
    "PairFTRL": lambda: auc.PairFTRL(epsilon=1.0, delta=1e-7, horizon=HORIZON, seed=0, solver="moments"),
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


def seconds(model: Any, method: str, X: Any, y: Any) -> float:
    """Time for each row of one turn."""
    call = getattr(model, method)
    given = (X, y) if method == "learn_many" else (X,)
    calls = min(max(1, TURN // len(X)), MOST_CALLS)
    start = time.process_time()
    for _ in range(calls):
        call(*given)
    return (time.process_time() - start) / (calls * len(X))


def run(
    rounds: int = 41,
    rows: Sequence[int] = (100, 1000),
    features: Sequence[int] = (9, 100),
    learners: Sequence[str] = tuple(LEARNERS),
) -> list[dict[str, Any]]:
    """A line for each learner, library, size of frame and method."""
    out: list[dict[str, Any]] = []
    for name in learners:
        for d in features:
            ours, theirs = warm(LEARNERS[name], d), warm(linear_model.LogisticRegression, d)
            for library in LIBRARIES:
                for n in rows:
                    X, y = data(library, n, d)
                    for method, beside in METHODS.items():
                        a, b = [], []
                        for turn in range(rounds + 2):
                            pair = seconds(theirs, beside, X, y), seconds(ours, method, X, y)
                            if turn >= 2:
                                a.append(pair[0])
                                b.append(pair[1])
                        out.append(
                            {
                                "learner": name,
                                "library": library,
                                "rows": n,
                                "features": d,
                                "method": method,
                                "river_us": statistics.median(a) * 1e6,
                                "streampair_us": statistics.median(b) * 1e6,
                                "ratio": statistics.median(r / s for r, s in zip(a, b, strict=True)),
                                "goal": GOAL,
                            }
                        )
            if isinstance(ours, auc.PairFTRL) and ours.slots >= HORIZON:
                raise RuntimeError("the horizon was reached, after which nothing is learned: raise HORIZON")
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; exit code 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--features", type=int, nargs="+", default=[9, 100])
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args(argv)
    lines = run(options.rounds, options.rows, options.features, options.learners)
    if options.json:
        print(json.dumps({"frames": lines}))
    else:
        print(f"{'us a row':10} {'':8} {'rows':>5} {'d':>4} {'':20} {'River':>7} {'ours':>7} {'ratio':>6}")
        for line in lines:
            print(
                f"{line['learner']:10} {line['library']:8} {line['rows']:5} {line['features']:4} "
                f"{line['method']:20} {line['river_us']:7.3f} {line['streampair_us']:7.3f} "
                f"{line['ratio']:6.2f}"
            )
        print("Ours make a step for each record, LogisticRegression one for the whole frame.")
    return 0 if all(line["ratio"] >= line["goal"] for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
