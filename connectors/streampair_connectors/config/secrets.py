"""Secrets: read from a file or an environment variable that the configuration names; checks of permissions.

*Others* must have no access to key files and to the state directory. Neither must the group, with two
exceptions: a key file that belongs to root may be readable by its group, as Kubernetes and Docker mount
secrets for a process that is not root (mode 0440, the group from `fsGroup`); and a directory may be
accessible to its group with `store.group_access`.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from pydantic import SecretStr

from streampair.errors import ConfigError, StoreError

__all__ = ["check_directory", "check_private", "hex_key", "read_secret"]


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
            text = file.read_text(encoding="utf-8-sig").strip()
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


def check_private(path: Path, what: str, *, group: bool = False) -> None:
    """Refuse a key file that others than its owner may read or write. Links are followed.

    Parameters
    ----------
    path, what
        The file, and its content in words: "noise key".
    group
        Whether its group may have access, whoever owns it: for files in a directory with
        `store.group_access`.

    Raises
    ------
    ConfigError
        They may. The message has the command that fixes it.
    OSError
        The file cannot be looked at.
    """
    status = os.stat(path)
    mode = stat.S_IMODE(status.st_mode)
    refused = _refused_bits(mode, owned_by_root=status.st_uid == 0, group=group)
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


def check_directory(path: Path, *, group: bool = False) -> None:
    """Refuse a state directory that others than its owner may reach.

    Parameters
    ----------
    path
        An existing directory.
    group
        Whether its group may (`store.group_access`).

    Raises
    ------
    StoreError
        They may. The message has the command that fixes it.
    OSError
        The directory cannot be looked at.
    """
    mode = stat.S_IMODE(os.stat(path).st_mode)
    refused = mode & (stat.S_IRWXO if group else stat.S_IRWXG | stat.S_IRWXO)
    if not refused:
        return
    keep = "2770" if group and mode & stat.S_ISGID else "770" if group else "700"
    remedy = f"chmod {keep} {_quoted(path)}, or name a directory below it, which is made for its user alone"
    if not refused & stat.S_IRWXO:
        remedy += ". Where its group has to reach it (Kubernetes' fsGroup), set store.group_access = true"
    raise StoreError(
        f"the store directory {path} has mode {mode:04o}: {_who(refused)} may {_may(refused)} what is as "
        "sensitive as the data",
        fix=remedy,
    )


def _refused_bits(mode: int, *, owned_by_root: bool, group: bool) -> int:
    """Return the bits of a key file's mode that are not allowed."""
    if group:
        return mode & stat.S_IRWXO
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
