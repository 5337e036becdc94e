"""`--create-topics` on Apache Kafka itself: what is made, what stays, and how a refusal reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.apache_kafka import KafkaBroker
from harness.applications import PAIR_FTRL, App, events
from harness.kafka import Cluster
from harness.tiers import STOPPABLE_TIERS, open_cluster
from harness.worker_process import WorkerProcess
from streampair_connectors.cli import app as cli
from streampair_connectors.config import load_config
from streampair_connectors.kafka import describe_topics, has_append_time
from streampair_connectors.kafka.admin import create_missing
from typer.testing import CliRunner

Unique = Callable[[str], str]


def streampair(*arguments: object, code: int) -> str:
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout + result.stderr


def topics(app: App) -> dict[str, int]:
    """Partitions of the application's topics that exist, by what they are for."""
    found = asyncio.run(describe_topics(load_config(app.path).require_kafka()))
    names = {"input": app.input, "output": app.output, "dead": app.dead}
    return {what: found[name] for what, name in names.items() if name in found}


def findings(output: str) -> dict[str, dict[str, Any]]:
    return {finding["check"]: finding for finding in json.loads(output)["findings"]}


def test_outputs_get_the_partitions_of_the_input(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    app = App(apache_kafka, tmp_path, unique("app"))
    apache_kafka.create_topic(app.input, partitions=3)
    streampair("check", app.path, code=1)
    assert topics(app) == {"input": 3}, "without the flag nothing is made"
    findings_made = findings(streampair("check", app.path, "--create-topics", "--json", code=0))
    assert topics(app) == {"input": 3, "output": 3, "dead": 3}
    assert findings_made["input.topic"]["text"].startswith(f"'{app.input}' has 3 partition(s)")
    assert findings_made["output.topic"]["text"] == f"'{app.output}' was created with 3 partition(s)"
    assert (
        findings_made["output.dead_letter_topic"]["text"] == f"'{app.dead}' was created with 3 partition(s)"
    )
    again = streampair("check", app.path, "--create-topics", code=0)
    assert "created" not in again
    assert "ready to run" in again


def test_run_makes_all_three_and_goes_on(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    settings = "[topics]\ninput_partitions = 1\nreplication_factor = 1"
    app = App(apache_kafka, tmp_path, unique("app"), settings=settings)
    with WorkerProcess(app.path, "--create-topics") as worker:
        made = [worker.await_log("topic_created") for _ in range(3)]
        assert {(m["topic"], m["partitions"]) for m in made} == {
            *((app.input, 1), (app.output, 1), (app.dead, 1)),
        }
        app.produce(events(30))
        assert len(app.await_scores({0: 30})) == 30
    assert topics(app) == {"input": 1, "output": 1, "dead": 1}
    # The second start finds them all.
    with WorkerProcess(app.path, "--create-topics") as worker:
        worker.await_log("lane_opened")
        assert "topic_created" not in worker.log()


def test_an_input_that_one_lane_reads_gets_the_brokers_timestamps(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path
) -> None:
    """Without them the order over partitions is not covered: `check` warns, with the command to set them."""
    settings = "[topics]\ninput_partitions = 2"
    app = App(apache_kafka, tmp_path, unique("app"), settings=settings)
    assert "timestamps" in findings(streampair("check", app.path, "--create-topics", "--json", code=0))
    assert asyncio.run(has_append_time(load_config(app.path).require_kafka(), app.input))
    app = App(apache_kafka, tmp_path, unique("app"), learner=PAIR_FTRL, partitions=2)
    app.create_topics()
    report = findings(streampair("check", app.path, "--json", code=0))["timestamps"]
    assert report["warning"]
    assert "the report says that the order is not covered" in report["text"]
    assert f"--alter --topic {app.input} --add-config message.timestamp.type=LogAppendTime" in report["text"]


def test_what_exists_stays_as_it_is(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    settings = "[topics]\ninput_partitions = 4"
    app = App(apache_kafka, tmp_path, unique("app"), settings=settings)
    apache_kafka.create_topic(app.input, partitions=2)
    apache_kafka.create_topic(app.output, partitions=5)
    streampair("check", app.path, "--create-topics", code=0)
    assert topics(app) == {"input": 2, "output": 5, "dead": 2}


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_misspelt_input_makes_nothing(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, command: str
) -> None:
    app = App(apache_kafka, tmp_path, unique("app"))
    output = streampair(command, app.path, "--create-topics", code=1)
    assert f"topic '{app.input}' (input.topic) does not exist" in output
    assert "correct the name, or set topics.input_partitions" in output
    assert topics(app) == {}


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_replication_factor_that_the_cluster_cannot_keep(
    apache_kafka: Cluster, unique: Unique, tmp_path: Path, command: str
) -> None:
    app = App(apache_kafka, tmp_path, unique("app"), settings="[topics]\nreplication_factor = 30")
    apache_kafka.create_topic(app.input)
    output = streampair(command, app.path, "--create-topics", code=1)
    assert f"does not create topic '{app.output}' (1 partition(s), replication factor 30)" in output
    assert "fix: set topics.replication_factor to at most 1, the number of brokers" in output
    if command == "check":  # which names everything that is wrong
        assert f"does not create topic '{app.dead}'" in output
    assert topics(app) == {"input": 1}


def test_two_workers_that_start_at_once_get_on(apache_kafka: Cluster, unique: Unique, tmp_path: Path) -> None:
    app = App(apache_kafka, tmp_path, unique("app"), settings="[topics]\ninput_partitions = 2")
    config = load_config(app.path)

    async def body() -> None:
        for creation in await asyncio.gather(*(create_missing(config, {}) for _ in range(4))):
            assert creation.errors == {}
            assert creation.made == {app.input: 2, app.output: 2, app.dead: 2}

    asyncio.run(body())
    assert topics(app) == {"input": 2, "output": 2, "dead": 2}


@pytest.fixture
def guarded() -> Iterator[KafkaBroker]:
    """A broker of our own that lets nobody create topics; all else is allowed."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    if not STOPPABLE_TIERS:
        pytest.skip("a cluster of the caller's is not ours to guard")
    cluster = open_cluster(STOPPABLE_TIERS[-1], settings=settings)
    assert isinstance(cluster, KafkaBroker)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.mark.broker
def test_a_user_who_may_not_create_topics(guarded: KafkaBroker, tmp_path: Path) -> None:
    app = App(guarded, tmp_path, "app")
    guarded.create_topic(app.input)
    everybody = ("--bootstrap-server", guarded.bootstrap, "--add", "--force")
    for rule in (
        ("--allow-principal", "User:*", "--operation", "All", "--cluster"),
        ("--allow-principal", "User:*", "--operation", "All", "--topic", "*"),
        ("--allow-principal", "User:*", "--operation", "All", "--group", "*"),
        ("--deny-principal", "User:*", "--operation", "Create", "--topic", "*"),
        ("--deny-principal", "User:*", "--operation", "Create", "--cluster"),
    ):
        guarded.tool("org.apache.kafka.tools.AclCommand", [*everybody, *rule])
    for verb in ("check", "run"):
        output = streampair(verb, app.path, "--create-topics", code=1)
        assert f"does not create topic '{app.output}'" in output
        assert "give this user the permission Create on this topic" in output
        command = f"kafka-topics.sh --create --bootstrap-server {guarded.bootstrap} --topic {app.output}"
        assert f"{command} --partitions 1" in output
    assert topics(app) == {"input": 1}


@pytest.fixture(scope="module", params=STOPPABLE_TIERS[-1:])
def incomplete(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster that is to have three brokers, of which two have never run."""
    names = ("offsets.topic", "transaction.state.log", "default")
    cluster = open_cluster(request.param, settings={f"{name}.replication.factor": "3" for name in names})
    yield cluster
    cluster.close()


@pytest.mark.parametrize("kept", [pytest.param("directory", marks=pytest.mark.everything), "kafka"])
def test_a_first_start_while_brokers_are_away_says_so(incomplete: Cluster, tmp_path: Path, kept: str) -> None:
    """Kafka creates neither topics of three copies nor those of groups and transactions."""
    settings = "[topics]\ninput_partitions = 2\n"
    app = App(incomplete, tmp_path, f"first-{kept}", settings=settings, store=kept, connect_timeout=5)
    refused = streampair("check", app.path, "--create-topics", code=1)
    assert "the number of brokers that run, or start those that are away first" in refused
    assert topics(app) == {}
    app.path.write_text(app.path.read_text() + "replication_factor = 1\n")
    with WorkerProcess(app.path, "--create-topics") as worker:
        assert worker.wait() == 1, worker.log()
        failed = worker.await_log("failed")
    assert "has no coordinator of groups: __consumer_offsets" in failed["error"], failed
    assert "start the brokers that are away" in failed["fix"]
    assert topics(app) == {"input": 2, "output": 2, "dead": 2}
