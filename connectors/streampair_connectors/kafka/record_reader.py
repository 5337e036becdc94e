"""Looking up: records of a partition by their offset, outside of any group."""

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
    """Reads what a lane asks for at its start: single records, and spans that it replays.

    Transactions that are not committed are not seen, as the lane has never seen them.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        # One for each partition that is read at the same time: a consumer can be assigned to one lane only.
        self._idle: list[AIOKafkaConsumer] = []

    @contextlib.asynccontextmanager
    async def _consumer(self) -> AsyncIterator[AIOKafkaConsumer]:
        """Lend a consumer. One that fails, or whose use is cancelled, is not lent again."""
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
            retry_backoff_ms=20,  # the first question about a partition always waits for this once
            max_partition_fetch_bytes=4 * 1024 * 1024,
        )
        try:
            await within(self._config, consumer.start())
        except BaseException:
            await stop_quietly(consumer.stop(), 2.0)
            raise
        return consumer

    async def range(self, partition: Partition) -> tuple[int, int]:
        """Return the first offset that a partition has, and the next that it will get.

        Raises
        ------
        SourceError
            The broker does not answer.
        """
        async with self._consumer() as consumer:
            return await self._range(consumer, TopicPartition(*partition))

    async def _range(self, consumer: AIOKafkaConsumer, tp: TopicPartition) -> tuple[int, int]:
        try:
            async with asyncio.timeout(self._config.connect_timeout_seconds):
                first, last = await asyncio.gather(
                    consumer.beginning_offsets([tp]), consumer.end_offsets([tp])
                )
        except (kafka_errors.KafkaError, TimeoutError) as error:
            raise reach_error(self._config, error) from None
        return first[tp], last[tp]

    async def one(self, partition: Partition, offset: int, *, exactly: bool = True) -> RecordLike | None:
        """Return the record at an offset; None if the topic has it no more.

        Parameters
        ----------
        partition, offset
            Where.
        exactly
            False: the first record from there on.
        """
        async with self._consumer() as consumer:
            start, end = await self._range(consumer, TopicPartition(*partition))
            if not start <= offset < end:
                return None
            # Closed here, not when the garbage collector comes by: the consumer is another lane's by then.
            async with contextlib.aclosing(self._span(consumer, partition, offset, end)) as batches:
                async for records in batches:
                    found = records[0]
                    return found if found.offset == offset or not exactly else None
            return None

    async def span(self, partition: Partition, start: int, end: int) -> Batches:
        """Yield the records from `start` up to `end`, in batches, until the partition has no more of them.

        Raises
        ------
        SourceError
            The broker does not answer, or `start` is gone.
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
        heard = loop.time()
        try:
            while True:
                # Markers that end transactions have offsets and no records: the position passes over them.
                if await consumer.position(tp) >= end:
                    return
                found = (await consumer.getmany(tp, timeout_ms=200)).get(tp, [])
                records = [record for record in found if record.offset < end]
                if found:
                    heard = loop.time()
                elif loop.time() - heard > self._config.connect_timeout_seconds:
                    raise TimeoutError
                if records:
                    yield records
        except (kafka_errors.KafkaError, TimeoutError) as error:
            raise reach_error(self._config, error) from None
        finally:
            # Nothing more is fetched of it. Not `unsubscribe`: the client's fetcher dies of that where it has
            # not come by since `assign` (aiokafka 0.14), and who is lent this consumer next waits for ever.
            consumer.pause(tp)

    async def stop(self) -> None:
        """Disconnect."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(stop_quietly(consumer.stop(), 2.0) for consumer in idle))
