"""Protocols of the stores of lanes (docs/design.md, "The steps of a commit")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from streampair.engine import Commit, LogAppend
from streampair_connectors.kafka import Committed, Message, Partition

__all__ = ["LaneStore", "Store", "group_offsets"]


class LaneStore(Protocol):
    """Log, snapshots and outputs of one lane, with one writer.

    After an error of `append` or `commit` it is unknown what is durable: drop the lane and open it again.
    """

    async def read(self) -> bytes:
        """Return the frames of the log. Every earlier owner is fenced; nothing has been written."""
        ...

    async def snapshot(self, content: str) -> bytes:
        """Return the bytes of a snapshot by its name.

        Raises
        ------
        StoreError
            It does not exist.
        """
        ...

    async def secret(self, name: str, *, fresh: bool) -> bytes:
        """Return the noise key in the store; drawn only if no lane has ever used one (`fresh`)."""
        ...

    async def cut(self, used: int) -> None:
        """Truncate the log to its first `used` bytes: a crash may leave an incomplete entry."""
        ...

    async def append(self, append: LogAppend) -> None:
        """Make frames durable, then the register, before returning."""
        ...

    async def line(self, append: LogAppend) -> None:
        """Take the log line of the next outputs: durable, with the register, before any of them is sent."""
        ...

    async def send(self, target: Partition, messages: list[Message]) -> None:
        """Take outputs. They are sent once all lines taken before are durable."""
        ...

    @property
    def waiting_since(self) -> float | None:
        """Monotonic time of the oldest line that waits for `release`; None: none waits."""
        ...

    async def release(self, give_up: asyncio.Event) -> None:
        """Make lines that need not wait for the commit durable, then send their outputs.

        Raises
        ------
        SourceError
            It is unknown what is durable: `give_up` was set, or another worker owns the lane.
        """
        ...

    @property
    def clock_ahead(self) -> int | None:
        """Lead of this host's clock over the broker's, at most, in milliseconds; None: unknown."""
        ...

    async def commit(self, commit: Commit) -> None:
        """Make outputs durable, then snapshot, frames, offset and register; atomically where possible."""
        ...

    async def close(self) -> None:
        """Release the lane for another owner. Safe to call twice."""
        ...


class Store(Protocol):
    """Opens lanes during one connection to the cluster."""

    async def start(self) -> None:
        """Connect."""
        ...

    async def open(self, starts: Mapping[int, int]) -> LaneStore:
        """Fence every earlier owner of the lane, and return its store.

        Parameters
        ----------
        starts
            The first offset of each partition that it reads: where a lane without records is.

        Raises
        ------
        StoreError
            The store cannot be reached, or another writer holds the lane (then `retriable`).
        """
        ...

    async def committed(self, partitions: Sequence[Partition]) -> dict[int, Committed | None]:
        """Return the group's offset of each partition; None: the broker says that there is none.

        The register of a lane is beside the offset of its first partition.
        """
        ...

    async def flush(self, give_up: asyncio.Event, on_trouble: Callable[[str], None]) -> bool:
        """Wait until outputs sent before the commit are stored; False if `give_up` was set first."""
        ...

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes of unacknowledged outputs."""
        ...

    @property
    def stuck(self) -> bool:
        """Whether a failed output waits to be sent again."""
        ...

    async def stop(self) -> None:
        """Disconnect."""
        ...


def group_offsets(
    topic: str, starts: Mapping[int, int], append: LogAppend
) -> dict[Partition, tuple[int, str]]:
    """Offsets that the group commits with an append: one a partition, the register beside the first."""
    first, positions = min(starts), append.positions
    assert positions is not None  # the lane reads the whole topic
    return {
        Partition(topic, number): (
            max(positions.get(number, start), start),
            append.register if number == first else "",
        )
        for number, start in starts.items()
    }
