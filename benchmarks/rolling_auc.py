"""Cost of RollingAUC by window: an event with its answer, beside River's RollingROCAUC and beside a sort.

O(log window) an event: ten times the window should cost little more. The scores rise and fall with noise on
top, so that events enter everywhere in the order.

    python benchmarks/rolling_auc.py [--events 20000] [--json]
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import _timing
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


def measure(options: Namespace) -> Iterator[_timing.Row]:
    RollingAUC(10).update(True, 0.5)
    for window in WINDOWS:
        yield of_window(window, options.events)


def of_window(window: int, events: int) -> _timing.Row:
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

    def bulk() -> None:
        for start in range(0, len(labels), 500):
            ours.extend(labels[start : start + 500], scores[start : start + 500])

    tail = slice(window, window + few)
    return {
        "window": window,
        "ours": microseconds(rolling, labels[window:], scores[window:]),
        "river": microseconds(rivers, labels[tail], scores[tail]),
        "scikit-learn": microseconds(sort, labels[tail][:50], scores[tail][:50]),
        "bulk": _timing.timed(bulk, time.perf_counter)() / len(labels) * 1e6,
    }


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield "microseconds an event, answer included (bulk: 500 events a call, without it)"
    columns = [
        *(("window", "window", "<10"), ("RollingAUC", "ours", ">13.2f"), ("in bulk", "bulk", ">10.2f")),
        *(("River RollingROCAUC", "river", ">22.1f"), ("scikit-learn", "scikit-learn", ">15.0f")),
    ]
    yield from _timing.table(columns, rows)


if __name__ == "__main__":
    sys.exit(_timing.main(__doc__, measure, page, {"--events": {"type": int, "default": 20_000}}))
