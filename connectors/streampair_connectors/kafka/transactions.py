"""Transactions: outputs, log entries and the group's offsets, stored atomically.

A lane has a transactional producer of its own, and starting it fences every earlier owner of the lane. A
scorer, whose partitions move, commits as a member of its group instead: the broker refuses offsets of an
earlier generation (KIP-447). The client does not send that version of the request, so it is here.

The client repeats a request whose response was lost, with the same epoch. The first copy may still arrive
during the next transaction: a late EndTxn ends it, a late TxnOffsetCommit resets the offset. Brokers refuse
both once the producer has a new epoch. (KIP-890 gives each transaction its own epoch; this client does not
support it.) So a producer that has lost a response is not used for another transaction.

When the group coordinator of Kafka 3 refuses a late TxnOffsetCommit, it drops the offset of the open
transaction. The register is then one entry behind the log until the next commit, which a start accepts.

Private names of the client are used in `_discard` (two), `stop_producer` and `lost_ends` (one each).
`producer.client` is undocumented, but it is the only way to see whether a broker answers before a transaction
begins, and which requests were answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)
from aiokafka.structs import OffsetAndMetadata

from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError, StoreError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.client import (
    FATAL,
    Message,
    Partition,
    client_options,
    one_line,
    reach_error,
    size_of,
    stop_producer,
    within,
)
from streampair_connectors.kafka.lost_ends import Outcome, find_open, last_outcome, write_end, write_ends
from streampair_connectors.kafka.membership import FencedInstanceIdError, Member
from streampair_connectors.kafka.offset_metadata import check_register
from streampair_connectors.kafka.producer import BATCH_BYTES, split_messages, submit

__all__ = ["TransactionalProducer"]

# The broker accepts nothing more from this producer: another one was started, the transaction has timed out,
# or the broker has forgotten the id.
_FENCED_ERRORS = (
    kafka_errors.ProducerFenced,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.InvalidProducerIdMapping,
    kafka_errors.InvalidTxnState,
    kafka_errors.UnknownProducerId,
    kafka_errors.OutOfOrderSequenceNumber,
    # The group has another generation, or this member is not in it.
    kafka_errors.IllegalGenerationError,
    kafka_errors.UnknownMemberIdError,
    kafka_errors.RebalanceInProgressError,
    FencedInstanceIdError,
)
# Errors of the client: AssertionError and IllegalOperation when its sender has failed before.
_CLIENT_ERRORS = (
    kafka_errors.KafkaError,
    kafka_errors.IllegalOperation,
    AssertionError,
    OSError,
    TimeoutError,
)
_ABORT_SECONDS = 5.0
_IDLE_SECONDS = 5.0  # without a transaction
_REQUESTS = (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)


class _MemberCommitResponse(Response):  # type: ignore[misc]  # untyped base
    API_KEY = 28
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(("partition", Int32), ("error_code", Int16), ("tags", TaggedFields)),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )

    @property
    def errors(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """As of the version that the client knows."""
        return [(topic, [(number, code) for number, code, _ in found]) for topic, found, _ in self.topics]


class _MemberCommitStruct(RequestStruct):  # type: ignore[misc]  # untyped base
    API_KEY = 28
    API_VERSION = 3
    RESPONSE_TYPE = _MemberCommitResponse
    FLEXIBLE_VERSION = True
    SCHEMA = Schema(
        ("transactional_id", CompactString("utf-8")),
        ("group_id", CompactString("utf-8")),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("generation", Int32),
        ("member_id", CompactString("utf-8")),
        ("group_instance_id", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _MemberCommit(Request[_MemberCommitStruct]):  # type: ignore[misc]  # untyped base
    """TxnOffsetCommit of version 3 (Kafka 2.5): with member and generation."""

    API_KEY = 28

    def __init__(self, request: TxnOffsetCommitRequest, member: Member) -> None:
        self._request = request
        self._member = member

    def build(self, struct: type[_MemberCommitStruct]) -> _MemberCommitStruct:
        request, member = self._request, self._member
        topics: list[Any] = [
            (topic, [(number, offset, -1, metadata, {}) for number, offset, metadata in found], {})
            for topic, found in request._topics
        ]
        return struct(
            request._transactional_id,
            request._group_id,
            request._producer_id,
            request._producer_epoch,
            member.generation,
            member.member_id,
            member.instance_id,
            topics,
            {},
        )


class _Sent(NamedTuple):
    """A batch handed to the client: target, future of its stored offset, number of messages."""

    target: Partition
    future: asyncio.Future[Any]
    messages: int


class _ResponseWatcher:
    """Watches the responses to one producer's requests.

    Attributes
    ----------
    lost
        Whether a duplicate of a request may still arrive: a request of a transaction got no response, or
        EndTxn was sent more than once.
    appended
        The last append time of a topic with LogAppendTime, in milliseconds, and when its answer came, on the
        monotonic clock; None: there was none.
    """

    def __init__(self, client: AIOKafkaClient) -> None:
        self.lost = False
        self.appended: tuple[int, float] | None = None
        self._ends = 0
        self._member: Member | None = None
        self._send = client.send
        client.send = self._watched_send

    def begin(self, member: Member | None) -> None:
        """Start a new transaction; `member` commits its offsets, None: the producer alone."""
        self._ends = 0
        self._member = member

    async def _watched_send(self, node: int, request: Any, **options: Any) -> Any:
        if isinstance(request, EndTxnRequest):
            self._ends += 1
            self.lost |= self._ends > 1
        if self._member is not None and isinstance(request, TxnOffsetCommitRequest):
            request = _MemberCommit(request, self._member)
        try:
            response = await self._send(node, request, **options)
        except BaseException:
            self.lost |= isinstance(request, (*_REQUESTS, _MemberCommit))
            raise
        if isinstance(request, ProduceRequest):
            self._note_append_time(response)
        return response

    def _note_append_time(self, response: Any) -> None:
        now = time.monotonic()
        for _, partitions in response.topics:
            for _, code, _, appended, *_ in partitions:
                if code == 0 and appended > 0:  # the topic has LogAppendTime
                    self.appended = appended, now


class TransactionalProducer:
    """Transactional producer: the only writer with its id.

    Parameters
    ----------
    config
        The cluster.
    transactional_id
        Starting a producer fences every other one of this id.
    name
        What it writes for, in messages.
    max_message_bytes
        Larger messages are split (`producer.split_messages`).
    timeout_seconds
        How long a transaction may be open before the broker aborts it and fences this producer; at most
        the brokers' `transaction.max.timeout.ms`, 15 minutes by default.
    topics
        All topics that producers of this id write to.
    group
        The group whose offsets they commit; empty: none.
    """

    def __init__(
        self,
        config: KafkaConfig,
        transactional_id: str,
        *,
        name: str,
        max_message_bytes: int,
        timeout_seconds: float = 60.0,
        topics: Collection[str] = (),
        group: str = "",
    ) -> None:
        self._config = config
        self._name = name
        self._max_message_bytes = max_message_bytes
        self._timeout_seconds = timeout_seconds
        self._topics = topics
        self._group = group
        self.transactional_id = transactional_id
        self._producer: AIOKafkaProducer | None = None
        self._answers: _ResponseWatcher | None = None
        self._idle: asyncio.Task[None] | None = None
        # During a transaction `_producer` is None: `stop` must wait for its end.
        self._lock = asyncio.Lock()

    @property
    def clock_ahead(self) -> int | None:
        """How far the clock of this host is ahead of the broker's, at most, in milliseconds; None: unknown.

        It is known once a message was stored in a topic with LogAppendTime. Since then the brokers' clock has
        gone on as the monotonic one here, so that it is right at once when the host's clock is set.
        """
        appended = None if self._answers is None else self._answers.appended
        if appended is None:
            return None
        # The answer took some time, which looks like a clock that is ahead by so much more.
        return round((time.time() - (time.monotonic() - appended[1])) * 1000) - appended[0]

    @property
    def usable(self) -> bool:
        """Whether a transaction can be tried. If not, and none is in flight, open the lane again."""
        return self._producer is not None

    async def start(self) -> None:
        """Fence every earlier owner, abort its open transaction, and wait until its commits are complete.

        Only reads after this see all its commits: a broker acknowledges a commit before the markers are in
        all partitions, and until then a read_committed consumer may miss it. Markers that a broker has left
        out are written.

        Raises
        ------
        SourceError
            No broker answers in time, or it refuses; or a transaction stays open in a partition of `topics`.
        """
        await self.stop()
        # Asked once: no broker knows it any more as soon as a producer has started.
        outcome = await last_outcome(self._config, self.transactional_id)
        deadline = time.monotonic() + self._config.connect_timeout.seconds
        while True:
            try:
                await self._start_once(outcome)
                return
            except SourceError as error:
                if outcome is None or not error.retriable or time.monotonic() > deadline:
                    raise

    async def _start_once(self, outcome: Outcome | None) -> None:
        producer = AIOKafkaProducer(
            **client_options(self._config),
            transactional_id=self.transactional_id,
            transaction_timeout_ms=int(self._timeout_seconds * 1000),
            acks="all",
            linger_ms=0,
            # A batch is a message to the broker: it obeys the same limit.
            max_batch_size=min(BATCH_BYTES, self._max_message_bytes),
            max_request_size=max(self._max_message_bytes, 1024 * 1024),
        )
        try:
            await within(self._config, _start(producer))
            if self._topics:
                known = producer.client.set_topics(self._topics)
                if outcome is not None:
                    await within(self._config, known)
                    await self._write_ends(producer, outcome, self._partitions(producer))
        except BaseException:
            await _discard(producer)
            raise
        # Requests before this need no watch: a late InitProducerId only fences this producer.
        self._answers = _ResponseWatcher(producer.client)
        self._producer = producer

    def _partitions(self, producer: AIOKafkaProducer) -> list[Partition]:
        numbers = producer.client.cluster.partitions_for_topic
        return [Partition(topic, number) for topic in self._topics for number in numbers(topic) or ()]

    async def _write_ends(
        self, producer: AIOKafkaProducer, outcome: Outcome, partitions: Collection[Partition]
    ) -> None:
        try:
            await write_ends(self._config, producer, self.transactional_id, outcome, partitions, self._group)
        except _CLIENT_ERRORS as error:
            raise self._translate(error) from None

    async def transaction(
        self,
        sends: Sequence[tuple[Partition, list[Message]]],
        *,
        offsets: Mapping[Partition, tuple[int, str]],
        seconds: float | None = None,
        member: Member | None = None,
    ) -> dict[Partition, list[int]]:
        """Store messages and the group's offsets with their registers, atomically.

        Parameters
        ----------
        sends
            Messages by partition, in order; a partition may occur more than once.
        offsets
            The next offset to read and the register, by input partition.
        seconds
            Time limit for everything before the commit, and again for the commit; None: `timeout_seconds`.
        member
            The member of the group that commits the offsets; None: the broker does not compare generations.

        Returns
        -------
        dict
            The offset of each message by partition, in the order of `sends`; of a split message the offsets
            of its parts.

        Raises
        ------
        StoreError
            A register is too long, or a message is for a topic that is not one of `topics`; nothing was sent.
        FencedError
            Another worker writes in its place now, the group has another generation than `member`, or the
            broker has fenced this producer. Whether the transaction was committed before is unknown.
        CommitOutcomeUnknownError
            The commit was sent, but no response arrived.
        SourceError
            Nothing of this transaction will be committed. Retriable: a broker was away; while `usable`, the
            same transaction can be tried again. Otherwise: it refuses.

        Notes
        -----
        After an error the producer stays `usable` only if the transaction was certainly aborted. Otherwise
        drop the lane's state and open it again, whatever the error was. After a success it is not `usable` if
        a response was lost: this transaction is stored, the next one raises FencedError.
        """
        for _, text in offsets.values():
            check_register(text)
        self._cancel_idle()
        async with self._lock:
            return await self._transaction(sends, offsets, seconds, member)

    async def _transaction(
        self,
        sends: Sequence[tuple[Partition, list[Message]]],
        offsets: Mapping[Partition, tuple[int, str]],
        seconds: float | None,
        member: Member | None,
    ) -> dict[Partition, list[int]]:
        sends = [(target, messages) for target, messages in sends if messages]
        self._check_topics({target.topic for target, _ in sends})
        producer, answers = self._producer, self._answers
        if producer is None or answers is None:
            raise FencedError(
                f"the producer for {self._name} has ended: its last transaction failed, or a response of the "
                "broker was lost, so that a request may still arrive late",
                fix="none is needed: the lane is opened again, with a new producer",
            )
        if not sends and not offsets:
            return {}
        if seconds is None:
            seconds = self._timeout_seconds
        await self._await_coordinator(producer, seconds)
        # After any interruption, a cancellation too, the producer is not used again.
        self._producer = None
        answers.begin(member)
        sent: list[_Sent] = []
        try:
            try:
                async with asyncio.timeout(seconds):
                    stored = await self._send(producer, sends, sent)
                    if offsets:
                        await producer.send_offsets_to_transaction(
                            {TopicPartition(*p): OffsetAndMetadata(*o) for p, o in offsets.items()},
                            self._group,
                        )
            except _CLIENT_ERRORS as error:
                if not _is_fenced(error) and await _abort(producer, sent):
                    with contextlib.suppress(SourceError):
                        await self._write_ends(producer, Outcome(False), {target for target, _ in sends})
                        if not answers.lost:
                            self._producer = producer
                raise self._translate(error) from None
            await self._commit(producer, seconds)
            if not answers.lost:
                self._producer = producer
                used = {target for target, _ in sends}
                self._idle = asyncio.create_task(self._when_idle(producer, used))
            return stored
        finally:
            if self._producer is None:
                await _discard(producer)

    async def _when_idle(self, producer: AIOKafkaProducer, partitions: Collection[Partition]) -> None:
        """End the last transaction, which was committed, where its end was not written.

        Another transaction would do so as well; but readers would wait for it.
        """
        while True:
            await asyncio.sleep(_IDLE_SECONDS)
            async with self._lock:
                if self._producer is None or self._producer is not producer:
                    return
                with contextlib.suppress(*_CLIENT_ERRORS):  # a broker is away
                    async with asyncio.timeout(self._config.connect_timeout.seconds):
                        found = await find_open(producer.client, partitions)
                        if not found:
                            return
                        await self._end_commit(producer, found)

    async def _end_commit(self, producer: AIOKafkaProducer, partitions: Collection[Partition]) -> None:
        self._producer = None  # after any interruption it is not used again
        try:
            await write_end(producer, self.transactional_id, partitions, "", True)
            self._producer = producer
        finally:
            if self._producer is None:
                await _discard(producer)

    def _cancel_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _check_topics(self, used: set[str]) -> None:
        """Refuse messages to a topic in which `start` looks for no open transaction."""
        if other := used - set(self._topics):
            raise StoreError(
                f"the producer for {self._name} writes to {sorted(self._topics)}, and a message is for "
                f"{min(other)!r}",
                fix="report this bug: a producer names all its topics when it is made",
            )

    async def _await_coordinator(self, producer: AIOKafkaProducer, seconds: float) -> None:
        """Wait for the transaction coordinator, before there is anything to abort."""
        try:
            async with asyncio.timeout(min(seconds, self._config.connect_timeout.seconds)):
                while True:
                    try:
                        await producer.client.coordinator_lookup(
                            CoordinationType.TRANSACTION, self.transactional_id
                        )
                        return
                    except kafka_errors.KafkaError as error:
                        if not error.retriable:
                            raise
                    await asyncio.sleep(0.1)
        except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
            raise reach_error(self._config, error) from None

    async def _send(
        self,
        producer: AIOKafkaProducer,
        sends: Sequence[tuple[Partition, list[Message]]],
        sent: list[_Sent],
    ) -> dict[Partition, list[int]]:
        """Begin the transaction, send, and check each response: the client commits despite failed batches."""
        await producer.begin_transaction()
        for target, messages in sends:
            parts = split_messages(messages, self._max_message_bytes, size_of(messages))

            def keep(future: asyncio.Future[Any], count: int, target: Partition = target) -> None:
                sent.append(_Sent(target, future, count))

            await submit(producer, target, parts, keep)
        if sent:
            done, _ = await asyncio.wait([s.future for s in sent], return_when=asyncio.FIRST_EXCEPTION)
            for future in done:
                future.result()
        stored: dict[Partition, list[int]] = {}
        for target, future, count in sent:
            first = future.result().offset
            if first < 0:
                # Stored by an earlier try, whose offset the broker no longer knows.
                raise kafka_errors.DuplicateSequenceNumber
            stored.setdefault(target, []).extend(range(first, first + count))
        return stored

    async def _commit(self, producer: AIOKafkaProducer, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await producer.commit_transaction()
        except _CLIENT_ERRORS as error:
            if _is_fenced(error):
                raise self._translate(error) from None
            raise CommitOutcomeUnknownError(
                f"it is not known whether a transaction for {self._name} was committed: {one_line(error)}",
                fix="none is needed: the lane is opened again, and its log shows the outcome",
            ) from None

    def _translate(self, error: BaseException) -> SourceError:
        """Translate an error from before the commit."""
        if _is_fenced(error):
            return FencedError(
                f"another worker writes for {self._name}, or a transaction "
                f"was open for more than {self._timeout_seconds:g} s: {one_line(error)}",
                fix="none is needed after a rebalance; otherwise look for a second worker of the same app, "
                "or for a zombie worker on a machine that was suspended",
            )
        for cause in _causes(error):
            for kind, fix in FATAL.items():
                if isinstance(cause, kind):
                    return SourceError(
                        f"Kafka refuses the outputs: {one_line(cause)}", fix=fix, retriable=False
                    )
        if isinstance(error, AssertionError | kafka_errors.IllegalOperation):
            return SourceError(
                f"the producer for {self._name} failed: {one_line(error)}",
                fix="none is needed, the worker retries; if it persists, check that output topics still have "
                "all their partitions",
            )
        return reach_error(self._config, error)

    async def stop(self) -> None:
        """Disconnect, after the transaction in flight has ended."""
        self._cancel_idle()
        async with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            await _discard(producer)


async def _start(producer: AIOKafkaProducer) -> None:
    """Start a producer; retry while the client knows no broker.

    A broker that has just started reports none, not even itself.
    """
    while True:
        try:
            await producer.start()
        except AssertionError:
            await producer.client.close()  # the next start would leak its connection
            await asyncio.sleep(0.1)
        else:
            return


async def _abort(producer: AIOKafkaProducer, sent: Sequence[_Sent]) -> bool:
    """Abort, and return whether the producer can be used again.

    The client counts a failed batch as sent, so the broker refuses the sequence number of the next one.
    """
    try:
        async with asyncio.timeout(_ABORT_SECONDS):
            await producer.abort_transaction()
    except _CLIENT_ERRORS:
        return False
    return all(s.future.done() and not s.future.cancelled() and s.future.exception() is None for s in sent)


async def _discard(producer: AIOKafkaProducer) -> None:
    # A failing client sets an exception in a private future that nobody reads, and asyncio logs that as an
    # error. These lines only avoid that log line; there is no public name.
    manager = getattr(producer, "_txn_manager", None)
    end = getattr(manager, "_transaction_waiter", None)
    if isinstance(end, asyncio.Future):
        end.add_done_callback(lambda f: f.cancelled() or f.exception())
    await stop_producer(producer, 1.0)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes: a failed sender wraps the reason."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _is_fenced(error: BaseException) -> bool:
    return any(isinstance(cause, _FENCED_ERRORS) for cause in _causes(error))
