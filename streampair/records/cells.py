"""What one cell is: a function of the cell alone, whatever type its column has (docs/privacy.md 7.1).

A frame has one type a column. One text in a CSV file makes text of all numbers of its column, so a text that
reads as a number is that number, in a record and in a frame alike.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.records import features as _features
from streampair.records.texts import as_code

__all__ = ["EXACT", "UNREADABLE", "are_rounded", "label", "number", "real"]

EXACT = 2.0**53
"""Floats tell whole numbers apart up to here."""

UNREADABLE: float = as_code("a column that cannot be read record by record")
"""The NaN in all cells of a column whose type has lost what its cells were."""

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,4000}", re.ASCII)
_SPECIAL = re.compile(r"[+-]?(?:inf|infinity|nan)", re.ASCII | re.IGNORECASE)
_FLAGS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
_LONG = 100


def number(cell: Any) -> float:
    """A number, a truth value, or a text that reads as one, as pandas and polars read CSV: perhaps NaN.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If it is none of these.

    Examples
    --------
    >>> from streampair.records import cells
    >>> cells.number(2), cells.number("0.5"), cells.number(" 1e3 "), cells.number("True")
    (2.0, 0.5, 1000.0, 1.0)
    """
    if isinstance(cell, str | bytes):
        found = _of_text(_text(cell))
        if found is None:
            raise ValueError("a text that is no number")
        return float(found)
    return _features.as_number(cell)


def real(cell: Any) -> float | None:
    """`number`, if it is finite, else None. Never raises."""
    try:
        found = number(cell)
    except Exception:  # whatever it is: a value may bring its own
        return None
    return found if abs(found) < np.inf else None


def label(y: Any) -> Any:
    """What a label is compared as: a text that reads as a number or a truth value is that.

    Examples
    --------
    >>> from streampair.records import cells
    >>> cells.label("1"), cells.label("True"), cells.label("fraud"), cells.label(0.5)
    (1, True, 'fraud', 0.5)
    """
    if not isinstance(y, str | bytes):
        return y
    text = _text(y)
    found = _of_text(text)
    return text if found is None else found


def are_rounded(values: NDArray[Any] | list[Any]) -> bool:
    """Whether there are whole numbers in an array of floats which floats cannot tell apart."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        return False
    return bool((np.abs(values[np.isfinite(values)]) >= EXACT).any())


def _text(cell: str | bytes) -> str:
    return cell.decode("latin-1") if isinstance(cell, bytes) else str(cell)


def _of_text(text: str) -> float | int | bool | None:
    # Long texts are not remembered: a thousand of them could be much.
    return _read.__wrapped__(text) if len(text) > _LONG else _read(text)


@functools.lru_cache(maxsize=4096)
def _read(text: str) -> float | int | bool | None:
    text = text.strip(" \t\r\n\f\v")
    if text in _FLAGS:
        return _FLAGS[text]
    if _WHOLE.fullmatch(text):
        whole = int(text)
        try:
            float(whole)
        except OverflowError:
            return float(text)  # infinite
        return whole
    if _NUMBER.fullmatch(text) or _SPECIAL.fullmatch(text):
        return float(text)
    return None
