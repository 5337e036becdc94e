"""Labels that come on another topic than their events: kept until they are joined, or too old.

A pure data structure. Which labels an event gets depends on times and places alone, never on the order in
which partitions were read: labels are joined by time, and leave by time. See `LabelTable`.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streampair.engine.records import OFFSET_BITS
from streampair.errors import ConfigError, LaneStoppedError, SnapshotError, StoreError
from streampair.kernels import label_table

__all__ = ["JoinedLabels", "LabelTable", "digest_ids", "place_of_label", "table_bytes"]

_MAX_OFFSET = 2**OFFSET_BITS - 1
_MAX_PARTITION = 2**16 - 1
_LEAST, _MOST = -(2**63), 2**63 - 1
_FIRST_ROWS = 2**14  # a segment grows by four from here
_VERSION = b"\x01"


def digest_ids(ids: Sequence[bytes]) -> NDArray[np.uint64]:
    """BLAKE2b-128 digests of ids, as two words each.

    Parameters
    ----------
    ids
        The n ids.

    Returns
    -------
    numpy.ndarray
        Shape (n, 2).

    Examples
    --------
    >>> from streampair.engine.labels import digest_ids
    >>> digest_ids([b"payment-1", b"payment-2"]).shape
    (2, 2)
    """
    empty, digests = hashlib.blake2b(digest_size=16), []
    for one in ids:
        state = empty.copy()  # much cheaper than a new one
        state.update(one)
        digests.append(state.digest())
    return np.array(np.frombuffer(b"".join(digests), dtype="<u8"), np.uint64).reshape(-1, 2)


def place_of_label(place: int) -> tuple[int, int]:
    """Partition and offset of a place as `LabelTable.first` has it."""
    return place >> OFFSET_BITS, place & _MAX_OFFSET


class JoinedLabels(NamedTuple):
    """The labels of a number of events.

    Attributes
    ----------
    codes
        Shape (n,): the code of each event's label, 0 for none.
    times
        Shape (n,): the label's time in milliseconds, 0 for none.
    contradictions
        How many further labels of these events were used with another code than that of the event's label.
    repeats
        How many further labels were used with the same code.
    events, places
        Shape (m,): each label that was used, as the index of its event and its place (see `LabelTable.used`).
    """

    codes: NDArray[np.uint8]
    times: NDArray[np.int64]
    contradictions: int
    repeats: int
    events: NDArray[np.int64]
    places: NDArray[np.uint64]


def table_bytes(labels: int) -> int:
    """Bytes of a `LabelTable` with so many labels, while its last segment is replaced by a larger one.

    Parameters
    ----------
    labels
        That wait or were used, and have not expired.

    Examples
    --------
    >>> from streampair.engine.labels import table_bytes
    >>> [round(table_bytes(labels) / 1e6) for labels in (100, 1_000_000, 10_000_000)]
    [1, 60, 531]
    """
    most = LabelTable.segment_rows
    if labels > most:  # in the oldest one labels may have expired
        return (-(-labels // most) + 1) * sum(_segment_sizes(most))
    rows = _FIRST_ROWS
    while rows < min(labels, most):
        rows = min(4 * rows, most)
    return sum(_segment_sizes(rows)) + (sum(_segment_sizes(rows // 4)) if rows > _FIRST_ROWS else 0)


def _columns(rows: int) -> tuple[tuple[Any, int], ...]:
    """Dtype and length of each column of a segment."""
    cells = 1 << (2 * rows - 1).bit_length()
    return (
        *((np.uint64, 2 * rows), (np.uint64, rows), (np.int64, rows), (np.uint32, rows)),
        *((np.uint32, cells), (np.uint8, rows), (np.uint8, rows)),
    )


def _segment_sizes(rows: int) -> list[int]:
    return [np.dtype(kind).itemsize * length for kind, length in _columns(rows)]


class _Segment:
    """Columns of up to `rows` labels and the index of those that are not used.

    All are in one block: memory, or a file that has no name from the start, so that a crash leaves nothing.
    """

    def __init__(self, rows: int, directory: Path | None) -> None:
        self.rows, self.count = rows, 0
        self.low, self.high = _MOST, _LEAST  # times of its labels; those that expired may be left out
        sizes = _segment_sizes(rows)
        self.memory = sum(sizes)
        block = _block(self.memory, directory)
        parts, start = [], 0
        for (kind, _), size in zip(_columns(rows), sizes, strict=True):
            parts.append(block[start : start + size].view(kind))
            start += size
        digests, self.places, self.times, self.following, self.index, self.codes, self.used = parts
        self.digests = digests.reshape(rows, 2)

    @property
    def free(self) -> int:
        return self.rows - self.count

    def extend(self, labels: _LabelColumns) -> None:
        start, stop = self.count, self.count + len(labels.places)
        self.digests[start:stop] = labels.digests
        self.places[start:stop] = labels.places
        self.times[start:stop] = labels.times
        self.codes[start:stop] = labels.codes
        self.used[start:stop] = labels.used
        label_table.label_index(self.digests, self.used, self.following, self.index, start, stop)
        self.count = stop
        if stop > start:
            self.low = min(self.low, int(labels.times.min()))
            self.high = max(self.high, int(labels.times.max()))

    def labels(self) -> _LabelColumns:
        n = self.count
        return _LabelColumns(self.digests[:n], self.places[:n], self.times[:n], self.codes[:n], self.used[:n])


class _LabelColumns(NamedTuple):
    """Labels by column."""

    digests: NDArray[np.uint64]
    places: NDArray[np.uint64]
    times: NDArray[np.int64]
    codes: NDArray[np.uint8]
    used: NDArray[np.uint8]

    def choose(self, which: Any) -> _LabelColumns:
        return _LabelColumns(*(column[which] for column in self))


class _TakenLabels(NamedTuple):
    """Labels that events took, by column; `events` are the indices of the events."""

    events: NDArray[np.int64]
    codes: NDArray[np.uint8]
    times: NDArray[np.int64]
    places: NDArray[np.uint64]


def _encoded(places: NDArray[np.uint64]) -> bytes:
    """Sorted places as bytes."""
    steps = np.diff(places, prepend=np.uint64(0)).astype("<u8")
    # Byte by byte of all steps: the upper bytes are nearly all 0.
    return _VERSION + zlib.compress(steps.view(np.uint8).reshape(-1, 8).T.tobytes(), 1)


def _block(size: int, directory: Path | None) -> NDArray[np.uint8]:
    """Zeros, in memory or in a file of the directory."""
    if directory is None:
        return np.zeros(size, dtype=np.uint8)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            # Written, not only sized: on a full disk a page of a sparse file would kill the process.
            zeros = bytes(2**20)
            for start in range(0, size, len(zeros)):
                file.write(zeros[: size - start])
            file.flush()
            return np.memmap(file, dtype=np.uint8, mode="r+", shape=(size,)).view(np.ndarray)
    except OSError as error:
        raise StoreError(
            f"labels cannot be kept in {directory}: {error}",
            fix="make room there, or let the process write to it",
            retriable=True,
        ) from error


def _column(values: ArrayLike, kind: Any) -> NDArray[Any]:
    """One dtype and layout, so that kernels are compiled once."""
    return np.require(values, kind, ["C", "W", "A"])


class LabelTable:
    """Labels by the digest of their event's id, until they are used or too old.

    A label has a digest, a code, a time and a place (its partition and offset). It is in time for an event of
    time e if its own time is from `e - lateness` to `e + after`. Labels are used once, and leave by time,
    never by number.

    The order in which partitions are read does not change what any later `join` returns. The labels of one
    partition are added in the order of their offsets; what is not beyond the last one that was added is not
    added again, so that a topic may be read a second time.

    Parameters
    ----------
    after
        How long after its event a label may come, in milliseconds.
    lateness
        How long before its event a label may come, and how late it may be read, in milliseconds.
    max_labels
        `add` beyond so many raises; None: no limit. Not with a directory.
    directory
        Where labels are kept as memory-mapped files without names; None: in memory.

    Notes
    -----
    A label takes 46 bytes. A segment of 1,048,575 labels is given back when all of its labels have expired;
    when more than half have, the rest moves to the newest segment. The time of `join` grows with the number
    of segments, and with the number of unused labels of the same id.

    Examples
    --------
    >>> from streampair.engine.labels import LabelTable, digest_ids
    >>> table = LabelTable(after=1000, lateness=0)
    >>> ids = digest_ids([b"a", b"b"])
    >>> table.add(ids, codes=[2, 1], times=[100, 5000], partition=0, offsets=[0, 1]).tolist()
    []
    >>> table.join(ids, times=[50, 60]).codes.tolist()  # the label of b is too late for its event
    [2, 0]
    >>> table.expire(due=9000)
    [(0, 1)]
    >>> len(table)
    0
    """

    segment_rows: ClassVar[int] = label_table.MAX_ROWS

    def __init__(
        self, *, after: int, lateness: int, max_labels: int | None = None, directory: Path | None = None
    ) -> None:
        for name, value in (("after", after), ("lateness", lateness)):
            if not 0 <= value <= _MOST:
                raise ConfigError(f"{name} is {value!r}", fix="give milliseconds, 0 or more")
        if max_labels is not None and (directory is not None or max_labels < 1):
            raise ConfigError(
                f"max_labels is {max_labels!r}",
                fix="give a number of labels, or None; with a directory, None",
            )
        self.after, self.lateness = after, lateness
        self.max_labels, self.directory = max_labels, directory
        self._segments: list[_Segment] = []
        self._expired = _LEAST  # labels before this time have left
        self._last: dict[int, int] = {}  # the last offset that was added, by partition
        self._loaded: dict[int, NDArray[np.uint64]] = {}  # places of used labels that are still to be read
        self._count = self._unused = 0

    def __len__(self) -> int:
        """Number of labels, used ones included."""
        return self._count

    @property
    def unused(self) -> int:
        """Number of labels that are not used."""
        return self._unused

    @property
    def memory(self) -> int:
        """Bytes of all segments, in memory or in the directory."""
        return sum(segment.memory for segment in self._segments)

    def close(self) -> None:
        """Give all memory and files back."""
        self._segments.clear()
        self._loaded.clear()
        self._count = self._unused = 0

    def add(
        self, digests: ArrayLike, codes: ArrayLike, times: ArrayLike, partition: int, offsets: ArrayLike
    ) -> NDArray[np.intp]:
        """Add labels of one partition, in the order of their offsets.

        Those at or before the last offset that was added of the partition are passed over.

        Parameters
        ----------
        digests
            Shape (n, 2): see `digest_ids`.
        codes
            Shape (n,): from 1 to 255.
        times
            Shape (n,): milliseconds.
        partition
            From 0 to 65,535.
        offsets
            Shape (n,): ascending, below 2**48.

        Returns
        -------
        numpy.ndarray
            Indices of the labels that came too late: their time is before `due - lateness` of `expire`.

        Raises
        ------
        LaneStoppedError
            There would be more than `max_labels`; nothing was added.
        StoreError
            The directory cannot take more; nothing was added.
        """
        columns = (_column(digests, np.uint64), _column(times, np.int64), _column(codes, np.uint8))
        words, moments, values = columns
        where = _column(offsets, np.int64)
        n = len(where)
        if words.shape != (n, 2) or moments.shape != (n,) or values.shape != (n,) or where.shape != (n,):
            raise ValueError("digests, codes, times and offsets are not of the same labels: give n of each")
        if not n:
            return np.empty(0, dtype=np.intp)
        if not values.all():
            raise ValueError("the code of a label is 0, which stands for no label: number codes from 1")
        if not 0 <= partition <= _MAX_PARTITION or where[0] < 0 or where[-1] > _MAX_OFFSET:
            raise ValueError(f"a place of partition {partition} is out of range: see LabelTable.add")
        if not (where[1:] > where[:-1]).all():
            raise ValueError("offsets do not ascend: add the labels of a partition in its order")
        new = where > self._last.get(partition, -1)
        late = new & (moments < self._expired)
        kept = np.flatnonzero(new & ~late)
        if self.max_labels is not None and self._count + len(kept) > self.max_labels:
            raise LaneStoppedError(
                f"more than {self.max_labels} labels wait for their events",
                fix="raise label_input.max_labels, or shorten label_input.after",
            )
        places = where[kept].astype(np.uint64) + np.uint64(partition << OFFSET_BITS)
        used = self._was_used(partition, places)
        self._append(_LabelColumns(words[kept], places, moments[kept], values[kept], used))
        self._count += len(kept)
        self._unused += len(kept) - int(np.count_nonzero(used))
        self._pass(partition, int(where[-1]))
        return np.flatnonzero(late)

    def _was_used(self, partition: int, places: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Which labels are among those of `load_used`."""
        loaded = self._loaded.get(partition)
        if loaded is None:
            return np.zeros(len(places), dtype=np.uint8)
        near = np.minimum(np.searchsorted(loaded, places), len(loaded) - 1)
        return np.equal(loaded[near], places).astype(np.uint8)

    def _pass(self, partition: int, offset: int) -> None:
        """Remember the last offset that was added; what is before it will not come again."""
        self._last[partition] = max(offset, self._last.get(partition, -1))
        loaded = self._loaded.get(partition)
        if loaded is not None:
            place = np.uint64((partition << OFFSET_BITS) + offset)
            rest = loaded[np.searchsorted(loaded, place, side="right") :]
            if len(rest):
                self._loaded[partition] = rest
            else:
                del self._loaded[partition]

    def _size(self, labels: int) -> int:
        rows = min(_FIRST_ROWS, self.segment_rows)
        while rows < min(labels, self.segment_rows):
            rows = min(4 * rows, self.segment_rows)
        return rows

    def _append(self, labels: _LabelColumns) -> None:
        """Store labels; all room is made before the first of them is written."""
        count = len(labels.places)
        last = self._segments[-1] if self._segments else None
        if last is not None and last.free < count and last.rows < self.segment_rows:
            larger = _Segment(self._size(last.count + count), self.directory)
            larger.extend(last.labels())
            self._segments[-1] = last = larger
        rest = count - (0 if last is None else last.free)
        more = []
        while rest > 0:
            more.append(_Segment(self._size(rest), self.directory))
            rest -= more[-1].rows
        start = 0
        for segment in [*self._segments[-1:], *more]:
            stop = min(count, start + segment.free)
            segment.extend(labels.choose(slice(start, stop)))
            start = stop
        self._segments += more

    def join(self, digests: ArrayLike, times: ArrayLike) -> JoinedLabels:
        """Join events with their labels, in the order in which the events are learned.

        An event takes all unused labels of its digest that are in time. The one with the smallest time, then
        partition, then offset is its label; all of them are used.

        Parameters
        ----------
        digests
            Shape (n, 2): see `digest_ids`.
        times
            Shape (n,): milliseconds.

        Returns
        -------
        JoinedLabels
            The label of each event.
        """
        words, moments = _column(digests, np.uint64), _column(times, np.int64)
        n = len(moments)
        if words.shape != (n, 2) or moments.shape != (n,):
            raise ValueError("digests and times are not of the same events: give n of each")
        taken = self._take(words, moments)
        best, codes = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.uint8)
        joined_times = np.zeros(n, dtype=np.int64)
        contradictions, repeats = label_table.label_resolve(
            taken.events, taken.codes, taken.times, taken.places, best, codes, joined_times
        )
        return JoinedLabels(codes, joined_times, contradictions, repeats, taken.events, taken.places)

    def first(
        self, digests: ArrayLike, times: ArrayLike
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.uint64]]:
        """Return the label that each event would have by itself, in a table without used labels.

        Parameters
        ----------
        digests, times
            As in `join`.

        Returns
        -------
        tuple of numpy.ndarray
            Each of shape (n,): whether there is one, its time, and its place (`place_of_label`).
        """
        words, moments = _column(digests, np.uint64), _column(times, np.int64)
        n = len(moments)
        if words.shape != (n, 2) or moments.shape != (n,):
            raise ValueError("digests and times are not of the same events: give n of each")
        found_times, places = np.full(n, _MOST), np.full(n, 2**64 - 1, np.uint64)
        earliest, latest = self._in_time(moments)
        for segment in self._segments:
            label_table.label_first(
                segment.digests,
                segment.times,
                segment.places,
                segment.following,
                segment.index,
                words,
                earliest,
                latest,
                self._expired,
                found_times,
                places,
            )
        return places != 2**64 - 1, found_times, places

    def _in_time(self, moments: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The earliest and the latest time of a label that an event of each time may use."""
        # Clipped first: the difference must not wrap around.
        earliest = np.maximum(np.maximum(moments, _LEAST + self.lateness) - self.lateness, self._expired)
        return earliest, np.minimum(moments, _MOST - self.after) + self.after

    def _take(self, words: NDArray[np.uint64], moments: NDArray[np.int64]) -> _TakenLabels:
        """Use the labels of events."""
        kinds: tuple[Any, ...] = (np.int64, np.uint8, np.int64, np.uint64)
        parts = [_TakenLabels(*(np.empty(0, dtype=kind) for kind in kinds))]
        if not len(moments):
            return parts[0]
        earliest, latest = self._in_time(moments)
        low, high, room = int(earliest.min()), int(latest.max()), len(moments) + 64
        for segment in self._segments:
            event = 0 if segment.low <= high and segment.high >= low else len(moments)
            while event < len(moments):
                rows, events = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
                event, count = label_table.label_take(
                    segment.digests,
                    segment.times,
                    segment.used,
                    segment.following,
                    segment.index,
                    words,
                    earliest,
                    latest,
                    event,
                    self._expired,
                    rows,
                    events,
                )
                rows = rows[:count]
                parts.append(
                    _TakenLabels(
                        events[:count], segment.codes[rows], segment.times[rows], segment.places[rows]
                    )
                )
                self._unused -= count
                if event < len(moments):  # it was full
                    room *= 2
        return _TakenLabels(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def mark_used(self, digests: ArrayLike, times: ArrayLike, joined: ArrayLike) -> None:
        """Use the labels of events that were joined before, in the same order as then.

        Call it when the labels of these events have been added: those that are added later stay unused.

        Parameters
        ----------
        digests, times
            As in `join`.
        joined
            Shape (n,): whether the event had a label, or its code. An event without one uses none.
        """
        which = np.asarray(joined).astype(np.bool_)
        words, moments = _column(digests, np.uint64), _column(times, np.int64)
        if words.shape != (len(which), 2) or moments.shape != which.shape:
            raise ValueError("digests, times and joined are not of the same events: give n of each")
        self._take(_column(words[which], np.uint64), _column(moments[which], np.int64))

    def expire(self, due: int) -> list[tuple[int, int]]:
        """Let the labels go that no event will need: no event before `due` will be joined any more.

        Labels whose time is before `due - lateness` leave, and none of them is taken any more.

        Parameters
        ----------
        due
            Milliseconds; an earlier one than before changes nothing.

        Returns
        -------
        list
            Places (partition, offset) of the labels that leave and were not used, in their order.
        """
        before, now = self._expired, min(max(due - self.lateness, _LEAST), _MOST)
        if now <= before:
            return []
        self._expired = now
        unused = [np.empty(0, dtype=np.uint64)]
        sparse = []
        for segment in self._segments:
            if segment.low >= now:
                continue
            labels = segment.labels()
            leaving = (labels.times < now) & (labels.times >= before)
            self._count -= int(np.count_nonzero(leaving))
            leaving &= labels.used == 0
            unused.append(labels.places[leaving])
            self._unused -= len(unused[-1])
            rest = labels.times[labels.times >= now]
            segment.low = int(rest.min()) if len(rest) else _MOST
            if not len(rest) or 2 * (segment.count - len(rest)) > segment.rows:
                sparse.append(segment)
        self._compact(sparse)
        places = np.sort(np.concatenate(unused))
        partitions, offsets = places >> np.uint64(OFFSET_BITS), places & np.uint64(_MAX_OFFSET)
        return list(zip(partitions.tolist(), offsets.tolist(), strict=True))

    def _compact(self, sparse: list[_Segment]) -> None:
        """Move what is left of segments to the newest one, and give them back."""
        self._segments = [segment for segment in self._segments if segment not in sparse]
        for segment in sparse:
            labels = segment.labels()
            try:
                self._append(labels.choose(labels.times >= self._expired))
            except StoreError:  # there is no room to move: it stays until there is
                self._segments.insert(0, segment)

    def used(self, *, without: ArrayLike = ()) -> bytes:
        """The places of the used labels that have not expired, for a snapshot; see `load_used`.

        Parameters
        ----------
        without
            Places of labels that count as unused: of events that were joined, and are to be joined again.
        """
        parts = [np.empty(0, dtype=np.uint64), *self._loaded.values()]
        for segment in self._segments:
            labels = segment.labels()
            parts.append(labels.places[(labels.used != 0) & (labels.times >= self._expired)])
        places = np.sort(np.concatenate(parts))
        ahead = np.asarray(without, dtype=np.uint64)
        if len(ahead):
            places = np.setdiff1d(places, ahead, assume_unique=True)
        return _encoded(places)

    def load_used(self, data: bytes) -> None:
        """Restore which labels are used, before labels are read again from their topic: `add` marks them.

        Raises
        ------
        SnapshotError
            `data` is not from `used`, or labels have been added already.
        """
        if self._last:
            raise SnapshotError("labels were added before load_used", fix="call it on a new table")
        steps = None
        with contextlib.suppress(zlib.error):
            steps = zlib.decompress(data[1:])
        if steps is None or data[:1] != _VERSION or len(steps) % 8:
            raise SnapshotError("the used labels cannot be read", fix="restore the snapshot from its store")
        columns = np.frombuffer(steps, dtype=np.uint8).reshape(8, -1)
        places = np.cumsum(np.ascontiguousarray(columns.T).view("<u8").ravel(), dtype=np.uint64)
        partitions = places >> np.uint64(OFFSET_BITS)
        found, starts = np.unique(partitions, return_index=True)
        parts = np.split(places, starts[1:])
        self._loaded = dict(zip(found.tolist(), parts, strict=True)) if len(places) else {}
