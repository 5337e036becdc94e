"""The page: what a data scientist, a privacy officer and an operator look at, served by the worker itself.

Nothing comes from outside: four plain files, and numbers from the same `Telemetry` as the series. Its charts
are a module of our own, `assets/chart.js`, under 400 lines: no charts that Python's registry has fit into
300 kB, and all others would need another tool to build the wheel.
"""

from __future__ import annotations

from streampair_connectors.observability.dashboard.page import add_routes, frame, frame_json
from streampair_connectors.observability.dashboard.recorded import recorded_page

__all__ = ["add_routes", "frame", "frame_json", "recorded_page"]
