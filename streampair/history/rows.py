"""Batches of a table: columns by name, row ids, and which rows are in the sample."""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.dependencies import get_pyarrow
from numpy.typing import NDArray

from streampair.base.targets import Target
from streampair.errors import RecordError
from streampair.kernels import table_sums
from streampair.records.features import short
from streampair.records.frames import open_frame

__all__ = ["Ids", "TableBatch", "block_hashes", "fingerprint", "label_numbers", "read_batch"]

Floats = NDArray[np.float64]
Words = NDArray[np.uint64]

_ODD = np.uint64(0x9E37_79B9_7F4A_7C15)


class TableBatch(NamedTuple):
    """Rows of a batch.

    Attributes
    ----------
    columns
        Columns of the features, in their order, each an array (n,) of numbers or booleans; NaN for a gap.
    labels
        Labels as they came, None for a gap.
    hashes
        Those of their row ids (1, n), or of row ids and entities (2, n).
    kind
        What ids and entities are, in words.
    blocks
        Hashes of the blocks of ids (n,): all rows of a block are in the sample, or none is.
    ends
        The first and the last row id, if they are whole numbers and each is larger than the one before, as
        numbers without a sign; else None.
    """

    columns: list[NDArray[Any]]
    labels: NDArray[Any] | list[Any]
    hashes: Words
    kind: str
    blocks: Words
    ends: tuple[int, int] | None


class Ids(NamedTuple):
    """Hashes of row ids or entities (n,), what these are, `"numbers"` or `"texts"`, and as in a batch."""

    hashes: Words
    kind: str
    blocks: Words
    ends: tuple[int, int] | None = None


def read_batch(
    batch: Any,
    features: Sequence[Hashable],
    label: Hashable,
    row_id: Hashable,
    salt: str,
    entity: Hashable = None,
    shift: int = 0,
) -> TableBatch:
    """Columns of a data frame, an Arrow table, a mapping of arrays, or an array (n, columns).

    A block has 2^shift whole numbers; a text is a block of its own.

    Raises
    ------
    RecordError
        If a column is missing, has another type than it should, or if a row id is missing or occurs twice.
    """
    names, column = _columns_of(batch)
    declared = () if entity is None else (entity,)
    for name in (*features, label, row_id, *declared):
        if name not in names:
            found = ", ".join(short(name) for name in list(names)[:8])
            raise RecordError(
                f"the table has no column {name!r}; it has {found or 'none'}",
                fix="name the columns of the table in features= or bounds=, label=, row_id= and entity=",
            )
    columns = [_numbers(name, column(name)) for name in features]
    labels, ids = _cells(column(label)), _cells(column(row_id))
    owners = [_cells(column(name)) for name in declared]
    lengths = {len(values) for values in (*columns, labels, ids, *owners)}
    if len(lengths) != 1:
        raise RecordError(
            f"the columns have different lengths: {', '.join(map(str, sorted(lengths)))}",
            fix="give one value of each column for every row",
        )
    rows = _hashes(row_id, ids, salt, shift=shift)
    both = [rows, *(_hashes(entity, cells, salt, "entities") for cells in owners)]
    kind = " of entities that are ".join(each.kind for each in both) if len(labels) else ""
    return TableBatch(columns, labels, np.array([each.hashes for each in both]), kind, rows.blocks, rows.ends)


def _columns_of(batch: Any) -> tuple[Mapping[Any, Any], Callable[[Any], Any]]:
    """The names of the columns, as keys, and a function from a name to its column."""
    if isinstance(batch, Mapping):
        columns = {name: np.asanyarray(column) for name, column in batch.items()}  # with its mask
        for name, column in columns.items():
            if column.ndim != 1:
                raise RecordError(
                    f"the column {name!r} has shape {column.shape}", fix="give one value for every row"
                )
        return columns, columns.__getitem__
    if isinstance(batch, np.ndarray):
        if batch.ndim != 2:
            raise RecordError(
                f"the array has shape {batch.shape}",
                fix="give an array (rows, columns), or a mapping from names to columns",
            )
        columns = dict(enumerate(batch.T))
        return columns, columns.__getitem__
    arrow = get_pyarrow()
    if arrow is not None and isinstance(batch, arrow.RecordBatch):
        batch = arrow.Table.from_batches([batch])
    frame = open_frame(batch)
    if arrow is None or not isinstance(batch, arrow.Table):
        return dict.fromkeys(frame.columns), frame.get_column

    def arrow_column(name: Any) -> Any:
        column = batch.column(name)
        kind = column.type
        plain = arrow.types.is_integer(kind) or arrow.types.is_float32(kind) or arrow.types.is_float64(kind)
        return column.to_numpy() if plain and not column.null_count else frame.get_column(name)

    return dict.fromkeys(frame.columns), arrow_column


def _wrong_type(name: Hashable, kind: object, wanted: str, fix: str) -> RecordError:
    return RecordError(f"the column {name!r} is of type {kind}, and {wanted}", fix=fix)


def _numbers(name: Hashable, column: Any) -> NDArray[Any]:
    """A column of numbers or booleans as an array (n,), NaN for gaps."""
    wanted, fix = "features are numbers", "turn it into numbers first, or leave it out of the features"
    if column.dtype in (np.dtype(object), nw.Object):  # as pandas has booleans with gaps
        cells = column.tolist() if isinstance(column, np.ndarray) else column.to_list()
        if all(value is None or type(value) in (bool, int, float) for value in cells):
            return np.array([_number(value) for value in cells])
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "biuf":
            raise _wrong_type(name, column.dtype, wanted, fix)
        if isinstance(column, np.ma.MaskedArray):
            filled: Floats = np.ma.filled(np.ma.asarray(column, dtype=np.float64), math.nan)
            return filled
        return column
    kind = column.dtype
    if not (kind.is_integer() or kind.is_float() or kind == nw.Boolean) or kind in (nw.Int128, nw.UInt128):
        # A column of gaps alone has no type of its own.
        if column.null_count() == len(column):
            return np.full(len(column), math.nan)
        raise _wrong_type(name, kind, wanted, fix)
    if column.null_count():
        column = column.cast(nw.Float64)
    return np.asarray(column.to_numpy())


def _number(value: float | None) -> float:
    """A cell as a double; a gap where there is none, or none holds it."""
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.nan


def _cells(column: Any) -> NDArray[Any] | list[Any]:
    """Cells as an array of numbers or booleans, or else as a list, None for gaps."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind in "biufmM" and not isinstance(column, np.ma.MaskedArray):
            return column
        listed: list[Any] = column.tolist()
        return listed
    kind = column.dtype
    if (kind.is_integer() or kind.is_float() or kind == nw.Boolean) and not column.null_count():
        values = np.asarray(column.to_numpy())
        if values.dtype.kind in "biuf":
            return values
    out: list[Any] = column.to_list()
    return out


# ---- labels ----------------------------------------------------------------------------------------------


def label_numbers(batch: TableBatch, target: Target, name: Hashable) -> Floats:
    """Labels (n,) as numbers in [-1, 1], or of classes; NaN where one cannot be used, as a null row may have.

    Raises
    ------
    RecordError
        If a row with all features has no label, or one that was not declared. The message quotes no label.
    """
    labels = batch.labels
    if not isinstance(labels, np.ndarray):
        out = _listed(labels, target)
    elif target.real_labels or (target.two_classes and labels.dtype.kind == "b"):
        out = target.labels_or_null(labels)
    else:
        distinct, places = np.unique(labels, return_inverse=True)
        signs = np.array([target.label_or_null(value) for value in distinct.tolist()], dtype=np.float64)
        out = signs[places]
    rows = np.flatnonzero(np.isnan(out))
    whole = np.ones(len(rows), dtype=np.bool_)
    for column in batch.columns if len(rows) else ():
        whole &= np.isfinite(column[rows])
    lost = int(np.count_nonzero(whole))
    if lost:
        raise RecordError(
            f"in a batch {lost} {'row has' if lost == 1 else 'rows have'} all features, and in the column "
            f"{name!r} no usable label; {target.advice}",
            fix="declare the labels of the table (input.positive, input.negative; classes of a metric); give "
            "a row without one a label (an empty cell of CSV is none), or, to learn nothing from it, None as "
            "one of its features",
            stage="label",
        )
    return out


def _listed(labels: list[Any], target: Target) -> Floats:
    out = np.empty(len(labels))
    found: dict[tuple[type, Any], float] = {}
    for i, value in enumerate(labels):
        try:
            key = (type(value), value)
            if key not in found:
                found[key] = target.label_or_null(value)
            out[i] = found[key]
        except TypeError:  # a list or a dict
            out[i] = math.nan
    return out


# ---- row ids ---------------------------------------------------------------------------------------------


def _key_of(salt: str) -> bytes:
    return hashlib.blake2b(salt.encode(), digest_size=16, person=b"streampair rows").digest()


def block_hashes(blocks: NDArray[np.int64] | Words, salt: str) -> Words:
    """Hashes (n,) of whole numbers of 64 bits under the public salt."""
    first, second = np.frombuffer(_key_of(salt), dtype="<u8").astype(np.uint64)
    out = np.empty(len(blocks), dtype=np.uint64)
    table_sums.id_hashes(blocks.view(np.uint64), first, second, out)
    return out


def _hashes(
    name: Hashable, ids: NDArray[Any] | list[Any], salt: str, what: str = "row ids", *, shift: int = 0
) -> Ids:
    """Hashes (n,) of the ids, and of their blocks, under the public salt: functions of ids and salt alone.

    One of `what` "row ids" is refused if it occurs twice.
    """
    unique = what == "row ids"
    wanted = f"{what} are whole numbers or texts"
    ends = None
    fix = f"give a column that names {'each row' if unique else 'the entity of each row'}, without gaps"
    if len(ids) == 0:
        return Ids(np.empty(0, dtype=np.uint64), "", np.empty(0, dtype=np.uint64))
    if isinstance(ids, np.ndarray):
        if ids.dtype.kind not in "iuf":
            raise _wrong_type(name, ids.dtype, wanted, fix)
        most = 2.0 ** (1 + np.finfo(ids.dtype).nmant) if ids.dtype.kind == "f" else 0.0
        if ids.dtype.kind == "f" and not bool(((np.abs(ids) < most) & (ids == np.floor(ids))).all()):
            raise _wrong_type(name, ids.dtype, f"{wanted}; some of these are neither", fix)
        whole = ids.astype(np.uint64 if ids.dtype.kind == "u" else np.int64)
        kept, kind = whole.view(np.uint64), "numbers"
        hashes = block_hashes(kept, salt)
        # A number is in the same block whatever its type is.
        blocks = block_hashes(whole >> whole.dtype.type(shift), salt) if shift else hashes
        # Two numbers have two hashes, for mixing is a bijection. Most tables are in the order of their ids.
        ordered = not unique or bool((kept[1:] > kept[:-1]).all())
        room = np.zeros(0 if ordered else 2 ** len(hashes).bit_length(), dtype=np.uint64)
        twice = 0 if ordered else table_sums.repeated(hashes, room)
        ends = (int(kept[0]), int(kept[-1])) if unique and ordered else None
    else:
        if any(type(value) is not str for value in ids):
            if all(type(value) is int for value in ids):
                numbers = np.array(ids)
                if numbers.dtype.kind not in "iu":
                    raise _wrong_type(
                        name, "int", f"some {what} have more than 64 bits", "write them as texts"
                    )
                return _hashes(name, numbers, salt, what, shift=shift)
            kinds = sorted({type(value).__name__ for value in ids if type(value) is not str})
            raise _wrong_type(name, ", ".join(kinds), f"{wanted} without gaps", fix)
        if not unique:  # one entity in two compositions of its characters, as in `EntityLimit`
            ids = [unicodedata.normalize("NFC", value) for value in ids]
        key = _key_of(salt)
        each = b"".join(
            hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest()
            for value in ids
        )
        hashes, kind = np.frombuffer(each, dtype="<u8").astype(np.uint64), "texts"
        blocks = hashes
        twice = len(ids) - len(set(ids)) if unique else 0
    if twice:
        raise RecordError(
            f"{twice} row {'id occurs' if twice == 1 else 'ids occur'} twice in the column {name!r}",
            fix="join tables one to one, and give every row an id of its own: who is in two rows is not "
            "protected as a whole",
        )
    return Ids(hashes, kind, blocks, ends)


def fingerprint(hashes: Words) -> int:
    """A sum over the rows, modulo 2^64, of hashes of ids (1, n), or of pairs of ids and entities (2, n).

    It is the same for any order, and another one for other ids, or other entities of them.
    """
    words = hashes[0] if len(hashes) == 1 else hashes[0] * _ODD + hashes[1]
    return int(table_sums.id_sum(words))
