"""Topics that are missing: what is said, and what is never made. How they are made: tests/broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import support
from streampair_connectors import kafka
from streampair_connectors.cli.app import app
from streampair_connectors.config import Config, load_config
from streampair_connectors.kafka.admin import missing_topic, output_topics
from typer.testing import CliRunner

try:
    import confluent_kafka  # noqa: F401
    from streampair_connectors.kafka.embedded import EmbeddedBroker
except ImportError:
    pytest.skip("confluent-kafka is missing", allow_module_level=True)

TOML = """
app = "fraud"
metrics.address = "127.0.0.1:0"
[kafka]
bootstrap_servers = "{servers}"
connect_timeout = "5s"
[input]
topic = "payments"
label = "y"
features = ["a"]
[learner]
class = "streampair.auc.PairOGD"
{more}
"""
OUTPUTS = ["fraud-scores", "fraud-dead-letters"]


def write(directory: Path, servers: str = "127.0.0.1:1", more: str = "") -> Path:
    path = directory / "fraud.toml"
    path.write_text(TOML.format(servers=servers, more=more))
    return path


def config(directory: Path, more: str = "") -> Config:
    return load_config(write(directory, more=more))


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker
    support.note_used("brokers", "librdkafka, embedded")


def call(*arguments: object, code: int) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def test_without_the_flag_the_fix_names_it(tmp_path: Path) -> None:
    without = config(tmp_path)
    for key, name in output_topics(without).items():
        error = missing_topic(without, key, name)
        assert error.fix.startswith("add --create-topics, or create it yourself: kafka-topics.sh --create")
        assert error.fix.endswith(f"--bootstrap-server 127.0.0.1:1 --topic {name}")
        assert f"topic '{name}' ({key}) does not exist" in error.problem
        assert not error.retriable
    fix = missing_topic(without, "input.topic", "payments").fix
    assert fix.endswith("--topic payments --config message.timestamp.type=LogAppendTime")
    assert fix.startswith("correct the name, or set topics.input_partitions")
    assert "--create-topics" in fix
    # Where the number of partitions is declared, the command has it too.
    whole = config(tmp_path, "[topics]\ninput_partitions = 6")
    fix = missing_topic(whole, "input.topic", "payments").fix
    assert fix.startswith("correct the name, or add --create-topics, or")
    assert fix.endswith("--topic payments --partitions 6 --config message.timestamp.type=LogAppendTime")
    assert missing_topic(whole, "output.topic", "fraud-scores").fix.endswith("fraud-scores --partitions 6")


@pytest.mark.embedded
@pytest.mark.parametrize("command", ["check", "run"])
def test_an_input_that_may_not_be_made_stops_everything(
    tmp_path: Path, broker: EmbeddedBroker, command: str
) -> None:
    """Its name may be misspelt: nothing is made, not even the outputs, whose partitions follow its own."""
    broker.create_topic("payment")
    path = write(tmp_path, broker.bootstrap_servers)
    output = call(command, path, "--create-topics", code=1)
    assert "topic 'payments' (input.topic) does not exist" in output
    assert "correct the name, or set topics.input_partitions" in output
    assert asyncio.run(kafka.describe_topics(load_config(path).require_kafka())) == {"payment": 1}


@pytest.mark.embedded
def test_topics_that_exist_stay_as_they_are(tmp_path: Path, broker: EmbeddedBroker) -> None:
    """Whatever [topics] says. This broker could make none, so nothing is even asked of it."""
    for name, partitions in (("payments", 3), ("fraud-scores", 2), ("fraud-dead-letters", 1)):
        broker.create_topic(name, partitions)
    more = "[topics]\ninput_partitions = 9\nreplication_factor = 9"
    path = write(tmp_path, broker.bootstrap_servers, more)
    output = json.loads(call("check", path, "--create-topics", "--json", code=0))
    texts = {f["check"]: f["text"] for f in output["findings"]}
    assert texts["input.topic"].startswith("'payments' has 3 partition(s)")
    assert texts["output.topic"] == "'fraud-scores' has 2 partition(s)"
    assert texts["output.dead_letter_topic"] == "'fraud-dead-letters' has 1 partition(s)"


@pytest.mark.embedded
@pytest.mark.parametrize("command", ["check", "run"])
def test_a_cluster_that_cannot_create_topics_is_distinguished(
    tmp_path: Path, broker: EmbeddedBroker, command: str
) -> None:
    """The message gives the commands that make the topics, rather than blaming the network."""
    broker.create_topic("payments", 3)
    path = write(tmp_path, broker.bootstrap_servers)
    output = call(command, path, "--create-topics", code=1)
    assert "reports no controller" in output
    for name in OUTPUTS:
        assert f"kafka-topics.sh --create --bootstrap-server {broker.bootstrap_servers}" in output
        assert f"--topic {name} --partitions 3" in output
    assert asyncio.run(kafka.describe_topics(load_config(path).require_kafka())) == {"payments": 3}
