"""The topic of the logs: made so that it loses nothing, refused where it could, read to its end."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from harness.apache_kafka import KafkaBroker
from harness.applications import App, Inside, events
from harness.kafka import Cluster
from harness.worker_process import wait_for
from streampair_connectors.config import Duration, KafkaConfig, load_config
from streampair_connectors.kafka import (
    LogTopic,
    Message,
    Partition,
    RecordReader,
    TransactionalProducer,
    transactional_id,
)
from streampair_connectors.stores import TopicLane

from streampair.engine import UnusableLogError
from streampair.errors import ConfigError, SourceError, StoreError

Unique = Callable[[str], str]


def settings(kafka: Cluster) -> KafkaConfig:
    return KafkaConfig(bootstrap_servers=kafka.bootstrap)


def test_it_is_made_with_the_settings_that_keep_everything(apache_kafka: Cluster, unique: Unique) -> None:
    topic = LogTopic(settings(apache_kafka), unique("log"))
    asyncio.run(topic.ensure(replication_factor=None, strict=True))
    asyncio.run(topic.ensure(replication_factor=None, strict=True))
    topic_settings = asyncio.run(topic.settings())
    assert topic_settings == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "unclean.leader.election.enable": "false",
    }


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cleanup_policy", "compact"),
        ("retention_ms", "3600000"),
        ("retention_bytes", "1000000"),
        ("unclean_leader_election_enable", "true"),
    ],
)
def test_a_topic_that_can_lose_an_entry_is_refused(
    apache_kafka: Cluster, unique: Unique, setting: str, value: str
) -> None:
    name = unique("log")
    kept = {"retention_ms": "-1", "retention_bytes": "-1", setting: value}
    apache_kafka.create_topic(name, **kept)
    topic = LogTopic(settings(apache_kafka), name)
    with pytest.raises(ConfigError, match=setting.replace("_", ".")) as caught:
        asyncio.run(topic.ensure(replication_factor=None, strict=True))
    assert "kafka-configs.sh --bootstrap-server" in caught.value.fix
    asyncio.run(topic.ensure(replication_factor=None, strict=False))  # of models: the next one replaces it


@pytest.mark.broker
def test_a_cluster_that_does_not_tell_is_refused(forgetful: KafkaBroker, unique: Unique) -> None:
    topic = LogTopic(settings(forgetful), unique("log"))
    asyncio.run(topic.ensure(replication_factor=None, strict=True))
    forgetful.deny("DescribeConfigs", "--topic", topic.name)
    with pytest.raises(ConfigError, match=r"does not say whether .* has cleanup\.policy") as caught:
        asyncio.run(topic.ensure(replication_factor=None, strict=True))
    assert f"--operation DescribeConfigs --topic {topic.name}" in caught.value.fix
    asyncio.run(topic.ensure(replication_factor=None, strict=False))


def test_records_that_are_no_entries_are_not_taken_for_an_empty_log(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """Of another release, whose log would begin beside them; the group knows nothing of it."""
    app = App(apache_kafka, tmp_path, unique("app"), store="kafka").create_topics()
    topic = LogTopic(settings(apache_kafka), load_config(app.path).log_topic)
    asyncio.run(topic.ensure(replication_factor=None, strict=True))

    async def body() -> None:
        async with writer(apache_kafka, topic, unique("other")) as write:
            await write(Message(b"entry|1", b"of a log"), Message(b"entry|2", b"of a log"))

    asyncio.run(body())
    app.produce(events(20))
    with Inside(app) as worker:
        error = worker.end()
    assert isinstance(error, UnusableLogError)
    assert "has 2 record(s), and no entry of a log that this release reads" in error.problem


# ---- two applications ------------------------------------------------------------------------------


def sharing(kafka: Cluster, unique: Unique, directory: Path) -> list[App]:
    """Two applications with one log topic, each with 60 events."""
    topic, apps = unique("log"), []
    for name in (unique("one"), unique("two")):
        (directory / name).mkdir()
        app = App(kafka, directory / name, name, store="kafka").create_topics()
        app.path.write_text(app.path.read_text().replace("[store]", f'[store]\nlog_topic = "{topic}"'))
        app.produce(events(60))
        apps.append(app)
    return apps


def test_the_log_topic_of_another_application_is_refused(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    one, two = sharing(apache_kafka, unique, tmp_path)
    for _ in range(2):
        with Inside(one) as worker:
            one.await_scores({0: 60}, worker)
            assert worker.stop() is None
        with Inside(two) as worker:
            error = worker.end()
        assert isinstance(error, StoreError)
        assert f"has the log of application '{one.name}', input '{one.input}'" in error.problem
        assert "store.log_topic" in error.fix


def test_two_applications_that_begin_one_log_topic_at_once(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find it empty. The one whose first entry comes second is refused, and the other goes on."""
    apps = sharing(apache_kafka, unique, tmp_path)
    both = threading.Barrier(2)
    read = TopicLane.read

    async def read_together(self: TopicLane) -> bytes:
        frames = await read(self)
        await asyncio.to_thread(both.wait, 60)
        return frames

    monkeypatch.setattr(TopicLane, "read", read_together)
    with Inside(apps[0]) as first, Inside(apps[1]) as second:
        workers = [first, second]
        wait_for("one of them to end", lambda: first.error or second.error)
        (loser,) = (worker for worker in workers if worker.error)
        (winner,) = (worker for worker in workers if not worker.error)
        assert isinstance(loser.error, StoreError)
        assert f"has the log of application '{winner.app.name}'" in loser.error.problem
        winner.app.await_scores({0: 60}, winner)
        assert winner.stop() is None
    monkeypatch.setattr(TopicLane, "read", read)
    with Inside(winner.app) as worker:
        winner.app.produce(events(60, seed=2))
        winner.app.await_scores({0: 120}, worker)
        assert worker.stop() is None
    assert winner.app.snapshot()["next_offset"] == 120


# ---- reading ---------------------------------------------------------------------------------------

Write = Callable[..., Awaitable[list[int]]]


@asynccontextmanager
async def writer(kafka: Cluster, topic: LogTopic, app: str) -> AsyncIterator[Write]:
    """Writes messages into the first partition of the log, each call in a transaction of its own."""
    partition = Partition(topic.name, 0)
    producer = TransactionalProducer(
        settings(kafka),
        transactional_id(app, "in", 0),
        name="in/0",
        max_message_bytes=900_000,
        topics=[topic.name],
    )
    await producer.start()

    async def write(*messages: Message) -> list[int]:
        stored = await producer.transaction([(partition, list(messages))], offsets={})
        return stored[partition]

    try:
        yield write
    finally:
        await producer.stop()


async def settle(kafka: Cluster, app: str) -> None:
    """What an owner does before it reads: nothing is under way when this returns."""
    producer = TransactionalProducer(
        settings(kafka), transactional_id(app, "in", 0), name="in/0", max_message_bytes=900_000
    )
    await producer.start()
    await producer.stop()


def made(kafka: Cluster, unique: Unique) -> LogTopic:
    topic = LogTopic(settings(kafka), unique("log"))
    asyncio.run(topic.ensure(replication_factor=None, strict=True))
    return topic


def test_a_log_is_read_to_its_end(apache_kafka: Cluster, unique: Unique) -> None:
    """The last offset is that of a marker, of which no record comes; so may the first be, after a trim."""
    topic, app = made(apache_kafka, unique), unique("app")

    async def body() -> None:
        assert await topic.read() == []
        async with writer(apache_kafka, topic, app) as write:
            (first,) = await write(Message(b"k", b"one"))
            second = await write(Message(None, b"two"), Message(b"k", b"three"))
        await settle(apache_kafka, app)
        whole = [(first, b"k", b"one"), (second[0], None, b"two"), (second[1], b"k", b"three")]
        assert await topic.read() == whole
        await topic.trim(second[0])
        assert await topic.read() == whole[1:]
        await topic.trim(second[1] + 1)  # only the marker is left
        assert await topic.read() == []
        async with writer(apache_kafka, topic, app) as write:
            (last,) = await write(Message(None, b"four"))
        await settle(apache_kafka, app)
        assert await topic.read() == [(last, None, b"four")]

    asyncio.run(body())


class Trimming(RecordReader):
    """Whenever it has said where a log begins, the owner trims a record more."""

    def __init__(self, kafka: Cluster, topic: LogTopic, offsets: list[int]) -> None:
        super().__init__(settings(kafka))
        self._topic, self._left = topic, offsets

    async def spans(self, partitions: Sequence[Partition]) -> dict[int, tuple[int, int]]:
        found = await super().spans(partitions)
        if self._left:
            await self._topic.trim(self._left.pop(0))
        return found


def test_a_log_that_its_owner_trims_meanwhile_is_read_again(apache_kafka: Cluster, unique: Unique) -> None:
    topic, app = made(apache_kafka, unique), unique("app")

    async def body() -> None:
        async with writer(apache_kafka, topic, app) as write:
            offsets = [(await write(Message(None, b"%d" % i)))[0] for i in range(4)]
        await settle(apache_kafka, app)
        lookup = Trimming(apache_kafka, topic, offsets[1:3])
        try:
            reading = LogTopic(settings(apache_kafka), topic.name, lookup=lookup)
            assert [value for _, _, value in await reading.read()] == [b"2", b"3"]
        finally:
            await lookup.stop()

    asyncio.run(body())


def test_what_was_undone_or_is_under_way_is_not_read(apache_kafka: Cluster, unique: Unique) -> None:
    topic, app = made(apache_kafka, unique), unique("app")

    async def body() -> None:
        async with writer(apache_kafka, topic, app) as write:
            (first,) = await write(Message(None, b"one"))
        await settle(apache_kafka, app)
        async with AIOKafkaProducer(
            bootstrap_servers=apache_kafka.bootstrap, transactional_id=transactional_id(app, "in", 0)
        ) as old:
            await old.begin_transaction()
            await old.send_and_wait(topic.name, b"undone", partition=0)
            await old.abort_transaction()
            await settle_offset(apache_kafka, topic, first + 4)
            assert await topic.read() == [(first, None, b"one")]
            await old.begin_transaction()
            await old.send_and_wait(topic.name, b"under way", partition=0)
            assert await topic.read() == [(first, None, b"one")]
            await settle(apache_kafka, app)  # another owner: it never will be
            assert await topic.read() == [(first, None, b"one")]
        async with writer(apache_kafka, topic, app) as write:
            (last,) = await write(Message(None, b"two"))
        await settle(apache_kafka, app)
        assert await topic.read() == [(first, None, b"one"), (last, None, b"two")]

    asyncio.run(body())


async def settle_offset(kafka: Cluster, topic: LogTopic, end: int) -> None:
    """Return when everything below an offset is decided."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, isolation_level="read_committed")
    await consumer.start()
    tp = TopicPartition(topic.name, 0)
    try:
        async with asyncio.timeout(30):
            while (await consumer.end_offsets([tp]))[tp] < end:
                continue
    finally:
        await consumer.stop()


def test_large_states_come_back_as_they_were(apache_kafka: Cluster, unique: Unique) -> None:
    """Larger than a message, than a batch and than a fetch; among small entries."""
    topic, app = made(apache_kafka, unique), unique("app")
    coin = random.Random(3)
    states = [coin.randbytes(size) for size in (900_001, 10_000_000, 1)]

    async def body() -> None:
        async with writer(apache_kafka, topic, app) as write:
            await write(Message(b"a", b"before"))
            await write(*(Message(b"state", state) for state in states), Message(b"b", b"after"))
        await settle(apache_kafka, app)
        found = await topic.read()
        assert [key for _, key, _ in found] == [b"a", b"state", b"state", b"state", b"b"]
        assert [value for _, _, value in found[1:4]] == states
        assert [offset for offset, *_ in found][:2] == [0, 2]
        # Deleted from the middle of a message on: that is found, whatever is left of it.
        await topic.trim(found[2][0] + 3)
        with pytest.raises(UnusableLogError, match="is incomplete"):
            await topic.read()
        await topic.trim(found[3][0])
        assert await topic.read() == found[3:]

    asyncio.run(body())


def test_parts_that_do_not_belong_together_are_refused() -> None:
    def read(*marks: bytes | None) -> list[bytes]:
        records = [
            Raw(n, b"k", str(n).encode(), [] if mark is None else [("streampair.part", mark)])
            for n, mark in enumerate(marks)
        ]
        return [value for _, _, value in topic._join_parts(records)]

    topic = LogTopic(KafkaConfig(bootstrap_servers="localhost:9092"), "log")
    assert read() == []
    assert read(None, b"1/2", b"2/2", None, b"1/1") == [b"0", b"12", b"3", b"4"]
    for wrong in (
        (b"1/2",),
        (b"2/2",),
        (b"1/2", None),
        (b"1/3", b"3/3"),
        (b"1/2", b"2/3", b"3/3"),
        (b"1/2", b"1/2", b"2/2"),
        (b"3/2",),
        (b"0/0",),
        (b"x",),
    ):
        with pytest.raises(UnusableLogError, match="is incomplete"):
            read(*wrong)


class Raw(NamedTuple):
    """A record as the client gives it."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp: int = 0


def test_a_broker_that_goes_away_is_no_empty_log(stoppable_kafka: Cluster, unique: Unique) -> None:
    topic, app = made(stoppable_kafka, unique), unique("app")

    async def body() -> None:
        async with writer(stoppable_kafka, topic, app) as write:
            await write(*(Message(None, bytes(500_000)) for _ in range(20)))
        await settle(stoppable_kafka, app)
        whole = await topic.read()
        assert len(whole) == 20
        first = asyncio.Event()
        reading = asyncio.create_task(read_again_and_again(topic, first))
        await first.wait()
        await asyncio.to_thread(stoppable_kafka.kill)
        assert await reading == whole
        with pytest.raises(SourceError, match="no Kafka broker answers"):
            await topic.read()
        with pytest.raises(SourceError, match="no Kafka broker answers"):
            await topic.trim(1)
        await asyncio.to_thread(stoppable_kafka.start)
        assert await topic.read() == whole

    async def read_again_and_again(
        topic: LogTopic, first: asyncio.Event
    ) -> list[tuple[int, bytes | None, bytes]]:
        """Until the broker is away; what was read last."""
        last: list[tuple[int, bytes | None, bytes]] | None = None
        here = LogTopic(
            KafkaConfig(bootstrap_servers=stoppable_kafka.bootstrap, connect_timeout=Duration.of("2s")),
            topic.name,
        )
        try:
            while True:
                found = await here.read()
                assert last is None or found == last
                last = found
                first.set()
        except SourceError:
            assert last is not None
            return last

    asyncio.run(body())
