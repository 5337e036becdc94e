"""A real Prometheus scrapes a real worker, and answers every query of the dashboard and every alert."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import support
from harness.promql import series_of, uses
from harness.worker_process import WorkerProcess, fetch, wait_for

DEPLOY = support.ROOT / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana/dashboards/streampair.json").read_text())
GOOD, BAD = 2400, 5
INTERVAL = "250ms"

# Series that this worker has no reason to show: its stream has no horizon.
ABSENT = {"streampair_privacy_horizon_left"}


class Prometheus:
    """A Prometheus server on a free port, ended by its process id."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        program = shutil.which("prometheus")
        if program is None:
            support.unavailable("Prometheus", "install it (Debian: apt-get install prometheus)")
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        version = re.search(r"version (\S+)", told.stdout + told.stderr)
        support.note_used("prometheus", version[1] if version else "unknown version")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = directory / "prometheus.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_for("Prometheus", lambda: fetch(f"{self.url}/-/ready"), explain=self._log.read_text)

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its HTTP interface; fails with its message on an error."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            pytest.fail(f"{parameters}: {error.read().decode()}", pytrace=False)
        assert told["status"] == "success", told
        assert not told.get("warnings"), told
        return told["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Result of an instant query."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()


async def send_bad(bootstrap: str) -> None:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(BAD):
            await producer.send_and_wait("events", b"not an event %d" % number)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus with deploy's rules; it has scraped a worker of deploy's configuration to its last event."""
    if shutil.which("prometheus") is None:
        support.unavailable("Prometheus", "install it (Debian: apt-get install prometheus)")
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        support.unavailable("the in-process broker", "pip install 'streampair[demo]'")
    from streampair_connectors.embedded import EmbeddedBroker

    directory = tmp_path_factory.mktemp("deploy")
    with EmbeddedBroker() as broker:
        for topic in ("events", "scores", "events-dead"):
            broker.create_topic(topic)
        text = (DEPLOY / "example.toml").read_text()
        for old, new in {
            "kafka:9092": broker.bootstrap_servers,
            "0.0.0.0": "127.0.0.1",
            "9464": "0",
            "9465": "0",
            "/var/lib/streampair": "state",
        }.items():
            assert text.count(old) == (2 if old == "0.0.0.0" else 1)  # both endpoints
            text = text.replace(old, new)
        (directory / "example.toml").write_text(text)
        config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL}
        config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
        with WorkerProcess(directory / "example.toml") as worker:
            address = urllib.parse.urlsplit(worker.metrics_url()).netloc
            (scrape,) = config["scrape_configs"]
            del scrape["dns_sd_configs"]
            scrape["static_configs"] = [{"targets": [address]}]
            server = Prometheus(directory, config)
            try:
                subprocess.run(
                    [
                        *(sys.executable, str(DEPLOY / "sample_events.py")),
                        *(broker.bootstrap_servers, "events", "1500", str(GOOD)),
                    ],
                    check=True,
                )
                asyncio.run(send_bad(broker.bootstrap_servers))
                done = f"sum(streampair_events_total) == {GOOD + BAD}"
                wait_for(done, lambda: server.query(done), explain=worker.log)
                yield server
            finally:
                server.stop()


def queries() -> list[tuple[str, str]]:
    return [
        (panel["title"], target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", [])
    ]


def filled_in(expression: str) -> str:
    """What Grafana sends when every variable is set to All."""
    text = re.sub(r"\$(app|topic|partition)\b", ".*", expression).replace("$__rate_interval", "1m")
    assert "$" not in text
    return text


@pytest.mark.parametrize(("title", "expression"), queries())
def test_every_query_of_the_dashboard_has_an_answer(
    prometheus: Prometheus, title: str, expression: str
) -> None:
    query = filled_in(expression)
    if any(name in expression for name in ABSENT):
        assert prometheus.query(query) == []
    else:
        # A rate needs two samples, and a scrape that takes longer than the short interval gives none.
        wait_for(f"{title}: data", lambda: prometheus.query(query), seconds=30)


def test_every_variable_of_the_dashboard_has_values(prometheus: Prometheus) -> None:
    expected = {"app": ["phishing"], "topic": ["events"], "partition": ["0"]}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] != "query":
            continue
        match, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
        assert (
            prometheus.ask(f"label/{label}/values", **{"match[]": filled_in(match)})
            == expected[variable["name"]]
        )


def test_every_alert_is_evaluated_and_none_fires(prometheus: Prometheus) -> None:
    groups = prometheus.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules
    for rule in rules:
        prometheus.query(rule["query"])
        assert not rule.get("lastError"), rule
        # bad events were sent on purpose, and the alert waits for minutes before it fires
        assert rule["state"] in ("inactive", "pending"), rule


def value(prometheus: Prometheus, expression: str) -> float:
    (found,) = wait_for(expression, lambda: prometheus.query(expression), seconds=30)
    return float(found["value"][1])


def releases_of_any_stream() -> int:
    """Releases after so many slots, whatever is in them."""
    from streampair_connectors.assemble import build_learner
    from streampair_connectors.config import load_config

    learner = build_learner(load_config(DEPLOY / "example.toml"))
    for _ in range(GOOD + BAD):
        learner.learn_null()
    releases: int = learner.privacy.releases
    return releases


def test_the_numbers_are_those_of_the_run(prometheus: Prometheus) -> None:
    assert value(prometheus, 'streampair_events_total{outcome="learned"}') == GOOD
    assert value(prometheus, 'streampair_dead_letters_total{stage="decode"}') == BAD
    assert value(prometheus, "streampair_lag") == 0
    spent, budget = (value(prometheus, f"streampair_privacy_epsilon_{w}") for w in ("spent", "budget"))
    assert 0 < spent <= budget == 1
    assert value(prometheus, "streampair_privacy_releases_total") == releases_of_any_stream() > 1
    assert value(prometheus, "streampair_privacy_delta") == 1e-6
    assert value(prometheus, "streampair_regret_stderr") >= 0
    total, average = (value(prometheus, f"streampair_regret_{w}") for w in ("total", "average"))
    # per step, and as of the last time that it was estimated: not at every commit
    assert GOOD / 3 < total / average < GOOD
    assert value(prometheus, 'streampair_privacy_guarantee{kind="holds"}') == 1


def test_series_named_in_deploy_are_served(prometheus: Prometheus) -> None:
    served = {series_of(name) for name in prometheus.ask("label/__name__/values")}
    rules = prometheus.ask("rules")["groups"]
    expressions = [rule["query"] for group in rules for rule in group["rules"]]
    expressions += [expression for _, expression in queries()]
    named = {series_of(use.name) for expression in expressions for use in uses(expression)}
    assert {series.name for series in named - served} <= ABSENT
