"""`streampair check --deep`: disk, kernels and clock."""

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

Unique = Callable[[str], str]


def examine(app: App, code: int = 0, *, deep: bool = True) -> dict[str, dict[str, Any]]:
    """The findings by what was checked."""
    options = ["--deep"] if deep else []
    result = CliRunner().invoke(command, ["check", str(app.path), "--json", *options])
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
    said = CliRunner().invoke(command, ["check", "--deep", str(app.path)]).stdout.splitlines()
    assert said[-1] == "ready to run"
    assert not {"disk", "kernels", "clock"} & examine(app, deep=False).keys()


def test_a_full_disk_fails(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    app.create_topics()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(50 * 2**20))
    found = examine(app, code=1)
    assert "50 MiB are free" in found["disk"]["text"]
    assert "free at least" in found["disk"]["fix"]
    assert [each["check"] for each in found.values() if not each["ok"]] == ["disk"]


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
