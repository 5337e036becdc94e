"""``streampair run`` end to end, the same on every broker: learn, stop, crash, resume."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import Cluster
from streams import LOGISTIC, PAIR_FTRL, App, Running, events, same, scores_by_offset
from worker_process import fetch, wait_for

Unique = Callable[[str], str]


@pytest.fixture
def app(kafka: Cluster, unique: Unique, tmp_path: Path) -> App:
    return App(kafka, tmp_path, unique("app")).create_topics()


def test_every_event_is_scored_then_learned(app: App) -> None:
    values = events(300)
    app.produce(values)
    with Running(app) as worker:
        url = worker.metrics_url()
        rows = app.await_scores({0: 300}, worker)
        text = wait_for(
            "the committed counts",
            lambda: (t := fetch(url)) and 'outcome="learned",partition="0"' in t and "} 300.0" in t and t,
            explain=worker.log,
        )
        health = json.loads(fetch(url.replace("/metrics", "/healthz")))
        assert worker.stop() == 0, worker.log()
    expected, state = app.reference(values)
    assert [row["offset"] for row in rows] == list(range(300))
    assert [row["score"] for row in rows] == expected
    assert {row["outcome"] for row in rows} == {"learned"}
    assert rows[0].keys() == {"app", "learner", "topic", "partition", "offset", "id", "score", "outcome"}
    assert same(app.snapshot()["steps"], state["steps"])
    assert health["ok"]
    for series in (
        "regret_total",
        "prequential_auc",
        "commit_seconds_count",
        "score_seconds_sum",
        "rebalances_total",
    ):
        assert f"streampair_{series}" in text, series


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_clean_stop_goes_on_where_it_ended(app: App, number: int) -> None:
    values = events(240)
    app.produce(values[:100])
    with Running(app) as worker:
        app.await_scores({0: 100}, worker)
        assert worker.stop(number) == 0, worker.log()
    body = app.snapshot()
    assert (body["next_offset"], body["clean"]) == (100, True)
    app.produce(values[100:])
    with Running(app) as worker:
        assert worker.await_log("lane_opened")["offset"] == 100
        rows = app.await_scores({0: 240}, worker)
        assert worker.stop(number) == 0, worker.log()
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
    body = app.snapshot()
    assert body["clean"] is False
    app.produce(values[150:])
    worker = Running(app)
    assert worker.await_log("lane_opened")["offset"] == (body["next_offset"] or 0)
    app.await_scores({0: 200}, worker)
    worker.kill()
    with Running(app) as worker:
        worker.await_log("lane_opened")
        rows = app.await_scores({0: 400}, worker)
        assert worker.stop() == 0, worker.log()
    expected, state = app.reference(values)
    # Some scores came twice, but never two different ones for an event.
    assert scores_by_offset(rows) == {offset: {score} for offset, score in enumerate(expected)}
    assert same(app.snapshot(), state)


@pytest.mark.parametrize(
    ("clean", "kind"), [(True, "holds"), (False, "unvouched")], ids=["stopped", "killed"]
)
def test_a_restarted_private_learner_says_what_it_can_vouch_for(
    kafka: Cluster, unique: Unique, tmp_path: Path, clean: bool, kind: str
) -> None:
    app = App(kafka, tmp_path, unique("app"), learner=PAIR_FTRL).create_topics()
    app.produce(events(60))
    worker = Running(app)
    app.await_scores({0: 60}, worker)
    if clean:
        assert worker.stop() == 0, worker.log()
    else:
        worker.kill()
    with Running(app) as worker:
        url = worker.metrics_url()
        worker.await_log("lane_opened")
        line = wait_for(
            "the guarantee",
            lambda: [
                line
                for line in fetch(url).splitlines()
                if line.startswith("streampair_privacy_guarantee") and line.endswith(" 1.0")
            ],
            explain=worker.log,
        )
        assert worker.stop() == 0, worker.log()
    assert [f'kind="{kind}"' in text for text in line] == [True]


def test_a_learner_of_river_is_kept_under_a_signature(
    kafka: Cluster, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(kafka, tmp_path, unique("app"), learner=LOGISTIC).create_topics()
    values = events(80)
    app.produce(values[:40])
    monkeypatch.setenv("TEST_KEY", "ab" * 32)
    with Running(app) as worker:
        app.await_scores({0: 40}, worker)
        assert worker.stop() == 0, worker.log()
    app.produce(values[40:])
    with Running(app) as worker:
        rows = app.await_scores({0: 80}, worker)
        assert worker.stop() == 0, worker.log()
        assert "ab" * 32 not in worker.log()
    expected, _ = app.reference(values)
    assert [row["score"] for row in rows] == expected
    monkeypatch.setenv("TEST_KEY", "cd" * 32)
    with Running(app) as worker:
        assert worker.exit_code() == 1
        assert "signature" in worker.log()


def test_two_workers_share_the_partitions_and_take_over(
    kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app = App(kafka, tmp_path, unique("app"), partitions=2).create_topics()
    streams = {0: events(300, seed=2), 1: events(300, seed=3)}

    def produce(start: int, stop: int) -> None:
        for partition, values in streams.items():
            app.produce(values[start:stop], partition)

    def lanes(worker: Running, url: str) -> list[int]:
        health = json.loads(fetch(url.replace("/metrics", "/healthz")) or "{}")
        return sorted(lane["partition"] for lane in health.get("apps", {}).get(app.name, {}).get("lanes", []))

    produce(0, 100)
    with Running(app) as first:
        first_url = first.metrics_url()
        app.await_scores({0: 100, 1: 100}, first)
        with Running(app) as second:
            second_url = second.metrics_url()
            wait_for(
                "one partition each",
                lambda: (
                    sorted(lanes(first, first_url) + lanes(second, second_url)) == [0, 1]
                    and len(lanes(first, first_url)) == 1
                ),
                explain=lambda: first.log() + second.log(),
            )
            gone = f'partition="{lanes(second, second_url)[0]}"'
            assert gone not in fetch(first_url)
            produce(100, 200)
            app.await_scores({0: 200, 1: 200}, second)
            assert first.stop() == 0, first.log()
            produce(200, 300)
            rows = app.await_scores({0: 300, 1: 300}, second)
            assert second.stop() == 0, second.log()
    for partition, values in streams.items():
        expected, state = app.reference(values, partition)
        assert scores_by_offset(rows, partition) == {o: {s} for o, s in enumerate(expected)}
        assert same(app.snapshot(partition), state)
