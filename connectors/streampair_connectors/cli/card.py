"""`streampair budget card`: the privacy card of an application."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streampair.errors import ConfigError, StoreError
from streampair.privacy.pipeline_check import class_name
from streampair_connectors.cli.options import AsJson, ConfigPath, errors
from streampair_connectors.config import Config, load_config

if TYPE_CHECKING:
    from streampair_connectors.stores.spending import Budget

__all__ = ["application_card", "card"]


def _spent(settings: Config) -> Budget | None:
    """Read the spent budget from the store; None: it has no private lane yet."""
    from streampair_connectors.stores.spending import read_stored

    try:
        return asyncio.run(read_stored(settings))
    except StoreError as error:
        if "no private lane" not in error.problem:
            raise
        return None


def application_card(settings: Config, audit: str | None = None) -> dict[str, Any]:
    """Return the card of a configuration, with the budget spent according to its store.

    Parameters
    ----------
    settings
        The configuration.
    audit
        Output of `streampair audit --json`.

    Raises
    ------
    ConfigError
        If the learner is not private, or the audit is of another one.
    SourceError, StoreError, SnapshotError
        As of `streampair budget show`.
    """
    from river import compose

    from streampair.engine.lane import SHADOWED
    from streampair.privacy import NoiseKey
    from streampair.privacy.pipeline_check import is_private
    from streampair_connectors.observability.privacy_card import card_of, checked_audit
    from streampair_connectors.worker.factory import build_learner

    model = build_learner(settings, noise_key=NoiseKey(secrets.token_bytes(32)))
    learner = list(model.steps.values())[-1] if isinstance(model, compose.Pipeline) else model
    if not is_private(learner):
        raise ConfigError(
            f"{type(learner).__name__} is not private, so there is nothing to put on a card",
            fix="configure a private learner, such as streampair.auc.PairFTRL",
        )
    report, name = learner.privacy, class_name(learner)
    audit_result = None if audit is None else checked_audit(audit, report, name)
    budget = _spent(settings)
    status: dict[str, Any] = {"lanes": "none has begun: what is planned"}
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
                    "partition": account.partition,
                    "epsilon spent": account.epsilon_spent,
                    "epsilon": account.epsilon_budget,
                    "guarantee": account.guarantee,
                    "forks charged": account.forks,
                    "forks planned": account.forks_planned,
                    "generation of the noise": account.generation,
                }
                for account in budget.accounts
            ],
            "over lanes": f"{budget.over_lanes}: {budget.why}",
        }
    if settings.shadow is not None:
        report = report.replace(notes=(*report.notes, SHADOWED))
    deployment = {"application": settings.app, "topic": settings.input.topic, "learner": name}
    return card_of(report, deployment=deployment, curator=settings.card, status=status, audit=audit_result)


def card(
    config: ConfigPath,
    page: Annotated[
        Path | None, typer.Option("--html", help="Write it as a page, which prints well, to this file.")
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(
            help="The last audit, if not metrics.audit_file: what `streampair audit --json` printed."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the privacy card: what is promised, for whom, how, and what is spent.

    In the fields of the registry of differential-privacy deployments (arXiv 2509.13509; NIST SP 800-226),
    from the configuration and the store, as of the last commits. Changes nothing.
    """
    from streampair_connectors.observability.privacy_card import card_html, card_lines, read_audit

    with errors(as_json):
        settings = load_config(config)
        file = settings.audit_file if audit is None else audit
        made = application_card(settings, None if file is None else read_audit(file))
        if page is not None:
            try:
                page.write_text(card_html(made))
            except OSError as error:
                raise ConfigError(
                    f"{page} cannot be written: {error.strerror}",
                    fix="give a file in a directory that is there",
                ) from None
        if as_json:
            typer.echo(json.dumps(made))
        elif page is None:
            for line in card_lines(made):
                typer.echo(line)
