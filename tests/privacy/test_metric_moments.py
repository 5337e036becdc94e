"""Metrics by moments: sums of declared classes, the closed form, and a metric without classes."""

from __future__ import annotations

import math
from typing import Any

import naive
import numpy as np
import pytest
from harness.learners import KEY, NAMES, frozen, stream
from harness.moments import climb
from sklearn.neighbors import KNeighborsClassifier

from streampair import losses, metric, privacy
from streampair.errors import ConfigError
from streampair.kernels import dp_steps
from streampair.privacy import EntityLimit
from streampair.privacy.mechanisms.metric_moments import MetricMomentsState, metric_of
from streampair.privacy.mechanisms.second_moments import MomentsState, second_moments_diameter

DIM, CLASSES = 3, 4
GRID = 2.0**-40


def summed(x: np.ndarray, place: int) -> np.ndarray:
    """What one record adds to a block, by the code that learns; -1: of no declared class."""
    cells = np.zeros(DIM * (DIM + 1) // 2 + CLASSES * (DIM + 1), dtype=np.int64)
    dp_steps.class_sums(x[None], np.array([float(place)]), np.arange(float(CLASSES)), GRID, cells)
    return cells * GRID


def moves(rng: np.random.Generator, one: int, other: int, count: float = 0.5) -> float:
    """Hill climbing for the largest replacement of a record of a class by one of another."""

    def distance(v: np.ndarray) -> float:
        records = [part / max(1.0, float(np.linalg.norm(part))) for part in np.split(v, 2)]
        if count == 0.5:
            a, b = (summed(x, place) for x, place in zip(records, (one, other), strict=True))
        else:
            a, b = (
                naive.class_contribution(x.tolist(), place, CLASSES, count)
                for x, place in zip(records, (one, other), strict=True)
            )
        return float(np.linalg.norm(a - b))

    return climb(distance, rng, 2 * DIM, starts=20, steps=250, shrink=0.97)


def test_no_replacement_moves_a_sum_by_more_than_the_diameter() -> None:
    rng = np.random.default_rng(0)
    bound = second_moments_diameter()
    for one, other in ((0, 0), (0, 3), (2, 1)):
        found = max(moves(rng, one, other) for _ in range(4))
        assert 0.97 * bound <= found <= bound * (1 + 1e-9)
    # A null record, and one of no declared class, add nothing.
    assert max(moves(rng, one, -1) for one in (0, 3)) <= 1.5 * (1 + 1e-9)
    assert not summed(np.ones(DIM), 9).any()
    # The mutant counts each record whole.
    assert moves(rng, 0, 1, count=1.0) > 1.1 * bound


def shapes(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Classes of one covariance, of which one feature tells nothing."""
    y = rng.choice(CLASSES, n, p=[0.4, 0.3, 0.2, 0.1])
    means = 0.4 * rng.normal(size=(CLASSES, DIM))
    return (rng.normal(size=(n, DIM)) * [0.1, 0.2, 0.3]) + means[y] + 0.05, y


def test_the_metric_is_that_of_the_classes() -> None:
    """Without noise: W is what the scatter of the classes gives by a library of linear algebra."""
    x, y = shapes(np.random.default_rng(1), 4000)
    rows = [
        naive.class_contribution(row.tolist(), int(place), CLASSES) for row, place in zip(x, y, strict=True)
    ]
    mean = np.mean(rows, axis=0)
    variance = 1e-16
    found = naive.matrix(metric_of(mean, DIM, CLASSES, variance))
    shares = np.bincount(y) / len(y)
    means = np.array([x[y == k].mean(axis=0) for k in range(CLASSES)])
    within = 2.0 * np.mean([np.outer(v, v) for v in x - means[y]], axis=0)
    apart = sum(
        shares[a] * shares[b] * np.outer(means[a] - means[b], means[a] - means[b])
        for a in range(CLASSES)
        for b in range(CLASSES)
    ) / (1.0 - (shares**2).sum())
    wanted = np.linalg.inv(within) - np.linalg.inv(within + apart)
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    # Null slots are slots: the same records among as many null ones give the same metric.
    assert naive.matrix(metric_of(mean / 2, DIM, CLASSES, variance)) == pytest.approx(
        wanted, rel=1e-5, abs=1e-5
    )
    # Where fewer than two classes stand out of the noise there is none.
    assert not metric_of(mean, DIM, CLASSES, 1.0).any()


def test_the_noise_of_class_means_is_no_scatter() -> None:
    """Classes that do not differ: what noise makes of them is subtracted again, in the mean."""
    rng = np.random.default_rng(2)
    d, variance = 6, 1e-4
    shares = np.full(CLASSES, 0.25)
    second = 0.2 * np.eye(d)
    triangle = second[np.tril_indices(d)]
    mean = np.concatenate((triangle, np.zeros(CLASSES * d), shares / 2))
    sizes = []
    for variance_given in (variance, 1e-12):  # the mutant knows of no noise
        traces = [
            np.trace(
                naive.matrix(metric_of(mean + 1e-2 * rng.normal(size=len(mean)), d, CLASSES, variance_given))
            )
            for _ in range(60)
        ]
        sizes.append(float(np.mean(traces)))
    assert sizes[0] < 0.6 * sizes[1]


def test_classes_are_declared() -> None:
    model = metric.PairFTRL(horizon=500, features=["a", "b"], classes=["x", "y"])
    assert isinstance(model.run.state, MetricMomentsState)
    assert model.pair_loss == losses.Square()
    assert model.run.state.plan.dim == 3 + 2 * 2 + 2
    assert "one release only, of means and variances; the later" in model.privacy.mechanism
    for options in (
        {"warmup": 0},
        {"horizon": 99},
        {"entity": EntityLimit(2)},
        {"mechanism": privacy.PairGradients()},
    ):
        parameters: dict[str, Any] = {"features": ["a"], "classes": [1, 2], **options}
        assert not isinstance(metric.PairFTRL(**parameters).run.state, MomentsState)
    assert not isinstance(metric.PairFTRL(features=["a"]).run.state, MomentsState)
    with pytest.raises(ConfigError, match="classes="):
        metric.PairFTRL(mechanism=privacy.SecondMoments())
    for mechanism in ("magic", privacy.DecayedMoments(9)):
        with pytest.raises(ConfigError, match="mechanism is"):
            metric.PairFTRL(classes=["x", "y"], mechanism=mechanism)  # type: ignore[arg-type]
    for classes, problem in (
        *(("xy", "classes is 'xy'"), ({"x", "y"}, "classes is {"), (3, "classes is 3")),
        *((["x"], "the number of classes is 1"), (list(range(257)), "the number of classes is 257")),
        *(([0, "a", "0"], "two of classes are equal as labels: 0 and '0'"), ([None, "x"], "classes is ")),
    ):
        with pytest.raises(ConfigError, match=problem):
            metric.PairFTRL(classes=classes)  # type: ignore[arg-type]


@pytest.mark.parametrize("mechanism", [privacy.SecondMoments(), privacy.PairGradients()], ids=str)
def test_a_label_of_no_declared_class_makes_a_null_slot(mechanism: Any) -> None:
    states = []
    for label in (None, "z", 3, math.nan, ["x"]):
        model = metric.PairFTRL(
            features=["a"], classes=["x", "y"], warmup=4, mechanism=mechanism, noise_key=KEY
        )
        model.learn_one({"a": 0.5}, "x")
        model.learn_one({"a": 0.5}, label)
        assert model.null_slots == 1
        states.append({**model.to_state(), "chain": None})
    assert all(frozen_of(state) == frozen_of(states[0]) for state in states)


def frozen_of(state: Any) -> str:
    return repr({name: value for name, value in state.items() if name != "chain"})


def test_without_classes_it_goes_on_from_its_state() -> None:
    model = metric.PairFTRL(1.0, 1e-3, 300, warmup=20, features=NAMES, noise_key=KEY)
    for x, y in stream(model, 60):
        model.learn_one(x, y)
    saved = model.to_state()
    other = model.clone()
    other.load_state(saved)
    assert frozen(other) == frozen(model)


def test_neighbours_are_better_found_than_by_gradients() -> None:
    """Moments that are summed up wrongly still learn, but no better than gradients."""
    rng = np.random.default_rng(5)
    n, d = 6000, 24
    means = 1.5 * rng.normal(size=(4, d)) * (np.arange(d) < 2)
    mechanisms = {"moments": privacy.SecondMoments(), "gradients": privacy.PairGradients()}
    hits: dict[str, list[float]] = {name: [] for name in mechanisms}
    for seed in range(3):
        y = rng.integers(0, 4, n)
        x = means[y] + rng.normal(size=(n, d))
        for name, found in hits.items():
            model = metric.PairFTRL(
                0.5, 1e-3, 5000, features=list(range(d)), bounds=dict.fromkeys(range(d), (-5, 5)),
                classes=[0, 1, 2, 3], mechanism=mechanisms[name], seed=seed,
            )  # fmt: skip
            model.learn_many(x[:5000], y[:5000])
            rows = model.transform_many(x)
            near = KNeighborsClassifier(9).fit(rows[:5000], y[:5000])
            found.append(float(near.score(rows[5000:], y[5000:])))
    # Measured .574 and .534.
    assert np.mean(hits["moments"]) > np.mean(hits["gradients"]) + 0.02
