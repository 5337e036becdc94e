"""`streampair compare`: two applications on the same events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streampair.errors import ConfigError, StreampairError
from streampair_connectors.cli.options import AsJson, Set, errors, time_of, time_text
from streampair_connectors.config import Config, load_config
from streampair_connectors.observability import logs

if TYPE_CHECKING:
    from streampair_connectors.worker.scored_events import ScoredEvents

__all__ = ["compare"]

RAW = (
    "AUCs that are not private, average precision, log loss and numbers of labels are functions of raw data, "
    "which no account covers. To choose an application by them, or to show them, voids its guarantee"
)
_BAND = 1.96  # standard errors of a band of 95 %
# What both applications must have in common.
_SHARED = {
    "input": ("topic", "label", "positive", "negative"),
    "label_input": ("topic", "id", "label", "after", "lateness", "absent", "stopped"),
}


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Configuration of one application.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Configuration of the other one.")],
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Count events from this time on, in ISO 8601. Default: from the first score of the "
            "application that began later, after its warm-up.",
        ),
    ] = None,
    by_raw_data: Annotated[
        bool,
        typer.Option("--by-raw-data", help="Also print what no private account covers: figures of raw data."),
    ] = False,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Compare two applications that score the same topic, on the events that both have scored.

    Reads the topics of scores, the input and the labels; changes nothing. Workers may run. Events are joined
    by partition and offset, and the first score of each counts. Prints AUCs with bands, DeLong's test of
    their difference, average precision, log loss, CPU time, and what both have spent.

    If an application is private, prints private AUCs (auc_share), and the rest with --by-raw-data only.

    To switch from A to B: docs/compare.md.
    """
    with errors(as_json):
        configs = load_config(first, overrides), load_config(second, overrides)
        logs.configure("error")
        check_comparable(*configs)
        found = asyncio.run(_compared(*configs, _milliseconds(since), by_raw_data=by_raw_data))
        if as_json:
            typer.echo(json.dumps(found))
            return
        for label, value in _rows(found):
            typer.echo(f"{label:<18} {value}")
        if by_raw_data and any(found["private"]):
            typer.echo(f"warning: {RAW}", err=True)


def check_comparable(first: Config, second: Config) -> None:
    """Refuse two applications that do not score the same events, or do not learn the same labels.

    Raises
    ------
    ConfigError
    """
    if first.app == second.app:
        raise ConfigError(
            f"both configurations are of the application {first.app!r}",
            fix="give the second one an app name of its own, and run both",
        )
    for table, names in _SHARED.items():
        for name in names:
            a, b = (getattr(getattr(config, table), name, None) for config in (first, second))
            if a != b:
                raise ConfigError(
                    f"{table}.{name} is {a!r} for {first.app} and {b!r} for {second.app}",
                    fix="compare applications with one input and the same labels",
                )


def _milliseconds(text: str | None) -> int | None:
    if text is None:
        return None
    time = time_of(text)
    if time is None:
        raise ConfigError(
            f"--from {text!r} is no time", fix="write it in ISO 8601, such as 2026-01-31T12:00:00Z"
        )
    return time


@dataclass(frozen=True)
class _Stored:
    """What the last snapshot of an application says.

    Attributes
    ----------
    warmup
        Number of events of the learner's warm-up.
    probabilities
        Function from scores to probabilities; None: the model gives none.
    private_auc
        As in `PrivacyReport.auc`.
    problem
        Why the snapshot cannot be read; empty: it was.
    """

    warmup: int
    probabilities: Callable[[Any], Any] | None = None
    private_auc: dict[str, Any] | None = None
    problem: str = ""


async def _stored(config: Config) -> _Stored:
    from streampair_connectors.stores.state import open_states

    learner = config.learner
    declared = (learner.options if learner.class_ is not None else learner.steps[-1].options).get("warmup", 0)
    try:
        async with open_states(config) as states:
            lane = await states.restored()
    except StreampairError as error:
        return _Stored(declared, problem=error.problem)
    known, report = lane.log.known, lane.privacy
    plan = {} if known is None or known.plan is None else known.plan
    auc = None if report is None or report.auc is None else dict(report.auc)
    return _Stored(plan.get("warmup", declared), lane.probabilities, auc)


async def _compared(first: Config, second: Config, since: int | None, *, by_raw_data: bool) -> dict[str, Any]:
    from streampair_connectors.worker.factory import is_private
    from streampair_connectors.worker.scored_events import read_scored_events

    configs = first, second
    private = [is_private(config) for config in configs]
    raw = by_raw_data or not any(private)
    stored = [await _stored(config) for config in configs]
    warmups = stored[0].warmup, stored[1].warmup
    events = await read_scored_events(first, second, since=since, warmups=warmups, labels=raw)
    return {
        "applications": [config.app for config in configs],
        "learners": [config.learner.label() for config in configs],
        "private": private,
        "from": None if events.since is None else time_text(events.since),
        "by_raw_data": raw,
        "events": {"both": events.both, "only": list(events.only), "gone": events.gone},
        "differences": list(_differences(first, second)),
        "quality": _quality(events, stored) if raw else None,
        "private_auc": [each.private_auc for each in stored],
        "cpu": [await asyncio.to_thread(_cpu, config) for config in configs],
        "privacy": await _spent(configs, private),
        "unknown": [each.problem for each in stored],
    }


def _differences(first: Config, second: Config) -> Iterator[str]:
    """In what the scores of both mean something else."""
    modes = [config.learner.scoring for config in (first, second)]
    if modes[0] != modes[1]:
        yield f"learner.scoring: {modes[0]} and {modes[1]}, whose models have learned less at each event"
    orders = [None if config.label_input is None else config.label_input.order for config in (first, second)]
    if orders[0] != orders[1]:
        yield f"label_input.order: {orders[0]} and {orders[1]}, which learn at other times"


def _quality(events: ScoredEvents, stored: Sequence[_Stored]) -> dict[str, Any] | None:
    """Figures of raw data; None: a class has fewer than two events."""
    from streampair.evaluation import average_precision, delong
    from streampair.evaluation.quality import FEWEST_OF_AUC, explored_positives, too_few

    weights = events.weights
    explored = explored_positives(events.positive, weights, stopped=events.acts)
    few, no_error = too_few(explored), too_few(explored, FEWEST_OF_AUC)
    found = delong(events.positive, *events.scores, weights=weights)
    if found is None:
        return None
    return {
        "events": found.events,
        "positives": int(events.positive.sum()),
        "explored": int((weights > 1.0).sum()),
        "explored_positives": explored,
        "unmarked": events.unmarked,
        "auc": [found.first, found.second],
        "auc_stderr": [None, None] if no_error else [found.first_stderr, found.second_stderr],
        "difference": found.difference,
        "difference_stderr": None if no_error else found.difference_stderr,
        "p_value": None if no_error else found.p_value,
        "average_precision": [
            None if few else average_precision(each, events.positive, weights) for each in events.scores
        ],
        "log_loss": [
            None if few else _log_loss(scores, events.positive, each.probabilities, weights)
            for scores, each in zip(events.scores, stored, strict=True)
        ],
    }


def _log_loss(
    scores: Any, positive: Any, probabilities: Callable[[Any], Any] | None, weights: Any
) -> float | None:
    """Mean log loss of the probabilities of scores; None: there are none."""
    import numpy as np

    if probabilities is None:
        return None
    chances = np.clip(np.asarray(probabilities(scores), np.float64), 1e-15, 1.0 - 1e-15)
    return float(np.average(-np.log(np.where(positive, chances, 1.0 - chances)), weights=weights))


def _cpu(config: Config) -> dict[str, float] | None:
    """CPU time of the process that serves the metrics of an application, and the events that it has taken."""
    from streampair_connectors.observability.server import read_metrics

    if not config.metrics.address.port:
        return None
    lines = read_metrics(config.metrics.address)
    of_app = [line for line in lines if line.startswith("streampair_events_total{")]
    of_app = [line for line in of_app if f'app="{config.app}"' in line]
    seconds = [line for line in lines if line.startswith("process_cpu_seconds_total ")]
    if not of_app or not seconds:  # another application is there, or a system that does not say
        return None
    number = [float(line.rpartition(" ")[2]) for line in (*seconds, *of_app)]
    return {"seconds": number[0], "events": sum(number[1:])}


async def _spent(configs: Sequence[Config], private: Sequence[bool]) -> dict[str, Any] | None:
    """Epsilon of each private application, and of all together; None: none is private."""
    from streampair_connectors.stores.spending import read_stored

    chosen = [config for config, each in zip(configs, private, strict=True) if each]
    if not chosen:
        return None
    try:
        each = [await read_stored(config) for config in chosen]
        total = await read_stored(*chosen)
    except StreampairError as error:
        return {"problem": error.problem}
    return {
        "applications": [config.app for config in chosen],
        "epsilon": [budget.epsilon_spent for budget in each],
        "delta": [budget.delta for budget in each],
        "sum": {"epsilon": total.epsilon_spent, "delta": total.delta, "unit": total.unit},
    }


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    apps, events = found["applications"], found["events"]
    names = [f"{app} ({learner})" for app, learner in zip(apps, found["learners"], strict=True)]
    yield "applications", " and ".join(names)
    yield "from", found["from"] or "there is no event yet"
    gone = f"; {events['gone']} more have left the input topic" if events["gone"] else ""
    alone = _listed(apps, map(str, events["only"]))
    yield "events", f"{events['both']} scored by both; by one alone: {alone}{gone}"
    for text in found["differences"]:
        yield "differs", text
    yield from _quality_rows(found)
    yield "CPU time", _listed(apps, map(_cpu_text, found["cpu"]))
    if found["privacy"] is not None:
        yield from _privacy_rows(found)
    for app, problem in zip(apps, found["unknown"], strict=True):
        if problem:
            yield "not read", f"the last snapshot of {app}: {problem}"


def _quality_rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    apps, quality = found["applications"], found["quality"]
    if quality is None:
        few = "not known: a class has fewer than two events with a label and two scores"
        yield "AUC", few if found["by_raw_data"] else "of raw data: printed with --by-raw-data only"
        return
    yield "labelled", f"{quality['events']} of them, {quality['positives']} positive"
    few = "not known"
    if (explored := quality["explored_positives"]) is not None:
        few = "too few explored positives"
        yield (
            "explored",
            f"{quality['explored']} of them, {explored} positive, which stand for those that their scores "
            f"have stopped; left out: {quality['unmarked']} more with a label, which were to be stopped",
        )
    for app, auc, stderr in zip(apps, quality["auc"], quality["auc_stderr"], strict=True):
        yield f"AUC {app}", f"{auc:.4f}, band: {few}" if stderr is None else _with_band(auc, stderr)
    gap, error, p = quality["difference"], quality["difference_stderr"], quality["p_value"]
    test = f"standard error and p: {few}"
    if error is not None:
        test = f"standard error {error:.4f}, p {p:.3g} (DeLong), for one look"
    yield "difference", f"{gap:+.4f}, {test}"
    if quality["average_precision"][0] is not None:
        few = "not known"
    for label in ("average precision", "log loss"):
        values = quality[label.replace(" ", "_")]
        yield label, _listed(apps, (few if each is None else f"{each:.4f}" for each in values))


def _listed(apps: Sequence[str], values: Iterable[str]) -> str:
    return ", ".join(f"{app} {value}" for app, value in zip(apps, values, strict=True))


def _cpu_text(cpu: dict[str, float] | None) -> str:
    if cpu is None:
        return "not known"
    each = "" if not cpu["events"] else f", {1e6 * cpu['seconds'] / cpu['events']:.1f} us an event"
    return f"{cpu['seconds']:.1f} s{each}"


def _privacy_rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for app, private, auc in zip(found["applications"], found["private"], found["private_auc"], strict=True):
        if private:
            yield f"private AUC {app}", _private_auc_text(auc)
    spent = found["privacy"]
    if "problem" in spent:
        yield "epsilon", f"not known: {spent['problem']}"
        return
    for app, epsilon, delta in zip(spent["applications"], spent["epsilon"], spent["delta"], strict=True):
        yield f"epsilon {app}", f"{epsilon:.4g} spent at delta {delta:.3g}"
    total = spent["sum"]
    yield "epsilon of both", f"{total['epsilon']:.4g} at delta {total['delta']:.3g}, for one {total['unit']}"


def _private_auc_text(auc: dict[str, Any] | None) -> str:
    if auc is None:
        return "none: set auc_share in learner.options of an application of its own"
    if auc["too_few"] or auc["value"] is None:
        return "too few records to tell it from the noise"
    return _with_band(auc["value"], auc["stderr"])


def _with_band(auc: float, stderr: float) -> str:
    low, high = max(auc - _BAND * stderr, 0.0), min(auc + _BAND * stderr, 1.0)
    return f"{auc:.4f}, 95 % from {low:.4f} to {high:.4f}"
