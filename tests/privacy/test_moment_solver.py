"""The moments solver of PairFTRL: constants, influence, calibration, noise, replay and use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import naive
import numpy as np
import pandas as pd
import pytest
from harness.moments import climb, same_in_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from river import datasets
from scipy import stats
from sklearn.metrics import roc_auc_score

from streampair import auc, losses, privacy
from streampair.errors import ConfigError
from streampair.kernels import dp_steps
from streampair.privacy import audit, mu_from
from streampair.privacy.mechanisms.second_moments import (
    RATIO,
    MomentsState,
    SecondMomentsPlan,
    plan_second_moments,
    ridge_of,
    second_moments_diameter,
)
from streampair.privacy.noise import NormalStream

D = 3
label = st.sampled_from([1.0, -1.0, math.nan])
unit = st.lists(st.floats(-1, 1), min_size=D, max_size=D).map(
    lambda v: (np.array(v) / max(1.0, float(np.linalg.norm(v)))).tolist()
)


def plan(horizon: int | None = None, mu: float = 0.5, **options: Any) -> SecondMomentsPlan:
    return plan_second_moments(mu, features=D, base=10.0, radius=30.0, horizon=horizon, **options)


# ---- constants -----------------------------------------------------------------------------------------


@given(
    rows=st.lists(st.tuples(unit, label), min_size=1, max_size=5),
    centre=st.floats(-0.9, 0.9),
    grid=st.sampled_from([2.0**-9, 0.125]),
)
def test_the_kernel_adds_what_its_reference_does(rows: list[Any], centre: float, grid: float) -> None:
    x, y = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    got = np.zeros(9, dtype=np.int64)
    dp_steps.second_moment_sums(x, y, centre, 0.6, grid, got)
    want = naive.second_moment_sums(x.tolist(), y.tolist(), centre, 0.6, grid)
    # A value next to the middle of two cells may fall on either side.
    assert np.abs(got - want).max() <= (0 if grid == 0.125 and centre == 0.0 else len(rows))
    assert np.count_nonzero(got != want) <= 1


def moves(rng: np.random.Generator, weight: float, dim: int) -> float:
    """Hill climbing for the largest replacement of one record, label flips included."""

    def distance(v: np.ndarray) -> float:
        x, z = v[:dim], v[dim : 2 * dim]
        x, z = x / max(1.0, float(np.linalg.norm(x))), z / max(1.0, float(np.linalg.norm(z)))
        s, r = weight * np.clip(v[2 * dim :], -1.0, 1.0)
        return float(np.linalg.norm(naive.contribution(x, s) - naive.contribution(z, r)))

    return climb(distance, rng, 2 * dim + 2, starts=40, steps=400)


def test_no_replacement_moves_a_sum_by_more_than_the_diameter() -> None:
    rng = np.random.default_rng(0)
    for dim, weight in ((2, 1.0), (4, 1.0), (3, 0.5), (2, math.sqrt(2.0))):
        found = max(moves(rng, weight, dim) for _ in range(6))
        bound = second_moments_diameter(weight)
        assert 0.95 * bound <= found <= bound * (1 + 1e-12)
    # Mutants that the search must catch: the matrix alone, and two mechanisms that are not one.
    assert max(moves(rng, 1.0, 3) for _ in range(4)) > math.sqrt(2.0)
    # Joint release is less than the two apart.
    assert second_moments_diameter(1.0) < math.hypot(math.sqrt(2.0), 2.0)
    with pytest.raises(ConfigError):
        second_moments_diameter(1.5)


# ---- influence and calibration -------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    stream=st.lists(st.tuples(unit, label), min_size=30, max_size=30),
    position=st.integers(0, 29),
    other=st.tuples(unit, label),
    horizon=st.sampled_from([None, 30]),
    centre=st.floats(-0.9, 0.9),
)
def test_a_record_moves_the_sum_of_its_block_only(
    stream: list[Any], position: int, other: Any, horizon: int | None, centre: float
) -> None:
    rule_plan = plan(horizon)
    ends = [rule_plan.end(k) for k in range(1, 40) if rule_plan.end(k) <= 30]
    outputs = []
    for items in (stream, [*stream[:position], other, *stream[position + 1 :]]):
        rule, noise = MomentsState(rule_plan), NormalStream(5)
        rule.centre(centre)
        seen = []
        for x, y in items:
            rule.learn(np.array([x]), np.array([y]), noise)
            seen.append(rule.released)
        outputs.append(np.array(seen))
    moved = outputs[0] - outputs[1]
    dim, largest = rule_plan.dim, second_moments_diameter() + rule_plan.grid * math.sqrt(rule_plan.dim)
    running = ends if horizon is None else [e for e in ends if e < horizon]
    image = naive.block_influence(running, 30, position, 1.0 / RATIO)
    for end, size in zip(running, image, strict=True):
        assert np.linalg.norm(moved[end - 1, :dim]) <= largest * size + 1e-9
    if horizon is not None:
        assert np.linalg.norm(moved[-1, dim:]) <= largest + 1e-9
        assert not moved[:-1, dim:].any()


@pytest.mark.parametrize("horizon", [None, 5, 40, 400])
def test_the_spend_is_that_of_the_worst_record(horizon: int | None) -> None:
    rule_plan = plan(horizon)
    largest = second_moments_diameter() + rule_plan.grid * math.sqrt(rule_plan.dim)
    assert rule_plan.grid * math.sqrt(rule_plan.dim) <= 0.01 * second_moments_diameter()
    for steps in (0, 1, 7, 39, 40, 120, 400):
        if horizon is not None and steps > horizon:
            continue
        end = steps if horizon is None or steps < horizon else horizon - 1
        ends = [e for e in (rule_plan.end(k) for k in range(1, 60)) if e <= end]
        spends = [0.0]
        for position in range(steps):
            image = naive.block_influence(ends, steps, position, 1.0 / RATIO)
            mu2 = float((image**2).sum()) * (largest / rule_plan.sigma) ** 2
            spends.append(mu2 + (largest / rule_plan.sigma_last) ** 2 * (steps == horizon))
        assert rule_plan.mu_spent(steps) ** 2 == pytest.approx(max(spends))
        assert rule_plan.mu_spent(steps) <= rule_plan.mu * (1 + 1e-12)
        assert rule_plan.releases(steps) == len(ends) + (steps == horizon)
    if horizon is not None:
        assert rule_plan.mu_spent(horizon) == pytest.approx(rule_plan.mu)
    else:
        assert rule_plan.mu_spent(10**9) == pytest.approx(rule_plan.mu, rel=1e-6)


def test_the_spread_follows_the_noise_and_the_information_is_that_of_the_releases() -> None:
    quiet, loud = plan(100_000, mu=2.0), plan(200, mu=0.05)
    assert 1.0 < quiet.spread < 1.1
    assert loud.spread == 2.0
    assert plan(mu=0.5).spread < plan(mu=0.1).spread
    for horizon in (None, 400):
        rule = MomentsState(plan(horizon))
        rule.learn(np.zeros((400, D)), np.full(400, math.nan), NormalStream(0))
        for steps in (0, 5, 399, 400):
            if steps == 400:
                assert rule.plan.information(400) == pytest.approx(rule._numbers[1])
            else:
                assert 0.0 <= rule.plan.information(steps) <= rule.plan.information(400)


@pytest.mark.parametrize("horizon", [None, 400])
def test_forks_are_covered_by_brute_force(horizon: int | None) -> None:
    rule_plan = plan(horizon)
    largest = second_moments_diameter() + rule_plan.grid * math.sqrt(rule_plan.dim)
    steps = 400 if horizon is None else 399
    ends = [e for e in (rule_plan.end(k) for k in range(1, 60)) if e <= steps]
    for window in (1, 5, 30, 1000):
        worst = 0.0
        for start in range(400):
            inside = np.array([start < e <= start + window for e in ends])
            last = horizon is not None and start < horizon <= start + window
            for position in (0, 1, 5, 50, 200, 399):
                image = naive.block_influence(ends, 400, position, 1.0 / RATIO) * inside
                mu2 = float((image**2).sum()) * (largest / rule_plan.sigma) ** 2
                worst = max(worst, mu2 + last * (largest / rule_plan.sigma_last) ** 2)
        assert worst <= rule_plan.fork_mu2(window) * (1 + 1e-12)
    # Room for two forks: the releases and they together are the budget.
    roomy = plan(horizon, forks=2, window=30)
    total = roomy.mu_spent(10**9 if horizon is None else horizon) ** 2 + 2 * roomy.fork_mu2(30)
    assert total == pytest.approx(roomy.mu**2, rel=1e-6)


def charged_and_found(
    rule_plan: SecondMomentsPlan, windows: Sequence[int]
) -> list[tuple[float, float, float]]:
    """What a fork is charged, what it costs at most, and what the window from the first end on costs."""
    horizon = rule_plan.horizon
    ends = [end for end in (rule_plan.end(k) for k in range(1, 60)) if end < (horizon or 600)]
    largest = second_moments_diameter() + rule_plan.grid * math.sqrt(rule_plan.dim)
    first, last = (largest / rule_plan.sigma) ** 2, (largest / rule_plan.sigma_last) ** 2
    out = []
    for window, found in zip(
        windows, naive.dearest_windows(ends, horizon, windows, 1.0 / RATIO, first, last), strict=True
    ):
        from_first = sum(ends[0] <= end < ends[0] + window for end in ends)
        short = first * sum(RATIO ** (-2 * row) for row in range(from_first))
        out.append((rule_plan.fork_mu2(window), found, short + (0.0 if horizon is None else last)))
    return out


def test_the_charge_of_a_fork_is_what_the_dearest_window_costs() -> None:
    """No less, and no more, over (warm-up, window), as each window and each record say.

    Ends are rounded up: with base 5 the gaps are 2, 1, 2, ..., and 2 slots can hold two ends, not one.
    """
    windows = [*range(1, 31), 45, 60, 299, 400]
    missed = overcharged = 0
    for base in (*range(1, 31), 200):
        for horizon in (None, 300):
            rule_plan = plan_second_moments(0.5, features=D, base=base, radius=30.0, horizon=horizon)
            last = 0.0 if horizon is None else (rule_plan._last_move / rule_plan.sigma_last) ** 2
            for window, (charged, found, short) in zip(
                windows, charged_and_found(rule_plan, windows), strict=True
            ):
                if horizon is None and window > 60:
                    continue  # the dearest one is longer than what is looked at
                assert charged == pytest.approx(found, rel=1e-9)
                # The mutants: the window from the first end on, and the fullest window with the horizon.
                missed += short < found * 0.99
                fullest = rule_plan._ends_mu2(rule_plan._most_ends(window))
                overcharged += fullest + last > found * 1.01
    assert missed >= 5
    assert overcharged >= 300


@pytest.mark.parametrize(("warmup", "window"), [(6, 2), (5, 2), (15, 3), (24, 4), (29, 5)])
@pytest.mark.parametrize("horizon", [None, 200])
def test_windows_that_were_charged_too_little(warmup: int, window: int, horizon: int | None) -> None:
    """What the window from the first end on costs is up to 1.83 times too little."""
    model = auc.PairFTRL(
        1.0,
        1e-3,
        horizon,
        features=["a", "b", "c"],
        warmup=warmup,
        forks=2,
        window=window,
        mechanism=privacy.SecondMoments(),
    )
    rule_plan = model.run.state.plan
    ((charged, found, short),) = charged_and_found(rule_plan, [window])
    assert charged == pytest.approx(found, rel=1e-9)
    if horizon is None:
        assert 1.2 < found / short < 1.83
    spent = rule_plan.mu_spent(10**9 if horizon is None else rule_plan.horizon) ** 2
    assert spent + 2 * charged == pytest.approx(rule_plan.mu**2, rel=1e-6)
    assert model.run.mu_warmup**2 <= charged * (1 + 1e-9)


# ---- noise ---------------------------------------------------------------------------------------------


def residuals(
    rule_plan: SecondMomentsPlan, seed: int | None, skew: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """z of the running releases and of the last one, from null records, in units of the claimed std."""
    broken = replace(rule_plan)
    for name in ("sigma", "sigma_last"):
        object.__setattr__(broken, name, skew * getattr(rule_plan, name))
    rule, noise = MomentsState(broken), NormalStream(seed)
    seen, steps = [], rule_plan.horizon or 3000
    for _ in range(rule_plan.releases(steps)):
        count = rule._due - rule.steps
        rule.learn(np.zeros((count, D)), np.full(count, math.nan), noise)
        seen.append(rule.released)
    values = np.array(seen)[:, : rule_plan.dim]
    running = values if rule_plan.horizon is None else values[:-1]
    return running / rule_plan.sigma, seen[-1][rule_plan.dim :] / rule_plan.sigma_last


def off(z: np.ndarray) -> bool:
    total, n = float((z**2).sum()), z.size
    return min(stats.chi2.sf(total, n), stats.chi2.cdf(total, n)) < 5e-7


@pytest.mark.parametrize("horizon", [None, 3000])
def test_the_noise_has_the_size_and_the_independence_that_the_account_says(horizon: int | None) -> None:
    rule_plan = plan(horizon)
    for seed in [*range(20), None]:
        running, last = residuals(rule_plan, seed)
        assert not off(running)
        lagged = float((running[1:] * running[:-1]).sum()) / math.sqrt(running[1:].size)
        assert abs(lagged) < 6.0
        assert horizon is None or not off(last)
    for skew in (0.7, 1.5):
        assert off(residuals(rule_plan, None, skew)[0])


# ---- the learner ---------------------------------------------------------------------------------------


def test_the_leader_is_that_of_all_pairs_where_classes_share_their_covariance() -> None:
    rng = np.random.default_rng(1)
    n = 40_000
    shape = rng.normal(size=(D, D)) / 4
    y = rng.random(n) < 0.3
    x = rng.normal(size=(n, D)) @ shape + np.outer(y - 0.3, [0.3, -0.2, 0.1])
    x -= x.mean(axis=0)
    rate = float(y.mean())
    w, _ = ridge_of(x.T @ x / n, (y - rate) @ x / n, rate, 0.0)
    some = naive.best_weights(w, x[y][:1500], x[~y][:1500])
    for factor in (0.8, 1.25):
        assert some < naive.best_weights(factor * w, x[y][:1500], x[~y][:1500])
    for i in range(D):
        for step in (-0.3, 0.3):
            bent = w + step * np.linalg.norm(w) * np.eye(D)[i]
            assert some < naive.best_weights(bent, x[y][:1500], x[~y][:1500])


def test_under_noise_the_leader_is_better_where_eigenvalues_are_pulled_together() -> None:
    """Mutant: the ridge alone."""
    rng = np.random.default_rng(1)
    d, std = 12, 0.007
    second = np.diag(1.0 / np.arange(1, d + 1))
    second /= np.trace(second)

    def worth(noise: float, noisy: Any, seen: Any, cross: Any) -> float:
        """Correlation of the leader's scores with the best ones'."""
        w, _ = ridge_of(noisy, seen, 0.5, math.sqrt(d) * std, noise)
        return float(w @ cross / math.sqrt((w @ second @ w) * (cross @ np.linalg.solve(second, cross))))

    gains = []
    for _ in range(40):
        cross = 0.05 * second @ rng.normal(size=d)
        noise = rng.normal(0.0, std, (d, d))  # on and off the diagonal, where it is the mean of two cells
        perturbed = second + (noise + noise.T) / 2.0, cross + 0.5 * std * rng.normal(size=d), cross
        gains.append(worth(std * std, *perturbed) - worth(0.0, *perturbed))
    assert stats.ttest_1samp(gains, 0.0, alternative="greater").pvalue < 1e-4
    assert np.mean(gains) > 0.02


@pytest.mark.parametrize("horizon", [None, 900])
def test_slots_in_any_batches_and_after_a_snapshot_give_the_same_bits(horizon: int | None) -> None:
    rule_plan = plan(horizon)
    whole = same_in_parts(lambda: MomentsState(rule_plan), D, 900)
    assert whole.releases == rule_plan.releases(900)


def test_the_solver_follows_the_parameters() -> None:
    assert isinstance(auc.PairFTRL(features=["a"]).run.state, MomentsState)
    model = auc.PairFTRL(horizon=1000, features=["a", "b"])
    assert isinstance(model.run.state, MomentsState)
    assert model.pair_loss == losses.Square()
    assert model.settings.warmup == int(18 * (math.sqrt(2) + 1) / mu_from(1.0, 1e-6))
    assert auc.PairFTRL(horizon=10**6, features=["a"]).settings.warmup == 10**5
    mu = mu_from(1.0, 1e-6)
    assert auc.PairFTRL(features=list("abcd")).settings.warmup == math.ceil(200 / mu)
    for options in (
        {"warmup": 0},
        {"horizon": 99},
        {"features": [f"x{i}" for i in range(513)]},
        {"mechanism": privacy.PairGradients()},
    ):
        given_options = {"features": ["a"], **options}
        assert not isinstance(auc.PairFTRL(**given_options).run.state, MomentsState)
    assert isinstance(
        auc.PairFTRL(features=[f"x{i}" for i in range(513)], mechanism=privacy.SecondMoments()).run.state,
        MomentsState,
    )
    with pytest.raises(ConfigError, match=r"SecondMoments.*warmup is 0"):
        auc.PairFTRL(mechanism=privacy.SecondMoments(), warmup=0)
    with pytest.raises(ConfigError, match="mechanism is 'magic'"):
        auc.PairFTRL(mechanism="magic")  # type: ignore[arg-type]


def test_a_replay_under_a_key_repeats_the_releases_to_the_byte() -> None:
    events = list(datasets.Phishing())[:600]

    def run(items: list[Any]) -> np.ndarray:
        model = auc.PairFTRL(delta=1e-3, horizon=600, noise_key=b"k" * 32)
        for x, y in items:
            model.learn_one(x, y)
        assert model.privacy.kind == "holds"
        return model.run.state.released  # type: ignore[union-attr]

    first = run(events)
    assert np.array_equal(first, run(events))
    swapped = [*events[:300], events[301], events[300], *events[302:]]
    # Whole steps of a grid: a few may meet by chance.
    assert np.mean(first == run(swapped)) < 0.05


def test_it_ranks_well_at_epsilon_1() -> None:
    events = list(datasets.Phishing())
    scores = []
    for seed in range(8):
        order = np.random.default_rng(seed).permutation(len(events))
        train, test = [events[i] for i in order[:1000]], [events[i] for i in order[1000:]]
        model = auc.PairFTRL(delta=1e-3, horizon=1000, features=sorted(events[0][0]))
        model.learn_many(pd.DataFrame([x for x, _ in train]), pd.Series([y for _, y in train]))
        assert model.privacy.epsilon_spent == pytest.approx(1.0)
        found = model.score_many(pd.DataFrame([x for x, _ in test]))
        scores.append(roc_auc_score([y for _, y in test], found))
    # Measured .956 with a standard deviation of .012 a split; the gradients have .946.
    assert np.mean(scores) > 0.92


def test_the_audit_finds_no_more_than_is_claimed() -> None:
    report = audit(auc.PairFTRL(epsilon=2.0, delta=1e-3, horizon=120, features=["a", "b"]), runs=150)
    assert report.holds, str(report)
