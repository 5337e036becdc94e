"""How complex a function may be: ruff's C901 and PLR0915, and who is exempt."""

from __future__ import annotations

import re
import tomllib

from harness import support

RULES = {"C901", "PLR0915"}
# Functions that would become slower or less clear, by their module. What is added here needs a reason beside
# its `noqa`.
EXEMPT: dict[str, list[str]] = {}
# Files that are exempt as a whole.
EXEMPT_FILES = {"tests/**", "benchmarks/**", "streampair/kernels/*"}


def exempt(source: str) -> list[str]:
    """Functions whose first line turns one of the rules off, by name."""
    lines = re.findall(r"^ *(?:async )?def (\w+).*# noqa:([^#\n]*)", source, re.MULTILINE)
    return [name for name, codes in lines if RULES & set(re.findall(r"[A-Z]+\d+", codes))]


def test_no_function_is_exempt_that_is_not_listed() -> None:
    found = {}
    for package in ("streampair", "connectors"):
        for file in sorted((support.ROOT / package).rglob("*.py")):
            names = exempt(file.read_text())
            if names:
                found[file.relative_to(support.ROOT).as_posix()] = names
    assert found == EXEMPT


def test_no_file_is_exempt_that_is_not_listed() -> None:
    ruff = tomllib.loads((support.ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert set(ruff["select"]) >= RULES
    assert not {*ruff.get("mccabe", {}), *ruff.get("pylint", {})}  # ruff's own limits
    ignored = {files: RULES & set(codes) for files, codes in ruff["per-file-ignores"].items()}
    assert {files for files, codes in ignored.items() if codes} == EXEMPT_FILES


def test_an_exempt_function_is_seen() -> None:
    source = "async def f(a: int) -> int:  # noqa: C901  # a reason\n    x = 1  # noqa: S101\n"
    assert exempt(source) == ["f"]
    assert exempt("def g():  # noqa: PLR0915, C901\n    pass\ndef h():  # noqa: N802\n    pass\n") == ["g"]
