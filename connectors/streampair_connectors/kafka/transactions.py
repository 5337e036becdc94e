"""Writing all or nothing: outputs, log entries and the group's offset of one input partition.

The client has no fencing by the group's generation (KIP-447), so each input partition has a producer of its
own: whoever starts it takes the partition's writing from every earlier owner.

A request whose answer was lost is sent again by the client, with the same epoch. The first copy may still
arrive, inside the next transaction: a late EndTxn ends it, a late TxnOffsetCommit puts the offset back.
Brokers refuse both once the producer has another epoch. (KIP-890 gives each transaction its own; this client
does not speak it.) So a producer that has lost an answer is not used for another transaction.

When the group coordinator of Kafka 3 refuses a late TxnOffsetCommit, it forgets the offset of the transaction
that is open. The register is then one entry behind the log until the next commit. A start accepts that.

Only names without an underscore are used of the client, but for two in `_discard` and one in
`stop_producer`. Its `producer.client` is not in its documentation, but nothing else tells whether a broker is
there before a transaction is begun, and which requests were answered.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from aiokafka.structs import OffsetAndMetadata

from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.client import (
    FATAL,
    Message,
    Partition,
    client_options,
    reach_error,
    say,
    size_of,
    stop_producer,
    within,
)
from streampair_connectors.kafka.offset_metadata import check_register
from streampair_connectors.kafka.producer import BATCH_BYTES, in_parts, submit

__all__ = ["PartitionProducer", "transactional_id"]

# What says that the broker takes nothing more from this producer: somebody has started another one, the
# transaction has timed out, or the broker has forgotten the id.
_FENCED = (
    kafka_errors.ProducerFenced,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.InvalidProducerIdMapping,
    kafka_errors.InvalidTxnState,
    kafka_errors.UnknownProducerId,
    kafka_errors.OutOfOrderSequenceNumber,
)
# What the client raises: AssertionError and IllegalOperation when its sender has died before.
_CLIENT = (kafka_errors.KafkaError, kafka_errors.IllegalOperation, AssertionError, OSError, TimeoutError)
_ABORT_SECONDS = 5.0
_REQUESTS = (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)


class _Sent(NamedTuple):
    """A batch that the client has: where it goes, the future of its storage, how many messages it holds."""

    target: Partition
    future: asyncio.Future[Any]
    messages: int


class _Answers:
    """Watches the requests of one producer.

    Attributes
    ----------
    lost
        Whether a copy of a request may still arrive: a request of a transaction was not answered, or EndTxn
        was sent more than once.
    """

    def __init__(self, client: AIOKafkaClient) -> None:
        self.lost = False
        self._ends = 0
        self._send = client.send
        client.send = self._watched

    def begin(self) -> None:
        """Another transaction begins."""
        self._ends = 0

    async def _watched(self, node: int, request: Any, **options: Any) -> Any:
        if isinstance(request, EndTxnRequest):
            self._ends += 1
            self.lost |= self._ends > 1
        try:
            return await self._send(node, request, **options)
        except BaseException:
            self.lost |= isinstance(request, _REQUESTS)
            raise


def transactional_id(app: str, topic: str, partition: int) -> str:
    """Return the name under which Kafka knows the writer of an input partition.

    The parts are hashed with their lengths: `a-b`, `c` is not `a`, `b-c`.
    """
    digest = hashlib.sha256()
    for part in (app, topic, str(partition)):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return f"streampair-{digest.hexdigest()[:40]}"


class PartitionProducer:
    """The one writer of everything that comes of one input partition.

    Parameters
    ----------
    config
        The cluster.
    app, source
        The application and its input partition: together the `transactional_id`.
    max_message_bytes
        A message that is larger is sent in parts (`producer.in_parts`).
    timeout_seconds
        How long a transaction may be open before the broker aborts it and fences this producer; brokers take
        at most `transaction.max.timeout.ms`, 15 minutes by default.
    topics
        Where it writes: it asks for the partitions of all of them at once, and not again with each.
    """

    def __init__(
        self,
        config: KafkaConfig,
        app: str,
        source: Partition,
        *,
        max_message_bytes: int,
        timeout_seconds: float = 60.0,
        topics: Collection[str] = (),
    ) -> None:
        self._config = config
        self._name = f"{source.topic}/{source.partition}"
        self._max_message_bytes = max_message_bytes
        self._timeout_seconds = timeout_seconds
        self._topics = topics
        self.transactional_id = transactional_id(app, source.topic, source.partition)
        self._producer: AIOKafkaProducer | None = None
        self._answers: _Answers | None = None
        # `stop` while a transaction is under way would find no producer to stop.
        self._lock = asyncio.Lock()

    @property
    def usable(self) -> bool:
        """Whether a transaction can be tried. If not, and none is under way, open the lane again."""
        return self._producer is not None

    async def start(self) -> None:
        """Fence every earlier owner, abort what it has begun, and wait until what it committed is settled.

        Only what is read after this is certain to be the last word: a broker answers a commit before its mark
        is in all partitions, and who reads what is committed may not see it at once.

        Raises
        ------
        SourceError
            No broker answers in time, or it refuses.
        """
        await self.stop()
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
        except BaseException:
            await _discard(producer)
            raise
        if self._topics:
            producer.client.set_topics(self._topics)
        # Not of what `_start` asks: a late InitProducerId ends this producer, and nothing is torn.
        self._answers = _Answers(producer.client)
        self._producer = producer

    async def transaction(
        self,
        sends: Sequence[tuple[Partition, list[Message]]],
        *,
        group: str,
        offsets: Mapping[Partition, tuple[int, str]],
        seconds: float | None = None,
    ) -> dict[Partition, list[int]]:
        """Store messages, and the group's offsets with their registers: all of them, or none.

        Parameters
        ----------
        sends
            Messages by partition, in the order in which they are sent; a partition may come more than once.
        group, offsets
            The next offset to read and the register, by input partition.
        seconds
            How long everything before the commit may take, and how long its answer; None for the
            transaction's own time-out.

        Returns
        -------
        dict
            The offset of each message by partition, in the order of `sends`. One that was cut has that of
            each of its parts.

        Raises
        ------
        StoreError
            A register is too long; nothing was sent.
        Fenced
            Somebody else writes for this partition now, or the broker has ended this producer. Whether this
            transaction was committed before that is not known.
        CommitOutcomeUnknownError
            The commit was sent, its answer did not come.
        SourceError
            Nothing of this transaction is ever committed. Retriable: a broker was away; while `usable`, the
            same transaction can be tried again. Otherwise: it refuses.

        Notes
        -----
        After an error `usable` says whether this producer goes on, which it does only if all is known to be
        undone. If not, drop the lane's state and open it again, whatever the error was. After a success it is
        not `usable` if an answer was lost on the way: this transaction is stored, the next one raises Fenced.
        """
        for _, text in offsets.values():
            check_register(text)
        async with self._lock:
            return await self._transaction(sends, group, offsets, seconds)

    async def _transaction(
        self,
        sends: Sequence[tuple[Partition, list[Message]]],
        group: str,
        offsets: Mapping[Partition, tuple[int, str]],
        seconds: float | None,
    ) -> dict[Partition, list[int]]:
        sends = [(target, messages) for target, messages in sends if messages]
        producer, answers = self._producer, self._answers
        if producer is None or answers is None:
            raise FencedError(
                f"the producer for {self._name} has ended: its last transaction failed, or an answer of the "
                "broker was lost, so that a request may still arrive late",
                fix="none is needed: the lane is opened again, with a new producer",
            )
        if not sends and not offsets:
            return {}
        if seconds is None:
            seconds = self._timeout_seconds
        await self._reach(producer, seconds)
        # Whatever interrupts this, a cancellation too, leaves a producer that is not used again.
        self._producer = None
        answers.begin()
        sent: list[_Sent] = []
        try:
            try:
                async with asyncio.timeout(seconds):
                    stored = await self._send(producer, sends, sent)
                    if offsets:
                        await producer.send_offsets_to_transaction(
                            {TopicPartition(*p): OffsetAndMetadata(*o) for p, o in offsets.items()}, group
                        )
            except _CLIENT as error:
                if not _is_fenced(error) and await _abort(producer, sent) and not answers.lost:
                    self._producer = producer
                raise self._translate(error) from None
            await self._commit(producer, seconds)
            if not answers.lost:
                self._producer = producer
            return stored
        finally:
            if self._producer is None:
                await _discard(producer)

    async def _reach(self, producer: AIOKafkaProducer, seconds: float) -> None:
        """Wait for a broker that answers, while there is nothing yet that would have to be undone."""
        try:
            async with asyncio.timeout(min(seconds, self._config.connect_timeout_seconds)):
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
        """Begin the transaction, send, await every answer: the client commits past batches that failed."""
        await producer.begin_transaction()
        for target, messages in sends:
            parts = in_parts(messages, self._max_message_bytes, size_of(messages))

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
                # Stored at the second try; the broker no longer knows where the first has put it.
                raise kafka_errors.DuplicateSequenceNumber
            stored.setdefault(target, []).extend(range(first, first + count))
        return stored

    async def _commit(self, producer: AIOKafkaProducer, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await producer.commit_transaction()
        except _CLIENT as error:
            if _is_fenced(error):
                raise self._translate(error) from None
            raise CommitOutcomeUnknownError(
                f"it is not known whether a transaction for {self._name} was committed: {say(error)}",
                fix="none is needed: the lane is opened again, and reads which",
            ) from None

    def _translate(self, error: BaseException) -> SourceError:
        """Our error for one before the commit."""
        if _is_fenced(error):
            return FencedError(
                f"another worker writes for {self._name}, or a transaction "
                f"was open for more than {self._timeout_seconds:g} s: {say(error)}",
                fix="none is needed if workers came or went; else look for a second one of the same app, or "
                "for a machine that stands still",
            )
        for cause in _causes(error):
            for kind, fix in FATAL.items():
                if isinstance(cause, kind):
                    return SourceError(f"Kafka refuses the outputs: {say(cause)}", fix=fix, retriable=False)
        if isinstance(error, AssertionError | kafka_errors.IllegalOperation):
            return SourceError(
                f"the client that writes for {self._name} failed: {say(error)}",
                fix="none is needed, it is tried again; if it stays, check that the topics that are written "
                "to still have all their partitions",
            )
        return reach_error(self._config, error)

    async def stop(self) -> None:
        """Disconnect, once the transaction that is under way has ended, well or not."""
        async with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            await _discard(producer)


async def _start(producer: AIOKafkaProducer) -> None:
    """Start it; again while the client asserts that it knows a broker.

    One that has just come up knows of none, not even of itself.
    """
    while True:
        try:
            await producer.start()
        except AssertionError:
            await producer.client.close()  # the next start would forget its connection
            await asyncio.sleep(0.1)
        else:
            return


async def _abort(producer: AIOKafkaProducer, sent: Sequence[_Sent]) -> bool:
    """Abort; whether the producer can be used again.

    The client counts a batch that failed as sent, and the broker, which counts too, refuses the next one.
    """
    try:
        async with asyncio.timeout(_ABORT_SECONDS):
            await producer.abort_transaction()
    except _CLIENT:
        return False
    return all(s.future.done() and not s.future.cancelled() and s.future.exception() is None for s in sent)


async def _discard(producer: AIOKafkaProducer) -> None:
    # A client that dies says so in a future that it shows to nobody, and asyncio then logs as an error that
    # nobody has read it. There is no public name for it; without these lines all works, with a louder log.
    manager = getattr(producer, "_txn_manager", None)
    end = getattr(manager, "_transaction_waiter", None)
    if isinstance(end, asyncio.Future):
        end.add_done_callback(lambda f: f.cancelled() or f.exception())
    await stop_producer(producer, 1.0)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from: a sender that dies wraps the reason."""
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__


def _is_fenced(error: BaseException) -> bool:
    return any(isinstance(cause, _FENCED) for cause in _causes(error))
