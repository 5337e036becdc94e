"""HTML tables for notebooks: no script, readable on light and dark backgrounds."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streampair.privacy.accounting import PrivacyReport

__all__ = ["report_html", "table"]

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


_HEADS = {
    "holds": "Differential privacy holds",
    "void": "NO GUARANTEE HOLDS",
    "unvouched": "THE GUARANTEE CANNOT BE VOUCHED FOR IN FULL",
}


def report_html(report: PrivacyReport) -> str:
    """Return the numbers of a report as an HTML table, with its text in a collapsed section."""
    left, horizon = report.horizon_left, report.horizon
    rows = [
        ("guarantee", report.guarantee),
        ("protected", f"{report.unit}, under {report.adjacency}"),
        ("epsilon promised", f"{report.epsilon_budget:.6g} at delta {report.delta:.3g}"),
        ("epsilon spent", f"{report.epsilon_spent:.6g}"),
        ("mu spent", f"{report.mu_spent:.6g} of {report.mu_budget:.6g}"),
        ("releases", f"{report.releases:,}"),
        ("records until the horizon", "no horizon" if left is None else f"{left:,} of {horizon:,}"),
        ("noise, standard deviation", f"{report.noise_std:.4g}"),
    ]
    words = "".join(f"<p>{escape(line)}</p>" for line in f"{report}\n{report.details}".split("\n"))
    details = f"<details><summary>In words</summary>{words}</details>"
    return f"<div>{table(_HEADS[report.kind], rows)}{details}</div>"
