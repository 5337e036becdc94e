"""A session of a worker: one connection to the cluster, over which the lane is opened, learns and commits.

An event goes this way: `Source.poll` reads it, `LoggedLane.process` scores and learns it, `Outputs.send`
hands its score to the store, and `Checkpoint.run` makes all of it durable.

The consumer calls `_on_assigned` and `_on_revoked` during rebalances. They and the loop share the lane, so
both take `_lock`. A change of the assignment begins another epoch: records that were polled in an earlier one
are dropped, and whoever owns the lane now reads them again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from streampair.engine import LaneGauges, OrderedRecord
from streampair.engine.snapshot import dated
from streampair.errors import (
    CommitOutcomeUnknownError,
    FencedError,
    SourceError,
)
from streampair_connectors import kafka
from streampair_connectors.codecs.formats import fields_reader
from streampair_connectors.codecs.records import Decoder
from streampair_connectors.config import Config
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.kafka import (
    KAFKA,
    Cluster,
    Partition,
    StaticMemberConflicts,
)
from streampair_connectors.kafka.admin import TopicFacts, TopicOrigin, output_topics, retention_fix
from streampair_connectors.observability.health import Health
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.stores import DiskStore, Store, TopicStore
from streampair_connectors.stores.offline import check_stored_settings
from streampair_connectors.worker.checkpoint import Checkpoint
from streampair_connectors.worker.first_events import FirstEvents
from streampair_connectors.worker.flow_control import Backlog, Commits, FencePause, Pace, fetch_buckets
from streampair_connectors.worker.lane_manager import Opener, OpenLane
from streampair_connectors.worker.late_labels import LateLabelSource
from streampair_connectors.worker.model_topic import ModelPublisher
from streampair_connectors.worker.outputs import Outputs
from streampair_connectors.worker.scoring import check_scoring
from streampair_connectors.worker.sessions import ConnectionWatch, run_watched
from streampair_connectors.worker.sources import Source, TopicSource

__all__ = ["Session"]

log = get_logger(__name__)

_POLL_SECONDS = 0.2  # also the longest delay until a stop is noticed
_WATCH_SECONDS = 2.0
# A stop stores the last outputs for so long, and then gives up: Kubernetes kills a pod 30 s after SIGTERM.
_STOP_SECONDS = 25.0
_UNACKNOWLEDGED_BYTES = 32 * 1024 * 1024  # of outputs without acknowledgement; then a commit is due


class Session:
    """Runs the lane over one connection to the cluster, until `stop` is set or the connection fails.

    Parameters
    ----------
    config
        A complete configuration, with [kafka].
    facts, origin
        Of the topics, as they are now.
    decode
        Decoder of events.
    telemetry, health
        Of the worker.
    stop
        Set when the worker is to stop.
    takeovers
        Counts takeovers of the group instance id; None: the member is dynamic.
    differences
        How often the counts of records differed in earlier sessions; at the second time the worker stops.
    host, cluster
        Clock and threads, and what makes clients.

    Attributes
    ----------
    lane
        The lane; None while it is not open here.
    connected
        Whether all clients are connected: from here on a stop ends the session in order.
    joined
        Whether it has been connected.
    """

    def __init__(
        self,
        config: Config,
        facts: TopicFacts,
        origin: TopicOrigin,
        decode: Decoder,
        *,
        telemetry: Telemetry,
        health: Health,
        stop: asyncio.Event,
        takeovers: StaticMemberConflicts | None,
        differences: int = 0,
        host: Host = THIS_HOST,
        cluster: Cluster = KAFKA,
    ) -> None:
        settings = config.require_kafka()
        self._config, self._kafka = config, settings
        self._host, self._cluster = host, cluster
        self._telemetry, self._health = telemetry, health
        self._stop, self._give_up = stop, asyncio.Event()
        self._partitions = facts.partitions
        self.lane: OpenLane | None = None
        self.connected = self.joined = False
        self.differences = differences
        # Of the assignment
        self._lock = asyncio.Lock()
        self._assigned: set[Partition] = set()
        self._epoch = 0
        self._active = True  # commits are made only before the end
        self._opening = False
        self._fence_pause = FencePause(clock=host.monotonic)
        # Of the loop
        self._uncommitted = 0
        self._processed = 0
        self._dropped = 0  # spans, as counted in the metrics
        self._commits = Commits(
            config.commit_every.seconds, config.worker.commit_every_events, clock=host.monotonic
        )
        self._backlog = Backlog(config.app, clock=host.monotonic)
        self._pace = Pace(config.worker.batch_size, settings.max_poll_interval.seconds, host=host)
        # Clients
        self._producer = cluster.producer(settings, max_message_bytes=config.output.max_message_bytes)
        self._consumer = cluster.consumer(
            settings,
            config.input.topic,
            config.app,
            on_revoked=self._on_revoked,
            on_assigned=self._on_assigned,
            on_lost=self._on_lost,
            takeovers=takeovers,
            whole_topic=True,
            side_by_side=facts.partitions,
            # With a directory scores leave when they are made.
            fetch_buckets=fetch_buckets(config.commit_every.seconds) if config.store.in_kafka else 1,
        )
        self._lookup = cluster.record_reader(settings)
        self._connection = ConnectionWatch(settings, health.waiting, health.running, cluster=cluster)
        self._models = ModelPublisher(config, self._lookup, host=host, cluster=cluster)
        self._source = self._make_source(facts.label_partitions)
        self._store: Store = (
            TopicStore(config, lookup=self._lookup, cluster=cluster)
            if config.store.in_kafka
            else DiskStore(config, self._consumer, self._producer)
        )
        self._outputs = Outputs(config, self._producer.routes, host=host)
        self._first = FirstEvents(config, fields_reader(config))
        self._checkpoint = Checkpoint(self._store, self._wait_for, telemetry.counted(config.app), host=host)
        self._opener = Opener(
            config,
            self._store,
            self._lookup,
            decode,
            telemetry,
            partitions=facts.partitions,
            origin=origin,
            payloads_change=facts.payloads_change,
            host=host,
        )

    async def run(self, *, first: bool) -> None:
        """Process events until the worker stops, partitions are added, or the connection fails.

        Parameters
        ----------
        first
            Whether no earlier session was connected: then the settings in the store are checked, for which
            the whole log is read.
        """
        guard: asyncio.Task[None] | None = None
        try:
            await self._start(first)
            self.joined = self.connected = True
            guard = asyncio.create_task(self._limit_stop())
            # Its requests end before the connections are closed.
            await run_watched(self._work(), self._watch_lag())
        finally:
            self._active = self.connected = False
            await kafka.ended(guard)
            await self._drop()
            self._count_dropped()
            self._assigned.clear()
            await self._consumer.stop()
            await self._source.stop()
            await self._models.stop()
            await self._lookup.stop()
            await self._producer.stop()

    async def _start(self, first: bool) -> None:
        config, cluster = self._config, self._cluster
        await self._producer.start()
        for topic in output_topics(config).values():
            await self._producer.partitions(topic)
        await self._store.start()
        if first:
            await check_stored_settings(config, cluster)
        await self._models.start()
        await check_scoring(config, self._partitions, cluster=cluster)
        await self._source.start()
        await self._consumer.start()

    def _make_source(self, label_partitions: int) -> Source:
        config = self._config
        if config.label_input is None:
            return TopicSource(self._consumer, config.input.topic, self._partitions, host=self._host)
        return LateLabelSource(
            config,
            self._consumer,
            partitions=self._partitions,
            label_partitions=label_partitions,
            lookup=self._lookup,
            routes=self._producer.routes,
            host=self._host,
            cluster=self._cluster,
        )

    def _partitions_added(self) -> bool:
        """Whether partitions were added to the input topic.

        Then this session ends as at a stop, and the next one starts with all of them.
        """
        if self._source.has_grown:
            log.info("labels_topic_has_grown", app=self._config.app)
            return True
        known = self._consumer.partition_count() or 0
        count = max([known, *(p.partition + 1 for p in self._assigned)])
        if count <= self._partitions:
            return False
        log.info(
            "input_has_grown",
            app=self._config.app,
            topic=self._config.input.topic,
            before=self._partitions,
            now=count,
            next_step="none: the lane is committed, closed and opened again, with the new ones",
        )
        return True

    def _wait_for(self, trouble: str) -> None:
        """Set the state: outputs cannot be stored, because of `trouble` where no better cause is known."""
        self._health.waiting(*(self._connection.cause or (trouble,)))

    async def _limit_stop(self) -> None:
        await self._stop.wait()
        await asyncio.sleep(_STOP_SECONDS)
        self._give_up.set()

    async def _watch_lag(self) -> None:
        """Fetch end offsets regularly: for the lag between commits, and to see whether a broker answers."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            lane = self.lane
            # The stream pauses: make the estimate of the regret that the last commit skipped. There is no
            # await inside, so nothing is processed or committed meanwhile.
            if lane is not None and not (self._lock.locked() or lane.dirty or lane.timer.estimated):
                self._publish(lane, lane.timer.gauges(final=True), self._lag(lane))
            read = [Partition(self._config.input.topic, 0)] if lane is None else self._source.partitions(lane)
            ends = await self._consumer.ends(read, 5.0)
            if not self._stop.is_set():  # a stop has a time limit of its own
                await self._connection.note(ends is not None and not self._store.stuck)
            lane = self.lane
            if ends is None or lane is None:
                continue
            if not lane.dirty:  # a transaction marker may have moved it
                lane.position = self._source.position(lane)
            lag = self._lag(lane, ends)
            if lag is not None:
                self._telemetry.lag(lane.labels, lag, lane.position, self._source.label_metrics(lane))
            if not self._store.stuck:
                self._health.running()

    # The loop

    async def _work(self) -> None:
        try:
            await self._loop()
            await self._finish()
        finally:
            # Whoever waits for the lock must not commit what an error or a cancellation left half done.
            self._active = False

    async def _loop(self) -> None:
        self._commits.begin()
        while not (self._stop.is_set() or self._partitions_added()):
            await self._open_if_complete()
            start = self._host.monotonic()
            wait, most = self._until_due(), self._pace.records
            records = await self._source.poll(most, wait)
            if records:
                self._telemetry.fetched(self._config.app, self._host.monotonic() - start)
            self._pace.polled()
            epoch = self._epoch  # read before any other task runs: the records belong to this epoch
            async with self._lock:
                # If the epoch has changed, they were revoked since the poll: the next owner reads them again.
                if self.lane is not None and epoch == self._epoch:
                    await self._process(self.lane, records)
                if self.lane is not None:
                    idle = not records and wait == _POLL_SECONDS
                    await self._send(self.lane, idle=idle, complete=0 < len(records) < most)
            if self._backlog.due:
                self._backlog.update(self._processed, self._records_behind())
            await asyncio.sleep(0)  # let outputs be sent while records keep coming

    def _until_due(self) -> float:
        """Seconds to wait for records: until outputs are to be released or committed, at most."""
        if self.lane is None or not self._uncommitted:
            return _POLL_SECONDS
        waits = self._commits.wait(self._uncommitted), self._outputs.wait(self.lane)
        return min((_POLL_SECONDS, *(seconds for seconds in waits if seconds is not None)))

    async def _process(self, lane: OpenLane, records: Sequence[OrderedRecord]) -> None:
        start = 0
        while start < len(records):
            room = lane.logged_lane.room
            if room == 0:
                # The private learner has used its reserved slots: a commit reserves the next ones.
                if not await self._commit(clean=False) or self.lane is not lane:
                    return  # stopping, or revoked: the next owner reads these records again
                room = lane.logged_lane.room
            if self._pace.over:
                self._source.put_back(lane, records[start:])
                return
            size = self._pace.slice if room is None else min(self._pace.slice, room)
            part = records[start : start + size]
            start += len(part)
            output = await self._pace.run(functools.partial(lane.timer.process, part), len(part))
            lane.dirty = True
            self._note_times(lane, part[-1])
            self._uncommitted += len(part)
            self._processed += len(part)
            self._first.note(part, output.scores)
            begin = self._host.monotonic()
            await self._outputs.send(lane, part, output)
            lane.timer.encoded(self._host.monotonic() - begin)

    def _note_times(self, lane: OpenLane, newest: OrderedRecord) -> None:
        labels = self._config.label_input
        if labels is not None and newest.due:
            lane.learned_time = (newest.clock + labels.wait) / 1000.0
            return
        lane.event_time = dated(newest.timestamp) / 1000.0 or lane.event_time
        if labels is None:
            lane.learned_time = lane.event_time

    async def _send(self, lane: OpenLane, *, idle: bool, complete: bool) -> None:
        """Send what is due: labels that no event can use, outputs, a commit.

        `idle`: no records came. `complete`: all that were in order have come.
        """
        if sent := await self._source.send_on(lane):
            lane.dirty = True
            self._uncommitted += sent
        try:
            await self._outputs.release(lane, self._give_up)
        except (FencedError, CommitOutcomeUnknownError) as error:
            await self._fenced(error)
            return
        # Without records a commit is made now, not at the end of the interval.
        if self._commit_is_due(complete=complete) or (idle and (self._uncommitted or self._is_due(lane))):
            await self._commit(clean=False)

    def _is_due(self, lane: OpenLane) -> bool:
        """Whether the lane has something to commit, though no record has come since its last commit."""
        return lane.snapshot_due or self._models.due(lane)

    def _commit_is_due(self, *, complete: bool) -> bool:
        if not self._uncommitted:
            return False
        full = self._store.unacknowledged_bytes >= _UNACKNOWLEDGED_BYTES
        return full or self._commits.due(self._uncommitted, self._records_behind, complete=complete)

    def _records_behind(self) -> int:
        """Records of the topic that were not processed yet."""
        lane = self.lane
        return 0 if lane is None else max(self._source.end(lane) - self._source.taken(lane), 0)

    async def _finish(self) -> None:
        """Make the last commit of this session and close the lane."""
        async with self._lock:
            self._active = False
            if not await self._commit(clean=True):
                raise SourceError(
                    f"the last outputs were not stored within {_STOP_SECONDS:g} s",
                    fix="start again when the broker is back: it resumes at the last commit, nothing is lost",
                )
            if self.lane is not None:
                self._log_end("lane_closed", next_offset=self.lane.logged_lane.next_offset)
            # Before leaving the group: the next owner must be able to open the store.
            await self._drop(keep_series=self._stop.is_set())

    # Commits

    async def _commit(self, *, clean: bool, seconds: float | None = None) -> bool:
        """Commit the lane, if it has something to commit. False: its outputs were not stored in time."""
        lane = self.lane
        if lane is None or not (lane.dirty or clean or self._is_due(lane)) or not await self._agrees(lane):
            return True
        if self._models.due(lane):
            await self._models.publish(lane)
        begin = self._host.monotonic()
        try:
            stored = await self._checkpoint.run(lane, clean=clean, give_up=self._give_up, seconds=seconds)
        except (FencedError, CommitOutcomeUnknownError) as error:
            await self._fenced(error)
            return True
        if not stored:
            return False
        self._fence_pause.committed()
        self._committed(lane, self._host.monotonic() - begin, last=clean and self._stop.is_set())
        return True

    def _committed(self, lane: OpenLane, seconds: float, *, last: bool) -> None:
        """Publish the metrics of a commit that is durable. `last`: the worker stops."""
        self._count_dropped()
        lane.position = self._source.position(lane)
        # At a stop the regret is estimated over all events.
        gauges = lane.timer.gauges(final=last)
        self._publish(lane, gauges, self._lag(lane))
        lane.report_outside(gauges.outside)
        lane.report_bad(self._telemetry, self._config.dead_letter_topic)
        self._uncommitted = 0
        self._models.committed()
        self._commits.committed(seconds)
        self._telemetry.committed(self._config.app, seconds)
        self._health.running()

    async def _agrees(self, lane: OpenLane) -> bool:
        """Whether the counts of a lane's records agree. If not it is dropped, and opened at its last commit.

        Raises
        ------
        SourceError
            They differ for the second time, or at the stop.
        """
        problem = self._source.difference(lane)
        if problem is None:
            return True
        self._telemetry.counts_differ(self._config.app)
        self.differences += 1
        if self.differences > 1 or self._stop.is_set():
            raise SourceError(
                f"records are missing, or were taken twice, since the last commit: {problem}",
                fix="start again: it goes on at the last commit, and nothing is lost. Report this, with the "
                "log: it is a fault of streampair",
                retriable=False,
            )
        log.error(
            "counts_differ",
            app=self._config.app,
            topic=lane.topic,
            detail=problem,
            next_step="none: the lane is opened again and goes on at its last commit. Report it: it is a "
            "fault of streampair. At the second time the worker stops",
        )
        await self._drop()
        return False

    def _count_dropped(self) -> None:
        dropped = self._source.dropped
        self._telemetry.read_again(self._config.app, dropped - self._dropped)
        self._dropped = dropped

    async def _fenced(self, error: SourceError) -> None:
        """Drop the lane, which was fenced; it is opened again if the partitions are still assigned."""
        log.warning(
            "lane_fenced",
            app=self._config.app,
            topic=self._config.input.topic,
            detail=error.problem,
            next_step=error.fix,
        )
        self._telemetry.fenced(self._config.app)
        self._fence_pause.fenced()
        await self._drop()

    async def _drop(self, *, keep_series: bool = False) -> None:
        """Close the lane, if it is open, without a commit."""
        lane, self.lane, self._uncommitted = self.lane, None, 0
        if lane is None:
            return
        self._source.close(lane)
        await lane.close()
        if not keep_series:
            self._telemetry.withdraw(lane.labels)

    def _publish(self, lane: OpenLane, gauges: LaneGauges, lag: int | None) -> None:
        self._telemetry.publish(
            lane.labels,
            gauges,
            lag,
            lane.timer.seconds,
            position=lane.position,
            event_time=lane.event_time,
            late_labels=self._source.label_metrics(lane),
        )

    def _lag(self, lane: OpenLane, ends: Mapping[Partition, int] | None = None) -> int | None:
        """Records after the last commit."""
        return None if lane.position is None else max(self._source.end(lane, ends) - lane.position, 0)

    def _log_end(self, event: str, **values: Any) -> None:
        log.info(event, app=self._config.app, topic=self._config.input.topic, **values)

    # Rebalances

    async def _on_revoked(self, partitions: list[Partition]) -> None:
        if not self._active:
            return
        self._assigned.difference_update(partitions)
        if self.lane is None:
            return
        self._health.rebalancing()
        async with self._lock:
            if not self._active:
                return
            self._epoch += 1
            # Well below the rebalance timeout, after which the broker removes this member.
            if not await self._commit(clean=True, seconds=30.0):
                log.warning(
                    "lane_dropped",
                    app=self._config.app,
                    next_step="none: the next owner resumes at the last commit and sends some scores again",
                )
            if self.lane is not None:
                self._log_end("lane_revoked")
            await self._drop()

    async def _on_assigned(self, partitions: list[Partition]) -> None:
        """Only record the assignment: the client sends no heartbeats until this returns.

        A lane that takes longer to open than a session would cost this member its membership: the next one
        fences the lane, and loses it in the same way. So this does not wait for a lane that is being opened;
        `_open_if_complete` seeks when it is.
        """
        if not self._active:
            return
        self._assigned.update(partitions)
        if self._opening:
            self._note_assignment()
        else:
            async with self._lock:
                if not self._active:
                    return
                self._note_assignment()
                await self._reseek()
        if not partitions:
            self._health.running()  # a member without a partition is healthy

    def _note_assignment(self) -> None:
        self._epoch += 1
        self._telemetry.rebalanced(self._config.app)

    def _on_lost(self, partition: Partition, wanted: int, first: int) -> None:
        if not self._source.lost(partition, wanted, first):
            return
        if self.lane is not None and partition in self._source.partitions(self.lane):
            self.lane.logged_lane.skipped()

    async def _reseek(self) -> None:
        """Seek again in a lane that was opened during the rebalance, or close it.

        It was not revoked, since it was not open yet. Its polled records belong to an earlier epoch and are
        dropped, and the new assignment starts at an offset that the client chose. Neither raises.
        """
        if self.lane is None:
            return
        if not self._source.complete(self._assigned):
            await self._drop()  # its next owner waits for it
            return
        try:
            self._source.begin(self.lane)
        except FencedError as error:
            await self._fenced(error)

    # Opening the lane

    async def _open_if_complete(self) -> None:
        """Open the lane, if it is not open yet and all partitions are assigned."""
        # During a rebalance the lane would be fenced again, and each fence triggers another rebalance.
        if self.lane is not None or self._fence_pause.active or not self._source.complete(self._assigned):
            return
        async with self._lock:
            # They may have been revoked meanwhile.
            if not self._source.complete(self._assigned) or self._stop.is_set():
                return
            epoch, self._opening = self._epoch, True
            try:
                await self._open_lane()
            finally:
                self._opening = False
            if epoch != self._epoch:  # partitions were assigned meanwhile
                await self._reseek()
            # Records polled meanwhile came from the group's offset, not from the offset sought now.
            self._epoch += 1
        self._health.running()

    async def _open_lane(self) -> None:
        work = asyncio.create_task(self._opener.open())
        try:
            await self._await_open(work)
        finally:
            await kafka.ended(work)
            # Not earlier: a rebalance waits for a lane that is open, not for one that is being opened.
            if not work.cancelled() and work.exception() is None:
                self.lane = work.result()
        if work.cancelled():  # a stop: nothing of this lane was released
            return
        try:
            await self._models.begin(work.result())
            self._position(work.result())
        except (FencedError, CommitOutcomeUnknownError) as error:
            await self._fenced(error)

    async def _await_open(self, work: asyncio.Task[OpenLane]) -> None:
        """Wait until it has ended, or `stop` is called."""
        begin, slow = self._host.monotonic(), False
        session = self._kafka.session_timeout.seconds
        stop = asyncio.create_task(self._stop.wait())
        try:
            while not work.done() and not stop.done():
                await asyncio.wait({work, stop}, timeout=session, return_when=asyncio.FIRST_COMPLETED)
                seconds = self._host.monotonic() - begin
                self._telemetry.opening(self._config.app, seconds)
                if seconds >= session and not slow:
                    slow = True
                    self._report_slow_opening(seconds)
        finally:
            stop.cancel()

    def _report_slow_opening(self, seconds: float) -> None:
        log.warning(
            "opening_is_slow",
            app=self._config.app,
            seconds=round(seconds, 1),
            detail="opening takes longer than a session: if this worker is too busy to send heartbeats, the "
            "group gives its lanes to another one, which begins anew",
            next_step=f"set kafka.session_timeout, now {self._kafka.session_timeout}, and "
            f"kafka.max_poll_interval, now {self._kafka.max_poll_interval}, above the "
            "time that opening takes, give the worker more processor time, or take a faster learner",
        )

    def _position(self, lane: OpenLane) -> None:
        """Seek to the offsets in the lane's log, or to the start. The group's offset is never trusted."""
        where = {"app": self._config.app, "topic": self._config.input.topic}
        for number, next_offset, first in lane.lost:
            log.warning(
                "events_lost",
                **where,
                partition=number,
                wanted_offset=next_offset,
                first_offset=first,
                next_step=retention_fix(self._config),
            )
            lane.logged_lane.skipped()
        self._source.begin(lane)
        offset = lane.position = self._source.taken(lane)
        end = self._source.end(lane)
        self._publish(lane, lane.logged_lane.gauges(), max(end - offset, 0))
        log.info("lane_opened", **where, offset=offset, end=end, restored=lane.restored)
