"""Pairs of individuals: where their graph falls apart, and what the contrastive loss of many pairs is."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel

Ints = NDArray[np.int64]

# Norms of a gradient over all its entries.
NORM_L1 = 1
NORM_L2 = 2
NORM_MAX = 3

# Gradients that are added up by themselves: a sum of sums of these rounds a thousand times less than one sum.
_TOGETHER = 1024


@kernel
def graph_pieces(starts: Ints, ends: Ints, pieces: Ints) -> Ints:
    """Number of components of each node's neighbours without that node; and the bridges among the edges.

    Parameters
    ----------
    starts, ends
        A simple graph in compressed rows: the neighbours of v are ``ends[starts[v]:starts[v + 1]]``; each
        edge is there twice.
    pieces
        Written, (n,).

    Returns
    -------
    Bridges, (k, 2): edges that no cycle has.
    """
    n = starts.shape[0] - 1
    seen = np.zeros(n, dtype=np.int64)  # when a node was reached, from 1 on; 0: not yet
    low = np.zeros(n, dtype=np.int64)  # the earliest node that can be reached from below it, past its edge up
    up = np.full(n, -1, dtype=np.int64)
    at = starts[:-1].copy()  # the next neighbour to look at: the walk's own stack
    bridges = np.empty((n, 2), dtype=np.int64)
    found = 0
    clock = 0
    for root in range(n):
        pieces[root] = 0
    for root in range(n):
        if seen[root] > 0:
            continue
        clock += 1
        seen[root] = clock
        low[root] = clock
        v = root
        while v >= 0:
            if at[v] < starts[v + 1]:
                w = ends[at[v]]
                at[v] += 1
                if seen[w] == 0:
                    clock += 1
                    seen[w] = clock
                    low[w] = clock
                    up[w] = v
                    v = w
                elif w != up[v]:
                    low[v] = min(low[v], seen[w])
                continue
            parent = up[v]
            if parent >= 0:
                pieces[v] += 1  # what is above it
                low[parent] = min(low[parent], low[v])
                if low[v] >= seen[parent]:
                    pieces[parent] += 1  # v and what is below hang on its parent alone
                if low[v] > seen[parent]:
                    bridges[found, 0] = parent
                    bridges[found, 1] = v
                    found += 1
            v = parent
    return bridges[:found]


@kernel
def _size(vector: Array, norm: int) -> float:
    """The norm of a vector."""
    size = 0.0
    for value in vector:
        if norm == NORM_L2:
            size += value * value
        elif norm == NORM_L1:
            size += abs(value)
        else:
            size = max(size, abs(value))
    return math.sqrt(size) if norm == NORM_L2 else size


@kernel
def contrastive_sum(
    rows: Array,
    pairs: Ints,
    batch: Ints,
    similar: NDArray[np.bool_],
    across: Array,
    margin: float,
    clip: float,
    norm: int,
    by_row: bool,
    total: Array,
    peaks: Array,
) -> None:
    """The sum over pairs of clipped gradients ``c W u u^T`` of the contrastive loss (Li et al. 2020, Eq. 8).

    c is 1 for pairs that are alike, and ``1 - margin / |W u|`` for others that are nearer than the margin.
    Others have no gradient, nor have those at distance 0.

    Parameters
    ----------
    rows
        Individuals, (n, d); u is the difference of two.
    pairs, similar
        Which two, (m, 2), and whether they are alike, (m,).
    batch
        Which pairs, (b,).
    across
        ``W^T``, (d, d').
    margin, clip, norm
        How far apart others should be; the largest norm of a pair's gradient over all its entries, and which.
    by_row
        Each of the d' rows is clipped to it by itself, and not the whole.
    total, peaks
        Written: the sum, (d', d), and the largest l1 norm of each of its rows in one pair, (d',).
    """
    d, width = across.shape
    u = np.empty(d)
    left = np.empty(width)
    part = np.zeros((width, d))
    for a in range(width):
        peaks[a] = 0.0
        for k in range(d):
            total[a, k] = 0.0
    for at in range(batch.shape[0]):
        one = pairs[batch[at], 0]
        other = pairs[batch[at], 1]
        for k in range(d):
            u[k] = rows[one, k] - rows[other, k]
        for a in range(width):
            left[a] = 0.0
        for k in range(d):
            for a in range(width):
                left[a] += across[k, a] * u[k]
        slope = 1.0
        if not similar[batch[at]]:
            distance = _size(left, NORM_L2)
            slope = 1.0 - margin / distance if 0.0 < distance < margin else 0.0
        for a in range(width):
            left[a] *= slope
        long = _size(u, norm)
        whole = 0.0 if by_row else _size(left, norm)
        extent = _size(u, NORM_L1)
        for a in range(width):
            most = (abs(left[a]) if by_row else whole) * long
            if most > clip:
                left[a] *= clip / most
            peaks[a] = max(peaks[a], abs(left[a]) * extent)
        for a in range(width):
            for k in range(d):
                part[a, k] += left[a] * u[k]
        if (at + 1) % _TOGETHER == 0 or at + 1 == batch.shape[0]:
            for a in range(width):
                for k in range(d):
                    total[a, k] += part[a, k]
                    part[a, k] = 0.0
