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
from streampair.privacy.mechanisms.woods_ridge import Ridge
from streampair.privacy.mechanisms.woods_rows import Rows, Told, dot, spread_out

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Fitted", "half_odds", "weights_of"]

# What raking has moved in what the linear score explains tells how much is wrong with it: so many times that
# is a variance, at most so many times that of noise.
_BLUR, _MOST_BLUR = 1.5, 3.0
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


def _means(half: Floats) -> Floats:
    """Mean of labels 1 and -1 at half log-odds: their tanh, by the kernels' own exponential."""
    out = np.empty(len(half))
    kernels.sigmoid_many(2.0 * half, out)
    return 2.0 * out - 1.0


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
    for _ in range(_NEWTON):
        means = _means(a * scores + b)
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


def _explained(
    told: Told, leaves: NDArray[np.int64], weights: Floats, scores: Floats
) -> tuple[float, Floats, Floats]:
    """(a, b, s, sums): what a linear score says of the labels, `tanh(a s + b)`, and of their sums by leaf."""
    scores = scores - float(kernels.dot(weights, scores))
    a, b = half_odds(scores, weights, told.centre)
    sums = np.empty(told.counts.shape)
    spread_out(leaves, weights * (_means(a * scores + b) - told.centre), sums)
    return a, scores, sums


def weights_of(told: Told, rows: Rows) -> Fitted:
    """Ridge regression of what scores leave of the labels, on leaves whose overlap is that of weighted rows.

    Scores leave `y - tanh(a s + b)`: a straight line through labels 1 and -1 would leave a bend that every
    linear class has, which leaves would learn, and which ranks nothing. Where the weights of the rows have
    much to mend, what scores explain is not known well either, and the regression takes it for noise.

    Parameters
    ----------
    told
        What was released.
    rows
        Rows that stand for the records.
    """
    leaves, weights = rows.leaves, rows.weights
    variance = 1.0 - told.centre * told.centre
    a, scores, known = _explained(told, leaves, weights, rows.scores)
    *_, plain = _explained(told, leaves, np.full(len(weights), 1.0 / len(weights)), rows.plain)
    noise = told.std * told.std * (1.0 + told.centre * told.centre)
    blur = min(_BLUR * dot(known - plain, known - plain) / len(known), _MOST_BLUR * noise)
    ridge = Ridge(told, leaves, weights, blur)
    answer = ridge.solve(told.signs - told.centre * told.counts - known)
    # Weights of leaves are means of labels: of log-odds they are `2 / variance`, near those of the rate.
    w = (2.0 * answer.share / variance) * answer.weights
    whole = 2.0 * a * scores + ridge.gram(w[None])[0][:, 0] / np.maximum(weights, 1e-300)
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
