"""`streampair serve` beside a worker: it follows the model topic, and produces events and labels."""

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
from harness.late_labels import create, late_app, read_topic
from harness.serving import Answer, Serving
from harness.worker_process import wait_for
from streampair_connectors.config import load_config
from streampair_connectors.serve.model_source import TopicModel
from streampair_connectors.serve.options import ServeOptions
from streampair_connectors.serve.scoring import config_decoder
from streampair_connectors.serve.server import ScoringServer
from streampair_connectors.stores.spending import read_stored

from streampair.errors import ConfigError

pytestmark = pytest.mark.newest

Unique = Callable[[str], str]
PARALLEL = 'scoring = "parallel"\n'
PRIVATE = (
    f'{PARALLEL}class = "streampair.auc.PairFTRL"\noptions = {{ epsilon = 2.0, delta = 1e-3, horizon = 200 }}'
)


def served(app: App, **options: Any) -> Serving:
    """A server of the newest model of an application."""
    config = load_config(app.path)
    chosen = ServeOptions(**{"name": app.name, "port": 0, **options})
    return Serving(ScoringServer(TopicModel(config), config_decoder(config), chosen, config))


def account(app: App) -> dict[str, Any]:
    """The account of the lane, as it is stored."""
    (found,) = asyncio.run(read_stored(load_config(app.path))).as_dict()["accounts"]
    return dict(found)


def slots(serving: Serving) -> int:
    answer = serving.get("/readyz").json["model"]
    return -1 if answer is None else int(answer["slots"])


def post_event(serving: Serving, value: bytes, key: str, query: str = "") -> Answer:
    return serving.post(f"/events{query}", value, Idempotency_Key=key)


@pytest.fixture
def make(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> Callable[..., App]:
    def app(learner: str = f"{PARALLEL}{PAIR_OGD}", **options: Any) -> App:
        options = {"store": "kafka", "partitions": 1, "scope": "application", **options}
        return App(apache_kafka, tmp_path, unique("app"), learner=learner, **options)

    return app


def test_events_are_scored_and_learned_and_the_newest_model_answers(make: Callable[..., App]) -> None:
    app = make(PRIVATE).create_topics(message_timestamp_type="LogAppendTime")
    values = events(120)
    with served(app) as serving:
        assert serving.post("/score", values[0]).status == 503
        early = post_event(serving, values[0], "event-0")  # an event can be learned before there is a model
        assert (early.status, early.json["score"]) == (200, None)
        with Inside(app) as worker:
            for number, value in enumerate(values[1:], 1):
                assert post_event(serving, value, f"event-{number}").status == 200
            wait_for("all learned", lambda: worker.learned() == 120, explain=worker.health)
            wait_for("the newest model", lambda: slots(serving) == 120)
            again = post_event(serving, values[0], "event-0")
            other = post_event(serving, values[1], "event-0")
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
    assert again.body == early.body
    assert other.status == 422
    # The bits of the published model; and the spend is as it was.
    assert answer.json["score"] == model.score_one(x) != 0.0
    assert answer.json["model"] == {"name": app.name, "slots": 120, "time": model.time}
    assert 0.0 < spent["epsilon_spent"] <= 2.0
    # Each event is one record, as it was sent.
    records = [record.value for record in read_topic(app, app.input)]
    assert sorted(records) == sorted(values)


def test_bad_events_are_not_produced(make: Callable[..., App]) -> None:
    app = make().create_topics(message_timestamp_type="LogAppendTime")
    good = events(1)[0]
    with served(app) as serving:
        assert post_event(serving, b'{"f0": 1}', "1").status == 422
        assert post_event(serving, b"oops", "2").status == 400
        assert post_event(serving, good, "").status == 400
        assert serving.post("/events", good).status == 400
        assert serving.post("/label", b"{}").status == 404
        sent = serving.post("/events?key=k7", good, Idempotency_Key="3", traceparent="00-1-2-01")
        assert sent.status == 200
    with served(app, workers=2) as serving:
        assert "--workers 1" in post_event(serving, good, "4").json["fix"]
    (record,) = read_topic(app, app.input)
    assert (record.key, record.value) == (b"k7", good)
    assert dict(record.headers) == {"traceparent": b"00-1-2-01"}


def test_labels_go_to_their_topic(make: Callable[..., App]) -> None:
    app = create(late_app(make()), label_partitions=1)
    event = {**dict.fromkeys(FEATURES, 0.5), "payment": "p1"}
    with served(app) as serving:
        assert serving.post("/label", {"payment": "p1", "fraud": True}).json == {"stored": True}
        for body in (
            {"payment": "p1"},
            {"fraud": True},
            {"payment": "p1", "fraud": "perhaps"},
            {"payment": []},
        ):
            refused = serving.post("/label", body)
            assert refused.status == 422, body
        assert serving.post("/label", b"oops").status == 400
        without = serving.post("/events", dict.fromkeys(FEATURES, 0.5), Idempotency_Key="1")
        assert serving.post("/events", event, Idempotency_Key="2").json["id"] == "p1"
    assert without.status == 422
    assert "no id in 'payment'" in without.json["error"]
    assert [json.loads(each.value) for each in read_topic(app, f"{app.name}-labels")] == [
        {"payment": "p1", "fraud": True}
    ]
    assert [json.loads(each.value) for each in read_topic(app, app.input)] == [event]


def test_an_event_that_timed_out_is_produced_once(
    stoppable_kafka: KafkaBroker, unique: Unique, tmp_path: Path
) -> None:
    """The broker is away: a retry with the same key waits for the first attempt."""
    app = App(
        stoppable_kafka, tmp_path, unique("app"), learner=f"{PARALLEL}{PAIR_OGD}", store="kafka", partitions=1
    ).create_topics(message_timestamp_type="LogAppendTime")
    first, second = events(2)
    with served(app, timeout_seconds=2.0) as serving:
        assert post_event(serving, first, "1").status == 200
        stoppable_kafka.stop()
        try:
            refused = post_event(serving, second, "2")
        finally:
            stoppable_kafka.start()
        assert refused.status == 503
        assert refused.headers["Retry-After"]
        wait_for("the event is stored", lambda: post_event(serving, second, "2").status == 200)
        assert post_event(serving, second, "2").status == 200
    assert [record.value for record in read_topic(app, app.input)] == [first, second]


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
