"""Many records at once: data frames of any library, and NumPy arrays, in and out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from numpy.typing import NDArray
from river import utils

from streampair import _features
from streampair.errors import RecordError

__all__ = ["Table", "label_values", "open_frame"]

Array = NDArray[np.float64]


class Table:
    """Rows of features: a data frame of any library that narwhals knows, or a NumPy array.

    The columns of an array are named 0, 1, ..., as pandas names them.

    Parameters
    ----------
    X
        Data frame, or array of shape (n, d).
    strict
        Whether a cell that is no number raises RecordError; else it becomes NaN. Missing cells become NaN.

    Attributes
    ----------
    columns
        Names of the columns.
    rows
        Their values, float64, C order, shape (n, columns).
    """

    __slots__ = ("_frame", "columns", "rows")

    _frame: nw.DataFrame[Any] | None
    columns: list[Hashable]
    rows: Array

    def __init__(self, X: Any, *, strict: bool = True) -> None:
        if isinstance(X, np.ndarray):
            if X.ndim != 2:
                raise RecordError(
                    f"the array of records has shape {X.shape}", fix="give records by features: shape (n, d)"
                )
            self._frame = None
            self.columns = list(range(X.shape[1]))
            rows = X
            if X.dtype.kind not in "biuf":
                rows = np.empty(X.shape)
                for j, column in enumerate(X.T):
                    rows[:, j] = _numbers(j, column.tolist(), strict=strict)
        else:
            self._frame = open_frame(X)
            self.columns = list(self._frame.columns)
            rows = _frame_rows(self._frame, strict=strict)
        if not self.columns:
            raise RecordError("there are no columns", fix="give at least one feature")
        # Writeable, too: for arrays that are not, numba would compile every kernel once more.
        self.rows = np.require(rows, np.float64, ["C", "A", "W"])

    def __len__(self) -> int:
        return len(self.rows)

    def check_names(self, known: Sequence[Hashable]) -> None:
        """RecordError if this is an array, and the learner knows its features by names other than numbers."""
        if self._frame is None and any(type(name) is not int for name in known):
            raise RecordError(
                "an array has no names for its columns, and the learner knows its features by names such as "
                f"{next(name for name in known if type(name) is not int)!r}",
                fix="give a data frame with these names as columns",
            )

    def series(self, values: NDArray[Any], name: Any) -> Any:
        """The values, one for each row, as a series of the frame's library with its index; or as they are."""
        if self._frame is None:
            return values
        return utils.dataframe.to_native_series(values, name=name, like=self._frame)

    def frame(self, columns: Mapping[Any, NDArray[Any]]) -> Any:
        """The columns as a frame of the same library with its index; or as an array, side by side."""
        if self._frame is None:
            return np.column_stack(list(columns.values()))
        return utils.dataframe.to_native_frame(columns, like=self._frame)

    def matrix(self, values: Array, columns: Sequence[Any]) -> Any:
        """The array (n, columns) as a frame of the same library with its index; or as it is.

        Raises
        ------
        RecordError
            If it is an array, and the columns have names.
        """
        if self._frame is None:
            if list(columns) != self.columns:
                raise RecordError(
                    "what comes out has names, for which an array has no place", fix="give a data frame"
                )
            return values
        return utils.dataframe.to_native_frame(values, like=self._frame, columns=columns)


def open_frame(X: Any) -> nw.DataFrame[Any]:
    """A pandas, polars or other data frame, wrapped by narwhals."""
    try:
        return utils.dataframe.into_frame(X)
    except DuplicateError:
        raise RecordError(
            "the frame has two columns of one name", fix="give every feature one column"
        ) from None


def label_values(y: Any) -> tuple[NDArray[Any] | list[Any], Any]:
    """Labels as an array of booleans or numbers, or else as a list; and their name."""
    if isinstance(y, np.ndarray):
        if y.ndim != 1:
            raise RecordError(
                f"the array of labels has shape {y.shape}",
                fix="give one label for each record",
                stage="label",
            )
        return (y if y.dtype.kind in "biuf" else y.tolist()), None
    series = utils.dataframe.into_series(y)
    if (series.dtype.is_numeric() or series.dtype == nw.Boolean) and not series.null_count():
        values = np.asarray(series.to_numpy())
        if values.dtype.kind in "biuf":
            return values, series.name
    return series.to_list(), series.name


def _frame_rows(frame: nw.DataFrame[Any], *, strict: bool) -> NDArray[Any]:
    if frame.implementation.is_pandas_like() and all(t.kind in "biuf" for t in set(frame.to_native().dtypes)):
        other = []  # the usual case, without a look at every column
    else:
        schema = frame.schema
        other = [c for c in frame.columns if not (schema[c].is_numeric() or schema[c] == nw.Boolean)]
    if not other:
        return utils.dataframe.to_numpy(frame)
    rows = np.empty((len(frame), len(frame.columns)))
    numeric = [j for j, c in enumerate(frame.columns) if c not in other]
    if numeric:
        rows[:, numeric] = utils.dataframe.to_numpy(frame[[frame.columns[j] for j in numeric]])
    for column in other:
        rows[:, frame.columns.index(column)] = _numbers(column, frame[column].to_list(), strict=strict)
    return rows


def _numbers(name: Hashable, cells: Sequence[Any], *, strict: bool) -> list[float]:
    """The cells of one column as floats."""
    out = []
    for i, cell in enumerate(cells):
        try:
            out.append(np.nan if _is_missing(cell) else _features.as_number(cell))
        except (TypeError, ValueError, OverflowError):
            if strict:
                raise _features.unusable_value(name, cell, row=i) from None
            out.append(np.nan)
    return out


def _is_missing(cell: object) -> bool:
    """None, pandas.NA or NaT, without importing pandas."""
    return cell is None or type(cell).__name__ in ("NAType", "NaTType")
