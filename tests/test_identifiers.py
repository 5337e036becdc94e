"""Names in the code: none that says nothing of what a value is, and no class name for two things."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.support import ROOT

BANNED = {
    *("told", "shown", "beside", "held", "own", "asked", "given", "door", "twin", "woods", "noted"),
    *("away", "emitted", "how", "leader"),
    "at",  # of NumPy's ufuncs it is a method; in kernels it is an index
}
# The one reason for two classes of a name: the same learner for classes, relevances and distances.
FACES = {
    **dict.fromkeys(("OnPairC", "OnPairStrC", "PairFTRL", "PairOGD"), 3),
    **dict.fromkeys(("Forest", "PairMoments"), 2),
}
FOLDERS = ("streampair", "connectors", "benchmarks", "tests")
FILES = sorted(f for folder in FOLDERS for f in (ROOT / folder).rglob("*.py"))


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


def test_names_say_what_a_value_is() -> None:
    """Of more than 600 files, which takes ten seconds."""
    found: list[str] = []
    for path in FILES:
        kernel = path.is_relative_to(ROOT / "streampair/kernels")
        names = banned(path.read_text(), frozenset({"at"} if kernel else ()))
        found += [f"{path.relative_to(ROOT)}:{name}" for name in names]
    assert found == []


def test_a_banned_name_is_found() -> None:
    source = "def told(given):\n    self._held = own = given\n    class Twin: ...\n    for at in x: y.at(1)\n"
    assert banned(source) == ["1: given", "1: told", "2: _held", "2: own", "3: Twin", "4: at"]
    assert banned("at = 1", frozenset({"at"})) == []


def repeated(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Class names that modules define more than once, with the modules, by path."""
    found: dict[str, list[str]] = {}
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def package_sources() -> dict[str, str]:
    files = (f for part in ("streampair", "connectors") for f in sorted((ROOT / part).rglob("*.py")))
    return {str(f.relative_to(ROOT)): f.read_text() for f in files}


def test_a_class_name_means_one_thing() -> None:
    """A new pair needs another name; the list of those that are meant may only shrink."""
    found = repeated(package_sources())
    assert {name: paths for name, paths in found.items() if name not in FACES} == {}
    assert {name: len(paths) for name, paths in found.items()} == FACES
    for name, paths in found.items():
        parts = {"auc" if "/auc/" in path else Path(path).stem for path in paths}
        assert parts <= {"auc", "ranking", "metric"}, (name, paths)


def test_a_repeated_class_name_is_found() -> None:
    sources = package_sources()
    path = "streampair/engine/records.py"
    mutant = sources[path].replace("class EventRows(", "class SyntheticRows(")
    assert mutant != sources[path]
    found = repeated(sources | {path: mutant})
    assert found.keys() - FACES == {"SyntheticRows"}
    assert found["SyntheticRows"] == [path, "streampair/privacy/mechanisms/synthetic_sample.py"]
    assert repeated({"a.py": "class A: ...\ndef f():\n    class B:\n        class A: ...\n"}) == {
        "A": ["a.py", "a.py"]
    }
