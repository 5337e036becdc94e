"""Data frames and NumPy arrays of records: conversion to arrays, and of results to the same library."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.dependencies import get_pandas, get_polars
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray
from river import utils

from streampair.errors import RecordError
from streampair.kernels.vectors import rows_of_columns
from streampair.records import features

__all__ = [
    "FeatureTable",
    "is_numeric",
    "label_type",
    "label_values",
    "matrix_like",
    "open_frame",
    "unreadable_columns",
    "with_rows",
]

Array = NDArray[np.float64]

#: Types of columns, other than numeric ones, whose cells are read one by one.
_READABLE = (nw.Boolean, nw.String, nw.Categorical, nw.Enum, nw.Object, nw.Binary)
_READABLE_KINDS = "OSU"
#: Integer types without a NumPy equivalent.
_WIDE = (nw.Int128, nw.UInt128)


class FeatureTable:
    """Rows of features: a data frame of any library that narwhals knows, or a NumPy array.

    The columns of an array are named 0, 1, ..., as pandas names them.

    Parameters
    ----------
    X
        Data frame, or array of shape (n, d).
    strict
        Whether a cell that is not a number raises RecordError; else it becomes NaN. Missing and masked cells
        become NaN. If not strict, all cells of a column whose type cannot be read cell by cell, such as
        complex numbers, dates or lists, become `features.UNREADABLE`.
    names
        Order of the columns, used if these are their names.
    read
        Function that converts a cell of a column that is not numeric to a number, or raises.
    records
        Whether rows are taken as records where a column is not numeric.

    Attributes
    ----------
    columns
        Names of the columns.
    rows
        Their values, float64, C order, shape (n, columns).
    records
        Where a column is not numeric and `records` was asked for: the rows by name, None for a missing cell,
        in place of `rows`, which has no columns. Else None.
    """

    __slots__ = ("_frame", "_order", "columns", "records", "rows")

    _frame: _Frame | None
    _order: NDArray[np.intp] | None
    columns: list[Hashable]
    rows: Array

    def __init__(
        self,
        X: Any,
        *,
        strict: bool = True,
        names: Sequence[Hashable] = (),
        read: Callable[[Any], float] = features.as_number,
        records: bool = False,
    ) -> None:
        self.records: list[dict[Hashable, Any]] | None = None
        if isinstance(X, np.ndarray):
            X = _matrix(X)
            self._frame = None
            self.columns = list(range(X.shape[1]))
            if X.dtype.kind not in "biuf" and records:
                self._take_records([column.tolist() for column in X.T], len(X))
                return
            rows = X if X.dtype.kind in "biuf" else _read_array(X, strict=strict, read=read)
        else:
            self._frame = _frame_of(X)
            self.columns = self._frame.columns
            numbers = self._frame.numbers()
            if numbers is None and records:
                frame = open_frame(X)
                _check_readable(frame)
                self._take_records([frame[:, j].to_list() for j in range(len(self.columns))], len(frame))
                return
            rows = _read_cells(open_frame(X), strict=strict, read=read) if numbers is None else numbers
        if not self.columns:
            raise RecordError("there are no columns", fix="give at least one feature")
        self._order = _order(self.columns, names)
        if self._order is None:
            # Writeable, since numba would compile every kernel again for read-only arrays.
            self.rows = np.require(rows, np.float64, ["C", "A", "W"])
        else:
            self.columns = list(names)
            self.rows = _ordered(np.asarray(rows, dtype=np.float64), self._order)

    @classmethod
    def of_cells(cls, X: Any) -> FeatureTable:
        """A table that has `records` for columns of any type: cells as they are, None for a gap or NaN."""
        table = cls.__new__(cls)
        if isinstance(X, np.ndarray):
            X = _matrix(X)
            table._frame = None
            table.columns = list(range(X.shape[1]))
            table._take_records([column.tolist() for column in X.T], len(X))
        else:
            table._frame = _frame_of(X)
            table.columns = table._frame.columns
            frame = open_frame(X)
            table._take_records([frame[:, j].to_list() for j in range(len(table.columns))], len(frame))
        return table

    def _take_records(self, cells: list[list[Any]], count: int) -> None:
        """Keep the rows of these columns as records."""
        if not self.columns:
            raise RecordError("there are no columns", fix="give at least one feature")
        self._order, self.rows = None, np.empty((count, 0))
        plain = [[None if _is_gap(cell) else cell for cell in column] for column in cells]
        self.records = [dict(zip(self.columns, row, strict=True)) for row in zip(*plain, strict=True)]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def unreadable(self) -> list[Hashable]:
        """Columns that contain `features.UNREADABLE`, perhaps set by a transformer."""
        rows = self.rows
        if not np.isnan(rows).any():
            return []
        marked = rows.view(np.int64) == np.array(features.UNREADABLE).view(np.int64)
        return [self.columns[j] for j in np.flatnonzero(marked.any(axis=0)).tolist()]

    def columns_and_rows(self) -> tuple[list[Hashable], Array]:
        """Columns and rows in their original order."""
        if self._order is None:
            return self.columns, self.rows
        back = np.argsort(self._order)
        return [self.columns[j] for j in back], np.take(self.rows, back, axis=1)

    def check_names(self, known: Sequence[Hashable]) -> None:
        """RecordError if this is an array, and the learner's features have names other than integers."""
        if self._frame is not None or self.columns == list(known):
            return
        if any(type(name) is not int for name in known):
            raise RecordError(
                "an array has no names for its columns, and the learner's features have names such as "
                f"{next(name for name in known if type(name) is not int)!r}",
                fix="give a data frame with these names as columns",
            )

    def series(self, values: NDArray[Any], name: Any) -> Any:
        """Return values, one for each row, as a series of the frame's library with its index, or an array."""
        return values if self._frame is None else self._frame.series(values, name)

    def frame(self, columns: Mapping[Any, Array]) -> Any:
        """Return columns as a frame of the same library with its index, or as the columns of an array."""
        if self._frame is None:
            return np.column_stack(list(columns.values()))
        return self._frame.frame(columns)

    def matrix(self, values: Array, columns: Sequence[Any]) -> Any:
        """Return an array (n, columns) as a frame of the same library with its index, or as it is.

        Raises
        ------
        RecordError
            If this is an array, and the columns have names.
        """
        if self._frame is None:
            if list(columns) != self.columns:
                raise RecordError(
                    "the output has named columns, and an array has no names", fix="give a data frame"
                )
            return values
        return self._frame.matrix(values, columns)


def _is_gap(cell: object) -> bool:
    return features.is_missing(cell) or (isinstance(cell, float) and cell != cell)


def is_numeric(X: Any) -> bool:
    """Whether all columns of a frame or an array have a type of numbers."""
    return X.dtype.kind in "biuf" if isinstance(X, np.ndarray) else _frame_of(X).is_numeric()


def with_rows(X: Any, change: Callable[[dict[Hashable, Any]], Mapping[Hashable, Any]]) -> Any:
    """Return a frame or an array with each row changed; a cell that is the same stays as it is.

    Parameters
    ----------
    X
        Data frame, or array of shape (n, d).
    change
        Function from a row by name, None for a missing cell, to the same names with other cells.
    """
    table = FeatureTable.of_cells(X)
    rows = table.records or []
    changed = [change(row) for row in rows]
    cells: dict[int, list[Any]] = {}
    for j, name in enumerate(table.columns):
        if table._frame is None or any(a[name] is not b[name] for a, b in zip(rows, changed, strict=True)):
            cells[j] = [row[name] for row in changed]
    if table._frame is not None:
        return table._frame.replaced(cells)
    columns = [_plain_cells(column) for column in cells.values()]
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.column_stack(columns)
    out = np.empty(X.shape, dtype=object)
    for i, row in enumerate(changed):
        for j, name in enumerate(table.columns):
            out[i, j] = row[name]
    return out


def _plain_cells(cells: list[Any]) -> Array | list[Any]:
    """Return cells as an array of numbers, missing ones as NaN; or, if others are among them, as they are."""
    if all(cell is None or isinstance(cell, int | float) for cell in cells):
        with contextlib.suppress(OverflowError):
            return np.array(cells, dtype=np.float64)
    return cells


class _Frame(Protocol):
    """Interface of a data frame for `FeatureTable`; results are of the same library with the same index."""

    columns: list[Hashable]

    def is_numeric(self) -> bool:
        """Whether all columns have a type of numbers."""

    def replaced(self, cells: Mapping[int, list[Any]]) -> Any:
        """Return the frame with other cells in some of its columns, by their place."""

    def numbers(self) -> NDArray[Any] | None:
        """Return all cells as numbers, missing ones as NaN; None if a column is not numeric."""

    def series(self, values: NDArray[Any], name: Any) -> Any:
        """Return values as a series."""

    def frame(self, columns: Mapping[Any, Array]) -> Any:
        """Return columns as a frame."""

    def matrix(self, values: Array, columns: Sequence[Any]) -> Any:
        """Return an array (n, columns) as a frame."""


class _Narwhals:
    """A data frame of any library that narwhals supports; the next two are faster equivalents."""

    def __init__(self, X: Any) -> None:
        self._like = open_frame(X)
        self.columns: list[Hashable] = list(self._like.columns)

    def is_numeric(self) -> bool:
        if self._like.implementation.is_pandas_like():
            return all(t.kind in "biuf" for t in set(self._like.to_native().dtypes))
        return not _other_columns(self._like)

    def numbers(self) -> NDArray[Any] | None:
        return utils.dataframe.to_numpy(self._like) if self.is_numeric() else None

    def replaced(self, cells: Mapping[int, list[Any]]) -> Any:
        series = [self._like[:, j] for j in range(len(self.columns))]
        for j, column in cells.items():
            made = _plain_cells(column)
            if not isinstance(made, np.ndarray) and any(isinstance(cell, int | float) for cell in column):
                # Such a library has no column of numbers and texts.
                made = [cell if isinstance(cell, int | float) else None for cell in column]
            series[j] = nw.new_series(series[j].name, made, backend=self._like.implementation)
        return self._like.with_columns(*series).to_native()

    def series(self, values: NDArray[Any], name: Any) -> Any:
        return utils.dataframe.to_native_series(values, name=name, like=self._like)

    def frame(self, columns: Mapping[Any, Array]) -> Any:
        return utils.dataframe.to_native_frame(columns, like=self._like)

    def matrix(self, values: Array, columns: Sequence[Any]) -> Any:
        return utils.dataframe.to_native_frame(values, like=self._like, columns=columns)


class _Pandas:
    """A pandas DataFrame, without narwhals, whose overhead exceeds the time to learn a hundred rows."""

    def __init__(self, X: Any, library: Any) -> None:
        self._X, self._library = X, library
        self.columns: list[Hashable] = X.columns.tolist()
        _check_unique(self.columns)

    def is_numeric(self) -> bool:
        return all(t.kind in "biuf" for t in set(self._X.dtypes.tolist()))

    def numbers(self) -> NDArray[Any] | None:
        if not self.is_numeric():
            return None
        out: NDArray[Any] = self._X.to_numpy(dtype=np.float64, na_value=np.nan)
        return out

    def replaced(self, cells: Mapping[int, list[Any]]) -> Any:
        out = self._X.copy(deep=False)
        for j, column in cells.items():
            made = _plain_cells(column)
            kind = np.float64 if isinstance(made, np.ndarray) else object
            out.isetitem(j, self._library.Series(made, index=out.index, dtype=kind))
        return out

    def series(self, values: NDArray[Any], name: Any) -> Any:
        return self._library.Series(values, index=self._X.index, name=name, copy=False)

    def frame(self, columns: Mapping[Any, Array]) -> Any:
        values = np.array(list(columns.values()))  # one row per column, as pandas stores them
        return self._library.DataFrame(values.T, columns=list(columns), index=self._X.index, copy=False)

    def matrix(self, values: Array, columns: Sequence[Any]) -> Any:
        return self._library.DataFrame(values, columns=list(columns), index=self._X.index)


class _Polars:
    """A polars DataFrame, without narwhals."""

    def __init__(self, X: Any, library: Any) -> None:
        self._X, self._library = X, library
        self.columns: list[Hashable] = X.columns

    def is_numeric(self) -> bool:
        boolean = self._library.Boolean
        # Each class of types once; numeric types have no parameters.
        types: set[Any] = set(map(type, self._X.dtypes))
        if not all(t.is_float() or t.is_integer() or t is boolean for t in types):
            return False
        return not any("128" in t.__name__ for t in types)

    def numbers(self) -> NDArray[Any] | None:
        if not self.is_numeric():
            return None
        out: NDArray[Any] = self._X.to_numpy()
        return out

    def replaced(self, cells: Mapping[int, list[Any]]) -> Any:
        names, series, anything = self.columns, self._library.Series, self._library.Object
        made = {j: _plain_cells(column) for j, column in cells.items()}
        return self._X.with_columns(
            series(names[j], column, dtype=None if isinstance(column, np.ndarray) else anything)
            for j, column in made.items()
        )

    def series(self, values: NDArray[Any], name: Any) -> Any:
        return self._library.Series(name, values)

    def frame(self, columns: Mapping[Any, Array]) -> Any:
        series = self._library.Series
        return self._library.DataFrame([series(str(name), values) for name, values in columns.items()])

    def matrix(self, values: Array, columns: Sequence[Any]) -> Any:
        return self._library.from_numpy(values, [str(column) for column in columns], orient="row")


def _frame_of(X: Any) -> _Frame:
    """Return the fastest implementation for the frame's library; imports no library."""
    if (pandas := get_pandas()) is not None and isinstance(X, pandas.DataFrame):
        return _Pandas(X, pandas)
    if (polars := get_polars()) is not None and isinstance(X, polars.DataFrame):
        return _Polars(X, polars)
    return _Narwhals(X)


def _matrix(X: NDArray[Any]) -> NDArray[Any]:
    """Return an array of records without a mask; RecordError if it has not two dimensions."""
    if isinstance(X, np.ma.MaskedArray):
        X = _unmasked(X)
    if X.ndim != 2:
        raise RecordError(
            f"the array of records has shape {X.shape}", fix="give records by features: shape (n, d)"
        )
    return X


def _unmasked(values: np.ma.MaskedArray[Any, Any]) -> NDArray[Any]:
    """Return a plain array in which masked cells are missing, whatever values are under the mask."""
    if not np.ma.is_masked(values):
        return np.asarray(values)
    if values.dtype.kind == "f":
        filled: NDArray[Any] = values.filled(np.nan)
        return filled
    plain = np.asarray(values).astype(object)
    plain[np.ma.getmaskarray(values)] = None
    return plain


def matrix_like(X: Any, values: Array, columns: Sequence[Any]) -> Any:
    """Return an array (n, columns) as a frame of the same library as the frame X, with its index."""
    return _frame_of(X).matrix(values, columns)


def _order(columns: list[Hashable], names: Sequence[Hashable]) -> NDArray[np.intp] | None:
    """Return the index of each name among the columns; None if they are in order, or not the same."""
    if len(columns) != len(names) or columns == list(names):
        return None
    place = {column: j for j, column in enumerate(columns)}
    try:
        return np.array([place[name] for name in names], dtype=np.intp)
    except KeyError:
        return None


def _ordered(values: Array, order: NDArray[np.intp]) -> Array:
    """Return the columns in this order, in C order: one copy, since allocation is the larger cost."""
    if values.flags.c_contiguous or not values.flags.f_contiguous:
        return np.take(values, order, axis=1)
    columns = values.T.view()
    columns.flags.writeable = False  # as in arrays of pandas: one signature for the kernel
    rows = np.empty(values.shape)
    rows_of_columns(columns, order.view(np.uintp), rows)
    return rows


def _twice_named() -> RecordError:
    return RecordError("the frame has two columns of the same name", fix="give every feature one column")


def _check_unique(columns: list[Hashable]) -> None:
    if len(set(columns)) != len(columns):
        raise _twice_named()


def open_frame(X: Any) -> nw.DataFrame[Any]:
    """Wrap a pandas, polars or other data frame by narwhals."""
    try:
        return utils.dataframe.into_frame(X)
    except DuplicateError:
        raise _twice_named() from None
    except TypeError:
        raise _no_frame(X) from None


def _no_frame(X: Any) -> RecordError:
    """Return the error for an object that is not a data frame; its fix names the conversion."""
    kind = type(X).__name__
    if kind == "LazyFrame":
        problem, fix = "a LazyFrame has no rows until it is collected", "give X.collect()"
    elif kind == "Series":
        problem = "a Series is one column, and records have a column for each feature"
        fix = "give X.to_frame(), or a dict to learn_one if it is one record"
    elif isinstance(X, Mapping):
        problem, fix = (
            f"a {kind} is not a data frame",
            "give a data frame made of it; one record goes to learn_one",
        )
    else:
        problem, fix = f"a {kind} is not a data frame", "give a pandas or polars DataFrame, or a NumPy array"
    return RecordError(problem, fix=fix)


def label_values(y: Any) -> tuple[NDArray[Any] | list[Any], Any]:
    """Return labels as an array of booleans or numbers, or else as a list, and their name."""
    if isinstance(y, np.ndarray):
        if isinstance(y, np.ma.MaskedArray):
            y = _unmasked(y)
        if y.ndim != 1:
            raise RecordError(
                f"the array of labels has shape {y.shape}",
                fix="give one label for each record",
                stage="label",
            )
        return (y if y.dtype.kind in "biuf" else y.tolist()), None
    values = _plain_labels(y)
    if values is not None:
        return values, y.name
    try:
        series = utils.dataframe.into_series(y)
    except TypeError:
        kind = type(y).__name__
        problem, fix = f"the labels are a {kind}", "give a Series or a NumPy array, such as numpy.array(y)"
        if kind in ("DataFrame", "LazyFrame"):
            fix = "give one column as a Series, such as frame['label'], collected if it is lazy"
        raise RecordError(problem, fix=fix, stage="label") from None
    numeric = series.dtype.is_numeric() and not isinstance(series.dtype, _WIDE)
    if (numeric or series.dtype == nw.Boolean) and not series.null_count():
        values = np.asarray(series.to_numpy())
        if values.dtype.kind in "biuf":
            return values, series.name
    return series.to_list(), series.name


def label_type(y: Any) -> str | None:
    """Return the type of labels whose values it does not preserve; None if they can be read one by one.

    Such types are nested values, dates and complex numbers: polars, for one, replaces numbers next to a dict
    by nulls.
    """
    if isinstance(y, np.ndarray):
        return None if y.dtype.kind in "biuf" + _READABLE_KINDS else str(y.dtype)
    series = utils.dataframe.into_series(y)
    return None if _is_readable(series) else str(series.dtype)


def _plain_labels(y: Any) -> NDArray[Any] | None:
    """Return the values of a boolean or numeric pandas or polars series, without narwhals; else None."""
    if (pandas := get_pandas()) is not None and isinstance(y, pandas.Series):
        if not (isinstance(y.dtype, np.dtype) and y.dtype.kind in "biuf"):
            return None
        values: NDArray[Any] = y.to_numpy()
        return None if values.dtype.kind == "f" and np.isnan(values).any() else values
    if (polars := get_polars()) is not None and isinstance(y, polars.Series):
        numeric = y.dtype.is_float() or y.dtype.is_integer() or y.dtype == polars.Boolean
        if numeric and "128" not in str(y.dtype) and not y.null_count():
            values = y.to_numpy()
            return values if values.dtype.kind in "biuf" else None
    return None


def _other_columns(frame: nw.DataFrame[Any]) -> list[str]:
    """Names of the columns whose type is not numeric, or has no NumPy equivalent."""
    return [
        name
        for name, t in frame.schema.items()
        if not (t.is_numeric() or t == nw.Boolean) or isinstance(t, _WIDE)
    ]


def _is_readable(series: nw.Series[Any]) -> bool:
    """Whether the column's type preserves the values of its cells."""
    t = series.dtype
    if t.is_numeric() or isinstance(t, _READABLE):
        return True
    if t == nw.Unknown and series.null_count() == len(series):  # polars' type of a column of nulls
        return True
    # pandas' sparse numbers are unknown to narwhals.
    return getattr(getattr(series.to_native(), "dtype", None), "kind", "none") in {*"biuf"}


def unreadable_columns(frame: nw.DataFrame[Any]) -> list[str]:
    """Names of columns of types that cannot be read as numbers: dates, lists, complex numbers."""
    other = set(_other_columns(frame))
    return [
        name
        for j, name in enumerate(frame.columns)
        if name in other and not _is_readable(frame[:, j])  # by position: a name may be an integer
    ]


def _check_readable(frame: nw.DataFrame[Any]) -> None:
    """RecordError for a column whose cells are neither numbers, texts nor booleans."""
    unreadable = unreadable_columns(frame)
    if unreadable:
        dtype = frame[:, frame.columns.index(unreadable[0])].dtype
        raise RecordError(
            f"the column {unreadable[0]!r} has the type {dtype}, which is neither a number nor a text",
            fix="turn it into numbers or texts first",
        )


def _read_cells(frame: nw.DataFrame[Any], *, strict: bool, read: Callable[[Any], float]) -> Array:
    """Convert a frame to numbers; columns that are not numeric are read cell by cell."""
    other = set(_other_columns(frame))
    rows = np.empty((len(frame), len(frame.columns)))
    # By position: an integer name would be taken as a position.
    numeric = [j for j, column in enumerate(frame.columns) if column not in other]
    if numeric:
        rows[:, numeric] = utils.dataframe.to_numpy(frame[:, numeric])
    for j, column in enumerate(frame.columns):
        if column not in other:
            continue
        series = frame[:, j]
        if strict or _is_readable(series):
            rows[:, j] = _numbers(column, series.to_list(), strict=strict, read=read)
        else:
            rows[:, j] = features.UNREADABLE
    return rows


def _read_array(X: NDArray[Any], *, strict: bool, read: Callable[[Any], float]) -> Array:
    """Convert an array of objects or texts to numbers, cell by cell."""
    rows = np.full(X.shape, features.UNREADABLE)
    if strict or X.dtype.kind in _READABLE_KINDS:
        for j, column in enumerate(X.T):
            rows[:, j] = _numbers(j, column.tolist(), strict=strict, read=read)
    return rows


def _numbers(
    name: Hashable, cells: Sequence[Any], *, strict: bool, read: Callable[[Any], float]
) -> list[float]:
    """Convert the cells of one column to floats."""
    out = []
    for i, cell in enumerate(cells):
        try:
            out.append(np.nan if features.is_missing(cell) else read(cell))
        except Exception:  # a value may raise anything
            if strict:
                row = _culprit(cells, i)
                raise features.unusable_value(name, cells[row], row=row) from None
            out.append(np.nan)
    return out


def _culprit(cells: Sequence[Any], first: int) -> int:
    """Index of the cell that made a column text: the first text that is not a number."""
    texts = (i for i in range(first, len(cells)) if isinstance(cells[i], str))
    return next((i for i in texts if features.real(cells[i]) is None), first)
