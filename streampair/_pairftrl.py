"""PairFTRL: follow the regularised leader on pairs under correlated noise (PRIVACY.md 4.3)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair._design import Design
from streampair._leader import Leader
from streampair._private_base import PrivateBase
from streampair._rule import Rule
from streampair._updates import FTRL, strategy_from_state
from streampair.errors import ConfigError
from streampair.privacy import plan_ftrl, plan_leader
from streampair.privacy.plan import choose_strategy

__all__ = ["LeaderBase"]

Array = NDArray[np.float64]

# What the solver "moments" fixes, chosen on generated streams, where all of it is flat around these values.
MOST_SLOTS = 2.0**40
LEAST_HORIZON = 100  # too few for two stages
MOMENTS_FEATURES = 512  # a release has d^2 / 2 coordinates
CAP = 3.0  # standard deviations, where standardised values end
SHARES = (0.1, 0.25)  # least and most of a horizon that the warm-up takes
WITHIN = 40.0  # sqrt(d) / mu slots bring the noise of the means below a twentieth of their range
OPEN = 100.0  # the same without a horizon, where the warm-up has to last


class LeaderBase(PrivateBase):
    """The mechanism of the PairFTRL learners of all families."""

    strategy: Any
    solver: str = "gradients"

    def _init_private(self) -> None:
        if self.strategy not in ("auto", "blt"):
            # Refuses unknown names, and the square root without a horizon.
            choose_strategy(self.strategy, np.ones(1), None if self.horizon is None else 1)
        if self.solver not in ("auto", "moments", "gradients"):
            raise ConfigError(
                f"solver is {self.solver!r}", fix="give solver='auto', 'moments' or 'gradients'"
            )
        given = [
            name
            for name in ("loss", "buffer", "clip", "max_uses", "entity")
            if getattr(self, name) is not None
        ]
        if self.strategy != "auto":
            given.append("strategy")
        if self.warmup is not None and self.warmup == 0:
            given.append("warmup")
        if self.solver == "moments" and given:
            raise ConfigError(
                f"solver='moments' cannot use {given[0]}={getattr(self, given[0])!r}: it standardises "
                "records first and takes the leader of the squared loss over all pairs",
                fix=f"leave {given[0]} out, or use solver='gradients'",
            )
        short = isinstance(self.horizon, int) and self.horizon < LEAST_HORIZON
        self._auto = "gradients" if given or short else "moments"
        self._count: int | None = None
        super()._init_private()

    def _set_names(
        self, names: Sequence[Hashable], saved: Mapping[str, Any] | None = None
    ) -> tuple[Design, Rule]:
        self._count = len(names)
        design, rule = super()._set_names(names, saved)
        if isinstance(rule, Leader):
            design.cap = CAP * rule.plan.spread / math.sqrt(len(names))
        return design, rule

    @property
    def _by_moments(self) -> bool:
        """Whether the leader is computed from moments; before the features are known, whether it may be."""
        if self.solver == "auto":
            return self._auto == "moments" and (self._count is None or self._count <= MOMENTS_FEATURES)
        return self.solver == "moments"

    def _checked_loss(self, loss: Any) -> losses.PairLoss:
        return losses.Square() if self._by_moments else super()._checked_loss(loss)

    def _default_warmup(self, mu: float, horizon: int | None, features: int | None) -> int | None:
        if not self._by_moments:
            return None
        root = math.sqrt(features or 1)
        if horizon is None:
            return math.ceil(min(OPEN * root / mu, MOST_SLOTS))
        least, most = SHARES
        return max(int(min(most * horizon, max(least * horizon, WITHIN * root / mu))), 1)

    @property
    def _centres_labels(self) -> bool:
        return self._by_moments

    def _use_moments(self, design: Design, rule: Any, mean: Array, factor: Array, label: float) -> None:
        if isinstance(rule, Leader):
            rule.centre(label)
            factor = rule.plan.spread * factor
        design.standardise(mean, factor)

    def _make_rule(self, dim: int, features: int, saved: Mapping[str, Any] | None) -> Rule:
        asked = self._settings
        if self._by_moments:
            return Leader(
                plan_leader(
                    asked.mu,
                    features=features,
                    base=float(asked.warmup),
                    radius=asked.radius,
                    horizon=asked.learning,
                    forks=asked.forks,
                    window=asked.window,
                )
            )
        plan = plan_ftrl(
            asked.mu_learning,
            dim=dim,
            influence=asked.buffer.influence,
            diameter=asked.loss.diameter(1.0, asked.radius, asked.clip, form=self._form),
            clip=asked.clip,
            radius=asked.radius,
            tangent=asked.tangent,
            horizon=asked.learning,
            strategy=self.strategy
            if saved is None
            else strategy_from_state(saved["strategy"], asked.learning),
            forks=asked.forks,
            window=asked.window,
        )
        return FTRL(plan, self._pair_buffer(features))

    @property
    def buffer_records(self) -> int:
        """Places of the buffer in use, null records too; moments need none."""
        return 0 if self._by_moments else super().buffer_records

    def _describe(self) -> str:
        asked = self._settings
        if self._by_moments:
            return (
                "Mechanism: second moments of the records, and of their labels with them, are summed over "
                "blocks of records; each block's sum is released once, under Gaussian noise that is "
                "correlated over the blocks, and every model is computed from these releases. The first "
                f"{asked.warmup} records are used for one release of means, variances and the share of "
                "labels only, the later ones for learning only, so each has the whole budget (parallel "
                "composition)."
            )
        return (
            f"Mechanism: gradients clipped per pair at {asked.clip:g} and averaged over "
            f"{asked.buffer.describe()}; their running sum is released under correlated Gaussian noise after "
            f"every record.{asked.warmup_words()}"
        )
