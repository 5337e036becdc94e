"""Sensitivity of a sequence of releases to one record (docs/privacy 3, 4.3, 4.4, 7).

A record's *influence pattern* `v` bounds, in units of the replacement diameter D, how
much it can change the averaged gradient at its own step (`v[0]`) and at the steps after
it. With correlated noise the l2 sensitivity of all releases together is `D ||C v||`,
because C is entrywise at least 0 and Toeplitz: the worst case is aligned directions, and
the earliest position (docs/privacy 4.3). Relation: replace one record's content, label
included; everything else equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from streampair.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.correlated import Strategy

    Floats = NDArray[np.float64]

__all__ = ["Influence", "fifo_pattern", "grid_step", "moment_sensitivity", "pattern_sensitivity"]

SQUARE_WEIGHT = math.sqrt((11.0 + 5.0 * math.sqrt(5.0)) / 8.0)
"""Largest weight of x^2 beside x in [-1, 1] at which their joint sensitivity is that of x alone."""

CROSS_WEIGHT = 0.5
"""Weight of the product of label and x beside them; it raises the noise by a tenth."""

# Most that a coordinate adds if the label changes: `u^2 (1 + c^2 (2 - u)^2) + (2 - u)^2 / 4` with u in [0, 2]
# is at most 4.1563, at u = 1.1825 (docs/privacy, Lemma 60).
_TURNED = 4.157


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
        Most steps that use a record after its own; None: no bound; 0: see `released`.

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
        if (self.size, self.uses) == (1, 0):
            return  # a released partner: see `released`
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

    @classmethod
    def released(cls) -> Influence:
        """No buffer: the partner is a function of releases, and a record is used in its own step alone."""
        return cls(1, 0)

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
    >>> from streampair.privacy.correlated import Toeplitz
    >>> from streampair.privacy.sensitivity import pattern_sensitivity
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
    >>> from streampair.privacy.correlated import Toeplitz
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


def moment_sensitivity(dim: int, *, labels: bool = False, cross: bool = False, grid: float = 0.0) -> float:
    """Joint l2 sensitivity of the sums of x and of `SQUARE_WEIGHT x^2`, and of labels (docs/privacy 4.4).

    Relation: one record's content is replaced, or blanked to 0; x is in [-1, 1]^dim, a label -1, 0 or 1.
    Exact except for the grid term: two values whose difference and sum have the sizes u and v, `u + v <= 2`,
    move a coordinate's pair by `u^2 (1 + c^2 v^2)` squared. That is at most 4 up to
    `c^2 = (11 + 5 sqrt 5) / 8`, so the squares do not raise the sensitivity.

    Parameters
    ----------
    dim
        Coordinates of x.
    labels
        Whether the sum of the labels is included.
    cross
        Whether also the sum of `CROSS_WEIGHT` times label times x is (docs/privacy, Lemma 60).
    grid
        Step of the grid that x, x^2 and label times x are rounded to; each moves by half of it at most.

    Examples
    --------
    >>> from streampair.privacy.sensitivity import moment_sensitivity
    >>> moment_sensitivity(4)
    4.0
    """
    if cross:
        # One label, and all coordinates from one end to the other; or two.
        ideal = max(4.0 * dim * (1.0 + CROSS_WEIGHT**2), _TURNED * dim + 4.0)
        return math.sqrt(ideal) + grid * math.sqrt(dim) * math.hypot(1.0, SQUARE_WEIGHT, CROSS_WEIGHT)
    each = 2.0 + grid * math.hypot(1.0, SQUARE_WEIGHT)
    return math.sqrt(dim * each * each + 4.0 * labels)
