"""Each line of the threat model names tests that exist."""

from __future__ import annotations

import re

from harness import support


def rows(text: str) -> list[str]:
    section = text.split("## Threats")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def missing(row: str) -> list[str]:
    """Tests that a row names and that are not there; the row itself if it names none."""
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row)
    lost = []
    for path, function in named:
        file = support.ROOT / path
        found = re.findall(r"^ *def (\w+)", file.read_text(), re.M) if file.exists() else []
        if not found or (function and function not in found):
            lost.append(f"{path}::{function}")
    return lost if named else [row]


def test_every_threat_names_a_test_that_is_there() -> None:
    lines = rows((support.ROOT / "SECURITY.md").read_text())
    assert len(lines) > 10
    assert not [lost for line in lines for lost in missing(line)]


def test_a_line_without_its_test_is_caught() -> None:
    assert missing("| who | tries | nothing | none |")
    assert missing("| who | tries | it | `tests/broker/test_security.py::test_that_was_renamed` |")
