"""Steps of the private learners, a record at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from naive.double_double import blt_noise, normals
from naive.losses import slope
from naive.numerics import uniform
from naive.symmetric import matrix, vector
from naive.vectors import Vector, ball, dot


def cells(value: float, grid: float) -> int:
    """Nearest whole number of grid steps, halves up."""
    return math.floor(value / grid + 0.5)


def contribution(x: Sequence[float], s: float) -> np.ndarray:
    """(x x', s x): the lower triangle row by row, off-diagonals times sqrt 2, then s x."""
    triangle = [
        x[i] * x[j] * (1.0 if i == j else math.sqrt(2.0)) for i in range(len(x)) for j in range(i + 1)
    ]
    return np.array([*triangle, *(s * v for v in x)])


def second_moment_sums(
    rows: Sequence[Sequence[float]], labels: Sequence[float], centre: float, weight: float, grid: float
) -> np.ndarray:
    """Sum of the contributions in whole steps of the grid; null records add 0."""
    d = len(rows[0])
    total = np.zeros(d * (d + 1) // 2 + d, dtype=np.int64)
    for x, y in zip(rows, labels, strict=True):
        if not math.isnan(y):
            total += np.floor(contribution(x, weight * (y - centre)) / grid + 0.5).astype(np.int64)
    return total


def second_moment_slot(
    cells: Sequence[float],
    coefficients: Sequence[Sequence[float]],
    cap: float,
    centre: float,
    weight: float,
    grid: float,
) -> np.ndarray:
    """The sums of one raw record with its label: scaled, standardised, pulled back, in the unit ball."""
    *raw, label = cells
    if not all(math.isfinite(value) for value in raw):
        raw, label = [0.0] * len(raw), math.nan
    x = []
    for value, scale, shift, mean, factor in zip(raw, *coefficients, strict=True):
        standard = (min(max(value * scale + shift, -1.0), 1.0) - mean) * factor
        x.append(min(max(standard, -cap), cap))
    length = max(math.sqrt(sum(value * value for value in x)), 1.0)
    return second_moment_sums([[value / length for value in x]], [label], centre, weight, grid)


def class_contribution(x: Sequence[float], place: int, classes: int, count: float = 0.5) -> np.ndarray:
    """(x x', e_y (x) x, e_y / 2): the triangle as in `contribution`, then a row and a count a class."""
    rows, counts = np.zeros((classes, len(x))), np.zeros(classes)
    rows[place], counts[place] = x, count
    return np.concatenate((contribution(x, 0.0)[: -len(x)], rows.ravel(), counts))


def class_sums(
    rows: Sequence[Sequence[float]], labels: Sequence[float], classes: Sequence[float], grid: float
) -> np.ndarray:
    """Sum of the contributions in whole steps of the grid; other labels are null records, and add 0."""
    d, many = len(rows[0]), len(classes)
    total = np.zeros(d * (d + 1) // 2 + d * many + many, dtype=np.int64)
    for x, y in zip(rows, labels, strict=True):
        if y in classes:
            added = class_contribution(x, list(classes).index(y), many)
            total += np.floor(added / grid + 0.5).astype(np.int64)
    return total


def best_weights(w: np.ndarray, positives: np.ndarray, negatives: np.ndarray) -> float:
    """Squared pair loss of weights over all pairs of two samples."""
    margins = 2.0 * np.subtract.outer(positives @ w, negatives @ w)
    return float(((1.0 - margins) ** 2).mean())


def block_influence(ends: Sequence[int], steps: int, position: int, share: float) -> np.ndarray:
    """C v over the releases of `ends`, for a record in slot `position` (from 0) of `steps`."""
    image = []
    carried = 0.0
    start = 0
    for end in ends:
        carried = share * carried + (1.0 if start <= position < end else 0.0)
        image.append(carried)
        start = end
    return np.array(image)


def dearest_windows(
    ends: Sequence[int],
    horizon: int | None,
    windows: Sequence[int],
    share: float,
    first: float,
    last: float,
) -> list[float]:
    """What a second view of so many slots costs the record that it costs most: each window, each record.

    `first` and `last` are what one release of a block, and the one at the horizon, cost a record that it
    holds; the records of one block are alike.
    """
    records = [end - 1 for end in ends] + ([] if horizon is None else [horizon - 1])
    rows = np.array([first * block_influence(ends, 0, record, share) ** 2 for record in records])
    until = np.concatenate((np.zeros((len(records), 1)), np.cumsum(rows, axis=1)), axis=1)
    start = np.arange(horizon or ends[-1] + 1)
    before = until[:, np.searchsorted(ends, start, "right")]
    found = []
    for window in windows:
        costs = (until[:, np.searchsorted(ends, start + window, "right")] - before).max(axis=0)
        if horizon is not None:
            costs[start + window >= horizon] += last
        found.append(float(costs.max()))
    return found


def moment_sums(rows: Sequence[Sequence[float]], per_unit: float) -> list[list[int]]:
    """Sums of the values and of their squares in whole steps of 1 / per_unit."""
    columns = list(zip(*rows, strict=True))
    return [[sum(cells(v**power, 1 / per_unit) for v in column) for column in columns] for power in (1, 2)]


def cross_sums(rows: Sequence[Sequence[float]], labels: Sequence[float], per_unit: float) -> list[int]:
    """Sums of label times x, the label rounded before, in whole steps of 1 / per_unit; NaN: nothing."""
    total = [0] * len(rows[0])
    for x, y in zip(rows, labels, strict=True):
        if not math.isnan(y):
            near = cells(y, 1 / per_unit) / per_unit
            total = [a + cells(near * v, 1 / per_unit) for a, v in zip(total, x, strict=True)]
    return total


def score_sums(
    rows: Sequence[Sequence[float]], labels: Sequence[float], w: Sequence[float], per_unit: float
) -> list[int]:
    """Sums of (1, s, t^2, x, s x) in whole steps of 1 / per_unit; t is the score, cut to [-1, 1]."""
    total = [0] * (3 + 2 * len(w))
    for x, s in zip(rows, labels, strict=True):
        if math.isnan(s):
            continue
        t = min(max(sum(a * b for a, b in zip(w, x, strict=True)), -1.0), 1.0)
        near = [cells(v, 1 / per_unit) for v in x]
        values = [
            int(per_unit),
            int(s * per_unit),
            cells(t * t, 1 / per_unit),
            *near,
            *(int(s) * c for c in near),
        ]
        total = [a + b for a, b in zip(total, values, strict=True)]
    return total


def class_bins(
    scores: Sequence[float], labels: Sequence[float], slope: float, offset: float, bins: int
) -> list[list[int]]:
    """How many scores of positives, and of negatives, are in each bin of their probability."""
    found = [[0] * bins, [0] * bins]
    for score, label in zip(scores, labels, strict=True):
        if not math.isnan(label):
            p = 1.0 / (1.0 + math.exp(-(slope * score + offset)))
            found[0 if label > 0.0 else 1][min(int(p * bins), bins - 1)] += 1
    return found


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
    start: Vector | None = None,
) -> dict[str, list[list[float]]]:
    """The rule of docs/privacy 4.3 with the grid of 7, one slot a row, from w_0 = `start`; all histories."""
    dim = len(rows[0])
    origin = [0.0] * dim if start is None else list(start)
    w, average, total = list(origin), list(origin), [0] * dim
    buffer: list[tuple[Vector, float]] = []
    weights = 0.0
    out: dict[str, list[list[float]]] = {"w": [], "average": [], "total": [], "gradient": []}
    for t, (x, y) in enumerate(zip(rows, labels, strict=True), start=1):
        g = gradient(w, x, y, buffer) if not null(y) else [0.0] * dim
        steps = [cells(v, grid) for v in g]
        total = [T + a + cells(b, grid) for T, a, b in zip(total, steps, noise[t - 1], strict=True)]
        w = [o - rates[t - 1] * grid * T for o, T in zip(origin, total, strict=True)]
        norm = math.sqrt(math.fsum(v * v for v in w))
        if norm > radius:
            w = [v * radius / norm for v in w]
        average = [(a * weights + t * v) / (weights + t) for a, v in zip(average, w, strict=True)]
        weights += t
        buffer = [*buffer, ([0.0] * dim if null(y) else list(x), y)][-size:]
        for name, value in (("w", w), ("average", average), ("total", total), ("gradient", steps)):
            out[name].append(list(value))
    return out


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
    """Iterates of docs/privacy 4.1, without noise."""
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
    average: Vector, query: Vector, gradient: Sequence[float], grid: float
) -> tuple[float, np.ndarray]:
    """What a slot starts with: a score under the average so far, and the rounded gradient."""
    return dot(average, query), rounded_gradient(gradient, grid)


def scores_before(averages: Sequence[Vector], queries: Sequence[Vector]) -> list[float]:
    """Scores of rows, each under the average before its slot; before the first it is 0."""
    before = [[0.0] * len(queries[0]), *averages[:-1]]
    return [dot(list(w), x) for w, x in zip(before, queries, strict=True)]


def normals_of_slots(words: Sequence[Sequence[int]], dim: int) -> np.ndarray:
    """The first `dim` normals of the bits of each slot."""
    return np.array([normals(slot)[0][:dim] for slot in words])


def ftrl_turns(
    queries: Sequence[Vector],
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
    noise = blt_noise(omega, theta, sigma, normals_of_slots(words, len(queries[0])))
    run = ftrl(rows, labels, noise.tolist(), rates, **rule)
    return {**run, "scores": scores_before(run["average"], queries)}
