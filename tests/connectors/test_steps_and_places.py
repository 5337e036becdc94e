"""Steps and places: every step of the table, wherever a model can be, as docs/learners.md says."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import polars as pl
import pytest
from harness import pages
from harness import steps as table
from harness.driver import Driver
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import InputConfig
from streampair_connectors.serve.scoring import Body, model_decoder, score_events
from streampair_connectors.worker.scoring import score_records

from streampair import auc, models
from streampair.engine import Record, Saving
from streampair.engine.lane import Lane, LaneId
from streampair.errors import ConfigError
from streampair.steps import KINDS

ROWS = table.rows(60)
NEW = [x for x, _ in table.rows(40, seed=1)]


def learned(name: str, learner: Any = None) -> Any:
    pipeline = table.pipeline(name, learner)
    for x, y in ROWS:
        pipeline.learn_one(x, y)
    return pipeline


def loaded(pipeline: Any) -> models.Model:
    return models.loads(models.dumps(pipeline))


def scores_of(model: Any) -> list[float]:
    return [model.score_one(x) for x in NEW]


def in_a_snapshot(name: str) -> None:
    """A lane goes on after a crash with the same bits, without pickle and without a key."""
    driver = Driver(lambda: table.pipeline(name), saving=Saving())
    assert driver.feed(ROWS[:40]).dead_letters == []
    driver.commit()
    copied = copy.deepcopy(driver.lane.model)
    driver.crash()
    output = driver.feed(ROWS[40:])
    for (x, y), scored in zip(ROWS[40:], output.scores, strict=True):
        assert scored.score == copied.score_one(x)
        copied.learn_one(x, y)


def on_frames(name: str) -> None:
    """The rows of a frame have the bits of the records."""
    pipeline = learned(name)
    for frame in (pd.DataFrame(NEW), pl.DataFrame(NEW)):
        assert loaded(pipeline).score_many(frame).to_list() == scores_of(pipeline)


def in_a_model_file(name: str) -> None:
    """One by one and in lists; and what is saved again is the same."""
    pipeline = learned(name)
    model = loaded(pipeline)
    assert models.dumps(model) == models.dumps(pipeline)
    assert scores_of(model) == model.score_many(NEW).tolist() == scores_of(pipeline)
    assert [model.predict_proba_one(x) for x in NEW] == [pipeline.predict_proba_one(x) for x in NEW]
    assert {*model.features} <= {*NEW[0]}


def in_parallel_scorers(name: str) -> None:
    """The scores of the lane, of the model that it publishes."""
    config = InputConfig(label="y", features=list(NEW[0]))
    decode = json_decoder(config, gaps=True, nulls=name == table.ALONE, texts=True)
    lane = Lane(table.pipeline(name), decode, LaneId("a", "t", 0), saving=Saving())
    takes_gaps = "Imputer" in name or name == table.ALONE
    whole = [(x, y) for x, y in ROWS if x["income"] is not None or takes_gaps]
    lane.process([Record(i, json.dumps({**x, "y": y}).encode()) for i, (x, y) in enumerate(whole)])
    records = [Record(len(whole) + i, json.dumps(x).encode()) for i, x in enumerate(NEW)]
    found = score_records(loaded(lane.model), decode, records)
    output = lane.process(records)
    assert found == (output.scores, output.dead_letters)


def over_http(name: str) -> None:
    """By the model file alone, which says what the fields are."""
    pipeline = learned(name)
    model = loaded(pipeline)
    events = [{field: x[field] for field in model.features} for x in NEW]
    events = [x for x in events if model.takes_gaps or None not in x.values()]
    bodies = [Body(json.dumps(x).encode()) for x in events]
    assert score_events(model, model_decoder(model), bodies).scores == [pipeline.score_one(x) for x in events]


def in_a_graph(name: str) -> None:
    """Up to rounding."""
    model = loaded(learned(name))
    session = onnxruntime.InferenceSession(models.to_onnx(model).SerializeToString())
    (found,) = session.run(["score"], models.onnx_inputs(model, NEW))
    assert np.abs(found - model.score_many(NEW)).max() < 1e-9


def at_the_start(name: str) -> None:
    """A new pipeline begins with the scores of the model, and its steps go on with the same bits."""
    pipeline = learned(name)
    online = loaded(pipeline).to_online(table.pipeline(name))
    assert scores_of(online) == scores_of(pipeline)
    for x, y in table.rows(20, seed=2):
        online.learn_one(x, y)
        pipeline.learn_one(x, y)
    assert [table.transformed(online, x) for x in NEW] == [table.transformed(pipeline, x) for x in NEW]


def with_reasons(name: str) -> None:
    """Of forests and linear learners, by what they get."""
    learners = [auc.PairOGD(seed=3), *([] if name == table.ALONE else [auc.Forest(3, 31, seed=1)])]
    for learner in learners:
        pipeline = learned(name, learner)
        model = loaded(pipeline)
        for x in NEW:
            assert model.explain_one(x) == learner.explain_one(table.transformed(pipeline, x))


PLACES: dict[str, Callable[[str], None]] = {
    "snapshot": in_a_snapshot,
    "frame": on_frames,
    "model file": in_a_model_file,
    "scorers": in_parallel_scorers,
    "`serve`": over_http,
    "ONNX": in_a_graph,
    "`start`": at_the_start,
    "reasons": with_reasons,
}


def documented() -> dict[str, dict[str, bool]]:
    """The table of the page: for each step, whether it can be in a place."""
    text = pages.text_of("docs/learners.md").partition("## Pipelines\n")[2].partition("\n## ")[0]
    head, _, *lines = [line.strip("|").split("|") for line in re.findall(r"^\|.*$", text, re.MULTILINE)]
    places = [cell.strip() for cell in head[1:]]
    return {
        step.strip().strip("`"): {
            place: cell.strip() == "yes" for place, cell in zip(places, cells, strict=True)
        }
        for step, *cells in lines
    }


def test_each_row_of_the_table_is_tested_and_documented() -> None:
    assert {table.kind_tested(name) for name in table.STEPS} == KINDS.keys()
    page = documented()
    assert list(page) == [table.ALONE, *KINDS]
    assert all(list(cells) == list(PLACES) for cells in page.values())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", [table.ALONE, *table.STEPS])
def test_a_step_is_where_the_page_says(name: str, place: str) -> None:
    if documented()[table.kind_tested(name)][place]:
        PLACES[place](name)
    else:
        with pytest.raises(ConfigError, match=r"has no form in the standard operators"):
            PLACES[place](name)
