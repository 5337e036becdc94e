"""`streampair replay`: process a CSV or JSON lines file with a lane as in `run`, without Kafka."""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import csv
import gzip
import io
import os
import signal
import stat
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import msgspec
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from streampair.engine import ChallengerGauges, DeadLetter, LaneOutput, OrderedRecord, Record, Scored
from streampair.engine.lane import LaneGauges
from streampair.errors import ConfigError, SourceError
from streampair_connectors.cli.late_labels import DueEvents, Lines, check_late_labels
from streampair_connectors.codecs.fields import unnested
from streampair_connectors.codecs.records import Decoder, Encoder, csv_decoder, declared_names, json_decoder
from streampair_connectors.config import Config
from streampair_connectors.observability.dashboard import frame_json
from streampair_connectors.observability.metric_definitions import LaneLabels
from streampair_connectors.observability.metric_history import LetterCause
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.observability.server import MetricsServer
from streampair_connectors.worker.causes import add_letter
from streampair_connectors.worker.factory import build_lane, taken_cells
from streampair_connectors.worker.timing import DecodeClock, LaneTimer

__all__ = ["EventFile", "Replay", "open_source", "replay_file", "summarise"]

_BLOCK = 1 << 18  # bytes: some thousand lines, so that the cost per block is negligible
_READ_ERRORS = (OSError, EOFError, zlib.error)
_GZIP = b"\x1f\x8b"
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
_PEEK = 4096
_json = msgspec.json.Encoder()
# Interval of the lane's metrics: each publication computes an AUC.
_PUBLISH_SECONDS = 0.25
# At first metrics are published after 64 events, then after an eighth more: short files get a history.
_FIRST_BATCH, _GROWTH, _GROWTH_EVENTS = 64, 8, 8192
_MAX_ERRORS = 1000  # distinct errors of dead letters that are counted


@dataclass(frozen=True)
class EventFile:
    """An open file of events.

    Attributes
    ----------
    decode
        Decoder of records.
    lines
        The records, one per line.
    size
        Bytes of the file on disk, compressed or not; None for a pipe.
    position
        Returns how many of them were read.
    """

    decode: Decoder
    lines: Lines
    size: int | None
    position: Callable[[], int]


@contextlib.contextmanager
def open_source(config: Config, path: str) -> Iterator[EventFile]:
    """Open a file of events, as a context manager.

    Parameters
    ----------
    config
        Names the fields of features and label, and the maximum records of a batch (`worker.batch_size`).
    path
        CSV with a header, or JSON lines, compressed by gzip or not; `-` reads standard input. The suffix
        determines the format (`.csv`, `.json`, `.jsonl`, `.ndjson`), otherwise the first byte: JSON lines
        begin with a brace. From a pipe a batch has the available lines and does not wait for more.

    Raises
    ------
    SourceError
        On opening or while reading: the file cannot be read, or a CSV header lacks a configured column.
    """
    wanted = config.input.source_names()
    if config.labels is None:
        wanted = [*wanted, config.input.label_field]
    else:
        wanted = [*wanted, *(name for name in (config.input.id, config.input.time) if name is not None)]
    with _open(path) as raw:
        size = None if path == "-" else _size(raw)
        lines = _read_lines(path, raw, wanted, config.worker.batch_size, wait=size is not None)._replace(
            find=unnested(config.input, declared_names(config.input))
        )
        decode = (
            json_decoder(config.input, **taken_cells(config))
            if lines.header is None
            else csv_decoder(config.input, lines.header, **taken_cells(config))
        )
        yield EventFile(decode, lines, size, raw.tell)


def _read_lines(
    path: str, raw: io.BufferedReader, wanted: Sequence[str], batch_size: int, *, wait: bool
) -> Lines:
    """Return the lines of a file; `wanted`: columns that the header of a CSV file must have."""
    file = _decompressed(path, raw)
    header = _header(path, file, wanted) if _is_csv(path, file) else None
    rows = map(_lines, _blocks(file)) if header is None else _rows(_blocks(file))
    batches = _batches(rows, batch_size, wait=wait)
    return Lines(_display_name(path), header, _with_read_errors(path, batches))


@contextlib.contextmanager
def _open_labels(config: Config, path: str) -> Iterator[Lines]:
    """Open a file of labels, as a context manager."""
    table = config.labels
    assert table is not None
    wanted = [name for name in (config.input.id, table.time, table.label) if name is not None]
    with _open(path) as raw:
        lines = _read_lines(path, raw, wanted, config.worker.batch_size, wait=True)
        yield lines._replace(find=unnested(table, wanted))


def _open(path: str) -> io.BufferedReader:
    try:
        return cast("io.BufferedReader", sys.stdin.buffer) if path == "-" else open(path, "rb")
    except OSError as error:
        raise _unreadable(path, error) from None


def _display_name(path: str) -> str:
    return "standard input" if path == "-" else path


def _decompressed(path: str, raw: io.BufferedReader) -> io.BufferedReader:
    """Return the file's content, decompressed if it begins with the gzip magic number."""
    try:
        begin = raw.peek(2)[:2]
    except OSError as error:
        raise _unreadable(path, error) from None
    if begin == _GZIP:
        return cast("io.BufferedReader", gzip.GzipFile(fileobj=raw))
    if path.endswith(".gz") and begin:
        raise SourceError(
            f"{path} is not a gzip file: it begins with {begin!r}",
            fix="compress it with gzip, or remove .gz from its name if it is not compressed",
            retriable=False,
        )
    return raw


def _is_csv(path: str, file: io.BufferedReader) -> bool:
    """Whether the file is CSV: by its suffix, otherwise by its first byte that is not a space."""
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    if suffix in (".csv", *_JSON_SUFFIXES):
        return suffix == ".csv"
    try:
        begin = file.peek(_PEEK)[:_PEEK].removeprefix(codecs.BOM_UTF8).lstrip()
    except _READ_ERRORS as error:
        raise _unreadable(path, error) from None
    return bool(begin) and not begin.startswith(b"{")


def _size(file: IO[bytes]) -> int | None:
    status = os.fstat(file.fileno())
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _header(path: str, lines: IO[bytes], wanted: Sequence[str]) -> list[str]:
    try:
        first = lines.readline().decode("utf-8-sig").rstrip("\r\n")
    except (*_READ_ERRORS, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    header = next(csv.reader([first]), [])
    absent = [column for column in wanted if column not in header]
    if absent:
        problem, fix = _no_column(_display_name(path), header, absent[0])
        raise SourceError(problem, fix=fix, retriable=False)
    return header


def _no_column(path: str, header: list[str], column: str) -> tuple[str, str]:
    """Return the problem of a header without a column, and the fix."""
    if len(header) == 1:
        for delimiter, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")):
            if delimiter in header[0]:
                return (
                    f"the columns of {path} are separated by {name}: {header[0]!r}",
                    "separate them by commas; pandas.read_csv(..., sep=...).to_csv(..., index=False) does so",
                )
    return (
        f"{path} has no column {column!r}; its columns are {', '.join(header[:20]) or 'none'}",
        "correct the key of the configuration that names it, such as input.features or input.label, or the "
        "file's first line (CSV has a header; a line of JSON begins with a brace)",
    )


def _unreadable(path: str, error: Exception) -> SourceError:
    reason = getattr(error, "strerror", None) or str(error)
    return SourceError(
        f"{_display_name(path)} cannot be read: {reason}",
        fix="check the path, its permissions and that a .gz file is complete",
        retriable=False,
    )


def _with_read_errors(path: str, batches: Iterator[list[Record]]) -> Iterator[list[Record]]:
    try:
        yield from batches
    except _READ_ERRORS as error:
        raise _unreadable(path, error) from None


def _blocks(file: Any) -> Iterator[bytes]:
    """Blocks of the file that end with a complete line, except perhaps the last; of a pipe, what is there."""
    partial: list[bytes] = []  # an incomplete line
    while block := file.read1(_BLOCK):
        end = block.rfind(b"\n") + 1
        if end:
            partial.append(block[:end])
            yield b"".join(partial)
            partial = []
        if end < len(block):
            partial.append(block[end:])
    if partial:
        yield b"".join(partial)


def _lines(block: bytes) -> list[bytes]:
    lines = block.split(b"\n")
    if not lines[-1]:
        del lines[-1]  # after the last newline
    return [line.rstrip(b"\r") for line in lines] if b"\r" in block else lines


def _rows(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Rows of a CSV file: lines, joined where a quoted cell contains a newline."""
    partial: list[bytes] = []
    quoted = False
    for block in blocks:
        if not quoted and b'"' not in block:
            yield _lines(block)
            continue
        rows = []
        for line in io.BytesIO(block):
            partial.append(line)
            quoted ^= line.count(b'"') % 2 == 1
            if not quoted:
                rows.append(b"".join(partial).rstrip(b"\r\n"))
                partial = []
        yield rows
    if partial:
        yield [b"".join(partial).rstrip(b"\r\n")]


def _batches(chunks: Iterable[list[bytes]], size: int, *, wait: bool) -> Iterator[list[Record]]:
    """Records in batches of this size; `wait`: whether a batch waits until it is full."""
    offset = 0
    pending: list[bytes] = []
    for chunk in chunks:
        pending += chunk
        done = 0
        while len(pending) - done >= size or (not wait and done < len(pending)):
            values = pending[done : done + size]
            done += len(values)
            yield list(map(Record, range(offset, offset + len(values)), values))
            offset += len(values)
        del pending[:done]
    if pending:
        yield list(map(Record, range(offset, offset + len(pending)), pending))


@dataclass
class Replay:
    """Replay of one file.

    Parameters
    ----------
    config
        The same configuration as for `run`; [kafka], [store] and the topics are not used.
    path
        As of `open_source`.
    scores
        Called with the scores of each batch, as lines of JSON.
    dead_letters
        Called with each dead letter as one line of JSON without a newline: text in `value`, or other bytes in
        `value_base64`.
    labels
        The file of the labels, as `path`; None: events have theirs.

    Attributes
    ----------
    events
        Records processed so far.
    size, position
        Bytes of the file on disk, and how many of them were read so far; None and 0 for a pipe.
    interrupted
        Whether :meth:`interrupt` ended the replay.
    late
        Where labels are in a file of their own: the order of events, and counts of labels.
    """

    config: Config
    path: str
    scores: Callable[[bytes], object]
    dead_letters: Callable[[bytes], object]
    labels: str | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    events: int = 0
    size: int | None = None
    position: int = 0
    interrupted: bool = False
    late: DueEvents | None = field(default=None, init=False)
    _waiting: bool = field(default=False, init=False, repr=False)
    _errors: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def interrupt(self) -> None:
        """End the replay after the current batch; called from a signal handler.

        Raises
        ------
        KeyboardInterrupt
            The replay is waiting for events, or was interrupted before.
        """
        again, self.interrupted = self.interrupted, True
        if again or self._waiting:
            raise KeyboardInterrupt

    def commonest_error(self) -> str | None:
        """Return the most frequent error of dead letters; None without dead letters."""
        return self._errors.most_common(1)[0][0] if self._errors else None

    def run(self, progress: Callable[[int], object] | None = None) -> LaneGauges:
        """Score and learn every record of the file.

        Parameters
        ----------
        progress
            Called after each batch with its number of records.

        Returns
        -------
        LaneGauges
            The gauges of the lane at the end.

        Raises
        ------
        SourceError, ConfigError, LaneStoppedError
            As the message says.
        """
        check_late_labels(self.config, self.labels, self.path)
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(open_source(self.config, self.path))
            labels = None
            if self.labels is not None:
                labels = stack.enter_context(_open_labels(self.config, self.labels))
            return self._run(source, labels, progress)

    def _run(
        self, source: EventFile, late: Lines | None, progress: Callable[[int], object] | None
    ) -> LaneGauges:
        config = self.config
        self.size = source.size
        topic = "stdin" if self.path == "-" else Path(self.path).name
        clock = DecodeClock(source.decode)
        lane = build_lane(config, clock.decode, topic=topic, partition=0, snapshots=False)
        if getattr(lane.learner, "entity", None) is not None:
            raise ConfigError(
                "the learner counts records by entity, the key of a message, but a file has no keys",
                fix="replay without entity=, or use Kafka",
            )
        labels: LaneLabels = (config.app, topic, "0", config.learner.label())
        timer = LaneTimer(lane, clock, self.telemetry, labels)
        encoder = Encoder(app=config.app, learner=lane.name, topic=topic, partition=0)
        self.telemetry.health(config.app, "running")
        batches: Iterator[Sequence[Record]] = _growing_batches(source.lines.batches)
        if late is not None:
            events = source.lines._replace(batches=batches)
            self.late = DueEvents(config, events, late, private=lane.private)
            batches = self._in_order(self.late, batches)
        publish_at, publish_after = 0.0, _FIRST_BATCH
        for batch in self._until_interrupted(batches):
            output = timer.process(batch)
            start = time.perf_counter()
            scores, letters = output.scores, output.dead_letters
            if late is not None:
                scores, letters = _by_line(cast("Sequence[OrderedRecord]", batch), output)
            self.scores(encoder.lines(scores))
            causes: dict[str, LetterCause] = {}
            for letter in letters:
                self.dead_letters(_letter_line(letter))
                if letter.error in self._errors or len(self._errors) < _MAX_ERRORS:
                    self._errors[letter.error] += 1
                add_letter(causes, letter)
            if causes:
                self.telemetry.history.dead_letters(labels, causes)
            timer.encoded(time.perf_counter() - start)
            self.events += len(scores)
            early = publish_after <= self.events <= _GROWTH_EVENTS
            if early or time.monotonic() >= publish_at:
                self.telemetry.publish(labels, timer.gauges(final=early), None, timer.seconds)
                publish_at = time.monotonic() + _PUBLISH_SECONDS
                publish_after = self.events + max(_FIRST_BATCH, self.events // _GROWTH)
            if progress is not None:
                self.position = 0 if source.size is None else source.position()
                progress(len(batch))
        gauges = timer.gauges(final=True)
        self.telemetry.publish(labels, gauges, None, timer.seconds)
        return gauges

    def _in_order(
        self, late: DueEvents, batches: Iterable[Sequence[Record]]
    ) -> Iterator[Sequence[OrderedRecord]]:
        """The events in the order in which they are scored and learned."""
        for batch in batches:
            yield late.take(batch)
        yield from late.rest(self.config.worker.batch_size)

    def _until_interrupted(self, batches: Iterator[Sequence[Record]]) -> Iterator[Sequence[Record]]:
        while not self.interrupted:
            try:
                self._waiting = True
                batch = next(batches, None)
                self._waiting = False
            except KeyboardInterrupt:
                self.interrupted = True
                return
            if batch is None:
                return
            yield batch


def _growing_batches(batches: Iterable[Sequence[Record]]) -> Iterator[Sequence[Record]]:
    """The same records, at first in small batches; the result of a lane does not depend on batch sizes."""
    done = 0
    for batch in batches:
        start = 0
        while start < len(batch):
            size = max(_FIRST_BATCH, done // _GROWTH) if done < _GROWTH_EVENTS else len(batch)
            part = batch[start : start + size]
            start += len(part)
            done += len(part)
            yield part


def _by_line(batch: Sequence[OrderedRecord], output: LaneOutput) -> tuple[list[Scored], list[DeadLetter]]:
    """Scores and dead letters by the numbers of their lines; events that are due have no further score."""
    lines = {record.offset: record.position for record in batch}
    scores = [
        msgspec.structs.replace(scored, offset=record.position)
        for record, scored in zip(batch, output.scores, strict=True)
        if not record.due
    ]
    letters = [msgspec.structs.replace(each, offset=lines[each.offset]) for each in output.dead_letters]
    return scores, letters


def _letter_line(letter: DeadLetter) -> bytes:
    line: dict[str, Any] = {"offset": letter.offset, "stage": letter.stage, "error": letter.error}
    try:
        line["value"] = None if letter.value is None else letter.value.decode("utf-8")
    except UnicodeDecodeError:
        line["value_base64"] = base64.b64encode(letter.value or b"").decode()
    return _json.encode(line)


def replay_file(
    config: Config,
    file: str,
    *,
    labels: str | None = None,
    output: Path | None,
    dead_letters: Path | None,
    record: Path | None = None,
    serve: bool,
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Replay a file, record the run, report the summary, and with `serve` keep the page up until Ctrl-C.

    Raises
    ------
    SourceError
        A file cannot be read or written, or no event was learned.
    KeyboardInterrupt
        It was interrupted; the summary of what was done has been reported.
    """
    console = Console(stderr=True, soft_wrap=True)
    letters = _LazyFile(dead_letters or Path(f"{config.app}-dead-letters.jsonl"))
    with contextlib.ExitStack() as stack:
        scores: IO[bytes] = sys.stdout.buffer if output is None else stack.enter_context(_create(output))
        stack.callback(letters.close)

        def write(lines: bytes) -> None:
            scores.write(lines)
            scores.flush()  # the reader of a pipe may wait for them

        replay = Replay(config, file, write, letters.write, labels)
        server = (
            stack.enter_context(
                _Background(MetricsServer(replay.telemetry, config.metrics, config.audit_file, config.card))
            )
            if serve
            else None
        )
        if server is not None:
            console.print(f"metrics: {server.url}/metrics\ndashboard: {server.url}/", highlight=False)
        start = time.perf_counter()
        with _progress() as progress:
            task = progress.add_task("replay", total=None, events=0, rate="")

            def show(_: int) -> None:
                rate = replay.events / max(time.perf_counter() - start, 1e-9)
                progress.update(
                    task,
                    total=replay.size,
                    completed=replay.position,
                    events=replay.events,
                    rate=f"{rate:,.0f} events/s",
                )

            with _interruptible(replay):
                gauges = replay.run(show)
        scores.flush()
        seconds = time.perf_counter() - start
        summary = summarise(gauges, replay.late)
        summary["events_per_second"] = round(replay.events / max(seconds, 1e-9), 1)
        if record is not None:
            with _create(record) as run_file:
                run_file.write(frame_json(replay.telemetry, public=False, audit=config.audit_file)[1])
        if letters.made:
            summary["dead_letter_file"] = str(letters.path)
        if replay.interrupted:
            summary["interrupted"] = True
        report(summary)
        if replay.interrupted:
            raise KeyboardInterrupt
        if not summary["learned"]:
            raise _nothing_learned(replay, summary, config)
        if server is not None:
            # From here on Ctrl-C ends the command normally, even before the message is printed.
            with contextlib.suppress(KeyboardInterrupt):
                console.print(
                    f"metrics stay up at {server.url}/metrics until Ctrl-C, the dashboard at {server.url}/",
                    highlight=False,
                )
                _await_interrupt()


def _await_interrupt() -> NoReturn:
    """Wait for Ctrl-C, a second at a time.

    Python sees a signal that comes just before a wait begins only after it, so no wait is without end.
    """
    while True:
        time.sleep(1.0)


@contextlib.contextmanager
def _interruptible(replay: Replay) -> Iterator[None]:
    """Let Ctrl-C end the replay after a batch; only the main thread has signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: replay.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _challenger_summary(challenger: ChallengerGauges) -> dict[str, Any]:
    """How well a challenger did beside the champion, on the same events."""
    found = challenger.comparison
    numbers: dict[str, Any] = {"ended": challenger.ended} if challenger.ended else {}
    if found is not None:
        numbers |= {
            "events": found.events,
            "auc": round(found.second, 4),
            "champion": round(found.first, 4),
            "difference": round(found.difference, 4),
            "stderr": round(found.difference_stderr, 4),
            "p_value": float(f"{found.p_value:.3g}"),
        }
    if challenger.privacy is not None:
        numbers["epsilon_spent"] = challenger.privacy["epsilon_spent"]
    return {**numbers, "seconds": round(challenger.seconds, 3)}


def _nothing_learned(replay: Replay, summary: dict[str, Any], config: Config) -> SourceError:
    reason = replay.commonest_error()
    if reason is not None:
        letters = sum(summary["dead_letters"].values())
        return SourceError(
            f"nothing was learned: {letters:,} of {replay.events:,} events could not be used, most often: "
            f"{reason}",
            fix=f"correct the events or [input]; {summary['dead_letter_file']} has each event with its error",
            retriable=False,
        )
    if replay.events and replay.late is not None:
        return SourceError(
            f"nothing was learned: none of {replay.events:,} events got a label in time",
            fix="compare the ids and times of both files, or raise labels.after; with labels.absent events "
            "without a label are learned too",
            retriable=False,
        )
    if replay.events:
        return SourceError(
            f"nothing was learned: no event has the label {config.input.label!r}",
            fix="correct input.label, or use a file with labels",
            retriable=False,
        )
    return SourceError(
        "nothing was learned: the file has no events", fix="use a file with events", retriable=False
    )


def summarise(gauges: Any, late: DueEvents | None = None) -> dict[str, Any]:
    """Return the numbers of a lane as plain values, with those of late labels."""
    # Where labels come later, an event counts when it is scored, and again when it is due.
    count = sum(gauges.events.values())
    summary: dict[str, Any] = {
        "events": count if late is None else late.events,
        **gauges.events,
        "dead_letters": {k: v for k, v in gauges.dead_letters.items() if v},
        "auc_of_latest": None if gauges.auc != gauges.auc else round(gauges.auc, 4),
    }
    del summary["dead_letter"]
    if late is not None:
        summary |= late.counts()
    if gauges.outside:
        summary["values_outside_bounds"] = gauges.outside
    if gauges.regret is not None:
        summary["regret"] = round(gauges.regret.total, 3)
        summary["regret_stderr"] = round(gauges.regret.stderr, 3)
        summary["regret_average"] = round(gauges.regret.average, 5)
    if gauges.privacy is not None:
        summary["epsilon_spent"] = gauges.privacy.epsilon_spent
        summary["epsilon_budget"] = gauges.privacy.epsilon_budget
        summary["delta"] = gauges.privacy.delta
        summary["guarantee"] = gauges.privacy.guarantee
    if gauges.challengers:
        summary["challengers"] = {each.name: _challenger_summary(each) for each in gauges.challengers}
    return summary


def _progress() -> Progress:
    console = Console(stderr=True)
    # Not on a terminal that also shows the scores.
    visible = console.is_terminal and not sys.stdout.isatty()
    return Progress(
        SpinnerColumn(),
        _SizedColumn(BarColumn()),
        _SizedColumn(TaskProgressColumn()),
        TextColumn("{task.fields[events]:,} events"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        _SizedColumn(TimeRemainingColumn(compact=True)),
        _SizedColumn(TextColumn("left")),
        console=console,
        transient=True,
        disable=not visible,
    )


class _SizedColumn(ProgressColumn):
    """A column shown only for input of known size: for a file, not for a pipe."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def __call__(self, task: Task) -> RenderableType:
        """Draw the column at its own rate."""
        return Text() if task.total is None else self._column(task)

    def render(self, task: Task) -> RenderableType:
        """Draw the column."""
        return self(task)


def _create(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as error:
        raise SourceError(
            f"{path} cannot be written: {error.strerror}",
            fix="choose another path or correct its permissions",
            retriable=False,
        ) from None


class _LazyFile:
    """A file that is created by its first line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    @property
    def made(self) -> bool:
        return self._file is not None

    def write(self, line: bytes) -> None:
        if self._file is None:
            self._file = _create(self.path)
        self._file.write(line + b"\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Background:
    """Serves metrics from its own thread, while the main thread works."""

    def __init__(self, server: MetricsServer) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return self._server.url

    def __enter__(self) -> _Background:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result()
        self._close()

    def _close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
