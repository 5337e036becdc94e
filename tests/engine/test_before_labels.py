"""Quality before labels come, in a lane: the same figures however events are cut, read and interrupted."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from streampair import auc
from streampair.engine import Event, EventRows, Lane, LaneId, Monitoring, OrderedRecord, Record
from streampair.errors import RecordError
from streampair.evaluation import ExpectedQuality

NAMES = ["a", "b"]
WATCHED = Monitoring(drift_reference=1000)


def stream(n: int, seed: int = 1) -> list[Event]:
    rng, out = random.Random(seed), []
    for _ in range(n):
        y = rng.random() < 0.3
        out.append(Event({"a": rng.gauss(1.5 * y, 1.0), "b": rng.gauss(0.0, 1.0)}, y))
    return out


def lane_of(events: list[Event], *, tables: bool, **options: Any) -> Lane:
    """A lane of these events, every hundredth of which cannot be read."""

    def decode(record: Record) -> Event:
        if record.offset % 100 == 7:
            raise RecordError("unreadable", fix="none", stage="decode")
        return events[record.offset]

    def many(records: list[Record]) -> EventRows:
        refused: dict[int, Exception] = {}
        rows, ys = np.zeros((len(records), 2)), []
        for place, record in enumerate(records):
            try:
                event = decode(record)
            except RecordError as error:
                refused[place] = error
                ys.append(None)
                continue
            rows[place] = [event.x[name] for name in NAMES]
            ys.append(event.y)
        return EventRows(NAMES, rows, ys, None, refused or None)

    if tables:
        decode.many = many  # type: ignore[attr-defined]
    options = {"monitoring": WATCHED, "breaker": None, **options}
    return Lane(auc.PairOGD(seed=1), decode, LaneId("app", "events", 0), **options)


def expected_of(lane: Lane) -> ExpectedQuality:
    found = lane.gauges().expected
    assert found is not None
    return found


def test_the_same_figures_however_events_are_cut_read_and_interrupted() -> None:
    events, rng = stream(2600), random.Random(2)
    whole = lane_of(events, tables=True)
    whole.process([Record(i, b"") for i in range(len(events))])
    snapshot, found = whole.snapshot(), expected_of(whole)
    for tables in (True, False):
        lane, begin = lane_of(events, tables=tables), 0
        while begin < len(events):
            end = min(begin + rng.randrange(1, 300), len(events))
            lane.process([Record(i, b"") for i in range(begin, end)])
            begin = end
            if rng.random() < 0.3:
                saved = lane.snapshot()
                lane = lane_of(events, tables=tables)
                lane.restore(saved)
            lane.gauges()  # influences nothing
        assert lane.snapshot() == snapshot
        again = lane._monitor.before.get()  # type: ignore[union-attr]
        assert again is not None
        assert (again.psi, again.moved, again.score_psi) == (found.psi, found.moved, found.score_psi)
        assert again.auc == pytest.approx(found.auc, abs=0.02)  # the curve may lack the newest labels
    # Of what was scored, as the AUC says that labels came with the events.
    assert found.auc == pytest.approx(whole.auc, abs=0.05)
    assert found.positive_share == pytest.approx(0.3, abs=0.06)
    assert whole._monitor.before.features.n == 2600 - 26  # type: ignore[union-attr]


def test_figures_come_before_labels_and_are_withheld() -> None:
    """Labels end after 1,500 events; from 3,000 on a field is missing."""
    events = stream(5100)
    for event in events[3000:]:
        del event.x["b"]
    lane = lane_of(events, tables=False, labels=[None, True, False])

    def records(begin: int, end: int, *, due: bool) -> list[OrderedRecord]:
        codes = [(1 if event.y else 2) if due else -2 for event in events[begin:end]]
        order = range(lane.next_offset or 0, (lane.next_offset or 0) + end - begin)
        return [
            OrderedRecord(i, b"", partition=0, position=place, label=code)
            for i, place, code in zip(order, range(begin, end), codes, strict=True)
        ]

    lane._batch._decoder._decode = lambda record: events[record.position]  # type: ignore[attr-defined]
    lane.process(records(0, 1500, due=False))
    lane.process(records(0, 1500, due=True))
    lane.process(records(1500, 3000, due=False))
    found = expected_of(lane)
    assert (found.moved, found.drifted) == ((), 0)
    assert found.auc is not None
    lane.process(records(3000, 5000, due=False))
    found = expected_of(lane)
    assert (found.auc, found.moved[0].name, found.moved[0].what) == (None, "b", "missing")
    # It costs something: it is found again after a quarter of a window.
    lane.process(records(5000, 5100, due=False))
    assert not lane.look()
    assert expected_of(lane) is found
    lane.process(records(4800, 5100, due=False))
    assert lane.gauges(solve=False).expected is lane.gauges(solve=True).expected is found
    assert lane.look()
    assert lane.gauges(solve=False).expected is expected_of(lane) is not found


def test_without_a_reference_nothing_is_kept() -> None:
    lane = lane_of(stream(1200), tables=True, monitoring=Monitoring())
    lane.process([Record(i, b"") for i in range(1200)])
    assert lane.gauges().expected is None
    watching = lane_of(stream(1200), tables=True)
    watching.restore(lane.snapshot())  # begins now
    assert watching.gauges().expected is None
