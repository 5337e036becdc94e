"""The tables of the papers as one page of HTML, with plots where matplotlib is installed."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

from .manifest import VARIANTS, Paper
from .results import COLUMNS, Result, columns, counted, places

__all__ = ["page", "plot"]

_STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:84rem;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0;font-size:13px;display:block;overflow-x:auto}
th,td{border:1px solid #ccc;padding:.25rem .5rem;text-align:left;vertical-align:top}th{background:#f3f3f3}
svg{max-width:100%;height:auto}"""
_TITLES = {
    "paper": "with the paper's constants",
    "tight": "calibrated tightly",
    "default": "library's default",
}


def page(found: Sequence[tuple[Paper, Sequence[Result]]], command: str) -> str:
    """A page that needs nothing else.

    Parameters
    ----------
    found
        Papers with their results.
    command
        What made it, for the reader.
    """
    return "\n".join(_lines(found, command))


def _lines(found: Sequence[tuple[Paper, Sequence[Result]]], command: str) -> Iterator[str]:
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8"><title>The papers, computed again</title>'
    yield f"<style>{_STYLE}</style></head><body>"
    yield "<h1>The papers, computed again</h1>"
    yield f"<p>Made by <code>{html.escape(command)}</code>.</p>"
    for paper, results in found:
        yield f"<h2>{html.escape(paper.title)}</h2><p>{html.escape(paper.about)}</p>"
        yield f"<p>{html.escape(counted(results))}</p>"
        for (place, kind), rows in places(results).items():
            yield f"<h3>{html.escape(place)}: {html.escape(kind)}</h3>"
            for data in dict.fromkeys(each.cell.data for each in rows):
                yield plot([each for each in rows if each.cell.data == data], f"{place}, {data}")
            yield "<table><thead><tr>"
            yield "".join(f"<th>{html.escape(title)}</th>" for title in COLUMNS) + "</tr></thead><tbody>"
            for each in rows:
                texts = "".join(f"<td>{html.escape(text)}</td>" for text in columns(each))
                yield f"<tr>{texts}</tr>"
            yield "</tbody></table>"
    yield "</body></html>"


def plot(rows: Sequence[Result], title: str) -> str:
    """The curves of one set as SVG; empty without matplotlib, or if there is no curve.

    Parameters
    ----------
    rows
        Results of one place and set.
    title
        Of the drawing.
    """
    by_size = len({each.cell.n for each in rows}) > 1
    by_budget = len({each.cell.epsilon for each in rows if each.cell.private}) > 1
    if not (by_size or by_budget) or not any(each.found["paper"].seeds for each in rows):
        return ""
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots(1, len(VARIANTS), sharey=True)
    lines: dict[str, list[Result]] = {}
    for each in rows:
        cell = each.cell
        kind = f"{cell.algorithm}{', delta 0' if cell.pure else ''}"
        budget = f", epsilon {cell.epsilon:g}" if by_size and cell.private else ""
        lines.setdefault(kind + budget, []).append(each)
    handles: dict[str, Any] = {}
    for variant, ax in zip(VARIANTS, axes, strict=True):
        for number, (name, line) in enumerate(lines.items()):
            colour = f"C{number % 10}"  # the same in all three, though one may lack a line
            style = "-" if number < 10 else "--"
            measured = [each for each in line if not each.found[variant].reason]
            positions = [each.cell.n if by_size else each.cell.epsilon for each in measured]
            errors = [
                0.0 if math.isnan(e.found[variant].stderr) else e.found[variant].stderr for e in measured
            ]
            if measured:
                means = [each.found[variant].mean for each in measured]
                handles[name] = ax.errorbar(
                    positions, means, yerr=errors, color=colour, linestyle=style, marker=".", linewidth=1
                )
            printed = [each for each in line if each.cell.published is not None]
            if variant == "paper" and printed:
                positions = [each.cell.n if by_size else each.cell.epsilon for each in printed]
                values = [each.cell.published for each in printed]
                (handles["x: printed"],) = ax.plot(positions, values, "x", color=colour, markersize=5)
        ax.set_title(_TITLES[variant], fontsize=9)
        ax.set_xlabel("records" if by_size else "epsilon")
    axes[0].set_ylabel(rows[0].cell.measure)
    if "x: printed" in handles:
        handles["x: printed"] = handles.pop("x: printed")  # the last one
    figure.legend(handles.values(), handles, loc="outside right upper", fontsize=7, frameon=False)
    figure.suptitle(title, fontsize=10)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
