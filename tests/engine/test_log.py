"""The lane log: chains that find damage, registers that find old logs, and starts that write nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from harness import lanes
from harness.driver import CommittedOffset, Died, Driver
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair import auc, privacy
from streampair.engine import LogDamagedError, LogKey, Register, UnusableLogError, lane_log
from streampair.engine.wal import Chain, Digests, StartEntry
from streampair.errors import PrivacyError, SnapshotError, StreampairError
from streampair.privacy import EntityLimit, NoiseKey

KEY = bytes(range(32))
OTHER = bytes(range(1, 33))


def make(**options: Any) -> Any:
    parameters: dict[str, Any] = {
        "horizon": 400,
        "features": list("abc"),
        "noise_key": KEY,
        "window": 20,
        # With a model after each record: the others release at the ends of blocks only.
        "mechanism": privacy.PairGradients(),
        "warmup": 0,
    }
    return auc.PairFTRL(epsilon=1.0, delta=1e-4, **{**parameters, **options})


EVENTS: list[Any] = [*lanes.stream(60), b"junk", None, *lanes.stream(138, seed=2)]


def worked(rounds: int = 6, *, every: int = 3, **options: Any) -> Driver:
    """A driver with some commits behind it, and uncommitted records."""
    driver = Driver(lambda: make(**options), snapshot_every=every)
    for start in range(0, 10 * rounds, 10):
        driver.feed(EVENTS[start : start + 10])
        driver.commit()
    driver.feed(EVENTS[10 * rounds : 10 * rounds + 5])
    return driver


def views(driver: Driver) -> dict[int, set[float | None]]:
    """Every score that has left, by offset."""
    found: dict[int, set[float | None]] = {}
    for scored in driver.scores:
        found.setdefault(scored.offset, set()).add(scored.score)
    return found


def contradictions(driver: Driver) -> int:
    """Offsets that got two different scores: second views."""
    return sum(len(scores) > 1 for scores in views(driver).values())


def charged(driver: Driver) -> int:
    account = driver.lane._reservations
    assert account is not None
    return account.ledger.charged


# ---- chains ----------------------------------------------------------------------------------------------


def frames(count: int = 6, key: LogKey | None = None) -> list[bytes]:
    chain = Chain(key or LogKey())
    return [
        chain.add(Digests(i, 1, bytes([i]) * 16) if i else StartEntry("1", [], None)) for i in range(count)
    ]


def test_any_flipped_bit_is_found() -> None:
    data = b"".join(frames())
    whole, _, _ = Chain.read(LogKey(), data)
    for position in range(len(data)):
        for bit in (1, 128):
            flipped = bytearray(data)
            flipped[position] ^= bit
            with pytest.raises(LogDamagedError, match="damaged"):
                Chain.read(LogKey(), bytes(flipped))
    assert len(whole) == 6


def test_a_cut_is_a_torn_end_and_what_it_says_is_not_there() -> None:
    parts = frames()
    data = b"".join(parts)
    for cut in range(len(data)):
        entries, chain, used = Chain.read(LogKey(), data[:cut])
        assert data[:used] == b"".join(parts[: len(entries)])
        assert chain.sequence == len(entries) - 1


def test_entries_cannot_be_left_out_moved_or_said_twice() -> None:
    parts = frames()
    for other in (parts[1:], parts[:2] + parts[3:], [parts[0], parts[2], parts[1]], [parts[0]] * 2):
        with pytest.raises(LogDamagedError):
            Chain.read(LogKey(), b"".join(other))


def test_a_chain_belongs_to_its_key() -> None:
    data = b"".join(frames(key=LogKey(NoiseKey(KEY))))
    assert len(Chain.read(LogKey(NoiseKey(KEY)), data)[0]) == 6
    for key in (LogKey(), LogKey(NoiseKey(OTHER))):
        with pytest.raises(LogDamagedError):
            Chain.read(key, data)
    assert LogKey(NoiseKey(KEY)).id != LogKey(NoiseKey(OTHER)).id
    assert KEY.hex() not in repr(LogKey(NoiseKey(KEY))) + LogKey(NoiseKey(KEY)).id


def test_a_register_is_short_and_authenticated() -> None:
    key = LogKey(NoiseKey(KEY))
    text = Register(2**60, "ab" * 16, key.id, 2**31, 10**5, 2**60, 2**31, True).text(key)
    assert len(text) < 512
    assert Register.read(key, text) is not None
    assert Register.read(key, "") is None
    assert Register.read(key, "committed by a tool") is None
    with pytest.raises(SnapshotError, match="under another key"):
        Register.read(LogKey(NoiseKey(OTHER)), text)
    with pytest.raises(SnapshotError, match="changed by somebody"):
        Register.read(key, text.replace('"generation":2147483648', '"generation":1'))


# ---- crashes ---------------------------------------------------------------------------------------------

MODELS: dict[str, Callable[[], Any]] = {
    "gradients": make,
    "warm-up": lambda: make(warmup=13),
    "moments": lambda: make(mechanism=privacy.SecondMoments(), warmup=None),
    "features of the first record": lambda: make(features=None),
    "not private": lambda: auc.PairOGD(seed=4),
    "OnPairStrC": lambda: auc.OnPairStrC(
        1.0, 1e-4, 400, l2=0.1, features=list("abc"), noise_key=KEY, window=20
    ),
}


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("name", MODELS)
def test_a_crash_at_every_durable_step_changes_nothing_and_costs_nothing(name: str, every: int) -> None:
    """What has left, the weights and the account equal those of a run without a crash."""
    model = MODELS[name]

    def run(driver: Driver, die_after: int | None) -> int:
        driver.die_after, start, deaths = die_after, 0, 0
        while start < 60:
            try:
                driver.feed(EVENTS[start : start + 10] if len(driver.topic) == start else [])
                driver.commit()
                start += 10
            except Died:
                deaths += 1
                driver.start()
        return deaths

    straight = Driver(model, snapshot_every=every)
    assert run(straight, None) == 0
    deaths = 0
    for step in range(45):
        crashing = Driver(model, snapshot_every=every)
        deaths += run(crashing, step)
        assert views(crashing) == views(straight)
        assert repr(crashing.lane.learner.weights) == repr(straight.lane.learner.weights)
        assert crashing.lane.gauges().events == straight.lane.gauges().events
        report = crashing.lane.privacy
        if report is not None:
            assert charged(crashing) == 0
            assert report == straight.lane.privacy
    assert deaths > 10


def test_a_snapshot_before_what_was_released_keeps_its_digests() -> None:
    """The next attempt commits in other places: what it has yet to reproduce has no line of its own later."""

    def take(driver: Driver, stop: int) -> None:
        output = driver.lane.process(driver.topic[driver.lane.next_offset or 0 : stop])
        driver.scores += output.scores
        if output.line is not None:
            driver.append(output.line)

    driver = Driver(make, snapshot_every=100)
    driver.feed(EVENTS[:16])
    before = list(driver.scores)
    driver.crash()
    take(driver, 8)
    driver.commit(snapshot=True)
    take(driver, 12)
    driver.commit(snapshot=False)
    for _ in range(2):
        driver.crash()
        assert driver.lane.next_offset == 12
    take(driver, 16)
    assert driver.scores == [*before, *before]
    driver.commit(snapshot=False)
    driver.crash()
    assert driver.lane.next_offset == 16
    assert charged(driver) == 0


def test_a_seed_that_nobody_gave_is_in_the_first_snapshot() -> None:
    """A learner draws one from the system; a crash before the first commit must not draw another."""
    driver = Driver(lambda: auc.PairOGD(), snapshot_every=100)
    driver.feed(EVENTS[:30])
    driver.commit()
    driver.feed(EVENTS[30:40])
    before = driver.scores[30:]
    driver.crash()
    assert driver.catch_up().scores == before


def test_a_replay_is_silent_and_ends_where_the_lane_was() -> None:
    driver = worked(every=100)
    count, weights = len(driver.scores), driver.lane.learner.weights
    uncommitted = driver.scores[60:]
    driver.crash()
    assert len(driver.scores) == count
    assert driver.lane.next_offset == 60
    assert driver.lane.gauges().events["learned"] == 60
    assert driver.catch_up().scores == uncommitted
    assert driver.lane.learner.weights == weights
    assert charged(driver) == 0


# ---- storage that lies -----------------------------------------------------------------------------------


def refused(driver: Driver, match: str, error: type[StreampairError] = StreampairError) -> None:
    """The start is refused, and has written nothing: neither to the store nor to the group."""
    store, group = copy.deepcopy(driver.store), copy.deepcopy(driver.group)
    with pytest.raises(error, match=match):
        driver.start()
    assert driver.store == store
    assert driver.group == group


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_an_old_store_is_refused_or_is_the_newest(data: st.DataObject) -> None:
    """Any earlier copy of the store, put back at any time, after aborted starts too."""
    driver = Driver(lambda: make(), snapshot_every=data.draw(st.sampled_from([1, 2, 50])))
    kept = [copy.deepcopy(driver.store)]
    start = 0
    for _ in range(data.draw(st.integers(2, 10))):
        what = data.draw(st.sampled_from(["feed", "commit", "crash", "stop", "die"]))
        if what == "feed":
            driver.feed(EVENTS[start : start + 3])
            start += 3
        elif what == "commit":
            driver.commit()
        elif what == "stop":
            driver.commit(clean=True)
            driver.start()
        elif what == "crash":
            driver.crash()
            driver.catch_up()
        else:
            driver.die_after = data.draw(st.integers(0, 5))
            try:
                driver.catch_up()
                driver.commit()
            except Died:
                driver.start()
                driver.catch_up()
            driver.die_after = None
        kept.append(copy.deepcopy(driver.store))
    old = data.draw(st.sampled_from(kept))
    driver.store = copy.deepcopy(old)
    problem = ""
    try:
        driver.start()
    except PrivacyError as error:
        problem = str(error)
    if problem:
        assert "older than what was released" in problem or "no log of this lane" in problem
        return
    del driver.topic[driver.lane.next_offset or 0 :]
    try:
        driver.feed(EVENTS[100:110])
    except PrivacyError as error:
        problem = str(error)
    # Another view of what was released is charged before it leaves, and there is no room for one.
    assert not problem or "all 0 fork" in problem
    assert contradictions(driver) == 0


def test_a_lane_that_does_not_ask_the_register_lets_an_old_store_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mutant."""
    driver = worked()
    old = copy.deepcopy(driver.store)
    driver.commit()
    driver.feed(EVENTS[70:90])
    driver.store = old
    refused(driver, "older than what was released", PrivacyError)
    driver._facts["registers"] = False
    driver.start()
    driver.topic[66:] = []
    driver.feed(EVENTS[100:110])
    assert contradictions(driver) > 0
    assert charged(driver) <= 1


def test_a_flipped_bit_or_a_cut_anywhere_is_refused() -> None:
    """Even with no fork set aside, and in the line that a crash could have torn."""
    driver = worked(rounds=1)
    whole = driver.store.log
    for position in range(0, len(whole), 7):
        driver.store.log = whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :]
        refused(driver, "damaged|with the noise key")
    for cut in range(0, len(whole)):
        driver.store.log = whole[:cut]
        refused(driver, "older than what was released|no log of this lane", PrivacyError)
    driver.store.log = whole
    driver.start()


def test_a_torn_end_behind_the_register_is_cut_off() -> None:
    driver = worked()
    whole, group, uncommitted = driver.store.log, copy.copy(driver.group), driver.scores[60:]
    driver.die_after = 2  # the frame is there, the register is not
    with pytest.raises(Died):
        driver.commit()
    longer = driver.store.log
    assert len(longer) > len(whole)
    for cut in (len(whole) + 1, len(whole) + 40, len(longer) - 1):
        driver.store.log, driver.group = longer[:cut], copy.copy(group)
        driver.start()
        assert driver.store.log.startswith(whole)
        assert driver.lane.next_offset == 60
        assert driver.catch_up().scores == uncommitted
        assert charged(driver) == 0


def test_a_snapshot_of_other_content_is_refused() -> None:
    driver = worked()
    (name,) = driver.store.snapshots
    older = worked(rounds=3)
    driver.store.snapshots[name] = next(iter(older.store.snapshots.values()))
    refused(driver, "not the one that the log names", SnapshotError)


@pytest.mark.parametrize("key", [OTHER, None])
def test_another_key_is_refused(key: bytes | None) -> None:
    driver = worked()
    driver._make = lambda: make(noise_key=key)
    refused(driver, "with the noise key", PrivacyError)
    driver.store.log, driver.store.snapshots = b"", {}
    refused(driver, "another key")


def test_a_store_that_is_gone_is_refused() -> None:
    driver = worked()
    driver.store.log, driver.store.snapshots = b"", {}
    refused(driver, "no log of this lane", PrivacyError)
    driver.group.register = None
    refused(driver, "no log of this lane", PrivacyError)


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        (CommittedOffset(None, None), "expired"),
        (CommittedOffset("", 60), "a tool has reset"),
        (CommittedOffset("by hand", 10), "has no register"),
    ],
    ids=["expired", "reset", "overwritten"],
)
def test_a_register_that_is_gone_is_refused_with_its_cause(group: CommittedOffset, problem: str) -> None:
    driver = worked()
    driver.group = group
    refused(driver, problem, PrivacyError)


def test_an_offset_beyond_the_log_is_refused() -> None:
    driver = worked()
    driver.group.offset = 64
    refused(driver, "beyond the log", PrivacyError)


def test_a_lane_that_released_nothing_needs_no_register() -> None:
    driver = Driver(make)
    entries, _, _ = Chain.read(LogKey(NoiseKey(KEY)), driver.store.log)
    assert len(entries) == 2
    # Killed between its first entry and the register of it.
    driver.store.log = Chain(LogKey(NoiseKey(KEY))).add(entries[0])
    driver.group = CommittedOffset()
    driver.start()
    assert driver.feed(EVENTS[:5]).next_offset == 5


def test_the_topic_must_be_the_one_that_was_read() -> None:
    driver = worked()
    topic = list(driver.topic)
    driver.topic = topic[40:50] + topic[:40] + topic[50:]
    refused(driver, "offset 0 is another one", SnapshotError)
    driver.topic = topic[:55] + topic[:10]
    refused(driver, "offset 59 is another one", SnapshotError)
    driver.topic = topic[:30]
    refused(driver, "the topic ends at 30", SnapshotError)
    driver.topic = topic
    driver._facts["cluster"] = "here"
    driver.start()  # a log that never heard of a cluster has nothing to compare
    named = Driver(make, facts={"cluster": "here"})
    named.feed(EVENTS[:10])
    named._facts["cluster"] = "there"
    refused(named, "the cluster is there", SnapshotError)
    known = Driver(make, facts={"topic_id": "aa"})
    known.start()
    known._facts["topic_id"] = ""
    known.start()  # a broker that knows no ids
    known._facts["topic_id"] = "bb"
    refused(known, "the id of the topic is bb", SnapshotError)


def test_a_replay_that_comes_out_otherwise_is_refused() -> None:
    """A record between the snapshot and the tip has changed."""
    for model in (make, lambda: auc.PairOGD(seed=1)):
        driver = Driver(model, snapshot_every=100)
        driver.feed(EVENTS[:10])
        driver.commit()
        driver.feed(EVENTS[10:30])
        driver.commit()
        topic = list(driver.topic)
        driver.topic[15] = type(topic[15])(15, topic[20].value)
        with pytest.raises((PrivacyError, SnapshotError), match="--skip-span"):
            driver.start()
        driver.topic = topic
        driver.start()
        assert driver.lane.next_offset == 30


def test_a_span_that_is_gone_is_refused() -> None:
    driver = worked(every=100)
    driver._facts["start"] = 20
    refused(driver, "are gone from the topic", SnapshotError)


def test_another_release_does_not_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = worked(every=100)
    monkeypatch.setattr("streampair.engine.recovery.__version__", "9.9")
    refused(driver, "start release .* once more", SnapshotError)
    monkeypatch.undo()
    driver.start()
    driver.commit(clean=True)
    monkeypatch.setattr("streampair.engine.recovery.__version__", "9.9")
    driver.start()  # a clean stop leaves nothing to replay


@pytest.mark.filterwarnings("ignore:the privacy guarantee")
def test_what_voids_a_guarantee_is_remembered() -> None:
    driver = Driver(make, on_bad="fail")
    driver.start()  # nothing was taken under it
    driver._options["on_bad"] = "dlq"
    driver.start()
    assert driver.lane.privacy.kind == "holds"
    driver._options["on_bad"] = "fail"
    driver.start()
    driver.feed(lanes.stream(5))
    driver._options["on_bad"] = "dlq"
    driver.crash()
    for _ in range(3):
        assert driver.lane.privacy.kind == "void"
        assert "on_bad='fail'" in driver.lane.privacy.guarantee
        driver.catch_up()
        driver.commit()
        driver.start()


def test_partitions_that_were_added_split_entities() -> None:
    limit = EntityLimit(2, 5)
    driver = Driver(lambda: make(entity=limit), facts={"partitions": 2})
    driver.feed(EVENTS[:5])
    driver._facts["partitions"] = 3
    refused(driver, "2 partition.s. when the account began and has 3", PrivacyError)
    records = Driver(make, facts={"partitions": 2})
    records.feed(EVENTS[:5])
    records._facts["partitions"] = 3
    records.start()


def without_account() -> Driver:
    """A lane without an account that has committed 40 events."""
    driver = Driver(lambda: auc.PairOGD(seed=1))
    driver.feed(EVENTS[:20])
    driver.commit()
    driver.feed(EVENTS[20:40])
    driver.commit()
    return driver


@pytest.mark.parametrize("group", [None, CommittedOffset(None, 40), CommittedOffset("by hand", 40)])
def test_without_an_account_too_a_log_that_is_gone_is_refused(group: CommittedOffset | None) -> None:
    """It would begin at offset 0, and score every event a second time."""
    driver = without_account()
    driver.store.log, driver.store.snapshots = b"", {}
    driver.group = group or driver.group
    refused(driver, "no log of this lane.*--begin-anew", UnusableLogError)


def test_without_an_account_too_a_log_that_is_cut_is_refused() -> None:
    driver = Driver(lambda: auc.PairOGD(seed=1))
    driver.feed(EVENTS[:20])
    driver.commit()
    old = copy.deepcopy(driver.store)
    driver.feed(EVENTS[20:40])
    driver.commit()
    driver.store = old
    refused(driver, "older than what was released.*--begin-anew.*--accept-rollback", UnusableLogError)
    driver.group.register = None
    refused(driver, "lies beyond the log, which ends at 20.*--to-offset 20", UnusableLogError)
    driver.group.offset = 20  # moved back: it goes on from there
    driver.start()
    assert "has no register" in driver.warnings[0]
    assert driver.lane.next_offset == 20


def test_a_lane_without_an_account_goes_on_where_its_log_is_whole() -> None:
    driver = without_account()
    driver.group = CommittedOffset()
    driver.start()
    assert "the group has no offset here" in driver.warnings[0]
    driver.group.offset = 50
    driver.start()
    assert "the group's offset 50 lies beyond the log" in driver.warnings[0]
    assert driver.lane.next_offset == 40


@pytest.mark.parametrize("model", [make, lambda: auc.PairOGD(seed=1)])
@pytest.mark.parametrize("lost", [False, True])
def test_a_register_of_another_format_is_refused_with_both_numbers(
    model: Callable[[], Any], lost: bool
) -> None:
    """It is another release's: whatever that has written, this one must not begin beside it."""
    driver = Driver(model)
    driver.feed(EVENTS[:20])
    driver.commit()
    if lost:
        driver.store.log, driver.store.snapshots = b"", {}
    fields = json.loads(driver.group.register or "")
    for other, named in ((2, "format 2"), (0, "format 0"), (None, "no format number")):
        changed = {**fields, "format": other, "new": [1]}
        if other is None:
            del changed["format"]
        driver.group.register = json.dumps(changed)
        refused(driver, f"register has {named}, this release reads 1", UnusableLogError)


# ---- what an operator accepts ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["register", "rollback", "span"])
def test_what_is_accepted_is_charged_and_reported(kind: Any) -> None:
    driver = Driver(lambda: make(forks=20), snapshot_every=100)
    driver.feed(EVENTS[:10])
    driver.commit()  # with the first snapshot
    old = copy.deepcopy(driver.store)
    driver.feed(EVENTS[10:60])
    driver.commit()
    driver.feed(EVENTS[60:65])
    known = driver.lane._log.known
    assert known is not None
    assert known.tip is not None
    slots, window = known.tip.slots, 20
    if kind == "register":
        driver.group = CommittedOffset()
        expected = -(-(65 - slots + window) // window)
    elif kind == "rollback":
        driver.store = old
        expected = -(-(65 - 10 + window) // window)
    else:
        driver.topic[15] = type(driver.topic[15])(15, driver.topic[20].value)
        # The start that is refused charges nothing: it has released nothing.
        expected = -(-(65 - 10 + window) // window)
    with pytest.raises(StreampairError, match="state recover"):
        driver.start()
    driver.override(kind, "2026-11-22")
    driver.start()
    assert charged(driver) == expected
    report = driver.lane.privacy
    assert "vouched by the operator on 2026-11-22" in str(report)
    assert report.mu_spent <= report.mu_budget
    driver.catch_up()
    driver.commit()
    driver.start()
    assert charged(driver) == expected
    assert "vouched by the operator on 2026-11-22" in str(driver.lane.privacy)


def test_what_the_plan_has_no_room_for_is_not_accepted() -> None:
    driver = worked(every=100)
    driver.group = CommittedOffset()
    store = copy.deepcopy(driver.store)
    with pytest.raises(PrivacyError, match="the plan has set aside 0"):
        driver.override("register", "2026-11-22")
    assert driver.store == store


# ---- a log of another format


@pytest.mark.parametrize(("written", "reads"), [(1, 2), (2, 1)])
def test_a_log_of_another_format_is_refused_and_its_own_release_goes_on(
    written: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_log, "LOG_FORMAT", written)
    driver, whole = worked(), worked()
    driver.crash()
    frames, group = driver.store.read(), copy.copy(driver.group)
    monkeypatch.setattr(lane_log, "LOG_FORMAT", reads)
    with pytest.raises(
        UnusableLogError, match=f"the log has format {written}, this release reads {reads}.*wrote it"
    ):
        driver.start()
    assert (driver.store.read(), driver.group) == (frames, group)  # nothing was written
    monkeypatch.setattr(lane_log, "LOG_FORMAT", written)
    driver.start()
    driver.catch_up()
    assert contradictions(driver) == 0
    assert views(driver) == views(whole)


def test_a_log_of_a_newer_format_with_other_entries_is_refused_by_its_number() -> None:
    """Its entries cannot be read, and that is no damage."""
    driver = worked()
    first = Chain.frames(driver.store.log)[0]
    body = msgspec.msgpack.decode(first[52:-32])
    genesis = body.get("genesis", body)
    genesis |= {"format": 7, "new": [1]}
    changed = msgspec.msgpack.encode({**body, "type": "a new kind"})
    head = first[:8] + len(changed).to_bytes(4, "big") + first[12:52]
    driver.store.log = head + changed + first[-32:] + driver.store.log[len(first) :]
    refused(driver, "the log has format 7, this release reads 1", UnusableLogError)
