"""Moments of a table pooled with those of a stream, and their comparison: docs/privacy 4.6, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def record_weights(
    ends: Sequence[int], steps: int, keep: float, sigma: float, last: tuple[float, Sequence[float]] | None
) -> list[float]:
    """What each record of `steps` counts for in the best combination of the releases.

    `ends` are the blocks' ends. `last` is the noise of the release at the horizon, and the weight of each
    block in it, the one that the horizon ends included; None: it has not come.
    """
    block_of = [sum(slot > end for end in ends) for slot in range(1, steps + 1)]
    total = [0.0] * steps
    for release, end in enumerate(ends):
        counts = [keep ** (release - block) if block <= release else 0.0 for block in block_of]
        slots = sum(counts)
        total = [t + slots * count / sigma**2 for t, count in zip(total, counts, strict=True)]
        assert end <= steps
    if last is not None:
        noise, shares = last
        counts = [shares[block] for block in block_of]
        total = [t + sum(counts) * count / noise**2 for t, count in zip(total, counts, strict=True)]
    return total


def effective_records(weights: Sequence[float]) -> float:
    """How many records of equal weight have a mean of the same variance."""
    return sum(weights) ** 2 / sum(weight**2 for weight in weights)


def shares(
    table_noise: float, own_noise: float, rows: int, slots: int, most: int | None, second: Matrix
) -> tuple[float, float]:
    """Weights by the inverse variances, of noise and of sampling."""
    d = len(second)
    sampled = sum(second[i][i] for i in range(d)) / (d * (d + 1) / 2)
    counted = rows if most is None or rows <= most else most
    table = 1.0 / (table_noise + sampled / counted)
    learner = 1.0 / (own_noise + sampled / slots)
    return table / (table + learner), learner / (table + learner)


def largest_eigenvalue(matrix: Matrix, turns: int = 5000) -> float:
    """By powers of the matrix, plus enough to make it positive."""
    d = len(matrix)
    shift = sum(abs(cell) for row in matrix for cell in row)
    v = [1.0 + 0.1 * i for i in range(d)]
    for _ in range(turns):
        w = [sum(matrix[i][j] * v[j] for j in range(d)) + shift * v[i] for i in range(d)]
        length = math.sqrt(sum(x * x for x in w))
        v = [x / length for x in w]
    return sum(v[i] * matrix[i][j] * v[j] for i in range(d) for j in range(d))


def most_squares(cells: int, look: int, runs: int) -> float:
    """The least bound that Chernoff gives for the level of the look, by halving."""
    level = 1.0 / (2 * runs * look * (look + 1))
    low, high = 1.0, 1e6
    for _ in range(200):
        middle = 0.5 * (low + high)
        above = -0.5 * cells * (middle - 1.0 - math.log(middle)) > math.log(level)
        low, high = (middle, high) if above else (low, middle)
    return cells * high


def leaf_shares(
    table_noise: float, own_noise: float, rows: int, slots: int, most: int | None, sampled: float
) -> tuple[float, float]:
    """Weights of leaves and bins by the inverse variances; `sampled`: of one record, the mean over cells."""
    counted = rows if most is None or rows <= most else most
    table = 1.0 / (table_noise + sampled / counted)
    learner = 1.0 / (own_noise + sampled / slots)
    return table / (table + learner), learner / (table + learner)


def leaf_distance(
    ours: Sequence[float],
    theirs: Sequence[float],
    noises: tuple[float, float],
    records: tuple[float, float],
    leaves: int,
    weights: tuple[float, float],
) -> tuple[float, float]:
    """Squared distance of the cells in standard deviations, and the largest share of sampling in a variance.

    `ours` and `theirs` have counts and labels of so many leaves, then bins; `weights` are those of a record
    in a leaf and in a bin, `noises` and `records` those of both sides, the second one's of the table.
    """
    total = most = 0.0
    inverse = 1.0 / records[0] + 1.0 / records[1]

    def add(stream: float, table: float, weight: float) -> None:
        nonlocal total, most
        share = max(stream, table, 0.0) / weight
        sampled = weight * weight * share * inverse
        variance = noises[0] + noises[1] + sampled
        total += (stream - table) ** 2 / variance
        most = max(most, sampled / variance)

    for leaf in range(leaves):
        for sign in (1.0, -1.0):
            stream = (ours[leaf] + sign * ours[leaves + leaf]) / math.sqrt(2.0)
            table = (theirs[leaf] + sign * theirs[leaves + leaf]) / math.sqrt(2.0)
            add(stream, table, math.sqrt(2.0) * weights[0])
    for stream, table in zip(ours[2 * leaves :], theirs[2 * leaves :], strict=True):
        add(stream, table, weights[1])
    return total, most
