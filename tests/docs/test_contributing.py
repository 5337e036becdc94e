"""CONTRIBUTING.md is short, and what it names is there."""

from __future__ import annotations

import re

from harness import pages, support

PAGE = pages.text_of("CONTRIBUTING.md")


def test_it_is_read_in_ten_minutes() -> None:
    assert len(PAGE.splitlines()) <= 250


def test_files_and_folders_that_it_names_exist() -> None:
    folders = "streampair|connectors|tests|benchmarks|deploy|docs"
    named = set(re.findall(rf"`((?:{folders})/[\w./]*)`", PAGE))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (support.ROOT / name).exists()] == []


def test_it_names_every_page_of_worked_examples() -> None:
    for page in (pages.DOCS / "extending").glob("*.md"):
        assert f"(docs/extending/{page.name})" in PAGE
