"""Leaf sums of random trees beside second moments, calibrated (docs/privacy.md 10.10).

A record adds to its block F(x, s) = (x x', a s x) as in 10.1, to each tree's leaf that it falls into (1, s),
and a 1 to a bin of each field at most. The trees are drawn from public coins, and the places of their cuts
are in units of what the warm-up has released, so no learned record decides about them. All of it is one
release in units in which its parts have their shares of mu^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streampair.privacy.mechanisms.moments_plan import SecondMomentsPlan, second_moments_diameter
from streampair.records.woods import DEPTH, TREES, marks_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["WoodsPlan", "shares", "woods_diameter"]

# Of mu^2: what leaves have at most, as many features as they have so much with, and what bins have.
_LEAVES, _FEW, _BINS = 0.45, 50, 0.1

_MOMENTS = second_moments_diameter()


def shares(features: int) -> tuple[float, float, float]:
    """Of mu^2: for second moments, leaves, and bins. Of many features leaves tell less.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.woods_plan import shares
    >>> shares(20), shares(100)
    ((0.45, 0.45, 0.1), (0.675, 0.225, 0.1))
    """
    leaves = _LEAVES * min(1.0, _FEW / features)
    return 1.0 - _BINS - leaves, leaves, _BINS


def woods_diameter(fields: int, leaf: float, mark: float, trees: int = TREES) -> float:
    """Replacement diameter of `(x x', s x, leaf (1, r) of each tree's leaf, mark for each field's bin)`.

    For |x| <= 1, |s| <= 1 and r = 1 or -1. In a tree where two records are in different leaves, their sums
    differ by `2 + 1 + 1 = 4` squared, in one where they share it by `(r - r')^2 <= 4`; in each field at most
    two bins differ, by 1. So the square is `9/2 + 4 trees leaf^2 + 2 fields mark^2` (docs/privacy.md, Lemma
    90).

    Examples
    --------
    >>> from streampair.privacy.mechanisms.woods_plan import woods_diameter
    >>> round(woods_diameter(2, 0.0, 0.0), 6), round(woods_diameter(2, 1.0, 0.0), 6)
    (2.12132, 20.112185)
    """
    return math.sqrt(_MOMENTS * _MOMENTS + 4.0 * trees * leaf * leaf + 2.0 * fields * mark * mark)


@dataclass(frozen=True, eq=False)
class WoodsPlan(SecondMomentsPlan):
    """The mechanism, calibrated: that of `SecondMomentsPlan`, whose sums are longer.

    Parameters
    ----------
    trees, depth
        How many, and how often a record is asked on its way to a leaf.
    fields
        How many columns each field has, in their order; empty: one each.
    """

    trees: int = TREES
    depth: int = DEPTH
    fields: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Columns of each field."""
        return self.fields or (1,) * self.features

    @property
    def marks(self) -> int:
        """Bins of all fields."""
        return marks_of(self.sizes)

    @property
    def leaves(self) -> int:
        """Of all trees."""
        return int(self.trees * 2**self.depth)

    @property
    def dim(self) -> int:
        """Coordinates of a release: second moments, counts and labels of leaves, counts of bins."""
        return self.packed + 2 * self.leaves + self.marks

    @property
    def packed(self) -> int:
        """Of these, the second moments."""
        d = self.features
        return d * (d + 1) // 2 + d

    @property
    def rounded(self) -> int:
        """Leaves and bins count whole records, so second moments alone are rounded."""
        return self.packed

    @property
    def leaf(self) -> float:
        """What a record counts in a leaf, in the units of second moments."""
        first, second, _ = shares(self.features)
        return _MOMENTS * math.sqrt(second / first / (4.0 * self.trees))

    @property
    def mark(self) -> float:
        """What it counts in a bin."""
        first, _, third = shares(self.features)
        return _MOMENTS * math.sqrt(third / first / (2.0 * len(self.sizes)))

    @property
    def steps(self) -> Floats:
        """Second moments are rounded to the grid; records in leaves and bins are counted, one by one."""
        lengths = (self.packed, 2 * self.leaves, self.marks)
        return np.repeat([self.grid, self.leaf, self.mark], lengths)

    @property
    def diameter(self) -> float:
        """As of `woods_diameter`."""
        return woods_diameter(len(self.sizes), self.leaf, self.mark, self.trees)

    @property
    def blank_move(self) -> float:
        """Of a record alone: 2 from second moments, 2 from each tree, 1 from each field, squared."""
        leaf, mark = self.leaf, self.mark
        return math.sqrt(2.0 + 2.0 * self.trees * leaf * leaf + len(self.sizes) * mark * mark)

    @property
    def lemma(self) -> int:
        """Which one has the diameter."""
        return 90
