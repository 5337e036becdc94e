"""The reference of the command line, made from the commands themselves when the site is built."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import typer
from streampair_connectors.cli.app import app

PLACE = "<!-- commands -->"


def commands(command: Any, path: str = "streampair") -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words that call it."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in sorted(inner.items()):
        yield from commands(each, f"{path} {name}")


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _default(option: Any) -> str:
    if option.required:
        return "required"
    value = option.default
    return "" if value is None or callable(value) or getattr(option, "is_flag", False) else f"`{value}`"


def _text(help: str) -> str:
    """The text of a command; what stands below a \\b is shown as it is written."""
    paragraphs = help.strip().split("\n\n")
    return "\n\n".join(
        f"```toml\n{textwrap.dedent(lines)}\n```" if mark == "\b" else part
        for part in paragraphs
        for mark, _, lines in [part.partition("\n")]
    )


def section(path: str, command: Any) -> str:
    """One command as Markdown: what it does, its arguments and options, and its example."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    words = [
        (p.metavar or p.name.upper()) if p.required else f"[{p.metavar or p.name.upper()}]" for p in arguments
    ]
    lines = [f"## {path}", "", f"`{' '.join([path, *words, *(['[OPTIONS]'] if options else [])])}`", ""]
    lines += [_text(command.help or ""), ""]
    rows = [(f"`{p.metavar or p.name.upper()}`", p.help, _default(p)) for p in arguments]
    rows += [(", ".join(f"`{name}`" for name in p.opts), p.help, _default(p)) for p in options]
    if rows:
        lines += ["| | | default |", "|---|---|---|"]
        lines += [f"| {name} | {_cell(text)} | {default} |" for name, text, default in rows]
        lines.append("")
    if command.epilog:
        lines += ["```console", f"$ {command.epilog.removeprefix('Example: ')}", "```", ""]
    return "\n".join(lines)


def reference() -> str:
    """The whole command line as Markdown."""
    return "\n".join(section(path, command) for path, command in commands(typer.main.get_command(app)))


def on_page_markdown(text: str, **_: Any) -> str:
    """What mkdocs calls with the Markdown of each page."""
    return text.replace(PLACE, reference()) if PLACE in text else text
