"""A private lane keeps an account in its log: nothing leaves unreserved, and every second view is charged."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
from typing import Any

import pytest
from harness import lanes
from harness.driver import CommittedOffset, Died, Driver, MemoryStore, decode_json
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair import auc, privacy
from streampair.engine import ExternalState, Lane, LaneId, LogAppend, LoggedLane, Record
from streampair.engine.reservations import Reservations
from streampair.engine.wal import Chain, Digests, LogDamagedError, Register, split_digests
from streampair.errors import LaneStoppedError, PrivacyError, SnapshotError
from streampair.privacy.accounting import promised_epsilon

KEY = bytes(range(32))


def make(**options: Any) -> Any:
    parameters: dict[str, Any] = {"horizon": 200, "features": list("abc"), "noise_key": KEY, "window": 50}
    # With a model after each record: the others release at the ends of blocks only.
    parameters["mechanism"] = privacy.PairGradients()
    return auc.PairFTRL(epsilon=1.0, delta=1e-4, **{**parameters, **options})


def driver(**options: Any) -> Driver:
    lane_options = {k: options.pop(k) for k in ("payloads_change", "snapshot_every") if k in options}
    return Driver(lambda: make(**options), **lane_options)


def entries(driver: Driver) -> list[Any]:
    return Chain.peek(driver.store.log)


def charged(lane: LoggedLane) -> int:
    assert lane._reservations is not None
    return lane._reservations.ledger.charged


def scores(output: Any) -> list[float | None]:
    return [scored.score for scored in output.scores]


EVENTS: list[Any] = [*lanes.stream(60), b"junk", None, *lanes.stream(38, seed=2)]


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("options", [{"warmup": 0}, {"warmup": 13}, {"mechanism": privacy.SecondMoments()}])
def test_a_crash_anywhere_is_replayed_to_the_byte_and_costs_nothing(
    options: dict[str, Any], every: int
) -> None:
    """From the snapshot of the last commit, and by a silent replay from an older one."""
    straight = driver(**options)
    expected = scores(straight.feed(EVENTS[:40]))
    for death in (40, 70):
        straight.commit()
        expected += scores(straight.feed(EVENTS[death : death + 30]))
    for point in (0, 1, 12, 13, 14, 40):
        crashing = driver(**options, snapshot_every=every)
        got = scores(crashing.feed(EVENTS[:point]))
        crashing.commit()
        lost = scores(crashing.feed(EVENTS[point : point + 7]))
        for _ in range(3):
            crashing.crash()
            assert charged(crashing.lane) == 0  # no fork is set aside: it may only follow
            assert crashing.lane.next_offset == (point or None)
            again = scores(crashing.catch_up(batch=3))
            assert again == lost
        got += again
        for death in range(point + 7, 100, 10):
            got += scores(crashing.feed(EVENTS[death : death + 10]))
            crashing.commit()
        assert got == expected
        report = crashing.lane.privacy
        assert report.kind == "holds"
        assert report.mu_spent == straight.lane.privacy.mu_spent


def swap(crashing: Driver, slot: int) -> None:
    """Another payload at an offset that was read before: another order, a compaction, another topic."""
    one, two = crashing.topic[slot], crashing.topic[slot + 1]
    crashing.topic[slot : slot + 2] = [Record(slot, two.value), Record(slot + 1, one.value)]


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
    fork = crashing.lane.learner.run.state.plan.fork_mu2(50)
    assert report.mu_spent == pytest.approx((before.mu_spent**2 + fork) ** 0.5)
    assert report.epsilon_spent == pytest.approx(promised_epsilon(report.mu_spent, 1e-4))
    assert "1 fork(s) are charged" in report.details
    crashing.commit()
    crashing.crash()
    assert charged(crashing.lane) == 1  # nothing was released after the commit


def test_without_a_fork_set_aside_another_view_never_leaves() -> None:
    crashing = driver()
    crashing.feed(EVENTS[:20])
    crashing.commit()
    crashing.feed(EVENTS[20:40])
    swap(crashing, 30)
    crashing.crash()
    log, left = crashing.store.log, len(crashing.scores)
    with pytest.raises(PrivacyError, match="all 0 fork"):
        crashing.catch_up()
    assert crashing.store.log == log
    assert len(crashing.scores) == left
    with pytest.raises(LaneStoppedError, match="stopped in the middle"):
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
    lane.commit()
    assert lane.room == 0  # made, and not yet durable
    lane.committed()
    assert lane.room == 50
    for start in (50, 100, 150):
        lane.process(records[start : start + 50])
        lane.commit(snapshot=start == 100)
        lane.committed()
    assert lane.room is None  # past the horizon: nothing more is released
    lane.process(records[200:])


def test_a_start_comes_first() -> None:
    lane = LoggedLane(make(), decode_json, LaneId("a", "t", 0))
    for _ in range(2):
        with pytest.raises(PrivacyError, match="0 slots are reserved"):
            lane.process([Record(0, None)])
        with pytest.raises(SnapshotError, match="has not caught up"):
            lane.commit()
        assert lane.read(b"").content is None
    lane.start(ExternalState(registers=False))
    lane.process([Record(0, None)])


def test_a_replay_that_is_asked_for_comes_first() -> None:
    waiting = driver(snapshot_every=100)
    waiting.feed(EVENTS[:10])
    waiting.commit(snapshot=True)
    waiting.feed(EVENTS[10:20])
    waiting.commit()
    lane = LoggedLane(make(), decode_json, LaneId("test", "events", 0))
    wanted = lane.read(waiting.store.log)
    lane.start(waiting.found(wanted), waiting.store.snapshot(wanted.content))
    assert (lane.next_offset, lane.replay_until) == (10, 20)
    with pytest.raises(PrivacyError, match="0 slots are reserved"):
        lane.process(waiting.topic[10:11])
    with pytest.raises(SnapshotError, match="has not caught up"):
        lane.commit()
    lane.replay(waiting.topic[10:15])
    with pytest.raises(SnapshotError, match="--skip-span"):  # it ends where it must, or nowhere
        lane.replayed()
    waiting.crash()
    assert (waiting.lane.next_offset, waiting.lane.replay_until) == (20, None)
    with pytest.raises(LaneStoppedError, match="nothing to replay"):
        waiting.lane.replay([])


def test_a_silent_replay_of_another_stream_is_refused_before_anything_leaves() -> None:
    """Whatever the plan has set aside: its digests are those that were released, or the lane stops.

    A slot that releases nothing has no digest: moments show at the next release what went into them.
    """
    for mechanism, slot in ((privacy.PairGradients(), 41), (privacy.SecondMoments(), 50)):
        crashing = driver(snapshot_every=100, forks=9, mechanism=mechanism)
        for start in range(0, 60, 20):
            crashing.feed(EVENTS[start : start + 20])
            crashing.commit(snapshot=start == 0)
        log, left = crashing.store.log, len(crashing.scores)
        swap(crashing, 40)
        with pytest.raises(PrivacyError, match=f"the replay of slot {slot} differs from what was released"):
            crashing.crash()
        assert crashing.store.log == log
        assert len(crashing.scores) == left
        swap(crashing, 40)
        crashing.crash()
        assert charged(crashing.lane) == 0
        assert len(crashing.feed(EVENTS[60:70]).scores) == 10


def turned_after_the_last_release() -> Driver:
    """A lane whose last records before its commit released nothing; one of them has another label now.

    No score shows it, and no digest of a slot.
    """
    quiet = driver(snapshot_every=100, mechanism=privacy.SecondMoments())
    quiet.feed(EVENTS[:20])
    quiet.commit(snapshot=True)
    quiet.feed(EVENTS[20:55])
    quiet.commit()
    digests = b"".join(line.digests for line in entries(quiet) if isinstance(line, Digests))
    released = [slot for slot, digest in enumerate(split_digests(digests), 21) if digest != bytes(16)]
    assert 30 < max(released) < 54
    assert len(released) < 10
    x, y = EVENTS[53]
    quiet.topic[53] = Record(53, json.dumps({"x": x, "y": not y}).encode())
    return quiet


def test_a_slot_that_releases_nothing_is_replayed_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = turned_after_the_last_release()
    with pytest.raises(SnapshotError, match="--skip-span"):
        quiet.crash()
    # The mutant: a tip that holds the scores alone.
    monkeypatch.setattr(Reservations, "update_digest", lambda self, digests: None)
    turned_after_the_last_release().crash()


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_death_before_the_first_register_bricks_nothing(steps: int) -> None:
    """Genesis, register, attempt: nobody may be asked for a register that was never written."""
    crashing = driver()
    for more in range(4):
        crashing.store, crashing.group = MemoryStore(), CommittedOffset()
        with pytest.raises(Died):
            crashing.start(die_after=steps)
        with contextlib.suppress(Died):
            crashing.start(die_after=more)
        crashing.start()
        assert crashing.group.register is not None
        assert charged(crashing.lane) == 0
    assert len(crashing.feed(EVENTS[:5]).scores) == 5


@pytest.mark.parametrize("key", [KEY, None], ids=["key", "no key"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_one_view_leaves_wherever_the_process_dies(key: bytes | None, data: st.DataObject) -> None:
    """Or it is charged: without a key, each attempt that may have released anything."""
    window = data.draw(st.sampled_from([7, 20]))
    straight = driver(noise_key=key, forks=30, window=window)
    expected = scores(straight.feed(EVENTS[:60]))
    crashing = driver(noise_key=key, forks=30, window=window, snapshot_every=3)
    crashing.store, crashing.group, crashing.topic = MemoryStore(), CommittedOffset(), list(straight.topic)
    for _ in range(5):
        batch = data.draw(st.integers(1, 9))
        try:
            crashing.start(die_after=data.draw(st.integers(0, 25)))
            while crashing.lane.next_offset != 60:
                crashing.catch_up(batch)
                crashing.commit()
        except Died:
            continue
    crashing.start()
    crashing.catch_up()
    views: dict[int, set[float | None]] = {}
    for scored in crashing.scores:
        views.setdefault(scored.offset, set()).add(scored.score)
    assert len(views) == 60
    if key is not None:
        assert {len(seen) for seen in views.values()} == {1}
        assert charged(crashing.lane) == 0
        assert [min(seen) for _, seen in sorted(views.items())] == expected  # type: ignore[type-var]
    else:
        assert max(len(seen) for seen in views.values()) <= 1 + charged(crashing.lane)
    assert crashing.lane.privacy.kind == "holds"


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


def test_what_leaves_is_in_the_log_first() -> None:
    """The mutant: a log that fails must keep the output back."""

    class Full(MemoryStore):
        entries_left = 2  # genesis and attempt

        def append(self, append: LogAppend) -> None:
            if not self.entries_left:
                raise OSError("no space left")
            self.entries_left -= 1
            super().append(append)

    failing = Driver(make, store=Full())
    with pytest.raises(OSError, match="no space left"):
        failing.feed(EVENTS[:3])
    assert failing.scores == []
    assert failing.group.register is not None
    register = Register.read(failing.lane._log.chain.key, failing.group.register)
    assert register is not None
    assert (register.sequence, register.slots) == (1, 0)
    writing = driver()
    writing.feed(EVENTS[:3])
    line = entries(writing)[-1]
    assert isinstance(line, Digests)
    assert (line.first, line.steps, len(line.digests)) == (1, 3, 3 * 16)
    assert writing.group.register is not None
    register = Register.read(writing.lane._log.chain.key, writing.group.register)
    assert register is not None
    assert (register.sequence, register.slots) == (2, 3)


def refused(crashing: Driver, match: str, kind: type[Exception] = PrivacyError) -> None:
    """A start is refused, and writes nothing."""
    kept = copy.deepcopy((vars(crashing.store), vars(crashing.group)))
    with pytest.raises(kind, match=match):
        crashing.crash()
    assert (vars(crashing.store), vars(crashing.group)) == kept


@pytest.mark.parametrize("every", [1, 100])
def test_an_old_state_is_refused(every: int) -> None:
    crashing = driver(forks=5, snapshot_every=every)
    crashing.feed(EVENTS[:10])
    crashing.commit()
    old = copy.deepcopy(crashing.store)
    crashing.feed(EVENTS[10:20])
    crashing.commit()
    crashing.feed(EVENTS[20:30])
    newest = crashing.store
    crashing.store = old
    refused(crashing, "older than what was released")
    crashing.store = MemoryStore()
    refused(crashing, "the store has no log of this lane, and the group's register says")
    crashing.store = newest
    crashing.crash()
    assert charged(crashing.lane) == 1  # which may be taken back
    assert len(crashing.catch_up().scores) == 10
    assert charged(crashing.lane) == 0


def test_an_old_snapshot_under_the_new_name_is_refused() -> None:
    crashing = driver(forks=5)
    crashing.feed(EVENTS[:10])
    crashing.commit()
    (old,) = crashing.store.snapshots.values()
    crashing.feed(EVENTS[10:20])
    crashing.commit()
    (name,) = crashing.store.snapshots
    crashing.store.snapshots[name] = old
    refused(crashing, "not the one that the log names", SnapshotError)


def test_a_lost_line_is_refused() -> None:
    """Cut at an entry's end, so that only the register knows; the journal of before was charged one fork."""
    crashing = driver(forks=1)
    crashing.feed(EVENTS[:10])
    before = len(crashing.store.log)
    crashing.feed(EVENTS[10:12])
    kept = crashing.store.log
    crashing.store.log = kept[:before]
    refused(crashing, "older than what was released: it ends with entry 2, and the register knows entry 3")
    crashing.store.log = kept
    crashing.crash()
    assert len(crashing.catch_up().scores) == 12


def test_a_torn_end_is_cut_off_and_a_flipped_bit_is_refused() -> None:
    """The line that was being written when the process died has released nothing."""
    crashing = driver()
    crashing.feed(EVENTS[:10])
    whole, last = len(crashing.store.log), crashing.scores[-1]
    crashing.die_after = 1  # the line is in the log, and not in the register
    with pytest.raises(Died):
        crashing.feed(EVENTS[10:20])
    assert crashing.scores[-1] is last
    written = crashing.store.log
    for cut in (1, 32, 33, len(written) - whole - 60, len(written) - whole - 1):
        crashing.store.log = written[:-cut]
        register = copy.copy(crashing.group)
        crashing.crash()
        assert len(crashing.catch_up().scores) == 20
        assert charged(crashing.lane) == 0
        crashing.group = register
    for position in (0, whole // 2, whole - 40, whole + 5, whole + 60, len(written) - 1):
        crashing.store.log = written[:position] + bytes([written[position] ^ 4]) + written[position + 1 :]
        refused(crashing, "the log is damaged", LogDamagedError)


@pytest.mark.parametrize(
    ("register", "offset", "why"),
    [
        (None, None, "offsets have expired"),
        (None, 10, "a tool has reset the offset"),
        ("written by hand", 10, "a tool has reset the offset"),
    ],
)
def test_a_register_that_is_gone_is_refused(register: str | None, offset: int | None, why: str) -> None:
    crashing = driver(forks=5)
    crashing.feed(EVENTS[:10])
    crashing.commit()
    kept = copy.copy(crashing.group)
    crashing.group = CommittedOffset(register, offset)
    refused(crashing, why)
    crashing.group = kept
    crashing.crash()
    # A lane without an account loses nothing but time: it goes on, and says so.
    public = Driver(lanes.pair_ogd)
    public.feed(EVENTS[:10])
    public.commit()
    public.group = CommittedOffset(register, offset)
    public.crash()
    assert public.lane.next_offset == 10
    assert why in public.warnings[0]


def test_a_key_that_is_drawn_anew_is_refused() -> None:
    keys = [KEY]
    crashing = Driver(lambda: make(noise_key=keys[-1]))
    crashing.feed(EVENTS[:10])
    for other in (bytes(32), None):
        keys.append(other)
        refused(crashing, r"begun with the noise key \w{16}, and the key given now is (\w{16}|none)")
    keys.append(KEY)
    crashing.crash()
    crashing.commit(snapshot=True)
    keys.append(bytes(32))
    refused(crashing, "begun with the noise key")
    crashing.store.log = b""  # not even the log: the register knows the key
    refused(crashing, "written under another key", SnapshotError)


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
    """Reservations, attempts, charges, the log's length and the register are functions of metadata (9.7)."""
    index = data.draw(st.integers(0, 29))
    contents = data.draw(
        st.lists(st.sampled_from([EVENTS[0], EVENTS[1], b"junk", ({}, True), None]), min_size=2, max_size=2)
    )
    script = data.draw(st.lists(st.sampled_from(["feed", "commit", "crash", "stop"]), max_size=12))
    observed = []
    for content in contents:
        events = list(EVENTS[:30])
        events[index] = content
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
            register = Register.read(lane.lane._log.chain.key, lane.group.register or "")
            assert register is not None
            told_there = (register.sequence, register.slots, register.generation, lane.group.offset)
            seen.append((ledger, lane.lane.room, report, len(lane.store.log), told_there))
        observed.append(seen)
    assert observed[0] == observed[1]


def test_a_copy_of_a_lane_in_the_ledger_is_one_that_vouches() -> None:
    """Deep copies made outside of a lane are unvouched; the lane's own restart is not."""
    lane = driver()
    lane.feed(EVENTS[:10])
    assert copy.deepcopy(lane.lane.learner).privacy.kind == "unvouched"
    lane.crash()
    assert lane.lane.privacy.kind == "holds"


def test_what_has_a_log_is_restored_by_nothing_that_keeps_none() -> None:
    after = driver()
    after.feed(EVENTS[:20])
    after.commit()
    (saved,) = after.store.snapshots.values()
    plain = Lane(make(), decode_json, LaneId("test", "events", 0))
    with pytest.raises(SnapshotError, match="keeps an account, and this one keeps none"):
        plain.restore(saved)
