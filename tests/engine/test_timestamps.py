"""When models were released and forks charged: known after a restart, bounded, no part of what is learned."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.driver import decode_json

from streampair import auc, privacy
from streampair.engine import ExternalState, LaneId, LoggedLane, Record
from streampair.engine.snapshot import KEPT, Dates, rows_of
from streampair.privacy import NoiseKey

NOON = 1_700_000_000_000  # milliseconds


class Life:
    """A lane that is killed and started again, and what of it is durable."""

    def __init__(self, *, horizon: int | None = 400) -> None:
        self.log, self.snapshot = b"", None
        self.offset = self.stored = 0
        self.horizon = horizon
        self.lane: Any = None

    def start(self, **facts: Any) -> None:
        learner = auc.PairFTRL(
            1.0, 1e-4, self.horizon, warmup=10, mechanism=privacy.PairGradients(), features=["a"], forks=2,
            noise_key=NoiseKey(bytes(range(32))),
        )  # fmt: skip
        self.lane = LoggedLane(learner, decode_json, LaneId("a", "t", 0))
        self.lane.read(self.log)
        appends, _ = self.lane.start(ExternalState(end=self.offset, registers=False, **facts), self.snapshot)
        self.log += b"".join(frame for append in appends for frame in append.frames)
        if self.lane.replay_until is not None:
            self.lane.replay([self.record(i) for i in range(self.stored, self.offset)])
            self.lane.replayed()

    @staticmethod
    def record(i: int, key: int = 7) -> Record:
        return Record(i, json.dumps({"x": {"a": i % key / key}, "y": i % 2 == 0}).encode())

    def go(self, count: int, when: int, *, saved: bool = False, key: int = 7) -> None:
        line = self.lane.process([self.record(self.offset + i, key) for i in range(count)]).line
        self.log += b"" if line is None else b"".join(line.frames)
        commit = self.lane.commit(snapshot=saved, when=when)
        self.log += b"".join(commit.frames)
        self.lane.committed()
        self.offset += count
        if commit.snapshot is not None:
            self.snapshot, self.stored = commit.snapshot, self.offset

    @property
    def dates(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        gauges = self.lane.gauges()
        return [row[:2] for row in gauges.release_dates], list(gauges.fork_dates)


@pytest.mark.parametrize("saved", [True, False], ids=["snapshot", "replay"])
def test_a_restart_knows_when_models_were_released(saved: bool) -> None:
    life = Life()
    life.start()
    life.go(10, NOON, saved=True)  # the warm-up is a release too
    life.go(5, NOON + 1000, saved=saved)
    life.go(5, NOON + 2000)
    before = life.dates
    assert before[0] == [(NOON, 1), (NOON + 1000, 6), (NOON + 2000, 11)]
    life.start()
    assert life.dates == before
    assert [row[4] for row in life.lane.gauges().release_dates] == [10, 15, 20]
    life.go(2, NOON + 9000)
    assert life.dates[0] == [*before[0], (NOON + 9000, 13)]


def test_the_first_and_the_latest_are_kept() -> None:
    life = Life(horizon=None)
    life.start()
    for i in range(40):
        life.go(11, NOON + i)
    released, _ = life.dates
    assert len(released) == KEPT
    assert released[0] == (NOON, 2)
    assert released[1:] == [(NOON + i, 2 + 11 * i) for i in range(40 - KEPT + 1, 40)]
    life.start()
    assert life.dates[0] == released


def test_a_fork_is_dated_by_the_commit_behind_it() -> None:
    life = Life()
    life.start()
    life.go(12, NOON, saved=True)
    # What was released after the commit is released anew, of other records.
    line = life.lane.process([life.record(12 + i, 5) for i in range(3)]).line
    life.log += b"".join(line.frames)
    life.start()
    life.go(3, NOON + 5000)
    assert life.lane.gauges().forks == 1
    assert life.dates[1] == [(NOON + 5000, 1)]
    life.start()
    assert life.dates[1] == [(NOON + 5000, 1)]


def test_what_was_committed_without_a_date_never_gets_one() -> None:
    dates, restored = Dates(), Dates()
    report: Any = auc.PairFTRL(1.0, 1e-4, 100, seed=1).privacy.replace(releases=30)
    dates.note(0, report, 2, 60)
    restored.load({"releases": 30, "dates": json.loads(json.dumps(dates.to_state()))})
    for each in (dates, restored):
        each.note(NOON, report, 2, 60)
        assert (each.releases, each.forks) == ([], [])
        each.note(NOON + 1, report.replace(releases=31), 3, 61)
        assert [(*row[:2], row[4]) for row in each.releases] == [(NOON + 1, 31, 61)]
        assert each.forks == [(NOON + 1, 3)]


def test_the_first_fork_is_dated_where_nothing_was_before() -> None:
    dates = Dates()
    report: Any = auc.PairFTRL(1.0, 1e-4, 100, seed=1).privacy
    dates.note(NOON, report, 0, 5)
    restored = Dates()
    restored.load({"releases": 0, "dates": dates.to_state()})
    restored.note(NOON + 1, report, 1, 9)
    assert restored.forks == [(NOON + 1, 1)]


@pytest.mark.parametrize(
    "kept",
    [
        *(None, 3, "x", [], {}, {"releases": [[1]], "forks": []}, {"releases": 3, "forks": []}),
        {"releases": [[NOON, "a", 0.1, None, 1]], "forks": []},
        {"releases": [[-5, 1, 0.1, None, 1]], "forks": []},
        {"releases": [[NOON, 1, 0.1, "left", 1]], "forks": []},
    ],
)
def test_dates_that_cannot_be_read_are_as_if_never_written(kept: Any) -> None:
    assert rows_of(kept) == ([], [])


def test_without_a_clock_nothing_is_dated() -> None:
    life = Life()
    life.start()
    life.go(20, 0)
    assert life.dates == ([], [])


def test_they_are_no_part_of_what_is_learned() -> None:
    scores = []
    for when in (0, NOON):
        life = Life()
        life.start()
        life.go(20, when)
        scores.append([s.score for s in life.lane.process([life.record(20 + i) for i in range(20)]).scores])
        assert "dates" not in life.lane.privacy.details
    assert scores[0] == scores[1]
