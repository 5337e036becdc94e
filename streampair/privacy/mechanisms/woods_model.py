"""Weights of leaves from their noisy sums: post-processing of releases, so free (docs/privacy.md 10.10).

Leaves of different trees overlap, and how much they do was not released: it would be millions of counts. So
rows are made up that have the released correlations (a Gaussian copula), the released marginals (histograms)
and, weighed by maximum entropy, the released leaf counts. What they say of the overlap makes the weights a
ridge regression on all leaves at once, of what the linear score leaves of the labels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streampair import kernels
from streampair.records.woods import BINS, CAP, Trees

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Told", "forest_of", "weights_of"]

_SEED = 0x57A8  # of the made-up rows: public, and the same each time
# Share of the variance of the labels that all leaves together may explain, as a prior: .3 for few columns,
# 350 / d^2 for many. What leaves tell beside a linear score is of pairs of columns, and of all pairs splits
# that are drawn at random meet the fewer the more there are.
_TAU = (0.3, 350.0)
_RIDGE = 10_000.0  # records that the made-up rows count for against the released counts
_SWEEPS = 10
_SEEN = 2.0  # standard deviations of noise, from where on a bin is not empty
_STEPS = 40  # of conjugate gradients
_AGREE = 0.1  # of the mean of the made-up rows' variances: how far weights stay as they are
_WIDTH = 0.98  # as in the kernel of the places


class Told(NamedTuple):
    """What the releases say: shares of all records.

    Parameters
    ----------
    counts, signs
        Of each leaf, and of its labels 1 and -1, (trees, leaves).
    bins, bins_std
        Of each column's bins, (d, bins), and the noise in them.
    centre
        Mean of the labels.
    std
        Of the noise in a cell of `counts` and `signs`.
    second
        Mean of x x' of the linear vectors, (d, d).
    records
        How many there were, about.
    """

    counts: Floats
    signs: Floats
    bins: Floats
    bins_std: float
    centre: float
    std: float
    second: Floats
    records: float


def _total(values: Floats) -> float:
    return float(kernels.dot(values, np.ones(len(values))))


def _made_up(told: Told, rows: int) -> Floats:
    """Places (rows, d) with the released correlations and marginals."""
    d = len(told.second)
    root = np.empty((d, d))
    kernels.psd_root(told.second, root)
    normals = np.empty(rows * d)
    kernels.normals_from_seed(_SEED, normals)
    normal = normals.reshape(rows, d)
    middle = (np.arange(rows) + 0.5) / rows
    places = np.empty((rows, d))
    value = np.empty(rows)
    for j in range(d):
        kernels.score_many(np.ascontiguousarray(root[j]), normal, value)
        order = np.argsort(value, kind="stable")
        # Of bins without a record noise would make rows where there are none.
        shares = np.where(told.bins[j] > _SEEN * told.bins_std, told.bins[j], 0.0)
        if not _total(shares) > 0.0:
            shares = np.ones(BINS)
        below = np.concatenate(([0.0], np.cumsum(shares)))
        below /= below[-1]
        at = np.minimum(np.searchsorted(below, middle, side="right"), BINS) - 1
        width = np.maximum(below[at + 1] - below[at], 1e-300)
        places[order, j] = (at + np.minimum((middle - below[at]) / width, 1.0)) / BINS
    return places


def _vectors(places: Floats, cap: float) -> Floats:
    """Linear vectors of places: back to standardised values, then into the unit ball."""
    v = 2.0 * places - 1.0
    z = np.clip(math.sqrt(_WIDTH) * v / np.sqrt(np.maximum(1.0 - v * v, 1e-6)), -CAP, CAP)
    x = (cap / CAP) * z
    squares = np.empty(len(x))
    kernels.score_many(np.ones(x.shape[1]), x * x, squares)
    out: Floats = x / np.maximum(np.sqrt(squares), 1.0)[:, None]
    return out


def _linear(x: Floats, weights: Floats, told: Told, linear: Floats) -> Floats:
    """The linear score on rows that were made up: it goes with their vectors as it did with the records'.

    Made-up rows of categories have less correlation than there was. With the weights as they are leaves would
    learn the difference; so those are taken that solve `X'W X c = E[x x'] linear`, nearly, by conjugate
    gradients from the ones there are.
    """
    rows, d = x.shape
    columns = np.ascontiguousarray(x.T)
    shown, out, wanted = np.empty(rows), np.empty(d), np.empty(d)

    def times(v: Floats) -> Floats:
        kernels.score_many(v, x, shown)
        kernels.score_many(weights * shown, columns, out)
        return out + ridge * v

    ridge = 0.0
    kernels.score_many(weights, columns * columns, out)
    ridge = _AGREE * _total(out) / d
    kernels.score_many(linear, told.second, wanted)
    c = linear.copy()
    r = wanted + ridge * linear - times(c)
    p = r.copy()
    square = first = float(kernels.dot(r, r))
    for _ in range(_STEPS):
        if not square > 1e-10 * first:
            break
        q = times(p)
        step = square / float(kernels.dot(p, q))
        c += step * p
        r -= step * q
        new = float(kernels.dot(r, r))
        p = r + (new / square) * p
        square = new
    scores = np.empty(rows)
    kernels.score_many(c, x, scores)
    return scores


def forest_of(told: Told, linear: Floats, cap: float, trees: Trees, rows: int) -> tuple[Floats, float]:
    """Weights (trees, leaves), and the variance of the whole score.

    Parameters
    ----------
    told
        What was released.
    linear
        Weights of the linear vector, for scores in units of the labels.
    cap
        Where a linear vector's coordinates end.
    trees
        The trees.
    rows
        How many to make up.
    """
    places = _made_up(told, rows)
    leaves = np.ascontiguousarray(trees.leaves(places).T)
    count, size = told.counts.shape
    weights = np.full(rows, 1.0 / rows)
    ridge = np.full(count, _RIDGE * told.std * told.std)
    kernels.wood_rake(leaves, told.counts, ridge, _SWEEPS, np.zeros((count, size)), weights)
    scores = _linear(_vectors(places, cap), weights, told, linear)
    return weights_of(told, scores, leaves, weights)


def weights_of(
    told: Told, scores: Floats, leaves: NDArray[np.int64], weights: Floats
) -> tuple[Floats, float]:
    """Ridge regression of what scores leave of the labels, on leaves whose overlap is that of weighted rows.

    Parameters
    ----------
    told
        What was released.
    scores
        The linear score of the rows, (n,).
    leaves
        Which one a row is in, (trees, n).
    weights
        Of the rows, (n,); they add up to 1.
    """
    count, size = told.counts.shape
    shown = np.empty(len(weights))
    scores = scores - float(kernels.dot(weights, scores))
    left = told.signs - told.centre * told.counts
    # `Phi' W f` is the Gram matrix's kernel on scores that are there already.
    apart, again = np.empty((count, size)), np.empty((count, size))
    _spread_out(leaves, weights * scores, apart)
    left = left - apart
    variance = 1.0 - told.centre * told.centre
    noise = told.std * told.std * (1.0 + told.centre * told.centre)
    most, spread = _TAU
    prior = min(most, spread / len(told.second) ** 2) * variance / count
    records = variance / told.records

    def dot(a: Floats, b: Floats) -> float:
        return float(kernels.dot(a.ravel(), b.ravel()))

    x, r = np.zeros((count, size)), left.copy()
    p = r.copy()
    square = first = dot(r, r)
    for _ in range(_STEPS):
        if not square > 1e-10 * first:
            break
        kernels.wood_gram(leaves, weights, p, shown, apart)
        kernels.wood_gram(leaves, weights, apart, shown, again)
        q = prior * again + records * apart + noise * p
        step = square / dot(p, q)
        x += step * p
        r -= step * q
        new = dot(r, r)
        p = r + (new / square) * p
        square = new
    kernels.wood_gram(leaves, weights, x, shown, apart)
    w = prior * apart
    kernels.wood_gram(leaves, weights, w, shown, apart)
    whole = scores + shown / np.maximum(weights, 1e-300)
    mean = float(kernels.dot(weights, whole))
    return w, float(kernels.dot(weights * (whole - mean), whole - mean))


def _spread_out(leaves: NDArray[np.int64], values: Floats, out: Floats) -> None:
    """Sums of values (n,) by leaf, (trees, leaves)."""
    for t in range(len(leaves)):
        out[t] = np.bincount(leaves[t], weights=values, minlength=out.shape[1])
