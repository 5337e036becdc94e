"""Rows that a learner has checked, to be scored and learned one after the other in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels

__all__ = ["ReadyRows"]

Array = NDArray[np.float64]


class ReadyRows:
    """Rows of which the learner refuses none.

    Parameters
    ----------
    rows, labels
        Arrays (n, d) and (n,), as `learn` takes them.
    learn
        Learns rows in order; its third argument (n,) gets the score of each before it is learned.
    weights
        The published weights (d,), as they are now.
    vectors
        From k usable records to the array (k, d) that these weights multiply.
    """

    def __init__(
        self,
        rows: Array,
        labels: Array,
        learn: Callable[[Array, Array, Array], object],
        weights: Callable[[], Array],
        vectors: Callable[[Sequence[Mapping[Any, Any]]], Array],
    ) -> None:
        self._rows = rows
        self._labels = labels
        self._learn = learn
        self._weights = weights
        self._vectors = vectors
        self._kept: list[Array] = []

    def take(self, stops: Sequence[int] = ()) -> list[float]:
        """`score_one`, then `learn_one`, of each row: the scores, the same bits. Once only.

        Parameters
        ----------
        stops
            Indices of rows, ascending, before which the published weights are kept for `score_at`.
        """
        rows, labels, n = self._rows, self._labels, len(self._rows)
        scores, begin = np.empty(n), 0
        for stop in stops:
            if stop > begin:
                self._learn(rows[begin:stop], labels[begin:stop], scores[begin:stop])
                begin = stop
            self._kept.append(self._weights().copy())
        if begin < n:
            self._learn(rows[begin:], labels[begin:], scores[begin:])
        told: list[float] = scores.tolist()
        return told

    def score_at(self, xs: Sequence[Mapping[Any, Any]]) -> list[float]:
        """`score_one` of one usable record for each of the stops, under the weights that were kept there."""
        rows = self._vectors(xs)
        return [float(kernels.dot(w, row)) for w, row in zip(self._kept, rows, strict=True)]
