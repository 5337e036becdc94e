"""The policies of the buffers on a plain list of records."""

from __future__ import annotations

import math
from typing import Any

from naive.numerics import uniform


def binomial(u: float, n: int, p: float) -> int:
    """The smallest k with P(Bin(n, p) <= k) > u."""
    total = 0.0
    for k in range(n):
        total += math.comb(n, k) * p**k * (1.0 - p) ** (n - k)
        if u < total:
            return k
    return n


class Buffer:
    """The policies on a plain list of records."""

    def __init__(self, policy: str, size: int, seed: int) -> None:
        self.policy, self.size, self.seed = policy, size, seed
        self.rows: list[Any] = []
        self.classes: dict[bool, list[Any]] = {False: [], True: []}  # all records of the class
        self.t = 0

    def partners(self, y: float) -> list[tuple[Any, float]]:
        """The records that a new one of this label is paired with, and the weight of each pair."""
        if self.policy != "classes":
            return [(row, 1.0 / len(self.rows)) for row in self.rows]
        other = y < 0
        rows = [row for row in self.rows if (row[1] > 0) == other]
        return [(row, len(self.classes[other]) / len(rows) / self.t) for row in rows]

    def append(self, record: Any) -> None:
        self.t += 1
        if self.policy == "fifo":
            self.rows = [*self.rows, record][-self.size :]
        elif self.policy == "full":
            self.rows.append(record)
        elif self.policy == "classes":
            positive = record[1] > 0
            past = self.classes[positive]
            past.append(record)
            same_class = [i for i, row in enumerate(self.rows) if (row[1] > 0) == positive]
            if len(same_class) < self.size:
                self.rows.append(record)
            else:
                row = int(uniform(self.seed, len(past), int(positive)) * len(past))
                if row < self.size:
                    self.rows[same_class[row]] = record
        elif self.policy == "reservoir":
            if self.t <= self.size:
                self.rows.append(record)
            else:
                row = int(uniform(self.seed, self.t, 0) * self.t)
                if row < self.size:
                    self.rows[row] = record
        elif self.t == 1:
            self.rows = [record] * self.size
        elif self.t <= self.size:
            for row in range(self.size):
                if uniform(self.seed, self.t, row) < 1.0 / self.t:
                    self.rows[row] = record
        else:
            count = binomial(uniform(self.seed, self.t, self.size), self.size, 1.0 / self.t)
            for row in range(self.size):
                if uniform(self.seed, self.t, row) < count / (self.size - row):
                    self.rows[row] = record
                    count -= 1


def row_to_replace(policy: str, seed: int, t: int, size: int, coin: int) -> int:
    """Where record t (from 1) goes; -1: nowhere. FIFO by keeping who sits where from the first record on."""
    if policy == "fifo":
        occupants = [0] * size
        for record in range(1, t + 1):
            row = occupants.index(min(occupants))
            occupants[row] = record
        return row
    if policy == "full" or t <= size:
        return t - 1
    row = math.floor(uniform(seed, t, coin) * t)
    return row if row < size else -1
