"""One order over all partitions of a topic: by buckets of the timestamp, then partition, then offset.

The order in which a learner takes records decides which records share a slot and a release, so it has to be a
function of the topic and not of the race of fetches. A bucket is 50 milliseconds of timestamps. Within a
partition timestamps count as their running maximum, so that offsets stay in order. A bucket is closed once no
partition can still show a record of it: each has shown a later one, or was read to its end by a fetch that
was sent after the bucket had ended.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from streampair.engine import OrderedRecord
from streampair.engine.records import LABEL_IN_EVENT
from streampair.errors import SourceError
from streampair_connectors.kafka.client import RecordLike
from streampair_connectors.kafka.spans import Span

__all__ = ["BUCKET_MS", "SETTLE_MS", "TakenRecords", "TopicOrder", "has_append_times"]

BUCKET_MS = 50
_LOG_APPEND_TIME = 1  # as a record's `timestamp_type`
SETTLE_MS = 20  # between the append of a record and its visibility on every replica


Before = Callable[[int, int], tuple[int, float]]


class _Chunk(msgspec.Struct, gc=False):
    """Records of one bucket, their clocks, and the bytes of their keys and values."""

    bucket: int
    records: list[RecordLike]
    clocks: list[int]
    bytes: int


class _PartitionBuffer:
    """What was read of one partition and not taken yet."""

    def __init__(self, position: int, clock: int) -> None:
        self.read_to = position  # behind the last record read
        self.newest = clock  # running maximum of the timestamps read
        self.settled = -1  # the bucket before which no record can still come
        self.chunks: deque[_Chunk] = deque()
        self.bytes = 0

    @property
    def frontier(self) -> int:
        """The first bucket that may still get records."""
        return max(self.newest // BUCKET_MS, self.settled)


class TakenRecords(NamedTuple):
    """Records in order, by column, before they are `OrderedRecord`s.

    Attributes
    ----------
    ordinal
        Of the first.
    records, partitions, clocks
        The records as they were read, their partitions, and `OrderedRecord.clock` of each.
    """

    ordinal: int
    records: list[RecordLike]
    partitions: list[int]
    clocks: list[int]

    def ordered(self, labels: Sequence[int]) -> list[OrderedRecord]:
        """Make the ordered records, each with its label: see `OrderedRecord`."""
        ordinals = range(self.ordinal, self.ordinal + len(self.records))
        return [
            OrderedRecord(
                ordinal,
                record.value,
                record.key,
                record.timestamp,
                partition=partition,
                position=record.offset,
                clock=clock,
                headers=record.headers,
                label=label,
            )
            for ordinal, record, partition, clock, label in zip(
                ordinals, self.records, self.partitions, self.clocks, labels, strict=True
            )
        ]


class TopicOrder:
    """Merges the partitions of a topic into one order.

    Parameters
    ----------
    positions
        By partition: the position to go on at, and the running maximum of its timestamps up to there.
    ordinal
        Of the next record.
    label
        Of its records: see `OrderedRecord`.

    Notes
    -----
    Time: O(log P) for a run of records of one partition and bucket. Memory: what was pushed and not taken,
    which the caller limits (`waiting_bytes`).

    Examples
    --------
    >>> from streampair_connectors.kafka.ordering import TopicOrder
    >>> from types import SimpleNamespace
    >>> def record(offset, value, timestamp):
    ...     return SimpleNamespace(offset=offset, value=value, key=None, timestamp=timestamp, headers=())
    >>> from streampair_connectors.kafka import Span
    >>> order = TopicOrder({0: (0, 0), 1: (0, 0)})
    >>> order.push(0, Span(0, 2, [record(0, b"a", 1000), record(1, b"b", 1060)]))
    >>> order.push(1, Span(0, 1, [record(0, b"c", 1010)]))
    >>> order.take(10)
    []
    >>> order.reached(1, sent_ms=1080)
    >>> [(record.value, record.partition, record.offset) for record in order.take(10)]
    [(b'a', 0, 0), (b'c', 1, 1)]
    """

    def __init__(
        self,
        positions: Mapping[int, tuple[int, int]],
        ordinal: int = 0,
        *,
        label: int = LABEL_IN_EVENT,
    ) -> None:
        self.ordinal = ordinal
        self._label = label
        self._queues = {p: _PartitionBuffer(*where) for p, where in sorted(positions.items())}
        self._aside: set[int] = set()
        self._closed = 0  # the first bucket of which no record was taken
        self._heap: list[tuple[int, int]] = []  # (bucket, partition) of the first chunk of each queue

    def waiting_bytes(self, partition: int) -> int:
        """Bytes of values that were pushed and not taken."""
        return self._queues[partition].bytes

    def is_empty(self, partition: int) -> bool:
        """Whether nothing of a partition waits."""
        return not self._queues[partition].chunks

    def waiting(self, partition: int) -> int:
        """Number of records that were pushed and not taken."""
        return sum(len(chunk.records) for chunk in self._queues[partition].chunks)

    def position(self, partition: int) -> int:
        """The offset behind what was pushed."""
        return self._queues[partition].read_to

    def lost(self, partition: int, first: int) -> None:
        """Go on at `first`, since the topic has lost what is before."""
        self._queues[partition].read_to = first

    def push(self, partition: int, span: Span, *, newest_ms: int | None = None) -> None:
        """Hand over records as they were read, in the order of their offsets.

        Parameters
        ----------
        partition, span
            The records, from where the last call ended.
        newest_ms
            No timestamp counts as later than this: for topics whose producers set it. None: no limit.

        Raises
        ------
        SourceError
            They begin elsewhere, so that some would be missing, or be twice in the order.
        """
        queue, records = self._queues[partition], span.records
        _check(partition, queue.read_to, span)
        queue.read_to = span.end
        if not records:
            return
        self._rejoin(partition)
        times = [record.timestamp for record in records]
        if newest_ms is not None and max(times) > newest_ms:
            times = [min(time, newest_ms) for time in times]
        times[0] = max(times[0], queue.newest)
        clocks = list(itertools.accumulate(times, max))
        start = 0
        while start < len(records):
            bucket = clocks[start] // BUCKET_MS
            end = bisect_left(clocks, (bucket + 1) * BUCKET_MS, start)
            chunk = queue.chunks[-1] if queue.chunks else None
            part = list(records[start:end])
            size = size_of_records(part)
            queue.bytes += size
            if chunk is not None and chunk.bucket == bucket:
                chunk.records.extend(part)
                chunk.clocks.extend(clocks[start:end])
                chunk.bytes += size
            else:
                queue.chunks.append(_Chunk(bucket, part, clocks[start:end], size))
                if chunk is None:
                    heapq.heappush(self._heap, (bucket, partition))
            start = end
        queue.newest = clocks[-1]

    def reached(self, partition: int, *, sent_ms: int) -> None:
        """Close the buckets before a fetch, sent at `sent_ms`, whose answer is pushed and reached the end."""
        self._rejoin(partition)
        queue = self._queues[partition]
        queue.settled = max(queue.settled, (sent_ms - SETTLE_MS) // BUCKET_MS)

    def set_aside(self, partition: int) -> None:
        """Go on without a partition until its next records, or its end, are read.

        Its records then stand in the bucket that is open at that moment, or later. So the order is not a
        function of the topic alone any more.
        """
        self._aside.add(partition)

    def _rejoin(self, partition: int) -> None:
        if partition in self._aside:
            self._aside.discard(partition)
            queue = self._queues[partition]
            queue.newest = max(queue.newest, self._closed * BUCKET_MS)

    @property
    def oldest_ms(self) -> int | None:
        """Time of the first record that waits, to its bucket; None: none waits."""
        return self._heap[0][0] * BUCKET_MS if self._heap else None

    @property
    def next_place(self) -> tuple[int, int, int | None]:
        """Time of the next record at least, to its bucket, its partition and its offset.

        The offset is None while the partition has shown no record that waits: its next one may come then.
        """
        queues = {p: each for p, each in self._queues.items() if p not in self._aside} or self._queues
        bucket, partition = min(
            (each.chunks[0].bucket if each.chunks else each.frontier, p) for p, each in queues.items()
        )
        chunks = self._queues[partition].chunks
        return bucket * BUCKET_MS, partition, chunks[0].records[0].offset if chunks else None

    @property
    def holding(self) -> tuple[int, ...]:
        """Partitions whose next records the others wait for, while any others have records."""
        if not self._heap:
            return ()
        least = self._heap[0][0]
        return tuple(
            p for p, queue in self._queues.items() if queue.frontier <= least and p not in self._aside
        )

    def take(self, most: int, *, before: Before | None = None) -> list[OrderedRecord]:
        """Take the next records of closed buckets, at most so many.

        Parameters
        ----------
        most
            Number of records.
        before
            From a partition and the offset of its next record to the time by which its bucket must have
            ended, in milliseconds, and the offset up to which that holds. Taking ends at the first record
            that is not so old, or not before that offset. None: there is no such limit.
        """
        taken = self.take_columns(most, before=before)
        return taken.ordered([self._label] * len(taken.records))

    def take_columns(self, most: int, *, before: Before | None = None) -> TakenRecords:
        """As `take`, where the labels are yet to be found."""
        found: list[RecordLike] = []
        clocks: list[int] = []
        partitions: list[int] = []
        frontiers = [queue.frontier for p, queue in self._queues.items() if p not in self._aside]
        if not self._heap or not frontiers:
            return TakenRecords(self.ordinal, found, partitions, clocks)
        closed = min(frontiers)
        self._closed = max(self._closed, closed)
        while self._heap and len(found) < most and self._heap[0][0] < closed:
            bucket, partition = self._heap[0]
            queue = self._queues[partition]
            chunk = queue.chunks[0]
            count = min(len(chunk.records), most - len(found))
            if before is not None:
                limit, end = before(partition, chunk.records[0].offset)
                if bucket >= limit // BUCKET_MS or chunk.records[0].offset >= end:
                    break
                if chunk.records[count - 1].offset >= end:
                    count = sum(record.offset < end for record in chunk.records[:count])
            whole = count == len(chunk.records)
            part = chunk.records if whole else chunk.records[:count]
            found += part
            clocks += chunk.clocks if whole else chunk.clocks[:count]
            partitions += [partition] * count
            if not whole:
                size = size_of_records(part)
                chunk.bytes -= size
                queue.bytes -= size
                del chunk.records[:count], chunk.clocks[:count]
                continue
            queue.bytes -= chunk.bytes
            queue.chunks.popleft()
            if queue.chunks:
                heapq.heapreplace(self._heap, (queue.chunks[0].bucket, partition))
            else:
                heapq.heappop(self._heap)
        taken = TakenRecords(self.ordinal, found, partitions, clocks)
        self.ordinal += len(found)
        return taken


def _check(partition: int, position: int, span: Span) -> None:
    """Refuse a span that begins elsewhere than the last one has ended, or has records from elsewhere."""
    records = span.records
    outside = records and not span.start <= records[0].offset <= records[-1].offset < span.end
    if span.start > position or span.start < position or outside:
        offsets = f"{records[0].offset} to {records[-1].offset}" if records else "none"
        raise SourceError(
            f"partition {partition} is in order up to offset {position}, and what was read next goes from "
            f"{span.start} to {span.end} (offsets: {offsets})",
            fix="none is needed: the worker connects anew and goes on at its last commit",
        )


def size_of_records(records: Sequence[RecordLike]) -> int:
    """Bytes of keys and values."""
    return sum(len(record.value or b"") + len(record.key or b"") for record in records)


def has_append_times(records: Sequence[RecordLike]) -> bool:
    """Return whether the broker has set the timestamps of all records (LogAppendTime)."""
    return all(getattr(record, "timestamp_type", None) == _LOG_APPEND_TIME for record in records)
