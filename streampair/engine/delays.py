"""Scores that wait for their labels, where these come later than the events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from streampair.engine.records import OrderedRecord

__all__ = ["ScoreSample"]

_MULTIPLIER: Final = 0x9E3779B1  # 2**32 over the golden ratio: multiples are spread evenly
_PARTITION: Final = 0x85EBCA6B
_SHIFT: Final = 48  # of the partition's number beside the offset


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

    def __len__(self) -> int:
        return len(self._scores)

    @property
    def share(self) -> float:
        """Share of the events that are in the sample now."""
        return 0.5**self._level

    def extend(self, records: Sequence[OrderedRecord], scores: Sequence[float | None]) -> None:
        """Add the scores of events; None: an event has none."""
        for record, score in zip(records, scores, strict=True):
            if score is not None and self._chosen(record.partition, record.position):
                self._scores[record.partition << _SHIFT | record.position] = score
                if len(self._scores) > self._size:
                    self._halve()

    def pop(self, record: OrderedRecord) -> float | None:
        """Take out the score of an event that is due; None: it is not in the sample."""
        score = self._scores.pop(record.partition << _SHIFT | record.position, None)
        if self._level and len(self._scores) < self._size // 4:
            self._level -= 1
        return score

    def _chosen(self, partition: int, position: int) -> bool:
        level = self._level
        if not level:
            return True
        mixed = (position * _MULTIPLIER + partition * _PARTITION) & 0xFFFFFFFF
        return mixed >> (32 - level) == 0

    def _halve(self) -> None:
        while len(self._scores) > self._size:
            self._level += 1
            mask = (1 << _SHIFT) - 1
            self._scores = {
                place: score
                for place, score in self._scores.items()
                if self._chosen(place >> _SHIFT, place & mask)
            }

    def to_state(self) -> dict[str, Any]:
        """State for `load`, as plain values and arrays."""
        return {
            "level": self._level,
            "places": np.fromiter(self._scores.keys(), np.int64, len(self._scores)),
            "scores": np.fromiter(self._scores.values(), np.float64, len(self._scores)),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self._level = int(state["level"])
        self._scores = dict(zip(state["places"].tolist(), state["scores"].tolist(), strict=True))
