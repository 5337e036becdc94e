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

import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

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
    """One run: AUCs, standard error, numbers of positives and recalls; None: not reported."""

    frauds: int
    stopped: int
    explored: int
    true: float
    expected: float
    reported: float
    stderr: float | None
    recall: float
    recall_reported: float | None


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
        found.auc_stderr,
        float(caught.sum() / labels.sum()),
        found.recall_at_threshold,
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
    def mean(of: Callable[[Run], Any], chosen: list[Run] = runs) -> float | None:
        return statistics.fmean(map(of, chosen)) if chosen else None

    with_error = [each for each in runs if each.stderr is not None]
    recalls = [each for each in runs if each.recall_reported is not None]
    many = [each for each in recalls if each.explored >= 100]
    return {
        "mode": name,
        "payments": payments,
        "runs": len(runs),
        "stopped": mean(lambda each: each.stopped / each.frauds),
        "explored": mean(lambda each: each.explored),
        "true": mean(lambda each: each.true),
        "reported": mean(lambda each: each.reported),
        "within": mean(lambda each: abs(each.reported - each.true) <= 0.015),
        "no_error": 1.0 - len(with_error) / len(runs),
        "covers": mean(lambda each: abs(each.reported - each.expected) <= 1.96 * each.stderr, with_error),
        "few": 1.0 - len(recalls) / len(runs),
        "recall": mean(lambda each: each.recall),
        "recall_reported": mean(lambda each: each.recall_reported, recalls),
        "recall_within": mean(lambda each: abs(each.recall_reported - each.recall) <= 0.05, recalls),
        "recall_many": mean(lambda each: abs(each.recall_reported - each.recall) <= 0.05, many),
    }


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield f"{options.seeds} seeds, a tenth of them for longer streams and where none is explored"
    columns = [
        ("explored", "mode", "<8"),
        ("payments", "payments", ">9"),
        ("stopped", "stopped", ">8"),
        ("positives", "explored", ">10"),
        ("true", "true", ">7"),
        ("reported", "reported", ">9"),
        ("within .015", "within", ">12"),
        ("no error", "no_error", ">9"),
        ("covers", "covers", ">7"),
        ("few", "few", ">7"),
        ("recall", "recall", ">7"),
        ("reported", "recall_reported", ">9"),
        ("within .05", "recall_within", ">11"),
        ("from 100", "recall_many", ">9"),
    ]
    yield from _timing.table(columns, map(_printed, rows))


def _printed(row: _timing.Row) -> _timing.Row:
    """Figures as they are printed."""
    decimals = {"stopped": 2, "explored": 1, "recall": 2, "recall_reported": 2}
    return {
        key: "-"
        if value is None
        else f"{value:.{decimals.get(key, 3)}f}"
        if isinstance(value, float)
        else value
        for key, value in row.items()
    }


if __name__ == "__main__":
    flags = {"--seeds": {"type": int, "default": 500, "help": "runs of each row"}}
    sys.exit(_timing.main(__doc__, measure, page, flags))
