"""`streampair model export` beside a worker: the model of the topic, and that of a store in Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.applications import PAIR_OGD, App, Inside, events
from harness.kafka import Cluster
from harness.worker_process import wait_for
from streampair_connectors.cli.app import app as command
from typer.testing import CliRunner

from streampair import models

PRIVATE = (
    'class = "streampair.auc.PairFTRL"\n'
    "options = { epsilon = 1.0, delta = 1e-4, horizon = 1000, warmup = 20, window = 20, forks = 60 }"
)


def export(app: App, file: Path, *options: str, code: int = 0) -> dict[str, object]:
    arguments = ["model", "export", str(app.path), "--output", str(file), "--json", *options]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == code, result.output
    return dict(json.loads(result.stdout.splitlines()[-1]))


def fields_of(model: models.Model) -> dict[str, object]:
    """What is in the file of a model but for its time; of the metadata the application and its settings."""
    named = [model.metadata[name] for name in ("application", "configuration")]
    return {**json.loads(models.dumps(model)), "time": None, "metadata": named}


@pytest.mark.parametrize("learner", [PAIR_OGD, PRIVATE], ids=["PairOGD", "PairFTRL"])
def test_a_model_is_exported_while_a_worker_runs(
    apache_kafka: Cluster, unique: Callable[[str], str], tmp_path: Path, store: str, learner: str
) -> None:
    name = unique("app")
    topic = f'[output]\nmodel_topic = "{name}-models"'
    made = App(apache_kafka, tmp_path, name, learner=learner, settings=topic, store=store).create_topics()
    file = tmp_path / "model.json"
    assert "has no model" in str(export(made, file, code=1)["error"])
    made.produce(events(200))
    with Inside(made) as worker:
        made.await_scores({0: 200}, worker)
        wait_for("a model of 200 events", lambda: export(made, file)["slots"] == 200)
        published = models.load(file)
        assert worker.stop() is None
    # What a worker that stops has stored scores as what it has published.
    assert export(made, file, "--stored")["slots"] == 200
    stored = models.load(file)
    assert fields_of(published) == fields_of(stored), "weights and spend are the same, after a clean stop"
    assert ("privacy_card" in stored.metadata) == ("privacy_card" in published.metadata)
    assert (published.privacy is None) == (learner == PAIR_OGD)
