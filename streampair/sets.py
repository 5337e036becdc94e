"""Sets that weights are kept in: each projects on its nearest point.

The learners project in their kernels; these are the same sets for use outside, in batch learners and tests.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from river import base

from streampair import kernels
from streampair.errors import ConfigError

__all__ = ["FrobeniusBall", "L2Ball", "PSDCone"]

Array = NDArray[np.float64]


def _check_radius(radius: float) -> float:
    if not (isinstance(radius, int | float) and math.isfinite(radius) and radius > 0.0):
        raise ConfigError(f"radius is {radius!r}", fix="give a finite radius above 0")
    return radius


def _into_ball(w: Array, radius: float) -> Array:
    norm = float(np.linalg.norm(w))
    return w * (radius / norm) if norm > radius else w.copy()


def _check_matrix(w: Array) -> None:
    if w.ndim != 2 or w.shape[0] != w.shape[1] or not np.isfinite(w).all():
        raise ConfigError(
            f"an array of shape {w.shape} is projected as a matrix",
            fix="give a square matrix of finite numbers",
        )


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
        self.radius = _check_radius(radius)

    def project(self, w: Array) -> Array:
        """Nearest point of the ball, as a new array of the same shape ``(d,)``."""
        return _into_ball(w, self.radius)

    def __repr__(self) -> str:
        return f"L2Ball(radius={self.radius!r})"

    __str__ = __repr__


class FrobeniusBall(base.Base):
    """The symmetric matrices with Frobenius norm at most `radius`.

    Parameters
    ----------
    radius
        Finite, above 0.

    Raises
    ------
    ConfigError
        If the radius is not finite and above 0.

    References
    ----------
    Huai, M. et al. (2020). Pairwise learning with differential privacy guarantees. AAAI. Example 1.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import sets
    >>> sets.FrobeniusBall(1.0).project(np.array([[0.0, 2.0], [0.0, 0.0]])).round(3)
    array([[0.   , 0.707],
           [0.707, 0.   ]])
    """

    def __init__(self, radius: float = 1.0) -> None:
        self.radius = _check_radius(radius)

    def project(self, w: Array) -> Array:
        """Nearest symmetric matrix in the ball, as a new array of the same shape ``(d, d)``.

        Raises
        ------
        ConfigError
            If w is no square matrix of finite numbers.
        """
        _check_matrix(w)
        return _into_ball(0.5 * (w + w.T), self.radius)

    def __repr__(self) -> str:
        return f"FrobeniusBall(radius={self.radius!r})"

    __str__ = __repr__


class PSDCone(base.Base):
    """The positive semi-definite matrices with Frobenius norm at most `radius`.

    The projection on the cone, then on the ball: the ball is around the cone's apex, so that this is the
    projection on both at once (Bauschke, Bui and Wang 2018).

    Parameters
    ----------
    radius
        Above 0; infinity for the whole cone.

    Raises
    ------
    ConfigError
        If the radius is not above 0.

    References
    ----------
    Bauschke, H. H., Bui, M. N. and Wang, X. (2018). Projecting onto the intersection of a cone and a sphere.
    SIAM Journal on Optimization 28.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import sets
    >>> sets.PSDCone(1.0).project(np.array([[0.0, 1.0], [1.0, 0.0]]))
    array([[0.5, 0.5],
           [0.5, 0.5]])
    >>> sets.PSDCone().project(np.array([[4.0, 0.0], [0.0, -1.0]]))
    array([[4., 0.],
           [0., 0.]])
    """

    def __init__(self, radius: float = math.inf) -> None:
        self.radius = radius if radius == math.inf else _check_radius(radius)

    def project(self, w: Array) -> Array:
        """Nearest such matrix, as a new array of the same shape ``(d, d)``; symmetrised first.

        Raises
        ------
        ConfigError
            If w is no square matrix of finite numbers.
        """
        _check_matrix(w)
        out = np.ascontiguousarray(0.5 * (w + w.T))
        kernels.project_psd(out)
        return _into_ball(out, self.radius)

    def __repr__(self) -> str:
        return f"PSDCone(radius={self.radius!r})"

    __str__ = __repr__
