"""What is released for the probabilities of gradients, calibrated (docs/privacy.md 10.9)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from streampair.privacy.mechanisms.base import Release, Settings, check_cells
from streampair.privacy.mechanisms.run import Plan

__all__ = ["GRID", "SHARE", "RatePlan", "RatedPlan"]

SHARE = 0.02
"""Of mu^2, for all that probabilities need."""

GRID = 2.0**-10
"""What the sums are rounded to."""

_DIAMETER = 3.0
_FIRST = 100.0  # slots times mu of the first block: its mean label has a noise of a fifth


@dataclass(frozen=True)
class RatePlan:
    """What is released of labels and scores, calibrated.

    Parameters
    ----------
    mu
        Budget in mu-GDP of one record, or of all of an entity's.
    forks
        Second views of a window that the budget has room for: in each a record is in one block.
    horizon
        Learning slots, None for no end. The last block ends there.
    records
        How many records of an entity there may be.
    features
        Features d.
    first
        Slots of the first block: so many that the noise of its mean label is about a fifth at `SHARE`.
    sigma
        Noise std of each of the sums.
    """

    mu: float
    forks: int = 0
    horizon: int | None = None
    records: int = 1
    features: int = 1
    first: int = field(init=False)
    sigma: float = field(init=False)

    def __post_init__(self) -> None:
        # Slots and their number are public: rounded up to a hundred, so that no last digit moves them.
        slots = 100 * math.ceil(_FIRST * math.sqrt(SHARE) * self.records / self.mu / 100.0)
        object.__setattr__(self, "first", slots)
        object.__setattr__(self, "sigma", math.sqrt(1.0 + self.forks) * self.sensitivity / self.mu)
        check_cells(20.0 * self.sigma / GRID, "noise of the share of positives")

    @property
    def sensitivity(self) -> float:
        """l2 sensitivity of a block's sums: at most 3 a record, and what rounding adds."""
        return self.records * (_DIAMETER + GRID * math.sqrt(2.0 * self.features + 1.0))

    @property
    def cells(self) -> int:
        """Coordinates of a release."""
        return 3 + 2 * self.features

    def end(self, start: int) -> int:
        """Where the block ends that begins after `start` learned slots."""
        end = max(2 * start, self.first)
        return end if self.horizon is None else min(end, self.horizon)

    def mu_spent(self, steps: int) -> float:
        """mu of the blocks that have ended: a record is in one of them, an entity in some."""
        return self.sensitivity / self.sigma if steps >= self.end(0) else 0.0

    def fork_mu2(self, window: int) -> float:
        """What a second view adds to mu^2: a record is in one block of it."""
        return (self.sensitivity / self.sigma) ** 2 if window > 0 else 0.0

    def release(self, settings: Settings) -> Release:
        """What is released, and what it is worth."""
        move = self.sensitivity / self.sigma
        return Release(
            name="labels and scores of a block, for probabilities",
            domain="records in the unit ball, a label -1 or 1, and a score cut to [-1, 1]",
            relation=settings.relation,
            lemma="docs/privacy.md, Lemma 50",
            sensitivity=self.sensitivity,
            sigma=self.sigma,
            replace=move,
            # |F| is at most sqrt 5.
            blank=math.sqrt(5.0) / 3.0 * move,
            releases=None if self.horizon is None else self._blocks(self.horizon),
            coordinates=self.cells,
            grid=GRID,
        )

    def _blocks(self, horizon: int) -> int:
        count = at = 0
        while at < horizon:
            at, count = self.end(at), count + 1
        return count


class RatedPlan:
    """A plan of gradients, and beside it one of labels and scores: their mu^2 add up.

    Parameters
    ----------
    plan
        Of the gradients.
    rate
        Of labels and scores; None: a share is declared.
    """

    def __init__(self, plan: Plan, rate: RatePlan | None) -> None:
        self.plan = plan
        self.rate = rate

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "plan":
            raise AttributeError(name)
        return getattr(self.plan, name)

    @property
    def FITTED(self) -> tuple[str, ...]:
        """Of both."""
        own: tuple[str, ...] = self.plan.FITTED  # type: ignore[attr-defined]
        return own if self.rate is None else (*own, "rate_sigma")

    @property
    def rate_sigma(self) -> float:
        """Noise std of labels and scores."""
        assert self.rate is not None
        return self.rate.sigma

    def mu_spent(self, steps: int) -> float:
        """mu of the releases of the first `steps` learning slots."""
        return math.hypot(self.plan.mu_spent(steps), 0.0 if self.rate is None else self.rate.mu_spent(steps))

    def fork_mu2(self, window: int) -> float:
        """What a second view of `window` consecutive slots adds to mu^2, at most."""
        return self.plan.fork_mu2(window) + (0.0 if self.rate is None else self.rate.fork_mu2(window))
