"""The state of a worker: one at a time, each change said once, and the last word kept to the end."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from streampair_connectors.config import parse_config
from streampair_connectors.observability import logs
from streampair_connectors.observability.health import Health
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.worker.flow_control import Backlog
from streampair_connectors.worker.worker import Worker

from streampair.errors import SourceError


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """What is logged, while the test runs."""
    stream = io.StringIO()
    loggers = [logging.getLogger(name) for name in ("streampair_connectors", "aiokafka")]
    before = [(list(one.handlers), one.level, one.propagate) for one in loggers]
    logs.configure("info", stream)
    yield stream
    for one, (handlers, level, propagate) in zip(loggers, before, strict=True):
        one.handlers[:] = handlers
        one.setLevel(level)
        one.propagate = propagate


def events(stream: io.StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in stream.getvalue().splitlines()]


def state(telemetry: Telemetry) -> str:
    return str(telemetry.health_report()[1]["fraud"]["state"])


def test_trouble_is_reported_once_and_so_is_its_end(stream: io.StringIO) -> None:
    telemetry = Telemetry()
    health = Health("fraud", telemetry)
    health.starting()
    health.running()
    for _ in range(3):
        health.waiting("no broker answers")
        assert state(telemetry) == "waiting"
    report = telemetry.health_report()[1]["fraud"]
    assert report["detail"] == "no broker answers"
    assert "start the broker" in str(report["next_step"])
    for _ in range(2):
        health.running()
        assert state(telemetry) == "running"
    assert events(stream) == ["waiting", "running_again"]
    health.waiting("again")
    assert events(stream)[-1] == "waiting"


def test_who_stops_says_nothing_else_until_it_has_stopped(stream: io.StringIO) -> None:
    telemetry = Telemetry()
    health = Health("fraud", telemetry)
    health.running()
    health.stopping()
    health.waiting("no broker answers")
    assert state(telemetry) == "stopping"
    health.running()
    assert state(telemetry) == "stopping"
    health.stopped()
    assert state(telemetry) == "stopped"
    assert events(stream) == ["stopping", "waiting", "stopped"]


def test_a_failure_says_what_to_do() -> None:
    telemetry = Telemetry()
    health = Health("fraud", telemetry)
    health.failed(SourceError("topic 'x' does not exist", fix="create it"))
    assert telemetry.health_report() == (
        False,
        {
            "fraud": {
                "state": "failed",
                "detail": "topic 'x' does not exist",
                "next_step": "create it",
                "lanes": [],
            }
        },
    )


def test_a_log_for_people_has_the_same_fields_on_one_line() -> None:
    out = io.StringIO()
    ours = logging.getLogger("streampair_connectors")
    before = list(ours.handlers), ours.level, ours.propagate
    try:
        logs.configure("info", out, "text")
        log = logs.get_logger("streampair_connectors.test")
        log.warning("events_lost", app="fraud", partition=0, lag=None, next_step='raise "retention.ms"\nnow')
        log.info("stopped")
    finally:
        ours.handlers[:], ours.level, ours.propagate = before
    first, second = out.getvalue().splitlines()
    time, rest = first.split(" ", 1)
    assert time.endswith("Z")
    assert rest == (
        r'WARNING events_lost app=fraud partition=0 lag=null next_step="raise \"retention.ms\"\nnow"'
    )
    assert second.split(" ", 1)[1] == "INFO    stopped"


def test_a_backlog_is_reported_until_it_is_gone(stream: io.StringIO) -> None:
    """Rate, lag, and the time to catch up: from what waits, not from the rate alone."""
    now = 0.0
    backlog = Backlog("fraud", clock=lambda: now)
    assert backlog.update(0, 100_000) is None
    now = 9.0
    assert backlog.update(9_000, 96_000) is None  # no line is due
    now = 10.0
    problem = backlog.update(10_000, 95_000)  # 500 more come each second
    assert problem == {"events_per_second": 1000.0, "lag": 95_000, "seconds_to_catch_up": 190.0}
    now = 20.0
    problem = backlog.update(20_000, 105_000)
    assert problem == {"events_per_second": 1000.0, "lag": 105_000, "seconds_to_catch_up": None}
    now = 30.0
    assert backlog.update(120_000, 5_000) is None  # what is left takes half a second
    now = 40.0
    assert backlog.update(125_000, 0) is None
    assert events(stream) == ["progress", "progress", "caught_up"]
    assert json.loads(stream.getvalue().splitlines()[-1])["seconds"] == 30.0


@pytest.mark.parametrize(
    ("roles", "names"),
    [
        (["learn", "score"], {"fraud", "fraud.scorers"}),
        (["learn"], {"fraud"}),
        (["score"], {"fraud.scorers"}),
    ],
)
def test_a_worker_has_the_state_of_what_it_does(roles: list[str], names: set[str]) -> None:
    """One that scores alone would otherwise wait for ever to be ready to learn."""
    table = {"topic": "events", "label": "y", "features": ["a"]}
    config = parse_config(
        {
            "app": "fraud",
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "input": table,
            "learner": {"class": "streampair.auc.PairOGD", "scoring": "parallel"},
            "worker": {"roles": roles},
        }
    )
    worker = Worker(config)
    _, report = worker.telemetry.health_report()
    assert set(report) == names
    assert {state["state"] for state in report.values()} == {"starting"}
    worker.stop()
    assert {state["state"] for state in worker.telemetry.health_report()[1].values()} == {"stopping"}
