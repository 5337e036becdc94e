"""Least squares with the full history, pair by pair."""

from __future__ import annotations

from typing import Any

from naive.history import FullHistory


class LeastSquares(FullHistory):
    """The squared loss of all pairs, each of them looked at."""

    def __init__(self, d: int, radius: float, l2: float, **options: Any) -> None:
        super().__init__(d, "Square", radius, l2, **options)
