"""Ranking by moments: real relevances in the sums and in the warm-up, the leader, and what goes on."""

from __future__ import annotations

import math
from functools import partial

import naive
import numpy as np
import pytest
from harness.learners import KEY, NAMES, frozen, stream
from harness.moments import Silent, climb
from scipy import stats

from streampair import auc, losses, privacy, ranking
from streampair.base.targets import RelevanceTarget
from streampair.errors import ConfigError, SnapshotError
from streampair.kernels import dp_steps
from streampair.privacy.accounting import planned_mu
from streampair.privacy.mechanisms.second_moments import (
    MomentsState,
    RankingMomentsState,
    plan_second_moments,
    second_moments_diameter,
)
from streampair.privacy.mechanisms.standardization import (
    SQUARE_WEIGHT,
    Warmup,
    WarmupPlan,
    moment_sensitivity,
)

RANGE = (-3.0, 7.0)
DIM = 3
GRID = 2.0**-40


def summed(x: np.ndarray, y: float, mean: float, weight: float) -> np.ndarray:
    """What one record adds to a block, by the code that learns: in units of the records."""
    cells = np.zeros(DIM * (DIM + 1) // 2 + DIM, dtype=np.int64)
    label = RelevanceTarget(RANGE).label(y)
    dp_steps.second_moment_sums(x[None], np.array([label]), mean, weight, GRID, cells)
    return cells * GRID


def moves(rng: np.random.Generator, mean: float, weight: float) -> float:
    """Hill climbing for the largest replacement of a record with its relevance, null records among them."""

    def record(v: np.ndarray) -> np.ndarray:
        x = v[:DIM] / max(1.0, float(np.linalg.norm(v[:DIM])))
        return summed(x, float(np.clip(2.0 + 5.0 * v[DIM], *RANGE)), mean, weight)

    def distance(v: np.ndarray) -> float:
        one, other = record(v[: DIM + 1]), record(v[DIM + 1 :])
        return float(max(np.linalg.norm(one - other), np.linalg.norm(one)))

    return climb(distance, rng, 2 * DIM + 2, starts=30, steps=300)


@pytest.mark.parametrize("mean", [-0.9, 0.0, 0.4])
def test_no_relevance_moves_a_sum_by_more_than_the_diameter(mean: float) -> None:
    rng = np.random.default_rng(0)
    bound = second_moments_diameter()
    run = RankingMomentsState(plan_second_moments(0.5, features=DIM, base=10.0, radius=30.0))
    run.centre(mean)
    found = max(moves(rng, mean, run._weight) for _ in range(5))
    assert found <= bound * (1 + 1e-9)
    assert mean or found >= 0.97 * bound
    # The mutant: centred, and not scaled back.
    if mean:
        assert max(moves(rng, mean, 1.0) for _ in range(3)) > 1.02 * bound


def test_relevances_in_the_warm_up_move_its_sums_by_no_more_than_labels() -> None:
    """Each is rounded by itself, to whole steps that reach from -1 to 1 and no further."""
    rng = np.random.default_rng(1)
    unit = float(WarmupPlan.PER_UNIT)
    bound = moment_sensitivity(1, labels=True, grid=1.0 / unit)
    worst = 0.0
    for _ in range(400):
        values, labels = rng.uniform(-1, 1, (2, 1)), rng.uniform(-1, 1, 2)
        if rng.random() < 0.5:
            values, labels = np.sign(values), np.sign(labels) * [1.0, rng.choice([1.0, 1.0 - 1e-4, math.nan])]
        sums = []
        for value, label in zip(values, labels, strict=True):
            warm = Warmup(WarmupPlan(1.0, 9, 1.0, 1.0, labels=True), 1)
            usable = np.array([0.0 if math.isnan(label) else 1.0])
            warm.add(value[None], usable, np.array([label]))
            sums.append(warm.sums.to_state() / unit)
        move = sums[0] - sums[1]
        worst = max(worst, math.hypot(np.linalg.norm(move[0]), SQUARE_WEIGHT * float(move[1, 0])))
    assert 0.99 * bound < worst <= bound


def test_the_mean_relevance_is_that_of_the_records_in_any_batches() -> None:
    labels = np.array([0.3, -0.25, math.nan, 0.9, 0.9, 0.0, -0.1])
    states = []
    for cuts in ([], [1, 2, 3, 4, 5, 6], [4]):
        warm = Warmup(WarmupPlan(1.0, 7, 1.0, 1.0, labels=True), 1)
        for part in np.split(labels, cuts):
            warm.add(np.zeros((len(part), 1)), np.ones(len(part)), part)
        states.append(warm.sums.to_state()[0, 1])
    assert states[0] == states[1] == states[2]
    assert states[0] == sum(naive.cells(v, 1.0 / WarmupPlan.PER_UNIT) for v in labels if not math.isnan(v))
    _, _, mean = warm.release(Silent())
    assert mean == pytest.approx(np.nansum(labels) / 7, abs=1e-3)


def test_the_leader_is_that_of_all_pairs() -> None:
    """Without noise: no other weights have a smaller error of differences, over every pair."""
    rng = np.random.default_rng(2)
    n = 300
    x = rng.uniform(-0.5, 0.5, (n, DIM)) @ rng.normal(size=(DIM, DIM)) / 2
    x -= x.mean(axis=0)
    y = np.clip(x @ [0.8, -0.4, 0.2] + 0.3 * rng.normal(size=n), -1, 1)
    # One release, at the horizon: those before it count the earliest records more.
    plan = plan_second_moments(1e4, features=DIM, base=1e4, radius=30.0, horizon=n)
    object.__setattr__(plan, "grid", GRID)
    run = RankingMomentsState(plan)
    run.centre(float(y.mean()))
    run.learn(x, y, Silent())
    i, j = np.triu_indices(n, 1)
    best = np.linalg.lstsq(x[i] - x[j], y[i] - y[j], rcond=None)[0]
    assert run.average == pytest.approx(best, abs=1e-4)
    # The mutant reads the sums as those of two classes.
    other = MomentsState(plan)
    other.centre(float(y.mean()))
    other.learn(x, y, Silent())
    assert np.linalg.norm(other.average - best) > 0.05


def test_a_relevance_that_is_none_makes_a_null_slot_and_zero_does_not() -> None:
    outs = []
    for middle in (0.0, None, math.nan, 1.5, -1.01, "x", [1.0]):
        model = ranking.PairFTRL(mechanism=privacy.SecondMoments(), warmup=4, seed=1, features=["a", "b"])
        model.run.skip_warmup()
        model.learn_one({"a": 0.5, "b": 0.1}, middle)
        outs.append((model.run.state.block.cells(), model.null_slots))
    assert outs[0][1] == 0
    assert any(outs[0][0])
    assert all(count == 1 for _, count in outs[1:])
    assert len({cells for cells, _ in outs[1:]}) == 1


def test_the_solver_follows_the_parameters() -> None:
    model = ranking.PairFTRL(horizon=1000, features=["a", "b"])
    assert isinstance(model.run.state, RankingMomentsState)
    assert model.pair_loss == losses.Square()
    assert model.settings.warmup == int(18 * (math.sqrt(2) + 1) / planned_mu(1.0, 1e-6))
    assert "the mean relevance" in model.privacy.mechanism
    assert "the share of labels" in auc.PairFTRL(features=["a"]).privacy.mechanism
    for options in (
        {"warmup": 0},
        {"horizon": 99},
        {"mechanism": privacy.PairGradients()},
    ):
        assert not isinstance(ranking.PairFTRL(**{"features": ["a"], **options}).run.state, MomentsState)
    for mechanism in ("magic", privacy.DecayedMoments(9)):
        with pytest.raises(ConfigError, match="mechanism is"):
            ranking.PairFTRL(mechanism=mechanism)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="entity= protects several"):
        ranking.PairFTRL(features=["a"], entity=privacy.EntityLimit(2), mechanism=privacy.SecondMoments())


def test_it_ranks_better_than_gradients_at_epsilon_1() -> None:
    rng = np.random.default_rng(4)
    n = 2500
    x = rng.normal(size=(n, 6)) * np.exp(0.5 * rng.normal(size=6))
    y = np.clip((x @ rng.normal(size=6)) + 2.0 * rng.normal(size=n), -6, 6)
    mechanisms = {"moments": privacy.SecondMoments(), "gradients": privacy.PairGradients()}
    taus: dict[str, list[float]] = {name: [] for name in mechanisms}
    for seed, (name, found) in ((s, kind) for s in range(4) for kind in taus.items()):
        model = ranking.PairFTRL(
            1.0, 1e-3, 2000, features=list(range(6)), bounds=dict.fromkeys(range(6), (-6, 6)),
            relevance=(-6, 6), mechanism=mechanisms[name], seed=seed,
        )  # fmt: skip
        model.learn_many(x[:2000], y[:2000])
        found.append(float(stats.kendalltau(model.score_many(x[2000:]), y[2000:]).statistic))
    assert np.mean(taus["moments"]) > 0.5
    assert np.mean(taus["moments"]) > np.mean(taus["gradients"])


def test_a_state_is_of_the_solver_that_was_asked_for() -> None:
    make = partial(ranking.PairFTRL, 1.0, 1e-3, 300, warmup=20, features=NAMES, noise_key=KEY)
    model = make()
    for x, y in stream(model, 80):
        model.learn_one(x, y)
    saved = model.to_state()
    other = make()
    other.load_state(saved)
    assert isinstance(other.run.state, RankingMomentsState)
    assert frozen(other) == frozen(model)
    for mechanism in (privacy.SecondMoments(), privacy.PairGradients()):
        with pytest.raises(SnapshotError, match="mechanism"):
            make(mechanism=mechanism).load_state(saved)
