"""Pipelines as ONNX graphs: the scores of the model, or an error that names the step."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnxruntime
import pytest
from harness import steps as table
from river import compose, preprocessing, stats

from streampair import auc, metric, models, steps
from streampair import preprocessing as own
from streampair.errors import ConfigError, RecordError
from streampair.models.onnx_steps import GRAPHS

NEW = [x for x, _ in table.rows(40, seed=1)]
LEARNERS = {
    "linear": auc.PairOGD(seed=3),
    "forest": auc.Forest(3, 31, seed=1),
    "metric": metric.PairOGD(seed=1),
}


def learned(front: Any, learner: Any = None) -> models.Model:
    pipeline = compose.Pipeline(front, auc.PairOGD(seed=3) if learner is None else learner.clone())
    for x, y in table.rows(60):
        pipeline.learn_one(x, y)
    return models.export(pipeline)


def difference(model: models.Model, records: list[Any]) -> float:
    """Largest difference of a score of the graph from that of the model."""
    session = onnxruntime.InferenceSession(models.to_onnx(model).SerializeToString())
    (scores,) = session.run(["score"], models.onnx_inputs(model, records))
    return float(np.abs(scores - model.score_many(records)).max())


def has_graph(step: Any) -> bool:
    inner = getattr(step, "steps", None) or getattr(step, "transformers", None) or {}
    return steps.public_name(step) in GRAPHS and all(map(has_graph, inner.values()))


def test_only_steps_of_the_table_have_graphs() -> None:
    assert GRAPHS.keys() <= steps.KINDS.keys()


def test_inputs_make_the_steps_of_a_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = learned(table.STEPS["StandardScaler"]())
    first = models.onnx_inputs(model, NEW)
    monkeypatch.delattr(models, "front_graph")
    again = models.onnx_inputs(model, NEW)
    assert {name: values.tolist() for name, values in again.items()} == {
        name: values.tolist() for name, values in first.items()
    }


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("name", list(table.STEPS))
def test_a_graph_has_the_scores_of_the_model(name: str, learner: str) -> None:
    """With texts that no step has seen, too."""
    model = learned(table.STEPS[name](), LEARNERS[learner])
    if has_graph(table.STEPS[name]()):
        new = [{**x, "country": "XK"} for x in NEW[:5]]
        assert difference(model, [*NEW, *new]) < 1e-9
        return
    with pytest.raises(ConfigError, match=r"the step \S+ \(.*\) has no form in the standard operators"):
        models.to_onnx(model)


@pytest.mark.parametrize(
    "front",
    [
        compose.SelectType(str) | compose.Discard("note") | preprocessing.OneHotEncoder(),
        (compose.SelectType(float) | preprocessing.MinMaxScaler())
        + (compose.Select("plan") | preprocessing.OneHotEncoder(drop_zeros=True)),
        (table.numbers() | preprocessing.StandardScaler()) + table.numbers(),
        table.usual() | preprocessing.MaxAbsScaler(),
        compose.Select("country", "plan") | own.OneHot({"country": ["NL", "BE"], "plan": ["1", "pro"]}),
    ],
)
def test_steps_may_be_combined(front: Any) -> None:
    assert difference(learned(front), NEW) < 1e-9


def test_a_field_that_is_absent() -> None:
    front = compose.SelectType(str) | compose.Discard("note") | preprocessing.OneHotEncoder()
    for learner in LEARNERS.values():
        model = learned(front.clone(), learner)
        assert difference(model, [{"country": "NL"}, {"plan": "pro", "country": 3.0}]) < 1e-9


def test_values_of_other_types_are_categories_by_their_text() -> None:
    pipeline = compose.Select("a") | preprocessing.OneHotEncoder() | auc.PairOGD()
    values = [1, 1.0, 2.5, "text", "", True, None]
    for i in range(70):
        pipeline.learn_one({"a": values[i % 7]}, i % 3 == 0)
    assert difference(models.export(pipeline), [{"a": value} for value in [*values, 3, "1", "1.0"]]) < 1e-9
    with pytest.raises(RecordError, match="the field 'a' has several categories"):
        models.onnx_inputs(models.export(pipeline), [{"a": ["text", 1]}])


def test_declared_values_are_read_as_by_the_step() -> None:
    pipeline = own.OneHot({"a": [1, 2, "text"]}) | auc.PairOGD()
    for i in range(30):
        pipeline.learn_one({"a": [1, "2", "text"][i % 3], "b": 1.0}, i % 3 == 0)
    events = [{"a": value, "b": 2.0} for value in (1, 1.0, "1", "1.0", " 2", True, "text", "other", None)]
    assert difference(models.export(pipeline), [*events, {"b": 1.0}]) < 1e-9


def test_yes_and_no_are_categories_of_their_own() -> None:
    """Of a label they would be True and False, and so 1 and 0."""
    values = ["yes", "no", "1", "0"]
    pipeline = own.OneHot({"a": values}) | auc.PairOGD()
    for i in range(40):
        pipeline.learn_one({"a": values[i % 4], "b": 1.0}, i % 4 in (0, 3))
    assert len({pipeline.score_one({"a": value, "b": 1.0}) for value in ("yes", "1")}) == 2
    assert difference(models.export(pipeline), [{"a": value, "b": 1.0} for value in values]) < 1e-9


@pytest.mark.parametrize(
    ("front", "problem"),
    [
        (table.texts() | preprocessing.OneHotEncoder(drop_first=True), "drops the first of the categories"),
        (table.numbers() | preprocessing.MaxAbsScaler() | preprocessing.OneHotEncoder(), "which other steps"),
        (
            table.numbers() | preprocessing.MaxAbsScaler() | compose.SelectType(float),
            "selects by the type of what other steps return",
        ),
        (
            preprocessing.StatImputer(("income", "none")) | compose.Select("amount"),
            "puts 'none' where 'income' is missing",
        ),
        (
            compose.Discard("note", "income", *table.TEXTS) | own.RandomFourier(4, 0.01),
            "which fields the steps",
        ),
    ],
)
def test_what_has_no_graph_is_named(front: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        models.to_onnx(learned(front))


def test_a_forest_that_gets_texts_from_steps_has_no_graph() -> None:
    with pytest.raises(ConfigError, match="has learned texts that its steps let pass"):
        models.to_onnx(learned(compose.Select("amount", "country"), auc.Forest(3, 31, seed=1)))


def test_what_goes_with_a_graph_names_the_fields() -> None:
    graph = models.to_onnx(learned(table.usual()))
    props = {entry.key: json.loads(entry.value) for entry in graph.metadata_props}
    assert props["streampair.features"] == ["age", "amount"]
    assert sorted(props["streampair.strings"]) == ["country", "plan"]
    assert props["streampair.steps"] == ["TransformerUnion"]


def test_an_imputer_without_a_value_yet() -> None:
    pipeline = preprocessing.StatImputer(("a", stats.Mode())) | auc.PairOGD()
    pipeline.learn_one({"a": 1.0, "b": 2.0}, True)
    assert difference(models.export(pipeline), [{"a": None, "b": 1.0}, {"b": 3.0}]) < 1e-9
