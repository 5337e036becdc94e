"""The harness itself: where everything is required a skip is a failure; elsewhere it says what is missing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import dying_worker, search, support

TESTS = """
import pytest
from harness import search, support

def test_of_a_missing_tool():
    support.unavailable("the tool", "apt-get install tool")

def test_that_skips_by_itself():
    pytest.skip("no reason")

@pytest.mark.xfail(strict=True)
def test_of_a_known_defect():
    assert False
"""


def run_here(
    folder: Path, tests: str, *options: str, required: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run tests in a folder of their own, with the conftest of this one."""
    (folder / "conftest.py").write_text((support.ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_them.py").write_text(tests)
    paths = ("-o", f"pythonpath={support.ROOT / 'tests'}", "-p", "no:cacheprovider")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *paths, *options],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "STREAMPAIR_REQUIRE_ALL": "1" if required else ""},
        check=False,
    )


@pytest.mark.parametrize("processes", [[], ["-n", "2"]], ids=["one", "two"])
@pytest.mark.parametrize("required", [False, True])
def test_skips(tmp_path: Path, required: bool, processes: list[str]) -> None:
    completed = run_here(tmp_path, TESTS, *processes, required=required)
    assert completed.returncode == (1 if required else 0), completed.stdout
    assert "skipped: the tool. To get it: apt-get install tool" in completed.stdout
    assert ("2 failed, 1 xfailed" if required else "2 skipped, 1 xfailed") in completed.stdout


def test_a_skip_of_what_make_installs_fails_in_make_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = TESTS.replace('install tool")', 'install tool", made=True)')
    monkeypatch.delenv("STREAMPAIR_MAKE_TEST", raising=False)  # set where `make test` runs this test
    assert "2 skipped, 1 xfailed" in run_here(tmp_path, tests).stdout
    monkeypatch.setenv("STREAMPAIR_MAKE_TEST", "1")
    assert "1 failed, 1 skipped, 1 xfailed" in run_here(tmp_path, tests).stdout


def test_every_prerequisite_of_the_makefile_is_defined_before_it() -> None:
    """One that is defined below is empty: `make test` would not install what the site needs."""
    command = ["make", "--warn-undefined-variables", "--dry-run", "help"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=support.ROOT, check=True)
    assert done.stderr == ""
    plan = subprocess.run(
        ["make", "--dry-run", "test", "VENV=.cache/none"],
        capture_output=True,
        text=True,
        cwd=support.ROOT,
        check=True,
    )
    assert "--group docs" in plan.stdout


UNPARSED = """
def test_whose_source_cannot_be_parsed(request):
    inner = request.node._repr_failure_py
    def show(excinfo, style=None):
        if style != "native":
            raise SystemError("AST constructor recursion depth mismatch (before=147, after=200)")
        return inner(excinfo, style)
    request.node._repr_failure_py = show
    assert 1 == 2

def test_that_comes_next():
    pass
"""


def test_a_failure_whose_source_cannot_be_parsed_is_reported(tmp_path: Path) -> None:
    completed = run_here(tmp_path, UNPARSED)
    assert "assert 1 == 2" in completed.stdout
    assert "1 failed, 1 passed" in completed.stdout
    assert completed.returncode == 1


PROPERTIES = """
from pathlib import Path
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

@pytest.mark.parametrize("limit", [10**9])
# here
@given(st.integers(0, 2**40), st.text(), st.none())
def test_of_what_is_rarely_false(limit, number, text, nothing):
    assert not number % 11 or number < limit

@settings(max_examples=6)
@given(st.integers(0, 2**60))
def test_that_is_true(number):
    with Path("tried").open("a") as file:
        print(number, file=file)

@pytest.mark.parametrize("case", [1, 2])
@settings(max_examples=60)
@given(st.integers(0, 2**60))
def test_of_two_cases(case, number):
    with Path("cases").open("a") as file:
        print(case, number, file=file)

@given(data=st.data())
def test_that_draws_inside(data):
    assert data.draw(st.integers()) is None
"""


def properties(folder: Path, *arguments: str) -> tuple[str, list[int]]:
    """What a run on the property tests above says, and what the second of them tried."""
    for name in ("tried", "cases"):
        (folder / name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-o", f"pythonpath={support.ROOT / 'tests'}", *arguments]
    completed = subprocess.run(
        [*command, "-p", "no:cacheprovider"], capture_output=True, text=True, cwd=folder
    )
    return completed.stdout, [int(line) for line in (folder / "tried").read_text().split()]


def test_property_tests_try_the_same_examples_and_a_search_new_ones(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((support.ROOT / "tests" / "conftest.py").read_text())
    file = tmp_path / "test_them.py"
    file.write_text(PROPERTIES)
    _, always = properties(tmp_path)
    assert len(always) == 6
    assert len((tmp_path / "cases").read_text().splitlines()) == 2 * 60 // search.FEWER
    found, tried = properties(tmp_path, "-n", "2", "-m", "hypothesis", "--hypothesis-profile=search")
    assert len(tried) == 6 * search.MORE
    assert len(set(tried) - set(always)) > 6
    assert len((tmp_path / "cases").read_text().splitlines()) == 2 * 60 * search.MORE
    section = found[found.rindex(search.TITLE) :]
    # What is drawn inside of a test cannot be an example: it is told, with a blob.
    assert re.search(r"^# Draw 1: 0\n@reproduce_failure\('.*'\)$", section, re.M)
    lines = re.search(r"^@example\(\n    number=[\d_]+,\n    text='',\n    nothing=None,\n\)$", section, re.M)
    assert lines is not None
    # The lines to paste are tried for ever after.
    file.write_text(PROPERTIES.replace("# here", lines[0]))
    output, again = properties(tmp_path)
    assert "explicit" in output
    assert again == always


NEIGHBOURS = """
import other
from hypothesis import given, settings
from hypothesis import strategies as st

@settings(max_examples=400)
@given(st.integers(0, 2**60))
def test_numbers(number):
    assert number not in other.NUMBERS
"""


def test_property_tests_try_the_same_examples_whatever_modules_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(f"NUMBERS = {[2**57 + 98_765 * k for k in range(50)]}\n")
    assert run_here(tmp_path, NEIGHBOURS).returncode == 0
    # A search does try the numbers of other modules.
    found = run_here(tmp_path, NEIGHBOURS, "-m", "hypothesis", "--hypothesis-profile=search")
    assert "1 failed" in found.stdout


CHANCE = """
import os
import random

runs = {"seeded": 0, "unseeded": 0}

def test_seeded():
    random.Random(1).random()
    runs["seeded"] += 1
    assert runs["seeded"] == 1

def test_unseeded(tmp_path):
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_bytes(os.urandom(1))
    runs["unseeded"] += 1
    assert runs["unseeded"] != 3

def test_of_a_secret():
    assert random.SystemRandom().random() < 1.0
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_what_depends_on_chance_is_repeated(tmp_path: Path, processes: str) -> None:
    """With fixtures of its own in every run; a failure in the middle is seen."""
    (tmp_path / "test_them.py").write_text(CHANCE)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-n", processes, "--runs", "5"),
            *("-p", "harness.repeat", "-p", "no:cacheprovider"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(support.ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 2 passed" in result.stdout
    assert "1 of 5 failed  test_them.py::test_unseeded" in result.stdout
    assert "2 tests, 1 of them failed at least once" in result.stdout


def test_the_tests_of_a_crashed_process_are_run_by_the_others(tmp_path: Path) -> None:
    """Also where it had finished more files than the others have tests left."""
    (tmp_path / "conftest.py").write_text((support.ROOT / "tests" / "conftest.py").read_text())
    for number in range(1, 10):
        (tmp_path / f"test_{number}.py").write_text("def test_a():\n    pass\n\n\ndef test_b():\n    pass\n")
    (tmp_path / "test_8b.py").write_text(
        "import os\nimport pathlib\n\n\ndef test_dies_once():\n    died = pathlib.Path('died')\n"
        "    if not died.exists():\n        died.touch()\n        os._exit(1)\n\n\ndef test_b():\n    pass\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--timeout", "60", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(support.ROOT / "tests")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "1 failed, 20 passed" in result.stdout, result.stdout


def test_the_steps_at_which_workers_die_exist() -> None:
    for steps in (
        dying_worker.AT_START,
        dying_worker.DIRECTORY,
        dying_worker.EARLY,
        dying_worker.LABELS,
        dying_worker.MODELS,
        dying_worker.SCORER,
        dying_worker.TOPIC,
    ):
        for title, step in steps.items():
            assert hasattr(dying_worker.found(step.owner), step.name), title
