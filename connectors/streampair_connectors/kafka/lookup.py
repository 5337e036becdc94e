"""Looking up: records of a partition by their offset, outside of any group."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors

from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka._client import (
    Partition,
    RecordLike,
    client_options,
    reach_error,
    stop_quietly,
    within,
)

__all__ = ["Batches", "Lookup"]

Batches = AsyncGenerator[Sequence[RecordLike], None]


class Lookup:
    """Reads what a lane asks for at its start: single records, and spans that it replays.

    Transactions that are not committed are not seen, as the lane has never seen them.
    """

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._consumer: AIOKafkaConsumer | None = None

    async def _connected(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            consumer = AIOKafkaConsumer(
                **client_options(self._config),
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                fetch_max_wait_ms=100,
                max_partition_fetch_bytes=4 * 1024 * 1024,
            )
            await within(self._config, consumer.start())
            self._consumer = consumer
        return self._consumer

    async def range(self, partition: Partition) -> tuple[int, int]:
        """Return the first offset that a partition has, and the next that it will get.

        Raises
        ------
        SourceError
            The broker does not answer.
        """
        consumer, tp = await self._connected(), TopicPartition(*partition)
        try:
            async with asyncio.timeout(self._config.connect_timeout_seconds):
                first = await consumer.beginning_offsets([tp])
                last = await consumer.end_offsets([tp])
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
        start, end = await self.range(partition)
        if not start <= offset < end:
            return None
        # Closed here, not when the garbage collector comes by: the next lookup has been assigned by then.
        async with contextlib.aclosing(self.span(partition, offset, end)) as batches:
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
        consumer, tp = await self._connected(), TopicPartition(*partition)
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
            consumer.unsubscribe()

    async def stop(self) -> None:
        """Disconnect."""
        if self._consumer is not None:
            await stop_quietly(self._consumer.stop(), 2.0)
            self._consumer = None
