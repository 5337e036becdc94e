"""Summary of what the run used and what it skipped; where everything is required, a skip is a failure."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from harness import search, support
from harness.tiers import STOPPABLE_TIERS
from xdist.scheduler import LoadScopeScheduling

# Before numpy is imported, here and in processes that tests start: threads that share one product wait for
# each other in loops, and take the processors from other processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# With these pytest writes the whole difference of two long lists. It takes minutes, and the test of a mutant,
# whose failure is expected, times out. mutation/run.py copies this file, and needs no such lines of its own.
for name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(name, None)

# Of the tests with a broker, those that take half of the time.
WORKERS = ("test_worker.py", "test_state_commands.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--everything``."""
    parser.addoption(
        "--everything",
        action="store_true",
        help="each learner where one of its base class does, each version of Kafka, each store",
    )


class Kinds(LoadScopeScheduling):
    """The tests of a version of Kafka have two processes with brokers of their own, and mostly wait for them.

    All others go, a file at a time, to whichever process has time.
    """

    def _split_scope(self, nodeid: str) -> str:
        where, _, parameters = nodeid.partition("[")
        where, version = where.partition("::")[0], parameters.rstrip("]").partition("-")[0]
        if version not in STOPPABLE_TIERS or "broker/" not in where:
            return where
        return f"{version}, workers" if where.endswith(WORKERS) else version

    def remove_node(self, node: Any) -> str | None:
        """Reassign the files that a crashed process has not finished.

        The base class reassigns its finished files too, waits for one of their tests to end, and hangs.
        """
        units = self.assigned_work[node]
        for scope in [scope for scope, tests in units.items() if all(tests.values())]:
            del units[scope]
        return super().remove_node(node)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


LOGGERS = [logging.getLogger(name) for name in ("streampair_connectors", "streampair", "aiokafka")]
AS_IMPORTED = [(each.level, each.propagate) for each in LOGGERS]


@pytest.fixture(autouse=True)
def logging_of_a_command() -> None:
    """Undo what a command that ran in this process, in a test or a fixture, did to the loggers.

    A test reads their records.
    """
    for each, (level, propagate) in zip(LOGGERS, AS_IMPORTED, strict=True):
        each.handlers[:], each.propagate = [], propagate
        each.setLevel(level)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """See ``Kinds``; a search only computes, in as many processes as there are; ``--dist`` is obeyed."""
    if search.searching() or config.getoption("dist") != "load":
        return None
    config.option.loadscopereorder = False  # the order of the collection: what takes longest comes first
    return Kinds(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Nothing that is collected is garbage: a million objects, which the interpreter need not look through
    again and again, neither while there are more and more of them nor later.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that started this one, if one did, what was used here."""
    report = getattr(session.config, "workeroutput", None)
    if report is not None:
        report["used"] = json.dumps({kind: sorted(what) for kind, what in support.used.items()})
        report["missing"] = json.dumps(support.missing)
        report["left_out"] = json.dumps(support.left_out)
        report["verified"] = json.dumps(support.verified)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take in what a process of tests has used."""
    report = getattr(node, "workeroutput", {})
    for kind, what in json.loads(report.get("used", "{}")).items():
        support.used.setdefault(kind, set()).update(what)
    support.missing.update(json.loads(report.get("missing", "{}")))
    support.left_out.update(json.loads(report.get("left_out", "{}")))  # every process collects all cases
    for fault, counts in json.loads(report.get("verified", "{}")).items():
        support.note_fault(fault, counts)


def pytest_configure(config: pytest.Config) -> None:
    """With ``NUMBA_DISABLE_JIT=1``, for coverage, kernels run as Python, where unsigned integers that are
    meant to wrap around warn, and angles that are meant to have no sine.
    """
    if int(os.environ.get("NUMBA_DISABLE_JIT") or 0):  # numba itself takes half a second to import
        for warning in ("overflow encountered in scalar", "invalid value encountered in fmod"):
            config.addinivalue_line("filterwarnings", f"ignore:{warning}:RuntimeWarning")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `everything` or `verifier`, unless that is asked for; see ``count_examples``.

    Of the verifier, ``tests/broker/conftest.py`` chooses where its short part runs.
    """
    if "verifier" not in config.getoption("markexpr"):
        marks = ((item, [mark.kwargs for mark in item.iter_markers("verifier")]) for item in items)
        long = [item for item, found in marks if found and not any(mark.get("short") for mark in found)]
        support.leave_out(config, items, long, "-m verifier")
    if not config.getoption("everything"):
        marked = [item for item in items if item.get_closest_marker("everything")]
        support.leave_out(config, items, marked, "--everything")
    search.count_examples(items)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which brokers and which Prometheus were used, how to get what was skipped, and what was found.

    And how many cases were left out.
    """
    found = search.summary(terminalreporter.getreports("failed"))
    if found:
        terminalreporter.section(search.TITLE)
        for line in found:
            terminalreporter.write_line(line)
    if support.verified:
        terminalreporter.section("exactly once, whatever dies")
        for line in support.faults(support.verified):
            terminalreporter.write_line(line)
    for option, count in sorted(support.left_out.items()):
        terminalreporter.write_line(f"left out: {count:,} cases, which run with {option}")
    if not support.used and not support.missing:
        return
    terminalreporter.section("what this run used")
    for kind in sorted(support.used):
        terminalreporter.write_line(f"{kind}: {', '.join(sorted(support.used[kind]))}")
    for what, hint in sorted(support.missing.items()):
        terminalreporter.write_line(f"skipped: {what}. To get it: {hint}")


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure, with its reason."""
    if report.skipped and support.require_all() and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, where nothing may be (STREAMPAIR_REQUIRE_ALL=1): {reason}"


def _without_source(item: pytest.Item, call: pytest.CallInfo[Any]) -> pytest.TestReport:
    """The report of a failure with Python's own traceback.

    pytest parses the source that it shows. Python 3.11 cannot, now and then, while another thread of a test
    compiles; the error then ends the whole run.
    """
    style, item.config.option.tbstyle = item.config.option.tbstyle, "native"
    try:
        return pytest.TestReport.from_item_and_call(item, call)
    finally:
        item.config.option.tbstyle = style


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """See ``_refuse`` and ``_without_source``."""
    try:
        report = yield
    except SystemError as error:
        if "recursion depth mismatch" not in str(error):
            raise
        report = _without_source(item, call)
    _refuse(report)
    if call.excinfo is not None:
        search.note_finds(item, call.excinfo.value, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """See ``_refuse``: modules skip too, with ``pytest.importorskip``."""
    report = yield
    _refuse(report)
    return report
