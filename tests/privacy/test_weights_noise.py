"""What noise adds to the weights, as it is told, against many draws of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.learners import PRIVATE, stream, taught

from streampair import auc, metric, privacy, ranking
from streampair.kernels.vectors import project_ball
from streampair.privacy.mechanisms import metric_moments
from streampair.privacy.mechanisms.base import StateWrapper
from streampair.privacy.mechanisms.dp_forest import DPForestState
from streampair.privacy.mechanisms.metric_moments import (
    MetricMomentsState,
    metric_of,
    noise_of_metric,
    seen_of,
)
from streampair.privacy.mechanisms.output_perturbation import OutputPerturbationState
from streampair.privacy.mechanisms.second_moments import MomentsState, noise_of_weights, ridge_of, unpacked

Floats = np.ndarray
Estimate = Callable[..., Floats]
RATE = 0.3
#: Features, standard deviation of the noise in a cell, radius, how far the classes are apart, and how long
#: records are. Of short ones the weights are large, and so is what noise in the matrix does.
CASES = {
    "little noise": (5, 0.002, 1e9, 1.5, 0.5),
    "much noise": (5, 0.01, 1e9, 1.5, 0.5),
    "far apart": (4, 0.004, 1e9, 4.0, 0.5),
    "on the ball": (5, 0.004, 0.3, 2.5, 0.5),
    "short": (4, 0.0002, 1e9, 2.5, 0.1),
}


def moments(d: int, gap: float, longest: float) -> Floats:
    """Packed moments of records of two classes in the unit ball."""
    rng = np.random.default_rng(d)
    labels = rng.random(40_000) < RATE
    rows = rng.normal(size=(len(labels), d)) * np.linspace(1.0, 0.5, d) + gap * labels[:, None] * np.eye(d)[0]
    rows -= rows.mean(axis=0)
    rows *= longest / np.maximum(1.0, np.linalg.norm(rows, axis=1) / 2.0)[:, None]
    second = rows.T @ rows / len(rows)
    packed = second[np.tril_indices(d)] * np.sqrt(2.0)
    packed[[i * (i + 3) // 2 for i in range(d)]] /= np.sqrt(2.0)
    cross = (labels - RATE) @ rows / len(rows)
    return np.concatenate((packed, cross))


def spread_and_estimates(case: str, estimate: Estimate, draws: int = 400) -> tuple[Floats, Floats]:
    """Standard deviation of the weights over draws of the noise, and the mean of what is told after each."""
    d, std, radius, gap, longest = CASES[case]
    rng, exact = np.random.default_rng(7), moments(d, gap, longest)
    ridge = std * np.sqrt(d)
    found, said = [], []
    for _ in range(draws):
        second, cross = unpacked(exact + std * rng.normal(size=len(exact)), d)
        cross = cross.copy()
        w, _ = ridge_of(second, cross, RATE, ridge, std * std)
        project_ball(w, radius)
        found.append(w)
        said.append(estimate(second, cross, ridge, std * std, np.full(d, std * std), radius))
    return np.std(found, axis=0), np.sqrt(np.mean(np.square(said), axis=0))


def right(*arguments: Any) -> Floats:
    return noise_of_weights(*arguments, rate=RATE)


def agrees(case: str, estimate: Estimate) -> bool:
    """Within a quarter in each weight, and a twentieth of the largest; 400 draws tell a spread to 4 %.

    Along the weights themselves the ball lets noise in at second order only, and what is told is of first.
    """
    spread, said = spread_and_estimates(case, estimate)
    return bool((abs(said - spread) < 0.25 * spread + 0.05 * spread.max()).all())


@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_what_many_draws_show(case: str) -> None:
    assert agrees(case, right), spread_and_estimates(case, right)


def no_matrix(second: Floats, cross: Floats, ridge: float, matrix: float, vector: Floats, r: float) -> Floats:
    return right(second, cross, ridge, 1e-12 * matrix, vector, r)


def no_vector(second: Floats, cross: Floats, ridge: float, matrix: float, vector: Floats, r: float) -> Floats:
    return right(second, cross, ridge, matrix, 0.0 * vector, r)


def no_ball(second: Floats, cross: Floats, ridge: float, matrix: float, vector: Floats, r: float) -> Floats:
    return right(second, cross, ridge, matrix, vector, 1e9)


def no_length(second: Floats, cross: Floats, ridge: float, matrix: float, vector: Floats, r: float) -> Floats:
    return noise_of_weights(second, cross, ridge, matrix, vector, r)


@pytest.mark.parametrize("mutant", [no_matrix, no_vector, no_ball, no_length])
def test_a_mutant_is_caught(mutant: Estimate) -> None:
    assert not all(agrees(case, mutant) for case in CASES)


#: Features, classes, standard deviation of the noise in a cell, how far the classes are apart, radius; and
#: how far from the spread what is told may be: 600 draws tell it to 3 %, and four of these; much noise is no
#: longer of first order.
METRICS = {
    "two classes": (5, 2, 0.0003, 1.0, 1e9, 0.12),
    "much noise": (5, 2, 0.004, 1.0, 1e9, 0.25),
    "three classes": (2, 3, 0.0003, 1.0, 1e9, 0.12),
    "near": (4, 3, 0.0003, 0.5, 1e9, 0.12),
    "on the ball": (4, 3, 0.0005, 0.6, 0.5, 0.12),
}


def class_moments(d: int, classes: int, gap: float) -> Floats:
    """Packed moments of records of classes, one of them rare, in the unit ball."""
    rng = np.random.default_rng(d)
    labels = rng.choice(classes, size=40_000, p=[0.2, *[0.8 / (classes - 1)] * (classes - 1)])
    centres = gap * rng.normal(size=(classes, d))
    rows = rng.normal(size=(len(labels), d)) * np.linspace(1.0, 0.5, d) + centres[labels]
    rows -= rows.mean(axis=0)
    rows *= 0.5 / np.maximum(1.0, np.linalg.norm(rows, axis=1) / 2.0)[:, None]
    low = np.tril_indices(d)
    packed = (rows.T @ rows / len(rows))[low] * np.where(low[0] == low[1], 1.0, np.sqrt(2.0))
    of_class = [labels == k for k in range(classes)]
    sums = [rows[mine].sum(axis=0) / len(rows) for mine in of_class]
    return np.concatenate((packed, *sums, [0.5 * mine.mean() for mine in of_class]))


def metric_agrees(case: str, estimate: Estimate) -> bool:
    """Within `most` in each coordinate of a metric, and a fiftieth of the largest."""
    d, classes, std, gap, radius, most = METRICS[case]
    rng, exact = np.random.default_rng(7), class_moments(d, classes, gap)
    found, said = [], []
    for _ in range(600):
        mean = exact + std * rng.normal(size=len(exact))
        w = metric_of(mean, d, classes, std * std)
        project_ball(w, radius)
        found.append(w)
        said.append(estimate(mean, d, classes, std * std, radius, seen_of(mean, classes, std * std)))
    spread, of_all = np.std(found, axis=0), np.sqrt(np.mean(np.square(said), axis=0))
    return bool((abs(of_all - spread) < most * spread + 0.02 * spread.max()).all())


@pytest.mark.parametrize("case", METRICS)
def test_the_estimate_of_a_metric_is_what_many_draws_show(case: str) -> None:
    assert metric_agrees(case, noise_of_metric)


@pytest.mark.parametrize(("where", "size"), [("second", 0.0), ("sums", 0.0), ("sums", 2.0), ("second", 1.5)])
def test_a_mutant_of_a_metric_is_caught(where: str, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise in the matrix or in the sums that is left out, or taken for larger than it is."""
    whole = metric_moments._directions

    def part(d: int, classes: int) -> Any:
        for moves in whole(d, classes):
            yield moves._replace(**{where: size * getattr(moves, where)})

    monkeypatch.setattr(metric_moments, "_directions", part)
    assert not all(metric_agrees(case, noise_of_metric) for case in METRICS)


def test_a_metric_of_so_much_noise_that_the_ball_cuts_it_needs_the_ball() -> None:
    def no_ball(mean: Floats, d: int, classes: int, variance: float, radius: float, seen: Floats) -> Floats:
        return noise_of_metric(mean, d, classes, variance, 1e9, seen)

    assert not metric_agrees("on the ball", no_ball)


def test_of_many_features_draws_tell_what_all_moves_do(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, std = class_moments(4, 3, 1.0), 0.001
    estimated = (exact, 4, 3, std * std, 1e9, seen_of(exact, 3, std * std))
    right = noise_of_metric(*estimated)
    assert noise_of_metric(*estimated).tolist() == right.tolist()
    monkeypatch.setattr(metric_moments, "_EXACT", 24)
    drawn = noise_of_metric(*estimated)
    assert drawn.tolist() != right.tolist()
    assert (abs(drawn / right - 1.0) < 5.0 / np.sqrt(2.0 * metric_moments._DRAWS)).all()
    assert noise_of_metric(*estimated).tolist() == drawn.tolist()


def taught_on(model: Any, n: int, seed: int) -> Any:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(n, 3))
    labels = rows @ [1.0, 0.5, 0.0] + rng.normal(size=n)
    classes = model.two_classes or isinstance(model, metric.PairFTRL)
    y = labels > 0.5 if classes else np.tanh(labels)
    model = model.clone({"seed": seed})
    model.learn_many(rows, y)
    return model


@pytest.mark.parametrize(
    "model",
    [
        auc.PairFTRL(1.0, 1e-4, 4000),
        auc.PairFTRL(1.0, 1e-4, warmup=400, mechanism=privacy.DecayedMoments(1000)),
        ranking.PairFTRL(1.0, 1e-4, 4000, mechanism=privacy.SecondMoments()),
        auc.OnPairStrC(1.0, 1e-4, 4000, l2=0.1, releases=10),
        metric.PairFTRL(2.0, 1e-4, 4000, classes=[False, True]),
    ],
    ids=["moments", "forgetting", "ranking", "output", "metric"],
)
def test_learners_tell_the_spread_of_their_weights(model: Any) -> None:
    """Over draws of all of their noise; that of the warm-up, which they do not count, is the smaller part."""
    models = [taught_on(model, 4000, seed) for seed in range(60)]
    spread = np.std([m.weights_vector for m in models], axis=0)
    estimated = np.sqrt(np.mean([np.square(list(m.weights_noise.values())) for m in models], axis=0))
    assert (estimated > 0.6 * spread).all(), (estimated, spread)
    assert (estimated < 1.5 * spread).all(), (estimated, spread)


def test_where_it_is_not_known_nothing_is_reported() -> None:
    for name, make in PRIVATE.items():
        model = make(seed=1)
        assert model.weights_noise is None
        noise = taught(model, 60).weights_noise
        rule = model.run.state
        while isinstance(rule, StateWrapper):
            rule = rule.inner
        known = isinstance(rule, MomentsState) and not isinstance(rule, (MetricMomentsState, DPForestState))
        known = known or (
            isinstance(rule, MetricMomentsState) and bool(rule.average.any())
        )  # two classes are seen
        known = known or (
            isinstance(rule, OutputPerturbationState) and rule.releases > 0
        )  # points at random do not count
        assert (noise is not None) is known, name
        if noise is not None:
            assert noise.keys() == model.weights.keys()
            assert all(value >= 0.0 for value in noise.values())
    assert auc.PairOGD().weights_noise is None
    model = metric.OnPairStrC(1.0, 1e-4, 60, l2=0.1, warmup=0, seed=1)
    for x, y in stream(model, 60):
        model.learn_one(x, y)
    assert model.weights_noise is not None
    assert model.weights_noise.keys() == model.weights.keys()


def as_it_was_put_in(model: Any) -> float:
    """Standard deviation of what noise adds to a weight if no step after it answered: of FTRL, in full."""
    run = model.run.state
    plan, n = run.plan, run.steps
    rates, c = plan.rates(0, n), plan.strategy.column[:n]
    drawn = np.zeros(n)  # of one normal, in what noise adds to the sum: C^-1
    drawn[0] = 1.0 / c[0]
    for i in range(1, n):
        drawn[i] = -(c[1 : i + 1] @ drawn[i - 1 :: -1][:i]) / c[0]
    noise_sum = np.cumsum(drawn)
    share = 2.0 * np.arange(1, n + 1) / (n * (n + 1.0)) * rates
    moved = np.array([share[j:] @ noise_sum[: n - j] for j in range(n)])
    return float(plan.sigma * np.sqrt(moved @ moved))


def test_of_gradients_nothing_is_reported_for_what_could_be_is_false() -> None:
    """Later gradients push back what noise does; by how much depends on the records, and is not released.

    Where every record is null nobody pushes, and the noise is what was put in: so that is what could be told.
    """
    model = auc.PairFTRL(1.0, 1e-4, 2000, mechanism=privacy.PairGradients(), features=[0, 1, 2], warmup=0)
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(2000, 3))
    labels = rows @ [1.0, 0.5, 0.0] + rng.normal(size=2000) > 0.5
    spread = {}
    for null in (True, False):
        models = [model.clone({"seed": seed}) for seed in range(60)]
        for one in models:
            one.learn_many(np.full_like(rows, np.nan) if null else rows, labels)
        assert all(one.weights_noise is None for one in models)
        spread[null] = float(np.sqrt(np.mean(np.var([one.weights_vector for one in models], axis=0))))
    estimated = as_it_was_put_in(models[0])
    assert 0.8 < estimated / spread[True] < 1.25
    assert estimated > 1.5 * spread[False]
