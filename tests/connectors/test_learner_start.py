"""`learner.start`: a lane that begins with a model file, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.lane_on_disk import LaneOnDisk
from river import datasets, preprocessing
from streampair_connectors.cli.app import app
from streampair_connectors.config import Changes, load_config
from streampair_connectors.worker.factory import build_learner
from typer.testing import CliRunner

from streampair import auc, history, models, ranking
from streampair.engine import Record
from streampair.errors import ConfigError, SnapshotError, StreampairError
from streampair.privacy import compose
from streampair.privacy.accounting import planned_mu, promised_epsilon

PHISHING = [(x, bool(y)) for x, y in datasets.Phishing()]
NAMES = sorted(PHISHING[0][0])
TOML = """
app = "fraud"
metrics.address = "127.0.0.1:0"
kafka.bootstrap_servers = "127.0.0.1:1"
kafka.connect_timeout = "2s"
[input]
topic = "payments"
label = "y"
features = {features}
[learner]
class = "streampair.auc.{name}"
start = "model.json"
{more}
[store]
directory = "state"
"""


def learned(learner: Any, records: Sequence[Any] = PHISHING[:600]) -> Any:
    for x, y in records:
        learner.learn_one(x, y)
    return learner


def configured(
    folder: Path, name: str = "PairOGD", more: str = "", features: Sequence[str] | str = tuple(NAMES)
) -> Path:
    path = folder / "fraud.toml"
    declared = features if isinstance(features, str) else json.dumps(list(features))
    path.write_text(TOML.format(name=name, more=more, features=declared))
    return path


def records(events: Sequence[Any] = PHISHING[600:]) -> list[Record]:
    return [Record(i, json.dumps({**x, "y": y}).encode()) for i, (x, y) in enumerate(events)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    models.save(learned(auc.PairOGD(seed=1)), tmp_path / "model.json")
    return configured(tmp_path)


def test_a_lane_begins_with_the_model_and_learns_on(config: Path, tmp_path: Path) -> None:
    model = models.load(tmp_path / "model.json")
    expected, learner = [], model.to_online(auc.PairOGD(seed=0))
    for x, y in PHISHING[600:]:
        expected.append(learner.score_one(x))
        learner.learn_one(x, y)
    first = PHISHING[600][0]
    lane = LaneOnDisk(config, records())
    assert lane.lane.learner.score_one(first) == model.score_one(first) == expected[0]
    lane.take(200)
    lane.commit()
    scores = [output.score for output in lane.scores]
    lane.close()
    lane = LaneOnDisk(config, records())  # a start that continues
    assert lane.lane.slots == 200
    lane.take(len(PHISHING) - 800)
    lane.commit()
    assert scores + [output.score for output in lane.scores] == expected
    weights = lane.lane.learner.weights
    lane.close()
    assert weights == learner.weights
    lane = LaneOnDisk(config, records())
    assert lane.lane.learner.weights == weights
    lane.close()


def test_a_start_with_another_file_is_refused(config: Path, tmp_path: Path) -> None:
    lane = LaneOnDisk(config, records())
    lane.take(100)
    lane.commit()
    lane.close()
    file = tmp_path / "model.json"
    kept = file.read_bytes()
    models.save(learned(auc.PairOGD(seed=1), PHISHING[:300]), file)
    message = (
        r"\(learner.start\) changed since the log was begun.*Fix: put the old model back as learner.start, or"
    )
    with pytest.raises(SnapshotError, match=message):
        LaneOnDisk(config, records())
    config.write_text(config.read_text().replace('start = "model.json"\n', ""))
    with pytest.raises(SnapshotError, match=r"changed since the log was begun.*Fix: put the old model back"):
        LaneOnDisk(config, records())
    configured(tmp_path, more="options = { radius = 2.0 }")
    with pytest.raises(SnapshotError, match=r"the configuration changed.*Fix: put the old learner and input"):
        LaneOnDisk(config, records())
    configured(tmp_path)
    file.unlink()
    with pytest.raises(ConfigError, match=r"learner.start: the model .*No such file.*Fix: .*has to stay"):
        LaneOnDisk(config, records())
    file.write_bytes(kept)
    lane = LaneOnDisk(config, records())
    assert lane.lane.slots == 100
    lane.close()


def test_a_lane_that_began_without_one_is_not_given_one(config: Path, tmp_path: Path) -> None:
    whole = config.read_text()
    config.write_text(whole.replace('start = "model.json"\n', ""))
    lane = LaneOnDisk(config, records())
    lane.take(10)
    lane.commit()
    lane.close()
    config.write_text(whole)
    with pytest.raises(SnapshotError, match=r"\(learner.start\) changed.*Fix: remove learner.start, or give"):
        LaneOnDisk(config, records())


def test_the_running_worker_sees_a_file_that_its_next_start_refuses(config: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    models.save(learned(auc.PairOGD(seed=1), PHISHING[:300]), other)
    for name, refused in (
        ("other.json", "its learner or its input are others"),
        ("none.json", "cannot be read"),
    ):
        path = configured(tmp_path)
        changes = Changes(load_config(path))
        changes._config.fingerprint()
        path.write_text(path.read_text().replace('"model.json"', f'"{name}"'))
        assert changes.look() == 1
        assert refused in changes.refused


def refusal(config: Path) -> StreampairError:
    with pytest.raises(StreampairError) as caught:
        build_learner(load_config(config))
    assert caught.value.problem.startswith("learner.start: ")
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("damage", ["cut", "altered", "newer", "other", "empty", "onnx"])
def test_a_file_that_is_no_model_is_refused_by_name(config: Path, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "model.json"
    data = file.read_bytes()
    weight = json.loads(data)["weights"][0]
    changed, message = {
        "cut": (data[:-40], "damaged or cut short"),
        "altered": (data.replace(json.dumps(weight).encode(), b'"much"'), "damaged"),
        "newer": (
            data.replace(b'"version":1', b'"version":2'),
            "has version 2, this release reads version 1",
        ),
        "other": (b'{"weights": [1, 2]}', "not a model"),
        "empty": (b"", "not a model"),
        "onnx": (data, "is an ONNX graph"),
    }[damage]
    assert changed != data or damage == "onnx"
    file.write_bytes(changed)
    if damage == "onnx":
        file.rename(tmp_path / "model.onnx")
        config.write_text(config.read_text().replace("model.json", "model.onnx"))
    error = refusal(config)
    assert isinstance(error, SnapshotError)
    assert message in error.problem
    assert str(tmp_path / "model.") in error.problem


def test_a_model_of_other_features_or_of_another_class_is_refused(config: Path, tmp_path: Path) -> None:
    configured(tmp_path, features=NAMES[1:])
    assert f"features that the input does not declare: {NAMES[0]}" in refusal(config).problem
    for name, more, message in [
        ("PairFTRL", "", "is not private: what it discloses of the records"),
        ("PairOGD", "public_start = true", "a PairOGD is not private, so it promises nothing"),
        ("PrivateForest", "", "cannot begin with this model (auc.PairOGD), which has no sums of its leaves"),
        ("Forest", "", "Forest cannot begin with a model"),
        ("OAM", "", "OAM cannot begin with a model"),
        ("PairOGD", "options = { radius = 1e-3 }", "beyond the radius"),
    ]:
        bounds = "{ " + ", ".join(f"{each} = [0, 1]" for each in NAMES) + " }"
        configured(tmp_path, name, more, features=bounds)
        assert message in refusal(config).problem
    configured(tmp_path)
    for learner, message in [
        (learned(auc.Forest(3, 31, seed=1)), "a learner that is not: auc.Forest"),
        (learned(auc.PairFTRL(features=NAMES, seed=1)), "the model of a private learner (auc.PairFTRL)"),
        (learned(ranking.PairOGD()), "other labels than"),
    ]:
        models.save(learner, tmp_path / "model.json")
        assert message in refusal(config).problem


STEPS = """
[[learner.steps]]
class = "river.preprocessing.StandardScaler"

[[learner.steps]]
class = "streampair.auc.PairOGD"
"""


def test_a_pipeline_begins_with_the_model_of_the_same_steps(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text().replace('class = "streampair.auc.PairOGD"\n', "") + STEPS)
    pipeline = preprocessing.StandardScaler() | auc.PairOGD()
    for x, y in PHISHING[:600]:
        pipeline.learn_one(x, y)
    models.save(pipeline, tmp_path / "model.json")
    begun = build_learner(load_config(config))
    for x, _ in PHISHING[600:700]:
        assert begun.score_one(x) == pipeline.score_one(x)
        begun["StandardScaler"].learn_one(x)
        pipeline["StandardScaler"].learn_one(x)
    assert "(auc.PairOGD, 600 records) and the state of its steps: StandardScaler" in check(config)
    models.save(pipeline["PairOGD"], tmp_path / "model.json")
    assert "the steps are not those of the model" in refusal(config).problem


def test_features_that_the_model_does_not_know_begin_at_0(config: Path, tmp_path: Path) -> None:
    configured(tmp_path, features=[*NAMES, "new"])
    learner = build_learner(load_config(config))
    model, x = models.load(tmp_path / "model.json"), PHISHING[700][0]
    assert learner.score_one({**x, "new": 9.0}) == model.score_one(x)


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "600"}).stdout


def check(config: Path) -> str:
    return run("check", str(config))


def test_check_says_what_the_lane_begins_with(config: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    begin = f"ok   learner.start: begins with the model {file} (auc.PairOGD, 600 records)"
    assert f"{begin}, which has 9 of the 9 features\n" in check(config)
    configured(tmp_path, features=[*NAMES, "new", "other"])
    assert f"{begin}, which has 9 of the 11 features; new, other begin at 0\n" in check(config)
    config.write_text(config.read_text().replace(f"features = {json.dumps([*NAMES, 'new', 'other'])}\n", ""))
    assert f"{begin} and its 9 features; other features begin at 0\n" in check(config)
    file.write_bytes(b"{}")
    assert "FAIL learner: learner.start: " in check(config)
    file.unlink()
    assert f"FAIL learner: learner.start: the model {file} cannot be read" in check(config)


# ---- private learners ---------------------------------------------------------------------------------

PRIVATE = "options = { epsilon = 1.0, delta = 1e-4, horizon = 500 }\n"
BOUNDS = "{ " + ", ".join(f"{each} = [-1, 1]" for each in NAMES) + " }"


def private_model(folder: Path) -> models.Model:
    source = auc.PairFTRL(1.0, 1e-4, 500, features=NAMES, noise_key=bytes(32))
    models.save(learned(source), folder / "model.json")
    return models.load(folder / "model.json")


def test_a_private_lane_begins_with_a_released_model_and_adds_its_spend(tmp_path: Path) -> None:
    """Scores, the account in the store, `budget show`, the card, and starts from log and snapshot."""
    model = private_model(tmp_path)
    before = model.privacy["mu_spent"]
    config = configured(tmp_path, "PairFTRL", PRIVATE, BOUNDS)
    lane = LaneOnDisk(config, records())
    first = PHISHING[600][0]
    assert lane.lane.learner.score_one(first) == model.score_one(first)
    assert lane.lane.privacy.mu_spent == before
    lane.take(90)
    lane.commit()
    scores = [output.score for output in lane.scores]
    assert scores == [model.score_one(x) for x, _ in PHISHING[600:690]]
    lane.close()
    lane = LaneOnDisk(config, records())  # within the warm-up
    lane.take(410)
    lane.commit()
    spent = lane.lane.privacy
    lane.close()
    lane = LaneOnDisk(config, records())  # behind it
    assert lane.lane.privacy == spent
    assert lane.lane.learner.slots == 500
    lane.close()
    alone = learned(auc.PairFTRL(1.0, 1e-4, 500, features=NAMES, noise_key=bytes(32)), PHISHING[600:1100])
    total = compose([before, alone.privacy.mu_spent])
    assert spent.mu_spent == pytest.approx(total, rel=1e-12)
    budget = json.loads(run("budget", "show", str(config), "--json"))
    account = budget["accounts"][0]
    assert (account["mu_spent"], account["epsilon_spent"]) == (spent.mu_spent, spent.epsilon_spent)
    assert budget["epsilon_spent"] == promised_epsilon(spent.mu_spent, 1e-4)
    assert "of the model of auc.PairFTRL that it began with" in account["guarantee"]
    card = json.loads(run("budget", "card", str(config), "--json"))
    assert promised_epsilon(total, 1e-4) == pytest.approx(card["privacy_loss"]["epsilon spent"], rel=1e-9)


def test_a_private_lane_begins_with_a_public_model_where_that_is_declared(tmp_path: Path) -> None:
    models.save(learned(auc.PairOGD(seed=1)), tmp_path / "model.json")
    model = models.load(tmp_path / "model.json")
    config = configured(tmp_path, "PairFTRL", "public_start = true\noptions = { warmup = 50 }\n")
    lane = LaneOnDisk(config, records())
    lane.take(50)
    lane.commit()
    expected = [model.score_one(x) for x, _ in PHISHING[600:650]]
    assert [output.score for output in lane.scores] == pytest.approx(expected, rel=1e-12)
    assert "declared public" in lane.lane.privacy.guarantee
    lane.close()
    # Another declaration is another account.
    undeclared = config.read_text().replace("public_start = true\n", "")
    config.write_text(undeclared)
    with pytest.raises(ConfigError, match=r"learner.start: .*in no account. Fix: .*learner.public_start"):
        LaneOnDisk(config, records())
    config.write_text(undeclared.replace('start = "model.json"', "public_start = true"))
    with pytest.raises(ConfigError, match="public_start says something of the model in start"):
        load_config(config)


def test_a_released_model_is_not_declared_public_later(tmp_path: Path) -> None:
    private_model(tmp_path)
    config = configured(tmp_path, "PairFTRL", PRIVATE, BOUNDS)
    lane = LaneOnDisk(config, records())
    lane.take(200)
    lane.commit()
    lane.close()
    config.write_text(config.read_text().replace(PRIVATE, "public_start = true\n" + PRIVATE))
    with pytest.raises(SnapshotError, match="declared otherwise"):
        LaneOnDisk(config, records())


def test_check_says_what_is_charged(tmp_path: Path) -> None:
    before = private_model(tmp_path).privacy["mu_spent"]
    config = configured(tmp_path, "PairFTRL", PRIVATE, BOUNDS)
    said = check(config)
    assert f"auc.PairFTRL, 500 records, whose mu of {before:.4g} is added to the account" in said
    promised = promised_epsilon(compose([before, planned_mu(1.0, 1e-4)]), 1e-4)
    assert f"ok   privacy: epsilon {promised:g} at delta 0.0001" in said
    config.write_text(config.read_text().replace(PRIVATE, "public_start = true\n" + PRIVATE))
    assert "500 records, declared public), which has" in check(config)


def test_check_warns_where_the_moments_of_a_table_are_lost(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (2, 500))
    table = {"id": np.arange(500), "a": a, "b": b, "y": a > 0.2}
    learner = auc.PairFTRL(1.0, 1e-4, bounds={"a": (-1, 1), "b": (-1, 1)})
    job = history.Job(learner, label="y", rows=500, row_id="id", salt="salt")
    model = history.fit(job, [table], bytes(32), account=tmp_path / "fraud-history.account.json")
    models.save(model, tmp_path / "model.json")
    options = "options = { epsilon = 1.0, delta = 1e-4 }\n"

    def warned(bounds: str) -> str:
        said = check(configured(tmp_path, "PairFTRL", options, bounds))
        assert "ok   learner.start: begins with the model" in said
        return "".join(line for line in said.splitlines() if line.startswith("WARN learner.start"))

    assert warned("{ b = [-1, 1], a = [-1, 1] }") == ""
    other = warned("{ a = [-1, 1], b = [-2, 1] }")
    assert "released moments of 375 rows of a table" in other
    assert "its weights alone are carried" in other
    assert "(b: [-1, 1], here [-2, 1])" in other
    assert "(c: none, here [0, 1])" in warned("{ a = [-1, 1], b = [-1, 1], c = [0, 1] }")
