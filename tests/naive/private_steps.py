"""The private learners step by step (docs/privacy.md 4.1 to 4.3, with the grid of 7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from naive.moments import cells
from naive.noise import blt_noise, normals
from naive.private import Places, null
from naive.vectors import Vector, ball, dot

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


def score_and_cells(
    average: Vector, asked: Vector, gradient: Sequence[float], grid: float
) -> tuple[float, np.ndarray]:
    """What a slot starts with: a score under the average so far, and the rounded gradient."""
    return dot(average, asked), rounded_gradient(gradient, grid)


def scores_before(averages: Sequence[Vector], asked: Sequence[Vector]) -> list[float]:
    """Scores of rows, each under the average before its slot; before the first it is 0."""
    before = [[0.0] * len(asked[0]), *averages[:-1]]
    return [dot(list(w), x) for w, x in zip(before, asked, strict=True)]


def normals_of_slots(words: Sequence[Sequence[int]], dim: int) -> np.ndarray:
    """The first `dim` normals of the bits of each slot."""
    return np.array([normals(slot)[:dim] for slot in words])


def ftrl_turns(
    asked: Sequence[Vector],
    rows: Sequence[Vector],
    labels: Sequence[float],
    words: Sequence[Sequence[int]],
    rates: Sequence[float],
    *,
    omega: np.ndarray,
    theta: np.ndarray,
    sigma: float,
    **rule: Any,
) -> dict[str, list[Any]]:
    """All the noise first, then all of `ftrl`, and the scores from its history."""
    noise = blt_noise(omega, theta, sigma, normals_of_slots(words, len(asked[0])))
    run = ftrl(rows, labels, noise.tolist(), rates, **rule)
    return {**run, "scores": scores_before(run["average"], asked)}


def noisy_turns(
    asked: Sequence[Vector],
    rows: Sequence[list[float]],
    labels: Sequence[float],
    words: Sequence[Sequence[int]],
    rates: Sequence[float],
    buffer: Places,
    *,
    sigma: float,
    **rule: Any,
) -> dict[str, Any]:
    """All the noise first, then all of `noisy`, and the scores from its history."""
    noise = sigma * normals_of_slots(words, len(asked[0]))
    run = noisy(rows, labels, noise, rates, buffer, **rule)
    return {**run, "scores": scores_before(run["average"].tolist(), asked)}
