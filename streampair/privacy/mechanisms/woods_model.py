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
from streampair.privacy.mechanisms.woods_rows import SEED, Told, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.records.woods import Trees

    Floats = NDArray[np.float64]

__all__ = ["Fitted", "forest_of", "half_odds", "weights_of"]

# Share of the variance of the labels that all leaves together may explain, as a prior: .3 for few columns,
# 350 / d^2 for many. What leaves tell beside a linear score is of pairs of columns, and of all pairs splits
# that are drawn at random meet the fewer the more there are.
_TAU = (0.3, 350.0)
_STEPS = 40  # of conjugate gradients, at most
_NEAR, _ROUGHLY = 1e-10, 1e-3  # shares of the square of a residual, where they end
_PROBES = 2  # draws of noise: they tell its part within some hundredths
_MOST_SHARE = 1.25  # of the ridge regression's weights: its prior is narrow
_STEEPEST = 20.0  # half log-odds in a standard deviation of a score
_NEWTON = 50
_FARTHEST, _HALVES = 50.0, 50  # log-odds of a rate


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
    leaves, weights, scores = rows_of(told, linear, cap, trees, rows)
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
        one = float(kernels.dot(bent, np.ones(len(bent))))
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
    # What the labels leave, and what noise and chance may put into the leaves' sums.
    given = np.concatenate((left[None], ridge.drawn()))
    solved = ridge.solve(given)
    shown, again = ridge.gram(solved[:1])
    w = solved[0]
    of_noise = sum(_dot(e, told_so) for e, told_so in zip(given[1:], solved[1:], strict=True)) / _PROBES
    length = _dot(w, again[0])
    share = min(max((_dot(w, left) - of_noise) / length, 0.0), _MOST_SHARE) if length > 0.0 else 0.0
    # Weights of leaves are means of labels: of log-odds they are `2 / variance`, near those of the rate.
    w *= 2.0 * share / variance
    whole = 2.0 * a * scores + (2.0 * share / variance) * (shown[:, 0] / np.maximum(weights, 1e-300))
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
        """`W Phi v`, (n, k), and `G v`, of several v, (k, trees, leaves)."""
        shown, out = np.empty((len(self.weights), len(v))), np.empty(v.shape)
        kernels.wood_gram(self.leaves, self.weights, v, shown, out)
        return shown, out

    def solve(self, given: Floats) -> Floats:
        """Of several r, (k, trees, leaves), by conjugate gradients: the first well, the others roughly."""
        x, r = np.zeros(given.shape), given.copy()
        p = r.copy()
        squares = [_dot(one, one) for one in r]
        first = list(squares)
        near = [_NEAR, *([_ROUGHLY] * (len(given) - 1))]
        for _ in range(_STEPS):
            going = [k for k, square in enumerate(squares) if square > near[k] * first[k]]
            if not going:
                break
            one = self.gram(p[going])[1]
            products = self.prior * self.gram(one)[1] + self.records * one + self.left * p[going]
            for k, q in zip(going, products, strict=True):
                step = squares[k] / _dot(p[k], q)
                x[k] += step * p[k]
                r[k] -= step * q
                new = _dot(r[k], r[k])
                p[k] = r[k] + (new / squares[k]) * p[k]
                squares[k] = new
        out: Floats = self.prior * self.gram(x)[1]
        return out

    def drawn(self) -> Floats:
        """Draws of what noise, and chance among the records, put into the leaves' sums, from public coins."""
        out = np.empty((_PROBES, *self.shape))
        size = self.shape[0] * self.shape[1]
        normals = np.empty(size + len(self.weights))
        for probe, e in enumerate(out):
            kernels.normals_from_seed(SEED + 1 + probe, normals)
            _spread_out(self.leaves, np.sqrt(self.records * self.weights) * normals[size:], e)
            e += math.sqrt(self.left) * normals[:size].reshape(self.shape)
        return out


def _dot(a: Floats, b: Floats) -> float:
    return float(kernels.dot(a.ravel(), b.ravel()))


def _spread_out(leaves: NDArray[np.int64], values: Floats, out: Floats) -> None:
    """Sums of values (n,) by leaf, (trees, leaves)."""
    for t in range(len(leaves)):
        out[t] = np.bincount(leaves[t], weights=values, minlength=out.shape[1])
