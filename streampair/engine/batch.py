"""The way of a batch through a lane: from records to outputs, dead letters and counts.

Two ways, in bulk and one by one, that give the same outputs and the same state. `Lane` says what holds for
every record, and keeps everything that is not about batches: identity, telemetry and snapshots.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, overload

from streampair.engine.model import Model
from streampair.engine.monitor import Monitor
from streampair.engine.protocols import decode_many, ready_many, ready_rows
from streampair.engine.records import Breaker, DeadLetter, Event, LaneOutput, Record, Rows, Scored
from streampair.engine.reservations import context_of, contexts_of
from streampair.errors import ConfigError, LaneStopped, PrivacyError, RecordError
from streampair.privacy.origin import Origin, Origins

__all__ = ["Batch"]

_OUTCOMES: Final = ("learned", "scored", "dead_letter", "ignored")
_STAGES: Final = ("decode", "features", "label", "learn")
_NOWHERE: Final = Origin()
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
        model: Model,
        decode: Callable[[Record], Event],
        *,
        positive: object,
        on_bad: Literal["dlq", "skip", "fail"],
        breaker: Breaker | None,
        monitor: Monitor,
        topic: str,
        partition: int,
    ) -> None:
        self._model = model
        self._decode = decode
        # Where the learner takes whole arrays of records as they are.
        private = model.private
        self._many = decode_many(decode) if model.transform is None else None
        self._takes_rows = ready_rows(model.learner) is not None
        self._positive = positive
        self._on_bad = on_bad
        self._breaker = breaker
        self._auc, self._regret = monitor.auc, monitor.regret
        self._topic = topic
        self._partition = partition
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
        labels: list[bool] = []
        given: list[float] = []
        if self._model.fragile and (not self._saved or len(self._since) >= _RELEARNED):
            self._copy()
        done = self._take_plain(records, output, labels, given)
        if done < len(records):
            self._take_carefully(records[done:] if done else records, output, labels, given)
        output.next_offset = self.next_offset
        if self._model.ranks:
            self._auc.extend(labels, given)
        return output

    def _take_plain(
        self,
        records: Sequence[Record],
        output: LaneOutput,
        labels: list[bool],
        given: list[float],
    ) -> int:
        """Take labelled events until the first that fails; how many were taken."""
        slots = self._slots_left()
        batch = None if 0 < slots < len(records) else self._read(records)
        if batch is None:
            return 0
        admitted = self._take_at_once(batch, records, given)
        if admitted is None:
            admitted = self._take_each(batch, records, given)
            if self._model.fragile:
                done = len(given)
                self._since.extend(zip(batch.raw[:done], batch.ys[:done], strict=True))
                if done < len(batch.ys):
                    self._go_back()
        done = len(given)
        usual = "learned" if slots > 0 else "scored"
        refused = admitted.count(False) if usual == "learned" else 0
        self.events["scored"] += refused
        self.events[usual] += done - refused
        outcomes: Iterable[str] = itertools.repeat(usual)
        if refused:
            outcomes = ["learned" if it_was else "scored" for it_was in admitted]
        labels.extend(batch.truth[:done] if done < len(batch.truth) else batch.truth)
        keys = [record.key for record in records]
        output.scores.extend(map(Scored, batch.offsets, keys, batch.ids, given, outcomes))
        self.seen += done
        if done:
            self.next_offset = batch.offsets[done - 1] + 1
        return done

    def _copy(self) -> None:
        """Copy the steps that an event could leave half changed."""
        self._saved, self._since = self._model.checkpoint(), []

    def _go_back(self) -> None:
        """Undo what an event may have left half done."""
        self._model.rollback(self._saved, self._since)
        self._copy()

    def _read(self, records: Sequence[Record]) -> _Read | None:
        """Decode labelled events that go on where the lane is; None if there is anything else among them."""
        model, offsets = self._model, [record.offset for record in records]
        ordered = records and offsets[0] >= (self.next_offset or 0) and model.direct
        if not ordered or not all(map(operator.lt, offsets, offsets[1:])):
            return None
        try:
            table = self._many(records) if self._many is not None and self._takes_rows else None
            raw: Sequence[dict[str, Any]]
            ids: Iterable[str | None]
            if table is not None:
                raw, ys, ids = _Dicts(table), table.labels, table.ids or itertools.repeat(None)
            else:
                events = list(map(self._decode, records))
                raw = [event.x for event in events]
                if model.fragile:
                    for x in raw:
                        _refuse_nan(x)
                ys, ids = [event.y for event in events], [event.id for event in events]
            if None in ys:
                return None
            positive = self._positive
            truth = [y == positive for y in ys]
            if self._regret is not None and set(map(type, truth)) != {bool}:
                truth = list(map(bool, truth))
            xs = raw if model.transform is None else list(map(model.transform, raw))
        except Exception:
            return None  # whatever it is, the careful way meets it again, alone
        return _Read(offsets, table, raw, xs, ys, ids, truth)

    def _take_at_once(self, batch: _Read, records: Sequence[Record], given: list[float]) -> list[bool] | None:
        """Let the learner score and learn all in one go; None, with nothing changed, if it cannot.

        Gives whether each was admitted, as far as its entity goes; nothing where entities are not counted.
        """
        table, learner, regret = batch.table, self._model.learner, self._regret
        where = () if self._model.private is None else (self._origins(records),)
        if table is not None:
            rows = ready_rows(learner)
            ready = None if rows is None else rows(table.names, table.values, batch.ys, *where)
        else:
            many = ready_many(learner)
            ready = None if many is None else many(batch.xs, batch.ys, *where)
        drawn = [] if regret is None or ready is None else regret.draw(batch.truth)
        if ready is None or drawn is None:
            return None
        if regret is None or not drawn:
            given.extend(ready.take())
        else:
            given.extend(ready.take(regret.stops(drawn)))
            regret.settle(drawn, len(batch.ys), batch.xs.__getitem__, given, ready.score_at)
        return ready.admitted or []

    def _origins(self, records: Sequence[Record]) -> Origins:
        """`_origin` of each."""
        contexts = contexts_of(self._partition, records) if self._keyed else None
        return Origins(contexts, [record.key for record in records] if self._entities else None)

    def _take_each(self, batch: _Read, records: Sequence[Record], given: list[float]) -> list[bool]:
        """Score and learn one after the other until one fails; returns as `_take_at_once`."""
        model, regret, truth = self._model, self._regret, batch.truth
        n, xs, ys = len(batch.ys), batch.xs, batch.ys
        score_one, learn_one = model.score, model.learn
        admitted: list[bool] = []
        emit = self._counting(given, admitted) if self._entities else given.append
        take = None if model.private is None else model.private.take
        counted = 0
        hits = iter([(n, 0, 0)]) if regret is None else regret.hits(truth)
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
                sample = regret.prepare(x, truth[stop], score, score_one)
                model.learn_from(x, y, origin)
                emit(score)
                regret.commit(sample, truth[stop])
                counted += 1
        except Exception:  # noqa: S110  # the careful way meets it again, alone
            pass
        if regret is not None:
            regret.skip(truth[counted : len(given)])
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
        would change with it, and with that what is learned of others (docs/privacy.md 8). A message without a
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
        labels: list[bool],
        given: list[float],
    ) -> None:
        """Any record at all, one by one."""
        model, regret, positive, decode = self._model, self._regret, self._positive, self._decode
        private = model.private
        slots = self._slots_left()
        expected = -1 if self.next_offset is None else self.next_offset
        counts = self.events
        for record in records:
            offset = record.offset
            if offset < expected:
                counts["ignored"] += 1
                continue
            expected = self.next_offset = offset + 1
            self.seen += 1
            origin, refused = self._origin(record), self._refused()
            event_id: str | None = None
            given_score: float | None = None
            sample = None
            stage = "decode"
            try:
                event = decode(record)
                event_id, x, y = event.id, event.x, event.y
                stage = "features"
                if model.fragile:
                    _refuse_nan(x)
                z = model.through(x)
                score = None if model.too_early(z) else model.score(z)
                if y is None:
                    outcome = "scored"
                    if private is not None:
                        private.learn_null(origin)
                else:
                    stage = "label"
                    label = bool(y == positive)
                    counts_for_regret = regret is not None and score is not None
                    hit = counts_for_regret and regret.left[label] <= 0  # type: ignore[union-attr]
                    if hit:
                        sample = regret.prepare(z, label, score, model.score)  # type: ignore[union-attr,arg-type]
                    stage = "learn"
                    if model.direct:
                        model.learn_from(z, y, origin)
                    elif not model.learn_through(x, y, origin) and private is not None:
                        private.learn_null(origin)
                    outcome = "learned" if slots > 0 and self._refused() == refused else "scored"
                    if hit:
                        regret.commit(sample, label)  # type: ignore[union-attr]
                    elif counts_for_regret:
                        regret.skip([label])  # type: ignore[union-attr]
                    if score is not None:
                        labels.append(label)
                        given.append(score)
                    if model.fragile:
                        self._since.append((x, y))
                given_score = score
            except Exception as error:
                if not self._is_bad_event(error, stage):
                    raise
                if model.fragile and stage != "decode":
                    self._go_back()
                if private is not None:
                    private.learn_null(origin)
                outcome = "dead_letter"
                self._dead_letter(record, error, stage, output.dead_letters)
            slots -= 1
            counts[outcome] += 1
            output.scores.append(Scored(offset, record.key, event_id, given_score, outcome))

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

    def _dead_letter(self, record: Record, error: Exception, stage: str, dead: list[DeadLetter]) -> None:
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


class _Read(NamedTuple):
    """A batch of labelled events: as they came, and as the learner sees them."""

    offsets: list[int]
    table: Rows | None
    raw: Sequence[dict[str, Any]]
    xs: Sequence[Any]
    ys: Sequence[Any]
    ids: Iterable[str | None]
    truth: list[bool]


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
