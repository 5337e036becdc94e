"""The health of an application: its state, and whether it is stuck: which lane, since when, and what to do.

A start, a rebalance or an idle topic is not a problem, however long it takes. A problem is a failure, a
broker or store that accepts nothing, or a lag without commits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from streampair.engine.source import partition_label
from streampair.errors import StreampairError
from streampair_connectors.observability.logs import get_logger

if TYPE_CHECKING:
    from streampair_connectors.observability.metrics import Telemetry

__all__ = ["LIVE_AFTER", "Health", "HealthProblem", "Progress"]

log = get_logger(__name__)

LIVE_AFTER = 3.0
"""Multiple of `stuck_seconds` after which a worker with a problem should be restarted (`/livez`)."""

_STUCK_SECONDS = 60.0  # default, for a replay and the demo
_RESTART = "stop the worker and start it again: it goes on at the last commit and loses nothing"
_LOOK = (
    "read the last warnings of its log; where streampair_learn_seconds shows that the learner is slow, "
    f"choose a faster one. Otherwise {_RESTART}"
)
_REMIND_SECONDS = 30.0  # between two log lines about the same problem
_CHANGE_SECONDS = 5.0  # between two about different ones


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
    topic, partition
        Of the lane; None: it is not about one lane.
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

    Attributes
    ----------
    stuck_seconds
        How long events may wait without a commit.

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
        # Time of the first problem since the last commit: a broker that comes and goes is one problem.
        self._trouble_since: float | None = None
        self._lanes: dict[tuple[str, int], _Lane] = {}

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

    def seen(self, topic: str, partition: int, *, position: int | None, lag: int | None) -> None:
        """Note the position of a lane's last commit, and its lag.

        Reopening a lane at the same position is no progress: a lane that is reopened again and again is
        stuck, too.
        """
        lane = self._lanes.get((topic, partition))
        if lane is None or not lag or not lane.lag or lane.position != position:
            self._lanes[topic, partition] = _Lane(position, lag, self._clock())
        else:
            lane.lag, lane.is_open = lag, True

    def close_lane(self, topic: str, partition: int) -> None:
        """Note that this process no longer has a lane."""
        lane = self._lanes.get((topic, partition))
        if lane is not None:
            lane.is_open = False

    def problems(self, *, live: bool = False) -> Iterator[HealthProblem]:
        """Yield the problems of the application; none if it is healthy.

        Parameters
        ----------
        live
            Whether to yield only reasons for a restart: a failure, and problems that have lasted for
            `LIVE_AFTER` times `stuck_seconds`. A start has no time limit.
        """
        now = self._clock()
        patience = self.stuck_seconds * (LIVE_AFTER if live else 1.0)
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
        for (topic, partition), lane in sorted(self._lanes.items()):
            seconds = now - lane.moved
            if not (lane.is_open and lane.lag) or seconds < patience:
                continue
            where = f"{topic}/{partition_label(partition)}"
            last = f"; the last trouble was: {self._detail}" if self._trouble_since is not None else ""
            yield HealthProblem(
                self._app,
                f"{where} has {lane.lag} events, none was committed for {seconds:.0f} s{last}",
                _LOOK,
                round(seconds, 1),
                topic,
                partition,
            )


class Health:
    """The state of one application, from its start to its end.

    Parameters
    ----------
    app, telemetry
        The application, and where its state is published.
    stuck_seconds
        How long events may wait without a commit; None: the default.
    """

    def __init__(self, app: str, telemetry: Telemetry, stuck_seconds: float | None = None) -> None:
        self._app = app
        self._telemetry = telemetry
        self._stuck_seconds = stuck_seconds
        self._stopping = False
        self._ended = False
        self._waiting_since: float | None = None
        self._last_reminder = 0.0
        self._last_problem = ""

    def starting(self) -> None:
        """Set the state: starting."""
        if self._stuck_seconds is not None:
            self._telemetry.patience(self._app, self._stuck_seconds)
        self._telemetry.health(self._app, "starting")

    def rebalancing(self) -> None:
        """Set the state: partitions are moving."""
        self._telemetry.health(self._app, "rebalancing")

    def waiting(self, what: str, fix: str = "start the broker or repair the network") -> None:
        """Set the state: broker or schema registry does not answer; it is tried again until a stop."""
        now = time.monotonic()
        step = f"{fix}; the worker goes on by itself and loses nothing"
        patience = _REMIND_SECONDS if what == self._last_problem else _CHANGE_SECONDS
        if self._waiting_since is None or now - self._last_reminder >= patience:
            log.warning("waiting", app=self._app, detail=what, next_step=step)
            self._last_reminder, self._last_problem = now, what
        if self._waiting_since is None:
            self._waiting_since = now
        if not self._stopping:
            self._telemetry.health(self._app, "waiting", what, step)

    def awaiting_model(self, topic: str) -> None:
        """Set the state: a scorer has no model yet."""
        step = 'start a worker with the role "learn": it publishes a model at its start'
        log.info("waiting_for_model", app=self._app, topic=topic, next_step=step)
        if not self._stopping:
            self._telemetry.health(self._app, "waiting", f"no model in {topic} yet", step)

    def running(self) -> None:
        """Set the state: running, perhaps again.

        During a stop the log does not say that it runs again: a last commit without anything to store does
        not contact the broker.
        """
        if self._waiting_since is not None and not self._stopping:
            seconds = round(time.monotonic() - self._waiting_since, 1)
            log.info("running_again", app=self._app, seconds=seconds)
            self._waiting_since = None
        if not self._stopping:
            self._telemetry.health(self._app, "running")

    def stopping(self) -> None:
        """Set the state: stopping. No later state replaces it until the end."""
        if self._ended:
            return
        self._stopping = True
        self._telemetry.health(self._app, "stopping")
        log.info("stopping", app=self._app)

    def stopped(self) -> None:
        """Set the state: stopped normally."""
        self._ended = True
        self._telemetry.health(self._app, "stopped")
        log.info("stopped", app=self._app)

    @contextlib.contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Set the state at the end of the block: stopped, or failed by a `StreampairError`, which goes on."""
        try:
            yield
        except StreampairError as error:
            self.failed(error)
            raise
        self.stopped()

    def failed(self, error: StreampairError) -> None:
        """Set the state: failed."""
        self._ended = True
        self._telemetry.health(self._app, "failed", error.problem, error.fix)
