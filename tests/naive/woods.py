"""Random trees, from their definition: boxes, dictionaries, and dense matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from naive.numerics import uniform

COIN = 0x57A7


def tree(d: int, t: int, nodes: int) -> list[tuple[int, float] | None]:
    """The column and cut of each node of tree t, each node with the box that it splits."""
    out: list[tuple[int, float] | None] = [None] * nodes
    boxes = {1: [(0.0, 1.0)] * d}
    for node in range(1, nodes):
        box = boxes[node]
        f = int(uniform(COIN, t, 2 * node) * d)
        low, high = box[f]
        cut = low + (high - low) * uniform(COIN, t, 2 * node + 1)
        out[node] = f, cut
        boxes[2 * node] = [(low, cut) if j == f else side for j, side in enumerate(box)]
        boxes[2 * node + 1] = [(cut, high) if j == f else side for j, side in enumerate(box)]
    return out


def place(z: float) -> float:
    """Where a standardised value is in (0, 1)."""
    return 0.5 * (1.0 + z / math.sqrt(0.98 + z * z))


def leaf(places: Sequence[float], nodes: Sequence[tuple[int, float] | None]) -> int:
    """The number, from the left, of the leaf that a record falls into."""
    at = ""
    node = nodes[1]
    while node is not None:
        at += "1" if places[node[0]] > node[1] else "0"
        number = int("1" + at, 2)
        node = nodes[number] if number < len(nodes) else None
    return int(at, 2)


def marks(places: Sequence[float], forest: Sequence[Any], bins: int) -> list[float]:
    """1 for the leaf of each tree, and for the bin of each column."""
    out: list[float] = []
    for nodes in forest:
        own = leaf(places, nodes)
        out += [float(j == own) for j in range(len(nodes))]
    for value in places:
        out += [float(j <= value * bins < j + 1) for j in range(bins)]
    return out


def wood_sums(rows: Sequence[Sequence[float]], labels: Sequence[float], leaves: int) -> list[int]:
    """Counts of leaves, labels of leaves, counts of bins, of marked rows."""
    total = np.zeros(len(rows[0]) + leaves)
    for row, label in zip(rows, labels, strict=True):
        if not math.isnan(label):
            own, rest = np.array(row[:leaves]), np.array(row[leaves:])
            sign = 1.0 if label > 0 else -1.0
            total += np.concatenate((own, sign * own, rest))
    return [int(value) for value in total]


def phi(leaves: Any, size: int) -> Any:
    """The matrix (n, trees * leaves) of which leaf each row is in, from (trees, n)."""
    return np.concatenate([np.eye(size)[own] for own in leaves], axis=1)


def wood_gram(leaves: Any, weights: Any, v: Any) -> Any:
    """`Phi' W Phi v`."""
    matrix = phi(leaves, v.shape[1])
    return (matrix.T @ (weights * (matrix @ v.ravel()))).reshape(v.shape)


def wood_rake(leaves: Any, shares: Any, ridge: Any, sweeps: int, weights: Any) -> tuple[Any, Any]:
    """Log-weights of leaves and weights of rows after so many Newton sweeps, tree by tree."""
    size = shares.shape[1]
    tilt = np.zeros(shares.shape)
    for _ in range(sweeps):
        for t, own in enumerate(leaves):
            weights = weights / weights.sum()
            p = np.bincount(own, weights=weights, minlength=size)
            step = np.clip((shares[t] - p - ridge[t] * tilt[t]) / (p + ridge[t]), -1.0, 1.0)
            tilt[t] += step
            weights = weights * np.exp(step)[own]
    return tilt, weights / weights.sum()
