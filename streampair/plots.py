"""Plots of learners and their scores, from any loop: each draws on matplotlib axes, and returns them.

`roc`, `precision_recall`, `calibration` and `auc` take scores with their labels: lists, arrays and series, or
the messages of a topic of scores. `weights` takes a learner. `regret`, `privacy` and `auc` take a recorded
run: a list of readings, each a dict of plain numbers by the name of the series, as `reading` makes them of
the gauges of a lane. A file holds them as JSON lines, or it is one JSON object of lanes with their `history`,
a list for each name. Whatever is computed from raw data (all but `privacy`, and the `weights` of a private
learner) is not to be published (docs/privacy 7).

Needs matplotlib: ``pip install '.[plot]'``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, SourceError
from streampair.evaluation import AUCWindow, RegretEstimate, average_precision
from streampair.records.features import is_missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["auc", "calibration", "precision_recall", "privacy", "reading", "regret", "roc", "weights"]

Rows = str | PathLike[str] | Iterable[Mapping[str, Any]]
Scores = str | PathLike[str] | Iterable[Any]
Labels = Mapping[Any, bool] | Iterable[bool]


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


def regret(rows: Rows | Iterable[RegretEstimate], *, ax: Axes | None = None) -> Axes:
    """Plot the average regret over the number of events, with a band of one standard error.

    Both axes are logarithmic. A dashed line shows ``1 / sqrt(t)``, the rate of online gradient descent.
    Readings that are not above zero are left out.

    Parameters
    ----------
    rows
        Readings, the path of their file, or what `evaluation.Regret.estimate` returned at several moments.
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
    readings = rows if isinstance(rows, str | PathLike) else [_estimated(row) for row in rows]
    kept = [row for row in _read(readings) if (row.get("regret_average") or 0.0) > 0.0]
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


def privacy(rows: Rows, *, ax: Axes | None = None) -> Axes:
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
    rows: Scores,
    labels: Labels | None = None,
    *,
    window: int = 1000,
    name: str = "AUC",
    ax: Axes | None = None,
) -> Axes:
    """Plot the AUC of the latest events over the number of events.

    Parameters
    ----------
    rows
        Readings, or scores as of `roc`, each given before its event was learned.
    labels
        As of `roc`; None: `rows` are readings.
    window
        For scores: number of latest events.
    name, ax
        As of `roc`.

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
    if labels is None:
        kept = _read(rows)
        if any("score" in row for row in kept):
            raise _nothing("a label", "give labels=: scores have none")
        key = "prequential_auc"
        points = [(row["events"], row[key]) for row in kept if row.get(key) is not None]
    else:
        points = _prequential(*_scored(rows, labels), window)
    if not points:
        raise _nothing("an AUC", "record a lane that saw both labels")
    ax = _axes(ax, "events", "AUC" if labels is None else f"AUC of the latest {window:,}")
    ax.plot(*zip(*points, strict=True), label=name)
    _reference(ax, "chance", [0.0, points[-1][0]], [0.5, 0.5])
    return ax


def roc(scores: Scores, labels: Labels, *, name: str = "", ax: Axes | None = None) -> Axes:
    """Plot the ROC curve: the share of positives above each threshold over that of negatives.

    Parameters
    ----------
    scores
        Numbers, higher ranks higher: a list, an array or a series. Or messages of a topic of scores, as dicts
        with ``score`` and ``offset`` or ``id``, as `replay` writes them, or the path of their file.
    labels
        Whether each event has the label that ranks high. For messages by their id, their (partition, offset)
        or their offset; a list has offsets 0, 1, ..., whatever the ids are. What has no score or no label,
        also NaN or NA, is left out.
    name
        Of the curve, in the legend.
    ax
        Axes to draw on; None makes new ones. Two learners on the same axes can be compared.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ConfigError
        If matplotlib is not installed, there are not both labels, or the scores have several columns.
    SourceError
        If the file cannot be read.

    Examples
    --------
    >>> from streampair import plots
    >>> ax = plots.roc([0.9, 0.2, 0.4, 0.1], [True, False, True, False], name="mine")
    >>> ax.get_lines()[0].get_label()
    'mine: AUC 1.000'
    """
    found, positives = _steps_down(*_scored(scores, labels))
    across = np.concatenate([[0.0], (found - positives) / (found - positives)[-1]])
    up = np.concatenate([[0.0], positives / positives[-1]])
    area = float(np.sum(np.diff(across) * (up[1:] + up[:-1]) / 2.0))
    ax = _axes(ax, "share of negatives above the threshold", "share of positives above the threshold")
    ax.plot(across, up, label=_named(name, f"AUC {area:.3f}"))
    _reference(ax, "chance", [0.0, 1.0], [0.0, 1.0])
    return ax


def precision_recall(scores: Scores, labels: Labels, *, name: str = "", ax: Axes | None = None) -> Axes:
    """Plot the precision, the share of positives among the events above a threshold, over the recall.

    A dashed line is at the share of positives: the precision of chance. Parameters and errors are those of
    `roc`.
    """
    values, truth = _scored(scores, labels)
    found, positives = _steps_down(values, truth)
    precision, recall = positives / found, positives / positives[-1]
    area = average_precision(values, truth)
    ax = _axes(ax, "recall", "precision")
    steps = np.concatenate([[0.0], recall]), np.concatenate([precision[:1], precision])
    ax.step(*steps, where="pre", label=_named(name, f"average precision {area:.3f}"))
    share = float(truth.mean())
    _reference(ax, f"positives: {share:.1%}", [0.0, 1.0], [share, share])
    ax.set_ylim(0.0, 1.05)
    return ax


def calibration(
    probabilities: Scores, labels: Labels, *, bins: int = 10, name: str = "", ax: Axes | None = None
) -> Axes:
    """Plot the share of positives over the predicted probability, in bins of equal width.

    A point is at the mean probability of its bin; its bar is one standard error of the share. A learner whose
    probabilities are right has its points on the diagonal.

    Parameters
    ----------
    probabilities
        Of the label that ranks high, as of `roc`. `probabilities_of` of a learner makes them of scores.
    labels, name, ax
        As of `roc`.
    bins
        Number of bins from 0 to 1; empty ones have no point.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ConfigError
        If matplotlib is not installed, nothing has a probability and a label, a probability is below 0 or
        above 1, or `bins` is below 1.
    SourceError
        If the file cannot be read.
    """
    if bins < 1:
        raise ConfigError(f"bins is {bins}", fix="give at least 1")
    p, truth = _scored(probabilities, labels)
    if not len(p):
        raise _nothing("a probability with a label", "give probabilities, and their labels")
    if p.min() < 0.0 or p.max() > 1.0:
        raise ConfigError(
            f"these are no probabilities: they reach from {p.min():.3g} to {p.max():.3g}",
            fix="give those of predict_proba_one, or model.probabilities_of(scores)",
        )
    place = np.minimum((p * bins).astype(np.intp), bins - 1)
    count = np.bincount(place, minlength=bins)
    some = count > 0
    mean = np.bincount(place, weights=p, minlength=bins)[some] / count[some]
    share = np.bincount(place, weights=truth, minlength=bins)[some] / count[some]
    error = np.sqrt(share * (1.0 - share) / count[some])
    ax = _axes(ax, "predicted probability", "share of positives")
    brier = float(np.mean((p - truth) ** 2))
    ax.errorbar(mean, share, error, marker="o", capsize=2, label=_named(name, f"Brier score {brier:.3f}"))
    _reference(ax, "calibrated", [0.0, 1.0], [0.0, 1.0])
    return ax


def weights(learner: Any, *, top: int = 20, ax: Axes | None = None) -> Axes:
    """Plot the largest weights of a linear learner, in units of the features as it scales them.

    A bar of error is the standard deviation of the noise in a weight, where the learner knows it: of private
    learners by moments.

    Parameters
    ----------
    learner
        A fitted learner with `scaled_weights`.
    top
        The most weights that are drawn, by their absolute values.
    ax
        As of `roc`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ConfigError
        If matplotlib is not installed, `top` is below 1, or the learner has no weights.
    """
    if top < 1:
        raise ConfigError(f"top is {top}", fix="give at least 1")
    found, kind = getattr(learner, "scaled_weights", None), type(learner).__name__
    if found is None and hasattr(learner, "learner"):  # streampair.sklearn.Classifier
        raise ConfigError(f"{kind} has no weights, its learner has", fix="fit it, and give its .learner_")
    if found is None:
        raise ConfigError(f"{kind} has no weights", fix="give a learner with scaled_weights")
    if not found:
        raise ConfigError(f"{kind} has learned nothing, so it has no weights", fix="learn some records first")
    names = sorted(found, key=lambda name: abs(found[name]))[-top:]
    noise = learner.weights_noise
    error = None if noise is None else [noise[name] for name in names]
    ax = _axes(ax, "weight of the scaled feature", "")
    ax.barh([str(name) for name in names], [found[name] for name in names], xerr=error, capsize=2)
    ax.axvline(0.0, color="grey", linewidth=1)
    return ax


def _estimated(row: Any) -> Mapping[str, Any]:
    """A reading, also of an estimate of the regret."""
    if not isinstance(row, RegretEstimate):
        return {} if row is None else row  # an estimate needs some events
    return {
        "events": row.n,
        "regret_average": row.average,
        "regret_average_stderr": row.average_stderr,
    }


def _scored(scores: Scores, labels: Labels) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores and labels, (n,) each, of the events that have both."""
    _check_one_column("scores", scores)
    rows = _read(scores)
    if not isinstance(labels, Mapping):
        _check_one_column("labels", labels)
        labels = list(labels)
    if rows and not isinstance(rows[0], Mapping):
        if isinstance(labels, Mapping) or len(labels) != len(rows):
            raise ConfigError(
                f"there are {len(rows)} scores and {len(labels)} labels", fix="give a list of one label each"
            )
        pairs: list[tuple[Any, Any]] = list(zip(rows, labels, strict=True))
    else:
        named = isinstance(labels, Mapping)
        look = (labels if isinstance(labels, Mapping) else dict(enumerate(labels))).get
        pairs = []
        for row in rows:
            names = (row.get("id"), (row.get("partition"), row.get("offset")), row.get("offset"))
            found = map(look, names if named else names[-1:])
            pairs.append((row.get("score"), next((y for y in found if y is not None), None)))
    kept = [(s, y) for s, y in pairs if not (_is_gap(s) or _is_gap(y))]
    wrong = next((y for _, y in kept if y not in (False, True)), None)
    if wrong is not None:
        raise ConfigError(f"a label is {wrong!r}", fix="give True where the label ranks high, and else False")
    return np.array([s for s, _ in kept], dtype=np.float64), np.array([y for _, y in kept], dtype=np.bool_)


def _is_gap(value: Any) -> bool:
    return is_missing(value) or bool(value != value)


def _check_one_column(what: str, values: Any) -> None:
    """ConfigError if an array, a frame or a list of rows has several columns."""
    shape = getattr(values, "shape", None)
    if shape is None and isinstance(values, list | tuple) and values:
        shape = (len(values), *np.shape(values[0])) if isinstance(values[0], Sequence | np.ndarray) else None
    if shape is not None and len(shape) != 1:
        raise ConfigError(
            f"the {what} have shape {tuple(shape)}",
            fix="give one for each event: of predict_proba the second column, [:, 1]",
        )


def _steps_down(
    scores: NDArray[np.float64], labels: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """How many events, and how many positives, have at least each of the scores, from the highest down."""
    if not labels.any() or labels.all():
        raise _nothing("both labels", "give scores of positives and of negatives, and their labels")
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    # A difference of two equal infinite scores would be NaN.
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(scores) - 1)
    return last + 1, np.cumsum(labels[order])[last]


def _prequential(
    scores: NDArray[np.float64], labels: NDArray[np.bool_], window: int
) -> list[tuple[int, float]]:
    """Return at most 200 points: number of events with a score and a label, and AUC of the latest."""
    latest, out = AUCWindow(window), []
    every = max(1, -(-len(scores) // 200))
    for n, (label, score) in enumerate(zip(labels.tolist(), scores.tolist(), strict=True), 1):
        latest.add(label, score)
        if n % every == 0 or n == len(scores):
            value = latest.get()
            if value == value:
                out.append((n, value))
    return out


def _read(rows: Scores) -> list[Any]:
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
    ax.set_axisbelow(True)
    return ax


def _named(name: str, figure: str) -> str:
    return f"{name}: {figure}" if name else figure


def _reference(ax: Axes, label: str, across: Sequence[float], up: Sequence[float]) -> None:
    """A dashed line, once on axes that have several curves; and the legend, with this line at its end."""
    if label not in ax.get_legend_handles_labels()[1]:
        ax.plot(across, up, linestyle="--", color="grey", linewidth=1, label=label)
    entries = sorted(zip(*ax.get_legend_handles_labels(), strict=True), key=lambda entry: entry[1] == label)
    ax.legend(*zip(*entries, strict=True), frameon=False)


def _nothing(what: str, fix: str) -> ConfigError:
    return ConfigError(f"the data lack {what}", fix=fix)
