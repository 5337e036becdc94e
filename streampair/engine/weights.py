"""A learner's weights for a lane's gauges: their norm, and the largest of them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["largest_weights", "weight_norm"]

Weights = Mapping[Any, float]


def weight_norm(weights: Weights | None) -> float | None:
    """L2 norm of the weights; None without a table of them, or where one is no number."""
    if weights is None:
        return None
    try:
        return math.sqrt(math.fsum(float(value) ** 2 for value in weights.values()))
    except (TypeError, ValueError, OverflowError):
        return None


def largest_weights(
    weights: Weights | None, noise: Weights | None, most: int
) -> tuple[tuple[str, float, float | None], ...]:
    """The largest weights, by name, each with the standard deviation of the noise in it if that is known.

    Of a metric, whose weights have two names, each once. Empty without a table, or where one is no number.
    """
    if weights is None:
        return ()
    found: dict[str, tuple[str, float, float | None]] = {}
    try:
        for name in heapq.nlargest(2 * most, weights, key=lambda name: abs(float(weights[name]))):
            names = sorted(map(str, name)) if isinstance(name, tuple) else [str(name)]
            text = " * ".join(names)
            error = None if noise is None else float(noise[name])
            found.setdefault(text, (text, float(weights[name]), error))
    except (TypeError, ValueError, OverflowError):
        return ()
    return tuple(found.values())[:most]
