"""The types that the packages promise hold in a user's code under mypy --strict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import support

CODE = Path(__file__).with_name("user_code.py")


def mypy(file: Path) -> subprocess.CompletedProcess[str]:
    options = ["--strict", "--cache-dir", str(support.ROOT / ".mypy_cache" / "user"), "--no-error-summary"]
    # a configuration of its own: the project's would make the packages part of what is checked
    empty = ["--config-file", "/dev/null"]
    command = [sys.executable, "-m", "mypy", *empty, *options, str(file)]
    return subprocess.run(command, capture_output=True, text=True, cwd=file.parent)


def test_typed_user_code_is_accepted() -> None:
    output = mypy(CODE)
    assert output.returncode == 0, output.stdout + output.stderr


def test_wrong_user_code_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from streampair import auc\nauc.PairOGD(radius='large')\nx: str = auc.PairOGD().score_one({})\n"
    )
    output = mypy(wrong)
    assert output.returncode == 1
    assert ":2: error" in output.stdout
    assert ":3: error" in output.stdout


def test_typed_user_code_runs() -> None:
    completed = subprocess.run([sys.executable, "-W", "error", str(CODE)], capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines()[1:] == ["True", "['learned', 'learned', 'dead_letter']", "state"]
