"""The past of each lane, for the page: a bounded number of points, in the memory of the worker.

A point is added when a lane's committed numbers are published. When a lane has as many as there may be,
every other one goes, so that the past of a long run is coarse and never large.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streampair.engine.lane import LaneGauges

__all__ = [
    "CAUSES",
    "POINTS",
    "RELEASES",
    "LetterCause",
    "MetricHistory",
    "Track",
]

RELEASES = 8
"""Dates of releases that are kept of a lane."""

POINTS = 240
"""Points of a lane at most; a line on a screen has no room for more."""

CAUSES = 20
"""Causes of dead letters that are kept of a lane: features that nobody declared may have any name."""

_FURTHER = ""  # the name of all further causes


Counts = tuple[int, int]
"""Counts of changes: of those for operators, and of the public ones. Indexed by `public`."""

# Points nearer than that are merged.
_STEP_SECONDS = 0.0  # of a run that has just begun: a file may be read in less than a second
_NOTHING = float("nan")
_ESTIMATED = ("regret_average", "regret_average_stderr", "pair_loss", "comparator_loss")


class LetterCause(NamedTuple):
    """Dead letters of one cause.

    Attributes
    ----------
    stage
        That failed.
    text
        As of `streampair_connectors.worker.causes.cause_text`: no value of an event.
    letters
        Number of them.
    offset
        Of the latest one's event.
    """

    stage: str
    text: str
    letters: int
    offset: int

    def plus(self, letters: int, offset: int) -> LetterCause:
        """Return this cause with further letters."""
        return self._replace(letters=self.letters + letters, offset=max(self.offset, offset))


@dataclass
class Track:
    """The past of one lane.

    Attributes
    ----------
    since
        When its first point was made, seconds since the epoch.
    releases
        When releases were committed last, how many there were then, mu spent, and slots left: by themselves,
        for points go as a run grows longer.
    changed, words_changed
        The history's counts when its numbers, and the words about it, changed last.
    estimate
        The latest estimate of the regret.
    """

    since: float
    changed: Counts = (0, 0)
    words_changed: Counts = (0, 0)
    words: object = None
    estimate: object = None
    step: float = _STEP_SECONDS
    releases: deque[tuple[float, int, float, int | None]] = field(
        default_factory=lambda: deque(maxlen=RELEASES)
    )
    times: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, array[float]] = field(default_factory=dict)

    def add(self, now: float, point: Mapping[str, float | None]) -> None:
        """Add a point; it replaces the last one if that is within a step of the one before."""
        for name in point.keys() - self.columns.keys():
            self.columns[name] = array("d", [_NOTHING] * len(self.times))
        replaced: dict[str, float] = {}
        if len(self.times) > 1 and self.times[-1] - self.times[-2] < self.step:
            del self.times[-1]
            replaced = {name: column.pop() for name, column in self.columns.items()}
        self.times.append(now)
        for name, column in self.columns.items():
            value = point.get(name)
            column.append(replaced.get(name, _NOTHING) if value is None else value)
        if len(self.times) > POINTS:
            self.times = self.times[::2]
            self.columns = {
                name: array("d", (_last(column, i, 2) for i in range(0, len(column), 2)))
                for name, column in self.columns.items()
            }
            self.step = max(self.step * 2, (self.times[-1] - self.times[0]) / POINTS)

    def released(self, now: float, report: Any) -> None:
        """Note the date of new releases, if there are any."""
        before = self.releases[-1][1] if self.releases else 0
        if report.releases > before:
            self.releases.append((round(now, 3), report.releases, report.mu_spent, report.horizon_left))

    def points(self, names: Sequence[str], most: int) -> dict[str, list[float | None]]:
        """Return at most `most` points, with the last one: `t` and the columns of these names.

        Numbers are rounded to seven digits. Unknown values are None.
        """
        count = len(self.times)
        every = max(1, -(-count // most))
        chosen = range((count - 1) % every, count, every) if count else range(0)
        out: dict[str, list[float | None]] = {"t": [round(self.times[i], 3) for i in chosen]}
        for name in names:
            column = self.columns.get(name)
            if column is not None:
                # The last point alone is that of now: nothing from before is put into it.
                values = (_last(column, i, every if most > 1 else 1) for i in chosen)
                out[name] = [None if v != v else float(f"{v:.7g}") for v in values]
        return out


def _last(column: Sequence[float], index: int, count: int) -> float:
    """The last known one of `count` values up to an index: estimates are rare, and none is lost."""
    known = (column[i] for i in range(index, max(index - count, -1), -1) if column[i] == column[i])
    return next(known, _NOTHING)


class MetricHistory:
    """The past of all lanes of a process.

    Parameters
    ----------
    clock
        Seconds since the epoch.

    Attributes
    ----------
    counts
        Grow with every change: a reader asks for the changes after its last count. The second, public one
        grows when a private lane has a new point or goes. It never depends on the content of an event: if a
        dead letter changed it, one could see that there was one.
    roster
        Grows when a lane comes or goes.
    committed_at
        When each application last committed.
    letters
        Of each lane, by stage, the offset of the latest dead letter.
    causes
        Of each lane, the causes of its dead letters since this process opened it, `CAUSES` at most, and in
        `""` the letters of all further ones.

    Examples
    --------
    >>> now = 100.0
    >>> history = MetricHistory(lambda: now)
    >>> lane = ("fraud", "events", "PairOGD")
    >>> gauges = LaneGauges({"learned": 8}, {}, 0.5, None, 1.0, 1, None, None, 8, None)
    >>> history.add(lane, gauges, lag=3)
    >>> history.tracks[lane].points(["events", "lag"], 10)
    {'t': [100.0], 'events': [8.0], 'lag': [3.0]}
    >>> history.counts, history.roster
    ((1, 0), 1)
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        # A file is replayed in another thread than the one that serves the page.
        self.lock = threading.Lock()
        self.counts: Counts = (0, 0)
        self.roster = 0
        self.began = clock()
        self.tracks: dict[tuple[str, ...], Track] = {}
        self.committed_at: dict[str, float] = {}
        self.letters: dict[tuple[str, ...], dict[str, int]] = {}
        self.causes: dict[tuple[str, ...], dict[str, LetterCause]] = {}

    def now(self) -> float:
        """Return the time."""
        return self._clock()

    def add(self, lane: tuple[str, ...], gauges: LaneGauges, lag: int | None) -> None:
        """Add a point of a lane."""
        point, words = _point(gauges, lag), _words(gauges.privacy)
        with self.lock:
            self._grow(public=words is not None)
            now = self._clock()
            track = self.tracks.get(lane)
            if track is None:
                self.roster += 1
                track = self.tracks[lane] = Track(since=now)
            if gauges.regret is not None and track.estimate is gauges.regret:
                point |= dict.fromkeys(_ESTIMATED)  # an estimate of an earlier event, which has its point
            track.estimate = gauges.regret
            track.add(now, point)
            if gauges.privacy is not None:
                track.released(now, gauges.privacy)
            track.changed = self.counts
            if track.words != words:
                track.words, track.words_changed = words, self.counts

    def touch(self, lane: tuple[str, ...]) -> None:
        """Note that a number of a lane changed between two points; public ones never do."""
        with self.lock:
            track = self.tracks.get(lane)
            if track is not None:
                self._grow(public=False)
                track.changed = self.counts[False], track.changed[True]

    def drop(self, lane: tuple[str, ...]) -> None:
        """Forget a lane."""
        with self.lock:
            self.letters.pop(lane, None)
            self.causes.pop(lane, None)
            track = self.tracks.pop(lane, None)
            if track is not None:
                self._grow(public=track.words is not None)
                self.roster += 1

    def dead_letters(self, lane: tuple[str, ...], causes: Mapping[str, LetterCause]) -> None:
        """Add dead letters of a commit, by the names of their causes; nothing of their content."""
        with self.lock:
            stages, known = self.letters.setdefault(lane, {}), self.causes.setdefault(lane, {})
            for name, cause in causes.items():
                stages[cause.stage] = max(cause.offset, stages.get(cause.stage, -1))
                if name not in known and len(known) >= CAUSES:
                    name, cause = _FURTHER, cause._replace(stage="", text="")
                before = known.get(name)
                known[name] = cause if before is None else before.plus(cause.letters, cause.offset)
        self.touch(lane)

    def _grow(self, *, public: bool) -> None:
        operators, everyone = self.counts
        self.counts = operators + 1, everyone + public

    def committed(self, app: str) -> None:
        """Note that an application has committed now."""
        self.committed_at[app] = self._clock()


def _point(gauges: LaneGauges, lag: int | None) -> dict[str, float | None]:
    """A point of a lane's past: `events`, and values named as their series."""
    report, regret, quality = gauges.privacy, gauges.regret, gauges.quality
    seen, due = sum(gauges.events.values()), 0 if gauges.late is None else gauges.late.due
    point = {
        # Where labels come later an event counts when it is scored, and again when it is due; a lane that
        # only learns has it when it is due alone.
        "events": float(max(seen - due, due)),
        "prequential_auc": gauges.auc,
        "prequential_auc_stderr": None if quality is None else quality.auc_stderr,
        "lag": lag,
        "weight_norm": gauges.weight_norm,
    }
    if regret is not None:
        point |= {"regret_average": regret.average, "regret_average_stderr": regret.average_stderr}
        point |= {"pair_loss": regret.pair_loss, "comparator_loss": regret.comparator_loss}
    if report is not None:
        point |= {
            "privacy_epsilon_spent": report.epsilon_spent,
            "privacy_mu_spent": report.mu_spent,
            "privacy_horizon_left": report.horizon_left,
            "privacy_releases_total": report.releases,
            "privacy_forks": gauges.forks,
        }
    return point


def _words(report: Any) -> object:
    """The texts of a guarantee; when they change, the page gets the report again."""
    return None if report is None else (report.kind, report.guarantee, report.notes, report.unit)
