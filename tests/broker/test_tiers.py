"""The brokers of the test tiers do what the other tests rely on."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from harness.apache_kafka import KafkaBroker
from harness.kafka import Cluster
from harness.tiers import STOPPABLE_TIERS, open_cluster
from harness.worker_process import wait_for

Unique = Callable[[str], str]


async def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=0)


async def consume(bootstrap: str, topic: str, count: int, group: str | None = None) -> list[bytes]:
    consumer = AIOKafkaConsumer(
        *([topic] if group else []),
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    async with consumer:
        if not group:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
        found: list[bytes] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                found.append((await consumer.getone()).value)
        if group:
            await consumer.commit()
        return found


def test_a_topic_has_the_partitions_asked_for(kafka: Cluster, unique: Unique) -> None:
    topic = kafka.create_topic(unique("partitions"), partitions=3)

    async def look() -> set[int]:
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
            return set(await producer.partitions_for(topic))

    assert asyncio.run(look()) == {0, 1, 2}


@pytest.mark.parametrize("grouped", [False, True], ids=["assigned", "in-a-group"])
def test_what_is_produced_is_consumed(kafka: Cluster, unique: Unique, grouped: bool) -> None:
    topic = kafka.create_topic(unique("round"))
    values = [f"event {i}".encode() for i in range(20)]

    async def both() -> list[bytes]:
        await produce(kafka.bootstrap, topic, values)
        return await consume(kafka.bootstrap, topic, len(values), unique("group") if grouped else None)

    assert asyncio.run(both()) == values


def test_a_killed_broker_comes_back_with_its_data(stoppable_kafka: Cluster, unique: Unique) -> None:
    topic = stoppable_kafka.create_topic(unique("kept"))
    asyncio.run(produce(stoppable_kafka.bootstrap, topic, [b"before"]))
    where = stoppable_kafka.bootstrap
    stoppable_kafka.kill()
    stoppable_kafka.start()
    assert stoppable_kafka.bootstrap == where
    asyncio.run(produce(where, topic, [b"between"]))
    stoppable_kafka.restart()
    asyncio.run(produce(where, topic, [b"after"]))
    assert asyncio.run(consume(where, topic, 3)) == [b"before", b"between", b"after"]


def test_the_console_tools_of_kafka_work(stoppable_kafka: Cluster, unique: Unique) -> None:
    assert isinstance(stoppable_kafka, KafkaBroker)
    topic = stoppable_kafka.create_topic(unique("console"))
    stoppable_kafka.console_producer(topic, ['{"amount": 1.5}', '{"amount": 2.5}'])
    assert stoppable_kafka.console_consumer(topic, 2) == ['{"amount": 1.5}', '{"amount": 2.5}']


@pytest.mark.broker
@pytest.mark.parametrize("tier", STOPPABLE_TIERS[-1:])
def test_a_broker_that_cannot_start_shows_its_log(tier: str) -> None:
    with pytest.raises(RuntimeError, match=r"did not start[\s\S]*no\.such\.Authorizer"):
        open_cluster(tier, settings={"authorizer.class.name": "no.such.Authorizer"})


@pytest.mark.broker
@pytest.mark.parametrize("tier", STOPPABLE_TIERS[-1:])
def test_a_broker_does_not_outlive_a_killed_test_run(tier: str) -> None:
    open_cluster(tier).close()  # skips where there is none
    code = (
        "from harness.apache_kafka import KafkaBroker\n"
        f"broker = KafkaBroker({tier!r})\n"
        "print(broker.pid, broker.bootstrap.rpartition(':')[2], flush=True)\n"
        "input()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],  # where the harness is
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    pid, port = map(int, run.stdout.readline().split())
    run.kill()
    run.communicate()

    def gone() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    wait_for(f"the end of process {pid}", gone)
