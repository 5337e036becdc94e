"""Takeover: from the kill of a worker until the scores of the last partition are back.

    python benchmarks/takeover.py                                  # starts Apache Kafka, as the tests do
    python benchmarks/takeover.py --rate 5000 --rounds 5 --json

Events come at `--rate` a second over 16 partitions, and one lane scores and learns them all, with its state
in Kafka. The worker that has the lane is killed (SIGKILL):

    static member   it has `kafka.group_instance_id`, and is started again at once
    standby         it has none; another worker waits, and the group notices after the session time-out

Reported is the longest time over the partitions from the kill to their next committed score, by the append
times of the scores: the median of the rounds, and the longest. Of a standby the session time-out is
subtracted, as `beyond`.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import _sets
import _timing
import msgspec
from streampair_connectors.config.secrets import draw_key
from topology import configuration, fill, learner, prepare, read, sample, toml
from worker import BROKER, broker, create

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness.worker_process import WorkerProcess, fetch

PARTITIONS = 16
SESSION = 10


async def run(bootstrap: str, kind: str, static: bool, options: Namespace) -> float:
    """Kill the worker once; how many seconds the last partition was without a committed score."""
    data = _sets.load("ijcnn1", _sets.DATA)
    names = [str(name) for name in data.x.columns]
    seconds = 20 if static else 20 + SESSION
    count = int(options.rate * seconds)
    values = [
        msgspec.json.encode({**dict(zip(names, row.tolist(), strict=True)), "y": bool(y)})
        for row, y in zip(data.x.to_numpy(dtype=float), data.y, strict=True)
    ]
    values = [values[number % len(values)] for number in range(count)]
    app = f"takeover-{time.time_ns()}"
    await create(bootstrap, f"{app}-in", f"{app}-scores", partitions=PARTITIONS, append_time=True)
    await create(bootstrap, f"{app}-dead-letters")
    await prepare(bootstrap, f"{app}-scores", PARTITIONS)
    settings = configuration(bootstrap, app, names, learner(kind, count, 1), "application", [])
    settings["kafka"]["session_timeout"] = f"{SESSION}s"
    if static:
        settings["kafka"]["group_instance_id"] = "one"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "app.toml"
        path.write_text(toml(settings))
        draw_key(path.with_name("noise.key"))
        workers = [WorkerProcess(path)]
        try:
            await asyncio.to_thread(workers[0].await_log, "lane_opened")
            if not static:
                workers.append(WorkerProcess(path))
            filling = asyncio.create_task(fill(bootstrap, f"{app}-in", PARTITIONS, values, options.rate))
            await asyncio.sleep(seconds / 3)
            killed = time.time() * 1000
            workers[0].send(signal.SIGKILL)
            if static:
                workers.append(WorkerProcess(path))
            await filling
            url = await asyncio.to_thread(workers[1].metrics_url)
            while sample(fetch(url), "streampair_lag"):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        finally:
            for worker in workers:
                worker.interrupt()
    back: dict[int, int] = {}
    for record in await read(bootstrap, f"{app}-scores", PARTITIONS):
        number = msgspec.json.decode(record.value)["partition"]
        if record.timestamp > killed:
            back[number] = min(back.get(number, record.timestamp), record.timestamp)
    assert len(back) == PARTITIONS
    return (max(back.values()) - killed) / 1000.0


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """A row for each learner and way."""
    with broker(options.bootstrap, options.kafka) as bootstrap:
        for kind in options.learners:
            found: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(options.rounds):
                for static, times in found.items():
                    times.append(asyncio.run(run(bootstrap, kind, static, options)))
            for static, times in found.items():
                wait = 0 if static else SESSION
                row: dict[str, Any] = {"learner": kind, "way": "static member" if static else "standby"}
                row["median"] = round(statistics.median(times), 2)
                row["longest"] = round(max(times), 2)
                row["beyond"] = round(max(times) - wait, 2)
                yield row


COLUMNS = [
    ("learner", "learner", "<15"),
    ("way", "way", "<15"),
    ("median s", "median", ">9.2f"),
    ("longest s", "longest", ">10.2f"),
    ("beyond s", "beyond", ">9.2f"),
]


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield f"{options.rate:g} events a second over {PARTITIONS} partitions, {options.rounds} rounds"
    yield from _timing.table(COLUMNS, rows)


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        **BROKER,
        "--learners": {"nargs": "+", "default": ["PairOGD", "PairFTRL"]},
        "--rate": {"type": float, "default": 1000.0},
        "--rounds": {"type": int, "default": 3},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
