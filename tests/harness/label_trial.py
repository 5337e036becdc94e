"""Trials of lanes whose labels come later: streams over two topics, and what must come of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.worker.factory import build_logged_lane

from harness.applications import _learning as learning
from harness.applications import differences
from harness.kafka import Cluster
from harness.late_labels import (
    STOPPED,
    Event,
    Label,
    by_arrival,
    create,
    due_offsets,
    due_records,
    late_app,
    send_events,
    send_labels,
    sent_on_places,
    stream,
    with_id,
)
from harness.verifier import Evidence, Trial, _equal, uninterrupted
from streampair.engine.recovery import RecoveredState
from streampair.engine.wal import Chain

__all__ = ["LabelTrial"]


class LabelTrial(Trial):
    """A trial of a lane that scores events when they come, and learns them when they are due.

    All events are years old, so that they are due as soon as they come; their labels are fed before them, in
    any order.
    """

    def __init__(
        self, kafka: Cluster, directory: Path, name: str, *, order: str = "wait", **options: Any
    ) -> None:
        self._order = order
        super().__init__(kafka, directory, name, partitions=2, **options)
        late_app(self.app, f'order = "{order}"\nstopped = "{STOPPED}"')
        if self.private:
            text = self.app.path.read_text()
            self.app.path.write_text(text.replace('id = "payment"', 'id = "key"'))
        self._all, labels = stream(1200, 2, seed=7)
        self._labels = [
            label._replace(value=STOPPED) if n % 4 == 1 else label for n, label in enumerate(labels)
        ]
        # Every second event has the id of one some time before: it may not use the same label.
        for number in range(10, len(self._all), 2):
            self._all[number] = with_id(self._all[number], self._all[number - 9].id)
        self.events: list[Event] = []
        self.labels: list[Label] = []

    def _create_topics(self) -> None:
        create(self.app)

    def feed(self, count: int, partition: int | None = None) -> None:
        """Append labels, and then their events; every 17th event is bad."""
        begin = len(self.events)
        new = [
            self._bad(event) if number % 17 == 16 else event
            for number, event in enumerate(self._all[begin : begin + count])
        ]
        assert len(new) == count
        ids = {event.id for event in new} - {event.id for event in self.events}
        labels = [label for label in self._labels if label.id in ids]
        send_labels(self.app, labels)
        send_events(self.app, new)
        self.events += new
        self.labels += labels
        for event in new:
            self.values[event.partition].append(event.value)

    def _bad(self, event: Event) -> Event:
        """The event with a value that is none. Where the id is in the value, no label finds it."""
        return event._replace(value=b"not JSON", id=event.id if self.private else f"bad {event.id}")

    def done(self) -> bool:
        """Whether all events are scored, and learned."""
        if not super().done():
            return False
        due = due_offsets(self.app)
        return all(due.get(p, 0) == len(values) for p, values in self.values.items())

    def _released(self, now: Evidence, partition: int) -> int:
        """None by the outputs: scores release nothing."""
        return 0

    def verify(self, fault: str, *, extra_forks: int = 0, by_outputs: bool = False) -> Evidence:
        """Each event has one score; what was learned is what an uninterrupted lane learns.

        Raises
        ------
        Wrong
            With what differs.
        """
        found, config = self.look(settled=True), load_config(self.app.path)
        lane = build_logged_lane(config, json_decoder(config.input))
        records = due_records if self._order == "wait" else by_arrival
        _, frames, snapshot = uninterrupted(lane, records(self.events, self.labels))
        places = {(p, offset) for p, values in self.values.items() for offset in range(len(values))}
        _equal("offsets with a score", sorted(found.scores), sorted(places))
        dead = {
            (p, index)
            for p, values in self.values.items()
            for index, v in enumerate(values)
            if v == b"not JSON"
        }
        _equal("dead letters", sorted(found.dead), sorted(dead))
        log, state = self.stored()
        one, other = learning(state), learning(snapshot)
        where = list(differences(one["steps"], other["steps"]))
        _equal("places where what was learned differs", where, [])
        known, theirs = RecoveredState.of(Chain.peek(log)), RecoveredState.of(Chain.peek(frames))
        assert known is not None
        assert known.tip is not None
        assert known.source is not None
        assert theirs is not None
        assert theirs.tip is not None
        ends = {p: len(values) for p, values in self.values.items()}
        _equal("positions", {each.partition: each.next_offset for each in known.source.positions}, ends)
        _equal("due positions", {each.partition: each.next_offset for each in known.source.due}, ends)
        _equal("ranges that are still to come", known.source.ahead, [])
        _equal("slots", known.tip.slots, theirs.tip.slots)
        charged = 0
        if known.ledger is not None and theirs.ledger is not None:
            charged = known.ledger["forks"]
            for name in ("size", "limit", "keyed", "immutable", "generation", "pending", "behind"):
                _equal(f"{name} of the account", known.ledger[name], theirs.ledger[name])
        _equal("forks charged", charged, extra_forks)
        if self.app.store == "kafka":
            sent = sent_on_places(self.app)
            _equal("labels sent on twice", len(sent), len(set(sent)))
        self._note(f"late labels: {fault}", found, charged)
        return found
