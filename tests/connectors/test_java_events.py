"""Events that a Java producer wrote, of every Avro type: what becomes of each field.

`tests/golden/avro/WriteEvents.java` wrote them, with Apicurio's serializer in Confluent's wire format.
`tests/broker/test_real_registry.py` runs it again, and compares.
"""

from __future__ import annotations

import json
import math
from typing import Any

import fastavro
import pytest
from harness import support
from streampair_connectors.codecs.avro_rows import row_reader
from streampair_connectors.codecs.formats import FRAME, event_decoder
from streampair_connectors.config import Config, parse_config

from streampair.engine import Record
from streampair.errors import RecordError

FOLDER = support.ROOT / "tests" / "golden" / "avro"
EVENTS = [line.split() for line in (FOLDER / "events.txt").read_text().splitlines()]


def events(name: str) -> list[bytes]:
    """The events of a schema, without frames: ids are of the registry that was there."""
    framed = [bytes.fromhex(text) for kind, text in EVENTS if kind == name]
    assert all(value[0] == 0 for value in framed)
    return [value[FRAME:] for value in framed]


def configured(name: str, **more: Any) -> Config:
    table = {"label": "label", "format": "avro", "schema_file": f"{name}.avsc"} | more
    learner = {"class": "streampair.auc.PairOGD"}
    return parse_config({"app": "test", "input": table, "learner": learner}, base=FOLDER)


NULL, NO_NUMBER, LIST, OBJECT = "is null", "is not a number", "is a list", "is an object"
PAYMENTS: dict[str, tuple[Any, Any]] = {
    "truth": (True, False),
    "int": (63.0, -(2.0**31)),
    "long": (-65.0, 2.0**63),
    "float": (1.5, 2.0**-149),
    "double": (0.1, -1.7976931348623157e308),
    "string": ("", "\u20ac \U0001f600" * 20),
    "javaString": ("shop", "caf\u00e9"),
    "bytes": (NO_NUMBER, NO_NUMBER),
    "fixed": (NO_NUMBER, NO_NUMBER),
    "enum": ("DEBIT", "CREDIT"),
    "optional": (-2.25, NULL),
    "union": (7.0, "CREDIT"),
    "array": (LIST, LIST),
    "map": (OBJECT, OBJECT),
    "decimal": (12.34, -123456789012345678.90),
    "fixedDecimal": (99999999999999.9999, -0.0001),
    "date": (19782.0, -1.0),
    "timeMillis": (86399999.0, 86399999.0),
    "timeMicros": (86399999999.0, 86399999999.0),
    "timestampMillis": (1709208000001.0, -1.0),
    "timestampMicros": (1709208000000001.0, NULL),
    "localTimestampMillis": (1709208000000.0, 1709208000000.0),
    "uuid": ("f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"),
    "card": (OBJECT, OBJECT),
    "card.age": (31.0, -64.0),
    "card.limit": (2500.0, NULL),
    "card.owner.score": (0.5, (2.0 - 2.0**-23) * 2.0**127),
}


def test_each_field_of_the_schema_is_here() -> None:
    schema = json.loads((FOLDER / "payment.avsc").read_text())
    assert [field["name"] for field in schema["fields"]] == [name for name in PAYMENTS if "." not in name]


@pytest.mark.parametrize("name", PAYMENTS)
def test_a_field_as_a_feature(name: str) -> None:
    decode = event_decoder(configured("payment", features=[name]), texts=True)
    for value, wanted in zip(events("payment"), PAYMENTS[name], strict=True):
        if wanted in (NULL, NO_NUMBER, LIST, OBJECT):
            with pytest.raises(RecordError, match=f"'{name}' {wanted}"):
                decode(Record(0, value))
        else:
            (found,) = decode(Record(0, value)).x.values()
            assert (found, type(found)) == (wanted, type(wanted))


# As they are in WriteEvents.java; in the order of FEATURES.
FEATURES = ["double", "float", "int", "long", "optional"]
READINGS: list[tuple[str, list[float | None], bool]] = [
    ("r-1", [1.5, 1.5, 1, 2**32, 0.25], False),
    ("r-2", [-0.0, -0.0, -64, -64 * 2**32, None], False),
    ("\u00fc", [-1e30, -1.0000000150474662e30, 2**31 - 1, (2**31 - 1) * 2**32, 5e-324], True),
    ("", [3e-5, 2.9999999242136255e-05, -(2**31), -(2**63), -1.0], False),
]


def test_the_fast_reader() -> None:
    config = configured("reading", features=FEATURES, id="id").input
    schema = fastavro.parse_schema(json.loads((FOLDER / "reading.avsc").read_text()))
    read = row_reader(schema, config, 0)
    assert read is not None
    for value, (identity, cells, label) in zip(events("reading"), READINGS, strict=True):
        if None in cells:
            with pytest.raises(TypeError):
                read(value)
        else:
            found = read(value)
            assert (found.id, list(found.cells), found.label) == (identity, cells, label)
            assert math.copysign(1, found.cells[0]) == math.copysign(1, cells[0] or 0.0)


def test_events_with_a_gap() -> None:
    """The fast reader leaves an event to fastavro."""
    decode: Any = event_decoder(configured("reading", features=FEATURES, id="id"), gaps=True)
    for value, (identity, cells, label) in zip(events("reading"), READINGS, strict=True):
        event = decode(Record(0, value))
        wanted = {name: float(cell) for name, cell in zip(FEATURES, cells, strict=True) if cell is not None}
        assert (event.id, event.x, event.y) == (identity, wanted, label)
