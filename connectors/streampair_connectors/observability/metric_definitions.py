"""What series there are: `SERIES` is the one place that says it.

The metrics are made from it, and documents, alert rules and dashboards are checked against it. The public
registry has nothing that is a function of raw data (docs/privacy 7): no losses, rates, counts by outcome.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from streampair.engine.lane import LaneGauges

__all__ = [
    "GUARANTEES",
    "HEALTH_STATES",
    "LANE",
    "OUTCOMES",
    "SERIES",
    "STAGES",
    "LaneLabels",
    "LaneMetrics",
    "LaneValue",
    "Series",
    "lane_order",
]

HEALTH_STATES = ("starting", "running", "waiting", "rebalancing", "stopping", "stopped", "failed")
"""The states of `streampair_health`; exactly one is 1 at any time."""

OUTCOMES = ("committed", "fenced", "unknown", "failed")
"""What may come of the commit of a lane: `fenced` by another owner; `unknown` if no broker said so."""

STAGES = ("decode", "learn", "encode")
"""What the time of a lane goes into; `fetch` and `commit` are the worker's, for all of its lanes."""

LaneLabels = tuple[str, str, str, str]


def lane_order(labels: LaneLabels) -> tuple[str, str, int, str]:
    """Return the sort key of a lane: partitions by number, so that 2 comes before 10."""
    app, topic, partition, learner = labels
    return app, topic, int(partition), learner


LANE = ("app", "topic", "partition", "learner")
GUARANTEES = ("holds", "void", "unvouched")


@dataclass
class LaneMetrics:
    """The committed numbers of a lane, how far it is behind, and its time by stage.

    Attributes
    ----------
    gauges, lag, seconds
        As committed.
    lag_seconds
        How long the records have waited that are not committed, at most.
    current
        A time, in seconds since the epoch, before which no such record came; None: not known.
    """

    gauges: LaneGauges
    lag: int | None = None
    seconds: Mapping[str, float] | None = None
    lag_seconds: float | None = None
    current: float | None = None

    def waits(self, now: float) -> None:
        """Say how long records have waited by now: none came before the last that was committed, or before
        the moment at which nothing waited.
        """
        if self.lag is None:
            return
        if self.lag == 0:
            self.current, self.lag_seconds = now, 0.0
        elif self.current is not None:
            self.lag_seconds = max(now - self.current, 0.0)


# What a lane shows: a number, a number by the value of the last label, or nothing for now.
LaneValue = float | Mapping[str, float] | None


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
    labels: tuple[str, ...] = LANE
    read: Callable[[LaneMetrics], LaneValue] | None = None


def _operator(
    name: str, help: str, read: Callable[[LaneMetrics], LaneValue], *labels: str, counter: bool = False
) -> Series:
    """A series of a lane for the operator alone."""
    kind: Literal["gauge", "counter"] = "counter" if counter else "gauge"
    return Series(f"streampair_{name}", kind, False, help, (*LANE, *labels), read)


def _regret(name: str, help: str, read: Callable[[Any], float], *labels: str) -> Series:
    """A series of the estimate of the regret."""

    def of_lane(lane: LaneMetrics) -> LaneValue:
        regret = lane.gauges.regret
        if regret is None:
            return None
        return {regret.penalty: read(regret)} if labels else read(regret)

    return _operator(name, help, of_lane, *labels)


def _privacy(
    name: str, help: str, read: Callable[[Any], LaneValue], *labels: str, counter: bool = False
) -> Series:
    """A series of a private learner's report, for everybody."""

    def of_lane(lane: LaneMetrics) -> LaneValue:
        report = lane.gauges.privacy
        return None if report is None else read(report)

    kind: Literal["gauge", "counter"] = "counter" if counter else "gauge"
    return Series(f"streampair_{name}", kind, True, help, (*LANE, *labels), of_lane)


def _ledger(name: str, help: str, read: Callable[[LaneGauges], LaneValue]) -> Series:
    """A series of a private lane's ledger, for everybody."""

    def of_lane(lane: LaneMetrics) -> LaneValue:
        return None if lane.gauges.privacy is None else read(lane.gauges)

    return Series(f"streampair_{name}", "gauge", True, help, LANE, of_lane)


def _quality(name: str, help: str, read: Callable[[Any], LaneValue], *labels: str) -> Series:
    """A series of how good the latest scores of a lane are."""

    def of_lane(lane: LaneMetrics) -> LaneValue:
        found = lane.gauges.quality
        return None if found is None else read(found)

    return _operator(name, help, of_lane, *labels)


SERIES: tuple[Series, ...] = (
    _operator(
        "events_total",
        "Records of the input, by what became of them: "
        "learned, scored, dead_letter, tombstone, ignored (seen before).",
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
    _operator(
        "values_outside_bounds_total",
        "Values beyond the declared bounds of their feature; learners that take bounds clip them.",
        lambda lane: None if lane.gauges.outside is None else sum(lane.gauges.outside.values()),
        counter=True,
    ),
    _operator("lag", "Records of the input that are not committed yet.", lambda lane: lane.lag),
    _operator(
        "lag_seconds",
        "How long records have waited to be committed, at most; 0 where none do, absent without dates.",
        lambda lane: lane.lag_seconds,
    ),
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
        "streampair_transactions_total",
        "counter",
        False,
        "Commits of single lanes by outcome: committed, fenced by another owner, unknown, failed.",
        ("app", "outcome"),
    ),
    Series(
        "streampair_restores_total",
        "counter",
        False,
        "Lanes that were brought back: from a snapshot, or by replaying their log.",
        ("app",),
    ),
    Series(
        "streampair_fences_total",
        "counter",
        False,
        "Lanes that were given up because another owner had begun to work on them.",
        ("app",),
    ),
    Series(
        "streampair_configuration_changes",
        "gauge",
        False,
        "Keys of the configuration file that are no longer as when the worker read it.",
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
        "privacy_horizon",
        "Events that the plan covers; absent without a horizon.",
        lambda report: report.horizon,
    ),
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
    _ledger(
        "privacy_since_seconds",
        "Date of the account's first record, by its source, in seconds since 1970; absent without dates.",
        lambda gauges: gauges.since,
    ),
    _privacy(
        "privacy_guarantee",
        f"1 for what can be said of the guarantee: {', '.join(GUARANTEES)}.",
        lambda report: {kind: 1.0 if report.kind == kind else 0.0 for kind in GUARANTEES},
        "kind",
    ),
    _privacy(
        "noise_std", "Standard deviation of the noise behind the releases.", lambda report: report.noise_std
    ),
    _quality(
        "prequential_auc_stderr",
        "Standard error of prequential_auc, as if the events of its window were independent.",
        lambda quality: quality.auc_stderr,
    ),
    _quality(
        "shadow_auc",
        "AUC of a learner beside it that is not private, over its latest labelled events; absent without.",
        lambda quality: quality.shadow_auc,
    ),
    _quality(
        "average_precision",
        "Mean of the precision over the positives, in the window of prequential_auc.",
        lambda quality: quality.average_precision,
    ),
    _quality(
        "recall_at_top",
        "Share of the positives that are among the highest scores, in the window of prequential_auc.",
        lambda quality: quality.recall_at_top,
        "share",
    ),
    _quality(
        "drift",
        "1 if the AUC has changed within the latest thousand labelled events (ADWIN's test).",
        lambda quality: float(quality.drift),
    ),
    _privacy(
        "private_auc",
        "AUC that was released under noise, for auc_share of mu^2; absent where too few records tell it.",
        lambda report: None if report.auc is None else report.auc["value"],
    ),
    _privacy(
        "private_auc_stderr",
        "Standard error of private_auc: of the sample, and of the noise.",
        lambda report: None if report.auc is None else report.auc["stderr"],
    ),
    Series("streampair_build_info", "gauge", True, "The version that runs.", ("version", "python")),
)
"""Every series, in the order in which documents show them."""
