"""Since when an account runs: the date of its first record, whatever is in it, and through every restart."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from harness.driver import decode_json

from streampair import auc
from streampair.engine import ExternalState, Lane, LaneId, LoggedLane, Record
from streampair.engine.snapshot import pack, unpack
from streampair.privacy import NoiseKey

FIRST = 1_700_000_000_000  # milliseconds
OPTIONS = {"epsilon": 1.0, "delta": 1e-4, "horizon": 400, "warmup": 10, "features": ["a"]}


def record(i: int, value: bytes | None = None, *, dated: bool = True) -> Record:
    good = json.dumps({"x": {"a": i % 7 / 7}, "y": i % 2 == 0}).encode()
    return Record(i, good if value is None else value, None, FIRST + 1000 * i if dated else 0)


def lane() -> LoggedLane:
    learner = auc.PairFTRL(**OPTIONS, noise_key=NoiseKey(bytes(range(32))))
    return LoggedLane(learner, decode_json, LaneId("a", "t", 0))


def started(log: bytes = b"", snapshot: bytes | None = None, end: int = 0) -> tuple[LoggedLane, bytes]:
    made = lane()
    made.read(log)
    appends, _ = made.start(ExternalState(end=end, registers=False), snapshot)
    return made, log + b"".join(frame for append in appends for frame in append.frames)


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("first", [None, b"bad", b'{"x": {"a": "text"}, "y": true}', b'{"x": {"a": 1}}'])
def test_it_is_the_date_of_the_first_record_whatever_is_in_it(first: bytes | None, size: int) -> None:
    made, _ = started()
    assert made.gauges().since is None
    records = [record(0, first), *(record(i) for i in range(1, 40))]
    for start in range(0, 40, size):
        made.process(records[start : start + size])
        made.commit()
        made.committed()
        assert made.gauges().since == FIRST / 1000


@pytest.mark.parametrize("date", [0, -1, 2**62])
def test_a_source_without_dates_tells_none(date: int) -> None:
    """Producers set what they like; a date that no calendar has is none."""
    made, _ = started()
    made.process([Record(0, record(0).value, None, date)])
    made.commit()
    made.committed()
    made.process([record(1)])
    assert made.gauges().since is None


@pytest.mark.parametrize("saved", [True, False], ids=["snapshot", "replay"])
def test_a_restart_knows_it(saved: bool) -> None:
    made, log = started()
    line = made.process([record(i) for i in range(20)]).line
    log += b"" if line is None else b"".join(line.frames)
    commit = made.commit(snapshot=saved)
    made.committed()
    log += b"".join(commit.frames)
    again, _ = started(log, commit.snapshot, end=20)
    if again.replay_until is not None:
        again.replay([record(i) for i in range(20)])
        again.replayed()
    again.process([record(20)])
    assert again.gauges().since == FIRST / 1000


def test_a_snapshot_of_a_release_that_did_not_write_it_down_tells_none() -> None:
    """And not the date of the first record that this process took."""

    def plain() -> Lane:
        return Lane(auc.PairFTRL(**OPTIONS, seed=1), decode_json, LaneId("a", "t", 0))

    made = plain()
    made.process([record(i) for i in range(20)])
    data = unpack(made.snapshot(clean=True))
    assert data["privacy"].pop("since") == FIRST
    again = plain()
    again.restore(pack(data))
    again.process([record(20)])
    assert again.gauges().since is None


def test_it_is_no_part_of_what_is_learned() -> None:
    scores = []
    for dated in (True, False):
        made, _ = started()
        output = made.process([record(i, dated=dated) for i in range(40)])
        scores.append([scored.score for scored in output.scores])
        report: Any = made.gauges().privacy
        assert "since" not in {field.name for field in dataclasses.fields(report)}
    assert scores[0] == scores[1]
