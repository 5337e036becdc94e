"""`streampair promote` on Kafka and on disk: from one record on another learner is published, once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.applications import App, Inside, Running, events, scores_by_offset
from harness.kafka import Cluster
from harness.worker_process import wait_for
from streampair_connectors.cli.app import app as command
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.worker.factory import build_lane
from test_state_commands import nobody, take_over
from typer.testing import CliRunner

from streampair.engine import Record

pytestmark = pytest.mark.newest(scope="application")

CHALLENGERS = """
[[challengers]]
name = "second"
class = "streampair.auc.PairOGD"
options = { seed = 2, learning_rate = 0.01 }
"""


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(command, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout + result.stderr


def run(app: App, end: int) -> str:
    with Inside(app) as worker:
        app.await_scores({0: end}, worker, committed=app.store == "kafka")
        wait_for("the last commit", lambda: worker.lag() == 0)
        said = worker.metrics()
        assert worker.stop() is None
    return said


def expected(app: App, values: list[bytes]) -> dict[str, list[Any]]:
    """What each learner scores if it reads all alone."""
    config = load_config(app.path)
    found = {}
    for name, settings in (("first", config), ("second", config.challenger(config.challengers[0]))):
        lane = build_lane(
            settings.model_copy(update={"challengers": ()}),
            json_decoder(config.input),
            topic=app.input,
            partition=0,
        )
        output = lane.process([Record(i, value) for i, value in enumerate(values)])
        found[name] = [scored.score for scored in output.scores]
    return found


def test_from_the_next_record_on_the_promoted_learner_is_published(
    apache_kafka: Cluster, unique: Callable[[str], str], tmp_path: Path, store: str
) -> None:
    learner = 'name = "first"\nclass = "streampair.auc.PairOGD"\noptions = { seed = 1 }'
    app = App(apache_kafka, tmp_path, unique("app"), learner=learner, store=store, settings=CHALLENGERS)
    app.create_topics()
    values = events(160)
    app.produce(values[:60])
    with Inside(app) as worker:
        app.await_scores({0: 60}, worker)
        wait_for("the last commit", lambda: worker.lag() == 0)
        assert 'streampair_challenger_auc{app="' in worker.metrics()
        refused = call("promote", app.path, "second", "--yes", code=1)
        assert "a worker of this application runs" in refused
        assert worker.stop() is None
    said = call("promote", app.path, "second", "--yes")
    assert "DeLong" in said
    assert "second is the champion" in said
    assert "is the champion already" in call("promote", app.path, "second", "--yes", code=2)
    app.produce(values[60:110])
    worker_ = Running(app)  # which dies, with commits behind the last snapshot
    app.await_scores({0: 110}, worker_)
    worker_.kill()
    nobody(app)
    if app.store == "kafka":
        asyncio.run(take_over(app))
    assert "did not stop cleanly" in call("promote", app.path, "first", "--yes", code=1)
    app.produce(values[110:])
    metrics = run(app, 160)
    assert 'learner="second",challenger="first"}' in metrics or 'challenger="first"' in metrics
    assert (
        json.loads(call("promote", app.path, "first", "--yes", "--json"))["promoted"][0]["champion"]
        == "second"
    )
    rows = app.await_scores({0: 160}, committed=store == "kafka")
    alone = expected(app, values)
    wanted = [*alone["first"][:60], *alone["second"][60:]]
    assert scores_by_offset(rows) == {offset: {score} for offset, score in enumerate(wanted)}
    assert {row["learner"] for row in rows if row["offset"] < 60} == {"first"}
    assert {row["learner"] for row in rows if row["offset"] >= 60} == {"second"}
    if store == "kafka":
        assert len(rows) == 160
