"""Which labels rank high and low, what becomes of others, and the labels that predictions show."""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from harness.learners import PRIVATE, frozen
from harness.support import in_one_case
from river import evaluate, metrics

from streampair import auc, losses, metric, ranking
from streampair.assurance.canary import _two_labels
from streampair.errors import ConfigError, RecordError
from streampair.evaluation import RollingAUC
from streampair.records.features import TwoLabels

PLAIN: dict[str, Callable[..., Any]] = {
    "PairOGD": lambda **options: auc.PairOGD(seed=0, **options),
    "OAM": lambda **options: auc.OAM(size=4, seed=0, **options),
    "SPAUC": auc.SPAUC,
    "PairMoments": auc.PairMoments,
    "Forest": lambda **options: auc.Forest(3, 31, seed=0, **options),
    "Forest of pairs": lambda **options: auc.Forest(3, 31, loss=losses.Logistic(), seed=0, **options),
}
every_plain = pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
two_class = pytest.mark.parametrize("make", [m for n, m in PRIVATE.items() if n.startswith("auc-")])
FEATURES = ["a", "b"]


def stream(n: int, high: Any = True, low: Any = False) -> list[tuple[dict[str, float], Any]]:
    rng = random.Random(0)
    rows = [{name: rng.gauss(0.0, 0.5) for name in FEATURES} for _ in range(n)]
    return [(x, high if x["a"] + rng.gauss(0.0, 0.2) > 0.0 else low) for x in rows]


# ---- refused by type ---------------------------------------------------------------------------------------


@in_one_case(
    ("positive", "other"),
    [
        *((positive, other) for positive in (True, 1, False, 0.0) for other in ("bad", 2, -1, 0.5, b"bad")),
        *(("bad", other) for other in (True, 1, 0.0, "1", "yes")),
        *(("yes", other) for other in (2, "bad", -1.0)),
        *((2, other) for other in (True, "one", "no", np.bool_(False))),
    ],
)
@every_plain
def test_a_label_of_another_type_is_refused(make: Any, positive: Any, other: Any) -> None:
    model = make(positive=positive)
    for x, _ in stream(3):
        model.learn_one(x, positive)
    before = frozen(model)
    x, _ = stream(1)[0]
    with pytest.raises(RecordError, match="positive=") as caught:
        model.learn_one(x, other)
    assert caught.value.stage == "label"
    row = pd.DataFrame([x, x])
    for labels in ([positive, other], pd.Series([positive, other], dtype=object)):
        with pytest.raises(RecordError, match="in row 1, the label is"):
            model.learn_many(row, pd.Series(labels))
    ready = model.prepare_many([x, x], [positive, other])
    assert list(ready.refused) == [1]
    assert frozen(model) == before


@in_one_case(
    "labels",
    [
        np.array(["bad", "good"]),
        np.array([1, 2]),
        np.array([1.0, -1.0]),
        np.array([1, 2], dtype=np.uint8),
        pd.Series(["bad", "good"], dtype="category"),
        pl.Series([1, 2]),
        pl.Series(["bad", "good"]),
    ],
)
@every_plain
def test_arrays_of_such_labels_are_refused(make: Any, labels: Any) -> None:
    model, rows = make(), np.array([[0.1, 0.2], [0.3, 0.4]])
    for call in (model.learn_many, model.score_learn_many):
        with pytest.raises(RecordError, match="in row"):
            call(rows, labels)
    assert model.records == 0


@in_one_case(
    ("labels", "positive"),
    [
        (np.array([True, False]), True),
        (np.array([True, False]), 1),
        (np.array([1, 0], dtype=np.uint8), True),
        (np.array([1.0, 0.0], dtype=np.float32), True),
        (np.array([1, 0]), np.bool_(True)),
        (np.array([2, 1]), 2),
        (np.array([2.0, 1.0]), np.int64(2)),
        (np.array(["yes", "no"]), "yes"),
        (np.array(["yes", "no"], dtype=object), np.str_("yes")),
    ],
)
@every_plain
def test_labels_of_one_type_are_taken(make: Any, labels: Any, positive: Any) -> None:
    one, many, rows = make(positive=positive), make(positive=positive), np.array([[0.1, 0.2], [0.3, 0.4]])
    many.learn_many(rows, labels)
    for row, label in zip(rows.tolist(), labels, strict=True):
        one.learn_one(dict(enumerate(row)), label)
    assert frozen(one) == frozen(many)
    x = {0: 0.1, 1: 0.2}
    assert set(one.predict_proba_one(x)) == set(labels.tolist())
    assert one.predict_proba_one(x) == many.predict_proba_one(x)
    assert many.predict_many(rows).tolist() == [one.predict_one(dict(enumerate(row))) for row in rows]


def test_a_declared_negative_leaves_no_third() -> None:
    model = auc.PairOGD(positive="yes", negative="no", seed=0)
    assert model.predict_proba_one({"a": 1.0}) == {"no": 0.5, "yes": 0.5}
    model.learn_one({"a": 1.0}, True)  # which yes means
    model.learn_one({"a": 1.0}, "no")
    with pytest.raises(RecordError, match=r"'maybe', and there are only positive='yes' and negative='no'"):
        model.learn_one({"a": 1.0}, "maybe")
    signs = auc.PairOGD(positive=1, negative=-1)
    signs.learn_one({"a": 1.0}, -1.0)
    with pytest.raises(RecordError, match="only positive=1 and negative=-1"):
        signs.learn_one({"a": 1.0}, 0)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"positive": None}, "marks an unknown label"),
        ({"positive": np.float64("nan")}, "marks an unknown label"),
        ({"positive": [1]}, "not a label"),
        ({"negative": (1,)}, "not a label"),
        ({"negative": float("nan")}, "not a label"),
        ({"negative": 1}, "both True"),
    ],
)
def test_what_is_no_label_is_refused_when_it_is_declared(options: dict[str, Any], problem: str) -> None:
    for make in (auc.PairOGD, auc.SPAUC, auc.Forest, TwoLabels, RollingAUC):
        with pytest.raises(ConfigError, match=problem):
            make(**({"positive": True} | options))


# ---- the labels that predictions show ----------------------------------------------------------------------


@pytest.mark.parametrize(("high", "low"), [("yes", "no"), (2, 1), (1, 0), (False, True), ("1", "0")])
@every_plain
def test_rivers_metrics_say_what_they_say_of_truth_values(make: Any, high: Any, low: Any) -> None:
    """Accuracy, MacroF1 and kappa compare labels, so they are the same whatever these are called.

    River's binary metrics (F1, ROCAUC) look for the key True whatever their pos_val is, with River's own
    classifiers as well; so they know 1 and 0, and `RollingAUC` the rest.
    """

    def values(high: Any, low: Any, makes: list[Callable[[], Any]]) -> list[float]:
        found = []
        for make_metric in makes:
            model = make(positive=high)
            for x, y in ({"a": 0.5}, high), ({"a": -0.5}, low):  # so that both labels are known
                model.learn_one(x, y)
            rows = stream(300, high, low)
            found.append(evaluate.progressive_val_score(rows, model, make_metric()).get())
        return found

    any_labels = [metrics.Accuracy, metrics.MacroF1, metrics.CohenKappa]
    named = values(high, low, [*any_labels, lambda: RollingAUC(500, positive=high)])
    plain = values(True, False, [*any_labels, lambda: RollingAUC(500)])
    assert named == plain
    assert plain[0] > 0.6  # it is not the share of one label
    assert plain[3] > 0.7
    if high == 1:
        binary = [metrics.F1, metrics.ROCAUC]
        assert values(high, low, binary) == values(True, False, binary)


@every_plain
@pytest.mark.parametrize("backend", [pd, pl])
def test_the_first_label_that_ranks_low_is_known_however_it_came(make: Any, backend: Any) -> None:
    rows = stream(40, "yes", "no")
    X, y = backend.DataFrame([x for x, _ in rows]), backend.Series([y for _, y in rows])
    one, many, both, ready = (make(positive="yes") for _ in range(4))
    x = rows[0][0]
    assert (one.predict_one(x), list(one.predict_proba_one(x))) == (None, ["yes"])
    assert many.predict_proba_many(X).shape == (40, 1)
    for each, label in rows:
        one.learn_one(each, label)
    many.learn_many(X, y)
    both.score_learn_many(X, y)
    ready.learn_one(*rows[0])
    ready.prepare_many([x for x, _ in rows[1:]], [y for _, y in rows[1:]]).take()
    assert frozen(one) == frozen(many) == frozen(both) == frozen(ready)
    saved = make(positive="yes")
    saved.load_state(one.to_state())
    copies = [one, many, both, ready, saved, copy.deepcopy(one), pickle.loads(pickle.dumps(one))]
    for model in [*copies, one.clone(include_attributes=True)]:
        assert list(model.predict_proba_one(x)) == ["no", "yes"]
        assert {model.predict_one(x) for x, _ in rows} == {"yes", "no"}
        assert list(model.predict_many(X)) == [model.predict_one(x) for x, _ in rows]
        shares = model.predict_proba_many(X)
        assert list(shares.columns) == ["no", "yes"]
        assert shares.to_numpy().tolist() == [list(model.predict_proba_one(x).values()) for x, _ in rows]
    assert list(one.clone().predict_proba_one(x)) == ["yes"]
    saved = make(positive="yes")
    with pytest.raises(Exception, match="damaged"):
        saved.load_state({**one.to_state(), "negative": 3})
    saved.load_state({name: value for name, value in one.to_state().items() if name != "negative"})
    assert list(saved.predict_proba_one(x)) == ["yes"]


@every_plain
def test_a_record_that_is_refused_tells_no_label(make: Any) -> None:
    model = make(positive="bad")
    model.learn_one({"a": 1.0}, "bad")
    bad = {"a": float("-inf")}
    with pytest.raises(RecordError):
        model.learn_one(bad, "good")
    with pytest.raises(RecordError):
        model.learn_many(pd.DataFrame([{"a": float("inf")}]), pd.Series(["good"]))
    ready = model.prepare_many([bad, {"a": 1.0}], ["good", "bad"])
    ready.take()
    model.prepare_many([{"a": 1.0}], ["good"])  # not taken
    assert model.predict_one({"a": -1.0}) in (None, "bad")
    assert "negative" not in model.to_state()
    model.learn_one({"a": 1.0}, "other")
    model.learn_one({"a": 1.0}, "good")
    assert list(model.predict_proba_one({"a": 1.0})) == ["other", "bad"]


def test_several_classes_keep_their_own_labels() -> None:
    model = auc.MulticlassForest(3, 31, seed=0)
    for i in range(9):
        model.learn_one({"a": float(i % 3)}, "abc"[i % 3])
    assert set(model.predict_proba_one({"a": 1.0})) == {"a", "b", "c"}
    assert [model.label_number(y) for y in (True, "a", 2, None, float("nan"), [1])] == pytest.approx(
        [1.0, -1.0, -1.0, *[float("nan")] * 3], nan_ok=True
    )
    with pytest.raises(TypeError, match="negative"):
        auc.MulticlassForest(negative="a")


def test_a_class_is_shown_as_its_first_label() -> None:
    """Labels of equal meaning are one class; yes and no are classes as any other, since NO is a country."""
    one, many = (auc.MulticlassForest(3, 31, positive="1", seed=0) for _ in range(2))
    labels = ["NO", "1", "yes", 1, " 1.0 ", "true", b"NO", "DE"]
    rows = [{"a": float(i)} for i in range(len(labels))]
    for x, y in zip(rows, labels, strict=True):
        one.learn_one(x, y)
    many.learn_many(pd.DataFrame(rows), pd.Series(labels, dtype=object))
    assert one.classes == many.classes == ("NO", "1", "yes", "DE")
    assert frozen(one) == frozen(many)
    assert one.score_one(rows[0]) == one.scores_one(rows[0])["1"] != 0.0
    again = auc.MulticlassForest(3, 31, positive="1", seed=0)
    again.load_state(one.to_state())
    again.learn_one(rows[0], 1.0)
    assert again.classes == one.classes
    for y, problem in (
        ("nan", "unknown"),
        ("inf", "finite"),
        (float("inf"), "finite"),
        ([1], "neither text"),
    ):
        with pytest.raises(RecordError, match=problem):
            one.learn_one(rows[0], y)


# ---- the metric --------------------------------------------------------------------------------------------


def test_the_auc_refuses_labels_that_it_does_not_know() -> None:
    named = RollingAUC(positive="bad")
    for y, p in [("bad", {"bad": 0.9, "good": 0.1}), ("good", {"good": 1.0}), ("good", {}), ("bad", 0.5)]:
        named.update(y, p)
    assert named.get() == 1.0
    for y, p in [(True, 0.5), (1, 0.5), (None, 0.5), ("bad", {False: 0.2, True: 0.8}), ("good", {0: 1.0})]:
        with pytest.raises(RecordError, match="label is"):
            named.update(y, p)
        with pytest.raises(RecordError, match="label is"):
            named.revert(y, p)
    plain = RollingAUC()
    for y, p in [("bad", 0.5), (2, 0.5), (True, {"bad": 0.5, "good": 0.5})]:
        with pytest.raises(RecordError, match="positive="):
            plain.update(y, p)
    assert (plain.n, named.n) == (0, 4)
    plain.update(np.int8(1), {0: 0.1, 1: 0.9})
    plain.update(0.0, {False: 1.0})
    assert plain.get() == 1.0
    assert named.clone().positive == "bad"


# ---- private learners --------------------------------------------------------------------------------------


@two_class
def test_a_private_learner_warns_once_and_counts(make: Any) -> None:
    model = make(features=FEATURES)
    rows = stream(12, "bad", "good")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.learn_one(rows[0][0], None)
        model.learn_one(rows[1][0], float("nan"))
        assert not caught  # a record without a label is nothing to warn of
        for x, y in rows[:4]:
            model.learn_one(x, y)
        model.learn_many(pd.DataFrame([x for x, _ in rows[4:8]]), pd.Series([y for _, y in rows[4:8]]))
        ready = model.prepare_many([x for x, _ in rows[8:]], [y for _, y in rows[8:]])
        if ready is not None:
            ready.take()
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "positive=True and negative=False" in message
    assert "null_slots" in message
    assert "bad" not in message  # it says the type, and no value
    assert caught[0].filename == __file__
    assert model.null_slots == model.slots == (14 if ready is not None else 10)


@pytest.mark.parametrize("way", ["learn_one", "take", "learn_many", "prepare_many"])
def test_each_way_to_learn_warns(way: str) -> None:
    model = PRIVATE["auc-blt"](features=FEATURES)
    x = stream(1)[0][0]
    ways: dict[str, Callable[[], Any]] = {
        "learn_one": lambda: model.learn_one(x, 2),
        "take": lambda: model.take(x, 2),
        "learn_many": lambda: model.learn_many(pd.DataFrame([x]), pd.Series([2])),
        "prepare_many": lambda: model.prepare_many([x], [2]).take(),
    }
    with pytest.warns(UserWarning, match="a label of type int"):
        ways[way]()
    assert model.null_slots == 1


def test_relevances_and_classes_are_warned_of_too() -> None:
    for model, y, advice in (
        (ranking.PairFTRL(1.0, 1e-3, 60, features=["a"]), 5.0, "relevance="),
        (metric.PairFTRL(1.0, 1e-3, 60, features=["a"], classes=["a", "b"]), "c", "classes="),
    ):
        with pytest.warns(UserWarning, match=advice):
            model.learn_one({"a": 1.0}, y)
        assert model.null_slots == 1


@two_class
def test_nothing_is_raised_where_warnings_are_errors(make: Any) -> None:
    """An error would say of one record what its label is."""
    model, plain = (make(features=FEATURES, seed=0) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, _ in stream(5):
            model.learn_one(x, "bad")
    for x, _ in stream(5):
        plain.learn_one(x, None)
    assert model.null_slots == plain.null_slots == 5
    assert model.weights == plain.weights


@two_class
def test_predictions_of_a_private_learner_show_no_label_of_a_record(make: Any) -> None:
    """Over streams that differ in what their labels say, keys and predictions are the same.

    They would not be if the label that ranks low were learned: the mutant that does is caught.
    """
    with pytest.raises(ConfigError, match="negative='no'"):
        make(positive="yes")
    with pytest.raises(ConfigError, match="negative="):
        make(positive=2)

    def observed(others: list[str], learns: bool = False) -> set[Any]:
        model = make(positive="yes", negative="no", features=FEATURES)
        for (x, _), y in zip(stream(6), others, strict=True):
            with warnings.catch_warnings(record=True):
                model.learn_one(x, y)
                if learns and y not in ("yes", "no"):
                    model._negative = y
        x = stream(1)[0][0]
        return {*model.predict_proba_one(x), *(model.predict_one(x) for x, _ in stream(30)), "yes", "no"}

    usual, secret = ["yes", "no"] * 3, ["yes", "no", "secret", "no", "yes", "no"]
    assert observed(usual) == observed(secret) == {"yes", "no"}
    assert observed(secret, learns=True) != {"yes", "no"}
    assert set(make(positive=0).predict_proba_one({"a": 1.0})) == {0, 1}


@in_one_case("options", [{}, {"positive": 1}, {"positive": False}, {"positive": "yes", "negative": "no"}])
@two_class
def test_an_audit_uses_labels_that_the_learner_knows(make: Any, options: dict[str, Any]) -> None:
    """A label that it does not know would make null records, and hide what the audit looks for."""
    model = make(features=FEATURES, **options)
    high, low = _two_labels(model)
    assert (model.label_number(high), model.label_number(low)) == (1.0, -1.0)
