"""Steps of the table in front of a learner, in a lane: saved without pickle and without a key."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from harness import steps as table
from harness.driver import decode_json
from river import compose, feature_extraction, preprocessing, stats

from streampair import auc, steps
from streampair import preprocessing as own
from streampair.engine import Saving
from streampair.engine.lane import Lane, LaneId
from streampair.engine.pipeline import PipelineAdapter
from streampair.engine.snapshot import pack, unpack
from streampair.errors import ConfigError, SnapshotError

names = pytest.mark.parametrize("name", list(table.STEPS))


@names
def test_a_state_that_is_damaged_is_refused(name: str) -> None:
    """Whatever one value is exchanged for, an error says which step it was, or the value is as good."""
    model = PipelineAdapter(table.pipeline(name), positive=True)
    for x, y in table.rows(30):
        z, _, _ = model.score_event(x if model.features is None else model.features(x))
        model.learn_event(x, z, y, None)  # type: ignore[arg-type]  # only of private ones
    saved = unpack(pack({"entries": model.save()}), signing_keys=[])["entries"]
    refused = 0
    for place, entry in enumerate(saved):
        if entry["kind"] != "step":
            continue
        for damaged in damages(entry["state"]):
            entries = [*saved[:place], {**entry, "state": damaged}, *saved[place + 1 :]]
            with pytest.raises(SnapshotError, match="cannot be restored"):
                PipelineAdapter(table.pipeline(name), positive=True).load(entries, verified=False)
            refused += 1
    learns = any(entry["kind"] == "step" for entry in saved)
    assert refused > 0 or not learns


def damages(state: dict[str, Any]) -> list[Any]:
    """States that no step can have: parts of other types, lengths and ranges."""
    found: list[Any] = [None, {}, {**state, "more": 1}, {**state, "settings": {"other": True}}]
    for part in ("lists", "arrays"):
        found += [{**state, part: None}, {**state, part: {**state[part], "more": np.zeros(1)}}]
        for key, values in state[part].items():
            rest = {name: value for name, value in state[part].items() if name != key}
            if part == "arrays":
                wrong: list[Any] = [values.tolist(), np.append(values, 1.0), values.astype("int64")]
            else:
                wrong = [[*values, b"bytes"], [*values, [1]]]
            if len(values):
                wrong.append(values[:-1] if part == "arrays" else [*values, *values])
            found += [{**state, part: rest}, *({**state, part: {**rest, key: other}} for other in wrong)]
    return found


@pytest.mark.parametrize(
    ("step", "part", "key", "value"),
    [
        (preprocessing.StandardScaler(), "arrays", "counts", [-1.0]),
        (preprocessing.StandardScaler(), "arrays", "counts", [0.5]),
        (preprocessing.StandardScaler(), "arrays", "counts", [1e300]),
        (preprocessing.MinMaxScaler(), "arrays", "lowest", [9.0]),
        (preprocessing.MinMaxScaler(), "arrays", "highest", [math.nan]),
        (preprocessing.MaxAbsScaler(), "arrays", "largest", [-1.0]),
        (preprocessing.OneHotEncoder(), "lists", "columns", ["a_2.0"]),
        (preprocessing.OneHotEncoder(), "arrays", "sizes", [2.0]),
        (preprocessing.FeatureHasher(), "arrays", "seed", [2.0**32]),
        (feature_extraction.TFIDF(on="a"), "arrays", "documents", [0.0]),
        (preprocessing.StatImputer(("a", stats.Mean())), "arrays", "mean0", [-1.0, 0.0]),
        (preprocessing.StatImputer(("a", stats.Mode())), "arrays", "counts0", [0.5]),
    ],
)
def test_a_number_that_no_step_can_have_learned_is_refused(
    step: Any, part: str, key: str, value: list[Any]
) -> None:
    step = step.clone()
    x: Any = {"a": "one"} if isinstance(step, feature_extraction.TFIDF) else {"a": 1.0}
    step.learn_one(x)
    state = steps.save_step(step)
    steps.load_step(step.clone(), state)
    state[part][key] = np.array(value) if part == "arrays" else value
    with pytest.raises(ValueError, match=r"a number|a lowest|a term|a mean|seed|the columns|more or fewer"):
        steps.load_step(step.clone(), state)


@pytest.mark.parametrize(
    "step",
    [
        preprocessing.RobustScaler(),
        preprocessing.StandardScaler(window_size=5),
        preprocessing.MinMaxScaler(window_size=5),
        preprocessing.MaxAbsScaler(window_size=5),
        feature_extraction.TFIDF(on="note", ngram_range=(1, 2)),
        feature_extraction.TFIDF(on="note", tokenizer=str.split),
        feature_extraction.TFIDF(on="note", preprocessor=str.upper),
        feature_extraction.TFIDF(on="note", tokenizer_pattern="[a-z]+"),
        preprocessing.StatImputer(("income", stats.Max())),
        preprocessing.PreviousImputer(),
        compose.SelectType(bytes) | preprocessing.StandardScaler(window_size=2),
    ],
)
def test_any_other_step_is_saved_by_pickle_and_said(step: Any) -> None:
    assert steps.kind_of(step) is None
    model = compose.Pipeline(step, auc.PairOGD())
    with pytest.raises(ConfigError, match="only pickle can save"):
        Lane(model, decode_json, LaneId("a", "t", 0), saving=Saving())


def test_a_lane_restores_the_state_of_other_parameters_nowhere() -> None:
    model = preprocessing.StandardScaler()
    state = steps.save_step(model)
    with pytest.raises(ValueError, match="it was saved with"):
        steps.load_step(preprocessing.StandardScaler(with_std=False), state)


def test_what_neither_a_snapshot_nor_a_file_can_hold_is_named() -> None:
    for step, x in (
        (preprocessing.OneHotEncoder(), {"a": b"bytes"}),
        (preprocessing.OneHotEncoder(), {"a": (1, 2)}),
        (preprocessing.StandardScaler(), {("a", "b"): 1.0}),
    ):
        step.learn_one(x)
        for save in (steps.save_step, lambda step: steps.freeze("step", step)):
            with pytest.raises(ConfigError, match="which neither a snapshot nor a model file can hold"):
                save(step)


def test_select_has_the_same_order_in_every_process() -> None:
    """Its fields are a set, whose order differs; sums in another order have other bits."""
    fields = [f"name{i:02}" for i in range(30)]
    x = dict.fromkeys(reversed(fields), 1.0)
    for step in (compose.Select(*fields), own.Guarded(compose.Select(*fields)) | own.UnitBall()):
        model = PipelineAdapter(compose.Pipeline(step, auc.PairOGD()), positive=True)
        assert model.features is not None
        assert list(model.features(x)) == fields
    again = steps.make(steps.freeze("select", compose.Select(*fields)))
    assert list(again.transform_one(x)) == fields
