"""What every tier of the tests shares: skipping in one voice, and remembering what was used.

``STREAMPAIR_REQUIRE_ALL=1`` (set by ``.ci/run``) turns every skip for a missing tool into a failure.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"

used: dict[str, set[str]] = {}
"""What the run used, by kind (``brokers``, ``prometheus``), for the closing summary."""

missing: dict[str, str] = {}
"""What was skipped, with the one-line way to get it."""


def require_all() -> bool:
    """Whether a skip for a missing tool counts as a failure."""
    return os.environ.get("STREAMPAIR_REQUIRE_ALL", "") not in ("", "0")


def note_used(kind: str, what: str) -> None:
    """Remember that the run used ``what``, for the closing summary."""
    used.setdefault(kind, set()).add(what)


def unavailable(what: str, hint: str) -> NoReturn:
    """Skip the test because ``what`` is missing; fail instead where everything is required."""
    missing[what] = hint
    if require_all():
        pytest.fail(f"{what} is required (STREAMPAIR_REQUIRE_ALL=1) and missing: {hint}", pytrace=False)
    pytest.skip(f"{what} is missing: {hint}")


@dataclass(frozen=True)
class Block:
    """A fenced block of the README."""

    language: str
    text: str
    line: int
    following: Block | None
    """The next block, if only blank lines lie between."""


def readme_blocks() -> list[Block]:
    """The fenced blocks of the README, without those between begin and end markers (outputs of long runs)."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    generated = [m.span() for m in re.finditer(r"<!-- begin: .*?<!-- end -->", text, re.S)]
    blocks: list[Block] = []
    following: tuple[int, Block] | None = None
    for found in reversed(list(re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S))):
        if any(low <= found.start() < high for low, high in generated):
            continue
        near = following is not None and not text[found.end() : following[0]].strip()
        line = text.count("\n", 0, found.start()) + 1
        block = Block(found[1], found[2], line, following[1] if near and following else None)
        blocks.append(block)
        following = (found.start(), block)
    return blocks[::-1]
