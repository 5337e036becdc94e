"""What every tier of the tests shares: skipping in one voice, and remembering what was used.

``STREAMPAIR_REQUIRE_ALL=1`` (set by ``.ci/run``) turns every skip for a missing tool into a failure.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"

used: dict[str, set[str]] = {}
"""What the run used, by kind (``brokers``, ``prometheus``), for the closing summary."""

missing: dict[str, str] = {}
"""What was skipped, with the one-line way to get it."""

verified: dict[str, dict[str, int]] = {}
"""What each fault of the verifier came to: kills, outputs, duplicates, entries of logs, forks."""

left_out: dict[str, int] = {}
"""How many cases were not run, by what runs them."""


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


def leave_out(config: pytest.Config, items: list[pytest.Item], cases: list[pytest.Item], option: str) -> None:
    """Take cases out of those that run, and remember which option runs them, for the closing summary."""
    if not cases:
        return
    config.hook.pytest_deselected(items=cases)
    gone = {id(item) for item in cases}
    items[:] = [item for item in items if id(item) not in gone]
    left_out[option] = left_out.get(option, 0) + len(cases)


@contextlib.contextmanager
def at_row(*what: object) -> Iterator[None]:
    """A row of the table that a test goes through: a failure inside names it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the row {', '.join(f'{part!r:.200}' for part in what)}")
        raise


def in_one_case(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Any], Any]:
    """Give a test these arguments, a row after the other within one case; read as pytest's ``parametrize``.

    For what takes a moment and leaves nothing behind: bad values, above all. A failure names its row.
    Fixtures are made once for all rows.
    """
    names, rows = (names,) if isinstance(names, str) else names, list(rows)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**arguments: Any) -> None:
            for row in rows:
                values = row if len(names) > 1 else (row,)
                with at_row(*values):
                    test(**arguments, **dict(zip(names, values, strict=True)))

        signature = inspect.signature(test)
        others = [part for name, part in signature.parameters.items() if name not in names]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate


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
