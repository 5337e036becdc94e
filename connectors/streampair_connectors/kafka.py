"""Apache Kafka: the only module that knows the client library, aiokafka.

What it hides: sends in whole batches (one `send` per event costs ten times as much), rebuilds
a producer that has failed and sends again what was not acknowledged, and turns the client's
errors into ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    TopicPartition,
)
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.partitioner import murmur2

from streampair.errors import ConfigError, SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.logs import get_logger

__all__ = [
    "Consumer",
    "Kept",
    "Message",
    "Partition",
    "Producer",
    "Reader",
    "RecordLike",
    "create_by_asking",
    "creates_topics",
    "describe_topics",
    "read_all",
]

log = get_logger(__name__)

Headers = Sequence[tuple[str, bytes]]

# A batch stays below what brokers accept by default (message.max.bytes, 1 048 588).
_BATCH_BYTES = 900_000
# Bytes of a batch around its records, and an upper bound of those around one record.
_OVERHEAD = 61 + 40

# Trying again cannot help here: something must be changed first.
_FATAL: dict[type[BaseException], str] = {
    kafka_errors.TopicAuthorizationFailedError: "allow this user to use the topic",
    kafka_errors.GroupAuthorizationFailedError: "allow this user to use the consumer group",
    kafka_errors.ClusterAuthorizationFailedError: "allow this user idempotent writes on the cluster",
    kafka_errors.AuthenticationFailedError: "check kafka.username and its password",
    kafka_errors.MessageSizeTooLargeError: "raise max.message.bytes of the topic, "
    "or lower output.max_message_bytes",
    kafka_errors.InvalidTopicError: "use a valid topic name",
    kafka_errors.UnsupportedVersionError: "use Apache Kafka 2.1 or newer",
    kafka_errors.InconsistentGroupProtocolError: "use another app name: "
    "this consumer group belongs to another kind of client",
}
# What the client raises when nobody is there.
_NOBODY = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.NodeNotReadyError,
    kafka_errors.NoBrokersAvailable,
)


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class RecordLike(Protocol):
    """One record as the client gives it; it also serves a lane as its raw record."""

    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


class Message(NamedTuple):
    """One record to send."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] = []  # noqa: RUF012  # never changed; the client wants a list


def _client_options(config: KafkaConfig) -> dict[str, Any]:
    options: dict[str, Any] = {
        "bootstrap_servers": config.bootstrap_servers,
        "security_protocol": config.security_protocol,
        "request_timeout_ms": 10_000,
    }
    if "SSL" in config.security_protocol:
        try:
            context = ssl.create_default_context(
                cafile=None if config.ssl_cafile is None else str(config.ssl_cafile)
            )
            if config.ssl_certfile is not None:
                context.load_cert_chain(
                    str(config.ssl_certfile),
                    None if config.ssl_keyfile is None else str(config.ssl_keyfile),
                )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the certificates of [kafka] cannot be loaded: {error}",
                fix="check ssl_cafile, ssl_certfile and ssl_keyfile",
            ) from None
        options["ssl_context"] = context
    if config.security_protocol.startswith("SASL"):
        password = config.password()
        options["sasl_mechanism"] = config.sasl_mechanism
        options["sasl_plain_username"] = config.username
        options["sasl_plain_password"] = None if password is None else password.get_secret_value()
    return options


def _reach_error(config: KafkaConfig, error: BaseException) -> SourceError:
    for kind, fix in _FATAL.items():
        if isinstance(error, kind):
            return SourceError(f"Kafka refuses: {_say(error)}", fix=fix, retriable=False)
    if isinstance(error, kafka_errors.KafkaError) and not isinstance(error, _NOBODY):
        return SourceError(
            f"Kafka at {config.bootstrap_servers} fails: {_say(error)}",
            fix="look into the broker's log; the worker can be started again at any time",
        )
    return SourceError(
        f"no Kafka broker answers at {config.bootstrap_servers}",
        fix="start the broker, or correct kafka.bootstrap_servers "
        "(and security_protocol: a TLS port does not answer PLAINTEXT)",
    )


def _say(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 300 else text[:300] + "..."


async def _within(config: KafkaConfig, work: Awaitable[Any]) -> Any:
    """Await `work` for at most the configured time; every failure becomes a SourceError."""
    try:
        return await asyncio.wait_for(work, config.connect_timeout_seconds)
    except (kafka_errors.KafkaError, OSError, TimeoutError) as error:
        raise _reach_error(config, error) from None


async def _stop_quietly(stop: Awaitable[None], seconds: float) -> None:
    """Stop a client, for at most `seconds`.

    aiokafka's `stop` waits for ever for a broker that is away, and lets the cancellation of its
    own tasks escape; so it runs in a task of its own, which is given up after a while.
    """
    task = asyncio.ensure_future(stop)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
    if task.done() and not task.cancelled() and task.exception() is not None:
        log.debug("client_stop_failed", error=repr(task.exception()))


async def describe_topics(config: KafkaConfig) -> dict[str, int]:
    """Return the number of partitions of every topic. Creates none.

    Raises
    ------
    SourceError
        No broker answers within `connect_timeout_seconds`, or it refuses.
    """
    admin = AIOKafkaAdminClient(**_client_options(config))
    try:
        await _within(config, admin.start())
        # Asking for all topics never creates one; asking for one by name may.
        names: list[str] = await _within(config, admin.list_topics())
        found = await _within(config, admin.describe_topics(names)) if names else []
        return {topic["topic"]: len(topic["partitions"]) for topic in found}
    finally:
        await _stop_quietly(admin.close(), 2.0)


async def creates_topics(config: KafkaConfig) -> bool | None:
    """Return the broker's `auto.create.topics.enable`; None when it does not tell."""
    admin = AIOKafkaAdminClient(**_client_options(config))
    try:
        await _within(config, admin.start())
        broker = next(iter((await admin.describe_cluster())["brokers"]))["node_id"]
        asked = ConfigResource(ConfigResourceType.BROKER, str(broker), {"auto.create.topics.enable": ""})
        (answer,) = await asyncio.wait_for(admin.describe_configs([asked]), 5.0)
        for resource in answer.resources:
            for name, value, *_ in resource[4]:
                if name == "auto.create.topics.enable":
                    return bool(value == "true")
    except (kafka_errors.KafkaError, SourceError, OSError, TimeoutError, LookupError, StopIteration):
        return None
    finally:
        await _stop_quietly(admin.close(), 2.0)
    return None


async def create_by_asking(config: KafkaConfig, topic: str) -> bool:
    """Ask for a topic by name, which creates it where the broker is set up to do that.

    Returns
    -------
    bool
        Whether it exists now.
    """
    producer = AIOKafkaProducer(**_client_options(config))
    try:
        await _within(config, producer.start())
        await asyncio.wait_for(producer.partitions_for(topic), 3.0)
    except (kafka_errors.KafkaError, TimeoutError):
        return False
    finally:
        await _stop_quietly(producer.stop(), 2.0)
    log.info("topic_created_by_broker", topic=topic)
    return True


class Consumer:
    """A member of the application's group that always reads from where it is told.

    Parameters
    ----------
    config, topic, group
        What to read, and as which group.
    on_revoked, on_assigned
        Called during a rebalance. aiokafka swallows what they raise, so it is kept and raised
        by the next `poll`.
    """

    def __init__(
        self,
        config: KafkaConfig,
        topic: str,
        group: str,
        *,
        on_revoked: Callable[[list[Partition]], Awaitable[None]],
        on_assigned: Callable[[list[Partition]], Awaitable[None]],
    ) -> None:
        self._config = config
        self.error: BaseException | None = None
        self._stopped = False
        session = int(config.session_timeout_seconds * 1000)
        self._consumer = AIOKafkaConsumer(
            **_client_options(config),
            group_id=group,
            enable_auto_commit=False,
            # Positions come from snapshots. One that Kafka no longer has must not be moved silently.
            auto_offset_reset="none",
            isolation_level="read_committed",
            # Co-partitioned topics need the range assignor.
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=session,
            heartbeat_interval_ms=max(session // 4, 250),
            rebalance_timeout_ms=60_000,
            max_partition_fetch_bytes=4 * 1024 * 1024,
            max_poll_interval_ms=600_000,
            fetch_max_wait_ms=250,
        )
        outer = self

        class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # untyped base
            async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
                await outer._guard(on_revoked, revoked)

            async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
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
        await _within(self._config, self._consumer.start())

    async def poll(
        self, max_records: int, timeout_seconds: float
    ) -> Mapping[Partition, Sequence[RecordLike]]:
        """Return the next records by partition; empty when there are none in time.

        Raises
        ------
        SourceError
            The broker refuses, for good (`retriable` is False), or the client has failed.
        Exception
            What a rebalance callback has raised.
        """
        if self.error is not None:
            raise self.error
        try:
            found = await self._consumer.getmany(
                timeout_ms=int(timeout_seconds * 1000), max_records=max_records
            )
        except kafka_errors.NoOffsetForPartitionError:
            # The group has no offset of its own, and the rebalance callback, which seeks, still runs.
            await asyncio.sleep(0.02)
            return {}
        except kafka_errors.OffsetOutOfRangeError as error:
            await self._skip_lost(error.args[0])
            return {}
        except kafka_errors.KafkaError as error:
            raise self._translate(error) from None
        return {Partition(tp.topic, tp.partition): records for tp, records in found.items()}

    async def _skip_lost(self, positions: Mapping[TopicPartition, int]) -> None:
        """Go on at the first record that is left, and say how many are gone."""
        first = await self._consumer.beginning_offsets(list(positions))
        for partition, offset in positions.items():
            log.warning(
                "events_lost",
                topic=partition.topic,
                partition=partition.partition,
                wanted_offset=offset,
                first_offset=first[partition],
                next_step="the topic's retention removed events before they were read: "
                "raise retention.ms, or add partitions and workers",
            )
            self._consumer.seek(partition, first[partition])

    def seek(self, partition: Partition, offset: int) -> None:
        """Read `partition` from `offset` on."""
        self._consumer.seek(TopicPartition(*partition), offset)

    async def range(self, partition: Partition) -> tuple[int, int]:
        """Return the first and the next offset of a partition."""
        tp = TopicPartition(*partition)
        try:
            first = await self._consumer.beginning_offsets([tp])
            last = await self._consumer.end_offsets([tp])
        except kafka_errors.KafkaError as error:
            raise self._translate(error) from None
        return first[tp], last[tp]

    async def ends(self, partitions: Sequence[Partition], seconds: float) -> dict[Partition, int] | None:
        """Return the next offset of each partition; None when the broker does not answer in time."""
        try:
            found = await asyncio.wait_for(
                self._consumer.end_offsets([TopicPartition(*p) for p in partitions]), seconds
            )
        except (kafka_errors.KafkaError, TimeoutError, OSError):
            return None
        return {Partition(tp.topic, tp.partition): end for tp, end in found.items()}

    async def position(self, partition: Partition) -> int | None:
        """Return the next offset to read, which lies behind the markers that end transactions."""
        try:
            at: int = await asyncio.wait_for(self._consumer.position(TopicPartition(*partition)), 1.0)
        except (kafka_errors.KafkaError, TimeoutError):
            return None
        return at

    def end(self, partition: Partition) -> int | None:
        """Return the next offset of a partition, as far as the last fetch knows."""
        try:
            end: int | None = self._consumer.highwater(TopicPartition(*partition))
        except (kafka_errors.KafkaError, AssertionError):
            return None
        return end

    async def committed(self, partition: Partition) -> int | None:
        """Return the group's own offset, which is for tools only; None when there is none."""
        try:
            offset: int | None = await asyncio.wait_for(
                self._consumer.committed(TopicPartition(*partition)), 5.0
            )
        except (kafka_errors.KafkaError, TimeoutError):
            return None
        return offset

    async def commit(self, offsets: Mapping[Partition, int], seconds: float = 5.0) -> bool:
        """Commit the group's offsets, for tools that show lag. False when it did not work.

        The snapshot says where to go on, so a failure here loses nothing.
        """
        try:
            await asyncio.wait_for(
                self._consumer.commit({TopicPartition(*p): o for p, o in offsets.items()}), seconds
            )
        except (kafka_errors.KafkaError, TimeoutError) as error:
            log.warning(
                "group_commit_failed",
                error=_say(error),
                next_step="none: the snapshot holds the offset, only tools show an old lag",
            )
            return False
        return True

    def _translate(self, error: BaseException) -> SourceError:
        for kind, fix in _FATAL.items():
            if isinstance(error, kind):
                return SourceError(f"Kafka refuses: {_say(error)}", fix=fix, retriable=False)
        return SourceError(f"the Kafka consumer failed: {_say(error)}", fix="wait, it is tried again")

    async def stop(self, seconds: float = 5.0) -> None:
        """Leave the group and disconnect. No callback runs from here on."""
        self._stopped = True
        await _stop_quietly(self._consumer.stop(), seconds)


class Kept(NamedTuple):
    """Messages for one output partition that are not yet known to be stored."""

    target: Partition
    messages: list[Message]


class Producer:
    """Sends messages in whole batches and keeps them until they are acknowledged.

    Idempotent, so that the retries of one producer never duplicate. A producer that has failed
    is replaced and everything that was not acknowledged is sent again.
    """

    def __init__(self, config: KafkaConfig, *, max_message_bytes: int) -> None:
        self._config = config
        self._max_message_bytes = max_message_bytes
        self._producer: AIOKafkaProducer | None = None
        self._kept: list[Kept] = []
        self._futures: list[asyncio.Future[Any]] = []
        self._partitions: dict[str, int] = {}
        self.kept_bytes = 0

    @property
    def stuck(self) -> bool:
        """Whether a failed send waits to be sent again."""
        return any(f.done() and not f.cancelled() and f.exception() is not None for f in self._futures)

    async def start(self) -> None:
        """Connect.

        Raises
        ------
        SourceError
            No broker answers in time, or it refuses.
        """
        self._producer = AIOKafkaProducer(
            **_client_options(self._config),
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            # A batch is a message to the broker: it obeys the same limit.
            max_batch_size=min(_BATCH_BYTES, self._max_message_bytes),
            max_request_size=max(self._max_message_bytes, 1024 * 1024),
        )
        try:
            await _within(self._config, self._producer.start())
        except BaseException:
            await self._discard()
            raise

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has. Brokers that create topics do so here."""
        assert self._producer is not None
        found = await _within(self._config, self._producer.partitions_for(topic))
        self._partitions[topic] = len(found)
        return len(found)

    def target(self, topic: str, key: bytes | None, source: int) -> Partition:
        """Return the partition for a key, the one Kafka's own clients choose.

        Without a key, all outputs of an input partition go to one output partition: order stays.
        """
        count = self._partitions[topic]
        if key is None:
            return Partition(topic, source % count)
        return Partition(topic, _hash(key) % count if count > 1 else 0)

    def single(self, topic: str) -> bool:
        """Whether all outputs of a topic go to one partition, whatever their key."""
        return self._partitions[topic] == 1

    async def send(self, target: Partition, messages: list[Message]) -> None:
        """Hand over messages for one partition, in order; `flush` awaits their storage.

        A message that is larger than the topic takes is sent in parts, whose header
        `streampair.part` says `1/3`, `2/3`, `3/3`.
        """
        if not messages:
            return
        size = sum([len(m[0] or b"") + len(m[1] or b"") for m in messages])
        if size + _OVERHEAD * len(messages) > self._max_message_bytes or messages[-1].headers:
            messages = self._split(messages)
        self._kept.append(Kept(target, messages))
        self.kept_bytes += size
        # A failure shows in `flush`, which sends again everything that is kept.
        with contextlib.suppress(kafka_errors.KafkaError, TimeoutError, AssertionError):
            await self._submit(target, messages)
            return
        self._futures.append(_failed())

    def _split(self, messages: list[Message]) -> list[Message]:
        limit = self._max_message_bytes
        out: list[Message] = []
        for message in messages:
            value = message.value or b""
            fixed = len(message.key or b"") + _headers_size(message.headers) + _OVERHEAD
            if len(value) + fixed <= limit:
                out.append(message)
                continue
            room = max(limit - fixed - 64, 512)  # 64: the header that counts the parts
            parts = [value[i : i + room] for i in range(0, len(value), room)]
            for number, part in enumerate(parts, 1):
                mark = ("streampair.part", f"{number}/{len(parts)}".encode())
                out.append(Message(message.key, part, [*message.headers, mark]))
        return out

    async def _submit(self, target: Partition, messages: list[Message]) -> None:
        producer = self._producer
        if producer is None:
            raise kafka_errors.ProducerClosed
        batch = producer.create_batch()
        append = batch.append
        for key, value, headers in messages:
            if append(timestamp=None, key=key, value=value, headers=headers) is None:
                await self._enqueue(batch, target)
                batch = producer.create_batch()
                append = batch.append
                # The first record of a batch is always taken, whatever its size.
                append(timestamp=None, key=key, value=value, headers=headers)
        await self._enqueue(batch, target)

    async def _enqueue(self, batch: Any, target: Partition) -> None:
        assert self._producer is not None
        batch.close()
        future = await self._producer.send_batch(batch, target.topic, partition=target.partition)
        # Its exception is read by `flush`; without this, Python warns when the worker gives up.
        future.add_done_callback(lambda f: f.cancelled() or f.exception())
        self._futures.append(future)

    async def flush(self, give_up: asyncio.Event, on_trouble: Callable[[str], None]) -> bool:
        """Wait until everything that was sent is stored; False when `give_up` came first.

        Parameters
        ----------
        give_up
            Set when there is no point in waiting any longer.
        on_trouble
            Told, each time, what keeps the messages from being stored.

        Raises
        ------
        SourceError
            The broker refuses for good.
        """
        waited = 0.0
        while self._kept:
            if self._futures:
                stop = asyncio.ensure_future(give_up.wait())
                everything = asyncio.ensure_future(_all_done(self._futures))
                try:
                    await asyncio.wait({stop, everything}, timeout=5.0, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    stop.cancel()
                    if not everything.done():
                        everything.cancel()
            pending = [f for f in self._futures if not f.done()]
            failed = next(
                (f.exception() for f in self._futures if f.done() and f.exception() is not None), None
            )
            if failed is None and not pending:
                break
            if failed is not None:
                for kind, fix in _FATAL.items():
                    if isinstance(failed, kind):
                        raise SourceError(
                            f"Kafka refuses the outputs: {_say(failed)}", fix=fix, retriable=False
                        )
            if give_up.is_set():
                return False
            on_trouble("outputs wait for the broker" if failed is None else _say(failed))
            if failed is not None:
                await self._resend(min(0.1 + waited / 4, 2.0))
            waited += 1.0
        self._kept.clear()
        self._futures.clear()
        self.kept_bytes = 0
        return True

    async def _resend(self, pause: float) -> None:
        """Replace the producer and send again everything that is kept, in order."""
        await self._discard()
        self._futures.clear()
        await asyncio.sleep(pause)
        try:
            await self.start()
            for target, messages in self._kept:
                await self._submit(target, messages)
        except (SourceError, kafka_errors.KafkaError, TimeoutError, AssertionError) as error:
            if isinstance(error, SourceError) and not error.retriable:
                raise
            self._futures.append(_failed())

    async def _discard(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await _stop_quietly(producer.stop(), 1.0)

    async def stop(self, seconds: float = 5.0) -> None:
        """Disconnect; what is not stored by now is dropped."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await _stop_quietly(producer.stop(), seconds if not self._kept else 0.5)


async def _all_done(futures: Sequence[asyncio.Future[Any]]) -> None:
    await asyncio.wait(futures)


def _failed() -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(kafka_errors.KafkaConnectionError("the broker does not answer"))
    future.exception()
    return future


def _headers_size(headers: Headers) -> int:
    return sum(len(name) + len(value) + 10 for name, value in headers) if headers else 0


@functools.lru_cache(maxsize=65_536)
def _hash(key: bytes) -> int:
    positive: int = murmur2(key) & 0x7FFFFFFF
    return positive


class Reader:
    """Reads a partition from its start, outside any group."""

    def __init__(self, config: KafkaConfig, partitions: Sequence[Partition]) -> None:
        self._config = config
        self._partitions = [TopicPartition(*p) for p in partitions]
        self._consumer = AIOKafkaConsumer(
            **_client_options(config),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_wait_ms=100,
        )

    async def start(self) -> None:
        """Connect and go to the start."""
        await _within(self._config, self._consumer.start())
        self._consumer.assign(self._partitions)
        await self._consumer.seek_to_beginning(*self._partitions)

    async def poll(self, timeout_seconds: float) -> Mapping[Partition, Sequence[RecordLike]]:
        """Return what has come."""
        found = await self._consumer.getmany(timeout_ms=int(timeout_seconds * 1000))
        return {Partition(tp.topic, tp.partition): records for tp, records in found.items()}

    async def stop(self) -> None:
        """Disconnect."""
        await _stop_quietly(self._consumer.stop(), 2.0)


async def read_all(
    config: KafkaConfig, partition: Partition, count: int, *, seconds: float = 30.0
) -> list[RecordLike]:
    """Return the first `count` records of a partition.

    Raises
    ------
    SourceError
        They have not come within `seconds`.
    """
    reader = Reader(config, [partition])
    found: list[RecordLike] = []
    try:
        await reader.start()
        async with asyncio.timeout(seconds):
            while len(found) < count:
                found.extend((await reader.poll(0.2)).get(partition, ()))
    except TimeoutError:
        raise SourceError(
            f"{partition.topic} has {len(found)} records, {count} were expected",
            fix="check that all of them were written",
        ) from None
    finally:
        await reader.stop()
    return found
