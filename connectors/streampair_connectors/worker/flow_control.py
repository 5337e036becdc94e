"""Flow control: how much a worker takes at once, and how long it takes to catch up with its input."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from streampair_connectors.observability.logs import get_logger

__all__ = [
    "Backlog",
    "Commits",
    "Pace",
    "commit_interval",
]

_R = TypeVar("_R")

_SLICE_SECONDS = 0.05  # a call may keep the event loop, and the heartbeats, for about this long
_THREAD_SECONDS = 0.25  # one that may take longer does not run on the loop at all
_POLL_SECONDS = 1.0  # records of one poll are learned within about this
_OVER_SECONDS = 5.0  # and if they are not within this, the rest is put back


def commit_interval(every: float, commit_seconds: float, *, behind: bool) -> float:
    """Seconds from one commit to the next.

    Where events wait, commits take at most a tenth of the time. Where none do, that would only make scores
    late: they may take half of it.

    Parameters
    ----------
    every
        As configured.
    commit_seconds
        What a commit takes.
    behind
        Whether events wait: more than the next commit is for. While the worker keeps up, no more wait than
        were done meanwhile.

    Returns
    -------
    float
    """
    return max(every, (9.0 if behind else 1.0) * commit_seconds)


class Commits:
    """When the next commit is due.

    Parameters
    ----------
    every_seconds, every_events
        As configured; the seconds where commits take little of the time.
    clock
        Monotonic, in seconds.

    Examples
    --------
    >>> now = 0.0
    >>> commits = Commits(0.1, 10_000, clock=lambda: now)
    >>> commits.committed(1.0)
    >>> now = 0.5
    >>> commits.due(5_000, lambda: 0), commits.due(5_000, lambda: 50_000), commits.due(10_000, lambda: 50_000)
    (True, False, True)
    """

    def __init__(
        self, every_seconds: float, every_events: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_seconds = every_seconds
        self._every_events = every_events
        self._clock = clock
        self._seconds = 0.0
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._last = self._clock()
        self._behind = False

    def committed(self, seconds: float) -> None:
        """Say that a commit has just ended, and how long it took."""
        # One slow commit says little: a broker that was away would make the next one wait.
        self._seconds += 0.2 * (min(seconds, 1.0) - self._seconds)
        self.begin()

    def wait(self, events: int) -> float:
        """Seconds until the next commit, which is for so many events, may be due."""
        if events >= self._every_events:
            return 0.0
        due = self._last + commit_interval(self._every_seconds, self._seconds, behind=self._behind)
        return max(due - self._clock(), 0.0)

    def due(self, events: int, waiting: Callable[[], int]) -> bool:
        """Whether it is due now.

        Parameters
        ----------
        events
            That it is for.
        waiting
            Counts the events that were not taken yet. It looks at every lane, so it is asked once a commit.
        """
        if self.wait(events) > 0.0:
            return False
        if not self._behind:
            self._behind = waiting() > events
        return self.wait(events) <= 0.0


class Pace:
    """The speed of a learner, and what follows from it.

    Parameters
    ----------
    batch_size
        The most records that are taken at once (`worker.batch_size`).
    max_poll_interval_seconds
        Of the consumer. Polls come at least ten times as often.
    clock
        Monotonic, in seconds.

    Examples
    --------
    >>> pace = Pace(1000)
    >>> pace.records
    1
    >>> pace.learned(100, 20.0)
    >>> pace.records, pace.slice
    (5, 1)
    """

    def __init__(
        self,
        batch_size: int,
        max_poll_interval_seconds: float = 600.0,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._batch_size = batch_size
        self._poll_seconds = min(_POLL_SECONDS, max_poll_interval_seconds / 10)
        self._over_seconds = min(_OVER_SECONDS, max_poll_interval_seconds / 2)
        self._clock = clock
        self._by_event: float | None = None
        self._polled = clock()

    @property
    def records(self) -> int:
        """How many records the next poll may take; one, as long as nothing is known of the learner."""
        return self._within(self._poll_seconds)

    @property
    def slice(self) -> int:
        """How many records the next call may take."""
        return self._within(_SLICE_SECONDS)

    def _within(self, seconds: float) -> int:
        if self._by_event is None:
            return 1
        return max(1, min(int(seconds / max(self._by_event, 1e-9)), self._batch_size))

    def polled(self) -> None:
        """Say that a poll has just returned: its records are learned now."""
        self._polled = self._clock()

    @property
    def over(self) -> bool:
        """Whether the records of the last poll take too long: seek back to the rest of them, and poll."""
        return self._clock() - self._polled > self._over_seconds

    def learned(self, count: int, seconds: float) -> None:
        """Say how long a call took.

        Slowness is believed at once, speed by halves: a slow event now and then must not meet a large call.
        """
        self._by_event = max(seconds / count, (self._by_event or 0.0) / 2)

    async def run(self, work: Callable[[], _R], count: int) -> _R:
        """Return what `work`, which takes `count` records, returns; in a thread where it may take long.

        Nobody else may touch what it works on meanwhile: the caller holds a lock. When the caller is
        cancelled, the thread still finishes its call, before the cancellation goes on.
        """
        start = self._clock()
        if self._by_event is not None and self._by_event * count <= _THREAD_SECONDS:
            result = work()
        else:
            thread = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                result = await asyncio.shield(thread)
            except asyncio.CancelledError:
                # A thread cannot be stopped, and what it works on must not be closed under it.
                await asyncio.wait({thread})
                raise
        self.learned(count, self._clock() - start)
        return result


log = get_logger(__name__)


class Backlog:
    """Says how fast a worker is, and when it will have caught up.

    A worker that keeps up says nothing: events wait until the next commit in any case. A backlog is what
    takes longer than `seconds` to be learned.

    Parameters
    ----------
    app
        For the log.
    seconds
        From one line to the next.
    clock
        Monotonic, in seconds.

    Examples
    --------
    >>> now = 0.0
    >>> backlog = Backlog("fraud", clock=lambda: now)
    >>> backlog.look(0, 50_000)
    >>> now = 10.0
    >>> backlog.look(20_000, 30_000)
    {'events_per_second': 2000.0, 'lag': 30000, 'seconds_to_catch_up': 15.0}
    """

    def __init__(
        self, app: str, *, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._seconds = seconds
        self._clock = clock
        self._last: tuple[float, int, int] | None = None  # time, events done, events that waited
        self._behind_since: float | None = None

    @property
    def due(self) -> bool:
        """Whether `look` would do anything."""
        return self._last is None or self._clock() >= self._last[0] + self._seconds

    def look(self, done: int, waiting: int) -> dict[str, float | int | None] | None:
        """Log a line, if one is due; what it says.

        Parameters
        ----------
        done
            Events that the worker has taken since its start.
        waiting
            Events that it has not.
        """
        now = self._clock()
        if self._last is None:
            self._last = now, done, waiting
            return None
        then, before, waited = self._last
        took = now - then
        if took < self._seconds or took <= 0.0:
            return None
        self._last = now, done, waiting
        rate, closing = (done - before) / took, (waited - waiting) / took
        if waiting <= rate * self._seconds:
            if self._behind_since is not None:
                log.info("caught_up", app=self._app, seconds=round(now - self._behind_since, 1))
                self._behind_since = None
            return None
        if self._behind_since is None:
            self._behind_since = then
        told: dict[str, float | int | None] = {
            "events_per_second": round(rate, 1),
            "lag": waiting,
            "seconds_to_catch_up": round(waiting / closing, 1) if closing > 0.0 else None,
        }
        log.info("progress", app=self._app, **told)
        return told
