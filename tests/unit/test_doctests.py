"""Every example in a docstring runs: of the two packages, and of `benchmarks.papers`."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
from pathlib import Path

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
    return [name for name in ["streampair", *(module.name for module in found)] if _has_examples(name)]


def _has_examples(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return ">>> " in Path(spec.origin).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", _modules())
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert (results.failed, results.attempted > 0) == (0, True)
