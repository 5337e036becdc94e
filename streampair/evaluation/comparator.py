"""The best fixed linear scorer of a sample of pairs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import losses

__all__ = ["minimise"]

Array = NDArray[np.float64]


def minimise(
    rows: Array,
    weights: Array,
    loss: Any,
    radius: float,
    start: Array,
    *,
    near: bool = False,
    iterations: int = 300,
) -> Array:
    """Minimise ``sum_j weights_j loss(rows_j . w)`` over the ball of the radius.

    Accelerated projected gradient with restarts (Beck and Teboulle 2009; O'Donoghue and Candes 2015); the
    step size is found by backtracking. The hinge is smoothed over a width that shrinks in stages.

    Parameters
    ----------
    rows
        (n, d).
    weights
        (n,), nonnegative.
    loss
        With `value` and `slope`.
    radius
        Of the ball.
    start
        (d,).
    near
        Whether `start` is close to the minimum: the coarse stage is left out.
    iterations
        At most, in all stages together.

    Returns
    -------
    numpy.ndarray
        (d,), the best of the points seen under the loss itself.
    """
    mass = float(weights.sum())
    if not len(rows) or mass <= 0.0 or not rows.shape[1]:
        return start.copy()
    use = weights > 0.0
    rows, share = rows[use], weights[use] / mass
    hinge = isinstance(loss, losses.Hinge)
    widths: tuple[float, ...] = (0.0,)
    if hinge:
        widths = (0.05, 0.01) if near else (0.3, 0.05, 0.01)
    best = _project(start, radius)
    best_value = float(share @ loss.value(rows @ best))
    w = best
    # A first guess at the curvature: the backtracking corrects it.
    reach = float(np.mean(np.einsum("ij,ij->i", rows, rows))) or 1.0
    for width in widths:
        w = _accelerate(rows, share, loss, width, radius, w, reach, iterations // len(widths))
        value = float(share @ loss.value(rows @ w))
        if value < best_value:
            best, best_value = w, value
    return best


def _accelerate(
    rows: Array, share: Array, loss: Any, width: float, radius: float, w: Array, reach: float, iterations: int
) -> Array:
    def value_slope(margins: Array) -> tuple[float, Array]:
        if width > 0.0:
            # Hinge smoothed by a parabola of this width left of 1.
            u = np.clip((1.0 - margins) / width, 0.0, 1.0)
            return float(share @ (u * (1.0 - margins) - 0.5 * width * u * u)), -u
        return float(share @ loss.value(margins)), np.asarray(loss.slope(margins))

    curvature = reach / width if width > 0.0 else reach
    curvature *= 0.1
    momentum, v = 1.0, w
    mw = rows @ w
    mv = mw
    value = value_slope(mw)[0]
    for _ in range(iterations):
        fv, slope = value_slope(mv)
        gradient = rows.T @ (share * slope)
        while True:
            new = _project(v - gradient / curvature, radius)
            move = new - v
            mnew = rows @ new
            f_new = value_slope(mnew)[0]
            bound = fv + float(gradient @ move) + 0.5 * curvature * float(move @ move)
            if f_new <= bound + 1e-12 * max(1.0, abs(fv)) or curvature > 1e15:
                break
            curvature *= 2.0
        if f_new > value:
            if momentum == 1.0:
                break  # a plain step from w does not help: done
            momentum, v, mv = 1.0, w, mw
            continue
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
        ahead = (momentum - 1.0) / following
        done = value - f_new < 1e-7 * max(abs(value), 1e-3) and float(np.max(np.abs(new - w))) < 1e-4 * radius
        v, mv = new + ahead * (new - w), mnew + ahead * (mnew - mw)
        w, mw, value, momentum = new, mnew, f_new, following
        if done:
            break
        curvature *= 0.95
    return w


def _project(w: Array, radius: float) -> Array:
    norm = math.sqrt(float(w @ w))
    return w * (radius / norm) if norm > radius else w
