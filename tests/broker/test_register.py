"""The register beside a group's offsets: what is read is what was stored, and a failure is never "none"."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.commit import OffsetCommitResponse_v3, OffsetFetchResponse_v3
from aiokafka.protocol.group import LeaveGroupRequest
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from harness.apache_kafka import KafkaBroker
from harness.kafka import Cluster
from harness.support import in_one_case
from streampair_connectors.config import Duration, KafkaConfig
from streampair_connectors.kafka import (
    Committed,
    Consumer,
    Partition,
    commit_register,
    read_register,
    write_register_offline,
)
from streampair_connectors.kafka import offset_metadata as module

from streampair.errors import FencedError, SourceError, StoreError

Unique = Callable[[str], str]
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


def config_of(kafka: Cluster, seconds: float = 60.0) -> KafkaConfig:
    # A restarted broker with the topics of all tests answers "loading" for 15 s on a busy machine.
    return KafkaConfig(bootstrap_servers=kafka.bootstrap, connect_timeout=Duration(round(1000 * seconds)))


@asynccontextmanager
async def member(
    kafka: Cluster, topic: str, group: str, *, name: str | None = None
) -> AsyncIterator[Consumer]:
    """A member of the group, once partitions are assigned to it."""
    assigned = asyncio.Event()

    async def revoked(_: list[Partition]) -> None:
        assigned.clear()

    async def on_assigned(partitions: list[Partition]) -> None:
        for partition in partitions:
            consumer.seek(partition, 0)
        if partitions:
            assigned.set()

    config = config_of(kafka).model_copy(update={"group_instance_id": name})
    consumer = Consumer(config, topic, group, on_revoked=revoked, on_assigned=on_assigned, on_lost=print)
    await consumer.start()
    try:
        async with asyncio.timeout(30):
            await assigned.wait()
        yield consumer
    finally:
        await consumer.stop()


def test_a_group_that_never_was_has_none(kafka: Cluster, unique: Unique) -> None:
    topic = kafka.create_topic(unique("events"), partitions=2)
    partitions = [Partition(topic, 1), Partition(topic, 0)]
    found = asyncio.run(read_register(config_of(kafka), unique("group"), partitions))
    assert found == {Partition(topic, 0): None, Partition(topic, 1): None}
    assert asyncio.run(read_register(config_of(kafka), unique("group"), [])) == {}


async def test_what_a_member_commits_is_read(kafka: Cluster, unique: Unique) -> None:
    topic, group, config = (
        kafka.create_topic(unique("events"), partitions=3),
        unique("group"),
        config_of(kafka),
    )
    one, two, three = (Partition(topic, n) for n in range(3))
    longest = "é" * (module.REGISTER_BYTES // 2)
    async with member(kafka, topic, group) as consumer:
        await commit_register(consumer, {one: (7, "ab:c"), two: (2**40, longest)})
        expected = {one: Committed(7, "ab:c"), two: Committed(2**40, longest), three: None}
        assert await read_register(config, group, [one, two, three]) == expected
        # A plain commit, such as every other tool makes it, wipes the text and keeps the offset.
        await consumer._consumer.commit({TopicPartition(*one): 8})
        assert await read_register(config, group, [one]) == {one: Committed(8, "")}
        # The same offset with another text: a line is durable without an event being done.
        await commit_register(consumer, {one: (8, "next")})
        assert await read_register(config, group, [one]) == {one: Committed(8, "next")}


async def test_a_register_that_is_too_long_is_refused_before_it_is_sent(
    kafka: Cluster, unique: Unique
) -> None:
    topic, group = kafka.create_topic(unique("events")), unique("group")
    partition = Partition(topic, 0)
    long = "é" * (module.REGISTER_BYTES // 2) + "x"
    with pytest.raises(StoreError, match="would have 1025 bytes"):
        await write_register_offline(config_of(kafka), group, {partition: (1, long)})
    async with member(kafka, topic, group) as consumer:
        with pytest.raises(StoreError, match="would have 1025 bytes"):
            await commit_register(consumer, {partition: (1, long)})
    assert await read_register(config_of(kafka), group, [partition]) == {partition: None}


async def test_a_partition_of_another_member_is_fenced(kafka: Cluster, unique: Unique) -> None:
    topic, group = kafka.create_topic(unique("events"), partitions=1), unique("group")
    async with member(kafka, topic, group) as consumer:
        with pytest.raises(FencedError, match="no longer assigned to this worker"):
            await commit_register(consumer, {Partition(topic, 5): (1, "x")})


async def test_a_member_that_the_group_has_forgotten_is_fenced(apache_kafka: Cluster, unique: Unique) -> None:
    topic, group = apache_kafka.create_topic(unique("events")), unique("group")
    partition = Partition(topic, 0)

    async def throw_out() -> None:
        """Take the only member out of the group, as a broker does with one that is silent."""
        admin = AIOKafkaAdminClient(bootstrap_servers=apache_kafka.bootstrap)
        client = AIOKafkaClient(bootstrap_servers=apache_kafka.bootstrap)
        try:
            await admin.start()
            await client.bootstrap()
            (answer,) = await admin.describe_consumer_groups([group])
            ((member_id, *_),) = answer.groups[0][5]
            node = await client.coordinator_lookup(CoordinationType.GROUP, group)
            assert (await client.send(node, LeaveGroupRequest(group, member_id))).error_code == 0
        finally:
            await client.close()
            await admin.close()

    async with member(apache_kafka, topic, group) as consumer:
        await commit_register(consumer, {partition: (3, "mine")})
        await throw_out()
        with pytest.raises(FencedError):
            await commit_register(consumer, {partition: (4, "not mine")})
    found = await read_register(config_of(apache_kafka), group, [partition])
    assert found == {partition: Committed(3, "mine")}


async def test_a_static_member_that_was_replaced_is_fenced(apache_kafka: Cluster, unique: Unique) -> None:
    topic, group, name = apache_kafka.create_topic(unique("events")), unique("group"), unique("name")
    partition = Partition(topic, 0)
    async with member(apache_kafka, topic, group, name=name) as first:
        await commit_register(first, {partition: (1, "first")})
        async with member(apache_kafka, topic, group, name=name):
            with pytest.raises(FencedError):
                await commit_register(first, {partition: (2, "zombie")})
    found = await read_register(config_of(apache_kafka), group, [partition])
    assert found == {partition: Committed(1, "first")}


async def test_only_a_group_without_members_is_written_from_outside(
    apache_kafka: Cluster, unique: Unique
) -> None:
    topic, group, config = (
        apache_kafka.create_topic(unique("events")),
        unique("group"),
        config_of(apache_kafka),
    )
    partition = Partition(topic, 0)
    async with member(apache_kafka, topic, group) as consumer:
        await commit_register(consumer, {partition: (3, "of the member")})
        with pytest.raises(SourceError, match=r"has members.*stop every worker") as refused:
            await write_register_offline(config, group, {partition: (9, "from outside")})
        assert not refused.value.retriable
        assert await read_register(config, group, [partition]) == {partition: Committed(3, "of the member")}
    await write_register_offline(config, group, {partition: (9, "from outside")})
    assert await read_register(config, group, [partition]) == {partition: Committed(9, "from outside")}


def test_offsets_that_a_tool_resets_or_deletes(stoppable_kafka: Cluster, unique: Unique) -> None:
    assert isinstance(stoppable_kafka, KafkaBroker)
    broker, config = stoppable_kafka, config_of(stoppable_kafka)
    topic, group = broker.create_topic(unique("events"), partitions=2), unique("group")
    one, two = Partition(topic, 0), Partition(topic, 1)

    def groups(*arguments: str) -> None:
        common = ("--bootstrap-server", broker.bootstrap, "--group", group)
        broker.tool(GROUPS, [*common, *arguments])

    asyncio.run(write_register_offline(config, group, {one: (0, "first"), two: (0, "second")}))
    groups("--reset-offsets", "--to-earliest", "--topic", f"{topic}:0", "--execute")
    found = asyncio.run(read_register(config, group, [one, two]))
    assert found == {one: Committed(0, ""), two: Committed(0, "second")}
    groups("--delete-offsets", "--topic", topic)
    assert asyncio.run(read_register(config, group, [one, two])) == {one: None, two: None}


async def test_an_offset_in_an_open_transaction_is_not_read_yet(
    apache_kafka: Cluster, unique: Unique
) -> None:
    topic, group = apache_kafka.create_topic(unique("events")), unique("group")
    partition = Partition(topic, 0)
    config = config_of(apache_kafka)
    await write_register_offline(config, group, {partition: (1, "before")})
    async with AIOKafkaProducer(
        bootstrap_servers=apache_kafka.bootstrap, transactional_id=unique("id")
    ) as producer:
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction(
            {TopicPartition(*partition): OffsetAndMetadata(2, "after")}, group
        )
        with pytest.raises(SourceError, match="still pending") as undecided:
            await read_register(config_of(apache_kafka, 0.5), group, [partition])
        assert undecided.value.retriable
        assert "kafka-transactions.sh" in undecided.value.fix
        waits = asyncio.create_task(read_register(config, group, [partition]))
        await producer.commit_transaction()
        assert await waits == {partition: Committed(2, "after")}


def test_a_broker_that_goes_away_while_it_is_asked(stoppable_kafka: Cluster, unique: Unique) -> None:
    """Asked again and again, it gives the truth or an error, never that nothing was committed."""
    topic, group = stoppable_kafka.create_topic(unique("events")), unique("group")
    partition = Partition(topic, 0)
    asyncio.run(write_register_offline(config_of(stoppable_kafka), group, {partition: (4, "here")}))
    truth = {partition: Committed(4, "here")}

    async def body() -> None:
        first, failed, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        failures: list[SourceError] = []

        async def ask() -> None:
            while not done.is_set():
                try:
                    assert await read_register(config_of(stoppable_kafka, 2.0), group, [partition]) == truth
                    first.set()
                except SourceError as error:
                    failures.append(error)
                    failed.set()
                    await asyncio.sleep(0.02)

        askers = [asyncio.create_task(ask()) for _ in range(2)]
        await first.wait()
        await asyncio.to_thread(stoppable_kafka.stop)
        await failed.wait()
        with pytest.raises(SourceError, match="no Kafka broker answers") as unreachable:
            await write_register_offline(config_of(stoppable_kafka, 2.0), group, {partition: (5, "there")})
        failures.append(unreachable.value)
        await asyncio.to_thread(stoppable_kafka.start)
        # It is back, but its coordinator may still be reading its log.
        assert await read_register(config_of(stoppable_kafka), group, [partition]) == truth
        done.set()
        await asyncio.gather(*askers)
        assert all(error.retriable for error in failures)

    asyncio.run(body())


async def test_a_broker_that_says_nothing(stoppable_kafka: Cluster, unique: Unique) -> None:
    assert isinstance(stoppable_kafka, KafkaBroker)
    topic, group = stoppable_kafka.create_topic(unique("events")), unique("group")
    partition = Partition(topic, 0)
    async with member(stoppable_kafka, topic, group) as consumer:
        await commit_register(consumer, {partition: (4, "here")})
        stoppable_kafka.freeze()
        try:
            with pytest.raises(SourceError, match="no Kafka broker answers"):
                await read_register(config_of(stoppable_kafka, 0.5), group, [partition])
            with pytest.raises(SourceError, match="no Kafka broker answers") as unknown:
                await commit_register(consumer, {partition: (5, "there")}, seconds=0.5)
            assert unknown.value.retriable
        finally:
            stoppable_kafka.thaw()
        # The same call again: whether the first came through or not, this one is stored.
        await commit_register(consumer, {partition: (5, "there")}, seconds=30.0)
    found = await read_register(config_of(stoppable_kafka), group, [partition])
    assert found == {partition: Committed(5, "there")}


# What no broker here can be made to say, as the bytes that the client would decode.

HERE = KafkaConfig(bootstrap_servers="localhost:9092")
PARTITIONS = [Partition("t", 0), Partition("t", 1)]


def fetched(*partitions: tuple[int, int, str, int], error: int = 0) -> OffsetFetchResponse_v3:
    answer = OffsetFetchResponse_v3(0, [("t", list(partitions))], error)
    return OffsetFetchResponse_v3.decode(answer.encode())


def test_an_answer_is_taken_whole_or_not_at_all() -> None:
    good = fetched((0, 5, "x", 0), (1, -1, "", 0))
    assert module._parse_committed(HERE, PARTITIONS, good) == {
        PARTITIONS[0]: Committed(5, "x"),
        PARTITIONS[1]: None,
    }
    with pytest.raises(SourceError, match="an answer without t/1") as missing:
        module._parse_committed(HERE, PARTITIONS, fetched((0, 5, "x", 0)))
    assert missing.value.retriable
    with pytest.raises(SourceError, match="offset -2 of t/0"):
        module._parse_committed(HERE, PARTITIONS, fetched((0, -2, "", 0), (1, -1, "", 0)))


@in_one_case("code", [-1, 3, 14, 15, 16, 29, 30, 88, 113, 9999])
def test_an_error_in_an_answer_is_never_none(code: int) -> None:
    for answer in (fetched((0, -1, "", 0), (1, -1, "", code)), fetched(error=code)):
        with pytest.raises((module.kafka_errors.KafkaError, module._RetryError)):
            module._parse_committed(HERE, PARTITIONS, answer)


def test_an_answer_to_a_commit_names_every_partition() -> None:
    def answer(*partitions: tuple[int, int]) -> OffsetCommitResponse_v3:
        return OffsetCommitResponse_v3.decode(OffsetCommitResponse_v3(0, [("t", list(partitions))]).encode())

    module._check_stored(HERE, "g", PARTITIONS, answer((0, 0), (1, 0)))
    with pytest.raises(SourceError, match="an answer without t/1"):
        module._check_stored(HERE, "g", PARTITIONS, answer((0, 0)))
    with pytest.raises(module.kafka_errors.KafkaError):
        module._check_stored(HERE, "g", PARTITIONS, answer((0, 0), (1, 12)))
