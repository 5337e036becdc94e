"""Centre and spread of each feature, from all of its values: none of them is forgotten."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

#: A record: values by the place of the feature, NaN for a gap.
Record = dict[int, float]

REACH = 5.0
ENOUGH = 30
SETTLED = 64
LEAST_SPREAD = 1e-50


class Column:
    """One feature: its values, what counts as its centre and spread, and what kinds of column it is.

    Parameters
    ----------
    dense
        Whether it counts as given in at least half of the records, before anyone has looked.
    fixed
        Whether it is an indicator, of a text or of a gap.
    begun
        Whether its weight was given, in units of the raw feature.
    keep
        What a value counts for one value later.
    ends
        Whether the spread fades no more where the column has held one value for two half-lives.
    """

    def __init__(
        self,
        *,
        dense: bool = False,
        fixed: bool = False,
        begun: bool = False,
        keep: float = 1.0,
        ends: bool = False,
    ) -> None:
        self.dense, self.fixed, self.begun, self.keep, self.ends = dense, fixed, begun, keep, ends
        self.scaled = False
        self.cuts = 0.0  # values that were learned as nearer ones, faded
        self.count = 0
        self.known: set[float] = set()
        self.run: list[float] = []  # the newest value, as often as it came without another one between
        self.values: list[float] = []
        self.shares: list[float] = []  # what each of them counts for; together 1
        self.occurrences = 0
        self.centre, self.unit = 0.0, 1.0
        self.factor = 1.0  # what its weight has to be multiplied by

    @property
    def mean(self) -> float:
        return math.fsum(share * v for share, v in zip(self.shares, self.values, strict=True))

    @property
    def is_constant(self) -> bool:
        """Whether it has held its newest value for two half-lives."""
        return self.ends and self.keep ** (len(self.run) - 1) <= 0.25 * (1.0 + 1e-9)

    @property
    def varies(self) -> bool:
        return len(set(self.values)) > 1

    @property
    def distinct(self) -> set[float]:
        """The values that it has held; of a column that is not dense 0 is one of them."""
        return self.known if self.dense else {0.0, *self.known}

    @property
    def spread(self) -> float:
        """The standard deviation of a dense column; of another the root mean square."""
        if self.dense and not self.varies:
            return 0.0
        around = self.mean if self.dense else 0.0
        squares = ((v - around) ** 2 for v in self.values)
        return math.sqrt(math.fsum(share * s for share, s in zip(self.shares, squares, strict=True)))

    @property
    def spread_of_two(self) -> float:
        """What counts as the spread while it has held at most two values."""
        distinct = self.distinct or {0.0}
        if self.dense and len(distinct) > 1:
            return 0.5 * (max(distinct) - min(distinct))
        return max(map(abs, distinct)) or 1.0  # a constant, or 0 and one value

    def observe(self, x: float) -> float:
        """The value as it is learned, after it has changed the statistics."""
        if self.fixed:
            return x
        self.occurrences += 1
        if math.isnan(x):
            return x
        self.cuts *= self.keep
        near = self.nearer(x)
        self.cuts += near != x
        x = near
        self.count += 1
        count = self.count
        distinct = len(self.distinct)
        share = max(1.0 / count, 1.0 - self.keep)
        variance = math.fsum(s * (v - self.mean) ** 2 for s, v in zip(self.shares, self.values, strict=True))
        self.run = [*self.run, x] if x in self.run else [x]
        self.shares = [(1.0 - share) * before for before in self.shares] + [share]
        self.values.append(x)
        self.known = {*self.known, x}
        if (
            self.is_constant
        ):  # two values in the place of all, with the mean that they have now, and the spread before
            mean = self.mean
            self.values = [mean - math.sqrt(variance), mean + math.sqrt(variance)]
            self.shares = [0.5, 0.5]
        if self.begun:
            if count >= ENOUGH:
                self.begun, self.scaled = False, True
                self._change()
        elif not self.scaled and len(self.distinct) != distinct:
            self.scaled = len(self.distinct) > 2
            if count >= ENOUGH:
                self._change()
            else:
                self._measure()
        elif count < SETTLED or count % 8 == 0:
            self._measure()
        elif self.dense:
            self.centre = self.mean
        return x

    def nearer(self, x: float) -> float:
        """The value as it is learned: at most 5 spreads from the centre, twice as many after each cut."""
        if math.isnan(x) or self.fixed or self.count < ENOUGH or 0.0 in (self.spread, self.unit):
            return x
        reach = REACH * 2.0 ** int(self.cuts) / self.unit
        return min(max(x, self.centre - reach), self.centre + reach)

    def look(self, records: int) -> None:
        """See whether it was given in at least half of so many records."""
        dense = 2 * self.occurrences >= records
        if not self.fixed and dense != self.dense:
            self.dense = dense
            self.scaled = self.scaled or (not self.begun and len(self.distinct) > 2)
            self._change()

    def _measure(self) -> None:
        self.centre = self.mean if self.dense and not self.begun else 0.0
        if not self.begun:
            spread = self.spread if self.scaled else self.spread_of_two
            self.unit = 1.0 / spread if spread >= LEAST_SPREAD else 0.0

    def _change(self) -> None:
        """It is of another kind; its weight over its spread stays."""
        before = self.unit
        self._measure()
        if before > 0.0 and self.unit > 0.0:
            self.factor *= before / self.unit

    def standard(self, x: float) -> float:
        """A value in units of the spread from the centre; a gap is at the centre."""
        return 0.0 if math.isnan(x) else (x - self.centre) * self.unit


class Columns:
    """The columns of a learner, by their places.

    Parameters
    ----------
    scale
        False: centre 0 and spread 1, always.
    fixed
        Places of indicators.
    start
        Places of the columns whose weights were given.
    ends
        As of `Column`.
    """

    def __init__(
        self,
        scale: bool,
        keep: float = 1.0,
        fixed: Collection[int] = (),
        start: Iterable[int] = (),
        *,
        ends: bool = False,
    ) -> None:
        self.scale, self.keep, self.fixed, self.ends = scale, keep, fixed, ends
        self.records = 0
        self.by_place = {i: Column(dense=True, begun=True, keep=keep, ends=ends) for i in start if scale}

    def observe(self, x: Record) -> Record:
        """The record as it is learned, after it has changed the statistics."""
        self.records += 1
        if not self.scale:
            return {i: 0.0 if math.isnan(v) else v for i, v in x.items()}
        for i in x:
            if i not in self.by_place:
                first = self.records == 1
                self.by_place[i] = Column(dense=first, fixed=i in self.fixed, keep=self.keep, ends=self.ends)
        x = {i: self.by_place[i].observe(v) for i, v in x.items()}
        if math.log2(self.records).is_integer():
            for column in self.by_place.values():
                column.look(self.records)
        return x

    def factors(self) -> dict[int, float]:
        """What weights have to be multiplied by, since this was last asked."""
        found = {i: column.factor for i, column in self.by_place.items() if column.factor != 1.0}
        for i in found:
            self.by_place[i].factor = 1.0
        return found

    def standard(self, x: Record, d: int) -> list[float]:
        """All d features of a record, scaled: one that it lacks is 0."""
        if not self.scale:
            return [0.0 if math.isnan(x.get(i, 0.0)) else x.get(i, 0.0) for i in range(d)]
        unknown = Column()
        return [self.by_place.get(i, unknown).standard(x.get(i, 0.0)) for i in range(d)]

    def nearer(self, x: Record) -> Record:
        """The values of a record as they are learned."""
        return {i: self.by_place[i].nearer(v) if i in self.by_place else v for i, v in x.items()}

    def without_gaps(self, x: Record) -> Record:
        """The record with the centre for each gap."""
        return {i: self.centre(i) if math.isnan(v) else v for i, v in x.items()}

    def centre(self, i: int) -> float:
        return self.by_place[i].centre if i in self.by_place else 0.0

    def unit(self, i: int) -> float:
        return self.by_place[i].unit if i in self.by_place else 1.0


def as_record(x: Sequence[float] | Mapping[int, float]) -> Record:
    """A record by places; from a list, one that has all features."""
    return dict(x) if isinstance(x, Mapping) else dict(enumerate(x))


def weigh_all(w: list[float], units: list[float]) -> list[float]:
    """What each weight does to its feature less its centre."""
    return [a * b for a, b in zip(w, units, strict=True)]


def restore(columns: Mapping[int, Column], d: int) -> tuple[list[float], list[int]]:
    """What follows from the statistics of d columns: their centres, and the places of the centred ones."""
    centred = [i for i in range(d) if i in columns and columns[i].dense and not columns[i].fixed]
    return [columns[i].centre if i in columns else 0.0 for i in range(d)], centred
