"""Online learners through scikit-learn's interface, on arrays and frames."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from streampair import auc, ranking
from streampair.errors import ConfigError
from streampair.sklearn import Classifier


def table(n: int = 200) -> tuple[dict[str, list[Any]], list[str]]:
    """Records with texts and gaps, and their labels."""
    rng = np.random.default_rng(1)
    fraud = rng.random(n) < 0.4
    amounts = [None if rng.random() < 0.2 else float(a) for a in rng.normal(size=n) + fraud]
    countries = np.where(rng.random(n) < 0.2 + 0.6 * fraud, "BE", "NL").tolist()
    return {"amount": amounts, "country": countries}, np.where(fraud, "fraud", "fine").tolist()


@pytest.mark.parametrize("learner", [None, auc.Forest(trees=4, seed=1)], ids=["PairOGD", "Forest"])
def test_checks_of_scikit_learn(learner: Any) -> None:
    """scikit-learn's own checks, some fifty fits for each learner."""
    check_estimator(Classifier(learner), on_skip=None)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_of_texts_and_gaps_are_learned_as_records(frame: Any) -> None:
    """Another order of classes or rows than the learner has record by record."""
    columns, labels = table()
    model = Classifier(auc.PairOGD(seed=1)).fit(frame(columns), labels)
    online = auc.PairOGD(seed=1)
    records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for x, y in zip(records, labels, strict=True):
        online.learn_one(x, y == "fraud")
    assert model.classes_.tolist() == ["fine", "fraud"]
    assert model.feature_names_in_.tolist() == ["amount", "country"]
    assert model.decision_function(frame(columns)).tolist() == [online.score_one(x) for x in records]
    assert model.predict_proba(frame(columns))[:, 1].tolist() == [
        online.predict_proba_one(x)[True] for x in records
    ]
    expected = ["fraud" if online.predict_one(x) else "fine" for x in records]
    assert model.predict(frame(columns)).tolist() == expected
    assert model.score(frame(columns), labels) > 0.7
    again = pickle.loads(pickle.dumps(model))
    assert (again.predict_proba(frame(columns)) == model.predict_proba(frame(columns))).all()


def test_validation_and_search() -> None:
    columns, labels = table()
    X = pd.DataFrame(columns)
    scores = cross_val_score(Classifier(), X, labels, scoring="roc_auc", cv=TimeSeriesSplit(3))
    assert scores.min() > 0.7
    search = GridSearchCV(Classifier(), {"learner__radius": [1e-6, 10.0]}, scoring="roc_auc").fit(X, labels)
    assert search.best_estimator_.learner_.radius == search.best_params_["learner__radius"]
    both = {"learner": [auc.PairOGD(), auc.Forest(trees=4)]}
    assert GridSearchCV(Classifier(), both, scoring="roc_auc").fit(X, labels).best_score_ > 0.7


def test_parts_are_learned_as_the_whole() -> None:
    columns, labels = table()
    X, y = pd.DataFrame(columns), np.array(labels)
    whole = Classifier(auc.PairOGD(seed=1)).fit(X, y)
    parts = Classifier(auc.PairOGD(seed=1)).partial_fit(X[:1], y[:1], classes=["fine", "fraud"])
    parts.partial_fit(X[1:], y[1:])
    assert (parts.decision_function(X) == whole.decision_function(X)).all()
    with pytest.raises(ConfigError, match=r"labels beyond \['fine', 'fraud'\]"):
        parts.partial_fit(X[:1], ["other"])
    assert (parts.decision_function(X) == whole.decision_function(X)).all()


def test_each_fit_of_a_private_learner_has_a_budget_of_its_own() -> None:
    X = pd.DataFrame({"a": np.linspace(0.0, 1.0, 300)})
    y = X["a"] > 0.5
    learner = auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=300, features=["a"], bounds={"a": (0, 1)})
    model = Classifier(learner)
    assert model.privacy is None
    for _ in range(2):
        report = model.fit(X, y).privacy
        assert report is not None
        assert (report.kind, round(report.epsilon_spent, 6)) == ("holds", 1.0)
    assert learner.records == 0


def named(names: Any, frame: Any = pd.DataFrame) -> Any:
    """The rows of `numbers`, as a frame with these columns or as an array."""
    X, _ = numbers()
    return X if names is None else frame(dict(zip(names, X.T, strict=True)))


def numbers() -> tuple[Any, Any]:
    X = np.random.default_rng(1).normal(size=(200, 3))
    return X, X[:, 0] > X[:, 1]


@pytest.mark.filterwarnings("ignore:X (has|does not have)")
@pytest.mark.parametrize(
    "learner", [auc.PairOGD(seed=1), auc.Forest(trees=3, seed=1)], ids=["PairOGD", "Forest"]
)
@pytest.mark.parametrize(
    ("fitted", "later"),
    [
        (None, named("abc")),
        (None, named("abc", pl.DataFrame)),
        (None, named([7, 8, 9])),
        ([5, 6, 7], named(None)),
        ([5, 6, 7], named("abc")),
        ("abc", named(None)),
        ("abc", named([5, 6, 7])),
    ],
)
def test_columns_without_names_in_common_are_matched_by_position(
    learner: Any, fitted: Any, later: Any
) -> None:
    X, y = named(fitted), numbers()[1]
    model = Classifier(learner).fit(X, y)
    expected = model.decision_function(X)
    assert len(set(expected.tolist())) > 100
    assert (model.decision_function(later) == expected).all()
    same = Classifier(learner).fit(X, y).partial_fit(X, y)
    model.partial_fit(later, y)
    assert model.learner_.feature_names == same.learner_.feature_names == tuple(fitted or range(3))
    assert (model.decision_function(X) == same.decision_function(X)).all()


def test_an_array_follows_a_frame_of_polars() -> None:
    y = numbers()[1]
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model = Classifier().fit(named("abc", pl.DataFrame), y).partial_fit(named(None), y)
    assert model.learner_.feature_names == ("a", "b", "c")


@pytest.mark.filterwarnings("ignore:X (has|does not have)")
def test_other_columns_are_refused() -> None:
    X, y = numbers()
    of_array, of_numbers, of_names = (Classifier().fit(named(names), y) for names in (None, [5, 6, 7], "abc"))
    for model in (of_array, of_numbers, of_names):
        for call in (model.decision_function, lambda X, model=model: model.partial_fit(X, y)):
            with pytest.raises(ValueError, match="X has 2 features, but Classifier is expecting 3"):
                call(X[:, :2])
    with pytest.raises(ValueError, match="Feature names unseen at fit time:\n- d"):
        of_names.predict(named("abd"))
    with pytest.raises(ConfigError, match=r"columns \[6, 7, 8\], and the first fit had \[5, 6, 7\]"):
        of_numbers.predict(named([6, 7, 8]))
    by_name = named([7, 5, 6])[[5, 6, 7]]
    assert (of_numbers.decision_function(by_name) == of_numbers.decision_function(by_name[[7, 6, 5]])).all()


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.zeros((2, 4)), [1, 1]),
        (np.full((2, 4), np.inf), [0, 1]),
        (pd.DataFrame({"z": [1.0, 2.0]}), ["a", None]),
        (pd.DataFrame({"z": ["text", 2.0]}), [0, 1, 1]),
    ],
)
def test_a_refused_fit_changes_nothing(X: Any, y: Any) -> None:
    rows, labels = numbers()
    model = Classifier().fit(rows, labels)
    before, scores = dict(vars(model)), model.decision_function(rows)
    with pytest.raises(ValueError):  # noqa: PT011  # of scikit-learn and of the learner
        model.fit(X, y)
    assert vars(model) == before
    assert (model.decision_function(rows) == scores).all()


@pytest.mark.parametrize(
    "y", [["a", None], [1, None], pd.Series([True, None], dtype="boolean"), pl.Series(["a", None])]
)
def test_missing_labels_are_refused(y: Any) -> None:
    with pytest.raises(ConfigError, match="y has missing labels"):
        Classifier().fit(np.zeros((2, 1)), y)
    with pytest.raises(ConfigError, match="classes has missing labels"):
        Classifier().partial_fit(np.zeros((1, 1)), ["a"], classes=["a", None])


def test_bad_input_is_refused() -> None:
    X, y = pd.DataFrame({"a": [1.0, 2.0]}), [True, False]
    with pytest.raises(ConfigError, match="leave positive and negative out"):
        Classifier(auc.PairOGD(positive="yes")).fit(X, y)
    with pytest.raises(ConfigError, match=r"learner is a PairOGD.*give a learner of streampair.auc"):
        Classifier(ranking.PairOGD()).fit(X, y)
    with pytest.raises(ConfigError, match="y has one class"):
        Classifier().fit(X, [True, True])
    with pytest.raises(ValueError, match=r"no parameter 'radius'.*learner__radius"):
        Classifier().set_params(radius=1.0)


def test_columns_in_another_order_are_refused() -> None:
    X, y = named("abc"), numbers()[1]
    model = Classifier().fit(X, y)
    for call in (model.predict, lambda later: model.partial_fit(later, y)):
        with pytest.raises(ValueError, match="must be in the same order as they were in fit"):
            call(X[["c", "a", "b"]])
