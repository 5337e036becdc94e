"""Looking up records outside of any group: connections are lent to one lane after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from harness.applications import produce
from harness.kafka import Cluster
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka import Partition, RecordReader

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
            KafkaConfig(bootstrap_servers=apache_kafka.bootstrap, connect_timeout_seconds=10)
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
