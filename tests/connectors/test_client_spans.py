"""Spans of the client itself: its fetcher and `getmany` are the real ones, and a script answers its fetches.

A fake of our wrapper never runs them. What a log can have (compaction, aborted transactions, markers, old
formats) is in the bytes of a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.record.default_records import DefaultRecordBatchBuilder, _DefaultRecordBatchBuilderPy
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka import Consumer, Partition, RangeReader, ReadPositions, RecordReader, Span
from streampair_connectors.kafka.consumer import FetchClock
from streampair_connectors.kafka.spans import note_spans
from streampair_connectors.worker.lane_manager import OpenLane
from streampair_connectors.worker.sources import TopicSource

from streampair.engine.source import Positions
from streampair.engine.wal import Range
from streampair.errors import StoreError

TOPIC = "t"
CONFIG = KafkaConfig(bootstrap_servers="localhost:1")
ABORT, COMMIT = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"


def batch(base: int, offsets: list[int], *, producer: int = -1, marker: bytes | None = None) -> bytes:
    """A batch in the current format: transactional with a producer, or a marker of its transaction."""
    builder = DefaultRecordBatchBuilder(2, 0, int(producer >= 0), producer, 0, 0, 1 << 20)
    for offset in offsets:
        stamp = 1_000 + 100 * offset
        builder.append(offset - base, stamp, marker, b"%d" % offset, [])
    data = bytearray(builder.build())
    data[0:8] = base.to_bytes(8, "big")
    if marker is not None:
        data[22] |= 0x20  # a control batch
        data[17:21] = calc_crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


class Latin1(str):
    """The name of a header, in an encoding that is not UTF-8."""

    def encode(self, encoding: str = "", errors: str = "") -> bytes:
        return super().encode("latin-1")


def latin1_batch(base: int, offsets: list[int], codec: int = 0) -> bytes:
    """A batch whose last record has a header with such a name."""
    builder = _DefaultRecordBatchBuilderPy(2, codec, 0, -1, 0, 0, 1 << 20)
    for offset in offsets:
        headers = [("id", b"\xff"), (Latin1("Größe"), None)] if offset == offsets[-1] else []
        builder.append(offset - base, 1_000 + 100 * offset, b"\xfe", b"\xfd" * 300, headers)
    data = bytearray(builder.build())
    data[0:8] = base.to_bytes(8, "big")
    return bytes(data)


def extended(data: bytes, last: int) -> bytes:
    """A batch whose last records, up to this offset, were removed by compaction."""
    changed = bytearray(data)
    changed[23:27] = (last - int.from_bytes(data[0:8], "big")).to_bytes(4, "big")
    changed[17:21] = calc_crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


def old_batch(magic: int, offsets: list[int], *, compressed: bool = False) -> bytes:
    """Messages in format 0 or 1."""
    builder = LegacyRecordBatchBuilder(magic, int(compressed), 1 << 20)
    for number, offset in enumerate(offsets):
        builder.append(number if compressed else offset, 1_000 + 100 * offset, None, b"%d" % offset)
    data = bytearray(builder.build())
    if compressed:  # the offset of the wrapper is that of its last message
        data[0:8] = offsets[-1].to_bytes(8, "big")
    return bytes(data)


class Log:
    """A partition of the script: batches with the offset behind each, and aborted transactions."""

    def __init__(self, *batches: tuple[bytes, int], aborted: tuple[tuple[int, int], ...] = ()) -> None:
        self.batches, self.aborted = batches, list(aborted)
        self.end = batches[-1][1]


class Broker:
    """Answers fetches: at most `most` batches each, after a few steps of the loop."""

    _metadata_max_age_ms = 1_000_000

    def __init__(self, logs: dict[int, Log], most: int = 1) -> None:
        self.logs, self.most = logs, most
        self._loop = asyncio.get_running_loop()
        self.cluster = SimpleNamespace(
            leader_for_partition=lambda tp: 0, broker_metadata=lambda node: object()
        )

    def force_metadata_update(self) -> asyncio.Future[None]:
        return self._loop.create_future()

    async def send(self, node: int, request: Any) -> Any:
        await asyncio.sleep(0)
        (wanted,) = [partitions for _, partitions in request.topics]
        if all(offset >= self.logs[number].end for number, offset, _ in wanted):
            await asyncio.sleep(0.002)  # as a broker that has nothing
        found = []
        for number, offset, _ in wanted:
            log = self.logs[number]
            data = b"".join([data for data, end in log.batches if end > offset][: self.most])
            found.append((number, 0, log.end, log.end, log.aborted, data))
        return SimpleNamespace(API_VERSION=4, topics=[(TOPIC, found)])


@contextlib.asynccontextmanager
async def scripted(logs: dict[int, Log], *, whole_topic: bool, most: int = 1) -> AsyncIterator[Consumer]:
    """Our consumer over the client's own fetcher, with these partitions assigned."""

    async def nothing(partitions: list[Partition]) -> None:
        pass

    made = Consumer(
        CONFIG,
        TOPIC,
        "g",
        on_revoked=nothing,
        on_assigned=nothing,
        on_lost=lambda *_: None,
        whole_topic=whole_topic,
    )
    client: Any = made._consumer
    options = {"isolation_level": "read_committed", "auto_offset_reset": "none", "fetcher_timeout": 0.01}
    client._fetcher = Fetcher(Broker(logs, most), client._subscription, **options)
    client._coordinator = SimpleNamespace(check_errors=lambda: None)
    made._prepare()
    made._fetches = FetchClock(client, 1)
    assign(made, logs)
    try:
        yield made
    finally:
        await client._fetcher.close()
        client._closed = True  # it was never connected


def assign(made: Consumer, logs: dict[int, Log]) -> None:
    """As the coordinator does at the end of a rebalance; the client begins at offsets of the group."""
    subscription = made._consumer._subscription
    subscription.assign_from_subscribed({TopicPartition(TOPIC, number) for number in logs})
    for number in logs:
        subscription._assigned_state(TopicPartition(TOPIC, number)).seek(3)


FIVE = ([0, 1, 2, 3, 4], Log((batch(0, [0, 1, 2, 3, 4]), 5)))
LOGS: dict[str, tuple[list[int], Log]] = {
    "plain": FIVE,
    "compacted": ([0, 1, 9], Log((batch(0, [0, 1, 9]), 10))),
    "compacted at its end": ([0, 1, 12], Log((extended(batch(0, [0, 1]), 9), 10), (batch(10, [12]), 13))),
    "a batch that compaction left empty": ([7], Log((extended(batch(0, []), 4), 5), (batch(5, [7]), 8))),
    "an aborted transaction": (
        [0, 1, 5],
        Log(
            (batch(0, [0, 1]), 2),
            (batch(2, [2, 3], producer=7), 4),
            (batch(4, [4], producer=7, marker=ABORT), 5),
            (batch(5, [5]), 6),
            aborted=((7, 2),),
        ),
    ),
    "markers alone at the end": (
        [0, 1],
        Log(
            (batch(0, [0, 1], producer=7), 2),
            (batch(2, [2], producer=7, marker=COMMIT), 3),
            (batch(3, [3], producer=8, marker=ABORT), 4),
        ),
    ),
    "format 0": ([0, 1, 2], Log((old_batch(0, [0]) + old_batch(0, [1]), 2), (old_batch(0, [2]), 3))),
    "format 1": ([0, 1, 2, 3], Log((old_batch(1, [0]) + old_batch(1, [1]), 2), (old_batch(1, [2, 3]), 4))),
    "format 1, compressed": ([0, 1, 2, 3], Log((old_batch(1, [0, 1, 2, 3], compressed=True), 4))),
    "all formats": (
        [0, 1, 2, 3, 4, 5],
        Log((old_batch(0, [0]), 1), (old_batch(1, [1, 2]), 3), (batch(3, [3, 4]), 5), (old_batch(1, [5]), 6)),
    ),
    "header names in Latin-1": (
        [0, 1, 2, 3],
        Log((latin1_batch(0, [0, 1]), 2), (latin1_batch(2, [2], codec=1), 3), (batch(3, [3]), 4)),
    ),
}


@pytest.mark.parametrize("most", [1, 9])
@pytest.mark.parametrize("whole_topic", [True, False])
@pytest.mark.parametrize("name", LOGS)
async def test_spans_follow_each_other_whatever_a_log_has(name: str, whole_topic: bool, most: int) -> None:
    wanted, log = LOGS[name]
    place = Partition(TOPIC, 0)
    async with scripted({0: log}, whole_topic=whole_topic, most=most) as consumer:
        for start in range(log.end):
            consumer.seek(place, start)
            positions, found = ReadPositions(consumer.seek), list[int]()
            positions.begin({place: start})
            async with asyncio.timeout(20):
                while positions.position(place) != log.end:
                    polled = await consumer.poll(None if whole_topic else 2, 0.01)
                    for span in positions.take(polled).values():
                        found += [record.offset for record in span.records]
                        assert all(span.start <= record.offset < span.end for record in span.records)
            assert found == [offset for offset in wanted if offset >= start]
            assert positions.dropped == 0


@pytest.mark.parametrize("whole_topic", [True, False])
@pytest.mark.parametrize("codec", [0, 1])
async def test_a_header_name_that_is_not_utf_8_is_escaped(codec: int, whole_topic: bool) -> None:
    place = Partition(TOPIC, 0)
    log = Log((latin1_batch(0, [0, 1], codec), 2))
    async with scripted({0: log}, whole_topic=whole_topic) as consumer, asyncio.timeout(20):
        consumer.seek(place, 0)
        while not (found := await consumer.poll(None, 0.01)):
            pass
    first, second = found[place].records
    assert [record.headers for record in (first, second)] == [
        (),
        (("id", b"\xff"), (r"Gr\xf6\xdfe", None)),
    ]
    assert [record.timestamp for record in (first, second)] == [1_000, 1_100]
    assert {(record.key, record.value) for record in (first, second)} == {(b"\xfe", b"\xfd" * 300)}


@pytest.mark.parametrize("name", LOGS)
async def test_a_range_is_read_whole_whatever_a_log_has(name: str) -> None:
    """Its reader seeks again where the client goes on elsewhere."""
    wanted, log = LOGS[name]
    place = Partition(TOPIC, 0)
    client = AIOKafkaConsumer(isolation_level="read_committed")
    options = {"isolation_level": "read_committed", "auto_offset_reset": "none", "fetcher_timeout": 0.01}
    client._fetcher = Fetcher(Broker({0: log}), client._subscription, **options)
    client._coordinator = SimpleNamespace(check_errors=lambda: None)
    note_spans(client)
    getmany = client.getmany

    async def elsewhere(tp: TopicPartition, timeout_ms: int) -> None:
        client.getmany = getmany
        client.seek(tp, log.end - 1)
        await getmany(tp, timeout_ms=timeout_ms)

    client.getmany = elsewhere
    lookup = RecordReader(CONFIG)
    lookup._idle = [client]
    found: list[int] = []
    async with asyncio.timeout(20), contextlib.aclosing(lookup.span(place, 0, log.end)) as batches:
        async for records in batches:
            found += [record.offset for record in records]
    assert found == wanted
    await client._fetcher.close()
    client._closed = True


async def test_ranges_that_do_not_ascend_are_refused() -> None:
    reader = RangeReader(RecordReader(CONFIG), TOPIC, [Range(0, 5, 9, 4), Range(0, 3, 5, 2)])
    reader._read_to[0, False] = 9
    async with contextlib.aclosing(reader.read(Range(0, 3, 5, 2))) as batches:
        with pytest.raises(StoreError, match="begins at offset 3, and one before it has ended at 9"):
            await anext(batches)


def lane(partitions: int) -> OpenLane:
    logged = SimpleNamespace(source=Positions(), next_offset=0, private=True, outcomes={})
    made: Any = SimpleNamespace(
        logged_lane=logged,
        source=logged.source,
        spans=dict.fromkeys(range(partitions), (0, 1)),
        announced=[],
        store=SimpleNamespace(clock_ahead=None),
    )
    return made  # type: ignore[no-any-return]


async def at_step(step: int, act: Callable[[], None]) -> None:
    """Act between two steps of the loop, the `step`th from now."""
    for _ in range(step):
        await asyncio.sleep(0)
    act()


@pytest.mark.parametrize("rebalance", [True, False])
def test_a_rebalance_at_every_step_of_a_poll_loses_nothing(rebalance: bool) -> None:
    """The lane begins at each of the first steps of the loop, while the poll goes on."""
    logs = {
        0: Log(*[(batch(base, [base, base + 1]), base + 2) for base in range(0, 8, 2)]),
        1: Log((extended(batch(0, [0, 2]), 4), 5)),
    }
    wanted = sorted([*((0, offset) for offset in range(8)), (1, 0), (1, 2)])

    async def body(step: int, later: int) -> int:
        taken: list[tuple[int, int]] = []
        async with scripted(logs, whole_topic=True) as consumer:
            source = TopicSource(consumer, TOPIC, len(logs))
            source.begin(lane(len(logs)))

            def begin() -> None:
                taken.clear()
                if rebalance:
                    assign(consumer, logs)
                source.begin(lane(len(logs)))

            def revoke() -> None:
                if rebalance:
                    consumer._consumer._subscription.begin_reassignment()
                source.close(lane(len(logs)))
                acts.append(asyncio.create_task(at_step(later, begin)))

            acts = [asyncio.create_task(at_step(step, revoke))]
            async with asyncio.timeout(20):
                while len(acts) < 2 or not acts[1].done() or sorted(taken) != wanted:
                    found = list(await source.poll(1000, 0.01))
                    taken += [(record.partition, record.position) for record in found]  # type: ignore[attr-defined]
                    assert len(taken) <= len(wanted)
            return source.dropped

    # The client drains in one step, from where it was sought last: nothing has to be read a second time.
    assert {asyncio.run(body(step, later)) for step in range(40) for later in (0, 1, 3)} == {0}


async def test_a_poll_that_fails_after_it_has_drained_a_partition_loses_nothing() -> None:
    """The client forgets what it has drained when the bytes of the next partition are damaged."""
    damaged = bytearray(batch(0, [0, 1]))
    damaged[-1] ^= 1
    logs = {0: FIVE[1], 1: Log((bytes(damaged), 2))}
    async with scripted(logs, whole_topic=True) as consumer:
        positions = ReadPositions(consumer.seek)
        places = {Partition(TOPIC, number): 0 for number in logs}
        for place in places:
            consumer.seek(place, 0)
        positions.begin(places)
        found: list[Span] = []
        async with asyncio.timeout(20):
            while not found:
                with contextlib.suppress(Exception):
                    found += positions.take(await consumer.poll(None, 0.01)).values()
                logs[1].batches = FIVE[1].batches  # mended
        assert [record.offset for record in found[0].records] == FIVE[0]


async def test_a_fetch_is_sent_once_for_each_interval_and_at_once_while_there_is_more() -> None:
    """Fetches that close a bucket: none before, since they would hand over nothing, and none too late."""
    partition = SimpleNamespace(highwater=5, lso=5)
    assignment = SimpleNamespace(state_value=lambda tp: partition)
    async with scripted({0: FIVE[1]}, whole_topic=True) as consumer:
        clock = FetchClock(consumer._consumer, 2)

        def wait(position: int, now_ms: int) -> float:
            request = SimpleNamespace(topics=[(TOPIC, [(0, position, 1)])])
            return clock.wait(assignment, 7, request, now_ms)

        # The first one of a broker, and any for which something waits.
        assert [wait(position, 1000) for position in (5, 4)] == [0.0, 0.0]
        clock.sent(7, 1000)
        assert [wait(5, now) for now in (1000, 1040, 1099, 1100, 1250)] == [0.1, 0.06, 0.001, 0.0, 0.0]
        assert [wait(4, now) for now in (1000, 1099)] == [0.0, 0.0]
        # What is behind an open transaction cannot be read yet: asking without a pause would not help.
        partition.lso, partition.highwater = 5, 9
        assert wait(5, 1040) == 0.06
        partition.lso = partition.highwater = None  # a partition of which nothing is known yet
        assert wait(5, 1040) == 0.0
