"""Online gradient descent on the pairs of a record with a buffer."""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.buffers import CLASSES, ogd_buffer, other_class
from streampair.kernels.losses import loss_of_errors, pair_slope
from streampair.kernels.platt import link_learn, link_proba
from streampair.kernels.state import (
    ADAGRAD,
    AVERAGE,
    CAP,
    CONSTANT,
    ETAS,
    FEW,
    FILLED,
    GRADIENTS,
    HEADER,
    INVERSE_TIME,
    KEEP,
    L2,
    LINK,
    LOSS,
    POLICY,
    RADIUS,
    RATE,
    RECORDS,
    SCHEDULE,
    WIDTH,
    D,
)
from streampair.kernels.vectors import MAX_ABS, TILE, dot, first_unusable, project_ball, unusable_row, view

# A sum of squares below it has faded: what is left is rounding.
_GONE = 1e-200


@kernel
def ogd_rate(s: Array, squares: float) -> tuple[float, float]:
    """The step size for a gradient of this squared norm, and the share of an iterate in the average.

    With KEEP the sums fade: steps then have the size of that many, and all the same weight in the average.
    Weights by step would let one long silence, in which the sum of squares dwindles, outweigh what follows.
    """
    rate = s[RATE]
    keep = s[KEEP]
    steps = s[RECORDS] - 1.0
    if keep > 0.0:
        s[ETAS] *= keep
        steps = s[ETAS] + 1.0
        s[GRADIENTS] = s[GRADIENTS] * keep if s[GRADIENTS] > _GONE else 0.0
    if rate > 0.0:
        if s[SCHEDULE] == CONSTANT:
            eta = rate
        elif s[SCHEDULE] == INVERSE_TIME:
            eta = rate / (steps + 1.0)
        else:
            eta = rate / math.sqrt(steps)
    else:
        s[GRADIENTS] += squares
        eta = s[RADIUS] * math.sqrt(2.0 / s[GRADIENTS]) if s[GRADIENTS] > 0.0 else 0.0
    weight = 1.0 if keep > 0.0 else steps if s[AVERAGE] > 1.0 else eta
    s[ETAS] += weight
    return eta, weight / s[ETAS] if s[ETAS] > 0.0 else 0.0


@kernel
def adagrad_step(rate: float, g: float, squares: float) -> float:
    """A step of a weight by its gradient g; `squares` is the sum of g^2 so far, this one included."""
    return rate * (g / math.sqrt(max(squares, _GONE)))


@kernel
def fade_squares(s: Array, squares: Array) -> None:
    """Let the sums of squared gradients fade, with KEEP."""
    keep = s[KEEP]
    if keep > 0.0:
        for i in range(squares.shape[0]):
            squares[i] = squares[i] * keep if squares[i] > _GONE else 0.0


@kernel
def ogd_move(s: Array, g: Array, w: Array, previous: Array, averaged: Array) -> None:
    """Average the iterates, then step w against the gradient g. The caller projects w."""
    if s[SCHEDULE] == ADAGRAD:
        fade_squares(s, previous)
        rate = s[RATE]
        for i in range(w.shape[0]):
            previous[i] += g[i] * g[i]
            w[i] -= adagrad_step(rate, g[i], previous[i])
        return
    eta, share = ogd_rate(s, dot(g, g) if s[RATE] <= 0.0 else 0.0)
    if share > 0.0:
        for i in range(w.shape[0]):
            averaged[i] += share * (previous[i] - averaged[i])
    for i in range(w.shape[0]):
        previous[i] = w[i]
        w[i] -= eta * g[i]


@kernel
def published_score(s: Array, x: Array) -> float:
    """Score of x (d,) under the published weights."""
    at = HEADER + (4 if s[AVERAGE] > 0.0 else 2) * int(s[CAP])
    return float(dot(view(s, at, int(s[D])), x))


@kernel
def link_record(s: Array, x: Array, y: float) -> None:
    """Teach the link, if there is one, by the score of x (d,), which is about to be learned."""
    if s[LINK] > 0.0:
        link_learn(s, published_score(s, x), y)


# With many rows (on fewer, what is gained is lost again), each step of a pair's gradient is done for so many
# of them before the next step: which of them have another label, their margins, their slopes, the sum. A
# processor cannot foresee the labels, but it can overlap what is the same for all.
_MANY = 32


@kernel
def _ogd_pairs(
    s: Array, at: int, rows: int, pairs: float, x: Array, y: float, w: Array, score: float, g: Array
) -> None:
    """Add the pair gradients with the rows of the buffer at `at` to g: the bits of one row after another."""
    d = x.shape[0]
    stride = 1 + int(s[CAP])
    code = int(s[LOSS])
    of_errors = loss_of_errors(code)
    width = s[WIDTH]
    places = np.empty(TILE, np.int64)
    margins = np.empty(TILE)
    for start in range(0, rows, TILE):
        n = 0
        for r in range(start, min(start + TILE, rows)):
            place = at + r * stride
            places[n] = place
            n += 1 if s[place] != y or of_errors else 0
        for j in range(n):
            place = places[j] + 1
            margins[j] = score - dot(w, view(s, place, d))
        active = 0
        for j in range(n):
            place = places[j]
            k = pair_slope(code, y - s[place], margins[j], width) / pairs
            places[active] = place
            margins[active] = k
            active += 1 if k != 0.0 else 0
        for j in range(active):
            k = margins[j]
            place = places[j] + 1
            row = view(s, place, d)
            for i in range(d):
                g[i] += k * (x[i] - row[i])


@kernel
def _ogd_step(s: Array, x: Array, y: float) -> None:
    """One record: step on the pairs with the buffer, then into the buffer."""
    d = int(s[D])
    cap = int(s[CAP])
    filled = int(s[FILLED])
    s[RECORDS] += 1.0
    s[FEW] = 0.0
    if filled > 0:
        code = int(s[LOSS])
        width = s[WIDTH]
        l2 = s[L2]
        at = HEADER + cap
        g = view(s, at, d)
        at += cap
        w = view(s, at, d)
        at += cap
        previous = view(s, at, d)
        at += cap
        averaged = view(s, at, d)
        at += cap
        pairs = s[FILLED]
        rows = filled
        if s[POLICY] == CLASSES:
            # The mean over all past records, of which only the other class counts: its sample stands for it.
            pairs, rows, first = other_class(s, y)
            at += first * (1 + cap)
        for i in range(d):
            g[i] = l2 * w[i]
        score = dot(w, x)
        if rows >= _MANY:
            _ogd_pairs(s, at, rows, pairs, x, y, w, score, g)
            rows = 0
        for _r in range(rows):
            label = s[at]
            if label != y or loss_of_errors(code):
                row = view(s, at + 1, d)
                k = pair_slope(code, y - label, score - dot(w, row), width) / pairs
                if k != 0.0:
                    # By differences, so that equal records cancel exactly: the self-tuned step would
                    # take what rounding leaves of them for a gradient, and leap.
                    for i in range(d):
                        g[i] += k * (x[i] - row[i])
            at += 1 + cap
        ogd_move(s, g, w, previous, averaged)
        project_ball(w, s[RADIUS])
    ogd_buffer(s, x, y, cap, HEADER + 5 * cap)


@kernel
def ogd_learn(s: Array, y: float) -> int:
    """Learn the packed record with label y. Returns 0; or 1 + the unusable column, with nothing changed."""
    d = int(s[D])
    x = view(s, HEADER, d)
    bad = first_unusable(x)
    if bad >= 0:
        return bad + 1
    link_record(s, x, y)
    _ogd_step(s, x, y)
    return 0


@kernel
def ogd_learn_many(s: Array, rows: Array, labels: Array, scores: Array) -> int:
    """Learn (n, d) rows in order; `scores` (n,), if it is not empty, gets that of each row before it is
    learned. A row of label NaN is not. Returns 0; or, with nothing changed, 1 + the flat index of the first
    unusable value.
    """
    bad: int = unusable_row(rows, MAX_ABS)
    if bad == 0:
        d = int(s[D])
        flat = rows.reshape(rows.size)
        for r in range(rows.shape[0]):
            x = view(flat, r * d, d)
            if scores.shape[0] > 0:
                scores[r] = published_score(s, x)
            if labels[r] == labels[r]:
                link_record(s, x, labels[r])
                _ogd_step(s, x, labels[r])
    return bad


@kernel
def ogd_score(s: Array) -> float:
    """Score of the packed record under the published weights; NaN if a value is unusable."""
    d = int(s[D])
    x = view(s, HEADER, d)
    if first_unusable(x) >= 0:
        return math.nan
    return float(published_score(s, x))


@kernel
def ogd_proba(s: Array) -> float:
    """Probability of the packed record; NaN if a value is unusable."""
    score = ogd_score(s)
    if score != score:
        return math.nan
    return float(link_proba(s, score))
