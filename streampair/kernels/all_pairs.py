"""What every record of a table contributes to the gradient of all pairs: from scores alone.

The gradient of ``sum over i, j of phi(2 (s_i - s_j))``, i a record that should rank high and j one that
should rank low, in the scores is one number a record; times the records it is the gradient in the weights. So
no pair is ever made into a vector. Where phi' is a polynomial up to a kink, sorted scores give all numbers in
one pass.
"""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.losses import SQUARE, SQUARED_HINGE


@kernel
def pair_sums(code: int, high: Array, low: Array, out_high: Array, out_low: Array) -> None:
    """Derivative of the summed loss of all pairs in each score, for the hinges and least squares.

    Scores are in ascending order. A pair has margin ``2 (s_i - s_j)``, with i in `high` and j in `low`.
    """
    n, m = high.shape[0], low.shape[0]
    if code == SQUARE:
        total_high = 0.0
        total_low = 0.0
        for i in range(n):
            total_high += high[i]
        for j in range(m):
            total_low += low[j]
        for i in range(n):
            out_high[i] = -4.0 * (m * (1.0 - 2.0 * high[i]) + 2.0 * total_low)
        for j in range(m):
            out_low[j] = 4.0 * (n * (1.0 + 2.0 * low[j]) - 2.0 * total_high)
        return
    squared = code == SQUARED_HINGE
    # Pairs cost something whose low score is above s_i - 1/2: a suffix of `low` that shrinks as s_i rises.
    tail = 0.0
    for j in range(m):
        tail += low[j]
    first = 0
    for i in range(n):
        while first < m and not 2.0 * (high[i] - low[first]) < 1.0:
            tail -= low[first]
            first += 1
        count = m - first
        if squared:
            out_high[i] = -4.0 * (count * (1.0 - 2.0 * high[i]) + 2.0 * tail)
        else:
            out_high[i] = -2.0 * count
    # And for a low score those of a prefix of `high`, which grows with it.
    head = 0.0
    last = 0
    for j in range(m):
        while last < n and 2.0 * (high[last] - low[j]) < 1.0:
            head += high[last]
            last += 1
        if squared:
            out_low[j] = 4.0 * (last * (1.0 + 2.0 * low[j]) - 2.0 * head)
        else:
            out_low[j] = 2.0 * last


@kernel
def pair_sums_logistic(high: Array, low: Array, out_high: Array, out_low: Array) -> None:
    """The same for the logistic loss, in any order of the scores, which are within -100 and 100.

    ``sigmoid(-2 (s - r)) = e^(2r) / (e^(2s) + e^(2r))``: one exponential a record, one quotient a pair.
    """
    n, m = high.shape[0], low.shape[0]
    lows = np.empty(m)
    for j in range(m):
        lows[j] = math.exp(2.0 * low[j])
        out_low[j] = 0.0
    for i in range(n):
        own = math.exp(2.0 * high[i])
        total = 0.0
        for j in range(m):
            share = lows[j] / (own + lows[j])
            total += share
            out_low[j] += 2.0 * share
        out_high[i] = -2.0 * total
