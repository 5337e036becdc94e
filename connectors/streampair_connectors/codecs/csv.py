"""Lines of a CSV file to arrays, a batch at a time.

The truth is the way line by line, :func:`streampair_connectors.codecs.records.csv_decoder`. What is here
gives the same values for lines that have nothing wrong with them, and leaves a batch with any other line to
it.
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

from streampair.engine import Rows
from streampair.errors import RecordError

__all__ = ["csv_rows"]

# What a line of numbers is made of, and its end.
_PLAIN = b"0123456789+-.eE,\n"


class _Record(Protocol):
    @property
    def value(self) -> bytes | None: ...


Many = Callable[[Sequence[_Record]], Rows | None]
# From lines to their rows; None or an error if they are not of its kind.
_Way = Callable[[list[bytes]], Rows | None]


def csv_rows(
    columns: Sequence[str],
    names: Iterable[str],
    *,
    label: str,
    id_column: str | None,
    limit: int,
    resolve: Callable[[str], object],
) -> Many | None:
    """Return the function from a batch of lines to its rows; see `streampair.engine.Rows`.

    Parameters
    ----------
    columns
        The header.
    names
        Of the features.
    label, id_column
        The columns of the label and of the id.
    limit
        The most bytes that a line may have.
    resolve
        From the text of a label to what it stands for; `RecordError` if it stands for nothing.

    Returns
    -------
    function or None
        None: no line of such a file is a usable event with a label.
    """
    place = {name: index for index, name in enumerate(columns)}  # of two columns with one name, the last
    features = list(dict.fromkeys(names))
    if not features or label not in place or not place.keys() >= set(features):
        return None
    columns_of = _Columns(
        width=len(columns),
        features=features,
        chosen=[place[name] for name in features],
        label=place[label],
        id=None if id_column is None else place.get(id_column),
    )
    ways = _numbers(columns_of, resolve), _texts(columns_of, resolve)

    def many(records: Sequence[_Record]) -> Rows | None:
        values = [record.value for record in records]
        if not values or None in values or max(map(len, values)) > limit:  # type: ignore[arg-type]
            return None
        for way in ways:
            try:
                rows = way(values)  # type: ignore[arg-type]
            except (ValueError, OverflowError, csv.Error, msgspec.MsgspecError, RecordError):
                continue
            if rows is not None:
                return rows
        return None

    return many


class _Columns(NamedTuple):
    """How many columns there are, and where among them the features, the label and the id lie."""

    width: int
    features: list[str]
    chosen: list[int]
    label: int
    id: int | None


def _numbers(columns: _Columns, resolve: Callable[[str], object]) -> _Way:
    """For lines of numbers alone: written with brackets around, they are JSON, which msgspec reads fast."""
    width, features, chosen, label_at, id_at = columns
    in_order = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
    pick: Any = slice(chosen[0], chosen[0] + len(chosen)) if in_order else chosen
    # A whole number is spelled in one way, so that it says what its cell says; 1.0 could be 1.00 as well.
    cells: list[Any] = [int | float if index in (label_at, id_at) else float for index in range(width)]
    parse = msgspec.json.Decoder(list[tuple[tuple(cells)]]).decode  # type: ignore[misc]

    def numbers(values: list[bytes]) -> Rows | None:
        text = b"\n".join(values)
        if text.translate(None, _PLAIN):
            return None
        rows = parse(b"[[" + text.replace(b"\n", b"],[") + b"]]")
        if len(rows) != len(values):  # a line with a line break in it
            return None
        y = list(map(itemgetter(label_at), rows))
        ids = None if id_at is None else list(map(itemgetter(id_at), rows))
        if set(map(type, y)) != {int} or (ids is not None and set(map(type, ids)) != {int}):
            return None
        table = np.empty((len(rows), width))
        struct.pack_into(f"{table.size}d", table.data, 0, *chain.from_iterable(rows))
        if not table.all() and _minus_nothing(text):
            return None
        table = np.ascontiguousarray(table[:, pick])
        labels = {number: resolve(str(number)) for number in set(y)}
        return Rows(
            features, table, [labels[number] for number in y], None if ids is None else list(map(str, ids))
        )

    return numbers


def _texts(columns: _Columns, resolve: Callable[[str], object]) -> _Way:
    """For any lines, cell by cell with what the slow way uses."""
    width, features, chosen, label_at, id_at = columns
    take_features = _several(chosen)

    def texts(values: list[bytes]) -> Rows | None:
        rows = list(csv.reader([value.decode("utf-8").rstrip("\r\n") for value in values], strict=True))
        # A quote that is not closed would take the next line with it.
        if len(rows) != len(values) or set(map(len, rows)) != {width}:
            return None
        y = list(map(itemgetter(label_at), rows))
        table = np.empty((len(rows), len(features)))
        cells = chain.from_iterable(map(take_features, rows))
        struct.pack_into(f"{table.size}d", table.data, 0, *map(float, cells))
        if "" in y or not np.isfinite(table).all():
            return None
        labels = {text: resolve(text) for text in set(y)}
        ids = None if id_at is None else [row[id_at] or None for row in rows]
        return Rows(features, table, [labels[text] for text in y], ids)

    return texts


def _minus_nothing(text: bytes) -> bool:
    """Whether one of the numbers is -0, which `float` reads otherwise: to a JSON parser it is a whole number.

    NumPy looks at the signs alone, in half of the time that a search for the bytes takes.
    """
    letters = np.frombuffer(text + b"\n", np.uint8)
    signs = np.flatnonzero(letters == ord("-"))
    last = letters[signs + 2]
    return bool(((letters[signs + 1] == ord("0")) & ((last == ord(",")) | (last == ord("\n")))).any())


def _several(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """From a sequence to its items at these places."""
    if len(places) == 1:
        return lambda row: (row[places[0]],)
    return itemgetter(*places)
