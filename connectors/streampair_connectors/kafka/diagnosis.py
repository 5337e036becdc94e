"""Why a broker cannot be reached: the client gives up on each server and keeps the reason to itself."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Any

from aiokafka import errors as kafka_errors
from aiokafka.conn import create_conn
from aiokafka.protocol.metadata import MetadataRequest

from streampair.errors import SourceError

if TYPE_CHECKING:
    from streampair_connectors.config import KafkaConfig

__all__ = ["diagnose"]

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
    if isinstance(error, ConnectionRefusedError):
        return None
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
