"""Where an OGD learner keeps the records that new ones are paired with: a region of its flat state.

The kernels read and write the region; here is how large it is, how it moves when features are added, and how
it is saved.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import _kernels as k
from streampair import buffers

__all__ = ["Memory", "Rows"]

Array = NDArray[np.float64]


class Memory(abc.ABC):
    """Layout of the region, for `cap` features with `d` of them in use. Holds no state itself."""

    @abc.abstractmethod
    def cells(self, cap: int) -> int:
        """Length of the region."""

    @abc.abstractmethod
    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        """Copy what a region holds into a zeroed one with room for more features."""

    @abc.abstractmethod
    def export(self, region: Array, header: Array) -> dict[str, Array]:
        """What the region holds, as arrays of exactly the features in use."""

    @abc.abstractmethod
    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Array]:
        """The arrays that `export` gave, if they fit the scalars; else ValueError and the like."""

    @abc.abstractmethod
    def fill(self, region: Array, arrays: Mapping[str, Array], d: int) -> None:
        """Put checked arrays into a zeroed region with room for d features."""


class Rows(Memory):
    """A bounded table of records, one row each: label, then features."""

    def __init__(self, policy: buffers.Buffer) -> None:
        self.size = policy.size
        self.code = policy.code

    def cells(self, cap: int) -> int:
        return self.size * (1 + cap)

    def _table(self, region: Array, cap: int, d: int) -> Array:
        return region.reshape(self.size, 1 + cap)[:, : 1 + d]

    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        self._table(new, new_cap, d)[:] = self._table(old, old_cap, d)

    def export(self, region: Array, header: Array) -> dict[str, Array]:
        table = self._table(region, int(header[k.CAP]), int(header[k.D]))
        return {"rows": table[: int(header[k.FILLED])].copy()}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Array]:
        filled, records = int(header[k.FILLED]), int(header[k.RECORDS])
        expected = min(records, 1) * self.size
        if self.code != k.RESERVOIR_REPLACE:
            expected = min(records, self.size)
        if filled != expected or header[k.NEXT] not in range(self.size):
            raise ValueError("counters that do not fit each other")
        rows = np.asarray(saved["rows"], dtype=np.float64)
        if rows.shape != (filled, 1 + d):
            raise ValueError("rows of another shape")
        return {"rows": rows}

    def fill(self, region: Array, arrays: Mapping[str, Array], d: int) -> None:
        rows = arrays["rows"]
        self._table(region, d, d)[: len(rows)] = rows
