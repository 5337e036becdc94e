"""NoisyOGD: noise in every gradient, fed back into the iterate (docs/privacy 4.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair.kernels import dp_steps
from streampair.privacy.mechanisms.base import (
    ONE_RECORD,
    Mechanism,
    Relation,
    Settings,
    SlotBatch,
    check_overflow,
    power_of_two_below,
    with_numbers,
)
from streampair.privacy.mechanisms.buffer import PairBuffer
from streampair.privacy.mechanisms.ftrl import (
    ExactGradients,
    GradientPlan,
    GradientState,
    empty_buffer,
)
from streampair.privacy.noise import ChainedNoise, rounded, scaled
from streampair.privacy.sensitivity import Influence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.noise import Stream

    Floats = NDArray[np.float64]

__all__ = [
    "GradientPerturbationMechanism",
    "GradientPerturbationPlan",
    "GradientPerturbationState",
    "plan_gradient_perturbation",
]

_CHUNK = 1024


@dataclass(frozen=True, eq=False, kw_only=True)
class GradientPerturbationPlan(GradientPlan):
    """Calibrated plan of gradient perturbation: noise in every gradient (docs/privacy 4.2).

    Parameters
    ----------
    mu, dim, influence, clip, diameter, radius, tangent, horizon, forks, window, relation
        As in `streampair.privacy.mechanisms.ftrl.GradientPlan`.
    """

    RELEASED: ClassVar = "each averaged gradient"
    LEMMA: ClassVar = "Lemma 15"
    FITTED: ClassVar = ("mu", "diameter", "grid", "sensitivity", "sigma")

    def __post_init__(self) -> None:
        pattern = self.influence.pattern(self.horizon)
        room = 0.01 * self.diameter * float(np.linalg.norm(pattern))
        step = room / (math.sqrt(self.dim) * math.sqrt(len(pattern)))
        object.__setattr__(self, "grid", float(power_of_two_below(step)))
        object.__setattr__(self, "sensitivity", float(np.linalg.norm(self._moves())))
        total = math.hypot(self.sensitivity, math.sqrt(self.forks) * self._window_norm(self.window))
        object.__setattr__(self, "sigma", total / self.mu)
        check_overflow(20.0 * self.sigma / self.grid, "noise")

    def _window_norm(self, window: int) -> float:
        """The largest norm of `window` consecutive moves."""
        sums = np.concatenate([[0.0], np.cumsum(self._moves() ** 2)])
        width = (
            len(sums) - 1 if self.influence.together and window > 0 else min(max(window, 0), len(sums) - 1)
        )
        return math.sqrt(float((sums[width:] - sums[: len(sums) - width]).max()))

    def draws(self) -> float | None:
        """Of the releases that a record moves: the noise of the others is independent of theirs."""
        if self.horizon is not None:
            return None
        records = 1 if self.relation.entity is None else self.relation.entity.records
        return records * len(self._moves()) * self.dim * (self.sigma / self.grid + 1.0)

    def mu_spent(self, steps: int) -> float:
        """mu of the first `steps` releases: that of the record that is in most of them."""
        return float(np.linalg.norm(self._moves()[: max(steps, 0)])) / self.sigma

    def rates(self, start: int, count: int) -> Floats:
        """Step sizes of slots `start + 1, ...`: `R / sqrt(t (C^2 + d sigma^2))`, with the horizon for t."""
        t = np.arange(start + 1.0, start + count + 1.0)
        if self.horizon is not None:
            t = np.full(count, float(self.horizon))
        rates: Floats = self.radius / np.sqrt(
            t * (self.clip * self.clip + self.dim * self.sigma * self.sigma)
        )
        return rates


def plan_gradient_perturbation(
    mu: float,
    *,
    dim: int,
    influence: Influence,
    diameter: float,
    clip: float,
    radius: float,
    horizon: int | None = None,
    forks: int = 0,
    window: int = 0,
    relation: Relation = ONE_RECORD,
) -> GradientPerturbationPlan:
    """Calibrate the noise of docs/privacy 4.2 for a budget.

    `sigma = ||D v + gamma sqrt(d) 1[v > 0]|| / mu`: without a horizon `D sqrt(1 + 1/s) / mu` for a FIFO
    buffer of s records, up to the grid's 1 %.

    Raises
    ------
    ConfigError
        If the buffer has no bound for this horizon, or the noise would not fit 64-bit sums.

    Examples
    --------
    >>> from streampair.privacy import Influence
    >>> from streampair.privacy.mechanisms.gradient_perturbation import plan_gradient_perturbation
    >>> influence = Influence.fifo(4)
    >>> plan = plan_gradient_perturbation(1.0, dim=4, influence=influence, diameter=2.0, clip=1.0, radius=3.0)
    >>> round(plan.sigma, 2), round(plan.mu_spent(10**9), 12)
    (2.25, 1.0)
    """
    return GradientPerturbationPlan(
        mu=mu, dim=dim, influence=influence, clip=clip, diameter=diameter, radius=radius, horizon=horizon,
        forks=forks, window=window, relation=relation,
    )  # fmt: skip


class NoisyGradients(ExactGradients):
    """Averaged gradients, each rounded and released with independent rounded noise."""

    __slots__ = ()

    @property
    def last(self) -> Floats:
        """The last noisy gradient, (dim,): a copy."""
        noisy: Floats = self._scratch[2].copy()
        return noisy

    def privatize(
        self, rows: Floats, labels: Floats, noise: NDArray[np.int64], rates: Floats, steps: int
    ) -> None:
        """For each row release the noisy gradient and take a step; `noise`: in grid steps, (n, dim)."""
        b = self.buffer
        dp_steps.noisy_steps(rows, labels, noise, rates, steps, b.numbers, self._scratch, b.places)

    def turn(
        self,
        batch: SlotBatch,
        index: int,
        words: NDArray[np.uint64],
        sigma: float,
        cells: NDArray[np.int64],
        rate: float,
        steps: int,
    ) -> None:
        """`privatize` of row `index` of a batch, whose cells are known, with normals from `words`.

        Then score and cells of the next row.
        """
        b, (rows, labels, scored, scores, _) = self.buffer, batch
        dp_steps.noisy_turn(
            rows, labels, scored, scores, index, words, sigma, cells, rate, steps, b.numbers, self._scratch,
            b.places,
        )  # fmt: skip


class GradientPerturbationState(GradientState):
    """State of gradient perturbation: the noisy iterate and the buffer (docs/privacy 4.2).

    Parameters
    ----------
    plan
        The calibrated mechanism.
    buffer
        The buffer, empty.
    l2
        Strength of the ridge term, which depends on no data.
    """

    plan: GradientPerturbationPlan
    gate: NoisyGradients

    def __init__(self, plan: GradientPerturbationPlan, buffer: PairBuffer, l2: float = 0.0) -> None:
        self.plan = plan
        self._l2 = l2
        numbers = [plan.clip, plan.radius, plan.grid, l2]
        self.gate = NoisyGradients(plan.release(), buffer, numbers, plan.dim)

    @property
    def released(self) -> Floats:
        """The noisy gradient of the last slot, (p,), before the projection: for the audit."""
        return self.gate.last

    def numbers(self) -> list[float]:
        """Numbers that scale or shape the noise."""
        plan = self.plan
        return [plan.sigma, plan.grid, plan.clip, plan.radius, float(self._l2)]

    def _take_keyed(self, batch: SlotBatch, chain: ChainedNoise) -> None:
        plan, first = self.plan, self.steps
        cells = self.gate.turns(batch, first)
        rates = plan.rates(first, len(batch.rows)).tolist()
        for i, (record, rate) in enumerate(zip(batch.records, rates, strict=True)):
            chain.record(record)
            chain.advance(cells.tobytes())
            self.gate.turn(batch, i, chain.words(plan.dim), plan.sigma, cells, rate, first + i)
            self.steps += 1

    def _step(self, rows: Floats, labels: Floats, stream: Stream) -> None:
        dim = self.plan.dim
        for start in range(0, len(rows), _CHUNK):
            part, y = rows[start : start + _CHUNK], labels[start : start + _CHUNK]
            rates = self.plan.rates(self.steps, len(part))
            noise = scaled(stream.take(len(part) * dim), self.plan.sigma / self.plan.grid)
            self.gate.privatize(part, y, rounded(noise).reshape(len(part), dim), rates, self.steps)
            self.steps += len(part)

    def to_state(self) -> dict[str, Any]:
        """Plain values and arrays; the buffer among them holds raw records."""
        return {
            "steps": self.steps,
            "vectors": self.gate.vectors.copy(),
            "buffer": self.gate.buffer.to_state(self.steps),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        vectors, steps = state["vectors"], int(state["steps"])
        if vectors.shape != (2, self.plan.dim) or steps < 0:
            raise ValueError("weights of another shape")
        self.gate.buffer.load_state(state["buffer"], steps)
        self.steps = steps
        self.gate.vectors[:] = vectors


@dataclass(frozen=True)
class GradientPerturbationMechanism(Mechanism):
    """Gradient descent with noise in every gradient; the state keeps only the noisy iterate.

    Parameters
    ----------
    l2
        Strength of a ridge term, which depends on no data.
    """

    l2: float = 0.0

    def start(
        self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None
    ) -> GradientPerturbationState:
        """A new state; the fitted numbers are those of `saved`, if given."""
        plan = plan_gradient_perturbation(**GradientPlan.arguments(settings))
        return GradientPerturbationState(with_numbers(plan, saved), empty_buffer(settings, seed), self.l2)

    def describe(self, settings: Settings) -> str:
        """Description of the mechanism, for the report."""
        return (
            f"Mechanism: gradients clipped per pair at {settings.clip:g} and averaged over "
            f"{settings.buffer.describe()}; each averaged gradient is released under Gaussian noise of its "
            f"own, and the noisy iterate is all that is kept.{settings.warmup_words()}"
        )
