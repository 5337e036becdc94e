"""What the commands share: their arguments, and how they end."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from streampair.errors import ConfigError, StreampairError

__all__ = ["AsJson", "ConfigPath", "errors"]

ConfigPath = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help="The configuration, a TOML file (see `streampair check --help`)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@contextlib.contextmanager
def errors(as_json: bool) -> Iterator[None]:
    """Begin a command, whose imports are done; end it with a message and an exit code, no traceback."""
    gc.freeze()  # what is imported stays
    gc.enable()
    try:
        yield
    except StreampairError as error:
        code = 2 if isinstance(error, ConfigError) else 1
        if as_json:
            failure = {"error": error.problem, "fix": error.fix, "kind": type(error).__name__}
            typer.echo(json.dumps(failure))
        else:
            typer.echo(f"error: {error.problem}\n  fix: {error.fix}", err=True)
        raise typer.Exit(code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does. Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
