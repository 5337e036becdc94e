"""Sums of records in whole steps of a grid, to which noise is added before they leave."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.design import prepare_rows
from streampair.kernels.numerics import sigmoid
from streampair.kernels.symmetric import ROOT2
from streampair.kernels.vectors import dot


@kernel
def moment_sums(rows: Array, whole: Array, per_unit: float, sums: NDArray[np.int64]) -> None:
    """Add the rows, and their squares, to integer sums (2, d) in steps of 1 / per_unit.

    See docs/privacy.md 4.4.
    """
    for r in range(rows.shape[0]):
        if whole[r] != 0.0:
            for i in range(rows.shape[1]):
                value = rows[r, i]
                sums[0, i] += np.int64(math.floor(value * per_unit + 0.5))
                sums[1, i] += np.int64(math.floor(value * value * per_unit + 0.5))


@kernel
def cross_sums(rows: Array, labels: Array, per_unit: float, sums: NDArray[np.int64]) -> None:
    """Add `label x` of each row x (n, d) to integer sums (d,) in steps of 1 / per_unit (docs/privacy.md 4.4).

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
def leader_sums(
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
def leader_slot(cells: Array, how: Array, standardise: bool, numbers: Array, sums: NDArray[np.int64]) -> None:
    """`prepare_rows` and `leader_sums` of one record (d + 1,), its label last: in one call, which costs most.

    `how` (4, d) has what scales, shifts, centres and multiplies, `numbers` are cap, centre, weight and grid.
    The label of a record that is not whole becomes NaN.
    """
    cap, centre, weight, grid = numbers[0], numbers[1], numbers[2], numbers[3]
    d = how.shape[1]
    out, whole = np.empty((1, d)), np.empty(1)
    prepare_rows(cells[:d].reshape((1, d)), how[0], how[1], standardise, how[2], how[3], cap, out, whole)
    if whole[0] != 1.0:
        cells[d] = math.nan
    leader_sums(out, cells[d:], centre, weight, grid, sums)


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
