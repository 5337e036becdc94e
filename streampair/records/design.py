"""Design vectors: scaled and standardised features of a private learner's records (docs/privacy 2, 4.4)."""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.errors import RecordError
from streampair.kernels import design, random_trees, vectors
from streampair.records import features

__all__ = [
    "BINS",
    "CAP",
    "DEPTH",
    "TREES",
    "Design",
    "RandomTreeDesign",
    "StartVectors",
    "Trees",
    "check_finite",
    "check_scored",
    "fields_of",
    "marks_of",
]

Array = NDArray[np.float64]


def check_scored(x: Any, names: Sequence[Hashable] | None = None) -> list[float]:
    """Values of a record to be scored, for these names or all of its features; missing ones are NaN.

    Raises
    ------
    RecordError
        If the record is empty or not a mapping, cannot be read, or a value is not a finite number.
    """
    try:
        return _values(x, names)
    except RecordError:
        raise
    except Exception as error:  # a mapping or a value may raise anything
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
    if vectors.unusable_row(rows, vectors.MAX_FINITE):  # perhaps only in a feature that is not known
        bad = np.argwhere(~np.isfinite(rows[:, known]))
        if len(bad):
            i, j = int(bad[0][0]), known[int(bad[0][1])]
            raise features.unusable_value(columns[j], float(rows[i, j]), row=i)


class StartVectors:
    """From raw rows to the vectors that the weights of a start model multiply.

    Parameters
    ----------
    scaling
        Scale, shift, mean and factor of each feature, (4, d), 0 for one that the model does not know. None:
        the weights multiply raw values, of which missing ones are 0.
    standardised
        Whether mean and factor are used.
    cap
        Bound of standardised values.
    """

    def __init__(self, scaling: Array | None, standardised: bool = False, cap: float = math.inf) -> None:
        self.scaling = scaling
        self.standardised = standardised
        self.cap = cap

    def prepare(self, raw: Array, ready: Array, usable: Array) -> None:
        """As `Design.prepare`."""
        if self.scaling is not None:
            design.prepare_rows(raw, self.scaling, self.standardised, self.cap, ready, usable)
            return
        finite = np.abs(raw) <= vectors.MAX_FINITE
        usable[:] = finite.all(axis=1)
        np.clip(np.where(finite, raw, 0.0), -vectors.MAX_ABS, vectors.MAX_ABS, out=ready)


class Design:
    """A fixed feature set with declared bounds, and with released moments after the warm-up.

    Parameters
    ----------
    names
        Feature names. The columns are in their sorted order, whatever the order given.
    bounds
        Declared (low, high) of some of them; the others are assumed to be in [-1, 1].

    Attributes
    ----------
    names, index
        The columns in order, and the column of each name.
    raw, ready, usable, label
        Buffers for one record: raw values (1, d), its design (1, d), whether all values are finite (1,), and
        its label (1,).
    cells
        Raw values and label, (d + 1,): `raw` and `label` are views of it.
    mean, factor
        Released mean, and factor, of scaled values, (d,), used if `standardised`: views of `scaling`.
    scaling
        Scale, shift, `mean` and `factor` of the values: (4, d).
    cap
        Bound that standardised values are clipped to.
    clipped
        Buffer for one record of the warm-up, (1, d).
    start
        Vectors of the model that records are scored with until the moments are released; None: of itself.
    width, chunk
        Number of coordinates of a design, d or more, and number of rows prepared at a time.
    """

    chunk = 1024

    def __init__(self, names: Sequence[Hashable], bounds: Mapping[Hashable, tuple[float, float]]) -> None:
        self.names: tuple[Hashable, ...] = tuple(features.in_order(names))
        self.index = {name: i for i, name in enumerate(self.names)}
        d = len(self.names)
        low, high = np.array([bounds.get(name, (-1.0, 1.0)) for name in self.names]).T
        self.scaling = np.array([2.0 / (high - low), -(high + low) / (high - low), np.zeros(d), np.ones(d)])
        self.mean, self.factor = self.scaling[2:]
        self.cap = math.inf
        self.standardised = False
        self.start: StartVectors | None = None
        self.cells = np.empty(d + 1)
        self.raw, self.label = self.cells[:d].reshape(1, d), self.cells[d:]
        self.clipped = self.ready = np.empty((1, d))
        self.width = d
        self.usable = np.empty(1)
        self._buf = memoryview(self.cells)  # type: ignore[arg-type]
        self._take = features.getter(self.names)
        self._pack = struct.Struct(f"{d + 1}d").pack_into

    def read_learned(self, x: Any, label: float = math.nan) -> int:
        """Pack a record to be learned into `cells`; returns the number of its features outside the set.

        Missing values, and values that are not numbers, become NaN. Never raises: an error would disclose
        that a record cannot be used.
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
        """Prepare a dict that has all features, each a finite number; False if it has not.

        If True, `raw` and `ready` are as after `read_learned` and `of`; if False, they are undefined.
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
        """Return the design (d,) of a record to be scored, valid until the next call; missing features are 0.

        Raises
        ------
        RecordError
            If the record is empty, or a feature in the set is not a finite number.
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
        """Standardise later records with released moments."""
        self.mean[:], self.factor[:], self.standardised = mean, factor, True
        self.start = None

    @property
    def slope(self) -> Array:
        """Derivative of each design coordinate in its feature, where nothing is clipped, (d,)."""
        out: Array = self.scaling[0] * self.factor
        return out

    def prepare(self, raw: Array, ready: Array, usable: Array) -> None:
        """Write designs of raw rows into `ready`, and 1 into `usable` for rows that are all finite or 0."""
        if self.start is not None:
            self.start.prepare(raw, ready, usable)
            return
        design.prepare_rows(raw, self.scaling, self.standardised, self.cap, ready, usable)

    def prepared(self, raw: Array) -> Array:
        """Designs (n, width) of raw rows."""
        ready = np.empty((len(raw), self.width))
        self.prepare(raw, ready, np.empty(len(raw)))
        return ready

    def scores(self, weights: Array, raw: Array, out: Array) -> None:
        """Write linear scores (n,) of raw rows into `out`, in chunks: designs can be far longer than rows."""
        for start in range(0, len(raw), self.chunk):
            part = raw[start : start + self.chunk]
            vectors.score_many(weights, self.prepared(part), out[start : start + len(part)])

    def clip(self, raw: Array, ready: Array, usable: Array) -> None:
        """Write raw rows, scaled and clipped to [-1, 1], into `ready`, and 0 for rows not all finite."""
        design.clip_rows(raw, self.scaling, ready, usable)


_CACHED = 2**18

TREES = 100
DEPTH = 6
"""Default parameters of a forest."""

BINS = 32
"""Number of bins of a column's histogram."""

CAP = 3.0
"""Bound of standardised values, in standard deviations."""


def fields_of(names: Iterable[Hashable]) -> tuple[int, ...]:
    """Number of columns of each field, for columns in the order of a design.

    The columns that `preprocessing.OneHot` makes of one field, such as `country=NL` and `country=BE`, are one
    field.

    Examples
    --------
    >>> from streampair.records.design import fields_of
    >>> fields_of(["amount", "card=credit", "card=debit", "country=BE", "hour"])
    (1, 2, 1, 1)
    """
    sizes: list[int] = []
    before: str | None = None
    for name in names:
        field, equals, _ = name.partition("=") if isinstance(name, str) else ("", "", "")
        if equals and field == before:
            sizes[-1] += 1
        else:
            sizes.append(1)
        before = field if equals else None
    return tuple(sizes)


def marks_of(sizes: Iterable[int]) -> int:
    """Number of bins of all fields: `BINS` for a field of one column, else one per column."""
    return sum(BINS if size == 1 else size for size in sizes)


class Trees:
    """Random trees over fields: a function of public random numbers, independent of the data.

    Parameters
    ----------
    sizes
        Number of columns of each field; a field of more than one is categorical.
    trees, depth
        Number of trees, and their depth.

    Attributes
    ----------
    sizes
        `sizes` as an array.
    fields, cuts
        Field and threshold of each node, (trees, 2^depth); the root is node 1.
    """

    def __init__(self, sizes: Sequence[int], trees: int = TREES, depth: int = DEPTH) -> None:
        self.sizes = np.array(sizes, dtype=np.int64)
        self.fields = np.zeros((trees, 2**depth), dtype=np.int64)
        self.cuts = np.zeros((trees, 2**depth))
        random_trees.tree_splits(self.sizes, self.fields, self.cuts)

    def leaves(self, places: Array) -> NDArray[np.int64]:
        """Leaves (n, trees) of rows of positions (n, fields): in (0, 1), or the index of a category."""
        out = np.zeros((len(places), len(self.fields)), dtype=np.int64)
        random_trees.tree_leaves(places, self.sizes, self.fields, self.cuts, out)
        return out


class RandomTreeDesign(Design):
    """A design of d numbers, followed by indicators of the leaves and the bins of the record.

    Before the moments are released all indicators are 0. After that a record with missing values is usable
    too, for its leaves; sums over rows leave out its linear part.
    """

    def __init__(
        self,
        names: Sequence[Hashable],
        bounds: Mapping[Hashable, tuple[float, float]],
        trees: int = TREES,
        depth: int = DEPTH,
    ) -> None:
        super().__init__(names, bounds)
        d, sizes = len(self.names), fields_of(self.names)
        self.trees = Trees(sizes, trees, depth)
        self.width = d + trees * 2**depth + marks_of(sizes)
        # As many rows as fit into the processor's cache.
        self.chunk = min(max(_CACHED // self.width, 32), self.chunk)
        self.clipped, self.ready = np.empty((1, d)), np.empty((1, self.width))
        self._gaps = False
        self._one = (np.empty((1, d)), np.empty((1, len(sizes))), np.empty((1, trees), dtype=np.int64))

    def prepare(self, raw: Array, ready: Array, usable: Array) -> None:
        """As `Design.prepare`, with the leaves of each row."""
        n, d = raw.shape
        trees = self.trees
        if n == 1:
            linear, places, leaves = self._one
        else:
            linear, places = np.empty((n, d)), np.empty((n, len(trees.sizes)))
            leaves = np.empty((n, len(trees.fields)), dtype=np.int64)
        super().prepare(raw, linear, usable)
        if n == 1:
            self._gaps = not usable[0]
        ready[:, :d] = linear
        if not self.standardised:
            ready[:, d:] = 0.0
            return
        # A standard deviation has the length cap / CAP.
        random_trees.tree_places(raw, trees.sizes, self.scaling, self.cap, CAP / self.cap, places)
        random_trees.tree_marks(places, trees.sizes, trees.fields, trees.cuts, BINS, leaves, ready)
        gaps = usable == 0.0
        if gaps.any():
            # A record without any known feature is not usable.
            usable[gaps] = np.isfinite(raw[gaps]).any(axis=1)

    def whole(self, x: Any) -> bool:
        """As `Design.whole`: a record with a missing value is not whole, whatever its leaves are."""
        return super().whole(x) and not self._gaps
