"""Consumers: a member of the application's group, and a reader of whole partitions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.structs import OffsetAndMetadata

from streampair.errors import FencedError, SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.batches import Batch
from streampair_connectors.kafka.client import (
    FATAL,
    Partition,
    client_options,
    ended,
    log,
    one_line,
    reach_error,
    stop_quietly,
    within,
)
from streampair_connectors.kafka.membership import (
    Assignor,
    Member,
    StaticMemberConflicts,
    WholeTopicAssignor,
    abandon_membership,
    describe_group,
    end_poll,
    is_fenced,
    member_of,
    rejoin,
)
from streampair_connectors.kafka.ordering import BUCKET_MS, SETTLE_MS
from streampair_connectors.kafka.spans import Span, fetched_spans, note_spans

__all__ = ["Consumer", "OnLost", "PartitionReader", "TopicReader"]

OnLost = Callable[[Partition, int, int], object]
"""Called with a partition, the offset that was wanted and the first one that is left, before reading goes on
there: retention has removed records, or the topic has lost its end."""

_HEARTBEAT_MS = 3000
_FETCH_WAIT_MS = 35
_FETCH_MIN_BYTES = 64 * 1024
_FETCH_SOON = {"fetch_max_wait_ms": 100}
# Of a `FetchClock`: a broker answers with what it has, and waits only where it has nothing.
_FETCH_CLOCKED = {"fetch_max_wait_ms": 20, "fetch_min_bytes": 1}
_FETCH_MUCH = {"max_partition_fetch_bytes": 1024 * 1024, "metadata_max_age_ms": 30_000, **_FETCH_CLOCKED}
# A fetch closes a bucket if it is sent so long after its end; some for the rounding of times.
_CLOSES_MS = SETTLE_MS + 3
_FETCH_BYTES = 8 * 1024 * 1024  # of all partitions that are read side by side
_PARTITION_BYTES = 64 * 1024, 4 * 1024 * 1024  # of one of them, at least and at most
_NO_TIMESTAMP = -1  # of messages in format 0, as in Kafka's own clients
_CHECK_SECONDS = 0.5  # from one look at the assignment to the next, until no partition is missing


def partition_bytes(side_by_side: int) -> int:
    """Bytes of each partition in an answer: together few enough that they are decoded soon after they come.

    Larger batches of a producer still come, one an answer.
    """
    least, most = _PARTITION_BYTES
    return min(max(_FETCH_BYTES // side_by_side, least), most)


class Consumer:
    """A member of the application's consumer group; its positions are set by `seek` only.

    Parameters
    ----------
    config, topic, group
        The cluster, the topic and the consumer group.
    on_revoked, on_assigned
        Called during a rebalance. aiokafka swallows their errors, so the next `poll` raises them.
    on_lost
        See `OnLost`.
    takeovers
        Conflicts of a static member, counted over several connections; None: over this one.
    watch_seconds
        Interval at which the number of partitions is checked.
    whole_topic
        Whether one member gets all partitions.
    side_by_side
        Partitions of which each answer of a broker should have records: it has fewer of each then.
    min_bytes
        A broker answers once it has as many, or after 35 ms; with `whole_topic` at once, if it has any.
    fetch_buckets
        As of `FetchClock`, for `whole_topic`.
    client_id
        By which other members know this one (`describe_group`); None: the client's own.

    Attributes
    ----------
    brokers_ahead_ms
        How far the clock of the brokers is ahead of this host's, for the times of fetches (`FetchClock`).
    """

    def __init__(
        self,
        config: KafkaConfig,
        topic: str,
        group: str,
        *,
        on_revoked: Callable[[list[Partition]], Awaitable[None]],
        on_assigned: Callable[[list[Partition]], Awaitable[None]],
        on_lost: OnLost,
        takeovers: StaticMemberConflicts | None = None,
        watch_seconds: float = 30.0,
        whole_topic: bool = False,
        side_by_side: int = 1,
        min_bytes: int = _FETCH_MIN_BYTES,
        fetch_buckets: int = 1,
        client_id: str | None = None,
    ) -> None:
        self._config = config
        self._on_lost = on_lost
        self._topic = topic
        self._group = group
        self.error: BaseException | None = None
        self._stopped = False
        self._whole_topic = whole_topic
        self._assignor = WholeTopicAssignor() if whole_topic else Assignor()
        self._fetches: FetchClock | None = None
        self._fetch_buckets = fetch_buckets
        self.brokers_ahead_ms = 0
        self._instance_id = config.group_instance_id
        if takeovers is None and self._instance_id is not None:
            takeovers = StaticMemberConflicts(self._instance_id)
        self._takeovers = takeovers
        self._is_member = False
        # Start of the current pause between polls (None during a poll), and the longest pause so far.
        self._busy_since: float | None = None
        self._longest_busy = 0.0
        self._watch_seconds = watch_seconds
        self._watcher: asyncio.Task[None] | None = None
        self._first_count: int | None = None
        session = int(config.session_timeout)
        self._consumer = AIOKafkaConsumer(
            **client_options(config),
            **({} if client_id is None else {"client_id": client_id}),
            group_id=group,
            enable_auto_commit=False,
            # Positions come from the lanes' logs. One that Kafka no longer has must not be moved silently.
            auto_offset_reset="none",
            isolation_level="read_committed",
            group_instance_id=self._instance_id,
            partition_assignment_strategy=(self._assignor,),
            session_timeout_ms=session,
            # A member learns of a rebalance by its next heartbeat, and who joins waits for all.
            heartbeat_interval_ms=min(max(session // 4, 250), _HEARTBEAT_MS),
            rebalance_timeout_ms=60_000,
            max_partition_fetch_bytes=partition_bytes(side_by_side),
            max_poll_interval_ms=int(config.max_poll_interval),
            metadata_max_age_ms=int(watch_seconds * 1000),
            # Few, large fetches: at a moderate rate most of the time is spent on each of them.
            **(
                _FETCH_CLOCKED
                if whole_topic
                else {"fetch_max_wait_ms": _FETCH_WAIT_MS, "fetch_min_bytes": min_bytes}
            ),
        )
        outer = self

        class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # untyped base
            async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
                too_many = outer._count_takeover()
                await outer._guard(on_revoked, revoked)
                if too_many:
                    abandon_membership(outer._consumer)

            async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
                outer._is_member = True
                if isinstance(outer._assignor, WholeTopicAssignor):
                    assigned = list(assigned)
                    outer._assignor.set_assigned(bool(assigned))
                await outer._guard(on_assigned, assigned)

        self._consumer.subscribe([topic], listener=_Listener())

    async def _guard(
        self,
        callback: Callable[[list[Partition]], Awaitable[None]],
        partitions: Iterable[TopicPartition],
    ) -> None:
        if self._stopped:
            return
        try:
            await callback(sorted(Partition(p.topic, p.partition) for p in partitions))
        except Exception as error:
            self.error = self.error or error

    async def start(self) -> None:
        """Connect and join the group."""
        self._busy_since = time.monotonic()
        await within(self._config, self._consumer.start())
        self._prepare()
        self._first_count = self.partition_count()
        if isinstance(self._assignor, WholeTopicAssignor):
            self._fetches = FetchClock(
                self._consumer, self._fetch_buckets, brokers_ahead_ms=lambda: self.brokers_ahead_ms
            )
        self._watcher = asyncio.create_task(self._watch_partitions())

    def _prepare(self) -> None:
        """Make the client note its spans, and fewer objects than its own."""
        note_spans(self._consumer, _use_batches if self._whole_topic else _use_small_records)

    async def poll(self, max_records: int | None, timeout_seconds: float) -> Mapping[Partition, Span]:
        """Return what comes next by partition, at most `max_records`; empty if nothing arrives in time.

        Where one member gets all partitions, `max_records` must be None. A callback of a rebalance may seek
        meanwhile: take the spans by `ReadPositions`.

        Raises
        ------
        SourceError
            The broker refuses permanently (`retriable` is False), or the client has failed.
        Exception
            The error of a rebalance callback.
        """
        if self.error is not None:
            raise self.error
        self._longest_busy = max(self._longest_busy, self._busy())
        self._busy_since = None
        try:
            await self._consumer.getmany(timeout_ms=int(timeout_seconds * 1000), max_records=max_records)
        except kafka_errors.NoOffsetForPartitionError:
            # The group has no offset, and the rebalance callback, which seeks, is still running.
            await asyncio.sleep(0.02)
            return {}
        except kafka_errors.OffsetOutOfRangeError as error:
            await self._skip_lost(error.args[0])
        except kafka_errors.KafkaError as error:
            raise self.error or self._translate(error) from None
        finally:
            # The client's own clock: it drops a member that pauses too long, and a later one would show less.
            self._busy_since = end_poll(self._consumer)
        return fetched_spans(self._consumer, batches=self._whole_topic)

    def _busy(self) -> float:
        return 0.0 if self._busy_since is None else time.monotonic() - self._busy_since

    def _count_takeover(self) -> bool:
        """Count a takeover if the group has dropped this static member; return whether there were too many.

        The group also drops a member whose session has expired, or that did not poll for too long. That is
        no takeover.
        """
        busy = max(self._longest_busy, self._busy())
        self._longest_busy = 0.0
        forgotten = self._is_member and not member_of(self._consumer)
        patience = min(self._config.session_timeout.seconds, self._config.max_poll_interval.seconds)
        if self._takeovers is None or not forgotten or busy >= patience:
            return False
        self._is_member = False
        return not self._takeover_error(self._takeovers).retriable

    def _takeover_error(self, takeovers: StaticMemberConflicts) -> SourceError:
        """Count a takeover and return its error. After too many of them the next `poll` raises it."""
        log.warning(
            "taken_over",
            group=self._group,
            instance_id=self._instance_id,
            next_step="another worker has joined with the same kafka.group_instance_id: make it unique",
        )
        too_many = takeovers.record(time.monotonic())
        if too_many is not None:
            self.error = too_many
            return too_many
        return SourceError(
            f"another worker has joined the group as {self._instance_id!r}",
            fix="give each worker a kafka.group_instance_id of its own",
        )

    def partition_count(self) -> int | None:
        """Return the number of partitions in the client's metadata; None: not known yet."""
        partitions = self._consumer.partitions_for_topic(self._topic)
        return len(partitions) if partitions else None

    async def _watch_partitions(self) -> None:
        """Detect added partitions, and make the group assign those without an owner.

        The leader of a group does this by itself, except a static leader that has restarted. So static
        members check the assignment at their start and after each change; the first one in the group acts.
        Where one member reads the whole topic, it reads nothing before, so it does not wait to check.
        """
        known, done = self._first_count, self._instance_id is None
        while True:
            soon = not done and isinstance(self._assignor, WholeTopicAssignor)
            await asyncio.sleep(min(_CHECK_SECONDS, self._watch_seconds) if soon else self._watch_seconds)
            count = self.partition_count()
            if count is None:
                continue
            if known is not None and count != known:
                log.info("partitions_added", topic=self._topic, before=known, now=count)
                done = self._instance_id is None
            known = count
            if done:
                continue
            try:
                group = await describe_group(self._config, self._group, self._topic)
            except SourceError as error:
                log.debug("group_not_described", group=self._group, error=str(error))
                continue
            if not group.stable:
                continue
            missing = set(range(count)) - group.assigned
            done = not missing
            if missing and group.members[:1] == (member_of(self._consumer),):
                log.warning(
                    "partitions_unassigned",
                    group=self._group,
                    topic=self._topic,
                    partitions=sorted(missing),
                    next_step="none: a rebalance is requested, which assigns them",
                )
                self._assignor.request_assignment()
                rejoin(self._consumer)

    async def _skip_lost(self, positions: Mapping[TopicPartition, int]) -> None:
        """Seek to the first record left after retention removed some, and log the loss.

        Raises
        ------
        SourceError
            A partition ends before the position: the topic was recreated or lost records.
        """
        try:
            first = await self._consumer.beginning_offsets(list(positions))
            ends = await self._consumer.end_offsets(list(positions))
        except kafka_errors.KafkaError as error:
            raise self._translate(error) from None
        for partition, offset in positions.items():
            if not _is_at(self._consumer, partition, offset):
                continue  # it was sought elsewhere meanwhile
            if offset > ends[partition]:
                raise ended_before(Partition(*partition), offset, ends[partition])
            log.warning(
                "events_lost",
                topic=partition.topic,
                partition=partition.partition,
                wanted_offset=offset,
                first_offset=first[partition],
                next_step="the topic's retention removed events before they were read: "
                "increase retention.ms, or read faster: with a faster learner or more workers",
            )
            self._on_lost(Partition(*partition), offset, first[partition])
            self._consumer.seek(partition, first[partition])

    @property
    def member(self) -> Member:
        """This member in its generation. Read it when records are polled, for the commit of their offsets."""
        coordinator = self._consumer._coordinator
        return Member(int(coordinator.generation), member_of(self._consumer), self._instance_id)

    def leaderless(self) -> set[int]:
        """Assigned partitions that have no leader, as far as the client knows."""
        cluster = self._consumer._client.cluster
        partitions = self._consumer.assignment()
        return {tp.partition for tp in partitions if cluster.leader_for_partition(tp) in (None, -1)}

    def settled(self) -> dict[int, int]:
        """As of `FetchClock.settled`, for all partitions that are assigned."""
        assert self._fetches is not None
        return self._fetches.settled(self._consumer.assignment())

    def pause(self, partition: Partition) -> None:
        """Fetch nothing more of a partition until `resume`; nothing happens if it is not assigned."""
        with contextlib.suppress(kafka_errors.IllegalStateError):
            self._consumer.pause(TopicPartition(*partition))

    def resume(self, partition: Partition) -> None:
        """End a `pause`."""
        with contextlib.suppress(kafka_errors.IllegalStateError):
            self._consumer.resume(TopicPartition(*partition))

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue reading `partition` at `offset`.

        Raises
        ------
        FencedError
            The partition is not assigned to this member any more.
        """
        try:
            self._consumer.seek(TopicPartition(*partition), offset)
        except kafka_errors.IllegalStateError as error:
            raise _fenced_error([partition], error) from None

    async def range(self, partition: Partition) -> tuple[int, int]:
        """Return start and end offset of a partition."""
        tp = TopicPartition(*partition)
        try:
            first = await self._consumer.beginning_offsets([tp])
            last = await self._consumer.end_offsets([tp])
        except kafka_errors.KafkaError as error:
            raise self._translate(error) from None
        return first[tp], last[tp]

    async def ends(self, partitions: Sequence[Partition], seconds: float) -> dict[Partition, int] | None:
        """Return the end offset of each partition; None: brokers or coordinator do not answer in time."""
        if self._consumer._coordinator.coordinator_id is None:  # not known, or it cannot be connected to
            return None
        try:
            found = await asyncio.wait_for(
                self._consumer.end_offsets([TopicPartition(*p) for p in partitions]), seconds
            )
        except (kafka_errors.KafkaError, TimeoutError, OSError):
            return None
        return {Partition(tp.topic, tp.partition): end for tp, end in found.items()}

    def end(self, partition: Partition) -> int | None:
        """Return the end offset of a partition as of the last fetch; None: not known."""
        try:
            end: int | None = self._consumer.highwater(TopicPartition(*partition))
        except (kafka_errors.KafkaError, AssertionError):
            return None
        return end

    async def commit_registers(self, registers: Mapping[Partition, tuple[int, str]], seconds: float) -> None:
        """Commit offsets with their registers; see `offset_metadata.commit_register`."""
        offsets = {TopicPartition(*p): OffsetAndMetadata(*register) for p, register in registers.items()}
        try:
            # The client retries forever.
            await asyncio.wait_for(self._consumer.commit(offsets), seconds)
        except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
            lost = isinstance(error, kafka_errors.CommitFailedError | kafka_errors.IllegalStateError)
            if lost or is_fenced(error):
                raise _fenced_error(registers, error) from None
            raise reach_error(self._config, error) from None

    def _translate(self, error: BaseException) -> SourceError:
        for kind, fix in FATAL.items():
            if isinstance(error, kind):
                return SourceError(f"Kafka refuses: {one_line(error)}", fix=fix, retriable=False)
        if self._takeovers is not None and is_fenced(error):
            return self._takeover_error(self._takeovers)
        return SourceError(f"the Kafka consumer failed: {one_line(error)}", fix="wait, the worker retries")

    async def stop(self, seconds: float = 5.0) -> None:
        """Leave the group and disconnect. No callback runs afterwards."""
        self._stopped = True
        await ended(self._watcher)
        await stop_quietly(self._consumer.stop(), seconds)


def ended_before(partition: Partition, offset: int, end: int) -> SourceError:
    """Error of a partition of the input that ends before the position of its reader."""
    return SourceError(
        f"{partition.topic}/{partition.partition} was read up to offset {offset} and ends at "
        f"{end} now: the topic was deleted and recreated, or lost records",
        fix="for a new topic, start with another application name (a private learner then has a "
        "new account, in addition to this one). If records were lost, restore the topic",
        retriable=False,
    )


def _is_at(consumer: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> bool:
    """Whether a partition is assigned, and would be read on at this offset."""
    state = consumer._subscription.subscription
    assignment = None if state is None else state.assignment
    known = None if assignment is None else assignment.state_value(partition)
    return known is not None and known._position == offset


def _fenced_error(partitions: Iterable[Partition], error: BaseException) -> FencedError:
    return FencedError(
        f"{', '.join(f'{p.topic}/{p.partition}' for p in partitions)} is no longer assigned to this worker: "
        f"{one_line(error)}",
        fix="none is needed: the new owner continues from the last commit",
    )


class _FetchedRecord(msgspec.Struct, frozen=True, gc=False):
    """A `RecordLike`, and who has set its timestamp."""

    offset: int
    value: bytes | None
    key: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_type: int | None


def _fetched_record(_: TopicPartition | None, record: Any) -> _FetchedRecord:
    return _FetchedRecord(
        record.offset,
        record.value,
        record.key,
        _NO_TIMESTAMP if record.timestamp is None else record.timestamp,
        tuple(record.headers),
        record.timestamp_type,
    )


def _use_small_records(records: Any) -> None:
    """Let an answer make a struct of each record: the client's own dataclass takes most of a read's time."""
    records._consumer_record = _fetched_record


def _use_batches(records: Any) -> None:
    """Let an answer return a list of records for each batch of a producer.

    The client unpacks one record after the other, which takes longer than to make them.
    """
    records._records.kind = _ProducerBatch
    start = records.next_fetch_offset  # the first batch may begin before it
    records._consumer_record = lambda _, batch: batch.unpack(start)


class _ProducerBatch(Batch):
    """A batch of a producer, which the client takes for a batch of one record: its last one."""

    def __init__(self, batch: Any, data: memoryview) -> None:
        super().__init__(batch, data)
        self.offset = batch.next_offset - 1

    def __iter__(self) -> Iterator[_ProducerBatch]:
        yield self

    def unpack(self, start: int) -> list[_FetchedRecord]:
        """The records from an offset on."""
        try:
            return self._unpack(self._batch, start)
        except UnicodeDecodeError:
            return self._unpack(self.escaped(), start)

    def _unpack(self, records: Iterable[Any], start: int) -> list[_FetchedRecord]:
        kind = getattr(self._batch, "timestamp_type", None)
        if kind is None:  # before format 2 a batch is one message, or a compressed set of them
            found = (_fetched_record(None, each) for each in records)
            return [record for record in found if record.offset >= start]
        return [
            _FetchedRecord(offset, each.value, each.key, each.timestamp, tuple(each.headers), kind)
            for each in records
            if (offset := each.offset) >= start
        ]


class FetchClock:
    """Sends a fetch as buckets end, and knows up to which moment each partition was read to its end.

    The order over all partitions takes a record once its bucket is closed, by a fetch that was sent after the
    end of the bucket. A fetch before that hands over nothing, and one that comes later delays the bucket. So
    each broker is asked at that moment, and as fast as it answers while it has more.

    The client tells the end of a partition with each answer, and not when it had asked. An end proves nothing
    about records that were appended after the question was sent, so this notes that moment for each question.

    Parameters
    ----------
    consumer
        A started consumer. Its brokers must answer as soon as they have anything (`fetch_min_bytes` of 1).
    buckets
        How many of them a fetch closes.
    brokers_ahead_ms
        How far the clock of the brokers is ahead of this host's.
    """

    def __init__(
        self, consumer: AIOKafkaConsumer, buckets: int, *, brokers_ahead_ms: Callable[[], int] = lambda: 0
    ) -> None:
        self._consumer = consumer
        self._every_ms = buckets * BUCKET_MS
        self._brokers_ahead_ms = brokers_ahead_ms
        self._sent: dict[TopicPartition, int] = {}
        self._intervals: dict[Any, int] = {}  # of the last fetch, by broker
        fetcher: Any = consumer._fetcher
        inner = fetcher._proc_fetch_request

        async def timed(assignment: Any, node_id: Any, request: Any) -> Any:
            try:
                await asyncio.sleep(self.wait(assignment, node_id, request, self._now()))
            except asyncio.CancelledError:
                return False  # as the client does: nobody wants the answer any more
            self.sent(node_id, self._now())
            sent = time.time_ns() // 1_000_000
            result = await inner(assignment, node_id, request)
            if assignment.active:
                for topic, partitions in request.topics:
                    for partition, *_ in partitions:
                        state = assignment.state_value(TopicPartition(topic, partition))
                        # Set by the answer alone: an error, or an answer to another position, sets nothing.
                        if state is not None and (state.timestamp or 0) >= sent:
                            self._sent[TopicPartition(topic, partition)] = sent
            return result

        fetcher._proc_fetch_request = timed

    def _now(self) -> int:
        """The brokers' time, less what must have passed since the end of a bucket."""
        return time.time_ns() // 1_000_000 + self._brokers_ahead_ms() - _CLOSES_MS

    def wait(self, assignment: Any, node_id: Any, request: Any, now_ms: int) -> float:
        """Seconds until a fetch is to be sent: none if a partition may have more than was read."""
        for topic, partitions in request.topics:
            for partition, position, *_ in partitions:
                state = assignment.state_value(TopicPartition(topic, partition))
                end = None if state is None else state.highwater if state.lso is None else state.lso
                if end is None or position < end:
                    return 0.0
        interval, since = divmod(now_ms, self._every_ms)
        return (self._every_ms - since) / 1000 if interval == self._intervals.get(node_id) else 0.0

    def sent(self, node_id: Any, now_ms: int) -> None:
        """Note that a broker is asked now."""
        self._intervals[node_id] = now_ms // self._every_ms

    def settled(self, partitions: Iterable[TopicPartition]) -> dict[int, int]:
        """By partition that was read to its end: when the fetch that saw the end was sent, in milliseconds.

        A partition with an open transaction is not read to its end: what is in it is still to come.
        """
        found: dict[int, int] = {}
        state = self._consumer._subscription
        assignment = None if state.subscription is None else state.subscription.assignment
        if assignment is None:
            return found
        waiting = self._consumer._fetcher._records
        for tp in partitions:
            sent = self._sent.get(tp)
            if sent is None or tp not in assignment.tps or tp in waiting:
                continue
            each = assignment.state_value(tp)
            if not each.has_valid_position or each.highwater is None:
                continue
            if each.lso in (None, each.highwater) and each.position >= each.highwater:
                found[tp.partition] = sent
        return found


class PartitionReader:
    """Reads partitions from their start, outside of any group.

    Parameters
    ----------
    config
        The cluster.
    partitions
        What to read.
    on_lost
        See `OnLost`.
    fetch
        Options of the client's fetches.
    """

    def __init__(
        self,
        config: KafkaConfig,
        partitions: Sequence[Partition],
        *,
        on_lost: OnLost,
        fetch: Mapping[str, Any] = _FETCH_SOON,
    ) -> None:
        self._config = config
        self._on_lost = on_lost
        self._all = [TopicPartition(*p) for p in partitions]
        self._consumer = AIOKafkaConsumer(
            **client_options(config),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            **fetch,
        )

    async def start(self) -> dict[Partition, int]:
        """Connect and seek to the start; returns where that is."""
        await self._connect()
        first = await within(self._config, self._consumer.beginning_offsets(self._all))
        self._begin(first)
        return {Partition(*tp): first[tp] for tp in self._all}

    async def _connect(self) -> None:
        await within(self._config, self._consumer.start())
        note_spans(self._consumer, _use_batches)

    def _begin(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign(self._all)
        for tp in self._all:
            self._consumer.seek(tp, offsets[tp])

    def seek(self, partition: Partition, offset: int) -> None:
        """Read on at an offset of one partition."""
        self._consumer.seek(TopicPartition(*partition), offset)

    async def poll(self, seconds: float) -> Mapping[Partition, Span]:
        """Return what has arrived, by partition: take it by `ReadPositions`.

        Raises
        ------
        SourceError
            The broker refuses.
        """
        try:
            await self._consumer.getmany(timeout_ms=int(seconds * 1000))
        except kafka_errors.OffsetOutOfRangeError as error:
            await self._skip_lost(error.args[0])
        except kafka_errors.KafkaError as error:
            raise reach_error(self._config, error) from None
        return fetched_spans(self._consumer, batches=True)

    async def _skip_lost(self, positions: Mapping[TopicPartition, int]) -> None:
        try:
            first = await self._consumer.beginning_offsets(list(positions))
        except kafka_errors.KafkaError as error:
            raise reach_error(self._config, error) from None
        for tp, offset in positions.items():
            if _is_at(self._consumer, tp, offset):  # else it was sought elsewhere meanwhile
                self._on_lost(Partition(*tp), offset, first[tp])
                self._consumer.seek(tp, first[tp])

    async def answers(self, seconds: float = 5.0) -> bool:
        """Whether the brokers of its partitions answer."""
        try:
            await asyncio.wait_for(self._consumer.end_offsets(self._all), seconds)
        except (kafka_errors.KafkaError, TimeoutError, OSError):
            return False
        return True

    async def stop(self) -> None:
        """Disconnect."""
        await stop_quietly(self._consumer.stop(), 2.0)


class TopicReader(PartitionReader):
    """Reads all partitions of a topic from given offsets, outside of any group.

    Parameters
    ----------
    config, on_lost
        As of `PartitionReader`.
    topic, partitions
        The topic, and the number of its partitions.
    """

    def __init__(self, config: KafkaConfig, topic: str, partitions: int, on_lost: OnLost) -> None:
        places = [Partition(topic, number) for number in range(partitions)]
        super().__init__(config, places, on_lost=on_lost, fetch=_FETCH_MUCH)
        self._fetches: FetchClock | None = None

    async def start(self) -> dict[Partition, int]:
        """Connect. Nothing is read before `begin`."""
        await self._connect()
        self._fetches = FetchClock(self._consumer, 1)
        return {}

    def begin(self, offsets: Mapping[int, int]) -> dict[Partition, int]:
        """Read on at these offsets, one for each partition; returns them."""
        self._begin({tp: offsets[tp.partition] for tp in self._all})
        return {Partition(*tp): offsets[tp.partition] for tp in self._all}

    async def offsets_at(self, time_ms: int) -> dict[int, int]:
        """The first offset of each partition whose record is not older than a time; the end without one.

        Raises
        ------
        SourceError
            The broker does not answer, or refuses.
        """
        try:
            async with asyncio.timeout(self._config.connect_timeout.seconds):
                if time_ms <= 0:
                    starts = await self._consumer.beginning_offsets(self._all)
                    return {tp.partition: starts[tp] for tp in self._all}
                # The ends first: a record that comes in between must not be passed over.
                ends = await self._consumer.end_offsets(self._all)
                found = await self._consumer.offsets_for_times(dict.fromkeys(self._all, time_ms))
        except (kafka_errors.KafkaError, TimeoutError) as error:
            raise reach_error(self._config, error) from None
        return {tp.partition: ends[tp] if found[tp] is None else found[tp].offset for tp in self._all}

    def settled(self) -> dict[int, int]:
        """As of `FetchClock.settled`."""
        assert self._fetches is not None
        return self._fetches.settled(self._all)

    @property
    def has_grown(self) -> bool:
        """Whether partitions were added to the topic."""
        return len(self._consumer.partitions_for_topic(self._all[0].topic) or ()) > len(self._all)

    def pause(self, partition: Partition) -> None:
        """Fetch nothing more of a partition until `resume`."""
        self._consumer.pause(TopicPartition(*partition))

    def resume(self, partition: Partition) -> None:
        """End a `pause`."""
        self._consumer.resume(TopicPartition(*partition))
