"""Which events of a stream enter the sample that a regret is estimated from, and where they lie.

Events have one stratum, or two, by label. Each stratum has two reservoirs: *steps*, of which item j enters
with odds of about ``1 / sqrt(j)`` (Efraimidis and Spirakis 2006), and *records*, a uniform sample that the
partners of steps are drawn from (Algorithm L of Li 1994). Both know beforehand which item enters next, so an
event that does not enter costs a comparison, and a batch of which none enters two for each stratum. Of n
events of a stratum some ``size log(n / size)`` enter: they are few enough to be taken one by one.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Hit", "Reservoirs", "StepReservoir", "UniformReservoir"]

#: More events than there ever are.
_FOR_EVER = 1 << 62


class Hit(NamedTuple):
    """An event that enters the sample.

    Attributes
    ----------
    position
        Its index in the batch.
    stratum
        Of its label.
    record, step
        Its places among the records and among the steps; -1: it does not enter there.
    partner
        The place of the step's partner among the records; -1: there is none.
    weight
        Share of the events before it that its partner was drawn for.
    """

    position: int
    stratum: int
    record: int
    step: int
    partner: int
    weight: float


@dataclass
class UniformReservoir:
    """A uniform sample of the items of one stratum.

    Parameters
    ----------
    size
        How many items it holds.
    count
        Items so far.
    next
        Number of the item that enters next.
    log_w
        Logarithm of the largest of `size` uniform numbers that no item in the sample exceeds.
    """

    size: int
    count: int = 0
    next: int = 0
    log_w: float = 0.0

    def take(self, draw: random.Random) -> int:
        """Let the next item in: its place."""
        place = self.count if self.count < self.size else int(draw.random() * self.size)
        self.count += 1
        if self.count < self.size:
            self.next = self.count
            return place
        self.log_w += math.log(1.0 - draw.random()) / self.size  # 1 - u: never 0
        a = min(self.log_w, -1e-18)
        # log(1 - e^a), without cancellation at either end.
        log = math.log(-math.expm1(a)) if a > -0.7 else math.log1p(-math.exp(a))
        skip = math.log(1.0 - draw.random()) / log
        self.next = self.count + math.floor(min(skip, _FOR_EVER))
        return place


class StepReservoir:
    """A sample of the items of one stratum in which item j has odds of about ``1 / sqrt(shift + j)``.

    Parameters
    ----------
    size
        How many items it holds.
    shift
        Added to the number of an item in its odds.

    Attributes
    ----------
    ranks, order
        Of the item at each place: its rank, of which the smallest are kept, and its number; -1: none.
    count, next
        Items so far, and the number of the item that enters next.
    """

    def __init__(self, size: int, shift: int) -> None:
        self.size, self._shift = size, shift
        self.ranks: NDArray[np.float64] = np.full(size, math.inf)
        self.order: NDArray[np.float64] = np.full(size, -1.0)
        self.count = self.next = 0
        self._largest: list[tuple[float, int]] = []  # a heap of (-rank, place), once all places are taken

    def order_ranks(self) -> None:
        """Find the order of the ranks anew, after they were set."""
        self._largest = []
        if self.count >= self.size:
            self._largest = [(-rank, place) for place, rank in enumerate(self.ranks.tolist())]
            heapq.heapify(self._largest)

    def take(self, draw: random.Random) -> int:
        """Let the next item in: its place."""
        number = float(self._shift + self.count)
        odds = 2.0 / (math.sqrt(number + 1.0) + math.sqrt(number))
        if self.count < self.size:
            place = self.count
            self.ranks[place] = -math.log(1.0 - draw.random()) / odds
            self.order[place], self.count = self.count, self.count + 1
            if self.count == self.size:
                self.order_ranks()
        else:
            largest, place = -self._largest[0][0], self._largest[0][1]
            # The rank of an item that enters is known to be below the largest.
            rank = -math.log1p(draw.random() * math.expm1(-odds * largest)) / odds
            heapq.heapreplace(self._largest, (-rank, place))
            self.ranks[place], self.order[place], self.count = rank, self.count, self.count + 1
        if self.count < self.size:
            self.next = self.count
            return place
        # The odds add up to a square root, so the item at which their sum times the largest rank passes an
        # exponential variable has a closed form.
        root = math.sqrt(number + 1.0) - 0.5 * math.log(1.0 - draw.random()) / -self._largest[0][0]
        hit = math.ceil(min(root * root, _FOR_EVER)) - self._shift - 1
        self.next = max(self.count, hit)
        return place


class Reservoirs:
    """The reservoirs of all strata, and the events that enter them.

    Parameters
    ----------
    strata
        1, or 2: partners are then drawn from the other one.
    steps, records
        Capacity of each stratum. One more step is kept, for the weights of the others.
    exact
        Number of first events, none of which is a step.
    seed
        Of the sample.

    Attributes
    ----------
    seen
        Events of each stratum so far.
    uniform
        The number that the partner of the next step is drawn by: drawn in advance, so that it can be known
        before the event is learned.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.evaluation.reservoirs import Reservoirs
    >>> sample = Reservoirs(1, steps=16, records=16, exact=2, seed=1)
    >>> hits = sample.draw(np.zeros(10_000, dtype=np.uint8))
    >>> sample.seen, len(hits) < 300
    ([10000], True)
    """

    def __init__(self, strata: int, *, steps: int, records: int, exact: int, seed: int) -> None:
        self.exact, self.seen, self.closed = exact, [0] * strata, False
        self.steps = [StepReservoir(steps + 1, exact) for _ in range(strata)]
        self.records = [UniformReservoir(records) for _ in range(strata)]
        self.random = random.Random(seed)  # noqa: S311  (a sample, not a secret)
        self.uniform = self.random.random()

    def left(self, stratum: int) -> int:
        """Number of the next events of a stratum of which none enters."""
        if self.closed:
            return _FOR_EVER
        if sum(self.seen) < self.exact:
            return 0
        steps, records = self.steps[stratum], self.records[stratum]
        return min(steps.next - steps.count, records.next - records.count)

    def skip(self, stratum: int, number: int) -> None:
        """Count events that do not enter."""
        self.seen[stratum] += number
        self.steps[stratum].count += number
        self.records[stratum].count += number

    def partner(self, stratum: int) -> int:
        """The place among the records of the partner of a step that is next; -1: there is none."""
        other = len(self.seen) - 1 - stratum
        filled = min(self.records[other].count, self.records[other].size)
        return int(self.uniform * filled) + other * self.records[other].size if filled else -1

    def next(self, stratum: int) -> tuple[bool, bool, int]:
        """Whether the next event of a stratum enters the records and the steps, and its partner's place."""
        steps, records = self.steps[stratum], self.records[stratum]
        early = sum(self.seen) < self.exact
        step = not early and steps.count == steps.next
        return records.count == records.next, step, self.partner(stratum)

    def take(self, index: int, stratum: int) -> Hit | None:
        """Count the next event, which may enter: the places that it gets; None if it does not enter."""
        seen, other = sum(self.seen), len(self.seen) - 1 - stratum
        steps, records = self.steps[stratum], self.records[stratum]
        enters, step, partner = self.next(stratum)
        weight = 0.0
        if not step:
            partner = -1
        elif partner >= 0:
            weight = self.seen[other] / seen if len(self.seen) > 1 else 1.0
        record_place = step_place = -1
        if enters:
            record_place = records.take(self.random) + stratum * records.size
        else:
            records.count += 1
        if step:
            step_place = steps.take(self.random) + stratum * steps.size
            self.uniform = self.random.random()
        elif seen >= self.exact:
            steps.count += 1
        self.seen[stratum] += 1
        return Hit(index, stratum, record_place, step_place, partner, weight) if enters or step else None

    def draw(self, strata: NDArray[np.uint8]) -> list[Hit]:
        """Count events of these strata (n,), and draw which enter."""
        places = [np.flatnonzero(strata == stratum) for stratum in range(len(self.seen))]
        done, hits = [0] * len(places), list[Hit]()
        while True:
            candidates = [
                int(found[done[c] + self.left(c)]) if done[c] + self.left(c) < len(found) else len(strata)
                for c, found in enumerate(places)
            ]
            index = min(candidates)
            for c, found in enumerate(places):
                before = int(np.searchsorted(found, index))
                self.skip(c, before - done[c])
                done[c] = before
            if index == len(strata):
                return hits
            stratum = candidates.index(index)
            hit = self.take(index, stratum)
            done[stratum] += 1
            if hit is not None:
                hits.append(hit)
