"""What weights say of a score that stops events: AUC, its interval and recall, by the share that is explored.

    python benchmarks/exploration.py [--seeds 500] [--json]

In each seed a learner has learned 2,000 payments, and scores 12,000 more, 3.36 % of them frauds, in a closed
loop: a payment whose score is above a threshold is stopped, about half of all frauds, but for a share that is
let pass (explored). It learns what was let pass, unweighted, up to 2,000 payments later. Explored payments
have the weight 1 / share.

"silence" is a learner for which a payment without a chargeback is no fraud: what is stopped is learned and
counted as a negative. "none" leaves it out. "true" is the AUC of all payments of the run, "reported" the one
of those with a label, "within .015" the share of runs in which both differ by at most that. "no error" is the
share of runs without a standard error of the AUC. Where there is one, an interval of 1.96 of them covers if
the AUC of payments like these is inside: that of 24,000 more that the same models score. "few" is the share
of runs that report no recall. "within .05" is of the others, "from 100" of those with 100 explored positives.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import _timing
import numpy as np
import pandas as pd

from streampair import auc
from streampair.evaluation import AUCWindow, quality_of
from streampair.evaluation.quality import placements

RATE, APART = 403 / 12_000, 2.06
CHUNK = 1_000
BEFORE = 2_000
THRESHOLD = 1.5
MORE = 1_000  # payments of each class that the model of each chunk scores for the AUC of payments like these
# Name, payments, share that is explored; None: none is said to be stopped.
MODES: list[tuple[str, int, float | None]] = [
    ("silence", 12_000, None),
    ("none", 12_000, 0.0),
    *((f"{share:g}", 12_000, share) for share in (0.02, 0.05, 0.1, 0.2, 0.5)),
    ("0.02", 120_000, 0.02),
    ("0.1", 60_000, 0.1),
]


class Run(NamedTuple):
    """One run: AUCs, standard error, numbers of positives and recalls; NaN: not reported."""

    frauds: int
    stopped: int
    explored: int
    true: float
    expected: float
    reported: float
    stderr: float
    recall: float
    recall_reported: float


def drawn(rng: np.random.Generator, labels: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(rng.normal(size=(len(labels), 2)) + APART * labels[:, None], columns=["a", "b"])


def area(labels: np.ndarray, scores: np.ndarray) -> float:
    return float(placements(scores, labels)[labels].mean())


def run(payments: int, share: float | None, seed: int) -> Run:
    """One closed loop."""
    rng, model = np.random.default_rng(seed), auc.PairOGD(seed=seed)
    labels = rng.random(BEFORE) < RATE
    model.learn_many(drawn(rng, labels), pd.Series(labels))
    labels = rng.random(payments) < RATE
    x, coin = drawn(rng, labels), rng.random(payments)
    both = np.arange(2 * MORE) < MORE
    scores, more, waiting = np.zeros(payments), [], None
    for start in range(0, payments, CHUNK):
        part = slice(start, start + CHUNK)
        scores[part] = model.score_many(x[part])
        more.append(np.asarray(model.score_many(drawn(rng, both))))
        if waiting is not None:
            seen, known = let_pass(scores[waiting], labels[waiting], coin[waiting], share)
            model.learn_many(x[waiting][seen], pd.Series(known[seen]))
        waiting = part
    seen, known = let_pass(scores, labels, coin, share)
    weights = np.where(scores >= THRESHOLD, 1.0 / share, 1.0)[seen] if share else None
    window = AUCWindow(payments)
    window.extend(known[seen].tolist(), scores[seen].tolist(), weights)
    found = quality_of(*window.events(), threshold=THRESHOLD, stopped=share is not None)
    assert found is not None
    caught = labels & (scores >= THRESHOLD)
    return Run(
        int(labels.sum()),
        int((caught & ~seen).sum() if share is not None else caught.sum()),
        0 if found.explored_positives is None else found.explored_positives,
        area(labels, scores),
        area(np.tile(both, len(more)), np.concatenate(more)),
        window.get(),
        math.nan if found.auc_stderr is None else found.auc_stderr,
        float(caught.sum() / labels.sum()),
        math.nan if found.recall_at_threshold is None else found.recall_at_threshold,
    )


def let_pass(
    scores: np.ndarray, labels: np.ndarray, coin: np.ndarray, share: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Which payments have a label, and the labels that are known."""
    below = scores < THRESHOLD
    if share is None:
        return np.ones(len(labels), dtype=bool), labels & below
    return below | (coin < share), labels


def measure(options: Namespace) -> Iterator[_timing.Row]:
    for name, payments, share in MODES:
        seeds = options.seeds if share and payments == 12_000 else max(options.seeds // 10, 1)
        yield row(name, payments, [run(payments, share, seed) for seed in range(seeds)])


def row(name: str, payments: int, runs: list[Run]) -> _timing.Row:
    """The mean of each figure over the runs that have it; None: none has."""
    each = Run(*np.array(runs, np.float64).T)
    off = np.abs(each.reported - each.expected) / each.stderr
    recall_off = np.abs(each.recall_reported - each.recall)
    recall_within = np.where(np.isnan(recall_off), math.nan, recall_off <= 0.05)
    figures = {
        "stopped": each.stopped / each.frauds,
        "explored": each.explored,
        "true": each.true,
        "reported": each.reported,
        "within": np.abs(each.reported - each.true) <= 0.015,
        "no_error": np.isnan(each.stderr),
        "covers": np.where(np.isnan(off), math.nan, off <= 1.96),
        "few": np.isnan(each.recall_reported),
        "recall": each.recall,
        "recall_reported": each.recall_reported,
        "recall_within": recall_within,
        "recall_many": np.where(each.explored >= 100, recall_within, math.nan),
    }
    known = {key: values[~np.isnan(values)] for key, values in figures.items()}
    means = {key: float(values.mean()) if len(values) else None for key, values in known.items()}
    return {"mode": name, "payments": payments, "runs": len(runs), **means}


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield f"{options.seeds} seeds, a tenth of them for longer streams and where none is explored"
    columns = [
        ("explored", "mode", "<8"),
        ("payments", "payments", ">9"),
        ("stopped", "stopped", ">8.2f"),
        ("positives", "explored", ">10.1f"),
        ("true", "true", ">7.3f"),
        ("reported", "reported", ">9.3f"),
        ("within .015", "within", ">12.3f"),
        ("no error", "no_error", ">9.3f"),
        ("covers", "covers", ">7.3f"),
        ("few", "few", ">7.3f"),
        ("recall", "recall", ">7.2f"),
        ("reported", "recall_reported", ">9.2f"),
        ("within .05", "recall_within", ">11.3f"),
        ("from 100", "recall_many", ">9.3f"),
    ]
    known = ({key: math.nan if value is None else value for key, value in row.items()} for row in rows)
    yield from (line.replace("nan", "  -") for line in _timing.table(columns, known))


if __name__ == "__main__":
    flags = {"--seeds": {"type": int, "default": 500, "help": "runs of each row"}}
    sys.exit(_timing.main(__doc__, measure, page, flags))
