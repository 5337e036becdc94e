"""PairFTRL by moments that fade: the leader of what the stream has become (docs/privacy.md 10.6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from streampair.privacy.mechanisms.base import Settings
from streampair.privacy.mechanisms.fitted import under
from streampair.privacy.mechanisms.forgetting_plan import BLOCKS, ForgettingPlan, plan_forgetting
from streampair.privacy.mechanisms.moments import Moments, MomentsRun

if TYPE_CHECKING:
    from streampair.privacy.mechanisms.run import Run
    from streampair.privacy.noise import Stream

__all__ = ["Forgetting", "ForgettingRun"]


class ForgettingRun(MomentsRun):
    """State of one run: that of `MomentsRun`, where `_running` is T and the newest T says all that is known.

    Parameters
    ----------
    plan
        The calibrated mechanism.
    """

    plan: ForgettingPlan  # type: ignore[assignment]  # it has what a run of moments asks of its own

    def __init__(self, plan: ForgettingPlan) -> None:
        super().__init__(plan)  # type: ignore[arg-type]

    def numbers(self) -> list[float]:
        """Everything that scales or shapes the noise."""
        plan = self.plan
        return [plan.sigma, plan.keep, float(plan.length), plan.grid, plan.radius]

    def _release(self, stream: Stream) -> None:
        """One noisy sum of a block, and the leader of what is left of all blocks so far."""
        plan, numbers = self.plan, self._numbers
        noisy = self.block.emit(self._noise.rows(1, stream)[0])
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
class Forgetting(Moments):
    """The leader of the squared loss over all pairs, in which a record counts half after `half_life` slots.

    Parameters
    ----------
    half_life
        In learned slots.
    """

    half_life: int = 1

    label_cross: ClassVar[bool] = False

    def start(
        self, settings: Settings, *, seed: int | None, saved: Mapping[str, Any] | None
    ) -> ForgettingRun:
        """A run; nothing is drawn, and what was fitted for a saved one is taken from it."""
        assert settings.features is not None
        plan = plan_forgetting(
            settings.mu,
            features=settings.features,
            half_life=self.half_life,
            radius=settings.radius,
            forks=settings.forks,
            window=settings.window,
            relation=settings.relation,
        )
        return ForgettingRun(under(plan, saved))

    def describe(self, settings: Settings) -> str:
        """What is done, for the report."""
        length = math.ceil(self.half_life / BLOCKS)
        return (
            "Mechanism: second moments of the records, and of their labels with them, are summed over "
            f"blocks of {length} records; each block's sum is released once, under Gaussian noise that is "
            "correlated over the blocks, and every model is computed from these releases, in which a record "
            f"counts half after {self.half_life} later ones. The first {settings.warmup} records are used "
            "for one release of means, variances and the share of labels only, the later ones for learning "
            "only, so each has the whole budget (parallel composition)."
        )

    def notes(self, settings: Settings, run: Run) -> list[str]:
        """What is said of a stream without end."""
        return [
            "A record is in one block, so what is spent on it does not grow with the stream. What is "
            "forgotten has been released all the same."
        ]
