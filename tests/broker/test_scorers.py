"""Scorers: each event has one score of a published model, whatever dies, and the learner goes its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.applications import PAIR_OGD, App, Running, events, read_until
from harness.kafka import Cluster
from harness.verifier import topic_in_order
from harness.worker_process import wait_for
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.kafka import RecordReader
from streampair_connectors.worker.factory import build_lane
from streampair_connectors.worker.model_topic import PublishedModel, read_model

pytestmark = pytest.mark.newest

Unique = Callable[[str], str]
PARTITIONS = 4


def make(kafka: Cluster, name: str, directory: Path, store: str, *, learner: str = PAIR_OGD) -> App:
    parallel = f'scoring = "parallel"\n{learner}'
    made = App(
        kafka, directory, name, partitions=PARTITIONS, learner=parallel, store=store, scope="application"
    )
    return made.create_topics(message_timestamp_type="LogAppendTime")


@pytest.fixture
def app(apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str) -> App:
    return make(apache_kafka, unique("app"), tmp_path, store)


def spread(app: App, values: list[bytes | None]) -> None:
    for number in range(PARTITIONS):
        app.produce(values[number::PARTITIONS], partition=number)


def ends(count: int) -> dict[int, int]:
    return {p: len(range(p, count, PARTITIONS)) for p in range(PARTITIONS)}


def newest_model(app: App) -> PublishedModel:
    async def body() -> PublishedModel:
        config = load_config(app.path)
        lookup = RecordReader(config.require_kafka())
        try:
            found = await read_model(config, lookup)
        finally:
            await lookup.stop()
        assert found is not None
        return found

    return asyncio.run(body())


def check(app: App, rows: list[dict[str, Any]], count: int) -> None:
    """Every event has exactly one score, and its model had learned no more than there was."""
    places = [(row["partition"], row["offset"]) for row in rows]
    assert len(places) == len(set(places)) == count
    assert all(0 <= row["model_slots"] <= count for row in rows)


def test_each_event_is_scored_once_by_a_published_model(app: App) -> None:
    values = events(400)
    spread(app, values[:200])
    with Running(app) as worker:
        app.await_scores(ends(200), worker, committed=True)
        wait_for("a model of 200 events", lambda: newest_model(app).model.slots == 200, explain=worker.log)
        spread(app, values[200:])
        rows = app.await_scores(ends(400), worker, committed=True)
        assert worker.stop() == 0, worker.log()
    check(app, rows, 400)
    late = [row for row in rows if row["offset"] >= 50]
    assert all(row["model_slots"] >= 200 for row in late)
    # The model of 200 events is that of an uninterrupted lane, and its scores have the same bits.
    config = load_config(app.path)
    lane = build_lane(config, json_decoder(config.input), topic=app.input, partition=-1)
    records = asyncio.run(topic_in_order(app))
    lane.process(records[:200])
    model = {(r.partition, r.position): r for r in records}  # type: ignore[attr-defined]
    decode = json_decoder(config.input)
    first = [row for row in late if row["model_slots"] == 200]
    assert first
    for row in first:
        assert row["score"] == lane.learner.score_one(decode(model[row["partition"], row["offset"]]).x)


def test_kill_9_loses_and_repeats_no_score(app: App) -> None:
    values = events(900)
    spread(app, values[:300])
    worker = Running(app)
    app.await_scores(dict.fromkeys(range(PARTITIONS), 20), worker, committed=True)
    worker.kill()
    spread(app, values[300:600])
    with Running(app) as worker:
        app.await_scores(dict.fromkeys(range(PARTITIONS), 100), worker, committed=True)
        worker.kill()
    spread(app, values[600:])
    with Running(app) as worker:
        rows = app.await_scores(ends(900), worker, committed=True)
        wait_for("a model of 900 events", lambda: newest_model(app).model.slots == 900, explain=worker.log)
        assert worker.stop() == 0, worker.log()
    check(app, rows, 900)


def role(app: App, name: str) -> App:
    """The same application in a worker with one role."""
    other = object.__new__(App)
    other.__dict__ |= app.__dict__
    other.path = app.path.with_name(f"{name}.toml")
    other.path.write_text(app.path.read_text().replace("[worker]", f'[worker]\nroles = ["{name}"]'))
    return other


def test_scores_go_on_while_the_learner_is_away(app: App) -> None:
    """Two scorers and a learner, each in a process of its own; the learner dies, and one scorer too."""
    values = events(1200)
    spread(app, values[:300])
    learner, one, two = Running(role(app, "learn")), Running(role(app, "score")), Running(role(app, "score"))
    try:
        app.await_scores(ends(300), one, committed=True)
        wait_for("a model of 300 events", lambda: newest_model(app).model.slots == 300, explain=learner.log)
        learner.kill()
        spread(app, values[300:600])
        rows = app.await_scores(ends(600), one, committed=True)
        assert max(row["model_slots"] for row in rows) == 300
        two.kill()
        spread(app, values[600:900])
        app.await_scores(ends(900), one, committed=True)
        learner = Running(role(app, "learn"))
        wait_for("a model of 900 events", lambda: newest_model(app).model.slots == 900, explain=learner.log)
        spread(app, values[900:])
        rows = app.await_scores(ends(1200), one, committed=True)
        assert one.stop() == learner.stop() == 0, one.log() + learner.log()
    finally:
        for worker in (learner, one, two):
            worker.kill()
    check(app, rows, 1200)
    assert max(row["model_slots"] for row in rows) >= 900


def test_dead_letters_have_one_sender(app: App) -> None:
    """Scorers send those of decoding and features, the lane those of labels. Each event has one outcome."""
    good = events(40)
    bad: list[bytes | None] = [
        b"oops",
        good[0].replace(b'"y": ', b'"y": "what", "old": '),
        None,
        b'{"f0": 1, "y": true}',
    ]
    spread(app, [*good, *bad])
    with Running(app) as worker:
        rows = app.await_scores(ends(44), worker, committed=True)
        letters = app.await_dead_letters(3)
        wait_for("a model of all", lambda: newest_model(app).model.slots == 44, explain=worker.log)
        assert worker.stop() == 0, worker.log()
    check(app, rows, 44)
    outcomes = sorted(row["outcome"] for row in rows if row["offset"] == 10)
    assert outcomes == ["dead_letter", "dead_letter", "dead_letter", "tombstone"]
    letters = asyncio.run(read_until(app.kafka.bootstrap, app.dead, lambda rows: len(rows) >= 3))
    stages = sorted(dict(letter.headers)["streampair.stage"].decode() for letter in letters)
    assert stages == ["decode", "features", "label"]
