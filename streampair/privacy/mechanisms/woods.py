"""A forest that nobody fitted, under noise: leaf sums beside second moments (docs/privacy.md 10.10)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair import kernels
from streampair.privacy.accounting import mu_from
from streampair.privacy.mechanisms.base import Settings
from streampair.privacy.mechanisms.fitted import under
from streampair.privacy.mechanisms.link import Link
from streampair.privacy.mechanisms.moments import MOST_CENTRE, Moments, MomentsRun
from streampair.privacy.mechanisms.moments_plan import ANYTIME
from streampair.privacy.mechanisms.woods_model import weights_of
from streampair.privacy.mechanisms.woods_plan import WoodsPlan, shares
from streampair.privacy.mechanisms.woods_rows import Told, rows_of
from streampair.records.woods import BINS, DEPTH, TREES, Trees, WoodDesign

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["MOST_DEPTH", "MOST_TREES", "Woods", "WoodsRun", "worthwhile"]

MOST_TREES, MOST_DEPTH = 500, 8
"""A release has twice as many numbers as there are leaves."""

_ROWS = (4096, 32768)
"""Synthetic rows for a model on the way, and for the one at the horizon."""

_MOST_NOISE = 0.1
"""Of the records: noise in the leaves of a tree, at the end."""


def worthwhile(
    epsilon: float,
    delta: float,
    horizon: int,
    depth: int = DEPTH,
    features: int = 1,
) -> bool:
    """Whether leaves will tell more than noise at the end: by public numbers alone.

    All leaves of a tree together have noise of `sigma sqrt(2^depth)`, which must be at most a tenth of the
    records, or of many features as much less as leaves have less of the budget; else the linear score has the
    whole budget. With less than that it loses more than leaves tell.
    """
    sigma = 2.0 * math.sqrt(TREES) / (mu_from(epsilon, delta) * math.sqrt(shares(features)[1]))
    most = _MOST_NOISE * shares(features)[1] / shares(1)[1]
    return sigma * math.sqrt(2.0**depth) <= most * horizon


class WoodsRun(MomentsRun):
    """A run whose sums hold leaves too, and whose models are a linear score and one of the leaves.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    """

    plan: WoodsPlan

    def __init__(self, plan: WoodsPlan) -> None:
        super().__init__(plan)
        self.trees = Trees(plan.sizes, plan.trees, plan.depth)
        self._w = np.zeros(plan.features + plan.leaves + plan.marks)
        of_numbers = [np.full(BINS if size == 1 else size, size == 1) for size in plan.sizes]
        self._bins = plan.features + plan.leaves + np.flatnonzero(np.concatenate(of_numbers))
        self._marked = sum(size == 1 for size in plan.sizes)

    def _sum_up(self, rows: Floats, labels: Floats) -> None:
        plan = self.plan
        d = plan.features
        # Where a number has no bin there is a gap, and leaves alone learn.
        whole = rows[:, self._bins].sum(axis=1) == self._marked
        linear = rows[:, :d] * whole[:, None]
        self.block.add(kernels.leader_sums, linear, labels, self._centre, self._weight, plan.grid)
        self.block.add(kernels.wood_sums, rows, labels, d, plan.leaves)

    def _grids(self) -> Floats:
        return self.plan.steps

    def _packed(self) -> int:
        return self.plan.packed

    def _noise_of_weights(self) -> None:
        """Not known: the weights are in a unit of log-odds, which has noise of its own."""

    def _leader(self) -> tuple[Floats, Link]:
        """Weights of the design, and link, from all releases so far: the linear leader, alone at first."""
        plan, known = self.plan, self._numbers[1]
        linear, link = super()._leader()
        w = np.zeros(len(self._w))
        w[: plan.features] = linear
        # Noise of a leaf's share of the records. Five times as much as in `worthwhile` will do on the way:
        # what leaves cost is spent, and the more noise there is, the smaller are their weights.
        std = 1.0 / (math.sqrt(known) * plan.leaf) if known else math.inf
        if not std * math.sqrt(2.0**plan.depth) <= 0.5:
            return w, link
        mean = self._weighted[plan.packed :] / known
        shares = (mean[: 2 * plan.leaves] / plan.leaf).reshape(2, plan.trees, -1)
        total = float(kernels.dot(shares[0].ravel().copy(), np.ones(plan.leaves))) / plan.trees
        signs = float(kernels.dot(shares[1].ravel().copy(), np.ones(plan.leaves))) / plan.trees
        if not total > 0.1:  # nearly all were null records
            return w, link
        second = self._means()[0]
        centre = min(max(signs / total, -MOST_CENTRE), MOST_CENTRE)
        assert self.how is not None
        scale, shift, middle, factor = self.how
        ends = np.array([shift, scale + shift])  # of 0 and of 1
        ends = np.clip((np.clip(ends, -1.0, 1.0) - middle) * factor, -self.cap, self.cap)
        told = Told(
            counts=shares[0] / total,
            signs=shares[1] / total,
            bins=mean[2 * plan.leaves :] / (plan.mark * total),
            bins_std=1.0 / (math.sqrt(known) * plan.mark * total),
            centre=centre,
            std=std / total,
            second=second,
            ends=ends,
            records=total * self.steps,
        )
        # The linear score as a regression of the labels, which are 1 and -1 here.
        unit = 2.0 * self._told
        at_end = self._at_horizon()
        rows = rows_of(told, unit * linear, self.cap, self.trees, _ROWS[at_end])
        model = weights_of(told, rows)
        w[: plan.features] = model.factor * unit * linear
        w[plan.features : plan.features + plan.leaves] = model.leaves.ravel()
        return w, model.link


@dataclass(frozen=True)
class Woods(Moments):
    """A forest of random trees, from leaf sums of blocks of records.

    Parameters
    ----------
    trees, depth
        How many, and how often a record is asked on its way to a leaf.
    fields
        As of the plan.
    """

    trees: int = TREES
    depth: int = DEPTH
    fields: tuple[int, ...] = ()

    run: ClassVar[type[MomentsRun]] = WoodsRun

    def design(self, names: Sequence[Hashable], bounds: Mapping[Hashable, tuple[float, float]]) -> WoodDesign:
        """From a record to its linear vector and its leaves."""
        return WoodDesign(names, bounds, self.trees, self.depth)

    def start(self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None) -> WoodsRun:
        """A run; nothing is drawn, and what was fitted for a saved one is taken from it."""
        return WoodsRun(under(self.planned(settings), saved))

    def planned(self, settings: Settings) -> WoodsPlan:
        """The plan, fitted here."""
        assert settings.features is not None
        learning = settings.learning
        alone = not settings.forks and settings.entity is None
        return WoodsPlan(
            settings.mu_learning,
            settings.features,
            float(settings.warmup),
            learning,
            settings.radius,
            settings.forks,
            settings.window,
            settings.relation,
            anytime=ANYTIME if alone and learning is not None else None,
            trees=self.trees,
            depth=self.depth,
            fields=self.fields if any(size > 1 for size in self.fields) else (),
        )

    def describe(self, settings: Settings) -> str:
        """What is done, for the report."""
        return (
            f"{super().describe(settings)} With the second moments go counts of records and labels in the "
            f"leaves of {self.trees} random trees, which were drawn from public coins, and histograms of the "
            "features, in the same release; the leaves' weights are computed from it."
        )
