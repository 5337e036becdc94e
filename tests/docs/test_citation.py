"""CITATION.cff and the BibTeX entry of the README say the same, and name this version."""

from __future__ import annotations

import re
import tomllib

import yaml
from harness import pages, support

CITATION = yaml.safe_load((support.ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((support.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_file_has_what_its_format_requires_and_agrees_with_the_package() -> None:
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["message"]
    assert CITATION["title"].startswith(PROJECT["name"])
    assert all(author["name"] for author in CITATION["authors"])
    assert CITATION["version"] == PROJECT["version"]
    assert CITATION["license"] == PROJECT["license"]


def test_the_entry_in_bibtex_agrees_with_the_file() -> None:
    entry = next(block.text for block in pages.blocks("README.md") if block.language == "bibtex")
    fields = dict(re.findall(r"^  (\w+) += \{+(.*?)\}+,?$", entry, re.M))
    assert fields["title"] == CITATION["title"]
    assert fields["author"] == " and ".join(author["name"] for author in CITATION["authors"])
    assert fields["version"] == CITATION["version"]
    assert fields["license"] == CITATION["license"]
