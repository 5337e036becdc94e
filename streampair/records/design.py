"""Design vectors of records, which a private learner multiplies with its weights (docs/privacy 2, 4.4)."""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.errors import RecordError
from streampair.kernels import design, vectors
from streampair.records import features

__all__ = ["Design", "check_finite", "check_scored"]

Array = NDArray[np.float64]


def check_scored(x: Any, names: Sequence[Hashable] | None = None) -> list[float]:
    """Values of a record to be scored, for these names or all of its features; missing ones are NaN.

    Raises
    ------
    RecordError
        If the record is empty or no mapping, cannot be read, or a value is no finite number.
    """
    try:
        return _values(x, names)
    except RecordError:
        raise
    except Exception as error:  # whatever it is: a mapping or a value may bring its own
        raise RecordError(
            f"the record cannot be read: it raises {type(error).__name__}",
            fix="give a dict of numbers",
            stage="features",
        ) from None


def _values(x: Any, names: Sequence[Hashable] | None) -> list[float]:
    if not isinstance(x, Mapping) or not x:
        features.read_record(x)
    values = []
    for name in x if names is None else names:
        if name not in x:
            values.append(math.nan)
            continue
        try:
            number = features.number(x[name])
        except (TypeError, ValueError, OverflowError):
            raise features.unusable_value(name, x[name]) from None
        if not math.isfinite(number):
            raise features.unusable_value(name, x[name])
        values.append(number)
    return values


def check_finite(columns: list[Hashable], rows: Array, known: list[int]) -> None:
    """RecordError for the first known feature that is not finite."""
    if vectors.unusable_row(rows, vectors.MAX_FINITE):  # there is one, if only of an unknown feature
        bad = np.argwhere(~np.isfinite(rows[:, known]))
        if len(bad):
            i, j = int(bad[0][0]), known[int(bad[0][1])]
            raise features.unusable_value(columns[j], float(rows[i, j]), row=i)


class Design:
    """A fixed feature set with its declared bounds, and its moments once they are released.

    Parameters
    ----------
    names
        Feature names; the columns are in their sorted order, so that the order given never matters.
    bounds
        Declared (low, high) of some of them; the others are taken as scaled to [-1, 1].

    Attributes
    ----------
    names, index
        The columns in order, and the column of each name.
    raw, ready, usable, label
        Scratch for one record: raw values (1, d), its design (1, d), whether it is whole (1,), its sign (1,).
    cells
        Raw values and label, (d + 1,): `raw` and `label` are views.
    mean, factor
        What scaled values are centred with and multiplied by, (d,), where `standardised`: views.
    how
        What values are scaled and shifted by, `mean` and `factor`: (4, d).
    cap
        Standardised values beyond it are pulled back to it.
    clipped
        Scratch for one record of the warm-up, (1, d).
    width, chunk
        Coordinates of a design, d or more, and how many rows are prepared at a time.
    """

    chunk = 1024

    def __init__(self, names: Sequence[Hashable], bounds: Mapping[Hashable, tuple[float, float]]) -> None:
        self.names: tuple[Hashable, ...] = tuple(features.in_order(names))
        self.index = {name: i for i, name in enumerate(self.names)}
        d = len(self.names)
        low, high = np.array([bounds.get(name, (-1.0, 1.0)) for name in self.names]).T
        self.how = np.array([2.0 / (high - low), -(high + low) / (high - low), np.zeros(d), np.ones(d)])
        self._scale, self._shift, self.mean, self.factor = self.how
        self.cap = math.inf
        self.standardised = False
        self.cells = np.empty(d + 1)
        self.raw, self.label = self.cells[:d].reshape(1, d), self.cells[d:]
        self.clipped = self.ready = np.empty((1, d))
        self.width = d
        self.usable = np.empty(1)
        self._buf = memoryview(self.cells)  # type: ignore[arg-type]
        self._take = features.getter(self.names)
        self._pack = struct.Struct(f"{d + 1}d").pack_into

    def read_learned(self, x: Any, label: float = math.nan) -> int:
        """Pack a record that is learned into `cells`; returns how many of its features are not in the set.

        What is missing or no number becomes NaN. Never raises: whether a record can be used must not show.
        """
        try:
            values = self._take(x)
            self._pack(self._buf, 0, *values, label)
            return len(x) - len(values)
        except Exception:
            raw, self.label[0] = self.raw[0], label
            for i, name in enumerate(self.names):
                try:
                    raw[i] = features.number(x[name])
                except Exception:
                    raw[i] = math.nan
            try:
                return sum(name not in self.index for name in x) if isinstance(x, Mapping) else 0
            except Exception:  # a mapping that cannot be read
                raw.fill(math.nan)
                return 0

    def record_id(self, context: bytes | None) -> bytes:
        """Identity of the record in `cells`: the caller's context, or else its own bytes."""
        return b"own" + self.cells.tobytes() if context is None else b"told" + context

    def whole(self, x: Any) -> bool:
        """Prepare a dict that has all features, each a finite number; False, and nothing to rely on, if not.

        `raw` and `ready` then are what both `read_learned` and `of` would make of it.
        """
        try:
            values = self._take(x)
            if x.__class__ is not dict:
                return False
            self._pack(self._buf, 0, *values, math.nan)
        except Exception:
            return False
        self.prepare(self.raw, self.ready, self.usable)
        return bool(self.usable[0])

    def of(self, x: Any) -> Array:
        """The design (d,) of a record that is scored, in scratch: missing features are neutral.

        Raises
        ------
        RecordError
            If the record is empty, or a feature in the set is no finite number.
        """
        if not self.whole(x):
            self._pack(self._buf, 0, *check_scored(x, self.names), math.nan)
            self.prepare(self.raw, self.ready, self.usable)
        row: Array = self.ready[0]
        return row

    def arranged(self, columns: Sequence[Hashable], rows: Array) -> Array:
        """Rows (n, columns) in the order of the features, (n, d); absent columns are NaN."""
        if tuple(columns) == self.names:
            return np.ascontiguousarray(rows)
        out = np.full((len(rows), len(self.names)), math.nan)
        for j, column in enumerate(columns):
            index = self.index.get(column)
            if index is not None:
                out[:, index] = rows[:, j]
        return out

    def standardise(self, mean: Array, factor: Array) -> None:
        """Use released moments from here on."""
        self.mean[:], self.factor[:], self.standardised = mean, factor, True

    @property
    def slope(self) -> Array:
        """What a unit of each feature moves the vector of a record by, where nothing is cut off, (d,)."""
        out: Array = self._scale * self.factor
        return out

    def prepare(self, raw: Array, ready: Array, usable: Array) -> None:
        """Designs of raw rows into `ready`, and 1 or 0 into `usable`: whether all of a row is finite."""
        design.prepare_rows(
            raw, self._scale, self._shift, self.standardised, self.mean, self.factor, self.cap, ready, usable
        )

    def prepared(self, raw: Array) -> Array:
        """Designs (n, width) of raw rows."""
        ready = np.empty((len(raw), self.width))
        self.prepare(raw, ready, np.empty(len(raw)))
        return ready

    def scores(self, weights: Array, raw: Array, out: Array) -> None:
        """Linear scores (n,) of raw rows, some at a time: designs may be far longer than the rows."""
        for start in range(0, len(raw), self.chunk):
            part = raw[start : start + self.chunk]
            vectors.score_many(weights, self.prepared(part), out[start : start + len(part)])

    def clip(self, raw: Array, ready: Array, usable: Array) -> None:
        """Raw rows scaled and clipped to [-1, 1] into `ready`; rows that are not whole become 0."""
        design.clip_rows(raw, self._scale, self._shift, ready, usable)
