"""The private learners step by step (docs/privacy.md 4.1 to 4.3, with the grid of 7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from naive.moments import cells
from naive.private import Places, null
from naive.vectors import Vector, ball

Gradient = Callable[[Vector, Vector, float, Sequence[tuple[Vector, float]]], Vector]


def ftrl(
    rows: Sequence[Vector],
    labels: Sequence[float],
    noise: Sequence[Vector],
    rates: Sequence[float],
    *,
    size: int,
    radius: float,
    grid: float,
    gradient: Gradient,
) -> dict[str, list[list[float]]]:
    """The rule of docs/privacy.md 4.3 with the grid of 7, one slot a row; all histories."""
    dim = len(rows[0])
    w, average, total = [0.0] * dim, [0.0] * dim, [0] * dim
    buffer: list[tuple[Vector, float]] = []
    weights = 0.0
    out: dict[str, list[list[float]]] = {"w": [], "average": [], "total": [], "gradient": []}
    for t, (x, y) in enumerate(zip(rows, labels, strict=True), start=1):
        g = gradient(w, x, y, buffer) if not null(y) else [0.0] * dim
        steps = [cells(v, grid) for v in g]
        total = [T + a + cells(b, grid) for T, a, b in zip(total, steps, noise[t - 1], strict=True)]
        w = [-rates[t - 1] * grid * T for T in total]
        norm = math.sqrt(math.fsum(v * v for v in w))
        if norm > radius:
            w = [v * radius / norm for v in w]
        average = [(a * weights + t * v) / (weights + t) for a, v in zip(average, w, strict=True)]
        weights += t
        buffer = [*buffer, ([0.0] * dim if null(y) else list(x), y)][-size:]
        for name, value in (("w", w), ("average", average), ("total", total), ("gradient", steps)):
            out[name].append(list(value))
    return out


def noisy(
    rows: Sequence[list[float]],
    labels: Sequence[float],
    noise: np.ndarray,
    rates: Sequence[float],
    buffer: Places,
    *,
    radius: float,
    grid: float,
    l2: float,
    gradient: Callable[..., np.ndarray],
) -> dict[str, np.ndarray]:
    """docs/privacy.md 4.2 with the grid of 7: iterates, their t-weighted averages and rounded gradients."""
    dim = noise.shape[1]
    w, iterates, grads = np.zeros(dim), [], []
    for t, (x, y) in enumerate(zip(rows, labels, strict=True)):
        g = [cells(v, grid) for v in gradient(w, x, y, buffer)]
        released = np.array([a + cells(b, grid) for a, b in zip(g, noise[t], strict=True)]) * grid
        w = ball(w - rates[t] * (released + l2 * w), radius)
        buffer.store(x if not null(y) else [0.0] * len(x), y)
        iterates.append(w)
        grads.append(g)
    weights = np.arange(1.0, len(rows) + 1)
    sums = np.cumsum(weights[:, None] * np.array(iterates), axis=0)
    return {
        "w": np.array(iterates),
        "average": sums / np.cumsum(weights)[:, None],
        "gradient": np.array(grads),
    }


def output(
    rows: Sequence[list[float]],
    labels: Sequence[float],
    etas: Sequence[float],
    buffer: Places,
    *,
    radius: float,
    alpha: float,
    centre: np.ndarray,
    gradient: Callable[..., np.ndarray],
) -> np.ndarray:
    """Iterates of docs/privacy.md 4.1, without noise."""
    w, out = centre.copy(), []
    for x, y, eta in zip(rows, labels, etas, strict=True):
        if eta > 0:
            w = ball(w - eta * (gradient(w, x, y, buffer) + alpha * (w - centre)), radius)
        buffer.store(x if not null(y) else [0.0] * len(x), y)
        out.append(w)
    return np.array(out)


def released(
    cells: np.ndarray, noise: np.ndarray, sigmas: Sequence[float], gammas: Sequence[float]
) -> tuple[np.ndarray, float]:
    """Average of the noisy releases by their precisions, and the sum of these."""
    values = [
        [g * (c + math.floor(s * v / g + 0.5)) for c, v in zip(row, z, strict=True)]
        for row, z, s, g in zip(cells, noise, sigmas, gammas, strict=True)
    ]
    weights = [1 / s**2 for s in sigmas]
    return np.average(values, axis=0, weights=weights), math.fsum(weights)


def rounded_gradient(gradient: Sequence[float], grid: float) -> np.ndarray:
    """A gradient in whole steps of the grid."""
    return np.array([cells(v, grid) for v in gradient])
