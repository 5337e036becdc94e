"""Reservoir sampling of pairs of a stream, and the learner's margins on them."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, cast, overload

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair.errors import ConfigError, SnapshotError
from streampair.evaluation.reservoirs import Hit, Reservoirs

__all__ = [
    "Drawn",
    "PairSampler",
    "Records",
    "Row",
    "Sample",
    "Sampler",
    "Scorer",
    "in_order",
    "numbers",
    "pack_records",
    "stands_for",
    "unpack_records",
    "usable",
]

Array = NDArray[np.float64]

Row = dict[Any, float]


class Records(Sequence[Row]):
    """Records as rows of an array: a sequence of dicts, which are made on access.

    Parameters
    ----------
    names
        Of the columns.
    values
        (n, d); NaN where a record lacks the feature.
    """

    def __init__(self, names: Sequence[Any], values: Array) -> None:
        self.names, self.values = names, values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Row]:
        return iter(self[:])

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            values, names = self.values[index], self.names
            if not np.isnan(values).any():
                return [dict(zip(names, row, strict=True)) for row in values.tolist()]
            return [self._row(row) for row in values.tolist()]
        return self._row(self.values[index].tolist())

    def only(self, indices: list[int]) -> Records:
        """The records at these indices."""
        return Records(self.names, self.values[indices])

    def _row(self, values: list[float]) -> Row:
        return {name: v for name, v in zip(self.names, values, strict=True) if v == v}


def pack_records(rows: Sequence[Row | None]) -> dict[str, object]:
    """Rows as arrays: the tuples of names that occur, which of them each row has, and all values."""
    schemas: dict[tuple[Any, ...], int] = {}
    orders: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # most rows have the same names
    which = np.full(len(rows), -1, dtype=np.int32)
    values: list[float] = []
    for i, row in enumerate(rows):
        if row is not None:
            found = tuple(row)
            names = orders.get(found)
            if names is None:
                names = orders[found] = tuple(in_order(row))
            which[i] = schemas.setdefault(names, len(schemas))
            values += map(row.__getitem__, names)
    all_names: dict[Any, int] = {}
    columns = [all_names.setdefault(name, len(all_names)) for schema in schemas for name in schema]
    return {
        "names": list(all_names),
        "lengths": np.array([len(schema) for schema in schemas], dtype=np.int32),
        "columns": np.array(columns, dtype=np.int32),
        "which": which,
        "values": np.array(values, dtype=np.float64),
    }


def unpack_records(state: Mapping[str, Any]) -> list[Row | None]:
    """The rows that `pack_records` packed."""
    names, columns = list(state["names"]), state["columns"].tolist()
    schemas: list[list[Any]] = []
    place = 0
    for length in state["lengths"].tolist():
        schemas.append([names[c] for c in columns[place : place + length]])
        place += length
    values = state["values"].tolist()
    out: list[Row | None] = []
    place = 0
    for which in state["which"].tolist():
        if which < 0:
            out.append(None)
            continue
        schema = schemas[which]
        out.append(dict(zip(schema, values[place : place + len(schema)], strict=True)))
        place += len(schema)
    return out


def usable(row: Mapping[Any, Any]) -> Row:
    """The numeric features of a record; others are left out, as the learner ignored them."""
    kept = {}
    for name, value in row.items():
        try:
            kept[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
    return kept


def in_order(names: Iterable[Any]) -> list[Any]:
    """Names in a canonical order."""
    return sorted(names, key=lambda name: (type(name).__name__, name if type(name) is int else 0, str(name)))


# Columns of the tables of steps and of records.
STEP_ID = 0
STEP_PARTNER = 1
STEP_LABEL = 2
STEP_OTHER = 3  # label of the partner
STEP_WEIGHT = 4
STEP_MARGIN = 5
STEP_COLUMNS = 6
RECORD_ID = 0
RECORD_LABEL = 1
RECORD_COLUMNS = 2


class Sample:
    """Reservoirs of steps with a partner each, and of the records that partners are drawn from.

    Parameters
    ----------
    strata
        1, or 2: partners are then drawn from the other one.
    steps, records
        Capacity of each stratum. One more step is kept, for the weights of the others.
    exact
        Number of first events, none of which is a step.
    seed
        Seed of the sample.

    Attributes
    ----------
    steps, records
        Their numbers, a row for each place, by stratum. An id of -1 marks an empty place.
    rows
        The features of steps (``"own"``), of their partners (``"partner"``), and of records (``"past"``), by
        place; None: there is none.
    """

    def __init__(self, strata: int, steps: int, records: int, exact: int, seed: int) -> None:
        self.strata, self.size = strata, steps + 1
        self.drawn = Reservoirs(strata, steps=steps, records=records, exact=exact, seed=seed)
        self.steps = np.full((strata * self.size, STEP_COLUMNS), -1.0)
        self.steps[:, [STEP_LABEL, STEP_OTHER]] = math.nan
        self.steps[:, [STEP_WEIGHT, STEP_MARGIN]] = 0.0
        self.records = np.full((strata * records, RECORD_COLUMNS), -1.0)
        self.records[:, RECORD_LABEL] = math.nan
        self.rows = self._no_rows()

    def _no_rows(self) -> dict[str, list[Row | None]]:
        sizes = {"own": len(self.steps), "partner": len(self.steps), "past": len(self.records)}
        return {part: [None] * size for part, size in sizes.items()}

    # ---- drawing ---------------------------------------------------------------------------------------

    def ranks(self, stratum: int) -> tuple[Array, Array]:
        """The ranks of the steps of a stratum, and their numbers."""
        steps = self.drawn.steps[stratum]
        return steps.ranks, steps.order

    def counted(self, stratum: int) -> int:
        """Events of a stratum that were or could have been steps."""
        return self.drawn.steps[stratum].count

    # ---- keeping ---------------------------------------------------------------------------------------

    def keep(self, hits: Sequence[Hit], rows: Sequence[Row], labels: Array, first: int) -> list[Row]:
        """Store the drawn records at their places.

        Parameters
        ----------
        hits
            The events that enter.
        rows, labels
            Their records, and the numbers of their labels.
        first
            Number of the batch's first event in the stream.

        Returns
        -------
        sequence
            The partners of the steps that have one, as they are now.
        """
        records, partners, past = self.rows.values()
        others = []
        for hit, features, label in zip(hits, rows, labels.tolist(), strict=True):
            known = usable(features)
            row = {name: known[name] for name in in_order(known)}
            if hit.step >= 0:
                partner, number, other_label = None, -1.0, math.nan
                if hit.partner >= 0:
                    partner = past[hit.partner] or {}
                    number, other_label = self.records[hit.partner].tolist()
                    others.append(partner)
                self.steps[hit.step] = first + hit.position, number, label, other_label, hit.weight, 0.0
                records[hit.step], partners[hit.step] = row, partner
            if hit.record >= 0:
                self.records[hit.record] = first + hit.position, label
                past[hit.record] = row
        return others

    # ---- what is in it ---------------------------------------------------------------------------------

    def rows_at(self, part: str, places: Sequence[int] | NDArray[np.signedinteger[Any]]) -> list[Row]:
        """The records at these places of ``"own"``, ``"partner"`` or ``"past"``; there must be some."""
        return [self.rows[part][place] or {} for place in places]

    def clear(self) -> None:
        """Discard all records, and admit no more."""
        self.rows, self.drawn.closed = self._no_rows(), True

    # ---- state -----------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """The sample as plain values and arrays, independent of batching."""
        drawn = self.drawn
        counters: list[Any] = [*drawn.steps, *drawn.records]
        return {
            "samples": [[reservoir.count, reservoir.next] for reservoir in counters],
            "random": np.array(drawn.random.getstate()[1], dtype=np.uint64),
            "next_uniform": drawn.uniform,
            "log_w": [records.log_w for records in drawn.records],
            "rank": np.concatenate([steps.ranks for steps in drawn.steps]),
            "order": np.concatenate([steps.order for steps in drawn.steps]).astype(np.int64),
            **{part: pack_records(rows) for part, rows in self.rows.items()},
            "own_id": self.steps[:, STEP_ID].astype(np.int64),
            "partner_id": self.steps[:, STEP_PARTNER].astype(np.int64),
            "past_id": self.records[:, RECORD_ID].astype(np.int64),
            "margin": self.steps[:, STEP_MARGIN].copy(),
            "weight": self.steps[:, STEP_WEIGHT].copy(),
        }

    def load_state(self, state: Mapping[str, Any], n_seen: Sequence[int]) -> None:
        """Restore `to_state`, after `seen` events of each stratum; KeyError, TypeError, ValueError."""
        off, drawn = state["unusable"] is not None, self.drawn
        if len(state["samples"]) != 2 * self.strata:
            raise ValueError(f"{len(state['samples'])} samples")
        if min(map(min, state["samples"])) < 0 or not 0.0 <= state["next_uniform"] < 1.0:
            raise ValueError("counters that cannot be")
        reservoirs: list[Any] = [*drawn.steps, *drawn.records]
        for reservoir, (count, following) in zip(reservoirs, state["samples"], strict=True):
            reservoir.count, reservoir.next = int(count), int(following)
        for c, records in enumerate(drawn.records):
            drawn.seen[c], records.log_w = n_seen[c], float(state["log_w"][c])
        for name in ("rank", "order"):
            if np.shape(state[name]) != (self.strata * self.size,):
                raise ValueError(f"{name} has shape {np.shape(state[name])}")
        for c, steps in enumerate(drawn.steps):
            part = slice(c * self.size, (c + 1) * self.size)
            steps.ranks[:], steps.order[:] = state["rank"][part], state["order"][part]
            steps.order_ranks()
        drawn.random.setstate((3, tuple(state["random"].tolist()), None))
        drawn.uniform, drawn.closed = float(state["next_uniform"]), off
        self._load_tables(state, off)

    def _load_tables(self, state: Mapping[str, Any], off: bool) -> None:
        labels = {"own_label", "partner_label", "past_label"} & state.keys()
        columns = {
            **{"own_id": STEP_ID, "partner_id": STEP_PARTNER},
            **{"own_label": STEP_LABEL, "partner_label": STEP_OTHER},
            **{"margin": STEP_MARGIN, "weight": STEP_WEIGHT},
        }
        steps = np.full(self.steps.shape, math.nan)
        records = np.full(self.records.shape, math.nan)
        past = {"past_id": RECORD_ID, "past_label": RECORD_LABEL}
        for table, places in ((steps, columns), (records, past)):
            for name, column in places.items():
                if name.endswith("_label") and name not in labels:
                    continue
                value = state[name]
                if value.shape != (len(table),):
                    raise ValueError(f"{name} has shape {value.shape}")
                table[:, column] = value
        self.steps, self.records = steps, records
        self.rows = {part: unpack_records(state[part]) for part in ("own", "partner", "past")}
        numbers = {
            "own": steps[:, STEP_ID],
            "partner": steps[:, STEP_PARTNER],
            "past": records[:, RECORD_ID],
        }
        for part, rows in self.rows.items():
            present = (numbers[part] >= 0.0) & (not off)
            if [row is not None for row in rows] != present.tolist():
                raise ValueError(f"{len(rows)} rows in {part}, or not where they should be")


def stands_for(ranks: Array, order: Array, count: int, shift: int) -> Array:
    """Number of items that the item at each place represents, (size,); 0 for an item outside the sample.

    Item j has the rank Exp(v_j), ``v_j = 2 (sqrt(shift + j + 1) - sqrt(shift + j))``, and the smallest ranks
    are kept. Given the largest kept rank tau, every other item is in the sample independently, with
    probability ``1 - exp(-v_j tau)``.

    Parameters
    ----------
    ranks, order
        Ranks of the kept items, and their numbers; -1: none.
    count
        Number of items so far.
    shift
        Offset of the item numbers in v_j.
    """
    if count < len(ranks):
        return np.where(order >= 0, 1.0, 0.0)
    tau = ranks.max()
    odds = 2.0 / (np.sqrt(shift + order + 1.0) + np.sqrt(shift + order))
    inverse = np.where(ranks < tau, -1.0 / np.expm1(-odds * tau), 0.0)
    out: Array = inverse * (count / inverse.sum())
    return out


Features = Mapping[Any, Any]
Scorer = Callable[[Any], float]

#: Types of feature names that a snapshot can hold.
_NAMES: Final = frozenset({str, int})


class Drawn:
    """Events of a batch that enter the sample, drawn before the batch is learned.

    Attributes
    ----------
    indices
        Indices in the batch of the drawn records.
    stops
        Indices of the steps that have a partner.
    others
        The partners, once the records were kept.
    """

    def __init__(self, hits: Sequence[Hit] = (), first: int = 0) -> None:
        self.hits, self.first = hits, first
        paired = [hit for hit in hits if hit.partner >= 0]
        self.indices = [hit.position for hit in hits]
        self.stops = [hit.position for hit in paired]
        self.places = [hit.step for hit in paired]
        self.others: Sequence[Row] = ()


class Sampler(abc.ABC):
    """Base class: a sample of the pairs of a stream, with the margins of the learner at the time.

    The parameters are those of `PairRegret`.
    """

    #: Number of strata of labels. If there are two, partners are from the other one.
    _strata: ClassVar[int]

    def __init__(
        self, loss: Any = None, radius: float = 1.0, *, pairs: int = 1024, exact: int = 64, seed: int = 0
    ) -> None:
        if pairs < 16 or exact < 2 or not radius > 0.0 or not math.isfinite(radius):
            raise ConfigError(
                f"{type(self).__name__}(radius={radius}, pairs={pairs}, exact={exact}) cannot work",
                fix="give a positive radius, at least 16 pairs and an exact part of at least 2 events",
            )
        self.loss = losses.Hinge() if loss is None else loss
        self.radius = float(radius)
        self.pairs = pairs
        self.exact = exact
        self.seed = seed
        #: Whether records are known to hold finite numbers only: a learner of streampair has scored them.
        self.trusting = False
        #: Why there is no estimate; None while there is one.
        self.unusable: str | None = None
        self._first: list[tuple[Row, Any]] = []
        self._first_loss = 0.0
        size = pairs // self._strata
        self._sample = Sample(self._strata, size, size, exact, seed)
        self._warm = np.zeros(0)
        self._solve_at = 2
        # Whether the exact part is over.
        self._later = False

    # ---- what a kind of label provides -----------------------------------------------------------------

    @abc.abstractmethod
    def _stratum(self, y: Any) -> int:
        """The stratum of a label."""

    @abc.abstractmethod
    def _numbers_of(self, ys: Sequence[Any]) -> Array:
        """Labels as the numbers (k,) that the sample stores."""

    @abc.abstractmethod
    def _set_weights(self, places: NDArray[np.int64]) -> None:
        """Set the weights of the steps at these places, if they depend on labels."""

    @abc.abstractmethod
    def _margin(self, place: int, score: float, partner_score: float) -> float:
        """Margin of the step at this place, from its score and that of its partner."""

    # ---- observing -------------------------------------------------------------------------------------

    @property
    def n_seen(self) -> int:
        """Labelled events observed."""
        return sum(self._sample.drawn.seen)

    @property
    def due(self) -> bool:
        """Whether the stream has grown enough since the last estimate for another one to be cheap."""
        return self.n_seen >= self._solve_at and self.unusable is None

    @property
    def n_to_skip(self) -> list[int]:
        """For each stratum, the number of next events that cannot enter the sample."""
        return [self._sample.drawn.left(c) for c in range(self._strata)]

    def enters(self, y: Any) -> bool:
        """Whether the next event of this label may enter the sample."""
        return self._sample.drawn.left(self._stratum(y)) <= 0

    def observe(self, x: Features, y: Any, score: float, scorer: Scorer) -> None:
        """Observe one labelled event, after it was scored and before it is learned.

        Parameters
        ----------
        x
            The record as the learner sees it.
        y
            Its label; of two classes, whether it has the positive one.
        score
            The learner's score of `x`.
        scorer
            The learner's scoring function, for the partner.
        """
        if self.enters(y):
            self.commit(self.prepare(x, y, score, scorer), y)
        else:
            self.skip_labels([y])

    def _strata_of(self, labels: Sequence[Any]) -> NDArray[np.uint8]:
        """The stratum of each."""
        if self._strata == 1:
            return np.zeros(len(labels), dtype=np.uint8)
        return np.frombuffer(labels if isinstance(labels, bytes) else bytes(labels), dtype=np.uint8)

    def _skip_batch(self, labels: Sequence[Any]) -> bool:
        """Count these events if none enters the sample; False, with nothing changed, if one does."""
        sample, n = self._sample, len(labels)
        ones = 0
        if self._strata == 2:
            if not isinstance(labels, bytes):
                return False  # to count them would take as long as to draw
            ones = labels.count(1)
            if ones > sample.drawn.left(1):
                return False
        if n - ones > sample.drawn.left(0):
            return False
        self.skip(n - ones, ones)
        return True

    def hits(self, labels: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
        """Indices of events that may enter the sample, and numbers of events to skip before each.

        Yields (index, events of the first stratum to skip, events of the second), and at the end the number
        of labels as the index. The caller must skip, prepare and commit everything up to an index before it
        takes the next one.
        """
        n, strata = len(labels), self._strata_of(labels)
        places = [np.flatnonzero(strata == c).tolist() for c in (0, 1)]
        order = [*self.n_to_skip, 0][:2]  # of the next event of interest among those of its stratum
        done = [0, 0]
        while True:
            next_hits = [
                positions[k] if k < len(positions) else n for positions, k in zip(places, order, strict=True)
            ]
            stop = min(next_hits)
            if stop == n:
                yield n, len(places[0]) - done[0], len(places[1]) - done[1]
                return
            c = int(next_hits[1] == stop)
            before = [order[0], stop - order[0]] if c == 0 else [stop - order[1], order[1]]
            yield stop, before[0] - done[0], before[1] - done[1]
            before[c] += 1
            done = before
            order[c] += 1 + self._sample.drawn.left(c)

    def skip_labels(self, labels: Sequence[Any]) -> None:
        """Count events that do not enter the sample: of each stratum at most `n_to_skip`."""
        ones = int(np.count_nonzero(self._strata_of(labels))) if labels else 0
        self.skip(len(labels) - ones, ones)

    def skip(self, zeros: int, ones: int) -> None:
        """Count events of the first and of the second stratum that do not enter the sample."""
        self._sample.drawn.skip(0, zeros)
        if ones:
            self._sample.drawn.skip(1, ones)

    # ---- batches ---------------------------------------------------------------------------------------

    def draw(self, labels: Sequence[Any], *, numbers: bool = False) -> Drawn | None:
        """Count a batch that is learned at once, and draw by labels which of its events enter the sample.

        Parameters
        ----------
        labels
            Of the events; of two classes they may be bytes, 1 for the positive one and else 0.
        numbers
            Whether these records, if not all, are known to hold finite numbers only.

        Returns
        -------
        Drawn or None
            For `keep` and `record_scores`. None, with nothing changed,
            where events are to be observed one by one: in the exact part, and if records may hold anything.
        """
        first = 0 if self._later else self.n_seen
        self._later = self._later or first >= self.exact
        if not self._later or not (self.trusting or numbers or self.unusable is not None):
            return None
        if self._skip_batch(labels):
            return Drawn()
        first = self.n_seen
        return Drawn(self._sample.drawn.draw(self._strata_of(labels)), first)

    def keep(self, drawn: Drawn, rows: Sequence[Features], labels: Sequence[Any]) -> None:
        """Store the drawn records, before the batch is learned; sets the partners of `drawn`.

        Parameters
        ----------
        drawn
            The result of `draw`.
        rows
            The records at its places, as the learner sees them: dicts, or `Records`.
        labels
            Of the batch.
        """
        numbers = self._numbers_of([labels[i] for i in drawn.indices])
        drawn.others = self._sample.keep(drawn.hits, cast("Sequence[Row]", rows), numbers, drawn.first)
        if drawn.stops:
            self._set_weights(np.array(drawn.places))

    def record_scores(self, drawn: Drawn, scores: Sequence[float], partner_scores: Sequence[float]) -> None:
        """Record the margins of the drawn steps, once the batch is learned.

        Parameters
        ----------
        drawn
            The argument of `keep`.
        scores
            Of the batch.
        partner_scores
            The score of each partner as it was before the record that it is a partner of was learned.
        """
        steps = self._sample.steps
        # If two steps of a batch have the same place, the later one stays.
        for index, place, partner_score in zip(drawn.stops, drawn.places, partner_scores, strict=True):
            steps[place, STEP_MARGIN] = self._margin(place, scores[index], partner_score)

    # ---- one event -------------------------------------------------------------------------------------

    @abc.abstractmethod
    def prepare(self, x: Features, y: Any, score: float, scorer: Scorer) -> tuple[Row | None, float] | None:
        """Compute an event's penalty or margin, before it is learned; changes nothing.

        Returns
        -------
        tuple or None
            The record, None if it has features that are no numbers; and in the exact part its penalty, or
            else its margin with the partner. None: it does not enter the sample.
        """

    def _usable_row(self, x: Features) -> Row | None:
        row = numbers(x)
        return usable(x) if row is None and self.trusting else row

    def commit(self, step: tuple[Row | None, float] | None, y: Any) -> None:
        """Count an event after it was learned, and put it into the sample as prepared."""
        stratum, index = self._stratum(y), self.n_seen
        if step is not None and step[0] is None:
            self.disable("a feature of the stream is not a finite number")
        if self.unusable is not None:
            self._sample.drawn.skip(stratum, 1)
            return
        hit = self._sample.drawn.take(0, stratum)
        if step is None:
            return
        x, value = cast("tuple[Row, float]", step)
        if hit is not None:
            self._sample.keep([hit], [x], self._numbers_of([y]), index)
            if hit.step >= 0:
                self._set_weights(np.array([hit.step]))
                self._sample.steps[hit.step, STEP_MARGIN] = value
        if index < self.exact:
            self._first.append(({name: x[name] for name in in_order(x)}, float(self._numbers_of([y])[0])))
            self._first_loss += value

    def disable(self, why: str) -> None:
        """End the estimation and discard the sample; from now on events are only counted."""
        self.unusable = why
        self._first = []
        self._sample.clear()

    # ---- state -----------------------------------------------------------------------------------------

    def params(self) -> dict[str, object]:
        """Parameters that a saved sample must have been made with."""
        return {
            "loss": repr(self.loss),
            "radius": self.radius,
            "pairs": self.pairs,
            "exact": self.exact,
            "seed": self.seed,
        }

    def to_state(self) -> dict[str, object]:
        """The sample as plain values and arrays, for a snapshot."""
        return {
            "params": self.params(),
            "unusable": self.unusable,
            **self._counts_state(),
            **self._sample.to_state(),
            "first": pack_records([row for row, _ in self._first]),
            "first_labels": self._labels_of_first(),
            "first_loss": self._first_loss,
            "warm": self._warm.copy(),
            "solve_at": self._solve_at,
        }

    @abc.abstractmethod
    def _counts_state(self) -> dict[str, object]:
        """State of the numbers of events in each stratum, and further state of the label type."""

    @abc.abstractmethod
    def _counts_from(self, state: Mapping[str, Any]) -> list[int]:
        """Numbers of events by stratum, from a state."""

    @abc.abstractmethod
    def _labels_of_first(self) -> NDArray[Any]:
        """Labels of the exact part."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `to_state` of an object with the same parameters.

        Raises
        ------
        SnapshotError
            If the parameters differ or the state is damaged.
        """
        if state.get("params") != self.params():
            raise SnapshotError(
                f"the regret in the snapshot was estimated with {state.get('params')}, now {self.params()}",
                fix="put the old settings back; regret cannot be estimated for events that have gone by",
            )
        try:
            self._later = False
            self.unusable = state["unusable"]
            self._sample.load_state(state, self._counts_from(state))
            rows = cast("list[Row]", unpack_records(state["first"]))
            self._first = list(zip(rows, state["first_labels"].astype(np.float64).tolist(), strict=True))
            self._first_loss = float(state["first_loss"])
            self._warm = state["warm"].copy()
            self._solve_at = int(state["solve_at"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise SnapshotError(
                f"the regret in the snapshot cannot be read ({error})", fix="restore an undamaged snapshot"
            ) from error


def numbers(x: Features) -> Row | None:
    """The record with plain floats, or None if it has anything else."""
    if not _NAMES.issuperset(map(type, x)):
        return None
    try:
        row = {name: math.nan if isinstance(v, str | bytes) else float(v) for name, v in x.items()}
    except (TypeError, ValueError, OverflowError):
        return None
    return row if all(map(math.isfinite, row.values())) else None


class PairSampler(Sampler):
    """A sample of the pairs of a stream, stratified by label, with the margins of the learner at the time.

    The parameters are those of `PairRegret`, which estimates from it.
    """

    _strata: ClassVar[int] = 2

    def _stratum(self, y: bool) -> int:
        return 1 if y else 0

    def _numbers_of(self, ys: Sequence[bool]) -> Array:
        return np.array(ys, dtype=np.float64)

    def _set_weights(self, places: NDArray[np.int64]) -> None:
        """Do nothing: the weight was drawn with the step."""

    def _margin(self, place: int, score: float, partner_score: float) -> float:
        """Twice the difference of the scores, positive minus negative."""
        return (2.0 if place >= self._sample.size else -2.0) * (score - partner_score)

    def prepare(
        self, x: Features, label: bool, score: float, scorer: Scorer
    ) -> tuple[Row | None, float] | None:
        """As in the base."""
        early = self.n_seen < self.exact
        keep_record, keep_step, place = self._sample.drawn.next(self._stratum(label))
        if self.unusable is not None or not (early or keep_record or keep_step):
            return None
        row = self._usable_row(x)
        sign = 2.0 if label else -2.0
        if row is None:
            return None, 0.0
        if early:
            margins = [sign * (score - scorer(x2)) for x2, y2 in self._first if y2 != label]
            return row, float(np.sum(self.loss.value(np.array(margins)))) / self.n_seen if margins else 0.0
        if not keep_step or place < 0:
            return row, 0.0
        return row, sign * (score - scorer(self._sample.rows_at("past", [place])[0]))

    def _counts_state(self) -> dict[str, object]:
        return {"counts": list(self._sample.drawn.seen)}

    def _counts_from(self, state: Mapping[str, Any]) -> list[int]:
        zeros, ones = state["counts"]
        return [int(zeros), int(ones)]

    def _labels_of_first(self) -> NDArray[Any]:
        return np.array([label for _, label in self._first], dtype=np.bool_)
