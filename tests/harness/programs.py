"""Programs of the pages and commands, each in a process of its own.

Most of a short program, and of the start of a worker, is the import of libraries and of this package. One
process does it for all, and forks for each; a program finds itself in an interpreter that has imported them,
and has done nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, TextIO

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *("pandas", "sklearn.model_selection", "scipy.stats", "scipy.optimize"),
        *("river.compose", "river.datasets", "river.evaluate", "river.preprocessing"),
        *("streampair.auc", "streampair.metric", "streampair.ranking", "streampair.models"),
        *("streampair.privacy", "streampair.engine", "streampair_connectors.cli.app"),
        *("streampair_connectors.worker.worker", "streampair_connectors.observability.server"),
    ]
)


class Ended(NamedTuple):
    """What a program printed, and its exit code."""

    code: int
    printed: str
    errors: str


def _run(text: str, folder: Path, where: Path) -> None:
    for number in (1, 2):
        file = os.open(folder / f".output-{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
    os.chdir(where)
    sys.path.insert(0, "")
    warnings.simplefilter("error")
    exec(compile(text, "<program>", "exec"), {"__name__": "__main__"})


def run(text: str, folder: Path, *, where: Path | None = None, seconds: float = 120.0) -> Ended:
    """Run a program, for which a warning is an error.

    Parameters
    ----------
    text
        The program.
    folder
        For what it prints; it runs here too, unless `where` says where.
    seconds
        After so long it is given up.
    """
    process = _FORKS.Process(target=_run, args=(text, folder, where or folder))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode is not None
    printed, errors = ((folder / f".output-{number}").read_text(encoding="utf-8") for number in (1, 2))
    return Ended(process.exitcode, printed, errors)


class Command:
    """A ``streampair`` command that goes on until it is ended: `subprocess.Popen`, as far as tests need it.

    Parameters
    ----------
    words
        What follows ``streampair``.
    folder
        Where it runs, with the environment that this process has now.
    before
        What its process does first, in Python.
    """

    def __init__(self, words: Sequence[str], folder: Path, before: str = "") -> None:
        errors, end = _FORKS.Pipe(duplex=False)
        arguments = (list(words), folder, before, dict(os.environ), end)
        self._process = _FORKS.Process(target=_command, args=arguments, daemon=True)
        self._process.start()
        end.close()
        self.stderr: TextIO = os.fdopen(os.dup(errors.fileno()), encoding="utf-8")
        errors.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code; None while it runs; the signal that ended it, negative."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """`returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; its exit code."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("streampair", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """``kill -9``."""
        self._process.kill()


def _command(
    words: list[str], folder: Path, before: str, environment: Mapping[str, str], errors: Connection
) -> None:
    from streampair_connectors.cli.app import main

    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, to in ((nothing, 0), (nothing, 1), (errors.fileno(), 2)):
        os.dup2(descriptor, to)
    errors.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["streampair", *words]
    exec(before)
    main()
