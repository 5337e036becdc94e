"""Decoders of events from JSON and CSV, with categories, and the encoder of scores and dead letters.

One strict reader says what an event is: `json_fields` and `fields.number_of_text`. A fast way for complete
events leaves every other event to it.

A batch is decoded as its events are one by one: those that the fast way leaves are decoded alone. An event
that cannot be decoded keeps its place.
"""

from __future__ import annotations

import csv
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from streampair.engine import DeadLetter, Event, EventRows, Scored
from streampair.engine.exploration import Exploration
from streampair.errors import RecordError, TombstoneError
from streampair.records.features import Categories
from streampair.records.features import label as meaning_of
from streampair_connectors.codecs.fields import (
    EventColumns,
    Rows,
    Unframed,
    no_number,
    number_of_text,
    typed_reader,
    unnested,
    used_fields,
)
from streampair_connectors.codecs.fixes import empty_fix, is_number, labels_fix, missing_fix, value_fix
from streampair_connectors.codecs.json_fields import JsonFields, json_object
from streampair_connectors.config import InputConfig, Label

__all__ = [
    "Encoder",
    "EventBatches",
    "LabelParser",
    "RawRecord",
    "csv_decoder",
    "csv_row",
    "csv_rows",
    "dead_letter_headers",
    "declared_names",
    "dict_decoder",
    "json_decoder",
]


_FLAGS = frozenset({bool, type(None)})
# The characters of a line of numbers.
_PLAIN = b"0123456789+-.eE,\n"


class _HasValue(Protocol):
    @property
    def value(self) -> bytes | None: ...


Many = Callable[[Sequence[_HasValue]], EventRows | None]
# A parser of lines to rows; None or an error if it cannot read them.
_Parser = Callable[[list[bytes]], EventRows | None]


class EventBatches:
    """Decoder of batches, which gives for each event what the decoder of single ones does.

    Parameters
    ----------
    names
        Names of the features.
    decode
        The decoder of single events.
    rows
        A faster way for some of them; None: there is none.
    labels
        Parser of labels.
    limit
        Maximum size of an event, in bytes.
    ids
        Whether events have an id.
    """

    def __init__(
        self,
        names: list[str],
        decode: Callable[[Any], Event],
        *,
        rows: Rows | None,
        labels: LabelParser,
        limit: int,
        ids: bool,
    ) -> None:
        self._names, self._decode, self._rows = names, decode, rows
        self._labels, self._limit, self._ids = labels, limit, ids

    def __call__(self, records: Sequence[_HasValue]) -> EventRows | None:
        """Decode records; None: a feature of one of them is missing, or no number."""
        if not records:
            return None
        cells, labels, ids = self._columns([record.value for record in records])
        refused: dict[int, Exception] = {}
        if None in cells and not self._alone(records, cells, labels, ids, refused):
            return None
        numbers: list[Any] = list(chain.from_iterable(cells))  # type: ignore[arg-type]  # none is None
        if not _NUMBERS.issuperset(map(type, numbers)):  # a text, a gap, or true, which steps tell from 1
            return None
        table = np.empty((len(cells), len(self._names)))
        struct.pack_into(f"{table.size}d", table.data, 0, *numbers)
        return EventRows(self._names, table, labels, ids if self._ids else None, refused or None)

    def _columns(self, values: list[bytes | None]) -> EventColumns:
        """What `rows` gives, with normalised labels and ids."""
        if self._rows is None:
            return EventColumns([None] * len(values), [None] * len(values), [None] * len(values))
        if None in values or max(map(len, values)) > self._limit:  # type: ignore[arg-type]
            values = [None if value is None or len(value) > self._limit else value for value in values]
        cells, labels, ids = self._rows.many(values)
        if not (self._labels.boolean and _FLAGS.issuperset(map(type, labels))):
            for i, label in self._labels.resolve_known(labels):
                try:
                    labels[i] = self._labels.resolve(label)
                except RecordError:
                    cells[i] = None
        return EventColumns(cells, labels, [None if each is None else str(each) for each in ids])

    def _alone(
        self,
        records: Sequence[_HasValue],
        cells: list[tuple[Any, ...] | None],
        labels: list[Any],
        ids: list[Any],
        refused: dict[int, Exception],
    ) -> bool:
        """Decode those that are left; False: a feature is missing, or no number."""
        zeros = (0.0,) * len(self._names)
        for i in [i for i, each in enumerate(cells) if each is None]:
            try:
                event = self._decode(records[i])
            except RecordError as error:
                refused[i], cells[i], labels[i], ids[i] = error, zeros, None, None
                continue
            found = tuple(map(event.x.get, self._names))
            if not _NUMBERS.issuperset(map(type, found)):
                return False
            cells[i], labels[i], ids[i] = found, event.y, event.id
        return True


def csv_rows(
    columns: Sequence[str],
    names: Iterable[str],
    *,
    label: str,
    id_column: str | None,
    limit: int,
    resolve: Callable[[str], object],
) -> Many | None:
    """Return the batch decoder; see `streampair.engine.EventRows`.

    Parameters
    ----------
    columns
        The header.
    names
        Names of the features.
    label, id_column
        The columns of the label and of the id.
    limit
        Maximum size of a line, in bytes.
    resolve
        From the text of a label to its normalised value; `RecordError` if it is unknown.

    Returns
    -------
    function or None
        None: no line of such a file is a usable event with a label.
    """
    place = {name: index for index, name in enumerate(columns)}  # of two columns with one name, the last
    features = list(dict.fromkeys(names))
    if not features or label not in place or not place.keys() >= set(features):
        return None
    layout = _Columns(
        width=len(columns),
        features=features,
        chosen=[place[name] for name in features],
        label=place[label],
        id=None if id_column is None else place.get(id_column),
    )
    parsers = _numbers(layout, resolve), _texts(layout, resolve)

    def many(records: Sequence[_HasValue]) -> EventRows | None:
        values = [record.value for record in records]
        if not values or None in values or max(map(len, values)) > limit:  # type: ignore[arg-type]
            return None
        for parse in parsers:
            try:
                rows = parse(values)  # type: ignore[arg-type]
            except (ValueError, OverflowError, csv.Error, msgspec.MsgspecError, RecordError):
                continue
            if rows is not None:
                return rows
        return None

    return many


class _Columns(NamedTuple):
    """Number of columns, and the indices of features, label and id."""

    width: int
    features: list[str]
    chosen: list[int]
    label: int
    id: int | None


def _numbers(columns: _Columns, resolve: Callable[[str], object]) -> _Parser:
    """Parser of lines of numbers: in brackets they are JSON, which msgspec reads fast."""
    width, features, chosen, label_column, id_column = columns
    in_order = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
    pick: Any = slice(chosen[0], chosen[0] + len(chosen)) if in_order else chosen
    # Labels and ids must be integers, whose spelling is unique; 1.0 could be 1.00 as well.
    cells: list[Any] = [
        int | float if index in (label_column, id_column) else float for index in range(width)
    ]
    parse = msgspec.json.Decoder(list[tuple[tuple(cells)]]).decode  # type: ignore[misc]

    def numbers(values: list[bytes]) -> EventRows | None:
        text = b"\n".join(values)
        if text.translate(None, _PLAIN):
            return None
        rows = parse(b"[[" + text.replace(b"\n", b"],[") + b"]]")
        if len(rows) != len(values):  # a line with a line break in it
            return None
        y = list(map(itemgetter(label_column), rows))
        ids = None if id_column is None else list(map(itemgetter(id_column), rows))
        if set(map(type, y)) != {int} or (ids is not None and set(map(type, ids)) != {int}):
            return None
        table = np.empty((len(rows), width))
        struct.pack_into(f"{table.size}d", table.data, 0, *chain.from_iterable(rows))
        if not table.all() and _has_negative_zero(text):
            return None
        table = np.ascontiguousarray(table[:, pick])
        labels = {number: resolve(str(number)) for number in set(y)}
        return EventRows(
            features, table, [labels[number] for number in y], None if ids is None else list(map(str, ids))
        )

    return numbers


def _texts(columns: _Columns, resolve: Callable[[str], object]) -> _Parser:
    """Parser of any lines, cell by cell as the reference does."""
    width, features, chosen, label_column, id_column = columns
    take_features = _items_at(chosen)

    def texts(values: list[bytes]) -> EventRows | None:
        rows = list(csv.reader([value.decode("utf-8").rstrip("\r\n") for value in values], strict=True))
        # An unclosed quote would swallow the next line.
        if len(rows) != len(values) or set(map(len, rows)) != {width}:
            return None
        y = list(map(itemgetter(label_column), rows))
        table = np.empty((len(rows), len(features)))
        cells = list(chain.from_iterable(map(take_features, rows)))
        struct.pack_into(f"{table.size}d", table.data, 0, *map(number_of_text, cells))
        if "" in y or not np.isfinite(table).all():
            return None
        labels = {text: resolve(text) for text in set(y)}
        ids = None if id_column is None else [row[id_column] or None for row in rows]
        return EventRows(features, table, [labels[text] for text in y], ids)

    return texts


def _has_negative_zero(text: bytes) -> bool:
    """Whether one of the numbers is -0: an integer to a JSON parser, which loses the sign.

    Only the characters after a sign are compared, in half of the time of a search for the bytes.
    """
    letters = np.frombuffer(text + b"\n", np.uint8)
    signs = np.flatnonzero(letters == ord("-"))
    last = letters[signs + 2]
    return bool(((letters[signs + 1] == ord("0")) & ((last == ord(",")) | (last == ord("\n")))).any())


def _items_at(indices: Sequence[Any]) -> Callable[[Any], Sequence[Any]]:
    """Return the function from a sequence or a dict to its items at these indices or keys."""
    if len(indices) == 1:
        return lambda row: (row[indices[0]],)
    return itemgetter(*indices)


Headers = list[tuple[str, bytes | None]]


class RawRecord(Protocol):
    """The part of a record that a decoder reads; Kafka's records satisfy it."""

    @property
    def value(self) -> bytes | None: ...


Decoder = Callable[[RawRecord], Event]


def json_decoder(
    config: InputConfig,
    *,
    gaps: bool = False,
    nulls: bool = False,
    texts: bool = False,
    quotes: bool = True,
    unframe: Callable[[bytes], bytes] | None = None,
) -> Decoder:
    """Return the function that turns one JSON record into an event.

    Parameters
    ----------
    config
        The input.
    gaps
        Whether the learner handles missing values: missing or null features are left out of the event;
        otherwise the event is rejected.
    nulls
        Whether the learner tells a missing value from a feature that there is not: with `gaps`, declared
        features that are missing, and null ones, are None in the event.
    texts
        Whether the learner takes texts and booleans as feature values. Features with declared bounds are
        always numbers.
    quotes
        Whether errors may quote values of an event; not those of private learners.
    unframe
        From a message to the JSON in it, which `RecordError` says where it has none; None: it is JSON.

    Notes
    -----
    The label is normalised to the configured `positive` or `negative` value, so that `1` in
    an event and `true` in the configuration are the same label. An event without the label
    field, or with null in it, is unlabelled: it is scored, not learned.

    Raises
    ------
    RecordError
        By the returned function, with stage `"decode"`, `"features"` or `"label"`.

    Examples
    --------
    >>> from streampair.engine.lane import Record
    >>> decode = json_decoder(InputConfig(label="bad", features=["amount"]))
    >>> decode(Record(0, b'{"amount": 12, "bad": true, "note": "x"}')).x
    {'amount': 12.0}
    >>> decode = json_decoder(InputConfig(label="bad", features={"amount": [0, 99], "card": ["debit"]}))
    >>> decode(Record(0, b'{"amount": 12, "card": "debit", "bad": true}')).x
    {'amount': 12.0, 'card=debit': 1.0}
    """
    numeric = config if config.categories() is None else config.without_categories()
    typed: Rows | None = _typed_rows(numeric, _Cells(numeric, gaps=gaps, nulls=nulls, texts=texts).type)
    if unframe is not None and typed is not None:
        typed = Unframed(unframe, typed)
    parsers = []
    for names in (
        _used_names(config),
        [] if (found := config.categories()) is None else map(str, found.places),
    ):
        parse = JsonFields(used_fields(config, names)).parse
        parsers.append(parse if unframe is None else _composed(parse, unframe))
    whole = json_object if unframe is None else _composed(json_object, unframe)
    return dict_decoder(
        config,
        parsers[0],
        gaps=gaps,
        nulls=nulls,
        texts=texts,
        quotes=quotes,
        typed=typed,
        parse_texts=parsers[1],
        parse_all=whole,
    )


def _typed_rows(config: InputConfig, kind: Any) -> Rows | None:
    """The reader of features of a type; it tries numbers first, which are read faster than a union."""
    reader, numbers = typed_reader(config, kind), typed_reader(config)
    if reader is None or numbers is None or kind is float:
        return reader
    return numbers.or_else(reader)


def _composed(parse: Callable[[bytes], Any], unframe: Callable[[bytes], bytes]) -> Callable[[bytes], Any]:
    return lambda value: parse(unframe(value))


def _used_names(config: InputConfig) -> list[str | None] | None:
    """The names of the fields that are read; None: of all."""
    if config.features is None:
        return None
    return [*declared_names(config), *(time for time, _ in config.time_parts().values())]


class _Cells:
    """Parser of feature values: numbers, and texts or gaps where the learner takes them."""

    def __init__(self, config: InputConfig, *, gaps: bool, nulls: bool, texts: bool) -> None:
        self.gaps, self.nulls = gaps, nulls
        self.texts = texts and not isinstance(config.features, dict)
        self._declared_numbers = {name for name, kind in config.fields.items() if kind == "number"}

    @property
    def type(self) -> Any:
        """The type of a value, for msgspec."""
        kinds: Any = float | str | bool if self.texts else float
        return kinds | None | msgspec.UnsetType if self.gaps else kinds

    def without_gaps(self, x: dict[str, Any]) -> dict[str, Any]:
        """The features of an event, of which None and UNSET are missing."""
        if self.nulls:
            return {name: None if item is msgspec.UNSET else item for name, item in x.items()}
        return {name: item for name, item in x.items() if item is not None and item is not msgspec.UNSET}

    def of(self, name: str, item: object) -> Any:
        """Parse a JSON value; None for a gap."""
        if (item is None and self.gaps) or (self.texts and isinstance(item, str | bool)):
            return item
        return _number(name, item)

    def of_text(self, name: str, text: str) -> Any:
        """Parse a CSV cell; None for a gap."""
        if text == "" and self.gaps:
            return None
        try:
            number = number_of_text(text)
        except ValueError:
            if name in self._declared_numbers:
                raise no_number(name) from None
            return self.of(name, text)  # raises unless texts are allowed
        return _number(name, number)


_NUMBERS = frozenset({float, int})


def _flattened(
    config: InputConfig, names: Iterable[str | None], parse: Callable[[bytes], dict[str, Any]]
) -> Callable[[Any], dict[str, Any]]:
    """The function from a record to its fields by their declared names."""
    find = unnested(config, names)

    def flat(record: Any) -> dict[str, Any]:
        data = parse(record.value)
        return data if find is None else find(data, record)

    return flat


def dict_decoder(
    config: InputConfig,
    parse: Callable[[bytes], dict[str, Any]],
    *,
    gaps: bool = False,
    nulls: bool = False,
    texts: bool = False,
    quotes: bool = True,
    typed: Rows | None = None,
    parse_texts: Callable[[bytes], dict[str, Any]] | None = None,
    parse_all: Callable[[bytes], dict[str, Any]] | None = None,
    written: InputConfig | None = None,
) -> Decoder:
    """Return the function that turns a record into an event, for any format with named fields.

    Parameters
    ----------
    config
        The input.
    parse
        From the bytes of a record to its fields, as JSON has them; `RecordError` if they are damaged.
    gaps, nulls, texts, quotes
        As of `json_decoder`.
    typed
        A faster way from the bytes of some events to their fields.
    parse_texts
        As `parse`, of the fields with declared values alone; None: `parse`.
    parse_all
        As `parse`, of all fields; None: `parse`.
    written
        The input as it is configured, for what errors say to write; None: `config`.

    Examples
    --------
    >>> from streampair.engine.lane import Record
    >>> config = InputConfig(label="bad", features=["amount"])
    >>> dict_decoder(config, lambda value: {"amount": len(value), "bad": True})(Record(0, b"123")).x
    {'amount': 3.0}
    """
    flat = _flattened(config, declared_names(config), parse)
    if (categories := config.categories()) is not None:
        rest, places = config.without_categories(), categories.places
        base = dict_decoder(
            rest,
            parse,
            gaps=gaps,
            nulls=nulls,
            texts=texts,
            quotes=quotes,
            typed=typed,
            parse_all=parse_all,
            written=config,
        )
        fields = _flattened(config, map(str, places), parse_texts or parse)
        return with_categories(
            categories, base, lambda record: fields(record).get, alone=not rest.feature_names()
        )
    cells, labels = _Cells(config, gaps=gaps, nulls=nulls, texts=texts), LabelParser(config, quotes=quotes)
    whole = (parse_all or parse) if quotes else _no_fields
    strict = _strict_decoder(config, labels, cells, flat, whole, written or config)
    names, limit, resolve = config.feature_names(), config.max_event_bytes, labels.resolve
    if not names:
        return strict

    def decode(record: RawRecord) -> Event:
        value = record.value
        if value is None or len(value) > limit:
            raise _refuse_size(value, limit)
        row = None if typed is None else typed.at_once(value)
        if row is None:
            return strict(record)
        x = dict(zip(names, row.cells, strict=True))
        if gaps:
            x = cells.without_gaps(x)
        return Event(
            x, None if row.label is None else resolve(row.label), None if row.id is None else str(row.id)
        )

    decode.many = EventBatches(  # type: ignore[attr-defined]  # see `EventRows`
        names, decode, rows=typed, labels=labels, limit=limit, ids=config.id is not None
    )
    return decode


def _strict_decoder(
    config: InputConfig,
    labels: LabelParser,
    cells: _Cells,
    flat: Callable[[Any], dict[str, Any]],
    whole: Callable[[bytes], dict[str, Any]],
    written: InputConfig,
) -> Decoder:
    """Return the decoder that says of each record what it is, or what is wrong with it.

    `whole` parses all fields of a value, and `written` is the input as it is configured: for the fix of what
    is wrong.
    """
    names = config.feature_names()

    def decode(record: RawRecord) -> Event:
        value = record.value
        if value is None or len(value) > config.max_event_bytes:
            raise _refuse_size(value, config.max_event_bytes)
        data = flat(record)
        if not data:
            raise _no_features(written, _all_fields(whole, value))
        y = data.pop(config.label_field, None)
        identifier = _identifier(data.pop(config.id, None), config) if config.id is not None else None
        if config.time is not None:
            data.pop(config.time, None)
        if not data and (names is None or cells.gaps):
            raise _no_features(written, _all_fields(whole, value))
        for name in names or ():
            if name not in data and not cells.gaps:
                raise _missing(name, written, _all_fields(whole, value))
        used = data if names is None else names
        try:
            read = {name: cells.of(name, data.get(name)) for name in used}
        except RecordError:
            fields = {name: data.get(name) for name in used}
            raise _unreadable(cells, fields, written, _all_fields(whole, value)) from None
        x = cells.without_gaps(read) if cells.gaps else read
        return Event(x, None if y is None else labels.resolve(y), identifier)

    return decode


def _all_fields(whole: Callable[[bytes], dict[str, Any]], value: bytes) -> dict[str, Any]:
    """All fields of an event; none where one that is not used has a fault."""
    try:
        return whole(value)
    except RecordError:
        return {}


def _no_fields(_: bytes) -> dict[str, Any]:
    """None of an event of which errors may quote nothing."""
    return {}


def _unreadable(
    cells: _Cells, fields: Mapping[str, Any], config: InputConfig, event: Mapping[str, Any]
) -> RecordError:
    """The error of the first field that is no feature, with the lines of the configuration that read it."""
    for name, item in fields.items():
        try:
            cells.of(name, item)
        except RecordError as error:
            fix = value_fix(config, name, item, event) or error.fix
            quoted = f": {item!r}" if event and is_number(item) else ""
            return RecordError(f"{error.problem}{quoted}", fix=fix, stage=error.stage)
    raise AssertionError("each field is a feature")


def csv_decoder(
    config: InputConfig,
    header: Sequence[str],
    *,
    gaps: bool = False,
    nulls: bool = False,
    texts: bool = False,
    quotes: bool = True,
) -> Decoder:
    """Return the function that turns one line of a CSV file into an event.

    Parameters
    ----------
    config
        The input; without declared features, all columns but label, id and time are features.
    header
        The names in the file's first line.
    gaps, nulls, texts, quotes
        As of `json_decoder`; an empty cell is a gap.
    """
    if (categories := config.categories()) is not None:
        rest = config.without_categories()
        row_fields = csv_fields(header, _times(config))
        base = csv_decoder(rest, header, gaps=gaps, nulls=nulls, texts=texts, quotes=quotes)
        return with_categories(
            categories, base, lambda record: row_fields(record.value), alone=not rest.feature_names()
        )
    value_of = _Cells(config, gaps=gaps, nulls=nulls, texts=texts)
    columns = list(header)
    taken = {config.label, config.id, config.time}
    declared = config.feature_names()
    names = declared if declared is not None else [name for name in columns if name not in taken]
    labels, times = LabelParser(config, quotes=quotes), _times(config)
    resolve = labels.resolve

    def decode(record: RawRecord) -> Event:
        value = record.value
        if value is None or len(value) > config.max_event_bytes:
            raise _refuse_size(value, config.max_event_bytes)
        row = csv_row(value, columns)
        if times is not None:
            row = {name: str(item) for name, item in times(row).items()}
        x: dict[str, Any] = {}
        for name in names:
            if row.get(name, "") == "" and not gaps:
                raise _missing(name, config, {})
            item = value_of.of_text(name, row.get(name, ""))
            if item is not None or nulls:
                x[name] = item
        # Where labels come later, an unnamed column (the index of a table, perhaps) is none.
        text = "" if config.label is None else row.get(config.label, "")
        identifier = row.get(config.id) if config.id is not None else None
        return Event(x, resolve(text) if text else None, identifier or None)

    if names:
        limit, ids = config.max_event_bytes, config.id is not None
        quick = csv_rows(
            columns, names, label=config.label_field, id_column=config.id, limit=limit, resolve=resolve
        )
        features = list(dict.fromkeys(names))
        each = EventBatches(features, decode, rows=None, labels=labels, limit=limit, ids=ids)
        decode.many = each if quick is None else _either(quick, each)  # type: ignore[attr-defined]  # see `EventRows`
    return decode


def _either(first: Many, second: Many) -> Many:
    return lambda records: first(records) or second(records)


def csv_row(value: bytes, columns: Sequence[str]) -> dict[str, str]:
    """Return the cells of a line by the names of their columns.

    Raises
    ------
    RecordError
        It is no line of such cells.
    """
    try:
        cells = next(csv.reader([value.decode("utf-8").rstrip("\r\n")], strict=True), [])
    except UnicodeDecodeError:
        raise RecordError(
            "the line is not CSV: it is not UTF-8",
            fix="write UTF-8 CSV; this command converts a file of Latin-1: "
            "iconv -f latin1 -t utf-8 FILE > NEW",
            stage="decode",
        ) from None
    except csv.Error as error:
        raise RecordError(f"the line is not CSV: {error}", fix="write UTF-8 CSV", stage="decode") from None
    if len(cells) != len(columns):
        raise RecordError(
            f"the line has {len(cells)} cells, the header {len(columns)}",
            fix="give every line one cell per column",
            stage="decode",
        )
    return dict(zip(columns, cells, strict=True))


def declared_names(config: InputConfig) -> list[str | None]:
    """Return the names of the fields that a configuration names."""
    return [*(config.field_names() or ()), config.label, config.id, config.time]


# The fields of a record: from a name to a value, None where it is missing.
Fields = Callable[[str], object]


def with_categories(
    categories: Categories, base: Any, fields: Callable[[Any], Fields], *, alone: bool
) -> Callable[[Any], Event]:
    """Return a decoder that adds the one-hot columns of declared values to the events of `base`.

    Parameters
    ----------
    categories
        The declared values.
    base
        Decodes everything else, and rejects what cannot be decoded.
    fields
        From a record that `base` accepted to the value of a field; None: it is missing.
    alone
        Whether there are no other features. A record without any of the fields is then rejected as empty.
    """
    columns, zeros = categories.columns, dict.fromkeys(categories.columns, 0.0)
    names = list(map(str, categories.places))

    def active_columns(record: Any) -> list[int]:
        """The indices of the columns that are 1."""
        get = fields(record)
        found = [get(name) for name in names]
        if alone and all(item is None for item in found):
            raise RecordError(
                "the event is empty: it has none of the features",
                fix=f"send at least one of {', '.join(names[:5])}",
                stage="decode",
            )
        found_columns = (
            categories.column(name, _spelled(item)) for name, item in zip(names, found, strict=True)
        )
        return [column for column in found_columns if column is not None]

    def decode(record: Any) -> Event:
        event = base(record)
        x = event.x | zeros
        for column in active_columns(record):
            x[columns[column]] = 1.0
        return Event(x, event.y, event.id)

    if not alone and hasattr(base, "many"):
        decode.many = lambda records: _with_columns(base.many(records), records, columns, active_columns)  # type: ignore[attr-defined]
    return decode


def _with_columns(
    rows: EventRows | None,
    records: Sequence[Any],
    columns: Sequence[str],
    active_columns: Callable[[Any], list[int]],
) -> EventRows | None:
    """Rows with the one-hot columns of their records."""
    if rows is None:
        return None
    n, d = rows.values.shape
    table = np.zeros((n, d + len(columns)))
    table[:, :d] = rows.values
    refused = dict(rows.refused or {})
    for i, record in enumerate(records):
        if i in refused:
            continue
        try:
            table[i, [d + column for column in active_columns(record)]] = 1.0
        except RecordError as error:
            refused[i], rows.labels[i] = error, None
            if rows.ids is not None:
                rows.ids[i] = None
    return rows._replace(names=[*rows.names, *columns], values=table, refused=refused or None)


def _spelled(value: object) -> object:
    """Return an integer or boolean as JSON and CSV spell it: codes come as numbers, too."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # An integer of hundreds of digits is no code, and Python refuses to convert it.
    return str(value) if isinstance(value, int) and abs(value) < 10**300 else value


def _times(config: InputConfig) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """As `unnested`, of the parts of times alone: CSV has no objects, and `_Cells` reads its numbers."""
    times = {name: kind for name, kind in config.fields.items() if kind != "number"}
    if not times:
        return None
    return unnested(config.model_copy(update={"fields": times, "envelope": None}), config.field_names() or ())


def csv_fields(
    header: Sequence[str], find: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> Callable[[bytes], Fields]:
    """Return the lookup of the fields of a CSV line; an empty cell is missing. `find`: as of `unnested`."""
    columns = list(header)

    def fields(value: bytes) -> Fields:
        row: dict[str, Any] = {name: cell for name, cell in csv_row(value, columns).items() if cell != ""}
        return (row if find is None else find(row)).get

    return fields


_SHORT, _MOST_KNOWN = 20, 1000


class LabelParser:
    """Parser of labels: the two configured ones, or any.

    A label means what it means to a learner: `streampair.records.features.label`.

    Parameters
    ----------
    config
        The input.
    quotes
        Whether errors may quote labels.
    """

    _later = False

    def __init__(self, config: InputConfig, *, quotes: bool = True) -> None:
        self._quotes = quotes
        self._any = config.label_type == "any"
        self._two = config.two_labels()
        self._positive: Label = config.positive
        self._high = meaning_of(config.positive, several=True)
        self._field = config.label_field
        # Booleans are the labels themselves: none needs to be resolved.
        self.boolean = self._positive is True and self._two.negative is False
        # 1 and True are one key, and one label.
        self._known: dict[object, Label] = {}
        if not self._any:
            self._known = {each: each for each in (self._positive, self._two.negative)}

    def resolve_known(self, labels: list[Any]) -> list[tuple[int, Any]]:
        """Resolve labels in place that equal a configured one; return the places of others, with them."""
        found = list(map(self._known.get, labels))
        others = [(i, labels[i]) for i, each in enumerate(found) if each is None and labels[i] is not None]
        labels[:] = found
        return others

    def resolve(self, y: object) -> object:
        """Return the configured label that a value is, or with any labels its meaning; None: it is unknown.

        Raises
        ------
        RecordError
            It is none.
        """
        try:
            return self._known[y]
        except (KeyError, TypeError):
            pass
        value = meaning_of(y, several=self._any)
        if value != value:  # the text of NaN
            return None
        if not self._any:
            if value == self._two.high:
                return self._keep(y, self._positive)
            if value == self._two.low:
                return self._keep(y, self._two.negative)
        elif isinstance(value, bool | int | float | str) and value not in (math.inf, -math.inf):
            return self._positive if value == self._high and value != self._positive else value
        raise self._unknown(y)

    def _keep(self, y: Any, found: Label) -> Label:
        """Remember what a text of usual length is, to resolve it at once."""
        if isinstance(y, str) and len(y) <= _SHORT and len(self._known) < _MOST_KNOWN:
            self._known[y] = found
        return found

    def _unknown(self, y: object) -> RecordError:
        value = _shorten(y) if self._quotes else "..."
        if not self._quotes:
            fix = "name both labels of the events as input.positive and input.negative"
        elif self._any:
            fix = "send a finite number, a string, true or false"
        else:
            fix = labels_fix(self._two, y, later=self._later)
        return RecordError(f"unknown label {value} in field {self._field!r}", fix=fix, stage="label")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_size(value: bytes | None, limit: int) -> RecordError:
    if value is None:
        return TombstoneError(
            "the record has no value (a tombstone)",
            fix="none is needed: it says that a key was deleted, and is counted as a tombstone",
            stage="decode",
        )
    return RecordError(
        f"the event has {len(value)} bytes, more than input.max_event_bytes = {limit}",
        fix="send smaller events, or raise input.max_event_bytes",
        stage="decode",
    )


def _missing(name: str, config: InputConfig, event: Mapping[str, Any]) -> RecordError:
    fix = missing_fix(config, name, event)
    return RecordError(f"feature {name!r} is missing", fix=fix, stage="features")


def _no_features(config: InputConfig, event: Mapping[str, Any]) -> RecordError:
    return RecordError("the event has no feature", fix=empty_fix(config, event), stage="decode")


def _identifier(item: object, config: InputConfig) -> str | None:
    if item is None or (isinstance(item, str | int) and not isinstance(item, bool)):
        return None if item is None else str(item)
    raise RecordError(
        f"field {config.id!r} is not an id",
        fix="send text or a whole number as id",
        stage="decode",
    )


def _number(name: str, item: object) -> float:
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        try:
            number = float(item)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        what = "not finite"
    elif item is None:
        what = "null"
    else:
        # The type and not the value: messages end up where raw data must not.
        kinds = {str: "text", bool: "a truth value", list: "a list", dict: "an object"}
        what = kinds.get(type(item), "not a number")
    raise RecordError(
        f"feature {name!r} is {what}",
        fix=f"send a finite number as {name!r}, or name the numeric fields in input.features",
        stage="features",
    )


class _Reason(msgspec.Struct, gc=False):
    feature: str
    contribution: float


class _ScoreMessage(msgspec.Struct, gc=False):
    app: str
    learner: str
    topic: str
    partition: int
    offset: int
    id: str | None
    score: float | None
    outcome: str
    probabilities: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    model_slots: int | msgspec.UnsetType = msgspec.UNSET
    reasons: list[_Reason] | msgspec.UnsetType = msgspec.UNSET
    threshold: float | msgspec.UnsetType = msgspec.UNSET
    share: float | msgspec.UnsetType = msgspec.UNSET
    explore: bool | msgspec.UnsetType = msgspec.UNSET


def _by_class(probabilities: Mapping[Any, float]) -> dict[str, float]:
    """Return the probabilities keyed by text: numbers and booleans as JSON spells them."""
    return {
        label if isinstance(label, str) else msgspec.json.encode(label, enc_hook=str).decode(): p
        for label, p in probabilities.items()
    }


class Encoder:
    """Encode the outputs of one lane.

    Examples
    --------
    >>> encode = Encoder(app="fraud", learner="PairOGD", topic="payments", partition=0).score
    >>> encode(Scored(offset=7, key=None, id=None, score=0.5, outcome="learned"))[-42:]
    b'"id":null,"score":0.5,"outcome":"learned"}'
    """

    def __init__(self, *, app: str, learner: str, topic: str, partition: int) -> None:
        self._lane = app, learner, topic, partition
        encoder = msgspec.json.Encoder()
        self._encode, self._encode_lines = encoder.encode, encoder.encode_lines
        self._common: Headers = [
            ("streampair.app", app.encode()),
            ("streampair.topic", topic.encode()),
            ("streampair.partition", str(partition).encode()),
        ]

    def score(self, scored: Scored) -> bytes:
        """Return the value of one record on the output topic."""
        return self.scores([scored])[0]

    def scores(
        self,
        scored: Sequence[Scored],
        places: Sequence[tuple[int, int]] | None = None,
        model: int | None = None,
        exploration: Exploration | None = None,
    ) -> list[bytes]:
        """Return the values of many records.

        Parameters
        ----------
        scored
            Outcomes of the records.
        places
            Partition and offset of each, of a whole topic; None: of the encoder's partition.
        model
            Slots of the published model that scored; None: the lane has scored.
        exploration
            Marks scores whose events are to be let pass; None: none is.
        """
        return list(map(self._encode, self.rows(scored, places, model, exploration)))

    def lines(self, scored: Sequence[Scored]) -> bytes:
        """Return many records as lines of a file."""
        return self._encode_lines(self.rows(scored))

    def rows(
        self,
        scored: Sequence[Scored],
        places: Sequence[tuple[int, int]] | None = None,
        model: int | None = None,
        exploration: Exploration | None = None,
    ) -> list[_ScoreMessage]:
        """Return the fields of many records, as of `scores`."""
        app, learner, topic, partition = self._lane
        if places is None:
            places = [(partition, s.offset) for s in scored]
        rows = [
            _ScoreMessage(
                *(app, learner, topic, *place, s.id, s.score, s.outcome),
                msgspec.UNSET if s.probabilities is None else _by_class(s.probabilities),
                msgspec.UNSET if model is None else model,
                msgspec.UNSET if s.reasons is None else [_Reason(*reason) for reason in s.reasons],
            )
            for s, place in zip(scored, places, strict=True)
        ]
        if exploration is not None:
            now = exploration.now
            for row in rows:
                if row.score is not None:
                    row.threshold, row.share = now.threshold, now.share
                    row.explore = exploration.marks(row.score, row.partition, row.offset)
        return rows

    def dead_letter(
        self,
        letter: DeadLetter,
        headers: Sequence[tuple[str, bytes | None]] = (),
        place: tuple[int, int] | None = None,
    ) -> Headers:
        """Return the headers of one dead letter; its key and value stay the original bytes."""
        if place is None:
            return dead_letter_headers(letter, self._common, headers)
        common = [*self._common[:-1], ("streampair.partition", str(place[0]).encode())]
        return dead_letter_headers(msgspec.structs.replace(letter, offset=place[1]), common, headers)


def dead_letter_headers(
    letter: DeadLetter, common: Headers, original: Sequence[tuple[str, bytes | None]] = ()
) -> Headers:
    """Return the headers of a dead letter: those of the record, then error, stage and source."""
    return [
        *original,
        *common,
        ("streampair.offset", str(letter.offset).encode()),
        ("streampair.timestamp", str(letter.timestamp).encode()),
        ("streampair.stage", letter.stage.encode()),
        ("streampair.error", letter.error.encode("utf-8", "replace")[:2000]),
    ]


def score_from_bytes(value: bytes) -> Mapping[str, Any]:
    """Decode one record of the output topic."""
    decoded: Mapping[str, Any] = msgspec.json.decode(value)
    return decoded
