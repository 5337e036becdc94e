"""Synthetic rows sampled from released statistics, to estimate how leaves overlap (docs/privacy 10.10).

They have the released correlations (a Gaussian copula), the released marginals and, reweighted by maximum
entropy, the released counts of leaves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streampair.kernels import random, random_trees, symmetric, vectors
from streampair.records.random_trees import BINS, CAP, Trees

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["SEED", "ReleasedStatistics", "SyntheticRows", "dot", "synthetic_rows"]

SEED = 0x57A8  # of the synthetic rows: public and fixed
# Weights of the entropy against the released counts, as numbers of records. They fall until the misfit is at
# most so many times the noise (discrepancy principle, Morozov 1966), or a few rows would have all the weight.
_RIDGES = (30_000.0, 10_000.0, 3_000.0, 1_000.0, 300.0, 100.0)
# Tried where already the first leaves too few rows, as little noise does.
_LARGER = tuple(step * 10.0**decade for decade in range(5, 11) for step in (1.0, 3.0))
_MAX_MISFIT = 1.1
# Fewest effective rows, `1 / sum w^2`: a share of all, or so many, but never more than a quarter.
_MIN_ROW_SHARE, _MIN_ROWS, _MOST_ROW_SHARE = 1.0 / 16.0, 1024.0, 0.25
_SWEEPS = 10
_SIGNIFICANT = 2.0  # standard deviations of noise that a count exceeds unless its bin is taken as empty
_STEPS = 40  # of conjugate gradients
_CG_RIDGE = 0.1  # ridge towards the given weights, as a share of the rows' mean variance
_WIDTH = 0.98  # as in the kernel that computes places


class ReleasedStatistics(NamedTuple):
    """Released statistics, as shares of all records.

    Parameters
    ----------
    counts, signs
        Share of each leaf, and of its labels 1 and -1, (trees, leaves).
    bins, bins_std
        Shares of all fields' bins, one field after the other, and the std of their noise.
    centre
        Mean of the labels.
    std
        Std of the noise in a cell of `counts` and `signs`.
    second
        Mean of x x' of the linear vectors, (d, d).
    ends
        Values of a linear vector's columns for raw 0 and for raw 1, (2, d).
    records
        Approximate number of records.
    """

    counts: Floats
    signs: Floats
    bins: Floats
    bins_std: float
    centre: float
    std: float
    second: Floats
    ends: Floats
    records: float


class SyntheticRows(NamedTuple):
    """Synthetic rows that represent the records.

    Parameters
    ----------
    leaves
        Leaf of each row, (trees, n).
    weights
        (n,): they add up to 1.
    scores
        The linear score, (n,), in units of the labels.
    """

    leaves: NDArray[np.uint8]
    weights: Floats
    scores: Floats


def _total(values: Floats) -> float:
    return float(vectors.dot(values, np.ones(len(values))))


def dot(a: Floats, b: Floats) -> float:
    """Sum of the products of all entries, in one order on every processor."""
    return float(vectors.dot(a.ravel(), b.ravel()))


def _copula_sample(
    released: ReleasedStatistics, trees: Trees, cap: float, rows: int
) -> tuple[Floats, Floats]:
    """Sample places (rows, fields) and linear vectors (rows, d) from a Gaussian copula of the releases."""
    sizes, d = trees.sizes.tolist(), len(released.second)
    root = np.empty((d, d))
    symmetric.psd_root(released.second, root)
    normals = np.empty(rows * d)
    random.normals_from_seed(SEED, normals)
    normal = normals.reshape(rows, d)
    places, x = np.empty((rows, len(sizes))), np.empty((rows, d))
    value = np.empty(rows)
    column = first_bin = 0
    # Without the threshold, noise would put rows into empty bins.
    seen = np.where(released.bins > _SIGNIFICANT * released.bins_std, released.bins, 0.0)
    for f, size in enumerate(sizes):
        if size == 1:
            vectors.score_many(np.ascontiguousarray(root[column]), normal, value)
            places[:, f] = _marginal_places(value, seen[first_bin : first_bin + BINS])
            v = 2.0 * places[:, f] - 1.0
            z = np.clip(math.sqrt(_WIDTH) * v / np.sqrt(np.maximum(1.0 - v * v, 1e-6)), -CAP, CAP)
            x[:, column] = (cap / CAP) * z
            first_bin += BINS
        else:
            values = np.empty((size, rows))
            for code in range(size):
                vectors.score_many(np.ascontiguousarray(root[column + code]), normal, values[code])
            codes = _categories(values, seen[first_bin : first_bin + size])
            places[:, f] = codes
            for j in range(size):
                x[:, column + j] = np.where(
                    codes == j, released.ends[1, column + j], released.ends[0, column + j]
                )
            first_bin += size
        column += size
    squares = np.empty(rows)
    vectors.score_many(np.ones(d), x * x, squares)
    return places, x / np.maximum(np.sqrt(squares), 1.0)[:, None]


def _marginal_places(value: Floats, shares: Floats) -> Floats:
    """Places in (0, 1), in the order of values (rows,), with the given shares of bins."""
    rows = len(value)
    if not _total(shares) > 0.0:
        shares = np.ones(BINS)
    below = np.concatenate(([0.0], np.cumsum(shares)))
    below /= below[-1]
    middle = (np.arange(rows) + 0.5) / rows
    bins = np.minimum(np.searchsorted(below, middle, side="right"), BINS) - 1
    width = np.maximum(below[bins + 1] - below[bins], 1e-300)
    places = np.empty(rows)
    places[np.argsort(value, kind="stable")] = (bins + np.minimum((middle - below[bins]) / width, 1.0)) / BINS
    return places


def _categories(values: Floats, shares: Floats) -> NDArray[np.int64]:
    """A category for each row from values (categories, rows), with the given shares, the rarest first.

    Each category takes the remaining rows with its highest values. Rows left over have no category.
    """
    size, rows = values.shape
    out = np.full(rows, size)
    free = np.ones(rows, dtype=bool)
    most = max(_total(shares), 1.0)
    for code in np.argsort(shares, kind="stable").tolist():
        count = min(int(shares[code] / most * rows + 0.5), int(np.count_nonzero(free)))
        taken = np.argsort(np.where(free, -values[code], math.inf), kind="stable")[:count]
        out[taken] = code
        free[taken] = False
    return out


def _linear_scores(x: Floats, weights: Floats, released: ReleasedStatistics, linear: Floats) -> Floats:
    """Linear scores of synthetic rows, with the covariance to their vectors that the records had.

    Synthetic categories have weaker correlations than the records. With the given weights the leaves would
    learn the difference, so the scores use weights c that solve `X'W X c = E[x x'] linear` approximately, by
    conjugate gradients from the given ones.
    """
    rows, d = x.shape
    columns = np.ascontiguousarray(x.T)
    products, out, wanted = np.empty(rows), np.empty(d), np.empty(d)

    def times(v: Floats) -> Floats:
        vectors.score_many(v, x, products)
        vectors.score_many(weights * products, columns, out)
        return out + ridge * v

    ridge = 0.0
    vectors.score_many(weights, columns * columns, out)
    ridge = _CG_RIDGE * _total(out) / d
    vectors.score_many(linear, released.second, wanted)
    c = linear.copy()
    r = wanted + ridge * linear - times(c)
    p = r.copy()
    square = first = dot(r, r)
    for _ in range(_STEPS):
        if not square > 1e-10 * first:
            break
        q = times(p)
        step = square / dot(p, q)
        c += step * p
        r -= step * q
        new = dot(r, r)
        p = r + (new / square) * p
        square = new
    scores = np.empty(rows)
    vectors.score_many(c, x, scores)
    return scores


def _raked_weights(released: ReleasedStatistics, leaves: NDArray[np.uint8]) -> Floats:
    """Weights of rows (trees, n) that match the released leaf counts up to their noise (raking)."""
    count, size = released.counts.shape
    rows = leaves.shape[1]
    noise, found = released.std * released.std, np.empty((count, size))
    fewest = max(_MIN_ROW_SHARE * rows, min(_MIN_ROWS, _MOST_ROW_SHARE * rows))

    def raked(ridge: float) -> Floats:
        weights = np.full(rows, 1.0 / rows)
        ridges = np.full(count, ridge * noise)
        random_trees.tree_rake(leaves, released.counts, ridges, _SWEEPS, np.zeros((count, size)), weights)
        return weights

    def enough(weights: Floats) -> bool:
        return bool(fewest * dot(weights, weights) <= 1.0)

    kept = raked(_RIDGES[0])
    if not enough(kept):
        for ridge in _LARGER:
            kept = raked(ridge)
            if enough(kept):
                break
        return kept
    for ridge in _RIDGES[1:]:
        random_trees.tree_totals(leaves, kept, found)
        apart = found - released.counts
        if dot(apart, apart) <= _MAX_MISFIT * noise * found.size:
            break
        weights = raked(ridge)
        if not enough(weights):
            break
        kept = weights
    return kept


def synthetic_rows(
    released: ReleasedStatistics, linear: Floats, cap: float, trees: Trees, rows: int
) -> SyntheticRows:
    """Sample synthetic rows and weight them.

    Parameters
    ----------
    released
        Released statistics.
    linear
        Weights of the linear vector, for scores in units of the labels.
    cap
        Bound of a linear vector's coordinates.
    trees
        The trees.
    rows
        Number of rows.
    """
    places, x = _copula_sample(released, trees, cap, rows)
    leaves = trees.leaves(places).T.astype(np.uint8, order="C")
    weights = _raked_weights(released, leaves)
    return SyntheticRows(leaves, weights, _linear_scores(x, weights, released, linear))
