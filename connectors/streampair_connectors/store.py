"""Where snapshots lie: an interface, and the directory store.

The directory store keeps one file per lane. A snapshot replaces the previous one at once or
not at all: it is written under a temporary name, flushed to the disk and renamed. A lock
held for as long as the lane is open keeps a second writer out. Beside the snapshot of a private
lane lies its journal, which says what has been released since (docs/privacy.md 8): put both back from a
backup, or neither.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from pathlib import Path
from typing import Protocol

from streampair.engine import LaneJournal
from streampair.errors import StoreError
from streampair_connectors.permissions import check_directory

__all__ = ["DirectoryStore", "LaneStore", "Store"]


class LaneStore(Protocol):
    """The snapshots of one lane, held by one writer."""

    def load(self) -> bytes | None:
        """Return the last saved snapshot; None when there is none."""
        ...

    def save(self, data: bytes) -> None:
        """Make `data` the snapshot, durably, before returning."""
        ...

    def journal(self) -> LaneJournal:
        """Return the journal beside the snapshot."""
        ...

    def close(self) -> None:
        """Let another writer in. Closing twice is harmless."""
        ...


class Store(Protocol):
    """Opens the snapshots of lanes."""

    def open(self, lane_id: str) -> LaneStore:
        """Return the lane's store, locked for this writer.

        Raises
        ------
        StoreError
            It cannot be reached, or another writer holds it (then `retriable`).
        """
        ...

    def secret(self, name: str) -> bytes:
        """Return 32 random bytes that are kept under this name; made when first asked for."""
        ...


class DirectoryStore:
    """Snapshots as files of mode 0600 in a directory.

    Parameters
    ----------
    directory
        Made, with mode 0700, when it does not exist.
    group_access
        Whether its group may reach it.

    Raises
    ------
    StoreError
        It cannot be made, or others than its owner may reach it.

    Examples
    --------
    >>> import tempfile
    >>> lane = DirectoryStore(Path(tempfile.mkdtemp())).open("fraud-payments-0")
    >>> lane.load() is None
    True
    >>> lane.save(b"state")
    >>> lane.load()
    b'state'
    >>> lane.close()
    """

    def __init__(self, directory: Path, *, group_access: bool = False) -> None:
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_directory(directory, group=group_access)
        except OSError as error:
            raise StoreError(
                f"the store directory {directory} cannot be made: {error.strerror}",
                fix="set store.directory to a directory that this user may write",
            ) from None

    def open(self, lane_id: str) -> LaneStore:
        """Lock and return the snapshots of one lane."""
        # Topic and application names are safe in a file name; anything else is not trusted to be.
        name = re.sub(r"[^A-Za-z0-9._-]", "_", lane_id)
        return _DirectoryLane(self._directory, name)

    def secret(self, name: str) -> bytes:
        """Return 32 random bytes that are kept in a file of mode 0600; made when first asked for.

        Raises
        ------
        StoreError
            The file cannot be read or written, or holds something else.
        """
        path = self._directory / re.sub(r"[^A-Za-z0-9._-]", "_", name)
        try:
            if not path.exists():
                made = path.with_name(f".{path.name}-{os.getpid()}")
                _write_durably(made, secrets.token_hex(32).encode() + b"\n")
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.link(made, path)
                made.unlink()
                _flush(self._directory)
            secret = bytes.fromhex(path.read_text("ascii").strip())
        except OSError as error:
            raise StoreError(
                f"the secret {path} cannot be kept: {error.strerror}",
                fix="check the directory's permissions and the free space of its disk",
            ) from None
        except ValueError:
            secret = b""
        if len(secret) < 32:
            raise StoreError(
                f"the secret {path} is not 64 hexadecimal digits",
                fix="put the file back from a backup",
            )
        return secret

    def probe(self) -> None:
        """Write, flush and remove a file.

        Raises
        ------
        StoreError
            The directory cannot be written.
        """
        path = self._directory / f".probe-{os.getpid()}"
        try:
            _write_durably(path, b"probe")
            path.unlink()
        except OSError as error:
            raise StoreError(
                f"the store directory {self._directory} cannot be written: {error.strerror}",
                fix="give this user write permission, free some space, or set store.directory",
            ) from None


class _DirectoryLane:
    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._path = directory / f"{name}.snapshot"
        self._journal = directory / f"{name}.journal"
        self._lock: int | None = None
        lock_path = directory / f"{name}.lock"
        try:
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failure("opened", error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise StoreError(
                f"another process holds the state {self._path}",
                fix="stop the other worker of this application on this directory, or give each "
                "its own store.directory",
                retriable=True,
            ) from None
        self._lock = descriptor

    def load(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure("read", error) from None

    def save(self, data: bytes) -> None:
        self._check_open()
        try:
            _replace(self._path, data)
        except OSError as error:
            raise self._failure("written", error) from None

    def journal(self) -> LaneJournal:
        return _DirectoryJournal(self, self._journal)

    def _check_open(self) -> None:
        if self._lock is None:
            raise StoreError(f"the state {self._path} is closed", fix="open the lane again before saving")

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)  # releases the lock
            self._lock = None

    def _failure(self, verb: str, error: OSError) -> StoreError:
        return StoreError(
            f"the state {self._path} cannot be {verb}: {error.strerror}",
            fix="check the directory's permissions and the free space of its disk",
        )


class _DirectoryJournal:
    def __init__(self, lane: _DirectoryLane, path: Path) -> None:
        self._lane = lane
        self._path = path

    def read(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._lane._failure("read", error) from None

    def append(self, data: bytes) -> None:
        self._lane._check_open()
        try:
            _write_durably(self._path, data, os.O_APPEND)
        except OSError as error:
            raise self._lane._failure("written", error) from None

    def restart(self, data: bytes) -> None:
        self._lane._check_open()
        try:
            _replace(self._path, data)
        except OSError as error:
            raise self._lane._failure("written", error) from None


def _replace(path: Path, data: bytes) -> None:
    """Put `data` in the place of the file, durably: at once, or not at all."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        _write_durably(temporary, data, os.O_CREAT | os.O_TRUNC)
        os.replace(temporary, path)
        # Without this the rename itself may be lost with the power.
        _flush(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_durably(path: Path, data: bytes, flags: int = os.O_CREAT | os.O_TRUNC) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_within(store: Store, lane_id: str, seconds: float) -> LaneStore:
    """Open a lane, waiting for a previous owner in this process or another to let go.

    Raises
    ------
    StoreError
        It is still held after `seconds`, or the store failed.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return store.open(lane_id)
        except StoreError as error:
            if not error.retriable or time.monotonic() >= deadline:
                raise
        time.sleep(0.05)
