"""The warm-up: private means and variances from the first slots, by which later records are standardised.

One joint release of the sums of x, of x^2 and of the labels over a prefix of the stream (docs/privacy.md 4.4,
10.2). A slot is in the prefix or in the learning part, never in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from streampair import kernels
from streampair.privacy.mechanisms.base import ONE_RECORD, ExactSums, Relation, Release, check_cells
from streampair.privacy.sensitivity import SQUARE_WEIGHT, moment_sensitivity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.noise import Stream

    Floats = NDArray[np.float64]

__all__ = ["Warmup", "WarmupPlan", "plan_warmup", "shrunk_variances"]


@dataclass(frozen=True)
class WarmupPlan:
    """The release of docs/privacy.md 4.4: means of x and of x^2 over the first slots.

    Parameters
    ----------
    mu
        Budget in mu-GDP of the joint release.
    slots
        Records in the prefix, null ones too.
    sigma_sum, sigma_squares
        Noise std, a coordinate, of the sums of x (and of the labels), and of x^2.
    labels
        Whether the sum of the labels is released too.
    relation
        Which streams are neighbours.
    """

    mu: float
    slots: int
    sigma_sum: float
    sigma_squares: float
    labels: bool = False
    relation: Relation = ONE_RECORD

    PER_UNIT = 1024
    """1 / gamma."""

    FITTED: ClassVar = ("mu", "sigma_sum", "sigma_squares")

    def release(self, dim: int, records: int = 1) -> Release:
        """What is released; `records`: how many of one entity it may hold."""
        labels = self.labels
        sensitivity = records * moment_sensitivity(dim, labels=labels, grid=1.0 / self.PER_UNIT)
        # Blanked, a coordinate moves by |x| <= 1, its square by the weight of squares, a label by 1.
        blank = records * math.sqrt(dim * (1.0 + SQUARE_WEIGHT**2) + labels)
        return Release(
            name="warm-up: sums of x, of x^2" + (" and of the labels" if labels else ""),
            domain="features scaled and clipped to [-1, 1]" + (", a label in [-1, 1]" if labels else ""),
            relation=self.relation,
            lemma="docs/privacy.md, Lemma 18",
            sensitivity=sensitivity,
            sigma=self.sigma_sum,
            replace=sensitivity / self.sigma_sum,
            blank=min(blank, sensitivity) / self.sigma_sum,
            releases=1,
            coordinates=2 * (dim + labels),
            grid=1.0 / self.PER_UNIT,
        )


def plan_warmup(
    mu: float, *, dim: int, slots: int, labels: bool = False, relation: Relation = ONE_RECORD
) -> WarmupPlan:
    """Calibrate the warm-up's release for a budget.

    Examples
    --------
    >>> from streampair.privacy import plan_warmup
    >>> plan = plan_warmup(1.0, dim=1, slots=100)
    >>> round(plan.sigma_sum, 4), round(plan.sigma_squares, 4)
    (2.0019, 1.2023)
    """
    sigma = moment_sensitivity(dim, labels=labels, grid=1.0 / WarmupPlan.PER_UNIT) / mu
    plan = WarmupPlan(mu, slots, sigma, sigma / SQUARE_WEIGHT, labels, relation)
    check_cells(20.0 * plan.sigma_sum * plan.PER_UNIT, "noise of the warm-up")
    return plan


def _sum(values: Floats) -> float:
    return float(kernels.dot(values, np.ones(len(values))))


def shrunk_variances(mean: Floats, square: Floats, mean_std: float, square_std: float) -> Floats:
    """Variances from noisy means of x and of x^2, pulled to their average as far as the noise says.

    Post-processing of a release, so free. The noise makes `mean^2` too large by its variance, which is
    given back. Then each variance is a noisy measurement of one among d that scatter around their average:
    the empirical Bayes estimate keeps the share of the scatter that noise does not explain (Efron & Morris
    1973). Floored at 1e-3.

    Parameters
    ----------
    mean, square
        Released means of x and of x^2, shape (d,).
    mean_std, square_std
        Standard deviations of their noise.
    """
    # Products and sums in an order of our own: a score depends on them.
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
        How many records of one entity it may hold.

    Attributes
    ----------
    sums
        The door: of x and of x^2, and where they are released of the labels behind the first.
    released
        The noisy means; empty before the release.
    """

    def __init__(self, plan: WarmupPlan, dim: int, records: int = 1) -> None:
        self.plan = plan
        self.sums = ExactSums(plan.release(dim, records), (2, dim + plan.labels))
        self.released: Floats = np.empty(0)
        self._dim = dim

    def add(self, rows: Floats, usable: Floats, labels: Floats) -> None:
        """Add rows (n, d) in [-1, 1]; those that are not usable are null records and add 0.

        So do labels that are NaN; others are in [-1, 1], where they are released.
        """
        self.sums.add(kernels.moment_sums, rows, usable, float(WarmupPlan.PER_UNIT))
        if self.plan.labels:
            self.sums.add(self._add_labels, labels)

    def _add_labels(self, labels: Floats, cells: NDArray[np.int64]) -> None:
        # Each label is rounded, not their sum: a whole number of steps, at most one unit.
        steps = np.floor(labels[~np.isnan(labels)] * WarmupPlan.PER_UNIT + 0.5)
        cells[0, self._dim] += int(steps.sum())

    def release(self, stream: Stream) -> tuple[Floats, Floats, float]:
        """Means (d,), what centred values are multiplied with (d,) for `E |x|^2 = 1`, and the label mean."""
        d, slots = self._dim, self.plan.slots
        shape = (2, d + self.plan.labels)
        std = np.array([[self.plan.sigma_sum], [self.plan.sigma_squares]])
        noise = stream.take(shape[0] * shape[1]).reshape(shape) * std
        mean, square = self.sums.emit(noise) / slots
        self.sums.clear()
        self.released = np.concatenate((mean, square))
        label = float(mean[d]) if self.plan.labels else 0.0
        mean = np.clip(mean[:d], -1.0, 1.0)
        variances = shrunk_variances(
            mean, square[:d], self.plan.sigma_sum / slots, self.plan.sigma_squares / slots
        )
        return mean, 1.0 / np.sqrt(variances * d), label
