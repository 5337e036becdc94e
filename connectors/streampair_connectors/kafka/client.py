"""What all clients share: options, errors, the shape of a record, and why a broker cannot be reached."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec
from aiokafka import AIOKafkaProducer, codec
from aiokafka import errors as kafka_errors
from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest

from streampair.errors import ConfigError, SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.config.permissions import check_private
from streampair_connectors.observability.logs import get_logger

if TYPE_CHECKING:
    from streampair_connectors.config import KafkaConfig

__all__ = [
    "FATAL",
    "Message",
    "Partition",
    "RecordLike",
    "check_codecs",
    "client_options",
    "diagnose",
    "ended",
    "log",
    "reach_error",
    "say",
    "stop_producer",
    "stop_quietly",
    "unbroken",
    "within",
]

_SECONDS = 5.0  # of one server
_Finding = tuple[str, str]  # what is wrong, and the fix

# OpenSSL's codes of a certificate that is not accepted (X509_V_ERR_...).
_EXPIRED, _NOT_YET, _HOST, _ADDRESS = 10, 9, 62, 64


async def diagnose(config: KafkaConfig, options: dict[str, Any]) -> SourceError | None:
    """Connect to each server by itself, and say why the first that listens refuses.

    Parameters
    ----------
    config
        How to reach the cluster.
    options
        Of the client, as `client_options` gives them.

    Returns
    -------
    SourceError or None
        None: nobody listens, or a server can be reached now.
    """
    options = {key: value for key, value in options.items() if key != "bootstrap_servers"}
    for server in config.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        name, host = server.strip(), host.strip("[]")
        try:
            await asyncio.wait_for(_ask(host, int(port), options), _SECONDS)
        except (OSError, kafka_errors.KafkaError, TimeoutError) as error:
            found = await _explained(config, error, host, int(port), name)
            if found is not None:
                return SourceError(found[0], fix=found[1], retriable=False)
        else:
            return None
    return None


async def _ask(host: str, port: int, options: dict[str, Any]) -> None:
    """Connect, authenticate, and ask for nothing: a broker closes on whoever should have authenticated."""
    connection = await create_conn(host, port, **options)
    try:
        await connection.send(MetadataRequest([]))
    finally:
        closed = connection.close()
        if closed is not None:
            await closed


async def _explained(
    config: KafkaConfig, error: BaseException, host: str, port: int, name: str
) -> _Finding | None:
    """What an error of one server means; None: nobody listens there, or it is not known."""
    causes = list(_causes(error))
    found = _refused(config, causes, host, name)
    if found is not None or isinstance(error, ConnectionRefusedError):
        return found
    tls = "SSL" in config.security_protocol
    if not tls and await _speaks_tls(host, port):
        return (
            f"{name} answers in TLS only, and kafka.security_protocol is {config.security_protocol}",
            f"set kafka.security_protocol to {'SASL_SSL' if 'SASL' in config.security_protocol else 'SSL'}, "
            "or name the broker's plain port",
        )
    closed = any(isinstance(cause, (ConnectionError, kafka_errors.KafkaConnectionError)) for cause in causes)
    if tls and closed and await _asks_for_a_certificate(host, port):
        return _client_certificate(config, name, "the broker closed the connection after the handshake")
    if tls and not await _speaks_tls(host, port) and await _listens(host, port):
        return _no_tls(config, name)
    if config.security_protocol == "PLAINTEXT" and closed and await _listens(host, port):
        return (
            f"{name} closes the connection of a client that does not authenticate",
            "set kafka.security_protocol to SASL_PLAINTEXT, with sasl_mechanism, username and password_file, "
            "or name the port without authentication",
        )
    return None


def _refused(config: KafkaConfig, causes: list[BaseException], host: str, name: str) -> _Finding | None:
    """What the causes of an error say of certificates, TLS and who may log in; None: nothing."""
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate(cause, host, name)
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return _handshake(config, cause, name)
        if isinstance(cause, kafka_errors.UnsupportedSaslMechanismError):
            return (
                f"{name} does not offer the SASL mechanism {config.sasl_mechanism}: {_line(cause)}",
                "set kafka.sasl_mechanism to one that the broker enables",
            )
        if isinstance(cause, (kafka_errors.SaslAuthenticationFailed, kafka_errors.AuthenticationFailedError)):
            return (
                f"{name} refuses user {config.username!r}: wrong password, or the user is unknown to "
                f"{config.sasl_mechanism}",
                "check kafka.username and the password in kafka.password_file or kafka.password_env, and "
                "that the user has credentials for this mechanism",
            )
    return None


def _causes(error: BaseException | None) -> Any:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _certificate(error: ssl.SSLCertVerificationError, host: str, name: str) -> _Finding:
    if error.verify_code == _EXPIRED:
        return f"the certificate of {name} has expired", "renew the certificate of the broker"
    if error.verify_code == _NOT_YET:
        return f"the certificate of {name} is not valid yet", "compare the clocks of this host and the broker"
    if error.verify_code in (_HOST, _ADDRESS):
        return (
            f"the certificate of {name} is for another host: {error.verify_message}",
            f"name the broker in kafka.bootstrap_servers as its certificate does, not {host!r}, or issue a "
            "certificate for this name",
        )
    return (
        f"the certificate of {name} is not trusted: {error.verify_message}",
        "set kafka.ssl_cafile to the certificate of the authority that signed it",
    )


def _handshake(config: KafkaConfig, error: ssl.SSLError, name: str) -> _Finding:
    reason = (error.reason or _line(error)).upper()
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason or "HTTP_REQUEST" in reason:
        return _no_tls(config, name)
    if "ALERT" in reason or "CERTIFICATE" in reason:
        return _client_certificate(config, name, reason.replace("_", " ").lower())
    return f"TLS to {name} fails: {_line(error)}", "compare the TLS settings of the broker with [kafka]"


def _no_tls(config: KafkaConfig, name: str) -> _Finding:
    plain = "SASL_PLAINTEXT" if "SASL" in config.security_protocol else "PLAINTEXT"
    return (
        f"{name} does not answer in TLS, and kafka.security_protocol is {config.security_protocol}",
        f"set kafka.security_protocol to {plain}, or name the port for TLS",
    )


def _client_certificate(config: KafkaConfig, name: str, why: str) -> _Finding:
    if config.ssl_certfile is None:
        return (
            f"{name} demands a client certificate ({why})",
            "set kafka.ssl_certfile and kafka.ssl_keyfile (mutual TLS)",
        )
    return (
        f"{name} does not accept the certificate in kafka.ssl_certfile ({why})",
        "use a certificate that is signed by an authority in the broker's trust store and has not expired",
    )


async def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError, TimeoutError):
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _SECONDS)
        await _close(writer)
        return True
    return False


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1.0)


def _any_certificate() -> ssl.SSLContext:
    """Only to see whether somebody speaks TLS: nothing is sent over such a connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _speaks_tls(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, ssl=_any_certificate()), _SECONDS
        )
    except (OSError, TimeoutError):
        return False
    await _close(writer)
    return True


async def _asks_for_a_certificate(host: str, port: int) -> bool:
    """Whether a TLS server ends a connection without a client certificate, before anything is sent."""
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, ssl=_any_certificate()), _SECONDS
        )
    except (OSError, TimeoutError):
        return False
    try:
        return await asyncio.wait_for(reader.read(1), 1.0) == b""
    except ssl.SSLError as error:
        return "CERTIFICATE" in (error.reason or "").upper()
    except (OSError, TimeoutError):
        return False
    finally:
        await _close(writer)


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
