"""Random trees over the fields of a record, and the design vectors that they make (docs/privacy 10.10)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.kernels import random_trees
from streampair.records.features import Design

__all__ = [
    "BINS",
    "CAP",
    "DEPTH",
    "TREES",
    "RandomTreeDesign",
    "Trees",
    "fields_of",
    "marks_of",
]

Array = NDArray[np.float64]

TREES = 100
DEPTH = 6
"""Default parameters of a forest."""

BINS = 32
"""Number of bins of a column's histogram."""

CAP = 3.0
"""Bound of standardised values, in standard deviations."""


def fields_of(names: Iterable[Hashable]) -> tuple[int, ...]:
    """Number of columns of each field, for columns in the order of a design.

    The columns that `preprocessing.OneHot` makes of one field, such as `country=NL` and `country=BE`, are one
    field.

    Examples
    --------
    >>> from streampair.records.random_trees import fields_of
    >>> fields_of(["amount", "card=credit", "card=debit", "country=BE", "hour"])
    (1, 2, 1, 1)
    """
    sizes: list[int] = []
    before: str | None = None
    for name in names:
        field, equals, _ = name.partition("=") if isinstance(name, str) else ("", "", "")
        if equals and field == before:
            sizes[-1] += 1
        else:
            sizes.append(1)
        before = field if equals else None
    return tuple(sizes)


def marks_of(sizes: Iterable[int]) -> int:
    """Number of bins of all fields: `BINS` for a field of one column, else one per column."""
    return sum(BINS if size == 1 else size for size in sizes)


class Trees:
    """Random trees over fields: a function of public random numbers, independent of the data.

    Parameters
    ----------
    sizes
        Number of columns of each field; a field of more than one is categorical.
    trees, depth
        Number of trees, and their depth.

    Attributes
    ----------
    sizes
        `sizes` as an array.
    fields, cuts
        Field and threshold of each node, (trees, 2^depth); the root is node 1.
    """

    def __init__(self, sizes: Sequence[int], trees: int = TREES, depth: int = DEPTH) -> None:
        self.sizes = np.array(sizes, dtype=np.int64)
        self.fields = np.zeros((trees, 2**depth), dtype=np.int64)
        self.cuts = np.zeros((trees, 2**depth))
        random_trees.tree_splits(self.sizes, self.fields, self.cuts)

    def leaves(self, places: Array) -> NDArray[np.int64]:
        """Leaves (n, trees) of rows of positions (n, fields): in (0, 1), or the index of a category."""
        out = np.zeros((len(places), len(self.fields)), dtype=np.int64)
        random_trees.tree_leaves(places, self.sizes, self.fields, self.cuts, out)
        return out


class RandomTreeDesign(Design):
    """A design of d numbers, followed by the leaf of each tree and the bin of each field.

    A leaf, or a bin, stands for a coordinate that is 1 while those of the other leaves are 0; a row has its
    number. Before the moments are released there are none, -1. After that a record with missing values is
    usable too, for its leaves; sums over rows leave out its linear part.

    Attributes
    ----------
    trees
        The trees.
    coordinates
        Number of coordinates of the weights: features, leaves of all trees, and bins of all fields.
    """

    def __init__(
        self,
        names: Sequence[Hashable],
        bounds: Mapping[Hashable, tuple[float, float]],
        trees: int = TREES,
        depth: int = DEPTH,
    ) -> None:
        super().__init__(names, bounds)
        d, sizes = len(self.names), fields_of(self.names)
        self.trees = Trees(sizes, trees, depth)
        self.width = d + trees + len(sizes)
        self.coordinates = d + trees * 2**depth + marks_of(sizes)
        self.clipped, self.ready = np.empty((1, d)), np.empty((1, self.width))
        self._gaps = False
        self._one = (np.empty((1, d)), np.empty((1, len(sizes))), np.empty((1, trees), dtype=np.int64))

    def prepare(self, raw: Array, ready: Array, usable: Array) -> None:
        """As `Design.prepare`, with the leaves of each row."""
        n, d = raw.shape
        trees = self.trees
        if isinstance(self.start, RandomTreeDesign):
            self.start.prepare(raw, ready, usable)
            self._gaps = self.start._gaps
            return
        if n == 1:
            linear, places, leaves = self._one
        else:
            linear, places = np.empty((n, d)), np.empty((n, len(trees.sizes)))
            leaves = np.empty((n, len(trees.fields)), dtype=np.int64)
        super().prepare(raw, linear, usable)
        if n == 1:
            self._gaps = not usable[0]
        ready[:, :d] = linear
        if not self.standardised:
            ready[:, d:] = -1.0
            return
        # A standard deviation has the length cap / CAP.
        random_trees.tree_places(raw, trees.sizes, self.scaling, self.cap, CAP / self.cap, places)
        random_trees.tree_marks(places, trees.sizes, trees.fields, trees.cuts, BINS, leaves, ready)
        gaps = usable == 0.0
        if gaps.any():
            # A record without any known feature is not usable.
            usable[gaps] = np.isfinite(raw[gaps]).any(axis=1)

    def dot(self, weights: Array, row: Array) -> float:
        """As `Design.dot`."""
        out = np.empty(1)
        self.score_rows(weights, row[None], out)
        return float(out[0])

    def score_rows(self, weights: Array, rows: Array, out: Array) -> None:
        """As `Design.score_rows`."""
        random_trees.tree_row_scores(weights, rows, len(self.names), len(self.trees.fields), out)

    def whole(self, x: Any) -> bool:
        """As `Design.whole`: a record with a missing value is not whole, whatever its leaves are."""
        return super().whole(x) and not self._gaps
