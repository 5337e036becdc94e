"""CONTRIBUTING, SECURITY and CHANGELOG of the repository as pages of the site, with their links."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = {f"{name}.md": f"{name.lower()}.md" for name in ("CONTRIBUTING", "SECURITY", "CHANGELOG")}
"""Of each file its page."""
_PLACES = {**PAGES, "README.md": "index.md"}
_LINK = re.compile(r"\]\(([^)\s#]+)")


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """What mkdocs calls with the files of the site."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    return files


def relinked(text: str, page: str) -> str:
    """The text of a page of the site, its links to files of the repository as links to pages.

    Examples
    --------
    >>> relinked("[a](docs/operations/monitor.md#health) [b](README.md)", "contributing.md")
    '[a](operations/monitor.md#health) [b](index.md)'
    >>> relinked("[c](../../CONTRIBUTING.md)", "privacy/index.md")
    '[c](../contributing.md)'
    """
    top = page in PAGES.values()
    folder = "" if top else posixpath.join("docs", posixpath.dirname(page))

    def one(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        if target in _PLACES:
            place = _PLACES[target]
        elif top and target.startswith("docs/"):
            place = target.removeprefix("docs/")
        else:
            return match[0]
        return f"]({posixpath.relpath(place, posixpath.dirname(page) or '.')}"

    return _LINK.sub(one, text)


def on_page_markdown(text: str, *, page: Any, **_: Any) -> str:
    """What mkdocs calls with the Markdown of each page."""
    return relinked(text, page.file.src_uri)
