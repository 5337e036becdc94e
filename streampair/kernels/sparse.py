"""Records that have few of many features: OGD with one partner, the bits of the step over all features.

A record is given as the places of its values and the values. What a zero adds to a sum changes no bit of it,
so inner products and the gradient go over the places of the record and of its partner alone, in the order and
the lanes of `dot`. What is left are passes for the average and for the projection.

The partner's places and values stay where the step over all features has its gradient, which says nothing
between two records. Where they are not there, after a record with many features or in a state that was saved,
they are found in its row.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.losses import ENTROPY, pair_slope
from streampair.kernels.ogd import adagrad_step, fade_squares, ogd_rate
from streampair.kernels.platt import link_learn, link_proba
from streampair.kernels.state import (
    ADAGRAD,
    AVERAGE,
    CAP,
    FEW,
    FILLED,
    HEADER,
    LINK,
    LOSS,
    RADIUS,
    RATE,
    RECORDS,
    SCHEDULE,
    WIDTH,
    D,
)
from streampair.kernels.vectors import MAX_ABS, project_ball, view

Bits: TypeAlias = NDArray[np.int64]


@kernel
def scatter(entries: Array, count: int, fill: float, row: Array) -> None:
    """Write `count` values into a row (d,) that is `fill` elsewhere.

    `entries` holds their places, the bits of integers, and then the values. Bits are copied: a NaN may carry
    a text.
    """
    cells, bits = row.view(np.int64), entries.view(np.int64)
    for i in range(row.shape[0]):
        row[i] = fill
    for j in range(count):
        cells[bits[j]] = bits[count + j]


@kernel
def sort_places(places: Bits, values: Bits) -> None:
    """Sort places, and what belongs to them."""
    count = places.shape[0]
    gap = count // 2
    while gap > 0:  # Shell's sort
        for j in range(gap, count):
            place, value = places[j], values[j]
            i = j
            while i >= gap and places[i - gap] > place:
                places[i] = places[i - gap]
                values[i] = values[i - gap]
                i -= gap
            places[i], values[i] = place, value
        gap //= 2


@kernel
def _arrange(places: Bits, values: Array) -> bool:
    """Sort places, and the values with them; False if a value is unusable."""
    usable = True
    for j in range(values.shape[0]):
        usable = usable and abs(values[j]) <= MAX_ABS  # also catches NaN
    sort_places(places, values.view(np.int64))
    return usable


@kernel
def _dot_at(w: Array, places: Bits, values: Array) -> float:
    """`dot` of w (d,) with a vector that has these values at these places, ascending, and is 0 elsewhere."""
    whole = w.shape[0] - w.shape[0] % 4
    sums = np.zeros(4)
    for j in range(places.shape[0]):
        i = places[j]
        sums[i % 4 if i < whole else 0] += w[i] * values[j]
    return float((sums[0] + sums[1]) + (sums[2] + sums[3]))


@kernel
def _find(row: Array, places: Bits, values: Array) -> int:
    """Write the places of a row (d,) that are not 0, ascending, and their values; how many there are."""
    count = 0
    for i in range(row.shape[0]):
        if row[i] != 0.0:
            places[count] = i
            values[count] = row[i]
            count += 1
    return count


@kernel
def _differences(
    places: Bits, values: Array, theirs: Bits, partner: Array, k: float, at: Bits, gradient: Array
) -> int:
    """Write k times a record less its partner, at the places of either, ascending; how many these are."""
    count = 0
    i = 0
    j = 0
    while i < places.shape[0] or j < theirs.shape[0]:
        mine = j == theirs.shape[0] or (i < places.shape[0] and places[i] <= theirs[j])
        other = i == places.shape[0] or (j < theirs.shape[0] and theirs[j] <= places[i])
        at[count] = places[i] if mine else theirs[j]
        gradient[count] = k * ((values[i] if mine else 0.0) - (partner[j] if other else 0.0))
        i += 1 if mine else 0
        j += 1 if other else 0
        count += 1
    return count


@kernel
def _square_at(d: int, places: Bits, values: Array) -> float:
    """`dot` of a vector (d,) with itself that has these values at these places, ascending."""
    whole = d - d % 4
    sums = np.zeros(4)
    for j in range(places.shape[0]):
        i = places[j]
        sums[i % 4 if i < whole else 0] += values[j] * values[j]
    return float((sums[0] + sums[1]) + (sums[2] + sums[3]))


@kernel
def _published_at(s: Array, places: Bits, values: Array) -> float:
    """`published_score` of such a record."""
    at = HEADER + (4 if s[AVERAGE] > 0.0 else 2) * int(s[CAP])
    return float(_dot_at(view(s, at, int(s[D])), places, values))


@kernel
def sparse_score(s: Array, entries: Array, count: int) -> float:
    """`ogd_score` of a record that is given as of `scatter`; its places are sorted there."""
    places, values = entries[:count].view(np.int64), entries[count : 2 * count]
    if not _arrange(places, values):
        return math.nan
    return float(_published_at(s, places, values))


@kernel
def sparse_proba(s: Array, entries: Array, count: int) -> float:
    """`ogd_proba` of a record that is given as of `sparse_score`."""
    score = sparse_score(s, entries, count)
    if score != score:
        return math.nan
    return float(link_proba(s, score))


@kernel
def _sparse_move(s: Array, at: Bits, gradient: Array) -> None:
    """`ogd_move` against a gradient that has these values at these places, and the projection."""
    d = int(s[D])
    cap = int(s[CAP])
    first = HEADER + 2 * cap
    w = view(s, first, d)
    previous = view(s, first + cap, d)
    if s[SCHEDULE] == ADAGRAD:
        fade_squares(s, previous)
        for j in range(at.shape[0]):
            i = at[j]
            previous[i] += gradient[j] * gradient[j]
            w[i] -= adagrad_step(s[RATE], gradient[j], previous[i])
    else:
        averaged = view(s, first + 2 * cap, d)
        eta, share = ogd_rate(s, _square_at(d, at, gradient))
        for i in range(d):
            averaged[i] += share * (previous[i] - averaged[i])
            previous[i] = w[i]
        for j in range(at.shape[0]):
            w[at[j]] -= eta * gradient[j]
    project_ball(w, s[RADIUS])


@kernel
def sparse_learn(s: Array, entries: Array, count: int, y: float) -> int:
    """`ogd_learn` of a record that is given as of `scatter`, for FIFO(1) without a ridge term.

    It has at most a quarter of all features; its places are sorted there.
    """
    places, values = entries[:count].view(np.int64), entries[count : 2 * count]
    if not _arrange(places, values):
        return 1
    if s[LINK] > 0.0:
        link_learn(s, _published_at(s, places, values), y)
    d = int(s[D])
    cap = int(s[CAP])
    s[RECORDS] += 1.0
    first = HEADER + 5 * cap
    row = view(s, first + 1, d)
    few = int(s[FEW])
    kept = view(s, HEADER + cap, cap)
    if s[FILLED] > 0.0:
        if few > 0:
            theirs, partner = kept[:few].view(np.int64), kept[few : 2 * few]
        else:
            theirs, partner = np.empty(d, np.int64), np.empty(d)
            few = _find(row, theirs, partner)
            theirs, partner = theirs[:few], partner[:few]
        code = int(s[LOSS])
        n = 0
        at, gradient = np.empty(count + few, np.int64), np.empty(count + few)
        if s[first] != y or code == ENTROPY:
            w = view(s, HEADER + 2 * cap, d)
            score = _dot_at(w, places, values)
            k = pair_slope(code, y - s[first], score - _dot_at(w, theirs, partner), s[WIDTH])
            if k != 0.0:
                n = _differences(places, values, theirs, partner, k, at, gradient)
        _sparse_move(s, at[:n], gradient[:n])
        for j in range(few):
            row[theirs[j]] = 0.0
    s[first] = y
    for j in range(count):
        row[places[j]] = values[j]
    for j in range(2 * count):
        kept[j] = entries[j]
    s[FEW] = count
    s[FILLED] = 1.0
    return 0
