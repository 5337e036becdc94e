"""Descent along pairs, with a full matrix for a metric."""

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
