"""Samples of a stream that know beforehand which item enters next, and the tables of what was sampled.

What is drawn, and where it is put, does not depend on how events come in batches: one after the other, a
batch draws the same uniform numbers (`streampair.kernels.sampling`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels
from streampair.evaluation.rows import Records, Row, in_order, pack_records, unpack_records, usable
from streampair.kernels import sampling as layout

__all__ = ["Sample", "stands_for"]

Array = NDArray[np.float64]

#: Names that a table of numbers may have, and how many times those of the record that brings new ones: beyond
#: it the table would hold little but what is missing.
_NARROW = 64
_SPARSE = 4


_NOTHING: tuple[list[int], list[int], Records] = ([], [], Records((), np.empty((0, 0))))


class Sample:
    """Steps with a partner each, and the records that partners are drawn from.

    Parameters
    ----------
    strata
        1, or 2: partners are then drawn from the other one.
    steps, records
        Room for, in each stratum; of the steps one more is kept, by which the others are weighed.
    exact
        Of so many first events none is a step.
    seed
        Of what is drawn.

    Attributes
    ----------
    steps, records
        The tables, a row for each place, by stratum: see `streampair.kernels.sampling`. An id of -1 marks a
        place that nothing is in.
    names
        Of the features, in the order of the columns.
    """

    def __init__(self, strata: int, steps: int, records: int, exact: int, seed: int) -> None:
        size = steps + 1
        self.strata, self.size, self._exact = strata, size, exact
        self._state = np.zeros(layout.SAMPLE_HEADER + strata * (layout.SAMPLE_STRATUM + 3 * size))
        self._state[[layout.SAMPLE_STRATA, layout.SAMPLE_EXACT]] = strata, exact
        self._state[[layout.SAMPLE_STEPS, layout.SAMPLE_RECORDS]] = size, records
        for ranks, order in map(self.ranks, range(strata)):
            ranks.fill(math.inf)
            order.fill(-1.0)
        draw = random.Random(seed)  # noqa: S311  (a sample, not a secret)
        # Drawn beforehand, so that a look at the next partner changes nothing.
        self._state[layout.SAMPLE_NEXT] = draw.random()
        self._words = np.array(draw.getstate()[1], dtype=np.uint64)
        self._hits = np.empty((64, layout.SAMPLE_HIT))
        self._stops, self._others = np.empty((2, 0), dtype=np.int64), np.empty((0, 0))
        self._one = [np.array([c], dtype=np.uint8) for c in range(strata)]
        self.names: tuple[Any, ...] = ()
        self._take: Any = None
        self.steps = np.full((strata * size, layout.STEP_COLUMNS), -1.0)
        self.steps[:, [layout.STEP_LABEL, layout.STEP_OTHER]] = math.nan
        self.steps[:, [layout.STEP_WEIGHT, layout.STEP_MARGIN]] = 0.0
        self.records = np.full((strata * records, layout.RECORD_COLUMNS), -1.0)
        self.records[:, layout.RECORD_LABEL] = math.nan
        #: In place of the columns, where records have too many different features for a table.
        self._loose: dict[str, list[Row | None]] | None = None

    # ---- drawing ---------------------------------------------------------------------------------------

    def _of(self, what: int, stratum: int) -> float:
        return self._state.item(layout.SAMPLE_HEADER + stratum * layout.SAMPLE_STRATUM + what)

    def ranks(self, stratum: int) -> tuple[Array, Array]:
        """Views of the ranks of the steps of a stratum, and of their numbers."""
        first = layout.SAMPLE_HEADER + self.strata * layout.SAMPLE_STRATUM + stratum * 3 * self.size
        return self._state[first : first + self.size], self._state[first + self.size : first + 2 * self.size]

    def seen(self, stratum: int) -> int:
        """Events of a stratum so far."""
        return int(self._of(layout.SEEN, stratum))

    def left(self, stratum: int) -> int:
        """Number of its next events of which none enters."""
        return int(self._of(layout.LEFT, stratum))

    def counted(self, stratum: int) -> int:
        """Events of a stratum that were or could have been steps."""
        return int(self._of(layout.STEP, stratum))

    def next(self, stratum: int) -> tuple[bool, bool, int]:
        """Whether its next event enters records and steps, and the place of its partner; -1: none."""
        early = sum(map(self.seen, range(self.strata))) < self._exact
        record = self._of(layout.RECORD, stratum) == self._of(layout.RECORD_HIT, stratum)
        step = not early and self._of(layout.STEP, stratum) == self._of(layout.STEP_HIT, stratum)
        other = self.strata - 1 - stratum
        size = len(self.records) // self.strata
        filled = min(int(self._of(layout.RECORD, other)), size)
        place = int(self._state[layout.SAMPLE_NEXT] * filled) + other * size if filled else -1
        return record, step, place

    def pass_over(self, stratum: int, number: int) -> None:
        """Count so many events that do not enter."""
        if number:
            state, own = self._state, layout.SAMPLE_HEADER + stratum * layout.SAMPLE_STRATUM
            state[own + layout.LEFT] -= number
            for what in (layout.SEEN, layout.STEP, layout.RECORD):
                state[own + what] += number

    def draw(self, strata: NDArray[np.uint8]) -> Array:
        """Count events of these strata (n,), and draw which enter: a row each, until the next call.

        Its columns are those of `streampair.kernels.sampling`, from `HIT_AT` on.
        """
        if len(strata) > len(self._hits):
            self._hits = np.empty((2 * len(strata), layout.SAMPLE_HIT))
        return self._hits[: kernels.sample_draw(self._state, self._words, strata, self._hits)]

    def take(self, strata: NDArray[np.uint8], rows: Records) -> tuple[list[int], list[int], Records] | None:
        """`draw` and `keep` of a batch whose labels are its strata, in one call; None if it needs two.

        Returns
        -------
        tuple or None
            Of the steps that have a partner, the indices in the batch, the places, and the partners.
        """
        if rows.names != self.names or not self.names or self._loose is not None:
            return None
        n = len(strata)
        if n > self._others.shape[0] or self._others.shape[1] != len(self.names):
            self._hits = np.empty((2 * n, layout.SAMPLE_HIT))
            self._stops, self._others = (
                np.empty((2, 2 * n), dtype=np.int64),
                np.empty((2 * n, len(self.names))),
            )
        count = kernels.sample_take(
            *(self._state, self._words, strata, self._hits, np.ascontiguousarray(rows.values)),
            *(self.steps, self.records, self._others, self._stops),
        )
        if not count:
            return _NOTHING
        at, places = self._stops[:, :count].tolist()
        return at, places, Records(self.names, self._others[:count])

    def draw_one(self, stratum: int) -> Array:
        """`draw` of one event."""
        return self.draw(self._one[stratum])

    # ---- keeping ---------------------------------------------------------------------------------------

    def keep(self, hits: Array, rows: Sequence[Row], labels: Array, first: int) -> Sequence[Row]:
        """Put what was drawn in its place.

        Parameters
        ----------
        hits
            What `draw` gave last.
        rows, labels
            The records of the hits, and the numbers of their labels.
        first
            Number of the batch's first event in the stream.

        Returns
        -------
        sequence
            The partners of the steps that have one, as they are now.
        """
        try:
            values = None if self._loose is not None else self._values(rows)
        except (TypeError, ValueError, OverflowError):
            rows = [usable(row) for row in rows]
            values = self._values(rows)
        loose = None
        if values is None:
            values, loose = np.empty((len(rows), 0)), self._keep_loose(hits, rows)
        others = np.empty(values.shape)
        count = kernels.sample_keep(hits, values, labels, first, self.steps, self.records, others)
        return Records(self.names, others[:count]) if loose is None else loose

    def _values(self, rows: Sequence[Row]) -> Array | None:
        """Rows as the table has them, which grows for them; None if they do not fit into one."""
        if isinstance(rows, Records):
            if not self._know(rows.names, len(rows.names)):
                return None
            if tuple(rows.names) == self.names:
                return np.ascontiguousarray(rows.values)
            out = np.full((len(rows), len(self.names)), math.nan)
            index = {name: j for j, name in enumerate(self.names)}
            out[:, [index[name] for name in rows.names]] = rows.values
            return out
        told = []
        for row in rows:
            try:
                if len(row) != len(self.names):
                    raise KeyError
                told.append(self._take(row))
            except (KeyError, TypeError):
                if not self._know(row, len(row)):
                    return None
                told.append([row.get(name, math.nan) for name in self.names])
        if any(len(values) != len(self.names) for values in told):
            told = [[row.get(name, math.nan) for name in self.names] for row in rows]
        return np.array(told, dtype=np.float64).reshape(len(rows), len(self.names))

    def _know(self, names: Any, count: int) -> bool:
        """Make columns for these names; False, with no columns at all from now on, if there were too many."""
        if set(names) <= set(self.names):
            return True
        known = tuple(in_order({*self.names, *names}))
        if len(known) > max(_NARROW, _SPARSE * count) and self.names:
            self._loosen()
            return False
        old = self.names
        place = [known.index(name) for name in old]
        self.names, self._take = known, itemgetter(*known) if len(known) > 1 else None
        tables = ("steps", layout.STEP_COLUMNS, 2), ("records", layout.RECORD_COLUMNS, 1)
        for name, columns, parts in tables:
            table = getattr(self, name)
            wide = np.full((len(table), columns + parts * len(known)), math.nan)
            wide[:, :columns] = table[:, :columns]
            for part in range(parts):
                begin = columns + part * len(old)
                wide[:, [columns + part * len(known) + j for j in place]] = table[:, begin : begin + len(old)]
            setattr(self, name, wide)
        return True

    def _loosen(self) -> None:
        """Keep records as they are from now on."""
        self._loose = {part: self.rows(part) for part in ("own", "partner", "past")}
        self.names, self._take = (), None
        self.steps = np.ascontiguousarray(self.steps[:, : layout.STEP_COLUMNS])
        self.records = np.ascontiguousarray(self.records[:, : layout.RECORD_COLUMNS])

    def _keep_loose(self, hits: Array, rows: Sequence[Row]) -> list[Row]:
        assert self._loose is not None
        own, partner, past = self._loose.values()
        others = []
        places = hits[:, [layout.HIT_RECORD, layout.HIT_STEP, layout.HIT_PARTNER]].astype(np.int64).tolist()
        for (record, step, place), given in zip(places, rows, strict=True):
            told = usable(given)
            row = {name: told[name] for name in in_order(told)}
            if step >= 0:
                other = past[place] if place >= 0 else None
                own[step], partner[step] = row, other
                if other is not None:
                    others.append(other)
            if record >= 0:
                past[record] = row
        return others

    # ---- what is in it ---------------------------------------------------------------------------------

    def _part(self, part: str) -> tuple[Array, NDArray[np.bool_]]:
        """The features of a part by place, and whether there is a record."""
        d = len(self.names)
        if part == "past":
            return self.records[:, layout.RECORD_COLUMNS :], self.records[:, layout.RECORD_ID] >= 0.0
        begin = layout.STEP_COLUMNS + (d if part == "partner" else 0)
        which = layout.STEP_ID if part == "own" else layout.STEP_PARTNER
        return self.steps[:, begin : begin + d], self.steps[:, which] >= 0.0

    def at(self, part: str, places: Sequence[int] | NDArray[np.signedinteger[Any]]) -> Sequence[Row]:
        """The records at these places of ``"own"``, ``"partner"`` or ``"past"``; there must be some."""
        if self._loose is not None:
            return [self._loose[part][place] or {} for place in places]
        return Records(self.names, self._part(part)[0][places])

    def rows(self, part: str) -> list[Row | None]:
        """The records of a part by place; None where there is none."""
        if self._loose is not None:
            return self._loose[part]
        values, present = self._part(part)
        return [
            row if there else None
            for row, there in zip(Records(self.names, values)[:], present.tolist(), strict=True)
        ]

    def clear(self) -> None:
        """Forget all records, and let none enter any more."""
        self.steps = np.ascontiguousarray(self.steps[:, : layout.STEP_COLUMNS])
        self.records = np.ascontiguousarray(self.records[:, : layout.RECORD_COLUMNS])
        self.names, self._take = (), None
        empty: list[Row | None] = [None] * len(self.steps)
        self._loose = {"own": empty, "partner": empty, "past": [None] * len(self.records)}
        self._state[layout.SAMPLE_OFF] = 1.0
        kernels.sample_left(self._state)

    # ---- state -----------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """What is in it as plain values and arrays: the same however records came, and however they lie."""
        strata = range(self.strata)
        return {
            "samples": [
                [int(self._of(count, c)), int(self._of(hit, c))]
                for count, hit in ((layout.STEP, layout.STEP_HIT), (layout.RECORD, layout.RECORD_HIT))
                for c in strata
            ],
            "random": self._words.copy(),
            "next_uniform": float(self._state[layout.SAMPLE_NEXT]),
            "log_w": [self._of(layout.LOG_W, c) for c in strata],
            "rank": np.concatenate([self.ranks(c)[0] for c in strata]),
            "order": np.concatenate([self.ranks(c)[1] for c in strata]).astype(np.int64),
            **{part: self._packed(part) for part in ("own", "partner", "past")},
            "own_id": self.steps[:, layout.STEP_ID].astype(np.int64),
            "partner_id": self.steps[:, layout.STEP_PARTNER].astype(np.int64),
            "past_id": self.records[:, layout.RECORD_ID].astype(np.int64),
            "margin": self.steps[:, layout.STEP_MARGIN].copy(),
            "weight": self.steps[:, layout.STEP_WEIGHT].copy(),
        }

    def _packed(self, part: str) -> dict[str, object]:
        values, present = self._part(part)
        values = values[present]
        if self._loose is not None or not len(values) or np.isnan(values).any():
            return pack_records(self.rows(part))
        return {
            "names": list(self.names),
            "lengths": np.array([len(self.names)], dtype=np.int32),
            "columns": np.arange(len(self.names), dtype=np.int32),
            "which": np.where(present, 0, -1).astype(np.int32),
            "values": values.ravel(),
        }

    def load_state(self, state: Mapping[str, Any], seen: Sequence[int]) -> None:
        """Go on from `to_state`, after so many events of each stratum; KeyError, TypeError, ValueError."""
        strata, off = range(self.strata), state["unusable"] is not None
        if len(state["samples"]) != 2 * self.strata:
            raise ValueError(f"{len(state['samples'])} samples")
        if min(map(min, state["samples"])) < 0 or not 0.0 <= state["next_uniform"] < 1.0:
            raise ValueError("counters that cannot be")
        counters = zip(state["samples"][: self.strata], state["samples"][self.strata :], strict=True)
        log_w = state["log_w"]
        for c, (steps, records) in enumerate(counters):
            own = layout.SAMPLE_HEADER + c * layout.SAMPLE_STRATUM
            self._state[[own + layout.STEP, own + layout.STEP_HIT]] = [int(count) for count in steps]
            self._state[[own + layout.RECORD, own + layout.RECORD_HIT]] = [int(count) for count in records]
            self._state[own + layout.SEEN] = seen[c]
            self._state[own + layout.LOG_W] = log_w[c]
        for name, part in (("rank", 0), ("order", 1)):
            given = np.asarray(state[name], dtype=np.float64)
            if given.shape != (self.strata * self.size,):
                raise ValueError(f"{name} has shape {given.shape}")
            for c in strata:
                self.ranks(c)[part][:] = given[c * self.size : (c + 1) * self.size]
        check = random.Random()  # noqa: S311
        check.setstate((3, tuple(state["random"].tolist()), None))
        self._words = np.array(check.getstate()[1], dtype=np.uint64)
        self._state[layout.SAMPLE_NEXT] = float(state["next_uniform"])
        self._state[layout.SAMPLE_OFF] = off
        kernels.sample_heap(self._state)
        kernels.sample_left(self._state)
        self._load_tables(state, off)

    def _load_tables(self, state: Mapping[str, Any], off: bool) -> None:
        labels = {"own_label", "partner_label", "past_label"} & state.keys()
        columns = {
            **{"own_id": layout.STEP_ID, "partner_id": layout.STEP_PARTNER},
            **{"own_label": layout.STEP_LABEL, "partner_label": layout.STEP_OTHER},
            **{"margin": layout.STEP_MARGIN, "weight": layout.STEP_WEIGHT},
        }
        self.names, self._take, self._loose = (), None, None
        steps = np.full((len(self.steps), layout.STEP_COLUMNS), math.nan)
        records = np.full((len(self.records), layout.RECORD_COLUMNS), math.nan)
        past = {"past_id": layout.RECORD_ID, "past_label": layout.RECORD_LABEL}
        for table, places in ((steps, columns), (records, past)):
            for name, column in places.items():
                if name.endswith("_label") and name not in labels:
                    continue
                value = state[name]
                if value.shape != (len(table),):
                    raise ValueError(f"{name} has shape {value.shape}")
                table[:, column] = value
        self.steps, self.records = steps, records
        parts = {part: unpack_records(state[part]) for part in ("own", "partner", "past")}
        for part, rows in parts.items():
            present = self._part(part)[1] & (not off)
            if len(rows) != len(present) or [row is not None for row in rows] != present.tolist():
                raise ValueError(f"{len(rows)} rows in {part}, or not where they should be")
        every = [row for rows in parts.values() for row in rows if row is not None]
        kinds = sorted({tuple(row) for row in every}, key=len)
        fits = not off and all(self._know(names, len(names)) for names in kinds)
        if not fits:
            self._loosen()
            self._loose = parts
            return
        known: tuple[Any, ...] = self.names
        for part, rows in parts.items():
            values, present = self._part(part)
            for place in np.flatnonzero(present).tolist():
                found = rows[place] or {}
                values[place] = [found.get(name, math.nan) for name in known]


def stands_for(ranks: Array, order: Array, count: int, shift: int) -> Array:
    """For each place the number of items that its item stands for, (size,); 0 for one outside the sample.

    Item j has the rank Exp(v_j), ``v_j = 2 (sqrt(shift + j + 1) - sqrt(shift + j))``; kept are the smallest
    ranks. Given the largest rank kept, tau, the others are in the sample as if each had been let in alone,
    with probability ``1 - exp(-v_j tau)``.

    Parameters
    ----------
    ranks, order
        Ranks of the items that are kept, and their numbers; -1: none.
    count
        Number of items so far.
    shift
        Of the odds.
    """
    if count < len(ranks):
        return np.where(order >= 0, 1.0, 0.0)
    tau = ranks.max()
    odds = 2.0 / (np.sqrt(shift + order + 1.0) + np.sqrt(shift + order))
    inverse = np.where(ranks < tau, -1.0 / np.expm1(-odds * tau), 0.0)
    out: Array = inverse * (count / inverse.sum())
    return out
