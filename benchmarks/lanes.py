"""Many lanes in one worker: how often it commits, and how soon it is back after a kill -9.

    python benchmarks/lanes.py                    # starts Apache Kafka, as the tests do
    python benchmarks/lanes.py --lanes 1 8 64     # --json for machines, --check: exit code

A worker of its own process with the state in Kafka and a static id; events come for some seconds at a steady
rate, then it is killed and started again, several times. `back` is from the start of the new process until
its first lane is open, `all back` until the last one is: the median and the longest of all kills. The goal is
3 s for all lanes, up to 8 of them. Then the same for one lane whose state has 10 MB: the goal is 5 s.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import _timing
from aiokafka import AIOKafkaProducer
from worker import BROKER, broker, create

GOAL, UP_TO = 3.0, 8
BIG_GOAL, BIG_BYTES = 5.0, 10e6
BIG_FEATURES, BIG_BUFFER = 2000, 450
CONFIG = """app = "lanes{lanes}"
metrics.port = 0
[kafka]
bootstrap_servers = "{bootstrap}"
group_instance_id_env = "BENCH_WORKER"
session_timeout_seconds = 20
[input]
topic = "in{lanes}"
label = "y"
features = {features}
[learner]
class = "streampair.auc.PairOGD"
{options}
"""
SMALL = {"features": ["f0", "f1", "f2"], "options": ""}
BIG = {
    "features": [f"f{i}" for i in range(BIG_FEATURES)],
    "options": f'options.buffer = {{ class = "streampair.buffers.FIFO", size = {BIG_BUFFER} }}',
}


def topics(mark: object) -> tuple[str, str, str]:
    """What an application of `CONFIG` reads and writes."""
    return f"in{mark}", f"lanes{mark}-scores", f"lanes{mark}-dead-letters"


async def produce(bootstrap: str, lanes: int, rate: int, seconds: float) -> None:
    """Events for all partitions in turn, at a steady rate."""
    coin, begin = random.Random(1), time.monotonic()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        for i in range(int(rate * seconds)):
            y = coin.random() < 0.3
            event = {"f0": coin.gauss(0.4 if y else 0.0, 0.5), "f1": coin.random(), "f2": 0.2, "y": y}
            await producer.send(f"in{lanes}", json.dumps(event).encode(), partition=i % lanes)
            if i % 200 == 0:
                await asyncio.sleep(max(begin + i / rate - time.monotonic(), 0.0))


class Worker:
    """`streampair run`, killed and started again; its log in a file."""

    def __init__(self, config: Path) -> None:
        self._config, self._log = config, config.with_suffix(".log")
        self._log.touch()
        self._environment = {**os.environ, "BENCH_WORKER": "a"}
        # As installed: what is imported is compiled once, not at each start.
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def start(self) -> float:
        """Start it, and say when."""
        self._known = len(self._log.read_text())
        command = [sys.executable, "-m", "streampair_connectors", "run", str(self._config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, env=self._environment)
        return time.monotonic()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def said(self, event: str, times: int = 1) -> dict[str, Any]:
        """Wait until it has said so since its last start, that many times."""
        while True:
            lines = self._log.read_text()[self._known :].splitlines()
            found = [line for line in lines if line.endswith("}") and f'"event":"{event}"' in line]
            if len(found) >= times:
                return json.loads(found[-1])  # type: ignore[no-any-return]
            if self._process.poll() is not None:
                raise SystemExit("\n".join(lines[-5:]))
            time.sleep(0.01)

    def kill(self, number: int) -> None:
        """Send a signal, and wait for the end."""
        self._process.send_signal(number)
        self._process.wait()

    def back(self, lanes: int) -> tuple[float, float]:
        """Kill it and start it again: seconds until its first lane is open, and all of them are."""
        self.kill(signal.SIGKILL)
        start = self.start()
        self.said("lane_opened")
        first = time.monotonic() - start
        self.said("lane_opened", lanes)
        return first, time.monotonic() - start


def value_of(url: str, series: str) -> float:
    """The sum of a series of the worker's."""
    text = urllib.request.urlopen(url).read().decode()
    return sum(map(float, re.findall(rf"^{series}(?:\{{[^}}]*\}})? (\S+)", text, re.M)))


def commits(url: str) -> tuple[float, float]:
    """How many there were, and what they took."""
    return value_of(url, "streampair_commit_seconds_count"), value_of(url, "streampair_commit_seconds_sum")


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """One row for each number of lanes."""
    with tempfile.TemporaryDirectory() as folder, broker(options.bootstrap, options.kafka) as bootstrap:
        for lanes in options.lanes:
            config = Path(folder) / f"{lanes}.toml"
            config.write_text(CONFIG.format(lanes=lanes, bootstrap=bootstrap, **SMALL))
            asyncio.run(create(bootstrap, *topics(lanes), partitions=lanes))
            worker = Worker(config)
            worker.start()
            worker.said("lane_opened", lanes)
            url = worker.said("started")["metrics"]
            first, first_back, all_back = commits(url), [], []
            begin = time.monotonic()
            asyncio.run(produce(bootstrap, lanes, options.rate, options.seconds))
            took, last = time.monotonic() - begin, commits(url)
            for _ in range(options.kills):
                asyncio.run(produce(bootstrap, lanes, options.rate, 2.0))
                one, every = worker.back(lanes)
                first_back.append(one)
                all_back.append(every)
            worker.kill(signal.SIGTERM)
            count = max(last[0] - first[0], 1)
            row = {
                "lanes": lanes,
                "interval": took / count,
                "commit": (last[1] - first[1]) / count,
                "back": statistics.median(first_back),
                "all_back": statistics.median(all_back),
                "longest": max(all_back),
            }
            yield _timing.judged(row, "all_back", most=GOAL) if lanes <= UP_TO else row
        yield _timing.judged(big(bootstrap, Path(folder), options.kills), "back", most=BIG_GOAL)


async def produce_big(bootstrap: str, name: str) -> None:
    """As many events as the buffer holds, and some more."""
    coin = random.Random(1)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=2**20) as producer:
        for _ in range(BIG_BUFFER + 60):
            event = {feature: coin.gauss(0, 1) for feature in BIG["features"]}
            await producer.send(name, json.dumps({**event, "y": coin.random() < 0.5}).encode(), partition=0)


def big(bootstrap: str, folder: Path, kills: int) -> _timing.Row:
    """A lane whose state has 10 MB: killed once its snapshot has them."""
    config = folder / "big.toml"
    config.write_text(CONFIG.format(lanes="big", bootstrap=bootstrap, **BIG))
    asyncio.run(create(bootstrap, *topics("big")))
    asyncio.run(produce_big(bootstrap, "inbig"))
    worker = Worker(config)
    worker.start()
    worker.said("lane_opened")
    url = worker.said("started")["metrics"]
    while (size := value_of(url, "streampair_state_bytes")) < BIG_BYTES:
        time.sleep(0.2)
    back = [worker.back(1)[0] for _ in range(kills)]
    worker.kill(signal.SIGTERM)
    return {"megabytes": size / 1e6, "back": statistics.median(back), "longest": max(back)}


COLUMNS = [
    ("lanes", "lanes", ">5d"),
    ("commit every s", "interval", ">16.2f"),
    ("taking s", "commit", ">10.3f"),
    ("back s", "back", ">8.1f"),
    ("all back s", "all_back", ">12.1f"),
    ("longest", "longest", ">9.1f"),
]


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    yield f"{options.rate:,} events/s over all lanes; {options.kills} kills each"
    found = list(rows)
    yield from _timing.table(COLUMNS, found[:-1], goals=True)
    row = found[-1]
    yield (
        f"a lane with {row['megabytes']:.1f} MB of state: back after {row['back']:.1f} s, "
        f"longest {row['longest']:.1f}   {row['goal']}{'' if row['met'] else '  missed'}"
    )


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        **BROKER,
        "--lanes": {"type": int, "nargs": "+", "default": [1, 8, 64, 256]},
        "--rate": {"type": int, "default": 4000},
        "--seconds": {"type": float, "default": 15.0},
        "--kills": {"type": int, "default": 5},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags))
