"""Whether an application makes progress, or is stuck: which lane, since when, and what to do.

A start, a rebalance or an idle topic is not a problem, however long it takes. A problem is a failure, a
broker or store that accepts nothing, or a lag without commits.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

__all__ = ["LIVE_AFTER", "HealthProblem", "Progress"]

LIVE_AFTER = 3.0
"""Multiple of `STUCK_SECONDS` after which a worker with a problem should be restarted (`/livez`)."""

# So long may events wait without a commit. No event, no model and no commit that works takes a minute: fits
# of large models run beside the lane, and a commit waits for a broker at most as long as its transaction may
# be open. A pod that is slow to compile is not stuck: a start has no limit.
STUCK_SECONDS = 60.0
_RESTART = "stop the worker and start it again: it goes on at the last commit and loses nothing"
_LOOK = (
    "read the last warnings of its log; where streampair_learn_seconds shows that the learner is slow, "
    f"choose a faster one. Otherwise {_RESTART}"
)


@dataclasses.dataclass(frozen=True)
class HealthProblem:
    """A problem of an application.

    Attributes
    ----------
    app
        The application.
    reason, next_step
        Cause and remedy.
    seconds
        Duration; None if it is not known.
    topic
        Of the lane; None: it is not about one lane.
    """

    app: str
    reason: str
    next_step: str
    seconds: float | None = None
    topic: str | None = None


@dataclasses.dataclass
class _Lane:
    position: int | None
    lag: int | None
    moved: float  # time of its last commit, or without lag
    is_open: bool = True


class Progress:
    """Progress of one application, from its states and commits.

    Parameters
    ----------
    app
        Its name.
    clock
        Monotonic, in seconds.

    Examples
    --------
    >>> now = 0.0
    >>> progress = Progress("fraud", clock=lambda: now)
    >>> progress.state("running")
    >>> progress.seen("events", position=7, lag=0)
    >>> now = 100.0
    >>> list(progress.problems())
    []
    >>> progress.seen("events", position=7, lag=5)
    >>> now = 200.0
    >>> [problem.seconds for problem in progress.problems()]
    [100.0]
    """

    def __init__(self, app: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._state = "starting"
        self._detail = ""
        self._next_step = ""
        # Time of the first problem since the last commit: a broker that comes and goes is one problem.
        self._trouble_since: float | None = None
        self._lanes: dict[str, _Lane] = {}

    def state(self, state: str, detail: str = "", next_step: str = "") -> None:
        """Set the state of health."""
        if state == "waiting" and self._trouble_since is None:
            self._trouble_since = self._clock()
        self._state = state
        if state in ("waiting", "failed"):
            self._detail, self._next_step = detail, next_step
        if state == "running" and not any(lane.is_open and lane.lag for lane in self._lanes.values()):
            self._trouble_since = None

    def committed(self) -> None:
        """Note a durable commit."""
        self._trouble_since = None

    def seen(self, topic: str, *, position: int | None, lag: int | None) -> None:
        """Note the position of a lane's last commit, and its lag.

        Reopening a lane at the same position is no progress: a lane that is reopened again and again is
        stuck, too.
        """
        lane = self._lanes.get(topic)
        if lane is None or not lag or not lane.lag or lane.position != position:
            self._lanes[topic] = _Lane(position, lag, self._clock())
        else:
            lane.lag, lane.is_open = lag, True

    def close_lane(self, topic: str) -> None:
        """Note that this process no longer has a lane."""
        lane = self._lanes.get(topic)
        if lane is not None:
            lane.is_open = False

    def problems(self, *, live: bool = False) -> Iterator[HealthProblem]:
        """Yield the problems of the application; none if it is healthy.

        Parameters
        ----------
        live
            Whether to yield only reasons for a restart: a failure, and problems that have lasted for
            `LIVE_AFTER` times `STUCK_SECONDS`. A start has no time limit.
        """
        now = self._clock()
        patience = STUCK_SECONDS * (LIVE_AFTER if live else 1.0)
        if self._state == "failed":
            yield HealthProblem(self._app, self._detail, self._next_step)
        elif self._state == "waiting":
            seconds = 0.0 if self._trouble_since is None else now - self._trouble_since
            if not live or seconds >= patience:
                yield HealthProblem(self._app, self._detail, self._next_step, round(seconds, 1))
        elif self._state in ("running", "rebalancing"):
            yield from self._stuck_lanes(now, patience)
        elif not live:
            starting = self._state == "starting"
            yield HealthProblem(
                self._app,
                "it starts: it compiles, connects or opens lanes" if starting else "it was asked to stop",
                "none: it takes a while, and the log says how far it is" if starting else "none",
            )

    def _stuck_lanes(self, now: float, patience: float) -> Iterator[HealthProblem]:
        for topic, lane in sorted(self._lanes.items()):
            seconds = now - lane.moved
            if not (lane.is_open and lane.lag) or seconds < patience:
                continue
            last = f"; the last trouble was: {self._detail}" if self._trouble_since is not None else ""
            yield HealthProblem(
                self._app,
                f"{topic} has {lane.lag} events, none was committed for {seconds:.0f} s{last}",
                _LOOK,
                round(seconds, 1),
                topic,
            )
