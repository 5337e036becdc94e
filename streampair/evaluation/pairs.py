"""Arguments of the pair loss as affine functions of the weights, for the search of the comparator."""

from __future__ import annotations

import abc
import math
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streampair.kernels import symmetric

__all__ = ["Linear", "Pairs", "Quadratic"]

Array = NDArray[np.float64]

#: Multiplications in a product of matrices that BLAS does in one thread.
_PRODUCT = 1 << 17


class Pairs(abc.ABC):
    """Loss arguments of n pairs, affine in the weights, and the set of admissible weights.

    Attributes
    ----------
    size
        Number of weights.
    patience
        How many times the usual number of iterations a search may need.
    """

    size: int
    patience: int = 1

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def arguments(self, w: Array) -> Array:
        """Argument of the loss of each pair, (n,), for the weights (size,)."""

    @abc.abstractmethod
    def gradient(self, slopes: Array) -> Array:
        """Gradient (size,) of the sum of losses with these slopes (n,)."""

    @abc.abstractmethod
    def reach(self) -> float:
        """Mean squared norm of the gradient of an argument."""

    @abc.abstractmethod
    def only(self, use: NDArray[np.bool_]) -> Self:
        """Those of the pairs."""

    def project(self, w: Array, radius: float) -> Array:
        """Project weights onto the admissible set."""
        norm = math.sqrt(float(w @ w))
        return w * (radius / norm) if norm > radius else w

    def begin(self, start: Array) -> Array:
        """Start of a search, from earlier weights of perhaps fewer features."""
        out = np.zeros(self.size)
        n = min(self.size, len(start))
        out[:n] = start[:n]
        return out


class Linear(Pairs):
    """``rows @ w``, or ``rows @ w + offset``.

    Parameters
    ----------
    rows
        (n, d).
    offset
        (n,); None: zero.
    """

    def __init__(self, rows: Array, offset: Array | None = None) -> None:
        self._rows, self._offset = rows, offset
        self.size = rows.shape[1]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> Array | None:
        """What the arguments are products with; None if there is more to them."""
        return self._rows if self._offset is None else None

    def arguments(self, w: Array) -> Array:
        """As in the base."""
        out: Array = self._rows @ w
        return out if self._offset is None else out + self._offset

    def gradient(self, slopes: Array) -> Array:
        """As in the base."""
        return self._rows.T @ slopes

    def reach(self) -> float:
        """As in the base."""
        return float(np.mean(np.einsum("ij,ij->i", self._rows, self._rows)))

    def only(self, use: NDArray[np.bool_]) -> Linear:
        """As in the base."""
        return Linear(self._rows[use], None if self._offset is None else self._offset[use])


class Quadratic(Pairs):
    """``sign (1 - u'Wu)``, for symmetric matrices W.

    The weights are the entries of W, row by row. No row of all products of two features is ever made, so that
    memory is that of the differences.

    Parameters
    ----------
    differences
        u of each pair, (n, d).
    signs
        (n,), 1 for pairs that are to be near, -1 for those that are to be far apart.
    psd
        Whether W has to be positive semi-definite.
    """

    # Products of features are of more different sizes than features.
    patience = 2

    def __init__(self, differences: Array, signs: Array, *, psd: bool) -> None:
        self._u, self._signs, self._psd = differences, signs, psd
        n, self._d = differences.shape
        self.size = self._d * self._d
        # In blocks, so that each product is too small to be shared out among threads: those would spin while
        # others learn, for many times the time of the product.
        block = max(1, min(n, _PRODUCT // max(1, self.size)))
        padded = np.zeros((-(-n // block) * block, self._d))
        padded[:n] = differences
        self._blocks = padded.reshape(-1, block, self._d)

    def __len__(self) -> int:
        return len(self._u)

    def arguments(self, w: Array) -> Array:
        """As in the base."""
        rows = self._blocks @ w.reshape(self._d, self._d)
        squared = np.einsum("kij,kij->ki", rows, self._blocks).ravel()[: len(self._u)]
        out: Array = self._signs * (1.0 - squared)
        return out

    def gradient(self, slopes: Array) -> Array:
        """As in the base."""
        factors = np.zeros(self._blocks.shape[:2])
        factors.ravel()[: len(self._u)] = -(self._signs * slopes)
        out: Array = (self._blocks.transpose(0, 2, 1) @ (factors[:, :, None] * self._blocks)).sum(axis=0)
        return (0.5 * (out + out.T)).ravel()

    def reach(self) -> float:
        """As in the base."""
        return float(np.mean(np.einsum("ij,ij->i", self._u, self._u) ** 2))

    def only(self, use: NDArray[np.bool_]) -> Quadratic:
        """As in the base."""
        return Quadratic(self._u[use], self._signs[use], psd=self._psd)

    def project(self, w: Array, radius: float) -> Array:
        """On the cone first, then on the ball around its apex: on a cone the two make one projection."""
        if self._psd:
            nearest = w.reshape(self._d, self._d).copy()
            symmetric.project_psd(nearest)
            w = nearest.ravel()
        return super().project(w, radius)

    def begin(self, start: Array) -> Array:
        """Nothing of a matrix of fewer features is of use."""
        return start.copy() if len(start) == self.size else np.zeros(self.size)
