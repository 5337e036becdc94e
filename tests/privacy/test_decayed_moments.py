"""Moments that fade (docs/privacy 10.6): figures, account, noise, and that drift is followed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from harness.drift import scores, turning, window_auc
from harness.moments import Silent, same_in_parts
from naive import dense
from scipy import stats

from streampair import auc, privacy
from streampair.errors import ConfigError
from streampair.privacy import EntityLimit
from streampair.privacy.mechanisms.decayed_moments import (
    BLOCKS,
    TERMS,
    DecayedMomentsPlan,
    DecayedMomentsState,
    fading_root,
    plan_decayed_moments,
)
from streampair.privacy.mechanisms.second_moments import second_moments_diameter
from streampair.privacy.noise import NormalStream
from streampair.privacy.sensitivity import square_root_coefficients

D = 3


def plan(half_life: int = 40, mu: float = 0.5, **options: Any) -> DecayedMomentsPlan:
    return plan_decayed_moments(mu, features=D, half_life=half_life, radius=30.0, **options)


def faded(keep: float, n: int) -> np.ndarray:
    """A_g."""
    return dense(keep ** np.arange(n))


def end_noise(keep: float, c: np.ndarray) -> float:
    """Noise in a late T, for mu 1 and a record that moves a sum by 1."""
    b = faded(keep, len(c)) @ np.linalg.inv(c)
    return float(np.linalg.norm(b[-1]) * np.linalg.norm(c[:, 0]))


def largest(rule_plan: DecayedMomentsPlan) -> float:
    return second_moments_diameter() + rule_plan.grid * math.sqrt(rule_plan.dim)


# ---- the strategy --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("blocks", "root", "alone"), [(8, 1.50, 2.51), (64, 2.11, 6.83)])
def test_the_square_root_has_the_noise_that_the_specification_says(
    blocks: int, root: float, alone: float
) -> None:
    keep, n = 2.0 ** (-1.0 / blocks), 12 * blocks
    column = square_root_coefficients(n)[0] * keep ** np.arange(n)
    assert end_noise(keep, dense(column)) == pytest.approx(root, abs=0.005)
    assert end_noise(keep, np.eye(n)) == pytest.approx(alone, abs=0.005)
    # The factorisation is one: C is its own B.
    assert np.allclose(dense(column) @ dense(column), faded(keep, n))


def test_what_is_used_is_the_square_root_but_for_late_rows() -> None:
    keep, n = 2.0 ** (-1.0 / BLOCKS), 200
    root = square_root_coefficients(n)[0] * keep ** np.arange(n)
    used = fading_root(keep).column(n)
    assert np.allclose(used[: 2 * TERMS], root[: 2 * TERMS], rtol=1e-12)
    assert (used > 0).all()
    assert (np.diff(used) < 0).all()
    assert (used <= root * (1 + 1e-12)).all()
    assert end_noise(keep, dense(used)) < 1.0005 * end_noise(keep, dense(root))
    # With a single series it would be another matrix.
    assert end_noise(keep, dense(fading_root(keep, 1).column(n))) > 1.1 * end_noise(keep, dense(root))


# ---- the account ---------------------------------------------------------------------------------------


def rows_of(rule_plan: DecayedMomentsPlan, blocks: int) -> np.ndarray:
    """mu^2 that each release (rows) costs a record of each block (columns), from the dense matrix."""
    c = dense(rule_plan.strategy.column(blocks))
    return (c * largest(rule_plan) / rule_plan.sigma) ** 2


@pytest.mark.parametrize("half_life", [1, 3, 9, 40])
def test_the_spend_is_that_of_the_dearest_record_and_does_not_grow(half_life: int) -> None:
    rule_plan = plan(half_life)
    assert rule_plan.keep ** (half_life / rule_plan.length) == pytest.approx(0.5)
    assert rule_plan.length == -(-half_life // BLOCKS)
    costs = rows_of(rule_plan, 120)
    for steps in (0, 1, rule_plan.length, 7 * rule_plan.length + 1, 100 * rule_plan.length):
        done = steps // rule_plan.length
        worst = float(costs[:done, :done].sum(axis=0).max(initial=0.0))
        assert rule_plan.mu_spent(steps) ** 2 == pytest.approx(worst, abs=1e-15)
        assert rule_plan.releases(steps) == done
    assert 0.999 * rule_plan.mu < rule_plan.mu_spent(100 * half_life) <= rule_plan.mu_spent(10**15)
    assert rule_plan.mu_spent(10**15) == pytest.approx(rule_plan.mu, rel=1e-12)
    # The mutant: a running total over the releases would be beyond the budget by now.
    assert 100 * float(costs[0, 0]) > 10 * rule_plan.mu**2


@pytest.mark.parametrize("half_life", [3, 9, 40])
def test_the_charge_of_a_fork_is_what_the_dearest_window_costs(half_life: int) -> None:
    rule_plan = plan(half_life)
    blocks = 60
    costs = rows_of(rule_plan, blocks)
    ends = np.array([rule_plan.end(k) for k in range(1, blocks + 1)])
    short = 0
    for window in (1, 2, 4, 5, 6, 11, 40, 41):
        worst = max(
            float(costs[(start < ends) & (ends <= start + window)].sum(axis=0).max())
            for start in range(ends[-1] - window + 1)
        )
        assert rule_plan.fork_mu2(window) == pytest.approx(worst, rel=1e-12)
        # The mutant: only the blocks that fit into the window whole.
        short += rule_plan._rows_mu2(window // rule_plan.length) < worst * 0.99
    assert short >= (half_life > 8) * 2
    assert rule_plan.fork_mu2(0) == 0.0
    roomy = plan(half_life, forks=3, window=11)
    assert roomy.mu_spent(10**15) ** 2 + 3 * roomy.fork_mu2(11) == pytest.approx(roomy.mu**2, rel=1e-12)
    assert roomy.sigma > 1.1 * rule_plan.sigma


def test_forks_of_far_windows_do_not_add_up_on_a_record() -> None:
    """Lemma 45: each window of a tiling seen f times more costs no record more than f runs."""
    rule_plan = plan(40)
    blocks, window = 80, 15
    costs = rows_of(rule_plan, blocks)
    ends = np.array([rule_plan.end(k) for k in range(1, blocks + 1)])
    views = np.random.default_rng(0).integers(0, 3, size=1 + ends[-1] // window)
    again = views[(ends - 1) // window]
    worst = float(((1 + again)[:, None] * costs).sum(axis=0).max())
    assert worst <= (1 + views.max()) * rule_plan.mu**2
    # A running total, which is what a ledger that knows no places has to charge, is far beyond.
    assert rule_plan.mu**2 + views.sum() * rule_plan.fork_mu2(window) > 5 * worst


# ---- what is released ----------------------------------------------------------------------------------


def test_what_is_released_fades_and_a_record_moves_its_block_alone() -> None:
    rule_plan = plan(17)
    rng = np.random.default_rng(1)
    n, length, keep = 60, rule_plan.length, rule_plan.keep
    rows = rng.normal(size=(n, D))
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1))[:, None]
    labels = rng.choice([1.0, -1.0, math.nan], n)

    def released(x: np.ndarray, y: np.ndarray, stream: Any) -> np.ndarray:
        rule, seen = DecayedMomentsState(rule_plan), []
        rule.centre(0.2)
        for i in range(n):
            rule.learn(x[i : i + 1], y[i : i + 1], stream)
            seen.append(rule.released)
        return np.array(seen)[length - 1 :: length]

    exact = released(rows, labels, Silent())
    i, j = np.tril_indices(D)
    pairs = rows[:, i] * rows[:, j] * np.where(i == j, 1.0, math.sqrt(2.0))
    each = np.hstack([pairs, rows * (labels - 0.2)[:, None] / 1.2])
    each[np.isnan(labels)] = 0.0
    for k, value in enumerate(exact):
        until = (k + 1) * length
        weights = keep ** (k - np.arange(until) // length)
        assert np.allclose(value, weights @ each[:until], atol=rule_plan.grid * n)
    # Under equal noise one record moves one block's sum.
    for slot in (0, 7, 40):
        x, y = rows.copy(), labels.copy()
        x[slot], y[slot] = -x[slot][::-1], 1.0
        moved = released(x, y, NormalStream(3)) - released(rows, labels, NormalStream(3))
        sums = moved[1:] - keep * moved[:-1]
        sums = np.vstack([moved[:1], sums])
        assert np.linalg.norm(sums[slot // length]) <= largest(rule_plan)
        sums[slot // length] = 0.0
        assert np.abs(sums).max() < 1e-9


def test_the_noise_has_the_size_and_the_independence_that_the_account_says() -> None:
    def normals(rule_plan: DecayedMomentsPlan, skew: float = 1.0) -> np.ndarray:
        claimed = rule_plan.sigma
        object.__setattr__(rule_plan, "sigma", skew * claimed)
        rule, seen = DecayedMomentsState(rule_plan), []
        for _ in range(300):
            rule.learn(np.zeros((rule_plan.length, D)), np.full(rule_plan.length, math.nan), NormalStream())
            seen.append(rule.released)
        values = np.array(seen)
        sums = np.vstack([values[:1], values[1:] - rule_plan.keep * values[:-1]])
        z: np.ndarray = dense(rule_plan.strategy.column(len(sums))) @ sums / claimed
        return z

    def off(z: np.ndarray) -> bool:
        total = float((z**2).sum())
        return min(stats.chi2.sf(total, z.size), stats.chi2.cdf(total, z.size)) < 5e-7

    z = normals(plan(24))
    assert not off(z)
    for lag in (1, 2, 8):
        assert abs(float((z[lag:] * z[:-lag]).sum())) / math.sqrt(z[lag:].size) < 6.0
    for skew in (0.85, 1.2):
        assert off(normals(plan(24), skew))


def test_the_variance_that_the_ridge_gets_is_that_of_the_noise() -> None:
    rule_plan = plan(40)
    n = 300
    b = faded(rule_plan.keep, n) @ np.linalg.inv(dense(rule_plan.strategy.column(n)))
    for blocks in (1, 2, 5, 40, 256, 300):
        found = rule_plan.sigma**2 * float((b[blocks - 1] ** 2).sum())
        assert rule_plan.variance(blocks) == pytest.approx(found, rel=1e-9)
        weights = rule_plan.keep ** np.arange(blocks)
        assert rule_plan.counted(blocks) == pytest.approx(rule_plan.length * weights.sum())
        rule = DecayedMomentsState(rule_plan)
        steps = blocks * rule_plan.length
        rule.learn(np.zeros((steps, D)), np.full(steps, math.nan), NormalStream(0))
        assert rule_plan.information(steps) == pytest.approx(rule._numbers[1], rel=1e-9)


def test_slots_in_any_batches_and_after_a_snapshot_give_the_same_bits() -> None:
    rule_plan = plan(60)
    whole = same_in_parts(lambda: DecayedMomentsState(rule_plan), D, 500)
    assert whole.releases == rule_plan.releases(500) == 62


# ---- the learner ---------------------------------------------------------------------------------------


def test_what_does_not_go_with_a_half_life_is_refused_with_the_fix() -> None:
    names = ["a", "b"]
    for options, problem in (
        ({"horizon": 1000}, "leave the horizon out"),
        ({"entity": EntityLimit(2, 5)}, "leave entity out"),
        ({"warmup": 0}, "leave warmup out"),
    ):
        with pytest.raises(ConfigError, match=problem):
            auc.PairFTRL(features=names, mechanism=privacy.DecayedMoments(500), **options)  # type: ignore[arg-type]
    for half_life in (0, 2.5, True):
        with pytest.raises(ConfigError, match="at least 1"):
            auc.PairFTRL(features=names, mechanism=privacy.DecayedMoments(half_life))  # type: ignore[arg-type]
    model = auc.PairFTRL(features=names, mechanism=privacy.DecayedMoments(500))
    assert isinstance(model.run.state, DecayedMomentsState)
    report = model.privacy
    assert report.horizon_left is None
    assert "a record counts half after 500 later ones" in report.details
    assert "does not grow with the stream" in report.details


# ---- drift ---------------------------------------------------------------------------------------------


def test_the_ranking_follows_a_turn_within_two_half_lives_and_without_one_does_not() -> None:
    every, half_life, names = 20_000, 2000, list(range(4))
    rows, labels = turning(2 * every, every, len(names), seed=2)
    budget: dict[str, Any] = {"features": names, "bounds": dict.fromkeys(names, (-1.0, 1.0)), "seed": 1}
    models = {
        "private": auc.PairFTRL(1.0, 1e-5, mechanism=privacy.DecayedMoments(half_life), **budget),
        "open": auc.PairOGD(half_life=half_life),
        "private, for ever": auc.PairFTRL(1.0, 1e-5, **budget),
        "open, for ever": auc.PairOGD(learning_rate=None),
    }
    before, after = {}, {}
    for name, model in models.items():
        found = scores(model, rows, labels)
        before[name] = window_auc(found, labels, every - 3 * half_life, every)
        after[name] = window_auc(found, labels, every + 2 * half_life, every + 4 * half_life)
    for name in ("private", "open"):
        assert after[name] > before[name] - 0.02
    assert abs(after["private"] - after["open"]) < 0.02
    assert abs(before["private"] - before["private, for ever"]) < 0.02
    # The mutants: what forgets nothing.
    for name in ("private, for ever", "open, for ever"):
        assert after[name] < before[name] - 0.2
