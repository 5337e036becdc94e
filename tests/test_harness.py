"""The harness itself: where everything is required a skip is a failure; elsewhere it says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import support

TESTS = """
import pytest
from harness import support

def test_of_a_missing_tool():
    support.unavailable("the tool", "apt-get install tool")

def test_that_skips_by_itself():
    pytest.skip("no reason")

@pytest.mark.xfail(strict=True)
def test_of_a_known_defect():
    assert False
"""


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["one", "two"])
@pytest.mark.parametrize("required", [False, True])
def test_skips(tmp_path: Path, required: bool, processes: list[str]) -> None:
    (tmp_path / "conftest.py").write_text((support.ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_them.py").write_text(TESTS)
    environment = {**os.environ, "STREAMPAIR_REQUIRE_ALL": "1" if required else ""}
    told = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-o",
            f"pythonpath={support.ROOT / 'tests'}",
            "-p",
            "no:cacheprovider",
            *processes,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert told.returncode == (1 if required else 0), told.stdout
    assert "skipped: the tool. To get it: apt-get install tool" in told.stdout
    assert ("2 failed, 1 xfailed" if required else "2 skipped, 1 xfailed") in told.stdout
