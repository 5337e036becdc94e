"""What moments know before the horizon, against what they know at its end (docs/privacy 10.1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from harness.moments import Silent

from streampair import auc, privacy
from streampair.privacy import mu_from
from streampair.privacy.mechanisms.second_moments import (
    ANYTIME,
    MomentsState,
    SecondMomentsPlan,
    plan_second_moments,
    second_moments_diameter,
)

KEY = bytes(range(32))
WEIGHTS = [0.01, 0.3, ANYTIME, 1.0]


def plan(horizon: int, anytime: float | None, **options: Any) -> SecondMomentsPlan:
    return plan_second_moments(
        0.5, features=2, base=10.0, radius=30.0, horizon=horizon, anytime=anytime, **options
    )


def seen(rule_plan: SecondMomentsPlan, rows: np.ndarray) -> np.ndarray:
    """C times the blocks' sums after each release, and the last one, in units of their noise."""
    run, releases, dim = MomentsState(rule_plan), [], rule_plan.dim
    for row in rows:
        before = run.releases
        run.learn(row[None], np.array([1.0]), Silent())
        if run.releases > before and run.steps < len(rows):
            releases.append(run.released[:dim] / rule_plan.sigma)
    return np.concatenate([*releases, run.released[dim:] / rule_plan.sigma_last])


def dearest(rule_plan: SecondMomentsPlan) -> float:
    """mu^2 of the record that all releases together cost most: two contents D apart, in each slot."""
    horizon = rule_plan.horizon
    assert horizon is not None
    base, costs = seen(rule_plan, np.full((horizon, 2), [1.0, 0.0])), []
    for slot in range(horizon):
        rows = np.full((horizon, 2), [1.0, 0.0])
        rows[slot] = -0.5, math.sqrt(0.75)
        costs.append(float(((seen(rule_plan, rows) - base) ** 2).sum()))
    return max(costs)


@pytest.mark.parametrize("horizon", [1, 17, 40])
@pytest.mark.parametrize("anytime", WEIGHTS)
def test_every_record_spends_the_budget_and_no_more(horizon: int, anytime: float) -> None:
    rule_plan = plan(horizon, anytime)
    assert 0.95 * 0.25 < dearest(rule_plan) <= 0.25
    assert rule_plan.mu_spent(horizon) == pytest.approx(0.5)


def test_a_plain_sum_after_them_costs_more() -> None:
    """The mutant: all blocks have the weight of the last one."""
    mutant = plan(40, ANYTIME)
    object.__setattr__(mutant, "weights", np.full(len(mutant.weights), mutant.units))
    assert dearest(mutant) > 1.2 * 0.25


@pytest.mark.parametrize("forks", [1, 3])
@pytest.mark.parametrize("window", [1, 7, 40])
def test_a_second_view_costs_no_more_than_the_run(forks: int, window: int) -> None:
    """A record of the last block is in the last release alone: a window that holds it costs as much."""
    rule_plan = plan(40, ANYTIME, forks=forks, window=window)
    assert rule_plan.mu_spent(40) ** 2 + forks * rule_plan.fork_mu2(window) == pytest.approx(0.25)
    last = rule_plan.weight(len(rule_plan.weights)) / rule_plan.units
    largest = second_moments_diameter() + rule_plan.grid * math.sqrt(rule_plan.dim)
    assert rule_plan.fork_mu2(window) >= (last * largest / rule_plan.sigma_last) ** 2


@pytest.mark.parametrize("anytime", [None, *WEIGHTS])
def test_what_is_known_is_the_mean_record(anytime: float | None) -> None:
    """Without noise all releases together say exactly what the records were, whatever the weights."""
    run = MomentsState(plan(40, anytime))
    run.learn(np.full((40, 2), [0.5, -0.25]), np.ones(40), Silent())
    mean = run._weighted / run._numbers[1]
    wanted = [0.25, -0.125 * math.sqrt(2.0), 0.0625, 0.5, -0.25]
    assert mean == pytest.approx(wanted, abs=2.0 * run.plan.grid)
    assert run._numbers[1] == pytest.approx(run.plan.information(40))


def beside_one_shot(anytime: float | None, horizon: int, share: float) -> float:
    """Noise after a share of the horizon, over that of one release of as many records there."""
    mu = mu_from(1.0, 1.0 / horizon)
    rule_plan = plan_second_moments(
        mu, features=10, base=horizon / 9.0, radius=30.0, horizon=horizon, anytime=anytime
    )
    slots = int(share * horizon)
    return mu * slots / second_moments_diameter() / math.sqrt(rule_plan.information(slots))


@pytest.mark.parametrize("horizon", [1000, 100_000])
def test_the_curve(horizon: int) -> None:
    """The default is better on the way, and no worse at the end, than plans were that had no weight."""
    before, default = (
        [beside_one_shot(a, horizon, share) for share in (0.1, 0.25, 0.5, 0.75, 1.0)] for a in (None, ANYTIME)
    )
    assert all(new < 0.81 * old for new, old in zip(default[:-1], before[:-1], strict=True))
    assert default[-1] <= before[-1]
    assert 3.2 < before[2] < 3.4
    assert default[2] < 2.45
    # Twice one shot at half time costs an eighth more noise at the end.
    assert beside_one_shot(1.0, horizon, 0.5) < 2.02
    assert beside_one_shot(1.0, horizon, 1.0) < 1.13 * before[-1]
    halves, ends = ([beside_one_shot(a, horizon, s) for a in (0.2, 0.4, 0.6, 0.8, 1.0)] for s in (0.5, 1.0))
    assert halves == sorted(halves, reverse=True)
    assert ends == sorted(ends)


def test_the_weight_of_a_learner() -> None:
    def weight(**options: Any) -> Any:
        return auc.PairFTRL(1.0, 1e-3, features=["a"], **options).run.state.plan.anytime

    assert weight(horizon=200) == ANYTIME
    assert weight(horizon=200, forks=1) is None
    assert weight(horizon=200, entity=privacy.EntityLimit(2)) is None
    assert weight() is None
