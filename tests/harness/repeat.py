"""Runs every test that depends on chance many times: ``make repeat``.

    make repeat ARGS="[--runs 200] [--seconds 600] [--jobs 2] [pytest arguments]"

A test with a fixed seed gives the same outcome in every run, and repeating it shows nothing. A test depends
on chance if it reads the operating system's source of randomness: directly, through ``secrets``, or through
an unseeded NumPy generator. Each test runs once; those that read randomness then run again, in the same
process, for at most so many seconds a test. The report lists each of them with its failures and its seconds.

A statistical test that may fail more than once in 10,000 runs by its own arithmetic must say so in its
docstring.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

TESTS = Path(__file__).resolve().parents[1]
#: Tests of processes, whose randomness is not that of the test: whole runs repeat them.
FOLDERS = ("unit", "river", "privacy", "engine", "connectors")
RUNS, SECONDS, REPORT = (f"STREAMPAIR_REPEAT_{name}" for name in ("RUNS", "SECONDS", "REPORT"))


@contextmanager
def watched() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether this process has read the system's randomness since."""
    modules = (os, "urandom"), (random, "_urandom")
    original = os.urandom
    read = []

    def urandom(size: int, /) -> bytes:
        read.append(size)
        return original(size)

    for module, name in modules:
        setattr(module, name, urandom)
    try:
        yield lambda: bool(read)
    finally:
        for module, name in modules:
            setattr(module, name, original)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that reads randomness as often as is asked for, and append a line to the report."""
    if RUNS not in os.environ:
        return None
    runs, until = int(os.environ[RUNS]), time.monotonic() + float(os.environ[SECONDS])
    started, failures, done = time.monotonic(), [], 0
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    representative: list[pytest.TestReport] = []
    with watched() as read:
        while done == 0 or (done < runs and read() and time.monotonic() < until):
            # With the test itself as the next one its own fixtures would stay, as those of its module do.
            reports = runtestprotocol(item, log=False, nextitem=item.parent)  # type: ignore[arg-type]
            failed = any(report.failed for report in reports)
            if failed or not done:
                representative = reports
            failures += [str(report.longrepr) for report in reports if report.failed]
            done += 1
    item.session._setupstate.teardown_exact(nextitem)
    for report in representative:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if done > 1:
        line = {
            "test": item.nodeid,
            "runs": done,
            "failures": failures,
            "seconds": time.monotonic() - started,
        }
        with open(os.environ[REPORT], "a", encoding="utf-8") as report_file:
            report_file.write(json.dumps(line) + "\n")
    return True


def main() -> int:
    """Run the tests, print what depends on chance, and fail if one of them failed."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.repeat", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=200, help="how often each test runs")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long a test is repeated at most")
    parser.add_argument("--jobs", default="2", help="processes")
    options, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        report.touch()
        code = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "harness.repeat", "-n", options.jobs),
                *("--dist", "worksteal", "--timeout", "3600"),
                *(arguments or [str(TESTS / name) for name in FOLDERS]),
            ],
            cwd=TESTS.parent,
            env={
                **os.environ,
                RUNS: str(options.runs),
                SECONDS: str(options.seconds),
                REPORT: str(report),
                "PYTHONPATH": str(TESTS),
            },
            check=False,
        ).returncode
        lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    failed = 0
    for line in sorted(lines, key=lambda line: (-len(line["failures"]), -line["seconds"])):
        failed += bool(line["failures"])
        print(
            f"{len(line['failures']):4d} of {line['runs']} failed  {line['seconds']:7.1f} s  {line['test']}"
        )
        for failure in line["failures"][:1]:
            print("\n".join(f"        {text}" for text in failure.splitlines()[-12:]))
    print(f"{len(lines)} tests depend on chance, {failed} of them failed at least once")
    return int(bool(failed) or code != 0)


if __name__ == "__main__":
    sys.exit(main())
