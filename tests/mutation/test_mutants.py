"""The list of seeded faults follows the code: each can be placed, and its tests exist."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from types import ModuleType

import pytest
from harness.support import ROOT

HERE = ROOT / "tests" / "mutation"
LISTED = tomllib.loads((HERE / "mutants.toml").read_text())["mutant"]


@pytest.fixture(scope="module")
def run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutation_run", HERE / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def absent(tests: set[str]) -> str:
    """What pytest says of those of the tests that it does not find, parameters included, or leaves out."""
    options = ("pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    result = subprocess.run(
        [sys.executable, "-m", *options, *sorted(tests)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return result.stdout[-4000:] + result.stderr[-4000:]
    found = {name for line in result.stdout.splitlines() for name in (line, *_above(line))}
    left_out = [test for test in tests if test not in found]
    return "".join(f"{test.partition('[')[0]}\n{test} runs with --everything alone\n" for test in left_out)


def _above(node: str) -> Iterator[str]:
    """The test without its parameters, its class, its file."""
    node = node.partition("[")[0]
    while node:
        yield node
        node = node.rpartition("::")[0]


def listed(session: pytest.Session) -> set[str]:
    """What this run of pytest has found: tests with and without their parameters, classes and files."""
    found: set[str] = set()
    for item in session.items:
        found.update(node.nodeid for node in item.listchain())
        found.add(item.nodeid.partition("[")[0])
    return found


def test_every_fault_has_a_place(run: ModuleType) -> None:
    """And is Python. All that are not are listed at once: the whole run would end at the first of them."""
    lost = []
    for fault in LISTED:
        mutant = run.Mutant(**fault)
        try:
            path = run.place(mutant, ROOT)
            if path.suffix == ".py":
                ast.parse(path.read_text().replace(mutant.old, mutant.new))
        except (LookupError, SyntaxError) as error:
            lost.append(f"{mutant.what}: {error}")
    assert not lost, "\n".join(lost)


def test_every_fault_changes_something() -> None:
    assert not [fault["what"] for fault in LISTED if fault["old"] == fault["new"]]


def test_no_two_have_one_name() -> None:
    names = [fault["what"] for fault in LISTED]
    assert sorted(set(names)) == sorted(names)


def test_the_tests_of_a_fault_exist(request: pytest.FixtureRequest) -> None:
    """A name that is gone is an error of pytest, not a failed test, and would catch nothing.

    Those that this run has found are there. Others are looked for: where all tests run, a few; else all.
    """
    assert all(fault["tests"] for fault in LISTED)
    left = {test for fault in LISTED for test in fault["tests"]} - listed(request.session)
    assert not left or not absent(left)


def test_what_this_run_has_found_is_named(request: pytest.FixtureRequest) -> None:
    """Never what is not there: neither a test that is gone nor one with parameters of another."""
    found, file = listed(request.session), "tests/mutation/test_mutants.py"
    assert {file, f"{file}::test_a_text_that_moved_is_reported[import]"} <= found
    assert f"{file}::test_a_text_that_moved_is_reported" in found
    assert not {f"{file}::test_a_text", f"{file}::test_a_text_that_moved_is_reported[export]"} & found


@pytest.mark.parametrize("old", ["no such text stands in any file", "import"])
def test_a_text_that_moved_is_reported(run: ModuleType, old: str) -> None:
    mutant = dataclasses.replace(run.Mutant(**LISTED[0]), old=old)
    with pytest.raises(LookupError, match=r"has to be in .* once"):
        run.place(mutant, ROOT)


@pytest.mark.parametrize(
    "tests",
    [
        ["tests/unit/test_nowhere.py"],
        [
            "tests/mutation/test_mutants.py::test_of_nothing",
            "tests/mutation/test_mutants.py::test_a_text_that_moved_is_reported[export]",
        ],
        ["tests/river/test_strict_checks.py::test_bad_labels[0-auc.PairOGD-1]"],
    ],
)
def test_a_test_that_is_gone_is_reported(tests: list[str]) -> None:
    missing = absent(set(tests))
    for test in tests:
        assert test.partition("[")[0] + "\n" in missing
