"""What noise adds to the weights, as it is told, against many draws of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness.learners import PRIVATE, stream, taught

from streampair import auc, metric, ranking
from streampair.kernels import project_ball
from streampair.privacy.mechanisms.beside import BesideRun
from streampair.privacy.mechanisms.leader import leader_of, noise_of_leader, unpacked
from streampair.privacy.mechanisms.metric_moments import MetricRun
from streampair.privacy.mechanisms.moments import MomentsRun
from streampair.privacy.mechanisms.output import OutputRun
from streampair.privacy.mechanisms.woods import WoodsRun

Floats = np.ndarray
Told = Callable[..., Floats]
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


def spread_and_told(case: str, told: Told, draws: int = 400) -> tuple[Floats, Floats]:
    """Standard deviation of the weights over draws of the noise, and the mean of what is told after each."""
    d, std, radius, gap, longest = CASES[case]
    rng, exact = np.random.default_rng(7), moments(d, gap, longest)
    ridge = std * np.sqrt(d)
    found, said = [], []
    for _ in range(draws):
        second, cross = unpacked(exact + std * rng.normal(size=len(exact)), d)
        cross = cross.copy()
        w, _ = leader_of(second, cross, RATE, ridge, std * std)
        project_ball(w, radius)
        found.append(w)
        said.append(told(second, cross, ridge, std * std, np.full(d, std * std), radius))
    return np.std(found, axis=0), np.sqrt(np.mean(np.square(said), axis=0))


def right(*arguments: Any) -> Floats:
    return noise_of_leader(*arguments, rate=RATE, pulled=True)


def agrees(case: str, told: Told) -> bool:
    """Within a quarter in each weight, and a twentieth of the largest; 400 draws tell a spread to 4 %.

    Along the weights themselves the ball lets noise in at second order only, and what is told is of first.
    """
    spread, said = spread_and_told(case, told)
    return bool((abs(said - spread) < 0.25 * spread + 0.05 * spread.max()).all())


@pytest.mark.parametrize("case", CASES)
def test_what_is_told_is_what_many_draws_show(case: str) -> None:
    assert agrees(case, right), spread_and_told(case, right)


def no_matrix(second: Floats, cross: Floats, ridge: float, matrix: float, vector: Floats, r: float) -> Floats:
    return right(second, cross, ridge, 1e-12 * matrix, vector, r)


def no_vector(second: Floats, cross: Floats, ridge: float, matrix: float, vector: Floats, r: float) -> Floats:
    return right(second, cross, ridge, matrix, 0.0 * vector, r)


def no_ball(second: Floats, cross: Floats, ridge: float, matrix: float, vector: Floats, r: float) -> Floats:
    return right(second, cross, ridge, matrix, vector, 1e9)


def no_length(second: Floats, cross: Floats, ridge: float, matrix: float, vector: Floats, r: float) -> Floats:
    return noise_of_leader(second, cross, ridge, matrix, vector, r, pulled=True)


@pytest.mark.parametrize("twin", [no_matrix, no_vector, no_ball, no_length])
def test_a_broken_twin_is_caught(twin: Told) -> None:
    assert not all(agrees(case, twin) for case in CASES)


def taught_on(model: Any, n: int, seed: int) -> Any:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(n, 3))
    labels = rows @ [1.0, 0.5, 0.0] + rng.normal(size=n)
    y = labels > 0.5 if model.two_classes else np.tanh(labels)
    model = model.clone({"seed": seed})
    model.learn_many(rows, y)
    return model


@pytest.mark.parametrize(
    "model",
    [
        auc.PairFTRL(1.0, 1e-4, 4000),
        auc.PairFTRL(1.0, 1e-4, warmup=400, half_life=1000),
        ranking.PairFTRL(1.0, 1e-4, 4000, solver="moments"),
        auc.OnPairStrC(1.0, 1e-4, 4000, l2=0.1, releases=10),
    ],
    ids=["moments", "forgetting", "ranking", "output"],
)
def test_learners_tell_the_spread_of_their_weights(model: Any) -> None:
    """Over draws of all of their noise; that of the warm-up, which they do not count, is the smaller part."""
    models = [taught_on(model, 4000, seed) for seed in range(60)]
    spread = np.std([m.weights_vector for m in models], axis=0)
    told = np.sqrt(np.mean([np.square(list(m.weights_noise.values())) for m in models], axis=0))
    assert (told > 0.6 * spread).all(), (told, spread)
    assert (told < 1.5 * spread).all(), (told, spread)


def test_where_it_is_not_known_nothing_is_told() -> None:
    for name, make in PRIVATE.items():
        model = make(seed=1)
        assert model.weights_noise is None
        noise = taught(model, 60).weights_noise
        rule = model.run.rule
        while isinstance(rule, BesideRun):
            rule = rule.inner
        known = isinstance(rule, MomentsRun) and not isinstance(rule, (MetricRun, WoodsRun))
        known = known or (isinstance(rule, OutputRun) and rule.releases > 0)  # points at random do not count
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
