"""Labels of a replay that are in a file of their own: when events are due, and which label they get.

The rules are those of `streampair_connectors.worker.late_labels`, with the column `input.time` of both files
in place of Kafka's timestamps.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from streampair.engine import OrderedRecord, Record
from streampair.engine.labels import LabelTable, digest_ids
from streampair.engine.records import LABEL_LATER, LABEL_NO_ID
from streampair.errors import ConfigError, RecordError, SourceError
from streampair.evaluation.epochs import UNITS, unit_of
from streampair_connectors.cli.event_files import Lines
from streampair_connectors.cli.options import time_of
from streampair_connectors.codecs.fields import EPOCH_UNITS
from streampair_connectors.codecs.labels import LabelCodeParser
from streampair_connectors.config import Config, InputConfig, LabelInputConfig

__all__ = ["DueEvents", "check_late_labels"]


def check_late_labels(config: Config, labels: str | None, events: str) -> None:
    """Check that the configuration says what a replay with, or without, a file of labels needs.

    Raises
    ------
    ConfigError
        It does not.
    """
    table = config.label_input
    if table is None:
        if labels is not None:
            raise ConfigError(
                "--labels names a file of labels, but the configuration has no [label_input]",
                fix="add [label_input], or remove --labels where input.label is a field of the events",
            )
        return
    if labels is None:
        raise ConfigError(
            "the configuration has [label_input]: labels come later than events, in a file of their own",
            fix="give it with --labels",
        )
    if labels == events:
        raise ConfigError(
            f"events and labels are both read from {'standard input' if events == '-' else events}",
            fix="give labels that are in a file of their own",
        )
    if config.input.time is None:
        raise ConfigError(
            "input.time is missing: a file has no timestamps of Kafka",
            fix='name the column of both files that stands for them, as input.time = "time"',
        )
    if config.input.time == table.label:
        raise ConfigError(
            f"input.time and label_input.label are the same column {table.label!r} of the labels",
            fix="name the column that has the time of a label as that of an event",
        )
    if config.input.id is None:
        where = "the key of a message" if table.id == "key" else "a header of a message"
        raise ConfigError(
            f"label_input.id is {where}, which a line of a file does not have",
            fix="name the column of both files that has the id of the event as input.id",
        )


def _number(value: object) -> float | None:
    """A number, or the number that a text is; None: it is neither."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _id(value: object) -> bytes | None:
    """The bytes of an id; None: there is none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value).encode()


class _Sorted:
    """Reads the times of a file, which must ascend: ISO 8601, or numbers in a unit.

    Parameters
    ----------
    lines, column
        The file, and the column of its times.
    declared
        The configuration: the kind that `input.fields` declares for `input.time` holds for both files.
    """

    def __init__(self, lines: Lines, column: str, declared: InputConfig) -> None:
        self._lines = lines
        self._column = column
        self._key = f"input.fields.{_toml_key(declared.time or '')}"
        self._unit = EPOCH_UNITS.get(declared.fields.get(declared.time or "", "epoch-ms"))
        self.last: int | None = None

    def time(self, record: Record, value: object) -> int:
        """The time of a line, in milliseconds since 1970."""
        where = f"line {self._lines.number(record):,} of {self._lines.name}"
        time = self._read(where, value)
        if self.last is not None and time < self.last:
            raise SourceError(
                f"{where} is earlier than the line before: {time} in {self._column!r}, after {self.last} "
                "(milliseconds)",
                fix=f"sort the file by {self._column!r}",
                retriable=False,
            )
        self.last = time
        return time

    def _read(self, where: str, value: object) -> int:
        number = _number(value)
        if number is None or self._unit is None:
            time = time_of(value.strip()) if isinstance(value, str) and number is None else None
            if time is not None:
                return time
            problem, unit = f"{where} has no time in {self._column!r}: {_shorten(value)}", None
        else:
            unit = unit_of(number)
            if unit == self._unit:
                return math.floor(round(number * 1000 / UNITS[unit], 3))  # decimals are not exact
            problem = f"{where} has {_shorten(value)} in {self._column!r}: no {self._unit} from 1990 to 2100"
            problem += "" if unit is None else f"; these look like {unit}"
        kind = next((kind for kind, each in EPOCH_UNITS.items() if each == unit), None)
        fix = 'write times as ISO 8601, such as "2024-01-31T12:00:00Z"'
        if kind is not None:
            fix = f'write {self._key} = "{kind}", the unit of numbers in both files; or {fix}'
        elif self._unit is not None:
            fix += f", or as numbers: {self._unit} since 1970"
        raise SourceError(problem, fix=fix, retriable=False)


def _toml_key(name: str) -> str:
    """A name as TOML takes it for a key."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _shorten(value: object) -> str:
    if value is None:
        return "it is empty"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


_SAMPLE = 1000  # ids of each file
_EXAMPLES = 3


class _Ids:
    """The first ids of both files as they are written, to say why no label has found an event."""

    def __init__(self) -> None:
        self.events: dict[str, object] = {}
        self.labels: dict[str, object] = {}

    def add(self, sample: dict[str, object], value: object) -> None:
        """Keep an id of a file, if there is room; `sample`: that of the file."""
        if value is not None and len(sample) < _SAMPLE:
            sample.setdefault(str(value), value)

    def difference(self) -> str:
        """Examples of both files: ids that differ only in how they are written, if there are any."""
        events = {_plain_id(text): value for text, value in self.events.items()}
        labels = {_plain_id(text): value for text, value in self.labels.items()}
        alike = [key for key in labels if key in events][:_EXAMPLES]
        labels_like = [labels[key] for key in alike or list(labels)[:_EXAMPLES]]
        events_like = [events[key] for key in alike or list(events)[:_EXAMPLES]]
        return f"ids of labels are {_listed(labels_like)}, of events {_listed(events_like)}"


def _plain_id(text: str) -> str:
    """An id without what programs add to numbers: blanks, leading zeros, decimals that are zero."""
    return re.sub(r"\.0+$", "", text.strip()).lstrip("0").casefold()


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(_shorten, values)) or "missing"


class _LabelFile:
    """The labels of a file, read as far as events need them."""

    def __init__(
        self, config: Config, table: LabelInputConfig, lines: Lines, kept: LabelTable, ids: _Ids
    ) -> None:
        self._lines = lines
        self._ids = ids
        self._kept = kept
        self._id = config.input.id or ""
        self._column = config.input.time or ""
        self._label = table.label
        self._sorted = _Sorted(lines, self._column, config.input)
        self._parser = LabelCodeParser(config)
        self._more = True
        self.queue: deque[tuple[int, bytes, int]] | None = deque() if table.order == "arrival" else None
        """With `order = "arrival"`: time, id and code of the labels that were read, in their order."""
        self.errors: Counter[str] = Counter()
        self.read = 0

    def read_to(self, time: float) -> None:
        """Read until a label is later than this."""
        while self._more and (self._sorted.last is None or self._sorted.last <= time):
            batch = next(self._lines.batches, None)
            if batch is None:
                self._more = False
                return
            self._add(batch)

    def _add(self, batch: Sequence[Record]) -> None:
        ids, codes, times, offsets = [], [], [], []
        for record in batch:
            self.read += 1
            try:
                get = self._lines.fields(record.value or b"")
                label = self._decoded(get)
            except RecordError as error:
                self.errors[str(error)] += 1
                continue
            times.append(self._sorted.time(record, get(self._column)))
            ids.append(label[0])
            codes.append(label[1])
            offsets.append(record.offset)
        if self.queue is not None:
            self.queue.extend(zip(times, ids, codes, strict=True))
        if ids:
            self._kept.add(
                digest_ids(ids),
                np.array(codes, np.uint8),
                np.array(times, np.int64),
                0,
                np.array(offsets, np.int64),
            )

    def _decoded(self, get: Callable[[str], object]) -> tuple[bytes, int]:
        written = get(self._id)
        self._ids.add(self._ids.labels, written)
        identity = _id(written)
        if identity is None:
            what = "has no id" if written is None else "has an id that is neither a text nor a whole number"
            raise RecordError(
                f"the label {what}", fix=f"write the id of its event in {self._id!r}", stage="label"
            )
        if self._parser.constant is not None:
            return identity, self._parser.constant
        assert self._label is not None
        value = get(self._label)
        if value is None:
            raise RecordError(
                f"the line has no label in {self._label!r}",
                fix="write the label, or name its column as label_input.label",
                stage="label",
            )
        return identity, self._parser.code(value)


class DueEvents:
    """Puts events in the order in which a lane takes them: each to be scored, and later to be learned.

    An event is due when `label_input.after` and `label_input.lateness` have passed. Events that are due at or
    before the time of another are learned before that one is scored. With `label_input.order = "arrival"` an
    event is learned when its label comes; at one time labels come first, then dues, then events.

    Parameters
    ----------
    config
        With [label_input]; `check_late_labels` has accepted it.
    events, labels
        Lines of both files. Both must be sorted by time.
    private
        Whether the learner is private: labels are then kept on disk.

    Attributes
    ----------
    events
        Number of events that were taken.
    """

    def __init__(self, config: Config, events: Lines, labels: Lines, *, private: bool) -> None:
        table = config.label_input
        assert table is not None
        self._after, self._wait = int(table.after), int(table.wait)
        self._table = LabelTable(
            after=int(table.after),
            lateness=int(table.lateness),
            max_labels=None if private else table.max_labels,
            directory=Path(tempfile.gettempdir()) if private else None,
        )
        self._events = events
        self._id, self._time = config.input.id or "", config.input.time or ""
        self._sorted = _Sorted(events, self._time, config.input)
        self._ids = _Ids()
        self._labels = _LabelFile(config, table, labels, self._table, self._ids)
        self._waiting: deque[tuple[OrderedRecord, bytes | None]] = deque()
        # With `order = "arrival"`: events that wait by their ids, and those of them that were learned.
        self._by_id: dict[bytes, deque[OrderedRecord]] = {}
        self._learned: set[int] = set()
        self._ordinal = 0
        self._used = self._joined = self._absent = 0
        self.events = 0

    def take(self, batch: Iterable[Record]) -> list[OrderedRecord]:
        """Return these events, to be scored, and before each the events that are due then.

        Raises
        ------
        SourceError
            A time cannot be read, or is earlier than that of the line before.
        LaneStoppedError
            More than `label_input.max_labels` wait for their events.
        """
        out: list[OrderedRecord] = []
        due: list[tuple[int, OrderedRecord, bytes | None]] = []
        for record in batch:
            time, identity = self._read(record)
            self._move_due(time, out, due)
            event = self._ordered(record, time, LABEL_LATER)
            out.append(event)
            self._waiting.append((event, identity))
            if self._labels.queue is not None and identity is not None:
                self._by_id.setdefault(identity, deque()).append(event)
            self.events += 1
        self._join(out, due)
        return out

    def rest(self, most: int) -> Iterator[list[OrderedRecord]]:
        """The events that wait at the end of the file, to be learned, in batches of at most so many."""
        while self._waiting:
            out: list[OrderedRecord] = []
            due: list[tuple[int, OrderedRecord, bytes | None]] = []
            self._move_due(math.inf, out, due, most)
            self._join(out, due)
            if out:
                yield out
        self._labels.read_to(math.inf)

    def _read(self, record: Record) -> tuple[int, bytes | None]:
        """The time and the id of an event.

        A line that cannot be read is a bad event, which the lane sets aside: it has the time of the last one.
        """
        try:
            get = self._events.fields(record.value or b"")
        except RecordError:
            return self._sorted.last or 0, None
        written = get(self._id)
        self._ids.add(self._ids.events, written)
        return self._sorted.time(record, get(self._time)), _id(written)

    def _ordered(self, record: Record, time: int, label: int) -> OrderedRecord:
        self._ordinal += 1
        return OrderedRecord(
            self._ordinal - 1,
            record.value,
            None,
            time,
            partition=0,
            position=record.offset,
            clock=time,
            label=label,
        )

    def _move_due(
        self,
        time: float,
        out: list[OrderedRecord],
        due: list[tuple[int, OrderedRecord, bytes | None]],
        most: float = math.inf,
    ) -> None:
        """Append the events that are due by a time, with their index."""
        waiting = self._waiting
        self._learn_early(time if not waiting else min(time, waiting[0][0].timestamp + self._wait), out)
        while waiting and waiting[0][0].timestamp + self._wait <= time and len(out) < most:
            event, identity = waiting.popleft()
            self._forget(event, identity)
            if event.position in self._learned:
                self._learned.discard(event.position)
                due.append((-1, event, identity))
            else:
                due.append((len(out), event, identity))
                out.append(self._again(event, 0 if identity is not None else LABEL_NO_ID))
            self._learn_early(time if not waiting else min(time, waiting[0][0].timestamp + self._wait), out)

    def _again(self, event: OrderedRecord, label: int) -> OrderedRecord:
        return self._ordered(Record(event.position, event.value), event.timestamp, label)

    def _learn_early(self, time: float, out: list[OrderedRecord]) -> None:
        """With `order = "arrival"`: append the events whose labels come by a time."""
        queue = self._labels.queue
        if queue is None:
            return
        self._labels.read_to(time)
        while queue and queue[0][0] <= time:
            moment, identity, code = queue.popleft()
            events = self._by_id.get(identity, ())
            first = next((event for event in events if event.timestamp >= moment - self._after), None)
            if first is not None and first.position not in self._learned:
                self._learned.add(first.position)
                out.append(msgspec.structs.replace(self._again(first, code), early=True))

    def _forget(self, event: OrderedRecord, identity: bytes | None) -> None:
        events = None if identity is None else self._by_id.get(identity)
        if events:
            events.popleft()
            if not events:
                del self._by_id[identity]  # type: ignore[arg-type]

    def _join(self, out: list[OrderedRecord], due: Sequence[tuple[int, OrderedRecord, bytes | None]]) -> None:
        """Give due events their labels."""
        if not due:
            return
        self._labels.read_to(due[-1][1].timestamp + self._after)
        named = [(index, event.timestamp, identity) for index, event, identity in due if identity is not None]
        used = 0
        if named:
            found = self._table.join(
                digest_ids([identity for _, _, identity in named]),
                np.array([time for _, time, _ in named], np.int64),
            )
            for (index, _, _), code in zip(named, found.codes.tolist(), strict=True):
                if code and index >= 0:
                    out[index] = msgspec.structs.replace(out[index], label=code)
            used = int(np.count_nonzero(found.codes))
            self._used += len(found.events)
        self._joined += used
        self._absent += len(due) - used
        self._table.expire(self._waiting[0][0].timestamp if self._waiting else due[-1][1].timestamp)

    def no_label_found(self) -> SourceError | None:
        """Return the error of a replay at whose end no label has found an event; None: one has."""
        labels = self._labels
        if self._used or not self.events:
            return None
        invalid = labels.errors.total()
        if invalid == labels.read:
            reason = labels.errors.most_common(1)[0][0] if invalid else "there are none"
            problem = f"none of {labels.read:,} lines is a label: {reason}"
            fix = "correct the file of labels"
        elif self._ids.events.keys() & self._ids.labels.keys():
            problem = f"none of {labels.read - invalid:,} labels came in time for the event with its id"
            fix = "compare the times of both files, or raise label_input.after or label_input.lateness"
        else:
            problem = f"none of {labels.read - invalid:,} labels found its event: {self._ids.difference()}"
            fix = f"write ids in the same way in the column {self._id!r} of both files, of the same events"
        return SourceError(problem, fix=fix, retriable=False)

    def counts(self) -> dict[str, int | str]:
        """Numbers for the summary of a replay."""
        labels = self._labels
        invalid = labels.errors.total()
        counts: dict[str, int | str] = {
            "labels_used": self._joined,
            "events_without_label": self._absent,
            "labels_repeated": self._used - self._joined,
            "labels_unused": labels.read - self._used - invalid,
        }
        if invalid:
            counts["labels_invalid"] = invalid
            counts["label_error"] = labels.errors.most_common(1)[0][0]
        return counts
