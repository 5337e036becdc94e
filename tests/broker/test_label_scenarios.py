"""Lanes whose labels come later: a takeover, labels that stop, and waits that change."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from harness.applications import App, Running, ends
from harness.kafka import Cluster
from harness.late_labels import (
    Label,
    by_arrival,
    due_offsets,
    due_records,
    make_app,
    send_events,
    send_labels,
    stream,
    verify_learned,
)
from harness.verifier import Nursery
from harness.worker_process import wait_for

Unique = Callable[[str], str]
HOUR = 3_600_000


def learned(app: App) -> int:
    return sum(due_offsets(app).values())


def test_scores_go_on_while_labels_are_read_again(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str, nursery: Nursery
) -> None:
    """After a kill another worker scores at once, and learns when it knows which labels have come."""
    app = make_app(apache_kafka, tmp_path, unique("app"), store=store)
    events, labels = stream(200, 2)
    send_labels(app, labels)
    send_events(app, events[:100])
    with nursery.start(app) as first:
        # What it has announced another worker learns at once: the log says with which labels.
        wait_for("all are learned", lambda: learned(app) == 100, explain=first.log)
        first.kill()
    with nursery.start(app, step="labels: sought", action="hold") as second:
        second.await_log("trap")
        send_events(app, events[100:])
        app.await_scores(ends(200, 2), committed=True)
        assert learned(app) == 100
        second.signal(signal.SIGUSR1)
        wait_for("all are learned", lambda: learned(app) == 200, explain=second.log)
        assert second.stop() == 0, second.log()
    verify_learned(app, due_records(events, labels))


def test_a_rebalance_while_labels_find_their_events_loses_none(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str, nursery: Nursery
) -> None:
    """The commit of a rebalance comes while a worker reads the events of labels again, to learn them."""
    app = make_app(apache_kafka, tmp_path, unique("app"), store=store, more='order = "arrival"')
    events, labels = stream(200, 2)
    send_labels(app, labels)
    send_events(app, events)
    with nursery.start(app, step="early: an event found", action="hold") as first:
        first.await_log("trap")
        with nursery.start(app) as second:  # it joins the group
            first.await_log("lane_revoked")
            first.signal(signal.SIGUSR1)
            wait_for("all are learned", lambda: learned(app) == 200, explain=first.log)
            assert second.stop() == 0, second.log()
        assert first.stop() == 0, first.log()
    verify_learned(app, by_arrival(events, labels))


def test_absences_wait_while_no_label_comes(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    """And go on with the next label, whatever event it is for."""
    app = make_app(apache_kafka, tmp_path, unique("app"), store=store, more='quiet = "1h"')
    events, labels = stream(100, 2)
    send_labels(app, labels)
    send_events(app, events)
    with Running(app) as worker:
        worker.await_log("labels_have_stopped")
        app.await_scores(ends(100, 2))
        assert learned(app) == 0
        send_labels(app, [Label(0, round(time.time() * 1000), "nobody", True)])
        wait_for("all are learned", lambda: learned(app) == 100, explain=worker.log)
        assert worker.stop() == 0, worker.log()
    verify_learned(app, due_records(events, labels))


def test_events_keep_their_wait_when_after_grows(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    app = make_app(apache_kafka, tmp_path, unique("app"), store=store)
    text = app.path.read_text()
    then = round(time.time() * 1000) - 3 * HOUR
    events, _ = stream(40, 2)
    events = [event._replace(time=then + 100 * number) for number, event in enumerate(events)]
    labels = [Label(0, event.time + 1, event.id, True) for event in events[::2]]
    # In time by the later setting, and not by that with which their events came.
    too_late = [Label(0, event.time + HOUR + 1, event.id, True) for event in events[1:20:2]]
    # They are due after an hour, and held back since no label has come for one.
    held_back = 'after = "1h"\nlateness = "0s"\nquiet = "1h"'
    app.path.write_text(text.replace('after = "30d"', held_back))
    send_labels(app, [*labels, *too_late])
    send_events(app, events[:20])
    with Running(app) as worker:
        app.await_scores(ends(20, 2), worker)
        assert worker.stop() == 0, worker.log()
    assert learned(app) == 0
    app.path.write_text(text.replace('after = "30d"', 'after = "30d"\nlateness = "0s"'))
    send_events(app, events[20:])
    with Running(app) as worker:
        app.await_scores(ends(40, 2), worker)
        wait_for("the first are learned", lambda: learned(app) == 20, explain=worker.log)
        worker.await_log("labels_after_changed")
        assert worker.stop() == 0, worker.log()
    assert due_offsets(app) == {0: 10, 1: 10}
    verify_learned(app, due_records(events[:20], labels))
