"""A batch of records on its way through a lane: decoding, scores, and what came of each record."""

from __future__ import annotations

import itertools
import math
import operator
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from streampair.engine.monitor import Monitor
from streampair.engine.pipeline import Model
from streampair.engine.protocols import decode_many, prepare_many, prepare_rows, takes_nulls
from streampair.engine.records import Breaker, DeadLetter, Event, LaneOutput, Record, Rows, Scored
from streampair.engine.reservations import context_of, contexts_of
from streampair.errors import ConfigError, LaneStoppedError, PrivacyError, RecordError
from streampair.evaluation import PairRegret, Records
from streampair.privacy.provenance import Origin, Origins

__all__ = [
    "Batch",
    "Outside",
    "Read",
    "Reader",
    "refuse_nan",
]


class Outside:
    """Counts by feature. Learners that take bounds clip such values; nothing is steered by the counts.

    Parameters
    ----------
    bounds
        Lowest and highest value of each feature.

    Attributes
    ----------
    counts
        Values so far, by feature; of those alone that had any.

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
        """Look at one record."""
        bounds = self._bounds
        for name, value in x.items():
            if name in bounds and isinstance(value, int | float):
                low, high = bounds[name]
                if value < low or value > high:
                    self.counts[name] = self.counts.get(name, 0) + 1

    def rows(self, names: list[str], values: NDArray[np.float64], refused: Collection[int] = ()) -> None:
        """Look at records of shape (n, d), but for the rows that were refused: their values mean nothing."""
        if names != self._names:
            pairs = [self._bounds.get(name, (-np.inf, np.inf)) for name in names]
            self._names = list(names)
            self._low = np.array([low for low, _ in pairs])
            self._high = np.array([high for _, high in pairs])
        beyond = (values < self._low) | (values > self._high)
        if not beyond.any():
            return
        beyond[[at for at in refused if at < len(values)]] = False
        for name, count in zip(names, beyond.sum(axis=0).tolist(), strict=True):
            if count:
                self.counts[name] = self.counts.get(name, 0) + count


_NOTHING = Event({}, None)


class Read(NamedTuple):
    """A batch of events: as they came, and as the learner sees them.

    Attributes
    ----------
    offsets, ids
        Of the records, and of the events.
    table
        All of them, if they came so.
    raw, xs
        The records before and after the steps in front of the learner.
    ys
        The labels; None where there is nothing to learn.
    truth
        Whether each has the label that ranks high; bytes, 1 or 0 each, if somebody asked for flags.
    nulls
        Positions of what has no label, or was refused, ascending.
    refused
        By position, the error of what is no usable record, and where it came.
    """

    offsets: list[int]
    table: Rows | None
    raw: Sequence[dict[str, Any]]
    xs: Sequence[Any]
    ys: Sequence[Any]
    ids: Iterable[str | None]
    truth: Sequence[int]
    nulls: list[int]
    refused: dict[int, tuple[Exception, str]]


class Reader:
    """Reads batches for one model.

    Parameters
    ----------
    model
        The model.
    decode, positive
        See `Lane`.
    is_bad
        From an error and the stage that it came in to whether it is about the event.
    flags
        Whether `truth` has to be bytes, whatever labels say when they are compared.
    """

    def __init__(
        self,
        model: Model,
        decode: Callable[[Record], Event],
        *,
        positive: object,
        is_bad: Callable[[Exception, str], bool],
        flags: bool,
    ) -> None:
        self._model = model
        self._decode = decode
        # Where the learner takes whole arrays of records as they are.
        rows = model.transform is None and prepare_rows(model.learner) is not None
        self._many = decode_many(decode) if rows else None
        # Whether it takes records that it does not learn from among the others.
        self._marks = not model.fragile and takes_nulls(model.learner)
        self._positive = positive
        self._is_bad = is_bad
        self._flags = flags

    def read(self, records: Sequence[Record], following: int) -> Read | None:
        """Decode records, the first at the offset `following` or behind it; None: read each alone."""
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
                raw, ys, ids = _Dicts(table), table.labels, table.ids or itertools.repeat(None)
                if table.refused:
                    refused = {at: (error, "decode") for at, error in table.refused.items()}
            else:
                events = self._each(self._decode, records, "decode", _NOTHING, refused)
                raw, ys = [event.x for event in events], [event.y for event in events]
                ids = [event.id for event in events]
                if model.fragile:
                    for x in raw:
                        refuse_nan(x)
            xs = raw
            if model.transform is not None:
                xs = self._each(model.transform, raw, "features", None, refused)
                ys = [None if at in refused else y for at, y in enumerate(ys)] if refused else ys
            nulls = [at for at, y in enumerate(ys) if y is None] if None in ys else []
            if nulls and not self._marks:
                return None
            truth = self._truth(ys)
        except Exception:
            return None  # whatever it is, the careful way meets it again, alone
        return Read(offsets, table, raw, xs, ys, ids, truth, nulls, refused)

    def _truth(self, ys: list[Any]) -> Sequence[int]:
        positive = self._positive
        # Most often labels are truth values, or numbers 0 and 1, already.
        marks = _marks(ys) if positive is True else None
        if marks is not None:
            return marks
        told = [y == positive for y in ys]
        if not self._flags:
            return told
        marks = _marks(told)
        return bytes(map(bool, told)) if marks is None else marks

    def _each(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        stage: str,
        nothing: Any,
        refused: dict[int, tuple[Exception, str]],
    ) -> list[Any]:
        """The function of each item, and `nothing` of one that is or was refused."""
        if not refused:
            try:
                return list(map(function, items))
            except Exception:
                if not self._marks:
                    raise
        out = []
        for at, item in enumerate(items):
            value = nothing
            if at not in refused:
                try:
                    value = function(item)
                except Exception as error:
                    if not self._is_bad(error, stage):
                        raise
                    refused[at] = (error, stage)
            out.append(value)
        return out


class _Dicts(Sequence[dict[str, Any]]):
    """The records of a table, made when somebody asks for them."""

    def __init__(self, table: Rows) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table.values)

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, at: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        names, rows = self._table.names, self._table.values[at].tolist()
        if isinstance(at, slice):
            return [dict(zip(names, row, strict=True)) for row in rows]
        return dict(zip(names, rows, strict=True))


def _marks(told: Sequence[Any]) -> bytes | None:
    """These as bytes of 0 and 1; None if they are anything else, as text, or NumPy's truth values."""
    # A fraction of the time that a look at each type, or a comparison, takes; what is no integer raises.
    try:
        marks = bytes(told)
    except (TypeError, ValueError):
        return None
    # Of an array, bytes are those that it lies in.
    return None if len(marks) != len(told) or marks.strip(b"\x00\x01") else marks


def refuse_nan(x: Mapping[str, Any]) -> None:
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


_OUTCOMES: Final = ("learned", "scored", "dead_letter", "tombstone", "ignored")
_STAGES: Final = ("decode", "features", "label", "learn")
_NOWHERE: Final = Origin()
# In place of a sample of the regret: it does not count the record; it counts it, and passes it over.
_NOT_COUNTED: Final = object()
_PASSED: Final = object()
# Events after which a model that may be left half changed is copied anew: to go back, they are learned again.
_RELEARNED: Final = 500


class Batch:
    """Takes the records of one partition, scores and learns them, and counts what became of each.

    Parameters
    ----------
    model
        The model.
    decode, positive, on_bad
        See `Lane`.
    breaker
        None: never stop because too many events are bad.
    monitor
        Told every labelled event that was scored.
    topic, partition
        For messages.
    bounds
        Of features, as declared: what lies beyond is counted. None: there are none.

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
    outside
        Counts values beyond the bounds; None without any.
    """

    def __init__(
        self,
        model: Model,
        decode: Callable[[Record], Event],
        *,
        positive: object,
        on_bad: Literal["dlq", "skip", "fail"],
        breaker: Breaker | None,
        monitor: Monitor,
        topic: str,
        partition: int,
        bounds: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self._model = model
        self.outside = Outside(bounds) if bounds else None
        self._decode = decode
        self._marks = takes_nulls(model.learner)
        self._positive = positive
        self._on_bad = on_bad
        self._breaker = breaker
        self._auc, self._regret = monitor.auc, monitor.regret
        self._two_classes = isinstance(self._regret, PairRegret)
        self._topic = topic
        self._partition = partition
        self._reader = Reader(
            model, decode, positive=positive, is_bad=self._is_bad_event, flags=self._regret is not None
        )
        private = model.private
        # Of the first records a learner takes the names of its features, and the regret all pairs.
        self._alone = 1 if self._regret is None else self._regret.exact
        self._keyed = private is not None and private.noise_key is not None
        self._entities = private is not None and private.entity is not None
        self.next_offset: int | None = None
        self.events = dict.fromkeys(_OUTCOMES, 0)
        self.stages = dict.fromkeys(_STAGES, 0)
        self.seen = 0
        self.bad: deque[int] = deque()
        # A copy of the steps that an event could leave half changed, and what was learned since it was made.
        self._saved: dict[str, Any] = {}
        self._since: list[tuple[Any, Any]] = []

    def process(self, records: Sequence[Record]) -> LaneOutput:
        """Take the plain events at the front of the batch in bulk, the rest one by one.

        Both ways give the same outputs and the same state; in bulk, each question is asked once a batch.
        """
        output = LaneOutput([], [], None)
        labels: list[int] = []
        given: list[float] = []
        if self._model.fragile and (not self._saved or len(self._since) >= _RELEARNED):
            self._copy()
        # The first records of all are taken one by one. Those behind them in the batch need not be.
        first = self._alone - self.seen
        parts = [records[:first], records[first:]] if 0 < first < len(records) else [records]
        for part in parts:
            # In bulk there are scores alone.
            done = 0 if self._model.several else self._take_plain(part, output, labels, given)
            if done < len(part):
                self._take_carefully(part[done:] if done else part, output, labels, given)
        output.next_offset = self.next_offset
        if self._model.ranks:
            self._auc.extend(labels, given)
        return output

    def _take_plain(
        self,
        records: Sequence[Record],
        output: LaneOutput,
        labels: list[int],
        given: list[float],
    ) -> int:
        """Take all together, or else labelled events until the first that fails; how many were taken."""
        slots = self._slots_left()
        crossing = 0 < slots < len(records)
        batch = None if crossing else self._reader.read(records, self.next_offset or 0)
        if batch is None:
            return 0
        taken = self._take_at_once(batch, records)
        if taken is None:
            if batch.nulls:
                return 0
            scores: list[Any] = []
            taken = _Taken(scores, self._take_each(batch, records, scores), {}, batch.truth, scores)
            if self._model.fragile:
                done = len(scores)
                self._since.extend(zip(batch.raw[:done], batch.ys[:done], strict=True))
                if done < len(batch.ys):
                    self._go_back()
        self._tell(batch, records, taken, "learned" if slots > 0 else "scored", output)
        done = len(taken.told)
        labels.extend(taken.truth[:done] if done < len(taken.truth) else taken.truth)
        given.extend(taken.told)
        return len(taken.scores)

    def _tell(
        self, batch: Read, records: Sequence[Record], taken: _Taken, usual: str, output: LaneOutput
    ) -> None:
        """Count and tell what became of each that was taken; `usual` is that of what a learner takes."""
        scores: Sequence[float | None] = taken.scores
        outcomes, done, before = [usual] * len(scores), len(scores), self.seen
        if usual == "learned" and False in taken.admitted:
            outcomes = ["learned" if it_was else "scored" for it_was in taken.admitted]
        if done and (batch.nulls or taken.refused):
            outcomes = [*outcomes, *["scored"] * (done - len(outcomes))]
            for at in batch.nulls:
                outcomes[at] = "scored"
            scores = list(scores)
            for at in sorted(taken.refused):
                self.seen = before + at + 1
                scores[at] = None
                outcomes[at] = self._refuse(records[at], *taken.refused[at], output.dead_letters)
        for outcome in ("learned", "scored", "dead_letter", "tombstone"):
            self.events[outcome] += outcomes.count(outcome)
        keys = [record.key for record in records]
        output.scores.extend(map(Scored, batch.offsets, keys, batch.ids, scores, outcomes))
        self.seen = before + done
        if done:
            self.next_offset = batch.offsets[done - 1] + 1
        if self.outside is not None:
            self._count_outside(self.outside, batch, done, taken.refused)

    @staticmethod
    def _count_outside(outside: Outside, batch: Read, done: int, refused: Collection[int]) -> None:
        """Look at the values of the first `done` records, but for those that were refused."""
        if batch.table is not None:
            outside.rows(batch.table.names, batch.table.values[:done], refused)
        else:
            for at, x in enumerate(batch.raw[:done]):
                if at not in refused:
                    outside.one(x)

    def _copy(self) -> None:
        """Copy the steps that an event could leave half changed."""
        self._saved, self._since = self._model.checkpoint(), []

    def _go_back(self) -> None:
        """Undo what an event may have left half done."""
        self._model.rollback(self._saved, self._since)
        self._copy()

    def _take_at_once(self, batch: Read, records: Sequence[Record]) -> _Taken | None:
        """Let the learner score and learn all in one go; None, with nothing changed, if it cannot."""
        table, learner, regret = batch.table, self._model.learner, self._regret
        where = () if self._model.private is None else (self._origins(records),)
        marks = {"nulls": batch.nulls} if batch.nulls else {}
        if table is not None:
            rows = prepare_rows(learner)
            ready = None if rows is None else rows(table.names, table.values, batch.ys, *where, **marks)
        else:
            many = prepare_many(learner)
            ready = None if many is None else many(batch.xs, batch.ys, *where, **marks)
        if ready is None:
            return None
        refused = batch.refused
        if self._marks and ready.refused:
            refused = {at: (error, "features") for at, error in ready.refused.items()} | refused
        if refused and self._on_bad == "fail":
            return None
        truth, labels = batch.truth, self._told(batch)
        place: Sequence[int] = range(len(truth))
        if batch.nulls or refused:
            away = refused.keys() | batch.nulls
            place = [at for at in place if at not in away]
            truth, labels = [truth[at] for at in place], [labels[at] for at in place]
        drawn = None
        if regret is not None:
            kept = _rows(ready, place)
            drawn = regret.draw(labels, numbers=getattr(ready, "numbers", False), rows=kept)
            if drawn is None:
                return None
            if drawn.at:
                given = _dicts(batch, [place[at] for at in drawn.at]) if kept is None else kept.only(drawn.at)
                regret.keep(drawn, given, labels)
        stops = [place[at] for at in drawn.stops] if drawn is not None else []
        scores = ready.take(stops, drawn.others) if drawn is not None and stops else ready.take()
        told = scores if len(truth) == len(scores) else [scores[at] for at in place]
        if regret is not None and drawn is not None and stops:
            regret.settle(drawn, told, ready.beside)
        return _Taken(scores, ready.admitted or [], refused, truth, told)

    def _told(self, batch: Read) -> Sequence[Any]:
        """What the regret is told of labels: whether each is the one that ranks high, or where there is none
        that does, the labels.
        """
        return batch.truth if self._two_classes else batch.ys

    def _origins(self, records: Sequence[Record]) -> Origins:
        """`_origin` of each."""
        contexts = contexts_of(self._partition, records) if self._keyed else None
        return Origins(contexts, [record.key for record in records] if self._entities else None)

    def _take_each(self, batch: Read, records: Sequence[Record], given: list[float]) -> list[bool]:
        """Score and learn one after the other until one fails; which were admitted, as `_Taken` says."""
        model, regret, told = self._model, self._regret, self._told(batch)
        n, xs, ys = len(batch.ys), batch.xs, batch.ys
        score_one, learn_one = model.score, model.learn
        admitted: list[bool] = []
        emit = self._counting(given, admitted) if self._entities else given.append
        take = None if model.private is None else model.private.take_or_raise
        counted = 0
        hits = iter([(n, 0, 0)]) if regret is None else regret.hits(told)
        try:
            for stop, zeros, ones in hits:
                if take is None:
                    for x, y in zip(xs[counted:stop], ys[counted:stop], strict=True):
                        score = score_one(x)
                        learn_one(x, y)
                        emit(score)
                else:
                    origins = map(self._origin, records[counted:stop])
                    for x, y, origin in zip(xs[counted:stop], ys[counted:stop], origins, strict=True):
                        emit(take(x, y, origin))
                if regret is None:
                    break
                regret.pass_over(zeros, ones)
                counted = stop
                if stop == n:
                    break
                x, y, origin = xs[stop], ys[stop], self._origin(records[stop])
                score = score_one(x)
                sample = regret.prepare(x, told[stop], score, score_one)
                model.learn_from(x, y, origin)
                emit(score)
                regret.commit(sample, told[stop])
                counted += 1
        except Exception:  # noqa: S110  # the careful way meets it again, alone
            pass
        if regret is not None:
            regret.skip(told[counted : len(given)])
        return admitted

    def _refused(self) -> int:
        """Records so far whose entity had been learned from often enough: by entity and slot alone."""
        private = self._model.private
        return private.refused_records if private is not None and self._entities else 0

    def _counting(self, given: list[float], admitted: list[bool]) -> Callable[[float], None]:
        """Append a score to `given`, and to `admitted` whether its record was."""
        refused = self._refused()

        def emit(score: float) -> None:
            nonlocal refused
            before, refused = refused, self._refused()
            given.append(score)
            admitted.append(before == refused)

        return emit

    def _origin(self, record: Record) -> Origin:
        """What the noise of a record and its account go by, as far as its learner asks.

        An entity is the key of the message, never a field of its value: were the value damaged, its entity
        would change with it, and with that what is learned of others (docs/privacy 8). A message without a
        key is nobody's: a null record.
        """
        entity = record.key if self._entities else None
        if self._keyed:
            return Origin(context_of(self._partition, record.offset, record.key, record.value), entity)
        return Origin(None, entity) if self._entities else _NOWHERE

    def _take_carefully(
        self,
        records: Sequence[Record],
        output: LaneOutput,
        labels: list[int],
        given: list[float],
    ) -> None:
        """Any record at all, one by one."""
        slots = self._slots_left()
        expected = -1 if self.next_offset is None else self.next_offset
        for record in records:
            if record.offset < expected:
                self.events["ignored"] += 1
                continue
            expected = self.next_offset = record.offset + 1
            self.seen += 1
            scored = self._take_one(record, slots > 0, output.dead_letters, labels, given)
            slots -= 1
            self.events[scored.outcome] += 1
            output.scores.append(scored)

    def _take_one(
        self, record: Record, learns: bool, dead: list[DeadLetter], labels: list[int], given: list[float]
    ) -> Scored:
        """One record; `learns` says whether it comes before the horizon."""
        model, regret = self._model, self._regret
        origin, refused = self._origin(record), self._refused()
        event_id: str | None = None
        stage = "decode"
        try:
            event = self._decode(record)
            event_id, x, y = event.id, event.x, event.y
            stage = "features"
            if model.fragile:
                refuse_nan(x)
            z = model.through(x)
            score, shares = (None, None) if model.too_early(z) else model.judge(z)
            if y is None:
                outcome = "scored"
                self._learn_null(origin)
            else:
                stage = "label"
                label = bool(y == self._positive)
                told = label if self._two_classes else y
                sample: Any = _NOT_COUNTED
                if regret is not None and score is not None:
                    sample = regret.prepare(z, told, score, model.score) if regret.enters(told) else _PASSED
                stage = "learn"
                if model.direct:
                    model.learn_from(z, y, origin)
                else:
                    self._learn_through(x, y, origin)
                outcome = "learned" if learns and self._refused() == refused else "scored"
                if sample is not _NOT_COUNTED:
                    self._settle_regret(sample, told)
                if score is not None:
                    labels.append(label)
                    given.append(score)
                if model.fragile:
                    self._since.append((x, y))
            if self.outside is not None:
                self.outside.one(x)
        except Exception as error:
            outcome, score, shares = self._refuse_carefully(record, error, stage, origin, dead), None, None
        return Scored(record.offset, record.key, event_id, score, outcome, shares)

    def _refuse_carefully(
        self, record: Record, error: Exception, stage: str, origin: Origin, dead: list[DeadLetter]
    ) -> str:
        """The outcome of a record that failed, with the model as it was before it.

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

    def _learn_through(self, x: Any, y: object, origin: Origin) -> None:
        """Let a pipeline learn; a record that it keeps from the learner is a null record."""
        if not self._model.learn_through(x, y, origin):
            self._learn_null(origin)

    def _learn_null(self, origin: Origin) -> None:
        """Let a private learner take a null slot; other learners have none."""
        if self._model.private is not None:
            self._model.private.learn_null(origin)

    def _settle_regret(self, sample: Any, told: Any) -> None:
        """Let the regret count a record that was learned."""
        if self._regret is not None:
            if sample is _PASSED:
                self._regret.skip([told])
            else:
                self._regret.commit(sample, told)

    def _slots_left(self) -> float:
        """Slots before the horizon; every record takes one."""
        private = self._model.private
        if private is None:
            return math.inf
        left = private.horizon_left
        return math.inf if left is None else left

    def _is_bad_event(self, error: Exception, stage: str) -> bool:
        """Whether this is about the event; everything else is about us, and must be heard."""
        if isinstance(error, MemoryError | PrivacyError):
            return False
        if isinstance(error, ConfigError) and self._model.private is not None:
            return True  # what was declared was checked long ago: this record names features, or too many
        return isinstance(error, RecordError) or stage in ("decode", "label") or self._model.foreign

    def _refuse(self, record: Record, error: Exception, stage: str, dead: list[DeadLetter]) -> str:
        """The outcome of a record that cannot be used: a dead letter, unless it is a tombstone.

        A tombstone says that a key was deleted. Nobody has made a mistake, so nothing is to be mended, and
        neither `on_bad` nor the breaker counts it.
        """
        if record.value is None:
            return "tombstone"
        self._dead_letter(record, error, stage, dead)
        return "dead_letter"

    def _dead_letter(self, record: Record, error: Exception, stage: str, dead: list[DeadLetter]) -> None:
        if isinstance(error, RecordError):
            stage, text = error.stage, str(error)
        else:
            text = f"{type(error).__name__}: {error}"
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


def _rows(ready: Any, place: Sequence[int]) -> Records | None:
    """The records at these places of a batch, ascending, if they are at hand as rows."""
    rows = getattr(ready, "rows", None)
    if rows is None:
        return None
    return Records(ready.names, rows if len(place) == len(rows) else rows[place])


def _dicts(batch: Read, places: list[int]) -> list[Any]:
    """The records at these places of a batch, as the learner sees them."""
    many = 4 * len(places) > len(batch.xs)  # they are cheaper together
    xs = batch.xs[:] if many else batch.xs
    return [xs[at] for at in places]


class _Taken(NamedTuple):
    """What became of events that were taken.

    Attributes
    ----------
    scores
        Of each, before it was learned; of one that was refused it means nothing.
    admitted
        Whether each was learned from, as far as its entity goes; empty where entities are not counted.
    refused
        As in `Read`, with what the learner refuses.
    truth, told
        Of the labelled events that were scored: whether each ranks high, and its score. There may be fewer
        scores.
    """

    scores: list[float]
    admitted: list[bool]
    refused: dict[int, tuple[Exception, str]]
    truth: Sequence[int]
    told: list[float]
