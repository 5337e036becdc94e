"""A page of panels as SVG, written out: nothing else in the benchmarks needs a plotting library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple
from xml.sax.saxutils import escape

__all__ = ["Line", "Panel", "decades", "page"]

_WIDE, _HIGH, _ACROSS = 330, 250, 3
_LEFT, _RIGHT, _TOP, _BELOW = 46, 12, 34, 40


class Line(NamedTuple):
    """A curve over epsilon or events with its standard errors; with no points but a level, a dashed line."""

    name: str
    points: tuple[tuple[float, float, float], ...] = ()
    level: float | None = None


class Panel(NamedTuple):
    """One set."""

    title: str
    axis: str
    lines: tuple[Line, ...]
    across: str = "epsilon"


class Look(NamedTuple):
    """How a line is drawn everywhere."""

    colour: str
    dashes: str = ""
    width: float = 1.8


def page(title: str, panels: list[Panel], ticks: tuple[float, ...], looks: dict[str, Look]) -> str:
    """Panels of one width, three a row, with a legend of the lines that occur above them."""
    return _page(title, panels, looks, lambda panel, left, top: _drawn(panel, left, top, ticks, looks))


def decades(title: str, panels: list[Panel], looks: dict[str, Look]) -> str:
    """As `page`, with both axes logarithmic: a curve over a number of events, in powers of ten.

    A level is the slope of a dashed line through the first point of the panel.
    """
    return _page(title, panels, looks, lambda panel, left, top: _logarithmic(panel, left, top, looks))


def _page(
    title: str, panels: list[Panel], looks: dict[str, Look], drawn: Callable[[Panel, int, int], list[str]]
) -> str:
    used = [name for name in looks if any(line.name == name for panel in panels for line in panel.lines)]
    columns = 4
    legend = 44 + 20 * -(-len(used) // columns)
    down = -(-len(panels) // _ACROSS)
    width, height = _ACROSS * _WIDE, legend + down * _HIGH + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="11" fill="#222">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    for k, name in enumerate(used):
        x, y = 14 + k % columns * (width - 20) // columns, 44 + 20 * (k // columns)
        out += [_stroke(((x, y - 4), (x + 26, y - 4)), looks[name]), _text(x + 33, y, name, "start")]
    for k, panel in enumerate(panels):
        out += drawn(panel, k % _ACROSS * _WIDE, legend + k // _ACROSS * _HIGH)
    return "\n".join([*out, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{more}>{escape(text)}</text>'


def _stroke(points: tuple[tuple[float, float], ...], look: Look) -> str:
    coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{look.dashes}"' if look.dashes else ""
    return (
        f'<polyline points="{coordinates}" fill="none" stroke="{look.colour}" stroke-width="{look.width}"'
        f'{dashes} stroke-linejoin="round"/>'
    )


def _drawn(panel: Panel, left: int, top: int, ticks: tuple[float, ...], looks: dict[str, Look]) -> list[str]:
    """The panel with its upper left corner there."""
    x0, y0 = left + _LEFT, top + _TOP
    w, h = _WIDE - _LEFT - _RIGHT, _HIGH - _TOP - _BELOW
    levels = [value for line in panel.lines for _, value, _ in line.points]
    levels += [line.level for line in panel.lines if line.level is not None]
    # Below .45 is no better than chance, and would take the room of what is.
    low = max(math.floor(20.0 * min(levels)) / 20.0, 0.45)
    high = min(math.ceil(20.0 * max(levels) + 0.1) / 20.0, 1.0)

    def across(epsilon: float) -> float:
        return x0 + math.log(epsilon / ticks[0]) / math.log(ticks[-1] / ticks[0]) * (w - 16) + 8

    def height(level: float) -> float:
        return y0 + (high - max(level, low)) / (high - low) * h

    out = [_text(left + 8, top + 20, panel.title, "start", more=' font-weight="600" font-size="12"')]
    step = 0.1 if high - low > 0.3 else 0.05
    for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        y = height(k * step)
        out += [_stroke(((x0, y), (x0 + w, y)), Look("#e4e4e4", width=1))]
        out += [_text(x0 - 6, y + 4, f"{k * step:.2f}", "end", "#666")]
    for tick in ticks:
        x = across(tick)
        out += [_stroke(((x, y0 + h), (x, y0 + h + 4)), Look("#888", width=1))]
        out += [_text(x, y0 + h + 16, f"{tick:g}", "middle", "#666")]
    out += [f'<rect x="{x0}" y="{y0}" width="{w}" height="{h}" fill="none" stroke="#aaa"/>']
    out += [_text(x0 + w / 2, y0 + h + 31, f"{panel.across}; up: {panel.axis}", "middle", "#666")]
    # What comes first in the legend is drawn last, on top.
    for name in reversed(looks):
        look = looks[name]
        for line in panel.lines:
            if line.name != name:
                continue
            if line.level is not None:
                out.append(_stroke(((x0, height(line.level)), (x0 + w, height(line.level))), look))
                continue
            for epsilon, value, error in line.points:
                x = across(epsilon)
                out.append(
                    _stroke(((x, height(value - error)), (x, height(value + error))), Look(look.colour))
                )
                out.append(f'<circle cx="{x:.1f}" cy="{height(value):.1f}" r="2.4" fill="{look.colour}"/>')
            out.append(_stroke(tuple((across(e), height(value)) for e, value, _ in line.points), look))
    return out


def _logarithmic(panel: Panel, left: int, top: int, looks: dict[str, Look]) -> list[str]:
    """The panel with its upper left corner there, in powers of ten."""
    x0, y0 = left + _LEFT, top + _TOP
    w, h = _WIDE - _LEFT - _RIGHT, _HIGH - _TOP - _BELOW
    points = [point for line in panel.lines for point in line.points]
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    # Nothing below a thousandth of the highest: there the standard error is larger than what is shown.
    low, high = max(min(ys), max(ys) / 1000.0), max(ys)
    low, high = math.log10(low) - 0.1, math.log10(high) + 0.1

    def across(x: float) -> float:
        return x0 + 8 + math.log(x / min(xs)) / math.log(max(xs) / min(xs)) * (w - 16)

    def height(y: float) -> float:
        return y0 + (high - min(max(math.log10(max(y, 1e-300)), low), high)) / (high - low) * h

    out = [_text(left + 8, top + 20, panel.title, "start", more=' font-weight="600" font-size="12"')]
    for k in range(math.floor(low), math.ceil(high) + 1):
        for factor in (1, 3):
            y = factor * 10.0**k
            if low <= math.log10(y) <= high:
                out += [_stroke(((x0, height(y)), (x0 + w, height(y))), Look("#e4e4e4", width=1))]
                out += [_text(x0 - 6, height(y) + 4, f"{y:g}", "end", "#666")]
    for x in sorted(set(xs)):
        out += [_stroke(((across(x), y0 + h), (across(x), y0 + h + 4)), Look("#888", width=1))]
        out += [_text(across(x), y0 + h + 16, f"{x:,.0f}", "middle", "#666")]
    out += [f'<rect x="{x0}" y="{y0}" width="{w}" height="{h}" fill="none" stroke="#aaa"/>']
    out += [_text(x0 + w / 2, y0 + h + 31, f"events; up: {panel.axis}", "middle", "#666")]
    for name in reversed(looks):
        for line in panel.lines:
            if line.name != name:
                continue
            points = line.points
            if line.level is not None:
                start = max(ys)
                points = tuple((x, start * (x / min(xs)) ** line.level, 0.0) for x in sorted(set(xs)))
            out.append(_stroke(tuple((across(x), height(y)) for x, y, _ in points), looks[name]))
            for x, y, error in line.points:
                ends = ((across(x), height(y - error)), (across(x), height(y + error)))
                out.append(_stroke(ends, Look(looks[name].colour)))
    return out
