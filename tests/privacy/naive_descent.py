"""Slow, obvious twins of private gradient descent for every buffer and family (PRIVACY.md 3, 4.1, 4.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from naive import uniform
from naive_ftrl import cells, null, slope

Pair = tuple[list[float], float]


@dataclass
class Buffer:
    """FIFO ("window"), reservoir ("sample") or everything ("all"), by slots and coins alone."""

    policy: str
    size: int
    uses: int = 0
    seed: int = 0
    slots: int = 0
    records: list[list[object]] = field(default_factory=list)  # [row, label, steps used]

    @property
    def places(self) -> int:
        return max(self.slots, 1) if self.policy == "all" else self.size

    def pairs(self) -> list[Pair]:
        return [(row, label) for row, label, _ in self.records]  # type: ignore[misc]

    def store(self, x: list[float], y: float) -> None:
        new: list[object] = [x, y, 0]
        self.slots += 1
        if self.policy == "all":
            self.records.append(new)
            return
        if self.policy == "window":
            self.records = [*self.records, new][-self.size :]
            return
        for record in self.records:
            record[2] += 1  # type: ignore[operator]
            if self.uses and record[2] >= self.uses:  # type: ignore[operator]
                record[1] = math.nan
        if len(self.records) < self.size:
            self.records.append(new)
        else:
            place = int(uniform(self.seed, self.slots, 0) * self.slots)
            if place < self.size:
                self.records[place] = new


def vector(matrix: np.ndarray) -> np.ndarray:
    """Isometric coordinates of a symmetric matrix: diagonal entries, and those beside it times sqrt(2)."""
    d = len(matrix)
    return np.array([matrix[i, j] * (1 if i == j else math.sqrt(2)) for i in range(d) for j in range(i, d)])


def matrix(coordinates: Sequence[float]) -> np.ndarray:
    """The symmetric matrix of `vector`."""
    d = round((math.sqrt(8 * len(coordinates) + 1) - 1) / 2)
    out, at = np.zeros((d, d)), 0
    for i in range(d):
        for j in range(i, d):
            out[i, j] = out[j, i] = coordinates[at] / (1 if i == j else math.sqrt(2))
            at += 1
    return out


def linear_pair(w: np.ndarray, x: np.ndarray, y: float, p: np.ndarray, label: float, code: int) -> np.ndarray:
    """Gradient of phi((y - y') w.(x - x'))."""
    c = y - label
    return c * slope(code, c * float(w @ (x - p))) * (x - p)


def metric_pair(w: np.ndarray, x: np.ndarray, y: float, p: np.ndarray, label: float, code: int) -> np.ndarray:
    """Gradient of phi(s (1 - u'Wu)) in isometric coordinates, s = 1 for equal labels, else -1."""
    u, s = x - p, 1.0 if y == label else -1.0
    return -s * slope(code, s * (1.0 - float(u @ matrix(w) @ u))) * vector(np.outer(u, u))


def gradient(
    w: np.ndarray,
    x: list[float],
    y: float,
    buffer: Buffer,
    pair: Callable[..., np.ndarray],
    code: int,
    clip: float,
) -> np.ndarray:
    """Clipped per pair, summed, divided by the number of places."""
    total = np.zeros(len(w))
    for row, label in buffer.pairs():
        if null(y) or null(label):
            continue
        g = pair(w, np.array(x), y, np.array(row), label, code)
        norm = float(np.linalg.norm(g))
        total += g * (min(1.0, clip / norm) if norm > 0 else 0.0)
    return total / buffer.places


def ball(w: np.ndarray, radius: float) -> np.ndarray:
    norm = float(np.linalg.norm(w))
    return w * (radius / norm) if norm > radius else w


def noisy(
    rows: Sequence[list[float]],
    labels: Sequence[float],
    noise: np.ndarray,
    rates: Sequence[float],
    buffer: Buffer,
    *,
    radius: float,
    grid: float,
    l2: float,
    gradient: Callable[..., np.ndarray],
) -> dict[str, np.ndarray]:
    """PRIVACY.md 4.2 with the grid of 7: iterates, their t-weighted averages and rounded gradients."""
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
    buffer: Buffer,
    *,
    radius: float,
    alpha: float,
    centre: np.ndarray,
    gradient: Callable[..., np.ndarray],
) -> np.ndarray:
    """Iterates of PRIVACY.md 4.1, without noise."""
    w, out = centre.copy(), []
    for x, y, eta in zip(rows, labels, etas, strict=True):
        if eta > 0:
            w = ball(w - eta * (gradient(w, x, y, buffer) + alpha * (w - centre)), radius)
        buffer.store(x if not null(y) else [0.0] * len(x), y)
        out.append(w)
    return np.array(out)
