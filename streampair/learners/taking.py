"""Batches of records in one go, for a private learner: the bits of `take`, one record after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair.learners.base import Learner
from streampair.learners.run import SlotRun
from streampair.privacy.origin import Origins
from streampair.records import features as _features

__all__ = ["Taken", "TakesBatches"]

Array = NDArray[np.float64]
_NOBODY = Origins()


class Taken(NamedTuple):
    """What became of the records of a batch.

    Attributes
    ----------
    scores
        Of each record, given before its slot.
    admitted
        Whether each was learned from, as far as its entity goes; None where entities are not known.
    """

    scores: list[float]
    admitted: list[bool] | None


class TakesBatches(Learner):
    """Scores and learns a batch in one go, where all its records are whole."""

    _run: Any
    # Whether `take` is that of `PrivateLearner`, and so are the two calls that it stands for.
    _one_packing: bool

    def take_many(
        self, xs: Sequence[Mapping[Any, Any]], ys: Sequence[Any], origins: Origins = _NOBODY
    ) -> Taken | None:
        """`take` of one record after the other: the same bits, and the work of a batch.

        Parameters
        ----------
        xs
            Records with exactly the known features.
        ys
            Their labels; None and NaN: no label, a null slot.
        origins
            Where they come from.

        Returns
        -------
        Taken or None
            None, with nothing changed, where one of the records has other features or a value that is no
            finite number, before the features are known, and for a metric: then they are to be taken one by
            one.
        """
        run = self._run
        if not self._one_packing or not isinstance(run, SlotRun):
            return None
        rows = _features.packed(run.names, xs, kernels.MAX_FINITE)
        return None if rows is None else self._taken(run, rows, ys, origins)

    def take_rows(
        self, columns: Sequence[Any], rows: Array, ys: Sequence[Any], origins: Origins = _NOBODY
    ) -> Taken | None:
        """`take_many` of the rows of an array (n, d) whose columns have these names.

        Returns
        -------
        Taken or None
            As `take_many`.
        """
        run = self._run
        own = self._one_packing and isinstance(run, SlotRun) and len(columns) == len(run.names)
        if not own or not all(map(run.design.index.__contains__, columns)):
            return None
        if not (np.abs(rows) <= kernels.MAX_FINITE).all():
            return None
        return self._taken(run, run.design.arranged(columns, rows), ys, origins)

    def _taken(self, run: SlotRun, rows: Array, ys: Sequence[Any], origins: Origins) -> Taken:
        task, scores = self._task, np.empty(len(rows))
        high, low = task.high, task.low
        labels = np.array([1.0 if y is high else -1.0 if y is low else task.label_or_null(y) for y in ys])
        admitted = run.take_many(rows, labels, origins, scores)
        return Taken(scores.tolist(), None if admitted is None else admitted.tolist())
