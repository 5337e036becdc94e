"""`check` says who scores and with which model, and refuses what the start refuses, in the same words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition
from harness.applications import PAIR_OGD, App, Inside, events
from harness.kafka import Cluster
from harness.worker_process import wait_for
from streampair_connectors.cli.check import check_config
from streampair_connectors.config import load_config
from streampair_connectors.kafka.log_topic import SETTINGS

Unique = Callable[[str], str]
PARALLEL = f'scoring = "parallel"\n{PAIR_OGD}'
PIPELINE = (
    'scoring = "parallel"\nallow_pickle = true\n'
    '[[learner.steps]]\nclass = "river.preprocessing.RobustScaler"\n'
    '[[learner.steps]]\nclass = "{}"'
)


@pytest.fixture
def make(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> Callable[..., App]:
    def app(learner: str = PARALLEL, **options: Any) -> App:
        options = {"store": "kafka", "partitions": 3, **options}
        made = App(apache_kafka, tmp_path, unique("app"), learner=learner, **options)
        return made.create_topics(message_timestamp_type="LogAppendTime")

    return app


def check(app: App) -> dict[str, dict[str, Any]]:
    report = asyncio.run(check_config(load_config(app.path)))
    assert report.ok == all(finding["ok"] for finding in report.findings)
    return {finding["check"]: finding for finding in report.findings}


def refused(app: App, key: str) -> dict[str, Any]:
    """What `check` and the start say: the same."""
    found = check(app)[key]
    assert not found["ok"]
    error = Inside(app).end()
    assert (found["text"], found["fix"]) == (error.problem, error.fix)  # type: ignore[union-attr]
    return found


def test_who_scores_is_said(make: Callable[..., App]) -> None:
    app = make()
    found = check(app)
    assert all(finding["ok"] for finding in found.values()), found
    group, topic = f"{app.name}.scorers", f"{app.name}-model"
    who = f"workers of the group {group!r} score, with the newest model of the topic {topic!r}"
    assert found["learner.scoring"]["text"] == f"{who}; this one learns and scores"
    assert "does not exist; the worker that learns creates it" in found["output.model_topic"]["text"]
    scorer = check(app.role("score"))
    assert scorer["learner.scoring"]["text"] == f"{who}; this one scores"
    assert f"group {group!r}" in scorer["worker"]["text"]
    assert scorer.keys().isdisjoint({"learner", "store", "ledger", "privacy"})
    assert check(app.role("learn"))["learner.scoring"]["text"].endswith("this one learns")
    with Inside(app):
        app.produce(events(30))
        app.await_scores({0: 30}, committed=True)
        found = check(app)
    assert found["output.model_topic"]["text"] == f"{topic!r} has 1 partition(s)"
    assert all(finding["ok"] and "warning" not in finding for finding in found.values()), found
    # The way back would give some scores twice, or never.
    app.path.write_text(app.path.read_text().replace('scoring = "parallel"', ""))
    assert "are given by the group" in refused(app, "learner.scoring")["text"]


def test_a_scorer_needs_no_noise_key(make: Callable[..., App]) -> None:
    private = PARALLEL.replace(PAIR_OGD, 'class = "streampair.auc.PairFTRL"\noptions = { epsilon = 1.0 }')
    app = make(private).role("score")
    (app.path.parent / "noise.key").unlink()
    assert all(finding["ok"] for finding in check(app).values())


@pytest.mark.parametrize("last", ["river.linear_model.LogisticRegression", "streampair.auc.PairOGD"])
def test_a_model_that_cannot_be_exported_is_refused(make: Callable[..., App], last: str) -> None:
    """A step before the learner would be missing from its model, and scores would be others."""
    app = make(PIPELINE.format(last))
    assert "the model cannot be published" in refused(app, "learner.scoring")["text"]


@pytest.mark.parametrize("key", ["output.model_topic", "store.log_topic"])
def test_a_topic_with_several_partitions_is_refused(make: Callable[..., App], key: str) -> None:
    app = make()
    config = load_config(app.path)
    name = config.log_topic if key == "store.log_topic" else config.model_topic
    app.kafka.create_topic(str(name), partitions=3, **SETTINGS)
    assert "has 3 partitions" in refused(app, key)["text"]


def test_a_model_topic_that_forgets_is_doubtful(make: Callable[..., App]) -> None:
    app = make()
    app.kafka.create_topic(f"{app.name}-model", **{**SETTINGS, "retention.ms": "604800000"})
    found = check(app)["output.model_topic"]
    assert found["warning"]
    assert "has retention.ms = 604800000" in found["text"]
    assert found["text"].endswith(f"--topic {app.name}-model --add-config retention.ms=-1")


def test_events_that_retention_has_removed_unread_are_named(make: Callable[..., App]) -> None:
    app = make()
    with Inside(app) as worker:
        app.produce(events(30))
        app.await_scores({0: 30}, committed=True)
        wait_for("all learned", lambda: worker.learned() == 30)
    assert "retention" not in check(app)
    app.produce(events(30))
    asyncio.run(delete(app, 45))
    found = check(app)["retention"]
    assert found["warning"]
    assert "has lost 15 of partition 0" in found["text"]
    assert "increase retention.ms, or take a faster learner" in found["text"]


async def delete(app: App, before: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=app.kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(app.input, 0): RecordsToDelete(before_offset=before)})
    finally:
        await admin.close()
