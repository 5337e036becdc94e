"""One model for all partitions: the order, one log, one account, standbys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.applications import PAIR_OGD, App, Running, events
from harness.kafka import Cluster
from harness.verifier import topic_in_order
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.worker.factory import build_lane

pytestmark = pytest.mark.newest

Unique = Callable[[str], str]
WHOLE = '\nscope = "application"'
PARTITIONS = 4


@pytest.fixture
def app(kafka: Cluster, unique: Unique, tmp_path: Path, store: str) -> App:
    made = App(kafka, tmp_path, unique("app"), partitions=PARTITIONS, learner=PAIR_OGD + WHOLE, store=store)
    return made.create_topics(message_timestamp_type="LogAppendTime")


def spread(app: App, values: list[bytes]) -> None:
    """Produce them in turn over all partitions, some at a time so that buckets have neighbours."""
    for number in range(PARTITIONS):
        app.produce(values[number::PARTITIONS], partition=number)


def expected(app: App) -> dict[tuple[int, int], float]:
    """Scores of one uninterrupted lane over the records in order."""
    config = load_config(app.path)
    lane = build_lane(config, json_decoder(config.input), topic=app.input, partition=-1)
    records = asyncio.run(topic_in_order(app))
    return {
        (r.partition, r.position): s.score  # type: ignore[misc]
        for r, s in zip(records, lane.process(records).scores, strict=True)
    }


def ends(app: App, count: int) -> dict[int, int]:
    return {p: len(range(p, count, PARTITIONS)) for p in range(PARTITIONS)}


def test_all_partitions_teach_one_model(app: App) -> None:
    values = events(400)
    spread(app, values[:200])
    with Running(app) as worker:
        app.await_scores(ends(app, 200), worker)
        spread(app, values[200:])
        rows = app.await_scores(ends(app, 400), worker)
        assert worker.stop() == 0, worker.log()
    scores = {(row["partition"], row["offset"]): row["score"] for row in rows}
    assert len(rows) == len(scores) == 400
    assert scores == expected(app)


def test_kill_9_loses_and_repeats_nothing(app: App) -> None:
    values = events(600)
    spread(app, values[:300])
    worker = Running(app)
    app.await_scores(dict.fromkeys(range(PARTITIONS), 20), worker)
    worker.kill()
    spread(app, values[300:])
    with Running(app) as worker:
        rows = app.await_scores(ends(app, 600), worker)
        assert worker.stop() == 0, worker.log()
    found: dict[tuple[int, int], set[float]] = {}
    for row in rows:
        found.setdefault((row["partition"], row["offset"]), set()).add(row["score"])
    assert {place: list(scores) for place, scores in found.items()} == {
        place: [score] for place, score in expected(app).items()
    }
