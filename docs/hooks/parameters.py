"""Parameters that share a line of a docstring, as ``epsilon, delta``, each with its own type and default.

griffe gives all of them those of the first, and knows none of the fields that a dataclass inherits.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import griffe


def signature(thing: griffe.Class | griffe.Function) -> dict[str, inspect.Parameter]:
    """The parameters of the class or function itself, by name."""
    found: Any = importlib.import_module(thing.module.path)
    for name in thing.path.removeprefix(f"{thing.module.path}.").split("."):
        found = getattr(found, name)
    return dict(inspect.signature(found).parameters)


def correct(thing: griffe.Class | griffe.Function) -> None:
    """Give each parameter in the docstring of a class or function what the signature says of it."""
    if thing.docstring is None:
        return
    for section in thing.docstring.parsed:
        if section.kind is griffe.DocstringSectionKind.parameters:
            known = signature(thing)
            for parameter in section.value:
                with suppress(KeyError):
                    own = known[parameter.name]
                    parameter.annotation = str(own.annotation)
                    parameter.value = None if own.default is own.empty else repr(own.default)


def method(owner: griffe.Class, name: str, shared: griffe.Function) -> griffe.Function:
    """A function of a module as a method of a class."""
    out = copy.copy(shared)
    out.name, out.parent = name, owner
    return out


def classes_in(thing: griffe.Object) -> Iterator[griffe.Class]:
    """Every class of a package or a class, those inside others too."""
    for member in thing.members.values():
        if not member.is_alias and isinstance(member, griffe.Module | griffe.Class):
            if isinstance(member, griffe.Class):
                yield member
            yield from classes_in(member)


class SharedMethods(griffe.Extension):
    """Makes a function of the module that several classes have as a method a method of each."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """What griffe calls with a loaded package."""
        for owner in classes_in(pkg):
            for name, member in owner.members.items():
                if isinstance(member, griffe.Attribute):
                    shared = owner.module.members.get(str(member.value))
                    if isinstance(shared, griffe.Function):
                        owner.members[name] = method(owner, name, shared)


class Parameters(griffe.Extension):
    """Corrects every class and function of a package once all of it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """What griffe calls with a loaded package."""
        self._walk(pkg)

    def _walk(self, thing: griffe.Object) -> None:
        for member in thing.members.values():
            if member.is_alias:
                continue
            if isinstance(member, griffe.Class | griffe.Function):
                correct(member)
            if isinstance(member, griffe.Module | griffe.Class):
                self._walk(member)
