"""Scores in Avro, and their schema in a registry."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from harness.schema_registry import Registry
from pydantic import SecretStr
from streampair_connectors.codecs.records import Encoder
from streampair_connectors.codecs.scores import PublishedScore, score_reader
from streampair_connectors.config import Config, parse_config
from streampair_connectors.kafka import Message, Partition, Routes
from streampair_connectors.worker.factory import exploration_of
from streampair_connectors.worker.outputs import OutputMessages

from streampair.engine import Scored
from streampair.errors import ConfigError, SourceError

SCORED = [
    Scored(7, b"k", "payment", 0.25, "learned", None, [("amount", 0.5), ("age", -0.25)]),
    Scored(8, None, None, None, "dead_letter"),
    Scored(9, b"k", None, 1.5, "scored", {"bike": 0.25, 1: 0.75}),
    Scored(10, b"k", None, 1.0, "scored"),
    *(Scored(offset, b"k", None, 2.5, "scored") for offset in range(11, 15)),
]


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.close()


SECRET = SecretStr("5a" * 32)


def configured(registry: Registry, kind: str = "avro") -> Config:
    table: dict[str, Any] = {
        "app": "fraud",
        "input": {"features": ["amount"]},
        "label_input": {"topic": "l", "id": "key", "label": "y", "after": "1d", "stopped": "declined"},
        "output": {"format": kind, "alert_above": 1.0, "explore": 0.5, "explore_key_file": SECRET},
        "learner": {"class": "streampair.auc.PairOGD"},
    }
    return parse_config(table | ({"schema_registry": {"url": registry.url}} if kind == "avro" else {}))


def messages(config: Config) -> dict[Partition, list[Message]]:
    topics = dict.fromkeys((config.output_topic, str(config.alert_topic)), 1)
    out: dict[Partition, list[Message]] = {}
    encoder = Encoder(app="fraud", learner="PairOGD", topic="payments", partition=2)
    records: Any = [SimpleNamespace(timestamp=1000, headers=()) for _ in SCORED]
    places = [(2, each.offset) for each in SCORED]
    OutputMessages(config, Routes(topics)).scores(out, encoder, records, SCORED, places, model=40)
    return out


def test_scores_in_avro_have_the_fields_of_json(registry: Registry) -> None:
    config = configured(registry)
    found, wanted = messages(config), messages(configured(registry, "json"))
    assert list(found) == list(wanted) == [Partition("fraud-alerts", 0), Partition("fraud-scores", 0)]
    (number,) = registry.schemas
    assert list(registry.subjects) == ["/subjects/fraud-scores-value/versions/1"]
    schema = fastavro.parse_schema(json.loads(registry.schemas[number]["schema"]))
    for partition, of_json in wanted.items():
        for message, other in zip(found[partition], of_json, strict=True):
            assert message.key == other.key
            assert message.value is not None
            assert other.value is not None
            assert message.value[:5] == b"\0" + number.to_bytes(4, "big")
            row: Any = fastavro.schemaless_reader(io.BytesIO(message.value[5:]), schema, None)
            fields = json.loads(other.value)
            assert {name: value for name, value in row.items() if value is not None} == {
                name: value for name, value in fields.items() if value is not None
            }
            values = row["partition"], row["offset"], row["score"]
            for kind, value in (("avro", message.value), ("json", other.value)):
                read = score_reader(configured(registry, kind), PublishedScore)(value)
                assert (read.partition, read.offset, read.score) == values
            body = io.BytesIO()
            fastavro.schemaless_writer(body, schema, row | {"score": math.nan})
            nan = score_reader(config, PublishedScore)(message.value[:5] + body.getvalue())
            assert (nan.offset, nan.score) == (row["offset"], None)
            assert ("explore" in fields) == ("share" in fields) == (fields["score"] is not None)
            explore = exploration_of(config)
            if explore is not None and fields["score"] is not None:
                assert (fields["threshold"], fields["share"]) == (1.0, 0.5)
                assert fields["explore"] == explore.marks(fields["score"], 2, fields["offset"])
    marks = [json.loads(each.value or b"").get("explore") for each in wanted[Partition("fraud-scores", 0)]]
    assert {*marks[2:]} == {True, False}
    assert [*marks[:2]] == [False, None]


def test_the_schema_is_registered_once(registry: Registry) -> None:
    config = configured(registry)
    first, second = messages(config), messages(config)
    assert first == second
    subject = "/subjects/fraud-scores-value"
    assert registry.requests == [subject, f"{subject}/versions", subject]


def test_a_subject_with_another_schema_is_refused(registry: Registry) -> None:
    registry.locked.add("/subjects/fraud-scores-value/versions")
    with pytest.raises(ConfigError, match="another schema for subject 'fraud-scores-value'") as caught:
        messages(configured(registry))
    assert "secret" not in str(caught.value)


def test_a_registry_that_does_not_answer_is_waited_for(registry: Registry) -> None:
    registry.status = 503
    with pytest.raises(SourceError, match="status 503") as caught:
        messages(configured(registry))
    assert caught.value.retriable
