"""One rule for labels: a value means the same to learners, frames, decoders, files, topics and requests."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pandas as pd
import polars as pl
import pytest
from harness.learners import PRIVATE, frozen
from streampair_connectors.cli.event_files import open_labels
from streampair_connectors.cli.late_labels import _Ids, _LabelFile
from streampair_connectors.codecs.formats import event_decoder
from streampair_connectors.codecs.labels import LabelDecoder
from streampair_connectors.config import Config, parse_config
from streampair_connectors.serve.errors import Refusal
from streampair_connectors.serve.scoring import Body, config_decoder, score_event

from streampair import auc, models, ranking
from streampair.engine import Record
from streampair.errors import RecordError
from streampair.evaluation import RollingAUC

HIGH, LOW, REFUSED, UNKNOWN = "high", "low", "refused", "unknown"
BOOLEANS: dict[str, Any] = {}
NUMBERS: dict[str, Any] = {"positive": 1, "negative": -1}
TEXTS: dict[str, Any] = {"positive": "Y", "negative": "N"}

#: The two labels, a value, and what it means.
TABLE: list[tuple[dict[str, Any], Any, str]] = [
    *((BOOLEANS, value, HIGH) for value in (True, 1, 1.0, "1", "1.0", "1.00", "+1", " 1 ", "1.000e+00")),
    *((BOOLEANS, value, HIGH) for value in ("true", "True", "TRUE", "tRUE", "yes", "Yes", "YES", " yes\t")),
    *((BOOLEANS, value, LOW) for value in (False, 0, 0.0, -0.0, "0", "0.00", "-0", "+0", "0e5", " 0.0 ")),
    *((BOOLEANS, value, LOW) for value in ("false", "False", "FALSE", "no", "No", "NO", " no ")),
    *(
        (BOOLEANS, value, REFUSED)
        for value in (2, "2", -1, "0.5", "Y", "n", "t", "on", "maybe", "1_0", "yes!")
    ),
    *((BOOLEANS, value, REFUSED) for value in ("inf", "-Infinity", "1e999", "None", "null", "\u0661")),
    *((BOOLEANS, value, UNKNOWN) for value in (None, "nan", "NaN", " -nan ")),
    *((NUMBERS, value, HIGH) for value in (1, True, "1", "yes", "true", "+1.0")),
    *((NUMBERS, value, LOW) for value in (-1, -1.0, "-1", "-1.00", " -1e0")),
    *((NUMBERS, value, REFUSED) for value in (0, False, "0", "no", "-", "Y")),
    *((TEXTS, value, HIGH) for value in ("Y", " Y ")),
    *((TEXTS, value, LOW) for value in ("N", "N\n")),
    *((TEXTS, value, REFUSED) for value in ("y", "n", "yes", "no", True, 0, "1", "inf")),
    *((TEXTS, value, UNKNOWN) for value in (None, "nan")),
    ({"positive": "yes", "negative": "no"}, True, HIGH),
    ({"positive": "yes", "negative": "no"}, "0.0", LOW),
    ({"positive": "0", "negative": "1"}, False, HIGH),
    ({"positive": "0", "negative": "1"}, "yes", LOW),
]


def meaning(call: Callable[[], Any]) -> str:
    """What a place makes of a label: `call` returns its sign, or None, or raises."""
    try:
        found = call()
    except (RecordError, Refusal) as error:
        unknown = "unknown" in str(error) and "unknown label" not in str(error)
        return UNKNOWN if unknown or "has no label" in str(error) or "no label in" in str(error) else REFUSED
    return {1.0: HIGH, -1.0: LOW, None: UNKNOWN}[found]


# ---- the library -------------------------------------------------------------------------------------------


def learner(labels: dict[str, Any]) -> Any:
    model = auc.PairOGD(seed=1, **labels)
    model.learn_one({0: 0.5, 1: 0.1}, model.positive)
    model.learn_one({0: -0.5, 1: 0.3}, model._negative)
    return model


ROW = np.array([[0.25, -1.0]])
FRAME = pd.DataFrame(ROW)


def sign_learned(labels: dict[str, Any], learn: Callable[[Any], None]) -> float:
    """By the state of a learner: that of one which has learned the label as it is declared."""
    model = learner(labels)
    states = {}
    for sign, y in ((1.0, model.positive), (-1.0, model._negative)):
        other = copy.deepcopy(model)
        other.learn_one(dict(enumerate(ROW[0].tolist())), y)
        states[str(frozen(other))] = sign
    learn(model)
    return states[str(frozen(model))]


def private_sign(labels: dict[str, Any], value: Any) -> float | None:
    """A private learner never raises: what it cannot use takes a null slot."""
    make = PRIVATE["auc-blt"]

    def learned(y: Any) -> Any:
        model = make(features=["a"], seed=0, **labels)
        for _ in range(12):
            model.learn_one({"a": 0.5}, y)
            model.learn_one({"a": -0.5}, model.positive)
        return model.null_slots, str(model.weights)

    model = make(features=["a"], **labels)
    found = learned(value)
    if found[0]:
        assert found == learned(None)
        return None
    return {learned(model.positive): 1.0, learned(model._negative): -1.0}[found]


def _prepared(model: Any, y: Any) -> None:
    ready = model.prepare_many([dict(enumerate(ROW[0].tolist()))], [y])
    if ready.refused:
        raise ready.refused[0]
    ready.take()


#: How a learner is given a label.
WAYS: dict[str, Callable[[Any, Any], None]] = {
    "learn_one": lambda model, y: model.learn_one(dict(enumerate(ROW[0].tolist())), y),
    "bytes": lambda model, y: model.learn_one(
        dict(enumerate(ROW[0].tolist())), y.encode("latin-1", "replace") if isinstance(y, str) else y
    ),
    "a batch of a lane": _prepared,
    "array of objects": lambda model, y: model.learn_many(ROW, np.array([y], dtype=object)),
    "array": lambda model, y: model.learn_many(ROW, np.array([y])),
    "pandas objects": lambda model, y: model.learn_many(FRAME, pd.Series([y], dtype=object)),
    "pandas": lambda model, y: model.learn_many(FRAME, pd.Series([y])),
    "pandas nullable": lambda model, y: model.learn_many(FRAME, pd.Series([y]).convert_dtypes()),
    "pandas categories": lambda model, y: model.learn_many(FRAME, pd.Series([y], dtype="category")),
    "polars": lambda model, y: model.learn_many(FRAME, pl.Series([y])),
    "polars categories": lambda model, y: model.learn_many(
        FRAME, pl.Series([y], dtype=pl.Categorical) if isinstance(y, str) else pl.Series([y])
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_in_the_library(way: str) -> None:
    for labels, value, expected in TABLE:
        found = meaning(lambda s=labels, y=value: sign_learned(s, lambda model: WAYS[way](model, y)))
        assert found == expected, (way, labels, value)


@pytest.mark.parametrize(
    "make", [auc.SPAUC, auc.OAM, lambda **labels: auc.Forest(3, 31, seed=0, **labels), RollingAUC]
)
def test_in_other_learners_and_metrics(make: Any) -> None:
    for labels, value, expected in TABLE:
        model = make(**labels)
        two = model._labels if isinstance(model, RollingAUC) else model._task._two
        assert meaning(lambda two=two, y=value: two.sign(y)) == expected
        if isinstance(model, RollingAUC):
            learn, give = model.update, (value, 0.5)
        else:
            learn, give = model.learn_one, ({"a": 1.0}, value)
        if expected in (HIGH, LOW):
            learn(*give)
        else:
            with pytest.raises(RecordError):
                learn(*give)


def test_in_a_private_learner() -> None:
    for labels, value, expected in TABLE:
        found = meaning(lambda labels=labels, value=value: private_sign(labels, value))
        assert found == (UNKNOWN if expected == REFUSED else expected), (labels, value)


@pytest.mark.parametrize(
    ("value", "relevance"),
    [
        *((value, 1.0) for value in (True, 1, "1", "+1.0", " 1 ", "true", "YES", b"1", np.float32(1.0))),
        *((value, 0.0) for value in (False, 0, "0.00", "no", "False")),
        *((value, 2.5) for value in (2.5, "2.5", "25e-1", b" +2.50 ")),
        *((value, None) for value in ("good", "", "nan", None, "inf", "1_0", "9", [1.0])),
    ],
)
def test_of_relevances(value: Any, relevance: float | None) -> None:
    """A text is the relevance that it spells, for private learners, too."""
    plain = ranking.PairOGD(relevance=(0, 4), seed=1)
    private = ranking.PairFTRL(1.0, 1e-3, 60, features=["a"], relevance=(0, 4), seed=1)
    if relevance is None:
        with pytest.raises(RecordError, match="relevance"):
            plain.learn_one({"a": 1.0}, value)
        private.learn_one({"a": 1.0}, None if value is None else value)
        assert private.null_slots == 1
        return
    assert plain._task.label(value) == plain._task.label(relevance)
    assert plain._task.labels([value]).tolist() == [plain._task.label(relevance)]
    plain.learn_one({"a": 1.0}, value)
    private.learn_one({"a": 1.0}, value)
    assert private.null_slots == 0


# ---- the connectors ----------------------------------------------------------------------------------------


def application(labels: dict[str, Any], **more: Any) -> Config:
    return parse_config(
        {
            "app": "a",
            "input": {"label": "y", "features": ["a"], **labels, **more},
            "learner": {"class": "streampair.auc.PairOGD", "options": {"seed": 1}},
        }
    )


def sign_of(labels: dict[str, Any], y: Any) -> float | None:
    """Of an event: it has a label as it is declared."""
    config = application(labels).input
    if y is None:
        return None
    assert type(y) is type(config.positive)
    return {config.positive: 1.0, config.negative_label(): -1.0}[y]


def decoded(config: Config, value: bytes, *, batch: bool) -> Any:
    decode: Any = event_decoder(config)
    if not batch:
        return decode(Record(0, value)).y
    rows = decode.many([Record(0, value)])
    if rows.refused:
        raise rows.refused[0]
    return rows.labels[0]


def json_event(value: Any) -> bytes:
    return json.dumps({"a": 1.5, "y": value}).encode()


AVRO = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Event",
        "fields": [
            {"name": "a", "type": "double"},
            {"name": "y", "type": ["null", "boolean", "long", "double", "string"]},
        ],
    }
)
AVRO_TEXT = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "a", "type": "double"}, {"name": "y", "type": ["null", "string"]}],
}


def avro_event(schema: Any, value: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), {"a": 1.5, "y": value})
    return body.getvalue()


def csv_event(value: Any) -> bytes | None:
    """A cell with the text; CSV has no other values, and cannot say that a text is empty."""
    return None if value is None or value == "" or "\n" in str(value) else f'1.5,"{value}"'.encode()


@pytest.mark.parametrize("batch", [False, True])
def test_in_events(tmp_path: Path, batch: bool) -> None:
    for number, schema in enumerate((AVRO, AVRO_TEXT)):
        (tmp_path / f"{number}.avsc").write_text(json.dumps(schema))
    for labels, value, expected in TABLE:
        csv_config = application(labels, format="csv", columns=["a", "y"])
        avro = application(labels, format="avro", schema_file=str(tmp_path / "0.avsc"))
        text = application(labels, format="avro", schema_file=str(tmp_path / "1.avsc"))
        framed = application(labels, format="json-schema")
        places: list[tuple[Config, bytes | None]] = [
            (application(labels), json_event(value)),
            (framed, b"\0\0\0\0\7" + json_event(value)),
            (csv_config, csv_event(value)),
            (avro, avro_event(AVRO, value)),
            (text, avro_event(AVRO_TEXT, value) if isinstance(value, str | None) else None),
        ]
        for config, event in places:
            if event is not None:
                found = meaning(lambda c=config, e=event, s=labels: sign_of(s, decoded(c, e, batch=batch)))
                assert found == expected, (config.input.format, labels, value)


def later(labels: dict[str, Any]) -> Config:
    return parse_config(
        {
            "app": "a",
            "input": {"features": ["a"], "id": "k", "time": "t", **labels},
            "label_input": {"topic": "l", "id": "k", "label": "y", "after": "1d"},
            "learner": {"class": "streampair.auc.PairOGD"},
        }
    )


def test_in_a_labels_topic() -> None:
    for labels, value, expected in TABLE:
        decode = LabelDecoder(later(labels))
        record = Record(0, json.dumps({"k": "i", "y": value}).encode())
        found = meaning(lambda decode=decode, record=record: (0, -1.0, 1.0)[decode(record).code])
        assert found == expected, (labels, value)
        many = decode.many([record])
        assert (many is None) == (expected in (REFUSED, UNKNOWN))
        assert many is None or many[1].tolist() == [{LOW: 1, HIGH: 2}[expected]]


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_in_a_file_of_labels(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"labels.{kind}"
    for labels, value, expected in TABLE:
        cells = csv_event(value)
        if kind == "csv" and cells is None:
            continue
        line = json.dumps({"k": "i", "t": 1_600_000_000_000, "y": value})
        if kind == "csv":
            line = f"t,k,y\n1600000000000,i,{(cells or b'').decode().partition(',')[2]}"
        path.write_text(f"{line}\n")
        config = later(labels)
        with open_labels(config, str(path)) as lines:
            assert config.label_input is not None
            file = _LabelFile(config, config.label_input, lines, _Ids())
            codes = [code for _, _, code in file.labels()]
        assert codes == {HIGH: [2], LOW: [1]}.get(expected, []), (labels, value)
        assert sum(file.errors.values()) == (not codes)


def test_in_a_request() -> None:
    """Nothing is learned from a request: a label changes no score, and one of neither class is refused."""
    trained = auc.PairOGD(seed=1)
    trained.learn_many(pd.DataFrame({"a": [1.0, -1.0]}), pd.Series([True, False]))
    model = models.export(trained)
    for labels, value, expected in TABLE:
        decoder = config_decoder(application(labels))
        found = meaning(lambda d=decoder, y=value, s=labels: sign_of(s, d.decode(Body(json_event(y))).y))
        assert found == expected, (labels, value)
        if expected == REFUSED:
            with pytest.raises(Refusal, match="unknown label"):
                score_event(model, decoder, Body(json_event(value)))
        else:
            found_score = score_event(model, decoder, Body(json_event(value))).score
            assert found_score == trained.score_one({"a": 1.5})


# ---- what the configuration declares -----------------------------------------------------------------------


def test_labels_of_the_configuration_are_read_by_the_same_rule() -> None:
    assert application({"positive": 1}).input.negative_label() == 0
    for absent in (False, 0, "no", "0.00", "FALSE"):
        config = parse_config(
            {
                "app": "a",
                "input": {"features": ["a"]},
                "label_input": {"topic": "l", "id": "key", "after": "1d", "absent": absent},
                "learner": {"class": "streampair.auc.PairOGD"},
            }
        )
        assert config.label_codes is not None
        assert config.label_codes[0] is False
    for two in ({"positive": "1", "negative": 1}, {"positive": True, "negative": "YES"}):
        with pytest.raises(Exception, match="the same label"):
            application(two)
