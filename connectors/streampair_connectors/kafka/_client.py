"""What all clients share: their options, their errors in our words, and the shape of a record."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from aiokafka import AIOKafkaProducer, codec
from aiokafka import errors as kafka_errors

from streampair.errors import ConfigError, SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka.diagnosis import diagnose
from streampair_connectors.logs import get_logger
from streampair_connectors.permissions import check_private

__all__ = [
    "FATAL",
    "Message",
    "Partition",
    "RecordLike",
    "check_codecs",
    "client_options",
    "ended",
    "log",
    "reach_error",
    "say",
    "stop_producer",
    "stop_quietly",
    "unbroken",
    "within",
]

_T = TypeVar("_T")

# One logger for the whole package: which of its modules speaks is nothing to a reader of the log.
log = get_logger("streampair_connectors.kafka")

# Trying again cannot help here: something must be changed first.
FATAL: dict[type[BaseException], str] = {
    kafka_errors.TopicAuthorizationFailedError: "allow this user to use the topic",
    kafka_errors.GroupAuthorizationFailedError: "allow this user to use the consumer group",
    kafka_errors.ClusterAuthorizationFailedError: "allow this user idempotent writes on the cluster",
    kafka_errors.TransactionalIdAuthorizationFailed: "allow this user Write and Describe on transactional "
    "ids that begin with streampair- (kafka-acls.sh --add --operation Write --operation Describe "
    "--transactional-id streampair- --resource-pattern-type prefixed)",
    kafka_errors.InvalidTransactionTimeout: "raise transaction.max.timeout.ms of the brokers, or lower the "
    "transaction time-out",
    kafka_errors.AuthenticationFailedError: "check kafka.username and its password",
    kafka_errors.MessageSizeTooLargeError: "raise max.message.bytes of the topic, "
    "or lower output.max_message_bytes",
    kafka_errors.InvalidTimestampError: 'set output.timestamps = "now", or raise '
    "message.timestamp.before.max.ms of the topic",
    kafka_errors.InvalidTopicError: "use a valid topic name",
    kafka_errors.UnsupportedVersionError: "use Apache Kafka 2.1 or newer",
    kafka_errors.UnsupportedCodecError: "install the package that reads snappy, lz4 and zstd: "
    "pip install cramjam",
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


class Message(msgspec.Struct, frozen=True, gc=False):
    """One record to send. A struct, as one is made for every event: a named tuple costs four times that.

    Thousands wait for a commit. None holds a list of its own, which Python's collector would walk.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None = None
    timestamp: int | None = None
    """Milliseconds since the epoch; None: when it is sent."""


def size_of(messages: Sequence[Message]) -> int:
    """Bytes of all keys and values."""
    values, keys = [m.value for m in messages], [m.key for m in messages]
    return sum(map(len, filter(None, values))) + sum(map(len, filter(None, keys)))


def client_options(config: KafkaConfig) -> dict[str, Any]:
    """What every client is given: where the brokers are, and how to prove who we are."""
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
                # Without a file of its own the key stands in that of the certificate.
                check_private(config.ssl_keyfile or config.ssl_certfile, "TLS key")
                secret = config.ssl_key_password()
                context.load_cert_chain(
                    str(config.ssl_certfile),
                    None if config.ssl_keyfile is None else str(config.ssl_keyfile),
                    # Never asked for at a terminal, where nobody sits.
                    password="" if secret is None else secret.get_secret_value(),
                )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the certificates of [kafka] cannot be loaded: {error}",
                fix="check ssl_cafile, ssl_certfile and ssl_keyfile; for an encrypted key set "
                "ssl_key_password_file or ssl_key_password_env",
            ) from None
        options["ssl_context"] = context
    if config.security_protocol.startswith("SASL"):
        password = config.password()
        options["sasl_mechanism"] = config.sasl_mechanism
        options["sasl_plain_username"] = config.username
        options["sasl_plain_password"] = None if password is None else password.get_secret_value()
    return options


def check_codecs() -> list[str]:
    """Compress and read a text with each codec of Kafka, and return their names.

    Raises
    ------
    SourceError
        One of them cannot be used here: a compressed batch would end the worker.
    """
    text, failed = b"streampair " * 100, []
    codecs = {
        "gzip": (codec.gzip_encode, codec.gzip_decode),
        "snappy": (codec.snappy_encode, codec.snappy_decode),
        "lz4": (codec.lz4_encode, codec.lz4_decode),
        "zstd": (codec.zstd_encode, codec.zstd_decode),
    }
    for name, (compress, read) in codecs.items():
        try:
            if bytes(read(compress(text))) != text:
                failed.append(f"{name} (another text comes out)")
        except Exception as error:  # whatever the codec raises, the worker would end with it
            failed.append(f"{name} ({say(error)})")
    if failed:
        raise SourceError(
            f"records cannot be read that are compressed with {', '.join(failed)}",
            fix=FATAL[kafka_errors.UnsupportedCodecError],
            retriable=False,
        )
    return list(codecs)


def reach_error(config: KafkaConfig, error: BaseException) -> SourceError:
    """Our error for one of the client's; it says what to do, and whether to try again."""
    for kind, fix in FATAL.items():
        if isinstance(error, kind):
            return SourceError(f"Kafka refuses: {say(error)}", fix=fix, retriable=False)
    if isinstance(error, kafka_errors.KafkaError) and not isinstance(error, _NOBODY):
        return SourceError(
            f"Kafka at {config.bootstrap_servers} fails: {say(error)}",
            fix="look into the broker's log; the worker can be started again at any time",
        )
    return SourceError(
        f"no Kafka broker answers at {config.bootstrap_servers}",
        fix="start the broker, or correct kafka.bootstrap_servers",
    )


def say(error: BaseException) -> str:
    """An error on one line, of a length that a log can take."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 300 else text[:300] + "..."


async def within(config: KafkaConfig, work: Awaitable[Any]) -> Any:
    """Await `work` for at most the configured time; every failure becomes a SourceError."""
    try:
        return await asyncio.wait_for(unbroken(work), config.connect_timeout_seconds)
    except (kafka_errors.KafkaError, OSError, TimeoutError, AssertionError) as error:
        # An assertion is how the client says that no broker knows of any, as one does that has just come up.
        found = reach_error(config, error)
        if found.retriable and (isinstance(error, _NOBODY) or not isinstance(error, kafka_errors.KafkaError)):
            found = await diagnose(config, client_options(config)) or found
        raise found from None


async def unbroken(work: Awaitable[_T]) -> _T:
    """Await `work`; where that is cancelled, let it come to its end for a moment.

    A connection that is cancelled while aiokafka makes it is never closed.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    finally:
        if not task.done():
            try:
                await asyncio.wait({task}, timeout=1.0)
            finally:
                task.cancel()
        if task.done() and not task.cancelled():
            task.exception()  # told already, or of no use any more


async def ended(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks until they are over: a wait that ends just then swallows the cancellation."""
    known = [task for task in tasks if task is not None]
    while left := [task for task in known if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=2.0)
    for task in known:
        if not task.cancelled():
            task.exception()  # of no use any more


async def stop_quietly(stop: Awaitable[None], seconds: float) -> None:
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


async def stop_producer(producer: AIOKafkaProducer, seconds: float) -> None:
    """Stop a producer, for `seconds` and a little, whatever its sender waits for.

    The `stop` of aiokafka waits for the sender, and that for a broker. Cut off there, it leaves the sender to
    run, which connects again when the broker is back, and closes nothing. There is no public name for it.
    """
    await stop_quietly(producer.stop(), seconds)
    await stop_quietly(ended(getattr(getattr(producer, "_sender", None), "sender_task", None)), 5.0)
    await stop_quietly(producer.client.close(), 1.0)
