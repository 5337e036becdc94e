"""One input partition: score each event, then learn from it, and be able to start again from any snapshot.

A lane is a pure state machine. It reads no clock, no network and no global random state: the same snapshot
and the same records give the same outputs and the same next snapshot, bit for bit (a private learner draws
fresh noise after a restore; everything else about it is the same). DESIGN.md 2 and 5.

What holds for every record, whatever is in it:

- it gives exactly one `Scored`, so that counts never depend on content (PRIVACY.md 9.7);
- it is scored before it is learned;
- if anything about it fails, the model is as it was before it, a dead letter says why, and the batch goes on;
- with a private learner it takes exactly one slot: learned, or a null step (PRIVACY.md 3.3).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from streampair import __version__
from streampair.engine._stack import Stack, is_own
from streampair.engine.envelope import check_key, is_signed, pack, unpack
from streampair.engine.records import (
    Breaker,
    DeadLetter,
    Event,
    LaneGauges,
    LaneOutput,
    Record,
    RegretConfig,
    Scored,
)
from streampair.errors import ConfigError, LaneStopped, PrivacyError, RecordError, SnapshotError
from streampair.evaluation import PairRegret, RegretEstimate, RollingAUC

__all__ = [
    "Breaker",
    "DeadLetter",
    "Event",
    "Lane",
    "LaneGauges",
    "LaneOutput",
    "Record",
    "RegretConfig",
    "Scored",
]


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    """What a snapshot holds; `unpack` gives it as a table, and this checks the types."""

    writer: str
    app: str
    topic: str
    partition: int
    name: str
    fingerprint: str
    next_offset: int | None
    clean: bool
    steps: list[dict[str, Any]]
    auc: dict[str, Any]
    regret: dict[str, Any] | None
    events: dict[str, int]
    stages: dict[str, int]
    seen: int
    bad: list[int]


_OUTCOMES: Final = ("learned", "scored", "dead_letter", "ignored")
_STAGES: Final = ("decode", "features", "label", "learn")


class Lane:
    """One learner on one partition.

    Parameters
    ----------
    learner
        An estimator of streampair or River, or a River pipeline that ends in one. The lane owns it from here.
    decode
        From a record to an event. Raises `RecordError` for a record that it cannot read; any other exception
        is taken as one of stage `"decode"`. With a private learner it must be a function of the record alone.
    app, topic, partition
        What the lane is; a snapshot is refused by any other.
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
    regret
        How to estimate the regret; None: not at all.
    auc_window
        Number of latest labelled events in the AUC.
    allow_pickle
        Allow pickle for steps that are not ours; needs `signing_key`.
    signing_key
        At least 16 bytes. Snapshots then carry a keyed signature, and only such are restored.
    fingerprint
        Of the configuration; a snapshot with another one is refused.
    trust_preprocessing
        Accept steps that learn from the stream in front of a private learner; its report then says void.
    snapshots
        False for a lane that will never be saved; then foreign steps need no pickle.

    Raises
    ------
    ConfigError
        If the model cannot score, copy or save itself as asked.
    PrivacyError
        If the pipeline breaks the guarantee of its private learner.

    Examples
    --------
    >>> from river import linear_model
    >>> from streampair.engine import Event, Lane, Record
    >>> def decode(record):
    ...     amount, label = record.value.split(b",")
    ...     return Event({"amount": float(amount)}, label == b"fraud")
    >>> lane = Lane(linear_model.LogisticRegression(), decode, app="demo", topic="events", partition=0,
    ...             snapshots=False)
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
        *,
        app: str,
        topic: str,
        partition: int,
        name: str | None = None,
        positive: object = True,
        on_bad: Literal["dlq", "skip", "fail"] = "dlq",
        breaker: Breaker | Literal["auto"] | None = "auto",
        regret: RegretConfig | None = None,
        auc_window: int = 1000,
        allow_pickle: bool = False,
        signing_key: bytes | None = None,
        fingerprint: str = "",
        trust_preprocessing: bool = False,
        snapshots: bool = True,
    ) -> None:
        if on_bad not in ("dlq", "skip", "fail"):
            raise ConfigError(f"on_bad={on_bad!r} is unknown", fix="use 'dlq', 'skip' or 'fail'")
        self.app = app
        self.topic = topic
        self.partition = partition
        self.positive = positive
        self.on_bad = on_bad
        self.fingerprint = fingerprint
        self._decode = decode
        self._stack = Stack(learner, positive=positive, trust_preprocessing=trust_preprocessing)
        self.name = type(self._stack.learner).__name__ if name is None else name
        own_positive = getattr(self._stack.learner, "positive", positive)
        if own_positive != positive:
            raise ConfigError(
                f"the lane ranks {positive!r} high, its learner {own_positive!r}",
                fix="give both the same positive=",
            )
        self._signing_key = signing_key
        self._allow_pickle = allow_pickle
        self._snapshots = snapshots
        self._check_saving()
        self._breaker = (None if self._stack.private else Breaker()) if breaker == "auto" else breaker
        self._void = self._why_void()
        for reason in self._void:
            warnings.warn(
                f"the privacy guarantee of {self.name} is void: {reason}", UserWarning, stacklevel=2
            )
        self._auc = RollingAUC(auc_window)
        self._regret = None if regret is None else self._make_regret(regret)
        self._estimate: RegretEstimate | None = None
        self.next_offset: int | None = None
        self._events = dict.fromkeys(_OUTCOMES, 0)
        self._stages = dict.fromkeys(_STAGES, 0)
        self._bad: deque[int] = deque()  # positions, in records seen, of the dead letters in the window
        self._seen = 0
        self._state_bytes: int | None = None
        self._used = False
        self._torn = False

    @property
    def learner(self) -> Any:
        """The last step of the model, to look at; another object after a roll-back of a foreign one."""
        return self._stack.learner

    @property
    def model(self) -> Any:
        """The whole model."""
        return self._stack.model

    @property
    def private(self) -> bool:
        """Whether the learner keeps a privacy ledger."""
        return self._stack.private

    @property
    def privacy(self) -> Any:
        """The learner's privacy report, void where the lane breaks what it promises; None if not private."""
        if not self._stack.private:
            return None
        report = self._stack.learner.privacy
        if report is None or not self._void:
            return report
        return dataclasses.replace(report, kind="void", guarantee=f"void ({'; '.join(self._void)})")

    # Learning

    def process(self, records: Sequence[Record]) -> LaneOutput:
        """Score each record, then learn from it.

        Parameters
        ----------
        records
            In the order of the partition. A record with an offset below `next_offset` was learned before: it
            is counted as `"ignored"` and gives nothing.

        Returns
        -------
        LaneOutput

        Raises
        ------
        LaneStopped
            Under `on_bad="fail"`, and when the breaker trips. The batch then gave nothing: write nothing, and
            start again from the last snapshot with a new lane.
        """
        if self._torn:
            raise LaneStopped(
                "the lane stopped in the middle of an earlier batch, or of a restore",
                fix="make a new lane and restore the last snapshot",
            )
        self._torn = self._used = True
        output = self._process(records)
        self._torn = False
        return output

    def _process(self, records: Sequence[Record]) -> LaneOutput:
        """Take the plain events at the front of the batch in bulk, the rest one by one.

        Both ways give the same outputs and the same state; in bulk, each question is asked once a batch.
        """
        output = LaneOutput([], [], None)
        labels: list[bool] = []
        given: list[float] = []
        # A copy of the steps that an event could leave half changed, and what was learned since it was made.
        saved = self._stack.checkpoint() if self._stack.fragile and records else {}
        done, saved = self._process_plain(records, output, labels, given, saved)
        if done < len(records):
            self._process_carefully(records[done:] if done else records, output, labels, given, saved)
        output.next_offset = self.next_offset
        self._auc.extend(labels, given)
        return output

    def _process_plain(
        self,
        records: Sequence[Record],
        output: LaneOutput,
        labels: list[bool],
        given: list[float],
        saved: dict[str, Any],
    ) -> tuple[int, dict[str, Any]]:
        """Take labelled events until the first that fails; how many were taken, and the copy for the next."""
        stack, regret = self._stack, self._regret
        n = len(records)
        offsets = [record.offset for record in records]
        slots = self._slots_left()
        ordered = n > 0 and offsets[0] >= (self.next_offset or 0)
        if not ordered or not all(map(operator.lt, offsets, offsets[1:])) or 0 < slots < n:
            return 0, saved
        try:
            events = list(map(self._decode, records))
            raw = [event.x for event in events]
            if stack.fragile:
                for x in raw:
                    _refuse_nan(x)
            ys = [event.y for event in events]
            if None in ys or not stack.direct:
                return 0, saved
            positive = self.positive
            truth = [y == positive for y in ys]
            if regret is not None and set(map(type, truth)) != {bool}:
                truth = list(map(bool, truth))
            xs = raw if stack.transform is None else list(map(stack.transform, raw))
        except Exception:
            return 0, saved  # whatever it is, the careful way meets it again, alone
        score_one, learn_one, emit = stack.score, stack.learn, given.append
        pairs = zip(xs, ys, strict=True)
        counted = 0
        hits = None if regret is None else regret.hits(truth)
        failed = False
        try:
            while True:
                stop, zeros, ones = (n, 0, 0) if hits is None else next(hits)
                for x, y in itertools.islice(pairs, stop - counted):
                    score = score_one(x)
                    learn_one(x, y)
                    emit(score)
                if regret is None:
                    break
                regret.pass_over(zeros, ones)
                counted = stop
                if stop == n:
                    break
                x, y = next(pairs)
                score = score_one(x)
                sample = regret.prepare(x, truth[stop], score, score_one)
                learn_one(x, y)
                emit(score)
                regret.commit(sample, truth[stop])
                counted += 1
        except Exception:
            failed = True
        done = len(given)
        if failed and stack.fragile:
            stack.rollback(saved, list(zip(raw[:done], ys[:done], strict=True)))
            saved = stack.checkpoint()
        if regret is not None:
            regret.skip(truth[counted:done])
        labels.extend(truth[:done])
        outcome = "learned" if slots > 0 else "scored"
        output.scores.extend(
            [
                Scored(record.offset, record.key, event.id, score, outcome)
                for record, event, score in zip(records, events, given, strict=False)
            ]
        )
        self._events[outcome] += done
        self._seen += done
        if done:
            self.next_offset = offsets[done - 1] + 1
        return done, saved

    def _process_carefully(
        self,
        records: Sequence[Record],
        output: LaneOutput,
        labels: list[bool],
        given: list[float],
        saved: dict[str, Any],
    ) -> None:
        """Any record at all, one by one."""
        stack, regret, positive, decode = self._stack, self._regret, self.positive, self._decode
        private = stack.private
        slots = self._slots_left()
        expected = -1 if self.next_offset is None else self.next_offset
        good: list[tuple[Any, Any]] = []
        counts = self._events
        for record in records:
            offset = record.offset
            if offset < expected:
                counts["ignored"] += 1
                continue
            expected = self.next_offset = offset + 1
            self._seen += 1
            event_id: str | None = None
            given_score: float | None = None
            sample = None
            stage = "decode"
            try:
                event = decode(record)
                event_id, x, y = event.id, event.x, event.y
                stage = "features"
                if stack.fragile:
                    _refuse_nan(x)
                z = stack.through(x)
                score = None if stack.too_early(z) else stack.score(z)
                if y is None:
                    outcome = "scored"
                    if private:
                        stack.learner.learn_null()
                else:
                    stage = "label"
                    label = bool(y == positive)
                    counts_for_regret = regret is not None and score is not None
                    hit = counts_for_regret and regret.left[label] <= 0  # type: ignore[union-attr]
                    if hit:
                        sample = regret.prepare(z, label, score, stack.score)  # type: ignore[union-attr,arg-type]
                    stage = "learn"
                    if stack.direct:
                        stack.learn(z, y)
                    elif not stack.learn_through(x, y) and private:
                        stack.learner.learn_null()
                    outcome = "learned" if slots > 0 else "scored"
                    if hit:
                        regret.commit(sample, label)  # type: ignore[union-attr]
                    elif counts_for_regret:
                        regret.skip([label])  # type: ignore[union-attr]
                    if score is not None:
                        labels.append(label)
                        given.append(score)
                    if stack.fragile:
                        good.append((x, y))
                given_score = score
            except Exception as error:
                if not self._is_bad_event(error, stage):
                    raise
                if stack.fragile and stage != "decode":
                    stack.rollback(saved, good)
                    good.clear()
                    saved = stack.checkpoint()
                if private:
                    stack.learner.learn_null()
                outcome = "dead_letter"
                self._bury(record, error, stage, output.dead_letters)
            slots -= 1
            counts[outcome] += 1
            output.scores.append(Scored(offset, record.key, event_id, given_score, outcome))

    def _slots_left(self) -> float:
        """Slots before the horizon; every record takes one."""
        if not self._stack.private:
            return math.inf
        left = self._stack.learner.horizon_left
        return math.inf if left is None else left

    def _is_bad_event(self, error: Exception, stage: str) -> bool:
        """Whether this is about the event; everything else is about us, and must be heard."""
        if isinstance(error, MemoryError | PrivacyError):
            return False
        return isinstance(error, RecordError) or stage in ("decode", "label") or self._stack.foreign

    def _bury(self, record: Record, error: Exception, stage: str, dead: list[DeadLetter]) -> None:
        if isinstance(error, RecordError):
            stage, text = error.stage, str(error)
        else:
            text = f"{type(error).__name__}: {error}"
        self._stages[stage] = self._stages.get(stage, 0) + 1
        where = f"{self.topic}[{self.partition}] offset {record.offset}"
        if self.on_bad == "fail":
            raise LaneStopped(
                f"{where} cannot be used ({stage}: {text})",
                fix="repair the producer, or use on_bad='dlq' to set such events aside",
            ) from error
        if self.on_bad == "dlq":
            dead.append(DeadLetter(record.offset, record.key, record.value, record.timestamp, stage, text))
        breaker = self._breaker
        if breaker is None:
            return
        bad, position = self._bad, self._seen
        bad.append(position)
        while bad[0] <= position - breaker.window:
            bad.popleft()
        if len(bad) >= breaker.limit:
            raise LaneStopped(
                f"{len(bad)} of the last {min(position, breaker.window)} records of {self.topic}"
                f"[{self.partition}] are bad, the last at offset {record.offset} ({stage}: {text})",
                fix="look whether the schema of the topic changed; nothing since the last snapshot is lost. "
                "To go on over bad records, raise the breaker's share or turn it off",
            ) from error

    # Telemetry

    def gauges(self, *, solve: bool | None = None) -> LaneGauges:
        """The lane's numbers.

        Parameters
        ----------
        solve
            Whether to estimate the regret anew, which costs milliseconds. None: when the stream has grown
            enough that the cost does not show (by counts, not by time); True: now; False: the last one.

        Returns
        -------
        LaneGauges
        """
        learner = self._stack.learner
        return LaneGauges(
            events=dict(self._events),
            dead_letters=dict(self._stages),
            auc=self._auc.get(),
            regret=self.regret(solve=solve),
            weight_norm=_weight_norm(learner),
            buffer_records=_buffer_records(learner),
            null_slots=getattr(learner, "null_slots", None) if self._stack.private else None,
            state_bytes=self._state_bytes,
            next_offset=self.next_offset,
            privacy=self.privacy,
        )

    def regret(self, *, solve: bool | None = True) -> RegretEstimate | None:
        """The regret up to now; None without `regret=`, or before the second labelled event."""
        regret = self._regret
        if regret is None:
            return None
        if solve or (solve is None and regret.due):
            self._estimate = regret.estimate(_design_many(self._stack.learner))
        return self._estimate

    def _make_regret(self, config: RegretConfig) -> PairRegret:
        learner = self._stack.learner
        loss = config.loss if config.loss is not None else getattr(learner, "pair_loss", None)
        radius = config.radius
        if radius is None:
            radius = getattr(learner, "comparator_radius", 1.0)
        regret = PairRegret(loss, radius, pairs=config.pairs, exact=config.exact, seed=config.seed)
        regret.trusting = is_own(learner)
        return regret

    # Saving

    def snapshot(self, *, clean: bool = False) -> bytes:
        """Everything needed to go on from here.

        Parameters
        ----------
        clean
            Whether the process is about to stop, with nothing processed after this snapshot.

        Returns
        -------
        bytes
            See `streampair.engine.envelope`. As sensitive as the data.

        Raises
        ------
        SnapshotError
            If the lane stopped in the middle of a batch, or was made with `snapshots=False`.
        """
        if self._torn:
            raise SnapshotError(
                "the lane stopped in the middle of a batch, so its state belongs to no offset",
                fix="make a new lane and restore the last snapshot",
            )
        if not self._snapshots:
            raise SnapshotError("the lane was made with snapshots=False", fix="make it with snapshots=True")
        body = _Body(
            writer=__version__,
            app=self.app,
            topic=self.topic,
            partition=self.partition,
            name=self.name,
            fingerprint=self.fingerprint,
            next_offset=self.next_offset,
            clean=clean,
            steps=self._stack.save(),
            auc=self._auc.to_state(),
            regret=None if self._regret is None else self._regret.to_state(),
            events=dict(self._events),
            stages=dict(self._stages),
            seen=self._seen,
            bad=list(self._bad),
        )
        data = pack(msgspec.structs.asdict(body), signing_key=self._signing_key)
        self._state_bytes = len(data)
        return data

    def restore(self, data: bytes) -> None:
        """Go on from a snapshot. Only on a lane that has processed nothing.

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
        try:
            body = msgspec.convert(unpack(data, signing_key=self._signing_key), _Body, strict=True)
        except msgspec.ValidationError as error:
            raise _unreadable(error) from error
        self._check_identity(body)
        verified = self._allow_pickle and self._signing_key is not None and is_signed(data)
        try:
            self._stack.load(body.steps, verified=verified)
            self._auc.load_state(body.auc)
            if self._regret is not None and body.regret is not None:
                self._regret.load_state(body.regret)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise _unreadable(error) from error
        self.next_offset = body.next_offset
        self._events |= body.events
        self._stages |= body.stages
        self._seen = body.seen
        self._bad = deque(body.bad)
        if self._stack.private:
            self._stack.learner.mark_restarted(clean=body.clean)
        self._state_bytes = len(data)
        self._torn = False

    def _check_identity(self, body: _Body) -> None:
        lane = (self.app, self.topic, self.partition)
        saved = (body.app, body.topic, body.partition)
        if saved != lane:
            raise SnapshotError(
                "the snapshot belongs to app {!r}, topic {!r}, partition {!r}; this lane is app {!r}, "
                "topic {!r}, partition {!r}".format(*saved, *lane),
                fix="point the store at this lane's own directory",
            )
        if body.fingerprint != self.fingerprint:
            raise SnapshotError(
                "the configuration changed since the snapshot was written "
                f"(fingerprint {body.fingerprint!r}, now {self.fingerprint!r})",
                fix="put the old learner and input settings back, or give the new configuration another app "
                "name, which starts from the beginning",
            )

    def _check_saving(self) -> None:
        if self._signing_key is not None:
            check_key(self._signing_key)
        if not self._snapshots or not self._stack.pickled:
            return
        steps = ", ".join(self._stack.pickled)
        if not self._allow_pickle:
            raise ConfigError(
                f"only pickle can save {steps}, and allow_pickle is off",
                fix="set allow_pickle = true and give a signing key; streampair's own learners need neither",
            )
        if self._signing_key is None:
            raise ConfigError(
                f"only pickle can save {steps}, and there is no key to sign it with",
                fix="give a signing key of at least 16 bytes, from a file or the environment",
            )
        self._stack.check_pickle()

    def _why_void(self) -> list[str]:
        if not self._stack.private:
            return []
        reasons = [] if self._stack.untrusted is None else [self._stack.untrusted]
        if self._breaker is not None:
            reasons.append("a breaker stops the lane because of what events contain")
        if self.on_bad == "fail":
            reasons.append("on_bad='fail' stops the lane because of what an event contains")
        return reasons


def _unreadable(error: Exception) -> SnapshotError:
    return SnapshotError(
        f"the snapshot does not hold what it should ({type(error).__name__}: {error})",
        fix="restore with the release that wrote it",
    )


def _refuse_nan(x: Mapping[str, Any]) -> None:
    """A foreign model would take NaN in, and give NaN for ever after."""
    try:
        total = sum(x.values())
        if total - total == 0.0:  # finite, so every value is
            return
    except (TypeError, OverflowError):
        pass  # text, None or a huge integer: the model may know what to do with it
    for name, value in x.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RecordError(
                f"the feature {name!r} is {value}",
                fix="send a finite number, or leave the feature out",
            )


def _weight_norm(learner: Any) -> float | None:
    weights = getattr(learner, "weights", None)
    if not isinstance(weights, Mapping):
        return None
    try:
        return math.sqrt(math.fsum(float(value) ** 2 for value in weights.values()))
    except (TypeError, ValueError, OverflowError):
        return None


def _buffer_records(learner: Any) -> int | None:
    for name in ("buffer_records", "n_buffered"):
        value = getattr(learner, name, None)
        if isinstance(value, int):
            return value
    return None


def _design_many(learner: Any) -> Callable[[list[dict[str, Any]]], Any] | None:
    return getattr(learner, "design_many", None)
