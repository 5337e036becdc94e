"""Rows that a forest has checked, to be scored and learned one after the other in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels as k
from streampair.errors import RecordError

if TYPE_CHECKING:
    from streampair.learners.forest import ForestLearner

__all__ = ["ForestRows"]

Array = NDArray[np.float64]

_NO_SCORES: Array = np.empty(0)


class ForestRows:
    """Rows to be scored and learned one after the other; those that the forest refuses leave no trace.

    Parameters
    ----------
    learner
        The forest.
    rows
        Array (n, d); what is in a refused one means nothing.
    labels
        Their numbers (n,); NaN for one that is scored and not learned, or refused.
    refused
        Why `score_one` or `learn_one` would refuse a row, by its index: its score means nothing.
    low
        The label among them that predictions will show for what ranks low; None: they have one.

    Attributes
    ----------
    admitted
        None: nobody counts entities.
    numbers
        Whether no cell is a text.
    refused
        As given.
    """

    admitted: list[bool] | None = None
    beside: Sequence[float] = ()

    def __init__(
        self,
        learner: ForestLearner,
        rows: Array,
        labels: Array,
        refused: Mapping[int, RecordError],
        low: Any = None,
    ) -> None:
        self._learner, self._rows, self._labels, self._low = learner, rows, labels, low
        self.refused = refused
        self._away = np.flatnonzero(np.isnan(labels)).tolist()
        self.numbers = not np.isnan(rows).any()

    def take(self, stops: Sequence[int] = (), others: Sequence[Mapping[Any, Any]] = ()) -> list[float]:
        """`score_one`, then `learn_one`, of each row: the scores, the same bits. Once only.

        Parameters
        ----------
        stops
            Indices of rows, ascending.
        others
            For each a usable record that is scored just before the row, into `beside`, and not learned.
        """
        state = self._learner._state
        if stops:
            self.beside = self._score_at(state.copy(), stops, others)
        scores = np.zeros(len(self._rows))
        self._learn(state, 0, len(self._rows), scores)
        if self._low is not None:
            self._learner._learn_label(self._low)
        told: list[float] = scores.tolist()
        return told

    def _learn(self, state: Array, begin: int, end: int, scores: Array | None = None) -> None:
        """Learn the rows from `begin` to before `end`; those without a label are scored alone."""
        for at in [*(at for at in self._away if begin <= at < end), end]:
            shown = _NO_SCORES if scores is None else scores[begin:at]
            k.forest_learn_many(state, self._rows[begin:at], self._labels[begin:at], shown)
            if at < end and scores is not None and at not in self.refused:
                k.forest_score_many(state, self._rows[at : at + 1], scores[at : at + 1])
            begin = at + 1

    def _score_at(
        self, state: Array, stops: Sequence[int], others: Sequence[Mapping[Any, Any]]
    ) -> list[float]:
        """`score_one` of each of the others just before the row at its stop.

        A copy learns the rows once more up to each stop: a copy for each stop would be megabytes a record.
        """
        begin, score, told = 0, np.empty(1), []
        for stop, x in zip(stops, others, strict=True):
            self._learn(state, begin, stop)
            k.forest_score_many(state, self._learner._row_of(x)[None], score)
            told.append(float(score[0]))
            begin = stop
        return told
