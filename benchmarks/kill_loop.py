"""kill -9, again and again: two workers on Apache Kafka, one killed every few seconds, and what is left.

    python benchmarks/kill_loop.py                                      # starts Apache Kafka, as the tests do
    python benchmarks/kill_loop.py --events 10000000 --rate 20000 --partitions 16 --seconds 60 --grow 2
    python benchmarks/kill_loop.py --scoring parallel --learner PairOGD
    python benchmarks/kill_loop.py --rounds 30 --kafka 3.9              # the broker dies too, with a backlog

Events go to the partitions of a topic while two `streampair run` work, the state in Kafka. While they come,
one worker after the other is killed and started again, and with `--grow` partitions are added.

With `--rounds` each round sends a burst, waits until a part of it is scored, and kills the broker while a
member joins: one worker is started, restarted or killed shortly before or after. The broker is started again
after a pause. Moments are drawn from a seed.

In the end the topics themselves are read by another client (librdkafka): each event must have one score for
readers of committed records, the model must have taken each event once, and the account of a private learner
must have no fork. Memory and open files of the workers, and records in the internal topics, are printed at
each kill: they must not grow. The exit code says whether all that is so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import msgspec
import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from streampair_connectors.config import Config, KafkaConfig, load_config
from streampair_connectors.kafka import Partition, RecordReader
from streampair_connectors.kafka.admin import describe_topics
from streampair_connectors.stores import TopicStore
from worker import create, kafka

from streampair.engine.recovery import RecoveredState
from streampair.engine.wal import Chain

ERROR = '"level":"error"'
_JOIN_SECONDS = 7.0  # from the start of a worker until it has joined, or a dead one has left, and some
_STUCK_SECONDS = 120.0  # in which a backlog ends, also on a busy machine
FEATURES = ["f0", "f1", "f2"]
CONFIG = """app = "loop"
metrics.address = "127.0.0.1:0"
[kafka]
bootstrap_servers = "{bootstrap}"
session_timeout = "6s"
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


def read(bootstrap: str, topic: str, isolation: str = "read_committed") -> Iterator[Any]:
    """All records of a topic, by librdkafka: the client of the workers does not judge itself."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "enable.auto.commit": False,
        "isolation.level": isolation,
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(settings)
    try:
        known = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        places = [confluent_kafka.TopicPartition(topic, number, 0) for number in known]
        consumer.assign(places)
        ended: set[int] = set()
        while len(ended) < len(places):
            for record in consumer.consume(1000, timeout=30):
                if record.error() is None:
                    yield record
                elif record.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    ended.add(record.partition())
                else:
                    raise confluent_kafka.KafkaException(record.error())
    finally:
        consumer.close()


def scores(bootstrap: str, sent: Sequence[int]) -> list[Any]:
    """How often each event has a committed score: an array for each partition."""
    found = [np.zeros(count, dtype=np.uint8) for count in sent]
    decode = msgspec.json.Decoder(Score).decode
    for record in read(bootstrap, "loop-scores"):
        row = decode(record.value())
        found[row.partition][row.offset] += 1
    return found


def events(bootstrap: str, partitions: int) -> list[int]:
    """Number of events in each partition, as the topic has them: their offsets have no gap."""
    found = [0] * partitions
    for record in read(bootstrap, "events"):
        if record.offset() != found[record.partition()]:
            raise RuntimeError(f"events-{record.partition()} has no offset {found[record.partition()]}")
        found[record.partition()] += 1
    return found


class Score(msgspec.Struct):
    """The place of a score."""

    partition: int
    offset: int


async def lane(config: Config, partitions: int) -> tuple[int, int, int]:
    """Records that the lane has taken, those that were due, and forks charged; nobody may be running."""
    store = TopicStore(config)
    opened = await store.open(dict.fromkeys(range(partitions), 0))
    known = RecoveredState.of(Chain.peek(await opened.read()))
    await opened.close()
    assert known is not None
    forks = 0 if known.ledger is None else known.ledger["forks"] + known.ledger["pending"]
    due = 0 if known.source is None else sum(each.next_offset for each in known.source.due)
    return 0 if known.tip is None else known.tip.seen, due, forks


def start_failed(log: str) -> bool:
    """Whether a worker ended because the broker died while it started: a supervisor starts it again."""
    return "no Kafka broker answers" in log or "answers, and has not done what was asked" in log


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

    def revive(self) -> int:
        """Start those again whose broker died while they started; their number."""
        ended = [i for i in (0, 1) if self.running[i].poll() is not None]
        for i in ended:
            with self.logs[i].open("rb") as log:
                log.seek(self._begin[i])
                said = log.read().decode()
            if not start_failed(said):
                raise RuntimeError(f"worker {i} has ended: {said[-2000:]}")
            self.running[i] = self._start(i)
        return len(ended)

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


async def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    """Add partitions to a topic."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_partitions({topic: NewPartitions(total)})
    finally:
        await admin.close()


async def attack(options: argparse.Namespace, workers: Workers, feed: Feed, config: Config) -> None:
    """Send the events, and kill a worker from time to time."""
    settings = config.require_kafka()
    internal = [config.log_topic, *([config.model_topic] if config.model_topic else [])]
    coin, kills, grown = random.Random(1), 0, 0
    share = options.events // (options.grow + 1)
    for stage in range(options.grow + 1):
        if stage:
            grown += 1
            await add_partitions(settings.bootstrap_servers, "events", len(feed.sent) + 2)
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


async def rounds(
    options: argparse.Namespace, workers: Workers, feed: Feed, config: Config, kafka: Any
) -> None:
    """Send events in each round, and kill the broker with a backlog while a member joins."""
    coin = random.Random(options.seed)
    settings = config.require_kafka()

    async def scored() -> int:
        return (await sizes(settings, ["loop-scores"]))[0]  # markers of transactions count too

    half = options.events // options.rounds // 2
    for number in range(1, options.rounds + 1):
        sending = asyncio.create_task(feed.run(half, half / _JOIN_SECONDS))
        victim, rejoin = coin.randrange(2), coin.random() < 0.5
        await asyncio.to_thread(workers.rejoin if rejoin and workers.up() else workers.kill, victim)
        await asyncio.sleep(coin.uniform(0.0, _JOIN_SECONDS))
        burst = asyncio.create_task(feed.run(half, math.inf))
        await asyncio.sleep(coin.uniform(0.0, 0.5))
        backlog = feed.total - await scored()
        await asyncio.to_thread(kafka.kill)
        await asyncio.sleep(coin.uniform(0.0, 4.0))
        await asyncio.to_thread(kafka.start)
        await asyncio.gather(sending, burst)
        deadline = time.monotonic() + _STUCK_SECONDS
        while (done := await scored()) < feed.total - half:
            workers.revive()
            if time.monotonic() > deadline:
                raise RuntimeError(f"no end of the backlog: {feed.total:,} events, {done:,} scores")
            await asyncio.sleep(0.5)
        print(
            f"round {number:3}: worker {victim} {'stopped' if rejoin else 'killed'} and started; "
            f"broker killed with {max(backlog, 0):,} events waiting; {feed.total:9,} sent; workers "
            f"{' and '.join(f'{workers.rss(i)} MB' for i in (0, 1))}",
            flush=True,
        )


def judge(options: argparse.Namespace, workers: Workers, feed: Feed, config: Config, kafka: Any) -> int:
    """Attack the workers, and say what is left: the exit code."""
    if options.rounds:
        asyncio.run(rounds(options, workers, feed, config, kafka))
    else:
        asyncio.run(attack(options, workers, feed, config))
    bootstrap = config.require_kafka().bootstrap_servers
    sent = events(bootstrap, len(feed.sent))
    deadline = time.monotonic() + 180
    while True:
        workers.revive()
        missing = sum(int((found == 0).sum()) for found in scores(bootstrap, sent))
        if (not missing and workers.up()) or time.monotonic() > deadline:
            break
        time.sleep(2.0)
    time.sleep(2.0)  # the lane may be behind scorers
    codes = workers.stop()
    committed = scores(bootstrap, sent)
    missing = sum(int((found == 0).sum()) for found in committed)
    twice = sum(int((found > 1).sum()) for found in committed)
    seen, _, forks = asyncio.run(lane(config, len(sent)))
    print(f"{sum(sent):,} events: {missing} have no score, {twice} have two (committed records)")
    print(f"the model has taken {seen:,}; forks charged: {forks}; exit codes of the stops: {codes}")
    errors = [line for log in workers.logs for line in log.read_text().splitlines() if ERROR in line]
    if options.rounds:
        errors = [line for line in errors if not start_failed(line)]
    print(*errors[:3], sep="\n", end="")
    return 0 if not missing and not twice and not errors and seen == sum(sent) and not forks else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bootstrap", help="host:port of a broker; without it, one is started")
    parser.add_argument("--kafka", default="4.x", help="version to start: 3.9 or 4.x")
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=1000.0, help="events a second")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0, help="from one kill to the next, about")
    parser.add_argument("--grow", type=int, default=0, help="how often two partitions are added")
    parser.add_argument("--rounds", type=int, default=0, help="bursts, each with a kill of the broker")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which something dies")
    parser.add_argument("--learner", default="PairFTRL")
    parser.add_argument("--scoring", default="inline", choices=["inline", "parallel"])
    options = parser.parse_args()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the broker is away on purpose
    if options.rounds and options.bootstrap:
        parser.error("--rounds kills the broker: it starts one of its own, without --bootstrap")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        started = None if options.bootstrap else stack.enter_context(kafka(options.kafka))
        bootstrap = options.bootstrap if started is None else started.bootstrap
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
            return judge(options, workers, feed, config, started)
        finally:
            workers.end()


if __name__ == "__main__":
    sys.exit(main())
