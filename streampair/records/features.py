"""Feature names to columns and back, and the checks that every record passes before anything changes."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.errors import RecordError
from streampair.kernels import MAX_ABS

__all__ = [
    "arrange",
    "as_number",
    "copied",
    "getter",
    "in_order",
    "packed",
    "packed_each",
    "read_record",
    "unusable_value",
]

Array = NDArray[np.float64]
_ONE = struct.Struct("d")


def short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes out no whole number of more than some thousand digits
        text = f"a value of type {type(value).__name__}, too long to write out"
    text = " ".join(text.split())  # a frame has many lines
    return text if len(text) <= 60 else text[:57] + "..."


def unusable_value(
    name: Hashable, value: object, *, row: int | None = None, limit: float = MAX_ABS
) -> RecordError:
    """The error for one value that cannot be learned from; names the feature and the way out."""
    where = f"feature {name!r}" if row is None else f"feature {name!r} in row {row}"
    if value is None:
        problem, fix = f"{where} is None", "fill it in, or leave the feature out of the record"
    elif isinstance(value, str | bytes | bytearray):
        problem = f"{where} is text: {short(value)}"
        fix = "turn it into a number first, for example with river.preprocessing.OneHotEncoder"
    else:
        try:
            number = as_number(value)
        except (TypeError, ValueError, OverflowError):
            problem = f"{where} is not a number: {short(value)}"
            fix = "give a real number"
            if isinstance(value, int):
                problem = f"{where} is a whole number beyond the range of a float: {short(value)}"
                fix = "scale it first, or give its logarithm"
        else:
            if number != number:
                problem, fix = f"{where} is NaN", "fill it in, or leave the feature out of the record"
            elif abs(number) == float("inf"):
                problem, fix = f"{where} is infinite", "clip it to a finite range first"
            else:
                problem = f"{where} is {number:g}, beyond the limit of {limit:g}"
                fix = "scale it first, for example with streampair.preprocessing.Bounds"
    return RecordError(problem, fix=fix, stage="features")


def as_number(value: object) -> float:
    """What the packed fast path makes of a value: any real number, never text.

    Raises
    ------
    TypeError, OverflowError
        If the value is not a real number, or an integer too large for a float.
    """
    try:
        number: float = _ONE.unpack(_ONE.pack(value))[0]
    except struct.error as error:
        raise TypeError(str(error)) from None
    return number


def copied(x: Any) -> dict[Any, Any]:
    """A new dict of what a record holds, and an empty one of what is no record. Never raises."""
    try:
        return dict(x) if isinstance(x, Mapping) else {}
    except Exception:
        return {}


def read_record(
    x: object, limit: float = MAX_ABS, read: Callable[[Any], float] = as_number
) -> dict[Hashable, float]:
    """All features of one record as `read` makes floats of them, each checked to be at most `limit` in size.

    Raises
    ------
    RecordError
        Naming the first feature that is text, None, NaN, infinite or beyond the limit, or if the record has
        no feature at all or is not a mapping.
    """
    if not isinstance(x, Mapping):
        raise RecordError(
            f"the record is not a mapping from names to numbers: {short(x)}",
            fix="give a dict such as {'amount': 12.5}; a data frame goes to learn_many",
        )
    if not x:
        raise RecordError("the record has no features", fix="give at least one feature")
    at_once = _all_usable(x, limit)
    if at_once is not None:
        return at_once
    out: dict[Hashable, float] = {}
    for name, value in x.items():
        try:
            number = read(value)
        except (TypeError, ValueError, OverflowError):
            raise unusable_value(name, value) from None
        if not abs(number) <= limit:
            raise unusable_value(name, value, limit=limit)
        out[name] = number
    return out


def _all_usable(x: Mapping[Any, Any], limit: float) -> dict[Hashable, float] | None:
    """All features of a record as floats, None if one cannot be used: `read_record` then finds which."""
    try:
        given = dict(x.items())
        numbers = struct.unpack(f"{len(given)}d", struct.pack(f"{len(given)}d", *given.values()))
    except Exception:  # whatever it is: a value may bring its own
        return None
    usable = all(-limit <= number <= limit for number in numbers)
    return dict(zip(given, numbers, strict=True)) if usable else None


def in_order(names: Iterable[Hashable]) -> list[Hashable]:
    """Names in an order that does not depend on how they came, so that sums round the same way."""
    return sorted(names, key=lambda name: (type(name).__name__, name if type(name) is int else 0, str(name)))


def getter(names: Sequence[Hashable]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that takes the values of the names, in order, out of a mapping as a tuple."""
    if len(names) >= 2:
        return itemgetter(*names)
    if names:
        only = names[0]
        return lambda x: (x[only],)
    return lambda x: ()


def packed(names: Sequence[Hashable], xs: Sequence[Any], limit: float = MAX_ABS) -> Array | None:
    """Rows (n, d) of records that have exactly these features, all usable; None if one of them has not."""
    d = len(names)
    rows = np.empty((len(xs), d))
    if not rows.size:
        return None
    try:
        if set(map(type, xs)) != {dict} or set(map(len, xs)) != {d}:
            return None
        struct.pack_into(
            f"{rows.size}d", rows.data, 0, *itertools.chain.from_iterable(map(getter(names), xs))
        )
    except Exception:  # a name that is missing, or a value that struct refuses
        return None
    return rows if (np.abs(rows) <= limit).all() else None


def packed_each(
    names: Sequence[Hashable],
    xs: Sequence[Any],
    limit: float,
    other: Callable[[int], Sequence[float] | None],
) -> Array | None:
    """As `packed`, with the values (d,) that `other` gives for the index of a record that is not whole.

    None as soon as `other` gives none, and where there are no features or no records.
    """
    rows = packed(names, xs, limit)
    if rows is not None or not names or not xs:
        return rows
    d, take, odd = len(names), getter(names), set()
    rows = np.empty((len(xs), d))
    pack, size, place = struct.Struct(f"{d}d").pack_into, 8 * d, rows.data.cast("B")
    for i, x in enumerate(xs):
        try:
            if type(x) is not dict or len(x) != d:
                raise KeyError
            pack(place, i * size, *take(x))
        except Exception:  # whatever it is, `other` says what becomes of it
            found = other(i)
            if found is None:
                return None
            rows[i] = found
            odd.add(i)
    for i in np.flatnonzero(~(np.abs(rows) <= limit).all(axis=1)).tolist():
        found = rows[i] if i in odd else other(i)
        if found is None:
            return None
        rows[i] = found
    return rows


def arrange(
    columns: Sequence[Hashable], rows: Array, names: Sequence[Hashable], index: Mapping[Hashable, int]
) -> Array:
    """Rows with their columns in the order of `names`: absent ones 0, unknown ones left out."""
    if list(columns) == list(names):
        return rows
    known = [j for j, column in enumerate(columns) if column in index]
    if len(known) == len(names):
        place = [index[columns[j]] for j in known]
        order = np.empty(len(names), dtype=np.intp)
        order[place] = known
        return np.take(rows, order, axis=1)
    out = np.zeros((rows.shape[0], len(names)))
    out[:, [index[columns[j]] for j in known]] = rows[:, known]
    return out
