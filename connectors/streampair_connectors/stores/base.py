"""What a store of lanes does, whatever it keeps them in (docs/design.md, "The steps of a commit")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from streampair.engine import Commit, LogAppend
from streampair_connectors.kafka import Committed, Message, Partition

__all__ = ["LaneStore", "Store"]


class LaneStore(Protocol):
    """The log, the snapshots and the outputs of one lane, held by one writer.

    After any error of `append` or `commit` it is not known what is durable: drop the lane, and open it again.
    """

    async def read(self) -> bytes:
        """Return the frames of the log. Every earlier owner is fenced; nothing was written."""
        ...

    async def snapshot(self, content: str) -> bytes:
        """Return the bytes of a snapshot by its name.

        Raises
        ------
        StoreError
            It is not there.
        """
        ...

    async def secret(self, name: str, *, fresh: bool) -> bytes:
        """Return a noise key that the store keeps; made only where nothing was ever done under it."""
        ...

    async def cut(self, used: int) -> None:
        """Cut off what a crash has torn: all but the first `used` bytes of the log."""
        ...

    async def append(self, append: LogAppend) -> None:
        """Make frames durable, and then the register, before returning."""
        ...

    async def line(self, append: LogAppend) -> None:
        """Take the line of the outputs that come next: durable, with the register, before any leaves."""
        ...

    async def send(self, target: Partition, messages: list[Message]) -> None:
        """Take outputs. They leave once every line that was taken before is durable."""
        ...

    @property
    def waiting_since(self) -> float | None:
        """When the oldest line came that waits for `release`, on the monotonic clock; None: there is none."""
        ...

    async def release(self, give_up: asyncio.Event) -> None:
        """Make lines that need not wait for the commit durable, and then let go of their outputs.

        Raises
        ------
        SourceError
            It is not known what is durable: `give_up` was set before it was, or another owner has the lane.
        """
        ...

    async def commit(self, commit: Commit) -> None:
        """Make outputs durable, then snapshot, frames, offset and register: together, as far as it can."""
        ...

    async def close(self) -> None:
        """Let another owner in. Closing twice is harmless."""
        ...


class Store(Protocol):
    """Opens lanes, for as long as one connection to the cluster lasts."""

    async def start(self) -> None:
        """Connect."""
        ...

    async def open(self, partition: Partition, start: int) -> LaneStore:
        """Fence every earlier owner of a lane, and return its store.

        Parameters
        ----------
        partition
            Of the input.
        start
            The first offset that it has: where a lane that has taken nothing is.

        Raises
        ------
        StoreError
            It cannot be reached, or another writer holds it (then `retriable`).
        """
        ...

    async def register(self, partition: Partition) -> Committed | None:
        """Return the group's offset and the register beside it; None: the group has none, and said so."""
        ...

    async def flush(self, give_up: asyncio.Event, on_trouble: Callable[[str], None]) -> bool:
        """Wait until outputs that need not wait for a commit are stored; False when `give_up` came first."""
        ...

    @property
    def unacknowledged_bytes(self) -> int:
        """Of outputs that are not known to be stored."""
        ...

    @property
    def stuck(self) -> bool:
        """Whether an output waits to be sent again."""
        ...

    async def stop(self) -> None:
        """Disconnect."""
        ...
