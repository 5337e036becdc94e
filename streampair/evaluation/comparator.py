"""The comparator of the regret: the best fixed weights for a sample of pairs, and these pairs' losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy  # its modules are loaded on first use
from numpy.typing import NDArray

from streampair import losses
from streampair.kernels import symmetric

__all__ = ["Pairs", "QuadraticPairs", "SparsePairs", "minimise", "pairs_of"]

Array = NDArray[np.float64]


def minimise(
    pairs: Pairs,
    weights: Array,
    loss: Any,
    radius: float,
    start: Array,
    *,
    near: bool = False,
    iterations: int = 300,
) -> Array:
    """Minimise ``sum_j weights_j loss(arguments_j(w))`` over the weights w in a ball.

    Accelerated projected gradient with restarts (Beck and Teboulle 2009; O'Donoghue and Candes 2015); the
    step size is found by backtracking. The hinge is smoothed over a width that shrinks in stages.

    Parameters
    ----------
    pairs
        n pairs with d weights.
    weights
        (n,), nonnegative.
    loss
        With `value` and `slope`.
    radius
        Radius of the ball.
    start
        (d,).
    near
        Whether `start` is close to the minimum; the coarse stage is then left out.
    iterations
        Largest number of iterations in all stages together, before it is multiplied by the pairs' `patience`.

    Returns
    -------
    numpy.ndarray
        (d,), the best of the points seen under the loss itself.
    """
    mass = float(weights.sum())
    if not len(pairs) or mass <= 0.0 or not pairs.size:
        return start.copy()
    use = weights > 0.0
    pairs, share = pairs.only(use), weights[use] / mass
    hinge = type(loss) is losses.Hinge  # a subclass has a slope of its own
    widths: tuple[float, ...] = (0.0,)
    if hinge:
        widths = (0.05, 0.01) if near else (0.3, 0.05, 0.01)
    best = pairs.project(start, radius)
    best_value = float(share @ loss.value(pairs.arguments(best)))
    w = best
    # A first guess at the curvature: the backtracking corrects it.
    reach = pairs.reach() or 1.0
    for width in widths:
        most = pairs.patience * iterations // len(widths)
        w = _accelerate(pairs, share, loss, width, radius, w, reach, most)
        value = float(share @ loss.value(pairs.arguments(w)))
        if value < best_value:
            best, best_value = w, value
    return best


def _accelerate(
    pairs: Pairs,
    share: Array,
    loss: Any,
    width: float,
    radius: float,
    w: Array,
    reach: float,
    iterations: int,
) -> Array:
    def value_slope(margins: Array) -> tuple[float, Array]:
        if width > 0.0:
            # Hinge smoothed by a parabola of this width left of 1.
            u = np.clip((1.0 - margins) / width, 0.0, 1.0)
            return float(share @ (u * (1.0 - margins) - 0.5 * width * u * u)), -u
        return float(share @ loss.value(margins)), np.asarray(loss.slope(margins))

    curvature = reach / width if width > 0.0 else reach
    curvature *= 0.1
    momentum, v = 1.0, w
    # Affine in the weights, so that the arguments of a combination are that combination of the arguments.
    mw = pairs.arguments(w)
    mv = mw
    value = value_slope(mw)[0]
    for _ in range(iterations):
        fv, slope = value_slope(mv)
        gradient = pairs.gradient(share * slope)
        while True:
            new = pairs.project(v - gradient / curvature, radius)
            move = new - v
            mnew = pairs.arguments(new)
            f_new = value_slope(mnew)[0]
            bound = fv + float(gradient @ move) + 0.5 * curvature * float(move @ move)
            if f_new <= bound + 1e-12 * max(1.0, abs(fv)) or curvature > 1e15:
                break
            curvature *= 2.0
        if f_new > value:
            if momentum == 1.0:
                break  # a plain step from w does not help: done
            momentum, v, mv = 1.0, w, mw
            continue
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
        ahead = (momentum - 1.0) / following
        done = value - f_new < 1e-7 * max(abs(value), 1e-3) and float(np.max(np.abs(new - w))) < 1e-4 * radius
        v, mv = new + ahead * (new - w), mnew + ahead * (mnew - mw)
        w, mw, value, momentum = new, mnew, f_new, following
        if done:
            break
        curvature *= 0.95
    return w


#: A matrix with more entries than this for each that is not 0 is multiplied faster as a sparse one.
_SPARSE = 16
#: Multiplications in a product of matrices that BLAS does in one thread.
_PRODUCT = 1 << 17


def pairs_of(rows: Any, offset: Array | None = None) -> Pairs:
    """Pairs of these rows, an array or a sparse matrix; `SparsePairs` if nearly all of them is 0."""
    filled = np.count_nonzero(rows) if isinstance(rows, np.ndarray) else rows.nnz
    if filled * _SPARSE < rows.shape[0] * rows.shape[1]:
        return SparsePairs(scipy.sparse.csr_array(rows), offset)
    return Pairs(rows if isinstance(rows, np.ndarray) else rows.toarray(), offset)


class Pairs:
    """Loss arguments of n pairs, ``rows @ w`` or ``rows @ w + offset``, and the set of admissible weights.

    Parameters
    ----------
    rows
        (n, d), an array or a sparse matrix.
    offset
        (n,); None: zero.

    Attributes
    ----------
    size
        Number of weights.
    patience
        How many times the usual number of iterations a search may need.
    """

    patience = 1

    def __init__(self, rows: Any, offset: Array | None = None) -> None:
        self.rows, self.offset = rows, offset
        self.size = rows.shape[1]

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    def arguments(self, w: Array) -> Array:
        """Argument of the loss of each pair, (n,), for the weights (size,)."""
        out: Array = self.rows @ w
        return out if self.offset is None else out + self.offset

    def gradient(self, slopes: Array) -> Array:
        """Gradient (size,) of the sum of losses with these slopes (n,)."""
        out: Array = self.rows.T @ slopes
        return out

    def reach(self) -> float:
        """Mean squared norm of the gradient of an argument."""
        if isinstance(self.rows, np.ndarray):
            return float(np.mean(np.einsum("ij,ij->i", self.rows, self.rows)))
        return float(self.rows.data @ self.rows.data) / len(self)

    def only(self, use: NDArray[np.bool_]) -> Pairs:
        """Those of the pairs."""
        return Pairs(self.rows[use], None if self.offset is None else self.offset[use])

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

    def whole(self, w: Array) -> Array:
        """The weights of all features."""
        return w


class SparsePairs(Pairs):
    """Pairs of which nearly all entries are 0, as the columns of texts are.

    A feature that no pair has is left out: its best weight is 0. So time and memory are those of the records
    in the sample, however many features a stream has had.
    """

    def __init__(self, rows: Any, offset: Array | None = None) -> None:
        self._columns, self._features = np.unique(rows.indices), rows.shape[1]
        super().__init__(rows[:, self._columns], offset)

    def begin(self, start: Array) -> Array:
        """As in the base."""
        whole = np.zeros(self._features)
        n = min(self._features, len(start))
        whole[:n] = start[:n]
        out: Array = whole[self._columns]
        return out

    def whole(self, w: Array) -> Array:
        """As in the base."""
        out = np.zeros(self._features)
        out[self._columns] = w
        return out


class QuadraticPairs(Pairs):
    """``sign (1 - u'Wu)``, for symmetric matrices W.

    The weights are the entries of W, row by row. No row of all products of two features is ever made, so that
    memory is that of the differences.

    Parameters
    ----------
    rows
        u of each pair, (n, d).
    signs
        (n,), 1 for pairs that are to be near, -1 for those that are to be far apart.
    psd
        Whether W has to be positive semi-definite.
    """

    # Products of features are of more different sizes than features.
    patience = 2

    def __init__(self, rows: Array, signs: Array, *, psd: bool) -> None:
        super().__init__(rows, signs)
        self._signs, self._psd = signs, psd
        n, self._d = rows.shape
        self.size = self._d * self._d
        # In blocks, so that each product is too small to be shared out among threads: those would spin while
        # others learn, for many times the time of the product.
        block = max(1, min(n, _PRODUCT // max(1, self.size)))
        padded = np.zeros((-(-n // block) * block, self._d))
        padded[:n] = rows
        self._blocks = padded.reshape(-1, block, self._d)

    def arguments(self, w: Array) -> Array:
        """As in the base."""
        products = self._blocks @ w.reshape(self._d, self._d)
        squared = np.einsum("kij,kij->ki", products, self._blocks).ravel()[: len(self)]
        out: Array = self._signs * (1.0 - squared)
        return out

    def gradient(self, slopes: Array) -> Array:
        """As in the base."""
        factors = np.zeros(self._blocks.shape[:2])
        factors.ravel()[: len(self)] = -(self._signs * slopes)
        out: Array = (self._blocks.transpose(0, 2, 1) @ (factors[:, :, None] * self._blocks)).sum(axis=0)
        return (0.5 * (out + out.T)).ravel()

    def reach(self) -> float:
        """As in the base."""
        return float(np.mean(np.einsum("ij,ij->i", self.rows, self.rows) ** 2))

    def only(self, use: NDArray[np.bool_]) -> QuadraticPairs:
        """As in the base."""
        return QuadraticPairs(self.rows[use], self._signs[use], psd=self._psd)

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
