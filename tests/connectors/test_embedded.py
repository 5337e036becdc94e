"""The embedded broker, what rides on it in one process, and the demo."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka.partitioner import DefaultPartitioner
from harness import support
from harness.worker_process import fetch, wait_for
from hypothesis import given
from hypothesis import strategies as st
from streampair_connectors import kafka
from streampair_connectors.config import Duration, KafkaConfig, parse_config
from streampair_connectors.kafka import (
    Message,
    Partition,
    PartitionReader,
    Producer,
    ReadPositions,
    RecordReader,
)
from streampair_connectors.stores import directory as disk
from streampair_connectors.worker.sources import TopicSource
from streampair_connectors.worker.worker import Worker

from streampair.engine import LaneOutput, LoggedLane
from streampair.engine.snapshot import UnusableLogError
from streampair.errors import SourceError

pytestmark = pytest.mark.embedded

try:
    import confluent_kafka
    from streampair_connectors.kafka.embedded import EmbeddedBroker
except ImportError:
    pytest.skip("confluent-kafka is missing", allow_module_level=True)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker
    support.note_used("brokers", "librdkafka, embedded")


def settings(broker: EmbeddedBroker) -> KafkaConfig:
    return KafkaConfig(
        bootstrap_servers=broker.bootstrap_servers,
        connect_timeout=Duration.of("10s"),
        session_timeout=Duration.of("2s"),
    )


def test_topics_have_the_partitions_asked_for(broker: EmbeddedBroker) -> None:
    broker.create_topic("one")
    broker.create_topic("three", partitions=3)
    assert asyncio.run(kafka.describe_topics(settings(broker))) == {"one": 1, "three": 3}
    with pytest.raises(SourceError, match="'one'"):
        broker.create_topic("one")


async def read_all(broker: EmbeddedBroker, partition: Partition, count: int) -> list[bytes | None]:
    """The values of the first records of a partition."""
    reader = PartitionReader(settings(broker), [partition], on_lost=print)
    positions, found = ReadPositions(reader.seek), list[bytes | None]()
    try:
        positions.begin(await reader.start())
        async with asyncio.timeout(30):
            while len(found) < count:
                for span in positions.take(await reader.poll(0.2)).values():
                    found += [record.value for record in span.records]
    finally:
        await reader.stop()
    return found


def test_closing_twice_is_harmless() -> None:
    broker = EmbeddedBroker()
    broker.close()
    broker.close()


def test_nothing_is_printed() -> None:
    script = (
        "from streampair_connectors.kafka.embedded import EmbeddedBroker\n"
        "with EmbeddedBroker() as b: b.create_topic('t')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_what_was_sent_while_the_broker_was_away_arrives_in_order(broker: EmbeddedBroker) -> None:
    broker.create_topic("out")
    target = Partition("out", 0)

    async def body() -> list[bytes | None]:
        producer = Producer(settings(broker), max_message_bytes=1_000_000)
        await producer.start()
        never, troubles = asyncio.Event(), []
        try:
            for number in range(3):
                await producer.send(target, [Message(None, b"before %d" % number)])
            assert await producer.flush(never, troubles.append)
            broker.set_down()
            await producer.send(target, [Message(None, b"away 0"), Message(b"k", b"away 1")])
            give_up = asyncio.Event()
            give_up.set()
            assert not await producer.flush(give_up, troubles.append)
            assert producer.unacknowledged_bytes > 0
            broker.set_up()
            assert await producer.flush(never, troubles.append)
            assert producer.unacknowledged_bytes == 0
        finally:
            await producer.stop()
        return await read_all(broker, target, 5)

    assert asyncio.run(body()) == [b"before 0", b"before 1", b"before 2", b"away 0", b"away 1"]


def test_many_messages_go_in_few_batches_and_none_is_lost(broker: EmbeddedBroker) -> None:
    broker.create_topic("out")
    target = Partition("out", 0)
    values = [b"%06d" % i + b"x" * 500 for i in range(5000)]  # more than one batch holds

    async def body() -> list[bytes | None]:
        producer = Producer(settings(broker), max_message_bytes=1_000_000)
        await producer.start()
        try:
            await producer.send(target, [Message(None, value) for value in values])
            assert await producer.flush(asyncio.Event(), lambda _: None)
        finally:
            await producer.stop()
        return await read_all(broker, target, len(values))

    assert asyncio.run(body()) == values


def test_keys_go_where_kafkas_own_clients_send_them(broker: EmbeddedBroker) -> None:
    broker.create_topic("out", partitions=5)

    async def body() -> Producer:
        producer = Producer(settings(broker), max_message_bytes=1_000_000)
        await producer.start()
        try:
            assert await producer.partitions("out") == 5
        finally:
            await producer.stop()
        return producer

    producer = asyncio.run(body())
    everywhere = list(range(5))

    @given(st.binary())
    def agrees(key: bytes) -> None:
        expected = DefaultPartitioner()(key, everywhere, everywhere)
        assert producer.routes.target("out", key, 0) == Partition("out", expected)

    agrees()
    assert [producer.routes.target("out", None, source).partition for source in (0, 4, 5)] == [0, 4, 0]


CODECS = ("gzip", "snappy", "lz4", "zstd")


def write_compressed(broker: EmbeddedBroker, topic: str, codec: str, values: list[bytes]) -> None:
    """Write with librdkafka, whose codecs are its own: a worker must be able to read what it writes."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec, "linger.ms": 1000}
    )
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("codec", CODECS)
def test_topics_of_every_codec_can_be_read(broker: EmbeddedBroker, codec: str) -> None:
    broker.create_topic("in")
    values = [b"%06d" % i + b"x" * 100 for i in range(2000)]  # more than one block of snappy and lz4
    write_compressed(broker, "in", codec, values)
    assert asyncio.run(read_all(broker, Partition("in", 0), len(values))) == values


def test_without_the_codec_the_worker_says_what_to_install(broker: EmbeddedBroker) -> None:
    """Also shows that the topics of the test above are compressed."""
    broker.create_topic("in")
    write_compressed(broker, "in", "zstd", [b"x" * 1000] * 100)
    script = f"""
import sys
sys.modules["cramjam"] = None  # as on a machine that does not have it
import asyncio
from streampair_connectors.config import Duration, KafkaConfig
from streampair_connectors.kafka import Consumer, Partition
from streampair.errors import SourceError

async def body():
    async def revoked(partitions): pass
    async def assigned(partitions):
        for partition in partitions:
            consumer.seek(partition, 0)
    config = KafkaConfig(bootstrap_servers={broker.bootstrap_servers!r}, session_timeout=Duration.of("2s"))
    consumer = Consumer(config, "in", "g", on_revoked=revoked, on_assigned=assigned, on_lost=print)
    await consumer.start()
    try:
        async with asyncio.timeout(60):
            while True:
                assert not await consumer.poll(10, 0.1)
    except SourceError as error:
        print(error.retriable, error)
    finally:
        await consumer.stop()

asyncio.run(body())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ")
    assert "zstd" in done.stdout
    assert "pip install cramjam" in done.stdout


def test_check_tries_the_codecs(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """A codec that is missing and is noticed with the first compressed record alone."""
    broker.create_topic("in")
    text = 'app = "a"\n[input]\ntopic = "in"\nlabel = "y"\nfeatures = ["f"]\n[store]\ndirectory = "state"\n'
    text += '[learner]\nclass = "streampair.auc.PairOGD"\n'
    path = tmp_path / "a.toml"
    path.write_text(f'{text}[kafka]\nbootstrap_servers = "{broker.bootstrap_servers}"\n')
    good = "ok   codecs: records compressed with gzip, snappy, lz4, zstd can be read"
    bad = "FAIL codecs: records compressed with snappy ("
    for prelude, code, line in (("", 0, good), ("sys.modules['cramjam'] = None", 1, bad)):
        call = f"from streampair_connectors.cli import app\napp.app(['check', {str(path)!r}])"
        script = f"import sys\n{prelude}\n{call}"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert line in done.stdout, done.stderr
        assert done.returncode == code, done.stdout


def app(broker: EmbeddedBroker, directory: Path, **tables: Any) -> Any:
    data: dict[str, Any] = {
        "app": "a",
        "kafka": {
            "bootstrap_servers": broker.bootstrap_servers,
            "session_timeout": "2s",
            "connect_timeout": "10s",
        },
        "input": {"topic": "in", "label": "y", "features": ["f"]},
        "learner": {"class": "streampair.auc.PairOGD"},
        "store": {"directory": str(directory)},
    }
    for name, table in tables.items():
        data[name] = {**data.get(name, {}), **table}
    return parse_config(data)


async def fill(broker: EmbeddedBroker, topic: str, values: list[bytes]) -> None:
    producer = Producer(settings(broker), max_message_bytes=1_000_000)
    await producer.start()
    try:
        await producer.send(Partition(topic, 0), [Message(None, value) for value in values])
        assert await producer.flush(asyncio.Event(), lambda _: None)
    finally:
        await producer.stop()


async def run_until(worker: Worker, enough: Any) -> None:
    task = asyncio.create_task(worker.run())
    async with asyncio.timeout(60):
        while not task.done() and not enough():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.02)
    worker.stop()
    await task


def committed(worker: Worker) -> int:
    gauges = list(worker.telemetry.gauges("a").values())
    return (gauges[0].next_offset or 0) if gauges else 0


@pytest.fixture
def topics(broker: EmbeddedBroker) -> EmbeddedBroker:
    for topic in ("in", "a-scores", "a-dead-letters"):
        broker.create_topic(topic)
    return broker


GOOD = [json.dumps({"f": i % 5, "y": i % 2 == 0}).encode() for i in range(50)]


async def test_a_store_from_a_backup_is_refused(topics: EmbeddedBroker, tmp_path: Path) -> None:
    """Without an account too: from the backup on, each event would get a second score."""
    state, backup = tmp_path / "state", tmp_path / "backup"
    config = app(topics, state)
    await fill(topics, "in", GOOD[:20])
    first = Worker(config)
    await run_until(first, lambda: committed(first) == 20)
    shutil.copytree(state, backup)
    await fill(topics, "in", GOOD[20:])
    second = Worker(config)
    await run_until(second, lambda: committed(second) == 50)
    shutil.rmtree(state)
    shutil.copytree(backup, state)
    with pytest.raises(UnusableLogError, match="older than what was released"):
        await Worker(config).run()
    lookup = RecordReader(settings(topics))
    spans = await lookup.spans([Partition("a-scores", 0)])
    await lookup.stop()
    assert spans[0] == (0, 50)


def test_a_topic_that_was_made_anew_is_noticed(topics: EmbeddedBroker, tmp_path: Path) -> None:
    config = app(topics, tmp_path)

    async def body() -> None:
        await fill(topics, "in", GOOD)
        worker = Worker(config)
        await run_until(worker, lambda: committed(worker) == 50)

    asyncio.run(body())
    with EmbeddedBroker() as other:
        for topic in ("in", "a-scores", "a-dead-letters"):
            other.create_topic(topic)
        with pytest.raises(Exception, match="made again") as caught:
            asyncio.run(Worker(app(other, tmp_path)).run())
        assert "another application name" in str(caught.value)


async def test_a_changed_learner_is_refused(topics: EmbeddedBroker, tmp_path: Path) -> None:
    await fill(topics, "in", GOOD)
    worker = Worker(app(topics, tmp_path))
    await run_until(worker, lambda: committed(worker) == 50)
    with pytest.raises(Exception, match="configuration changed"):
        await Worker(app(topics, tmp_path, learner={"options": {"radius": 2.0}})).run()


def test_a_second_worker_on_the_same_state_is_refused(
    topics: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of the same group (another cluster), so that only the lock of the store can tell."""
    monkeypatch.setattr(disk, "_HANDOVER_SECONDS", 0.2)

    async def body(other: EmbeddedBroker) -> None:
        first = Worker(app(topics, tmp_path))
        task = asyncio.create_task(first.run())
        while first.lane is None and not task.done():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.02)
        with pytest.raises(Exception, match="another process holds the state"):
            await run_until(Worker(app(other, tmp_path)), lambda: task.done())
        first.stop()
        await task

    with EmbeddedBroker() as other:
        for topic in ("in", "a-scores", "a-dead-letters"):
            other.create_topic(topic)
        asyncio.run(body(other))


@pytest.mark.parametrize(
    ("worker", "problem"),
    [({"on_bad": "fail"}, "offset 3 cannot be used"), ({}, "are bad")],
    ids=["fail", "breaker"],
)
async def test_a_lane_that_stops_itself_stops_the_worker(
    topics: EmbeddedBroker, tmp_path: Path, worker: dict[str, Any], problem: str
) -> None:
    config = app(topics, tmp_path, worker=worker)
    await fill(topics, "in", [*GOOD[:3], *[b"bad"] * 500])
    stopped = Worker(config)
    with pytest.raises(Exception, match=problem):
        await stopped.run()
    assert stopped.telemetry.health_report()[1]["a"]["state"] == "failed"


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("where", ["between the order and the lane", "in the lane"])
def test_a_record_that_is_missing_is_noticed_before_the_commit(
    topics: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, where: str
) -> None:
    """The lane is opened again at its last commit, and the second time the worker stops."""
    lost: list[object] = []  # the orders, or the lanes, that have lost a record

    def lossy_take(source: Any, order: Any, room: int) -> None:
        taken = order.take(room)
        source._ready += taken
        if taken and order not in lost and len(lost) < times:
            lost.append(order)
            source._ready.pop()

    process = LoggedLane._take

    def lossy_process(lane: LoggedLane, records: Sequence[Any]) -> LaneOutput:
        if lane in lost or len(lost) == times or records[0].value not in GOOD:  # the last: a warm-up
            return process(lane, records)
        lost.append(lane)
        return process(lane, records[:-1])

    if where == "in the lane":
        monkeypatch.setattr(LoggedLane, "_take", lossy_process)
    else:
        monkeypatch.setattr(TopicSource, "_take", lossy_take)

    async def body() -> None:
        await fill(topics, "in", GOOD)
        worker = Worker(app(topics, tmp_path))
        if times == 1:
            await run_until(worker, lambda: committed(worker) == 50)
            events = next(iter(worker.telemetry.gauges("a").values())).events
            assert events["learned"] == 50
        else:
            with pytest.raises(SourceError, match="records are missing, or were taken twice") as error:
                await run_until(worker, lambda: committed(worker) == 50)
            assert not error.value.retriable
            assert committed(worker) == 0
        series = worker.telemetry.render().decode()
        assert f'streampair_count_differences_total{{app="a"}} {times}.0' in series

    asyncio.run(body())
    assert len(lost) == times


async def test_skipped_events_are_only_counted(topics: EmbeddedBroker, tmp_path: Path) -> None:
    config = app(topics, tmp_path, worker={"on_bad": "skip"})
    await fill(topics, "in", [*GOOD[:3], b"bad"])
    worker = Worker(config)
    await run_until(worker, lambda: committed(worker) == 4)
    gauges = next(iter(worker.telemetry.gauges("a").values()))
    assert gauges.dead_letters["decode"] == 1
    lookup = RecordReader(settings(topics))
    assert await lookup.spans([Partition("a-dead-letters", 0)]) == {0: (0, 0)}
    await lookup.stop()


# The demo


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a demo puts its files: a folder of the test alone, in which nothing is left behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def demo(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "streampair_connectors", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "100"},
    )


def test_the_demo_for_machines() -> None:
    """The whole command: what it prints is JSON, and nothing else is."""
    process = demo("--rate", "4000", "--json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    result = json.loads(out)
    rows = {row["learner"]: row for row in result["learners"]}
    assert rows.keys() == {"PairOGD", "PairFTRL", "LogisticRegression"}
    for row in rows.values():
        assert row["scores"] == result["events"] == 1250
        assert 0.6 < row["auc"] < 1
        assert 0.6 < row["auc_last_fifth"] < 1
        assert row["regret_stderr"] >= 0
    assert rows["PairFTRL"]["epsilon_spent"] == pytest.approx(1.0, abs=0.01)
    assert rows["PairFTRL"]["guarantee"]
    assert rows["PairOGD"]["epsilon_spent"] is None


def test_the_demo_prints_its_table_and_serves_its_metrics_until_interrupted(temporary: Path) -> None:
    """The whole command, as a reader of the README starts it."""
    with demo("--rate", "4000", "--seed", "5", "--serve") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        out = ""
        for line in process.stdout:
            if "metrics stay up at" in line:
                break
            out += line
        for words in ("PairOGD", "PairFTRL", "LogisticRegression", "epsilon at delta 0.0001"):
            assert words in out
        assert "\x1b" not in out
        url = line.split("metrics stay up at ")[1].split()[0]
        assert line.split()[-1] == url.removesuffix("metrics")
        assert "<title>streampair</title>" in fetch(line.split()[-1])
        text = wait_for("the metrics", lambda: fetch(url))
        for series in ("privacy_epsilon_spent", "regret_total", "prequential_auc", "events_total"):
            assert f'streampair_{series}{{app="demo-' in text
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
    assert list(temporary.iterdir()) == []


def test_the_demo_can_be_interrupted(temporary: Path) -> None:
    """The whole command, in a process that is interrupted while it learns."""
    with demo("--rate", "20") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "events at 20/s" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "Traceback" not in process.stderr.read()
    assert list(temporary.iterdir()) == []
