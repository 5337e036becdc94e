"""A long run under attack: four lanes, one after another on Apache Kafka; workers are killed throughout.

    python benchmarks/soak.py                              # 100,000,000 events, 25,000,000 for each lane
    python benchmarks/soak.py --events 2000000 --lanes forest private

The lanes are `rows` (PairOGD, labels in the events), `labels` (PairOGD, labels on a topic of their own),
`forest` (Forest) and `private` (PairFTRL, epsilon 1). Events come as fast as two `streampair run` score them:
at most 100,000 wait. Every minute one worker is killed and started again; every five minutes one is stopped
and started again, so that the group is rebalanced. In the end each event must have one score for readers of
committed records, the model must have taken each event once, and the private account must have no fork.

At each of these times memory and open files of the workers, files and bytes in their temporary directory, and
offsets in the internal topics are written to a file. The most of the second half may exceed that of the first
by a tenth. The exit code says whether all that is so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from kill_loop import ERROR, FEATURES, PRIVATE, Score, Workers, lane, payloads, send, sizes
from streampair_connectors.config import Config, load_config
from worker import BROKER, broker, create

PARTITIONS = 4
BATCH = 200
WAITING = 100_000  # events that are sent and have no score
ROOM = 1.1
SILENCE = 120  # seconds without a score after which no more are expected

LEARNERS = {"rows": "PairOGD", "labels": "PairOGD", "forest": "Forest", "private": "PairFTRL"}
CONFIG = """app = "soak-{lane}"
metrics.address = "127.0.0.1:0"
[kafka]
bootstrap_servers = "{bootstrap}"
session_timeout = "6s"
[input]
topic = "{lane}-events"
{label}
features = {features}
[output]
topic = "{lane}-scores"
{labels}
[learner]
class = "streampair.auc.{learner}"
"""
LABELS = """[label_input]
topic = "labels-labels"
id = "key"
label = "y"
after = "5s"
lateness = "5s"
"""


class Count:
    """How often each event has a committed score, counted as scores come.

    Attributes
    ----------
    found
        For each partition and offset, how many scores there are.
    total
        Number of scores.
    """

    def __init__(self, topic: str, events: int) -> None:
        self._topic = topic
        self.found = np.zeros((PARTITIONS, events // PARTITIONS + 2 * BATCH), dtype=np.uint8)
        self.total = 0

    async def run(self, bootstrap: str) -> None:
        """Count until cancelled."""
        decode, partition = msgspec.json.Decoder(Score).decode, TopicPartition(self._topic, 0)
        async with AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed"
        ) as consumer:
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            while True:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for record in records:
                        row = decode(record.value)
                        self.found[row.partition, row.offset] += 1
                    self.total += len(records)


class Feed:
    """Sends events, and their labels where they are on a topic of their own, a second or so later.

    Attributes
    ----------
    sent
        Number of acknowledged events of each partition.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._values = payloads()
        self._labels = [
            b'{"y": %s}' % (b"true" if json.loads(value)["y"] else b"false") for value in self._values
        ]
        self.sent = [0] * PARTITIONS

    async def run(self, bootstrap: str, count: int, scored: Count) -> None:
        """Send so many events, as fast as they are scored."""
        done, late = 0, self._name == "labels"
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
            while done < count:
                if done - scored.total > WAITING:
                    await asyncio.sleep(0.05)
                    continue
                numbers = range(done, min(done + BATCH, count))
                await self._send(producer, "events", numbers, self._values)
                if late and done >= 10 * BATCH:
                    await self._send(
                        producer, "labels", range(done - 10 * BATCH, done - 9 * BATCH), self._labels
                    )
                self.sent[done // BATCH % PARTITIONS] += len(numbers)
                done += len(numbers)
            if late:
                for start in range(max(0, (done - 1) // BATCH - 9) * BATCH, done, BATCH):
                    await self._send(producer, "labels", range(start, min(start + BATCH, done)), self._labels)
            await producer.flush()

    async def _send(self, producer: Any, topic: str, numbers: range, values: list[bytes]) -> None:
        keys = [b"%d" % number for number in numbers] if self._name == "labels" else ()
        where = numbers.start // BATCH % PARTITIONS
        some = [values[number % len(values)] for number in numbers]
        await (await send(producer, f"{self._name}-{topic}", where, some, keys))


def temporary(folder: Path) -> tuple[int, int]:
    """Files and bytes below a folder."""
    count = total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it may be gone meanwhile
            if path.is_file():
                count, total = count + 1, total + path.stat().st_size
    return count, total


async def attack(
    options: argparse.Namespace, workers: Workers, sending: asyncio.Future[None], sample: Any
) -> tuple[int, int]:
    """Kill and restart workers until all events are sent; how often."""
    coin, kills, rejoins = random.Random(1), 0, 0
    rejoin = time.monotonic() + options.rejoin
    while not sending.done():
        await asyncio.wait({sending}, timeout=options.kill)
        if sending.done():
            break
        await sample()
        victim = coin.randrange(2)
        if time.monotonic() >= rejoin:
            rejoin, rejoins = rejoin + options.rejoin, rejoins + 1
            await asyncio.to_thread(workers.rejoin, victim)
        else:
            kills += 1
            await asyncio.to_thread(workers.kill, victim)
    sending.result()
    return kills, rejoins


def grown(samples: Sequence[dict[str, Any]]) -> list[str]:
    """What grew: the most of the second half against that of the first."""
    half = len(samples) // 2
    if half < 3:
        return []
    found = []
    for name in ("rss_mb", "files", "temporary_files", "offsets"):
        first, second = (
            max(max(sample[name], default=0) for sample in part) for part in (samples[:half], samples[half:])
        )
        if second > ROOM * first + 3:
            found.append(f"{name} {first:g} -> {second:g}")
    return found


async def soak(name: str, options: argparse.Namespace, config: Config, folder: Path) -> bool:
    """Run one lane; whether nothing is wrong."""
    settings, count = config.require_kafka(), options.events // len(options.lanes)
    bootstrap = settings.bootstrap_servers
    await create(bootstrap, f"{name}-events", partitions=PARTITIONS, append_time=True)
    await create(bootstrap, f"{name}-scores", f"soak-{name}-dead-letters")
    if name == "labels":
        await create(bootstrap, "labels-labels", partitions=PARTITIONS, append_time=True)
        await create(bootstrap, "soak-labels-late-labels")
    internal = [config.log_topic, *([config.model_topic] if config.model_topic else [])]
    workers, feed, scored = Workers(folder / f"{name}.toml"), Feed(name), Count(f"{name}-scores", count)
    samples: list[dict[str, Any]] = []
    begin = time.monotonic()

    async def sample() -> None:
        files, total = await asyncio.to_thread(temporary, folder / "temporary")
        samples.append(
            {
                "lane": name,
                "seconds": round(time.monotonic() - begin),
                "events": scored.total,
                "rss_mb": [workers.rss(i) for i in (0, 1)],
                "files": [workers.files(i) for i in (0, 1)],
                "temporary_files": [files],
                "temporary_mb": [round(total / 2**20, 1)],
                "offsets": await sizes(settings, internal),
            }
        )
        with options.results.open("a") as out:
            out.write(json.dumps(samples[-1]) + "\n")

    counting = asyncio.ensure_future(scored.run(bootstrap))
    try:
        sending = asyncio.ensure_future(feed.run(bootstrap, count, scored))
        kills, rejoins = await attack(options, workers, sending, sample)
        last, silent = -1, 0
        while (scored.total < count and silent < SILENCE) or not workers.up():
            if counting.done():
                counting.result()
            last, silent = scored.total, silent + 1 if scored.total == last else 0
            await asyncio.sleep(1.0)
        seconds = time.monotonic() - begin
        # Scores may come before what is learned, and late labels are due some seconds later.
        await asyncio.sleep(30.0 if name == "labels" else 3.0)
        codes = await asyncio.to_thread(workers.stop)
        await asyncio.sleep(2.0)
    finally:
        counting.cancel()
        workers.end()
    found = np.concatenate([row[:sent] for row, sent in zip(scored.found, feed.sent, strict=True)])
    missing, twice = int((found == 0).sum()), int((found > 1).sum())
    seen, due, forks = await lane(config, PARTITIONS)
    errors = [line for log in workers.logs for line in log.read_text().splitlines() if ERROR in line]
    learned, more = due if name == "labels" else seen, grown(samples)
    peak = max((max(each["rss_mb"]) for each in samples), default=0)
    print(
        f"{name:8} {count:11,} events {count / seconds:8,.0f}/s {kills:4} kills {rejoins:3} restarts "
        f"{missing:3} lost {twice:3} twice {count - learned:3} not learned {forks} forks; {peak} MB at most",
        flush=True,
    )
    for line in [*errors[:3], *more, *([f"exit codes {codes}"] if any(codes) else [])]:
        print(f"    {line}")
    return not (missing or twice or forks or errors or more or any(codes) or learned != count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for option, settings in BROKER.items():
        parser.add_argument(option, **settings)
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--lanes", nargs="+", default=list(LEARNERS), choices=list(LEARNERS))
    parser.add_argument("--kill", type=float, default=60.0, help="seconds from one kill to the next")
    parser.add_argument(
        "--rejoin", type=float, default=300.0, help="seconds from one clean restart to the next"
    )
    parser.add_argument("--results", type=Path, default=Path("soak.jsonl"), help="where samples are written")
    options = parser.parse_args()
    options.results = options.results.absolute()
    good = True
    with tempfile.TemporaryDirectory() as name, broker(options.bootstrap, options.kafka) as bootstrap:
        folder = Path(name)
        (folder / "temporary").mkdir()
        os.environ["TMPDIR"] = str(folder / "temporary")
        key = folder / "noise.key"
        key.touch(0o600)
        key.write_text(os.urandom(32).hex())
        os.chdir(folder)
        for each in options.lanes:
            text = CONFIG.format(
                lane=each,
                bootstrap=bootstrap,
                features=json.dumps(FEATURES),
                learner=LEARNERS[each],
                label="" if each == "labels" else 'label = "y"',
                labels=LABELS if each == "labels" else "",
            )
            path = folder / f"{each}.toml"
            path.write_text(text + (PRIVATE if each == "private" else ""))
            good = asyncio.run(soak(each, options, load_config(path), folder)) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
