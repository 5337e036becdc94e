"""The page of other libraries has the figures of the results, losses as well as wins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from harness import support

FOLDER = support.ROOT / "benchmarks"


@pytest.fixture(scope="module")
def rivals() -> Any:
    """`benchmarks/rivals.py`, a program whose neighbours are modules, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import rivals as module

        yield module
    for name in ("rivals", "_sets", "_streams"):
        sys.modules.pop(name, None)


def test_the_page_is_that_of_the_results(rivals: ModuleType) -> None:
    text = rivals.PAGE.read_text(encoding="utf-8")
    block = text.partition(rivals.BEGIN)[2].partition(rivals.END)[0].strip()
    assert block == "\n".join(rivals.page()).strip(), "run: python benchmarks/rivals.py --page"


def test_each_rival_has_a_program_and_pinned_packages(rivals: ModuleType) -> None:
    for rival in rivals.RIVALS:
        program = FOLDER / f"_rival_{rival.program}.py"
        assert f'"{rival.learner}"' in program.read_text(encoding="utf-8"), rival
        if rival.program != "streampair":
            assert all("==" in package for package in rivals.ENVIRONMENTS[rival.program])


def test_losses_and_failures_are_on_the_page(
    rivals: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"seed": 1, "ap": 0.5, "log_loss": 0.6, "us": 3.0, "n": 9}
    rows = [
        {**figures, "rival": "streampair: Forest", "stream": "letter", "auc": 0.9},
        {**figures, "rival": "streampair: Forest", "stream": "bank", "auc": 0.8},
        {**figures, "rival": "capymoa: ARF", "stream": "letter", "auc": 0.95},
        {"rival": "capymoa: ARF", "stream": "bank", "seed": 1, "failed": "no Java"},
    ]
    results = tmp_path / "rivals.jsonl"
    results.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.setattr(rivals, "RESULTS", results)
    lines = list(rivals.page())
    assert "| letter | 0.900 | **0.950** |" in lines
    assert "| bank | **0.800** | failed |" in lines
    assert "`Forest` is behind the best learner on 1 of 2 streams: letter by 0.050 (capymoa: ARF)." in lines
    assert "- capymoa: ARF on bank: `no Java`" in lines
    assert "| capymoa: ARF | 3.0 | 1 | 0.950 | 0.500 | 0.600 | -0.050 | 0 of 1 |" in lines
