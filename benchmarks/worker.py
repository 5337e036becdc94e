"""The worker on a real broker against a bare aiokafka loop: events per second, as a ratio in one run.

    python benchmarks/worker.py                              # starts Apache Kafka, as the tests do
    python benchmarks/worker.py --bootstrap localhost:9092   # uses this one
    python benchmarks/worker.py --json                       # for machines (--check: exit code)

Both read the same topic of one partition, filled with River's Phishing as JSON. The bare loop is what one
writes first: `getmany`, decode with msgspec, one `send` per event, wait for the batch. It does not learn,
save or measure anything. The worker is `streampair run`: it scores and learns with PairOGD, estimates the
regret, keeps its metrics, saves its state and commits. Runs alternate; each is timed from the assignment of
the partition until all outputs are known to be stored (the worker: until they are committed); reported are
medians and the ratio of the medians. The goal is 0.8.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import itertools
import os
import pstats
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
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import TopicPartition
from river import datasets
from streampair_connectors.config import parse_config
from streampair_connectors.worker import Worker

COMMIT = 10_000
GOAL = 0.8


@contextlib.contextmanager
def broker(bootstrap: str | None, version: str) -> Iterator[str]:
    """The caller's broker, or one of our own."""
    if bootstrap is not None:
        yield bootstrap
        return
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from harness.apache_kafka import KafkaBroker

    own = KafkaBroker(version)
    try:
        yield own.bootstrap
    finally:
        own.close()


async def create(bootstrap: str, *topics: str) -> None:
    """Make topics of one partition."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1) for topic in topics])
    finally:
        await admin.close()


async def fill(bootstrap: str, topic: str, count: int) -> list[str]:
    """Write `count` events; return the names of their features."""
    rows = list(datasets.Phishing())
    encoded = [msgspec.json.encode({**x, "y": bool(y)}) for x, y in rows]
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=20, max_batch_size=100_000
    ) as producer:
        for value in itertools.islice(itertools.cycle(encoded), count):
            await producer.send(topic, value, partition=0)
        await producer.flush()
    return sorted(rows[0][0])


async def bare(bootstrap: str, topic: str, output: str, count: int, names: list[str]) -> float:
    """The bare loop."""
    shape: Any = msgspec.defstruct("Row", [*((n, float) for n in names), ("y", bool)])
    decode = msgspec.json.Decoder(shape).decode
    encode = msgspec.json.Encoder().encode
    partition = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=f"bare-{time.time_ns()}", enable_auto_commit=False
    )
    async with consumer, AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        start = time.perf_counter()
        done = 0
        while done < count:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=1000)).values():
                futures = []
                for record in records:
                    row = decode(record.value)
                    value = encode({"offset": record.offset, "score": row.y})
                    futures.append(await producer.send(output, value, key=record.key))
                await asyncio.gather(*futures)
                done += len(records)
                await consumer.commit({partition: records[-1].offset + 1})
        return count / (time.perf_counter() - start)


async def worker(
    bootstrap: str,
    topic: str,
    output: str,
    count: int,
    names: list[str],
    *,
    learner: dict[str, Any] | None = None,
    in_kafka: bool = False,
    every: dict[str, Any] | None = None,
) -> float:
    """The worker, as `streampair run` starts it.

    Parameters
    ----------
    learner
        The table [learner]; None: PairOGD.
    in_kafka
        Where the state lies.
    every
        When it commits; None: every `COMMIT` events.
    """
    with tempfile.TemporaryDirectory() as directory:
        config = parse_config(
            {
                "app": f"bench-{time.time_ns()}",
                "kafka": {"bootstrap_servers": bootstrap},
                "input": {"topic": topic, "label": "y", "features": names},
                "output": {"topic": output, "dead_letter_topic": f"{output}-dead"},
                "learner": learner or {"class": "streampair.auc.PairOGD"},
                "store": {"kind": "kafka"} if in_kafka else {"directory": f"{directory}/state"},
                "worker": every or {"commit_every_events": COMMIT},
            }
        )
        made = Worker(config)
        task = asyncio.create_task(made.run())
        while not made.lanes and not task.done():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.001)
        start = time.perf_counter()
        while not task.done():
            published = list(made.telemetry.gauges(config.app).values())
            if published and (published[0].next_offset or 0) >= count:
                break
            await asyncio.sleep(0.005)
        rate = count / (time.perf_counter() - start)
        made.stop()
        await task
        return rate


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Alternate the two."""
    count = -(-options.events // COMMIT) * COMMIT
    mark = f"bench-{os.getpid()}"
    topic, outputs = f"{mark}-in", (f"{mark}-bare", f"{mark}-worker", f"{mark}-worker-dead")
    with broker(options.bootstrap, options.kafka) as bootstrap:
        asyncio.run(create(bootstrap, topic, *outputs))
        names = asyncio.run(fill(bootstrap, topic, count))

        def run(loop: Any, output: str) -> float:
            return float(asyncio.run(loop(bootstrap, topic, output, count, names)))

        measures = {"bare": partial(run, bare, outputs[0]), "worker": partial(run, worker, outputs[1])}
        # Not counted: the first run of each, in which kernels compile and caches fill.
        rates = _timing.turns(measures, options.rounds, warm=1)
        if options.profile:
            with cProfile.Profile() as profiler:
                measures["worker"]()
            pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(35)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    row = {
        "events": count,
        "rounds": options.rounds,
        "bare_events_per_second": round(medians["bare"]),
        "worker_events_per_second": round(medians["worker"]),
        "ratio": round(medians["worker"] / medians["bare"], 3),
    }
    yield _timing.judged(row, "ratio", least=GOAL)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    (row,) = rows
    yield f"one partition of {row['events']} events, medians of {row['rounds']} alternating runs"
    yield f"  bare aiokafka loop {row['bare_events_per_second']:>9,} events/s  (decodes, sends one by one)"
    yield f"  streampair worker  {row['worker_events_per_second']:>9,} events/s  (scores, learns, saves)"
    yield f"  ratio              {row['ratio']:>9.2f}            goal {GOAL}"


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        "--bootstrap": {"help": "host:port of a broker; without it, one is started"},
        "--kafka": {"default": "4.x", "help": "version to start: 3.9 or 4.x"},
        "--events": {"type": int, "default": 200_000},
        "--rounds": {"type": int, "default": 3},
        "--profile": {"action": "store_true", "help": "profile one more run of the worker"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
