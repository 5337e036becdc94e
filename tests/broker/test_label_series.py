"""What the series of a worker say of labels that come later."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from harness.applications import App, Inside
from harness.kafka import Cluster
from harness.late_labels import (
    AFTER,
    BEGIN,
    DAY,
    LATENESS,
    STOPPED,
    Event,
    Label,
    by_arrival,
    joined,
    make_app,
    send_events,
    send_labels,
    stream,
)
from harness.worker_process import wait_for
from streampair_connectors.worker.late_labels import LateLabelSource

Unique = Callable[[str], str]


def numbers(worker: Inside) -> dict[str, Any]:
    """The committed numbers of the lane, by name of the series."""
    telemetry = worker.telemetry
    (labels,) = telemetry.gauges(worker.app.name)
    return telemetry.values(labels)


def due(worker: Inside) -> int:
    """Events that were due, as committed."""
    gauges = worker.telemetry.gauges(worker.app.name).values()
    return sum(each.late.due for each in gauges if each.late is not None)


async def send_value(app: App, topic: str, value: bytes, *, time_ms: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=app.kafka.bootstrap) as producer:
        await producer.send_and_wait(topic, value, partition=0, timestamp_ms=time_ms)


def test_each_message_of_the_labels_topic_has_one_outcome(
    kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app = make_app(kafka, tmp_path, unique("app"), more='stopped = "declined"')
    app.path.write_text(app.path.read_text().replace("[output]\n", "[output]\nalert_above = 0.0\n"))
    kafka.create_topic(f"{app.name}-alerts")
    events, labels = stream(400, 2)
    made = joined(events, labels)
    first = [label for label in labels if any(e.id == label.id and code for e, code in made)][:5]
    again = [label._replace(time=label.time + 1000, value=label.value) for label in first[:3]]
    other = [label._replace(time=label.time + 1000, value=not label.value) for label in first[3:]]
    # Two events are stopped, and one that nobody knows, after all labels.
    stops = [Label(0, event.time + DAY, event.id, STOPPED) for event, code in made if not code][:2]
    stops.append(Label(0, BEGIN + 200 * DAY, "nobody", STOPPED))
    send_labels(app, sorted([*labels, *again, *other, *stops], key=lambda label: label.time))
    asyncio.run(send_value(app, f"{app.name}-labels", b"oops", time_ms=BEGIN))
    send_events(app, events)
    asyncio.run(send_value(app, app.input, b"{}", time_ms=BEGIN + 400 * DAY))  # an event without an id
    with Inside(app) as worker:
        wait_for("all were due", lambda: due(worker) == 401)
        source = worker.session._source
        assert isinstance(source, LateLabelSource)
        # A snapshot, a minute later, would forget it too.
        wait_for("what was taken is forgotten", lambda: not source._joined_ahead, seconds=20)
        assert worker.stop() is None
        found = numbers(worker)
        public = worker.telemetry.render(public=True).decode()
    used = [event for event, code in made if code]
    assert len(used) > 50
    outcomes = found["label_messages_total"]
    front = max(event.time for event in events)
    unused = [label for label in labels if label.id not in {event.id for event in used}]
    assert outcomes == {
        **{"used": len(used), "repeated": 3, "contradicting": 2, "unreadable": 1},
        **{"stopped": 2, "unused": len(unused) + 1, "late": 0},
    }
    assert front < BEGIN + 400 * DAY - 60 * DAY  # the last event lets all labels go
    assert found["labels_kept"] == 0
    assert found["due_events_total"] == {"yes": len(used), "no": 399 - len(used), "stopped": 2}
    assert found["events_without_id_total"] == 1
    assert found["events_pending"] == 0
    assert found["learned_to_seconds"] == (BEGIN + 400 * DAY) / 1000
    # That events are stopped does not say that labels still come.
    assert found["label_newest_seconds"] == max(label.time for label in labels) / 1000 < stops[2].time / 1000
    assert (found["labels_reading"], found["learning_lag_seconds"]) == (0.0, 0.0)
    assert (found["score_sample_events"], found["score_sample_share"]) == (0, 1.0)
    # Nobody knows how many positives are above it: those that were stopped have no label.
    assert not {"recall_at_threshold", "explored_events_total"} & found.keys()
    assert found["evaluated_events"] == 398
    known = {event.id: event.time for event in events}
    delays = sorted(
        min(label.time for label in labels if label.id == event.id) - known[event.id] for event in used
    )
    assert found["label_delay_seconds"].sum == pytest.approx(sum(delays) / 1000)
    assert found["label_delay_seconds"].buckets[f"{7 * 86_400.0}"] == sum(d <= 7 * DAY for d in delays)
    assert not re.search("label|due|pending", public)


def test_labels_that_are_used_when_they_come_are_counted(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app = make_app(apache_kafka, tmp_path, unique("app"), more='order = "arrival"')
    events, labels = stream(200, 2)
    send_labels(app, labels)
    send_events(app, events)
    wanted = [record for record in by_arrival(events, labels) if record.label]
    early = {(record.partition, record.position) for record in wanted if record.early}
    with Inside(app) as worker:
        wait_for("all were learned", lambda: due(worker) == 200)
        assert worker.stop() is None
        found = numbers(worker)
    assert len(early) > 30
    assert found["label_messages_total"]["used"] == len(wanted)
    delays = found["label_delay_seconds"]
    assert delays.buckets["+Inf"] == len(wanted)
    assert delays.sum == pytest.approx(sum(used_after(events, labels, early)) / 1000)


def used_after(events: list[Event], labels: list[Label], early: set[tuple[int, int]]) -> list[int]:
    """How long after their events the labels came that were used when they came."""
    positions, found = dict.fromkeys((0, 1), 0), []
    for event in events:
        place = (event.partition, positions[event.partition])
        positions[event.partition] += 1
        if place in early:
            mine = [label.time - event.time for label in labels if label.id == event.id]
            found.append(min(delay for delay in mine if delay >= -LATENESS))
    return found


def test_a_label_that_comes_too_late_counts_when_it_comes(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """Long before it leaves the table; and a worker that goes on from its snapshot knows of the event."""
    app = make_app(apache_kafka, tmp_path, unique("app"))
    events = [
        Event(0, BEGIN + 1000 * number, f"p{number}", event.value.replace(event.id.encode(), b"p%d" % number))
        for number, event in enumerate(stream(30, 1)[0])
    ]
    in_time = [Label(0, event.time + DAY, event.id, True) for event in events[:10]]
    late = [Label(1, event.time + AFTER + DAY, event.id, True) for event in events[10:13]]
    much_later = [Label(1, event.time + 3 * AFTER, event.id, True) for event in events[13:15]]
    send_labels(app, in_time)
    send_events(app, events)
    with Inside(app) as worker:
        wait_for("all were due", lambda: due(worker) == 30)
        assert worker.stop() is None
        assert numbers(worker)["sampled_labels_total"] == {"in_time": 10, "late": 0}
    send_labels(app, [*late, *much_later])
    with Inside(app) as worker:
        wait_for("the lane", lambda: worker.telemetry.gauges(app.name))
        wait_for("they are read", lambda: numbers(worker)["labels_kept"] >= 5)
        assert worker.stop() is None
        found = numbers(worker)
    assert found["sampled_labels_total"] == {"in_time": 10, "late": 3}
    assert found["label_messages_total"]["unused"] == 0


def test_while_the_labels_have_stopped_learning_lags(kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    app = make_app(kafka, tmp_path, unique("app"), more='quiet = "1h"')
    events, labels = stream(40, 2)
    send_labels(app, labels)
    send_events(app, events)
    with Inside(app) as worker:
        app.await_scores({0: 20, 1: 20})
        wait_for("labels were read again", lambda: numbers(worker).get("labels_reading") == 0.0)
        wait_for("the lag is known", lambda: numbers(worker)["learning_lag_seconds"] > 0)
        assert worker.stop() is None
        found = numbers(worker)
    assert found["events_pending"] == 40
    assert found["due_events_total"] == {"yes": 0, "no": 0}
    assert found["label_quiet_seconds"] == 3600
    assert found["learning_lag_seconds"] > 300 * 86_400
    assert found["score_sample_events"] == 40
