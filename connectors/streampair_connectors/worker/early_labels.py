"""Events that are learned when their labels come: `label_input.order = "arrival"`.

An index has the ids of the events that are not due yet. Labels are taken in the order of their topic; the
event of each is looked up, read again and learned at once. When it is due it is passed over. The event of a
label is a function of both topics alone: the first one of its id for which it is in time, learned or not. So
a restart, which takes the last labels again, finds the same events.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from streampair.engine import OrderedRecord
from streampair.engine.labels import LabelTable, digest_ids, place_of_label
from streampair.engine.source import Positions
from streampair.engine.wal import Position, Wait
from streampair.errors import RecordError
from streampair_connectors.codecs.labels import DecodedLabel
from streampair_connectors.config import Config
from streampair_connectors.kafka import (
    KAFKA,
    Cluster,
    Partition,
    ReadPositions,
    RecordLike,
    RecordReader,
    Span,
)
from streampair_connectors.kafka.consumer import OnLost
from streampair_connectors.kafka.ordering import TopicOrder

__all__ = ["EarlyLabels", "OffsetSet"]

_AHEAD = 500  # labels whose events are read before they are taken
_NEAR = 1000  # events so near to each other are read together


class OffsetSet:
    """Offsets of partitions, a bit each.

    Examples
    --------
    >>> from streampair_connectors.worker.early_labels import OffsetSet
    >>> learned = OffsetSet()
    >>> learned.add(0, 17)
    >>> (0, 17) in learned, (1, 17) in learned, list(OffsetSet.load(learned.dump()))
    (True, False, [(0, 17)])
    """

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._bits: dict[int, bytearray] = {}

    def add(self, partition: int, offset: int) -> None:
        """Add an offset; those before the last `drop` are not."""
        first = self._first.setdefault(partition, offset & ~7)
        bits = self._bits.setdefault(partition, bytearray())
        if offset < first:
            more = (first - (offset & ~7)) // 8
            bits[:0] = bytes(more)
            first = self._first[partition] = first - 8 * more
        byte, bit = divmod(offset - first, 8)
        if byte >= len(bits):
            bits.extend(bytes(byte + 1 - len(bits)))
        bits[byte] |= 1 << bit

    def __contains__(self, place: tuple[int, int]) -> bool:
        partition, offset = place
        bits = self._bits.get(partition)
        if bits is None or offset < self._first[partition]:
            return False
        byte, bit = divmod(offset - self._first[partition], 8)
        return byte < len(bits) and bool(bits[byte] >> bit & 1)

    def drop(self, partition: int, before: int) -> None:
        """Forget offsets before this one, eight at a time."""
        if partition in self._bits:
            count = max((before - self._first[partition]) // 8, 0)
            del self._bits[partition][:count]
            self._first[partition] += 8 * count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for partition, bits in sorted(self._bits.items()):
            found = np.flatnonzero(np.unpackbits(np.frombuffer(bytes(bits), np.uint8), bitorder="little"))
            yield from ((partition, self._first[partition] + offset) for offset in found.tolist())

    def dump(self, without: Iterable[tuple[int, int]] = ()) -> bytes:
        """The offsets as bytes, but for some."""
        left = OffsetSet()
        left._first = dict(self._first)
        left._bits = {partition: bytearray(bits) for partition, bits in self._bits.items()}
        for partition, offset in without:
            byte, bit = divmod(offset - left._first[partition], 8)
            left._bits[partition][byte] &= ~(1 << bit)
        parts = {partition: (left._first[partition], bytes(bits)) for partition, bits in left._bits.items()}
        return zlib.compress(msgspec.msgpack.encode(parts), 1)

    @classmethod
    def load(cls, data: bytes) -> OffsetSet:
        """The offsets that `dump` returned; none of no bytes."""
        made = cls()
        if data:
            parts = msgspec.msgpack.decode(zlib.decompress(data), type=dict[int, tuple[int, bytes]])
            for partition, (first, bits) in parts.items():
                made._first[partition], made._bits[partition] = first, bytearray(bits)
        return made


class _Item(msgspec.Struct):
    """A label in its order: where it lies, and the event that it is for."""

    clock: int
    partition: int
    next_offset: int
    code: int
    place: tuple[int, int] | None = None
    event: RecordLike | None = None
    delay: int = 0
    taken: int = 0  # the ordinal behind it


class EarlyLabels:
    """The index of events, and the labels whose events are learned next.

    Attributes
    ----------
    learned
        Events that were learned when their labels came, and are not due yet.

    Parameters
    ----------
    config
        With [label_input].
    partitions
        Of the input.
    ids, decode
        From events to their ids, and from a message of the labels topic to its label.
    wait_of
        From the partition and the offset of an event to how long it waits.
    lookup
        Reads events again.
    on_lost
        See `OnLost`: of the input.
    broker_time
        From a time of this host to one that the brokers' clocks had reached by then.
    cluster
        Makes its reader.
    """

    def __init__(
        self,
        config: Config,
        *,
        partitions: int,
        ids: Callable[[Sequence[RecordLike]], list[bytes | None]],
        decode: Callable[[RecordLike], DecodedLabel],
        wait_of: Callable[[int, int], Wait],
        lookup: RecordReader,
        on_lost: OnLost,
        broker_time: Callable[[int], int],
        cluster: Cluster = KAFKA,
    ) -> None:
        assert config.label_input is not None
        self._labels = config.label_input
        self._topic = config.input.topic
        self._partitions = partitions
        self._ids = ids
        self._decode = decode
        self._wait_of = wait_of
        self._lookup = lookup
        self._broker_time = broker_time
        self._report_lost = on_lost
        self._reader = cluster.topic_reader(
            config.require_kafka(), config.input.topic, partitions, self._on_lost
        )
        self._read_to = ReadPositions(self._reader.seek)
        self._matched: dict[int, Position] = {}
        self._index: LabelTable | None = None
        self._order: TopicOrder | None = None
        self._items: deque[_Item] = deque()
        self._taken: deque[_Item] = deque()
        self._due: dict[int, int] = {}  # by partition the first offset that is not due
        self.learned = OffsetSet()

    async def start(self) -> None:
        """Connect."""
        await self._reader.start()

    async def stop(self) -> None:
        """Disconnect."""
        await self._reader.stop()

    async def load(
        self,
        offsets: Mapping[int, int],
        due: Mapping[int, int],
        source: Positions,
        learned: OffsetSet,
        *,
        after: int,
    ) -> None:
        """Read the ids of events again, and the labels that the last commit does not have.

        Parameters
        ----------
        offsets
            Of the first events that were not due at the last commit, by partition.
        due
            Of the first events that are not due now. The log may have announced some since the commit.
        source
            Of the lane: where it goes on in the labels topic.
        learned
            Events that were learned early, the announced ones too.
        after
            How long after its event a label may come: for the event that waits longest, in milliseconds.
        """
        self._due = dict(due)
        self._items.clear()
        self._taken.clear()
        self.learned = learned
        # The index is a table of labels with the parts changed: a label looks for the event that it is for.
        # Events that come after it wait until they are due: at its time it is not known that they come.
        self._index = LabelTable(after=0, lateness=after, max_labels=self._labels.max_labels)
        self._matched, self._order = dict(source.matched), None
        self._read_to.begin(self._reader.begin(offsets))

    def begin_labels(self, offsets: Mapping[int, int]) -> None:
        """Take labels that are read from these offsets on, but those that the last commit has."""
        where: dict[int, tuple[int, int]] = {}
        for partition, offset in offsets.items():
            known = self._matched.get(partition)
            where[partition] = (offset, 0) if known is None else (max(offset, known.next_offset), known.clock)
        self._order = TopicOrder(where)

    def close(self) -> None:
        """Forget the index."""
        self._index = self._order = None

    @property
    def dropped(self) -> int:
        """As of `ReadPositions`."""
        return self._read_to.dropped

    def _on_lost(self, partition: Partition, wanted: int, first: int) -> None:
        if self._read_to.lost(partition, wanted, first):
            self._report_lost(partition, wanted, first)

    def push(self, partition: int, span: Span) -> None:
        """Hand over messages of the labels topic."""
        if self._order is not None and span.end > (begin := self._order.position(partition)):
            self._order.push(partition, span.since(begin))

    def labels_lost(self, partition: int, wanted: int, first: int) -> None:
        """Go on at the first message of the labels topic that is left: see `OnLost`."""
        if self._order is not None and not wanted < first <= self._order.position(partition):
            self._order.lost(partition, first)

    def settled(self, partitions: Mapping[int, int]) -> None:
        """Hand over when each partition of the labels topic was read to its end (`FetchClock.settled`)."""
        if self._order is not None:
            for partition, sent in partitions.items():
                self._order.reached(partition, sent_ms=self._broker_time(sent))

    async def read(self) -> None:
        """Read the ids of new events, then the events of the next labels."""
        if self._index is None:
            return
        found = await self._reader.poll(0.0)
        index, order = self._index, self._order  # of after the poll: they may have been loaded again
        if index is None:
            return
        for place, span in self._read_to.take(found).items():
            records = span.records
            ids = self._ids(records)
            named = [n for n, each in enumerate(ids) if each is not None]
            index.add(
                digest_ids([each for each in ids if each is not None]),
                np.ones(len(named), np.uint8),
                np.array([records[n].timestamp for n in named], np.int64),
                place.partition,
                np.array([records[n].offset for n in named], np.int64),
            )
        known = self._reader.settled()
        if order is not None and len(known) == self._partitions:
            await self._find(index, order, self._broker_time(min(known.values())))

    async def _find(self, index: LabelTable, order: TopicOrder, until_ms: int) -> None:
        records = order.take(_AHEAD - len(self._items), before=lambda *_: (until_ms, np.inf))
        items, named, digests = [], [], []
        for record in records:
            item = _Item(record.clock, record.partition, record.position + 1, 0)
            with contextlib.suppress(RecordError):  # it is sent on by the reader of the topic
                label = self._decode(record)
                item.code = label.code
                digests.append(label.id)
                named.append(item)
            items.append(item)
        times = np.array([item.clock for item in named], np.int64)
        found, event_times, places = index.first(digest_ids(digests), times)
        delays = (times - event_times).tolist()
        for item, known, code, delay in zip(named, found.tolist(), places.tolist(), delays, strict=True):
            place = place_of_label(code)
            known = known and delay <= self._wait_of(*place).after
            if known and place[1] >= self._due.get(place[0], 0) and place not in self.learned:
                item.place, item.delay = place, delay
                self.learned.add(*place)
        # First: a commit or another `load` may come while the events are read, and must know of them.
        self._items += items
        await self._read_events([item for item in items if item.place is not None])

    async def _read_events(self, items: Sequence[_Item]) -> None:
        """Read events again, those that are near to each other together."""
        by_place = {item.place: item for item in items}
        places = sorted(place for place in by_place if place is not None)
        while places:
            count = 1
            while (
                count < len(places)
                and places[count][0] == places[0][0]
                and places[count][1] - places[count - 1][1] < _NEAR
            ):
                count += 1
            group, places = places[:count], places[count:]
            await self._read_near(by_place, group)

    async def _read_near(
        self, by_place: Mapping[tuple[int, int] | None, _Item], group: Sequence[tuple[int, int]]
    ) -> None:
        """Read the events of one partition from the first to the last of a group."""
        place = Partition(self._topic, group[0][0])
        async with contextlib.aclosing(self._lookup.span(place, group[0][1], group[-1][1] + 1)) as batches:
            async for records in batches:
                for record in records:
                    item = by_place.get((place.partition, record.offset))
                    if item is not None:
                        item.event = record
            await asyncio.sleep(0)

    # Taking

    def passed(self, partition: int, due: int) -> None:
        """Note that events before this offset are due: no label that comes from now on is for them."""
        self._due[partition] = due

    def next_ms(self, read_ms: int) -> int:
        """Time of the next label; without one the time as of which there is none, at most `read_ms`."""
        if self._items:
            return self._items[0].clock
        oldest = None if self._order is None else self._order.oldest_ms
        return read_ms if oldest is None else min(oldest, read_ms)

    def take(
        self, ordinal: int, most: int, *, before_ms: float, scored: Mapping[int, int] | None
    ) -> list[tuple[OrderedRecord, int]]:
        """Take the events of the next labels, up to a time, and how long after each its label came.

        Parameters
        ----------
        ordinal
            Of the next record.
        most
            Number of records.
        before_ms
            Labels before this time.
        scored
            By partition the offset behind the last event that was handed out to be scored: it is not learned
            before. None: others score.

        Returns
        -------
        list of (OrderedRecord, int)
            The events, and the delays of their labels in milliseconds.
        """
        out: list[tuple[OrderedRecord, int]] = []
        while self._items and len(out) < most and self._items[0].clock < before_ms:
            item = self._items[0]
            if item.place is not None and item.event is not None:
                partition, offset = item.place
                if scored is not None and offset >= scored.get(partition, 0):
                    break
                event = item.event
                record = OrderedRecord(
                    ordinal,
                    event.value,
                    event.key,
                    event.timestamp,
                    partition=partition,
                    position=offset,
                    clock=event.timestamp,
                    headers=event.headers,
                    label=item.code,
                    early=True,
                )
                out.append((record, item.delay))
                ordinal += 1
            item.taken = ordinal
            self._taken.append(self._items.popleft())
        return out

    def processed(self, source: Positions, next_offset: int) -> None:
        """Note which labels are done, by the ordinal up to which the lane has taken events."""
        while self._taken and self._taken[0].taken <= next_offset:
            item = self._taken.popleft()
            source.matched[item.partition] = Position(item.partition, item.next_offset, item.clock)
        for partition, each in source.due.items():
            self.learned.drop(partition, each.next_offset)

    def state(self, next_offset: int) -> bytes:
        """The events that were learned early, as of what the lane has taken."""
        ahead = [each for each in (*self._taken, *self._items) if not each.taken or each.taken > next_offset]
        return self.learned.dump([each.place for each in ahead if each.place is not None])

    def expire(self, due: int) -> None:
        """Let events go whose labels have had their time."""
        if self._index is not None:
            self._index.expire(due + self._index.lateness)
