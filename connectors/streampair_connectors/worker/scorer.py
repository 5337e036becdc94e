"""Scorers: they score events with the newest published model, side by side, and hold no state.

The partitions of the input are spread over the group `APP.scorers`. Scores, dead letters and offsets are one
transaction a batch, which the broker refuses from a member of an earlier generation (KIP-447). So each event
gets one score, whatever dies. The learner is another member of another group, perhaps of another process, and
scoring goes on while it is away.
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections import deque
from collections.abc import Mapping, Sequence

from streampair.engine.snapshot import dated
from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError
from streampair_connectors import kafka
from streampair_connectors.codecs.formats import event_decoder
from streampair_connectors.codecs.records import Encoder
from streampair_connectors.config import Config
from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.kafka import (
    KAFKA,
    Cluster,
    Consumer,
    Member,
    Partition,
    ReadPositions,
    RecordLike,
    RecordReader,
    Routes,
    Span,
    StaticMemberConflicts,
    TransactionalProducer,
    scorer_id,
)
from streampair_connectors.kafka.admin import output_topics
from streampair_connectors.kafka.client import ID_PREFIX
from streampair_connectors.kafka.ordering import size_of_records
from streampair_connectors.observability.health import Health
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.worker.factory import taken_cells
from streampair_connectors.worker.flow_control import Pace
from streampair_connectors.worker.model_topic import ModelFollower, PublishedModel
from streampair_connectors.worker.outputs import SCORING_STAGES, ByTarget, OutputMessages
from streampair_connectors.worker.scoring import score_records
from streampair_connectors.worker.sessions import ConnectionWatch, run_sessions, run_watched

__all__ = ["ScoringWorker", "allowed_behind"]

log = get_logger(__name__)

_POLL_SECONDS = 0.2
_TRANSACTION_SECONDS = 10.0
# Each answer becomes a transaction, which costs a scorer more than its events do.
_MIN_BYTES = 256 * 1024
_BUFFER_BYTES = 4 * 1024 * 1024  # of a partition; then it is paused
_RECORD_BYTES = 200  # of a record in memory, beside key and value
_BATCH_RECORDS = 10_000
_MODEL_SECONDS = 5.0  # longest wait for a newer model, while many events wait
_LEAST_BEHIND, _SHARE_BEHIND = 1000, 0.1


def allowed_behind(slots: int, share: float) -> int:
    """Events that a scorer may score with a model that has not learned them.

    Parameters
    ----------
    slots
        Records that the model has learned.
    share
        Of the input's partitions that the scorer has.
    """
    return round(max(_LEAST_BEHIND, _SHARE_BEHIND * slots) * share)


class _Queue:
    """Records of one partition that wait to be scored."""

    def __init__(self, next_offset: int) -> None:
        self.records: deque[RecordLike] = deque()
        self.bytes = 0
        self.next_offset = next_offset  # of what was handed to a transaction
        self.paused = False

    def add(self, records: Sequence[RecordLike]) -> None:
        self.records += records
        self.bytes += size_of_records(records) + _RECORD_BYTES * len(records)

    def take(self, count: int) -> list[RecordLike]:
        size, count = len(self.records), min(count, len(self.records))
        taken = [self.records.popleft() for _ in range(count)]
        self.bytes -= self.bytes * count // max(size, 1)  # about: it only limits the memory
        return taken


class ScoringWorker:
    """Scores the events of one application with the newest model, until it is stopped.

    Parameters
    ----------
    config
        A complete configuration, with `learner.scoring = "parallel"`.
    telemetry
        Receives the metrics.
    host, cluster
        Clock and threads, and what makes clients.
    """

    def __init__(
        self, config: Config, telemetry: Telemetry, *, host: Host = THIS_HOST, cluster: Cluster = KAFKA
    ) -> None:
        self.config = config
        self._host = host
        self._cluster = cluster
        self._telemetry = telemetry
        self._kafka = config.require_kafka()
        self._group = config.scorers_group
        self._health = Health(self._group, telemetry)
        self._health.starting()
        self._stop = asyncio.Event()
        self._joined = False
        self._working = False  # connected: a stop ends the session in order
        self._decode = event_decoder(config, **taken_cells(config))
        self._pace = Pace(_BATCH_RECORDS, self._kafka.max_poll_interval.seconds, host=host)
        name = self._kafka.group_instance_id
        self._takeovers = None if name is None else StaticMemberConflicts(name)
        self._encoder = Encoder(
            app=config.app, learner=config.learner.label(), topic=config.input.topic, partition=0
        )
        # As the group knows it; a static member that starts again ends what it had open.
        self._client = scorer_id(config.app, config.input.topic, name or uuid.uuid4().hex)
        self._id = ""  # of the producer
        self._queues: dict[int, _Queue] = {}
        self._dropped = 0  # spans, as counted in the metrics
        self._read_to = ReadPositions(lambda partition, offset: self._consumer.seek(partition, offset))
        self._lock = asyncio.Lock()
        self._assigned: list[int] | None = None  # partitions that are to be read from now on
        self._behind_warned = False
        # The member to which the partitions were assigned. The client forgets its membership before it
        # revokes them, and the broker does not fence the commit of a member without a name.
        self._member: Member
        self._consumer: Consumer
        self._lookup: RecordReader
        self._producer: TransactionalProducer
        self._models: ModelFollower
        self._messages: OutputMessages

    def stop(self) -> None:
        """Finish the batch, commit and leave the group. Safe to call twice."""
        if not self._stop.is_set():
            self._stop.set()
            self._health.stopping()

    async def run(self) -> None:
        """Score events until `stop`.

        Raises
        ------
        StreampairError
            No broker answers at the start, a topic or right is missing, or the model cannot be used.
        """
        with self._health.until_the_end():
            await run_sessions(
                self._session,
                stop=self._stop,
                health=self._health,
                joined=lambda: self._joined,
                working=lambda: self._working,
                connect_seconds=self._kafka.connect_timeout.seconds,
                host=self._host,
            )

    # One connection to the cluster

    async def _session(self) -> None:
        config = self.config
        self._lookup = self._cluster.record_reader(self._kafka)
        self._models = ModelFollower(config, host=self._host, cluster=self._cluster)
        self._producer = self._new_producer()
        follow = asyncio.create_task(self._models.follow())
        stop = asyncio.create_task(self._stop.wait())
        try:
            if not await self._first_model(follow, stop):
                return
            facts = await self._cluster.check_topics(config, create=False)
            counts = await self._cluster.describe_topics(self._kafka)
            self._messages = OutputMessages(
                config,
                Routes({name: counts.get(name, 1) for name in output_topics(config).values()}),
                host=self._host,
            )
            await self._producer.start()
            self._consumer = self._cluster.consumer(
                self._kafka,
                config.input.topic,
                self._group,
                on_revoked=self._on_revoked,
                on_assigned=self._on_assigned,
                on_lost=self._on_lost,
                takeovers=self._takeovers,
                side_by_side=facts.partitions,
                min_bytes=_MIN_BYTES,
                client_id=self._client,
            )
            try:
                await self._consumer.start()
                self._joined = self._working = True
                watch = ConnectionWatch(
                    self._kafka, self._health.waiting, self._health.running, cluster=self._cluster
                )
                await run_watched(self._loop(follow), watch.run(self._answers))
            finally:
                self._working = False
                self._clear()
                await self._consumer.stop()
        finally:
            await kafka.ended(follow, stop)
            await self._lookup.stop()
            await self._producer.stop()

    async def _answers(self) -> bool:
        if self._stop.is_set():  # the last commit has a time limit of its own
            return True
        return await self._consumer.ends([self._partition(0)], 5.0) is not None

    def _new_producer(self) -> TransactionalProducer:
        # Each has an id of its own: Kafka 3 drops the offsets of an open transaction when it refuses a late
        # request of an earlier producer with this id.
        self._id = f"{self._client}.{uuid.uuid4().hex}"
        return self._producer_of(self._id)

    def _producer_of(self, transactional_id: str) -> TransactionalProducer:
        return self._cluster.transactional_producer(
            self._kafka,
            transactional_id,
            name=f"a scorer of {self.config.app}",
            max_message_bytes=self.config.output.max_message_bytes,
            timeout_seconds=_TRANSACTION_SECONDS,
            topics=tuple(output_topics(self.config).values()),
            group=self._group,
        )

    async def _first_model(self, follow: asyncio.Task[None], stop: asyncio.Task[bool]) -> bool:
        """Wait for a model that was made for scorers; False: `stop` was called before."""
        reported = False
        while not self._stop.is_set():
            found = self._models.newest
            if found is not None and found.scored_until is not None:
                self._health.starting()  # it runs once it has joined its group
                return True
            if not reported:
                reported = True
                self._health.awaiting_model(self.config.model_topic or "")
            self._models.changed.clear()
            changed = asyncio.create_task(self._models.changed.wait())
            await asyncio.wait({follow, stop, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if follow.done():
                follow.result()
        return False

    async def _loop(self, follow: asyncio.Task[None]) -> None:
        while not self._stop.is_set():
            if follow.done():
                follow.result()
            # Not within the rebalance: the client sends no heartbeats meanwhile.
            async with self._lock:
                if self._assigned is not None:
                    await self._begin(self._assigned)
                    self._assigned = None
            waiting = sum(len(queue.records) for queue in self._queues.values())
            found = await self._consumer.poll(None, 0.0 if waiting else _POLL_SECONDS)
            self._pace.polled()
            async with self._lock:
                self._keep(found)
                await self._score()
            await self._report()
            await asyncio.sleep(0)

    def _keep(self, found: Mapping[Partition, Span]) -> None:
        """Queue what was polled. A partition that was revoked since, or is not begun, is not read."""
        for partition, span in self._read_to.take(found).items():
            queue = self._queues[partition.partition]
            queue.add(span.records)
            if queue.bytes > _BUFFER_BYTES and not queue.paused:
                queue.paused = True
                self._consumer.pause(partition)

    async def _score(self) -> None:
        """Score the next records of all partitions, in equal slices, and commit them."""
        waiting = [(number, queue) for number, queue in self._queues.items() if queue.records]
        room = await self._room() if waiting else 0
        if not room:
            return
        found = self._models.newest
        assert found is not None
        room = max(min(self._pace.records, room) // len(waiting), 1)
        offsets: dict[Partition, tuple[int, str]] = {}
        taken: list[tuple[int, list[RecordLike]]] = []
        for number, queue in waiting:
            records = queue.take(room)
            taken.append((number, records))
            offsets[self._partition(number)] = (records[-1].offset + 1, self._id)
            if queue.paused and queue.bytes < _BUFFER_BYTES // 2:
                queue.paused = False
                self._consumer.resume(self._partition(number))
        # Of all partitions together: at a moderate rate each has a few records.
        every = [record for _, records in taken for record in records]
        places = [(number, record.offset) for number, records in taken for record in records]
        out: ByTarget = {}
        count = 0
        while count < len(every):
            part = slice(count, count + self._pace.slice)
            records = every[part]
            work = functools.partial(self._outputs, out, found, records, places[part])
            await self._pace.run(work, len(records))
            count += len(records)
        begin = self._host.monotonic()
        try:
            await self._producer.transaction([*out.items()], offsets=offsets, member=self._member)
        except SourceError as error:
            if not error.retriable and not isinstance(error, FencedError | CommitOutcomeUnknownError):
                raise
            log.warning(
                "scores_not_committed", app=self.config.app, detail=error.problem, next_step=error.fix
            )
            self._telemetry.fenced(self._group)
            await self._restart()
            return
        for number, records in taken:
            self._queues[number].next_offset = records[-1].offset + 1
        newest = max(dated(records[-1].timestamp) for _, records in taken)
        self._telemetry.scored(self.config.app, count, newest / 1000.0)
        self._telemetry.committed(self._group, self._host.monotonic() - begin)
        self._health.running()
        if not self._producer.usable:  # an answer of the broker was lost
            await self._restart()

    def _outputs(
        self,
        out: ByTarget,
        found: PublishedModel,
        records: Sequence[RecordLike],
        places: Sequence[tuple[int, int]],
    ) -> None:
        classes = self.config.input.label_type == "any"
        explain = self.config.output.explain
        scored, letters = score_records(found.model, self._decode, records, classes=classes, explain=explain)
        self._messages.scores(out, self._encoder, records, scored, places, model=found.model.slots)
        if self.config.worker.on_bad != "dlq":
            return
        # Records of several partitions may have the same offset: their letters are in the same order.
        bad = [index for index, each in enumerate(scored) if each.outcome == "dead_letter"]
        for index, letter in zip(bad, letters, strict=True):
            if letter.stage in SCORING_STAGES:
                record, place = records[index], places[index]
                self._messages.dead_letters(out, self._encoder, [record], [letter], [place])

    async def _room(self) -> int:
        """How many events may be scored now; 0: wait for a model that has learned more.

        In a backlog events are scored faster than models come round, and would be over before the model has
        learned from them. At the end of the topic they are scored at once, and so are events whose labels
        come later: their model is always behind.
        """
        if self.config.label_input is not None:
            return _BATCH_RECORDS
        found = self._models.newest
        assert found is not None
        positions = self._positions()
        share = len(self._queues) / max(self._consumer.partition_count() or 0, len(self._queues))
        allowed = allowed_behind(found.model.slots, share)
        behind = found.behind(positions)
        if self._lag(positions) <= allowed:
            self._behind_warned = False
            return _BATCH_RECORDS
        if behind <= allowed:
            self._behind_warned = False
            return max(allowed - behind, allowed_behind(0, share))
        if self._host.monotonic() >= self._models.received + _MODEL_SECONDS:
            if not self._behind_warned:
                self._behind_warned = True
                log.warning(
                    "model_is_behind",
                    app=self.config.app,
                    events_behind=behind,
                    next_step="none: scores go on with the newest model. If it lasts, look whether a worker "
                    'with the role "learn" runs, and whether it can keep up',
                )
            return _BATCH_RECORDS
        self._models.changed.clear()
        stop = asyncio.ensure_future(self._stop.wait())
        changed = asyncio.ensure_future(self._models.changed.wait())
        await asyncio.wait({stop, changed}, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        changed.cancel()
        return 0

    def _positions(self) -> dict[int, int]:
        """By partition, the offset behind the events that are scored."""
        return {number: queue.next_offset for number, queue in self._queues.items()}

    def _lag(self, positions: Mapping[int, int]) -> int:
        """Records behind these positions."""
        ends = {number: self._consumer.end(self._partition(number)) for number in positions}
        return sum(max(end - positions[number], 0) for number, end in ends.items() if end is not None)

    def _partition(self, number: int) -> Partition:
        return Partition(self.config.input.topic, number)

    async def _report(self) -> None:
        found = self._models.newest
        if found is None:
            return
        positions = self._positions()
        behind = found.behind(positions)
        for number, queue in list(self._queues.items()):
            if not queue.records and self._lag({number: queue.next_offset}):
                # Markers of a producer's transactions have offsets, and are no events.
                read_to = self._read_to.position(self._partition(number)) or 0
                positions[number] = max(queue.next_offset, read_to)
        self._telemetry.read_again(self.config.app, self._read_to.dropped - self._dropped)
        self._dropped = self._read_to.dropped
        self._telemetry.scoring(
            self.config.app,
            lag=self._lag(positions),
            behind=0 if self.config.label_input is not None else behind,
            slots=found.model.slots,
            learned_ms=found.model.time,
        )

    # Rebalances

    async def _on_revoked(self, partitions: list[Partition]) -> None:
        if self._queues:
            self._health.rebalancing()
        async with self._lock:  # a transaction in flight ends before the partitions move
            self._assigned = None
            self._clear()

    async def _on_assigned(self, partitions: list[Partition]) -> None:
        async with self._lock:
            self._member = self._consumer.member
            self._assigned = [partition.partition for partition in partitions]
        self._telemetry.rebalanced(self._group)
        self._health.running()

    async def _restart(self) -> None:
        """Take another producer, and go on at the committed offsets."""
        await self._producer.stop()
        await self._end_transaction(self._id)
        self._producer = self._new_producer()
        await self._producer.start()
        await self._begin(list(self._queues))

    def _on_lost(self, partition: Partition, wanted: int, first: int) -> None:
        self._read_to.lost(partition, wanted, first)  # the consumer has logged it

    def _clear(self) -> None:
        """Drop what was read; nothing is taken before the next `_begin`."""
        self._queues.clear()
        self._read_to.begin({})

    async def _begin(self, numbers: Sequence[int]) -> None:
        """Read on at the committed offsets of the group."""
        self._clear()
        partitions = list(map(self._partition, numbers))
        if not partitions:
            return
        found, spans = await asyncio.gather(self._committed(partitions), self._lookup.spans(partitions))
        model = self._models.newest
        until: Mapping[int, int] = {} if model is None else model.scored_until or {}
        unnamed: dict[Partition, tuple[int, str]] = {}
        if model is not None:
            self._refuse_forgotten(model, [each for each in partitions if found[each] is None])
        for partition in partitions:
            known, start = found[partition], spans[partition.partition][0]
            offset = until.get(partition.partition, start) if known is None else known.offset
            if offset < start:
                log.warning(
                    "events_lost",
                    topic=partition.topic,
                    partition=partition.partition,
                    wanted_offset=offset,
                    first_offset=start,
                    next_step="the topic's retention removed events before they were scored: "
                    "increase retention.ms, or start more workers",
                )
            offset = max(offset, start)
            if known is None or known.metadata != self._id:
                unnamed[partition] = offset, self._id
            self._queues[partition.partition] = _Queue(offset)
            self._consumer.resume(partition)  # a pause outlasts its queue
            try:
                self._consumer.seek(partition, offset)
            except FencedError:
                # It has moved on meanwhile; the next assignment begins anew.
                self._clear()
                unnamed.clear()
                break
            self._read_to.move(partition, offset)
        if unnamed:
            await self._name(unnamed)

    def _refuse_forgotten(self, model: PublishedModel, partitions: Sequence[Partition]) -> None:
        """Refuse to score again what was scored before Kafka has forgotten the offsets of the group."""
        until = model.scored_until or {}
        lost = {
            each: offset
            for each in partitions
            if (offset := model.scored.get(each.partition, 0)) > until.get(each.partition, 0)
        }
        if not lost:
            return
        servers = self._kafka.bootstrap_servers
        commands = "; ".join(
            f"kafka-consumer-groups.sh --bootstrap-server {servers} --group {self._group} --reset-offsets "
            f"--topic {each.topic}:{each.partition} --to-offset {offset} --execute"
            for each, offset in sorted(lost.items())
        )
        raise SourceError(
            f"the group {self._group!r} has no offsets, and its scorers have given scores: the offsets have "
            "expired (offsets.retention.minutes), or the group was deleted. From the start each event would "
            "get a second score",
            fix=f"set the offsets behind the last scores, at least to what the newest model says: {commands}",
            retriable=False,
        )

    async def _name(self, offsets: Mapping[Partition, tuple[int, str]]) -> None:
        """Commit the offsets as they are, with this scorer's id: by it a successor ends its transactions."""
        try:
            await self._producer.transaction([], offsets=offsets, member=self._member)
        except SourceError as error:
            log.debug("offsets_not_named", app=self.config.app, detail=error.problem)  # so is the next batch

    async def _committed(self, partitions: Sequence[Partition]) -> dict[Partition, kafka.Committed | None]:
        """The group's offsets. Open transactions of scorers that have died are ended first.

        They would hold back these offsets, and everybody who reads committed scores.
        """
        last = await self._cluster.read_register(self._kafka, self._group, partitions, stable=False)
        owners = {each.metadata for each in last.values() if each is not None} - {self._id}
        owners = {owner for owner in owners if owner.startswith(ID_PREFIX)}  # a tool sets other texts
        if owners:
            group = await self._cluster.describe_group(self._kafka, self._group, self.config.input.topic)
            alive = group.clients - {self._client}
            for owner in sorted(owners):
                if owner.partition(".")[0] not in alive:
                    await self._end_transaction(owner)
        return await self._cluster.read_register(self._kafka, self._group, partitions)

    async def _end_transaction(self, owner: str) -> None:
        """Fence the scorer with this transactional id: whoever commits for a partition now is alone."""
        producer = self._producer_of(owner)
        try:
            await producer.start()
        finally:
            await producer.stop()
