"""Batch decoders of JSON events and CSV lines, to arrays.

The references are the decoders of single records in `streampair_connectors.codecs.records`. A batch of JSON
events has the same values and the same errors; an event that cannot be decoded keeps its place. A batch of
CSV lines has the same values where all are well-formed, and leaves any other batch to the reference.
"""

from __future__ import annotations

import csv
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from streampair.engine import EventRows
from streampair.errors import RecordError

__all__ = ["csv_rows", "json_rows"]

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
        values = [record.value for record in records]
        if not values:
            return None
        if None in values or max(map(len, values)) > limit:  # type: ignore[arg-type]
            values = [None if value is None or len(value) > limit else value for value in values]
        rows, failed = _each(parse, values)
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


def _each(function: Callable[[Any], Any], items: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Apply `function` to each item: the results, None where it raises, and the indices of those."""
    try:
        return list(map(function, items)), []
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


def _items_at(indices: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return the function from a sequence to its items at these indices."""
    if len(indices) == 1:
        return lambda row: (row[indices[0]],)
    return itemgetter(*indices)
