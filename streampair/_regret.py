"""Placeholder."""

from __future__ import annotations
from typing import Any


class RegretEstimate: ...


class PairRegret:
    seen = 0
    next_hit = -1
    due = False

    def __init__(
        self, loss: Any, radius: float, pairs: int = 1024, exact: int = 64, seed: int = 0
    ) -> None: ...
    def prepare(self, *a: Any) -> Any: ...
    def commit(self, *a: Any) -> int:
        return -1

    def estimate(self, design_many: Any) -> RegretEstimate:
        return RegretEstimate()

    def to_state(self) -> dict[str, object]:
        return {}

    def load_state(self, state: Any) -> None: ...
