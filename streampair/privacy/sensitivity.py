"""Sensitivity of a sequence of releases to one record, and strategies of noise (docs/privacy 3, 4.3, 4.4, 7).

A record's *influence pattern* `v` bounds, in units of the replacement diameter D, how
much it can change the averaged gradient at its own step (`v[0]`) and at the steps after
it. With correlated noise the l2 sensitivity of all releases together is `D ||C v||`,
because C is entrywise at least 0 and Toeplitz: the worst case is aligned directions, and
the earliest position (docs/privacy 4.3). Relation: replace one record's content, label
included; everything else equal.

Correlated noise is a factorisation `A = B C` of the prefix-sum matrix (docs/privacy 4.3).
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
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import scipy  # its modules are loaded on first use

from streampair.errors import ConfigError
from streampair.kernels import random, vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "BLT",
    "LONGEST",
    "Influence",
    "Strategy",
    "Toeplitz",
    "fifo_pattern",
    "fit_blt",
    "grid_step",
    "pattern_sensitivity",
    "square_root_coefficients",
]


@dataclass(frozen=True)
class Influence:
    """Weight of a record in a buffer, and the number of steps that use it after the record's own step.

    It depends on slots and random draws alone, never on content (docs/privacy 3), labels and null records
    included.

    Parameters
    ----------
    size
        Places of the buffer and constant denominator s of the averaged gradient; 0 is the full history, whose
        step t divides by t - 1.
    uses
        Most steps that use a record after its own; None: no bound.

    Examples
    --------
    >>> from streampair.privacy import Influence
    >>> Influence.fifo(2).pattern(None), Influence.history().pattern(4)
    (array([1. , 0.5, 0.5]), array([1.        , 0.5       , 0.33333333]))
    """

    size: int
    uses: int | None

    together: ClassVar[bool] = False
    """Whether `moves` is the densest of many patterns. It has the largest norm of all, but a window of it
    need not be the worst window: a fork of a window is charged as one of the whole run."""

    def __post_init__(self) -> None:
        if self.size < 0 or (self.uses is not None and self.uses < 1) or (self.size == 0 and self.uses):
            raise ConfigError(
                f"a buffer of {self.size} records, used {self.uses} times", fix="give numbers of at least 1"
            )

    @classmethod
    def fifo(cls, size: int) -> Influence:
        """The last `size` records: each is used in `size` steps."""
        if size < 1:
            raise ConfigError(f"a buffer of {size} records", fix="give a size of at least 1")
        return cls(size, size)

    @classmethod
    def reservoir(cls, size: int, uses: int | None) -> Influence:
        """A reservoir without replacement, in which a record is blanked after `uses` steps."""
        if size < 1:
            raise ConfigError(f"a buffer of {size} records", fix="give a size of at least 1")
        return cls(size, uses)

    @classmethod
    def history(cls) -> Influence:
        """All records; none leaves the buffer."""
        return cls(0, None)

    def shares(self, start: int, count: int) -> Floats:
        """Weight of one buffered record in the gradients of slots `start + 1, ..., start + count`."""
        if self.size:
            return np.full(count, 1.0 / self.size)
        shares: Floats = 1.0 / np.maximum(np.arange(start, start + count, dtype=np.float64), 1.0)
        return shares

    def owns(self, count: int) -> Floats:
        """Weight of all pairs of a record in the gradient of its own slot, for the first `count` slots.

        The denominator is constant, so the weight is the share of filled places (docs/privacy, Lemma 59).
        """
        places = max(self.size, 1)
        weights: Floats = np.minimum(np.arange(count, dtype=np.float64), places) / places
        return weights

    def pattern(self, length: int | None) -> Floats:
        """The pattern v that dominates every record's, from the record's own step on (docs/privacy 3).

        Entrywise an upper bound for each position of the record in a run of `length` steps (None: without
        end); reached by FIFO, and for the full history by the record of slot 2.

        Raises
        ------
        ConfigError
            If no bound exists: a full history without a horizon, or a reservoir without `max_uses`.
        """
        if self.size == 0:
            if length is None:
                raise ConfigError(
                    "a record of a full history changes every later gradient, and the stream has no horizon",
                    fix="give horizon=, or use buffers.FIFO(32)",
                )
            return 1.0 / np.arange(1.0, max(length, 2))
        if self.uses is None:
            raise ConfigError(
                "how long a reservoir keeps a record has no public bound",
                fix="give Reservoir max_uses=, how many steps a record is in it, or use buffers.FIFO(32)",
            )
        steps = self.uses + 1 if length is None else min(self.uses + 1, length)
        pattern = np.full(steps, 1.0 / self.size)
        pattern[:1] = 1.0
        return pattern

    def moves(self, length: int | None, diameter: float, rounding: float) -> Floats:
        """Sensitivity of the rounded gradients from a record's own step on: `D v + rounding 1[v > 0]`.

        Parameters
        ----------
        length
            As in `pattern`.
        diameter
            D.
        rounding
            Most that rounding two gradients to the grid adds to their distance, `gamma sqrt(d)`.
        """
        pattern = Influence.pattern(self, length)
        moves: Floats = diameter * pattern + rounding * (pattern > 0)
        return moves


def fifo_pattern(size: int, length: int | None = None) -> Floats:
    """Influence pattern of FIFO(size): `1`, then `1/size` for `size` steps (docs/privacy 3).

    Relation: one record's content is replaced. Precondition: the divisor is the constant `size`, and slots do
    not depend on content. An exact bound: a record whose pairs all move by D reaches it.

    Parameters
    ----------
    size
        Records in the buffer, and the constant denominator.
    length
        Steps of the run, if it ends; a longer pattern is cut there.

    Examples
    --------
    >>> from streampair.privacy.sensitivity import fifo_pattern
    >>> fifo_pattern(2)
    array([1. , 0.5, 0.5])
    """
    return Influence.fifo(size).pattern(length)


def pattern_sensitivity(
    strategy: Strategy,
    pattern: Floats,
    diameter: float = 1.0,
    *,
    grid: float = 0.0,
    dim: int = 1,
    steps: int | None = None,
) -> float:
    """l2 sensitivity of `steps` releases: `||C (D v + grid sqrt(dim) 1[v > 0])||`.

    Relation: one record's content is replaced. Precondition: C is entrywise at least 0 and Toeplitz, and the
    record moves the gradient of its k-th step by at most `D v_k`. Exact where the moves are aligned and the
    grid is 0, a bound otherwise.

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
        rounding of both gradients can add (docs/privacy 7).
    dim
        Number of coordinates.
    steps
        Releases counted; None for all that the strategy covers, which is infinitely
        many for a BLT without a horizon.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy.sensitivity import Toeplitz, pattern_sensitivity
    >>> round(pattern_sensitivity(Toeplitz.square_root(3), np.array([1.0]), 2.0), 6)
    2.358495
    """
    extended = diameter * pattern + grid * math.sqrt(dim) * (pattern > 0)
    return strategy.norm(extended, steps)


def window_sensitivity(
    strategy: Strategy,
    pattern: Floats,
    diameter: float = 1.0,
    *,
    window: int,
    grid: float = 0.0,
    dim: int = 1,
) -> float:
    """l2 sensitivity of the releases of any `window` consecutive steps: `max_j ||(C w)_{j..j+window-1}||`.

    The cost of a fork of a window for the worst record, new or already in the buffer (docs/privacy 8).
    `w = D v + grid sqrt(dim) 1[v > 0]`. After the pattern the rows of `C w` decrease, so no later window is
    worse. Relation, precondition and exactness are those of `pattern_sensitivity`.

    Parameters
    ----------
    strategy, pattern, diameter, grid, dim
        As in `pattern_sensitivity`.
    window
        Steps that are released again.

    Examples
    --------
    >>> from streampair.privacy.sensitivity import Toeplitz
    >>> from streampair.privacy.sensitivity import fifo_pattern, pattern_sensitivity, window_sensitivity
    >>> root = Toeplitz.square_root(100)
    >>> round(window_sensitivity(root, fifo_pattern(2), window=3), 6)
    1.807104
    >>> round(pattern_sensitivity(root, fifo_pattern(2)), 6)
    2.883056
    """
    if window < 1:
        raise ConfigError(f"a window of {window} steps", fix="give a window of at least 1")
    extended = diameter * pattern + grid * math.sqrt(dim) * (pattern > 0)
    squares = strategy.image(extended, len(pattern) + window) ** 2
    sums = np.concatenate([[0.0], np.cumsum(squares)])
    reach = min(window, len(squares))
    return math.sqrt(float(np.max(sums[reach:] - sums[: len(sums) - reach])))


def grid_step(strategy: Strategy, pattern: Floats, diameter: float, dim: int) -> float:
    """The largest power of two whose rounding adds at most 1 % to the sensitivity (docs/privacy 7).

    Relation and precondition as in `pattern_sensitivity`; the grid term there is the bound of what rounding
    adds.
    """
    room = 0.01 * diameter * strategy.norm(pattern, None)
    step = room / (math.sqrt(dim) * strategy.norm((pattern > 0).astype(np.float64), None))
    return math.ldexp(1.0, math.frexp(step)[1] - 1)


# ---- strategies of correlated noise


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
    >>> from streampair.privacy.sensitivity import square_root_coefficients
    >>> square_root_coefficients(3)
    (array([1.   , 0.5  , 0.375]), array([ 1.   , -0.5  , -0.125]))
    """
    k = np.arange(1.0, float(max(length, 1)))
    forward = np.concatenate([[1.0], np.cumprod((2.0 * k - 1.0) / (2.0 * k))])
    inverse = np.concatenate([[1.0], np.cumprod((2.0 * k - 3.0) / (2.0 * k))])
    forward.flags.writeable = inverse.flags.writeable = False
    return forward, inverse


LONGEST = 2**48
"""Slots of the longest stream."""

_FARTHEST = 12.0
"""Standard deviations that a normal exceeds with a probability below 2^-107."""


@dataclass(frozen=True, eq=False)
class Toeplitz:
    """A strategy given by the first columns of C and of its inverse, up to a horizon.

    Examples
    --------
    >>> from streampair.privacy.sensitivity import Toeplitz
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

    def memory_error(self, rows: int | None, dim: int) -> float:
        """As of `BLT.memory_error`: what earlier rows add to a row is summed in doubles, the oldest first."""
        count = len(self.column) if rows is None else min(rows, len(self.column))
        lags = np.arange(float(count))
        each = 2.0**-53 * _FARTHEST * float(vectors.dot(lags + 2.0, np.abs(self.inverse[:count])))
        return 2.0 * float(self.column[:count].sum()) * each * math.sqrt(count * dim)

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
        `1 - theta`, above 0 and at most 1, shape (h,). It is set to the difference from the theta in use, a
        double, so that the noise is that of this C.
    horizon
        Steps of the run; None: any number.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy.sensitivity import BLT
    >>> c = BLT(np.array([0.5]), np.array([0.25]), None)
    >>> c.column(4)
    array([1.     , 0.5    , 0.375  , 0.28125])
    """

    omega: Floats
    decay: Floats
    horizon: int | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "decay", 1.0 - (1.0 - self.decay))
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

    def memory_error(self, rows: int | None, dim: int) -> float:
        """Most that the rounding of the memory moves the mean of the noise (docs/privacy, Lemma 21).

        Parameters
        ----------
        rows
            Rows of noise; None: as many as the longest stream has.
        dim
            Coordinates of a row.

        Returns
        -------
        float
            l2 norm, in standard deviations of z; infinite if the sum of omega is not below 1.
        """
        total = float(self.omega.sum())
        if not total < 1.0:
            return math.inf
        std = math.sqrt(0.5 + 0.5 * total / (1.0 - total))  # of each memory, times the root of its omega
        most = _FARTHEST * std * np.sqrt(self.omega)
        if not (len(self.omega) + 2) * 2.0**-103 * (_FARTHEST + float(most.sum())) < 2.0**-92:
            return math.inf
        errors = (2.0**-92 * self.omega + 2.0**-101 * most) / self.decay
        return 2.0 * float(errors.sum()) * math.sqrt((LONGEST if rows is None else rows) * dim)

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
    >>> from streampair.privacy.sensitivity import fifo_pattern, fit_blt
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
