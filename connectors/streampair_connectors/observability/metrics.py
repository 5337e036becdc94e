"""The series for Prometheus: one registry for operators, and a public one.

The metrics are made from `SERIES`. A lane's numbers come from its *committed* state and are published after
the commit only, so a crash never takes a counter back.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from streampair import __version__
from streampair.engine.lane import LaneGauges
from streampair_connectors.config import Changes
from streampair_connectors.observability.metric_definitions import (
    HEALTH_STATES,
    LANE,
    OUTCOMES,
    SERIES,
    LabelMetrics,
    LaneLabels,
    LaneMetrics,
    Observations,
)
from streampair_connectors.observability.metric_history import MetricHistory
from streampair_connectors.observability.progress import HealthProblem, Progress

__all__ = ["Telemetry"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_M = TypeVar("_M", Counter, Gauge, Histogram)
_EVENT_BUCKETS = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1, 1.0)
_COMMIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
_BY_NAME = {series.name.removeprefix("streampair_"): series for series in SERIES}


@dataclass
class _App:
    progress: Progress
    state: str = "starting"
    detail: str = ""
    next_step: str = ""
    lanes: dict[LaneLabels, LaneMetrics] = field(default_factory=dict)


class _Lanes(Collector):
    """Collector of the series of all lanes."""

    def __init__(self, apps: dict[str, _App], *, public: bool) -> None:
        self._apps = apps
        self._series = [
            (series, series.read)
            for series in SERIES
            if series.read is not None and (series.public or not public)
        ]

    def collect(self) -> Iterable[Metric]:
        lanes = [item for app in self._apps.values() for item in app.lanes.items()]
        for series, read in self._series:
            family: Any = _FAMILIES[series.kind](series.name, series.help, labels=series.labels)
            for labels, lane in lanes:
                value = read(lane)
                if isinstance(value, Observations):
                    family.add_metric(labels, list(value.buckets.items()), value.sum)
                elif isinstance(value, Mapping):
                    for last, number in value.items():
                        family.add_metric([*labels, last], number)
                elif value is not None:
                    family.add_metric(labels, value)
            if family.samples:
                yield family

    def describe(self) -> Iterable[Metric]:
        return []


class Telemetry:
    """All series of one process, which may run several applications.

    Parameters
    ----------
    clock
        Seconds since the epoch.

    Examples
    --------
    >>> telemetry = Telemetry()
    >>> telemetry.health("fraud", "running")
    >>> b'streampair_health{app="fraud",state="running"} 1.0' in telemetry.render()
    True
    >>> b"streampair_health" in telemetry.render(public=True)
    False
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._apps: dict[str, _App] = {}
        self.history = MetricHistory()
        self.changes: dict[str, Changes] = {}
        self._process: dict[str, Counter | Gauge | Histogram] = {}
        self._operator = CollectorRegistry()
        self._public = CollectorRegistry()
        self._operator.register(_Lanes(self._apps, public=False))
        ProcessCollector(registry=self._operator)
        self._public.register(_Lanes(self._apps, public=True))

        def make(kind: type[_M], name: str, **more: Any) -> _M:
            series = _BY_NAME[name]
            metric = kind(series.name, series.help, series.labels, registry=None, **more)
            for registry in (self._operator, self._public) if series.public else (self._operator,):
                registry.register(metric)
            if series.labels != LANE:
                self._process[name] = metric
            return metric

        make(Gauge, "build_info").labels(__version__, platform.python_version()).set(1)
        self._score = make(Histogram, "score_seconds", buckets=_EVENT_BUCKETS)
        self._learn = make(Histogram, "learn_seconds", buckets=_EVENT_BUCKETS)
        self._commit = make(Histogram, "commit_seconds", buckets=_COMMIT_BUCKETS)
        self._seconds = make(Counter, "worker_seconds_total")
        self._transactions = make(Counter, "transactions_total")
        self._restores = make(Counter, "restores_total")
        self._fences = make(Counter, "fences_total")
        self._opening = make(Gauge, "opening_seconds")
        self._read_again = make(Counter, "read_again_total")
        self._count_differences = make(Counter, "count_differences_total")
        self._changes = make(Gauge, "configuration_changes")
        self._rebalances = make(Counter, "rebalances_total")
        self._health = make(Gauge, "health")
        self._scored = make(Counter, "scored_events_total")
        self._scoring_lag = make(Gauge, "scoring_lag")
        self._behind = make(Gauge, "events_behind")
        self._model_slots = make(Gauge, "model_slots")
        self._model_age = make(Gauge, "model_age_seconds")
        self._scored_times: dict[str, tuple[float, float]] = {}  # of the first and the newest scored event

    def health(self, app: str, state: str, detail: str = "", next_step: str = "") -> None:
        """Set the state of an application (one of `HEALTH_STATES`), its cause and the next step."""
        entry = self._entry(app)
        entry.state, entry.detail, entry.next_step = state, detail, next_step
        entry.progress.state(state, detail, next_step)
        for known in HEALTH_STATES:
            self._health.labels(app, known).set(1.0 if known == state else 0.0)

    def health_report(self) -> tuple[bool, dict[str, dict[str, object]]]:
        """Return whether all applications are healthy, and the state of each."""
        stuck = {problem.app: problem for problem in self.problems()}
        report: dict[str, dict[str, object]] = {
            name: {
                "state": app.state,
                "detail": app.detail,
                "next_step": app.next_step,
                "lanes": [
                    {"topic": labels[1], "lag": lane.lag} for labels, lane in sorted(app.lanes.items())
                ],
            }
            for name, app in self._apps.items()
        }
        for name, problem in stuck.items():
            if self._apps[name].state in ("running", "rebalancing"):
                report[name] |= {"detail": problem.reason, "next_step": problem.next_step}
        return not stuck and bool(report), report

    def problems(self, *, live: bool = False) -> list[HealthProblem]:
        """Return the problems of all applications; with `live`, only reasons for a restart."""
        return [problem for app in self._apps.values() for problem in app.progress.problems(live=live)]

    def _entry(self, app: str) -> _App:
        if app not in self._apps:
            self._apps[app] = _App(Progress(app))
            for metric in (
                *(self._restores, self._fences, self._opening, self._rebalances),
                *(self._read_again, self._count_differences),
            ):
                metric.labels(app)  # starts at 0
            for outcome in OUTCOMES:
                self._transactions.labels(app, outcome)
        return self._apps[app]

    def publish(
        self,
        labels: LaneLabels,
        gauges: LaneGauges,
        lag: int | None,
        seconds: Mapping[str, float] | None = None,
        *,
        position: int | None = None,
        event_time: float | None = None,
        late_labels: LabelMetrics | None = None,
    ) -> None:
        """Publish the committed numbers of a lane, its time by stage, and its position.

        `event_time` is that of the last record that is committed, in seconds since the epoch; `late_labels`
        are those of a lane whose labels come later.
        """
        published = LaneMetrics(gauges, lag, None if seconds is None else dict(seconds), late_labels)
        lanes = self._entry(labels[0]).lanes
        before = lanes.get(labels)
        times = [event_time, None if before is None else before.current]
        published.current = max((stamp for stamp in times if stamp is not None), default=None)
        published.waits(self._clock())
        lanes[labels] = published
        self._seen(labels, position, lag)
        self.history.add(labels, gauges, lag)

    def lag(
        self,
        labels: LaneLabels,
        lag: int,
        position: int | None = None,
        late_labels: LabelMetrics | None = None,
    ) -> None:
        """Publish the lag of a lane between its commits, and how far late labels are."""
        lane = self._entry(labels[0]).lanes.get(labels)
        if lane is not None:
            if late_labels is not None and late_labels != lane.labels:
                lane.labels = late_labels
                self.history.touch(labels)
            if lane.lag != lag:
                lane.lag = lag
                self.history.touch(labels)
            lane.waits(self._clock())
            self._seen(labels, position, lag)

    def _seen(self, labels: LaneLabels, position: int | None, lag: int | None) -> None:
        app, topic, _ = labels
        self._entry(app).progress.seen(topic, position=position, lag=lag)

    def gauges(self, app: str) -> dict[LaneLabels, LaneGauges]:
        """Return the published gauges of an application's lanes."""
        entry = self._apps.get(app)
        return {} if entry is None else {k: v.gauges for k, v in entry.lanes.items()}

    def withdraw(self, labels: LaneLabels) -> None:
        """Remove the series of a lane that this process no longer holds."""
        entry = self._apps.get(labels[0])
        if entry is not None:
            entry.lanes.pop(labels, None)
            entry.progress.close_lane(labels[1])
        self.history.drop(labels)
        for histogram in (self._score, self._learn):
            with contextlib.suppress(KeyError):  # no batch was timed
                histogram.remove(*labels)

    def batch(self, labels: LaneLabels, learn_seconds: float, score_seconds: float | None) -> None:
        """Record the time by event of one batch."""
        self._learn.labels(*labels).observe(learn_seconds)
        if score_seconds is not None:
            self._score.labels(*labels).observe(score_seconds)

    def committed(self, app: str, seconds: float) -> None:
        """Record the time of one commit."""
        self._entry(app).progress.committed()
        self._commit.labels(app).observe(seconds)
        self._seconds.labels(app, "commit").inc(seconds)
        self.history.committed(app)

    def scored(self, app: str, count: int, newest: float) -> None:
        """Count events that a scorer has committed; `newest` is the timestamp of the newest, in seconds."""
        self._scored.labels(app).inc(count)
        first, before = self._scored_times.get(app, (newest, newest))
        self._scored_times[app] = first, max(before, newest)

    def scoring(self, app: str, *, lag: int, behind: int, slots: int, learned_ms: int | None) -> None:
        """Publish how far a scorer is behind the input, and its model behind it.

        Parameters
        ----------
        app
            The application.
        lag
            Events that it has not scored yet.
        behind
            Scored events that its model has not learned.
        slots
            Records that its model has learned.
        learned_ms
            Timestamp of the newest of them, in milliseconds; None: there is none, and the age counts from the
            first event that was scored.
        """
        self._scoring_lag.labels(app).set(lag)
        self._behind.labels(app).set(behind)
        self._model_slots.labels(app).set(slots)
        if app in self._scored_times:
            first, newest = self._scored_times[app]
            learned = learned_ms / 1000.0 if learned_ms else first
            self._model_age.labels(app).set(max(newest - learned, 0.0))

    def counted(self, app: str) -> Callable[[str], None]:
        """Return the function that counts a commit of a lane by its outcome (one of `OUTCOMES`)."""
        return lambda outcome: self._transactions.labels(app, outcome).inc()

    def fetched(self, app: str, seconds: float) -> None:
        """Record the time of a poll that gave records."""
        self._seconds.labels(app, "fetch").inc(seconds)

    def rebalanced(self, app: str) -> None:
        """Count an assignment of partitions."""
        self._rebalances.labels(app).inc()

    def restored(self, app: str) -> None:
        """Count a lane that was restored from the store."""
        self._restores.labels(app).inc()

    def fenced(self, app: str) -> None:
        """Count a lane that was given up because another owner fenced this worker."""
        self._fences.labels(app).inc()

    def opening(self, app: str, seconds: float) -> None:
        """Publish how long opening lanes has taken so far, or took the last time."""
        self._opening.labels(app).set(seconds)

    def read_again(self, app: str, count: int) -> None:
        """Count spans of polls that a rebalance had overtaken."""
        self._read_again.labels(app).inc(count)

    def counts_differ(self, app: str) -> None:
        """Count a commit at which the counts of a lane's records did not agree."""
        self._count_differences.labels(app).inc()

    def configured(self, app: str, changes: Changes) -> None:
        """Publish the changes of an application's configuration file since its start."""
        self.changes[app] = changes
        self._changes.labels(app).set_function(changes.look)

    def values(self, labels: LaneLabels, *, public: bool = False) -> dict[str, Any]:
        """Return the values of a lane's series, by name without the prefix; {} if it is gone."""
        entry = self._apps.get(labels[0])
        lane = None if entry is None else entry.lanes.get(labels)
        if lane is None:
            return {}
        rows = ((n, s.read(lane)) for n, s in _BY_NAME.items() if s.read and (s.public or not public))
        return {n: dict(v) if isinstance(v, Mapping) else v for n, v in rows if v is not None}

    def process(self, *, public: bool = False) -> dict[str, list[dict[str, Any]]]:
        """Return the samples of the process's series; of histograms only sum and count."""
        found: dict[str, list[dict[str, Any]]] = {}
        for name, metric in self._process.items():
            if _BY_NAME[name].public or not public:
                for sample in (s for family in metric.collect() for s in family.samples):
                    if not sample.name.endswith(("_bucket", "_created")):
                        row = {**sample.labels, "value": sample.value}
                        found.setdefault(sample.name.removeprefix("streampair_"), []).append(row)
        return found

    def render(self, *, public: bool = False) -> bytes:
        """Return the series as Prometheus reads them."""
        return generate_latest(self._public if public else self._operator)
