"""Lanes of a worker with their stores and encoders, and how they are opened."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import cast

from streampair.engine import DeadLetter, ExternalState, LoggedLane, Record, RecordRef, ReplayRequest
from streampair.engine.durable_lane import place_of
from streampair.errors import StoreError
from streampair.privacy import NoiseKey
from streampair_connectors.codecs.records import Decoder, Encoder
from streampair_connectors.config import Config
from streampair_connectors.kafka import Committed, Partition, RecordReader
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.observability.metric_definitions import LaneLabels
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.stores import LaneStore, Store
from streampair_connectors.worker.factory import build_logged_lane, draws_key, lane_id
from streampair_connectors.worker.timing import DecodeClock, Estimates, LaneTimer

__all__ = ["OpenLane", "Opener", "external_state"]

log = get_logger(__name__)

# A snapshot is due when the replay from the last one would take _REPLAY_SECONDS, or after _SNAPSHOT_SECONDS:
# the records since then must still be in the topic at the next start. Lanes replay one after the other and
# share the time, but at most by _MAX_LANES_SHARING: many lanes would otherwise only make snapshots.
_REPLAY_SECONDS = 0.5
_MAX_LANES_SHARING = 4
_SNAPSHOT_SECONDS = 30.0
_REPLAY_SLICE = 500


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
        Committed offset of the partition, for the lag.
    bad_count, last_bad
        Dead letters since the last commit, for the log.
    saved_at
        When its last snapshot was made, on the monotonic clock.
    published_at
        When its model was last published.
    event_time
        Timestamp of the last processed record, in seconds since the epoch; None: unknown.
    lane_count
        Open lanes of this process.
    span
        Start and end offset of the partition when the lane was opened.
    """

    def __init__(
        self,
        config: Config,
        lane: LoggedLane,
        store: LaneStore,
        clock: DecodeClock,
        telemetry: Telemetry,
        partition: Partition,
        estimates: Estimates,
        *,
        span: tuple[int, int],
        restored: bool,
    ) -> None:
        self.topic, self.partition = partition
        self.topic_partition = partition
        self.labels: LaneLabels = (config.app, self.topic, str(self.partition), config.learner.label())
        self.encoder = Encoder(
            app=config.app, learner=config.learner.label(), topic=self.topic, partition=self.partition
        )
        self.logged_lane = lane
        self.store = store
        self.dirty = False
        self.position: int | None = None
        self.bad_count = 0
        self.last_bad: DeadLetter | None = None
        self.restored = restored
        self.saved_at = time.monotonic()
        self.published_at = 0.0
        self.event_time: float | None = None
        self._outside: set[str] = set()
        self.lane_count = 1
        self.span = span
        self.timer = LaneTimer(lane, clock, telemetry, self.labels, estimates)

    @property
    def snapshot_due(self) -> bool:
        """Whether a replay from the last snapshot would take too long, or that snapshot is too old."""
        behind = self.logged_lane.records_to_replay
        seconds = behind * self.timer.seconds_by_event
        return behind > 0 and (
            seconds > _REPLAY_SECONDS / min(self.lane_count, _MAX_LANES_SHARING)
            or time.monotonic() >= self.saved_at + _SNAPSHOT_SECONDS
        )

    @property
    def resume_offset(self) -> int:
        """The offset at which reading continues."""
        first, next_offset = self.span[0], self.logged_lane.next_offset
        return first if next_offset is None else max(next_offset, first)

    def report_bad(self, telemetry: Telemetry, topic: str) -> None:
        """Log the dead letters of a commit in one line, without the error message: it may quote the event."""
        last, count = self.last_bad, self.bad_count
        if last is not None:
            self.last_bad, self.bad_count = None, 0
            telemetry.history.dead_letter(self.labels, last.stage, last.offset)
            log.warning(
                "dead_letters",
                app=self.labels[0],
                topic=self.topic,
                partition=self.partition,
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
                partition=self.partition,
                features=new,
                next_step="learners with bounds clip such values: fix the producer, or declare wider "
                "bounds, with another application name",
            )

    async def close(self) -> None:
        """Close the store, so that another worker can open the lane."""
        await self.store.close()


def refuse_directory_state(config: Config, partition: Partition) -> None:
    """Refuse to start a new lane in Kafka while the state directory has a log of it.

    Raises
    ------
    StoreError
    """
    name = config.state_directory / lane_id(config, partition.topic, partition.partition)
    if name.with_name(f"{name.name}.log").exists():
        raise StoreError(
            f"the state is kept in Kafka, topic {config.log_topic!r}, which has no log of this lane; but "
            f"{name.parent} has one",
            fix='set store.kind = "directory", or migrate: `streampair state export` with that setting, then '
            "`streampair state import` without it. To start from nothing, move the directory away",
        )


async def external_state(
    lookup: RecordReader,
    partition: Partition,
    request: ReplayRequest,
    committed: Committed | None,
    *,
    span: tuple[int, int],
    partitions: int,
    cluster: str,
) -> ExternalState:
    """Collect the facts outside of a lane's log: committed offset, register, records and topic.

    Parameters
    ----------
    lookup, partition
        Reads records of the partition again.
    request
        The records that the log refers to.
    committed
        The group's offset and register.
    span
        Start and end offset of the partition, both from before the log was read.
    partitions, cluster
        Of the input topic.
    """

    async def record_ref(offset: int, *, exactly: bool) -> RecordRef | None:
        record = await lookup.one(partition, offset, exactly=exactly)
        return None if record is None else place_of(cast("Record", record))

    first = request.first
    return ExternalState(
        register=None if committed is None else committed.metadata,
        offset=None if committed is None else committed.offset,
        partitions=partitions,
        cluster=cluster,
        start=span[0],
        end=span[1],
        first=await record_ref(span[0] if first is None else first, exactly=first is not None),
        last=None if request.last is None else await record_ref(request.last, exactly=True),
    )


class Opener:
    """Opens lanes: reads and checks their logs, restores their state and replays records.

    The steps and their reasons are in docs/design.md, "The order of a start".

    Parameters
    ----------
    config, store, lookup, decode, telemetry
        Shared by all lanes.
    partitions, cluster
        Of the input topic now.
    payloads_change
        Whether a record may have other content when it is read again.
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
        cluster: str,
        payloads_change: bool,
    ) -> None:
        self._config = config
        self._store = store
        self._lookup = lookup
        self._clock = DecodeClock(decode)
        self._telemetry = telemetry
        self._partitions = partitions
        self._cluster = cluster
        self._payloads_change = payloads_change
        self._estimates = Estimates()
        self._build_lock = asyncio.Lock()

    async def open(self, partition: Partition, warm: OpenLane | None = None) -> OpenLane:
        """Open one lane. Nothing is written before step 6.

        Parameters
        ----------
        partition
            Of the input.
        warm
            This lane as the process last closed it: it is reused if no other worker has committed since.

        Raises
        ------
        StreampairError
            The lane cannot continue, belongs to another configuration, or something that it needs cannot be
            read. The store is closed again.
        """
        start, end = await self._lookup.range(partition)
        # 1 fence every earlier owner
        store = await self._store.open(partition, start)
        try:
            # 2 read the register, then the log: both only after the fence
            committed = await self._store.register(partition)
            frames = await store.read()
            if not frames and self._config.store.in_kafka:
                refuse_directory_state(self._config, partition)
            # 3 verify
            lane = None if warm is None else warm.logged_lane
            rejoined = None if lane is None else lane.reread(frames)
            snapshot = None
            if lane is None or rejoined is None:
                lane = await self._build(store, partition, fresh=not (frames or committed))
                request = lane.read(frames)
                snapshot = None if request.content is None else await store.snapshot(request.content)
            else:
                request = rejoined
            external = await external_state(
                self._lookup,
                partition,
                request,
                committed,
                span=(start, end),
                partitions=self._partitions,
                cluster=self._cluster,
            )
            # 4 check
            if rejoined is not None:
                appends, warnings = lane.rejoin(external)
            else:
                appends, warnings = lane.start(external, snapshot)
            # 5 replay without outputs; an error here has written nothing either
            await self._replay(lane, partition, start)
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
                topic=partition.topic,
                partition=partition.partition,
                message=warning,
                next_step="none: this lane keeps no privacy account. If this is unexpected, stop and "
                "repair the store",
            )
        if frames:
            self._telemetry.restored(self._config.app)
        return OpenLane(
            self._config,
            lane,
            store,
            self._clock,
            self._telemetry,
            partition,
            self._estimates,
            span=(start, end),
            restored=bool(rejoined or snapshot),
        )

    async def _build(self, store: LaneStore, partition: Partition, *, fresh: bool) -> LoggedLane:
        config = self._config
        key = None
        # One at a time: the first lane draws the key for all, and warnings are caught for the whole process.
        async with self._build_lock:
            if draws_key(config):
                key = NoiseKey(await store.secret(f"{config.app}.noise-key", fresh=fresh))
            return await asyncio.to_thread(
                build_logged_lane,
                config,
                self._clock.decode,
                topic=partition.topic,
                partition=partition.partition,
                noise_key=key,
                payloads_change=self._payloads_change,
            )

    async def _replay(self, lane: LoggedLane, partition: Partition, first_offset: int) -> None:
        until = lane.replay_until
        if until is None:
            return
        begin = max(lane.next_offset or 0, first_offset)
        # A replay that fails must close its connection now, not at garbage collection.
        async with contextlib.aclosing(self._lookup.span(partition, begin, until)) as batches:
            async for records in batches:
                for start in range(0, len(records), _REPLAY_SLICE):
                    lane.replay(cast("Sequence[Record]", records[start : start + _REPLAY_SLICE]))
                    await asyncio.sleep(0)  # let heartbeats be sent
        lane.replayed()
