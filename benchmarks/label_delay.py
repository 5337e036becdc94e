"""What late labels cost: AUC with labels that come a day later, against labels that are known at once.

    python benchmarks/label_delay.py
    python benchmarks/label_delay.py --sets letter --days 5 --seeds 20

A shuffled set is a stream of so many days, evenly spread. Each event is scored when it comes; it is learned
at once, or when its label comes a day later (`streampair.evaluation.delayed_labels`, both orders give the
same here). The AUC is that of the scores of all events after the first day. Each seed is another order of the
events and another draw of the learner, the same for both delays; the standard errors are those of the mean of
the differences.

Two more differences say where the loss comes from. "from day 3" leaves out the second day, in which the
delayed learner has its first labels. "as many" compares after equal numbers of learned events: the delayed
learner from the third day on, the other from the second day to the last but one. "first day" and "last" are
the AUCs of these days with labels at once.
"""

from __future__ import annotations

import math
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import _sets
import _timing
import numpy as np
from river import preprocessing
from sklearn.metrics import roc_auc_score

from streampair import auc
from streampair.evaluation import delayed_labels

LEARNERS = {
    "PairOGD": lambda seed: preprocessing.StandardScaler() | auc.PairOGD(scale=None, seed=seed),
    "Forest": lambda seed: auc.Forest(seed=seed),
}
GOAL = 0.003


def scores(model: Any, rows: list[dict[str, float]], labels: list[bool], delay: int) -> np.ndarray:
    """The score of each event when it comes; an event is a moment."""
    found = np.zeros(len(rows))
    events = zip(range(len(rows)), range(len(rows)), rows, strict=True)
    late = ((number + delay, number, y) for number, y in enumerate(labels))
    for number, x, y in delayed_labels(events, late, after=delay):
        if y is None:
            found[number] = model.score_one(x)
        else:
            model.learn_one(x, y)
    return found


def losses(learner: Callable[[int], Any], data: _sets.Set, days: int, seed: int) -> dict[str, float]:
    """AUC of both, and the differences, for one order of the events."""
    order = np.random.default_rng(seed).permutation(len(data.y))
    names = list(map(str, data.x.columns))
    rows = [dict(zip(names, row, strict=True)) for row in data.x.to_numpy(dtype=float)[order].tolist()]
    labels = np.asarray(data.y, dtype=bool)[order]
    day, end = len(rows) // days, len(rows)
    by_delay = {delay: scores(learner(seed), rows, labels.tolist(), delay) for delay in (0, day)}

    def auc_of(delay: int, begin: int, end: int) -> float:
        return float(roc_auc_score(labels[begin:end], by_delay[delay][begin:end]))

    at_once, late = auc_of(0, day, end), auc_of(day, day, end)
    late_from_day_3 = auc_of(day, 2 * day, end)
    return {
        "at once": at_once,
        "late": late,
        "loss": at_once - late,
        "from day 3": auc_of(0, 2 * day, end) - late_from_day_3,
        "as many": auc_of(0, day, end - day) - late_from_day_3,
        "first day": auc_of(0, 0, day),
        "last day": auc_of(0, end - day, end),
    }


def measure(options: Namespace) -> Iterator[_timing.Row]:
    for name in options.sets:
        data = _sets.load(name, _sets.DATA)
        for kind in options.learners:
            runs = [losses(LEARNERS[kind], data, options.days, seed) for seed in range(1, options.seeds + 1)]
            row: _timing.Row = {"set": name, "learner": kind}
            for key in runs[0]:
                values = [run[key] for run in runs]
                row[key] = statistics.mean(values)
                row[f"{key} error"] = statistics.stdev(values) / math.sqrt(len(values))
            yield {**row, "met": row["loss"] <= GOAL}


COLUMNS = [
    ("set", "set", "<8"),
    ("learner", "learner", "<9"),
    ("at once", "at once", ">8.4f"),
    ("late", "late", ">8.4f"),
    ("loss", "loss", ">8.4f"),
    ("+-", "loss error", ">8.4f"),
    ("from day 3", "from day 3", ">11.4f"),
    ("+-", "from day 3 error", ">8.4f"),
    ("as many", "as many", ">9.4f"),
    ("+-", "as many error", ">8.4f"),
    ("first day", "first day", ">11.3f"),
    ("last", "last day", ">7.3f"),
]


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield (
        f"AUC after the first of {options.days} days, means of {options.seeds} orders; "
        f"the goal is a loss of at most {GOAL}"
    )
    yield from _timing.table(COLUMNS, rows)


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "--sets": {"nargs": "+", "default": ["ijcnn1", "letter", "adult"]},
        "--learners": {"nargs": "+", "default": list(LEARNERS)},
        "--days": {"type": int, "default": 30},
        "--seeds": {"type": int, "default": 5},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
