"""CONTRIBUTING.md is followed: its toy loss is added to a copy of the repository, and meets the contract."""

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

PAGE = "CONTRIBUTING.md"
LOSS = pages.blocks_in(pages.section(pages.text_of(PAGE), "## Adding a loss"), "Adding a loss")


def changed(text: str, diff: str, where: str) -> str:
    """A text with the hunks of a diff applied: lines that stay or go must be there, once, in this order."""
    for hunk in diff.split("@@\n")[1:]:
        lines = hunk.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        new = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        assert text.count(old) == 1, f"{where}: these lines are not there, or not once:\n{old}"
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with the page's changes."""
    directory = tmp_path_factory.mktemp("repository")
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("streampair", "connectors", "tests"):
        shutil.copytree(support.ROOT / name, directory / name, ignore=unwanted)
    shutil.copy(support.ROOT / "pyproject.toml", directory)
    for block in LOSS:
        if block.language == "diff":
            file = directory / block.title
            file.write_text(changed(file.read_text(), block.text, block.id))
    return directory


def test_a_loss_is_added_as_the_page_says(copy: Path) -> None:
    """The registry's tests run every learner that takes a loss under the new one."""
    steps = [block for block in LOSS if block.language in ("python", "console")]
    paths = f"{copy}:{copy / 'connectors'}"
    told = follow(steps, copy, environment={"PYTHONPATH": paths, "PYTEST_ADDOPTS": "-p no:cacheprovider"})
    for step, output in zip(steps, told, strict=True):
        if step.language == "python":
            assert step.following is not None
            assert agree(step.following.text, output), output
        else:  # no test was left out: the contract has met the new loss
            runs = [int(count) for count in re.findall(r"^(\d+) passed", output, re.M)]
            least = [4, 4, 2 * len(TAKERS), 8]  # the last ones are the registry's and the kernels'
            assert len(runs) == len(least), output
            assert all(count >= wanted for count, wanted in zip(runs, least, strict=True)), output


def test_what_the_page_adds_is_formatted_and_clean(copy: Path) -> None:
    files = [block.title for block in LOSS if block.language == "diff"]
    for words in (["check"], ["format", "--check"]):
        told = subprocess.run(
            [sys.executable, "-m", "ruff", *words, *files], cwd=copy, capture_output=True, text=True
        )
        assert told.returncode == 0, told.stdout + told.stderr


def test_a_diff_that_does_not_fit_is_caught() -> None:
    assert changed("a\nb\n", "@@\n a\n+x\n", "here") == "a\nx\nb\n"
    with pytest.raises(AssertionError, match="here: these lines are not there"):
        changed("a\nb\n", "@@\n c\n+x\n", "here")
    with pytest.raises(AssertionError, match="not once"):
        changed("a\nb\na\n", "@@\n a\n+x\n", "here")


def test_files_and_folders_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`((?:streampair|tests|benchmarks|deploy|docs)/[\w./]*)`", pages.text_of(PAGE)))
    assert len(named) > 5
    assert [name for name in sorted(named) if not (support.ROOT / name).exists()] == []
