"""What the commands share: their arguments, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from streampair.errors import ConfigError, StreampairError

__all__ = ["AsJson", "ConfigPath", "errors", "run_until_signal", "settle"]

ConfigPath = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help="The configuration, a TOML file (see `streampair check --help`)."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


# Objects more than before, until Python's collector looks at the young ones. A batch of a thousand records
# is gone before it has come to that; at the usual 700, each batch was walked, and all that lives after every
# 35,000 events: two fifths of a worker's time.
_YOUNG = 20_000


def settle() -> None:
    """Set Python's collector for a long run: what is imported stays, and batches come and go."""
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)
    gc.enable()


@contextlib.contextmanager
def errors(as_json: bool) -> Iterator[None]:
    """Begin a command, whose imports are done; end it with a message and an exit code, no traceback."""
    settle()
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


def run_until_signal(work: Callable[[], Coroutine[Any, Any, None]], stop: Callable[[], None]) -> None:
    """Run `work`; the first SIGINT or SIGTERM asks it to stop, the second ends the process."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        stopping = False

        def on_signal(number: int) -> None:
            nonlocal stopping
            if stopping:
                os._exit(128 + number)
            stopping = True
            stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal, number)
        await work()

    asyncio.run(body())
