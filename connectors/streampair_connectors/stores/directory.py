"""The directory store: an append-only log and one snapshot per lane, on the disk of one machine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from streampair.engine import Commit, LogAppend, UnusableLogError
from streampair.engine.snapshot import OR_ANEW
from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError, StoreError
from streampair_connectors.config import Config
from streampair_connectors.config.secrets import check_directory
from streampair_connectors.host import in_thread
from streampair_connectors.kafka import (
    Committed,
    Consumer,
    Message,
    Partition,
    Producer,
    commit_register,
    read_register,
    size_of,
)
from streampair_connectors.stores.base import group_offsets

__all__ = [
    "DirectoryLane",
    "DirectoryStore",
    "DiskLane",
    "DiskStore",
]


class DirectoryStore:
    """Logs and snapshots as files of mode 0600 in a directory.

    Parameters
    ----------
    directory
        Created with mode 0700 if it does not exist.

    Raises
    ------
    StoreError
        It cannot be created, or is accessible to others than its owner.

    Examples
    --------
    >>> import tempfile
    >>> lane = DirectoryStore(Path(tempfile.mkdtemp())).open("fraud@payments-all")
    >>> lane.read()
    b''
    >>> lane.close()
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            _make_directory(directory)
            check_directory(directory)
        except OSError as error:
            raise StoreError(
                f"the store directory {directory} cannot be created: {error.strerror}",
                fix="set store.directory to a directory that this user may write",
            ) from None

    def open(self, lane_id: str) -> DirectoryLane:
        """Lock and return the files of one lane.

        Raises
        ------
        StoreError
            They cannot be accessed, or another writer holds them (then `retriable`).
        """
        # Names of topics and applications are safe in a file name; others are sanitised.
        return DirectoryLane(self._directory, _safe(lane_id))

    def lanes(self, app: str) -> list[str]:
        """Names of the lanes of an application with a log."""
        return sorted(path.stem for path in self._directory.glob(f"{_safe(app)}@*.log"))

    def secret(self, name: str, *, fresh: bool) -> bytes:
        """Return 32 random bytes, kept in a file of mode 0600.

        Parameters
        ----------
        name
            Of the file.
        fresh
            Whether it may be created, because no release has used it.

        Raises
        ------
        StoreError
            The file cannot be read or written, or has other content.
        """
        path = self._directory / _safe(name)
        try:
            if not path.exists():
                if not fresh:
                    raise StoreError(
                        f"the noise key {path} is gone, and models have been released under it",
                        fix="put the file back. If it is lost, start under another application name: a new "
                        "account, whose spend comes on top of this one's",
                    )
                made = path.with_name(f".{path.name}-{os.getpid()}")
                _write_durably(made, secrets.token_hex(32).encode() + b"\n")
                with contextlib.suppress(FileExistsError):  # another process was faster
                    os.link(made, path)
                made.unlink()
                _flush_directory(self._directory)
            secret = bytes.fromhex(path.read_text("ascii").strip())
        except OSError as error:
            raise StoreError(
                f"the secret {path} cannot be stored: {error.strerror}",
                fix="check the directory's permissions and the free space of its disk",
            ) from None
        except ValueError:
            secret = b""
        if len(secret) < 32:
            raise StoreError(
                f"the secret {path} is not 64 hexadecimal digits",
                fix="restore the file from a backup",
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


class DirectoryLane:
    """The files of one lane, locked until `close`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._log = directory / f"{name}.log"
        self._directory_flushed = False  # whether this process has flushed the directory
        self._lock: int | None = None
        try:
            descriptor = os.open(directory / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._failure("opened", error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise StoreError(
                f"another process holds the state {self._log}",
                fix="stop the other worker of this application on this directory, or give each "
                "its own store.directory",
                retriable=True,
            ) from None
        self._lock = descriptor

    def read(self) -> bytes:
        """Return the log; empty if there is none."""
        with self._store_errors("read"):
            return self._log.read_bytes() if self._log.exists() else b""

    def cut(self, used: int) -> None:
        """Truncate the log to its first `used` bytes."""
        with self._store_errors("written"):
            if self._log.exists() and self._log.stat().st_size > used:
                os.truncate(self._log, used)
                _flush_file(self._log)

    def append(self, append: LogAppend) -> None:
        """Append frames to the log, durably."""
        with self._store_errors("written"):
            _write_durably(self._log, b"".join(append.frames), os.O_CREAT | os.O_APPEND)
            if not self._directory_flushed:
                # The log may be new, or created or renamed by a process that was killed before it flushed.
                _flush_directory(self._directory)
                self._directory_flushed = True

    def snapshot(self, content: str) -> bytes:
        """Return the bytes of a snapshot.

        Raises
        ------
        UnusableLogError
            It does not exist.
        """
        with self._store_errors("read"):
            try:
                return self._state(content).read_bytes()
            except FileNotFoundError:
                raise missing_snapshot(self._state(content)) from None

    def save(self, commit: Commit) -> None:
        """Write the snapshot of a commit, if any, durably. The log does not refer to it yet."""
        if commit.snapshot is None or commit.content is None:
            return
        with self._store_errors("written"):
            _replace_file(self._state(commit.content), commit.snapshot)

    def compact(self, commit: Commit) -> None:
        """Start the log again at a snapshot that the register knows, and delete older snapshots."""
        if commit.content is None:
            return
        with self._store_errors("written"):
            _replace_file(self._log, b"".join(commit.frames))
            kept = self._state(commit.content)
            for path in self._directory.glob(f"{self._name}-*.state"):
                if path != kept and self._belongs_to_lane(path):
                    path.unlink(missing_ok=True)

    def put(self, frames: bytes, content: str | None, snapshot: bytes | None) -> None:
        """Write log and snapshot of a new lane, atomically."""
        with self._store_errors("written"):
            if content is not None and snapshot is not None:
                _replace_file(self._state(content), snapshot)
            _replace_file(self._log, frames)

    def close(self) -> None:
        """Release the lock. Safe to call twice."""
        if self._lock is not None:
            os.close(self._lock)  # releases the lock
            self._lock = None

    def _state(self, content: str) -> Path:
        return self._directory / f"{self._name}-{content[:32]}.state"

    def _belongs_to_lane(self, path: Path) -> bool:
        """Whether a snapshot is of this lane, not of one whose name has the same prefix."""
        return len(path.stem) == len(self._name) + 33

    @contextlib.contextmanager
    def _store_errors(self, verb: str) -> Iterator[None]:
        if self._lock is None:
            raise StoreError(f"the state {self._log} is closed", fix="open the lane again")
        try:
            yield
        except OSError as error:
            raise self._failure(verb, error) from None

    def _failure(self, verb: str, error: OSError) -> StoreError:
        return StoreError(
            f"the state {self._log} cannot be {verb}: {error.strerror}",
            fix="check the directory's permissions and the free space of its disk",
        )


def missing_snapshot(path: Path) -> UnusableLogError:
    """Return the error for a snapshot that the log names and the directory does not have."""
    return UnusableLogError(
        f"the snapshot {path} in the log is missing",
        fix=f"restore the whole store: its log and its snapshots belong together. {OR_ANEW}",
    )


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._@-]", "_", name)


def _make_directory(directory: Path) -> None:
    """Create the directory and its missing parents, durably."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in reversed(missing):
        _flush_directory(path.parent)


def _replace_file(path: Path, data: bytes) -> None:
    """Replace the content of a file, atomically and durably."""
    temporary = path.with_name(f"{path.name}.new")
    try:
        _write_durably(temporary, data, os.O_CREAT | os.O_TRUNC)
        os.replace(temporary, path)
        # Without this a power loss may undo the rename.
        _flush_directory(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
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


# How long to wait for a previous owner to close a lane.
_HANDOVER_SECONDS = 15.0
# How long a register may take; its outputs have not been sent.
_REGISTER_SECONDS = 60.0


class DiskStore:
    """The directory of an application, for one connection to the cluster.

    Parameters
    ----------
    config
        Of the application.
    consumer
        The member of the group that writes the registers.
    producer
        Sends the outputs of all lanes.
    """

    def __init__(self, config: Config, consumer: Consumer, producer: Producer) -> None:
        self._config = config
        self.app = config.app
        self.consumer = consumer
        self.producer = producer
        self.directory = DirectoryStore(config.state_directory)
        self.give_up = asyncio.Event()
        self.waiting_bytes = 0  # of outputs whose line is not durable yet

    async def start(self) -> None:
        """Do nothing."""

    async def open(self, starts: Mapping[int, int]) -> DiskLane:
        """Lock the lane, waiting for a previous owner in this or another process to close it."""
        name = self._config.lane_name
        deadline = time.monotonic() + _HANDOVER_SECONDS
        while True:
            try:
                files = await self._locked(name)
                break
            except StoreError as error:
                if not error.retriable or time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(0.05)
        return DiskLane(self, files, self._config.input.topic, starts)

    async def _locked(self, name: str) -> DirectoryLane:
        found: list[DirectoryLane] = []
        try:
            await in_thread(lambda: found.append(self.directory.open(name)))
        except asyncio.CancelledError:
            for files in found:  # locked by the thread, and nobody will close them
                files.close()
            raise
        return found[0]

    async def committed(self, partitions: Sequence[Partition]) -> dict[int, Committed | None]:
        """The group's offset and register."""
        found = await read_register(self._config.require_kafka(), self.app, partitions)
        return {partition.partition: found[partition] for partition in partitions}

    async def flush(self, give_up: asyncio.Event, on_trouble: Callable[[str], None]) -> bool:
        """Wait for the outputs of all lanes; `give_up` also ends waits for registers."""
        self.give_up = give_up
        return await self.producer.flush(give_up, on_trouble)

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of unacknowledged outputs."""
        return self.producer.unacknowledged_bytes + self.waiting_bytes

    @property
    def stuck(self) -> bool:
        """Whether a failed output waits to be sent again."""
        return self.producer.stuck

    async def stop(self) -> None:
        """Do nothing."""


class DiskLane:
    """Store of one lane: its files and its register."""

    def __init__(self, store: DiskStore, files: DirectoryLane, topic: str, starts: Mapping[int, int]) -> None:
        self._store = store
        self._files = files
        self._topic = topic
        self._starts = starts
        self._lines: list[LogAppend] = []
        self._waiting: list[tuple[Partition, list[Message]]] = []
        self.waiting_since: float | None = None
        self._outcome_unknown = False  # whether an append has failed, so that the durable state is unknown

    @property
    def clock_ahead(self) -> int | None:
        """None: no answer to what it stores in Kafka has the time of the broker."""
        return None

    async def read(self) -> bytes:
        """Return the log."""
        return await in_thread(self._files.read)

    async def snapshot(self, content: str) -> bytes:
        """Return a snapshot."""
        return await in_thread(partial(self._files.snapshot, content))

    async def secret(self, name: str, *, fresh: bool) -> bytes:
        """Return the noise key of the application; drawn only if none of its lanes has a log."""
        fresh = fresh and not self._store.directory.lanes(self._store.app)
        return await in_thread(lambda: self._store.directory.secret(name, fresh=fresh))

    async def cut(self, used: int) -> None:
        """Truncate the log to its first `used` bytes."""
        await in_thread(partial(self._files.cut, used))

    async def append(self, append: LogAppend) -> None:
        """Append to the log, then write the register."""
        await self._write(append)

    async def line(self, append: LogAppend) -> None:
        """Keep the line for `release`: a register costs as much as some thousand records."""
        self._lines.append(append)
        if self.waiting_since is None:
            self.waiting_since = time.monotonic()

    async def send(self, target: Partition, messages: list[Message]) -> None:
        """Send outputs, or keep them with the lines before them; `DiskStore.flush` waits for them."""
        if self._lines:
            self._waiting.append((target, messages))
            self._store.waiting_bytes += size_of(messages)
        else:
            await self._store.producer.send(target, messages)

    async def release(self, give_up: asyncio.Event) -> None:
        """Write all lines with one register, then send their outputs."""
        self._store.give_up = give_up
        if self._lines:
            frames = tuple(frame for line in self._lines for frame in line.frames)
            await self.append(dataclasses.replace(self._lines[-1], frames=frames))
            self._lines.clear()
            self.waiting_since = None
        waiting = self._take_waiting()
        for target, messages in waiting:
            await self._store.producer.send(target, messages)

    def _take_waiting(self) -> list[tuple[Partition, list[Message]]]:
        """Remove and return the waiting outputs."""
        waiting, self._waiting = self._waiting, []
        self._store.waiting_bytes -= sum(size_of(messages) for _, messages in waiting)
        return waiting

    async def commit(self, commit: Commit) -> None:
        """Write the snapshot, then the log, then the register; then delete old files."""
        await in_thread(partial(self._files.save, commit))
        await self._write(commit)
        await in_thread(partial(self._files.compact, commit))

    async def _write(self, append: LogAppend) -> None:
        if self._outcome_unknown:
            raise CommitOutcomeUnknownError(
                "it is unknown whether an earlier entry of this lane is stored",
                fix="none is needed: the lane is opened again, and its log shows the outcome",
            )
        self._outcome_unknown = True
        await in_thread(partial(self._files.append, append))
        await self._register(append)
        self._outcome_unknown = False

    async def _register(self, append: LogAppend) -> None:
        """Write the register; return once it is stored."""
        offsets = group_offsets(self._topic, self._starts, append)
        deadline = time.monotonic() + _REGISTER_SECONDS
        while True:
            try:
                await commit_register(self._store.consumer, offsets)
            except FencedError:
                raise
            except SourceError as error:
                if not error.retriable or self._store.give_up.is_set() or time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(0.1)
            else:
                return

    async def close(self) -> None:
        """Close the files. Outputs that still wait were not released; the next owner produces them again."""
        self._take_waiting()
        self._files.close()
