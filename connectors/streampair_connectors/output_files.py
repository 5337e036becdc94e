"""Files that a command writes: never one that it reads, and under their names only when they are complete."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic

from streampair.errors import ConfigError, SourceError
from streampair_connectors.config import Config

__all__ = ["OutputFile", "check_no_stream", "check_outputs", "files_of", "is_stream", "write_file"]

Files = Mapping[str, str | Path | None]
"""Paths by what the command line or the configuration calls them. "-" is standard input, or output."""


def check_outputs(outputs: Files, inputs: Files) -> None:
    """Refuse a file to write that is also read, or that another output writes too. Opens nothing.

    Files are compared by device and inode, so that links and other spellings of a path are found.

    Raises
    ------
    ConfigError
        One is.
    """
    used = {
        identity: f"{what}, which is read" for what, path in inputs.items() for identity in _identities(path)
    }
    for what, path in outputs.items():
        found = list(_identities(path, output=True))
        other = next((used[identity] for identity in found if identity in used), None)
        if other is not None:
            raise ConfigError(
                f"{what if is_stream(path) else f'{what} {path}'} is the same file as {other}",
                fix="give each file that is written a path of its own",
            )
        if path is None or not _is_direct(Path(path)):
            used |= dict.fromkeys(found, f"that of {what}")


def files_of(config: Config) -> dict[str, Path]:
    """The files of a configuration by their keys, and its own."""

    def named(table: pydantic.BaseModel, prefix: str) -> Iterator[tuple[str, Path]]:
        for name, value in table:
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, Path):
                    yield f"{prefix}{name}", each
                elif isinstance(each, pydantic.BaseModel):
                    yield from named(each, f"{prefix}{name}.")

    files = dict(named(config, ""))
    return files if config.file is None else {"the configuration": config.file, **files}


def _identities(path: str | Path | None, *, output: bool = False) -> Iterator[Hashable]:
    """What identifies a regular file: device and inode, or those of its folder and its name if it is new.

    `output`: the file is written, first as PATH.part.
    """
    if path is None:
        return
    with contextlib.suppress(OSError, ValueError):  # it is not there, or a stream of a test
        if is_stream(path):
            stream = sys.stdout if output else sys.stdin
            yield from _inode(os.fstat(stream.fileno()))
            return
        real = Path(os.path.realpath(path))
        for place in [real, _part(real)] if output and not _is_direct(Path(path)) else [real]:
            if os.path.lexists(place):
                yield from _inode(os.stat(place))
            else:
                folder = os.stat(place.parent)
                yield folder.st_dev, folder.st_ino, place.name


def _inode(status: os.stat_result) -> Iterator[Hashable]:
    if stat.S_ISREG(status.st_mode):
        yield status.st_dev, status.st_ino


def _part(real: Path) -> Path:
    """Where a file is until it is complete."""
    return real.with_name(f"{real.name}.part")


def _is_direct(path: Path) -> bool:
    """Whether a path is written to directly: a device, a pipe, or an open file of the process."""
    if str(path) in ("/dev/stdout", "/dev/stderr") or str(path).startswith(("/dev/fd/", "/proc/")):
        return True
    with contextlib.suppress(OSError):
        return not stat.S_ISREG(path.stat().st_mode)
    return False


class OutputFile:
    """A file that is written as PATH.part, and gets its name from `finish`.

    After an error, a crash or a kill the file that had the name is as it was, and PATH.part has what was
    written.

    Parameters
    ----------
    path
        A device or a pipe is written to directly. The file is created by `open`, else by the first `write`.
    secret
        Whether only its owner may read it, also where a file of its name has another mode.

    Raises
    ------
    SourceError
        By the methods: it cannot be written.
    """

    def __init__(self, path: Path, *, secret: bool = False) -> None:
        self.path = path
        self._secret = secret
        self._direct = _is_direct(path)
        self._real = Path(os.path.realpath(path))  # a link stays a link
        self._place = path if self._direct else _part(self._real)
        self._file: Any = None
        self.bytes = 0

    @property
    def unfinished(self) -> Path | None:
        """Where the lines are that were written; None: there are none, or the file has its name."""
        return self._place if self.bytes and not self._direct and self._file is not None else None

    def open(self) -> None:
        """Create the file."""
        with self._errors():
            if self._direct:
                self._file = self.path.open("wb")
                return
            self.forget()
            mode = 0o600 if self._secret else 0o666
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._place, flags, mode), "wb")

    def forget(self) -> None:
        """Remove what a run that has failed has left."""
        if not self._direct:
            with self._errors():
                self._place.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Write some bytes."""
        with self._errors():
            if self._file is None:
                self.open()
            self._file.write(data)
        self.bytes += len(data)

    def flush(self) -> None:
        """Let readers of a pipe have what was written."""
        with self._errors():
            self._file.flush()

    def finish(self) -> None:
        """Give the file its name, in place of the one that has it; without a file, do nothing."""
        if self._file is None:
            return
        with self._errors():
            self._file.flush()
            if not self._direct:
                self._replace()
            file, self._file = self._file, None
            file.close()

    def _replace(self) -> None:
        os.fsync(self._file.fileno())
        if not os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._place)):
            raise SourceError(
                f"{self._place} is no longer the file that was written: another process has replaced it",
                fix="give each command a path of its own",
                retriable=False,
            )
        with contextlib.suppress(FileNotFoundError):
            if not self._secret:
                os.fchmod(self._file.fileno(), stat.S_IMODE(self._real.stat().st_mode))
        self._place.replace(self._real)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise SourceError(
                f"{self.path} cannot be written: {error.strerror}",
                fix="choose another path, correct the permissions of its folder, or make room on its disk",
                retriable=False,
            ) from None

    def close(self) -> None:
        """Close the file without its name; an empty PATH.part is removed."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
                if not self.bytes and not self._direct:
                    self._place.unlink()


def is_stream(path: str | Path | None) -> bool:
    """Whether it is "-", standard output."""
    return str(path) == "-"


def check_no_stream(path: Path) -> None:
    """Refuse to write a secret to standard output.

    Raises
    ------
    ConfigError
        The path is "-".
    """
    if is_stream(path):
        raise ConfigError(
            "a secret is not written to standard output", fix="name a file that does not exist yet"
        )


def write_file(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Write a file, in place of the one that has its name; at an error that one stays as it was.

    "-" is standard output. A secret file is for its owner alone.

    Raises
    ------
    SourceError
        It cannot be written.
    """
    if is_stream(path):
        sys.stdout.buffer.write(data)
        return
    file = OutputFile(path, secret=secret)
    try:
        file.write(data)
        file.finish()
    finally:
        file.close()
