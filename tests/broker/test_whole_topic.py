"""One model for all partitions: the order, one log, one account, standbys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.applications import App, Running, events
from harness.kafka import Cluster
from harness.verifier import topic_in_order
from harness.worker_process import wait_for
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.kafka import group_members
from streampair_connectors.worker.factory import build_lane

pytestmark = pytest.mark.newest

Unique = Callable[[str], str]
PARTITIONS = 4


def make(kafka: Cluster, name: str, directory: Path, store: str) -> App:
    made = App(kafka, directory, name, partitions=PARTITIONS, store=store, scope="application")
    return made.create_topics(message_timestamp_type="LogAppendTime")


@pytest.fixture
def app(kafka: Cluster, unique: Unique, tmp_path: Path, store: str) -> App:
    return make(kafka, unique("app"), tmp_path, store)


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


def check(app: App, rows: list[dict[str, Any]]) -> None:
    """Every event has one score, and it is that of an uninterrupted lane."""
    found: dict[tuple[int, int], set[float]] = {}
    for row in rows:
        found.setdefault((row["partition"], row["offset"]), set()).add(row["score"])
    assert {place: list(scores) for place, scores in found.items()} == {
        place: [score] for place, score in expected(app).items()
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
    check(app, rows)


def test_a_standby_takes_over(apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str) -> None:
    """It has no lane while the first one works, and then goes on where that has ended."""
    app, values = make(apache_kafka, unique("app"), tmp_path, store), events(600)
    spread(app, values[:200])
    with Running(app) as first:
        app.await_scores(ends(app, 200), first)
        with Running(app) as standby:
            wait_for("two members", lambda: members(app) == 2, explain=standby.log)
            spread(app, values[200:400])
            app.await_scores(ends(app, 400), standby)
            assert '"lane_opened"' not in standby.log()
            first.kill()
            spread(app, values[400:])
            rows = app.await_scores(ends(app, 600), standby)
            assert '"lane_opened"' in standby.log()
            assert '"partitions_hold_the_topic"' not in standby.log()
            assert standby.stop() == 0, standby.log()
    check(app, rows)


def members(app: App) -> int:
    return asyncio.run(group_members(load_config(app.path).require_kafka(), app.name))
