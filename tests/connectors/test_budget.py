"""`streampair budget show`: what the store says, for people and machines; and real kills between commits."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from streampair_connectors.cli import app
from streampair_connectors.config import load_config
from streampair_connectors.lanes import OpenLane
from streampair_connectors.records import json_decoder
from streampair_connectors.store import DirectoryStore
from streampair_connectors.telemetry import Telemetry
from typer.testing import CliRunner

from streampair.engine import Record
from streampair.errors import StoreError
from streampair.privacy import mu_from

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
    'options = {epsilon = 1.0, delta = 1e-4, horizon = 400, forks = 1, window = 100, solver = "gradients"}'
)


def write(directory: Path, name: str = "fraud", learner: str = "PairFTRL", options: str = OPTIONS) -> Path:
    path = directory / f"{name}.toml"
    path.write_text(TOML.format(app=name, learner=learner, options=options))
    return path


def records(first: int, count: int) -> list[Any]:
    return [
        Record(i, json.dumps({"a": i % 7 / 7, "b": 0.1 * (i % 3), "y": i % 2 == 0}).encode())
        for i in range(first, first + count)
    ]


def hold(path: Path, partition: int = 0) -> OpenLane:
    config = load_config(path)
    store = DirectoryStore(config.state_directory)
    decode = json_decoder(config.input)
    return OpenLane(config, store, decode, Telemetry(), topic="payments", partition=partition)


def call(*arguments: object, code: int = 0, columns: int = 200) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": str(columns)})
    assert result.exit_code == code, result.output
    return result.stdout + result.stderr


def test_it_shows_each_lane_and_the_sum(tmp_path: Path) -> None:
    path = write(tmp_path)
    for partition, count in ((0, 60), (1, 100)):
        held = hold(path, partition)
        held.lane.process(records(0, count))
        held.save(held.lane.snapshot())
        if partition == 0:
            held.lane.process(records(60, 7))  # killed before the commit
        held.close()
    told = json.loads(call("budget", "show", path, "--json"))
    zero, one = told["accounts"]
    assert (zero["releases"], one["releases"]) == (60, 100)
    assert (zero["uncommitted"], one["uncommitted"]) == (7, 0)
    assert (zero["forks"], zero["forks_planned"]) == (0, 1)
    assert zero["epsilon_spent"] < one["epsilon_spent"] < 1.0
    assert told["epsilon_spent"] == pytest.approx(one["epsilon_spent"])  # other records: the larger counts
    assert told["mu_spent"] == one["mu_spent"] < mu_from(1.0, 1e-4)
    text = call("budget", "show", path)
    assert "fraud: payments[0], PairFTRL" in text
    assert "60, and 7 since the last commit" in text
    assert "together, for one record" in text
    # Another application on the same records adds to it.
    other = write(tmp_path, "churn")
    held = hold(other, 1)
    held.lane.process(records(0, 100))
    held.save(held.lane.snapshot(clean=True))
    held.close()
    assert len(json.loads(call("budget", "show", path, "--json"))["accounts"]) == 2
    both = json.loads(call("budget", "show", path, "--all", "--json"))
    assert both["mu_spent"] == pytest.approx(one["mu_spent"] * 2**0.5)


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
        held = hold(path, 7)
        held.lane.process(records(0, 60))
        held.save(held.lane.snapshot())
        if path is paths[0]:
            held.lane.process(records(60, 7))
        held.close()
    told = json.loads(call("budget", "show", paths[0], "--all", "--json"))
    assert told.keys() == {"accounts", "epsilon_spent", "mu_spent", "delta"}
    text = call("budget", "show", paths[0], "--all", columns=columns)
    assert "…" not in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= columns
    *lanes, (title, total) = blocks(text)
    assert title == "together, for one record"
    assert total["epsilon"] == f"{told['epsilon_spent']:.4g} at delta {told['delta']:.3g}"
    assert total["mu"] == f"{told['mu_spent']:.4g}"
    # A name that is longer than a line goes on in the next one.
    covered = f"{long}: payments[7], PairFTRL: its guarantee is void"
    assert "".join(total["not covered"].split()) == "".join(covered.split())
    assert len(lanes) == len(told["accounts"]) == 3
    for (title, rows), a in zip(lanes, told["accounts"], strict=True):
        assert title == f"{a['app']}: {a['topic']}[{a['partition']}], {a['learner']}"
        assert (
            rows["epsilon"]
            == f"{a['epsilon_spent']:.4g} of {a['epsilon_budget']:.4g} spent, at delta {a['delta']:.3g}"
        )
        assert rows["mu"] == f"{a['mu_spent']:.4g} of {a['mu_budget']:.4g} spent"
        assert rows["releases"].split(",")[0] == str(a["releases"])
        assert (f"and {a['uncommitted']} since" in rows["releases"]) == (a["uncommitted"] > 0)
        assert rows["left"].split()[0] == {None: "no"}.get(a["horizon_left"], str(a["horizon_left"]))
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
    assert [a["horizon_left"] for a in told["accounts"]] == [None, 340, 0]
    assert told["accounts"][1]["uncommitted"] == 7


def test_a_store_without_a_private_lane(tmp_path: Path) -> None:
    path = write(tmp_path, learner="PairOGD", options="")
    assert "no private lane" in call("budget", "show", path, code=1)
    held = hold(path)
    held.close()
    assert "no private lane" in call("budget", "show", path, code=1)
    assert "Example: streampair budget show" in call("budget", "show", "--help")


KILLED = """
import os, sys
from test_budget import hold, records
from pathlib import Path
held = hold(Path(sys.argv[1]))
start = held.lane.next_offset or 0
for at in range(start, start + 30, 10):
    for scored in held.lane.process(records(at, 10)).scores:
        print(scored.offset, repr(scored.score), flush=True)
    if at == start:
        held.save(held.lane.snapshot())
os.kill(os.getpid(), 9)
"""


def test_a_killed_worker_repeats_itself_and_spends_nothing(tmp_path: Path) -> None:
    """SIGKILL between commits, twice: the same scores to the last bit, no fork charged."""
    path = write(tmp_path)
    told: dict[str, set[str]] = {}
    for _ in range(2):
        script = textwrap.dedent(KILLED)
        run = subprocess.run(
            [sys.executable, "-c", script, str(path)],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
        )
        assert run.returncode == -9, run.stderr
        for line in run.stdout.splitlines():
            offset, score = line.split()
            told.setdefault(offset, set()).add(score)
    assert len(told) == 40
    assert {len(scores) for scores in told.values()} == {1}
    (account,) = json.loads(call("budget", "show", path, "--json"))["accounts"]
    assert (account["forks"], account["kind"], account["uncommitted"]) == (0, "holds", 20)
    assert account["pending"]  # at the last commit the replay had not caught up
    # The key is the store's own, for its owner only; without it the noise would be another.
    key = tmp_path / "state" / "fraud.noise-key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.unlink()
    held = hold(path)
    held.lane.process(records(20, 10))
    assert held.lane.gauges().forks == 1
    held.close()


def test_the_secret_of_a_store(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "state")
    one = store.secret("app.noise-key")
    assert len(one) == 32
    assert DirectoryStore(tmp_path / "state").secret("app.noise-key") == one
    assert store.secret("other") != one
    (tmp_path / "state" / "app.noise-key").write_text("not a key")
    with pytest.raises(StoreError, match="not 64 hexadecimal"):
        store.secret("app.noise-key")
