"""Output perturbation: sensitivity and spend against all positions and against real runs (9.3)."""

from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streampair import auc, buffers
from streampair.assurance.canary import Impulses
from streampair.errors import ConfigError
from streampair.privacy import Influence
from streampair.privacy.contraction import (
    giga_steps,
    output_sensitivities,
    output_spend,
    paper_steps,
    paper_warmup,
)
from streampair.privacy.mechanisms.output_perturbation import plan_output_perturbation

some_buffer = st.one_of(
    st.integers(1, 9).map(Influence.fifo),
    st.builds(Influence.reservoir, st.integers(1, 9), st.one_of(st.none(), st.integers(1, 12))),
    st.just(Influence.history()),
)


@settings(deadline=None, max_examples=150)
@given(
    influence=some_buffer,
    steps=st.integers(1, 30),
    alpha=st.floats(-3, 1).map(lambda e: 10.0**e),
    smoothness=st.floats(0.1, 10.0),
    radius=st.sampled_from([0.05, 1.0, math.inf]),
    grid=st.sampled_from([0.0, 0.01]),
    seed=st.integers(0, 2**32 - 1),
)
# The radius cuts the moves from step 2 on, and at the last one they have faded below it.
@example(
    influence=Influence.reservoir(7, None),
    steps=14,
    alpha=10.0**0.5,
    smoothness=1.0,
    radius=0.05,
    grid=0.0,
    seed=0,
)
def test_against_every_record(
    influence: Influence,
    steps: int,
    alpha: float,
    smoothness: float,
    radius: float,
    grid: float,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    etas, factors = giga_steps(alpha, smoothness, steps)
    precisions = rng.uniform(0, 4, steps) * rng.integers(0, 2, steps)
    grids = np.full(steps, grid)
    grids[:1] = 0.0
    brute, cost = naive.worst(
        etas.tolist(), factors.tolist(), grids, precisions,
        size=influence.size, uses=influence.uses, diameter=2.0, radius=radius,
    )  # fmt: skip
    bounds = output_sensitivities(etas, factors, influence, 2.0, radius)
    assert np.all(bounds >= brute * (1 - 1e-12))
    if math.isinf(radius) or influence.uses is None or influence.uses >= steps:
        assert bounds == pytest.approx(brute, rel=1e-9, abs=1e-300)
    claimed = output_spend(etas, factors, influence, 2.0, bounds, grids, precisions)
    assert claimed >= cost * (1 - 1e-12)
    if math.isinf(radius):
        assert claimed == pytest.approx(cost, rel=1e-9)
    for count in (0, steps // 2, steps):
        part = output_spend(etas, factors, influence, 2.0, bounds, grids, precisions, count)
        stopped = np.where(np.arange(steps) < count, precisions, 0.0)
        assert part == pytest.approx(
            output_spend(etas, factors, influence, 2.0, bounds, grids, stopped), rel=1e-9, abs=1e-300
        )


@pytest.mark.parametrize("window", [1, 7, 300])
def test_long_runs_do_not_lose_the_factors(window: int) -> None:
    # The product of the factors of this run is far below the smallest float.
    etas, factors = giga_steps(1.0, 8.0, 1200)
    factors[50:1100] = 0.5
    precisions = np.geomspace(1.0, 1e7, 1200)
    grids = np.zeros(1200)
    every = naive.worst(
        etas.tolist(), factors.tolist(), grids, precisions, size=window, uses=window, diameter=1.0
    )
    bounds = output_sensitivities(etas, factors, Influence.fifo(window), 1.0, math.inf)
    assert bounds == pytest.approx(every[0], rel=1e-9)
    claimed = output_spend(etas, factors, Influence.fifo(window), 1.0, bounds, grids, precisions)
    assert claimed == pytest.approx(every[1], rel=1e-9)


def test_one_record_costs_less_than_the_largest_moves_together() -> None:
    # What planning by records is for: half the noise, with equal cost a release.
    etas, factors = giga_steps(0.05, 4.0, 4000)
    influence = Influence.fifo(32)
    bounds = output_sensitivities(etas, factors, influence, 4.0, 10.0)
    precisions = np.concatenate([[0.0], 1.0 / bounds[1:] ** 2])
    together = float(precisions @ bounds**2)
    one = output_spend(etas, factors, influence, 4.0, bounds, np.zeros(4000), precisions)
    assert one / together == pytest.approx(0.25, abs=0.03)


def test_the_closed_form_of_the_paper_fails_with_capped_steps() -> None:
    # 8 G / (alpha t) is not a bound for capped steps and large L / alpha (docs/privacy 4.1); the recursion
    # is.
    alpha, smoothness, n = 1.0, 4.0, 20_000
    etas, factors = paper_steps(alpha, smoothness, n)
    first = paper_warmup(alpha, smoothness)
    assert first == 400
    assert not etas[:first].any()
    bounds = output_sensitivities(etas, factors, Influence.history(), 4.0, math.inf)
    t = np.arange(first + 1.0, n + 1.0)
    assert np.all(bounds[first:] <= 8 * 4.0 / (alpha * t))
    assert paper_warmup(1e-3, smoothness) > 2.5e8
    # With a metric's D = 2 G, capped steps and no warm-up the closed form is too small.
    n = 200_000
    etas, factors = giga_steps(4e-5, smoothness, n)
    bounds = output_sensitivities(etas, factors, Influence.history(), 2 * 4.0, math.inf)
    t = np.arange(1.0, n + 1.0)
    assert (bounds * 4e-5 * t / (8 * 4.0)).max() > 1.1


@pytest.mark.parametrize("influence", [Influence.fifo(1), Influence.fifo(4), Influence.history()])
def test_real_runs_move_by_no_more(influence: Influence) -> None:
    # Logistic pairs in one dimension, all neighbours of a random stream: moves of the true iterates.
    rng = np.random.default_rng(0)
    alpha, n, radius = 0.3, 12, 2.0
    m = 1 / (1 + math.exp(-4 * radius))
    etas, factors = giga_steps(alpha, 4.0, n)
    bounds = output_sensitivities(etas, factors, influence, 4.0 * m, radius)

    def run(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        w, out = 0.0, []
        for t in range(n):
            past = range(max(0, t - influence.size), t) if influence.size else range(t)
            g = 0.0
            for p in past:
                c = y[t] - y[p]
                g += -c / (1 + math.exp(c * w * (x[t] - x[p]))) * (x[t] - x[p])
            g /= influence.size or max(t, 1)
            w = min(max(w - etas[t] * (g + alpha * w), -radius), radius) if t else w
            out.append(w)
        return np.array(out)

    reached = 0.0
    for _ in range(300):
        x, y = rng.choice([-1.0, -0.9, 0.9, 1.0], n), rng.choice([-1.0, 1.0], n)
        position = int(rng.integers(n))
        x2, y2 = x.copy(), y.copy()
        x2[position], y2[position] = rng.choice([-1.0, 1.0]), rng.choice([-1.0, 1.0])
        moved = np.abs(run(x, y) - run(x2, y2))
        assert np.all(moved <= bounds * (1 + 1e-9))
        reached = max(reached, float((moved[1:] / bounds[1:]).max()))
    assert reached > 0.35


@pytest.mark.parametrize(
    "buffer", [buffers.FIFO(1), buffers.FIFO(4), buffers.Reservoir(4), buffers.FullHistory()], ids=str
)
def test_an_early_record_has_a_pair_with_each_place_that_is_filled(buffer: buffers.Buffer) -> None:
    """A learner's own first step off 0 is `eta_t D p_t`, exactly: all pairs are at the clip (Lemma 59)."""
    model = auc.OnPairStrC(8.0, 1e-3, 12, l2=0.1, clip=0.25, features=["x"], buffer=buffer, warmup=0, seed=0)

    def iterate(position: int, x: float) -> float:
        run = model.clone().run
        run.use(Impulses())
        for t in range(position + 1):
            run.take({"x": x if t == position else 0.0}, 1.0 if t == position else -1.0)
        return float(np.frombuffer(run.state.gate.cells(), dtype=np.int64)[-1] * plan.grids[position])

    plan = model.run.state.plan
    weights = plan.influence.owns(12)
    assert weights[0] == 0.0
    for position in range(1, 8):
        bound = plan.etas[position] * plan.diameter * weights[position]
        moved = iterate(position, 1.0) - iterate(position, -1.0)
        assert moved == pytest.approx(bound, abs=1.01 * plan.grids[position])
        assert moved > 1.05 * plan.etas[position] * plan.diameter * weights[position - 1] or (
            weights[position - 1] == weights[position]
        )  # the mutant that forgets a place


def test_rounding_adds_a_hundredth_to_the_move_of_each_step() -> None:
    """Moves fade: one grid for all would be wider than late ones, as it once was, and noise hides it."""
    for influence in (Influence.fifo(32), Influence.history()):
        plan = plan_output_perturbation(
            1.0, dim=4, influence=influence, diameter=2.0, clip=1.0, radius=1.0, alpha=0.1, smoothness=4.0,
            horizon=20_000,
        )  # fmt: skip
        shares = 2.0 * plan.grids[1:] / plan.sensitivities[1:]
        assert np.all((shares > 0.0049) & (shares <= 0.01))
        assert plan.sensitivities[-1] < 0.01 * plan.sensitivities[1:].max()  # the mutant's would be 1


def test_patterns() -> None:
    assert Influence.reservoir(4, 2).pattern(None).tolist() == [1.0, 0.25, 0.25]
    assert Influence.reservoir(4, 9).pattern(3).tolist() == [1.0, 0.25, 0.25]
    assert Influence.history().pattern(1).tolist() == [1.0]
    # The full history: the record of slot 2 dominates all others.
    for n in (2, 3, 9):
        worst = Influence.history().pattern(n)
        for i in range(1, n + 1):
            pattern = [1.0 if i > 1 else 0.0] + [1.0 / (t - 1) for t in range(i + 1, n + 1)]
            if i == 1:
                pattern = pattern[1:]
            assert all(a <= b for a, b in zip(pattern, worst, strict=False))
    with pytest.raises(ConfigError, match="horizon"):
        Influence.history().pattern(None)
    with pytest.raises(ConfigError, match="max_uses"):
        Influence.reservoir(4, None).pattern(10)
    for size, uses in ((0, 1), (2, 0), (-1, None)):
        with pytest.raises(ConfigError):
            Influence(size, uses)
    for make in (Influence.fifo, lambda size: Influence.reservoir(size, 1)):
        with pytest.raises(ConfigError):
            make(0)
    with pytest.raises(ConfigError, match="does not decay"):
        giga_steps(0.0, 1.0, 5)
