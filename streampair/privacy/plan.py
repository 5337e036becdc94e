"""What a private learner will do, fixed before its first record (PRIVACY.md 4.3, 4.4, 7).

A plan is a function of the parameters alone: budget, dimension, buffer, horizon. It
couples the other parts of this package: accounting gives mu, sensitivity and the
strategy give the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from streampair.errors import ConfigError
from streampair.privacy.correlated import BLT, Toeplitz, fit_blt
from streampair.privacy.entities import EntityLimit, entity_pattern
from streampair.privacy.sensitivity import (
    SQUARE_WEIGHT,
    Influence,
    grid_step,
    moment_sensitivity,
    pattern_sensitivity,
    window_sensitivity,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["TOEPLITZ_LIMIT", "EntityInfluence", "FTRLPlan", "MomentsPlan", "plan_ftrl", "plan_moments"]

TOEPLITZ_LIMIT = 4096
"""Longest horizon for which `strategy="auto"` takes the square root, whose memory grows with the run."""

StrategyName = Literal["auto", "toeplitz", "blt"]

_LONGEST_FIT = 4097

# Sums of rounded noise must stay far inside 64-bit integers.
_MOST_CELLS = 2.0**44


def check_cells(cells: float, what: str) -> None:
    if not cells < _MOST_CELLS:
        raise ConfigError(
            f"the {what} would be {cells:.3g} steps of the grid, beyond what 64-bit sums can hold",
            fix="raise epsilon: nothing can be learned under this much noise",
        )


@dataclass(frozen=True)
class EntityInfluence(Influence):
    """The influence of all records of an entity: the densest that admission allows (PRIVACY.md 8)."""

    limit: EntityLimit

    together = True

    @classmethod
    def of(cls, single: Influence, limit: EntityLimit) -> EntityInfluence:
        """That of an entity, from that of one record."""
        return cls(single.size, single.uses, limit)

    def pattern(self, length: int | None) -> Floats:
        """The pattern that dominates every admissible entity's; see `Influence.pattern`."""
        return entity_pattern(Influence.pattern(self, length), self.limit, length)

    def moves(self, length: int | None, diameter: float, rounding: float) -> Floats:
        """As for one record, shifted and added: records that lie apart are rounded in more steps."""
        return entity_pattern(Influence.moves(self, length, diameter, rounding), self.limit, length)


@dataclass(frozen=True, eq=False)
class FTRLPlan:
    """The mechanism of PRIVACY.md 4.3, calibrated.

    Parameters
    ----------
    mu
        Budget in mu-GDP of one record over all releases.
    dim
        Coordinates d.
    influence
        The buffer.
    clip, diameter, radius
        Per-pair clip, replacement diameter D and radius R of the weights.
    tangent
        Whether pairs are clipped into a ball of radius `clip` that only touches 0, instead of the one around
        it: D is the same, and norms up to twice the clip pass. For decreasing losses and centred records.
    horizon
        Learning steps, None for no end.
    strategy
        The matrix C.
    grid
        gamma, a power of two.
    sensitivity
        `||C (D v + gamma sqrt(d) 1[v > 0])||` over the whole run; of an entity the sum over its records.
    forks, window
        Second views of as many consecutive releases that the budget has room for (PRIVACY.md 8).
    """

    mu: float
    dim: int
    influence: Influence
    clip: float
    diameter: float
    radius: float
    tangent: bool
    horizon: int | None
    strategy: Toeplitz | BLT
    grid: float
    sensitivity: float
    forks: int = 0
    window: int = 4096
    sigma: float = field(init=False)

    def __post_init__(self) -> None:
        total = self.sensitivity
        if self.forks:
            total = math.hypot(total, math.sqrt(self.forks) * self._window_norm(self.window))
        object.__setattr__(self, "sigma", total / self.mu)
        check_cells(20.0 * self.sigma / self.grid, "noise")

    def mu_spent(self, steps: int) -> float:
        """mu of the first `steps` releases: that of the record that is in most of them."""
        if steps <= 0:
            return 0.0
        return pattern_sensitivity(self.strategy, self._moves(), steps=steps) / self.sigma

    def _moves(self) -> Floats:
        return self.influence.moves(self.horizon, self.diameter, self.grid * math.sqrt(self.dim))

    def _window_norm(self, window: int) -> float:
        if self.influence.together:
            return pattern_sensitivity(self.strategy, self._moves())
        return window_sensitivity(self.strategy, self._moves(), window=window)

    def fork_mu2(self, window: int) -> float:
        """What a second view of `window` consecutive releases adds to mu^2, at most."""
        return (self._window_norm(window) / self.sigma) ** 2

    def rates(self, start: int, count: int) -> Floats:
        """Step sizes of slots `start + 1, ..., start + count`: `R / sqrt(t C (C + sqrt(d) sigma_N))`.

        C is the largest norm of a pair's gradient, and `sigma_N` the std of the prefix noise; t and
        `sigma_N` are those of the horizon if there is one.
        """
        if self.horizon is not None:
            t = np.array([float(self.horizon)])
            noise = np.array([self.sigma * self.strategy.error(self.horizon)])
        else:
            assert isinstance(self.strategy, BLT)
            t = np.arange(start + 1.0, start + count + 1.0)
            noise = self.sigma * np.sqrt(self.strategy.variances(t))
        bound = self.diameter if self.tangent else self.clip
        rates = self.radius / np.sqrt(t * bound * (bound + math.sqrt(self.dim) * noise))
        return np.ascontiguousarray(np.broadcast_to(rates, (count,)))


def choose_strategy(name: StrategyName, pattern: Floats, horizon: int | None) -> Toeplitz | BLT:
    """The matrix C for a strategy name: the square root for a known, short horizon, else a BLT."""
    if name not in ("auto", "toeplitz", "blt"):
        raise ConfigError(f"strategy is {name!r}", fix="give 'auto', 'toeplitz' or 'blt'")
    if name == "toeplitz" and horizon is None:
        raise ConfigError(
            "strategy 'toeplitz' needs a horizon: its noise depends on all earlier noise",
            fix="give horizon=, or leave strategy='auto'",
        )
    if horizon is not None and (name == "toeplitz" or (name == "auto" and horizon <= TOEPLITZ_LIMIT)):
        return Toeplitz.square_root(horizon)
    # Any C will do; one fitted to the beginning of a long pattern is as good, and quickly found.
    return fit_blt(pattern[:_LONGEST_FIT], horizon)


def plan_ftrl(
    mu: float,
    *,
    dim: int,
    influence: Influence,
    diameter: float,
    clip: float,
    radius: float,
    tangent: bool = False,
    horizon: int | None = None,
    strategy: StrategyName | Toeplitz | BLT = "auto",
    forks: int = 0,
    window: int = 4096,
) -> FTRLPlan:
    """Calibrate the noise of PRIVACY.md 4.3 for a budget.

    Parameters
    ----------
    mu
        Budget in mu-GDP, see `mu_from`.
    dim, influence, diameter, clip, radius, tangent, horizon, forks, window
        As in `FTRLPlan`.
    strategy
        A name, or a strategy as it is (that of a restored learner).

    Raises
    ------
    ConfigError
        If the strategy does not fit the horizon, or the noise would not fit 64-bit sums.

    Examples
    --------
    >>> from streampair.privacy import Influence, mu_from, plan_ftrl
    >>> plan = plan_ftrl(
    ...     mu_from(1.0, 1e-4), dim=9, influence=Influence.fifo(32), diameter=2.0, clip=1.0, radius=3.0,
    ...     horizon=1000,
    ... )
    >>> round(plan.mu_spent(1000) / plan.mu, 12)
    1.0
    """
    pattern = influence.pattern(horizon)
    chosen = choose_strategy(strategy, pattern, horizon) if isinstance(strategy, str) else strategy
    grid = grid_step(chosen, pattern, diameter, dim)
    sensitivity = pattern_sensitivity(chosen, influence.moves(horizon, diameter, grid * math.sqrt(dim)))
    return FTRLPlan(
        mu, dim, influence, clip, diameter, radius, tangent, horizon, chosen, grid, sensitivity, forks, window
    )


@dataclass(frozen=True)
class MomentsPlan:
    """The moments release of PRIVACY.md 4.4: means of x and of x^2 over the first slots.

    Parameters
    ----------
    mu
        Budget in mu-GDP of the joint release.
    slots
        Records in the prefix, null ones too.
    sigma_sum, sigma_squares
        Noise std, a coordinate, of the sums of x (and of the labels), and of x^2.
    labels
        Whether the sum of the labels is released too.
    """

    mu: float
    slots: int
    sigma_sum: float
    sigma_squares: float
    labels: bool = False

    PER_UNIT = 1024
    """1 / gamma."""


def plan_moments(mu: float, *, dim: int, slots: int, labels: bool = False) -> MomentsPlan:
    """Calibrate the moments release for a budget.

    Examples
    --------
    >>> from streampair.privacy import plan_moments
    >>> plan = plan_moments(1.0, dim=1, slots=100)
    >>> round(plan.sigma_sum, 4), round(plan.sigma_squares, 4)
    (2.0019, 1.2023)
    """
    sigma = moment_sensitivity(dim, labels=labels, grid=1.0 / MomentsPlan.PER_UNIT) / mu
    plan = MomentsPlan(mu, slots, sigma, sigma / SQUARE_WEIGHT, labels)
    check_cells(20.0 * plan.sigma_sum * plan.PER_UNIT, "noise of the moments")
    return plan
