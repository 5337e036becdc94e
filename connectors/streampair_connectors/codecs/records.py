"""Decoders of events from JSON and CSV, with categories, and the encoder of scores and dead letters.

The fast path decodes the declared features with one typed msgspec decoder. An event that it
rejects is decoded again by the slow path, only to name the exact error.

The decoders of batches, to arrays, have those of single records as their reference. A batch of JSON
events has the same values and the same errors; an event that cannot be decoded keeps its place. A batch of
CSV lines has the same values where all are well-formed, and leaves any other batch to the reference.
"""

from __future__ import annotations

import csv
import json
import math
import operator
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from streampair.engine import DeadLetter, Event, EventRows, Scored
from streampair.errors import RecordError, SourceError, TombstoneError
from streampair.records.features import Categories
from streampair_connectors.codecs.fields import EventFields, is_field_name, typed_reader, unnested
from streampair_connectors.config import InputConfig, Label

__all__ = [
    "Encoder",
    "LabelParser",
    "RawRecord",
    "csv_decoder",
    "csv_rows",
    "dead_letter_headers",
    "declared_names",
    "dict_decoder",
    "json_decoder",
    "json_object",
    "json_rows",
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


def json_rows(
    names: list[str],
    decode: Callable[[Any], object],
    *,
    parse: Callable[[Any], Any],
    features: Callable[[Any], tuple[float, ...]],
    resolve: Callable[[object], object],
    boolean: bool,
    limit: int,
    ids: bool,
    whole: bool = False,
) -> Callable[[Sequence[_HasValue]], EventRows | None]:
    """Return the batch decoder; see `streampair.engine.EventRows`.

    Parameters
    ----------
    names
        Names of the features.
    decode
        The decoder of single events, for its errors.
    parse
        From the bytes of an event to a struct with its `label`, and its `id` if it has one.
    features
        From such a struct to its features.
    resolve
        From a label to its normalised value; `RecordError` if it is unknown.
    boolean
        Whether booleans are normalised labels already.
    limit
        Maximum size of an event, in bytes.
    ids
        Whether events have an id.
    whole
        Whether `parse` takes the record in place of its bytes.
    """
    zeros = (0.0,) * len(names)

    def known(label: Any) -> object:
        return None if label is None else resolve(label)

    def error_of(record: _HasValue) -> RecordError:
        try:
            decode(record)
        except RecordError as error:
            return error
        raise AssertionError("what is refused in a batch can be decoded alone")

    def many(records: Sequence[_HasValue]) -> EventRows | None:
        if not records:
            return None
        items = _usable(records, limit, whole=whole)
        rows, failed = _each(parse, items)
        y = [None if row is None else row.label for row in rows] if failed else [row.label for row in rows]
        if not boolean or not _FLAGS.issuperset(map(type, y)):
            y, unknown = _each(known, y)
            failed += unknown
        identifiers = (
            [None if row is None or row.id is None else str(row.id) for row in rows] if ids else None
        )
        refused = {i: error_of(records[i]) for i in sorted(failed)} if failed else {}
        for i in refused:
            rows[i] = None
            if identifiers is not None:
                identifiers[i] = None
        cells = [zeros if row is None else features(row) for row in rows] if refused else map(features, rows)
        table = np.empty((len(rows), len(names)))
        struct.pack_into(f"{table.size}d", table.data, 0, *chain.from_iterable(cells))
        return EventRows(names, table, y, identifiers, dict(refused) or None)

    return many


def _usable(records: Sequence[_HasValue], limit: int, *, whole: bool) -> list[Any]:
    """The records or their bytes; None in place of a tombstone and of a value beyond the limit."""
    values = [record.value for record in records]
    if None in values or max(map(len, values)) > limit:  # type: ignore[arg-type]
        values = [None if value is None or len(value) > limit else value for value in values]
    if not whole:
        return values
    return [None if value is None else record for value, record in zip(values, records, strict=True)]


def _each(function: Callable[[Any], Any], items: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Apply `function` to each item: the results, None where it raises, and the indices of those."""
    try:
        return list(map(function, items)), []
    except SourceError:  # a schema cannot be fetched: no item is at fault
        raise
    except Exception:  # of one item: all are then done one by one
        out: list[Any] = []
        raised = []
        for i, item in enumerate(items):
            try:
                out.append(function(item))
            except Exception:
                out.append(None)
                raised.append(i)
        return out, raised


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
        cells = chain.from_iterable(map(take_features, rows))
        struct.pack_into(f"{table.size}d", table.data, 0, *map(float, cells))
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


def json_decoder(config: InputConfig, *, gaps: bool = False, texts: bool = False) -> Decoder:
    """Return the function that turns one JSON record into an event.

    Parameters
    ----------
    config
        The input.
    gaps
        Whether the learner handles missing values: missing or null features are left out of the event;
        otherwise the event is rejected.
    texts
        Whether the learner takes texts and booleans as feature values. Features with declared bounds are
        always numbers.

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
    if unnested(config, declared_names(config)) is not None:
        numeric = config if config.categories() is None else config.without_categories()
        return dict_decoder(config, json_object, gaps=gaps, texts=texts, typed=typed_reader(numeric))
    if (categories := config.categories()) is not None:
        rest = config.without_categories()
        base = json_decoder(rest, gaps=gaps, texts=texts)
        return with_categories(
            categories, base, lambda record: json_fields(record.value), alone=not rest.feature_names()
        )
    cells = _Cells(config, gaps=gaps, texts=texts)
    names = config.feature_names()
    id_field = config.id
    limit = config.max_event_bytes
    labels = LabelParser(config)
    resolve = labels.resolve
    fields = [config.label_field, *(names or ()), *([] if id_field is None else [id_field])]
    if names is None or not all(map(is_field_name, fields)):
        return _slow_decoder(config, labels, cells)

    features = _features(len(names))
    fast: Callable[[Any], Any] = msgspec.json.Decoder(_shape(names, config, cells)).decode
    # Arrays need records with all features, as numbers.
    complete = fast if cells.strict else msgspec.json.Decoder(_shape(names, config)).decode

    def decode(record: RawRecord) -> Event:
        value = record.value
        if value is None or len(value) > limit:
            raise _refuse_size(value, limit)
        try:
            row = fast(value)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise _explain(value, config, cells, error) from None
        y = row.label
        if y is not None:
            y = resolve(y)
        x = dict(zip(names, features(row), strict=True))
        if gaps and None in x.values():
            x = {name: item for name, item in x.items() if item is not None}
        if id_field is None:
            return Event(x, y)
        return Event(x, y, None if row.id is None else str(row.id))

    many = json_rows(
        names,
        decode if cells.strict else _refuse_incomplete,
        parse=complete,
        features=features,
        resolve=resolve,
        boolean=labels.boolean,
        limit=limit,
        ids=id_field is not None,
    )
    decode.many = many if cells.strict else _rows_while_complete(many)  # type: ignore[attr-defined]  # see `EventRows`
    return decode


def _refuse_incomplete(record: RawRecord) -> Event:
    raise RecordError("not all features are there, as numbers", fix="decode it alone", stage="decode")


def _rows_while_complete(many: Callable[[Any], EventRows | None]) -> Callable[[Any], EventRows | None]:
    """Batches as arrays, up to the first one with an incomplete record: later ones will have some, too."""
    complete = True

    def rows(records: Any) -> EventRows | None:
        nonlocal complete
        batch = many(records) if complete else None
        complete = batch is not None and not batch.refused
        return batch if complete else None

    return rows


class _Cells:
    """Parser of feature values: numbers, and texts or gaps where the learner takes them."""

    def __init__(self, config: InputConfig, *, gaps: bool, texts: bool) -> None:
        self.gaps = gaps
        self.texts = texts and not isinstance(config.features, dict)
        self.strict = not (self.gaps or self.texts)

    @property
    def type(self) -> Any:
        """The type of a value, for msgspec."""
        kinds: Any = float | str | bool if self.texts else float
        return kinds | None if self.gaps else kinds

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
            number = float(text)
        except ValueError:
            return self.of(name, text)  # raises unless texts are allowed
        return _number(name, number)


def _shape(names: list[str], config: InputConfig, cells: _Cells | None = None) -> Any:
    """Make the msgspec struct of an event, with features in the declared order."""
    fields: list[Any] = [(f"f{i}", float) for i in range(len(names))]
    if cells is not None:
        default = (None,) if cells.gaps else ()
        fields = [(f"f{i}", cells.type, *default) for i in range(len(names))]
    fields.append(("label", bool | int | float | str | None, None))
    renamed = {f"f{i}": name for i, name in enumerate(names)} | {"label": config.label_field}
    if config.id is not None:
        fields.append(("id", str | int | None, None))
        renamed["id"] = config.id
    return msgspec.defstruct("Shape", fields, rename=renamed, gc=False)


def _features(count: int) -> Callable[[Any], tuple[float, ...]]:
    """Return the function from an event's struct to its features."""
    if count < 2:
        return (lambda row: (row.f0,)) if count else (lambda row: ())
    return operator.attrgetter(*(f"f{i}" for i in range(count)))


_NUMBERS = frozenset({float, int})
_IDS = frozenset({str, int, type(None)})


def dict_decoder(
    config: InputConfig,
    parse: Callable[[bytes], dict[str, Any]],
    *,
    gaps: bool = False,
    texts: bool = False,
    typed: Callable[[bytes], EventFields] | None = None,
) -> Decoder:
    """Return the function that turns a record into an event, for any format with named fields.

    Parameters
    ----------
    config
        The input.
    parse
        From the bytes of a record to its fields, as JSON has them; `RecordError` if they are damaged.
    gaps, texts
        As of `json_decoder`.
    typed
        A faster way from the bytes of a complete event to its fields; it raises any exception for others.

    Examples
    --------
    >>> from streampair.engine.lane import Record
    >>> config = InputConfig(label="bad", features=["amount"])
    >>> dict_decoder(config, lambda value: {"amount": len(value), "bad": True})(Record(0, b"123")).x
    {'amount': 3.0}
    """
    find = unnested(config, declared_names(config))

    def flat(record: Any) -> dict[str, Any]:
        data = parse(record.value)
        return data if find is None else find(data, record)

    if (categories := config.categories()) is not None:
        rest = config.without_categories()
        base = dict_decoder(rest, parse, gaps=gaps, texts=texts, typed=typed)
        return with_categories(
            categories, base, lambda record: flat(record).get, alone=not rest.feature_names()
        )
    cells, labels = _Cells(config, gaps=gaps, texts=texts), LabelParser(config)
    decode: Any = _slow_decoder(config, labels, cells, flat)
    names = config.feature_names()
    if not names:
        return decode  # type: ignore[no-any-return]
    take, label_field, id_field = _items_at(names), config.label_field, config.id

    def row(record: Any) -> EventFields:
        if typed is not None:
            try:
                return typed(record.value)
            except Exception:  # noqa: S110  # the slow way names what is wrong
                pass
        data = flat(record)
        found = tuple(take(data))
        identity = None if id_field is None else data.get(id_field)
        numbers = _NUMBERS.issuperset(map(type, found)) and all(map(math.isfinite, found))
        if not numbers or type(identity) not in _IDS:
            raise ValueError  # `decode` names what is wrong
        return EventFields(found, data.get(label_field), identity)

    many = json_rows(
        names,
        decode if cells.strict else _refuse_incomplete,
        parse=row,
        features=itemgetter(0),
        resolve=labels.resolve,
        boolean=labels.boolean,
        limit=config.max_event_bytes,
        ids=id_field is not None,
        whole=True,
    )
    decode.many = many if cells.strict else _rows_while_complete(many)
    return decode  # type: ignore[no-any-return]


def _slow_decoder(
    config: InputConfig,
    labels: LabelParser,
    cells: _Cells,
    flat: Callable[[Any], dict[str, Any]] = lambda record: _parse(record.value),
) -> Decoder:
    """Return a decoder for undeclared features, or for names that no struct can have."""
    names = config.feature_names()

    def decode(record: RawRecord) -> Event:
        value = record.value
        if value is None or len(value) > config.max_event_bytes:
            raise _refuse_size(value, config.max_event_bytes)
        data = flat(record)
        y = data.pop(config.label_field, None)
        identifier = _identifier(data.pop(config.id, None), config) if config.id is not None else None
        if config.time is not None:
            data.pop(config.time, None)
        if not data:
            raise _no_features(config)
        for name in names or ():
            if name not in data and not cells.gaps:
                raise _missing(name, config)
        read = {name: cells.of(name, data.get(name)) for name in (data if names is None else names)}
        x = {name: item for name, item in read.items() if item is not None} if cells.gaps else read
        return Event(x, None if y is None else labels.resolve(y), identifier)

    return decode


def csv_decoder(
    config: InputConfig, header: Sequence[str], *, gaps: bool = False, texts: bool = False
) -> Decoder:
    """Return the function that turns one line of a CSV file into an event.

    Parameters
    ----------
    config
        The input; without declared features, all columns but label, id and time are features.
    header
        The names in the file's first line.
    gaps, texts
        As of `json_decoder`; an empty cell is a gap.
    """
    if (categories := config.categories()) is not None:
        rest = config.without_categories()
        row_fields = csv_fields(header, _times(config))
        base = csv_decoder(rest, header, gaps=gaps, texts=texts)
        return with_categories(
            categories, base, lambda record: row_fields(record.value), alone=not rest.feature_names()
        )
    value_of = _Cells(config, gaps=gaps, texts=texts)
    columns = list(header)
    taken = {config.label, config.id, config.time}
    declared = config.feature_names()
    names = declared if declared is not None else [name for name in columns if name not in taken]
    labels, times = LabelParser(config), _times(config)

    def decode(record: RawRecord) -> Event:
        value = record.value
        if value is None or len(value) > config.max_event_bytes:
            raise _refuse_size(value, config.max_event_bytes)
        try:
            cells = next(csv.reader([value.decode("utf-8").rstrip("\r\n")], strict=True), [])
        except (UnicodeDecodeError, csv.Error) as error:
            raise RecordError(
                f"the line is not CSV: {error}", fix="write UTF-8 CSV", stage="decode"
            ) from None
        if len(cells) != len(columns):
            raise RecordError(
                f"the line has {len(cells)} cells, the header {len(columns)}",
                fix="give every line one cell per column",
                stage="decode",
            )
        row = dict(zip(columns, cells, strict=True))
        if times is not None:
            row = {name: str(item) for name, item in times(row).items()}
        x: dict[str, Any] = {}
        for name in names:
            if row.get(name, "") == "" and not gaps:
                raise _missing(name, config)
            item = value_of.of_text(name, row.get(name, ""))
            if item is not None:
                x[name] = item
        # Where labels come later, an unnamed column (the index of a table, perhaps) is none.
        text = "" if config.label is None else row.get(config.label, "")
        identifier = row.get(config.id) if config.id is not None else None
        return Event(x, labels.resolve_text(text) if text else None, identifier or None)

    decode.many = csv_rows(  # type: ignore[attr-defined]  # see `streampair.engine.EventRows`
        columns,
        names,
        label=config.label_field,
        id_column=config.id,
        limit=config.max_event_bytes,
        resolve=labels.resolve_text,
    )
    return decode


def declared_names(config: InputConfig) -> list[str | None]:
    """Return the names of the fields that a configuration names."""
    return [*(config.field_names() or ()), config.label, config.id, config.time]


# The fields of a record: from a name to a value, None where it is missing.
Fields = Callable[[str], object]
_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


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

    def many(records: Sequence[Any]) -> EventRows | None:
        rows: EventRows | None = base.many(records)
        if rows is None:
            return None
        n, d = rows.values.shape
        table = np.zeros((n, d + len(columns)))
        table[:, :d] = rows.values
        refused = rows.refused or ()
        for i, record in enumerate(records):
            if i not in refused:
                table[i, [d + column for column in active_columns(record)]] = 1.0
        return rows._replace(names=[*rows.names, *columns], values=table)

    if not alone and hasattr(base, "many"):
        decode.many = many  # type: ignore[attr-defined]
    return decode


def _spelled(value: object) -> object:
    """Return an integer or boolean as JSON and CSV spell it: codes come as numbers, too."""
    if isinstance(value, bool):
        return "true" if value else "false"
    # An integer of hundreds of digits is no code, and Python refuses to convert it.
    return str(value) if isinstance(value, int) and abs(value) < 10**300 else value


def json_fields(value: bytes) -> Fields:
    """Return the lookup of the top-level fields of a JSON object."""
    return json_object(value).get


def json_object(value: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object.

    Raises
    ------
    RecordError
        It is none; the typed decoder passes over bytes of other fields that are not UTF-8.
    """
    try:
        return _decode_fields(value)
    except Exception:  # NaN, which only the slow path reads
        return _parse(value)


def _times(config: InputConfig) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """As `unnested`, of the parts of times alone; CSV has no objects, and its numbers are text."""
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
        cells = next(csv.reader([value.decode("utf-8").rstrip("\r\n")]), [])
        row: dict[str, Any] = {name: cell for name, cell in zip(columns, cells, strict=False) if cell != ""}
        return (row if find is None else find(row)).get

    return fields


class LabelParser:
    """Parser of labels: the two configured ones, or any."""

    def __init__(self, config: InputConfig) -> None:
        self._any = config.labels == "any"
        self._positive: Label = config.positive
        self._negative: Label = config.negative_label()
        self._field = config.label_field
        # Booleans are the labels themselves: none needs to be resolved.
        self.boolean = self._positive is True and self._negative is False
        self._texts: dict[str, Label] = {}
        for label in (self._negative, self._positive):
            for text in _spellings(label):
                self._texts[text] = label

    def resolve(self, y: object) -> object:
        if y == self._positive:
            return self._positive
        if y == self._negative:
            return self._negative
        if self._any and isinstance(y, bool | int | float | str) and y == y:
            return y
        raise self._unknown(y)

    def resolve_text(self, text: str) -> object:
        found: object = self._texts.get(text.strip())
        if found is None:
            found = self._texts.get(text.strip().lower())
        if found is None and self._any:
            return _plain(text.strip())
        if found is None:
            raise self._unknown(text)
        return found

    def _unknown(self, y: object) -> RecordError:
        return RecordError(
            f"unknown label {_shorten(y)} in field {self._field!r}",
            fix="send a number, a text, true or false"
            if self._any
            else f"send {self._positive!r} or {self._negative!r}, or name the labels as "
            'input.positive and input.negative; for ranking and metrics, input.labels = "any"',
            stage="label",
        )


def _plain(text: str) -> float | str:
    """Parse the label of a CSV cell: a finite number if possible, else text."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _spellings(label: Label) -> list[str]:
    if isinstance(label, bool):
        return ["true", "1", "1.0"] if label else ["false", "0", "0.0"]
    if isinstance(label, int):
        return [str(label), f"{label}.0"]
    return [label]


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


def _missing(name: str, config: InputConfig) -> RecordError:
    return RecordError(
        f"feature {name!r} is missing",
        fix="send it in every event, or take it out of input.features",
        stage="features",
    )


def _no_features(config: InputConfig) -> RecordError:
    return RecordError(
        "the event is empty: it has no feature",
        fix="send a JSON object with the features"
        + (f" {', '.join((config.feature_names() or [])[:5])}" if config.features else ""),
        stage="decode",
    )


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


def _parse(value: bytes) -> dict[str, Any]:
    """Decode a JSON object with Python's parser, which also reads NaN and Infinity."""
    if not value.strip():
        raise RecordError(
            "the event is empty: it has no bytes",
            fix="send a JSON object with the features",
            stage="decode",
        )
    try:
        data = json.loads(value)
    except RecursionError:
        raise RecordError(
            "the event is nested too deeply", fix="send a flat JSON object", stage="decode"
        ) from None
    except (ValueError, UnicodeDecodeError) as error:
        if value.startswith(b"\x00"):
            raise RecordError(
                "the event is not JSON: it begins with a zero byte, as the messages of a schema registry do "
                "(Avro, Protobuf or JSON Schema)",
                fix='set input.format = "avro" or "json-schema"; Protobuf is not read: convert the topic',
                stage="decode",
            ) from None
        reason = error.reason if isinstance(error, UnicodeDecodeError) else str(error)
        raise RecordError(
            f"the event is not JSON: {reason[:100]}",
            fix="send one JSON object, in UTF-8, as the value of each record",
            stage="decode",
        ) from None
    if not isinstance(data, dict):
        raise RecordError(
            "the event is not a JSON object",
            fix='send an object such as {"feature": 1.5, "label": true}',
            stage="decode",
        )
    return data


def _explain(value: bytes, config: InputConfig, cells: _Cells, error: Exception) -> RecordError:
    """Return the error of an event that the fast decoder has rejected."""
    try:
        data = _parse(value)
        if not data:
            return _no_features(config)
        for name in config.feature_names() or ():
            if name not in data and not cells.gaps:
                return _missing(name, config)
            cells.of(name, data.get(name))
        label = data.get(config.label_field)
        if isinstance(label, (list, dict)) or label != label:
            return LabelParser(config)._unknown(label)
        if config.id is not None:
            _identifier(data.get(config.id), config)
    except RecordError as refused:
        return refused
    return RecordError(f"the event cannot be decoded: {error}", fix="send standard JSON", stage="decode")


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
        """
        return list(map(self._encode, self.rows(scored, places, model)))

    def lines(self, scored: Sequence[Scored]) -> bytes:
        """Return many records as lines of a file."""
        return self._encode_lines(self.rows(scored))

    def rows(
        self,
        scored: Sequence[Scored],
        places: Sequence[tuple[int, int]] | None = None,
        model: int | None = None,
    ) -> list[_ScoreMessage]:
        """Return the fields of many records, as of `scores`."""
        app, learner, topic, partition = self._lane
        if places is None:
            places = [(partition, s.offset) for s in scored]
        return [
            _ScoreMessage(
                *(app, learner, topic, *place, s.id, s.score, s.outcome),
                msgspec.UNSET if s.probabilities is None else _by_class(s.probabilities),
                msgspec.UNSET if model is None else model,
                msgspec.UNSET if s.reasons is None else [_Reason(*reason) for reason in s.reasons],
            )
            for s, place in zip(scored, places, strict=True)
        ]

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
