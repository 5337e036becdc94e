"""Boosted histogram trees on the newest records of a stream, rebuilt one at a time: an expert of a forest.

Two flat arrays. The ring has the newest records, their bins and their labels. A block has the trees of one
class, and what the trees so far made of each record in the ring. Several classes share a ring.

All is done in the order of the age of records, never in that of their slots: a ring that is restored with its
oldest record in the first slot goes on with the same bits.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.numerics import sigmoid, uniform
from streampair.kernels.vectors import viewed_as

Bits: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]

# Scalars of a ring.
RING_D = 0  # columns in use
RING_WIDTH = 1  # columns that there is room for
RING_ROWS = 2  # records that there is room for
RING_COUNT = 3  # records in it
RING_HEAD = 4  # slot of the next record
RING_TASK = 5  # 0: labels are 0 and 1; 1: squared loss; 2: labels are numbers of classes
RING_TEXTS = 6  # 1: a column has had texts
RING_COLUMN = 7  # the column that is binned anew next
RING_BINNING = 8  # columns that are due to be binned, a fraction
RING_SEED = 9
RING_HEADER = 10

# Scalars of a block.
BOOSTED_KEPT = 0  # how many of the newest records it learns from
BOOSTED_TREE = 1  # the tree that is rebuilt next
BOOSTED_BUILT = 2  # trees built since the last reset
BOOSTED_BIAS = 3
BOOSTED_SINCE = 4  # records since the last reset
BOOSTED_BEST = 5  # the best average loss since
BOOSTED_SEEN = 6  # sum of weights of the average loss
BOOSTED_CREDIT = 7  # work that may be spent on the next tree
BOOSTED_DRAWS = 8  # random numbers drawn
BOOSTED_HEADER = 10

BOOSTED_TREES = 50
DEPTH = 6
INNER = 63
LEAVES = 64
BINS = 64
MOST_COLUMNS = 8000  # further ones are left to the other experts
MOST_ROWS = 4000
LEAST_ROWS = 500
REST = BINS - 1  # bin of the texts that came once there were codes for no more

_CELLS = 4_000_000
_CODES = BINS - 2
_KIND = BINS - 1  # cell of a column: number of its edges, or of texts -1 less their number
_EDGES = 48  # quantiles
_SAMPLE = 256  # records that edges are computed from
_COLUMNS = 10  # of a tree
_BEGIN = 50  # records before the first tree
_WORK = 1500.0  # units of work for each record and class
_RATE = 0.1  # of a leaf's Newton step
_RIDGE = 1.0
_LEAST = 20  # records in a leaf
_SMOOTHING = 10.0  # of the texts' order, and of their splits
_KEEP = 0.97  # of the gains, from one tree to the next
_ETA = 0.05  # step size of the leaves
_GAMMA = 0.999
_FRESH = 200  # records that are kept at a reset
_MOST_BIAS = 3.0
_PAYLOAD = (1 << 51) - 1
_INDEX = 0x7FFFFFFF


@kernel
def ring_rows(d: int) -> int:
    """Number of records that a ring of d columns has room for."""
    rows = MOST_ROWS
    while rows > LEAST_ROWS and rows * d > _CELLS:
        rows //= 2
    return rows


@kernel
def ring_places(width: int, rows: int) -> tuple[int, int, int, int, int]:
    """Layout of a ring: edges and codes, values, labels, bins (one row more: the record at hand); length."""
    at_values = RING_HEADER + BINS * width
    at_labels = at_values + width * rows
    at_bins = at_labels + rows
    return RING_HEADER, at_values, at_labels, at_bins, at_bins + (width * (rows + 1) + 7) // 8


@kernel
def boosted_places(width: int, rows: int) -> tuple[int, int, int, int, int, int, int, int, int]:
    """Layout of a block: marks, columns, values and sums of leaves, gains, scores, leaves at hand and all.

    A node has a threshold or a set of bins as its mark; its column is inverted if it parts texts. The cells
    of a tree begin at 64 times its number. Scores and all leaves are those of the records in the ring.
    """
    at_marks = BOOSTED_HEADER
    at_columns = at_marks + LEAVES * BOOSTED_TREES
    at_values = at_columns + LEAVES * BOOSTED_TREES // 4
    at_sums = at_values + LEAVES * BOOSTED_TREES
    at_gains = at_sums + LEAVES * BOOSTED_TREES
    at_scores = at_gains + width
    at_hand = at_scores + rows
    at_leaves = at_hand + BOOSTED_TREES
    end = at_leaves + (BOOSTED_TREES * rows + 7) // 8
    return at_marks, at_columns, at_values, at_sums, at_gains, at_scores, at_hand, at_leaves, end


@kernel
def ring_bins(ring: Array) -> Bytes:
    """View of the bins, (rows + 1) * width."""
    _, _, _, at_bins, end = ring_places(int(ring[RING_WIDTH]), int(ring[RING_ROWS]))
    return viewed_as(ring[at_bins:end], np.uint8)  # type: ignore[no-any-return]


@kernel
def boosted_fresh(block: Array, width: int, rows: int) -> None:
    """Forget all that a block has learned."""
    at_marks, at_columns, _, _, _, _, _, _, end = boosted_places(width, rows)
    for i in range(end):
        block[i] = 0.0
    for i in range(at_marks, at_columns):
        block[i] = math.inf
    block[BOOSTED_BEST] = 5.0


# ---- bins ------------------------------------------------------------------------------------------------


@kernel
def bin_of(edges: Array, value: float) -> int:
    """Bin of a number: 1 + how many of the 63 edges, ascending, are below it."""
    low = 32 if value > edges[31] else 0
    low += 16 if value > edges[low + 15] else 0
    low += 8 if value > edges[low + 7] else 0
    low += 4 if value > edges[low + 3] else 0
    low += 2 if value > edges[low + 1] else 0
    low += 1 if value > edges[low] else 0
    return low + 1


@kernel
def bin_in(mask: np.uint64, q: int) -> bool:
    """Whether a bin is in a set."""
    return bool((mask >> np.uint64(q)) & np.uint64(1))


@kernel
def code_of(keys: Bits, known: int, key: int) -> int:
    """Bin of a text, or of a number among texts, by its bits; `REST` if it has none."""
    for i in range(known):
        if keys[i] == key:
            return i + 1
    return REST


@kernel
def edges_of(values: Array, edges: Array) -> None:
    """Set the edges (64,) of a column from ascending numbers: between all if few differ, or at quantiles."""
    n, count, differ = values.shape[0], 0, 1
    for i in range(BINS - 1):
        edges[i] = math.inf
    for i in range(1, n):
        if values[i] != values[i - 1]:
            differ += 1
    pieces = n if differ <= _EDGES else _EDGES
    for q in range(1, pieces):
        i = q * n // pieces
        edge = 0.5 * (values[i - 1] + values[i])
        if edge >= values[i]:
            edge = values[i - 1]
        above = edge < values[n - 1] and (differ > _EDGES or values[i] != values[i - 1])
        if above and (count == 0 or edge > edges[count - 1]):
            edges[count] = edge
            count += 1
    edges[_KIND] = count


@kernel
def _key(value: float, bits: int) -> int:
    return 0 if value == 0.0 else bits


@kernel
def ring_code(cells: Array, value: float, bits: int) -> int:
    """Bin of a value in a column of texts, with a code of its own if there is one left."""
    if value != value and bits & _PAYLOAD == 0:
        return 0
    known = -1 - int(cells[_KIND])
    keys, key = viewed_as(cells, np.int64), _key(value, bits)
    code = code_of(keys, known, key)
    if code == REST and known < _CODES:
        keys[known] = key
        cells[_KIND] -= 1.0
        return known + 1
    return code


@kernel
def ring_codes(ring: Array, x: Array, present: Bits) -> None:
    """Find the bins of the record at hand in the columns of texts; of the others there is no need."""
    if ring[RING_TEXTS] == 0.0:
        return
    width, rows = int(ring[RING_WIDTH]), int(ring[RING_ROWS])
    bins = ring_bins(ring)[width * rows :]
    bits = viewed_as(x, np.int64)
    for j in range(min(x.shape[0], width)):
        bins[j] = 0
    for i in range(present.shape[0]):
        j = present[i]
        if j < width:
            cells = ring[RING_HEADER + BINS * j : RING_HEADER + BINS * (j + 1)]
            if cells[_KIND] < 0.0:
                known = -1 - int(cells[_KIND])
                bins[j] = code_of(viewed_as(cells, np.int64), known, _key(x[j], bits[j]))


@kernel
def _oldest(ring: Array, count: int) -> int:
    """Row of the oldest of the `count` newest records."""
    rows = int(ring[RING_ROWS])
    return (int(ring[RING_HEAD]) + rows - count) % rows


@kernel
def _row(oldest: int, i: int, rows: int) -> int:
    """Row of the i-th record after the oldest one. A remainder would take several times as long."""
    row = oldest + i
    return row if row < rows else row - rows


@kernel
def ring_bin(ring: Array, column: int) -> None:
    """Bin a column of the whole ring, with new edges if it has numbers alone."""
    width, rows, count = int(ring[RING_WIDTH]), int(ring[RING_ROWS]), int(ring[RING_COUNT])
    _, at_values, at_labels, _, _ = ring_places(width, rows)
    cells = ring[RING_HEADER + BINS * column : RING_HEADER + BINS * (column + 1)]
    values = ring[at_values:at_labels]
    oldest = _oldest(ring, count)
    if cells[_KIND] >= 0.0:
        sample = min(count, _SAMPLE)
        numbers, found = np.empty(sample), 0
        for i in range(sample):
            value = values[width * _row(oldest, i * count // sample, rows) + column]
            if value == value:
                numbers[found] = value
                found += 1
        if found > 0:
            edges_of(np.sort(numbers[:found]), cells)
    ring_fill(ring, column)


@kernel
def ring_fill(ring: Array, column: int) -> None:
    """Bin a column of the whole ring by its edges or codes."""
    width, rows, count = int(ring[RING_WIDTH]), int(ring[RING_ROWS]), int(ring[RING_COUNT])
    _, at_values, at_labels, _, _ = ring_places(width, rows)
    cells = ring[RING_HEADER + BINS * column : RING_HEADER + BINS * (column + 1)]
    values, bins = ring[at_values:at_labels], ring_bins(ring)
    bits = viewed_as(values, np.int64)
    oldest = _oldest(ring, count)
    for i in range(count):
        place = (width * _row(oldest, i, rows) + column) & _INDEX
        value = values[place]
        if cells[_KIND] < 0.0:
            bins[place] = ring_code(cells, value, bits[place])
        else:
            bins[place] = bin_of(cells, value) if value == value else 0


@kernel
def ring_append(ring: Array, x: Array, present: Bits, label: float) -> None:
    """Put a record (d,) in the place of the oldest; `present` lists the columns that it has."""
    width, rows, d = int(ring[RING_WIDTH]), int(ring[RING_ROWS]), x.shape[0]
    d = min(d, width)
    ring[RING_D] = d
    _, at_values, at_labels, _, _ = ring_places(width, rows)
    slot = int(ring[RING_HEAD])
    bits = viewed_as(x, np.int64)
    # A column's first text makes codes of all its values.
    for i in range(present.shape[0]):
        j = present[i]
        if j < width and x[j] != x[j] and ring[RING_HEADER + BINS * j + _KIND] >= 0.0:
            ring[RING_HEADER + BINS * j + _KIND] = -1.0
            ring[RING_TEXTS] = 1.0
            ring_fill(ring, j)
    values = ring[at_values + width * slot : at_values + width * (slot + 1)]
    value_bits = viewed_as(values, np.int64)
    bins = ring_bins(ring)[width * slot : width * (slot + 1)]
    for j in range(d):
        value_bits[j] = bits[j]
        bins[j] = 0
    for i in range(present.shape[0]):
        j = present[i]
        if j < width:
            cells = ring[RING_HEADER + BINS * j : RING_HEADER + BINS * (j + 1)]
            if cells[_KIND] < 0.0:
                bins[j] = ring_code(cells, x[j], bits[j])
            else:
                bins[j] = bin_of(cells, x[j])
    ring[at_labels + slot] = label
    ring[RING_HEAD] = (slot + 1) % rows
    ring[RING_COUNT] = min(ring[RING_COUNT] + 1.0, float(rows))


@kernel
def ring_has_newest(ring: Array, x: Bits) -> bool:
    """Whether the record that came last has these bits (d,)."""
    width, rows, d = int(ring[RING_WIDTH]), int(ring[RING_ROWS]), int(ring[RING_D])
    if ring[RING_COUNT] == 0.0 or d != x.shape[0]:
        return False
    _, at_values, _, _, _ = ring_places(width, rows)
    row = at_values + width * ((int(ring[RING_HEAD]) + rows - 1) % rows)
    bits, same = viewed_as(ring[row : row + d], np.int64), True
    for j in range(d):
        same = same and bits[j] == x[j]
    return same


# ---- scores and leaves -----------------------------------------------------------------------------------


@kernel
def boosted_score(ring: Array, block: Array, x: Array) -> float:
    """Score of a record (d,), whose codes are at hand if it has texts; its leaves are at hand then."""
    width, rows = int(ring[RING_WIDTH]), int(ring[RING_ROWS])
    at_marks, at_columns, at_values, _, _, _, at_hand, at_leaves, _ = boosted_places(width, rows)
    marks = block[at_marks:at_columns]
    masks, columns = viewed_as(marks, np.uint64), viewed_as(block[at_columns:at_values], np.int16)
    values, leaves = block[at_values:], viewed_as(block[at_hand:at_leaves], np.int64)
    if block[BOOSTED_BUILT] == 0.0:
        for t in range(BOOSTED_TREES):
            leaves[t] = 0
    else:
        for t in range(BOOSTED_TREES):
            leaves[t] = LEAVES * t
        # All trees a level down, then the next level: no step waits for the one before it.
        bins = ring_bins(ring)[width * rows :]
        for _ in range(DEPTH):
            for t in range(BOOSTED_TREES):
                place = leaves[t] & _INDEX
                column = int(columns[place])
                if column >= 0:
                    right = int(x[column & _INDEX] > marks[place])
                else:
                    right = int(bin_in(masks[place], bins[~column]))
                leaves[t] = 2 * place - LEAVES * t + 1 + right
        for t in range(BOOSTED_TREES):
            leaves[t] -= LEAVES * t + INNER
    score = block[BOOSTED_BIAS]
    for t in range(BOOSTED_TREES):
        score += values[(LEAVES * t + leaves[t]) & _INDEX]
    return float(score)


@kernel
def ring_slope(ring: Array, score: float, target: float) -> float:
    """Derivative of the loss at a score."""
    return score - target if ring[RING_TASK] == 1.0 else sigmoid(score) - target


@kernel
def boosted_keep(ring: Array, block: Array, score: float) -> None:
    """Note the score and the leaves at hand of the record that comes next into the ring."""
    width, rows = int(ring[RING_WIDTH]), int(ring[RING_ROWS])
    _, _, _, _, _, at_scores, at_hand, at_leaves, end = boosted_places(width, rows)
    slot = int(ring[RING_HEAD])
    leaves, hand = viewed_as(block[at_leaves:end], np.uint8), viewed_as(block[at_hand:at_leaves], np.int64)
    block[at_scores + slot] = score
    for t in range(BOOSTED_TREES):
        leaves[BOOSTED_TREES * slot + t] = hand[t]
    block[BOOSTED_KEPT] = min(block[BOOSTED_KEPT] + 1.0, float(rows))


@kernel
def boosted_find(ring: Array, block: Array) -> None:
    """Find the leaves of the records in the ring, whose bins are known."""
    width, rows, n = int(ring[RING_WIDTH]), int(ring[RING_ROWS]), int(block[BOOSTED_KEPT])
    _, at_values, _, _, _ = ring_places(width, rows)
    _, _, _, _, _, _, at_hand, at_leaves, end = boosted_places(width, rows)
    leaves, hand = viewed_as(block[at_leaves:end], np.uint8), viewed_as(block[at_hand:at_leaves], np.int64)
    oldest, d, bins = _oldest(ring, n), int(ring[RING_D]), ring_bins(ring)
    for i in range(n):
        r = _row(oldest, i, rows)
        for j in range(d):
            bins[width * rows + j] = bins[width * r + j]
        boosted_score(ring, block, ring[at_values + width * r : at_values + width * r + d])
        for t in range(BOOSTED_TREES):
            leaves[BOOSTED_TREES * r + t] = hand[t]


@kernel
def boosted_step(ring: Array, block: Array, slope: float) -> None:
    """AdaGrad steps of the leaves at hand."""
    width, rows = int(ring[RING_WIDTH]), int(ring[RING_ROWS])
    _, _, at_values, at_sums, _, _, at_hand, at_leaves, _ = boosted_places(width, rows)
    hand = viewed_as(block[at_hand:at_leaves], np.int64)
    h, h2 = _ETA * slope, slope * slope
    for t in range(BOOSTED_TREES):
        place = (LEAVES * t + hand[t]) & _INDEX
        total = _GAMMA * block[at_sums + place] + h2
        block[at_sums + place] = total
        block[at_values + place] -= np.divide(h, math.sqrt(total + 1.0))


@kernel
def boosted_judge(ring: Array, block: Array, loss: float, least: float) -> bool:
    """Begin again with the newest records where the average loss is above that of others and its own best.

    Parameters
    ----------
    loss, least
        The average loss, not yet divided by its sum of weights, and the least average loss of the others.

    Returns
    -------
    bool
        Whether it began again: the average loss is 0 then.
    """
    block[BOOSTED_SEEN] = 0.995 * block[BOOSTED_SEEN] + 0.005
    block[BOOSTED_SINCE] += 1.0
    if block[BOOSTED_SINCE] < _FRESH:
        return False
    mean = loss / block[BOOSTED_SEEN]
    if mean <= least + 0.1 or mean <= block[BOOSTED_BEST] + 0.1:
        block[BOOSTED_BEST] = min(block[BOOSTED_BEST], mean)
        return False
    kept, draws = min(block[BOOSTED_KEPT], float(_FRESH)), block[BOOSTED_DRAWS]
    boosted_fresh(block, int(ring[RING_WIDTH]), int(ring[RING_ROWS]))
    block[BOOSTED_KEPT], block[BOOSTED_DRAWS] = kept, draws
    return True


# ---- trees -----------------------------------------------------------------------------------------------


@kernel
def _draw(ring: Array, block: Array) -> float:
    u = uniform(int(ring[RING_SEED]), int(block[BOOSTED_DRAWS]), 13)
    block[BOOSTED_DRAWS] += 1.0
    return u


@kernel
def _columns(ring: Array, block: Array, gains: Array, d: int) -> Bits:
    """The columns of a tree: all if they are few; else half of them at random, half by what they gained."""
    columns = np.empty(min(d, _COLUMNS), np.int64)
    if d <= _COLUMNS:
        for j in range(d):
            columns[j] = j
        return columns
    total = 0.0
    for j in range(d):
        total += gains[j]
    for f in range(_COLUMNS):
        column = int(_draw(ring, block) * d)
        if total > 0.0 and f % 2 == 1:
            left = _draw(ring, block) * total
            for j in range(d):
                left -= gains[j]
                if left < 0.0 and gains[j] > 0.0:
                    column = j
                    break
        for i in range(f):
            if columns[i] == column:  # one more try
                column = int(_draw(ring, block) * d)
        columns[f] = column
    return columns


@kernel
def _order(sums: Array, least: float, bins: Bits) -> tuple[int, int]:
    """Bins of texts by their ratio of gradient and hessian; how many, and how many have records at all."""
    ratios = np.empty(BINS)
    count, filled = 0, 0
    for q in range(BINS):
        if sums[q, 1] > 1e-6:
            filled += 1
            if sums[q, 1] >= least:
                ratio = sums[q, 0] / (sums[q, 1] + _SMOOTHING)
                i = count
                while i > 0 and ratios[i - 1] > ratio:
                    ratios[i], bins[i] = ratios[i - 1], bins[i - 1]
                    i -= 1
                ratios[i], bins[i] = ratio, q
                count += 1
    return count, filled


@kernel
def _split(
    ring: Array, columns: Bits, sums: Array, g: float, h: float, count: int
) -> tuple[int, int, np.uint64, float, float, float]:
    """The best split of a node.

    Parameters
    ----------
    columns, sums
        Columns of the tree, and sums of gradients and hessians by column and bin, (columns, 64, 2).
    g, h, count
        Sums of the node, and its records.

    Returns
    -------
    tuple
        (place of the column, -1: none; last bin to the left; bins to the right; sums to the left; gain).
    """
    best, which, cut, mask = 1e-3, -1, 0, np.uint64(0)
    best_g, best_h = 0.0, 0.0
    base = g * g / (h + _RIDGE)
    least = _LEAST * h / count
    order = np.empty(BINS, np.int64)
    for f in range(columns.shape[0]):
        kind = ring[RING_HEADER + BINS * columns[f] + _KIND]
        left_g, left_h = 0.0, 0.0
        if kind < 0.0:
            ordered, filled = _order(sums[f], least, order)
            bins = np.uint64(0)
            for i in range(ordered if ordered < filled else ordered - 1):
                q = order[i]
                left_g += sums[f, q, 0]
                left_h += sums[f, q, 1]
                bins |= np.uint64(1) << np.uint64(q)
                if left_h >= 0.999 * least and h - left_h >= 0.999 * least:
                    ridge = _RIDGE + _SMOOTHING
                    right_g, right_h = g - left_g, h - left_h
                    gain = left_g * left_g / (left_h + ridge) + right_g * right_g / (right_h + ridge) - base
                    if gain > best:
                        best, which, mask, best_g, best_h = gain, f, ~bins, left_g, left_h
        else:
            for q in range(int(kind) + 1):
                left_g += sums[f, q, 0]
                left_h += sums[f, q, 1]
                right_h = h - left_h
                if right_h < 0.999 * least:
                    break
                if left_h >= 0.999 * least:
                    right_g = g - left_g
                    gain = left_g * left_g / (left_h + _RIDGE) + right_g * right_g / (right_h + _RIDGE) - base
                    if gain > best:
                        best, which, cut, best_g, best_h = gain, f, q, left_g, left_h
    return which, cut, mask, best_g, best_h, best


@kernel
def _histogram(rows: Bytes, slopes: Array, records: Bits, sums: Array) -> None:
    """Sums of gradients and hessians of records, in their order, by column and bin."""
    for f in range(sums.shape[0]):
        for q in range(BINS):
            sums[f, q, 0] = 0.0
            sums[f, q, 1] = 0.0
    for i in range(records.shape[0]):
        r = records[i]
        g, h = slopes[r, 0], slopes[r, 1]
        for f in range(sums.shape[0]):
            q = rows[r, f]
            sums[f, q, 0] += g
            sums[f, q, 1] += h


@kernel
def boosted_target(ring: Array, label: float, which: int) -> float:
    """What a label is to the block of a class."""
    if ring[RING_TASK] == 2.0:
        return 1.0 if label == which else 0.0
    return label


@kernel
def boosted_rebuild(ring: Array, block: Array, which: int) -> None:
    """Fit the block's oldest tree anew, to what the others leave of the records in the ring.

    The sums of a node are those of its parent less those of the smaller child's: only that one's records are
    looked at. Nodes come before what is below them, the left one first, so each level needs two histograms.
    """
    width, rows, d = int(ring[RING_WIDTH]), int(ring[RING_ROWS]), int(ring[RING_D])
    _, _, at_labels, _, _ = ring_places(width, rows)
    at_marks, at_columns, at_values, at_sums, at_gains, at_scores, _, at_leaves, end = boosted_places(
        width, rows
    )
    tree, n = int(block[BOOSTED_TREE]), int(block[BOOSTED_KEPT])
    block[BOOSTED_CREDIT] -= boosted_cost(n, d)
    oldest = _oldest(ring, n)
    bins, leaves = ring_bins(ring), viewed_as(block[at_leaves:end], np.uint8)
    marks, nodes = block[at_marks:at_columns], viewed_as(block[at_columns:at_values], np.int16)
    masks = viewed_as(marks, np.uint64)
    gains, scores = block[at_gains:at_scores], block[at_scores:]
    values = block[at_values + LEAVES * tree : at_values + LEAVES * (tree + 1)]
    columns = _columns(ring, block, gains, d)
    slopes, packed = np.empty((n, 2)), np.empty((n, columns.shape[0]), np.uint8)
    order, beyond = np.empty(n, np.int64), np.empty(n, np.int64)
    begin, stop = np.zeros(2 * LEAVES, np.int64), np.zeros(2 * LEAVES, np.int64)
    sums = np.zeros((2 * LEAVES, 2))
    counted = np.zeros(2 * LEAVES, np.bool_)
    histograms = np.empty((2 * DEPTH, columns.shape[0], BINS, 2))
    for i in range(n):
        r = _row(oldest, i, rows)
        scores[r] -= values[leaves[BOOSTED_TREES * r + tree]]
        target = boosted_target(ring, ring[at_labels + r], which)
        if ring[RING_TASK] == 1.0:
            slopes[i, 0], slopes[i, 1] = scores[r] - target, 1.0
        else:
            p = sigmoid(scores[r])
            slopes[i, 0], slopes[i, 1] = p - target, max(p * (1.0 - p), 1e-6)
        sums[0, 0] += slopes[i, 0]
        sums[0, 1] += slopes[i, 1]
        order[i] = i
        for f in range(columns.shape[0]):
            packed[i, f] = bins[width * r + columns[f]]
    for j in range(d):
        gains[j] *= _KEEP
    stop[0] = n
    if n >= 2 * _LEAST:
        counted[0] = True
        _histogram(packed, slopes, order, histograms[0])
    node = level = 0
    while True:
        a, b, child = begin[node], stop[node], 2 * node + 1
        place, cut, mask, left_g, left_h, gain = -1, 0, np.uint64(0), sums[node, 0], sums[node, 1], 0.0
        side = 2 * level + (1 - node % 2 if node > 0 else 0)
        if counted[node]:
            place, cut, mask, left_g, left_h, gain = _split(
                ring, columns, histograms[side], sums[node, 0], sums[node, 1], b - a
            )
        middle, at = b, LEAVES * tree + node
        if place < 0:  # all to the left
            nodes[at], marks[at], left_g, left_h = 0, math.inf, sums[node, 0], sums[node, 1]
        else:
            column = columns[place]
            gains[column] += gain
            kind = ring[RING_HEADER + BINS * column + _KIND]
            if kind < 0.0:
                nodes[at], masks[at] = ~column, mask
            else:
                nodes[at] = column
                marks[at] = ring[RING_HEADER + BINS * column + cut - 1] if cut > 0 else -math.inf
            middle, right = a, 0
            for i in range(a, b):
                r = order[i]
                q = packed[r, place]
                goes = 1 if (bin_in(mask, q) if kind < 0.0 else q > cut) else 0
                order[middle] = r
                beyond[right] = r
                middle += 1 - goes
                right += goes
            for i in range(right):
                order[middle + i] = beyond[i]
        begin[child], stop[child], begin[child + 1], stop[child + 1] = a, middle, middle, b
        sums[child, 0], sums[child, 1] = left_g, left_h
        sums[child + 1, 0], sums[child + 1, 1] = sums[node, 0] - left_g, sums[node, 1] - left_h
        if place < 0:
            sums[child + 1, 0], sums[child + 1, 1] = 0.0, 0.0
        elif level < DEPTH - 1 and max(middle - a, b - middle) >= 2 * _LEAST:
            small = 0 if middle - a <= b - middle else 1
            few, many = histograms[2 * level + 2 + small], histograms[2 * level + 3 - small]
            whole = histograms[side]
            _histogram(packed, slopes, order[begin[child + small] : stop[child + small]], few)
            for f in range(columns.shape[0]):
                for q in range(BINS):
                    many[f, q, 0] = whole[f, q, 0] - few[f, q, 0]
                    many[f, q, 1] = whole[f, q, 1] - few[f, q, 1]
            for i in range(2):
                counted[child + i] = stop[child + i] - begin[child + i] >= 2 * _LEAST
        if level < DEPTH - 1:
            node, level = child, level + 1
        else:
            while node > 0 and node % 2 == 0:
                node, level = (node - 1) // 2, level - 1
            if node == 0:
                break
            node += 1
    for leaf in range(LEAVES):
        values[leaf] = -_RATE * sums[INNER + leaf, 0] / (sums[INNER + leaf, 1] + _RIDGE)
        block[at_sums + LEAVES * tree + leaf] = 0.0
        for i in range(begin[INNER + leaf], stop[INNER + leaf]):
            r = _row(oldest, order[i], rows)
            scores[r] += values[leaf]
            leaves[BOOSTED_TREES * r + tree] = leaf
    block[BOOSTED_TREE] = (tree + 1) % BOOSTED_TREES
    block[BOOSTED_BUILT] += 1.0
    if block[BOOSTED_TREE] == 0.0 or block[BOOSTED_BUILT] <= 3.0:
        boosted_shift(ring, block, which)


@kernel
def boosted_shift(ring: Array, block: Array, which: int) -> None:
    """A Newton step of the bias."""
    width, rows, n = int(ring[RING_WIDTH]), int(ring[RING_ROWS]), int(block[BOOSTED_KEPT])
    _, _, at_labels, _, _ = ring_places(width, rows)
    _, _, _, _, _, at_scores, _, _, _ = boosted_places(width, rows)
    oldest = _oldest(ring, n)
    g, h = 0.0, 0.0
    for i in range(n):
        r = _row(oldest, i, rows)
        target = boosted_target(ring, ring[at_labels + r], which)
        if ring[RING_TASK] == 1.0:
            g += block[at_scores + r] - target
            h += 1.0
        else:
            p = sigmoid(block[at_scores + r])
            g += p - target
            h += p * (1.0 - p)
    shift = min(max(-g / (h + _RIDGE), -_MOST_BIAS), _MOST_BIAS)
    block[BOOSTED_BIAS] += shift
    for i in range(n):
        block[at_scores + _row(oldest, i, rows)] += shift


@kernel
def boosted_cost(n: int, d: int) -> float:
    """Units of work that a tree takes on n records of d columns."""
    columns = min(d, _COLUMNS)
    return 3.6 * n * columns + 6.0 * n + 0.7 * min(n / _LEAST, float(INNER)) * columns * BINS


@kernel
def ring_due(ring: Array) -> bool:
    """Count the columns that are due to be binned, once a record came; whether there are any."""
    count = int(ring[RING_COUNT])
    if count < _BEGIN:
        return False
    ring[RING_BINNING] += min(ring[RING_D] / count, 1000.0 / (count + 1000.0))
    return count == _BEGIN or ring[RING_BINNING] >= 1.0


@kernel
def ring_bin_due(ring: Array) -> None:
    """Bin the columns that are due: all at first, then one after another, so that no record waits for all."""
    d = int(ring[RING_D])
    if int(ring[RING_COUNT]) == _BEGIN:
        for j in range(d):
            ring_bin(ring, j)
    while ring[RING_BINNING] >= 1.0:
        ring[RING_BINNING] -= 1.0
        if ring[RING_COLUMN] >= d:
            ring[RING_COLUMN] = 0.0
        ring_bin(ring, int(ring[RING_COLUMN]))
        ring[RING_COLUMN] += 1.0


@kernel
def boosted_save(block: Array) -> None:
    """Save up work for the next tree, the same for each record."""
    if block[BOOSTED_KEPT] >= _BEGIN:
        block[BOOSTED_CREDIT] += _WORK


@kernel
def boosted_due(ring: Array, block: Array) -> bool:
    """Whether there is enough work saved up for a tree of the block.

    Classes that came with different records have their trees rebuilt with different ones.
    """
    kept = block[BOOSTED_KEPT]
    return bool(kept >= _BEGIN and block[BOOSTED_CREDIT] >= boosted_cost(int(kept), int(ring[RING_D])))


@kernel
def boosted_means(block: Array, width: int, rows: int, tree: int, means: Array) -> None:
    """Value of each node of a tree (127,): the mean of its children; without a split the left one's."""
    at_marks, at_columns, at_values, _, _, _, _, _, _ = boosted_places(width, rows)
    columns = viewed_as(block[at_columns:at_values], np.int16)
    for leaf in range(LEAVES):
        means[INNER + leaf] = block[at_values + LEAVES * tree + leaf]
    for node in range(INNER - 1, -1, -1):
        place = LEAVES * tree + node
        means[node] = means[2 * node + 1]
        if columns[place] < 0 or block[at_marks + place] < math.inf:
            means[node] = 0.5 * (means[2 * node + 1] + means[2 * node + 2])


@kernel
def boosted_average(ring: Array, block: Array, means: Array, leaves: Bits, built: float) -> None:
    """Bring the means of all nodes (50 * 127,) up to date, once one record was learned.

    Parameters
    ----------
    means
        As of `boosted_means`, tree by tree.
    leaves
        The leaves (50,) of the record: the means above them are computed again, and those of a new tree.
    built
        How many trees had been built before it; -1: all are to be computed.
    """
    width, rows = int(ring[RING_WIDTH]), int(ring[RING_ROWS])
    at_marks, at_columns, at_values, _, _, _, _, _, _ = boosted_places(width, rows)
    columns = viewed_as(block[at_columns:at_values], np.int16)
    more = block[BOOSTED_BUILT] - built
    some = built >= 0.0 and block[BOOSTED_SINCE] > 0.0  # 0: it has begun again
    newest = (int(block[BOOSTED_TREE]) + BOOSTED_TREES - 1) % BOOSTED_TREES if more > 0.0 else -1
    for t in range(BOOSTED_TREES):
        first = (INNER + LEAVES) * t
        if not some or t == newest:
            boosted_means(block, width, rows, t, means[first : first + INNER + LEAVES])
            continue
        node = INNER + leaves[t]
        means[first + node] = block[at_values + LEAVES * t + leaves[t]]
        while node > 0:
            node = (node - 1) // 2
            place, child = LEAVES * t + node, first + 2 * node + 1
            means[first + node] = means[child]
            if columns[place] < 0 or block[at_marks + place] < math.inf:
                means[first + node] = 0.5 * (means[child] + means[child + 1])


@kernel
def boosted_hand(ring: Array, block: Array, out: Bits) -> None:
    """Copy the leaves at hand (50,)."""
    _, _, _, _, _, _, at_hand, at_leaves, _ = boosted_places(int(ring[RING_WIDTH]), int(ring[RING_ROWS]))
    hand = viewed_as(block[at_hand:at_leaves], np.int64)
    for t in range(BOOSTED_TREES):
        out[t] = hand[t]


@kernel
def boosted_explain(ring: Array, block: Array, share: float, means: Array, out: Array) -> None:
    """Add a share of the parts of the score of the record whose leaves are at hand, by column, and of none.

    Down a path the part of a column is how much the mean below changes where it decides: `means` are those of
    `boosted_average`.
    """
    width, rows = int(ring[RING_WIDTH]), int(ring[RING_ROWS])
    _, at_columns, at_values, _, _, _, at_hand, at_leaves, _ = boosted_places(width, rows)
    columns, hand = (
        viewed_as(block[at_columns:at_values], np.int16),
        viewed_as(block[at_hand:at_leaves], np.int64),
    )
    out[-1] += share * block[BOOSTED_BIAS]
    for t in range(BOOSTED_TREES):
        first = (INNER + LEAVES) * t
        out[-1] += share * means[first]
        node = INNER + hand[t]
        while node > 0:
            parent = (node - 1) // 2
            column = columns[LEAVES * t + parent]
            out[column if column >= 0 else ~column] += share * (means[first + node] - means[first + parent])
            node = parent


@kernel
def boosted_importances(ring: Array, block: Array, share: float, out: Array) -> None:
    """Add a share of the importance of each column (d,): its splits, by the difference of the means below.

    A split counts half as much at each level.
    """
    width, rows = int(ring[RING_WIDTH]), int(ring[RING_ROWS])
    at_marks, at_columns, at_values, _, _, _, _, _, _ = boosted_places(width, rows)
    columns = viewed_as(block[at_columns:at_values], np.int16)
    means, parts = np.empty(INNER + LEAVES), np.empty(INNER + LEAVES)
    for t in range(BOOSTED_TREES):
        boosted_means(block, width, rows, t, means)
        parts[0] = share
        for node in range(INNER):
            place, child = LEAVES * t + node, 2 * node + 1
            column = columns[place]
            if column < 0 or block[at_marks + place] < math.inf:
                out[column if column >= 0 else ~column] += parts[node] * abs(means[child + 1] - means[child])
                parts[child] = parts[child + 1] = 0.5 * parts[node]
            else:
                parts[child], parts[child + 1] = parts[node], 0.0
