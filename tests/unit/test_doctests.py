"""Every example in a docstring of the package runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import streampair


def _modules() -> list[str]:
    found = pkgutil.walk_packages(streampair.__path__, "streampair.")
    return ["streampair", *(m.name for m in found if not m.name.endswith("__main__"))]


@pytest.mark.parametrize("name", _modules())
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    results = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.failed == 0
