"""`streampair budget`: what privacy will cost, what is spent, and the privacy card."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from streampair.errors import ConfigError, SourceError, StoreError
from streampair.privacy.pipeline_check import class_name
from streampair_connectors.cli.options import AsJson, ConfigPath, HistoryAccount, Set, errors
from streampair_connectors.config import Config, duration_text, load_config
from streampair_connectors.config.toml_lines import toml_line
from streampair_connectors.observability import logs
from streampair_connectors.output_files import check_outputs, files_of, write_file

if TYPE_CHECKING:
    from streampair.assurance.planner import Forecast
    from streampair.privacy import PrivacyPlan
    from streampair_connectors.stores.spending import Budget, LaneBudget

__all__ = [
    "TableSpend",
    "application_card",
    "card",
    "chart",
    "plan_dict",
    "planned_options",
    "show_budget",
    "show_plan",
    "show_table",
    "table_spend",
]

_MARKS = "ABCDEFGH"
_MODELS = {
    "auc": ("AUC", "linear scorer"),
    "ranking": ("share of pairs in order", "linear scorer"),
    "metric": ("share of distances in order", "metric"),
}
_MAX_WIDTH = 100  # a longer line is hard to read, however wide the terminal is
_LABEL = 13  # width of a label with its padding


def planned_options(config: Config) -> dict[str, Any]:
    """What a plan takes from a learner: epsilon, delta, entity and family, those that it has."""
    from streampair.privacy import EntityLimit

    learner = config.learner
    last = learner if learner.class_ is not None else learner.steps[-1]
    found: dict[str, Any] = {
        name: last.options[name] for name in ("epsilon", "delta") if name in last.options
    }
    if "entity" in last.options:
        entity = {name: item for name, item in last.options["entity"].items() if name != "class"}
        found["entity"] = EntityLimit(**entity)
    family = str(last.class_).split(".")[1:2]
    return found | ({"family": family[0]} if family and family[0] in _MODELS else {})


def _as_config(forecast: Forecast) -> str:
    """The learner of a forecast, as lines of a configuration."""
    from streampair.privacy import EntityLimit

    options = dict(forecast.settings)
    for name, value in options.items():
        if name == "mechanism":
            options[name] = {"class": f"streampair.privacy.{type(value).__name__}"}
        elif isinstance(value, EntityLimit):
            fields = {key: item for key, item in asdict(value).items() if item is not None}
            options[name] = {"class": "streampair.privacy.EntityLimit", **fields}
    kind = f"streampair.{forecast.family}.{forecast.mechanism}"
    return f"\n  {toml_line('class', kind)}\n  {toml_line('options', options)}"


def plan_dict(found: PrivacyPlan) -> dict[str, Any]:
    """Return a plan as JSON values; infinite numbers become null."""

    from streampair.assurance.planner import setting_text

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, dict):
            return {key: plain(v) for key, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    summary: dict[str, Any] = plain(asdict(found))
    for row, forecast in zip(summary["forecasts"], found.forecasts, strict=True):
        if "mechanism" in forecast.settings:  # as a configuration says it
            row["settings"]["mechanism"] = {
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


def show_plan(
    found: PrivacyPlan, console: Console, wait: int | None = None, *, as_toml: bool = False
) -> None:
    """Print the table, the chart and the recommendation.

    Parameters
    ----------
    found, console
        What is printed, and where.
    wait
        Milliseconds from an event until it is learned; None: it is learned when it comes.
    as_toml
        Whether the recommended learners are lines of a configuration, in place of calls in Python.
    """
    from streampair.assurance.planner import setting_text

    what, best = _MODELS[found.family]
    share = f", {found.positive_rate:g} positive" if found.family == "auc" else ""
    console.print(
        f"{found.n:,} records, {found.d} features{share}; epsilon {found.epsilon:g} at delta "
        f"{found.delta:.3g} (mu {found.mu:.4g}). Expected {what} without privacy: "
        f"{found.auc_without_privacy:.3f}, if the best {best} reaches {found.auc_best:g}.",
        highlight=False,
    )
    table = Table(pad_edge=False)
    table.add_column("")
    table.add_column("mechanism", overflow="fold")
    useful = "useful\nfrom" if found.stated is None else f"{found.stated:g}\nfrom"
    measure = found.measure.replace(" in ", "\nin ")
    for name in ("noise", measure, "loss", "10 to 90 %", useful):
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
            "{:.3f}-{:.3f}".format(*f.loss_band),
            "-" if f.useful_from is None else f"{f.useful_from:,}",
        )
    console.print(table)
    for line in chart(found):
        console.print(line, highlight=False, markup=False)
    for line in found.advice():
        for each in (found.best, found.best_without_horizon) if as_toml else ():
            if each is not None and line.endswith(f": {each.call()}"):
                line = line.removesuffix(f" {each.call()}") + _as_config(each)
        console.print(line, highlight=False, markup=False, soft_wrap=as_toml)
    if wait is not None:
        console.print(
            f"Labels come later: each record is learned {duration_text(wait)} after it came, so that the "
            "first model, and each number of records, is reached so much later.",
            highlight=False,
        )
    console.print(
        f"{found.measure} and loss are means of simulated runs, and four of five losses are in the band. "
        "These runs have normal records, correlated features, and bounds at 2 to 8 standard deviations"
        f"{', and string fields' if found.one_hot else ''}: compare mechanisms by them.",
        highlight=False,
    )


@dataclass(frozen=True)
class TableSpend:
    """What a person spends who is in a table and in the stream after it.

    Attributes
    ----------
    rows
        Rows of the table.
    mu_history, mu_stream, mu_both
        Spend in mu-GDP of `history.Job`, of the stream, and of both.
    epsilon_both
        Epsilon of both at the delta of the plan.
    epsilon_each
        The epsilon with which both together have the epsilon of the plan.
    doubts
        Warnings about the budget for so many rows.
    """

    rows: int
    mu_history: float
    mu_stream: float
    mu_both: float
    epsilon_both: float
    epsilon_each: float
    doubts: tuple[str, ...]


def table_spend(found: PrivacyPlan, rows: float, *, entity: bool) -> TableSpend:
    """Account for a table that is learned before the stream, with the same epsilon and delta.

    Parameters
    ----------
    found
        The plan of the stream.
    rows
        Rows of the table.
    entity
        Whether the stream protects entities.

    Raises
    ------
    ConfigError
        If no job learns from such a table.
    """
    from streampair import auc, history, ranking
    from streampair.errors import PrivacyWarning
    from streampair.privacy import compose
    from streampair.privacy.accounting import doubts, promised_epsilon

    if found.family == "metric" or entity:
        raise ConfigError(
            "--table counts one row of a table that auc.PairFTRL or ranking.PairFTRL learns"
            + (", and --entity all records of an entity" if entity else ""),
            fix="leave out --table" + (", or --entity" if entity else ", or choose another --family"),
        )
    names, count = [f"x{i}" for i in range(found.d)], int(rows) if rows.is_integer() else rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # they are printed
        learner = (
            auc.PairFTRL(found.epsilon, found.delta, features=names)
            if found.family == "auc"
            else ranking.PairFTRL(found.epsilon, found.delta, relevance=(0.0, 1.0), features=names)
        )
        job = history.Job(learner, label="label", rows=count, row_id="id", salt="a plan")  # type: ignore[arg-type]
    mu = job.releases[0].replace
    both = compose([mu, found.mu])
    return TableSpend(
        rows=int(rows),
        mu_history=mu,
        mu_stream=found.mu,
        mu_both=both,
        epsilon_both=promised_epsilon(both, found.delta),
        epsilon_each=promised_epsilon(found.mu / math.sqrt(2.0), found.delta),
        doubts=tuple(
            text for text in doubts(found.epsilon, found.delta, int(rows), "rows") if text not in found.doubts
        ),
    )


def show_table(spend: TableSpend, found: PrivacyPlan, console: Console) -> None:
    """Print what the table, the stream and both spend."""
    for text in spend.doubts:
        console.print(f"warning: {text}", highlight=False, markup=False)
    console.print(
        f"A table of {spend.rows:,} rows (history.Job) spends epsilon {found.epsilon:g} (mu "
        f"{spend.mu_history:.4g}), the stream epsilon {found.epsilon:g} (mu {spend.mu_stream:.4g}). A person "
        f"in both spends epsilon {spend.epsilon_both:.4g} at delta {found.delta:.3g} (mu "
        f"{spend.mu_both:.4g}). For {found.epsilon:g} together give each {spend.epsilon_each:.4g}.",
        highlight=False,
    )


def show_budget(budget: Budget, console: Console) -> None:
    """Print one block per lane and the total below; long lines are wrapped."""
    width = min(console.width, _MAX_WIDTH)

    def block(title: str, rows: Iterator[tuple[str, str]]) -> None:
        for line in _wrap(title, width):
            console.print(Text(line, style="bold"), soft_wrap=True)
        for label, value in rows:
            for number, line in enumerate(_wrap(value, width - 2 - _LABEL)):
                row = f"  {label if number == 0 else '':<{_LABEL}}{line}"
                console.print(row, highlight=False, markup=False, soft_wrap=True)
        console.print()

    for account in budget.accounts:
        block(_name(account), _lane_rows(account))
    block(f"together, for one {budget.unit}", _total_rows(budget))


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_on_hyphens=False)


def _name(a: LaneBudget) -> str:
    return f"{a.app}: {a.topic}, {a.learner}"


def _lane_rows(a: LaneBudget) -> Iterator[tuple[str, str]]:
    yield "promised", f"epsilon {a.epsilon_budget:.4g} at delta {a.delta:.3g}"
    yield "epsilon", f"{a.epsilon_spent:.4g} of {a.epsilon_budget:.4g} spent"
    yield "mu", f"{a.mu_spent:.4g} of {a.mu_budget:.4g} spent"
    more = f", and {a.uncommitted} since the last commit: the next one adds them to these numbers"
    yield "releases", f"{a.releases}" + (more if a.uncommitted else "")
    if a.horizon_left is None:
        yield "left", "no end: it learns for as long as events come"
    elif a.horizon_left:
        yield "left", f"{a.horizon_left} of {a.horizon} events can be learned"
    else:
        yield "left", f"0 of {a.horizon} events: the horizon is reached, it scores and learns no more"
    if a.forks is None:
        yield "forks", "not counted: this lane has no ledger"
    else:
        more = ", and 1 more is charged until the replay after a crash has caught up"
        yield "forks", f"{a.forks} of {a.forks_planned} planned" + (more if a.pending else "")
        yield "attempt", f"{a.attempt}, window {a.window}, generation {a.generation} of the noise"
    yield "protected", a.unit
    yield "guarantee", a.guarantee if a.guarantee.startswith(a.kind) else f"{a.kind}: {a.guarantee}"


def _total_rows(budget: Budget) -> Iterator[tuple[str, str]]:
    yield "epsilon", f"{budget.epsilon_spent:.4g} at delta {budget.delta:.3g}"
    yield "mu", f"{budget.mu_spent:.4g}"
    count = len(budget.accounts)
    yield "lanes", f"{count}. Learners on the same records add up"
    yield "over topics", f"the {budget.over_topics}: {budget.why}"
    for name in budget.unread:
        unread = f"topic {name}: the keys of this configuration do not open it"
        yield "not covered", f"{unread}. If it is a log of this application, its spend comes on top"
    for a in budget.accounts:
        if budget.unit == "entity" and not a.by_entity:
            yield "not covered", f"{_name(a)}: it protects one record, not all of an entity's"
        if a.kind != "holds":
            yield "not covered", f"{_name(a)}: its guarantee is {a.kind}"


def _spent(settings: Config) -> tuple[Budget | None, str | None]:
    """Read the spent budget from the store, or say why it cannot be read; neither: no lane has begun.

    A store that answers, and cannot be read, is an error.
    """
    from streampair_connectors.stores.spending import read_stored

    if settings.store.in_kafka and settings.kafka is None:
        return None, "the configuration has no [kafka] table"
    try:
        return asyncio.run(read_stored(settings)), None
    except SourceError as error:
        return None, error.problem
    except StoreError as error:
        if "no private lane" not in error.problem:
            raise
        return None, None


def application_card(
    settings: Config, audit: str | None = None, account: Path | None = None
) -> dict[str, Any]:
    """Return the card of a configuration, with the budget spent according to its store.

    Without a broker, what is spent is None, and the card says why.

    Parameters
    ----------
    settings
        The configuration.
    audit
        What `streampair audit --output` has written.
    account
        The account of attempts at the table of learner.start; None: the one next to the configuration.

    Raises
    ------
    ConfigError
        If the learner is not private, or the audit is of another one.
    StoreError, SnapshotError
        As of `streampair budget show`.
    """
    from river import compose

    from streampair.privacy import NoiseKey
    from streampair.privacy.pipeline_check import is_private
    from streampair_connectors.cli.check import further_attempts
    from streampair_connectors.observability.privacy_card import card_of, checked_audit, without_spend
    from streampair_connectors.worker.factory import build_learner

    budget, unread = _spent(settings)
    model = build_learner(settings, noise_key=NoiseKey(secrets.token_bytes(32)))
    learner = list(model.steps.values())[-1] if isinstance(model, compose.Pipeline) else model
    if not is_private(learner):
        raise ConfigError(
            f"{type(learner).__name__} is not private, so there is nothing to put on a card",
            fix="configure a private learner, such as streampair.auc.PairFTRL",
        )
    report, name = learner.privacy, class_name(learner)
    audit_result = None if audit is None else checked_audit(audit, report, name)
    lanes = "none has begun: what is planned" if unread is None else f"not read: {unread}"
    status: dict[str, Any] = {"lanes": lanes}
    if budget is not None:
        kinds = {account.kind for account in budget.accounts}
        worst = next(kind for kind in ("void", "unvouched", "holds") if kind in kinds)
        guarantees = "; ".join(
            sorted({account.guarantee for account in budget.accounts if account.kind == worst})
        )
        remaining = [slots for account in budget.accounts if (slots := account.horizon_left) is not None]
        report = report.replace(
            epsilon_spent=budget.epsilon_spent,
            mu_spent=budget.mu_spent,
            releases=sum(account.releases for account in budget.accounts),
            kind=worst,
            guarantee=guarantees,
            horizon_left=min(remaining) if remaining else None,
        )
        status = {
            "lanes": [
                {
                    "topic": account.topic,
                    "learner": account.learner,
                    "epsilon spent": account.epsilon_spent,
                    "epsilon": account.epsilon_budget,
                    "guarantee": account.guarantee,
                    "forks charged": account.forks,
                    "forks planned": account.forks_planned,
                    "generation of the noise": account.generation,
                }
                for account in budget.accounts
            ],
            "over topics": f"{budget.over_topics}: {budget.why}",
        }
    further = further_attempts(settings, account)
    notes = *report.notes, *settings.privacy_notes, *([] if further is None else [further.text])
    report = report.replace(notes=notes)
    deployment = {
        "application": settings.app,
        "topic": settings.input.topic,
        "learner": name,
        "features": _declared_features(settings, learner),
    }
    made = card_of(report, deployment=deployment, curator=settings.card, status=status, audit=audit_result)
    return made if unread is None else without_spend(made, unread)


def _declared_features(settings: Config, learner: Any) -> dict[str, str] | str:
    """The features of a private learner, each with its bounds or values."""
    bounds, categories = learner.bounds or {}, settings.input.categories()
    names = dict.fromkeys([*bounds, *learner.feature_names], "no bounds are declared: from -1 to 1")
    found = names | {name: f"{low:.10g} to {high:.10g}" for name, (low, high) in bounds.items()}
    if categories is not None:
        found = {name: text for name, text in found.items() if name not in categories.columns}
        found |= {str(name): ", ".join(map(str, values)) for name, values in categories.places.items()}
    return {str(name): text for name, text in found.items()} or "not declared: those of the first record"


def card(
    config: ConfigPath,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="Write it to this file, as an HTML page, which prints well."
        ),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(
            help="The last audit, if not metrics.audit_file: what `streampair audit --output` has written."
        ),
    ] = None,
    account: HistoryAccount = None,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Show the privacy card: what is promised, for whom, how, and what is spent.

    In the fields of the registry of differential-privacy deployments (arXiv 2509.13509; NIST SP 800-226),
    from the configuration and the store, as of the last commits. Without a broker it shows the promise, and
    says that the spend was not read. Changes nothing.
    """
    from streampair_connectors.observability.privacy_card import card_html, card_lines, read_audit

    with errors(as_json):
        settings = load_config(config, overrides)
        logs.configure("error")
        file = settings.metrics.audit_file if audit is None else audit
        check_outputs({"--output": output}, {"--audit": audit, "--account": account, **files_of(settings)})
        made = application_card(settings, None if file is None else read_audit(file), account)
        if output is not None:
            write_file(output, card_html(made).encode())
        if as_json:
            typer.echo(json.dumps(made))
        elif output is None:
            for line in card_lines(made):
                typer.echo(line)
