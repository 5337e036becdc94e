"""Private moments under exponential forgetting."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair.privacy.mechanisms.base import (
    ONE_RECORD,
    FittedPlan,
    Relation,
    Release,
    Settings,
    check_memory,
    check_overflow,
)
from streampair.privacy.mechanisms.second_moments import Moments, MomentsState, second_moments_diameter
from streampair.privacy.sensitivity import BLT, grid_step, pattern_sensitivity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    from streampair.privacy.mechanisms.base import MechanismState
    from streampair.privacy.noise import Stream

__all__ = [
    "BLOCKS",
    "DecayedMomentsMechanism",
    "DecayedMomentsPlan",
    "DecayedMomentsState",
    "fading_root",
    "plan_decayed_moments",
]

BLOCKS = 8
"""Blocks in a half-life: a model lacks a sixteenth of one on average. 64 would have 1.4 times the noise."""

TERMS = 8
"""Series that C is a sum of, a power of two: it is the square root up to lag `2 TERMS - 1`."""

# Blocks after which the variance of T_k has long been constant: `2^(-2 ROWS / BLOCKS)` is below 1e-19.
_ROWS = 256

# Each record is in one block.
_PATTERN = np.ones(1)

_DIAMETER = second_moments_diameter()


def fading_root(keep: float, terms: int = TERMS) -> BLT:
    """A strategy with `c_k = keep^k binom(2k, k) / 4^k` for all `k < 2 terms`, and a little less later.

    `binom(2k, k) / 4^k` is the mean of `t^k` over the arcsine law on [0, 1], for which the quadrature of
    Gauss and Chebyshev with n nodes of equal weight is exact up to the degree `2 n - 1`. So C is a BLT.

    Parameters
    ----------
    keep
        g, above 0 and below 1.
    terms
        n, a power of two.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.decayed_moments import fading_root
    >>> fading_root(0.5, 2).column(4)
    array([1.       , 0.25     , 0.09375  , 0.0390625])
    """
    # Cosines of odd multiples of pi / (2 n), by half angles: square roots are exact on every processor.
    cosines = [0.0]
    while len(cosines) < terms:
        cosines = [side * math.sqrt(0.5 * (1.0 + c)) for c in cosines for side in (1.0, -1.0)]
    theta = np.array([keep * (0.5 * (1.0 + c)) for c in cosines])
    return BLT(theta / terms, 1.0 - theta, None)


@functools.lru_cache(maxsize=64)
def _variances(keep: float) -> tuple[float, ...]:
    """Variance of the noise in T_1, T_2, ..., for unit z: of `B = A_g C^-1`, row by row.

    Products and sums are in a fixed order, since weights depend on the bits.
    """
    strategy = fading_root(keep)
    omega, theta = strategy.omega.tolist(), strategy.theta.tolist()
    memory = [0.0] * len(omega)
    known: list[float] = []
    total, faded = 0.0, 0.0
    for lag in range(_ROWS):
        # What a single z adds to the noise of the block `lag` later.
        noise = (1.0 if lag == 0 else 0.0) - sum(o * m for o, m in zip(omega, memory, strict=True))
        memory = [t * m + noise for t, m in zip(theta, memory, strict=True)]
        faded = keep * faded + noise
        total += faded * faded
        known.append(total)
    return tuple(known)


@dataclass(frozen=True, eq=False)
class DecayedMomentsPlan(FittedPlan):
    """Calibrated plan of second moments under exponential decay.

    Parameters
    ----------
    mu
        Budget in mu-GDP of one record over all releases, of which there is no end.
    features
        Features d.
    half_life
        Learned slots after which a record counts half.
    radius
        Radius R of the weights.
    forks, window
        Number of forks that the budget covers, and the slots of each (docs/privacy 8).
    relation
        The neighbouring relation.
    keep
        g, decay factor from one block to the next.
    grid
        gamma, a power of two.
    sigma
        Noise std of each coordinate.
    spread
        As in `SecondMomentsPlan`, for the noise once the stream is longer than some half-lives.

    Notes
    -----
    A record is in one block, and later releases move by row k of C, so the cost of all releases together
    is the same for all records and does not grow with the stream (Lemma 44).
    """

    mu: float
    features: int
    half_life: int
    radius: float
    forks: int = 0
    window: int = 4096
    relation: Relation = ONE_RECORD
    keep: float = field(init=False)
    grid: float = field(init=False)
    sigma: float = field(init=False)
    spread: float = field(init=False)

    FITTED: ClassVar = ("mu", "keep", "grid", "sigma", "spread")
    #: There is no end, and no release at one.
    horizon: ClassVar[None] = None
    #: As in `SecondMomentsPlan`.
    uses_warmup: ClassVar[bool] = False

    def __post_init__(self) -> None:
        def put(**values: object) -> None:
            for name, value in values.items():
                object.__setattr__(self, name, value)

        put(keep=2.0 ** (-self.length / self.half_life))
        put(grid=grid_step(self.strategy, _PATTERN, _DIAMETER, self.dim), sigma=1.0)
        # In units of sigma: the releases, and each fork.
        spent = self._rows_mu2(None) + self.forks * self.fork_mu2(self.window)
        put(sigma=math.sqrt(spent) / self.mu)
        check_memory(self.strategy, self.dim, self.mu)
        check_overflow(20.0 * self.sigma / self.grid, "noise")
        noise = math.sqrt(2.0 * self.features**3 / self.information(_ROWS * self.length))
        put(spread=min(1.0 + 1.25 * math.sqrt(noise), 2.0))

    @property
    def strategy(self) -> BLT:
        """The matrix C."""
        return fading_root(self.keep)

    @property
    def length(self) -> int:
        """Slots of a block."""
        return -(-self.half_life // BLOCKS)

    @property
    def dim(self) -> int:
        """Coordinates of a release."""
        d = self.features
        return d * (d + 1) // 2 + d

    @property
    def sigma_last(self) -> float:
        """As `sigma`: there is no last release."""
        return self.sigma

    def _rows_mu2(self, rows: int | None) -> float:
        """`mu^2` of the first rows of C, of a record in the block of the first; None: of all."""
        move = pattern_sensitivity(
            self.strategy, _PATTERN, _DIAMETER, grid=self.grid, dim=self.dim, steps=rows
        )
        return (move / self.sigma) ** 2

    def end(self, block: int) -> int:
        """Learned slots after which block `block = 1, 2, ...` ends and is released."""
        return block * self.length

    def releases(self, steps: int) -> int:
        """Releases in the first `steps` learned slots."""
        return steps // self.length

    def mu_spent(self, steps: int) -> float:
        """mu of the releases in the first `steps` learned slots: that of a record in the first block."""
        return math.sqrt(self._rows_mu2(self.releases(steps)))

    def fork_mu2(self, window: int) -> float:
        """`mu^2` of releasing what falls into `window` consecutive slots once more (docs/privacy 8).

        A record in the first of the blocks that end there costs most.
        """
        return self._rows_mu2(-(-window // self.length)) if window > 0 else 0.0

    def counted(self, blocks: int) -> float:
        """Decayed number of slots in T after `blocks` blocks."""
        return self.length * (1.0 - self.keep**blocks) / (1.0 - self.keep)

    def variance(self, blocks: int) -> float:
        """Variance of the noise in a coordinate of T after `blocks` blocks, at least one."""
        return self.sigma * self.sigma * _variances(self.keep)[min(blocks, _ROWS) - 1]

    def information(self, steps: int) -> float:
        """Precision of the mean record's estimate after `steps` learned slots: one over its variance."""
        blocks = self.releases(steps)
        return self.counted(blocks) ** 2 / self.variance(blocks) if blocks else 0.0

    def card(self) -> tuple[Release, ...]:
        """The release with its sensitivity, noise and cost, for the card."""
        rounding = self.grid * math.sqrt(self.dim)
        replace = math.sqrt(self._rows_mu2(None))
        return (
            Release(
                name="second moments of blocks that fade",
                domain="records in the unit ball, with a label weighted into [-1, 1]",
                relation=self.relation,
                lemma="docs/privacy, Lemma 16, Lemma 31 and Lemma 44",
                sensitivity=replace * self.sigma,
                sigma=self.sigma,
                replace=replace,
                # Blanking moves a sum by |F| <= sqrt 2.
                blank=min((math.sqrt(2.0) + rounding) / (_DIAMETER + rounding), 1.0) * replace,
                releases=None,
                coordinates=self.dim,
                grid=self.grid,
                every=self.length,
            ),
        )


def plan_decayed_moments(
    mu: float,
    *,
    features: int,
    half_life: int,
    radius: float,
    forks: int = 0,
    window: int = 4096,
    relation: Relation = ONE_RECORD,
) -> DecayedMomentsPlan:
    """Calibrate the noise for a budget; parameters as in `DecayedMomentsPlan`.

    Examples
    --------
    >>> from streampair.privacy import mu_from
    >>> from streampair.privacy.mechanisms.decayed_moments import plan_decayed_moments
    >>> plan = plan_decayed_moments(mu_from(1.0, 1e-4), features=9, half_life=8000, radius=30.0)
    >>> plan.releases(10**6), round(plan.mu_spent(10**6) / plan.mu, 12), plan.mu_spent(10**9) == plan.mu
    (1000, 1.0, True)
    """
    return DecayedMomentsPlan(mu, features, half_life, radius, forks, window, relation)


class DecayedMomentsState(MomentsState):
    """State of decayed moments: a `MomentsState` whose `_running` is T; the model uses the newest T alone.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    """

    plan: DecayedMomentsPlan  # type: ignore[assignment]  # it has what a run of moments asks of its own

    pools: ClassVar[bool] = False  # what fades is compared with no table

    def __init__(self, plan: DecayedMomentsPlan) -> None:
        super().__init__(plan)  # type: ignore[arg-type]

    def numbers(self) -> list[float]:
        """Numbers that scale or shape the noise."""
        plan = self.plan
        return [plan.sigma, plan.keep, float(plan.length), plan.grid, plan.radius]

    def _release(self, stream: Stream) -> None:
        """Release one noisy sum of a block; the model is that of the decayed sum of all blocks so far."""
        plan, numbers = self.plan, self._numbers
        noisy = self.block.privatize(self.block.noise(self._noise.rows(1, stream)[:, 0], plan.sigma))
        self._running *= plan.keep
        self._running += noisy
        numbers[0] = slots = plan.keep * numbers[0] + plan.length
        numbers[2] = self.steps
        self._releases += 1
        self.block.clear()
        self._due = self._next_end()
        # T is `slots` times the mean record, under noise of this variance.
        variance = plan.variance(self._releases)
        numbers[1] = slots * slots / variance
        self._weighted[:] = (slots / variance) * self._running
        self._solve()


@dataclass(frozen=True)
class DecayedMomentsMechanism(Moments):
    """The minimiser of the squared loss over all pairs, with records that decay exponentially.

    Parameters
    ----------
    half_life
        Learned slots after which the weight of a record has halved.
    """

    half_life: int = 1

    label_cross: ClassVar[bool] = False

    def start(
        self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None
    ) -> DecayedMomentsState:
        """A new state; the fitted numbers are those of `saved`, if given."""
        assert settings.features is not None
        plan = plan_decayed_moments(
            settings.mu,
            features=settings.features,
            half_life=self.half_life,
            radius=settings.radius,
            forks=settings.forks,
            window=settings.window,
            relation=settings.relation,
        )
        return DecayedMomentsState(plan.with_fitted(saved))

    def describe(self, settings: Settings) -> str:
        """Description of the mechanism, for the report."""
        length = math.ceil(self.half_life / BLOCKS)
        return (
            "Mechanism: second moments of the records, and of their labels with them, are summed over "
            f"blocks of {length} records; each block's sum is released once, under Gaussian noise that is "
            "correlated over the blocks, and every model is computed from these releases, in which a record "
            f"counts half after {self.half_life} later ones. The first {settings.warmup} records are used "
            "for one release of means, variances and the share of labels only, the later ones for learning "
            "only, so each has the whole budget (parallel composition)."
        )

    def notes(self, settings: Settings, run: MechanismState) -> list[str]:
        """Notes on a stream without end."""
        return [
            "A record is in one block, so what is spent on it does not grow with the stream. What is "
            "forgotten has been released all the same."
        ]
