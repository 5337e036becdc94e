"""What counts as trouble, and what does not, on a clock that the test turns."""

from __future__ import annotations

import dataclasses

import pytest
from streampair_connectors.observability import progress as progress_module
from streampair_connectors.observability.progress import LIVE_AFTER, Progress


@dataclasses.dataclass
class Clock:
    """Seconds, as the test says."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "STUCK_SECONDS", 10.0)


def made(clock: Clock) -> Progress:
    return Progress("fraud", clock=clock)


def verdict(progress: Progress) -> tuple[bool, bool]:
    """Whether it is alive, and whether it is ready."""
    return not list(progress.problems(live=True)), not list(progress.problems())


WELL, NOT_READY, DEAD = (True, True), (True, False), (False, False)


def test_a_start_may_take_as_long_as_it_takes() -> None:
    clock = Clock()
    progress = made(clock)
    progress.state("starting")
    for clock.now in (0.0, 100.0, 3600.0):
        assert verdict(progress) == NOT_READY
    progress.state("running")
    assert verdict(progress) == WELL


def test_an_idle_topic_is_well() -> None:
    clock = Clock()
    progress = made(clock)
    progress.state("running")
    for clock.now in (0.0, 5.0, 1000.0):
        progress.seen("t", position=7, lag=0)
        assert verdict(progress) == WELL
    # and who wakes up has all of its time
    clock.now = 1001.0
    progress.seen("t", position=7, lag=90)
    clock.now = 1010.0
    assert verdict(progress) == WELL


def test_offsets_that_stand_still_while_events_wait() -> None:
    clock = Clock()
    progress = made(clock)
    progress.state("running")
    seen = []
    for second in range(41):
        clock.now = float(second)
        progress.seen("t", position=7, lag=10 * second)
        progress.seen("u", position=second, lag=1000)  # behind, and getting on
        progress.state("running")  # which whoever asks the broker says every other second
        seen.append(verdict(progress))
    # one event waits from second 1 on
    assert seen == [WELL] * 11 + [NOT_READY] * 20 + [DEAD] * 10
    (problem,) = progress.problems()
    assert (problem.app, problem.topic, problem.seconds) == ("fraud", "t", 39.0)
    assert problem.reason == "t has 400 events, none was committed for 39 s"
    assert "start it again" in problem.next_step
    progress.seen("t", position=8, lag=399)
    assert verdict(progress) == WELL


def test_a_lag_that_nobody_knows_is_no_trouble() -> None:
    clock = Clock()
    progress = made(clock)
    progress.state("running")
    for clock.now in (0.0, 1000.0):
        progress.seen("t", position=7, lag=None)
        assert verdict(progress) == WELL


def test_a_broker_that_does_not_answer() -> None:
    clock = Clock()
    progress = made(clock)
    progress.state("running")
    progress.state("waiting", "no broker answers", "start it")
    assert verdict(progress) == NOT_READY  # at once
    (problem,) = progress.problems()
    assert (problem.reason, problem.next_step) == ("no broker answers", "start it")
    clock.now = 10.0 * LIVE_AFTER
    assert verdict(progress) == DEAD
    progress.state("running")
    assert verdict(progress) == WELL


def test_a_broker_that_comes_and_goes_is_one_trouble() -> None:
    """A worker that connects, cannot commit and waits again is as dead as one that waits all the time."""
    clock = Clock()
    progress = made(clock)
    for clock.now in map(float, range(0, 40, 5)):
        progress.state("waiting", "no broker answers", "start it")
        progress.seen("t", position=7, lag=5)
        progress.state("running")
    progress.state("waiting", "no broker answers", "start it")
    assert verdict(progress) == DEAD
    progress.state("running")
    assert "the last trouble was: no broker answers" in next(progress.problems()).reason
    progress.committed()
    progress.seen("t", position=12, lag=0)
    progress.state("waiting", "no broker answers", "start it")
    assert verdict(progress) == NOT_READY


def test_partitions_that_move_are_well() -> None:
    clock = Clock()
    progress = made(clock)
    progress.state("running")
    progress.seen("t", position=7, lag=5)
    progress.state("rebalancing")
    progress.close_lane("t")
    clock.now = 1000.0
    assert verdict(progress) == WELL
    # another worker had it, and has committed
    progress.seen("t", position=90, lag=5)
    progress.state("running")
    assert verdict(progress) == WELL


def test_a_lane_that_is_opened_again_and_again_is_stuck() -> None:
    clock = Clock()
    progress = made(clock)
    progress.state("running")
    for clock.now in map(float, range(40)):
        progress.seen("t", position=7, lag=5)
        progress.close_lane("t")
    progress.seen("t", position=7, lag=5)
    assert verdict(progress) == DEAD


def test_an_end() -> None:
    clock = Clock()
    progress = made(clock)
    progress.state("running")
    progress.seen("t", position=7, lag=5)
    progress.state("stopping")
    clock.now = 1000.0
    assert verdict(progress) == NOT_READY
    progress.state("stopped")
    assert verdict(progress) == NOT_READY
    progress.state("failed", "the disk is full", "free some space")
    assert verdict(progress) == DEAD
    (problem,) = progress.problems(live=True)
    assert (problem.reason, problem.next_step) == ("the disk is full", "free some space")
