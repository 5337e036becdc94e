"""Learners without privacy that forget: what fades, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import naive
import numpy as np
import pytest

from streampair import auc, buffers, losses, metric, ranking, schedules
from streampair.errors import ConfigError


def learn(*learners: Any) -> None:
    """Let learners, and a reference as the last of them, learn the same 60 records."""
    rng, (*models, reference) = np.random.default_rng(0), learners
    for _ in range(60):
        x, y = rng.normal(size=2), bool(rng.random() < 0.5)
        for each in models:
            each.learn_one({"a": x[0], "b": x[1]}, y)
        reference.learn(x.tolist(), 1.0 if y else -1.0)


@pytest.mark.parametrize("learning_rate", [None, 0.2])
def test_old_records_fade_as_in_the_reference(learning_rate: float | None) -> None:
    model = auc.PairOGD(
        losses.Logistic(), buffers.FIFO(3), learning_rate, scale=None, radius=2.0, half_life=7
    )
    reference = naive.PairOGD(2, "Logistic", "fifo", 3, learning_rate, 2.0, keep=0.5 ** (1 / 7))
    never = auc.PairOGD(losses.Logistic(), buffers.FIFO(3), learning_rate, scale=None, radius=2.0)
    learn(model, never, reference)
    assert np.allclose(model.weights_vector, reference.average, rtol=1e-8)
    assert not np.allclose(never.weights_vector, reference.average, rtol=1e-2)


def test_the_squares_of_each_weight_fade_as_in_the_reference() -> None:
    steps = schedules.AdaGrad(0.2)
    model = auc.PairOGD(losses.Logistic(), buffers.FIFO(3), steps, scale=None, half_life=7)
    never = auc.PairOGD(losses.Logistic(), buffers.FIFO(3), steps, scale=None)
    reference = naive.PairOGD(2, "Logistic", "fifo", 3, 0.2, keep=0.5 ** (1 / 7), schedule="adagrad")
    learn(model, never, reference)
    assert np.allclose(model.weights_vector, reference.last, rtol=1e-8)
    assert not np.allclose(never.weights_vector, reference.last, rtol=1e-2)


@pytest.mark.parametrize("learning_rate", [None, schedules.AdaGrad(0.125)])
def test_a_long_silence_does_not_outweigh_what_follows(learning_rate: Any) -> None:
    """Records of one class have no gradient: the sums fade to nothing, and what comes then counts."""
    model = auc.PairOGD(losses.Logistic(), learning_rate=learning_rate, scale=None, radius=1.0, half_life=2)
    for i in range(10):
        model.learn_one({"a": float(i % 2)}, i % 2 == 1)
    assert model.score_one({"a": 1.0}) > 0.0
    for _ in range(5000):
        model.learn_one({"a": 1.0}, True)
    assert 0.0 < model.score_one({"a": 1.0}) <= 1.0
    for i in range(40):
        model.learn_one({"a": float(i % 2)}, i % 2 == 0)
    assert -1.0 <= model.score_one({"a": 1.0}) < 0.0


@pytest.mark.parametrize("kind", [auc.PairOGD, ranking.PairOGD, metric.PairOGD])
def test_what_does_not_forget_is_refused(kind: Any) -> None:
    for buffer in (buffers.Reservoir(4), buffers.FullHistory()):
        with pytest.raises(ConfigError, match=r"buffers\.FIFO"):
            kind(buffer=buffer, half_life=100)
    for value in (0, -1, 2.5, True, math.inf):
        with pytest.raises(ConfigError, match="half_life"):
            kind(half_life=value)
    assert kind(half_life=100).to_state()["params"]["half_life"] == "100"


def test_ranking_and_metric_follow_what_has_turned() -> None:
    rng = np.random.default_rng(1)
    ranks = {half_life: ranking.PairOGD(half_life=half_life) for half_life in (None, 30)}
    distances = {half_life: metric.PairOGD(half_life=half_life) for half_life in (None, 30)}
    for i in range(1200):
        x = {"a": rng.normal(), "b": rng.normal()}
        feature = "a" if i < 1000 else "b"
        for each in ranks.values():
            each.learn_one(x, x[feature] * (1.0 if i < 1000 else -1.0))
        for one in distances.values():
            one.learn_one(x, x[feature] > 0.0)
    assert ranks[30].weights["b"] < -abs(ranks[30].weights["a"])
    assert ranks[None].weights["a"] > abs(ranks[None].weights["b"])
    shares = {h: float(m.metric_[1, 1] / np.trace(m.metric_)) for h, m in distances.items()}
    assert shares[30] > 0.7 > 0.5 > shares[None]
