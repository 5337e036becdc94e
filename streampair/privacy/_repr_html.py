"""HTML tables for notebooks: no script, readable on light and dark backgrounds."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["collapsed", "table"]

# Colours are inherited from the page; no information is in a colour alone.
_TABLE = "border-collapse:collapse;color:inherit;background:transparent;text-align:left"
_CELL = "border-top:1px solid currentColor;padding:.25em .75em;vertical-align:top;text-align:left"


def table(caption: str, rows: Iterable[tuple[str, object]], notes: Iterable[str] = ()) -> str:
    """Return an HTML table of two columns, with a list of notes below it; every text is escaped.

    Parameters
    ----------
    caption
        The table's caption, which screen readers read first.
    rows
        Names with their values.
    notes
        Sentences of the list.
    """
    out = [f'<table style="{_TABLE}"><caption style="color:inherit;text-align:left;font-weight:600">']
    out.append(f"{escape(caption)}</caption><tbody>")
    out += [
        f'<tr><th scope="row" style="{_CELL}">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(str(value))}</td></tr>'
        for name, value in rows
    ]
    out.append("</tbody></table>")
    items = [f"<li>{escape(note)}</li>" for note in notes]
    if items:
        out.append(f"<ul>{''.join(items)}</ul>")
    return "".join(out)


def collapsed(summary: str, text: str) -> str:
    """Return a section that is closed until a reader opens it, with a paragraph for each line of the text."""
    words = "".join(f"<p>{escape(line)}</p>" for line in text.split("\n"))
    return f"<details><summary>{escape(summary)}</summary>{words}</details>"
