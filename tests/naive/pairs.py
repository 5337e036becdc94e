"""Descent along pairs, with a full matrix for a metric; and the gradient of all pairs, pair by pair."""

from __future__ import annotations

import math

import numpy as np

from naive.losses import loss_slope

Vector = list[float]


def pair_descent(
    loss: str,
    etas: list[float],
    radius: float,
    pairs: list[tuple[Vector, float, Vector, float]],
    w: np.ndarray,
    l2: float = 0.0,
) -> list[np.ndarray]:
    """The iterates, the given one first; w is a vector, or the matrix of a metric."""
    out = [w]
    for eta, (x, y, x2, y2) in zip(etas, pairs, strict=True):
        u = np.array(x) - np.array(x2)
        if w.ndim == 1:
            g = (y - y2) * loss_slope(loss, (y - y2) * float(u @ w)) * u
        else:
            same = 1.0 if y == y2 else -1.0
            g = -same * loss_slope(loss, same * (1.0 - float(u @ w @ u))) * np.outer(u, u)
        w = w - eta * (g + l2 * w)
        norm = math.sqrt(float((w**2).sum()))
        if norm > radius:
            w = w * (radius / norm)
        out.append(w)
    return out


def pair_sums(loss: str, high: list[float], low: list[float]) -> tuple[list[float], list[float]]:
    """Derivative of ``sum of phi(2 (s - r))`` in each high score s, and in each low score r."""
    slopes = [[2.0 * loss_slope(loss, 2.0 * (s - r)) for r in low] for s in high]
    return [math.fsum(row) for row in slopes], [-math.fsum(column) for column in zip(*slopes, strict=True)]


def pair_sums_logistic(high: list[float], low: list[float]) -> tuple[list[float], list[float]]:
    return pair_sums("Logistic", high, low)


def risk_gradient(loss: str, w: list[float], rows: list[list[float]], signs: list[float]) -> list[float]:
    """Gradient in w of the mean loss over all ordered pairs of two different records."""
    n, total = len(rows), [0.0] * len(w)
    for i in range(n):
        for j in range(n):
            if i != j and signs[i] != signs[j]:
                u = [a - b for a, b in zip(rows[i], rows[j], strict=True)]
                c = signs[i] - signs[j]
                slope = c * loss_slope(loss, c * math.fsum(a * b for a, b in zip(w, u, strict=True)))
                total = [t + slope * v / (n * (n - 1)) for t, v in zip(total, u, strict=True)]
    return total


def metric_risk_gradient(
    loss: str, w: list[list[float]], rows: list[list[float]], labels: list[int]
) -> list[list[float]]:
    """Gradient in the matrix of the mean metric loss over all ordered pairs of two different records."""
    n, d = len(rows), len(w)
    total = [[0.0] * d for _ in range(d)]
    for i in range(n):
        for j in range(n):
            if i != j:
                u = [a - b for a, b in zip(rows[i], rows[j], strict=True)]
                s = 1.0 if labels[i] == labels[j] else -1.0
                square = math.fsum(u[a] * w[a][b] * u[b] for a in range(d) for b in range(d))
                slope = -s * loss_slope(loss, s * (1.0 - square)) / (n * (n - 1))
                for a in range(d):
                    for b in range(d):
                        total[a][b] += slope * u[a] * u[b]
    return total
