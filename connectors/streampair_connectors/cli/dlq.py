"""`streampair dlq`: list the dead letters of an application, show them, send their events again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from streampair_connectors.cli.options import (
    AsJson,
    ConfigPath,
    Set,
    Yes,
    check_can_ask,
    confirmed,
    errors,
    time_text,
)
from streampair_connectors.config import Config, load_config
from streampair_connectors.observability import logs

if TYPE_CHECKING:
    from streampair_connectors.worker.dead_letters import Cause, StoredLetter

__all__ = ["dlq_app"]

dlq_app = typer.Typer(
    help="Dead letters: list causes, show events, send them again.",
    epilog="Example: streampair dlq list fraud.toml",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Causes = Annotated[
    list[str] | None,
    typer.Option("--cause", help="Only this cause, as `list` names it; can be repeated. Default: all."),
]


@dlq_app.command(
    "list",
    short_help="List the causes of dead letters, the most frequent first.",
    epilog="Example: streampair dlq list fraud.toml",
)
def list_(config: ConfigPath, overrides: Set = None, as_json: AsJson = False) -> None:
    """List the causes of dead letters, the most frequent first.

    Reads the dead-letter topic; changes nothing. Letters whose errors differ in values of their
    events only share a cause. Prints no event; an error can name a field, or a label that is unknown.
    """
    from streampair_connectors.worker.dead_letters import by_cause, read_dead_letters

    with errors(as_json):
        settings = load_config(config, overrides)
        logs.configure("error")
        found = asyncio.run(read_dead_letters(settings))
        causes = by_cause(found.letters)
        waiting = sum(cause.waiting for cause in causes)
        if as_json:
            listed = [msgspec.to_builtins(cause) for cause in causes]
            typer.echo(json.dumps({"topic": found.topic, "waiting": waiting, "causes": listed}))
            return
        sent = len(found.letters) - waiting
        typer.echo(f"{settings.app}: {waiting} dead letters in {found.topic}, {sent} more were sent again")
        for cause in causes:
            typer.echo()
            _echo(_cause_rows(cause))


@dlq_app.command(
    "show",
    short_help="Show dead letters with their errors, the newest first.",
    epilog="Example: streampair dlq show fraud.toml --cause 132a1a --values",
)
def show(
    config: ConfigPath,
    cause: Causes = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 10,
    values: Annotated[
        bool, typer.Option("--values", help="Print key and value of each event, which may be personal data.")
    ] = False,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Show dead letters with their errors, the newest first.

    Reads the dead-letter topic; changes nothing. Keys and values of events are printed with --values
    only: text as it is, other bytes as hexadecimal digits.
    """
    from streampair_connectors.worker.dead_letters import read_dead_letters

    with errors(as_json):
        settings = load_config(config, overrides)
        logs.configure("error")
        found = asyncio.run(read_dead_letters(settings)).letters
        chosen = [letter for letter in found if not cause or letter.cause in cause]
        chosen.sort(key=lambda letter: (letter.timestamp, letter.partition, letter.offset), reverse=True)
        newest = chosen[:limit]
        if as_json:
            typer.echo(json.dumps({"letters": [_letter_json(letter, values) for letter in newest]}))
            return
        for letter in newest:
            _echo(_letter_rows(letter, values))
            typer.echo()
        typer.echo(f"{len(newest)} of {len(chosen)} dead letters")


@dlq_app.command(
    "replay",
    short_help="Send the events of dead letters to the input topic again, each once.",
    epilog="Example: streampair dlq replay fraud.toml --cause 132a1a",
)
def replay(
    config: ConfigPath,
    cause: Causes = None,
    yes: Yes = False,
    overrides: Set = None,
    as_json: AsJson = False,
) -> None:
    """Send the events of dead letters to the input topic again, after their cause was mended: each once.

    Each event goes to the partition that it came from, with its key, headers and timestamp, in one
    transaction with a mark in the dead-letter topic: it is sent once, however often this is called and
    whatever dies meanwhile. One that fails again becomes a new dead letter. A worker may run.

    Refused for a private learner: each of these events has used its slot, and would use a second one.
    """
    from streampair_connectors.worker.dead_letters import (
        check_replayable,
        replay_dead_letters,
    )

    with errors(as_json):
        check_can_ask(yes=yes, as_json=as_json)
        settings = load_config(config, overrides)
        check_replayable(settings)
        logs.configure("error")
        if not yes:
            count = _show_causes(settings, cause)
            if not count or not confirmed(f"Send {count} events to {settings.input.topic} again?"):
                typer.echo("nothing was sent")
                raise typer.Exit(1 if count else 0)
        sent = asyncio.run(replay_dead_letters(settings, causes=cause or ()))
        if as_json:
            typer.echo(json.dumps({"replayed": len(sent), "topic": settings.input.topic}))
        else:
            typer.echo(f"{len(sent)} events sent to {settings.input.topic}" if sent else "nothing was sent")


def _show_causes(settings: Config, causes: list[str] | None) -> int:
    """Print the causes of what would be sent; how many events that is."""
    from streampair_connectors.worker.dead_letters import by_cause, read_dead_letters

    found = asyncio.run(read_dead_letters(settings)).letters
    chosen = [each for each in found if not each.replayed and (not causes or each.cause in causes)]
    for each in by_cause(chosen):
        _echo(_cause_rows(each))
    return len(chosen)


_LABEL = 9


def _echo(rows: Iterator[tuple[str, str]]) -> None:
    for label, value in rows:
        typer.echo(f"{label:<{_LABEL}} {value}")


def _cause_rows(cause: Cause) -> Iterator[tuple[str, str]]:
    problem, _, fix = cause.error.partition(". Fix: ")
    yield "cause", f"{cause.name}, stage {cause.stage}"
    failed = f", of which {cause.again} failed again" if cause.again else ""
    yield "letters", f"{cause.waiting}{failed}; {cause.replayed} more were sent again"
    yield "error", problem
    if fix:
        yield "fix", fix.removesuffix(".")
    if cause.last_ms:
        yield "events", f"{time_text(cause.first_ms)} to {time_text(cause.last_ms)}"
    yield "newest", cause.newest


def _letter_rows(letter: StoredLetter, values: bool) -> Iterator[tuple[str, str]]:
    problem, _, fix = letter.error.partition(". Fix: ")
    yield "event", f"{letter.topic}-{letter.source_partition}@{letter.source_offset}"
    if letter.timestamp > 0:
        yield "time", time_text(letter.timestamp)
    yield "cause", f"{letter.cause}, stage {letter.stage}"
    yield "error", problem
    if fix:
        yield "fix", fix.removesuffix(".")
    if letter.replayed:
        yield "replayed", "yes"
    if values:
        yield "key", _text(letter.key)
        yield "value", _text(letter.value)


def _letter_json(letter: StoredLetter, values: bool) -> dict[str, Any]:
    names = ("topic", "source_partition", "source_offset", "timestamp", "stage", "error", "cause", "replayed")
    more = {"key": _text(letter.key), "value": _text(letter.value)} if values else {}
    return {name: getattr(letter, name) for name in names} | more


def _text(data: bytes | None) -> str:
    """Text that a terminal can show: control characters escaped, other bytes as hexadecimal digits."""
    if data is None:
        return "none"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
