"""Challengers of a configuration, without a broker: what is reported of them, and who may be promoted."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from harness.lane_on_disk import LaneOnDisk
from harness.much_budget import much_budget
from streampair_connectors.cli.app import app
from streampair_connectors.config import load_config
from streampair_connectors.stores.state import Promotion, open_states
from typer.testing import CliRunner

from streampair.engine import Record
from streampair.errors import ConfigError, SnapshotError
from streampair.privacy.accounting import promised_epsilon

PRIVATE = """
[learner]
scope = "partition"
name = "first"
class = "streampair.auc.PairFTRL"
options = { epsilon = 24.0, delta = 1e-4, horizon = 400, warmup = 20, auc_share = 0.5 }
[[challengers]]
name = "second"
class = "streampair.auc.PairFTRL"
options = { epsilon = 20.0, delta = 1e-5, horizon = 400, warmup = 20, auc_share = 0.5 }
[[challengers]]
name = "open"
class = "streampair.auc.PairOGD"
"""
PUBLIC = """
[learner]
scope = "partition"
name = "first"
class = "streampair.auc.PairOGD"
options = { seed = 1 }
[[challengers]]
name = "second"
class = "streampair.auc.Forest"
options = { seed = 1, trees = 5 }
"""
TOML = """app = "fraud"
[input]
topic = "payments"
label = "y"
features = ["a", "b"]
[store]
directory = "state"
"""


def event(i: int) -> bytes:
    y = 37 * i % 100 + 53 * i % 97 > 110
    return json.dumps({"a": (37 * i % 100) / 100, "b": 0.1 * (i % 3), "y": y}).encode()


RECORDS = [Record(i, event(i)) for i in range(300)]


def written(tmp_path: Path, learners: str) -> Path:
    path = tmp_path / "fraud.toml"
    path.write_text(TOML + learners)
    return path


def work(config: Path, count: int, *, clean: bool = True) -> Any:
    """Take records and stop; the gauges at the end."""
    lane = LaneOnDisk(config, RECORDS, 0)
    lane.take(count)
    lane.commit(clean=clean)
    gauges = lane.lane.gauges(solve=False)
    lane.close()
    return gauges


def promoted(config: Path, name: str, *, by_raw_data: bool = False) -> Promotion:
    """What `streampair promote` finds, carried out as it does."""

    async def body() -> Promotion:
        async with open_states(load_config(config), broker=False) as states:
            (found,) = await states.promotions(name, by_raw_data=by_raw_data)
            return found

    found = asyncio.run(body())
    (log,) = (config.parent / "state").glob("*.log")
    log.write_bytes(log.read_bytes() + b"".join(found.append.frames))
    group = config.parent / "fraud-0.group"
    group.write_text(json.dumps({**json.loads(group.read_text()), "register": found.append.register}))
    return found


def call(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_promotion_is_shown_and_lasts(tmp_path: Path) -> None:
    config = written(tmp_path, PUBLIC)
    before = work(config, 100)
    found = promoted(config, "second")
    assert (found.champion, found.promoted, found.chosen_by, found.void) == (
        "first",
        "second",
        "raw data",
        "",
    )
    assert found.comparison == before.challengers[0].comparison
    (stored,) = call("state", "show", config)["lanes"]
    assert (stored["champion"], stored["learners"]) == ("second", {"first": ""})
    assert "second in place of first, chosen by raw data" in stored["promotions"][0]
    gauges = work(config, 100)
    assert [each.name for each in gauges.challengers] == ["first"]
    (stored,) = call("state", "show", config)["lanes"]
    assert (stored["champion"], stored["offset"]) == ("second", 200)
    with pytest.raises(ConfigError, match="second is the champion already"):
        promoted(config, "second")
    promoted(config, "first")
    assert [each.name for each in work(config, 100).challengers] == ["second"]


def test_a_promotion_that_is_not_certain_is_refused(tmp_path: Path) -> None:
    config = written(tmp_path, PUBLIC)
    work(config, 100, clean=False)
    with pytest.raises(SnapshotError, match="did not stop cleanly"):
        promoted(config, "second")
    work(config, 0)
    with pytest.raises(ConfigError, match="the challenger third has not learned"):
        promoted(config, "third")
    promoted(config, "second")
    config.write_text(TOML + PUBLIC.partition("[[challengers]]")[0])
    with pytest.raises(ConfigError, match="has no such challenger"):
        LaneOnDisk(config, RECORDS, 0)


@much_budget()
def test_a_private_choice_is_made_by_private_aucs_or_the_report_says_void(tmp_path: Path) -> None:
    config = written(tmp_path, PRIVATE.replace("24.0", "200.0").replace("20.0", "150.0"))  # enough for AUCs
    gauges = work(config, 200)
    first, second = gauges.privacy.auc["value"], gauges.challengers[0].private_auc["value"]
    champion = "first"
    if second > first:  # the noise decides
        found = promoted(config, "second")
        assert (found.chosen_by, found.void) == ("private AUC", "")
        assert work(config, 0).privacy.kind == "holds"
        champion = "second"
    other = {"first": "second", "second": "first"}[champion]
    with pytest.raises(ConfigError, match=f"{other} does not have the highest private AUC"):
        promoted(config, other)
    found = promoted(config, other, by_raw_data=True)
    assert "chosen by raw data, a release that no account covers" in found.void
    report = work(config, 20).privacy
    assert report.kind == "void"
    assert found.void in report.guarantee
    assert "chosen by raw data" in call("state", "show", config)["lanes"][0]["promotions"][-1]
    with pytest.raises(ConfigError, match="open does not have the highest"):
        promoted(config, "open")
    with pytest.raises(ConfigError, match="open is not private, and the champion is"):
        promoted(config, "open", by_raw_data=True)


def test_each_account_is_shown_and_their_sum(tmp_path: Path) -> None:
    config = written(tmp_path, PRIVATE)
    report = work(config, 200).privacy
    for _ in range(2):  # the second time without the challenger: its account stays
        budget = call("budget", "show", config)
        assert [account["learner"] for account in budget["accounts"]] == ["first", "second"]
        spent = [account["mu_spent"] for account in budget["accounts"]]
        assert budget["mu_spent"] == pytest.approx(math.hypot(*spent))
        assert budget["mu_spent"] == pytest.approx(report.mu_spent)
        assert budget["delta"] == 1e-5
        assert budget["epsilon_spent"] == pytest.approx(promised_epsilon(math.hypot(*spent), 1e-5))
        card = call("budget", "card", config)
        assert f"{report.epsilon_spent:.3f}"[:4] in json.dumps(card)
        config.write_text(TOML + PRIVATE.partition("[[challengers]]")[0])
        lane_ = LaneOnDisk(config, RECORDS, 0)
        lane_.commit(clean=True)
        assert lane_.lane.privacy.mu_spent == pytest.approx(report.mu_spent)
        lane_.close()
    assert call("budget", "show", config)["accounts"][1]["ended"] == "removed from the configuration"


def test_a_file_is_replayed_with_challengers(tmp_path: Path) -> None:
    config = written(tmp_path, PUBLIC)
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"\n".join(record.value or b"" for record in RECORDS))
    result = CliRunner().invoke(
        app, ["replay", str(config), str(file), "--json", "--output", str(tmp_path / "s")]
    )
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout.splitlines()[-1])["summary"]
    assert summary["challengers"]["second"]["events"] == 300
    assert 0.5 < summary["challengers"]["second"]["auc"] <= 1.0


def test_a_plan_and_a_check_say_what_challengers_add(tmp_path: Path) -> None:
    config = written(tmp_path, PRIVATE)
    plan = call("budget", "plan", "--n", "2000", "--epsilon", "1", "--delta", "1e-5", "--config", config)
    added = plan["with_challengers"]
    lane = LaneOnDisk(config, RECORDS, 0)
    second = lane.lane.challengers.lane_of("second")
    lane.close()
    assert second is not None
    assert added["challengers"] == ["second"]
    assert added["mu"] == pytest.approx(math.hypot(plan["mu"], second.privacy.mu_budget))
    assert added["epsilon"] == promised_epsilon(added["mu"], 1e-5)
    text = CliRunner().invoke(app, ["check", str(config)]).output
    assert "challengers.second: PairFTRL, epsilon 20 at delta 1e-05, which adds to" in text
    assert "challengers.open: PairOGD, not private" in text
