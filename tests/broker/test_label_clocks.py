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
    late_labels,
    make_app,
    send_events,
    send_labels,
    sent,
    stream,
    verify_learned,
)
from harness.verifier import Nursery
from harness.worker_process import wait_for

AFTER, LATENESS = 2000, 1000
COUNT = 90


def live_app(kafka: Cluster, directory: Path, name: str, store: str) -> App:
    app = make_app(kafka, directory, name, store=store, times="LogAppendTime")
    text = app.path.read_text().replace(
        'after = "30d"', f'after = "{AFTER}ms"\nlateness = "{LATENESS}ms"\nquiet = "1m"'
    )
    app.path.write_text(text)
    return app


def feed(app: App, bursts: range) -> None:
    """Some of three bursts of events, and labels half a second after each: of some none, of some too late."""
    events, _ = stream(COUNT, 2)
    labels = [Label(n % 2, 0, each.id, n % 3 == 0) for n, each in enumerate(events) if n % 4]
    late = set(range(0, len(labels), 7))
    for burst in (events[30 * number : 30 * number + 30] for number in bursts):
        ids = {each.id for each in burst}
        send_events(app, burst)
        time.sleep(0.5)
        send_labels(app, [each for n, each in enumerate(labels) if each.id in ids and n not in late])
    if bursts.stop == 3:
        time.sleep((AFTER + LATENESS) / 1000)
        send_labels(app, [labels[n] for n in sorted(late)])


@pytest.mark.directory  # which has another way to tell which host is ahead
@pytest.mark.parametrize("ahead", [0, 3600, -3600], ids=["the same", "an hour ahead", "an hour behind"])
def test_a_live_lane_learns_each_event_with_its_label(
    apache_kafka: Cluster,
    unique: Callable[[str], str],
    tmp_path: Path,
    nursery: Nursery,
    ahead: int,
    store: str,
) -> None:
    """By the timestamps that the brokers have set, whatever the clock of the second of two hosts says."""
    app = live_app(apache_kafka, tmp_path, unique("app"), store)
    with nursery.start(app) as first:
        first.await_log("lane_opened")
        feed(app, range(1))
        assert first.stop() == 0, first.log()
    with nursery.start(app, clock=ahead) as worker:
        worker.await_log("lane_opened")
        feed(app, range(1, 3))
        wait_for("all are learned", lambda: sum(due_offsets(app).values()) == COUNT, explain=worker.log)
        assert worker.stop() == 0, worker.log()
    assert worker.said("clock_is_behind") is (ahead < 0)
    events, labels = sent(app)
    times = {"after": AFTER, "lateness": LATENESS}
    codes = [code for _, code in joined(events, labels, **times)]
    assert min(codes.count(code) for code in (0, 1, 2)) > 5
    verify_learned(app, due_records(events, labels, **times))


def test_where_producers_set_the_timestamps_a_host_that_is_ahead_learns_too_soon_and_loses_nothing(
    apache_kafka: Cluster, unique: Callable[[str], str], tmp_path: Path, nursery: Nursery
) -> None:
    """With a directory. Each event is learned once, as absent, and each label is sent on."""
    app = make_app(apache_kafka, tmp_path, unique("app"), store="directory")
    app.path.write_text(app.path.read_text().replace('after = "30d"', 'after = "1m"\nlateness = "1s"'))
    now = round(time.time() * 1000)
    events = [each._replace(time=now + n) for n, each in enumerate(stream(40, 2)[0])]
    labels = [Label(n % 2, each.time + 10, each.id, True) for n, each in enumerate(events[:30])]
    with nursery.start(app, clock=3600) as worker:
        worker.await_log("lane_opened")
        send_events(app, events)
        wait_for("all are learned", lambda: sum(due_offsets(app).values()) == 40, explain=worker.log)
        send_labels(app, labels)
        send_events(app, [each._replace(time=now + 10_000) for each in stream(50, 2)[0][40:]])
        wait_for("labels are sent on", lambda: len(late_labels(app)) == 30, explain=worker.log)
        assert worker.stop() == 0, worker.log()
    # The second one of labels that are read more than `lateness` after their timestamps, on a busy machine.
    reasons = {"no event had this id in time", "every event that it could be for was learned before"}
    assert {reason for _, reason in late_labels(app)} <= reasons
    assert sum(due_offsets(app).values()) == 50
