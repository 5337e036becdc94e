"""Where a flat learner keeps the records that new ones are paired with: in its flat state, or in blocks.

The kernels read and write the records; here is how much memory they have, how it moves when features are
added, and how it is saved.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import buffers
from streampair import kernels as k
from streampair.errors import RecordError
from streampair.learners.history import History

__all__ = ["Blocks", "Classes", "LeastSquares", "Means", "Memory", "Rows"]

Array = NDArray[np.float64]


class Memory(abc.ABC):
    """Layout of the region, for `cap` features with `d` of them in use.

    Only `Blocks` has records of its own; the others describe the region and hold nothing.
    """

    #: A feature beyond this size is refused.
    limit: float = k.MAX_ABS

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

    @abc.abstractmethod
    def export(self, region: Array, header: Array) -> dict[str, Any]:
        """The records, as arrays of exactly the features in use."""

    @abc.abstractmethod
    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        """What `export` gave, if it fits the scalars and is finite; else ValueError and the like."""

    @abc.abstractmethod
    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        """Put what was checked into a zeroed region with room for d features."""


class Rows(Memory):
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
        table = self._table(region, int(header[k.CAP]), int(header[k.D]))
        return {"rows": table[: int(header[k.FILLED])].copy()}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        filled, records = int(header[k.FILLED]), int(header[k.RECORDS])
        expected = min(records, 1) * self.size
        if self.code != k.RESERVOIR_REPLACE:
            expected = min(records, self.size)
        if filled != expected or header[k.NEXT] not in range(self.size):
            raise ValueError("counters that do not fit each other")
        return {"rows": _rows(saved, (filled, 1 + d))}

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        rows = kept["rows"]
        self._table(region, d, d)[: len(rows)] = rows


class Classes(Rows):
    """Two such tables, that of the negatives first."""

    def __init__(self, policy: buffers.Buffer) -> None:
        super().__init__(policy)
        self.each = policy.size
        self.size = 2 * policy.size

    def _counts(self, header: Array) -> tuple[int, int]:
        """Rows in use of the negatives and of the positives."""
        positives = int(header[k.POSITIVES])
        return min(int(header[k.RECORDS]) - positives, self.each), min(positives, self.each)

    def export(self, region: Array, header: Array) -> dict[str, Any]:
        table = self._table(region, int(header[k.CAP]), int(header[k.D]))
        negatives, positives = self._counts(header)
        return {"rows": np.concatenate((table[:negatives], table[self.each : self.each + positives]))}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        if header[k.POSITIVES] > header[k.RECORDS]:
            raise ValueError("counters that do not fit each other")
        negatives, positives = self._counts(header)
        if int(header[k.FILLED]) != negatives + positives or header[k.NEXT] != 0.0:
            raise ValueError("counters that do not fit each other")
        rows = _rows(saved, (negatives + positives, 1 + d))
        if (rows[:negatives, 0] != -1.0).any() or (rows[negatives:, 0] != 1.0).any():
            raise ValueError("records of another class")
        return {"rows": rows}

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        rows, table = kept["rows"], self._table(region, d, d)
        negatives = int((rows[:, 0] < 0.0).sum())
        table[:negatives] = rows[:negatives]
        table[self.each : self.each + len(rows) - negatives] = rows[negatives:]


class Blocks(Memory):
    """Every record, in blocks outside of the flat state, which only has the address of their table."""

    def __init__(
        self,
        policy: buffers.FullHistory,
        learn: Callable[[Array, float], int],
        learn_many: Callable[[Array, Array, Array, Array], int],
    ) -> None:
        self._learn, self._learn_many = learn, learn_many
        self.policy = policy
        self.history = History(policy.single)
        if policy.single:
            self.limit = k.MAX_SINGLE
        self._state = np.zeros(k.HEADER)

    def attach(self, state: Array) -> None:
        self._state = state
        state[k.TABLE] = self.history.address
        state[k.BLOCKS] = len(self.history.table)
        state[k.SIZE] = min(self.history.room, self.policy.max_records)
        state[k.SINGLE] = self.history.single

    def check_room(self, more: int) -> None:
        records = int(self._state[k.RECORDS])
        if records + more > self.policy.max_records:
            raise RecordError(
                f"{records} records are stored, and with {more} more there would be more than "
                f"max_records={self.policy.max_records}",
                fix="use buffers.Reservoir, whose memory is bounded, or raise max_records",
            )

    def _reserve(self, more: int) -> None:
        self.check_room(more)
        state = self._state
        self.history.reserve(int(state[k.RECORDS]), more, int(state[k.D]))
        self.attach(state)

    def learn(self, state: Array, label: float) -> int:
        """The kernel for a record, with room made where there is none."""
        code = self._learn(state, label)
        if code == k.NO_ROOM:
            self._reserve(1)
            code = self._learn(state, label)
        return code

    def learn_many(self, state: Array, rows: Array, labels: Array, scores: Array) -> int:
        """The kernel for many records, with room made where there is none."""
        code = self._learn_many(state, rows, labels, scores)
        if code == k.NO_ROOM:
            self._reserve(len(rows))
            code = self._learn_many(state, rows, labels, scores)
        return code

    def cells(self, cap: int) -> int:
        return 0

    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        self.widen()

    def widen(self) -> None:
        self.history.close(int(self._state[k.RECORDS]))
        self.attach(self._state)

    def export(self, region: Array, header: Array) -> dict[str, Any]:
        return {"blocks": self.history.to_state(int(header[k.RECORDS]))}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        records = int(header[k.RECORDS])
        if int(header[k.FILLED]) != records or header[k.NEXT] != 0.0 or records > self.policy.max_records:
            raise ValueError("counters that do not fit each other")
        if not all(np.isfinite(block["labels"]).all() for block in saved["blocks"]):
            raise ValueError("numbers that are not finite")
        history = History(self.history.single)
        if history.load_state(saved["blocks"], d) != records:
            raise ValueError(f"blocks that do not hold {records} records")
        return {"history": history}

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        self.history = kept["history"]
        self.attach(self._state)


class LeastSquares(Memory):
    """Counts, means and centred second moments: all that least squares needs of the whole history.

    Parameters
    ----------
    real
        Whether labels are real-valued, rather than +1 and -1.
    """

    def __init__(self, real: bool) -> None:
        self.code = k.MOMENTS_REAL if real else k.MOMENTS
        self.parts = 3 if real else 2  # so many scalars, vectors and matrices

    def attach(self, state: Array) -> None:
        state[k.POLICY] = self.code

    def cells(self, cap: int) -> int:
        return self.parts * (1 + cap + cap * cap)

    def _views(self, region: Array, cap: int, d: int) -> dict[str, Array]:
        n = self.parts
        matrices = region[n * (1 + cap) :].reshape(n, cap, cap)
        return {
            "counts": region[:n],
            "means": region[n : n * (1 + cap)].reshape(n, cap)[:, :d],
            "moments": matrices[:, :d, :d],
        }

    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        # A new feature was 0 in every record: its mean and its moments are 0.
        views = self._views(new, new_cap, d)
        for name, values in self._views(old, old_cap, d).items():
            views[name][:] = values

    def export(self, region: Array, header: Array) -> dict[str, Any]:
        views = self._views(region, int(header[k.CAP]), int(header[k.D]))
        return {name: view.copy() for name, view in views.items()}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        kept = {name: np.asarray(saved[name], dtype=np.float64) for name in ("counts", "means", "moments")}
        n, records = self.parts, header[k.RECORDS]
        counts = kept["counts"]
        if not all(np.isfinite(array).all() for array in kept.values()):
            raise ValueError("numbers that are not finite")
        if counts.shape != (n,) or kept["means"].shape != (n, d) or kept["moments"].shape != (n, d, d):
            raise ValueError("moments of another shape")
        of_records = counts[0] if self.code == k.MOMENTS_REAL else counts.sum()
        if of_records != records or counts[0] < 0.0 or header[k.FILLED] != records or header[k.NEXT] != 0.0:
            raise ValueError("counters that do not fit each other")
        return kept

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        for name, view in self._views(region, d, d).items():
            view[:] = kept[name]


class Means(Memory):
    """The mean record of the negatives and that of the positives."""

    def cells(self, cap: int) -> int:
        return 2 * cap

    def move(self, old: Array, old_cap: int, new: Array, new_cap: int, d: int) -> None:
        new.reshape(2, new_cap)[:, :d] = old.reshape(2, old_cap)[:, :d]

    def export(self, region: Array, header: Array) -> dict[str, Any]:
        return {"means": region.reshape(2, int(header[k.CAP]))[:, : int(header[k.D])].copy()}

    def check(self, saved: Mapping[str, Any], header: Array, d: int) -> dict[str, Any]:
        means = np.asarray(saved["means"], dtype=np.float64)
        if means.shape != (2, d) or not np.isfinite(means).all():
            raise ValueError("means of another shape, or not finite")
        if header[k.POSITIVES] > header[k.RECORDS] or header[k.FILLED] or header[k.NEXT]:
            raise ValueError("counters that do not fit each other")
        return {"means": means}

    def fill(self, region: Array, kept: Mapping[str, Any], d: int) -> None:
        region.reshape(2, d)[:] = kept["means"]


def _rows(saved: Mapping[str, Any], shape: tuple[int, int]) -> Array:
    rows = np.asarray(saved["rows"], dtype=np.float64)
    if rows.shape != shape:
        raise ValueError("rows of another shape")
    if not np.isfinite(rows).all():
        raise ValueError("numbers that are not finite")
    return rows
