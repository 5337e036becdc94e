"""Slow models are computed beside the lane, and adopted where its log says: replays give the same scores."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from harness import lanes
from harness.driver import CommittedOffset, Died, Driver, MemoryStore, decode_json

from streampair import auc, models
from streampair.engine import Record
from streampair.engine.fits import Fits
from streampair.engine.wal import Chain, ModelEntry, SnapshotEntry
from streampair.errors import PrivacyError, SnapshotError
from streampair.privacy.mechanisms import dp_forest
from streampair.privacy.mechanisms.dp_forest import DPForestState

KEY = bytes(range(32))
WARMUP, HORIZON, END = 30, 130, 160


def _events() -> Iterator[Any]:
    """Records of which a linear score learns nothing, so that leaves take part; some have no label."""
    rng = random.Random(4)
    for number in range(END):
        x = {name: round(rng.uniform(-1.0, 1.0), 2) for name in "abc"}
        yield x, None if number % 13 == 5 else (x["a"] > 0.0) != (x["b"] > 0.0)


EVENTS = list(_events())


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the synthetic sample, so that a model takes milliseconds."""
    monkeypatch.setattr(dp_forest, "_ROWS", (128, 256))


def forest(**options: Any) -> Any:
    parameters: dict[str, Any] = {"features": list("abc"), "noise_key": KEY, **options}
    return auc.PrivateForest(24.0, 1e-3, HORIZON, warmup=WARMUP, trees=3, depth=2, **parameters)


class Later:
    """A `submit` whose models are done after so many looks: what a thread does, without its clock."""

    def __init__(self, looks: Iterable[int]) -> None:
        self._looks = itertools.cycle(looks)
        self.begun = 0

    def __call__(self, compute: Callable[[], Any]) -> Any:
        self.begun += 1
        return _Pending(compute, next(self._looks))


class _Pending:
    def __init__(self, compute: Callable[[], Any], looks: int) -> None:
        self.result, self._looks = compute, looks

    def done(self) -> bool:
        self._looks -= 1
        return self._looks < 0


@dataclasses.dataclass
class Recorder(MemoryStore):
    """A store that remembers all frames, also those before a snapshot."""

    frames: list[bytes] = dataclasses.field(default_factory=list)

    def append(self, append: Any) -> None:
        self.frames += append.frames
        super().append(append)

    @property
    def entries(self) -> list[ModelEntry]:
        return [
            entry for frame in self.frames for entry in Chain.peek(frame) if isinstance(entry, ModelEntry)
        ]

    @property
    def adopted(self) -> dict[int, int]:
        """Release of each adoption, by the offset of the first record that was scored with it."""
        return {entry.first: entry.release for entry in self.entries if entry.release is not None}


def driver_of(submit: Any, **options: Any) -> Driver:
    driver = Driver(options.pop("make", forest), store=Recorder(), submit=submit, **options)
    assert isinstance(driver.store, Recorder)
    return driver


def reference(adopted: dict[int, int]) -> list[float]:
    """Scores of all events, one after the other, with the models that were adopted before these offsets."""
    driver = Driver(forest)
    driver.lane.process([])
    lane, learner = driver.lane, driver.lane.learner
    learner.defer_fits(list(adopted.values()))
    writer = Driver(lanes.pair_ogd)
    writer.feed(EVENTS)
    scores = []
    for record in writer.topic:
        if record.offset in adopted:
            fit = learner.fit_due(adopted[record.offset])
            learner.adopt(fit.release, fit.compute())
        event, origin = decode_json(record), lane._batch._origins.of(record)
        scores.append(learner.score_one(event.x))
        if event.y is None:
            learner.learn_null(origin)
        else:
            learner.learn_one(event.x, event.y, origin)
    return scores


def scores_by_offset(driver: Driver) -> list[float]:
    """The scores that have left, by offset; each of an offset must be the same."""
    found: dict[int, float] = {}
    for scored in driver.scores:
        assert scored.score is not None
        assert found.setdefault(scored.offset, scored.score) == scored.score
    assert sorted(found) == list(range(END))
    return [found[offset] for offset in range(END)]


def work(driver: Driver, sizes: Iterable[int], die_after: int | None = None) -> int:
    """Process all events in batches of these sizes, committing after four; returns the number of deaths."""
    batches, deaths = itertools.cycle(sizes), 0
    driver.die_after = die_after
    while (driver.lane.next_offset or 0) < END:
        try:
            driver.catch_up(batch=2)  # what was read before a death: in other batches
            for _ in range(4):
                done, known = driver.lane.next_offset or 0, len(driver.topic)
                driver.feed(EVENTS[known : done + next(batches)])
            driver.commit()
        except Died:
            deaths += 1
            driver.start(die_after=None if die_after is None else die_after + 3 * deaths)
    return deaths


# ---- the learner -----------------------------------------------------------------------------------------


def test_an_adopted_model_is_the_one_that_is_computed_when_it_is_read() -> None:
    eager, deferred = forest(), forest()
    deferred.defer_fits()
    before, changes, with_leaves = deferred.score_one(EVENTS[0][0]), 0, 0
    for number, (x, y) in enumerate(EVENTS):
        for learner in (eager, deferred):
            learner.learn_null() if y is None else learner.learn_one(x, y)
        probe = EVENTS[(7 * number) % END][0]
        fit = deferred.fit_due()
        if fit is not None:
            changes += eager.score_one(EVENTS[0][0]) != before
            assert deferred.score_one(EVENTS[0][0]) == before
            for learner in (eager, deferred):  # it is a function of a copy
                learner.learn_one(*EVENTS[1])
            model = fit.compute()
            if deferred.fit_due().release == fit.release:
                deferred.adopt(fit.release, model)
                assert deferred.fit_due() is None
                with_leaves += bool(deferred.run.state.average[3:].any())
        if deferred.fit_due() is None:
            assert deferred.score_one(probe) == eager.score_one(probe)
            assert deferred.predict_proba_one(probe) == eager.predict_proba_one(probe)
            before = deferred.score_one(EVENTS[0][0])
    assert changes > 10
    assert with_leaves > 2


def test_a_computation_knows_the_releases_of_its_time_alone() -> None:
    eager, deferred = forest(), forest()
    deferred.defer_fits()
    found: dict[int, tuple[Any, Any, Any]] = {}
    for x, y in EVENTS:
        for learner in (eager, deferred):
            learner.learn_null() if y is None else learner.learn_one(x, y)
        fit = deferred.fit_due()
        if fit is not None and fit.release not in found:
            found[fit.release] = fit, eager.run.weights.copy(), eager.run.link
    assert len(found) > 10
    for fit, weights, link in found.values():
        computed = fit.compute()
        assert (computed[0] == weights).all()
        assert computed[1] == link


def test_a_state_without_the_newest_model_goes_on() -> None:
    """With the model of an earlier release that is being computed; and in a learner that does not defer."""
    learner = forest()
    learner.defer_fits()
    rows, start, fit = [row for row in EVENTS if row[1] is not None], 0, None
    while fit is None:
        learner.learn_one(*rows[start])
        start, fit = start + 1, learner.fit_due()
    while learner.fit_due().release < fit.release + 2:
        learner.learn_one(*rows[start])
        start += 1
    saved = learner.to_state()
    again, eager = forest(), forest()
    again.defer_fits()
    for other in (again, eager):
        other.load_state(saved)
    assert again.score_one(rows[0][0]) == learner.score_one(rows[0][0])
    for release in (fit.release, fit.release + 2):
        for other in (learner, again):
            due = other.fit_due(release)
            other.adopt(release, due.compute())
        assert again.score_one(rows[0][0]) == learner.score_one(rows[0][0])
    assert learner.fit_due(fit.release) is None
    assert eager.score_one(rows[0][0]) == learner.score_one(rows[0][0])


def test_quick_models_are_not_deferred() -> None:
    learner = auc.PairFTRL(warmup=10, features=list("abc"), noise_key=KEY)
    learner.defer_fits()
    for x, y in EVENTS[:80]:
        learner.learn_null() if y is None else learner.learn_one(x, y)
    assert learner.fit_due() is None
    assert learner.score_one(EVENTS[0][0]) != 0.0


def test_an_export_does_not_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = forest()
    learner.defer_fits()
    for x, y in EVENTS:
        learner.learn_null() if y is None else learner.learn_one(x, y)
    assert learner.fit_due() is not None

    def refuse(state: object) -> None:
        raise AssertionError

    monkeypatch.setattr(DPForestState, "_compute_model", refuse)
    models.dumps(learner)
    learner.to_state()


# ---- the lane --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("looks", [(0,), (1, 3, 0), (4,), (10**9,)])
def test_scores_are_those_of_the_models_that_the_log_names(looks: tuple[int, ...]) -> None:
    submit = Later(looks)
    driver = driver_of(submit, snapshot_every=3)
    work(driver, (3, 1, 5))
    adopted = driver.store.adopted
    assert scores_by_offset(driver) == reference(adopted)
    assert len(adopted) >= {0: 10, 1: 10, 4: 5, 10**9: 0}[looks[0]]
    assert submit.begun - 1 <= len(adopted) <= submit.begun


def test_without_a_thread_the_next_batch_has_the_model() -> None:
    driver = driver_of(None)
    driver.feed(EVENTS[:100])
    assert driver.store.entries[-1].end == 100
    driver.feed(EVENTS[100:101])
    assert list(driver.store.adopted) == [100]
    assert driver.lane.learner.fit_due() is None


def test_a_newer_release_does_not_replace_a_model_that_is_computed() -> None:
    driver = driver_of(Later([2, 10**9]))
    driver.feed(EVENTS[:60])
    first = driver.lane.learner.fit_due().release
    driver.feed(EVENTS[60:70])
    driver.feed(EVENTS[70:80])
    assert driver.store.adopted == {}
    driver.feed(EVENTS[80:90])
    assert driver.store.adopted == {80: first}
    assert driver.lane.learner.fit_due().release > first + 1


@pytest.mark.parametrize("every", [1, 3, 1000])
@pytest.mark.parametrize("sizes", [(7, 2), (1, 11, 4)])
def test_death_at_any_durable_step_changes_no_score(every: int, sizes: tuple[int, ...]) -> None:
    deaths = odd = 0
    for step in range(0, 32, 3 if every == 3 else 8):
        driver = driver_of(Later((1, 3, 0)), snapshot_every=every)
        deaths += work(driver, sizes, step)
        adopted = driver.store.adopted
        assert scores_by_offset(driver) == reference(adopted)
        assert driver.lane.gauges().forks == 0
        odd += sum(offset % 2 for offset in adopted)
        driver.crash()  # and the replay of all that is behind the last snapshot
        assert driver.lane.next_offset == END
    assert deaths > 10
    assert odd > 4


def test_a_snapshot_holds_what_an_earlier_release_needs() -> None:
    """It is made while the model of an earlier release is computed, which is adopted after it."""
    driver = driver_of(Later([3]), snapshot_every=1000)
    needed: set[int] = set()
    while not needed:
        known = len(driver.topic)
        driver.feed(EVENTS[known : known + 3])
        needed = set(map(int, driver.lane.learner.run.state.to_state().get("unfitted", ())))
    driver.commit(snapshot=True)
    before = set(driver.store.adopted)
    for start in range(len(driver.topic), 120, 3):
        driver.feed(EVENTS[start : start + 3])
        driver.commit(snapshot=False)
    adopted = driver.store.adopted
    assert needed & {release for first, release in adopted.items() if first not in before}
    weights = driver.lane.learner.run.state.average.copy()
    driver.crash()
    assert driver.lane.next_offset == len(driver.topic)
    assert (driver.lane.learner.run.state.average == weights).all()


def test_a_snapshot_before_what_was_announced_keeps_its_models() -> None:
    """The next attempt commits in another place; the one after it repeats the scores all the same."""
    driver = driver_of(Later([1]), snapshot_every=1)
    for start in range(0, 100, 10):
        driver.feed(EVENTS[start : start + 10])
    driver.commit()
    for start in range(100, 120, 3):
        driver.feed(EVENTS[start : start + 3])
    announced = [entry for entry in driver.store.entries if entry.end > 100]
    assert any(entry.release is not None for entry in announced)
    driver.crash()
    assert driver.lane.next_offset == 100
    assert driver.lane.process(driver.topic[100:102]).line is None  # all of it is in the log
    driver.commit(snapshot=True)
    (kept,) = (entry for entry in Chain.peek(driver.store.log) if isinstance(entry, SnapshotEntry))
    assert kept.models == [entry for entry in announced if entry.end > 102]
    driver.crash()
    driver.catch_up(batch=4)
    driver.feed(EVENTS[len(driver.topic) :])
    assert scores_by_offset(driver) == reference(driver.store.adopted)


@pytest.mark.parametrize("move", [-1, 1])
def test_a_replay_that_adopts_elsewhere_is_refused(move: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeded fault."""
    driver = driver_of(Later([1]), snapshot_every=1000)
    for start in range(0, 100, 5):
        driver.feed(EVENTS[start : start + 5])
        driver.commit(snapshot=start == 30)
    follow = Fits.follow

    def elsewhere(fits: Fits, entries: Any, next_offset: int) -> None:
        follow(fits, entries, next_offset)
        fits._logged = [(first + move, release) for first, release in fits._logged]

    with monkeypatch.context() as patch:
        patch.setattr(Fits, "follow", elsewhere)
        with pytest.raises(SnapshotError, match="other scores than the last commit has"):
            driver.crash()
    driver.crash()
    assert driver.lane.next_offset == 100


def test_a_skipped_span_needs_no_models() -> None:
    driver = driver_of(Later([1]), snapshot_every=1000, make=lambda: forest(forks=4))
    for start in range(0, 100, 5):
        driver.feed(EVENTS[start : start + 5])
        driver.commit(snapshot=start == 60)
    driver.topic[80] = Record(80, b"{}")
    with pytest.raises(PrivacyError, match="the replay of slot"):
        driver.crash()
    driver.override("span", "2026-11-26")
    driver.start()
    known = driver.lane.log.known
    assert known is not None
    assert known.models == []
    driver.feed(EVENTS[100:])
    assert driver.lane.next_offset == END


def test_a_lane_that_cannot_replay_logs_no_models() -> None:
    driver = driver_of(Later([0]), make=lambda: forest(noise_key=None))
    work(driver, (5,))
    assert driver.store.entries == []
    assert driver.lane.learner.run.state.average.any()


def test_an_error_of_a_computation_stops_the_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(state: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(DPForestState, "_compute_model", fail)
    driver = driver_of(Later([0]))
    driver.feed(EVENTS[:60])
    with pytest.raises(ZeroDivisionError):
        driver.feed(EVENTS[60:61])
    with pytest.raises(Exception, match="in the middle of an earlier batch"):
        driver.lane.process(driver.topic[60:])


def test_a_group_that_is_new_starts_without_models() -> None:
    driver = driver_of(Later([0]))
    driver.store, driver.group = Recorder(), CommittedOffset()
    driver.start()
    work(driver, (4,))
    assert scores_by_offset(driver) == reference(driver.store.adopted)
