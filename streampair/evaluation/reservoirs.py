"""Samples of a stream that know beforehand which item enters next.

An item that does not enter costs nothing but its share of a comparison for a whole batch. Of n items some
``size log(n / size)`` enter. A sample holds the ids of its items, by place. Its arrays are those of the
standard library: one element is set in a third of numpy's time, and a snapshot copies them whole.
"""

from __future__ import annotations

import heapq
import math
import random
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FOR_EVER", "Ids", "SkipReservoir", "StepReservoir"]

Array = NDArray[np.float64]
Ids = NDArray[np.int64]

#: More items than there ever are.
FOR_EVER = 1 << 62


class SkipReservoir:
    """A uniform sample of the items of a stream (Algorithm L of Li 1994).

    Parameters
    ----------
    size
        How many items it holds.

    Attributes
    ----------
    ids
        Of the item at each place, as `put` was given it; -1: none yet.
    count
        Items so far; whoever counts them sets it.
    next
        Number of the item that enters next.

    Examples
    --------
    >>> import random
    >>> from streampair.evaluation.reservoirs import SkipReservoir
    >>> sample, draw = SkipReservoir(8), random.Random(1)
    >>> for number in range(1000):
    ...     if number == sample.next:
    ...         place = sample.put(number, number, draw)
    >>> len(sample.ids), min(sample.ids) >= 0, sample.next >= 1000
    (8, True, True)
    """

    def __init__(self, size: int) -> None:
        self.ids = array("q", [-1]) * size
        self.count = self.next = 0
        # Logarithm of the largest of `size` uniform numbers that no item in the sample exceeds.
        self._log_w = 0.0

    def put(self, number: int, id: int, draw: random.Random) -> int:
        """Let the item in that has this number, `next`; its place."""
        size = len(self.ids)
        place = number if number < size else int(draw.random() * size)
        self.ids[place] = id
        if number + 1 < size:
            self.next = number + 1
            return place
        self._log_w += math.log(1.0 - draw.random()) / size  # 1 - u: never 0
        a = min(self._log_w, -1e-18)
        # log(1 - e^a), without cancellation at either end.
        log = math.log(-math.expm1(a)) if a > -0.7 else math.log1p(-math.exp(a))
        skip = math.log(1.0 - draw.random()) / log
        self.next = number + 1 + math.floor(min(skip, FOR_EVER))
        return place

    def to_state(self) -> dict[str, Any]:
        """The sample as plain values and arrays."""
        return {"count": self.count, "next": self.next, "log_w": self._log_w, "ids": np.array(self.ids)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `to_state`; KeyError, TypeError, ValueError."""
        self.count, self.next = int(state["count"]), int(state["next"])
        if not 0 <= self.count <= self.next <= 2 * FOR_EVER:
            raise ValueError("counters that no stream has")
        self.ids = _restored(self.ids, state, "ids")
        if ((np.array(self.ids) >= 0) != (np.arange(len(self.ids)) < self.count)).any():
            raise ValueError("items that are not where they should be")
        self._log_w = float(state.get("log_w", 0.0))
        if not self._log_w <= 0.0:
            raise ValueError(f"a logarithm of {self._log_w}")


class StepReservoir(SkipReservoir):
    """A sample in which item j has odds of about ``1 / sqrt(shift + j)`` (Efraimidis and Spirakis 2006).

    Item j has the rank Exp(v_j), ``v_j = 2 (sqrt(shift + j + 1) - sqrt(shift + j))``, and the smallest ranks
    are kept. The items are the steps of a regret: the pairs of an event and a partner.

    Parameters
    ----------
    size
        How many items it holds. One more is kept, for the weights of the others.
    shift
        Added to the number of an item in its odds.

    Attributes
    ----------
    order
        Of the item at each place, its number; -1: none.
    partners, weights, margins
        Of the step at each place, set by whoever puts it in: the id of its partner, -1 where there is none;
        the weight of the pair; its margin before the event was learned.
    """

    def __init__(self, size: int, shift: int) -> None:
        super().__init__(size + 1)
        self._shift = shift
        self.order = array("d", [-1.0]) * (size + 1)
        self.partners = array("q", [-1]) * (size + 1)
        self.weights, self.margins = (array("d", [0.0]) * (size + 1) for _ in range(2))
        self._ranks: list[tuple[float, int]] = []  # a heap of (-rank, place): the largest rank first

    @property
    def ranks(self) -> Array:
        """Of the item at each place, its rank; infinite: none."""
        out = np.full(len(self.ids), math.inf)
        for rank, place in self._ranks:
            out[place] = -rank
        return out

    def put(self, number: int, id: int, draw: random.Random, partner: int = -1, weight: float = 0.0) -> int:
        """Let the item in that has this number, `next`; its place."""
        position = float(self._shift + number)
        root = math.sqrt(position + 1.0)
        odds = 2.0 / (root + math.sqrt(position))
        if number < len(self.ids):
            place = number
            heapq.heappush(self._ranks, (math.log(1.0 - draw.random()) / odds, place))
        else:
            negative, place = self._ranks[0]
            # The rank of an item that enters is known to be below the largest.
            rank = math.log1p(draw.random() * math.expm1(odds * negative)) / odds
            heapq.heapreplace(self._ranks, (rank, place))
        self.ids[place], self.order[place] = id, number
        self.partners[place], self.weights[place], self.margins[place] = partner, weight, 0.0
        self.next = number + 1
        if self.next >= len(self.ids):
            # The odds add up to a square root, so the item at which their sum times the largest rank passes
            # an exponential variable has a closed form.
            root += 0.5 * math.log(1.0 - draw.random()) / self._ranks[0][0]
            self.next = max(self.next, math.ceil(min(root * root, FOR_EVER)) - self._shift - 1)
        return place

    def stand_for(self) -> Array:
        """Number of items that the item at each place represents, (size + 1,); 0 outside the sample.

        Given the largest kept rank tau, every other item is in the sample independently, with probability
        ``1 - exp(-v_j tau)``.
        """
        order, ranks = np.array(self.order), self.ranks
        if self.count < len(order):
            return np.where(order >= 0.0, 1.0, 0.0)
        tau = ranks.max()
        odds = 2.0 / (np.sqrt(self._shift + order + 1.0) + np.sqrt(self._shift + order))
        inverse = np.where(ranks < tau, -1.0 / np.expm1(-odds * tau), 0.0)
        out: Array = inverse * (self.count / inverse.sum())
        return out

    def to_state(self) -> dict[str, Any]:
        """The sample as plain values and arrays."""
        arrays = {name: np.array(getattr(self, name)) for name in ("order", "partners", "weights", "margins")}
        return {**super().to_state(), "ranks": self.ranks, **arrays}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `to_state`; KeyError, TypeError, ValueError."""
        super().load_state(state)
        for name in ("order", "partners", "weights", "margins"):
            setattr(self, name, _restored(getattr(self, name), state, name))
        ranks = _restored(array("d", self.ranks), state, "ranks")
        self._ranks = [(-rank, place) for place, rank in enumerate(ranks) if self.ids[place] >= 0]
        heapq.heapify(self._ranks)


def _restored(now: array[Any], state: Mapping[str, Any], name: str) -> array[Any]:
    """An array of a state; it must have the length of the array that it replaces."""
    saved = np.asarray(state[name], dtype=now.typecode)
    if saved.shape != (len(now),):
        raise ValueError(f"{name} of shape {saved.shape}, not {(len(now),)}")
    return array(now.typecode, saved.tobytes())
