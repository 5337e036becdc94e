"""Learners that choose their own settings, beside the best of 8 settings that nobody knows beforehand.

    python benchmarks/tuning.py [--race] [--data DIR] [--splits 5] [--json] [NAME ...]

`privacy.SecondMoments(tune=True)` chooses the ridge of each model among 8, by the releases alone. All columns
of a row are computed from the same releases, so each has the whole budget: the held-out AUC under the usual
ridge, under the chosen one, and under the best of the 8 in the mean over the splits; then by how much the
usual and the chosen one are below that. Random 80/20 splits; four times as many of sets with fewer than 5000
rows. delta is one over the number of all rows.

The goal: in the mean over the sets the chosen ridge is within .003 of the best one, at each epsilon, with a
declared horizon. The last lines say the same without one, where there is no goal.

With --race, not private: `auc.Tuned` over 8 `PairOGD` (FIFO(8), radius 1, 3, 10 and 30, hinge and logistic
loss), with a race over .3 of the records, in random order and in that of the file, in 3 of the splits. The
held-out AUC of the best of the 8 in the mean over the splits, the mean over the 8, and that of `Tuned`; and
its processor time beside the mean of the 8, by `score_learn_many` in batches of 1000. The goals: within .002
of the best one, in at most twice the time; the last rows are means over the sets.
"""

from __future__ import annotations

import math
import statistics
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _sets
import _timing
import numpy as np
from sklearn.preprocessing import StandardScaler

from streampair import auc, buffers, losses, privacy
from streampair.privacy.mechanisms.second_moments import RIDGES

NAMES = ("letter", "ijcnn1", "adult", "bank", "german", "usps")
EPSILONS = (0.5, 1.0, 4.0)
FIRST_SPLIT = 3000  # earlier ones served to choose how ridges are judged
ALLOWED = 0.003
USUAL = RIDGES.index(1.0)
SMALL = 5000
RACES = 3  # splits of each race
SHARE = 0.3  # of the records, that a race takes
BATCH = 1000
ORDERS = ("random", "file")
RACE_GOALS = {"short": 0.002, "time": 2.0}


def aucs(model: Any, data: _sets.Set, test: np.ndarray) -> list[float]:
    """AUC of the model with the ridge that it has chosen, and with each of the 8, from the same releases."""
    state = model.run.state
    found = [_sets.judged(data, model, test)]
    unit = math.sqrt(state.plan.features / state._numbers[1])
    for factor in RIDGES:
        state._ridges, state._stale = (state.releases, factor * unit), True
        found.append(_sets.judged(data, model, test))
    return found


def of_set(data: _sets.Set, epsilon: float, count: int, horizon: bool) -> _timing.Row:
    """A row: means over the splits."""
    rows = len(data.x)
    found = []
    for seed, (train, test) in enumerate(_sets.splits(rows, count * (4 if rows < SMALL else 1), FIRST_SPLIT)):
        options: dict[str, Any] = {"epsilon": epsilon, "mechanism": privacy.SecondMoments(tune=True)}
        if horizon:
            options["horizon"] = len(train)
        model = _sets.private(data, auc.PairFTRL, train, seed=seed, **options)
        found.append(aucs(model, data, test))
    chosen, *each = np.mean(found, axis=0).tolist()
    best = max(each)
    return {
        **{"data": data.name, "epsilon": epsilon, "horizon": horizon, "splits": len(found)},
        **{"usual": each[USUAL], "chosen": chosen, "best": best, "factor": RIDGES[each.index(best)]},
        **{"usual_short": best - each[USUAL], "chosen_short": best - chosen},
    }


def candidates() -> list[auc.PairOGD]:
    """The learners of a race."""
    return [
        auc.PairOGD(loss, buffers.FIFO(8), None, radius=radius)
        for radius in (1.0, 3.0, 10.0, 30.0)
        for loss in (losses.Hinge(), losses.Logistic())
    ]


def taught(model: Any, rows: np.ndarray, labels: np.ndarray) -> None:
    """Score and learn all records, batch by batch."""
    for start in range(0, len(rows), BATCH):
        model.score_learn_many(rows[start : start + BATCH], labels[start : start + BATCH])


def race_of(data: _sets.Set, order: str) -> _timing.Row:
    """A row: means over the splits."""
    x, found, ratios = data.x.to_numpy(), [], []
    for train, test in _sets.splits(len(x), RACES, FIRST_SPLIT):
        if order == "file":
            train = np.sort(train)
        rows = StandardScaler().fit(x[train]).transform(x) / x.shape[1] ** 0.5
        rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
        learned, labels = np.ascontiguousarray(rows[train]), data.y[train]
        alone, tuned = candidates(), auc.Tuned(candidates(), race=int(SHARE * len(train)))
        learners = [*alone, tuned]
        times = [_timing.timed(partial(taught, model, learned, labels))() for model in learners]
        ratios.append(times[-1] / statistics.fmean(times[:-1]))
        found.append(
            [_sets.in_order("auc", data.y[test], model.score_many(rows[test])) for model in learners]
        )
    *each, chosen = np.mean(found, axis=0).tolist()
    row: _timing.Row = {"data": data.name, "order": order, "best": max(each), "mean": statistics.fmean(each)}
    return {**row, "chosen": chosen, "short": max(each) - chosen, "time": statistics.fmean(ratios)}


def measure_races(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each set and order, then the means over the sets."""
    found: list[_timing.Row] = []
    for name in options.names or NAMES:
        data = loaded(name, options)
        for order in ORDERS:
            found.append(race_of(data, order))
            yield with_goals(found[-1])
    for order in ORDERS:
        rows = [row for row in found if row["order"] == order]
        keys = ("best", "mean", "chosen", "short", "time")
        mean = {key: statistics.fmean(row[key] for row in rows) for key in keys}
        yield with_goals({"data": "mean", "order": order, **mean})


def with_goals(row: _timing.Row) -> _timing.Row:
    """The row of a race beside its goals."""
    goals = [_timing.judged(dict(row), key, most=most) for key, most in RACE_GOALS.items()]
    row["goal"] = ", ".join(goal["goal"] for goal in goals)
    row["met"] = all(goal["met"] for goal in goals)
    return row


def loaded(name: str, options: Namespace) -> _sets.Set:
    """A set of the folder."""
    if not _sets.there(name, options.data):
        sys.exit(f"no {name}.csv.gz in {options.data}: give the folder with --data")
    return _sets.load(name, options.data)


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each set and epsilon, then the means over the sets; with --race one for each race."""
    warnings.simplefilter("ignore")
    if options.race:
        yield from measure_races(options)
        return
    found: list[_timing.Row] = []
    for name in options.names or NAMES:
        data = loaded(name, options)
        for horizon in (True, False):
            if not horizon and len(data.x) < SMALL:
                continue  # its warm-up would be most of the stream
            for epsilon in EPSILONS:
                found.append(of_set(data, epsilon, options.splits, horizon))
                yield found[-1]
    for horizon in (True, False):
        for epsilon in EPSILONS:
            rows = [row for row in found if (row["horizon"], row["epsilon"]) == (horizon, epsilon)]
            if rows:
                mean: _timing.Row = {"epsilon": epsilon, "horizon": horizon}
                for key in ("usual_short", "chosen_short"):
                    mean[key] = statistics.fmean(row[key] for row in rows)
                yield _timing.judged(mean, "chosen_short", most=ALLOWED if horizon else None)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    if options.race:
        columns = [
            *(("set", "data", "<10"), ("order", "order", "<8"), ("best", "best", ">9.4f")),
            *(("mean", "mean", ">9.4f"), ("Tuned", "chosen", ">9.4f"), ("below best", "short", ">12.4f")),
            ("time", "time", ">7.2f"),
        ]
        yield from _timing.table(columns, rows, goals=True)
        return
    yield "                                          AUC with the ridge          below the best"
    columns = [
        *(("set", "data", "<10"), ("horizon", "horizon", "<9"), ("epsilon", "epsilon", ">7g")),
        *(("splits", "splits", ">8d"), ("usual", "usual", ">9.4f"), ("chosen", "chosen", ">9.4f")),
        *(("best", "best", ">9.4f"), ("x usual", "factor", ">9g")),
        *(("usual", "usual_short", ">9.4f"), ("chosen", "chosen_short", ">9.4f")),
    ]
    rows = list(rows)
    lines = [{**row, "horizon": "yes" if row["horizon"] else "no"} for row in rows]
    yield from _timing.table(columns, (row for row in lines if "data" in row))
    yield ""
    columns = [
        *(("in the mean: horizon", "horizon", "<20"), ("epsilon", "epsilon", ">9g")),
        *(("usual", "usual_short", ">9.4f"), ("chosen", "chosen_short", ">9.4f")),
    ]
    words = ({**row, "horizon": f"horizon: {row['horizon']}"} for row in lines if "data" not in row)
    yield from _timing.table(
        [("below the best, in the mean", "horizon", "<30"), *columns[1:]], words, goals=True
    )


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "names": {"nargs": "*", "metavar": "NAME", "help": "sets; six of them without"},
        "--race": {"action": "store_true", "help": "the race of learners that are not private"},
        "--data": {"type": Path, "default": _sets.DATA, "help": "folder with NAME.csv.gz"},
        "--splits": {"type": int, "default": 5, "help": "splits of each set"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
