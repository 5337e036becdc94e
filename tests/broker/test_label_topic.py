"""Labels on a topic of their own: events are scored when they come, and learned when they are due."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.applications import PAIR_FTRL, PAIR_OGD, App, Inside, Running, ends, produce
from harness.kafka import Cluster
from harness.late_labels import (
    DAY,
    Label,
    by_arrival,
    due_records,
    joined,
    late_app,
    late_labels,
    make_app,
    n_due,
    send_events,
    send_labels,
    stream,
    verify_learned,
    with_id,
)
from harness.worker_process import wait_for
from streampair_connectors.cli import app as cli
from streampair_connectors.cli import check
from typer.testing import CliRunner

from streampair.errors import PrivacyError

Unique = Callable[[str], str]


@pytest.fixture(params=[PAIR_OGD, PAIR_FTRL], ids=["PairOGD", "PairFTRL"])
def learner(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_backlog_finds_every_label_in_time(
    kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    app = make_app(kafka, tmp_path, unique("app"), store=store)
    events, labels = stream(400, 2)
    send_labels(app, labels)
    send_events(app, events)
    with Inside(app) as worker:
        rows = app.await_scores(ends(400, 2), committed=store == "kafka")
        wait_for("all are learned", lambda: n_due(worker) == 400)
        assert worker.stop() is None
    assert len(rows) == 400
    verify_learned(app, due_records(events, labels))
    codes = [code for _, code in joined(events, labels)]
    assert min(codes.count(code) for code in (0, 1, 2)) > 20


def test_labels_that_no_event_has_used_are_sent_on(
    kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    app = make_app(kafka, tmp_path, unique("app"), store=store)
    events, labels = stream(400, 2)
    known = {event.id: event.time for event in events}
    send_labels(app, labels)
    send_events(app, events)
    front = max(known.values()) - 2 * 60_000 - 100
    used = {event.id for event, code in joined(events, labels) if code}
    wanted = {label.id for label in labels if label.id not in used and label.time < front}
    with Inside(app) as worker:
        wait_for("all are learned", lambda: n_due(worker) == 400)
        assert worker.stop() is None
    found = late_labels(app)
    assert {identity for identity, _ in found} == wanted
    assert len(found) == len(wanted) > 10


@pytest.mark.parametrize("learner", [PAIR_OGD, PAIR_FTRL], ids=["PairOGD", "PairFTRL"])
def test_kill_9_loses_and_repeats_nothing(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str, learner: str
) -> None:
    """Labels that were used stay so while they are read again: an id that comes twice gets no second one."""
    if learner == PAIR_FTRL:
        learner = PAIR_FTRL.replace("warmup = 0", "warmup = 0, forks = 8")
    key = learner != PAIR_OGD
    app = make_app(apache_kafka, tmp_path, unique("app"), store=store, learner=learner)
    if key:
        app.path.write_text(app.path.read_text().replace('id = "payment"', 'id = "key"'))
    events, labels = stream(600, 2)
    for number in range(10, 600, 2):  # ids that come twice
        events[number] = with_id(events[number], events[number - 9].id)
    send_labels(app, labels)
    send_events(app, events[:300])
    for part in (events[300:450], events[450:]):
        worker = Running(app)
        app.await_scores(ends(60, 2), worker)
        worker.kill()
        send_events(app, part)
    with Inside(app) as last:
        rows = app.await_scores(ends(600, 2), committed=True)
        wait_for("all are learned", lambda: n_due(last) == 600)
        assert last.stop() is None
    if store == "kafka":
        assert len(rows) == 600
    if not key:
        verify_learned(app, due_records(events, labels))
    found = [identity for identity, _ in late_labels(app)]
    if store == "kafka":
        assert len(found) == len(set(found))


def test_scorers_score_what_the_learner_learns_later(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    learner = f'scoring = "parallel"\n{PAIR_OGD}'
    app = make_app(apache_kafka, tmp_path, unique("app"), store=store, learner=learner)
    events, labels = stream(400, 2)
    send_labels(app, labels)
    send_events(app, events)
    with Running(app.role("score")) as scorer, Running(app.role("learn")) as worker:
        rows = app.await_scores(ends(400, 2), scorer, committed=True)
        wait_for("all are learned", lambda: newest_model(app) == 400, explain=worker.log)
        assert worker.stop() == 0, worker.log()
        assert scorer.stop() == 0, scorer.log()
    assert len(rows) == len({(row["partition"], row["offset"]) for row in rows}) == 400
    verify_learned(app, due_records(events, labels))


def test_quality_is_that_of_the_scores_that_scorers_gave(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    learner = f'scoring = "parallel"\n{PAIR_OGD}'
    app = make_app(apache_kafka, tmp_path, unique("app"), store="kafka", learner=learner)
    events, labels = stream(400, 2)
    send_labels(app, labels)
    send_events(app, events[:200])
    with Inside(app.role("learn")) as worker:
        wait_for("half of them are learned, without scores", lambda: n_due(worker) == 200)
        assert worker.stop() is None
    # The others are due as they come, and held back until a label of today comes.
    app.path.write_text(app.path.read_text().replace('after = "30d"', 'after = "30d"\nquiet = "1h"'))
    send_events(app, events[200:])
    with Running(app.role("score")) as scorer, Inside(app.role("learn")) as worker:
        rows = app.await_scores(ends(400, 2), scorer, committed=True)
        assert n_due(worker) == 200
        # Only those of events that were not learned before.
        wait_for("the learner has read the scores", lambda: waiting_scores(worker) == 200)
        send_labels(app, [Label(0, round(time.time() * 1000), "nobody", True)])
        wait_for("all are learned", lambda: n_due(worker) == 400)
        gauges = next(iter(worker.telemetry.gauges(app.name).values()))
        assert worker.stop() is None
    codes = {event.id: code for event, code in joined(events, labels)}
    counts: dict[int, int] = {}
    score = {(row["partition"], row["offset"]): row["score"] for row in rows}
    positive, negative = [], []
    for number, event in enumerate(events):
        position = counts.get(event.partition, 0)
        counts[event.partition] = position + 1
        if number >= 200:
            found = positive if codes[event.id] == 2 else negative
            found.append(score[event.partition, position])
    wins = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    assert gauges.auc == pytest.approx(wins / len(positive) / len(negative))


def waiting_scores(worker: Inside) -> int:
    """How many scores the learner keeps for events that are not learned."""
    assert worker.worker is not None
    lane = worker.worker.lane
    return 0 if lane is None else len(lane.logged_lane.score_sample or ())


def newest_model(app: App) -> int | None:
    """How many events the newest published model has learned; None: there is none."""
    found = app.published()
    return None if found is None else found.model.slots


def test_events_wait_as_long_as_they_were_to_when_after_changes(
    kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    app = make_app(kafka, tmp_path, unique("app"), store=store)
    now = round(time.time() * 1000)
    events, _ = stream(40, 2)
    # Half of the events come before the change, and one day ago: they are not due for 29 days.
    events = [event._replace(time=now - DAY + 50 * number) for number, event in enumerate(events)]
    send_events(app, events[:20])
    with Inside(app) as worker:
        app.await_scores(ends(20, 2), worker)
        assert worker.stop() is None
    app.path.write_text(app.path.read_text().replace('after = "30d"', 'after = "1h"'))
    send_events(app, events[20:])
    with Inside(app) as worker:
        app.await_scores(ends(40, 2), worker)
        assert n_due(worker) == 0
        assert worker.stop() is None


def test_check_says_what_events_and_labels_need(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app = make_app(apache_kafka, tmp_path, unique("app"), store="kafka")

    def report() -> str:
        return CliRunner().invoke(cli.app, ["check", str(app.path)], env={"COLUMNS": "400"}).output

    assert f"labels from topic '{app.name}-labels', events learned 30 days after they come" in report()
    assert "can be gone by then" not in report()
    # Producers set the timestamps of this one.
    assert "ahead of its arrival by more than label_input.lateness (60 seconds)" in report()
    assert f"--alter --topic {app.input} --add-config message.timestamp.type=LogAppendTime" in report()
    stamped = make_app(apache_kafka, tmp_path, f"{app.name}-c", store="kafka", times="LogAppendTime")
    assert "label_input.lateness" not in CliRunner().invoke(cli.app, ["check", str(stamped.path)]).output
    short = late_app(App(apache_kafka, tmp_path, f"{app.name}-b", partitions=2, store="kafka"))
    short.create_topics(retention_ms=str(DAY), cleanup_policy="compact,delete")
    assert f"topic '{short.name}-labels' (label_input.topic) does not exist" in CliRunner().invoke(
        cli.app, ["check", str(short.path)]
    ).output.replace("\n", " ")
    apache_kafka.create_topic(f"{short.name}-labels", cleanup_policy="compact", retention_ms=str(DAY))
    found = " ".join(CliRunner().invoke(cli.app, ["check", str(short.path)]).output.split())
    assert found.count("can be gone by then") == 2
    assert "is compacted: of several labels of a key the last one may be left" in found
    assert "is compacted: of several events of a key the last one may be left" in found


def test_check_says_how_much_room_waiting_labels_of_a_private_learner_need(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in files, for which a volume may be too small; labels that have expired do not count."""
    app = make_app(apache_kafka, tmp_path, unique("app"), store="kafka", learner=PAIR_FTRL)
    app.path.write_text(app.path.read_text().replace('id = "payment"', 'id = "key"'))

    def found() -> dict[str, Any]:
        result = CliRunner().invoke(cli.app, ["check", str(app.path), "--json"])
        findings = json.loads(result.stdout.splitlines()[-1])["findings"]
        return next(each for each in findings if each["check"] == "labels")

    now = round(time.time() * 1000)
    for stamp, count in ((now - 40 * DAY, 3), (now - 29 * DAY, 5), (now, 7)):
        asyncio.run(
            produce(apache_kafka.bootstrap, f"{app.name}-labels", [b"{}"] * count, timestamp_ms=stamp)
        )
    assert ": 12 now, 1 MB. Leave 64 MiB there" in found()["text"]
    monkeypatch.setattr(check, "table_bytes", lambda count: 48_000_000 * count)
    assert "sizeLimit: 1152Mi" in found()["text"]
    monkeypatch.setattr(check, "table_bytes", lambda count: 2**60)
    assert found()["warning"]


def test_a_private_learner_needs_ids_outside_of_the_value(
    kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app = make_app(kafka, tmp_path, unique("app"), learner=PAIR_FTRL)
    with Inside(app) as worker:
        error = worker.end()
    assert isinstance(error, PrivacyError)
    assert "could take the label of another event" in str(error)


def test_an_event_is_learned_when_its_label_comes(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    """Those without a label are learned when they are due, between the labels that come then.

    So are those whose label came first: at its time nobody knows whether its event will come.
    """
    app = make_app(apache_kafka, tmp_path, unique("app"), store=store, more='order = "arrival"')
    events, labels = stream(400, 2)
    known = {label.id for label in labels}
    labels += [Label(0, each.time - 30_000, each.id, True) for each in events[::5] if each.id not in known]
    labels.sort(key=lambda label: label.time)
    send_labels(app, labels)
    send_events(app, events)
    with Inside(app) as worker:
        app.await_scores(ends(400, 2), worker)
        wait_for("all are learned", lambda: passed(worker) == 400)
        assert worker.stop() is None
    verify_learned(app, by_arrival(events, labels))


def passed(worker: Inside) -> int:
    """Events whose labels have had their time."""
    assert worker.worker is not None
    lane = worker.worker.lane
    if lane is None or lane.logged_lane.source is None:
        return 0
    return sum(each.next_offset for each in lane.logged_lane.source.due.values())
