"""The worker end to end, the same on every broker: learn, stop, crash, resume."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.applications import LOGISTIC, PAIR_FTRL, App, Inside, Running, events, same, scores_by_offset
from harness.kafka import Cluster
from harness.worker_process import fetch, wait_for
from streampair_connectors.config import KafkaConfig
from streampair_connectors.kafka import is_compacted

from streampair.errors import PrivacyError, SnapshotError, StoreError

pytestmark = pytest.mark.directory

Unique = Callable[[str], str]


@pytest.fixture
def app(kafka: Cluster, unique: Unique, tmp_path: Path, store: str) -> App:
    return App(kafka, tmp_path, unique("app"), store=store).create_topics()


def steps_of_regret(metrics: str) -> int:
    """How many steps the estimate on the page covers."""
    found = dict(re.findall(r"^streampair_regret_(total|average)\{[^}]*\} (\S+)$", metrics, re.M))
    average = float(found.get("average", 0.0))
    return round(float(found["total"]) / average) if average else 0


def test_every_event_is_scored_then_learned_and_a_stop_is_clean(app: App) -> None:
    values = events(400)
    app.produce(values[:300])
    learned = 'outcome="learned",topic='
    with Running(app) as worker:
        url = worker.metrics_url()
        rows = app.await_scores({0: 300}, worker)
        text = wait_for(
            "the committed counts",
            lambda: (t := fetch(url)) and learned in t and "} 300.0" in t and t,
            explain=worker.log,
        )
        health = json.loads(fetch(url.replace("/metrics", "/healthz")))
        # When the stream pauses, the estimate of the regret catches up with it.
        wait_for("the regret of all events", lambda: steps_of_regret(fetch(url)) == 299, explain=worker.log)
        assert worker.stop(signal.SIGTERM) == 0, worker.log()
    assert [row["offset"] for row in rows] == list(range(300))
    assert {row["outcome"] for row in rows} == {"learned"}
    assert rows[0].keys() == {"app", "learner", "topic", "partition", "offset", "id", "score", "outcome"}
    assert health["ok"]
    for series in ("regret_total", "prequential_auc", "commit_seconds_count", "score_seconds_sum"):
        assert f"streampair_{series}" in text, series
    state = app.snapshot()
    assert (state["next_offset"], state["clean"]) == (300, True)

    app.produce(values[300:])
    with Running(app) as worker:
        assert worker.await_log("lane_opened")["offset"] == 300
        rows = app.await_scores({0: 400}, worker)
        assert worker.stop(signal.SIGINT) == 0, worker.log()
    expected, state = app.reference(values)
    # Nothing was scored twice, and the two runs are one.
    assert [row["score"] for row in rows] == expected
    assert same(app.snapshot(), state)


def test_kill_9_learns_nothing_twice_and_loses_nothing(app: App) -> None:
    values = events(400)
    app.produce(values[:150])
    worker = Running(app)
    app.await_scores({0: 60}, worker)
    worker.kill()
    position = app.position()
    app.produce(values[150:])
    worker = Running(app)
    assert worker.await_log("lane_opened")["offset"] == position
    app.await_scores({0: 200}, worker)
    worker.kill()
    with Inside(app) as last:
        rows = app.await_scores({0: 400}, last)
        # The scores may all be of the runs before; the state must get there, too.
        wait_for("the last commit", lambda: last.learned() == 400)
        assert f'streampair_restores_total{{app="{app.name}"}} 1.0' in last.metrics()
        assert last.stop() is None
    expected, state = app.reference(values)
    # Some scores came twice, but never two different ones for an event.
    assert scores_by_offset(rows) == {offset: {score} for offset, score in enumerate(expected)}
    assert same(app.snapshot(), state)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_restarted_private_learner_repeats_itself_and_its_guarantee_holds(
    kafka: Cluster, unique: Unique, tmp_path: Path, store: str, clean: bool
) -> None:
    """The log has the digests of what was released: a kill costs nothing, and no score changes."""
    app = App(kafka, tmp_path, unique("app"), learner=PAIR_FTRL, store=store).create_topics()
    app.produce(events(60))
    for _ in range(2):
        if clean:
            with Inside(app) as worker:
                app.await_scores({0: 60}, worker)
                assert worker.stop() is None
        else:
            process = Running(app)
            app.await_scores({0: 60}, process)
            process.kill()
    app.produce(events(40, seed=2))
    with Inside(app) as worker:
        rows = app.await_scores({0: 100}, worker)
        wait_for("the last commit", lambda: worker.learned() == 100)
        said = worker.metrics().splitlines()
        assert worker.stop() is None
    assert all(len(scores) == 1 for scores in scores_by_offset(rows).values())
    kinds = [
        line for line in said if line.startswith("streampair_privacy_guarantee{") and line.endswith(" 1.0")
    ]
    assert ['kind="holds"' in line for line in kinds] == [True]
    assert [line.split()[-1] for line in said if line.startswith("streampair_privacy_forks{")] == ["0.0"]


def test_a_private_worker_notices_that_its_topic_is_compacted(
    kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """Records may vanish from it, so that no replay can be trusted to be one."""
    app = App(kafka, tmp_path, unique("app"), learner=PAIR_FTRL).create_topics(cleanup_policy="compact")
    settings = KafkaConfig(bootstrap_servers=kafka.bootstrap)
    compacted = [asyncio.run(is_compacted(settings, topic)) for topic in (app.input, app.output)]
    assert compacted == [True, False] or (compacted == [None, None] and not kafka.real)
    if kafka.real:
        process = Running(app)
        assert process.await_log("topic_is_compacted")["topic"] == app.input
        process.kill()


@pytest.mark.parametrize("key", [True, False], ids=["with its key", "without"])
def test_a_private_lane_whose_state_is_gone_is_refused(
    kafka: Cluster, unique: Unique, tmp_path: Path, key: bool
) -> None:
    """The group knows that models of these records were released; an account of them has to be there.

    No key is drawn in the place of one that is gone: the noise of a second view would be another.
    """
    app = App(kafka, tmp_path, unique("app"), learner=PAIR_FTRL).create_topics()
    app.produce(events(60))
    with Inside(app) as worker:
        app.await_scores({0: 60}, worker)
        assert worker.stop() is None
    for file in app.state.iterdir():
        if not (key and file.name.endswith("noise-key")):
            file.unlink()
    with Inside(app) as worker:
        error = worker.end()
    assert isinstance(error, PrivacyError if key else StoreError)
    assert ("no log of this lane" if key else "noise-key is gone") in str(error)
    assert not list(app.state.glob("*.log"))


def test_a_learner_of_river_is_kept_under_a_signature(
    kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    """The key is changed between two runs, and lost before a third."""
    app = App(kafka, tmp_path, unique("app"), learner=LOGISTIC, store=store).create_topics()
    values, key = events(80), tmp_path / "store.key"
    app.produce(values[:40])
    old, new = key.read_text(), "cd" * 32
    with Inside(app) as worker:
        app.await_scores({0: 40}, worker)
        assert worker.stop() is None
    app.produce(values[40:])
    key.write_text(f"{new}\n{old}\n")
    with Inside(app) as worker:
        rows = app.await_scores({0: 80}, worker)
        assert worker.stop() is None
    expected, _ = app.reference(values)
    assert [row["score"] for row in rows] == expected
    key.write_text(old)
    with Inside(app) as worker:
        error = worker.end()
    assert isinstance(error, SnapshotError if store == "directory" else StoreError)
    assert ("signature" if store == "directory" else "was sealed with the key") in str(error)
