"""Labels of a replay that are in a file of their own: they are joined with events as in `evaluation`.

The column `input.time` of both files stands for Kafka's timestamps.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from streampair.engine import OrderedRecord, Record
from streampair.engine.records import LABEL_LATER, LABEL_NO_ID, LABEL_STOPPED
from streampair.errors import ConfigError, RecordError, SourceError
from streampair.evaluation.epochs import UNITS, unit_of
from streampair.evaluation.label_delay import LabelJoin, PendingEvent
from streampair_connectors.cli.event_files import Lines
from streampair_connectors.cli.options import time_of
from streampair_connectors.codecs.fields import EPOCH_UNITS
from streampair_connectors.codecs.labels import LabelCodeParser
from streampair_connectors.config import Config, InputConfig, LabelInputConfig
from streampair_connectors.config.toml_lines import toml_key
from streampair_connectors.worker.factory import is_private

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
        self._key = f"input.fields.{toml_key(declared.time or '')}"
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

    def __init__(self, config: Config, table: LabelInputConfig, lines: Lines, ids: _Ids) -> None:
        self._lines = lines
        self._ids = ids
        self._id = config.input.id or ""
        self._column = config.input.time or ""
        self._label = table.label
        self._sorted = _Sorted(lines, self._column, config.input)
        self._parser = LabelCodeParser(config, quotes=not is_private(config))
        self.errors: Counter[str] = Counter()
        self.read = 0

    def labels(self) -> Iterator[tuple[int, bytes, int]]:
        """Iterate over time, id and code of each label; lines that are none are counted."""
        for record in itertools.chain.from_iterable(self._lines.batches):
            self.read += 1
            try:
                get = self._lines.fields(record.value or b"")
                identity, code = self._decoded(get)
            except RecordError as error:
                self.errors[str(error)] += 1
                continue
            yield self._sorted.time(record, get(self._column)), identity, code

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

    See `streampair.evaluation.delayed_labels`: an event is due when `label_input.after` and
    `label_input.lateness` have passed, and with `label_input.order = "arrival"` it is learned when its label
    comes.

    Parameters
    ----------
    config
        With [label_input]; `check_late_labels` has accepted it.
    events, labels
        Lines of both files. Both must be sorted by time.

    Attributes
    ----------
    join
        The events that wait for their labels.
    events
        Number of events that were taken.
    """

    def __init__(self, config: Config, events: Lines, labels: Lines) -> None:
        table = config.label_input
        assert table is not None
        # Code 0: of an event for which no label has come.
        self.join = LabelJoin(
            after=int(table.after), absent=0, lateness=int(table.lateness), order=table.order
        )
        self._most = config.worker.batch_size
        self._lines = events
        self._id, self._time = config.input.id or "", config.input.time or ""
        self._sorted = _Sorted(events, self._time, config.input)
        self._ids = _Ids()
        self._labels = _LabelFile(config, table, labels, self._ids)
        self._last: Record | None = None  # of its batch
        self._ordinal = 0
        self._joined = self._absent = self._stopped = 0
        self._has_stopped = table.stopped is not None
        self.events = 0

    def batches(self) -> Iterator[list[OrderedRecord]]:
        """Iterate over events to be scored and to be learned, a batch of the file at a time.

        Raises
        ------
        SourceError
            A time cannot be read, or is earlier than that of the line before.
        """
        out: list[OrderedRecord] = []
        labels = self._labels.labels()
        for what, event in self.join.steps(self._read(), labels):
            record = event.x
            out.append(self._ordered(what, event))
            if len(out) >= self._most or (what == "score" and record is self._last):
                yield out
                out = []
        if out:
            yield out
        for _ in labels:
            pass  # no event needs them: they are counted

    def _read(self) -> Iterator[tuple[int, object, Record]]:
        """Time and id of each event.

        A line that cannot be read is a bad event, which the lane sets aside: it has the time of the last one.
        """
        for batch in self._lines.batches:
            self._last = batch[-1]
            for record in batch:
                self.events += 1
                time, identity = self._sorted.last or 0, None
                with contextlib.suppress(RecordError):
                    get = self._lines.fields(record.value or b"")
                    written = get(self._id)
                    self._ids.add(self._ids.events, written)
                    time, identity = self._sorted.time(record, get(self._time)), _id(written)
                yield time, object() if identity is None else identity, record  # nobody else has this id

    def _ordered(self, what: str, event: PendingEvent) -> OrderedRecord:
        """The record of a step."""
        record = event.x
        label = LABEL_LATER
        if what != "score":
            label = event.y if isinstance(event.id, bytes) else LABEL_NO_ID
            if event.y == LABEL_STOPPED:
                self._stopped += 1
            else:
                self._joined += bool(event.y)
                self._absent += not event.y
        self._ordinal += 1
        return OrderedRecord(
            self._ordinal - 1,
            record.value,
            None,
            event.moment,
            partition=0,
            position=record.offset,
            clock=event.moment,
            label=label,
            early=what == "label",
        )

    def no_label_found(self) -> SourceError | None:
        """Return the error of a replay at whose end no label has found an event; None: one has."""
        labels = self._labels
        if self._joined or self._stopped or not self.events:
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
        used = self._joined + self._stopped
        counts: dict[str, int | str] = {
            "labels_used": self._joined,
            "events_without_label": self._absent,
            "labels_repeated": self.join.repeated,
            "labels_unused": labels.read - used - self.join.repeated - invalid,
        }
        if self._has_stopped:
            counts["events_stopped"] = self._stopped
        if invalid:
            counts["labels_invalid"] = invalid
            counts["label_error"] = labels.errors.most_common(1)[0][0]
        return counts
