"""Spans: what a poll has read of each partition, and the one rule by which every reader takes them.

A rebalance, or a lane that is opened, may seek while a poll waits. What the poll then returns began elsewhere
than the reader goes on, and a reader that drops or takes it as it comes loses records, or has them twice: no
later poll returns them again, and the lag is 0. So a poll says from where to where the client has moved with
the records that it returns, and a reader compares that with its own position.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher as client_fetcher
from aiokafka.consumer.fetcher import FetchResult

from streampair.errors import FencedError, SourceError
from streampair_connectors.kafka.batches import FetchedBatches
from streampair_connectors.kafka.client import Partition, RecordLike, log

__all__ = ["ReadPositions", "Span", "fetched_spans", "note_spans"]

_MISSES = 3  # spans in a row that begin elsewhere: then it is no overtaken poll


class Span(NamedTuple):
    """What a poll has read of one partition.

    Attributes
    ----------
    start, end
        The client's position before it handed over the records, and after.
    records
        Those between. Offsets may be missing: of records that compaction has removed, of transactions that
        were aborted, and of markers. There may be no record at all.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from streampair_connectors.kafka.spans import Span
    >>> records = [SimpleNamespace(offset=offset) for offset in (5, 6, 9)]
    >>> [record.offset for record in Span(5, 12, records).since(6).records]
    [6, 9]
    """

    start: int
    end: int
    records: Sequence[RecordLike]

    def since(self, offset: int) -> Span:
        """The part from an offset on, which lies within."""
        if offset <= self.start:
            return self
        return Span(offset, self.end, [record for record in self.records if record.offset >= offset])


class ReadPositions:
    """The positions of a reader. It takes only spans that begin where it is.

    Parameters
    ----------
    seek
        Lets the client read a partition from an offset on.

    Attributes
    ----------
    dropped
        Number of spans that began elsewhere. Their records were read again.

    Examples
    --------
    >>> from streampair_connectors.kafka import Partition
    >>> from streampair_connectors.kafka.spans import ReadPositions, Span
    >>> place, sought = Partition("events", 0), []
    >>> positions = ReadPositions(lambda partition, offset: sought.append(offset))
    >>> positions.begin({place: 0})
    >>> positions.take({place: Span(5, 8, [])}), sought
    ({}, [0])
    >>> positions.take({place: Span(0, 3, [])})[place].end, positions.dropped
    (3, 1)
    """

    def __init__(self, seek: Callable[[Partition, int], None]) -> None:
        self._seek = seek
        self._offsets: dict[Partition, int] = {}
        self._misses: Counter[Partition] = Counter()
        self._records: Counter[Partition] = Counter()
        self.dropped = 0

    def begin(self, positions: Mapping[Partition, int]) -> None:
        """Go on at these positions, to which the caller has sought, and in no other partition."""
        self._offsets = dict(positions)
        self._misses.clear()
        self._records.clear()

    def move(self, partition: Partition, offset: int) -> None:
        """Go on in one partition at an offset to which the caller has sought."""
        self._offsets[partition] = offset
        self._misses.pop(partition, None)

    def forget(self, partition: Partition) -> None:
        """Take nothing of a partition until the next `begin` or `move`."""
        self._offsets.pop(partition, None)

    def position(self, partition: Partition) -> int | None:
        """The offset to go on at; None: the partition is not read."""
        return self._offsets.get(partition)

    @property
    def offsets(self) -> dict[int, int]:
        """The offset to go on at, by the number of the partition."""
        return {partition.partition: offset for partition, offset in self._offsets.items()}

    def records(self, partition: Partition) -> int:
        """Number of the records taken since `begin`."""
        return self._records[partition]

    def take(self, found: Mapping[Partition, Span]) -> dict[Partition, Span]:
        """Return the spans that begin where this reader is, and go on behind them; seek for the others.

        Spans of partitions that are not read are dropped.

        Raises
        ------
        SourceError
            The client begins elsewhere though it was sought, several times in a row.
        """
        taken: dict[Partition, Span] = {}
        for partition, span in found.items():
            position = self._offsets.get(partition)
            if position is None:
                continue
            if span.start != position:
                self._read_again(partition, span, position)
                continue
            self._offsets[partition] = span.end
            self._misses.pop(partition, None)
            self._records[partition] += len(span.records)
            taken[partition] = span
        return taken

    def lost(self, partition: Partition, wanted: int, first: int) -> bool:
        """Go on at `first`, since Kafka has no record at `wanted` any more: the only other way to move.

        Returns whether this reader was at `wanted`; else nothing happens.
        """
        if self._offsets.get(partition) != wanted:
            return False
        self.move(partition, first)
        return True

    def _read_again(self, partition: Partition, span: Span, position: int) -> None:
        self.dropped += 1
        self._misses[partition] += 1
        where = {"topic": partition.topic, "partition": partition.partition}
        if self._misses[partition] >= _MISSES:
            raise SourceError(
                f"{partition.topic}/{partition.partition} is to be read from offset {position}, and the "
                f"client began elsewhere {_MISSES} times in a row, last at {span.start}",
                fix="none is needed: the worker connects anew and goes on at its last commit",
            )
        log.warning(
            "read_again",
            **where,
            position=position,
            start=span.start,
            end=span.end,
            next_step="none: a rebalance came during a poll, and its records are read again",
        )
        with contextlib.suppress(FencedError):  # it was revoked: the next assignment begins anew
            self._seek(partition, position)


# The client, from here on

client_fetcher.MemoryRecords = FetchedBatches  # in all consumers, before the first of them fetches


def note_spans(consumer: AIOKafkaConsumer, prepare: Callable[[Any], None] = lambda records: None) -> None:
    """Let a started consumer note the spans that it drains, for `fetched_spans`.

    Parameters
    ----------
    consumer
        Of the client.
    prepare
        Called with the unread records of each answer (`PartitionRecords`), before they are drained.
    """
    fetcher: Any = consumer._fetcher
    results = _Results(prepare)
    results.update(fetcher._records)
    fetcher._records = results


def fetched_spans(consumer: AIOKafkaConsumer, *, batches: bool = False) -> dict[Partition, Span]:
    """Return what `getmany` has drained since the last call, which it must not be asked for otherwise.

    Parameters
    ----------
    consumer
        One that notes its spans.
    batches
        Whether it returns a list of records for each batch of a producer.
    """
    drained: dict[TopicPartition, tuple[int, int, list[Any]]] = consumer._fetcher._records.drained
    found = {
        Partition(tp.topic, tp.partition): Span(start, end, list(chain(*records)) if batches else records)
        for tp, (start, end, records) in drained.items()
    }
    drained.clear()
    return found


class _Results(OrderedDict[TopicPartition, Any]):
    """The answers of brokers that the client's `Fetcher` has not handed over yet.

    The client moves its position when `getmany` drains an answer, over markers too, and returns neither the
    position before nor an answer without records. So each answer notes both when it is drained, in one step.
    """

    def __init__(self, prepare: Callable[[Any], None]) -> None:
        super().__init__()
        self._prepare = prepare
        self.drained: dict[TopicPartition, tuple[int, int, list[Any]]] = {}

    def __setitem__(self, tp: TopicPartition, result: Any) -> None:
        if isinstance(result, FetchResult):
            self._prepare(result._partition_records)
            result.getall = self._noting(tp, result)
        super().__setitem__(tp, result)

    def _noting(self, tp: TopicPartition, result: Any) -> Callable[[int | None], list[Any]]:
        drain, state = result.getall, result._assignment.state_value(tp)

        def getall(max_records: int | None = None) -> list[Any]:
            before = state._position
            records: list[Any] = drain(max_records)
            if state._position != before:
                self._note(tp, before, state._position, records)
            return records

        return getall

    def _note(self, tp: TopicPartition, start: int, end: int, records: list[Any]) -> None:
        known = self.drained.get(tp)
        if known is not None and known[1] == start:  # a poll goes on after an answer without records
            start, records = known[0], [*known[2], *records]
        self.drained[tp] = start, end, records
