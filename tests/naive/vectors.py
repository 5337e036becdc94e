"""Vectors as lists, and the way from raw values to the vector that is learned."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(p * q for p, q in zip(a, b, strict=True))


def project_ball(w: list[float], radius: float) -> list[float]:
    norm = math.sqrt(dot(w, w))
    return [v * radius / norm for v in w] if norm > radius else list(w)


Vector = list[float]


def ball(w: np.ndarray, radius: float) -> np.ndarray:
    norm = float(np.linalg.norm(w))
    return w * (radius / norm) if norm > radius else w


def first_unusable(x: list[float], limit: float = 1e50) -> int:
    """Index of the first value that is not finite or too large; -1 if there is none."""
    return next((i for i, v in enumerate(x) if math.isnan(v) or abs(v) > limit), -1)


def first_beyond(x: list[float], limit: float) -> int:
    """Index of the first value that is not finite or beyond a limit; -1 if there is none."""
    return first_unusable(x, limit)


def unusable_row(rows: list[list[float]], limit: float) -> int:
    """1 + the flat index of the first such value; 0 if there is none."""
    return 1 + first_unusable([v for row in rows for v in row], limit)


def score_many(w: list[float], rows: list[list[float]]) -> list[float]:
    return [dot(w, row) for row in rows]


def rows_of_columns(columns: list[list[float]], order: list[int]) -> list[list[float]]:
    """Rows from columns, of which ``order[j]`` becomes feature j."""
    return [list(row) for row in zip(*(columns[c] for c in order), strict=True)]


def prepared(
    raw: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    moments: tuple[Vector, Vector] | None,
    cap: float = math.inf,
) -> Vector:
    """The design of a record: declared bounds to [-1, 1], standardised, capped, on the unit ball."""
    x = []
    for i, (value, (low, high)) in enumerate(zip(raw, bounds, strict=True)):
        if not math.isfinite(value):
            x.append(0.0)
            continue
        scaled = (2 * value - low - high) / (high - low)
        if moments is not None:
            mean, std = moments[0][i], moments[1][i]
            scaled = (min(max(scaled, -1.0), 1.0) - mean) / std / math.sqrt(len(raw))
            scaled = min(max(scaled, -cap), cap)
        x.append(scaled)
    norm = math.hypot(*x)
    return [v / norm for v in x] if norm > 1 else x


def clipped(raw: Sequence[float], scale: Sequence[float], shift: Sequence[float]) -> Vector:
    """The values scaled by their bounds, clipped to [-1, 1]; all 0 if one of them is not finite."""
    if not all(math.isfinite(v) for v in raw):
        return [0.0] * len(raw)
    return [min(max(v * a + b, -1.0), 1.0) for v, a, b in zip(raw, scale, shift, strict=True)]
