"""Private gradient descent: kernels against references, influence, calibration, residuals, canaries."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streampair import auc, buffers, losses, privacy
from streampair.errors import ConfigError, PrivacyError
from streampair.kernels import buffers as buffers_kernels
from streampair.kernels import dp_steps
from streampair.privacy import EntityLimit, Influence
from streampair.privacy.accounting import promised_epsilon
from streampair.privacy.mechanisms.buffer import BufferPlan, PairBuffer
from streampair.privacy.mechanisms.output_perturbation import (
    OutputPerturbationState,
    plan_output_perturbation,
    plan_output_perturbation_paper,
)
from streampair.privacy.noise import NormalStream

PAIRS = {dp_steps.LINEAR_PAIRS: naive.linear_pair, dp_steps.METRIC_PAIRS: naive.metric_pair}
POLICIES = {
    "window": BufferPlan(buffers_kernels.FIFO, Influence.fifo(3)),
    "sample": BufferPlan(buffers_kernels.RESERVOIR, Influence.reservoir(3, 4)),
    "all": BufferPlan(buffers_kernels.FULL, Influence.history()),
}
unit = st.floats(-1, 1, width=32)


@st.composite
def streams(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows in the unit ball, labels of a family, and the family."""
    dim, steps = draw(st.integers(1, 3)), draw(st.integers(1, 14))
    family = draw(st.sampled_from([dp_steps.LINEAR_PAIRS, dp_steps.METRIC_PAIRS]))
    kinds = [1.0, -1.0, 0.5, 0.0, math.nan] if family == dp_steps.LINEAR_PAIRS else [0.0, 1.0, 2.0, math.nan]
    rows = np.array([[draw(unit) for _ in range(dim)] for _ in range(steps)])
    labels = np.array([draw(st.sampled_from(kinds)) for _ in range(steps)])
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0), labels, family


def coordinates(dim: int, family: int) -> int:
    return dim if family == dp_steps.LINEAR_PAIRS else dim * (dim + 1) // 2


def buffer_of(policy: str, dim: int, steps: int, family: int, loss: losses.PairLoss) -> PairBuffer:
    return PairBuffer(POLICIES[policy], dim, steps, family=family, loss_code=loss.code, seed=5)


@settings(deadline=None, max_examples=120)
@given(
    data=streams(),
    policy=st.sampled_from([*POLICIES]),
    loss=st.sampled_from([losses.Logistic(), losses.Hinge(), losses.Square()]),
    clip=st.sampled_from([0.5, 4.0]),
)
def test_the_kernels(
    data: tuple[np.ndarray, np.ndarray, int], policy: str, loss: losses.PairLoss, clip: float
) -> None:
    rows, labels, family = data
    steps, dim = len(rows), coordinates(rows.shape[1], family)
    reference = partial(naive.gradient, pair=PAIRS[family], code=loss.code, clip=clip)

    grid = 2.0**-20
    alpha, etas = 0.3, np.concatenate([[0.0], np.full(steps - 1, 0.2)])
    centre = np.full(dim, 0.05)
    vectors = np.stack([centre, centre, np.zeros(dim)])
    cells = np.empty((steps, dim), dtype=np.int64)
    buffer = buffer_of(policy, rows.shape[1], steps, family, loss)
    buffer.extend([clip, 2.0, 0.0, alpha])
    dp_steps.output_steps(
        rows, labels, etas, np.full(steps, grid), 0, buffer.numbers, vectors,
        buffer.places, cells,
    )  # fmt: skip
    iterates = naive.output(
        rows.tolist(), labels.tolist(), etas.tolist(), naive.Places(policy, 3, 4, seed=5),
        radius=2.0, alpha=alpha, centre=centre, gradient=lambda w, x, y, b: reference(w, x, y, b),
    )  # fmt: skip
    assert cells * grid == pytest.approx(iterates, abs=1e-5)


def test_releases_are_averaged_by_their_precision() -> None:
    cells, gammas = np.array([[4, -8], [9, 9], [16, 0]]), np.array([0.5, 1.0, 0.25])
    z, sigmas = np.array([[0.3, 0.1, -0.4, 0.0], [0.0] * 4]), np.array([1.0, math.inf, 0.5])
    average, published = np.zeros(2), np.zeros(2)
    total = dp_steps.output_releases(cells, z, sigmas, gammas, False, 2.0, 0.0, average, published)
    released = np.array([[2.5, -4.0], [4.0 - 0.25, 0.0]])
    assert total == 5.0
    assert average == pytest.approx((released[0] + 4 * released[1]) / 5)
    assert published == pytest.approx(average * 2 / np.linalg.norm(average))
    dp_steps.output_releases(cells, z, sigmas, gammas, True, 9.0, total, average, published)
    assert published == pytest.approx(released[1])
    kept = published.copy()
    dp_steps.output_releases(cells[1:2], z, sigmas[1:2], gammas[1:2], True, 9.0, total, average, published)
    assert np.array_equal(published, kept)


# ---- influence (9.2) -----------------------------------------------------------------------------------


def bound(plan: BufferPlan, position: int, steps: int) -> np.ndarray:
    """v of the record of a slot, from 0, for the longest stay."""
    v = np.zeros(steps)
    for t in range(position, steps):
        if t == position:
            v[t] = 1.0 if t > 0 else 0.0
        elif plan.influence.uses is None or t - position <= plan.influence.uses:
            v[t] = 1.0 / plan.influence.size if plan.influence.size else 1.0 / t
    return v


@settings(deadline=None, max_examples=150)
@given(
    data=streams(),
    policy=st.sampled_from([*POLICIES]),
    position=st.integers(0, 13),
    other=st.tuples(st.lists(unit, min_size=3, max_size=3), st.sampled_from([1.0, -1.0, 0.0, math.nan])),
    loss=st.sampled_from([losses.Logistic(), losses.Hinge()]),
    start=st.sampled_from([0.0, 0.5, -1.99]),
)
def test_one_record_moves_gradients_and_iterates_only_as_planned(
    data: tuple[np.ndarray, np.ndarray, int],
    policy: str,
    position: int,
    other: tuple[list[float], float],
    loss: losses.PairLoss,
    start: float,
) -> None:
    """Wherever the iterates are, and wherever a descent begins, with or without a pull to that point."""
    rows, labels, family = data
    steps, d = rows.shape
    position %= steps
    row = np.array(other[0][:d])
    rows2, labels2 = rows.copy(), labels.copy()
    rows2[position], labels2[position] = row / max(float(np.linalg.norm(row)), 1.0), other[1]
    dim, clip, radius = coordinates(d, family), 1.0, 2.0
    plan, form = POLICIES[policy], "raw" if family == dp_steps.LINEAR_PAIRS else "metric"
    diameter = loss.diameter(1.0, radius, clip, form=form)
    v = bound(plan, position, steps)

    # Gradients at the same released iterates.
    ws = np.random.default_rng(0).normal(0, 0.5, (steps, dim))
    moves = []
    for xs, ys in ((rows, labels), (rows2, labels2)):
        buffer, out = buffer_of(policy, d, steps, family, loss), []
        buffer.extend([clip])
        for t in range(steps):
            g = np.empty(dim)
            dp_steps.private_gradient(ws[t], xs[t], ys[t], t, buffer.numbers, buffer.places, g)
            dp_steps.private_store(xs[t], ys[t], t, buffer.numbers, buffer.places)
            out.append(g)
        moves.append(np.array(out))
    assert np.all(np.linalg.norm(moves[0] - moves[1], axis=1) <= diameter * v * (1 + 1e-9) + 1e-12)

    # Iterates of a run without noise.
    if loss != losses.Logistic():
        return
    alpha = 0.2
    made = plan_output_perturbation(
        1.0, dim=dim, influence=plan.influence, diameter=diameter, clip=clip, radius=radius, alpha=alpha,
        smoothness=loss.smoothness(1.0, radius, form=form), horizon=max(steps, 2),
    )  # fmt: skip
    iterates = []
    for xs, ys in ((rows, labels), (rows2, labels2)):
        buffer, vectors = buffer_of(policy, d, steps, family, loss), np.zeros((3, dim))
        vectors[: 1 + position % 2, 0] = start
        buffer.extend([clip, radius, 0.0, alpha])
        cells = np.empty((steps, dim), dtype=np.int64)
        dp_steps.output_steps(
            xs, ys, made.etas[:steps], np.full(steps, 2.0**-30),
            0, buffer.numbers, vectors, buffer.places, cells,
        )  # fmt: skip
        iterates.append(cells * 2.0**-30)
    moved = np.linalg.norm(iterates[0] - iterates[1], axis=1)
    allowed = naive.moves(
        position, made.etas.tolist(), made.factors.tolist(), size=plan.influence.size,
        uses=plan.influence.uses, diameter=diameter, radius=radius,
    )  # fmt: skip
    assert np.all(moved <= allowed[:steps] * (1 + 1e-9) + 1e-8)


def test_mutants_of_the_influence_are_caught() -> None:
    # A label swing of an old record: what breaks a class-split buffer, a data-dependent denominator and a
    # reservoir with replacement, which may hold the record several times.
    rng = np.random.default_rng(1)
    v, worst = bound(POLICIES["window"], 2, 8), dict.fromkeys(("class", "count", "copies", "right"), 0.0)
    for _ in range(200):
        rows, ws = rng.uniform(-0.7, 0.7, (8, 2)), rng.normal(size=(8, 2))
        labels = rng.choice([1.0, -1.0], 8)
        flipped = labels.copy()
        flipped[2] *= -1
        for kind in worst:
            outs = []
            for ys in (labels, flipped):
                buffer, out = naive.Places("window", 3), []
                for t in range(8):
                    x, y = rows[t].tolist(), float(ys[t])
                    g = naive.gradient(ws[t], x, y, buffer, naive.linear_pair, 1, 1.0)
                    if kind == "count":
                        g = g * buffer.places / max(1, sum(p[1] != y for p in buffer.pairs()))
                    out.append(g)
                    buffer.store(x, y)
                    if kind == "class":
                        kept = [[r for r in buffer.records if r[1] == c] for c in (1.0, -1.0)]
                        buffer.records = kept[0][-2:] + kept[1][-2:]
                    if kind == "copies" and t == 2:
                        buffer.records = [buffer.records[-1]] * 3
                outs.append(np.array(out))
            extra = np.linalg.norm(outs[0] - outs[1], axis=1) - 2.0 * v
            worst[kind] = max(worst[kind], float(extra.max()))
    assert worst.pop("right") <= 1e-12
    assert min(worst.values()) > 0.05


# ---- calibration (9.3) ---------------------------------------------------------------------------------

OUTPUT: dict[str, Any] = {
    **{"dim": 4, "diameter": 2.0, "clip": 1.0, "radius": 3.0},
    **{"alpha": 0.1, "smoothness": 4.0},
}


@pytest.mark.parametrize("influence", [p.influence for p in POLICIES.values()])
@pytest.mark.parametrize("releases", [None, 1, 5])
def test_releases_spend_the_budget_of_the_worst_record(influence: Influence, releases: int | None) -> None:
    n = 40
    plan = plan_output_perturbation(0.7, influence=influence, horizon=n, releases=releases, **OUTPUT)
    assert plan.releases(n) == (releases or n - 1)
    assert math.isfinite(plan.sigmas[-1])
    grids = plan.grids * 2.0
    _, cost = naive.worst(
        plan.etas.tolist(), plan.factors.tolist(), grids, 1 / plan.sigmas**2,
        size=influence.size, uses=influence.uses, diameter=2.0, radius=3.0,
    )  # fmt: skip
    assert math.sqrt(cost) <= 0.7 * (1 + 1e-9)
    assert math.sqrt(cost) >= (0.99 if influence.uses else 0.6) * 0.7
    assert plan.mu_spent(n) == pytest.approx(0.7, rel=1e-9)
    spends = [plan.mu_spent(t) for t in range(n + 1)]
    assert spends[0] == spends[1] == 0.0
    assert spends == sorted(spends)
    finite = np.isfinite(plan.sigmas)
    ratio = plan.sigmas[finite] / plan.sensitivities[finite] ** (2 / 3)
    assert ratio == pytest.approx(np.full(len(ratio), ratio[0]))


def test_no_other_stds_of_this_cost_have_a_smaller_sum() -> None:
    # Exact where the cost is a sum over steps, as for a full history.
    best = plan_output_perturbation(1.0, influence=Influence.history(), horizon=200, **OUTPUT)
    least, moves = float(best.sigmas[1:].sum()), best.sensitivities[1:]
    equal = moves * math.sqrt(len(moves) / float(((moves / best.sigmas[1:]) ** 2).sum()))
    assert ((moves / equal) ** 2).sum() == pytest.approx(((moves / best.sigmas[1:]) ** 2).sum())
    assert least < equal.sum()  # where each release has the same cost
    rng = np.random.default_rng(0)
    for _ in range(50):
        sigmas = best.sigmas * np.exp(rng.normal(0, 0.1, 200))
        other = dataclasses.replace(best, sigmas=sigmas)
        assert other.mu_spent(200) * float(sigmas[1:].sum()) >= least


@pytest.mark.parametrize("influence", [Influence.fifo(4), Influence.history()])
def test_the_papers_constants_promise_less_than_they_keep(influence: Influence) -> None:
    loss, radius, alpha = losses.Logistic(), 1.0, 2.0
    plan = plan_output_perturbation_paper(
        1.0, 1e-4, dim=3, influence=influence, diameter=loss.diameter(1.0, radius),
        lipschitz=loss.lipschitz(1.0, radius) + alpha * radius, radius=radius, alpha=alpha,
        smoothness=loss.smoothness(1.0, radius), horizon=400,
    )  # fmt: skip
    assert plan.warmup == 144
    assert not np.isfinite(plan.sigmas[:144]).any()
    t, rho = np.arange(145, 401), (math.sqrt(math.log(1e4) + 1) - math.sqrt(math.log(1e4))) ** 2
    g = loss.lipschitz(1.0, radius) + alpha * radius
    assert plan.sigmas[144:] ** 2 == pytest.approx(32 * g**2 * 256 / (alpha**2 * t**2 * rho))
    assert 0.05 < promised_epsilon(plan.mu_spent(400), 1e-4) < 0.5
    with pytest.raises(PrivacyError, match="promise"):
        plan_output_perturbation_paper(
            1.0, 1e-4, dim=3, influence=influence, diameter=100.0, lipschitz=g, radius=50.0, alpha=alpha,
            smoothness=4.0, horizon=400,
        )  # fmt: skip


def test_forks_are_set_aside() -> None:
    first = plan_output_perturbation(1.0, influence=Influence.fifo(4), horizon=50, **OUTPUT)
    spare = plan_output_perturbation(
        1.0, influence=Influence.fifo(4), horizon=50, forks=2, window=10, **OUTPUT
    )
    assert spare.sigma > first.sigma
    assert spare.mu_spent(50) ** 2 + 2 * spare.fork_mu2(10) == pytest.approx(1.0)
    costs = [spare.fork_mu2(10, start) for start in range(41)]
    assert max(costs) == pytest.approx(spare.fork_mu2(10))


def test_all_records_of_an_entity_stay_within_the_budget() -> None:
    n, limit = 18, EntityLimit(3, 4)
    single = POLICIES["window"].influence
    output = plan_output_perturbation(0.7, influence=single, horizon=n, group=limit.records, **OUTPUT)
    assert output.mu_spent(n) == pytest.approx(0.7)
    worst = 0.0
    places = [p for p in itertools.product(range(n), repeat=3) if p[1] - p[0] >= 4 and p[2] - p[1] >= 4]
    for chosen in places:
        moves = np.zeros(n)
        for place in chosen:
            moves += naive.moves(
                place, output.etas.tolist(), output.factors.tolist(), size=3, uses=3, diameter=2.0
            )
        worst = max(worst, float((((moves + output.grids * 2.0) / output.sigmas)[1:] ** 2).sum()))
    assert 0.4 * 0.7 < math.sqrt(worst) <= 0.7 * (1 + 1e-9)


@pytest.mark.parametrize("make", [partial(auc.OnPairStrC, l2=0.1), auc.OnPairC])
def test_a_learner_protects_entities(make: Learner) -> None:
    fixed = {"epsilon": 1.0, "delta": 1e-3, "horizon": 40, "features": ["a", "b"], "warmup": 0}
    one, model = make(**fixed), make(**fixed, entity=EntityLimit(2, 3, field="who"))
    assert model.run.state.plan.sigma > 1.2 * one.run.state.plan.sigma
    for number, (x, y) in enumerate(events(40)):
        model.learn_one({**x, "who": f"p{number % 5}"}, y)
    assert model.null_slots == 30
    assert model.privacy.epsilon_spent == pytest.approx(1.0)
    assert "all records of one entity: at most 2" in model.privacy.unit


# ---- learners ------------------------------------------------------------------------------------------

Learner = Callable[..., Any]
LEARNERS: dict[str, Learner] = {
    "strongly": partial(auc.OnPairStrC, 1.0, 1e-3, 60, l2=0.1),
    "convex": partial(auc.OnPairC, 1.0, 1e-3, 60, buffer=buffers.FullHistory()),
    "paper": partial(auc.OnPairC, 1.0, 1e-3, 60, l2=4.0, calibration="paper"),
    "sampled": partial(auc.OnPairStrC, 1.0, 1e-3, 60, l2=0.1, buffer=buffers.Reservoir(4), releases=7),
}


def events(count: int) -> list[tuple[dict[str, float], bool]]:
    rng = np.random.default_rng(0)
    out = []
    for _ in range(count):
        y = bool(rng.integers(2))
        out.append(({"a": float(rng.normal(0.3 if y else -0.3, 0.3)), "b": float(rng.uniform(-1, 1))}, y))
    return out


def test_what_no_machine_can_hold_is_refused() -> None:
    """A buffer that ends the process for want of memory, and noise beyond 64-bit sums."""
    gradients = privacy.PairGradients(buffer=buffers.FullHistory())
    with pytest.raises(ConfigError, match="all kept"):
        auc.PairFTRL(horizon=900_000, features=range(10_000), mechanism=gradients, warmup=0)
    with pytest.raises(ConfigError, match="raise epsilon"):
        auc.OnPairC(epsilon=1e-12, delta=1e-15, horizon=50, features=["a"], warmup=0)


def test_the_reports_say_what_is_done() -> None:
    text = auc.OnPairStrC(1.0, 1e-3, 100, features=["a"]).privacy.details
    assert "output" not in text
    for phrase in ("descent without noise", "fresh Gaussian noise", "a FIFO buffer of 32 places"):
        assert phrase in text
    paper = auc.OnPairC(1.0, 1e-3, 400, l2=2.0, calibration="paper", features=["a"], buffer=buffers.FIFO(2))
    note = paper.privacy.details
    assert "constants promise epsilon 1" in note
    assert "144 of 400 outputs are random" in note
    exact = promised_epsilon(paper.run.state.plan.mu_spent(400), 1e-3)  # type: ignore[union-attr]
    assert f"spends epsilon {exact:.6g}" in note
    gradients = privacy.PairGradients(buffer=buffers.Reservoir(4))
    sampled = auc.PairFTRL(features=["a"], mechanism=gradients, warmup=0)
    assert "a reservoir of 4 places, where each record is used at most 4 times" in sampled.privacy.details


def test_it_ranks() -> None:
    from river import datasets

    for make in (
        lambda n: auc.OnPairC(2.0, 1e-3, n, seed=1),
        lambda n: auc.OnPairStrC(2.0, 1e-3, n, l2=0.3, seed=1),
        lambda n: auc.OnPairC(2.0, 1e-3, n, buffer=buffers.Reservoir(200), seed=1),
        lambda n: auc.PairFTRL(
            2.0, 1e-3, n, mechanism=privacy.PairGradients(buffer=buffers.FullHistory()), warmup=0, seed=1
        ),
    ):
        data = [({name: 2 * v - 1 for name, v in x.items()}, y) for x, y in datasets.Phishing()]
        model = make(len(data))
        for x, y in data:
            model.learn_one(x, y)
        scores, truth = np.array([model.score_one(x) for x, _ in data]), np.array([y for _, y in data])
        ranks = stats.rankdata(scores)
        n = truth.sum()
        area = (ranks[truth].sum() - n * (n + 1) / 2) / (n * (len(truth) - n))
        assert area > 0.85


# ---- residuals (9.4) and canaries (9.5) ----------------------------------------------------------------


def white(z: np.ndarray) -> bool:
    """Whether size and independence over time are as they should be, at about 1e-5."""
    total = float((z**2).sum())
    if min(stats.chi2.sf(total, z.size), stats.chi2.cdf(total, z.size)) < 1e-6:
        return False
    return all(abs((z[lag:] * z[:-lag]).sum()) < 5.5 * math.sqrt(z[lag:].size) for lag in (1, 2, 5))


def noise_of(state: OutputPerturbationState, steps: int, seed: int | None) -> np.ndarray:
    """Noise of a run of null slots, whose iterates are known to be 0."""
    stream, gate, out = NormalStream(seed), state.gate, []
    for _ in range(steps):
        before, weight = gate.average.copy(), gate.weight
        state.learn(np.zeros((1, 2)), np.array([math.nan]), stream)
        if gate.weight > weight:
            out.append(before + (gate.average - before) * (gate.weight / (gate.weight - weight)))
        else:
            out.append(np.zeros(2))
    return np.array(out)


@pytest.mark.parametrize("factor", [1.0, 2 / 3, 3 / 2])
def test_the_noise_is_white_and_of_the_planned_size(factor: float) -> None:
    steps = 400
    for seed in [*range(20 if factor == 1.0 else 3), None]:
        plan = plan_output_perturbation(
            1.0, dim=2, influence=Influence.fifo(4), diameter=2.0, clip=1.0, radius=1e9, alpha=0.5,
            smoothness=4.0, horizon=steps,
        )  # fmt: skip
        broken = dataclasses.replace(plan, sigmas=factor * plan.sigmas)
        state = OutputPerturbationState(broken, buffer_of("window", 2, steps, 0, losses.Logistic()))
        z = noise_of(state, steps, seed)[1:] / plan.sigmas[1:, None]
        assert white(z) == (factor == 1.0)


MU, SLOTS, REJECT = 3.0, 24, 3.719  # one-sided, p = 1e-4

Breaker = Callable[[Influence, float], tuple[Influence, float]]


def as_planned(influence: Influence, mu: float) -> tuple[Influence, float]:
    return influence, mu


def less_noise(influence: Influence, mu: float) -> tuple[Influence, float]:
    return influence, mu / 0.7


def no_buffer_term(influence: Influence, mu: float) -> tuple[Influence, float]:
    return Influence.reservoir(10**9, 1), mu  # its copies weigh nothing


def canary_state(breaker: Breaker) -> OutputPerturbationState:
    """A state with three places whose steps are too small to satisfy any pair."""
    influence, mu = breaker(Influence.fifo(3), MU)
    output = plan_output_perturbation(
        mu, dim=1, influence=influence, diameter=1.0, clip=0.5, radius=10.0, alpha=0.5, smoothness=4.0,
        horizon=SLOTS,
    )  # fmt: skip
    return OutputPerturbationState(output, buffer_of("window", 1, SLOTS, 0, losses.Logistic()))


def canary_run(breaker: Breaker, side: float, spot: int, seed: int | None) -> np.ndarray:
    """Releases, over their noise, of a run with a canary at `side` among records at 0 of the other label."""
    state, stream, out = canary_state(breaker), NormalStream(seed), []
    gate = state.gate
    for t in range(SLOTS):
        x, y = (side, 1.0) if t == spot else (0.0, -1.0)
        weight, average = gate.weight, float(gate.average[0])
        state.learn(np.array([[x]]), np.array([y]), stream)
        if gate.weight > weight:
            release = average + (float(gate.average[0]) - average) * gate.weight / (gate.weight - weight)
            out.append(release / state.plan.sigmas[t])
    return np.array(out)


def canary_signal(breaker: Breaker, spot: int) -> np.ndarray:
    """What the canary moves in the mean of the releases, over their noise: the same noise on both sides."""
    one, two = (canary_run(breaker, side, spot, 1) for side in (1.0, -1.0))
    return one - two


def measured_mu(breaker: Breaker, spot: int, runs: int, seed: int | None) -> float:
    """mu by the best statistic, from runs on both sides."""
    signal = canary_signal(as_planned, spot)
    statistics = []
    for number, side in enumerate((1.0, -1.0)):
        seeds = [None if seed is None else 10**6 * seed + 2 * r + number for r in range(runs)]
        statistics.append(np.array([canary_run(breaker, side, spot, s) @ signal for s in seeds]))
    spread = math.sqrt((statistics[0].var(ddof=1) + statistics[1].var(ddof=1)) / 2)
    return float(abs(statistics[0].mean() - statistics[1].mean()) / spread)


def canary_fails(mu: float, runs: int) -> bool:
    return mu > MU + REJECT * math.sqrt(2 / runs + MU**2 / (4 * runs))


def test_the_canary_shows_what_is_promised_and_no_more() -> None:
    # Exact: the moves of the mean, in units of the noise, for every place of the canary.
    distances = [float(np.linalg.norm(canary_signal(as_planned, spot))) for spot in range(1, SLOTS)]
    assert max(distances) <= MU * (1 + 1e-6)
    assert max(distances) >= 0.95 * MU
    spot = 1 + int(np.argmax(distances))
    for mutant in (less_noise, no_buffer_term):
        assert float(np.linalg.norm(canary_signal(mutant, spot))) > 1.04 * MU
    # And by runs, noise included.
    for seed in range(20):
        assert not canary_fails(measured_mu(as_planned, spot, 30, seed), 30)
    assert not canary_fails(measured_mu(as_planned, spot, 60, None), 60)
    assert canary_fails(measured_mu(less_noise, spot, 200, 1), 200)
