"""What identifies the records of a batch, as one array of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

__all__ = ["Packed"]


class Packed(Sequence[bytes]):
    """What identifies records, all as long: rows of an array, which a chain takes without an object for each.

    Parameters
    ----------
    rows
        Bytes, shape (n, length), in C order, of length at least 1.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Bytes) -> None:
        self.rows = rows

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Packed: ...
    def __getitem__(self, index: int | slice) -> bytes | Packed:
        rows = self.rows[index]
        return Packed(rows) if isinstance(index, slice) else rows.tobytes()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[bytes]:
        # One call for all: a cell of type V is bytes.
        n, size = self.rows.shape
        told: list[bytes] = self.rows.view(f"V{size}").reshape(n).tolist()
        return iter(told)
