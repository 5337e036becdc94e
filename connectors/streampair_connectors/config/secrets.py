"""Secrets: read from a file or an environment variable that the configuration names."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import SecretStr

from streampair.errors import ConfigError
from streampair_connectors.config.permissions import check_private

__all__ = ["hex_key", "read_secret"]


def read_secret(what: str, file: Path | None, env: str | None) -> SecretStr | None:
    """Read a secret from the file or the environment variable that the configuration names.

    Raises
    ------
    ConfigError
        Both are named, the file cannot be read, others may read it too, or the value is empty. The message
        names the place, never the value.
    """
    if file is not None and env is not None:
        raise ConfigError(
            f"{what}_file and {what}_env are both set", fix="keep the one that holds the secret"
        )
    if file is not None:
        try:
            check_private(file, what)
            text = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError(
                f"the {what} file {file} cannot be read: {reason}",
                fix="check the path and its permissions",
            ) from None
        place = f"file {file}"
    elif env is not None:
        text = os.environ.get(env, "").strip()
        place = f"environment variable {env}"
    else:
        return None
    if not text:
        raise ConfigError(f"the {what} is empty: nothing in {place}", fix=f"put the {what} into {place}")
    return SecretStr(text)


def hex_key(what: str, secret: SecretStr) -> bytes:
    """Return the bytes of a secret that is written in hexadecimal digits.

    Raises
    ------
    ConfigError
        It is not, or is shorter than 32 bytes.
    """
    try:
        key = bytes.fromhex(secret.get_secret_value())
    except ValueError:
        key = b""
    if len(key) < 32:
        raise ConfigError(
            f"the {what} is not 64 or more hexadecimal digits",
            fix="make one with: openssl rand -hex 32",
        )
    return key
