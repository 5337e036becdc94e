"""Reads records of a partition by offset, outside of any group."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors

from streampair.engine.wal import Range
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.client import (
    Partition,
    RecordLike,
    client_options,
    reach_error,
    stop_quietly,
    within,
)

__all__ = ["Batches", "RangeReader", "RecordReader"]

Batches = AsyncGenerator[Sequence[RecordLike], None]


class RecordReader:
    """Reads records for the start of a lane: single ones, and ranges to replay.

    Records of uncommitted transactions are skipped, as the lane never processed them.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        # One consumer per partition that is read concurrently.
        self._idle: list[AIOKafkaConsumer] = []

    @contextlib.asynccontextmanager
    async def _consumer(self) -> AsyncIterator[AIOKafkaConsumer]:
        """Take a consumer from the pool. After an error or a cancellation it is not returned."""
        consumer = self._idle.pop() if self._idle else await self._connect()
        try:
            yield consumer
        except BaseException:
            await stop_quietly(consumer.stop(), 2.0)
            raise
        self._idle.append(consumer)

    async def _connect(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            **client_options(self._config),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_wait_ms=100,
            retry_backoff_ms=20,  # the first request for a partition always waits this long once
            max_partition_fetch_bytes=4 * 1024 * 1024,
        )
        try:
            await within(self._config, consumer.start())
        except BaseException:
            await stop_quietly(consumer.stop(), 2.0)
            raise
        return consumer

    async def spans(self, partitions: Sequence[Partition]) -> dict[int, tuple[int, int]]:
        """Return start and end offset of partitions of a topic, by their numbers.

        Raises
        ------
        SourceError
            The broker does not answer.
        """
        async with self._consumer() as consumer:
            return await self._spans(consumer, partitions)

    async def _spans(
        self, consumer: AIOKafkaConsumer, partitions: Sequence[Partition]
    ) -> dict[int, tuple[int, int]]:
        tps = [TopicPartition(*partition) for partition in partitions]
        try:
            async with asyncio.timeout(self._config.connect_timeout_seconds):
                first, last = await asyncio.gather(consumer.beginning_offsets(tps), consumer.end_offsets(tps))
        except (kafka_errors.KafkaError, TimeoutError) as error:
            raise reach_error(self._config, error) from None
        return {tp.partition: (first[tp], last[tp]) for tp in tps}

    async def one(self, partition: Partition, offset: int, *, exactly: bool = True) -> RecordLike | None:
        """Return the record at an offset; None if it does not exist any more.

        Parameters
        ----------
        partition, offset
            Position of the record.
        exactly
            False: the first record at or after the offset.
        """
        async with self._consumer() as consumer:
            start, end = (await self._spans(consumer, [partition]))[partition.partition]
            if not start <= offset < end:
                return None
            # Close the generator before the consumer returns to the pool.
            async with contextlib.aclosing(self._span(consumer, partition, offset, end)) as batches:
                async for records in batches:
                    found = records[0]
                    return found if found.offset == offset or not exactly else None
            return None

    async def span(self, partition: Partition, start: int, end: int) -> Batches:
        """Yield the records from `start` up to `end` in batches.

        Raises
        ------
        SourceError
            The broker does not answer, or the record at `start` was removed.
        """
        async with (
            self._consumer() as consumer,
            contextlib.aclosing(self._span(consumer, partition, start, end)) as batches,
        ):
            async for records in batches:
                yield records

    async def _span(self, consumer: AIOKafkaConsumer, partition: Partition, start: int, end: int) -> Batches:
        if start >= end:
            return
        tp = TopicPartition(*partition)
        consumer.assign([tp])
        consumer.seek(tp, start)
        loop = asyncio.get_running_loop()
        last_response = loop.time()
        try:
            while True:
                # Transaction markers have offsets but no records; the position advances over them.
                if await consumer.position(tp) >= end:
                    return
                found = (await consumer.getmany(tp, timeout_ms=200)).get(tp, [])
                records = [record for record in found if record.offset < end]
                if found:
                    last_response = loop.time()
                elif loop.time() - last_response > self._config.connect_timeout_seconds:
                    raise TimeoutError
                if records:
                    yield records
        except (kafka_errors.KafkaError, TimeoutError) as error:
            raise reach_error(self._config, error) from None
        finally:
            # Stop fetching. Not `unsubscribe`: it kills the client's fetcher if that has not run since
            # `assign` (aiokafka 0.14), and the next user of this consumer would wait forever.
            consumer.pause(tp)

    async def stop(self) -> None:
        """Disconnect."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(stop_quietly(consumer.stop(), 2.0) for consumer in idle))


class _Ahead(NamedTuple):
    """Records that were read and are of a later range, up to `end`."""

    end: int
    records: deque[RecordLike]

    def take(self, first: int, end: int) -> list[RecordLike]:
        """Remove the records up to `end`, and return those from `first` on."""
        found, records = [], self.records
        while records and records[0].offset < end:
            record = records.popleft()
            if record.offset >= first:
                found.append(record)
        return found


class RangeReader:
    """Reads ranges of a topic in the order in which a lane took them.

    A lane takes a few records of each partition in turn, and one fetch returns many: what it returns of later
    ranges of its partition is kept for them.

    Parameters
    ----------
    lookup
        Reads the records.
    topic
        Of the ranges.
    ranges
        All of them, in their order. Those of a partition ascend: the due ones, and the others but the early.
    """

    def __init__(self, lookup: RecordReader, topic: str, ranges: Sequence[Range]) -> None:
        self._lookup = lookup
        self._topic = topic
        self._ends: dict[tuple[int, bool], int] = {}
        for each in ranges:
            if not each.early:
                key = each.partition, bool(each.labels)
                self._ends[key] = max(self._ends.get(key, 0), each.end)
        self._ahead: dict[tuple[int, bool], _Ahead] = {}

    async def read(self, span: Range) -> Batches:
        """Yield the records of a range in batches.

        Raises
        ------
        SourceError
            As of `RecordReader.span`.
        """
        key, first = (span.partition, bool(span.labels)), span.first
        # Events that were learned early lie anywhere.
        limit = span.end if span.early else self._ends[key]
        ahead = None if span.early else self._ahead.pop(key, None)
        if ahead is not None:
            inside = ahead.take(first, span.end)
            if span.end < ahead.end:
                self._ahead[key] = ahead
            if inside:
                yield inside
            first = max(first, ahead.end)
        if first >= span.end:
            return
        place = Partition(self._topic, span.partition)
        async with contextlib.aclosing(self._lookup.span(place, first, limit)) as batches:
            async for records in batches:
                read = _Ahead(records[-1].offset + 1, deque(records))
                inside = read.take(first, span.end)
                if span.end < read.end:
                    self._ahead[key] = read
                if inside:
                    yield inside
                if read.end >= span.end:
                    return
