"""Lanes on the disk of this machine: files, with the register beside the group's offset.

Outputs are sent at least once, the state moves exactly once, and scores that are sent twice are the same
bytes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable

from streampair.engine import Append, Commit
from streampair.errors import Fenced, OutcomeUnknown, SourceError, StoreError
from streampair_connectors.assemble import lane_id
from streampair_connectors.config import Config
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
from streampair_connectors.stores.directory import DirectoryLane, DirectoryStore

__all__ = ["DiskLane", "DiskStore"]

# How long a previous owner of a lane may take to close it.
_HANDOVER_SECONDS = 15.0
# How long a register may take; what waits for it has not left.
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
        self.directory = DirectoryStore(config.state_directory, group_access=config.store.group_access)
        self.give_up = asyncio.Event()
        self.waiting_bytes = 0  # of outputs whose line is not durable yet

    async def start(self) -> None:
        """Nothing is to be done."""

    async def open(self, partition: Partition, start: int) -> DiskLane:
        """Lock a lane; waits for a previous owner in this process or another to let go."""
        name = lane_id(self._config, partition.topic, partition.partition)
        deadline = time.monotonic() + _HANDOVER_SECONDS
        while True:
            try:
                files = await asyncio.to_thread(self.directory.open, name)
                break
            except StoreError as error:
                if not error.retriable or time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(0.05)
        return DiskLane(self, files, partition, start)

    async def register(self, partition: Partition) -> Committed | None:
        """The group's offset and register."""
        found = await read_register(self._config.require_kafka(), self.app, [partition])
        return found[partition]

    async def flush(self, give_up: asyncio.Event, on_trouble: Callable[[str], None]) -> bool:
        """Wait for the outputs of all lanes; until the next call, registers are given up with them."""
        self.give_up = give_up
        return await self.producer.flush(give_up, on_trouble)

    @property
    def unacknowledged_bytes(self) -> int:
        """Of outputs that are not known to be stored."""
        return self.producer.unacknowledged_bytes + self.waiting_bytes

    @property
    def stuck(self) -> bool:
        """Whether an output waits to be sent again."""
        return self.producer.stuck

    async def stop(self) -> None:
        """Nothing is to be done."""


class DiskLane:
    """One lane: its files, and its register."""

    def __init__(self, store: DiskStore, files: DirectoryLane, partition: Partition, start: int) -> None:
        self._store = store
        self._files = files
        self._partition = partition
        self._start = start
        self._lines: list[Append] = []
        self._waiting: list[tuple[Partition, list[Message]]] = []
        self.waiting_since: float | None = None
        self._unknown = False  # whether an append has failed, so that nobody knows what is durable

    async def read(self) -> bytes:
        """The log."""
        return await asyncio.to_thread(self._files.read)

    async def snapshot(self, content: str) -> bytes:
        """A snapshot."""
        return await asyncio.to_thread(self._files.snapshot, content)

    async def secret(self, name: str, *, fresh: bool) -> bytes:
        """The noise key of the application; never drawn anew where any of its lanes has left anything."""
        fresh = fresh and not self._store.directory.lanes(self._store.app)
        return await asyncio.to_thread(lambda: self._store.directory.secret(name, fresh=fresh))

    async def cut(self, used: int) -> None:
        """Cut off a torn end."""
        await asyncio.to_thread(self._files.cut, used)

    async def append(self, append: Append) -> None:
        """The log, then the register."""
        await self._write(append)

    async def line(self, append: Append) -> None:
        """Keep it for `release`: a register costs as much as some thousand records."""
        self._lines.append(append)
        if self.waiting_since is None:
            self.waiting_since = time.monotonic()

    async def send(self, target: Partition, messages: list[Message]) -> None:
        """Hand outputs over, or keep them with the lines before them; `DiskStore.flush` waits for them."""
        if self._lines:
            self._waiting.append((target, messages))
            self._store.waiting_bytes += size_of(messages)
        else:
            await self._store.producer.send(target, messages)

    async def release(self, give_up: asyncio.Event) -> None:
        """All lines with one register. Until that is stored no output has left."""
        self._store.give_up = give_up
        if self._lines:
            frames = tuple(frame for line in self._lines for frame in line.frames)
            await self.append(dataclasses.replace(self._lines[-1], frames=frames))
            self._lines.clear()
            self.waiting_since = None
        waiting = self._let_go()
        for target, messages in waiting:
            await self._store.producer.send(target, messages)

    def _let_go(self) -> list[tuple[Partition, list[Message]]]:
        """The outputs that wait, which are no longer counted."""
        waiting, self._waiting = self._waiting, []
        self._store.waiting_bytes -= sum(size_of(messages) for _, messages in waiting)
        return waiting

    async def commit(self, commit: Commit) -> None:
        """The snapshot, which nothing names yet; then the log, then the register; then what is old may go."""
        await asyncio.to_thread(self._files.save, commit)
        await self._write(commit)
        await asyncio.to_thread(self._files.compact, commit)

    async def _write(self, append: Append) -> None:
        if self._unknown:
            raise OutcomeUnknown(
                "an earlier entry of this lane may be stored, or may not be",
                fix="nothing need be done: the lane is opened again and reads which of the two it is",
            )
        self._unknown = True
        await asyncio.to_thread(self._files.append, append)
        await self._register(append)
        self._unknown = False

    async def _register(self, append: Append) -> None:
        """Write the register; nothing goes on before it is known to be stored."""
        offset = self._start if append.next_offset is None else append.next_offset
        deadline = time.monotonic() + _REGISTER_SECONDS
        while True:
            try:
                await commit_register(self._store.consumer, {self._partition: (offset, append.register)})
            except Fenced:
                raise
            except SourceError as error:
                if not error.retriable or self._store.give_up.is_set() or time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(0.1)
            else:
                return

    async def close(self) -> None:
        """Let another owner in. Outputs that still wait were never released: it makes them again."""
        self._let_go()
        self._files.close()
