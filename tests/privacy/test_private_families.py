"""The private learners of ranking and metric: labels, null records, symmetric noise, and that they learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import naive
import numpy as np
import pandas as pd
import pytest
from harness.much_budget import much_budget
from river import base, datasets
from scipy import stats

from streampair import buffers, losses, metric, ranking
from streampair.kernels import dp_steps

Learner = Callable[..., Any]
KINDS: dict[str, Callable[[Any], Learner]] = {
    "leader": lambda family: partial(family.PairFTRL, 1.0, 1e-3, 60),
    "endless": lambda family: partial(family.PairFTRL, 1.0, 1e-3, warmup=0),
    "strongly": lambda family: partial(family.OnPairStrC, 1.0, 1e-3, 60, l2=0.1),
    "convex": lambda family: partial(family.OnPairC, 1.0, 1e-3, 60, buffer=buffers.Reservoir(4)),
}
CASES = [
    pytest.param(kind(family), id=f"{family.__name__.split('.')[1]}-{name}")
    for family in (ranking, metric)
    for name, kind in KINDS.items()
]


def events(count: int, seed: int = 0) -> list[tuple[dict[str, float], float]]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(count):
        a, b = rng.uniform(-0.7, 0.7, 2)
        out.append(({"a": float(a), "b": float(b)}, float(np.sign(a - 0.3 * b) * rng.choice([0.5, 1.0]))))
    return out


def released(model: Any) -> np.ndarray:
    return np.asarray(model.metric_.ravel() if hasattr(model, "metric_") else model.weights_vector)


@pytest.mark.parametrize("make", [KINDS["endless"](ranking), KINDS["strongly"](ranking)])
def test_relevance_zero_is_a_label_and_not_a_null_record(make: Learner) -> None:
    outs = []
    for middle in (0.0, None, math.nan, 1.5, -1.01, "x", [1.0]):
        model = make(seed=1, features=["a", "b"])
        model.learn_one({"a": 0.5, "b": 0.1}, middle)
        model.learn_one({"a": -0.5, "b": 0.2}, 1.0)
        outs.append((float(released(model)[0]), model.null_slots))
    assert outs[0][1] == 0
    assert all(count == 1 for _, count in outs[1:])
    assert len({weight for weight, _ in outs[1:]}) == 1
    assert outs[0][0] != outs[1][0]
    declared = make(seed=1, features=["a", "b"], relevance=(0, 4))
    declared.learn_one({"a": 0.5, "b": 0.1}, 2)
    declared.learn_one({"a": -0.5, "b": 0.2}, 4)
    assert float(released(declared)[0]) == outs[0][0]


@much_budget()
def test_classes_are_distinguished_by_any_label() -> None:
    outs = []
    for labels in (("a", "b", "c"), (1, 2, 3), (True, False, "x")):
        model = metric.PairFTRL(1e3, 1e-3, 30, features=["a"], warmup=0, seed=1)
        for t in range(30):
            model.learn_one({"a": 0.1 * (t % 3) + 0.01 * t}, labels[t % 3])
        assert model.null_slots == 0
        outs.append(float(model.metric_[0, 0]))
    assert outs[0] == outs[1] == outs[2] > 0
    model.learn_null()


def test_the_noise_is_that_of_a_symmetric_matrix() -> None:
    # Independent coordinates of one size in the isometric basis: the entries off the diagonal have half
    # its variance, and the Frobenius norm is the norm of the coordinates.
    outs = []
    for _ in range(600):
        model = metric.PairFTRL(1.0, 1e-3, 2, features=["a", "b", "c"], warmup=0)
        rule = model.run.state
        assert rule is not None
        object.__setattr__(rule.plan, "rates", lambda start, count: np.full(count, 1e-3))
        model.learn_null()
        assert np.array_equal(model.metric_, model.metric_.T)
        outs.append(rule.average / (1e-3 * rule.plan.sigma))
        assert naive.vector(model.metric_) == pytest.approx(rule.average)
        assert np.linalg.norm(model.metric_) == pytest.approx(np.linalg.norm(rule.average))
    z = np.array(outs)
    total = float((z**2).sum())
    assert 1e-6 < stats.chi2.sf(total, z.size) < 1 - 1e-6
    per = (z**2).sum(axis=0)
    assert np.all((stats.chi2.sf(per, len(z)) > 1e-7) & (stats.chi2.cdf(per, len(z)) > 1e-7))
    # Mutant: noise on the entries of the triangle instead, without sqrt(2), is too small on the sides.
    wrong = np.array([naive.vector(naive.matrix(row)) for row in z])
    wrong[:, [1, 2, 4]] /= math.sqrt(2)
    assert stats.chi2.cdf(float((wrong[:, 1] ** 2).sum()), len(z)) < 1e-6


@pytest.mark.parametrize("loss", [losses.Hinge(), losses.Logistic()])
@pytest.mark.parametrize("clip", [1.0, 100.0])
def test_the_diameter_of_metric_pairs_is_kept_and_nearly_reached(loss: losses.PairLoss, clip: float) -> None:
    rng = np.random.default_rng(0)
    radius = 0.5
    diameter = loss.diameter(1.0, radius, clip, form="metric")

    def gradient(w: np.ndarray, x: np.ndarray, y: float, p: np.ndarray, label: float) -> np.ndarray:
        out = np.empty(len(w))
        dp_steps.metric_gradient(w, x, y, np.array([[*p, label, 0.0]]), 1, 1.0, loss.code, clip, out)
        return out

    worst = 0.0
    for _ in range(4000):
        d = int(rng.integers(1, 4))
        p, a, b = (naive.ball(rng.normal(size=d), 1.0) for _ in range(3))
        if rng.random() < 0.5:
            p = p / np.linalg.norm(p)
            a = b = -p  # same pair, another label: both signs
        w = naive.ball(rng.normal(size=d * (d + 1) // 2), radius)
        moves = [gradient(w, x, y, p, 1.0) for x in (a, b) for y in (1.0, 2.0, math.nan)]
        worst = max(worst, *(float(np.linalg.norm(one - two)) for one in moves for two in moves))
    assert worst <= diameter * (1 + 1e-9)
    assert worst >= (0.99 if clip == 1.0 else 0.5) * diameter


@pytest.mark.parametrize("kind", ["leader", "strongly", "convex"])
def test_ranking_learns(kind: str) -> None:
    model = {
        "leader": partial(ranking.PairFTRL, 4.0, 1e-4, 2000, warmup=0, seed=1),
        "strongly": partial(ranking.OnPairStrC, 4.0, 1e-4, 2000, l2=0.1, seed=1),
        "convex": partial(ranking.OnPairC, 4.0, 1e-4, 2000, seed=1),
    }[kind]()
    for x, y in events(2000):
        model.learn_one(x, y)
    test = events(400, seed=1)
    truth = [y for _, y in test]
    tau = stats.kendalltau([model.predict_one(x) for x, _ in test], truth).statistic
    best = stats.kendalltau([x["a"] - 0.3 * x["b"] for x, _ in test], truth).statistic
    assert tau > 0.9 * best


@pytest.mark.parametrize("name", ["PairFTRL", "OnPairC"])
@much_budget()
def test_metrics_learn(name: str) -> None:
    # One feature tells the classes apart, the other is loud and says nothing.
    rng = np.random.default_rng(0)
    model = getattr(metric, name)(50.0, 1e-4, 3000, warmup=0, features=["loud", "tells"], seed=1)
    for _ in range(3000):
        y = int(rng.integers(3))
        model.learn_one({"loud": float(rng.uniform(-0.7, 0.7)), "tells": 0.6 * (y - 1)}, f"class {y}")
    w = model.metric_
    assert w[1, 1] > 2 * abs(w[0, 0])
    one, two = {"loud": 0.1, "tells": 0.6}, {"loud": 0.1, "tells": -0.6}
    assert model.distance_one(one, two) > 3 * model.distance_one(one, {"loud": 0.3, "tells": 0.6})
    root = np.array([list(model.transform_one(x).values()) for x in (one, two)])
    assert np.linalg.norm(root[0] - root[1]) == pytest.approx(model.distance_one(one, two))
    frame = model.transform_many(pd.DataFrame([one, two]))
    assert frame.to_numpy() == pytest.approx(root)


def test_a_pipeline_passes_the_transformed_record_on() -> None:
    class Last(base.Classifier):
        def learn_one(self, x: Any, y: Any) -> None:
            self.seen = x

        def predict_proba_one(self, x: Any, **kwargs: Any) -> Any:
            return {True: 1.0}

    learner, last = metric.PairFTRL(1.0, 1e-3, 200, warmup=0), Last()
    model = learner | last
    for x, y in datasets.Phishing().take(60):
        before = learner.transform_one(x)
        model.learn_one(x, y)
    assert learner.slots == 60
    assert last.seen in (before, learner.transform_one(x))
    assert last.seen != x
