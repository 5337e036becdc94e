"""Speed of PairOGD beside River's LogisticRegression: ratios of one run.

Each line is the median of rounds in which the two take turns, so that whatever else the machine does
weighs on both. The stream is River's Phishing (nine features), over and over; for d = 100 it gets 91 random
features more.

    python benchmarks/learners.py [--rounds 9] [--json]
"""

from __future__ import annotations

import random
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import _timing
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


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """All comparisons; the first two have a goal."""
    small, large = records(9), records(100)
    sampled = partial(auc.PairOGD, buffer=buffers.Reservoir(200))
    cases: list[tuple[str, Callable[..., float], Records, Callable[[], Any], int, int, float | None]] = [
        ("predict + learn on dicts, d=9", one_by_one, small, auc.PairOGD, 10, options.rounds, GOAL),
        ("predict + learn on dicts, d=100", one_by_one, large, auc.PairOGD, 2, options.rounds, GOAL),
        ("predict + learn on frames, d=9", in_batches, small, auc.PairOGD, 10, options.rounds, None),
        ("predict + learn on frames, d=100", in_batches, large, auc.PairOGD, 10, options.rounds, None),
        ("dicts, d=9, Reservoir(200)", one_by_one, small, sampled, 2, max(3, options.rounds // 3), None),
    ]
    for name, seconds, data, learner, repeats, rounds, goal in cases:
        ours = partial(seconds, learner, data, repeats)
        theirs = partial(seconds, linear_model.LogisticRegression, data, repeats)
        mine, river, ratio = _timing.versus(ours, theirs, rounds)
        row = {"name": name, "river_us": river * 1e6, "streampair_us": mine * 1e6, "ratio": ratio}
        yield _timing.judged(row, "ratio", least=goal)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [
        *(("us a record", "name", "<40"), ("LogisticRegression", "river_us", ">19.2f")),
        *(("PairOGD", "streampair_us", ">10.2f"), ("ratio", "ratio", ">8.2f")),
    ]
    yield from _timing.table(columns, rows, goals=True)
    yield "Frames: PairOGD makes a step for each record, LogisticRegression one for the whole batch."


if __name__ == "__main__":
    flags = {"--rounds": {"type": int, "default": 9}}
    sys.exit(_timing.main(__doc__, measure, page, flags, strict=True))
