"""Random trees, from their definition: boxes, dictionaries, and dense matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from naive.numerics import uniform

COIN = 0x57A7


SALTS = 8


def side(t: int, node: int, salt: float, code: int) -> str:
    """Where a category goes at a node: 1 is to the right."""
    return "1" if uniform(COIN + 1 + int(salt), t, node * 65536 + code) < 0.5 else "0"


def tree(sizes: Sequence[int], t: int, nodes: int) -> list[tuple[int, float] | None]:
    """The field and cut of each node of tree t, each node with the box that it splits."""
    out: list[tuple[int, float] | None] = [None] * nodes
    boxes: dict[int, list[Any]] = {1: [(0.0, 1.0) if size == 1 else set(range(size + 1)) for size in sizes]}
    for node in range(1, nodes):
        box = boxes[node]
        for attempt in range(SALTS):
            lane = 2 * node if attempt == 0 else 2 * nodes + SALTS * node + attempt
            f = int(uniform(COIN, t, lane) * len(sizes))
            if sizes[f] == 1:
                low, high = box[f]
                cut = low + (high - low) * uniform(COIN, t, 2 * node + 1)
                sides = ((low, cut), (cut, high))
                break
            found = False
            for salt in range(SALTS):
                cut = float(salt)
                sides = tuple({c for c in box[f] if side(t, node, salt, c) == way} for way in "01")
                if found := all(sides):
                    break
            if found:
                break
        out[node] = f, cut
        for way in (0, 1):
            boxes[2 * node + way] = [sides[way] if j == f else part for j, part in enumerate(box)]
    return out


def place(z: float) -> float:
    """Where a standardised value is in (0, 1)."""
    return 0.5 * (1.0 + z / math.sqrt(0.98 + z * z))


def leaf(places: Sequence[float], sizes: Sequence[int], t: int, nodes: Sequence[Any]) -> int:
    """The number, from the left, of the leaf of tree t that a record falls into."""
    node = ""
    while int("1" + node, 2) < len(nodes):
        number = int("1" + node, 2)
        f, cut = nodes[number]
        if math.isnan(places[f]):
            node += side(t, number, SALTS, 0)
        elif sizes[f] == 1:
            node += "1" if places[f] > cut else "0"
        else:
            node += side(t, number, cut, int(places[f]))
    return int(node, 2)


def marks(places: Sequence[float], sizes: Sequence[int], forest: Sequence[Any], bins: int) -> list[float]:
    """1 for the leaf of each tree, and for the bin of each field."""
    out: list[float] = []
    for t, nodes in enumerate(forest):
        leaf_index = leaf(places, sizes, t, nodes)
        out += [float(j == leaf_index) for j in range(len(nodes))]
    for value, size in zip(places, sizes, strict=True):
        if size == 1:
            out += [float(j <= value * bins < j + 1) for j in range(bins)]
        else:
            out += [float(j == value) for j in range(size)]
    return out


def indicators(rows: Any, coordinates: int, d: int) -> Any:
    """Rows of d values and numbers of coordinates, -1 for none, as values and indicators."""
    out = np.zeros((len(rows), coordinates))
    for row, wide in zip(rows, out, strict=True):
        wide[:d] = row[:d]
        for number in row[d:]:
            assert number == int(number)
            if number >= 0:
                wide[int(number)] = 1.0
    return out


def tree_sums(rows: Sequence[Sequence[float]], labels: Sequence[float], leaves: int) -> list[int]:
    """Counts of leaves, labels of leaves, counts of bins, of marked rows."""
    total = np.zeros(len(rows[0]) + leaves)
    for row, label in zip(rows, labels, strict=True):
        if not math.isnan(label):
            leaf_counts, rest = np.array(row[:leaves]), np.array(row[leaves:])
            sign = 1.0 if label > 0 else -1.0
            total += np.concatenate((leaf_counts, sign * leaf_counts, rest))
    return [int(value) for value in total]


def phi(leaves: Any, size: int) -> Any:
    """The matrix (n, trees * leaves) of which leaf each row is in, from (trees, n)."""
    return np.concatenate([np.eye(size)[tree_leaves] for tree_leaves in leaves], axis=1)


def tree_scores(leaves: Any, v: Any) -> list[float]:
    """Sum of the values of each row's leaves."""
    return [sum(v[t][leaf] for t, leaf in enumerate(row)) for row in np.transpose(leaves)]


def tree_totals(leaves: Any, values: Any, size: int) -> list[list[float]]:
    """Sums of the rows' values by leaf."""
    totals = [[0.0] * size for _ in leaves]
    for t, tree_leaves in enumerate(leaves):
        for leaf, value in zip(tree_leaves, values, strict=True):
            totals[t][leaf] += value
    return totals


def logistic_terms(half: Any, wanted: Any, weights: Any) -> tuple[float, list[float], list[float]]:
    """Logistic loss for means of labels 1 and -1, minus its slope, and its curvature, of each row."""
    loss, slopes, curvatures = 0.0, [], []
    for h, m, w in zip(half, wanted, weights, strict=True):
        p = 1.0 / (1.0 + math.exp(-2.0 * h))
        share = 0.5 * (1.0 + m)
        loss -= w * (share * math.log(p) + (1.0 - share) * math.log1p(-p))
        slopes.append(w * 2.0 * (share - p))
        curvatures.append(w * 4.0 * p * (1.0 - p))
    return loss, slopes, curvatures


def tree_rake(leaves: Any, shares: Any, ridge: Any, sweeps: int, weights: Any) -> tuple[Any, Any]:
    """Log-weights of leaves and weights of rows after so many Newton sweeps, tree by tree."""
    size = shares.shape[1]
    tilt = np.zeros(shares.shape)
    for _ in range(sweeps):
        for t, tree_leaves in enumerate(leaves):
            weights = weights / weights.sum()
            p = np.bincount(tree_leaves, weights=weights, minlength=size)
            step = np.clip((shares[t] - p - ridge[t] * tilt[t]) / (p + ridge[t]), -1.0, 1.0)
            tilt[t] += step
            weights = weights * np.exp(step)[tree_leaves]
    return tilt, weights / weights.sum()
