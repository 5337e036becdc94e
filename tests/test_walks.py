"""How far a value travels through the code: the walks of `benchmarks/walks.py` may only become shorter."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from operator import gt

import pytest
from harness import support

BENCHMARKS = support.ROOT / "benchmarks"
#: Files of each walk, and returns to one that was left. Lower a figure when its walk has become shorter.
MOST = {
    "construct": (12, 34),
    "gradients": (14, 36),
    "deferred": (14, 58),
    "batch": (21, 51),  # decoding, origins, outcomes and bounds have files of their own
    "commit": (18, 42),
    "snapshot": (28, 116),  # how a step is saved is asked of the table of steps; drift has files of its own
    "config": (15, 38),  # durations have one
}


def longer(measured: dict[str, tuple[int, int]], most: dict[str, tuple[int, int]]) -> list[str]:
    """Walks that are longer than they may be."""
    return [walk for walk, figures in measured.items() if any(map(gt, figures, most[walk]))]


def test_no_walk_has_become_longer() -> None:
    # Without the compiler every kernel is a Python function that calls others.
    compiled = {name: value for name, value in os.environ.items() if name != "NUMBA_DISABLE_JIT"}
    command = [sys.executable, str(BENCHMARKS / "walks.py"), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=compiled)
    measured = {row["walk"]: (row["files"], row["returns"]) for row in json.loads(result.stdout)["rows"]}
    assert measured.keys() == MOST.keys()
    assert longer(measured, MOST) == []
    # It must be able to fail.
    files, returns = measured["batch"]
    stricter = {**MOST, "batch": (files - 1, returns), "config": (files, 0)}
    assert longer(measured, stricter) == ["batch", "config"]


def test_a_return_is_a_call_in_a_file_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    walks = importlib.import_module("walks")
    assert walks.Walk(["a", "a", "b", "a", "c", "c", "b"]).row() == {"files": 3, "returns": 2, "calls": 7}
    assert walks.Walk([]).row() == {"files": 0, "returns": 0, "calls": 0}
