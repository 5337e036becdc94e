"""Trees that nobody fitted: the leaf that a record falls into, and what the leaves' noisy sums tell.

A value z, of a standard deviation of about 1, is seen as `u = 1/2 + z / (2 sqrt(2 s^2 + z^2))`, in (0, 1):
increasing, and of + - * / and roots alone, so that a record is in the same leaf on every processor. A tree is
complete; its nodes are numbered from the root, 1, and the children of i are 2 i and 2 i + 1. Each splits the
part of the cube that it is, at a uniform place of a column drawn at random: from coins and numbers that are
public, so no record decides about it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.numerics import exp_negative, uniform
from streampair.kernels.vectors import MAX_FINITE

SCALE2 = 0.98  # 2 s^2, s = .7: half of a normal's values are within half of the range
COIN = 0x57A7  # public, the same for all: lanes of one stream can be merged


@kernel
def wood_trees(d: int, columns: NDArray[np.int64], cuts: Array) -> None:
    """Draw trees over d columns: the column and the cut of each node, (trees, nodes); node 0 is none."""
    for t in range(columns.shape[0]):
        for node in range(1, columns.shape[1]):
            f = min(int(uniform(COIN, t, 2 * node) * d), d - 1)
            low, high = 0.0, 1.0
            below = node
            while below > 1:
                above = below // 2
                if columns[t, above] == f:
                    if below % 2:
                        low = max(low, cuts[t, above])
                    else:
                        high = min(high, cuts[t, above])
                below = above
            columns[t, node] = f
            cuts[t, node] = low + (high - low) * uniform(COIN, t, 2 * node + 1)


@kernel
def wood_leaves(places: Array, columns: NDArray[np.int64], cuts: Array, leaves: NDArray[np.int64]) -> None:
    """The leaf (n, trees), from 0, that rows of places (n, d) fall into: up to the cut to the left."""
    nodes = columns.shape[1]
    for r in range(places.shape[0]):
        for t in range(columns.shape[0]):
            node = 1
            while node < nodes:
                node = 2 * node + (1 if places[r, columns[t, node]] > cuts[t, node] else 0)
            leaves[r, t] = node - nodes


@kernel
def wood_places(
    raw: Array, scale: Array, shift: Array, mean: Array, factor: Array, cap: float, unit: float, places: Array
) -> None:
    """Where the values of raw rows (n, d), standardised as in `prepare_rows`, are in (0, 1); 1/2 if lost.

    `unit` makes a standard deviation 1 of them.
    """
    for r in range(raw.shape[0]):
        for i in range(raw.shape[1]):
            value = raw[r, i]
            if not abs(value) <= MAX_FINITE:
                places[r, i] = 0.5
                continue
            value = min(max(value, -1e100), 1e100) * scale[i] + shift[i]
            value = (min(max(value, -1.0), 1.0) - mean[i]) * factor[i]
            z = min(max(value, -cap), cap) * unit
            places[r, i] = 0.5 + 0.5 * z / math.sqrt(SCALE2 + z * z)


@kernel
def wood_marks(
    places: Array, columns: NDArray[np.int64], cuts: Array, bins: int, leaves: NDArray[np.int64], out: Array
) -> None:
    """From column d of out on, by places (n, d): 1 for each tree's leaf, then each column's bin, else 0."""
    trees, size = columns.shape
    d = places.shape[1]
    wood_leaves(places, columns, cuts, leaves)
    for r in range(places.shape[0]):
        out[r, d:] = 0.0
        for t in range(trees):
            out[r, d + t * size + leaves[r, t]] = 1.0
        for i in range(d):
            out[r, d + trees * size + i * bins + min(int(places[r, i] * bins), bins - 1)] = 1.0


@kernel
def wood_sums(rows: Array, labels: Array, d: int, leaves: int, sums: NDArray[np.int64]) -> None:
    """Count what rows mark: 1 for each leaf, then the sign of its label, 1 for each bin.

    rows (n, d + leaves + bins); sums, from behind: counts of bins, before them labels of leaves, then counts
    of leaves. A row whose label is NaN is a null record, which adds 0.
    """
    width = rows.shape[1] - d
    first = sums.shape[0] - width - leaves
    for r in range(rows.shape[0]):
        if labels[r] != labels[r]:
            continue
        sign = 1 if labels[r] > 0.0 else -1
        row = rows[r]
        for j in range(leaves):
            if row[d + j] != 0.0:
                sums[first + j] += 1
                sums[first + leaves + j] += sign
        for j in range(leaves, width):
            if row[d + j] != 0.0:
                sums[first + leaves + j] += 1


@kernel
def wood_rake(
    leaves: NDArray[np.int64], shares: Array, ridge: Array, sweeps: int, tilt: Array, weights: Array
) -> None:
    """Weigh synthetic rows by maximum entropy, so that they fall into leaves as often as was released.

    leaves (trees, n): of each row; shares (trees, leaves): noisy shares of the records; ridge (trees,): the
    variance of their noise; tilt (trees, leaves): log-weights, changed; weights (n,), which add up to 1. One
    Newton step for each tree after the other: within a tree leaves have no row in common.
    """
    trees, n = leaves.shape
    size = shares.shape[1]
    sums, factor = np.zeros(size), np.zeros(size)
    for _ in range(sweeps):
        for t in range(trees):
            own = leaves[t]
            sums[:] = 0.0
            total = 0.0
            for r in range(n):
                sums[own[r]] += weights[r]
            for a in range(size):
                total += sums[a]
            for a in range(size):
                p = sums[a] / total
                step = (shares[t, a] - p - ridge[t] * tilt[t, a]) / (p + ridge[t])
                step = min(max(step, -1.0), 1.0)
                tilt[t, a] += step
                factor[a] = (exp_negative(-step) if step < 0.0 else 1.0 / exp_negative(step)) / total
            for r in range(n):
                weights[r] *= factor[own[r]]
    total = 0.0
    for r in range(n):
        total += weights[r]
    for r in range(n):
        weights[r] /= total


@kernel
def wood_gram(leaves: NDArray[np.int64], weights: Array, v: Array, scores: Array, out: Array) -> None:
    """`G v` for the leaves' Gram matrix G over weighted rows; v and out (trees, leaves), scores (n,)."""
    trees, n = leaves.shape
    for r in range(n):
        scores[r] = 0.0
    for t in range(trees):
        for r in range(n):
            scores[r] += v[t, leaves[t, r]]
    for r in range(n):
        scores[r] *= weights[r]
    out[:, :] = 0.0
    for t in range(trees):
        for r in range(n):
            out[t, leaves[t, r]] += scores[r]
