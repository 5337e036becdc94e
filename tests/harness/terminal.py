"""A process on a terminal, as a person starts it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import subprocess
import termios
from collections.abc import Mapping
from pathlib import Path


class OnTerminal:
    """A process whose standard input, output and error are a terminal.

    Parameters
    ----------
    command, folder
        What runs, and where.
    variables
        More of its environment.
    """

    def __init__(self, command: list[str], folder: Path, variables: Mapping[str, str] | None = None) -> None:
        self._terminal, other = pty.openpty()
        plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
        self.process = subprocess.Popen(
            command,
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
            cwd=folder,
            env={**plain, "TERM": "xterm-256color", "COLUMNS": "100", **(variables or {})},
        )
        os.close(other)
        self.written = ""

    def read_until(self, text: str) -> str:
        """What it has written, once that has `text` or it has ended."""
        while text not in self.written and (more := self._read()):
            self.written += more
        return self.written

    def _read(self) -> str:
        with contextlib.suppress(OSError):  # Linux says so that the last process has closed it
            return os.read(self._terminal, 4096).decode()
        return ""

    def rest(self) -> str:
        """All that it has written, after its end."""
        while more := self._read():
            self.written += more
        self.process.wait(60)
        os.close(self._terminal)
        return self.written.replace("\r\n", "\n")

    def type(self, text: str) -> None:
        """Type a text; "\x03" is Ctrl-C."""
        os.write(self._terminal, text.encode())
