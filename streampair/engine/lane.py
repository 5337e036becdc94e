"""A lane: one learner on one stream of records, which scores each event before it learns from it.

A lane is a pure state machine. It reads no clock, no network and no global random state: the same snapshot
and the same records give the same outputs and the same next snapshot, bit for bit (a private learner without
a noise key draws fresh noise after a restore; everything else about it is the same): docs/design.md,
"Determinism".

For every record, whatever it contains:

- it gives exactly one `Scored`, so that counts never depend on content (docs/privacy 9.7);
- it is scored before it is learned;
- if it fails, the model is as before it, a dead letter says why, and the batch goes on;
- with a private learner it takes exactly one slot: learned, or a null step (docs/privacy 3.3).
"""

from __future__ import annotations

import dataclasses
import operator
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from streampair import __version__
from streampair.engine.batch import RecordProcessor
from streampair.engine.delays import LateSample, ScoreSample
from streampair.engine.lane_id import LaneId
from streampair.engine.monitor import Monitor, Monitoring
from streampair.engine.outcomes import Outcomes
from streampair.engine.pipeline import PipelineAdapter
from streampair.engine.protocols import ClassLearner
from streampair.engine.records import (
    Breaker,
    DeadLetter,
    Event,
    LaneGauges,
    LaneOutput,
    LateGauges,
    Record,
    Scored,
)
from streampair.engine.snapshot import (
    Dates,
    Saving,
    Snapshot,
    dated,
    is_signed,
    pack,
    since_of,
    summary,
    unreadable,
)
from streampair.engine.weights import largest_weights, weight_norm
from streampair.errors import ConfigError, LaneStoppedError, SnapshotError
from streampair.evaluation import RegretEstimate

__all__ = [
    "Breaker",
    "DeadLetter",
    "Event",
    "Lane",
    "LaneGauges",
    "LaneOutput",
    "Record",
    "Scored",
]

_WEIGHTS = 16  # number of weights in the gauges


class Lane:
    """Learner that scores, then learns, the records of a topic in one order.

    Parameters
    ----------
    learner
        An estimator of streampair or River, or a River pipeline that ends in one. The lane owns it from here.
    decode
        From a record to an event. Raises `RecordError` for a record that it cannot read; any other exception
        is taken as one of stage `"decode"`. With a private learner it must be a function of the record alone.
    identity
        Of the lane: the noise is drawn under it, and a snapshot of another lane is refused.
    name
        Name of the learner in outputs and metrics; None takes its class.
    positive
        The label that ranks high.
    on_bad
        `"dlq"`: give a dead letter; `"skip"`: only count; `"fail"`: stop the lane.
    breaker
        Stop when too many events are bad. `"auto"` takes `Breaker()`, and none for a private learner: to
        stop because of content is a function of content, so a private lane with a breaker, or with
        `on_bad="fail"`, says in its report that the guarantee is void.
    monitoring
        What is measured for operators.
    saving
        How the state is saved. None for a lane that will never be saved; then foreign steps need no pickle.
    trust_preprocessing
        Accept steps that learn from the stream in front of a private learner; its report then says void.
    classes
        Whether labels are of any number of classes. Each output of a multiclass classifier then has the
        probabilities of all classes that it knows, and the score of `positive`.
    explain
        How many of the largest contributions each score has, `Scored.reasons`; 0: none. Of a learner with
        `explain_one`.
    labels
        Where labels come later than events: the labels by their code. The first is that of an event for which
        none has come, None if such an event is not learned. Records are then of `OrderedRecord`, and each
        says whether it is scored or learned now. None: an event has its label.
    notes
        Further notes of the privacy report. They must depend on the configuration alone.

    Attributes
    ----------
    late_sample
        Where labels come later: what notices those that came too late. Whoever feeds the lane fills it; it
        influences nothing and is in the snapshot. None: an event has its label.

    Raises
    ------
    ConfigError
        If the model cannot score, copy, save or explain itself as asked.
    PrivacyError
        If the pipeline breaks the guarantee of its private learner.

    Examples
    --------
    >>> from river import linear_model
    >>> from streampair.engine import Event, Lane, LaneId, Record
    >>> def decode(record):
    ...     amount, label = record.value.split(b",")
    ...     return Event({"amount": float(amount)}, label == b"fraud")
    >>> lane = Lane(linear_model.LogisticRegression(), decode, LaneId("demo", "events", 0), saving=None)
    >>> output = lane.process([Record(0, b"0.9,fraud"), Record(1, b"0.1,fine"), Record(2, b"oops")])
    >>> [scored.outcome for scored in output.scores]
    ['learned', 'learned', 'dead_letter']
    >>> output.dead_letters[0].stage, output.next_offset
    ('decode', 3)
    """

    def __init__(
        self,
        learner: Any,
        decode: Callable[[Record], Event],
        identity: LaneId,
        *,
        name: str | None = None,
        positive: object = True,
        on_bad: Literal["dlq", "skip", "fail"] = "dlq",
        breaker: Breaker | Literal["auto"] | None = "auto",
        monitoring: Monitoring = Monitoring(),  # noqa: B008  (frozen)
        saving: Saving | None = Saving(),  # noqa: B008  (frozen)
        trust_preprocessing: bool = False,
        classes: bool = False,
        explain: int = 0,
        labels: Sequence[object] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        if on_bad not in ("dlq", "skip", "fail"):
            raise ConfigError(f"on_bad={on_bad!r} is unknown", fix="use 'dlq', 'skip' or 'fail'")
        self.identity = identity
        self.positive = positive
        self.on_bad = on_bad
        self._model = PipelineAdapter(
            learner,
            positive=positive,
            trust_preprocessing=trust_preprocessing,
            classes=classes,
            explain=explain,
        )
        self.name = type(self._model.learner).__name__ if name is None else name
        last_step = self._model.learner
        if isinstance(last_step, ClassLearner) and last_step.positive != positive:
            raise ConfigError(
                f"the lane ranks {positive!r} high, its learner {last_step.positive!r}",
                fix="give both the same positive=",
            )
        self._saving = saving
        self._check_saving()
        self._breaker = (Breaker() if self._model.private is None else None) if breaker == "auto" else breaker
        self._void = self._why_void()
        for reason in self._void:
            warnings.warn(
                f"the privacy guarantee of {self.name} is void: {reason}", UserWarning, stacklevel=2
            )
        self._monitor = Monitor(self._model.lane_learner, monitoring)
        self.late_sample = None if labels is None else LateSample()
        self._outcomes = Outcomes(
            identity.topic, identity.partition, on_bad=on_bad, breaker=self._breaker, late=labels is not None
        )
        self._batch = RecordProcessor(
            self._model,
            decode,
            outcomes=self._outcomes,
            monitor=self._monitor,
            partition=identity.partition,
            bounds=monitoring.bounds,
            labels=labels,
            exploration=monitoring.exploration,
        )
        self._state_bytes: int | None = None
        # Date of the first record: metadata, which neighbouring streams share (docs/privacy 1).
        # None: no record yet; 0: unknown.
        self._since: int | None = None
        self._dates = Dates()
        self._used = False
        self._torn = False
        if self._model.private is not None:
            self._model.private.bind_noise(identity.text)
        self._notes = tuple(notes)

    @property
    def next_offset(self) -> int | None:
        """Offset of the first record that the lane has not taken yet; None before the first."""
        return self._batch.next_offset

    @property
    def seen(self) -> int:
        """Records that the lane has taken."""
        return self._batch.seen

    @property
    def slots(self) -> int:
        """Number of records to be learned: all, or where labels come later those that were due."""
        return self._batch.seen if self._batch.arrivals is None else self._batch.due

    @property
    def outcomes(self) -> dict[str, int]:
        """Records that the lane has taken, by outcome, as of `LaneGauges.events`."""
        return dict(self._outcomes.events)

    @property
    def score_sample(self) -> ScoreSample | None:
        """Scores of events that wait for their labels; None: labels are in the events."""
        return self._batch.arrivals

    @property
    def learner(self) -> Any:
        """The last step of the model, for reading; another object after a rollback of a foreign model."""
        return self._model.learner

    @property
    def model(self) -> Any:
        """The whole model."""
        return self._model.whole

    @property
    def pickled(self) -> tuple[str, ...]:
        """Names of the steps that only pickle can save; parallel scorers take none of them."""
        return tuple(self._model.pickled)

    @property
    def probabilities(self) -> Callable[[Any], Any] | None:
        """Function from scores (n,) to the model's current probabilities; None: it gives none."""
        return self._model.probabilities

    @property
    def private(self) -> bool:
        """Whether the learner keeps a privacy ledger."""
        return self._model.private is not None

    @property
    def privacy(self) -> Any:
        """The learner's privacy report, void where the lane breaks its guarantee; None if not private."""
        report = self._voided(operator.attrgetter("privacy"))
        if report is None or not self._notes:
            return report
        return dataclasses.replace(report, notes=(*report.notes, *self._notes))

    def _voided(self, report_of: Callable[[Any], Any]) -> Any:
        """A report of the private learner, or its numbers; void where the lane breaks its guarantee."""
        private = self._model.private
        if private is None:
            return None
        reasons = self._void_reasons()
        report = report_of(private)
        if report is None:
            return None
        if reasons:
            return dataclasses.replace(report, kind="void", guarantee=f"void ({'; '.join(reasons)})")
        if report.kind != "void" and (uncovered := self._uncovered()):
            return dataclasses.replace(report, guarantee=f"{report.guarantee}; {uncovered}")
        return report

    def _uncovered(self) -> str:
        """Limits of the guarantee that follow from the source of the records; empty: none."""
        return ""

    def _void_reasons(self) -> list[str]:
        """Why the learner's guarantee does not hold in this lane."""
        return self._void

    @property
    def auc(self) -> float:
        """AUC of the latest scores, each made before its event was learned; NaN until it is defined."""
        return self._monitor.auc.get()

    # Learning

    def process(self, records: Sequence[Record]) -> LaneOutput:
        """Score each record, then learn from it.

        Parameters
        ----------
        records
            In their order. A record with an offset below `next_offset` was learned before: it
            is counted as `"ignored"` and gives nothing.

        Returns
        -------
        LaneOutput

        Raises
        ------
        LaneStoppedError
            Under `on_bad="fail"`, and when the breaker trips. The batch then has no outputs: write nothing,
            and start again from the last snapshot with a new lane.
        """
        if self._torn:
            raise LaneStoppedError(
                "the lane stopped in the middle of an earlier batch, or of a restore",
                fix="make a new lane and restore the last snapshot",
            )
        self._torn = self._used = True
        output = self._take(records)
        self._torn = False
        return output

    def _take(self, records: Sequence[Record]) -> LaneOutput:
        if self._since is None and records:
            self._since = dated(records[0].timestamp)
        return self._batch.process(records)

    # Telemetry

    def gauges(self, *, solve: bool | None = None) -> LaneGauges:
        """The lane's numbers.

        Parameters
        ----------
        solve
            Whether to estimate the regret now, which costs milliseconds. None: if the stream has grown enough
            that the cost is negligible (by counts, not by time); True: now; False: return the last estimate,
            and the last `quality` too, if there is one. `expected` is found again with None alone, and by
            `look`.

        Returns
        -------
        LaneGauges
        """
        learner, private = self._model.lane_learner, self._model.private
        quality = self._monitor.quality(self._model.probabilities, solve=solve is not False)
        weights = learner.scaled_weights
        noise = learner.weights_noise
        return LaneGauges(
            events=dict(self._outcomes.events),
            dead_letters=dict(self._outcomes.stages),
            auc=self.auc,
            regret=self.regret(solve=solve),
            weight_norm=weight_norm(weights),
            buffer_records=learner.buffer_records,
            null_slots=None if private is None else private.null_slots,
            state_bytes=self._state_bytes,
            next_offset=self.next_offset,
            privacy=self.privacy,
            quality=quality,
            expected=self._monitor.expected(look=solve is None),
            weights=largest_weights(weights, noise, _WEIGHTS),
            weight_noise=weight_norm(noise),  # the squares of standard deviations add up to that of the norm
            since=self._since / 1000.0 if self._since else None,
            release_dates=tuple(self._dates.releases),
            fork_dates=tuple(self._dates.forks),
            outside=None if self._batch.outside is None else dict(self._batch.outside.counts),
            late=self._late(),
        )

    def _late(self) -> LateGauges | None:
        batch, sample = self._batch, self.late_sample
        if batch.arrivals is None or sample is None:
            return None
        return LateGauges(
            due=batch.due,
            labelled=batch.labelled,
            stopped=batch.stopped,
            explored=None if batch.exploration is None else dict(batch.explored),
            scores=len(batch.arrivals),
            share=batch.arrivals.share,
            in_time=sample.in_time,
            late=sample.late,
        )

    def regret(self, *, solve: bool | None = True) -> RegretEstimate | None:
        """The regret up to now; None where none is estimated, or before the second labelled event."""
        return self._monitor.estimate(self._model.lane_learner, solve=solve)

    def look(self) -> bool:
        """Find `expected` of the gauges again after a quarter of a window of events; whether it was found.

        It costs a millisecond or two.
        """
        before = self._monitor.expected(look=False)
        return self._monitor.expected() is not before

    # Saving

    def snapshot(self, *, clean: bool = False) -> bytes:
        """The state of the lane, from which `restore` continues.

        Parameters
        ----------
        clean
            Whether the process is about to stop, with nothing processed after this snapshot.

        Returns
        -------
        bytes
            See `streampair.engine.snapshot`. As sensitive as the data.

        Raises
        ------
        SnapshotError
            If the lane stopped in the middle of a batch, or was made with `saving=None`.
        """
        saving = self._saving
        if saving is None:
            raise SnapshotError("the lane was made with saving=None", fix="make it with saving=Saving()")
        if self._torn:
            raise SnapshotError(
                "the lane stopped in the middle of a batch, so its state belongs to no offset",
                fix="make a new lane and restore the last snapshot",
            )
        state = self._state(saving, clean=clean)
        key = saving.signing_keys[0] if saving.signing_keys else None
        data = pack(msgspec.structs.asdict(state), signing_key=key)
        self._state_bytes = len(data)
        return data

    def _state(self, saving: Saving, *, clean: bool) -> Snapshot:
        auc, regret = self._monitor.auc, self._monitor.regret
        return Snapshot(
            writer=__version__,
            **self.identity._asdict(),
            name=self.name,
            fingerprint=saving.fingerprint,
            next_offset=self.next_offset,
            clean=clean,
            steps=self._model.save(),
            auc=auc.to_state(),
            regret=None if regret is None else regret.to_state(),
            events=dict(self._outcomes.events),
            stages=dict(self._outcomes.stages),
            seen=self._batch.seen,
            bad=list(self._outcomes.bad),
            ledger=self._account(),
            privacy=self._summary(),
            outside={} if self._batch.outside is None else dict(self._batch.outside.counts),
            due=self._batch.due,
            arrivals=None if self._batch.arrivals is None else self._batch.arrivals.to_state(),
            labels_used=self._labels_used(),
            labelled=self._batch.labelled,
            stopped=self._batch.stopped,
            explored=dict(self._batch.explored),
            late_sample=None if self.late_sample is None else self.late_sample.to_state(),
            before=None if self._monitor.before is None else self._monitor.before.to_state(),
        )

    def restore(self, data: bytes) -> None:
        """Restore a snapshot. Only on a lane that has processed nothing.

        Parameters
        ----------
        data
            What `snapshot` returned.

        Raises
        ------
        SnapshotError
            If it is damaged, was written by another format version, belongs to another app, topic,
            partition, model or configuration, or holds a pickle that no signature vouches for. The lane is
            then unusable.
        """
        if self._used:
            raise SnapshotError(
                "this lane has already processed events",
                fix="restore into a new lane, before the first batch",
            )
        self._used = self._torn = True
        saving = self._saving or Saving()
        saved = Snapshot.read(data, saving.signing_keys)
        saved.check(self.identity, saving.fingerprint)
        verified = saving.allow_pickle and bool(saving.signing_keys) and is_signed(data)
        self._load(saved, verified=verified)
        self._state_bytes = len(data)

    def _load(self, saved: Snapshot, *, verified: bool) -> None:
        """Take the contents of a snapshot; `verified`: whether a signature vouches for them."""
        try:
            self._model.load(saved.steps, verified=verified)
            self._monitor.load(saved.auc, saved.regret, saved.before)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            raise unreadable(error) from error
        batch = self._batch
        batch.next_offset = saved.next_offset
        self._outcomes.events |= saved.events
        self._outcomes.stages |= saved.stages
        batch.seen = saved.seen
        self._outcomes.bad = deque(saved.bad)
        batch.due = saved.due
        if batch.arrivals is not None and saved.arrivals is not None:
            batch.arrivals.load(saved.arrivals)
        batch.labelled, batch.stopped = saved.labelled, saved.stopped
        batch.explored.update(saved.explored)
        if self.late_sample is not None and saved.late_sample is not None:
            self.late_sample.load(saved.late_sample)
        if batch.outside is not None:
            batch.outside.counts = dict(saved.outside)
        self._since = since_of(saved.privacy) if saved.seen else None
        self._dates.load(saved.privacy)
        self._continue(saved)
        self._torn = False

    def _summary(self) -> dict[str, Any] | None:
        return summary(self._numbers(), self._since, self._dates.to_state())

    def _numbers(self) -> Any:
        """The numbers of `privacy`; None if not private."""
        return self._voided(operator.attrgetter("privacy_summary"))

    def _labels_used(self) -> bytes:
        """Labels that were used, where they come later; empty otherwise."""
        return b""

    def _account(self) -> dict[str, Any] | None:
        """Reference in a snapshot to an account that is kept in a log; None: none."""
        return None

    def _continue(self, saved: Snapshot) -> None:
        """Mark how the run of the snapshot ended; without a log only the snapshot records it."""
        private = self._model.private
        if private is None:
            return
        if saved.ledger is not None:
            raise SnapshotError(
                "the snapshot belongs to a lane that keeps an account, and this one keeps none: its "
                "releases would be forgotten",
                fix="restore it with streampair.engine.LoggedLane",
            )
        private.mark_restarted(clean=saved.clean)

    def _check_saving(self) -> None:
        saving = self._saving
        if saving is None or not self._model.pickled:
            return
        steps = ", ".join(self._model.pickled)
        if not saving.allow_pickle:
            raise ConfigError(
                f"only pickle can save {steps}, and allow_pickle is off",
                fix="set allow_pickle = true and store.key_file (of a Lane: saving=); streampair's own "
                "learners, and the steps that docs/learners.md lists under Pipelines, need neither",
            )
        if not saving.signing_keys:
            raise ConfigError(
                f"only pickle can save {steps}, and there is no key to sign it with",
                fix="set store.key_file (of a Lane: signing_keys of saving=, with at least 16 bytes)",
            )
        self._model.check_pickle()

    def _why_void(self) -> list[str]:
        if self._model.private is None:
            return []
        reasons = [] if self._model.untrusted is None else [self._model.untrusted]
        if self._breaker is not None:
            reasons.append("a breaker stops the lane because of what events contain")
        if self.on_bad == "fail":
            reasons.append("on_bad='fail' stops the lane because of what an event contains")
        return reasons
