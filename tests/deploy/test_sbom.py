"""What is refused in a bill of materials."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from harness import support

SPEC = importlib.util.spec_from_file_location("sbom", support.ROOT / "deploy" / "sbom.py")
assert SPEC is not None
assert SPEC.loader is not None
sbom = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(sbom)

LICENCE = [{"license": {"id": "MIT"}}]


@pytest.mark.parametrize(
    ("component", "problem"),
    [
        ({"name": "Zope.Event", "version": "6.2", "licenses": LICENCE}, None),
        ({"name": "pip", "version": "1"}, None),
        ({"name": "zope-event", "version": "6.3", "licenses": LICENCE}, "constraints.txt has 6.2"),
        ({"name": "left-pad", "version": "1", "licenses": LICENCE}, "constraints.txt has no pin"),
        ({"name": "zope_event", "version": "6.2", "licenses": []}, "no licence"),
    ],
)
def test_a_package_is_pinned_and_has_a_licence(component: dict[str, Any], problem: str | None) -> None:
    found = sbom.problems({"components": [component]}, "# pins\nzope.event==6.2\n")
    assert (not found) if problem is None else (problem in found[0])
