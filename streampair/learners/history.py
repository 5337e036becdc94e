"""The memory of `buffers.FullHistory`: every record of the past, in blocks that never move."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["History"]

Array = NDArray[np.float64]
Rows = NDArray[np.float64] | NDArray[np.float32]

# A block is at most this large, so that what is reserved and not yet used is a small part of a long history.
_BLOCK_BYTES = 1 << 20
_FIRST_ROWS = 64


class History:
    """Blocks of rows and labels, and the table by which kernels find them.

    A new block is as large as all before it together, up to 1 MiB: memory never has to be copied to grow, so
    the peak is what is stored and at most one block. Kernels write the records; this object only counts room.
    Features that arrive late close the open block: its rows have the columns of their time, and the new
    columns are 0 there.

    Parameters
    ----------
    single
        Store rows in float32 rather than float64. Labels are float64 always.
    """

    def __init__(self, single: bool = False) -> None:
        self.single = single
        self._dtype = np.dtype(np.float32 if single else np.float64)
        self._blocks: list[tuple[Rows, Array]] = []
        self._table = np.zeros((8, 4), dtype=np.int64)
        self.room = 0

    @property
    def table(self) -> NDArray[np.int64]:
        """For each block: address of rows, address of labels, columns, rows of room; (blocks, 4), a view."""
        return self._table[: len(self._blocks)]

    @property
    def address(self) -> int:
        """Where the table is."""
        return int(self._table.ctypes.data)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(rows.nbytes + labels.nbytes for rows, labels in self._blocks)

    def _append(self, rows: Rows, labels: Array) -> None:
        at = len(self._blocks)
        if at == len(self._table):
            self._table = np.concatenate((self._table, np.zeros_like(self._table)))
        self._blocks.append((rows, labels))
        self._table[at] = rows.ctypes.data, labels.ctypes.data, rows.shape[1], len(rows)
        self.room += len(rows)

    def reserve(self, records: int, more: int, columns: int) -> None:
        """Make room for `more` records of so many columns behind the first `records`."""
        while self.room < records + more:
            self._append(*self._new_block(self.room, columns))

    def _new_block(self, room: int, columns: int) -> tuple[Rows, Array]:
        """A block as it comes after blocks with so much room: its size depends on nothing else, so that equal
        streams give equal states.
        """
        rows = min(max(_FIRST_ROWS, room), max(1, _BLOCK_BYTES // (self._dtype.itemsize * columns)))
        return self._block(rows, columns)

    def _block(self, rows: int, columns: int) -> tuple[Rows, Array]:
        return np.empty((rows, columns), dtype=self._dtype), np.empty(rows)

    def close(self, records: int) -> None:
        """Give back all room behind the first `records`: the next block may have more columns."""
        while self._blocks and self.room > records:
            rows, labels = self._blocks.pop()
            self.room -= len(rows)
            used = records - self.room
            if used > 0:
                self._append(rows[:used].copy(), labels[:used].copy())

    def to_state(self, records: int) -> list[dict[str, Any]]:
        """The first `records` records, block by block. Read-only views, except of the open block: full blocks
        never change, and a copy would double the memory of a long history.
        """
        out: list[dict[str, Any]] = []
        left = records
        for rows, labels in self._blocks:
            n = min(left, len(rows))
            if n <= 0:
                break
            part: tuple[Rows, Array] = (
                (rows, labels) if n == len(rows) else (rows[:n].copy(), labels[:n].copy())
            )
            views = [a.view() for a in part]
            for view in views:
                view.flags.writeable = False
            out.append({"rows": views[0], "labels": views[1]})
            left -= n
        return out

    def load_state(self, state: list[Mapping[str, Any]], columns: int) -> int:
        """Take copies of what `to_state` gave; the number of records.

        Raises
        ------
        ValueError
            If blocks do not fit the type, have more than `columns` columns, or have fewer than one before.
        """
        blocks: list[tuple[Rows, Array]] = []
        least, records = 1, 0
        for block in state:
            rows, labels = block["rows"], block["labels"]
            if rows.dtype != self._dtype or labels.dtype != np.float64 or rows.ndim != 2 or not len(rows):
                raise ValueError("a block of another type")
            if labels.shape != rows.shape[:1] or not least <= rows.shape[1] <= columns:
                raise ValueError("a block of another shape")
            least = rows.shape[1]
            if not np.isfinite(rows).all():
                raise ValueError("numbers that are not finite")
            kept = self._block(*rows.shape)
            kept[0][:], kept[1][:] = rows, labels
            blocks.append(kept)
            records += len(rows)
        if blocks and least == columns:  # the last block is open
            rows, labels = blocks.pop()
            open_block = self._new_block(records - len(rows), columns)
            if len(rows) > len(open_block[0]):
                raise ValueError("a block that is too large")
            open_block[0][: len(rows)] = rows
            open_block[1][: len(rows)] = labels
            blocks.append(open_block)
        self._blocks.clear()
        self.room = 0
        for rows, labels in blocks:
            self._append(rows, labels)
        return records
