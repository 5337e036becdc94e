"""Sets that weights are kept in."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from river import base

from streampair.errors import ConfigError

__all__ = ["L2Ball"]


class L2Ball(base.Base):
    """The ball of all vectors with l2 norm at most `radius`.

    Parameters
    ----------
    radius
        Finite, above 0.

    Raises
    ------
    ConfigError
        If the radius is not finite and above 0.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import sets
    >>> sets.L2Ball(1.0).project(np.array([3.0, 4.0]))
    array([0.6, 0.8])
    """

    def __init__(self, radius: float = 1.0) -> None:
        if not (isinstance(radius, int | float) and math.isfinite(radius) and radius > 0.0):
            raise ConfigError(f"radius is {radius!r}", fix="give a finite radius above 0")
        self.radius = radius

    def project(self, w: NDArray[np.float64]) -> NDArray[np.float64]:
        """Nearest point of the ball, as a new array of the same shape ``(d,)``."""
        norm = float(np.linalg.norm(w))
        return w * (self.radius / norm) if norm > self.radius else w.copy()

    def __repr__(self) -> str:
        return f"L2Ball(radius={self.radius!r})"

    __str__ = __repr__
