"""Every epsilon that is printed is the accountant's of the run (docs/privacy 9.8).

The accountant is replaced by one that answers a number which nothing else could give; wherever an epsilon
is shown, for people or machines, it must be that number, or the declared budget.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from streampair_connectors.cli.app import app
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.observability.metrics import Telemetry
from streampair_connectors.worker.factory import build_logged_lane
from typer.testing import CliRunner

from streampair import auc, metric, privacy, ranking
from streampair.engine import LaneId
from streampair.privacy import report as report_module

ANSWER, BUDGET = 0.42421, 1.75
TOML = """
app = "fraud"
[input]
topic = "events"
label = "y"
features = ["a", "b"]
[learner]
class = "streampair.auc.{name}"
options = {options}
"""
LEARNERS = {
    "PairFTRL": "{epsilon = 1.75, delta = 1e-4, horizon = 200}",
    "OnPairC": "{epsilon = 1.75, delta = 1e-4, horizon = 200}",
    "OnPairStrC": "{epsilon = 1.75, delta = 1e-4, horizon = 200, l2 = 0.1}",
}


@pytest.fixture(autouse=True)
def accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "promised_epsilon", lambda mu, delta: ANSWER)


def wrong(text: str) -> list[float]:
    """Numbers that stand beside the word epsilon and are neither the accountant's nor the budget."""
    found = re.findall(r"epsilon[a-z_]*\W{1,4}(?:is |of )?(\d[\d.e-]*\d|\d)", text)
    found += re.findall(r"epsilon \S+ of (\d[\d.]*\d)", text)
    assert found
    return [float(number) for number in found if round(float(number), 4) not in (0.4242, 1.75)]


def replayed(directory: Path, name: str) -> str:
    config, file = directory / "fraud.toml", directory / "events.jsonl"
    config.write_text(TOML.format(name=name, options=LEARNERS[name]))
    rows = [{"a": i % 7 / 7, "b": 0.5, "y": i % 3 == 0} for i in range(150)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outputs = []
    for form in ([], ["--json"]):
        result = CliRunner().invoke(
            app, ["replay", str(config), str(file), "--output", str(directory / "o"), *form]
        )
        assert result.exit_code == 0, result.output
        outputs.append(result.output)
    return "\n".join(outputs)


@pytest.mark.parametrize("name", LEARNERS)
def test_what_a_replay_prints(tmp_path: Path, name: str) -> None:
    assert not wrong(replayed(tmp_path, name))


@pytest.mark.parametrize("family", [auc, ranking, metric])
@pytest.mark.parametrize("name", LEARNERS)
def test_reports(family: Any, name: str) -> None:
    make: Callable[..., Any] = partial(getattr(family, name), BUDGET, 1e-4)
    model = make(200, features=["a", "b"])
    for i in range(150):
        model.learn_one({"a": i % 7 / 7, "b": 0.5}, float(i % 3 == 0))
    assert model.privacy.epsilon_spent == ANSWER
    assert not wrong(str(model.privacy))


def test_metrics(tmp_path: Path) -> None:
    replayed(tmp_path, "PairFTRL")
    config = load_config(tmp_path / "fraud.toml")
    lane = build_logged_lane(config, json_decoder(config.input), LaneId(config.app, "events", 0))
    telemetry = Telemetry()
    telemetry.publish(("fraud", "events", "PairFTRL"), lane.gauges(), None)
    for public in (False, True):
        text = telemetry.render(public=public).decode()
        lines = [line for line in text.splitlines() if line.startswith("streampair_privacy_epsilon")]
        assert {float(line.rpartition(" ")[2]) for line in lines} == {ANSWER, BUDGET}


def test_an_epsilon_of_another_origin_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def text(report: privacy.PrivacyReport) -> str:
        return f"epsilon {report.mu_spent * 3:.6f} at delta {report.delta}"

    monkeypatch.setattr(privacy.PrivacyReport, "__str__", text)
    model = auc.PairFTRL(BUDGET, 1e-4, 200, features=["a"])
    for _ in range(200):
        model.learn_null()
    assert wrong(str(model.privacy))
