"""Batches of records in one go, for a learner that is not private: the bits of one record after the other."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampair.errors import RecordError
from streampair.learners.columns import KnowsColumns
from streampair.learners.ready import WovenRows, labels_of, low_label, refusal
from streampair.learners.storage import Memory
from streampair.records import features as _features

__all__ = ["LearnsBatches"]

Array = NDArray[np.float64]


class LearnsBatches(KnowsColumns):
    """Scores and learns a batch in one call of compiled code."""

    takes_nulls: ClassVar[bool] = True

    _state: Array
    _memory: Memory
    _high: Any
    _low: Any
    # Largest size of a feature.
    _limit: float
    # Whether `ready_many` may score and learn in one.
    _in_one: bool
    _learn_many: Callable[[Array, Array, Array, Array], int]

    def ready_many(
        self, xs: Sequence[Mapping[Any, Any]], ys: Sequence[Any], *, nulls: Sequence[int] = ()
    ) -> WovenRows | None:
        """Records that can be scored and learned one after the other, in one call of compiled code.

        Parameters
        ----------
        xs
            Records with exactly the known features.
        ys
            Their labels.
        nulls
            Indices of records that are scored and not learned, whatever their labels; and of what is no
            record, which is refused.

        Returns
        -------
        WovenRows or None
            None where one of the records has other features, where the memory has no room or cannot hold a
            value, and for a metric: then they are to be taken one by one. Nothing has changed yet.
        """
        refused: dict[int, RecordError] = {}

        def other(i: int) -> Sequence[float] | None:
            error = refusal(self, xs[i])
            if error is None:
                return None
            refused[i] = error
            return zeros

        zeros = (0.0,) * self._d
        rows = _features.packed_each(self._names, xs, self._most, other) if self._in_one else None
        return None if rows is None else self._ready(rows, ys, nulls, refused)

    def ready_rows(
        self, columns: Sequence[Hashable], rows: Array, ys: Sequence[Any], *, nulls: Sequence[int] = ()
    ) -> WovenRows | None:
        """`ready_many` of the rows of an array (n, d) whose columns have these names."""
        if not (self._in_one and len(columns) == self._d and all(map(self._index.__contains__, columns))):
            return None
        refused: dict[int, RecordError] = {}
        fine = np.abs(rows) <= self._most
        if not fine.all():
            rows = rows.copy()
            for i in np.flatnonzero(~fine.all(axis=1)).tolist():
                error = refusal(self, dict(zip(columns, rows[i].tolist(), strict=True)))
                if error is None:
                    return None
                refused[i] = error
                rows[i] = 0.0
        return self._ready(_features.arrange(columns, rows, self._names, self._index), ys, nulls, refused)

    @property
    def _most(self) -> float:
        return min(self._limit, self._memory.limit)

    def _ready(
        self, rows: Array, ys: Sequence[Any], nulls: Sequence[int], refused: dict[int, RecordError]
    ) -> WovenRows | None:
        try:
            self._memory.check_room(len(rows))
        except RecordError:
            return None
        labels = labels_of(self, ys, nulls, refused)
        low = low_label(self, ys, labels)

        def learn(part: Array, given: Array, scores: Array) -> int:
            failed = self._learn_many(self._state, part, given, scores)
            if low is not None and not failed:
                self._learn_label(low)
            return failed

        published = self._published()  # a view: it moves when there are new names, and here are none
        return WovenRows(rows, labels, learn, lambda: published, self._vectors_of, refused, self._names)

    def _vectors_of(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Usable records as rows (n, d): what is missing counts 0, what is unknown does not count."""
        columns, values = getattr(xs, "names", None), getattr(xs, "values", None)
        if columns is not None and isinstance(values, np.ndarray):
            rows = _features.arrange(columns, values, self._names, self._index)
            flat = rows.ravel()
            square = float(flat @ flat)  # NaN where there is one: in one call, of which most are for few rows
            return np.nan_to_num(rows, nan=0.0) if square != square else rows
        packed, names = _features.packed(self._names, xs), self._names
        return (
            np.array([[float(x.get(name, 0.0)) for name in names] for x in xs]) if packed is None else packed
        )
