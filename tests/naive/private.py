"""Clipped gradients and public places (docs/privacy.md 2, 3), for either family."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from naive.losses import slope
from naive.numerics import uniform
from naive.symmetric import matrix, vector
from naive.vectors import Vector


def null(label: float) -> bool:
    """Whether a label marks a null record."""
    return math.isnan(label)


def pair_gradient(
    w: Vector,
    x: Vector,
    y: float,
    partner: Vector,
    label: float,
    code: int,
    clip: float,
    tangent: bool = False,
) -> Vector:
    """Clipped gradient of one pair; zero if either record is null (NaN) or the labels are equal."""
    if null(y) or null(label) or y == label:
        return [0.0] * len(x)
    difference = [a - b for a, b in zip(x, partner, strict=True)]
    c = y - label
    k = c * slope(code, c * math.fsum(a * b for a, b in zip(w, difference, strict=True)))
    gradient = [k * u for u in difference]
    if not tangent:
        norm = math.hypot(*gradient)
        return [g * min(1.0, clip / norm) for g in gradient] if norm > 0 else gradient

    def inside(share: float) -> bool:
        """Whether the scaled gradient is in the ball of radius clip around -clip y p of either record."""
        balls = ((partner, label), (x, y))
        return all(
            math.dist([share * g for g in gradient], [-clip * s * v for v in p]) <= clip for p, s in balls
        )

    if inside(1.0):
        return gradient
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) else (low, middle)
    return [low * g for g in gradient]


def partner_gradient(
    w: Vector, x: Vector, y: float, partner: Vector, centre: float, code: int, clip: float
) -> Vector:
    """Clipped gradient of the pair with a partner of the other class; the frequent class counts less."""
    if null(y):
        return [0.0] * len(x)
    difference = [a - b for a, b in zip(x, partner, strict=True)]
    c = 2.0 * y
    k = c * slope(code, c * math.fsum(a * b for a, b in zip(w, difference, strict=True)))
    gradient = [k * u for u in difference]

    def inside(share: float) -> bool:
        return math.dist([share * g for g in gradient], [clip * y * v for v in partner]) <= clip

    low, high = 0.0, 1.0
    if inside(1.0):
        low = 1.0
    else:
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if inside(middle) else (low, middle)
    frequent = (centre > 0) == (y > 0) and centre != 0
    weight = (1 - abs(centre)) / (1 + abs(centre)) if frequent else 1.0
    return [weight * low * g for g in gradient]


def mean_gradient(
    w: Vector,
    x: Vector,
    y: float,
    buffer: Sequence[tuple[Vector, float]],
    size: int,
    code: int,
    clip: float,
    tangent: bool = False,
) -> Vector:
    """Sum over the records in the buffer, divided by the number of places."""
    total = [0.0] * len(x)
    for partner, label in buffer:
        total = [
            a + b
            for a, b in zip(total, pair_gradient(w, x, y, partner, label, code, clip, tangent), strict=True)
        ]
    return [g / size for g in total]


Pair = tuple[list[float], float]


@dataclass
class Places:
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
    buffer: Places,
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
