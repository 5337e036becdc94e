"""The warm-up: private means and variances from the first slots, by which later records are standardised.

One joint release of the sums of x, of x^2, of the labels and of labels times x over a prefix of the stream
(docs/privacy 4.4, 10.2). A slot is in the prefix or in the learning part, never in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from streampair.kernels import dp_steps, vectors
from streampair.privacy.mechanisms.base import (
    ONE_RECORD,
    FittedPlan,
    NoisySums,
    Relation,
    Release,
    check_overflow,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.noise import Stream

    Floats = NDArray[np.float64]

__all__ = ["Warmup", "WarmupPlan", "moment_sensitivity", "plan_warmup", "shrunk_variances"]

SQUARE_WEIGHT = math.sqrt((11.0 + 5.0 * math.sqrt(5.0)) / 8.0)
"""Largest weight of x^2 beside x in [-1, 1] at which their joint sensitivity is that of x alone."""

CROSS_WEIGHT = 0.5
"""Weight of the product of label and x beside them; it raises the noise by a tenth."""

# Most that a coordinate adds if the label changes: `u^2 (1 + c^2 (2 - u)^2) + (2 - u)^2 / 4` with u in [0, 2]
# is at most 4.1563, at u = 1.1825 (docs/privacy, Lemma 60).
_TURNED = 4.157


def moment_sensitivity(dim: int, *, labels: bool = False, cross: bool = False, grid: float = 0.0) -> float:
    """Joint l2 sensitivity of the sums of x and of `SQUARE_WEIGHT x^2`, and of labels (docs/privacy 4.4).

    Relation: one record's content is replaced, or blanked to 0; x is in [-1, 1]^dim, a label -1, 0 or 1.
    Exact except for the grid term: two values whose difference and sum have the sizes u and v, `u + v <= 2`,
    move a coordinate's pair by `u^2 (1 + c^2 v^2)` squared. That is at most 4 up to
    `c^2 = (11 + 5 sqrt 5) / 8`, so the squares do not raise the sensitivity.

    Parameters
    ----------
    dim
        Coordinates of x.
    labels
        Whether the sum of the labels is included.
    cross
        Whether also the sum of `CROSS_WEIGHT` times label times x is (docs/privacy, Lemma 60).
    grid
        Step of the grid that x, x^2 and label times x are rounded to; each moves by half of it at most.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.standardization import moment_sensitivity
    >>> moment_sensitivity(4)
    4.0
    """
    if cross:
        # One label, and all coordinates from one end to the other; or two.
        ideal = max(4.0 * dim * (1.0 + CROSS_WEIGHT**2), _TURNED * dim + 4.0)
        return math.sqrt(ideal) + grid * math.sqrt(dim) * math.hypot(1.0, SQUARE_WEIGHT, CROSS_WEIGHT)
    each = 2.0 + grid * math.hypot(1.0, SQUARE_WEIGHT)
    return math.sqrt(dim * each * each + 4.0 * labels)


@dataclass(frozen=True)
class WarmupPlan(FittedPlan):
    """The release of docs/privacy 4.4: means of x and of x^2 over the first slots.

    Parameters
    ----------
    mu
        Budget in mu-GDP of the joint release.
    slots
        Number of records in the prefix, null records included.
    sigma_sum, sigma_squares
        Noise std of each coordinate of the sums of x (and of the labels), and of x^2.
    labels
        Whether the sum of the labels is released too.
    relation
        The neighbouring relation.
    cross
        Whether, with the labels, the sum of label times x is released too.
    """

    mu: float
    slots: int
    sigma_sum: float
    sigma_squares: float
    labels: bool = False
    relation: Relation = ONE_RECORD
    cross: bool = False

    PER_UNIT = 1024
    """1 / gamma."""

    FITTED: ClassVar = ("mu", "sigma_sum", "sigma_squares")

    @property
    def sigmas(self) -> list[float]:
        """Noise std of each coordinate, by row of sums: x and the labels, x^2, labels times x."""
        across = [self.sigma_sum / CROSS_WEIGHT] if self.cross else []
        return [self.sigma_sum, self.sigma_squares, *across]

    def release(self, dim: int, records: int = 1) -> Release:
        """The release, for the card; `records`: largest number of records of one entity in it."""
        labels, cross = self.labels, self.cross
        grid = 1.0 / self.PER_UNIT
        sensitivity = records * moment_sensitivity(dim, labels=labels, cross=cross, grid=grid)
        # Blanked, a coordinate moves by |x| <= 1, its square by the weight of squares, a label by 1,
        # and their product by its weight.
        weights = SQUARE_WEIGHT**2 + CROSS_WEIGHT**2 * cross
        blank = records * math.sqrt(dim * (1.0 + weights) + labels)
        more = ", of the labels and of label times x" if cross else " and of the labels" if labels else ""
        return Release(
            name="warm-up: sums of x, of x^2" + more,
            domain="features scaled and clipped to [-1, 1]" + (", a label in [-1, 1]" if labels else ""),
            relation=self.relation,
            lemma="docs/privacy, Lemma " + ("60" if cross else "18"),
            sensitivity=sensitivity,
            sigma=self.sigma_sum,
            replace=sensitivity / self.sigma_sum,
            blank=min(blank, sensitivity) / self.sigma_sum,
            releases=1,
            coordinates=(2 + cross) * (dim + labels),
            grid=grid,
            draws=(dim + labels) * sum(sigma / grid + 1.0 for sigma in self.sigmas),
        )


def plan_warmup(
    mu: float,
    *,
    dim: int,
    slots: int,
    labels: bool = False,
    relation: Relation = ONE_RECORD,
    cross: bool = False,
) -> WarmupPlan:
    """Calibrate the warm-up's release for a budget.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.standardization import plan_warmup
    >>> plan = plan_warmup(1.0, dim=1, slots=100)
    >>> round(plan.sigma_sum, 4), round(plan.sigma_squares, 4)
    (2.0019, 1.2023)
    """
    sigma = moment_sensitivity(dim, labels=labels, cross=cross, grid=1.0 / WarmupPlan.PER_UNIT) / mu
    plan = WarmupPlan(mu, slots, sigma, sigma / SQUARE_WEIGHT, labels, relation, cross)
    check_overflow(20.0 * plan.sigma_sum * plan.PER_UNIT, "noise of the warm-up")
    return plan


def _sum(values: Floats) -> float:
    return float(vectors.dot(values, np.ones(len(values))))


def shrunk_variances(mean: Floats, square: Floats, mean_std: float, square_std: float) -> Floats:
    """Variances from noisy means of x and of x^2, shrunk to their average (empirical Bayes).

    Post-processing of a release, so free. The noise makes `mean^2` too large by its variance, which is
    subtracted. The d noisy variances scatter around their average; the estimate keeps the share of the
    scatter that noise does not explain (Efron & Morris 1973). Floored at 1e-3.

    Parameters
    ----------
    mean, square
        Released means of x and of x^2, shape (d,).
    mean_std, square_std
        Standard deviations of their noise.
    """
    # A fixed order of products and sums: the same bits on every processor.
    known, squared = mean_std * mean_std, square_std * square_std
    raw = square - mean * mean + known
    noise = squared + 4.0 * mean * mean * known + 2.0 * known * known
    pooled = max(_sum(raw) / len(raw), 1e-3)
    scatter = max(_sum((raw - pooled) * (raw - pooled) - noise) / max(len(raw) - 1, 1), 0.0)
    share = scatter / np.maximum(scatter + noise, 1e-300)
    result: Floats = np.maximum(pooled + (raw - pooled) * share, 1e-3)
    return result


class Warmup:
    """State of a warm-up: sums of x and x^2 over the first slots, released once with noise.

    Parameters
    ----------
    plan
        The calibrated release.
    dim
        Coordinates d.
    records
        Largest number of records of one entity in it.

    Attributes
    ----------
    sums
        The noisy sums: rows of x and x^2; if labels are released, their sum after the first row, and label
        times x below.
    released
        The noisy means; empty before the release.
    cross
        Covariances of the labels with the standardised features, scaled to `E |x|^2 = 1`, and the variances
        of their noise, (2, d); None before the release, or if it has none.
    """

    def __init__(self, plan: WarmupPlan, dim: int, records: int = 1) -> None:
        self.plan = plan
        self.sums = NoisySums(plan.release(dim, records), (len(plan.sigmas), dim + plan.labels))
        self.released: Floats = np.empty(0)
        self.cross: Floats | None = None
        self._dim = dim

    def add(self, rows: Floats, usable: Floats, labels: Floats) -> None:
        """Add rows (n, d) in [-1, 1]; unusable rows are null records and add 0.

        Labels that are NaN add 0 too; released labels are in [-1, 1].
        """
        self.sums.add(dp_steps.moment_sums, rows, usable, float(WarmupPlan.PER_UNIT))
        if self.plan.labels:
            self.sums.add(self._add_labels, labels)
        if self.plan.cross:
            self.sums.add(self._add_cross, rows, labels)

    def _add_labels(self, labels: Floats, cells: NDArray[np.int64]) -> None:
        # Each label is rounded, not their sum: a whole number of steps, at most one unit.
        steps = np.floor(labels[~np.isnan(labels)] * WarmupPlan.PER_UNIT + 0.5)
        cells[0, self._dim] += int(steps.sum())

    def _add_cross(self, rows: Floats, labels: Floats, cells: NDArray[np.int64]) -> None:
        dp_steps.cross_sums(rows, labels, float(WarmupPlan.PER_UNIT), cells[2])

    def release(self, stream: Stream) -> tuple[Floats, Floats, float]:
        """Release means (d,), the factors (d,) of centred values for `E |x|^2 = 1`, and the label mean."""
        d, slots = self._dim, self.plan.slots
        std = np.array(self.plan.sigmas)
        shape = (len(std), d + self.plan.labels)
        noise = self.sums.noise(stream.take(shape[0] * shape[1]), std[:, None])
        released = self.sums.privatize(noise) / slots
        self.sums.clear()
        return self.read(released)

    def read(self, released: Floats) -> tuple[Floats, Floats, float]:
        """What `release` returns, from noisy means (rows, d + labels) of all sums: post-processing.

        Parameters
        ----------
        released
            Rows of x, of x^2 and, if released, of label times x; the mean of the labels ends the first.
        """
        d, slots = self._dim, self.plan.slots
        mean, square = released[:2]
        self.released = released.ravel()
        label = float(mean[d]) if self.plan.labels else 0.0
        mean = np.clip(mean[:d], -1.0, 1.0)
        variances = shrunk_variances(
            mean, square[:d], self.plan.sigma_sum / slots, self.plan.sigma_squares / slots
        )
        factor = 1.0 / np.sqrt(variances * d)
        if self.plan.cross:
            label = self._shrunk(label)
            self.cross = self._covariances(released[2, :d], mean, factor, label)
        return mean, factor, label

    def _shrunk(self, label: float) -> float:
        """The released mean of the labels, shrunk towards 0 (positive-part James-Stein).

        A wrong share makes a model overconfident. Where the noise is small the mean stays nearly unchanged.
        """
        noise = self.plan.sigma_sum / self.plan.slots
        label = min(max(label, -1.0), 1.0)
        return label * max(1.0 - noise * noise / (label * label), 0.0) if label else 0.0

    def _covariances(self, product: Floats, mean: Floats, factor: Floats, label: float) -> Floats:
        """The covariances of `cross` from the released mean of label times x, in a fixed order."""
        std = self.plan.sigma_sum / self.plan.slots
        noise = (std * factor) * (std * factor)
        noise *= 1.0 / (CROSS_WEIGHT * CROSS_WEIGHT) + label * label + mean * mean
        return np.stack((factor * (product - label * mean), noise))
