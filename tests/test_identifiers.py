"""Identifiers that say nothing of what a value is may not come back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.support import ROOT

BANNED = {
    *("told", "shown", "beside", "held", "own", "asked", "given", "door", "twin", "woods", "noted"),
    *("away", "emitted", "how", "leader"),
    "at",  # of NumPy's ufuncs it is a method; in kernels it is an index
}
FILES = sorted(
    f for part in ("streampair", "connectors", "benchmarks/papers") for f in (ROOT / part).rglob("*.py")
)


def defined(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that a module defines, with their lines: variables, arguments, attributes, functions, classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def banned(source: str, allowed: frozenset[str] = frozenset()) -> list[str]:
    """Lines of a module that define a name of the list, with or without underscores around it."""
    names = BANNED - allowed
    found = [(line, name) for name, line in defined(ast.parse(source)) if name.strip("_").lower() in names]
    return [f"{line}: {name}" for line, name in sorted(found)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_say_what_a_value_is(path: Path) -> None:
    allowed = frozenset({"at"}) if "kernels" in path.parts else frozenset[str]()
    assert not banned(path.read_text(), allowed)


def test_a_banned_name_is_found() -> None:
    source = "def told(given):\n    self._held = own = given\n    class Twin: ...\n    for at in x: y.at(1)\n"
    assert banned(source) == ["1: given", "1: told", "2: _held", "2: own", "3: Twin", "4: at"]
    assert banned("at = 1", frozenset({"at"})) == []
