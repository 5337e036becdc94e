"""Whether an application gets on: what stands still, since when, and what an operator can do about it.

A start, a rebalance and an idle topic are no trouble, however long they take. Trouble is an end by itself, a
broker or a store that does not take what is handed to it, and events that wait while no commit comes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

__all__ = ["LIVE_AFTER", "Problem", "Progress"]

LIVE_AFTER = 3.0
"""A worker that has been in trouble for so many times `stuck_seconds` may as well be started anew."""

_STUCK_SECONDS = 60.0  # where nobody has said otherwise: a replay, the demonstration
_RESTART = "stop the worker and start it again: it goes on at the last commit and loses nothing"
_LOOK = (
    "read the last warnings of its log; where streampair_learn_seconds shows that the learner is slow, "
    f"start more workers or choose a faster one. Otherwise {_RESTART}"
)


@dataclasses.dataclass(frozen=True)
class Problem:
    """Why an application is not well.

    Attributes
    ----------
    app
        Which one.
    reason, next_step
        In words.
    seconds
        For how long; None where that says nothing.
    topic, partition
        Of the lane; None: it is not about one.
    """

    app: str
    reason: str
    next_step: str
    seconds: float | None = None
    topic: str | None = None
    partition: int | None = None


@dataclasses.dataclass
class _Lane:
    position: int | None
    lag: int | None
    moved: float  # when it last moved, or had nothing to do
    is_open: bool = True


class Progress:
    """Follows one application.

    Parameters
    ----------
    app
        Its name.
    clock
        Monotonic, in seconds.

    Attributes
    ----------
    stuck_seconds
        So long may events wait without a commit.

    Examples
    --------
    >>> now = 0.0
    >>> progress = Progress("fraud", clock=lambda: now)
    >>> progress.state("running")
    >>> progress.seen("events", 0, position=7, lag=0)
    >>> now = 100.0
    >>> list(progress.problems())
    []
    >>> progress.seen("events", 0, position=7, lag=5)
    >>> now = 200.0
    >>> [problem.seconds for problem in progress.problems()]
    [100.0]
    """

    def __init__(self, app: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self.stuck_seconds = _STUCK_SECONDS
        self._state = "starting"
        self._detail = ""
        self._next_step = ""
        # Since the first trouble that no commit has followed: a broker that comes and goes is one trouble.
        self._troubled: float | None = None
        self._lanes: dict[tuple[str, int], _Lane] = {}

    def state(self, state: str, detail: str = "", next_step: str = "") -> None:
        """Say which of the states of health it is in."""
        if state == "waiting" and self._troubled is None:
            self._troubled = self._clock()
        self._state = state
        if state in ("waiting", "failed"):
            self._detail, self._next_step = detail, next_step
        if state == "running" and not any(lane.is_open and lane.lag for lane in self._lanes.values()):
            self._troubled = None

    def committed(self) -> None:
        """Say that a commit is durable."""
        self._troubled = None

    def seen(self, topic: str, partition: int, *, position: int | None, lag: int | None) -> None:
        """Say where the last commit of a lane is, and how many events lie behind it.

        A lane that was let go of and is opened again where it stood has not moved: one that is opened again
        and again is stuck, too.
        """
        lane = self._lanes.get((topic, partition))
        if lane is None or not lag or not lane.lag or lane.position != position:
            self._lanes[topic, partition] = _Lane(position, lag, self._clock())
        else:
            lane.lag, lane.is_open = lag, True

    def close_lane(self, topic: str, partition: int) -> None:
        """Say that this process no longer has a lane."""
        lane = self._lanes.get((topic, partition))
        if lane is not None:
            lane.is_open = False

    def problems(self, *, live: bool = False) -> Iterator[Problem]:
        """Why it is not well; nothing: it is.

        Parameters
        ----------
        live
            Whether to say only what is a reason to start it anew: an end by itself, and what has lasted for
            `LIVE_AFTER` times `stuck_seconds`. A start may take as long as it takes.
        """
        now = self._clock()
        patience = self.stuck_seconds * (LIVE_AFTER if live else 1.0)
        if self._state == "failed":
            yield Problem(self._app, self._detail, self._next_step)
        elif self._state == "waiting":
            seconds = 0.0 if self._troubled is None else now - self._troubled
            if not live or seconds >= patience:
                yield Problem(self._app, self._detail, self._next_step, round(seconds, 1))
        elif self._state in ("running", "rebalancing"):
            yield from self._standing(now, patience)
        elif not live:
            starting = self._state == "starting"
            yield Problem(
                self._app,
                "it starts: it compiles, connects or opens lanes" if starting else "it was asked to stop",
                "none: it takes a while, and the log says how far it is" if starting else "none",
            )

    def _standing(self, now: float, patience: float) -> Iterator[Problem]:
        for (topic, partition), lane in sorted(self._lanes.items()):
            seconds = now - lane.moved
            if not (lane.is_open and lane.lag) or seconds < patience:
                continue
            last = f"; the last trouble was: {self._detail}" if self._troubled is not None else ""
            yield Problem(
                self._app,
                f"{topic}/{partition} has {lane.lag} events, none was committed for {seconds:.0f} s{last}",
                _LOOK,
                round(seconds, 1),
                topic,
                partition,
            )
