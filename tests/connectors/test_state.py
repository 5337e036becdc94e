"""`streampair state` without a broker: what it shows of a directory, and what it asks before it acts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.lane_on_disk import LaneOnDisk
from streampair_connectors.cli.app import app
from streampair_connectors.config import load_config
from streampair_connectors.stores import DirectoryStore
from streampair_connectors.stores.offline import offline_store
from typer.testing import CliRunner

from streampair.engine import OrderedRecord, Record

TOML = """
app = "fraud"
{more}
[input]
topic = "payments"
label = "y"
features = ["a", "b"]
[learner]
class = "streampair.auc.PairFTRL"
[learner.options]
epsilon = 1.0
delta = 1e-4
horizon = 400
forks = 1
window = 100
mechanism = {{ class = "streampair.privacy.PairGradients" }}
[store]
{store}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fraud.toml"
    path.write_text(TOML.format(more="", store='directory = "state"'))
    return path


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "120"})
    assert result.exit_code == code, result.output
    return result.stdout + result.stderr


def records(count: int) -> list[Record]:
    return [
        Record(i, json.dumps({"a": i % 7 / 7, "b": 0.1 * (i % 3), "y": i % 2 == 0}).encode())
        for i in range(count)
    ]


def work(config: Path) -> None:
    lane = LaneOnDisk(config, records(67))
    lane.take(60)
    lane.commit()
    lane.take(7)  # and dies
    lane.close()


def test_a_directory_is_shown_without_a_broker_and_left_as_it_is(config: Path) -> None:
    assert "has a lane of fraud" in call("state", "show", config)
    work(config)
    state = config.parent / "state"
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in state.iterdir()}
    locked = DirectoryStore(state).open("fraud@payments-all")  # whose lock another process holds
    lane = json.loads(call("state", "show", config, "--json"))["lane"]
    locked.close()
    assert (lane["offset"], lane["slots"], lane["released"]) == (60, 60, 67)
    assert (lane["forks"], lane["forks_planned"], lane["register"]) == (0, 1, "not asked")
    assert lane["snapshot"]["offset"] == 60
    assert (lane["refused"], lane["damage"], lane["void"], lane["accepted"]) == (None, None, [], [])
    assert before.items() <= {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in state.iterdir()}.items()
    text = call("state", "show", config)
    assert "fraud: payments" in text
    assert "60, released up to 67" in text


def test_a_lane_of_several_partitions_is_shown_as_one(config: Path) -> None:
    made = [
        OrderedRecord(r.offset, r.value, partition=r.offset % 3, position=r.offset // 3) for r in records(60)
    ]
    lane = LaneOnDisk(config, made)
    lane.take(60)
    lane.commit()
    lane.close()
    row = json.loads(call("state", "show", config, "--json"))["lane"]
    assert row["slots"] == 60
    text = call("state", "show", config)
    assert text.startswith("fraud: payments\n")
    assert "-1" not in text


def test_a_replay_that_may_refuse_the_start_is_named(config: Path) -> None:
    work(config)
    assert "start      would start\n" in call("state", "show", config)
    lane = LaneOnDisk(config, records(80))
    lane.take(20)
    lane.commit(snapshot=False)
    lane.close()
    row = json.loads(call("state", "show", config, "--json"))["lane"]
    assert (row["replay"], row["refused"]) == ([60, 80], None)
    text = "would start, unless the replay of events 60 to 79 comes out otherwise"
    assert text in call("state", "show", config)


def test_damage_and_another_key_are_shown(config: Path) -> None:
    work(config)
    (log,) = (config.parent / "state").glob("*.log")
    whole = log.read_bytes()
    log.write_bytes(whole[:-70] + bytes([whole[-70] ^ 1]) + whole[-69:])
    lane = json.loads(call("state", "show", config, "--json"))["lane"]
    assert "damaged behind entry" in lane["damage"]
    assert lane["refused"] == lane["damage"]
    assert lane["offset"] == 60
    log.write_bytes(whole)
    (config.parent / "state" / "fraud.noise-key").write_text("ab" * 32)
    lane = json.loads(call("state", "show", config, "--json"))["lane"]
    assert "with the noise key" in lane["refused"]
    assert lane["offset"] == 60


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--yes"], "no override is chosen"),
        (["--accept-rollback", "--skip-span", "--yes"], "only one override at a time"),
        (["--accept-rollback"], "no terminal to ask"),
        (["--accept-rollback", "--json"], "no terminal to ask"),
        (["--accept-rollback", "--yes"], r"no [kafka] table"),
    ],
)
def test_what_recover_asks_first(config: Path, options: list[str], text: str) -> None:
    work(config)
    before = {path: path.read_bytes() for path in (config.parent / "state").iterdir()}
    assert text in call("state", "recover", config, *options, code=2)
    assert {path: path.read_bytes() for path in (config.parent / "state").iterdir()} == before


def test_a_snapshot_that_a_worker_replaces_meanwhile_is_read_again(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second worker of the application, or a command, reads while the first one works."""
    work(config)
    settings = load_config(config)
    (state,) = settings.state_directory.glob("*.state")
    content, listed = state.read_bytes(), Path.glob
    other = state.with_name(f"{state.stem[:-8]}00000000.state")
    other.write_bytes(content)

    def replaced(self: Path, pattern: str) -> Iterator[Path]:
        names = sorted(listed(self, pattern))
        other.unlink(missing_ok=True)
        return iter(names)

    monkeypatch.setattr(Path, "glob", replaced)
    found = asyncio.run(offline_store(settings).read_lane())
    assert not other.exists()
    assert found.snapshot(state.stem[-32:]) == content
