"""`streampair model`: the model of an application as a file, and what is in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streampair.errors import ConfigError, SnapshotError, StoreError
from streampair_connectors.cli.options import AsJson, ConfigPath, Set, errors, time_text
from streampair_connectors.config import Config, load_config
from streampair_connectors.observability import logs
from streampair_connectors.output_files import check_outputs, files_of, is_stream

if TYPE_CHECKING:
    from streampair import models

__all__ = ["model_app"]

model_app = typer.Typer(
    help="Export the model to a file, show a file.",
    epilog="Example: streampair model export fraud.toml --output model.json",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_CARD = "privacy_card"  # in the metadata of a model
_MOST_ROWS = 20  # of a list that is printed
_LABEL = 12


@model_app.command(
    "export",
    short_help="Write the newest model to a file.",
    epilog="Example: streampair model export fraud.toml --output model.json",
)
def export(
    config: ConfigPath,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            metavar="FILE",
            help="The file: JSON, or with the ending .onnx a graph; - is standard output.",
        ),
    ],
    stored: Annotated[
        bool,
        typer.Option("--stored", help="Take the last snapshot in the store, though there is a model topic."),
    ] = False,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Write the newest model of an application to a file. Changes nothing; a worker may run meanwhile.

    Taken from the model topic if the application has one (output.model_topic), else from the last snapshot in
    its store. A directory needs no broker for that. The file holds what may be published, with the privacy
    card of a private learner. It replaces an older one at once.
    """
    from streampair import models

    with errors(as_json):
        settings = load_config(config, overrides)
        logs.configure("error")
        check_outputs({"--output": output}, files_of(settings))
        if settings.model_topic is not None and not stored:
            model, behind = asyncio.run(_published(settings)), 0
        else:
            model, behind = asyncio.run(_from_store(settings))
        if model.privacy is not None:
            model.metadata[_CARD] = _card(settings, model.privacy)
        if is_stream(output):
            sys.stdout.buffer.write(models.dumps(model))
            return
        try:
            models.save(model, output)
        except OSError as error:
            raise ConfigError(
                f"{output} cannot be written: {error.strerror}",
                fix="give a file in a directory that is there",
            ) from None
        if as_json:
            written = {"file": str(output), "slots": model.slots, "newer_events": behind}
            typer.echo(json.dumps({**written, "features": len(model.features)}))
            return
        typer.echo(f"{output}: {model.class_name}, {len(model.features)} features, {model.slots} records")
        if behind:
            typer.echo(
                f"{behind} newer events are not in it: they are in no snapshot yet. A worker takes one when "
                "it is stopped"
            )


async def _published(settings: Config) -> models.Model:
    """Return the newest model of the model topic."""
    from streampair_connectors.kafka import RecordReader, describe_topics
    from streampair_connectors.worker.model_topic import read_model

    kafka = settings.require_kafka()
    found = None
    if settings.model_topic in await describe_topics(kafka):
        lookup = RecordReader(kafka)
        try:
            found = await read_model(settings, lookup)
        finally:
            await lookup.stop()
    if found is None:
        raise StoreError(
            f"the model topic {settings.model_topic!r} has no model of {settings.app} yet",
            fix="start `streampair run`, which publishes one; or add --stored",
        )
    return found.model


async def _from_store(settings: Config) -> tuple[models.Model, int]:
    """Return the model of the last snapshot of the lane, and how many committed events it lacks."""
    from streampair import models
    from streampair_connectors.stores.state import open_states

    async with open_states(settings, broker=False) as states:
        lane = await states.restored()
    known = lane.log.known
    assert known is not None  # it was restored from it
    model = models.export(
        lane.model,
        lane.slots,
        metadata={
            "application": settings.app,
            "configuration": settings.fingerprint(),
            "settings": settings.model_settings(),
            "topic": settings.input.topic,
            "learner": lane.name,
        },
    )
    return model, 0 if known.replay is None else known.replay[1] - known.replay[0]


def _card(settings: Config, privacy: dict[str, Any]) -> dict[str, Any]:
    """Return the privacy card of a model: of the configuration, with what the model has spent."""
    from river import compose

    from streampair.privacy import NoiseKey
    from streampair.privacy.pipeline_check import class_name
    from streampair_connectors.observability.privacy_card import audit_summary, card_of
    from streampair_connectors.worker.factory import build_learner

    made = build_learner(settings, noise_key=NoiseKey(secrets.token_bytes(32)))
    learner = list(made.steps.values())[-1] if isinstance(made, compose.Pipeline) else made
    names = ("epsilon_spent", "epsilon_budget", "delta", "mu_spent", "mu_budget", "kind", "guarantee", "unit")
    numbers = {name: privacy[name] for name in names}
    report = learner.privacy.replace(**numbers)
    name = class_name(learner)
    card = card_of(
        report.replace(notes=(*report.notes, *settings.privacy_notes)),
        deployment={"application": settings.app, "topic": settings.input.topic, "learner": name},
        curator=settings.card,
    )
    if (audit := audit_summary(settings.metrics.audit_file, report, name)) is not None:
        card["audit"] = audit
    # What a model file does not know.
    del card["accounting"]["releases so far"], card["status"]["records that can still be learned"]
    return card


@model_app.command(
    "show",
    short_help="Show what is in a model file.",
    epilog="Example: streampair model show model.json",
)
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A model, JSON or ONNX.")],
    as_json: AsJson = False,
) -> None:
    """Show what is in a model file: learner, features, records learned, time, and the privacy card."""
    with errors(as_json):
        facts = _facts(file)
        if as_json:
            typer.echo(json.dumps(facts))
            return
        typer.echo(str(file))
        for label, value in _rows(facts):
            _echo(f"  {label:<{_LABEL}} {value}")
        if _CARD in facts["metadata"]:
            typer.echo("")
            for line in _card_lines(facts["metadata"][_CARD]):
                _echo(line)


def _echo(line: str) -> None:
    """Print a line with texts of a file, which may be anybody's: none of them moves the cursor."""
    typer.echo("".join(character if character.isprintable() else "?" for character in line))


def _read(file: Path) -> bytes:
    with _readable(file):
        return file.read_bytes()


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Say what else to do where a file cannot be read."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}", fix="give a model file: `streampair model export`"
        ) from None


def _facts(file: Path) -> dict[str, Any]:
    """Return what is in a file, without its numbers."""
    from streampair import models

    if file.suffix.lower() == ".onnx":
        from streampair.models.onnx_export import facts_of

        data = _read(file)
        try:
            return facts_of(data)
        except SnapshotError as error:
            raise SnapshotError(f"{file}: {error.problem}", fix=error.fix) from None
    with _readable(file):
        model = models.load(file)
    return {
        "class": model.class_name,
        "kind": model.kind,
        "steps": list(model.steps),
        "features": list(model.features),
        "classes": list(model.classes),
        "slots": model.slots,
        "time": model.time,
        "privacy": model.privacy,
        "metadata": model.metadata,
    }


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "learner", f"{facts['class']} ({facts['kind'].replace('_', ' ')})"
    if facts["steps"]:
        yield "steps", _listed(facts["steps"])
    yield "features", _listed(facts["features"])
    if facts["classes"]:
        yield "classes", _listed(facts["classes"])
    yield "records", str(facts["slots"])
    yield "time", time_text(facts["time"])
    for name in ("application", "topic"):
        if name in facts["metadata"]:
            yield name, str(facts["metadata"][name])
    privacy = facts["privacy"]
    if privacy is None:
        yield "privacy", "none: the weights are a function of raw data"
        return
    yield (
        "privacy",
        f"{privacy['kind']}: epsilon {privacy['epsilon_spent']:.4g} of {privacy['epsilon_budget']:.4g} spent "
        f"at delta {privacy['delta']:.3g}",
    )
    yield "protects", privacy["unit"]
    yield "guarantee", privacy["guarantee"]
    history = facts["metadata"].get("history")
    assumed = history.get("assumed") if isinstance(history, dict) else None
    for text in assumed if isinstance(assumed, list) else ():
        yield "assumed", str(text)


def _listed(names: list[Any]) -> str:
    more = len(names) - _MOST_ROWS
    return f"{len(names)}: {', '.join(map(str, names[:_MOST_ROWS]))}" + (
        f" and {more} more" if more > 0 else ""
    )


def _card_lines(card: Any) -> Iterator[str]:
    from streampair_connectors.observability.privacy_card import card_lines

    try:
        yield from card_lines(card)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise SnapshotError(
            "the privacy card in the file is damaged", fix="export the model again; --json shows it as it is"
        ) from None
