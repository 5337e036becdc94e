"""Cost of RollingAUC by window: an event with its answer, beside River's RollingROCAUC and beside a sort.

O(log window) an event: ten times the window should cost little more. The scores rise and fall with noise on
top, so that events enter everywhere in the order.

    python benchmarks/rolling_auc.py [--events 20000] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from river import metrics
from sklearn.metrics import roc_auc_score

from streampair.evaluation import RollingAUC

WINDOWS = (100, 1_000, 10_000, 100_000)


def stream(n: int) -> tuple[list[bool], list[float]]:
    rng = np.random.default_rng(0)
    labels = rng.random(n) < 0.2
    scores = 1.0 / (1.0 + np.exp(-np.sin(np.arange(n) / 500) - labels - rng.normal(size=n)))
    return labels.tolist(), np.round(scores, 3).tolist()  # rounded: ties


def microseconds(step: Callable[[bool, float], Any], labels: list[bool], scores: list[float]) -> float:
    start = time.perf_counter()
    for y, score in zip(labels, scores, strict=True):
        step(y, score)
    return (time.perf_counter() - start) / len(labels) * 1e6


def measure(window: int, events: int) -> dict[str, float]:
    labels, scores = stream(window + events)
    ours = RollingAUC(window)
    ours.extend(labels[:window], scores[:window])

    def rolling(y: bool, score: float) -> None:
        ours.update(y, score)
        ours.get()

    # Neither peer is asked more often than it can answer in reasonable time.
    few = max(20, min(events, 2_000_000 // window))
    river = metrics.RollingROCAUC(window)
    kept = deque(zip(labels[:window], scores[:window], strict=True), maxlen=window)
    for y, score in kept:
        river.update(y, {True: score})

    def rivers(y: bool, score: float) -> None:
        river.update(y, {True: score})
        river.get()

    def sort(y: bool, score: float) -> None:
        kept.append((y, score))
        truth, values = zip(*kept, strict=True)
        roc_auc_score(truth, values)

    tail = slice(window, window + few)
    return {
        "window": window,
        "ours": microseconds(rolling, labels[window:], scores[window:]),
        "river": microseconds(rivers, labels[tail], scores[tail]),
        "scikit-learn": microseconds(sort, labels[tail][:50], scores[tail][:50]),
        "bulk": microseconds_in_bulk(ours, labels, scores),
    }


def microseconds_in_bulk(metric: RollingAUC, labels: list[bool], scores: list[float]) -> float:
    start = time.perf_counter()
    for at in range(0, len(labels), 500):
        metric.extend(labels[at : at + 500], scores[at : at + 500])
    return (time.perf_counter() - start) / len(labels) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of RollingAUC by window.")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    RollingAUC(10).update(True, 0.5)
    rows = []
    if not options.json:
        print("microseconds an event, answer included (bulk: 500 events a call, without it)")
        print("window       RollingAUC   in bulk   River RollingROCAUC   scikit-learn")
    for window in WINDOWS:
        row = measure(window, options.events)
        rows.append(row)
        if not options.json:
            print(
                f"{window:<10}{row['ours']:>13.2f}{row['bulk']:>10.2f}{row['river']:>22.1f}"
                f"{row['scikit-learn']:>15.0f}",
                flush=True,
            )
    if options.json:
        json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
