"""`streampair replay`: process a CSV or JSON lines file with a lane as in `run`, without Kafka."""

from __future__ import annotations

import base64
import contextlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

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

from streampair.engine import DeadLetter, LaneId, LaneOutput, OrderedRecord, Record, Scored
from streampair.engine.lane import LaneGauges
from streampair.errors import ConfigError, LaneStoppedError, RecordError, SourceError
from streampair_connectors.cli.event_files import EventFile, Lines, display_name, open_labels, open_source
from streampair_connectors.cli.late_labels import DueEvents, check_late_labels
from streampair_connectors.codecs.fixes import label_fix
from streampair_connectors.codecs.json_fields import json_object
from streampair_connectors.codecs.records import Encoder
from streampair_connectors.config import Config
from streampair_connectors.observability.dashboard import frame, recorded_page
from streampair_connectors.observability.logs import get_logger
from streampair_connectors.observability.metric_definitions import LaneLabels
from streampair_connectors.observability.metric_history import LetterCause
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.output_files import OutputFile, check_outputs, files_of
from streampair_connectors.worker.causes import add_letter
from streampair_connectors.worker.factory import build_lane, is_private
from streampair_connectors.worker.first_events import FirstEvents
from streampair_connectors.worker.timing import DecodeClock, LaneTimer

__all__ = ["Replay", "replay_file", "summarise", "warn_outside"]

log = get_logger(__name__)
_json = msgspec.json.Encoder()
# Interval of the lane's metrics: each publication computes an AUC.
_PUBLISH_SECONDS = 0.25
# At first metrics are published after 64 events, then after an eighth more: short files get a history.
_FIRST_BATCH, _GROWTH, _GROWTH_EVENTS = 64, 8, 8192
_MAX_ERRORS = 1000  # distinct errors of dead letters that are counted


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
    _last: bytes = field(default=b"", init=False, repr=False)
    _learner: Any = field(default=None, init=False, repr=False)
    _all_zero: bool = field(default=True, init=False, repr=False)

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

    def label_fix(self) -> str | None:
        """Return the fix that names the field of the last event that is like the label; None: none is."""
        with contextlib.suppress(RecordError):
            return label_fix(self.config.input, json_object(self._last))
        return None

    def warn(self, gauges: LaneGauges) -> None:
        """Log what makes scores useless: a warm-up as long as the file, and values outside their bounds.

        Names and counts, and no values of records.
        """
        run = self._learner.run if is_private(self.config) else None
        slots = 0 if run is None else run.slots
        if self._all_zero and 0 < slots <= self._learner.settings.warmup:
            log.warning(
                "warm_up_not_over",
                app=self.config.app,
                detail=f"all scores are 0: the warm-up takes the first {self._learner.settings.warmup:,} "
                f"events, and {slots:,} were learned",
                next_step=_shorter_warm_up(self.config, self._learner),
            )
        warn_outside(self.config.app, gauges.outside or {}, self.events, "events")

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
                labels = stack.enter_context(open_labels(self.config, self.labels))
            return self._run(source, labels, progress)

    def _run(
        self, source: EventFile, late: Lines | None, progress: Callable[[int], object] | None
    ) -> LaneGauges:
        config = self.config
        self.size = source.size
        topic = "stdin" if self.path == "-" else Path(self.path).name
        clock = DecodeClock(source.decode)
        lane = build_lane(config, clock.decode, LaneId(config.app, topic, 0), snapshots=False)
        if getattr(lane.learner, "entity", None) is not None:
            raise ConfigError(
                "the learner counts records by entity, the key of a message, but a file has no keys",
                fix="replay without entity=, or use Kafka",
            )
        self._learner = lane.learner
        labels: LaneLabels = (config.app, topic, config.learner.label())
        timer = LaneTimer(lane, clock, self.telemetry, labels)
        encoder = Encoder(app=config.app, learner=lane.name, topic=topic, partition=0)
        self.telemetry.health(config.app, "running")
        batches: Iterator[Sequence[Record]] = _growing_batches(source.lines.batches)
        if late is not None:
            events = source.lines._replace(batches=batches)
            self.late = DueEvents(config, events, late)
            batches = self.late.batches()
        first = FirstEvents(config, None if source.lines.header is not None else json_object)
        publish_at, publish_after = 0.0, _FIRST_BATCH
        for batch in self._until_interrupted(batches):
            with self._stops():
                output = timer.process(batch)
            self._last = batch[-1].value or b""
            self._all_zero = self._all_zero and not any(each.score for each in output.scores)
            first.note(batch, output.scores)
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
        first.end()
        gauges = timer.gauges(final=True)
        self.telemetry.publish(labels, gauges, None, timer.seconds)
        return gauges

    @contextlib.contextmanager
    def _stops(self) -> Iterator[None]:
        """Say of a lane that stops what to do about a file: it has no producer, and a replay no snapshots."""
        try:
            yield
        except LaneStoppedError as error:
            raise LaneStoppedError(
                error.problem,
                fix=f"correct {display_name(self.path)}, or the keys of [input] by which it is read. To read "
                "on over bad events, which are then counted only: --set worker.on_bad=skip",
            ) from error

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


def warn_outside(app: str, outside: Mapping[str, int], records: int, what: str) -> None:
    """Log of which features most values are outside their bounds: names and counts."""
    most = {name: count for name, count in outside.items() if 2 * count > records}
    if most:
        log.warning(
            "values_outside_bounds",
            app=app,
            features=most,
            detail=f"most values of {', '.join(map(repr, most))} in {records:,} {what} are outside of "
            "the bounds of input.features",
            next_step=f"correct the bounds, by what is known without these {what}: a learner that has bounds "
            "cuts values off at them",
        )


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


def _shorter_warm_up(config: Config, learner: Any) -> str:
    """How to have the warm-up of a private learner end within the file."""
    steps = config.learner.steps
    options = f"learner.steps[{len(steps) - 1}].options" if steps else "learner.options"
    if learner.warmup is None and learner.settings.horizon is not None:
        return (
            f"set {options}.horizon, which is {learner.settings.horizon:,}, to the number of events; or use "
            "a file with more events"
        )
    return f"use a file with more events, or set {options}.warmup to fewer"


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
    page: Path | None = None,
    report: Callable[[dict[str, Any]], None],
) -> None:
    """Replay a file and report the summary.

    Raises
    ------
    SourceError
        A file cannot be read or written, or no event was learned.
    KeyboardInterrupt
        It was interrupted; the summary of what was done has been reported.
    """
    console = Console(stderr=True, soft_wrap=True)
    letters = dead_letters or Path(f"{config.app}-dead-letters.jsonl")
    scores = {"standard output": "-"} if output is None else {"--output": output}
    paths = {**scores, "--dead-letters": letters, "--page": page}
    check_outputs(paths, {"the file of events": file, "the file of labels": labels, **files_of(config)})
    with contextlib.ExitStack() as stack:
        files = _Outputs(output, letters, page, console)
        stack.callback(files.close)
        files.open()
        replay = Replay(config, file, files.write_scores, files.write_letter, labels)
        start = time.perf_counter()
        gauges = _run_with_progress(replay)
        seconds = time.perf_counter() - start
        files.finish(
            frame(replay.telemetry, public=False, audit=config.metrics.audit_file, curator=config.card)
        )
        summary = summarise(gauges, replay.late)
        summary["events_per_second"] = round(replay.events / max(seconds, 1e-9), 1)
        if files.letters.bytes:
            summary["dead_letter_file"] = str(letters)
        if replay.interrupted:
            summary["interrupted"] = True
        report(summary)
        replay.warn(gauges)
        if replay.interrupted:
            raise KeyboardInterrupt
        _check_learned(replay, summary, config)


class _Outputs:
    """The files that a replay writes."""

    def __init__(self, output: Path | None, letters: Path, page: Path | None, console: Console) -> None:
        self._console = console
        self._page = None if page is None else OutputFile(page)
        self._scores = None if output is None else OutputFile(output)
        self.letters = OutputFile(letters)

    def open(self) -> None:
        """Create the files, but that of dead letters, which its first line creates."""
        self.letters.forget()
        for file in (self._page, self._scores):
            if file is not None:
                file.open()

    def write_scores(self, lines: bytes) -> None:
        """Write lines; the reader of a pipe may wait for them."""
        out: Any = sys.stdout.buffer if self._scores is None else self._scores
        out.write(lines)
        out.flush()

    def write_letter(self, line: bytes) -> None:
        self.letters.write(line + b"\n")

    def finish(self, run: dict[str, Any]) -> None:
        """Give all files their names; `run` is what the page shows."""
        if self._page is not None:
            self._page.write(recorded_page(run))
        for file in self._files():
            file.finish()

    def _files(self) -> list[OutputFile]:
        return [file for file in (self._scores, self.letters, self._page) if file is not None]

    def close(self) -> None:
        """Close the files, and say where those are that did not get their names."""
        for file in self._files():
            if file.unfinished is not None:
                self._console.print(f"not complete: {file.unfinished}", highlight=False)
            file.close()


def _run_with_progress(replay: Replay) -> LaneGauges:
    start = time.perf_counter()
    with _progress() as progress, _interruptible(replay):
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

        return replay.run(show)


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


def _check_learned(replay: Replay, summary: dict[str, Any], config: Config) -> None:
    """Raise the error of a replay that learned nothing, or whose labels found no event.

    Raises
    ------
    SourceError
        It is one.
    """
    reason = replay.commonest_error()
    if not summary["learned"] and reason is not None:
        letters = sum(summary["dead_letters"].values())
        raise SourceError(
            f"nothing was learned: {letters:,} of {replay.events:,} events could not be used, most often: "
            f"{reason}",
            fix=f"correct the events or [input]; {summary['dead_letter_file']} has each event with its error",
            retriable=False,
        )
    unfound = None if replay.late is None else replay.late.no_label_found()
    if unfound is not None:
        raise unfound
    if summary["learned"]:
        return
    if replay.events:
        raise SourceError(
            f"nothing was learned: no event has the label {config.input.label!r}",
            fix=replay.label_fix() or "correct input.label, or use a file with labels",
            retriable=False,
        )
    raise SourceError(
        f"nothing was learned: {display_name(replay.path)} has no events",
        fix="use a file with events",
        retriable=False,
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
