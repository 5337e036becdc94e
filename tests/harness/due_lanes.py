"""Lanes whose labels come later, without brokers: what is read, joined, learned and released, tick by tick.

The same parts as in a worker: `LabelDecoder`, `LabelTable`, `TopicOrder` and `LoggedLane`. Only the topics
are lists.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
from streampair_connectors.codecs.labels import LabelDecoder, event_ids
from streampair_connectors.config import parse_config
from streampair_connectors.kafka import Span
from streampair_connectors.kafka.ordering import BUCKET_MS, TopicOrder

from harness.driver import decode_json
from streampair.engine import ExternalState, LaneId, LoggedLane, OrderedRecord
from streampair.engine.labels import LabelTable, digest_ids
from streampair.engine.records import LABEL_LATER, Scored
from streampair.errors import RecordError

__all__ = ["AFTER", "BEGIN", "LATENESS", "TICK", "Event", "Message", "Trace", "run"]

BEGIN = 1_700_000_000_000
AFTER, LATENESS, TICK = 10_000, 1_000, 500
CONFIG = parse_config(
    {
        "app": "a",
        "input": {"features": ["a"]},
        "label_input": {
            **{"topic": "labels", "id": "key", "label": "y", "stopped": "declined"},
            **{"after": "10s", "lateness": "1s"},
        },
        "learner": {"class": "streampair.auc.PairOGD"},
    }
)


class Event(NamedTuple):
    """An event: its id, time, partition, and features."""

    id: bytes
    time: int
    partition: int
    x: dict[str, float]


class Message(NamedTuple):
    """A message of the labels topic: its key, time and value, its partition, and when it can be read."""

    id: bytes | None
    time: int
    value: bytes | None
    partition: int = 0
    arrives: int = 0


def label(of: Event, y: object, delay: int, *, partition: int = 0, arrives: int = 0) -> Message:
    """A label of an event, `delay` ms after it."""
    time = of.time + delay
    return Message(of.id, time, json.dumps({"y": y}).encode(), partition, arrives or time)


@dataclasses.dataclass
class Trace:
    """What a lane did.

    Attributes
    ----------
    order
        The events that were due, in their order: tick, partition, position.
    codes
        The code of the label of each.
    slots
        Slots of the learner after each tick.
    sums
        Noisy sum of the gradients after each due event, (n, d).
    shape
        Of each line of the log: its number of frames, and the length of each.
    unused
        Places of labels that no event has used.
    """

    order: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    codes: list[int] = dataclasses.field(default_factory=list)
    slots: list[int] = dataclasses.field(default_factory=list)
    sums: list[np.ndarray] = dataclasses.field(default_factory=list)
    shape: list[list[int]] = dataclasses.field(default_factory=list)
    unused: list[tuple[int, int]] = dataclasses.field(default_factory=list)


Take = Callable[[LabelTable, Any, Any], Any]


class _Labels:
    """The labels topic, read into a table."""

    def __init__(self, messages: Sequence[Message], directory: Path | None) -> None:
        self.table = LabelTable(after=AFTER, lateness=LATENESS, directory=directory)
        self._decode = LabelDecoder(CONFIG)
        self._waiting = deque(sorted(messages, key=lambda message: message.arrives))
        self._ends: dict[int, int] = {}

    def send(self, messages: Sequence[Message]) -> None:
        """Put messages to those that have not arrived."""
        self._waiting = deque(sorted([*self._waiting, *messages], key=lambda message: message.arrives))

    def read(self, now: int) -> None:
        """Take what has arrived by now."""
        found: dict[int, list[tuple[bytes, int, int, int]]] = {}
        while self._waiting and self._waiting[0].arrives <= now:
            message = self._waiting.popleft()
            offset = self._ends[message.partition] = self._ends.get(message.partition, -1) + 1
            try:
                decoded = self._decode(SimpleNamespace(value=message.value, key=message.id, headers=()))
            except RecordError:
                continue
            found.setdefault(message.partition, []).append((decoded.id, decoded.code, message.time, offset))
        for partition, rows in found.items():
            ids, codes, times, offsets = zip(*rows, strict=True)
            self.table.add(digest_ids(ids), codes, times, partition, offsets)


def run(
    learner: Any,
    events: Sequence[Event],
    messages: Sequence[Message],
    *,
    absent: object = None,
    directory: Path | None = None,
    sums: bool = True,
    act: Callable[[Event, float], Message | None] | None = None,
) -> Trace:
    """Let a lane score the events when they come and learn them when they are due.

    Parameters
    ----------
    learner
        A private one.
    events
        Ascending by time.
    messages
        In the order of their offsets where they can be read at the same time.
    absent
        What an event without a label is learned as.
    directory
        Of the table.
    sums
        Whether events are learned one by one, to see the noisy sum after each.
    act
        What is done about an event by its score: a label that follows from it, or None.
    """
    lane = LoggedLane(learner, decode_json, LaneId("a", "t"), labels=(absent, False, True, None, None))
    partitions = sorted({event.partition for event in events})
    lane.read(b"")
    lane.start(ExternalState(registers=False, spans=dict.fromkeys(partitions, (0, 0))))
    ids, trace, topic = event_ids(CONFIG), Trace(), _Labels(messages, directory)
    arrivals, dues = (TopicOrder(dict.fromkeys(partitions, (0, 0)), label=kind) for kind in (LABEL_LATER, 0))
    ends = dict.fromkeys(partitions, 0)
    waiting, ordinal, front = list(events), 0, 0
    by_id = {event.id: event for event in events}
    for now in range(BEGIN, events[-1].time + 5 * AFTER, TICK):
        while waiting and waiting[0].time <= now:
            event = waiting.pop(0)
            record = SimpleNamespace(
                offset=ends[event.partition],
                value=json.dumps({"x": event.x}).encode(),
                key=event.id,
                timestamp=event.time,
                headers=(),
            )
            ends[event.partition] += 1
            for order in (arrivals, dues):
                order.push(event.partition, Span(record.offset, record.offset + 1, [record]))
        topic.read(now)
        for partition in partitions:
            for order in (arrivals, dues):
                order.reached(partition, sent_ms=now)
        limit = now - BUCKET_MS - AFTER - LATENESS
        due = dues.take(1000, before=lambda *_, limit=limit: (limit, float("inf")))  # type: ignore[misc]
        if due:
            named = [each is not None for each in ids(due)]
            assert all(named)
            times = np.array([each.timestamp for each in due])
            codes = topic.table.join(digest_ids([each.key or b"" for each in due]), times).codes.tolist()
            due = [msgspec.structs.replace(each, label=code) for each, code in zip(due, codes, strict=True)]
            trace.order += [(now, each.partition, each.position) for each in due]
            trace.codes += codes
            front = max(front, due[-1].timestamp)
            trace.unused += topic.table.expire(front - BUCKET_MS - LATENESS)
        batch = [*arrivals.take(1000), *due]
        for part in [[each] for each in batch] if sums else [batch] if batch else []:
            numbered = [
                msgspec.structs.replace(each, offset=ordinal + number) for number, each in enumerate(part)
            ]
            ordinal += len(part)
            scores = _process(lane, numbered, trace, sums=sums)
            if act is not None:
                acted = [
                    act(by_id[record.key or b""], scored.score or 0.0)
                    for record, scored in zip(numbered, scores, strict=True)
                    if not record.due
                ]
                topic.send([message for message in acted if message is not None])
        trace.slots.append(learner.slots)
    topic.table.close()
    return trace


def _process(lane: LoggedLane, records: list[OrderedRecord], trace: Trace, *, sums: bool) -> list[Scored]:
    if lane.room is not None and lane.room < len(records):
        lane.commit()
        lane.committed()
    output = lane.process(records)
    line = output.line
    trace.shape.append([] if line is None else [len(frame) for frame in line.frames])
    if sums and records[0].due:
        trace.sums.append(np.array(lane.learner.run.state.released))
    return output.scores
