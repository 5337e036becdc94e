"""What late labels cost: AUC with labels that come a day later, against labels that are known at once.

    python benchmarks/label_delay.py
    python benchmarks/label_delay.py --sets letter --days 5

A shuffled set is a stream of so many days, evenly spread. Each event is scored when it comes; it is learned
at once, or when its label comes a day later (`streampair.evaluation.delayed_labels`, both orders give the
same here). The AUC is that of the scores of all events after the first day.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any

import _sets
import _timing
import numpy as np
from river import preprocessing
from sklearn.metrics import roc_auc_score

from streampair import auc
from streampair.evaluation import delayed_labels

LEARNERS = {
    "PairOGD": lambda: preprocessing.StandardScaler() | auc.PairOGD(),
    "Forest": auc.Forest,
}
GOAL = 0.003


def scores(model: Any, rows: list[dict[str, float]], labels: list[bool], delay: float) -> list[float]:
    """The score of each event when it comes; a day is 1."""
    found = [0.0] * len(rows)
    moments = [number / len(rows) for number in range(len(rows))]
    events = zip(moments, range(len(rows)), rows, strict=True)
    late = ((moment + delay, number, labels[number]) for number, moment in enumerate(moments))
    for number, x, y in delayed_labels(events, late, after=delay):
        if y is None:
            found[number] = model.score_one(x)
        else:
            model.learn_one(x, y)
    return found


def measure(options: Namespace) -> Iterator[_timing.Row]:
    for name in options.sets:
        data = _sets.load(name, _sets.DATA)
        order = np.random.default_rng(1).permutation(len(data.y))
        names = list(map(str, data.x.columns))
        values = data.x.to_numpy(dtype=float)[order]
        rows = [dict(zip(names, row, strict=True)) for row in values.tolist()]
        labels = [bool(y) for y in np.asarray(data.y)[order]]
        first = len(rows) // options.days
        for kind in options.learners:
            at_once, late = (
                float(roc_auc_score(labels[first:], scores(LEARNERS[kind](), rows, labels, delay)[first:]))
                for delay in (0.0, 1.0 / options.days)
            )
            yield {
                "set": name,
                "learner": kind,
                "at once": at_once,
                "late": late,
                "loss": at_once - late,
                "met": at_once - late <= GOAL,
            }


COLUMNS = [
    ("set", "set", "<10"),
    ("learner", "learner", "<10"),
    ("at once", "at once", ">9.4f"),
    ("a day late", "late", ">11.4f"),
    ("loss", "loss", ">8.4f"),
]


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield f"AUC after the first of {options.days} days; the goal is a loss of at most {GOAL}"
    yield from _timing.table(COLUMNS, rows)


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "--sets": {"nargs": "+", "default": ["ijcnn1", "letter", "adult"]},
        "--learners": {"nargs": "+", "default": list(LEARNERS)},
        "--days": {"type": int, "default": 30},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
