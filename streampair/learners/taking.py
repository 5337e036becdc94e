"""Batches of records in one go, for a private learner: the bits of `take`, one record after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair.errors import ConfigError, RecordError
from streampair.learners.base import Learner
from streampair.learners.ready import ReadyRows, refusal
from streampair.learners.run import SlotRun
from streampair.privacy.origin import Origins
from streampair.records import features as _features

__all__ = ["TakesBatches"]

Array = NDArray[np.float64]
_NOBODY = Origins()


class TakesBatches(Learner):
    """Scores and learns a batch in one go, whatever its records are."""

    takes_nulls: ClassVar[bool] = True

    _run: Any
    _admission: Any
    _vectors_of: Any
    _note_label: Any
    # Whether `take` is that of `PrivateLearner`, and so are the two calls that it stands for.
    _one_packing: bool

    def _noise_of_weights(self) -> Array | None:
        rule = self._run.rule
        return None if rule is None else rule.noise

    def ready_many(
        self,
        xs: Sequence[Mapping[Any, Any]],
        ys: Sequence[Any],
        origins: Origins = _NOBODY,
        *,
        nulls: Sequence[int] = (),
    ) -> ReadyRows | None:
        """`take` of one record after the other: the same bits, and the work of a batch.

        Parameters
        ----------
        xs
            Records. Those that have no score are refused: each is a null slot, as of `learn_null`.
        ys
            Their labels; None and NaN: no label, a null slot.
        origins
            Where they come from.
        nulls
            Indices of records that are scored, whatever their labels, and then as of `learn_null`.

        Returns
        -------
        ReadyRows or None
            None, with nothing changed, before the features are known, for a metric, and where a record that
            is not whole may name its own entity: then they are to be taken one by one.
        """
        run = self._run
        if not self._one_packing or not isinstance(run, SlotRun):
            return None
        design = run.design
        refused: dict[int, RecordError] = {}
        ignored: dict[int, int] = {}

        def other(i: int) -> Sequence[float] | None:
            if self._admission is not None and origins is _NOBODY:
                return None  # it may name its own entity
            error = refusal(self, xs[i])
            if error is not None:
                refused[i] = error
                return (0.0,) * len(design.names)
            ignored[i] = design.read_learned(xs[i])
            values: list[float] = design.raw[0].tolist()
            return values

        rows = _features.packed_each(run.names, xs, kernels.MAX_FINITE, other)
        return None if rows is None else self._ready(run, rows, ys, origins, nulls, refused, ignored)

    def ready_rows(
        self,
        columns: Sequence[Any],
        rows: Array,
        ys: Sequence[Any],
        origins: Origins = _NOBODY,
        *,
        nulls: Sequence[int] = (),
    ) -> ReadyRows | None:
        """`ready_many` of the rows of an array (n, d) whose columns have these names.

        Returns
        -------
        ReadyRows or None
            None, with nothing changed, where these are not the known features, too.
        """
        run = self._run_of(columns)
        if run is None:
            return None
        refused: dict[int, RecordError] = {}
        fine = np.abs(rows) <= kernels.MAX_FINITE
        if not fine.all():
            rows = rows.copy()
            for i in np.flatnonzero(~fine.all(axis=1)).tolist():
                error = refusal(self, dict(zip(columns, rows[i].tolist(), strict=True)))
                if error is None:
                    return None
                refused[i] = error
                rows[i] = 0.0
        return self._ready(run, run.design.arranged(columns, rows), ys, origins, nulls, refused, {})

    def _run_of(self, columns: Sequence[Any]) -> SlotRun | None:
        """The run, if it takes rows of these columns at once: of exactly the known features."""
        run = self._run
        if not self._one_packing or not isinstance(run, SlotRun) or len(columns) != len(run.names):
            return None
        return run if all(map(run.design.index.__contains__, columns)) else None

    def _score_learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> Array:
        """As in the base, but a row that cannot be scored costs itself alone: NaN, and a null slot."""
        if self._admission is not None:
            raise ConfigError("score_learn_many does not know entities", fix="use score_one and learn_one")
        scores = np.full(len(rows), np.nan)
        run = self._run_of(columns)
        if run is not None and (np.abs(rows) <= kernels.MAX_FINITE).all():
            run.take_many(run.design.arranged(columns, rows), labels, scores=scores)
            return scores
        for i in range(len(rows)):
            with contextlib.suppress(RecordError):
                scores[i : i + 1] = self._score_rows(columns, rows[i : i + 1])
            self._learn_rows(columns, rows[i : i + 1], labels[i : i + 1])
        return scores

    def _ready(
        self,
        run: SlotRun,
        rows: Array,
        ys: Sequence[Any],
        origins: Origins,
        nulls: Sequence[int],
        refused: Mapping[int, RecordError],
        ignored: Mapping[int, int],
    ) -> ReadyRows:
        task = self._task
        high, low = task.high, task.low
        labels = np.array([1.0 if y is high else -1.0 if y is low else task.label_or_null(y) for y in ys])
        away = {*nulls, *refused}
        for i in np.flatnonzero(np.isnan(labels)).tolist():
            if i not in away:
                self._note_label(ys[i])
        null = None
        if nulls or refused:
            null = np.zeros(len(rows), dtype=np.bool_)
            null[[*nulls, *refused]] = True
        # Features that are not in the set, of the records that are learned.
        unknown = np.zeros(len(rows), dtype=np.int64)
        unknown[list(ignored)] = list(ignored.values())
        if null is not None:
            unknown[null] = 0

        def learn(part: slice, scores: Array) -> list[bool] | None:
            run.counts.ignored_features += int(unknown[part].sum())
            blank = None if null is None else null[part]
            admitted = run.take_many(rows[part], labels[part], origins.part(part), scores, blank)
            return None if admitted is None else admitted.tolist()

        return ReadyRows(
            *(len(rows), learn, lambda: run.weights, self._vectors_of, refused),
            names=run.names,
            rows=None if ignored else rows,
            steady=lambda: max(run.settings.warmup - run.slots, 0) or run.rule.steady,
        )
