"""The search for the best fixed weights, step by step, as `streampair.evaluation.comparator` says it."""

from __future__ import annotations

import math

import numpy as np

from naive.losses import NAMES, loss_slope, loss_value


def smooth(code: int, width: float, m: float) -> tuple[float, float]:
    """Value and slope of a loss; a hinge of a width has a parabola in place of its corner."""
    if width > 0.0:
        u = min(max((1.0 - m) / width, 0.0), 1.0)
        return u * (1.0 - m) - 0.5 * width * u * u, -u
    return loss_value(NAMES[code], m), loss_slope(NAMES[code], m)


def descent(
    rows: np.ndarray,
    share: np.ndarray,
    code: int,
    width: float,
    radius: float,
    w: np.ndarray,
    reach: float,
    iterations: int,
) -> tuple[np.ndarray, int]:
    """Where it ends, and after how many steps."""

    def evaluated(w: np.ndarray) -> tuple[float, np.ndarray]:
        pairs = [smooth(code, width, float(row @ w)) for row in rows]
        value = sum(float(s) * pair[0] for s, pair in zip(share, pairs, strict=True))
        return value, sum(s * pair[1] * row for s, pair, row in zip(share, pairs, rows, strict=True))

    curvature, momentum, v = 0.1 * (reach / width if width > 0.0 else reach), 1.0, w
    value = evaluated(w)[0]
    for count in range(1, iterations + 1):
        value_there, gradient = evaluated(v)
        while True:
            new = v - gradient / curvature
            new = new * min(1.0, radius / max(float(np.linalg.norm(new)), 1e-300))
            move = new - v
            below = (
                value_there
                + gradient @ move
                + curvature / 2 * (move @ move)
                + 1e-12 * max(1.0, abs(value_there))
            )
            if evaluated(new)[0] <= below or curvature > 1e15:
                break
            curvature *= 2
        if evaluated(new)[0] > value:
            if momentum == 1.0:
                return w, count
            momentum, v = 1.0, w
            continue
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        v = new + (momentum - 1) / following * (new - w)
        gain, step = value - evaluated(new)[0], float(np.abs(new - w).max())
        stop = gain < 1e-7 * max(abs(value), 1e-3) and step < 1e-4 * radius
        w, value, momentum = new, evaluated(new)[0], following
        if stop:
            return w, count
        curvature *= 0.95
    return w, iterations
