"""Records that have few of many features: places and values."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.vectors import viewed_as

Bits: TypeAlias = NDArray[np.int64]


@kernel
def scatter(entries: Array, count: int, fill: float, row: Array) -> None:
    """Write `count` values into a row (d,) that is `fill` elsewhere.

    `entries` holds their places, the bits of integers, and then the values. Bits are copied: a NaN may carry
    a text.
    """
    cells, bits = viewed_as(row, np.int64), viewed_as(entries, np.int64)
    for i in range(row.shape[0]):
        row[i] = fill
    for j in range(count):
        cells[bits[j]] = bits[count + j]


@kernel
def sort_places(places: Bits, values: Bits) -> None:
    """Sort places, and what belongs to them."""
    count = places.shape[0]
    gap = count // 2
    while gap > 0:  # Shell's sort
        for j in range(gap, count):
            place, value = places[j], values[j]
            i = j
            while i >= gap and places[i - gap] > place:
                places[i] = places[i - gap]
                values[i] = values[i - gap]
                i -= gap
            places[i], values[i] = place, value
        gap //= 2
