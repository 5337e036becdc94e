"""Positions of a lane in the partitions of its topic.

A lane counts records by one number, their ordinal in the order over all partitions. This module keeps which
records the ordinals stand for: the position in each partition, and the ranges that were taken, which the log
holds. The records of one partition (`LaneId`) are counted by their offsets, and need none of this.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, TypeVar

import msgspec
import numpy as np

from streampair.engine.records import LABEL_LEARNED, OrderedRecord
from streampair.engine.wal import NOT_ACTING, Acting, Position, Range, SourceState, Wait

__all__ = [
    "ORDER_NOT_COVERED",
    "Positions",
    "longer",
    "ranges_of",
    "way_of",
]

_Setting = TypeVar("_Setting", Acting, Wait)
_COLUMNS: Final = [attrgetter(name) for name in ("partition", "position", "label", "early")]

ORDER_NOT_COVERED = (
    "the order over partitions is not covered, since producers set the timestamps by which it is made "
    "(message.timestamp.type = LogAppendTime covers it)"
)
"""Part of the guarantee of a lane that has taken records of several partitions by producers' timestamps."""


def ranges_of(records: Iterable[OrderedRecord]) -> list[Range]:
    """The ranges of records, in their order.

    Examples
    --------
    >>> from streampair.engine import OrderedRecord
    >>> from streampair.engine.source import ranges_of
    >>> places = [(0, 5), (0, 6), (1, 0), (0, 8)]
    >>> records = [OrderedRecord(n, b"", partition=p, position=q) for n, (p, q) in enumerate(places)]
    >>> [(r.partition, r.first, r.end, r.count) for r in ranges_of(records)]
    [(0, 5, 7, 2), (1, 0, 1, 1), (0, 8, 9, 1)]
    """
    records = list(records)
    if not records:
        return []
    partitions, positions, labels, early = (
        np.fromiter(map(column, records), np.int64, len(records)) for column in _COLUMNS
    )
    early = early != 0
    steps = np.diff(positions)
    # Events that are learned early come in any order, and what lies between two of them is not learned.
    torn = np.where(early[1:], steps != 1, steps <= 0)
    torn |= (np.diff(partitions) != 0) | np.diff(labels >= 0) | np.diff(early)
    starts = [0, *(np.flatnonzero(torn) + 1).tolist()]
    codes = labels.astype(np.uint8).tobytes()
    found = []
    for start, end in itertools.pairwise([*starts, len(records)]):
        first, last = records[start], records[end - 1]
        learned = codes[start:end] if first.due else b""
        found.append(
            Range(first.partition, first.position, last.position + 1, end - start, learned, first.early)
        )
    return found


def way_of(record: OrderedRecord) -> str:
    """Which way a record takes: "new" when it comes, "due" when it is due, "early" when its label comes."""
    return _way(due=record.due, early=record.early)


def _way(*, due: bool, early: bool) -> str:
    return "early" if early else "due" if due else "new"


class Positions:
    """The positions of a lane at work, and the ranges that its log does not have yet.

    Attributes
    ----------
    producer_times
        Whether records of several partitions were ever ordered by timestamps that producers set. Then the
        order may differ in another run, and the privacy report says that it is not covered.
    labels, expired, matched
        Where labels come later: as of `SourceState`.
    learns_only
        Whether this lane takes events only when they are due: others score them.
    counts
        Records that this process has taken, by partition and way (`way_of`).
    passed
        Those among the due ones that were learned early, and are passed over.
    """

    def __init__(self) -> None:
        self.producer_times = False
        self.learns_only = False
        self._waits: list[Wait] = []
        self._acting: list[Acting] = []
        self.labels: dict[int, int] = {}
        self.expired = 0
        self._next: dict[int, Position] = {}
        self._due: dict[int, Position] = {}
        self.matched: dict[int, Position] = {}
        self._ahead: list[Range] = []
        self._taken: list[Range] = []
        self.counts: Counter[tuple[int, str]] = Counter()
        self.passed = 0

    def load(self, state: SourceState | None) -> None:
        """Go on where a log says."""
        state = SourceState([], []) if state is None else state
        self._next = {each.partition: each for each in state.positions}
        self._due = {each.partition: each for each in state.due}
        self.labels = {each.partition: each.next_offset for each in state.labels}
        self.expired = state.expired
        self._waits, self._acting = list(state.waits), list(state.acting)
        self.matched = {each.partition: each for each in state.matched}
        self._ahead = list(state.ahead)
        self._taken = []
        self.producer_times = state.producer_times

    @property
    def positions(self) -> Mapping[int, Position]:
        """Next offset of each partition; a partition that is missing is read from its start."""
        return self._next

    @property
    def due(self) -> Mapping[int, Position]:
        """Next offset of each partition for events that become due, where labels come later."""
        return self._due

    def wait(self, after: int, lateness: int) -> list[Wait]:
        """Let events that come from now on wait so long; those that came before keep their wait.

        Parameters
        ----------
        after, lateness
            As of `Wait`.

        Returns
        -------
        list of Wait
            Of events that are not due yet, and of new ones.
        """
        found = self._from_now_on(self._waits, Wait(after, lateness))
        self._waits = [each for each in found if self._is_pending(each.until)]
        return list(self._waits)

    @property
    def acting(self) -> list[Acting]:
        """What held for the events that were scored, as the log says; empty: no score was to stop one."""
        return list(self._acting)

    def act(self, now: Acting) -> list[Acting]:
        """Let scores stop events that come from now on so; for those that came before, what held then holds.

        Returns
        -------
        list of Acting
            Of events that a restart may score again, or that are not due yet, and of new ones.
        """
        found = self._from_now_on(self._acting or [NOT_ACTING], now)
        self._acting = [] if found == [NOT_ACTING] else found
        return list(found)

    def saved(self) -> None:
        """Forget what held for learned events: a snapshot has them, so that no restart scores them again."""
        found = [each for each in self._acting if self._is_pending(each.until)]
        self._acting = [] if found == [NOT_ACTING] else found

    def _from_now_on(self, known: list[_Setting], now: _Setting) -> list[_Setting]:
        """What holds for events that came before and for new ones, if from now on `now` does."""
        found: list[_Setting] = known or [now]
        if found[-1] != now:
            until = {each.partition: each.next_offset for each in self._next.values()}
            last: list[_Setting] = [msgspec.structs.replace(known[-1], until=until)] if until else []
            found = known[:-1] + last
            found.append(now)
        return found

    def _is_pending(self, until: Mapping[int, int]) -> bool:
        due = self._due
        return not until or any(
            partition not in due or due[partition].next_offset < end for partition, end in until.items()
        )

    @property
    def ahead(self) -> list[Range]:
        """Ranges of records to be taken before any other."""
        return list(self._ahead)

    def took(self, records: Sequence[OrderedRecord]) -> None:
        """Note that records were taken."""
        start = 0
        for each in ranges_of(records):
            part = records[start : start + each.count]
            start += each.count
            self.counts[each.partition, _way(due=bool(each.labels), early=each.early)] += each.count
            self.passed += each.labels.count(LABEL_LEARNED)
            if not each.early:
                positions = self._due if each.labels else self._next
                clock, before = part[-1].clock, positions.get(each.partition)
                if before is not None:
                    clock = max(before.clock, clock)
                positions[each.partition] = Position(each.partition, each.end, clock)
            if self._taken and _continues(each, self._taken[-1]):
                last = self._taken[-1]
                count, labels = last.count + each.count, last.labels + each.labels
                self._taken[-1] = msgspec.structs.replace(last, end=each.end, count=count, labels=labels)
            else:
                self._taken.append(each)
        self._ahead = after(self._ahead, records) if self._ahead else []

    def announced(self) -> list[Range]:
        """The ranges taken since the last call: they go into the log."""
        taken, self._taken = self._taken, []
        return taken

    @property
    def state(self) -> SourceState:
        """Export the state, for a commit."""
        return SourceState(
            [self._next[p] for p in sorted(self._next)],
            list(self._ahead),
            self.producer_times,
            [self._due[p] for p in sorted(self._due)],
            [Position(p, self.labels[p], 0) for p in sorted(self.labels)],
            self.expired,
            list(self._waits),
            [self.matched[p] for p in sorted(self.matched)],
            list(self._acting),
        )


def _continues(each: Range, last: Range) -> bool:
    """Whether a range goes on with records of the same partition and way as the one before it."""
    if (each.partition, each.early, bool(each.labels)) != (last.partition, last.early, bool(last.labels)):
        return False
    return each.first == last.end if each.early else each.first >= last.end


def after(ranges: Sequence[Range], records: Sequence[OrderedRecord]) -> list[Range]:
    """Subtract records, taken from their front, from ranges."""
    left, count = list(ranges), len(records)
    while left and count:
        if left[0].count <= count:
            count -= left.pop(0).count
        else:
            first, part = records[-1].position + 1, left[0]
            left[0] = msgspec.structs.replace(
                part, first=first, count=part.count - count, labels=part.labels[count:]
            )
            count = 0
    return left


def longer(ranges: list[Range], others: list[Range]) -> list[Range]:
    """Return the longer of two lists of which one begins with the other."""
    return max(ranges, others, key=lambda each: sum(part.count for part in each))
