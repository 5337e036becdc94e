"""Learners of a table through scikit-learn's interface, and what they say to bad input."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from harness.much_budget import much_budget
from harness.support import in_one_case
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from streampair import losses, offline
from streampair.errors import ConfigError
from streampair.offline.base import TableLearner

LEARNERS: list[Any] = [
    made for made in (getattr(offline, name) for name in offline.__all__) if issubclass(made, TableLearner)
]
PRIVATE = LEARNERS


def table(n: int = 400, seed: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.4
    return rng.normal(size=(n, 3)) / 4 + 0.3 * y[:, None], y


def quick(learner: Any, **options: Any) -> Any:
    """A learner with few steps."""
    made = learner(**options)
    return made.set_params(steps=5) if "steps" in made.get_params() else made


@pytest.mark.filterwarnings("ignore:more than half of the records")
@pytest.mark.parametrize("learner", LEARNERS)
def test_checks_of_scikit_learn(learner: Any) -> None:
    """scikit-learn's own checks, some fifty fits for each learner."""
    check_estimator(quick(learner), on_skip=None)


@pytest.mark.filterwarnings("ignore:more than half of the records")
def test_checks_of_scikit_learn_for_metrics() -> None:
    check_estimator(quick(offline.DPGDSC, task="metric"), on_skip=None)


@pytest.mark.parametrize("learner", LEARNERS)
def test_with_much_data_noise_matters_little(learner: Any) -> None:
    X, y = table(4000)
    model = learner(8.0, 1e-5, **({"steps": 50} if learner is offline.DPEGD else {})).fit(X, y)
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
    model = offline.DPGDSC(20.0, 1e-3, task="metric", steps=20).fit(X, y)
    assert model.metric_.shape == (3, 3)
    assert model.metric_[0, 0] == max(model.metric_.ravel())
    u = (X[:1] - X[1:2])[0]
    positive = np.linalg.norm(model.transform(X[:1]) - model.transform(X[1:2]))
    values, vectors = np.linalg.eigh(model.metric_)
    part = vectors @ np.diag(np.maximum(values, 0)) @ vectors.T
    assert positive == pytest.approx(math.sqrt(u @ part @ u))
    assert not hasattr(model, "predict")
    assert not hasattr(offline.DPGDSC(), "transform")
    pipeline = make_pipeline(model, KNeighborsClassifier(3)).fit(X, y)
    assert pipeline.score(X, y) > 0.9
    # Three classes are no harder than two.
    assert quick(offline.DPGDC, task="metric").fit(X, np.arange(300) % 3).classes_.tolist() == [0, 1, 2]


def test_a_network_ranks_what_no_line_does() -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(-0.6, 0.6, (2000, 2))
    y = np.abs(X[:, 0]) > 0.3
    model = offline.GradientPerturbation(8.0, 1e-4, loss=losses.Hinge(), hidden=16, radius=20.0, steps=100)
    assert model.fit(X, y).score(X, y) > 0.9
    assert model.set_params(hidden=0).score(X, y) > 0.9  # what was fitted stays what it is
    assert offline.DPGDC(8.0, 1e-4, steps=5).fit(X, y).score(X, y) < 0.7


def test_bounds_are_those_of_the_online_learners() -> None:
    X, y = table(60)
    one = quick(offline.DPGDSC, random_state=1, bounds=(-2.0, [2.0, 4.0, 2.0])).fit(X, y)
    scaled = (2 * X - np.array([0.0, 2.0, 0.0])) / np.array([4.0, 6.0, 4.0])
    other = quick(offline.DPGDSC, random_state=1).fit(scaled, y)
    assert one.coef_ == pytest.approx(other.coef_)
    assert "bounds are taken as public" in one.privacy.details


def unscaled(n: int = 4000) -> tuple[Any, Any, tuple[Any, Any]]:
    """Ten features of sizes from .01 to 1000 around centres of their own, and public bounds, too wide."""
    rng = np.random.default_rng(1)
    y = rng.random(n) < 0.3
    size, centre = 10.0 ** np.linspace(-2.0, 3.0, 10), rng.normal(size=10)
    X = rng.normal(size=(n, 10)) + 0.5 * y[:, None] * (np.arange(10) < 6)
    return (X + centre) * size, y, ((centre - 8.0) * size, (centre + 8.0) * size)


@much_budget()
def test_an_unscaled_table_needs_bounds_and_the_error_says_so() -> None:
    X, y, bounds = unscaled()
    with pytest.warns(
        UserWarning, match=r"(?s)longer than 1.*drown the others. Fix: give bounds=\(low, high\)"
    ):
        raw = offline.DPGDSC(1000.0, 1e-6).fit(X, y).score(X, y)
    assert raw < 0.7
    assert offline.DPGDSC(4.0, 1e-6, bounds=bounds).fit(X, y).score(X, y) > 0.76


def test_other_scales_that_leave_little_are_reported() -> None:
    """A fit on features that their scale has flattened, without a warning."""
    X, y, bounds = unscaled(400)
    narrow = (bounds[0], np.asarray(bounds[0]) + 1e-3)
    with pytest.warns(UserWarning, match="beyond their bounds: they are shortened"):
        offline.DPGDSC(bounds=narrow).fit(X, y)
    with pytest.warns(UserWarning, match="no record is longer than 0.1"):
        offline.DPGDSC().fit(1e-6 * X, y)
    with pytest.warns(UserWarning, match="longer than 1.*Fix: scale the features"):
        offline.PairSGD().fit(X, y)
    with pytest.warns(UserWarning, match="longer than 1.*Fix: give bounds"):
        offline.DPPMetricLearner().fit(X, y)


@much_budget()
def test_weights_by_name_are_of_the_features_as_they_came() -> None:
    X, y, bounds = unscaled()
    model = offline.DPGDSC(50.0, 1e-6, bounds=bounds, radius=3.0).fit(X, y)
    raw = X @ np.array(list(model.weights_by_name().values()))
    assert np.corrcoef(raw, model.decision_function(X))[0, 1] > 0.95  # but for what the ball shortens
    again = offline.DPGDSC(start=model, bounds=bounds, steps=1, learning_rate=1e-12, radius=3.0)
    assert again.fit(X, y).privacy.notes[1].startswith("It begins at what a DPGDSC has released")


@pytest.mark.parametrize("learner", LEARNERS)
def test_probabilities(learner: Any) -> None:
    X, y = table()
    labels = np.where(y, "yes", "no")
    model = quick(learner).fit(X, labels)
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (len(X), 2)
    assert probabilities.sum(axis=1) == pytest.approx(1.0)
    assert ((probabilities >= 0.0) & (probabilities <= 1.0)).all()
    assert (model.classes_[probabilities.argmax(axis=1)] == model.predict(X)).all()
    score = model.decision_function(X)
    assert (np.diff(probabilities[np.argsort(score), 1]) >= 0.0).all()


def test_public_records_calibrate_the_probabilities() -> None:
    """As docs/learners.md says: of two normal classes the log loss is then within .01 of the best one."""
    X, y, bounds = unscaled(8000)
    size = 10.0 ** np.linspace(-2.0, 3.0, 10)
    along = 0.5 * (np.arange(10) < 6)
    odds = (X - X[~y].mean(axis=0)) / size @ along - 0.5 * along @ along + math.log(0.3 / 0.7)
    best = log_loss(y, 1.0 / (1.0 + np.exp(-odds)))
    model = offline.PairSGD(bounds=bounds, random_state=1).fit(X, y)
    calibrated = CalibratedClassifierCV(FrozenEstimator(model)).fit(X, y)
    assert log_loss(y, calibrated.predict_proba(X)) - best < 0.01
    assert log_loss(y, model.predict_proba(X)) - best > 0.03


def test_a_grid_of_parameters_can_be_searched() -> None:
    X, y = table(120)
    assert len(cross_val_score(quick(offline.DPGDC), X, y, cv=3)) == 3


X, Y = table(20)
WITH_NAN = np.where(np.arange(60).reshape(20, 3) == 7, np.nan, X)


@in_one_case(
    ("options", "rows", "labels", "message"),
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
def test_bad_input_is_refused_with_a_fix(
    learner: Any, options: dict[str, Any], rows: Any, labels: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        learner(**options).fit(rows, labels)


@pytest.mark.parametrize(
    ("learner", "options", "message"),
    [
        (offline.DPGDSC, {"l2": 0.0}, "l2 is 0.0. Fix: give a finite number above 0, or use DPGDC"),
        (offline.DPGDSC, {"steps": 0}, "steps is 0. Fix"),
        (offline.DPGDC, {"output": "best"}, "output is .best.. Fix"),
        (offline.OffPairStrC, {"output": "best"}, "output is .best.. Fix"),
        (offline.OffPairStrC, {"l2": None}, "l2 is None. Fix"),
        (offline.DPEGD, {"learning_rate": 9.0}, "learning rate above 0"),
        (offline.GradientPerturbation, {"hidden": -1}, "hidden is -1. Fix"),
        (offline.GradientPerturbation, {"clip": 0.0}, "clip is 0.0. Fix"),
        (offline.GradientPerturbation, {"hidden": 2, "task": "metric"}, "not distances. Fix"),
        (
            offline.GradientPerturbation,
            {"hidden": 2, "loss": losses.Square()},
            "is not between -1 and 0.*Fix",
        ),
        (offline.DPGDC2, {"learning_rate": -1.0}, "learning_rate is -1.0. Fix"),
        (offline.DPGDC2, {"delta": 0.0}, "delta is 0.*Fix: give a delta, or use DPGDC or DPEGD"),
    ],
)
def test_parameters_of_one_learner(learner: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        learner(**options).fit(X, Y)
