"""Implementation of `streampair audit`: a canary attack on the configured learner, and its report."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from river import compose

from streampair import __version__
from streampair.privacy import AuditReport, NoiseKey, audit, epsilon_from
from streampair_connectors.config import Config
from streampair_connectors.worker.factory import build_learner

__all__ = ["audit_config", "audit_dict", "audit_lines"]


def audit_config(config: Config, *, slots: int | None, runs: int | None, console: Console) -> AuditReport:
    """Audit the learner of a configuration, under a temporary noise key.

    Progress goes to the console if it is a terminal.

    Raises
    ------
    ConfigError
        If the learner is not private, or cannot be built.
    """
    model = build_learner(config, noise_key=NoiseKey(secrets.token_bytes(32)))
    learner = list(model.steps.values())[-1] if isinstance(model, compose.Pipeline) else model
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} runs")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("finding the best attack", total=None)

        def progress(part: str, done: int, of: int) -> None:
            bar.update(task, description=part, completed=done, total=of)

        return audit(learner, slots=slots, runs=runs, progress=progress)


def audit_dict(report: AuditReport) -> dict[str, Any]:
    """Return the report for `--json`, with its date."""
    made = {"date": datetime.now(UTC).date().isoformat(), "software": f"streampair {__version__}"}
    parts = [{**asdict(part), "failures": list(part.failures)} for part in report.parts]
    return {**asdict(report), "parts": parts, "holds": report.holds, "verdict": report.verdict, **made}


def audit_lines(report: AuditReport) -> Iterator[str]:
    """Return the report as text."""
    yield f"{report.learner}, epsilon {report.epsilon:g} at delta {report.delta:g}"
    for part in report.parts:
        yield ""
        yield f"{part.part}: {part.slots} slots, {part.runs} runs on each of two streams"
        yield f"  the streams have {part.canary}"
        yield f"  claimed for one record          mu {part.claimed:8.4f}"
        yield f"  the account of the whole run    mu {part.planned:8.4f}"
        yield f"  of which for these slots        mu {part.accounted:8.4f}"
        yield f"  the best attack, exactly        mu {part.exact:8.4f}"
        yield f"  the same attack, carried out    mu {part.measured:8.4f} (standard error {part.stderr:.4f})"
        at_least = f"mu {part.lower:8.4f}"
        if part.lower > 0.0:
            at_least += f", epsilon {epsilon_from(part.lower, report.delta):.3f}"
        yield f"  so at confidence 0.9999 at least {at_least}"
        yield f"  size of the noise               {part.noise:11.4f} of what it should be"
    yield ""
    yield f"verdict: {report.verdict}"
    if report.holds:
        yield "(An audit can show that a promise is broken, never that it is kept.)"
