"""Batches in one call of the learner: the outputs and the state of one event after the other, to the bit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from harness import lanes
from harness.learners import LEARNERS, is_private, label, name_of
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair import auc, privacy, ranking
from streampair.base.mini_batch import PreparedBatch
from streampair.engine import (
    Event,
    EventRows,
    Lane,
    LaneId,
    Monitoring,
    Record,
    RegretConfig,
    batch,
    pipeline,
)
from streampair.errors import RecordError
from streampair.preprocessing import Bounds, UnitBall
from streampair.privacy import EntityLimit

NAMES = set("abcde")
FLAT = [model for model in LEARNERS if not is_private(model)]
MODELS = {f"{name_of(model)}-{i}": model.clone for i, model in enumerate(FLAT)}
MODELS["Bounds|UnitBall|PairOGD"] = lambda: Bounds({"a": (-1, 1)}) | UnitBall() | auc.PairOGD(seed=3)


@contextmanager
def one_by_one() -> Iterator[None]:
    """Lanes that know nothing of batches."""
    with pytest.MonkeyPatch.context() as patch:
        bind = pipeline.PipelineAdapter.bind

        def without_batches(self: pipeline.PipelineAdapter) -> None:
            bind(self)
            self.prepare_many = self.prepare_rows = None

        patch.setattr(pipeline.PipelineAdapter, "bind", without_batches)
        yield


def events(model: Any, n: int, seed: int) -> list[Any]:
    """Events, among them some without a label, some that are bad, and some with other features."""
    rng = random.Random(seed)
    learner = model[-1] if hasattr(model, "steps") else model
    rows: list[Any] = []
    for _ in range(n):
        x: dict[str, Any] = {name: rng.gauss(0, 0.5) for name in "cbade"}
        y = label(learner, rng)
        kind = rng.random()
        if kind < 0.01:
            x[rng.choice("abcde")] = float("nan")
        elif kind < 0.02:
            del x[rng.choice("abcde")]
        elif kind < 0.03:
            x[rng.choice("fgh")] = 1.0
        elif kind < 0.04:
            y = None
        elif kind < 0.05:
            x["a"] = 1e200
        elif kind < 0.06:
            y = float("nan")
        rows.append(None if kind > 0.99 else (x, y))
    return rows


def no_event() -> RecordError:
    return RecordError("no event", fix="send one")


def lane_of(model: Any, rows: list[Any], regret: bool, tables: bool = False) -> Lane:
    def many(records: list[Record]) -> EventRows | None:
        """Where all events have the same features: those that a learner refuses are its affair."""
        found = [rows[record.offset] for record in records]
        if any(row is not None and row[0].keys() != NAMES for row in found) or not any(found):
            return None
        order = list(next(row for row in found if row)[0])
        table = np.array(
            [[x[name] for name in order] for x, _ in (row or (dict.fromkeys(order, 0.0), 0) for row in found)]
        )
        refused: dict[int, Exception] = {i: no_event() for i, row in enumerate(found) if row is None}
        return EventRows(
            order, table, [None if row is None else row[1] for row in found], None, refused or None
        )

    def decode(record: Record) -> Event:
        row = rows[record.offset]
        if row is None:
            raise no_event()
        return Event(dict(row[0]), row[1])

    if tables:
        decode.many = many  # type: ignore[attr-defined]
    sampled = RegretConfig(pairs=16, exact=4) if regret else None
    return Lane(
        model,
        decode,
        LaneId("a", "t", 0),
        monitoring=Monitoring(regret=sampled),
        breaker=None,
        positive=positive(model),
    )


def positive(model: Any) -> Any:
    return getattr(model[-1] if hasattr(model, "steps") else model, "positive", True)


def run(cuts: list[int], again: int, rows: list[Any], regret: bool, make: Any, tables: bool = False) -> Any:
    """What a lane gives for batches of these sizes, restored after `again` of them, and its state then."""
    lane = lane_of(make(), rows, regret, tables)
    outputs, start = [], 0
    for i, cut in enumerate(cuts):
        if i == again:
            saved = lane.snapshot()
            lane = lane_of(make(), rows, regret, tables)
            lane.restore(saved)
        outputs.append(lane.process([Record(start + j, b"v") for j in range(cut)]))
        start += cut
    flat = [(o.scores, [(d.offset, d.stage, d.error) for d in o.dead_letters]) for o in outputs]
    gauges = lane.gauges(solve=False)
    return repr((flat, gauges.events, gauges.dead_letters, gauges.auc)), lane.snapshot()


class Odd:
    """A label whose comparison gives what is no truth value, but has one."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __eq__(self, other: object) -> Any:
        return self._result

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "convert", [np.bool_, int, float, lambda y: 5 * y, lambda y: -y, lambda y: 300 * y, str]
)
def test_labels_that_compare_to_anything_are_read_as_bytes(convert: Any) -> None:
    """Kernels take them as the numbers of strata."""
    flags = [True, False, False, True]
    results = [(y or "") if convert is str else convert(y) for y in flags]
    lane = lane_of(auc.PairOGD(seed=1), [({"a": 0.1}, Odd(y)) for y in results], regret=True)
    read = lane._batch._decoder.read([Record(i, b"") for i in range(4)])
    assert read.truth == bytes(flags)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("regret", [False, True])
@settings(max_examples=12)
@given(
    cuts=st.lists(st.integers(0, 120), min_size=1, max_size=5),
    again=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_a_batch_at_once_is_one_event_after_the_other(
    name: str, regret: bool, cuts: list[int], again: int, seed: int
) -> None:
    first = MODELS[name]()
    seeded = first.to_state() if hasattr(first, "to_state") else None

    def make() -> Any:
        model = MODELS[name]()
        if seeded is not None:
            model.load_state(seeded)  # the seed, if it was drawn
        return model

    rows = events(first, sum(cuts), seed)
    at_once = run(cuts, again, rows, regret, make)
    assert run(cuts, again, rows, regret, make, tables=True) == at_once
    with one_by_one():
        assert run(cuts, again, rows, regret, make, tables=True) == at_once


@pytest.mark.parametrize("begins", [0, 40, 170])
def test_texts_are_taken_at_once(begins: int) -> None:
    """From the first event on, or from one within a batch; the sample of a regret is given up there."""
    rng = random.Random(begins)
    rows = [({"a": rng.gauss(0, 1), "b": rng.choice("xyz") if i >= begins else 1.0}, i % 3 == 0)
            for i in range(300)]  # fmt: skip
    cuts = [20, 80, 30, 100, 70]
    taken: list[bool] = []
    true = batch.RecordProcessor._take_rows

    def counted(self: Any, *args: Any) -> list[bool] | None:
        taken_scores = true(self, *args)
        taken.append(taken_scores is not None)
        return taken_scores

    make = partial(auc.Forest, 3, 31, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch.RecordProcessor, "_take_rows", counted)
        at_once = run(cuts, 3, rows, True, make)
    with one_by_one():
        assert run(cuts, 3, rows, True, make) == at_once
    assert taken[-1]
    assert taken.count(True) >= 2


@pytest.mark.parametrize("regret", [False, True])
def test_batches_are_taken_at_once(regret: bool) -> None:
    """Else the test above would compare a thing with itself."""
    calls: list[int] = []

    class Counting(auc.PairOGD):
        def prepare_many(self, xs: Any, ys: Any) -> PreparedBatch | None:
            ready = super().prepare_many(xs, ys)
            calls.append(0 if ready is None else len(xs))
            return ready

    rows = lanes.stream(300)
    lane = lane_of(Counting(seed=1), rows, regret)
    for start in range(0, 300, 100):
        lane.process([Record(start + i, b"v") for i in range(100)])
    assert calls == [0, 96 if regret else 99, 100, 100]


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("name", ["auc.PairOGD-0", "moments", "gradients", "entities", "entities and output"])
def test_a_batch_is_never_cut_by_what_its_records_hold(name: str, tables: bool) -> None:
    """Of records that bring the known features, or none of them; a gap of a linear learner does cut it."""
    model = PRIVATE[name](noise_key=bytes(range(32))) if name in PRIVATE else MODELS[name]()
    rows = [row for row in events(model, 700, 3) if row is None or row[0].keys() == NAMES]
    if getattr(model, "takes_nulls", False):
        rows = [row for row in rows if row is None or not any(map(math.isnan, row[0].values()))]
    rows = [row for row in rows if row and type(row[1]) is bool][:100] + rows  # first, the names
    lane = lane_of(model, rows, name in MODELS, tables)
    lane.process([Record(i, b"v", b"k") for i in range(100)])
    ways: list[Any] = []
    letters = 0
    with pytest.MonkeyPatch.context() as patch:
        one_by_one = batch.RecordProcessor._take_one_by_one
        patch.setattr(
            batch.RecordProcessor, "_take_one_by_one", lambda *args: ways.append(args) or one_by_one(*args)
        )
        for start in range(100, 600, 100):
            output = lane.process([Record(start + i, b"v", b"k%d" % i) for i in range(100)])
            assert len(output.scores) == 100
            letters += len(output.dead_letters)
    assert letters
    assert ways == []


@pytest.mark.parametrize("regret", [False, True])
def test_tables_are_taken_as_they_are(regret: bool) -> None:
    calls: list[int] = []

    class Counting(auc.PairOGD):
        def prepare_rows(self, columns: Any, rows: Any, ys: Any) -> PreparedBatch | None:
            ready = super().prepare_rows(columns, rows, ys)
            calls.append(0 if ready is None else len(rows))
            return ready

    rows = [({name: float(i) for name in "abcde"}, i % 2 == 0) for i in range(300)]
    lane = lane_of(Counting(seed=1), rows, regret, tables=True)
    for start in range(0, 300, 100):
        lane.process([Record(start + i, b"v") for i in range(100)])
    assert calls == [0, 96 if regret else 99, 100, 100]


PRIVATE: dict[str, Any] = {
    "moments": partial(auc.PairFTRL, 1.0, 1e-3, warmup=30),
    "moments that fade": partial(auc.PairFTRL, 1.0, 1e-3, warmup=30, mechanism=privacy.DecayedMoments(40)),
    # So much budget that its leaves tell more than noise.
    "forest": partial(auc.PrivateForest, 24.0, 1e-3, warmup=30, trees=3, depth=2),
    "gradients": partial(auc.PairFTRL, 1.0, 1e-3, 200, warmup=30, mechanism=privacy.PairGradients()),
    "ranking": partial(ranking.PairFTRL, 1.0, 1e-3, warmup=0),
    "entities": partial(
        auc.PairFTRL,
        1.0,
        1e-3,
        features=list("abcde"),
        entity=EntityLimit(3, 5),
        mechanism=privacy.PairGradients(),
    ),
    "entities by moments": partial(
        auc.PairFTRL, 1.0, 1e-3, features=list("abcde"), entity=EntityLimit(3, 5), warmup=30
    ),
    "entities and output": partial(
        auc.OnPairC, 1.0, 1e-3, 300, features=list("abcde"), entity=EntityLimit(3, 5), releases=9
    ),
}


def slots(
    name: str, cuts: list[int], again: int, rows: list[Any], regret: bool, tables: bool, at_once: bool = True
) -> Any:
    """As `run`, of a private lane; the digests of its slots too."""
    digests: list[bytes] = []
    calls: list[int] = []

    def private_lane() -> Lane:
        lane = lane_of(PRIVATE[name](noise_key=bytes(range(32))), rows, regret, tables)
        lane.learner.bind_noise("lane", digests)
        return lane

    with pytest.MonkeyPatch.context() as patch:
        true = batch.RecordProcessor._take_rows

        def counted(self: Any, *args: Any) -> list[bool] | None:
            taken = true(self, *args) if at_once else None
            calls.append(taken is not None)
            return taken

        patch.setattr(batch.RecordProcessor, "_take_rows", counted)
        lane, outputs, start = private_lane(), [], 0
        for i, cut in enumerate(cuts):
            if i == again:
                saved, lane = lane.snapshot(), private_lane()
                lane.restore(saved)
            records = [
                Record(start + j, b"v%d" % j, b"k%d" % (j % 9) if j % 11 else None) for j in range(cut)
            ]
            outputs.append(lane.process(records))
            start += cut
    flat = [(o.scores, [(d.offset, d.stage, d.error) for d in o.dead_letters]) for o in outputs]
    gauges = lane.gauges(solve=False)
    return (repr((flat, gauges.events, gauges.auc)), lane.snapshot(), digests), any(calls)


@pytest.mark.parametrize("name", PRIVATE)
@settings(max_examples=4, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 80), min_size=1, max_size=4),
    again=st.integers(0, 3),
    regret=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_slots_at_once_are_one_after_the_other(
    name: str, cuts: list[int], again: int, regret: bool, seed: int
) -> None:
    model = PRIVATE[name]()
    rows = events(model, sum(cuts), seed)
    one, _ = slots(name, cuts, again, rows, regret, tables=False, at_once=False)
    for tables in (False, True):
        assert slots(name, cuts, again, rows, regret, tables)[0] == one


@pytest.mark.parametrize("name", PRIVATE)
def test_slots_are_taken_at_once(name: str) -> None:
    """Else the test above would compare a thing with itself; and the order counts, as it must."""
    rows = [row for row in events(PRIVATE[name](), 400, 1) if row and row[1] is not None]
    rows = [row for row in rows if row[0].keys() == NAMES and max(map(abs, row[0].values())) < 9][:150]
    one, many = (slots(name, [50, 100], 9, rows, False, False, at_once=at_once) for at_once in (False, True))
    assert (one[1], many[1]) == (False, True)
    assert one[0] == many[0]
    rows[100:102] = rows[101:99:-1]
    assert slots(name, [50, 100], 9, rows, False, False)[0] != one[0]
