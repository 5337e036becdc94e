"""Metrics by moments: scatter within and between declared classes, from noisy sums (docs/privacy.md 10.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair import kernels
from streampair.privacy.mechanisms.fitted import under
from streampair.privacy.mechanisms.leader import unpacked
from streampair.privacy.mechanisms.metric_noise import noise_of_metric
from streampair.privacy.mechanisms.moments import Moments, MomentsRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from streampair.privacy.mechanisms.base import Settings
    from streampair.privacy.mechanisms.link import Link
    from streampair.privacy.mechanisms.moments_plan import SecondMomentsPlan

    Floats = NDArray[np.float64]

__all__ = ["MetricMoments", "MetricRun", "metric_of", "seen_of"]

_SEEN = 4.0  # standard deviations of its noise that the share of a class is above 0


def metric_of(mean: Floats, d: int, classes: int, variance: float) -> Floats:
    """Coordinates of W, from a noisy mean of `F(x, y) = (x x', e_y (x) x, e_y / 2)` over slots.

    Parameters
    ----------
    mean
        As `kernels.class_sums` packs it, over the number of slots.
    d, classes
        Features, and classes K.
    variance
        Of the noise in each cell of `mean`.

    Returns
    -------
    array
        Shape (d (d + 1) / 2,): isometric coordinates of a positive semi-definite matrix, 0 where fewer than
        two classes stand out of the noise.

    Notes
    -----
    For classes of one covariance S, pairs of one class differ by normal vectors of the covariance 2 S, and
    pairs of two classes by ones of `2 S + C`, C the mean of `u u'` over the differences u of class means:
    `W = (2 S)^-1 - (2 S + C)^-1` is the log-likelihood ratio (Koestinger et al. 2012), with S pooled over the
    classes. The noise of a class mean adds its variance to the scatter between, and takes it from the one
    within: it is given back.
    """
    # In an order of our own, without a library of linear algebra: a score depends on the last digits.
    at = d * (d + 1) // 2
    second, _ = unpacked(mean[: at + d], d)
    sums, shares = mean[at : at + classes * d].reshape(classes, d), 2.0 * mean[at + classes * d :]
    out = np.zeros(at)
    seen = seen_of(mean, classes, variance)
    if len(seen) < 2:
        return out
    whole = _sum(np.maximum(shares, 0.0))
    sums, shares = sums[seen], shares[seen]
    total = _sum(shares)
    middle = np.array([_sum(column) for column in sums.T]) / total
    # Rows whose outer products add up to the scatter between classes.
    rows = (sums - shares[:, None] * middle) / np.sqrt(shares * total)[:, None]
    bias = variance / total * (_sum(1.0 / shares) - len(seen) / total)
    within = second / whole - middle[:, None] * middle - _outer(rows)
    values = np.empty(d)
    kernels.eigen(within, values)  # its rows are now eigenvectors
    # The noise of the matrix has a norm of about sqrt(2 d) std; the ridge is of that order.
    values = np.maximum(values + bias, 0.0) + math.sqrt(d * variance) / whole
    white = within / np.sqrt(values)[:, None]
    between = _outer(_times(rows, white.T))
    between[np.diag_indices(d)] -= bias / values
    odds = np.empty(d)
    kernels.eigen(between, odds)
    apart = np.maximum(odds, 0.0) * 2.0 / (1.0 - _sum((shares / total) * (shares / total)))
    weight = 0.5 * apart / (2.0 + apart)
    w = _outer(np.sqrt(weight)[:, None] * _times(between, white))
    w *= math.sqrt(2.0)
    w[np.diag_indices(d)] /= math.sqrt(2.0)
    out[:] = w[np.triu_indices(d)]
    return out


def seen_of(mean: Floats, classes: int, variance: float) -> NDArray[np.intp]:
    """Numbers of the classes whose share stands out of its noise."""
    return np.flatnonzero(2.0 * mean[-classes:] > _SEEN * 2.0 * math.sqrt(variance))


def _sum(values: Floats) -> float:
    return float(kernels.dot(np.ascontiguousarray(values), np.ones(len(values))))


def _times(a: Floats, b: Floats) -> Floats:
    """The product a b of (n, d) and (d, d)."""
    out = np.empty((len(a), b.shape[1]))
    kernels.map_rows(np.ascontiguousarray(b.T), np.ascontiguousarray(a), out)
    return out


def _outer(rows: Floats) -> Floats:
    """Sum of the outer products of rows (n, d): (d, d)."""
    columns = np.ascontiguousarray(rows.T)
    out: Floats = np.array([[kernels.dot(a, b) for b in columns] for a in columns])
    return out


class MetricRun(MomentsRun):
    """A run whose labels are numbers of classes: other sums, and a matrix for a model.

    Parameters
    ----------
    plan
        The calibrated mechanism, for as many classes.
    classes
        Their numbers, in any order.
    """

    def __init__(self, plan: SecondMomentsPlan, classes: tuple[float, ...]) -> None:
        super().__init__(plan)
        self._w = np.zeros(plan.features * (plan.features + 1) // 2)
        self._numbered = np.array(sorted(classes))

    def _sum_up(self, rows: Floats, labels: Floats) -> None:
        self.block.add(kernels.class_sums, rows, labels, self._numbered, self.plan.grid)

    def _leader(self) -> tuple[Floats, Link]:
        """Coordinates of W, from all releases so far."""
        plan, known = self.plan, self._numbers[1]
        w = metric_of(self._weighted / known, plan.features, plan.classes, 1.0 / known)
        kernels.project_ball(w, plan.radius)
        return w, self._link

    def _noise_of_weights(self) -> Floats | None:
        plan, known = self.plan, self._numbers[1]
        if not known:
            return None
        mean = self._weighted / known
        seen = seen_of(mean, plan.classes, 1.0 / known)
        if len(seen) < 2:
            return None
        return noise_of_metric(mean, plan.features, plan.classes, 1.0 / known, plan.radius, seen)


@dataclass(frozen=True)
class MetricMoments(Moments):
    """A metric in closed form, computed from second moments of blocks of records and of declared classes.

    Parameters
    ----------
    classes
        Their numbers.
    """

    classes: tuple[float, ...] = ()

    label_mean: ClassVar[bool] = False
    label_cross: ClassVar[bool] = False
    prefix: ClassVar[str] = "means and variances"

    def start(self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None) -> MetricRun:
        """A run; nothing is drawn, and what was fitted for a saved one is taken from it."""
        return MetricRun(under(self.planned(settings), saved), self.classes)

    def planned(self, settings: Settings) -> SecondMomentsPlan:
        """The plan for as many classes."""
        return replace(super().planned(settings), classes=len(self.classes))
