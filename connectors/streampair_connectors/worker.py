"""The worker: events from Kafka through lanes to scores, until it is stopped.

One lane per partition, one consumer group. The offset lies inside the snapshot, so an event is
learned once whatever dies; outputs are sent at least once. The order of a commit:

1. outputs and dead letters sent, and known to be stored;
2. the snapshot saved, with the offset in it;
3. the group's offsets committed, for tools that show lag;
4. only then the gauges published.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from streampair.engine.lane import LaneOutput
from streampair.errors import PrivacyError, SnapshotError, SourceError, StreampairError
from streampair_connectors import kafka
from streampair_connectors.assemble import is_private, warm_up
from streampair_connectors.config import Config, KafkaConfig
from streampair_connectors.health import Health
from streampair_connectors.kafka import Consumer, Message, Partition, Producer, RecordLike
from streampair_connectors.lanes import OpenLane
from streampair_connectors.logs import get_logger
from streampair_connectors.records import json_decoder
from streampair_connectors.store import DirectoryStore, Store
from streampair_connectors.telemetry import Telemetry
from streampair_connectors.topics import create_missing, missing_topic, output_topics

__all__ = ["Worker"]

log = get_logger(__name__)

_POLL_SECONDS = 0.2  # also how long a stop may go unnoticed
_SLICE_SECONDS = 0.05  # a lane may keep the event loop, and the heartbeats, for about this long
_WATCH_SECONDS = 2.0
_UNACKNOWLEDGED_BYTES = 32 * 1024 * 1024  # of outputs not known to be stored; then a commit is due


class Worker:
    """Runs one application.

    Parameters
    ----------
    config
        A whole configuration, with [kafka].
    telemetry
        Where the series go; None for one of its own.
    store
        Where the snapshots lie; None for the configured directory.
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
        store: Store | None = None,
        create_topics: bool = False,
    ) -> None:
        self.config = config
        self.telemetry = telemetry if telemetry is not None else Telemetry()
        self._health = Health(config.app, self.telemetry)
        self._kafka: KafkaConfig = config.require_kafka()
        self._store = (
            store
            if store is not None
            else DirectoryStore(config.state_directory, group_access=config.store.group_access)
        )
        self._decode = json_decoder(config.input)
        self._create_topics = create_topics
        self._held: dict[Partition, OpenLane] = {}
        self._lock = asyncio.Lock()
        self._stop = asyncio.Event()
        self._give_up = asyncio.Event()
        self._epoch = 0
        self._in_session = False
        self._joined = False
        self._uncommitted = 0
        self._payloads_change = False
        self._last_commit = 0.0
        self._slice = 100
        self._consumer: Consumer
        self._producer: Producer

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
        StoreError, SnapshotError, ConfigError, LaneStopped
            As the message says.
        """
        self._health.starting()
        pause = 0.5
        patience = time.monotonic() + self._kafka.connect_timeout_seconds
        try:
            await asyncio.to_thread(warm_up, self.config)
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
                    if not self._stop.is_set():
                        continue
                break
        except StreampairError as error:
            self._health.failed(error)
            raise
        self._health.stopped()

    # One connection to the cluster

    async def _session(self) -> None:
        config = self.config
        await self._check_topics()
        self._producer = Producer(self._kafka, max_message_bytes=config.output.max_message_bytes)
        self._consumer = Consumer(
            self._kafka,
            config.input.topic,
            config.app,
            on_revoked=self._on_revoked,
            on_assigned=self._on_assigned,
        )
        watch: asyncio.Task[None] | None = None
        guard: asyncio.Task[None] | None = None
        self._in_session = True
        try:
            await self._producer.start()
            for topic in (config.output_topic, config.dead_letter_topic):
                await self._producer.partitions(topic)
            await self._consumer.start()
            self._joined = True
            watch = asyncio.create_task(self._watch())
            guard = asyncio.create_task(self._limit_stop())
            await self._loop()
            await self._finish()
        finally:
            self._in_session = False
            for task in (watch, guard):
                if task is not None:
                    task.cancel()
            self._drop_lanes()
            await self._consumer.stop()
            await self._producer.stop()

    async def _check_topics(self) -> None:
        """Refuse to start on topics that do not exist, before anything would make them unasked."""
        config = self.config
        topics = await kafka.describe_topics(self._kafka)
        if self._create_topics:
            creation = await create_missing(config, topics)
            for name, partitions in creation.made.items():
                log.info("topic_created", app=config.app, topic=name, partitions=partitions)
            for error in creation.errors.values():
                raise error
            topics |= creation.made
        if config.input.topic not in topics:
            raise missing_topic(config, "input.topic", config.input.topic)
        if is_private(config) and await kafka.is_compacted(self._kafka, config.input.topic):
            # A replay may then find other records, and is never taken for a repetition.
            self._payloads_change = True
            log.warning(
                "topic_is_compacted",
                app=config.app,
                topic=config.input.topic,
                next_step="every crash is charged to the privacy budget: set cleanup.policy=delete, or set "
                "forks in learner.options",
            )
        for key, topic in output_topics(config).items():
            if topic not in topics and not await kafka.create_by_asking(self._kafka, topic):
                raise missing_topic(config, key, topic)

    async def _loop(self) -> None:
        batch_size = self.config.worker.batch_size
        every = self.config.worker.commit_every_seconds
        self._last_commit = time.monotonic()
        while not self._stop.is_set():
            wait = _POLL_SECONDS
            if self._uncommitted:
                wait = min(wait, max(self._last_commit + every - time.monotonic(), 0.0))
            batches = await self._consumer.poll(batch_size, wait)
            epoch = self._epoch  # read before anything else may run: the batches belong to it
            async with self._lock:
                for partition, records in batches.items():
                    held = self._held.get(partition)
                    if held is None or epoch != self._epoch:
                        # Taken away since; its next owner reads these records again.
                        continue
                    await self._process(held, records)
                # Nothing came for a while: what is done need not wait for the rest of its second.
                if self._commit_is_due() or (self._uncommitted and not batches and wait == _POLL_SECONDS):
                    await self._commit(clean=False)
            await asyncio.sleep(0)  # let the sender of outputs run when input never ends

    def _commit_is_due(self) -> bool:
        return self._uncommitted > 0 and (
            self._uncommitted >= self.config.worker.commit_every_events
            or self._producer.unacknowledged_bytes >= _UNACKNOWLEDGED_BYTES
            or time.monotonic() >= self._last_commit + self.config.worker.commit_every_seconds
        )

    async def _process(self, held: OpenLane, records: Sequence[RecordLike]) -> None:
        start = 0
        while start < len(records):
            room = held.lane.room
            if room == 0:
                # What the private learner may release is used up: a commit reserves the next slots.
                if not await self._commit(clean=False):
                    return  # stopping: whoever goes on reads these records again
                room = held.lane.room
            part = records[start : start + min(self._slice, self._slice if room is None else room)]
            start += len(part)
            output = held.timer.process(part)
            held.dirty = True
            self._uncommitted += len(part)
            await self._send(held, part, output)
            limit = _SLICE_SECONDS / max(held.timer.seconds_by_event, 1e-7)
            self._slice = max(1, min(int(limit), self.config.worker.batch_size))

    async def _send(self, held: OpenLane, records: Sequence[RecordLike], output: LaneOutput) -> None:
        """Hand the outputs of a batch to the producer, in batches by output partition."""
        config, producer = self.config, self._producer
        encode, source = held.encoder.score, held.partition
        topic = config.output_topic
        by_target: dict[Partition, list[Message]] = {}
        if producer.single(topic):
            messages = [Message(scored.key, encode(scored)) for scored in output.scores]
            by_target[Partition(topic, 0)] = messages
        else:
            for scored in output.scores:
                target = producer.target(topic, scored.key, source)
                by_target.setdefault(target, []).append(Message(scored.key, encode(scored)))
        if output.dead_letters:
            headers = {record.offset: record.headers for record in records}
            topic = config.dead_letter_topic
            for letter in output.dead_letters:
                target = producer.target(topic, letter.key, source)
                own = held.encoder.dead_letter(letter, headers.get(letter.offset, ()))
                by_target.setdefault(target, []).append(Message(letter.key, letter.value, own))
            held.bad_count += len(output.dead_letters)
            held.last_bad = output.dead_letters[-1]
        for target, messages in by_target.items():
            await producer.send(target, messages)

    async def _commit(self, *, clean: bool, seconds: float | None = None) -> bool:
        """Commit all lanes. False: the outputs could not be stored in time, nothing was saved."""
        begin = time.perf_counter()
        # 1 outputs and dead letters stored
        if seconds is None:
            stored = await self._producer.flush(self._give_up, self._health.waiting)
        else:
            late = asyncio.Event()
            timer = asyncio.get_running_loop().call_later(seconds, late.set)
            try:
                stored = await self._producer.flush(late, self._health.waiting)
            finally:
                timer.cancel()
        if not stored:
            return False
        dirty = [held for held in self._held.values() if held.dirty or clean]
        # 2 the snapshot, with its offset
        for held in dirty:
            data = held.lane.snapshot(clean=clean)
            await asyncio.to_thread(held.save, data)
            held.dirty = False
        # 3 the group's offsets
        offsets = {
            p: held.lane.next_offset
            for p, held in self._held.items()
            if held in dirty and held.lane.next_offset is not None
        }
        if offsets:
            await self._consumer.commit(offsets)
        # 4 the gauges
        for held in dirty:
            at = await self._consumer.position(held.topic_partition)
            held.position = held.lane.next_offset if at is None else at
            # The last estimate of a run covers all of its events.
            self.telemetry.publish(held.labels, held.timer.gauges(final=clean), self._lag(held))
            self._report_bad(held)
        self._uncommitted = 0
        self._last_commit = time.monotonic()
        self.telemetry.committed(self.config.app, time.perf_counter() - begin)
        self._health.running()
        return True

    def _report_bad(self, held: OpenLane) -> None:
        """One log line a commit, without the message: that may quote the event."""
        last, count = held.last_bad, held.bad_count
        if last is not None:
            held.last_bad, held.bad_count = None, 0
            log.warning(
                "dead_letters",
                app=self.config.app,
                topic=held.topic,
                partition=held.partition,
                count=count,
                last_offset=last.offset,
                last_stage=last.stage,
                next_step=f"read the header streampair.error in topic {self.config.dead_letter_topic}",
            )

    async def _finish(self) -> None:
        """Commit for the last time and let go of the lanes."""
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
            self._drop_lanes(keep_series=True)

    async def _limit_stop(self) -> None:
        await self._stop.wait()
        await asyncio.sleep(self.config.worker.stop_timeout_seconds)
        self._give_up.set()

    def _drop_lanes(self, *, keep_series: bool = False) -> None:
        for held in self._held.values():
            held.close()
            if not keep_series:
                self.telemetry.withdraw(held.labels)
        self._held.clear()
        self._uncommitted = 0

    # Rebalances

    async def _on_revoked(self, partitions: list[Partition]) -> None:
        if not self._held or not self._in_session:
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
            self._drop_lanes()

    async def _on_assigned(self, partitions: list[Partition]) -> None:
        if not self._in_session:
            return
        async with self._lock:
            self._epoch += 1
            self.telemetry.rebalanced(self.config.app)
            for partition in partitions:
                held = await asyncio.to_thread(
                    OpenLane,
                    self.config,
                    self._store,
                    self._decode,
                    self.telemetry,
                    topic=partition.topic,
                    partition=partition.partition,
                    payloads_change=self._payloads_change,
                )
                self._held[partition] = held
                await self._position(held)
            # What was polled meanwhile came from the group's offset, not from where we have just sought.
            self._epoch += 1
        self._health.running()

    async def _position(self, held: OpenLane) -> None:
        """Read from where the snapshot says; from the start without one. Never trust the group."""
        partition = held.topic_partition
        first, end = await self._consumer.range(partition)
        wanted = held.lane.next_offset
        offset = first if wanted is None else wanted
        where = {"app": self.config.app, "topic": partition.topic, "partition": partition.partition}
        if offset > end:
            raise SnapshotError(
                f"the state of {partition.topic}[{partition.partition}] is at offset {offset}, "
                f"but the topic ends at {end}: it was deleted and made again, or lost records",
                fix=f"remove the state in {self.config.state_directory} to start anew on this topic",
            )
        if wanted is None:
            committed = await self._consumer.committed(partition)
            if committed is not None and committed > first and held.lane.private:
                # The group's offset outlives the store: what was released before is not in this account.
                raise PrivacyError(
                    f"the store has no state of {partition.topic}[{partition.partition}], but "
                    f"{self.config.app!r} has released models of its records up to offset {committed}",
                    fix=f"put the state back into {self.config.state_directory}. If it is lost, start under "
                    "another app name: a new account, whose spend comes on top of the lost one's",
                )
            if committed is not None and committed > first:
                log.warning(
                    "state_missing",
                    **where,
                    group_offset=committed,
                    starts_at=first,
                    next_step="the group was here before but the store is empty: it learns from the "
                    "start of the topic; stop and restore store.directory if that is not wanted",
                )
        elif offset < first:
            log.warning(
                "events_lost",
                **where,
                wanted_offset=offset,
                first_offset=first,
                next_step="the topic's retention removed events before they were read: "
                "raise retention.ms, or add partitions and workers",
            )
            offset = first
        self._consumer.seek(partition, offset)
        held.position = offset
        self.telemetry.publish(held.labels, held.lane.gauges(), max(end - offset, 0))
        log.info("lane_opened", **where, offset=offset, end=end, restored=held.restored)

    # Lag

    async def _watch(self) -> None:
        """Ask for the ends of the partitions: lag while nothing is committed, and whether anybody answers."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            held = list(self._held.values())
            if not held:
                continue
            if not self._lock.locked():  # nothing is processed or committed meanwhile: no await in here
                for lane in held:
                    if not (lane.dirty or lane.timer.estimated):
                        # The stream pauses: time for the estimate that its last commit had no time for.
                        self.telemetry.publish(lane.labels, lane.timer.gauges(), self._lag(lane))
            ends = await self._consumer.ends([h.topic_partition for h in held], 5.0)
            if ends is None:
                self._health.waiting(f"no broker answers at {self._kafka.bootstrap_servers}")
                continue
            for lane in held:
                if not lane.dirty:  # a marker alone may have moved it
                    lane.position = await self._consumer.position(lane.topic_partition) or lane.position
                lag = self._lag(lane, ends.get(lane.topic_partition))
                if lag is not None:
                    self.telemetry.lag(lane.labels, lag)
            if not self._producer.stuck:
                self._health.running()

    def _lag(self, held: OpenLane, end: int | None = None) -> int | None:
        """Records behind the last commit."""
        if end is None:
            end = self._consumer.end(held.topic_partition)
        return None if end is None or held.position is None else max(end - held.position, 0)
