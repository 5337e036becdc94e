"""The command `init`: a configuration from a sample of events."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from streampair.errors import ConfigError
from streampair_connectors.cli.options import AsJson, confirmed, errors
from streampair_connectors.config.overrides import Override, from_command_line

__all__ = ["init"]


def init(
    config: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="The file to write; its name is that of the application."),
    ],
    topic: Annotated[str | None, typer.Option(help="Topic of the events, as input.topic.")] = None,
    kafka: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="As kafka.bootstrap_servers. Default: localhost:9092."),
    ] = None,
    registry: Annotated[
        str | None, typer.Option(metavar="URL", help="Schema registry of Avro, as schema_registry.url.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Take the sample from CSV with a header, or JSON lines; also .gz."),
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Field of the label. Default: the one that is found.")
    ] = None,
    id_field: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="FIELD", help="Field of the id; - for none. Default: one that is found."
        ),
    ] = None,
    private: Annotated[
        float | None,
        typer.Option(metavar="EPSILON", help="Learn under differential privacy, with this budget."),
    ] = None,
    messages: Annotated[
        int,
        typer.Option(
            min=1, max=100_000, help="Events in the sample: the newest of a topic, or drawn from a file."
        ),
    ] = 1000,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A key to write, such as learner.class=streampair.auc.Forest; repeatable.",
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask: take what is found, and replace CONFIG if it exists."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a configuration from a sample of a topic or of a file.

    Finds the format, the fields with their types, the label, the id and the time, and writes at most 20 lines
    with comments. What the sample cannot decide is in a comment. Reads the newest messages of a topic, or
    events drawn from all of a file, and changes nothing but CONFIG. On a terminal it asks for the privacy and
    the label, if no option has them; elsewhere it takes what it finds. Exit code 2 if it finds no label, or
    CONFIG exists.

    The learner is auc.PairOGD, or auc.PairFTRL with --private. The bounds of a private learner are those of
    the sample, rounded: confirm that they are public, or replace them.
    """
    from streampair_connectors.cli.draft import Draft
    from streampair_connectors.observability import logs
    from streampair_connectors.output_files import check_outputs, write_file

    with errors(as_json):
        logs.configure("error")
        ask = not (yes or as_json) and sys.stdin.isatty()
        _check_target(config, ask=ask, yes=yes)
        check_outputs({"CONFIG": config}, {"--file": file})
        if file is not None and topic is not None:
            raise ConfigError("--file and --topic are both given", fix="take the sample from one of them")
        options = {
            ("--topic", "input", "topic"): topic,
            ("--kafka", "kafka", "bootstrap_servers"): kafka,
            ("--registry", "schema_registry", "url"): registry,
            ("--label", "input", "label"): label,
            ("--id", "input", "id"): id_field,
        }
        declared = [Override(place, tuple(keys), v) for (place, *keys), v in options.items() if v is not None]
        if ask and private is None:
            private = typer.prompt("Epsilon of differential privacy; 0 for none", default=0.0) or None
        draft = Draft(config, [*declared, *from_command_line(overrides or ())], private)
        sample = draft.sample(file, messages)
        draft.draft(sample, ask=ask)
        write_file(config, draft.text(sample).encode())
        count, unread = len(sample.records), len(sample.records) - len(sample.rows)
        if as_json:
            found = {"events": count, "readable": count - unread, "notes": draft.notes}
            typer.echo(json.dumps({"config": str(config), **found, "tables": draft.tables}))
            return
        typer.echo(f"{config}: from {sample.events}")
        if unread and sample.problem:
            typer.echo(f"  not readable: {unread:,}, the first because: {sample.problem}")
            typer.echo(f"    fix: {sample.fix}")
        for key, notes in draft.notes.items():
            for note in notes:
                typer.echo(f"  {key}: {note}")
        if sample.is_file:
            typer.echo(f"next: streampair replay {config} {file} --output scores.jsonl")
        else:
            typer.echo(f"next: streampair check {config} --create-topics; streampair run {config}")


def _check_target(config: Path, *, ask: bool, yes: bool) -> None:
    """Refuse a file that is no configuration, and to replace one without being allowed to."""
    if config.suffix != ".toml":
        raise ConfigError(
            f"{config} is the file to write: CONFIG must end in .toml",
            fix="name the events by --file or --topic: streampair init fraud.toml --file events.jsonl",
        )
    if yes or not config.exists():
        return
    if not ask:
        raise ConfigError(f"{config} exists", fix="name another file, or add --yes to replace it")
    if not confirmed(f"{config} exists. Replace it?"):
        raise typer.Exit(1)
