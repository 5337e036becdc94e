"""Rows that a learner has checked, to be scored and learned one after the other in one call."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair.errors import RecordError

__all__ = ["ReadyRows", "labels_of", "refusal"]

Array = NDArray[np.float64]


def refusal(learner: Any, x: Any) -> RecordError | None:
    """Why it gives a record no score; None if it gives one."""
    try:
        learner.score_one(x)
    except RecordError as error:
        return error
    return None


def labels_of(
    learner: Any, ys: Sequence[Any], nulls: Sequence[int], refused: dict[int, RecordError]
) -> Array:
    """The numbers (n,) of labels: NaN for what is not learned, where `refused` gets what cannot be used."""
    task, high, low = learner._task, learner._high, learner._low
    away = {*nulls, *refused}
    values = []
    with contextlib.suppress(RecordError):
        values = [] if away else [1.0 if y is high else -1.0 if y is low else task.label(y) for y in ys]
    for i in range(len(values), len(ys)):
        value = math.nan
        if i not in away:
            try:
                value = task.label(ys[i])
            except RecordError as error:
                refused[i] = error
        values.append(value)
    return np.array(values)


class ReadyRows:
    """Rows that a learner has checked; those that it refuses leave no trace but their slot, if slots count.

    Parameters
    ----------
    count
        Number of rows.
    learn
        Learns a part of them, in order; its second argument (n,) gets the score of each before it is learned.
        Gives which were admitted, as far as their entities go; None where entities are not known.
    weights
        The published weights (d,), as they are now.
    vectors
        From k usable records to the array (k, d) that these weights multiply.
    refused
        Why `score_one` or `learn_one` would refuse a row, by its index: its score means nothing.

    Attributes
    ----------
    refused
        As given.
    admitted
        Once taken, whether each was learned from, by its entity; None where entities are not known.
    """

    def __init__(
        self,
        count: int,
        learn: Callable[[slice, Array], Sequence[bool] | None],
        weights: Callable[[], Array],
        vectors: Callable[[Sequence[Mapping[Any, Any]]], Array],
        refused: Mapping[int, RecordError] | None = None,
    ) -> None:
        self._count = count
        self._learn = learn
        self._weights = weights
        self._vectors = vectors
        self.refused: Mapping[int, RecordError] = refused or {}
        self._kept: list[Array] = []
        self.admitted: list[bool] | None = None

    def take(self, stops: Sequence[int] = ()) -> list[float]:
        """`score_one`, then `learn_one`, of each row: the scores, the same bits. Once only.

        Parameters
        ----------
        stops
            Indices of rows, ascending, before which the published weights are kept for `score_at`.
        """
        scores, begin = np.empty(self._count), 0
        for stop in (*stops, self._count):
            if stop > begin:
                part = slice(begin, stop)
                admitted = self._learn(part, scores[part])
                if admitted is not None:
                    self.admitted = [*(self.admitted or ()), *admitted]
                begin = stop
            if len(self._kept) < len(stops):
                self._kept.append(self._weights().copy())
        told: list[float] = scores.tolist()
        return told

    def score_at(self, xs: Sequence[Mapping[Any, Any]]) -> list[float]:
        """`score_one` of one usable record for each of the stops, under the weights that were kept there."""
        rows = self._vectors(xs)
        return [float(kernels.dot(w, row)) for w, row in zip(self._kept, rows, strict=True)]
