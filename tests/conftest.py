"""Summary of what the run used and what it skipped, for every tier."""

from __future__ import annotations

from typing import Any

import hypothesis
import support

# No wall-clock limits: the first call of a kernel compiles it, and machines are shared.
hypothesis.settings.register_profile(
    "streampair", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
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
