"""The two ways of a batch through a lane give the same, where labels come later: at once, and one by one."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair import auc, privacy
from streampair.engine import Event, EventRows, Lane, LaneId, Monitoring, OrderedRecord, Record
from streampair.engine.batch import RecordProcessor
from streampair.engine.records import LABEL_IN_EVENT, LABEL_LATER, LABEL_LEARNED
from streampair.errors import LaneStoppedError, RecordError

NAMES = list("abc")
LABELS = (None, False, True)
KEY = bytes(range(32))
MODELS: dict[str, Any] = {
    "rows": partial(auc.PairOGD, seed=1),
    "reasons": partial(auc.Forest, 3, 31, seed=1),
    "private": partial(auc.PairFTRL, 1.0, 1e-3, 90, warmup=10, features=NAMES, noise_key=KEY),
    "entities": partial(
        auc.PairFTRL,
        1.0,
        1e-3,
        90,
        features=NAMES,
        entity=privacy.EntityLimit(3, 5),
        mechanism=privacy.PairGradients(),
        noise_key=KEY,
    ),
}


def values_of(rng: random.Random) -> dict[str, float] | None:
    """An event: beyond its bounds now and then, and now and then unusable; None: it cannot be decoded."""
    kind = rng.random()
    if kind < 0.03:
        return None
    x = {name: rng.gauss(0, 0.7) for name in NAMES}
    if kind < 0.06:
        x["b"] = 1e200
    return x


def stream(n: int, rng: random.Random) -> tuple[list[Any], list[OrderedRecord]]:
    """Events, and the records of a lane that reads them: each comes twice, the second time with its label."""
    events = [values_of(rng) for _ in range(n)]
    order = sorted([(i, i, LABEL_LATER) for i in range(n)] + [(i + 20.5, i, 0) for i in range(n)])
    codes = [0, 1, 1, 2, 2, LABEL_LEARNED]
    records = [
        OrderedRecord(
            offset,
            None if i % 37 == 5 else b"%d" % i,
            b"k%d" % (i % 9) if i % 11 else None,
            partition=i % 3,
            position=i,
            label=label or rng.choice(codes),
        )
        for offset, (_, i, label) in enumerate(order)
    ]
    return events, records


def lane_of(name: str, events: list[Any], tables: bool) -> Lane:
    def decode(record: Any) -> Event:
        x = events[record.position]
        if x is None or record.value is None:
            raise RecordError("no event", fix="send one")
        return Event(dict(x), None, record.value.decode())

    def many(records: list[Any]) -> EventRows:
        refused: dict[int, Exception] = {}
        rows, ids = np.zeros((len(records), len(NAMES))), []
        for i, record in enumerate(records):
            try:
                event = decode(record)
            except RecordError as error:
                refused[i] = error
                ids.append(None)
                continue
            rows[i] = [event.x[name] for name in NAMES]
            ids.append(event.id)
        return EventRows(NAMES, rows, [None] * len(records), ids, refused or None)

    if tables:
        decode.many = many  # type: ignore[attr-defined]
    return Lane(
        MODELS[name](),
        decode,
        LaneId("a", "t", 0),
        labels=LABELS,
        breaker=None,
        monitoring=Monitoring(bounds={"a": (-1.0, 1.0)}, drift_reference=1000),
        explain=2 if name == "reasons" else 0,
    )


def outputs(name: str, events: list[Any], records: list[Any], cuts: list[int], *, tables: bool) -> Any:
    lane = lane_of(name, events, tables)
    scores, letters, start = [], [], 0
    for cut in [*cuts, len(records)]:
        output = lane.process(records[start : start + cut])
        scores += output.scores
        letters += [(each.offset, each.stage, each.error) for each in output.dead_letters]
        start += cut
    gauges = lane.gauges(solve=False)
    counts = gauges.events, gauges.dead_letters, gauges.outside, gauges.late, gauges.null_slots, gauges.auc
    return repr((scores, letters, counts)), lane.snapshot()


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=3, deadline=None)
@given(cuts=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(0, 1000))
def test_events_that_are_learned_later_are_taken_alike(name: str, cuts: list[int], seed: int) -> None:
    """Their scores, reasons, outcomes, dead letters, counts, noise and state; beyond the horizon too."""
    events, records = stream(110, random.Random(seed))
    at_once = outputs(name, events, records, cuts, tables=True)
    assert outputs(name, events, records, [1] * len(records), tables=False) == at_once
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordProcessor, "_take_rows", lambda *args: None)
        assert outputs(name, events, records, cuts, tables=True) == at_once
        assert outputs(name, events, records, cuts, tables=False) == at_once


def test_they_are_taken_at_once() -> None:
    """Else the test above would compare a thing with itself."""
    ways: list[bool] = []
    take_rows = RecordProcessor._take_rows

    def counted(self: RecordProcessor, *args: Any) -> Any:
        taken = take_rows(self, *args)
        ways.append(taken is not None)
        return taken

    events, records = stream(110, random.Random(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecordProcessor, "_take_rows", counted)
        for name in MODELS:
            ways.clear()
            outputs(name, events, records, [], tables=True)
            assert ways.count(True) > 3


def test_an_event_with_its_label_has_no_place_where_labels_come_later() -> None:
    record = OrderedRecord(0, b"0", partition=0, position=0, label=LABEL_IN_EVENT)
    lane = lane_of("rows", [{"a": 0.0, "b": 0.0, "c": 0.0}], tables=False)
    with pytest.raises(LaneStoppedError, match="offset 0 has its label"):
        lane.process([record])


class Incomparable:
    """A label whose comparison fails."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("no label")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("size", [1, 20])
def test_a_label_that_cannot_be_compared_costs_its_own_event(size: int) -> None:
    def decode(record: Record) -> Event:
        return Event(
            {"a": record.offset / 20}, Incomparable() if record.offset % 7 == 6 else record.offset > 9
        )

    lane = Lane(auc.PairOGD(seed=1), decode, LaneId("a", "t", 0), breaker=None)
    found: list[Any] = []
    letters: list[Any] = []
    for start in range(0, 20, size):
        output = lane.process([Record(i, b"v") for i in range(start, start + size)])
        found += output.scores
        letters += output.dead_letters
    assert [each.offset for each in letters] == [6, 13]
    assert {each.stage for each in letters} == {"label"}
    assert [each.outcome for each in found].count("learned") == 18
    assert lane.learner.records == 18
