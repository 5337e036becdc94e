"""The worker: events from Kafka through lanes to scores, until it is stopped.

One lane per partition, one consumer group. Here are sessions, rebalances and the loop; what makes a commit
is in `checkpoint`, how a lane is opened in `lanes`, where its state lies in `stores`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections.abc import Sequence
from typing import Any

from streampair.engine import LaneGauges
from streampair.engine.snapshot import dated
from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError, StreampairError
from streampair_connectors import kafka
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import Changes, Config, KafkaConfig
from streampair_connectors.kafka import (
    Consumer,
    Partition,
    Producer,
    RecordLike,
    RecordReader,
    StaticMemberConflicts,
)
from streampair_connectors.kafka.topics import check_topics, output_topics
from streampair_connectors.observability.health import Health
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.stores import DiskStore, Store, TopicStore
from streampair_connectors.worker.checkpoint import Checkpoint
from streampair_connectors.worker.factory import is_private, taken_cells, warm_up
from streampair_connectors.worker.flow_control import Backlog, Commits, Pace
from streampair_connectors.worker.lane_manager import Opener, OpenLane
from streampair_connectors.worker.outputs import Outputs

__all__ = ["Worker"]

log = get_logger(__name__)

_POLL_SECONDS = 0.2  # also how long a stop may go unnoticed
_WATCH_SECONDS = 2.0
_OPENED_AT_ONCE = 16  # lanes
_FENCED_SECONDS = 1.0  # after a lane was somebody else's, before it is opened again
_ENDING_SECONDS = 5.0  # for estimates of the regret when it ends
_UNACKNOWLEDGED_BYTES = 32 * 1024 * 1024  # of outputs not known to be stored; then a commit is due
_LANE_BYTES = 256 * 1024  # more of them for each lane: each has a transaction to pay for


class Worker:
    """Runs one application.

    Parameters
    ----------
    config
        A whole configuration, with [kafka].
    telemetry
        Where the series go; None for one of its own.
    create_topics
        Make the topics that are missing, as [topics] says.

    Notes
    -----
    `run` raises what cannot be helped by trying again. A broker that goes away later is waited
    for: the state is `waiting`, nothing is lost, and it goes on by itself.
    """

    def __init__(
        self,
        config: Config,
        *,
        telemetry: Telemetry | None = None,
        create_topics: bool = False,
    ) -> None:
        self.config = config
        self.telemetry = telemetry if telemetry is not None else Telemetry()
        self.telemetry.configured(config.app, Changes(config))
        self._health = Health(config.app, self.telemetry, config.worker.stuck_seconds)
        self._kafka: KafkaConfig = config.require_kafka()
        self._decode = json_decoder(config.input, **taken_cells(config))
        self._create_topics = create_topics
        self._assigned: set[Partition] = set()
        self._held: dict[Partition, OpenLane] = {}
        self._warm: dict[Partition, OpenLane] = {}  # let go of by the last rebalance
        self._lock = asyncio.Lock()
        self._stop = asyncio.Event()
        self._give_up = asyncio.Event()
        self._epoch = 0
        self._fenced_at = -math.inf
        self._compiler: threading.Thread | None = None
        self._in_session = False
        self._joined = False
        self._uncommitted = 0
        self._taken = 0
        self._payloads_change = False
        self._partitions = 1
        self._commits = Commits(config.commit_every_seconds, config.worker.commit_every_events)
        self._backlog = Backlog(config.app)
        self._pace = Pace(config.worker.batch_size, self._kafka.max_poll_interval_seconds)
        name = self._kafka.instance_id()
        self._takeovers = None if name is None else StaticMemberConflicts(name)
        self._consumer: Consumer
        self._producer: Producer
        self._store: Store
        self._outputs: Outputs
        self._lookup: RecordReader
        self._opener: Opener
        self._checkpoint: Checkpoint

    @property
    def lanes(self) -> dict[int, OpenLane]:
        """The lanes held now, by partition."""
        return {p.partition: held for p, held in self._held.items()}

    def stop(self) -> None:
        """Finish the batch, commit, leave the group. Safe to call twice."""
        if not self._stop.is_set():
            self._stop.set()
            self._health.stopping()

    async def run(self) -> None:
        """Work until `stop`.

        Raises
        ------
        SourceError
            No broker answers at the start, a topic does not exist, Kafka refuses, or outputs
            could not be stored before the stop timeout.
        StoreError, SnapshotError, ConfigError, LaneStoppedError
            As the message says.
        """
        self._health.starting()
        pause = 0.5
        patience = time.monotonic() + self._kafka.connect_timeout_seconds
        try:
            if not await self._warm_up():
                self._health.stopped()
                return
            while True:
                try:
                    await self._session()
                except SourceError as error:
                    # Before the first success somebody is there to be told; later the worker waits.
                    late = not self._joined and time.monotonic() >= patience
                    if not error.retriable or late or self._stop.is_set():
                        raise
                    self._health.waiting(str(error.problem))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stop.wait(), pause)
                    pause = min(pause * 2, 10.0)
                if self._stop.is_set():
                    break
        except StreampairError as error:
            self._health.failed(error)
            raise
        self._health.stopped()

    @property
    def compiling(self) -> bool:
        """Whether a thread compiles kernels."""
        return self._compiler is not None and self._compiler.is_alive()

    async def _warm_up(self) -> bool:
        """Compile what the lanes need; False: it was asked to stop before that was done.

        Compilation cannot be interrupted, and may take longer than a supervisor waits. So its thread is left
        behind, a daemon that does not keep the process.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BaseException | None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                warm_up(self.config)
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # nobody waits any more
                loop.call_soon_threadsafe(tell, error)

        self._compiler = threading.Thread(target=work, name="warm-up", daemon=True)
        self._compiler.start()
        stop = asyncio.ensure_future(self._stop.wait())
        either: set[asyncio.Future[Any]] = {done, stop}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not done.done():
            return False
        error = done.result()
        if error is not None:
            raise error
        return True

    # One connection to the cluster

    async def _session(self) -> None:
        config = self.config
        facts = await check_topics(config, create=self._create_topics)
        self._partitions, self._payloads_change = facts.partitions, facts.payloads_change
        self._producer = Producer(self._kafka, max_message_bytes=config.output.max_message_bytes)
        self._consumer = Consumer(
            self._kafka,
            config.input.topic,
            config.app,
            on_revoked=self._on_revoked,
            on_assigned=self._on_assigned,
            on_lost=self._on_lost,
            takeovers=self._takeovers,
        )
        self._lookup = RecordReader(self._kafka)
        watch: asyncio.Task[None] | None = None
        guard: asyncio.Task[None] | None = None
        self._in_session = True
        try:
            await self._producer.start()
            for topic in output_topics(config).values():
                await self._producer.partitions(topic)
            if config.store.in_kafka:
                self._store = TopicStore(
                    config,
                    partitions=self._partitions,
                    private=is_private(config),
                    lookup=self._lookup,
                )
            else:
                self._store = DiskStore(config, self._consumer, self._producer)
            await self._store.start()
            self._outputs = Outputs(config, self._producer)
            count = self.telemetry.counted(config.app)
            self._checkpoint = Checkpoint(self._store, self._health.waiting, count)
            self._opener = Opener(
                config,
                self._store,
                self._lookup,
                self._decode,
                self.telemetry,
                partitions=self._partitions,
                cluster=await kafka.cluster_id(self._kafka),
                payloads_change=self._payloads_change,
            )
            await self._consumer.start()
            self._joined = True
            watch = asyncio.create_task(self._watch())
            guard = asyncio.create_task(self._limit_stop())
            await self._loop()
            await self._finish()
        finally:
            self._in_session = False
            # What they ask for must have ended before the connections are closed.
            await kafka.ended(watch, guard)
            await self._drop_lanes()
            self._assigned.clear()
            await self._consumer.stop()
            await self._lookup.stop()
            await self._producer.stop()

    def _has_grown(self) -> bool:
        """Whether partitions were added to the input.

        Then this session ends as at a stop, and the next one begins with all of them: the log topic needs as
        many, and lanes that depend on their number must be checked again.
        """
        known = self._consumer.partition_count() or 0
        count = max([known, *(p.partition + 1 for p in self._assigned)])
        if count <= self._partitions:
            return False
        log.info(
            "input_has_grown",
            app=self.config.app,
            topic=self.config.input.topic,
            before=self._partitions,
            now=count,
            next_step="none: all lanes are committed, closed and opened again, the new ones too",
        )
        return True

    async def _loop(self) -> None:
        self._commits.begin()
        while not (self._stop.is_set() or self._has_grown()):
            await self._open_assigned()
            wait = _POLL_SECONDS
            if self._uncommitted:
                waits = self._commits.wait(self._uncommitted), self._outputs.wait(self._held.values())
                wait = min(wait, *(seconds for seconds in waits if seconds is not None))
            start = time.perf_counter()
            batches = await self._consumer.poll(self._pace.records, wait)
            if batches:
                self.telemetry.fetched(self.config.app, time.perf_counter() - start)
            self._pace.polled()
            epoch = self._epoch  # read before anything else may run: the batches belong to it
            async with self._lock:
                for partition, records in batches.items():
                    held = self._held.get(partition)
                    if held is None or epoch != self._epoch:
                        # Taken away since; its next owner reads these records again.
                        continue
                    await self._process(held, records)
                for held, error in await self._outputs.release(self._held.values(), self._give_up):
                    await self._fenced(held.topic_partition, error)
                # Nothing came for a while: what is done need not wait for the rest of its second.
                idle = not batches and wait == _POLL_SECONDS
                stale = idle and any(held.snapshot_due for held in self._held.values())
                if self._commit_is_due() or (idle and self._uncommitted) or stale:
                    await self._commit(clean=False)
            if self._backlog.due:
                self._backlog.look(self._taken, self._waiting())
            await asyncio.sleep(0)  # let the sender of outputs run when input never ends

    def _commit_is_due(self) -> bool:
        if not self._uncommitted:
            return False
        room = _UNACKNOWLEDGED_BYTES + _LANE_BYTES * len(self._held)
        return self._store.unacknowledged_bytes >= room or self._commits.due(self._uncommitted, self._waiting)

    def _waiting(self) -> int:
        """Records of all lanes that were not taken yet."""
        waiting = 0
        for held in self._held.values():
            end, done = self._consumer.end(held.topic_partition), held.lane.next_offset
            waiting += 0 if end is None or done is None else max(end - done, 0)
        return waiting

    async def _process(self, held: OpenLane, records: Sequence[RecordLike]) -> None:
        start = 0
        while start < len(records):
            room = held.lane.room
            if room == 0:
                # What the private learner may release is used up: a commit reserves the next slots.
                if not await self._commit(clean=False) or held.topic_partition not in self._held:
                    return  # stopping, or taken away: whoever goes on reads these records again
                room = held.lane.room
            if self._pace.over:
                self._consumer.seek(held.topic_partition, records[start].offset)
                return
            size = self._pace.slice if room is None else min(self._pace.slice, room)
            part = records[start : start + size]
            start += len(part)
            output = await self._pace.run(functools.partial(held.timer.process, part), len(part))
            held.dirty = True
            held.event_time = dated(part[-1].timestamp) / 1000.0 or held.event_time
            self._uncommitted += len(part)
            self._taken += len(part)
            begin = time.perf_counter()
            await self._outputs.send(held, part, output)
            held.timer.encoded(time.perf_counter() - begin)

    async def _commit(self, *, clean: bool, seconds: float | None = None) -> bool:
        """Commit all lanes. False: the outputs could not be stored in time, nothing was saved."""
        dirty = [held for held in self._held.values() if held.dirty or clean or held.snapshot_due]
        for held in dirty:
            await self._outputs.model(held, due=clean)
        outcome = await self._checkpoint.run(dirty, clean=clean, give_up=self._give_up, seconds=seconds)
        for held, error in outcome.fenced:
            await self._fenced(held.topic_partition, error)
        if not outcome.stored:
            return False
        # The last estimates of a run cover all of its events, as far as there is time for them.
        ending = time.monotonic() + _ENDING_SECONDS if clean and self._stop.is_set() else 0.0
        # Only now, when it is durable, is it shown; whose estimate is the oldest gets the next.
        for held in sorted(outcome.committed, key=lambda held: held.timer.estimated_at):
            at = await self._consumer.position(held.topic_partition)
            held.position = held.lane.next_offset if at is None else at
            final = time.monotonic() < ending
            gauges = held.timer.gauges(final=final)
            self._show(held, gauges, self._lag(held))
            held.report_outside(gauges.outside)
            held.report_bad(self.telemetry, self.config.dead_letter_topic)
        self._uncommitted = 0
        self._commits.committed(outcome.seconds)
        self.telemetry.committed(self.config.app, outcome.seconds)
        self._health.running()
        return True

    async def _fenced(self, partition: Partition, error: SourceError) -> None:
        """Drop a lane that is somebody else's; if it is still ours after all, it is opened again."""
        log.warning(
            "lane_fenced",
            app=self.config.app,
            topic=partition.topic,
            partition=partition.partition,
            detail=error.problem,
            next_step=error.fix,
        )
        self.telemetry.fenced(self.config.app)
        self._fenced_at = time.monotonic()
        held = self._held.pop(partition, None)
        if held is not None:
            await held.close()
            self.telemetry.withdraw(held.labels)

    async def _finish(self) -> None:
        """Commit for the last time in this session and let go of the lanes."""
        async with self._lock:
            self._in_session = False
            if not await self._commit(clean=True):
                raise SourceError(
                    "the last outputs could not be stored before worker.stop_timeout_seconds",
                    fix="start again when the broker is back: it goes on at the last commit, nothing is lost",
                )
            for held in self._held.values():
                log.info(
                    "lane_closed",
                    app=self.config.app,
                    topic=held.topic,
                    partition=held.partition,
                    next_offset=held.lane.next_offset,
                )
            # Before leaving the group: the next owner must find the stores open.
            await self._drop_lanes(keep_series=self._stop.is_set())

    async def _limit_stop(self) -> None:
        await self._stop.wait()
        await asyncio.sleep(self.config.worker.stop_timeout_seconds)
        self._give_up.set()

    async def _drop_lanes(self, *, keep_series: bool = False) -> None:
        self._warm.clear()
        for held in self._held.values():
            await held.close()
            if not keep_series:
                self.telemetry.withdraw(held.labels)
        self._held.clear()
        self._uncommitted = 0

    # Rebalances

    async def _on_revoked(self, partitions: list[Partition]) -> None:
        if not self._in_session:
            return
        self._assigned.difference_update(partitions)
        if not self._held:
            return
        self._health.rebalancing()
        async with self._lock:
            self._epoch += 1
            # Well below the rebalance timeout, after which the broker would go on without us.
            if not await self._commit(clean=True, seconds=30.0):
                log.warning(
                    "lanes_dropped",
                    app=self.config.app,
                    next_step="none: the next owner goes on at the last commit and sends some scores again",
                )
            for held in self._held.values():
                log.info("lane_revoked", app=self.config.app, topic=held.topic, partition=held.partition)
            warm = dict(self._held)
            await self._drop_lanes()
            self._warm = warm

    async def _on_assigned(self, partitions: list[Partition]) -> None:
        """Only note them: the group waits for this, and to open a lane takes as long as its replay."""
        if not self._in_session:
            return
        async with self._lock:
            self._epoch += 1
            self.telemetry.rebalanced(self.config.app)
            self._assigned.update(partitions)
            # What is another member's now is not kept.
            self._warm = {p: held for p, held in self._warm.items() if p in self._assigned}
            await self._reseek()
        if not partitions:
            self._health.running()  # a member without a partition waits for one, and is well

    def _on_lost(self, partition: Partition) -> None:
        held = self._held.get(partition)
        if held is not None:
            held.lane.skipped()

    async def _reseek(self) -> None:
        """Bring lanes that were opened while the group rebalanced into the assignment that came of it.

        Nobody has revoked them: they were not held yet. What was polled for them is dropped like all that is
        of an earlier epoch, and where the new assignment reads on is the client's guess: both without a word.
        """
        for partition, held in list(self._held.items()):
            if partition in self._assigned:
                try:
                    self._consumer.seek(partition, held.reads_on)
                except FencedError as error:
                    await self._fenced(partition, error)
            else:
                del self._held[partition]  # its next owner waits for it
                await held.close()
                self.telemetry.withdraw(held.labels)

    async def _open_assigned(self) -> None:
        """Open what was assigned and is not held, several lanes side by side: most of a start is waiting."""
        # In the middle of a rebalance it would be refused again, and each refusal asks for another rebalance.
        fenced = time.monotonic() < self._fenced_at + _FENCED_SECONDS
        missing = [] if fenced else sorted(self._assigned - set(self._held))
        for at in range(0, len(missing), _OPENED_AT_ONCE):
            async with self._lock:
                # The others were taken away meanwhile.
                wanted = [p for p in missing[at : at + _OPENED_AT_ONCE] if p in self._assigned]
                if not wanted or self._stop.is_set():
                    continue
                await self._open(wanted)
                # What was polled meanwhile came from the group's offset, not from where we have just sought.
                self._epoch += 1
            self._health.running()

    async def _open(self, partitions: list[Partition]) -> None:
        work = {p: asyncio.create_task(self._opener.open(p, self._warm.pop(p, None))) for p in partitions}
        try:
            await asyncio.wait(work.values())
        finally:
            await kafka.ended(*work.values())
            # All that are open are held at once: none is lost, whatever becomes of another. And not before: a
            # rebalance waits for lanes that are held, not for those that are being opened.
            for partition, task in work.items():
                if not task.cancelled() and task.exception() is None:
                    self._held[partition] = task.result()
        for held in self._held.values():
            held.lanes = len(self._held)
        for partition, task in work.items():
            try:
                self._position(task.result())
            except (FencedError, CommitOutcomeUnknownError) as error:
                await self._fenced(partition, error)

    def _position(self, held: OpenLane) -> None:
        """Read from where the lane's log says; from the start without one. Never trust the group."""
        partition = held.topic_partition
        first, end = held.span
        wanted = held.lane.next_offset
        where = {"app": self.config.app, "topic": partition.topic, "partition": partition.partition}
        if wanted is not None and wanted < first:
            log.warning(
                "events_lost",
                **where,
                wanted_offset=wanted,
                first_offset=first,
                next_step="the topic's retention removed events before they were read: "
                "raise retention.ms, or add partitions and workers",
            )
            held.lane.skipped()
        offset = held.position = held.reads_on
        self._consumer.seek(partition, offset)
        self._show(held, held.lane.gauges(), max(end - offset, 0))
        log.info("lane_opened", **where, offset=offset, end=end, restored=held.restored)

    # What is shown

    def _show(self, held: OpenLane, gauges: LaneGauges, lag: int | None) -> None:
        self.telemetry.publish(
            held.labels,
            gauges,
            lag,
            held.timer.seconds,
            position=held.position,
            event_time=held.event_time,
        )

    async def _watch(self) -> None:
        """Ask for the ends of the partitions: lag while nothing is committed, and whether anybody answers."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            held = list(self._held.values())
            if not held:
                continue
            if not self._lock.locked():  # nothing is processed or committed meanwhile: no await in here
                # The stream pauses: time for estimates that the last commit left out, one at least.
                paused = [lane for lane in held if not (lane.dirty or lane.timer.estimated)]
                for number, lane in enumerate(sorted(paused, key=lambda lane: lane.timer.estimated_at)):
                    self._show(lane, lane.timer.gauges(final=number == 0), self._lag(lane))
            ends = await self._consumer.ends([h.topic_partition for h in held], 5.0)
            if ends is None:
                self._health.waiting(f"no broker answers at {self._kafka.bootstrap_servers}")
                continue
            for lane in held:
                if not lane.dirty:  # a marker alone may have moved it
                    lane.position = await self._consumer.position(lane.topic_partition) or lane.position
                lag = self._lag(lane, ends.get(lane.topic_partition))
                if lag is not None:
                    self.telemetry.lag(lane.labels, lag, lane.position)
            if not self._store.stuck:
                self._health.running()

    def _lag(self, held: OpenLane, end: int | None = None) -> int | None:
        """Records behind the last commit."""
        if end is None:
            end = self._consumer.end(held.topic_partition)
        return None if end is None or held.position is None else max(end - held.position, 0)
