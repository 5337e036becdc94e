"""`streampair replay`: files, progress and summary around `streampair_connectors.worker.replay.Replay`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

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

from streampair.errors import SourceError
from streampair_connectors.config import Config
from streampair_connectors.observability.dashboard import frame_json
from streampair_connectors.observability.server import MetricsServer
from streampair_connectors.worker.replay import Replay

__all__ = ["replay_file", "summarise"]


def replay_file(
    config: Config,
    file: str,
    *,
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

        replay = Replay(config, file, write, letters.write)
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
        summary = summarise(gauges)
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
                threading.Event().wait()


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
    if replay.events:
        return SourceError(
            f"nothing was learned: no event has the label {config.input.label!r}",
            fix="correct input.label, or use a file with labels",
            retriable=False,
        )
    return SourceError(
        "nothing was learned: the file has no events", fix="use a file with events", retriable=False
    )


def summarise(gauges: Any) -> dict[str, Any]:
    """Return the numbers of a lane as plain values."""
    summary: dict[str, Any] = {
        "events": sum(gauges.events.values()),
        **gauges.events,
        "dead_letters": {k: v for k, v in gauges.dead_letters.items() if v},
        "auc_of_latest": None if gauges.auc != gauges.auc else round(gauges.auc, 4),
    }
    del summary["dead_letter"]
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


def _create(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as error:
        raise SourceError(
            f"{path} cannot be written: {error.strerror}",
            fix="choose another path or mend its permissions",
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
