"""Scores are routed as Kafka's own clients route them: by key, or without one by input partition."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest
from streampair_connectors.codecs.records import Encoder
from streampair_connectors.config import parse_config
from streampair_connectors.kafka import Partition, Routes
from streampair_connectors.kafka.client import size_of
from streampair_connectors.kafka.producer import headers_size, split_messages
from streampair_connectors.worker.dead_letters import _stored
from streampair_connectors.worker.outputs import OutputMessages

from streampair.engine import DeadLetter, OrderedRecord, Scored

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
    config = parse_config({**CONFIG_TABLE, "output": {"alert_above": 2.0}})
    routes = Routes({"a-scores": 1, "a-dead-letters": 1, "a-alerts": 3})
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
    assert sorted(alerts) == sorted((routes.target("a-alerts", b"k%d" % n, 0), n) for n in (1, 3))


TRACE = ("traceparent", None)


def record_with(value: bytes, key: bytes | None, headers: list[tuple[str, bytes | None]]) -> OrderedRecord:
    return OrderedRecord(0, value, key, 1000, partition=0, position=0, clock=1000, headers=headers)


def outputs_of(record: OrderedRecord) -> tuple[Any, Any]:
    """The message of the score of a record, and that of its dead letter."""
    out: dict[Partition, list[Any]] = {}
    encoder = Encoder(app="a", learner="PairOGD", topic="events", partition=0)
    messages = OutputMessages(CONFIG, Routes({"a-scores": 1, "a-dead-letters": 1}))
    messages.scores(out, encoder, [record], [Scored(0, record.key, None, 0.5, "learned")], [(0, 0)])
    letter = DeadLetter(0, record.key, record.value, 1000, "decode", "bad")
    messages.dead_letters(out, encoder, [record], [letter], [(0, 0)])
    return out[Partition("a-scores", 0)][0], out[Partition("a-dead-letters", 0)][0]


def test_a_header_without_a_value_is_sent_on() -> None:
    score, letter = outputs_of(record_with(b"{", None, [TRACE, ("other", None)]))
    assert score.headers == [TRACE]
    assert letter.headers[:2] == [TRACE, ("other", None)]
    for message in (score, letter):
        assert split_messages([message], 4096, size_of([message])) == [message]


def test_a_dead_letter_is_read_whose_headers_have_no_value() -> None:
    names = ["traceparent", "streampair.stage", "streampair.error", "streampair.offset"]
    record: Any = SimpleNamespace(offset=7, key=None, value=b"{", headers=[(name, None) for name in names])
    letter = _stored(0, record, dict(record.headers))
    assert (letter.stage, letter.error, letter.source_offset) == ("", "", -1)
    assert letter.headers == [TRACE]


@pytest.mark.parametrize("size", [1, 1_000_000, 5_000_000])
def test_large_headers_and_keys_leave_room_for_the_value(size: int) -> None:
    """No message is larger than the topic takes, and the parts of a value are the value."""
    limit, value = CONFIG.output.max_message_bytes, b"v" * 1_000_000
    headers: list[tuple[str, bytes | None]]
    headers = [("large", b"h" * size), ("empty", None), *[(f"h{n}", b"x" * 100) for n in range(20_000)]]
    score, letter = outputs_of(record_with(value, b"k" * size, headers))
    for message in (score, letter):
        for part in split_messages([message], limit, size_of([message])):
            assert len(part.key or b"") + len(part.value) + headers_size(part.headers) <= limit
    assert b"".join(part.value for part in split_messages([letter], limit, size_of([letter]))) == value
    kept = [header for header in letter.headers if not header[0].startswith("streampair.")]
    assert kept == [header for header in headers if header in kept]
    assert ("empty", None) in kept
    dropped = dict(letter.headers)["streampair.headers_dropped"]
    assert int(dropped) == len(headers) - len(kept)
    assert (letter.key is None) == (size > 1)
