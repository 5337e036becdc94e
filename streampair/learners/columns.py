"""Columns of a flat state by feature name, and the two ways in which a record is written into them.

Records of exactly the known features are packed by one call that knows their order. It takes O(d) to make, so
it is made when a first such record comes. Any other record is scattered: its values go to their places in a
row that is filled with what counts for a missing feature. The Python work is O(features of the record), and
the fill is one pass of a compiled loop.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampair import kernels as k
from streampair.learners.plain import PlainLearner
from streampair.records import features as _features

__all__ = ["KnowsColumns"]

Array = NDArray[np.float64]


@lru_cache(maxsize=1024)
def _packer(count: int) -> Callable[..., None]:
    """Writes so many places, and then as many values."""
    return struct.Struct(f"{count}q{count}d").pack_into


class KnowsColumns(PlainLearner):
    """Gives each feature name a column, in the order in which names arrive."""

    _derived: ClassVar[frozenset[str]] = frozenset(
        ("_index", "_tuple", "_d", "_expected", "_take", "_pack", "_record", "_given")
    )

    #: What counts for a known feature that a record lacks.
    _missing: ClassVar[float] = 0.0

    _index: dict[Hashable, int]
    _tuple: tuple[Hashable, ...] | None
    _d: int
    # How many features a record has that `_take` and `_pack` write; -1 while they are not made.
    _expected: int
    _take: Callable[[Any], tuple[Any, ...]]
    _pack: Callable[..., None]
    _record: Array  # where the state has the record, (d,)
    _given: Array  # scratch (m,): places of values, then values

    def _no_columns(self) -> None:
        """Forget all names."""
        self._index, self._given = {}, np.empty(0)

    def _add_columns(self, names: Iterable[Hashable], state: Array, at: int) -> None:
        """Give new names the next columns of a state that has the record at `at`, and room."""
        index = self._index
        for name in names:
            index[name] = len(index)
        self._d, self._tuple, self._expected = len(index), None, -1
        self._record = state[at : at + self._d]

    @property
    def _names(self) -> tuple[Hashable, ...]:
        """Known names, in the order of their columns."""
        if self._tuple is None:
            self._tuple = tuple(self._index)
        return self._tuple

    def _prepare(self, x: Mapping[Any, Any]) -> None:
        """Make the call that packs records of exactly the known features, if this is one."""
        if len(x) == self._d and x.keys() == self._index.keys():
            place: Any = self._record
            # Bound to its place, so that a record is packed without building an argument list first.
            self._pack = partial(struct.Struct(f"{self._d}d").pack_into, memoryview(place), 0)
            self._take = _features.getter(self._names)
            self._expected = self._d

    def _gather(self, values: Mapping[Any, Any]) -> bool:
        """Take places and values of a record; False if a name is unknown or a value is no number."""
        count = len(values)
        if len(self._given) < 2 * count:
            self._given = np.empty(4 * count)
        try:
            # The quickest way from names to places.
            places = itemgetter(*values)(self._index) if count > 1 else [self._index[name] for name in values]
            _packer(count)(self._given.data, 0, *places, *values.values())
        except Exception:  # an unknown name; or whatever a value brings
            return False
        return True

    def _scatter(self, values: Mapping[Any, Any]) -> bool:
        """Write a record; False, with nothing written, if a name is unknown or a value is no number."""
        gathered = self._gather(values)
        if gathered:
            k.scatter(self._given, len(values), self._missing, self._record)
        return gathered
