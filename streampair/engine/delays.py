"""Samples of the events of a lane whose labels come later: those that wait, and those without a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampair.engine.records import OFFSET_BITS, OrderedRecord

__all__ = ["LateSample", "ScoreSample"]

_MULTIPLIER: Final = 0x9E3779B1  # 2**32 over the golden ratio: multiples are spread evenly
_PARTITION: Final = 0x85EBCA6B


class ScoreSample:
    """Scores of events whose labels come later, of a sample of the events that wait.

    Quality is measured with the score that an event was given when it came, which may be a month before its
    label. The sample is chosen by the event's place alone. While few events wait it has all of them; where
    more than `size` wait, every second one is dropped, and so on.

    Parameters
    ----------
    size
        Largest number of scores.

    Examples
    --------
    >>> from streampair.engine import OrderedRecord
    >>> from streampair.engine.delays import ScoreSample
    >>> sample = ScoreSample(2)
    >>> sample.extend([OrderedRecord(n, b"", partition=0, position=n) for n in range(8)], [0.5] * 8)
    >>> len(sample), sample.share
    (2, 0.125)
    """

    def __init__(self, size: int = 50_000) -> None:
        self._size = size
        self._level = 0
        self._scores: dict[int, float] = {}
        self._weights: dict[int, float] = {}  # those that are not 1

    def __len__(self) -> int:
        return len(self._scores)

    @property
    def share(self) -> float:
        """Share of the events that are in the sample now."""
        return 0.5**self._level

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
            Weights of their outcomes by place in this order, those that are not 1.
        """
        known = weights or {}
        if self._level or len(self._scores) + len(records) > self._size:
            for n, (record, score) in enumerate(zip(records, scores, strict=True)):
                if score is not None:
                    self.add(record.partition, record.position, score, known.get(n, 1.0))
            return
        # Fast path: all are chosen.
        found = {
            record.partition << OFFSET_BITS | record.position: score
            for record, score in zip(records, scores, strict=True)
            if score is not None
        }
        self._scores.update(found)
        if self._weights:
            for place in found:
                self._weights.pop(place, None)
        for n, weight in known.items():
            self._weights[records[n].partition << OFFSET_BITS | records[n].position] = weight

    def add(self, partition: int, position: int, score: float, weight: float = 1.0) -> None:
        """Add the score of the event at a place, and the weight of its outcome."""
        if self._chosen(partition, position):
            place = partition << OFFSET_BITS | position
            self._scores[place] = score
            if weight != 1.0:
                self._weights[place] = weight
            else:
                self._weights.pop(place, None)
            if len(self._scores) > self._size:
                self._halve()

    def has(self, partition: int, position: int) -> bool:
        """Whether the score of the event at a place is in the sample."""
        return partition << OFFSET_BITS | position in self._scores

    def _pop(self, record: OrderedRecord) -> float | None:
        score = self._scores.pop(record.partition << OFFSET_BITS | record.position, None)
        if self._level and len(self._scores) < self._size // 4:
            self._level -= 1
        return score

    def pop_many(self, records: Sequence[OrderedRecord]) -> tuple[list[float | None], dict[int, float]]:
        """Take out events that are due.

        Returns
        -------
        tuple
            The score of each, None if it is not in the sample; and the weights of their outcomes, by place in
            `records`, those that are not 1.
        """
        weights: dict[int, float] = {}
        if self._weights:
            places = (each.partition << OFFSET_BITS | each.position for each in records)
            known = ((n, self._weights.pop(place, 1.0)) for n, place in enumerate(places))
            weights = {n: weight for n, weight in known if weight != 1.0}
        if self._level:
            return [self._pop(record) for record in records], weights
        pop = self._scores.pop
        return [pop(each.partition << OFFSET_BITS | each.position, None) for each in records], weights

    def _chosen(self, partition: int, position: int) -> bool:
        level = self._level
        if not level:
            return True
        mixed = (position * _MULTIPLIER + partition * _PARTITION) & 0xFFFFFFFF
        return mixed >> (32 - level) == 0

    def _halve(self) -> None:
        while len(self._scores) > self._size:
            self._level += 1
            mask = (1 << OFFSET_BITS) - 1
            self._scores = {
                place: score
                for place, score in self._scores.items()
                if self._chosen(place >> OFFSET_BITS, place & mask)
            }
        self._weights = {place: weight for place, weight in self._weights.items() if place in self._scores}

    def to_state(self) -> dict[str, Any]:
        """State for `load`, as plain values and arrays."""
        state: dict[str, Any] = {
            "level": self._level,
            "places": np.fromiter(self._scores.keys(), np.int64, len(self._scores)),
            "scores": np.fromiter(self._scores.values(), np.float64, len(self._scores)),
        }
        if self._weights:
            state["weighted"] = np.fromiter(self._weights.keys(), np.int64, len(self._weights))
            state["weights"] = np.fromiter(self._weights.values(), np.float64, len(self._weights))
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self._level = int(state["level"])
        self._scores = dict(zip(state["places"].tolist(), state["scores"].tolist(), strict=True))
        self._weights = {}
        if "weights" in state:
            self._weights = dict(zip(state["weighted"].tolist(), state["weights"].tolist(), strict=True))


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
