"""Offline access to stores: a lane is read without fencing its owner, and changed only without one.

Used by the commands that show, repair or move a state. `run` uses `directory` and `topic`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from streampair.engine import LogAppend, UnusableLogError
from streampair.engine.recovery import RecoveredState
from streampair.engine.wal import Chain
from streampair.errors import SnapshotError, SourceError, StoreError, StreampairError
from streampair_connectors import kafka
from streampair_connectors.config import Config
from streampair_connectors.kafka import KAFKA, Cluster
from streampair_connectors.stores.base import group_offsets
from streampair_connectors.stores.directory import DirectoryStore, missing_snapshot
from streampair_connectors.stores.topic import (
    TopicLane,
    TopicLog,
    context_of,
    key_missing,
    seal_of,
)
from streampair_connectors.worker.factory import draws_key

__all__ = [
    "OfflineDirectory",
    "OfflineStore",
    "OfflineTopic",
    "StoredLane",
    "check_stored_settings",
    "exists_error",
    "from_snapshot",
    "offline_store",
    "require_no_members",
]

_TRIES = 20  # a worker may compact a log or replace a snapshot between two reads


@dataclass(frozen=True)
class StoredLane:
    """A lane as read from a store.

    Attributes
    ----------
    frames
        Its log; empty if there is none.
    snapshot
        Returns the bytes of a snapshot by its name, as of the same read.
    damage
        Error at which `frames` ends before the log does; None: the store has found none.
    """

    frames: bytes
    snapshot: Callable[[str], bytes]
    damage: StreampairError | None = None


class OfflineStore(Protocol):
    """A store without a running worker, or one that is only read."""

    async def exists(self) -> bool:
        """Whether the lane is stored."""
        ...

    async def read_lane(self) -> StoredLane:
        """Read the lane; takes no lock and fences nobody."""
        ...

    def secret(self, *, fresh: bool = False) -> bytes | None:
        """The noise key in the store, if the configuration has none.

        None too if there is none yet and no lane has ever used one (`fresh`): the first start draws it.
        """
        ...

    async def amend(self, seen: StoredLane, used: int, append: LogAppend, starts: Mapping[int, int]) -> None:
        """Store an entry after the first `used` bytes of the log, then the group's offsets and register.

        Raises
        ------
        StoreError, SourceError
            A worker holds the lane, or it has changed since it was `seen`; nothing is written.
        """
        ...

    async def replace(self, append: LogAppend, starts: Mapping[int, int]) -> None:
        """Store an entry in place of a log that cannot be used, then the group's offsets and register.

        Raises
        ------
        StoreError, SourceError
            A worker holds the lane; nothing is written.
        """
        ...

    async def put(self, frames: bytes, content: str | None, snapshot: bytes | None) -> None:
        """Write a new lane; offset and register stay unchanged.

        Raises
        ------
        StoreError, SourceError
            The lane exists, or a worker holds it.
        """
        ...


def offline_store(config: Config, cluster: Cluster = KAFKA) -> OfflineStore:
    """The store of a configuration."""
    return OfflineTopic(config, cluster) if config.store.in_kafka else OfflineDirectory(config)


async def check_stored_settings(config: Config, cluster: Cluster = KAFKA) -> None:
    """Refuse settings that are not those that the stored lane began with.

    A standby opens its lane only when the worker before it ends; so it is refused before it waits.

    Raises
    ------
    SnapshotError
        The settings differ; the message names them.
    SourceError, StoreError
        The store cannot be read.
    """
    stored = await offline_store(config, cluster).read_lane()
    try:
        known = RecoveredState.of(Chain.peek(stored.frames))
    except SnapshotError:
        return  # who opens the lane verifies it, and says what is wrong
    if known is not None:
        known.genesis.check_settings(config.fingerprint(), config.model_settings())


async def require_no_members(config: Config) -> None:
    """Refuse while the group has members.

    Raises
    ------
    SourceError
    """
    members = await kafka.group_members(config.require_kafka(), config.app)
    if members:
        raise SourceError(
            f"group {config.app!r} has {members} member(s): a worker of this application runs",
            fix="stop every worker; a killed one stays a member until its session time-out",
            retriable=False,
        )


class OfflineDirectory:
    """The lane on the disk of this machine."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._directory = config.state_directory

    async def exists(self) -> bool:
        """Whether it has a log."""
        return (self._directory / f"{self._config.lane_name}.log").exists()

    async def read_lane(self) -> StoredLane:
        """The files of the lane."""
        name = self._config.lane_name
        path = self._directory / f"{name}.log"
        try:
            for _ in range(_TRIES):
                with contextlib.suppress(FileNotFoundError):  # a snapshot has been replaced meanwhile
                    frames = path.read_bytes() if path.exists() else b""
                    states = {
                        state.stem.removeprefix(f"{name}-"): state.read_bytes()
                        for state in self._directory.glob(f"{name}-*.state")
                    }
                    if (path.read_bytes() if path.exists() else b"").startswith(frames):
                        break
            else:
                raise StoreError(f"the state {path} changes while it is read", fix="try again")
        except OSError as error:
            raise StoreError(
                f"the state {path} cannot be read: {error.strerror}", fix="run as the user of the worker"
            ) from None

        def snapshot(content: str) -> bytes:
            if content[:32] not in states:
                raise missing_snapshot(self._directory / f"{name}-{content[:32]}.state")
            return states[content[:32]]

        return StoredLane(frames, snapshot)

    def secret(self, *, fresh: bool = False) -> bytes | None:
        """The key in `APP.noise-key`."""
        name = f"{self._config.app}.noise-key"
        # Only read: the directory is not made.
        if not draws_key(self._config) or (fresh and not (self._directory / name).exists()):
            return None
        return self._store().secret(name, fresh=False)

    async def amend(self, seen: StoredLane, used: int, append: LogAppend, starts: Mapping[int, int]) -> None:
        """Store the entry, then the register, as a worker does."""
        await self._write(seen, used, append, starts)

    async def replace(self, append: LogAppend, starts: Mapping[int, int]) -> None:
        """Empty the log, store the entry, then the register. Killed in between, the start is refused."""
        await self._write(None, 0, append, starts)

    async def _write(
        self, seen: StoredLane | None, used: int, append: LogAppend, starts: Mapping[int, int]
    ) -> None:
        await require_no_members(self._config)
        files = await asyncio.to_thread(self._store().open, self._config.lane_name)
        try:
            if seen is not None and await asyncio.to_thread(files.read) != seen.frames:
                raise _changed_error()
            await asyncio.to_thread(files.cut, used)
            await asyncio.to_thread(files.append, append)
            offsets = group_offsets(self._config.input.topic, starts, append)
            await kafka.write_register_offline(self._config.require_kafka(), self._config.app, offsets)
        finally:
            files.close()

    async def put(self, frames: bytes, content: str | None, snapshot: bytes | None) -> None:
        """Write log and snapshot."""
        await require_no_members(self._config)
        files = await asyncio.to_thread(self._store().open, self._config.lane_name)
        try:
            if files.read():
                raise exists_error(self._config)
            await asyncio.to_thread(files.put, frames, content, snapshot)
        finally:
            files.close()

    def _store(self) -> DirectoryStore:
        return DirectoryStore(self._directory)


class OfflineTopic:
    """The lane in Kafka."""

    def __init__(self, config: Config, cluster: Cluster = KAFKA) -> None:
        self._config = config
        self._cluster = cluster
        self._kafka = config.require_kafka()
        self._topic = cluster.log_topic(self._kafka, config.log_topic)
        self._seal = seal_of(config)
        self._found = False

    async def exists(self) -> bool:
        """Whether the log topic has its log."""
        found = await self.read_lane()
        return bool(found.frames or found.damage)

    async def read_lane(self) -> StoredLane:
        """The log topic, read without a producer."""
        if not await self._has_topic():
            return StoredLane(b"", lambda content: b"")
        try:
            stored = await TopicLog.read(self._topic, self._seal, context_of(self._config.lane_id))
        except UnusableLogError as error:
            return StoredLane(b"", lambda content: b"", error)
        return StoredLane(stored.frames, stored.snapshot, stored.damage)

    def secret(self, *, fresh: bool = False) -> bytes | None:
        """None: a topic keeps no key.

        Raises
        ------
        ConfigError
            The learner needs a noise key, and none is configured.
        """
        if draws_key(self._config):
            raise key_missing()
        return None

    async def amend(self, seen: StoredLane, used: int, append: LogAppend, starts: Mapping[int, int]) -> None:
        """Store the entry in one transaction; a damaged log is rewritten up to the damage."""
        await require_no_members(self._config)
        lane = await self._open(starts)
        try:
            if (found := await self.read_lane()).frames != seen.frames:
                raise _changed_error()
            if used == len(seen.frames) and found.damage is None:
                await lane.append(append)
            else:
                kept, content = from_snapshot(seen.frames[:used])
                snapshot = None if content is None else found.snapshot(content)
                await lane.rewrite(kept, content, snapshot, append)
        finally:
            await lane.close()

    async def put(self, frames: bytes, content: str | None, snapshot: bytes | None) -> None:
        """Write log and snapshot in one transaction."""
        await self._ensure()
        lane = await self._open({})
        try:
            found = await self.read_lane()
            if found.frames or found.damage:
                raise exists_error(self._config)
            await lane.rewrite(Chain.frames(frames), content, snapshot, None)
        finally:
            await lane.close()

    async def replace(self, append: LogAppend, starts: Mapping[int, int]) -> None:
        """Store the entry with the register in one transaction, and delete what was before."""
        await self._ensure()
        lane = await self._open(starts)
        try:
            await lane.rewrite([], None, None, append)
        finally:
            await lane.close()

    async def _ensure(self) -> None:
        """Create the log topic if it does not exist, where no worker runs."""
        await require_no_members(self._config)
        factor = self._config.topics.replication_factor
        await self._topic.ensure(replication_factor=factor, strict=True)
        self._found = True

    async def _open(self, starts: Mapping[int, int]) -> TopicLane:
        lane = TopicLane(self._config, self._topic, self._seal, starts, lambda _: None, cluster=self._cluster)
        await lane.start()
        return lane

    async def _has_topic(self) -> bool:
        if not self._found:
            self._found = self._topic.name in await self._cluster.describe_topics(self._kafka)
        return self._found


def from_snapshot(frames: bytes) -> tuple[list[bytes], str | None]:
    """The frames of a log from its last snapshot on, and that snapshot's name; all of them without one."""
    parts = Chain.frames(frames)
    for number, entry in reversed(list(enumerate(Chain.peek(frames)))):
        content = getattr(entry, "content", None)
        if content is not None:
            return parts[number:], content.hex()
    return parts, None


def _changed_error() -> StoreError:
    return StoreError(
        "the log has changed since it was read",
        fix="stop every worker of this application, and repeat the command",
    )


def exists_error(config: Config) -> StoreError:
    return StoreError(
        f"the store has a lane of {config.input.topic} already",
        fix="import into an empty store; an existing lane is never overwritten",
    )
