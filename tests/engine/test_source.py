"""Lanes that read a whole topic: which records their ordinals stand for, in memory and in the log."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from harness.driver import decode_json
from hypothesis import given
from hypothesis import strategies as st

from streampair import auc
from streampair.engine import ExternalState, LaneId, LoggedLane, OrderedRecord
from streampair.engine.recovery import RecoveredState
from streampair.engine.source import ORDER_NOT_COVERED, Positions, after, longer, ranges_of
from streampair.engine.wal import Chain, LogKey, Range, RangesEntry
from streampair.errors import SnapshotError

Places = list[tuple[int, int]]


def records(places: Places, first: int = 0) -> list[OrderedRecord]:
    """Records at these places, labelled so that a learner has something to learn."""
    coin = random.Random(first)
    made = []
    for number, (partition, position) in enumerate(places):
        value = {"x": {"a": coin.gauss(0, 1), "b": coin.gauss(0, 1)}, "y": coin.random() < 0.5}
        made.append(
            OrderedRecord(
                first + number,
                json.dumps(value).encode(),
                partition=partition,
                position=position,
                clock=1_000 + number,
            )
        )
    return made


@st.composite
def walks(draw: st.DrawFn) -> Places:
    """Places in an order in which a reader may find them: positions grow in each partition, with gaps."""
    following = dict.fromkeys(range(3), 0)
    places = []
    for partition in draw(st.lists(st.integers(0, 2), max_size=40)):
        following[partition] += draw(st.integers(1, 2))
        places.append((partition, following[partition]))
    return places


def expanded(ranges: list[Range], places: Places) -> Places:
    """The places that ranges stand for, of those that have records."""
    found = []
    for each in ranges:
        part = [(p, q) for p, q in places if p == each.partition and each.first <= q < each.end]
        assert len(part) == each.count
        found += part
    return found


@given(walks(), st.integers(1, 7))
def test_ranges_stand_for_the_records_in_their_order(places: Places, size: int) -> None:
    positions, announced = Positions(), []
    for start in range(0, len(places), size):
        positions.took(records(places[start : start + size], start))
        if start % 2:
            announced += positions.announced()
    announced += positions.announced()
    assert expanded(announced, places) == places
    assert {p: each.next_offset for p, each in positions.positions.items()} == {p: q + 1 for p, q in places}


@given(walks(), st.integers(0, 40))
def test_what_is_left_of_ranges(places: Places, taken: int) -> None:
    left = after(ranges_of(records(places)), records(places[:taken]))
    assert expanded(left, places[taken:]) == places[taken:]
    assert longer(ranges_of(records(places)), ranges_of(records(places[:taken]))) == ranges_of(
        records(places)
    )


def test_a_clock_never_goes_back() -> None:
    positions = Positions()
    first, second = records([(0, 0), (0, 1)])
    positions.took([second])
    positions.took([first])
    assert positions.positions[0].clock == second.clock


PLACES: Places = [
    (0, 0),
    (0, 1),
    (1, 0),
    (2, 0),
    (0, 2),
    (1, 1),
    (1, 2),
    (2, 3),
    (0, 5),
    (2, 4),
    (1, 3),
    (0, 6),
]
SPANS = {0: (0, 7), 1: (0, 4), 2: (0, 5)}
EXACT = "exact accounting of every release, in Gaussian differential privacy"


def private_lane() -> LoggedLane:
    learner = auc.PairFTRL(
        epsilon=1.0, delta=1e-4, horizon=200, warmup=0, window=4, noise_key=b"\x07" * 32, features=["a", "b"]
    )
    return LoggedLane(learner, decode_json, LaneId("a", "t"))


def plain_lane() -> LoggedLane:
    return LoggedLane(auc.PairOGD(seed=1), decode_json, LaneId("a", "t"))


def started(lane: LoggedLane, log: bytes, snapshot: bytes | None = None) -> bytes:
    """Start a lane from its log; what the start appends."""
    lane.read(log)
    appends, _ = lane.start(ExternalState(registers=False, spans=SPANS), snapshot)
    return b"".join(frame for append in appends for frame in append.frames)


def test_a_replay_follows_the_ranges_of_the_log() -> None:
    lane, taken = plain_lane(), records(PLACES)
    log, saved = started(lane, b""), None
    for start in range(0, 12, 4):
        lane.process(taken[start : start + 4])
        commit = lane.commit()
        saved = saved or commit.snapshot  # the first commit has one
        log += b"".join(commit.frames)
        assert commit.positions == {p: q + 1 for p, q in PLACES[: start + 4]}
        lane.committed()
    again = plain_lane()
    request = again.read(log)
    assert expanded(list(request.ranges), PLACES[4:]) == PLACES[4:]
    assert request.last is not None
    assert (request.last.partition, request.last.position) == PLACES[-1]
    again.start(ExternalState(registers=False, spans=SPANS), saved)
    again.replay(taken[4:])
    again.replayed()
    assert again.source is not None
    assert lane.source is not None
    assert again.source.state == lane.source.state
    following = records([(2, 6), (0, 8)], len(PLACES))
    assert again.process(following).scores == lane.process(following).scores


def test_an_order_by_producers_timestamps_is_not_covered_from_then_on() -> None:
    """Also after a restart, whose source may have the broker's timestamps by then."""
    lane, taken = private_lane(), records(PLACES)
    log = started(lane, b"")
    assert lane.source is not None
    assert lane.privacy.guarantee == EXACT
    lane.source.producer_times = True
    output = lane.process(taken[:4])
    assert output.line is not None
    commit = lane.commit(snapshot=True)
    log += b"".join([*output.line.frames, *commit.frames])
    lane.committed()
    again = private_lane()
    again.read(log)
    again.start(ExternalState(registers=False, spans=SPANS), commit.snapshot)
    for each in (lane, again):
        assert (each.privacy.kind, each.privacy.guarantee) == ("holds", f"{EXACT}; {ORDER_NOT_COVERED}")
    known = RecoveredState.of(Chain.peek(log))
    assert known is not None
    assert known.tip is not None
    assert known.tip.privacy is not None
    assert known.tip.privacy["guarantee"] == again.privacy.guarantee, "what `budget show` prints"


@pytest.mark.parametrize(
    "spans", [{**SPANS, 1: (2, 4)}, {**SPANS, 2: (0, 4)}], ids=["retention", "made again"]
)
def test_a_partition_that_lacks_records_refuses_the_start(spans: dict[int, tuple[int, int]]) -> None:
    lane, taken = plain_lane(), records(PLACES)
    log = started(lane, b"")
    lane.process(taken[:2])
    commit = lane.commit()
    log, saved = log + b"".join(commit.frames), commit.snapshot
    lane.committed()
    lane.process(taken[2:])
    log += b"".join(lane.commit().frames)
    again = plain_lane()
    again.read(log)
    with pytest.raises(SnapshotError, match=r"of partition [12]"):
        again.start(ExternalState(registers=False, spans=spans), saved)


def test_what_was_announced_before_a_crash_comes_first() -> None:
    """Slots whose line is durable may have been released: the same records must take them again."""
    lane, taken = private_lane(), records(PLACES)
    log, saved = started(lane, b""), None
    for start in (0, 4):
        assert lane.room == 4
        output = lane.process(taken[start : start + 4])
        assert output.line is not None
        log += b"".join(output.line.frames)
        if start == 0:
            commit = lane.commit(snapshot=True)
            saved = commit.snapshot
            log += b"".join(commit.frames)
            lane.committed()
    # It dies here: the second line is durable, its commit is not. Twice, the second time in the middle.
    for done in (2, 4):
        again = private_lane()
        attempt = started(again, log, saved)
        assert again.source is not None
        assert expanded(again.source.ahead, PLACES[4:8]) == PLACES[4:8]
        output = again.process(taken[4 : 4 + done])
        assert expanded(again.source.ahead, PLACES[4 + done : 8]) == PLACES[4 + done : 8]
        log += attempt + (b"" if output.line is None else b"".join(output.line.frames))
    last = private_lane()
    log += started(last, log, saved)
    last.process(taken[4:8])
    commit = last.commit()
    assert last.source is not None
    assert last.source.ahead == []
    assert commit.positions == {p: q + 1 for p, q in PLACES[:8]}
    assert last.gauges().forks == 0


def test_entries_of_ranges_are_in_the_log_before_their_line() -> None:
    lane = private_lane()
    log = started(lane, b"")
    output = lane.process(records(PLACES)[:3])
    assert output.line is not None
    key = LogKey(lane._model.private.noise_key)  # type: ignore[union-attr]
    entries, _, _ = Chain.read(key, log + b"".join(output.line.frames))
    assert [type(entry).__name__ for entry in entries[-2:]] == ["RangesEntry", "Digests"]
    ranges: Any = entries[-2]
    assert isinstance(ranges, RangesEntry)
    assert expanded(ranges.ranges, PLACES[:3]) == PLACES[:3]
