"""A page for each public class, in api/MODULE/CLASS.md, made when the site is built.

What several classes inherit is on the page of their base alone; the page of each class has links to it. The
page of a module lists its classes, and has its functions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File
from parameters import SharedMethods

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = sorted(
    page.stem
    for page in ROOT.glob("docs/api/*.md")
    if f"::: streampair.{page.stem}\n" in page.read_text(encoding="utf-8")
)
"""The public modules: those whose page asks for their docstrings."""
BASES = "bases"
"""The folder of the pages of bases that are themselves in no public module."""


@functools.cache
def package() -> griffe.Module:
    """The package, as mkdocstrings reads it: its source, never run."""
    extensions = griffe.load_extensions(SharedMethods)
    found = griffe.load("streampair", search_paths=[str(ROOT)], extensions=extensions)
    assert isinstance(found, griffe.Module)
    return found


def _resolved(thing: Any) -> Any:
    return thing.final_target if thing.is_alias else thing


def public(module: str) -> dict[str, Any]:
    """What a public module lists in its `__all__`, by name, in its order."""
    found = package()[module]
    return {str(name): found.members[str(name)] for name in found.exports or ()}


def classes(module: str) -> dict[str, griffe.Class]:
    """The public classes of a module, by name."""
    return {name: _resolved(each) for name, each in public(module).items() if each.is_class}


def _bases(owner: griffe.Class) -> list[griffe.Class]:
    return [_resolved(base) for base in owner.mro() if base.path.startswith("streampair.")]


def _shown(owner: griffe.Class) -> dict[str, Any]:
    """The members of a class that its page shows: those that are public, and have a docstring."""
    return {
        name: member
        for name, member in sorted(owner.members.items())
        if not name.startswith("_") and not member.is_alias and member.has_docstring
    }


def inherited(owner: griffe.Class) -> dict[str, tuple[griffe.Class, list[str]]]:
    """Of each base, by its path, the members that a class has from it, as far as a page shows them."""
    seen = set(_shown(owner))
    found: dict[str, tuple[griffe.Class, list[str]]] = {}
    for base in _bases(owner):
        names = [name for name in _shown(base) if name not in seen]
        if names and not base.name.startswith("_"):
            found[base.path] = (base, names)
            seen.update(names)
    return found


def bases() -> dict[str, griffe.Class]:
    """The classes that have a page because public ones inherit from them, by name."""
    own = {each.path for module in MODULES for each in classes(module).values()}
    found = {
        base.name: base
        for module in MODULES
        for each in classes(module).values()
        for base, _ in inherited(each).values()
        if base.path not in own
    }
    return dict(sorted(found.items()))


def _summary(thing: Any) -> str:
    text = thing.docstring.value.partition("\n\n")[0] if thing.docstring else ""
    return " ".join(text.split()).replace("|", "\\|")


def _directive(path: str, level: int) -> str:
    options = f"show_root_heading: true, show_root_full_path: true, heading_level: {level}"
    return f"::: {path}\n    options: {{{options}}}\n"


def class_page(path: str, owner: griffe.Class) -> str:
    """The Markdown of the page of a class."""
    lines = [f"---\ntitle: {path.removeprefix('streampair.')}\n---\n", _directive(path, 1)]
    parts = inherited(owner)
    if parts:
        lines.append("## Inherited members\n")
        lines.append("| from | |\n|---|---|")
        for base, names in parts.values():
            links = ", ".join(f"[`{name}`][{base.path}.{name}]" for name in names)
            lines.append(f"| [`{base.name}`][{base.path}] | {links} |")
        lines.append("")
    return "\n".join(lines)


def generated() -> Iterator[tuple[str, str]]:
    """The pages of all classes: where each is in docs, and its Markdown."""
    for module in MODULES:
        for name, owner in classes(module).items():
            yield f"api/{module}/{name}.md", class_page(f"streampair.{module}.{name}", owner)
    for name, owner in bases().items():
        yield f"api/{BASES}/{name}.md", class_page(owner.path, owner)


def module_page(module: str) -> str:
    """The Markdown of a public module: its docstring, a table of its classes, and its functions."""
    lines = [f"::: streampair.{module}\n    options: {{members: false}}\n"]
    found = classes(module)
    if found:
        lines.append("| class | |\n|---|---|")
        lines += [f"| [`{name}`]({module}/{name}.md) | {_summary(each)} |" for name, each in found.items()]
        lines.append("")
    for name, each in public(module).items():
        if name not in found and _resolved(each).has_docstring:
            lines.append(_directive(f"streampair.{module}.{name}", 2))
    return "\n".join(lines)


def _with_classes(entry: Any) -> Any:
    """An entry of the navigation; that of a public module also has the pages of its classes."""
    if not isinstance(entry, dict):
        return entry
    name, inner = next(iter(entry.items()))
    if isinstance(inner, list):
        return {name: [_with_classes(each) for each in inner]}
    if inner == "api/index.md":
        return entry
    module = re.fullmatch(r"api/(\w+)\.md", inner)
    if module is None or module[1] not in MODULES or not classes(module[1]):
        return entry
    pages = [{each: f"api/{module[1]}/{each}.md"} for each in classes(module[1])]
    return {name: [{"Overview": inner}, *pages]}


def on_config(config: Any, **_: Any) -> Any:
    """What mkdocs calls with the configuration: the navigation lists the pages of the classes."""
    package.cache_clear()  # mkdocs serve builds again after a change
    config.nav = [_with_classes(entry) for entry in config.nav]
    return config


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """What mkdocs calls with the files of the site."""
    for page, text in generated():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(text: str, *, page: Any, **_: Any) -> str:
    """What mkdocs calls with the Markdown of each page."""
    name = page.file.src_uri.removeprefix("api/").removesuffix(".md")
    place = f"::: streampair.{name}\n"
    return text.replace(place, module_page(name)) if name in MODULES else text
