"""Rows that a learner has checked, to be scored and learned one after the other in one call."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.errors import RecordError
from streampair.kernels import sampling
from streampair.kernels import vectors as vectors_kernels

__all__ = ["PreparedBatch", "StreamingBatch", "encode_labels", "low_label", "score_error"]

Array = NDArray[np.float64]


def score_error(learner: Any, x: Any) -> RecordError | None:
    """Why it gives a record no score; None if it gives one."""
    try:
        learner.score_one(x)
    except RecordError as error:
        return error
    return None


def encode_labels(
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


def low_label(learner: Any, ys: Sequence[Any], labels: Array) -> Any:
    """The first of the labels that ranks low, if predictions still lack one, else None."""
    if not learner._unnamed or not (labels < 0.0).any():
        return None
    return ys[int(np.argmax(labels < 0.0))]


class PreparedBatch:
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
    names, rows
        The records as an array whose columns have these names, if all have exactly these features.
    slots_until_release
        Of how many next rows the weights are those of now, by their number alone. None: of the next one.

    Attributes
    ----------
    names, rows, refused
        As given.
    admitted
        Once taken, whether each was learned from, by its entity; None where entities are not known.
    other_scores
        Once taken, the score of each of the others.
    """

    def __init__(
        self,
        count: int,
        learn: Callable[[slice, Array], Sequence[bool] | None],
        weights: Callable[[], Array],
        vectors: Callable[[Sequence[Mapping[Any, Any]]], Array],
        refused: Mapping[int, RecordError] | None = None,
        *,
        names: Sequence[Hashable] = (),
        rows: Array | None = None,
        slots_until_release: Callable[[], int] | None = None,
    ) -> None:
        self.names, self.rows = names, rows
        self._slots_until_release = slots_until_release
        self._count = count
        self._learn = learn
        self._weights = weights
        self._vectors = vectors
        self.refused: Mapping[int, RecordError] = refused or {}
        self.other_scores: list[float] = []
        self.admitted: list[bool] | None = None

    def take(self, stops: Sequence[int] = (), others: Sequence[Mapping[Any, Any]] = ()) -> list[float]:
        """`score_one`, then `learn_one`, of each row: the scores, the same bits. Once only.

        Parameters
        ----------
        stops
            Indices of rows, ascending.
        others
            For each a usable record that is scored just before the row, into `other_scores`, and not learned.
        """
        scores, begin, end = np.empty(self._count), 0, 0
        kept: list[Array] = []
        if stops and self._slots_until_release is not None:
            weights, end = self._weights().copy(), self._slots_until_release()
        for stop in stops:
            if stop >= end:  # while the weights stay as they are, there is no need to
                self._part(slice(begin, stop), scores)
                begin, weights = stop, self._weights().copy()
                end = stop + (1 if self._slots_until_release is None else self._slots_until_release())
            kept.append(weights)
        self._part(slice(begin, self._count), scores)
        if stops:
            vectors = self._vectors(others)
            self.other_scores = [
                float(vectors_kernels.dot(w, row)) for w, row in zip(kept, vectors, strict=True)
            ]
        values: list[float] = scores.tolist()
        return values

    def _part(self, part: slice, scores: Array) -> None:
        """Learn a part of the rows."""
        if part.start < part.stop:
            admitted = self._learn(part, scores[part])
            if admitted is not None:
                self.admitted = [*(self.admitted or ()), *admitted]


class StreamingBatch(PreparedBatch):
    """Rows among which others can be scored as they are learned, with the kernel that learns them.

    Parameters
    ----------
    rows, labels
        (n, d) and (n,).
    learn
        Learns rows in order, but those of label NaN, which leave no trace; its third argument gets the score
        of each row before that. Gives 0; or another number, with nothing changed.
    weights, vectors, refused, names
        As of `PreparedBatch`.
    """

    def __init__(
        self,
        rows: Array,
        labels: Array,
        learn: Callable[[Array, Array, Array], int],
        weights: Callable[[], Array],
        vectors: Callable[[Sequence[Mapping[Any, Any]]], Array],
        refused: Mapping[int, RecordError],
        names: Sequence[Hashable],
    ) -> None:
        def part(part: slice, scores: Array) -> None:
            learn(rows[part], labels[part], scores)

        super().__init__(len(rows), part, weights, vectors, refused, names=names, rows=rows)
        self._all, self._labels, self._learn_all = rows, labels, learn

    def take(self, stops: Sequence[int] = (), others: Sequence[Mapping[Any, Any]] = ()) -> list[float]:
        """As in the base, in one call: what is only scored stands among the rows, without a label."""
        if not stops:
            return super().take()
        vectors, n = self._vectors(others), self._count + len(stops)
        rows, labels, scores = np.empty((n, vectors.shape[1])), np.empty(n), np.empty(n)
        sampling.woven(self._all, self._labels, np.array(stops), vectors, rows, labels)
        try:
            failed = self._learn_all(rows, labels, scores) != 0
        except RecordError:  # there is room for the rows, but not for more
            failed = True
        if failed:
            return super().take(stops, others)
        values: list[float] = scores.tolist()
        # From the end, so that those before stand where they did.
        other_scores = [values.pop(stops[i] + i) for i in range(len(stops) - 1, -1, -1)]
        self.other_scores = other_scores[::-1]
        return values
