"""Rows of a table in whole steps, and hashes of its row ids, in Python's numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from naive.table_moments import steps_in_ball
from naive.vectors import prepared

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def design_columns(
    rows: Sequence[Sequence[float]],
    bounds: Sequence[tuple[float, float]],
    moments: tuple[list[float], list[float]],
    cap: float,
    labels: Sequence[float],
) -> tuple[list[list[float]], list[float]]:
    """Vectors of the rows, and labels, NaN where a value is not finite."""
    out = [
        label if all(map(math.isfinite, row)) else math.nan for row, label in zip(rows, labels, strict=True)
    ]
    return [prepared(row, bounds, moments, cap) for row in rows], out


def ball_steps(rows: Sequence[Sequence[float]], labels: Sequence[float]) -> list[list[int]]:
    """Whole steps of the rows, 0 for a row without a label."""
    return [
        [0] * len(row) if math.isnan(label) else steps_in_ball(row)
        for row, label in zip(rows, labels, strict=True)
    ]


def mixed(word: int) -> int:
    """SplitMix64."""
    word = (word + GOLDEN) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def id_hashes(ids: Sequence[int], first: int, second: int) -> list[int]:
    """Hashes of numbers under a key of two words."""
    return [mixed(mixed(number ^ first) ^ second) for number in ids]


def id_sum(hashes: Sequence[int]) -> int:
    """A sum over hashes."""
    return sum(mixed(word ^ GOLDEN) for word in hashes) & MASK


def repeated(hashes: Sequence[int]) -> int:
    """How many have come before."""
    return len(hashes) - len(set(hashes))
