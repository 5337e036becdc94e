"""Learners of a table through scikit-learn's interface, and what they say to bad input."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from streampair import batch, losses
from streampair.batch.base import TableLearner
from streampair.errors import ConfigError

LEARNERS: list[Any] = [
    made for made in (getattr(batch, name) for name in batch.__all__) if issubclass(made, TableLearner)
]
PRIVATE = LEARNERS


def table(n: int = 400, seed: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.4
    return rng.normal(size=(n, 3)) / 4 + 0.3 * y[:, None], y


def quick(learner: Any, **given: Any) -> Any:
    """A learner with few steps."""
    made = learner(**given)
    return made.set_params(steps=5) if "steps" in made.get_params() else made


@pytest.mark.parametrize("learner", LEARNERS)
def test_checks_of_scikit_learn(learner: Any) -> None:
    check_estimator(quick(learner), on_skip=None)


def test_checks_of_scikit_learn_for_metrics() -> None:
    check_estimator(quick(batch.DPGDSC, task="metric"), on_skip=None)


@pytest.mark.parametrize("learner", LEARNERS)
def test_with_much_data_noise_matters_little(learner: Any) -> None:
    X, y = table(4000)
    model = learner(8.0, 1e-5, **({"steps": 50} if learner is batch.DPEGD else {})).fit(X, y)
    assert model.score(X, y) > 0.85
    assert set(model.predict(X)) <= {False, True}
    assert model.decision_function(X[:2]).shape == (2,)


@pytest.mark.parametrize("learner", PRIVATE)
def test_the_report_is_the_accountants(learner: Any) -> None:
    X, y = table()
    model = quick(learner)
    assert model.privacy is None
    report = model.fit(X, y).privacy
    assert report.kind == "holds"
    assert 0.98 < report.epsilon_spent <= 1.0 == report.epsilon_budget
    assert report.releases == sum(line["releases"] for line in report.card)
    assert all(line["floating_point_delta"] < 1e-8 for line in report.card)
    assert "The table was learned once" in str(report)
    assert "void (fixed seed)" in str(quick(learner, random_state=1).fit(X, y).privacy)


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_seed_repeats_and_nothing_else_does(learner: Any) -> None:
    X, y = table(60)
    one, other = (quick(learner, random_state=np.random.RandomState(3)).fit(X, y) for _ in range(2))
    assert (one.coef_ == other.coef_).all()
    assert (quick(learner).fit(X, y).coef_ != quick(learner).fit(X, y).coef_).any()


@pytest.mark.parametrize("learner", LEARNERS)
def test_copies(learner: Any) -> None:
    X, y = table(60)
    model = quick(learner, loss=losses.SquaredHinge(), bounds=(-1, [1, 2, 3])).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert (again.decision_function(X) == model.decision_function(X)).all()
    assert again.privacy == model.privacy
    assert clone(model).privacy is None


def test_a_metric_is_learned() -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(-0.5, 0.5, (300, 3))
    y = (X[:, 0] > 0).astype(int)  # one feature matters
    model = batch.DPGDSC(20.0, 1e-3, task="metric", steps=20).fit(X, y)
    assert model.metric_.shape == (3, 3)
    assert model.metric_[0, 0] == max(model.metric_.ravel())
    u = (X[:1] - X[1:2])[0]
    positive = np.linalg.norm(model.transform(X[:1]) - model.transform(X[1:2]))
    values, vectors = np.linalg.eigh(model.metric_)
    part = vectors @ np.diag(np.maximum(values, 0)) @ vectors.T
    assert positive == pytest.approx(math.sqrt(u @ part @ u))
    assert not hasattr(model, "predict")
    assert not hasattr(batch.DPGDSC(), "transform")
    pipeline = make_pipeline(model, KNeighborsClassifier(3)).fit(X, y)
    assert pipeline.score(X, y) > 0.9
    # Three classes are no harder than two.
    assert quick(batch.DPGDC, task="metric").fit(X, np.arange(300) % 3).classes_.tolist() == [0, 1, 2]


def test_a_network_ranks_what_no_line_does() -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(-0.6, 0.6, (2000, 2))
    y = np.abs(X[:, 0]) > 0.3
    model = batch.GradientPerturbation(8.0, 1e-4, loss=losses.Hinge(), hidden=16, radius=20.0, steps=100)
    assert model.fit(X, y).score(X, y) > 0.9
    assert model.set_params(hidden=0).score(X, y) > 0.9  # what was fitted stays what it is
    assert batch.DPGDC(8.0, 1e-4, steps=5).fit(X, y).score(X, y) < 0.7


def test_bounds_are_those_of_the_online_learners() -> None:
    X, y = table(60)
    one = quick(batch.DPGDSC, random_state=1, bounds=(-2.0, [2.0, 4.0, 2.0])).fit(X, y)
    scaled = (2 * X - np.array([0.0, 2.0, 0.0])) / np.array([4.0, 6.0, 4.0])
    other = quick(batch.DPGDSC, random_state=1).fit(scaled, y)
    assert one.coef_ == pytest.approx(other.coef_)
    assert "bounds are taken as public" in one.privacy.details


def test_a_grid_of_parameters_can_be_searched() -> None:
    X, y = table(120)
    assert len(cross_val_score(quick(batch.DPGDC), X, y, cv=3)) == 3


X, Y = table(20)
WITH_NAN = np.where(np.arange(60).reshape(20, 3) == 7, np.nan, X)


@pytest.mark.parametrize(
    ("given", "rows", "labels", "message"),
    [
        ({}, X, np.zeros(20), "one class, and pairs need two. Fix: give records of both"),
        ({}, X[:1], Y[:1], "n_samples = 1.*Fix: give two records"),
        ({}, WITH_NAN, Y, "NaN or infinity. Fix: leave out or fill in"),
        ({}, np.where(np.isnan(WITH_NAN), np.inf, X), Y, "NaN or infinity. Fix"),
        ({}, X, np.arange(20) % 3, r"Only binary.*Fix: say which records should rank high"),
        ({"epsilon": 0.0}, X, Y, "epsilon is 0.0. Fix: give a finite number above 0"),
        ({"epsilon": -1}, X, Y, "epsilon is -1. Fix"),
        ({"epsilon": "1"}, X, Y, "epsilon is '1', not a number. Fix"),
        ({"delta": 1.0}, X, Y, "delta is 1.0. Fix"),
        ({"radius": 0.0}, X, Y, "radius is 0.0. Fix"),
        ({"radius": 1e3}, X, Y, "radius is 1000.0. Fix"),
        ({"task": "rank"}, X, Y, 'task is .rank.. Fix: give "auc" or "metric"'),
        ({"calibration": "loose"}, X, Y, "calibration is .loose.. Fix"),
        ({"bounds": (1.0, 0.0)}, X, Y, "lower one is not below the upper one. Fix"),
        ({"loss": losses.MinimumErrorEntropy(1.0)}, X, Y, "for relevances. Fix"),
    ],
)
@pytest.mark.parametrize("learner", LEARNERS)
def test_bad_input_is_told_with_what_to_do(
    learner: Any, given: dict[str, Any], rows: Any, labels: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        learner(**given).fit(rows, labels)


@pytest.mark.parametrize(
    ("learner", "given", "message"),
    [
        (batch.DPGDSC, {"l2": 0.0}, "l2 is 0.0. Fix: give a finite number above 0, or use DPGDC"),
        (batch.DPGDSC, {"steps": 0}, "steps is 0. Fix"),
        (batch.DPGDC, {"output": "best"}, "output is .best.. Fix"),
        (batch.OffPairStrC, {"output": "best"}, "output is .best.. Fix"),
        (batch.OffPairStrC, {"l2": None}, "l2 is None. Fix"),
        (batch.DPEGD, {"learning_rate": 9.0}, "learning rate above 0"),
        (batch.GradientPerturbation, {"hidden": -1}, "hidden is -1. Fix"),
        (batch.GradientPerturbation, {"clip": 0.0}, "clip is 0.0. Fix"),
        (batch.GradientPerturbation, {"hidden": 2, "task": "metric"}, "not distances. Fix"),
        (batch.GradientPerturbation, {"hidden": 2, "loss": losses.Square()}, "has no bound.*Fix"),
        (batch.DPGDC2, {"learning_rate": -1.0}, "learning_rate is -1.0. Fix"),
        (batch.DPGDC2, {"delta": 0.0}, "delta is 0.*Fix: give a delta, or use DPGDC or DPEGD"),
    ],
)
def test_parameters_of_one_learner(learner: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        learner(**given).fit(X, Y)
