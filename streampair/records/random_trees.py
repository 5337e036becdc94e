"""Designs of data-independent random trees: leaf indicators, next to the features of a linear score."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.kernels import random_trees
from streampair.records.design import Design

__all__ = ["BINS", "CAP", "DEPTH", "TREES", "RandomTreeDesign", "Trees", "fields_of", "marks_of"]

Array = NDArray[np.float64]

_CACHED = 2**18

TREES = 100
DEPTH = 6
"""Default parameters of a forest."""

BINS = 32
"""Number of bins of a column's histogram."""

CAP = 3.0
"""Bound of standardised values, in standard deviations."""


def fields_of(names: Iterable[Hashable]) -> tuple[int, ...]:
    """How many columns each field has, of columns in the order of a design.

    Those that `preprocessing.OneHot` makes of one field, `country=NL` and `country=BE`, are one.

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
    """How many bins there are: of fields of so many columns, `BINS` where it is one, else one a column."""
    return sum(BINS if size == 1 else size for size in sizes)


class Trees:
    """Random trees over fields: a function of public random numbers, independent of the data.

    Parameters
    ----------
    sizes
        How many columns each field has: more than one are categories.
    trees, depth
        How many, and how often a record is asked.

    Attributes
    ----------
    sizes
        The same, as an array.
    fields, cuts
        Of each node, (trees, 2^depth), the root being node 1.
    """

    def __init__(self, sizes: Sequence[int], trees: int = TREES, depth: int = DEPTH) -> None:
        self.sizes = np.array(sizes, dtype=np.int64)
        self.fields = np.zeros((trees, 2**depth), dtype=np.int64)
        self.cuts = np.zeros((trees, 2**depth))
        random_trees.tree_splits(self.sizes, self.fields, self.cuts)

    def leaves(self, places: Array) -> NDArray[np.int64]:
        """The leaf (n, trees) of rows of places (n, fields): in (0, 1), or the number of a category."""
        out = np.zeros((len(places), len(self.fields)), dtype=np.int64)
        random_trees.tree_leaves(places, self.sizes, self.fields, self.cuts, out)
        return out


class RandomTreeDesign(Design):
    """A design of d numbers, then a 1 for each leaf and each bin that the record is in, and 0 elsewhere.

    Before the moments are released it is in none. After that a record with a gap is one too, for the leaves:
    whoever sums rows up leaves out its linear part.
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
        self.width = d + trees * 2**depth + marks_of(sizes)
        # As many rows as fit into a cache.
        self.chunk = min(max(_CACHED // self.width, 32), self.chunk)
        self.clipped, self.ready = np.empty((1, d)), np.empty((1, self.width))
        self._gaps = False
        self._one = (np.empty((1, d)), np.empty((1, len(sizes))), np.empty((1, trees), dtype=np.int64))

    def prepare(self, raw: Array, ready: Array, usable: Array) -> None:
        """As of a design, and the leaves of each row."""
        n, d = raw.shape
        trees = self.trees
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
            ready[:, d:] = 0.0
            return
        # A standard deviation is cap / CAP long.
        how = (self._scale, self._shift, self.mean, self.factor, self.cap, CAP / self.cap)
        random_trees.tree_places(raw, trees.sizes, *how, places)
        random_trees.tree_marks(places, trees.sizes, trees.fields, trees.cuts, BINS, leaves, ready)
        gaps = usable == 0.0
        if gaps.any():
            # A record without a known feature is not usable.
            usable[gaps] = np.isfinite(raw[gaps]).any(axis=1)

    def whole(self, x: Any) -> bool:
        """As of a design: a record with a gap is not whole, whatever its leaves are."""
        return super().whole(x) and not self._gaps
