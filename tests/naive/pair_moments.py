"""Least squares over all pairs in closed form, from all records anew."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from naive.ogd import Linear
from naive.scaling import Columns, Record


class Moments(NamedTuple):
    """Of weighted records: their weight, means, and sums of products around these; labels come last."""

    weight: float
    means: np.ndarray
    products: np.ndarray


def merge_rows(rows: Sequence[Sequence[float]], keep: float) -> Moments:
    """Moments of rows, label first; the last one counts 1, one before it `keep`, and so on."""
    table = np.array([[*row[1:], row[0]] for row in rows])
    counts = np.array([keep**age for age in reversed(range(len(rows)))])
    means = counts @ table / counts.sum()
    return Moments(float(counts.sum()), means, (table - means).T @ np.diag(counts) @ (table - means))


def solve(found: Moments, l2: float, *, real: bool) -> list[float] | None:
    """Weights of the raw features; None if there is one label only."""
    n, means, products = found
    d = len(means) - 1
    variance = products[d, d] / n
    if not variance > (0.0 if real else 4e-9):
        return None
    spreads = np.sqrt(np.diag(products)[:d] / n)
    moving = spreads > 1e-12 * np.abs(means[:d])
    unit = np.where(moving, 1.0 / np.where(moving, spreads, 1.0), 0.0)
    z = products[:d, :d] / n * np.outer(unit, unit)
    np.fill_diagonal(z, 1.0)
    right = products[:d, d] / n * unit
    if not real:  # the gap of the class means
        right *= 2.0 / variance
    ridge = l2 * (1.0 + 20.0 * math.sqrt(d / n))
    w = np.linalg.solve(z + ridge * np.eye(d), right)
    if not real:  # the best multiple for pairs of both classes, if their covariances are the same
        gap = w @ right
        within = w @ (z - variance / 4.0 * np.outer(right, right)) @ w
        w *= gap / (2.0 * (2.0 * within + gap**2)) if gap > 0.0 else 0.0
    return (unit * w).tolist()  # type: ignore[no-any-return]


class PairMoments(Linear):
    """(y - y' - w.(x - x'))^2 over all pairs.

    Solved from 8 records on, when a twentieth of the weight and d / 3 records are new.
    """

    etas: list[float] = []  # noqa: RUF012  # there is no average

    def __init__(
        self,
        d: int,
        l2: float,
        keep: float = 1.0,
        *,
        real: bool = False,
        scale: bool = False,
        fixed: Collection[int] = (),
    ) -> None:
        super().__init__(d, Columns(scale, keep, fixed))
        self.l2, self.keep, self.real = l2, keep, real
        self.records: list[tuple[Record, float]] = []  # a gap is what the centre was
        self.since = 0

    def rows(self) -> list[list[float]]:
        return [[y, *(x.get(i, 0.0) for i in range(self.d))] for x, y in self.records]

    def learn(self, x: Sequence[float] | Mapping[int, float], y: float) -> None:
        record = self.columns.without_gaps(self.observe(x))
        self.records.append((record, y))
        self.since += 1
        fresh, total = (
            math.fsum(self.keep**age for age in range(n)) for n in (self.since, len(self.records))
        )
        enough = len(self.records) >= 8 and 3 * self.since >= self.d
        if enough and fresh >= 0.05 * total * (1 - 1e-12):
            self.since = 0
            found = solve(merge_rows(self.rows(), self.keep), self.l2, real=self.real)
            if found is not None:
                units = [self.columns.unit(i) for i in range(self.d)]
                scaled = [w / unit if unit else 0.0 for w, unit in zip(found, units, strict=True)]
                self.iterates.append(scaled)
