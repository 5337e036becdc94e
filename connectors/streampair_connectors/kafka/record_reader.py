"""Reads records of a partition by offset, outside of any group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors

from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.client import (
    Partition,
    RecordLike,
    client_options,
    reach_error,
    stop_quietly,
    within,
)

__all__ = ["Batches", "RecordReader"]

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
