"""A private lane keeps a ledger: nothing leaves that was not reserved, and every second view is charged."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from harness import lanes
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair import auc
from streampair.engine import Lane, Record
from streampair.engine.testing import Driver, MemoryJournal, decode_json
from streampair.errors import PrivacyError, SnapshotError
from streampair.privacy import epsilon_from

KEY = bytes(range(32))


def make(**options: Any) -> Any:
    parameters: dict[str, Any] = {"horizon": 200, "features": list("abc"), "noise_key": KEY, "window": 50}
    # With a model after each record: the others release at the ends of blocks only.
    parameters["solver"] = "gradients"
    return auc.PairFTRL(epsilon=1.0, delta=1e-4, **{**parameters, **options})


def driver(**options: Any) -> Driver:
    lane_options = {k: options.pop(k) for k in ("payloads_change",) if k in options}
    return Driver(lambda: make(**options), journal=MemoryJournal(), **lane_options)


def charged(lane: Lane) -> int:
    assert lane._reservations is not None
    return lane._reservations.ledger.charged


def scores(output: Any) -> list[float | None]:
    return [scored.score for scored in output.scores]


EVENTS: list[Any] = [*lanes.stream(60), b"junk", None, *lanes.stream(38, seed=2)]


@pytest.mark.parametrize("options", [{"warmup": 0}, {"warmup": 13}, {"solver": "moments"}])
def test_a_crash_anywhere_is_replayed_to_the_byte_and_costs_nothing(options: dict[str, Any]) -> None:
    straight = driver(**options)
    expected = scores(straight.feed(EVENTS[:40]))
    for at in (40, 70):
        straight.commit()
        expected += scores(straight.feed(EVENTS[at : at + 30]))
    for point in (0, 1, 12, 13, 14, 40):
        crashing = driver(**options)
        got = scores(crashing.feed(EVENTS[:point]))
        crashing.commit()
        lost = scores(crashing.feed(EVENTS[point : point + 7]))
        for _ in range(3):
            crashing.crash()
            assert charged(crashing.lane) == 0  # no fork is set aside: it may only follow
            again = scores(crashing.catch_up(batch=3))
            assert again == lost
        got += again
        for at in range(point + 7, 100, 10):
            got += scores(crashing.feed(EVENTS[at : at + 10]))
            crashing.commit()
        assert got == expected
        report = crashing.lane.privacy
        assert report.kind == "holds"
        assert report.mu_spent == straight.lane.privacy.mu_spent


def swap(crashing: Driver, at: int) -> None:
    """Another payload at an offset that was read before: another order, a compaction, another topic."""
    one, two = crashing.topic[at], crashing.topic[at + 1]
    crashing.topic[at : at + 2] = [Record(at, two.value), Record(at + 1, one.value)]


def test_swapped_records_get_other_noise_and_are_charged() -> None:
    crashing = driver(forks=2)
    crashing.feed(EVENTS[:20])
    crashing.commit()
    first = scores(crashing.feed(EVENTS[20:40]))
    before = crashing.lane.privacy
    swap(crashing, 30)
    crashing.crash()
    assert charged(crashing.lane) == 1
    second = scores(crashing.catch_up())
    assert second[:10] == first[:10]
    assert second[12:] != first[12:]
    assert charged(crashing.lane) == 1
    report = crashing.lane.privacy
    assert report.kind == "holds"
    fork = crashing.lane.learner.run.rule.plan.fork_mu2(50)
    assert report.mu_spent == pytest.approx((before.mu_spent**2 + fork) ** 0.5)
    assert report.epsilon_spent == pytest.approx(epsilon_from(report.mu_spent, 1e-4))
    assert "1 fork(s) are charged" in str(report)
    crashing.commit()
    crashing.crash()
    assert charged(crashing.lane) == 1  # nothing was released after the commit


def test_without_a_fork_set_aside_another_view_never_leaves() -> None:
    crashing = driver()
    crashing.feed(EVENTS[:20])
    crashing.commit()
    crashing.feed(EVENTS[20:40])
    swap(crashing, 30)
    journal = crashing.journal.data  # type: ignore[union-attr]
    crashing.crash()
    with pytest.raises(PrivacyError, match="all 0 fork"):
        crashing.catch_up()
    assert crashing.journal.data == journal  # type: ignore[union-attr]
    with pytest.raises(Exception, match="stopped in the middle"):
        crashing.lane.process([])
    swap(crashing, 30)
    crashing.crash()
    assert len(crashing.catch_up().scores) == 20  # put right, it goes on


@pytest.mark.parametrize("options", [{"noise_key": None}, {"payloads_change": True}])
def test_a_crash_loop_is_charged_each_time_or_refused(options: dict[str, Any]) -> None:
    crashing = driver(forks=100, **options)
    for attempt in range(100):
        crashing.feed(EVENTS[:5] if attempt == 0 else [])
        assert charged(crashing.lane) == attempt
        crashing.crash()
    crashing.catch_up()
    assert charged(crashing.lane) == 100
    assert crashing.lane.privacy.mu_spent <= crashing.lane.privacy.mu_budget
    with pytest.raises(PrivacyError, match="all 100 fork"):
        crashing.crash()


def test_a_changed_payload_is_not_given_the_noise_of_the_first_view() -> None:
    """Where payloads change, even an equal replay draws other noise."""
    crashing = driver(forks=1, payloads_change=True)
    first = scores(crashing.feed(EVENTS[:20]))
    crashing.crash()
    assert scores(crashing.catch_up())[5:] != first[5:]
    assert charged(crashing.lane) == 1


def test_nothing_is_released_beyond_the_reservation() -> None:
    lane = driver().lane
    records = [Record(i, None) for i in range(300)]
    assert lane.room == 50
    with pytest.raises(PrivacyError, match="50 slots are reserved"):
        lane.process(records[:51])
    lane.process(records[:50])
    assert lane.room == 0
    with pytest.raises(PrivacyError, match="0 slots are reserved"):
        lane.process(records[50:51])
    lane.snapshot()
    assert lane.room == 0  # made, and not yet durable
    lane.committed()
    assert lane.room == 50
    for at in (50, 100, 150):
        lane.process(records[at : at + 50])
        lane.snapshot()
        lane.committed()
    assert lane.room is None  # past the horizon: nothing more is released
    lane.process(records[200:])


def test_begin_comes_first() -> None:
    lane = Lane(make(), decode_json, app="a", topic="t", partition=0, journal=MemoryJournal())
    with pytest.raises(PrivacyError, match="0 slots are reserved"):
        lane.process([Record(0, None)])


@pytest.mark.parametrize("key", [KEY, None])
def test_features_from_the_first_record(key: bytes | None) -> None:
    """Slots before it wait: they are reserved, released and replayed with it."""
    events: list[Any] = [b"junk", None, b"{}", *EVENTS]
    straight = driver(features=None, noise_key=key, forks=9)
    expected = scores(straight.feed(events[:30]))
    for point in (0, 3, 4):
        crashing = driver(features=None, noise_key=key, forks=9)
        got = scores(crashing.feed(events[:point]))
        crashing.commit()
        crashing.feed(events[point:20])
        crashing.crash()
        got += scores(crashing.catch_up(batch=2)) + scores(crashing.feed(events[20:30]))
        assert charged(crashing.lane) == (0 if key is not None else 1)
        assert (got == expected) or key is None
    patient = driver(features=None, noise_key=key, window=5)
    for _ in range(5):
        patient.feed([b"junk"])
    with pytest.raises(PrivacyError, match="declare the features"):
        patient.feed([b"junk"])


def test_a_fixed_seed_needs_no_account() -> None:
    lane = driver(noise_key=None, seed=1)
    lane.feed(EVENTS[:20])
    lane.crash()
    assert len(lane.catch_up().scores) == 20
    assert lane.lane.privacy.kind == "void"
    assert lane.lane.room is None


def test_what_leaves_is_in_the_journal_first() -> None:
    """The twin: a journal that fails must keep the output back."""

    class Full(MemoryJournal):
        def append(self, data: bytes) -> None:
            raise OSError("no space left")

        restart_left = 1

        def restart(self, data: bytes) -> None:
            if not self.restart_left:
                raise OSError("no space left")
            self.restart_left -= 1
            super().restart(data)

    journal = Full()
    failing = Driver(make, journal=journal)
    with pytest.raises(OSError, match="no space left"):
        failing.feed(EVENTS[:3])
    with pytest.raises(SnapshotError, match="in the middle"):
        failing.lane.snapshot()


def test_an_old_snapshot_is_refused() -> None:
    crashing = driver(forks=5)
    crashing.feed(EVENTS[:10])
    crashing.commit()
    old = crashing.committed
    crashing.feed(EVENTS[10:20])
    crashing.commit()
    crashing.feed(EVENTS[20:30])
    crashing.committed = old
    with pytest.raises(PrivacyError, match="older than what was released"):
        crashing.crash()
    crashing.committed = None
    with pytest.raises(PrivacyError, match="older than what was released"):
        crashing.crash()


def test_a_lost_journal_is_charged() -> None:
    crashing = driver(forks=1)
    crashing.feed(EVENTS[:10])
    crashing.journal.data = None  # type: ignore[union-attr]
    crashing.crash()
    assert charged(crashing.lane) == 1
    crashing.catch_up()
    crashing.journal.data = None  # type: ignore[union-attr]
    with pytest.raises(PrivacyError, match="all 1 fork"):
        crashing.crash()


def test_clean_stops_and_kills_without_work_cost_nothing() -> None:
    for key in (KEY, None):
        lane = driver(noise_key=key)
        lane.feed(EVENTS[:10])
        lane.commit(clean=True)
        for _ in range(3):
            lane.crash()
        lane.feed(EVENTS[10:20])
        lane.commit()
        lane.crash()
        assert charged(lane.lane) == 0
        assert lane.lane.privacy.kind == "holds"


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_neighbouring_streams_have_equal_ledgers(data: st.DataObject) -> None:
    """Reservations, attempts, charges and the length of the journal are functions of metadata (9.7)."""
    at = data.draw(st.integers(0, 29))
    contents = data.draw(
        st.lists(st.sampled_from([EVENTS[0], EVENTS[1], b"junk", ({}, True), None]), min_size=2, max_size=2)
    )
    script = data.draw(st.lists(st.sampled_from(["feed", "commit", "crash", "stop"]), max_size=12))
    told = []
    for content in contents:
        events = list(EVENTS[:30])
        events[at] = content
        lane = driver()
        seen: list[Any] = []
        for what in script:
            if what == "feed":
                done = len(lane.topic)
                lane.feed(events[done : done + 4])
            elif what == "crash":
                lane.crash()
                lane.catch_up()
            else:
                lane.commit(clean=what == "stop")
                if what == "stop":
                    lane.start()
            ledger = dataclasses.asdict(lane.lane._reservations.ledger)  # type: ignore[union-attr]
            ledger = {k: len(v) if isinstance(v, list) else v for k, v in ledger.items()}
            report = lane.lane.privacy
            seen.append((ledger, lane.lane.room, report, len(lane.journal.data or b"")))  # type: ignore[union-attr]
        told.append(seen)
    assert told[0] == told[1]


def test_a_copy_of_a_lane_in_the_ledger_is_one_that_vouches() -> None:
    """Deep copies made outside of a lane are unvouched; the lane's own restart is not."""
    lane = driver()
    lane.feed(EVENTS[:10])
    assert copy.deepcopy(lane.lane.learner).privacy.kind == "unvouched"
    lane.crash()
    assert lane.lane.privacy.kind == "holds"


def test_a_lane_that_kept_no_ledger_can_begin_one_and_never_drop_it() -> None:
    before = Driver(make)
    before.feed(EVENTS[:20])
    before.commit(clean=True)
    after = driver()
    after.topic, after.committed = before.topic, before.committed
    after.start()
    after.feed(EVENTS[20:40])
    assert after.lane.privacy.kind == "holds"
    after.commit()
    after.feed(EVENTS[40:50])
    after.crash()
    assert len(after.catch_up().scores) == 10
    after.commit()
    before.committed = after.committed
    with pytest.raises(SnapshotError, match="has a ledger, and this lane no journal"):
        before.crash()
