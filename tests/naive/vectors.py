"""Vectors as lists."""

from __future__ import annotations

import math

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
