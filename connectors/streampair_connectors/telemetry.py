"""The series for Prometheus: one registry for operators, one for everybody.

`SERIES` is the one place that says what there is: the metrics are made from it, and documents, alert rules
and dashboards are checked against it. A lane's numbers come from its *committed* state and are published
after the commit only, so a crash never takes a counter back. The public registry has nothing that is a
function of raw data (docs/privacy.md 7): no losses, rates or counts by outcome.
"""

from __future__ import annotations

import contextlib
import math
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from streampair import __version__
from streampair.engine.lane import LaneGauges

__all__ = ["HEALTH_STATES", "SERIES", "STAGES", "LaneLabels", "Series", "Telemetry"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

HEALTH_STATES = ("starting", "running", "waiting", "rebalancing", "stopping", "stopped", "failed")
"""The states of `streampair_health`; exactly one is 1 at any time."""

STAGES = ("decode", "learn", "encode")
"""What the time of a lane goes into; `fetch` and `commit` are the worker's, for all of its lanes."""

LaneLabels = tuple[str, str, str, str]

_M = TypeVar("_M", Counter, Gauge, Histogram)

_LANE = ("app", "topic", "partition", "learner")
_EVENT_BUCKETS = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1, 1.0)
_COMMIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_GUARANTEES = ("holds", "void", "unvouched")


@dataclass
class _Lane:
    gauges: LaneGauges
    lag: int | None = None
    seconds: Mapping[str, float] | None = None


# What a lane shows: a number, a number by the value of the last label, or nothing for now.
_Value = float | Mapping[str, float] | None


@dataclass(frozen=True)
class Series:
    """One series.

    Attributes
    ----------
    name
        As Prometheus shows it; the samples of a histogram end in `_bucket`, `_sum` and `_count`.
    kind
        Of metric.
    public
        Whether the public endpoint has it too: only what is no function of raw data.
    help
        What it is.
    labels
        Their names.
    read
        Its value for a lane; None: not a lane but the process itself counts it.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    public: bool
    help: str
    labels: tuple[str, ...] = _LANE
    read: Callable[[_Lane], _Value] | None = None


def _operator(
    name: str, help: str, read: Callable[[_Lane], _Value], *labels: str, counter: bool = False
) -> Series:
    """A series of a lane for the operator alone."""
    kind: Literal["gauge", "counter"] = "counter" if counter else "gauge"
    return Series(f"streampair_{name}", kind, False, help, (*_LANE, *labels), read)


def _regret(name: str, help: str, read: Callable[[Any], float], *labels: str) -> Series:
    """A series of the estimate of the regret."""

    def of_lane(lane: _Lane) -> _Value:
        regret = lane.gauges.regret
        if regret is None:
            return None
        return {regret.penalty: read(regret)} if labels else read(regret)

    return _operator(name, help, of_lane, *labels)


def _privacy(
    name: str, help: str, read: Callable[[Any], _Value], *labels: str, counter: bool = False
) -> Series:
    """A series of a private learner's report, for everybody."""

    def of_lane(lane: _Lane) -> _Value:
        report = lane.gauges.privacy
        return None if report is None else read(report)

    kind: Literal["gauge", "counter"] = "counter" if counter else "gauge"
    return Series(f"streampair_{name}", kind, True, help, (*_LANE, *labels), of_lane)


def _ledger(name: str, help: str, read: Callable[[LaneGauges], _Value]) -> Series:
    """A series of a private lane's ledger, for everybody."""

    def of_lane(lane: _Lane) -> _Value:
        return None if lane.gauges.privacy is None else read(lane.gauges)

    return Series(f"streampair_{name}", "gauge", True, help, _LANE, of_lane)


SERIES: tuple[Series, ...] = (
    _operator(
        "events_total",
        "Records of the input, by what became of them: learned, scored, dead_letter, ignored (seen before).",
        lambda lane: lane.gauges.events,
        "outcome",
        counter=True,
    ),
    _operator(
        "dead_letters_total",
        "Bad events, by where they failed: decode, features, label or learn.",
        lambda lane: lane.gauges.dead_letters,
        "stage",
        counter=True,
    ),
    _operator("lag", "Records of the input that are not committed yet.", lambda lane: lane.lag),
    _operator("offset", "The next offset of the committed state.", lambda lane: lane.gauges.next_offset),
    _operator(
        "prequential_auc",
        "AUC of the scores given before learning, over the latest labelled events.",
        lambda lane: None if math.isnan(lane.gauges.auc) else lane.gauges.auc,
    ),
    _operator(
        "null_slots_total",
        "Events that a private learner took as null records.",
        lambda lane: lane.gauges.null_slots,
        counter=True,
    ),
    _operator("weight_norm", "L2 norm of the published weights.", lambda lane: lane.gauges.weight_norm),
    _operator("buffer_records", "Records in the learner's buffer.", lambda lane: lane.gauges.buffer_records),
    _operator("state_bytes", "Size of the last snapshot.", lambda lane: lane.gauges.state_bytes),
    _regret(
        "regret_total",
        "Loss of the published models beyond that of the best fixed one, estimated from a sample of pairs.",
        lambda regret: regret.total,
        "penalty",
    ),
    _regret("regret_average", "regret_total by event.", lambda regret: regret.average, "penalty"),
    _regret("regret_stderr", "Standard error of regret_total.", lambda regret: regret.stderr, "penalty"),
    _regret("pair_loss", "Mean pair loss of the published models.", lambda regret: regret.pair_loss),
    _regret(
        "comparator_loss", "Mean pair loss of the best fixed model.", lambda regret: regret.comparator_loss
    ),
    Series(
        "streampair_score_seconds",
        "histogram",
        False,
        "Time to score one event; one event of each batch is timed.",
    ),
    Series(
        "streampair_learn_seconds",
        "histogram",
        False,
        "Time by event to decode, score and learn, averaged over each batch.",
    ),
    _operator(
        "lane_seconds_total",
        "Time by stage: decode; learn, which scores too; encode, which hands outputs to the client too.",
        lambda lane: lane.seconds,
        "stage",
        counter=True,
    ),
    Series(
        "streampair_worker_seconds_total",
        "counter",
        False,
        "Time for all lanes by stage: fetch, of polls that gave records, waiting for them too; commit.",
        ("app", "stage"),
    ),
    Series(
        "streampair_commit_seconds",
        "histogram",
        False,
        "Time of a commit: outputs stored, snapshot saved, group offsets sent.",
        ("app",),
    ),
    Series(
        "streampair_rebalances_total",
        "counter",
        False,
        "Times that partitions were assigned anew.",
        ("app",),
    ),
    Series(
        "streampair_health",
        "gauge",
        False,
        f"1 for the state that the application is in: {', '.join(HEALTH_STATES)}.",
        ("app", "state"),
    ),
    _privacy(
        "privacy_epsilon_spent",
        "Epsilon of all releases of this lane so far, at privacy_delta.",
        lambda report: report.epsilon_spent,
    ),
    _privacy("privacy_epsilon_budget", "Epsilon that is never passed.", lambda report: report.epsilon_budget),
    _privacy("privacy_delta", "Delta of both epsilons.", lambda report: report.delta),
    _privacy(
        "privacy_mu_spent",
        "Gaussian differential privacy spent, as its parameter mu.",
        lambda report: report.mu_spent,
    ),
    _privacy("privacy_mu_budget", "Mu that is never passed.", lambda report: report.mu_budget),
    _privacy(
        "privacy_horizon_left",
        "Events that can still be learned; absent without a horizon.",
        lambda report: report.horizon_left,
    ),
    _privacy("privacy_releases_total", "Models released.", lambda report: report.releases, counter=True),
    _ledger(
        "privacy_forks",
        "Second views of a window that are charged; absent without a ledger.",
        lambda gauges: gauges.forks,
    ),
    _ledger(
        "privacy_generation",
        "Generation of the noise, raised where payloads can change; absent without a ledger.",
        lambda gauges: gauges.generation,
    ),
    _privacy(
        "privacy_guarantee",
        f"1 for what can be said of the guarantee: {', '.join(_GUARANTEES)}.",
        lambda report: {kind: 1.0 if report.kind == kind else 0.0 for kind in _GUARANTEES},
        "kind",
    ),
    _privacy(
        "noise_std", "Standard deviation of the noise behind the releases.", lambda report: report.noise_std
    ),
    Series("streampair_build_info", "gauge", True, "The version that runs.", ("version", "python")),
)
"""Every series, in the order in which documents show them."""

_BY_NAME = {series.name.removeprefix("streampair_"): series for series in SERIES}


@dataclass
class _App:
    state: str = "starting"
    detail: str = ""
    next_step: str = ""
    lanes: dict[LaneLabels, _Lane] = field(default_factory=dict)


class _Lanes(Collector):
    """Makes the families of all lanes when they are scraped."""

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
            kind = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
            family = kind(series.name, series.help, labels=series.labels)
            for labels, lane in lanes:
                value = read(lane)
                if isinstance(value, Mapping):
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

    Examples
    --------
    >>> telemetry = Telemetry()
    >>> telemetry.health("fraud", "running")
    >>> b'streampair_health{app="fraud",state="running"} 1.0' in telemetry.render()
    True
    >>> b"streampair_health" in telemetry.render(public=True)
    False
    """

    def __init__(self) -> None:
        self._apps: dict[str, _App] = {}
        self._operator = CollectorRegistry()
        self._public = CollectorRegistry()
        self._operator.register(_Lanes(self._apps, public=False))
        self._public.register(_Lanes(self._apps, public=True))

        def make(kind: type[_M], name: str, **more: Any) -> _M:
            series = _BY_NAME[name]
            metric = kind(series.name, series.help, series.labels, registry=None, **more)
            for registry in (self._operator, self._public) if series.public else (self._operator,):
                registry.register(metric)
            return metric

        make(Gauge, "build_info").labels(__version__, platform.python_version()).set(1)
        self._score = make(Histogram, "score_seconds", buckets=_EVENT_BUCKETS)
        self._learn = make(Histogram, "learn_seconds", buckets=_EVENT_BUCKETS)
        self._commit = make(Histogram, "commit_seconds", buckets=_COMMIT_BUCKETS)
        self._seconds = make(Counter, "worker_seconds_total")
        self._rebalances = make(Counter, "rebalances_total")
        self._health = make(Gauge, "health")

    def health(self, app: str, state: str, detail: str = "", next_step: str = "") -> None:
        """Say which of `HEALTH_STATES` an application is in, why, and what an operator can do."""
        entry = self._apps.setdefault(app, _App())
        entry.state, entry.detail, entry.next_step = state, detail, next_step
        for known in HEALTH_STATES:
            self._health.labels(app, known).set(1.0 if known == state else 0.0)

    def health_report(self) -> tuple[bool, dict[str, dict[str, object]]]:
        """Return whether all applications run, and the state of each."""
        report: dict[str, dict[str, object]] = {
            name: {
                "state": app.state,
                "detail": app.detail,
                "next_step": app.next_step,
                "lanes": [
                    {"topic": labels[1], "partition": int(labels[2]), "lag": lane.lag}
                    for labels, lane in sorted(app.lanes.items())
                ],
            }
            for name, app in self._apps.items()
        }
        well = all(app.state in ("running", "rebalancing") for app in self._apps.values())
        return well and bool(report), report

    def publish(
        self,
        labels: LaneLabels,
        gauges: LaneGauges,
        lag: int | None,
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Show the committed numbers of a lane, and its time by stage."""
        shown = _Lane(gauges, lag, None if seconds is None else dict(seconds))
        self._apps.setdefault(labels[0], _App()).lanes[labels] = shown

    def lag(self, labels: LaneLabels, lag: int) -> None:
        """Show how far a lane is behind, between its commits too."""
        lane = self._apps.setdefault(labels[0], _App()).lanes.get(labels)
        if lane is not None:
            lane.lag = lag

    def gauges(self, app: str) -> dict[LaneLabels, LaneGauges]:
        """Return what is published of an application's lanes."""
        entry = self._apps.get(app)
        return {} if entry is None else {k: v.gauges for k, v in entry.lanes.items()}

    def withdraw(self, labels: LaneLabels) -> None:
        """Remove the series of a lane that this process no longer holds."""
        entry = self._apps.get(labels[0])
        if entry is not None:
            entry.lanes.pop(labels, None)
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
        self._commit.labels(app).observe(seconds)
        self._seconds.labels(app, "commit").inc(seconds)

    def fetched(self, app: str, seconds: float) -> None:
        """Record the time of a poll that gave records."""
        self._seconds.labels(app, "fetch").inc(seconds)

    def rebalanced(self, app: str) -> None:
        """Count an assignment of partitions."""
        self._rebalances.labels(app).inc()

    def render(self, *, public: bool = False) -> bytes:
        """Return the series as Prometheus reads them."""
        return generate_latest(self._public if public else self._operator)
