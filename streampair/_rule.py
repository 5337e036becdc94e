"""What a private learner asks of a mechanism: an update rule with its state, and the plan behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streampair.privacy import ChainedNoise
from streampair.privacy.noise import Stream

__all__ = ["Plan", "Rule"]

Array = NDArray[np.float64]


class Plan(Protocol):
    """A calibrated mechanism."""

    @property
    def sigma(self) -> float:
        """Noise std, a coordinate."""

    def mu_spent(self, steps: int) -> float:
        """mu of the releases of the first `steps` learning slots."""

    def fork_mu2(self, window: int) -> float:
        """What a second view of `window` consecutive slots adds to mu^2, at most (PRIVACY.md 8)."""


class Rule(Protocol):
    """An update rule with its state: what a mechanism brings."""

    steps: int

    @property
    def plan(self) -> Plan:
        """The calibrated mechanism."""

    @property
    def average(self) -> Array:
        """The published weights: a view."""

    @property
    def releases(self) -> int:
        """Models released so far, each of which has cost something."""

    def learn(self, rows: Array, labels: Array, stream: Stream) -> None:
        """Take one slot a row; label NaN makes it a null slot."""

    def learn_chained(self, row: Array, label: Array, chain: ChainedNoise) -> None:
        """`learn` of one slot, (1, d) and (1,), under noise that depends on what it is added to."""

    def numbers(self) -> list[float]:
        """Everything that scales or shapes the noise."""

    def to_state(self) -> dict[str, Any]:
        """What has been learned, as plain values and arrays."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state` of a rule with the same plan."""
