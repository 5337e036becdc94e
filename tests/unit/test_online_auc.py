"""OAM and SPAUC against their reference implementations, and their state."""

from __future__ import annotations

import pickle
import random
from typing import Any

import naive
import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from river import datasets, evaluate

from streampair import auc, losses
from streampair.errors import RecordError
from streampair.evaluation import RollingAUC
from streampair.kernels import scaling

eighths = st.integers(-32, 32).map(lambda v: v / 8)


@st.composite
def streams(draw: st.DrawFn) -> list[tuple[list[float], bool]]:
    d = draw(st.integers(1, 5))
    row = st.lists(eighths, min_size=d, max_size=d)
    return draw(st.lists(st.tuples(row, st.booleans()), min_size=1, max_size=25))


def named(x: list[float]) -> dict[str, float]:
    return {f"f{i}": v for i, v in enumerate(x)}


def check_weights(models: list[Any], reference: Any, records: list[tuple[list[float], bool]]) -> None:
    averaged, last = models
    for x, y in records:
        for model, weights in ((averaged, reference.average), (last, reference.last)):
            assert model.score_one(named(x)) == pytest.approx(naive.dot(weights, x), rel=1e-9, abs=1e-9)
            model.learn_one(named(x), y)
        reference.learn(x, 1.0 if y else -1.0)
        assume(getattr(reference, "nearest_kink", 1.0) > 1e-9)
        assume(getattr(reference, "least_gradient", 1.0) > 1e-9)  # as for PairOGD
        assert np.linalg.norm(last.weights_vector) <= reference.radius * (1 + 1e-12)
    assert averaged.weights_vector == pytest.approx(np.array(reference.average), rel=1e-9, abs=1e-9)
    assert last.weights_vector == pytest.approx(np.array(reference.last), rel=1e-9, abs=1e-9)


@given(
    streams(),
    st.sampled_from([0.01, 0.3]),
    st.integers(1, 4),
    st.sampled_from([0.2, 30.0]),
    st.integers(0, 2**53 - 1),
)
def test_oam_against_the_reference(
    records: list[tuple[list[float], bool]], rate: float, size: int, radius: float, seed: int
) -> None:
    models = [
        auc.OAM(rate, size, radius, scale=None, average=average, seed=seed) for average in (True, False)
    ]
    check_weights(models, naive.OAM(len(records[0][0]), rate, size, radius, seed), records)


@given(
    streams(), st.sampled_from([None, 0.05, 1.0]), st.sampled_from([0.2, 30.0]), st.sampled_from([0.0, 0.25])
)
def test_spauc_against_the_reference(
    records: list[tuple[list[float], bool]], rate: float | None, radius: float, l2: float
) -> None:
    models = [auc.SPAUC(rate, radius, l2, scale=None, average=average) for average in (True, False)]
    check_weights(models, naive.SPAUC(len(records[0][0]), rate, radius, l2), records)


def test_spaucs_terms_add_up_to_the_pair_loss() -> None:
    """With the true share and means, the mean gradient is p (1 - p) times that of the square pair loss."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.random(30) < 0.3
    w, p = rng.normal(size=3), y.mean()
    high, low = x[y].mean(axis=0).tolist(), x[~y].mean(axis=0).tolist()
    single = np.mean(
        [
            naive.spauc_gradient(w.tolist(), r.tolist(), 1.0 if s else -1.0, p, high, low)
            for r, s in zip(x, y, strict=True)
        ],
        axis=0,
    )
    u = 2.0 * (x[y][:, None] - x[~y][None]).reshape(-1, 3)
    pairs = (-2.0 * (1.0 - u @ w)) @ u / len(u)
    assert single == pytest.approx(p * (1 - p) * pairs)


@pytest.mark.parametrize(
    ("model", "loss"), [(auc.OAM(), losses.Hinge()), (auc.SPAUC(), losses.Square())], ids=str
)
def test_the_pair_loss_is_the_one_that_the_steps_are_on(model: Any, loss: losses.PairLoss) -> None:
    """After a positive at the origin, a negative makes a step along the slope of the loss, or none."""
    assert model.pair_loss == model.clone().pair_loss == loss
    rate, moves = 0.25, []
    for weight in (-3.0, -1.0, 0.0, 0.25, 0.5, 1.0, 3.0):
        learner = type(model)(learning_rate=rate, radius=30.0, scale=None, average=False)
        learner.learn_one({"a": 0.0}, True)
        learner._vectors()["w"][:] = weight
        scaling.weigh_all(learner._state)
        learner.learn_one({"a": -1.0}, False)
        moves.append(float(learner.weights_vector[0]) - weight)
    # The margin is 2 w.(0 - -1). SPAUC's term for one pair has the factor p (1 - p) = 1/4.
    share = 0.25 if loss == losses.Square() else 1.0
    slopes = loss.slope(2.0 * np.array([-3.0, -1.0, 0.0, 0.25, 0.5, 1.0, 3.0]))
    assert moves == pytest.approx((-rate * share * 2.0 * slopes).tolist())


LEARNERS = [
    auc.OAM(seed=3),
    auc.OAM(learning_rate=0.1, size=3, average=False, seed=1),
    auc.SPAUC(),
    auc.SPAUC(learning_rate=0.5, l2=0.1, average=False, positive=False),
]


@pytest.mark.parametrize("model", [auc.OAM(seed=1), auc.SPAUC()], ids=str)
def test_they_learn(model: Any) -> None:
    metric = RollingAUC(window=1250)
    evaluate.progressive_val_score(datasets.Phishing(), model, metric)
    assert metric.get() > 0.94


def stream(n: int, seed: int = 0) -> list[tuple[dict[str, float], bool]]:
    rng = random.Random(seed)
    out = []
    for t in range(n):
        x = {f"f{i}": rng.gauss(0, 1) for i in range(4 if t < n // 2 else 6)}  # two names come late
        out.append((x, rng.random() < 0.4))
    return out


def state_of(model: Any) -> bytes:
    return pickle.dumps(model.to_state())


@pytest.mark.parametrize("model", LEARNERS, ids=str)
def test_many_are_the_same_as_one_by_one(model: Any) -> None:
    records = stream(40)[:20]
    one, many = model.clone(), model.clone()
    for x, y in records:
        one.learn_one(x, y)
    frame, labels = pd.DataFrame([x for x, _ in records]), pd.Series([y for _, y in records])
    many.learn_many(frame, labels)
    assert state_of(one) == state_of(many)
    assert many.score_many(frame).tolist() == [one.score_one(x) for x, _ in records]
    before = state_of(many)
    for row, column in ((0, "f1"), (19, "f0")):
        broken = frame.copy()
        broken.loc[row, column] = np.inf
        with pytest.raises(RecordError, match=column):
            many.learn_many(broken, labels)
        with pytest.raises(RecordError):
            many.learn_one(broken.iloc[row].to_dict(), True)
    assert state_of(many) == before
