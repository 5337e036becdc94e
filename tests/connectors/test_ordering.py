"""The order over all partitions: a function of the topic, whatever the fetches bring first."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from streampair_connectors.kafka import Partition, Span
from streampair_connectors.kafka.consumer import partition_bytes
from streampair_connectors.kafka.ordering import BUCKET_MS, TopicOrder
from streampair_connectors.worker.sources import TopicSource

from streampair.engine import OrderedRecord
from streampair.engine.source import Positions, ranges_of


class Stored(NamedTuple):
    offset: int
    value: bytes | None
    key: bytes | None
    timestamp: int
    headers: tuple[()] = ()


def span(records: list[Stored], start: int = 0) -> Span:
    """What a poll has read from an offset on, at least to the last record."""
    return Span(start, records[-1].offset + 1 if records else start, records)


def test_partitions_share_an_answer() -> None:
    for partitions in (2, 16, 64, 128):
        assert partitions * partition_bytes(partitions) == 8 * 2**20
    assert partition_bytes(1) == 4 * 2**20
    assert partition_bytes(1000) == 2**16  # a batch of most producers, and more


def topic(coin: random.Random, partitions: int, records: int) -> dict[int, list[Stored]]:
    """Records with gaps between offsets, in the order of the append."""
    found: dict[int, list[Stored]] = {p: [] for p in range(partitions)}
    now, offsets = 1_000, dict.fromkeys(range(partitions), 0)
    for number in range(records):
        now += coin.choice((0, 0, 1, 3, 20, 400))
        partition = coin.randrange(partitions)
        found[partition].append(Stored(offsets[partition], b"%d" % number, None, now))
        offsets[partition] += coin.choice((1, 1, 2))
    return found


def expected(stored: dict[int, list[Stored]]) -> list[tuple[int, int]]:
    """The order by its definition."""
    where = [(r.timestamp // BUCKET_MS, p, r.offset) for p, records in stored.items() for r in records]
    return [(p, offset) for _, p, offset in sorted(where)]


def read(
    coin: random.Random,
    stored: dict[int, list[Stored]],
    order: TopicOrder,
    start: dict[int, tuple[int, int]],
    stop: int | None = None,
) -> list[OrderedRecord]:
    """Fetch at random, as brokers answer; what was taken, up to `stop` records."""
    now = min((r.timestamp for records in stored.values() for r in records), default=0)
    end = max((r.timestamp for records in stored.values() for r in records), default=0) + 1_000
    position = {p: start[p][0] for p in stored}
    taken: list[OrderedRecord] = []
    while now < end or any(r.offset >= position[p] for p, records in stored.items() for r in records):
        now = min(now + coin.choice((0, 10, 60)), end)
        partition = coin.choice(list(stored))
        visible = [r for r in stored[partition] if position[partition] <= r.offset and r.timestamp <= now]
        part = visible[: coin.choice((1, 3, 1_000))]
        read_next = span(part, position[partition])
        order.push(partition, read_next)
        position[partition] = read_next.end
        if len(part) == len(visible):
            order.reached(partition, sent_ms=now)
        taken += order.take(coin.choice((1, 5, 1_000)) if stop is None else max(stop - len(taken), 0))
        if stop is not None and len(taken) >= stop:
            return taken
    for p in stored:
        order.reached(p, sent_ms=end + 10_000)
    return taken + order.take(10**9 if stop is None else stop - len(taken))


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 5), st.integers(0, 60))
def test_the_order_is_a_function_of_the_topic(seed: int, partitions: int, records: int) -> None:
    stored = topic(random.Random(seed), partitions, records)
    for reader in range(2):
        start = dict.fromkeys(stored, (0, 0))
        taken = read(random.Random(f"{seed} {reader}"), stored, TopicOrder(start), start)
        assert [(r.partition, r.position) for r in taken] == expected(stored)
        assert [r.offset for r in taken] == list(range(len(taken)))


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 5), st.integers(1, 60), st.integers(0, 60))
def test_a_reader_that_starts_at_positions_goes_on_in_the_same_order(
    seed: int, partitions: int, records: int, stop: int
) -> None:
    stored = topic(random.Random(seed), partitions, records)
    start = dict.fromkeys(stored, (0, 0))
    before = read(random.Random(f"{seed} 0"), stored, TopicOrder(start), start, stop=min(stop, records))
    positions = start | {r.partition: (r.position + 1, r.clock) for r in before}
    after = read(random.Random(f"{seed} 1"), stored, TopicOrder(positions, len(before)), positions)
    assert [(r.partition, r.position) for r in [*before, *after]] == expected(stored)
    assert [r.offset for r in [*before, *after]] == list(range(records))


def test_ranges_name_the_records_in_order() -> None:
    stored, start = topic(random.Random(3), 4, 200), dict.fromkeys(range(4), (0, 0))
    taken = read(random.Random(4), stored, TopicOrder(start), start)
    again = []
    for part in ranges_of(taken):
        found = [r.offset for r in stored[part.partition] if part.first <= r.offset < part.end]
        assert len(found) == part.count
        again += [(part.partition, offset) for offset in found]
    assert again == [(r.partition, r.position) for r in taken]


def test_a_partition_that_shows_nothing_holds_the_others() -> None:
    order = TopicOrder({0: (0, 0), 1: (0, 0)})
    order.push(0, span([Stored(0, b"a", None, 1_000), Stored(1, b"b", None, 5_000)]))
    assert order.take(10) == []
    assert order.holding == (1,)
    order.reached(1, sent_ms=1_040)  # in the middle of the bucket
    assert order.take(10) == []
    order.reached(1, sent_ms=1_070)
    assert [r.value for r in order.take(10)] == [b"a"]


def test_timestamps_that_go_back_keep_the_order_of_offsets() -> None:
    order = TopicOrder({0: (0, 0)})
    order.push(0, span([Stored(n, b"%d" % n, None, t) for n, t in enumerate((5_000, 1_000, 9_000, 100))]))
    order.reached(0, sent_ms=20_000)
    assert [(r.position, r.clock) for r in order.take(10)] == [(0, 5_000), (1, 5_000), (2, 9_000), (3, 9_000)]


def test_a_timestamp_of_the_future_counts_as_its_arrival() -> None:
    order = TopicOrder({0: (0, 0), 1: (0, 0)})
    order.push(0, span([Stored(0, b"a", None, 10**15)]), newest_ms=2_000)
    order.push(1, span([Stored(0, b"b", None, 1_000)]), newest_ms=2_000)
    for partition in (0, 1):
        order.reached(partition, sent_ms=3_000)
    assert [(r.value, r.clock) for r in order.take(10)] == [(b"b", 1_000), (b"a", 2_000)]


def test_taking_ends_at_the_offset_that_the_caller_names() -> None:
    order = TopicOrder({0: (0, 0)})
    order.push(0, span([Stored(n, b"%d" % n, None, 1_000) for n in range(4)]))
    order.reached(0, sent_ms=5_000)
    for end, values in ((2, [b"0", b"1"]), (2, []), (4, [b"2", b"3"])):
        taken = order.take(9, before=lambda partition, offset, end=end: (10**6, end))
        assert [record.value for record in taken] == values


def test_what_waits_is_counted() -> None:
    order = TopicOrder({0: (0, 0)})
    order.push(0, span([Stored(0, b"12345", b"key", 1_000)]))
    assert order.waiting_bytes(0) == 8
    order.reached(0, sent_ms=5_000)
    order.take(1)
    assert order.waiting_bytes(0) == 0


def test_a_partition_that_is_set_aside_comes_back_in_the_open_bucket() -> None:
    order = TopicOrder({0: (0, 0), 1: (0, 0)})
    early = [Stored(0, b"early", None, 1_010), Stored(1, b"late", None, 9_000)]
    order.push(0, span([Stored(n, b"%d" % n, None, 1_000 + 100 * n) for n in range(10)]))
    assert order.take(99) == []
    assert order.holding == (1,)
    order.set_aside(1)
    assert order.holding == ()
    assert [record.value for record in order.take(99)] == [b"%d" % n for n in range(9)]
    order.push(1, span(early))
    order.push(0, span([Stored(10, b"10", None, 9_500)], 10))
    # Not before what was taken: in the bucket that was open, whatever its timestamp says.
    assert [record.value for record in order.take(99)] == [b"9", b"early"]
    assert order.holding == (1,)
    order.reached(1, sent_ms=10_000)
    assert [record.value for record in order.take(99)] == [b"late"]


def test_all_partitions_set_aside_wait() -> None:
    order = TopicOrder({0: (0, 0)})
    order.set_aside(0)
    assert order.take(9) == []
    order.push(0, span([Stored(0, b"a", None, 1_000), Stored(1, b"b", None, 2_000)]))
    assert [record.value for record in order.take(9)] == [b"a"]


def test_a_host_that_is_ahead_closes_no_bucket_too_soon() -> None:
    """The end of a partition was read at the host's time, and records up to the brokers' time are known."""
    now = 1_700_000_000_000

    class Reader:
        def __init__(self) -> None:
            record = SimpleNamespace(
                offset=0, value=b"a", key=None, timestamp=now, timestamp_type=1, headers=()
            )
            self.found = {Partition("t", 0): Span(0, 1, [record])}

        async def poll(self, most: int | None, seconds: float) -> dict[Partition, Span]:
            found, self.found = self.found, {}
            return found

        def settled(self) -> dict[int, int]:
            return {0: now + 5000, 1: now + 5000}  # by a host that is five seconds ahead

        def seek(self, partition: Partition, offset: int) -> None:
            pass

        def leaderless(self) -> set[int]:
            return set()

    def taken(ahead: int | None) -> int:
        source = TopicSource(Reader(), "t", 2)  # type: ignore[arg-type]
        logged = SimpleNamespace(source=Positions(), next_offset=0, private=True, outcomes={})
        source.begin(
            SimpleNamespace(  # type: ignore[arg-type]
                logged_lane=logged,
                source=logged.source,
                spans={0: (0, 1), 1: (0, 0)},
                announced=[],
                store=SimpleNamespace(clock_ahead=ahead),
            )
        )
        return len(asyncio.run(source.poll(10, 0.0)))

    assert taken(None) == 1
    assert taken(5000) == 0
