"""Records that have few of many features, as dicts by place: the zeros are written out."""

from __future__ import annotations


def scatter(values: dict[int, float], fill: float, d: int) -> list[float]:
    """A row of d values, of which only some are given, by their places."""
    return [values.get(i, fill) for i in range(d)]
