"""What every tier of the tests shares: skipping in one voice, and remembering what was used.

``STREAMPAIR_REQUIRE_ALL=1`` (set by ``.ci/run``) turns every skip for a missing tool into a failure.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"

used: dict[str, set[str]] = {}
"""What the run used, by kind (``brokers``, ``prometheus``), for the closing summary."""

missing: dict[str, str] = {}
"""What was skipped, with the one-line way to get it."""

verified: dict[str, dict[str, int]] = {}
"""What each fault of the verifier came to: kills, outputs, duplicates, entries of logs, forks."""


def require_all() -> bool:
    """Whether a skip for a missing tool counts as a failure."""
    return os.environ.get("STREAMPAIR_REQUIRE_ALL", "") not in ("", "0")


def note_used(kind: str, what: str) -> None:
    """Remember that the run used ``what``, for the closing summary."""
    used.setdefault(kind, set()).add(what)


def unavailable(what: str, hint: str, *, made: bool = False) -> NoReturn:
    """Skip the test because ``what`` is missing; fail instead where everything is required.

    ``made``: `make test` installs it, and it is required there.
    """
    missing[what] = hint
    for name in ("STREAMPAIR_REQUIRE_ALL", *(["STREAMPAIR_MAKE_TEST"] if made else [])):
        if os.environ.get(name, "") not in ("", "0"):
            pytest.fail(f"{what} is required ({name}=1) and missing: {hint}", pytrace=False)
    pytest.skip(f"{what} is missing: {hint}")


@contextlib.contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Writes fail where a file would have more than so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def note_fault(fault: str, counts: dict[str, int]) -> None:
    """Add what a fault came to."""
    row = verified.setdefault(fault, {})
    for name, count in counts.items():
        row[name] = row.get(name, 0) + count


def faults(rows: dict[str, dict[str, int]]) -> list[str]:
    """`verified` as a table."""
    names = ("kills", "outputs", "duplicates", "entries", "forks")
    width = max(len(fault) for fault in rows)
    lines = [" ".join([f"{'fault':{width}}", *(f"{name:>10}" for name in names)])]
    for fault, row in sorted(rows.items()):
        lines.append(" ".join([f"{fault:{width}}", *(f"{row.get(name, 0):>10}" for name in names)]))
    sums = [sum(row.get(name, 0) for row in rows.values()) for name in names]
    lines.append(" ".join([f"{'in all':{width}}", *(f"{s:>10}" for s in sums)]))
    return lines
