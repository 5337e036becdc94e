"""`streampair doctor`: problems in the order in which to mend them."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.applications import App, events
from harness.kafka import Cluster
from streampair_connectors.cli.app import app as command
from typer.testing import CliRunner

pytestmark = pytest.mark.newest(scope="application", store="directory")

Unique = Callable[[str], str]


def examine(app: App, code: int = 0) -> dict[str, dict[str, Any]]:
    """The findings by what was checked."""
    result = CliRunner().invoke(command, ["doctor", str(app.path), "--json"])
    assert result.exit_code == code, result.output
    return {each["check"]: each for each in json.loads(result.stdout.splitlines()[-1])["findings"]}


@pytest.fixture
def app(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> App:
    return App(apache_kafka, tmp_path, unique("app"))


def test_what_is_well_is_ready_to_run(app: App) -> None:
    app.create_topics()
    app.produce(events(3))
    found = examine(app)
    assert {"learner", "kafka", "rights", "codecs", "disk", "kernels", "clock"} <= found.keys()
    assert not any(each.get("warning") for each in found.values())
    said = CliRunner().invoke(command, ["doctor", str(app.path)]).stdout.splitlines()
    assert said == [f"{len(found)} checks passed, 0 failed, 0 warned: ready to run"]


def test_problems_are_numbered_with_their_fixes(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(50 * 2**20))
    result = CliRunner().invoke(command, ["doctor", str(app.path)])
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    problems, fixes = lines[0:-1:2], lines[1:-1:2]
    keys = ["input.topic", "output.topic", "output.dead_letter_topic", "disk"]
    assert [problem.split(":")[0] for problem in problems] == [f"{i}. {key}" for i, key in enumerate(keys, 1)]
    assert all(fix.startswith("   fix: ") for fix in fixes)


@pytest.mark.parametrize("by_broker", [True, False])
def test_a_clock_that_is_behind_is_seen(app: App, monkeypatch: pytest.MonkeyPatch, by_broker: bool) -> None:
    app.create_topics(message_timestamp_type="LogAppendTime" if by_broker else "CreateTime")
    assert "no record" in examine(app)["clock"]["text"]
    app.produce(events(3))
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() - 14_400.0)
    found = examine(app, code=1 if by_broker else 0)["clock"]
    assert "4 hours" in found["text"]
    assert found["ok"] != by_broker
    assert found.get("warning", False) != by_broker
