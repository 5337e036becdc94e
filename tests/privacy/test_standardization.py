"""The private moments of the prefix (docs/privacy 4.4): noise of the right size, honest variances."""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

from streampair import auc, privacy
from streampair.privacy.mechanisms import standardization as warmup_module
from streampair.privacy.mechanisms.second_moments import MomentsState
from streampair.privacy.mechanisms.standardization import (
    SQUARE_WEIGHT,
    Warmup,
    WarmupPlan,
    moment_sensitivity,
    plan_warmup,
    shrunk_variances,
)
from streampair.privacy.noise import NormalStream

MU, SLOTS, DIM = 0.8, 1000, 500


def release(
    plan: WarmupPlan, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[np.ndarray, np.ndarray]:
    """Noise of both means, in units of the standard deviation that the budget asks for."""
    seen: dict[str, Any] = {}

    def spy(mean: np.ndarray, square: np.ndarray, *stds: float) -> np.ndarray:
        seen.update(mean=mean, square=square)
        return shrunk_variances(mean, square, *stds)

    monkeypatch.setattr(warmup_module, "shrunk_variances", spy)
    Warmup(plan, DIM).release(NormalStream(seed))
    # One release, in which the squares have SQUARE_WEIGHT times less noise.
    want = moment_sensitivity(DIM, grid=1 / WarmupPlan.PER_UNIT) / SLOTS / MU
    return seen["mean"] / want, seen["square"] / want * SQUARE_WEIGHT


def fails(noise: np.ndarray) -> bool:
    total = float((noise**2).sum())
    return min(stats.chi2.sf(total, len(noise)), stats.chi2.cdf(total, len(noise))) < 1e-5 / 2


def test_the_noise_has_the_size_that_the_budget_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_warmup(MU, dim=DIM, slots=SLOTS)
    for seed in [*range(20), None]:
        mean, square = release(plan, seed, monkeypatch)
        assert not fails(mean)
        assert not fails(square)
        assert abs(float((mean * square).sum())) < 5.5 * math.sqrt(DIM)
    for part in ("sigma_sum", "sigma_squares"):
        for factor in (2 / 3, 3 / 2):
            broken = dataclasses.replace(plan, **{part: factor * getattr(plan, part)})
            assert any(fails(noise) for noise in release(broken, None, monkeypatch))


@pytest.mark.parametrize("window", [40, 400])
@pytest.mark.parametrize(
    "make",
    [
        partial(auc.PairFTRL, mechanism=privacy.PairGradients()),
        partial(auc.PairFTRL, mechanism=privacy.SecondMoments()),
        partial(auc.OnPairStrC, l2=0.1),
    ],
)
def test_a_record_in_the_warm_up_of_one_view_may_be_learned_in_another(make: Any, window: int) -> None:
    """In whatever part a record is in each of three views, report and budget cover it."""
    forks, options = 2, {"horizon": 400, "warmup": 30, "features": ["a", "b"], "seed": 1}
    model = make(epsilon=1.0, delta=1e-3, forks=forks, window=window, **options)
    for i in range(400):
        model.learn_one({"a": 0.1 * (i % 7), "b": -0.2}, i % 3 == 0)
    model.charge(forks)
    plan, one = model.run.state.plan, model.run.warmup.plan.mu**2
    run, again = plan.mu_spent(plan.horizon) ** 2, plan.fork_mu2(window)
    for path in itertools.product((True, False), repeat=forks + 1):
        spent = one if path[0] else run
        spent += sum(one if prefix else again for prefix in path[1:])
        assert spent <= model.privacy.mu_spent**2 * (1 + 1e-9)
        assert spent <= model.privacy.mu_budget**2 * (1 + 1e-9)
    # The mutant: the budget of the prefix split by itself, as if a record stayed where it was.
    mutant_mu2 = model.privacy.mu_budget**2 / (1 + forks)
    assert one <= mutant_mu2
    if window == 40:
        assert run + forks * mutant_mu2 > model.privacy.mu_budget**2 * 1.01


def test_no_two_releases_share_their_noise() -> None:
    # So many slots that no mean is cut to [-1, 1], where two could be equal by chance.
    first, second = (
        auc.PairFTRL(features=["a", "b"], delta=1e-3, warmup=2000, mechanism=privacy.PairGradients())
        for _ in range(2)
    )
    for model in (first, second):
        for _ in range(2000):
            model.learn_null()
    assert first.run is not None
    assert second.run is not None
    assert np.abs(first.run.design.mean).max() < 1
    assert not np.intersect1d(first.run.design.mean, second.run.design.mean).size


def test_without_noise_the_variances_are_exact() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1000, 5)) * [0.1, 0.3, 0.5, 0.7, 1.0]
    exact = shrunk_variances(x.mean(axis=0), (x**2).mean(axis=0), 0.0, 0.0)
    assert exact == pytest.approx(x.var(axis=0))
    assert shrunk_variances(np.zeros(2), np.zeros(2), 0.0, 0.0) == pytest.approx([1e-3, 1e-3])
    assert shrunk_variances(np.array([0.5]), np.array([0.5]), 0.0, 0.0) == pytest.approx([0.25])


def test_under_noise_they_are_closer_than_the_raw_ones() -> None:
    rng = np.random.default_rng(1)
    for spread in (0.0, 0.02, 0.1):
        errors = np.zeros(2)
        for _ in range(200):
            mean = rng.uniform(-0.5, 0.5, 20)
            variance = np.clip(rng.normal(0.2, spread, 20), 0.01, None)
            noisy_mean = mean + rng.normal(0, 0.08, 20)
            noisy_square = variance + mean**2 + rng.normal(0, 0.04, 20)
            raw = np.maximum(noisy_square - noisy_mean**2, 1e-3)
            shrunk = shrunk_variances(noisy_mean, noisy_square, 0.08, 0.04)
            errors += [((raw - variance) ** 2).mean(), ((shrunk - variance) ** 2).mean()]
        assert errors[1] < errors[0]


@pytest.mark.parametrize("attribute", ["average", "link", "to_state"])
def test_a_model_is_computed_when_it_is_asked_for(attribute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, whoever asks first; and it is the one that was computed at each release."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (1000, 2))
    y = x[:, 0] > 0
    eager, lazy = (auc.PairFTRL(1.0, 1e-3, 1000, features=[0, 1], warmup=100, seed=1) for _ in range(2))
    for start in range(0, 1000, 5):
        eager.learn_many(x[start : start + 5], y[start : start + 5])
        assert eager.run.state.average is not None
    computed, compute = [], MomentsState._compute_model

    def spy(run: MomentsState) -> Any:
        computed.append(run.releases)
        return compute(run)

    monkeypatch.setattr(MomentsState, "_compute_model", spy)
    lazy.learn_many(x, y)
    assert computed == []
    one, other = (getattr(model.run.state, attribute) for model in (eager, lazy))
    if attribute == "to_state":
        one, other = one(), other()
        assert one["link"] == other["link"] != [1.0, 0.0]
        one, other = one["weights"], other["weights"]
    assert np.array_equal(one, other)
    assert (lazy.run.state.average == eager.run.state.average).all()
    assert lazy.run.state.link == eager.run.state.link
    assert computed == [lazy.run.state.releases]
    assert lazy.run.state.releases > 5
