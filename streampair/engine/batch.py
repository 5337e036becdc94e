"""Processing of a batch of records in a lane: decoding, scoring, learning, and each record's outcome."""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
import struct
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.engine.delays import ScoreSample
from streampair.engine.monitor import Monitor
from streampair.engine.pipeline import PipelineAdapter
from streampair.engine.protocols import ExplainedBatchProtocol, ManyDecoder
from streampair.engine.records import (
    LABEL_LATER,
    LABEL_LEARNED,
    Breaker,
    DeadLetter,
    Event,
    EventRows,
    LaneOutput,
    OrderedRecord,
    Record,
    Scored,
    stage_and_text,
)
from streampair.errors import (
    ConfigError,
    LaneStoppedError,
    PrivacyError,
    RecordError,
    SourceError,
    TombstoneError,
)
from streampair.evaluation.regret import Step
from streampair.privacy.provenance import Origin, Origins

__all__ = [
    "BatchDecoder",
    "Outside",
    "Read",
    "RecordProcessor",
    "context_of",
    "contexts_of",
    "payload_digest",
    "refuse_nan",
]

_PLACE = struct.Struct(">iq").pack
_LENGTH = struct.Struct(">cQ").pack
# A copy costs half of a new hash, because it has absorbed the key.
_no_value = hashlib.blake2b(digest_size=32, key=b"streampair record").copy
_value = hashlib.blake2b(b"v", digest_size=32, key=b"streampair record").copy


def payload_digest(key: bytes | None, value: bytes | None) -> bytes:
    """Digest (32 bytes) of a record's key and value; a missing one differs from an empty one."""
    payload = _no_value() if value is None else _value()
    if value is not None:
        payload.update(value)
    if key is not None:
        payload.update(_LENGTH(b"k", len(key)) + key)
    return payload.digest()


def context_of(partition: int, offset: int, key: bytes | None, value: bytes | None) -> bytes:
    """Identity of a record of a topic: its position, and a digest of its bytes (docs/privacy 8)."""
    return _PLACE(partition, offset) + payload_digest(key, value)


def contexts_of(partition: int, records: Sequence[Record]) -> list[bytes]:
    """`context_of` of each."""
    return [_PLACE(partition, record.offset) + payload_digest(record.key, record.value) for record in records]


class Outside:
    """Counts of values outside the declared bounds, by feature. The counts influence nothing.

    Learners that take bounds clip such values.

    Parameters
    ----------
    bounds
        Lowest and highest value of each feature.

    Attributes
    ----------
    counts
        Number of such values so far, by feature; features without any are left out.

    Examples
    --------
    >>> outside = Outside({"amount": (0.0, 1.0)})
    >>> outside.one({"amount": 3.0, "age": 99.0})
    >>> outside.counts
    {'amount': 1}
    """

    def __init__(self, bounds: Mapping[str, tuple[float, float]]) -> None:
        self._bounds = dict(bounds)
        self._names: list[str] = []
        self._low = self._high = np.empty(0)
        self.counts: dict[str, int] = {}

    def one(self, x: Mapping[str, Any]) -> None:
        """Count the values of one record."""
        bounds = self._bounds
        for name, value in x.items():
            if name in bounds and isinstance(value, int | float):
                low, high = bounds[name]
                if value < low or value > high:
                    self.counts[name] = self.counts.get(name, 0) + 1

    def rows(self, names: list[str], values: NDArray[np.float64], refused: Collection[int] = ()) -> None:
        """Count the values of rows (n, d). Refused rows are skipped: their values mean nothing."""
        if names != self._names:
            pairs = [self._bounds.get(name, (-np.inf, np.inf)) for name in names]
            self._names = list(names)
            self._low = np.array([low for low, _ in pairs])
            self._high = np.array([high for _, high in pairs])
        beyond = (values < self._low) | (values > self._high)
        if not beyond.any():
            return
        beyond[[row for row in refused if row < len(values)]] = False
        for name, count in zip(names, beyond.sum(axis=0).tolist(), strict=True):
            if count:
                self.counts[name] = self.counts.get(name, 0) + count


_NO_EVENT = Event({}, None)


class Read(NamedTuple):
    """A decoded batch of events, before and after the steps in front of the learner.

    Attributes
    ----------
    offsets, ids
        Offsets of the records, and ids of the events.
    table
        The events as rows, if the decoder gave them so.
    raw, xs
        The records before and after the steps in front of the learner.
    ys
        The labels; None where there is nothing to learn.
    truth
        Whether each event has the positive label; bytes of 1 and 0 if `BatchDecoder` was made with `flags`.
    nulls
        Positions of events without a label and of refused records, ascending.
    refused
        For each unusable record, by position, its error and the stage where it occurred.
    """

    offsets: list[int]
    table: EventRows | None
    raw: Sequence[dict[str, Any]]
    xs: Sequence[Any]
    ys: Sequence[Any]
    ids: Iterable[str | None]
    truth: Sequence[int]
    nulls: list[int]
    refused: dict[int, tuple[Exception, str]]

    def record(self, position: int) -> tuple[Collection[Any], Iterable[Any]]:
        """Names and values of a record, after the steps in front of the learner."""
        if self.table is not None:
            return self.table.names, self.table.values[position].tolist()
        x = self.xs[position]
        return x, x.values()


class BatchDecoder:
    """Decodes batches for one model.

    Parameters
    ----------
    model
        The model.
    decode, positive
        See `Lane`.
    is_bad
        Function of an error and its stage: whether the error is about the event.
    flags
        Whether `Read.truth` must be bytes, whatever type comparisons of labels return.
    labels
        See `Lane`.
    """

    def __init__(
        self,
        model: PipelineAdapter,
        decode: Callable[[Record], Event],
        *,
        positive: object,
        is_bad: Callable[[Exception, str], bool],
        flags: bool,
        labels: Sequence[object] | None,
    ) -> None:
        self._model = model
        self._labels = labels
        self._decode = decode
        # Whether the learner takes whole arrays of raw records.
        rows = model.transform is None and model.prepare_rows is not None
        self._many = decode.many if rows and isinstance(decode, ManyDecoder) else None
        # Whether the learner accepts null records within a batch.
        self._marks = not model.fragile and model.prepare_many is not None
        self._positive = positive
        self._is_bad = is_bad
        self._flags = flags

    def read(self, records: Sequence[Record], following: int) -> Read | None:
        """Decode records, which must start at offset `following` or later; None: take them one by one."""
        model, offsets = self._model, [record.offset for record in records]
        ordered = records and offsets[0] >= following and model.direct
        if not ordered or not all(map(operator.lt, offsets, offsets[1:])):
            return None
        refused: dict[int, tuple[Exception, str]] = {}
        try:
            table = None if self._many is None else self._many(records)
            raw: Sequence[dict[str, Any]]
            ys: list[Any]
            ids: Iterable[str | None]
            if table is not None:
                if self._labels is not None:
                    table = table._replace(labels=self.joined(records, table.refused or ()))
                raw, ys, ids = _Dicts(table), table.labels, table.ids or itertools.repeat(None)
                if table.refused:
                    refused = {index: (error, "decode") for index, error in table.refused.items()}
            else:
                events = self._each(self._decode, records, "decode", _NO_EVENT, refused)
                raw = [event.x for event in events]
                ys = [event.y for event in events] if self._labels is None else self.joined(records, refused)
                ids = [event.id for event in events]
                if model.fragile:
                    for x in raw:
                        refuse_nan(x)
            xs = raw
            if model.transform is not None:
                xs = self._each(model.transform, raw, "features", None, refused)
                ys = [None if index in refused else y for index, y in enumerate(ys)] if refused else ys
            nulls = [index for index, y in enumerate(ys) if y is None] if None in ys else []
            if nulls and not self._marks:
                return None
            truth = self._truth(ys)
        except Exception:
            return None  # the record-by-record path meets the same error again, and handles it
        return Read(offsets, table, raw, xs, ys, ids, truth, nulls, refused)

    def joined(self, records: Sequence[Record], refused: Collection[int] = ()) -> list[Any]:
        """The labels that came for records that are due; None for those that are refused."""
        labels = self._labels
        assert labels is not None
        ys = [labels[record.label] for record in records]  # type: ignore[attr-defined]  # `OrderedRecord`
        for index in refused:
            ys[index] = None
        return ys

    def rows(self, records: Sequence[Record]) -> EventRows | None:
        """Decode records to an array; None: one by one."""
        return None if self._many is None else self._many(records)

    def _truth(self, ys: list[Any]) -> Sequence[int]:
        positive = self._positive
        # Fast path: labels that are booleans, or the numbers 0 and 1.
        marks = _marks(ys) if positive is True else None
        if marks is not None:
            return marks
        flags = [y == positive for y in ys]
        if not self._flags:
            return flags
        marks = _marks(flags)
        return bytes(map(bool, flags)) if marks is None else marks

    def _each(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        stage: str,
        nothing: Any,
        refused: dict[int, tuple[Exception, str]],
    ) -> list[Any]:
        """The function of each item; `nothing` for an item that is refused, now or before."""
        if not refused:
            try:
                return list(map(function, items))
            except Exception:
                if not self._marks:
                    raise
        out = []
        for index, item in enumerate(items):
            value = nothing
            if index not in refused:
                try:
                    value = function(item)
                except Exception as error:
                    if not self._is_bad(error, stage):
                        raise
                    refused[index] = (error, stage)
            out.append(value)
        return out


class _Dicts(Sequence[dict[str, Any]]):
    """The records of a table as dicts, which are made on access."""

    def __init__(self, table: EventRows) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table.values)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        names, rows = self._table.names, self._table.values[index].tolist()
        if isinstance(index, slice):
            return [dict(zip(names, row, strict=True)) for row in rows]
        return dict(zip(names, rows, strict=True))


def _marks(values: Sequence[Any]) -> bytes | None:
    """The values as bytes of 0 and 1; None for other values, such as text or NumPy booleans."""
    # Much faster than a check of each type or a comparison. Values that are no integers raise.
    try:
        marks = bytes(values)
    except (TypeError, ValueError):
        return None
    # `bytes` of an array gives its memory, so the length differs.
    return None if len(marks) != len(values) or marks.strip(b"\x00\x01") else marks


def refuse_nan(x: Mapping[str, Any]) -> None:
    """Refuse NaN and infinity: a foreign model would learn them, and give NaN from then on."""
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


_OUTCOMES: Final = ("learned", "scored", "dead_letter", "tombstone", "ignored")
_NOT_LEARNED: Final = frozenset({"scored", "tombstone"})
_STAGES: Final = ("decode", "features", "label", "learn")
_NOWHERE: Final = Origin()
_CODE: Final = struct.Struct(">B").pack  # of the label that came: part of what a slot releases
# Events between two copies of a fragile model. A rollback learns the events since the last copy again.
_RELEARNED: Final = 500


class RecordProcessor:
    """Scores and learns the records of one partition, and counts their outcomes.

    Parameters
    ----------
    model
        The model.
    decode, positive, on_bad
        See `Lane`.
    breaker
        Stops the lane when too many events are bad; None: never.
    monitor
        Receives every labelled event that was scored.
    topic, partition
        For messages.
    bounds
        Declared bounds of features; values outside are counted. None: there are none.
    labels
        See `Lane`.

    Attributes
    ----------
    arrivals
        Where labels come later: scores of events that are not due yet, for the AUC.
    next_offset
        Offset of the next record to take; None before the first.
    events, stages
        Number of records by outcome, and of dead letters by stage.
    seen, due, labelled
        Number of records taken, how many of them were due, and how many of those had a label that came.
    bad
        Positions, in records seen, of the dead letters in the breaker's window.
    outside
        Counter of values outside the bounds; None without bounds.
    """

    def __init__(
        self,
        model: PipelineAdapter,
        decode: Callable[[Record], Event],
        *,
        positive: object,
        on_bad: Literal["dlq", "skip", "fail"],
        breaker: Breaker | None,
        monitor: Monitor,
        topic: str,
        partition: int,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        labels: Sequence[object] | None = None,
    ) -> None:
        self._model = model
        self._labels = labels
        self.arrivals = None if labels is None else ScoreSample()
        self.outside = Outside(bounds) if bounds else None
        self._decode = decode
        self._marks = model.prepare_many is not None
        self._positive = positive
        self._on_bad = on_bad
        self._breaker = breaker
        self._auc, self._regret = monitor.auc, monitor.regret
        self._topic = topic
        self._partition = partition
        self._reader = BatchDecoder(
            model,
            decode,
            positive=positive,
            is_bad=self._is_bad_event,
            flags=self._regret is not None,
            labels=labels,
        )
        private = model.private
        self._is_due = False  # whether the records in hand were scored before
        # The first record names the learner's features, and the regret keeps all pairs of its first records.
        self._alone = 1 if self._regret is None else self._regret.exact
        self._keyed = private is not None and private.noise_key is not None
        self._entities = private is not None and private.entity is not None
        self.next_offset: int | None = None
        self.events = dict.fromkeys(_OUTCOMES if labels is None else (*_OUTCOMES, "skipped"), 0)
        self.stages = dict.fromkeys(_STAGES, 0)
        self.seen = 0
        self.due = 0  # of them, those that were due
        self.labelled = 0  # of those, the ones whose label had come
        self.bad: deque[int] = deque()
        # For rollbacks: a copy of the steps that an error can leave half changed, and events learned since.
        self._saved: dict[str, Any] = {}
        self._since: list[tuple[Any, Any, int]] = []

    def process(self, records: Sequence[Record]) -> LaneOutput:
        """Take the records of a batch, each as its label says: `OrderedRecord.label`."""
        output = LaneOutput([], [], None)
        if self._labels is None:
            self._learn(records, output)
        else:
            expected = -1 if self.next_offset is None else self.next_offset
            fresh = cast("list[OrderedRecord]", [each for each in records if each.offset >= expected])
            self.events["ignored"] += len(records) - len(fresh)
            start = 0
            for kind, part in itertools.groupby(_kinds(fresh)):
                end = start + len(list(part))
                _TAKE[kind](self, fresh[start:end], output)
                start = end
        output.next_offset = self.next_offset
        return output

    def _pass(self, records: Sequence[OrderedRecord], output: LaneOutput) -> None:
        """Pass over due events that were learned when their labels came."""
        for record in records:
            output.scores.append(Scored(record.offset, record.key, None, None, "ignored"))
        self.seen += len(records)
        self.next_offset = records[-1].offset + 1

    def _learn_due(self, records: Sequence[OrderedRecord], output: LaneOutput) -> None:
        """Learn events that were scored before. Their outcome says whether they were learned."""
        begin = len(output.scores)
        self._is_due = True
        try:
            self._learn(records, output)
        finally:
            self._is_due = False
        self.due += len(records)
        known = self._labels or ()
        codes = [record.label for record in records]
        self.labelled += sum(
            count for code, count in Counter(codes).items() if code > 0 and known[code] is not None
        )
        assert self.arrivals is not None
        found = self.arrivals.pop_many(records)
        positive = [label == self._positive for label in known]
        sampled = [
            (positive[code], score)
            for code, score, scored in zip(codes, found, output.scores[begin:], strict=True)
            if score is not None and scored.outcome == "learned"
        ]
        if sampled:
            self._evaluate(*map(list, zip(*sampled, strict=True)))

    def _evaluate(self, labels: list[int], scores: list[float]) -> None:
        """Add labelled events that were scored to the AUC."""
        if self._model.ranks:
            self._auc.extend(labels, scores)

    def _score(self, records: Sequence[OrderedRecord], output: LaneOutput) -> None:
        """Score events whose labels come later; nothing is learned."""
        begin = len(output.scores)
        if not self._score_rows(records, output):
            for record in records:
                output.scores.append(self._score_one(record, output.dead_letters))
        self.seen += len(records)
        self.next_offset = records[-1].offset + 1
        scored = output.scores[begin:]
        for outcome, count in Counter(each.outcome for each in scored).items():
            self.events[outcome] += count
        assert self.arrivals is not None
        self.arrivals.extend(records, [each.score for each in scored])

    def _score_rows(self, records: Sequence[OrderedRecord], output: LaneOutput) -> bool:
        """Score a batch as an array, if all of its events can be; whether it was."""
        model = self._model
        score = model.score_rows if model.transform is None and not model.several else None
        try:
            table = None if score is None else self._reader.rows(records)
            if score is None or table is None or table.refused:
                return False
            reasons: list[Any] | None = None
            if model.explain_rows is not None:
                scores, reasons = model.explain_rows(table.names, table.values, model.explain)
            else:
                scores = score(table.names, table.values).tolist()
                reasons = list(map(model.reasons, _Dicts(table))) if model.explain else None
        except Exception:
            return False  # the events are scored one by one, which meets the error again
        ids = table.ids or itertools.repeat(None)
        offsets, keys = [each.offset for each in records], [each.key for each in records]
        outcomes = itertools.repeat("scored")
        output.scores.extend(map(Scored, offsets, keys, ids, scores, outcomes, *_with(reasons)))
        if self.outside is not None:
            self.outside.rows(table.names, table.values)
        return True

    def _score_one(self, record: Record, dead: list[DeadLetter]) -> Scored:
        event_id, stage = None, "decode"
        try:
            event = self._decode(record)
            event_id, x, stage = event.id, event.x, "features"
            z, score, shares = self._scored(x)
            reasons = None if score is None else self._model.reasons(z)
            if self.outside is not None:
                self.outside.one(x)
        except Exception as error:
            if not self._is_bad_event(error, stage):
                raise
            outcome = self._refuse(record, error, stage, dead)
            return Scored(record.offset, record.key, event_id, None, outcome)
        return Scored(record.offset, record.key, event_id, score, "scored", shares, reasons)

    def _scored(self, x: dict[str, Any]) -> tuple[Any, float | None, dict[Any, float] | None]:
        """The features of an event in front of the learner, its score, and the probabilities of classes."""
        model = self._model
        if model.fragile:
            refuse_nan(x)
        z = model.through(x)
        return (z, None, None) if model.too_early(z) else (z, *model.score_with_probabilities(z))

    def _learn(self, records: Sequence[Record], output: LaneOutput) -> None:
        """Take plain events at the front of the batch in bulk, and the rest one by one.

        Both paths give the same outputs and the same state. In bulk, each check is made once a batch.
        """
        auc_labels: list[int] = []
        auc_scores: list[float] = []
        if self._model.fragile and (not self._saved or len(self._since) >= _RELEARNED):
            self._copy()
        # The first records of the stream are taken one by one; the rest of their batch need not be.
        first = self._alone - (self.seen if self._labels is None else self.due)
        parts = [records[:first], records[first:]] if 0 < first < len(records) else [records]
        for part in parts:
            # The bulk path gives no probabilities of several classes.
            several = self._model.several
            done = 0 if several else self._take_plain(part, output, auc_labels, auc_scores)
            if done < len(part):
                self._take_carefully(part[done:] if done else part, output, auc_labels, auc_scores)
        if self._labels is None:
            self._evaluate(auc_labels, auc_scores)

    def _take_plain(
        self,
        records: Sequence[Record],
        output: LaneOutput,
        auc_labels: list[int],
        auc_scores: list[float],
    ) -> int:
        """Take all records at once, or else labelled events until one fails; return how many were taken."""
        slots = self._slots_left()
        crossing = 0 < slots < len(records)
        batch = None if crossing else self._reader.read(records, self.next_offset or 0)
        if batch is None:
            return 0
        explain = 0 if self._is_due else self._model.explain
        taken = self._take_at_once(batch, records, explain)
        if taken is None:
            if batch.nulls:
                return 0
            scores: list[Any] = []
            reasons: list[Any] | None = [] if explain else None
            admitted = self._take_each(batch, records, scores, reasons)
            taken = _BatchResult(scores, admitted, {}, batch.truth, scores, reasons)
            if self._model.fragile:
                done = len(scores)
                times = [record.timestamp for record in records[:done]]
                self._since.extend(zip(batch.raw[:done], batch.ys[:done], times, strict=True))
                if done < len(batch.ys):
                    self._go_back()
        self._record_outcomes(batch, records, taken, "learned" if slots > 0 else "scored", output)
        done = len(taken.labelled_scores)
        auc_labels.extend(taken.truth[:done] if done < len(taken.truth) else taken.truth)
        auc_scores.extend(taken.labelled_scores)
        return len(taken.scores)

    def _record_outcomes(
        self, batch: Read, records: Sequence[Record], taken: _BatchResult, usual: str, output: LaneOutput
    ) -> None:
        """Count and output the outcomes of taken records; `usual` is the outcome of a learnable record."""
        scores: Sequence[float | None] = taken.scores
        outcomes, done, before = [usual] * len(scores), len(scores), self.seen
        if usual == "learned" and False in taken.admitted:
            outcomes = ["learned" if admitted else "scored" for admitted in taken.admitted]
        if done and (batch.nulls or taken.refused):
            outcomes = [*outcomes, *["scored"] * (done - len(outcomes))]
            for index in batch.nulls:
                outcomes[index] = "scored"
            scores = list(scores)
            for index in sorted(taken.refused):
                self.seen = before + index + 1
                scores[index] = None
                if taken.reasons is not None:
                    taken.reasons[index] = None
                outcomes[index] = self._refuse(records[index], *taken.refused[index], output.dead_letters)
        if self._is_due:
            outcomes = ["skipped" if outcome in _NOT_LEARNED else outcome for outcome in outcomes]
        for outcome, count in Counter(outcomes).items():
            self.events[outcome] += count
        keys = [record.key for record in records]
        output.scores.extend(
            map(Scored, batch.offsets, keys, batch.ids, scores, outcomes, *_with(taken.reasons))
        )
        self.seen = before + done
        if done:
            self.next_offset = batch.offsets[done - 1] + 1
        if self.outside is not None and not self._is_due:
            self._count_outside(self.outside, batch, done, taken.refused)

    @staticmethod
    def _count_outside(outside: Outside, batch: Read, done: int, refused: Collection[int]) -> None:
        """Count values outside the bounds in the first `done` records, without the refused ones."""
        if batch.table is not None:
            outside.rows(batch.table.names, batch.table.values[:done], refused)
        else:
            for index, x in enumerate(batch.raw[:done]):
                if index not in refused:
                    outside.one(x)

    def _copy(self) -> None:
        """Copy the steps that an error can leave half changed."""
        self._saved, self._since = self._model.checkpoint(), []

    def _go_back(self) -> None:
        """Roll the model back to before the event that failed."""
        self._model.rollback(self._saved, self._since)
        self._copy()

    def _take_at_once(self, batch: Read, records: Sequence[Record], explain: int) -> _BatchResult | None:
        """Let the learner score, explain and learn the batch; None, with nothing changed, if it cannot."""
        table, model, regret = batch.table, self._model, self._regret
        origins = () if model.private is None else (self._origins(records),)
        marks = {"nulls": batch.nulls} if batch.nulls else {}
        if table is not None:
            rows = model.prepare_rows
            ready = None if rows is None else rows(table.names, table.values, batch.ys, *origins, **marks)
        else:
            many = model.prepare_many
            ready = None if many is None else many(batch.xs, batch.ys, *origins, **marks)
        explained = ready if explain and isinstance(ready, ExplainedBatchProtocol) else None
        if ready is None or (explain and explained is None):
            return None
        refused = batch.refused
        if self._marks and ready.refused:
            refused = {index: (error, "features") for index, error in ready.refused.items()} | refused
        if refused and self._on_bad == "fail":
            return None
        truth, labels = batch.truth, self._regret_labels(batch)
        positions: Sequence[int] = range(len(truth))
        if batch.nulls or refused:
            unlearned = refused.keys() | batch.nulls
            positions = [index for index in positions if index not in unlearned]
            truth, labels = [truth[index] for index in positions], [labels[index] for index in positions]
        steps: Sequence[tuple[int, Step]] = ()
        if regret is not None:
            drawn = regret.draw(labels, lambda index: batch.record(positions[index]))
            if drawn is None:
                return None
            steps = drawn
        others = [step.partner.row for _, step in steps]
        before: tuple[Any, ...] = ([positions[index] for index, _ in steps], others) if steps else ()
        scores, reasons = (
            (ready.take(*before), None) if explained is None else explained.take_explained(explain, *before)
        )
        labelled_scores = scores if len(truth) == len(scores) else [scores[index] for index in positions]
        if regret is not None and steps:
            for (index, step), other_score in zip(steps, ready.other_scores, strict=True):
                regret.record_score(step, labelled_scores[index], other_score)
        return _BatchResult(scores, ready.admitted or [], refused, truth, labelled_scores, reasons)

    def _regret_labels(self, batch: Read) -> Sequence[Any]:
        """Labels for the regret: whether each is positive; for a learner without two classes, the labels."""
        return batch.ys if self._regret is not None and not self._regret.two_classes else batch.truth

    def _origins(self, records: Sequence[Record]) -> Origins:
        """`_origin` of each."""
        contexts = None
        if self._keyed:
            contexts = (
                contexts_of(self._partition, records)
                if self._labels is None
                else list(map(_due_context, cast("Sequence[OrderedRecord]", records)))
            )
        return Origins(contexts, [record.key for record in records] if self._entities else None)

    def _take_each(
        self, batch: Read, records: Sequence[Record], scores: list[float], reasons: list[Any] | None
    ) -> list[bool]:
        """Score and learn one event after the other until one fails; returns `_BatchResult.admitted`."""
        model, regret, labels = self._model, self._regret, self._regret_labels(batch)
        xs, ys = batch.xs[:], batch.ys
        score_one = model.score if reasons is None else self._explaining(reasons)
        learn_one = model.learn
        admitted: list[bool] = []
        emit = self._counting(scores, admitted) if self._entities else scores.append
        take = None if model.private is None else model.private.take_or_raise
        try:
            for x, y, label, record in zip(xs, ys, labels, records, strict=True):
                others = None
                if regret is not None and regret.enters(label):
                    score = score_one(x)
                    others = regret.prepare(x, label, model.score)
                    model.learn_from(x, y, self._origin(record))
                elif take is not None:
                    score = take(x, y, self._origin(record))
                else:
                    score = score_one(x)
                    learn_one(x, y)
                emit(score)
                if regret is not None:
                    regret.commit(x, label, score, others)
        except Exception:  # noqa: S110  # the record-by-record path meets it again, and handles it
            pass
        return admitted

    def _refused(self) -> int:
        """Records so far that exceeded their entity's limit: a function of entity and slot alone."""
        private = self._model.private
        return private.refused_records if private is not None and self._entities else 0

    def _explaining(self, reasons: list[Any]) -> Callable[[Any], float]:
        """A function that scores, and appends the reasons to `reasons`."""
        score_one, reasons_of = self._model.score, self._model.reasons

        def score(x: Any) -> float:
            found = score_one(x)
            reasons.append(reasons_of(x))
            return found

        return score

    def _counting(self, scores: list[float], admitted: list[bool]) -> Callable[[float], None]:
        """A function that appends a score to `scores`, and to `admitted` whether its record was learned."""
        refused = self._refused()

        def emit(score: float) -> None:
            nonlocal refused
            before, refused = refused, self._refused()
            scores.append(score)
            admitted.append(before == refused)

        return emit

    def _origin(self, record: Record) -> Origin:
        """Provenance of a record, for the noise and the account, as far as the learner needs it.

        An entity is the key of the message, never a field of its value: were the value damaged, its entity
        would change with it, and with that what is learned of others (docs/privacy 8). A message without a
        key belongs to no entity: a null record.
        """
        entity = record.key if self._entities else None
        if self._keyed:
            context = (
                context_of(self._partition, record.offset, record.key, record.value)
                if self._labels is None
                else _due_context(cast("OrderedRecord", record))
            )
            return Origin(context, entity)
        return Origin(None, entity) if self._entities else _NOWHERE

    def _take_carefully(
        self,
        records: Sequence[Record],
        output: LaneOutput,
        auc_labels: list[int],
        auc_scores: list[float],
    ) -> None:
        """Take records one by one, whatever they contain."""
        slots = self._slots_left()
        expected = -1 if self.next_offset is None else self.next_offset
        for record in records:
            if record.offset < expected:
                self.events["ignored"] += 1
                continue
            expected = self.next_offset = record.offset + 1
            self.seen += 1
            scored = self._take_one(record, slots > 0, output.dead_letters, auc_labels, auc_scores)
            if self._is_due and scored.outcome in _NOT_LEARNED:
                scored = msgspec.structs.replace(scored, outcome="skipped")
            slots -= 1
            self.events[scored.outcome] += 1
            output.scores.append(scored)

    def _take_one(
        self,
        record: Record,
        learns: bool,
        dead: list[DeadLetter],
        auc_labels: list[int],
        auc_scores: list[float],
    ) -> Scored:
        """Take one record; `learns`: whether it comes before the horizon."""
        model, regret = self._model, self._regret
        origin, refused = self._origin(record), self._refused()
        event_id: str | None = None
        reasons: list[tuple[str, float]] | None = None
        stage = "decode"
        try:
            event = self._decode(record)
            event_id, x = event.id, event.x
            y = event.y if self._labels is None else self._reader.joined([record])[0]
            stage = "features"
            z, score, shares = self._scored(x)
            if score is not None and not self._is_due:
                reasons = self._model.reasons(z)
            if y is None:
                outcome = "scored"
                self._learn_null(origin)
            else:
                stage = "label"
                label = bool(y == self._positive)
                compared = label if regret is None or regret.two_classes else y
                others = None
                if regret is not None and score is not None:
                    others = regret.prepare(z, compared, model.score)
                stage = "learn"
                if model.direct:
                    model.learn_from(z, y, origin)
                else:
                    self._learn_through(x, y, origin, record.timestamp)
                outcome = "learned" if learns and self._refused() == refused else "scored"
                if score is not None:
                    if regret is not None:
                        regret.commit(z, compared, score, others)
                    auc_labels.append(label)
                    auc_scores.append(score)
                if model.fragile:
                    self._since.append((x, y, record.timestamp))
            if self.outside is not None and not self._is_due:
                self.outside.one(x)
        except Exception as error:
            outcome = self._refuse_carefully(record, error, stage, origin, dead)
            score = shares = reasons = None
        return Scored(record.offset, record.key, event_id, score, outcome, shares, reasons)

    def _refuse_carefully(
        self, record: Record, error: Exception, stage: str, origin: Origin, dead: list[DeadLetter]
    ) -> str:
        """Roll back a record that failed, and return its outcome.

        Raises
        ------
        Exception
            The error itself, if it is not about the record.
        """
        if not self._is_bad_event(error, stage):
            raise error
        if self._model.fragile and stage != "decode":
            self._go_back()
        self._learn_null(origin)
        return self._refuse(record, error, stage, dead)

    def _learn_through(self, x: Any, y: object, origin: Origin, timestamp: int) -> None:
        """Let a pipeline learn; a record that it filters out is a null record."""
        if not self._model.learn_through(x, y, origin, timestamp):
            self._learn_null(origin)

    def _learn_null(self, origin: Origin) -> None:
        """Let a private learner take a null slot; other learners have none."""
        if self._model.private is not None:
            self._model.private.learn_null(origin)

    def _slots_left(self) -> float:
        """Slots left before the horizon; every record takes one."""
        private = self._model.private
        if private is None:
            return math.inf
        left = private.horizon_left
        return math.inf if left is None else left

    def _is_bad_event(self, error: Exception, stage: str) -> bool:
        """Whether the error is about the event. Any other error is ours, and must stop the lane."""
        # A SourceError: a schema could not be fetched, which says nothing about the event.
        if isinstance(error, MemoryError | PrivacyError | SourceError):
            return False
        if isinstance(error, ConfigError) and self._model.private is not None:
            return True  # parameters were checked before: this record has unknown or too many features
        return isinstance(error, RecordError) or stage in ("decode", "label") or self._model.foreign

    def _refuse(self, record: Record, error: Exception, stage: str, dead: list[DeadLetter]) -> str:
        """The outcome of a record that cannot be used: a dead letter, unless it is a tombstone.

        A tombstone says that a key was deleted. It is not an error, so neither `on_bad` nor the breaker
        counts it.
        """
        if record.value is None or isinstance(error, TombstoneError):
            return "tombstone"
        if self._is_due and stage_and_text(error, stage)[0] in ("decode", "features"):
            return "skipped"  # it has its dead letter since it was to be scored
        self._dead_letter(record, error, stage, dead)
        return "dead_letter"

    def _dead_letter(self, record: Record, error: Exception, stage: str, dead: list[DeadLetter]) -> None:
        stage, text = stage_and_text(error, stage)
        self.stages[stage] = self.stages.get(stage, 0) + 1
        where = f"{self._topic}[{self._partition}] offset {record.offset}"
        if self._on_bad == "fail":
            raise LaneStoppedError(
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
            raise LaneStoppedError(
                f"{len(bad)} of the last {min(position, breaker.window)} records of {self._topic}"
                f"[{self._partition}] are bad, the last at offset {record.offset} ({stage}: {text})",
                fix="look whether the schema of the topic changed; nothing since the last snapshot is lost. "
                "To go on over bad records, raise the breaker's share or turn it off",
            ) from error


def _kinds(records: Sequence[OrderedRecord]) -> list[int]:
    """Of each event: `LABEL_LATER`, `LABEL_LEARNED`, or 0: it is due."""
    labels = [record.label for record in records]
    return [label if label < 0 or label == LABEL_LEARNED else 0 for label in labels]


_TAKE: Final = {
    LABEL_LATER: RecordProcessor._score,
    LABEL_LEARNED: RecordProcessor._pass,
    0: RecordProcessor._learn_due,
}


def _due_context(record: OrderedRecord) -> bytes:
    """`context_of` of an event that is due: its place, whatever was scored before it, and its label."""
    return context_of(record.partition, record.position, record.key, record.value) + _CODE(record.label)


class _BatchResult(NamedTuple):
    """Results of events that were taken.

    Attributes
    ----------
    scores
        Of each event, before it was learned; for a refused event it means nothing.
    admitted
        Whether each event was within its entity's limit; empty where entities are not counted.
    refused
        As in `Read`, with those that the learner refuses.
    truth, labelled_scores
        For the labelled events that were scored: whether each is positive, and its score. There may be
        fewer scores.
    reasons
        As of `Scored`, of each event at least that has a score; None where they are not requested.
    """

    scores: list[float]
    admitted: list[bool]
    refused: dict[int, tuple[Exception, str]]
    truth: Sequence[int]
    labelled_scores: list[float]
    reasons: list[Any] | None = None


def _with(reasons: list[Any] | None) -> tuple[Iterable[Any], ...]:
    """The last arguments of `Scored` for a batch, without probabilities, if there are any reasons."""
    return () if reasons is None else (itertools.repeat(None), reasons)
