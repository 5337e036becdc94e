"""Options of the server: address, secrets and limits."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import NamedTuple

from streampair.errors import ConfigError
from streampair_connectors.config.secrets import check_private, read_secret

__all__ = ["ServeOptions", "read_tls", "read_tokens"]


class ServeOptions(NamedTuple):
    """Options of the server.

    Attributes
    ----------
    name
        Of the model, in answers and in the addresses of the Open Inference Protocol.
    host, port
        Address; port 0 takes a free one.
    token_file
        Bearer tokens, one a line. None: everybody may ask.
    tls_cert, tls_key
        Certificate chain and key, in PEM. None: plain HTTP.
    reuse_port
        Whether other processes may listen on the same port (SO_REUSEPORT).
    max_body_bytes
        Of a request.
    max_requests
        Requests that it answers at a time.
    timeout_seconds
        For a body to arrive.
    max_model_age
        Milliseconds from the newest record of the model until the server is not ready. None: no limit.
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 8080
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    reuse_port: bool = False
    max_body_bytes: int = 1_048_576
    max_requests: int = 256
    timeout_seconds: float = 10.0
    max_model_age: int | None = None


def read_tokens(file: Path | None) -> list[bytes]:
    """The SHA-256 of each token of a file; empty without one.

    Raises
    ------
    ConfigError
        The file cannot be read, others may read it, or a token is shorter than 16 characters.
    """
    secret = read_secret("token", file)
    tokens = [] if secret is None else secret.get_secret_value().split()
    if any(len(token) < 16 for token in tokens):
        raise ConfigError(
            f"a token in {file} has fewer than 16 characters", fix="make one with: openssl rand -hex 32"
        )
    return [hashlib.sha256(token.encode()).digest() for token in tokens]


def read_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The TLS context of a certificate and its key; None: plain HTTP.

    Raises
    ------
    ConfigError
        One of them is missing, cannot be read, or they do not fit.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("TLS needs a certificate and its key", fix="give both --tls-cert and --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        check_private(key, "TLS key")
        # The answer to a passphrase: without it OpenSSL would ask at the terminal.
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        raise ConfigError(
            f"the certificate {cert} and the key {key} cannot be used: {error.reason or error}",
            fix="give the chain, the server's own certificate first, and its key without passphrase, as PEM",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the certificate {cert} or the key {key} cannot be read: {error.strerror}",
            fix="check the paths and their permissions",
        ) from None
    return context
