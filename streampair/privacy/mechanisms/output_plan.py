"""Output perturbation, calibrated: which iterates leave, under how much noise (docs/privacy.md 4.1, 7).

Apart from `output` because it is long: a plan has numbers for every step, and two calibrations.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from streampair import kernels
from streampair.errors import ConfigError, PrivacyError
from streampair.privacy.accounting import mu_from, rho_from
from streampair.privacy.mechanisms.base import ONE_RECORD, Relation, Release, check_cells, power_of_two_below
from streampair.privacy.mechanisms.fitted import near
from streampair.privacy.mechanisms.output_entities import entity_spend
from streampair.privacy.recursion import (
    giga_steps,
    output_sensitivities,
    output_spend,
    paper_steps,
    paper_warmup,
)
from streampair.privacy.sensitivity import Influence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.entities import EntityLimit

    Floats = NDArray[np.float64]

__all__ = ["LONGEST_OUTPUT", "OutputPlan", "check_allocation", "plan_output", "plan_output_paper"]

LONGEST_OUTPUT = 4_000_000
"""Longest horizon of output perturbation, whose plan has numbers for every step."""

Allocation = Literal["minimal", "equal"]

_POWERS = {"minimal": 2.0 / 3.0, "equal": 1.0}


@dataclass(frozen=True, eq=False)
class OutputPlan:
    """Releases of a run without noise, each under fresh noise (docs/privacy.md 4.1), calibrated.

    Parameters
    ----------
    mu
        Budget in mu-GDP of one record over all releases.
    dim
        Coordinates of the weights.
    influence
        The buffer.
    diameter, clip, radius
        Replacement diameter D, per-pair clip (infinity: none) and radius R of the weights.
    alpha, smoothness
        Strength of the ridge term, and L of the pair loss.
    warmup
        Slots at the beginning whose outputs are random (the paper's calibration only).
    etas, factors
        Step sizes and contractions, (horizon,).
    sensitivities
        `S_t`, (horizon,).
    grids
        gamma_t, powers of two, (horizon,).
    sigmas
        Noise std, a coordinate, of each release; infinity where there is none, (horizon,).
    group
        Records of one entity that are learned from, at most: their moves add up to so many times one's.
    relation
        Which streams are neighbours. With an entity its records' moves fade between them, as far as they are
        apart.
    scale
        What the shape of the noise is multiplied with: `sigma_t` is as much times `S_t^(2/3)`, or as the
        allocation says.

    Notes
    -----
    Places of the buffer that are empty count for nothing at a record's own step, and each step has its own
    grid (docs/privacy.md, Lemma 59). Not so where entities are protected: what their records cost together
    is known with full steps (Lemma 56).
    """

    mu: float
    dim: int
    influence: Influence
    diameter: float
    clip: float
    radius: float
    alpha: float
    smoothness: float
    warmup: int
    etas: Floats
    factors: Floats
    sensitivities: Floats
    grids: Floats
    sigmas: Floats
    group: int = 1
    relation: Relation = ONE_RECORD
    scale: float = 1.0

    #: Names of the numbers that all those of the steps are products, quotients and roots of.
    FITTED: ClassVar = ("mu", "diameter", "alpha", "smoothness", "scale")

    def __post_init__(self) -> None:
        check_cells(20.0 * np.where(np.isfinite(self.sigmas), self.sigmas, 0.0) / self.grids, "noise")

    @property
    def horizon(self) -> int:
        """Learning steps."""
        return len(self.etas)

    @property
    def sigma(self) -> float:
        """Noise std, a coordinate, of the last release."""
        finite = self.sigmas[np.isfinite(self.sigmas)]
        return float(finite[-1]) if len(finite) else math.inf

    @property
    def _rounding(self) -> Floats:
        return self.grids * math.sqrt(self.dim)

    def mu_spent(self, steps: int) -> float:
        """mu of the releases of the first `steps` slots: that of the record, or entity, that costs most."""
        return math.sqrt(self._spend(min(max(steps, 0), self.horizon)))

    def _spend(self, count: int) -> float:
        given = (self.etas, self.factors, self.influence, self.diameter, self.sensitivities, self._rounding)
        precisions = 1.0 / self.sigmas**2
        entity = self._apart
        if entity is not None:
            return entity_spend(*given, precisions, entity, count)
        # Records are replaced one after the other, so k of them are k mu-GDP (Dong et al. 2022, Theorem 2).
        return self.group**2 * output_spend(*given, precisions, count, filling=self.relation.entity is None)

    @property
    def _apart(self) -> EntityLimit | None:
        """How often an entity comes, where its records' distances count."""
        return None if self.group == 1 else self.relation.entity

    def _together(self) -> Floats:
        """How far each release can move."""
        if self._apart is None:
            return self.group * (self.sensitivities + self._rounding)
        return np.minimum(self.group * self.sensitivities, 2.0 * self.radius) + self._rounding

    def releases(self, steps: int) -> int:
        """Releases that depend on the data, in the first `steps` slots."""
        return self._counts.item(min(max(steps, 0), self.horizon))

    @functools.cached_property
    def _counts(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(np.isfinite(self.sigmas))]).astype(np.int64)

    @functools.cached_property
    def release(self) -> Release:
        """What is released, and what it is worth: the worst record's move over its noise, at each release."""
        shown = np.isfinite(self.sigmas)
        last = int(np.flatnonzero(shown)[-1]) if shown.any() else 0
        replace = self.mu_spent(self.horizon)
        # A blanked record moves a gradient by at most the clip, and everything after in proportion.
        share = min(self.clip / self.diameter, 1.0)
        return Release(
            name="iterates",
            domain="records in the unit ball, with a label",
            relation=self.relation,
            lemma="docs/privacy.md, Lemma 13 and Lemma "
            + ("14 and Lemma 59" if self._apart is None else "56"),
            sensitivity=float(self._together()[last]),
            sigma=self.sigma,
            replace=replace,
            blank=share * replace,
            releases=int(shown.sum()),
            coordinates=self.dim,
            grid=float(self.grids[last]),
        )

    def fork_mu2(self, window: int, start: int | None = None) -> float:
        """`mu^2` of releasing `window` slots once more: `sum (S_t / sigma_t)^2` (docs/privacy.md 8).

        Parameters
        ----------
        window
            Slots.
        start
            Slots before the window; None for the most expensive window.
        """
        costs = (self._together() / self.sigmas) ** 2
        if start is not None:
            return float(costs[start : start + window].sum())
        sums = np.concatenate([[0.0], np.cumsum(costs)])
        width = min(max(window, 0), len(costs))
        dearest = float((sums[width:] - sums[: len(sums) - width]).max())
        # The releases of a window are some of the run's.
        return dearest if self._apart is None else min(dearest, self._spend(self.horizon))


def _power(values: Floats, power: float) -> Floats:
    """Of positive numbers, by roots and products: noise must not depend on a library's power."""
    if power == 1.0:
        return values.copy()
    out = np.empty(len(values))
    kernels.two_thirds(values, out)
    return out


def _influence_checked(horizon: int) -> None:
    if not 2 <= horizon <= LONGEST_OUTPUT:
        raise ConfigError(
            f"output perturbation over {horizon} records",
            fix=f"give a horizon from 2 to {LONGEST_OUTPUT}; PairFTRL has no such limit",
        )


def check_allocation(allocation: str) -> str:
    """The allocation, if there is one of this name."""
    if allocation not in _POWERS:
        raise ConfigError(f"allocation is {allocation!r}", fix="give 'minimal' or 'equal'")
    return allocation


def _released(horizon: int, releases: int | None) -> NDArray[np.bool_]:
    """Which slots release: all from the second on, or a number of them, evenly spaced, with the last."""
    out = np.zeros(horizon, dtype=np.bool_)
    if releases is None or releases >= horizon - 1:
        out[1:] = True
    else:
        k = np.arange(1, releases + 1)
        out[np.ceil(k * (horizon / releases)).astype(np.int64) - 1] = True
    return out


def plan_output(
    mu: float,
    *,
    dim: int,
    influence: Influence,
    diameter: float,
    clip: float,
    radius: float,
    alpha: float,
    smoothness: float,
    horizon: int,
    releases: int | None = None,
    allocation: Allocation = "minimal",
    forks: int = 0,
    window: int = 0,
    group: int = 1,
    relation: Relation = ONE_RECORD,
    scale: float | None = None,
) -> OutputPlan:
    """Calibrate the noise of docs/privacy.md 4.1 for a budget, by the worst single record or entity.

    Parameters
    ----------
    mu, dim, influence, diameter, clip, radius, alpha, smoothness
        As in `OutputPlan`.
    horizon
        Learning steps n.
    releases
        Number of releases, evenly spaced; None for one after every step.
    allocation
        ``"minimal"``: `sigma_t` proportional to `S_t^(2/3)`, the smallest sum of stds. ``"equal"``: to `S_t`,
        equal cost for each release, as in H20.
    forks, window
        Windows of `window` slots that may be released twice within the budget (docs/privacy.md 8).
    group, relation
        As in `OutputPlan`.
    scale
        That of a saved plan with these parameters, which is taken as it is; None: by the budget.

    Raises
    ------
    ConfigError
        If the horizon is too long, or the noise would not fit 64-bit sums.
    ValueError
        If the scale is not what the budget gives, up to rounding.

    Examples
    --------
    >>> from streampair.privacy import Influence
    >>> from streampair.privacy.mechanisms.output_plan import plan_output
    >>> plan = plan_output(
    ...     1.0, dim=4, influence=Influence.fifo(8), diameter=2.0, clip=1.0, radius=1.0,
    ...     alpha=0.1, smoothness=4.0, horizon=1000,
    ... )
    >>> round(plan.mu_spent(1000), 12), plan.releases(1000)
    (1.0, 999)
    """
    _influence_checked(horizon)
    filling = relation.entity is None
    etas, factors = giga_steps(alpha, smoothness, horizon)
    sensitivities = output_sensitivities(etas, factors, influence, diameter, radius, filling=filling)
    # Slot 1 makes no step: its grid matters to nobody. It once was the least of all, wider than later moves.
    least = np.where(sensitivities > 0.0, 0.0, sensitivities[1]) if filling else sensitivities[1]
    grids = power_of_two_below(0.01 * np.maximum(sensitivities, least) / math.sqrt(dim))
    power = _POWERS[check_allocation(allocation)]
    shape = np.full(horizon, math.inf)
    released = _released(horizon, releases)
    shape[released] = _power(sensitivities[released], power)
    draft = OutputPlan(
        mu, dim, influence, diameter, clip, radius, alpha, smoothness, 0, etas, factors, sensitivities,
        grids, shape, group, relation,
    )  # fmt: skip
    spend = draft._spend(horizon) + (forks * draft.fork_mu2(window) if forks else 0.0)
    fitted = math.sqrt(spend) / mu
    if scale is not None:
        fitted = near("scale", scale, fitted)
    return OutputPlan(
        mu, dim, influence, diameter, clip, radius, alpha, smoothness, 0, etas, factors, sensitivities,
        grids, shape * fitted, group, relation, fitted,
    )  # fmt: skip


def plan_output_paper(
    epsilon: float,
    delta: float,
    *,
    dim: int,
    influence: Influence,
    diameter: float,
    lipschitz: float,
    radius: float,
    alpha: float,
    smoothness: float,
    horizon: int,
    scale: float | None = None,
) -> OutputPlan:
    """The noise of H20's Algorithm 1 to the letter, with its sensitivities by exact recursion.

    `T_1 = max(ceil(16 L'^2 / alpha^2), 7)` random outputs, then
    `sigma_t^2 = 32 G^2 (n - T_1) / (alpha^2 t^2 rho)` with `rho + 2 sqrt(rho log(1/delta)) = epsilon`. What
    it guarantees is `mu_spent`, not the paper's epsilon.

    Parameters
    ----------
    epsilon, delta
        What the paper would promise.
    lipschitz
        G of the loss with its ridge term.
    dim, influence, diameter, radius, alpha, smoothness, horizon, scale
        As in `plan_output`.

    Raises
    ------
    PrivacyError
        If exact accounting gives more than (epsilon, delta), so that the constants promise too much.
    """
    _influence_checked(horizon)
    etas, factors = paper_steps(alpha, smoothness, horizon)
    first = min(paper_warmup(alpha, smoothness), horizon)
    sensitivities = output_sensitivities(etas, factors, influence, diameter, radius)
    t = np.arange(1.0, horizon + 1.0)
    sigmas = np.full(horizon, math.inf)
    fitted = lipschitz / alpha * math.sqrt(32.0 * (horizon - first) / rho_from(epsilon, delta))
    if scale is not None:
        fitted = near("scale", scale, fitted)
    sigmas[first:] = fitted / t[first:]
    grids = np.ones(horizon)
    grids[first:] = power_of_two_below(0.01 * sensitivities[first:] / math.sqrt(dim))
    mu = mu_from(epsilon, delta)
    plan = OutputPlan(
        mu, dim, influence, diameter, math.inf, radius, alpha, smoothness, first, etas, factors,
        sensitivities, grids, sigmas, scale=fitted,
    )  # fmt: skip
    if plan.mu_spent(horizon) > mu:
        raise PrivacyError(
            f"the paper's constants promise epsilon {epsilon:g}, and exact accounting of this run gives more",
            fix="use calibration='tight'",
        )
    return plan
