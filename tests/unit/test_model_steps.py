"""Models with steps in front of the learner: as files, on frames, and against damage."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import pandas as pd
import polars as pl
import pytest
from harness import steps as table
from river import compose, feature_extraction, preprocessing

from streampair import auc, metric, models, privacy, ranking
from streampair import preprocessing as own
from streampair.errors import ConfigError, NoScoreError, RecordError, SnapshotError

names = pytest.mark.parametrize("name", list(table.STEPS))


def learned(name: str, learner: Any = None) -> Any:
    pipeline = table.pipeline(name, learner)
    for x, y in table.rows(60):
        pipeline.learn_one(x, y)
    return pipeline


NEW = [x for x, _ in table.rows(40, seed=1)]


def test_a_guarded_step_for_texts_is_a_step_for_texts() -> None:
    """In front of a learner for numbers alone."""
    number = auc.PairFTRL(1.0, 1e-6, 100, features=["plan=free", "plan=pro"], noise_key=bytes(32))
    pipeline = own.Guarded(own.OneHot({"plan": ["free", "pro"]})) | number
    for x, y in table.rows(60):
        pipeline.learn_one({"plan": x["plan"]}, y)
    assert models.export(pipeline).takes_text
    numbers = auc.PairFTRL(1.0, 1e-6, 100, features=list(table.NUMBERS), noise_key=bytes(32))
    assert not models.export(own.Guarded(table.numbers()) | numbers).takes_text


@names
def test_scoring_changes_nothing(name: str) -> None:
    """Names and values that a record has and the steps do not know stay nowhere."""
    model = models.loads(models.dumps(learned(name)))
    model.score_one(NEW[0])  # River's pipelines plan their work with the first record
    before = models.dumps(model), _sizes(model)
    for i in range(20):
        x = {**NEW[i], f"new{i}": 1.0, "country": f"new{i}", "note": f"new{i} now"}
        try:
            model.score_one(x)
        except NoScoreError:
            assert name.startswith("MinMax") or name == "SelectType"
    assert (models.dumps(model), _sizes(model)) == before


def _sizes(model: models.Model) -> list[int]:
    """Lengths of all tables of all steps."""
    assert model._front is not None
    found, queue = [], list(model._front.steps.values())
    while queue:
        step = queue.pop()
        tables = [value for value in vars(step).values() if isinstance(value, dict)]
        found += [len(value) for value in tables]
        queue += [inner for value in tables for inner in value.values() if hasattr(inner, "__dict__")]
    return found


@pytest.mark.parametrize(
    "learner", [ranking.PairOGD(seed=1), metric.PairOGD(seed=1), auc.Forest(3, seed=1), auc.SPAUC()]
)
def test_any_learner_may_stand_behind_steps(learner: Any) -> None:
    pipeline = learned("StandardScaler", learner)
    model = models.loads(models.dumps(pipeline))
    assert [model.score_one(x) for x in NEW] == [_score(pipeline, x) for x in NEW]


def _score(pipeline: Any, x: Any) -> float:
    *front, learner = pipeline.steps.values()
    for step in front:
        x = step.transform_one(x)
    return float(learner.score_one(x))


def test_a_forest_explains_by_what_it_gets() -> None:
    pipeline = learned("TransformerUnion", auc.Forest(3, seed=1))
    model = models.loads(models.dumps(pipeline))
    *_, learner = pipeline.steps.values()
    z = pipeline.transform_one(NEW[0])
    assert model.explain_one(NEW[0]) == learner.explain_one(z)
    assert "country_NL" in model.explain_one(NEW[0]).features
    assert model.explain_rows is None


@pytest.mark.parametrize("step", [feature_extraction.BagOfWords, feature_extraction.TFIDF])
def test_words_of_no_field_are_those_of_a_text(step: Any) -> None:
    pipeline = step() | auc.PairOGD(seed=3)
    for text, y in [("cheap pills now", True), ("lunch at noon", False), ("cheap watches", True)] * 9:
        pipeline.learn_one(text, y)
    model = models.loads(models.dumps(pipeline))
    assert model.predict_proba_one("cheap lunch") == pipeline.predict_proba_one("cheap lunch")
    assert model.score_one("cheap") > model.score_one("noon")  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="the record is of type str"):
        models.export(learned("BagOfWords")).score_one("cheap")  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="cannot transform the record"):
        model.score_one({"text": "cheap"})


def test_a_pipeline_of_several_classes() -> None:
    pipeline = compose.Pipeline(table.STEPS["StandardScaler"](), auc.MulticlassForest(3, 31, positive="pro"))
    for x, _ in table.rows(60):
        pipeline.learn_one(x, x["plan"])
    model = models.loads(models.dumps(pipeline))
    assert [model.predict_proba_one(x) for x in NEW] == [pipeline.predict_proba_one(x) for x in NEW]
    assert [model.predict_one(x) for x in NEW] == [pipeline.predict_one(x) for x in NEW]


def test_what_a_step_cannot_take_is_an_error_of_the_record() -> None:
    model = models.export(learned("TransformerUnion"))
    for x, problem in (
        ({"amount": 1.0}, r"the step TransformerUnion cannot transform the record \(KeyError: 'country'\)"),
        ({**NEW[0], "amount": "much"}, "cannot transform the record .TypeError"),
        ({**NEW[0], "amount": math.nan}, "the feature 'amount' is nan"),
        (3, "the record is of type int"),
    ):
        with pytest.raises(RecordError, match=problem):
            model.score_one(x)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match=r"in record 1, the feature 'amount' is inf"):
        model.score_many([NEW[0], {**NEW[0], "amount": math.inf}])
    with pytest.raises(RecordError, match="an array has no names"):
        model.score_many(pd.DataFrame(NEW)[["amount", "age"]].to_numpy())


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_steps_get_the_cells_of_a_frame_as_they_are(make: Any) -> None:
    """An integer is no float to an encoder, and a column that no step reads may be of any type."""
    front = compose.Select("amount") + (compose.Select("floor") | preprocessing.OneHotEncoder())
    pipeline = compose.Pipeline(front, auc.PairOGD(seed=3))
    rows = [{**x, "floor": i % 3} for i, (x, _) in enumerate(table.rows(60))]
    for x, (_, y) in zip(rows, table.rows(60), strict=True):
        pipeline.learn_one(x, y)
    found = models.export(pipeline).score_many(make([{**x, "day": datetime.date(2026, 1, 5)} for x in rows]))
    assert list(found) == [pipeline.score_one(x) for x in rows]
    assert len({*found[:3]}) == 3


def test_a_feature_that_is_absent_is_imputed() -> None:
    pipeline = learned("StatImputer by the mean")
    model = models.export(pipeline)
    assert model.score_one({"amount": 3.0}) == pipeline.score_one({"amount": 3.0, "income": None})


def test_a_scaler_that_has_learned_too_little_gives_no_score() -> None:
    model = models.export(preprocessing.MinMaxScaler() | auc.PairOGD())
    with pytest.raises(NoScoreError, match="have learned too little"):
        model.score_one({"a": 1.0})


def test_only_steps_that_keep_a_guarantee_are_exported_with_a_private_learner() -> None:
    pipeline = own.Guarded(compose.Select("a", "b")) | auc.PairFTRL(
        1.0, 1e-4, 200, features=["a", "b"], noise_key=bytes(32)
    )
    assert privacy.check_pipeline(pipeline) == ()
    for i in range(200):
        pipeline.learn_one({"a": i % 7 / 7, "b": i % 3 / 3, "c": 1.0}, i % 7 > 3)
    model = models.loads(models.dumps(pipeline))
    assert model.privacy is not None
    assert model.privacy["kind"] == "holds"
    assert model.score_one({"a": 0.5, "b": 0.1}) == pipeline.score_one({"a": 0.5, "b": 0.1})
    with pytest.raises(ConfigError, match="the pipeline cannot be exported"):
        models.export(preprocessing.StandardScaler() | auc.PairFTRL(1.0, 1e-4, 200, features=["a"]))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all parts of a JSON value."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        found += places(item, (*path, key))
    return found


HOSTILE: list[Any] = [None, True, -1, 2**70, 1e308, "", "eval", [], [[]], {}, {"a": 1}]


@names
def test_a_damaged_file_is_refused_or_scores(name: str) -> None:
    """Whatever stands in place of any part of the steps: an error that says so, or a model of numbers."""
    text = models.dumps(learned(name))
    for path in places(json.loads(text)["steps"]):
        for value in HOSTILE:
            document = json.loads(text)
            part = document["steps"]
            for key in path[:-1]:
                part = part[key]
            part[path[-1]] = value
            try:
                model = models.loads(json.dumps(document).encode())
                model.score_one(NEW[0])
            except (SnapshotError, RecordError):
                continue


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"class": "river.preprocessing.RobustScaler"}, "there is no kind of steps"),
        ({"class": "builtins.eval"}, "there is no kind of steps"),
        ({"settings": {"with_std": "yes"}}, "bool"),
        ({"lists": {}}, "other parts"),
        ({"steps": [{}]}, "missing required field"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_what_no_step_can_be_is_named(change: dict[str, Any], problem: str) -> None:
    document = json.loads(models.dumps(learned("StandardScaler")))
    document["steps"][0]["steps"][1] |= change
    with pytest.raises(SnapshotError, match=problem):
        models.loads(json.dumps(document).encode())


def test_steps_within_steps_have_an_end() -> None:
    document = json.loads(models.dumps(learned("Select")))
    (step,) = document["steps"]
    for _ in range(30):
        step = {**step, "class": "river.compose.Pipeline", "settings": {}, "lists": {}, "steps": [step]}
    with pytest.raises(SnapshotError, match="nested too deeply"):
        models.loads(json.dumps({**document, "steps": [step]}).encode())
    with pytest.raises(SnapshotError, match="without different names"):
        models.loads(json.dumps({**document, "steps": []}).encode())


def test_other_steps_do_not_begin_with_a_model() -> None:
    model = models.export(learned("StandardScaler"))
    for online, problem in (
        (auc.PairOGD(), "the model stands behind the steps Pipeline"),
        (table.numbers() | auc.PairOGD(), "the name of one is 'Select' here, and 'Pipeline' in the model"),
        (
            compose.Pipeline(("Pipeline", table.numbers()), auc.PairOGD()),
            "the kind of one is 'river.compose.Sel",
        ),
        (table.pipeline("StandardScaler without spread"), "the settings of one is {'with_std': False} here"),
        (table.pipeline("Pipeline"), "the name of one is 'MaxAbsScaler' here, and None in the model"),
        (
            compose.Pipeline(table.STEPS["Guarded"](), auc.PairFTRL(1.0, 1e-4, 200, features=["a"])),
            "does not begin with a model behind other steps",
        ),
        (compose.Pipeline(table.STEPS["StandardScaler"](), auc.OAM()), "a OAM cannot begin with a model"),
    ):
        with pytest.raises(ConfigError, match=problem):
            model.to_online(online)
        *front, (_, _) = online.steps.items() if isinstance(online, compose.Pipeline) else (("", None),)
        for _, step in front:
            assert not getattr(step, "counts", None)
