"""``streampair run`` as a user starts it: a process of its own, watched through its log and its metrics."""

from __future__ import annotations

import asyncio
import json
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

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


class WorkerProcess:
    """A running ``streampair run CONFIG``; leaving the ``with`` block interrupts it and awaits its end.

    ``command`` is another one than ``run`` that goes on until it is interrupted.
    """

    program: ClassVar[Sequence[str]] = ("-m", "streampair_connectors")

    def __init__(self, config: Path, *arguments: str, command: str = "run") -> None:
        self.lines: list[str] = []
        self._records: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._killed = False
        self._process = subprocess.Popen(
            [sys.executable, *self.program, command, str(config), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=config.parent,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr:
            for line in self._process.stderr:
                self.lines.append(line)
                try:
                    self._records.put(json.loads(line))
                except ValueError:
                    continue
        self._records.put(None)

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def log(self) -> str:
        """What it logged so far."""
        return "".join(self.lines[-60:])

    def await_log(self, event: str, seconds: float = 60.0) -> dict[str, Any]:
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
        raise AssertionError(f"no log record {event!r}:\n{self.log()}")

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
