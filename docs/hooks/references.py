"""Links between the pages of the privacy specification: "Lemma 17" and "section 4.3" lead there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify

_FOLDER = Path(__file__).resolve().parent.parent / "privacy"
_HEADING = re.compile(r"^#+ (?:(Lemma \d+) \(.*\)|(\d+(?:\.\d+)*)\.? .*)$", re.M)
# What is not touched: code, formulas, links; then what is.
_NAMED = re.compile(
    r"`[^`]*`|\$[^$]*\$|\[[^\]]*\]\([^)]*\)"
    r"|(?P<lemma>\b(?:Lemma|Lemmas)\s+(?P<number>\d+))\b|(?P<section>\b[Ss]ections?\s+(?P<place>\d+(?:\.\d+)*))"
)
_BLOCK = re.compile(r"(^```.*?^```$|^\$\$.*?\$\$$|^#+ [^\n]*$)", re.M | re.S)


def places(folder: Path = _FOLDER) -> dict[str, str]:
    """Where each lemma and each section is: its page and the anchor of its heading."""
    found: dict[str, str] = {}
    for page in folder.glob("[0-9]*.md"):
        for heading in _HEADING.finditer(page.read_text(encoding="utf-8")):
            name = heading[1] or heading[2]
            text = heading[0].lstrip("#").strip()
            anchor = "" if re.fullmatch(r"\d+", name) else f"#{slugify(text, '-')}"
            found[name] = f"{page.name}{anchor}"
    return found


def linked(text: str, where: dict[str, str]) -> str:
    """The text with a link at each lemma and each section that it names."""

    def one(match: re.Match[str]) -> str:
        name = f"Lemma {match['number']}" if match["lemma"] else match["place"]
        return f"[{match[0]}]({where[name]})" if name in where else match[0]

    parts = _BLOCK.split(text)
    return "".join(part if i % 2 else _NAMED.sub(one, part) for i, part in enumerate(parts))


def on_page_markdown(text: str, *, page: Any, **_: Any) -> str:
    """What mkdocs calls with the Markdown of each page."""
    return linked(text, places()) if page.file.src_uri.startswith("privacy/") else text
