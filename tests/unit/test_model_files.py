"""Models as files: what is loaded scores as the learner did, and what is no model is refused."""

from __future__ import annotations

import base64
import importlib
import json
import math
import random
import re
import sys
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from harness import pages
from harness.learners import KEY, LEARNERS, NAMES, every_learner, label, name_of, stream, taught
from harness.support import ROOT, in_one_case
from hypothesis import given
from hypothesis import strategies as st
from river import linear_model, preprocessing

from streampair import auc, buffers, losses, metric, models, privacy, ranking
from streampair.errors import ConfigError, RecordError, SnapshotError
from streampair.models import format
from streampair.privacy.pipeline_check import is_private


def outcome(function: Any, x: Any) -> Any:
    """What a function returns, or the text of its error."""
    try:
        return function(x)
    except RecordError as error:
        return str(error)


def records(model: Any) -> list[Any]:
    """Records as they come: whole, with gaps, with names that are not known, and such as cannot be used."""
    rng = random.Random(5)
    whole = [x for x, _ in stream(model, 12, seed=3)]
    gaps = [{name: value for name, value in x.items() if rng.random() < 0.6} for x in whole]
    new = [{**x, "new": 2.0} for x in whole[:3]]
    far = [{name: 1e6 * value for name, value in x.items()} for x in whole[:3]]
    odd: list[Any] = [
        {},
        {"f0": math.nan},
        {"f1": None},
        {"f0": "0.5", "f1": 1},
        {"f2": "text"},
        {"f0": 1e60},
    ]
    return [*whole, *gaps, *new, *far, *odd, {**whole[0], "new": math.inf}, {"f0": True}, {"other": 1}, 3]


def compare(learner: Any, model: models.Model, xs: list[Any]) -> None:
    """All that a model does with one record, against the learner: bits and errors."""
    for x in xs:
        assert outcome(model.score_one, x) == outcome(learner.score_one, x)
        for name in ("predict_proba_one", "predict_one"):
            if hasattr(learner, name):
                assert outcome(getattr(model, name), x) == outcome(getattr(learner, name), x)


@in_one_case("count", [0, 2, 130, 330])
@every_learner
def test_a_loaded_model_scores_as_the_learner(model: Any, count: int) -> None:
    learner = taught(model.clone(), count)
    loaded = models.loads(models.dumps(learner))
    assert loaded.slots == learner.records
    assert loaded.features == tuple(learner.feature_names)
    assert (loaded.privacy is None) == (learner.privacy is None)
    xs = records(learner)
    compare(learner, loaded, xs)
    usable = [x for x in xs if not isinstance(outcome(learner.score_one, x), str)]
    assert loaded.score_many(usable).tolist() == [learner.score_one(x) for x in usable]
    whole = [x for x in usable if x.keys() == set(NAMES)]
    assert loaded.score_many(whole).tolist() == [learner.score_one(x) for x in whole]
    columns = ["new", *sorted(NAMES, reverse=True)]
    rows = np.array([[1.0, *(x[name] for name in columns[1:])] for x in whole])
    assert loaded.score_rows(columns, rows).tolist() == [learner.score_one({**x, "new": 1.0}) for x in whole]
    for frame in (pd.DataFrame(whole), pd.DataFrame(whole)[["f3", "f1"]], pd.DataFrame(whole).assign(z=1.0)):
        pd.testing.assert_series_equal(loaded.score_many(frame), learner.score_many(frame), check_exact=True)


@every_learner
def test_a_model_stays_when_its_learner_goes_on(model: Any) -> None:
    learner = taught(model.clone(), 130)
    exported = models.export(learner)
    xs = [x for x, _ in stream(learner, 20, seed=3)]
    before = [learner.score_one(x) for x in xs]
    taught(learner, 60)
    assert [exported.score_one(x) for x in xs] == before
    assert models.dumps(exported) == models.dumps(models.loads(models.dumps(exported)))


def test_an_array_is_scored_by_numbers() -> None:
    learner = auc.PairOGD()
    X = np.random.default_rng(0).normal(size=(50, 4))
    learner.learn_many(X, X[:, 0] > 0.0)
    loaded = models.loads(models.dumps(learner))
    assert loaded.features == (0, 1, 2, 3)
    assert loaded.score_many(X).tolist() == learner.score_many(X).tolist()
    named = models.export(taught(auc.PairOGD(), 10))
    with pytest.raises(RecordError, match="an array has no names"):
        named.score_many(X)


def test_labels_are_those_of_the_learner() -> None:
    learner = auc.PairOGD(positive="fraud")
    model = models.loads(models.dumps(learner))
    assert (model.classes, model.predict_one({"a": 1.0})) == (("fraud",), None)
    for x, y in stream(auc.PairOGD(), 40):
        learner.learn_one(x, "fraud" if y else "fine")
    model = models.loads(models.dumps(learner))
    assert model.classes == ("fine", "fraud")
    compare(learner, model, records(learner))
    # A number, a truth value and a text of one are different labels to whoever compares them.
    for positive, negative in ((1, 0), (1.0, 0.0), ("1", "0"), (np.int64(2), np.int64(3))):
        exported = models.export(auc.PairOGD(positive=positive, negative=negative))
        assert exported.classes == (negative, positive)
        assert type(exported.classes[1]) in (type(positive), int)


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    learner = taught(auc.PairOGD(), 20)
    models.save(learner, path)
    models.save(
        models.export(learner, slots=25, time=1_700_000_000_000, metadata={"app": "fraud"}), str(path)
    )
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]
    model = models.load(path)
    assert (model.slots, model.time, model.metadata) == (25, 1_700_000_000_000, {"app": "fraud"})
    assert repr(model) == "Model(auc.PairOGD, 5 features, 25 slots)"
    with pytest.raises(FileNotFoundError):
        models.load(tmp_path / "none.json")
    with pytest.raises(OSError, match="missing"):
        models.save(learner, tmp_path / "missing" / "model.json")


def test_metadata_goes_with_the_model() -> None:
    model = models.export(auc.PairOGD())
    facts = {"application": "fraud", "positions": [[0, 17], [1, 5]], "share": 0.1, "on": True, "by": None}
    model.metadata.update(facts)
    assert models.loads(models.dumps(model)).metadata == facts
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    for bad in (math.nan, {1: 2}, {"a": object()}, b"bytes", np.float64(1.0), deep):
        model.metadata["bad"] = bad
        with pytest.raises(ConfigError, match="metadata"):
            models.dumps(model)
    with pytest.raises(ConfigError, match="metadata is 3"):
        models.export(auc.PairOGD(), metadata=3)  # type: ignore[arg-type]


class Doubled(auc.PairOGD):
    def score_one(self, x: Any) -> float:
        return 2.0 * super().score_one(x)


@pytest.mark.parametrize(
    "learner",
    [auc.Forest(3, 31, seed=1), ranking.Forest(3, 31, seed=1), auc.MulticlassForest(3, 31, seed=1)],
)
def test_a_word_counts_in_the_file_of_a_forest(learner: Any) -> None:
    """A feature with one value that most records lack says no more than that it is there."""
    rng = random.Random(1)
    learner = learner.clone()
    xs = [{"a": rng.gauss(0.0, 1.0), **({"word": -3.0} if rng.random() < 0.3 else {})} for _ in range(300)]
    for x in xs[:100]:
        learner.learn_one(x, ("word" in x) != (rng.random() < 0.2))
    model = models.loads(models.dumps(learner))
    for x in [*xs[100:], {"word": 7.0}]:
        assert model.score_one(x) == learner.score_one(x)
        assert model.explain_one(x) == learner.explain_one(x)
    session = onnxruntime.InferenceSession(models.to_onnx(model).SerializeToString())
    (scores,) = session.run(["score"], models.onnx_inputs(model, xs))
    assert np.abs(scores - model.score_many(xs)).max() < 1e-9
    document = json.loads(models.dumps(learner))
    assert document["present"] == [1]
    for present in ([0], [2], [1, 1], [-1]):
        with pytest.raises(SnapshotError, match=r"presence has a variance|present are out of range"):
            models.loads(json.dumps({**document, "present": present}).encode())


@pytest.mark.parametrize(
    ("learner", "reason"),
    [
        (linear_model.LogisticRegression(), "a LogisticRegression cannot be exported"),
        (
            preprocessing.RobustScaler() | auc.PairOGD(),
            r"the step RobustScaler \(RobustScaler\) has no form in a model file",
        ),
        (
            preprocessing.StandardScaler() | auc.PairFTRL(1.0, 1e-4, 100),
            "the pipeline cannot be exported: StandardScaler .* may learn from the stream",
        ),
        (preprocessing.StandardScaler() | linear_model.LogisticRegression(), "a LogisticRegression cannot"),
        (Doubled(), "since its score_one is not streampair's"),
        (None, "a NoneType cannot be exported"),
        (auc.PairOGD(positive=b"yes", negative=b"no"), "the label b'yes' is a bytes"),
    ],
)
def test_what_cannot_be_exported_is_named(learner: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        models.export(learner)


def test_a_feature_name_that_json_cannot_hold_is_named() -> None:
    for name in (("a", "b"), True, None, "\ud800", math.inf):
        learner = auc.PairOGD()
        learner.learn_one({name: 1.0}, True)
        with pytest.raises(ConfigError, match=r"a model file cannot hold|cannot be written as JSON"):
            models.export(learner)
    with pytest.raises(ConfigError, match="slots is -1"):
        models.export(auc.PairOGD(), slots=-1)
    with pytest.raises(ConfigError, match=r"time is 0\.5"):
        models.export(auc.PairOGD(), time=0.5)  # type: ignore[arg-type]


def test_a_model_that_predicts_nothing_says_so() -> None:
    ranked = models.export(taught(ranking.PairOGD(), 20))
    with pytest.raises(ConfigError, match="gives no probabilities"):
        ranked.predict_proba_one({"f0": 1.0})
    distances = models.export(taught(metric.PairOGD(), 20))
    with pytest.raises(ConfigError, match="predicts nothing"):
        distances.predict_one({"f0": 1.0})


# ---- linear learners of raw records -----------------------------------------------------------------------

RAW = {
    "running": auc.PairOGD,
    "papers": lambda: auc.PairOGD(scale=None),
    "averaged": lambda: auc.PairOGD(learning_rate=0.1),
    "fading": lambda: auc.PairOGD(half_life=50),
    "shared": lambda: auc.PairOGD(max_features=6),
    "history": lambda: auc.PairOGD(losses.Square(), buffers.FullHistory(), learning_rate=None),
    "OAM": lambda: auc.OAM(0.01, seed=1),
    "SPAUC": lambda: auc.SPAUC(0.01),
    "PairMoments": auc.PairMoments,
    "shared moments": lambda: auc.PairMoments(half_life=None, max_features=6),
    "ranking": ranking.PairOGD,
    "ranking.PairMoments": ranking.PairMoments,
}


def raw(count: int, seed: int) -> list[dict[str, Any]]:
    """Records with a far offset, texts, gaps, what some lack, and a number among texts."""
    coin = random.Random(seed)
    rows = []
    for i in range(count):
        x: dict[str, Any] = {"amount": 1e9 + coin.gauss(0.0, 1.0), "age": coin.gauss(40.0, 12.0)}
        x |= {"on": coin.random() < 0.3, "country": coin.choice(["NL", "BE", "DE", "", "long " * 40])}
        for name in ("age", "country"):
            if coin.random() < 0.2:
                x[name] = coin.choice([None, math.nan])
        if coin.random() < 0.3:
            x[f"word {coin.randrange(12)}"] = 1
        if coin.random() < 0.1:
            x["country"] = coin.randrange(5)
        if coin.random() < 0.1:
            del x["amount"]
        if i > 40 and coin.random() < 0.5:
            x["agent"] = f"agent=x{coin.randrange(9)}"
        rows.append(x)
    return rows


def risk(x: dict[str, Any]) -> bool:
    return bool(x.get("amount", 1e9) - 1e9 + (x["country"] == "NL") + 2 * ("word 1" in x) > 0.5)


def of_raw(name: str, count: int) -> Any:
    """A learner that has learned raw records."""
    learner = RAW[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of names beyond max_features
        for x in raw(count, seed=1):
            learner.learn_one(x, risk(x))
    return learner


@pytest.mark.parametrize("count", [0, 1, 20, 400])
@pytest.mark.parametrize("name", RAW)
def test_a_linear_learner_of_texts_and_gaps(name: str, count: int) -> None:
    learner = of_raw(name, count)
    loaded = models.loads(models.dumps(learner))
    xs = raw(60, seed=2)
    odd: list[Any] = [
        *({"country": "a new one"}, {"amount": "text"}, {"amount": 1e60}, {"amount": math.inf}),
        *({"z": "z"}, {"z": None}, {}, {"country=NL": 1.0}, {"country=NL": 1.0, "country": "NL"}),
        {"age": b"bytes"},
    ]
    compare(learner, loaded, [*xs, *odd])
    assert loaded.score_many(xs).tolist() == [learner.score_one(x) for x in xs]
    frame = pd.DataFrame(xs)
    for each in (frame, frame.astype({"country": "string", "on": "boolean"}), frame[["amount", "age"]]):
        expected = outcome(learner.score_many, each)
        if isinstance(expected, str):
            assert outcome(loaded.score_many, each) == expected
        else:
            pd.testing.assert_series_equal(loaded.score_many(each), expected, check_exact=True)
    rows = np.array(frame[["age", "amount"]], dtype=np.float64, order="C")
    assert (
        loaded.score_rows(["age", "amount"], rows).tolist()
        == learner.score_rows(["age", "amount"], rows).tolist()
    )
    assert (loaded.takes_text, loaded.takes_gaps) == (True, True)
    agree_with_the_page(learner, xs)
    assert not count or {"amount", "age", "country"} <= {*loaded.features, *learner.feature_names}


def test_an_array_with_gaps_is_scored_by_numbers() -> None:
    learner = auc.PairOGD()
    X = np.random.default_rng(0).normal(size=(90, 3))
    y = X[:, 0] > 0.0
    X[::7, 1] = math.nan
    for part in (slice(0, 40), slice(40, 90)):
        learner.learn_many(X[part], y[part])
    loaded = models.loads(models.dumps(learner))
    assert loaded.features == (0, 1, 2)
    assert loaded.score_many(X).tolist() == learner.score_many(X).tolist()


@pytest.mark.parametrize("name", ["running", "papers", "fading", "shared", "ranking"])
def test_a_learner_begins_with_columns_and_statistics(name: str) -> None:
    learner = of_raw(name, 400)
    model = models.loads(models.dumps(learner))
    begun = model.to_online(RAW[name]())
    xs = raw(60, seed=2)
    assert [begun.score_one(x) for x in xs] == [learner.score_one(x) for x in xs]
    saved, ours = learner.to_state(), begun.to_state()
    if name != "papers":
        for each in ("means", "variances", "values_set", "given", "units", "kinds", "cuts", "lows", "highs"):
            np.testing.assert_array_equal(saved[each], ours[each])
    for x in raw(200, seed=3):
        begun.learn_one(x, risk(x))
    again = RAW[name]()
    again.load_state(begun.to_state())
    assert [again.score_one(x) for x in xs] == [begun.score_one(x) for x in xs]
    # A model of a model has the statistics of all records.
    fields = json.loads(models.dumps(begun))
    assert name == "papers" or fields["running"]["records"] == 600
    if name != "papers":
        with pytest.raises(ConfigError, match="the weights are those of scaled features"):
            model.to_online(auc.PairOGD(scale=None) if name != "ranking" else ranking.PairOGD(scale=None))
    if name == "shared":
        with pytest.raises(ConfigError, match="the model has 6 features of their own"):
            model.to_online(auc.PairOGD())


def test_a_private_learner_begins_with_scaled_features() -> None:
    learner = auc.PairOGD()
    coin = random.Random(0)
    for _ in range(300):
        x = {"a": coin.gauss(0.4, 0.2), "b": coin.gauss(0.0, 0.1)}
        learner.learn_one(x, x["a"] + x["b"] > 0.4)
    model = models.loads(models.dumps(learner))
    private = model.to_online(auc.PairFTRL(1.0, 1e-4, 1000, noise_key=KEY), public=True)
    for x in ({"a": 0.1, "b": 0.2}, {"b": 0.3}, {"a": 0.9}):
        assert private.score_one(x) == pytest.approx(learner.score_one(x), abs=1e-12)
    released = models.loads(models.dumps(private))
    compare(private, released, [{"a": 0.1, "b": 0.2}, {"b": 0.3}, {"a": "text"}, {"a": None}, {}])
    frame = pd.DataFrame({"b": [0.1, 0.2], "a": [0.3, 0.4]})
    assert released.score_many(frame).tolist() == private.score_many(frame).tolist()
    agree_with_the_page(private, [{"a": 0.1, "b": 0.2}, {"b": 0.3}])
    session = onnxruntime.InferenceSession(models.to_onnx(released).SerializeToString())
    (score,) = session.run(["score"], models.onnx_inputs(released, [{"a": 0.1}]))
    assert score[0] == pytest.approx(private.score_one({"a": 0.1}), abs=1e-12)
    again = auc.PairFTRL(1.0, 1e-4, 1000, noise_key=KEY)
    again.load_state(private.to_state())
    assert again.score_one({"a": 0.1}) == private.score_one({"a": 0.1})
    shared = models.export(of_raw("shared", 60))
    with pytest.raises(ConfigError, match="columns that many names share"):
        shared.to_online(auc.PairFTRL(1.0, 1e-4, 1000, noise_key=KEY), public=True)


def test_columns_that_do_not_fit_are_refused() -> None:
    fields = json.loads(models.dumps(of_raw("shared", 400)))
    running, d = fields["running"], len(fields["features"])

    def floats(name: str, value: float) -> dict[str, Any]:
        array = format.EncodedArray.floats(np.full(d, value))
        return {"running": {**running, name: json.loads(json.dumps({**running[name], "data": b64(array)}))}}

    def b64(array: format.EncodedArray) -> str:
        return base64.b64encode(array.data).decode()

    kinds = format.EncodedArray.integers(np.full(d, 99))
    damaged: list[tuple[dict[str, Any], str]] = [
        (floats("units", -1.0), "a statistic of the features is below 0"),
        (floats("lows", 1e9), "the lower of two values is above the higher"),
        (floats("means", math.nan), "a number in means is not finite"),
        ({"running": {**running, "records": -1}}, "records is out of range"),
        ({"running": {**running, "kinds": {**running["kinds"], "data": b64(kinds)}}}, "an unknown kind"),
        ({"indicators": [d]}, "indicators are out of range"),
        ({"indicators": [0]}, "indicators are not those of the kinds"),
        ({"shared": d}, "shared is out of range"),
        ({"shared": 2}, "2 columns are shared, and not 1"),
    ]
    for change, reason in damaged:
        with pytest.raises(SnapshotError, match=reason):
            models.loads(json.dumps({**fields, **change}).encode())


# ---- forests ---------------------------------------------------------------------------------------------


def mixed(n: int, seed: int) -> list[dict[str, Any]]:
    """Records with texts and gaps, and a name that comes late."""
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        x: dict[str, Any] = {
            "amount": rng.expovariate(0.1),
            "hour": rng.randrange(24),
            "night": rng.random() < 0.3,
        }
        x["country"] = rng.choice(["NL", "BE", "DE", "FR", "LU"])
        if rng.random() < 0.2:
            del x["amount"]
        if rng.random() < 0.1:
            x["country"] = rng.randrange(9)  # a number in a column of texts
        if i > n // 2 and rng.random() < 0.5:
            x["agent"] = f"agent {rng.randrange(50)}"
        rows.append(x)
    return rows


def target(learner: Any, x: dict[str, Any]) -> Any:
    risk = x.get("amount", 40.0) / 20.0 + (x["country"] == "NL") - 0.1 * x["hour"] * x["night"]
    if isinstance(learner, ranking.Forest):
        return min(max(risk, 0.0), 4.0)
    return (
        ("low", "middle", "high")[int(min(max(risk, 0.0), 2.0))] if learner.positive == "high" else risk > 1.0
    )


FORESTS = {
    "logistic": lambda: auc.Forest(5, 63, seed=1),
    "even": lambda: auc.Forest(4, 30, seed=2),
    "deep": lambda: auc.Forest(3, 2000, seed=3),
    "stump": lambda: auc.Forest(2, 1, seed=4),
    "pairs": lambda: auc.Forest(5, 63, loss=losses.Logistic(), seed=5),
    "classes": lambda: auc.MulticlassForest(5, 63, positive="high", seed=6),
    "regression": lambda: ranking.Forest(5, 63, relevance=(0, 4), seed=7),
    "free": lambda: ranking.Forest(5, 63, seed=8),
}


@pytest.mark.parametrize("count", [0, 1, 60, 1500])
@pytest.mark.parametrize("name", FORESTS)
def test_a_forest_of_texts_and_gaps(name: str, count: int) -> None:
    learner = FORESTS[name]()
    for x in mixed(count, seed=1):
        learner.learn_one(x, target(learner, x))
    loaded = models.loads(models.dumps(learner))
    xs = mixed(60, seed=2)
    odd: list[Any] = [
        {"country": "a new one"},
        {"hour": "a text"},
        {"hour": 1e60},
        {"amount": math.nan},
        {"z": "z"},
        {},
    ]
    compare(learner, loaded, [*xs, *odd, {"amount": None}, {"country": b"bytes"}])
    assert loaded.score_many(xs).tolist() == [learner.score_one(x) for x in xs]
    frame = pd.DataFrame(xs).astype({"country": object})
    pd.testing.assert_series_equal(loaded.score_many(frame), learner.score_many(frame), check_exact=True)
    if name == "classes":
        assert loaded.classes == learner.classes


def test_a_forest_keeps_no_record() -> None:
    """A leaf keeps the value of a record for its next split: it is no part of the model."""
    learner = taught(auc.Forest(5, 63, seed=1), 300)
    fields = json.loads(models.dumps(learner))
    children = np.frombuffer(base64.b64decode(fields["splits"]["children"]["data"]), "<i4")
    for name, dtype in (("columns", "<i4"), ("values", "<f8")):
        values = np.frombuffer(base64.b64decode(fields["splits"][name]["data"]), dtype)
        assert not values[children == 0].any()
        assert values[children > 0].any()


def test_a_private_forest_of_categories() -> None:
    """Its trees are those of the file: categories of one field, gaps, and values beyond their bounds."""
    names = ["amount", *(f"country={c}" for c in ("BE", "DE", "NL"))]
    learner = auc.PrivateForest(24.0, 1e-3, warmup=100, trees=5, depth=3, features=names, noise_key=KEY)
    rng = random.Random(0)
    rows = []
    for _ in range(2000):
        country = rng.choice(["BE", "DE", "NL", "none"])
        x = {"amount": rng.gauss(0.0, 0.6), **{name: float(name.endswith(country)) for name in names[1:]}}
        rows.append({name: value for name, value in x.items() if rng.random() > 0.1})
        learner.learn_one(rows[-1], rng.random() < 0.3 + 0.4 * (country == "NL"))
    loaded = models.loads(models.dumps(learner))
    assert loaded.kind == "random_forest"
    leaves = json.loads(models.dumps(learner))["leaf_weights"]
    assert np.frombuffer(base64.b64decode(leaves["data"])).any()
    agree_with_the_page(learner, [x for x in rows[:200] if x])
    compare(learner, loaded, [*rows[:200], {"other": 1.0}, {"amount": math.nan}, {"amount": 1e9}, {}])
    frame = pd.DataFrame(rows[:200])
    with pytest.raises(RecordError):
        learner.score_many(frame)  # NaN in a frame is no gap of a private learner
    filled = frame.fillna(0.25)
    pd.testing.assert_series_equal(loaded.score_many(filled), learner.score_many(filled), check_exact=True)


# ---- the page --------------------------------------------------------------------------------------------


def reader() -> dict[str, Any]:
    """The functions of the program in docs/models.md."""
    (block,) = (block for block in pages.blocks("docs/models.md") if block.title == "reader.py")
    functions: dict[str, Any] = {}
    exec(block.text, functions)
    return functions


def agree_with_the_page(learner: Any, xs: list[Any]) -> None:
    functions, fields = reader(), json.loads(models.dumps(learner))
    for x in xs:
        assert functions["score"](fields, x) == pytest.approx(learner.score_one(x), rel=1e-9, abs=1e-9)
        if fields.get("probability") is not None:
            p = learner.predict_proba_one(x)[learner.positive]
            assert functions["probability"](fields, x) == pytest.approx(p, rel=1e-9, abs=1e-9)


@every_learner
def test_the_page_is_enough_to_score(model: Any) -> None:
    for count in (0, 130, 330):
        learner = taught(model.clone(), count)
        agree_with_the_page(learner, [x for x in records(learner)[:27] if x])


@pytest.mark.parametrize("name", FORESTS)
def test_the_page_is_enough_to_score_texts_and_gaps(name: str) -> None:
    learner = FORESTS[name]()
    for x in mixed(1500, seed=1):
        learner.learn_one(x, target(learner, x))
    agree_with_the_page(learner, mixed(60, seed=2))


def test_every_field_is_on_the_page() -> None:
    page = pages.text_of("docs/models.md")
    kinds = typing.get_args(format.KnownModel)
    structs = (
        *kinds,
        format.Promise,
        format.Curve,
        format.Scaling,
        format.Running,
        format.Splits,
        format.Experts,
        format.EncodedArray,
    )
    for struct in structs:
        for name in struct.__struct_encode_fields__:
            assert re.search(rf"`(\w+\.)?{name}[.`]", page), name


# ---- what a private model holds --------------------------------------------------------------------------


def test_a_private_model_says_what_was_promised() -> None:
    learner = taught(auc.PairFTRL(1.0, 1e-4, 200, warmup=50, noise_key=KEY), 120)
    report, model = learner.privacy, models.loads(models.dumps(learner))
    names = ("epsilon_spent", "epsilon_budget", "delta", "mu_spent", "mu_budget", "unit", "adjacency", "kind")
    assert model.privacy is not None
    assert model.privacy == {name: getattr(report, name) for name in (*names, "guarantee", "horizon")}
    learner.mark(void=["a column of dates, of record 17"])
    void = models.export(learner).privacy
    assert void is not None
    assert (void["kind"], void["guarantee"]) == ("void", "void")
    assert b"dates" not in models.dumps(learner)


@pytest.mark.parametrize("model", [model for model in LEARNERS if is_private(model)], ids=name_of)
def test_a_private_model_holds_nothing_raw(model: Any) -> None:
    """No value of a record, and no count that depends on what was in it."""
    learner = model.clone()
    rows = stream(learner, 150)
    for i, (x, y) in enumerate(rows):
        if i % 10 == 7:
            learner.learn_null()
        else:
            learner.learn_one(x if i % 10 else {**x, "f1": "no number"}, y if i % 10 != 3 else None)
    data = models.dumps(learner)
    text = data.decode()
    for x, _ in rows:
        for value in x.values():
            assert repr(value) not in text
    fields = json.loads(text)
    assert fields["slots"] == 150
    common = {"kind", "format", "version", "class", "features", "slots", "time", "privacy", "metadata"}
    parts = {
        "linear": {"labels", "probability", "scaling", "weights"},
        "metric": {"scaling", "root"},
        "random_forest": {
            "labels",
            "probability",
            "scaling",
            "weights",
            "field_sizes",
            "split_fields",
            "split_values",
            "leaf_weights",
        },
    }
    assert set(fields) == common | parts[fields["kind"]]
    assert KEY.hex() not in text


def test_a_null_record_shows_in_no_count() -> None:
    """Whether a record could be used shows in no count of a model."""
    sizes = []
    for x in ({"f0": 0.5}, {"f0": math.nan}):
        learner = auc.PairFTRL(1.0, 1e-4, 200, warmup=0, features=["f0"], noise_key=KEY)
        learner.learn_one(x, label(learner, random.Random(0)))
        fields = json.loads(models.dumps(learner))
        sizes.append({name: fields[name] for name in ("slots", "features", "privacy", "scaling")})
    assert sizes[0] == sizes[1]


# ---- files of earlier releases ---------------------------------------------------------------------------

GOLDEN = ROOT / "tests" / "golden"
RELEASES = sorted(GOLDEN.glob("*/models"))
assert RELEASES


@pytest.fixture(scope="module")
def golden() -> Iterator[Any]:
    """The script that wrote them."""
    sys.path.insert(0, str(GOLDEN))
    yield importlib.import_module("make_models")
    sys.path.remove(str(GOLDEN))


@pytest.mark.parametrize("path", [path for folder in RELEASES for path in sorted(folder.glob("*.*.json"))])
def test_a_file_of_an_earlier_release_scores_as_it_did(golden: Any, path: Path) -> None:
    model, name = models.load(path), path.name.removesuffix(".json")
    assert golden.results(model, name) == json.loads((path.parent / "expected.json").read_text())[name]
    assert (model.time, model.metadata) == (1_700_000_000_000, {"application": name})
    assert json.loads(models.dumps(model)) == json.loads(path.read_text())


def test_every_result_has_its_file() -> None:
    for folder in RELEASES:
        expected = json.loads((folder / "expected.json").read_text())
        assert {f"{name}.json" for name in expected} == {path.name for path in folder.glob("*.*.json")}


# ---- what is no model ------------------------------------------------------------------------------------

SAMPLES: dict[str, Any] = {
    "auc.PairOGD": taught(auc.PairOGD(), 40),
    "auc.PairFTRL": taught(auc.PairFTRL(warmup=20, mechanism=privacy.PairGradients(), noise_key=KEY), 40),
    "metric.PairOGD": taught(metric.PairOGD(), 40),
    "auc.Forest": taught(auc.Forest(3, 31, seed=1), 40),
    "auc.MulticlassForest": taught(auc.MulticlassForest(3, 31, positive=2, seed=1), 40),
    "ranking.Forest": taught(ranking.Forest(3, 31, seed=1), 40),
    "auc.PrivateForest": taught(
        auc.PrivateForest(24.0, 1e-3, warmup=20, trees=3, depth=2, noise_key=KEY), 40
    ),
}
LOADED = {name: models.loads(models.dumps(learner)) for name, learner in SAMPLES.items()}


VALUES = st.one_of(
    st.floats(),
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.sampled_from(["1", " 2e3 ", "nan", b"1", np.float32(0.5), np.int64(3), 1j]),
)


@pytest.mark.parametrize("name", SAMPLES)
@given(x=st.dictionaries(st.sampled_from([*NAMES, "new", 3]), VALUES))
def test_any_record_has_the_score_or_the_error_of_the_learner(name: str, x: dict[Any, Any]) -> None:
    compare(SAMPLES[name], LOADED[name], [x])


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    for data in (
        b"",
        b"PK\x03\x04",
        b"[1]",
        b"{}",
        b"null",
        b'{"format": "other", "version": 1}',
        b"\xff\xfe",
    ):
        with pytest.raises(SnapshotError, match="this is not a model"):
            models.loads(data)
    with pytest.raises(SnapshotError, match="this is not a model"):
        models.loads(b"[" * 100_000)
    (file := tmp_path / "empty.json").write_bytes(b"")
    with pytest.raises(SnapshotError, match=rf"{re.escape(str(file))}: this is not a model"):
        models.load(file)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_cut_model_is_refused(name: str) -> None:
    data = models.dumps(SAMPLES[name])
    for length in range(0, len(data), max(7, len(data) // 100)):
        with pytest.raises(SnapshotError, match="Fix: "):
            models.loads(data[:length])


def test_a_newer_model_is_refused() -> None:
    fields = json.loads(models.dumps(SAMPLES["auc.PairOGD"]))
    for version in (0, 2):
        data = json.dumps({**fields, "version": version, "kind": "new"}).encode()
        with pytest.raises(SnapshotError, match=f"the model has version {version}, this release reads"):
            models.loads(data)


def packed(values: list[Any], dtype: str = "<f8") -> str:
    return base64.b64encode(np.array(values, dtype).tobytes()).decode()


@pytest.mark.parametrize(
    ("name", "node", "value"),
    [
        ("children", 0, 0x7FFFFFFF),  # beyond the tree
        ("children", 0, -3),
        ("children", 1, 1),  # its own child
        ("columns", 0, 5),
        ("columns", 0, -6),
        ("columns", 0, -1),  # a hash, whose number the threshold is not
        ("values", 0, math.nan),
        ("values", 0, math.inf),
    ],
)
def test_trees_that_a_record_could_leave_are_refused(name: str, node: int, value: Any) -> None:
    learner = auc.Forest(3, 31, seed=1)
    for x, y in stream(learner, 300):
        learner.learn_one({f: 100.0 * v for f, v in x.items()}, y)
    fields = json.loads(models.dumps(learner))
    part = fields["splits"][name]
    values = np.frombuffer(base64.b64decode(part["data"]), part["dtype"]).copy()
    assert values[0] != 0
    values[node] = value
    part["data"] = packed(values.tolist(), part["dtype"])
    with pytest.raises(SnapshotError, match="is damaged"):
        models.loads(json.dumps(fields).encode())


def set_at(fields: Any, path: str, value: Any) -> Any:
    """Change one entry of a tree; a path such as ``scaling.bounds.0``."""
    *parents, last = path.split(".")
    for name in parents:
        fields = fields[int(name) if isinstance(fields, list) else name]
    fields[int(last) if isinstance(fields, list) else last] = value


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("auc.PairOGD", "kind", "pickle"),
        ("auc.PairOGD", "class", None),
        ("auc.PairOGD", "slots", -1),
        ("auc.PairOGD", "slots", 1.5),
        ("auc.PairOGD", "time", "now"),
        ("auc.PairOGD", "unknown", 1),
        ("auc.PairOGD", "features", ["f0", "f1", "f2", "f3", "f3"]),
        ("auc.PairOGD", "features", ["f0"]),
        ("auc.PairOGD", "features.0", None),
        ("auc.PairOGD", "weights", [1.0] * 6),
        ("auc.PairOGD", "weights.0", math.nan),
        ("auc.PairOGD", "weights.0", math.inf),
        ("auc.PairOGD", "weights.0", None),
        ("auc.PairOGD", "weights.0", "1"),
        ("auc.PairOGD", "labels", None),
        ("auc.PairOGD", "labels.negative", True),
        ("auc.PairOGD", "probability", None),
        ("auc.PairOGD", "probability.slope", 0.0),
        ("auc.PairOGD", "probability.spread", -1.0),
        ("auc.PairOGD", "running.kinds.data", packed([16.0] * 5)),
        ("auc.PairOGD", "running.variances.data", packed([-1.0] * 5)),
        ("auc.PairOGD", "running.cuts.data", packed([-1.0] * 5)),
        ("auc.PairOGD", "running.cuts.data", packed([math.nan] * 5)),
        ("auc.PairOGD", "running.cuts.data", packed([1001.0] * 5)),
        ("auc.PairOGD", "running.cuts.shape", [4]),
        ("auc.PairFTRL", "privacy.kind", "good"),
        ("auc.PairFTRL", "scaling.bounds.0", [1.0, 1.0]),
        ("auc.PairFTRL", "scaling.bounds.0", [1.0]),
        ("auc.PairFTRL", "scaling.bounds", []),
        ("auc.PairFTRL", "scaling.mean", None),
        ("auc.PairFTRL", "scaling.factor", [1.0]),
        ("auc.PairFTRL", "scaling.cap", 0.0),
        ("auc.PairFTRL", "features", ["f4", "f3", "f2", "f1", "f0"]),
        ("auc.Forest", "mean.dtype", "object"),
        ("auc.Forest", "mean.shape", [6]),
        ("auc.Forest", "mean.shape", [-5]),
        ("auc.Forest", "mean.data", "AAAA"),
        ("auc.Forest", "mean.data", "no base64!"),
        ("auc.Forest", "mean.data", packed([math.nan] * 5)),
        ("auc.Forest", "variance.data", packed([-1.0] * 5)),
        ("auc.Forest", "experts.stack.data", packed([math.inf] * 4)),
        ("auc.Forest", "cuts", [31, 31, 32]),
        ("auc.Forest", "cuts", [0, 0, 0]),
        ("auc.Forest", "cuts", [31, 127, 40_000]),
        ("auc.Forest", "text_features", [5]),
        ("auc.Forest", "text_features", [-1]),
        ("auc.Forest", "buckets", [1]),
        ("auc.Forest", "buckets", [4096]),
        ("auc.Forest", "relevance", {"middle": 0.0, "half": 1.0}),
        ("auc.Forest", "labels", None),
        ("auc.Forest", "label_mean", 0.0),
        ("auc.Forest", "splits.sizes.shape", []),
        ("auc.Forest", "splits.sizes.data", packed([0, 1, 1], "<i4")),
        ("auc.Forest", "splits.sizes.data", packed([1, 1, 2**31 - 1], "<i4")),
        ("auc.Forest", "features", ["f0", "f1", "f2", "f3"]),
        ("auc.MulticlassForest", "classes.labels", [1, 1, 3]),
        ("auc.MulticlassForest", "classes.labels", [1, 2]),
        ("auc.MulticlassForest", "classes.positive", None),
        ("ranking.Forest", "label_variance", -1.0),
        ("ranking.Forest", "label_variance", None),
        ("auc.PrivateForest", "scaling", None),
        ("auc.PrivateForest", "scaling.cap", None),
        ("auc.PrivateForest", "field_sizes", [5]),
        ("auc.PrivateForest", "field_sizes", [1, 1, 1, 1]),
        ("auc.PrivateForest", "split_fields.data", packed([5] * 12, "<i4")),
        ("auc.PrivateForest", "split_values.data", packed([math.nan] * 12)),
        ("auc.PrivateForest", "leaf_weights.data", packed([math.inf] * 12)),
        ("auc.PrivateForest", "leaf_weights.shape", [4, 3]),
        ("metric.PairOGD", "root", [[1.0]]),
        ("metric.PairOGD", "root.2", [1.0]),
        ("metric.PairOGD", "root.2.2", math.nan),
    ],
)
def test_a_damaged_model_is_refused(name: str, path: str, value: Any) -> None:
    fields = json.loads(models.dumps(SAMPLES[name]))
    assert models.loads(json.dumps(fields).encode()).slots == 40
    set_at(fields, path, value)
    with pytest.raises(SnapshotError, match="is damaged"):
        models.loads(json.dumps(fields).encode())
