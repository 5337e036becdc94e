"""JSON events to arrays, a batch at a time.

The truth is the way event by event, :func:`streampair_connectors.codecs.records.json_decoder`. What is here
gives the same values, and the same errors; an event that cannot be decoded keeps its place.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from streampair.engine import Rows
from streampair.errors import RecordError

__all__ = ["json_rows"]

_FLAGS = frozenset({bool, type(None)})


class _Record(Protocol):
    @property
    def value(self) -> bytes | None: ...


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
) -> Callable[[Sequence[_Record]], Rows | None]:
    """Return the function from a batch of records to its rows; see `streampair.engine.Rows`.

    Parameters
    ----------
    names
        Of the features.
    decode
        The way of one record, for its error.
    parse
        From the bytes of an event to a struct that has its `label`, and its `id` if it has one.
    features
        From such a struct to its features.
    resolve
        From a label to what it stands for; `RecordError` if it stands for nothing.
    boolean
        Whether truth values stand for themselves.
    limit
        The most bytes that an event may have.
    ids
        Whether events have an id.
    """
    zeros = (0.0,) * len(names)

    def known(label: Any) -> object:
        return None if label is None else resolve(label)

    def error_of(record: _Record) -> RecordError:
        try:
            decode(record)
        except RecordError as error:
            return error
        raise AssertionError("what is refused in a batch can be decoded alone")

    def many(records: Sequence[_Record]) -> Rows | None:
        values = [record.value for record in records]
        if not values:
            return None
        if None in values or max(map(len, values)) > limit:  # type: ignore[arg-type]
            values = [None if value is None or len(value) > limit else value for value in values]
        rows, away = _each(parse, values)
        y = [None if row is None else row.label for row in rows] if away else [row.label for row in rows]
        if not boolean or not _FLAGS.issuperset(map(type, y)):
            y, unknown = _each(known, y)
            away += unknown
        named = [None if row is None or row.id is None else str(row.id) for row in rows] if ids else None
        refused = {i: error_of(records[i]) for i in sorted(away)} if away else {}
        for i in refused:
            rows[i] = None
            if named is not None:
                named[i] = None
        cells = [zeros if row is None else features(row) for row in rows] if refused else map(features, rows)
        table = np.empty((len(rows), len(names)))
        struct.pack_into(f"{table.size}d", table.data, 0, *itertools.chain.from_iterable(cells))
        return Rows(names, table, y, named, dict(refused) or None)

    return many


def _each(function: Callable[[Any], Any], items: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The function of each item, None where it raises; and where that is."""
    try:
        return list(map(function, items)), []
    except Exception:  # one of them: the others are done as they would be alone
        out: list[Any] = []
        raised = []
        for i, item in enumerate(items):
            try:
                out.append(function(item))
            except Exception:
                out.append(None)
                raised.append(i)
        return out, raised
