"""The search for the best fixed weights of pairs: accelerated projected gradient on a ball.

The steps of `streampair.evaluation.comparator`, for losses of a margin that is linear in the weights. There
are few pairs and few weights, so that in NumPy the calls take most of the time.
"""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.losses import HINGE, loss_slope, loss_value


@kernel
def _value(code: int, width: float, m: float) -> float:
    """Value of the loss; the hinge has a parabola of this width left of 1, in place of its corner."""
    below = 1.0 - m
    if code == HINGE and below > 0.0:
        if below >= width:
            return below - 0.5 * width
        return 0.5 * below * below / width
    return float(loss_value(code, m))


@kernel
def _slope(code: int, width: float, m: float) -> float:
    if code == HINGE and width > 0.0:
        return -min(max((1.0 - m) / width, 0.0), 1.0)
    return float(loss_slope(code, m))


@kernel
def _mean(code: int, width: float, share: Array, margins: Array) -> float:
    total = 0.0
    for i in range(share.shape[0]):
        total += share[i] * _value(code, width, margins[i])
    return total


@kernel
def _margins(columns: Array, w: Array, out: Array) -> None:
    """Column by column, which many processors do four at a time: sums of one row they may not."""
    out[:] = 0.0
    for j in range(columns.shape[0]):
        for i in range(columns.shape[1]):
            out[i] += w[j] * columns[j, i]


@kernel
def descent(
    rows: Array, share: Array, code: int, width: float, radius: float, w: Array, reach: float, iterations: int
) -> int:
    """Minimise ``sum_i share_i loss(rows_i . w)`` over the ball: how many iterations were taken.

    Parameters
    ----------
    rows, share
        (n, d) and (n,).
    code, width
        The loss; the width of the parabola that smooths the hinge, else 0.
    radius
        Of the ball.
    w
        (d,), where to begin; gets where it ended.
    reach
        A guess at the curvature, which the steps correct.
    iterations
        At most.
    """
    n, d = rows.shape
    columns = np.ascontiguousarray(rows.T)
    mw, mv, mnew = np.empty(n), np.empty(n), np.empty(n)
    v, new, gradient = w.copy(), np.empty(d), np.empty(d)
    curvature = 0.1 * (reach / width if width > 0.0 else reach)
    momentum = 1.0
    _margins(columns, w, mw)
    mv[:] = mw
    value = _mean(code, width, share, mw)
    for count in range(iterations):
        fv = 0.0
        gradient[:] = 0.0
        for i in range(n):
            fv += share[i] * _value(code, width, mv[i])
            slope = share[i] * _slope(code, width, mv[i])
            if slope != 0.0:
                for j in range(d):
                    gradient[j] += slope * rows[i, j]
        while True:
            size = 0.0
            for j in range(d):
                new[j] = v[j] - gradient[j] / curvature
                size += new[j] * new[j]
            if math.sqrt(size) > radius:
                new *= radius / math.sqrt(size)
            bound, square = fv, 0.0
            for j in range(d):
                move = new[j] - v[j]
                bound += gradient[j] * move
                square += move * move
            _margins(columns, new, mnew)
            f_new = _mean(code, width, share, mnew)
            if f_new <= bound + 0.5 * curvature * square + 1e-12 * max(1.0, abs(fv)) or curvature > 1e15:
                break
            curvature *= 2.0
        if f_new > value:
            if momentum == 1.0:
                return count + 1  # a plain step from w does not help: done
            momentum = 1.0
            v[:], mv[:] = w, mw
            continue
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
        ahead = (momentum - 1.0) / following
        furthest = 0.0
        for j in range(d):
            furthest = max(furthest, abs(new[j] - w[j]))
            v[j] = new[j] + ahead * (new[j] - w[j])
            w[j] = new[j]
        for i in range(n):
            mv[i] = mnew[i] + ahead * (mnew[i] - mw[i])
            mw[i] = mnew[i]
        done = value - f_new < 1e-7 * max(abs(value), 1e-3) and furthest < 1e-4 * radius
        value, momentum = f_new, following
        if done:
            return count + 1
        curvature *= 0.95
    return iterations
