"""Drift of features and of scores: the population stability index of the latest events against a reference.

    the first 500 events      bins of each feature: twentieths of its numbers, its texts
    the reference behind it   counts of these bins, and the range of the numbers
    the latest 1,000 events   their bins, compared with the reference when somebody asks

A missing value, a text that the first events lack, and a number below or above the range are bins too.
Rows wait as they came until then, so that an event costs next to nothing.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, RecordError, SnapshotError

__all__ = ["ALARM", "FeatureDrift", "FeatureMoved"]

ALARM: Final = 0.2
"""The index from which on a distribution is said to have moved."""
SAMPLE: Final = 10_000
"""Most events that the reference counts."""

_FIRST = 500  # events that the bins are made of
_BINS = 20  # of the numbers of a feature
_TEXTS = 20  # texts with a bin of their own
_KNOWN = 256  # texts of a feature that are distinguished from new ones
_MOST = 1000  # features that are watched
_MOVED = 0.02  # smallest change of a share that counts as moved,
_SIGMAS = 6.0  # and it is this many standard errors large
_BLOCK = 250  # records of `update` that wait together

# Codes of bins. Behind _BELOW come the bins of numbers, the last of which is for those above the range.
_MISSING, _NEW, _RARE = 0, 1, 2
_BELOW = _RARE + 1 + _TEXTS
_WIDTH = _BELOW + _BINS + 3
_LARGEST = float(np.finfo(np.float64).max)

Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]
Texts = NDArray[np.int64]
Records = Sequence[Mapping[Any, Any]]


class _Table(NamedTuple):
    """Events as rows.

    Attributes
    ----------
    names
        Of the d features.
    numbers
        (n, d), NaN where a value is no number.
    texts
        (n, d), digests of texts, 0 of numbers, -1 of values of other types; None: all are numbers.
    """

    names: Sequence[Any]
    numbers: Floats
    texts: Texts | None

    def picked(self, rows: slice | NDArray[np.intp]) -> _Table:
        """Some of the rows."""
        return _Table(self.names, self.numbers[rows], None if self.texts is None else self.texts[rows])


_Block = _Table | Records


class FeatureMoved(NamedTuple):
    """A feature that left the range of the reference.

    Attributes
    ----------
    name
        Of the feature.
    what
        `"missing"`, `"new values"` (texts that the first 500 events lack, or values of another type), or
        `"out of range"` (numbers below or above all of the reference).
    before, now
        Share of such values in the reference, and among the latest events.
    """

    name: Any
    what: str
    before: float
    now: float


class FeatureDrift:
    """Population stability index (PSI) of each feature, and of the scores, without labels.

    The index of a feature is the sum over its bins of ``(q - p) log(q / p)``, with p the share of the bin in
    the reference and q that in the window. Two normal distributions of one standard deviation whose means
    differ by d deviations have d^2: half a deviation is .25. By custom .1 is noted and .2 is an alarm. Where
    nothing has moved the index is about .02, from chance alone.

    A season moves features too: the reference has to span whole ones. Of a span longer than 10,000 events
    the reference counts an even sample.

    Parameters
    ----------
    reference
        Number of events that the reference spans, the first ones; at least 1,000.
    window
        Number of latest events that are compared with it, 100 to 100,000.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Notes
    -----
    Memory is bounded: the first 1,000 features that occur are watched, and 256 texts of each are
    distinguished from new ones.

    Figures are functions of raw records: they are for operators, not for publication (docs/privacy 7).

    References
    ----------
    Siddiqi 2006, Credit Risk Scorecards. (The index and its levels.)

    Examples
    --------
    >>> import random
    >>> from streampair.evaluation import FeatureDrift
    >>> rng, drift = random.Random(1), FeatureDrift(reference=1000, window=500)
    >>> for _ in range(1500):
    ...     drift.update({"age": rng.gauss(40, 10), "country": rng.choice("ab")})
    >>> drift.drift_detected
    False
    >>> for _ in range(500):
    ...     drift.update({"age": rng.gauss(50, 10), "country": rng.choice("ab")})
    >>> drift.drift_detected, max(drift.psi, key=drift.psi.get)
    (True, 'age')
    """

    def __init__(self, reference: int = 10_000, window: int = 1000) -> None:
        for name, value, low, high in (
            ("reference", reference, 1000, 10**12),
            ("window", window, 100, 100_000),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigError(f"{name}={value!r}", fix=f"give an integer from {low} to {high}")
        self.reference = reference
        self.window = window
        self._clear()

    def _clear(self) -> None:
        self._n = 0  # events that were taken out of the blocks
        self._blocks: deque[_Block] = deque()
        self._waiting = 0
        self._records: list[Mapping[Any, Any]] = []  # of `update`
        self._bins: _Bins | None = None
        self._codes: Codes = np.empty((0, 0), dtype=np.uint8)
        self._counted: NDArray[np.int64] | None = None

    # ---- events ----------------------------------------------------------------------------------------

    def update(self, x: Mapping[Any, Any]) -> None:
        """Add one event.

        Parameters
        ----------
        x
            Values by feature: numbers, booleans, texts; None and NaN are missing, as is a feature that the
            event lacks. A value of another type counts as new.

        Raises
        ------
        RecordError
            If `x` is no mapping.
        """
        if not isinstance(x, Mapping):
            raise RecordError(
                f"the event is a {type(x).__name__}", fix="give a dict of its features", stage="features"
            )
        self._records.append(dict(x))
        if len(self._records) >= _BLOCK:
            self._flush()

    def update_records(self, records: Sequence[Mapping[Any, Any]]) -> None:
        """Add events, oldest first, as `update`. They must not be changed for as long as they may wait."""
        self._flush()
        if records:
            self._add(records)

    def update_rows(self, names: Sequence[Any], values: Floats) -> None:
        """Add events as rows of numbers, oldest first.

        Parameters
        ----------
        names
            Of the d features.
        values
            (n, d), NaN for a missing value. It must not be changed for as long as it may wait.
        """
        self._flush()
        if len(values):
            self._add(_Table(names, values, None))

    def _flush(self) -> None:
        if self._records:
            records, self._records = self._records, []
            self._add(records)

    def _add(self, block: _Block) -> None:
        self._blocks.append(block)
        self._waiting += _length(block)
        if self._n < self.reference:
            if self._waiting >= self.window:
                self._settle()
            return
        # Nothing that is older than the window will be asked for.
        while self._waiting - _length(self._blocks[0]) >= self.window:
            self._leave(self._blocks.popleft())

    def _leave(self, block: _Block) -> None:
        self._waiting -= _length(block)
        self._n += _length(block)

    # ---- figures ---------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Number of events."""
        return self._n + self._waiting + len(self._records)

    @property
    def ready(self) -> bool:
        """Whether the reference is complete, and the window behind it full."""
        return self.n >= self.reference + self.window

    @property
    def psi(self) -> dict[Any, float]:
        """The index of each feature that is watched; empty until `ready`."""
        if not self.ready:
            return {}
        bins = self._settled()
        return dict(zip(bins.names, bins.psi(self._found()).tolist(), strict=True))

    @property
    def drift_detected(self) -> bool:
        """Whether the index of a feature is at least .2."""
        return any(value >= ALARM for value in self.psi.values())

    @property
    def moved(self) -> list[FeatureMoved]:
        """Features that left the range of the reference, those that moved furthest first; [] until `ready`.

        A share counts as moved from .02 and six standard errors on. A share of missing values moves when it
        falls, too.
        """
        return self._settled().moved(self._found()) if self.ready else []

    def _found(self) -> NDArray[np.int64]:
        """Number of the latest values in each bin of each feature."""
        if self._counted is None:
            self._counted = _counted(self._codes)
        return self._counted

    # ---- bins ------------------------------------------------------------------------------------------

    def _settled(self) -> _Bins:
        self._flush()
        self._settle()
        assert self._bins is not None
        return self._bins

    def _settle(self) -> None:
        """Put the events that wait into their bins."""
        if self._bins is None:
            if self._waiting < _FIRST:
                return
            self._bins = _Bins(_joined(self._blocks, _FIRST))
            self._codes = np.empty((0, len(self._bins.names)), dtype=np.uint8)
        latest = []
        blocks, self._blocks = self._blocks, deque()
        for block in _merged(blocks):
            if self._n < self.reference:
                self._count(self._bins, block)
            begin = max(self._waiting - self.window, self.reference - self._n, 0)
            if begin < _length(block):
                latest.append(self._bins.columns(_picked(block, slice(begin, None))))
            self._leave(block)
        if latest:
            codes = self._bins.codes(*_stacked(latest))
            self._codes = np.concatenate((self._codes, codes))[-self.window :]
            self._counted = None

    def _count(self, bins: _Bins, block: _Block) -> None:
        """Count the events of a block that are in the reference."""
        places = np.arange(self._n, min(self._n + _length(block), self.reference))
        # Without those that the bins are made of: texts that come once are known of them alone.
        counted = (places >= _FIRST) & (places % max(self.reference // SAMPLE, 1) == 0)
        if counted.any():
            bins.count(*bins.columns(_picked(block, np.flatnonzero(counted))))

    # ---- state -----------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """The state as plain values and arrays, for a snapshot.

        A name that is neither text nor a number becomes text.
        """
        self._flush()
        self._settle()
        state: dict[str, Any] = {"reference": self.reference, "window": self.window, "n": self._n}
        if self._bins is None:
            table = _joined(self._blocks, self._waiting)
            first = table._asdict() | {"names": list(map(_plain, table.names))}
            return {**state, "first": first, "bins": None, "codes": None}
        return {**state, "first": None, "bins": self._bins.to_state(), "codes": self._codes}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `to_state`. The state of another reference or window is left: everything begins anew.

        Raises
        ------
        SnapshotError
            If it cannot be read.
        """
        self._clear()
        if (state["reference"], state["window"]) != (self.reference, self.window):
            return
        try:
            self._load(state)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            self._clear()
            raise SnapshotError(
                f"the reference of drift cannot be read ({type(error).__name__})",
                fix="restore an undamaged snapshot",
            ) from error

    def _load(self, state: Mapping[str, Any]) -> None:
        self._n = int(state["n"])
        if state["bins"] is not None:
            self._bins = _Bins.of_state(state["bins"])
            self._codes = np.asarray(state["codes"], dtype=np.uint8)
            if self._codes.ndim != 2 or self._codes.shape[1] != len(self._bins.names):
                raise ValueError("codes of other features")
            return
        first = state["first"]
        numbers, texts = first["numbers"], first["texts"]
        if numbers.shape[1] != len(first["names"]):
            raise ValueError("rows of other features")
        if len(numbers):
            self._add(_Table(first["names"], numbers, texts))


class _Bins:
    """Bins of the features, their counts in the reference, and the range of numbers there.

    Parameters
    ----------
    table
        The first events.
    """

    def __init__(self, table: _Table) -> None:
        names, numbers, texts = table
        self.names = list(names)
        self._edges = [_edges(numbers[:, j]) for j in range(len(names))]
        # Codes of texts by their digest.
        self._texts: list[dict[int, int]] = [{} for _ in names]
        if texts is not None:
            for j in np.flatnonzero(texts.any(axis=0)).tolist():
                self._texts[j] = _frequent(texts[:, j])
        self._low, self._high = np.full(len(names), np.inf), np.full(len(names), -np.inf)
        self._counts = np.zeros((len(names), _WIDTH), dtype=np.int64)
        self._index: dict[Any, int] = {name: j for j, name in enumerate(self.names)}

    def columns(self, table: _Table) -> tuple[Floats, Texts | None]:
        """Numbers and texts, in the columns of the bins."""
        names, numbers, texts = table
        if list(names) == self.names:
            return numbers, texts
        pairs = [(self._index[name], k) for k, name in enumerate(names) if name in self._index]
        ours, theirs = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
        numbers_here = np.full((len(numbers), len(self.names)), np.nan)
        numbers_here[:, ours] = numbers[:, theirs]
        if texts is None:
            return numbers_here, None
        texts_here = np.zeros(numbers_here.shape, dtype=np.int64)
        texts_here[:, ours] = texts[:, theirs]
        return numbers_here, texts_here

    def count(self, numbers: Floats, texts: Texts | None) -> None:
        """Add events to the reference."""
        if not len(numbers):
            return
        known = np.clip(numbers, -_LARGEST, _LARGEST)
        self._low = np.fmin(self._low, np.fmin.reduce(known, axis=0))
        self._high = np.fmax(self._high, np.fmax.reduce(known, axis=0))
        self._counts += _counted(self.codes(numbers, texts))

    def codes(self, numbers: Floats, texts: Texts | None) -> Codes:
        """The bin of each value, (n, d)."""
        columns = np.clip(np.ascontiguousarray(numbers.T), -_LARGEST, _LARGEST)
        out = np.empty(columns.shape, dtype=np.uint8)
        for j, edges in enumerate(self._edges):  # half the time of a binary search
            (edges[:, None] <= columns[j]).sum(axis=0, dtype=np.uint8, out=out[j])
        out += _BELOW + 1
        out[columns < self._low[:, None]] = _BELOW
        out[columns > self._high[:, None]] = _WIDTH - 1
        out[np.isnan(columns)] = _MISSING
        if texts is not None:
            for j in np.flatnonzero(texts.any(axis=0)).tolist():
                rows = np.flatnonzero(texts[:, j])
                look_up = self._texts[j].get
                out[j, rows] = [look_up(text, _NEW) for text in texts[rows, j].tolist()]
        return out.T

    def psi(self, found: NDArray[np.int64]) -> Floats:
        """Index of each feature; half an event more in a bin of the reference keeps it finite."""
        used = (found > 0) | (self._counts > 0)
        p = np.where(used, self._counts + 0.5, 0.0)
        p /= np.maximum(p.sum(axis=1, keepdims=True), 1.0)
        q = (found + p) / (found.sum(axis=1, keepdims=True) + 1.0)
        p, q = np.where(used, p, 1.0), np.where(used, q, 1.0)
        return np.asarray(((q - p) * np.log(q / p)).sum(axis=1))

    def moved(self, found: NDArray[np.int64]) -> list[FeatureMoved]:
        """See `FeatureDrift.moved`."""
        before, now = (max(int(counts[:1].sum()), 1) for counts in (self._counts, found))
        out = []
        for what, places, falls in (
            ("missing", [_MISSING], True),
            ("new values", [_NEW], False),
            ("out of range", [_BELOW, _WIDTH - 1], False),
        ):
            old, new = self._counts[:, places].sum(axis=1), found[:, places].sum(axis=1)
            gap = new / now - old / before
            share = (old + new) / (before + now)
            error = np.sqrt(share * (1.0 - share) * (1.0 / before + 1.0 / now))
            size = np.abs(gap) if falls else gap
            for j in np.flatnonzero((size >= _MOVED) & (size > _SIGMAS * error)).tolist():
                out.append(FeatureMoved(self.names[j], what, float(old[j] / before), float(new[j] / now)))
        return sorted(out, key=lambda each: -abs(each.now - each.before))

    def to_state(self) -> dict[str, Any]:
        """The state as plain values and arrays."""
        texts = [(j, text, code) for j, known in enumerate(self._texts) for text, code in known.items()]
        return {
            "names": list(map(_plain, self.names)),
            "edges": np.concatenate([np.empty(0), *self._edges]),
            "sizes": np.array(list(map(len, self._edges)), dtype=np.int64),
            "texts": np.array(texts, dtype=np.int64).reshape(-1, 3),
            "low": self._low,
            "high": self._high,
            "counts": self._counts.astype(np.int32),
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> _Bins:
        """The bins of `to_state`."""
        names = list(state["names"])
        bins = cls(_Table(names, np.empty((0, len(names))), None))
        bins._edges = np.split(state["edges"], np.cumsum(state["sizes"])[:-1]) if names else []
        for j, text, code in state["texts"].tolist():
            bins._texts[j][text] = code
        bins._low, bins._high = state["low"].copy(), state["high"].copy()
        bins._counts = state["counts"].astype(np.int64)
        if bins._counts.shape != (len(names), _WIDTH) or len(bins._edges) != len(names):
            raise ValueError("counts of other bins")
        return bins


def _edges(column: Floats) -> Floats:
    """Lower ends of bins of a feature: twentieths, with a bin of its own for a value that fills one.

    Each value has its bin where there are few. So a column of one value, or mostly zeros, has bins too.
    """
    values = np.sort(column[np.isfinite(column)])
    if not len(values):
        return np.empty(0)
    single, counts = np.unique(values, return_counts=True)
    if len(single) < _BINS // 2:
        return np.asarray(np.unique(np.concatenate((single, np.nextafter(single, np.inf)))))
    cuts = values[np.arange(1, _BINS) * len(values) // _BINS]
    heavy = single[counts * _BINS >= 2 * len(values)]  # so there are at most _BINS edges
    edges = np.unique(np.concatenate((cuts, np.nextafter(heavy, np.inf))))
    return np.asarray(edges)


def _stacked(parts: Sequence[tuple[Floats, Texts | None]]) -> tuple[Floats, Texts | None]:
    """Numbers and texts of all parts."""
    if len(parts) == 1:
        return parts[0]
    numbers = np.concatenate([part for part, _ in parts])
    if all(texts is None for _, texts in parts):
        return numbers, None
    filled = [np.zeros(part.shape, dtype=np.int64) if texts is None else texts for part, texts in parts]
    return numbers, np.concatenate(filled)


def _frequent(column: Texts) -> dict[int, int]:
    """Codes of the texts of the first events: the most frequent ones have a bin each, the others one."""
    texts, counts = np.unique(column[column > 0], return_counts=True)
    ranked = texts[np.lexsort((texts, -counts))][:_KNOWN].tolist()
    return {text: _RARE + 1 + place if place < _TEXTS else _RARE for place, text in enumerate(ranked)}


def _counted(codes: Codes) -> NDArray[np.int64]:
    """Number of values in each bin of each feature."""
    width = codes.shape[1]
    flat = codes.astype(np.intp) + np.arange(width) * _WIDTH
    return np.bincount(flat.ravel(), minlength=width * _WIDTH).reshape(width, _WIDTH)


def _merged(blocks: Iterable[_Block]) -> Iterator[_Block]:
    """Blocks with neighbours of the same kind as one: small batches then cost what large ones do."""
    for (names, plain), group in itertools.groupby(blocks, _kind):
        if names is None:
            yield list(itertools.chain.from_iterable(group))  # type: ignore[arg-type]  # they are records
        elif not plain:
            yield from group
        else:
            parts = [block.numbers for block in group if isinstance(block, _Table)]
            yield _Table(names, parts[0] if len(parts) == 1 else np.concatenate(parts), None)


def _kind(block: _Block) -> tuple[Sequence[Any] | None, bool]:
    return (block.names, block.texts is None) if isinstance(block, _Table) else (None, True)


def _length(block: _Block) -> int:
    return len(block.numbers if isinstance(block, _Table) else block)


def _picked(block: _Block, rows: slice | NDArray[np.intp]) -> _Table:
    """Some rows of a block."""
    if isinstance(block, _Table):
        return block.picked(rows)
    return _of_records(block[rows] if isinstance(rows, slice) else [block[row] for row in rows.tolist()])


def _of_records(records: Records) -> _Table:
    """Records as a table; the names in the order in which they occur."""
    index: dict[Any, int] = {}
    for name in itertools.chain.from_iterable(records):
        index.setdefault(name, len(index))
    rows = np.repeat(np.arange(len(records)), list(map(len, records)))
    columns = np.array(list(map(index.__getitem__, itertools.chain.from_iterable(records))), dtype=np.intp)
    values = list(itertools.chain.from_iterable(x.values() for x in records))
    numbers, digests = _read(values)
    table = np.full((len(records), len(index)), np.nan)
    table[rows, columns] = numbers
    texts = None
    if digests is not None:
        texts = np.zeros(table.shape, dtype=np.int64)
        texts[rows, columns] = digests
    return _Table(list(index), table, texts)


def _read(values: list[Any]) -> tuple[Floats, Texts | None]:
    """Values as numbers, NaN where they are none, and digests of texts, 0 of numbers, -1 of other types."""
    if set(map(type, values)) <= {float, int, bool, type(None)}:
        try:
            return np.array(values, dtype=np.float64), None  # None becomes NaN
        except OverflowError:
            pass
    numbers, texts = np.full(len(values), np.nan), np.zeros(len(values), dtype=np.int64)
    for place, value in enumerate(values):
        if isinstance(value, str):
            texts[place] = zlib.crc32(value.encode("utf-8", "surrogatepass")) + 1
        elif value is not None:
            try:
                numbers[place] = float(value)
            except OverflowError:
                numbers[place] = math.inf if value > 0 else -math.inf
            except (TypeError, ValueError):
                texts[place] = -1
    return numbers, texts


def _joined(blocks: Iterable[_Block], rows: int) -> _Table:
    """The first rows of blocks as one table, of at most so many features."""
    parts: list[_Table] = []
    index: dict[Any, int] = {}
    count = 0
    for block in blocks:
        if count >= rows:
            break
        part = _picked(block, slice(0, rows - count))
        parts.append(part)
        count += len(part.numbers)
        for name in part.names:
            if len(index) < _MOST:
                index.setdefault(name, len(index))
    numbers, texts = np.full((count, len(index)), np.nan), np.zeros((count, len(index)), dtype=np.int64)
    begin = 0
    for part in parts:
        pairs = [(index[name], k) for k, name in enumerate(part.names) if name in index]
        ours, theirs = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
        end = begin + len(part.numbers)
        numbers[begin:end, ours] = part.numbers[:, theirs]
        if part.texts is not None:
            texts[begin:end, ours] = part.texts[:, theirs]
        begin = end
    return _Table(list(index), numbers, texts if texts.any() else None)


def _plain(name: Any) -> Any:
    return name if isinstance(name, str | int | float) else repr(name)
