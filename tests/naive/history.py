"""The gradient with all records of the past."""

from __future__ import annotations

import math
from typing import Any

from naive.losses import loss_slope
from naive.ogd import PairOGD
from naive.vectors import dot


def history_gradient(
    w: list[float], x: list[float], y: float, records: list[Any], loss: str, width: float = 1.0
) -> list[float]:
    """Sum of the pair gradients of (x, y) with all records.

    Records may be shorter than x: features that came later are 0.
    """
    terms: list[list[float]] = []
    for x2, y2 in records:
        u = [a - b for a, b in zip(x, [*x2, *[0.0] * (len(x) - len(x2))], strict=True)]
        if loss == "MinimumErrorEntropy":
            error = y - y2 - dot(w, u)
            slope = -error * math.exp(-(error**2) / (2 * width**2))
        else:
            slope = (y - y2) * loss_slope(loss, (y - y2) * dot(w, u))
        terms.append([slope * v for v in u])
    return [math.fsum(g[i] for g in terms) for i in range(len(x))]


def history_store(records: list[Any], x: list[float], y: float) -> list[Any]:
    return [*records, (x, y)]


class FullHistory(PairOGD):
    """Descent on the pairs with every record of the past."""

    def __init__(
        self, d: int, loss: str, radius: float, l2: float, width: float = 0.0, **options: Any
    ) -> None:
        super().__init__(d, loss, "full", 1, options.pop("rate", None), radius, l2, width=width, **options)
