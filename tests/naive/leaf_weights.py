"""Weights of a private forest's leaves, by dense matrices and exact solutions."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize, root
from scipy.special import expit

from naive.random_trees import phi

PRIORS = [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
SLOPES = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


def half_odds(scores: Any, weights: Any, centre: float) -> tuple[float, float]:
    """(a, b) with `E tanh(a s + b) = centre` and `E s tanh(a s + b) = E s s`."""

    def left(link: Any) -> list[float]:
        means = np.tanh(link[0] * scores + link[1])
        return [weights @ (scores * means) - weights @ scores**2, weights @ means - centre]

    a, b = root(left, [1.0, np.arctanh(centre)], tol=1e-12).x
    return float(a), float(b)


def offset(scores: Any, weights: Any, centre: float) -> float:
    """Offset of log-odds with which labels 1 and -1 have the mean `centre`."""
    return float(
        brentq(lambda b: 2.0 * float(weights @ expit(scores + b)) - 1.0 - centre, -40, 40, xtol=1e-12)
    )


def ridge(matrix: Any, weights: Any, sums: Any, prior: float, sampling: float, noise: float) -> Any:
    """`p G (p G^2 + s G + noise)^-1 r`, G the Gram matrix of the columns."""
    gram = matrix.T @ (weights[:, None] * matrix)
    whole = prior * gram @ gram + sampling * gram + noise * np.eye(len(gram))
    return prior * gram @ np.linalg.solve(whole, sums)


def validated_prior(
    leaves: Any, weights: Any, sums: Any, precision: Any, unit: float, sampling: float, noise: float
) -> float | None:
    """The smallest prior with .97 of the best gain, even trees against odd ones both ways."""
    size, gains = sums.shape[1], []
    for prior in PRIORS:
        gain = 0.0
        for first in (0, 1):
            fitted, other = phi(leaves[first::2], size), phi(leaves[1 - first :: 2], size)
            of_a_tree = prior * unit / len(leaves[first::2])
            w = ridge(fitted, weights, sums[first::2].ravel(), of_a_tree, sampling, noise)
            r, metric = sums[1 - first :: 2].ravel(), precision[1 - first :: 2].ravel()
            missed = r - other.T @ (weights * (fitted @ w))
            gain += float(metric @ r**2 - metric @ missed**2)
        gains.append(gain)
    if max(gains) <= 0.0:
        return None
    return next(p for p, gain in zip(PRIORS, gains, strict=True) if gain >= 0.97 * max(gains))


def logistic_weights(matrix: Any, weights: Any, half: Any, means: Any, strength: float) -> Any:
    """Minimum of the weighted logistic loss for means of labels 1 and -1, plus a ridge."""

    def loss(d: Any) -> tuple[float, Any]:
        h = half + matrix @ d
        value = weights @ (np.logaddexp(h, -h) - means * h) + 0.5 * strength * d @ d
        return value, matrix.T @ (weights * (np.tanh(h) - means)) + strength * d

    options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10}
    return minimize(loss, np.zeros(matrix.shape[1]), jac=True, method="L-BFGS-B", options=options).x


def count_ratios(counts: Any, found: Any, noise: float) -> Any:
    """Best known counts over those of the rows: a mean weighted by each other's variance."""
    error = max(float(np.mean((counts - found) ** 2)) - noise, 0.0)
    best = (error * counts + noise * found) / (error + noise)
    return np.array(
        [max(b, 0.0) / f if f > 1e-9 else 1.0 for b, f in zip(best.flat, found.flat, strict=True)]
    )


def leaf_weights(released: Any, rows: Any) -> tuple[float, Any, float] | None:
    """(factor of the linear score, weights of leaves, offset) in log-odds; None: leaves add nothing."""
    leaves, weights, m = rows.leaves, rows.weights, released.centre
    trees, size = released.counts.shape
    matrix = phi(leaves, size)
    v, noise = 1.0 - m * m, released.std**2 * (1.0 + m * m)
    precision = 1.0 / (np.maximum(released.counts, 0.0) + released.records * noise / v)
    s = rows.scores - weights @ rows.scores
    a, _ = half_odds(s, weights, m)
    ratios = count_ratios(released.counts.ravel(), matrix.T @ weights, released.std**2)
    tried = []
    for g in SLOPES:
        h = g * a * s + 0.5 * offset(2.0 * g * a * s, weights, m)
        r = (released.signs - m * released.counts).ravel() - ratios * (
            matrix.T @ (weights * (np.tanh(h) - m))
        )
        tried.append((float(precision.ravel() @ r**2), g, h, r))
    _, g, h, r = min(tried, key=lambda each: each[0])
    sampling = 1.0 / released.records + float(weights @ weights)
    prior = validated_prior(leaves, weights, r.reshape(trees, size), precision, v, v * sampling, noise)
    if prior is None:
        return None
    w = ridge(matrix, weights, r, prior * v / trees, v * sampling, noise)
    found = 2.0 * w / v
    means = np.clip(np.tanh(h) + matrix @ w, -0.99, 0.99)
    logistic = logistic_weights(matrix, weights, h, means, sampling * trees / prior)
    found = v * v * found + (1.0 - v * v) * 2.0 * logistic
    whole = 2.0 * g * a * rows.scores + matrix @ found
    return 2.0 * g * a, found.reshape(trees, size), offset(whole, weights, m)
