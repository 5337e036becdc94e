"""Scores are routed as Kafka's own clients route them: by key, or without one by input partition."""

from __future__ import annotations

import json
import random
from typing import Any

from streampair_connectors.codecs.records import Encoder
from streampair_connectors.config import parse_config
from streampair_connectors.kafka import Partition, Routes
from streampair_connectors.worker.outputs import OutputMessages

from streampair.engine import OrderedRecord, Scored

CONFIG_TABLE = {
    "app": "a",
    "kafka": {"bootstrap_servers": "nowhere:1"},
    "input": {"topic": "events", "label": "y", "features": ["x"]},
    "learner": {"class": "streampair.auc.PairOGD"},
}
CONFIG = parse_config(CONFIG_TABLE)


def test_each_score_goes_to_the_partition_of_its_key_or_of_its_event() -> None:
    coin, routes = random.Random(1), Routes({"a-scores": 5, "a-dead-letters": 1})
    keys = [coin.choice([None, b"k1", b"k2", b"k3"]) for _ in range(200)]
    places = [(coin.randrange(8), offset) for offset in range(200)]
    expected: dict[Partition, list[tuple[int, int]]] = {}
    for key, place in zip(keys, places, strict=True):
        expected.setdefault(routes.target("a-scores", key, place[0]), []).append(place)
    out: dict[Partition, list[Any]] = {}
    encoder = Encoder(app="a", learner="PairOGD", topic="events", partition=0)
    for start in range(0, 200, 70):  # as slices come
        part = slice(start, start + 70)
        records = [
            OrderedRecord(number, b"", keys[number], 1000, partition=place[0], position=place[1], clock=1000)
            for number, place in list(enumerate(places))[part]
        ]
        scored = [Scored(each.offset, each.key, None, 0.5, "learned") for each in records]
        OutputMessages(CONFIG, routes).scores(out, encoder, records, scored, places[part])
    found = {
        target: [(row["partition"], row["offset"]) for row in (json.loads(m.value) for m in messages)]
        for target, messages in out.items()
    }
    assert found == expected
    assert len(found) == 5


def test_scores_of_at_least_the_limit_are_alerts_too() -> None:
    config = parse_config({**CONFIG_TABLE, "output": {"alert_above": 2.0, "alert_topic": "high"}})
    routes = Routes({"a-scores": 1, "a-dead-letters": 1, "high": 3})
    values = [1.9, 2.0, None, 2.5, -3.0]
    records = [
        OrderedRecord(offset, b"", b"k%d" % offset, 1000, partition=0, position=offset, clock=1000)
        for offset in range(len(values))
    ]
    scored = [Scored(each.offset, each.key, None, values[each.offset], "learned") for each in records]
    encoder = Encoder(app="a", learner="PairOGD", topic="events", partition=0)
    out: dict[Partition, list[Any]] = {}
    OutputMessages(config, routes).scores(out, encoder, records, scored, [(0, n) for n in range(len(values))])
    assert len(out.pop(Partition("a-scores", 0))) == len(values)
    alerts = [(target, json.loads(m.value)["offset"]) for target, messages in out.items() for m in messages]
    assert sorted(alerts) == sorted((routes.target("high", b"k%d" % n, 0), n) for n in (1, 3))
