"""Sums of records in whole steps of a grid, and what one record does to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def cells(value: float, grid: float) -> int:
    """Nearest whole number of grid steps, halves up."""
    return math.floor(value / grid + 0.5)


def contribution(x: Sequence[float], s: float) -> np.ndarray:
    """(x x', s x): the lower triangle row by row, off-diagonals times sqrt 2, then s x."""
    triangle = [
        x[i] * x[j] * (1.0 if i == j else math.sqrt(2.0)) for i in range(len(x)) for j in range(i + 1)
    ]
    return np.array([*triangle, *(s * v for v in x)])


def leader_sums(
    rows: Sequence[Sequence[float]], labels: Sequence[float], centre: float, weight: float, grid: float
) -> np.ndarray:
    """Sum of the contributions in whole steps of the grid; null records add 0."""
    d = len(rows[0])
    total = np.zeros(d * (d + 1) // 2 + d, dtype=np.int64)
    for x, y in zip(rows, labels, strict=True):
        if not math.isnan(y):
            total += np.floor(contribution(x, weight * (y - centre)) / grid + 0.5).astype(np.int64)
    return total


def leader_slot(
    cells: Sequence[float],
    how: Sequence[Sequence[float]],
    cap: float,
    centre: float,
    weight: float,
    grid: float,
) -> np.ndarray:
    """The sums of one raw record with its label: scaled, standardised, pulled back, in the unit ball."""
    *raw, label = cells
    if not all(math.isfinite(value) for value in raw):
        raw, label = [0.0] * len(raw), math.nan
    x = []
    for value, scale, shift, mean, factor in zip(raw, *how, strict=True):
        standard = (min(max(value * scale + shift, -1.0), 1.0) - mean) * factor
        x.append(min(max(standard, -cap), cap))
    length = max(math.sqrt(sum(value * value for value in x)), 1.0)
    return leader_sums([[value / length for value in x]], [label], centre, weight, grid)


def class_contribution(x: Sequence[float], place: int, classes: int, count: float = 0.5) -> np.ndarray:
    """(x x', e_y (x) x, e_y / 2): the triangle as in `contribution`, then a row and a count a class."""
    rows, counts = np.zeros((classes, len(x))), np.zeros(classes)
    rows[place], counts[place] = x, count
    return np.concatenate((contribution(x, 0.0)[: -len(x)], rows.ravel(), counts))


def class_sums(
    rows: Sequence[Sequence[float]], labels: Sequence[float], classes: Sequence[float], grid: float
) -> np.ndarray:
    """Sum of the contributions in whole steps of the grid; other labels are null records, and add 0."""
    d, many = len(rows[0]), len(classes)
    total = np.zeros(d * (d + 1) // 2 + d * many + many, dtype=np.int64)
    for x, y in zip(rows, labels, strict=True):
        if y in classes:
            added = class_contribution(x, list(classes).index(y), many)
            total += np.floor(added / grid + 0.5).astype(np.int64)
    return total


def best_weights(w: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> float:
    """Squared pair loss of weights over all pairs of two samples."""
    margins = 2.0 * np.subtract.outer(positives @ w, negatives @ w)
    return float(((1.0 - margins) ** 2).mean())


def block_influence(ends: Sequence[int], steps: int, position: int, share: float) -> np.ndarray:
    """C v over the releases of `ends`, for a record in slot `position` (from 0) of `steps`."""
    image = []
    carried = 0.0
    start = 0
    for end in ends:
        carried = share * carried + (1.0 if start <= position < end else 0.0)
        image.append(carried)
        start = end
    return np.array(image)


def dearest_windows(
    ends: Sequence[int],
    horizon: int | None,
    windows: Sequence[int],
    share: float,
    first: float,
    last: float,
) -> list[float]:
    """What a second view of so many slots costs the record that it costs most: each window, each record.

    `first` and `last` are what one release of a block, and the one at the horizon, cost a record that it
    holds; the records of one block are alike.
    """
    records = [end - 1 for end in ends] + ([] if horizon is None else [horizon - 1])
    rows = np.array([first * block_influence(ends, 0, record, share) ** 2 for record in records])
    until = np.concatenate((np.zeros((len(records), 1)), np.cumsum(rows, axis=1)), axis=1)
    start = np.arange(horizon or ends[-1] + 1)
    before = until[:, np.searchsorted(ends, start, "right")]
    found = []
    for window in windows:
        costs = (until[:, np.searchsorted(ends, start + window, "right")] - before).max(axis=0)
        if horizon is not None:
            costs[start + window >= horizon] += last
        found.append(float(costs.max()))
    return found


def moment_sums(rows: Sequence[Sequence[float]], per_unit: float) -> list[list[int]]:
    """Sums of the values and of their squares in whole steps of 1 / per_unit."""
    columns = list(zip(*rows, strict=True))
    return [[sum(cells(v**power, 1 / per_unit) for v in column) for column in columns] for power in (1, 2)]


def cross_sums(rows: Sequence[Sequence[float]], labels: Sequence[float], per_unit: float) -> list[int]:
    """Sums of label times x, the label rounded before, in whole steps of 1 / per_unit; NaN: nothing."""
    total = [0] * len(rows[0])
    for x, y in zip(rows, labels, strict=True):
        if not math.isnan(y):
            near = cells(y, 1 / per_unit) / per_unit
            total = [a + cells(near * v, 1 / per_unit) for a, v in zip(total, x, strict=True)]
    return total


def score_sums(
    rows: Sequence[Sequence[float]], labels: Sequence[float], w: Sequence[float], per_unit: float
) -> list[int]:
    """Sums of (1, s, t^2, x, s x) in whole steps of 1 / per_unit; t is the score, cut to [-1, 1]."""
    total = [0] * (3 + 2 * len(w))
    for x, s in zip(rows, labels, strict=True):
        if math.isnan(s):
            continue
        t = min(max(sum(a * b for a, b in zip(w, x, strict=True)), -1.0), 1.0)
        near = [cells(v, 1 / per_unit) for v in x]
        values = [
            int(per_unit),
            int(s * per_unit),
            cells(t * t, 1 / per_unit),
            *near,
            *(int(s) * c for c in near),
        ]
        total = [a + b for a, b in zip(total, values, strict=True)]
    return total


def class_bins(
    scores: Sequence[float], labels: Sequence[float], slope: float, offset: float, bins: int
) -> list[list[int]]:
    """How many scores of positives, and of negatives, are in each bin of their probability."""
    found = [[0] * bins, [0] * bins]
    for score, label in zip(scores, labels, strict=True):
        if not math.isnan(label):
            p = 1.0 / (1.0 + math.exp(-(slope * score + offset)))
            found[0 if label > 0.0 else 1][min(int(p * bins), bins - 1)] += 1
    return found
