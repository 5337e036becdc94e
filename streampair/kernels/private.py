"""Gradients and buffer that the private learners of all families share (docs/privacy.md 3, 4.1 to 4.3).

A label NaN marks a null record. Weights of metrics are the p = d (d + 1) / 2 coordinates of a symmetric
matrix by its upper triangle, packed as in `symmetric`. `ints` of a run by the places below.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.buffers import FULL, RELEASED, RESERVOIR, row_to_replace
from streampair.kernels.losses import loss_slope
from streampair.kernels.symmetric import ROOT2
from streampair.kernels.vectors import dot

FAMILY = 0
LOSS_CODE = 1
BUFFER = 2  # FIFO, RESERVOIR, FULL, RELEASED
PLACES = 3
USES = 4  # RESERVOIR: steps after which a record is blanked, 0: never
COINS = 5  # RESERVOIR: seed of the coins, which are functions of the slot alone
TANGENT = 6

LINEAR_PAIRS = 0
METRIC_PAIRS = 1


@kernel
def pair_gradient(
    w: Array,
    x: Array,
    y: float,
    buffer: Array,
    labels: Array,
    filled: int,
    places: float,
    code: int,
    clip: float,
    tangent: bool,
    out: Array,
) -> None:
    """Mean over `places` of the clipped gradients of the pairs of (x, y) with the first `filled` rows.

    Labels are +1 and -1, or a real relevance in [-1, 1] (then never `tangent`); NaN marks a null record. The
    denominator is constant, whatever the places hold, and each pair is clipped by itself (docs/privacy.md 2,
    3), so that all gradients with one fixed fellow record lie in a ball of radius `clip`: replacing the other
    record moves the gradient by at most 2 clip. Without `tangent` that is the ball around 0. With it, for a
    decreasing loss, it is the ball around -clip y_p p, where (p, y_p) is the fellow and |p| <= 1: the
    gradients with a fellow point away from y_p p, the ball has 0 inside, and it lets norms up to 2 clip
    through. The pair is scaled until it is in the ball of either record. This is better where the records lie
    around 0.
    """
    d = x.shape[0]
    for i in range(d):
        out[i] = 0.0
    if y != y:
        return
    score = dot(w, x)
    room = max(1.0 - dot(x, x), 0.0)
    for b in range(filled):
        c = y - labels[b]
        if not (c < 0.0 or c > 0.0):  # equal labels; NaN: a null record
            continue
        row = buffer[b]
        k = c * loss_slope(code, c * (score - dot(w, row)))
        if k == 0.0:
            continue
        square = 0.0
        along = 0.0
        size = 0.0
        for i in range(d):
            u = x[i] - row[i]
            square += u * u
            along += u * x[i]
            size += row[i] * row[i]
        if square == 0.0:
            continue
        if not tangent:
            limit = clip / math.sqrt(square)
        else:
            # Largest |k| with |k u| in both balls: the positive root of a quadratic, for each record.
            other = square - along
            limit = min(
                along + math.sqrt(along * along + square * room),
                other + math.sqrt(other * other + square * max(1.0 - size, 0.0)),
            )
            limit = clip * limit / square
        if abs(k) > limit:
            k = math.copysign(limit, k)
        for i in range(d):
            out[i] += k * (x[i] - row[i])
    for i in range(d):
        out[i] /= places


@kernel
def partner_gradient(
    w: Array, x: Array, y: float, p: Array, centre: float, code: int, clip: float, out: Array
) -> None:
    """Clipped gradient of the pair of (x, y) with a released partner p of the other class, times a share.

    Labels are +1 and -1, NaN for a null record; the loss is decreasing. The gradient is scaled until it lies
    in the ball of radius `clip` around -clip y_p p, |p| <= 1, which has 0 in it. Then that of the class which
    `centre`, the released mean of the labels, calls frequent is shortened by (1 - |centre|) / (1 + |centre|):
    both classes pull as much. With |p| <= |centre| its ball lies in that of the other (docs/privacy.md 10.5).
    """
    d = x.shape[0]
    for i in range(d):
        out[i] = 0.0
    if y != y:
        return
    c = 2.0 * y
    k = c * loss_slope(code, c * (dot(w, x) - dot(w, p)))
    square = 0.0
    along = 0.0
    size = 0.0
    for i in range(d):
        u = x[i] - p[i]
        square += u * u
        along += u * p[i]
        size += p[i] * p[i]
    if k == 0.0 or square == 0.0:
        return
    # Largest |k| with |k u| in the ball: the positive root of a quadratic.
    limit = clip * (math.sqrt(along * along + square * max(1.0 - size, 0.0)) - along) / square
    if abs(k) > limit:
        k = math.copysign(limit, k)
    if y * centre > 0.0:
        k *= (1.0 - abs(centre)) / (1.0 + abs(centre))
    for i in range(d):
        out[i] = k * (x[i] - p[i])


@kernel
def metric_gradient(
    w: Array,
    x: Array,
    y: float,
    buffer: Array,
    labels: Array,
    filled: int,
    places: float,
    code: int,
    clip: float,
    out: Array,
) -> None:
    """Mean over `places` of the clipped gradients of `phi(s (1 - u'Wu))`, in isometric coordinates (p,).

    u = x - x_b, and s = 1 for equal labels, -1 for different ones. Each pair's gradient is a multiple of uu',
    of Frobenius norm |u|^2, and is clipped by itself to the norm `clip` (docs/privacy.md 2).
    """
    d = x.shape[0]
    for i in range(out.shape[0]):
        out[i] = 0.0
    if y != y:
        return
    for b in range(filled):
        label = labels[b]
        if label != label:
            continue
        row = buffer[b]
        square = 0.0
        form = 0.0
        at = 0
        for i in range(d):
            u = x[i] - row[i]
            square += u * u
            form += w[at] * (u * u)
            at += 1
            part = 0.0
            for j in range(i + 1, d):
                part += w[at] * (x[j] - row[j])
                at += 1
            form += ROOT2 * (part * u)
        if square == 0.0:
            continue
        s = 1.0 if label == y else -1.0
        k = -s * loss_slope(code, s * (1.0 - form))
        limit = clip / square
        if abs(k) > limit:
            k = math.copysign(limit, k)
        if k == 0.0:
            continue
        at = 0
        for i in range(d):
            u = x[i] - row[i]
            out[at] += k * (u * u)
            at += 1
            side = ROOT2 * k * u
            for j in range(i + 1, d):
                out[at] += side * (x[j] - row[j])
                at += 1
    for i in range(out.shape[0]):
        out[i] /= places


@kernel
def private_gradient(
    w: Array,
    x: Array,
    y: float,
    steps: int,
    ints: NDArray[np.int64],
    clip: float,
    buffer: Array,
    labels: Array,
    out: Array,
) -> None:
    """Averaged gradient of the pairs of (x, y) with the buffer after `steps` slots, for either family.

    The denominator is the number of places, filled or not; of a full history the number of slots so far. Of a
    released partner the buffer is one row, and its label the released mean of the labels.
    """
    size = int(ints[PLACES])
    if ints[BUFFER] == RELEASED:
        partner_gradient(w, x, y, buffer[0], labels[0], int(ints[LOSS_CODE]), clip, out)
        return
    if ints[BUFFER] == FULL:
        filled = steps
        places = float(max(steps, 1))
    else:
        filled = min(steps, size)
        places = float(size)
    code = int(ints[LOSS_CODE])
    if ints[FAMILY] == METRIC_PAIRS:
        metric_gradient(w, x, y, buffer, labels, filled, places, code, clip, out)
    else:
        tangent = ints[TANGENT] != 0
        pair_gradient(w, x, y, buffer, labels, filled, places, code, clip, tangent, out)


@kernel
def private_store(
    x: Array,
    y: float,
    steps: int,
    ints: NDArray[np.int64],
    buffer: Array,
    labels: Array,
    ages: NDArray[np.int64],
) -> None:
    """Let the record of slot `steps + 1` into the buffer, null ones too: by slots and coins alone."""
    size = int(ints[PLACES])
    policy = int(ints[BUFFER])
    if policy == RELEASED:
        return
    if policy == RESERVOIR and ints[USES] > 0:
        for b in range(min(steps, size)):
            ages[b] += 1
            if ages[b] >= ints[USES]:
                labels[b] = math.nan
    place = row_to_replace(policy, int(ints[COINS]), steps + 1, size, 0)
    if place < 0:
        return
    if policy == RESERVOIR:
        ages[place] = 0
    labels[place] = y
    for i in range(x.shape[0]):
        buffer[place, i] = x[i] if y == y else 0.0
