"""What is kept of a stream of two classes to estimate the regret of its learner: see `evaluation.regret`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampair.evaluation.rows import Row
from streampair.evaluation.sampler import Features, Sampler, Scorer

__all__ = ["PairSampler"]

Array = NDArray[np.float64]


class PairSampler(Sampler):
    """A sample of the pairs of a stream, stratified by label, with the margins that its learner had.

    The parameters are those of `PairRegret`, which estimates from it.
    """

    _strata: ClassVar[int] = 2

    def _stratum(self, y: bool) -> int:
        return 1 if y else 0

    def _numbers_of(self, ys: Sequence[bool]) -> Array:
        return np.array(ys, dtype=np.float64)

    def _weigh(self, places: NDArray[np.int64]) -> None:
        """The share of the other label, which was drawn with the step."""

    def _margin(self, place: int, score: float, theirs: float) -> float:
        """By the labels: twice the difference of the scores, that of the positive one first."""
        return (2.0 if place >= self._sample.size else -2.0) * (score - theirs)

    def prepare(
        self, x: Features, label: bool, score: float, scorer: Scorer
    ) -> tuple[Row | None, float] | None:
        """As in the base."""
        early = self.seen < self.exact
        keep_record, keep_step, place = self._sample.next(self._stratum(label))
        if self.unusable is not None or not (early or keep_record or keep_step):
            return None
        row = self._given(x)
        sign = 2.0 if label else -2.0
        if row is None:
            return None, 0.0
        if early:
            margins = [sign * (score - scorer(x2)) for x2, y2 in self._first if y2 != label]
            return row, float(np.sum(self.loss.value(np.array(margins)))) / self.seen if margins else 0.0
        if not keep_step or place < 0:
            return row, 0.0
        return row, sign * (score - scorer(self._sample.at("past", [place])[0]))

    def _counted(self) -> dict[str, object]:
        return {"counts": [self._sample.seen(0), self._sample.seen(1)]}

    def _counts(self, state: Mapping[str, Any]) -> list[int]:
        zeros, ones = state["counts"]
        return [int(zeros), int(ones)]

    def _labels_of_first(self) -> NDArray[Any]:
        return np.array([label for _, label in self._first], dtype=np.bool_)
