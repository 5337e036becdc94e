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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.engine import OrderedRecord
from streampair.engine.delays import LateSample, ScoreSample
from streampair.engine.exploration import weight_of
from streampair.engine.labels import LabelTable, digest_ids
from streampair.engine.records import LABEL_LATER, LABEL_LEARNED, LABEL_NO_ID, LABEL_STOPPED
from streampair.engine.wal import Position, Wait
from streampair.errors import RecordError
from streampair_connectors import kafka
from streampair_connectors.codecs.labels import LabelDecoder, event_ids
from streampair_connectors.codecs.scores import PublishedScore, score_reader
from streampair_connectors.config import Config
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.kafka import (
    KAFKA,
    Cluster,
    Consumer,
    Message,
    Partition,
    ReadPositions,
    RecordLike,
    RecordReader,
    Routes,
)
from streampair_connectors.kafka.consumer import ended_before
from streampair_connectors.kafka.ordering import BUCKET_MS, TakenRecords, TopicOrder, has_append_times
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.observability.metric_definitions import LabelMetrics
from streampair_connectors.worker.early_labels import EarlyLabels, OffsetSet
from streampair_connectors.worker.factory import is_private
from streampair_connectors.worker.label_counts import LabelCounts
from streampair_connectors.worker.lane_manager import OpenLane
from streampair_connectors.worker.outputs import kept_headers, kept_key
from streampair_connectors.worker.sources import OrderFeed, TopicSource, order_starts

__all__ = ["LabelReader", "LateLabelSource"]

log = get_logger(__name__)

_QUEUE_BYTES = 1024 * 1024  # of one partition that is read a second time; then it is paused
_QUIET_SECONDS = 60.0  # between two warnings
_EXPIRIES = 1024  # while a label waits: each looks at all labels
_REASON = "streampair.reason"  # header of a label that was sent on


class Unused(NamedTuple):
    """A message of the labels topic that no event can use, and the reason."""

    record: RecordLike
    partition: int
    reason: str


class UsedLabels(msgspec.Struct, array_like=True):
    """Labels that events have used: in a snapshot, `LoggedLane.labels_used`.

    Attributes
    ----------
    used
        Of `LabelTable.used`.
    digests, times
        Of events that have used labels which are not in `used`, since labels were being read again.
    early
        Events that were learned when their labels came: `OffsetSet.dump`.
    scores
        Up to which offset each partition of the scores was read, where others score.
    """

    used: bytes
    digests: bytes = b""
    times: list[int] = []
    early: bytes = b""
    scores: dict[int, int] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(UsedLabels).decode


class LabelReader:
    """Reads the labels topic into a table.

    Parameters
    ----------
    config
        With [label_input].
    partitions
        Of the labels topic.
    now
        Returns the time in milliseconds beyond which a timestamp is from the future.
    cluster
        Makes its reader.

    Attributes
    ----------
    table
        The labels that events may still use.
    counts
        Messages of the topic by outcome.
    late_sample
        As of the lane.
    """

    def __init__(
        self, config: Config, partitions: int, now: Callable[[], int], *, cluster: Cluster = KAFKA
    ) -> None:
        assert config.label_input is not None
        self._now = now
        self._labels = config.label_input
        self._decode = LabelDecoder(config, quotes=not is_private(config))
        self._partitions = partitions
        self._reader = cluster.topic_reader(
            config.require_kafka(), self._labels.topic, partitions, self._on_lost
        )
        self._read_to = ReadPositions(self._reader.seek)
        self._reported: dict[int, int] = {}  # what is before was sent on, where it was to be
        self.unused: list[Unused] = []
        self.newest = 0  # timestamp of the newest label
        self.table: LabelTable | None = None
        self.counts = self.new_counts()
        self.late_sample: LateSample | None = None
        self.early: EarlyLabels | None = None

    def new_counts(self) -> LabelCounts:
        """Counts of a lane that is opened."""
        return LabelCounts(stopped=self._labels.stopped is not None)

    async def start(self) -> None:
        """Connect."""
        await self._reader.start()

    async def load(self, table: LabelTable, since_ms: int, reported: Mapping[int, int]) -> None:
        """Read the labels since a time again, into an empty table."""
        self.table = None
        self._read_to.begin({})
        offsets = await self._reader.offsets_at(since_ms)
        self._reported, self.unused = dict(reported), []
        self._read_to.begin(self._reader.begin(offsets))
        if self.early is not None:
            self.early.begin_labels(offsets)
        self.table = table

    async def poll(self) -> None:
        """Take what has arrived; nothing before `load`."""
        if self.table is None:
            return
        for partition, span in self._read_to.take(await self._reader.poll(0.0)).items():
            if span.records:
                self._take(partition.partition, span.records)
            if self.early is not None:
                self.early.push(partition.partition, span)
        if self.early is not None:
            self.early.settled(self._reader.settled())

    @property
    def read_to(self) -> dict[int, int]:
        """By partition the offset behind the messages that were read, those of an earlier run too."""
        return {p: max(offset, self._reported.get(p, 0)) for p, offset in self._read_to.offsets.items()}

    @property
    def dropped(self) -> int:
        """As of `ReadPositions`."""
        return self._read_to.dropped

    @property
    def decode(self) -> LabelDecoder:
        """From a message to its label."""
        return self._decode

    def _take(self, partition: int, records: Sequence[RecordLike]) -> None:
        ids, codes, kept = self._decoded(partition, records)
        if ids and self.table is not None:
            times = np.array([record.timestamp for record in kept], np.int64)
            # That events are stopped does not say that the outcomes of others still come. And a label from
            # the future would say so for as long.
            if len(outcomes := times[codes != LABEL_STOPPED]):
                self.newest = max(self.newest, min(int(outcomes.max()), self._now()))
            digests = digest_ids(ids)
            if self.late_sample is not None:
                self.late_sample.match(
                    digests,
                    times.tolist(),
                    after=int(self._labels.after),
                    lateness=int(self._labels.lateness),
                )
            late = self.table.add(
                digests,
                codes,
                times,
                partition,
                np.array([record.offset for record in kept], np.int64),
            )
            for index in late.tolist():
                reason = "every event that it could be for was learned before"
                self._send_on(kept[index], partition, reason, "late")

    def _decoded(
        self, partition: int, records: Sequence[RecordLike]
    ) -> tuple[list[bytes], NDArray[np.uint8], Sequence[RecordLike]]:
        """The ids and codes of labels, and the messages that they are in; the others are sent on."""
        if (decoded := self._decode.many(records)) is not None:
            return *decoded, records
        labels, kept = [], []
        for record in records:
            try:
                labels.append(self._decode(record))
            except RecordError as error:
                self._send_on(record, partition, str(error), "unreadable")
            else:
                kept.append(record)
        return [label.id for label in labels], np.array([label.code for label in labels], np.uint8), kept

    def _send_on(self, record: RecordLike, partition: int, reason: str, outcome: str) -> None:
        if record.offset >= self._reported.get(partition, 0):
            self.counts.messages[outcome] += 1
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

    def _on_lost(self, partition: Partition, wanted: int, first: int) -> None:
        if not self._read_to.lost(partition, wanted, first):
            return
        if self.early is not None:
            self.early.labels_lost(partition.partition, wanted, first)
        if first < wanted:  # the topic was made again
            self._reported.pop(partition.partition, None)
        log.warning(
            "labels_lost",
            topic=partition.topic,
            partition=partition.partition,
            wanted_offset=wanted,
            first_offset=first,
            next_step="the topic's retention removed labels before they were read: raise its "
            "retention.ms above label_input.after",
        )

    async def stop(self) -> None:
        """Disconnect."""
        await self._reader.stop()


class ScoreReader:
    """Reads the scores that scorers give, for the quality of the scores that events were given.

    Parameters
    ----------
    config
        Of the application.
    partitions
        Of the output topic.
    cluster
        Makes its reader.
    """

    def __init__(self, config: Config, partitions: int, *, cluster: Cluster = KAFKA) -> None:
        self._reader = cluster.topic_reader(
            config.require_kafka(), config.output_topic, partitions, self._on_lost
        )
        self._read_to = ReadPositions(self._reader.seek)
        self._decode = score_reader(config, PublishedScore)
        self._of = config.app, config.input.topic

    async def start(self) -> None:
        """Connect."""
        await self._reader.start()

    async def load(self, read_to: Mapping[int, int]) -> None:
        """Read on; a partition that was not read from its start."""
        starts = await self._reader.offsets_at(0)
        offsets = {number: max(read_to.get(number, 0), start) for number, start in starts.items()}
        self._read_to.begin(self._reader.begin(offsets))

    async def poll(self, sample: ScoreSample, due: Mapping[int, Position]) -> None:
        """Add what has arrived to the sample, but for events before the `due` ones; nothing before `load`.

        A score that comes after its event was learned is of a model that may have learned it. The first
        score of an event counts: it has acted.
        """
        if not self.read_to:
            return
        for span in self._read_to.take(await self._reader.poll(0.0)).values():
            for record in span.records:
                # Of a message that was split, or of a time when scores had another format.
                with contextlib.suppress(msgspec.MsgspecError, RecordError, TypeError):
                    row = self._decode(record.value or b"")
                    if (row.app, row.topic) != self._of or sample.has(row.partition, row.offset):
                        continue
                    known = due.get(row.partition)
                    if row.score is not None and (known is None or row.offset >= known.next_offset):
                        weight = weight_of(row.score, row.threshold, row.share, explored=row.explore)
                        sample.add(row.partition, row.offset, row.score, weight)

    @property
    def read_to(self) -> dict[int, int]:
        """Up to which offset each partition was read."""
        return self._read_to.offsets

    @property
    def dropped(self) -> int:
        """As of `ReadPositions`."""
        return self._read_to.dropped

    def _on_lost(self, partition: Partition, wanted: int, first: int) -> None:
        if self._read_to.lost(partition, wanted, first):
            log.warning(
                "scores_lost",
                topic=partition.topic,
                partition=partition.partition,
                wanted_offset=wanted,
                first_offset=first,
                next_step="none: the quality of these scores is not measured. The topic's retention removed "
                "them before they were read",
            )

    async def stop(self) -> None:
        """Disconnect."""
        await self._reader.stop()


class _JoinedAhead(NamedTuple):
    """Labels that were joined together: the last ordinal, those of their events, and their places."""

    last: int
    ordinals: NDArray[np.int64]
    places: NDArray[np.uint64]


class LateLabelSource(TopicSource):
    """One lane for the whole topic: new events to score, and due ones to learn.

    Parameters
    ----------
    config
        With [label_input].
    consumer
        A member that has all partitions, or none.
    partitions, label_partitions
        Of the input and of the labels topic.
    lookup
        Reads single labels again.
    routes
        Choose the partition of the late-labels topic.
    host, cluster
        Its clock, and what makes its readers.
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
        host: Host = THIS_HOST,
        cluster: Cluster = KAFKA,
    ) -> None:
        super().__init__(consumer, config.input.topic, partitions, label=LABEL_LATER, host=host)
        self._cluster = cluster
        assert config.label_input is not None
        self._config = config
        self._labels = config.label_input
        self._ids = event_ids(config)
        self._lookup = lookup
        self._routes = routes
        self._due_reader = cluster.topic_reader(
            config.require_kafka(), config.input.topic, partitions, self._on_due_lost
        )
        self._label_reader = LabelReader(config, label_partitions, self._latest_time, cluster=cluster)
        self._due_read_to = ReadPositions(self._due_reader.seek)
        self._due_order: TopicOrder | None = None
        self._due_feed = OrderFeed(self._due_reader, config.input.topic, _QUEUE_BYTES, host=host)
        self._open: OpenLane | None = None
        self._loading: asyncio.Task[None] | None = None
        self._joined_ahead: deque[_JoinedAhead] = deque()
        self._quiet_until = 0.0  # when it may be said again that labels have stopped
        self._waits: list[Wait] = []
        self._known_used = UsedLabels(b"")
        self._marks: list[OrderedRecord] = []  # events that have used labels which are being read again
        self._learned_since: list[OrderedRecord] = []  # and those that were learned early
        self._learns_only = config.learner.parallel
        self._reading = True  # the labels, again, since `begin`
        self._scored: dict[int, int] = {}  # behind the last event that was handed out to be scored
        self._scores: ScoreReader | None = None
        self._early: EarlyLabels | None = None
        if self._labels.order == "arrival":
            self._early = self._label_reader.early = EarlyLabels(
                config,
                partitions=partitions,
                ids=self._ids,
                decode=self._label_reader.decode,
                wait_of=self._wait_of,
                lookup=lookup,
                on_lost=self._report_lost,
                broker_time=self._broker_time,
                cluster=cluster,
            )

    async def start(self) -> None:
        """Connect."""
        await asyncio.gather(self._due_reader.start(), self._label_reader.start())
        if self._early is not None:
            await self._early.start()
        if self._learns_only:
            self._scores = ScoreReader(
                self._config, self._routes.count(self._config.output_topic), cluster=self._cluster
            )
            await self._scores.start()

    async def stop(self) -> None:
        """Disconnect."""
        await kafka.ended(self._loading)
        await asyncio.gather(self._due_reader.stop(), self._label_reader.stop())
        for reader in (self._early, self._scores):
            if reader is not None:
                await reader.stop()

    def begin(self, lane: OpenLane) -> None:
        """Seek in all partitions, and read the labels again; scores do not wait for them."""
        self._keep_used()
        self._joined_ahead.clear()
        super().begin(lane)
        if self._open is not lane:
            self._label_reader.counts = self._label_reader.new_counts()
        self._label_reader.late_sample, self._reading = lane.logged_lane.late_sample, True
        if self._learns_only:
            for partition in self._all:
                self._consumer.pause(partition)
        self._open = lane
        self._due_order = None
        self._due_read_to.begin({})
        lane.logged_lane.label_state = self._label_state
        if self._loading is not None:
            self._loading.cancel()
        source = lane.source
        announced = [record for record in self._ready if record.due]
        in_order = (record for record in announced if not record.early)
        positions = order_starts(lane.spans, source.due, in_order)
        self._scored = {p: each.next_offset for p, each in source.positions.items()}
        self._note_scored(self._ready)
        state = lane.logged_lane.labels_used
        self._known_used = _decode(state) if state else UsedLabels(b"")
        since = [*lane.replayed_due, *announced]
        self._marks = [record for record in since if record.label > 0 and not record.early]
        self._learned_since = [record for record in since if record.early]
        lane.replayed_due = []
        self._waits = source.wait(int(self._labels.after), int(self._labels.lateness))
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
        self._due_read_to.begin({})
        if self._loading is not None:
            self._loading.cancel()
        if self._early is not None:
            self._early.close()

    def _keep_used(self) -> None:
        if self._open is not None:
            self._open.logged_lane.labels_used = self._label_state()

    def _label_state(self) -> bytes:
        """Encode the labels that were used by the events that the lane has taken.

        Events that were joined and not taken yet are joined again after a restart. While labels are read
        again, it is what was known, and the events that have used labels since.
        """
        assert self._open is not None
        lane = self._open.logged_lane
        taken = lane.next_offset or 0
        if self._due_order is not None:
            self._forget_taken(taken)
            ahead = [each.places[each.ordinals >= taken] for each in self._joined_ahead]
            used = self._label_reader.labels.used(without=np.concatenate(ahead) if ahead else ())
            early = b"" if self._early is None else self._early.state(taken)
            return _encode(UsedLabels(used, early=early, scores=self._scores_read()))
        known = self._known_used
        _, digests, times = self._digests_of([each for each in self._marks if each.offset < taken])
        learned = self._learned_early(taken)
        return _encode(
            UsedLabels(
                *(known.used, known.digests + digests.tobytes(), [*known.times, *times.tolist()]),
                learned.dump() if self._early is not None else b"",
                self._scores_read(),
            )
        )

    def _forget_taken(self, taken: int) -> None:
        """Forget the labels of events that the lane has taken, up to this ordinal."""
        while self._joined_ahead and self._joined_ahead[0].last < taken:
            self._joined_ahead.popleft()

    def _scores_read(self) -> dict[int, int]:
        return {} if self._scores is None else dict(self._scores.read_to)

    def _learned_early(self, before: float = math.inf) -> OffsetSet:
        """The events that were learned early, those that the start has replayed or announced too."""
        learned = OffsetSet.load(self._known_used.early)
        for record in self._learned_since:
            if record.offset < before:
                learned.add(record.partition, record.position)
        return learned

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
        offsets = {number: offset for number, (offset, _) in positions.items()}
        if self._scores is not None:
            await self._scores.load(known.scores)
        if self._early is not None:
            committed = order_starts(lane.spans, source.due, ())
            first = {number: offset for number, (offset, _) in committed.items()}
            await self._early.load(first, offsets, source, self._learned_early(), after=table.after)
        await self._label_reader.load(table, source.expired - table.lateness, source.labels)
        if self._marks or known.times:
            while self._label_reader.settled() is None:  # noqa: ASYNC110  # polled by the loop of the worker
                await asyncio.sleep(0.02)
            earlier = np.frombuffer(known.digests, np.uint64).reshape(-1, 2)
            table.mark_used(earlier, np.array(known.times, np.int64), np.ones(len(known.times)))
            named, digests, times = self._digests_of(self._marks)
            table.mark_used(digests, times, np.ones(len(named)))
        self._marks, self._learned_since = [], []
        self._due_read_to.begin(self._due_reader.begin(offsets))
        self._due_feed.begin()
        self._due_order = TopicOrder(positions, label=0)

    # Reading

    async def poll(self, most: int, seconds: float) -> Sequence[OrderedRecord]:
        """Read, and return what is in order: as many events to be learned as to be scored.

        Each kind makes batches of its own: half of `most` would make them half as large.
        """
        return await super().poll(most if self._learns_only else 2 * most, seconds)

    async def _read(self, wait: float) -> None:
        await super()._read(wait)
        loading = self._loading
        if loading is not None and loading.done() and not loading.cancelled():
            loading.result()
        if self._open is None:
            return
        await self._label_reader.poll()
        if self._open is None:  # closed meanwhile, by a rebalance
            return
        logged = self._open.logged_lane
        if self._scores is not None and logged.score_sample is not None and logged.source is not None:
            await self._scores.poll(logged.score_sample, logged.source.due)
        if self._due_order is not None:
            await self._read_due()
            if self._early is not None:
                await self._early.read()

    async def _read_due(self) -> None:
        found = await self._due_reader.poll(0.0)
        order = self._due_order
        if order is None:  # closed, or begun anew, meanwhile: the partitions are sought again
            return
        taken = self._due_read_to.take(found)
        for records in (span.records for span in taken.values() if span.records):
            if has_append_times(records):
                self._broker_clock.saw(records[-1].timestamp)
        self._due_feed.push(order, taken, broker_time=self._broker_time)

    def _take(self, order: TopicOrder, room: int) -> None:
        """Take due events for half of the room, and new ones for the rest."""
        due = 0
        limit = self._labels_read()
        if limit is not None and self._due_order is not None:
            most = room if self._learns_only else max(room // 2, 1)
            if self._early is None:
                due = self._take_due(self._due_order, order, most, limit)
            else:
                due = self._take_by_labels(self._early, self._due_order, order, most, limit)
        if not self._learns_only:
            begin = len(self._ready)
            super()._take(order, room - due)
            self._note_scored(self._ready[begin:])

    def _note_scored(self, records: Sequence[OrderedRecord]) -> None:
        for record in records:
            if not record.due:
                self._scored[record.partition] = record.position + 1

    def _take_due(self, order: TopicOrder, arrivals: TopicOrder, most: int, read: float) -> int:
        """Take events that were due by this time."""
        order.ordinal = arrivals.ordinal
        taken = order.take_columns(most, before=functools.partial(self._before, read))
        arrivals.ordinal = order.ordinal
        if taken.records:
            self._ready += taken.ordered(self._join(taken))
        if self._early is not None:
            for partition, record in zip(taken.partitions, taken.records, strict=True):
                self._early.passed(partition, record.offset + 1)
        return len(taken.records)

    def _take_by_labels(
        self, early: EarlyLabels, order: TopicOrder, arrivals: TopicOrder, most: int, read: int
    ) -> int:
        """Take events of which labels have come, and those that are due, in the order of these times."""
        taken = before = 0
        while taken < most:
            taken += self._take_due(order, arrivals, most - taken, early.next_ms(read))
            found = early.take(
                arrivals.ordinal,
                most - taken,
                before_ms=self._next_due(order),
                scored=None if self._learns_only else self._scored,
            )
            arrivals.ordinal += len(found)
            self._ready += [record for record, _ in found]
            delays, codes = [delay for _, delay in found], [record.label for record, _ in found]
            self._label_reader.counts.used(delays, codes, repeats=0, contradictions=0)
            taken += len(found)
            if taken == before:
                break
            before = taken
        return taken

    def _next_due(self, order: TopicOrder) -> int:
        """The time at which the next event is due; a lower bound of it where that one was not read yet."""
        time, partition, offset = order.next_place
        waits = self._waits if offset is None else [self._wait_of(partition, offset)]
        return time + BUCKET_MS + min(wait.after + wait.lateness for wait in waits)

    def _wait_of(self, partition: int, offset: int) -> Wait:
        return next(wait for wait in self._waits if not wait.until or offset < wait.until.get(partition, 0))

    def _before(self, read: float, partition: int, offset: int) -> tuple[int, float]:
        """The time and the offset before which events are learned: some that are due are not scored yet."""
        scored = math.inf if self._learns_only else self._scored.get(partition, 0)
        wait = self._waits[0] if len(self._waits) == 1 else self._wait_of(partition, offset)
        return int(read) - wait.after - wait.lateness, min(wait.until.get(partition, math.inf), scored)

    def _broker_time(self, host_ms: int) -> int:
        """The brokers' time at a time of the host: never later than it was.

        A store in Kafka compares the clocks with each commit. With a directory the timestamps of events tell,
        if brokers set them: not those of labels, since what a private learner does must not depend on whether
        labels come. Else the host's clock counts: where it is ahead, events are learned before their labels
        could come.
        """
        ahead = None if self._open is None else self._open.store.clock_ahead
        if ahead is None:
            ahead = self._broker_clock.ahead
        return min(host_ms, self._host.now_ms) - (ahead or 0)

    def _latest_time(self) -> int:
        """The later one of this host's time and the brokers'."""
        now = self._host.now_ms
        return max(now, self._broker_time(now))

    def _labels_read(self) -> int | None:
        """Time as of which the labels topic was read; None: nothing is due."""
        read = self._label_reader.settled()
        if read is None or self._open is None:
            return None
        read = self._broker_time(read)
        self._reading = self._due_order is None
        labels = self._labels
        if labels.quiet is not None and read - self._label_reader.newest > labels.quiet:
            self._report_quiet()
            # To hold a private learner would be control flow by what labels there are.
            return read - BUCKET_MS if self._private else None
        return read - BUCKET_MS

    def _report_quiet(self) -> None:
        if self._host.monotonic() < self._quiet_until:
            return
        self._quiet_until = self._host.monotonic() + _QUIET_SECONDS
        log.warning(
            "labels_have_stopped",
            topic=self._labels.topic,
            next_step="look whether what writes labels still runs. "
            + (
                "Events are learned as label_input.absent meanwhile: what a private learner does must not "
                "depend on labels that come"
                if self._private
                else "Nothing is learned until the next label, since every event would be learned as "
                "label_input.absent"
            ),
        )

    def _join(self, taken: TakenRecords) -> list[int]:
        """Codes of the labels of records that nobody else has yet."""
        records, reader = taken.records, self._label_reader
        stamps = [record.timestamp for record in records]
        named, digests, times = self._digests(self._ids(records), stamps, taken.clocks)
        joined = reader.labels.join(digests, times)
        if len(joined.events):
            last = taken.ordinal + len(records) - 1
            self._joined_ahead.append(_JoinedAhead(last, taken.ordinal + named[joined.events], joined.places))
        delays = joined.times - times
        in_time = self._in_time(taken, named, delays) & (joined.codes > 0)
        labels = np.full(len(records), LABEL_NO_ID)
        labels[named] = np.where(in_time, joined.codes, 0)
        if self._early is not None:
            learned = self._early.learned
            places = zip(taken.partitions, records, strict=True)
            labels[[(partition, each.offset) in learned for partition, each in places]] = LABEL_LEARNED
            in_time &= labels[named] != LABEL_LEARNED
        reader.counts.without_id += len(records) - len(named)
        reader.counts.used(
            *(delays[in_time], joined.codes[in_time]),
            repeats=joined.repeats,
            contradictions=joined.contradictions,
        )
        if reader.late_sample is not None:
            # No other label of a stopped event can be late: it would hide those of others that are.
            open_ = joined.codes != LABEL_STOPPED
            reader.late_sample.extend(
                digests[open_], times[open_], labels[named[open_]] > 0, after=self._labels.after
            )
        return cast("list[int]", labels.tolist())

    def _in_time(
        self, taken: TakenRecords, named: NDArray[np.int64], delays: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Whether a label with this delay counts for each of the named records, as long as it waits."""
        if len(self._waits) == 1:
            (wait,) = self._waits
            return (-wait.lateness <= delays) & (delays <= wait.after)
        waits = [self._wait_of(taken.partitions[n], taken.records[n].offset) for n in named.tolist()]
        earliest = np.array([-wait.lateness for wait in waits], np.int64)
        return (earliest <= delays) & (delays <= np.array([wait.after for wait in waits], np.int64))

    def _digests(
        self, ids: Sequence[bytes | None], stamps: Sequence[int], clocks: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
        """Of events with an id: their indices, the digests of the ids, and the times of the events.

        A timestamp in the future counts as that of the order; one before it by more than `lateness` as so
        much before it, since older labels may be gone, depending on when the lane has committed.
        """
        lateness, known = self._labels.lateness, [each for each in ids if each is not None]
        named = np.arange(len(ids), dtype=np.int64)
        if len(known) < len(ids):
            named = named[[each is not None for each in ids]]
        newest = np.array(clocks, np.int64)[named]
        times = np.clip(np.array(stamps, np.int64)[named], newest - lateness, newest)
        return named, digest_ids(known), times

    def _digests_of(
        self, records: Sequence[OrderedRecord]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
        """As `_digests`, of records in order."""
        clocks = [record.clock for record in records]
        return self._digests(self._ids(records), [record.timestamp for record in records], clocks)

    def label_metrics(self, lane: OpenLane) -> LabelMetrics | None:
        """Return the metrics of the labels, as of now."""
        source, reader, order = lane.source, self._label_reader, self._due_order
        reading, table = self._reading or order is None, reader.table
        oldest = None if order is None else order.oldest_ms
        now = self._host.time_ns() / 1e9
        due_at = now if oldest is None else (oldest + BUCKET_MS + self._labels.wait) / 1000.0
        learned = sum(
            max(source.due[p].next_offset, first) if p in source.due else first
            for p, (first, _) in lane.spans.items()
        )
        scored = self.end(lane) if self._learns_only else self.taken(lane)
        clock = max((each.clock for each in source.due.values()), default=0)
        return LabelMetrics(
            messages=dict(reader.counts.messages),
            kept=0 if table is None else len(table),
            newest=reader.newest / 1000.0 if reader.newest and not reading else None,
            quiet=self._labels.alert_quiet / 1000.0,
            delays=reader.counts.delays,
            pending=max(scored - learned, 0),
            without_id=reader.counts.without_id,
            learned_to=clock / 1000.0 or None,
            lag=None if reading else max(now - due_at, 0.0),
            reading=reading,
        )

    @property
    def has_grown(self) -> bool:
        """Whether partitions were added to the labels topic."""
        return self._label_reader.has_grown

    @property
    def dropped(self) -> int:
        """Spans of all readers."""
        readers = (self._label_reader, self._due_read_to, self._early, self._scores)
        return super().dropped + sum(reader.dropped for reader in readers if reader is not None)

    def difference(self, lane: OpenLane) -> str | None:
        """As of the base, and of the events that are due."""
        found = super().difference(lane)
        if found is not None or self._counts is None:
            return found
        ready = self._unprocessed(lane)
        return self._counts.check_way("due", self._due_read_to, self._due_order, self._all, ready)

    def _on_due_lost(self, partition: Partition, wanted: int, first: int) -> None:
        if self._due_order is not None and self._due_read_to.lost(partition, wanted, first):
            self._due_order.lost(partition.partition, first)
            self._report_lost(partition, wanted, first)

    def _report_lost(self, partition: Partition, wanted: int, first: int) -> None:
        """Log that events are gone which were to be read a second time.

        Raises
        ------
        SourceError
            All of them are: the topic was deleted and made again, or has lost its end.
        """
        if first < wanted:
            raise ended_before(partition, wanted, self._consumer.end(partition) or first)
        lane = self._open
        if lane is not None:
            lane.logged_lane.skipped()
        log.warning(
            "events_lost",
            topic=partition.topic,
            partition=partition.partition,
            wanted_offset=wanted,
            first_offset=first,
            next_step="the topic's retention removed events before they were due: raise its "
            "retention.ms above label_input.after",
        )

    # Labels that no event has used

    async def send_on(self, lane: OpenLane) -> int:
        """Send labels that no event has used, or can use, to their topic; returns their number."""
        source, reader = lane.source, self._label_reader
        if self._due_order is None:
            return 0
        taken = lane.logged_lane.next_offset or 0
        self._forget_taken(taken)
        if self._early is not None:
            self._early.processed(source, taken)
        unused, reader.unused = reader.unused, []
        fronts = [each.clock for each in source.due.values()]
        front = max(fronts, default=0) - BUCKET_MS - self._labels.lateness
        front -= front % max(self._labels.wait // _EXPIRIES, 1)
        if front > source.expired:
            places = reader.labels.expire(front)
            reader.counts.messages["unused"] += len(places)
            unused += await self._read_again(places)
            source.expired = front
            if self._early is not None:
                self._early.expire(front)
        source.labels.update(reader.read_to)
        topic, limit = self._config.late_labels_topic, self._config.output.max_message_bytes
        assert topic is not None
        out: dict[Partition, list[Message]] = {}
        for each in unused:
            headers = [
                *kept_headers(each.record.headers, limit),
                (_REASON, each.reason.encode()),
                ("streampair.topic", self._labels.topic.encode()),
                ("streampair.partition", str(each.partition).encode()),
                ("streampair.offset", str(each.record.offset).encode()),
            ]
            target = self._routes.target(topic, each.record.key, each.partition)
            key = kept_key(each.record.key, limit)
            out.setdefault(target, []).append(Message(key, each.record.value, headers))
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
