"""Weights of a private forest's leaves, from released statistics and synthetic rows (docs/privacy 10.10).

All of it is post-processing. Functions of numbers and sums are those of the kernels: the same bits on every
processor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streampair.kernels import numerics, random_trees, symmetric, vectors
from streampair.privacy.mechanisms.base import Link, rate_link
from streampair.privacy.mechanisms.synthetic_sample import ReleasedStatistics, SyntheticRows, dot

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Leaves = NDArray[np.uint8]

__all__ = [
    "PRIORS",
    "Fitted",
    "LeafRidge",
    "count_ratios",
    "half_odds",
    "leaf_weights",
    "logistic_weights",
    "validated_prior",
]

PRIORS = tuple(0.025 * 2.0**k for k in range(8))
"""Prior variances of the leaves' sum, as shares of the labels' variance."""

_STEPS = 32  # Lanczos steps, at most
_NOTHING = 1e-12  # of the largest diagonal entry: a residual below it ends the iteration
# The halves of the trees share the synthetic rows, so the prior of the best gain is too large.
_NEARLY = 0.97
_SLOPES = tuple(k / 10.0 for k in range(3, 11))  # above 1 noise would make the linear part steeper
_STEEPEST = 20.0  # largest half log-odds in a standard deviation of a score
_NEWTON = 50
_FARTHEST, _HALVES = 50.0, 50  # range of log-odds, and halvings of it
_MOST_MEAN = 0.99  # of labels 1 and -1, that the logistic weights are fitted to
_NEWTON_STEPS, _CG_STEPS, _STEP_HALVINGS = 5, 24, 6
_EMPTY = 1e-9  # share of the rows in a leaf that has no ratio
_CG_LEAST, _NEWTON_LEAST = 1e-4, 1e-5  # squared residual as a share, and decrease of the loss, that end them


class Fitted(NamedTuple):
    """A model, `factor x.linear + phi.leaves`, in log-odds.

    Parameters
    ----------
    factor
        Factor of the linear score.
    leaves
        Weights of the leaves, (trees, leaves).
    link
        Link from a score to a probability.
    """

    factor: float
    leaves: Floats
    link: Link


def _means(half: Floats) -> Floats:
    """Mean of labels 1 and -1 at half log-odds: their tanh, by the kernels' exponential."""
    out = np.empty(len(half))
    numerics.sigmoid_many(2.0 * half, out)
    return 2.0 * out - 1.0


def _scores(leaves: Leaves, v: Floats) -> Floats:
    """`Phi v`: sums of the values v (trees, leaves) over each row's leaves, (n,)."""
    out = np.empty(leaves.shape[1])
    random_trees.tree_scores(leaves, v, out)
    return out


def _totals(leaves: Leaves, values: Floats, size: int) -> Floats:
    """`Phi' values`: sums of the rows' values (n,) by leaf, (trees, size)."""
    out = np.empty((len(leaves), size))
    random_trees.tree_totals(leaves, values, out)
    return out


def half_odds(scores: Floats, weights: Floats, centre: float) -> tuple[float, float]:
    """(a, b) of the logistic regression on one score: labels 1 and -1 have the mean `tanh(a s + b)`.

    It needs only the mean of the labels and that of `s y`, which equals that of `s s`, since s is a
    regression of the labels: `E[tanh] = centre, E[s tanh] = E[s s]`.

    Parameters
    ----------
    scores, weights
        Scores and weights of rows, (n,): the scores have mean 0, the weights add up to 1.
    centre
        Mean of the labels.
    """
    square = float(vectors.dot(weights * scores, scores))
    start = 0.5 * rate_link(0.5 * (1.0 + centre)).offset
    if not square > 0.0:
        return 0.0, start
    most = _STEEPEST / math.sqrt(square)
    a, b = min(1.0 / (1.0 - centre * centre), most), start
    for _ in range(_NEWTON):
        means = _means(a * scores + b)
        bent = weights * (1.0 - means * means)
        left = square - float(vectors.dot(weights * scores, means))
        rest = centre - float(vectors.dot(weights, means))
        ss, s1 = float(vectors.dot(bent * scores, scores)), float(vectors.dot(bent, scores))
        one = float(vectors.dot(bent, np.ones(len(bent))))
        # All probabilities are near 0 or 1: the Hessian is singular.
        over = ss * one - s1 * s1
        if not over > 1e-12 * square:
            break
        da, db = (one * left - s1 * rest) / over, (ss * rest - s1 * left) / over
        # Damped Newton step: at most twice the slope, and 2 of the half log-odds.
        short = min(1.0, 2.0 * a / abs(da) if da else 1.0, 2.0 / abs(db) if db else 1.0)
        a, b = min(max(a + short * da, 0.1 * a), most), b + short * db
        if abs(da) <= 1e-9 * a and abs(db) <= 1e-9:
            break
    return a, b


def _offset(scores: Floats, weights: Floats, centre: float) -> float:
    """Offset of log-odds (n,) that gives the labels the mean `centre`, by bisection."""
    means = np.empty(len(scores))
    low, high = -_FARTHEST, _FARTHEST
    for _ in range(_HALVES):
        middle = 0.5 * (low + high)
        numerics.sigmoid_many(scores + middle, means)
        if 2.0 * float(vectors.dot(weights, means)) - 1.0 < centre:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


class LeafRidge:
    """Ridge regressions of leaf sums r on leaves: `w = p G (p G^2 + s G + noise)^-1 r` for any prior p.

    G is the Gram matrix of the fitted trees' leaves over weighted rows. It is never computed: one Lanczos
    iteration from r (Lanczos 1950) serves all priors.

    Parameters
    ----------
    leaves, weights
        Leaves (trees, n) and weights (n,) of the rows.
    sums
        r, (trees, size).
    fitted
        Which of the trees are fitted, (trees,). The other ones are predicted.
    sampling, noise
        Variance of r for each unit of G, and of the noise.
    """

    def __init__(
        self,
        leaves: Leaves,
        weights: Floats,
        sums: Floats,
        fitted: NDArray[np.bool_],
        sampling: float,
        noise: float,
    ) -> None:
        self._sampling, self._noise = sampling, noise
        size = sums.shape[1]
        mine, others = np.ascontiguousarray(leaves[fitted]), np.ascontiguousarray(leaves[~fitted])
        self._shape = (len(mine), size)
        start = sums[fitted].ravel()
        self._length = math.sqrt(dot(start, start))
        self._basis = np.zeros((_STEPS, start.size))
        self._others = np.zeros((_STEPS, len(others), size))
        matrix, nodes = np.zeros((_STEPS, _STEPS)), np.empty(_STEPS)
        now = start / self._length if self._length > 0.0 else start
        for step in range(_STEPS):
            self._basis[step] = now
            values = weights * _scores(mine, now.reshape(self._shape))
            after = _totals(mine, values, size).ravel()
            self._others[step] = _totals(others, values, size)
            done, part = self._basis[: step + 1], np.empty(step + 1)
            # Rounding makes the basis lose its right angles, so each vector is made orthogonal twice.
            for again in range(2):
                vectors.score_many(after, done, part)
                if again == 0:
                    matrix[step, step] = part[step]
                for along, vector in zip(part.tolist(), done, strict=True):
                    after -= along * vector
            length = math.sqrt(dot(after, after))
            if step == _STEPS - 1 or not length > _NOTHING * matrix.diagonal().max():
                break
            matrix[step, step + 1] = matrix[step + 1, step] = length
            now = after / length
        symmetric.eigen(matrix, nodes)
        self._nodes, self._vectors = np.maximum(nodes, 0.0), matrix  # an eigenvector is a row

    def _along(self, prior: float) -> list[float]:
        """Coordinates of w in the basis."""
        nodes = self._nodes
        filtered = prior * nodes / (prior * nodes * nodes + self._sampling * nodes + self._noise)
        out = np.empty(len(nodes))
        parts = self._length * filtered * self._vectors[:, 0]
        vectors.score_many(parts, np.ascontiguousarray(self._vectors.T), out)
        return list(out.tolist())

    def weights(self, prior: float) -> Floats:
        """w, (fitted trees, size)."""
        out = np.zeros(self._basis.shape[1])
        for along, vector in zip(self._along(prior), self._basis, strict=True):
            out += along * vector
        return out.reshape(self._shape)

    def predicted(self, prior: float) -> Floats:
        """Sums in the leaves of the other trees that w predicts, (other trees, size)."""
        out = np.zeros(self._others.shape[1:])
        for along, products in zip(self._along(prior), self._others, strict=True):
            out += along * products
        return out


def validated_prior(
    leaves: Leaves,
    weights: Floats,
    sums: Floats,
    precision: Floats,
    unit: float,
    sampling: float,
    noise: float,
) -> float | None:
    """The smallest prior whose gain is nearly the best, by cross-validation over trees; None: no gain.

    Weights of the even trees' leaves predict the sums of the odd trees, and the other way round: the noise of
    their releases is independent. A gain is the share of the sums' squares, weighted by `precision`, that the
    predictions explain.

    Parameters
    ----------
    leaves, weights, sums, sampling, noise
        As in `LeafRidge`.
    precision
        Of the sums, (trees, size).
    unit
        Prior variance of a share of 1, for one tree.
    """
    trees = len(leaves)
    even = np.arange(trees) % 2 == 0
    total, left = 0.0, np.zeros(len(PRIORS))
    for fitted in (even, ~even):
        ridge = LeafRidge(leaves, weights, sums, fitted, sampling, noise)
        held_out, weighted = sums[~fitted], precision[~fitted]
        total += dot(weighted * held_out, held_out)
        for k, prior in enumerate(PRIORS):
            missed = held_out - ridge.predicted(prior * unit / int(fitted.sum()))
            left[k] += dot(weighted * missed, missed)
    gains = total - left
    best = float(gains.max())
    if not best > 0.0:
        return None
    return next(prior for prior, gain in zip(PRIORS, gains.tolist(), strict=True) if gain >= _NEARLY * best)


def logistic_weights(
    leaves: Leaves, weights: Floats, half: Floats, means: Floats, size: int, ridge: float
) -> Floats:
    """Logistic ridge regression on leaves with an offset: half log-odds of each leaf, (trees, size).

    It minimises the weighted logistic loss plus `ridge / 2 |d|^2` by a few Newton steps, each of them solved
    by conjugate gradients and halved until the loss falls.

    Parameters
    ----------
    leaves, weights
        Leaves (trees, n) and weights (n,) of the rows.
    half
        Half log-odds of the rows without leaves, (n,).
    means
        Mean of labels 1 and -1 of each row, (n,).
    size
        Number of leaves of a tree.
    ridge
        Strength of the penalty.
    """
    d, added = np.zeros((len(leaves), size)), np.zeros(len(half))
    gradient, curvature = np.empty(len(half)), np.empty(len(half))
    loss = random_trees.logistic_terms(half, means, weights, gradient, curvature)
    for _ in range(_NEWTON_STEPS):
        step = _newton_step(leaves, curvature, _totals(leaves, gradient, size) - ridge * d, ridge)
        along = _scores(leaves, step)
        share = 1.0
        for _ in range(_STEP_HALVINGS):
            tried = d + share * step
            new = random_trees.logistic_terms(
                half + added + share * along, means, weights, gradient, curvature
            )
            new += 0.5 * ridge * dot(tried, tried)
            if new <= loss:
                break
            share *= 0.5
        else:
            break
        d, added = tried, added + share * along
        if loss - new < _NEWTON_LEAST:
            break
        loss = new
    return d


def _newton_step(leaves: Leaves, curvature: Floats, gradient: Floats, ridge: float) -> Floats:
    """Solution x of `(Phi' H Phi + ridge) x = gradient`, by a few conjugate gradient steps."""
    x, r = np.zeros(gradient.shape), gradient
    p = r
    square = first = dot(r, r)
    for _ in range(_CG_STEPS):
        if not square > _CG_LEAST * first:
            break
        q = _totals(leaves, curvature * _scores(leaves, p), p.shape[1]) + ridge * p
        step = square / dot(p, q)
        x = x + step * p
        r = r - step * q
        new = dot(r, r)
        p = r + (new / square) * p
        square = new
    return x


def leaf_weights(released: ReleasedStatistics, rows: SyntheticRows) -> Fitted | None:
    """Leaf weights and the slope of the linear score; None if leaves add nothing to the linear score.

    A ridge regression of the linear score's residuals on the leaves. The residual is `y - tanh(a s + b)`:
    that of a straight line would keep a bend that every linear problem has. The variance of the leaves'
    prior is chosen by cross-validation over trees. Errors of the synthetic rows count as sampling errors of
    as many records as there are effective rows, `1 / sum w^2`.

    The weights are averaged with those of a logistic regression on the rows, whose labels have the means that
    the ridge regression predicts. The rarer a class, the more weight these have: the ridge regression is
    linear in the mean of the labels, and log-odds are so near a probability of 1/2 alone.

    Parameters
    ----------
    released
        Released statistics.
    rows
        Synthetic rows.
    """
    leaves, weights, centre = rows.leaves, rows.weights, released.centre
    trees, size = released.counts.shape
    variance = 1.0 - centre * centre
    noise = released.std * released.std * (1.0 + centre * centre)
    sums = released.signs - centre * released.counts
    precision = 1.0 / (np.maximum(released.counts, 0.0) + released.records * noise / variance)
    scores = rows.scores - float(vectors.dot(weights, rows.scores))
    steepest, _ = half_odds(scores, weights, centre)
    slope, half, sums = _slope(released, rows, steepest * scores, sums, precision)
    factor = 2.0 * slope * steepest
    sampling = 1.0 / released.records + float(vectors.dot(weights, weights))
    settings = (variance * sampling, noise)
    prior = validated_prior(leaves, weights, sums, precision, variance, *settings)
    if prior is None:
        return None
    ridge = LeafRidge(leaves, weights, sums, np.ones(trees, dtype=np.bool_), *settings)
    w = ridge.weights(prior * variance / trees)
    # Leaf weights predict means of labels; near the rate, the factor to log-odds is `2 / variance`.
    found = (2.0 / variance) * w
    means = np.clip(_means(half) + _scores(leaves, w), -_MOST_MEAN, _MOST_MEAN)
    logistic = logistic_weights(leaves, weights, half, means, size, sampling * trees / prior)
    share = variance * variance  # 1 for balanced labels
    found = share * found + (1.0 - share) * 2.0 * logistic
    whole = factor * rows.scores + _scores(leaves, found)
    return Fitted(factor, found, Link(1.0, _offset(whole, weights, centre)))


def count_ratios(released: ReleasedStatistics, rows: SyntheticRows) -> Floats:
    """Ratio of the leaves' best known counts to those of the synthetic rows, (trees, leaves).

    A released count has noise, and that of the rows an error, of which the mean square over all leaves is
    known. The best known count weighs both by the other one's variance.
    """
    found = _totals(rows.leaves, rows.weights, released.counts.shape[1])
    apart = released.counts - found
    noise = released.std * released.std
    error = max(dot(apart, apart) / apart.size - noise, 0.0)
    best = np.maximum(found + (error / (error + noise)) * apart, 0.0)
    return np.divide(best, found, out=np.ones(found.shape), where=found > _EMPTY)


def _slope(
    released: ReleasedStatistics, rows: SyntheticRows, half: Floats, sums: Floats, precision: Floats
) -> tuple[float, Floats, Floats]:
    """(g, h, r): the factor of half log-odds that explains the leaf sums best, h = g half + offset, residual.

    Noise in the second moments makes the score of a regression too steep, and so do probabilities that
    are no function of it.
    """
    ratios, centre = count_ratios(released, rows), released.centre
    best: tuple[float, Floats, Floats] | None = None
    least = math.inf
    for slope in _SLOPES:
        tried = slope * half
        tried += 0.5 * _offset(2.0 * tried, rows.weights, centre)
        explained = _totals(rows.leaves, rows.weights * (_means(tried) - centre), sums.shape[1])
        left = sums - ratios * explained
        misfit = dot(precision * left, left)
        if misfit < least:
            best, least = (slope, tried, left), misfit
    assert best is not None
    return best
