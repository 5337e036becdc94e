"""Samples of the events of a lane whose labels come later: those that wait, and those without a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampair.engine.records import OFFSET_BITS, OrderedRecord

__all__ = ["LateSample", "ScoreSample", "TakenScores"]

_MULTIPLIER: Final = 0x9E3779B1  # 2**32 over the golden ratio: multiples are spread evenly
_PARTITION: Final = 0x85EBCA6B
_POSITION: Final = (1 << OFFSET_BITS) - 1


class _Scores:
    """Scores of events that wait, by place, and weights that are not 1; of more than `size` a sample."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.level = 0
        self.scores: dict[int, float] = {}
        self.weights: dict[int, float] = {}
        # In how many halves the place of each score was chosen; the level may fall while they wait.
        self._levels: dict[int, int] = {}

    @property
    def whole(self) -> bool:
        """Whether each score stands for its own event alone, and none was left out."""
        return not self.level and not self._levels

    def update(self, scores: Mapping[int, float]) -> bool:
        """Add scores if there is room for all of them."""
        if not self.whole or len(self.scores) + len(scores) > self._size:
            return False
        self.scores.update(scores)
        return True

    def add(self, place: int, score: float, weight: float) -> None:
        """Add the score of a place if it is chosen."""
        if not self._chosen(place):
            return
        self.scores[place], self.weights[place], self._levels[place] = score, weight, self.level
        if weight == 1.0:
            del self.weights[place]
        if not self.level:
            del self._levels[place]
        while len(self.scores) > self._size:
            self.level += 1
            self.scores = {place: score for place, score in self.scores.items() if self._chosen(place)}
            self.weights = {place: each for place, each in self.weights.items() if place in self.scores}
            # Some may have been chosen at a higher level before.
            self._levels = {place: max(self.level, self._levels.get(place, 0)) for place in self.scores}

    def pop(self, place: int) -> tuple[float | None, float, int]:
        """Take out a score, None if it is not here; its weight; and how many events it stands for."""
        score, weight = self.scores.pop(place, None), self.weights.pop(place, 1.0)
        stands_for = 1 << self._levels.pop(place, 0)
        if self.level and len(self.scores) < self._size // 4:
            self.level -= 1
        return score, weight, stands_for

    def _chosen(self, place: int) -> bool:
        if not self.level:
            return True
        partition, position = place >> OFFSET_BITS, place & _POSITION
        mixed = (position * _MULTIPLIER + partition * _PARTITION) & 0xFFFFFFFF
        return mixed >> (32 - self.level) == 0

    def to_state(self) -> dict[str, Any]:
        count, weighted = len(self.scores), len(self.weights)
        state: dict[str, Any] = {
            "level": self.level,
            "places": np.fromiter(self.scores.keys(), np.int64, count),
            "scores": np.fromiter(self.scores.values(), np.float64, count),
        }
        if self._levels:
            levels = (self._levels.get(place, 0) for place in self.scores)
            state["levels"] = np.fromiter(levels, np.int64, count)
        if self.weights:
            state["weighted"] = np.fromiter(self.weights.keys(), np.int64, weighted)
            state["weights"] = np.fromiter(self.weights.values(), np.float64, weighted)
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        values = {name: each.tolist() for name, each in state.items() if isinstance(each, np.ndarray)}
        self.level, places = int(state["level"]), values["places"]
        self.scores = dict(zip(places, values["scores"], strict=True))
        self.weights = dict(zip(values.get("weighted", ()), values.get("weights", ()), strict=True))
        levels = values.get("levels", [self.level] * len(places))
        self._levels = {place: level for place, level in zip(places, levels, strict=True) if level}


class TakenScores(NamedTuple):
    """Scores of events that are due.

    Attributes
    ----------
    scores
        Of each event; None: it is not in the sample.
    weights
        Weights of their outcomes by place in this order, those that are not 1.
    stands_for
        How many events each stands for, since the sample was thinned out, by place: those that are not 1.
    """

    scores: list[float | None]
    weights: dict[int, float]
    stands_for: dict[int, int]


class ScoreSample:
    """Scores of events whose labels come later, of a sample of the events that wait.

    Quality is measured with the score that an event was given when it came, which may be a month before its
    label. The sample is chosen by the event's place alone. While few events wait it has all of them; where
    more than `size` wait, every second one is dropped, and so on. Events that were let pass although their
    scores would stop them are few, and have a sample of their own.

    Parameters
    ----------
    size
        Largest number of scores of either kind.

    Examples
    --------
    >>> from streampair.engine import OrderedRecord
    >>> from streampair.engine.delays import ScoreSample
    >>> sample, records = ScoreSample(2), [OrderedRecord(n, b"", partition=0, position=n) for n in range(8)]
    >>> sample.extend(records, [0.5] * 8, {3: 50.0})
    >>> len(sample), sample.share
    (3, 0.125)
    >>> taken = sample.pop_many(records)
    >>> taken.scores[3], taken.weights, 3 in taken.stands_for, set(taken.stands_for.values())
    (0.5, {3: 50.0}, False, {8})
    """

    def __init__(self, size: int = 50_000) -> None:
        self._usual, self._explored = _Scores(size), _Scores(size)

    def __len__(self) -> int:
        return len(self._usual.scores) + len(self._explored.scores)

    @property
    def share(self) -> float:
        """Share of the events that are in the sample now, without those that were let pass."""
        return 0.5**self._usual.level

    @property
    def weighted(self) -> bool:
        """Whether the outcome of an event in the sample has a weight other than 1."""
        return bool(self._usual.weights or self._explored.scores)

    def extend(
        self,
        records: Sequence[OrderedRecord],
        scores: Sequence[float | None],
        weights: Mapping[int, float] | None = None,
    ) -> None:
        """Add the scores of events; None: an event has none.

        Parameters
        ----------
        records, scores
            The events and their scores, in the same order.
        weights
            Weights of their outcomes by place in this order, those that are not 1. Above 1: the event was let
            pass. 0: its outcome stands for nothing.
        """
        known = weights or {}
        if not known and not self.weighted:
            found = {
                record.partition << OFFSET_BITS | record.position: score
                for record, score in zip(records, scores, strict=True)
                if score is not None
            }
            if self._usual.update(found):
                return
        for n, (record, score) in enumerate(zip(records, scores, strict=True)):
            if score is not None:
                self.add(record.partition, record.position, score, known.get(n, 1.0))

    def add(self, partition: int, position: int, score: float, weight: float = 1.0) -> None:
        """Add the score of the event at a place, and the weight of its outcome."""
        place = partition << OFFSET_BITS | position
        kind = self._explored if weight > 1.0 else self._usual
        (self._usual if kind is self._explored else self._explored).pop(place)  # if it is scored again
        kind.add(place, score, weight)

    def has(self, partition: int, position: int) -> bool:
        """Whether the score of the event at a place is in the sample."""
        place = partition << OFFSET_BITS | position
        return place in self._usual.scores or place in self._explored.scores

    def pop_many(self, records: Sequence[OrderedRecord]) -> TakenScores:
        """Take out events that are due."""
        if not self.weighted and self._usual.whole:
            pop = self._usual.scores.pop
            found = [pop(each.partition << OFFSET_BITS | each.position, None) for each in records]
            return TakenScores(found, {}, {})
        taken = TakenScores([], {}, {})
        for n, record in enumerate(records):
            place = record.partition << OFFSET_BITS | record.position
            kind = self._explored if place in self._explored.scores else self._usual
            score, weight, stands_for = kind.pop(place)
            taken.scores.append(score)
            if weight != 1.0:
                taken.weights[n] = weight
            if stands_for > 1:
                taken.stands_for[n] = stands_for
        return taken

    def to_state(self) -> dict[str, Any]:
        """State for `load`, as plain values and arrays."""
        state = self._usual.to_state()
        return {**state, "explored": self._explored.to_state()} if self._explored.scores else state

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self._usual.load(state)
        self._explored.load(state.get("explored", _Scores(0).to_state()))


class LateSample:
    """A sample of the events that were learned without a label, to notice labels that come later.

    A label that comes after its event was learned is of no use, and is known to be so only when it leaves the
    table, as much later again. Of a sample of the events this class keeps a digest of the id for a second
    `after`, so that such a label is counted when it comes. Events are chosen by the digest alone. Where more
    than `size` are kept, those whose second `after` has passed are dropped; if that leaves no quarter free,
    every second one, and so on. The share never grows again.

    Parameters
    ----------
    size
        Largest number of events.

    Attributes
    ----------
    in_time, late
        Labels of chosen events: those with which an event was learned, and those that came later. Their share
        estimates that of all events.

    Notes
    -----
    An event takes 16 bytes in a snapshot. An id stands for one event: of several with the same id the last
    one that was learned without a label counts. A label that comes after `after` and before its event is
    learned, `lateness` later, is not counted: the event is not in the sample yet.

    Examples
    --------
    >>> from streampair.engine.delays import LateSample
    >>> from streampair.engine.labels import digest_ids
    >>> sample = LateSample()
    >>> sample.extend(digest_ids([b"a", b"b"]), [0, 10], [True, False], after=1000)
    >>> sample.match(digest_ids([b"a", b"b"]), [1500, 1500], after=1000, lateness=0)
    >>> sample.in_time, sample.late
    (1, 1)
    """

    def __init__(self, size: int = 20_000) -> None:
        self._size = size
        self._level = 0
        self._times: dict[int, int] = {}  # by the first word of the digest
        self.in_time = self.late = 0

    def __len__(self) -> int:
        return len(self._times)

    @property
    def share(self) -> float:
        """Share of the events that are chosen now."""
        return 0.5**self._level

    def extend(
        self, digests: NDArray[np.uint64], times: ArrayLike, labelled: ArrayLike, *, after: int
    ) -> None:
        """Add events that are learned now.

        Parameters
        ----------
        digests
            Shape (n, 2): of their ids.
        times
            Shape (n,): of the events, in milliseconds.
        labelled
            Shape (n,): whether each is learned with a label that came.
        after
            How long after its event a label may come, in milliseconds.
        """
        chosen, come = self._chosen(digests[:, 0]), np.asarray(labelled, np.bool_)
        self.in_time += int(np.count_nonzero(chosen & come))
        without = np.flatnonzero(chosen & ~come)
        moments = np.asarray(times, np.int64)[without].tolist()
        self._times.update(zip(digests[without, 0].tolist(), moments, strict=True))
        if len(self._times) <= self._size:
            return
        newest = max(self._times.values())
        self._times = {word: time for word, time in self._times.items() if time >= newest - after}
        room = self._size - self._size // 4  # a quarter is free afterwards, so that this is seldom
        while len(self._times) > room:
            self._level += 1
            words_kept = np.fromiter(self._times, np.uint64, len(self._times))
            keep = self._chosen(words_kept).tolist()
            kept = zip(self._times.items(), keep, strict=True)
            self._times = dict(item for item, stays in kept if stays)

    def match(self, digests: NDArray[np.uint64], times: Sequence[int], *, after: int, lateness: int) -> None:
        """Count labels that have come, of events that were learned without one.

        Parameters
        ----------
        digests
            Shape (n, 2): of the ids.
        times
            Of the labels, in milliseconds.
        after, lateness
            A label counts from `lateness` before its event to twice `after` after it.
        """
        known = self._times
        if not known:
            return
        for word, time in zip(digests[:, 0].tolist(), times, strict=True):
            event = known.get(word)
            if event is not None and event - lateness <= time <= event + 2 * after:
                del known[word]
                self.late += 1

    def _chosen(self, words: NDArray[np.uint64]) -> NDArray[np.bool_]:
        chosen: NDArray[np.bool_] = words & np.uint64(2**self._level - 1) == 0
        return chosen

    def to_state(self) -> dict[str, Any]:
        """State for `load`, as plain values and arrays."""
        return {
            "level": self._level,
            "words": np.fromiter(self._times.keys(), np.uint64, len(self._times)),
            "times": np.fromiter(self._times.values(), np.int64, len(self._times)),
            "in_time": self.in_time,
            "late": self.late,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self._level = int(state["level"])
        self._times = dict(zip(state["words"].tolist(), state["times"].tolist(), strict=True))
        self.in_time, self.late = int(state["in_time"]), int(state["late"])
