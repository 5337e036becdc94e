"""A lane with its store and its encoders: what `run` holds for each partition, and how it is opened."""

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

__all__ = ["OpenLane", "Opener", "facts_of"]

log = get_logger(__name__)

# A snapshot is made when a replay from the last one would take longer, or when that is older than this: the
# records since then must still be in the topic at the next start. Lanes replay one after the other, so they
# share the time; only so far, or many lanes would do nothing but make snapshots.
_REPLAY_SECONDS = 0.5
_SHARED_BY = 4
_SNAPSHOT_SECONDS = 30.0
_REPLAY_SLICE = 500


class OpenLane:
    """A lane that this process has opened from its log, and holds until `close`.

    Attributes
    ----------
    lane
        The lane, caught up.
    store
        Its log, snapshots and outputs.
    dirty
        Whether anything was processed since the last commit.
    position
        Where the last commit left the partition, for the lag.
    bad_count, last_bad
        Dead letters since the last commit, for the log.
    saved_at
        When its last snapshot was made, of this process's clock.
    published_at
        When its model was last published.
    event_time
        Date of the last record that was taken, in seconds since the epoch; None: not known.
    lanes
        How many this process holds.
    span
        The first offset that the partition had when it was opened, and the next that it would get.
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
        self.lane = lane
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
        self.lanes = 1
        self.span = span
        self.timer = LaneTimer(lane, clock, telemetry, self.labels, estimates)

    @property
    def snapshot_due(self) -> bool:
        """Whether a start would have to replay for too long, or what it needs is getting old."""
        behind = self.lane.records_to_replay
        seconds = behind * self.timer.seconds_by_event
        return behind > 0 and (
            seconds > _REPLAY_SECONDS / min(self.lanes, _SHARED_BY)
            or time.monotonic() >= self.saved_at + _SNAPSHOT_SECONDS
        )

    @property
    def reads_on(self) -> int:
        """The offset at which the partition is to be read on."""
        first, wanted = self.span[0], self.lane.next_offset
        return first if wanted is None else max(wanted, first)

    def report_bad(self, telemetry: Telemetry, topic: str) -> None:
        """One log line a commit, without the message: that may quote the event."""
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
        """One log line when a feature is first seen to leave its bounds: names and counts, no values."""
        new = {name: count for name, count in (counts or {}).items() if name not in self._outside}
        if new:
            self._outside.update(new)
            log.warning(
                "values_outside_bounds",
                app=self.labels[0],
                topic=self.topic,
                partition=self.partition,
                features=new,
                next_step="learners that take bounds clip such values: mend the producer, or declare wider "
                "bounds, with another application name",
            )

    async def close(self) -> None:
        """Let another owner in."""
        await self.store.close()


def refuse_other_store(config: Config, partition: Partition) -> None:
    """Refuse to begin a lane in Kafka whose state lies in a directory beside the configuration.

    Raises
    ------
    StoreError
    """
    name = config.state_directory / lane_id(config, partition.topic, partition.partition)
    if name.with_name(f"{name.name}.log").exists():
        raise StoreError(
            f"the state lies in Kafka, topic {config.log_topic!r}, which has no log of this lane; and "
            f"{name.parent} has one",
            fix='set store.kind = "directory", or move it: `streampair state export` with that setting, then '
            "`streampair state import` without. To begin anew without it, move the directory away",
        )


async def facts_of(
    lookup: RecordReader,
    partition: Partition,
    wanted: ReplayRequest,
    committed: Committed | None,
    *,
    span: tuple[int, int],
    partitions: int,
    cluster: str,
) -> ExternalState:
    """What stands outside of a lane's log.

    Parameters
    ----------
    lookup, partition
        Where records are read again.
    wanted
        What the log asks for.
    committed
        The group's offset and register.
    span
        The first offset that the partition has, and the next that it will get, both from before the log was
        read.
    partitions, cluster
        Of the input topic.
    """

    async def place(offset: int, *, exactly: bool) -> RecordRef | None:
        record = await lookup.one(partition, offset, exactly=exactly)
        return None if record is None else place_of(cast("Record", record))

    first = wanted.first
    return ExternalState(
        register=None if committed is None else committed.metadata,
        offset=None if committed is None else committed.offset,
        partitions=partitions,
        cluster=cluster,
        start=span[0],
        end=span[1],
        first=await place(span[0] if first is None else first, exactly=first is not None),
        last=None if wanted.last is None else await place(wanted.last, exactly=True),
    )


class Opener:
    """Opens lanes: reads their logs, checks them, and brings them to where they were.

    The steps and their reasons are in docs/design.md, "The order of a start".

    Parameters
    ----------
    config, store, lookup, decode, telemetry
        What all lanes share.
    partitions, cluster
        Of the input topic, as it is now.
    payloads_change
        Whether a record may be another one when it is read again.
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
        self._making = asyncio.Lock()

    async def open(self, partition: Partition, warm: OpenLane | None = None) -> OpenLane:
        """Open one lane. The order of a start, in which nothing is written before step 6.

        Parameters
        ----------
        partition
            Of the input.
        warm
            This lane as it was when the process last let go of it: it is used if nobody has worked since.

        Raises
        ------
        StreampairError
            The lane cannot go on, belongs to something else, or what it needs cannot be read. Nothing is held
            then.
        """
        start, end = await self._lookup.range(partition)
        # 1 fence every earlier owner
        store = await self._store.open(partition, start)
        try:
            # 2 only then the register, and then the log
            committed = await self._store.register(partition)
            frames = await store.read()
            if not frames and self._config.store.in_kafka:
                refuse_other_store(self._config, partition)
            # 3 verify
            lane = None if warm is None else warm.lane
            again = None if lane is None else lane.reread(frames)
            snapshot = None
            if lane is None or again is None:
                lane = await self._make(store, partition, fresh=not (frames or committed))
                wanted = lane.read(frames)
                snapshot = None if wanted.content is None else await store.snapshot(wanted.content)
            else:
                wanted = again
            facts = await facts_of(
                self._lookup,
                partition,
                wanted,
                committed,
                span=(start, end),
                partitions=self._partitions,
                cluster=self._cluster,
            )
            # 4 check
            if again is not None:
                appends, warnings = lane.rejoin(facts)
            else:
                appends, warnings = lane.start(facts, snapshot)
            # 5 replay silently to where it was: a refusal here has written nothing either
            await self._replay(lane, partition, start)
            # 6 announce the attempt, before anything is released
            if wanted.used < len(frames):
                await store.cut(wanted.used)
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
                next_step="none: this lane keeps no privacy account. If the store should not be so, stop and "
                "put it right",
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
            restored=bool(again or snapshot),
        )

    async def _make(self, store: LaneStore, partition: Partition, *, fresh: bool) -> LoggedLane:
        config = self._config
        key = None
        # One at a time: the first one draws the key for all, and warnings are caught for the whole process.
        async with self._making:
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

    async def _replay(self, lane: LoggedLane, partition: Partition, start: int) -> None:
        until = lane.replay_until
        if until is None:
            return
        begin = max(lane.next_offset or 0, start)
        # A replay that is refused ends in the middle: the connection must not wait for the garbage collector.
        async with contextlib.aclosing(self._lookup.span(partition, begin, until)) as batches:
            async for records in batches:
                for at in range(0, len(records), _REPLAY_SLICE):
                    lane.replay(cast("Sequence[Record]", records[at : at + _REPLAY_SLICE]))
                    await asyncio.sleep(0)  # the heartbeats must not wait
        lane.replayed()
