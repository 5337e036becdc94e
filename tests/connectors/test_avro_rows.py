"""The fast reader of Avro events agrees with fastavro, or leaves an event to it."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from harness.schema_registry import record_schema
from streampair_connectors.codecs.avro_rows import row_reader
from streampair_connectors.codecs.fields import EventFields
from streampair_connectors.config import InputConfig

CONFIG = InputConfig(label="y", features=["a", "b"], id="k")
NUMBERS, OTHERS = ["double", "float", "int", "long"], ["string", "bytes", "boolean", *["double", "long"]]


def drawn(coin: random.Random) -> dict[str, Any]:
    """A schema with the features `a` and `b`, an id, a label and other fields, in any order."""
    fields = [
        ("a", coin.choice(NUMBERS)),
        ("b", coin.choice(NUMBERS)),
        ("k", coin.choice(["long", "string"])),
    ]
    fields += [("y", coin.choice(["boolean", "int", "string"]))]
    fields += [(f"other_{i}", coin.choice(OTHERS)) for i in range(coin.randrange(4))]
    coin.shuffle(fields)
    kinds: list[Any] = []
    for _, kind in fields:
        union = coin.choice([["null", kind], [kind, "null"]])
        kinds.append(union if coin.random() < 0.3 else {"type": kind} if coin.random() < 0.2 else kind)
    return record_schema(
        [{"name": name, "type": kind} for (name, _), kind in zip(fields, kinds, strict=True)]
    )


def value_of(coin: random.Random, kind: Any) -> Any:
    if isinstance(kind, list):
        kind = coin.choice(kind)
    kind = kind["type"] if isinstance(kind, dict) else kind
    values: dict[str, Callable[[], Any]] = {
        "null": lambda: None,
        "boolean": lambda: coin.random() < 0.5,
        "int": lambda: coin.choice([0, -1, 63, 64, -65, 2**31 - 1, -(2**31)]),
        "long": lambda: coin.choice([0, -1, 10**6, 2**63 - 1, -(2**63)]),
        "float": lambda: coin.choice([0.0, -1.5, 2.0**100]),
        "double": lambda: coin.choice([0.0, -0.1, 1e300, float("nan"), float("inf")]),
        "string": lambda: coin.choice(["", "x", "payment", "\u20ac" * 70]),
        "bytes": lambda: coin.choice([b"", b"\xff" * 3]),
    }
    return values[kind]()


def encoded(schema: Any, row: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, row)
    return body.getvalue()


def by_fastavro(schema: Any, value: bytes) -> EventFields | None:
    """What the reader may give; None: it has to leave the event."""
    body = io.BytesIO(value)
    try:
        row: Any = fastavro.schemaless_reader(body, schema, None)
    except Exception:
        return None
    cells = row["a"], row["b"]
    if body.tell() != len(value) or None in cells or not all(abs(cell) < float("inf") for cell in cells):
        return None
    return EventFields(cells, row["y"], row["k"])


def test_it_agrees_with_fastavro_or_leaves_the_event() -> None:
    coin, read_rows, damages = random.Random(1), 0, 0
    for _ in range(150):
        schema = fastavro.parse_schema(drawn(coin))
        assert isinstance(schema, dict)
        read = row_reader(schema, CONFIG, 0)
        assert read is not None
        for _ in range(20):
            value = encoded(schema, {each["name"]: value_of(coin, each["type"]) for each in schema["fields"]})
            if damaged := coin.random() < 0.4:
                place = coin.randrange(len(value))
                change = coin.choice([b"", b"\xff", b"\x80", bytes([coin.randrange(256)])])
                value, damages = value[:place] + change + value[place + coin.choice([0, 1]) :], damages + 1
            wanted = by_fastavro(schema, value)
            try:
                found: EventFields | None = read(value)
            except Exception:
                found = None
            if found is None:  # fastavro takes some damages: a text that is cut, a number of too many bytes
                assert wanted is None or damaged, value
            else:
                assert wanted is not None, value
                assert (found, repr(found)) == (wanted, repr(wanted))
                read_rows += 1
    assert read_rows > 1000
    assert damages > 1000


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ([("a", "double"), ("y", "boolean")], {}),
        ([("a", "double"), ("b", "string"), ("y", "boolean"), ("k", "long")], {}),
        ([("a", "double"), ("b", "int"), ("y", "boolean"), ("k", "double")], {}),
        ([("a", "double"), ("b", "int"), ("y", "bytes"), ("k", "long")], {}),
        ([("a", "double"), ("b", "int"), ("k", "long"), ("z", {"type": "array", "items": "int"})], {}),
        (
            [("a", {"type": "bytes", "logicalType": "decimal", "precision": 4}), ("b", "int"), ("k", "long")],
            {},
        ),
        ([("a", "double"), ("b", "int"), ("k", "long")], {"envelope": "debezium"}),
    ],
)
def test_what_is_left_to_fastavro(fields: list[tuple[str, Any]], more: dict[str, Any]) -> None:
    schema = fastavro.parse_schema(record_schema([{"name": name, "type": kind} for name, kind in fields]))
    assert row_reader(schema, CONFIG.model_copy(update=more), 0) is None
