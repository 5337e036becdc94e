"""What probabilities are worth: River's own metrics over the last half of each stream.

    python benchmarks/probabilities.py [--data DIR] [--rows N] [--json] [NAME ...]

Every learner of `auc` predicts each record, then learns it. `auc` is the exact area of its scores, `binned`
that of River's `metrics.ROCAUC`, which sorts probabilities into ten bins, `loss` the log loss, `best` that of
the logistic curve through the same scores that hindsight would choose. Two bars:

- `gap`, between `auc` and `binned`, is at most that of River's LogisticRegression on the stream, and .01;
- the log loss is at most LogisticRegression's and .03; that of a private learner, at epsilon 1 and delta one
  over the number of rows, is below that of the best constant.

Where a loss is near `best`, and misses the bar, the order of the scores is what falls short, not the link.

Streams are the first N rows of the sets of `utility.py`, as they come. Features are standardised by running
means and variances; those of private learners, which do that themselves, have their smallest and largest
value as public bounds, and a model learns 25 records between two looks at it.
"""

from __future__ import annotations

import math
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import _timing
import numpy as np
import pandas as pd
import utility
from river import datasets, linear_model, metrics, preprocessing
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from streampair import auc, buffers, losses, privacy

SETS = ("phishing", "bananas", "letter", "ijcnn1", "adult", "bank")
GAP = 0.01
LOSS = 0.03
BLOCK = 25

OPEN: dict[str, Callable[[], Any]] = {
    "PairOGD": lambda: auc.PairOGD(),
    "PairOGD, FIFO(32), R = 30": lambda: auc.PairOGD(buffer=buffers.FIFO(32), radius=30.0),
    "PairOGD, least squares": lambda: auc.PairOGD(losses.Square(), buffers.FullHistory()),
    "OAM": lambda: auc.OAM(seed=1),
    "SPAUC": lambda: auc.SPAUC(),
}
PRIVATE: dict[str, Callable[..., Any]] = {
    "PairFTRL": auc.PairFTRL,
    "PairFTRL, gradients": lambda *args, positive_rate=None, **more: auc.PairFTRL(
        *args, mechanism=privacy.PairGradients(positive_rate=positive_rate), **more
    ),
    "OnPairStrC": lambda *args, **more: auc.OnPairStrC(*args, l2=0.1, **more),
    "OnPairC": auc.OnPairC,
}
# By gradients once more, with 2 % of mu^2 for the share of positives and the scale of the scores.
RELEASED = {f"{name}, released": make for name, make in PRIVATE.items() if name != "PairFTRL"}


def load(name: str, options: Namespace) -> tuple[pd.DataFrame, np.ndarray]:
    """The stream of a set."""
    if name == "bananas":
        rows = list(datasets.Bananas())
        x, y = pd.DataFrame([x for x, _ in rows], dtype=float), np.array([y for _, y in rows])
    else:
        x, y = utility.load(name, options.data)
    x.columns = [str(column) for column in x.columns]
    return x.iloc[: options.rows], np.asarray(y[: options.rows], dtype=bool)


def log_loss(p: np.ndarray, y: np.ndarray) -> float:
    p = np.clip(p, 1e-15, 1.0 - 1e-15)
    return -float(np.mean(np.log(np.where(y, p, 1.0 - p))))


def figures(scores: np.ndarray, p: np.ndarray, y: np.ndarray) -> _timing.Row:
    """Of the last half."""
    half = slice(len(y) // 2, None)
    scores, p, y = scores[half], p[half], y[half]
    area, binned = roc_auc_score(y, scores), metrics.ROCAUC()
    for probability, label in zip(p.tolist(), y.tolist(), strict=True):
        binned.update(label, {True: probability, False: 1.0 - probability})
    units = (scores - scores.mean())[:, None] / (scores.std() or 1.0)
    best = LogisticRegression(C=1e6).fit(units, y).predict_proba(units)[:, 1]
    return {
        **{"auc": area, "binned": binned.get(), "gap": abs(area - binned.get())},
        **{"loss": log_loss(p, y), "best": log_loss(best, y)},
    }


def one_by_one(model: Any, rows: list[dict[str, float]], y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores and probabilities, each before its record is learned."""
    scores, p = np.empty(len(y)), np.empty(len(y))
    for i, (x, label) in enumerate(zip(rows, y.tolist(), strict=True)):
        p[i] = model.predict_proba_one(x).get(True, 0.5)
        scores[i] = model.score_one(x) if hasattr(model, "score_one") else p[i]
        model.learn_one(x, label)
    return scores, p


def in_blocks(model: Any, x: pd.DataFrame, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same, of blocks of records."""
    scores, p = np.empty(len(y)), np.empty(len(y))
    for start in range(0, len(y), BLOCK):
        part = slice(start, start + BLOCK)
        scores[part] = model.score_many(x.iloc[part])
        p[part] = model.predict_proba_many(x.iloc[part])[True]
        model.learn_many(x.iloc[part], y[part])
    return scores, p


def of_set(name: str, options: Namespace) -> Iterator[_timing.Row]:
    """All learners on a stream, LogisticRegression first."""
    x, y = load(name, options)
    scaler, rows = preprocessing.StandardScaler(), []
    for row in x.to_dict("records"):
        scaler.learn_one(row)
        rows.append(scaler.transform_one(row))
    rate = float(y[len(y) // 2 :].mean())
    constant = -(rate * math.log(rate) + (1.0 - rate) * math.log(1.0 - rate))
    about = {"data": name, "rows": len(y), "positive": float(y.mean()), "constant": constant}
    found = figures(*one_by_one(linear_model.LogisticRegression(), rows, y), y)
    most, loss = found["gap"] + GAP, found["loss"] + LOSS
    yield {**about, "learner": "LogisticRegression", **found, "goal": "", "met": True}

    def judged(learner: str, found: _timing.Row, bar: float) -> _timing.Row:
        met = {"gap": found["gap"] <= most, "loss": found["loss"] <= bar}
        missed = " and ".join(key for key, value in met.items() if not value)
        goal = f"gap <= {most:.3f}, loss <= {bar:.3f}" + (f": {missed}" if missed else "")
        return {**about, "learner": learner, **found, "goal": goal, "met": not missed}

    for learner, make in OPEN.items():
        yield judged(learner, figures(*one_by_one(make(), rows, y), y), loss)
    bounds = {name: (float(x[name].min()), float(x[name].max())) for name in x if x[name].nunique() > 1}
    for learner, private in {**PRIVATE, **RELEASED}.items():
        more = {"positive_rate": "released"} if learner in RELEASED else {}
        model = private(1.0, 1.0 / len(y), len(y), features=list(x.columns), bounds=bounds, **more)
        yield judged(learner, figures(*in_blocks(model, x, y), y), constant)


def measure(options: Namespace) -> Iterator[_timing.Row]:
    warnings.simplefilter("ignore")
    for name in options.names or SETS:
        if name in ("phishing", "bananas") or (options.data / f"{name}.csv.gz").exists():
            yield from of_set(name, options)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """A block for each stream."""
    columns = [("", "learner", "<30")]
    columns += [(key, key, ">8.3f") for key in ("auc", "binned", "gap", "loss", "best")]
    last = None
    for row in rows:
        if row["data"] != last:
            last = row["data"]
            about = f"{row['rows']} rows, {row['positive']:.1%} positive"
            yield f"{last}: {about}, best constant {row['constant']:.3f}"
            yield from _timing.table(columns, [], goals=True)
        yield list(_timing.table(columns, [row], goals=True))[1]


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "names": {"nargs": "*", "metavar": "NAME", "help": f"sets: {', '.join(SETS)}; all of them without"},
        "--data": {"type": Path, "default": utility.DATA, "help": "folder with NAME.csv.gz"},
        "--rows": {"type": int, "default": 20_000, "help": "of each stream, at most"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
