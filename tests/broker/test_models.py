"""A model topic: the newest model of each lane, read to its end and merged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from harness.applications import produce
from harness.kafka import Cluster
from streampair_connectors.config import KafkaConfig
from streampair_connectors.models import LaneModel, encode_model, merge, read_models

from streampair.errors import RecordError, SourceError

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
        with pytest.raises(RecordError, match="no model of a lane"):
            await read_models(settings, topic)

    asyncio.run(body())
