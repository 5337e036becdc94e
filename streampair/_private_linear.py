"""What the private learners whose score is linear share, of all mechanisms."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair._design import check_scored
from streampair._learner import LinearPairLearner
from streampair._private_base import PrivateBase

__all__ = ["LinearPrivate"]

Array = NDArray[np.float64]


class LinearPrivate(PrivateBase, LinearPairLearner):
    """A private learner whose score is ``w . design(x)``."""

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record under the published model: higher ranks higher.

        Missing features count as neutral, unknown ones are ignored. 0 until the warm-up is over.

        Raises
        ------
        RecordError
            If a feature is text, None, NaN or infinite, or the record is empty.
        """
        if self._design is None or self._rule is None:
            check_scored(x)
            return 0.0
        return float(kernels.dot(self._rule.average, self._design.of(x)))

    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        ready = self._prepared(columns, rows)
        out = np.zeros(len(rows))
        if self._rule is not None and len(rows):
            kernels.score_many(self._rule.average, ready, out)
        return out

    @property
    def weights_vector(self) -> Array:
        """Published weights, shape (d,), for the vectors of `design`: a copy."""
        return np.empty(0) if self._rule is None else self._rule.average.copy()
