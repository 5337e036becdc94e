"""The comparators OAM and SPAUC, in the flat state of OGD.

OAM has the buffer of CLASSES; SPAUC has in its place the mean record of the negatives [cap] and that of the
positives [cap].
"""

from __future__ import annotations

from streampair.kernels._jit import Array, kernel
from streampair.kernels.buffers import CLASSES, ogd_buffer, other_class
from streampair.kernels.ogd import link_record, ogd_move, published_score
from streampair.kernels.state import CAP, ETAS, HEADER, L2, POLICY, POSITIVES, RADIUS, RATE, RECORDS, SIZE, D
from streampair.kernels.vectors import dot, first_unusable, project_ball, view


@kernel
def _oam_step(s: Array, x: Array, y: float) -> None:
    """One record of OAM's gradient version (Zhao et al. 2011, Algorithms 1, 2 and 4)."""
    d = int(s[D])
    cap = int(s[CAP])
    s[RECORDS] += 1.0
    if s[RECORDS] > 1.0:
        at = HEADER + cap
        g = s[at : at + d]
        w = s[at + cap : at + cap + d]
        previous = s[at + 2 * cap : at + 2 * cap + d]
        averaged = s[at + 3 * cap : at + 3 * cap + d]
        _, rows, first = other_class(s, y)
        others = s[RECORDS] - 1.0 - s[POSITIVES] if y > 0.0 else s[POSITIVES]
        # The sampled partners stand for all there were, once those are more than fit.
        weight = s[RATE] * max(1.0, others / s[SIZE])
        for i in range(d):
            g[i] = 0.0
        score = dot(w, x)
        at += 4 * cap + first * (1 + cap)
        for _r in range(rows):
            row = s[at + 1 : at + 1 + d]
            if 2.0 * y * (score - dot(w, row)) < 1.0:
                for i in range(d):
                    g[i] += x[i] - row[i]
            at += 1 + cap
        s[ETAS] += 1.0
        for i in range(d):
            averaged[i] += (previous[i] - averaged[i]) / s[ETAS]
            previous[i] = w[i]
            w[i] += 2.0 * y * weight * g[i]
        project_ball(w, s[RADIUS])
    ogd_buffer(s, x, y, cap, HEADER + 5 * cap)


@kernel
def _spauc_step(s: Array, x: Array, y: float) -> None:
    """One record of SPAUC (Lei & Ying 2021, Algorithm 1), with the ridge as the proximal term."""
    d = int(s[D])
    cap = int(s[CAP])
    s[RECORDS] += 1.0
    at = HEADER + cap
    g = s[at : at + d]
    w = s[at + cap : at + cap + d]
    previous = s[at + 2 * cap : at + 2 * cap + d]
    averaged = s[at + 3 * cap : at + 3 * cap + d]
    at += 4 * cap
    low = s[at : at + d]
    high = s[at + cap : at + cap + d]
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
    # Half the derivative of each square; with margins 2 w.(x - x') the factor before both is 4 * 2 / 2.
    within = 2.0 * (dot(w, x) - dot(w, class_mean)) * (1.0 - p if y > 0.0 else p)
    between = p * (1.0 - p) * (2.0 * (dot(w, low) - dot(w, high)) + 1.0)
    for i in range(d):
        g[i] = 4.0 * (within * (x[i] - class_mean[i]) + between * (low[i] - high[i]))
    before = s[ETAS]
    ogd_move(s, g, w, previous, averaged)
    shrink = 1.0 / (1.0 + (s[ETAS] - before) * s[L2])
    for i in range(d):
        w[i] *= shrink
    project_ball(w, s[RADIUS])


@kernel
def online_auc_learn(s: Array, y: float) -> int:
    """`ogd_learn` for OAM, whose buffer is CLASSES, and SPAUC."""
    x = s[HEADER : HEADER + int(s[D])]
    bad = first_unusable(x)
    if bad >= 0:
        return bad + 1
    link_record(s, x, y)
    if s[POLICY] == CLASSES:
        _oam_step(s, x, y)
    else:
        _spauc_step(s, x, y)
    return 0


@kernel
def online_auc_learn_many(s: Array, rows: Array, signs: Array, scores: Array) -> int:
    """`ogd_learn_many` for OAM and SPAUC."""
    for r in range(rows.shape[0]):
        bad = first_unusable(rows[r])
        if bad >= 0:
            flat: int = r * rows.shape[1] + bad + 1
            return flat
    d = int(s[D])
    cells = rows.reshape(rows.size)
    for r in range(rows.shape[0]):
        x = view(cells, r * d, d)
        if scores.shape[0] > 0:
            scores[r] = published_score(s, x)
        if signs[r] != signs[r]:
            continue
        link_record(s, x, signs[r])
        if s[POLICY] == CLASSES:
            _oam_step(s, x, signs[r])
        else:
            _spauc_step(s, x, signs[r])
    return 0
