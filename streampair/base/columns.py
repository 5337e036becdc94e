"""The columns of a learner's features, and the packing of records into its state."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.kernels import sparse
from streampair.records import features

__all__ = ["Columns"]

Array = NDArray[np.float64]


@lru_cache(maxsize=1024)
def _packer(count: int) -> Callable[..., None]:
    """A function that packs `count` places, and then as many values."""
    return struct.Struct(f"{count}q{count}d").pack_into


class Columns:
    """Assigns each feature name a column, in order of arrival, and packs records into the state of a learner.

    Parameters
    ----------
    missing
        Value of a known feature that a record lacks.

    Attributes
    ----------
    index
        Column of each known name.
    count
        Number of known names, d.
    record
        Where the state has the record, (d,).
    expected
        Number of features of a record that `take` and `pack` write; -1 while they are not made.
    take, pack
        ``pack(*take(x))`` writes a record x that has exactly the known features.
    gathered
        Scratch (m,): the places that `gather` found, then the values.
    """

    __slots__ = ("_missing", "_names", "count", "expected", "gathered", "index", "pack", "record", "take")

    take: Callable[[Any], tuple[Any, ...]]
    pack: Callable[..., None]
    record: Array

    def __init__(self, missing: float = 0.0) -> None:
        self._missing = missing
        self.clear()

    def clear(self) -> None:
        """Forget all names."""
        self.index: dict[Hashable, int] = {}
        self.gathered: Array = np.empty(0)
        self.count, self.expected = 0, -1
        self._names: tuple[Hashable, ...] | None = None

    def add(self, names: Iterable[Hashable], state: Array, start: int) -> None:
        """Assign the next columns to new names; the record begins at `start` of the state, which has room."""
        index = self.index
        for name in names:
            index[name] = len(index)
        self.count, self._names, self.expected = len(index), None, -1
        self.record = state[start : start + self.count]

    @property
    def names(self) -> tuple[Hashable, ...]:
        """Known names, in the order of their columns."""
        if self._names is None:
            self._names = tuple(self.index)
        return self._names

    def match(self, names: Sequence[Hashable]) -> bool:
        """Whether these are exactly the known names, in any order."""
        return len(names) == self.count and all(map(self.index.__contains__, names))

    def arrange(self, names: Sequence[Hashable], rows: Array) -> Array:
        """Rows (n, len(names)) in the order of the columns, (n, d); absent ones are `missing`."""
        return features.arrange(names, rows, self.names, self.index, self._missing)

    def prepare(self, x: Mapping[Any, Any]) -> None:
        """Build `take` and `pack` for records with exactly the known features, if x is one."""
        if len(x) == self.count and x.keys() == self.index.keys():
            place: Any = self.record
            # Bound to the record's memory, so that packing needs no argument list.
            self.pack = partial(struct.Struct(f"{self.count}d").pack_into, memoryview(place), 0)
            self.take = features.getter(self.names)
            self.expected = self.count

    def gather(self, values: Mapping[Any, Any]) -> bool:
        """Gather places and values of a record; False if a name is unknown or a value is no number."""
        count, index = len(values), self.index
        if len(self.gathered) < 2 * count:
            self.gathered = np.empty(4 * count)
        try:
            # The quickest way from names to places.
            places = itemgetter(*values)(index) if count > 1 else [index[name] for name in values]
            _packer(count)(self.gathered.data, 0, *places, *values.values())
        except Exception:  # an unknown name, or any error of a value
            return False
        return True

    def scatter(self, values: Mapping[Any, Any]) -> bool:
        """Write a record; False, with nothing written, if a name is unknown or a value is no number."""
        gathered = self.gather(values)
        if gathered:
            sparse.scatter(self.gathered, len(values), self._missing, self.record)
        return gathered
