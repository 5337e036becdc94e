"""Secrets: read from a file, or given by the environment; keys; checks of permissions.

Nobody but their owner must have access to key files and to the state directory, with one exception: a key
file that belongs to root may be readable by its group, as Kubernetes and Docker mount secrets for a process
that is not root (mode 0440, the group from `fsGroup`).
"""

from __future__ import annotations

import os
import secrets
import shlex
import stat
import string
from pathlib import Path

from pydantic import SecretStr

from streampair.errors import ConfigError, StoreError

__all__ = ["check_directory", "check_private", "draw_key", "hex_key", "read_secret", "sub_key"]


def read_secret(what: str, place: Path | SecretStr | None) -> SecretStr | None:
    """Read a secret from its file; one that the environment gave is returned as it is.

    Raises
    ------
    ConfigError
        The file cannot be read, others may read it too, or it is empty. The message names the place, never
        the value.
    """
    if not isinstance(place, Path):
        return place
    try:
        check_private(place, what)
        text = place.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        fix = "check the path and its permissions"
        if isinstance(error, FileNotFoundError) and what.endswith("key"):
            fix = f"correct the path; the first time, make one with: streampair key --output {_quoted(place)}"
        raise ConfigError(f"the {what} file {place} cannot be read: {reason}", fix=fix) from None
    if not text:
        raise ConfigError(
            f"the {what} is empty: nothing in file {place}", fix=f"put the {what} into file {place}"
        )
    return SecretStr(text)


def draw_key(file: Path) -> None:
    """Draw a key, and write it to a new file that only its owner may read.

    Raises
    ------
    ConfigError
        The file exists, or cannot be written.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            out.write(secrets.token_hex(32) + "\n")
            out.flush()
            os.fsync(out.fileno())
    except FileExistsError:
        raise ConfigError(
            f"{file} exists, and a key that is overwritten is lost with all that it protects",
            fix="name another file. To change store.key_file, put the new key into its first line, and keep "
            "the old ones below it",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}", fix="name a file in a directory that you may write"
        ) from None


def sub_key(key: bytes, purpose: str) -> bytes:
    """Derive the key of one purpose, from which neither `key` nor that of another purpose can be computed.

    Parameters
    ----------
    key
        At least 32 random bytes.
    purpose
        In words: "sealing".

    Returns
    -------
    bytes
        32 of them: HKDF-SHA256 with the purpose as its info, and without a salt, for `key` is random.

    Examples
    --------
    >>> sub_key(bytes(32), "sealing") == sub_key(bytes(32), "signing")
    False
    """
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=f"streampair {purpose}".encode()).derive(key)


def hex_key(what: str, secret: SecretStr) -> bytes:
    """Return the bytes of a secret that is written in hexadecimal digits.

    Raises
    ------
    ConfigError
        It is not, or is shorter than 32 bytes.
    """
    text = secret.get_secret_value()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) < 32:
        digits = sum(character in string.hexdigits for character in text)
        raise ConfigError(
            f"the {what} is not 64 or more hexadecimal digits: it has {digits} of them, and "
            f"{len(text) - digits} other characters",
            fix="make one with: streampair key --output FILE",
        )
    return key


def check_private(path: Path, what: str) -> None:
    """Refuse a key file that others than its owner may read or write. Links are followed.

    Parameters
    ----------
    path, what
        The file, and its content in words: "noise key".

    Raises
    ------
    ConfigError
        They may, and the message has the command that fixes it; or it is a directory.
    OSError
        The file cannot be looked at.
    """
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{path} is a directory, and no {what} file", fix="name the file")
    mode = stat.S_IMODE(status.st_mode)
    refused = _refused_bits(mode, owned_by_root=status.st_uid == 0)
    if not refused:
        return
    if status.st_uid == 0:
        remedy = f"chmod {0o600 | (mode & stat.S_IRGRP):o} {_quoted(path)}"
        remedy += (
            "; where it is mounted as a secret, mount it with mode 0440 (Kubernetes: defaultMode: 0440, and "
        )
        remedy += "fsGroup for a process that is not root)"
    else:
        remedy = f"chmod 600 {_quoted(path)}"
    raise ConfigError(
        f"the {what} file {path} has mode {mode:04o}: {_who(refused)} may {_may(refused)} it",
        fix=f"{remedy}. If they could have read it, make a new secret",
    )


def check_directory(path: Path) -> None:
    """Refuse a state directory that others than its owner may reach.

    Parameters
    ----------
    path
        An existing directory.

    Raises
    ------
    StoreError
        They may. The message has the command that fixes it.
    OSError
        The directory cannot be looked at.
    """
    mode = stat.S_IMODE(os.stat(path).st_mode)
    refused = mode & (stat.S_IRWXG | stat.S_IRWXO)
    if not refused:
        return
    remedy = f"chmod 700 {_quoted(path)}, or name a directory below it, which is made for its user alone"
    if not refused & stat.S_IRWXO:
        remedy += ". Kubernetes opens a volume to its fsGroup at each mount: with fsGroupChangePolicy: "
        remedy += "OnRootMismatch it leaves that directory as it is; or keep the state in Kafka"
    raise StoreError(
        f"the store directory {path} has mode {mode:04o}: {_who(refused)} may {_may(refused)} what is as "
        "sensitive as the data",
        fix=remedy,
    )


def _refused_bits(mode: int, *, owned_by_root: bool) -> int:
    """Return the bits of a key file's mode that are not allowed."""
    if owned_by_root:
        return mode & (stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP)
    return mode & (stat.S_IRWXO | stat.S_IRWXG)


def _who(bits: int) -> str:
    return "every user of this machine" if bits & stat.S_IRWXO else "its group"


def _may(bits: int) -> str:
    # Others before the group: `_who` names them first.
    bits = bits & stat.S_IRWXO or bits >> 3 & stat.S_IRWXO
    words = [word for bit, word in ((4, "read"), (2, "change"), (1, "reach")) if bits & bit]
    return " and ".join(words)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
