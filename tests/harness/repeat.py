"""A plugin of pytest that runs each test that depends on chance many times: ``make repeat``.

    make repeat ARGS="--runs 50 tests/privacy"

A test with a fixed seed gives the same outcome in every run, and repeating it shows nothing. A test depends
on chance if it reads the operating system's source of randomness: directly, through ``secrets``, or through
an unseeded NumPy generator. Each test runs once; those that read randomness then run again, in the same
process, until they have run ``--runs`` times, or for ``--run-seconds``. The summary names the tests that
failed and those that had fewer runs.

A statistical test that may fail more than once in 10,000 runs by its own arithmetic must say so in its
docstring.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

COUNTS = "runs and failures"


def pytest_addoption(parser: pytest.Parser) -> None:
    """How often, and how long."""
    group = parser.getgroup("repeat")
    group.addoption("--runs", type=int, default=200, help="how often a test that depends on chance runs")
    group.addoption("--run-seconds", type=float, default=600.0, help="how long it is repeated at most")


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


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test, and again if it has read randomness; report its first failure, or its last run."""
    runs = item.config.getoption("--runs")
    until = time.monotonic() + item.config.getoption("--run-seconds")
    done = failures = 0
    reported: list[pytest.TestReport] = []
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    with watched() as read:
        while done == 0 or (done < runs and read() and time.monotonic() < until):
            # With the test itself as the next one its own fixtures would stay, as those of its module do.
            reports = runtestprotocol(item, log=False, nextitem=item.parent)  # type: ignore[arg-type]
            failed = any(report.failed for report in reports)
            if not failures:
                reported = reports
            failures += failed
            done += 1
    item.session._setupstate.teardown_exact(nextitem)
    for report in reported:
        if done > 1:
            report.user_properties.append((COUNTS, [done, failures]))
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name what failed, and what had fewer runs than asked for."""
    counts = {
        report.nodeid: value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == COUNTS
    }
    terminalreporter.section("tests that depend on chance")
    for test, (runs, failures) in sorted(counts.items()):
        if failures or runs < config.getoption("--runs"):
            terminalreporter.write_line(f"{failures} of {runs} failed  {test}")
    failed = sum(failures > 0 for _, failures in counts.values())
    terminalreporter.write_line(f"{len(counts)} tests, {failed} of them failed at least once")
