"""Spans: no record is lost, and none comes twice, whenever a rebalance comes during a poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from streampair_connectors.kafka import Partition, ReadPositions, Span
from streampair_connectors.kafka.ordering import TopicOrder
from streampair_connectors.worker.lane_manager import OpenLane
from streampair_connectors.worker.sources import TopicSource

from streampair.engine import OrderedRecord
from streampair.engine.records import LABEL_LEARNED
from streampair.engine.source import Positions
from streampair.errors import SourceError

PLACE = Partition("t", 0)


def stored(offset: int) -> Any:
    return SimpleNamespace(
        offset=offset, value=b"%d" % offset, key=None, timestamp=1_000 + 100 * offset, headers=()
    )


class Client:
    """A consumer of one partition. It suspends before and after it drains, and `meanwhile` may seek there."""

    def __init__(self, end: int, most: int = 5) -> None:
        self.end, self.most, self.position = end, most, 0
        self.meanwhile: list[Callable[[], None]] = []

    async def _suspend(self) -> None:
        await asyncio.sleep(0)
        if self.meanwhile:
            self.meanwhile.pop(0)()

    async def poll(self, most: int | None, seconds: float) -> dict[Partition, Span]:
        await self._suspend()
        start = self.position
        self.position = min(start + self.most, self.end)
        found = Span(start, self.position, [stored(offset) for offset in range(start, self.position)])
        await self._suspend()
        return {PLACE: found} if found.records else {}

    def seek(self, partition: Partition, offset: int) -> None:
        self.position = offset

    def settled(self) -> dict[int, int]:
        return {0: 10**9} if self.position == self.end else {}

    def leaderless(self) -> set[int]:
        return set()


def lane() -> OpenLane:
    logged = SimpleNamespace(source=Positions(), next_offset=0, private=True, outcomes={})
    made: Any = SimpleNamespace(
        logged_lane=logged,
        source=logged.source,
        spans={0: (0, 1)},
        announced=[],
        store=SimpleNamespace(clock_ahead=None),
    )
    return made  # type: ignore[no-any-return]


def process(made: OpenLane, records: Sequence[Any]) -> None:
    """Take records, as a lane that learns each."""
    logged: Any = made.logged_lane
    logged.source.took(records)
    logged.next_offset += len(records)
    logged.outcomes["learned"] = logged.outcomes.get("learned", 0) + len(records)


def test_counts_agree_wherever_a_record_is() -> None:
    client, made = Client(end=23), lane()
    source = TopicSource(client, "t", 1)  # type: ignore[arg-type]
    source.begin(made)
    assert source.difference(made) is None

    async def body() -> None:
        found: Sequence[Any] = []
        while not found:
            found = list(await source.poll(4, 0.0))
            assert source.difference(made) is None  # some wait, some are ready, four are with the worker
        process(made, found[:2])
        assert source.difference(made) is None
        source.put_back(made, found[2:])
        assert source.difference(made) is None
        source.begin(made)  # counted from here on
        for _ in range(20):
            process(made, list(await source.poll(4, 0.0)))
            assert source.difference(made) is None

    asyncio.run(body())
    taken = made.logged_lane.outcomes["learned"]
    assert taken == 23
    made.logged_lane.outcomes["ignored"] = 5  # seen before: nothing that was taken
    assert source.difference(made) is None
    made.logged_lane.outcomes["scored"] = 1
    assert source.difference(made) == "the records taken exceed those with an outcome by -1"


def test_records_that_the_log_has_announced_count_as_read() -> None:
    made = lane()
    announced = [OrderedRecord(n, b"", partition=0, position=n) for n in range(3)]
    made.announced[:] = announced
    source = TopicSource(Client(end=3), "t", 1)  # type: ignore[arg-type]
    source.begin(made)
    assert source.difference(made) is None
    process(made, announced)
    assert source.difference(made) is None


def test_events_that_were_learned_early_have_no_outcome_when_they_are_due() -> None:
    made = lane()
    source = TopicSource(Client(end=0), "t", 1)  # type: ignore[arg-type]
    source.begin(made)
    due = [OrderedRecord(n, b"", partition=0, position=n, label=LABEL_LEARNED) for n in range(3)]
    made.logged_lane.source.took(due)  # type: ignore[union-attr]
    assert source.difference(made) is None


def test_a_record_that_is_gone_from_the_order_is_noticed() -> None:
    made, client = lane(), Client(end=5)
    source: Any = TopicSource(client, "t", 1)  # type: ignore[arg-type]
    source.begin(made)
    asyncio.run(source._read(0.0))
    source._order._queues[0].chunks.pop()
    assert source.difference(made) == (
        "of t/0 5 records were read (new), and 4 wait, 0 are ready and 0 were taken"
    )


def read(client: Client, source: TopicSource, count: int) -> list[int]:
    async def body() -> list[int]:
        found: list[int] = []
        for _ in range(10 * count):
            records = list(await source.poll(1000, 0.0))
            found += [record.position for record in records]  # type: ignore[attr-defined]
            if len(found) >= count:
                break
        return found

    return asyncio.run(body())


@pytest.mark.parametrize("end", [5, 23])
@pytest.mark.parametrize("suspensions", range(8))
@pytest.mark.parametrize("open_before", [False, True])
def test_a_lane_that_begins_inside_a_poll_gets_every_record(
    end: int, suspensions: int, open_before: bool
) -> None:
    client = Client(end)
    source = TopicSource(client, "t", 1)  # type: ignore[arg-type]
    if open_before:
        source.begin(lane())
    taken: list[int] = []

    def begin() -> None:
        taken.clear()
        source.begin(lane())

    client.meanwhile = [lambda: None] * suspensions + [begin]

    async def body() -> None:
        for _ in range(100):
            found = list(await source.poll(1000, 0.0))
            taken.extend(record.position for record in found)  # type: ignore[attr-defined]

    asyncio.run(body())
    assert taken == list(range(end))


def test_a_lane_that_is_closed_inside_a_poll_and_begun_again_gets_every_record() -> None:
    client = Client(end=5)  # all of it is in one poll: no later one shows that something is missing
    source = TopicSource(client, "t", 1)  # type: ignore[arg-type]
    source.begin(lane())
    client.meanwhile = [lambda: source.close(lane()), lambda: source.begin(lane())]
    assert read(client, source, 5) == [0, 1, 2, 3, 4]


def test_a_span_that_begins_elsewhere_is_sought_again() -> None:
    sought: list[tuple[Partition, int]] = []
    positions = ReadPositions(lambda partition, offset: sought.append((partition, offset)))
    positions.begin({PLACE: 3})
    assert positions.take({PLACE: Span(5, 8, [])}) == {}
    assert positions.take({PLACE: Span(0, 3, [])}) == {}
    assert sought == [(PLACE, 3), (PLACE, 3)]
    assert positions.dropped == 2
    assert positions.take({PLACE: Span(3, 9, [stored(4)]), Partition("t", 1): Span(0, 1, [])}) == {
        PLACE: Span(3, 9, [stored(4)])
    }
    assert positions.position(PLACE) == 9
    assert positions.records(PLACE) == 1


def test_three_spans_in_a_row_that_begin_elsewhere_are_an_error() -> None:
    positions = ReadPositions(lambda partition, offset: None)
    positions.begin({PLACE: 3})
    for _ in range(2):
        positions.take({PLACE: Span(5, 8, [])})
    positions.take({PLACE: Span(3, 5, [])})
    for _ in range(2):
        positions.take({PLACE: Span(6, 8, [])})
    with pytest.raises(SourceError, match=r"t/0 is to be read from offset 5.* 3 times in a row") as error:
        positions.take({PLACE: Span(6, 8, [])})
    assert error.value.retriable


def test_only_what_is_lost_moves_a_position_otherwise() -> None:
    positions = ReadPositions(lambda partition, offset: None)
    positions.begin({PLACE: 3})
    assert not positions.lost(PLACE, 7, 9)  # from before the last seek
    assert not positions.lost(Partition("t", 1), 3, 9)
    assert positions.position(PLACE) == 3
    assert positions.lost(PLACE, 3, 9)
    assert positions.take({PLACE: Span(9, 10, [])})


@pytest.mark.parametrize(
    "span",
    [
        Span(5, 8, [stored(5)]),
        Span(1, 8, [stored(3)]),
        Span(2, 8, [stored(1)]),
        Span(2, 8, [stored(8)]),
        Span(3, 4, []),
    ],
    ids=["gap", "twice", "record-before", "record-behind", "gap-without-records"],
)
def test_an_order_takes_no_gap_and_nothing_twice(span: Span) -> None:
    order = TopicOrder({0: (2, 0)})
    with pytest.raises(SourceError, match="partition 0 is in order up to offset 2, and what was read next"):
        order.push(0, span)
    order.push(0, Span(2, 8, [stored(4)]))
    assert order.position(0) == 8
    order.lost(0, 11)
    order.push(0, Span(11, 12, []))
