"""The clock and the threads of the machine that a worker runs on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

__all__ = ["THIS_HOST", "Host", "in_thread"]

_R = TypeVar("_R")


class _InThread(Protocol):
    async def __call__(self, work: Callable[[], _R], /) -> _R: ...


async def in_thread(work: Callable[[], _R], /) -> _R:
    """Call a function in another thread, while the event loop goes on, and return its result.

    A cancellation waits for the end of the function: a thread cannot be stopped, and what it uses must not be
    closed meanwhile.
    """
    thread = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait({thread})
        raise


def _begin(work: Callable[[], None], name: str) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()


@dataclass(frozen=True)
class Host:
    """Clock and threads. The simulation of tests/harness has a virtual clock, and no threads.

    Attributes
    ----------
    monotonic
        Monotonic time in seconds.
    time_ns
        Time since the epoch in nanoseconds.
    in_thread
        Calls a function in another thread, and returns its result: `in_thread`.
    begin
        Starts a function in a daemon thread of this name: it does not keep the process alive.
    """

    monotonic: Callable[[], float] = time.monotonic
    time_ns: Callable[[], int] = time.time_ns
    in_thread: _InThread = in_thread
    begin: Callable[[Callable[[], None], str], None] = _begin

    @property
    def now_ms(self) -> int:
        """Time since the epoch in milliseconds."""
        return self.time_ns() // 1_000_000


THIS_HOST = Host()
