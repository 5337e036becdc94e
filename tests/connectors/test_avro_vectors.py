"""Bytes of the Avro specification and of Avro's own tests, and bytes that both readers refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from harness.schema_registry import record_schema
from harness.support import in_one_case
from streampair_connectors.codecs.avro_rows import row_reader
from streampair_connectors.codecs.formats import avro_reader, event_decoder
from streampair_connectors.config import parse_config

from streampair.engine import Record
from streampair.errors import ConfigError, RecordError

ENUM = {"type": "enum", "name": "Foo", "symbols": ["A", "B", "C", "D"]}
ARRAY = {"type": "array", "items": "long"}
MAP = {"type": "map", "values": "long"}
FIXED = {"type": "fixed", "name": "Two", "size": 2}
INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}


def decoder(base: Path, schema: Any, **declared: Any) -> Any:
    (base / "event.avsc").write_text(json.dumps(schema))
    table = {"label": "y", "format": "avro", "schema_file": "event.avsc", **declared}
    learner = {"class": "streampair.auc.PairOGD"}
    config = parse_config({"app": "test", "input": table, "learner": learner}, base=base)
    return event_decoder(config, texts=True)


@in_one_case(
    ("kind", "code", "value"),
    [
        ("null", "", None),
        ("boolean", "00", False),
        ("boolean", "01", True),
        *(
            (kind, code, value)
            for kind in ("int", "long")
            for value, code in ((0, "00"), (-1, "01"), (1, "02"), (-2, "03"), (2, "04"))
        ),
        ("int", "7f", -64),
        ("int", "8001", 64),
        ("int", "feffffff0f", 2**31 - 1),
        ("int", "ffffffff0f", -(2**31)),
        ("long", "feffffffffffffffff01", 2**63 - 1),
        ("long", "ffffffffffffffffff01", -(2**63)),
        ("float", "0000803f", 1.0),
        ("float", "ffff7f7f", (2 - 2.0**-23) * 2.0**127),
        ("double", "000000000000f03f", 1.0),
        ("double", "ffffffffffffef7f", 1.7976931348623157e308),
        ("double", "0100000000000000", 5e-324),
        ("string", "06666f6f", "foo"),
        ("string", "00", ""),
        ("bytes", "04ff00", b"\xff\x00"),
        (FIXED, "0102", b"\x01\x02"),
        (ENUM, "06", "D"),
        (INNER, "3606666f6f", {"a": 27, "b": "foo"}),
        (ARRAY, "04063600", [3, 27]),
        (ARRAY, "0206023600", [3, 27]),  # in two blocks
        (ARRAY, "0304063600", [3, 27]),  # a block that says how many bytes it has
        (ARRAY, "00", []),
        (MAP, "0202610200", {"a": 1}),
        (["null", "string"], "00", None),
        (["null", "string"], "020261", "a"),
    ],
)
def test_a_value(kind: Any, code: str, value: Any) -> None:
    schema = fastavro.parse_schema(record_schema([{"name": "v", "type": kind}]))
    (found,) = avro_reader(schema, 0)(bytes.fromhex(code)).values()
    assert (found, type(found)) == (value, type(value))


# The records of weather.avro in Apache Avro's tests, and their values in weather.json.
WEATHER = {
    "183031313939302d3939393939ffa390e8872400": ("011990-99999", -619524000000, 0),
    "183031313939302d3939393939ff81fbd687242c": ("011990-99999", -619506000000, 22),
    "183031313939302d3939393939ffa5aec2872415": ("011990-99999", -619484400000, -11),
    "183031323635302d3939393939ffb7a28b9426de01": ("012650-99999", -655531200000, 111),
    "183031323635302d3939393939ffdbd5f693269c01": ("012650-99999", -655509600000, 78),
}


def test_weather(tmp_path: Path) -> None:
    fields = [("station", "string"), ("time", "long"), ("temp", "int")]
    schema = record_schema([{"name": name, "type": kind} for name, kind in fields])
    decode = decoder(tmp_path, schema, id="station", features=["time", "temp"])
    config = parse_config(
        {
            "app": "test",
            "input": {"label": "y", "id": "station", "features": ["time", "temp"]},
            "learner": {"class": "streampair.auc.PairOGD"},
        }
    )
    fast = row_reader(fastavro.parse_schema(schema), config.input, 0)
    assert fast is not None
    for code, (station, time, temperature) in WEATHER.items():
        event = decode(Record(0, bytes.fromhex(code)))
        assert (event.id, event.x) == (station, {"time": time, "temp": temperature})
        found = fast(bytes.fromhex(code))
        assert (found.id, found.cells) == (station, (time, temperature))


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("long", "80" * 10),  # of the rejections in Apache Avro's tests
        ("int", "80" * 5),
        (ARRAY, "ffffffffffffffffff0102"),
        ("bytes", "01"),
        ("string", "01"),
        (["null", "int"], "01"),
        (["null", "int"], "0a"),
        pytest.param(ENUM, "01", marks=pytest.mark.xfail(reason="fastavro counts from the end", strict=True)),
        (ENUM, "0a"),
        ("string", "0666"),  # more, of ours
        ("string", "04c328"),
        ("string", "feffffffffffffffff01"),
        (ARRAY, "feffffffffffffffff0102"),
        (MAP, "01"),
        (FIXED, "01"),
        ("double", "00000000"),
        ("float", ""),
        (DECIMAL, "04ff"),
        ("int", "0202"),
    ],
)
def test_bytes_that_are_refused(tmp_path: Path, kind: Any, code: str) -> None:
    """The feature before them is whole; both readers must refuse the event all the same."""
    schema = record_schema([{"name": "a", "type": "double"}, {"name": "v", "type": kind}])
    with pytest.raises(RecordError, match="does not fit its Avro schema"):
        decoder(tmp_path, schema, features=["a"])(Record(0, bytes(8) + bytes.fromhex(code)))


SELF = record_schema([{"name": "next", "type": ["null", "Event"]}])
NOTHING = {"type": "record", "name": "Nothing", "fields": [{"name": "a", "type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (SELF, "contains itself"),
        (record_schema([{"name": "next", "type": "Event"}]), "contains itself"),
        (record_schema([{"name": "next", "type": {"type": "array", "items": "Event"}}]), "contains itself"),
        (record_schema([{"name": "next", "type": {"type": "map", "values": "Event"}}]), "contains itself"),
        (record_schema([{"name": "in", "type": {**INNER, "fields": SELF["fields"]}}]), "contains itself"),
        *(
            (record_schema([{"name": "v", "type": {"type": "array", "items": items}}]), "take no bytes")
            for items in ("null", NOTHING, *({**FIXED, "size": size} for size in (0, -1)))
        ),
    ],
)
def test_schemas_with_which_one_event_would_end_the_process(
    tmp_path: Path, schema: Any, problem: str
) -> None:
    """fastavro ends with a segmentation fault in 100,000 records inside each other, which have 100,000 bytes.

    An array of a billion nulls has seven.
    """
    with pytest.raises(ConfigError, match=problem):
        decoder(tmp_path, schema, features=["a"])


@pytest.mark.parametrize(
    "numbers",
    [{"scale": 0}, {"precision": 2, "scale": 3}, {"precision": 1001}, {"precision": 2, "scale": -1}],
)
def test_decimals_that_are_refused(tmp_path: Path, numbers: dict[str, int]) -> None:
    """Ten to the power of a large scale would take all time."""
    kind = {"type": "bytes", "logicalType": "decimal", **numbers}
    with pytest.raises(ConfigError, match="a decimal has no precision"):
        decoder(tmp_path, record_schema([{"name": "a", "type": kind}]), features=["a"])


def test_a_decimal_of_half_a_megabyte(tmp_path: Path) -> None:
    """With `Decimal` it took 38 seconds."""
    decode = decoder(tmp_path, record_schema([{"name": "a", "type": DECIMAL}]), features=["a"])
    with pytest.raises(RecordError, match="'a' is not finite"):
        decode(Record(0, b"\xc0\x84\x3d" + bytes([127]) * 500_000))
    assert decode(Record(0, b"\x80\x01" + bytes(62) + b"\x04\xd2")).x == {"a": 12.34}


def test_a_type_that_is_used_twice_contains_itself_not(tmp_path: Path) -> None:
    fields = [{"name": "before", "type": ["null", INNER]}, {"name": "after", "type": ["null", "Inner"]}]
    more = {"name": "all", "type": {"type": "array", "items": "Inner"}}
    decode = decoder(tmp_path, record_schema([*fields, more]), features=["after.a"])
    assert decode(Record(0, bytes.fromhex("00023606666f6f00"))).x == {"after.a": 27.0}


def test_many_uses_of_a_type_are_checked_in_time(tmp_path: Path) -> None:
    """Each of forty records has the one before twice."""
    kind: Any = "double"
    for i in range(40):
        used = kind["name"] if i else kind
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": used}]
        kind = {"type": "record", "name": f"R{i}", "fields": fields}
    decoder(tmp_path, kind, features=["a"])
