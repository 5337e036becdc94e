"""How long the gradient of all pairs takes, beside one product of the records with the weights.

Both are measured in turns in one process, and only their ratio counts.

    python benchmarks/all_pairs.py
    python benchmarks/all_pairs.py --records 1000000
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Iterator

import numpy as np
from _timing import Row, judged, main, ratio, table, timed, turns

from streampair import losses
from streampair.offline.risk import LinearRisk

# The goal is for the hinge at 100,000 records of 20 features.
MOST = 30.0
COLUMNS = (
    ("loss", "loss", "<14"),
    ("product, ms", "product", ">13.2f"),
    ("gradient, ms", "gradient", ">14.2f"),
    ("ratio", "ratio", ">9.1f"),
)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(options.records, options.features))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    labels, w = np.where(rng.random(options.records) < 0.3, 1.0, -1.0), rng.normal(size=options.features)
    for loss in (losses.Hinge(), losses.SquaredHinge(), losses.Square()):
        risk = LinearRisk(rows, labels, loss)
        times = turns(
            {
                "product": timed(lambda: rows @ w, time.perf_counter),
                "gradient": timed(lambda risk=risk: risk.gradient(w), time.perf_counter),  # type: ignore[misc]
            },
            options.rounds,
            warm=2,
        )
        row = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        row["ratio"] = ratio(times["gradient"], times["product"])
        yield judged({"loss": type(loss).__name__, **row}, "ratio", most=MOST)


def page(rows: Iterable[Row], options: argparse.Namespace) -> Iterator[str]:
    yield f"{options.records} records, {options.features} features, all pairs"
    yield from table(COLUMNS, rows, goals=True)


if __name__ == "__main__":
    options = {
        "--records": {"type": int, "default": 100_000},
        "--features": {"type": int, "default": 20},
        "--rounds": {"type": int, "default": 21},
    }
    sys.exit(main(__doc__, measure, page, options))
