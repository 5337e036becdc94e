"""PairFTRL: follow the regularised leader on pairs under correlated noise (PRIVACY.md 4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streampair._private_base import PrivateBase
from streampair._updates import FTRL, strategy_from_state
from streampair.privacy import plan_ftrl
from streampair.privacy.plan import choose_strategy

__all__ = ["LeaderBase"]


class LeaderBase(PrivateBase):
    """The mechanism of the PairFTRL learners of all families."""

    strategy: Any

    def _init_private(self) -> None:
        if self.strategy not in ("auto", "blt"):
            # Refuses unknown names, and the square root without a horizon.
            choose_strategy(self.strategy, np.ones(1), None if self.horizon is None else 1)
        super()._init_private()

    def _make_rule(self, dim: int, features: int, saved: Mapping[str, Any] | None) -> FTRL:
        asked = self._settings
        plan = plan_ftrl(
            asked.mu,
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

    def _describe(self) -> str:
        asked = self._settings
        return (
            f"Mechanism: gradients clipped per pair at {asked.clip:g} and averaged over "
            f"{asked.buffer.describe()}; their running sum is released under correlated Gaussian noise after "
            f"every record.{asked.warmup_words()}"
        )
