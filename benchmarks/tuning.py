"""Learners that choose their own settings, beside the best of 8 settings that nobody knows beforehand.

    python benchmarks/tuning.py [--data DIR] [--splits 5] [--json] [NAME ...]

`privacy.SecondMoments(tune=True)` chooses the ridge of each model among 8, by the releases alone. All columns
of a row are computed from the same releases, so each has the whole budget: the held-out AUC under the usual
ridge, under the chosen one, and under the best of the 8 in the mean over the splits; then by how much the
usual and the chosen one are below that. Random 80/20 splits; four times as many of sets with fewer than 5000
rows. delta is one over the number of all rows.

The goal: in the mean over the sets the chosen ridge is within .003 of the best one, at each epsilon, with a
declared horizon. The last lines say the same without one, where there is no goal.
"""

from __future__ import annotations

import math
import statistics
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import _sets
import _timing
import numpy as np

from streampair import auc, privacy
from streampair.privacy.mechanisms.second_moments import RIDGES

NAMES = ("letter", "ijcnn1", "adult", "bank", "german", "usps")
EPSILONS = (0.5, 1.0, 4.0)
FIRST_SPLIT = 3000  # earlier ones served to choose how ridges are judged
ALLOWED = 0.003
USUAL = RIDGES.index(1.0)
SMALL = 5000


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


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each set and epsilon, then the means over the sets."""
    warnings.simplefilter("ignore")
    found: list[_timing.Row] = []
    for name in options.names or NAMES:
        if not _sets.there(name, options.data):
            sys.exit(f"no {name}.csv.gz in {options.data}: give the folder with --data")
        data = _sets.load(name, options.data)
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
    yield "                                          AUC with the ridge          below the best"
    columns = [
        *(("set", "data", "<10"), ("horizon", "horizon", "<9"), ("epsilon", "epsilon", ">7g")),
        *(("splits", "splits", ">8d"), ("usual", "usual", ">9.4f"), ("chosen", "chosen", ">9.4f")),
        *(("best", "best", ">9.4f"), ("x usual", "factor", ">9g")),
        *(("usual", "usual_short", ">9.4f"), ("chosen", "chosen_short", ">9.4f")),
    ]
    rows = list(rows)
    shown = [{**row, "horizon": "yes" if row["horizon"] else "no"} for row in rows]
    yield from _timing.table(columns, (row for row in shown if "data" in row))
    yield ""
    columns = [
        *(("in the mean: horizon", "horizon", "<20"), ("epsilon", "epsilon", ">9g")),
        *(("usual", "usual_short", ">9.4f"), ("chosen", "chosen_short", ">9.4f")),
    ]
    words = ({**row, "horizon": f"horizon: {row['horizon']}"} for row in shown if "data" not in row)
    yield from _timing.table(
        [("below the best, in the mean", "horizon", "<30"), *columns[1:]], words, goals=True
    )


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "names": {"nargs": "*", "metavar": "NAME", "help": "sets; six of them without"},
        "--data": {"type": Path, "default": _sets.DATA, "help": "folder with NAME.csv.gz"},
        "--splits": {"type": int, "default": 5, "help": "splits of each set"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
