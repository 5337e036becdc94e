"""``streampair run`` as a user starts it: a process of its own, watched through its log and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, TypeVar, cast

from harness.programs import Command

T = TypeVar("T")


def wait_for(
    what: str, look: Callable[[], Any], *, seconds: float = 60.0, explain: Callable[[], str] = str
) -> Any:
    """Ask ``look`` again and again until it answers something true; fail with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}; last answer {answer!r}\n{explain()}")
        pause.wait(0.05)


def fetch(url: str) -> str:
    """Body of a page; empty while nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return ""


class Watched:
    """A process of ``streampair run``, as its log tells of it.

    Parameters
    ----------
    log
        Opens what the process logs, in the thread that reads it.

    Attributes
    ----------
    lines
        What it logged so far.
    """

    failure: type[AssertionError] = AssertionError
    """What is raised if it does not log what is awaited."""

    def __init__(self, log: Callable[[], TextIO]) -> None:
        self.lines: list[str] = []
        self._records: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()

    def _read(self, log: Callable[[], TextIO]) -> None:
        with log() as lines:
            for line in lines:
                self.lines.append(line)
                with contextlib.suppress(ValueError):
                    self._records.put(json.loads(line))
        self._records.put(None)

    def log(self) -> str:
        """The last lines that it logged."""
        return "".join(self.lines[-60:])

    def said(self, event: str) -> bool:
        """Whether it has logged an event."""
        return any(f'"{event}"' in line for line in self.lines)

    def await_log(self, event: str, seconds: float = 90.0) -> dict[str, Any]:
        """The next log record of this event."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                record = self._records.get(timeout=left)
            except queue.Empty:
                break
            if record is None:
                break
            if record.get("event") == event:
                return record
        raise self.failure(f"no log record {event!r}:\n{self.log()}")


class WorkerProcess(Watched):
    """A running ``streampair run CONFIG``; leaving the ``with`` block interrupts it and awaits its end.

    ``command`` is another one than ``run`` that goes on until it is interrupted.
    """

    def __init__(self, config: Path, *arguments: str, command: str = "run") -> None:
        self._killed = False
        self._process, errors = self._start([command, str(config), *arguments], config.parent)
        super().__init__(lambda: errors)

    def _start(self, words: list[str], folder: Path) -> tuple[subprocess.Popen[str] | Command, TextIO]:
        """A process in this folder, and what it writes on standard error."""
        process = subprocess.Popen(
            [sys.executable, "-m", "streampair_connectors", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        assert process.stderr is not None
        return process, cast(TextIO, process.stderr)

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    async def unless_it_ends(self, work: Coroutine[Any, Any, T]) -> T:
        """Result of ``work``, which waits for what the worker does; fails with its log if it ends before.

        ``work`` itself may kill it.
        """
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait({task}, timeout=0.5)
            if not (task.done() or self._killed) and self._process.poll() is not None:
                task.cancel()
                self._reader.join(10)
                raise AssertionError(f"the worker ended with {self._process.returncode}:\n{self.log()}")
        return task.result()

    def metrics_url(self) -> str:
        """Where its metrics are, once it has said so."""
        return str(self.await_log("started")["metrics"])

    def send(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until it has ended; its exit code."""
        code = self._process.wait(60)
        self._reader.join(10)
        return code

    def interrupt(self) -> int:
        """Ctrl-C; return the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        return code

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.interrupt()
