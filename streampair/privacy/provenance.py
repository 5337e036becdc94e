"""Where a record comes from, and what identifies the records of a batch."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, overload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

__all__ = [
    "Origin",
    "Origins",
    "Packed",
]


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
        records: list[bytes] = self.rows.view(f"V{size}").reshape(n).tolist()
        return iter(records)


class Origin(NamedTuple):
    """What is known of a record besides its content (docs/privacy 1, 8): metadata, which is not protected.

    Parameters
    ----------
    context
        What identifies the record, such as its place and a digest of its bytes: noise that is keyed depends
        on it. None: the record's own values identify it.
    entity
        Whose the record is: text, bytes or a whole number. None: nobody's, or not known; where entities are
        declared such a record takes its slot as a null record.

    Examples
    --------
    >>> from streampair import auc, privacy
    >>> limit = privacy.EntityLimit(records=1)
    >>> model = auc.PairFTRL(delta=1e-4, horizon=100, features=["a"], entity=limit)
    >>> for _ in range(2):
    ...     model.learn_one({"a": 0.5}, True, privacy.Origin(entity="ann"))
    >>> model.slots, model.refused_records
    (2, 1)
    """

    context: bytes | None = None
    entity: Hashable = None


class Origins(NamedTuple):
    """Where records come from, one after the other: an `Origin` for each, without an object for each.

    Parameters
    ----------
    contexts, entities
        As of `Origin`, one for each record; None: of none of them.
    """

    contexts: Sequence[bytes | None] | None = None
    entities: Sequence[Hashable] | None = None

    def part(self, part: slice) -> Origins:
        """Those of some of the records."""
        contexts, entities = self.contexts, self.entities
        return Origins(
            None if contexts is None else contexts[part], None if entities is None else entities[part]
        )
