"""Fields with declared values: one-hot columns, added to what a decoder of numbers returns."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from streampair.engine import Event, Rows
from streampair.errors import RecordError
from streampair.records.features import Categories

__all__ = ["csv_fields", "json_fields", "with_categories"]

Fields = Callable[[str], object]


def with_categories(
    categories: Categories, base: Any, fields: Callable[[bytes], Fields], *, alone: bool
) -> Callable[[Any], Event]:
    """Return a decoder that adds the one-hot columns of declared values to the events of `base`.

    Parameters
    ----------
    categories
        The declared values.
    base
        Decodes everything else, and rejects what cannot be decoded.
    fields
        From the bytes of a record that `base` accepted to the value of a field; None: it is missing.
    alone
        Whether there are no other features. A record without any of the fields is then rejected as empty.
    """
    columns, zeros = categories.columns, dict.fromkeys(categories.columns, 0.0)
    names = list(map(str, categories.places))

    def active_columns(value: bytes) -> list[int]:
        """The indices of the columns that are 1."""
        get = fields(value)
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
        for column in active_columns(record.value):
            x[columns[column]] = 1.0
        return Event(x, event.y, event.id)

    def many(records: Sequence[Any]) -> Rows | None:
        rows: Rows | None = base.many(records)
        if rows is None:
            return None
        n, d = rows.values.shape
        table = np.zeros((n, d + len(columns)))
        table[:, :d] = rows.values
        refused = rows.refused or ()
        for i, record in enumerate(records):
            if i not in refused:
                table[i, [d + column for column in active_columns(record.value)]] = 1.0
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
    """Return the lookup of the fields of a JSON object."""
    try:
        data: dict[str, Any] = _decode(value)
    except Exception:  # NaN, which only the slow path reads
        data = json.loads(value)
    return data.get


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def csv_fields(header: Sequence[str]) -> Callable[[bytes], Fields]:
    """Return the lookup of the fields of a CSV line; an empty cell is missing."""
    columns = list(header)

    def fields(value: bytes) -> Fields:
        cells = next(csv.reader([value.decode("utf-8").rstrip("\r\n")]), [])
        return {name: cell for name, cell in zip(columns, cells, strict=False) if cell != ""}.get

    return fields
