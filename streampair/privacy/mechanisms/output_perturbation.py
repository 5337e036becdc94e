"""Output perturbation (Huai et al. 2020): noise in the published weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair import losses
from streampair.errors import ConfigError, PrivacyError
from streampair.kernels import dp_steps, numerics, sensitivity
from streampair.kernels import vectors as vectors_kernels
from streampair.privacy.accounting import planned_mu, promised_epsilon, rho_from
from streampair.privacy.contraction import (
    giga_steps,
    output_sensitivities,
    output_spend,
    paper_steps,
    paper_warmup,
)
from streampair.privacy.mechanisms.base import (
    ONE_RECORD,
    FittedPlan,
    Mechanism,
    MechanismState,
    Relation,
    Release,
    Settings,
    SlotBatch,
    check_close,
    check_overflow,
    power_of_two_below,
)
from streampair.privacy.mechanisms.buffer import PairBuffer
from streampair.privacy.mechanisms.ftrl import empty_buffer
from streampair.privacy.mechanisms.second_moments import projected
from streampair.privacy.noise import ChainedNoise
from streampair.privacy.sensitivity import Influence
from streampair.privacy.user_level import EntityLimit, pairs_apart

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.user_level import EntityLimit

    Floats = NDArray[np.float64]
    from streampair.privacy.noise import Stream
    from streampair.privacy.sensitivity import Influence

__all__ = [
    "LONGEST_OUTPUT",
    "OutputPerturbation",
    "OutputPerturbationPlan",
    "OutputPerturbationState",
    "entity_spend",
    "plan_output_perturbation",
    "plan_output_perturbation_paper",
]

LONGEST_OUTPUT = 4_000_000
"""Longest horizon of output perturbation, whose plan has numbers for every step."""


@dataclass(frozen=True, eq=False)
class OutputPerturbationPlan(FittedPlan):
    """Calibrated plan of output perturbation: secret iterates, released with fresh noise (docs/privacy 4.1).

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
        Number of first slots with random outputs (the paper's calibration only).
    etas, factors
        Step sizes and contractions, (horizon,).
    sensitivities
        `S_t`, (horizon,).
    grids
        gamma_t, powers of two, (horizon,).
    sigmas
        Noise std of each coordinate of each release; infinity where there is none, (horizon,).
    group
        Largest number of records of one entity that are learned: their moves add up to as many times one's.
    relation
        Which streams are neighbours. With an entity its records' moves fade between them, as far as they are
        apart.
    scale
        Factor of the noise's shape: `sigma_t` is `scale` times `S_t^(2/3)`.

    Notes
    -----
    Empty places of the buffer have no influence at a record's own step, and each step has its own
    grid (docs/privacy, Lemma 59). Not so with entities: the joint cost of their records
    is proved for full steps (Lemma 56).
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

    #: Names of the fitted numbers, from which all others follow by products, quotients and roots.
    FITTED: ClassVar = ("mu", "diameter", "alpha", "smoothness", "scale")

    def __post_init__(self) -> None:
        check_overflow(20.0 * np.where(np.isfinite(self.sigmas), self.sigmas, 0.0) / self.grids, "noise")

    @property
    def horizon(self) -> int:
        """Number of learning steps."""
        return len(self.etas)

    @property
    def sigma(self) -> float:
        """Noise std of each coordinate of the last release."""
        finite = self.sigmas[np.isfinite(self.sigmas)]
        return float(finite[-1]) if len(finite) else math.inf

    @property
    def _rounding(self) -> Floats:
        return self.grids * math.sqrt(self.dim)

    def mu_spent(self, steps: int) -> float:
        """mu of the releases of the first `steps` slots, for the record or entity that spends most."""
        return math.sqrt(self._spend(min(max(steps, 0), self.horizon)))

    def _spend(self, count: int) -> float:
        bounds = (self.etas, self.factors, self.influence, self.diameter, self.sensitivities, self._rounding)
        precisions = 1.0 / self.sigmas**2
        entity = self._apart
        if entity is not None:
            return entity_spend(*bounds, precisions, entity, count)
        # Records are replaced one after the other, so k of them are k mu-GDP (Dong et al. 2022, Theorem 2).
        return self.group**2 * output_spend(*bounds, precisions, count, filling=self.relation.entity is None)

    @property
    def _apart(self) -> EntityLimit | None:
        """Limits of an entity, if the account uses the distances of its records; else None."""
        return None if self.group == 1 else self.relation.entity

    def _together(self) -> Floats:
        """Sensitivity of each release, rounding included."""
        if self._apart is None:
            return self.group * (self.sensitivities + self._rounding)
        return np.minimum(self.group * self.sensitivities, 2.0 * self.radius) + self._rounding

    def releases(self, steps: int) -> int:
        """Number of data-dependent releases in the first `steps` slots."""
        return self._counts.item(min(max(steps, 0), self.horizon))

    @functools.cached_property
    def _counts(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(np.isfinite(self.sigmas))]).astype(np.int64)

    @functools.cached_property
    def release(self) -> Release:
        """The release, for the card: its cost is that of the worst record over all iterates."""
        released = np.isfinite(self.sigmas)
        last = int(np.flatnonzero(released)[-1]) if released.any() else 0
        replace = self.mu_spent(self.horizon)
        # Blanking a record moves a gradient by at most the clip, and all later iterates in proportion.
        share = min(self.clip / self.diameter, 1.0)
        return Release(
            name="iterates",
            domain="records in the unit ball, with a label",
            relation=self.relation,
            lemma="docs/privacy, Lemma 13 and Lemma " + ("14 and Lemma 59" if self._apart is None else "56"),
            sensitivity=float(self._together()[last]),
            sigma=self.sigma,
            replace=replace,
            blank=share * replace,
            releases=int(released.sum()),
            coordinates=self.dim,
            grid=float(self.grids[last]),
            draws=self.dim * float((self.sigmas[released] / self.grids[released] + 1.0).sum()),
        )

    def fork_mu2(self, window: int, start: int | None = None) -> float:
        """`mu^2` of releasing `window` slots once more: `sum (S_t / sigma_t)^2` (docs/privacy 8).

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


def _influence_checked(horizon: int) -> None:
    if not 2 <= horizon <= LONGEST_OUTPUT:
        raise ConfigError(
            f"output perturbation over {horizon} records",
            fix=f"give a horizon from 2 to {LONGEST_OUTPUT}; PairFTRL has no such limit",
        )


def _released(horizon: int, releases: int | None) -> NDArray[np.bool_]:
    """Mask of the slots that release: all from the second on, or `releases` of them, evenly spaced."""
    out = np.zeros(horizon, dtype=np.bool_)
    if releases is None or releases >= horizon - 1:
        out[1:] = True
    else:
        k = np.arange(1, releases + 1)
        out[np.ceil(k * (horizon / releases)).astype(np.int64) - 1] = True
    return out


def plan_output_perturbation(
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
    forks: int = 0,
    window: int = 0,
    group: int = 1,
    relation: Relation = ONE_RECORD,
    scale: float | None = None,
) -> OutputPerturbationPlan:
    """Calibrate the noise of docs/privacy 4.1 for a budget, by the worst single record or entity.

    `sigma_t` is proportional to `S_t^(2/3)`, which has the smallest sum of stds.

    Parameters
    ----------
    mu, dim, influence, diameter, clip, radius, alpha, smoothness
        As in `OutputPerturbationPlan`.
    horizon
        Learning steps n.
    releases
        Number of releases, evenly spaced; None for one after every step.
    forks, window
        Number of forks that the budget covers, and the slots of each (docs/privacy 8).
    group, relation
        As in `OutputPerturbationPlan`.
    scale
        Scale of a saved plan with these parameters, used unchanged; None: by the budget.

    Raises
    ------
    ConfigError
        If the horizon is too long, or the noise would not fit 64-bit sums.
    ValueError
        If the scale is not what the budget gives, up to rounding.

    Examples
    --------
    >>> from streampair.privacy import Influence
    >>> from streampair.privacy.mechanisms.output_perturbation import plan_output_perturbation
    >>> plan = plan_output_perturbation(
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
    shape = np.full(horizon, math.inf)
    released = _released(horizon, releases)
    rooted = np.empty(int(released.sum()))
    numerics.two_thirds(sensitivities[released], rooted)  # the same on every processor
    shape[released] = rooted
    draft = OutputPerturbationPlan(
        mu, dim, influence, diameter, clip, radius, alpha, smoothness, 0, etas, factors, sensitivities,
        grids, shape, group, relation,
    )  # fmt: skip
    spend = draft._spend(horizon) + (forks * draft.fork_mu2(window) if forks else 0.0)
    fitted = math.sqrt(spend) / mu
    if scale is not None:
        fitted = check_close("scale", scale, fitted)
    return OutputPerturbationPlan(
        mu, dim, influence, diameter, clip, radius, alpha, smoothness, 0, etas, factors, sensitivities,
        grids, shape * fitted, group, relation, fitted,
    )  # fmt: skip


def plan_output_perturbation_paper(
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
) -> OutputPerturbationPlan:
    """The noise of H20's Algorithm 1 to the letter, with its sensitivities by exact recursion.

    `T_1 = max(ceil(16 L'^2 / alpha^2), 7)` random outputs, then
    `sigma_t^2 = 32 G^2 (n - T_1) / (alpha^2 t^2 rho)` with `rho + 2 sqrt(rho log(1/delta)) = epsilon`. What
    it guarantees is `mu_spent`, not the paper's epsilon.

    Parameters
    ----------
    epsilon, delta
        The paper's budget.
    lipschitz
        G of the loss with its ridge term.
    dim, influence, diameter, radius, alpha, smoothness, horizon, scale
        As in `plan_output_perturbation`.

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
        fitted = check_close("scale", scale, fitted)
    sigmas[first:] = fitted / t[first:]
    grids = np.ones(horizon)
    grids[first:] = power_of_two_below(0.01 * sensitivities[first:] / math.sqrt(dim))
    mu = planned_mu(epsilon, delta)
    plan = OutputPerturbationPlan(
        mu, dim, influence, diameter, math.inf, radius, alpha, smoothness, first, etas, factors,
        sensitivities, grids, sigmas, scale=fitted,
    )  # fmt: skip
    if plan.mu_spent(horizon) > mu:
        raise PrivacyError(
            f"the paper's constants promise epsilon {epsilon:g}, and exact accounting of this run gives more",
            fix="use calibration='tight'",
        )
    return plan


# A generous bound of the errors in logarithms of millions of factors.
_SLACK = 1.0 + 1e-9


def entity_spend(
    etas: Floats,
    factors: Floats,
    influence: Influence,
    diameter: float,
    bounds: Floats,
    grids: Floats,
    precisions: Floats,
    limit: EntityLimit,
    count: int | None = None,
) -> float:
    """Upper bound of `mu^2` of the first releases for all records of an entity (docs/privacy 8, Lemma 56).

    The moves of an entity are the sum of its records' moves: `S_e <- c_t S_e + eta_t D v_e(t)`. So its cost
    is the sum over pairs of them of `sum_t v_i(t) v_l(t) / sigma_t^2`. Two that j others separate are at
    least `(j + 1) separation` slots apart, and for each such distance the most expensive pair counts, at any
    place. A pair of which one is in the buffer at the other's step counts as two of the most expensive
    record. Rounding is once for each release.

    Relation: all records of an entity are replaced. A bound; exact for one record without a grid. Never more
    than k times the most expensive record, and no less where records stay for ever.

    Parameters
    ----------
    etas, factors, influence, diameter, bounds, grids, precisions, count
        As in `output_spend`; the influence is that of one record.
    limit
        Limits of the entity's contributions.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy import EntityLimit, Influence
    >>> from streampair.privacy.contraction import giga_steps, output_sensitivities
    >>> from streampair.privacy.mechanisms.output_perturbation import entity_spend
    >>> etas, factors = giga_steps(0.1, 4.0, 1000)
    >>> bounds = output_sensitivities(etas, factors, Influence.fifo(4), 2.0, 10.0)
    >>> args = etas, factors, Influence.fifo(4), 2.0, bounds, np.zeros(1000), np.ones(1000)
    >>> near, apart = (entity_spend(*args, EntityLimit(5, b)) for b in (1, 200))
    >>> round(near / entity_spend(*args, EntityLimit(1)), 2), round(apart / near, 2)
    (25.0, 0.22)
    """
    n = len(etas) if count is None else min(count, len(etas))
    records = limit.within(n) if n else 0
    single = output_spend(
        etas, factors, influence, diameter, bounds, np.zeros(len(etas)), precisions, count, filling=False
    )
    rounding = math.sqrt(float(precisions[:n] @ (grids[:n] * grids[:n])))
    stays = influence.uses is None or influence.uses >= len(etas)
    if stays or records < 2:
        return (records * math.sqrt(single) + rounding) ** 2
    assert influence.uses is not None
    merged, lasting = np.empty(n), np.empty(n)
    sensitivity.window_pairs(
        etas[:n], factors[:n], influence.shares(0, n), influence.uses, diameter, bounds[:n], precisions[:n],
        merged, lasting,
    )  # fmt: skip
    # The product of two moves is that at the later one's step; till then the earlier one has decayed.
    depth = np.cumsum(np.log(np.maximum(factors[:n], 1e-300)))
    with np.errstate(divide="ignore"):
        before, after = np.log(merged) - depth, np.log(lasting) + depth
    total = records * single
    for between, pairs in pairs_apart(records):
        gap = between * limit.separation - influence.uses - 1
        pair = single
        if gap >= 0:
            pair = min(pair, math.exp(float((before[: n - gap] + after[gap:]).max())) * _SLACK)
        total += pairs * pair
    return (math.sqrt(total) + rounding) ** 2


_CHUNK = 1024


class SecretIterate:
    """Secret iterates, each released rounded and with fresh noise.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    buffer
        The buffer, empty.
    last
        Publish the last release rather than the average.

    Attributes
    ----------
    average, published
        The average of the releases, weighted by their precision, (dim,), before and after the
        projection. `weight` is the sum of the weights.
    """

    __slots__ = (
        "__cells",
        "__vectors",
        "_last",
        "_plan",
        "average",
        "buffer",
        "published",
        "weight",
    )

    def __init__(self, plan: OutputPerturbationPlan, buffer: PairBuffer, last: bool) -> None:
        self._plan = plan
        self.buffer = buffer
        self._last = last
        buffer.extend([plan.clip, plan.radius, 0.0, plan.alpha])  # the grids are those of the plan
        self.__vectors = np.zeros((3, plan.dim))  # iterate, w_0, gradient
        self.__cells = np.empty((0, plan.dim), dtype=np.int64)
        self.average = np.zeros(plan.dim)
        self.published = np.zeros(plan.dim)
        self.weight = 0.0

    @property
    def release(self) -> Release:
        """The release, for the card; computed on first use, which takes a pass over the plan."""
        return self._plan.release

    def scatter(self, point: Floats, *, centre: bool) -> None:
        """Set the iterate, and with `centre` also w_0, to a random point, which depends on no record."""
        self.__vectors[0] = point
        if centre:
            self.__vectors[1] = point
        else:
            self.published[:] = point

    def begin_at(self, weights: Floats, *, centre: bool) -> None:
        """Begin at weights (dim,) in the ball of the radius, which no record has a part in.

        With `centre` they are also w_0.
        """
        self.scatter(weights, centre=centre)
        self.published[:] = weights

    def step(self, rows: Floats, labels: Floats, steps: int) -> None:
        """Take a secret step for each row; the iterates stay for `privatize`."""
        b, span = self.buffer, slice(steps, steps + len(rows))
        self.__cells = np.empty((len(rows), self._plan.dim), dtype=np.int64)
        dp_steps.output_steps(
            rows, labels, self._plan.etas[span], self._plan.grids[span], steps, b.numbers, self.__vectors,
            b.places, self.__cells,
        )  # fmt: skip

    def cells(self) -> bytes:
        """The exact iterates as bytes: only for the chain that keys the noise."""
        return self.__cells.tobytes()

    def privatize(self, normals: Floats, steps: int) -> None:
        """Release the planned iterates of the last `step`, with the plan's noise from `normals`."""
        span = slice(steps, steps + len(self.__cells))
        self.weight = dp_steps.output_releases(
            self.__cells, normals, self._plan.sigmas[span], self._plan.grids[span], self._last,
            self._plan.radius, self.weight, self.average, self.published,
        )  # fmt: skip

    def to_state(self) -> dict[str, Any]:
        """For a snapshot: the iterate in it is as secret as the data."""
        return {
            "vectors": self.__vectors[:2].copy(),
            "outputs": np.array([self.average, self.published]),
            "weight": self.weight,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state`.

        Raises
        ------
        ValueError
            If it is of another shape.
        """
        vectors, outputs = state["vectors"], state["outputs"]
        if not vectors.shape == outputs.shape == (2, self._plan.dim):
            raise ValueError("weights of another shape")
        self.__vectors[:2] = vectors
        self.average[:], self.published[:] = outputs
        self.weight = float(state["weight"])


class OutputPerturbationState(MechanismState):
    """State of output perturbation: secret iterates and their noisy releases (docs/privacy 4.1).

    The published weights are the average of the releases, weighted by precision: free post-processing, and
    much better than the last release, which the paper's calibration publishes.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    buffer
        The buffer, empty.
    last
        Publish the last release.
    scattered
        Start at a random point w_0 of the ball (H20, Algorithm 2).
    centred
        The ridge term pulls to the point at which the descent begins, not to 0.
    """

    plan: OutputPerturbationPlan
    secret_iterate = True

    def __init__(
        self,
        plan: OutputPerturbationPlan,
        buffer: PairBuffer,
        *,
        last: bool = False,
        scattered: bool = False,
        centred: bool = False,
    ) -> None:
        self.plan = plan
        self.steps = 0
        self._releases = plan.releases(0)
        self.gate = SecretIterate(plan, buffer, last)
        self._scattered = scattered
        self._centred = centred

    def begin_at(self, weights: Floats) -> None:
        """Begin the descent at these weights."""
        self.gate.begin_at(weights, centre=self._centred)

    @property
    def average(self) -> Floats:
        """The published weights, shape (p,): a view."""
        return self.gate.published

    @property
    def noise(self) -> Floats | None:
        """Noise std of the precision-weighted average of the releases."""
        weight, average = self.gate.weight, self.gate.average
        if not weight > 0.0:
            return None
        moves = projected(np.eye(self.plan.dim) / math.sqrt(weight), average, self.plan.radius)
        return np.asarray(np.sqrt((moves * moves).sum(axis=1)))

    @property
    def releases(self) -> int:
        """Number of models released so far, without the random ones."""
        return self._releases

    @property
    def released(self) -> Floats:
        """The average of the releases, (p,), before the projection: for the audit."""
        return self.gate.average.copy()

    @property
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records included."""
        return self.gate.buffer.filled(self.steps)

    def card(self) -> tuple[Release, ...]:
        """The iterates."""
        return (self.gate.release,)

    def _scatter(self, stream: Stream) -> Floats:
        """A uniform point of the ball: d coordinates of one on the sphere in d + 2 dimensions."""
        z = stream.take(self.plan.dim + 2)[0]
        point: Floats = z[: self.plan.dim] * (self.plan.radius / math.sqrt(float(vectors_kernels.dot(z, z))))
        return point

    def numbers(self) -> list[float]:
        """Numbers that scale or shape the noise."""
        plan, ends = self.plan, slice(None, None, max(self.plan.horizon - 1, 1))
        return [
            plan.radius, plan.clip, plan.alpha, plan.diameter, float(plan.horizon), float(plan.warmup),
            *plan.etas[ends].tolist(), *plan.sigmas[ends].tolist(), *plan.grids[ends].tolist(),
            float(plan.releases(plan.horizon)),
        ]  # fmt: skip

    def take(self, batch: SlotBatch, stream: Stream) -> None:
        """As in the base class; a chain takes slot by slot, since its noise depends on each iterate."""
        chain = stream if isinstance(stream, ChainedNoise) else None
        rows, labels, scored, scores, records = batch
        scoring = len(scores) > 0
        if chain is None and not scoring:
            for start in range(0, len(rows), _CHUNK):
                self._take(rows[start : start + _CHUNK], labels[start : start + _CHUNK], stream, None)
            return
        for i in range(len(rows)):
            if scoring:
                scores[i] = vectors_kernels.dot(self.average, scored[i])
            if chain is not None:
                chain.record(records[i])
            self._take(rows[i : i + 1], labels[i : i + 1], stream, chain)

    def _take(self, rows: Floats, labels: Floats, stream: Stream, chain: ChainedNoise | None) -> None:
        plan, dim, n = self.plan, self.plan.dim, len(rows)
        before, self._releases = self._releases, plan.releases(self.steps + n)
        releases = self._releases - before
        random = min(plan.warmup - self.steps, n) if self.steps < plan.warmup else 0
        centre = self._scattered and self.steps == 0
        if chain is not None and (random or centre):
            chain.advance(b"")  # these slots make no step and release nothing of the data
            chain = None
        if centre:
            self.gate.scatter(self._scatter(stream), centre=True)
        for _ in range(random):
            self.gate.scatter(self._scatter(stream), centre=False)
        self.gate.step(rows, labels, self.steps)
        if chain is not None:
            chain.advance(self.gate.cells() if releases else b"")
        if releases:
            self.gate.privatize(stream.take(releases * dim), self.steps)
        self.steps += n

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays; the iterate without noise among them is as secret as the data."""
        return {
            "steps": self.steps,
            **self.gate.to_state(),
            "buffer": self.gate.buffer.to_state(self.steps),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        steps = int(state["steps"])
        if not 0 <= steps <= self.plan.horizon:
            raise ValueError("steps beyond the horizon")
        self.gate.load_state(state)
        self.gate.buffer.load_state(state["buffer"], steps)
        self.steps = steps
        self._releases = self.plan.releases(steps)


@dataclass(frozen=True)
class OutputPerturbation(Mechanism):
    """Output perturbation: secret strongly convex descent, whose iterates are released with fresh noise.

    Parameters
    ----------
    l2
        Strength alpha of the ridge term; None: by the horizon.
    releases
        Number of releases, evenly spaced, the last at the horizon; None: one after every record.
    calibration
        ``"tight"`` or ``"paper"``.
    centred
        Whether the ridge term pulls to a point w_0 that need not be 0 (H20, Algorithm 2).

    Raises
    ------
    ConfigError
        If one is out of range.
    """

    # The effect of a record decays, however long it is used.
    bounded_uses: ClassVar[bool] = False
    radii: ClassVar[tuple[float, float]] = (1.0, 10.0)

    l2: float | None = None
    releases: int | None = None
    calibration: str = "tight"
    centred: bool = False

    def __post_init__(self) -> None:
        if self.calibration not in ("tight", "paper"):
            raise ConfigError(f"calibration is {self.calibration!r}", fix="give 'tight' or 'paper'")
        if self.releases is not None and (
            isinstance(self.releases, bool) or not isinstance(self.releases, int) or self.releases < 1
        ):
            raise ConfigError(
                f"releases is {self.releases!r}", fix="give the number of releases, or None for every step"
            )

    @property
    def paper(self) -> bool:
        """Whether noise and steps are exactly those of H20."""
        return self.calibration == "paper"

    @property
    def default_clip(self) -> float:
        """1; infinity with the paper's calibration."""
        return math.inf if self.paper else 1.0

    def default_warmup(self, mu: float, horizon: int | None, features: int | None) -> int:
        """No warm-up with the paper's calibration."""
        return 0 if self.paper else super().default_warmup(mu, horizon, features)

    def checked_loss(self, loss: losses.PairLoss | None, form: losses.Form) -> losses.PairLoss:
        """A smooth loss; None is the logistic one."""
        checked = losses.Logistic() if loss is None else loss
        checked.smoothness(1.0, 1.0, form=form)  # refuses the hinge
        return checked

    def _strength(self, settings: Settings, diameter: float) -> float:
        """Strength alpha of the ridge term.

        None balances its bias `alpha R^2 / 2` with the loss `D |noise|` of the last release, whose noise is
        about `2 D / (alpha n mu)` a coordinate.
        """
        if self.l2 is not None:
            return float(self.l2)
        assert settings.learning is not None
        assert settings.dim is not None
        noise = math.sqrt(settings.dim) / (settings.learning * settings.mu_learning)
        return 2.0 * diameter / settings.radius * math.sqrt(noise)

    def start(
        self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None
    ) -> OutputPerturbationState:
        """A new state; the fitted numbers are those of `saved`, if given."""
        assert settings.learning is not None
        assert settings.dim is not None
        clip = settings.clip if math.isfinite(settings.clip) else None
        diameter = settings.loss.diameter(1.0, settings.radius, clip, form=settings.form)
        alpha = self._strength(settings, diameter)
        smoothness = settings.loss.smoothness(1.0, settings.radius, form=settings.form)
        scale: float | None = None
        if saved:
            diameter = check_close("diameter", saved["diameter"], diameter)
            alpha = check_close("alpha", saved["alpha"], alpha)
            smoothness = check_close("smoothness", saved["smoothness"], smoothness)
            scale = saved["scale"]
        plan: OutputPerturbationPlan
        if self.paper:
            # The paper's G is the Lipschitz constant of the whole loss, ridge term included.
            ridge = alpha * settings.radius * (2.0 if self.centred else 1.0)
            plan = plan_output_perturbation_paper(
                settings.epsilon,
                settings.delta,
                dim=settings.dim,
                influence=settings.buffer.influence,
                diameter=diameter,
                lipschitz=settings.loss.lipschitz(1.0, settings.radius, form=settings.form) + ridge,
                radius=settings.radius,
                alpha=alpha,
                smoothness=smoothness,
                horizon=settings.learning,
                scale=scale,
            )
        else:
            plan = plan_output_perturbation(
                settings.mu_learning,
                dim=settings.dim,
                influence=settings.buffer.influence,
                diameter=diameter,
                clip=settings.clip,
                radius=settings.radius,
                alpha=alpha,
                smoothness=smoothness,
                horizon=settings.learning,
                releases=self.releases,
                forks=settings.forks,
                window=settings.window,
                group=1 if settings.entity is None else settings.entity.within(settings.learning),
                relation=settings.relation,
                scale=scale,
            )
        return OutputPerturbationState(
            plan.with_fitted(saved),
            empty_buffer(settings, seed),
            last=self.paper,
            scattered=self.centred and self.paper,
            centred=self.centred,
        )

    def describe(self, settings: Settings) -> str:
        """Description of the mechanism, for the report."""
        clipped = f" clipped per pair at {settings.clip:g} and" if math.isfinite(settings.clip) else ""
        return (
            f"Mechanism: gradients{clipped} averaged over {settings.buffer.describe()} drive a strongly "
            "convex descent without noise, which is secret; its iterates are released under fresh Gaussian "
            f"noise.{settings.warmup_words()}"
        )

    def notes(self, settings: Settings, run: MechanismState) -> list[str]:
        """The exact account of the paper's constants."""
        if not self.paper:
            return []
        plan: OutputPerturbationPlan = run.plan
        exact = promised_epsilon(plan.mu_spent(plan.horizon), settings.delta)
        return [
            f"Noise and steps are those of Huai et al. (2020), whose constants promise epsilon "
            f"{settings.epsilon:g}; by the exact account the whole run spends epsilon {exact:.6g}.",
            f"The first {plan.warmup} of {plan.horizon} outputs are random and depend on no record.",
        ]
