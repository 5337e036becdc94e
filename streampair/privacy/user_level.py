"""User-level privacy: admission, influence and spend of an entity with many records (docs/privacy 8).

With `entity=` neighbouring streams differ in the contents of *all* records of one entity. Admission bounds
how many of them are learned and how close together, by (entity, slot) alone; the noise is calibrated to the
densest admissible pattern.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from streampair.errors import ConfigError, SnapshotError
from streampair.kernels import hashing
from streampair.privacy.sensitivity import Influence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Admission", "EntityInfluence", "EntityLimit", "entity_pattern", "pairs_apart"]

_SHARED: Final = 2**16
_FIRST_CELLS: Final = 1024
_FULLEST: Final = 0.7
_DISTANCES: Final = 64
_EXACT: Final = 2.0**53  # a float from here on may have been another integer
_LARGEST: Final = 10**1000  # Python writes no integer of more than 4300 digits


@dataclass(frozen=True)
class EntityLimit:
    """Bound of the contributions of an entity: how many of its records are learned, and how close together.

    Parameters
    ----------
    records
        k: most records of an entity that are learned, null records included.
    separation
        b: least distance of two of them, in slots.
    field
        The field of a record that names its entity: text or an integer, and not a feature. None: the caller
        gives it (`Origin`). A lane uses the key of each message, and no field.

    Notes
    -----
    An entity is its text. An integer is its decimal digits, a float without a fraction below 2**53 that
    integer, and bytes are the text that they hold in UTF-8: 5, 5.0, "5" and b"5" are one entity. Texts are
    compared in Unicode's composed form (NFC), and otherwise as they are: "05", " 5" and "5.0" are others, and
    so is another case. Bytes that are no UTF-8 are compared as bytes. None, booleans, other floats and other
    types name no entity: such a record takes a null slot.

    Examples
    --------
    >>> from streampair.privacy import EntityLimit
    >>> EntityLimit(records=5, separation=100, field="customer")
    EntityLimit(records=5, separation=100, field='customer')
    """

    records: int
    separation: int = 1
    field: Hashable = None

    def __post_init__(self) -> None:
        for name in ("records", "separation"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}", fix="give an integer of at least 1")
        if self.records > 65_535:
            raise ConfigError(
                f"records is {self.records}", fix="give at most 65535: more could not be protected usefully"
            )

    def within(self, slots: int) -> int:
        """k0: most records of an entity that are learned in a number of slots."""
        return min(self.records, math.ceil(slots / self.separation))


def entity_pattern(single: Floats, limit: EntityLimit, length: int | None = None) -> Floats:
    """Influence pattern that dominates every admissible entity: `sum_j shift(v)` at exact spacing b.

    If the buffer has earlier records of the entity, both records of a pair change: the weight of the own step
    is then `(1 - f) + f 2G/D`, with f their share of the partners. As `G <= D`, that is at most `1 + f`, the
    value of the sum.

    Parameters
    ----------
    single
        v of one record, from its own step on.
    limit
        k and b.
    length
        Steps of the run; None: no end.

    Examples
    --------
    >>> from streampair.privacy import EntityLimit
    >>> from streampair.privacy.user_level import entity_pattern
    >>> from streampair.privacy.sensitivity import fifo_pattern
    >>> entity_pattern(fifo_pattern(2), EntityLimit(records=2, separation=1))
    array([1. , 1.5, 1. , 0.5])
    """
    count = limit.records if length is None else limit.within(length)
    last = (count - 1) * limit.separation
    steps = last + len(single) if length is None else min(last + len(single), length)
    pattern = np.zeros(steps)
    for first in range(0, last + 1, limit.separation):
        part = single[: steps - first]
        pattern[first : first + len(part)] += part
    return pattern


def pairs_apart(records: int) -> list[tuple[int, int]]:
    """Distances of pairs of an entity's records, in records, with the number of ordered pairs at each.

    2 (records - j) ordered pairs are j apart. The cost of a pair does not grow with j, so several distances
    are counted as the smallest of them: at most 64 are listed.

    Examples
    --------
    >>> from streampair.privacy.user_level import pairs_apart
    >>> pairs_apart(4)
    [(1, 6), (2, 4), (3, 2)]
    """
    if records < 2:
        return []
    if records <= _DISTANCES:
        distances = list(range(1, records))
    else:
        distances = np.unique(np.geomspace(1.0, float(records - 1), _DISTANCES).astype(np.int64)).tolist()
    return [
        (first, (stop - first) * (2 * records - stop - first + 1))
        for first, stop in zip(distances, [*distances[1:], records], strict=True)
    ]


@dataclass(frozen=True)
class EntityInfluence(Influence):
    """Influence of all records of an entity, at the densest admitted spacing (docs/privacy 8)."""

    limit: EntityLimit

    together = True

    @classmethod
    def of(cls, single: Influence, limit: EntityLimit) -> EntityInfluence:
        """Influence of an entity, from that of one record."""
        return cls(single.size, single.uses, limit)

    def pattern(self, length: int | None) -> Floats:
        """The pattern that dominates every admissible entity's; see `Influence.pattern`."""
        return entity_pattern(Influence.pattern(self, length), self.limit, length)

    def moves(self, length: int | None, diameter: float, rounding: float) -> Floats:
        """The sum of the shifted moves of its records; records that are apart are rounded in more steps."""
        return entity_pattern(Influence.moves(self, length, diameter, rounding), self.limit, length)


class Admission:
    """Decides which records of an entity are learned, by entity and slot alone.

    Parameters
    ----------
    limit
        k and b.
    capacity
        Most entities with an entry of their own. Later ones share 65536 entries.

    Notes
    -----
    A table of 64-bit digests, in 18 bytes an entry and at most 302 MB for ten million entities. It starts
    small and doubles. Two entities with the same digest, or in the same shared entry, are counted as one
    entity: they are admitted less often than possible, never more often. So errors of the table never weaken
    the guarantee.

    Examples
    --------
    >>> from streampair.privacy import EntityLimit
    >>> from streampair.privacy.user_level import Admission
    >>> admission = Admission(EntityLimit(records=2, separation=10))
    >>> [admission.admit("ann", slot) for slot in (1, 5, 11, 30)]
    [True, False, True, False]
    """

    def __init__(self, limit: EntityLimit, capacity: int = 10_000_000) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int) or not 1 <= capacity <= 10**9:
            raise ConfigError(f"capacity is {capacity!r}", fix="give an integer from 1 to 1000000000")
        self.limit = limit
        self.capacity = capacity
        self.entities = 0
        self._make(_FIRST_CELLS)

    def _make(self, cells: int) -> None:
        self._keys = np.zeros(cells, dtype=np.uint64)
        self._last = np.zeros(cells, dtype=np.int64)
        self._count = np.zeros(cells, dtype=np.uint16)

    def admit(self, entity: Hashable, slot: int) -> bool:
        """Return whether the record in this slot is learned; if so it is counted, whatever its content.

        Parameters
        ----------
        entity
            Text, bytes or an integer, in any spelling (`EntityLimit`).
        slot
            Number of the slot, increasing.

        Raises
        ------
        TypeError
            If it names no entity.
        """
        return bool(self._admit([_digest(entity)], slot)[0])

    def admit_many(self, entities: Sequence[Hashable], slot: int) -> NDArray[np.bool_]:
        """`admit` for records of consecutive slots; a record without a valid entity is not admitted.

        Parameters
        ----------
        entities
            As in `admit`, one for each slot; None: no entity.
        slot
            Number of the first slot.
        """
        keys = []
        for entity in entities:
            try:
                keys.append(0 if entity is None else _digest(entity))
            except TypeError:
                keys.append(0)
        return self._admit(keys, slot)

    def _admit(self, keys: list[int], slot: int) -> NDArray[np.bool_]:
        while self.entities + len(keys) > _FULLEST * len(self._keys):
            self._grow()
        admitted = np.empty(len(keys), dtype=np.bool_)
        self.entities = hashing.entity_admit(
            self._keys, self._last, self._count, np.array(keys, dtype=np.uint64), slot, self.limit.records,
            self.limit.separation, self.entities, self.capacity, _SHARED, admitted,
        )  # fmt: skip
        return admitted

    def _grow(self) -> None:
        used = np.flatnonzero(self._keys)
        keys, last, count = self._keys[used], self._last[used], self._count[used]
        self._make(2 * len(self._keys))
        self._fill(keys, last, count)

    def _fill(self, keys: NDArray[np.uint64], last: NDArray[np.int64], count: NDArray[np.uint16]) -> None:
        hashing.entity_fill(self._keys, self._last, self._count, keys, last, count)

    def to_state(self) -> dict[str, Any]:
        """Digests, last slots and counts, as arrays: personal data if the entities can be guessed."""
        used = np.flatnonzero(self._keys)
        order = used[np.argsort(self._keys[used])]
        return {
            "keys": self._keys[order],
            "last": self._last[order],
            "count": self._count[order].astype(np.int32),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `to_state`.

        Raises
        ------
        SnapshotError
            If it is damaged.
        """
        keys, last, count = state["keys"], state["last"], state["count"]
        whole = len(keys) == len(last) == len(count) <= self.capacity + _SHARED
        if not whole or np.any(keys == 0) or np.any(count < 1) or np.any(count > self.limit.records):
            raise SnapshotError(
                "the table of entities is damaged",
                fix="load an undamaged copy of the newest state; an older one forgets releases",
            )
        cells = _FIRST_CELLS
        while len(keys) >= _FULLEST * cells:
            cells *= 2
        self._make(cells)
        self._fill(
            np.ascontiguousarray(keys, dtype=np.uint64),
            np.ascontiguousarray(last, dtype=np.int64),
            np.ascontiguousarray(count, dtype=np.uint16),
        )
        self.entities = len(keys)


def _spelling(entity: Hashable) -> bytes:
    """The one spelling of an entity; see `EntityLimit`."""
    if isinstance(entity, float) and entity.is_integer() and abs(entity) < _EXACT:
        entity = int(entity)
    if isinstance(entity, int | np.integer) and not isinstance(entity, bool):
        number = int(entity)
        if abs(number) < _LARGEST:
            return b"%d" % number
        raise TypeError("an entity is text, bytes or an integer, not one of more than 1000 digits")
    if isinstance(entity, bytes):
        raw = entity
        try:
            entity = raw.decode()
        except UnicodeDecodeError:
            return raw
    if not isinstance(entity, str):
        raise TypeError(f"an entity is text, bytes or an integer, not {type(entity).__name__}")
    return unicodedata.normalize("NFC", entity).encode("utf-8", "surrogatepass")


def _digest(entity: Hashable) -> int:
    """64-bit digest of an entity, above the numbers of the shared entries."""
    key = int.from_bytes(hashlib.blake2b(_spelling(entity), digest_size=8).digest(), "little")
    return key if key > _SHARED else key + _SHARED + 1
