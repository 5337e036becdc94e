"""Pair losses: what a wrongly ordered pair costs, and the constants that privacy needs of it.

A pair loss is a convex function of the margin ``m = c w.(x - x')`` with ``c = y - y'`` in {-2, 0, 2}
("raw" labels, ``k = 2`` in PRIVACY.md 2): positive when the pair is ranked correctly. Pairs of equal labels
cost nothing and have no gradient.
"""

from __future__ import annotations

import abc
import math
from typing import overload

import numpy as np
from numpy.typing import NDArray
from river import base
from scipy.special import expit

from streampair import _kernels
from streampair.errors import ConfigError

__all__ = ["Hinge", "Logistic", "PairLoss", "Square", "SquaredHinge"]

_K = 2.0  # raw labels: |y - y'| is 0 or 2


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0.0):
        raise ConfigError(f"{name} is {value!r}", fix=f"give a finite {name} above 0")
    return float(value)


class PairLoss(base.Base, abc.ABC):
    """Base of the pair losses: parameters only, no state.

    `code` is the integer by which the compiled kernels know the loss.
    """

    code: int

    @abc.abstractmethod
    def _value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]: ...

    @abc.abstractmethod
    def _slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]: ...

    @overload
    def value(self, margin: float) -> float: ...
    @overload
    def value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def value(self, margin: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """Loss at a margin (a float, or an array of any shape, element by element)."""
        out = self._value(np.asarray(margin, dtype=np.float64))
        return out if isinstance(margin, np.ndarray) else float(out)

    @overload
    def slope(self, margin: float) -> float: ...
    @overload
    def slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def slope(self, margin: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """Derivative at a margin; where there is none, the subgradient of smallest size."""
        out = self._slope(np.asarray(margin, dtype=np.float64))
        return out if isinstance(margin, np.ndarray) else float(out)

    @abc.abstractmethod
    def lipschitz(self, feature_bound: float, radius: float) -> float:
        """Largest norm G of the gradient of one pair, for ``|x| <= feature_bound``, ``|w| <= radius``."""

    @abc.abstractmethod
    def smoothness(self, feature_bound: float, radius: float) -> float:
        """Lipschitz constant L of that gradient in w."""

    def diameter(self, feature_bound: float, radius: float, clip: float | None = None) -> float:
        """Replacement diameter D: how far one pair's gradient moves when one of its records is replaced.

        Parameters
        ----------
        feature_bound
            B, the bound on the l2 norm of every record.
        radius
            R, the bound on the l2 norm of the weights.
        clip
            Largest norm that a pair's gradient is clipped to, or None.

        Notes
        -----
        For two classes and a convex decreasing loss D = G, half of the obvious 2G (PRIVACY.md 2); with
        per-pair clipping it is at most ``2 clip`` too.
        """
        d = self._diameter(feature_bound, radius)
        return d if clip is None else min(2.0 * _positive("clip", clip), d)

    def _diameter(self, feature_bound: float, radius: float) -> float:
        return self.lipschitz(feature_bound, radius)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class Logistic(PairLoss):
    """Logistic pair loss ``log(1 + exp(-m))``: smooth.

    Examples
    --------
    >>> from streampair import losses
    >>> loss = losses.Logistic()
    >>> round(loss.value(0.0), 4), loss.slope(0.0)
    (0.6931, -0.5)
    >>> loss.smoothness(feature_bound=1.0, radius=1.0)
    4.0
    """

    code = _kernels.LOGISTIC

    def _value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.logaddexp(0.0, -margin)

    def _slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        out: NDArray[np.float64] = -expit(-margin)
        return out

    def lipschitz(self, feature_bound: float, radius: float) -> float:
        b, r = _positive("feature_bound", feature_bound), _positive("radius", radius)
        return 2.0 * _K * b * float(expit(2.0 * _K * b * r))

    def smoothness(self, feature_bound: float, radius: float) -> float:
        b, _ = _positive("feature_bound", feature_bound), _positive("radius", radius)
        return _K**2 * b**2


class Hinge(PairLoss):
    """Hinge pair loss ``max(0, 1 - m)``: not smooth.

    Examples
    --------
    >>> from streampair import losses
    >>> loss = losses.Hinge()
    >>> loss.value(0.25), loss.slope(0.25), loss.slope(2.0)
    (0.75, -1.0, 0.0)
    >>> loss.diameter(feature_bound=1.0, radius=3.0, clip=1.0)
    2.0
    """

    code = _kernels.HINGE

    def _value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(0.0, 1.0 - margin)

    def _slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(margin < 1.0, -1.0, 0.0)

    def lipschitz(self, feature_bound: float, radius: float) -> float:
        b, _ = _positive("feature_bound", feature_bound), _positive("radius", radius)
        return 2.0 * _K * b

    def smoothness(self, feature_bound: float, radius: float) -> float:
        """Refused: the hinge has a kink, so no finite constant exists.

        Raises
        ------
        ConfigError
            Always.
        """
        raise ConfigError(
            "the hinge loss is not smooth: its slope jumps at margin 1, so it has no smoothness constant",
            fix="use losses.Logistic() or losses.SquaredHinge() where a smooth loss is needed",
        )


class SquaredHinge(PairLoss):
    """Squared hinge pair loss ``max(0, 1 - m)^2``: smooth.

    Examples
    --------
    >>> from streampair import losses
    >>> losses.SquaredHinge().value(-1.0), losses.SquaredHinge().slope(-1.0)
    (4.0, -4.0)
    """

    code = _kernels.SQUARED_HINGE

    def _value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.square(np.maximum(0.0, 1.0 - margin))

    def _slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return -2.0 * np.maximum(0.0, 1.0 - margin) + 0.0  # + 0.0: no negative zero

    def lipschitz(self, feature_bound: float, radius: float) -> float:
        b, r = _positive("feature_bound", feature_bound), _positive("radius", radius)
        return 4.0 * _K * b * (1.0 + 2.0 * _K * b * r)

    def smoothness(self, feature_bound: float, radius: float) -> float:
        b, _ = _positive("feature_bound", feature_bound), _positive("radius", radius)
        return 8.0 * _K**2 * b**2


class Square(PairLoss):
    """Least squares pair loss ``(1 - m)^2``: smooth, and also pulls pairs that are ranked too well.

    It is not decreasing, so its replacement diameter is the full 2G.

    Examples
    --------
    >>> from streampair import losses
    >>> losses.Square().value(3.0), losses.Square().slope(3.0)
    (4.0, 4.0)
    """

    code = _kernels.SQUARE

    def _value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.square(1.0 - margin)

    def _slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return 2.0 * (margin - 1.0)

    def lipschitz(self, feature_bound: float, radius: float) -> float:
        b, r = _positive("feature_bound", feature_bound), _positive("radius", radius)
        return 4.0 * _K * b * (1.0 + 2.0 * _K * b * r)

    def smoothness(self, feature_bound: float, radius: float) -> float:
        b, _ = _positive("feature_bound", feature_bound), _positive("radius", radius)
        return 8.0 * _K**2 * b**2

    def _diameter(self, feature_bound: float, radius: float) -> float:
        return 2.0 * self.lipschitz(feature_bound, radius)
