"""How far one record can move the sequence of releases (PRIVACY.md 3, 4.3, 4.4, 7).

A record's *influence pattern* `v` says by how much, in units of the replacement
diameter D, it can change the averaged gradient at its own step (`v[0]`) and at the
steps after it. With correlated noise the l2 sensitivity of all releases together is
`D ||C v||`, because C is entrywise at least 0 and Toeplitz: directions that are
aligned are worst, and so is the earliest position (PRIVACY.md 4.3). Relation:
replace one record's content, label included; everything else equal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from streampair.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.correlated import Strategy

    Floats = NDArray[np.float64]

__all__ = ["fifo_pattern", "grid_step", "moment_sensitivities", "pattern_sensitivity"]


def fifo_pattern(size: int, length: int | None = None) -> Floats:
    """Influence pattern of FIFO(size): `1`, then `1/size` for `size` steps (PRIVACY.md 3).

    Parameters
    ----------
    size
        Records in the buffer, and the constant denominator.
    length
        Steps of the run, if it ends; a longer pattern is cut there.

    Examples
    --------
    >>> from streampair.privacy import fifo_pattern
    >>> fifo_pattern(2)
    array([1. , 0.5, 0.5])
    """
    if size < 1:
        raise ConfigError(f"a buffer of {size} records", fix="give a size of at least 1")
    steps = size + 1 if length is None else min(size + 1, length)
    pattern = np.full(steps, 1.0 / size)
    pattern[:1] = 1.0
    return pattern


def pattern_sensitivity(
    strategy: Strategy,
    pattern: Floats,
    diameter: float = 1.0,
    *,
    grid: float = 0.0,
    dim: int = 1,
    steps: int | None = None,
) -> float:
    """`||C (D v + grid sqrt(dim) 1[v > 0])||`: l2 sensitivity of `steps` releases.

    Parameters
    ----------
    strategy
        The matrix C.
    pattern
        v, from the record's own step on.
    diameter
        D of the pair loss, after clipping.
    grid
        Step of the grid that gradients are rounded to; the second term is what the
        rounding of both gradients can add (PRIVACY.md 7).
    dim
        Number of coordinates.
    steps
        Releases counted; None for all that the strategy covers, which is infinitely
        many for a BLT without a horizon.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy import Toeplitz, pattern_sensitivity
    >>> round(pattern_sensitivity(Toeplitz.square_root(3), np.array([1.0]), 2.0), 6)
    2.358495
    """
    extended = diameter * pattern + grid * math.sqrt(dim) * (pattern > 0)
    return strategy.norm(extended, steps)


def grid_step(strategy: Strategy, pattern: Floats, diameter: float, dim: int) -> float:
    """The largest power of two whose rounding adds at most 1 % to the sensitivity (PRIVACY.md 7)."""
    room = 0.01 * diameter * strategy.norm(pattern, None)
    step = room / (math.sqrt(dim) * strategy.norm((pattern > 0).astype(np.float64), None))
    return math.ldexp(1.0, math.frexp(step)[1] - 1)


def moment_sensitivities(dim: int, slots: int) -> tuple[float, float]:
    """l2 sensitivities of the means of x and of x^2 over `slots` records in [-1, 1]^dim (PRIVACY.md 4.4).

    A null record adds 0 and the divisor stays the number of slots.

    Examples
    --------
    >>> from streampair.privacy import moment_sensitivities
    >>> moment_sensitivities(4, 100)
    (0.04, 0.02)
    """
    root = math.sqrt(dim)
    return 2.0 * root / slots, root / slots
