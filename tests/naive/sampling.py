"""Reference of the sample that a regret is estimated from: an item at a time, by Python's random numbers."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streampair.evaluation.reservoirs import StepReservoir

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
            skip = math.log(1.0 - uniform()) / log_one_minus_exp(min(self.log_w, -1e-18))
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
        position = self.shift + self.count
        odds = 2.0 / (math.sqrt(position + 1.0) + math.sqrt(position))
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
            root = math.sqrt(position + 1.0) + 0.5 * math.log(1.0 - uniform()) / self._heap[0][0]
            self.hit = max(self.count, math.ceil(min(root * root, 2.0**62)) - self.shift - 1)
        return slot

    def scale(self) -> Array:
        """What each place stands for."""
        ours = StepReservoir(self.size - 1, self.shift)
        counters = {"count": self.count, "next": self.hit, "log_w": 0.0}
        columns = {"ids": self.order, "order": self.order, "ranks": self.rank}
        ours.load_state({**ours.to_state(), **counters, **columns})
        return ours.stand_for()


def log_one_minus_exp(a: float) -> float:
    """log(1 - e^a) for a < 0, without cancellation at either end."""
    return math.log(-math.expm1(a)) if a > -0.7 else math.log1p(-math.exp(a))


class Draw:
    """What enters, event by event: in strata, of which each has steps and records."""

    def __init__(self, strata: int, steps: int, records: int, exact: int, seed: int) -> None:
        self.exact = exact
        self.steps = [Thinning(steps, exact) for _ in range(strata)]
        self.records = [Uniform(records) for _ in range(strata)]
        self.seen = [0] * strata
        self.random = random.Random(seed)
        self.next = self.random.random()

    def event(self, c: int) -> tuple[int, int, int, float] | None:
        """Place among records, among steps, of the partner, and its weight; None if it does not enter."""
        strata, seen = len(self.seen), sum(self.seen)
        steps, past = self.steps[c], self.records[c]
        other = c if strata == 1 else 1 - c
        record, step, partner, weight = -1, -1, -1, 0.0
        is_record = past.count == past.hit
        is_step = seen >= self.exact and steps.count == steps.hit
        if is_step:
            filled = min(self.records[other].count, past.size)
            if filled:
                partner = int(self.next * filled) + other * past.size
                weight = 1.0 if strata == 1 else self.seen[other] / seen
        if is_record:
            record = past.take(self.random.random) + c * past.size
        else:
            past.count += 1
        if is_step:
            step = steps.take(self.random.random) + c * steps.size
            self.next = self.random.random()
        elif seen >= self.exact:
            steps.count += 1
        self.seen[c] += 1
        return (record, step, partner, weight) if is_record or is_step else None

    def left(self) -> list[int]:
        """Of how many next events of each stratum none enters."""
        if sum(self.seen) < self.exact:
            return [0] * len(self.seen)
        pairs = zip(self.steps, self.records, strict=True)
        return [min(s.hit - s.count, r.hit - r.count) for s, r in pairs]
