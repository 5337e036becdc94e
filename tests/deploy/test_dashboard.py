"""A real Prometheus scrapes real workers and a server: every query has an answer, every alert fires."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import support
from harness.prometheus import HURRIED, INTERVAL, Prometheus, hurried
from harness.promql import EVERY_SERIES, series_of, uses
from harness.provoked import Provoked
from harness.tiers import REAL_TIERS, open_cluster
from harness.worker_process import WorkerProcess, wait_for
from streampair_connectors.observability.metric_definitions import SERIES

DEPLOY = support.ROOT / "deploy"
FILES = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
DASHBOARDS: dict[str, dict[str, Any]] = {file.name: json.loads(file.read_text()) for file in FILES}
RULES: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())
ALERTS = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]
GOOD, BAD = 2400, 5

# A budget that is passed would be a defect: no worker can be brought to it (tests/deploy/rules_test.yml).
DEFECTS = {"StreampairPrivacyBudgetPassed"}
# What is the same all the time that a worker runs, and what has a few values; everything else has to move.
STILL = {
    "Noise of a release",
    "Drift",
    "Private AUC",
    "Values outside their bounds",
    *("Health", "Firing alerts", "Version", "Guarantee", "Delta", "Rebalances", "Null records"),
    *("Restores and fences", "Time to open the lane", "Configuration changes", "Account since"),
    *("Dead letters", "Forks", "Generation of the noise"),
    *("Labels are read again", "Events without an id", "Messages of the labels topic"),
    *("Age of the newest label, and what is usual", "Sample of scores that wait for labels"),
    *("Servers that are ready", "Reads repeated and count differences"),
}


async def send_bad(bootstrap: str) -> None:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(BAD):
            await producer.send_and_wait("events", b"not an event %d" % number)


# These move a few times in a run: estimates of the regret have a share of the time; a busy machine is slow;
# a worker that keeps up has something to catch up with for moments only.
IN_STEPS = {
    "Buffer and snapshot",
    "Noise in the weights",
    "Pair loss, and that of the best fixed model",
    "Time to catch up",
    "Age of the lag",
    *("Events to score", "Events behind", "Age of the model"),
    *("Share of events with a label", "Share of labels that come late", "Delay of labels"),
    *("Time to answer", "Served model"),
    "Features outside their reference",
}
# Of one series, and yet something else: a rate, or a time from a rate.
DERIVED = {
    *("Time to catch up", "Events committed", "Time until the horizon"),
    *("Share of events with a label", "Share of labels that come late"),
    *("Age of the newest event that was due", "Time to answer"),
}
# Of ranges, in seconds. What one scrape has seen lasts until the next, for INTERVAL or a little less.
STEP = 0.1
# What the average of the regret is over.
STEPS = "streampair_regret_total / streampair_regret_average"


# The first test has the set-up in its time: a hundred seconds of workers, and several times that if busy.
pytestmark = pytest.mark.timeout(900)


class Live:
    """A Prometheus that has scraped the worker of deploy's example to its last event, and then all others."""

    def __init__(self, server: Prometheus, provoked: Provoked, config: Path) -> None:
        self.server = server
        self.provoked = provoked
        self.config = config
        self.states: dict[str, str] = {}  # of the rules as they are, while nothing was wrong
        # of the example's run, and of all that follows, in seconds since the epoch
        self.began = self.ended = self.over = 0.0


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One Prometheus, with deploy's rules and a copy of them in a hurry, and all that happens before it."""
    if shutil.which("prometheus") is None:
        support.unavailable("Prometheus", "install it (Debian: apt-get install prometheus)")
    cluster, apache = open_cluster("embedded"), open_cluster(REAL_TIERS[-1])
    directory = tmp_path_factory.mktemp("deploy")
    for topic in ("events", "scores", "events-dead"):
        cluster.create_topic(topic)
    text = (DEPLOY / "example.toml").read_text()
    for old, new in {
        # An AUC that may be shown: at epsilon 1 these events would be too few to tell it from the noise.
        "epsilon = 1.0": "epsilon = 4.0\nauc_share = 0.05",
        "kafka:9092": cluster.bootstrap,
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
    (directory / "hurried.yml").write_text(yaml.safe_dump(hurried(RULES)))
    config["rule_files"] = [
        *(str(DEPLOY / "prometheus" / name) for name in config["rule_files"]),
        str(directory / "hurried.yml"),
    ]
    server = Prometheus(directory, config)
    made = Live(server, Provoked(server, cluster, apache, directory), directory / "example.toml")
    try:
        with WorkerProcess(directory / "example.toml") as worker:
            target = server.scrape(worker.metrics_url())
            made.began = time.time()
            subprocess.run(
                [
                    *(sys.executable, str(DEPLOY / "sample_events.py")),
                    *(cluster.bootstrap, "events", "600", str(GOOD)),
                ],
                check=True,
            )
            asyncio.run(send_bad(cluster.bootstrap))
            done = f"sum(streampair_events_total) == {GOOD + BAD}"
            wait_for(done, lambda: server.query(done), explain=worker.log)
            # Estimates of the regret have a share of the time, and come to the end once the stream pauses.
            caught_up = f"sum({STEPS}) > {0.9 * GOOD}"
            wait_for(caught_up, lambda: server.query(caught_up), explain=worker.log)
            made.ended = time.time()
            for group in server.ask("rules")["groups"]:
                for rule in group["rules"]:
                    assert not rule.get("lastError"), rule
                    if group["name"] != HURRIED:
                        made.states[rule["name"]] = rule["state"]
        server.forget(target)
        made.provoked.all()
        made.over = time.time()
        yield made
    finally:
        server.stop()
        apache.close()
        cluster.close()


def queries() -> list[tuple[str, str, str]]:
    return [
        (name, panel["title"], target["expr"])
        for name, dashboard in DASHBOARDS.items()
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    ]


def filled_in(expression: str, window: str = "1m") -> str:
    """What Grafana sends when every variable is set to All."""
    text = re.sub(r"\$(app|topic|partition)\b", ".*", expression).replace("$__rate_interval", window)
    assert "$" not in text
    return text


@pytest.mark.parametrize(("file", "title"), dict.fromkeys((file, title) for file, title, _ in queries()))
def test_every_query_gives_finite_values_and_moves(live: Live, file: str, title: str) -> None:
    """Over all scrapes of all workers and the server."""
    for expression in (query for *panel, query in queries() if panel == [file, title]):
        _check_query(live, title, expression)


def _check_query(live: Live, title: str, expression: str) -> None:
    found = live.server.range(filled_in(expression, "3s"), live.began, live.over, STEP)
    assert found, f"{title}: no data of {expression}"
    values = [[float(value) for _, value in line["values"]] for line in found]
    # a histogram without a new observation, and a ratio of nothing by nothing, have no value for a moment
    finite = [[value for value in line if math.isfinite(value)] for line in values]
    assert all(finite), f"{title}: {expression}: {found}"
    assert max(map(len, finite)) >= 3, f"{title}: {expression}: {found}"
    moved = max(len(set(line)) for line in finite)
    # A recall changes with a positive event that is labelled, and few are in the example.
    constant = title in STILL or any(part in expression for part in ("budget", "recall", "at_threshold"))
    assert moved >= (1 if constant else 2 if title in IN_STEPS else 3), f"{title}: {expression}: {found}"


def test_what_stands_still_is_named(live: Live) -> None:
    assert {title for _, title, _ in queries()} >= STILL | IN_STEPS


def test_the_counts_of_the_dashboard_are_those_of_the_run(live: Live) -> None:
    """Where it should move, and by how much: the events of the example, by outcome and by stage."""
    ended = str(live.ended)
    seen = live.server.ask("query", query="sum by (outcome) (streampair_events_total)", time=ended)["result"]
    counts = {row["metric"]["outcome"]: float(row["value"][1]) for row in seen}
    assert (counts["learned"], counts["dead_letter"]) == (GOOD, BAD)


@pytest.mark.parametrize("file", DASHBOARDS)
def test_every_variable_of_a_dashboard_has_values(live: Live, file: str) -> None:
    expected = {"app": "phishing", "topic": "events"}
    for variable in DASHBOARDS[file]["templating"]["list"]:
        if variable["type"] != "query":
            continue
        match, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
        found = live.server.ask(f"label/{label}/values", **{"match[]": filled_in(match)})
        assert expected[variable["name"]] in found


def test_a_healthy_worker_raises_nothing(live: Live) -> None:
    assert set(live.states) == set(ALERTS)
    # bad events were sent on purpose, and the alert waits for minutes before it fires
    assert set(live.states.values()) <= {"inactive", "pending"}, live.states


@pytest.mark.parametrize("name", [name for name in ALERTS if name not in DEFECTS])
def test_what_an_alert_is_for_makes_it_fire(live: Live, name: str) -> None:
    """In a real worker, as its interface for alerts tells it, in words that have all of their values."""
    alert = live.provoked.alerts[name]
    assert alert["state"] == "firing"
    words = alert["annotations"]
    assert set(words) == {"summary", "action", "runbook_url"}
    assert not re.search(r"<no value>|<error|\[ *\]|\{\{", words["summary"]), words


def test_the_copy_in_a_hurry_has_the_same_thresholds() -> None:
    """Mutants: a rule whose threshold, comparison or series differed would be another rule."""

    def bare(rules: dict[str, Any]) -> list[str]:
        return [re.sub(r"\[\w+\]", "", rule["expr"]) for rule in rules["groups"][0]["rules"]]

    assert bare(hurried(RULES)) == bare(RULES)
    assert all("for" not in rule for rule in hurried(RULES)["groups"][0]["rules"])
    assert any("for" in rule for rule in RULES["groups"][0]["rules"])


def value(live: Live, expression: str) -> float:
    """At the end of the example's run."""
    (found,) = live.server.ask("query", query=expression, time=str(live.ended))["result"]
    return float(found["value"][1])


def releases_of_any_stream(config: Path) -> int:
    """Releases after so many slots, whatever is in them."""
    from streampair_connectors.config import load_config
    from streampair_connectors.worker.factory import build_learner

    learner = build_learner(load_config(config))
    for _ in range(GOOD + BAD):
        learner.learn_null()
    releases: int = learner.privacy.releases
    return releases


def test_the_numbers_are_those_of_the_run(live: Live) -> None:
    assert value(live, 'streampair_events_total{outcome="learned"}') == GOOD
    assert value(live, 'streampair_dead_letters_total{stage="decode"}') == BAD
    assert value(live, "streampair_lag") == 0
    spent, budget = (value(live, f"streampair_privacy_epsilon_{w}") for w in ("spent", "budget"))
    assert 0 < spent <= budget == pytest.approx(4.0)
    assert value(live, "streampair_privacy_releases_total") == releases_of_any_stream(live.config) > 1
    assert value(live, "streampair_privacy_delta") == 1e-6
    assert value(live, "streampair_regret_stderr") >= 0
    assert 0.9 * GOOD < value(live, STEPS) < GOOD
    assert value(live, 'streampair_privacy_guarantee{kind="holds"}') == 1


def test_series_named_in_deploy_are_served(live: Live) -> None:
    served = {series_of(name) for name in live.server.ask("label/__name__/values")}
    rules = live.server.ask("rules")["groups"]
    expressions = [rule["query"] for group in rules for rule in group["rules"]]
    expressions += [expression for _, _, expression in queries()]
    named = {series_of(use.name) for expression in expressions for use in uses(expression)}
    assert {series.name for series in named - served} == set()


# The source of the dashboards


def source() -> Any:
    spec = importlib.util.spec_from_file_location("dashboards", DEPLOY / "grafana" / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_panel_of_one_series_has_its_title_and_help() -> None:
    for file, dashboard in DASHBOARDS.items():
        for panel in dashboard["panels"]:
            names = {series_of(use.name) for t in panel.get("targets", []) for use in uses(t["expr"])}
            if len(names) == 1 and (series := names.pop()) is not None:
                if panel["title"] in DERIVED:
                    assert panel["title"] != series.title
                    continue
                assert panel["title"] == series.title, file
                assert panel["description"].startswith(series.help), file


def test_the_files_are_what_the_source_makes() -> None:
    made = source()
    assert sorted(made.DASHBOARDS) == sorted(DASHBOARDS)
    for name, dashboard in made.DASHBOARDS.items():
        assert (DEPLOY / "grafana/dashboards" / name).read_text() == made.text(dashboard), "make dashboards"


def faults(dashboard: dict[str, Any]) -> list[str]:
    """What one would see at once, were it drawn: panels over each other, outside, or without words."""
    found, cells = [], set()
    for panel in dashboard["panels"]:
        position = panel["gridPos"]
        x, y, wide, high = (position.get(name, 0) for name in "xywh")
        mine = {(column, row) for column in range(x, x + wide) for row in range(y, y + high)}
        if not mine or x + wide > 24 or not panel["title"]:
            found.append(f"place of {panel['title']!r}: {position}")
        if cells & mine:
            found.append(f"{panel['title']!r} lies over another")
        cells |= mine
        if panel["type"] != "row":
            for name in ("description", "datasource", "targets"):
                if not panel.get(name):
                    found.append(f"{panel['title']!r} has no {name}")
            found += [f"{panel['title']!r}: no legend" for t in panel["targets"] if not t.get("legendFormat")]
    ids = [panel["id"] for panel in dashboard["panels"] if panel["type"] != "row"]
    return [*found, *(["one id twice"] if len(set(ids)) < len(ids) else [])]


@pytest.mark.parametrize("file", DASHBOARDS)
def test_panels_have_places_words_and_legends(file: str) -> None:
    assert faults(DASHBOARDS[file]) == []


def test_the_judge_of_places_sees_what_is_wrong() -> None:
    for change in ("x", "w", "id", "legend"):
        broken = json.loads(json.dumps(DASHBOARDS["streampair.json"]))
        one, two = [panel for panel in broken["panels"] if panel["type"] != "row"][:2]
        if change == "id":
            two["id"] = one["id"]
        elif change == "legend":
            one["targets"][0]["legendFormat"] = ""
        else:
            two["gridPos"][change] = one["gridPos"].get("x", 0) if change == "x" else 25
        assert faults(broken), change


def test_officers_are_shown_public_series_alone() -> None:
    public = {series for series in SERIES if series.public}
    file = "streampair-privacy.json"
    for panel, expression in ((title, query) for name, title, query in queries() if name == file):
        for use in uses(expression):
            assert series_of(use.name) in public, f"{panel}: {use.name}"
    variables = DASHBOARDS[file]["templating"]["list"]
    for use in uses(" ".join(str(variable["query"]) for variable in variables)):
        assert series_of(use.name) in public


def test_both_together_show_every_series() -> None:
    """But for bounds and parts: nothing that workers and servers say is lost between the two."""
    drawn = {series_of(use.name) for _, _, expression in queries() for use in uses(expression)}
    assert {series.name for series in set(EVERY_SERIES) - drawn} == set()
