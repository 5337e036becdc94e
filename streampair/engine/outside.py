"""Counts of values outside the declared bounds of features."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.engine.records import EventRows

__all__ = ["Outside"]


class Outside:
    """Counts of values outside the declared bounds, by feature. The counts influence nothing.

    Learners that take bounds clip such values.

    Parameters
    ----------
    bounds
        Lowest and highest value of each feature.

    Attributes
    ----------
    counts
        Number of such values so far, by feature; features without any are left out.

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
        """Count the values of one record."""
        bounds = self._bounds
        for name, value in x.items():
            if name in bounds and isinstance(value, int | float):
                low, high = bounds[name]
                if value < low or value > high:
                    self.counts[name] = self.counts.get(name, 0) + 1

    def batch(
        self, table: EventRows | None, records: Sequence[Mapping[str, Any]], refused: Collection[int] = ()
    ) -> None:
        """Count the values of a batch, as rows if there is a table, without the refused records."""
        if table is not None:
            self.rows(table.names, table.values, refused)
            return
        for index, x in enumerate(records):
            if index not in refused:
                self.one(x)

    def rows(self, names: list[str], values: NDArray[np.float64], refused: Collection[int] = ()) -> None:
        """Count the values of rows (n, d). Refused rows are skipped: their values mean nothing."""
        if names != self._names:
            pairs = [self._bounds.get(name, (-np.inf, np.inf)) for name in names]
            self._names = list(names)
            self._low = np.array([low for low, _ in pairs])
            self._high = np.array([high for _, high in pairs])
        beyond = (values < self._low) | (values > self._high)
        if not beyond.any():
            return
        beyond[[row for row in refused if row < len(values)]] = False
        for name, count in zip(names, beyond.sum(axis=0).tolist(), strict=True):
            if count:
                self.counts[name] = self.counts.get(name, 0) + count
