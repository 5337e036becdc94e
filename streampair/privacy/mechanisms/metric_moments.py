"""Private scatter matrices of similar and of dissimilar pairs, and the metric that they give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from streampair.kernels import dp_steps, metric, symmetric, vectors
from streampair.privacy.mechanisms.second_moments import Moments, MomentsState, projected, unpacked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    from collections.abc import Mapping

    from streampair.privacy.mechanisms.base import Link, Settings
    from streampair.privacy.mechanisms.second_moments import SecondMomentsPlan

__all__ = [
    "MetricMoments",
    "MetricMomentsState",
    "metric_of",
    "noise_of_metric",
    "seen_of",
]

_EXACT = 300  # most unit moves that are all tried; beyond, the variance is estimated from draws
_DRAWS = 128  # a standard deviation to 6 %
_FEWEST = 32
_WORK = 1e8
_CHUNK = 32


class _Moves(NamedTuple):
    """Directions in which the released moments move: matrix (m, d, d), sums (m, K, d), shares (m, K)."""

    second: Floats
    sums: Floats
    shares: Floats


def _directions(d: int, classes: int) -> Iterator[_Moves]:
    """All unit moves of the packed moments, or draws of unit noise if there are many.

    The mean square over draws estimates the sum of squares over all unit moves.
    """
    packed_size = d * (d + 1) // 2
    size = packed_size + classes * d + classes
    draws = np.eye(size)
    if size > _EXACT:
        most = max(_FEWEST, min(_DRAWS, int(_WORK / d**3)))
        # A fixed seed: every process computes the same number for one release.
        draws = np.random.default_rng(0).normal(size=(most, size)) / math.sqrt(most)
    row, column = np.tril_indices(d)
    for first in range(0, len(draws), _CHUNK):
        part = draws[first : first + _CHUNK]
        second = np.zeros((len(part), d, d))
        cells = part[:, :packed_size] / np.where(row == column, 1.0, math.sqrt(2.0))
        second[:, row, column] = cells
        second[:, column, row] = cells
        sums = part[:, packed_size : packed_size + classes * d].reshape(-1, classes, d)
        yield _Moves(second, sums, 2.0 * part[:, packed_size + classes * d :])


def _slopes(x: Floats, f: Floats, slope: Floats) -> Floats:
    """Divided differences of a function that has values f and slopes at x, (d, d)."""
    gaps = x[:, None] - x[None, :]
    near = np.abs(gaps) < 1e-12 * max(float(np.abs(x).max()), 1e-300)
    middle = 0.5 * (slope[:, None] + slope[None, :])
    return np.where(near, middle, (f[:, None] - f[None, :]) / np.where(near, 1.0, gaps))


def _both(a: Floats, b: Floats) -> Floats:
    """`a b' + b a'` of rows a (d,) and b (m, d): (m, d, d)."""
    one = b[:, :, None] * a[None, None, :]
    return one + one.transpose(0, 2, 1)


def _turned(a: Floats, x: Floats) -> Floats:
    """`x' a x` of symmetric a (m, d, d), by two large products, which are faster than many small ones."""
    half = (a.reshape(-1, len(x)) @ x).reshape(a.shape).transpose(0, 2, 1)
    out: Floats = (half.reshape(-1, len(x)) @ x).reshape(a.shape)
    return out


def noise_of_metric(
    mean: Floats, d: int, classes: int, variance: float, radius: float, seen: NDArray[np.intp]
) -> Floats:
    """Standard deviation (d (d + 1) / 2,) of the noise in the coordinates of W, to first order.

    Parameters
    ----------
    mean, d, classes, variance
        As of `metric_of`.
    radius
        Radius of the ball that the coordinates of W are projected to.
    seen
        Numbers of the classes whose share exceeds its noise, at least two.

    Notes
    -----
    With S the scatter within, floored, and B the one between, `X' S X = I` and `X' B X` diagonal, W is
    `X g X'` for a function g of that diagonal. Moves `Z_S = X' dS X` and `Z_B = X' dB X` move W by
    `X (G o Z_B - (G o (o_a + o_b) + g_a + g_b) o Z_S / 2) X'`, G the divided differences of g.
    """
    packed_size = d * (d + 1) // 2
    second, _ = unpacked(mean[: packed_size + d], d)
    end = packed_size + classes * d
    sums, shares = mean[packed_size:end].reshape(classes, d)[seen], 2.0 * mean[end:]
    counted = shares > 0.0
    whole = float(shares[counted].sum())
    shares = shares[seen]
    total = float(shares.sum())
    middle = sums.sum(axis=0) / total
    rows = (sums - shares[:, None] * middle) / np.sqrt(shares * total)[:, None]
    bias = variance / total * float((1.0 / shares).sum() - len(seen) / total)
    values, vectors = np.linalg.eigh(second / whole - np.outer(middle, middle) - rows.T @ rows)
    floored = np.maximum(values + bias, 0.0) + math.sqrt(d * variance) / whole
    floor = _slopes(values, floored, (values + bias > 0.0).astype(float))
    white = vectors / np.sqrt(floored)
    odds, turn = np.linalg.eigh(white.T @ (rows.T @ rows - bias * np.eye(d)) @ white)
    x = white @ turn
    ratio = 2.0 / (1.0 - float(((shares / total) ** 2).sum()))
    apart = ratio * np.maximum(odds, 0.0)
    g = 0.5 * apart / (2.0 + apart)
    between = _slopes(odds, g, np.where(odds > 0.0, ratio / (2.0 + apart) ** 2, 0.0))
    within = 0.5 * (between * (odds[:, None] + odds[None, :]) + g[:, None] + g[None, :])
    share = np.maximum(odds, 0.0) / (2.0 + apart) ** 2
    back = vectors.T @ x
    out = np.zeros(packed_size)
    upper = np.triu_indices(d)
    scale = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    w = ((x * g) @ x.T)[upper] * scale
    for moves in _directions(d, classes):
        sum_moves, share_moves = moves.sums[:, seen], moves.shares[:, seen]
        more = share_moves.sum(axis=1)
        to_middle = (sum_moves.sum(axis=1) - middle * more[:, None]) / total
        to_second = moves.second / whole
        to_second -= second * (moves.shares[:, counted].sum(axis=1) / whole**2)[:, None, None]
        to_between = np.zeros_like(to_second)
        for k, row in enumerate(rows):
            move = (sum_moves[:, k] - share_moves[:, k, None] * middle - shares[k] * to_middle) / math.sqrt(
                shares[k] * total
            )
            move -= row * (0.5 * (share_moves[:, k] / shares[k] + more / total))[:, None]
            to_between += _both(row, move)
        to_within = to_second - _both(middle, to_middle) - to_between
        z_within = _turned(floor * _turned(to_within, vectors), back)
        z_between = _turned(to_between, x)
        to_ratio = (2.0 * shares / total**2 * (share_moves - shares * more[:, None] / total)).sum(axis=1)
        inner = between * z_between - within * z_within
        inner[:, np.arange(d), np.arange(d)] += share * (0.5 * ratio**2 * to_ratio)[:, None]
        packed = _turned(inner, x.T)[:, upper[0], upper[1]] * scale
        packed = projected(packed.T, w, radius)
        out += (packed * packed).sum(axis=1)
    return np.asarray(np.sqrt(variance * out))


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
        Variance of the noise in each cell of `mean`.

    Returns
    -------
    array
        Shape (d (d + 1) / 2,): isometric coordinates of a positive semi-definite matrix, 0 if the shares of
        fewer than two classes exceed their noise.

    Notes
    -----
    For classes of one covariance S, pairs of one class differ by normal vectors of the covariance 2 S, and
    pairs of two classes by ones of `2 S + C`, C the mean of `u u'` over the differences u of class means:
    `W = (2 S)^-1 - (2 S + C)^-1` is the log-likelihood ratio (Koestinger et al. 2012), with S pooled over the
    classes. The noise of a class mean adds its variance to the scatter between and takes it from the one
    within, which is corrected.
    """
    # A fixed order, without a library of linear algebra: scores are the same on every processor.
    packed_size = d * (d + 1) // 2
    second, _ = unpacked(mean[: packed_size + d], d)
    end = packed_size + classes * d
    sums, shares = mean[packed_size:end].reshape(classes, d), 2.0 * mean[end:]
    out = np.zeros(packed_size)
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
    symmetric.eigen(within, values)  # its rows are now eigenvectors
    # The noise of the matrix has a norm of about sqrt(2 d) std; the ridge is of that order.
    values = np.maximum(values + bias, 0.0) + math.sqrt(d * variance) / whole
    white = within / np.sqrt(values)[:, None]
    between = _outer(_times(rows, white.T))
    between[np.diag_indices(d)] -= bias / values
    odds = np.empty(d)
    symmetric.eigen(between, odds)
    apart = np.maximum(odds, 0.0) * 2.0 / (1.0 - _sum((shares / total) * (shares / total)))
    weight = 0.5 * apart / (2.0 + apart)
    w = _outer(np.sqrt(weight)[:, None] * _times(between, white))
    w *= math.sqrt(2.0)
    w[np.diag_indices(d)] /= math.sqrt(2.0)
    out[:] = w[np.triu_indices(d)]
    return out


def seen_of(mean: Floats, classes: int, variance: float) -> NDArray[np.intp]:
    """Numbers of the classes whose share exceeds its noise."""
    return np.flatnonzero(2.0 * mean[-classes:] > _SEEN * 2.0 * math.sqrt(variance))


def _sum(values: Floats) -> float:
    return float(vectors.dot(np.ascontiguousarray(values), np.ones(len(values))))


def _times(a: Floats, b: Floats) -> Floats:
    """The product a b of (n, d) and (d, d)."""
    out = np.empty((len(a), b.shape[1]))
    metric.map_rows(np.ascontiguousarray(b.T), np.ascontiguousarray(a), out)
    return out


def _outer(rows: Floats) -> Floats:
    """Sum of the outer products of rows (n, d): (d, d)."""
    columns = np.ascontiguousarray(rows.T)
    out: Floats = np.array([[vectors.dot(a, b) for b in columns] for a in columns])
    return out


class MetricMomentsState(MomentsState):
    """State for labels that are class numbers: class sums in addition, and a matrix as model.

    Parameters
    ----------
    plan
        The calibrated plan for this number of classes.
    classes
        Their numbers, in any order.
    """

    pools: ClassVar[bool] = False

    def __init__(self, plan: SecondMomentsPlan, classes: tuple[float, ...]) -> None:
        super().__init__(plan)
        self._w = np.zeros(plan.features * (plan.features + 1) // 2)
        self._numbered = np.array(sorted(classes))

    def _sum_up(self, rows: Floats, labels: Floats) -> None:
        self.block.add(dp_steps.class_sums, rows, labels, self._numbered, self.plan.grid)

    def _compute_model(self) -> tuple[Floats, Link]:
        """Coordinates of W, from all releases so far."""
        plan, known = self.plan, self._numbers[1]
        w = metric_of(self._weighted / known, plan.features, plan.classes, 1.0 / known)
        vectors.project_ball(w, plan.radius)
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
    warmup_release: ClassVar[str] = "means and variances"

    def start(
        self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None
    ) -> MetricMomentsState:
        """A new state; the fitted numbers are those of `saved`, if given."""
        return MetricMomentsState(self.planned(settings).with_fitted(saved), self.classes)

    def planned(self, settings: Settings) -> SecondMomentsPlan:
        """The plan for this number of classes."""
        return replace(super().planned(settings), classes=len(self.classes))
