"""The types that the packages promise hold in a user's code under mypy --strict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import support

CODE = Path(__file__).with_name("user_code.py")


WRONG = "from streampair import auc\nauc.PairOGD(radius='large')\nx: str = auc.PairOGD().score_one({})\n"


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of a user's code and of wrong code: one run, most of which are types of the packages."""
    wrong = tmp_path_factory.mktemp("typing") / "wrong.py"
    wrong.write_text(WRONG)
    options = ["--strict", "--cache-dir", str(support.ROOT / ".mypy_cache" / "user"), "--no-error-summary"]
    # a configuration of its own: the project's would make the packages part of what is checked
    empty = ["--config-file", "/dev/null"]
    command = [sys.executable, "-m", "mypy", *empty, *options, str(CODE), str(wrong)]
    completed = subprocess.run(command, capture_output=True, text=True, cwd=CODE.parent)
    assert completed.returncode == 1, completed.stdout + completed.stderr
    return completed.stdout.splitlines()


def test_typed_user_code_is_accepted(errors: list[str]) -> None:
    """A type that a package promises and does not have."""
    assert [line for line in errors if "wrong.py" not in line] == []


def test_wrong_user_code_is_refused(errors: list[str]) -> None:
    wrong = [line.partition("wrong.py:")[2] for line in errors if ": error" in line]
    assert [found.partition(":")[0] for found in wrong] == ["2", "3"]


def test_typed_user_code_runs() -> None:
    completed = subprocess.run([sys.executable, "-W", "error", str(CODE)], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines()[1:] == ["True", "['learned', 'learned', 'dead_letter']", "state"]
