"""Samples of a stream that know beforehand which item enters next, and a table of sampled records."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RecordTable", "Thinning", "Uniform", "pack_records", "unpack_records"]

Array = NDArray[np.float64]


class Uniform:
    """A uniform sample of `size` items without replacement; says beforehand which item enters next."""

    __slots__ = ("count", "hit", "log_w", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0  # items so far
        self.hit = 0  # the number of the next item that enters
        self.log_w = 0.0

    def take(self, uniform: Callable[[], float]) -> int:
        """Let the item number `hit` in; where to put it."""
        slot = self.count if self.count < self.size else int(uniform() * self.size)
        self.count += 1
        if self.count < self.size:
            self.hit = self.count
        else:
            # 1 - u: never 0.
            self.log_w += math.log(1.0 - uniform()) / self.size
            skip = math.log(1.0 - uniform()) / _log_one_minus_exp(min(self.log_w, -1e-18))
            self.hit = self.count + int(min(skip, 2.0**62))
        return slot


class Thinning:
    """A sample of `size` items and one more, item j with odds v_j = 2 (sqrt(c + j + 1) - sqrt(c + j)).

    Item j has the rank Exp(v_j); kept are the smallest ranks. Given the largest rank kept, tau, the others
    are in the sample as if each had been let in alone, with probability 1 - exp(-v_j tau).
    """

    __slots__ = ("_heap", "count", "hit", "order", "rank", "shift", "size")

    def __init__(self, size: int, shift: int) -> None:
        self.size = size + 1
        self.shift = shift
        self.count = 0  # items so far
        self.hit = 0  # the number of the next item that enters
        self.rank = [math.inf] * self.size
        self.order = [-1] * self.size
        self._heap: list[tuple[float, int]] = []  # (-rank, slot): the largest rank first

    def take(self, uniform: Callable[[], float]) -> int:
        """Let the item number `hit` in; where to put it."""
        at = self.shift + self.count
        odds = 2.0 / (math.sqrt(at + 1.0) + math.sqrt(at))
        if self.count < self.size:
            slot = self.count
            rank = -math.log(1.0 - uniform()) / odds
            heapq.heappush(self._heap, (-rank, slot))
        else:
            tau, slot = -self._heap[0][0], self._heap[0][1]
            # The rank of an item that enters is known to be below the largest.
            rank = -math.log1p(uniform() * math.expm1(-odds * tau)) / odds
            heapq.heapreplace(self._heap, (-rank, slot))
        self.rank[slot] = rank
        self.order[slot] = self.count
        self.count += 1
        if self.count < self.size:
            self.hit = self.count
        else:
            # The odds add up to a square root, so the item at which their sum times tau passes an
            # exponential variable has a closed form.
            root = math.sqrt(at + 1.0) + 0.5 * math.log(1.0 - uniform()) / self._heap[0][0]
            self.hit = max(self.count, math.ceil(min(root * root, 2.0**62)) - self.shift - 1)
        return slot

    def load(self, rank: list[float], order: list[int]) -> None:
        """The sample as it was."""
        self.rank, self.order = rank, order
        self._heap = [(-value, slot) for slot, value in enumerate(rank) if order[slot] >= 0]
        heapq.heapify(self._heap)

    def scale(self) -> Array:
        """For each slot the number of items that it stands for, (size + 1,); 0 for one outside the sample."""
        order, rank = np.array(self.order), np.array(self.rank)
        if self.count < self.size:
            return np.where(order >= 0, 1.0, 0.0)
        tau = rank.max()
        odds = 2.0 / (np.sqrt(self.shift + order + 1.0) + np.sqrt(self.shift + order))
        inverse = np.where(rank < tau, -1.0 / np.expm1(-odds * tau), 0.0)
        out: Array = inverse * (self.count / inverse.sum())
        return out


class RecordTable:
    """A table of records by slot. While all have the same names, it packs only what has changed."""

    def __init__(self, size: int) -> None:
        self.rows: list[dict[Any, float] | None] = [None] * size
        self._schema: tuple[Any, ...] | None = None
        self._matrix: Array | None = None
        self._changed: set[int] = set()

    def put(self, slot: int, row: dict[Any, float] | None) -> None:
        self.rows[slot] = row
        self._changed.add(slot)

    def clear(self) -> None:
        self.rows = [None] * len(self.rows)
        self._matrix = None

    def to_state(self) -> dict[str, object]:
        present = np.array([row is not None for row in self.rows], dtype=np.bool_)
        if not self._update(present):
            return pack_records(self.rows)
        assert self._schema is not None
        assert self._matrix is not None
        return {
            "names": list(self._schema),
            "lengths": np.array([len(self._schema)], dtype=np.int32),
            "columns": np.arange(len(self._schema), dtype=np.int32),
            "which": np.where(present, 0, -1).astype(np.int32),
            "values": self._matrix[present].ravel(),
        }

    def _update(self, present: NDArray[np.bool_]) -> bool:
        """Bring the matrix up to date; False if the rows have different names."""
        if not present.any():
            return False
        if self._matrix is None:
            first = self.rows[int(np.argmax(present))]
            assert first is not None
            self._schema = tuple(first)
            self._matrix = np.zeros((len(self.rows), len(first)))
            self._changed = set(np.flatnonzero(present).tolist())
        schema = self._schema
        for slot in sorted(self._changed):
            row = self.rows[slot]
            if row is not None:
                if tuple(row) != schema:
                    self._matrix = None
                    return False
                self._matrix[slot] = list(row.values())
        self._changed.clear()
        return True

    def load_state(self, state: Mapping[str, Any]) -> None:
        rows = unpack_records(state)
        if len(rows) != len(self.rows):
            raise ValueError(f"{len(rows)} rows instead of {len(self.rows)}")
        self.rows = rows
        self._matrix = None


def pack_records(rows: Sequence[dict[Any, float] | None]) -> dict[str, object]:
    """Rows as arrays: the tuples of names that occur, which of them each row has, and all values."""
    schemas: dict[tuple[Any, ...], int] = {}
    which = np.full(len(rows), -1, dtype=np.int32)
    values: list[float] = []
    for i, row in enumerate(rows):
        if row is not None:
            which[i] = schemas.setdefault(tuple(row), len(schemas))
            values.extend(row.values())
    names: dict[Any, int] = {}
    columns = [names.setdefault(name, len(names)) for schema in schemas for name in schema]
    return {
        "names": list(names),
        "lengths": np.array([len(schema) for schema in schemas], dtype=np.int32),
        "columns": np.array(columns, dtype=np.int32),
        "which": which,
        "values": np.array(values, dtype=np.float64),
    }


def unpack_records(state: Mapping[str, Any]) -> list[dict[Any, float] | None]:
    names, columns = list(state["names"]), state["columns"].tolist()
    schemas: list[list[Any]] = []
    at = 0
    for length in state["lengths"].tolist():
        schemas.append([names[c] for c in columns[at : at + length]])
        at += length
    values = state["values"].tolist()
    out: list[dict[Any, float] | None] = []
    at = 0
    for which in state["which"].tolist():
        if which < 0:
            out.append(None)
            continue
        schema = schemas[which]
        out.append(dict(zip(schema, values[at : at + len(schema)], strict=True)))
        at += len(schema)
    return out


def _log_one_minus_exp(a: float) -> float:
    """log(1 - e^a) for a < 0, without cancellation at either end."""
    return math.log(-math.expm1(a)) if a > -0.7 else math.log1p(-math.exp(a))
