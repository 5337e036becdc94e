"""One strict reader of events: alone, in a batch, with others, in a lane that is restored, the same."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from harness.support import in_one_case
from streampair_connectors.codecs.fields import used_fields
from streampair_connectors.codecs.formats import _unframed, event_decoder
from streampair_connectors.codecs.json_fields import JsonFields, json_object
from streampair_connectors.codecs.labels import LabelDecoder, event_ids
from streampair_connectors.codecs.records import _used_names, dict_decoder
from streampair_connectors.config import Config, parse_config
from streampair_connectors.worker.factory import build_lane, taken_cells

from streampair.engine import Event, Record
from streampair.errors import RecordError
from streampair.privacy.noise import NoiseKey

NAMES = ["amount", "age"]
FRAME = b"\0\0\0\0\7"


def config_of(learner: str = "PairOGD", options: dict[str, Any] | None = None, **table: Any) -> Config:
    declared = {"label": "y", "id": "id", "features": NAMES, **table}
    learned = {"class": f"streampair.auc.{learner}", "options": options or {}}
    return parse_config({"app": "a", "input": declared, "learner": learned})


NESTED = config_of(features=["p.amount", "p.age", "q.r"], label="p.y")
KINDS = {
    "declared": config_of(),
    "texts": config_of("Forest"),
    "gaps": config_of("PrivateForest", {"epsilon": 1.0, "delta": 1e-4, "horizon": 100}),
    "free": config_of("Forest", features=None),
    "nested": NESTED,
    "debezium": config_of(envelope="debezium"),
    "numbers as texts": config_of(fields={"amount": "number"}),
    "time": config_of(features=["amount", "at.hour"], fields={"at": "iso-8601"}),
    "values": config_of(features={"amount": [0, 9], "card": ["visa", "1", "true"]}),
    "json-schema": config_of(format="json-schema"),
    "csv": config_of(format="csv", columns=["amount", "age", "y", "id"]),
    "csv texts": config_of("Forest", format="csv", columns=["amount", "age", "y", "id"]),
}
TWO: dict[str, Any] = {"positive": 1, "negative": 0}


def message(kind: str, fields: bytes) -> bytes:
    """An event of a kind from the members of its object."""
    if kind == "nested":
        return b'{"p": {' + fields + b'}, "q": {"r": 1}, "id": 3}'
    if kind == "debezium":
        return b'{"before": {' + fields + b'}, "after": {' + fields + b'}, "op": "u", "ts_ms": 1}'
    return (FRAME if kind == "json-schema" else b"") + b"{" + fields + b"}"


GOOD = b'"amount": 1.5, "age": 30, "at": "2024-01-01T05:00:00Z", "card": "visa", "y": true, "id": "i"'
# Members that are added to a good event, and bytes that stand alone.
ADDED = [
    *(b', "note": "%s"' % text for text in (b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\\ud800", b"\\udc00x")),
    *(b', "note": "%s"' % text for text in (b"12:30", b'\\"age\\": 1', "\u00fc".encode(), b"\\ud83d\\ude00")),
    *(b', "note": %s' % value for value in (b"9" * 4300, b"9" * 5000, b"1e999", b"NaN", b"-Infinity", b"01")),
    *(
        b', "note": %s' % value
        for value in (b"[" * 99 + b"]" * 99, b"[" * 101 + b"]" * 101, b"[]" * 2, b"tru")
    ),
    *(b', "note": %s' % value for value in (b"[" + b"[]," * 200 + b"1]", b'{"age": 1}', b'"\x01"', b"{}")),
    *(b', "age": %s' % value for value in (b"1", b"null", b'"x"')),
    *(b', "\\u0061ge": 2', b', "age" : 3', b', "y": false', b', "id": 4', b', "id" :4, "\\ud800": 1'),
    *(
        b', "x": 1, "x": 2',
        b', "x": {"age": 1, "age": 2}',
        b', "": 1, "": 2',
        b', "a:b": 1',
        b",",
        b"}",
        b"{",
    ),
]
REPLACED = [
    *(b"9" * 300, b"9" * 400, b"9" * 5000, b"1e308", b"1e309", b"-1e999", b"1e-999", b"-0", b"-0.0", b"1E+2"),
    *(
        b"9007199254740993",
        b"0.1",
        b"1.",
        b".5",
        b"+1",
        b"0x1",
        b"1_0",
        b"NaN",
        b"null",
        b"true",
        b"[1]",
        b"{}",
    ),
    *(
        b'"1.5"',
        b'" +1.50e1 "',
        b'"1_0"',
        '"\u0663"'.encode(),
        b'"nan"',
        b'"inf"',
        b'"1e999"',
        b'""',
        b'"\\ud800"',
    ),
]
ALONE = [
    *(
        b"",
        b" ",
        b"{}",
        b"[]",
        b"3",
        b"null",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"\0",
        FRAME,
        FRAME + b"[",
        b"{" * 200,
    ),
    *(b"[" * 5000, "{}".encode("utf-16"), b'{"y": true}', b'{"p": 1}', b'{"after": null, "op": "d"}'),
    *(
        b"1,2,1,x",
        b"1_0,2,1,x",
        b"1,\xff,1,",
        "\u0663,2,1,".encode(),
        b"nan,2,1,",
        b"1,,1,",
        b"1,2,1.000e+00,",
        b"1,2",
    ),
    *(
        b'"1\n",2,1,',
        b'"1,2,1,x',
        b"1,2,0.00,7\r\n",
        b" 1 ,2,+1,",
        b"\xef\xbb\xbf1,2,1,",
        b"1,2,\xc3\xbc,",
        b"0,-0,1,",
    ),
]


def values_of(kind: str) -> list[bytes | None]:
    made: list[bytes | None] = [message(kind, GOOD + added) for added in ADDED]
    for name in (
        b'"amount": 1.5',
        b'"y": true',
        b'"id": "i"',
        b'"card": "visa"',
        b'"at": "2024-01-01T05:00:00Z"',
    ):
        key = name.split(b":")[0]
        made += [message(kind, GOOD.replace(name, key + b": " + value)) for value in REPLACED]
    return [None, *made, *ALONE, *[byte.to_bytes(1) + message(kind, GOOD) for byte in range(256)]]


def outcome(decode: Any, value: bytes | None) -> Event | str:
    try:
        return decode(Record(0, value))  # type: ignore[no-any-return]
    except RecordError as error:
        return f"{error.stage}: {error}"


def bits(x: Any) -> Any:
    return struct.pack("d", x) if isinstance(x, float) else x


def assert_batch(decode: Any, values: Sequence[bytes | None]) -> None:
    """A batch gives what its events give alone, to the bit."""
    rows = decode.many([Record(i, value) for i, value in enumerate(values)])
    found = [outcome(decode, value) for value in values]
    if rows is None:  # there is no array of texts and gaps
        assert any(
            isinstance(each, Event) and set(map(type, each.x.values())) != {float} for each in found
        ) or any(isinstance(each, Event) and len(each.x) < 2 for each in found)
        return
    for i, each in enumerate(found):
        refusal, y = (rows.refused or {}).get(i), rows.labels[i]
        if isinstance(each, str):
            assert f"{refusal.stage}: {refusal}" == each
            continue
        assert refusal is None
        assert dict(zip(rows.names, map(bits, rows.values[i].tolist()), strict=True)) == {
            name: bits(value) for name, value in each.x.items()
        }
        assert (y, type(y), rows.ids[i]) == (each.y, type(each.y), each.id)


@pytest.mark.parametrize("kind", KINDS)
def test_alone_and_in_a_batch(kind: str) -> None:
    """Of every kind of event and of byte."""
    config = KINDS[kind]
    decode: Any = event_decoder(config, **taken_cells(config))
    values = values_of(kind)
    assert sum(isinstance(outcome(decode, value), Event) for value in values) > 2
    if not hasattr(decode, "many"):
        assert kind == "free"
        return
    coin = random.Random(1)
    for value in values:
        assert_batch(decode, [value])
        assert_batch(decode, [message(kind, GOOD), value, message(kind, GOOD)])
    for _ in range(200):
        assert_batch(decode, coin.sample(values, coin.randint(2, 8)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("csv")])
def test_the_fast_way_reads_as_the_strict_one(kind: str) -> None:
    config, declared = KINDS[kind], KINDS[kind].input
    parse, frame = JsonFields(used_fields(declared, _used_names(declared))).parse, kind == "json-schema"
    strict: Any = dict_decoder(
        declared, (lambda value: parse(_unframed(value))) if frame else parse, **taken_cells(config)
    )
    decode = event_decoder(config, **taken_cells(config))
    for value in values_of(kind):
        found = outcome(decode, value)
        assert found == outcome(strict, value), value
        assert not isinstance(found, Event) or repr(found) == repr(outcome(strict, value))


@pytest.mark.parametrize(
    "kind", ["declared", "texts", "free", "nested", "debezium", "numbers as texts", "values"]
)
@in_one_case(
    ("added", "problem"),
    [
        (b', "note": "\xff"', "not UTF-8"),
        (b', "note": "\xed\xa0\x80"', "not UTF-8"),
        (b', "note": "\\ud800"', "not JSON"),
        (b', "note": NaN', "NaN and Infinity"),
        (b', "note": ' + b"[" * 101 + b"]" * 101, "nested too deeply"),
        (b', "\\u0061mount": 2', "'amount' comes twice"),
        (b', "amount" : 1.5', "'amount' comes twice"),
    ],
)
def test_what_is_refused_in_every_event(kind: str, added: bytes, problem: str) -> None:
    config = KINDS[kind]
    found = outcome(event_decoder(config, **taken_cells(config)), message(kind, GOOD + added))
    assert isinstance(found, str)
    assert problem in found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("csv")])
@pytest.mark.parametrize(
    "added",
    [b', "note": ' + b"9" * 5000, b', "x": 1, "x": 2', b', "note": [[[[":"]]]]', b', "n": "\\ud83d\\ude00"'],
)
def test_what_a_field_that_is_not_used_may_be(kind: str, added: bytes) -> None:
    config = KINDS[kind]
    found = outcome(event_decoder(config, **taken_cells(config)), message(kind, GOOD + added))
    assert isinstance(found, Event) or kind == "free"


LEARNERS: list[tuple[str, dict[str, Any]]] = [
    ("PairOGD", {}),
    ("Forest", {"trees": 3, "nodes": 31, "seed": 1}),
    ("PairFTRL", {"epsilon": 1.0, "delta": 1e-4, "horizon": 5000, "warmup": 20}),
    ("PrivateForest", {"epsilon": 9.0, "delta": 1e-3, "horizon": 5000, "trees": 2, "depth": 2, "warmup": 40}),
]


@pytest.mark.parametrize(("learner", "options"), LEARNERS, ids=[name for name, _ in LEARNERS])
@pytest.mark.parametrize("kind", ["declared", "nested"])
def test_a_lane_that_ends_in_the_middle(learner: str, options: dict[str, Any], kind: str) -> None:
    """Outcomes, scores and dead letters, to the bit: record by record, and in batches with restarts."""
    config = config_of(
        learner,
        options,
        **({} if kind == "declared" else {"features": ["p.amount", "p.age", "q.r"], "label": "p.y"}),
    )
    coin, values = random.Random(2), list[bytes | None]()
    hostile = values_of(kind)
    for _ in range(500):
        gap = coin.choice([b"", b"", b"", b', "other": null'])
        fields = b'"amount": %.3f, "age": %d, "y": %s' % (
            coin.gauss(0, 1),
            coin.randint(0, 9),
            coin.choice([b"true", b"0"]),
        )
        if coin.random() < 0.02:
            fields = fields.replace(b'"age"', b'"aged"')
        values.append(coin.choice(hostile) if coin.random() < 0.2 else message(kind, fields + gap))
    records = [Record(i, value, b"k") for i, value in enumerate(values)]
    key = NoiseKey(bytes(32))

    def outputs(size: int, restart: float) -> list[Any]:
        found, start, coin = list[Any](), 0, random.Random(3)

        def new() -> Any:
            decode = event_decoder(config, **taken_cells(config))
            return build_lane(config, decode, noise_key=key)

        lane = new()
        while start < len(records):
            part = records[start : start + coin.randint(1, size)]
            output = lane.process(part)
            found += [(each.offset, bits(each.score), each.outcome, each.id) for each in output.scores]
            found += [(each.offset, each.value, each.stage, each.error) for each in output.dead_letters]
            start += len(part)
            if coin.random() < restart:
                saved, lane = lane.snapshot(), new()
                lane.restore(saved)
        return sorted(found, key=lambda row: (row[0], len(row), str(row)))

    first = outputs(1, 0.0)
    assert sum(row[2] == "dead_letter" for row in first) > 40
    assert outputs(50, 0.0) == first
    assert outputs(50, 0.3) == first


@pytest.mark.parametrize("text", ["1", "1.0", "1.00", "+1", " 1 ", "1.000e+00", "true", "True", "TRUE"])
@pytest.mark.parametrize(
    "label", [{"positive": True}, {"positive": 1, "negative": 0}, {"positive": 1.0, "negative": "0.00"}]
)
def test_a_label_means_the_same_everywhere(text: str, label: dict[str, Any]) -> None:
    """As a text of JSON, as JSON if it is some, as a cell, and in a message of the labels topic."""
    for high, spelled in (
        (True, text),
        (
            False,
            text.replace("1", "0")
            .replace("rue", "ALSE")
            .replace("t", "f")
            .replace("T", "F")
            .replace("RUE", "ALSE"),
        ),
    ):
        spelled = "false" if not high and spelled.lower().startswith("f") else spelled
        table = config_of(**label)
        expected = table.input.positive if high else table.input.negative_label()
        rest = {"amount": 1, "age": 2}
        values = [json.dumps({**rest, "y": spelled})]
        if spelled in ("1", "1.0", "0", "0.0", "true", "false"):
            values.append(json.dumps(rest)[:-1] + f', "y": {spelled}}}')
        for value in values:
            assert outcome(event_decoder(table), value.encode()) == Event(
                {"amount": 1.0, "age": 2.0}, expected
            )
        cells = config_of(**label, format="csv", columns=["amount", "age", "y", "id"])
        assert outcome(event_decoder(cells), f"1,2,{spelled},".encode()) == Event(
            {"amount": 1.0, "age": 2.0}, expected
        )
        later = parse_config(
            {
                "app": "a",
                "input": {"features": NAMES, **label},
                "label_input": {"topic": "l", "id": "key", "label": "y", "after": "1d"},
                "learner": {"class": "streampair.auc.PairOGD"},
            }
        )
        found = LabelDecoder(later)(Record(0, json.dumps({"y": spelled}).encode(), b"k"))
        assert found.code == (2 if high else 1)


def test_half_of_a_surrogate_pair_is_no_text_anywhere() -> None:
    later = parse_config(
        {
            "app": "a",
            "input": {"features": NAMES},
            "label_input": {"topic": "l", "id": "k", "label": "y", "after": "1d"},
            "learner": {"class": "streampair.auc.PairOGD"},
        }
    )
    labels, ids = LabelDecoder(later), event_ids(later)
    classes = event_decoder(config_of(label_type="any"))
    for half in (b"\\ud800", b"\\udfff", b"\xed\xa0\x80"):
        for value in (
            b'{"k": "%s", "y": true}' % half,
            b'{"k": 1, "y": "%s"}' % half,
            b'{"k": 1, "y": 1, "%s": 1}' % half,
        ):
            with pytest.raises(RecordError) as caught:
                labels(Record(0, value))
            assert caught.value.stage == "label"
            assert labels.many([Record(0, value)]) is None
            assert ids([Record(0, value)]) == [None]
        for name in (b"y", b"id", b"amount", b"note"):
            found = outcome(classes, b'{"amount": 1, "age": 2, "y": 1, "%s": "%s"}' % (name, half))
            assert isinstance(found, str)
            assert found.startswith("decode")


def test_keys_in_lists_and_of_other_objects_are_no_fields() -> None:
    read = JsonFields({"a": {"b": None}, "c": None}).parse
    assert read(b'{"a": {"b": 1}, "d": {"a": 1, "a": 2}, "c": [{"c": 1, "c": 2}]}')["a"] == {"b": 1}
    for value in (b'{"a": {"b": 1, "b": 2}}', b'{"c": 1, "\\u0063": 2}', b'{"a": 1, "x:": 1, "a" :2}'):
        with pytest.raises(RecordError, match="comes twice"):
            read(value)
    with pytest.raises(RecordError, match="'x' comes twice"):
        json_object(b'{"x": 1, "x": 2}')


@pytest.mark.parametrize(
    "text", ["1_0", "\u0663", "0x1", "1,5", "--1", "1e", "", "nan", "inf", "1e999", "one"]
)
@pytest.mark.parametrize("good", [False, True])
def test_a_number_is_spelled_alike_in_every_format(text: str, good: bool) -> None:
    """In a cell of CSV, and as a text of JSON that is declared to be a number."""
    text = " +1.50e1 " if good else text
    for config, value in (
        (KINDS["csv"], f'"{text}",2,1,'),
        (KINDS["numbers as texts"], json.dumps({"amount": text, "age": 2, "y": True}, ensure_ascii=False)),
    ):
        found = outcome(event_decoder(config), value.encode())
        if good:
            assert found == Event({"amount": 15.0, "age": 2.0}, True)
        else:
            assert isinstance(found, str)
            assert found.startswith("features: ")
