"""Source of a lane whose labels come later than its events, on a topic of their own.

Events are scored when they come, and read a second time when they are due: once their label has had time to
come, and the labels topic was read as far. docs/design.md, "Labels that come late".
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from streampair.engine import OrderedRecord
from streampair.engine.labels import LabelTable, digest_ids
from streampair.engine.records import LABEL_LATER
from streampair.engine.wal import Wait
from streampair.errors import RecordError
from streampair_connectors import kafka
from streampair_connectors.codecs.labels import NO_ID, event_ids, label_decoder
from streampair_connectors.config import Config
from streampair_connectors.kafka import Consumer, Message, Partition, RecordLike, RecordReader, Routes
from streampair_connectors.kafka.consumer import TopicReader
from streampair_connectors.kafka.ordering import BUCKET_MS, TopicOrder, has_append_times
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.worker.lane_manager import OpenLane
from streampair_connectors.worker.sources import TopicSource

__all__ = ["LabelReader", "LateLabelSource"]

log = get_logger(__name__)

_QUEUE_BYTES = 1024 * 1024  # of one partition that is read a second time; then it is paused
_REASON = "streampair.reason"  # header of a label that was sent on


class Unused(NamedTuple):
    """A message of the labels topic that no event can use, and the reason."""

    record: RecordLike
    partition: int
    reason: str


class UsedLabels(msgspec.Struct, array_like=True):
    """Which labels events have used: in a snapshot, `LoggedLane.labels_used`.

    Attributes
    ----------
    used
        Of `LabelTable.used`.
    digests, times
        Of events that have used labels which are not in `used`, since labels were being read again.
    """

    used: bytes
    digests: bytes = b""
    times: list[int] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(UsedLabels).decode


class LabelReader:
    """Reads the labels topic into a table.

    Parameters
    ----------
    config
        With [labels].
    partitions
        Of the labels topic.

    Attributes
    ----------
    table
        The labels that events may still use.
    counts
        Messages of the topic by outcome.
    """

    def __init__(self, config: Config, partitions: int) -> None:
        assert config.labels is not None
        self._labels = config.labels
        self._decode = label_decoder(config)
        self._partitions = partitions
        self._reader = TopicReader(config.require_kafka(), self._labels.topic, partitions, self._on_lost)
        self._reported: dict[int, int] = {}  # what is before was sent on, where it was to be
        self.unused: list[Unused] = []
        self.read_to: dict[int, int] = {}
        self.newest = 0  # timestamp of the newest label
        self.table: LabelTable | None = None

    async def start(self) -> None:
        """Connect."""
        await self._reader.start()

    async def load(self, table: LabelTable, since_ms: int, reported: Mapping[int, int]) -> None:
        """Read the labels since a time again, into an empty table."""
        self.table = None
        offsets = await self._reader.offsets_at(since_ms)
        self._reported, self.unused, self.read_to = dict(reported), [], {}
        await self._reader.seek(offsets)
        self.table = table

    async def poll(self) -> None:
        """Take what has arrived; nothing before `load`."""
        if self.table is None:
            return
        for partition, records in (await self._reader.poll(0.0)).items():
            self._take(partition.partition, records)

    def _take(self, partition: int, records: Sequence[RecordLike]) -> None:
        ids: list[bytes] = []
        codes, times, offsets, kept = bytearray(), [], [], []
        for record in records:
            try:
                label = self._decode(record)
            except RecordError as error:
                self._send_on(record, partition, str(error))
                continue
            ids.append(label.id)
            codes.append(label.code)
            times.append(record.timestamp)
            offsets.append(record.offset)
            kept.append(record)
        if ids and self.table is not None:
            # A label from the future would say for as long that labels still come.
            self.newest = max(self.newest, min(max(times), round(time.time() * 1000)))
            late = self.table.add(
                digest_ids(ids),
                np.frombuffer(bytes(codes), np.uint8),
                np.array(times, np.int64),
                partition,
                np.array(offsets, np.int64),
            )
            for index in late.tolist():
                self._send_on(kept[index], partition, "every event that it could be for was learned before")
        self.read_to[partition] = records[-1].offset + 1

    def _send_on(self, record: RecordLike, partition: int, reason: str) -> None:
        if record.offset >= self._reported.get(partition, 0):
            self.unused.append(Unused(record, partition, reason))

    @property
    def labels(self) -> LabelTable:
        """The table, after `load`."""
        assert self.table is not None
        return self.table

    def settled(self) -> int | None:
        """Host's time as of which the whole topic was read; None: it was not yet."""
        found = self._reader.settled()
        return min(found.values()) if len(found) == self._partitions else None

    @property
    def has_grown(self) -> bool:
        """Whether partitions were added to the topic."""
        return self._reader.has_grown

    def _on_lost(self, partition: Partition) -> None:
        log.warning(
            "labels_lost",
            topic=partition.topic,
            partition=partition.partition,
            next_step="the topic's retention removed labels before they were read: raise its "
            "retention.ms above labels.after",
        )

    async def stop(self) -> None:
        """Disconnect."""
        await self._reader.stop()


class LateLabelSource(TopicSource):
    """One lane for the whole topic: new events to score, and due ones to learn.

    Parameters
    ----------
    config
        With [labels].
    consumer
        A member that has all partitions, or none.
    partitions, label_partitions
        Of the input and of the labels topic.
    lookup
        Reads single labels again.
    routes
        Choose the partition of the late-labels topic.
    """

    def __init__(
        self,
        config: Config,
        consumer: Consumer,
        *,
        partitions: int,
        label_partitions: int,
        lookup: RecordReader,
        routes: Routes,
    ) -> None:
        super().__init__(consumer, config.input.topic, partitions, label=LABEL_LATER)
        assert config.labels is not None
        self._config = config
        self._labels = config.labels
        self._ids = event_ids(config)
        self._lookup = lookup
        self._routes = routes
        self._due_reader = TopicReader(config.require_kafka(), config.input.topic, partitions, self._on_lost)
        self._label_reader = LabelReader(config, label_partitions)
        self._due_order: TopicOrder | None = None
        self._due_paused: set[int] = set()
        self._open: OpenLane | None = None
        self._loading: asyncio.Task[None] | None = None
        self._joined_ahead: list[tuple[int, int]] = []  # ordinals of events, and places of their labels
        self._quiet_since = 0.0
        self._waits: list[Wait] = []
        self._known_used = UsedLabels(b"")
        self._marks: list[OrderedRecord] = []  # events that have used labels which are being read again
        self._learns_only = config.learner.parallel

    async def start(self) -> None:
        """Connect."""
        await asyncio.gather(self._due_reader.start(), self._label_reader.start())

    async def stop(self) -> None:
        """Disconnect."""
        await kafka.ended(self._loading)
        await asyncio.gather(self._due_reader.stop(), self._label_reader.stop())

    def begin(self, lane: OpenLane) -> None:
        """Seek in all partitions, and read the labels again; scores do not wait for them."""
        self._keep_used()
        self._joined_ahead = []
        super().begin(lane)
        if self._learns_only:
            for partition in self._all:
                self._consumer.pause(partition)
        self._open = lane
        self._due_order = None
        lane.logged_lane.label_state = self._label_state
        if self._loading is not None:
            self._loading.cancel()
        source = lane.logged_lane.source
        assert source is not None
        positions: dict[int, tuple[int, int]] = {}
        for number, (start, _) in lane.spans.items():
            known = source.due.get(number)
            positions[number] = (start, 0) if known is None else (max(known.next_offset, start), known.clock)
        announced = [record for record in self._ready if record.due]
        for record in announced:
            clock = max(positions[record.partition][1], record.clock)
            positions[record.partition] = (record.position + 1, clock)
        state = lane.logged_lane.labels_used
        self._known_used = _decode(state) if state else UsedLabels(b"")
        self._marks = [record for record in (*lane.replayed_due, *announced) if record.label > 0]
        lane.replayed_due = []
        self._waits = source.wait(self._labels.after, self._labels.lateness)
        if len(self._waits) > 1:
            log.info(
                "labels_after_changed",
                app=self._config.app,
                topic=lane.topic,
                after_seconds=self._labels.after / 1000,
                next_step="none: events that came before wait as long as they were to",
            )
        self._loading = asyncio.create_task(self._load(lane, positions))

    def close(self, lane: OpenLane) -> None:
        """Feed the lane no longer; it keeps which labels were used."""
        self._keep_used()
        super().close(lane)
        self._open = self._due_order = None
        if self._loading is not None:
            self._loading.cancel()

    def _keep_used(self) -> None:
        if self._open is not None:
            self._open.logged_lane.labels_used = self._label_state()

    def _label_state(self) -> bytes:
        """Which labels were used by the events that the lane has taken.

        Events that were joined and not taken yet are joined again after a restart. While labels are read
        again, it is what was known, and the events that have used labels since.
        """
        assert self._open is not None
        lane = self._open.logged_lane
        taken = lane.next_offset or 0
        self._joined_ahead = [(ordinal, place) for ordinal, place in self._joined_ahead if ordinal >= taken]
        if self._due_order is not None:
            used = self._label_reader.labels.used(without=[place for _, place in self._joined_ahead])
            return _encode(UsedLabels(used))
        known = self._known_used
        _, digests, times = self._digests([each for each in self._marks if each.offset < taken])
        return _encode(
            UsedLabels(known.used, known.digests + digests.tobytes(), [*known.times, *times.tolist()])
        )

    async def _load(self, lane: OpenLane, positions: Mapping[int, tuple[int, int]]) -> None:
        """Read labels again, and due events from where the lane goes on: offset and clock by partition."""
        logged, labels = lane.logged_lane, self._labels
        source = logged.source
        assert source is not None
        # One table for all: what an event of another wait may use is checked when it is joined.
        table = LabelTable(
            after=max(wait.after for wait in self._waits),
            lateness=max(wait.lateness for wait in self._waits),
            max_labels=None if logged.private else labels.max_labels,
            # What a private learner does must not depend on how many labels come, so that they may not fill
            # the memory either.
            directory=Path(tempfile.gettempdir()) if logged.private else None,
        )
        known = self._known_used
        if known.used:
            table.load_used(known.used)
        if source.expired:
            table.expire(source.expired)
        await self._label_reader.load(table, source.expired - table.lateness, source.labels)
        await self._due_reader.seek({number: offset for number, (offset, _) in positions.items()})
        self._due_paused = set()
        if self._marks or known.times:
            while self._label_reader.settled() is None:  # noqa: ASYNC110  # polled by the loop of the worker
                await asyncio.sleep(0.02)
            earlier = np.frombuffer(known.digests, np.uint64).reshape(-1, 2)
            table.mark_used(earlier, np.array(known.times, np.int64), np.ones(len(known.times)))
            named, digests, times = self._digests(self._marks)
            table.mark_used(digests, times, np.ones(len(named)))
        self._marks = []
        self._due_order = TopicOrder(positions, label=0)

    # Reading

    async def _read(self, order: TopicOrder, wait: float) -> None:
        await super()._read(order, wait)
        loading = self._loading
        if loading is not None and loading.done() and not loading.cancelled():
            loading.result()
        if self._open is None:
            return
        await self._label_reader.poll()
        if self._due_order is not None:
            await self._read_due(self._due_order)

    async def _read_due(self, order: TopicOrder) -> None:
        found = await self._due_reader.poll(0.0)
        if order is not self._due_order:
            return
        now = round(time.time() * 1000)
        for partition, records in found.items():
            number = partition.partition
            newest = None if has_append_times(records) else now
            order.push(number, records, newest_ms=newest)
            if order.waiting_bytes(number) > _QUEUE_BYTES and number not in self._due_paused:
                self._due_paused.add(number)
                self._due_reader.pause(partition)
        for number, sent in self._due_reader.settled().items():
            order.reached(number, sent_ms=self._broker_time(sent))
        for number in list(self._due_paused):
            if order.waiting_bytes(number) < _QUEUE_BYTES // 2:
                self._due_paused.discard(number)
                self._due_reader.resume(Partition(self._lane.topic, number))

    def _take(self, order: TopicOrder, room: int) -> None:
        """Take due events for half of the room, and new ones for the rest."""
        due = self._take_due(room if self._learns_only else max(room // 2, 1), order)
        if not self._learns_only:
            super()._take(order, room - due)

    def _take_due(self, most: int, arrivals: TopicOrder) -> int:
        order = self._due_order
        limit = self._labels_read()
        if order is None or limit is None:
            return 0
        order.ordinal = arrivals.ordinal
        records = order.take(most, before=functools.partial(self._before, limit))
        arrivals.ordinal = order.ordinal
        if records:
            self._ready += self._joined(records)
        return len(records)

    def _wait_of(self, partition: int, offset: int) -> Wait:
        return next(wait for wait in self._waits if not wait.until or offset < wait.until.get(partition, 0))

    def _before(self, read: int, partition: int, offset: int) -> tuple[int, float]:
        wait = self._wait_of(partition, offset)
        return read - wait.after - wait.lateness, wait.until.get(partition, math.inf)

    def _broker_time(self, host_ms: int) -> int:
        """The brokers' time at a time of the host: never later than it was.

        A store in Kafka compares the clocks with each commit. With a directory the host's clock counts: where
        it is ahead, events are learned before their labels could come.
        """
        ahead = None if self._open is None else self._open.store.clock_ahead
        return min(host_ms, round(time.time() * 1000)) - (ahead or 0)

    def _labels_read(self) -> int | None:
        """Time as of which the labels topic was read; None: nothing is due."""
        read = self._label_reader.settled()
        if read is None or self._open is None:
            return None
        read = self._broker_time(read)
        labels = self._labels
        if labels.quiet is not None and read - self._label_reader.newest > labels.quiet and not self._private:
            if time.monotonic() > self._quiet_since + 60.0:
                self._quiet_since = time.monotonic()
                log.warning(
                    "labels_have_stopped",
                    topic=labels.topic,
                    next_step="look whether what writes labels still runs: nothing is learned until the next "
                    "label, since without labels every event would be learned as labels.absent",
                )
            return None
        return read - BUCKET_MS

    def _joined(self, records: list[OrderedRecord]) -> list[OrderedRecord]:
        """The records with the codes of their labels."""
        named, digests, times = self._digests(records)
        joined = self._label_reader.labels.join(digests, times)
        for event, place in zip(joined.events.tolist(), joined.places.tolist(), strict=True):
            self._joined_ahead.append((records[named[event]].offset, place))
        out = list(records)
        for index in set(range(len(records))).difference(named):
            out[index] = msgspec.structs.replace(records[index], label=NO_ID)
        codes, delays = joined.codes.tolist(), (joined.times - times).tolist()
        for index, code, delay in zip(named, codes, delays, strict=True):
            if code:
                wait = self._wait_of(records[index].partition, records[index].position)
                if -wait.lateness <= delay <= wait.after:
                    out[index] = msgspec.structs.replace(records[index], label=code)
        return out

    def _digests(self, records: Sequence[OrderedRecord]) -> tuple[list[int], Any, Any]:
        """Of events with an id: their indices, the digests of the ids, and the times of the events.

        A timestamp in the future counts as that of the order; one before it by more than `lateness` as so
        much before it, since older labels may be gone, depending on when the lane has committed.
        """
        ids, lateness = self._ids(records), self._labels.lateness
        named = [index for index, each in enumerate(ids) if each is not None]
        found = [records[index] for index in named]
        times = [min(max(each.timestamp, each.clock - lateness), each.clock) for each in found]
        return named, digest_ids([each for each in ids if each is not None]), np.array(times, np.int64)

    @property
    def has_grown(self) -> bool:
        """Whether partitions were added to the labels topic."""
        return self._label_reader.has_grown

    def _on_lost(self, partition: Partition) -> None:
        lane = self._open
        if lane is not None:
            lane.logged_lane.skipped()
        log.warning(
            "events_lost",
            topic=partition.topic,
            partition=partition.partition,
            next_step="the topic's retention removed events before they were due: raise its "
            "retention.ms above labels.after",
        )

    # Labels that no event has used

    async def send_on(self, lane: OpenLane) -> int:
        """Send labels that no event has used, or can use, to their topic; returns their number."""
        source, reader = lane.logged_lane.source, self._label_reader
        if source is None or self._due_order is None:
            return 0
        unused, reader.unused = reader.unused, []
        fronts = [each.clock for each in source.due.values()]
        front = max(fronts, default=0) - BUCKET_MS - self._labels.lateness
        if front > source.expired:
            places = reader.labels.expire(front)
            unused += await self._read_again(places)
            source.expired = front
        source.labels.update(reader.read_to)
        topic = self._config.late_labels_topic
        assert topic is not None
        out: dict[Partition, list[Message]] = {}
        for each in unused:
            headers = [
                *each.record.headers,
                (_REASON, each.reason.encode()),
                ("streampair.topic", self._labels.topic.encode()),
                ("streampair.partition", str(each.partition).encode()),
                ("streampair.offset", str(each.record.offset).encode()),
            ]
            target = self._routes.target(topic, each.record.key, each.partition)
            out.setdefault(target, []).append(Message(each.record.key, each.record.value, headers))
        for target, messages in out.items():
            await lane.store.send(target, messages)
        return len(unused)

    async def _read_again(self, places: Sequence[tuple[int, int]]) -> list[Unused]:
        """The messages at these places, as far as the topic still has them."""
        found: list[Unused] = []
        for number in sorted({partition for partition, _ in places}):
            wanted = {offset for partition, offset in places if partition == number}
            place = Partition(self._labels.topic, number)
            start = (await self._lookup.spans([place]))[number][0]
            first, end = max(min(wanted), start), max(wanted) + 1
            async with contextlib.aclosing(self._lookup.span(place, first, end)) as batches:
                async for records in batches:
                    found += [
                        Unused(record, number, "no event had this id in time")
                        for record in records
                        if record.offset in wanted
                    ]
        return found
