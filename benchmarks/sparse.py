"""Records that have 30 of many features, beside River's LogisticRegression: ratios of one run, on one thread.

    python benchmarks/sparse.py [--rounds 15] [--json]

Bags of words: each record has 30 words of a vocabulary, drawn at random, and a label by coin. A record is
predicted, then learned. All names are known before time is taken. Two that are compared take turns, so that
whatever else the machine does weighs on both; time is that of the process.

For a forest the other is itself, on so many names that trees are as deep and columns are a few.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import _timing
from _timing import timed, versus
from river import linear_model

from streampair import auc, buffers

Stream = list[tuple[dict[str, float], bool]]
EACH = 30
RECORDS = 200


def words(count: int, records: int) -> Stream:
    """So many records of 30 words each, of a vocabulary of `count`."""
    coin = random.Random(0)
    names = [f"word{i}" for i in range(count)]
    return [
        (
            {name: coin.random() for name in coin.sample(names, EACH)},
            coin.random() < 0.5,
        )
        for _ in range(records)
    ]


def knowing(model: Any, count: int) -> Any:
    """A learner that knows all names, from records of 30."""
    for i in range(0, count, EACH):
        model.learn_one({f"word{j}": 0.5 for j in range(i, min(i + EACH, count))}, i % 2 == 0)
    for x, y in words(count, 600):
        model.learn_one(x, y)
    return model


def turn(model: Any, records: Stream) -> None:
    """Predict and learn."""
    for x, y in records:
        model.predict_proba_one(x)
        model.learn_one(x, y)


def measure(options: Namespace) -> Iterator[_timing.Row]:
    for count, most in ((1000, None), (8000, 1.5), (100_000, None)):
        records = words(count, RECORDS)
        ours = knowing(auc.PairOGD(buffer=buffers.FIFO(1), max_features=count), count)
        theirs = knowing(linear_model.LogisticRegression(), count)
        name = f"PairOGD, one partner, 30 of {count} names: a record / LogisticRegression"
        yield figure(name, partial(turn, ours, records), partial(turn, theirs, records), options, most)
    records, few = words(8000, RECORDS), words(1000, RECORDS)
    many, fewer = knowing(auc.Forest(seed=1), 8000), knowing(auc.Forest(seed=1), 1000)
    name = "Forest, 30 of 8000 names: a record / 30 of 1000"
    yield figure(name, partial(turn, many, records), partial(turn, fewer, few), options, 3.0)


def figure(name: str, ours: Any, theirs: Any, options: Namespace, most: float | None) -> _timing.Row:
    """A line of the table."""
    mine, other, ratio = versus(timed(ours), timed(theirs), options.rounds, warm=1)
    times = {"ours": f"{mine / RECORDS * 1e6:.1f} us", "theirs": f"{other / RECORDS * 1e6:.1f} us"}
    return _timing.judged({"name": name, **times, "value": 1.0 / ratio}, "value", most=most)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    columns = [("", "name", "<62"), ("ours", "ours", ">10"), ("theirs", "theirs", ">10")]
    return _timing.table([*columns, ("ratio", "value", ">8.2f")], rows, goals=True)


if __name__ == "__main__":
    options = {"--rounds": {"type": int, "default": 15}}
    _timing.main(__doc__, measure, page, options, strict=True)
