"""A private forest: data-independent random trees, noisy leaf sums, and the weights that these give."""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair.kernels import dp_steps, random_trees, vectors
from streampair.privacy.accounting import planned_mu
from streampair.privacy.mechanisms.base import Link, Settings
from streampair.privacy.mechanisms.leaf_weights import leaf_weights
from streampair.privacy.mechanisms.second_moments import (
    ANYTIME,
    Moments,
    MomentsState,
    SecondMomentsPlan,
    second_moments_diameter,
)
from streampair.privacy.mechanisms.start_moments import MOST_CENTRE, Cuts
from streampair.privacy.mechanisms.synthetic_sample import ReleasedStatistics, synthetic_rows
from streampair.records.random_trees import DEPTH, TREES, RandomTreeDesign, Trees, marks_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    from streampair.privacy.mechanisms.start_moments import StartMoments

__all__ = [
    "MOST_DEPTH",
    "MOST_TREES",
    "DPForest",
    "DPForestPlan",
    "DPForestState",
    "dp_forest_diameter",
    "shares",
    "worthwhile",
]

# Shares of mu^2: the largest one of leaves, the features up to which they have it, and that of bins.
_LEAVES, _FEW, _BINS = 0.45, 50, 0.1

_MOMENTS = second_moments_diameter()


def shares(features: int) -> tuple[float, float, float]:
    """Shares of mu^2 for second moments, leaves and bins. With many features leaves get less.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.dp_forest import shares
    >>> shares(20), shares(100)
    ((0.45, 0.45, 0.1), (0.675, 0.225, 0.1))
    """
    leaves = _LEAVES * min(1.0, _FEW / features)
    return 1.0 - _BINS - leaves, leaves, _BINS


def dp_forest_diameter(fields: int, leaf: float, mark: float, trees: int = TREES) -> float:
    """Replacement diameter of `(x x', s x, leaf (1, r) of each tree's leaf, mark for each field's bin)`.

    For |x| <= 1, |s| <= 1 and r = 1 or -1. In a tree where two records are in different leaves, their sums
    differ by `2 + 1 + 1 = 4` squared, in one where they share it by `(r - r')^2 <= 4`; in each field at most
    two bins differ, by 1. So the square is `9/2 + 4 trees leaf^2 + 2 fields mark^2` (docs/privacy, Lemma
    90).

    Examples
    --------
    >>> from streampair.privacy.mechanisms.dp_forest import dp_forest_diameter
    >>> round(dp_forest_diameter(2, 0.0, 0.0), 6), round(dp_forest_diameter(2, 1.0, 0.0), 6)
    (2.12132, 20.112185)
    """
    return math.sqrt(_MOMENTS * _MOMENTS + 4.0 * trees * leaf * leaf + 2.0 * fields * mark * mark)


@dataclass(frozen=True, eq=False)
class DPForestPlan(SecondMomentsPlan):
    """Calibrated plan of a private forest: `SecondMomentsPlan` with leaf counts and bins in its sums.

    Parameters
    ----------
    trees, depth
        Number of trees, and of splits from the root to a leaf.
    fields
        Number of columns of each field, in their order; empty: one each.
    """

    trees: int = TREES
    depth: int = DEPTH
    fields: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of columns of each field."""
        return self.fields or (1,) * self.features

    @property
    def marks(self) -> int:
        """Number of bins of all fields."""
        return marks_of(self.sizes)

    @property
    def leaves(self) -> int:
        """Number of leaves of all trees."""
        return int(self.trees * 2**self.depth)

    @property
    def dim(self) -> int:
        """Number of coordinates of a release: second moments, counts and labels of leaves, counts of bins."""
        return self.packed + 2 * self.leaves + self.marks

    @property
    def packed(self) -> int:
        """Number of coordinates of the second moments."""
        d = self.features
        return d * (d + 1) // 2 + d

    @property
    def rounded(self) -> int:
        """Number of rounded coordinates: the second moments, since leaves and bins count whole records."""
        return self.packed

    @property
    def leaf(self) -> float:
        """Weight of a record in a leaf, in the units of second moments."""
        first, second, _ = shares(self.features)
        return _MOMENTS * math.sqrt(second / first / (4.0 * self.trees))

    @property
    def mark(self) -> float:
        """Weight of a record in a bin."""
        first, _, third = shares(self.features)
        return _MOMENTS * math.sqrt(third / first / (2.0 * len(self.sizes)))

    @functools.cached_property
    def cuts(self) -> Cuts:
        """How leaves and bins cut the records."""
        units = np.repeat([math.sqrt(2.0) * self.leaf, self.mark], [2 * self.leaves, self.marks])
        return Cuts(self.leaves, units, self.trees + len(self.sizes))

    @property
    def steps(self) -> Floats:
        """Step of each coordinate: the grid for second moments, a record's weight in leaves and bins."""
        lengths = (self.packed, 2 * self.leaves, self.marks)
        return np.repeat([self.grid, self.leaf, self.mark], lengths)

    @property
    def diameter(self) -> float:
        """Replacement diameter, see `dp_forest_diameter`."""
        return dp_forest_diameter(len(self.sizes), self.leaf, self.mark, self.trees)

    @property
    def blank_move(self) -> float:
        """Norm of a record's summand; squared: 2 by second moments, 2 by each tree, 1 by each field."""
        leaf, mark = self.leaf, self.mark
        return math.sqrt(2.0 + 2.0 * self.trees * leaf * leaf + len(self.sizes) * mark * mark)

    @property
    def lemma(self) -> int:
        """Number of the lemma that proves the diameter."""
        return 90


MOST_TREES, MOST_DEPTH = 500, 8
"""A release has twice as many numbers as there are leaves."""

_ROWS = (4096, 32768)
"""Synthetic rows for a model on the way, and for the one at the horizon or with the sums of a table."""

_MOST_NOISE = 0.1
"""Of the records: noise in the leaves of a tree, at the end."""


def worthwhile(
    epsilon: float,
    delta: float,
    horizon: int,
    depth: int = DEPTH,
    features: int = 1,
) -> bool:
    """Whether leaves gain more than they cost at the horizon, from public numbers alone.

    The leaves of a tree together have noise of `sigma sqrt(2^depth)`, which must be at most a tenth of the
    records, with many features less in proportion to the leaves' share of the budget. Otherwise the linear
    score has the whole budget, since it would lose more than the leaves gain.
    """
    sigma = 2.0 * math.sqrt(TREES) / (planned_mu(epsilon, delta) * math.sqrt(shares(features)[1]))
    most = _MOST_NOISE * shares(features)[1] / shares(1)[1]
    return sigma * math.sqrt(2.0**depth) <= most * horizon


class DPForestState(MomentsState):
    """State of a private forest: sums with leaves and bins, models of a linear score and leaf weights.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    """

    plan: DPForestPlan

    slow_fits: ClassVar[bool] = True

    def __init__(self, plan: DPForestPlan) -> None:
        super().__init__(plan)
        self.trees = Trees(plan.sizes, plan.trees, plan.depth)
        self._w = np.zeros(plan.features + plan.leaves + plan.marks)
        # Columns of the bins of numbers.
        self._bins = plan.features + plan.trees + np.flatnonzero(np.array(plan.sizes) == 1)

    def _sum_up(self, rows: Floats, labels: Floats) -> None:
        plan = self.plan
        d = plan.features
        # A number without a bin is missing: only the leaves learn the record.
        whole = np.all(rows[:, self._bins] >= 0.0, axis=1)
        linear = rows[:, :d] * whole[:, None]
        self.block.add(dp_steps.second_moment_sums, linear, labels, self._centre, self._weight, plan.grid)
        self.block.add(random_trees.tree_sums, rows, labels, d, plan.trees, plan.leaves)

    def _score(self, rows: Floats, scores: Floats) -> None:
        plan = self.plan
        random_trees.tree_row_scores(self.average, rows, plan.features, plan.trees, scores)

    def _grids(self) -> Floats:
        return self.plan.steps

    def _packed(self) -> int:
        return self.plan.packed

    def begin_at(self, weights: Floats) -> None:
        """As of moments; the weights are those of the linear part, (d,)."""
        w = np.zeros(len(self._w))
        w[: len(weights)] = weights
        super().begin_at(weights)
        self._w = w

    def begin_with_model(self, weights: Floats, link: Link) -> None:
        """Use the model of the table, which is that of its sums alone, until the first release.

        Parameters
        ----------
        weights
            Of features, leaves and bins.
        link
            Link from a score to a probability.
        """
        self._w, self._link, self._stale = weights.copy(), link, False
        self._inputs = {}

    def _is_of(self, table: StartMoments, noise: float, records: float, look: int) -> bool:
        leaves = self._own_leaves()
        return super()._is_of(table, noise, records, look) and table.has_leaves(
            leaves, noise, records, look, self.plan.cuts
        )

    def _own_leaves(self) -> Floats:
        """Means of counts and labels of leaves and of counts of bins, by the releases alone."""
        return np.asarray(self._weighted[self.plan.packed :] / self._numbers[1])

    def _leaf_means(self) -> tuple[Floats, float, float]:
        """Means as of `_own_leaves`, pooled with those of the table.

        Also returns the precision of each, 0 if there are none, and how many records of equal weight they
        are the means of.
        """
        _, known, slots = self._numbers.tolist()  # slot of the last release
        table = self._table
        if not self._pooled or table is None or table.leaves is None:
            return (self._own_leaves() if known else np.zeros(0)), known, slots
        plan = self.plan
        noise, cells = (1.0 / known if known else math.inf), len(table.leaves)
        # A record is in one leaf of each tree, with a label of 1 or -1, and in one bin of each field.
        sampled = (2.0 * plan.trees * plan.leaf * plan.leaf + len(plan.sizes) * plan.mark * plan.mark) / cells
        a, b = table.shares(noise, int(slots), plan.horizon, sampled)
        if not b:
            return table.leaves, 1.0 / table.noise, float(table.rows)
        pooled_noise = a * a * table.noise + b * b * noise
        means = a * table.leaves + b * self._own_leaves()
        return means, 1.0 / pooled_noise, 1.0 / (a * a / table.rows + b * b / slots)

    def _noise_of_weights(self) -> None:
        """None: the weights are in log-odds, a unit that is itself noisy."""

    def _compute_model(self) -> tuple[Floats, Link]:
        """Weights of the design, and link, from all releases so far; at first the linear model alone."""
        plan = self.plan
        linear, link = super()._compute_model()
        w = np.zeros(len(self._w))
        w[: plan.features] = linear
        mean, known, records = self._leaf_means()
        if not known:
            return w, link
        std = 1.0 / (math.sqrt(known) * plan.leaf)  # noise of a leaf's share of the records
        shares = (mean[: 2 * plan.leaves] / plan.leaf).reshape(2, plan.trees, -1)
        total = float(vectors.dot(shares[0].ravel().copy(), np.ones(plan.leaves))) / plan.trees
        signs = float(vectors.dot(shares[1].ravel().copy(), np.ones(plan.leaves))) / plan.trees
        if not total > 0.1:  # nearly all were null records
            return w, link
        second = self._means()[0]
        centre = min(max(signs / total, -MOST_CENTRE), MOST_CENTRE)
        assert self.scaling is not None
        scale, shift, middle, factor = self.scaling
        ends = np.array([shift, scale + shift])  # of 0 and of 1
        ends = np.clip((np.clip(ends, -1.0, 1.0) - middle) * factor, -self.cap, self.cap)
        released = ReleasedStatistics(
            counts=shares[0] / total,
            signs=shares[1] / total,
            bins=mean[2 * plan.leaves :] / (plan.mark * total),
            bins_std=1.0 / (math.sqrt(known) * plan.mark * total),
            centre=centre,
            std=std / total,
            second=second,
            ends=ends,
            records=total * records,
        )
        # Scale of the linear score as a regression of labels 1 and -1.
        unit = 2.0 * self._label_slope
        size = _ROWS[self._pooled or bool(self._numbers[2] == plan.horizon)]
        rows = synthetic_rows(released, unit * linear, self.cap, self.trees, size)
        model = leaf_weights(released, rows)
        if model is None:
            return w, link
        w[: plan.features] = model.factor * unit * linear
        w[plan.features : plan.features + plan.leaves] = model.leaves.ravel()
        return w, model.link


@dataclass(frozen=True)
class DPForest(Moments):
    """A forest of data-independent random trees, fitted to leaf sums over blocks of records.

    Parameters
    ----------
    trees, depth
        Number of trees, and of splits from the root to a leaf.
    fields
        As in `DPForestPlan`.
    """

    trees: int = TREES
    depth: int = DEPTH
    fields: tuple[int, ...] = ()

    run: ClassVar[type[MomentsState]] = DPForestState

    def design(
        self, names: Sequence[Hashable], bounds: Mapping[Hashable, tuple[float, float]]
    ) -> RandomTreeDesign:
        """The map from a record to its linear vector and its leaves."""
        return RandomTreeDesign(names, bounds, self.trees, self.depth)

    @property
    def shape(self) -> dict[str, Any]:
        """Trees, depth and fields, as a plan has them."""
        fields = self.fields if any(size > 1 for size in self.fields) else ()
        return {"trees": self.trees, "depth": self.depth, "fields": fields}

    def start(
        self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None
    ) -> DPForestState:
        """A new state; the fitted numbers are those of `saved`, if given."""
        return DPForestState(self.planned(settings).with_fitted(saved))

    def planned(self, settings: Settings) -> DPForestPlan:
        """The plan for these settings."""
        assert settings.features is not None
        learning = settings.learning
        alone = not settings.forks and settings.entity is None
        return DPForestPlan(
            settings.mu_learning,
            settings.features,
            float(settings.warmup),
            learning,
            settings.radius,
            settings.forks,
            settings.window,
            settings.relation,
            anytime=ANYTIME if alone and learning is not None else None,
            **self.shape,
        )

    def describe(self, settings: Settings) -> str:
        """Description of the mechanism, for the report."""
        return (
            f"{super().describe(settings)} With the second moments go counts of records and labels in the "
            f"leaves of {self.trees} random trees, which were drawn from public coins, and histograms of the "
            "features, in the same release; the leaves' weights are computed from it."
        )
