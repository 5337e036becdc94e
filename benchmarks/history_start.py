"""A private learner that begins with a table's moments: on a stream like the table, and on another one.

    python benchmarks/history_start.py [--forest] [--data DIR] [--noises 5] [--json] [--check] [NAME ...]

`streampair.history` learns a table, with epsilon 1 and delta 1e-8, and `auc.PairFTRL` of the same budget
begins with its model; with `--forest` both are `auc.PrivateForest`. `like` is a stream of further records of
the table: AUC of the scores over its first 1,000, 5,000 and 20,000 events, of the learner and of the model as
it is (`other`), means of the noises; `kept` is in how many runs the moments were pooled to the end.
`permuted` has the columns of these records in another order: AUC from event 20,000 on, of the learner and of
one that begins with nothing (`other`), and the event behind which the last run had dropped the moments. The
bars:

- on `like` the learner's AUC is at most .003 below the table's, in each window;
- on `permuted` it is at most .02 below the other's, and all runs have dropped the moments by event
  10,000.

`generated` has 150,000 correlated rows of 20 features, `rare` the same with one positive in a hundred. Of a
set of the data folder the table is one half, in random order. Features are scaled to [-1, 1] by their
ranges, which are taken as public.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _sets
import _timing
import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from streampair import auc, history
from streampair.models import Model

Kind = type[auc.PairFTRL] | type[auc.PrivateForest]
NAMES = ("generated", "rare", "ijcnn1", "adult", "bank")
SHORT = "adult"  # half of it is too short for leaves of its 108 features: no forest begins with its model
BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-8}
WINDOWS = (1_000, 5_000, 20_000)
EVENTS, BATCH = 25_000, 250
LOST, SLOWER, LATEST = 0.003, 0.02, 10_000


class Halves(NamedTuple):
    """Rows in [-1, 1] and labels of the table, and of the stream behind it."""

    table: tuple[np.ndarray, np.ndarray]
    stream: tuple[np.ndarray, np.ndarray]


def generated(offset: float, rows: int = 150_000, d: int = 20) -> Halves:
    rng = np.random.default_rng(30)
    weights, mixed = rng.normal(size=d), np.eye(d) + 0.3 * rng.normal(size=(d, d))
    x = np.clip(rng.normal(size=(rows + EVENTS, d)) @ mixed / 6.0, -1.0, 1.0)
    score = x @ weights
    y = rng.random(len(x)) < 1.0 / (1.0 + np.exp(offset - 1.6 * score / score.std()))
    return Halves((x[:rows], y[:rows]), (x[rows:], y[rows:]))


def halves(name: str, folder: Path) -> Halves:
    """The table and the stream of a name."""
    if name in ("generated", "rare"):
        return generated({"generated": 1.0, "rare": 6.0}[name])
    data = _sets.load(name, folder)
    bounds = _sets.bounds_of(data.x)
    low, high = np.array(list(bounds.values())).T
    x = 2.0 * (data.x[list(bounds)].to_numpy() - low) / (high - low) - 1.0
    order = np.random.default_rng(31).permutation(len(x))
    rows = max(len(x) // 2, len(x) - 3 * EVENTS)
    table, stream = order[:rows], order[rows : rows + EVENTS]
    return Halves((x[table], data.y[table]), (x[stream], data.y[stream]))


def _options(d: int) -> dict[str, Any]:
    names = [f"x{i:03}" for i in range(d)]
    return {**BUDGET, "bounds": dict.fromkeys(names, (-1.0, 1.0))}


def learned(kind: Kind, table: tuple[np.ndarray, np.ndarray], noise: int) -> Model:
    """The model of a table."""
    x, y = table
    options = _options(x.shape[1])
    job = history.Job(kind(**options), label="y", rows=len(x), row_id="id", salt=f"salt {noise}")
    columns = {name: x[:, i] for i, name in enumerate(options["bounds"])}
    with tempfile.TemporaryDirectory() as folder:
        return history.fit(
            job,
            [columns | {"y": y, "id": np.arange(len(x))}],
            noise.to_bytes(32, "big"),
            account=Path(folder) / "account.json",
        )


def run(
    kind: Kind, model: Model | None, x: np.ndarray, y: np.ndarray, noise: int
) -> tuple[np.ndarray, int | None]:
    """Scores of a stream, each before its batch is learned, and the event behind which moments were gone."""
    options = _options(x.shape[1])
    learner = kind(**options, seed=noise)
    if model is not None:
        model.to_online(learner)
    frame, scores, dropped = pd.DataFrame(x, columns=list(options["bounds"])), np.zeros(len(x)), None
    for start in range(0, len(x), BATCH):
        part = frame.iloc[start : start + BATCH]
        if learner.run is not None:
            scores[start : start + BATCH] = learner.score_many(part)
        learner.learn_many(part, pd.Series(y[start : start + BATCH], index=part.index))
        if dropped is None and learner.run.warmed and not learner.run.state.pooled:
            dropped = start + BATCH
    return scores, dropped


def _auc(y: np.ndarray, scores: np.ndarray, start: int, stop: int) -> float:
    return float(roc_auc_score(y[start:stop], scores[start:stop]))


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Lines of each name: the windows of a stream like the table, and the permuted stream."""
    kind: Kind = auc.PrivateForest if options.forest else auc.PairFTRL
    names = options.name or [name for name in NAMES if not (options.forest and name == SHORT)]
    for name in names:
        if name not in ("generated", "rare") and not _sets.there(name, options.data):
            continue
        table, (x, y) = halves(name, options.data)
        other = x[:, np.random.default_rng(32).permutation(x.shape[1])]
        like: dict[int, list[tuple[float, float]]] = {stop: [] for stop in WINDOWS}
        late: list[tuple[float, float]] = []
        kept, latest = 0, 0
        for noise in range(1, options.noises + 1):
            model = learned(kind, table, noise)
            alone = np.asarray(
                model.score_many(pd.DataFrame(x, columns=list(_options(x.shape[1])["bounds"])))
            )
            scores, dropped = run(kind, model, x, y, noise)
            kept += dropped is None
            for stop, found in like.items():
                found.append((_auc(y, scores, 0, stop), _auc(y, alone, 0, stop)))
            scores, dropped = run(kind, model, other, y, noise)
            latest = max(latest, len(x) if dropped is None else dropped)
            cold, _ = run(kind, None, other, y, noise)
            late.append((_auc(y, scores, WINDOWS[-1], len(x)), _auc(y, cold, WINDOWS[-1], len(x))))
        about = {"name": name, "rows": len(table[0]), "features": x.shape[1]}
        for stop, found in like.items():
            ours, theirs = np.mean(found, axis=0)
            row = {**about, "stream": "like", "events": f"to {stop:,}", "learner": ours, "other": theirs}
            row |= {"ahead": ours - theirs, "kept": f"{kept} of {options.noises}"}
            yield _timing.judged(row, "ahead", least=-LOST)
        ours, theirs = np.mean(late, axis=0)
        row = {**about, "stream": "permuted", "events": f"from {WINDOWS[-1]:,}", "learner": ours}
        row |= {"other": theirs, "ahead": ours - theirs, "kept": f"to {latest:,}"}
        yield _timing.judged(row, "ahead", least=-SLOWER if latest <= LATEST else 1.0)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """A table, with the bars of `ahead`."""
    columns = [
        ("name", "name", "<10"),
        ("rows", "rows", ">8,"),
        ("features", "features", ">10"),
        ("stream", "stream", ">10"),
        ("events", "events", ">13"),
        ("learner", "learner", ">8.4f"),
        ("other", "other", ">8.4f"),
        ("ahead", "ahead", ">+8.4f"),
        ("kept", "kept", ">10"),
    ]
    return _timing.table(columns, rows, goals=True)


OPTIONS: dict[str, dict[str, Any]] = {
    "name": {"nargs": "*", "metavar": "NAME"},
    "--forest": {"action": "store_true"},
    "--data": {"type": Path, "default": _sets.DATA},
    "--noises": {"type": int, "default": 5},
}

if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, OPTIONS))
