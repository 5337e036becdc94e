"""Reference of the sample that a regret is estimated from: an item at a time, by the same random numbers."""

from __future__ import annotations

import math

import numpy as np

from streampair.evaluation.reservoirs import BLOCK


def uniform(seed: int, key: int, block: int, columns: int, rows: int) -> list[list[float]]:
    """The random numbers of a block in (0, 1], by row."""
    source = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(key, block)))
    flat = np.random.Generator(source).random(columns * rows) + 2.0**-53
    return [[float(flat[column * rows + row]) for column in range(columns)] for row in range(rows)]


def nth(chance: float, size: int) -> int:
    """A place of so many, by a number in (0, 1]."""
    return min(place for place in range(size) if chance * size <= place + 1)


class Uniform:
    """A uniform sample of `size` items without replacement; which are in it, by place, as `put` says."""

    def __init__(self, size: int, seed: int, key: int) -> None:
        self.size, self.seed, self.key = size, seed, key
        self.items: list[int] = []
        self.count = 0  # items so far
        self.block = 0
        self.rows: list[list[float]] = []
        self.hit, self.place = -1, -1
        self.log_w = 0.0

    def put(self, item: int) -> bool:
        """Count an item, and let it in if it is due."""
        number = self.count
        self.count += 1
        if number < self.size:
            self.items.append(item)
        elif number == self.hit:
            self.items[self.place] = item
        else:
            return False
        if self.count >= self.size:
            self._skip()
        return True

    def _skip(self) -> None:
        """Draw the number of the next item that enters, and its place (Algorithm L)."""
        if not self.rows:
            self.block += 1
            self.rows = uniform(self.seed, self.key, self.block, 3, BLOCK)
        largest, skipped, place = self.rows.pop(0)
        self.log_w += math.log(largest) / self.size
        self.hit = self.count + math.floor(math.log(skipped) / math.log(-math.expm1(self.log_w)))
        self.place = nth(place, self.size)


class Thinning:
    """A sample of `size` items and one more, item j with odds v_j = 2 (sqrt(c + j + 1) - sqrt(c + j)).

    Item j has the rank Exp(v_j); kept are the smallest ranks.
    """

    def __init__(self, size: int, seed: int, key: int, shift: int) -> None:
        self.size, self.seed, self.key, self.shift = size + 1, seed, key, shift
        self.count = 0  # items so far
        self.ranks: list[float] = []
        self.order: list[int] = []
        self.block = 0
        self.rows = uniform(seed, key, 0, 2, size + 1)
        self.points: list[float] = []

    def put(self) -> tuple[int, float] | None:
        """Count an item; if it enters, its place and the number for its partner."""
        number, low, high = self.count, *(math.sqrt(self.shift + self.count + i) for i in (0, 1))
        odds = 2.0 * (high - low)
        self.count += 1
        if number < self.size:
            rank, chance = self.rows.pop(0)
            self.ranks.append(-math.log(rank) / odds)
            self.order.append(number)
            return number, chance
        if not self.points:
            self._more(low)
        points = sum(point <= high for point in self.points)
        self.points = self.points[points:]
        if not points:
            return None  # its rank is above that which was the largest when the block was drawn
        _, rank, chance = self.rows.pop(0)
        rank = -math.log1p(rank * math.expm1(-odds * self.largest)) / odds
        if rank > max(self.ranks):
            return None
        place = self.ranks.index(max(self.ranks))
        self.ranks[place], self.order[place] = rank, number
        return place, chance

    def _more(self, root: float) -> None:
        """Points of a Poisson process along the sum of the odds, as dense as the largest rank."""
        self.block += 1
        self.largest = max(self.ranks)
        self.rows = uniform(self.seed, self.key, self.block, 3, BLOCK)
        for exponential, _, _ in self.rows:
            root -= 0.5 * math.log(exponential) / self.largest
            self.points.append(root)


class Draw:
    """What enters, event by event: in strata, of which each has steps and records."""

    def __init__(self, strata: int, size: int, exact: int, seed: int) -> None:
        self.exact = exact
        self.records = [Uniform(size, seed, c) for c in range(strata)]
        self.steps = [Thinning(size, seed, strata + c, exact) for c in range(strata)]
        #: By place: number of the event and of its partner, and the weight of the pair.
        self.pairs: list[dict[int, tuple[int, int | None, float]]] = [{} for _ in range(strata)]
        self.seen = [0] * strata

    def event(self, c: int) -> bool:
        """Count an event of a stratum; whether it enters."""
        number, other = sum(self.seen), len(self.seen) - 1 - c
        entry = self.steps[c].put() if number >= self.exact else None
        if entry is not None:
            past = self.records[other].items
            partner = past[nth(entry[1], len(past))] if past else None
            weight = 0.0 if partner is None else 1.0 if len(self.seen) == 1 else self.seen[other] / number
            self.pairs[c][entry[0]] = number, partner, weight
        entered = self.records[c].put(number)
        self.seen[c] += 1
        return entered or entry is not None
