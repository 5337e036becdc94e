"""Clocks of a lane whose labels come later: those of the brokers count, whatever the host's says."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.applications import App
from harness.kafka import Cluster
from harness.late_labels import (
    Label,
    due_offsets,
    due_records,
    joined,
    make_app,
    send_events,
    send_labels,
    sent,
    stream,
    verify_learned,
)
from harness.verifier import Nursery
from harness.worker_process import wait_for

pytestmark = pytest.mark.newest

AFTER, LATENESS = 2000, 1000
COUNT = 90


def live_app(kafka: Cluster, directory: Path, name: str, store: str) -> App:
    app = make_app(kafka, directory, name, store=store, times="LogAppendTime")
    text = app.path.read_text().replace('after = "30d"', f'after = "{AFTER}ms"\nlateness = "{LATENESS}ms"')
    app.path.write_text(text)
    return app


def feed(app: App) -> None:
    """Events in three bursts, and labels half a second after each: of some none, of some one too late."""
    events, _ = stream(COUNT, 2)
    labels = [Label(n % 2, 0, each.id, n % 3 == 0) for n, each in enumerate(events) if n % 4]
    late = set(range(0, len(labels), 7))
    for burst in (events[:30], events[30:60], events[60:]):
        ids = {each.id for each in burst}
        send_events(app, burst)
        time.sleep(0.5)
        send_labels(app, [each for n, each in enumerate(labels) if each.id in ids and n not in late])
    time.sleep((AFTER + LATENESS) / 1000)
    send_labels(app, [labels[n] for n in sorted(late)])


@pytest.mark.parametrize("ahead", [0, 3600, -3600], ids=["the same", "an hour ahead", "an hour behind"])
def test_a_live_lane_learns_each_event_with_its_label(
    apache_kafka: Cluster,
    unique: Callable[[str], str],
    tmp_path: Path,
    nursery: Nursery,
    ahead: int,
    store: str,
) -> None:
    """By the timestamps that the brokers have set. With a directory the host's clock counts."""
    if ahead and store == "directory":
        return
    app = live_app(apache_kafka, tmp_path, unique("app"), store)
    with nursery.start(app, clock=ahead) as worker:
        worker.await_log("lane_opened")
        feed(app)
        wait_for("all are learned", lambda: sum(due_offsets(app).values()) == COUNT, explain=worker.log)
        assert worker.stop() == 0, worker.log()
    assert worker.said("clock_is_behind") is (ahead < 0)
    events, labels = sent(app)
    times = {"after": AFTER, "lateness": LATENESS}
    codes = [code for _, code in joined(events, labels, **times)]
    assert min(codes.count(code) for code in (0, 1, 2)) > 5
    verify_learned(app, due_records(events, labels, **times))


def test_a_host_that_is_behind_is_logged_and_waits(
    apache_kafka: Cluster, unique: Callable[[str], str], tmp_path: Path, nursery: Nursery
) -> None:
    """With a directory nothing else says what the brokers' clock shows. What waits longer is not wrong."""
    app = live_app(apache_kafka, tmp_path, unique("app"), "directory")
    events, _ = stream(20, 2)
    with nursery.start(app, clock=-3600) as worker:
        worker.await_log("lane_opened")
        send_events(app, events)
        assert worker.await_log("clock_is_behind")["seconds"] in range(3500, 3700)
        app.await_scores({0: 10, 1: 10})
        assert worker.stop() == 0, worker.log()
    assert due_offsets(app) == {}
