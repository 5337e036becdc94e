"""One model for the whole topic, against one for each partition: AUC, events per second and latency.

    python benchmarks/topology.py                                  # starts Apache Kafka, as the tests do
    python benchmarks/topology.py --sets letter --learners Forest --partitions 1 16   # --json for machines

The same shuffled events lie in topics of one and of more partitions, with LogAppendTime. One `streampair run`
with its state in Kafka reads them to their end, once with `learner.scope = "application"` and once with
"partition"; runs alternate. Reported are the AUC of the committed scores over the second half of the events,
and events per second as a ratio to one partition with scope "partition" in the same round. With `--rate R`
events come at R a second, and the time from the append of an event to that of its score is reported too.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any

import _sets
import _timing
import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from sklearn.metrics import roc_auc_score
from streampair_connectors.cli.options import settle
from streampair_connectors.config import parse_config
from streampair_connectors.worker.worker import Worker
from worker import BROKER, broker, create

SCOPES = ("partition", "application")
KEY = "5e" * 32


def learner(name: str, count: int, partitions: int) -> dict[str, Any]:
    """The table [learner]; the horizon of a private one is its share of the events."""
    table: dict[str, Any] = {"class": f"streampair.auc.{name}"}
    if name in ("PairFTRL", "PrivateForest"):
        table["options"] = {"epsilon": 1.0, "delta": 1.0 / count, "horizon": count // partitions}
        table["noise_key_env"] = "STREAMPAIR_TOPOLOGY_KEY"
    return table


async def fill(bootstrap: str, topic: str, partitions: int, values: list[bytes], rate: float) -> None:
    """Write the events to the partitions in turn; `rate` a second, 0: all at once."""
    begin = time.perf_counter()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=2 if rate else 20) as producer:
        for number, value in enumerate(values):
            await producer.send(topic, value, partition=number % partitions)
            if rate and number % 50 == 0:
                await asyncio.sleep(max(begin + number / rate - time.perf_counter(), 0.0))
        await producer.flush()


async def read(bootstrap: str, topic: str, partitions: int) -> list[Any]:
    """The committed records of a topic."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False
    )
    found: list[Any] = []
    async with consumer:
        places = [TopicPartition(topic, p) for p in range(partitions)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        ends = await consumer.end_offsets(places)
        while any([await consumer.position(tp) < end for tp, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += records
    return found


async def run(
    bootstrap: str,
    mark: str,
    partitions: int,
    scope: str,
    table: dict[str, Any],
    data: _sets.Set,
    rate: float,
) -> tuple[float, float, list[float]]:
    """AUC over the second half, events per second, and the latencies in seconds."""
    names = [str(name) for name in data.x.columns]
    rows = data.x.to_numpy(dtype=float)
    values = [
        msgspec.json.encode({**dict(zip(names, row.tolist(), strict=True)), "y": bool(y)})
        for row, y in zip(rows, data.y, strict=True)
    ]
    app = f"{mark}-{time.time_ns()}"
    topics = {kind: f"{app}-{kind}" for kind in ("in", "out", "dead")}
    await create(bootstrap, topics["in"], topics["out"], partitions=partitions, append_time=True)
    await create(bootstrap, topics["dead"])
    if not rate:
        await fill(bootstrap, topics["in"], partitions, values, 0.0)
    config = parse_config(
        {
            "app": app,
            "kafka": {"bootstrap_servers": bootstrap},
            "input": {"topic": topics["in"], "label": "y", "features": names},
            "output": {"topic": topics["out"], "dead_letter_topic": topics["dead"]},
            "learner": {**table, "scope": scope},
            "store": {"kind": "kafka"},
        }
    )
    worker = Worker(config)
    task = asyncio.create_task(worker.run())
    lanes = 1 if scope == "application" else partitions
    while len(worker.lanes) < lanes and not task.done():  # noqa: ASYNC110  # there is no event
        await asyncio.sleep(0.001)
    start = time.perf_counter()
    feeder = asyncio.create_task(fill(bootstrap, topics["in"], partitions, values, rate)) if rate else None
    while not task.done():
        published = worker.telemetry.gauges(app).values()
        if sum(gauges.next_offset or 0 for gauges in published) >= len(values):
            break
        await asyncio.sleep(0.005)
    seconds = time.perf_counter() - start
    if feeder is not None:
        await feeder
    worker.stop()
    await task
    scores: dict[tuple[int, int], tuple[float, int]] = {}  # and when they were appended
    for record in await read(bootstrap, topics["out"], partitions):
        row = msgspec.json.decode(record.value)
        scores[row["partition"], row["offset"]] = row["score"], record.timestamp
    half = len(values) // 2
    places = [(n % partitions, n // partitions) for n in range(len(values))]
    given = np.array([scores[place][0] for place in places[half:]])
    auc = float(roc_auc_score(np.asarray(data.y[half:], dtype=bool), given))
    latencies: list[float] = []
    if rate:
        events = await read(bootstrap, topics["in"], partitions)
        times = {(event.partition, event.offset): event.timestamp for event in events}
        latencies = [(scores[place][1] - times[place]) / 1000.0 for place in places[half:]]
    return auc, len(values) / seconds, latencies


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each set, learner, number of partitions and scope."""
    settle()
    os.environ.setdefault("STREAMPAIR_TOPOLOGY_KEY", KEY)
    mark = f"topology-{os.getpid()}"
    with broker(options.bootstrap, options.kafka) as bootstrap:
        for name in options.sets:
            data = _sets.load(name, _sets.DATA)
            count = min(len(data.y), options.events)
            order = np.random.default_rng(1).permutation(len(data.y))[:count]
            data = data._replace(x=data.x.iloc[order], y=np.asarray(data.y)[order])
            for kind in options.learners:
                found: dict[tuple[int, str], list[tuple[float, float, list[float]]]] = {}
                for _ in range(options.rounds):
                    for partitions in options.partitions:
                        for scope in SCOPES:
                            shares = 1 if scope == "application" else partitions
                            if kind in ("PairFTRL", "PrivateForest") and count // shares < 100:
                                continue
                            table = learner(kind, count, shares)
                            found.setdefault((partitions, scope), []).append(
                                asyncio.run(
                                    run(bootstrap, mark, partitions, scope, table, data, options.rate)
                                )
                            )
                base = [rate for _, rate, _ in found[options.partitions[0], "partition"]]
                for (partitions, scope), runs in found.items():
                    ratio = statistics.median(r / b for (_, r, _), b in zip(runs, base, strict=True))
                    waits = sorted(wait for _, _, each in runs for wait in each)
                    yield {
                        "set": name,
                        "learner": kind,
                        "partitions": partitions,
                        "scope": scope,
                        "auc": round(statistics.median(auc for auc, _, _ in runs), 4),
                        "ratio": round(ratio, 2),
                        "p50": round(waits[len(waits) // 2], 3) if waits else None,
                        "p99": round(waits[int(len(waits) * 0.99)], 3) if waits else None,
                    }


COLUMNS = [
    ("set", "set", "<10"),
    ("learner", "learner", "<15"),
    ("partitions", "partitions", ">10d"),
    ("  scope", "where", "<14"),
    ("AUC", "auc", ">7.4f"),
    ("rate", "ratio", ">7.2f"),
]
WAITS = [("p50 s", "p50", ">8.3f"), ("p99 s", "p99", ">8.3f")]


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    pace = f"{options.rate:g} a second" if options.rate else "from a backlog"
    yield f"up to {options.events:,} events, {pace}; medians of {options.rounds} alternating runs"
    columns = COLUMNS + (WAITS if options.rate else [])
    yield from _timing.table(columns, ({**row, "where": f"  {row['scope']}"} for row in rows))


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        **BROKER,
        "--sets": {"nargs": "+", "default": ["ijcnn1", "letter"]},
        "--learners": {"nargs": "+", "default": ["PairOGD", "Forest", "PairFTRL", "PrivateForest"]},
        "--partitions": {"type": int, "nargs": "+", "default": [1, 16, 64]},
        "--events": {"type": int, "default": 100_000},
        "--rate": {"type": float, "default": 0.0},
        "--rounds": {"type": int, "default": 1},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
