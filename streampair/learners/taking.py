"""Batches of records in one go, for a private learner: the bits of `take`, one record after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair.errors import ConfigError, RecordError
from streampair.learners.base import Learner
from streampair.learners.ready import ReadyRows
from streampair.learners.run import SlotRun
from streampair.privacy.origin import Origins
from streampair.records import features as _features

__all__ = ["TakesBatches"]

Array = NDArray[np.float64]
_NOBODY = Origins()


class TakesBatches(Learner):
    """Scores and learns a batch in one go, where all its records are whole."""

    _run: Any
    _admission: Any
    design_many: Any
    # Whether `take` is that of `PrivateLearner`, and so are the two calls that it stands for.
    _one_packing: bool

    def ready_many(
        self, xs: Sequence[Mapping[Any, Any]], ys: Sequence[Any], origins: Origins = _NOBODY
    ) -> ReadyRows | None:
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
        ReadyRows or None
            None, with nothing changed, where one of the records has other features or a value that is no
            finite number, before the features are known, and for a metric: then they are to be taken one by
            one.
        """
        run = self._run
        if not self._one_packing or not isinstance(run, SlotRun):
            return None
        rows = _features.packed(run.names, xs, kernels.MAX_FINITE)
        return None if rows is None else self._ready(run, rows, ys, origins)

    def ready_rows(
        self, columns: Sequence[Any], rows: Array, ys: Sequence[Any], origins: Origins = _NOBODY
    ) -> ReadyRows | None:
        """`ready_many` of the rows of an array (n, d) whose columns have these names.

        Returns
        -------
        ReadyRows or None
            As `ready_many`.
        """
        run = self._run_of(columns, rows)
        return None if run is None else self._ready(run, run.design.arranged(columns, rows), ys, origins)

    def _run_of(self, columns: Sequence[Any], rows: Array) -> SlotRun | None:
        """The run, if it takes such rows at once: of exactly the known features, and finite."""
        run = self._run
        if not self._one_packing or not isinstance(run, SlotRun) or len(columns) != len(run.names):
            return None
        whole = (
            all(map(run.design.index.__contains__, columns)) and (np.abs(rows) <= kernels.MAX_FINITE).all()
        )
        return run if whole else None

    def _score_learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> Array:
        """As in the base, but a row that cannot be scored costs itself alone: NaN, and a null slot."""
        if self._admission is not None:
            raise ConfigError("score_learn_many does not know entities", fix="use score_one and learn_one")
        scores = np.full(len(rows), np.nan)
        run = self._run_of(columns, rows)
        if run is not None:
            run.take_many(run.design.arranged(columns, rows), labels, scores=scores)
            return scores
        for i in range(len(rows)):
            with contextlib.suppress(RecordError):
                scores[i : i + 1] = self._score_rows(columns, rows[i : i + 1])
            self._learn_rows(columns, rows[i : i + 1], labels[i : i + 1])
        return scores

    def _ready(self, run: SlotRun, rows: Array, ys: Sequence[Any], origins: Origins) -> ReadyRows:
        task = self._task
        high, low = task.high, task.low
        labels = np.array([1.0 if y is high else -1.0 if y is low else task.label_or_null(y) for y in ys])

        def learn(part: slice, scores: Array) -> list[bool] | None:
            admitted = run.take_many(rows[part], labels[part], origins.part(part), scores)
            return None if admitted is None else admitted.tolist()

        return ReadyRows(len(rows), learn, lambda: run.weights, self.design_many)
