"""Features of records: names, hashes of names and texts, categories, and conversion of values to arrays."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import re
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, RecordError
from streampair.kernels import random
from streampair.kernels.vectors import MAX_ABS

__all__ = [
    "EXACT",
    "UNREADABLE",
    "Categories",
    "are_rounded",
    "arrange",
    "as_code",
    "as_number",
    "checked_seed",
    "checked_size",
    "code_or_number",
    "copied",
    "digest",
    "frequencies",
    "getter",
    "hashes",
    "in_order",
    "label",
    "number",
    "packed",
    "packed_each",
    "read_record",
    "real",
    "unusable_value",
    "which",
]

Array = NDArray[np.float64]


def digest(seed: int, token: str, bits: int) -> int:
    """Hash of a token with a seed: an integer below 2**bits."""
    salt = seed.to_bytes(16, "little", signed=True)
    text = token.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, salt=salt).digest(), "little") >> (64 - bits)


def checked_seed(seed: Any) -> int:
    """Validate a seed.

    Raises
    ------
    ConfigError
        If it is not an integer of at most 127 bits.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**127) <= seed < 2**127:
        raise ConfigError(
            f"seed is {seed!r}",
            fix="give an integer: the random draws are public, and must be the same after every start",
        )
    return seed


def checked_size(name: str, value: Any) -> int:
    """Validate a number of columns; `name` is that of the parameter.

    Raises
    ------
    ConfigError
        If it is not an integer from 1 to 1000000.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise ConfigError(f"{name} is {value!r}", fix="give an integer from 1 to 1000000")
    return value


@functools.lru_cache(maxsize=16)
def frequencies(
    seed: int, pairs: int, gamma: float, columns: tuple[Hashable, ...]
) -> tuple[tuple[Hashable, ...], Array]:
    """Return the columns in order, and their random Fourier frequencies, (pairs, columns)."""
    names = tuple(in_order(columns))
    out = np.empty((pairs, len(names)))
    column = np.empty(pairs)
    for j, name in enumerate(names):
        random.normals_from_seed(digest(seed, f"{type(name).__name__}:{name}", 62), column)
        out[:, j] = math.sqrt(2.0 * gamma) * column
    return names, out


_QUIET = 0x7FF8_0000_0000_0000
_PAYLOAD = (1 << 51) - 1
_LONG = 100


def as_code(text: str) -> float:
    """Encode a text as a NaN whose payload is a hash of it, the same in every process.

    Two of n texts have the same code with a probability of about n^2 / 2^51. A NaN without a payload is not a
    text.
    """
    # Long texts are not cached, to bound the memory.
    return _code.__wrapped__(text) if len(text) > _LONG else _code(text)


def code_or_number(cell: Any) -> float:
    """`as_code` of a text, and `as_number` of anything else."""
    return as_code(cell) if isinstance(cell, str) else as_number(cell)


@functools.lru_cache(maxsize=4096)
def _code(text: str) -> float:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    bits = _QUIET | (1 + (int.from_bytes(digest, "big") >> 14))
    code: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return code


def which(rows: Array) -> NDArray[np.bool_]:
    """Mask of the cells of an array in C order that are texts."""
    found: NDArray[np.bool_] = np.isnan(rows) & ((rows.view(np.int64) & _PAYLOAD) != 0)
    return found


def hashes(rows: Array) -> NDArray[np.int64]:
    """Hashes of the texts in an array in C order, as `as_code` has encoded them; 0 where there is none."""
    found: NDArray[np.int64] = np.where(np.isnan(rows), rows.view(np.int64) & _PAYLOAD, 0)
    return found


EXACT = 2.0**53
"""Floats represent every integer up to this size."""

UNREADABLE: float = as_code("a column that cannot be read record by record")
"""NaN in all cells of a column whose type does not preserve the cells' values."""

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,4000}", re.ASCII)
_SPECIAL = re.compile(r"[+-]?(?:inf|infinity|nan)", re.ASCII | re.IGNORECASE)
_FLAGS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}


def number(cell: Any) -> float:
    """Convert a number, a boolean or a text of either to a float, as pandas and polars read CSV; may be NaN.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If it is none of these.

    Examples
    --------
    >>> from streampair.records import features
    >>> [features.number(text) for text in (2, "0.5", " 1e3 ", "True")]
    [2.0, 0.5, 1000.0, 1.0]
    """
    if isinstance(cell, str | bytes):
        found = _of_text(_text(cell))
        if found is None:
            raise ValueError("a text that is not a number")
        return float(found)
    return as_number(cell)


def real(cell: Any) -> float | None:
    """`number`, if it is finite, else None. Never raises."""
    try:
        found = number(cell)
    except Exception:  # a value may raise anything
        return None
    return found if abs(found) < np.inf else None


def label(y: Any) -> Any:
    """Convert a label for comparison: a text of a number or a boolean is that number or boolean.

    Examples
    --------
    >>> from streampair.records import features
    >>> features.label("1"), features.label("True"), features.label("fraud"), features.label(0.5)
    (1, True, 'fraud', 0.5)
    """
    if not isinstance(y, str | bytes):
        return y
    text = _text(y)
    found = _of_text(text)
    return text if found is None else found


def are_rounded(values: NDArray[Any] | list[Any]) -> bool:
    """Whether an array of floats has values so large that integers may have been rounded to them."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        return False
    return bool((np.abs(values[np.isfinite(values)]) >= EXACT).any())


def _text(cell: str | bytes) -> str:
    return cell.decode("latin-1") if isinstance(cell, bytes) else str(cell)


def _of_text(text: str) -> float | int | bool | None:
    # Long texts are not cached, to bound the memory.
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


_ONE = struct.Struct("d")


def short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than some thousand digits
        text = f"a value of type {type(value).__name__}, too long to print"
    text = " ".join(text.split())  # the repr of a frame has many lines
    return text if len(text) <= 60 else text[:57] + "..."


def unusable_value(
    name: Hashable, value: object, *, row: int | None = None, limit: float = MAX_ABS
) -> RecordError:
    """Return the error for a value that cannot be learned; it names the feature and a fix."""
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
                problem = f"{where} is an integer beyond the range of a float: {short(value)}"
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
    """Convert any real number to a float, as `struct.pack` does; a text is an error.

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
    """Copy a record into a new dict; an object that is not a record gives an empty one. Never raises."""
    try:
        return dict(x) if isinstance(x, Mapping) else {}
    except Exception:
        return {}


def read_record(
    x: object, limit: float = MAX_ABS, read: Callable[[Any], float] = as_number
) -> dict[Hashable, float]:
    """Convert all features of one record to floats by `read`, each at most `limit` in size.

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
    """Convert all features of a record to floats; None if one cannot be used."""
    try:
        values = dict(x.items())
        numbers = struct.unpack(f"{len(values)}d", struct.pack(f"{len(values)}d", *values.values()))
    except Exception:  # a value may raise anything
        return None
    usable = all(-limit <= number <= limit for number in numbers)
    return dict(zip(values, numbers, strict=True)) if usable else None


def in_order(names: Iterable[Hashable]) -> list[Hashable]:
    """Sort names, so that sums are rounded the same way whatever the order of the features."""
    return sorted(names, key=lambda name: (type(name).__name__, name if type(name) is int else 0, str(name)))


def getter(names: Sequence[Hashable]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of these names of a mapping, in order, as a tuple."""
    if len(names) >= 2:
        return itemgetter(*names)
    if names:
        only = names[0]
        return lambda x: (x[only],)
    return lambda x: ()


def packed(names: Sequence[Hashable], xs: Sequence[Any], limit: float = MAX_ABS) -> Array | None:
    """Pack records into rows (n, d); None unless all have exactly these features, each of them usable."""
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
    except Exception:  # a missing name, or a value that struct refuses
        return None
    return rows if (np.abs(rows) <= limit).all() else None


def packed_each(
    names: Sequence[Hashable],
    xs: Sequence[Any],
    limit: float,
    other: Callable[[int], Sequence[float] | None],
) -> Array | None:
    """As `packed`, with the values (d,) that `other` returns for the index of a record that cannot be packed.

    None if `other` returns None, or if there are no features or no records.
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
        except Exception:  # `other` decides
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
    columns: Sequence[Hashable],
    rows: Array,
    names: Sequence[Hashable],
    index: Mapping[Hashable, int],
    missing: float = 0.0,
) -> Array:
    """Return rows with their columns in the order of `names`.

    Absent ones are `missing`, unknown ones left out.
    """
    if list(columns) == list(names):
        return rows
    known = [j for j, column in enumerate(columns) if column in index]
    if len(known) == len(names):
        place = [index[columns[j]] for j in known]
        order = np.empty(len(names), dtype=np.intp)
        order[place] = known
        return np.take(rows, order, axis=1)
    out = np.full((rows.shape[0], len(names)), missing)
    out[:, [index[columns[j]] for j in known]] = rows[:, known]
    return out


class Categories:
    """Maps a value of a field to the one of its columns that is 1.

    Parameters
    ----------
    values
        ``{field: [value, ...]}``: texts, integers or booleans, each once.
    read
        Function that makes a value comparable. By default a text that can be read as a number is that number,
        as in a data frame where one text makes texts of a whole column.

    Raises
    ------
    ConfigError
        If a field has no value, a value is repeated or has another type, or two columns have the same name.

    Attributes
    ----------
    columns
        ``field=value``, fields and values as declared.
    places
        For each field, the column of each value as `read` returns it.

    Examples
    --------
    >>> of = Categories({"country": ["NL", "BE"], "card": ["debit"]})
    >>> of.columns
    ['country=NL', 'country=BE', 'card=debit']
    >>> of.column("country", "BE"), of.column("country", "FR"), of.column("country", None)
    (1, None, None)
    """

    __slots__ = ("_read", "columns", "places")

    def __init__(self, values: Mapping[Any, Sequence[Any]], read: Callable[[Any], Any] = label) -> None:
        self._read = read
        if not isinstance(values, Mapping) or not values:
            raise ConfigError(
                f"the declared values are {values!r}", fix="give a dict such as {'country': ['NL', 'BE']}"
            )
        self.columns: list[str] = []
        self.places: dict[Hashable, dict[Hashable, int]] = {}
        for field, declared in values.items():
            if isinstance(declared, str | bytes) or not isinstance(declared, Iterable):
                raise ConfigError(
                    f"the values of {field!r} are {declared!r}", fix="give a list such as ['NL', 'BE']"
                )
            places = self.places[field] = {}
            for value in declared:
                if not isinstance(value, str | int):
                    raise ConfigError(
                        f"a value of {field!r} is {value!r}", fix="give texts, integers or booleans"
                    )
                if read(value) in places:
                    raise ConfigError(f"{value!r} is twice among the values of {field!r}", fix="name it once")
                places[read(value)] = len(self.columns)
                self.columns.append(f"{field}={value}")
                if not self.columns[-1].isprintable():
                    raise ConfigError(
                        f"{self.columns[-1]!r} would be the name of a column", fix="declare printable text"
                    )
            if not places:
                raise ConfigError(f"{field!r} has no values", fix="declare at least one value")
        if len(set(self.columns)) < len(self.columns):
            twice = next(name for name in self.columns if self.columns.count(name) > 1)
            raise ConfigError(
                f"two of the declared values make a column {twice!r}", fix="rename a field or a value"
            )

    def column(self, field: Hashable, value: object) -> int | None:
        """Index of the column that is 1 for this value of the field; None: missing or not declared."""
        try:
            return self.places[field].get(self._read(value))
        except Exception:  # a value without a hash, such as a list, is not declared
            return None
