"""Shared by all Kafka clients: options, errors, record types, and the diagnosis of a failed connection.

There is one diagnosis, `diagnose`: `within` asks it at a start, and `worker.sessions.ConnectionWatch` while a
worker, a scorer or a server runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import aiohappyeyeballs
import msgspec
from aiokafka import AIOKafkaProducer, codec, conn
from aiokafka import errors as kafka_errors
from aiokafka.conn import create_conn
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.metadata import MetadataRequest

from streampair.errors import ConfigError, SourceError
from streampair_connectors.config import KafkaConfig
from streampair_connectors.config.secrets import check_private
from streampair_connectors.kafka.oauth import TokenError, token_provider
from streampair_connectors.observability.logs import get_logger

__all__ = [
    "FATAL",
    "ID_PREFIX",
    "AccessError",
    "CredentialsError",
    "Message",
    "Partition",
    "RecordLike",
    "check_codecs",
    "client_options",
    "diagnose",
    "ended",
    "log",
    "one_line",
    "reach_error",
    "scorer_id",
    "shielded",
    "stop_producer",
    "stop_quietly",
    "transactional_id",
    "within",
]

ID_PREFIX: Final = "streampair-"
"""Begins every transactional id."""

_SECONDS = 5.0  # per server
_NEXT_ADDRESS_SECONDS = 0.25  # until the next address of a name is tried, while one does not answer
# By the type of a coordinator: groups, then transactions.
_INTERNAL = {
    "groups": ("__consumer_offsets", "offsets.topic.replication.factor"),
    "transactions": ("__transaction_state", "transaction.state.log.replication.factor"),
}
_NAME = f"{ID_PREFIX}diagnosis"
_Finding = tuple[str, str]  # problem and fix

# OpenSSL's codes for a rejected certificate (X509_V_ERR_...).
_EXPIRED, _NOT_YET, _HOST, _ADDRESS = 10, 9, 62, 64


class AccessError(SourceError):
    """A broker listens, and refuses this client: its TLS settings, certificate, password or token.

    A running service waits until they are mended: they are rotated on both sides, one after the other.
    """

    retriable = False


class CredentialsError(ConfigError):
    """A password or certificate cannot be read. A running service waits: perhaps it is being replaced."""


async def diagnose(config: KafkaConfig) -> SourceError | None:
    """Connect to each server in turn, with passwords, certificates and tokens as they are now.

    Parameters
    ----------
    config
        How to reach the cluster.

    Returns
    -------
    SourceError or None
        An `AccessError`, that no broker answers, or that the cluster has no coordinator. None: a new client
        can work.

    Raises
    ------
    CredentialsError
        A file cannot be read.
    """
    token_provider.cache_clear()
    options = client_options(config)
    del options["bootstrap_servers"]
    for server in config.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        name, host = server.strip(), host.strip("[]")
        try:
            lacking = await asyncio.wait_for(_probe(host, int(port), options), _SECONDS)
        except (OSError, kafka_errors.KafkaError, TimeoutError) as error:
            found = await _explain(config, error, host, int(port), name)
            if found is not None:
                waits = any(isinstance(cause, TokenError) and cause.again for cause in _causes(error))
                return AccessError(found[0], fix=found[1], retriable=waits)
        else:
            return None if lacking is None else _no_coordinator(name, lacking)
    return _nobody(config)


def _no_coordinator(name: str, kind: str) -> SourceError:
    topic, factor = _INTERNAL[kind]
    return SourceError(
        f"{name} answers, and the cluster has no coordinator of {kind}: {topic} has no leader, or cannot be "
        f"created because fewer brokers run than {factor} says",
        fix=f"start the brokers that are away; on a cluster that is to have fewer, lower {factor}",
    )


def _nobody(config: KafkaConfig) -> SourceError:
    return SourceError(
        f"no Kafka broker answers at {config.bootstrap_servers}",
        fix="start the broker, or correct kafka.bootstrap_servers",
    )


async def _probe(host: str, port: int, options: dict[str, Any]) -> str | None:
    """Connect, authenticate and send an empty request, which a broker refuses without authentication.

    Returns the kind of coordinator that the cluster lacks; None: none.
    """
    connection = await create_conn(host, port, **options)
    try:
        answer = await connection.send(MetadataRequest([]))
        if options.get("sasl_mechanism") == "OAUTHBEARER" and getattr(answer, "cluster_id", "") is None:
            # The client takes the broker's challenge for success, and this request for the answer to it.
            raise kafka_errors.AuthenticationFailedError
        for number, kind in enumerate(_INTERNAL):
            found = await connection.send(FindCoordinatorRequest(_NAME, number))
            if found.error_code == kafka_errors.GroupCoordinatorNotAvailableError.errno:
                return kind
        return None
    finally:
        closed = connection.close()
        if closed is not None:
            await closed


async def _connect(host: str, port: int) -> socket.socket:
    """Connect to a name; its next address is tried soon, not after a time-out.

    The loop's own `happy_eyeballs_delay` loses the socket of an attempt that is cancelled while it succeeds.
    """
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS)


class _AllAddresses:
    """An event loop whose connections try all addresses of a name."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, *, ssl: ssl.SSLContext | None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        name = None if ssl is None else host
        return await self._loop.create_connection(
            factory, sock=await _connect(host, port), ssl=ssl, server_hostname=name
        )


class _Connection(conn.AIOKafkaConnection):  # type: ignore[misc]  # untyped base
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._loop: Any = _AllAddresses(asyncio.get_running_loop())


conn.AIOKafkaConnection = _Connection  # what `create_conn` makes, for every client


async def _explain(
    config: KafkaConfig, error: BaseException, host: str, port: int, name: str
) -> _Finding | None:
    """Explain an error of one server; None: it does not listen, or the cause is unknown."""
    causes = list(_causes(error))
    found = _explain_causes(config, causes, host, name)
    if found is not None or isinstance(error, ConnectionRefusedError):
        return found
    tls = "SSL" in config.security_protocol
    if not tls and await _speaks_tls(host, port):
        return (
            f"{name} requires TLS, but kafka.security_protocol is {config.security_protocol}",
            f"set kafka.security_protocol to {'SASL_SSL' if 'SASL' in config.security_protocol else 'SSL'}, "
            "or use the broker's plaintext port",
        )
    closed = any(isinstance(cause, (ConnectionError, kafka_errors.KafkaConnectionError)) for cause in causes)
    if tls and closed and await _requires_client_certificate(host, port):
        return _client_certificate_error(config, name, "the broker closed the connection after the handshake")
    if tls and not await _speaks_tls(host, port) and await _listens(host, port):
        return _no_tls_error(config, name)
    if config.security_protocol == "PLAINTEXT" and closed and await _listens(host, port):
        return (
            f"{name} closes the connection of a client that does not authenticate",
            "set kafka.security_protocol to SASL_PLAINTEXT, with sasl_mechanism, username and password_file, "
            "or use the port without authentication",
        )
    return None


def _explain_causes(
    config: KafkaConfig, causes: list[BaseException], host: str, name: str
) -> _Finding | None:
    """Explain errors of certificates, TLS and authentication; None: the error is another one."""
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate_error(cause, host, name)
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return _handshake_error(config, cause, name)
        if isinstance(cause, kafka_errors.UnsupportedSaslMechanismError):
            return (
                f"{name} does not offer the SASL mechanism {config.sasl_mechanism}: {_line(cause)}",
                "set kafka.sasl_mechanism to one that the broker enables",
            )
        if isinstance(cause, TokenError):
            return cause.problem, cause.fix
        if isinstance(cause, (kafka_errors.SaslAuthenticationFailed, kafka_errors.AuthenticationFailedError)):
            if config.sasl_mechanism == "OAUTHBEARER":
                return (
                    f"{name} refuses the token of OAUTHBEARER",
                    "check its expiry, audience and scope, and that the broker trusts its issuer",
                )
            return (
                f"{name} refuses user {config.username!r}: wrong password, or the user is unknown to "
                f"{config.sasl_mechanism}",
                "check kafka.username and the password in kafka.password_file, and "
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


def _certificate_error(error: ssl.SSLCertVerificationError, host: str, name: str) -> _Finding:
    if error.verify_code == _EXPIRED:
        return f"the certificate of {name} has expired", "renew the certificate of the broker"
    if error.verify_code == _NOT_YET:
        return f"the certificate of {name} is not valid yet", "compare the clocks of this host and the broker"
    if error.verify_code in (_HOST, _ADDRESS):
        return (
            f"the certificate of {name} is for another host: {error.verify_message}",
            f"write the name in the certificate into kafka.bootstrap_servers, not {host!r}, or issue a "
            "certificate for this name",
        )
    return (
        f"the certificate of {name} is not trusted: {error.verify_message}",
        "set kafka.ssl_cafile to the certificate of the authority that signed it",
    )


def _handshake_error(config: KafkaConfig, error: ssl.SSLError, name: str) -> _Finding:
    reason = (error.reason or _line(error)).upper()
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason or "HTTP_REQUEST" in reason:
        return _no_tls_error(config, name)
    if "ALERT" in reason or "CERTIFICATE" in reason:
        return _client_certificate_error(config, name, reason.replace("_", " ").lower())
    return f"TLS to {name} fails: {_line(error)}", "compare the TLS settings of the broker with [kafka]"


def _no_tls_error(config: KafkaConfig, name: str) -> _Finding:
    plain = "SASL_PLAINTEXT" if "SASL" in config.security_protocol else "PLAINTEXT"
    return (
        f"{name} does not speak TLS, but kafka.security_protocol is {config.security_protocol}",
        f"set kafka.security_protocol to {plain}, or use the port for TLS",
    )


def _client_certificate_error(config: KafkaConfig, name: str, why: str) -> _Finding:
    if config.ssl_certfile is None:
        return (
            f"{name} demands a client certificate ({why})",
            "set kafka.ssl_certfile and kafka.ssl_keyfile (mutual TLS)",
        )
    return (
        f"{name} does not accept the certificate in kafka.ssl_certfile ({why})",
        "use a certificate that is signed by an authority in the broker's trust store and has not expired",
    )


async def _open(
    host: str, port: int, ssl: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    name = None if ssl is None else host
    return await asyncio.open_connection(sock=await _connect(host, port), ssl=ssl, server_hostname=name)


async def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError, TimeoutError):
        _, writer = await asyncio.wait_for(_open(host, port), _SECONDS)
        await _close(writer)
        return True
    return False


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1.0)


def _unverified_context() -> ssl.SSLContext:
    """Context without verification, to test whether a server speaks TLS; nothing is sent over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _speaks_tls(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(_open(host, port, ssl=_unverified_context()), _SECONDS)
    except (OSError, TimeoutError):
        return False
    await _close(writer)
    return True


async def _requires_client_certificate(host: str, port: int) -> bool:
    """Whether a TLS server closes a connection without a client certificate, before any request."""
    try:
        reader, writer = await asyncio.wait_for(_open(host, port, ssl=_unverified_context()), _SECONDS)
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

# One logger for the whole package.
log = get_logger("streampair_connectors.kafka")

# Not retriable, with the fix.
FATAL: dict[type[BaseException], str] = {
    kafka_errors.TopicAuthorizationFailedError: "allow this user to use the topic",
    kafka_errors.GroupAuthorizationFailedError: "allow this user to use the consumer group",
    kafka_errors.ClusterAuthorizationFailedError: "allow this user idempotent writes on the cluster",
    kafka_errors.TransactionalIdAuthorizationFailed: "allow this user Write and Describe on transactional "
    "ids that begin with streampair- (kafka-acls.sh --add --operation Write --operation Describe "
    "--transactional-id streampair- --resource-pattern-type prefixed)",
    kafka_errors.InvalidTransactionTimeout: "increase transaction.max.timeout.ms of the "
    "brokers, or lower the transaction time-out",
    kafka_errors.AuthenticationFailedError: "check kafka.username and its password",
    kafka_errors.MessageSizeTooLargeError: "increase max.message.bytes of the topic, "
    "or decrease output.max_message_bytes",
    kafka_errors.InvalidTimestampError: "set message.timestamp.type=LogAppendTime on the topic, "
    "or increase its message.timestamp.before.max.ms",
    kafka_errors.InvalidTopicError: "use a valid topic name",
    kafka_errors.UnsupportedVersionError: "use Apache Kafka 2.1 or newer",
    kafka_errors.UnsupportedCodecError: "install the package that reads snappy, lz4 and zstd: "
    "pip install cramjam",
    kafka_errors.InconsistentGroupProtocolError: "use another app name: "
    "this consumer group belongs to another kind of client",
}
# Errors of the client when no broker answers.
_UNREACHABLE = (
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
    """A record of the client; lanes use it as their raw record."""

    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


class Message(msgspec.Struct, frozen=True, gc=False):
    """A record to send. A struct, since one is created per event: a named tuple costs four times as much.

    Not tracked by the garbage collector: thousands may wait for a commit.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None = None
    timestamp: int | None = None
    """Milliseconds since the epoch; None: when it is sent."""


def size_of(messages: Sequence[Message]) -> int:
    """Bytes of all keys and values."""
    values, keys = [m.value for m in messages], [m.key for m in messages]
    return sum(map(len, filter(None, values))) + sum(map(len, filter(None, keys)))


def client_options(config: KafkaConfig) -> dict[str, Any]:
    """Options of every client: brokers, TLS and authentication."""
    options: dict[str, Any] = {
        "bootstrap_servers": config.bootstrap_servers,
        "security_protocol": config.security_protocol,
        # As long as a session: a broker that is silent is given up when the group would give a worker up.
        "request_timeout_ms": 10_000,
    }
    try:
        return options | _tls_options(config) | _sasl_options(config)
    except ConfigError as error:
        raise CredentialsError(error.problem, fix=error.fix) from None


def _tls_options(config: KafkaConfig) -> dict[str, Any]:
    if "SSL" not in config.security_protocol:
        return {}
    try:
        context = ssl.create_default_context(
            cafile=None if config.ssl_cafile is None else str(config.ssl_cafile)
        )
        if config.ssl_certfile is not None:
            # Without ssl_keyfile the certificate file contains the key.
            check_private(config.ssl_keyfile or config.ssl_certfile, "TLS key")
            context.load_cert_chain(
                str(config.ssl_certfile),
                None if config.ssl_keyfile is None else str(config.ssl_keyfile),
                password="",  # not None: OpenSSL would prompt for one
            )
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificates of [kafka] cannot be loaded: {error}",
            fix="check ssl_cafile, ssl_certfile and ssl_keyfile; an encrypted key has to be decrypted: "
            "openssl pkey -in ENCRYPTED -out KEY",
        ) from None
    return {"ssl_context": context}


def _sasl_options(config: KafkaConfig) -> dict[str, Any]:
    if not config.security_protocol.startswith("SASL"):
        return {}
    if config.sasl_mechanism == "OAUTHBEARER":
        return {
            "sasl_mechanism": config.sasl_mechanism,
            "sasl_oauth_token_provider": token_provider(config),
        }
    password = config.password()
    return {
        "sasl_mechanism": config.sasl_mechanism,
        "sasl_plain_username": config.username,
        "sasl_plain_password": None if password is None else password.get_secret_value(),
    }


def check_codecs() -> list[str]:
    """Compress and decompress a text with each codec of Kafka, and return their names.

    Raises
    ------
    SourceError
        A codec cannot be used: a compressed batch would stop the worker.
    """
    text, failed = b"streampair " * 100, []
    codecs = {
        "gzip": (codec.gzip_encode, codec.gzip_decode),
        "snappy": (codec.snappy_encode, codec.snappy_decode),
        "lz4": (codec.lz4_encode, codec.lz4_decode),
        "zstd": (codec.zstd_encode, codec.zstd_decode),
    }
    for name, (compress, decompress) in codecs.items():
        try:
            if bytes(decompress(compress(text))) != text:
                failed.append(f"{name} (the text is changed)")
        except Exception as error:  # any error of a codec would stop the worker
            failed.append(f"{name} ({one_line(error)})")
    if failed:
        raise SourceError(
            f"records compressed with {', '.join(failed)} cannot be read",
            fix=FATAL[kafka_errors.UnsupportedCodecError],
            retriable=False,
        )
    return list(codecs)


def reach_error(config: KafkaConfig, error: BaseException) -> SourceError:
    """Translate an error of the client, with a fix and whether a retry can help."""
    for kind, fix in FATAL.items():
        if isinstance(error, kind):
            return SourceError(f"Kafka refuses: {one_line(error)}", fix=fix, retriable=False)
    if isinstance(error, kafka_errors.GroupCoordinatorNotAvailableError):
        return _no_coordinator(config.bootstrap_servers, "groups")
    if isinstance(error, kafka_errors.KafkaError) and not isinstance(error, _UNREACHABLE):
        return SourceError(
            f"Kafka at {config.bootstrap_servers} fails: {one_line(error)}",
            fix="read the broker's log; the worker can be restarted at any time",
        )
    return _nobody(config)


def one_line(error: BaseException) -> str:
    """An error as one line of limited length, for logs."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 300 else text[:300] + "..."


async def within(config: KafkaConfig, work: Awaitable[Any]) -> Any:
    """Await `work` for at most `connect_timeout`; every failure becomes a SourceError."""
    try:
        return await asyncio.wait_for(shielded(work), config.connect_timeout.seconds)
    except (kafka_errors.KafkaError, OSError, TimeoutError, AssertionError) as error:
        # The client raises AssertionError when no broker is known, as right after a broker's start.
        found = reach_error(config, error)
        asks = *_UNREACHABLE, kafka_errors.GroupCoordinatorNotAvailableError
        if found.retriable and (isinstance(error, asks) or not isinstance(error, kafka_errors.KafkaError)):
            found = await diagnose(config) or _unanswered(config, error)
        raise found from None


def _unanswered(config: KafkaConfig, error: BaseException) -> SourceError:
    """The error where a new client reaches a broker."""
    return SourceError(
        f"Kafka at {config.bootstrap_servers} answers, and has not done what was asked within "
        f"{config.connect_timeout}: {one_line(error)}",
        fix="look whether brokers are away or overloaded; or raise kafka.connect_timeout",
    )


async def shielded(work: Awaitable[_T]) -> _T:
    """Await `work`; on cancellation give it a second to finish.

    aiokafka never closes a connection whose creation was cancelled.
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
            task.exception()  # mark it as retrieved


async def ended(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks until they have ended: `wait_for` may swallow a cancellation that comes as it ends."""
    pending = [task for task in tasks if task is not None]
    while running := [task for task in pending if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=2.0)
    for task in pending:
        if not task.cancelled():
            task.exception()  # mark it as retrieved


async def stop_quietly(stop: Awaitable[None], seconds: float) -> None:
    """Stop a client, for at most `seconds`.

    aiokafka's `stop` waits forever for a broker that is away, and leaks the cancellation of its own tasks. So
    it runs in a separate task, which is abandoned after `seconds`.
    """
    task = asyncio.ensure_future(stop)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=1.0)
    if task.done() and not task.cancelled() and task.exception() is not None:
        log.debug("client_stop_failed", error=repr(task.exception()))


async def stop_producer(producer: AIOKafkaProducer, seconds: float) -> None:
    """Stop a producer within a bounded time, even if its sender waits for a broker.

    aiokafka's `stop` waits for the sender task, which waits for a broker. When `stop` is cancelled, the
    sender keeps running and reconnects when the broker is back. The task has no public name.
    """
    await stop_quietly(producer.stop(), seconds)
    await stop_quietly(ended(getattr(getattr(producer, "_sender", None), "sender_task", None)), 5.0)
    await stop_quietly(producer.client.close(), 1.0)


def transactional_id(app: str, topic: str, partition: int) -> str:
    """Return the transactional id of a lane.

    The parts are hashed with their lengths, so that `a-b`, `c` differs from `a`, `b-c`.
    """
    return _hashed(app, topic, str(partition))


def scorer_id(app: str, topic: str, process: str) -> str:
    """Return the transactional id of a process that scores; `process` is unique, and of this run only."""
    return _hashed(app, topic, "scorer", process)


def _hashed(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return f"{ID_PREFIX}{digest.hexdigest()[:40]}"
