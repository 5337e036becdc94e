"""Noise residuals of the real learner: size, independence, correlation over time, with mutants (9.4)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import naive
import numpy as np
import pytest
from scipy import stats

from streampair import auc, privacy
from streampair.privacy.mechanisms.ftrl import FTRLPlan, plan_ftrl
from streampair.privacy.sensitivity import BLT

Breaker = Callable[[FTRLPlan], FTRLPlan]


def residuals(model: auc.PairFTRL, steps: int, *, restore_at: int | None = None) -> np.ndarray:
    """z / sigma recovered from a run of null slots, whose gradients are known to be 0."""
    assert model.run is not None
    nominal = plan_ftrl(
        model.settings.mu,
        dim=model.run.state.plan.dim,
        influence=model.settings.buffer.influence,
        diameter=2.0,
        clip=1.0,
        radius=3.0,
        horizon=model.settings.horizon,
        strategy=model.run.state.plan.strategy,
    )
    out = []
    for t in range(steps):
        if t == restore_at:
            state = model.to_state()
            model = model.clone()
            model.load_state(state)
        model.learn_null()
        assert model.run is not None
        out.append(model.run.state.gate.total * nominal.grid)
    noisy = np.diff(np.array(out), axis=0, prepend=np.zeros((1, nominal.dim)))
    strategy = nominal.strategy
    column = strategy.column(steps) if isinstance(strategy, BLT) else strategy.column[:steps]
    return np.asarray(naive.dense(column) @ noisy) / nominal.sigma


def residuals_fail(z: np.ndarray) -> bool:
    """Whether size or independence over time is off, at about 1e-5."""
    n = z.size
    total = float((z**2).sum())
    if min(stats.chi2.sf(total, n), stats.chi2.cdf(total, n)) < 1e-6:
        return True
    for lag in (1, 2, 3, 5, 8, 13):
        pairs = z[lag:] * z[:-lag]
        if abs(pairs.sum()) > 5.5 * math.sqrt(pairs.size):
            return True
    return False


@pytest.mark.parametrize(
    "options", [{"horizon": 300}, {"horizon": 300, "mechanism": privacy.PairGradients(strategy="blt")}, {}]
)
@pytest.mark.parametrize("restore_at", [None, 120])
def test_the_residuals_are_white_with_the_right_size(options: dict[str, Any], restore_at: int | None) -> None:
    for seed in [*range(19), None]:
        model = auc.PairFTRL(features=[*"abcdef"], warmup=0, seed=seed, **options)
        assert not residuals_fail(residuals(model, 300, restore_at=restore_at))


def scaled(factor: float) -> Breaker:
    return lambda plan: dataclasses.replace(plan, sensitivity=factor * plan.sensitivity)


@pytest.mark.parametrize("mutant", [scaled(2 / 3), scaled(3 / 2)])
def test_a_wrong_size_is_rejected(broken: Callable[[Breaker], None], mutant: Breaker) -> None:
    broken(mutant)
    model = auc.PairFTRL(features=[*"abcdef"], warmup=0, horizon=300)
    assert residuals_fail(residuals(model, 300))


def test_noise_that_is_not_correlated_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    from streampair.privacy.noise import ToeplitzNoise

    def rows(self: Any, count: int, stream: Any) -> np.ndarray:
        self.drawn += count
        return np.asarray(self._scale * stream.take(count * self._dim).reshape(2, count, self._dim))

    monkeypatch.setattr(ToeplitzNoise, "rows", rows)
    model = auc.PairFTRL(features=[*"abcdef"], warmup=0, horizon=300)
    assert residuals_fail(residuals(model, 300))


def test_noise_that_is_used_twice_is_rejected() -> None:
    # Two learners that share a seed are a restored learner that replays its noise.
    one, two = (auc.PairFTRL(features=["a"], warmup=0, horizon=50, seed=1) for _ in range(2))
    other = auc.PairFTRL(features=["a"], warmup=0, horizon=50)
    for model in (one, two, other):
        for _ in range(50):
            model.learn_null()
    assert one.run is not None
    assert two.run is not None
    assert other.run is not None
    assert np.array_equal(one.run.state.gate.total, two.run.state.gate.total)
    assert not np.array_equal(one.run.state.gate.total, other.run.state.gate.total)
