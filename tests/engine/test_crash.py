"""A lane that dies anywhere and starts from its log ends where an uninterrupted one ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from harness import lanes
from harness.driver import CommittedOffset, Died, Driver, MemoryStore, decode_json
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair.engine import LaneId
from streampair.engine.lane import Lane, Record, Scored
from streampair.errors import SnapshotError
from streampair.privacy import NoiseKey

JUNK: list[bytes | None] = [
    b"\xff\xfe",
    b"",
    b"[1, 2]",
    b'{"x": {"a": "text", "b": 1, "c": 1}, "y": true}',
    b'{"x": {"a": 1e999, "b": 0, "c": 0}, "y": true}',
    None,
]


def keyed() -> Any:
    """A private learner whose replay is the same bytes."""
    return lanes.auc.PairFTRL(
        epsilon=1.0, delta=1e-4, horizon=40, features=list("abc"), noise_key=NoiseKey(bytes(32)), warmup=0
    )


def mixed(n: int, seed: int = 0) -> list[Any]:
    """A stream with a bad event at every fifth place and one without label at every seventh."""
    events: list[Any] = list(lanes.stream(n, seed))
    for i in range(0, n, 7):
        events[i] = (events[i][0], None)
    for i in range(4, n, 5):
        events[i] = JUNK[(i // 5) % len(JUNK)]
    return events


def run(driver: Driver, events: list[Any]) -> tuple[list[Scored], Any]:
    output = driver.feed(events)
    return output.scores, lanes.content(driver.lane.snapshot())


@pytest.mark.parametrize("name", lanes.MODELS)
def test_a_crash_at_any_point_changes_nothing(name: str) -> None:
    """Each commit holds a snapshot here."""
    events = mixed(32)
    expected, final = run(Driver(lanes.MODELS[name], **lanes.options(name)), events)
    assert {scored.outcome for scored in expected} == {"learned", "scored", "dead_letter", "tombstone"}
    for point in range(len(events) + 1):
        driver = Driver(lanes.MODELS[name], **lanes.options(name))
        before = driver.feed(events[:point]).scores
        driver.commit()
        driver.feed(events[point : point + 3])  # lost in the crash
        driver.crash()
        after = driver.catch_up().scores + driver.feed(events[point + 3 :]).scores
        assert before + after == expected
        assert lanes.content(driver.lane.snapshot()) == final


@pytest.mark.parametrize("name", lanes.MODELS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_batches_and_crashes_in_any_pattern_change_nothing(name: str, data: st.DataObject) -> None:
    events = mixed(24, seed=data.draw(st.integers(0, 3)))
    expected, final = run(Driver(lanes.MODELS[name], **lanes.options(name)), events)
    every = data.draw(st.integers(1, 4))
    driver = Driver(lanes.MODELS[name], snapshot_every=every, **lanes.options(name))
    scores: dict[int, Scored] = {}
    start = 0
    while start < len(events):
        size = data.draw(st.integers(1, 9))
        output = driver.feed(events[start : start + size])
        start += size
        scores |= {scored.offset: scored for scored in output.scores}
        what = data.draw(st.sampled_from(["go on", "commit", "crash"]))
        if what == "commit":
            driver.commit()
        elif what == "crash":
            driver.crash()
            scores |= {scored.offset: scored for scored in driver.catch_up().scores}
    assert list(scores.values()) == expected
    assert lanes.content(driver.lane.snapshot()) == final


@pytest.mark.parametrize("name", lanes.MODELS)
def test_a_silent_replay_from_an_older_snapshot_changes_nothing(name: str) -> None:
    """Commits without a snapshot: the way from the last one is gone again, and nothing comes out of it."""
    events = mixed(32)
    expected, final = run(Driver(lanes.MODELS[name], **lanes.options(name)), events)
    driver = Driver(lanes.MODELS[name], snapshot_every=100, **lanes.options(name))
    emitted_scores: list[Scored] = []
    for offset in range(0, 32, 5):
        emitted_scores += driver.feed(events[offset : offset + 5]).scores
        driver.commit()
        given_before = len(driver.scores)
        driver.crash()
        assert driver.lane.next_offset == len(driver.topic)
        assert len(driver.scores) == given_before
        assert driver.catch_up().scores == []
    assert emitted_scores == expected
    assert lanes.content(driver.lane.snapshot()) == final
    # With steps that nobody vouches for each commit has a snapshot all the same.
    ours = name in ("PairOGD", "ranking.PairOGD", "metric.PairOGD")
    assert (driver.lane.records_to_replay > 0) == ours


@pytest.mark.parametrize("change", ["score", "label"])
def test_a_replay_that_comes_out_otherwise_is_refused(change: str) -> None:
    """The mutant: what is in the topic now is not what was learned."""
    driver = Driver(lanes.pair_ogd, snapshot_every=100, **lanes.OPTIONS)
    driver.feed(lanes.stream(10))
    driver.commit(snapshot=True)
    driver.feed(lanes.stream(10, seed=1))
    driver.commit()
    kept = driver.topic[12]
    x, y = lanes.stream(10, seed=1)[2]
    other = Driver(lanes.pair_ogd)
    other.feed([({**x, "a": x["a"] + 1e-6}, y) if change == "score" else (x, not y)])
    driver.topic[12] = Record(12, other.topic[0].value)
    with pytest.raises(SnapshotError, match=r"other scores than the last commit has.*--skip-span"):
        driver.crash()
    driver.topic[12] = kept
    driver.crash()
    assert driver.lane.next_offset == 20


@pytest.mark.parametrize("name", ["PairOGD", "StandardScaler|LogisticRegression"])
@pytest.mark.parametrize("every", [1, 2])
def test_death_at_any_durable_step_changes_nothing(name: str, every: int) -> None:
    """In a first start, in later ones, and in a commit: between any two things that reach the disk."""
    events = mixed(24)
    options = lanes.options(name)
    expected, final = run(Driver(lanes.MODELS[name], **options), events)
    deaths = 0
    for point in range(4):
        driver = Driver(lanes.MODELS[name], snapshot_every=every, **options)
        driver.store, driver.group = MemoryStore(), CommittedOffset()  # nothing has ever been started
        scores: dict[int, Scored] = {}
        for life in range(100):
            try:
                driver.start(die_after=point + life)
                driver.catch_up()
                while len(driver.topic) < len(events):
                    driver.commit()
                    driver.feed(events[len(driver.topic) : len(driver.topic) + 6])
                driver.commit()
                break
            except Died:
                deaths += 1
        driver.start()
        assert driver.lane.next_offset == len(events)
        for scored in driver.scores:
            assert scores.setdefault(scored.offset, scored) == scored
        assert [scores[offset] for offset in range(len(events))] == expected
        assert lanes.content(driver.lane.snapshot()) == final
    assert deaths > 20


def test_the_comparison_sees_a_forgotten_event() -> None:
    """The mutant: a lane that skips one event after the crash does not pass for the uninterrupted one."""
    events = lanes.stream(30)
    _, final = run(Driver(lanes.pair_ogd, **lanes.OPTIONS), events)
    driver = Driver(lanes.pair_ogd, **lanes.OPTIONS)
    driver.feed(events[:10])
    driver.commit()
    driver.crash()
    driver.topic.append(driver.topic[0])  # seen before: ignored, so one event is missing from the model
    driver.feed(events[11:])
    assert lanes.content(driver.lane.snapshot()) != final


def test_records_seen_before_are_ignored_and_counted() -> None:
    driver = Driver(lanes.pair_ogd, **lanes.OPTIONS)
    driver.feed(lanes.stream(10))
    before = driver.lane.learner.to_state()
    output = driver.lane.process(driver.topic[3:])
    assert output.scores == []
    assert output.next_offset == 10
    assert driver.lane.gauges().events["ignored"] == 7
    assert repr(driver.lane.learner.to_state()) == repr(before)
    again = driver.lane.process([driver.topic[9], *driver.topic[2:4]])
    assert again.scores == []


def test_gaps_in_the_offsets_are_fine() -> None:
    driver = Driver(lanes.pair_ogd, **lanes.OPTIONS)
    driver.feed(lanes.stream(10))
    straight = driver.lane.learner.to_state()
    gaps = Driver(lanes.pair_ogd, **lanes.OPTIONS)
    output = gaps.lane.process([Record(7 * r.offset + 5, r.value) for r in driver.topic])
    assert output.next_offset == 7 * 9 + 6
    assert repr(gaps.lane.learner.to_state()) == repr(straight)


def test_a_restarted_private_lane_says_what_it_can_vouch_for() -> None:
    """Without a log, nobody but the snapshot says how the run ended that it is from."""

    def lane() -> Lane:
        learner = lanes.auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=40, features=list("abc"))
        return Lane(learner, decode_json, LaneId("a", "t", 0))

    writer = Driver(lanes.pair_ogd)
    writer.feed(lanes.stream(20) + lanes.stream(25))
    for clean, kind in ((True, "holds"), (False, "unvouched")):
        first = lane()
        first.process(writer.topic[:20])
        again = lane()
        again.restore(first.snapshot(clean=clean))
        report = again.privacy
        assert report.kind == kind
        assert report.releases == 20
        assert again.process(writer.topic[20:]).next_offset == 45
        assert again.privacy.horizon_left == 0


def test_a_private_lane_with_a_log_vouches_for_itself() -> None:
    """The log says what was released: after a commit nothing was, so that a kill costs nothing."""
    for clean in (True, False):
        driver = Driver(lambda: lanes.auc.PairFTRL(epsilon=1.0, delta=1e-4, horizon=40, features=list("abc")))
        driver.feed(lanes.stream(20))
        driver.commit(clean=clean)
        driver.crash()
        report = driver.lane.privacy
        assert report.kind == "holds"
        assert report.releases == 20
        assert driver.lane.gauges().forks == 0
        driver.catch_up()
        assert driver.feed(lanes.stream(25)).next_offset == 45
        assert driver.lane.privacy.horizon_left == 0


def _with_a_gap(name: str, *, snapshot_before: bool) -> Driver:
    """A lane that has read to offset 12 and goes on at offset 20: the topic has lost what lies between."""
    driver = Driver(lanes.MODELS[name], snapshot_every=1000, **lanes.options(name))
    driver.feed(lanes.stream(8))
    driver.commit(snapshot=True)
    driver.feed(lanes.stream(4, seed=1))
    driver.commit(snapshot=snapshot_before)
    for offset, event in enumerate(lanes.stream(12, seed=2)):  # written while nobody reads
        driver.topic.append(Record(12 + offset, msgspec.json.encode({"x": event[0], "y": event[1]})))
    driver.first = 20
    return driver


@pytest.mark.parametrize("snapshot_before", [True, False])
@pytest.mark.parametrize("name", ["PairOGD", "PairFTRL"])
def test_a_kill_after_a_gap_in_the_topic_is_survived(
    name: str, snapshot_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the lane has learned since the gap is in the topic; what came before is in a snapshot."""
    monkeypatch.setitem(lanes.MODELS, "PairFTRL", keyed)
    driver = _with_a_gap(name, snapshot_before=snapshot_before)
    scores = driver.catch_up().scores
    assert [scored.offset for scored in scores] == [20, 21, 22, 23]
    driver.commit(snapshot=False)
    expected = lanes.content(driver.lane.snapshot())
    driver.crash()
    assert driver.lane.next_offset == 24
    assert lanes.content(driver.lane.snapshot()) == expected
    # Once more, with a replay over the events behind the snapshot.
    driver.feed(lanes.stream(5, seed=3))
    driver.commit(snapshot=False)
    expected = lanes.content(driver.lane.snapshot())
    driver.crash()
    assert lanes.content(driver.lane.snapshot()) == expected


def test_a_replay_begins_at_the_first_record_behind_the_snapshot() -> None:
    """Behind a snapshot there may be markers alone, which retention may take with what lies before them."""
    driver = Driver(lanes.pair_ogd, snapshot_every=1000, **lanes.OPTIONS)
    driver.feed(lanes.stream(8))
    driver.commit(snapshot=True)
    later = [Record(r.offset + 4, r.value) for r in driver.topic[:6]]
    driver.topic += [
        Record(offset, None) for offset in range(8, 12)
    ]  # stand for markers: they are never read
    driver.lane.process([Record(r.offset + 8, r.value) for r in later])
    driver.topic += [Record(r.offset + 8, r.value) for r in later]
    driver.commit(snapshot=False)
    expected = lanes.content(driver.lane.snapshot())
    driver.first = 12
    driver.crash()
    assert lanes.content(driver.lane.snapshot()) == expected
    driver.first = 13
    with pytest.raises(SnapshotError, match=r"from offset 12 to 13 are gone.*input\.payloads_change"):
        driver.crash()


def test_a_refused_replay_has_written_nothing() -> None:
    driver = Driver(lanes.pair_ogd, snapshot_every=1000, **lanes.OPTIONS)
    driver.feed(lanes.stream(40))
    driver.commit(snapshot=True)
    driver.feed(lanes.stream(4, seed=1))
    driver.commit(snapshot=False)
    log, register = driver.store.log, driver.group.register
    driver.topic[41] = Record(41, driver.topic[3].value)
    for _ in range(2):
        with pytest.raises(SnapshotError, match="other scores than the last commit has"):
            driver.crash()
        assert (driver.store.log, driver.group.register) == (log, register)
