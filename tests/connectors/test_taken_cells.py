"""Records with gaps and texts, as a forest takes them, through the decoders and a lane."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from streampair_connectors.cli.replay import Replay
from streampair_connectors.codecs.records import csv_decoder, json_decoder
from streampair_connectors.config import Config, InputConfig, parse_config
from streampair_connectors.worker.factory import build_lane, build_learner, taken_cells

from streampair.engine import Record
from streampair.errors import RecordError

NAMES = ["amount", "country"]
FOREST = {"class": "streampair.auc.Forest", "options": {"trees": 3, "nodes": 31, "seed": 1}}
PRIVATE = {
    "class": "streampair.auc.PrivateForest",
    "options": {"epsilon": 9.0, "delta": 1e-3, "horizon": 400, "trees": 2, "depth": 2, "warmup": 40},
}
TAKING = {"gaps": True, "texts": True}


def config_of(learner: dict[str, Any], **options: Any) -> Config:
    return parse_config({"app": "a", "input": {"label": "y", **options}, "learner": learner})


def rows(count: int, *, texts: bool = True) -> list[dict[str, Any]]:
    """Records, of which many lack a feature."""
    draw = random.Random(1)
    made = []
    for index in range(count):
        x: dict[str, Any] = {"amount": draw.gauss(0.0, 1.0)}
        x["country"] = draw.choice(["NL", "BE", "two words"]) if texts else draw.random()
        gap = draw.choice([None, None, *NAMES])
        if gap is not None and index:
            x.pop(gap)
        made.append({**x, "y": bool(draw.random() < 0.5)})
    return made


@pytest.mark.parametrize(
    ("features", "value", "x"),
    [
        (NAMES, {"amount": 1, "country": "NL"}, {"amount": 1.0, "country": "NL"}),
        (NAMES, {"country": "NL"}, {"country": "NL"}),
        (NAMES, {"amount": None, "country": "NL", "other": [1]}, {"country": "NL"}),
        (NAMES, {"amount": "1", "country": True}, {"amount": "1", "country": True}),
        ([*NAMES, "a\\b"], {"amount": 1, "country": "NL"}, {"amount": 1.0, "country": "NL"}),
        (None, {"amount": 1, "country": "NL", "late": None}, {"amount": 1.0, "country": "NL"}),
        ({"amount": [0, 9]}, {"amount": None}, {}),
        ({"amount": [0, 9], "card": ["a"]}, {"card": "a"}, {"card=a": 1.0}),
    ],
)
def test_what_a_forest_takes_is_passed_on(features: Any, value: dict[str, Any], x: dict[str, Any]) -> None:
    decode = json_decoder(InputConfig(label="y", features=features), **TAKING)
    event = decode(Record(0, json.dumps({**value, "y": True}).encode()))
    assert (event.x, event.y) == (x, True)
    assert [type(item) for item in event.x.values()] == [type(item) for item in x.values()]


@pytest.mark.parametrize("features", [NAMES, None])
@pytest.mark.parametrize("cell", ["[1]", '{"a": 1}', "1e999", "1" * 400, "1" * 5000])
def test_what_no_learner_takes_is_refused_as_ever(features: Any, cell: str) -> None:
    value = f'{{"amount": {cell}, "country": "NL", "y": true}}'.encode()
    stages = set()
    for taking in ({}, {"gaps": True}, TAKING):
        with pytest.raises(RecordError, match=r"amount|country") as caught:
            json_decoder(InputConfig(label="y", features=features), **taking)(Record(0, value))
        stages.add(caught.value.stage)
    assert stages == {"features"}


@pytest.mark.parametrize(
    ("features", "value", "x"),
    [
        (NAMES, {"amount": 1, "country": "NL"}, {"amount": 1.0, "country": "NL"}),
        (NAMES, {"country": "NL"}, {"amount": None, "country": "NL"}),
        (NAMES, {"amount": None, "country": True}, {"amount": None, "country": True}),
        (None, {"amount": 1, "country": None}, {"amount": 1.0, "country": None}),
        ({"amount": [0, 9], "card": ["a"]}, {"card": "a"}, {"amount": None, "card=a": 1.0}),
    ],
)
def test_what_a_linear_learner_takes_is_passed_on(
    features: Any, value: dict[str, Any], x: dict[str, Any]
) -> None:
    """A declared field that is not there is a gap, and one that nobody declared is not there."""
    decode = json_decoder(InputConfig(label="y", features=features), **TAKING, nulls=True)
    event = decode(Record(0, json.dumps({**value, "y": True}).encode()))
    assert (event.x, event.y) == (x, True)
    assert [type(item) for item in event.x.values()] == [type(item) for item in x.values()]


def test_a_feature_with_bounds_is_a_number() -> None:
    decode = json_decoder(InputConfig(label="y", features={"amount": [0, 9]}), **TAKING)
    with pytest.raises(RecordError, match="'amount' is text"):
        decode(Record(0, b'{"amount": "much", "y": true}'))


def test_gaps_alone() -> None:
    """As of `PrivateForest`, to which a text is nothing."""
    for features in (NAMES, None):
        decode = json_decoder(InputConfig(label="y", features=features), gaps=True)
        assert decode(Record(0, b'{"amount": 1, "country": null, "y": true}')).x == {"amount": 1.0}
        with pytest.raises(RecordError, match="'country' is text"):
            decode(Record(0, b'{"amount": 1, "country": "NL", "y": true}'))


def test_a_csv_cell_is_a_gap_a_number_or_a_text() -> None:
    config = InputConfig(label="y")
    decode = csv_decoder(config, [*NAMES, "y"], **TAKING)
    assert decode(Record(0, b"1e2,,1")).x == {"amount": 100.0}
    assert decode(Record(0, b",NL,0")).x == {"country": "NL"}
    assert decode(Record(0, b"x,007,1")).x == {"amount": "x", "country": 7.0}
    for line in (b"nan,NL,1", b"inf,NL,1"):
        with pytest.raises(RecordError, match="'amount' is not finite"):
            decode(Record(0, line))
    with pytest.raises(RecordError, match="'country' is missing"):
        csv_decoder(config, [*NAMES, "y"])(Record(0, b"1,,1"))


def test_a_text_that_is_declared_a_number_is_refused_in_csv_as_in_json() -> None:
    config = InputConfig(label="y", features=NAMES, fields={"amount": "number"})
    line, message = csv_decoder(config, [*NAMES, "y"], **TAKING), json_decoder(config, **TAKING)
    for decode, value in (
        (line, b'"11,5",NL,1'),
        (message, b'{"amount": "11,5", "country": "NL", "y": true}'),
    ):
        with pytest.raises(RecordError, match="'amount' is a text that is no number"):
            decode(Record(0, value))
    assert line(Record(0, b"11.5,NL,1")).x == {"amount": 11.5, "country": "NL"}
    assert line(Record(0, b",NL,1")).x == {"country": "NL"}


def test_batches_are_arrays_while_all_records_are_whole() -> None:
    decode: Any = json_decoder(InputConfig(label="y", features=NAMES), **TAKING)
    whole = [Record(i, b'{"amount": 1, "country": 2, "y": true}') for i in range(3)]
    assert decode.many(whole).values.tolist() == [[1.0, 2.0]] * 3
    for other in (b'{"country": "NL", "y": true}', b'{"amount": 1, "country": true, "y": true}'):
        assert decode.many([*whole, Record(3, other)]) is None


OGD = {"class": "streampair.auc.PairOGD", "options": {"seed": 1}}
METRIC = {"class": "streampair.metric.PairOGD"}
REGRESSION = {"class": "river.linear_model.LogisticRegression"}
SCALER = {"class": "river.preprocessing.StandardScaler"}
ENCODER = {"class": "river.preprocessing.OneHotEncoder"}
IMPUTER = {"class": "river.preprocessing.StatImputer", "options": {"imputers": [["amount", 0.0]]}}
HASHER = {"class": "river.preprocessing.FeatureHasher", "n_features": 8}


@pytest.mark.parametrize(
    ("learner", "cells"),
    [
        (FOREST, {"gaps": True, "nulls": False, "texts": True}),
        ({"class": "streampair.ranking.Forest"}, {"gaps": True, "nulls": False, "texts": True}),
        ({"class": "streampair.auc.MulticlassForest"}, {"gaps": True, "nulls": False, "texts": True}),
        (PRIVATE, {"gaps": True, "nulls": False, "texts": False}),
        (OGD, {"gaps": True, "nulls": True, "texts": True}),
        ({"class": "streampair.ranking.PairOGD"}, {"gaps": True, "nulls": True, "texts": True}),
        (METRIC, {"gaps": False, "nulls": False, "texts": False}),
        (REGRESSION, {"gaps": False, "nulls": False, "texts": False}),
        ({"steps": [SCALER, FOREST]}, {"gaps": True, "nulls": False, "texts": True}),
        ({"steps": [SCALER, OGD]}, {"gaps": True, "nulls": False, "texts": True}),
        ({"steps": [SCALER, METRIC]}, {"gaps": False, "nulls": False, "texts": False}),
        ({"steps": [ENCODER, METRIC]}, {"gaps": False, "nulls": False, "texts": True}),
        ({"steps": [IMPUTER, METRIC]}, {"gaps": True, "nulls": False, "texts": True}),
        (
            {
                "steps": [
                    {"class": "river.compose.TransformerUnion", "options": {"transformers": [HASHER]}},
                    METRIC,
                ]
            },
            {"gaps": False, "nulls": False, "texts": True},
        ),
        ({"class": "nowhere.Nothing"}, {}),
    ],
)
def test_what_a_learner_takes_is_read_from_its_class(learner: Any, cells: dict[str, bool]) -> None:
    assert taken_cells(config_of(learner)) == (cells and {**cells, "quotes": learner is not PRIVATE})


@pytest.mark.parametrize("learner", [FOREST, OGD], ids=["forest", "linear"])
@pytest.mark.parametrize("features", [NAMES, None])
@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv"])
def test_a_lane_learns_every_record_that_the_learner_learns(
    tmp_path: Path, features: Any, kind: str, learner: dict[str, Any]
) -> None:
    config, made = config_of(learner, features=features), rows(200)
    path = tmp_path / f"events.{kind}"
    if kind == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, [*NAMES, "y"], restval="")
        writer.writeheader()
        writer.writerows([{**row, "y": int(row["y"])} for row in made])
        data = text.getvalue().encode()
    else:
        data = b"".join(json.dumps(row).encode() + b"\n" for row in made)
    path.write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
    scores, letters = io.BytesIO(), list[bytes]()
    Replay(config, str(path), scores.write, letters.append).run()
    assert not letters
    scored = list(map(msgspec.json.decode, scores.getvalue().splitlines()))
    reference: Any = build_learner(config)
    for row, got in zip(made, scored, strict=True):
        x = {name: row[name] for name in NAMES if name in row}
        if learner is OGD and (features or kind == "csv"):  # what is declared and not there is a gap
            x = {name: row.get(name) for name in NAMES}
        assert (got["outcome"], got["score"]) == ("learned", reference.score_one(x))
        reference.learn_one(x, row["y"])


def test_a_private_forest_learns_the_rest_of_a_record_with_a_gap() -> None:
    """Behind the warm-up, where leaves take what there is."""
    config, made = config_of(PRIVATE, features=NAMES), rows(200, texts=False)
    decode = json_decoder(config.input, **taken_cells(config))
    lane = build_lane(config, decode, snapshots=False)
    whole = [row for row in made if len(row) == 3] + [row for row in made if len(row) < 3]
    values = [Record(i, json.dumps(row).encode()) for i, row in enumerate(whole)]
    gaps = sum(len(row) < 3 for row in made)
    output = lane.process(values)
    assert gaps > 50
    assert not output.dead_letters
    assert {scored.outcome for scored in output.scores} == {"learned"}
    assert lane.gauges().null_slots == 0
    strict = build_lane(config, json_decoder(config.input), snapshots=False)
    strict.process(values)
    assert strict.gauges().null_slots == gaps  # it can fail
