"""One worker on many partitions: events per second against one partition, and what a lane costs in memory.

    python benchmarks/partitions.py                        # starts Apache Kafka, as the tests do
    python benchmarks/partitions.py --partitions 1 16 64   # --json for machines, --check: exit code

The same events, River's Phishing as JSON, lie in topics of one and of more partitions; the topics that are
written have as many. One PairOGD worker with the settings of `streampair run`, its state in Kafka or in a
directory, is timed from its open lanes until all events are committed. Runs alternate; reported are medians,
and the median of the rounds' ratios to one partition: the goal is 0.8. Then the memory of a `streampair run`
that has opened its lanes, against one with a single lane, for each lane more: the goal is 1 MB.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _timing
import msgspec
from aiokafka import AIOKafkaProducer
from lanes import Worker as Process
from river import datasets
from streampair_connectors.cli.options import settle
from streampair_connectors.config import parse_config
from streampair_connectors.worker.worker import Worker
from worker import BROKER, LEARNERS, broker, create

GOAL, MEMORY_GOAL = 0.8, 1.0
STORES = ("kafka", "directory")
CONFIG = """app = "{mark}-memory{lanes}"
kafka.bootstrap_servers = "{bootstrap}"
metrics.port = 0
input = {{ topic = "{mark}-in{lanes}", label = "y", features = {names} }}
output = {{ topic = "{mark}-out{lanes}", dead_letter_topic = "{mark}-dead{lanes}" }}
learner.class = "streampair.auc.PairOGD"
"""


async def fill(bootstrap: str, topic: str, partitions: int, count: int) -> list[str]:
    """Write `count` events, to the partitions in turn; return the names of their features."""
    rows = list(datasets.Phishing())
    encoded = [msgspec.json.encode({**x, "y": bool(y)}) for x, y in rows]
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=20, max_batch_size=100_000
    ) as producer:
        for number, value in enumerate(itertools.islice(itertools.cycle(encoded), count)):
            await producer.send(topic, value, partition=number % partitions)
        await producer.flush()
    return sorted(rows[0][0])


async def run(bootstrap: str, mark: str, partitions: int, store: str, count: int, names: list[str]) -> float:
    """Events a second of the worker, as `streampair run` starts it, from open lanes to the last commit."""
    with tempfile.TemporaryDirectory() as directory:
        app = f"{mark}-{time.time_ns()}"
        config = parse_config(
            {
                "app": app,
                "kafka": {"bootstrap_servers": bootstrap},
                "input": {"topic": f"{mark}-in{partitions}", "label": "y", "features": names},
                "output": {
                    "topic": f"{mark}-out{partitions}",
                    "dead_letter_topic": f"{mark}-dead{partitions}",
                },
                "learner": LEARNERS["PairOGD"],
                "store": {"kind": store, **({"directory": directory} if store == "directory" else {})},
            }
        )
        worker = Worker(config)
        task = asyncio.create_task(worker.run())
        while len(worker.lanes) < partitions and not task.done():  # noqa: ASYNC110  # there is no event
            await asyncio.sleep(0.001)
        start = time.perf_counter()
        while not task.done():
            published = worker.telemetry.gauges(app).values()
            if sum(gauges.next_offset or 0 for gauges in published) >= count:
                break
            await asyncio.sleep(0.005)
        rate = count / (time.perf_counter() - start)
        worker.stop()
        await task
        return rate


def memory(config: str, lanes: int, folder: Path) -> float:
    """Megabytes that a `streampair run` holds once its lanes are open."""
    path = folder / f"memory{lanes}.toml"
    path.write_text(config)
    worker = Process(path)
    worker.start()
    worker.said("lane_opened", lanes)
    status = Path(f"/proc/{worker.pid}/status").read_text()
    worker.kill(signal.SIGKILL)
    return float(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1000


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each store and number of partitions."""
    settle()
    mark = f"partitions-{os.getpid()}"
    with broker(options.bootstrap, options.kafka) as bootstrap:
        for count in options.partitions:
            topics = (f"{mark}-{kind}{count}" for kind in ("in", "out", "dead"))
            asyncio.run(create(bootstrap, *topics, partitions=count))
            names = asyncio.run(fill(bootstrap, f"{mark}-in{count}", count, options.events))

        def rate(count: int, store: str) -> float:
            return asyncio.run(run(bootstrap, mark, count, store, options.events, names))

        for store in options.stores:
            measures = {str(count): partial(rate, count, store) for count in options.partitions}
            rates = _timing.turns(measures, options.rounds, warm=options.warm)
            for count in options.partitions:
                values, one = rates[str(count)], rates[str(options.partitions[0])]
                row = {
                    "store": store,
                    "partitions": count,
                    "events_per_second": round(statistics.median(values)),
                    "ratio": round(_timing.ratio(values, one), 3),
                }
                yield _timing.judged(row, "ratio", least=GOAL)
        most = max(options.partitions)
        if most > 1:
            with tempfile.TemporaryDirectory() as folder:
                one, many = (
                    memory(
                        CONFIG.format(bootstrap=bootstrap, mark=mark, lanes=n, names=names), n, Path(folder)
                    )
                    for n in (1, most)
                )
            row = {"lanes": most, "megabytes": round((many - one) / (most - 1), 3), "one": round(one)}
            yield _timing.judged(row, "megabytes", most=MEMORY_GOAL)


COLUMNS = [
    ("store", "store", "<12"),
    ("partitions", "partitions", ">10d"),
    ("events/s", "events_per_second", ">12,d"),
    ("ratio", "ratio", ">8.2f"),
]


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield f"{options.events:,} events, medians of {options.rounds} alternating runs"
    found = list(rows)
    yield from _timing.table(COLUMNS, [row for row in found if "store" in row], goals=True)
    for row in found:
        if "lanes" in row:
            more = f"{row['megabytes']:.2f} MB more for each of {row['lanes']}"
            missed = "" if row["met"] else "  missed"
            yield f"memory: {row['one']} MB with one lane, {more}   {row['goal']}{missed}"


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        **BROKER,
        "--partitions": {"type": int, "nargs": "+", "default": [1, 16, 64, 256]},
        "--stores": {"nargs": "+", "choices": STORES, "default": list(STORES)},
        "--events": {"type": int, "default": 200_000},
        "--rounds": {"type": int, "default": 3},
        "--warm": {"type": int, "default": 1},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
