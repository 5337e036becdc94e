"""The size of the project: lines, keys of configuration, parameters, tests, import circles, words.

    python benchmarks/count.py                # a table
    python benchmarks/count.py --json         # for machines
    python benchmarks/count.py --tree DIR     # of another checkout, whose packages run in this environment

Counts, not times: the same on every machine. What each row counts:

`lines`, `lines of code`
    of the Python files of `streampair` and `streampair_connectors`. A line of code holds a token that is
    neither a comment nor part of a docstring; each line of a text that is no docstring is one;
`keys of configuration`
    keys that take a value, in every table of `streampair_connectors.config.Config`. A key that takes a value
    or a table counts by the keys of that table;
`parameters of Lane.__init__`
    as written, ``self`` among them;
`test cases`, `lines of tests`
    the cases that pytest collects without `--everything`, and the lines of the Python files of `tests`;
`import circles`
    groups of modules that import one another, imports for types among them. The rules of
    `tests/test_imports.py` leave those out, for they do not run;
`words of CONTRIBUTING.md`
    of the file;
`words of the longest page of the reference`
    of the pages of `docs/api` as a reader sees them on the site, which is built for it into a temporary
    folder, without what surrounds a page.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from argparse import Namespace
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path

import _timing

ROOT = Path(__file__).parents[1]
PACKAGES = ("streampair", "connectors/streampair_connectors")
#: Tokens that make no line a line of code.
SPACE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}
# Run by itself: of another checkout its own modules are read.
KEYS = """
import json, typing
from pydantic import BaseModel
from streampair_connectors.config import Config

def tables(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [table for part in typing.get_args(annotation) for table in tables(part)]

def keys(table, path=""):
    for name, field in table.model_fields.items():
        key, inner = path + (field.alias or name), tables(field.annotation)
        yield from [k for each in inner for k in keys(each, key + ".")] if inner else [key]

print(json.dumps(list(keys(Config))))
"""


def python_files(tree: Path, *folders: str) -> list[Path]:
    """The Python files below these folders."""
    return sorted(file for folder in folders for file in (tree / folder).rglob("*.py"))


def lines(files: Iterable[Path]) -> int:
    """How many lines the files have."""
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


def docstrings(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where each docstring begins and ends: lines, and columns in bytes."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                end = (first.end_lineno or first.lineno, first.end_col_offset or first.col_offset)
                found.append(((first.lineno, first.col_offset), end))
    return found


def lines_of_code(source: str) -> int:
    """How many lines hold a token that is neither a comment nor part of a docstring."""
    found: set[int] = set()
    texts = docstrings(source)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        in_text = token.type == tokenize.STRING and any(a <= token.start < b for a, b in texts)
        if token.type not in SPACE and not in_text:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found)


def parameters(source: str, owner: str) -> int:
    """How many parameters the ``__init__`` of a class has, ``self`` among them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    names = method.args
                    return len(names.posonlyargs) + len(names.args) + len(names.kwonlyargs)
    raise LookupError(f"no class {owner} with an __init__")


def name_of(path: str) -> str:
    """The name of a module, by its path from where its package lies."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def modules(tree: Path) -> dict[str, str]:
    """The source of every module, by its path from where its package lies."""
    return {
        file.relative_to((tree / package).parent).as_posix(): file.read_text(encoding="utf-8")
        for package in PACKAGES
        for file in python_files(tree, package)
    }


def imports(path: str, source: str, known: set[str]) -> set[str]:
    """The modules that a module imports, wherever in it, for types too."""
    parts, found = path.removesuffix(".py").split("/")[:-1], set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level + 1] if node.level else []
            package = ".".join([*base, *([node.module] if node.module else [])])
            each = {f"{package}.{alias.name}" for alias in node.names}
            found.update(each & known)
            if not each <= known:
                found.add(package)
    return found & known - {name_of(path)}


def circles(sources: dict[str, str]) -> list[list[str]]:
    """Each largest group of modules in which every module imports, by way of others, every other."""
    known = {name_of(path) for path in sources}
    graph = {name_of(path): imports(path, source, known) for path, source in sources.items()}

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = list(graph[start])
        while left:
            module = left.pop()
            if module not in seen:
                seen.add(module)
                left.extend(graph[module])
        return seen

    reach = {module: reached(module) for module in graph}
    groups = {frozenset(other for other in reach[module] if module in reach[other]) for module in graph}
    return sorted(sorted(group) for group in groups if group)


class Words(HTMLParser):
    """The words of the article of a page."""

    def __init__(self) -> None:
        super().__init__()
        self._inside = 0
        self.count = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._inside += tag == "article"

    def handle_endtag(self, tag: str) -> None:
        self._inside -= tag == "article"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.count += len(data.split())


def words(page: str) -> int:
    """How many words the article of a page has."""
    parser = Words()
    parser.feed(page)
    return parser.count


def output_of(tree: Path, *command: str) -> str:
    """What a command prints that runs in a checkout, with its packages before those of the environment."""
    path = os.pathsep.join(str(tree / folder) for folder in (".", "connectors"))
    environment = {**os.environ, "PYTHONPATH": path, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True
    )
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def keys(tree: Path) -> list[str]:
    """The keys of configuration that take a value, with the tables that they are in."""
    found: list[str] = json.loads(output_of(tree, "-c", KEYS))
    return found


def cases(tree: Path) -> int:
    """How many cases pytest collects."""
    printed = output_of(tree, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider")
    return sum(int(number) for number in re.findall(r"^\S+: (\d+)$", printed, re.M))


def longest_page(tree: Path) -> tuple[int, str]:
    """The words and the name of the longest page of the reference."""
    with tempfile.TemporaryDirectory() as site:
        output_of(tree, "-m", "mkdocs", "--quiet", "build", "--site-dir", site)
        api = Path(site) / "api"
        pages = {page.relative_to(api).with_suffix("").as_posix(): page for page in api.rglob("*.html")}
        return max((words(page.read_text(encoding="utf-8")), name) for name, page in pages.items())


def measure(options: Namespace) -> Iterator[_timing.Row]:
    """Count, the quickest first."""
    tree = Path(options.tree).resolve()
    files = python_files(tree, *PACKAGES)

    def row(what: str, count: int, *notes: str) -> _timing.Row:
        return {"what": what, "count": count, "notes": notes}

    yield row("lines", lines(files))
    yield row("lines of code", sum(lines_of_code(file.read_text(encoding="utf-8")) for file in files))
    yield row("keys of configuration", len(keys(tree)))
    yield row(
        "parameters of Lane.__init__", parameters((tree / "streampair/engine/lane.py").read_text(), "Lane")
    )
    found = circles(modules(tree))
    yield row("import circles", len(found), *(", ".join(circle) for circle in found))
    yield row("lines of tests", lines(python_files(tree, "tests")))
    yield row("words of CONTRIBUTING.md", len((tree / "CONTRIBUTING.md").read_text().split()))
    yield row("test cases", cases(tree))
    count, name = longest_page(tree)
    yield row("words of the longest page of the reference", count, name)


def page(rows: Iterable[_timing.Row], options: Namespace) -> Iterator[str]:
    """The table, with what is behind a figure below it."""
    for row in rows:
        yield f"{row['what']:<44}{row['count']:>8,}"
        yield from (f"    {line}" for line in row["notes"])


if __name__ == "__main__":
    tree = {"metavar": "DIR", "default": str(ROOT), "help": "the checkout to count (default: this one)"}
    sys.exit(_timing.main(__doc__, measure, page, {"--tree": tree}, strict=True))
