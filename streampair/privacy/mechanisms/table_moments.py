"""Second moments of a whole table: exact sums of integers over two disjoint parts, each released once.

The first part, a sample by public coins, gives means, spreads and covariances with the label. All other rows
are standardised by them and summed. A row is rounded to steps of 2^-16 before anything is multiplied, so sums
are exact integers: equal for any cut and order of the table, and moved by a row by no more than the lemma
says, without a term for rounding (docs/privacy 10.7). Those of a private forest count its leaves, too, and
those of a metric its classes, of which the first part has no labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from streampair.errors import ConfigError
from streampair.kernels import table_sums
from streampair.privacy.mechanisms.base import ONE_RECORD, Relation, Release, Settings, check_overflow
from streampair.privacy.mechanisms.dp_forest import DPForest, DPForestPlan, DPForestState
from streampair.privacy.mechanisms.metric_moments import MetricMoments, MetricMomentsState
from streampair.privacy.mechanisms.second_moments import (
    MomentsState,
    RankingMomentsState,
    SecondMomentsPlan,
)
from streampair.privacy.mechanisms.standardization import (
    CROSS_WEIGHT,
    SQUARE_WEIGHT,
    WarmupPlan,
    moment_sensitivity,
)
from streampair.privacy.noise import rounded, scaled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.noise import Stream

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

__all__ = [
    "PRODUCT_ROWS",
    "STEPS",
    "MetricTableState",
    "RankingTableState",
    "SumsRelease",
    "TableForestPlan",
    "TableForestState",
    "TableMomentsPlan",
    "TableMomentsState",
    "class_sums",
    "label_steps",
    "moments_release",
    "plan_sample",
    "plan_table_moments",
    "product_sums",
    "sample_release",
    "sample_sums",
]

STEPS = 2**16
"""Steps in a unit of a row, whose products are in steps of 2^-32."""

PRODUCT_ROWS = 2**21
"""So many rows at most in one matrix product: all of its sums are integers of at most 2^53, so doubles hold
them exactly in whatever order they are added."""

_BITS = 16  # of STEPS


# ---- exact sums ------------------------------------------------------------------------------------------


def label_steps(labels: Floats, centre: float) -> Floats:
    """What labels (n,) in [-1, 1] count in a product: `(y - centre) / (1 + |centre|)` in steps, towards 0."""
    weight = 1.0 / (1.0 + abs(centre))
    steps = np.trunc(weight * (labels - centre) * STEPS)
    return np.asarray(np.minimum(np.maximum(steps, -STEPS), STEPS))


def _check_rows(columns: Floats) -> None:
    if columns.shape[1] > PRODUCT_ROWS:
        raise ValueError(f"{columns.shape[1]} rows in one product, whose sums doubles may not hold")


def sample_sums(columns: Floats) -> Integers:
    """Sums of x, x^2, the label, and label times x over rows with x in [-1, 1]^d: integers (3 d + 1,).

    In steps of 2^-16, 2^-32, 2^-16 and 2^-32.

    Parameters
    ----------
    columns
        Coordinates of x, and labels in [-1, 1] behind them, (d + 1, n), at most `PRODUCT_ROWS` rows; a label
        of NaN marks a null row, which adds 0. Overwritten.
    """
    _check_rows(columns)
    columns[:, np.isnan(columns[-1])] = 0.0
    columns *= STEPS
    columns += 0.5
    np.clip(np.floor(columns, out=columns), -STEPS, STEPS, out=columns)
    x, y = columns[:-1], columns[-1]
    sums = (x.sum(axis=1), np.einsum("ij,ij->i", x, x), [y.sum()], x @ y)
    return np.concatenate(sums).astype(np.int64)


def product_sums(columns: Floats, centre: float) -> Integers:
    """Sums of x x' and s x over rows x of the unit ball: integers (d (d + 1) / 2 + d,), in steps of 2^-32.

    The lower triangle of x x', row by row. s are the `label_steps` of the labels.

    Parameters
    ----------
    columns
        As of `sample_sums`, of vectors of the unit ball (`streampair.kernels.table_sums.ball_steps`).

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy.mechanisms.table_moments import STEPS, product_sums
    >>> sums = product_sums(np.array([[0.5], [-0.5], [-1.0]]), 0.0)
    >>> (sums / STEPS**2).tolist()
    [0.25, -0.25, 0.25, -0.5, 0.5]
    """
    _check_rows(columns)
    d = len(columns) - 1
    table_sums.ball_steps(columns[:d], columns[d], float(STEPS))
    null = np.isnan(columns[d])
    columns[d] = label_steps(columns[d], centre)
    columns[d, null] = 0.0
    # Without s s': of a matrix and itself BLAS takes twice as long where there are few columns.
    products = (columns @ columns[:d].T).astype(np.int64)
    return np.asarray(products.ravel()[_packed(d)])


def class_sums(columns: Floats, classes: Floats) -> Integers:
    """Sums of x x', of x by class, and half of the number of rows by class, over rows x of the unit ball.

    Integers (d (d + 1) / 2 + K d + K,), in steps of 2^-32.

    Parameters
    ----------
    columns
        As of `product_sums`; the labels are numbers of classes.
    classes
        The numbers of the declared classes, (K,).

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy.mechanisms.table_moments import STEPS, class_sums
    >>> sums = class_sums(np.array([[0.5, -1.0], [7.0, 3.0]]), np.array([3.0, 7.0]))
    >>> (sums / STEPS**2).tolist()
    [1.25, -1.0, 0.5, 0.5, 0.5]
    """
    _check_rows(columns)
    x, labels = columns[:-1], columns[-1]
    table_sums.ball_steps(x, labels, float(STEPS))
    of_class = (labels == classes[:, None]).astype(np.float64)
    products, sums = (x @ x.T)[np.tril_indices(len(x))], (of_class @ x.T).ravel()
    parts = products, STEPS * sums, STEPS * STEPS // 2 * of_class.sum(axis=1)
    return np.concatenate(parts).astype(np.int64)


@lru_cache
def _packed(d: int) -> NDArray[np.intp]:
    """Places in a matrix (d + 1, d) of its lower triangle, row by row."""
    i, j = np.tril_indices(d + 1, m=d)
    return np.asarray(i * d + j)


# ---- their releases --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumsRelease:
    """One release of exact sums: `grid rnd((T + noise) / grid)`, rounded once, after the noise is added.

    Parameters
    ----------
    card
        The line of the mechanism card.
    bits
        Binary digits of each sum that are finer than the grid, (p,), at least 0.
    sigmas
        Noise std of each sum, (p,), in units of the records.
    grid
        Step of what is released, of all sums or of each (p,): a power of two, or what a record counts in a
        sum of whole records.
    """

    card: Release
    bits: Integers
    sigmas: Floats
    grid: float | Floats

    @property
    def identity(self) -> bytes:
        """All that scales or shapes it, bit for bit: two releases that differ in it share no noise."""
        fitted = (self.bits.astype("<i8"), self.sigmas.astype("<f8"), np.atleast_1d(self.grid).astype("<f8"))
        return b"".join(part.tobytes() for part in fitted)

    def draw(self, sums: Integers, stream: Stream) -> Floats:
        """The released sums (p,), in units of the records, under noise from the stream."""
        noise = scaled(stream.take(len(sums)), self.sigmas / self.grid)
        whole = sums >> self.bits
        part = np.ldexp((sums - (whole << self.bits)).astype(np.float64), -self.bits)
        return np.asarray(self.grid * (whole + rounded(_plus(noise, part))))


def _plus(number: Floats, small: Floats) -> Floats:
    """Sums of double-doubles (2, n) and doubles (n,), by the exact sum of two doubles (Knuth)."""
    high, low = number
    total = high + small
    back = total - high
    low = low + ((high - (total - back)) + (small - back))
    out = total + low
    return np.stack((out, low - (out - total)))


def plan_sample(
    mu: float, dim: int, rows: int, relation: Relation = ONE_RECORD, labels: bool = True
) -> WarmupPlan:
    """The release of the sample's sums: that of the warm-up (docs/privacy 4.4), without a term for rounding.

    All rows of an entity may be in the sample. Without `labels` nothing is released of them.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.table_moments import plan_sample
    >>> plan = plan_sample(0.5, dim=20, rows=1000)
    >>> plan.sigma_sum  # the root of 5 d, over mu
    20.0
    """
    sigma = _rows_of(relation) * moment_sensitivity(dim, labels=labels, cross=labels) / mu
    plan = WarmupPlan(mu, rows, sigma, sigma / SQUARE_WEIGHT, labels, relation, labels)
    check_overflow(20.0 * max(plan.sigmas) * plan.PER_UNIT, "noise of the sample")
    return plan


def _rows_of(relation: Relation) -> int:
    """Largest number of rows of the unit that is protected."""
    return 1 if relation.entity is None else relation.entity.records


def sample_release(plan: WarmupPlan, dim: int) -> SumsRelease:
    """The release of `sample_sums`; without labels, of the sums of x and x^2 alone."""
    labels = plan.labels
    grid, bits = 1.0 / WarmupPlan.PER_UNIT, int(math.log2(WarmupPlan.PER_UNIT))
    most = _rows_of(plan.relation)
    sensitivity = most * moment_sensitivity(dim, labels=labels, cross=labels)
    counts = [dim, dim, 1, dim] if labels else [dim, dim]
    sigmas = np.repeat([*plan.sigmas[:2], plan.sigma_sum, plan.sigmas[-1]][: len(counts)], counts)
    blank = most * math.sqrt(dim * (1.0 + SQUARE_WEIGHT**2 + labels * CROSS_WEIGHT**2) + labels)
    card = Release(
        name=f"sums of x, of x^2{', of the labels and of label times x' if labels else ''} over the sample",
        domain="features scaled and clipped to [-1, 1]" + (", a label in [-1, 1]" if labels else ""),
        relation=plan.relation,
        lemma=f"docs/privacy, Lemma {60 if labels else 18} and Lemma 98",
        sensitivity=sensitivity,
        sigma=plan.sigma_sum,
        replace=sensitivity / plan.sigma_sum,
        blank=min(blank, sensitivity) / plan.sigma_sum,
        releases=1,
        coordinates=len(sigmas),
        grid=grid,
        draws=float((sigmas / grid + 1.0).sum()),
    )
    finer = np.repeat([_BITS, 2 * _BITS, _BITS, 2 * _BITS][: len(counts)], counts) - bits
    return SumsRelease(card, finer, sigmas, grid)


@dataclass(frozen=True, eq=False)
class TableMomentsPlan(SecondMomentsPlan):
    """Second moments with one release, of the sums of all learned rows.

    The sums are exact, so a row moves them by at most the diameter: nothing is added for rounding.
    """

    @property
    def _one_move(self) -> float:
        return self.diameter

    @property
    def _last_move(self) -> float:
        # Not the rows that fit into this part alone: the entity's others may be in the sample (Lemma 98 f).
        return _rows_of(self.relation) * self._one_move

    def card(self) -> tuple[Release, ...]:
        """The one release."""
        (release,) = super().card()
        return (
            replace(
                release,
                name="second moments of all rows that are not in the sample",
                lemma=f"docs/privacy, Lemma {self.lemma} and Lemma 98",
            ),
        )


@dataclass(frozen=True, eq=False)
class TableForestPlan(TableMomentsPlan, DPForestPlan):
    """The same with sums of leaves and bins, which count whole rows."""


def plan_table_moments(settings: Settings, rows: int) -> TableMomentsPlan:
    """The plan for this number of rows, with the budget and the features of a learner's settings."""
    assert settings.features is not None
    # The first block would be longer than the table: the only release is that of all rows.
    numbers = (settings.mu, settings.features, 10.0 * rows, rows, settings.radius)
    mechanism = settings.mechanism
    classes = len(mechanism.classes) if isinstance(mechanism, MetricMoments) else 0
    plan = (
        TableForestPlan(*numbers, relation=settings.relation, **mechanism.shape)
        if isinstance(mechanism, DPForest)
        else TableMomentsPlan(*numbers, relation=settings.relation, classes=classes)
    )
    if plan.releases(rows) != 1 or not 2.0**-32 <= plan.grid <= 1.0:
        raise ConfigError(
            f"no plan for {rows} rows of {settings.features} features",
            fix="give more rows, or fewer features",
        )
    return plan


def moments_release(plan: TableMomentsPlan) -> SumsRelease:
    """The release of `product_sums`, and of the sums of leaves and bins behind them, if the plan has such.

    The noise has one std in coordinates in which the norm is Frobenius', where a cell off the diagonal
    counts `sqrt 2` times: so such a cell has `sqrt 2` times less.
    """
    d = plan.features
    i, j = np.tril_indices(d)
    sigmas = np.full(plan.dim, plan.sigma_last)
    sigmas[: len(i)][i != j] /= math.sqrt(2.0)
    bits = np.full(plan.dim, 2 * _BITS + round(math.log2(plan.grid)))
    if not isinstance(plan, TableForestPlan):
        return SumsRelease(plan.card()[0], bits, sigmas, plan.grid)
    bits[plan.packed :] = 0
    return SumsRelease(plan.card()[0], bits, sigmas, plan.steps)


class TableMomentsState(MomentsState):
    """The model of a table, from its one release.

    Parameters
    ----------
    plan
        The calibrated release.
    """

    plan: TableMomentsPlan

    def learn_released(self, sums: Floats) -> None:
        """Compute the model from what `moments_release` has drawn, (dim,)."""
        d, plan = self.plan.features, self.plan
        value = sums.copy()
        i, j = np.tril_indices(d)
        value[: len(i)][i != j] *= math.sqrt(2.0)
        slots, std = plan.weighed(plan.horizon or 0), plan.sigma_last
        self._last[:] = value
        self._weighted += (slots / (std * std)) * value
        self._numbers[1] += (slots / std) * (slots / std)
        self.steps = plan.horizon or 0
        self._numbers[2] = self.steps
        self._releases = 1
        self._solve()

    @property
    def released_sums(self) -> Floats:
        """The released sums, packed, so that noise has one std in all coordinates, (dim,): a view."""
        return self._last

    def take(self, batch: Any, stream: Any) -> None:
        """Not for a table, whose rows are summed elsewhere."""
        raise NotImplementedError


class RankingTableState(TableMomentsState, RankingMomentsState):
    """The same for relevances, whose model is another function of the release."""


class MetricTableState(TableMomentsState, MetricMomentsState):
    """The same for classes, whose model is a metric."""


class TableForestState(TableMomentsState, DPForestState):
    """The same for a private forest."""

    plan: TableForestPlan
