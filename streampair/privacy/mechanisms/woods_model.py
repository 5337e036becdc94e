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
from streampair.privacy.mechanisms.link import Link, rate_link
from streampair.records.woods import BINS, CAP, Trees

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Fitted", "Told", "forest_of", "half_odds", "weights_of"]

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
_PROBES = 3  # draws of noise: they tell its part within some hundredths
_MOST_SHARE = 1.5  # of the ridge regression's weights: its prior is narrow
_STEEPEST = 20.0  # half log-odds in a standard deviation of a score
_NEWTON = 50
_FARTHEST, _HALVES = 50.0, 50  # log-odds of a rate
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


class Fitted(NamedTuple):
    """A model, `factor x.linear + phi.leaves`, in log-odds or nearly so.

    Parameters
    ----------
    factor
        Of the linear score.
    leaves
        Weights of the leaves, (trees, leaves).
    link
        From a score to a probability.
    """

    factor: float
    leaves: Floats
    link: Link


def forest_of(told: Told, linear: Floats, cap: float, trees: Trees, rows: int) -> Fitted:
    """The model that the releases describe.

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


def half_odds(scores: Floats, weights: Floats, centre: float) -> tuple[float, float]:
    """(a, b) with which labels 1 and -1 have the mean `tanh(a s + b)`: a logistic regression on one score.

    It needs no labels, but their mean and that of `s y`, which is that of `s s`, for s is a regression of the
    labels: `E[tanh] = centre, E[s tanh] = E[s s]`.

    Parameters
    ----------
    scores, weights
        Of rows, (n,): the scores have the mean 0, the weights add up to 1.
    centre
        Mean of the labels.
    """
    square = float(kernels.dot(weights * scores, scores))
    start = 0.5 * rate_link(0.5 * (1.0 + centre)).offset
    if not square > 0.0:
        return 0.0, start
    most = _STEEPEST / math.sqrt(square)
    a, b = min(1.0 / (1.0 - centre * centre), most), start
    means = np.empty(len(scores))
    for _ in range(_NEWTON):
        kernels.sigmoid_many(2.0 * (a * scores + b), means)
        means = 2.0 * means - 1.0
        bent = weights * (1.0 - means * means)
        left = square - float(kernels.dot(weights * scores, means))
        rest = centre - float(kernels.dot(weights, means))
        ss, s1 = float(kernels.dot(bent * scores, scores)), float(kernels.dot(bent, scores))
        one = _total(bent)
        # Where all is as sure as can be there is nothing left to move.
        over = ss * one - s1 * s1
        if not over > 1e-12 * square:
            break
        da, db = (one * left - s1 * rest) / over, (ss * rest - s1 * left) / over
        # No step is longer than twice the slope, or two of the half log-odds.
        short = min(1.0, 2.0 * a / abs(da) if da else 1.0, 2.0 / abs(db) if db else 1.0)
        a, b = min(max(a + short * da, 0.1 * a), most), b + short * db
        if abs(da) <= 1e-9 * a and abs(db) <= 1e-9:
            break
    return a, b


def weights_of(told: Told, scores: Floats, leaves: NDArray[np.int64], weights: Floats) -> Fitted:
    """Ridge regression of what scores leave of the labels, on leaves whose overlap is that of weighted rows.

    Scores leave `y - tanh(a s + b)`: a straight line through labels 1 and -1 would leave a bend that every
    linear class has, which leaves would learn, and which ranks nothing.

    The weights are multiplied by what makes the risk least (Stein 1981): of noise alone they would have
    `e'A e` with the labels, of which some draws of e tell the mean. So leaves fade where they tell nothing.

    Parameters
    ----------
    told
        What was released.
    scores
        The linear score of the rows, (n,), in units of the labels.
    leaves
        Which one a row is in, (trees, n).
    weights
        Of the rows, (n,); they add up to 1.
    """
    scores = scores - float(kernels.dot(weights, scores))
    variance = 1.0 - told.centre * told.centre
    a, b = half_odds(scores, weights, told.centre)
    means = np.empty(len(weights))
    kernels.sigmoid_many(2.0 * (a * scores + b), means)
    left = np.empty(told.counts.shape)
    _spread_out(leaves, weights * (2.0 * means - 1.0 - told.centre), left)
    left = told.signs - told.centre * told.counts - left
    ridge = _Ridge(told, leaves, weights)
    w = ridge.solve(left)
    shown, again = ridge.gram(w)
    of_noise = ridge.noise()
    length = _dot(w, again)
    share = min(max((_dot(w, left) - of_noise) / length, 0.0), _MOST_SHARE) if length > 0.0 else 0.0
    # Weights of leaves are means of labels: of log-odds they are `2 / variance`, near those of the rate.
    w *= 2.0 * share / variance
    whole = 2.0 * a * scores + (2.0 * share / variance) * (shown / np.maximum(weights, 1e-300))
    return Fitted(2.0 * a, w, Link(1.0, _offset(whole, weights, told.centre)))


def _offset(scores: Floats, weights: Floats, centre: float) -> float:
    """What to add to log-odds (n,) so that the labels have the mean `centre`: by halving an interval."""
    means = np.empty(len(scores))
    low, high = -_FARTHEST, _FARTHEST
    for _ in range(_HALVES):
        middle = 0.5 * (low + high)
        kernels.sigmoid_many(scores + middle, means)
        if 2.0 * float(kernels.dot(weights, means)) - 1.0 < centre:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


class _Ridge:
    """`prior G (prior G^2 + G v / n + noise)^-1 r`, G being the Gram matrix of leaves over weighted rows."""

    def __init__(self, told: Told, leaves: NDArray[np.int64], weights: Floats) -> None:
        self.leaves, self.weights, self.shape = leaves, weights, told.counts.shape
        variance = 1.0 - told.centre * told.centre
        self.left = told.std * told.std * (1.0 + told.centre * told.centre)
        most, spread = _TAU
        self.prior = min(most, spread / len(told.second) ** 2) * variance / self.shape[0]
        self.records = variance / told.records

    def gram(self, v: Floats) -> tuple[Floats, Floats]:
        """`W Phi v`, (n,), and `G v`."""
        shown, out = np.empty(len(self.weights)), np.empty(self.shape)
        kernels.wood_gram(self.leaves, self.weights, v, shown, out)
        return shown, out

    def solve(self, r: Floats, near: float = 1e-10) -> Floats:
        """By conjugate gradients, until the residual's square is `near` of what it was."""
        x, r = np.zeros(self.shape), r.copy()
        p = r.copy()
        square = first = _dot(r, r)
        for _ in range(_STEPS):
            if not square > near * first:
                break
            one = self.gram(p)[1]
            q = self.prior * self.gram(one)[1] + self.records * one + self.left * p
            step = square / _dot(p, q)
            x += step * p
            r -= step * q
            new = _dot(r, r)
            p = r + (new / square) * p
            square = new
        out: Floats = self.prior * self.gram(x)[1]
        return out

    def noise(self) -> float:
        """Mean of `e' solve(e)`, e being what noise and chance put into the leaves' sums: by public draws."""
        size = self.shape[0] * self.shape[1]
        drawn = np.empty(size + len(self.weights))
        total = 0.0
        for probe in range(_PROBES):
            kernels.normals_from_seed(_SEED + 1 + probe, drawn)
            e = np.empty(self.shape)
            _spread_out(self.leaves, np.sqrt(self.records * self.weights) * drawn[size:], e)
            e += math.sqrt(self.left) * drawn[:size].reshape(self.shape)
            total += _dot(e, self.solve(e, 1e-4))
        return total / _PROBES


def _dot(a: Floats, b: Floats) -> float:
    return float(kernels.dot(a.ravel(), b.ravel()))


def _spread_out(leaves: NDArray[np.int64], values: Floats, out: Floats) -> None:
    """Sums of values (n,) by leaf, (trees, leaves)."""
    for t in range(len(leaves)):
        out[t] = np.bincount(leaves[t], weights=values, minlength=out.shape[1])
