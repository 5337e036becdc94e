"""Where a graph of pairs falls apart: in one depth-first walk, of O(nodes + edges)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import kernel

Ints = NDArray[np.int64]


@kernel
def graph_pieces(starts: Ints, ends: Ints, pieces: Ints) -> Ints:
    """How many components each node's neighbours are in without that node, and which edges are bridges.

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
