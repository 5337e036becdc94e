"""kill -9, again and again: two workers on Apache Kafka, one killed every few seconds, and what is left.

    python benchmarks/kill_loop.py                # starts Apache Kafka, as the tests do
    python benchmarks/kill_loop.py --kills 20

Events go to four partitions of a topic while two `streampair run` work, the state in Kafka, the learner
private. While they come, one worker is killed and started again. In the end each event must have one score
for readers of committed records, and the account no fork. The exit code says whether that is so.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from streampair_connectors.config import Config, load_config
from streampair_connectors.kafka import Partition
from streampair_connectors.stores import TopicStore
from worker import broker, create

from streampair.engine.recovery import RecoveredState
from streampair.engine.wal import Chain

PARTITIONS = 4
TOPICS = ("events", "loop-scores", "loop-dead-letters")
ERROR = '"level":"error"'
FEATURES = ["f0", "f1", "f2"]
CONFIG = """app = "loop"
metrics.port = 0
[kafka]
bootstrap_servers = "{bootstrap}"
session_timeout_seconds = 6
[input]
topic = "events"
label = "y"
features = ["f0", "f1", "f2"]
[learner]
class = "streampair.auc.PairFTRL"
options = {{ epsilon = 1.0, delta = 1e-6 }}
noise_key_file = "noise.key"
"""


async def produce(bootstrap: str, count: int, seed: int, seconds: float) -> None:
    """`count` events for each partition, spread over some seconds."""
    coin, begin = random.Random(seed), time.monotonic()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        for i in range(count * PARTITIONS):
            y = coin.random() < 0.3
            x = {name: round(coin.gauss(0.4 if y else -0.2, 0.5), 4) for name in FEATURES}
            await producer.send("events", json.dumps({**x, "y": y}).encode(), partition=i % PARTITIONS)
            if i % 100 == 0:
                due = begin + seconds * i / (count * PARTITIONS)
                await asyncio.sleep(max(due - time.monotonic(), 0.0))


async def scores(bootstrap: str, isolation: str) -> collections.Counter[tuple[int, int]]:
    """How often each event has a score."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
    found: collections.Counter[tuple[int, int]] = collections.Counter()
    async with consumer:
        partitions = [TopicPartition("loop-scores", p) for p in range(PARTITIONS)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(p) < ends[p] for p in partitions]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    row = json.loads(record.value)
                    found[row["partition"], row["offset"]] += 1
    return found


async def charged(config: Config) -> list[int]:
    """Forks by lane, from the log; nobody may be running."""
    store = TopicStore(config, partitions=PARTITIONS, private=True)
    found = []
    for partition in range(PARTITIONS):
        lane = await store.open(Partition("events", partition), {partition: 0})
        known = RecoveredState.of(Chain.peek(await lane.read()))
        assert known is not None
        assert known.ledger is not None
        found.append(known.ledger["forks"] + known.ledger["pending"])
        await lane.close()
    return found


class Workers:
    """Two processes of `streampair run`."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.logs = [config.with_name(f"worker-{i}.log") for i in (0, 1)]
        self.starts = [0, 0]
        self.running = [self._start(i) for i in (0, 1)]

    def _start(self, i: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "streampair_connectors", "run", str(self.config)]
        self.starts[i] += 1
        with self.logs[i].open("ab") as log:
            return subprocess.Popen(command, stderr=log, stdout=log)

    def kill(self, i: int) -> None:
        """kill -9, and start again."""
        self.running[i].send_signal(signal.SIGKILL)
        self.running[i].wait()
        self.running[i] = self._start(i)

    def up(self) -> bool:
        """Whether both have said that they run: before that, nobody hears a SIGTERM."""
        said = [log.read_text().count('"event":"started"') for log in self.logs]
        return said == self.starts

    def stop(self) -> list[int]:
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        return [process.wait(60) for process in self.running]


async def round_of(
    bootstrap: str, workers: Workers, number: int, victim: int, share: float, seconds: float
) -> None:
    """2,000 events for each partition in some seconds; after a share of them, a worker is killed."""
    sending = asyncio.create_task(produce(bootstrap, 2000, number, seconds))
    await asyncio.sleep(share * seconds)
    await asyncio.to_thread(workers.kill, victim)
    await sending


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bootstrap", help="host:port of a broker; without it, one is started")
    parser.add_argument("--kafka", default="4.x", help="version to start: 3.9 or 4.x")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=8.0, help="from one kill to the next")
    options = parser.parse_args()
    coin, sent = random.Random(1), 0
    with tempfile.TemporaryDirectory() as folder, broker(options.bootstrap, options.kafka) as bootstrap:
        config = Path(folder) / "loop.toml"
        config.write_text(CONFIG.format(bootstrap=bootstrap))
        key = config.with_name("noise.key")
        key.touch(0o600)
        key.write_text(os.urandom(32).hex())
        os.chdir(folder)
        asyncio.run(create(bootstrap, *TOPICS, partitions=PARTITIONS))
        workers = Workers(config)
        time.sleep(options.seconds)
        for kill in range(1, options.kills + 1):
            victim = coin.randrange(2)
            asyncio.run(round_of(bootstrap, workers, kill, victim, coin.uniform(0.1, 1.0), options.seconds))
            sent += 2000 * PARTITIONS
            done = sum(asyncio.run(scores(bootstrap, "read_committed")).values())
            progress = f"{sent:6} events sent, {done:6} scores committed"
            print(f"kill -9 {kill:2}: worker {victim}; {progress}", flush=True)
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            committed = asyncio.run(scores(bootstrap, "read_committed"))
            if len(committed) == sent and workers.up():
                break
            time.sleep(1.0)
        codes = workers.stop()
        committed = asyncio.run(scores(bootstrap, "read_committed"))
        seen = asyncio.run(scores(bootstrap, "read_uncommitted"))
        twice = sum(n > 1 for n in committed.values())
        again = sum(n > 1 for n in seen.values())
        forks = asyncio.run(charged(load_config(config)))
        print(f"{sent} events: {len(committed)} have a score, {twice} of them two (committed records)")
        print(f"whoever reads uncommitted records saw {again} twice")
        print(f"forks charged to the budget, by lane: {forks}; exit codes of the stops: {codes}")
        errors = [line for log in workers.logs for line in log.read_text().splitlines() if ERROR in line]
        print(*errors[:3], sep="\n", end="")
    return 0 if len(committed) == sent and not twice and not errors else 1


if __name__ == "__main__":
    sys.exit(main())
