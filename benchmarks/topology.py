"""One lane that scores, with and without scorers, on few and many partitions: AUC, rate, CPU and latency.

    python benchmarks/topology.py                                  # starts Apache Kafka, as the tests do
    python benchmarks/topology.py --sets letter --learners Forest --partitions 1 16   # --json for machines
    python benchmarks/topology.py --rate 5000 --events 60000 --modes inline parallel

The same shuffled events, repeated where a set has fewer, are in topics of one and of more partitions, with
LogAppendTime. Workers, each `streampair run` in a process of its own with the state in Kafka, read them to
their end:

    inline        one worker, which scores and learns
    parallel      one worker that learns, and `--scorers` that score with its newest model

Modes alternate, and each round has another order of the events, since the AUC of a learner depends on the
order by more than on the mode. Workers start on an empty topic and are suspended (SIGSTOP) while it is
filled, so that neither their start nor the filling is measured. Reported are the AUC of the committed
scores over the second half of the events: the mean, and with `--rounds` its standard error; events per
second, from the moment at which the workers go on to the last score, as a ratio to the first mode in one
partition of the same round; and the CPU time of the workers an event, of those that score alone in
brackets. Where the broker shares the processors, the rate contains its work too, and the CPU time does not.
With `--rate R` events come at R a second to workers that wait for them, and the time from the append of an
event to that of its score is reported.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import _sets
import _timing
import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from sklearn.metrics import roc_auc_score
from streampair_connectors.config.secrets import draw_key
from worker import BROKER, broker, create

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.worker_process import WorkerProcess, fetch

MODES = ("inline", "parallel")


def learner(name: str, count: int) -> dict[str, Any]:
    """The table [learner]; the horizon of a private one is all events."""
    table: dict[str, Any] = {"class": f"streampair.auc.{name}"}
    if name in ("PairFTRL", "PrivateForest"):
        table["options"] = {"epsilon": 1.0, "delta": 1.0 / count, "horizon": count}
        table["noise_key_file"] = "noise.key"
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


async def prepare(bootstrap: str, topic: str, partitions: int) -> None:
    """Write to each partition until the broker has a page of its index: each new page costs milliseconds."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for _ in range(2):  # a batch is indexed when more than 4 kB were written before it
            places = [(topic, p) for p in range(partitions)]
            await asyncio.gather(*[producer.send_and_wait(t, b" " * 5000, partition=p) for t, p in places])


async def read(bootstrap: str, topic: str, partitions: int) -> list[Any]:
    """The committed records of a topic, but for those of `prepare`."""
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
                found += [record for record in records if record.value.strip()]
    return found


def configuration(
    bootstrap: str, app: str, names: list[str], table: dict[str, Any], mode: str, roles: list[str]
) -> dict[str, Any]:
    """The configuration of one worker."""
    settings: dict[str, Any] = {
        "app": app,
        # Longer than workers are suspended.
        "kafka": {"bootstrap_servers": bootstrap, "session_timeout": "120s"},
        "metrics": {"address": "127.0.0.1:0"},
        "input": {"topic": f"{app}-in", "label": "y", "features": names},
        "learner": dict(table),
    }
    if mode == "parallel":
        settings["learner"]["scoring"] = "parallel"
        settings["worker"] = {"roles": roles}
    return settings


def cpu_seconds(worker: WorkerProcess) -> float:
    """CPU time of a worker so far, of all its threads."""
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sample(page: str, name: str) -> float:
    """Sum of a series on a page of metrics."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.M))


class Workers:
    """The workers of one run.

    Parameters
    ----------
    directory
        For their configurations.
    """

    def __init__(
        self,
        directory: Path,
        bootstrap: str,
        app: str,
        names: list[str],
        table: dict[str, Any],
        mode: str,
        scorers: int,
    ) -> None:
        self._app = app
        roles = [["learn"], *[["score"]] * scorers] if mode == "parallel" else [["learn"]]
        self.all: list[WorkerProcess] = []
        draw_key(directory / "noise.key")
        for number, role in enumerate(roles):
            path = directory / f"{number}.toml"
            path.write_text(toml(configuration(bootstrap, app, names, table, mode, role)))
            self.all.append(WorkerProcess(path))
        self._pages = [worker.metrics_url() for worker in self.all]
        self.scoring = self.all[1:] or self.all

    def ready(self) -> bool:
        """Whether all are running."""
        return all(self._running(page) for page in self._pages)

    def _running(self, page: str) -> bool:
        return sample(fetch(page), r'streampair_health\{app="[^"]*",state="running"\}') >= 1.0

    def scored(self) -> float:
        """Events whose scores are committed."""
        if len(self.all) == 1:
            return sample(fetch(self._pages[0]), "streampair_events_total")
        return sum(sample(fetch(page), "streampair_scored_events_total") for page in self._pages[1:])

    def send(self, number: int) -> None:
        """Send all a signal."""
        for worker in self.all:
            worker.send(number)

    def cpu_seconds(self) -> list[float]:
        """CPU time of each so far."""
        return list(map(cpu_seconds, self.all))

    def stop(self) -> None:
        """Stop all."""
        for worker in self.all:
            worker.interrupt()


def toml(settings: dict[str, Any]) -> str:
    """A configuration as TOML."""
    lines = [f"app = {json.dumps(settings['app'])}"]
    for name, table in settings.items():
        if name != "app":
            lines += [f"[{name}]", *(f"{key} = {inline(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def inline(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


class Outcome(NamedTuple):
    """What one run gave; CPU in microseconds an event, of all workers and of those that score."""

    auc: float
    rate: float
    latencies: list[float]
    cpu: tuple[float, float]


async def run(
    bootstrap: str,
    mark: str,
    partitions: int,
    mode: str,
    table: dict[str, Any],
    data: _sets.Set,
    options: Namespace,
) -> Outcome:
    """Let workers read the events, and look at their scores."""
    rate: float = options.rate
    names = [str(name) for name in data.x.columns]
    rows = data.x.to_numpy(dtype=float)
    values = [
        msgspec.json.encode({**dict(zip(names, row.tolist(), strict=True)), "y": bool(y)})
        for row, y in zip(rows, data.y, strict=True)
    ]
    app = f"{mark}-{time.time_ns()}"
    source, target = f"{app}-in", f"{app}-scores"
    await create(bootstrap, source, target, partitions=partitions, append_time=True)
    await create(bootstrap, f"{app}-dead-letters")
    await prepare(bootstrap, target, partitions)
    with tempfile.TemporaryDirectory() as directory:
        workers = Workers(Path(directory), bootstrap, app, names, table, mode, options.scorers)
        try:
            while not await asyncio.to_thread(workers.ready):  # noqa: ASYNC110  # there is no event
                await asyncio.sleep(0.2)
            before = workers.cpu_seconds()
            if not rate:
                workers.send(signal.SIGSTOP)
            begin = time.time()
            await fill(bootstrap, source, partitions, values, rate)
            if not rate:
                begin = time.time()
                workers.send(signal.SIGCONT)
            while await asyncio.to_thread(workers.scored) < len(values):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            taken = [after - start for after, start in zip(workers.cpu_seconds(), before, strict=True)]
            cpu = sum(taken) / len(values) * 1e6, sum(taken[1:] or taken) / len(values) * 1e6
        finally:
            workers.stop()
    scores: dict[tuple[int, int], tuple[float, int]] = {}  # and when they were appended
    for record in await read(bootstrap, target, partitions):
        row = msgspec.json.decode(record.value)
        scores[row["partition"], row["offset"]] = row["score"], record.timestamp
    half = len(values) // 2
    places = [(n % partitions, n // partitions) for n in range(len(values))]
    half_scores = np.array([scores[place][0] for place in places[half:]])
    auc = float(roc_auc_score(np.asarray(data.y[half:], dtype=bool), half_scores))
    latencies: list[float] = []
    if rate:
        appended = {(e.partition, e.offset): e.timestamp for e in await read(bootstrap, source, partitions)}
        latencies = [(scores[place][1] - appended[place]) / 1000.0 for place in places[half:]]
    seconds = max(when for _, when in scores.values()) / 1000.0 - begin
    return Outcome(auc, len(values) / seconds, latencies, cpu)


def shuffled(data: _sets.Set, count: int, seed: int) -> _sets.Set:
    """So many records of a set in one order; all of them again, in another, where it has fewer."""
    rng = np.random.default_rng(1 + seed)
    repeats = [rng.permutation(len(data.y)) for _ in range(-(-count // len(data.y)))]
    order = np.concatenate(repeats)[:count]
    return data._replace(x=data.x.iloc[order], y=np.asarray(data.y)[order])


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each set, learner, number of partitions and mode."""
    mark = f"topology-{os.getpid()}"
    with broker(options.bootstrap, options.kafka) as bootstrap:
        for name in options.sets:
            data = _sets.load(name, _sets.DATA)
            count = options.events
            for kind in options.learners:
                found: dict[tuple[int, str], list[Outcome]] = {}
                for number in range(options.rounds):
                    events = shuffled(data, count, number)
                    for partitions in options.partitions:
                        for mode in options.modes:
                            table = learner(kind, count)
                            found.setdefault((partitions, mode), []).append(
                                asyncio.run(run(bootstrap, mark, partitions, mode, table, events, options))
                            )
                base = [each.rate for each in found[options.partitions[0], options.modes[0]]]
                for (partitions, mode), runs in found.items():
                    ratio = statistics.median(r.rate / b for r, b in zip(runs, base, strict=True))
                    waits = sorted(wait for each in runs for wait in each.latencies)
                    cpu = [each.cpu for each in runs]
                    aucs = [each.auc for each in runs]
                    rate = statistics.median(each.rate for each in runs)
                    yield {
                        "set": name,
                        "learner": kind,
                        "partitions": partitions,
                        "mode": mode,
                        "auc": round(statistics.mean(aucs), 4),
                        "error": round(statistics.stdev(aucs) / len(aucs) ** 0.5, 4) if aucs[1:] else None,
                        "rate": round(rate),
                        "ratio": round(ratio, 2),
                        "p50": round(waits[len(waits) // 2], 3) if waits else None,
                        "p99": round(waits[int(len(waits) * 0.99)], 3) if waits else None,
                        "cpu": round(statistics.median(every for every, _ in cpu), 1),
                        "scoring_cpu": round(statistics.median(s for _, s in cpu), 1),
                    }


COLUMNS = [
    ("set", "set", "<10"),
    ("learner", "learner", "<15"),
    ("partitions", "partitions", ">10d"),
    ("  mode", "where", "<14"),
    ("AUC", "auc", ">7.4f"),
    ("+-", "error", ">8.4f"),
    ("rate", "ratio", ">7.2f"),
    ("us CPU", "cpu", ">8.1f"),
    ("(score)", "scoring_cpu", ">9.1f"),
]
WAITS = [("p50 s", "p50", ">8.3f"), ("p99 s", "p99", ">8.3f")]


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    pace = f"{options.rate:g} a second" if options.rate else "from a backlog"
    yield f"{options.events:,} events, {pace}; {options.rounds} rounds, mean AUC, medians of the rest"
    columns = [c for c in COLUMNS + (WAITS if options.rate else []) if c[0] != "+-" or options.rounds > 1]
    yield from _timing.table(columns, ({**row, "where": f"  {row['mode']}"} for row in rows))


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        **BROKER,
        "--sets": {"nargs": "+", "default": ["ijcnn1", "letter"]},
        "--learners": {"nargs": "+", "default": ["PairOGD", "Forest", "PairFTRL", "PrivateForest"]},
        "--partitions": {"type": int, "nargs": "+", "default": [1, 16, 64]},
        "--events": {"type": int, "default": 100_000},
        "--rate": {"type": float, "default": 0.0},
        "--rounds": {"type": int, "default": 1},
        "--modes": {"nargs": "+", "default": list(MODES), "choices": MODES},
        "--scorers": {"type": int, "default": 2},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
