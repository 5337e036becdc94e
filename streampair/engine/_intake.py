"""The way of a batch through a lane: from records to outputs, dead letters and counts.

Two ways, in bulk and one by one, that give the same outputs and the same state. `Lane` says what holds for
every record, and keeps everything that is not about batches: identity, telemetry and snapshots.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from streampair.engine._account import context_of
from streampair.engine._stack import Stack
from streampair.engine.records import Breaker, DeadLetter, Event, LaneOutput, Record, Scored
from streampair.errors import LaneStopped, PrivacyError, RecordError
from streampair.evaluation import PairRegret, RollingAUC

__all__ = ["Intake"]

_OUTCOMES: Final = ("learned", "scored", "dead_letter", "ignored")
_STAGES: Final = ("decode", "features", "label", "learn")


class Intake:
    """Takes the records of one partition, scores and learns them, and counts what became of each.

    Parameters
    ----------
    stack
        The model.
    decode, positive, on_bad
        See `Lane`.
    breaker
        None: never stop because too many events are bad.
    auc, regret
        Told every labelled event that was scored; None: no regret.
    topic, partition
        For messages.

    Attributes
    ----------
    next_offset
        Of the first record that was not taken yet; None before the first.
    events, stages
        Number of records by outcome, and of dead letters by stage.
    seen
        Number of records taken.
    bad
        Positions, in records seen, of the dead letters in the breaker's window.
    """

    def __init__(
        self,
        stack: Stack,
        decode: Callable[[Record], Event],
        *,
        positive: object,
        on_bad: Literal["dlq", "skip", "fail"],
        breaker: Breaker | None,
        auc: RollingAUC,
        regret: PairRegret | None,
        topic: str,
        partition: int,
    ) -> None:
        self._stack = stack
        self._decode = decode
        self._positive = positive
        self._on_bad = on_bad
        self._breaker = breaker
        self._auc = auc
        self._regret = regret
        self._topic = topic
        self._partition = partition
        self.next_offset: int | None = None
        self.events = dict.fromkeys(_OUTCOMES, 0)
        self.stages = dict.fromkeys(_STAGES, 0)
        self.seen = 0
        self.bad: deque[int] = deque()

    def process(self, records: Sequence[Record]) -> LaneOutput:
        """Take the plain events at the front of the batch in bulk, the rest one by one.

        Both ways give the same outputs and the same state; in bulk, each question is asked once a batch.
        """
        output = LaneOutput([], [], None)
        labels: list[bool] = []
        given: list[float] = []
        # A copy of the steps that an event could leave half changed, and what was learned since it was made.
        saved = self._stack.checkpoint() if self._stack.fragile and records else {}
        done, saved = self._take_plain(records, output, labels, given, saved)
        if done < len(records):
            self._take_carefully(records[done:] if done else records, output, labels, given, saved)
        output.next_offset = self.next_offset
        if self._stack.ranks:
            self._auc.extend(labels, given)
        return output

    def _take_plain(
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
            positive = self._positive
            truth = [y == positive for y in ys]
            if regret is not None and set(map(type, truth)) != {bool}:
                truth = list(map(bool, truth))
            xs = raw if stack.transform is None else list(map(stack.transform, raw))
        except Exception:
            return 0, saved  # whatever it is, the careful way meets it again, alone
        score_one, learn_one, emit = stack.score, self._telling(records), given.append
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
        self.events[outcome] += done
        self.seen += done
        if done:
            self.next_offset = offsets[done - 1] + 1
        return done, saved

    def _telling(self, records: Sequence[Record]) -> Callable[[Any, Any], object]:
        """`stack.learn`, which first tells a private learner of each record what it has to know."""
        learn = self._stack.learn
        if self._stack.tell is None and self._stack.tell_entity is None:
            return learn
        upcoming = iter(records)

        def learn_told(x: Any, y: Any) -> None:
            self._tell(next(upcoming))
            learn(x, y)

        return learn_told

    def _tell(self, record: Record) -> None:
        """Tell the noise what record it is for, and the account whose it is.

        An entity is the key of the message, never a field of its value: were the value damaged, its entity
        would change with it, and with that what is learned of others (PRIVACY.md 8).
        """
        stack = self._stack
        if stack.tell is not None:
            stack.tell(context_of(self._partition, record.offset, record.key, record.value))
        if stack.tell_entity is not None:
            stack.tell_entity(record.key)

    def _take_carefully(
        self,
        records: Sequence[Record],
        output: LaneOutput,
        labels: list[bool],
        given: list[float],
        saved: dict[str, Any],
    ) -> None:
        """Any record at all, one by one."""
        stack, regret, positive, decode = self._stack, self._regret, self._positive, self._decode
        private = stack.private
        slots = self._slots_left()
        expected = -1 if self.next_offset is None else self.next_offset
        good: list[tuple[Any, Any]] = []
        counts = self.events
        for record in records:
            offset = record.offset
            if offset < expected:
                counts["ignored"] += 1
                continue
            expected = self.next_offset = offset + 1
            self.seen += 1
            if private:
                self._tell(record)
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
        self.stages[stage] = self.stages.get(stage, 0) + 1
        where = f"{self._topic}[{self._partition}] offset {record.offset}"
        if self._on_bad == "fail":
            raise LaneStopped(
                f"{where} cannot be used ({stage}: {text})",
                fix="repair the producer, or use on_bad='dlq' to set such events aside",
            ) from error
        if self._on_bad == "dlq":
            dead.append(DeadLetter(record.offset, record.key, record.value, record.timestamp, stage, text))
        breaker = self._breaker
        if breaker is None:
            return
        bad, position = self.bad, self.seen
        bad.append(position)
        while bad[0] <= position - breaker.window:
            bad.popleft()
        if len(bad) >= breaker.limit:
            raise LaneStopped(
                f"{len(bad)} of the last {min(position, breaker.window)} records of {self._topic}"
                f"[{self._partition}] are bad, the last at offset {record.offset} ({stage}: {text})",
                fix="look whether the schema of the topic changed; nothing since the last snapshot is lost. "
                "To go on over bad records, raise the breaker's share or turn it off",
            ) from error


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
