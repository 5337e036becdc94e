"""The series for Prometheus: one registry for operators, one for everybody.

A lane's numbers come from its *committed* state and are published after the commit only, so a
crash never takes a counter back. The public registry has nothing that is a function of raw
data (PRIVACY.md 7): no losses, rates or counts by outcome.
"""

from __future__ import annotations

import contextlib
import math
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from streampair import __version__
from streampair.engine.lane import LaneGauges

__all__ = ["HEALTH_STATES", "LaneLabels", "Telemetry"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

HEALTH_STATES = ("starting", "running", "waiting", "rebalancing", "stopping", "stopped", "failed")
"""The states of `streampair_health`; exactly one is 1 at any time."""

_LABELS = ("app", "topic", "partition", "learner")
_EVENT_BUCKETS = (1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1, 1.0)
_COMMIT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

LaneLabels = tuple[str, str, str, str]


@dataclass
class _Lane:
    gauges: LaneGauges
    lag: int | None = None


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
        self._public = public

    def collect(self) -> Iterable[Metric]:
        families = _Families()
        for app in self._apps.values():
            for labels, lane in app.lanes.items():
                if not self._public:
                    _add_operator(families, list(labels), lane)
                _add_privacy(families, list(labels), lane.gauges)
        return families.made()

    def describe(self) -> Iterable[Metric]:
        return []


class _Families:
    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}

    def gauge(
        self,
        name: str,
        text: str,
        labels: list[str],
        value: float | None,
        extra: dict[str, str] | None = None,
    ) -> None:
        if value is not None:
            self._add(GaugeMetricFamily, name, text, labels, value, extra)

    def counter(
        self, name: str, text: str, labels: list[str], value: float, extra: dict[str, str] | None = None
    ) -> None:
        self._add(CounterMetricFamily, name, text, labels, value, extra)

    def _add(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        text: str,
        labels: list[str],
        value: float,
        extra: dict[str, str] | None,
    ) -> None:
        family = self._families.get(name)
        if family is None:
            family = kind(f"streampair_{name}", text, labels=[*_LABELS, *(extra or {})])
            self._families[name] = family
        family.add_metric([*labels, *(extra or {}).values()], value)

    def made(self) -> Iterable[Metric]:
        return self._families.values()


def _add_operator(f: _Families, labels: list[str], lane: _Lane) -> None:
    g = lane.gauges
    for outcome, count in g.events.items():
        f.counter(
            "events", "Records of the input, by what became of them.", labels, count, {"outcome": outcome}
        )
    for stage, count in g.dead_letters.items():
        f.counter("dead_letters", "Bad events, by where they failed.", labels, count, {"stage": stage})
    f.gauge("lag", "Records of the input not yet committed.", labels, lane.lag)
    f.gauge("offset", "The next offset of the committed state.", labels, g.next_offset)
    f.gauge(
        "prequential_auc",
        "AUC of the scores given before learning, over the latest labelled events.",
        labels,
        None if math.isnan(g.auc) else g.auc,
    )
    f.gauge("weight_norm", "L2 norm of the published weights.", labels, g.weight_norm)
    f.gauge("buffer_records", "Records in the learner's buffer.", labels, g.buffer_records)
    f.gauge("state_bytes", "Size of the last snapshot.", labels, g.state_bytes)
    if g.null_slots is not None:
        f.counter("null_slots", "Null steps of a private learner.", labels, g.null_slots)
    regret = g.regret
    if regret is not None:
        penalty = {"penalty": regret.penalty}
        f.gauge(
            "regret_total",
            "Estimated regret: loss of the published models minus that of the best fixed one.",
            labels,
            regret.total,
            penalty,
        )
        f.gauge("regret_average", "regret_total by step.", labels, regret.average, penalty)
        f.gauge("regret_stderr", "Standard error of regret_total.", labels, regret.stderr, penalty)
        f.gauge("pair_loss", "Mean pair loss of the published models.", labels, regret.pair_loss)
        f.gauge("comparator_loss", "Mean pair loss of the best fixed model.", labels, regret.comparator_loss)


def _add_privacy(f: _Families, labels: list[str], g: LaneGauges) -> None:
    report = g.privacy
    if report is None:
        return
    f.gauge(
        "privacy_epsilon_spent",
        "Epsilon of all releases so far, at privacy_delta.",
        labels,
        report.epsilon_spent,
    )
    f.gauge("privacy_epsilon_budget", "Epsilon that is never passed.", labels, report.epsilon_budget)
    f.gauge("privacy_delta", "Delta of both epsilons.", labels, report.delta)
    f.gauge("privacy_mu_spent", "Gaussian differential privacy spent.", labels, report.mu_spent)
    f.gauge(
        "privacy_mu_budget", "Gaussian differential privacy that is never passed.", labels, report.mu_budget
    )
    f.gauge(
        "privacy_horizon_left",
        "Records that can still be learned; absent without a horizon.",
        labels,
        report.horizon_left,
    )
    f.counter("privacy_releases", "Models released.", labels, report.releases)
    f.gauge("privacy_forks", "Second views charged; absent without a ledger.", labels, g.forks)
    f.gauge("privacy_generation", "Generation of the noise; absent without a ledger.", labels, g.generation)
    for kind in ("holds", "void", "unvouched"):
        f.gauge(
            "privacy_guarantee",
            "1 for what can be said of the guarantee.",
            labels,
            1.0 if report.kind == kind else 0.0,
            {"kind": kind},
        )
    f.gauge("noise_std", "Standard deviation of the noise behind the releases.", labels, report.noise_std)


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
        build = Gauge("streampair_build_info", "The version that runs.", ["version", "python"], registry=None)
        build.labels(__version__, platform.python_version()).set(1)
        self._operator.register(build)
        self._public.register(build)
        self._score = Histogram(
            "streampair_score_seconds",
            "Time to score one event; one event of each batch is timed.",
            _LABELS,
            buckets=_EVENT_BUCKETS,
            registry=self._operator,
        )
        self._learn = Histogram(
            "streampair_learn_seconds",
            "Time by event to decode, score and learn, averaged over each batch.",
            _LABELS,
            buckets=_EVENT_BUCKETS,
            registry=self._operator,
        )
        self._commit = Histogram(
            "streampair_commit_seconds",
            "Time of a commit: outputs stored, snapshot saved, group offsets sent.",
            ["app"],
            buckets=_COMMIT_BUCKETS,
            registry=self._operator,
        )
        self._rebalances = Counter(
            "streampair_rebalances",
            "Times that partitions were assigned anew.",
            ["app"],
            registry=self._operator,
        )
        self._health = Gauge(
            "streampair_health",
            "1 for the state that the application is in.",
            ["app", "state"],
            registry=self._operator,
        )

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

    def publish(self, labels: LaneLabels, gauges: LaneGauges, lag: int | None) -> None:
        """Show the committed numbers of a lane."""
        self._apps.setdefault(labels[0], _App()).lanes[labels] = _Lane(gauges, lag)

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

    def rebalanced(self, app: str) -> None:
        """Count an assignment of partitions."""
        self._rebalances.labels(app).inc()

    def render(self, *, public: bool = False) -> bytes:
        """Return the series as Prometheus reads them."""
        return generate_latest(self._public if public else self._operator)
