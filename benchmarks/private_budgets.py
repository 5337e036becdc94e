"""A private forest with more and more budget, compared with DP-EBM.

    python benchmarks/private_budgets.py [--data DIR] [--splits 3] [--dpebm PYTHON] [NAME ...]

Mean AUC and log loss on held-out fifths of random 80/20 splits, for epsilon from .5 to 16, and the longest
time of the processor to compute the model at the horizon. delta is one over the number of all rows; horizons
are declared; the smallest and largest value of each feature are taken as public. With `--dpebm` the other
rows are DP-EBM (Nori et al. 2021) with its defaults, by a Python that has interpret-core: its categories are
nominal features, where `PrivateForest` has one-hot columns.

The goals of `PrivateForest`: an AUC at most .003 below that of any smaller epsilon, a log loss at most .01
above, a model in 2 s; and at 1, 4 and 16 a better AUC and log loss than DP-EBM's. The account of DP-EBM is
for one record that is added or removed. A replaced record is removed and another one added, which doubles
mu. So DP-EBM gets half of the mu of (epsilon, delta), for the same neighbours as `PrivateForest`.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import _sets
import _timing
import numpy as np
from sklearn.metrics import log_loss

from streampair import auc
from streampair.privacy.accounting import epsilon_from, mu_from
from streampair.records.random_trees import fields_of

SETS = ("letter", "ijcnn1", "adult", "bank")
BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
COMPARED = (1.0, 4.0, 16.0)
WORSE = {"auc": 0.003, "loss": 0.01}
MOST_SECONDS = 2.0
FIRST_SPLIT = 3000  # as of `private_forest.py`

OURS, THEIRS = "PrivateForest", "DP-EBM"

Split = tuple[np.ndarray, np.ndarray]
Found = tuple[np.ndarray, float]


def _ours(data: _sets.Set, train: np.ndarray, test: np.ndarray, epsilon: float) -> Found:
    """Probabilities of the rows to test with, and the seconds that the model took."""
    model = _sets.private(data, auc.PrivateForest, train, epsilon=epsilon, horizon=len(train))
    report = model.privacy
    if report.kind != "holds" or report.epsilon_spent > epsilon * (1 + 1e-12):
        raise AssertionError(str(report))
    start = time.process_time()
    model.score_one(data.x.iloc[test[0]].to_dict())
    seconds = time.process_time() - start
    return model.predict_proba_many(data.x.iloc[test])[True].to_numpy(), seconds


def nominal(data: _sets.Set) -> tuple[np.ndarray, np.ndarray]:
    """Rows with a column for each field, and which of these are numbers of categories."""
    x = data.x[sorted(data.x.columns)]
    parts, start = [], 0
    sizes = fields_of(x.columns)
    for size in sizes:
        part = x.to_numpy()[:, start : start + size]
        parts.append(part.argmax(axis=1).astype(float) if size > 1 else part[:, 0])
        start += size
    return np.stack(parts, axis=1), np.array(sizes) > 1


def _dpebm(python: str, data: _sets.Set, train: np.ndarray, test: np.ndarray) -> list[Found]:
    """As `_ours`, for DP-EBM and all of `BUDGETS`, with the seconds that all of it took."""
    rows, is_nominal = nominal(data)
    delta = 1.0 / len(data.x)
    epsilons = [epsilon_from(0.5 * mu_from(epsilon, delta), delta) for epsilon in BUDGETS]
    with tempfile.TemporaryDirectory() as folder:
        data_path, out_path = (str(Path(folder) / name) for name in ("data.npz", "probabilities.npy"))
        np.savez(
            data_path,
            **{"rows": rows[train], "labels": data.y[train].astype(int), "test": rows[test]},
            **{"low": rows.min(axis=0), "high": rows.max(axis=0), "nominal": is_nominal},
        )
        script = str(Path(__file__).with_name("_dpebm.py"))
        words = [python, script, data_path, out_path, repr(delta), *map(repr, epsilons)]
        ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        return list(zip(np.load(out_path), map(float, ran.stdout.split()[1:]), strict=True))


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """All rows of a set, then of the next."""
    for number, name in enumerate(options.names or SETS):
        data = _sets.load(name, options.data)
        splits = list(_sets.splits(len(data.x), options.splits, FIRST_SPLIT))
        if number == 0:  # compiles
            _ours(data, *splits[0], BUDGETS[-1])
        theirs = [_dpebm(options.dpebm, data, *split) for split in splits] if options.dpebm else []
        best = {"auc": 0.0, "loss": math.inf}
        for k, epsilon in enumerate(BUDGETS):
            found = [_ours(data, *split, epsilon) for split in splits]
            ours = _row(data, OURS, epsilon, splits, found)
            least, most = best["auc"] - WORSE["auc"], best["loss"] + WORSE["loss"]
            other = _row(data, THEIRS, epsilon, splits, [each[k] for each in theirs]) if theirs else None
            if other is not None and epsilon in COMPARED:
                least, most = max(least, other["auc"]), min(most, other["loss"])
            best = {"auc": max(best["auc"], ours["auc"]), "loss": min(best["loss"], ours["loss"])}
            ours["met"] = ours["auc"] >= least and ours["loss"] <= most and ours["seconds"] <= MOST_SECONDS
            if math.isfinite(most):
                ours["goal"] = f">= {least:.4f}, <= {most:.4f}"
            yield ours
            if other is not None:
                yield other


def _row(
    data: _sets.Set, learner: str, epsilon: float, splits: list[Split], found: list[Found]
) -> _timing.Row:
    aucs = [_sets.in_order("auc", data.y[test], p) for (_, test), (p, _) in zip(splits, found, strict=True)]
    losses = [
        float(log_loss(data.y[test], np.clip(p, 1e-6, 1.0 - 1e-6)))
        for (_, test), (p, _) in zip(splits, found, strict=True)
    ]
    return {
        **{"set": data.name, "epsilon": epsilon, "learner": learner, "auc": float(np.mean(aucs))},
        **{"loss": float(np.mean(losses)), "seconds": max(seconds for _, seconds in found)},
    }


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """The table."""
    columns = [
        *(("set", "set", "<8"), ("epsilon", "epsilon", ">7.1f"), ("  learner", "label", "<16")),
        *(("AUC", "auc", ">7.4f"), ("log loss", "loss", ">10.4f"), ("s", "seconds", ">7.2f")),
    ]
    return _timing.table(columns, ({**row, "label": f"  {row['learner']}"} for row in rows), goals=True)


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "names": {"nargs": "*", "metavar": "NAME", "help": f"of two classes; {', '.join(SETS)} without"},
        "--data": {"type": Path, "default": _sets.DATA, "help": "folder with NAME.csv.gz"},
        "--splits": {"type": int, "default": 3},
        "--dpebm": {"metavar": "PYTHON", "help": "DP-EBM too, by a Python that has interpret-core"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
