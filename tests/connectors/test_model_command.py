"""`streampair model` without a broker: exports of a directory, shown and compared files, refusals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from harness.lane_on_disk import LaneOnDisk
from hypothesis import given
from hypothesis import strategies as st
from streampair_connectors.cli.app import app
from typer.testing import CliRunner

from streampair import auc, history, models
from streampair.engine import OrderedRecord

TOML = """
app = "fraud"
kafka.bootstrap_servers = "127.0.0.1:1"
[input]
topic = "payments"
label = "y"
features = ["a", "b"]
[learner]
{learner}
[store]
directory = "state"
[card]
curator = "a bank"
"""
PAIR_OGD = 'class = "streampair.auc.PairOGD"'
PRIVATE = (
    'class = "streampair.auc.PairFTRL"\n'
    "options = { epsilon = 1.0, delta = 1e-4, horizon = 1000, warmup = 20, forks = 1, window = 100 }"
)


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["model", *map(str, arguments)], env={"COLUMNS": "120"})
    assert result.exit_code == code, result.output
    return str(result.stdout + result.stderr)


def call_json(*arguments: object, code: int = 0) -> Any:
    return json.loads(call(*arguments, "--json", code=code).splitlines()[-1])


def values(count: int) -> list[bytes]:
    coin = random.Random(1)
    xs = [{"a": coin.random(), "b": coin.random()} for _ in range(count)]
    return [json.dumps({**x, "y": x["a"] + coin.random() > 1.0}).encode() for x in xs]


def lane_of(config: Path, count: int = 300) -> LaneOnDisk:
    ordered = [OrderedRecord(i, v, partition=i % 3, position=i // 3) for i, v in enumerate(values(count))]
    return LaneOnDisk(config, ordered)


def configured(folder: Path, learner: str) -> Path:
    path = folder / "fraud.toml"
    path.write_text(TOML.format(learner=learner))
    return path


@pytest.fixture(params=[PAIR_OGD, PRIVATE], ids=["PairOGD", "PairFTRL"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return configured(tmp_path, request.param)


def test_the_model_of_a_stored_lane(config: Path, tmp_path: Path) -> None:
    """It scores as the lane does, and the store is left as it is."""
    lane, file = lane_of(config), tmp_path / "model.json"
    lane.take(150)
    lane.commit()
    learner = lane.lane.learner
    lane.close()
    before = {path: path.read_bytes() for path in (tmp_path / "state").iterdir()}
    assert call_json("export", config, "--output", file) == {
        **{"file": str(file), "slots": 150},
        **{"newer_events": 0, "features": 2},
    }
    assert {path: path.read_bytes() for path in (tmp_path / "state").iterdir()} == before
    model = models.load(file)
    xs = [{"a": 0.1, "b": 0.7}, {"a": 0.9}]
    assert [model.score_one(x) for x in xs] == [learner.score_one(x) for x in xs]
    assert (model.slots, model.metadata["application"]) == (150, "fraud")
    if learner.privacy is None:
        assert model.privacy is None
        assert "privacy_card" not in model.metadata
    else:
        assert model.privacy is not None
        assert model.privacy["epsilon_spent"] == learner.privacy.epsilon_spent
        card = model.metadata["privacy_card"]
        assert card["privacy_loss"]["epsilon spent"] == learner.privacy.epsilon_spent
        assert card["deployment"]["data curator"] == "a bank"
    graph = tmp_path / "model.onnx"
    call("export", config, "--output", graph)
    outputs = onnxruntime.InferenceSession(graph).run(None, models.onnx_inputs(model, xs))
    assert outputs[0].tolist() == pytest.approx([model.score_one(x) for x in xs])


def test_events_behind_the_last_snapshot_are_counted(config: Path, tmp_path: Path) -> None:
    lane, file = lane_of(config), tmp_path / "model.json"
    lane.take(150)
    lane.commit()
    spent = None if lane.lane.learner.privacy is None else lane.lane.learner.privacy.epsilon_spent
    lane.take(20)
    lane.commit(snapshot=False)
    lane.take(7)  # and dies
    lane.close()
    assert call_json("export", config, "--output", file)["newer_events"] == 20
    assert "20 newer events are not in it" in call("export", config, "--output", file)
    model = models.load(file)
    assert model.slots == 150
    if spent is not None:  # what a replay may charge is charged
        assert model.privacy is not None
        assert model.privacy["epsilon_spent"] > spent


def test_what_cannot_be_exported_names_the_fix(tmp_path: Path) -> None:
    config, file = configured(tmp_path, PAIR_OGD), tmp_path / "model.json"
    assert "the store has no lane of fraud\n  fix: run it first" in call(
        "export", config, "--output", file, code=1
    )
    lane = lane_of(config)
    lane.take(10)
    lane.close()
    assert "has no snapshot of payments yet" in call("export", config, "--output", file, code=1)
    lane = lane_of(config)
    lane.take(10)
    lane.commit()
    lane.close()
    assert "give a file in a directory that is there" in call(
        "export", config, "--output", tmp_path / "no" / "m", code=2
    )
    (log,) = (tmp_path / "state").glob("*.log")
    log.write_bytes(log.read_bytes()[:-70])
    assert "fix: " in call("export", config, "--output", file, code=1)
    assert not file.exists()


def test_a_model_topic_without_a_broker_leaves_the_store(tmp_path: Path) -> None:
    config, file = configured(tmp_path, f'scoring = "parallel"\n{PAIR_OGD}'), tmp_path / "model.json"
    lane = lane_of(config)
    lane.take(10)
    lane.commit()
    lane.close()
    assert "fix: " in call("export", config, "--output", file, code=1)
    assert call_json("export", config, "--output", file, "--stored")["slots"] == 10


def saved(path: Path, learner: Any, count: int, **more: Any) -> Path:
    coin = random.Random(3)
    for _ in range(count):
        x = {"a": coin.random(), "b": coin.random(), **more}
        learner.learn_one(x, coin.random() < x["a"])
    models.save(models.export(learner, time=1_700_000_000_000), path)
    return path


@pytest.mark.parametrize("ending", ["json", "onnx"])
def test_what_is_in_a_file(tmp_path: Path, ending: str) -> None:
    file = saved(tmp_path / f"m.{ending}", auc.Forest(seed=1), 50, country="NL")
    text = call("show", file)
    for line in (
        "learner      auc.Forest (forest)",
        "features     3: a, b, country",
        "classes      2: False, True",
        "records      50",
        "time         2023-11-14T22:13:20+00:00",
        "privacy      none: the weights are a function of raw data",
    ):
        assert line in text
    private = saved(tmp_path / f"p.{ending}", auc.PairFTRL(1.0, 1e-4, 100, warmup=20), 60)
    text = call("show", private)
    assert "of 1 spent at delta 0.0001" in text
    assert "protects     the content of one record" in text
    facts = call_json("show", private)
    assert facts["privacy"]["epsilon_budget"] == 1.0
    assert "weights" not in facts


def test_names_in_a_file_do_not_move_the_cursor(tmp_path: Path) -> None:
    learner = auc.PairOGD()
    learner.learn_one({"a\x1b[2J": 1.0}, True)
    models.save(learner, tmp_path / "m.json")
    assert "features     1: a?[2J\n" in call("show", tmp_path / "m.json")


# ---- files that are none


def test_files_that_are_no_models(tmp_path: Path) -> None:
    good = saved(tmp_path / "good.json", auc.PairOGD(), 20)
    graph = saved(tmp_path / "good.onnx", auc.PairOGD(), 20)
    assert "cannot be read" in call("show", tmp_path / "none.json", code=2)
    assert "cannot be read" in call("show", tmp_path, code=2)
    for content, problem in (
        (b"", "it is empty"),
        (b"{}", 'its "format" is not'),
        (good.read_bytes()[:-20], "it is damaged or cut short"),
        (graph.read_bytes(), "it is damaged or cut short"),
        (good.read_bytes().replace(b'"version":1', b'"version":2'), "version 2, this release reads"),
        (good.read_bytes().replace(b'"slots":20', b'"slots":-1'), "is damaged"),
    ):
        bad = tmp_path / "bad.json"
        bad.write_bytes(content)
        text = call("show", bad, code=1)
        assert f"error: {bad}: " in text
        assert problem in text
        assert "  fix: " in text
        assert call_json("show", bad, code=1)["kind"] == "SnapshotError"


def test_graphs_that_are_no_models(tmp_path: Path) -> None:
    import onnx

    good = saved(tmp_path / "good.onnx", auc.PairOGD(), 20)
    made, bad = onnx.load(good), tmp_path / "bad.onnx"
    kept = {entry.key: entry.value for entry in made.metadata_props}
    for name, value, problem in (
        ("format", '"other"', "is not a model of streampair"),
        ("version", "2", "the model has version 2"),
        ("version", "x", "the model has version unknown"),
        ("slots", '"many"', "is damaged"),
        ("features", "[[1]]", "is damaged"),
        ("privacy", "{}", "is damaged"),
        ("metadata", "[", "is damaged"),
    ):
        onnx.helper.set_model_props(made, {**kept, f"streampair.{name}": value})
        bad.write_bytes(made.SerializeToString())
        assert problem in call("show", bad, code=1)
    del made.metadata_props[:]
    for content in (made.SerializeToString(), b"", b"{}", good.read_bytes()[:100]):
        bad.write_bytes(content)
        assert "  fix: " in call("show", bad, code=1)
    damaged = models.export(auc.PairOGD(), metadata={"privacy_card": {"status": 1}})
    models.save(damaged, tmp_path / "card.json")
    assert "the privacy card in the file is damaged" in call("show", tmp_path / "card.json", code=1)


def test_what_is_assumed_of_a_table_is_shown(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, 500)
    table = {"id": np.arange(500), "a": a, "y": a > 0.2}
    learner = auc.PairFTRL(1.0, 1e-4, bounds={"a": (-1, 1)})
    job = history.Job(learner, label="y", rows=500, row_id="id", salt="salt")
    model = history.fit(job, [table], bytes(32), account=tmp_path / "account")
    models.save(model, tmp_path / "model.json")
    printed = call("show", tmp_path / "model.json")
    assert "  assumed " in printed
    text_of_command = " ".join(printed.split())
    assert all(text_of_command.count(text) == 1 for text in history.ASSUMED)
    for odd in (1, {"assumed": 1}):
        models.save(models.export(auc.PairOGD(), metadata={"history": odd}), tmp_path / "odd.json")
        assert "  assumed " not in call("show", tmp_path / "odd.json")


SAMPLES = {
    "linear": auc.PairOGD(),
    "forest": auc.Forest(2, 15, seed=1),
    "private": auc.PairFTRL(1.0, 1e-4, 100, warmup=10),
}


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("models")
    return {
        f"{name}.{ending}": saved(folder / f"{name}.{ending}", learner, 20).read_bytes()
        for name, learner in SAMPLES.items()
        for ending in ("json", "onnx")
    }


@given(data=st.data())
def test_damaged_files_are_shown_or_refused(
    contents: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Never a traceback: what cannot be read has an error with its fix."""
    name = data.draw(st.sampled_from(sorted(contents)))
    content = bytearray(contents[name])
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(["cut", "byte", "drop", "insert"]))
        if kind == "cut":
            del content[max(position, 1) :]
        elif kind == "byte":
            content[position] = data.draw(st.integers(0, 255))
        elif kind == "drop":
            del content[position : position + data.draw(st.integers(1, 9))]
        else:
            content[position:position] = data.draw(st.binary(min_size=1, max_size=9))
        if not content:
            break
    file = tmp_path_factory.getbasetemp() / f"damaged.{name.rpartition('.')[2]}"
    file.write_bytes(content)
    result = CliRunner().invoke(app, ["model", "show", str(file)])
    assert result.exit_code in (0, 1), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    if result.exit_code:
        assert "\n  fix: " in result.output
