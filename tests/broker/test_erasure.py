"""`streampair erasure`: records of a key are found wherever the application has put them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.applications import LOGISTIC, App, Inside, events
from harness.kafka import Cluster
from streampair_connectors.cli.app import app as command
from typer.testing import CliRunner


def find(app: App, *arguments: str, code: int = 1) -> list[dict[str, Any]]:
    result = CliRunner().invoke(command, ["erasure", str(app.path), *arguments, "--json"])
    assert result.exit_code == code, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["records"]
    return found


def test_records_of_a_key_are_found_in_every_topic(
    kafka: Cluster, unique: Callable[[str], str], tmp_path: Path
) -> None:
    app = App(kafka, tmp_path, unique("app"), learner=LOGISTIC).create_topics()
    app.produce(events(5), key=b"somebody else")
    app.produce([*events(3, seed=2), b'{"f0": "customer-17"}'], key=b"customer-17")
    app.produce([None], key=b"customer-17")
    app.produce([b'{"note": "of customer-17"}'], key=b"somebody else")
    with Inside(app) as worker:
        app.await_scores({0: 11}, worker)
        app.await_dead_letters(2)
        assert worker.stop() is None
    found = find(app, "customer-17")
    by_topic = Counter(each["key_of_configuration"] for each in found)
    assert by_topic == {"input.topic": 5, "output.topic": 5, "output.dead_letter_topic": 1}
    assert [each["offset"] for each in found if each["tombstone"]] == [9]
    more = find(app, "customer-17", "--anywhere")
    assert len(more) == len(found) + 2
    assert find(app, "nobody", code=0) == []
    said = CliRunner().invoke(command, ["erasure", str(app.path), "customer-17"]).stdout
    assert f"input.topic {app.input}: 5 records, 1 of them tombstones" in said
    assert "f0" not in said
