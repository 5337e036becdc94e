"""Values beyond the bounds that were declared for their feature, counted: somebody has to look at them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Outside"]


class Outside:
    """Counts by feature. Learners that take bounds clip such values; nothing is steered by the counts.

    Parameters
    ----------
    bounds
        Lowest and highest value of each feature.

    Attributes
    ----------
    counts
        Values so far, by feature; of those alone that had any.

    Examples
    --------
    >>> outside = Outside({"amount": (0.0, 1.0)})
    >>> outside.one({"amount": 3.0, "age": 99.0})
    >>> outside.counts
    {'amount': 1}
    """

    def __init__(self, bounds: Mapping[str, tuple[float, float]]) -> None:
        self._bounds = dict(bounds)
        self._names: list[str] = []
        self._low = self._high = np.empty(0)
        self.counts: dict[str, int] = {}

    def one(self, x: Mapping[str, Any]) -> None:
        """Look at one record."""
        bounds = self._bounds
        for name, value in x.items():
            if name in bounds and isinstance(value, int | float):
                low, high = bounds[name]
                if value < low or value > high:
                    self.counts[name] = self.counts.get(name, 0) + 1

    def rows(self, names: list[str], values: NDArray[np.float64], refused: Collection[int] = ()) -> None:
        """Look at records of shape (n, d), but for the rows that were refused: their values mean nothing."""
        if names != self._names:
            pairs = [self._bounds.get(name, (-np.inf, np.inf)) for name in names]
            self._names = list(names)
            self._low = np.array([low for low, _ in pairs])
            self._high = np.array([high for _, high in pairs])
        beyond = (values < self._low) | (values > self._high)
        if not beyond.any():
            return
        beyond[[at for at in refused if at < len(values)]] = False
        for name, count in zip(names, beyond.sum(axis=0).tolist(), strict=True):
            if count:
                self.counts[name] = self.counts.get(name, 0) + count
