"""How long a metric from pairs of individuals takes beside what it cannot do without.

That is one sort of the pairs for the graph and its kappa', and one product of the pairs' differences with the
matrix for an epoch of `offline.DPPMetricLearner`. Both are measured in turns in one process, and only their
ratios count.

    python benchmarks/pairs.py
    python benchmarks/pairs.py --pairs 100000
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Iterator

import numpy as np
from _timing import Row, main, ratio, table, timed, turns

from streampair import offline

COLUMNS = (
    ("what", "what", "<12"),
    ("itself, s", "itself", ">11.3f"),
    ("beside it, s", "beside", ">14.3f"),
    ("ratio", "ratio", ">9.1f"),
)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    rng, n = np.random.default_rng(1), max(options.pairs // 5, 2)
    rows, w = rng.normal(size=(n, options.features)) / 5.0, np.eye(options.features)
    drawn = np.sort(rng.integers(n, size=(options.pairs + options.pairs // 10, 2)), axis=1)
    pairs = np.unique(drawn[drawn[:, 0] < drawn[:, 1]], axis=0)[: options.pairs]
    alike = (rows[pairs[:, 0], 0] > 0) == (rows[pairs[:, 1], 0] > 0)

    def epochs(count: int) -> float:
        start = time.process_time()
        offline.DPPMetricLearner(1.0, 1e-7, epochs=count, connected=False).fit(rows, alike, pairs)
        return time.process_time() - start

    work = {
        "sort": timed(lambda: np.sort(pairs[:, 0] * n + pairs[:, 1]), time.process_time),
        "kappa'": timed(lambda: offline.PairGraph(pairs, n).kappa_prime, time.process_time),
        "product": timed(lambda: (rows[pairs[:, 0]] - rows[pairs[:, 1]]) @ w, time.process_time),
        "epoch": lambda: (epochs(6) - epochs(1)) / 5.0,
    }
    times = turns(work, options.rounds, warm=1)
    for what, baseline in (("kappa'", "sort"), ("epoch", "product")):
        yield {
            "what": what,
            "itself": statistics.median(times[what]),
            "beside": statistics.median(times[baseline]),
            "ratio": ratio(times[what], times[baseline]),
        }


def page(rows: Iterable[Row], options: argparse.Namespace) -> Iterator[str]:
    yield f"{options.pairs} pairs of {options.pairs // 5} individuals, {options.features} features"
    yield from table(COLUMNS, rows)


if __name__ == "__main__":
    options = {
        "--pairs": {"type": int, "default": 1_000_000},
        "--features": {"type": int, "default": 20},
        "--rounds": {"type": int, "default": 5},
    }
    sys.exit(main(__doc__, measure, page, options))
