"""Labels on a topic of their own, against labels in the events: events per second and CPU time.

    python benchmarks/late_labels.py                   # starts Apache Kafka, as the tests do
    python benchmarks/late_labels.py --quix PYTHON     # and Quix Streams' join, see `_quix_join.py`

The same events lie in a topic of four partitions, with or without their labels; where they have none, a
second topic has one label for each event, a second later by its timestamp. The events are days old, so that
all of them are due: each is read twice, scored once and learned once. A worker, `streampair run` in a process
of its own with the state in Kafka, reads all of it; the rate is that from the opening of its lane to the last
commit. Modes alternate. The first rows are what it takes to read the messages and to do nothing with them:
one of each event with its label, or two of each event and one of its label.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _timing
import msgspec
from aiokafka import AIOKafkaProducer
from river import datasets
from streampair_connectors.config import KafkaConfig
from streampair_connectors.config.secrets import draw_key
from streampair_connectors.kafka import create_topics
from streampair_connectors.kafka.consumer import TopicReader
from worker import BROKER, broker, create

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.worker_process import WorkerProcess, fetch

PARTITIONS = 4
DAY = 86_400_000
LEARNERS = {
    "PairOGD": 'class = "streampair.auc.PairOGD"',
    "LogisticRegression": 'class = "river.linear_model.LogisticRegression"\nallow_pickle = true',
}


class Outcome(NamedTuple):
    """Events per second, and CPU time of the worker an event in microseconds."""

    rate: float
    cpu: float | None


async def fill(bootstrap: str, mark: str, count: int) -> list[str]:
    """Write the events with and without labels, and the labels; return the names of the features."""
    settings = {"retention.ms": "-1"}
    topics = [f"{mark}-labelled", f"{mark}-events", f"{mark}-labels"]
    await create_topics(
        KafkaConfig(bootstrap_servers=bootstrap),
        dict.fromkeys(topics, PARTITIONS),
        1,
        settings=dict.fromkeys(topics, settings),
    )
    rows = list(datasets.Phishing())
    begin = round(time.time() * 1000) - 10 * DAY
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, linger_ms=20, max_batch_size=100_000
    ) as producer:
        for number, (x, y) in enumerate(itertools.islice(itertools.cycle(rows), count)):
            key = b"%d" % number
            where: dict[str, Any] = {"key": key, "partition": number % PARTITIONS}
            event = msgspec.json.encode({**x, "y": bool(y)})
            await producer.send(topics[0], event, timestamp_ms=begin + number, **where)
            await producer.send(topics[1], msgspec.json.encode(x), timestamp_ms=begin + number, **where)
            label = msgspec.json.encode({"y": bool(y)})
            await producer.send(topics[2], label, timestamp_ms=begin + number + 1000, **where)
        await producer.flush()
    return sorted(rows[0][0])


def configuration(bootstrap: str, mark: str, app: str, names: list[str], learner: str, late: bool) -> str:
    """The configuration of one worker."""
    labels = f"""[label_input]
topic = "{mark}-labels"
id = "key"
label = "y"
after = "1h"
"""
    return f"""app = "{app}"
metrics.address = "127.0.0.1:0"
[kafka]
bootstrap_servers = "{bootstrap}"
[input]
topic = "{mark}-{"events" if late else "labelled"}"
{"" if late else 'label = "y"'}
features = {json.dumps(names)}
[learner]
{LEARNERS[learner]}
[store]
{'key_file = "store.key"' if "allow_pickle" in LEARNERS[learner] else ""}
{labels if late else ""}
"""


def cpu_seconds(worker: WorkerProcess) -> float:
    """CPU time of a worker so far, of all its threads."""
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def learned(page: str) -> float:
    """Events that were learned, as committed."""
    found = re.findall(r'^streampair_events_total\{[^}]*outcome="learned"[^}]*\} (\S+)$', page, re.M)
    return sum(map(float, found))


def run(bootstrap: str, mark: str, names: list[str], learner: str, late: bool, count: int) -> Outcome:
    """Let a worker learn all events."""
    app = f"{mark}-{time.time_ns()}"
    # The broker stamps scores when they come: it would soon delete those with the times of old events.
    asyncio.run(create(bootstrap, f"{app}-scores", partitions=PARTITIONS, append_time=True))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "app.toml"
        path.write_text(configuration(bootstrap, mark, app, names, learner, late))
        draw_key(path.with_name("store.key"))
        worker = WorkerProcess(path, "--create-topics")
        try:
            page = worker.metrics_url()
            worker.await_log("lane_opened")
            begin, before = time.perf_counter(), cpu_seconds(worker)
            while learned(fetch(page)) < count:
                time.sleep(0.02)
            seconds = time.perf_counter() - begin
            return Outcome(count / seconds, (cpu_seconds(worker) - before) / count * 1e6)
        finally:
            worker.interrupt()


def read_alone(bootstrap: str, topics: list[str], count: int) -> Outcome:
    """Read topics one after the other, as a lane reads them, and do nothing."""

    async def body() -> Outcome:
        begin, before = time.perf_counter(), time.process_time()
        for topic in topics:
            reader = TopicReader(KafkaConfig(bootstrap_servers=bootstrap), topic, PARTITIONS, lambda *_: None)
            await reader.start()
            reader.begin(await reader.offsets_at(0))
            left = count
            while left:
                left -= sum(len(span.records) for span in (await reader.poll(0.1)).values())
            await reader.stop()
        cpu = (time.process_time() - before) / count * 1e6
        return Outcome(count / (time.perf_counter() - begin), cpu)

    return asyncio.run(body())


def quix(python: str, bootstrap: str, mark: str, count: int) -> Outcome:
    """Let Quix Streams join the topics and a model of River learn."""
    script = str(Path(__file__).with_name("_quix_join.py"))
    done = subprocess.run(
        [python, script, bootstrap, f"{mark}-events", f"{mark}-labels", f"{mark}-quix", str(count)],
        capture_output=True,
        text=True,
        check=True,
    )
    return Outcome(float(done.stdout.split()[-1]), None)


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each learner and mode."""
    mark = f"late-{os.getpid()}"
    with broker(options.bootstrap, options.kafka) as bootstrap:
        names = asyncio.run(fill(bootstrap, mark, options.events))
        found: dict[tuple[str, str], list[Outcome]] = {}
        for _ in range(options.rounds):
            for mode, kinds in (("in the event", ["labelled"]), ("late", ["events", "events", "labels"])):
                outcome = read_alone(bootstrap, [f"{mark}-{kind}" for kind in kinds], options.events)
                found.setdefault(("none: read alone", mode), []).append(outcome)
            for learner in options.learners:
                for mode in ("in the event", "late"):
                    outcome = run(bootstrap, mark, names, learner, mode == "late", options.events)
                    found.setdefault((learner, mode), []).append(outcome)
            if options.quix:
                outcome = quix(options.quix, bootstrap, mark, options.quix_events)
                found.setdefault(("LogisticRegression", "Quix Streams' join"), []).append(outcome)
    for (learner, mode), runs in found.items():
        base = found[learner, "in the event"]
        cpu = [each.cpu for each in runs if each.cpu is not None]
        yield {
            "learner": learner,
            "mode": mode,
            "rate": statistics.median(each.rate for each in runs),
            "ratio": statistics.median(r.rate / b.rate for r, b in zip(runs, base, strict=True)),
            "cpu": statistics.median(cpu) if cpu else math.nan,
        }


COLUMNS = [
    ("learner", "learner", "<20"),
    ("labels", "mode", "<20"),
    ("events/s", "rate", ">10,.0f"),
    ("ratio", "ratio", ">7.2f"),
    ("us CPU", "cpu", ">8.1f"),
]


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield f"{options.events:,} events in {PARTITIONS} partitions; medians of {options.rounds} runs in turn"
    yield from _timing.table(COLUMNS, rows)


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        **BROKER,
        "--learners": {"nargs": "+", "default": list(LEARNERS)},
        "--events": {"type": int, "default": 200_000},
        "--rounds": {"type": int, "default": 3},
        "--quix": {"metavar": "PYTHON", "help": "one that has quixstreams and river: compare with that too"},
        "--quix-events": {"type": int, "default": 20_000},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
