"""Least squares over all pairs in closed form, in the flat state of OGD, from moments that fade.

The mean over all pairs of ``(y - y' - w.(x - x'))^2`` is least at the weights of the regression of y on x
with an intercept: ``w = C^-1 c``, of the covariance C of the features and their covariance c with the labels.
With D the spreads, Z = D^-1 C D^-1 the correlations and n the weight of the records::

    w = D^-1 (Z + L2 (1 + NOISE sqrt(d / n)) I)^-1 D^-1 c

For two classes c is divided by half the variance of the labels, so that delta = D^-1 c is the gap of the
class means in spreads, whatever the share of the positives. The solution is then scaled so that the mean of
``(1 - (y - y') w.(x - x'))^2`` over the pairs of both classes is least, if both had the same covariance: by
``a / (2 (2 (q - v a^2 / 4) + a^2))``, with a and q the products of the solution with delta and with Z, and v
the variance of the labels.

Records wait in rows until there are BLOCK of them, or a solution is due. The centred moments of a block are
then added to those before by the formula of Chan, Golub and LeVeque (1979), so that large means cost no
digits. A record counts KEEP^age. A solution is due when NEW of the weight is new, and a third as many records
as there are features: so it costs about as much as the moments, the d^3 / 6 products of Cholesky's factors
being those of the moments of d / 3 records.

In the place of the buffer are SCALARS numbers, ``mean[cap]``, ``cross[cap]`` (n c), BLOCK rows of
``1 + cap`` (label and features), and the lower triangle of n C, row by row, ``cap (cap + 1) / 2``. What waits
is counted in FILLED.
"""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.buffers import MOMENTS_REAL
from streampair.kernels.ogd import first_large, link_record, published_score
from streampair.kernels.scaling import LEAST_SPREAD, UNIT, VECTORS, WEIGHTS, column, observe_row, weigh_all
from streampair.kernels.state import CAP, FILLED, HEADER, KEEP, L2, POLICY, RECORDS, D
from streampair.kernels.symmetric import cholesky
from streampair.kernels.vectors import MAX_ABS, dot, first_unusable, view

WEIGHT = 0  # of the records in the moments
TOTAL = 1  # of all records
FRESH = 2  # of those since the last solution
SINCE = 3  # their number
LABEL = 4  # mean label
LABELS = 5  # weighted sum of squares around it
SCALARS = 6

#: Most records that wait.
BLOCK = 64
#: Share of the weight that has to be new for a solution.
NEW = 0.05
#: By how much few records for many features raise the ridge.
NOISE = 20.0
#: Records before weights are solved for: those of fewer may rank backwards, and probabilities learn it.
FIRST = 8.0
#: A spread below this share of the mean is rounding.
LEAST = 1e-12
#: With less of one class, by share of the weight, no weights are solved for.
RARE = 1e-9


@kernel
def _triangle(cap: int) -> int:
    """Where in the region the triangle begins."""
    return SCALARS + 2 * cap + BLOCK * (1 + cap)


@kernel
def _weights_of_rows(rows: int, keep: float) -> Array:
    """What each of the waiting records counts, (rows,), the last one 1."""
    out = np.empty(rows)
    out[rows - 1] = 1.0
    for r in range(rows - 2, -1, -1):
        out[r] = out[r + 1] * keep
    return out


@kernel
def _centre(s: Array, at: int, stride: int, mean: float, counts: Array, total: float, out: Array) -> float:
    """Write one column of the waiting rows around its mean, times the roots of their weights.

    Returns how far its mean is from the one before.
    """
    off = 0.0
    for r in range(counts.shape[0]):
        off += counts[r] * (s[at + r * stride] - mean)
    off /= total
    for r in range(counts.shape[0]):
        out[r] = math.sqrt(counts[r]) * (s[at + r * stride] - mean - off)
    return off


@kernel
def merge_rows(s: Array) -> None:
    """Add the waiting records to the moments."""
    d, cap, rows = int(s[D]), int(s[CAP]), int(s[FILLED])
    if rows == 0:
        return
    at = HEADER + VECTORS * cap
    means, cross, table = at + SCALARS, at + SCALARS + cap, at + SCALARS + 2 * cap
    keep = s[KEEP] if s[KEEP] > 0.0 else 1.0
    counts = _weights_of_rows(rows, keep)
    total = 0.0
    for r in range(rows):
        total += counts[r]
    fade = counts[0] * keep
    old = s[at + WEIGHT] * fade
    share = total / (old + total)
    between = old * share
    offs, label, block = np.empty(d), np.empty(rows), np.empty((d, rows))
    off = _centre(s, table, 1 + cap, s[at + LABEL], counts, total, label)
    for i in range(d):
        offs[i] = _centre(s, table + 1 + i, 1 + cap, s[means + i], counts, total, block[i])
    cell = at + _triangle(cap)
    for i in range(d):
        part = block[i]
        for j in range(i + 1):
            s[cell] = s[cell] * fade + dot(part, block[j]) + between * offs[i] * offs[j]
            cell += 1
        s[cross + i] = s[cross + i] * fade + dot(part, label) + between * offs[i] * off
        s[means + i] += share * offs[i]
    s[at + LABELS] = s[at + LABELS] * fade + dot(label, label) + between * off * off
    s[at + LABEL] += share * off
    s[at + WEIGHT] = old + total
    s[FILLED] = 0.0


@kernel
def _spreads(s: Array, n: float) -> Array:
    """Standard deviations of the features, (d,); 0 where it is rounding."""
    d, cap = int(s[D]), int(s[CAP])
    at = HEADER + VECTORS * cap
    out = np.empty(d)
    for i in range(d):
        spread = math.sqrt(s[at + _triangle(cap) + i * (i + 3) // 2] / n)
        out[i] = spread if spread > LEAST * abs(s[at + SCALARS + i]) and spread >= LEAST_SPREAD else 0.0
    return out


@kernel
def _solution(s: Array, n: float, spreads: Array, ridge: float, right: Array) -> Array:
    """Weights (d,) of the standardised features for this right-hand side."""
    d, cap = int(s[D]), int(s[CAP])
    cell = HEADER + VECTORS * cap + _triangle(cap)
    z, w = np.empty((d, d)), np.empty(d)
    for i in range(d):
        for j in range(i + 1):
            scale = n * spreads[i] * spreads[j]
            z[i, j] = s[cell] / scale if scale > 0.0 else 0.0
            cell += 1
        z[i, i] = 1.0 + ridge
    cholesky(z, z)
    for i in range(d):
        w[i] = (right[i] - dot(z[i, :i], w[:i])) / z[i, i]
    for i in range(d - 1, -1, -1):
        w[i] /= z[i, i]
        for j in range(i):
            w[j] -= w[i] * z[i, j]
    return w


@kernel
def solve(s: Array) -> None:
    """Set the weights to the solution of the moments, in which all records are."""
    d, cap = int(s[D]), int(s[CAP])
    at = HEADER + VECTORS * cap
    s[at + FRESH] = s[at + SINCE] = 0.0
    n = s[at + WEIGHT]
    variance = s[at + LABELS] / n if n > 0.0 else 0.0
    real = int(s[POLICY]) == MOMENTS_REAL
    if not variance > (0.0 if real else 4.0 * RARE):
        return
    spreads, right = _spreads(s, n), np.empty(d)
    worth = 1.0 if real else 2.0 / variance
    for i in range(d):
        cross = s[at + SCALARS + cap + i] / n
        right[i] = worth * cross / spreads[i] if spreads[i] > 0.0 else 0.0
    ridge = s[L2] * (1.0 + NOISE * math.sqrt(d / n))
    found = _solution(s, n, spreads, ridge, right)
    factor = 1.0
    if not real:
        gap = dot(found, right)
        within = gap - ridge * dot(found, found) - 0.25 * variance * gap * gap
        factor = gap / (2.0 * (2.0 * within + gap * gap)) if gap > 0.0 else 0.0
    w, unit = column(s, WEIGHTS), column(s, UNIT)
    for i in range(d):
        scale = spreads[i] * unit[i]
        w[i] = factor * found[i] / scale if scale > 0.0 else 0.0
    weigh_all(s)


@kernel
def _moments_step(s: Array, record: Array, y: float) -> None:
    """One record: into the statistics of the features, then into the moments, and the weights if due."""
    d, cap = int(s[D]), int(s[CAP])
    s[RECORDS] += 1.0
    x = observe_row(s, record)
    at = HEADER + VECTORS * cap
    row = at + SCALARS + 2 * cap + int(s[FILLED]) * (1 + cap)
    s[row] = y
    for i in range(d):
        s[row + 1 + i] = x[i]
    s[FILLED] += 1.0
    keep = s[KEEP] if s[KEEP] > 0.0 else 1.0
    s[at + TOTAL] = s[at + TOTAL] * keep + 1.0
    s[at + FRESH] = s[at + FRESH] * keep + 1.0
    s[at + SINCE] += 1.0
    due = s[at + FRESH] >= NEW * s[at + TOTAL] and 3.0 * s[at + SINCE] >= d and s[RECORDS] >= FIRST
    if due or s[FILLED] >= BLOCK:
        merge_rows(s)
    if due:
        solve(s)


@kernel
def pair_moments_learn(s: Array, y: float) -> int:
    """`ogd_learn` for the closed form."""
    x = view(s, HEADER, int(s[D]))
    bad = first_unusable(x)
    if bad >= 0:
        return bad + 1
    link_record(s, x, y)
    _moments_step(s, x, y)
    return 0


@kernel
def pair_moments_learn_many(s: Array, rows: Array, labels: Array, scores: Array) -> int:
    """`ogd_learn_many` for the closed form."""
    bad: int = first_large(rows, MAX_ABS)
    if bad == 0:
        d = int(s[D])
        flat = rows.reshape(rows.size)
        for r in range(rows.shape[0]):
            x = view(flat, r * d, d)
            if scores.shape[0] > 0:
                scores[r] = published_score(s, x)
            if labels[r] == labels[r]:
                link_record(s, x, labels[r])
                _moments_step(s, x, labels[r])
    return bad
