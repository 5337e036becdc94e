"""Steps of the private learners: gradient, noise in whole steps of a grid, iterate, record into the buffer.

The gradients and the buffer are those of `private`. Arguments in one order: records, noise, step, state.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.noise import blt_noise, normals_from_bits
from streampair.kernels.private import private_gradient, private_store
from streampair.kernels.vectors import dot, project_ball


@kernel
def to_cells(values: Array, gamma: float, cells: NDArray[np.int64]) -> None:
    """Nearest whole numbers of grid steps, halves up (docs/privacy.md 7)."""
    for i in range(values.shape[0]):
        cells[i] = np.int64(math.floor(values[i] / gamma + 0.5))


@kernel
def gradient_cells(
    rows: Array,
    labels: Array,
    steps: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    buffer: Array,
    held: Array,
    cells: NDArray[np.int64],
) -> None:
    """Rounded gradient of one slot (rows (1, d)) at the iterate `vectors[0]`: what noise is added to."""
    private_gradient(vectors[0], rows[0], labels[0], steps, ints, scalars[0], buffer, held, vectors[2])
    to_cells(vectors[2], scalars[2], cells)


@kernel
def ftrl_move(
    noise: Array, eta: float, steps: int, scalars: Array, vectors: Array, total: NDArray[np.int64]
) -> None:
    """Add the rounded gradient `vectors[2]` and the rounded noise to the sum; iterate and average follow."""
    gamma = scalars[2]
    w = vectors[0]
    average = vectors[1]
    g = vectors[2]
    share = 2.0 / (steps + 2.0)
    for i in range(w.shape[0]):
        total[i] += np.int64(g[i]) + np.int64(math.floor(noise[i] / gamma + 0.5))
        w[i] = -eta * (gamma * np.float64(total[i]))
    project_ball(w, scalars[1])
    for i in range(w.shape[0]):
        average[i] += share * (w[i] - average[i])


@kernel
def ftrl_steps(
    rows: Array,
    labels: Array,
    noise: Array,
    etas: Array,
    start: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    total: NDArray[np.int64],
    buffer: Array,
    held: Array,
    ages: NDArray[np.int64],
) -> None:
    """Slots `start + 1, ...` of FTRL with correlated noise (docs/privacy.md 4.3, 7).

    For each row: gradient at the current iterate; then, in whole steps of the grid,
    `T <- T + rnd(g / gamma) + rnd(noise / gamma)`; then the new iterate `Proj_R(-eta gamma T)`, its
    t-weighted average, and the record (null ones too) into the buffer.

    scalars: clip, radius, gamma, sigma. vectors (3, p): iterate, average, gradient of the last slot.
    """
    g = vectors[2]
    for r in range(rows.shape[0]):
        steps = start + r
        private_gradient(vectors[0], rows[r], labels[r], steps, ints, scalars[0], buffer, held, g)
        for i in range(g.shape[0]):
            g[i] = math.floor(g[i] / scalars[2] + 0.5)
        ftrl_move(noise[r], etas[r], steps, scalars, vectors, total)
        private_store(rows[r], labels[r], steps, ints, buffer, held, ages)


@kernel
def ftrl_keyed(
    rows: Array,
    labels: Array,
    words: NDArray[np.uint64],
    shape: Array,
    memory: Array,
    cells: NDArray[np.int64],
    eta: float,
    steps: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    total: NDArray[np.int64],
    buffer: Array,
    held: Array,
    ages: NDArray[np.int64],
) -> None:
    """One slot of `ftrl_steps`, from the bits of its noise on, whose gradient is known: (1, d) rows.

    The same as `normals_from_bits`, `blt_noise` and `ftrl_steps` one after the other. shape (2, h): omega and
    theta of the BLT. scalars[3]: sigma.
    """
    p = cells.shape[0]
    z = np.empty(words.shape[0] // 3 * 2)
    normals_from_bits(words, z)
    noise = z[:p].reshape(1, p)
    blt_noise(shape[0], shape[1], memory, scalars[3], noise)
    for i in range(p):
        vectors[2, i] = np.float64(cells[i])
    ftrl_move(noise[0], eta, steps, scalars, vectors, total)
    private_store(rows[0], labels[0], steps, ints, buffer, held, ages)


@kernel
def score_and_cells(
    asked: Array,
    scores: Array,
    rows: Array,
    labels: Array,
    at: int,
    steps: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    buffer: Array,
    held: Array,
    cells: NDArray[np.int64],
) -> None:
    """Score of `asked[at]` under the average, if anybody asks; then `gradient_cells` of row `at`."""
    if scores.shape[0] > 0:
        scores[at] = dot(vectors[1], asked[at])
    gradient_cells(rows[at : at + 1], labels[at : at + 1], steps, ints, scalars, vectors, buffer, held, cells)


@kernel
def ftrl_turn(
    asked: Array,
    scores: Array,
    rows: Array,
    labels: Array,
    at: int,
    words: NDArray[np.uint64],
    shape: Array,
    memory: Array,
    cells: NDArray[np.int64],
    eta: float,
    steps: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    total: NDArray[np.int64],
    buffer: Array,
    held: Array,
    ages: NDArray[np.int64],
) -> None:
    """`ftrl_keyed` of row `at`, then `score_and_cells` of the next row, if there is one."""
    row, label = rows[at : at + 1], labels[at : at + 1]
    ftrl_keyed(
        row, label, words, shape, memory, cells, eta, steps, ints, scalars, vectors, total, buffer, held, ages
    )
    if at + 1 < rows.shape[0]:
        score_and_cells(
            asked, scores, rows, labels, at + 1, steps + 1, ints, scalars, vectors, buffer, held, cells
        )


@kernel
def noisy_move(
    cells: NDArray[np.int64], noise: Array, eta: float, steps: int, scalars: Array, vectors: Array
) -> None:
    """Step on the noisy gradient of a slot: `w <- Proj_R(w - eta (gamma (g + rnd(noise / gamma)) + l2 w))`.

    The average of the iterates is weighted by t. scalars: clip, radius, gamma, l2. vectors (3, p): iterate,
    average, gradient; the last one becomes the noisy gradient.
    """
    w = vectors[0]
    average = vectors[1]
    noisy = vectors[2]
    gamma = scalars[2]
    share = 2.0 / (steps + 2.0)
    for i in range(w.shape[0]):
        released = cells[i] + np.int64(math.floor(noise[i] / gamma + 0.5))
        noisy[i] = gamma * np.float64(released)
        w[i] -= eta * (noisy[i] + scalars[3] * w[i])
    project_ball(w, scalars[1])
    for i in range(w.shape[0]):
        average[i] += share * (w[i] - average[i])


@kernel
def noisy_turn(
    asked: Array,
    scores: Array,
    rows: Array,
    labels: Array,
    at: int,
    words: NDArray[np.uint64],
    sigma: float,
    cells: NDArray[np.int64],
    eta: float,
    steps: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    buffer: Array,
    held: Array,
    ages: NDArray[np.int64],
) -> None:
    """One slot of `noisy_steps`, from the bits of its noise on; then `score_and_cells` of the next row."""
    noise = np.empty(words.shape[0] // 3 * 2)
    normals_from_bits(words, noise)
    for i in range(cells.shape[0]):
        noise[i] *= sigma
    noisy_move(cells, noise, eta, steps, scalars, vectors)
    private_store(rows[at], labels[at], steps, ints, buffer, held, ages)
    if at + 1 < rows.shape[0]:
        score_and_cells(
            asked, scores, rows, labels, at + 1, steps + 1, ints, scalars, vectors, buffer, held, cells
        )


@kernel
def noisy_steps(
    rows: Array,
    labels: Array,
    noise: Array,
    etas: Array,
    start: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    buffer: Array,
    held: Array,
    ages: NDArray[np.int64],
) -> None:
    """Slots `start + 1, ...` of gradient descent with noise in every gradient (docs/privacy.md 4.2, 7)."""
    cells = np.empty(vectors.shape[1], dtype=np.int64)
    for r in range(rows.shape[0]):
        steps = start + r
        gradient_cells(rows[r : r + 1], labels[r : r + 1], steps, ints, scalars, vectors, buffer, held, cells)
        noisy_move(cells, noise[r], etas[r], steps, scalars, vectors)
        private_store(rows[r], labels[r], steps, ints, buffer, held, ages)


@kernel
def output_steps(
    rows: Array,
    labels: Array,
    etas: Array,
    gammas: Array,
    start: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    buffer: Array,
    held: Array,
    ages: NDArray[np.int64],
    cells: NDArray[np.int64],
) -> None:
    """Slots `start + 1, ...` of descent without noise, and the rounded iterate (n, p) after each (4.1, 7).

    `w <- Proj_R(w - eta_t (g_t + alpha (w - w_0)))`; a null slot has g = 0 and takes the ridge term's step.
    scalars: clip, radius, alpha. vectors (3, p): iterate, w_0, gradient.
    """
    w = vectors[0]
    centre = vectors[1]
    g = vectors[2]
    for r in range(rows.shape[0]):
        steps = start + r
        if etas[r] > 0.0:
            private_gradient(w, rows[r], labels[r], steps, ints, scalars[0], buffer, held, g)
            for i in range(w.shape[0]):
                w[i] -= etas[r] * (g[i] + scalars[2] * (w[i] - centre[i]))
            project_ball(w, scalars[1])
        private_store(rows[r], labels[r], steps, ints, buffer, held, ages)
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

    Rows with an infinite sigma are not released; z has p normals for each of the others. With `last` the
    average is the last release alone. Returns the sum of the weights so far.
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
            noise = sigmas[r] * z[at + i]
            released = cells[r, i] + np.int64(math.floor(noise / gammas[r] + 0.5))
            average[i] += share * (gammas[r] * np.float64(released) - average[i])
        at += d
    if at > 0:
        for i in range(d):
            published[i] = average[i]
        project_ball(published, radius)
    return total
