"""A fast reader of Avro events whose features are numbers.

fastavro reads an event into a dictionary, one field after the other, which takes more than the rest of a
lane. This module reads flat records of numbers, truth values and texts, with fields of fixed width in one
step. All that it does not know, or cannot read, is left to fastavro, which also names what is wrong.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from streampair_connectors.codecs.fields import EventFields
from streampair_connectors.config import InputConfig

__all__ = ["row_reader"]

# Reads a field at a place, appends its value, and returns the place behind it.
_Step = Callable[[bytes, int, list[Any]], int]
_FIXED = {"double": "d", "float": "f", "boolean": "?"}
_INTEGERS = frozenset({"int", "long"})
_NUMBERS = frozenset({"double", "float", "int", "long"})
_LABELS = frozenset({"boolean", "double", "float", "int", "long", "string"})
_IDS = frozenset({"int", "long", "string"})


def row_reader(schema: Any, config: InputConfig, begin: int) -> Callable[[bytes], EventFields] | None:
    """Return the reader of complete events of a schema; None: the schema or the names are left to fastavro.

    Parameters
    ----------
    schema
        Of a record, as `fastavro.parse_schema` gives it.
    config
        The input.
    begin
        Length of the frame before a record.

    Returns
    -------
    function or None
        It raises an exception for every event that is not complete, too long, or damaged.

    Examples
    --------
    >>> fields = [{"name": "amount", "type": "double"}, {"name": "bad", "type": "boolean"}]
    >>> read = row_reader({"fields": fields}, InputConfig(label="bad", features=["amount"]), 0)
    >>> read(b"\\x00\\x00\\x00\\x00\\x00\\x00\\xf8\\x3f\\x01")
    EventFields(cells=(1.5,), label=True, id=None)
    """
    kinds = {field["name"]: _kind(field["type"]) for field in schema["fields"]}
    names, label, identity = config.feature_names(), config.label_field, config.id
    if not names or config.envelope is not None or config.fields:
        return None
    wanted = [*((name, _NUMBERS) for name in names), *([] if identity is None else [(identity, _IDS)])]
    if None in kinds.values() or any(_base(kinds.get(name)) not in allowed for name, allowed in wanted):
        return None
    if label in kinds and _base(kinds[label]) not in _LABELS:
        return None
    steps = _steps([kind for kind in kinds.values() if kind is not None])
    columns = {name: i for i, name in enumerate(kinds)}
    places = [columns[name] for name in names]
    take = itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)
    label_at, id_at = columns.get(label), None if identity is None else columns[identity]

    def read(value: bytes) -> EventFields:
        row: list[Any] = []
        place = begin
        for step in steps:
            place = step(value, place, row)
        cells = take(row)
        if place != len(value) or not math.isfinite(sum(cells)):
            raise ValueError
        return EventFields(
            cells, None if label_at is None else row[label_at], None if id_at is None else row[id_at]
        )

    return read


def _kind(schema: Any) -> str | None:
    """A primitive type, with a question mark and the place of null if it may be null; None: another type."""
    if isinstance(schema, dict) and "logicalType" not in schema:
        schema = schema["type"]
    if isinstance(schema, str):
        return schema if schema in _FIXED or schema in _INTEGERS or schema in ("string", "bytes") else None
    if isinstance(schema, list) and len(schema) == 2 and "null" in schema:
        null = schema.index("null")
        inner = _kind(schema[1 - null])
        return None if inner is None or "?" in inner else f"{inner}?{null}"
    return None


def _base(kind: str | None) -> str | None:
    return None if kind is None else kind.partition("?")[0]


def _steps(kinds: Sequence[str]) -> list[_Step]:
    steps: list[_Step] = []
    for fixed, run in itertools.groupby(kinds, lambda kind: kind in _FIXED):
        if fixed:
            steps.append(_fixed("".join(_FIXED[kind] for kind in run)))
        else:
            steps += map(_step, run)
    return steps


def _step(kind: str) -> _Step:
    base, optional, null = kind.partition("?")
    if optional:
        return _optional(_step(base), int(null))
    if base in _FIXED:
        return _fixed(_FIXED[base])
    return _integer if base in _INTEGERS else _text if base == "string" else _bytes


def _fixed(form: str) -> _Step:
    """Fields of fixed width that follow each other. A truth value is one byte, 0 or 1."""
    layout = struct.Struct("<" + form.replace("?", "B"))
    unpack, size = layout.unpack_from, layout.size
    booleans = [i for i, char in enumerate(form) if char == "?"]

    def plain(value: bytes, place: int, row: list[Any]) -> int:
        row += unpack(value, place)
        return place + size

    def with_booleans(value: bytes, place: int, row: list[Any]) -> int:
        found: list[Any] = list(unpack(value, place))
        for i in booleans:
            found[i] = _BOOLEAN[found[i]]
        row += found
        return place + size

    return with_booleans if booleans else plain


_BOOLEAN = {0: False, 1: True}


def _whole(value: bytes, place: int) -> tuple[int, int]:
    """A zigzag number of variable length, and the place behind it."""
    byte = value[place]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), place + 1
    found, shift = byte & 0x7F, 7
    while True:
        place += 1
        byte = value[place]
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > 63:
            raise ValueError
    if found >> 64:
        raise ValueError
    return (found >> 1) ^ -(found & 1), place + 1


def _integer(value: bytes, place: int, row: list[Any]) -> int:
    found, place = _whole(value, place)
    row.append(found)
    return place


def _bytes(value: bytes, place: int, row: list[Any]) -> int:
    size, place = _whole(value, place)
    if not 0 <= size <= len(value) - place:
        raise ValueError
    row.append(None)
    return place + size


def _text(value: bytes, place: int, row: list[Any]) -> int:
    size, place = _whole(value, place)
    if not 0 <= size <= len(value) - place:
        raise ValueError
    row.append(value[place : place + size].decode())
    return place + size


def _optional(step: _Step, null: int) -> _Step:
    def read(value: bytes, place: int, row: list[Any]) -> int:
        branch, place = _whole(value, place)
        if branch == null:
            row.append(None)
            return place
        if branch != 1 - null:
            raise ValueError
        return step(value, place, row)

    return read
