"""Records as rows of a table, and their packing into arrays for a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

__all__ = ["Records", "Row", "in_order", "pack_records", "unpack_records", "usable"]

Array = NDArray[np.float64]
Row = dict[Any, float]


class Records(Sequence[Row]):
    """Records as rows of an array: a sequence of dicts, which are made on access.

    Parameters
    ----------
    names
        Of the columns.
    values
        (n, d); NaN where a record lacks the feature.
    """

    def __init__(self, names: Sequence[Any], values: Array) -> None:
        self.names, self.values = names, values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Row]:
        return iter(self[:])

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            values, names = self.values[index], self.names
            if not np.isnan(values).any():
                return [dict(zip(names, row, strict=True)) for row in values.tolist()]
            return [self._row(row) for row in values.tolist()]
        return self._row(self.values[index].tolist())

    def only(self, indices: list[int]) -> Records:
        """The records at these indices."""
        return Records(self.names, self.values[indices])

    def _row(self, values: list[float]) -> Row:
        return {name: v for name, v in zip(self.names, values, strict=True) if v == v}


def pack_records(rows: Sequence[Row | None]) -> dict[str, object]:
    """Rows as arrays: the tuples of names that occur, which of them each row has, and all values."""
    schemas: dict[tuple[Any, ...], int] = {}
    which = np.full(len(rows), -1, dtype=np.int32)
    values: list[float] = []
    for i, row in enumerate(rows):
        if row is not None:
            names = tuple(in_order(row))
            which[i] = schemas.setdefault(names, len(schemas))
            values.extend([row[name] for name in names])
    all_names: dict[Any, int] = {}
    columns = [all_names.setdefault(name, len(all_names)) for schema in schemas for name in schema]
    return {
        "names": list(all_names),
        "lengths": np.array([len(schema) for schema in schemas], dtype=np.int32),
        "columns": np.array(columns, dtype=np.int32),
        "which": which,
        "values": np.array(values, dtype=np.float64),
    }


def unpack_records(state: Mapping[str, Any]) -> list[Row | None]:
    """The rows that `pack_records` packed."""
    names, columns = list(state["names"]), state["columns"].tolist()
    schemas: list[list[Any]] = []
    place = 0
    for length in state["lengths"].tolist():
        schemas.append([names[c] for c in columns[place : place + length]])
        place += length
    values = state["values"].tolist()
    out: list[Row | None] = []
    place = 0
    for which in state["which"].tolist():
        if which < 0:
            out.append(None)
            continue
        schema = schemas[which]
        out.append(dict(zip(schema, values[place : place + len(schema)], strict=True)))
        place += len(schema)
    return out


def usable(row: Mapping[Any, Any]) -> Row:
    """The numeric features of a record; others are left out, as the learner ignored them."""
    kept = {}
    for name, value in row.items():
        try:
            kept[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
    return kept


def in_order(names: Iterable[Any]) -> list[Any]:
    """Names in a canonical order."""
    return sorted(names, key=lambda name: (type(name).__name__, name if type(name) is int else 0, str(name)))
