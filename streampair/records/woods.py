"""From records to leaves of trees that nobody fitted, beside the vector of a linear score."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair.records.design import Design

__all__ = ["BINS", "CAP", "DEPTH", "TREES", "Trees", "WoodDesign"]

Array = NDArray[np.float64]

_CACHED = 2**18

TREES = 100
DEPTH = 6
"""What a forest has where nobody says otherwise."""

BINS = 32
"""Of the place of each column, in a histogram."""

CAP = 3.0
"""Standard deviations, where standardised values end."""


class Trees:
    """The trees for d columns, a function of numbers alone: of public coins, and of nothing that was learned.

    Attributes
    ----------
    columns, cuts
        Of each node, (trees, 2^depth), the root being node 1.
    """

    def __init__(self, d: int, trees: int = TREES, depth: int = DEPTH) -> None:
        self.columns = np.zeros((trees, 2**depth), dtype=np.int64)
        self.cuts = np.zeros((trees, 2**depth))
        kernels.wood_trees(d, self.columns, self.cuts)

    def leaves(self, places: Array) -> NDArray[np.int64]:
        """The leaf (n, trees) that rows of places (n, d) in (0, 1) fall into."""
        out = np.zeros((len(places), len(self.columns)), dtype=np.int64)
        kernels.wood_leaves(places, self.columns, self.cuts, out)
        return out


class WoodDesign(Design):
    """A design of d numbers, then a 1 for each leaf and each bin that the record is in, and 0 elsewhere.

    Before the moments are released it is in none.
    """

    def __init__(
        self,
        names: Sequence[Hashable],
        bounds: Mapping[Hashable, tuple[float, float]],
        trees: int = TREES,
        depth: int = DEPTH,
    ) -> None:
        super().__init__(names, bounds)
        d = len(self.names)
        self.trees = Trees(d, trees, depth)
        self.width = d + trees * 2**depth + d * BINS
        # As many as fit into a cache, whatever the forest.
        self.chunk = min(max(_CACHED // self.width, 32), self.chunk)
        self.clipped, self.ready = np.empty((1, d)), np.empty((1, self.width))
        self._one = (np.empty((1, d)), np.empty((1, d)), np.empty((1, trees), dtype=np.int64))

    def prepare(self, raw: Array, ready: Array, usable: Array) -> None:
        """As of a design, and the leaves of each row."""
        n, d = raw.shape
        if n == 1:
            linear, places, leaves = self._one
        else:
            linear, places = np.empty((n, d)), np.empty((n, d))
            leaves = np.empty((n, len(self.trees.columns)), dtype=np.int64)
        super().prepare(raw, linear, usable)
        ready[:, :d] = linear
        if not self.standardised:
            ready[:, d:] = 0.0
            return
        # A standard deviation is cap / CAP long.
        unit = CAP / self.cap
        kernels.wood_places(raw, self._scale, self._shift, self.mean, self.factor, self.cap, unit, places)
        kernels.wood_marks(places, self.trees.columns, self.trees.cuts, BINS, leaves, ready)
