"""SPAUC, in the flat state of OGD: in the place of the buffer are the mean record of the negatives [cap] and
that of the positives [cap].
"""

from __future__ import annotations

from streampair.kernels._jit import Array, kernel
from streampair.kernels.ogd import first_large, link_record, move_freely, project, published_score
from streampair.kernels.scaling import (
    GRADIENT,
    VECTORS,
    WEIGHTS,
    column,
    effects,
    observe_row,
    weigh_all,
)
from streampair.kernels.state import CAP, ETAS, HEADER, L2, POSITIVES, RECORDS, D
from streampair.kernels.vectors import MAX_ABS, dot, first_unusable, view


@kernel
def _spauc_step(s: Array, record: Array, y: float) -> None:
    """One record of SPAUC (Lei & Ying 2021, Algorithm 1), with the ridge as the proximal term."""
    d = int(s[D])
    cap = int(s[CAP])
    s[RECORDS] += 1.0
    x = observe_row(s, record)
    low = view(s, HEADER + VECTORS * cap, d)
    high = view(s, HEADER + (VECTORS + 1) * cap, d)
    if y > 0.0:
        s[POSITIVES] += 1.0
        class_mean, share = high, 1.0 / s[POSITIVES]
    else:
        class_mean, share = low, 1.0 / (s[RECORDS] - s[POSITIVES])
    for i in range(d):
        class_mean[i] += share * (x[i] - class_mean[i])
    if s[RECORDS] < 2.0:
        return
    p = s[POSITIVES] / s[RECORDS]
    g, v = column(s, GRADIENT), effects(s, WEIGHTS)
    # Half the derivative of each square; with margins 2 w.(x - x') the factor before both is 4 * 2 / 2.
    within = 2.0 * (dot(v, x) - dot(v, class_mean)) * (1.0 - p if y > 0.0 else p)
    between = p * (1.0 - p) * (2.0 * (dot(v, low) - dot(v, high)) + 1.0)
    for i in range(d):
        g[i] = 4.0 * (within * (x[i] - class_mean[i]) + between * (low[i] - high[i]))
    before = s[ETAS]
    move_freely(s, y, g, -1)
    w = column(s, WEIGHTS)
    shrink = 1.0 / (1.0 + (s[ETAS] - before) * s[L2])
    for i in range(d):
        w[i] *= shrink
    weigh_all(s)
    project(s)


@kernel
def spauc_learn(s: Array, y: float) -> int:
    """`ogd_learn` for SPAUC."""
    x = view(s, HEADER, int(s[D]))
    bad = first_unusable(x)
    if bad >= 0:
        return bad + 1
    link_record(s, x, y)
    _spauc_step(s, x, y)
    return 0


@kernel
def spauc_learn_many(s: Array, rows: Array, labels: Array, scores: Array) -> int:
    """`ogd_learn_many` for SPAUC."""
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
                _spauc_step(s, x, labels[r])
    return bad
