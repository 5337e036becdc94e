"""`streampair serve` follows the model topic of a worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.apache_kafka import KafkaBroker
from harness.applications import FEATURES, PAIR_OGD, App, Inside, events
from harness.kafka import Cluster
from harness.late_labels import read_topic
from harness.serving import Serving
from harness.worker_process import wait_for
from streampair_connectors.config import load_config
from streampair_connectors.serve.model_source import TopicModel
from streampair_connectors.serve.options import ServeOptions
from streampair_connectors.serve.scoring import config_decoder
from streampair_connectors.serve.server import ScoringServer
from streampair_connectors.stores.spending import read_stored

from streampair.errors import ConfigError

Unique = Callable[[str], str]
PARALLEL = 'scoring = "parallel"\n'
PRIVATE = (
    f'{PARALLEL}class = "streampair.auc.PairFTRL"\noptions = {{ epsilon = 2.0, delta = 1e-3, horizon = 200 }}'
)


def served(app: App, **options: Any) -> Serving:
    """A server of the newest model of an application."""
    config = load_config(app.path)
    chosen = ServeOptions(**{"name": app.name, "port": 0, **options})
    return Serving(ScoringServer(TopicModel(config), config_decoder(config), chosen))


def account(app: App) -> dict[str, Any]:
    """The account of the lane, as it is stored."""
    (found,) = asyncio.run(read_stored(load_config(app.path))).as_dict()["accounts"]
    return dict(found)


def slots(serving: Serving) -> int:
    answer = serving.get("/readyz").json["model"]
    return -1 if answer is None else int(answer["slots"])


@pytest.fixture
def make(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> Callable[..., App]:
    def app(learner: str = f"{PARALLEL}{PAIR_OGD}", **options: Any) -> App:
        options = {"store": "kafka", "partitions": 1, **options}
        return App(apache_kafka, tmp_path, unique("app"), learner=learner, **options)

    return app


def test_the_newest_model_answers_and_nothing_is_spent(make: Callable[..., App]) -> None:
    app = make(PRIVATE).create_topics(message_timestamp_type="LogAppendTime")
    values = events(120)
    with served(app) as serving:
        assert serving.post("/score", values[0]).status == 503
        with Inside(app) as worker:
            app.produce(values)
            wait_for("all learned", lambda: worker.learned() == 120, explain=worker.health)
            wait_for("the newest model", lambda: slots(serving) == 120)
            spent = account(app)
            x = {name: json.loads(values[5])[name] for name in FEATURES}
            for _ in range(20):
                answer = serving.post("/score", values[5])
                serving.post("/score", [json.loads(each) for each in values[:50]])
            found = app.published()
            assert found is not None
            model = found.model
            assert account(app) == spent
            assert worker.learned() == 120
    # The bits of the published model; and the spend is as it was.
    assert answer.json["score"] == model.score_one(x) != 0.0
    assert answer.json["model"] == {"name": app.name, "slots": 120, "time": model.time}
    assert 0.0 < spent["epsilon_spent"] <= 2.0
    assert len(read_topic(app, app.input)) == 120


def test_the_last_model_answers_while_the_broker_is_away(
    stoppable_kafka: KafkaBroker, unique: Unique, tmp_path: Path
) -> None:
    app = App(
        stoppable_kafka, tmp_path, unique("app"), learner=f"{PARALLEL}{PAIR_OGD}", store="kafka", partitions=1
    ).create_topics(message_timestamp_type="LogAppendTime")
    values = events(30)
    with served(app) as serving:
        with Inside(app) as worker:
            app.produce(values)
            wait_for("all learned", lambda: worker.learned() == 30, explain=worker.health)
            wait_for("the newest model", lambda: slots(serving) == 30)
        before = serving.post("/score", values[5])
        stoppable_kafka.stop()
        try:
            assert serving.post("/score", values[5]).json == before.json
            assert serving.get("/readyz").status == 200
        finally:
            stoppable_kafka.start()
        assert serving.post("/score", values[5]).json == before.json


def test_an_application_without_models_is_refused(make: Callable[..., App]) -> None:
    app = make(PAIR_OGD)
    with pytest.raises(ConfigError, match="publishes no model") as error:
        TopicModel(load_config(app.path))
    assert "output.model_topic" in error.value.fix


def test_a_model_of_other_settings_ends_the_server(make: Callable[..., App]) -> None:
    app = make().create_topics(message_timestamp_type="LogAppendTime")
    with Inside(app) as worker:
        app.produce(events(30))
        wait_for("all learned", lambda: worker.learned() == 30)
    app.path.write_text(app.path.read_text().replace('label = "y"', 'label = "y"\npositive = false'))
    serving = served(app)
    differs = (
        "other settings.*: input.negative was false, now it is true; input.positive was true, now it is false"
    )
    with pytest.raises(ConfigError, match=differs), serving:
        serving._thread.join(60)
