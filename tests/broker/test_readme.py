"""The Kafka example on the README's first screen, with its two commands, on every broker."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from harness import pages
from harness.apache_kafka import KafkaBroker
from harness.kafka import Cluster
from harness.tiers import EXTERNAL
from harness.worker_process import WorkerProcess, fetch
from test_tiers import consume

EVENTS = 300


def example(directory: Path, kafka: Cluster) -> Path:
    """The README's file as it stands, but for the address of the broker and a free port."""
    text = next(block for block in pages.blocks("README.md") if block.language == "toml").text
    assert "localhost:9092" in text
    assert 'metrics.address = "127.0.0.1:9464"' in text
    file = directory / "fraud.toml"
    file.write_text(text.replace("localhost:9092", kafka.bootstrap).replace("9464", "0"))
    return file


def payments() -> Iterator[str]:
    """Events as the README shows them, and one that is not an event."""
    coin = random.Random(5)
    for number in range(EVENTS - 1):
        fraud = coin.random() < 0.2
        amount = coin.uniform(500, 1000) if fraud else coin.uniform(0, 600)
        yield json.dumps({"amount": round(amount, 2), "age": coin.randint(18, 90), "is_fraud": fraud})
        if number == EVENTS // 2:
            yield "this is not an event"


@pytest.fixture
def topics(kafka: Cluster) -> Cluster:
    for topic in ("events", "scores", "fraud-dead-letters"):
        kafka.create_topic(topic)
    return kafka


async def fill(kafka: Cluster) -> None:
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        for line in payments():
            await producer.send("events", line.encode())


@pytest.mark.skipif(bool(EXTERNAL), reason="its topics have fixed names, which are not ours on that cluster")
def test_the_kafka_example_of_the_readme_runs(topics: Cluster, tmp_path: Path) -> None:
    config = example(tmp_path, topics)
    if isinstance(topics, KafkaBroker):  # filled by Kafka's own console producer, as the README's run is
        topics.console_producer("events", payments())
    else:
        asyncio.run(fill(topics))
    completed = subprocess.run(
        [sys.executable, "-m", "streampair_connectors", "check", str(config)], capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr

    with WorkerProcess(config) as worker:
        url = worker.metrics_url()
        values = asyncio.run(worker.unless_it_ends(consume(topics.bootstrap, "scores", EVENTS)))
        metrics = fetch(url)
        assert worker.interrupt() == 0, worker.log()

    scores = [json.loads(value) for value in values]
    assert [record["offset"] for record in scores] == list(range(EVENTS))
    assert [r["offset"] for r in scores if r["outcome"] == "dead_letter"] == [EVENTS // 2 + 1]
    letters = asyncio.run(consume(topics.bootstrap, "fraud-dead-letters", 1))
    assert letters == [b"this is not an event"]
    assert 'streampair_privacy_epsilon_budget{app="fraud"' in metrics
    assert 'streampair_health{app="fraud"' in metrics
