"""Two readers of one topic, one of them disturbed: do they agree on the slot of every record?

    python benchmarks/order.py                                  # starts Apache Kafka, as the tests do
    python benchmarks/order.py --events 20000 --partitions 4

Events come to a topic with LogAppendTime, some of them as large as a message may be. Two readers take them in
the order over all partitions, as the lane of a whole topic does, each in a group of its own. One reads in
peace. The other one reads slowly, stands still for seconds and is made anew in between, from the positions
that a lane would have logged. The n-th record of both must be the same one, for every n. The exit code says
whether it is.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import _timing
from aiokafka import AIOKafkaProducer
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka import Consumer, Partition
from streampair_connectors.worker.sources import TopicSource
from worker import BROKER, broker, create

from streampair.engine.source import Positions

LARGE = 900_000


async def fill(bootstrap: str, topic: str, options: Namespace) -> None:
    """Write events at random to the partitions; one of a thousand is large."""
    draw, begin = random.Random(1), time.perf_counter()
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=2 * LARGE) as producer:
        for number in range(options.events):
            size = LARGE if number % 1000 == 500 else draw.randrange(20, 400)
            await producer.send(topic, bytes(size), partition=draw.randrange(options.partitions))
            if number % 50 == 0:
                await asyncio.sleep(max(begin + number / options.rate - time.perf_counter(), 0.0))
        await producer.flush()


class Reader:
    """Takes the records of a topic in order.

    Parameters
    ----------
    disturbed
        Whether it is slow, stands still and is made anew.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, disturbed: bool) -> None:
        self._config = KafkaConfig(bootstrap_servers=bootstrap)
        self._topic = topic
        self._partitions = partitions
        self._disturbed = disturbed
        self._positions = Positions()
        self.places: list[tuple[int, int]] = []
        self.restarts = 0

    async def read(self, count: int) -> None:
        """Read so many records."""
        draw = random.Random(2)
        while len(self.places) < count:
            most = count if not self._disturbed else len(self.places) + draw.randrange(1, count // 10)
            await self._session(min(most, count), draw)
            self.restarts += 1

    async def _session(self, until: int, draw: random.Random) -> None:
        assigned = asyncio.Event()

        async def on_assigned(partitions: list[Partition]) -> None:
            if partitions:
                assigned.set()

        async def on_revoked(partitions: list[Partition]) -> None:
            pass

        consumer = Consumer(
            self._config,
            self._topic,
            f"{self._topic}-{id(self)}-{self.restarts}",
            on_revoked=on_revoked,
            on_assigned=on_assigned,
            on_lost=lambda *_: None,
            whole_topic=True,
        )
        source = TopicSource(consumer, self._topic, self._partitions)
        await consumer.start()
        try:
            while not assigned.is_set():
                await source.poll(1, 0.1)
            logged = SimpleNamespace(
                source=self._positions, next_offset=len(self.places), private=True, outcomes={}
            )
            spans = dict.fromkeys(range(self._partitions), (0, 0))
            store = SimpleNamespace(clock_ahead=None)
            source.begin(SimpleNamespace(logged_lane=logged, spans=spans, announced=[], store=store))  # type: ignore[arg-type]
            while len(self.places) < until:
                most = draw.randrange(1, 2000) if self._disturbed else 1000
                found = await source.poll(most, 0.2)
                self._positions.took(found)
                self.places += [(record.partition, record.position) for record in found]
                if self._disturbed:
                    if draw.random() < 0.003:
                        time.sleep(draw.random() * 4)  # noqa: ASYNC251  # it stands still, its heartbeats too
                    elif draw.random() < 0.05:
                        await asyncio.sleep(0.1)
        finally:
            await consumer.stop()


async def compare(bootstrap: str, options: Namespace) -> _timing.Row:
    """Let both readers read what comes."""
    topic = f"order-{time.time_ns()}"
    await create(bootstrap, topic, partitions=options.partitions, append_time=True)
    one = Reader(bootstrap, topic, options.partitions, disturbed=False)
    other = Reader(bootstrap, topic, options.partitions, disturbed=True)
    await asyncio.gather(
        fill(bootstrap, topic, options), one.read(options.events), other.read(options.events)
    )
    differ = sum(a != b for a, b in zip(one.places, other.places, strict=False))
    return {
        "events": options.events,
        "partitions": options.partitions,
        "restarts": other.restarts,
        "differ": differ,
        "met": not differ and len(set(one.places)) == options.events,
    }


def measure(options: Namespace) -> Iterator[_timing.Row]:
    with broker(options.bootstrap, options.kafka) as bootstrap:
        yield asyncio.run(compare(bootstrap, options))


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    for row in rows:
        yield (
            f"{row['events']:,} events in {row['partitions']} partitions; one of the readers was made anew "
            f"{row['restarts'] - 1} times: {row['differ']} slots differ"
        )


if __name__ == "__main__":
    flags: dict[str, dict[str, Any]] = {
        **BROKER,
        "--events": {"type": int, "default": 200_000},
        "--partitions": {"type": int, "default": 16},
        "--rate": {"type": float, "default": 5000.0},
    }
    sys.exit(_timing.main(__doc__, measure, page, flags, strict=True))
