"""The way of a batch through a lane: each record is scored, and then learned, in one of two ways.

    process                  what is to be done with each record: a `_Task`
      _take                  the same task for all of them
        BatchDecoder.read    events, and which records cannot be used
        _take_rows           at once: the learner's `prepare_rows` or `prepare_many`, then `take` of the
                             prepared batch, a call of its kernel
        _take_one_by_one     `PipelineAdapter.score_event` and `learn_event` of each
        _finish              outcomes, and what is counted

Learners of streampair take whole batches, whatever their records contain: a record that cannot be used is
refused, and of a private learner takes its slot. One by one go the first records of a stream, which name the
features; records with other features than the learner knows; and all records of models that are not of
streampair, which may fail half-way through a change: they are copied, and rolled back. Both ways give the
same outputs and the same state, to the bit, where both can be taken.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from streampair.engine.decoding import BatchDecoder, DecodedBatch
from streampair.engine.delays import ScoreSample
from streampair.engine.exploration import Exploration
from streampair.engine.monitor import Monitor
from streampair.engine.origins import RecordOrigins
from streampair.engine.outcomes import Outcomes
from streampair.engine.outside import Outside
from streampair.engine.pipeline import PipelineAdapter
from streampair.engine.protocols import ExplainedBatchProtocol, PreparedBatchProtocol
from streampair.engine.records import (
    LABEL_LATER,
    LABEL_LEARNED,
    LABEL_STOPPED,
    Event,
    LaneOutput,
    OrderedRecord,
    Record,
    Scored,
)
from streampair.errors import LaneStoppedError, RecordError
from streampair.evaluation import QualityBeforeLabels
from streampair.evaluation.regret import Step

__all__ = ["RecordProcessor"]


class _Task(enum.Enum):
    """What is to be done with a record."""

    SCORE_AND_LEARN = enum.auto()
    """It has its label."""
    SCORE = enum.auto()
    """Its label comes later."""
    LEARN = enum.auto()
    """It is due: it was scored before, and is learned with the label that came."""
    PASS = enum.auto()
    """It is due, and was learned when its label came."""


class _Part(NamedTuple):
    """Records of a batch with the same task, all of them before or all behind the horizon.

    Attributes
    ----------
    records
        The records.
    gives_scores
        Whether their scores leave the lane: they are not due.
    learns
        Whether they are learned, or take slots of a private learner.
    usual, unlearned
        Outcome of a record that is learned if it can be, and of one without a label.
    """

    records: Sequence[Record]
    gives_scores: bool
    learns: bool
    usual: str
    unlearned: str


@dataclasses.dataclass(slots=True)
class _Taken:
    """Results of the records of a part.

    Attributes
    ----------
    scores
        Of each event, before it was learned; of a refused event it means nothing. None: it has none.
    refused
        Outcome of each record that cannot be used, by place.
    reasons, probabilities
        As of `Scored`, of each event; None where they are not requested.
    over_limit
        Places of events that were not learned, because their entity was over its limit.
    """

    scores: list[Any]
    refused: dict[int, str]
    reasons: list[Any] | None = None
    probabilities: list[Any] | None = None
    over_limit: list[int] = dataclasses.field(default_factory=list)

    def add(self, score: float | None = None, reasons: Any = None, probabilities: Any = None) -> None:
        """Add the results of an event."""
        self.scores.append(score)
        if self.reasons is not None:
            self.reasons.append(reasons)
        if self.probabilities is not None:
            self.probabilities.append(probabilities)


class RecordProcessor:
    """Scores and learns the records of a lane.

    Parameters
    ----------
    model
        The model.
    decode, labels
        See `Lane`.
    outcomes
        Receives the outcome of every record.
    monitor
        Receives every labelled event that was scored.
    partition
        Of the records, where they do not name it themselves.
    bounds
        Declared bounds of features; values outside are counted. None: there are none.
    exploration
        Weighs the outcomes of events whose labels come later. None: each counts once.

    Attributes
    ----------
    arrivals
        Where labels come later: scores of events that are not due yet, for the AUC.
    next_offset
        Offset of the next record to take; None before the first.
    seen, due, labelled, stopped
        Number of records taken, how many of them were due, how many of those had a label that came, and how
        many were stopped.
    explored
        As of `LateGauges`.
    outside
        Counter of values outside the bounds; None without bounds.
    """

    def __init__(
        self,
        model: PipelineAdapter,
        decode: Callable[[Record], Event],
        *,
        outcomes: Outcomes,
        monitor: Monitor,
        partition: int,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        labels: Sequence[object] | None = None,
        exploration: Exploration | None = None,
    ) -> None:
        self.exploration = exploration
        self._model = model
        self._labels = labels
        self._outcomes = outcomes
        self._auc, self._regret, self._before = monitor.auc, monitor.regret, monitor.before
        self._decoder = BatchDecoder(model, decode, labels)
        self._origins = RecordOrigins(model.private, partition, late=labels is not None)
        self.outside = Outside(bounds) if bounds else None
        self.arrivals = None if labels is None else ScoreSample()
        # The first record names the learner's features, and the regret keeps all pairs of its first records.
        self._alone = 1 if self._regret is None else self._regret.exact
        self.next_offset: int | None = None
        self.seen = 0
        self.due = 0
        self.labelled = self.stopped = 0
        self.explored = Counter(yes=0, no=0, stopped=0)
        self._stage = "features"  # where the record in hand is, as of `DeadLetter`

    # ---- what is to be done with each record -----------------------------------------------------------

    def process(self, records: Sequence[Record]) -> LaneOutput:
        """Take the records of a batch, each as its label says: `OrderedRecord.label`."""
        output = LaneOutput([], [], None)
        for task, part in self._tasks(self._fresh(records)):
            if task is _Task.SCORE:
                self._score_later(part, output)
            elif task is _Task.LEARN:
                self._learn_due(part, output)
            elif task is _Task.PASS:
                self._pass_over(part, output)
            else:
                self._take(part, task, output)
        output.next_offset = self.next_offset
        return output

    def _fresh(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records that were not taken before; the others are counted."""
        expected = -1 if self.next_offset is None else self.next_offset
        offsets = [record.offset for record in records]
        if not offsets or (offsets[0] >= expected and all(map(operator.lt, offsets, offsets[1:]))):
            return records
        fresh = []
        for record in records:
            if record.offset >= expected:
                fresh.append(record)
                expected = record.offset + 1
        self._outcomes.events["ignored"] += len(records) - len(fresh)
        return fresh

    def _tasks(self, records: Sequence[Record]) -> Iterator[tuple[_Task, Sequence[Any]]]:
        """The records in order, by task."""
        if not records:
            return
        if self._labels is None:
            yield _Task.SCORE_AND_LEARN, records
            return
        start = 0
        for task, part in itertools.groupby(map(_task_of, cast("Sequence[OrderedRecord]", records))):
            end = start + len(list(part))
            yield task, records[start:end]
            start = end

    def _pass_over(self, records: Sequence[OrderedRecord], output: LaneOutput) -> None:
        """Pass over due events that were learned when their labels came."""
        for record in records:
            output.scores.append(Scored(record.offset, record.key, None, None, "ignored"))
        self.seen += len(records)
        self.next_offset = records[-1].offset + 1

    def _score_later(self, records: Sequence[OrderedRecord], output: LaneOutput) -> None:
        """Score events whose labels come later, and keep the scores until then."""
        begin = len(output.scores)
        self._take(records, _Task.SCORE, output)
        assert self.arrivals is not None
        scores = [each.score for each in output.scores[begin:]]
        self.arrivals.extend(records, scores, self._weights(records, scores))

    def _weights(
        self, records: Sequence[OrderedRecord], scores: Sequence[float | None]
    ) -> dict[int, float] | None:
        """The weights of the outcomes of events that are scored now, by place: those that are not 1."""
        explore = self.exploration
        if explore is None:
            return None
        least = min(each.threshold for each in explore.acting)
        return {
            n: weight
            for n, (record, score) in enumerate(zip(records, scores, strict=True))
            if score is not None
            and score >= least
            and (weight := explore.weight(score, record.partition, record.position)) != 1.0
        }

    def _learn_due(self, records: Sequence[OrderedRecord], output: LaneOutput) -> None:
        """Learn events that were scored before. Their outcome says whether they were learned."""
        begin = len(output.scores)
        self._take(records, _Task.LEARN, output)
        self.due += len(records)
        known = self._labels or ()
        codes = [record.label for record in records]
        counts = Counter(codes)
        self.labelled += sum(n for code, n in counts.items() if code > 0 and known[code] is not None)
        self.stopped += counts[LABEL_STOPPED]
        assert self.arrivals is not None
        # Explored events are not thinned out: where some are, or were, each of the others stands for several.
        weighs = self.exploration is not None or self.arrivals.weighted
        taken = self.arrivals.pop_many(records)
        weights, stands_for = taken.weights, taken.stands_for if weighs else {}
        positive = [label == self._model.positive for label in known]
        outcomes = [scored.outcome for scored in output.scores[begin:]]
        sampled = [
            (n, positive[code], score)
            for n, (code, score, outcome) in enumerate(zip(codes, taken.scores, outcomes, strict=True))
            if score is not None and outcome == "learned"
        ]
        if not weights and not stands_for:
            self._evaluate([label for _, label, _ in sampled], [score for _, _, score in sampled])
            return
        used = [weights.get(n, 1.0) for n, _, _ in sampled]
        self.explored.update(
            yes=sum(weight > 1.0 for weight in used),
            no=sum(weight == 0.0 for weight in used),
            stopped=sum(codes[n] == LABEL_STOPPED and weight > 1.0 for n, weight in weights.items()),
        )
        counted = [
            (label, score, weight * stands_for.get(n, 1))
            for (n, label, score), weight in zip(sampled, used, strict=True)
            if weight
        ]
        if counted:
            self._evaluate(*map(list, zip(*counted, strict=True)))

    def _evaluate(
        self, labels: Sequence[int], scores: Sequence[float], weights: Sequence[float] | None = None
    ) -> None:
        """Add labelled events that were scored to the AUC; without `weights` each counts once."""
        if self._model.ranks:
            self._auc.extend(labels, scores, weights)
            if self._before is not None:
                self._before.update_labels(labels, scores)

    # ---- records with the same task --------------------------------------------------------------------

    def _take(self, records: Sequence[Record], task: _Task, output: LaneOutput) -> None:
        """Take records at once where that can be, and else one by one."""
        for part in self._parts(records, task):
            batch = self._decoder.read(part.records, labelled=part.learns)
            taken = self._take_rows(batch, part, output) if self._model.takes_rows else None
            if taken is None:
                taken = self._take_one_by_one(batch, part, output)
            self._finish(batch, part, taken, output)

    def _parts(self, records: Sequence[Record], task: _Task) -> Iterator[_Part]:
        """Cut a batch after the first records of the stream, and at the horizon of a private learner."""
        if task is _Task.SCORE:
            yield _Part(records, gives_scores=True, learns=False, usual="scored", unlearned="scored")
            return
        first = self._alone - (self.seen if self._labels is None else self.due)
        slots, end = self._slots_left(), len(records)
        edges = sorted({0, end, *(int(cut) for cut in (first, slots) if 0 < cut < end)})
        due = task is _Task.LEARN
        unlearned = "skipped" if due else "scored"
        for start, stop in itertools.pairwise(edges):
            part = records[start:stop] if len(edges) > 2 else records
            usual = "learned" if start < slots else unlearned
            yield _Part(part, gives_scores=not due, learns=True, usual=usual, unlearned=unlearned)

    def _slots_left(self) -> float:
        """Slots left before the horizon; every record takes one."""
        private = self._model.private
        left = None if private is None else private.horizon_left
        return math.inf if left is None else left

    def _refuse(self, error: Exception, stage: str, place: int, part: _Part, output: LaneOutput) -> str:
        """The outcome of a record of a part that cannot be used."""
        record, due = part.records[place], not part.gives_scores
        return self._outcomes.refuse(
            record, self.seen + place + 1, error, stage, output.dead_letters, due=due
        )

    def _finish(self, batch: DecodedBatch, part: _Part, taken: _Taken, output: LaneOutput) -> None:
        """Output the outcomes of records that were taken, and count them."""
        records, scores, reasons = part.records, taken.scores, taken.reasons
        outcomes = [part.usual] * len(records)
        for place in (*batch.nulls, *taken.over_limit):
            outcomes[place] = part.unlearned
        for place, outcome in taken.refused.items():
            outcomes[place], scores[place] = outcome, None
            if reasons is not None:
                reasons[place] = None
        if part.learns and part.gives_scores:
            labelled = _without(len(records), batch.nulls, taken.refused)
            if self._model.front_learns:  # it may be too early for a score
                labelled = [place for place in labelled if scores[place] is not None]
            if self._model.ranks:
                self._auc.extend(_select(batch.truth, labelled), _select(scores, labelled))
        else:
            labelled = ()
        offsets, keys = [record.offset for record in records], [record.key for record in records]
        columns: list[Iterable[Any]] = [offsets, keys, batch.ids, scores, outcomes]
        if taken.probabilities is not None or reasons is not None:
            columns += [taken.probabilities or itertools.repeat(None), reasons or itertools.repeat(None)]
        output.scores.extend(map(Scored, *columns))
        if part.gives_scores and self._before is not None:
            self._watch(self._before, batch, taken, labelled)
        self._outcomes.count(outcomes)
        if part.gives_scores and self.outside is not None:
            self.outside.batch(batch.table, batch.raw, taken.refused)
        self.seen += len(records)
        self.next_offset = offsets[-1] + 1

    def _watch(
        self, before: QualityBeforeLabels, batch: DecodedBatch, taken: _Taken, labelled: Sequence[int]
    ) -> None:
        """Let drift see the events, their scores, and labels with them, without those that were refused."""
        table, refused = batch.table, taken.refused
        if table is not None:
            values = np.delete(table.values, list(refused), axis=0) if refused else table.values
            before.features.update_rows(table.names, values)
        else:
            before.features.update_records(_select(batch.raw, _without(len(batch.raw), (), refused)))
        scores = np.array(taken.scores, dtype=np.float64)  # None becomes NaN
        known = scores
        if refused or self._model.front_learns:
            known = scores[~np.isnan(scores)]
        before.update_scores(known)
        if labelled and self._model.ranks:
            if len(labelled) < len(scores):
                scores = scores[labelled]
            before.update_labels(_select(batch.truth, labelled), scores)

    # ---- at once ---------------------------------------------------------------------------------------

    def _take_rows(self, batch: DecodedBatch, part: _Part, output: LaneOutput) -> _Taken | None:
        """Take records in one call of the learner; None, with nothing changed: one by one."""
        if not part.learns:
            return self._score_rows(batch, part, output)
        ready = self._prepare(batch, part.records)
        explain = self._model.explain if part.gives_scores else 0
        explained = ready if explain and isinstance(ready, ExplainedBatchProtocol) else None
        if ready is None or (explain and explained is None):
            return None
        refused = {place: (error, "features") for place, error in ready.refused.items()} | batch.refused
        steps = self._draw(batch, _without(len(part.records), batch.nulls, refused))
        if steps is None:
            return None
        # The partners of the regret's steps are scored in between, each before its event is learned.
        stops = [place for place, _ in steps]
        partners = [step.other.row for _, step in steps]
        reasons: list[Any] | None = None
        if explained is None:
            scores = ready.take(stops, partners)
        else:
            scores, reasons = explained.take_explained(explain, stops, partners)
        if self._regret is not None:
            for (place, step), partner_score in zip(steps, ready.other_scores, strict=True):
                self._regret.record_score(step, scores[place], partner_score)
        over_limit = [place for place, admitted in enumerate(ready.admitted or ()) if not admitted]
        return _Taken(scores, self._refuse_each(refused, part, output), reasons, over_limit=over_limit)

    def _score_rows(self, batch: DecodedBatch, part: _Part, output: LaneOutput) -> _Taken | None:
        """Score records that are not learned now; None: one by one."""
        model, table = self._model, batch.table
        if table is None or model.score_rows is None:
            return None
        reasons: list[Any] | None = None
        try:
            if model.explain_rows is not None:
                scores, reasons = model.explain_rows(table.names, table.values, model.explain)
            else:
                scores = model.score_rows(table.names, table.values).tolist()
                reasons = list(map(model.reasons, batch.raw)) if model.explain else None
        except RecordError:
            return None  # one of the rows has no score: which one, and why, is found out one by one
        return _Taken(scores, self._refuse_each(batch.refused, part, output), reasons)

    def _prepare(self, batch: DecodedBatch, records: Sequence[Record]) -> PreparedBatchProtocol | None:
        """Let the learner check a batch, which changes nothing; None: one by one."""
        model, table = self._model, batch.table
        more: dict[str, Any] = {"nulls": batch.nulls} if batch.nulls else {}
        if model.private is not None:
            more["origins"] = self._origins.of_each(records)
        ready: PreparedBatchProtocol | None = None
        if table is not None and model.prepare_rows is not None:
            ready = model.prepare_rows(table.names, table.values, batch.ys, **more)
        elif model.prepare_many is not None:
            ready = model.prepare_many(batch.xs, batch.ys, **more)
        return ready

    def _draw(self, batch: DecodedBatch, labelled: Sequence[int]) -> list[tuple[int, Step]] | None:
        """Keep the events of a batch that enter the sample of the regret; None: one by one."""
        regret = self._regret
        if regret is None:
            return []
        labels = _select(batch.truth if regret.two_classes else batch.ys, labelled)
        steps = regret.draw(labels, lambda indices: batch.records([labelled[index] for index in indices]))
        return None if steps is None else [(labelled[index], step) for index, step in steps]

    def _refuse_each(
        self, refused: Mapping[int, tuple[Exception, str]], part: _Part, output: LaneOutput
    ) -> dict[int, str]:
        return {place: self._refuse(*refused[place], place, part, output) for place in sorted(refused)}

    # ---- one by one ------------------------------------------------------------------------------------

    def _take_one_by_one(self, batch: DecodedBatch, part: _Part, output: LaneOutput) -> _Taken:
        """Take records one after the other, whatever the model is; one that fails leaves it as before."""
        model, regret, bad = self._model, self._regret, batch.refused
        if part.learns and model.fragile:
            model.checkpoint()
        explain = bool(model.explain and part.gives_scores)
        taken = _Taken([], {}, [] if explain else None, [] if model.several else None)
        # Of a regret over two classes, a label is whether it is the positive one.
        labels = batch.truth if regret is not None and regret.two_classes else batch.ys
        events = zip(batch.xs[:], batch.ys, labels, part.records, strict=True)
        plain, scores = model.plain and not explain, taken.scores
        score_one, learn_one = model.score, model.learn
        begin = 0
        for x, y, label, record in events:
            if bad and (place := len(scores)) in bad:
                self._learn_null(record, part)
                taken.refused[place] = self._refuse(*bad[place], place, part, output)
                taken.add()
                continue
            try:
                self._stage = "features"
                if plain and y is not None and (regret is None or not regret.enters(label)):
                    # Fast path: the rest takes as long as a model that learns in microseconds.
                    score = score_one(x)
                    self._stage = "learn"
                    learn_one(x, y)
                    if regret is not None:
                        regret.commit(x, label, score, None)
                    scores.append(score)
                else:
                    self._take_one(x, y, label, record, part, taken)
            except Exception as error:
                place = len(scores)
                self._fail(error, record, part, _learned(batch, part, taken, begin))
                taken.refused[place] = self._refuse(error, self._stage, place, part, output)
                taken.add()
                begin = place + 1
                score_one, learn_one = model.score, model.learn  # a rollback has exchanged them
        if part.learns and model.fragile:
            model.remember(_learned(batch, part, taken, begin))
        return taken

    def _take_one(self, x: Any, y: object, label: Any, record: Record, part: _Part, taken: _Taken) -> None:
        """Score and learn one record, as of `PipelineAdapter.features`."""
        model, regret, private = self._model, self._regret, self._model.private
        z, score, probabilities = model.score_event(x)
        reasons = None if taken.reasons is None or score is None else model.reasons(z)
        if y is None:
            self._learn_null(record, part)
        else:
            partners = None
            if regret is not None and score is not None:
                self._stage = "label"
                partners = regret.prepare(z, label, model.score)
            self._stage = "learn"
            origin = self._origins.of(record)
            refused = 0 if private is None else private.refused_records
            if not model.learn_event(x, z, y, origin, record.timestamp) and private is not None:
                private.learn_null(origin)
            if private is not None and private.refused_records != refused:
                taken.over_limit.append(len(taken.scores))
            if regret is not None and score is not None:
                regret.commit(z, label, score, partners)
        taken.add(score, reasons, probabilities)

    def _learn_null(self, record: Record, part: _Part) -> None:
        """Let a private learner take a null slot; other learners have none."""
        if part.learns and self._model.private is not None:
            self._model.private.learn_null(self._origins.of(record))

    def _fail(
        self, error: Exception, record: Record, part: _Part, learned: Iterable[tuple[Any, Any, int]]
    ) -> None:
        """Roll the model back to before a record that failed; it takes a null slot of a private learner.

        Raises
        ------
        Exception
            The error itself, if it is not about the record.
        """
        if not self._model.is_bad_event(error, self._stage):
            raise error
        if part.learns and self._model.fragile:
            self._model.remember(learned)
            self._model.rollback()
        self._learn_null(record, part)


def _learned(batch: DecodedBatch, part: _Part, taken: _Taken, begin: int) -> Iterable[tuple[Any, Any, int]]:
    """Events that were learned from a place on, for `PipelineAdapter.remember`."""
    times = [record.timestamp for record in part.records[begin : len(taken.scores)]]
    events = zip(batch.xs[begin:], batch.ys[begin:], times, strict=False)
    if not batch.nulls and not taken.refused:
        return events
    return [
        event
        for place, event in enumerate(events, begin)
        if place not in taken.refused and batch.ys[place] is not None
    ]


def _task_of(record: OrderedRecord) -> _Task:
    """The task of a record of a lane whose labels come later."""
    if record.label == LABEL_LATER:
        return _Task.SCORE
    if record.label < 0:
        raise LaneStoppedError(
            f"the record at offset {record.offset} has its label, and labels come later here",
            fix="give the lane records of an ordered source with labels",
        )
    return _Task.PASS if record.label == LABEL_LEARNED else _Task.LEARN


def _without(count: int, nulls: Collection[int], refused: Collection[int]) -> Sequence[int]:
    """The places below `count` that are neither nulls nor refused."""
    if not nulls and not refused:
        return range(count)
    left = {*nulls, *refused}
    return [place for place in range(count) if place not in left]


def _select(items: Sequence[Any], places: Sequence[int]) -> Sequence[Any]:
    """The items at ascending places."""
    return items if len(places) == len(items) else [items[place] for place in places]
