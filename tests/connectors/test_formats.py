"""Events in Avro, in JSON behind the id of a schema, and in CSV."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from harness.schema_registry import Registry, avro, record_schema
from pydantic import SecretStr
from streampair_connectors.codecs.formats import event_decoder
from streampair_connectors.codecs.labels import DecodedLabel, LabelDecoder, event_ids
from streampair_connectors.config import Config, parse_config

from streampair import auc
from streampair.engine import Lane, LaneId, Record
from streampair.errors import ConfigError, RecordError, SourceError

FIELDS = [
    {"name": "a", "type": "double"},
    {"name": "b", "type": ["null", "long"], "default": None},
    {"name": "y", "type": "boolean"},
]


def configured(base: Path | None = None, **more: Any) -> Config:
    tables = {name: more.pop(name) for name in ("label_input", "schema_registry") if name in more}
    declared = {"features": ["a", "b"], **({} if "label_input" in tables else {"label": "y"}), **more}
    learner = {"class": "streampair.auc.PairOGD"}
    return parse_config({"app": "test", "input": declared, "learner": learner, **tables}, base=base)


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.close()


LABELS = {"topic": "labels", "id": "k", "label": "bad", "after": "1d"}


def with_registry(registry: Registry, **more: Any) -> Config:
    return configured(format="avro", schema_registry={"url": registry.url}, **more)


def decoded(config: Config, values: list[bytes | None], **options: bool) -> list[Any]:
    """Each event, or the text of its error; batches must agree with single events."""
    decode: Any = event_decoder(config, **options)
    records = [Record(i, value) for i, value in enumerate(values)]
    one: list[Any] = []
    for record in records:
        try:
            one.append(decode(record))
        except RecordError as error:
            one.append(str(error))
    rows = decode.many(records)
    if rows is not None:
        refused = rows.refused or {}
        for i, each in enumerate(one):
            if isinstance(each, str):
                assert str(refused[i]) == each
            else:
                assert i not in refused
                assert dict(zip(rows.names, rows.values[i].tolist(), strict=True)) == each.x
                assert (rows.labels[i], None if rows.ids is None else rows.ids[i]) == (each.y, each.id)
    return one


def test_avro_with_a_schema_file(tmp_path: Path) -> None:
    (tmp_path / "event.avsc").write_text(json.dumps(record_schema(FIELDS)))
    config = configured(tmp_path, format="avro", schema_file="event.avsc")
    good, gap = ({"a": 1.5, "b": b, "y": True} for b in (7, None))
    first, second, cut, longer, tombstone = decoded(
        config,
        [avro(FIELDS, good), avro(FIELDS, gap), avro(FIELDS, good)[:-2], avro(FIELDS, good) + b"x", None],
    )
    assert (first.x, first.y) == ({"a": 1.5, "b": 7.0}, True)
    assert "'b' is null" in second
    assert "does not fit its Avro schema" in cut
    assert "bytes are left over" in longer
    assert "tombstone" in tombstone
    assert decoded(config, [avro(FIELDS, gap)], gaps=True)[0].x == {"a": 1.5}


def test_a_schema_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "event.avsc").write_text(json.dumps(record_schema(FIELDS)), "utf-8-sig")
    config = configured(tmp_path, format="avro", schema_file="event.avsc")
    assert decoded(config, [avro(FIELDS, {"a": 1.5, "b": 7, "y": True})])[0].y is True


@pytest.mark.parametrize("text", ["", "{", '"int"', '{"type": "enum"}', '{"type": "record"}'])
def test_a_schema_file_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "event.avsc").write_text(text)
    with pytest.raises(ConfigError, match="schema_file"):
        event_decoder(configured(tmp_path, format="avro", schema_file="event.avsc"))


# From the binary encodings that the Avro specification gives as examples.
@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("long", b"\x00", 0.0),
        ("long", b"\x01", -1.0),
        ("long", b"\x02", 1.0),
        ("int", b"\x7f", -64.0),
        ("int", b"\x80\x01", 64.0),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, b"\x04\x04\xd2", 12.34),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xd0\x0f", 1000.0),
        ({"type": "int", "logicalType": "date"}, b"\x02", 1.0),
        (["null", "long"], b"\x02\x36", 27.0),
        ("string", b"\x06foo", "'a' is text"),
        (["null", "string"], b"\x00", "'a' is null"),
        ({"type": "array", "items": "long"}, b"\x04\x06\x36\x00", "'a' is a list"),
        ("bytes", b"\x02x", "'a' is not a number"),
        ("double", b"\0\0\0\0\0\0\xf8\x7f", "'a' is not finite"),
    ],
)
def test_types_of_avro(tmp_path: Path, kind: Any, data: bytes, value: float | str) -> None:
    (tmp_path / "event.avsc").write_text(json.dumps(record_schema([{"name": "a", "type": kind}])))
    config = configured(tmp_path, format="avro", schema_file="event.avsc", features=["a"])
    (found,) = decoded(config, [data])
    if isinstance(value, str):
        assert value in found
    else:
        assert found.x == {"a": value}
        assert found.y is None


def test_evolution_within_a_batch(registry: Registry) -> None:
    more = [*FIELDS, {"name": "c", "type": ["null", "string"], "default": None}]
    fewer = [FIELDS[0], FIELDS[2]]
    changed = [FIELDS[0], {"name": "b", "type": "string"}, FIELDS[2]]
    for number, fields in enumerate([FIELDS, more, fewer, changed], 1):
        registry.add(number, fields)
    values: list[bytes | None] = [
        avro(FIELDS, {"a": 1, "b": 2, "y": True}, 1),
        avro(more, {"a": 3, "b": 4, "y": False, "c": "new"}, 2),
        avro(fewer, {"a": 5, "y": True}, 3),
        avro(changed, {"a": 5, "b": "7", "y": True}, 4),
        avro(FIELDS, {"a": 8, "b": 9, "y": False}, 1),
    ]
    found = decoded(with_registry(registry), values)
    assert [each.x for each in found if not isinstance(each, str)] == [
        {"a": 1.0, "b": 2.0},
        {"a": 3.0, "b": 4.0},
        {"a": 8.0, "b": 9.0},
    ]
    assert "'b' is missing" in found[2]
    assert "'b' is text" in found[3]
    assert len(registry.requests) == 4  # each schema once


def test_a_schema_refers_to_another(registry: Registry) -> None:
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}
    registry.subjects["/subjects/a%2Fb/versions/3"] = {"schema": json.dumps(money)}
    fields = [{"name": "a", "type": "int"}, {"name": "price", "type": "Money"}]
    registry.schemas[1] = {
        "schema": json.dumps({"type": "record", "name": "Event", "fields": fields}),
        "references": [{"name": "Money", "subject": "a/b", "version": 3}],
    }
    assert decoded(with_registry(registry, features=["a"]), [b"\0\0\0\0\1\x02\x04"])[0].x == {"a": 1.0}


def test_ids_that_cannot_be_used(registry: Registry) -> None:
    registry.add(2, FIELDS, schemaType="PROTOBUF")
    registry.schemas[3] = {"schema": '"int"'}
    found = decoded(
        with_registry(registry),
        [b"\0\0\0\0\1x", b"\0\0\0\0\2x", b"\0\0\0\0\3x", b"{}", b"\0", b"\0\0\0\0\1y"],
    )
    for text, part in zip(
        found,
        ["no schema with id 1", "another kind", "no record", "zero byte", "zero byte", "no schema with id 1"],
        strict=True,
    ):
        assert part in text
    assert len(registry.requests) == 7  # an unknown id is asked for by each event, alone and in a batch


def test_an_unknown_id_is_asked_for_again(registry: Registry) -> None:
    """By the next event: no clock decides what it is."""
    decode: Any = event_decoder(with_registry(registry))
    record = Record(0, avro(FIELDS, {"a": 1, "b": 2, "y": True}, 1))
    for _ in range(2):
        with pytest.raises(RecordError, match="no schema with id 1"):
            decode(record)
    registry.add(1, FIELDS)
    assert [decode(record).x for _ in range(3)] == [{"a": 1.0, "b": 2.0}] * 3
    assert len(registry.requests) == 3


@pytest.mark.parametrize("number", [2**31, 2**31 + 7, 2**32 - 1])
def test_an_id_that_no_registry_gives_is_not_asked_for(registry: Registry, number: int) -> None:
    decode = event_decoder(with_registry(registry))
    with pytest.raises(RecordError, match=f"id of a schema is {number}"):
        decode(Record(0, avro(FIELDS, {"a": 1, "b": 2, "y": True}, number)))
    assert not registry.requests


@pytest.mark.parametrize(
    "answer",
    [
        *((status, {"error_code": status}) for status in (400, 403, 404, 405, 409, 410, 422)),
        *((200, {"schema": text}) for text in ("{", "", "[" * 9000, None)),
        *((200, body) for body in ([], 3, "x", {"id": 1})),
    ],
)
def test_what_a_registry_says_of_one_id_is_about_its_events(
    registry: Registry, answer: tuple[int, Any]
) -> None:
    """If it answers anything else; else the lane waits."""
    registry.add(1, FIELDS)
    others = registry.answer
    registry.answer = lambda path: answer if path == "/schemas/ids/7" else others(path)  # type: ignore[method-assign]
    decode: Any = event_decoder(with_registry(registry))
    good, bad = (
        Record(i, avro(FIELDS, {"a": 1, "b": 2, "y": True}, number)) for i, number in ((0, 1), (1, 7))
    )
    with pytest.raises(RecordError, match="id 7"):
        decode(bad)
    assert list(decode.many([good, bad, good]).refused) == [1]
    registry.answer = lambda path: answer  # type: ignore[method-assign]
    with pytest.raises((SourceError, RecordError)) as caught:
        event_decoder(with_registry(registry))(bad)
    assert isinstance(caught.value, SourceError) or answer == (200, [])  # a registry without subjects


@pytest.mark.parametrize("status", [301, 401, 403, 404, 407, 409, 429, 500, 503])
def test_a_registry_that_refuses_says_nothing_of_events(registry: Registry, status: int) -> None:
    registry.status = status
    decode: Any = event_decoder(with_registry(registry))
    record = Record(0, avro(FIELDS, {"a": 1, "b": 2, "y": True}, 1))
    with pytest.raises(SourceError, match=f"status {status}") as caught:
        decode(record)
    assert caught.value.retriable
    assert "secret" not in str(caught.value)
    with pytest.raises(SourceError):
        decode.many([record] * 3)
    # Not one for each event. An answer that may be about the id makes for a second question.
    assert len(registry.requests) == (4 if status in (403, 404, 409) else 2)


@pytest.mark.parametrize("learner", [auc.PairOGD(), auc.Forest(seed=1)], ids=["arrays", "dicts"])
def test_a_lane_waits_for_the_registry(registry: Registry, learner: Any) -> None:
    registry.add(1, FIELDS)
    registry.add(2, FIELDS)
    decode = event_decoder(with_registry(registry))
    lane = Lane(learner, decode, LaneId("test", "events", 0), positive=True)
    rows = [{"a": i * 0.1, "b": i, "y": i % 2 == 0} for i in range(40)]
    known = [Record(i, avro(FIELDS, row, 1)) for i, row in enumerate(rows)]
    assert {each.outcome for each in lane.process(known).scores} == {"learned"}
    registry.status = 503
    after = [Record(40 + i, avro(FIELDS, row, 1 + i // 20)) for i, row in enumerate(rows)]
    with pytest.raises(SourceError, match="status 503"):
        lane.process(after)


def test_the_password_is_sent_and_never_shown(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"url": registry.url, "username": "me", "password_file": SecretStr("open sesame")}
    config = configured(format="avro", schema_registry=table)
    registry.status = 401
    with pytest.raises(SourceError) as caught:
        event_decoder(config)(Record(0, b"\0\0\0\0\1x"))
    assert registry.headers[0]["Authorization"] == "Basic bWU6b3BlbiBzZXNhbWU="
    assert "sesame" not in f"{caught.value}{config!r}{caught.value.__cause__}"


def test_no_registry_answers(registry: Registry) -> None:
    registry.close()
    with pytest.raises(SourceError, match="cannot be reached"):
        event_decoder(with_registry(registry))(Record(0, b"\0\0\0\0\1x"))


def test_json_behind_an_id() -> None:
    config = configured(format="json-schema", id="k")
    found = decoded(config, [b'\0\0\0\0\1{"a": 1, "b": 2, "y": true, "k": "x"}', b"\0\0\0\0\1[]"])
    assert (found[0].x, found[0].y, found[0].id) == ({"a": 1.0, "b": 2.0}, True, "x")
    assert "not a JSON object" in found[1]
    assert "zero byte" in decoded(config, [b'{"a": 1, "b": 2}'])[0]


def test_labels_and_ids_in_avro(registry: Registry) -> None:
    """Topics of the same registry, each with its schema; a message that cannot be read has no label or id."""
    events = [{"name": "k", "type": "long"}, FIELDS[0]]
    labels = [
        {"name": "bad", "type": ["null", "boolean"]},
        {"name": "k", "type": "long"},
        {"name": "note", "type": "bytes"},
    ]
    registry.add(1, events)
    registry.add(2, labels)
    config = with_registry(registry, label_input=LABELS | {"format": "avro"})
    good = Record(0, avro(labels, {"bad": True, "k": 7, "note": b""}, 2))
    decode = LabelDecoder(config)
    assert decode(good) == DecodedLabel(b"7", 2)
    found = decode.many([good])
    assert found is not None
    assert (found[0], found[1].tolist()) == ([b"7"], [2])
    read = event_ids(config)
    event = avro(events, {"k": 7, "a": 1.0}, 1)
    assert read([Record(0, event), Record(1, event[:-1]), Record(2, None)]) == [b"7", None, None]
    for value, problem in (
        (avro(labels, {"bad": None, "k": 7, "note": b""}, 2), "no label"),
        (b"\0\0\0\0\3x", "no schema with id 3"),
        (b'{"bad": true, "k": 7}', "zero byte"),
    ):
        assert decode.many([good, Record(1, value)]) is None
        with pytest.raises(RecordError, match=problem) as caught:
            decode(Record(1, value))
        assert caught.value.stage == "label"
    registry.status = 503
    waits = Record(1, avro(labels, {"bad": True, "k": 7, "note": b""}, 4))
    for ask in (lambda: decode(waits), lambda: decode.many([waits]), lambda: read([waits])):
        with pytest.raises(SourceError, match="status 503"):
            ask()


def test_labels_and_ids_behind_the_id_of_a_schema() -> None:
    config = configured(format="json-schema", label_input=LABELS | {"format": "json-schema"})
    frame = b"\0\0\0\0\1"
    assert LabelDecoder(config)(Record(0, frame + b'{"bad": false, "k": "x"}')) == DecodedLabel(b"x", 1)
    assert event_ids(config)([Record(0, frame + b'{"k": 3}'), Record(1, b'{"k": 3}')]) == [b"3", None]


def test_csv() -> None:
    config = configured(format="csv", columns=["y", "b", "a"])
    found = decoded(config, [b"1,2,3", b"0,4,5\n"])
    assert [(each.x, each.y) for each in found] == [
        ({"a": 3.0, "b": 2.0}, True),
        ({"a": 5.0, "b": 4.0}, False),
    ]
    assert "cells" in decoded(config, [b"1,2"])[0]


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"format": "xml"}, "format"),
        ({"format": "csv"}, "needs columns"),
        ({"columns": ["a", "b", "y"]}, "needs columns"),
        ({"format": "csv", "columns": ["a", "y"]}, "none of input.columns"),
        ({"format": "csv", "columns": ["a", "b", "y", "a"]}, "each column once"),
        ({"format": "avro"}, r"add \[schema_registry\]; or"),
        ({"schema_file": "x"}, "remove it"),
        ({"schema_registry": {"url": "http://x"}}, "not used"),
        ({"format": "avro", "schema_file": "x", "schema_registry": {"url": "http://x"}}, "not used"),
        ({"label_input": LABELS | {"format": "avro"}}, r'label_input.format = "avro" needs the schemas'),
        ({"label_input": LABELS, "format": "csv", "columns": ["a", "b", "k"]}, "events are CSV"),
        ({"format": "avro", "schema_registry": {"url": "http://me:word@x"}}, "username and password_file"),
        ({"format": "avro", "schema_registry": {"url": "file:///etc"}}, "not the URL"),
        ({"format": "avro", "schema_registry": {"url": "http://x", "username": "me"}}, "belong together"),
    ],
)
def test_what_a_configuration_cannot_say(declared: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        configured(**declared)
    assert "word@" not in str(caught.value)


def test_a_decimal_is_its_nearest_number(tmp_path: Path) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
    fields = [{"name": "a", "type": ["null", kind]}]
    (tmp_path / "event.avsc").write_text(json.dumps(record_schema(fields)))
    config = configured(tmp_path, format="avro", schema_file="event.avsc", features=["a"])
    (found,) = decoded(config, [avro(fields, {"a": Decimal("-0.10")})])
    assert math.isclose(found.x["a"], -0.1)


def test_declared_values_in_avro(tmp_path: Path) -> None:
    symbols = {"type": "enum", "name": "Card", "symbols": ["debit", "credit"]}
    fields = [{"name": "a", "type": "int"}, {"name": "card", "type": symbols}]
    (tmp_path / "event.avsc").write_text(json.dumps(record_schema(fields)))
    features = {"a": [0, 9], "card": ["credit", "debit"]}
    config = configured(tmp_path, format="avro", schema_file="event.avsc", features=features)
    (found,) = decoded(config, [avro(fields, {"a": 3, "card": "debit"})])
    assert found.x == {"a": 3.0, "card=credit": 0.0, "card=debit": 1.0}
