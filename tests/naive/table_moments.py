"""Sums over a table, row by row in whole numbers, and their release in fractions: docs/privacy 10.7."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

STEPS = 2**16
HALF = Fraction(1, 2)


def nearest(value: Fraction) -> int:
    return math.floor(value + HALF)


def steps_in_ball(row: Sequence[float]) -> list[int]:
    """A row in whole steps, at most `STEPS` long: to the nearest, else towards 0, else nothing."""
    if not all(math.isfinite(value) for value in row):
        return [0] * len(row)
    # Halves are added to doubles, as a value next to the middle of two steps shows.
    near = [math.floor(value * STEPS + 0.5) for value in row]
    for steps in (near, [math.trunc(value * STEPS) for value in row]):
        if sum(k * k for k in steps) <= STEPS**2:
            return steps
    return [0] * len(row)


def sample_sums(rows: Sequence[Sequence[float]], labels: Sequence[float]) -> list[int]:
    """Sums of x, x^2, the label, and label times x."""
    d = len(rows[0])
    sums = [0] * (3 * d + 1)
    for row, label in zip(rows, labels, strict=True):
        if math.isnan(label):
            continue
        *steps, y = (min(max(math.floor(value * STEPS + 0.5), -STEPS), STEPS) for value in (*row, label))
        for i, k in enumerate(steps):
            sums[i] += k
            sums[d + i] += k * k
            sums[2 * d + 1 + i] += y * k
        sums[2 * d] += y
    return sums


def label_steps(label: float, centre: float) -> int:
    """What a label counts in a product."""
    weight = 1.0 / (1.0 + abs(centre))
    return min(max(math.trunc(weight * (label - centre) * STEPS), -STEPS), STEPS)


def product_sums(rows: Sequence[Sequence[float]], labels: Sequence[float], centre: float) -> list[int]:
    """Sums of the lower triangle of x x', row by row, and of s x."""
    d = len(rows[0])
    sums = [0] * (d * (d + 1) // 2 + d)
    for row, label in zip(rows, labels, strict=True):
        if math.isnan(label):
            continue
        steps, s = steps_in_ball(row), label_steps(label, centre)
        products = [steps[i] * steps[j] for i in range(d) for j in range(i + 1)]
        products += [s * k for k in steps]
        sums = [a + b for a, b in zip(sums, products, strict=True)]
    return sums


def class_sums(
    rows: Sequence[Sequence[float]], labels: Sequence[float], classes: Sequence[float]
) -> list[int]:
    """Sums of the lower triangle of x x', row by row, of x by class, and half of the rows of each class."""
    d = len(rows[0])
    sums = [0] * (d * (d + 1) // 2 + len(classes) * (d + 1))
    for row, label in zip(rows, labels, strict=True):
        if math.isnan(label):
            continue
        steps = steps_in_ball(row)
        summand = [steps[i] * steps[j] for i in range(d) for j in range(i + 1)]
        summand += [STEPS * k if label == each else 0 for each in classes for k in steps]
        summand += [STEPS**2 // 2 if label == each else 0 for each in classes]
        sums = [a + b for a, b in zip(sums, summand, strict=True)]
    return sums


def squared_move(sums: Sequence[int], others: Sequence[int], d: int) -> Fraction:
    """Squared distance of two second moments, exact: cells off the diagonal count twice."""
    times = [1 if i == j else 2 for i in range(d) for j in range(i + 1)]
    times += [1] * (len(sums) - len(times))
    moves = ((a - b) ** 2 for a, b in zip(sums, others, strict=True))
    return Fraction(sum(n * move for n, move in zip(times, moves, strict=True)), STEPS**4)


def released(
    sums: Sequence[int], units: Sequence[Fraction], noise: Sequence[Fraction], grid: Fraction
) -> list[Fraction]:
    """`grid rnd((T + noise) / grid)`, T being each sum times its unit."""
    return [
        grid * nearest((total * unit + z) / grid) for total, unit, z in zip(sums, units, noise, strict=True)
    ]
