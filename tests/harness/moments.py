"""What tests of mechanisms over sums of records share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streampair.privacy.noise import NormalStream

__all__ = ["Silent", "climb", "same_in_parts"]


class Silent(NormalStream):
    """Normals that are all 0."""

    def __init__(self) -> None:
        super().__init__(0)

    def take(self, count: int) -> np.ndarray:
        return np.zeros((2, count))


def climb(
    distance: Callable[[np.ndarray], float],
    rng: np.random.Generator,
    size: int,
    *,
    starts: int,
    steps: int,
    shrink: float = 0.98,
) -> float:
    """The largest distance that hill climbing finds, from the best of some normal points of this size."""
    best = max((rng.normal(size=size) for _ in range(starts)), key=distance)
    value, step = distance(best), 0.5
    for _ in range(steps):
        trial = best + step * rng.normal(size=size)
        if (moved := distance(trial)) > value:
            best, value = trial, moved
        else:
            step *= shrink
    return value


def same_in_parts(make: Callable[[], Any], dim: int, count: int) -> Any:
    """A mechanism that has learned records: the bits of any parts of them, and from a saved state on."""
    rng = np.random.default_rng(0)
    rows, labels = rng.uniform(-0.5, 0.5, (count, dim)), rng.choice([1.0, -1.0, math.nan], count)
    whole, *others = (
        _learned(make, rows, labels, *parts)
        for parts in (([],), ([1, 2, 3, 250, 251, count - 100],), ([300, 301], 301))
    )
    for other in others:
        for name, value in whole.to_state().items():
            assert np.array_equal(value, other.to_state()[name]), name
    return whole


def _learned(
    make: Callable[[], Any], rows: np.ndarray, labels: np.ndarray, cuts: Sequence[int], copy_at: int = -1
) -> Any:
    """A mechanism that has learned records in parts, and went on from its saved state at one of the cuts."""
    rule, noise = make(), NormalStream(1)
    rule.centre(-0.25)
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        if begin == copy_at:
            again = make()
            again.load_state(rule.to_state())
            rule = again
        rule.learn(rows[begin:end], labels[begin:end], noise)
    return rule
