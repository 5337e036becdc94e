"""Samples of a stream that know beforehand which items enter next, and where.

Which items enter depends on their numbers alone. So a reservoir draws its next entries in blocks, with numpy,
and an item that does not enter costs nothing but its share of a comparison for a whole batch. Of n items some
``size log(n / size)`` enter.

Each reservoir has random numbers of its own: block b of reservoir r takes the first numbers of numpy's PCG64
with ``SeedSequence(seed, spawn_key=(r, b))``. Block 0 is the items that fill the reservoir, each other block
`BLOCK` entries. So a sample depends on the seed and on the number of items, not on how these are cut into
batches, and a snapshot holds no state of a generator.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK", "SkipReservoir", "StepReservoir"]

Array = NDArray[np.float64]

#: Entries that are drawn at once when the reservoir is full; of steps, those that may enter.
BLOCK = 256
#: More items than there ever are.
_FOR_EVER = 1 << 50


class SkipReservoir:
    """A uniform sample of the items of a stream (Algorithm L of Li 1994).

    Parameters
    ----------
    size
        How many items it holds.
    seed, key
        Of its random numbers: the seed of the sample, and the number of this reservoir in it.

    Attributes
    ----------
    items
        The sample, by place.
    count
        Items so far.
    ahead
        The next entries, of which there is always one: number, place, and what else a subclass draws.

    Examples
    --------
    >>> from streampair.evaluation.reservoirs import SkipReservoir
    >>> sample = SkipReservoir(8, seed=1, key=0)
    >>> for _ in range(10):
    ...     for number, place in sample.advance(100):
    ...         sample.put(place, number)
    >>> len(sample.items), sample.count, sample.ahead[0][0] >= 1000
    (8, 1000, True)
    """

    #: Names and types of what an entry consists of, in a snapshot.
    columns: tuple[tuple[str, type], ...] = (("numbers", np.int64), ("places", np.int64))

    def __init__(self, size: int, seed: int, key: int) -> None:
        self.size, self.count = size, 0
        self.items: list[Any] = []
        self._seed, self._key, self._blocks = seed, key, 0
        # The last item that is drawn of, whether it enters or not.
        self._last = size - 1
        # Logarithm of the largest of `size` uniform numbers that no item in the sample exceeds.
        self._log_w = 0.0
        self.ahead: deque[tuple[Any, ...]] = deque(self._first())

    def advance(self, count: int) -> list[tuple[Any, ...]]:
        """Count the next items; the entries of those that enter."""
        self.count += count
        ahead, end, out = self.ahead, self.count, list[tuple[Any, ...]]()
        while ahead[0][0] < end:
            out.append(ahead.popleft())
            if not ahead:
                ahead.extend(self._more())
        return out

    def put(self, place: int, item: Any) -> None:
        """Put an item where `advance` said, in the order of the entries."""
        self.items[place : place + 1] = (item,)  # while the reservoir fills, the place is the next one

    def _uniform(self, columns: int, rows: int) -> Array:
        """The random numbers of the next block in (0, 1], (columns, rows)."""
        source = np.random.PCG64(np.random.SeedSequence(self._seed, spawn_key=(self._key, self._blocks)))
        self._blocks += 1
        # The stream of raw bits is the same in all versions of numpy.
        bits = source.random_raw(columns * rows) >> np.uint64(11)
        out: Array = (bits + np.uint64(1)).astype(np.float64).reshape(columns, rows)
        return out * 2.0**-53

    def _first(self) -> list[tuple[Any, ...]]:
        """The entries of the items that fill the reservoir."""
        self._blocks = 1
        return [(number, number) for number in range(self.size)]

    def _more(self) -> list[tuple[Any, ...]]:
        """The next entries of a full reservoir."""
        largest, skipped, places = self._uniform(3, BLOCK)
        log_w = self._log_w + np.cumsum(np.log(largest)) / self.size
        self._log_w = float(log_w[-1])
        # At most -1e-12, so that a skip is never 0 / 0.
        skip = np.log(skipped) / np.log1p(-np.exp(np.minimum(log_w, -1e-12)))
        numbers = self._last + np.cumsum(1 + np.minimum(skip, _FOR_EVER).astype(np.int64))
        self._last = numbers.item(-1)
        return list(zip(numbers.tolist(), _chosen(places, self.size).tolist(), strict=True))

    def to_state(self) -> dict[str, Any]:
        """Its counters and next entries as plain values and arrays; the items are up to who put them in."""
        entries = zip(*self.ahead, strict=True)
        state: dict[str, Any] = {
            name: np.array(values, kind) for (name, kind), values in zip(self.columns, entries, strict=True)
        }
        counters = {"count": self.count, "blocks": self._blocks, "last": self._last, "log_w": self._log_w}
        return {**counters, **state}

    def load_state(self, state: Mapping[str, Any], items: list[Any]) -> None:
        """Restore `to_state`, and the items by place; KeyError, TypeError, ValueError."""
        self.count, self._blocks, self._last = (int(state[name]) for name in ("count", "blocks", "last"))
        self._log_w, self.items = float(state["log_w"]), items
        entries: list[NDArray[Any]] = [np.asarray(state[name], dtype=kind) for name, kind in self.columns]
        numbers, places = entries[:2]
        if not 0 <= self.count <= numbers[0] or (np.diff(numbers) <= 0).any() or self._last < numbers[-1]:
            raise ValueError("counters that no stream has")
        filled, filling = min(self.count, self.size), numbers < self.size
        if len(items) != filled:
            raise ValueError(f"{len(items)} items, not {filled}")
        if not np.array_equal(numbers[filling], range(filled, self.size)):
            raise ValueError("places that would stay empty")
        if not ((places >= 0) & (places < self.size) & (~filling | (places == numbers))).all():
            raise ValueError("places that a reservoir does not have")
        if not self._log_w <= 0.0 or self._blocks < 1:
            raise ValueError(f"a logarithm of {self._log_w} after {self._blocks} blocks")
        self.ahead = deque(zip(*(each.tolist() for each in entries), strict=True))


class StepReservoir(SkipReservoir):
    """A sample in which item j has odds of about ``1 / sqrt(shift + j)`` (Efraimidis and Spirakis 2006).

    Item j has the rank Exp(v_j), ``v_j = 2 (sqrt(shift + j + 1) - sqrt(shift + j))``, and the smallest ranks
    are kept. An entry has number, place, rank, and a random number in (0, 1] for who puts the item in, which
    has to keep `number` and `rank` as attributes.

    Parameters
    ----------
    size
        How many items it holds. One more is kept, for the weights of the others.
    seed, key
        As of `SkipReservoir`.
    shift
        Added to the number of an item in its odds.
    """

    columns = (*SkipReservoir.columns, ("next_ranks", np.float64), ("chances", np.float64))

    def __init__(self, size: int, seed: int, key: int, shift: int) -> None:
        self._shift = shift
        # As they are behind the entries ahead: a heap of (-rank, place), the largest rank first.
        self._heap: list[tuple[float, int]] = []
        super().__init__(size + 1, seed, key)

    def _odds(self, numbers: Any) -> Any:
        return 2.0 / (np.sqrt(self._shift + numbers + 1.0) + np.sqrt(self._shift + numbers))

    def _first(self) -> list[tuple[Any, ...]]:
        """As in the base."""
        uniform, chances = self._uniform(2, self.size)
        numbers = np.arange(self.size)
        ranks = (-np.log(uniform) / self._odds(numbers)).tolist()
        self._heap = [(-rank, place) for place, rank in enumerate(ranks)]
        heapq.heapify(self._heap)
        return list(zip(range(self.size), range(self.size), ranks, chances.tolist(), strict=True))

    def _more(self) -> list[tuple[Any, ...]]:
        """As in the base."""
        mass, uniform, chances = self._uniform(3, BLOCK)
        heap, largest = self._heap, self._heap[0][0]
        # Items that would enter if the largest rank stayed the same. The odds add up to a square root, so the
        # items at which their sum times that rank passes exponential variables have a closed form.
        roots = math.sqrt(self._shift + self._last + 1.0) + np.cumsum(0.5 * np.log(mass)) / largest
        numbers = np.ceil(np.minimum(roots * roots, _FOR_EVER)).astype(np.int64) - self._shift - 1
        numbers = np.unique(np.maximum(numbers, self._last + 1))
        self._last = numbers.item(-1)
        odds = self._odds(numbers)
        # Their ranks are known to be below it, so that the first of them does enter.
        ranks = np.maximum(np.log1p(uniform[: len(numbers)] * np.expm1(odds * largest)) / odds, largest)
        out = []
        for number, negative, chance in zip(numbers.tolist(), ranks.tolist(), chances.tolist(), strict=False):
            largest, place = heap[0]
            if negative >= largest:
                heapq.heapreplace(heap, (negative, place))
                out.append((number, place, -negative, chance))
        return out

    def stand_for(self) -> Array:
        """Number of items that the item at each place represents, (len(items),); 0: only kept for its rank.

        Given the largest kept rank tau, every other item is in the sample independently, with probability
        ``1 - exp(-v_j tau)``.
        """
        if self.count < self.size:
            return np.ones(len(self.items))
        ranks = np.array([item.rank for item in self.items])
        odds = self._odds(np.array([item.number for item in self.items]))
        tau = ranks.max()
        inverse = np.where(ranks < tau, -1.0 / np.expm1(-odds * tau), 0.0)
        out: Array = inverse * (self.count / inverse.sum())
        return out

    def load_state(self, state: Mapping[str, Any], items: list[Any]) -> None:
        """As in the base."""
        super().load_state(state, items)
        ranks = {place: item.rank for place, item in enumerate(items)}
        ranks.update((place, rank) for _, place, rank, _ in self.ahead)
        if not all(0.0 <= rank < math.inf for rank in ranks.values()):
            raise ValueError("ranks that no item has")
        if not all(0.0 < chance <= 1.0 for *_, chance in self.ahead):
            raise ValueError("random numbers outside of (0, 1]")
        self._heap = [(-rank, place) for place, rank in ranks.items()]
        heapq.heapify(self._heap)


def _chosen(uniform: Array, size: int) -> NDArray[np.int64]:
    """A place of so many for each number in (0, 1]."""
    return np.ceil(uniform * size).astype(np.int64) - 1
