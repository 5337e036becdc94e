"""Where snapshots lie: an interface, and the directory store.

The directory store keeps one file per lane. A snapshot replaces the previous one at once or
not at all: it is written under a temporary name, flushed to the disk and renamed. A lock
held for as long as the lane is open keeps a second writer out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path
from typing import Protocol

from streampair.errors import StoreError

__all__ = ["DirectoryStore", "LaneStore", "Store"]


class LaneStore(Protocol):
    """The snapshots of one lane, held by one writer."""

    def load(self) -> bytes | None:
        """Return the last saved snapshot; None when there is none."""
        ...

    def save(self, data: bytes) -> None:
        """Make `data` the snapshot, durably, before returning."""
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


class DirectoryStore:
    """Snapshots as files of mode 0600 in a directory.

    Parameters
    ----------
    directory
        Made, with mode 0700, when it does not exist.

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

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
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
        self._temporary = directory / f"{name}.snapshot.new"
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
        if self._lock is None:
            raise StoreError(f"the state {self._path} is closed", fix="open the lane again before saving")
        try:
            _write_durably(self._temporary, data)
            os.replace(self._temporary, self._path)
            # Without this the rename itself may be lost with the power.
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._temporary.unlink()
            raise self._failure("written", error) from None

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)  # releases the lock
            self._lock = None

    def _failure(self, verb: str, error: OSError) -> StoreError:
        return StoreError(
            f"the state {self._path} cannot be {verb}: {error.strerror}",
            fix="check the directory's permissions and the free space of its disk",
        )


def _write_durably(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
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
