"""Fields of events: in nested objects and in the envelope of Debezium; numbers as text, and times."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

from streampair.errors import RecordError, SourceError, TombstoneError
from streampair.evaluation.epochs import UNITS, unit_of
from streampair_connectors.codecs.json_fields import (
    EVERY,
    JsonFields,
    Tree,
)
from streampair_connectors.config import InputConfig, LabelInputConfig

__all__ = [
    "EPOCH_UNITS",
    "EventColumns",
    "EventFields",
    "Find",
    "Rows",
    "TypedReader",
    "Unframed",
    "is_field_name",
    "is_outer",
    "moment_of",
    "no_number",
    "number_of_text",
    "typed_reader",
    "unnested",
    "unwrapped",
    "used_fields",
]

_MISSING = object()
# Debezium's operations without a row: delete, truncate, message.
_WITHOUT_ROW = frozenset({"d", "t", "m"})
# The type of a field that may not be there: no value of JSON has it.
_Absent = Annotated[int, msgspec.Meta(gt=0, lt=0)] | msgspec.UnsetType
_Op = Literal["c", "r", "u"]
_Label = bool | int | float | str | None | msgspec.UnsetType
_Id = str | int | None | msgspec.UnsetType

_KEY, _HEADERS = "$key", "$headers."

Find = Callable[..., dict[str, Any]]


class EventFields(NamedTuple):
    """The features of an event in the declared order, its label, and its id."""

    cells: tuple[Any, ...]
    label: Any
    id: Any


def unnested(declared: InputConfig | LabelInputConfig, names: Iterable[str | None]) -> Find | None:
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


def number_of_text(text: str) -> float:
    """Return the number that a text spells: the one rule for cells of CSV and for numbers that are texts.

    A sign, digits of ASCII with a point or without, an exponent, and blanks around them. The texts for NaN
    and infinity are read, too: no feature takes them.

    Raises
    ------
    ValueError
        It spells none.

    Examples
    --------
    >>> number_of_text("+1.50e1"), number_of_text(" -.5 ")
    (15.0, -0.5)
    """
    if not text.isascii() or "_" in text:
        raise ValueError
    return float(text)


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
        data[name] = number_of_text(text)
    except ValueError:
        raise no_number(name) from None


def no_number(name: str) -> RecordError:
    """The error of a text that `input.fields` declares as a number, and that spells none."""
    return RecordError(
        f"feature {name!r} is a text that is no number",
        fix=f'send a number as {name!r}, such as 12.5 or "12.5"',
        stage="features",
    )


def _put_parts(time: str, kind: str, parts: list[tuple[str, str]], data: dict[str, Any]) -> None:
    value = data.get(time, _MISSING) if "." not in time or time in data else _nested(data, time.split("."))
    for name, _ in parts:
        data.pop(name, None)
    if value is None or value is _MISSING or value == "":
        return
    try:
        moment = moment_of(value, kind)
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


def moment_of(value: Any, kind: str) -> datetime:
    """Return the time in UTC that a value of an event is: the one rule for events and for cells of tables.

    Parameters
    ----------
    value
        A text of ISO 8601, in UTC if it has no offset; or a number, perhaps as text, from 1990 to 2100.
    kind
        As `input.fields` declares it: `"iso-8601"`, or a unit of numbers.

    Raises
    ------
    ValueError, TypeError, OverflowError
        It is none.

    Examples
    --------
    >>> moment_of("2024-01-31T01:00:00+02:00", "iso-8601").day, moment_of("1700000000", "epoch-s").hour
    (30, 22)
    """
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
        return int(value) if value.isascii() and value.isdigit() else number_of_text(value)
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


def used_fields(declared: InputConfig | LabelInputConfig, names: Iterable[str | None] | None) -> Tree:
    """Return the fields of a message that are used.

    Parameters
    ----------
    declared
        The table of the topic.
    names
        The declared names; None: those of the event itself are features.
    """
    row: Tree = EVERY if names is None else {}
    for name in () if names is None else dict.fromkeys(name for name in names if name is not None):
        row[name] = None
        *path, leaf = name.split(".")
        node: Any = row
        for part in path:
            node = node.setdefault(part, {})
            if node is None:  # all of the value is used
                break
        else:
            node[leaf] = None
    if declared.envelope is None:
        return row
    return {"after": row, "op": None, "payload": {"after": row, "op": None}}


class Rows:
    """A fast reader of some events, which leaves others to the strict reader.

    Parameters
    ----------
    read
        From the bytes of an event to its fields; any exception: it is left.
    """

    def __init__(self, read: Callable[[bytes], EventFields]) -> None:
        self._read = read

    def one(self, value: bytes) -> EventFields:
        """Read an event; any exception: it is left."""
        found = self._read(value)
        return found._replace(cells=tuple(map(float, found.cells)))

    def at_once(self, value: bytes | None) -> EventFields | None:
        """Read an event; None: it is left.

        Raises
        ------
        SourceError
            A schema cannot be fetched: the event is not at fault.
        """
        try:
            return self.one(value)  # type: ignore[arg-type]  # None raises
        except SourceError:
            raise
        except Exception:
            return None

    def many(self, values: Sequence[bytes | None]) -> EventColumns:
        """Read events, those that are not left.

        Raises
        ------
        SourceError
            As of `at_once`.
        """
        rows = [self.at_once(value) or _LEFT for value in values]
        return EventColumns(
            [row.cells or None for row in rows], [row.label for row in rows], [row.id for row in rows]
        )


class Unframed(Rows):
    """A reader of events that are a part of their messages.

    Parameters
    ----------
    unframe
        From a message to its event; any exception: it has none.
    rows
        The reader of the events.
    """

    def __init__(self, unframe: Callable[[bytes], bytes], rows: Rows) -> None:
        self._unframe, self._rows = unframe, rows

    def one(self, value: bytes) -> EventFields:
        return self._rows.one(self._unframe(value))

    def many(self, values: Sequence[bytes | None]) -> EventColumns:
        try:
            return self._rows.many([None if value is None else self._unframe(value) for value in values])
        except RecordError:
            return super().many(values)


class TypedReader(Rows):
    """A fast reader of JSON events whose fields have the types that a struct of msgspec declares.

    Parameters
    ----------
    decode
        From the bytes of an event to its struct.
    cells, label, identity
        From the struct to the features, the label and the id, where there are any. What is missing is UNSET.
    fields
        The used fields.
    certain
        Number of keys that are in every event, but for those of features.
    gaps
        Whether features may be missing.
    """

    def __init__(
        self,
        decode: Callable[[bytes], Any],
        cells: Callable[[Any], tuple[Any, ...]],
        label: Callable[[Any], Any] | None,
        identity: Callable[[Any], Any] | None,
        fields: JsonFields,
        certain: int,
        gaps: bool,
    ) -> None:
        self._decode, self._cells = decode, cells
        self._label, self._identity = label or _unset, identity or _unset
        self._fields, self._certain, self._gaps = fields, certain, gaps

    def one(self, value: bytes) -> EventFields:
        """Read an event; any exception: it is left."""
        row = self._decode(value)
        cells, label = self._cells(row), self._label(row)
        identity = self._identity(row)
        if self._gaps and cells.count(msgspec.UNSET) == len(cells):
            raise ValueError("no feature is there")
        items = [*cells, label, identity]
        self._fields.check(value, self._certain + len(items) - items.count(msgspec.UNSET))
        return EventFields(cells, *_or_none([label, identity]))

    def or_else(self, other: TypedReader) -> TypedReader:
        """The reader that lets another one read what this one cannot."""
        return _Either(self, other)

    def many(self, values: Sequence[bytes | None]) -> EventColumns:
        """Read events, those that are not left."""
        found = self.all_of(values) or self._some_of(values)
        return super().many(values) if found is None else found

    def all_of(self, values: Sequence[bytes | None]) -> EventColumns | None:
        """Read events; None: one of them has to be read alone."""
        try:
            rows: list[Any] = list(map(self._decode, values))  # type: ignore[arg-type]  # None raises
        except Exception:
            return None
        return self._columns(values, rows)

    def _some_of(self, values: Sequence[bytes | None]) -> EventColumns | None:
        """Read those events that have the declared types; None: one of these has to be read alone."""
        rows = list(map(self._typed, values))
        places = [i for i, row in enumerate(rows) if row is not None]
        if not 0 < len(places) < len(rows):
            return None
        found = self._columns([values[i] for i in places], [rows[i] for i in places])
        return None if found is None else _spread(found, places, len(rows))

    def _typed(self, value: bytes | None) -> Any:
        try:
            return self._decode(value)  # type: ignore[arg-type]  # None raises
        except Exception:
            return None

    def _columns(self, values: Sequence[bytes | None], rows: list[Any]) -> EventColumns | None:
        """The fields of structs; None: one of the events has to be read alone."""
        cells: list[Any] = list(map(self._cells, rows))
        if self._gaps and any(msgspec.UNSET in each for each in cells):
            return None
        labels = list(map(self._label, rows))
        ids = list(map(self._identity, rows))
        count = self._certain + len(cells[0]) + 2
        present = len(rows) * count - labels.count(msgspec.UNSET) - ids.count(msgspec.UNSET)
        if not self._fields.are_checked(values, present):  # type: ignore[arg-type]  # none is None
            return None
        return EventColumns(cells, _or_none(labels), _or_none(ids))


class _Either(TypedReader):
    def __init__(self, first: TypedReader, second: TypedReader) -> None:
        self._both = first, second

    def one(self, value: bytes) -> EventFields:
        first, second = self._both
        try:
            return first.one(value)
        except Exception:
            return second.one(value)

    def all_of(self, values: Sequence[bytes | None]) -> EventColumns | None:
        first, second = self._both
        return first.all_of(values) or second.all_of(values)

    def _some_of(self, values: Sequence[bytes | None]) -> EventColumns | None:
        first, second = self._both
        return first._some_of(values) or second._some_of(values)


class EventColumns(NamedTuple):
    """The features of events, None where one is left to the strict reader; their labels, and their ids."""

    cells: list[tuple[Any, ...] | None]
    labels: list[Any]
    ids: list[Any]


_LEFT = EventFields((), None, None)


def _spread(found: EventColumns, places: Sequence[int], count: int) -> EventColumns:
    """The columns of `count` events, of which those at `places` were read and the others are left."""
    spread = EventColumns([None] * count, [None] * count, [None] * count)
    for column, items in zip(spread, found, strict=True):
        for place, item in zip(places, items, strict=True):
            column[place] = item
    return spread


def _unset(_: Any) -> Any:
    return msgspec.UNSET


def _or_none(items: list[Any]) -> list[Any]:
    return [None if item is msgspec.UNSET else item for item in items] if msgspec.UNSET in items else items


def typed_reader(config: InputConfig, kind: Any = float) -> TypedReader | None:
    """Return a fast reader of JSON events with features of a type; None: the names allow none.

    A type that includes `msgspec.UnsetType` is that of features that may be missing.
    """
    names = config.feature_names() or []
    if not names or config.fields or any(map(is_outer, names)):
        return None
    kinds: list[tuple[str, Any]] = [(name, kind) for name in names]
    if config.label is not None:
        kinds.append((config.label, _Label))
    if config.id is not None:
        kinds.append((config.id, _Id))
    tree: dict[str, Any] = {}
    for name, each in kinds:
        *path, leaf = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                return None  # it is a field itself
        # An event that has the whole name as a field is left to the slow reader.
        if leaf in node or (path and tree.setdefault(name, _Absent) is not _Absent):
            return None
        node[leaf] = each
    if not all(map(is_field_name, _keys(tree))):
        return None
    used = JsonFields(used_fields(config, [*names, config.label, config.id]))
    if config.envelope is None:
        return _reader_of(tree, "", config, kind, used)
    row = {"after": tree, "op": _Op}
    plain = _reader_of(row, "after.", config, kind, used)
    return plain.or_else(_reader_of({"payload": row, "after": _Absent}, "payload.after.", config, kind, used))


def _reader_of(
    tree: dict[str, Any], path: str, config: InputConfig, kind: Any, used: JsonFields
) -> TypedReader:
    """The reader of events with the types of a tree, whose row is at a path."""
    attributes: dict[str, str] = {}
    row_type, _ = _struct(tree, "", "", attributes)
    names = [attributes[path + name] for name in config.feature_names() or ()]
    label = None if config.label is None else operator.attrgetter(attributes[path + config.label])
    identity = None if config.id is None else operator.attrgetter(attributes[path + config.id])
    decode = msgspec.json.Decoder(row_type).decode
    gaps = msgspec.UnsetType in get_args(kind)
    return TypedReader(decode, _attributes(names), label, identity, used, _certain(tree), gaps)


def _certain(tree: Mapping[str, Any]) -> int:
    """Number of keys in every event, but for those of features."""
    below = {name: _certain(each) for name, each in tree.items() if isinstance(each, dict)}
    needed = [count for name, count in below.items() if count or float in tree[name].values()]
    return sum(needed) + len(needed) + (_Op in tree.values())


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
        else:
            if item is not _Absent:  # that of a name with dots is the one below
                attributes[path + name] = prefix + attribute
            optional = msgspec.UnsetType in get_args(item)
            fields.append((attribute, item, msgspec.UNSET) if optional else (attribute, item))
            complete = complete and optional
    return msgspec.defstruct("Fields", fields, rename=renamed, gc=False, kw_only=True), complete


def _attributes(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) == 1:
        get = operator.attrgetter(names[0])
        return lambda row: (get(row),)
    return operator.attrgetter(*names) if names else lambda row: ()
