"""A process on a terminal, as a person starts it."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# The process makes the terminal its own: Ctrl-C is a signal. A function that is called between fork
# and exec can wait for ever for a lock that another thread of the tests had.
OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


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
            [sys.executable, "-c", OWN_TERMINAL, *command],
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
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

    def _read(self, seconds: float = 120.0) -> str:
        """What it writes next; nothing once it has ended.

        Raises
        ------
        TimeoutError
            It writes nothing for so long, and goes on.
        """
        if not select.select([self._terminal], [], [], seconds)[0]:
            raise TimeoutError(f"nothing more was written after: {self.written!r}")
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
        """Type a text; "\x04" is Ctrl-D."""
        os.write(self._terminal, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C, and again while it goes on, as a person does.

        The signal is lost for a process that has written its prompt and has not begun to read the answer.
        """
        for _ in range(12):
            self.type("\x03")
            with contextlib.suppress(TimeoutError):
                while more := self._read(10.0):
                    self.written += more
                return
        raise TimeoutError(f"Ctrl-C does not end it: {self.written!r}")
