"""What is in a record: features and labels as numbers, hashes of texts, categories, and design vectors."""

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
from streampair.kernels import random, vectors
from streampair.kernels.vectors import MAX_ABS

__all__ = [
    "EXACT",
    "UNREADABLE",
    "Categories",
    "Design",
    "StartVectors",
    "TwoLabels",
    "are_rounded",
    "arrange",
    "as_code",
    "as_number",
    "check_finite",
    "check_scored",
    "checked_seed",
    "checked_size",
    "code_or_number",
    "copied",
    "digest",
    "frequencies",
    "getter",
    "hashes",
    "in_order",
    "indicator",
    "is_missing",
    "is_wide",
    "label",
    "number",
    "packed",
    "packed_each",
    "read_record",
    "real",
    "spelled",
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


def code_bits(hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bits of the codes of texts with these hashes."""
    return hashes | _QUIET


def indicator(name: Hashable, text: str) -> str:
    """The name of the feature that says that another one is this text.

    A text of more than 100 characters counts by its digest: names are kept as long as the learner. So does
    one with half of a surrogate pair, which no file of a model can have.

    Examples
    --------
    >>> from streampair.records.features import indicator
    >>> indicator("country", "NL"), len(indicator("note", "x" * 1_000_000))
    ('country=NL', 38)
    """
    if len(text) > _LONG or not _is_utf8(text):
        text = "#" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{name}={text}"


def _is_utf8(text: str) -> bool:
    """Whether a text has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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
_BOOLEANS = {"true": True, "false": False}
_ANSWERS = {**_BOOLEANS, "yes": True, "no": False}
_BLANKS = " \t\r\n\f\v"


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


def is_wide(cell: Any) -> bool:
    """Whether it is a number so large that floats cannot distinguish it from its neighbours. Never raises."""
    found = real(cell)
    return found is not None and abs(found) >= EXACT


def spelled(value: Any) -> Any:
    """The number or boolean that a text spells, as pandas and polars read CSV; other values as given.

    Examples
    --------
    >>> from streampair.records import features
    >>> [features.spelled(value) for value in ("1", "+1.50e1", "True", "debit", 0.5)]
    [1, 15.0, True, 'debit', 0.5]
    """
    if not isinstance(value, str | bytes):
        return value
    text = _text(value)
    found = _of_text(text)
    return text if found is None else found


def label(y: Any, *, several: bool = False) -> Any:
    """The meaning of a label: the one rule of learners, metrics, decoders and configurations.

    A text that spells a number means that number, and one that spells a boolean that boolean: true and false,
    yes and no, in upper or lower case. Blanks around it do not count. Any other text is a class. Labels of
    equal meaning are one label, so that 1, 1.0, True, "1" and "yes" are one. The text of NaN means NaN, which
    is an unknown label.

    Parameters
    ----------
    y
        A label.
    several
        Whether there may be more than two classes, of which yes and no are texts as any other: NO is a
        country as well.

    Returns
    -------
    object
        A number, a boolean or a text; anything else as given.

    Examples
    --------
    >>> from streampair.records import features
    >>> [features.label(y) for y in ("1", "True", "no", " fraud ", 0.5)]
    [1, True, False, 'fraud', 0.5]
    >>> features.label("NO", several=True)
    'NO'
    """
    found = spelled(y)
    if not isinstance(found, str):
        return found
    text = found.strip(_BLANKS)
    return (_BOOLEANS if several else _ANSWERS).get(text.lower(), text)


def _kind(label: Any) -> str | None:
    """Type of a label in words; None: not a label."""
    if isinstance(label, str):
        return "text"
    if isinstance(label, bytes):
        return "bytes"
    if isinstance(label, bool | np.bool_):
        return "a boolean"
    return "a number" if isinstance(label, int | float | np.integer | np.floating) else None


def _opposite(label: Any) -> Any:
    """The other of two labels, such as False for True and 0 for 1; None if the type has more values."""
    if _kind(label) not in ("a boolean", "a number") or label not in (0, 1):
        return None
    return not label if _kind(label) == "a boolean" else 1 - label


#: Labels that are known to come together, the one that ranks high first.
_KNOWN_PAIRS = [
    *(("y", "n"), ("t", "f"), ("positive", "negative"), ("pos", "neg")),
    *((True, False), (1, 0), (1, -1), (2, 1)),
]
_UNSEEN = "..."
_LONGEST_LABEL = 60


def _pair_of(y: Any) -> tuple[Any, Any]:
    """Two labels one of which is y, the one that probably ranks high first."""
    key = y.lower() if isinstance(y, str) else y
    for high, low in _KNOWN_PAIRS:
        if any(_kind(each) == _kind(key) and each == key for each in (high, low)):
            return _cased(high, y), _cased(low, y)
    if _kind(y) == "text":
        return y, _UNSEEN
    return (y, 0) if y > 0 else (0, y)


def _cased(word: Any, like: Any) -> Any:
    """A text in upper case, or capitalised, where another one is."""
    if not isinstance(word, str):
        return word
    return word.upper() if like.isupper() else word.capitalize() if like.istitle() else word


class TwoLabels:
    """The positive and the negative label of a binary task.

    Labels are compared by their meaning (`label`), so 1, 1.0, True, "1" and "yes" are equal.

    Parameters
    ----------
    positive
        The label that ranks high: text, a number, True or False.
    negative
        The label that ranks low; any third label is then an error. None: the opposite of True, False, 1 or 0;
        for any other `positive`, all other labels of its type.

    Raises
    ------
    ConfigError
        If one of them is not a label, or both are the same.

    Attributes
    ----------
    positive
        As given.
    negative
        The label that ranks low; None: all other labels of the type of `positive`.
    high, low
        What both mean.

    Examples
    --------
    >>> from streampair.records.features import TwoLabels
    >>> TwoLabels(True).negative, TwoLabels(1).negative, TwoLabels("fraud").negative
    (False, 0, None)
    >>> TwoLabels(True).sign(0.0), TwoLabels(True).sign("Yes"), TwoLabels("fraud").sign("fine")
    (-1.0, 1.0, -1.0)
    """

    def __init__(self, positive: Any, negative: Any = None) -> None:
        high, low = label(positive), label(negative)
        if high is None or (isinstance(high, float) and math.isnan(high)):
            raise ConfigError(
                f"positive is {positive!r}, which marks an unknown label",
                fix="name the label that ranks high, for example True, 1 or 'fraud'",
            )
        for name, value in (("positive", positive), ("negative", negative)):
            if value is not None and (_kind(value) is None or value != value):
                raise ConfigError(
                    f"{name} is {short(value)}, which is not a label",
                    fix="give text, a number, True or False",
                )
        if negative is not None and low == high:
            raise ConfigError(
                f"positive and negative are both {positive!r}"
                if positive == negative
                else f"positive={positive!r} and negative={negative!r} are the same label",
                fix="give two different labels",
            )
        self.positive = positive
        # The negative label of "1" is not 0: predictions have the stream's labels.
        self.negative = _opposite(positive) if negative is None else negative
        self.high, self.low = high, label(self.negative)

    def sign(self, y: Any) -> float:
        """+1 for the label that ranks high, -1 for one that ranks low.

        Raises
        ------
        RecordError
            If the label is unknown (None, NaN or masked), cannot be compared, or is neither.
        """
        value, y = y, label(y)
        try:
            differs = y != y
            unknown = y is None or differs is np.ma.masked or bool(differs)
            high = bool(y == self.high)
            low = not high and self._is_low(y)
        except (TypeError, ValueError):  # an array, or pandas.NA
            raise RecordError(
                f"the label is not a single known value: {short(value)}",
                fix="give one label, for example True or False",
                stage="label",
            ) from None
        if unknown:
            raise RecordError(
                f"the label is {value!r}, so it is unknown",
                fix="learn the record when its label is there, or leave it out",
                stage="label",
            )
        if high or low:
            return 1.0 if high else -1.0
        raise RecordError(
            f"the label is {short(value)}, and {self._named()}", fix=self._fix(value), stage="label"
        )

    def declared(self, y: Any) -> Any:
        """The label of the two that y is, as it was declared; None: a negative one that was not.

        Raises
        ------
        RecordError
            As of `sign`.
        """
        return self.positive if self.sign(y) > 0.0 else self.negative

    def pair_with(self, y: Any) -> tuple[Any, Any] | None:
        """The two labels to declare where y is one, the positive one first; None: y can be none.

        Examples
        --------
        >>> TwoLabels(True).pair_with("N"), TwoLabels("fraud", "ok").pair_with("legit")
        (('Y', 'N'), ('fraud', 'legit'))
        """
        y = label(y.item() if isinstance(y, np.generic) else y, several=True)
        if _kind(y) is None or (isinstance(y, str) and not 0 < len(y) <= _LONGEST_LABEL):
            return None
        if not isinstance(y, str) and not abs(y) < np.inf:
            return None
        declared = isinstance(self.positive, str) or self.negative != _opposite(self.positive)
        if declared and _kind(y) == _kind(self.positive):
            return self.positive, y
        return _pair_of(y)

    def _is_low(self, y: Any) -> bool:
        return _kind(y) == _kind(self.high) if self.low is None else bool(y == self.low)

    def _named(self) -> str:
        """Describe the known labels, for an error."""
        if self.negative is None:
            return f"positive={self.positive!r} is {_kind(self.high)}"
        return f"there are only positive={self.positive!r} and negative={self.negative!r}"

    def _fix(self, y: Any) -> str:
        """The constructor arguments with which y is a label."""
        pair = self.pair_with(y)
        if pair is None:
            return "give text, a number, True or False as label"
        return f"name both labels: positive={pair[0]!r}, negative={pair[1]!r}; or the other way round"


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
    text = text.strip(_BLANKS)
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
    return RecordError(problem, fix=fix, stage="features", row=row)


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


def is_missing(cell: object) -> bool:
    """Whether a cell is None, NumPy's masked, pandas.NA or NaT; does not import pandas."""
    return cell is None or cell is np.ma.masked or type(cell).__name__ in ("NAType", "NaTType")


def present(x: Mapping[Any, Any]) -> dict[Any, Any]:
    """The features of a record that are not missing: without those that are None, NaN or `pandas.NA`."""
    return {name: cell for name, cell in x.items() if not (is_missing(cell) or _is_nan(cell))}


def _is_nan(cell: object) -> bool:
    try:
        return math.isnan(as_number(cell))
    except Exception:  # a text, or no number; a value may raise anything
        return False


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
    if not d or set(map(type, xs)) != {dict} or set(map(len, xs)) != {d}:
        return None
    rows = np.empty((len(xs), d))
    try:
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

    def __init__(self, values: Mapping[Any, Sequence[Any]], read: Callable[[Any], Any] = spelled) -> None:
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
                        f"a value of {field!r} is {value!r}", fix="give strings, integers or booleans"
                    )
                if read(value) in places:
                    raise ConfigError(f"{value!r} is twice among the values of {field!r}", fix="name it once")
                places[read(value)] = len(self.columns)
                self.columns.append(f"{field}={value}")
                if not self.columns[-1].isprintable():
                    raise ConfigError(
                        f"{self.columns[-1]!r} would be the name of a column", fix="declare printable strings"
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


def check_scored(x: Any, names: Sequence[Hashable] | None = None) -> list[float]:
    """Values of a record to be scored, for these names or all of its features; missing ones are NaN.

    Raises
    ------
    RecordError
        If the record is empty or not a mapping, cannot be read, or a value is not a finite number.
    """
    try:
        return _values(x, names)
    except RecordError:
        raise
    except Exception as error:  # a mapping or a value may raise anything
        raise RecordError(
            f"the record cannot be read: it raises {type(error).__name__}",
            fix="give a dict of numbers",
            stage="features",
        ) from None


def _values(x: Any, names: Sequence[Hashable] | None) -> list[float]:
    if not isinstance(x, Mapping) or not x:
        read_record(x)
    values = []
    for name in x if names is None else names:
        if name not in x:
            values.append(math.nan)
            continue
        try:
            value = number(x[name])
        except (TypeError, ValueError, OverflowError):
            raise unusable_value(name, x[name]) from None
        if not math.isfinite(value):
            raise unusable_value(name, x[name])
        values.append(value)
    return values


def check_finite(columns: list[Hashable], rows: Array, known: list[int]) -> None:
    """RecordError for the first known feature that is not finite."""
    if vectors.unusable_row(rows, vectors.MAX_FINITE):  # perhaps only in a feature that is not known
        bad = np.argwhere(~np.isfinite(rows[:, known]))
        if len(bad):
            i, j = int(bad[0][0]), known[int(bad[0][1])]
            raise unusable_value(columns[j], float(rows[i, j]), row=i)


class StartVectors:
    """From raw rows to the vectors that the weights of a start model multiply.

    Parameters
    ----------
    scaling
        Scale, shift, mean and factor of each feature, (4, d), 0 for one that the model does not know. None:
        the weights multiply raw values, of which missing ones are 0.
    standardised
        Whether mean and factor are used.
    cap
        Bound of standardised values.
    centre
        Without `scaling`: what is taken from the raw values, (d,).
    """

    def __init__(
        self,
        scaling: Array | None,
        standardised: bool = False,
        cap: float = math.inf,
        centre: Array | None = None,
    ) -> None:
        self.scaling = scaling
        self.centre = centre
        self.standardised = standardised
        self.cap = cap

    def prepare(self, raw: Array, ready: Array, usable: Array) -> None:
        """As `Design.prepare`."""
        if self.scaling is not None:
            vectors.prepare_rows(raw, self.scaling, self.standardised, self.cap, ready, usable)
            return
        finite = np.abs(raw) <= vectors.MAX_FINITE
        usable[:] = finite.all(axis=1)
        np.clip(np.where(finite, raw, 0.0), -vectors.MAX_ABS, vectors.MAX_ABS, out=ready)
        if self.centre is not None:
            ready -= self.centre


class Design:
    """A fixed feature set with declared bounds, and with released moments after the warm-up.

    Parameters
    ----------
    names
        Feature names. The columns are in their sorted order, whatever the order given.
    bounds
        Declared (low, high) of some of them; the others are assumed to be in [-1, 1].

    Attributes
    ----------
    names, index
        The columns in order, and the column of each name.
    raw, ready, usable, label
        Buffers for one record: raw values (1, d), its design (1, d), whether all values are finite (1,), and
        its label (1,).
    cells
        Raw values and label, (d + 1,): `raw` and `label` are views of it.
    mean, factor
        Released mean, and factor, of scaled values, (d,), used if `standardised`: views of `scaling`.
    scaling
        Scale, shift, `mean` and `factor` of the values: (4, d).
    cap
        Bound that standardised values are clipped to.
    clipped
        Buffer for one record of the warm-up, (1, d).
    start
        Vectors of the model that records are scored with until the moments are released; None: of itself.
    width, chunk
        Number of columns of a design, d or more, and number of rows prepared at a time.
    """

    chunk = 1024

    #: Score of a design by weights; a callable without a frame of its own, since each record needs it.
    dot: Callable[[Array, Array], float] = staticmethod(vectors.dot)

    def __init__(self, names: Sequence[Hashable], bounds: Mapping[Hashable, tuple[float, float]]) -> None:
        self.names: tuple[Hashable, ...] = tuple(in_order(names))
        self.index = {name: i for i, name in enumerate(self.names)}
        d = len(self.names)
        low, high = np.array([bounds.get(name, (-1.0, 1.0)) for name in self.names]).T
        self.scaling = np.array([2.0 / (high - low), -(high + low) / (high - low), np.zeros(d), np.ones(d)])
        self.mean, self.factor = self.scaling[2:]
        self.cap = math.inf
        self.standardised = False
        self.start: StartVectors | Design | None = None
        self.cells = np.empty(d + 1)
        self.raw, self.label = self.cells[:d].reshape(1, d), self.cells[d:]
        self.clipped = self.ready = np.empty((1, d))
        self.width = d
        self.usable = np.empty(1)
        self._buf = memoryview(self.cells)  # type: ignore[arg-type]
        self._take = getter(self.names)
        self._pack = struct.Struct(f"{d + 1}d").pack_into

    def read_learned(self, x: Any, label: float = math.nan) -> int:
        """Pack a record to be learned into `cells`; returns the number of its features outside the set.

        Missing values, and values that are not numbers, become NaN. Never raises: an error would disclose
        that a record cannot be used.
        """
        try:
            values = self._take(x)
            self._pack(self._buf, 0, *values, label)
            return len(x) - len(values)
        except Exception:
            raw, self.label[0] = self.raw[0], label
            for i, name in enumerate(self.names):
                try:
                    raw[i] = number(x[name])
                except Exception:
                    raw[i] = math.nan
            try:
                return sum(name not in self.index for name in x) if isinstance(x, Mapping) else 0
            except Exception:  # a mapping that cannot be read
                raw.fill(math.nan)
                return 0

    def record_id(self, context: bytes | None) -> bytes:
        """Identity of the record in `cells`: the caller's context, or else its own bytes."""
        return b"own" + self.cells.tobytes() if context is None else b"told" + context

    def whole(self, x: Any) -> bool:
        """Prepare a dict that has all features, each a finite number; False if it has not.

        If True, `raw` and `ready` are as after `read_learned` and `of`; if False, they are undefined.
        """
        try:
            values = self._take(x)
            if x.__class__ is not dict:
                return False
            self._pack(self._buf, 0, *values, math.nan)
        except Exception:
            return False
        self.prepare(self.raw, self.ready, self.usable)
        return bool(self.usable[0])

    def of(self, x: Any) -> Array:
        """Return the design (d,) of a record to be scored, valid until the next call; missing features are 0.

        Raises
        ------
        RecordError
            If the record is empty, or a feature in the set is not a finite number.
        """
        if not self.whole(x):
            self._pack(self._buf, 0, *check_scored(x, self.names), math.nan)
            self.prepare(self.raw, self.ready, self.usable)
        row: Array = self.ready[0]
        return row

    def arranged(self, columns: Sequence[Hashable], rows: Array) -> Array:
        """Rows (n, columns) in the order of the features, (n, d); absent columns are NaN."""
        if tuple(columns) == self.names:
            return np.ascontiguousarray(rows)
        out = np.full((len(rows), len(self.names)), math.nan)
        for j, column in enumerate(columns):
            index = self.index.get(column)
            if index is not None:
                out[:, index] = rows[:, j]
        return out

    def standardise(self, mean: Array, factor: Array) -> None:
        """Standardise later records with released moments."""
        self.mean[:], self.factor[:], self.standardised = mean, factor, True
        self.start = None

    @property
    def slope(self) -> Array:
        """Derivative of each design coordinate in its feature, where nothing is clipped, (d,)."""
        out: Array = self.scaling[0] * self.factor
        return out

    def prepare(self, raw: Array, ready: Array, usable: Array) -> None:
        """Write designs of raw rows into `ready`, and 1 into `usable` for rows that are all finite or 0."""
        if self.start is not None:
            self.start.prepare(raw, ready, usable)
            return
        vectors.prepare_rows(raw, self.scaling, self.standardised, self.cap, ready, usable)

    def prepared(self, raw: Array) -> Array:
        """Designs (n, width) of raw rows."""
        ready = np.empty((len(raw), self.width))
        self.prepare(raw, ready, np.empty(len(raw)))
        return ready

    def scores(self, weights: Array, raw: Array, out: Array) -> None:
        """Write linear scores (n,) of raw rows into `out`, in chunks: designs can be longer than rows."""
        for start in range(0, len(raw), self.chunk):
            part = raw[start : start + self.chunk]
            self.score_rows(weights, self.prepared(part), out[start : start + len(part)])

    def score_rows(self, weights: Array, rows: Array, out: Array) -> None:
        """Write scores (n,) of designs (n, width) into `out`."""
        vectors.score_many(weights, rows, out)

    def clip(self, raw: Array, ready: Array, usable: Array) -> None:
        """Write raw rows, scaled and clipped to [-1, 1], into `ready`, and 0 for rows not all finite."""
        vectors.clip_rows(raw, self.scaling, ready, usable)
