"""One model for all partitions: the order, one log, one account, standbys."""

from __future__ import annotations

import asyncio
import functools
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.admin import add_partitions, delete_input, delete_records
from harness.applications import PAIR_FTRL, PAIR_OGD, App, Inside, Running, ends, events, read_until, spread
from harness.kafka import Cluster
from harness.verifier import topic_in_order
from harness.worker_process import WorkerProcess, wait_for
from streampair_connectors.cli import app as cli
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.kafka import KAFKA, Consumer, group_members, topic_origin
from streampair_connectors.stores.spending import read_stored
from streampair_connectors.worker.factory import build_lane
from typer.testing import CliRunner

from streampair.engine.source import ORDER_NOT_COVERED

Unique = Callable[[str], str]
PARTITIONS = 4


def make(
    kafka: Cluster,
    name: str,
    directory: Path,
    store: str,
    *,
    learner: str = PAIR_OGD,
    times: str = "LogAppendTime",
) -> App:
    made = App(kafka, directory, name, partitions=PARTITIONS, learner=learner, store=store)
    return made.create_topics(message_timestamp_type=times)


@pytest.fixture
def app(kafka: Cluster, unique: Unique, tmp_path: Path, store: str) -> App:
    return make(kafka, unique("app"), tmp_path, store)


def expected(app: App) -> dict[tuple[int, int], float]:
    """Scores of one uninterrupted lane over the records in order."""
    config = load_config(app.path)
    lane = build_lane(config, json_decoder(config.input))
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


def test_all_partitions_teach_one_model(app: App) -> None:
    values = events(400)
    spread(app, values[:200], PARTITIONS)
    with Running(app) as worker:
        assert worker.await_log("lane_opened")["offset"] == 0
        app.await_scores(ends(200, PARTITIONS), worker)
        spread(app, values[200:], PARTITIONS)
        rows = app.await_scores(ends(400, PARTITIONS), worker)
        assert worker.stop() == 0, worker.log()
    scores = {(row["partition"], row["offset"]): row["score"] for row in rows}
    assert len(rows) == len(scores) == 400
    assert scores == expected(app)


def test_kill_9_loses_and_repeats_nothing(app: App) -> None:
    values = events(600)
    spread(app, values[:300], PARTITIONS)
    worker = Running(app)
    app.await_scores(dict.fromkeys(range(PARTITIONS), 20), worker)
    worker.kill()
    spread(app, values[300:], PARTITIONS)
    with Running(app) as worker:
        rows = app.await_scores(ends(600, PARTITIONS), worker)
        assert worker.stop() == 0, worker.log()
    check(app, rows)


def test_a_standby_takes_over(apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str) -> None:
    """It has no lane while the first one works, and then goes on where that has ended."""
    app, values = make(apache_kafka, unique("app"), tmp_path, store), events(600)
    spread(app, values[:200], PARTITIONS)
    with Running(app) as first:
        app.await_scores(ends(200, PARTITIONS), first)
        with Running(app) as standby:
            wait_for("two members", lambda: members(app) == 2, explain=standby.log)
            spread(app, values[200:400], PARTITIONS)
            app.await_scores(ends(400, PARTITIONS), standby)
            assert '"lane_opened"' not in standby.log()
            first.kill()
            spread(app, values[400:], PARTITIONS)
            rows = app.await_scores(ends(600, PARTITIONS), standby)
            assert '"lane_opened"' in standby.log()
            assert '"partitions_hold_the_topic"' not in standby.log()
            assert standby.stop() == 0, standby.log()
    check(app, rows)


def test_a_second_worker_with_other_settings_is_refused_with_what_differs(
    kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    """At its start, not when it takes over; the first one goes on."""
    app, values = make(kafka, unique("app"), tmp_path, store), events(300)
    spread(app, values[:200], PARTITIONS)
    other = tmp_path / "other.toml"
    other.write_text(
        app.path.read_text().replace("options = { seed = 1 }", "options = { seed = 1, radius = 2.0 }")
    )
    with Running(app) as first:
        app.await_scores(ends(200, PARTITIONS), first)
        with WorkerProcess(other, "--json") as second:
            assert second.wait() == 1
            differs = "changed since the log was begun: learner.options.radius was not set, now it is 2.0"
            assert differs in second.log()
            assert '"lane_opened"' not in second.log()
        spread(app, values[200:], PARTITIONS)
        app.await_scores(ends(300, PARTITIONS), first)
        assert first.stop() == 0, first.log()


def members(app: App) -> int:
    return asyncio.run(group_members(load_config(app.path).require_kafka(), app.name))


def test_added_partitions_are_read_by_the_same_lane(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entities are bounded over all partitions, so that their learner goes on too."""
    monkeypatch.setitem(vars(KAFKA), "consumer", functools.partial(Consumer, watch_seconds=0.5))
    limit = '{ class = "streampair.privacy.EntityLimit", records = 50, separation = 1 }'
    gradients = '{ class = "streampair.privacy.PairGradients" }'
    learner = PAIR_FTRL.replace("warmup = 0", f"warmup = 0, mechanism = {gradients}, entity = {limit}")
    app = make(apache_kafka, unique("app"), tmp_path, store, learner=learner)
    values = events(480)
    spread(app, values[:200], PARTITIONS)
    with Inside(app) as worker:
        app.await_scores(ends(200, PARTITIONS), worker)
        asyncio.run(add_partitions(apache_kafka, app.input, PARTITIONS + 2))
        spread(app, values[200:400], PARTITIONS)
        for number in (PARTITIONS, PARTITIONS + 1):
            app.produce(values[360 + 40 * (number - PARTITIONS) :][:40], number)
        rows = app.await_scores({**ends(400, PARTITIONS), PARTITIONS: 40, PARTITIONS + 1: 40}, worker)
        assert worker.stop() is None
    assert len(rows) == 480, "no output twice"


def test_retention_that_overtakes_a_position_is_logged_and_survived(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    app, values = make(apache_kafka, unique("app"), tmp_path, store), events(600)
    spread(app, values[:200], PARTITIONS)
    with Running(app) as worker:
        app.await_scores(ends(200, PARTITIONS), worker)
        assert worker.stop() == 0, worker.log()
    spread(app, values[200:400], PARTITIONS)
    delete_records(app, 70, partition=1)
    lost = {(1, offset) for offset in range(50, 70)}
    with Running(app) as worker:
        await_places(app, worker, 100, lost)
        assert '"events_lost"' in worker.log()
        worker.kill()
    spread(app, values[400:], PARTITIONS)
    with Running(app) as worker:
        await_places(app, worker, 150, lost)
        assert worker.stop() == 0, worker.log()


def test_a_topic_made_again_with_the_same_records_is_another_one(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app = make(apache_kafka, unique("app"), tmp_path, "directory")
    spread(app, events(200), PARTITIONS)
    with Running(app) as worker:
        app.await_scores(ends(200, PARTITIONS), worker)
        assert worker.stop() == 0, worker.log()
    settings = load_config(app.path).require_kafka()
    first = asyncio.run(topic_origin(settings, app.input))
    delete_input(app)
    wait_for("the end of the topic", lambda: made_again(app), seconds=30)
    spread(app, events(200), PARTITIONS)
    second = asyncio.run(topic_origin(settings, app.input))
    assert first.cluster == second.cluster != ""
    assert first.topic_id != second.topic_id
    with Running(app) as worker:
        assert worker.end() == 1
    assert f"the id of the topic is {second.topic_id}" in worker.log()


def test_a_producers_timestamp_of_the_future_holds_nothing(
    kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    """And the report of a private learner says that producers have set the order."""
    app = make(kafka, unique("app"), tmp_path, store, learner=PAIR_FTRL, times="CreateTime")
    values = events(200)
    app.produce(values[:40], 0, timestamp_ms=time.time_ns() // 1_000_000 + 3_000_000)
    for number in range(1, PARTITIONS):
        app.produce(values[40 * number :][:40], number)
    with Running(app) as worker:
        rows = app.await_scores(dict.fromkeys(range(PARTITIONS), 40), worker)
        assert worker.stop() == 0, worker.log()
    assert len(rows) == 160
    config = load_config(app.path)
    (account,) = asyncio.run(read_stored(config)).accounts
    assert account.kind == "holds"
    assert account.guarantee.endswith(ORDER_NOT_COVERED)


def await_places(app: App, worker: Running, end: int, lost: set[tuple[int, int]]) -> None:
    """Wait until every event before `end` has a score, but for those that were lost."""
    wanted = {(p, offset) for p in range(PARTITIONS) for offset in range(end)} - lost

    def complete(rows: list[Any]) -> bool:
        found = [(row["partition"], row["offset"]) for row in map(json.loads, (row.value for row in rows))]
        assert not lost & set(found)
        return wanted <= set(found)

    asyncio.run(worker.unless_it_ends(read_until(app.kafka.bootstrap, app.output, complete)))


def made_again(app: App) -> bool:
    """Whether the topic could be made, which is refused until the old one is gone."""
    try:
        app.kafka.create_topic(app.input, partitions=PARTITIONS, message_timestamp_type="LogAppendTime")
    except Exception:
        return False
    return True


def test_commands_name_the_lane_and_check_repeats_a_refusal(
    kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    app = make(kafka, unique("app"), tmp_path, store, learner=PAIR_FTRL)
    spread(app, events(200), PARTITIONS)
    with WorkerProcess(app.path, "--json") as worker:
        app.await_scores(ends(200, PARTITIONS))
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.log()
    opened = next(line for line in worker.log().splitlines() if '"lane_opened"' in line)
    assert json.loads(opened)["topic"] == app.input

    def call(*arguments: str) -> Any:
        return CliRunner().invoke(cli.app, [*arguments, str(app.path)])

    assert f"{app.name}: {app.input}\n" in call("state", "show").stdout
    assert f"{app.name}: {app.input}, PairFTRL" in call("budget", "show").stdout
    ready = call("check")
    assert ready.exit_code == 0, ready.output
    assert "ok   state: a start continues from the last commit" in ready.stdout
    app.path.write_text(app.path.read_text().replace("epsilon = 1.0", "epsilon = 2.0"))
    refused = call("check")
    assert refused.exit_code == 1
    assert "FAIL state: the configuration changed since the log was begun" in refused.stdout
