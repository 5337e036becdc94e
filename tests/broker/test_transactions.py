"""All or nothing, by one writer: what a transaction stores, and what every way to fail leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka import errors as kafka_errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import AIOKafkaConnection
from harness import support
from harness.apache_kafka import PROFILES, KafkaBroker, TwoBrokers, version_of
from harness.kafka import Cluster
from harness.late_requests import API_KEYS, LateRequests
from harness.worker_process import wait_for
from streampair_connectors.config import Duration, KafkaConfig
from streampair_connectors.kafka import (
    Committed,
    Message,
    Partition,
    TransactionalProducer,
    read_register,
    transactional_id,
    transactions,
)

from streampair.errors import CommitOutcomeUnknownError, FencedError, SourceError, StoreError

Unique = Callable[[str], str]


def config_of(kafka: Cluster, seconds: float = 60.0) -> KafkaConfig:
    # A restarted broker with the topics of all tests answers "loading" for 15 s on a busy machine.
    return KafkaConfig(bootstrap_servers=kafka.bootstrap, connect_timeout=Duration(round(1000 * seconds)))


P = TypeVar("P", bound=TransactionalProducer)


def producer_of(
    kafka: Cluster, app: str, source: Partition, *topics: str, **options: Any
) -> TransactionalProducer:
    return made(TransactionalProducer, config_of(kafka), app, source, *topics, **options)


def made(kind: type[P], config: KafkaConfig, app: str, source: Partition, *topics: str, **options: Any) -> P:
    return kind(
        config,
        transactional_id(app, *source),
        name=f"{source.topic}/{source.partition}",
        max_message_bytes=900_000,
        topics=topics,
        **options,
    )


def messages(*values: str) -> list[Message]:
    return [Message(None, value.encode()) for value in values]


async def ends(kafka: Cluster, partition: Partition, isolation: str) -> int:
    """The end of a partition for one who reads what is committed, or everything."""
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, isolation_level=isolation)
    await consumer.start()
    try:
        tp = TopicPartition(*partition)
        return int((await consumer.end_offsets([tp]))[tp])
    finally:
        await consumer.stop()


async def committed(kafka: Cluster, partition: Partition, count: int = 0) -> list[tuple[int, str]]:
    """Everything of a partition that is committed: offsets and values.

    A broker answers a commit before its marker is in every partition. Who does not fence waits for `count`.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        tp = TopicPartition(*partition)
        consumer.assign([tp])
        end = (await consumer.end_offsets([tp]))[tp]
        found: list[tuple[int, str]] = []
        async with asyncio.timeout(30):
            while await consumer.position(tp) < end or len(found) < count:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found.extend((r.offset, (r.value or b"").decode()) for r in records)
        return found
    finally:
        await consumer.stop()


async def until(what: Callable[[], bool], task: asyncio.Task[Any]) -> None:
    """Return when something has come true; raise what the task raises that is to bring it about."""
    async with asyncio.timeout(60):
        while not what():
            if task.done():
                task.result()
            await asyncio.wait({task}, timeout=0.002)


def test_the_parts_of_an_id_do_not_run_into_each_other() -> None:
    ids = {
        transactional_id(*parts)
        for parts in (
            ("a-b", "c", 1),
            ("a", "b-c", 1),
            ("a", "b", 1),
            ("a", "b1", 1),
            ("a", "b", 11),
            ("ab", "", 1),
        )
    }
    assert len(ids) == 6
    assert transactional_id("a", "b", 1) == transactional_id("a", "b", 1)
    assert all(i.startswith("streampair-") for i in ids)


async def test_all_of_it_is_stored_where_it_says(apache_kafka: Cluster, unique: Unique) -> None:
    source = Partition(apache_kafka.create_topic(unique("in")), 0)
    out, log = (
        apache_kafka.create_topic(unique("out"), partitions=2),
        apache_kafka.create_topic(unique("log")),
    )
    group, line = unique("group"), Partition(log, 0)
    many = [str(n) * 1000 for n in range(2500)]  # three batches
    producer = producer_of(apache_kafka, unique("app"), source, out, log, group=group)
    await producer.start()
    try:
        assert await producer.transaction([], offsets={}) == {}
        sends = [
            (Partition(out, 0), messages("a", "b")),
            (line, messages("first")),
            (Partition(out, 1), messages(*many)),
            (Partition(out, 0), messages("c")),
        ]
        stored = await producer.transaction(sends, offsets={source: (7, "tip")})
        assert {p: len(o) for p, o in stored.items()} == {
            Partition(out, 0): 3,
            line: 1,
            Partition(out, 1): 2500,
        }
        for partition, values in ((Partition(out, 0), ["a", "b", "c"]), (Partition(out, 1), many)):
            found = await committed(apache_kafka, partition, len(values))
            assert found == list(zip(stored[partition], values, strict=True))
        again = await producer.transaction(
            [(line, messages("second", "third"))], offsets={source: (9, "next")}
        )
        assert await committed(apache_kafka, line, 3) == [
            *zip([*stored[line], *again[line]], ["first", "second", "third"], strict=True)
        ]
        assert stored[line] == [0]
        assert again[line] == [2, 3], "the marker of the first transaction has an offset too"
        # The register alone, as an offset that moves over events without outputs.
        await producer.transaction([], offsets={source: (12, "last")})
    finally:
        await producer.stop()
    found_register = await read_register(config_of(apache_kafka), group, [source])
    assert found_register == {source: Committed(12, "last")}


async def test_a_register_that_is_too_long_costs_nothing(apache_kafka: Cluster, unique: Unique) -> None:
    source = Partition(apache_kafka.create_topic(unique("in")), 0)
    producer = producer_of(apache_kafka, unique("app"), source)
    await producer.start()
    try:
        with pytest.raises(StoreError, match="would have 5000 bytes"):
            await producer.transaction([], offsets={source: (1, "x" * 5000)})
        assert producer.usable
    finally:
        await producer.stop()


async def test_the_former_owner_is_fenced_for_good(apache_kafka: Cluster, unique: Unique) -> None:
    source = Partition(apache_kafka.create_topic(unique("in")), 0)
    out, app, group = Partition(apache_kafka.create_topic(unique("out")), 0), unique("app"), unique("group")
    old, new = (producer_of(apache_kafka, app, source, out.topic, group=group) for _ in range(2))
    try:
        await old.start()
        await old.transaction([(out, messages("old"))], offsets={source: (1, "old")})
        await new.start()
        for _ in range(2):  # it says so each time, and sends nothing
            with pytest.raises(FencedError):
                await old.transaction([(out, messages("zombie"))], offsets={source: (2, "z")})
            assert not old.usable
        await new.transaction([(out, messages("new"))], offsets={source: (2, "new")})
    finally:
        await old.stop()
        await new.stop()
    assert [value for _, value in await committed(apache_kafka, out, 2)] == ["old", "new"]
    assert await read_register(config_of(apache_kafka), group, [source]) == {source: Committed(2, "new")}


async def test_what_a_former_owner_has_open_is_undone(apache_kafka: Cluster, unique: Unique) -> None:
    """A process that stood still with everything sent but the commit, and wakes up behind its successor."""
    source = Partition(apache_kafka.create_topic(unique("in")), 0)
    out, app, group = Partition(apache_kafka.create_topic(unique("out")), 0), unique("app"), unique("group")
    new = producer_of(apache_kafka, app, source, out.topic, group=group)
    zombie = AIOKafkaProducer(
        bootstrap_servers=apache_kafka.bootstrap,
        transactional_id=transactional_id(app, source.topic, source.partition),
    )
    await zombie.start()
    try:
        await zombie.begin_transaction()
        await zombie.send_and_wait(out.topic, b"zombie", partition=0)
        await zombie.send_offsets_to_transaction({TopicPartition(*source): (5, "zombie")}, group)
        assert await ends(apache_kafka, out, "read_committed") == 0
        assert await ends(apache_kafka, out, "read_uncommitted") == 1
        await new.start()
        # The open transaction no longer hides what comes after it.
        assert await ends(apache_kafka, out, "read_committed") == 2
        assert await read_register(config_of(apache_kafka), group, [source]) == {source: None}
        with pytest.raises(kafka_errors.ProducerFenced):
            await zombie.commit_transaction()
        await new.transaction([(out, messages("new"))], offsets={source: (1, "new")})
    finally:
        await zombie.stop()
        await new.stop()
    assert [value for _, value in await committed(apache_kafka, out, 1)] == ["new"]
    assert await read_register(config_of(apache_kafka), group, [source]) == {source: Committed(1, "new")}


async def test_after_a_takeover_nothing_of_the_old_owner_comes(apache_kafka: Cluster, unique: Unique) -> None:
    """The takeover falls anywhere into the commits of the old owner; what is read then is the last word."""
    source = Partition(apache_kafka.create_topic(unique("in")), 0)
    log, app, group = Partition(apache_kafka.create_topic(unique("log")), 0), unique("app"), unique("group")
    config = config_of(apache_kafka)

    async def commit_numbers(producer: TransactionalProducer, number: int, acknowledged: list[int]) -> None:
        """Commit one number after the other, until somebody else takes over."""
        for n in itertools.count(number):
            try:
                await producer.transaction([(log, messages(str(n)))], offsets={source: (n + 1, str(n))})
            except SourceError as error:
                # Fenced; or, when the takeover falls into the commit, a broker of version 4 may say that it
                # has failed, and then it is not known.
                assert not producer.usable, error  # noqa: PT017  # the one error that may come at any time
                return
            acknowledged.append(n)

    coin = random.Random(5)
    acknowledged: list[int] = []
    producers: list[TransactionalProducer] = []
    running: asyncio.Task[None] | None = None
    try:
        for _ in range(6):
            producer = producer_of(apache_kafka, app, source, log.topic, group=group)
            producers.append(producer)
            await producer.start()
            register = (await read_register(config, group, [source]))[source]
            entries = await committed(apache_kafka, log)
            if running is not None:
                await running
            # What the old owner had done by then, and not a thing since.
            assert (await read_register(config, group, [source]))[source] == register
            assert await committed(apache_kafka, log) == entries
            done = 0 if register is None else register.offset
            assert [value for _, value in entries] == [str(n) for n in range(done)]
            assert set(acknowledged) <= set(range(done)), "what was acknowledged is there"
            count = len(acknowledged)
            running = asyncio.create_task(commit_numbers(producer, done, acknowledged))
            await until(lambda count=count: len(acknowledged) >= count + 3, running)
            await asyncio.sleep(coin.random() * 0.05)
    finally:
        for producer in producers:
            await producer.stop()
        if running is not None:
            await running


async def test_a_broker_that_is_away_is_waited_for(stoppable_kafka: Cluster, unique: Unique) -> None:
    """A producer that is of no use, or sends twice, once the broker is back."""
    source = Partition(stoppable_kafka.create_topic(unique("in")), 0)
    out, group = Partition(stoppable_kafka.create_topic(unique("out")), 0), unique("group")
    producer = producer_of(stoppable_kafka, unique("app"), source, out.topic, group=group)
    await producer.start()
    try:
        await producer.transaction([(out, messages("a"))], offsets={source: (1, "a")})
        await asyncio.to_thread(stoppable_kafka.kill)
        for _ in range(2):
            with pytest.raises(SourceError, match="no Kafka broker answers") as unreachable:
                await producer.transaction([(out, messages("b"))], offsets={source: (2, "b")}, seconds=1.0)
            assert unreachable.value.retriable
            assert not isinstance(unreachable.value, FencedError | CommitOutcomeUnknownError)
            assert producer.usable, "nothing was begun, so there is nothing to undo"
        await asyncio.to_thread(stoppable_kafka.start)
        await producer.transaction([(out, messages("b"))], offsets={source: (2, "b")})
    finally:
        await producer.stop()
    assert [value for _, value in await committed(stoppable_kafka, out, 2)] == ["a", "b"]


async def test_kills_of_the_broker_lose_nothing_and_double_nothing(
    stoppable_kafka: Cluster, unique: Unique
) -> None:
    """As a lane does it: after whatever error, start again, read the register, go on behind it."""
    source = Partition(stoppable_kafka.create_topic(unique("in")), 0)
    out, group = Partition(stoppable_kafka.create_topic(unique("out")), 0), unique("group")
    config = config_of(stoppable_kafka)
    problems: set[str] = set()
    coin = random.Random(11)
    producer = producer_of(stoppable_kafka, unique("app"), source, out.topic, group=group)
    done = asyncio.Event()
    stored = 0

    async def commit_numbers() -> None:
        nonlocal stored
        n = 0
        while not done.is_set():
            try:
                if not producer.usable:
                    await producer.start()
                    register = (await read_register(config, group, [source]))[source]
                    n = 0 if register is None else register.offset
                await producer.transaction(
                    [(out, messages(str(n)))], offsets={source: (n + 1, "")}, seconds=20.0
                )
                n += 1
                stored = n
            except SourceError as error:
                problems.add(type(error).__name__)
                await asyncio.sleep(0.05)

    task = asyncio.create_task(commit_numbers())
    try:
        for _ in range(2):
            count = stored
            await until(lambda count=count: stored >= count + 5, task)
            await asyncio.sleep(coin.random() * 0.03)
            await asyncio.to_thread(stoppable_kafka.kill)
            await asyncio.to_thread(stoppable_kafka.start)
        count = stored
        await until(lambda: stored >= count + 5, task)
        done.set()
        await task
    finally:
        task.cancel()
        await producer.stop()
    found = [int(value) for _, value in await committed(stoppable_kafka, out, stored)]
    assert found == list(range(stored))
    assert await read_register(config, group, [source]) == {source: Committed(stored, "")}


async def await_leader(kafka: Cluster, topic: str, partition: int, *, present: bool) -> None:
    """Return when a partition has a leader, or none."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(kafka_errors.KafkaError):  # it may ask the broker that is away
                    (found,) = await admin.describe_topics([topic])
                    leaders = {p["partition"]: p["leader"] for p in found["partitions"]}
                    if (leaders[partition] >= 0) == present:
                        return
                await asyncio.sleep(0.02)
    finally:
        await admin.close()


@pytest.mark.verifier
async def test_an_end_that_is_lost_comes_with_the_next_commit(
    two_brokers: TwoBrokers, unique: Unique
) -> None:
    """What docs/troubleshooting.md says of outputs in a partition that had no leader at a commit."""
    topic = two_brokers.create_topic(unique("out"), 2)
    where = Partition(topic, 1)
    async with AIOKafkaProducer(bootstrap_servers=two_brokers.bootstrap, transactional_id=topic) as one:
        async with one.transaction():
            await one.send_and_wait(topic, b"first", partition=1)
            two_brokers.second.kill()
            await await_leader(two_brokers, topic, 1, present=False)
        two_brokers.second.start()
        await await_leader(two_brokers, topic, 1, present=True)
        if two_brokers.version.startswith("4."):
            table = two_brokers.first.hanging(2)
            assert [row[:2] for row in table[1:] if row[0] == topic] == [[topic, "1"]]
            page = (support.ROOT / "docs" / "troubleshooting.md").read_text()
            assert table[0] in [line.split() for line in page.splitlines()]
            assert await committed(two_brokers, where) == []
        async with one.transaction():
            await one.send_and_wait(topic, b"second", partition=1)
    assert [value for _, value in await committed(two_brokers, where, 2)] == ["first", "second"]


class _CommitsWithoutALeader(TransactionalProducer):
    """The broker of the second partition is away while the first transaction is committed."""

    two: TwoBrokers | None

    async def _commit(self, producer: AIOKafkaProducer, seconds: float) -> None:
        if self.two is not None:
            (topic,) = self._topics
            self.two.second.kill()
            await await_leader(self.two, topic, 1, present=False)
            self.two = None
        await super()._commit(producer, seconds)


class EndsOfTwo(NamedTuple):
    """Two brokers, and where a transaction loses its end in the partition on the second one."""

    two: TwoBrokers
    out: Partition
    source: Partition
    group: str

    @classmethod
    def made(cls, two: TwoBrokers, unique: Unique) -> EndsOfTwo:
        out = Partition(two.create_topic(unique("out"), 2), 1)
        return cls(two, out, Partition(two.create_topic(unique("in")), 0), unique("group"))

    def producer(self, kind: type[P]) -> P:
        return made(
            kind, config_of(self.two, 30.0), self.group, self.source, self.out.topic, group=self.group
        )

    async def bring_back(self) -> None:
        await asyncio.to_thread(self.two.second.start)
        await await_leader(self.two, self.out.topic, 1, present=True)

    def loses_ends(self) -> bool:
        return self.two.version.startswith("4.")

    async def register(self) -> Committed | None:
        return (await read_register(config_of(self.two), self.group, [self.source]))[self.source]


async def abort_without_a_leader(ends_of: EndsOfTwo) -> list[str]:
    """A process dies with everything sent; its successor starts before the partition has a leader again."""
    two, out = ends_of.two, ends_of.out
    new = ends_of.producer(TransactionalProducer)
    zombie = AIOKafkaProducer(bootstrap_servers=two.bootstrap, transactional_id=new.transactional_id)
    await zombie.start()
    await zombie.begin_transaction()
    await zombie.send_and_wait(out.topic, b"aborted", partition=1)
    await zombie.send_offsets_to_transaction({TopicPartition(*ends_of.source): (5, "aborted")}, ends_of.group)
    two.second.kill()
    await await_leader(two, out.topic, 1, present=False)
    start = asyncio.create_task(new.start())
    try:
        if ends_of.loses_ends():
            await until(lambda: two.first.lost_end, start)
        await ends_of.bring_back()
        await start
        assert await ends_of.register() is None
        await new.transaction([(out, messages("next"))], offsets={ends_of.source: (1, "next")})
    finally:
        start.cancel()
        await zombie.stop()
        await new.stop()
    assert await ends_of.register() == Committed(1, "next")
    return [value for _, value in await committed(two, out, 1)]


async def test_what_was_aborted_without_a_leader_is_not_committed(
    two_brokers: TwoBrokers, unique: Unique
) -> None:
    assert await abort_without_a_leader(EndsOfTwo.made(two_brokers, unique)) == ["next"]


async def test_a_producer_that_writes_no_ends_commits_what_was_aborted(
    two_brokers: TwoBrokers, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above sees what it is there for."""

    async def nothing(*_: Any) -> None:
        pass

    monkeypatch.setattr(transactions, "write_ends", nothing)
    found = await abort_without_a_leader(EndsOfTwo.made(two_brokers, unique))
    assert found == (["aborted", "next"] if two_brokers.version.startswith("4.") else ["next"])


@pytest.mark.verifier
@pytest.mark.parametrize("offsets_too", [False, True])
def test_what_was_committed_without_a_leader_is_there_after_a_start(
    stoppable_kafka: KafkaBroker, unique: Unique, offsets_too: bool
) -> None:
    two = TwoBrokers(next(name for name in PROFILES if version_of(name) == stoppable_kafka.version))

    async def body() -> None:
        ends_of = EndsOfTwo.made(two, unique)
        if offsets_too:
            two.first.move_group_offsets(2)
        one, after = ends_of.producer(_CommitsWithoutALeader), ends_of.producer(TransactionalProducer)
        one.two = two
        await one.start()
        await one.transaction([(ends_of.out, messages("0"))], offsets={ends_of.source: (1, "0")})
        await one.stop()
        await ends_of.bring_back()
        await after.start()
        try:
            assert await committed(two, ends_of.out, 1) == [(0, "0")]
            assert await ends_of.register() == Committed(1, "0")
            await after.transaction([(ends_of.out, messages("1"))], offsets={ends_of.source: (2, "1")})
        finally:
            await after.stop()
        assert [value for _, value in await committed(two, ends_of.out, 2)] == ["0", "1"]

    try:
        asyncio.run(body())
    finally:
        two.close()


@pytest.mark.verifier
async def test_readers_get_what_was_committed_without_a_leader_though_nothing_follows(
    two_brokers: TwoBrokers, unique: Unique
) -> None:
    ends_of = EndsOfTwo.made(two_brokers, unique)
    one = ends_of.producer(_CommitsWithoutALeader)
    one.two = two_brokers
    await one.start()
    try:
        await one.transaction([(ends_of.out, messages("0"))], offsets={ends_of.source: (1, "0")})
        await ends_of.bring_back()
        assert await committed(two_brokers, ends_of.out, 1) == [(0, "0")]
        await one.transaction([(ends_of.out, messages("1"))], offsets={ends_of.source: (2, "1")})
    finally:
        await one.stop()
    assert [value for _, value in await committed(two_brokers, ends_of.out, 2)] == ["0", "1"]


async def test_what_is_open_for_an_unknown_reason_is_not_written_behind(
    apache_kafka: Cluster, unique: Unique
) -> None:
    """Another producer's transaction, which is not this one's to end; a start waits, and then says where."""
    source, out = (Partition(apache_kafka.create_topic(unique(name)), 0) for name in ("in", "out"))
    new = made(TransactionalProducer, config_of(apache_kafka, 2.0), unique("app"), source, out.topic)
    await new.start()  # an id that is known, without a transaction
    other = AIOKafkaProducer(bootstrap_servers=apache_kafka.bootstrap, transactional_id=unique("other"))
    await other.start()
    try:
        await other.begin_transaction()
        await other.send_and_wait(out.topic, b"other", partition=0)
        with pytest.raises(SourceError, match=f"open in {out.topic}/0 from offset 0 on") as refused:
            await new.start()
        assert f"abort --topic {out.topic} --partition 0 --start-offset 0" in refused.value.fix
        assert not new.usable
        start = asyncio.create_task(new.start())
        await other.commit_transaction()
        await start
        await new.transaction([(out, messages("mine"))], offsets={})
    finally:
        await other.stop()
        await new.stop()
    assert [value for _, value in await committed(apache_kafka, out, 2)] == ["other", "mine"]


async def test_a_message_for_a_topic_that_a_start_does_not_look_into_is_refused(
    apache_kafka: Cluster, unique: Unique
) -> None:
    source, out = (Partition(apache_kafka.create_topic(unique(name)), 0) for name in ("in", "out"))
    producer = producer_of(apache_kafka, unique("app"), source, "scores")
    await producer.start()
    try:
        with pytest.raises(StoreError, match=f"writes to .'scores'., and a message is for '{out.topic}'"):
            await producer.transaction([(out, messages("a"))], offsets={})
        assert producer.usable
    finally:
        await producer.stop()
    assert await ends(apache_kafka, out, "read_uncommitted") == 0


class _StopsBeforeTheCommit(TransactionalProducer):
    """The broker falls silent when all is sent and only the commit is missing."""

    broker: KafkaBroker

    async def _commit(self, producer: AIOKafkaProducer, seconds: float) -> None:
        self.broker.freeze()
        await super()._commit(producer, seconds)


async def test_a_start_that_is_tried_again_leaves_no_connection_open(
    apache_kafka: Cluster, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just come up knows of no broker, and the client asserts that it does."""
    source = Partition(apache_kafka.create_topic(unique("in")), 0)
    starts: list[AIOKafkaClient] = []
    connections: list[AIOKafkaConnection] = []
    bootstrap, brokers, connect = (
        AIOKafkaClient.bootstrap,
        ClusterMetadata.brokers,
        AIOKafkaConnection.connect,
    )

    async def counted(client: AIOKafkaClient) -> None:
        starts.append(client)
        await bootstrap(client)

    async def recorded(connection: AIOKafkaConnection) -> Any:
        connections.append(connection)
        return await connect(connection)

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", counted)
    monkeypatch.setattr(AIOKafkaConnection, "connect", recorded)

    async def nothing(*_: Any) -> None:
        """It asks with a client of its own."""

    monkeypatch.setattr(transactions, "last_outcome", nothing)
    monkeypatch.setattr(ClusterMetadata, "brokers", lambda self: brokers(self) if len(starts) > 3 else set())
    producer = producer_of(apache_kafka, unique("app"), source)
    await producer.start()
    await producer.stop()
    assert len(starts) == 4
    assert [connection for connection in connections if connection.connected()] == []


async def test_an_answer_that_never_comes_is_no_answer(stoppable_kafka: Cluster, unique: Unique) -> None:
    assert isinstance(stoppable_kafka, KafkaBroker)
    source = Partition(stoppable_kafka.create_topic(unique("in")), 0)
    out, app, group = (
        Partition(stoppable_kafka.create_topic(unique("out")), 0),
        unique("app"),
        unique("group"),
    )
    assert stoppable_kafka.pid is not None
    producer = made(
        _StopsBeforeTheCommit,
        config_of(stoppable_kafka),
        app,
        source,
        out.topic,
        group=group,
        timeout_seconds=30.0,
    )
    producer.broker = stoppable_kafka
    await producer.start()
    try:
        with pytest.raises(CommitOutcomeUnknownError, match="not known whether"):
            await producer.transaction([(out, messages("a"))], offsets={source: (1, "a")}, seconds=2.0)
        assert not producer.usable
        # Its sender would otherwise wait for the broker, and connect again when that is back.
        left = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
        assert [name for name in left if name.startswith("Sender.")] == []
    finally:
        stoppable_kafka.thaw()
    after = producer_of(stoppable_kafka, app, source, out.topic, group=group)
    await after.start()
    try:
        # Which of the two it is shows now, the same in both places.
        register = (await read_register(config_of(stoppable_kafka), group, [source]))[source]
        entries = [value for _, value in await committed(stoppable_kafka, out)]
        assert (register, entries) in [(None, []), (Committed(1, "a"), ["a"])]
        done = len(entries)
        await after.transaction([(out, messages("b"))], offsets={source: (2, "b")})
        assert len(await committed(stoppable_kafka, out, done + 1)) == done + 1
    finally:
        await after.stop()
        await producer.stop()


async def test_a_record_that_the_topic_does_not_take(apache_kafka: Cluster, unique: Unique) -> None:
    source = Partition(apache_kafka.create_topic(unique("in")), 0)
    small = Partition(apache_kafka.create_topic(unique("small"), max_message_bytes="2000"), 0)
    other, group = Partition(apache_kafka.create_topic(unique("other")), 0), unique("group")
    producer = producer_of(apache_kafka, unique("app"), source, small.topic, other.topic, group=group)
    await producer.start()
    try:
        with pytest.raises(SourceError, match=r"max\.message\.bytes") as refused:
            await producer.transaction(
                [(other, messages("x")), (small, messages("y" * 5000))],
                offsets={source: (1, "a")},
            )
        assert not refused.value.retriable
        assert await committed(apache_kafka, other) == []
        assert await read_register(config_of(apache_kafka), group, [source]) == {source: None}
    finally:
        await producer.stop()


async def test_one_that_is_cancelled_is_not_used_again(apache_kafka: Cluster, unique: Unique) -> None:
    source = Partition(apache_kafka.create_topic(unique("in")), 0)
    out, app, group = Partition(apache_kafka.create_topic(unique("out")), 0), unique("app"), unique("group")
    producer = producer_of(apache_kafka, app, source, out.topic, group=group)
    await producer.start()
    try:
        work = asyncio.create_task(producer.transaction([(out, messages("a"))], offsets={source: (1, "a")}))
        await until(lambda: not producer.usable, work)  # it is under way
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not producer.usable
        await producer.start()
        entries = [value for _, value in await committed(apache_kafka, out)]
        register = (await read_register(config_of(apache_kafka), group, [source]))[source]
        assert (register, entries) in [(None, []), (Committed(1, "a"), ["a"])]
    finally:
        await producer.stop()


# ---- requests that arrive late --------------------------------------------------------------------


class _Faulty(TransactionalProducer):
    """Fails once when all is sent but the offsets, or dies once when only the commit is missing."""

    fails = dies = False

    async def _send(self, *arguments: Any) -> dict[Partition, list[int]]:
        stored = await super()._send(*arguments)
        if self.fails:
            self.fails = False
            raise TimeoutError  # so that the transaction is aborted
        return stored

    async def _commit(self, *arguments: Any) -> None:
        if self.dies:
            self.dies = False
            raise _Dies
        await super()._commit(*arguments)


class _Dies(Exception):
    """The process is gone."""


@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
@pytest.mark.parametrize("before", ["AddOffsetsToTxn", "EndTxn"])
@pytest.mark.parametrize("request_name", [*API_KEYS, "EndTxn that aborts"])
def test_a_request_that_arrives_in_the_next_transaction(
    stoppable_kafka: Cluster, unique: Unique, request_name: str, before: str, dies: bool
) -> None:
    late_request(stoppable_kafka, unique, request_name, before, dies=dies)


@pytest.mark.parametrize("request_name", ["EndTxn", "EndTxn that aborts"])
def test_a_producer_that_keeps_its_epoch_is_torn(
    stoppable_kafka: Cluster, unique: Unique, request_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above sees what it is there for."""
    kept = property(lambda _: False, lambda *_: None)
    monkeypatch.setattr(transactions._ResponseWatcher, "lost", kept, raising=False)
    with pytest.raises(AssertionError, match="both or none"):
        late_request(stoppable_kafka, unique, request_name, "AddOffsetsToTxn", dies=request_name == "EndTxn")


def late_request(kafka: Cluster, unique: Unique, request_name: str, before: str, *, dies: bool) -> None:
    """A request is held back, its second copy is answered, and the first one arrives in the next transaction.

    That is after its outputs and before its offsets, or before its end; and there the process may die. As a
    lane does it: after whatever error, start again, go on behind what is stored.
    """
    # The coordinator of Kafka 3 refuses a TxnOffsetCommit of an old epoch, and drops the offset of the open
    # transaction with it. The register is then one entry behind what is stored, which lanes take as it is.
    drops = kafka.version.startswith("3.") and request_name == "TxnOffsetCommit"
    source = Partition(kafka.create_topic(unique("in")), 0)
    out, group = Partition(kafka.create_topic(unique("out")), 0), unique("group")
    aborts, name = request_name == "EndTxn that aborts", request_name.partition(" ")[0]

    async def body(proxy: LateRequests) -> None:
        config = KafkaConfig(bootstrap_servers=proxy.bootstrap, connect_timeout=Duration.of("15s"))
        producer = made(_Faulty, config, unique("app"), source, out.topic, group=group)
        n = 0

        async def step() -> None:
            nonlocal n
            try:
                if not producer.usable:
                    await producer.start()
                    register = (await read_register(config_of(kafka), group, [source]))[source]
                    n = len(await committed(kafka, out))
                    behind = n - (0 if register is None else register.offset)
                    assert behind in ({0, 1} if drops else {0}), "outputs and offset: both or none"
                await producer.transaction(
                    [(out, messages(str(n)))], offsets={source: (n + 1, str(n))}, seconds=20.0
                )
                n += 1
            except (SourceError, _Dies):
                return

        def deliver_late() -> None:
            proxy.deliver_before(before, lambda: setattr(producer, "dies", dies))

        try:
            if name == "InitProducerId":
                proxy.hold(name)
            async with asyncio.timeout(60):
                await step()
            assert n == 1
            producer.fails = aborts
            if name != "InitProducerId":
                proxy.hold(name)
            async with asyncio.timeout(60):
                await step()
                assert proxy.held_request == name
                assert proxy.seen.count(name) > 1
                deliver_late()
                while n < 5:
                    await step()
            await producer.start()  # everything is settled then
        finally:
            await producer.stop()
        assert proxy.answer is not None

    with LateRequests(kafka.bootstrap) as proxy:
        asyncio.run(body(proxy))

    async def found() -> tuple[list[str], dict[Partition, Committed | None]]:
        values = [value for _, value in await committed(kafka, out)]
        return values, await read_register(config_of(kafka), group, [source])

    assert asyncio.run(found()) == (list("01234"), {source: Committed(5, "4")}), (
        "outputs and offset: both or none"
    )
    if name == "EndTxn":
        assert proxy.error in (47, 90), "it is of an epoch that is over"


# ---- a broker that forgets quickly, and that keeps rules ------------------------------------------


@pytest.mark.broker
async def test_a_transaction_that_took_too_long_is_fenced(forgetful: KafkaBroker, unique: Unique) -> None:
    source = Partition(forgetful.create_topic(unique("in")), 0)
    out, app, group = Partition(forgetful.create_topic(unique("out")), 0), unique("app"), unique("group")

    class StandsStill(TransactionalProducer):
        """The machine stands still, until the broker has lost patience, when all is sent but the offsets."""

        async def _send(self, *arguments: Any) -> dict[Partition, list[int]]:
            stored = await super()._send(*arguments)
            # A marker comes behind the message: the broker has aborted.
            async with asyncio.timeout(30):
                while True:
                    if await ends(forgetful, out, "read_committed") == 2:
                        return stored

    producer = made(
        StandsStill, config_of(forgetful), app, source, out.topic, group=group, timeout_seconds=1.0
    )
    await producer.start()
    try:
        with pytest.raises(FencedError, match="open for more than 1 s"):
            await producer.transaction([(out, messages("a"))], offsets={source: (1, "a")}, seconds=30.0)
        assert not producer.usable
    finally:
        await producer.stop()
    assert await committed(forgetful, out) == []
    assert await read_register(config_of(forgetful), group, [source]) == {source: None}


@pytest.mark.broker
async def test_an_id_that_the_broker_has_forgotten_is_fenced(forgetful: KafkaBroker, unique: Unique) -> None:
    """The client's sender dies of it; nothing hangs."""
    source = Partition(forgetful.create_topic(unique("in")), 0)
    out, app, group = Partition(forgetful.create_topic(unique("out")), 0), unique("app"), unique("group")

    def known() -> str:
        return forgetful.tool(
            "org.apache.kafka.tools.TransactionsCommand", ["--bootstrap-server", forgetful.bootstrap, "list"]
        )

    producer = producer_of(forgetful, app, source, out.topic, group=group)
    await producer.start()
    try:
        await producer.transaction([(out, messages("a"))], offsets={source: (1, "a")})
        await asyncio.to_thread(
            wait_for, "the broker to forget the id", lambda: producer.transactional_id not in known()
        )
        with pytest.raises(FencedError):
            await producer.transaction([(out, messages("b"))], offsets={source: (2, "b")}, seconds=20.0)
        assert not producer.usable
        await producer.start()
        await producer.transaction([(out, messages("b"))], offsets={source: (2, "b")})
    finally:
        await producer.stop()
    assert [value for _, value in await committed(forgetful, out, 2)] == ["a", "b"]


@pytest.mark.broker
async def test_a_user_who_may_not_write(forgetful: KafkaBroker, unique: Unique) -> None:
    """An error that would be retried for ever, and outputs of a part of a transaction."""
    source = Partition(forgetful.create_topic(unique("in")), 0)
    out, closed = (Partition(forgetful.create_topic(unique(name)), 0) for name in ("out", "closed"))
    barred, group = unique("barred"), unique("group")
    barred_id = transactional_id(barred, source.topic, source.partition)
    for rule in (("--topic", closed.topic), ("--transactional-id", barred_id), ("--group", group)):
        forgetful.deny("All", *rule)
    with pytest.raises(SourceError, match="ids that begin with streampair-") as refused:
        await producer_of(forgetful, barred, source).start()
    assert not refused.value.retriable
    for sends, offsets, fix in (
        ([(out, messages("a")), (closed, messages("b"))], {}, "use the topic"),
        ([(out, messages("a"))], {source: (1, "a")}, "use the consumer group"),
    ):
        producer = producer_of(forgetful, unique("app"), source, out.topic, closed.topic, group=group)
        try:
            await producer.start()
            with pytest.raises(SourceError, match=fix) as refused:
                await producer.transaction(sends, offsets=offsets, seconds=20.0)
            assert not refused.value.retriable
            with pytest.raises(SourceError, match="use the"):  # a start sees it too
                await producer.start()
        finally:
            await producer.stop()
    assert await committed(forgetful, out) == []
