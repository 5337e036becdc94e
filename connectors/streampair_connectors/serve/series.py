"""Series of the server for Prometheus."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["CONTENT_TYPE", "STATUSES", "ServerMetrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
STATUSES: Final = (200, 400, 401, 404, 405, 408, 413, 415, 417, 422, 500, 503)
"""Every status that the server answers with."""
_BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServerMetrics:
    """Counts of requests, their durations, and the model.

    Plain lists, all of one thread: a count costs a request less than the locks of prometheus-client would.

    Parameters
    ----------
    routes
        Names of the routes.

    Examples
    --------
    >>> metrics = ServerMetrics(["score"])
    >>> metrics.request(0, 200, 0.002)
    >>> b'streampair_serve_requests_total{route="score",status="200"} 1' in metrics.render()
    True
    """

    def __init__(self, routes: Sequence[str]) -> None:
        self._routes = list(routes)
        self._statuses = [dict.fromkeys(STATUSES, 0) for _ in routes]
        self._buckets = [[0] * (len(_BOUNDS) + 1) for _ in routes]
        self._seconds = [0.0 for _ in routes]
        self._events = 0
        self._in_flight, self._ready = 0, False
        self._slots = self._time = math.nan

    def request(self, route: int, status: int, seconds: float) -> None:
        """Count a request that was answered, to the route of this number."""
        self._statuses[route][status] += 1
        self._buckets[route][bisect.bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[route] += seconds

    def events(self, count: int) -> None:
        """Count scored events."""
        self._events += count

    def standing(self, *, in_flight: int, ready: bool, slots: int | None, time: int | None) -> None:
        """Set requests in flight, readiness and the model: records learned, and ms since the epoch."""
        self._in_flight, self._ready = in_flight, ready
        self._slots = math.nan if slots is None else slots
        self._time = math.nan if time is None else time / 1000

    def render(self) -> bytes:
        """The series in the text format of Prometheus; of requests, those of the routes that were asked."""
        families = (
            ("requests_total", "counter", "Requests, by route and status.", self._of_requests()),
            ("request_seconds", "histogram", "Time to answer a request, by route.", self._of_times()),
            ("events_total", "counter", "Events that were scored.", [("", self._events)]),
            ("requests_in_flight", "gauge", "Requests that are being answered.", [("", self._in_flight)]),
            ("ready", "gauge", "Whether the server is ready: 1 or 0.", [("", self._ready)]),
            ("model_slots", "gauge", "Records that the model has learned.", [("", self._slots)]),
            (
                "model_timestamp_seconds",
                "gauge",
                "Time of the newest record of the model.",
                [("", self._time)],
            ),
        )
        lines: list[str] = []
        for short, kind, text, samples in families:
            name = f"streampair_serve_{short}"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{suffix} {_number(value)}" for suffix, value in samples]
        return ("\n".join(lines) + "\n").encode()

    def _of_requests(self) -> Iterator[tuple[str, float]]:
        for route, statuses in zip(self._routes, self._statuses, strict=True):
            for status, count in statuses.items():
                if count:
                    yield f'{{route="{route}",status="{status}"}}', count

    def _of_times(self) -> Iterator[tuple[str, float]]:
        for i, route in enumerate(self._routes):
            counts = list(itertools.accumulate(self._buckets[i]))
            if counts[-1]:
                for bound, count in zip((*_BOUNDS, "+Inf"), counts, strict=True):
                    yield f'_bucket{{route="{route}",le="{bound}"}}', count
                yield f'_sum{{route="{route}"}}', self._seconds[i]
                yield f'_count{{route="{route}"}}', counts[-1]


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{float(value):.17g}"
