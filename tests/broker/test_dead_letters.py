"""`streampair dlq`: causes of dead letters, and their events sent again, each once."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.applications import LOGISTIC, App, Inside, events, read_until
from harness.kafka import Cluster
from harness.terminal import OnTerminal
from streampair_connectors.cli.app import app as command
from streampair_connectors.kafka import TransactionalProducer
from streampair_connectors.worker import dead_letters
from typer.testing import CliRunner

from streampair.errors import SourceError

Unique = Callable[[str], str]

NO_JSON, NO_FEATURE = [b"{oops", b"[}", b"oops2"], [b'{"f0": 1, "f1": 2, "f2": 3, "y": true}'] * 2


def call(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(command, ["dlq", *map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def app(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> App:
    """An application whose worker has met five bad events among good ones, and has stopped."""
    app = App(apache_kafka, tmp_path, unique("app"), learner=LOGISTIC).create_topics()
    app.produce([*events(10), *NO_JSON, *NO_FEATURE])
    app.produce([b'{"f0": 1}'], key=b"k", headers=[("trace", b"t1")], timestamp_ms=1_700_000_000_000)
    work(app, 6)
    return app


def work(app: App, letters: int) -> None:
    with Inside(app) as worker:
        app.await_dead_letters(letters)
        assert worker.stop() is None


def input_of(app: App, count: int) -> list[Any]:
    return asyncio.run(
        read_until(app.kafka.bootstrap, app.input, lambda rows: len(rows) >= count, committed=True)
    )


def test_dead_letters_are_listed_by_cause_and_shown(app: App) -> None:
    found = call("list", app.path)
    assert (found["topic"], found["waiting"]) == (app.dead, 6)
    by_stage = Counter()
    for cause in found["causes"]:
        by_stage[cause["stage"]] += cause["waiting"]
    assert by_stage == {"decode": 3, "features": 3}
    missing = next(cause for cause in found["causes"] if "'f3'" in cause["error"])
    assert (missing["waiting"], missing["newest"]) == (2, f"{app.input}-0@14")
    letters = call("show", app.path, "--cause", missing["name"])["letters"]
    assert [letter["source_offset"] for letter in letters] == [14, 13]
    assert "value" not in letters[0], "an event is printed only if it is asked for"
    letters = call("show", app.path, "--cause", missing["name"], "--values", "--limit", 1)["letters"]
    assert [letter["value"] for letter in letters] == [NO_FEATURE[0].decode()]


def test_an_event_is_sent_again_once_as_it_was(app: App) -> None:
    causes = {cause["error"]: cause["name"] for cause in call("list", app.path)["causes"]}
    assert "--yes" in call("replay", app.path, code=2)["fix"]
    missing = next(name for error, name in causes.items() if "'f1'" in error)
    assert call("replay", app.path, "--cause", missing, "--yes")["replayed"] == 1
    assert call("replay", app.path, "--yes")["replayed"] == 5
    assert call("replay", app.path, "--yes")["replayed"] == 0
    assert call("list", app.path)["waiting"] == 0
    again = input_of(app, 22)[16:]
    assert Counter(record.value for record in again) == Counter([*NO_JSON, *NO_FEATURE, b'{"f0": 1}'])
    first = again[0]
    assert (first.key, first.timestamp) == (b"k", 1_700_000_000_000)
    assert dict(first.headers)["trace"] == b"t1"
    # They fail again: new letters, which say so.
    work(app, 6 + 2 + 6)
    found = call("list", app.path)
    assert (found["waiting"], sum(cause["again"] for cause in found["causes"])) == (6, 6)
    assert call("list", app.path)["causes"][0]["replayed"] > 0


def test_the_question_before_events_are_sent_again(app: App, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "streampair_connectors", "dlq", "replay", str(app.path)]
    for answer, code in (("n\n", 1), ("", 130), ("\x04", 1)):
        terminal = OnTerminal(words, tmp_path)
        assert f"Send 6 events to {app.input} again? [y/N]: " in terminal.read_until("[y/N]: ")
        terminal.type(answer) if answer else terminal.interrupt()
        terminal.rest()
        assert terminal.process.returncode == code, terminal.written
    assert call("list", app.path)["waiting"] == 6
    assert call("replay", app.path, "-y")["replayed"] == 6


def test_whatever_dies_an_event_is_sent_again_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = TransactionalProducer._commit
    commits = 0

    async def dying(self: TransactionalProducer, producer: Any, seconds: float) -> None:
        nonlocal commits
        commits += 1
        if commits == 2:
            raise SourceError("it died before the commit", fix="none")
        await commit(self, producer, seconds)
        if commits == 3:
            raise SourceError("it died after the commit", fix="none")

    monkeypatch.setattr(TransactionalProducer, "_commit", dying)
    monkeypatch.setattr(dead_letters, "_CHUNK", 2)
    assert "before" in call("replay", app.path, "--yes", code=1)["error"]
    assert "after" in call("replay", app.path, "--yes", code=1)["error"]
    monkeypatch.undo()
    assert call("replay", app.path, "--yes")["replayed"] == 2
    again = input_of(app, 22)[16:]
    assert Counter(record.value for record in again) == Counter([*NO_JSON, *NO_FEATURE, b'{"f0": 1}'])


def test_a_private_learner_gets_no_second_slot(app: App) -> None:
    learner = 'class = "streampair.auc.PairFTRL"\noptions = { epsilon = 1.0, delta = 1e-4, horizon = 1000 }\n'
    text = app.path.read_text()
    first = text.index('class = "')
    app.path.write_text(text[:first] + learner + text[text.index("[store]") :])
    assert "slot" in call("replay", app.path, "--yes", code=2)["error"]
    assert len(input_of(app, 16)) == 16


def test_what_is_no_dead_letter_of_the_application_is_left_alone(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app = App(apache_kafka, tmp_path, unique("app"))
    assert "does not exist" in call("list", app.path, code=2)["error"]
    app.create_topics()
    assert call("list", app.path) == {"topic": app.dead, "waiting": 0, "causes": []}
