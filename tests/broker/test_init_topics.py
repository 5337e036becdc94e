"""`streampair init` on topics: what it writes is checked and run as it stands."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from harness import pages
from harness.applications import produce
from harness.kafka import Cluster
from harness.schema_registry import Registry, avro
from harness.support import at_row
from harness.tiers import EXTERNAL
from harness.worker_process import WorkerProcess
from streampair_connectors.cli.app import app
from test_tiers import consume
from typer.testing import CliRunner

Unique = Callable[[str], str]

COUNT = 1000
PAGE = "docs/first-topic.md"
NO_PORT = ["--set", "metrics.address=127.0.0.1:0"]


def payments(count: int = COUNT) -> list[dict[str, Any]]:
    """Events as the page shows them: numbers as text, nested objects, times, a rare label."""
    coin = random.Random(7)
    made = []
    for number in range(count):
        fraud = coin.random() < 0.04
        amount = coin.uniform(300, 999) if fraud else coin.uniform(1, 700)
        age, country = coin.randint(18, 89), coin.choice(["BE", "DE", "NL"])
        customer = {"age": age, "country": country, "new": coin.random() < 0.3}
        moment = datetime(2026, 1, 31, 9, tzinfo=UTC) + timedelta(seconds=41 * number)
        made.append(
            {
                "payment_id": f"p-{number:06d}",
                "amount": f"{amount:.2f}",
                "customer": customer,
                "created": moment.isoformat().replace("+00:00", "Z"),
                "note": f"order {coin.random()}",
                "is_fraud": "Y" if fraud else "N",
            }
        )
    return made


def lines(rows: list[dict[str, Any]], **changed: Callable[[dict[str, Any]], Any]) -> list[bytes]:
    """Events as JSON; `changed`: fields that are computed from the others."""
    return [json.dumps({**row, **{name: of(row) for name, of in changed.items()}}).encode() for row in rows]


def fraud(row: dict[str, Any]) -> bool:
    return bool(row["is_fraud"] == "Y")


def milliseconds(row: dict[str, Any]) -> int:
    return int(datetime.fromisoformat(row["created"]).timestamp() * 1000)


def call(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def filled(kafka: Cluster, topic: str, values: list[bytes], partitions: int = 1) -> str:
    kafka.create_topic(topic, partitions)
    for number in range(partitions):
        asyncio.run(produce(kafka.bootstrap, topic, values[number::partitions], number))
    return topic


def drafted(kafka: Cluster, folder: Path, topic: str, *options: object) -> dict[str, Any]:
    """The tables that `init` writes for a topic, after `check` has accepted them as they stand."""
    file = folder / f"{topic}.toml"
    call("init", file, "--topic", topic, "--kafka", kafka.bootstrap, *options)
    text = file.read_text()
    assert len(text.splitlines()) <= 20
    said = call("check", file, "--create-topics", *NO_PORT).stdout
    assert said.endswith("ready to run\n"), said
    return tomllib.loads(text)


FEATURES = ["amount", "customer.age", "customer.country", "customer.new", "created.hour", "created.weekday"]
Y_N = {"label": "is_fraud", "positive": "Y", "negative": "N", "id": "payment_id"}
TRUE = {"label": "is_fraud", "positive": None, "id": "payment_id"}


def test_what_is_found_in_topics_of_json(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    rows = payments()
    iso = {"amount": "number", "created": "iso-8601"}
    wanted: dict[str, tuple[list[bytes], dict[str, Any]]] = {
        "texts": (lines(rows), {**Y_N, "features": FEATURES, "fields": iso}),
        "booleans": (lines(rows, is_fraud=fraud), {**TRUE, "features": FEATURES, "fields": iso}),
        "bits": (lines(rows, is_fraud=lambda row: int(fraud(row))), TRUE),
        "words": (lines(rows, is_fraud=lambda row: str(fraud(row)).lower()), TRUE),
        "epoch": (
            lines(rows, created=milliseconds, amount=lambda row: float(row["amount"])),
            {"features": FEATURES, "fields": {"created": "epoch-ms"}},
        ),
        "no-positive": (lines(rows, is_fraud=lambda _: False), TRUE),
        "nested": (
            [b'{"payload": %b}' % line for line in lines(rows)],
            {"label": "payload.is_fraud", "id": "payload.payment_id"},
        ),
        "two-shapes": (
            [line if i % 3 else b'{"kind": "refund", "back": %d}' % i for i, line in enumerate(lines(rows))],
            {**Y_N, "features": [*["kind", "back"], *FEATURES]},
        ),
        "broken": ([line if i % 10 else b"oops" for i, line in enumerate(lines(rows))], Y_N),
        "debezium": (
            [b'{"op": "c", "before": null, "after": %b}' % line for line in lines(rows)],
            {"envelope": "debezium", "label": "is_fraud"},
        ),
    }
    for name, (values, keys) in wanted.items():
        with at_row(name):
            topic = filled(apache_kafka, unique(name), values, partitions=2)
            found = drafted(apache_kafka, tmp_path, topic)["input"]
            assert sorted(found.get("features", [])) == sorted(keys.pop("features", found["features"]))
            assert {key: found.get(key) for key in keys} == keys


def test_bounds_of_a_private_learner_have_to_be_confirmed(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    topic = filled(apache_kafka, unique("private"), lines(payments()))
    found = drafted(apache_kafka, tmp_path, topic, "--private", "0.5")
    assert found["learner"]["class"] == "streampair.auc.PairFTRL"
    assert found["learner"]["options"] == {"epsilon": 0.5, "delta": 1e-6}
    assert found["input"]["features"] == {
        "amount": [0, 1000],
        "customer.age": [10, 90],
        "customer.country": ["BE", "DE", "NL"],
        "customer.new": ["false", "true"],
        "created.hour": [0, 23],
        "created.weekday": [0, 6],
    }
    before, _, rest = (tmp_path / f"{topic}.toml").read_text().partition("\ninput.features")
    assert "# confirm: public?" in before.splitlines()[-1]
    assert rest
    # How often each label comes is a function of the records.
    counts = sum(map(fraud, payments())), COUNT - sum(map(fraud, payments()))
    assert not {*map(str, counts)} & {*re.findall(r"\d+", (before + rest).replace(topic, "topic"))}


def test_other_formats(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    rows = payments()
    registry = Registry()
    try:
        time = {"type": "long", "logicalType": "timestamp-millis"}
        fields = [
            {"name": "id", "type": "string"},
            {"name": "amount", "type": "double"},
            {"name": "created", "type": time},
            {"name": "is_fraud", "type": "boolean"},
        ]
        registry.add(3, fields)
        values = [
            avro(
                fields,
                {
                    "id": row["payment_id"],
                    "amount": float(row["amount"]),
                    "created": milliseconds(row),
                    "is_fraud": fraud(row),
                },
                3,
            )
            for row in rows
        ]
        topic = filled(apache_kafka, unique("avro"), values)
        refused = call(
            *("init", tmp_path / "a.toml", "--topic", topic, "--kafka", apache_kafka.bootstrap), code=1
        )
        assert "--registry" in refused.stderr
        found = drafted(apache_kafka, tmp_path, topic, "--registry", registry.url)
        assert found["schema_registry"] == {"url": registry.url}
        assert found["input"]["format"] == "avro"
        assert found["input"]["features"] == ["amount", "created.hour", "created.weekday"]
    finally:
        registry.close()
    framed = [b"\0\0\0\0\x03" + line for line in lines(rows)]
    topic = filled(apache_kafka, unique("framed"), framed)
    assert drafted(apache_kafka, tmp_path, topic)["input"]["format"] == "json-schema"
    cells = [f"{row['amount']},{row['customer']['country']},{int(fraud(row))}".encode() for row in rows]
    topic = filled(apache_kafka, unique("csv"), [b"amount,country,is_fraud", *cells])
    refused = call(
        *("init", tmp_path / "c.toml", "--topic", topic, "--kafka", apache_kafka.bootstrap), code=2
    )
    assert "input.columns" in refused.stderr
    columns = 'input.columns=["amount", "country", "is_fraud"]'
    found = drafted(apache_kafka, tmp_path, topic, "--set", columns)["input"]
    assert (found["format"], found["columns"]) == ("csv", ["amount", "country", "is_fraud"])
    assert found["features"] == ["amount", "country"]


def test_topics_of_which_nothing_can_be_said(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    file, kafka = tmp_path / "a.toml", ["--kafka", apache_kafka.bootstrap]
    empty = apache_kafka.create_topic(unique("empty"))
    noise = filled(apache_kafka, unique("noise"), [b"oops"] * 9)
    plain = filled(apache_kafka, unique("plain"), lines(payments(50), is_fraud=lambda _: None))
    for topic, code, problem in (
        (empty, 1, "has no messages"),
        (noise, 1, "neither JSON, CSV nor Avro"),
        (f"{empty}x", 1, f"does not exist on {apache_kafka.bootstrap}"),
        (plain, 2, "cannot decide which field is the label: customer.new (false: "),
    ):
        with at_row(topic):
            said = call("init", file, "--topic", topic, *kafka, code=code).stderr
            assert problem in said
            assert "\n  fix: " in said
            assert not file.exists()


@pytest.mark.skipif(bool(EXTERNAL), reason="its topics have fixed names, which are not ours on that cluster")
def test_from_a_topic_to_scores_as_the_page_has_it(apache_kafka: Cluster, tmp_path: Path) -> None:
    """Its commands as they stand, but for the address of the broker and a free port."""
    event, begin, said, written, check_and_run = pages.blocks(PAGE)[:5]
    assert json.loads(event.text) == payments()[17]
    filled(apache_kafka, "payments", lines(payments()))
    assert run(begin.text, tmp_path, apache_kafka) == said.text
    config = tmp_path / "payments.toml"
    text = config.read_text()
    assert text.replace(apache_kafka.bootstrap, "localhost:9092") == written.text
    check, start = check_and_run.text.splitlines()
    assert run(f"{check} {' '.join(NO_PORT)}", tmp_path, apache_kafka).endswith("\nready to run\n")
    assert start == "$ streampair run payments.toml"
    with WorkerProcess(config, *NO_PORT) as worker:
        work = consume(apache_kafka.bootstrap, "payments-scores", COUNT)
        scores = [json.loads(value) for value in asyncio.run(worker.unless_it_ends(work))]
        assert worker.interrupt() == 0, worker.log()
    assert {row["outcome"] for row in scores} == {"learned"}
    assert [row["id"] for row in scores] == [row["payment_id"] for row in payments()]


def run(command: str, folder: Path, kafka: Cluster) -> str:
    """A command of a page, and what it prints."""
    words = command.removeprefix("$ ").replace("localhost:9092", kafka.bootstrap).split()
    assert words[0] == "streampair"
    done = subprocess.run(
        [sys.executable, "-m", "streampair_connectors", *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.replace(kafka.bootstrap, "localhost:9092")
