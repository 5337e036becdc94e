"""Plots of a recorded run: regret, privacy spend and AUC.

A run is a list of readings, each a dict of plain numbers by the name of the series, as `reading` makes them
of the gauges of a lane. A file holds them as JSON lines, or it is one JSON object of lanes with their
`history`, a list for each name. Regret and AUC are computed from raw data: do not publish them
(docs/privacy 7).

Needs matplotlib: ``pip install '.[plot]'``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streampair.errors import ConfigError, SourceError
from streampair.evaluation import AUCWindow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["auc", "privacy", "reading", "regret"]

Rows = str | PathLike[str] | Iterable[Mapping[str, Any]]


def reading(gauges: Any) -> dict[str, Any]:
    """The values of a lane at one moment that the plots need, as a dict of plain numbers.

    Parameters
    ----------
    gauges
        The result of `Lane.gauges`.

    Returns
    -------
    dict
        ``events``, and if the lane has them: ``prequential_auc``; ``regret_events``, the number of events of
        the next four, ``regret_average``, ``regret_average_stderr``, ``pair_loss``, ``comparator_loss``;
        ``privacy_epsilon_spent``, ``privacy_epsilon_budget``, ``privacy_delta``,
        ``privacy_releases_total``, ``privacy_guarantee``.

    Examples
    --------
    >>> from streampair import auc, plots
    >>> from streampair.engine import Event, Lane, LaneId, Record
    >>> def decode(record):
    ...     return Event({"a": record.offset % 3}, record.offset % 2 == 0)
    >>> lane = Lane(auc.PairOGD(seed=1), decode, LaneId("demo", "events", 0))
    >>> output = lane.process([Record(i, b"") for i in range(100)])
    >>> plots.reading(lane.gauges())["events"]
    100
    """
    out: dict[str, Any] = {"events": sum(gauges.events.values())}
    if gauges.auc == gauges.auc:
        out["prequential_auc"] = gauges.auc
    found = gauges.regret
    if found is not None:
        out |= {
            "regret_events": found.n,
            "regret_average": found.average,
            "regret_average_stderr": found.average_stderr,
            "pair_loss": found.pair_loss,
            "comparator_loss": found.comparator_loss,
        }
    report = gauges.privacy
    if report is not None:
        out |= {
            "privacy_epsilon_spent": report.epsilon_spent,
            "privacy_epsilon_budget": report.epsilon_budget,
            "privacy_delta": report.delta,
            "privacy_releases_total": report.releases,
            "privacy_guarantee": report.guarantee,
        }
    return out


def regret(rows: Rows, ax: Axes | None = None) -> Axes:
    """Plot the average regret over the number of events, with a band of one standard error.

    Both axes are logarithmic. A dashed line shows ``1 / sqrt(t)``, the rate of online gradient descent.
    Readings that are not above zero are left out.

    Parameters
    ----------
    rows
        Readings, or the path of their file.
    ax
        Axes to draw on; None makes new ones.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or no reading has a regret above zero.
    SourceError
        If the file cannot be read.
    """
    kept = [row for row in _read(rows) if (row.get("regret_average") or 0.0) > 0.0]
    if not kept:
        raise _nothing("a regret above zero", "record a lane that estimates its regret")
    times = [row.get("regret_events", row["events"]) for row in kept]
    values = [row["regret_average"] for row in kept]
    errors = [row.get("regret_average_stderr", 0.0) for row in kept]
    ax = _axes(ax, "events", "average regret")
    ax.fill_between(
        times,
        # The band must stay above 0 on a logarithmic axis.
        [max(value - error, value / 10.0) for value, error in zip(values, errors, strict=True)],
        [value + error for value, error in zip(values, errors, strict=True)],
        alpha=0.2,
        linewidth=0,
        label="one standard error",
    )
    ax.plot(times, values, marker="o", markersize=3, label="average regret")
    slope = [values[0] * math.sqrt(times[0] / time) for time in times]
    ax.plot(times, slope, linestyle="--", color="grey", linewidth=1, label="1 / sqrt(t)")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.legend(frameon=False)
    return ax


def privacy(rows: Rows, ax: Axes | None = None) -> Axes:
    """Plot the spent epsilon over the number of events, and its budget.

    If the guarantee is void or unvouched, the title says so. Parameters and errors are those of `regret`, for
    readings of a private learner.
    """
    kept = [row for row in _read(rows) if row.get("privacy_epsilon_spent") is not None]
    if not kept:
        raise _nothing("an epsilon", "record a lane with a private learner")
    last = kept[-1]
    budget, delta = last.get("privacy_epsilon_budget"), last.get("privacy_delta")
    spent = [row["privacy_epsilon_spent"] for row in kept]
    ax = _axes(ax, "events", "epsilon" if delta is None else f"epsilon at delta {delta:g}")
    times = [row["events"] for row in kept]
    # The spend is constant between two releases.
    ax.step(times, spent, where="post", label="spent")
    if budget is not None:
        ax.axhline(budget, linestyle="--", color="grey", linewidth=1, label="budget")
    ax.set_ylim(0.0, 1.1 * max(budget or 0.0, *spent) or 1.0)
    guarantee = str(last.get("privacy_guarantee", ""))
    if guarantee.startswith(("void", "unvouched", "vouched")):
        ax.set_title(guarantee, wrap=True, fontsize="small")
    ax.legend(frameon=False)
    return ax


def auc(
    rows: Rows,
    labels: Mapping[Any, bool] | Sequence[bool] | None = None,
    *,
    window: int = 1000,
    ax: Axes | None = None,
) -> Axes:
    """Plot the AUC of the latest events over the number of events.

    Parameters
    ----------
    rows
        Readings, or the scores that `replay` writes (``offset``, ``id`` and ``score`` in each row), or the
        path of a file of either.
    labels
        For scores: whether each event has the label that ranks high, by its id or its offset (a list has
        offsets 0, 1, ...). Events without a score or a label are left out.
    window
        For scores: number of latest events.
    ax
        As in `regret`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or there is nothing to draw.
    SourceError
        If the file cannot be read.
    """
    kept = _read(rows)
    if labels is None:
        if any("score" in row for row in kept):
            raise _nothing("a label", "give labels=: scores have none")
        name = "prequential_auc"
        points = [(row["events"], row[name]) for row in kept if row.get(name) is not None]
    else:
        points = _prequential(kept, labels, window)
    if not points:
        raise _nothing("an AUC", "record a lane that saw both labels")
    ax = _axes(ax, "events", "AUC" if labels is None else f"AUC of the latest {window:,}")
    ax.plot(*zip(*points, strict=True), label="AUC")
    ax.axhline(0.5, linestyle="--", color="grey", linewidth=1, label="chance")
    ax.legend(frameon=False)
    return ax


def _prequential(
    rows: Sequence[Mapping[str, Any]], labels: Mapping[Any, bool] | Sequence[bool], window: int
) -> list[tuple[int, float]]:
    """Return at most 200 points: number of events with a score and a label, and AUC of the latest."""
    table: Mapping[Any, bool] = labels if isinstance(labels, Mapping) else dict(enumerate(labels))
    look: Callable[[Hashable], bool | None] = table.get
    usable = []
    for row in rows:
        label = look(row["id"]) if row.get("id") is not None else None
        label = look(row.get("offset")) if label is None else label
        if row.get("score") is not None and label is not None:
            usable.append((bool(label), float(row["score"])))
    latest, out = AUCWindow(window), []
    every = max(1, -(-len(usable) // 200))
    for n, (label, score) in enumerate(usable, 1):
        latest.add(label, score)
        if n % every == 0 or n == len(usable):
            value = latest.get()
            if value == value:
                out.append((n, value))
    return out


def _read(rows: Rows) -> list[Mapping[str, Any]]:
    if not isinstance(rows, str | PathLike):
        return list(rows)
    path = Path(rows)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SourceError(
            f"{path} cannot be read: {why}", fix="give the file of a recorded run", retriable=False
        ) from None
    whole = _json("\n".join(lines))
    if isinstance(whole, dict) and "lanes" in whole:
        return _of_lane(path, whole["lanes"])
    out: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _json(line)
        if not isinstance(row, dict):
            raise SourceError(
                f"line {number} of {path} is not a JSON object",
                fix="give the file of a recorded run, one reading a line",
                retriable=False,
            )
        out.append(row)
    return out


def _json(text: str) -> Any:
    """Parse a text as JSON; None if it is not valid."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _of_lane(path: Path, lanes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the readings of the only lane of a run whose history has a list for each name."""
    if len(lanes) != 1:
        raise SourceError(
            f"{path} is a run of {len(lanes)} lanes",
            fix="plot one of them: give its readings as rows",
            retriable=False,
        )
    past, values, report = lanes[0]["history"], lanes[0]["values"], lanes[0].get("report") or {}
    names = ("privacy_epsilon_budget", "privacy_delta")
    same = {name: values[name] for name in names if values.get(name) is not None}
    if "guarantee" in report:
        same["privacy_guarantee"] = report["guarantee"]
    columns = [name for name in past if name != "t"]
    return [
        {**dict(zip(columns, row, strict=True)), **same}
        for row in zip(*(past[name] for name in columns), strict=True)
    ]


def _axes(ax: Axes | None, across: str, up: str) -> Axes:
    if ax is None:
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ConfigError(
                "plots need matplotlib, which is not installed",
                fix="pip install '.[plot]' in the clone, or pip install matplotlib",
            ) from None
        ax = pyplot.subplots(layout="constrained")[1]
    ax.set_xlabel(across)
    ax.set_ylabel(up)
    ax.grid(alpha=0.3)
    return ax


def _nothing(what: str, fix: str) -> ConfigError:
    return ConfigError(f"no reading of the run has {what}", fix=fix)
