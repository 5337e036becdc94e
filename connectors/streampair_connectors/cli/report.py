"""`streampair report`: a run as one HTML file."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from streampair.errors import SourceError
from streampair_connectors.cli.options import AsJson, errors
from streampair_connectors.config import load_config
from streampair_connectors.observability import logs

__all__ = ["add_report", "report"]


def add_report(app: typer.Typer) -> None:
    """Add the command to the others."""
    app.command(
        short_help="Write a run as one HTML file.",
        epilog="Example: streampair report run.json --output run.html",
    )(report)


def report(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="What `replay --record` wrote; or a configuration, whose state is shown."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write. Without it: RUN with .html.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as one HTML file: the page of `run`, to be opened from a disk, sent or kept.

    RUN is what `streampair replay CONFIG FILE --record RUN` wrote, with the whole past of the run; or a
    configuration (.toml), of whose lanes the store holds privacy accounts, offsets and sizes. The file needs
    no server, loads nothing, and has no value of any record.
    """
    from streampair_connectors.observability.dashboard.report import read_run, report_html, stored_run

    with errors(as_json):
        if run.suffix == ".toml":
            settings = load_config(run)
            logs.configure("error")
            frame = asyncio.run(stored_run(settings))
        else:
            frame = read_run(run)
        path = run.with_suffix(".html") if output is None else output
        try:
            path.write_bytes(report_html(frame))
        except OSError as error:
            raise SourceError(
                f"{path} cannot be written: {error.strerror}", fix="choose another path", retriable=False
            ) from None
        if as_json:
            typer.echo(json.dumps({"report": str(path), "lanes": len(frame["lanes"])}))
        else:
            typer.echo(str(path))
