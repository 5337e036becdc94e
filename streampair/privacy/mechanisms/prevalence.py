"""A private estimate of the share of positives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from streampair.errors import ConfigError
from streampair.kernels import dp_steps, vectors
from streampair.privacy.mechanisms.base import (
    CombinedPlan,
    Companion,
    CompanionPlan,
    Link,
    MechanismState,
    NoisySums,
    Release,
    Settings,
    SlotBatch,
    StateWrapper,
    check_overflow,
    normal_link,
    rate_link,
    unit_link,
)
from streampair.privacy.noise import ChainedNoise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.noise import Stream

    Floats = NDArray[np.float64]

__all__ = [
    "GRID",
    "RELEASED",
    "SHARE",
    "PrevalencePlan",
    "WithPrevalence",
    "WithPrevalenceState",
    "checked_rate",
]

SHARE = 0.02
"""Of mu^2, for all that probabilities need."""

GRID = 2.0**-10
"""What the sums are rounded to."""

_DIAMETER = 3.0
_FIRST = 100.0  # slots times mu of the first block: its mean label has a noise of a fifth


@dataclass(frozen=True)
class PrevalencePlan(CompanionPlan):
    """Calibrated plan for sums of labels and scores, released in blocks of slots.

    Parameters
    ----------
    mu, forks, horizon, records, sigma
        As in `CompanionPlan`.
    features
        Number of features d.
    first
        Slots of the first block, for which the noise of the mean label is about 0.2 at `SHARE`.
    """

    features: int = 1
    first: int = field(init=False)

    FITTED_AS: ClassVar[str] = "rate_sigma"

    def __post_init__(self) -> None:
        super().__post_init__()
        # The number of slots is public: rounded up to a hundred, so that it is the same on every processor.
        slots = 100 * math.ceil(_FIRST * math.sqrt(SHARE) * self.records / self.mu / 100.0)
        object.__setattr__(self, "first", slots)
        check_overflow(20.0 * self.sigma / GRID, "noise of the share of positives")

    @property
    def sensitivity(self) -> float:
        """l2 sensitivity of a block's sums: at most 3 for each record, and the rounding."""
        return self.records * (_DIAMETER + GRID * math.sqrt(2.0 * self.features + 1.0))

    @property
    def cells(self) -> int:
        """Number of coordinates of a release."""
        return 3 + 2 * self.features

    def end(self, start: int) -> int:
        """End of the block that begins after `start` learned slots."""
        end = max(2 * start, self.first)
        return end if self.horizon is None else min(end, self.horizon)

    def release(self, settings: Settings) -> Release:
        """The release with its sensitivity, noise and cost, for the card."""
        return Release(
            name="labels and scores of a block, for probabilities",
            domain="records in the unit ball, a label -1 or 1, and a score cut to [-1, 1]",
            relation=settings.relation,
            lemma="docs/privacy, Lemma 50",
            sensitivity=self.sensitivity,
            sigma=self.sigma,
            replace=self.move,
            # |F| is at most sqrt 5.
            blank=math.sqrt(5.0) / 3.0 * self.move,
            releases=None if self.horizon is None else self._blocks(self.horizon),
            coordinates=self.cells,
            grid=GRID,
            draws=self.records * self.cells * (self.sigma / GRID + 1.0),
        )

    def _blocks(self, horizon: int) -> int:
        count = slot = 0
        while slot < horizon:
            slot, count = self.end(slot), count + 1
        return count


RELEASED = "released"
"""What `positive_rate` says for a share that is released."""

_CUT = 3.0  # standard deviations, where a score ends
_RAREST = 0.01  # of the released shares of either class
_FARTHEST = 3.0  # standard deviations between the classes, at most: an area of .983
_FLATTEST = 0.05  # of the variance that scores are believed to have, at least


def checked_rate(value: Any) -> float | None:
    """A declared share of positives, or None for a released one.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if isinstance(value, str) and value == RELEASED:
        return None
    ok = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not ok or not 1e-6 <= value <= 1.0 - 1e-6:
        raise ConfigError(
            f"positive_rate is {value!r}",
            fix="give the share of positives, between 0 and 1, as it is publicly known, or 'released'",
        )
    return float(value)


class WithPrevalenceState(StateWrapper):
    """State of gradients with calibrated probabilities.

    Parameters
    ----------
    plan
        Plan of the released share of positives; None: it is declared.
    run
        State of the gradients.
    settings
        Validated parameters.
    declared
        The share of positives; None: it is released.
    """

    def __init__(
        self, plan: PrevalencePlan | None, run: MechanismState, settings: Settings, declared: float | None
    ) -> None:
        super().__init__(run)
        self.plan = run.plan if plan is None else CombinedPlan(run.plan, plan)
        self._rate_plan = plan
        self._declared = declared
        self._start = self._blocks = 0
        self._w = np.zeros(len(run.average))
        self._squares = np.zeros(2)  # released sums of 1 and of t^2 over the last block that had weights
        self._sums = np.zeros(0)  # released sums over all blocks
        if plan is not None:
            self._sums = np.zeros(plan.cells)
            self.sums = NoisySums(plan.release(settings), (plan.cells,))
            self._due = plan.end(0)

    # ---- what is released ------------------------------------------------------------------------------

    @property
    def releases(self) -> int:
        """Number of models and blocks released so far."""
        return self.inner.releases + self._blocks

    def card(self) -> tuple[Release, ...]:
        """The mechanism card: each kind of release with its sensitivity, noise and cost."""
        return self.inner.card() if self._rate_plan is None else (*self.inner.card(), self.sums.release)

    def numbers(self) -> list[float]:
        """Numbers that scale or shape the noise."""
        numbers = self.inner.numbers()
        return numbers if self._rate_plan is None else [*numbers, self._rate_plan.sigma, GRID]

    # ---- slots -----------------------------------------------------------------------------------------

    def take(self, batch: SlotBatch, stream: Stream) -> None:
        """As in the base class, in one go up to the last slot of a block."""
        if self._rate_plan is None:
            self.inner.take(batch, stream)
            self.steps = self.inner.steps
            return
        start, n = 0, len(batch.rows)
        while start < n:
            # The slot of a release by itself: with a chain, its sums key the noise of the step.
            part = batch.part(start, min(n, max(start + self._due - self.steps - 1, start + 1)))
            start += len(part.rows)
            self.sums.add(dp_steps.score_sums, part.rows, part.labels, self._w, 1.0 / GRID)
            if isinstance(stream, ChainedNoise) and self.steps + 1 == self._due:
                stream.extend(self.sums.cells())
            self.inner.take(part, stream)
            self._release_if_due(stream)

    def _release_if_due(self, stream: Stream) -> None:
        """Release the sums of the block, if it ends with the slots taken so far."""
        self.steps = self.inner.steps
        rate = self._rate_plan
        assert rate is not None
        if self.steps != self._due:
            return
        out = self.sums.privatize(self.sums.noise(stream.take(rate.cells), rate.sigma))
        self.sums.clear()
        self._sums += out
        if self._w.any():
            self._squares[:] = out[0], out[2]
        self._blocks += 1
        self._start = self.steps
        self._due = rate.end(self._start)
        self._w[:] = self._per_unit() * self.average

    # ---- probabilities ---------------------------------------------------------------------------------

    def _per_unit(self) -> float:
        """Factor that scales scores to a std of about `1 / _CUT`, so that they lie in [-1, 1]."""
        return unit_link(self.average, self.spread).slope / _CUT if self.average.any() else 0.0

    @property
    def link(self) -> Link:
        """Link from a score to a probability, computed from releases alone."""
        if self._declared is not None:
            return Link(unit_link(self.average, self.spread).slope, rate_link(self._declared).offset)
        if not self._blocks:
            return unit_link(self.average, self.spread)
        scale = self._per_unit()
        return self._fitted_link(scale) if scale > 0.0 else rate_link(self._rate())

    @property
    def prior(self) -> float:
        """Log-odds of the share of positives that the link uses."""
        if self._declared is not None:
            return rate_link(self._declared).offset
        return rate_link(self._rate()).offset if self._blocks else 0.0

    def _rate(self) -> float:
        """Share of positives, from the released sums of 1 and of the labels s."""
        count = max(float(self._sums[0]), 0.1 * self._start)
        return min(max(0.5 * (1.0 + float(self._sums[1]) / count), _RAREST), 1.0 - _RAREST)

    def _fitted_link(self, scale: float) -> Link:
        """Link from the variance of the scores, their mean and the gap between the class means.

        Each is a posterior mean that weighs the release by its noise against a prior. In units in which
        scores have a std of about `1 / _CUT`, the prior has a mean anywhere in [-1, 1], that std, and a gap
        of one std with an error as large.
        """
        plan = self._rate_plan
        assert plan is not None
        rate, d, unit = self._rate(), plan.features, 1.0 / (_CUT * _CUT)
        slots = max(float(self._sums[0]), 0.1 * self._start)
        weights = scale * self.average
        # Noise variance of the score of summed records: independent in each coordinate and block.
        noise = self._blocks * plan.sigma * plan.sigma * float(vectors.dot(weights, weights))
        total, signed = (
            float(vectors.dot(weights, part)) for part in (self._sums[3 : 3 + d], self._sums[3 + d :])
        )
        mean = total / slots / (1.0 + noise / (slots * slots))
        variance = unit
        if self._squares.any():
            count = max(float(self._squares[0]), 1.0)
            error = (plan.sigma / count) * (plan.sigma / count)
            seen = float(self._squares[1]) / count - mean * mean
            variance += (seen - unit) * unit * unit / (unit * unit + error)
            # At least its own uncertainty.
            least = unit * math.sqrt(error / (unit * unit + error))
            variance = max(variance, least, _FLATTEST * unit)
        # The uncertainty of the mean counts as variance of the scores.
        variance += noise / (slots * slots + noise)
        high, low = rate * slots, (1.0 - rate) * slots
        seen = 0.5 * (total + signed) / high - 0.5 * (total - signed) / low
        error = 0.5 * noise * (1.0 / (high * high) + 1.0 / (low * low))
        gap = math.sqrt(variance)
        gap += (seen - gap) * variance / (variance + error)
        odds, most = rate * (1.0 - rate), _FARTHEST * _FARTHEST
        gap = min(max(gap, 0.0), math.sqrt(most * variance / (1.0 + most * odds)))
        link = normal_link(odds * gap, variance, rate)
        return Link(link.slope * scale, link.offset - link.slope * mean)

    # ---- state -----------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Export the state, as plain values and arrays."""
        state = self.inner.to_state()
        if self._rate_plan is None:
            return state
        return {
            **state,
            "rate": {
                "sums": self.sums.to_state(),
                "start": self._start,
                "blocks": self._blocks,
                "weights": self._w.copy(),
                "squares": self._squares.copy(),
                "released": self._sums.copy(),
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a run with the same plan; noise from here on is new."""
        self.inner.load_state(state)
        self.steps = self.inner.steps
        rate = self._rate_plan
        if rate is None:
            return
        saved = state["rate"]
        start, blocks = int(saved["start"]), int(saved["blocks"])
        slot = count = 0
        while rate.end(slot) <= self.steps and rate.end(slot) > slot:
            slot, count = rate.end(slot), count + 1
        if (start, blocks) != (slot, count):
            raise ValueError("blocks that are not those of the plan")
        for name, array in (("weights", self._w), ("squares", self._squares), ("released", self._sums)):
            if saved[name].shape != array.shape:
                raise ValueError(f"{name} of another shape")
            array[:] = saved[name]
        self.sums.load_state(saved["sums"])
        self._start, self._blocks, self._due = start, blocks, rate.end(start)


@dataclass(frozen=True)
class WithPrevalence(Companion):
    """The share of positives, declared or released, which calibrates the probabilities of gradients.

    Parameters
    ----------
    declared
        The public share; None: it is released, for `SHARE` of the learning's mu^2.
    """

    declared: float | None = None

    calibrated: ClassVar[bool] = True

    def start(
        self,
        settings: Settings,
        saved: Mapping[str, Any] | None,
        start_inner: Callable[[Settings, Mapping[str, Any] | None], MechanismState],
    ) -> WithPrevalenceState:
        """A new state; the fitted numbers are those of `saved`, if given."""
        rate = None
        inner = settings
        if self.declared is None:
            rate = PrevalencePlan(
                math.sqrt(SHARE) * settings.mu_learning,
                settings.forks,
                settings.learning,
                settings.learning_records,
                settings.features or 1,
            )
            rate, saved = rate.with_saved(saved)
            inner = replace(settings, mu=math.sqrt(1.0 - SHARE) * settings.mu)
        run = start_inner(inner, saved)
        return WithPrevalenceState(rate, run, settings, self.declared)

    def describe(self) -> str:
        """Description of the mechanism, for the report."""
        if self.declared is not None:
            return ""
        return (
            "Probabilities are computed from sums of labels, records and squared scores over blocks of "
            f"slots, each released once under Gaussian noise for {SHARE:.0%} of mu^2."
        )

    def notes(self, run: WithPrevalenceState) -> list[str]:
        """Further notes of the report."""
        if self.declared is None:
            return []
        return [
            f"The declared share of positives, {self.declared:g}, is taken as public; probabilities are "
            "those of scores in standard units around 0."
        ]
