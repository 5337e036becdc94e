"""The state in Kafka against the state on a disk: events per second of the same worker, as ratios in one run.

    python benchmarks/stores.py                              # starts Apache Kafka, as the tests do
    python benchmarks/stores.py --json                       # for machines (--check: exit code)

One partition of River's Phishing as JSON. Both commit every 100 ms; with the state in Kafka a commit is a
transaction with all outputs (for a private learner one more before it, with its digests), on the disk it is
a flush and the group's offset. Runs alternate; reported are medians and ratios of medians. The goal is 0.7.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import _timing
from worker import broker, create, fill, worker

GOAL = 0.7
EVERY = {"commit_every_seconds": 0.1, "commit_every_events": 1_000_000}

LEARNERS: dict[str, dict[str, Any]] = {
    "PairOGD": {"class": "streampair.auc.PairOGD"},
    "PairFTRL": {
        "class": "streampair.auc.PairFTRL",
        "options": {"epsilon": 1.0, "delta": 1e-6},
        "noise_key_env": "BENCH_NOISE_KEY",
    },
}


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Alternate the two, for each learner."""
    os.environ["BENCH_NOISE_KEY"] = os.urandom(32).hex()
    mark = f"stores-{os.getpid()}"
    topic, output = f"{mark}-in", f"{mark}-scores"
    with broker(options.bootstrap, options.kafka) as bootstrap:
        asyncio.run(create(bootstrap, topic, output, f"{output}-dead"))
        names = asyncio.run(fill(bootstrap, topic, options.events))

        def run(learner: dict[str, Any], in_kafka: bool) -> float:
            work = worker(
                bootstrap,
                topic,
                output,
                options.events,
                names,
                learner=learner,
                in_kafka=in_kafka,
                every=EVERY,
            )
            return float(asyncio.run(work))

        for name, learner in LEARNERS.items():
            measures = {
                "directory": partial(run, learner, False),
                "kafka": partial(run, learner, True),
            }
            rates = _timing.turns(measures, options.rounds, warm=1)
            medians = {place: statistics.median(values) for place, values in rates.items()}
            row = {
                "learner": name,
                "events": options.events,
                "rounds": options.rounds,
                "directory_events_per_second": round(medians["directory"]),
                "kafka_events_per_second": round(medians["kafka"]),
                "ratio": round(medians["kafka"] / medians["directory"], 3),
            }
            yield _timing.judged(row, "ratio", least=GOAL)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield f"{'learner':10} {'directory/s':>12} {'kafka/s':>10} {'ratio':>6}   goal {GOAL}"
    for row in rows:
        yield (
            f"{row['learner']:10} {row['directory_events_per_second']:>12,} "
            f"{row['kafka_events_per_second']:>10,} {row['ratio']:>6.2f}"
        )


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "--bootstrap": {"help": "host:port of a broker; without it, one is started"},
        "--kafka": {"default": "4.x", "help": "version to start: 3.9 or 4.x"},
        "--events": {"type": int, "default": 200_000},
        "--rounds": {"type": int, "default": 3},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
