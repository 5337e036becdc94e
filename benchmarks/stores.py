"""The state in Kafka against the state on a disk: events per second of the same worker, as ratios in one run.

    python benchmarks/stores.py                              # starts Apache Kafka, as the tests do
    python benchmarks/stores.py --json                       # for machines (--check: exit code)

One partition of River's Phishing as JSON. Both commit every 100 ms; with the state in Kafka a commit is a
transaction with all outputs (for a private learner one more before it, with its digests), on the disk it is
a flush and the group's offset. Runs alternate; reported are medians and ratios of medians. The goal is 0.7.
Then the time from an event to its score, for readers of committed records, at half of that rate, with the
worker in a process of its own: the goal is a p99 of 0.5 s.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
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
from aiokafka.structs import TopicPartition
from streampair_connectors.cli.options import settle
from worker import BROKER, LEARNERS, broker, create, fill, worker

GOAL = 0.7
SECONDS = 0.5
EVERY = {"commit_every": "100ms", "commit_every_events": 1_000_000}

OURS = ("PairOGD", "PairFTRL")


async def latency(bootstrap: str, mark: str, rate: int, seconds: float, names: list[str]) -> list[float]:
    """Seconds from when an event is sent until its score is there for readers of committed records.

    `rate` events a second, in one partition, with the state in Kafka; the first quarter is not counted.
    """
    topic, output = f"{mark}-in", f"{mark}-scores"
    await create(bootstrap, topic, output, f"{output}-dead")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "wait.toml"
        config.write_text(
            f"""app = "{mark}"
kafka.bootstrap_servers = "{bootstrap}"
input = {{ topic = "{topic}", label = "y", features = {msgspec.json.encode(names).decode()} }}
output = {{ topic = "{output}", dead_letter_topic = "{output}-dead" }}
learner.class = "streampair.auc.PairOGD"
metrics.address = "127.0.0.1:0"
"""
        )
        command = [sys.executable, "-m", "streampair_connectors", "run", str(config)]
        process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
        assert process.stderr is not None
        while b"lane_opened" not in await process.stderr.readline():
            pass
        try:
            return await waits_of(bootstrap, topic, output, rate, seconds, names)
        finally:
            process.terminate()
            await process.communicate()


async def waits_of(
    bootstrap: str, topic: str, output: str, rate: int, seconds: float, names: list[str]
) -> list[float]:
    """Send events, and wait for the score of each."""
    value = msgspec.json.encode({**dict.fromkeys(names, 0.5), "y": True})
    count, sent, waits = int(rate * seconds), [], []
    reader = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", fetch_max_wait_ms=10
    )
    async with reader, AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=2) as producer:
        partition = TopicPartition(output, 0)
        reader.assign([partition])
        await reader.seek_to_beginning(partition)

        async def produce() -> None:
            start = time.perf_counter()
            while len(sent) < count:
                due = min(int((time.perf_counter() - start) * rate) + 1, count)
                for _ in range(due - len(sent)):
                    await producer.send(topic, value, partition=0)
                    sent.append(time.perf_counter())
                await asyncio.sleep(0.002)

        producing = asyncio.create_task(produce())
        while len(waits) < count:
            for records in (await reader.getmany(timeout_ms=100)).values():
                now = time.perf_counter()
                waits += [now - sent[len(waits) + i] for i in range(len(records))]
        await producing
    return waits[count // 4 :]


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Alternate the two, for each learner; then how long a score takes at half of that rate."""
    settle()
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

        for name in OURS:
            learner = LEARNERS[name]
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
            if name == "PairOGD":
                half = round(medians["kafka"] / 2)
        waits = sorted(asyncio.run(latency(bootstrap, f"{mark}-wait", half, 12.0, names)))
        row = {
            "learner": "PairOGD",
            "events_per_second": half,
            "p50_seconds": round(waits[len(waits) // 2], 3),
            "p99_seconds": round(waits[int(len(waits) * 0.99)], 3),
        }
        yield _timing.judged(row, "p99_seconds", most=SECONDS)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield f"{'learner':10} {'directory/s':>12} {'kafka/s':>10} {'ratio':>6}   goal {GOAL}"
    for row in rows:
        if "ratio" not in row:
            yield ""
            yield (
                f"at {row['events_per_second']:,} events/s, from an event to its committed score: "
                f"p50 {row['p50_seconds']} s, p99 {row['p99_seconds']} s   goal {SECONDS}"
            )
            continue
        yield (
            f"{row['learner']:10} {row['directory_events_per_second']:>12,} "
            f"{row['kafka_events_per_second']:>10,} {row['ratio']:>6.2f}"
        )


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        **BROKER,
        "--events": {"type": int, "default": 200_000},
        "--rounds": {"type": int, "default": 3},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
