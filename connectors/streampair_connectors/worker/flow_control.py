"""Flow control: batch sizes, commit intervals and the estimated time to catch up with the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from streampair_connectors.host import THIS_HOST, Host
from streampair_connectors.kafka.ordering import BUCKET_MS
from streampair_connectors.observability.logs import get_logger

__all__ = [
    "Backlog",
    "Commits",
    "FencePause",
    "Pace",
    "commit_interval",
]

_R = TypeVar("_R")

_SLICE_SECONDS = 0.05  # target duration of a call that blocks the event loop and the heartbeats
_THREAD_SECONDS = 0.25  # a call that may take longer runs in a thread
_POLL_SECONDS = 1.0  # target duration of the records of one poll
_OVER_SECONDS = 5.0  # after this the consumer seeks back to the rest of them
_FENCE_SECONDS = 1.0, 60.0  # pause after a fence, and the longest
_BUCKET_SECONDS = BUCKET_MS / 1000
_MOST_BUCKETS = 2  # from one fetch to the next: a limit of what a worker takes at once


def commit_interval(every: float, commit_seconds: float, *, behind: bool) -> float:
    """Seconds from the end of one commit to the begin of the next.

    With a backlog, commits take at most a tenth of the time. Without one, longer intervals would only delay
    scores, so commits may take half of it.

    Parameters
    ----------
    every
        As configured.
    commit_seconds
        Duration of a commit.
    behind
        Whether there is a backlog: more events wait than the next commit covers.

    Returns
    -------
    float
    """
    return max(every, (9.0 if behind else 1.0) * commit_seconds)


def fetch_buckets(every_seconds: float) -> int:
    """Buckets of the order that come with one fetch, where scores leave with commits this far apart.

    A bucket that comes earlier waits for the commit.
    """
    return min(max(round(every_seconds / _BUCKET_SECONDS), 1), _MOST_BUCKETS)


class Commits:
    """Schedules commits.

    Records come by fetches. A commit that is due soon after one covers it at once, and a commit that is due
    shortly before one waits for it: each may be half the time from one fetch to the next early or late.

    Parameters
    ----------
    every_seconds, every_events
        As configured, from begin to begin; the interval in seconds grows where commits are slow.
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
        self, every_seconds: float, every_events: int, *, clock: Callable[[], float] = THIS_HOST.monotonic
    ) -> None:
        self._every_seconds = every_seconds
        self._every_events = every_events
        self._shift = min(fetch_buckets(every_seconds) * _BUCKET_SECONDS, every_seconds) / 2
        self._clock = clock
        self._seconds = self._took = 0.0
        self.begin()

    def begin(self) -> None:
        """Start a new interval."""
        self._last = self._clock()
        self._behind = False

    def committed(self, seconds: float) -> None:
        """Record that a commit has just ended, and its duration."""
        # Smoothed and capped: a broker that was away for once must not delay the next commit.
        self._seconds += 0.2 * (min(seconds, 1.0) - self._seconds)
        self._took = seconds
        self.begin()

    def wait(self, events: int, *, complete: bool = False) -> float:
        """Seconds until the next commit, which covers this many events, may be due; see `due`."""
        if events >= self._every_events:
            return 0.0
        every = self._every_seconds - self._took + (-self._shift if complete else self._shift)
        due = self._last + commit_interval(every, self._seconds, behind=self._behind)
        return max(due - self._clock(), 0.0)

    def due(self, events: int, waiting: Callable[[], int], *, complete: bool = False) -> bool:
        """Whether a commit is due now.

        Parameters
        ----------
        events
            Covered by the commit.
        waiting
            Counts the events not processed yet. It visits every lane, so it is called once per commit.
        complete
            Whether a batch has just come, of which all are covered.
        """
        if self.wait(events, complete=complete) > 0.0:
            return False
        if not self._behind:
            self._behind = waiting() > events
        return self.wait(events, complete=complete) <= 0.0


class FencePause:
    """The pause from a fence until lanes are opened again: it doubles with each fence until a commit.

    Two workers that open a lane slowly would otherwise fence each other again and again.

    Parameters
    ----------
    clock
        Monotonic, in seconds.

    Examples
    --------
    >>> now = 0.0
    >>> pause = FencePause(clock=lambda: now)
    >>> pause.active
    False
    >>> pause.fenced()
    >>> pause.fenced()
    >>> now = 1.5
    >>> pause.active
    True
    >>> pause.committed()
    >>> pause.fenced()
    >>> now = 2.5
    >>> pause.active
    False
    """

    def __init__(self, *, clock: Callable[[], float] = THIS_HOST.monotonic) -> None:
        self._clock = clock
        self._seconds, _ = _FENCE_SECONDS
        self._until: float | None = None

    @property
    def active(self) -> bool:
        """Whether lanes are not to be opened yet."""
        return self._until is not None and self._clock() < self._until

    def fenced(self) -> None:
        """Begin the pause after a fence."""
        self._until = self._clock() + self._seconds
        self._seconds = min(2 * self._seconds, _FENCE_SECONDS[1])

    def committed(self) -> None:
        """Note a durable commit: the next pause is the shortest again."""
        self._seconds, _ = _FENCE_SECONDS


class Pace:
    """Adapts batch sizes to the speed of a learner.

    Parameters
    ----------
    batch_size
        Maximum records of a batch (`worker.batch_size`).
    max_poll_interval_seconds
        Of the consumer. Polls come at least ten times as often.
    host
        Clock and threads.

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
        host: Host = THIS_HOST,
    ) -> None:
        self._host = host
        self._batch_size = batch_size
        self._poll_seconds = min(_POLL_SECONDS, max_poll_interval_seconds / 10)
        self._over_seconds = min(_OVER_SECONDS, max_poll_interval_seconds / 2)
        self._by_event: float | None = None
        self._polled = host.monotonic()

    @property
    def records(self) -> int:
        """Maximum records of the next poll; 1 until the speed of the learner is known."""
        return self._within(self._poll_seconds)

    @property
    def slice(self) -> int:
        """Maximum records of the next call."""
        return self._within(_SLICE_SECONDS)

    def _within(self, seconds: float) -> int:
        if self._by_event is None:
            return 1
        return max(1, min(int(seconds / max(self._by_event, 1e-9)), self._batch_size))

    def polled(self) -> None:
        """Record that a poll has just returned."""
        self._polled = self._host.monotonic()

    @property
    def over(self) -> bool:
        """Whether the records of the last poll take too long: seek back to the rest, and poll."""
        return self._host.monotonic() - self._polled > self._over_seconds

    def learned(self, count: int, seconds: float) -> None:
        """Record the duration of a call.

        The estimate rises at once and falls by half at most: an occasional slow event must not meet a large
        batch.
        """
        self._by_event = max(seconds / count, (self._by_event or 0.0) / 2)

    async def run(self, work: Callable[[], _R], count: int) -> _R:
        """Call `work`, which processes `count` records, and return its result; a long call runs in a thread.

        The caller holds a lock, so that nobody else uses the same objects.
        """
        start = self._host.monotonic()
        if self._by_event is not None and self._by_event * count <= _THREAD_SECONDS:
            result = work()
        else:
            result = await self._host.in_thread(work)
        self.learned(count, self._host.monotonic() - start)
        return result


log = get_logger(__name__)


class Backlog:
    """Logs the speed of a worker and the estimated time to catch up.

    There is a backlog when the waiting events take longer than `seconds` to learn. Without one nothing is
    logged, since some events always wait for the next commit.

    Parameters
    ----------
    app
        Name of the application, for the log.
    seconds
        Between two log lines.
    clock
        Monotonic, in seconds.

    Examples
    --------
    >>> now = 0.0
    >>> backlog = Backlog("fraud", clock=lambda: now)
    >>> backlog.update(0, 50_000)
    >>> now = 10.0
    >>> backlog.update(20_000, 30_000)
    {'events_per_second': 2000.0, 'lag': 30000, 'seconds_to_catch_up': 15.0}
    """

    def __init__(
        self, app: str, *, seconds: float = 10.0, clock: Callable[[], float] = THIS_HOST.monotonic
    ) -> None:
        self._app = app
        self._seconds = seconds
        self._clock = clock
        self._last: tuple[float, int, int] | None = None  # time, processed events, waiting events
        self._behind_since: float | None = None

    @property
    def due(self) -> bool:
        """Whether `update` has anything to do."""
        return self._last is None or self._clock() >= self._last[0] + self._seconds

    def update(self, done: int, waiting: int) -> dict[str, float | int | None] | None:
        """Log a line if one is due, and return its content.

        Parameters
        ----------
        done
            Events processed since the start of the worker.
        waiting
            Events not processed yet.
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
        report: dict[str, float | int | None] = {
            "events_per_second": round(rate, 1),
            "lag": waiting,
            "seconds_to_catch_up": round(waiting / closing, 1) if closing > 0.0 else None,
        }
        log.info("progress", app=self._app, **report)
        return report
