"""ranking.PairOGD: against its reference implementation, its labels, and what it learns."""

from __future__ import annotations

import math
import pickle
import random
from decimal import Decimal
from typing import Any

import naive
import numpy as np
import pandas as pd
import polars as pl
import pytest
from harness.every_loss import MARGIN
from harness.support import in_one_case
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from river import base

from streampair import auc, buffers, losses, privacy, ranking
from streampair.errors import ConfigError, RecordError, SnapshotError

ENTROPY = losses.MinimumErrorEntropy(0.5)
eighths = st.integers(-32, 32).map(lambda v: v / 8)
grades = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0])
BUFFERS = [buffers.FIFO(3), buffers.Reservoir(3), buffers.FullHistory()]
DECLARED = ranking.PairOGD(relevance=(-1, 1))


def frozen(model: base.Estimator) -> bytes:
    return pickle.dumps(model.to_state())  # type: ignore[attr-defined]


def stream(n: int, d: int = 4, seed: int = 0) -> list[tuple[dict[str, float], float]]:
    """Relevance linear in the features, with noise."""
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        x = {f"f{i}": rng.gauss(0, 1) for i in range(d)}
        out.append((x, max(-1.0, min(1.0, 0.5 * x["f0"] - 0.2 * x["f1"] + rng.gauss(0, 0.1)))))
    return out


@pytest.mark.parametrize("buffer", BUFFERS, ids=str)
@pytest.mark.parametrize("loss", [*MARGIN, ENTROPY], ids=str)
@settings(max_examples=40)
@given(data=st.data())
def test_against_the_reference(loss: losses.PairLoss, buffer: buffers.Buffer, data: st.DataObject) -> None:
    d = data.draw(st.integers(1, 4))
    records = data.draw(
        st.lists(st.tuples(st.lists(eighths, min_size=d, max_size=d), grades), min_size=1, max_size=15)
    )
    rate = data.draw(st.sampled_from([None, 0.05, 2.0]))
    radius = data.draw(st.sampled_from([0.1, 1.0, 30.0]))
    l2 = data.draw(st.sampled_from([0.0, 0.25]))
    policy = {0: "fifo", 1: "reservoir", 3: "full"}[buffer.code]
    reference = naive.PairOGD(d, type(loss).__name__, policy, buffer.size, rate, radius, l2, 7, loss.width)
    options: dict[str, Any] = {"learning_rate": rate, "radius": radius, "l2": l2, "average": False, "seed": 7}
    model = ranking.PairOGD(loss, buffer, scale=None, **options)
    for x, y in records:
        named = {f"f{i}": v for i, v in enumerate(x)}
        assert model.predict_one(named) == pytest.approx(naive.dot(reference.last, x), rel=1e-9, abs=1e-9)
        model.learn_one(named, y)
        reference.learn(x, y)
        assume(reference.nearest_kink > 1e-9 or not isinstance(loss, losses.Hinge))
    assert model.weights_vector == pytest.approx(np.array(reference.last), rel=1e-9, abs=1e-9)


def test_two_grades_are_two_classes() -> None:
    """With the relevances -1 and 1 it is auc.PairOGD with the same settings, bit for bit."""
    rank, classify = ranking.PairOGD(seed=1), auc.PairOGD(learning_rate=None, radius=1.0, seed=1)
    for x, y in stream(200):
        rank.learn_one(x, 1.0 if y > 0 else -1.0)
        classify.learn_one(x, y > 0)
        assert rank.score_one(x) == rank.predict_one(x) == classify.score_one(x)


@pytest.mark.parametrize("loss", [*MARGIN, ENTROPY], ids=str)
def test_it_ranks(loss: losses.PairLoss) -> None:
    model = ranking.PairOGD(loss, buffers.FIFO(16))
    for x, y in stream(2000):
        model.learn_one(x, y)
    held_out = stream(300, seed=1)
    scores = np.array([model.score_one(x) for x, _ in held_out])
    grades = np.array([y for _, y in held_out])
    gaps = np.subtract.outer(scores, scores) * np.subtract.outer(grades, grades)
    assert np.mean(gaps[np.triu_indices(300, 1)] > 0) > 0.9


def test_minimum_error_entropy_is_a_regression_that_outliers_hardly_move() -> None:
    robust = ranking.PairOGD(losses.MinimumErrorEntropy(0.2), buffers.FIFO(8))
    plain = ranking.PairOGD(losses.MinimumErrorEntropy(1e3), buffers.FIFO(8))
    for x, y in stream(5000, d=2):
        # One label in ten is the upper end of the scale wherever f1 is large: no outlier without pull.
        wrong = x["f1"] > 1.28
        for model in (robust, plain):
            model.learn_one(x, 1.0 if wrong else y)
    wanted = np.array([0.5, -0.2])
    far, near = (np.linalg.norm(m.weights_vector - wanted) for m in (plain, robust))
    assert near < far / 2


# ---- labels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [1, True, np.float32(1.0), np.int64(1), Decimal(1)], ids=repr)
def test_every_real_number_will_do(label: Any) -> None:
    a, b = ranking.PairOGD(seed=0), ranking.PairOGD(seed=0)
    for x, y in stream(5):
        for model, end in ((a, label), (b, 1.0)):
            model.learn_one(x, y)
            model.learn_one(x, end)
    assert frozen(a) == frozen(b)


@in_one_case(
    ("model", "label", "message"),
    [
        *(
            (model, label, message)
            for model in (ranking.PairOGD(), DECLARED)
            for label, message in (
                (None, "unknown"),
                (math.nan, "unknown"),
                (np.float64("nan"), "unknown"),
                (math.inf, "not a number"),
                ("high", "not a number"),
                (np.array([0.5, 0.5]), "not a number"),
                (1j, "not a number"),
            )
        ),
        (DECLARED, 1.0001, "not a number from -1 to 1"),
        (DECLARED, -3, "not a number from -1 to 1"),
        (ranking.PairOGD(), 1.0001e50, r"not a number from -1e\+50 to 1e\+50"),
        (ranking.PairOGD(), -(10**400), "not a number"),
        (ranking.PairOGD(losses.Square()), -1.1e10, r"not a number from -1e\+10 to 1e\+10"),
    ],
)
def test_bad_labels_change_nothing(model: ranking.PairOGD, label: Any, message: str) -> None:
    model = model.clone()
    for x, y in stream(5):
        model.learn_one(x, y)
    before = frozen(model)
    for x in ({"f0": 1.0}, {"new": 1.0}):
        with pytest.raises(RecordError, match=message) as caught:
            model.learn_one(x, label)
        assert caught.value.stage == "label"
        assert "Fix: " in str(caught.value)
        assert frozen(model) == before


@pytest.mark.parametrize("label", [-3, 100, 1e50, -1e50, Decimal("1.7e18")], ids=repr)
def test_any_real_number_is_a_relevance(label: Any) -> None:
    """The order of a pair decides, or the difference: neither needs a range."""
    model = ranking.PairOGD(average=False)
    model.learn_one({"a": 0.0}, 0.5)
    model.learn_one({"a": 1.0}, label)
    assert math.copysign(1.0, model.weights["a"]) == math.copysign(1.0, label)


@pytest.mark.parametrize("buffer", BUFFERS, ids=str)
@pytest.mark.parametrize("loss", [*MARGIN, ENTROPY], ids=str)
def test_between_minus_one_and_one_a_range_changes_no_bit(
    loss: losses.PairLoss, buffer: buffers.Buffer
) -> None:
    zeros = dict.fromkeys(("f0", "f1", "f2", "f3"), 0.0)
    records = [*stream(60), ({**zeros, "f0": 1.0}, -0.0), ({**zeros, "f0": 2.0}, 0.0)]
    records += [({**zeros, "f0": -1.0}, -1.0), ({**zeros, "f1": 1.0}, 1.0)]
    plain = ranking.PairOGD(loss, buffer, seed=1)
    declared = ranking.PairOGD(loss, buffer, seed=1, relevance=(-1.0, 1.0))
    many = plain.clone()
    for x, y in records:
        plain.learn_one(x, y)
        declared.learn_one(x, y)
    frame = pd.DataFrame([x for x, _ in records])
    many.learn_many(frame, pd.Series([y for _, y in records]))
    assert declared.weights_vector.tolist() == plain.weights_vector.tolist()
    assert frozen(plain) == frozen(many)
    with pytest.raises(SnapshotError, match=r"relevance=\(-1.0, 1.0\).*relevance=None"):
        plain.clone().load_state(declared.to_state())
    with pytest.raises(SnapshotError, match=r"relevance=None.*relevance=\(-1.0, 1.0\)"):
        declared.clone().load_state(plain.to_state())


@pytest.mark.parametrize("buffer", [*BUFFERS, buffers.FIFO(40)], ids=str)
@pytest.mark.parametrize("loss", [*MARGIN, ENTROPY], ids=str)
@pytest.mark.parametrize("rate", [None, 1e12])
def test_nothing_overflows(loss: losses.PairLoss, buffer: buffers.Buffer, rate: float | None) -> None:
    """With the largest relevances, features, weights, steps and ridge there can be."""
    most = 1e10 if loss in (losses.SquaredHinge(), losses.Square()) else 1e50
    model = ranking.PairOGD(loss, buffer, rate, radius=1e12, l2=1e12, average=False, seed=0)
    rng = random.Random(0)
    for _ in range(300):
        x = {f"f{i}": rng.choice((-1e50, 1e50, 0.0, 1.0)) for i in range(50)}
        model.learn_one(x, rng.choice((-most, most, 0.0, 1.0)))
        assert math.isfinite(model.score_one(x))
    state = model.to_state()
    assert np.isfinite(state["w"]).all()
    if rate is not None and loss != ENTROPY:
        # Every step leaves the ball; where its length overflows, the projection gives 0.
        assert math.hypot(*state["w"].tolist()) == pytest.approx(1e12)
    assert all(math.isfinite(value) for value in state["scalars"].values())
    model.clone().load_state(state)


def test_the_relevance_of_a_frame_needs_no_range() -> None:
    records = [(x, 1000.0 * y) for x, y in stream(60)]
    one, many = ranking.PairOGD(), ranking.PairOGD()
    for x, y in records:
        one.learn_one(x, y)
    X, y = pd.DataFrame([x for x, _ in records]), pd.Series([y for _, y in records])
    many.learn_many(X, y)
    assert one.weights == many.weights
    before = frozen(many)
    with pytest.raises(RecordError, match="in row 1, the relevance is"):
        many.learn_many(X[:2], pd.Series([0.0, 1e51]))
    assert frozen(many) == before


def test_a_declared_range() -> None:
    """Grades from 0 to 4 are the same as grades scaled by hand."""
    declared, by_hand = ranking.PairOGD(relevance=(0, 4), seed=0), ranking.PairOGD(seed=0)
    for i, (x, _) in enumerate(stream(50)):
        declared.learn_one(x, i % 5)
        by_hand.learn_one(x, (i % 5 - 2) / 2)
    assert declared.weights == by_hand.weights
    with pytest.raises(RecordError, match=r"5, not a number from 0 to 4.*relevance=\(0, 4\)"):
        declared.learn_one({"f0": 1.0}, 5)
    # Rounding does not leave [-1, 1], which constants of losses rely on.
    for low, high in ((0.1, 0.7), (-1e-9, 0.3), (1000.0, 1000.001)):
        uneven = ranking.PairOGD(relevance=(low, high))
        assert uneven._task.label(low) == pytest.approx(-1.0)
        assert uneven._task.label(high) == pytest.approx(1.0)
        assert -1.0 <= uneven._task.label(low) <= uneven._task.label(high) <= 1.0


@pytest.mark.parametrize(
    "bad", [3, (1, 1), (1, 0), (0, math.inf), (math.nan, 1), (1e16, 1e16 + 2), ("a", "b"), (1, 2, 3)]
)
def test_bad_ranges(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"relevance is .*Fix: "):
        ranking.PairOGD(relevance=bad)


@pytest.mark.parametrize("make", [ranking.PairFTRL, ranking.OnPairStrC, ranking.OnPairC])
def test_private_learners_need_a_range(make: Any) -> None:
    """Their noise is scaled to it."""
    with pytest.raises(ConfigError, match=r"relevance is None.*Fix: give the lowest and the highest"):
        make(epsilon=1.0, delta=1e-4, horizon=5000, relevance=None)


@pytest.mark.parametrize("backend", [pd, pl], ids=lambda b: b.__name__)
def test_frames(backend: Any) -> None:
    records = stream(60)
    one, many = ranking.PairOGD(relevance=(-2, 2), seed=0), ranking.PairOGD(relevance=(-2, 2), seed=0)
    for x, y in records:
        one.learn_one(x, y)
    X, y = backend.DataFrame([x for x, _ in records]), backend.Series("grade", [y for _, y in records])
    if backend is pd:
        y = pd.Series([y for _, y in records], name="grade")
    many.learn_many(X, y)
    assert one.weights == many.weights
    array = ranking.PairOGD(relevance=(-2, 2), seed=0)
    array.learn_many(np.array([list(x.values()) for x, _ in records]), np.array([y for _, y in records]))
    assert list(array.weights.values()) == list(one.weights.values())
    predicted = many.predict_many(X)
    assert list(predicted) == [one.predict_one(x) for x, _ in records] == list(many.score_many(X))
    assert predicted.name == "grade"
    before = frozen(many)
    for wrong in (2.5, None):
        labels = backend.Series([0.0, wrong, 0.0])
        with pytest.raises(RecordError, match="in row 1, the relevance is"):
            many.learn_many(X[:3], labels)
    assert frozen(many) == before


def test_only_ranking_takes_the_minimum_error_entropy() -> None:
    with pytest.raises(ConfigError, match=r"compares errors.*Fix: .*ranking"):
        auc.PairOGD(loss=ENTROPY)
    with pytest.raises(ConfigError, match=r"compares errors.*Fix: .*ranking"):
        auc.PairFTRL(epsilon=1.0, delta=1e-5, mechanism=privacy.PairGradients(loss=ENTROPY))
