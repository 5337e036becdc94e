"""Mini-batches of checked rows, to be scored and learned in order in one call."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.base.targets import Target
from streampair.errors import RecordError
from streampair.kernels import vectors as vectors_kernels

__all__ = ["PreparedBatch", "StreamingBatch", "encode_labels", "low_label", "refuse_rows", "score_error"]

Array = NDArray[np.float64]


def score_error(learner: Any, x: Any) -> RecordError | None:
    """The error of `score_one` for a record; None if it has a score."""
    try:
        learner.score_one(x)
    except RecordError as error:
        return error
    return None


def refuse_rows(
    learner: Any, columns: Sequence[Any], rows: Array, most: float
) -> tuple[Array, dict[int, RecordError]] | None:
    """Rows (n, d), zeros for refused ones, and errors by index; None: take them one by one.

    Parameters
    ----------
    learner
        Its `score_one` says why a row is refused.
    columns
        Names of the columns.
    rows
        Values (n, d); they are not changed.
    most
        Largest size of a value.
    """
    refused: dict[int, RecordError] = {}
    fine = np.abs(rows) <= most
    if not fine.all():
        rows = rows.copy()
        for i in np.flatnonzero(~fine.all(axis=1)).tolist():
            error = score_error(learner, dict(zip(columns, rows[i].tolist(), strict=True)))
            if error is None:
                return None
            refused[i] = error
            rows[i] = 0.0
    return rows, refused


def encode_labels(
    task: Target, ys: Sequence[Any], nulls: Sequence[int], refused: dict[int, RecordError]
) -> Array:
    """Label numbers (n,), NaN for rows that are not learned; errors of unusable labels go to `refused`."""
    high, low = task.high, task.low
    unlearned = {*nulls, *refused}
    values = []
    with contextlib.suppress(RecordError):
        values = [] if unlearned else [1.0 if y is high else -1.0 if y is low else task.label(y) for y in ys]
    for i in range(len(values), len(ys)):
        value = math.nan
        if i not in unlearned:
            try:
                value = task.label(ys[i])
            except RecordError as error:
                refused[i] = error
        values.append(value)
    return np.array(values)


def low_label(ys: Sequence[Any], labels: Array) -> Any:
    """The first label that ranks low; None if there is none."""
    return ys[int(np.argmax(labels < 0.0))] if (labels < 0.0).any() else None


class PreparedBatch:
    """Checked rows of a learner; refused rows have no effect, except that they take a slot if slots count.

    Parameters
    ----------
    count
        Number of rows.
    learn
        Learns a slice of the rows in order; its second argument (n,) receives the score of each row before
        it. Returns which rows were admitted by entity; None without entities.
    weights
        Returns the published weights (d,) of the moment.
    vectors
        Maps k usable records to the array (k, d) that these weights multiply.
    dot
        Multiplies weights with one of its rows.
    refused
        Error of `score_one` or `learn_one` by row index: the row's score is meaningless.
    slots_until_release
        Returns the number of next rows for which the weights stay unchanged. None: one row.

    Attributes
    ----------
    refused
        As given.
    admitted
        After `take`, whether each row was admitted by its entity; None without entities.
    other_scores
        After `take`, the score of each of the other records.
    """

    def __init__(
        self,
        count: int,
        learn: Callable[[slice, Array], Sequence[bool] | None],
        weights: Callable[[], Array],
        vectors: Callable[[Sequence[Mapping[Any, Any]]], Array],
        refused: Mapping[int, RecordError] | None = None,
        *,
        dot: Callable[[Array, Array], float] = vectors_kernels.dot,
        slots_until_release: Callable[[], int] | None = None,
    ) -> None:
        self._dot = dot
        self._slots_until_release = slots_until_release
        self._count = count
        self._learn = learn
        self._weights = weights
        self._vectors = vectors
        self.refused: Mapping[int, RecordError] = refused or {}
        self.other_scores: list[float] = []
        self.admitted: list[bool] | None = None

    def take(self, stops: Sequence[int] = (), others: Sequence[Mapping[Any, Any]] = ()) -> list[float]:
        """Scores of the rows, each as `score_one` before `learn_one`, with the same bits. Call it once.

        Parameters
        ----------
        stops
            Indices of rows, ascending.
        others
            A usable record for each stop, scored just before that row into `other_scores`, and not learned.
        """
        scores, begin, end = np.empty(self._count), 0, 0
        kept: list[Array] = []
        if stops and self._slots_until_release is not None:
            weights, end = self._weights().copy(), self._slots_until_release()
        for stop in stops:
            if stop >= end:  # the weights have changed since the last copy
                self._part(slice(begin, stop), scores)
                begin, weights = stop, self._weights().copy()
                end = stop + (1 if self._slots_until_release is None else self._slots_until_release())
            kept.append(weights)
        self._part(slice(begin, self._count), scores)
        if stops:
            vectors = self._vectors(others)
            self.other_scores = [float(self._dot(w, row)) for w, row in zip(kept, vectors, strict=True)]
        values: list[float] = scores.tolist()
        return values

    def _part(self, part: slice, scores: Array) -> None:
        """Learn a part of the rows."""
        if part.start < part.stop:
            admitted = self._learn(part, scores[part])
            if admitted is not None:
                self.admitted = [*(self.admitted or ()), *admitted]


def _no_weights() -> Array:
    raise AssertionError("a streaming batch scores other records as it learns")


_UNLEARNED = np.array([np.nan])


class StreamingBatch(PreparedBatch):
    """Checked rows that one kernel call learns, together with others that are only scored.

    Parameters
    ----------
    rows, labels
        (n, d) and (n,).
    learn
        Learns rows in order, except those with label NaN; its third argument receives the score
        of each row before it. Returns 0, or another number if nothing has changed.
    vectors
        Maps k usable records to rows (k, d).
    refused
        As of `PreparedBatch`.
    """

    def __init__(
        self,
        rows: Array,
        labels: Array,
        learn: Callable[[Array, Array, Array], int],
        vectors: Callable[[Sequence[Mapping[Any, Any]]], Array],
        refused: Mapping[int, RecordError],
    ) -> None:
        def part(part: slice, scores: Array) -> None:
            learn(rows[part], labels[part], scores)

        super().__init__(len(rows), part, _no_weights, vectors, refused)
        self._all, self._labels, self._learn_all = rows, labels, learn

    def take(self, stops: Sequence[int] = (), others: Sequence[Mapping[Any, Any]] = ()) -> list[float]:
        """As in the base class, in one call: other records are interleaved as rows without a label."""
        if not stops:
            return super().take()
        vectors, edges = self._vectors(others), [0, *stops, self._count]
        rows, labels = list[Array](), list[Array]()
        for i in range(len(stops) + 1):
            part = slice(edges[i], edges[i + 1])
            rows += self._all[part], vectors[i : i + 1]
            labels += self._labels[part], _UNLEARNED
        scores = np.empty(self._count + len(stops))
        if self._learn_all(np.concatenate(rows), np.concatenate(labels[:-1]), scores) != 0:
            raise AssertionError("checked rows were refused")
        values: list[float] = scores.tolist()
        # From the end, so that earlier indices stay valid.
        other_scores = [values.pop(stops[i] + i) for i in range(len(stops) - 1, -1, -1)]
        self.other_scores = other_scores[::-1]
        return values
