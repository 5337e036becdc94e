"""Least squares with the full history, in time that does not depend on its length.

For ``a = x - mean`` the sum over all records of a class of (x - x_j)(x - x_j)' is n a a' + C, with C the sum
of (x_j - mean)(x_j - mean)': counts, means and centred second moments give the gradient exactly. Centred, so
that large means cost no digits.

Region of the state for two classes, negative first::

    n[2], mean[2][cap], C[2][cap * cap]

For real labels, with e and v the deviations of label and record from their means over all records::

    n, mean label, sum e^2 | mean[cap], sum e v, sum e^2 v | sum v v' [cap * cap], sum e v v', sum e^2 v v'
"""

from __future__ import annotations

from streampair.kernels._jit import Array, kernel
from streampair.kernels.buffers import MOMENTS_REAL
from streampair.kernels.ogd import first_large, link_record, move, published_score, ridge
from streampair.kernels.scaling import (
    GRADIENT,
    VECTORS,
    WEIGHTS,
    column,
    effects,
    observe_row,
)
from streampair.kernels.state import CAP, FILLED, HEADER, POLICY, RECORDS, D
from streampair.kernels.vectors import MAX_ABS, dot, first_unusable, view


@kernel
def _moments_class(s: Array, at: int, x: Array, y: float, w: Array, g: Array) -> None:
    """Add the summed least-squares gradients of (x, y) with all records of the other class to g."""
    d = x.shape[0]
    cap = int(s[CAP])
    other = 0 if y > 0.0 else 1
    n = s[at + other]
    if n == 0.0:
        return
    mean = view(s, at + 2 + other * cap, d)
    matrix = at + 2 + 2 * cap + other * cap * cap
    along = 0.0
    for i in range(d):
        along += w[i] * (x[i] - mean[i])
    # With c = y - y' = 2 y the slope of a pair is -2 c + 2 c^2 w.(x - x').
    k = n * (-4.0 * y + 8.0 * along)
    for i in range(d):
        row = view(s, matrix + i * cap, d)
        g[i] += k * (x[i] - mean[i]) + 8.0 * dot(row, w)


@kernel
def _moments_class_add(s: Array, at: int, x: Array, y: float) -> None:
    """Let (x, y) into the moments of its class."""
    d = x.shape[0]
    cap = int(s[CAP])
    class_index = 1 if y > 0.0 else 0
    before = s[at + class_index]
    s[at + class_index] = before + 1.0
    share = 1.0 / (before + 1.0)
    mean = view(s, at + 2 + class_index * cap, d)
    matrix = at + 2 + 2 * cap + class_index * cap * cap
    for i in range(d):
        off = (x[i] - mean[i]) * (before * share)
        for j in range(d):
            s[matrix + i * cap + j] += off * (x[j] - mean[j])
    for i in range(d):
        mean[i] += (x[i] - mean[i]) * share


@kernel
def _moments_real(s: Array, at: int, x: Array, y: float, w: Array, g: Array) -> None:
    """Add the summed least-squares gradients of (x, y) with all records to g.

    With b and a the deviations of (y, x) from the means: the sum over the records (e, v) of
    ``(-2 (b - e) + 2 (b - e)^2 w.(a - v)) (a - v)``, multiplied out.
    """
    d = x.shape[0]
    cap = int(s[CAP])
    n = s[at]
    b = y - s[at + 1]
    e2 = s[at + 2]
    at += 3
    mean = view(s, at, d)
    ev = view(s, at + cap, d)
    e2v = view(s, at + 2 * cap, d)
    vv = at + 3 * cap
    along = 0.0
    for i in range(d):
        along += w[i] * (x[i] - mean[i])
    ev_along = dot(ev, w)
    e2v_along = dot(e2v, w)
    a_part = 2.0 * (b * b * n * along + 2.0 * b * ev_along + e2 * along - e2v_along) - 2.0 * n * b
    ev_part = 4.0 * b * along - 2.0
    for i in range(d):
        first = vv + i * cap
        second = first + cap * cap
        third = second + cap * cap
        spread = (
            b * b * dot(view(s, first, d), w)
            - 2.0 * b * dot(view(s, second, d), w)
            + dot(view(s, third, d), w)
        )
        g[i] += a_part * (x[i] - mean[i]) + ev_part * ev[i] - 2.0 * along * e2v[i] + 2.0 * spread


@kernel
def _moments_real_add(s: Array, at: int, x: Array, y: float) -> None:
    """Let (x, y) into the moments: move them to the new means, then add the record."""
    d = x.shape[0]
    cap = int(s[CAP])
    n = s[at]
    share = 1.0 / (n + 1.0)
    e = y - s[at + 1]
    h = e * share  # how far the mean of the labels moves
    rest = e - h
    e2 = s[at + 2]
    vectors = at + 3
    mean = view(s, vectors, d)
    ev = view(s, vectors + cap, d)
    e2v = view(s, vectors + 2 * cap, d)
    vv = vectors + 3 * cap
    ev2 = vv + cap * cap
    e2v2 = ev2 + cap * cap
    for i in range(d):
        off = x[i] - mean[i]
        p = off * share
        centred = off - p
        for j in range(d):
            off_j = x[j] - mean[j]
            q = off_j * share
            cell = i * cap + j
            both = p * q
            mine = centred * (off_j - q)
            cross = ev[i] * q + p * ev[j]
            vv_old = s[vv + cell]
            ev_old = s[ev2 + cell]
            s[vv + cell] = vv_old + n * both + mine
            s[ev2 + cell] = ev_old - cross - h * (vv_old + n * both) + rest * mine
            s[e2v2 + cell] += (
                e2 * both
                - (e2v[i] * q + p * e2v[j])
                - 2.0 * h * (ev_old - cross)
                + h * h * (vv_old + n * both)
                + rest * rest * mine
            )
    for i in range(d):
        off = x[i] - mean[i]
        p = off * share
        centred = off - p
        e2v[i] += rest * rest * centred - 2.0 * h * ev[i] - p * (e2 + n * h * h)
        ev[i] += n * h * p + rest * centred
        mean[i] += p
    s[at] = n + 1.0
    s[at + 1] += h
    s[at + 2] = e2 + n * h * h + rest * rest


@kernel
def _moments_step(s: Array, x: Array, y: float) -> None:
    """One record: step on the pairs with all records of the past, then into their moments."""
    before = s[RECORDS]
    s[RECORDS] = s[FILLED] = before + 1.0
    real = int(s[POLICY]) == MOMENTS_REAL
    region = HEADER + VECTORS * int(s[CAP])
    kept = observe_row(s, x)
    if before > 0.0:
        g = column(s, GRADIENT)
        if real:
            _moments_real(s, region, kept, y, effects(s, WEIGHTS), g)
        else:
            _moments_class(s, region, kept, y, effects(s, WEIGHTS), g)
        for i in range(g.shape[0]):
            g[i] = g[i] / before + ridge(s, i)
        move(s, y, g, -1)
    if real:
        _moments_real_add(s, region, kept, y)
    else:
        _moments_class_add(s, region, kept, y)


@kernel
def moments_learn(s: Array, y: float) -> int:
    """Learn the packed record with label y. Returns 0; or 1 + the unusable column, with nothing changed."""
    d = int(s[D])
    x = view(s, HEADER, d)
    bad = first_unusable(x)
    if bad >= 0:
        return bad + 1
    link_record(s, x, y)
    _moments_step(s, x, y)
    return 0


@kernel
def moments_learn_many(s: Array, rows: Array, labels: Array, scores: Array) -> int:
    """`ogd_learn_many` for least squares over the full history."""
    bad: int = first_large(rows, MAX_ABS)
    if bad > 0:
        return bad
    d = int(s[D])
    flat = rows.reshape(rows.size)
    for r in range(rows.shape[0]):
        x = view(flat, r * d, d)
        if scores.shape[0] > 0:
            scores[r] = published_score(s, x)
        if labels[r] == labels[r]:
            link_record(s, x, labels[r])
            _moments_step(s, x, labels[r])
    return 0
