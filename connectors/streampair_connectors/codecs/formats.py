"""Decoders of events by `input.format`: JSON, Avro, JSON behind the id of a schema, and CSV."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import msgspec
from fastavro.schema import SchemaParseException, UnknownType

from streampair.errors import ConfigError, RecordError
from streampair_connectors.codecs.avro_rows import row_reader
from streampair_connectors.codecs.fields import EventFields, Rows, unnested, used_fields
from streampair_connectors.codecs.json_fields import JsonFields, json_object
from streampair_connectors.codecs.records import (
    Decoder,
    csv_decoder,
    csv_row,
    dict_decoder,
    json_decoder,
)
from streampair_connectors.codecs.registry import MOST_IDS, SchemaRegistry
from streampair_connectors.config import Config

__all__ = [
    "FRAME",
    "avro_parser",
    "avro_reader",
    "event_decoder",
    "field_decoder",
    "fields_reader",
    "schema_registry",
]

FRAME = 5
"""Bytes before a message: zero, and the id of its schema."""
_Parse = Callable[[bytes], dict[str, Any]]
_ReadRow = Callable[[bytes], EventFields]


def event_decoder(config: Config, **cells: Any) -> Decoder:
    """Return the function that turns a record of the input topic into an event.

    Parameters
    ----------
    config
        The application.
    cells
        Options of `json_decoder`: gaps, nulls, texts, quotes.

    Raises
    ------
    ConfigError
        The schema file, or a secret of the registry, cannot be read.
    RecordError
        By the returned function; see `json_decoder`.
    SourceError
        By the returned function: the schema registry does not answer. Nothing is wrong with the event.

    Examples
    --------
    >>> from streampair.engine import Record
    >>> from streampair_connectors.config import parse_config
    >>> config = parse_config({
    ...     "app": "fraud",
    ...     "input": {"format": "csv", "columns": ["amount", "bad"], "features": ["amount"], "label": "bad"},
    ...     "learner": {"class": "streampair.auc.PairOGD"},
    ... })
    >>> event_decoder(config)(Record(0, b"12.5,true"))
    Event(x={'amount': 12.5}, y=True, id=None)
    """
    declared = config.input
    if declared.format == "csv":
        assert declared.columns is not None
        return csv_decoder(declared, declared.columns, **cells)
    if declared.format == "avro":
        parse, read = _event_readers(config)
        typed = None if read is None else Rows(read)
        return dict_decoder(declared, parse, typed=typed, **cells)
    frame = None if declared.format == "json" else _unframed
    return json_decoder(declared, unframe=frame, **cells)


def schema_registry(config: Config) -> SchemaRegistry | None:
    """Return the client of the schema registry; None: none is declared."""
    registry = config.schema_registry
    return None if registry is None else SchemaRegistry(registry)


def _unframed(value: bytes) -> bytes:
    """The event behind the id of a schema; the id is not looked up."""
    return value[_frame(value) :]


def _frame(value: bytes) -> int:
    """Length of the frame of an event."""
    if len(value) < FRAME or value[0] != 0:
        raise RecordError(
            "the message does not begin with a zero byte and the id of a schema",
            fix="write it with a serializer of the schema registry, or correct input.format or "
            "label_input.format",
            stage="decode",
        )
    return FRAME


def field_decoder(config: Config, fields: Any, *, events: bool) -> Callable[[bytes], Any]:
    """Return the function from the bytes of a message to some of its fields.

    Parameters
    ----------
    config
        The application.
    fields
        A struct of msgspec: the fields.
    events
        Whether the messages are events, else labels.

    Raises
    ------
    ConfigError
        The schema file, or a secret of the registry, cannot be read.
    RecordError, msgspec.ValidationError
        By the returned function: the message cannot be read, or a field has another type.
    SourceError
        By the returned function: the schema registry does not answer.
    """
    declared = config.input if events or config.label_input is None else config.label_input
    names = [field.encode_name for field in msgspec.structs.fields(fields)]
    find = unnested(declared, names)
    if declared.format == "avro":
        parse = _event_readers(config)[0] if events else avro_parser(config)
    else:
        read = JsonFields(used_fields(declared, names)).parse
        parse = read if declared.format == "json" else lambda value: read(_unframed(value))

    def decode(value: bytes) -> Any:
        data = parse(value)
        return msgspec.convert(data if find is None else find(data), fields)

    return decode


def fields_reader(config: Config) -> Callable[[bytes], dict[str, Any]]:
    """Return the function from the bytes of an event to all its fields, as they are in the message.

    Raises
    ------
    ConfigError
        The schema file, or a secret of the registry, cannot be read.
    RecordError
        By the returned function: the event cannot be read.
    SourceError
        By the returned function: the schema registry does not answer.
    """
    declared = config.input
    if declared.format == "avro":
        return _event_readers(config)[0]
    if declared.format == "csv":
        return lambda value: csv_row(value, declared.columns or [])
    return json_object if declared.format == "json" else lambda value: json_object(_unframed(value))


def _event_readers(config: Config) -> tuple[_Parse, _ReadRow | None]:
    """The function from an event in Avro to its fields, and a faster one for some events."""
    declared = config.input
    if declared.schema_file is not None:
        schema = _schema_of_file(config)
        return avro_reader(schema, 0), row_reader(schema, declared, 0)
    rows: dict[bytes, _ReadRow] = {}

    def keep(head: bytes, schema: Any) -> None:
        if (read := row_reader(schema, declared, FRAME)) is not None:
            rows[head] = read

    return avro_parser(config, keep), lambda value: rows[value[:FRAME]](value)


def avro_parser(config: Config, keep: Callable[[bytes, Any], None] | None = None) -> _Parse:
    """Return the function from the bytes of an Avro message, with the id of its schema, to its fields.

    Decimals become numbers. Dates and times stay the numbers that they are in the message.

    Parameters
    ----------
    config
        The application.
    keep
        Called with the frame of a schema, and with the schema, once it is known; None: nobody wants it.

    Raises
    ------
    ConfigError
        A secret of the registry cannot be read.
    """
    registry = schema_registry(config)
    assert registry is not None
    known: dict[bytes, _Parse | RecordError] = {}

    def read(head: bytes) -> _Parse | RecordError:
        """The reader of a schema, or why none of its messages can be read: that never changes."""
        number = int.from_bytes(head[1:], "big")
        if number >= MOST_IDS:
            return RecordError(
                f"the id of a schema is {number}, and no registry gives ids from {MOST_IDS} on",
                fix="write the message with a serializer of the schema registry",
                stage="decode",
            )
        try:
            # An answer that there is no such schema is not kept: it may be registered meanwhile.
            schema = _compiled(*registry.schema(number))
        except _SchemaError as error:
            return RecordError(
                f"the schema with id {number} cannot be used: {error}",
                fix="register a record as the schema of the topic's values",
                stage="decode",
            )
        if keep is not None and len(known) < _MOST_SCHEMAS:
            keep(head, schema)
        return avro_reader(schema, FRAME)

    def parse(value: bytes) -> dict[str, Any]:
        found = known.get(value[:FRAME])
        if found is None:
            head = value[: _frame(value)]
            found = read(head)
            if len(known) < _MOST_SCHEMAS:
                known[head] = found
        if isinstance(found, RecordError):
            raise RecordError(found.problem, fix=found.fix, stage="decode")
        return found(value)

    return parse


_MOST_SCHEMAS = 10_000


class _SchemaError(Exception):
    pass


def _schema_of_file(config: Config) -> Any:
    path = config.input.schema_file
    assert path is not None
    try:
        return _compiled(json.loads(path.read_text(encoding="utf-8-sig")), [])
    except (OSError, ValueError, _SchemaError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"input.schema_file {path} cannot be used: {reason}",
            fix="name a file with the Avro schema of a record, in JSON",
        ) from None


def _compiled(schema: Any, references: Sequence[Any]) -> Any:
    named: dict[str, Any] = {}
    try:
        for each in references:
            fastavro.parse_schema(_with_plain_numbers(each), named_schemas=named)
        parsed = fastavro.parse_schema(_with_plain_numbers(schema), named_schemas=named)
        _least_bytes(parsed, named, {})
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, RecursionError) as error:
        raise _SchemaError(f"it is no Avro schema ({type(error).__name__})") from None
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise _SchemaError("it is no record")
    if not all(isinstance(field["name"], str) for field in parsed["fields"]):  # fastavro does not look
        raise _SchemaError("a name of a field is no text")
    return parsed


def _least_bytes(schema: Any, named: dict[str, Any], known: dict[str, int | None]) -> int:
    """Bytes that each value of a schema has at least.

    Refuses schemas with which one small event can end the process. fastavro reads nested records by recursion
    without a limit, so that no record may contain itself. It reads as many items as an array claims to have,
    so that items must take bytes.
    """
    if isinstance(schema, str):
        return _LEAST_BYTES[schema] if schema in _LEAST_BYTES else _least_bytes(named[schema], named, known)
    if isinstance(schema, list):
        for each in schema:
            _least_bytes(each, named, known)
        return 1
    kind = schema["type"]
    if kind in ("record", "error"):
        return _least_of_record(schema, named, known)
    if kind == "array" and _least_bytes(schema["items"], named, known) == 0:
        raise _SchemaError("the items of an array take no bytes")
    if kind == "map":
        _least_bytes(schema["values"], named, known)
    if kind == "fixed":
        return max(0, int(schema["size"]))
    return 1 if kind in ("array", "map", "enum") else _least_bytes(kind, named, known)


def _least_of_record(schema: Any, named: dict[str, Any], known: dict[str, int | None]) -> int:
    name = schema["name"]
    if name not in known:
        known[name] = None  # until its fields are known
        known[name] = sum(_least_bytes(each["type"], named, known) for each in schema["fields"])
    if (least := known[name]) is None:
        raise _SchemaError("a record contains itself")
    return least


_LEAST_BYTES = {
    "null": 0,
    "boolean": 1,
    "int": 1,
    "long": 1,
    "float": 4,
    "double": 8,
    "bytes": 1,
    "string": 1,
}


def _with_plain_numbers(schema: Any) -> Any:
    """A schema with dates and times as the numbers of the message, and decimals as the nearest numbers."""
    if isinstance(schema, list):
        return [_with_plain_numbers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: _with_plain_numbers(item) if name in ("type", "items", "values", "fields") else item
        for name, item in schema.items()
    }
    if kept.get("logicalType") == "decimal" and kept.get("type") in ("bytes", "fixed"):
        return kept | {"logicalType": _DECIMAL, "scale": _scale_of(kept)}
    kept.pop("logicalType", None)
    return kept


def _scale_of(schema: dict[str, Any]) -> int:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision <= _MOST_DIGITS:
        raise _SchemaError(f"a decimal has no precision, or one that is not from its scale to {_MOST_DIGITS}")
    return scale


def _nearest_number(value: bytes, schema: Any, _: Any) -> float:
    """The number nearest to a decimal.

    fastavro makes a `Decimal` first, in time that is quadratic in its bytes: 38 seconds for 500 kB.
    """
    try:
        return float(int.from_bytes(value, "big", signed=True) / 10 ** schema["scale"])
    except OverflowError:
        return math.inf


_MOST_DIGITS = 1000
_DECIMAL = "streampair-decimal"
for _kind in ("bytes", "fixed"):
    fastavro.read.LOGICAL_READERS[f"{_kind}-{_DECIMAL}"] = _nearest_number


def avro_reader(schema: Any, begin: int) -> _Parse:
    """Return the function from the bytes of a record to its fields.

    Parameters
    ----------
    schema
        As `fastavro.parse_schema` gives it.
    begin
        Length of the frame before the record.

    Raises
    ------
    RecordError
        By the returned function: the bytes do not fit the schema.
    """
    read = fastavro.schemaless_reader

    def parse(value: bytes) -> dict[str, Any]:
        stream = io.BytesIO(value)
        stream.seek(begin)
        try:
            data: Any = read(stream, schema, None)
        except MemoryError:
            raise
        except Exception as error:  # whatever a reader of damaged bytes meets
            raise _unfit(type(error).__name__) from None
        if stream.tell() != len(value):
            raise _unfit("bytes are left over")
        return data  # type: ignore[no-any-return]

    return parse


def _unfit(reason: str) -> RecordError:
    return RecordError(
        f"the message does not fit its Avro schema: {reason}",
        fix="write it with the schema that it names, or that input.schema_file has",
        stage="decode",
    )
