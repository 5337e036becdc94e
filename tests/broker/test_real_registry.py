"""Apicurio Registry and its Kafka serializer; the small registry of other tests must answer as it does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from harness import apicurio, support
from harness.apache_kafka import java
from harness.apicurio import ApicurioRegistry
from harness.kafka import Unavailable
from harness.schema_registry import Registry, avro, record_schema
from streampair_connectors.codecs.formats import event_decoder, schema_registry
from streampair_connectors.codecs.registry import SchemaRegistry
from streampair_connectors.codecs.scores import SCORE_SCHEMA, score_reader, score_writer
from streampair_connectors.config import Config, parse_config

from streampair.engine import Record
from streampair.errors import ConfigError, RecordError

GOLDEN = support.ROOT / "tests" / "golden" / "avro"
PRICE = [{"name": "price", "type": "double"}]


class Row(msgspec.Struct):
    app: str
    learner: str = "PairOGD"
    topic: str = "payments"
    partition: int = 0
    offset: int = 7
    score: float | None = 0.25
    outcome: str = "scored"


@pytest.fixture(scope="module")
def real() -> Iterator[ApicurioRegistry]:
    try:
        started = ApicurioRegistry()
    except Unavailable as gone:
        support.unavailable(gone.what, gone.hint)
    support.note_used("registries", f"Apicurio Registry {apicurio.version()}")
    yield started
    started.close()


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.broker), "small"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a registry. What holds of the real one must hold of the small one."""
    if request.param == "real":
        yield request.getfixturevalue("real").url
        return
    small = Registry()
    yield small.url
    small.close()


def registered(url: str, subject: str, schema: Any, **more: Any) -> int:
    """Id of a schema, which is registered."""
    posted = {"schema": json.dumps(schema), **more}
    status, answer = apicurio.request(f"{url}/subjects/{subject}/versions", posted)
    assert status == 200, answer
    return int(answer["id"])


def configured(url: str, app: str = "test", *, output: str = "json", **more: Any) -> Config:
    declared = {"label": "label", "format": "avro", "features": ["price"], **more}
    return parse_config(
        {
            "app": app,
            "input": declared,
            "output": {"format": output},
            "learner": {"class": "streampair.auc.PairOGD"},
            "schema_registry": {"url": url},
        }
    )


def client(url: str) -> SchemaRegistry:
    found = schema_registry(configured(url))
    assert found is not None
    return found


def test_answers_of_a_registry(url: str, unique: Callable[[str], str]) -> None:
    subject, other, missing = unique("prices"), unique("others"), unique("missing")
    schema = record_schema(PRICE)
    number = registered(url, subject, schema)
    assert registered(url, subject, schema) == registered(url, other, schema) == number
    paths: dict[str, tuple[Any, int, int | None]] = {
        f"/schemas/ids/{number}": (None, 200, None),
        "/schemas/ids/4294967295": (None, 404, 40403),
        f"/subjects/{subject}/versions/1": (None, 200, None),
        f"/subjects/{subject}/versions/2": (None, 404, 40402),
        f"/subjects/{missing}/versions/1": (None, 404, 40401),
        f"/subjects/{subject}": ({"schema": json.dumps(schema)}, 200, None),
        f"/subjects/{other}": ({"schema": json.dumps(record_schema([]))}, 404, 40403),
        f"/subjects/{missing}": ({"schema": json.dumps(schema)}, 404, 40401),
    }
    found = {path: apicurio.request(url + path, posted) for path, (posted, _, _) in paths.items()}
    assert {path: (status, answer.get("error_code")) for path, (status, answer) in found.items()} == {
        path: (status, code) for path, (_, status, code) in paths.items()
    }
    assert json.loads(found[f"/schemas/ids/{number}"][1]["schema"]) == schema
    assert found[f"/subjects/{subject}"][1]["id"] == number
    assert {subject, other} <= set(apicurio.request(f"{url}/subjects")[1])
    client(url).check()


def test_an_event_whose_schema_refers_to_others(url: str, unique: Callable[[str], str]) -> None:
    """The subject of one has a slash and a blank."""
    inner, money = unique("in%2Fner%20"), unique("money")
    unit = {"type": "enum", "name": "shop.Unit", "symbols": ["EUR", "USD"]}
    registered(url, inner, unit)
    fields = [{"name": "amount", "type": "double"}, {"name": "unit", "type": "shop.Unit"}]
    parts = [{"name": "shop.Unit", "subject": inner.replace("%2F", "/").replace("%20", " "), "version": 1}]
    registered(url, money, {"type": "record", "name": "shop.Money", "fields": fields}, references=parts)
    number = registered(
        url,
        unique("orders"),
        {"type": "record", "name": "Order", "fields": [{"name": "price", "type": "shop.Money"}]},
        references=[{"name": "shop.Money", "subject": money, "version": 1}],
    )
    decode = event_decoder(configured(url, features=["price.amount", "price.unit"]), texts=True)
    event = b"\0" + number.to_bytes(4, "big") + b"\0\0\0\0\0\0\xf8\x3f\x02"
    assert decode(Record(0, event)).x == {"price.amount": 1.5, "price.unit": "USD"}


def test_ids_that_are_of_no_event(url: str, unique: Callable[[str], str]) -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    number = registered(url, unique("json"), schema, schemaType="JSON")
    decode = event_decoder(configured(url))
    for wrong, problem in ((number, "another kind than Avro"), (2**32 - 1, "no registry gives ids from")):
        with pytest.raises(RecordError, match=problem):
            decode(Record(0, avro(PRICE, {"price": 1.0}, wrong)))


def test_the_schema_of_scores_is_registered_once(url: str, unique: Callable[[str], str]) -> None:
    config = configured(url, unique("scores"), output="avro")
    messages = []
    for _ in range(2):
        write = score_writer(config)
        assert write is not None
        messages += write([Row(config.app)])
    assert messages[0] == messages[1]
    assert score_reader(config, Row)(messages[0]) == Row(config.app)
    number = int.from_bytes(messages[0][1:5], "big")
    assert client(url).schema(number) == (SCORE_SCHEMA, [])
    _, versions = apicurio.request(f"{url}/subjects/{config.output_topic}-value/versions/2")
    assert versions["error_code"] == 40402


@pytest.mark.broker
def test_a_rule_of_compatibility_refuses_the_schema_of_scores(
    real: ApicurioRegistry, unique: Callable[[str], str]
) -> None:
    config = configured(real.url, unique("strict"), output="avro")
    subject = f"{config.output_topic}-value"
    other = {**SCORE_SCHEMA, "fields": [{"name": "score", "type": "string"}]}
    registered(real.url, subject, other)
    rule = {"compatibility": "BACKWARD"}
    assert apicurio.request(f"{real.url}/config/{subject}", rule, "PUT")[0] == 200
    with pytest.raises(ConfigError, match=f"another schema for subject '{subject}'") as caught:
        score_writer(config)
    assert "output.topic" in caught.value.fix


@pytest.mark.broker
def test_the_committed_events_are_those_of_a_java_producer(real: ApicurioRegistry) -> None:
    """Its serializer registers nested records and enums under subjects of their own, and refers to them.

    With ``> tests/golden/avro/events.txt`` this is the command that wrote them.
    """
    runtime, _ = java()
    program, api = str(GOLDEN / "WriteEvents.java"), f"{real.home}/apis/registry/v3"
    command = [runtime, "-XX:TieredStopAtLevel=1", "-cp", f"{apicurio.jars()}/serializer/*"]
    done = subprocess.run([*command, program, api, str(GOLDEN)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    events = [(name, bytes.fromhex(text)) for name, text in map(str.split, done.stdout.splitlines())]
    wanted = [line.split() for line in (GOLDEN / "events.txt").read_text().splitlines()]
    assert [(name, event[5:].hex()) for name, event in events] == [(name, text[10:]) for name, text in wanted]
    features = {"payment": ["card.age", "card.owner.score", "enum", "decimal"], "reading": ["int", "long"]}
    for name, names in features.items():
        by_id: Any = event_decoder(configured(real.url, features=names), texts=True)
        options = {"features": names, "label": "label", "format": "avro", "schema_file": f"{name}.avsc"}
        learner = {"class": "streampair.auc.PairOGD"}
        by_file = event_decoder(
            parse_config({"app": "test", "input": options, "learner": learner}, base=GOLDEN), texts=True
        )
        for kind, event in events:
            if kind == name:
                assert by_id(Record(0, event)) == by_file(Record(0, event[5:]))
    _, references = client(real.url).schema(int.from_bytes(events[0][1][1:5], "big"))
    assert {each["name"] for each in references} >= {"Card", "CardData", "Owner"}
