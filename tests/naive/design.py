"""From raw values to the vector that is learned."""

from __future__ import annotations

import math
from collections.abc import Sequence

from naive.vectors import Vector


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
