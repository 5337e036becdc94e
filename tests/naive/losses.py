"""Pair losses by their names, as textbooks write them, and by their codes."""

from __future__ import annotations

import math

from naive.numerics import sigmoid

#: By code.
NAMES = ("Logistic", "Hinge", "SquaredHinge", "Square", "MinimumErrorEntropy")


def loss_value(name: str, m: float) -> float:
    if name == "Hinge":
        return max(0.0, 1.0 - m)
    if name == "SquaredHinge":
        return max(0.0, 1.0 - m) ** 2
    if name == "Square":
        return (1.0 - m) ** 2
    if name == "Logistic":
        return math.log1p(math.exp(-m)) if m > 0 else -m + math.log1p(math.exp(m))
    raise ValueError(name)


def loss_slope(name: str, m: float) -> float:
    if name == "Hinge":
        return -1.0 if m < 1.0 else 0.0
    if name == "SquaredHinge":
        return -2.0 * max(0.0, 1.0 - m)
    if name == "Square":
        return -2.0 * (1.0 - m)
    if name == "Logistic":
        return -sigmoid(-m)
    raise ValueError(name)


def entropy(e: float, width: float) -> tuple[float, float]:
    """Value and slope of the minimum error entropy."""
    window = math.exp(-(e**2) / (2 * width**2))
    return width**2 * (1 - window), e * window


def loss_of_errors(name: str) -> bool:
    return name == "MinimumErrorEntropy"


def slope(code: int, m: float) -> float:
    """Derivative of the loss of a margin by its code."""
    return loss_slope(NAMES[code], m)


def pair_slope(name: str, c: float, s: float, width: float) -> float:
    """Derivative in s of the loss of a pair with the difference c of labels and s of scores."""
    return -entropy(c - s, width)[1] if name == "MinimumErrorEntropy" else c * loss_slope(name, c * s)
