"""The series of a worker: name, kind, title, unit and help of each are in `SERIES` alone.

The metrics, the page and Grafana's panels are made from it; documents and alert rules are checked against it.
The public registry has no function of raw data (docs/privacy 7): no losses, rates or counts by outcome.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from streampair.engine import LaneGauges, LateGauges

__all__ = [
    "GUARANTEES",
    "HEALTH_STATES",
    "LABEL_OUTCOMES",
    "LANE",
    "OUTCOMES",
    "SERIES",
    "STAGES",
    "LabelMetrics",
    "LaneLabels",
    "LaneMetrics",
    "LaneValue",
    "MetricDefinition",
    "Observations",
]

HEALTH_STATES = ("starting", "running", "waiting", "rebalancing", "stopping", "stopped", "failed")
"""The states of `streampair_health`; exactly one is 1 at any time."""

OUTCOMES = ("committed", "fenced", "unknown", "failed")
"""Outcomes of a lane's commit: `fenced` by another owner; `unknown` if no broker confirmed it."""

STAGES = ("decode", "learn", "encode")
"""Stages of a lane's time; `fetch` and `commit` are the worker's."""

LABEL_OUTCOMES = ("used", "stopped", "repeated", "contradicting", "unused", "late", "unreadable")
"""Outcomes of messages of the labels topic; "stopped" with `label_input.stopped` only."""

LaneLabels = tuple[str, str, str]
LANE = ("app", "topic", "learner")
GUARANTEES = ("holds", "void", "unvouched")


class Observations(NamedTuple):
    """The value of a lane's histogram: observations up to each bound, and the sum of all."""

    buckets: Mapping[str, float]
    sum: float


@dataclass(frozen=True)
class LabelMetrics:
    """State of labels that come later than their events, since the worker opened the lane.

    Attributes
    ----------
    messages
        Of the labels topic, by outcome (`LABEL_OUTCOMES`).
    kept
        Labels in memory.
    newest
        Timestamp of the newest label, in seconds since the epoch; None: there is none, or labels are being
        read again.
    quiet
        Seconds without a label after which labels count as stopped.
    delays
        From an event to its label, of labels that were used.
    pending
        Records that were scored and are not due yet.
    without_id
        Events that were due and have no id.
    learned_to
        Timestamp of the newest event that was due, in seconds since the epoch; None: none was.
    lag
        Seconds since the oldest event that is not learned became due; None: labels are being read again.
    reading
        Whether the labels are being read again after a start, so that no event is due.
    """

    messages: Mapping[str, float]
    kept: int
    newest: float | None
    quiet: float
    delays: Observations
    pending: int
    without_id: int
    learned_to: float | None
    lag: float | None
    reading: bool


@dataclass
class LaneMetrics:
    """The committed numbers of a lane, how far it is behind, and its time by stage.

    Attributes
    ----------
    gauges, lag, seconds
        As committed.
    labels
        Of a lane whose labels come later; None otherwise.
    lag_seconds
        Longest time that an uncommitted record has waited.
    current
        A time, in seconds since the epoch, before which no uncommitted record came; None: not known.
    """

    gauges: LaneGauges
    lag: int | None = None
    seconds: Mapping[str, float] | None = None
    labels: LabelMetrics | None = None
    lag_seconds: float | None = None
    current: float | None = None

    def waits(self, now: float) -> None:
        """Update `lag_seconds`: no record has waited since before the last commit, or since before the lag
        was last 0.
        """
        if self.lag is None:
            return
        if self.lag == 0:
            self.current, self.lag_seconds = now, 0.0
        elif self.current is not None:
            self.lag_seconds = max(now - self.current, 0.0)


# The value of a lane's series: a number, numbers by the last label, a histogram, or nothing for now.
LaneValue = float | Mapping[str, float] | Observations | None


@dataclass(frozen=True)
class MetricDefinition:
    """Definition of a metric.

    Attributes
    ----------
    name
        Name in Prometheus; the samples of a histogram end in `_bucket`, `_sum` and `_count`.
    kind
        Type of metric.
    public
        Whether the public endpoint has it too: only if it is no function of raw data.
    title
        A short name for panels, tiles and columns.
    unit
        Unit of its values; empty for a dimensionless number.
    help
        Its definition, in one sentence.
    labels
        Names of its labels.
    read
        Its value for a lane; None: it belongs to the process, not to a lane.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    public: bool
    title: str
    unit: str
    help: str
    labels: tuple[str, ...] = LANE
    read: Callable[[LaneMetrics], LaneValue] | None = None


def _operator(
    name: str,
    title: str,
    unit: str,
    help: str,
    read: Callable[[LaneMetrics], LaneValue],
    *labels: str,
    counter: bool = False,
) -> MetricDefinition:
    """A series of a lane, for operators only."""
    kind: Literal["gauge", "counter"] = "counter" if counter else "gauge"
    return MetricDefinition(f"streampair_{name}", kind, False, title, unit, help, (*LANE, *labels), read)


def _regret(name: str, title: str, unit: str, help: str, read: Callable[[Any], float]) -> MetricDefinition:
    """A series of the regret estimate, for operators only."""

    def of_lane(lane: LaneMetrics) -> LaneValue:
        regret = lane.gauges.regret
        return None if regret is None else read(regret)

    return _operator(name, title, unit, help, of_lane)


def _privacy(
    name: str,
    title: str,
    unit: str,
    help: str,
    read: Callable[[Any], LaneValue],
    *labels: str,
    counter: bool = False,
) -> MetricDefinition:
    """A public series, of a private learner's report."""

    def of_lane(lane: LaneMetrics) -> LaneValue:
        report = lane.gauges.privacy
        return None if report is None else read(report)

    kind: Literal["gauge", "counter"] = "counter" if counter else "gauge"
    return MetricDefinition(f"streampair_{name}", kind, True, title, unit, help, (*LANE, *labels), of_lane)


def _ledger(
    name: str, title: str, unit: str, help: str, read: Callable[[LaneGauges], LaneValue]
) -> MetricDefinition:
    """A public series, of a private lane's ledger."""

    def of_lane(lane: LaneMetrics) -> LaneValue:
        return None if lane.gauges.privacy is None else read(lane.gauges)

    return MetricDefinition(f"streampair_{name}", "gauge", True, title, unit, help, LANE, of_lane)


def _quality(
    name: str, title: str, unit: str, help: str, read: Callable[[Any], LaneValue], *labels: str
) -> MetricDefinition:
    """A series of the quality of the latest scores, for operators only."""

    def of_lane(lane: LaneMetrics) -> LaneValue:
        quality = lane.gauges.quality
        return None if quality is None else read(quality)

    return _operator(name, title, unit, help, of_lane, *labels)


def _expected(
    name: str, title: str, unit: str, help: str, read: Callable[[Any], LaneValue]
) -> MetricDefinition:
    """A series of what is known before labels come, for operators only."""

    def of_lane(lane: LaneMetrics) -> LaneValue:
        return None if lane.gauges.expected is None else read(lane.gauges.expected)

    return _operator(name, title, unit, help, of_lane)


def _labels(
    name: str,
    title: str,
    unit: str,
    help: str,
    read: Callable[[LabelMetrics], LaneValue],
    *labels: str,
    kind: Literal["gauge", "counter", "histogram"] = "gauge",
) -> MetricDefinition:
    """A series of labels that come later, for operators only: with `value = true` it is the positive rate."""

    def of_lane(lane: LaneMetrics) -> LaneValue:
        return None if lane.labels is None else read(lane.labels)

    return MetricDefinition(f"streampair_{name}", kind, False, title, unit, help, (*LANE, *labels), of_lane)


def _late(
    name: str,
    title: str,
    unit: str,
    help: str,
    read: Callable[[LateGauges], LaneValue],
    *labels: str,
    counter: bool = False,
) -> MetricDefinition:
    """A series of the state of a lane whose labels come later, for operators only."""

    def of_lane(lane: LaneMetrics) -> LaneValue:
        return None if lane.gauges.late is None else read(lane.gauges.late)

    return _operator(name, title, unit, help, of_lane, *labels, counter=counter)


def _due(late: LateGauges) -> dict[str, int]:
    """Events that were due, by whether a label came."""
    found = {"yes": late.labelled, "no": late.due - late.labelled - late.stopped}
    return {**found, "stopped": late.stopped} if late.stopped else found


SERIES: tuple[MetricDefinition, ...] = (
    _operator(
        "events_total",
        "Events",
        "events",
        "Records of the input by outcome: learned, scored (no label, or past the horizon), dead_letter, "
        "tombstone, ignored (seen before).",
        lambda lane: lane.gauges.events,
        "outcome",
        counter=True,
    ),
    _operator(
        "dead_letters_total",
        "Dead letters",
        "events",
        "Events that could not be used, by the stage that failed: decode, features, label or learn.",
        lambda lane: lane.gauges.dead_letters,
        "stage",
        counter=True,
    ),
    _operator(
        "values_outside_bounds_total",
        "Values outside their bounds",
        "values",
        "Values beyond the declared bounds of their feature; learners with bounds clip them.",
        lambda lane: None if lane.gauges.outside is None else sum(lane.gauges.outside.values()),
        counter=True,
    ),
    _operator(
        "lag",
        "Lag",
        "records",
        "Records of the input that are not committed yet.",
        lambda lane: lane.lag,
    ),
    _operator(
        "lag_seconds",
        "Age of the lag",
        "seconds",
        "Longest time that a record has waited to be committed; 0 without lag, absent without timestamps.",
        lambda lane: lane.lag_seconds,
    ),
    _operator(
        "offset",
        "Next offset",
        "",
        "Next offset of the committed state.",
        lambda lane: lane.gauges.next_offset,
    ),
    _operator(
        "prequential_auc",
        "Prequential AUC",
        "ratio",
        "AUC of the scores computed before learning, over the latest labelled events; ties count one half.",
        lambda lane: None if math.isnan(lane.gauges.auc) else lane.gauges.auc,
    ),
    _operator(
        "null_slots_total",
        "Null records",
        "events",
        "Events that a private learner took as null records.",
        lambda lane: lane.gauges.null_slots,
        counter=True,
    ),
    _operator(
        "weight_norm",
        "Norm of the weights",
        "",
        "L2 norm of the published weights, of the features as the learner scales them.",
        lambda lane: lane.gauges.weight_norm,
    ),
    _operator(
        "weight_noise",
        "Noise in the weights",
        "",
        "Root mean square of the L2 norm of the noise in the published weights, to first order, in the unit "
        "of weight_norm; absent where it is not known.",
        lambda lane: lane.gauges.weight_noise,
    ),
    _operator(
        "buffer_records",
        "Records in the buffer",
        "records",
        "Records in the learner's buffer.",
        lambda lane: lane.gauges.buffer_records,
    ),
    _operator(
        "state_bytes",
        "Snapshot size",
        "bytes",
        "Size of the last snapshot.",
        lambda lane: lane.gauges.state_bytes,
    ),
    _regret(
        "regret_total",
        "Regret",
        "loss",
        "Loss of the published models in excess of the best fixed model's, estimated from a sample of pairs.",
        lambda regret: regret.total,
    ),
    _regret(
        "regret_average",
        "Average regret",
        "loss per pair",
        "regret_total divided by the number of events; it falls while the learner learns.",
        lambda regret: regret.average,
    ),
    _regret(
        "regret_stderr",
        "Standard error of the regret",
        "loss",
        "Standard error of regret_total.",
        lambda regret: regret.stderr,
    ),
    _regret(
        "pair_loss",
        "Pair loss",
        "loss per pair",
        "Mean pair loss of the published models.",
        lambda regret: regret.pair_loss,
    ),
    _regret(
        "comparator_loss",
        "Pair loss of the best fixed model",
        "loss per pair",
        "Mean pair loss of the best fixed model.",
        lambda regret: regret.comparator_loss,
    ),
    MetricDefinition(
        "streampair_score_seconds",
        "histogram",
        False,
        "Time to score",
        "seconds",
        "Time to score one event; one event of each batch is timed.",
    ),
    MetricDefinition(
        "streampair_learn_seconds",
        "histogram",
        False,
        "Time to learn",
        "seconds",
        "Time per event to decode, score and learn, averaged over each batch.",
    ),
    _operator(
        "lane_seconds_total",
        "Time by stage of a lane",
        "seconds",
        "Time by stage: decode; learn, with scoring; encode, with handing outputs to the client.",
        lambda lane: lane.seconds,
        "stage",
        counter=True,
    ),
    MetricDefinition(
        "streampair_worker_seconds_total",
        "counter",
        False,
        "Time by stage of the worker",
        "seconds",
        "Time by stage: fetch, of polls that returned records, with their wait; commit.",
        ("app", "stage"),
    ),
    MetricDefinition(
        "streampair_commit_seconds",
        "histogram",
        False,
        "Time of a commit",
        "seconds",
        "Time of a commit: outputs stored, snapshot saved, group offsets sent.",
        ("app",),
    ),
    MetricDefinition(
        "streampair_transactions_total",
        "counter",
        False,
        "Commits of the lane",
        "commits",
        "Commits by outcome: committed, fenced by another owner, unknown, failed.",
        ("app", "outcome"),
    ),
    MetricDefinition(
        "streampair_restores_total",
        "counter",
        False,
        "Restores",
        "lanes",
        "Lanes restored from a snapshot or by replaying their log.",
        ("app",),
    ),
    MetricDefinition(
        "streampair_fences_total",
        "counter",
        False,
        "Fences",
        "lanes",
        "Lanes given up because another owner fenced this worker.",
        ("app",),
    ),
    MetricDefinition(
        "streampair_opening_seconds",
        "gauge",
        False,
        "Time to open the lane",
        "seconds",
        "Time that opening the lane has taken so far, or took the last time: to read, verify and replay.",
        ("app",),
    ),
    MetricDefinition(
        "streampair_read_again_total",
        "counter",
        False,
        "Reads repeated",
        "",
        "Reads of a partition that a rebalance had overtaken during a poll: they were dropped and repeated.",
        ("app",),
    ),
    MetricDefinition(
        "streampair_count_differences_total",
        "counter",
        False,
        "Count differences",
        "commits",
        "Commits that were not made because the counts of records did not agree: the lane is opened again, "
        "and at the second one the worker stops.",
        ("app",),
    ),
    MetricDefinition(
        "streampair_configuration_changes",
        "gauge",
        False,
        "Configuration changes",
        "keys",
        "Keys of the configuration file that differ from those that the worker runs with.",
        ("app",),
    ),
    MetricDefinition(
        "streampair_rebalances_total",
        "counter",
        False,
        "Rebalances",
        "",
        "Assignments of partitions by the consumer group.",
        ("app",),
    ),
    MetricDefinition(
        "streampair_health",
        "gauge",
        False,
        "Health",
        "",
        f"1 for the state of the application: {', '.join(HEALTH_STATES)}.",
        ("app", "state"),
    ),
    _privacy(
        "privacy_epsilon_spent",
        "Epsilon spent so far",
        "epsilon",
        "Epsilon of all releases of this lane so far, at privacy_delta.",
        lambda report: report.epsilon_spent,
    ),
    _privacy(
        "privacy_epsilon_budget",
        "Epsilon promised",
        "epsilon",
        "Upper bound on epsilon, at privacy_delta.",
        lambda report: report.epsilon_budget,
    ),
    _privacy(
        "privacy_delta",
        "Delta",
        "",
        "Delta of both epsilons.",
        lambda report: report.delta,
    ),
    _privacy(
        "privacy_mu_spent",
        "Mu spent",
        "mu",
        "Gaussian differential privacy spent, as its parameter mu; squares of mu add up.",
        lambda report: report.mu_spent,
    ),
    _privacy(
        "privacy_mu_budget",
        "Mu budget",
        "mu",
        "Upper bound on mu.",
        lambda report: report.mu_budget,
    ),
    _privacy(
        "privacy_horizon",
        "Horizon",
        "events",
        "Events that the plan covers; absent without a horizon.",
        lambda report: report.horizon,
    ),
    _privacy(
        "privacy_horizon_left",
        "Horizon left",
        "events",
        "Events that can still be learned; absent without a horizon.",
        lambda report: report.horizon_left,
    ),
    _privacy(
        "privacy_releases_total",
        "Releases",
        "models",
        "Models released.",
        lambda report: report.releases,
        counter=True,
    ),
    _ledger(
        "privacy_forks",
        "Forks",
        "windows",
        "Windows charged twice, since a crash or an override may have released them twice; "
        "absent without a ledger.",
        lambda gauges: gauges.forks,
    ),
    _ledger(
        "privacy_generation",
        "Generation of the noise",
        "",
        "Generation of the noise, raised by each start where payloads can change; absent without a ledger.",
        lambda gauges: gauges.generation,
    ),
    _ledger(
        "privacy_since_seconds",
        "Account since",
        "seconds since 1970",
        "Timestamp of the account's first record, as its source says; absent without timestamps.",
        lambda gauges: gauges.since,
    ),
    _privacy(
        "privacy_guarantee",
        "Guarantee",
        "",
        f"1 for the state of the guarantee: {', '.join(GUARANTEES)}.",
        lambda report: {kind: 1.0 if report.kind == kind else 0.0 for kind in GUARANTEES},
        "kind",
    ),
    _privacy(
        "noise_std",
        "Noise of a release",
        "",
        "Standard deviation, per coordinate, of the noise in the releases, in the unit of what is released "
        "(sums, gradients or weights): compare it with the sensitivity on the privacy card.",
        lambda report: report.noise_std,
    ),
    _quality(
        "prequential_auc_stderr",
        "Standard error of the AUC",
        "ratio",
        "Standard error of prequential_auc, as if the events of its window were independent.",
        lambda quality: quality.auc_stderr,
    ),
    _quality(
        "average_precision",
        "Average precision",
        "ratio",
        "Mean of the precision over the positives, in the window of prequential_auc.",
        lambda quality: quality.average_precision,
    ),
    _quality(
        "recall_at_top",
        "Recall at the top",
        "ratio",
        "Share of the positives that are among the highest scores, in the window of prequential_auc.",
        lambda quality: quality.recall_at_top,
        "share",
    ),
    _quality(
        "drift",
        "Drift",
        "",
        "1 if the AUC has changed within the latest thousand labelled events (ADWIN's test); "
        "nothing is steered by it.",
        lambda quality: float(quality.drift),
    ),
    _privacy(
        "private_auc",
        "Private AUC",
        "ratio",
        "AUC released with noise, for auc_share of mu^2; absent without auc_share or with too few labels.",
        lambda report: None if report.auc is None else report.auc["value"],
    ),
    _privacy(
        "private_auc_stderr",
        "Standard error of the private AUC",
        "ratio",
        "Standard error of private_auc: of the sample, and of the noise.",
        lambda report: None if report.auc is None else report.auc["stderr"],
    ),
    MetricDefinition(
        "streampair_scored_events_total",
        "counter",
        False,
        "Events scored",
        "events",
        'Events that this worker has scored with the published model; with scoring = "parallel".',
        ("app",),
    ),
    MetricDefinition(
        "streampair_scoring_lag",
        "gauge",
        False,
        "Events to score",
        "events",
        "Events in the partitions of this worker that it has not scored yet.",
        ("app",),
    ),
    MetricDefinition(
        "streampair_events_behind",
        "gauge",
        False,
        "Events behind",
        "events",
        "Scored events, in the partitions of this worker, that its model has not learned.",
        ("app",),
    ),
    MetricDefinition(
        "streampair_model_age_seconds",
        "gauge",
        False,
        "Age of the model",
        "seconds",
        "Timestamp of the newest scored event minus that of the newest event that the model has learned; "
        "minus that of the first scored event while it has learned none.",
        ("app",),
    ),
    MetricDefinition(
        "streampair_model_slots",
        "gauge",
        False,
        "Slots of the model",
        "events",
        "Records that the model with which this worker scores has learned.",
        ("app",),
    ),
    _quality(
        "evaluated_events",
        "Events in the AUC",
        "events",
        "Size of the window of prequential_auc.",
        lambda quality: quality.events,
    ),
    _quality(
        "recall_at_threshold",
        "Recall at the threshold",
        "ratio",
        "Share of the positives whose score is at least output.alert_above, in the window of "
        "prequential_auc; absent without a threshold. Where events are stopped, absent without "
        "output.explore and with fewer than 30 explored positives.",
        lambda quality: quality.recall_at_threshold,
    ),
    _quality(
        "precision_at_threshold",
        "Precision at the threshold",
        "ratio",
        "Share of the positives among the events whose score is at least output.alert_above, in the window "
        "of prequential_auc; absent as recall_at_threshold is.",
        lambda quality: quality.precision_at_threshold,
    ),
    _quality(
        "explored_positives",
        "Explored positives",
        "events",
        "Positives in the window of prequential_auc that were let pass to learn their outcomes; below 30 "
        "there is no precision and no recall. Absent without output.explore.",
        lambda quality: quality.explored_positives,
    ),
    _expected(
        "expected_auc",
        "Expected AUC",
        "ratio",
        "AUC that calibrated probabilities predict for the latest thousand scores, before their labels come; "
        "absent while a feature has left its reference, or with fewer than 30 labels of a class. It cannot "
        "see concept drift.",
        lambda expected: expected.auc,
    ),
    _expected(
        "expected_positive_share",
        "Expected share of positives",
        "ratio",
        "Share of positives that the same probabilities predict; absent as expected_auc.",
        lambda expected: expected.positive_share,
    ),
    _expected(
        "features_moved",
        "Features outside their reference",
        "features",
        "Features that have left the reference: another share of missing values, new texts, or numbers out "
        "of range.",
        lambda expected: len(expected.moved),
    ),
    _expected(
        "feature_psi",
        "Drift of features",
        "",
        "Largest population stability index of a feature: the latest thousand events against the reference. "
        "From 0.2 on it has moved; the page names the worst five.",
        lambda expected: max((value for _, value in expected.psi), default=None),
    ),
    _expected(
        "score_psi",
        "Drift of scores",
        "",
        "Population stability index of the scores, which also move as the model learns.",
        lambda expected: expected.score_psi,
    ),
    _labels(
        "label_messages_total",
        "Messages of the labels topic",
        "messages",
        "Messages of the labels topic since the lane was opened, by outcome: used, stopped (its event was "
        "stopped: label_input.stopped), repeated (a further label of the event, with the same value), "
        "contradicting (with another one), unused (no event had the id in time), late (every event that it "
        "could be for was learned before), unreadable.",
        lambda labels: labels.messages,
        "outcome",
        kind="counter",
    ),
    _labels(
        "labels_kept",
        "Labels in memory",
        "labels",
        "Labels in memory, used ones included; they leave when no event can need them any more.",
        lambda labels: labels.kept,
    ),
    _labels(
        "label_newest_seconds",
        "Newest label",
        "seconds since 1970",
        "Timestamp of the newest label; absent without any, and while labels are read again.",
        lambda labels: labels.newest,
    ),
    _labels(
        "label_quiet_seconds",
        "Usual time without labels",
        "seconds",
        "Time without any label after which labels count as stopped: label_input.quiet, or else a tenth of "
        "label_input.after, an hour at least.",
        lambda labels: labels.quiet,
    ),
    _labels(
        "label_delay_seconds",
        "Delay of labels",
        "seconds",
        "From the timestamp of an event to that of its label, of labels that were used since the lane was "
        "opened; 0 for a label before its event.",
        lambda labels: labels.delays,
        kind="histogram",
    ),
    _labels(
        "events_pending",
        "Events not due yet",
        "events",
        "Records of the input that were scored and are not due yet.",
        lambda labels: labels.pending,
    ),
    _late(
        "due_events_total",
        "Events that were due",
        "events",
        "Events whose label had all its time, by whether it came: yes or no; or stopped, where a label says "
        "that the event was stopped.",
        _due,
        "labelled",
        counter=True,
    ),
    _late(
        "explored_events_total",
        "Events that were to be stopped",
        "events",
        "Events whose score was at least output.alert_above, by explored: yes (they have an outcome, and "
        "each stands for 1 / output.explore events in all figures of quality), no (they have one, and "
        "were not to be let pass: they are in no figure; counted of the sample of scores), stopped (they "
        "were to be let pass, and a label says that they were stopped: figures lack them); absent without "
        "output.explore.",
        lambda late: late.explored,
        "explored",
        counter=True,
    ),
    _labels(
        "events_without_id_total",
        "Events without an id",
        "events",
        "Events that were due and have no id, so that no label finds them, since the lane was opened.",
        lambda labels: labels.without_id,
        kind="counter",
    ),
    _late(
        "sampled_labels_total",
        "Labels of a sample of events",
        "labels",
        "Labels of a sample of the events, by whether they came in_time or late, after the event was learned "
        "without one (up to twice label_input.after).",
        lambda late: {"in_time": late.in_time, "late": late.late},
        "came",
        counter=True,
    ),
    _labels(
        "learned_to_seconds",
        "Newest event that was due",
        "seconds since 1970",
        "Timestamp of the newest event that was due; absent before the first.",
        lambda labels: labels.learned_to,
    ),
    _labels(
        "learning_lag_seconds",
        "Lag of learning",
        "seconds",
        "Time since the oldest event that is not learned became due; 0 if none is due, absent while labels "
        "are read again.",
        lambda labels: labels.lag,
    ),
    _labels(
        "labels_reading",
        "Labels are read again",
        "",
        "1 while the labels are read again after a start: events are scored, and none is learned.",
        lambda labels: float(labels.reading),
    ),
    _late(
        "score_sample_events",
        "Scores that wait for labels",
        "events",
        "Size of the sample of scores that are kept from arrival until the label is due, for the AUC.",
        lambda late: late.scores,
    ),
    _late(
        "score_sample_share",
        "Share of scores that wait",
        "ratio",
        "Share of the events that wait whose score is in the sample.",
        lambda late: late.share,
    ),
    MetricDefinition(
        "streampair_build_info",
        "gauge",
        True,
        "Version",
        "",
        "Versions of streampair and Python.",
        ("version", "python"),
    ),
)
"""All series, in the order of the documentation."""
