"""Data-independent random trees: leaf assignment, leaf counts, and statistics of noisy leaf sums.

A standardised value z is mapped to `u = 1/2 + z / (2 sqrt(2 s^2 + z^2))`, in (0, 1): increasing, and computed
by + - * / and roots alone, so that a record is in the same leaf on every processor. A tree is complete; its
nodes are numbered from the root, 1, and the children of i are 2 i and 2 i + 1. Each node splits its part of
the cube at a uniform place of a random column, drawn from public coins and public numbers, independently of
all records. The columns that are the categories of one field are split as one: a hash sends each category to
the left or to the right.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.numerics import exp_negative, log_positive, uniform
from streampair.kernels.vectors import MAX_FINITE

SCALE2 = 0.98  # 2 s^2, s = .7: half of a normal's values are within half of the range
COIN = 0x57A7  # public, the same for all: lanes of one stream can be merged
ROWS = 1024  # synthetic rows of a block
SALTS = 8  # hashes that a node may split categories by, and fields that it may try


@kernel
def tree_splits(sizes: NDArray[np.int64], fields: NDArray[np.int64], cuts: Array) -> None:
    """Draw trees over fields of so many columns: the field and the cut of each node, (trees, nodes).

    Node 0 is none. A field of several columns has a category for each, and one for none of them: its cut is
    which of `SALTS` hashes distinguishes them.
    """
    nodes = fields.shape[1]
    for t in range(fields.shape[0]):
        for node in range(1, nodes):
            for attempt in range(SALTS):
                lane = 2 * node if attempt == 0 else 2 * nodes + SALTS * node + attempt
                f = min(int(uniform(COIN, t, lane) * len(sizes)), len(sizes) - 1)
                fields[t, node] = f
                if sizes[f] == 1:
                    low, high = 0.0, 1.0
                    below = node
                    while below > 1:
                        above = below // 2
                        if fields[t, above] == f:
                            if below % 2:
                                low = max(low, cuts[t, above])
                            else:
                                high = min(high, cuts[t, above])
                        below = above
                    cuts[t, node] = low + (high - low) * uniform(COIN, t, 2 * node + 1)
                    break
                if _choose_hash(t, node, sizes[f], fields, cuts):
                    break


@kernel
def _choose_hash(t: int, node: int, size: int, fields: NDArray[np.int64], cuts: Array) -> bool:
    """Choose the first hash that splits the categories which reach a node; False if there is none."""
    for salt in range(SALTS):
        cuts[t, node] = salt
        left = right = False
        for code in range(size + 1):
            below, reached = node, True
            while below > 1:
                above = below // 2
                if fields[t, above] == fields[t, node]:
                    reached = reached and _right(t, above, cuts[t, above], code) == (below % 2 == 1)
                below = above
            if reached:
                if _right(t, node, cuts[t, node], code):
                    right = True
                else:
                    left = True
        if left and right:
            return True
    return False


@kernel
def _right(t: int, node: int, salt: float, code: int) -> bool:
    """Whether a category goes to the right at a node of tree t."""
    return uniform(COIN + 1 + int(salt), t, (node << 16) + code) < 0.5


@kernel
def tree_leaves(
    places: Array,
    sizes: NDArray[np.int64],
    fields: NDArray[np.int64],
    cuts: Array,
    leaves: NDArray[np.int64],
) -> None:
    """The leaf (n, trees), from 0, that rows of places (n, fields) fall into: up to the cut to the left.

    Of a field of several columns the place is the number of its category. Where there is none, NaN, each node
    has a side for it by a hash.
    """
    trees, nodes = fields.shape
    numbers = True
    for f in range(len(sizes)):
        numbers = numbers and sizes[f] == 1
    for r in range(places.shape[0]):
        place, node = places[r], leaves[r]
        plain = numbers
        for f in range(len(sizes)):
            plain = plain and place[f] == place[f]
        node[:] = 1
        # A level of all trees at a time: no step waits for the one before.
        level = 1
        while level < nodes:
            if plain:
                for t in range(trees):
                    at = node[t]
                    node[t] = 2 * at + (1 if place[fields[t, at]] > cuts[t, at] else 0)
            else:
                for t in range(trees):
                    at = node[t]
                    f = fields[t, at]
                    node[t] = 2 * at + (1 if _turns_right(t, at, cuts[t, at], place[f], sizes[f]) else 0)
            level *= 2
        for t in range(trees):
            node[t] -= nodes


@kernel
def _turns_right(t: int, node: int, cut: float, place: float, size: int) -> bool:
    """Whether a place in a field of so many columns is to the right of a node of tree t."""
    if place != place:
        return _right(t, node, SALTS, 0)
    if size == 1:
        return place > cut
    return _right(t, node, cut, int(place))


@kernel
def tree_places(
    raw: Array,
    sizes: NDArray[np.int64],
    scaling: Array,
    cap: float,
    unit: float,
    places: Array,
) -> None:
    """Map raw rows (n, d), standardised as in `prepare_rows`, to (0, 1); NaN for a missing value.

    `unit` makes a standard deviation 1 of them. The place of a field of several columns, (n, fields), is the
    number of the first that is finite and above 0.5, and their number if none is.
    """
    scale, shift, mean, factor = scaling[0], scaling[1], scaling[2], scaling[3]
    for r in range(raw.shape[0]):
        i = 0
        for f in range(len(sizes)):
            if sizes[f] > 1:
                code = 0
                while code < sizes[f] and not 0.5 < raw[r, i + code] <= MAX_FINITE:
                    code += 1
                places[r, f] = code
                i += sizes[f]
                continue
            value = raw[r, i]
            if not abs(value) <= MAX_FINITE:
                places[r, f] = math.nan
            else:
                value = min(max(value, -1e100), 1e100) * scale[i] + shift[i]
                value = (min(max(value, -1.0), 1.0) - mean[i]) * factor[i]
                z = min(max(value, -cap), cap) * unit
                places[r, f] = 0.5 + 0.5 * z / math.sqrt(SCALE2 + z * z)
            i += 1


@kernel
def tree_marks(
    places: Array,
    sizes: NDArray[np.int64],
    fields: NDArray[np.int64],
    cuts: Array,
    bins: int,
    leaves: NDArray[np.int64],
    out: Array,
) -> None:
    """Behind the columns of out, (n, d + trees + fields), by places: each tree's leaf, then each field's bin.

    They are numbers of coordinates: d features, then the leaves of all trees, then the bins of all fields. A
    field of one column has so many bins, one of several a bin for each; -1 is no bin, of what is in none of
    its categories and of a number that is lost.
    """
    trees, size = fields.shape
    tree_leaves(places, sizes, fields, cuts, leaves)
    d = 0
    for f in range(len(sizes)):
        d += sizes[f]
    for r in range(places.shape[0]):
        for t in range(trees):
            out[r, d + t] = d + t * size + leaves[r, t]
        coordinate = d + trees * size
        for f in range(len(sizes)):
            place, bin_of = places[r, f], -1
            if sizes[f] > 1:
                if place < sizes[f]:
                    bin_of = coordinate + int(place)
                coordinate += sizes[f]
            else:
                if place == place:
                    bin_of = coordinate + min(int(place * bins), bins - 1)
                coordinate += bins
            out[r, d + trees + f] = bin_of


@kernel
def tree_sums(rows: Array, labels: Array, d: int, trees: int, leaves: int, sums: NDArray[np.int64]) -> None:
    """Count what rows mark: 1 for each leaf, then the sign of its label, 1 for each bin.

    rows (n, d + trees + fields) as `tree_marks` writes them; so many leaves in all. sums, from behind: counts
    of bins, before them labels of leaves, then counts of leaves, behind second moments. A row whose label is
    NaN is a null record, which adds 0.
    """
    first = d * (d + 1) // 2 + d
    for r in range(rows.shape[0]):
        if labels[r] != labels[r]:
            continue
        sign = 1 if labels[r] > 0.0 else -1
        row = rows[r]
        for j in range(d, d + trees):
            leaf = first + int(row[j]) - d
            sums[leaf] += 1
            sums[leaf + leaves] += sign
        for j in range(d + trees, rows.shape[1]):
            if row[j] >= 0.0:
                sums[first + leaves + int(row[j]) - d] += 1


@kernel
def tree_row_scores(w: Array, rows: Array, d: int, trees: int, out: Array) -> None:
    """Scores of rows as `tree_marks` writes them: weights w times d values, plus the weights of the leaves.

    The bits are those of `vectors.dot` of w and a row that has 1 at each of these leaves and 0 at all others:
    its four interleaved sums are never -0, so what is 0 changes none of them. Weights of bins are 0.
    """
    whole = len(w) - len(w) % 4
    sums = np.empty(4)
    for r in range(rows.shape[0]):
        row = rows[r]
        sums[:] = 0.0
        for i in range(d):
            sums[i % 4 if i < whole else 0] += w[i] * row[i]
        for j in range(d, d + trees):
            leaf = int(row[j])
            if leaf >= 0:
                sums[leaf % 4 if leaf < whole else 0] += w[leaf]
        out[r] = (sums[0] + sums[1]) + (sums[2] + sums[3])


@kernel
def tree_rake(
    leaves: NDArray[np.uint8], shares: Array, ridge: Array, sweeps: int, tilt: Array, weights: Array
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
            leaf = leaves[t]
            sums[:] = 0.0
            total = 0.0
            for r in range(n):
                sums[leaf[r]] += weights[r]
            for a in range(size):
                total += sums[a]
            for a in range(size):
                p = sums[a] / total
                step = (shares[t, a] - p - ridge[t] * tilt[t, a]) / (p + ridge[t])
                step = min(max(step, -1.0), 1.0)
                tilt[t, a] += step
                factor[a] = (exp_negative(-step) if step < 0.0 else 1.0 / exp_negative(step)) / total
            for r in range(n):
                weights[r] *= factor[leaf[r]]
    total = 0.0
    for r in range(n):
        total += weights[r]
    for r in range(n):
        weights[r] /= total


@kernel
def tree_scores(leaves: NDArray[np.uint8], v: Array, scores: Array) -> None:
    """Sum of the values v (trees, leaves) of each row's leaves, (n,); leaves (trees, n)."""
    trees, n = leaves.shape
    whole = trees - trees % 4
    scores[:] = 0.0
    # Rows in blocks: their sums stay in the fastest cache while all trees are added, four at a time.
    for start in range(0, n, ROWS):
        stop = min(start + ROWS, n)
        for t in range(0, whole, 4):
            a, b, c, d = v[t], v[t + 1], v[t + 2], v[t + 3]
            at_a, at_b, at_c, at_d = leaves[t], leaves[t + 1], leaves[t + 2], leaves[t + 3]
            for r in range(start, stop):
                scores[r] = (((scores[r] + a[at_a[r]]) + b[at_b[r]]) + c[at_c[r]]) + d[at_d[r]]
        for t in range(whole, trees):
            a, at_a = v[t], leaves[t]
            for r in range(start, stop):
                scores[r] += a[at_a[r]]


@kernel
def tree_totals(leaves: NDArray[np.uint8], values: Array, out: Array) -> None:
    """Sums of the values (n,) of the rows in each leaf, (trees, leaves); leaves (trees, n)."""
    trees, n = leaves.shape
    whole = trees - trees % 4
    out[:, :] = 0.0
    # Four trees at a time: a sum that was just changed is not read again at once.
    for t in range(0, whole, 4):
        a, b, c, d = out[t], out[t + 1], out[t + 2], out[t + 3]
        at_a, at_b, at_c, at_d = leaves[t], leaves[t + 1], leaves[t + 2], leaves[t + 3]
        for r in range(n):
            value = values[r]
            a[at_a[r]] += value
            b[at_b[r]] += value
            c[at_c[r]] += value
            d[at_d[r]] += value
    for t in range(whole, trees):
        a, at_a = out[t], leaves[t]
        for r in range(n):
            a[at_a[r]] += values[r]


@kernel
def logistic_terms(half: Array, wanted: Array, weights: Array, gradient: Array, curvature: Array) -> float:
    """Logistic loss of half log-odds (n,) for wanted means (n,) of labels 1 and -1, weighted.

    Returns the sum of `w (log(2 cosh h) - m h)`; stores minus its derivative by h, and its second derivative.
    """
    loss = 0.0
    for r in range(half.shape[0]):
        h, w = half[r], weights[r]
        e = exp_negative(2.0 * abs(h))
        mean = math.copysign((1.0 - e) / (1.0 + e), h)
        loss += w * (abs(h) + log_positive(1.0 + e) - wanted[r] * h)
        gradient[r] = w * (wanted[r] - mean)
        curvature[r] = w * (1.0 - mean * mean)
    return loss
