"""Summary of what the run used and what it skipped; where everything is required, a skip is a failure."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import support

# No wall-clock limits: the first call of a kernel compiles it, and machines are shared. Where a change is
# judged, it is by the same examples every time; everywhere else new ones are tried.
hypothesis.settings.register_profile(
    "streampair",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=support.require_all(),
)
hypothesis.settings.load_profile("streampair")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which brokers and which Prometheus were used, and how to get what was skipped."""
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """See ``_refuse``."""
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """See ``_refuse``: modules skip too, with ``pytest.importorskip``."""
    report = yield
    _refuse(report)
    return report
