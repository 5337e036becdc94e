"""Readers take the batches of producers as a whole, and return the same records as the client itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from harness.kafka import Cluster
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka import ReadPositions
from streampair_connectors.kafka.client import RecordLike
from streampair_connectors.kafka.consumer import TopicReader


async def write(bootstrap: str, topic: str) -> None:
    """A batch of ten, an aborted transaction, a committed one, and a batch of ten with headers."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=100) as producer:
        await asyncio.gather(*[await producer.send(topic, b"%d" % n, key=b"k") for n in range(10)])
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic) as other:
            await other.begin_transaction()
            await other.send_and_wait(topic, b"aborted")
            await other.abort_transaction()
            async with other.transaction():
                await other.send_and_wait(topic, b"committed", timestamp_ms=1000)
        await asyncio.gather(
            *[await producer.send(topic, b"%d" % n, headers=[("h", b"%d" % n)]) for n in range(10)]
        )


async def read(bootstrap: str, topic: str, start: int, count: int) -> list[RecordLike]:
    reader = TopicReader(KafkaConfig(bootstrap_servers=bootstrap), topic, 1, lambda *_: None)
    found: list[RecordLike] = []
    try:
        await reader.start()
        positions = ReadPositions(reader.seek)
        positions.begin(reader.begin({0: start}))
        async with asyncio.timeout(30):
            while len(found) < count or not reader.settled():
                for span in positions.take(await reader.poll(0.1)).values():
                    found += span.records
    finally:
        await reader.stop()
    return found


async def reference(bootstrap: str, topic: str) -> list[RecordLike]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    found: list[RecordLike] = []
    async with consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        while len(found) < 21:
            found += [
                record for records in (await consumer.getmany(timeout_ms=100)).values() for record in records
            ]
    return found


def facts(record: RecordLike) -> tuple[object, ...]:
    return record.offset, record.value, record.key, record.timestamp, tuple(record.headers)


@pytest.mark.parametrize("start", [0, 4, 10, 17])
def test_a_reader_begins_within_a_batch(
    apache_kafka: Cluster, unique: Callable[[str], str], start: int
) -> None:
    topic, bootstrap = unique("topic"), apache_kafka.bootstrap
    apache_kafka.create_topic(topic)
    asyncio.run(write(bootstrap, topic))
    wanted = [facts(record) for record in asyncio.run(reference(bootstrap, topic))]
    wanted = [each for each in wanted if each[0] >= start]  # type: ignore[operator]
    found = asyncio.run(read(bootstrap, topic, start, len(wanted)))
    assert [facts(record) for record in found] == wanted
