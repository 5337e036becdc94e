"""Steps along the pairs of a table, one after the other."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.losses import loss_slope
from streampair.kernels.vectors import dot, project_ball

Places = NDArray[np.int64]

_ROOT2 = math.sqrt(2.0)


@kernel
def _pair_gradient(code: int, metric: bool, u: Array, y: float, partner: float, w: Array, g: Array) -> bool:
    """Gradient of the loss of a pair into g; whether there is one.

    `u` is the difference of two rows, `y` and `partner` are their labels. A metric is in its isometric
    coordinates, row by row of the lower triangle.
    """
    if not metric:
        c = y - partner
        if c == 0.0:
            return False
        slope = c * loss_slope(code, c * dot(w, u))
        for j in range(len(u)):
            g[j] = slope * u[j]
        return True
    k = 0
    for i in range(len(u)):
        for j in range(i):
            g[k] = _ROOT2 * u[i] * u[j]
            k += 1
        g[k] = u[i] * u[i]
        k += 1
    same = 1.0 if y == partner else -1.0
    slope = -same * loss_slope(code, same * (1.0 - dot(w, g)))
    for k in range(len(g)):
        g[k] *= slope
    return True


@kernel
def pair_descent(
    code: int,
    metric: bool,
    l2: float,
    radius: float,
    etas: Array,
    worth: Array,
    rows: Array,
    labels: Array,
    one: Places,
    other: Places,
    w: Array,
    before: Array,
    total: Array,
) -> None:
    """Projected steps, a pair at each.

    Parameters
    ----------
    code, metric
        The loss, a function of the margin, and whether the weights are those of a metric.
    l2, radius
        Strength of the ridge term, and size of the ball around 0.
    etas, worth
        Sizes of the steps, and what the iterate before each step weighs in the sum, (T,) each.
    rows, labels, one, other
        The table, (n, d) and (n,), and the places of the pairs in it, (T,) each.
    w, before, total
        The iterate, the one before it, and the weighted sum of those before, at each step; all move, (dim,)
        each.
    """
    u, g = np.empty(rows.shape[1]), np.empty(len(w))
    for t in range(len(one)):
        eta = etas[t]
        for j in range(len(w)):
            total[j] += worth[t] * before[j]
            before[j] = w[j]
        a, b = one[t], other[t]
        for j in range(len(u)):
            u[j] = rows[a, j] - rows[b, j]
        moved = _pair_gradient(code, metric, u, labels[a], labels[b], w, g)
        if l2 > 0.0:
            for j in range(len(w)):
                g[j] = l2 * w[j] + (g[j] if moved else 0.0)
            moved = True
        if moved:
            for j in range(len(w)):
                w[j] -= eta * g[j]
            project_ball(w, radius)
