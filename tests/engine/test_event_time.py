"""Steps of River that learn with the time of an event."""

from __future__ import annotations

import datetime
from typing import Any

from river import compose, feature_extraction, preprocessing, stats, utils

from streampair import auc
from streampair.engine import Event, Lane, LaneId, Record
from streampair.errors import RecordError

TIMES = [0, 1, 2, 3, 62, 63, 90, 121, 122, 400]


def window(on: str) -> Any:
    period = datetime.timedelta(minutes=60)
    return feature_extraction.Agg(on=on, by="card", how=utils.TimeRolling(stats.Sum, period=period))


def event_of(i: int) -> tuple[dict[str, float], bool]:
    return {"amount": float(1 + i), "card": float(i % 2)}, i % 3 == 0


def make() -> Any:
    inner = compose.Pipeline(compose.Select("amount", "card"), window("amount"))
    return compose.Pipeline(
        (
            "features",
            compose.TransformerUnion(("sums", inner), ("counts", window("card")), compose.Select("amount")),
        ),
        ("scaler", preprocessing.StandardScaler()),
        ("learner", auc.PairOGD(seed=1)),
    )


def test_windows_of_time_are_those_of_river() -> None:
    reference, scores = make(), []
    for i, minute in enumerate(TIMES):
        x, y = event_of(i)
        scores.append(reference["learner"].score_one(reference._transform_one(x)[0]))
        reference.learn_one(x, y, t=datetime.datetime(1970, 1, 1) + datetime.timedelta(minutes=minute))

    def decode(record: Record) -> Event:
        if record.value == b"bad":
            raise RecordError("bad", fix="none", stage="features")
        return Event(*event_of(int(record.value or b"")))

    lane = Lane(make(), decode, LaneId("a", "t", 0), saving=None)
    records = [Record(2 * i, str(i).encode(), timestamp=60_000 * minute) for i, minute in enumerate(TIMES)]
    out = lane.process(records)
    assert [each.outcome for each in out.scores] == ["learned"] * len(TIMES)
    assert [each.score for each in out.scores] == scores


def test_a_rollback_learns_events_again_at_their_times() -> None:
    def decode(record: Record) -> Event:
        x, y = event_of(int(record.value or b""))
        if record.value == b"7":
            x["amount"] = "text"  # type: ignore[assignment]
        return Event(x, y)

    def lane() -> Lane:
        return Lane(make(), decode, LaneId("a", "t", 0), saving=None)

    records = [Record(i, str(i).encode(), timestamp=60_000 * minute) for i, minute in enumerate(TIMES)]
    with_bad, without = lane(), lane()
    out = with_bad.process(records)
    assert [each.offset for each in out.dead_letters] == [7]
    found = [each.score for each in out.scores if each.offset != 7]
    assert found == [each.score for each in without.process(records[:7] + records[8:]).scores]
