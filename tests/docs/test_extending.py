"""The pages of docs/extending are followed: what they add to a copy of the repository meets the contract."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import pages, support
from harness.follow import agree, follow
from harness.loss_takers import TAKERS

# How many tests the commands of each page run at least: none of them is left out. The loss comes last, since
# kernels are compiled anew after it.
LEAST: dict[str, list[int]] = {
    "docs/extending/learner.md": [70],
    "docs/extending/mechanism.md": [75],
    "docs/extending/loss.md": [20, len(TAKERS) + 20],
}


def changed(text: str, diff: str, where: str) -> str:
    """A text with the hunks of a diff applied: lines that stay or go must be there, once, in this order."""
    for hunk in diff.split("@@\n")[1:]:
        lines = hunk.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        new = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        assert text.count(old) == 1, f"{where}: these lines are not there, or not once:\n{old}"
        text = text.replace(old, new)
    return text


def copy(directory: Path) -> None:
    """The repository, with kernels as they are compiled."""
    for name in ("streampair", "connectors", "tests", "docs", "deploy"):
        shutil.copytree(support.ROOT / name, directory / name)
    for file in ("pyproject.toml", "mkdocs.yml", *(name for name in pages.names() if "/" not in name)):
        shutil.copy(support.ROOT / file, directory)
    subprocess.run(["git", "init", "--quiet"], cwd=directory, check=True)  # a test asks what is in it


def apply(page: str, directory: Path) -> list[str]:
    """Change a copy of the repository as a page says; the Python files that it changes."""
    files = []
    for block in pages.blocks(page):
        file = directory / block.title
        if block.language == "diff":
            file.write_text(changed(file.read_text(), block.text, block.id))
        elif block.title:
            assert not file.exists()
            file.write_text(block.text)
        files += [block.title] if block.title.endswith(".py") else []
    return files


def do(page: str, directory: Path) -> None:
    """Run the programs and commands of a page, and compare what they print with the page."""
    untitled = [block for block in pages.blocks(page) if not block.title]
    steps = [block for block in untitled if block.language in ("python", "console")]
    paths = f"{directory}:{directory / 'connectors'}"
    environment = {"PYTHONPATH": paths, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    outputs = follow(steps, directory, environment=environment, seconds=600)
    runs: list[int] = []
    for step, output in zip(steps, outputs, strict=True):
        if step.language == "python":
            assert step.following is not None
            assert agree(step.following.text, output, varies=step.following.varies), output
        else:
            runs += [int(count) for count in re.findall(r"^(\d+) passed", output, re.M)]
    least = LEAST[page]
    assert len(runs) == len(least), page
    assert all(count >= wanted for count, wanted in zip(runs, least, strict=True)), (page, runs)


@pytest.mark.timeout(1000)
def test_the_pages_work_as_they_say(tmp_path: Path) -> None:
    """The contract of learners, mechanisms and losses is met by what the pages add, one after the other.

    It has caught lines that the pages quote and that had changed, and steps of the contract that they left
    out. One test, since what it takes is above all the copy, its compiled kernels and starts of pytest.
    """
    copy(tmp_path)
    files: set[str] = set()
    for page in LEAST:
        files.update(apply(page, tmp_path))
        do(page, tmp_path)
    for words in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *words, *sorted(files)]
        completed = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True)
        assert completed.returncode == 0, completed.stdout + completed.stderr


def test_a_learner_takes_four_files() -> None:
    assert len({block.title for block in pages.blocks("docs/extending/learner.md") if block.title}) == 4


def test_a_diff_that_does_not_fit_is_caught() -> None:
    assert changed("a\nb\n", "@@\n a\n+x\n", "here") == "a\nx\nb\n"
    with pytest.raises(AssertionError, match="here: these lines are not there"):
        changed("a\nb\n", "@@\n c\n+x\n", "here")
    with pytest.raises(AssertionError, match="not once"):
        changed("a\nb\na\n", "@@\n a\n+x\n", "here")
