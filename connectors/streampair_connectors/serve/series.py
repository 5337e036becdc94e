"""Series of the server, added up over the processes that share its port.

A scrape reaches any one of them, so their counts are in shared memory, a row each. prometheus-client adds up
processes by files in a directory that somebody must empty between two starts.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from multiprocessing.sharedctypes import RawArray
from typing import Any, Final

import numpy as np

__all__ = ["CONTENT_TYPE", "STATUSES", "ServerMetrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STATUSES: Final = (200, 400, 401, 404, 405, 408, 413, 415, 417, 422, 500, 503)
"""Every status that the server answers with."""
_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_PLACES: Final = {status: place for place, status in enumerate(STATUSES)}
_GAUGES: Final = ("events", "in_flight", "ready", "slots", "time")


class ServerMetrics:
    """Counts of requests, their durations, and the model.

    Parameters
    ----------
    routes
        Names of the routes.
    workers
        Number of processes.
    shared
        Memory of `memory`; None: a new one.
    number
        Of this process.
    """

    def __init__(
        self, routes: Sequence[str], *, workers: int = 1, shared: Any = None, number: int = 0
    ) -> None:
        self._routes = list(routes)
        self._width = len(STATUSES) + len(_BOUNDS) + 2  # of a route: statuses, buckets, sum
        shape = workers, len(self._routes) * self._width + len(_GAUGES)
        self.memory = RawArray("d", shape[0] * shape[1]) if shared is None else shared
        self._rows = np.frombuffer(self.memory, dtype=np.float64).reshape(shape)
        # A plain view: an item of a NumPy array costs four times as much.
        self._row = memoryview(self.memory).cast("B").cast("d")[number * shape[1] : (number + 1) * shape[1]]
        self._gauges = len(self._routes) * self._width

    def request(self, route: int, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        row, base = self._row, route * self._width
        row[base + _PLACES[status]] += 1.0
        base += len(STATUSES)
        row[base + bisect.bisect_left(_BOUNDS, seconds)] += 1.0
        row[base + len(_BOUNDS) + 1] += seconds

    def events(self, count: int) -> None:
        """Count scored events."""
        self._row[self._gauges] += count

    def standing(self, *, in_flight: int, ready: bool, slots: int | None, time: int | None) -> None:
        """Set requests in flight, readiness and the model, of this process."""
        row, base = self._row, self._gauges
        row[base + 1], row[base + 2] = in_flight, ready
        row[base + 3] = math.nan if slots is None else slots
        row[base + 4] = math.nan if time is None else time / 1000

    def render(self) -> bytes:
        """The series in the text format of Prometheus, of all processes."""
        total = self._rows.sum(axis=0)
        lines: list[str] = []

        def head(name: str, kind: str, text: str) -> str:
            lines.extend((f"# HELP {name} {text}", f"# TYPE {name} {kind}"))
            return name

        name = head("streampair_serve_requests_total", "counter", "Requests, by route and status.")
        for i, route in enumerate(self._routes):
            for status, count in zip(STATUSES, total[i * self._width :], strict=False):
                if count:
                    lines.append(f'{name}{{route="{route}",status="{status}"}} {count:.17g}')
        name = head("streampair_serve_request_seconds", "histogram", "Time to answer a request, by route.")
        for i, route in enumerate(self._routes):
            start = i * self._width + len(STATUSES)
            buckets = np.cumsum(total[start : start + len(_BOUNDS) + 1])
            if buckets[-1]:
                for bound, count in zip((*_BOUNDS, "+Inf"), buckets, strict=True):
                    lines.append(f'{name}_bucket{{route="{route}",le="{bound}"}} {count:.17g}')
                lines.append(f'{name}_sum{{route="{route}"}} {total[start + len(_BOUNDS) + 1]:.17g}')
                lines.append(f'{name}_count{{route="{route}"}} {buckets[-1]:.17g}')
        rows = self._rows[:, self._gauges :]
        gauges = (
            ("events_total", "counter", "Events that were scored.", rows[:, 0].sum()),
            ("requests_in_flight", "gauge", "Requests that are being answered.", rows[:, 1].sum()),
            ("ready", "gauge", "Whether every process is ready: 1 or 0.", rows[:, 2].min()),
            ("model_slots", "gauge", "Records that the model has learned; the least of all processes.",
             rows[:, 3].min()),
            ("model_timestamp_seconds", "gauge", "Time of the newest record of the model; the oldest of all "
             "processes.", rows[:, 4].min()),
        )  # fmt: skip
        for short, kind, text, value in gauges:
            lines.append(f"{head(f'streampair_serve_{short}', kind, text)} {_number(value)}")
        return ("\n".join(lines) + "\n").encode()


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.17g}"
