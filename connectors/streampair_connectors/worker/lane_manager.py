"""The lane of a worker with its store and encoder, how it is opened, and the thread of slow models."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

from streampair.engine import (
    DeadLetter,
    ExternalState,
    LoggedLane,
    OrderedRecord,
    Record,
    RecordRef,
    ReplayRequest,
)
from streampair.engine.lane_id import WHOLE_TOPIC
from streampair.engine.lane_log import place_of
from streampair.engine.records import LABEL_IN_EVENT, LABEL_LATER
from streampair.engine.source import Positions
from streampair.engine.wal import Range
from streampair.errors import StoreError
from streampair.privacy import NoiseKey
from streampair_connectors.codecs.records import Decoder, Encoder
from streampair_connectors.config import Config
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.kafka import Batches, Committed, Partition, RangeReader, RecordLike, RecordReader
from streampair_connectors.kafka.admin import TopicOrigin
from streampair_connectors.kafka.ordering import has_append_times
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.observability.metric_definitions import LaneLabels
from streampair_connectors.observability.metric_history import LetterCause
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.stores import LaneStore, Store
from streampair_connectors.worker.factory import build_logged_lane, draws_key, input_partitions
from streampair_connectors.worker.flow_control import Pace
from streampair_connectors.worker.timing import DecodeClock, Estimates, LaneTimer

__all__ = [
    "FitThread",
    "OpenLane",
    "Opener",
    "external_state",
    "refuse_other_state",
]


class FitThread:
    """Runs the computations of a process one after the other: `submit` of `LoggedLane`.

    A computation cannot be interrupted. Its thread is a daemon, so that a stop does not wait for it.

    Parameters
    ----------
    host
        Starts the threads.

    Examples
    --------
    >>> from streampair_connectors.worker.lane_manager import FitThread
    >>> FitThread()(lambda: 1 + 1).result()
    2
    """

    def __init__(self, host: Host = THIS_HOST) -> None:
        self._host = host
        self._turn = threading.Lock()

    def __call__(self, compute: Callable[[], Any]) -> Future[Any]:
        """Begin a computation; returns its future."""
        future: Future[Any] = Future()

        def work() -> None:
            with self._turn:
                try:
                    future.set_result(compute())
                except BaseException as error:
                    future.set_exception(error)

        self._host.begin(work, "fit")
        return future


log = get_logger(__name__)

# A snapshot is due when the replay from the last one would take _REPLAY_SECONDS, or after _SNAPSHOT_SECONDS:
# the records since then must still be in the topic at the next start.
_REPLAY_SECONDS = 0.5
_SNAPSHOT_SECONDS = 30.0
_REPLAY_SLICE = 500  # records, at most


class OpenLane:
    """A lane opened from its log, owned by this process until `close`.

    Attributes
    ----------
    logged_lane
        The lane of the engine, after its replay.
    store
        Its log, snapshots and outputs.
    dirty
        Whether records were processed since the last commit.
    position
        Committed position, as a sum over the partitions, for the lag.
    bad_count, last_bad, bad_causes
        Dead letters since the last commit, for the log, and by the names of their causes, for the page.
    saved_at
        When its last snapshot was made, on the monotonic clock.
    event_time
        Timestamp of the last processed record, in seconds since the epoch; None: unknown. Where labels come
        later: of the last record that was scored.
    learned_time
        As of when the model has learned: `event_time`, or where labels come later the time at which the last
        learned event was due.
    spans
        Start and end offset of each partition when the lane was opened.
    announced
        Records that an earlier process has announced; they come first.
    replayed_due
        Where labels come later: due events that the start has replayed.
    """

    def __init__(
        self,
        config: Config,
        lane: LoggedLane,
        store: LaneStore,
        clock: DecodeClock,
        telemetry: Telemetry,
        estimates: Estimates,
        *,
        spans: Mapping[int, tuple[int, int]],
        announced: list[OrderedRecord],
        replayed_due: list[OrderedRecord],
        restored: bool,
        host: Host = THIS_HOST,
    ) -> None:
        self._host = host
        self.topic = config.input.topic
        self.labels: LaneLabels = (config.app, self.topic, lane.name)
        self.encoder = Encoder(app=config.app, learner=lane.name, topic=self.topic, partition=WHOLE_TOPIC)
        self.logged_lane = lane
        self.store = store
        self.dirty = False
        self.position: int | None = None
        self.bad_count = 0
        self.last_bad: DeadLetter | None = None
        self.bad_causes: dict[str, LetterCause] = {}
        self.restored = restored
        self.saved_at = host.monotonic()
        self.event_time: float | None = None
        self.learned_time: float | None = None
        self._outside: set[str] = set()
        self.spans = spans
        self.announced = announced
        self.replayed_due = replayed_due
        self.timer = LaneTimer(lane, clock, telemetry, self.labels, estimates, host=host)

    @property
    def snapshot_due(self) -> bool:
        """Whether a replay from the last snapshot would take too long, or that snapshot is too old."""
        behind = self.logged_lane.records_to_replay
        seconds = behind * self.timer.seconds_by_event
        return behind > 0 and (
            seconds > _REPLAY_SECONDS or self._host.monotonic() >= self.saved_at + _SNAPSHOT_SECONDS
        )

    @property
    def source(self) -> Positions:
        """Its positions in the partitions."""
        source = self.logged_lane.source
        assert source is not None  # it reads the whole topic
        return source

    @property
    def lost(self) -> list[tuple[int, int, int]]:
        """Partitions whose next records were removed: number, next offset and first offset left."""
        wanted = {number: each.next_offset for number, each in self.source.positions.items()}
        return [
            (number, offset, self.spans[number][0])
            for number, offset in sorted(wanted.items())
            if number in self.spans and offset < self.spans[number][0]
        ]

    @property
    def positions(self) -> dict[int, int]:
        """The offset at which reading of each partition continues."""
        known = self.source.positions
        return {
            number: max(known[number].next_offset, start) if number in known else start
            for number, (start, _) in self.spans.items()
        }

    @property
    def learned_positions(self) -> dict[int, int]:
        """As `positions`, of the events to be learned: where labels come later, those that become due."""
        source = self.source
        if not source.due:
            return self.positions
        return {
            p: max(source.due[p].next_offset, s) if p in source.due else s for p, (s, _) in self.spans.items()
        }

    def report_bad(self, telemetry: Telemetry, topic: str) -> None:
        """Log the dead letters of a commit in one line, without the error message: it may quote the event."""
        last, count = self.last_bad, self.bad_count
        if last is not None:
            telemetry.history.dead_letters(self.labels, self.bad_causes)
            self.last_bad, self.bad_count, self.bad_causes = None, 0, {}
            log.warning(
                "dead_letters",
                app=self.labels[0],
                topic=self.topic,
                count=count,
                last_offset=last.offset,
                last_stage=last.stage,
                next_step=f"read the header streampair.error in topic {topic}",
            )

    def report_outside(self, counts: Mapping[str, int] | None) -> None:
        """Log features that left their bounds for the first time: names and counts, no values."""
        new = {name: count for name, count in (counts or {}).items() if name not in self._outside}
        if new:
            self._outside.update(new)
            log.warning(
                "values_outside_bounds",
                app=self.labels[0],
                topic=self.topic,
                features=new,
                next_step="learners with bounds clip such values: fix the producer, or declare wider "
                "bounds, with another application name",
            )

    async def close(self) -> None:
        """Close the store, so that another worker can open the lane."""
        await self.store.close()


def refuse_other_state(config: Config) -> None:
    """Refuse to start a new lane in Kafka while there is a log of it in the directory.

    Raises
    ------
    StoreError
    """
    name = config.state_directory / config.lane_name
    if config.store.in_kafka and name.with_name(f"{name.name}.log").exists():
        raise StoreError(
            f"the state is kept in Kafka, topic {config.log_topic!r}, which has no log of this lane; but "
            f"{name.parent} has one",
            fix=f'set store.directory = "{name.parent}", or migrate: `streampair state export` with that '
            "setting, then `streampair state import` without it. To start from nothing, move the "
            "directory away",
        )


async def external_state(
    lookup: RecordReader,
    topic: str,
    request: ReplayRequest,
    committed: Mapping[int, Committed | None],
    *,
    spans: Mapping[int, tuple[int, int]],
    partitions: int,
    origin: TopicOrigin,
) -> ExternalState:
    """Collect the facts outside of a lane's log: committed offset, register, records and topic.

    Parameters
    ----------
    lookup, topic
        Reads records of the input again.
    request
        The records that the log refers to.
    committed
        The group's offset of each partition; the register is beside the first.
    spans
        Start and end offset of each partition, both from before the log was read.
    partitions, origin
        Of the input topic.
    """
    number = min(spans)
    start, end = spans[number]
    register = committed.get(number)

    async def record_ref(known: RecordRef | None) -> RecordRef | None:
        """The record that the log knows, as the topic has it now."""
        if known is None:
            return None
        record = await lookup.one(Partition(topic, known.partition), known.position, exactly=True)
        if record is None:
            return None
        found = place_of(cast("Record", record))
        return RecordRef(known.offset, found.digest, known.partition, known.position)

    return ExternalState(
        register=None if register is None else register.metadata,
        offset=None if register is None else register.offset,
        partitions=partitions,
        cluster=origin.cluster,
        topic_id=origin.topic_id,
        start=start,
        end=end,
        first=await record_ref(request.first),
        last=await record_ref(request.last),
        spans=spans,
        offsets={p: each.offset for p, each in committed.items() if each is not None},
    )


class Opener:
    """Opens the lane: reads and checks its log, restores its state and replays records.

    The steps and their reasons are in docs/design.md, "The order of a start".

    Parameters
    ----------
    config, store, lookup, decode, telemetry
        Those of the session.
    partitions, origin
        Of the input topic now.
    payloads_change
        Whether a record may have other content when it is read again.
    host
        Clock and threads.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        lookup: RecordReader,
        decode: Decoder,
        telemetry: Telemetry,
        *,
        partitions: int,
        origin: TopicOrigin,
        payloads_change: bool,
        host: Host = THIS_HOST,
    ) -> None:
        self._host = host
        self._config = config
        self._store = store
        self._lookup = lookup
        self._clock = DecodeClock(decode, host=host)
        self._telemetry = telemetry
        self._partitions = partitions
        self._origin = origin
        self._payloads_change = payloads_change
        self._estimates = Estimates(host.monotonic)
        self._fits = FitThread(host)

    async def open(self) -> OpenLane:
        """Open the lane. Nothing is written before step 6.

        Raises
        ------
        StreampairError
            The lane cannot continue, belongs to another configuration, or something that it needs cannot be
            read. The store is closed again.
        """
        topic = self._config.input.topic
        partitions = input_partitions(self._config, self._partitions)
        spans = await self._lookup.spans(partitions)
        # 1 fence every earlier owner
        store = await self._store.open({number: start for number, (start, _) in spans.items()})
        try:
            # 2 read the register, then the log: both only after the fence
            committed = await self._store.committed(partitions)
            frames = await store.read()
            # An owner that was fenced only now may have read on: the ends from before are those of a past.
            spans = await self._lookup.spans(partitions)
            if not frames:
                refuse_other_state(self._config)
            # 3 verify
            in_thread = self._host.in_thread  # what takes long, so that heartbeats are sent
            lane = await self._build(store, fresh=not frames and not any(committed.values()))
            request = await in_thread(functools.partial(lane.read, frames))
            snapshot = None if request.content is None else await store.snapshot(request.content)
            external = await external_state(
                self._lookup,
                topic,
                request,
                committed,
                spans=spans,
                partitions=self._partitions,
                origin=self._origin,
            )
            # 4 check
            appends, warnings = await in_thread(functools.partial(lane.start, external, snapshot))
            # 5 replay without outputs; an error here has written nothing either
            replayed_due: list[OrderedRecord] = []
            source = lane.source
            assert source is not None  # it reads the whole topic
            await self._replay(lane, source, topic, request, replayed_due)
            announced = await self._read_ranges(lane, source, topic)
            # 6 log the start, before anything is released
            if request.used < len(frames):
                await store.cut(request.used)
            for append in appends:
                await store.append(append)
        except BaseException:
            await store.close()
            raise
        for warning in warnings:
            log.warning(
                "lane_goes_on",
                app=self._config.app,
                topic=topic,
                message=warning,
                next_step="none, if the store is the newest: the lane goes on where its log ends. Otherwise "
                "stop, and put the newest store back",
            )
        if frames:
            self._telemetry.restored(self._config.app)
        return OpenLane(
            self._config,
            lane,
            store,
            self._clock,
            self._telemetry,
            self._estimates,
            spans=spans,
            announced=announced,
            replayed_due=replayed_due,
            restored=snapshot is not None,
            host=self._host,
        )

    async def _build(self, store: LaneStore, *, fresh: bool) -> LoggedLane:
        config = self._config
        key = None
        if draws_key(config):
            key = NoiseKey(await store.secret(f"{config.app}.noise-key", fresh=fresh))
        build = functools.partial(
            build_logged_lane,
            config,
            self._clock.decode,
            noise_key=key,
            payloads_change=self._payloads_change,
            submit=self._fits,
        )
        return await self._host.in_thread(build)

    async def _replay(
        self,
        lane: LoggedLane,
        source: Positions,
        topic: str,
        request: ReplayRequest,
        due: list[OrderedRecord],
    ) -> None:
        if lane.replay_until is None:
            return
        records = RangeReader(self._lookup, topic, request.ranges)
        for each in request.ranges:
            await self._replay_span(lane, source, records.read(each), each, due)
        lane.replayed()

    async def _replay_span(
        self, lane: LoggedLane, source: Positions, found: Batches, span: Range, due: list[OrderedRecord]
    ) -> None:
        done, pace = 0, Pace(_REPLAY_SLICE, host=self._host)
        # A replay that fails must close its connection now, not at garbage collection.
        async with contextlib.aclosing(found) as batches:
            async for records in batches:
                start = 0
                while start < len(records):
                    part = records[start : start + pace.slice]
                    start += len(part)
                    numbered = self._numbered(source, part, span, lane.next_offset or 0, done, {})
                    done += len(numbered)
                    if span.labels:
                        due += numbered
                    await pace.run(functools.partial(lane.replay, numbered), len(numbered))
                    await asyncio.sleep(0)  # let heartbeats be sent

    async def _read_ranges(self, lane: LoggedLane, source: Positions, topic: str) -> list[OrderedRecord]:
        """Read the ranges again that are still to be taken, in their order."""
        ranges = source.ahead
        found: list[OrderedRecord] = []
        clocks: dict[tuple[int, bool], int] = {}
        reader = RangeReader(self._lookup, topic, ranges)
        for each in ranges:
            done = 0
            async with contextlib.aclosing(reader.read(each)) as batches:
                async for records in batches:
                    ordinal = (lane.next_offset or 0) + len(found)
                    found += self._numbered(source, records, each, ordinal, done, clocks)
                    done += len(records)
        return found

    def _numbered(
        self,
        source: Positions,
        records: Sequence[RecordLike],
        span: Range,
        ordinal: int,
        done: int,
        clocks: dict[tuple[int, bool], int],
    ) -> list[OrderedRecord]:
        """Records of a range that are read again, with ordinals from `ordinal` on, after `done` others.

        `clocks`: of those that were numbered before and not taken yet, by partition and whether they are due.
        """
        new = LABEL_IN_EVENT if self._config.label_input is None else LABEL_LATER
        now = self._host.now_ms
        if self._partitions > 1 and not has_append_times(records):
            source.producer_times = True
        which = span.partition, bool(span.labels)
        before = (source.due if span.labels else source.positions).get(span.partition)
        clock = clocks.get(which, 0 if before is None else before.clock)
        running = [min(each.timestamp, now) for each in records]
        if not span.early:  # those are learned out of their order
            running = list(itertools.accumulate(running, max, initial=clock))[1:]
            clocks[which] = running[-1] if running else clock
        return [
            OrderedRecord(
                ordinal + number,
                record.value,
                record.key,
                record.timestamp,
                partition=span.partition,
                position=record.offset,
                clock=running[number],
                headers=record.headers,
                label=span.labels[done + number] if span.labels else new,
                early=span.early,
            )
            for number, record in enumerate(records)
        ]
