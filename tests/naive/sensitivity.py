"""How far a record moves a run (docs/privacy 4.1): every record by itself, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def moves(
    position: int,
    etas: Sequence[float],
    factors: Sequence[float],
    *,
    size: int,
    uses: int | None,
    diameter: float,
    radius: float = float("inf"),
    filling: bool = True,
) -> np.ndarray:
    """How far the record of a slot (from 0) can move each iterate; size 0 is the full history.

    Not `filling`: the own step of every record is taken as if the buffer were full.
    """
    v, out = 0.0, np.zeros(len(etas))
    for t in range(position, len(etas)):
        age = t - position
        if age == 0:
            # A pair with each record before it, as far as the buffer has places; none with empty ones.
            pairs = min(position, size) if size else position
            push = pairs / (size or max(position, 1)) if filling else 1.0
        elif uses is not None and age > uses:
            push = 0.0
        else:
            push = 1.0 / size if size else 1.0 / t  # slot t + 1 has t partners
        v = min(2 * radius, factors[t] * v + etas[t] * diameter * push)
        out[t] = v
    return out


def worst(
    etas: Sequence[float],
    factors: Sequence[float],
    grids: np.ndarray,
    precisions: np.ndarray,
    **buffer: float,
) -> tuple[np.ndarray, float]:
    """Largest move at each step, and largest cost of one record."""
    every = np.array([moves(i, etas, factors, **buffer) for i in range(len(etas))])  # type: ignore[arg-type]
    visible = np.triu(np.ones_like(every))  # a record moves nothing before its slot
    costs = ((every + grids * visible) ** 2 * precisions).sum(axis=1)
    return every.max(axis=0), float(costs.max())


def fifo_influence(position: int, steps: int, size: int) -> np.ndarray:
    """v of the record at a position (from 0): 1 at its own step, 1/size in the next `size` steps."""
    v = np.zeros(steps)
    v[position] = 1.0
    v[position + 1 : position + 1 + size] = 1.0 / size
    return v


def pairs(
    etas: Sequence[float], factors: Sequence[float], precisions: np.ndarray, *, window: int, **buffer: float
) -> tuple[np.ndarray, np.ndarray]:
    """Largest move at each step of records that are out of the buffer; and what lasts of each record's moves.

    The latter is its product, over the releases, with a move of 1 at its own step that only decays.
    """
    n = len(etas)
    every = np.array(
        [moves(i, etas, factors, uses=window, filling=False, **buffer) for i in range(n)]  # type: ignore[arg-type]
    )
    merged, lasting = np.zeros(n), np.zeros(n)
    for t in range(n):
        merged[t] = max((every[i, t] for i in range(t - window)), default=0.0)
        decayed = np.array([np.prod(factors[t + 1 : u + 1]) for u in range(t, n)])
        lasting[t] = float(np.sum(precisions[t:] * decayed * every[t, t:]))
    return merged, lasting
