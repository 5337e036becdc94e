"""Metadata of records: their identity for keyed noise, and their entity."""

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
    "PackedIdentities",
]


class PackedIdentities(Sequence[bytes]):
    """Identities of records, of equal length, as rows of one array: `ChainedNoise` hashes them in a kernel.

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
    def __getitem__(self, index: slice) -> PackedIdentities: ...
    def __getitem__(self, index: int | slice) -> bytes | PackedIdentities:
        rows = self.rows[index]
        return PackedIdentities(rows) if isinstance(index, slice) else rows.tobytes()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[bytes]:
        # One call for all rows: an element of a void dtype becomes bytes.
        n, size = self.rows.shape
        records: list[bytes] = self.rows.view(f"V{size}").reshape(n).tolist()
        return iter(records)


class Origin(NamedTuple):
    """Metadata of a record, which is not protected (docs/privacy 1, 8).

    Parameters
    ----------
    context
        Identity of the record, such as its offset and a digest of its bytes; keyed noise depends on it. None:
        the record's values identify it.
    entity
        The entity of the record: text, bytes or an integer. None: unknown, or none; with `entity=` declared
        such a record takes its slot as a null record.

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
    """Metadata of several records: the fields of `Origin` as sequences.

    Parameters
    ----------
    contexts, entities
        As in `Origin`, one for each record; None: all of them are None.
    """

    contexts: Sequence[bytes | None] | None = None
    entities: Sequence[Hashable] | None = None

    def part(self, part: slice) -> Origins:
        """Metadata of a slice of the records."""
        contexts, entities = self.contexts, self.entities
        return Origins(
            None if contexts is None else contexts[part], None if entities is None else entities[part]
        )
