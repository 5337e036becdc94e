"""The pages that users read, and the fenced blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.support import ROOT

DOCS = ROOT / "docs"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    title: str
    """The name of the file that it shows, if it says one."""
    text: str
    line: int
    following: Block | None
    """The next block, if only blank lines and comments lie between."""
    varies: bool = False
    """Whether ``<!-- varies -->`` stands in front: an output that has noise or time in it."""

    @property
    def id(self) -> str:
        """Where it stands."""
        return f"{self.page}:{self.line}"


def names() -> list[str]:
    """Every page, by its path in the repository."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
    found = [*(page for page in top if page.exists()), *sorted(DOCS.rglob("*.md"))]
    return [page.relative_to(ROOT).as_posix() for page in found]


def text_of(page: str) -> str:
    """The text of a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, without those between begin and end markers (outputs of long runs)."""
    return blocks_in(text_of(page), page)


def blocks_in(text: str, page: str = "text") -> list[Block]:
    """The same of a text."""
    generated = [m.span() for m in re.finditer(r"<!-- begin: .*?<!-- end -->", text, re.S)]
    found: list[Block] = []
    following: tuple[int, Block] | None = None
    fence = r'^```(\w*)(?: +title="([^"\n]*)")?[^`\n]*\n(.*?)^```$'
    for match in reversed(list(re.finditer(fence, text, re.M | re.S))):
        if any(low <= match.start() < high for low, high in generated):
            continue
        between = text[match.end() : following[0]] if following else ""
        near = not re.sub(r"<!--.*?-->", "", between, flags=re.S).strip()
        line = text.count("\n", 0, match.start()) + 1
        after = following[1] if near and following else None
        varies = text[: match.start()].rstrip().endswith("<!-- varies -->")
        block = Block(page, match[1], match[2] or "", match[3], line, after, varies)
        found.append(block)
        following = (match.start(), block)
    return found[::-1]


def all_blocks(*languages: str) -> list[Block]:
    """The blocks of all pages in these languages."""
    return [block for page in names() for block in blocks(page) if block.language in languages]


def section(text: str, heading: str) -> str:
    """What stands under a heading, down to the next of its level or above."""
    level = heading.split(" ")[0]
    start = text.index(f"\n{heading}\n") + len(heading) + 2
    end = re.search(rf"^#{{1,{len(level)}}} ", text[start:], re.M)
    return text[start : start + end.start()] if end else text[start:]


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in a text, without their heads."""
    found: list[list[str]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("|") or re.fullmatch(r"[|\s:-]+", line):
            continue
        if number + 1 < len(lines) and re.fullmatch(r"[|\s:-]+", lines[number + 1]):
            continue  # the head
        cells = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
        found.append([cell.strip() for cell in cells])
    return found
