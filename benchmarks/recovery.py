"""How fast a forest is back after an abrupt drift.

    python benchmarks/recovery.py [--seeds 3] [--no-arf] [NAME ...]

Fourteen streams of 10,000 records whose concept changes in the middle, from one record to the next. `first`
is the AUC of the first 1,000 records after the change. `back` is how many records it takes until the AUC of
the last 500 is at most .02 below that of the last 2,000 of the stream. One pass, defaults, each record scored
before it is learned; means over the seeds. ARF is River's adaptive random forest with 10 trees and one seed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import _streams
import numpy as np
import pandas as pd
from _rival import one_pass
from _streams import Records, agrawal
from river import forest
from river.datasets import synth
from sklearn.metrics import roc_auc_score

from streampair import auc

HALF = 5_000
Scores = np.ndarray[Any, np.dtype[np.float64]]


def _halves(one: Any, two: Any) -> Callable[[], Records]:
    return lambda: [*_streams.taken(one(), HALF), *_streams.taken(two(), HALF)]


def _agrawals(first: int, second: int) -> Callable[[], Records]:
    return _halves(lambda: agrawal(first, 1), lambda: agrawal(second, 2))


def _sines(first: int, second: int) -> Callable[[], Records]:
    return _halves(lambda: synth.Sine(first, seed=1), lambda: synth.Sine(second, seed=2))


def _clusters(seed: int) -> synth.RandomRBF:
    return synth.RandomRBF(seed, seed, n_features=10, n_centroids=50)


STREAMS: dict[str, Callable[[], Records]] = {
    "Agrawal 2, 1": _agrawals(2, 1),
    "Agrawal 1, 3": _agrawals(1, 3),
    "Agrawal 3, 6": _agrawals(3, 6),
    "Agrawal 6, 4": _agrawals(6, 4),
    "Agrawal 4, 2": _agrawals(4, 2),
    "Sine 0, 1": _sines(0, 1),
    "Sine 0, 2": _sines(0, 2),
    "Sine 2, 3": _sines(2, 3),
    "SEA": _halves(lambda: synth.SEA(0, 0.1, seed=1), lambda: synth.SEA(3, 0.1, seed=2)),
    "Hyperplane": _halves(
        lambda: synth.Hyperplane(seed=1, n_features=10), lambda: synth.Hyperplane(seed=2, n_features=10)
    ),
    "RBF": _halves(lambda: _clusters(1), lambda: _clusters(2)),
    "random tree": _halves(
        lambda: synth.RandomTree(1, 1, n_classes=2), lambda: synth.RandomTree(2, 2, n_classes=2)
    ),
    "Mixed": _halves(lambda: synth.Mixed(0, seed=1), lambda: synth.Mixed(1, seed=2)),
    "letter": lambda: _streams.turned(_streams.STREAMS["letter"][0](2 * HALF)[: 2 * HALF]),
}


def recovery(labels: np.ndarray, scores: Scores) -> tuple[float, float, float]:
    """AUC of the first 1,000 records after the change, records until it is back, and AUC of the end."""

    def window(start: int, end: int) -> float:
        return float(roc_auc_score(labels[start:end], scores[start:end]))

    settled = window(2 * HALF - 2000, 2 * HALF)
    ends = range(HALF + 500, 2 * HALF + 1, 50)
    back = next((end - HALF for end in ends if window(end - 500, end) >= settled - 0.02), HALF)
    return window(HALF, HALF + 1000), back, settled


def _forest(records: Records, seed: int) -> Scores:
    frame, labels = pd.DataFrame([x for x, _ in records]), pd.Series([y for _, y in records])
    return auc.Forest(seed=seed).score_learn_many(frame, labels)


def _arf(records: Records, seed: int) -> Scores:
    xs, labels = [x for x, _ in records], np.array([y for _, y in records])
    return np.fromiter(one_pass(xs, labels, forest.ARFClassifier(seed=seed), lambda x: x), float)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(STREAMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--no-arf", action="store_true")
    options = parser.parse_args()
    learners = {"Forest": (_forest, options.seeds), "ARF": (_arf, 1)}
    if options.no_arf:
        del learners["ARF"]
    rows: dict[str, list[np.ndarray]] = {learner: [] for learner in learners}
    print(f"{'stream':<14}{'learner':<10}{'first':>8}{'back':>8}{'settled':>9}")
    for name in options.names:
        records = STREAMS[name]()
        labels = np.array([y for _, y in records])
        for learner, (scores, seeds) in learners.items():
            found = [recovery(labels, scores(records, seed)) for seed in range(1, seeds + 1)]
            rows[learner].append(np.mean(found, axis=0))
            print(_line(name, learner, rows[learner][-1]), flush=True)
    for learner, each in rows.items():
        print(_line("mean", learner, np.mean(each, axis=0)))


def _line(name: str, learner: str, figures: np.ndarray) -> str:
    first, back, settled = figures
    return f"{name:<14}{learner:<10}{first:>8.3f}{back:>8.0f}{settled:>9.3f}"


if __name__ == "__main__":
    main()
