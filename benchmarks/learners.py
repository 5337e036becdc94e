"""Speed of PairOGD beside River's LogisticRegression: ratios of one run.

Each line is the median of rounds in which the two take turns, so that whatever else the machine does
weighs on both. The stream is River's Phishing (nine features), over and over; for d = 100 it gets 91 random
features more.

    python benchmarks/learners.py [--rounds 9] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from river import datasets, linear_model

from streampair import auc, buffers

Records = list[tuple[dict[str, float], bool]]
GOAL = 2.0


def records(d: int) -> Records:
    """Phishing with random features up to d; every record is a dict of its own, as from a decoder."""
    rng = random.Random(0)
    extra = [f"extra_{i}" for i in range(d - 9)]
    return [({**x, **{name: rng.random() for name in extra}}, y) for x, y in datasets.Phishing()]


def one_by_one(make: Callable[[], Any], data: Records, repeats: int) -> float:
    """Seconds of the processor per record of predict_proba_one and learn_one on a warm learner."""
    model = make()
    for x, y in data[:100]:
        model.predict_proba_one(x)
        model.learn_one(x, y)
    start = time.process_time()
    for _ in range(repeats):
        for x, y in data:
            model.predict_proba_one(x)
            model.learn_one(x, y)
    return (time.process_time() - start) / (repeats * len(data))


def in_batches(make: Callable[[], Any], data: Records, repeats: int) -> float:
    """The same of predict_proba_many and learn_many on a pandas frame of the whole data set."""
    X = pd.DataFrame([x for x, _ in data])
    y = pd.Series([y for _, y in data])
    model = make()
    model.learn_many(X, y)
    model.predict_proba_many(X)
    start = time.process_time()
    for _ in range(repeats):
        model.predict_proba_many(X)
        model.learn_many(X, y)
    return (time.process_time() - start) / (repeats * len(data))


def compare(
    name: str, measure: Callable[[Callable[[], Any]], float], ours: Callable[[], Any], rounds: int
) -> dict[str, Any]:
    """Median microseconds a record of River's learner and of ours, in alternating rounds, and their ratio."""
    theirs_s, ours_s = [], []
    for _ in range(rounds):
        theirs_s.append(measure(linear_model.LogisticRegression))
        ours_s.append(measure(ours))
    theirs_us = statistics.median(theirs_s) * 1e6
    ours_us = statistics.median(ours_s) * 1e6
    return {
        "name": name,
        "river_us": theirs_us,
        "streampair_us": ours_us,
        "ratio": statistics.median(a / b for a, b in zip(theirs_s, ours_s, strict=True)),
        "ratio_of_rounds": [a / b for a, b in zip(theirs_s, ours_s, strict=True)],
    }


def run(rounds: int = 9, repeats: int = 10) -> list[dict[str, Any]]:
    """All comparisons; the first two have a goal."""
    out: list[dict[str, Any]] = []
    for d in (9, 100):
        data = records(d)
        n = repeats if d == 9 else max(1, repeats // 4)
        row = compare(
            f"predict + learn on dicts, d={d}",
            lambda make, data=data, n=n: one_by_one(make, data, n),
            auc.PairOGD,
            rounds,
        )
        row["goal"] = GOAL
        out.append(row)
    for d in (9, 100):
        data = records(d)
        out.append(
            compare(
                f"predict + learn on frames, d={d}",
                lambda make, data=data: in_batches(make, data, repeats),
                auc.PairOGD,
                rounds,
            )
        )
    out.append(
        compare(
            "dicts, d=9, Reservoir(200)",
            lambda make: one_by_one(make, records(9), 2),
            lambda: auc.PairOGD(buffer=buffers.Reservoir(200)),
            max(3, rounds // 3),
        )
    )
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; exit code 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args(argv)
    rows = run(options.rounds)
    if options.json:
        print(json.dumps({"learners": rows}))
    else:
        print(f"{'us a record':40} {'LogisticRegression':>18} {'PairOGD':>9} {'ratio':>7}  goal")
        for row in rows:
            goal = f"{row['goal']:.1f}" if "goal" in row else ""
            print(
                f"{row['name']:40} {row['river_us']:18.2f} {row['streampair_us']:9.2f} "
                f"{row['ratio']:7.2f}  {goal}"
            )
        print("Frames: PairOGD makes a step for each record, LogisticRegression one for the whole batch.")
    return 0 if all(row["ratio"] >= row.get("goal", 0.0) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
