"""Arguments and error handling that all commands share."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from streampair.errors import ConfigError, SourceError, StreampairError
from streampair_connectors.config import Config, load_config

__all__ = [
    "AsJson",
    "Commands",
    "ConfigPath",
    "LogFormat",
    "LogLevel",
    "Set",
    "Yes",
    "check_can_ask",
    "confirmed",
    "errors",
    "load_optional",
    "run_until_signal",
    "settle",
    "time_of",
    "time_text",
]

ConfigPath = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help="Configuration file, TOML (see `streampair check --help`)."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key in place of the file, such as kafka.bootstrap_servers=localhost:9092; repeatable. "
        "STREAMPAIR_KAFKA__BOOTSTRAP_SERVERS does it in the environment.",
    ),
]
HistoryAccount = Annotated[
    Path | None,
    typer.Option(
        "--account",
        metavar="FILE",
        help="Account of the table of learner.start. Default: APP-history.account.json.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"], typer.Option(help="Lowest level that is logged.")
]
LogFormat = Annotated[
    Literal["text", "json"] | None,
    typer.Option(
        help="Format of the log: text, or json, one object a line. Default: text on a terminal, else json."
    ),
]


# Threshold of Python's garbage collector for the youngest generation: a batch of a thousand records is freed
# before it is reached. At the default, 700, collections take two fifths of a worker's time.
_YOUNG = 20_000


def settle() -> None:
    """Tune the garbage collector for a long run: freeze imported objects, raise the threshold."""
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)
    gc.enable()


def check_can_ask(*, yes: bool, as_json: bool) -> None:
    """Refuse a command that changes a state where nobody can confirm it.

    Raises
    ------
    ConfigError
        `--yes` is not given, and there is no terminal.
    """
    if not yes and (as_json or not sys.stdin.isatty()):
        raise ConfigError(
            "no terminal to ask for confirmation",
            fix="call it in a terminal and without --json, or add --yes",
        )


def confirmed(question: str) -> bool:
    """Ask a question on the terminal, outside of an event loop: in one, Ctrl-C would wait for the answer.

    Ctrl-D means no.

    Raises
    ------
    KeyboardInterrupt
        The answer is Ctrl-C.
    """
    try:
        return typer.confirm(question)
    except typer.Abort as abort:  # of either key
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        typer.echo()
        return False


def load_optional(config: Path | None, overrides: list[str] | None) -> Config | None:
    """Load the configuration of a command that can do without one.

    Raises
    ------
    ConfigError
        It is none, or `--set` is given without one.
    """
    if config is not None:
        return load_config(config, overrides)
    if overrides:
        raise ConfigError(
            f"--set {overrides[0].partition('=')[0]} without a configuration",
            fix="give the configuration in which it sets a key",
        )
    return None


_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def time_of(text: str) -> int | None:
    """Return the time that a text in ISO 8601 is, in milliseconds since the epoch; without an offset in UTC.

    None: it is no time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def time_text(milliseconds: int | None) -> str:
    """Return a time since the epoch, for people."""
    if milliseconds is None:
        return "not known"
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms since the epoch"


# Of the click that Typer has, its own or the package, by version.
_UsageError: Any = typer.BadParameter.__mro__[1]


class Commands(TyperGroup):
    """The commands, whose wrong calls are errors as all others are, with --json in JSON."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """As of Click: parse the options in front of a command."""
        as_json = "--json" in args
        with _usage_errors(as_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[__name__] = as_json
        return context

    def invoke(self, ctx: Any) -> Any:
        """As of Click: parse the words of a command, and run it."""
        with _usage_errors(ctx.meta[__name__]):
            return super().invoke(ctx)


@contextlib.contextmanager
def _usage_errors(as_json: bool) -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        if not as_json:
            raise
        command = "streampair" if error.ctx is None else error.ctx.command_path
        failure = ConfigError(error.format_message(), fix=f"{command} --help lists arguments and options")
        raise _failed(failure, as_json) from None


@contextlib.contextmanager
def errors(as_json: bool) -> Iterator[None]:
    """Run a command after its imports: an error becomes a message and an exit code, not a traceback."""
    settle()
    try:
        yield
    except StreampairError as error:
        raise _failed(error, as_json) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # The reader of the output has closed it, as `head` does.
        _drop_output()
        raise typer.Exit(0) from None
    except OSError as error:  # what nobody has foreseen, such as a full disk under standard output
        place = "" if error.filename is None else f"{error.filename}: "
        failure = SourceError(
            f"{place}{error.strerror or error}",
            fix="correct the path or its permissions, or make room on its disk",
            retriable=False,
        )
        raise _failed(failure, as_json) from None


def _failed(error: StreampairError, as_json: bool) -> typer.Exit:
    """Print an error, and return the exit that ends the command."""
    try:
        sys.stdout.flush()
    except OSError:  # standard output is what cannot be written
        _drop_output()
        as_json = False
    if as_json:
        failure = {"error": error.problem, "fix": error.fix, "kind": type(error).__name__}
        typer.echo(json.dumps(failure))
    else:
        typer.echo(f"error: {error.problem}\n  fix: {error.fix}", err=True)
    return typer.Exit(2 if isinstance(error, ConfigError) else 1)


def _drop_output() -> None:
    """Write what is left of standard output nowhere: Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
