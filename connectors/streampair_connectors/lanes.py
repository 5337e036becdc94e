"""A lane with its store and its encoders: what `run` holds for each partition, and how it is opened."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from river import compose

from streampair.engine import (
    DeadLetter,
    Facts,
    Lane,
    LaneGauges,
    LaneOutput,
    LoggedLane,
    Place,
    Record,
    Wanted,
)
from streampair.engine.lanelog import place_of
from streampair.errors import RecordError, StoreError
from streampair.privacy import NoiseKey
from streampair_connectors.assemble import build_logged_lane, draws_key, lane_id
from streampair_connectors.config import Config
from streampair_connectors.kafka import Committed, Lookup, Partition
from streampair_connectors.logs import get_logger
from streampair_connectors.records import Decoder, Encoder, RawRecord
from streampair_connectors.stores import LaneStore, Store
from streampair_connectors.telemetry import LaneLabels, Telemetry

__all__ = ["Estimates", "LaneTimer", "OpenLane", "Opener", "facts_of"]

log = get_logger(__name__)

# A snapshot is made when a replay from the last one would take longer, or when that is older than this: the
# records since then must still be in the topic at the next start. Lanes replay one after the other, so they
# share the time; only so far, or many lanes would do nothing but make snapshots.
_REPLAY_SECONDS = 0.5
_SHARED_BY = 4
_SNAPSHOT_SECONDS = 30.0
_REPLAY_SLICE = 500
# Share of the time that may go into estimates of the regret, and the most that a pause saves up for them.
_ESTIMATES_SHARE = 0.02
_ESTIMATES_SAVED = 0.25


class Estimates:
    """The time that a process may spend on estimates of the regret, however many lanes it holds.

    Parameters
    ----------
    clock
        Monotonic, in seconds.

    Examples
    --------
    >>> now = 0.0
    >>> estimates = Estimates(lambda: now)
    >>> estimates.afford()
    True
    >>> estimates.spent(0.02)
    >>> estimates.afford()
    False
    >>> now = 1.0
    >>> estimates.afford()
    True
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._at = clock()
        self._left = 0.0
        self._last = 0.0

    def afford(self) -> bool:
        """Whether there is time for one that takes as long as the last one did."""
        now = self._clock()
        self._left = min(self._left + (now - self._at) * _ESTIMATES_SHARE, _ESTIMATES_SAVED)
        self._at = now
        return self._left >= min(self._last, _ESTIMATES_SAVED)

    def spent(self, seconds: float) -> None:
        """Say how long one took."""
        self._left -= seconds
        self._last = seconds


class LaneTimer:
    """Times a lane from outside: the engine has no clock.

    Parameters
    ----------
    lane, decode
        The lane, and what it decodes with.
    telemetry, labels
        Where the times go.
    estimates
        What all lanes of the process share; None: there is one.
    """

    def __init__(
        self,
        lane: Lane,
        decode: Decoder,
        telemetry: Telemetry,
        labels: LaneLabels,
        estimates: Estimates | None = None,
    ) -> None:
        self._lane = lane
        self._decode = decode
        self._telemetry = telemetry
        self._labels = labels
        self._estimates = Estimates() if estimates is None else estimates
        self.seconds_by_event = 0.0
        self.estimated = True
        """Whether the last estimate of the regret covers all events."""
        self.estimated_at = 0.0
        """When that was, of `time.perf_counter`: whose is the oldest comes first."""

    def process(self, records: Sequence[Any]) -> LaneOutput:
        """Let the lane process a batch; Kafka's own records serve as the lane's."""
        start = time.perf_counter()
        self.estimated = False
        output = self._lane.process(cast("Sequence[Record]", records))
        self.seconds_by_event = (time.perf_counter() - start) / len(records)
        self._telemetry.batch(self._labels, self.seconds_by_event, self._time_score(records[-1]))
        return output

    def gauges(self, *, final: bool = False) -> LaneGauges:
        """Return the lane's numbers, with a fresh estimate of the regret if there is time for one.

        By itself a lane, which has no clock, spaces its estimates by counts. Here all lanes of a process
        share a part of its time; `final` estimates in any case.
        """
        start = time.perf_counter()
        fresh = final or self._estimates.afford()
        gauges = self._lane.gauges(solve=fresh)
        if fresh:
            self.estimated_at = time.perf_counter()
            self._estimates.spent(self.estimated_at - start)
            self.estimated = True
        return gauges

    def _time_score(self, record: RawRecord) -> float | None:
        """Score the last event of a batch once more, alone, to see what scoring costs."""
        try:
            x = self._decode(record).x
        except RecordError:
            return None
        score = _scorer(self._lane.model)
        start = time.perf_counter()
        try:
            score(x)
        except Exception:
            # The lane has met the same event, and has said what is wrong with it.
            return None
        return time.perf_counter() - start


def _scorer(model: Any) -> Callable[[Any], Any]:
    # A pipeline has every method, its last step those that work.
    last = list(model.steps.values())[-1] if isinstance(model, compose.Pipeline) else model
    names = ("score_one", "predict_proba_one", "predict_one")
    return cast("Callable[[Any], Any]", getattr(model, next(name for name in names if hasattr(last, name))))


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
        decode: Decoder,
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
        self.lanes = 1
        self.span = span
        self.timer = LaneTimer(lane, decode, telemetry, self.labels, estimates)

    @property
    def snapshot_due(self) -> bool:
        """Whether a start would have to replay for too long, or what it needs is getting old."""
        behind = self.lane.records_to_replay
        seconds = behind * self.timer.seconds_by_event
        return behind > 0 and (
            seconds > _REPLAY_SECONDS / min(self.lanes, _SHARED_BY)
            or time.monotonic() >= self.saved_at + _SNAPSHOT_SECONDS
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
    kinds = [kind for kind in ("log", "snapshot") if name.with_name(f"{name.name}.{kind}").exists()]
    if kinds:
        raise StoreError(
            f"the state lies in Kafka, topic {config.log_topic!r}, which has no log of this lane; and "
            f"{name.parent} has one",
            fix='set store.kind = "directory", or move it: `streampair state export` with that setting, then '
            "`streampair state import` without. To begin anew without it, move the directory away",
        )


async def facts_of(
    lookup: Lookup,
    partition: Partition,
    wanted: Wanted,
    committed: Committed | None,
    *,
    span: tuple[int, int],
    partitions: int,
    cluster: str,
) -> Facts:
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

    async def place(offset: int, *, exactly: bool) -> Place | None:
        record = await lookup.one(partition, offset, exactly=exactly)
        return None if record is None else place_of(cast("Record", record))

    first = wanted.first
    return Facts(
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
    """Opens lanes: reads their logs, checks them, and brings them to where they were (DESIGN.md 5).

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
        lookup: Lookup,
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
        self._decode = decode
        self._telemetry = telemetry
        self._partitions = partitions
        self._cluster = cluster
        self._payloads_change = payloads_change
        self._estimates = Estimates()
        self._making = asyncio.Lock()

    async def open(self, partition: Partition, warm: OpenLane | None = None) -> OpenLane:
        """Open one lane. The order of a start, in which nothing is written before step 5.

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
            legacy = None if frames else await store.legacy()
            if not frames and self._config.store.in_kafka:
                refuse_other_store(self._config, partition)
            # 3 verify
            lane = None if warm is None else warm.lane
            again = None if lane is None else lane.reread(frames)
            snapshot = None
            if lane is None or again is None:
                lane = await self._make(store, partition, fresh=not (frames or committed or legacy))
                wanted = lane.read(frames)
                snapshot = None if wanted.content is None else await store.snapshot(wanted.content)
                if snapshot is None and legacy is None:
                    legacy = await store.legacy()
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
            # 4 check; 5 announce the attempt
            if again is not None:
                appends, warnings = lane.rejoin(facts)
            elif snapshot is None and legacy is not None:
                appends, warnings = lane.adopt(facts, *legacy)
            else:
                appends, warnings = lane.start(facts, snapshot)
            if wanted.used < len(frames):
                await store.cut(wanted.used)
            for append in appends:
                await store.append(append)
            # 6 replay silently to where it was
            await self._replay(lane, partition, start)
            # 7 a new lane saves its first state here, while it is small
            if lane.begins(start):
                await store.commit(lane.commit(snapshot=True))
                lane.committed()
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
        return OpenLane(
            self._config,
            lane,
            store,
            self._decode,
            self._telemetry,
            partition,
            self._estimates,
            span=(start, end),
            restored=bool(again or snapshot or legacy),
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
                self._decode,
                topic=partition.topic,
                partition=partition.partition,
                noise_key=key,
                payloads_change=self._payloads_change,
            )

    async def _replay(self, lane: LoggedLane, partition: Partition, start: int) -> None:
        until = lane.replay_until
        if until is None:
            return
        begin = start if lane.next_offset is None else lane.next_offset
        # A replay that is refused ends in the middle: the connection must not wait for the garbage collector.
        async with contextlib.aclosing(self._lookup.span(partition, begin, until)) as batches:
            async for records in batches:
                for at in range(0, len(records), _REPLAY_SLICE):
                    lane.replay(cast("Sequence[Record]", records[at : at + _REPLAY_SLICE]))
                    await asyncio.sleep(0)  # the heartbeats must not wait
        lane.replayed()
