"""The worker on a real broker against what one would write instead: events per second, as ratios in one run.

    python benchmarks/worker.py                              # starts Apache Kafka, as the tests do
    python benchmarks/worker.py --bootstrap localhost:9092   # uses this one
    python benchmarks/worker.py --json                       # for machines (--check: exit code)

All read the same topic of one partition, filled with River's Phishing as JSON, and write a score for each
event. The worker is `streampair run`: it scores and learns, estimates the regret, keeps its metrics, saves
its state and commits every 10,000 events. Beside it:

    bare         aiokafka's `getmany`, msgspec, one `send` for each event; it does not learn
    limit        aiokafka as fast as it goes: whole batches, one `score_learn_many` of PairOGD for each
    librdkafka   confluent-kafka's `consume(1000)`, msgspec, River's LogisticRegression, `produce`
    other-client the loop of `limit` over confluent-kafka: what the worker could gain from it
    quix         Quix Streams with River's LogisticRegression (with --quix, see `_quix.py`)

The loops commit every 10,000 events and save nothing; those in this process have Python's collector set as
`streampair run` sets it. Runs alternate; each is timed from its first records until all outputs are known to
be stored (the worker: until they are committed); reported are medians, and ratios of medians.
"""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import itertools
import os
import pstats
import re
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import _timing
import confluent_kafka
import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from pydantic import SecretStr
from river import datasets, linear_model
from streampair_connectors.cli.options import settle
from streampair_connectors.config import KafkaConfig, parse_config
from streampair_connectors.kafka import create_topics
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.worker.worker import Worker

from streampair import auc
from streampair.errors import SourceError

COMMIT = 10_000
GOAL = 0.8
LEARNERS: dict[str, dict[str, Any]] = {
    "PairOGD": {"class": "streampair.auc.PairOGD"},
    "PairFTRL": {
        "class": "streampair.auc.PairFTRL",
        "options": {"epsilon": 1.0, "delta": 1e-6},
        "noise_key_file": SecretStr(os.urandom(32).hex()),
    },
    "LogisticRegression": {
        "class": "river.linear_model.LogisticRegression",
        "allow_pickle": True,
    },
}
# Options of every program that needs a broker.
BROKER: dict[str, dict[str, Any]] = {
    "--bootstrap": {"help": "host:port of a broker; without it, one is started"},
    "--kafka": {"default": "4.x", "help": "version to start: 3.9 or 4.x"},
}
# Which, beside which, least ratio; None: a figure without a goal.
GOALS: list[tuple[str, str, float | None]] = [
    ("other-client", "limit", None),
    ("PairOGD", "bare", GOAL),
    ("PairOGD", "limit", 0.8),
    ("PairOGD", "librdkafka", 1.0),
    ("PairOGD", "quix", 5.0),
    ("PairFTRL", "librdkafka", 0.9),
    ("LogisticRegression", "librdkafka", 0.6),
]


@contextlib.contextmanager
def kafka(version: str) -> Iterator[Any]:
    """An Apache Kafka of our own: a `KafkaBroker` of the tests."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from harness.apache_kafka import KafkaBroker

    started = KafkaBroker(version)
    try:
        yield started
    finally:
        started.close()


@contextlib.contextmanager
def broker(bootstrap: str | None, version: str) -> Iterator[str]:
    """The address of the caller's broker, or of one of our own."""
    if bootstrap is not None:
        yield bootstrap
        return
    with kafka(version) as started:
        yield started.bootstrap


async def create(bootstrap: str, *topics: str, partitions: int = 1, append_time: bool = False) -> None:
    """Make topics, and wait until they can be written; with `append_time` the broker sets the timestamps."""
    settings = {"message.timestamp.type": "LogAppendTime"} if append_time else {}
    made = await create_topics(
        KafkaConfig(bootstrap_servers=bootstrap),
        dict.fromkeys(topics, partitions),
        1,
        settings=dict.fromkeys(topics, settings),
    )
    for outcome in made.values():
        if isinstance(outcome, SourceError):
            raise outcome


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


async def limit(bootstrap: str, topic: str, output: str, count: int, names: list[str]) -> float:
    """The same client as the worker's, in whole batches: what a lane could at best come to."""
    shape: Any = msgspec.defstruct("Row", [*((n, float) for n in names), ("y", bool)])
    decode, encode = msgspec.json.Decoder(shape).decode, msgspec.json.Encoder().encode
    partition, model = TopicPartition(topic, 0), auc.PairOGD()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=f"limit-{time.time_ns()}", enable_auto_commit=False
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=900_000)
    async with consumer, producer:
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        start, done, futures = time.perf_counter(), 0, []
        while done < count:
            for records in (await consumer.getmany(timeout_ms=1000, max_records=1000)).values():
                rows = np.array([msgspec.structs.astuple(decode(record.value)) for record in records])
                scores = model.score_learn_many(rows[:, :-1], rows[:, -1] == 1.0).tolist()
                batch = producer.create_batch()
                for record, score in zip(records, scores, strict=True):
                    value = encode({"offset": record.offset, "score": score})
                    batch.append(timestamp=None, key=record.key, value=value)
                batch.close()
                futures.append(await producer.send_batch(batch, output, partition=0))
                done += len(records)
                if done % COMMIT < len(records):
                    await asyncio.gather(*futures)
                    await consumer.commit({partition: records[-1].offset + 1})
                    futures.clear()
        await asyncio.gather(*futures)
        return count / (time.perf_counter() - start)


def over_confluent(
    name: str,
    bootstrap: str,
    topic: str,
    output: str,
    count: int,
    take: Callable[[list[bytes]], Iterable[float]],
) -> float:
    """A loop over confluent-kafka; `take` gives the scores of the values of a batch, and learns them."""
    encode = msgspec.json.Encoder().encode
    settings = {"group.id": f"{name}-{time.time_ns()}", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, **settings})
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    start, done, last = 0.0, 0, 0
    while done < count:
        messages = consumer.consume(1000, 1.0)
        start = start or time.perf_counter()
        if not messages:
            continue
        scores = take([message.value() for message in messages])
        for message, score in zip(messages, scores, strict=True):
            _produce(producer, output, encode({"offset": message.offset(), "score": score}), message.key())
        producer.poll(0)
        done += len(messages)
        if done - last >= COMMIT:
            last = done
            producer.flush()
            consumer.commit(message=messages[-1], asynchronous=False)
    producer.flush()
    took = time.perf_counter() - start
    consumer.close()
    return count / took


async def librdkafka(bootstrap: str, topic: str, output: str, count: int, names: list[str]) -> float:
    """What one would write with the other client, and River."""
    shape: Any = msgspec.defstruct("Row", [("y", bool), *((n, float) for n in names)])
    decode, model = msgspec.json.Decoder(shape).decode, linear_model.LogisticRegression()

    def take(values: list[bytes]) -> Iterator[float]:
        for value in values:
            x = msgspec.structs.asdict(decode(value))
            y = x.pop("y")
            score = model.predict_proba_one(x)[True]
            model.learn_one(x, y)
            yield score

    return over_confluent("librdkafka", bootstrap, topic, output, count, take)


async def other_client(bootstrap: str, topic: str, output: str, count: int, names: list[str]) -> float:
    """`limit` over the other client."""
    shape: Any = msgspec.defstruct("Row", [*((n, float) for n in names), ("y", bool)])
    decode, model = msgspec.json.Decoder(shape).decode, auc.PairOGD()

    def take(values: list[bytes]) -> list[float]:
        rows = np.array([msgspec.structs.astuple(decode(value)) for value in values])
        scores: list[float] = model.score_learn_many(rows[:, :-1], rows[:, -1] == 1.0).tolist()
        return scores

    return over_confluent("other", bootstrap, topic, output, count, take)


def _produce(producer: Any, topic: str, value: bytes, key: bytes | None) -> None:
    """Hand over one message, as soon as there is room for it."""
    while True:
        try:
            producer.produce(topic, value, key)
            return
        except BufferError:
            producer.poll(0.1)


async def quix(python: str, bootstrap: str, topic: str, output: str, count: int, names: list[str]) -> float:
    """The same learner in a framework for streams, in an environment of its own."""
    script = str(Path(__file__).with_name("_quix.py"))
    process = await asyncio.create_subprocess_exec(
        *(python, script, bootstrap, topic, output, str(count)), stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    return float(output.split()[-1])


def split(telemetry: Telemetry, seconds: float) -> dict[str, float]:
    """Shares of a run by stage, as the worker's own series give them; `other` is the rest."""
    found = re.findall(r'_seconds_total\{.*stage="(\w+)".*\} (\S+)', telemetry.render().decode())
    shares = dict.fromkeys(("fetch", "decode", "learn", "encode", "commit"), 0.0)
    for stage, value in found:
        shares[stage] += float(value) / seconds
    return shares | {"other": 1.0 - sum(shares.values())}


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
    shares: dict[str, float] | None = None,
    more: dict[str, dict[str, Any]] | None = None,
    base: Path | None = None,
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
    shares
        Where to put what its time went into.
    more
        Further keys, by table.
    base
        Where relative paths start.
    """
    with tempfile.TemporaryDirectory() as directory:
        table: dict[str, Any] = {
            "app": f"bench-{time.time_ns()}",
            "kafka": {"bootstrap_servers": bootstrap},
            "input": {"topic": topic, "label": "y", "features": names},
            "output": {"topic": output, "dead_letter_topic": f"{output}-dead"},
            "learner": learner or {"class": "streampair.auc.PairOGD"},
            "store": {} if in_kafka else {"directory": f"{directory}/state"},
            "worker": every or {"commit_every_events": COMMIT},
        }
        if "allow_pickle" in table["learner"]:
            table["store"]["key_file"] = SecretStr(os.urandom(32).hex())
        for name, keys in (more or {}).items():
            table[name] = {**table[name], **keys}
        config = parse_config(table, base=base)
        made = Worker(config)
        task = asyncio.create_task(made.run())
        while made.lane is None and not task.done():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.001)
        start = time.perf_counter()
        while not task.done():
            published = list(made.telemetry.gauges(config.app).values())
            if published and (published[0].next_offset or 0) >= count:
                break
            await asyncio.sleep(0.005)
        took = time.perf_counter() - start
        if shares is not None:
            shares |= split(made.telemetry, took)
        made.stop()
        await task
        return count / took


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Alternate them; then a row for each pair with a goal."""
    settle()
    count = -(-options.events // COMMIT) * COMMIT
    mark = f"bench-{os.getpid()}"
    loops: dict[str, Any] = {"bare": bare, "limit": limit, "librdkafka": librdkafka}
    loops["other-client"] = other_client
    if options.quix:
        loops["quix"] = partial(quix, options.quix)
    loops |= {name: partial(worker, learner=table) for name, table in LEARNERS.items()}
    shares: dict[str, float] = {}
    loops["PairOGD"] = partial(worker, shares=shares)
    topic, outputs = f"{mark}-in", {name: f"{mark}-{name}" for name in loops}
    with broker(options.bootstrap, options.kafka) as bootstrap:
        dead = [f"{outputs[name]}-dead" for name in LEARNERS]
        asyncio.run(create(bootstrap, topic, *outputs.values(), *dead))
        names = asyncio.run(fill(bootstrap, topic, count))

        def run(name: str) -> float:
            return float(asyncio.run(loops[name](bootstrap, topic, outputs[name], count, names)))

        measures = {name: partial(run, name) for name in loops}
        # Not counted: the first run of each, in which kernels compile and caches fill.
        rates = _timing.turns(measures, options.rounds, warm=1)
        if options.profile:
            with cProfile.Profile() as profiler:
                measures[options.profile]()
            pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(45)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, value in medians.items():
        yield {"events": count, "rounds": options.rounds, "name": name, "events_per_second": round(value)}
    for ours, theirs, least in GOALS:
        if theirs in medians:
            row = {"worker": ours, "peer": theirs, "ratio": round(medians[ours] / medians[theirs], 3)}
            yield _timing.judged(row, "ratio", least=least)
    yield {"split": {stage: round(share, 3) for stage, share in shares.items()}}


LABELS = {
    "bare": "aiokafka, decodes and sends one by one; does not learn",
    "limit": "aiokafka and PairOGD in whole batches; no state, no metrics",
    "librdkafka": "confluent-kafka and River's LogisticRegression; no state, no metrics",
    "other-client": "the loop of limit over confluent-kafka",
    "quix": "Quix Streams and River's LogisticRegression",
    **{name: f"streampair run, {name}" for name in LEARNERS},
}


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    begun = False
    for row in rows:
        if "name" in row:
            if not begun:
                events, rounds = row["events"], row["rounds"]
                yield f"one partition of {events:,} events, medians of {rounds} alternating runs"
            begun = True
            yield f"  {row['name']:20}{row['events_per_second']:>9,} events/s   {LABELS[row['name']]}"
        elif "split" in row:
            shares = ", ".join(f"{stage} {share:.0%}" for stage, share in row["split"].items())
            yield f"time of the PairOGD worker: {shares}"
        else:
            missed = "" if row["met"] else "  missed"
            yield f"  {row['worker']:>18} / {row['peer']:12} {row['ratio']:>6.2f}   {row['goal']}{missed}"


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        **BROKER,
        "--events": {"type": int, "default": 200_000},
        "--rounds": {"type": int, "default": 3},
        "--quix": {"metavar": "PYTHON", "help": "one that has quixstreams and river: compare with that too"},
        "--profile": {"choices": sorted(LABELS), "help": "profile one more run of this"},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
