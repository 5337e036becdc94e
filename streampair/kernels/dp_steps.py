"""Steps of the private learners: gradients, sums in grid units, noise, and models from released sums."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.buffers import FULL, RESERVOIR, row_to_replace
from streampair.kernels.double_double import blt_noise, nearest, normals_from_bits, times_double
from streampair.kernels.losses import loss_slope
from streampair.kernels.numerics import sigmoid
from streampair.kernels.symmetric import ROOT2
from streampair.kernels.vectors import dot, prepare_rows, project_ball


@kernel
def moment_sums(rows: Array, whole: Array, per_unit: float, sums: NDArray[np.int64]) -> None:
    """Add the rows, and their squares, to integer sums (2, d) in steps of 1 / per_unit.

    See docs/privacy 4.4.
    """
    for r in range(rows.shape[0]):
        if whole[r] != 0.0:
            for i in range(rows.shape[1]):
                value = rows[r, i]
                sums[0, i] += np.int64(math.floor(value * per_unit + 0.5))
                sums[1, i] += np.int64(math.floor(value * value * per_unit + 0.5))


@kernel
def cross_sums(rows: Array, labels: Array, per_unit: float, sums: NDArray[np.int64]) -> None:
    """Add `label x` of each row x (n, d) to integer sums (d,) in steps of 1 / per_unit (docs/privacy 4.4).

    A label in [-1, 1] is rounded to a step before; NaN: a null record, which adds 0.
    """
    for r in range(rows.shape[0]):
        if labels[r] != labels[r]:
            continue
        label = math.floor(labels[r] * per_unit + 0.5) / per_unit
        for i in range(rows.shape[1]):
            sums[i] += np.int64(math.floor(label * rows[r, i] * per_unit + 0.5))


@kernel
def class_sums(rows: Array, labels: Array, classes: Array, grid: float, sums: NDArray[np.int64]) -> None:
    """Add `rnd((x x', e_y (x) x, e_y / 2) / grid)` of each row (n, d) to the sums.

    Of x x' the lower triangle is kept, packed as in `symmetric`. A label is one of `classes` (K,); a row with
    any other, or NaN, is a null record, which adds 0.
    """
    d = rows.shape[1]
    root = ROOT2 / grid
    unit = 1.0 / grid
    triangle = d * (d + 1) // 2
    for r in range(rows.shape[0]):
        place = -1
        for c in range(len(classes)):
            if classes[c] == labels[r]:
                place = c
        if place < 0:
            continue
        x = rows[r]
        at = 0
        for i in range(d):
            scaled = x[i] * root
            for j in range(i):
                sums[at] += np.int64(math.floor(scaled * x[j] + 0.5))
                at += 1
            sums[at] += np.int64(math.floor(x[i] * x[i] * unit + 0.5))
            at += 1
        at = triangle + place * d
        for i in range(d):
            sums[at + i] += np.int64(math.floor(x[i] * unit + 0.5))
        sums[triangle + len(classes) * d + place] += np.int64(math.floor(0.5 * unit + 0.5))


@kernel
def second_moment_sums(
    rows: Array, labels: Array, centre: float, weight: float, grid: float, sums: NDArray[np.int64]
) -> None:
    """Add `rnd((x x', weight (y - centre) x) / grid)` of each row (n, d) to the sums.

    Of x x' the lower triangle is kept, packed as in `symmetric`. A row whose label is NaN is a null record,
    which adds 0.
    """
    d = rows.shape[1]
    root = ROOT2 / grid
    unit = 1.0 / grid
    for r in range(rows.shape[0]):
        if labels[r] != labels[r]:
            continue
        x = rows[r]
        at = 0
        for i in range(d):
            scaled = x[i] * root
            for j in range(i):
                sums[at] += np.int64(math.floor(scaled * x[j] + 0.5))
                at += 1
            sums[at] += np.int64(math.floor(x[i] * x[i] * unit + 0.5))
            at += 1
        s = weight * (labels[r] - centre) * unit
        for i in range(d):
            sums[at + i] += np.int64(math.floor(s * x[i] + 0.5))


@kernel
def second_moment_slot(
    cells: Array, scaling: Array, standardise: bool, numbers: Array, sums: NDArray[np.int64]
) -> None:
    """`prepare_rows` and `second_moment_sums` of one record (d + 1,), its label last, in one call.

    `numbers` are cap, centre, weight and grid. The label of a record that is not whole becomes NaN.
    """
    cap, centre, weight, grid = numbers[0], numbers[1], numbers[2], numbers[3]
    d = scaling.shape[1]
    out, whole = np.empty((1, d)), np.empty(1)
    prepare_rows(cells[:d].reshape((1, d)), scaling, standardise, cap, out, whole)
    if whole[0] != 1.0:
        cells[d] = math.nan
    second_moment_sums(out, cells[d:], centre, weight, grid, sums)


@kernel
def score_sums(rows: Array, labels: Array, w: Array, per_unit: float, sums: NDArray[np.int64]) -> None:
    """Add (1, s, t^2, x, s x) of each row x (n, d) with label s, +1 or -1, in steps of 1 / per_unit.

    sums (3 + 2 d). t is `w . x`, cut to [-1, 1]. A row whose label is NaN is a null record, which adds 0.
    """
    d = rows.shape[1]
    unit = np.int64(per_unit)
    for r in range(rows.shape[0]):
        s = labels[r]
        if s != s:
            continue
        t = min(max(dot(w, rows[r]), -1.0), 1.0)
        sign = np.int64(1) if s > 0.0 else np.int64(-1)
        sums[0] += unit
        sums[1] += sign * unit
        sums[2] += np.int64(math.floor(t * t * per_unit + 0.5))
        for i in range(d):
            cell = np.int64(math.floor(rows[r, i] * per_unit + 0.5))
            sums[3 + i] += cell
            sums[3 + d + i] += sign * cell


@kernel
def class_bins(scores: Array, labels: Array, slope: float, offset: float, counts: NDArray[np.int64]) -> None:
    """Count each score in a bin of `sigmoid(slope score + offset)`, by class: counts (2, bins).

    The bins divide [0, 1] evenly; the first row of counts is that of labels above 0. A score whose label is
    NaN is in no bin.
    """
    bins = counts.shape[1]
    for i in range(scores.shape[0]):
        s = labels[i]
        if s != s:
            continue
        at = int(sigmoid(slope * scores[i] + offset) * bins)
        counts[0 if s > 0.0 else 1, min(at, bins - 1)] += 1


# Arguments of the steps of a run, as indices of one array; float64 holds all of them exactly.
FAMILY = 0
LOSS_CODE = 1
BUFFER = 2  # FIFO, RESERVOIR, FULL
PLACES = 3
USES = 4  # RESERVOIR: steps after which a record is blanked, 0: never
COINS = 5  # RESERVOIR: seed of the coins, which are functions of the slot alone
TANGENT = 6
CLIP = 7
RADIUS = 8
GRID = 9
SIGMA = 10  # FTRL: of the noise
RIDGE = 10  # output perturbation: alpha
BLT = 11  # FTRL: omega, then theta

# A row of the buffer (places, d + 2): the design of a record, its label, and the steps since it came, which
# count for a reservoir.

LINEAR_PAIRS = 0
METRIC_PAIRS = 1


@kernel
def pair_gradient(
    w: Array,
    x: Array,
    y: float,
    buffer: Array,
    filled: int,
    places: float,
    code: int,
    clip: float,
    tangent: bool,
    out: Array,
) -> None:
    """Mean over `places` of the clipped gradients of the pairs of (x, y) with the first `filled` rows.

    Labels are +1 and -1, or a real relevance in [-1, 1] (then never `tangent`); NaN marks a null record. The
    denominator is constant, whatever the places hold, and each pair is clipped by itself (docs/privacy 2,
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
        c = y - buffer[b, d]
        if not (c < 0.0 or c > 0.0):  # equal labels; NaN: a null record
            continue
        row = buffer[b]  # after the test: a view costs as much as it
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
def metric_gradient(
    w: Array,
    x: Array,
    y: float,
    buffer: Array,
    filled: int,
    places: float,
    code: int,
    clip: float,
    out: Array,
) -> None:
    """Mean over `places` of the clipped gradients of `phi(s (1 - u'Wu))`, in isometric coordinates (p,).

    u = x - x_b, and s = 1 for equal labels, -1 for different ones. Each pair's gradient is a multiple of uu',
    of Frobenius norm |u|^2, and is clipped by itself to the norm `clip` (docs/privacy 2).
    """
    d = x.shape[0]
    for i in range(out.shape[0]):
        out[i] = 0.0
    if y != y:
        return
    for b in range(filled):
        row = buffer[b]
        label = row[d]
        if label != label:
            continue
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
    numbers: Array,
    buffer: Array,
    out: Array,
) -> None:
    """Averaged gradient of the pairs of (x, y) with the buffer after `steps` slots, for either family.

    The denominator is the number of places, filled or not; of a full history the number of slots so far.
    """
    size = int(numbers[PLACES])
    if numbers[BUFFER] == FULL:
        filled = steps
        places = float(max(steps, 1))
    else:
        filled = min(steps, size)
        places = float(size)
    code = int(numbers[LOSS_CODE])
    if numbers[FAMILY] == METRIC_PAIRS:
        metric_gradient(w, x, y, buffer, filled, places, code, numbers[CLIP], out)
    else:
        tangent = numbers[TANGENT] != 0.0
        pair_gradient(w, x, y, buffer, filled, places, code, numbers[CLIP], tangent, out)


@kernel
def private_store(
    x: Array,
    y: float,
    steps: int,
    numbers: Array,
    buffer: Array,
) -> None:
    """Let the record of slot `steps + 1` into the buffer, null ones too: by slots and coins alone."""
    d = x.shape[0]
    size = int(numbers[PLACES])
    policy = int(numbers[BUFFER])
    if policy == RESERVOIR and numbers[USES] > 0:
        for b in range(min(steps, size)):
            buffer[b, d + 1] += 1.0
            if buffer[b, d + 1] >= numbers[USES]:
                buffer[b, d] = math.nan
    place = row_to_replace(policy, int(numbers[COINS]), steps + 1, size, 0)
    if place < 0:
        return
    for i in range(d):
        buffer[place, i] = x[i] if y == y else 0.0
    buffer[place, d] = y
    buffer[place, d + 1] = 0.0


@kernel
def to_cells(values: Array, gamma: float, cells: NDArray[np.int64]) -> None:
    """Nearest whole numbers of grid steps, halves up (docs/privacy 7)."""
    for i in range(values.shape[0]):
        cells[i] = np.int64(math.floor(values[i] / gamma + 0.5))


@kernel
def ftrl_move(
    noise: NDArray[np.int64],
    eta: float,
    steps: int,
    numbers: Array,
    vectors: Array,
    total: NDArray[np.int64],
) -> None:
    """Add the rounded gradient `vectors[2]` and the rounded noise to the sum; iterate and average follow."""
    gamma = numbers[GRID]
    w = vectors[0]
    average = vectors[1]
    g = vectors[2]
    origin = vectors[3]
    share = 2.0 / (steps + 2.0)
    for i in range(w.shape[0]):
        total[i] += np.int64(g[i]) + noise[i]
        w[i] = origin[i] - eta * (gamma * np.float64(total[i]))
    project_ball(w, numbers[RADIUS])
    for i in range(w.shape[0]):
        average[i] += share * (w[i] - average[i])


@kernel
def ftrl_steps(
    rows: Array,
    labels: Array,
    noise: NDArray[np.int64],
    etas: Array,
    start: int,
    numbers: Array,
    vectors: Array,
    total: NDArray[np.int64],
    buffer: Array,
) -> None:
    """Slots `start + 1, ...` of FTRL with correlated noise (docs/privacy 4.3, 7).

    For each row: gradient at the current iterate; then, in whole steps of the grid,
    `T <- T + rnd(g / gamma) + noise`; then the new iterate `Proj_R(w_0 - eta gamma T)`, its
    t-weighted average, and the record (null ones too) into the buffer.

    vectors (4, p): iterate, average, gradient of the last slot, and w_0.
    """
    g = vectors[2]
    for r in range(rows.shape[0]):
        steps = start + r
        private_gradient(vectors[0], rows[r], labels[r], steps, numbers, buffer, g)
        for i in range(g.shape[0]):
            g[i] = math.floor(g[i] / numbers[GRID] + 0.5)
        ftrl_move(noise[r], etas[r], steps, numbers, vectors, total)
        private_store(rows[r], labels[r], steps, numbers, buffer)


@kernel
def score_and_cells(
    rows: Array,
    labels: Array,
    queries: Array,
    scores: Array,
    at: int,
    steps: int,
    numbers: Array,
    vectors: Array,
    buffer: Array,
    cells: NDArray[np.int64],
) -> None:
    """Score of `queries[at]` under the average, unless `scores` is empty; then the gradient of row `at`.

    The gradient is rounded, that of the iterate `vectors[0]`, and what noise is added to.
    """
    if scores.shape[0] > 0:
        scores[at] = dot(vectors[1], queries[at])
    g = vectors[2]
    private_gradient(vectors[0], rows[at], labels[at], steps, numbers, buffer, g)
    to_cells(g, numbers[GRID], cells)


@kernel
def ftrl_turn(
    rows: Array,
    labels: Array,
    queries: Array,
    scores: Array,
    at: int,
    words: NDArray[np.uint64],
    memory: Array,
    cells: NDArray[np.int64],
    eta: float,
    steps: int,
    numbers: Array,
    vectors: Array,
    total: NDArray[np.int64],
    buffer: Array,
) -> None:
    """One slot of `ftrl_steps`, row `at`, from the bits of its noise on; its gradient is known.

    The same as `normals_from_bits`, `blt_noise`, `rounded_noise` and `ftrl_steps` one after the other; then
    `score_and_cells` of the next row, if there is one.
    """
    z = np.empty((2, words.shape[0] // 3 * 2))
    normals_from_bits(words, z)
    noise = z.reshape(2, 1, z.shape[1])[:, :, : cells.shape[0]]
    middle = BLT + memory.shape[1]
    blt_noise(numbers[BLT:middle], numbers[middle:], memory, numbers[SIGMA] / numbers[GRID], noise)
    rounded = np.empty_like(cells)
    for i in range(cells.shape[0]):
        vectors[2, i] = np.float64(cells[i])
        rounded[i] = nearest(z[0, i], z[1, i])
    ftrl_move(rounded, eta, steps, numbers, vectors, total)
    private_store(rows[at], labels[at], steps, numbers, buffer)
    if at + 1 < rows.shape[0]:
        score_and_cells(
            rows,
            labels,
            queries,
            scores,
            at + 1,
            steps + 1,
            numbers,
            vectors,
            buffer,
            cells,
        )


@kernel
def output_steps(
    rows: Array,
    labels: Array,
    etas: Array,
    gammas: Array,
    start: int,
    numbers: Array,
    vectors: Array,
    buffer: Array,
    cells: NDArray[np.int64],
) -> None:
    """Slots `start + 1, ...` of descent without noise, and the rounded iterate (n, p) after each (4.1, 7).

    `w <- Proj_R(w - eta_t (g_t + alpha (w - w_0)))`; a null slot has g = 0 and takes the ridge term's step.
    vectors (3, p): iterate, w_0, gradient.
    """
    w = vectors[0]
    centre = vectors[1]
    g = vectors[2]
    for r in range(rows.shape[0]):
        steps = start + r
        if etas[r] > 0.0:
            private_gradient(w, rows[r], labels[r], steps, numbers, buffer, g)
            for i in range(w.shape[0]):
                w[i] -= etas[r] * (g[i] + numbers[RIDGE] * (w[i] - centre[i]))
            project_ball(w, numbers[RADIUS])
        private_store(rows[r], labels[r], steps, numbers, buffer)
        to_cells(w, gammas[r], cells[r])


@kernel
def output_releases(
    cells: NDArray[np.int64],
    z: Array,
    sigmas: Array,
    gammas: Array,
    last: bool,
    radius: float,
    total: float,
    average: Array,
    published: Array,
) -> float:
    """Releases of rounded iterates (n, p) under noise into their average, weighted by `1 / sigma^2`.

    Rows with an infinite sigma are not released; z (2, m) has p normals for each of the others. With `last`
    the average is the last release alone. Returns the sum of the weights so far.
    """
    d = average.shape[0]
    at = 0
    for r in range(cells.shape[0]):
        if not sigmas[r] < math.inf:
            continue
        weight = 1.0 / (sigmas[r] * sigmas[r])
        total = weight if last else total + weight
        share = weight / total
        for i in range(d):
            high, low = times_double(z[0, at + i], z[1, at + i], sigmas[r] / gammas[r])
            released = cells[r, i] + nearest(high, low)
            average[i] += share * (gammas[r] * np.float64(released) - average[i])
        at += d
    if at > 0:
        for i in range(d):
            published[i] = average[i]
        project_ball(published, radius)
    return total
