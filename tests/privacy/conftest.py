"""A learner that plans with a broken sensitivity: what statistical tests must catch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from streampair.privacy.mechanisms import ftrl
from streampair.privacy.mechanisms.ftrl import FTRLPlan, plan_ftrl


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[FTRLPlan], FTRLPlan]], None]:
    def use(breaker: Callable[[FTRLPlan], FTRLPlan]) -> None:
        monkeypatch.setattr(ftrl, "plan_ftrl", lambda *a, **k: breaker(plan_ftrl(*a, **k)))

    return use
