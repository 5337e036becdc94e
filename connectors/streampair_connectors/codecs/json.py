"""Batch decoder of JSON events, to arrays.

The reference is the decoder of single events, :func:`streampair_connectors.codecs.records.json_decoder`.
This one returns the same values and the same errors; an event that cannot be decoded keeps its place.
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
    """Return the batch decoder; see `streampair.engine.Rows`.

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
        struct.pack_into(f"{table.size}d", table.data, 0, *itertools.chain.from_iterable(cells))
        return Rows(names, table, y, identifiers, dict(refused) or None)

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
