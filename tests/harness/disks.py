"""A disk that forgets what was not flushed: it stands between the directory store and the files.

It follows what `os` does to the files of one directory, counts each operation, and dies before the one that a
test names. Then it puts the files as a loss of power may leave them:

- ``"unflushed"``: what was not flushed is lost: contents since the last fsync of the file, and files made,
  renamed and removed since the last fsync of the directory;
- ``"contents"``: names are kept, and contents are lost, as where a file system writes its metadata first;
- ``"ordered"``: all that was asked for is kept, in order; the write that was under way may be torn;
- ``"killed"``: the process alone has died: nothing is lost, and nothing more is flushed.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Final

import pytest

from harness.driver import Died

LOSSES: Final = ("unflushed", "contents", "ordered", "killed")


@dataclasses.dataclass(eq=False)
class File:
    """What a file holds, and what of it is flushed."""

    data: bytes = b""
    flushed: bytes = b""


class Disk:
    """One directory on a disk that forgets.

    Parameters
    ----------
    root
        The directory.
    patch
        Puts the disk between `os` and whoever calls it, for as long as the test lasts.

    Attributes
    ----------
    operations
        What has been asked for: each with the bytes that it writes.
    left
        Operations until it dies; None: it does not.
    torn
        Bytes that the write under way still brings to the disk when it dies.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.operations: list[tuple[str, int]] = []
        self.left: int | None = None
        self.torn = 0
        self._now: dict[str, File] = {}
        self._flushed: dict[str, File] = {}
        self._open: dict[int, File | None] = {}  # None: the directory
        self._real: dict[str, Any] = {}
        for name in ("open", "write", "fsync", "replace", "truncate", "unlink"):
            self._real[name] = getattr(os, name)
            patch.setattr(os, name, getattr(self, f"_{name}_file"))

    def step(self, what: str, size: int = 0) -> None:
        """Count an operation, and die before it if it is its turn."""
        self.operations.append((what, size))
        if self.left is not None:
            if self.left <= 0:
                raise Died
            self.left -= 1

    def lose(self, loss: str) -> None:
        """Put the files as they are after the power is back, or after the process alone has died."""
        if loss == "unflushed":
            self._now = dict(self._flushed)
        if loss in ("unflushed", "contents"):
            for file in self._now.values():
                file.data = file.flushed
        if loss != "killed":
            for file in self._now.values():
                file.flushed = file.data
            self._flushed = dict(self._now)
        for path in self.root.iterdir():
            if path.suffix != ".lock":
                self._real["unlink"](path)
        for name, file in self._now.items():
            (self.root / name).write_bytes(file.data)
        self._open.clear()
        self.left, self.torn = None, 0

    def _name(self, path: Any) -> str | None:
        """Of a file of the directory that matters; the lock holds nothing."""
        path = Path(os.fspath(path))
        return path.name if path.parent == self.root and path.suffix != ".lock" else None

    def _open_file(self, path: Any, flags: int, *rest: Any, **options: Any) -> int:
        name = self._name(path) if isinstance(path, str | os.PathLike) else None
        if name is None:
            descriptor: int = self._real["open"](path, flags, *rest, **options)
            if Path(os.fspath(path)) == self.root:
                self._open[descriptor] = None
            return descriptor
        if name not in self._now and flags & os.O_CREAT:
            self.step("create")
            self._now[name] = File()
        elif flags & os.O_TRUNC:
            self.step("empty")
            self._now[name].data = b""
        descriptor = self._real["open"](path, flags, *rest, **options)
        self._open[descriptor] = self._now[name]
        return descriptor

    def _write_file(self, descriptor: int, data: Any) -> int:
        file = self._open.get(descriptor)
        if file is not None:
            try:
                self.step("write", len(data))
            except Died:
                file.data += bytes(data[: self.torn])
                raise
        written: int = self._real["write"](descriptor, data)
        if file is not None:
            file.data += bytes(data[:written])
        return written

    def _fsync_file(self, descriptor: int) -> None:
        if descriptor in self._open:
            file = self._open[descriptor]
            self.step("flush the directory" if file is None else "flush")
            if file is None:
                self._flushed = dict(self._now)
            else:
                file.flushed = file.data

    def _replace_file(self, old: Any, new: Any) -> None:
        before, after = self._name(old), self._name(new)
        if before is not None and after is not None:
            self.step("rename")
            self._now[after] = self._now.pop(before)
        self._real["replace"](old, new)

    def _truncate_file(self, path: Any, length: int) -> None:
        name = self._name(path)
        if name is not None:
            self.step("cut")
            self._now[name].data = self._now[name].data[:length]
        self._real["truncate"](path, length)

    def _unlink_file(self, path: Any, **options: Any) -> None:
        name = self._name(path)
        if name is not None and name in self._now:
            self.step("remove")
            del self._now[name]
        self._real["unlink"](path, **options)
