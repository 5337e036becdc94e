"""Every record of the past, in blocks that never move.

A kernel cannot take a list of arrays that grows, so it gets a table (blocks, 4) of int64: address of the
rows, address of the labels, columns, rows of room. The rows of a block are float64 or, if `single`, float32,
in the order of arrival; the labels are float64. Names that came after a block was opened count as 0 in its
rows. `streampair.base.buffer_storage.RecordBlocks` owns the memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from streampair.kernels._jit import DISABLED, Array, kernel
from streampair.kernels.losses import loss_of_errors, pair_slope
from streampair.kernels.ogd import first_large, link_record, move, published_score, ridge
from streampair.kernels.scaling import (
    GRADIENT,
    WEIGHTS,
    column,
    effects,
    observe_row,
)
from streampair.kernels.state import (
    BLOCKS,
    FILLED,
    HEADER,
    LOSS,
    NO_ROOM,
    RECORDS,
    SINGLE,
    SIZE,
    TABLE,
    WIDTH,
    D,
)
from streampair.kernels.vectors import MAX_ABS, TILE, dot, first_beyond, unusable_row, view

MAX_SINGLE = 3.4028234663852886e38  # largest float32


def _as_pointer(typing_context: Any, address: Any) -> Any:
    """An address as a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


_pointer: Any = intrinsic(_as_pointer)


if DISABLED:

    class _Memory:
        """Memory at an address, for numpy."""

        def __init__(self, address: int, shape: tuple[int, int], kind: str) -> None:
            data = (int(address), False)
            self.__array_interface__ = {"version": 3, "shape": shape, "typestr": kind, "data": data}

    def doubles(address: int, rows: int, columns: int) -> Array:
        return np.asarray(_Memory(address, (rows, columns), "=f8"))

    def singles(address: int, rows: int, columns: int) -> NDArray[np.float32]:
        return np.asarray(_Memory(address, (rows, columns), "=f4"))

    def _integers(address: int, rows: int, columns: int) -> NDArray[np.int64]:
        return np.asarray(_Memory(address, (rows, columns), "=i8"))

else:

    @kernel
    def doubles(address: int, rows: int, columns: int) -> Array:
        """The float64 matrix at an address."""
        return carray(_pointer(address), (rows, columns), np.float64)

    @kernel
    def singles(address: int, rows: int, columns: int) -> NDArray[np.float32]:
        """The float32 matrix at an address."""
        return carray(_pointer(address), (rows, columns), np.float32)

    @kernel
    def _integers(address: int, rows: int, columns: int) -> NDArray[np.int64]:
        """The int64 matrix at an address."""
        return carray(_pointer(address), (rows, columns), np.int64)


@kernel
def _history_block(
    w: Array,
    x: Array,
    y: float,
    score: float,
    rows: NDArray[np.floating[Any]],
    labels: Array,
    code: int,
    width: float,
    out: Array,
) -> None:
    """Add the pair gradients with the rows (n, columns) of one block to `out`; see `history_gradient`."""
    d = x.shape[0]
    columns = rows.shape[1]
    places = np.empty(TILE, np.int64)
    margins = np.empty(TILE)
    of_errors = loss_of_errors(code)
    for start in range(0, rows.shape[0], TILE):
        n = 0
        for r in range(start, min(start + TILE, rows.shape[0])):
            places[n] = r
            n += 1 if labels[r, 0] != y or of_errors else 0
        for j in range(n):
            margins[j] = score - dot(w, rows[places[j]])
        active = 0
        for j in range(n):
            r = places[j]
            k = pair_slope(code, y - labels[r, 0], margins[j], width)
            places[active] = r
            margins[active] = k
            active += 1 if k != 0.0 else 0
        for j in range(active):
            k = margins[j]
            row = rows[places[j]]
            # By differences, so that equal records cancel exactly.
            for i in range(columns):
                out[i] += k * (x[i] - row[i])
            for i in range(columns, d):
                out[i] += k * x[i]


@kernel
def history_gradient(
    w: Array,
    x: Array,
    y: float,
    table: NDArray[np.int64],
    records: int,
    single: bool,
    code: int,
    width: float,
    out: Array,
) -> None:
    """Add the gradients of the pairs of (x, y) with the first `records` stored records to `out`, a sum.

    ``sum_b c_b phi'(c_b w.(x - x_b)) (x - x_b)`` with ``c_b = y - y_b``; see `pair_slope`.
    """
    score = dot(w, x)
    left = records
    for b in range(table.shape[0]):
        n = min(left, int(table[b, 3]))
        if n <= 0:
            break
        columns = int(table[b, 2])
        labels = doubles(table[b, 1], n, 1)
        part = w[:columns]
        if single:
            rows32 = singles(table[b, 0], n, columns)
            _history_block(part, x, y, score, rows32, labels, code, width, out)
        else:
            rows64 = doubles(table[b, 0], n, columns)
            _history_block(part, x, y, score, rows64, labels, code, width, out)
        left -= n


@kernel
def history_store(x: Array, y: float, table: NDArray[np.int64], records: int, single: bool) -> None:
    """Store (x, y) behind the first `records` records, for which a block must have room."""
    row = records
    for b in range(table.shape[0]):
        room = int(table[b, 3])
        if row < room:
            columns = int(table[b, 2])
            doubles(table[b, 1], room, 1)[row, 0] = y
            if single:
                rows32 = singles(table[b, 0], room, columns)
                for i in range(columns):
                    rows32[row, i] = x[i]
            else:
                rows64 = doubles(table[b, 0], room, columns)
                for i in range(columns):
                    rows64[row, i] = x[i]
            return
        row -= room


@kernel
def admit(s: Array, x: Array, limit: float) -> int:
    """Whether the packed record can be learned: 0, or 1 + the unusable column, or NO_ROOM."""
    bad = first_beyond(x, min(limit, MAX_SINGLE) if s[SINGLE] > 0.0 else limit)
    if bad >= 0:
        return bad + 1
    return NO_ROOM if s[RECORDS] >= s[SIZE] else 0


@kernel
def admit_many(s: Array, rows: Array, limit: float) -> int:
    """Whether all rows (n, d) can be learned: 0, or 1 + the flat index of an unusable value, or NO_ROOM."""
    bad: int = unusable_row(rows, min(limit, MAX_SINGLE) if s[SINGLE] > 0.0 else limit)
    if bad > 0:
        return bad
    return NO_ROOM if s[RECORDS] + rows.shape[0] > s[SIZE] else 0


@kernel
def as_stored(s: Array, x: Array) -> Array:
    """The record as it will be stored: itself, or rounded to float32 in the place of the packed record.

    So equal records cancel exactly.
    """
    if s[SINGLE] > 0.0:
        packed = s[HEADER : HEADER + x.shape[0]]
        for i in range(x.shape[0]):
            packed[i] = np.float64(np.float32(x[i]))
        return packed
    return x


@kernel
def history_table(s: Array) -> NDArray[np.int64]:
    """The table of blocks."""
    return _integers(int(s[TABLE]), int(s[BLOCKS]), 4)


@kernel
def _history_step(s: Array, x: Array, y: float) -> None:
    """One record of OGD: step on the pairs with all records of the past, then into the blocks."""
    past = int(s[RECORDS])
    table = history_table(s)
    single = s[SINGLE] > 0.0
    s[RECORDS] = s[FILLED] = past + 1.0
    kept = observe_row(s, x)
    if single:
        # As it will be stored, so that equal records cancel exactly.
        for i in range(kept.shape[0]):
            kept[i] = np.float64(np.float32(kept[i]))
    if past > 0:
        g = column(s, GRADIENT)
        history_gradient(effects(s, WEIGHTS), kept, y, table, past, single, int(s[LOSS]), s[WIDTH], g)
        for i in range(g.shape[0]):
            g[i] = ridge(s, i) + g[i] / past
        move(s, y, g, -1)
    history_store(kept, y, table, past, single)


@kernel
def history_learn(s: Array, y: float) -> int:
    """Learn the packed record with label y. Returns 0; or, with nothing changed, 1 + the unusable column, or
    NO_ROOM.
    """
    x = view(s, HEADER, int(s[D]))
    code: int = admit(s, x, MAX_ABS)
    if code == 0:
        link_record(s, x, y)
        _history_step(s, x, y)
    return code


@kernel
def history_learn_many(s: Array, rows: Array, labels: Array, scores: Array) -> int:
    """`ogd_learn_many` over the full history. Returns, with nothing changed, NO_ROOM too."""
    code: int = first_large(rows, MAX_SINGLE if s[SINGLE] > 0.0 else MAX_ABS)
    if code == 0 and s[RECORDS] + rows.shape[0] > s[SIZE]:
        code = NO_ROOM
    if code == 0:
        d = int(s[D])
        flat = rows.reshape(rows.size)
        for r in range(rows.shape[0]):
            x = view(flat, r * d, d)
            if scores.shape[0] > 0:
                scores[r] = published_score(s, x)
            if labels[r] == labels[r]:
                link_record(s, x, labels[r])
                _history_step(s, x, labels[r])
    return code
