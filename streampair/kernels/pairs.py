"""Gradients over pairs of a table: steps along pairs one after the other, and sums over all pairs.

The gradient of ``sum over i, j of phi(2 (s_i - s_j))``, i a record that should rank high and j one that
should rank low, in the scores is one number a record; times the records it is the gradient in the weights. So
no pair is ever made into a vector. Where phi' is a sum of pieces, each linear up to a kink and 0 from there,
sorted scores give all numbers in one pass for each piece.
"""

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


BLOCK = 512  # low scores that a pass of the logistic loss is about: so many shares stay near the processor


@kernel
def pair_sums(pieces: Array, high: Array, low: Array, out_high: Array, out_low: Array) -> None:
    """Derivative of the summed loss of all pairs in each score, for a loss whose slope has pieces.

    Scores are in ascending order. A pair has margin ``2 (s_i - s_j)``, with i in `high` and j in `low`.

    Parameters
    ----------
    pieces
        (k, 4): until, step, bend, zero. At margins m below `until` each adds ``step + bend (m - zero)`` to
        the slope of the loss.
    high, low
        Scores (n,) and (m,).
    out_high, out_low
        Get the derivatives, (n,) and (m,).
    """
    n, m = high.shape[0], low.shape[0]
    # From -0.0, to which a number can be added without changing even the sign of a zero.
    for i in range(n):
        out_high[i] = -0.0
    for j in range(m):
        out_low[j] = -0.0
    for p in range(pieces.shape[0]):
        until, step, bend, zero = pieces[p, 0], pieces[p, 1], pieces[p, 2], pieces[p, 3]
        # The low scores whose margin is below: a suffix of `low` that shrinks as s_i rises.
        tail = 0.0
        for j in range(m):
            tail += low[j]
        first = 0
        for i in range(n):
            while first < m and not 2.0 * (high[i] - low[first]) < until:
                tail -= low[first]
                first += 1
            count = m - first
            if step != 0.0:
                out_high[i] += 2.0 * step * count
            if bend != 0.0:
                out_high[i] += -2.0 * bend * (count * (zero - 2.0 * high[i]) + 2.0 * tail)
        # And for a low score those of a prefix of `high`, which grows with it.
        head = 0.0
        last = 0
        for j in range(m):
            while last < n and 2.0 * (high[last] - low[j]) < until:
                head += high[last]
                last += 1
            if step != 0.0:
                out_low[j] += -2.0 * step * last
            if bend != 0.0:
                out_low[j] += 2.0 * bend * (last * (zero + 2.0 * low[j]) - 2.0 * head)


@kernel
def pair_sums_any(code: int, high: Array, low: Array, out_high: Array, out_low: Array) -> None:
    """The same for any loss of a margin, pair by pair, in any order of the scores."""
    for j in range(low.shape[0]):
        out_low[j] = 0.0
    for i in range(high.shape[0]):
        total = 0.0
        for j in range(low.shape[0]):
            slope = 2.0 * loss_slope(code, 2.0 * (high[i] - low[j]))
            total += slope
            out_low[j] -= slope
        out_high[i] = total


@kernel
def pair_sums_logistic(high: Array, low: Array, out_high: Array, out_low: Array) -> None:
    """The same for the logistic loss, in any order of the scores, which are within -100 and 100.

    ``sigmoid(-2 (s - r)) = e^(2r) / (e^(2s) + e^(2r))``: one exponential a record, one quotient a pair. Four
    rows at a time: a processor divides several numbers at once, and adds to four sums while one sum would
    wait for itself. Each sum has its terms in the order of the records, so it has the bits of a plain loop.
    """
    n, m = high.shape[0], low.shape[0]
    lows, owns = np.empty(m), np.full((n + 3) // 4 * 4, math.inf)  # beyond n: rows whose shares are 0
    for j in range(m):
        lows[j] = math.exp(2.0 * low[j])
        out_low[j] = 0.0
    for i in range(n):
        owns[i] = math.exp(2.0 * high[i])
    totals, shares = np.zeros(len(owns)), np.empty((4, BLOCK))
    for start in range(0, m, BLOCK):
        end = min(start + BLOCK, m)
        part, out = lows[start:end], out_low[start:end]
        a, b, c, d = shares[0], shares[1], shares[2], shares[3]
        for i in range(0, len(owns), 4):
            for row in range(4):
                share = shares[row, : end - start]
                np.add(part, owns[i + row], share)
                np.divide(part, share, share)
            for j in range(end - start):
                out[j] = out[j] + 2.0 * a[j] + 2.0 * b[j] + 2.0 * c[j] + 2.0 * d[j]
            sum_a, sum_b, sum_c, sum_d = totals[i], totals[i + 1], totals[i + 2], totals[i + 3]
            for j in range(end - start):
                sum_a += a[j]
                sum_b += b[j]
                sum_c += c[j]
                sum_d += d[j]
            totals[i], totals[i + 1], totals[i + 2], totals[i + 3] = sum_a, sum_b, sum_c, sum_d
    for i in range(n):
        out_high[i] = -2.0 * totals[i]
