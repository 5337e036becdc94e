"""Samples of a stream that know beforehand which item enters next.

An item that does not enter costs a comparison, and many that do not cost no more. Of n items some
``size log(n / size)`` enter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["FOR_EVER", "SkipReservoir", "StepReservoir"]

Array = NDArray[np.float64]
Item = TypeVar("Item")

#: More items than there ever are.
FOR_EVER = 1 << 62


class SkipReservoir(Generic[Item]):
    """A uniform sample of the items of a stream (Algorithm L of Li 1994).

    Parameters
    ----------
    size
        How many items it holds.

    Attributes
    ----------
    items
        By place; None where there is none yet.
    count, next
        Items so far, and the number of the item that enters next.

    Examples
    --------
    >>> import random
    >>> from streampair.evaluation.reservoirs import SkipReservoir
    >>> sample, draw = SkipReservoir(8), random.Random(1)
    >>> for number in range(1000):
    ...     if sample.left:
    ...         sample.count += 1
    ...     else:
    ...         sample.put(number, draw)
    >>> sample.count, len(sample.items), None in sample.items
    (1000, 8, False)
    """

    def __init__(self, size: int) -> None:
        self.items: list[Item | None] = [None] * size
        self.count = self.next = 0
        # Logarithm of the largest of `size` uniform numbers that no item in the sample exceeds.
        self._log_w = 0.0

    @property
    def left(self) -> int:
        """Number of the next items of which none enters."""
        return self.next - self.count

    def put(self, item: Item, draw: random.Random) -> None:
        """Let the next item in."""
        filling, size = self.count < len(self.items), len(self.items)
        self.items[self.count if filling else int(draw.random() * size)] = item
        self.count += 1
        if self.count < size:
            self.next = self.count
            return
        self._log_w += math.log(1.0 - draw.random()) / size  # 1 - u: never 0
        a = min(self._log_w, -1e-18)
        # log(1 - e^a), without cancellation at either end.
        log = math.log(-math.expm1(a)) if a > -0.7 else math.log1p(-math.exp(a))
        skip = math.log(1.0 - draw.random()) / log
        self.next = self.count + math.floor(min(skip, FOR_EVER))

    def to_state(self) -> dict[str, object]:
        """All but the items, as plain values and arrays."""
        return {"count": self.count, "next": self.next, "log_w": self._log_w}

    def load_state(self, state: Mapping[str, Any], items: list[Item | None]) -> None:
        """Restore `to_state`, and the items; KeyError, TypeError, ValueError."""
        self.count, self.next = int(state["count"]), int(state["next"])
        if not 0 <= self.count <= self.next <= 2 * FOR_EVER:
            raise ValueError("counters that no stream has")
        filled = min(self.count, len(self.items))
        if [item is not None for item in items] != [place < filled for place in range(len(self.items))]:
            raise ValueError(f"{len(items)} places, or items that are not where they should be")
        self.items, self._log_w = items, float(state.get("log_w", 0.0))
        if not self._log_w <= 0.0:
            raise ValueError(f"a logarithm of {self._log_w}")


class StepReservoir(SkipReservoir[Item]):
    """A sample in which item j has odds of about ``1 / sqrt(shift + j)`` (Efraimidis and Spirakis 2006).

    Item j has the rank Exp(v_j), ``v_j = 2 (sqrt(shift + j + 1) - sqrt(shift + j))``, and the smallest ranks
    are kept.

    Parameters
    ----------
    size
        How many items it holds. One more is kept, for the weights of the others.
    shift
        Added to the number of an item in its odds.

    Attributes
    ----------
    ranks, order
        Of the item at each place: its rank, and its number; -1: none.
    """

    def __init__(self, size: int, shift: int) -> None:
        super().__init__(size + 1)
        self._shift = shift
        self.ranks: Array = np.full(size + 1, math.inf)
        self.order: Array = np.full(size + 1, -1.0)
        self._largest = 0  # place of the largest rank

    def put(self, item: Item, draw: random.Random) -> None:
        """Let the next item in."""
        number = float(self._shift + self.count)
        odds = 2.0 / (math.sqrt(number + 1.0) + math.sqrt(number))
        if self.count < len(self.items):
            place = self.count
            rank = -math.log(1.0 - draw.random()) / odds
        else:
            place = self._largest
            # The rank of an item that enters is known to be below the largest.
            rank = -math.log1p(draw.random() * math.expm1(-odds * float(self.ranks[place]))) / odds
        self.items[place], self.ranks[place], self.order[place] = item, rank, self.count
        self.count += 1
        self.next, self._largest = self.count, int(self.ranks.argmax())
        if self.count >= len(self.items):
            # The odds add up to a square root, so the item at which their sum times the largest rank passes
            # an exponential variable has a closed form.
            largest = float(self.ranks[self._largest])
            root = math.sqrt(number + 1.0) - 0.5 * math.log(1.0 - draw.random()) / largest
            self.next = max(self.count, math.ceil(min(root * root, FOR_EVER)) - self._shift - 1)

    def stand_for(self) -> Array:
        """Number of items that the item at each place represents, (size + 1,); 0 outside the sample.

        Given the largest kept rank tau, every other item is in the sample independently, with probability
        ``1 - exp(-v_j tau)``.
        """
        if self.count < len(self.items):
            return np.where(self.order >= 0.0, 1.0, 0.0)
        tau = self.ranks.max()
        odds = 2.0 / (np.sqrt(self._shift + self.order + 1.0) + np.sqrt(self._shift + self.order))
        inverse = np.where(self.ranks < tau, -1.0 / np.expm1(-odds * tau), 0.0)
        out: Array = inverse * (self.count / inverse.sum())
        return out

    def to_state(self) -> dict[str, object]:
        """All but the items, as plain values and arrays."""
        state = {"count": self.count, "next": self.next}
        return {**state, "ranks": self.ranks.copy(), "order": self.order.copy()}

    def load_state(self, state: Mapping[str, Any], items: list[Item | None]) -> None:
        """Restore `to_state`, and the items; KeyError, TypeError, ValueError."""
        super().load_state(state, items)
        for name in ("ranks", "order"):
            if np.shape(state[name]) != self.ranks.shape:
                raise ValueError(f"{name} of shape {np.shape(state[name])}")
            setattr(self, name, np.array(state[name], dtype=np.float64))
        self._largest = int(self.ranks.argmax())
