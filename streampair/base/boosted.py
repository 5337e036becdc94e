"""The boosted trees of an online forest: where they are in its state, moved, and as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.kernels import boosted_trees as kernels
from streampair.kernels import forest, vectors

__all__ = [
    "BoostedTrees",
    "Ring",
    "check_columns",
    "checked_ring",
    "checked_trees",
    "floats",
    "length_of",
    "whole_numbers",
]

Array = NDArray[np.float64]
Bits = NDArray[np.int64]

_SCALARS = (
    kernels.BOOSTED_KEPT,
    kernels.BOOSTED_TREE,
    kernels.BOOSTED_BUILT,
    kernels.BOOSTED_BIAS,
    kernels.BOOSTED_SINCE,
    kernels.BOOSTED_BEST,
    kernels.BOOSTED_SEEN,
    kernels.BOOSTED_CREDIT,
    kernels.BOOSTED_DRAWS,
)
_RING_SCALARS = (
    kernels.RING_TEXTS,
    kernels.RING_COLUMN,
    kernels.RING_BINNING,
)


def length_of(capacity: int, rows: int) -> tuple[int, int]:
    """Cells of a ring and of a block, for as many columns and records."""
    width = min(capacity, kernels.MOST_COLUMNS)
    return kernels.ring_places(width, rows)[-1], kernels.boosted_places(width, rows)[-1]


class Ring:
    """Views of the ring in the state of a forest; records are in the order of their age, the oldest first."""

    def __init__(self, state: Array) -> None:
        self.cells = state[int(state[forest.FOREST_RING]) :]
        self.width, self.rows = int(self.cells[kernels.RING_WIDTH]), int(self.cells[kernels.RING_ROWS])
        self._places = kernels.ring_places(self.width, self.rows)

    @staticmethod
    def begin(state: Array, capacity: int, rows: int, task: int) -> None:
        """Set the scalars of an empty ring."""
        cells = state[int(state[forest.FOREST_RING]) :]
        cells[kernels.RING_WIDTH] = min(capacity, kernels.MOST_COLUMNS)
        cells[kernels.RING_ROWS] = rows
        cells[kernels.RING_TASK] = task
        cells[kernels.RING_SEED] = state[forest.FOREST_SEED]

    @property
    def count(self) -> int:
        return int(self.cells[kernels.RING_COUNT])

    @property
    def d(self) -> int:
        return int(self.cells[kernels.RING_D])

    @property
    def slots(self) -> Bits:
        """Slots of the records."""
        slots: Bits = (int(self.cells[kernels.RING_HEAD]) - self.count + np.arange(self.count)) % self.rows
        return slots

    @property
    def columns(self) -> Bits:
        """View of edges and codes, as bits, (d, 64)."""
        view: Bits = self.cells[self._places[0] : self._places[1]].view(np.int64)
        return view.reshape(self.width, kernels.BINS)[: self.d]

    @property
    def _values(self) -> Bits:
        view: Bits = self.cells[self._places[1] : self._places[2]].view(np.int64)
        return view.reshape(self.rows, self.width)

    def exported(self) -> dict[str, Any]:
        """What is in the ring, as plain values; bins follow from the edges."""
        labels = self.cells[self._places[2] : self._places[3]]
        return {
            "scalars": self.cells[list(_RING_SCALARS)],
            "columns": self.columns.copy(),
            "values": self._values[self.slots, : self.d],
            "labels": labels[self.slots],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Fill an empty ring with what was exported: with the newest records if all are too many."""
        values, labels = saved["values"][-self.rows :], saved["labels"][-self.rows :]
        count, d = values.shape
        self.cells[list(_RING_SCALARS)] = saved["scalars"]
        self.cells[kernels.RING_D], self.cells[kernels.RING_COUNT] = d, count
        self.cells[kernels.RING_HEAD] = count % self.rows
        self.columns[:] = saved["columns"]
        self._values[:count, :d] = values
        self.cells[self._places[2] : self._places[2] + count] = labels
        for column in range(d):
            kernels.ring_fill(self.cells, column)

    def widen(self, d: int) -> None:
        """Mark columns that are new as missing in all records; only the first 8,000 are in a ring."""
        before, after = self.d, min(d, self.width)
        self._values[self.slots[:, None], np.arange(before, after)] = np.array(np.nan).view(np.int64)
        self.cells[kernels.RING_D] = after


class BoostedTrees:
    """Views of the boosted trees in a block of a forest."""

    def __init__(self, block: Array, ring: Ring) -> None:
        self.cells = block[int(block[forest.FOREST_BOOSTED]) :]
        self._ring = ring
        self._places = kernels.boosted_places(ring.width, ring.rows)

    def begin(self) -> None:
        """Make the block one that has learned nothing."""
        kernels.boosted_fresh(self.cells, self._ring.width, self._ring.rows)

    def _part(self, i: int) -> Array:
        part: Array = self.cells[self._places[i] : self._places[i + 1]]
        return part.reshape(kernels.BOOSTED_TREES, -1)

    def fill(self, bias: float, columns: Bits, marks: Bits, values: Array) -> None:
        """Set what a model scores by."""
        self.cells[kernels.BOOSTED_BIAS] = bias
        self.cells[kernels.BOOSTED_BUILT] = 1.0  # else no tree would be looked at
        self.columns[:], self.marks[:], self.values[:] = columns, marks, values

    @property
    def bias(self) -> float:
        return float(self.cells[kernels.BOOSTED_BIAS])

    @property
    def marks(self) -> Bits:
        """Thresholds, or sets of bins, as bits, (trees, 63)."""
        return self._part(0).view(np.int64)[:, : kernels.INNER]

    @property
    def columns(self) -> NDArray[np.int16]:
        """Columns of the nodes, inverted where texts are parted, (trees, 63)."""
        return self._part(1).view(np.int16)[:, : kernels.INNER]

    @property
    def values(self) -> Array:
        """Weights of the leaves, (trees, 64)."""
        return self._part(2)

    @property
    def _scores(self) -> Array:
        return self.cells[self._places[5] : self._places[6]]

    def _kept(self) -> Bits:
        """Slots of the records that the block learns from."""
        slots = self._ring.slots
        return slots[len(slots) - int(self.cells[kernels.BOOSTED_KEPT]) :]

    def exported(self) -> dict[str, Any]:
        """All that was learned, as plain values; the leaves of the records follow from the trees."""
        return {
            "scalars": self.cells[list(_SCALARS)],
            "marks": self.marks.copy(),
            "columns": self.columns.astype(np.int64),
            "values": self.values.copy(),
            "sums": self._part(3).copy(),
            "gains": self.cells[self._places[4] : self._places[4] + self._ring.d].copy(),
            "scores": self._scores[self._kept()],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Fill a block with what was exported, once its ring is full."""
        self.begin()
        self.cells[list(_SCALARS)] = saved["scalars"]
        kept = min(len(saved["scores"]), self._ring.count)
        self.cells[kernels.BOOSTED_KEPT] = kept
        self.marks[:], self.columns[:] = saved["marks"], saved["columns"]
        self.values[:], self._part(3)[:] = saved["values"], saved["sums"]
        gains = saved["gains"]
        self.cells[self._places[4] : self._places[4] + len(gains)] = gains
        self._scores[self._kept()] = saved["scores"][len(saved["scores"]) - kept :]
        if kept:  # a first record need not wait until this is compiled
            kernels.boosted_find(self._ring.cells, self.cells)


def checked_ring(saved: Mapping[str, Any], d: int) -> dict[str, Any]:
    """A ring of d columns as it was exported, once all that kernels use as an index is in range.

    Raises
    ------
    ValueError
        If it is not.
    """
    d = min(d, kernels.MOST_COLUMNS)
    scalars = floats(saved["scalars"], (len(_RING_SCALARS),))
    texts, column, binning = scalars.tolist()
    _check_counts((texts, 1), (column, d))
    if not 0.0 <= binning < 1.0:
        raise ValueError("columns that are not due")
    columns = whole_numbers(saved["columns"], (d, kernels.BINS))
    kinds = columns[:, -1].copy().view(np.float64)
    if not ((kinds >= 1 - kernels.BINS) & (kinds < kernels.BINS) & (kinds % 1.0 == 0.0)).all():
        raise ValueError("columns of no kind")
    labels = saved["labels"]
    count = len(labels)
    if count > kernels.ring_rows(d):
        raise ValueError("too many records in the ring")
    values = whole_numbers(saved["values"], (count, d))
    if (np.abs(values.view(np.float64)) > vectors.MAX_ABS).any():
        raise ValueError("records in the ring that cannot be")
    return {"scalars": scalars, "columns": columns, "values": values, "labels": floats(labels, (count,))}


def checked_trees(saved: Mapping[str, Any], d: int, count: int) -> dict[str, Any]:
    """Boosted trees as they were exported, in the same way; `count` records are in the ring.

    Raises
    ------
    ValueError
        If they are none.
    """
    d = min(d, kernels.MOST_COLUMNS)
    trees = kernels.BOOSTED_TREES
    scalars = floats(saved["scalars"], (len(_SCALARS),))
    kept, tree, built, _, since, best, seen, _, draws = scalars.tolist()
    _check_counts((kept, count), (tree, trees - 1), (built, 2**53), (since, 2**53), (draws, 2**53))
    sums = floats(saved["sums"], (trees, kernels.LEAVES))
    if best < 0.0 or seen < 0.0 or (sums < 0.0).any():
        raise ValueError("averages or sums of squares below 0")
    columns = whole_numbers(saved["columns"], (trees, kernels.INNER))
    check_columns(columns, d)
    return {
        "scalars": scalars,
        "marks": whole_numbers(saved["marks"], (trees, kernels.INNER)),
        "columns": columns,
        "values": floats(saved["values"], (trees, kernels.LEAVES)),
        "sums": sums,
        "gains": floats(saved["gains"], (d,)),
        "scores": floats(saved["scores"], (int(kept),)),
    }


def check_columns(columns: NDArray[Any], d: int) -> None:
    """ValueError if a node of the boosted trees has no column; those without a split have the first."""
    if not ((columns >= -d) & (columns < max(d, 1))).all():
        raise ValueError("nodes of other columns")


def _check_counts(*counts: tuple[float, float]) -> None:
    for value, most in counts:
        if not (0.0 <= value <= most and value.is_integer()):
            raise ValueError(f"a counter is {value!r}")


def floats(value: Any, shape: tuple[int, ...]) -> Array:
    """An array of finite numbers of a shape; else ValueError."""
    array = np.asarray(value, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError("numbers of another shape, or not finite")
    return array


def whole_numbers(value: Any, shape: tuple[int, ...]) -> Bits:
    """An array of 64-bit integers of a shape; else ValueError."""
    if not isinstance(value, np.ndarray) or value.dtype != np.int64 or value.shape != shape:
        raise ValueError("whole numbers of another kind or shape")
    return value
