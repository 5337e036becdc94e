"""The log topic, which keeps the logs of lanes without limit; and readers of ranges of a topic."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streampair.engine.snapshot import OR_ANEW, UnusableLogError
from streampair.engine.wal import Range
from streampair.errors import ConfigError, SourceError, StoreError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.admin import create_topics, describe_topics
from streampair_connectors.kafka.client import (
    Partition,
    RecordLike,
    client_options,
    reach_error,
    stop_quietly,
    within,
)
from streampair_connectors.kafka.producer import PART, part_of
from streampair_connectors.kafka.spans import ReadPositions, fetched_spans, note_spans

__all__ = [
    "SETTINGS",
    "Batches",
    "LogTopic",
    "RangeReader",
    "RecordReader",
]


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
        note_spans(consumer)
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

    async def is_trimmed(self, partition: Partition, first: int) -> bool:
        """Whether the record at an offset, the first when reading began, was deleted meanwhile: read again.

        The owner of a log or of a model topic trims it while others read.

        Raises
        ------
        SourceError
            The broker does not answer.
        """
        return (await self.spans([partition]))[partition.partition][0] > first

    async def _spans(
        self, consumer: AIOKafkaConsumer, partitions: Sequence[Partition]
    ) -> dict[int, tuple[int, int]]:
        tps = [TopicPartition(*partition) for partition in partitions]
        try:
            async with asyncio.timeout(self._config.connect_timeout.seconds):
                first, last = await asyncio.gather(consumer.beginning_offsets(tps), consumer.end_offsets(tps))
        except (kafka_errors.KafkaError, TimeoutError) as error:
            raise reach_error(self._config, error) from None
        return {tp.partition: (first[tp], last[tp]) for tp in tps}

    async def topic(self, topic: str, partitions: int) -> AsyncGenerator[tuple[int, RecordLike], None]:
        """Yield all records of a topic, as far as it goes now, each with the number of its partition.

        Raises
        ------
        SourceError
            The broker does not answer.
        """
        places = [Partition(topic, number) for number in range(partitions)]
        for number, (first, end) in (await self.spans(places)).items() if places else ():
            async with contextlib.aclosing(self.span(Partition(topic, number), first, end)) as batches:
                async for records in batches:
                    for record in records:
                        yield number, record

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
        positions = ReadPositions(lambda place, offset: consumer.seek(TopicPartition(*place), offset))
        positions.begin({partition: start})
        loop = asyncio.get_running_loop()
        last_response = loop.time()
        try:
            # Transaction markers have offsets but no records; the position advances over them.
            while (positions.position(partition) or 0) < end:
                await consumer.getmany(tp, timeout_ms=200)
                span = positions.take(fetched_spans(consumer)).get(partition)
                if span is not None:
                    last_response = loop.time()
                elif loop.time() - last_response > self._config.connect_timeout.seconds:
                    raise TimeoutError
                records = [] if span is None else [each for each in span.records if each.offset < end]
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
        self._read_to: dict[tuple[int, bool], int] = {}

    async def read(self, span: Range) -> Batches:
        """Yield the records of a range in batches.

        Raises
        ------
        SourceError
            As of `RecordReader.span`.
        StoreError
            It begins before the end of an earlier range of its partition, whose records are gone from here.
        """
        key, first = (span.partition, bool(span.labels)), span.first
        self._check_order(span)
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

    def _check_order(self, span: Range) -> None:
        if span.early:
            return
        key = span.partition, bool(span.labels)
        if span.first < self._read_to.get(key, 0):
            raise StoreError(
                f"a range of {self._topic}/{span.partition} in the log begins at offset {span.first}, and "
                f"one before it has ended at {self._read_to[key]}",
                fix="keep the log as it is, and report this: its ranges of a partition should ascend",
            )
        self._read_to[key] = span.end


SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    # Deleted records are freed by whole segments; logs are short, so segments are small.
    "segment.bytes": str(16 * 1024 * 1024),
    "unclean.leader.election.enable": "false",
    # The answers then say what the broker's clock shows: events whose labels come later are due by it.
    "message.timestamp.type": "LogAppendTime",
}
"""Settings of a new log topic."""

# With other values entries can be lost silently: the account of a private lane, and where any lane goes on.
_REQUIRED: Final = ("cleanup.policy", "retention.ms", "retention.bytes", "unclean.leader.election.enable")


class LogTopic:
    """A topic of one partition, to which only the owner of the lane writes.

    Parameters
    ----------
    config
        The cluster.
    name
        Of the topic.
    lookup
        Reads the topic; None: a new connection per call.

    Attributes
    ----------
    place
        Its partition.
    """

    def __init__(self, config: KafkaConfig, name: str, lookup: RecordReader | None = None) -> None:
        self._config = config
        self.name = name
        self.place = Partition(name, 0)
        self._lookup = lookup

    async def ensure(self, *, replication_factor: int | None, strict: bool) -> int:
        """Create the topic, with one partition, if it does not exist, and check its settings.

        Returns the number of its partitions.

        Parameters
        ----------
        replication_factor
            Of a new topic; None: the cluster's default.
        strict
            Whether a lane depends on the topic: settings that can lose entries are refused.

        Raises
        ------
        ConfigError
            The topic has settings that can lose entries.
        SourceError
            The cluster does not answer, or does not create the topic.
        """
        found = (await describe_topics(self._config)).get(self.name)
        if found is None:
            made = await create_topics(
                self._config, {self.name: 1}, replication_factor, settings={self.name: SETTINGS}
            )
            outcome = made[self.name]
            if isinstance(outcome, SourceError):
                raise outcome
            found = outcome
        if strict:
            await self.check_settings()
        return found

    async def check_settings(self) -> None:
        """Refuse settings with which entries of a log can be lost.

        Raises
        ------
        ConfigError, SourceError
            As of `ensure`.
        """
        settings = await self.settings()
        for name in _REQUIRED:
            value = settings.get(name)
            if value == SETTINGS[name]:
                continue
            if value is None:
                raise ConfigError(
                    f"the cluster does not say whether the log topic {self.name!r} has {name} = "
                    f"{SETTINGS[name]}: without it entries of the log can be lost",
                    fix="grant the right: kafka-acls.sh --add --operation DescribeConfigs --topic "
                    f"{self.name}",
                )
            raise ConfigError(
                f"the log topic {self.name!r} has {name} = {value}: it can lose entries of the log",
                fix=f"kafka-configs.sh --bootstrap-server {self._config.bootstrap_servers} --alter --topic "
                f"{self.name} --add-config {name}={SETTINGS[name]}",
            )

    async def settings(self) -> dict[str, str]:
        """Return the settings that keep its entries, as far as they can be read."""
        admin = AIOKafkaAdminClient(**client_options(self._config))
        try:
            await within(self._config, admin.start())
            query = ConfigResource(ConfigResourceType.TOPIC, self.name, dict.fromkeys(_REQUIRED, ""))
            answers = await within(self._config, admin.describe_configs([query]))
            return {
                entry[0]: str(entry[1])
                for answer in answers
                for found in answer.resources
                for entry in found[4]
            }
        finally:
            await stop_quietly(admin.close(), 2.0)

    async def read(self) -> list[tuple[int, bytes | None, bytes]]:
        """Return offset, key and value of all committed records, in order.

        Call it after `TransactionalProducer.start`, when no transaction is in flight; an open one is not
        waited for. Messages that the producer has split (`split_messages`) are joined, and have the offset of
        their first part.

        Raises
        ------
        SourceError
            The broker does not answer.
        UnusableLogError
            A part of a message is missing.
        """
        lookup = RecordReader(self._config) if self._lookup is None else self._lookup
        try:
            found = await self._records(lookup)
        finally:
            if self._lookup is None:
                await lookup.stop()
        return self._join_parts(found)

    async def _records(self, lookup: RecordReader) -> list[RecordLike]:
        place = self.place
        while True:
            found: list[RecordLike] = []
            first, end = (await lookup.spans([place]))[place.partition]
            try:
                async with contextlib.aclosing(lookup.span(place, first, end)) as batches:
                    async for records in batches:
                        found.extend(records)
            except SourceError:
                if not await lookup.is_trimmed(place, first):
                    raise
                continue
            return found

    def _join_parts(self, records: Sequence[RecordLike]) -> list[tuple[int, bytes | None, bytes]]:
        """Join the parts of split messages: offset, key and value of each message."""
        out: list[tuple[int, bytes | None, bytes]] = []
        parts: list[RecordLike] = []
        for record in records:
            part_header = dict(record.headers).get(PART)
            number, count = part_of(part_header)
            if number != len(parts) + 1 or (parts and dict(parts[0].headers)[PART] != b"1/%d" % count):
                break
            parts.append(record)
            if number == count:
                out.append((parts[0].offset, record.key, b"".join([w.value or b"" for w in parts])))
                parts = []
        else:
            if not parts:
                return out
        offset = parts[0].offset if parts else record.offset
        raise UnusableLogError(
            f"a message of the log topic {self.name!r} is incomplete: a part is missing at offset {offset}",
            fix=f"restore the topic: only streampair may delete its records. {OR_ANEW}",
        )

    async def trim(self, before: int) -> None:
        """Delete the records before an offset.

        Raises
        ------
        SourceError
            The broker does not answer, or refuses.
        """
        admin = AIOKafkaAdminClient(**client_options(self._config))
        try:
            await within(self._config, admin.start())
            target = TopicPartition(*self.place)
            await within(self._config, admin.delete_records({target: RecordsToDelete(before_offset=before)}))
        finally:
            await stop_quietly(admin.close(), 2.0)
