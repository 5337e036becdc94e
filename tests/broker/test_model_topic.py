"""A model topic: the newest model of each lane, read to its end and merged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from harness.applications import FEATURES, LOGISTIC, PAIR_FTRL, App, Inside, events, produce
from harness.kafka import Cluster
from streampair_connectors.config import KafkaConfig
from streampair_connectors.worker.merged_models import LaneModel, encode_model, merge, read_models

from streampair.errors import ConfigError, RecordError, SourceError

Unique = Callable[[str], str]


def lane(partition: int, slots: int, weight: float) -> LaneModel:
    return LaneModel(1, "fraud", "L", "events", partition, slots, slots, ("a",), (weight,), None, None)


def test_the_newest_model_of_each_lane_is_merged(kafka: Cluster, unique: Unique) -> None:
    settings = KafkaConfig(bootstrap_servers=kafka.bootstrap)
    topic = kafka.create_topic(unique("models"), partitions=2, cleanup_policy="compact")

    async def body() -> None:
        with pytest.raises(SourceError, match="does not exist"):
            await read_models(settings, unique("no-topic"))
        assert await read_models(settings, topic) == []
        old, new, other, gone = lane(0, 10, 9.0), lane(0, 30, 1.0), lane(1, 10, 5.0), lane(2, 10, 7.0)
        for model in (old, gone, new):
            await produce(kafka.bootstrap, topic, [encode_model(model)], 0, key=model.key)
        await produce(kafka.bootstrap, topic, [None], 0, key=gone.key)
        await produce(kafka.bootstrap, topic, [encode_model(other)], 1, key=other.key)
        found = await read_models(settings, topic)
        assert sorted(found, key=lambda model: model.partition) == [new, other]
        merged = merge(found)
        assert (merged.slots, merged.score_one({"a": 2.0}), merged.weights) == (40, 4.0, {"a": 2.0})
        wrong = msgspec.json.encode({"format": 2})
        await produce(kafka.bootstrap, topic, [wrong], 1, key=b"what")
        with pytest.raises(RecordError, match="not a model of a lane"):
            await read_models(settings, topic)

    asyncio.run(body())


def test_a_worker_publishes_the_model_of_each_lane(
    kafka: Cluster, unique: Unique, tmp_path: Path, store: str
) -> None:
    """What is read back and merged scores as the lanes do, each counted by its slots."""
    name = unique("app")
    app = App(
        kafka,
        tmp_path,
        name,
        scope="partition",
        partitions=2,
        learner=PAIR_FTRL,
        store=store,
        settings=f'[output]\nmodel_topic = "{name}-models"',
    ).create_topics()
    kafka.create_topic(f"{name}-models", cleanup_policy="compact")
    for partition, count in ((0, 90), (1, 30)):
        app.produce(events(count, seed=partition), partition)
    with Inside(app) as worker:
        app.await_scores({0: 90, 1: 30}, worker)
        assert worker.stop() is None
        assert worker.worker is not None
    found = asyncio.run(read_models(KafkaConfig(bootstrap_servers=kafka.bootstrap), f"{name}-models"))
    merged = merge(found)
    assert {model.partition: model.slots for model in found} == {0: 90, 1: 30}
    assert merged.slots == 120
    assert merged.total is not None
    x = dict.fromkeys(FEATURES, 0.5)
    alone = [merge([model]).score_one(x) for model in sorted(found, key=lambda model: model.partition)]
    assert merged.score_one(x) == pytest.approx((90 * alone[0] + 30 * alone[1]) / 120)


def test_a_learner_without_weights_has_no_model_to_publish(
    kafka: Cluster, unique: Unique, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_KEY", "ab" * 32)
    name = unique("app")
    app = App(
        kafka, tmp_path, name, learner=LOGISTIC, settings=f'[output]\nmodel_topic = "{name}-models"'
    ).create_topics()
    kafka.create_topic(f"{name}-models")
    app.produce(events(20))
    with Inside(app) as worker:
        error = worker.end()
    assert isinstance(error, ConfigError)
    assert "remove output.model_topic" in str(error)
