"""Fields of events: nested ones, rows of Debezium, numbers as text, and times."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.schema_registry import avro, record_schema
from streampair_connectors.codecs.formats import event_decoder
from streampair_connectors.codecs.labels import DecodedLabel, LabelDecoder, event_ids
from streampair_connectors.config import Config, parse_config
from streampair_connectors.worker.factory import build_lane
from streampair_connectors.worker.scoring import score_records

from streampair import auc, models
from streampair.engine import Event, Lane, LaneId, Record
from streampair.errors import ConfigError, PrivacyError, RecordError, TombstoneError


def configured(
    base: Path | None = None, label_input: dict[str, Any] | None = None, **declared: Any
) -> Config:
    source = {"app": "test", "input": declared, "learner": {"class": "streampair.auc.PairOGD"}}
    return parse_config(source if label_input is None else {**source, "label_input": label_input}, base=base)


def decoded(config: Config, values: list[bytes | None], **options: bool) -> list[Any]:
    """Each event, or its error; a batch must have the same, where there is one."""
    decode: Any = event_decoder(config, **options)
    one: list[Any] = []
    for i, value in enumerate(values):
        try:
            one.append(decode(Record(i, value)))
        except RecordError as error:
            one.append(error)
    rows = decode.many([Record(i, value) for i, value in enumerate(values)])
    if rows is not None:
        for i, each in enumerate(one):
            if isinstance(each, Event):
                assert dict(zip(rows.names, rows.values[i].tolist(), strict=True)) == each.x
                assert rows.labels[i] == each.y
                assert rows.ids is None or rows.ids[i] == each.id
            else:
                assert str(rows.refused[i]) == str(each)
    return one


def read(config: Config, *events: Any, **options: bool) -> list[Any]:
    return decoded(config, [json.dumps(event).encode() for event in events], **options)


NESTED = {"features": ["payload.amount", "age"], "label": "payload.meta.bad", "id": "payload.id"}


def test_fields_of_nested_objects() -> None:
    first, second, third = read(
        configured(**NESTED),
        {"payload": {"amount": 3, "meta": {"bad": True}, "id": 7}, "age": 40},
        {"age": 41, "payload": {"meta": {}, "amount": 4.5, "note": [1]}},
        {"age": 41, "payload": {"amount": 5, "meta": None, "id": None}},
    )
    assert first == Event({"payload.amount": 3.0, "age": 40.0}, True, "7")
    assert second == Event({"payload.amount": 4.5, "age": 41.0}, None)
    assert third == Event({"payload.amount": 5.0, "age": 41.0}, None)


def test_a_field_with_the_whole_name_comes_first() -> None:
    both, whole = read(
        configured(**NESTED),
        {
            "payload.amount": 1,
            "payload": {"amount": 2, "meta": {"bad": False}},
            "payload.meta.bad": 1,
            "age": 0,
        },
        {"payload.amount": 1, "age": 0, "payload.id": "x"},
    )
    assert both == Event({"payload.amount": 1.0, "age": 0.0}, True)
    assert whole == Event({"payload.amount": 1.0, "age": 0.0}, None, "x")


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({"age": 1}, "'payload.amount' is missing"),
        ({"age": 1, "payload": {}}, "'payload.amount' is missing"),
        ({"age": 1, "payload": 5}, "'payload.amount' is missing"),
        ({"age": 1, "payload": {"amount": "5"}}, "'payload.amount' is text"),
        ({"age": 1, "payload": {"amount": {"value": 5}}}, "'payload.amount' is an object"),
        ({"age": 1, "payload": {"amount": 5, "meta": {"bad": "maybe"}}}, "'payload.meta.bad'"),
        ({"age": 1, "payload": {"amount": 5, "id": [1]}}, "'payload.id' is not an id"),
    ],
)
def test_a_nested_field_that_cannot_be_used(event: Any, problem: str) -> None:
    good = {"payload": {"amount": 3, "meta": {"bad": True}}, "age": 40}
    _, error, _ = read(configured(**NESTED), good, event, good)
    assert isinstance(error, RecordError)
    assert problem in error.problem


def test_nested_fields_of_a_learner_that_takes_gaps_and_texts() -> None:
    config = configured(features=["a.b", "c"], label="y")
    first, second = read(config, {"a": {"b": "text"}, "c": 1}, {"a": None, "c": 2}, gaps=True, texts=True)
    assert (first.x, second.x) == ({"a.b": "text", "c": 1.0}, {"c": 2.0})


def test_declared_values_of_a_nested_field() -> None:
    config = configured(features={"a.amount": [0, 9], "a.card": ["debit", "credit"]}, label="y")
    found, other = read(config, {"a": {"amount": 1, "card": "debit"}, "y": True}, {"a": {"amount": 2}})
    assert found == Event({"a.amount": 1.0, "a.card=debit": 1.0, "a.card=credit": 0.0}, True)
    assert other.x == {"a.amount": 2.0, "a.card=debit": 0.0, "a.card=credit": 0.0}


def test_names_that_no_struct_can_have() -> None:
    for names in (["a", "a.b"], ["a.b", "a"], ["a.b", 'c"d']):
        config = configured(features=names, label="y")
        assert read(config, {"a.b": 1, "a": 2, 'c"d': 3, "y": 0})[0].x == dict.fromkeys(names) | {
            name: {"a.b": 1.0, "a": 2.0, 'c"d': 3.0}[name] for name in names
        }


ROW = {"amount": 3, "bad": True, "id": 7}
DEBEZIUM = {"features": ["amount"], "label": "bad", "id": "id", "envelope": "debezium"}


def change(op: str, after: Any, **more: Any) -> dict[str, Any]:
    return {"before": None, "after": after, "source": {"db": "x"}, "op": op, "ts_ms": 1, **more}


@pytest.mark.parametrize("op", ["c", "r", "u"])
@pytest.mark.parametrize("schema", [False, True])
def test_rows_of_debezium(op: str, schema: bool) -> None:
    event: Any = change(op, ROW)
    if schema:
        event = {"schema": {"type": "struct"}, "payload": event}
    assert read(configured(**DEBEZIUM), event, event) == [Event({"amount": 3.0}, True, "7")] * 2


@pytest.mark.parametrize(
    "event",
    [
        change("d", None),
        {"schema": {}, "payload": change("d", None)},
        {"source": {}, "op": "t", "ts_ms": 1},
        {"source": {}, "op": "m", "message": {"prefix": "x"}},
        change("d", ROW),
    ],
)
def test_a_change_without_a_row_is_a_tombstone(event: Any) -> None:
    good = change("c", ROW)
    config = configured(**DEBEZIUM)
    _, found, _ = read(config, good, event, good)
    assert isinstance(found, TombstoneError)
    lane = Lane(auc.PairOGD(), event_decoder(config), LaneId("a", "t", 0))
    out = lane.process([Record(i, json.dumps(each).encode()) for i, each in enumerate([good, event, good])])
    assert [each.outcome for each in out.scores] == ["learned", "tombstone", "learned"]
    assert out.dead_letters == []


def test_a_change_without_a_row_has_no_score() -> None:
    model = models.export(auc.PairOGD())
    records = [
        Record(i, json.dumps(change(*each)).encode()) for i, each in enumerate([("c", ROW), ("d", None)])
    ]
    scored, letters = score_records(model, event_decoder(configured(**DEBEZIUM)), records)
    assert [each.outcome for each in scored] == ["scored", "tombstone"]
    assert not letters


@pytest.mark.parametrize("event", [ROW, {}, change("c", 5), {"schema": {}, "payload": ROW}])
def test_an_event_that_is_not_of_debezium(event: Any) -> None:
    (error,) = read(configured(**DEBEZIUM), event)
    assert type(error) is RecordError
    assert "ExtractNewRecordState" in error.fix


def test_an_envelope_gives_the_numbers_another_meaning() -> None:
    rows = configured(**DEBEZIUM | {"envelope": None})
    assert rows.fingerprint() != configured(**DEBEZIUM).fingerprint()


def test_an_envelope_without_declared_features() -> None:
    config = configured(label="bad", envelope="debezium")
    decode = event_decoder(config)
    assert decode(Record(0, json.dumps(change("c", {"a": 1, "b": 2, "bad": False})).encode())) == Event(
        {"a": 1.0, "b": 2.0}, False
    )


def test_rows_of_debezium_in_avro(tmp_path: Path) -> None:
    money = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    row = record_schema([{"name": "amount", "type": money}, {"name": "bad", "type": "boolean"}])
    fields = [{"name": "op", "type": "string"}, {"name": "after", "type": ["null", {**row, "name": "Row"}]}]
    (tmp_path / "event.avsc").write_text(json.dumps(record_schema(fields)))
    config = configured(
        tmp_path,
        format="avro",
        schema_file="event.avsc",
        features=["amount"],
        label="bad",
        envelope="debezium",
    )

    made = avro(fields, {"op": "c", "after": {"amount": Decimal("12.34"), "bad": True}})
    first, second = decoded(config, [made, avro(fields, {"op": "d", "after": None})])
    assert first == Event({"amount": 12.34}, True)
    assert isinstance(second, TombstoneError)


def test_ids_and_labels_in_nested_objects() -> None:
    config = configured(
        features=["row.amount"],
        id="row.id",
        label_input={"topic": "l", "id": "row.id", "label": "row.bad", "after": "1d", "envelope": "debezium"},
    )
    find = event_ids(config)
    events = [
        b'{"row": {"id": 7, "amount": 1}}',
        b'{"row": {"amount": 1}}',
        b'{"row.id": "x", "row": 1}',
        b"[",
    ]
    assert find([Record(i, value) for i, value in enumerate(events)]) == [b"7", None, b"x", None]
    decode = LabelDecoder(config)
    message = Record(0, json.dumps(change("c", {"row": {"id": 7, "bad": True}})).encode())
    assert decode(message) == DecodedLabel(b"7", 2)
    assert decode.many([message]) is not None
    gone = Record(0, json.dumps(change("d", None)).encode())
    assert decode.many([gone]) is None
    with pytest.raises(RecordError, match="no row"):
        decode(gone)


def test_a_line_of_csv_has_no_envelope() -> None:
    with pytest.raises(ConfigError, match="envelope"):
        configured(format="csv", columns=["a", "y"], features=["a"], label="y", envelope="debezium")


def test_numbers_as_text() -> None:
    config = configured(
        features=["amount", "row.age"], label="y", fields={"amount": "number", "row.age": "number"}
    )
    first, second, bad, empty, huge = read(
        config,
        {"amount": "12.50", "row": {"age": "-3e1"}, "y": True},
        {"amount": 7, "row": {"age": 1.5}},
        {"amount": "12,50", "row": {"age": 1}},
        {"amount": "", "row": {"age": 1}},
        {"amount": "1e999", "row": {"age": 1}},
    )
    assert first == Event({"amount": 12.5, "row.age": -30.0}, True)
    assert second.x == {"amount": 7.0, "row.age": 1.5}
    assert (bad.stage, bad.problem) == ("features", "feature 'amount' is a text that is no number")
    assert "such as 12.5" in bad.fix
    assert "'amount' is missing" in empty.problem
    assert "'amount' is not finite" in huge.problem


@pytest.mark.parametrize(
    ("kind", "value", "parts"),
    [
        ("iso-8601", "2024-01-01T00:30:00+02:00", (22, 6, 31, 12)),
        ("iso-8601", "2024-02-29T23:59:59.999Z", (23, 3, 29, 2)),
        ("iso-8601", "2024-02-29", (0, 3, 29, 2)),
        ("epoch-s", 1704106800, (11, 0, 1, 1)),
        ("epoch-s", 1704106800.75, (11, 0, 1, 1)),
        ("epoch-ms", "1704106800000", (11, 0, 1, 1)),
        ("epoch-us", 1704106799999999, (10, 0, 1, 1)),
        ("epoch-ms", 631152000000, (0, 0, 1, 1)),
    ],
)
def test_parts_of_times(kind: str, value: Any, parts: tuple[int, ...]) -> None:
    names = ["row.at.hour", "row.at.weekday", "row.at.day", "row.at.month"]
    config = configured(features=names, label="y", fields={"row.at": kind})
    event = {"row": {"at": value}, "y": True}
    expected = Event(dict(zip(names, map(float, parts), strict=True)), True)
    assert read(config, event, event) == [expected, expected]
    columns = configured(
        features=names, label="y", fields={"row.at": kind}, format="csv", columns=["row.at", "y"]
    )
    decode = event_decoder(columns)
    assert decode(Record(0, f"{value},true".encode())) == expected


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("iso-8601", "yesterday"),
        ("iso-8601", 1704106800),
        ("epoch-s", "soon"),
        ("epoch-s", True),
        ("epoch-s", [1]),
        ("epoch-ms", 1e300),
        ("epoch-ms", 10**30),
        ("epoch-s", "nan"),
    ],
)
def test_a_time_that_cannot_be_read(kind: str, value: Any) -> None:
    config = configured(features=["at.hour", "a"], label="y", fields={"at": kind})
    good = {"at": 10**9 if kind != "iso-8601" else "2024-01-01", "a": 1}
    _, bad, missing = read(config, good, {"at": value, "a": 1}, {"at": None, "a": 1, "at.hour": 5})
    assert (bad.stage, bad.problem) == ("features", "field 'at' is no time as input.fields declares it")
    assert "correct input.fields" in bad.fix
    assert "'at.hour' is missing" in missing.problem


@pytest.mark.parametrize(
    ("kind", "value", "looks", "fix"),
    [
        ("epoch-ms", 1704106800, ": it looks like seconds", 'write "epoch-s" for it in input.fields'),
        ("epoch-ms", "1704106800.5", ": it looks like seconds", 'write "epoch-s" for it in input.fields'),
        ("epoch-s", 1704106800000, ": it looks like milliseconds", 'write "epoch-ms" for it in input.fields'),
        ("epoch-us", 1704106800000000000, ": it looks like nanoseconds", "send it as a number, epoch-us"),
        ("epoch-s", 20240131, "", "of a time from 1990 to 2100"),
        ("epoch-ms", -1, "", "of a time from 1990 to 2100"),
    ],
)
def test_a_time_in_another_unit_is_refused(kind: str, value: Any, looks: str, fix: str) -> None:
    config = configured(features=["at.hour", "a"], label="y", fields={"at": kind})
    (bad,) = read(config, {"at": value, "a": 1})
    assert bad.problem == f"field 'at' is no time as input.fields declares it{looks}"
    assert fix in bad.fix


def test_the_unit_of_the_times_of_files_is_not_part_of_the_meaning() -> None:
    def fingerprint(features: list[str], **more: Any) -> str:
        return configured(features=features, label="y", time="at", **more).fingerprint()

    assert fingerprint(["a"]) == fingerprint(["a"], fields={"at": "epoch-s"})
    both = ["at.hour", "a"]
    assert fingerprint(both, fields={"at": "epoch-ms"}) != fingerprint(both, fields={"at": "epoch-s"})


def test_declared_values_of_a_part_of_a_time() -> None:
    features = {"amount": [0, 9], "at.weekday": ["0", "6"]}
    config = configured(features=features, label="y", fields={"at": "epoch-s", "amount": "number"})
    (found,) = read(config, {"amount": "3", "at": 1704106800})
    assert found.x == {"amount": 3.0, "at.weekday=0": 1.0, "at.weekday=6": 0.0}
    more = {"format": "csv", "columns": ["amount", "at", "y"]}
    config = configured(features=features, label="y", fields={"at": "epoch-s"}, **more)
    assert event_decoder(config)(Record(0, b"3,1704106800,1")).x == found.x


@pytest.mark.parametrize(
    ("features", "fields", "problem"),
    [
        (["at"], {"at": "iso-8601"}, "'at' is a time; name parts of it"),
        (["a"], {"at": "iso-8601"}, "no feature reads input.fields.at"),
        (["a"], {"b": "number"}, "no feature reads input.fields.b"),
        (["at.hour", "at.year"], {"at": "epoch-s"}, "'at.year' is no part of a time"),
        (["a"], {"a": "text"}, "input.fields.a"),
    ],
)
def test_fields_that_are_declared_wrongly(features: list[str], fields: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(features=features, label="y", fields=fields)
    assert problem in str(caught.value)


def test_kinds_of_fields_give_the_numbers_another_meaning() -> None:
    seconds, milliseconds = (
        configured(features=["at.hour"], label="y", fields={"at": kind}) for kind in ("epoch-s", "epoch-ms")
    )
    assert seconds.fingerprint() != milliseconds.fingerprint()


class Message(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    offset: int = 0


OUTER: dict[str, Any] = {
    "features": {"a": [0, 9], "$headers.country": ["NL", "BE"], "$headers.retries": [0, 9]},
    "fields": {"$headers.retries": "number"},
    "label": "y",
    "id": "$key",
}


@pytest.mark.parametrize("form", ["json", "json-schema"])
def test_key_and_headers_as_features(form: str) -> None:
    decode: Any = event_decoder(configured(**OUTER, format=form))
    value = (b"\0\0\0\0\1" if form == "json-schema" else b"") + b'{"a": 1, "y": true}'
    headers = (("country", b"BE"), ("retries", b"2"), ("country", b"NL"))
    message = Message(value, b"k7", headers)
    expected = {"a": 1.0, "$headers.retries": 2.0, "$headers.country=NL": 0.0, "$headers.country=BE": 1.0}
    assert decode(message) == Event(expected, True, "k7")
    rows = decode.many([message, message._replace(headers=headers[1:], key=None)])
    assert dict(zip(rows.names, rows.values[0].tolist(), strict=True)) == expected
    assert rows.values[1].tolist() == [1.0, 2.0, 1.0, 0.0]
    assert rows.ids == ["k7", None]
    with pytest.raises(RecordError, match=r"'\$headers.retries' is missing"):
        decode(message._replace(headers=()))
    with pytest.raises(RecordError, match="a text that is no number"):
        decode(message._replace(headers=(("retries", b"many"),)))
    with pytest.raises(RecordError, match="is not UTF-8"):
        decode(message._replace(headers=(("retries", b"\xff"),)))


def test_a_line_has_fields_in_place_of_key_and_headers() -> None:
    (event,) = read(
        configured(**OUTER), {"a": 1, "$key": "k7", "$headers.retries": "2", "$headers": {"country": "NL"}}
    )
    assert event.id == "k7"
    assert event.x["$headers.country=NL"] == 1.0


def test_headers_of_a_learner_that_takes_texts() -> None:
    decode = event_decoder(
        configured(features=["$headers.country", "$key"], label="y"), gaps=True, texts=True
    )
    assert decode(Message(b"{}", None, (("country", b"NL"),))).x == {"$headers.country": "NL"}


def test_a_private_learner_takes_no_header() -> None:
    learner = {
        "class": "streampair.auc.PairFTRL",
        "options": {"epsilon": 1.0, "delta": 1e-4, "horizon": 500},
    }
    config = parse_config({"app": "test", "input": OUTER, "learner": learner})
    with pytest.raises(PrivacyError, match="outside of the value"):
        build_lane(config, event_decoder(config))


def test_an_id_of_labels_is_key_in_words() -> None:
    labels = {"topic": "l", "id": "$key", "label": "y", "after": "1d"}
    with pytest.raises(ConfigError, match='id is "key"'):
        configured(features=["a"], id="$key", label_input=labels)
