"""What the private metric learners of all mechanisms share: a symmetric matrix as coordinates."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair._families import MetricLearner
from streampair._private_base import PrivateBase

__all__ = ["MetricPrivate"]

Array = NDArray[np.float64]


class MetricPrivate(PrivateBase, MetricLearner):  # type: ignore[misc]  # see MetricLearner
    """A private learner of a symmetric matrix W in a Frobenius ball.

    The rule sees its d (d + 1) / 2 isometric coordinates: the diagonal, and the entries beside it times
    sqrt(2). Noise with independent coordinates there is noise on the matrix, and norms are Frobenius norms.
    """

    _pairs = kernels.METRIC_PAIRS
    _most_features = 256

    @staticmethod
    def _coordinates(d: int) -> int:
        return d * (d + 1) // 2

    @property
    def metric_(self) -> Array:
        """Published W, symmetric, shape (d, d), in the order of `feature_names`: a copy."""
        d = len(self.feature_names)
        out = np.zeros((d, d))
        if self._rule is not None:
            upper = np.triu_indices(d)
            out[upper] = self._rule.average
            out *= math.sqrt(0.5)
            out = out + out.T
            diagonal = np.diag_indices(d)
            out[diagonal] *= math.sqrt(0.5)
        return out

    def _design_rows(self, columns: list[Hashable], rows: Array) -> Array:
        return self._prepared(columns, rows)

    def _import(self, saved: Mapping[str, Any]) -> None:
        super()._import(saved)
        self._root = (-1, None)  # it was of another metric
