"""Correlated noise: factorisations `A = B C` of the prefix-sum matrix (docs/privacy 4.3).

`A` is the lower triangle of ones. Releasing `C g + z` with independent Gaussian z gives
every prefix sum with noise `B z`; step by step that is `g_t + (C^-1 z)_t`. Two Toeplitz
strategies C are offered, both entrywise at least 0:

- `Toeplitz`: the square root of A, `c_k = binom(2k, k) / 4^k` (Fichtenberger, Henzinger
  & Upadhyay 2023; Henzinger, Upadhyay & Upadhyay 2023). Its noise needs all earlier z, so it is for
  known, short horizons.
- `BLT`: a buffered linear Toeplitz matrix (Dvijotham, McMahan, Pillutla, Steinke &
  Thakurta 2024; McMahan, Xu & Zhang 2024), `c_0 = 1, c_k = sum_j omega_j theta_j^(k-1)`.
  Memory and time a step are a few vectors, and with every theta_j < 1 its sensitivity
  is finite on an infinite stream.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import scipy  # its modules are loaded on first use

from streampair.errors import ConfigError
from streampair.kernels import random, vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["BLT", "Strategy", "Toeplitz", "fit_blt", "square_root_coefficients"]


class Strategy(Protocol):
    """A lower triangular Toeplitz matrix C, entrywise at least 0."""

    def norm(self, pattern: Floats, steps: int | None) -> float:
        """`||C v||` over the first `steps` rows; None for all rows."""

    def image(self, pattern: Floats, length: int) -> Floats:
        """The first `length` rows of `C v`."""

    def error(self, steps: int) -> float:
        """Standard deviation of the noise in the prefix sum of `steps` terms, for unit z."""


def _convolved(pattern: Floats, column: Floats) -> Floats:
    """The first rows of `C v`, as many as the column has."""
    length = len(column)
    head = np.ascontiguousarray(pattern[:length])
    if len(head) <= 64:
        image = np.zeros(length)
        for lag, weight in enumerate(head):
            image[lag:] += weight * column[: length - lag]
        return image
    size = 1 << (len(head) + length).bit_length()
    spectrum = np.fft.rfft(head, size) * np.fft.rfft(column, size)
    return np.fft.irfft(spectrum, size)[:length]


@functools.lru_cache(maxsize=32)
def square_root_coefficients(length: int) -> tuple[Floats, Floats]:
    """First column of `A^(1/2)` and of its inverse.

    Returns
    -------
    tuple
        `c_k = c_(k-1) (2k-1)/(2k)` and `c'_k = c'_(k-1) (2k-3)/(2k)`, both of shape (length,), read-only.

    Examples
    --------
    >>> from streampair.privacy.correlated import square_root_coefficients
    >>> square_root_coefficients(3)
    (array([1.   , 0.5  , 0.375]), array([ 1.   , -0.5  , -0.125]))
    """
    k = np.arange(1.0, float(max(length, 1)))
    forward = np.concatenate([[1.0], np.cumprod((2.0 * k - 1.0) / (2.0 * k))])
    inverse = np.concatenate([[1.0], np.cumprod((2.0 * k - 3.0) / (2.0 * k))])
    forward.flags.writeable = inverse.flags.writeable = False
    return forward, inverse


@dataclass(frozen=True, eq=False)
class Toeplitz:
    """A strategy given by the first columns of C and of its inverse, up to a horizon.

    Examples
    --------
    >>> from streampair.privacy.correlated import Toeplitz
    >>> round(Toeplitz.square_root(1000).error(1000), 4)
    1.8069
    """

    column: Floats
    inverse: Floats

    @classmethod
    def square_root(cls, horizon: int) -> Toeplitz:
        """`C = A^(1/2)`, which is also B."""
        return cls(*square_root_coefficients(horizon))

    def norm(self, pattern: Floats, steps: int | None) -> float:
        """`||C v||` over the first `steps` rows, by direct sums; None for the whole horizon."""
        length = len(self.column) if steps is None else min(steps, len(self.column))
        return float(np.linalg.norm(self.image(pattern, length)))

    def image(self, pattern: Floats, length: int) -> Floats:
        """The first `length` rows of `C v`, at most the horizon's."""
        return _convolved(pattern, self.column[: max(length, 0)])

    def error(self, steps: int) -> float:
        """Standard deviation of the noise in the prefix sum of `steps` terms, for unit z."""
        b = np.cumsum(self.inverse[: max(steps, 0)])
        return math.sqrt(float(vectors.dot(b, b)))


@dataclass(frozen=True, eq=False)
class BLT:
    """A buffered linear Toeplitz strategy `C(x) = 1 + sum_j omega_j x / (1 - theta_j x)`.

    Parameters
    ----------
    omega
        At least 0, shape (h,).
    decay
        `1 - theta`, above 0 and at most 1, shape (h,). theta is close to 1, so the difference has more
        digits.
    horizon
        Steps of the run; None: any number.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy.correlated import BLT
    >>> c = BLT(np.array([0.5]), np.array([0.25]), None)
    >>> c.column(4)
    array([1.     , 0.5    , 0.375  , 0.28125])
    """

    omega: Floats
    decay: Floats
    horizon: int | None

    def __post_init__(self) -> None:
        if len(self.omega) != len(self.decay) or np.any(self.omega < 0):
            raise ConfigError(
                "omega of a BLT must have the shape of theta and be at least 0", fix="use fit_blt"
            )
        if not (np.all(self.decay > 0) and np.all(self.decay <= 1)):
            raise ConfigError("theta of a BLT must be at least 0 and below 1", fix="use fit_blt")

    @classmethod
    def of(cls, omega: Sequence[float], decay: Sequence[float], horizon: int | None) -> BLT:
        """From plain numbers."""
        return cls(np.array(omega, dtype=np.float64), np.array(decay, dtype=np.float64), horizon)

    @functools.cached_property
    def theta(self) -> Floats:
        """Decay factors of the memories."""
        theta: Floats = 1.0 - self.decay
        return theta

    @functools.cached_property
    def _log_theta(self) -> Floats:
        # theta = 0 becomes 1e-16, so that its powers 1, 0, 0, ... need no special case.
        log_theta: Floats = np.log1p(-np.minimum(self.decay, 1.0 - 1e-16))
        return log_theta

    def column(self, length: int) -> Floats:
        """First `length` entries of the first column of C."""
        powers = np.exp(np.outer(self._log_theta, np.arange(max(length - 1, 0))))
        return np.concatenate([[1.0], self.omega @ powers])[:length]

    def norm(self, pattern: Floats, steps: int | None) -> float:
        """`||C v||` over the first `steps` rows; None for the horizon, or for infinitely many.

        Rows within the pattern are summed directly, the tail in closed form (docs/privacy 4.3):
        `sum_ij omega_i omega_j a_i a_j (1 - (theta_i theta_j)^m) / (1 - theta_i theta_j)` with
        `a_j = sum_i v_i theta_j^(len(v)-1-i)` and m rows after the pattern.
        """
        if steps is None:
            steps = self.horizon
        elif self.horizon is not None:
            steps = min(steps, self.horizon)
        length = len(pattern) if steps is None else min(steps, len(pattern))
        if length <= 0:
            return 0.0
        v = pattern[:length]
        memory = np.zeros(len(self.omega))
        theta = self.theta
        if length <= 512:
            total = 0.0
            for value in v:
                total += (value + float(self.omega @ memory)) ** 2
                memory = theta * memory + value
        else:  # the same sums by FFT
            image = self.image(v, length)
            total = float(image @ image)
            powers = np.exp(np.outer(self._log_theta, np.arange(length - 1, -1, -1.0)))
            memory = powers @ v
        if steps is None or steps > length:
            weight = self.omega * memory
            decay = np.add.outer(self.decay, self.decay) - np.outer(self.decay, self.decay)
            share = 1.0 / decay
            if steps is not None:
                share = -np.expm1((steps - length) * np.log1p(-np.minimum(decay, 1.0 - 1e-16))) * share
            total += float(weight @ share @ weight)
        return math.sqrt(total)

    def image(self, pattern: Floats, length: int) -> Floats:
        """The first `length` rows of `C v`, at most the horizon's."""
        if self.horizon is not None:
            length = min(length, self.horizon)
        return _convolved(pattern, self.column(length))

    def variances(self, steps: Floats) -> Floats:
        """Variance of the noise in the prefix sums of `steps` whole numbers of terms, for unit z."""
        t = np.asarray(steps, dtype=np.float64)
        out = np.empty(t.size)
        random.blt_variances(self.omega, self.decay, t.ravel(), out)
        return out.reshape(t.shape)

    def error(self, steps: int) -> float:
        """Standard deviation of the noise in the prefix sum of `steps` terms, for unit z."""
        return math.sqrt(float(self.variances(np.array([float(steps)]))[0])) if steps > 0 else 0.0

    def excess(self, pattern: Floats, steps: int) -> float:
        """Error after `steps` times sensitivity, relative to that of the square root over the same steps.

        1.02 means 2 % more noise for the same budget. The sensitivity is that of the whole run, which is
        infinite without a horizon.
        """
        root = Toeplitz.square_root(steps)
        return (self.error(steps) * self.norm(pattern, None)) / (root.error(steps) * root.norm(pattern, None))


_OPEN_GRID = np.geomspace(1e2, 1e6, 24).round()


def fit_blt(pattern: Floats, horizon: int | None = None, terms: int = 5) -> BLT:
    """The BLT with the least error times sensitivity for an influence pattern.

    Minimises `||C v|| rms(prefix error)` numerically, in closed form and with fixed
    starts, so that the result is the same on every call. With a horizon both are taken
    over it. Without one the sensitivity is that of the infinite stream, and the error is
    taken, relative to the square root's, at lengths from 1e2 to 1e6.

    Parameters
    ----------
    pattern
        v, at least 0, shape (length,).
    horizon
        Steps of the run, None if it has no end.
    terms
        Number of memories h.

    Examples
    --------
    >>> from streampair.privacy.correlated import fit_blt
    >>> from streampair.privacy.sensitivity import fifo_pattern
    >>> bool(fit_blt(fifo_pattern(32)).theta.max() < 1)
    True
    """
    if len(pattern) < 1 or terms < 1 or (horizon is not None and horizon < 1):
        raise ConfigError(
            f"a BLT for a horizon of {horizon} and {terms} terms", fix="give numbers of at least 1"
        )
    return _fit_blt(
        np.ascontiguousarray(pattern, dtype=np.float64).tobytes(),
        None if horizon is None else int(horizon),
        int(terms),
    )


@functools.lru_cache(maxsize=64)
def _fit_blt(pattern_bytes: bytes, horizon: int | None, terms: int) -> BLT:
    pattern = np.frombuffer(pattern_bytes)
    if horizon is None:
        grid = _OPEN_GRID
        column, _ = square_root_coefficients(int(grid[-1]))
        base = np.cumsum(column**2)[grid.astype(np.int64) - 1]
        span = 3e6
    else:
        grid = np.unique(np.linspace(1.0, float(horizon), 48).round())
        base = np.ones(len(grid))
        span = float(max(horizon, 4))

    def unpack(parameters: Floats) -> BLT:
        omega = np.exp(np.clip(parameters[:terms], -40.0, 3.0))
        decay = 1.0 / (1.0 + np.exp(np.clip(parameters[terms:], -3.0, 34.0)))
        return BLT(omega, decay, horizon)

    def objective(parameters: Floats) -> float:
        blt = unpack(parameters)
        error = 0.5 * math.log(float(np.mean(blt.variances(grid) / base)))
        return error + math.log(blt.norm(pattern, horizon))

    # Start from the quadrature of c_k = (1/pi) int_0^1 theta^k theta^(-1/2) (1-theta)^(-1/2) dtheta
    # on decays spaced evenly in the logarithm between the span and 1.
    best: tuple[float, Floats] | None = None
    for stretch in (1.0, 0.3):
        decay = np.geomspace(1.0 / (stretch * span), 0.5, terms)
        ratio = (0.5 * stretch * span) ** (1.0 / max(terms - 1, 1))
        omega = np.sqrt(decay) / math.pi * math.log(max(ratio, 1.5))
        start = np.concatenate([np.log(omega), np.log((1.0 - decay) / decay)])
        found = scipy.optimize.minimize(
            objective, start, method="BFGS", options={"maxiter": 200, "gtol": 1e-6}
        )
        if best is None or found.fun < best[0]:
            best = (float(found.fun), found.x)
    assert best is not None
    return unpack(best[1])
