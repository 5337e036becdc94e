"""Weights from a table to a stream and back: online learners that go on, and fits that begin at weights."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness.much_budget import much_budget
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from streampair import auc, buffers, losses, metric, offline
from streampair.errors import ConfigError

BOUNDS = ([-2.0, -1.0, -4.0], [2.0, 3.0, 4.0])


def table(n: int = 3000, seed: int = 1) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.4
    X = 0.3 * rng.normal(size=(n, 3)) + np.outer(y, [0.3, -0.2, 0.0])
    return pd.DataFrame(np.clip(X, -1.0, 1.0), columns=["c", "a", "b"]), y


@pytest.mark.parametrize("bounds", [None, BOUNDS])
def test_an_online_learner_ranks_as_the_table_did(bounds: Any) -> None:
    X, y = table()
    model = offline.DPGDSC(4.0, 1e-5, bounds=bounds).fit(X, y)
    online = model.to_online(auc.PairOGD(radius=5.0))
    inside = np.linalg.norm(X.to_numpy(), axis=1) < 0.5  # records that nothing shortens
    scores = [online.score_one(x) for x in X[inside].to_dict("records")]
    apart = scores - model.decision_function(X[inside])
    assert np.ptp(apart) < 1e-9  # what bounds shift is the same for all
    assert online.weights == pytest.approx(model.weights_by_name())
    assert online.records == 0


def test_what_was_learned_is_not_thrown_away() -> None:
    """Without the records that it is worth, the first self-tuned step is as long as the ball is wide."""
    X, y = table()
    model = offline.DPGDSC(4.0, 1e-5, random_state=1).fit(X, y)  # lengths depend on the noise: .25 to .38
    moved = []
    for records in (None, 0):
        online = model.to_online(auc.PairOGD(average=False), records)
        before = online.weights_vector
        for x, label in zip(X[:40].to_dict("records"), y[:40], strict=True):
            online.learn_one(x, bool(label))
        moved.append(float(np.linalg.norm(online.weights_vector - before)))
    assert moved[0] < 0.25 < moved[1]


def test_a_start_helps_on_a_short_stream() -> None:
    X, y = table()
    model = offline.DPGDSC(4.0, 1e-5).fit(X, y)
    gains = []
    for seed in range(8):
        rows, labels = table(300, seed=10 + seed)
        areas = []
        for online in (model.to_online(auc.PairOGD()), auc.PairOGD()):
            scores = online.score_learn_many(rows, labels)
            areas.append(roc_auc_score(labels, np.asarray(scores)))
        gains.append(areas[0] - areas[1])
    assert np.mean(gains) > 2.0 * np.std(gains) / math.sqrt(len(gains))


@much_budget()
def test_a_metric_goes_on_and_back() -> None:
    X, y = table(400)
    model = offline.DPGDC(50.0, 1e-5, task="metric", bounds=BOUNDS, radius=4.0).fit(X, y)
    raw = model.weights_by_name()
    online = model.to_online(metric.PairOGD(psd=False, radius=10.0))
    assert online.weights == pytest.approx(raw)
    projected = model.to_online(metric.PairOGD(radius=10.0))
    assert np.linalg.eigvalsh(projected.metric_).min() > -1e-12
    again = offline.DPGDC(1.0, 1e-5, task="metric", bounds=BOUNDS, radius=4.0, start=online.weights)
    assert again.fit(X, y).privacy.notes[1].endswith("taken as public.")


@pytest.mark.parametrize("more", [{}, {"learning_rate": 0.5}, {"half_life": 50}])
def test_the_weights_last_in_copies_and_states(more: dict[str, Any]) -> None:
    X, y = table(500)
    one = offline.DPGDSC(4.0, 1e-5).fit(X, y).to_online(auc.PairOGD(seed=3, **more))
    two = auc.PairOGD(seed=3, **more)
    two.load_state(one.to_state())
    three = pickle.loads(pickle.dumps(one))
    for model in (one, two, three):
        model.learn_many(X, y)
    assert one.weights == two.weights == three.weights


@pytest.mark.parametrize("buffer", [buffers.FIFO(4), buffers.Reservoir(4), buffers.FullHistory()])
@pytest.mark.parametrize("loss", [losses.Hinge(), losses.Square()])
def test_the_average_of_a_start_alone_is_the_start(buffer: Any, loss: Any) -> None:
    online = auc.PairOGD(loss=loss, buffer=buffer)
    online.begin_at({"a": 0.3, "b": -0.4}, 100)
    for _ in range(3):
        online.learn_one({"a": 0.5, "b": 0.5}, True)  # of one class: no gradient
    assert online.weights == pytest.approx({"a": 0.3, "b": -0.4})


# ---- the other way round -------------------------------------------------------------------------------


def private(**more: Any) -> Any:
    X, y = table(2000, seed=7)
    model = auc.PairFTRL(2.0, 1e-4, 2000, features=["a", "b", "c"], **more)
    model.learn_many(X, y)
    return model


@pytest.mark.parametrize(
    "learner", [offline.DPGDSC, offline.DPGDC, offline.DPGDC2, offline.DPEGD, offline.GradientPerturbation]
)
@much_budget()
def test_a_fit_begins_where_it_is_told(learner: Any) -> None:
    """With steps of no size, it stays there: by name, by place, and from learners."""
    X, y = table(100)
    w = np.array([0.1, -0.1, 0.15])
    options = {"learning_rate": 1e-12, "steps": 1, "random_state": 1, "epsilon": 1e6, "bounds": BOUNDS}
    scale = 2.0 / (np.array(BOUNDS[1]) - BOUNDS[0])
    for start in (w, dict(zip(X.columns, w, strict=True))):
        model = learner(**options, start=start).fit(X, y)
        assert np.abs(model.coef_ - w / scale).max() < 1e-3
        assert "taken as public" in model.privacy.details
    ours = private()
    model = learner(**options, radius=100.0, start=ours).fit(X, y)
    design = ours.run.design
    slope = dict(zip(ours.feature_names, design.slope, strict=True))
    expected = [ours.weights[name] * slope[name] for name in X.columns] / scale
    assert np.abs(model.coef_ - expected).max() < 1e-3 * np.abs(expected).max() + 1e-3
    assert f"epsilon {ours.privacy.epsilon_spent:.6g}" in model.privacy.details
    assert "mu^2 adds up" in model.privacy.details
    fitted = offline.DPGDSC().fit(X, y)
    began = learner(**options, radius=100.0, start=fitted).fit(X, y)
    assert np.abs(began.coef_ * scale - fitted.coef_).max() < 1e-3
    assert clone(model).start is not None


def test_a_start_changes_no_noise_and_no_account() -> None:
    X, y = table(100)
    for learner in (offline.DPGDSC, offline.DPGDC2, offline.OffPairC):
        one, other = (learner(start=start).fit(X, y).privacy for start in (None, [0.5, 0.5, 0.5]))
        assert (one.epsilon_spent, one.noise_std, one.card) == (
            other.epsilon_spent,
            other.noise_std,
            other.card,
        )


def test_what_tells_of_records_is_no_start() -> None:
    X, y = table(100)
    open_one = auc.PairOGD()
    open_one.learn_many(X, y)
    for start, message in [
        (
            open_one,
            r"PairOGD, which is not private.*Fix: begin at a private learner such as PairFTRL, or give",
        ),
        (private(seed=1), r"PairFTRL of which nothing is guaranteed: void \(fixed seed\).*Fix"),
        (auc.PairFTRL(), "no features yet. Fix: let it learn"),
        (metric.PairFTRL(classes=[0, 1], features=["a"]), "another task. Fix"),
        (offline.DPGDSC(), "not fitted.*Fix: fit it first"),
        (offline.DPGDSC(random_state=1).fit(X, y), "nothing is guaranteed. Fix"),
        (offline.DPGDSC(task="metric").fit(X, y), "another task. Fix"),
        ([1.0], r"has the shape \(1,\).*needs \(3,\). Fix"),
        ([1.0, math.nan, 0.0], "not finite.*Fix"),
        ({"z": 1.0}, "weights of 'z', which the table has no column for. Fix"),
    ]:
        with pytest.raises(ConfigError, match=f"(?s){message}"):
            offline.DPGDC(start=start).fit(X, y)
    assert offline.DPGDC(start=open_one.weights).fit(X, y).privacy.kind == "holds"
    with pytest.raises(ConfigError, match=r"network begins at random weights.*Fix: leave it out"):
        offline.GradientPerturbation(hidden=2, start=[1.0, 0.0, 0.0]).fit(X, y)
    with pytest.raises(ConfigError, match=r"not symmetric.*Fix"):
        offline.DPGDC(task="metric", start=np.triu(np.ones((3, 3)))).fit(X, y)


def test_what_cannot_go_on_says_so() -> None:
    X, y = table(100)
    model = offline.DPGDC().fit(X, y)
    for learner, message in [
        (auc.PairFTRL(), "PairFTRL cannot go on.*Fix: give a new auc.PairOGD"),
        (metric.PairOGD(), "cannot go on.*Fix: give a new auc.PairOGD"),
        (auc.OAM(), "OAM begins at weights only as a new PairOGD. Fix"),
        (auc.PairOGD(radius=1e-6), "beyond the radius 1e-06. Fix: make the learner with radius="),
    ]:
        with pytest.raises(ConfigError, match=message):
            model.to_online(learner)
    used = auc.PairOGD()
    used.learn_one({"a": 1.0}, True)
    for options, message in [
        ((used, {"a": 0.1}, 0), "only as a new PairOGD. Fix"),
        ((auc.PairOGD(), {"a": 0.1}, -1), "records is -1. Fix"),
        ((auc.PairOGD(), {"a": math.inf}, 0), "not finite.*Fix"),
        ((auc.PairOGD(), {}, 0), "there are none. Fix"),
    ]:
        with pytest.raises(ConfigError, match=message):
            options[0].begin_at(*options[1:])
    network = offline.GradientPerturbation(hidden=2).fit(X, y)
    with pytest.raises(ConfigError, match=r"not linear. Fix: use hidden=0"):
        network.to_online(auc.PairOGD())
