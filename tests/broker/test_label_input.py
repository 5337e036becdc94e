"""Bad input of a lane whose labels come later: each has one outcome, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.applications import Inside, ends
from harness.kafka import Cluster
from harness.late_labels import BEGIN, make_app, n_due, read_topic, send, verify_learned
from harness.worker_process import wait_for

from streampair.engine import OrderedRecord

Unique = Callable[[str], str]
SECOND, AFTER, HOUR = 1000, 3000, 3_600_000
# Codes of labels, as the log has them.
ABSENT, LEARNED_FALSE, LEARNED_TRUE, NOT_LEARNED, STOPPED = 0, 1, 2, 3, 4


class Case(NamedTuple):
    """An event, its labels, and what comes of them.

    Attributes
    ----------
    timestamp
        Timestamp of the event, from the begin.
    labels
        Delay and value of each; the id is that of the event.
    outcome
        The code of the label that the event is learned with.
    sent_on
        Reasons for which labels are sent on.
    id
        Of the event; None: that of the case.
    """

    timestamp: int
    labels: list[tuple[int, bytes | None]]
    outcome: int
    sent_on: Sequence[str] = ()
    id: str | None = None


TRUE, FALSE, DECLINED = b'"fraud": true', b'"fraud": false', b'"fraud": "declined"'
UNUSED = "no event had this id in time"

CASES = {
    "usual": Case(0, [(SECOND, TRUE)], LEARNED_TRUE),
    "no label": Case(0, [], ABSENT),
    "at the last moment": Case(0, [(AFTER, TRUE)], LEARNED_TRUE),
    "too late": Case(0, [(AFTER + 1, TRUE)], ABSENT, [UNUSED]),
    "before its event, within lateness": Case(0, [(-SECOND, TRUE)], LEARNED_TRUE),
    "before its event": Case(0, [(-SECOND - 1, TRUE)], ABSENT, [UNUSED]),
    "twice": Case(0, [(SECOND, TRUE), (2 * SECOND, TRUE)], LEARNED_TRUE),
    "contradicting": Case(0, [(2 * SECOND, TRUE), (SECOND, FALSE)], LEARNED_FALSE),
    "stopped": Case(0, [(SECOND, DECLINED)], STOPPED),
    "stopped twice": Case(0, [(SECOND, DECLINED), (2 * SECOND, DECLINED)], STOPPED),
    "stopped, then with a label": Case(0, [(2 * SECOND, TRUE), (SECOND, DECLINED)], STOPPED),
    "with a label, then stopped": Case(0, [(SECOND, TRUE), (2 * SECOND, DECLINED)], LEARNED_TRUE),
    "stopped too late": Case(0, [(AFTER + 1, DECLINED)], ABSENT, [UNUSED]),
    "stopped, in other letters": Case(
        0, [(SECOND, b'"fraud": "Declined"')], ABSENT, ['write in [label_input]: stopped = "Declined"']
    ),
    "no class": Case(0, [(SECOND, b'"fraud": "maybe"')], ABSENT, ["unknown label"]),
    "without a label": Case(0, [(SECOND, b'"other": 1')], ABSENT, ["no label in field"]),
    "not JSON": Case(0, [(SECOND, b'"fraud": oops')], ABSENT, ["is no label"]),
    "a tombstone": Case(0, [(SECOND, None)], ABSENT, ["tombstone"]),
    "an event without id": Case(0, [], NOT_LEARNED, id=""),
    "the first of an id": Case(0, [(SECOND, TRUE)], LEARNED_TRUE, id="used twice"),
    "the second of an id": Case(SECOND, [], ABSENT, id="used twice"),
    "stamped an hour before the event before": Case(-HOUR, [(SECOND, TRUE)], ABSENT, [UNUSED]),
    "stamped a second before the event before": Case(2 * SECOND, [(SECOND, TRUE)], LEARNED_TRUE),
}


def messages() -> tuple[list[Any], list[Any], list[int], list[tuple[str, str]]]:
    """Events and labels to be sent; the outcome of each event; id and reason of each label sent on."""
    events, labels, outcomes, sent_on = [], [], [], []
    for number, (name, case) in enumerate(CASES.items()):
        identity = name if case.id is None else case.id
        time = BEGIN + 3 * SECOND * number + case.timestamp
        value = {"f0": 0.1, "f1": 0.2, "f2": 0.3, "f3": number / 10}
        if identity:
            value["payment"] = identity  # type: ignore[assignment]
        events.append((0, time, json.dumps(value).encode(), None))
        for delay, text in case.labels:
            body = None if text is None else b'{"payment": "%s", %s}' % (identity.encode(), text)
            labels.append((0, time + delay, body, identity.encode()))
        outcomes.append(case.outcome)
        sent_on += [(identity, reason) for reason in case.sent_on]
    labels += [
        (0, BEGIN, b'{"fraud": true}', b"without id"),
        (0, BEGIN, b'{"payment": "nobody", "fraud": true}', b"nobody"),
        (0, BEGIN, b'{"payment": "nobody else", "fraud": "declined"}', b"nobody else"),
    ]
    sent_on += [("without id", "has no id"), ("nobody", UNUSED), ("nobody else", UNUSED)]
    return events, labels, outcomes, sent_on


def due_records(events: list[Any], outcomes: list[int]) -> list[OrderedRecord]:
    """The events of one partition, in their order, as a lane takes them with these labels."""
    return [
        OrderedRecord(number, value, None, time, partition=0, position=number, label=code)
        for number, ((_, time, value, _), code) in enumerate(zip(events, outcomes, strict=True))
    ]


@pytest.mark.parametrize("batch", [4, 200])
def test_each_has_one_outcome(kafka: Cluster, unique: Unique, tmp_path: Path, store: str, batch: int) -> None:
    """However many records are taken at once, and so between two commits."""
    app = make_app(kafka, tmp_path, unique("app"), store=store, partitions=1, more='stopped = "declined"')
    app.path.write_text(app.path.read_text().replace('after = "30d"', 'after = "3s"\nlateness = "1s"'))
    app.path.write_text(app.path.read_text().replace("batch_size = 20", f"batch_size = {batch}"))
    events, labels, outcomes, sent_on = messages()
    # One from the future counts as of its arrival, and a label of each second is there for it. It also makes
    # the labels of the others old enough to be sent on.
    now = round(time.time() * 1000)
    value = b'{"f0": 0, "f1": 0, "f2": 0, "f3": 0, "payment": "from the future"}'
    last = (0, now + HOUR // 6, value, None)
    body = b'{"payment": "from the future", "fraud": true}'
    labels += [(0, now + SECOND * number, body, b"from the future") for number in range(120)]
    asyncio.run(send(app.kafka.bootstrap, f"{app.name}-labels", labels))
    asyncio.run(send(app.kafka.bootstrap, app.input, [*events, last]))
    count = len(events) + 1
    with Inside(app) as worker:
        app.await_scores(ends(count, 1), worker)
        wait_for("all are due", lambda: n_due(worker) == count)
        assert worker.stop() is None
    found = sorted(
        (record.key.decode(), dict(record.headers)["streampair.reason"].decode())
        for record in read_topic(app, f"{app.name}-late-labels")
        if record.key != b"from the future"  # those before its arrival
    )
    assert [identity for identity, _ in found] == sorted(identity for identity, _ in sent_on)
    for (_, said), (_, meant) in zip(found, sorted(sent_on), strict=True):
        assert meant in said
    verify_learned(app, due_records([*events, last], [*outcomes, LEARNED_TRUE]))
