"""An event loop with virtual time and an order from a seed, and processes that die or are suspended."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import sys
import warnings
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

from streampair_connectors.host import Host

__all__ = ["HangError", "Process", "SimulatedLoop"]

_R = TypeVar("_R")

_EPOCH = 1_700_000_000.0  # when a simulation begins, in seconds
_STEPS = 400_000  # of one simulation; more is a loop that never waits


class HangError(Exception):
    """Nothing can go on any more, or something goes on for ever."""


_process: ContextVar[Process] = ContextVar("process")


class Process:
    """What dies and is suspended as one: all tasks that it has started.

    Parameters
    ----------
    loop
        The event loop.
    name
        For the trace.
    skew_seconds
        How far its clock is ahead.
    """

    def __init__(self, loop: SimulatedLoop, name: str, *, skew_seconds: float = 0.0) -> None:
        self._loop = loop
        self.name = name
        self.dead = False
        self.suspended = False
        self.waiting: list[asyncio.Handle] = []
        self.host = Host(
            monotonic=loop.time,
            time_ns=lambda: loop.epoch_ns + round(skew_seconds * 1e9),
            in_thread=self._in_thread,
            begin=lambda work, name: work(),
        )

    async def _in_thread(self, work: Callable[[], _R], /) -> _R:
        await asyncio.sleep(self._loop.coin.choice((0.0, 0.0, 0.02)))
        return work()

    def start(self, work: Coroutine[Any, Any, _R]) -> asyncio.Task[_R]:
        """Run a coroutine as a task of this process."""
        context = Context()
        context.run(_process.set, self)
        return self._loop.create_task(work, context=context)

    def kill(self) -> None:
        """Nothing of it runs again."""
        self.dead = True
        self.waiting.clear()

    def suspend(self, seconds: float) -> None:
        """Nothing of it runs for some time; its timers come late."""
        self.suspended = True
        self._loop.call_later(seconds, self._resume, context=Context())

    def _resume(self) -> None:
        self.suspended = False
        waiting, self.waiting = self.waiting, []
        self._loop.ready(waiting)


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop without input and output. It never waits: when nothing is ready, its clock goes on.

    Parameters
    ----------
    coin
        Draws which of the callbacks that are ready runs next.
    disorder
        Probability that it is another one than the first.
    """

    _ready: Any
    _scheduled: list[Any]
    _stopping: bool

    def __init__(self, coin: random.Random, disorder: float) -> None:
        super().__init__()
        self.coin = coin
        self._disorder = disorder
        self._now = 0.0
        self._steps = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self.errors: list[str] = []
        self.set_exception_handler(self._note)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self._now

    @property
    def epoch_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return round((_EPOCH + self._now) * 1e9)

    def create_task(self, work: Any, **options: Any) -> asyncio.Task[Any]:
        """As any loop. Tasks are kept until `close`: what garbage collection closes runs at another time."""
        task = super().create_task(work, **options)
        self._tasks.append(task)
        return task

    def ready(self, handles: list[asyncio.Handle]) -> None:
        """Run these callbacks next."""
        self._ready.extend(handles)

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled
        while scheduled and (not ready or scheduled[0]._cancelled or scheduled[0]._when <= self._now):
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._now = max(self._now, handle._when)
                ready.append(handle)
        if not ready:
            raise HangError("no task can go on, and nothing is scheduled")
        self._steps += 1
        if self._steps > _STEPS:
            raise HangError(f"{_STEPS} steps within {self._now:.1f} s: a loop that never waits")
        if len(ready) > 1 and self._disorder and self.coin.random() < self._disorder:
            ready.rotate(-self.coin.randrange(len(ready)))
        handle = ready.popleft()
        if handle._cancelled:
            return
        process = handle._context.get(_process)
        if process is None or not (process.dead or process.suspended):
            handle._run()
        elif not process.dead:
            process.waiting.append(handle)

    def _process_events(self, events: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """There is no other thread to wake it."""

    def close(self) -> None:
        """End all tasks without a word: those of dead processes are suspended somewhere."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        self.set_exception_handler(lambda loop, context: None)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what was handed to a task that never ran
                for task in self._tasks:
                    if not task.done():
                        with contextlib.suppress(BaseException):
                            task.get_coro().close()  # type: ignore[union-attr]
            self._tasks = []
            super().close()
        finally:
            sys.unraisablehook = hook
