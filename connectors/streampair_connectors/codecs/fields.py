"""Fields of events: in nested objects and in the envelope of Debezium; numbers as text, and times."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from streampair.errors import RecordError, TombstoneError
from streampair.evaluation.epochs import UNITS, unit_of
from streampair_connectors.config import InputConfig, LabelsConfig

__all__ = [
    "EPOCH_UNITS",
    "EventFields",
    "Find",
    "is_field_name",
    "is_outer",
    "typed_reader",
    "unnested",
    "unwrapped",
]

_MISSING = object()
# Debezium's operations without a row: delete, truncate, message.
_WITHOUT_ROW = frozenset({"d", "t", "m"})
# A type that no value of JSON has.
_Never = Annotated[int, msgspec.Meta(gt=0, lt=0)]
_Label = bool | int | float | str | None
_Id = str | int | None

_KEY, _HEADERS = "$key", "$headers."

Find = Callable[..., dict[str, Any]]


class EventFields(NamedTuple):
    """The features of an event in the declared order, its label, and its id."""

    cells: tuple[float, ...]
    label: Any
    id: Any


def unnested(declared: InputConfig | LabelsConfig, names: Iterable[str | None]) -> Find | None:
    """Return the function from a message to its fields by the names that a configuration has for them.

    A name with dots is that of a field of a nested object, unless the message has a field of that whole name.
    With `envelope = "debezium"` the fields are those of the row. Texts and times that `input.fields` declares
    become numbers. `$key` and `$headers.NAME` are the key and a header of the message, as text.

    Parameters
    ----------
    declared
        The table of the topic.
    names
        The declared names; None is skipped.

    Returns
    -------
    function or None
        None: all fields are top-level ones. The function takes the fields of the value, which it may change,
        and the message if it has a key and headers. It raises `RecordError`
        where a message has no envelope, or a field cannot be read, and `TombstoneError` where it has no row.

    Examples
    --------
    >>> from streampair_connectors.config import InputConfig
    >>> find = unnested(InputConfig(label="y"), ["payload.amount", "y"])
    >>> find({"payload": {"amount": 3}, "y": True})["payload.amount"]
    3
    """
    declared_names = [name for name in dict.fromkeys(names) if name is not None]
    dotted = [(name, name.split(".")) for name in declared_names if "." in name]
    envelope = declared.envelope is not None
    converters = _converters(declared, declared_names) if isinstance(declared, InputConfig) else []
    outer = [name for name in declared_names if is_outer(name)]
    if not dotted and not envelope and not converters and not outer:
        return None

    def find(data: dict[str, Any], message: Any = None) -> dict[str, Any]:
        if envelope:
            data = unwrapped(data)
        if message is not None and outer:
            data |= _outer_fields(outer, message)
        for name, path in dotted:
            if name not in data and (item := _nested(data, path)) is not _MISSING:
                data[name] = item
        for convert in converters:
            convert(data)
        return data

    return find


def is_outer(name: str) -> bool:
    """Whether a name is that of the key or of a header of a message."""
    return name == _KEY or name.startswith(_HEADERS)


def _outer_fields(names: Iterable[str], message: Any) -> dict[str, str]:
    """The key and headers that a message has; a line of a file and a request have none."""
    found = {_HEADERS + name: item for name, item in reversed(getattr(message, "headers", ()))}
    found[_KEY] = getattr(message, "key", None)
    texts = {}
    for name in names:
        item = found.get(name)
        if item is None:
            continue
        try:
            texts[name] = item.decode("utf-8")
        except UnicodeDecodeError:
            raise RecordError(
                f"{name!r} of the message is not UTF-8",
                fix="send it as UTF-8 text; what a serializer writes in another format, in the value",
                stage="features",
            ) from None
    return texts


def _converters(config: InputConfig, names: Iterable[str]) -> list[Callable[[dict[str, Any]], None]]:
    """The functions that put numbers and parts of times into the fields of an event."""
    wanted = set(names)
    parts: dict[str, list[tuple[str, str]]] = {}
    for name, (time, part) in config.time_parts().items():
        if name in wanted:
            parts.setdefault(time, []).append((name, part))
    numbers = [name for name, kind in config.fields.items() if kind == "number" and name in wanted]
    return [
        *(partial(_put_number, name) for name in numbers),
        *(partial(_put_parts, time, config.fields[time], parts[time]) for time in parts),
    ]


def _put_number(name: str, data: dict[str, Any]) -> None:
    text = data.get(name)
    if not isinstance(text, str):
        return
    if text == "":  # as an empty cell of CSV
        del data[name]
        return
    try:
        data[name] = float(text)
    except ValueError:
        raise RecordError(
            f"feature {name!r} is a text that is no number",
            fix=f'send a number as {name!r}, such as 12.5 or "12.5"',
            stage="features",
        ) from None


def _put_parts(time: str, kind: str, parts: list[tuple[str, str]], data: dict[str, Any]) -> None:
    value = data.get(time, _MISSING) if "." not in time or time in data else _nested(data, time.split("."))
    for name, _ in parts:
        data.pop(name, None)
    if value is None or value is _MISSING or value == "":
        return
    try:
        moment = _moment(value, kind)
    except (ValueError, TypeError, OverflowError):
        raise _no_time(time, value, kind) from None
    for name, part in parts:
        data[name] = moment.weekday() if part == "weekday" else getattr(moment, part)


def _no_time(time: str, value: Any, kind: str) -> RecordError:
    problem = f"field {time!r} is no time as input.fields declares it"
    if kind == "iso-8601":
        fix = "send it as ISO 8601, such as 2024-01-31T12:00:00Z; or correct input.fields"
        return RecordError(problem, fix=fix, stage="features")
    fix = f"send it as a number, {kind}, of a time from 1990 to 2100; or correct input.fields"
    with suppress(ValueError, TypeError, OverflowError):
        unit = unit_of(_number_of(value))
        if unit is not None:
            problem += f": it looks like {unit}"
        written = next((each for each, name in EPOCH_UNITS.items() if name == unit), None)
        if written is not None:
            fix = f'write "{written}" for it in input.fields'
    return RecordError(problem, fix=fix, stage="features")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Units of numbers that are times, by the kinds of `input.fields`.
EPOCH_UNITS = {"epoch-s": "seconds", "epoch-ms": "milliseconds", "epoch-us": "microseconds"}


def _moment(value: Any, kind: str) -> datetime:
    """A time in UTC; a text without an offset is in UTC."""
    if kind == "iso-8601":
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    number, unit = _number_of(value), EPOCH_UNITS[kind]
    if unit_of(number) != unit:
        raise ValueError
    return _EPOCH + timedelta(microseconds=number * (UNITS["microseconds"] // UNITS[unit]))


def _number_of(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    if isinstance(value, str):
        return float(value) if "." in value else int(value)
    return value


def _nested(data: Mapping[str, Any], path: list[str]) -> Any:
    item: Any = data
    for part in path:
        if not isinstance(item, dict) or part not in item:
            return _MISSING
        item = item[part]
    return item


def unwrapped(data: dict[str, Any]) -> dict[str, Any]:
    """Return the row of an event of Debezium after the change.

    Raises
    ------
    TombstoneError
        The event has no row: it says that one was deleted, or is a truncate or a message.
    RecordError
        It is no event of Debezium.

    Examples
    --------
    >>> unwrapped({"before": None, "after": {"amount": 3}, "op": "c"})
    {'amount': 3}
    """
    payload = data.get("payload")
    event = payload if "after" not in data and isinstance(payload, dict) else data
    row = event.get("after", _MISSING)
    if row is None or event.get("op") in _WITHOUT_ROW:
        raise TombstoneError(
            "the event of Debezium has no row",
            fix="none is needed: it says that a row was deleted, and is counted as a tombstone",
            stage="decode",
        )
    if not isinstance(row, dict):
        raise RecordError(
            "the event has no object 'after', which an event of Debezium has",
            fix='remove envelope = "debezium" if the connector sends rows alone (ExtractNewRecordState)',
            stage="decode",
        )
    return row


def typed_reader(config: InputConfig) -> Callable[[bytes], EventFields] | None:
    """Return a fast reader of complete JSON events with numeric features; None: the names allow none.

    It raises an exception for any other event, also for a good one with a field that has dots in its name.
    """
    names = config.feature_names() or []
    if config.fields or any(map(is_outer, names)):
        return None
    kinds: list[tuple[str, Any]] = [*((name, float) for name in names), (config.label_field, _Label)]
    if config.id is not None:
        kinds.append((config.id, _Id))
    tree: dict[str, Any] = {}
    for name, kind in kinds:
        *path, leaf = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                return None  # it is a field itself
        # An event that has the whole name as a field is left to the slow reader.
        if leaf in node or (path and tree.setdefault(name, _Never) is not _Never):
            return None
        node[leaf] = kind
    if not all(map(is_field_name, _keys(tree))):
        return None
    attributes: dict[str, str] = {}
    row_type, _ = _struct(tree, "", "", attributes)
    take = _attributes([attributes[name] for name in names])
    label = operator.attrgetter(attributes[config.label_field])
    identity = (lambda row: None) if config.id is None else operator.attrgetter(attributes[config.id])
    row_of = msgspec.json.Decoder(row_type).decode if config.envelope is None else _debezium_reader(row_type)

    def read(value: bytes) -> EventFields:
        row = row_of(value)
        return EventFields(take(row), label(row), identity(row))

    return read


def is_field_name(name: str) -> bool:
    """Whether msgspec accepts `name` as the name of a field."""
    return all(char not in '\\"' and char >= " " for char in name)


def _keys(tree: Mapping[str, Any]) -> Iterable[str]:
    for name, item in tree.items():
        yield name
        if isinstance(item, dict):
            yield from _keys(item)


def _struct(tree: Mapping[str, Any], path: str, prefix: str, attributes: dict[str, str]) -> tuple[Any, bool]:
    """Make the struct of an object, and say whether an event without the object is complete.

    `attributes` gets the path of attributes of each field.
    """
    fields: list[Any] = []
    renamed, complete = {}, True
    for i, (name, item) in enumerate(tree.items()):
        attribute = f"f{i}"
        renamed[attribute] = name
        if isinstance(item, dict):
            kind, optional = _struct(item, f"{path}{name}.", f"{prefix}{attribute}.", attributes)
            fields.append((attribute, kind, *([msgspec.field(default_factory=kind)] if optional else [])))
            complete = complete and optional
        elif item is _Never:
            fields.append((attribute, item, 0))
        else:
            attributes[path + name] = prefix + attribute
            fields.append((attribute, item) if item is float else (attribute, item, None))
            complete = complete and item is not float
    return msgspec.defstruct("Fields", fields, rename=renamed, gc=False, kw_only=True), complete


def _attributes(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) == 1:
        get = operator.attrgetter(names[0])
        return lambda row: (get(row),)
    return operator.attrgetter(*names) if names else lambda row: ()


def _debezium_reader(row: Any) -> Callable[[bytes], Any]:
    """Return the function from an event of Debezium, with a schema or without, to its row."""
    fields: list[Any] = [("op", Literal["c", "r", "u"], "c"), ("after", row | None, None)]
    payload = msgspec.defstruct("Payload", fields, gc=False)
    event = msgspec.defstruct("Event", [*fields, ("payload", payload | None, None)], gc=False)
    decode = msgspec.json.Decoder(event).decode

    def read(value: bytes) -> Any:
        found: Any = decode(value)
        if found.after is None:
            found = found.payload
        if found is None or found.after is None:
            raise ValueError("no row")
        return found.after

    return read
