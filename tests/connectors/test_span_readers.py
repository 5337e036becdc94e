"""Every reader of a topic takes only what begins at its own position, and goes on where records are gone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from streampair_connectors.config import Config, parse_config
from streampair_connectors.kafka import Cluster, Partition, Span
from streampair_connectors.kafka.ordering import TopicOrder
from streampair_connectors.worker import early_labels, late_labels
from streampair_connectors.worker.late_labels import LabelReader, LateLabelSource, ScoreReader
from streampair_connectors.worker.model_topic import ModelFollower
from streampair_connectors.worker.record_counts import RecordCounts
from streampair_connectors.worker.sources import OrderFeed

from streampair.engine import OrderedRecord
from streampair.engine.delays import ScoreSample
from streampair.engine.labels import LabelTable
from streampair.engine.source import Positions
from streampair.errors import SourceError

END = 12


def config_of() -> Config:
    return parse_config(
        {
            "app": "a",
            "kafka": {"bootstrap_servers": "localhost:1"},
            "input": {"topic": "t", "features": ["a"]},
            "label_input": {"topic": "labels", "id": "key", "label": "y", "after": "10s", "order": "arrival"},
            "learner": {"class": "streampair.auc.PairOGD"},
            "output": {"model_topic": "models"},
        }
    )


class Topic:
    """A reader of the client: of one partition, three records a poll."""

    def __init__(self, config: Any, topic: Any, partitions: Any = 1, on_lost: Any = None) -> None:
        self.place = topic[0] if isinstance(topic, list) else Partition(topic, 0)
        self.on_lost, self.position = on_lost, 0
        self.first = 0

    async def start(self) -> dict[Partition, int]:
        return {self.place: 0}

    def begin(self, offsets: Mapping[int, int]) -> dict[Partition, int]:
        self.position = offsets[0]
        return {self.place: offsets[0]}

    def seek(self, partition: Partition, offset: int) -> None:
        assert partition == self.place
        self.position = offset

    async def offsets_at(self, time_ms: int) -> dict[int, int]:
        return {0: 0}

    async def poll(self, seconds: float) -> dict[Partition, Span]:
        await asyncio.sleep(0)
        if self.position < self.first:
            wanted, self.position = self.position, self.first
            self.on_lost(self.place, wanted, self.first)
            return {}
        start = self.position
        self.position = min(start + 3, END)
        records = [record(offset) for offset in range(start, self.position)]
        return {self.place: Span(start, self.position, records)} if records else {}

    def settled(self) -> dict[int, int]:
        return {}

    async def stop(self) -> None:
        pass


def record(offset: int) -> Any:
    """A message that is no label, with the fields of a score."""
    value = json.dumps({"app": "a", "topic": "t", "partition": 0, "offset": offset, "score": 0.5}).encode()
    return SimpleNamespace(offset=offset, value=value, key=b"%d" % offset, timestamp=1_000, headers=())


@dataclasses.dataclass
class Read:
    """What the tests see of a reader: its client, the offsets that it has taken, a poll, spans dropped."""

    topic: Topic
    taken: Callable[[], list[int]]
    poll: Callable[[], Awaitable[None]]
    dropped: Callable[[], int]
    source: Any = None


CLUSTER = Cluster(topic_reader=Topic, partition_reader=Topic)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def labels() -> AsyncIterator[Read]:
    made: Any = LabelReader(config_of(), 1, lambda: 10**9, cluster=CLUSTER)
    await made.load(LabelTable(after=1000, lateness=1000), 0, {})
    yield Read(
        made._reader, lambda: [each.record.offset for each in made.unused], made.poll, lambda: made.dropped
    )


@contextlib.asynccontextmanager
async def scores() -> AsyncIterator[Read]:
    made: Any = ScoreReader(config_of(), 1, cluster=CLUSTER)
    await made.load({})
    sample = ScoreSample()
    yield Read(
        made._reader,
        lambda: [*sample._usual.scores],
        lambda: made.poll(sample, {}),
        lambda: made.dropped,
        sample,
    )


@contextlib.asynccontextmanager
async def events_by_id() -> AsyncIterator[Read]:
    taken: list[int] = []

    def ids(records: Any) -> list[bytes | None]:
        taken.extend(each.offset for each in records)
        return [each.key for each in records]

    unused: Any = None
    made: Any = early_labels.EarlyLabels(
        config_of(),
        partitions=1,
        ids=ids,
        decode=unused,
        wait_of=unused,
        lookup=unused,
        on_lost=lambda *_: late_labels.log.warning("events_lost"),
        broker_time=lambda host_ms: host_ms,
        cluster=CLUSTER,
    )
    await made.load({0: 0}, {}, Positions(), early_labels.OffsetSet(), after=10_000)
    yield Read(made._reader, lambda: taken, made.read, lambda: made.dropped)


@contextlib.asynccontextmanager
async def due_events() -> AsyncIterator[Read]:
    unused: Any = None
    consumer: Any = SimpleNamespace(seek=None, end=lambda partition: 1)
    made: Any = LateLabelSource(
        config_of(),
        consumer,
        partitions=1,
        label_partitions=1,
        lookup=unused,
        routes=unused,
        cluster=CLUSTER,
    )
    made._due_read_to.begin(made._due_reader.begin({0: 0}))
    made._due_order = order = TopicOrder({0: (0, 0)})

    def taken() -> list[int]:
        return [each.offset for chunk in order._queues[0].chunks for each in chunk.records]

    made._due_feed._reader = SimpleNamespace(settled=dict)
    yield Read(made._due_reader, taken, made._read_due, lambda: made._due_read_to.dropped, made)


READERS = [labels, scores, events_by_id, due_events]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
async def test_a_reader_reads_again_what_a_seek_has_passed_over(reader: Any) -> None:
    async with reader() as read:
        await read.poll()
        read.topic.position = 7  # the client goes on elsewhere
        for _ in range(6):
            await read.poll()
        assert read.taken() == list(range(END))
        assert read.dropped() == 1


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_a_reader_goes_on_where_records_are_left_and_says_so(
    reader: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with reader() as read:
            await read.poll()
            read.topic.first = 8
            for _ in range(6):
                await read.poll()
            assert read.taken() == [0, 1, 2, 8, 9, 10, 11]
            assert read.dropped() == 0

    with caplog.at_level(logging.INFO):
        asyncio.run(body())
    assert any("_lost" in message for message in caplog.messages)


def test_models_are_followed_over_a_trim_and_a_seek() -> None:
    made: Any = ModelFollower(config_of(), cluster=dataclasses.replace(CLUSTER, describe_topics=described))
    taken: list[int] = []
    done = asyncio.Event()

    def add(each: Any) -> None:
        taken.append(each.offset)
        if each.offset == 2:
            made._reader.position = 0  # the client goes on elsewhere
        if each.offset == 5:
            made._reader.first = 9  # the owner has trimmed the topic
        if each.offset == END - 1:
            done.set()

    made._assembler = SimpleNamespace(add=add)

    async def body() -> None:
        following = asyncio.create_task(made.follow())
        async with asyncio.timeout(20):
            await done.wait()
        following.cancel()
        await asyncio.wait({following})

    asyncio.run(body())
    assert taken == [0, 1, 2, 3, 4, 5, 9, 10, 11]


async def described(config: Any) -> dict[str, int]:
    return {"models": 1}


async def test_a_due_event_that_is_gone_is_noticed() -> None:
    made: Any
    async with due_events() as read:
        made = read.source
        logged = SimpleNamespace(source=Positions(), next_offset=0, outcomes={})
        opened: Any = SimpleNamespace(logged_lane=logged, source=logged.source)
        made._counts = RecordCounts(opened, [])
        await read.poll()
        assert made.difference(opened) is None
        made._due_order._queues[0].chunks.pop()
        wanted = "of t/0 3 records were read (due), and 0 wait, 0 are ready and 0 were taken"
        assert made.difference(opened) == wanted


async def test_the_first_score_of_the_application_itself_counts() -> None:
    """Applications may share a topic of scores, and an event may have two messages: the first has acted."""
    rows = [
        ("a", "t", 0, 0.5),
        ("b", "t", 1, 0.6),
        ("a", "u", 2, 0.7),
        ("b", "t", 0, 0.8),
        ("a", "t", 0, 0.9),
        ("a", "t", 1 << 60, 0.9),  # no offset that a snapshot could hold
    ]
    records: list[Any] = []
    for number, (app, topic, offset, score) in enumerate(rows):
        row = {"app": app, "topic": topic, "partition": 0, "offset": offset, "score": score}
        marks = {"threshold": 0.5, "share": 0.25, "explore": number == 0}
        records.append(SimpleNamespace(value=json.dumps(row | marks).encode()))
    async with scores() as read:
        read.topic.poll = lambda seconds: finished({read.topic.place: Span(0, len(records), records)})
        await read.poll()
        assert len(read.source.to_state()["explored"]["places"]) == len(read.source)
        taken = read.source.pop_many([OrderedRecord(n, b"", partition=0, position=n) for n in range(3)])
        assert taken == ([0.5, None, None], {0: 4.0}, {})


async def finished(value: Any) -> Any:
    return value


async def test_of_a_topic_made_again_due_events_are_refused_and_labels_read_anew() -> None:
    async with due_events() as read:
        await read.poll()
        with pytest.raises(SourceError, match="was read up to offset 3 and ends at 1"):
            read.topic.on_lost(read.topic.place, 3, 0)
    async with labels() as read:
        for _ in range(2):
            await read.poll()
        read.topic.position = 0
        read.topic.on_lost(read.topic.place, 6, 0)
        await read.poll()
        assert read.taken() == [0, 1, 2, 3, 4, 5, 0, 1, 2]


def test_a_partition_that_was_paused_is_resumed_when_its_order_begins_anew() -> None:
    resumed: list[Partition] = []
    place = Partition("t", 0)
    client: Any = SimpleNamespace(settled=dict, pause=lambda partition: None, resume=resumed.append)
    feed = OrderFeed(client, "t", most_bytes=10)
    feed.push(TopicOrder({0: (0, 0)}), {place: Span(0, 1, [record(0)])}, broker_time=lambda sent: sent)
    feed.begin()
    assert resumed == [place]
    feed.begin()
    assert resumed == [place]
