"""Storage of a learner's buffer of past records within its state."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import buffers
from streampair.errors import RecordError
from streampair.kernels import buffers as buffers_kernels
from streampair.kernels import history as history_kernels
from streampair.kernels import pair_moments, vectors
from streampair.kernels import state as layout

__all__ = [
    "BlockMoments",
    "BufferStorage",
    "ChunkedBuffer",
    "ClassMeans",
    "FewRows",
    "FewRowsByClass",
    "LeastSquares",
    "RecordBlocks",
    "RowBuffer",
]

Array = NDArray[np.float64]
BlockRows = NDArray[np.float64] | NDArray[np.float32]

# A block is at most this large, so that what is reserved and not yet used is a small part of a long history.
_BLOCK_BYTES = 1 << 20
_FIRST_ROWS = 64

# Above 1 by so much, a correlation of moments may be rounding; and sums of squares may lack what underflows.
_ROUNDING = 1e-6
_UNDERFLOW = 1e-300


class RecordBlocks:
    """Blocks of rows and labels, and the table by which kernels find them.

    A new block is as large as all before it together, up to 1 MiB: memory never has to be copied to grow, so
    the peak is what is stored and at most one block. Kernels write the records; this object only counts room.
    Features that arrive late close the open block: its rows have the columns of their time, and the new
    columns are 0 there.

    Parameters
    ----------
    single
        Store rows in float32 rather than float64. Labels are float64 always.
    """

    def __init__(self, single: bool = False) -> None:
        self.single = single
        self._dtype = np.dtype(np.float32 if single else np.float64)
        self._blocks: list[tuple[BlockRows, Array]] = []
        self._table = np.zeros((8, 4), dtype=np.int64)
        self.room = 0

    @property
    def table(self) -> NDArray[np.int64]:
        """For each block: address of rows, address of labels, columns, rows of room; (blocks, 4), a view."""
        return self._table[: len(self._blocks)]

    @property
    def address(self) -> int:
        """Address of the table in memory."""
        return int(self._table.ctypes.data)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(rows.nbytes + labels.nbytes for rows, labels in self._blocks)

    def _append(self, rows: BlockRows, labels: Array) -> None:
        index = len(self._blocks)
        if index == len(self._table):
            self._table = np.concatenate((self._table, np.zeros_like(self._table)))
        self._blocks.append((rows, labels))
        self._table[index] = rows.ctypes.data, labels.ctypes.data, rows.shape[1], len(rows)
        self.room += len(rows)

    def reserve(self, records: int, more: int, columns: int) -> None:
        """Make room for `more` records of so many columns behind the first `records`."""
        while self.room < records + more:
            self._append(*self._new_block(self.room, columns))

    def _new_block(self, room: int, columns: int) -> tuple[BlockRows, Array]:
        """A block as it comes after blocks with so much room: its size depends on nothing else, so that equal
        streams give equal states.
        """
        rows = min(max(_FIRST_ROWS, room), max(1, _BLOCK_BYTES // (self._dtype.itemsize * columns)))
        return self._block(rows, columns)

    def _block(self, rows: int, columns: int) -> tuple[BlockRows, Array]:
        return np.empty((rows, columns), dtype=self._dtype), np.empty(rows)

    def close(self, records: int) -> None:
        """Give back all room behind the first `records`: the next block may have more columns."""
        while self._blocks and self.room > records:
            rows, labels = self._blocks.pop()
            self.room -= len(rows)
            used = records - self.room
            if used > 0:
                self._append(rows[:used].copy(), labels[:used].copy())

    def to_state(self, records: int) -> list[dict[str, Any]]:
        """The first `records` records, block by block. Read-only views, except of the open block: full blocks
        never change, and a copy would double the memory of a long history.
        """
        out: list[dict[str, Any]] = []
        left = records
        for rows, labels in self._blocks:
            n = min(left, len(rows))
            if n <= 0:
                break
            part: tuple[BlockRows, Array] = (
                (rows, labels) if n == len(rows) else (rows[:n].copy(), labels[:n].copy())
            )
            views = [a.view() for a in part]
            for view in views:
                view.flags.writeable = False
            out.append({"rows": views[0], "labels": views[1]})
            left -= n
        return out

    def load_state(self, state: list[Mapping[str, Any]], columns: int) -> int:
        """Take copies of what `to_state` gave; the number of records.

        Raises
        ------
        ValueError
            If blocks do not fit the type, have more than `columns` columns, or have fewer than one before.
        """
        blocks: list[tuple[BlockRows, Array]] = []
        least, records = 1, 0
        for block in state:
            rows, labels = block["rows"], block["labels"]
            if rows.dtype != self._dtype or labels.dtype != np.float64 or rows.ndim != 2 or not len(rows):
                raise ValueError("a block of another type")
            if labels.shape != rows.shape[:1] or not least <= rows.shape[1] <= columns:
                raise ValueError("a block of another shape")
            least = rows.shape[1]
            if not np.isfinite(rows).all():
                raise ValueError("numbers that are not finite")
            kept = self._block(*rows.shape)
            kept[0][:], kept[1][:] = rows, labels
            blocks.append(kept)
            records += len(rows)
        if blocks and least == columns:  # the last block is open
            rows, labels = blocks.pop()
            open_block = self._new_block(records - len(rows), columns)
            if len(rows) > len(open_block[0]):
                raise ValueError("a block that is too large")
            open_block[0][: len(rows)] = rows
            open_block[1][: len(rows)] = labels
            blocks.append(open_block)
        self._blocks.clear()
        self.room = 0
        for rows, labels in blocks:
            self._append(rows, labels)
        return records


class BufferStorage(abc.ABC):
    """Layout of the region, for `cap` features with `d` of them in use.

    Only `ChunkedBuffer` has records of its own; the others describe the region and hold nothing.
    """

    #: A feature beyond this size is refused.
    limit: float = vectors.MAX_ABS

    def attach(self, state: Array) -> None:  # noqa: B027  # most have nothing to do
        """Tell kernels, by the scalars of a new state, what they need to know beyond the parameters."""

    def check_room(self, more: int) -> None:  # noqa: B027
        """RecordError if so many records more cannot be taken."""

    @abc.abstractmethod
    def cells(self, cap: int) -> int:
        """Length of the region."""

    @abc.abstractmethod
    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        """Copy what a region holds into a zeroed one with room for more features."""

    def widen(self) -> None:  # noqa: B027
        """Records to come may have more features, for which the region has room."""

    def lengthen(self, features: int) -> bool:
        """Plan rows for records of so many features; whether the region must be moved to have them."""
        return False

    @abc.abstractmethod
    def export(self, region: Array, header: Array) -> dict[str, Any]:
        """The records, as arrays of exactly the features in use."""

    @abc.abstractmethod
    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        """Validate an exported buffer: it fits the scalars and is finite; else ValueError and the like."""

    @abc.abstractmethod
    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        """Put what was checked into a zeroed region with room for d features."""


class RowBuffer(BufferStorage):
    """A bounded table of records, one row each: label, then features."""

    def __init__(self, policy: buffers.Buffer) -> None:
        self.size = policy.size
        self.code = policy.code

    def cells(self, cap: int) -> int:
        return self.size * (1 + cap)

    def _table(self, region: Array, cap: int, d: int) -> Array:
        return region.reshape(self.size, 1 + cap)[:, : 1 + d]

    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        self._table(new, new_cap, d)[:] = self._table(old, old_cap, d)

    def export(self, region: Array, header: Array) -> dict[str, Any]:
        table = self._table(region, int(header[layout.CAP]), int(header[layout.D]))
        return {"rows": table[: int(header[layout.FILLED])].copy()}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        filled, records = int(header[layout.FILLED]), int(header[layout.RECORDS])
        expected = min(records, 1) * self.size
        if self.code != buffers_kernels.RESERVOIR_REPLACE:
            expected = min(records, self.size)
        if filled != expected or header[layout.NEXT] not in range(self.size):
            raise ValueError("counters that do not fit each other")
        return {"rows": _rows(saved, (filled, 1 + d))}

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        rows = kept["rows"]
        self._table(region, d, d)[: len(rows)] = rows


class FewRows(BufferStorage):
    """A bounded table of records, each by the places of its features and their values: see `kernels.state`.

    Rows have room for as many features as the longest record so far.
    """

    def __init__(self, policy: buffers.Buffer) -> None:
        self.size = policy.size
        self.code = policy.code
        self.room = 0

    def attach(self, state: Array) -> None:
        state[layout.ROOM] = self.room

    def lengthen(self, features: int) -> bool:
        if features <= self.room:
            return False
        self.room = max(features, 2 * self.room)
        return True

    def cells(self, cap: int) -> int:
        return self.size * (2 + 2 * self.room)

    def table(self, region: Array) -> Array:
        """The rows, (size, 2 + 2 room)."""
        return region.reshape(self.size, -1)

    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        before, after = self.table(old), self.table(new)
        room, wider = (before.shape[1] - 2) // 2, (after.shape[1] - 2) // 2
        after[:, : 2 + room] = before[:, : 2 + room]
        after[:, 2 + wider : 2 + wider + room] = before[:, 2 + room :]

    def _used(self, region: Array, header: Array) -> Array:
        """The rows in use."""
        return self.table(region)[: int(header[layout.FILLED])]

    def export(self, region: Array, header: Array) -> dict[str, Any]:
        rows, room = self._used(region, header), int(header[layout.ROOM])
        counts = rows[:, 1].astype(np.int64)
        kept = np.arange(room) < counts[:, None]
        return {
            "labels": rows[:, 0].copy(),
            "counts": counts,
            "places": rows[:, 2 : 2 + room][kept].astype(np.int64),
            "values": rows[:, 2 + room :][kept],
        }

    def _expected(self, header: Array) -> int:
        """Number of rows in use after so many records."""
        records = int(header[layout.RECORDS])
        if self.code == buffers_kernels.RESERVOIR_REPLACE:
            return min(records, 1) * self.size
        return min(records, self.size)

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        filled = int(header[layout.FILLED])
        if filled != self._expected(header) or header[layout.NEXT] not in range(self.size):
            raise ValueError("counters that do not fit each other")
        labels, values = (np.asarray(saved[name], dtype=np.float64) for name in ("labels", "values"))
        counts, places = (np.asarray(saved[name]) for name in ("counts", "places"))
        if counts.dtype != np.int64 or places.dtype != np.int64 or labels.shape != (filled,):
            raise ValueError("rows of another type")
        if counts.shape != (filled,) or (counts < 1).any() or values.shape != (int(counts.sum()),):
            raise ValueError("rows of another shape")
        if places.shape != values.shape or ((places < 0) | (places >= d)).any():
            raise ValueError("features out of range")
        starts = np.cumsum(counts)[:-1]
        if any((np.diff(part) <= 0).any() for part in np.split(places, starts)):
            raise ValueError("features that are not in order")
        if not np.isfinite(labels).all() or np.isinf(values).any():
            raise ValueError("numbers that are not finite")
        self._check_labels(labels, header)
        self.lengthen(int(counts.max(initial=0)))
        return {"labels": labels, "counts": counts, "places": places, "values": values}

    def _check_labels(self, labels: Array, header: Array) -> None:
        """ValueError for labels that cannot be in these rows."""

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        counts = kept["counts"]
        rows = self.table(region)
        room = (rows.shape[1] - 2) // 2
        ends = np.cumsum(counts)
        for i, row in enumerate(self._order(kept["labels"])):
            part = slice(int(ends[i] - counts[i]), int(ends[i]))
            places, values = kept["places"][part], kept["values"][part]
            rows[row, :2] = kept["labels"][i], counts[i] + 0.5 * np.isnan(values).any()
            rows[row, 2 : 2 + len(places)] = places
            rows[row, 2 + room : 2 + room + len(values)] = values

    def _order(self, labels: Array) -> list[int]:
        """In which row each record is."""
        return list(range(len(labels)))


class FewRowsByClass(FewRows):
    """Two such tables, that of the negatives first."""

    def __init__(self, policy: buffers.Buffer) -> None:
        super().__init__(policy)
        self.each = policy.size
        self.size = 2 * policy.size

    def _counts(self, header: Array) -> tuple[int, int]:
        """Rows in use of the negatives and of the positives."""
        positives = int(header[layout.POSITIVES])
        return min(int(header[layout.RECORDS]) - positives, self.each), min(positives, self.each)

    def _used(self, region: Array, header: Array) -> Array:
        table, (negatives, positives) = self.table(region), self._counts(header)
        return np.concatenate((table[:negatives], table[self.each : self.each + positives]))

    def _expected(self, header: Array) -> int:
        if header[layout.POSITIVES] > header[layout.RECORDS] or header[layout.NEXT] != 0.0:
            raise ValueError("counters that do not fit each other")
        return sum(self._counts(header))

    def _check_labels(self, labels: Array, header: Array) -> None:
        negatives = self._counts(header)[0]
        if (labels[:negatives] != -1.0).any() or (labels[negatives:] != 1.0).any():
            raise ValueError("records of another class")

    def _order(self, labels: Array) -> list[int]:
        negatives = int((labels < 0.0).sum())
        return [i if i < negatives else self.each + i - negatives for i in range(len(labels))]


class ChunkedBuffer(BufferStorage):
    """Every record, in blocks outside of the flat state, which only has the address of their table."""

    def __init__(
        self,
        policy: buffers.FullHistory,
        learn: Callable[[Array, float], int],
        learn_many: Callable[[Array, Array, Array, Array], int],
    ) -> None:
        self._learn, self._learn_many = learn, learn_many
        self.policy = policy
        self.history = RecordBlocks(policy.single)
        if policy.single:
            self.limit = history_kernels.MAX_SINGLE
        self._state = np.zeros(layout.HEADER)

    def attach(self, state: Array) -> None:
        self._state = state
        state[layout.TABLE] = self.history.address
        state[layout.BLOCKS] = len(self.history.table)
        state[layout.SIZE] = min(self.history.room, self.policy.max_records)
        state[layout.SINGLE] = self.history.single

    def check_room(self, more: int) -> None:
        records = int(self._state[layout.RECORDS])
        if records + more > self.policy.max_records:
            raise RecordError(
                f"{records} records are stored, and with {more} more there would be more than "
                f"max_records={self.policy.max_records}",
                fix="use buffers.Reservoir, whose memory is bounded, or raise max_records",
            )

    def _reserve(self, more: int) -> None:
        self.check_room(more)
        state = self._state
        self.history.reserve(int(state[layout.RECORDS]), more, int(state[layout.D]))
        self.attach(state)

    def learn(self, state: Array, label: float) -> int:
        """The kernel for a record, with room made where there is none."""
        code = self._learn(state, label)
        if code == layout.NO_ROOM:
            self._reserve(1)
            code = self._learn(state, label)
        return code

    def learn_many(self, state: Array, rows: Array, labels: Array, scores: Array) -> int:
        """The kernel for many records, with room made where there is none."""
        code = self._learn_many(state, rows, labels, scores)
        if code == layout.NO_ROOM:
            self._reserve(len(rows))
            code = self._learn_many(state, rows, labels, scores)
        return code

    def cells(self, cap: int) -> int:
        return 0

    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        self.widen()

    def widen(self) -> None:
        self.history.close(int(self._state[layout.RECORDS]))
        self.attach(self._state)

    def export(self, region: Array, header: Array) -> dict[str, Any]:
        return {"blocks": self.history.to_state(int(header[layout.RECORDS]))}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        records = int(header[layout.RECORDS])
        if (
            int(header[layout.FILLED]) != records
            or header[layout.NEXT] != 0.0
            or records > self.policy.max_records
        ):
            raise ValueError("counters that do not fit each other")
        if not all(np.isfinite(block["labels"]).all() for block in saved["blocks"]):
            raise ValueError("numbers that are not finite")
        history = RecordBlocks(self.history.single)
        if history.load_state(saved["blocks"], d) != records:
            raise ValueError(f"blocks that do not hold {records} records")
        return {"history": history}

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        self.history = kept["history"]
        self.attach(self._state)


class LeastSquares(BufferStorage):
    """Counts, means and centred second moments: all that least squares needs of the whole history.

    Parameters
    ----------
    real
        Whether labels are real-valued, rather than +1 and -1.
    """

    def __init__(self, real: bool) -> None:
        self.code = buffers_kernels.MOMENTS_REAL if real else buffers_kernels.MOMENTS
        self.parts = 3 if real else 2  # so many scalars, vectors and matrices

    def attach(self, state: Array) -> None:
        state[layout.POLICY] = self.code

    def cells(self, cap: int) -> int:
        return self.parts * (1 + cap + cap * cap)

    def _views(self, region: Array, cap: int, d: int) -> dict[str, Array]:
        n = self.parts
        matrices = region[n * (1 + cap) :].reshape(n, cap, cap)
        return {
            "counts": region[:n],
            "first_moments": region[n : n * (1 + cap)].reshape(n, cap)[:, :d],
            "moments": matrices[:, :d, :d],
        }

    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        # A new feature was 0 in every record: its mean and its moments are 0.
        views = self._views(new, new_cap, d)
        for name, values in self._views(old, old_cap, d).items():
            views[name][:] = values

    def export(self, region: Array, header: Array) -> dict[str, Any]:
        views = self._views(region, int(header[layout.CAP]), int(header[layout.D]))
        return {name: view.copy() for name, view in views.items()}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        kept = {
            name: np.asarray(saved[name], dtype=np.float64) for name in ("counts", "first_moments", "moments")
        }
        n, records = self.parts, header[layout.RECORDS]
        counts = kept["counts"]
        if not all(np.isfinite(array).all() for array in kept.values()):
            raise ValueError("numbers that are not finite")
        if (
            counts.shape != (n,)
            or kept["first_moments"].shape != (n, d)
            or kept["moments"].shape != (n, d, d)
        ):
            raise ValueError("moments of another shape")
        of_records = counts[0] if self.code == buffers_kernels.MOMENTS_REAL else counts.sum()
        if (
            of_records != records
            or counts[0] < 0.0
            or header[layout.FILLED] != records
            or header[layout.NEXT] != 0.0
        ):
            raise ValueError("counters that do not fit each other")
        return kept

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        for name, view in self._views(region, d, d).items():
            view[:] = kept[name]


class ClassMeans(BufferStorage):
    """The mean record of the negatives and that of the positives."""

    def cells(self, cap: int) -> int:
        return 2 * cap

    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        new.reshape(2, new_cap)[:, :d] = old.reshape(2, old_cap)[:, :d]

    def export(self, region: Array, header: Array) -> dict[str, Any]:
        return {"class_means": region.reshape(2, int(header[layout.CAP]))[:, : int(header[layout.D])].copy()}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        means = np.asarray(saved["class_means"], dtype=np.float64)
        if means.shape != (2, d) or not np.isfinite(means).all():
            raise ValueError("means of another shape, or not finite")
        if header[layout.POSITIVES] > header[layout.RECORDS] or header[layout.FILLED] or header[layout.NEXT]:
            raise ValueError("counters that do not fit each other")
        return {"class_means": means}

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        region.reshape(2, d)[:] = kept["class_means"]


class BlockMoments(BufferStorage):
    """Centred moments of features and labels, and the records that are not in them yet.

    Parameters
    ----------
    real
        Whether labels are real-valued, rather than +1 and -1.
    """

    def __init__(self, real: bool) -> None:
        self.code = buffers_kernels.MOMENTS_REAL if real else buffers_kernels.MOMENTS

    def attach(self, state: Array) -> None:
        state[layout.POLICY] = self.code

    def cells(self, cap: int) -> int:
        return self._triangle(cap) + cap * (cap + 1) // 2

    @staticmethod
    def _triangle(cap: int) -> int:
        """Where in the region the triangle begins."""
        return pair_moments.SCALARS + 2 * cap + pair_moments.BLOCK * (1 + cap)

    def views(self, region: Array, cap: int, d: int) -> dict[str, Array]:
        """Counts, means and covariances with the label (2, d), rows and lower triangle, as views."""
        start, rows, end = pair_moments.SCALARS, pair_moments.SCALARS + 2 * cap, self._triangle(cap)
        return {
            "counts": region[:start],
            "first_moments": region[start:rows].reshape(2, cap)[:, :d],
            "rows": region[rows:end].reshape(pair_moments.BLOCK, 1 + cap)[:, : 1 + d],
            "moments": region[end : end + d * (d + 1) // 2],
        }

    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        # A new feature was 0 in every record: its mean and its moments are 0.
        views = self.views(new, new_cap, d)
        for name, values in self.views(old, old_cap, d).items():
            views[name][:] = values

    def export(self, region: Array, header: Array) -> dict[str, Any]:
        views = self.views(region, int(header[layout.CAP]), int(header[layout.D]))
        views["rows"] = views["rows"][: int(header[layout.FILLED])]
        return {name: view.copy() for name, view in views.items()}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        filled = int(header[layout.FILLED])
        if filled not in range(pair_moments.BLOCK) or filled > header[layout.RECORDS] or header[layout.NEXT]:
            raise ValueError("counters that do not fit each other")
        kept = {"rows": _rows(saved, (filled, 1 + d))}
        for name, view in self.views(np.zeros(self.cells(d)), d, d).items():
            if name != "rows":
                kept[name] = np.asarray(saved[name], dtype=np.float64)
                if kept[name].shape != view.shape or not np.isfinite(kept[name]).all():
                    raise ValueError("moments of another shape, or not finite")
        squares = kept["moments"][np.cumsum(np.arange(1, d + 1)) - 1]
        others = np.delete(kept["counts"], pair_moments.LABEL)
        if (squares < 0.0).any() or (others < 0.0).any():
            raise ValueError("counts, or sums of squares, below 0")
        _check_covariances(kept, squares)
        return kept

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        for name, view in self.views(region, d, d).items():
            view[: len(kept[name])] = kept[name]


def _check_covariances(kept: Mapping[str, Array], squares: Array) -> None:
    """Refuse moments that the inequality of Cauchy and Schwarz rules out by more than rounding."""
    spreads = np.sqrt(squares + _UNDERFLOW)
    of_labels = math.sqrt(kept["counts"][pair_moments.LABELS] + _UNDERFLOW)
    rows, columns = np.tril_indices(len(squares))
    most = spreads[rows] * spreads[columns], spreads * of_labels
    for values, bound in zip((kept["moments"], kept["first_moments"][1]), most, strict=True):
        if (np.abs(values) > (1.0 + _ROUNDING) * bound).any():
            raise ValueError("moments that are no covariances: a correlation above 1")


def _rows(saved: Mapping[str, Any], shape: tuple[int, int]) -> Array:
    rows = np.asarray(saved["rows"], dtype=np.float64)
    if rows.shape != shape:
        raise ValueError("rows of another shape")
    if not np.isfinite(rows).all():
        raise ValueError("numbers that are not finite")
    return rows
