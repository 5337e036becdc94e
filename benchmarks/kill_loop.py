"""kill -9, again and again: two workers on Apache Kafka, one killed every few seconds, and what is left.

    python benchmarks/kill_loop.py                                      # starts Apache Kafka, as the tests do
    python benchmarks/kill_loop.py --events 10000000 --rate 20000 --partitions 16 --seconds 60 --grow 2
    python benchmarks/kill_loop.py --scoring parallel --learner PairOGD

Events go to the partitions of a topic while two `streampair run` work, the state in Kafka. While they come,
one worker after the other is killed and started again, and with `--grow` partitions are added. In the end
each event must have one score for readers of committed records, the model must have taken each event once,
and the account of a private learner must have no fork. Memory and open files of the workers, and records in
the internal topics, are printed at each kill: they must not grow. The exit code says whether all that is so.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from streampair_connectors.config import Config, KafkaConfig, load_config
from streampair_connectors.kafka import Partition, RecordReader
from streampair_connectors.kafka.admin import add_partitions, describe_topics
from streampair_connectors.stores import TopicStore
from worker import broker, create

from streampair.engine.recovery import RecoveredState
from streampair.engine.wal import WHOLE_TOPIC, Chain

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
[output]
topic = "loop-scores"
[learner]
class = "streampair.auc.{learner}"
scoring = "{scoring}"
"""
PRIVATE = """options = { epsilon = 1.0, delta = 1e-6 }
noise_key_file = "noise.key"
"""


def payloads() -> list[bytes]:
    """Some events, which are sent again and again."""
    coin, made = random.Random(1), []
    for _ in range(1000):
        y = coin.random() < 0.3
        x = {name: round(coin.gauss(0.4 if y else -0.2, 0.5), 4) for name in FEATURES}
        made.append(json.dumps({**x, "y": y}).encode())
    return made


async def send(
    producer: Any, topic: str, partition: int, values: Sequence[bytes], keys: Iterable[bytes | None] = ()
) -> Any:
    """Send values as one batch, with a key for each or none; returns the future of its acknowledgement."""
    batch = producer.create_batch()
    for value, key in itertools.zip_longest(values, keys):
        batch.append(key=key, value=value, timestamp=None)
    batch.close()
    return await producer.send_batch(batch, topic, partition=partition)


class Feed:
    """Sends events at a rate to all partitions in turn.

    Attributes
    ----------
    sent
        Number of acknowledged events of each partition.
    """

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._values = payloads()
        self.sent = [0] * partitions

    async def run(self, count: int, rate: float) -> None:
        """Send so many events."""
        begin, done = time.monotonic(), 0
        async with AIOKafkaProducer(bootstrap_servers=self._bootstrap, enable_idempotence=True) as producer:
            while done < count:
                size = min(200, count - done)
                number = done // 200 % len(self.sent)
                await send(producer, "events", number, [self._values[(done + i) % 1000] for i in range(size)])
                self.sent[number] += size
                done += size
                await asyncio.sleep(max(begin + done / rate - time.monotonic(), 0.0))
            await producer.flush()

    @property
    def total(self) -> int:
        """Events sent so far."""
        return sum(self.sent)


async def scores(bootstrap: str, sent: list[int], isolation: str) -> list[Any]:
    """How often each event has a score: an array for each partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
    found = [np.zeros(count, dtype=np.uint8) for count in sent]
    decode = msgspec.json.Decoder(Score).decode
    async with consumer:
        partitions = [TopicPartition("loop-scores", 0)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(p) < ends[p] for p in partitions]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                for record in records:
                    row = decode(record.value)
                    found[row.partition][row.offset] += 1
    return found


class Score(msgspec.Struct):
    """The place of a score."""

    partition: int
    offset: int


async def lane(config: Config, partitions: int) -> tuple[int, int, int]:
    """Records that the lane has taken, those that were due, and forks charged; nobody may be running."""
    store = TopicStore(config, partitions=1, private=True)
    topic = config.input.topic
    opened = await store.open(Partition(topic, WHOLE_TOPIC), dict.fromkeys(range(partitions), 0))
    known = RecoveredState.of(Chain.peek(await opened.read()))
    await opened.close()
    assert known is not None
    forks = 0 if known.ledger is None else known.ledger["forks"] + known.ledger["pending"]
    due = 0 if known.source is None else sum(each.next_offset for each in known.source.due)
    return 0 if known.tip is None else known.tip.seen, due, forks


async def sizes(settings: KafkaConfig, names: list[str]) -> list[int]:
    """Offsets between begin and end of the first partition of topics."""
    lookup = RecordReader(settings)
    known = await describe_topics(settings)
    try:
        names = [name for name in names if name in known]  # a worker makes them at its start
        spans = [(await lookup.spans([Partition(name, 0)]))[0] for name in names]
    finally:
        await lookup.stop()
    return [end - start for start, end in spans]


class Workers:
    """Two processes of `streampair run`."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.logs = [config.with_name(f"worker-{i}.log") for i in (0, 1)]
        self._begin = [0, 0]  # of the logs of the processes that run
        self.running = [self._start(i) for i in (0, 1)]

    def _start(self, i: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "streampair_connectors", "run", str(self.config)]
        with self.logs[i].open("ab") as log:
            self._begin[i] = log.tell()
            return subprocess.Popen(command, stderr=log, stdout=log)

    def kill(self, i: int) -> None:
        """kill -9, and start again."""
        self._restart(i, signal.SIGKILL)

    def rejoin(self, i: int) -> None:
        """Stop cleanly, which leaves the group, and start again."""
        self._restart(i, signal.SIGTERM)

    def _restart(self, i: int, number: int) -> None:
        self.running[i].send_signal(number)
        self.running[i].wait()
        self.running[i] = self._start(i)

    def up(self) -> bool:
        """Whether both have said that they run: before that, nobody hears a SIGTERM."""
        logs = zip(self.logs, self._begin, strict=True)
        return all(b'"event":"started"' in log.read_bytes()[begin:] for log, begin in logs)

    def rss(self, i: int) -> int:
        """Memory of a worker in MB."""
        pages = int(Path(f"/proc/{self.running[i].pid}/statm").read_text().split()[1])
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)

    def files(self, i: int) -> int:
        """Open files of a worker."""
        return len(list(Path(f"/proc/{self.running[i].pid}/fd").iterdir()))

    def end(self) -> None:
        """End what still runs."""
        for process in self.running:
            process.kill()

    def stop(self) -> list[int]:
        """Stop both; their exit codes."""
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        return [process.wait(60) for process in self.running]


async def attack(options: argparse.Namespace, workers: Workers, feed: Feed, config: Config) -> None:
    """Send the events, and kill a worker from time to time."""
    settings = config.require_kafka()
    internal = [config.log_topic, *([config.model_topic] if config.model_topic else [])]
    coin, kills, grown = random.Random(1), 0, 0
    share = options.events // (options.grow + 1)
    for stage in range(options.grow + 1):
        if stage:
            grown += 1
            await add_partitions(settings, "events", len(feed.sent) + 2)
            feed.sent += [0, 0]
            print(f"{len(feed.sent)} partitions", flush=True)
        sending = asyncio.create_task(feed.run(share, options.rate))
        while not sending.done():
            await asyncio.wait({sending}, timeout=options.seconds * coin.uniform(0.5, 1.5))
            if sending.done():
                break
            victim, kills = coin.randrange(2), kills + 1
            weights = [f"{workers.rss(i)} MB, {workers.files(i)} files" for i in (0, 1)]
            await asyncio.to_thread(workers.kill, victim)
            kept = await sizes(settings, internal)
            print(
                f"kill -9 {kills:3}: worker {victim}; {feed.total:9,} events sent; workers "
                f"{' and '.join(weights)}; offsets in {' and '.join(internal)}: {kept}",
                flush=True,
            )
        sending.result()


def judge(options: argparse.Namespace, workers: Workers, feed: Feed, config: Config) -> int:
    """Attack the workers, and say what is left: the exit code."""
    asyncio.run(attack(options, workers, feed, config))
    deadline = time.monotonic() + 180
    while True:
        committed = asyncio.run(scores(config.require_kafka().bootstrap_servers, feed.sent, "read_committed"))
        missing = sum(int((found == 0).sum()) for found in committed)
        if (not missing and workers.up()) or time.monotonic() > deadline:
            break
        time.sleep(2.0)
    time.sleep(2.0)  # the lane may be behind scorers
    codes = workers.stop()
    committed = asyncio.run(scores(config.require_kafka().bootstrap_servers, feed.sent, "read_committed"))
    missing = sum(int((found == 0).sum()) for found in committed)
    twice = sum(int((found > 1).sum()) for found in committed)
    seen, _, forks = asyncio.run(lane(config, len(feed.sent)))
    print(f"{feed.total:,} events: {missing} have no score, {twice} have two (committed records)")
    print(f"the model has taken {seen:,}; forks charged: {forks}; exit codes of the stops: {codes}")
    errors = [line for log in workers.logs for line in log.read_text().splitlines() if ERROR in line]
    print(*errors[:3], sep="\n", end="")
    return 0 if not missing and not twice and not errors and seen == feed.total and not forks else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bootstrap", help="host:port of a broker; without it, one is started")
    parser.add_argument("--kafka", default="4.x", help="version to start: 3.9 or 4.x")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=1000.0, help="events a second")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0, help="from one kill to the next, about")
    parser.add_argument("--grow", type=int, default=0, help="how often two partitions are added")
    parser.add_argument("--learner", default="PairFTRL")
    parser.add_argument("--scoring", default="inline", choices=["inline", "parallel"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, broker(options.bootstrap, options.kafka) as bootstrap:
        path = Path(folder) / "loop.toml"
        text = CONFIG.format(bootstrap=bootstrap, learner=options.learner, scoring=options.scoring)
        path.write_text(text + (PRIVATE if options.learner in ("PairFTRL", "PrivateForest") else ""))
        key = path.with_name("noise.key")
        key.touch(0o600)
        key.write_text(os.urandom(32).hex())
        os.chdir(folder)
        config = load_config(path)
        asyncio.run(create(bootstrap, "events", partitions=options.partitions, append_time=True))
        asyncio.run(create(bootstrap, "loop-scores", "loop-dead-letters"))
        workers, feed = Workers(path), Feed(bootstrap, options.partitions)
        try:
            return judge(options, workers, feed, config)
        finally:
            workers.end()


if __name__ == "__main__":
    sys.exit(main())
