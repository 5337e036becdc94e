"""Looking up records outside of any group: connections are lent to one lane after the other."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

import pytest
from harness.applications import produce
from harness.kafka import Cluster
from streampair_connectors.config import Duration, KafkaConfig
from streampair_connectors.kafka import Batches, Partition, RangeReader, RecordReader

from streampair.engine.wal import Range
from streampair.errors import SourceError

Unique = Callable[[str], str]


def test_a_connection_is_lent_again(apache_kafka: Cluster, unique: Unique) -> None:
    """After an empty reading, one that ends in the middle, and one that fails; and many at the same time."""
    name, empty = unique("in"), unique("empty")
    apache_kafka.create_topic(name, partitions=8)
    apache_kafka.create_topic(empty)
    for partition in range(8):
        asyncio.run(produce(apache_kafka.bootstrap, name, [b"%d" % i for i in range(300)], partition))

    async def body() -> None:
        lookup = RecordReader(
            KafkaConfig(bootstrap_servers=apache_kafka.bootstrap, connect_timeout=Duration.of("10s"))
        )

        async def values(partition: int, start: int, end: int) -> list[bytes | None]:
            place = Partition(name, partition)
            async with contextlib.aclosing(lookup.span(place, start, end)) as batches:
                return [record.value async for records in batches for record in records]

        nothing = Partition(empty, 0)
        for _ in range(20):
            assert await lookup.spans([nothing]) == {nothing.partition: (0, 0)}
            async with contextlib.aclosing(lookup.span(nothing, 0, 0)) as batches:
                assert [records async for records in batches] == []
            found = await lookup.one(Partition(name, 0), 7)
            assert found is not None
            assert (found.offset, found.value) == (7, b"7")
            assert await lookup.one(Partition(name, 0), 300) is None
        assert len(lookup._idle) == 1
        async with contextlib.aclosing(lookup.span(Partition(name, 1), 0, 300)) as batches:
            async for records in batches:
                assert records[0].value == b"0"
                break
        with pytest.raises(SourceError):
            await values(2, 5_000, 6_000)
        parts = await asyncio.gather(*(values(partition, 100, 200) for partition in range(8)))
        assert parts == [[b"%d" % i for i in range(100, 200)]] * 8
        assert len(lookup._idle) == 8
        assert await values(3, 299, 300) == [b"299"]
        assert len(lookup._idle) == 8
        await lookup.stop()
        assert lookup._idle == []

    asyncio.run(body())


class CountingReader(RecordReader):
    reads = 0

    async def span(self, partition: Partition, start: int, end: int) -> Batches:
        self.reads += 1
        async with contextlib.aclosing(super().span(partition, start, end)) as batches:
            async for records in batches:
                yield records


def taken_in_turn(draw: random.Random, partitions: int, count: int) -> list[Range]:
    """Ranges of partitions that are taken in turn; due ones lie behind, early ones anywhere."""
    ranges = []
    places, due = dict.fromkeys(range(partitions), count // 2), dict.fromkeys(range(partitions), 0)
    while any(place < count for place in places.values()):
        for number in range(partitions):
            for position, end, labels in ((places, count, b""), (due, count // 2, b"\x01")):
                first = position[number]
                position[number] = min(first + draw.randint(0, 7), end)
                if first < position[number]:
                    taken = position[number] - first
                    ranges.append(Range(number, first, position[number], taken, labels * taken))
            if not draw.randrange(10):
                early = draw.randrange(count)
                ranges.append(Range(number, early, early + 1, 1, b"\x02", early=True))
                due[number] = min(due[number] + draw.randint(0, 1), count // 2)  # learned early: a gap
    return ranges


def test_ranges_are_read_in_turn_with_few_reads(apache_kafka: Cluster, unique: Unique) -> None:
    """Each gives its own records, and a read of the broker gives those of many ranges."""
    name, count, draw = unique("in"), 2000, random.Random(5)
    apache_kafka.create_topic(name, partitions=3)
    for partition in range(3):
        values = [b"%d %d" % (partition, i) for i in range(count)]
        asyncio.run(produce(apache_kafka.bootstrap, name, values, partition))
    ranges = taken_in_turn(draw, 3, count)
    early = sum(each.early for each in ranges)
    assert len(ranges) > 1000 > early > 50

    async def body() -> None:
        lookup = CountingReader(KafkaConfig(bootstrap_servers=apache_kafka.bootstrap))
        reader = RangeReader(lookup, name, ranges)
        for each in ranges:
            async with contextlib.aclosing(reader.read(each)) as batches:
                found = [record.value async for records in batches for record in records]
            assert found == [b"%d %d" % (each.partition, i) for i in range(each.first, each.end)]
        assert lookup.reads < early + 60
        await lookup.stop()

    asyncio.run(body())
