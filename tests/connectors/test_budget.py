"""`streampair budget show`: what the store says, for people and machines; and real kills between commits."""

from __future__ import annotations

import itertools
import json
import math
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from harness import programs
from harness.lane_on_disk import LaneOnDisk
from streampair_connectors.cli.app import app
from streampair_connectors.cli.budget import planned_options
from streampair_connectors.cli.check import Report, _check_entities
from streampair_connectors.codecs.records import json_decoder
from streampair_connectors.config import load_config
from streampair_connectors.stores import DirectoryStore
from streampair_connectors.stores.spending import LaneBudget, total_of
from streampair_connectors.worker.factory import build_lane, build_learner
from typer.testing import CliRunner

from streampair.engine import OrderedRecord, Record
from streampair.errors import PrivacyError, SnapshotError, StoreError
from streampair.privacy import EntityLimit
from streampair.privacy.accounting import planned_mu

TOML = """
app = "{app}"
[input]
topic = "payments"
label = "y"
features = ["a", "b"]
[learner]
class = "streampair.auc.{learner}"
{options}
[store]
directory = "state"
"""
OPTIONS = (
    "options = {epsilon = 1.0, delta = 1e-4, horizon = 400, forks = 1, window = 100, "
    'mechanism = {class = "streampair.privacy.PairGradients"}}'
)


def write(directory: Path, name: str = "fraud", learner: str = "PairFTRL", options: str = OPTIONS) -> Path:
    path = directory / f"{name}.toml"
    path.write_text(TOML.format(app=name, learner=learner, options=options))
    return path


def test_a_plan_of_a_configuration_is_of_its_budget_and_in_its_words(tmp_path: Path) -> None:
    entity = '{class = "streampair.privacy.EntityLimit", records = 20}'
    path = write(tmp_path, options=f"options = {{epsilon = 0.5, delta = 1e-7, entity = {entity}}}")
    options = planned_options(load_config(path))
    assert options == {"epsilon": 0.5, "delta": 1e-7, "family": "auc", "entity": EntityLimit(20)}
    command = ["budget", "plan", "--n", "1e6", "--config", str(path), "--epsilon", "0.25"]
    said = CliRunner().invoke(app, command).stdout
    lines = "\n".join(said.partition("recommended:\n")[2].splitlines()[:2])
    learner = tomllib.loads(lines)
    assert learner["class"] == "streampair.auc.PairFTRL"
    assert (learner["options"]["epsilon"], learner["options"]["delta"]) == (0.25, 1e-7)
    path.write_text(path.read_text().partition("[learner]")[0] + "[learner]\n" + lines)
    assert build_learner(load_config(path)).entity.records == 20


def records(first: int, count: int) -> list[Any]:
    return [
        Record(i, json.dumps({"a": i % 7 / 7, "b": 0.1 * (i % 3), "y": i % 2 == 0}).encode())
        for i in range(first, first + count)
    ]


def hold(path: Path) -> LaneOnDisk:
    return LaneOnDisk(path, records(0, 400))


def call(*arguments: object, code: int = 0, columns: int = 200) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(columns)})
    assert result.exit_code == code, result.output
    return result.stdout + result.stderr


def test_it_shows_each_lane_and_the_sum(tmp_path: Path) -> None:
    path = write(tmp_path)
    opened = hold(path)  # and nothing taken yet
    opened.close()
    (began,) = json.loads(call("budget", "show", path, "--json"))["accounts"]
    assert (began["releases"], began["uncommitted"]) == (0, 0)
    opened = hold(path)
    opened.take(3)  # killed before its first commit
    opened.close()
    (began,) = json.loads(call("budget", "show", path, "--json"))["accounts"]
    assert (began["releases"], began["uncommitted"]) == (0, 3)
    assert (began["epsilon_spent"], began["epsilon_budget"]) == (0.0, 1.0)
    for file in ((tmp_path / "state" / "fraud@payments-all.log"), tmp_path / "fraud.group"):
        file.unlink()
    lane = hold(path)
    lane.take(60)
    lane.commit()
    lane.take(7)  # killed before the commit
    lane.close()
    summary = json.loads(call("budget", "show", path, "--json"))
    (one,) = summary["accounts"]
    assert (one["releases"], one["uncommitted"]) == (60, 7)
    assert (one["forks"], one["forks_planned"]) == (0, 1)
    assert summary["epsilon_spent"] == pytest.approx(one["epsilon_spent"])
    assert summary["mu_spent"] == one["mu_spent"] < planned_mu(1.0, 1e-4)
    text = call("budget", "show", path)
    assert "fraud: payments, PairFTRL" in text
    assert "60, and 7 since the last commit" in text
    assert "together, for one record" in text
    # Another application on the same records adds to it.
    other = write(tmp_path, "churn")
    lane = hold(other)
    lane.take(100)
    lane.commit(clean=True)
    lane.close()
    assert len(json.loads(call("budget", "show", path, "--json"))["accounts"]) == 1
    both = json.loads(call("budget", "show", path, other, "--json"))
    mus = [a["mu_spent"] for a in both["accounts"]]
    assert mus[0] == one["mu_spent"] < mus[1]
    assert both["mu_spent"] == pytest.approx(math.hypot(*mus))


def test_what_fades_has_no_running_total(tmp_path: Path) -> None:
    options = (
        "options = {epsilon = 1.0, delta = 1e-4, warmup = 50, window = 50, forks = 1, "
        'mechanism = {class = "streampair.privacy.DecayedMoments", half_life = 40}}'
    )
    path = write(tmp_path, options=options)
    lane, spent = hold(path), []
    for _ in range(2):
        lane.take(200)
        lane.commit()
        spent.append(json.loads(call("budget", "show", path, "--json"))["accounts"][0])
    lane.close()
    early, late = spent
    assert (early["releases"], late["releases"]) == (1 + 30, 1 + 70)
    assert early["horizon_left"] is late["horizon_left"] is None
    assert 0.0 < early["mu_spent"] <= late["mu_spent"] < early["mu_spent"] * (1 + 1e-3)
    # Room for the second view is left.
    assert late["mu_spent"] < 0.9 * planned_mu(1.0, 1e-4)


def blocks(text: str) -> list[tuple[str, dict[str, str]]]:
    """What a reader sees: a title and its labelled values, the lines of a value joined again."""
    found: list[tuple[str, dict[str, str]]] = []
    for part in text.strip().split("\n\n"):
        titles = [line for line in part.splitlines() if not line.startswith(" ")]
        rows: dict[str, str] = {}
        for line in part.splitlines()[len(titles) :]:
            label, value = line[2:15].strip(), line[15:]
            if label:
                rows[label] = value
            else:
                rows[list(rows)[-1]] += " " + value
        found.append((" ".join(titles), rows))
    return found


@pytest.mark.parametrize("columns", [80, 120])
def test_nothing_is_cut_off(tmp_path: Path, columns: int) -> None:
    """Names as long as they come, a lane with a ledger and one without, one at its horizon: every value."""
    long = "applications-have-names-of-up-to-a-hundred-characters-and-people-use-them"
    fixed = "options = {epsilon = 2.0, delta = 1e-4, seed = 3}"
    short = OPTIONS.replace("horizon = 400", "horizon = 60").replace("window = 100", "window = 60")
    paths = [write(tmp_path), write(tmp_path, long, options=fixed), write(tmp_path, "small", options=short)]
    for path in paths:
        lane = hold(path)
        lane.take(60)
        lane.commit()
        if path is paths[0]:
            lane.take(7)
        lane.close()
    summary = json.loads(call("budget", "show", *paths, "--json"))
    totals = {"epsilon_spent", "mu_spent", "delta", "unit", "over_topics", "why", "unread"}
    assert summary.keys() == {"accounts"} | totals
    text = call("budget", "show", *paths, columns=columns)
    assert "…" not in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= columns
    *lanes, (title, total) = blocks(text)
    assert title == "together, for one record"
    assert total["epsilon"] == f"{summary['epsilon_spent']:.4g} at delta {summary['delta']:.3g}"
    assert total["mu"] == f"{summary['mu_spent']:.4g}"
    assert total["over topics"] == f"the maximum: {summary['why']}"
    # A name that is longer than a line goes on in the next one.
    covered = f"{long}: payments, PairFTRL: its guarantee is void"
    assert "".join(total["not covered"].split()) == "".join(covered.split())
    assert len(lanes) == len(summary["accounts"]) == 3
    for (title, rows), a in zip(lanes, summary["accounts"], strict=True):
        assert title == f"{a['app']}: {a['topic']}, {a['learner']}"
        assert rows["epsilon"] == f"{a['epsilon_spent']:.4g} of {a['epsilon_budget']:.4g} spent"
        assert rows["mu"] == f"{a['mu_spent']:.4g} of {a['mu_budget']:.4g} spent"
        assert rows["releases"].split(",")[0] == str(a["releases"])
        assert (f"and {a['uncommitted']} since" in rows["releases"]) == (a["uncommitted"] > 0)
        assert rows["left"].split()[0] == {None: "no"}.get(a["horizon_left"], str(a["horizon_left"]))
        assert rows["protected"] == a["unit"]
        assert rows["guarantee"].startswith(a["kind"])
        assert rows["guarantee"].endswith(a["guarantee"])
        if a["forks"] is None:
            assert "no ledger" in rows["forks"]
        else:
            assert rows["forks"].startswith(f"{a['forks']} of {a['forks_planned']} planned")
            assert ("1 more" in rows["forks"]) == a["pending"]
            assert (
                rows["attempt"] == f"{a['attempt']}, window {a['window']}, "
                f"generation {a['generation']} of the noise"
            )
    assert [a["horizon_left"] for a in summary["accounts"]] == [340, None, 0]
    assert summary["accounts"][0]["uncommitted"] == 7


ENTITY = (
    "options = {epsilon = 1.0, delta = 1e-4, horizon = 400, "
    'mechanism = {class = "streampair.privacy.PairGradients"}, '
    'entity = {class = "streampair.privacy.EntityLimit", records = 2, separation = 50}}'
)


RECORD = "the content of one record (its feature values and its label)"


def account(
    mu: float,
    *,
    topic: str = "payments",
    unit: str = "the contents of all records of one entity: at most 2",
) -> LaneBudget:
    return LaneBudget(
        *("app", topic, "L", 0.0, 1.0, 1e-4, mu, 9.0, 0, None, None, "holds", "holds"),
        *(None, None, False, None, None, None, 0, unit),
    )


def naive_total(accounts: list[LaneBudget], *, disjoint: bool) -> float:
    """The most that any topics with an entity's records can cost it, squared: all of them are tried."""
    every = sorted({a.topic for a in accounts})
    sizes = range(2 if disjoint else len(every) + 1)
    places = (chosen for size in sizes for chosen in itertools.combinations(every, size))
    return max(sum(a.mu_spent**2 for a in accounts if a.topic in chosen) for chosen in places)


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("unit", ["record", "entity"])
def test_the_total_is_that_of_the_worst_placement(unit: str, disjoint: bool) -> None:
    """A record, or those of an entity, may be in every topic if nobody declares otherwise."""
    coin = random.Random(5)
    too_low = 0
    for _ in range(200):
        accounts = [
            account(
                coin.uniform(0.1, 2.0),
                topic=coin.choice("ab"),
                **({"unit": RECORD} if unit == "record" else {}),
            )
            for _ in range(coin.randrange(1, 6))
        ]
        total = total_of(accounts, disjoint=disjoint)
        assert total.unit == unit
        assert total.spend.mu**2 == pytest.approx(naive_total(accounts, disjoint=disjoint))
        one = disjoint or len({a.topic for a in accounts}) == 1
        assert (total.over_topics == "maximum") == one
        if not one:
            assert "may be in several topics, which add up" in total.why
        # A mutant: the largest lane.
        too_low += max(a.mu_spent for a in accounts) < total.spend.mu * (1 - 1e-9)
    assert too_low > 50


def test_topics_add_up_unless_they_are_declared_disjoint(tmp_path: Path) -> None:
    """One application learns from a topic, another one from a copy of it: nothing shows that it is one."""
    paths = [write(tmp_path), write(tmp_path, "copy")]
    paths[1].write_text(paths[1].read_text().replace('topic = "payments"', 'topic = "payments-copy"'))
    for path in paths:
        lane = hold(path)
        lane.take(100)
        lane.commit(clean=True)
        lane.close()
    summary = json.loads(call("budget", "show", *paths, "--json"))
    mus = [a["mu_spent"] for a in summary["accounts"]]
    assert (len(mus), summary["unit"]) == (2, "record")
    assert summary["mu_spent"] == pytest.approx(math.hypot(*mus))
    assert summary["over_topics"] == "root of the sum of squares"
    assert "unless you declare --disjoint" in call("budget", "show", *paths)
    declared = json.loads(call("budget", "show", *paths, "--disjoint", "--json"))
    assert declared["mu_spent"] == pytest.approx(max(mus))
    assert (declared["over_topics"], declared["accounts"]) == ("maximum", summary["accounts"])
    assert "--disjoint declares that no record" in call("budget", "show", *paths, "--disjoint")


def test_the_records_of_an_entity_in_all_partitions_have_one_account(tmp_path: Path) -> None:
    """However many partitions there are, and however records are keyed: nothing adds up over them."""
    path = write(tmp_path, options=ENTITY)
    made = [
        OrderedRecord(r.offset, r.value, partition=r.offset % 6, position=r.offset // 6)
        for r in records(0, 100)
    ]
    lane = LaneOnDisk(path, made)
    lane.take(100)
    lane.commit(clean=True)
    lane.close()
    summary = json.loads(call("budget", "show", path, "--json"))
    (one,) = summary["accounts"]
    assert (summary["unit"], summary["over_topics"]) == ("entity", "maximum")
    assert summary["mu_spent"] == one["mu_spent"] > 0
    text = call("budget", "show", path)
    assert "fraud: payments, PairFTRL" in text
    assert "together, for one entity" in text
    assert "each learner reads the whole topic, and has all records of it" in text
    # Another application that protects single records is named.
    churn = write(tmp_path, "churn")
    assert "no private lane of churn" in call("budget", "show", path, churn, code=1)
    other = hold(churn)
    other.commit()
    other.close()
    text = call("budget", "show", path, churn)
    assert "churn: payments, PairFTRL: it protects one record, not all of an entity's" in text


def test_check_says_that_one_lane_has_all_records_of_an_entity(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, options=ENTITY))
    privacy = build_lane(config, json_decoder(config.input)).privacy
    report = Report()
    _check_entities(privacy, report)
    (summary,) = [finding["text"] for finding in report.findings]
    assert summary.startswith("one lane reads the whole topic: the budget above is an entity's")


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "fraud@payments-all.log").write_bytes(bytes(200))
    assert "this is no log" in call("budget", "show", path, code=1)


def test_a_store_without_a_private_lane(tmp_path: Path) -> None:
    path = write(tmp_path, learner="PairOGD", options="")
    assert "no private lane" in call("budget", "show", path, code=1)
    lane = hold(path)
    lane.close()
    assert "no private lane" in call("budget", "show", path, code=1)
    assert "Example: streampair budget show" in call("budget", "show", "--help")


KILLED = """
import os, sys
sys.path.insert(0, {here!r})
from test_budget import hold
from pathlib import Path
held = hold(Path({path!r}))
for batch in range(3):
    held.take(10)
    for scored in held.scores[-10:]:
        print(scored.offset, repr(scored.score), flush=True)
    if batch == 0:
        held.commit(snapshot={snapshot})
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_killed_worker_repeats_itself_and_spends_nothing(tmp_path: Path, snapshot: bool) -> None:
    """SIGKILL between commits, twice: the same scores to the last bit, no fork charged."""
    path = write(tmp_path)
    summary: dict[str, set[str]] = {}
    for _ in range(2):
        here = str(Path(__file__).parent)
        ended = programs.run(KILLED.format(here=here, path=str(path), snapshot=snapshot), tmp_path)
        assert ended.code == -9, ended.errors
        for line in ended.printed.splitlines():
            offset, score = line.split()
            summary.setdefault(offset, set()).add(score)
    assert len(summary) == 40
    assert {len(scores) for scores in summary.values()} == {1}
    (account,) = json.loads(call("budget", "show", path, "--json"))["accounts"]
    assert (account["forks"], account["kind"], account["uncommitted"]) == (0, "holds", 20)
    assert account["pending"]  # at the last commit the replay had not caught up
    # The key is the store's own, for its owner only; without it the noise would be another.
    key = tmp_path / "state" / "fraud.noise-key"
    assert key.stat().st_mode & 0o777 == 0o600
    kept = key.read_text()
    for other, problem in ((None, r"is gone, and models have been released"), ("ab" * 32, "noise key")):
        key.unlink()
        if other is not None:
            key.write_text(other)
            key.chmod(0o600)
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        with pytest.raises((StoreError, PrivacyError, SnapshotError), match=problem):
            hold(path)
        assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
        key.write_text(kept)
        key.chmod(0o600)
    lane = hold(path)
    lane.take(20)
    assert lane.lane.gauges().forks == 0
    lane.close()


def test_the_secret_of_a_store(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "state")
    with pytest.raises(StoreError, match="is gone, and models have been released under it"):
        store.secret("app.noise-key", fresh=False)
    assert list((tmp_path / "state").iterdir()) == []
    one = store.secret("app.noise-key", fresh=True)
    assert len(one) == 32
    for fresh in (True, False):
        assert DirectoryStore(tmp_path / "state").secret("app.noise-key", fresh=fresh) == one
    assert store.secret("other", fresh=True) != one
    (tmp_path / "state" / "app.noise-key").write_text("not a key")
    with pytest.raises(StoreError, match="not 64 hexadecimal"):
        store.secret("app.noise-key", fresh=True)
