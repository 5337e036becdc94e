"""Documents, alert rules and dashboards name series that there are, and labels that these have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import support
from harness.promql import ADDED, EVERY_SERIES, mistakes, uses
from harness.support import in_one_case
from streampair_connectors.observability.metric_definitions import LANE, SERIES

DEPLOY = support.ROOT / "deploy"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
EVERY_LABEL = {label for series in EVERY_SERIES for label in series.labels} | ADDED | {"alertname"}


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield f"rules.yml: {rule.get('alert') or rule['record']}", rule["expr"]
    for file in DASHBOARDS:
        dashboard = json.loads(file.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield f"{file.name}: {panel['title']}", target["expr"]
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                # label_values(series{...}, label) reads as a selection by that label
                series, label = re.fullmatch(
                    r"label_values\((.*), (\w+)\)", variable["query"]["query"]
                ).groups()
                yield f"{file.name}: ${variable['name']}", f"sum by ({label}) ({series})"


@in_one_case(("where", "expression"), list(expressions()))
def test_an_expression_fits_the_series(where: str, expression: str) -> None:
    assert mistakes(expression) == []


def test_all_of_them_are_read() -> None:
    """Nothing hides from the test above: each name in the files is in an expression, or in words about it."""
    read = {use.name for _, expression in expressions() for use in uses(expression)}
    assert len(read) > 25
    for file in [DEPLOY / "prometheus" / "rules.yml", *DASHBOARDS]:
        named = set(re.findall(r"\bstreampair_[a-z_]+", file.read_text()))
        assert named <= read | {series.name for series in SERIES}, file


@pytest.mark.parametrize(
    ("expression", "mistake"),
    [
        ("streampair_lags > 0", "streampair_lags is no series"),
        ("streampair_events > 0", "streampair_events is no series"),
        ("streampair_learn_seconds > 0", "streampair_learn_seconds is no series"),
        ('streampair_lag{outcome="learned"}', "streampair_lag has no label outcome"),
        ("rate(streampair_lag[5m])", "rate of streampair_lag, a gauge"),
        ("deriv(streampair_events_total[5m])", "deriv of streampair_events_total, a counter"),
        ("sum by (topic) (streampair_health)", "grouped by topic, which not every series has"),
        ("sum by (le) (streampair_learn_seconds_sum)", "grouped by le, which not every series has"),
        ("streampair_serve_ready{route='score'}", "streampair_serve_ready has no label route"),
        ("rate(streampair_serve_ready[5m])", "rate of streampair_serve_ready, a gauge"),
    ],
)
def test_the_judge_sees_what_is_wrong(expression: str, mistake: str) -> None:
    assert mistakes(expression) == [mistake]


def test_the_judge_lets_pass_what_is_right() -> None:
    right = (
        'histogram_quantile(0.5, sum by (le) (rate(streampair_learn_seconds_bucket{app=~"a",job="s"}[1m])))'
    )
    assert mistakes(right) == []


@in_one_case("rule", RULES)
def test_the_words_of_an_alert_use_labels_that_exist(rule: dict[str, Any]) -> None:
    words = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", words)) <= EVERY_LABEL


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.name)
def test_the_legends_use_labels_that_exist(file: Path) -> None:
    assert set(re.findall(r"\{\{\s*(\w+)\s*\}\}", file.read_text())) <= EVERY_LABEL


def test_the_input_of_the_rules_own_tests_is_what_a_worker_shows() -> None:
    """A rule that is tested on series as they never are is not tested."""
    tests = yaml.safe_load(Path(__file__).with_name("rules_test.yml").read_text())["tests"]
    names = [entry["series"] for test in tests for entry in test["input_series"]]
    ours = [name for name in names if name.startswith("streampair_")]
    assert ours
    assert [mistake for name in ours for mistake in mistakes(name)] == []


# The documents


HEAD = "| series | title | unit | kind | public | |"


def table() -> list[str]:
    """The table of the series as the documents have it."""
    lane = LANE
    rows = []
    for series in SERIES:
        labels = ",".join(label for label in series.labels if label not in lane)
        rows.append(
            f"| `{series.name}{'{' + labels + '}' if labels else ''}` | {series.title} | {series.unit} "
            f"| {series.kind} | {'yes' if series.public else ''} | {series.help} |".replace(
                "|  |", "| |"
            ).replace("|  |", "| |")
        )
    return [HEAD, "|---|---|---|---|---|---|", *rows]


def test_the_documents_have_the_table_once_and_whole() -> None:
    files = [support.ROOT / "README.md", *sorted((support.ROOT / "docs").rglob("*.md"))]
    having = [file for file in files if HEAD in file.read_text()]
    assert len(having) == 1, "one document has the table of all series"
    lines = having[0].read_text().splitlines()
    start = lines.index(table()[0])
    lines_shown = lines[start : start + len(table())]
    assert lines_shown == table(), "put this in its place:\n" + "\n".join(table())
    assert not lines[start + len(table())].startswith("|")


def test_the_documents_name_no_other_series() -> None:
    known = {series.name for series in EVERY_SERIES}
    parts = {name + part for name in known for part in ("_bucket", "_sum", "_count")}
    for file in [support.ROOT / "README.md", *sorted((support.ROOT / "docs").rglob("*.md"))]:
        named = set(re.findall(r"\bstreampair_[a-z_]+\b(?![./])", file.read_text())) - {
            "streampair_connectors"
        }
        assert named <= known | parts, file
