"""`streampair budget plan`: what privacy will cost, as a table and a chart in the terminal."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from streampair.assurance.planner import setting_text
from streampair.privacy import PrivacyPlan

__all__ = ["as_dict", "chart", "show_plan"]

_MARKS = "ABCDEFGH"
_MODELS = {
    "auc": ("AUC", "linear scorer"),
    "ranking": ("share of pairs in order", "linear scorer"),
    "metric": ("share of distances in order", "metric"),
}


def as_dict(found: PrivacyPlan) -> dict[str, Any]:
    """Return a plan as JSON values; infinite numbers become null."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, dict):
            return {key: plain(v) for key, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    summary: dict[str, Any] = plain(asdict(found))
    for said, forecast in zip(summary["forecasts"], found.forecasts, strict=True):
        if "mechanism" in forecast.settings:  # as a configuration says it
            said["settings"]["mechanism"] = {
                "class": f"streampair.privacy.{setting_text(forecast.settings['mechanism'])}"
            }
    summary["recommended"] = found.best.call()
    endless, components = found.best_without_horizon, found.best_components
    summary["recommended_without_horizon"] = None if endless is None else endless.call()
    summary["recommended_components"] = None if components is None else components.components
    return summary


def chart(found: PrivacyPlan, height: int = 14) -> list[str]:
    """Plot the expected value against epsilon: one letter per mechanism, in the order of the table."""
    curves = [forecast.curve for forecast in found.forecasts]
    top = found.auc_without_privacy
    low = 0.5
    width = 9
    rows = [[" "] * (width * len(curves[0])) for _ in range(height + 1)]
    # The best ones are drawn last, on top.
    for mark, curve in reversed(list(zip(_MARKS, curves, strict=False))):
        for column, (_, auc) in enumerate(curve):
            level = round(height * (auc - low) / (top - low)) if top > low else 0
            x = column * width + width // 2
            line = rows[height - min(max(level, 0), height)]
            # Letters at the same place are put side by side.
            while line[x] != " " and x < (column + 1) * width - 1:
                x += 1
            line[x] = mark
    lines = []
    for k, row in enumerate(rows):
        auc = top - (top - low) * k / height
        lines.append(f"{auc:6.3f} |{''.join(row)}".rstrip())
    lines.append(" " * 7 + "+" + "-" * (width * len(curves[0])))
    lines.append(" " * 8 + "".join(f"{e:^{width}g}" for e, _ in curves[0]).rstrip() + "  epsilon")
    return lines


def show_plan(found: PrivacyPlan, console: Console) -> None:
    """Print the table, the chart and the recommendation."""
    what, best = _MODELS[found.family]
    share = f", {found.positive_rate:g} positive" if found.family == "auc" else ""
    console.print(
        f"{found.n:,} records, {found.d} features{share}; epsilon {found.epsilon:g} at delta "
        f"{found.delta:.3g} (mu {found.mu:.4g}). Expected {what} without privacy: "
        f"{found.auc_without_privacy:.3f}, if the best {best} reaches {found.auc_best:g}.",
        highlight=False,
    )
    table = Table()
    table.add_column("")
    table.add_column("mechanism")
    useful = "useful from" if found.stated is None else f"reaches {found.stated:g} from"
    for name in ("noise/signal", found.measure, "loss", useful):
        table.add_column(name, justify="right")
    for mark, f in zip(_MARKS, found.forecasts, strict=False):
        settings = ["with a horizon" if "horizon" in f.settings else "no horizon"]
        settings += [
            f"{k}={setting_text(v)}"
            for k, v in f.settings.items()
            if k not in ("epsilon", "delta", "horizon", "entity")
        ]
        table.add_row(
            mark,
            f"{f.mechanism}, {', '.join(settings)}",
            f"{f.noise:.2g}",
            f"{f.auc:.3f}",
            f"{f.loss:.3f}",
            "-" if f.useful_from is None else f"{f.useful_from:,} records",
        )
    console.print(table)
    for line in chart(found):
        console.print(line, highlight=False, markup=False)
    for line in found.advice():
        console.print(line, highlight=False, markup=False)
    console.print(
        "The expected values are those of a reference task (normal records with independent and equally "
        "informative features): compare mechanisms by them, and expect more loss from few records with "
        "correlated features.",
        highlight=False,
    )
