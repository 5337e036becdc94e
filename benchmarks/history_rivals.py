"""A private model of a table at epsilon 1, next to DP-EBM and DP-SGD: AUC and time of the processor.

    python benchmarks/history_rivals.py --rivals PYTHON [--data DIR] [--noises 20] [--json] [NAME ...]

PYTHON has the rivals: `python3 -m venv rivals && rivals/bin/pip install interpret-core dp-accounting`.

`PairFTRL` is `streampair.history.fit` of `auc.PairFTRL` as it is made. `PairFTRL, no ball` are the same
models, with rows that are longer than 1 not shortened when they are scored. `DP-EBM` (Nori et al. 2021) has
its defaults, the public bounds, and texts as categories; the others have a column of 0 and 1 for each value.
`DP-SGD` (Abadi et al. 2016) is a linear scorer with the best of 54 settings on the very rows that are scored
(clip, rate, share of a batch, epochs), found with 100,000 rows where there are more; `DP-SGD, free scale` has
besides the true means and spreads of the features. Neither is charged for it, nor are the seconds of the
search.

All have epsilon 1 and delta 1e-8, and the smallest and largest value of each number as public bounds. The
neighbours of the rivals are tables with a row more or less; those of `PairFTRL` have another content of one
row, which is twice as far. Figures are means of the noises; `generated` has a million correlated rows of 20
features, and of the others a random fifth is scored. Seconds are those of one fit; `times` is how many times
those of `PairFTRL` they are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported, here and by the rivals

import _sets
import _timing
import numpy as np
import pandas as pd
from history_start import generated
from private_budgets import nominal

from streampair import auc, history, models

NAMES = ("adult", "bank", "ijcnn1", "generated")
ROWS, BATCH = 1_000_000, 50_000
EPSILON, DELTA = 1.0, 1e-8
DP_SGD = ("DP-SGD", "DP-SGD, free scale")


class Split:
    """Rows to learn and rows to score.

    Attributes
    ----------
    x
        All rows in [-1, 1], (n, d), with a column for each value of a text.
    fields, is_nominal
        The same rows with a column for each field, and which of these are numbers of categories.
    y
        Labels.
    train, test
        Places of the rows.
    """

    def __init__(self, name: str, folder: Path) -> None:
        if name == "generated":
            (x, y), (more, labels) = generated(1.0, ROWS)
            self.x, self.y = np.vstack([x, more]), np.append(y, labels)
            self.train, self.test = np.arange(len(x)), np.arange(len(x), len(self.x))
            self.fields, self.is_nominal = self.x, np.zeros(x.shape[1], dtype=bool)
        else:
            data = _sets.load(name, folder)
            low, high = np.array(list(_sets.bounds_of(data.x).values())).T
            kept = data.x[list(_sets.bounds_of(data.x))].to_numpy()
            self.x, self.y = 2.0 * (kept - low) / (high - low) - 1.0, data.y
            self.train, self.test = next(_sets.splits(len(self.x), 1, first=0))
            self.fields, self.is_nominal = nominal(data)

    def judged(self, scores: np.ndarray) -> float:
        """AUC of the scores of the rows to test with."""
        return _sets.in_order("auc", self.y[self.test], scores)


def _ours(split: Split, rows: np.ndarray, noise: int) -> tuple[float, float, float]:
    """AUC of the model of these rows, its AUC without the ball, and seconds of the processor to make it."""
    names = [f"x{i:03}" for i in range(split.x.shape[1])]
    learner = auc.PairFTRL(EPSILON, DELTA, bounds=dict.fromkeys(names, (-1.0, 1.0)))
    job = history.Job(learner, label="y", rows=len(rows), row_id="id", salt=f"salt {noise}")
    columns = {name: split.x[rows, i] for i, name in enumerate(names)}
    columns |= {"y": split.y[rows], "id": np.arange(len(rows))}
    batches = [
        {name: column[start : start + BATCH] for name, column in columns.items()}
        for start in range(0, len(rows), BATCH)
    ]
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        model = history.fit(job, batches, noise.to_bytes(32, "big"), account=Path(folder) / "account.json")
        seconds = time.process_time() - start
    assert model.privacy is not None
    assert model.privacy["epsilon_spent"] <= EPSILON * (1 + 1e-12)
    frame = pd.DataFrame(split.x[split.test], columns=names)
    document = json.loads(models.dumps(model))
    mean, factor, cap = (np.array(document["scaling"][name]) for name in ("mean", "factor", "cap"))
    vectors = np.clip((split.x[split.test] - mean) * factor, -cap, cap)
    scores = (np.asarray(model.score_many(frame)), vectors @ np.array(document["weights"]))
    return split.judged(scores[0]), split.judged(scores[1]), seconds


def _rival(
    python: str, script: str, folder: Path, *words: str, **arrays: np.ndarray
) -> tuple[str, np.ndarray]:
    """What a program of a rival prints, and the scores that it has written."""
    data, scores = folder / "data.npz", folder / "scores.npy"
    np.savez(data, **arrays)
    program = str(Path(__file__).with_name(script))
    command = [python, program, str(data), str(scores), repr(DELTA), *words]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return out, np.load(scores)


def _rivals(python: str, split: Split, noises: int) -> Iterator[_timing.Row]:
    """A row for each rival."""
    train, test = split.train, split.test
    labels = split.y.astype(int)
    with tempfile.TemporaryDirectory() as name:
        folder, bounds = Path(name), (split.fields.min(axis=0), split.fields.max(axis=0))
        arrays = {"rows": split.fields[train], "labels": labels[train], "test": split.fields[test]}
        arrays |= {"low": bounds[0], "high": bounds[1], "nominal": split.is_nominal}
        out, scores = _rival(python, "_dpebm.py", folder, *[repr(EPSILON)] * noises, **arrays)
        yield {
            **{"learner": "DP-EBM", "auc": float(np.mean([split.judged(each) for each in scores]))},
            **{"seconds": float(np.mean([float(word) for word in out.split()[1:]])), "setting": ""},
        }
        arrays = {"x": split.x[train], "labels": labels[train], "test": split.x[test]}
        arrays["test_labels"] = labels[test]
        out, forms = _rival(python, "_dpsgd.py", folder, repr(EPSILON), str(noises), **arrays)
        for learner, row, scores in zip(DP_SGD, json.loads(out)["rows"], forms, strict=True):
            setting = "  clip {clip:g}, rate {rate:g}, share {share:g}, {epochs} epochs".format(**row)
            value = float(np.mean([split.judged(each) for each in scores]))
            yield {"learner": learner, "auc": value, "seconds": row["seconds"], "setting": setting}


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Rows of each table: ours, then those of the rivals."""
    for name in options.name or NAMES:
        split = Split(name, options.data)
        _ours(split, split.train[:5000], 0)  # compiles
        found = np.mean([_ours(split, split.train, k) for k in range(1, options.noises + 1)], axis=0)
        about = {"name": name, "rows": len(split.train), "columns": split.x.shape[1]}
        ours = [
            {"learner": learner, "auc": value, "seconds": found[2], "setting": ""}
            for learner, value in zip(("PairFTRL", "PairFTRL, no ball"), found, strict=False)
        ]
        for row in (*ours, *_rivals(options.rivals, split, options.noises)):
            yield {**about, **row, "ahead": found[0] - row["auc"], "times": row["seconds"] / found[2]}


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """A table; `ahead` is the AUC of `PairFTRL` less that of the line."""
    columns = [
        *(("table", "name", "<10"), ("learner", "learner", "<20"), ("rows", "rows", ">9,")),
        *(("columns", "columns", ">8"), ("AUC", "auc", ">8.4f"), ("ahead", "ahead", ">+9.4f")),
        *(("seconds", "seconds", ">9.2f"), ("times", "times", ">7.1f"), ("", "setting", "<2")),
    ]
    return _timing.table(columns, rows)


OPTIONS: dict[str, dict[str, Any]] = {
    "name": {"nargs": "*", "metavar": "NAME"},
    "--rivals": {"required": True, "metavar": "PYTHON", "help": "that has interpret-core and dp-accounting"},
    "--data": {"type": Path, "default": _sets.DATA},
    "--noises": {"type": int, "default": 20},
}

if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, OPTIONS))
