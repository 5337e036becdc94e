"""How long a worker takes to catch up with its input: a line of the log while events wait."""

from __future__ import annotations

import time
from collections.abc import Callable

from streampair_connectors.logs import get_logger

__all__ = ["Backlog"]

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
