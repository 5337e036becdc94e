"""Every example in a docstring runs: of the two packages, and of `benchmarks.papers`."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest
import streampair_connectors

import benchmarks.papers
import streampair


def _modules() -> list[str]:
    found = [
        *pkgutil.walk_packages(streampair.__path__, "streampair."),
        *pkgutil.walk_packages(streampair_connectors.__path__, "streampair_connectors."),
        *pkgutil.walk_packages(benchmarks.papers.__path__, "benchmarks.papers."),
    ]
    return ["streampair", *(m.name for m in found if not m.name.endswith("__main__"))]


@pytest.mark.parametrize("name", _modules())
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0
