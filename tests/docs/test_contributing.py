"""CONTRIBUTING.md is followed: what its recipes add to a copy of the repository meets the contract."""

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
# What each recipe adds, and how many tests its commands run at least: none of them is left out.
RECIPES: dict[str, list[int]] = {
    "Adding a learner": [60, 20],
    "Adding a loss": [4, 4, 2 * len(TAKERS), 8],  # the last ones are the registry's and the kernels'
    "Adding a mechanism": [10, 12, 15, 45, 3],
}


def recipe(name: str) -> list[pages.Block]:
    return pages.blocks_in(pages.section(pages.text_of(PAGE), f"## {name}"), name)


def changed(text: str, diff: str, where: str) -> str:
    """A text with the hunks of a diff applied: lines that stay or go must be there, once, in this order."""
    for hunk in diff.split("@@\n")[1:]:
        lines = hunk.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        new = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        assert text.count(old) == 1, f"{where}: these lines are not there, or not once:\n{old}"
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module", params=RECIPES)
def followed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A recipe, and the repository with its changes."""
    directory = tmp_path_factory.mktemp("repository")
    for name in ("streampair", "connectors", "tests", "docs", "deploy"):  # and kernels as they are compiled
        shutil.copytree(support.ROOT / name, directory / name)
    for name in ("pyproject.toml", "mkdocs.yml", "README.md", PAGE, "SECURITY.md", "CHANGELOG.md"):
        shutil.copy(support.ROOT / name, directory)
    subprocess.run(["git", "init", "--quiet"], cwd=directory, check=True)  # a test asks what is in it
    for block in recipe(request.param):
        file = directory / block.title
        if block.language == "diff":
            file.write_text(changed(file.read_text(), block.text, block.id))
        elif block.title:
            assert not file.exists()
            file.write_text(block.text)
    return request.param, directory


@pytest.mark.timeout(1000)
def test_a_recipe_works_as_the_page_says(followed: tuple[str, Path]) -> None:
    """The contract of losses, learners and mechanisms is met by what the page adds."""
    name, copy = followed
    steps = [block for block in recipe(name) if block.language in ("python", "console") and not block.title]
    paths = f"{copy}:{copy / 'connectors'}"
    environment = {"PYTHONPATH": paths, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    outputs = follow(steps, copy, environment=environment, seconds=900)
    runs: list[int] = []
    for step, output in zip(steps, outputs, strict=True):
        if step.language == "python":
            assert step.following is not None
            assert agree(step.following.text, output), output
        else:
            runs += [int(count) for count in re.findall(r"^(\d+) passed", output, re.M)]
    least = RECIPES[name]
    assert len(runs) == len(least)
    assert all(count >= wanted for count, wanted in zip(runs, least, strict=True)), runs


def test_what_a_recipe_adds_is_formatted_and_clean(followed: tuple[str, Path]) -> None:
    name, copy = followed
    files = [block.title for block in recipe(name) if block.title.endswith(".py")]
    for words in (["check"], ["format", "--check"]):
        completed = subprocess.run(
            [sys.executable, "-m", "ruff", *words, *files], cwd=copy, capture_output=True, text=True
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr


def test_a_learner_takes_four_files() -> None:
    assert len({block.title for block in recipe("Adding a learner") if block.title}) == 4


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
