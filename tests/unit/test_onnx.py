"""Models as ONNX graphs: ONNX Runtime has the scores of the learner, or the export is refused."""

from __future__ import annotations

import base64
import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from harness import pages
from harness.learners import KEY, every_learner, stream, taught
from harness.support import in_one_case
from river import compose, preprocessing

from streampair import auc, buffers, losses, metric, models, ranking
from streampair.errors import ConfigError, RecordError, SnapshotError

RECORDS = 10_000


def session(model: models.Model) -> Any:
    return onnxruntime.InferenceSession(models.to_onnx(model).SerializeToString())


def agrees(learner: Any, xs: list[Any], tolerance: float = 1e-6) -> None:
    """Scores and probabilities of the graph, against those of the learner."""
    model = models.loads(models.dumps(learner))
    outputs = session(model).run(None, models.onnx_inputs(model, xs))
    scores = np.array([learner.score_one(x) for x in xs])
    assert outputs[0].shape == scores.shape
    np.testing.assert_allclose(outputs[0], scores, rtol=tolerance, atol=tolerance)
    assert len(outputs) == (2 if model.classes else 1)
    if model.classes:
        said = [learner.predict_proba_one(x) for x in xs]
        expected = np.array([[p[label] for label in model.classes] for p in said])
        np.testing.assert_allclose(outputs[1], expected, rtol=0.0, atol=tolerance)


def gaps(xs: list[Any], seed: int = 0) -> list[Any]:
    """The records with a third of their values left out, none empty."""
    coin = random.Random(seed)
    left = [{name: value for name, value in x.items() if coin.random() < 0.7} for x in xs]
    return [x for x in left if x]


@in_one_case("count", [2, 130, 330])
@every_learner
def test_a_graph_scores_as_the_learner(model: Any, count: int) -> None:
    learner = taught(model.clone(), count)
    xs = [x for x, _ in stream(learner, 60, seed=3)]
    far = [{name: 1e6 * value for name, value in x.items()} for x in xs[:5]]
    fields = json.loads(models.dumps(learner))
    if not fields["features"] or ("root" in fields and fields["root"] is None):
        with pytest.raises(ConfigError, match="so it has no ONNX graph"):
            models.to_onnx(models.export(learner))
        return
    agrees(learner, [*xs, *gaps(xs), *far, {"f0": True, "new": 3.0}], 1e-9)


def mixed(count: int, seed: int) -> list[dict[str, Any]]:
    """Records with texts, gaps, and numbers in a column of texts."""
    coin = random.Random(seed)
    xs = []
    for _ in range(count):
        x: dict[str, Any] = {"amount": coin.expovariate(0.1), "hour": coin.randrange(24)}
        x["country"] = coin.choice(["NL", "BE", "DE", "FR", "LU"])
        if coin.random() < 0.2:
            del x["amount"]
        if coin.random() < 0.1:
            x["country"] = coin.randrange(9)
        if coin.random() < 0.5:
            x["agent"] = f"agent {coin.randrange(200)}"
        xs.append(x)
    return xs


def target(learner: Any, x: dict[str, Any]) -> Any:
    risk = x.get("amount", 40.0) / 20.0 + (x["country"] == "NL") - 0.1 * (x["hour"] > 12)
    if isinstance(learner, ranking.Forest):
        return min(max(risk, 0.0), 4.0)
    if isinstance(learner, auc.MulticlassForest):
        return ("low", "middle", "high")[int(min(max(risk, 0.0), 2.0))]
    return risk > 1.0


FORESTS: dict[str, Any] = {
    "logistic": lambda: auc.Forest(seed=1),
    "deep": lambda: auc.Forest(3, 2000, seed=3),
    "even": lambda: auc.Forest(4, 30, seed=2),
    "stump": lambda: auc.Forest(2, 1, seed=4),
    "pairs": lambda: auc.Forest(5, 63, loss=losses.Logistic(), seed=5),
    "classes": lambda: auc.MulticlassForest(5, 63, positive="high", seed=6),
    "unknown class": lambda: auc.MulticlassForest(5, 63, positive="none", seed=6),
    "regression": lambda: ranking.Forest(5, 63, relevance=(0, 4), seed=7),
    "free": lambda: ranking.Forest(5, 63, seed=8),
}


@pytest.mark.parametrize("count", [1, 1500])
@pytest.mark.parametrize("name", FORESTS)
def test_a_forest_of_texts_and_gaps(name: str, count: int) -> None:
    """A branch that a text or a gap takes otherwise than in the learner."""
    learner = FORESTS[name]()
    for x in mixed(count, seed=1):
        learner.learn_one(x, target(learner, x))
    agrees(learner, mixed(RECORDS // 4 if count > 1 else 100, seed=2))


@pytest.mark.parametrize("depth", [2, 4])
def test_a_private_forest_of_categories(depth: int) -> None:
    names = ["amount", *(f"country={c}" for c in ("BE", "DE", "NL")), "hour"]
    learner = auc.PrivateForest(24.0, 1e-3, warmup=100, trees=7, depth=depth, features=names, noise_key=KEY)
    coin = random.Random(0)
    xs = []
    for _ in range(RECORDS):
        country = coin.choice(["BE", "DE", "NL", "none"])
        x = {"amount": coin.gauss(0.0, 0.6), "hour": coin.uniform(-1.0, 1.0)}
        x |= {name: float(name.endswith(country)) for name in names if "=" in name}
        xs.append(x)
        if len(xs) < 3000:
            # Not linear, so that the leaves have weights.
            learner.learn_one(
                x, coin.random() < (0.8 if (country == "NL") != (abs(x["amount"]) > 0.4) else 0.2)
            )
    weights = base64.b64decode(json.loads(models.dumps(learner))["leaf_weights"]["data"])
    assert np.abs(np.frombuffer(weights)).max() > 1e-3
    agrees(learner, [*xs[: RECORDS // 2], *gaps(xs[RECORDS // 2 :])])


@pytest.mark.parametrize("model", [auc.PairOGD(), auc.PairFTRL(1.0, 1e-4, 1000, noise_key=KEY)])
def test_a_linear_learner_on_many_records(model: Any) -> None:
    learner = taught(model, 1000)
    xs = [x for x, _ in stream(learner, RECORDS, seed=4)]
    agrees(learner, [*xs[: RECORDS // 2], *gaps(xs[RECORDS // 2 :])])


def raw(count: int, seed: int) -> list[dict[str, Any]]:
    """Records with a far offset, texts, gaps, and what some lack."""
    coin = random.Random(seed)
    xs = []
    for _ in range(count):
        x: dict[str, Any] = {"amount": 1e9 + coin.gauss(0.0, 1.0), "age": coin.gauss(40.0, 12.0)}
        x["country"] = coin.choice(["NL", "BE", "DE", "", "long " * 40, "a=b"])
        for name in ("age", "country"):
            if coin.random() < 0.2:
                x[name] = coin.choice([None, math.nan])
        if coin.random() < 0.3:
            x[f"word {coin.randrange(12)}"] = True
        if coin.random() < 0.2:
            x["country"] = coin.randrange(5)
        if coin.random() < 0.1:
            del x["amount"]
        xs.append(x)
    return xs


@pytest.mark.parametrize("count", [1, 40, 1000])
@pytest.mark.parametrize("scale", ["running", None])
@pytest.mark.parametrize("front", [None, compose.Discard("word 3"), compose.Select("country", "age")])
def test_a_linear_learner_of_texts_and_gaps(count: int, scale: Any, front: Any) -> None:
    learner: Any = auc.PairOGD(scale=scale, buffer=buffers.FIFO(1))
    if front is not None:
        learner = front.clone() | learner
    for x in raw(count, seed=1):
        if front is not None and x.keys().isdisjoint({"country", "age"}):
            continue
        learner.learn_one(x, x.get("amount", 1e9) - 1e9 + (x["country"] == "NL") > 0.5)
    agrees(learner, raw(500, seed=2))


def test_texts_behind_a_scaler() -> None:
    learner = (
        compose.TransformerUnion(
            compose.Select("amount") | preprocessing.StandardScaler(), compose.Select("country")
        )
        | auc.PairOGD()
    )
    xs = [{"amount": 1e4, **x} for x in raw(400, seed=1)]
    xs = [{name: None if value != value else value for name, value in x.items()} for x in xs]
    for x in xs:
        learner.learn_one(x, x["country"] == "NL" or x["amount"] > 1e9 + 1)
    agrees(learner, xs)


def test_a_text_without_a_place_is_named() -> None:
    learner = auc.PairOGD()
    learner.learn_one({"a": 1.0, "b=c": "d"}, True)
    model = models.export(learner)
    with pytest.raises(RecordError, match="its name has an =, which ends the name of a field"):
        models.onnx_inputs(model, [{"a": 1.0, "b=c": "d"}])
    shared = auc.PairOGD(max_features=2)
    with pytest.warns(UserWarning, match="more than max_features=2"):
        shared.learn_one({"a": 1.0, "b": 1.0, "c": 1.0}, True)
    with pytest.raises(ConfigError, match="has more names than max_features"):
        models.to_onnx(models.export(shared))


def test_texts_that_the_caller_hashes() -> None:
    """The inputs follow from what the page says of hashes, without this package."""
    (block,) = (block for block in pages.blocks("docs/models.md") if block.title == "reader.py")
    page: dict[str, Any] = {}
    exec(block.text, page)
    learner = auc.Forest(seed=1)
    for x in mixed(300, seed=1):
        learner.learn_one(x, target(learner, x))
    model = models.export(learner)
    graph = models.to_onnx(model)
    props = {entry.key: json.loads(entry.value) for entry in graph.metadata_props}
    xs = mixed(50, seed=2)
    texts = [[page["hash_of"](x.get(name)) for name in props["streampair.text_features"]] for x in xs]
    numbers = [
        [math.nan if isinstance(x.get(name), str) else x.get(name, math.nan) for name in model.features]
        for x in xs
    ]
    found = models.onnx_inputs(model, xs)
    assert found["texts"].tolist() == texts
    np.testing.assert_array_equal(found["features"], np.array(numbers, dtype=np.float64))


def test_a_split_by_texts_of_a_feature_without_texts() -> None:
    """No learner writes one; all records go one way there."""
    learner = auc.Forest(5, 63, seed=1)
    for x in mixed(1500, seed=1):
        learner.learn_one(x, target(learner, x))
    fields = json.loads(models.dumps(learner))
    columns = np.frombuffer(base64.b64decode(fields["splits"]["columns"]["data"]), "<i4")
    assert len(set(columns[columns < 0].tolist())) == 2
    fields["text_features"], fields["buckets"] = [], []
    fields["experts"]["texts"] = {"dtype": "<f8", "shape": [1, 0, 4], "data": ""}
    model = models.loads(json.dumps(fields).encode())
    xs = [{n: v for n, v in x.items() if not isinstance(v, str)} for x in mixed(500, seed=2)]
    (scores, _) = session(model).run(None, models.onnx_inputs(model, xs))
    np.testing.assert_allclose(scores, model.score_many(xs), rtol=1e-9, atol=1e-9)


def test_a_text_where_none_was_learned_is_an_error() -> None:
    learner = auc.Forest(seed=1)
    learner.learn_one({"a": 1.0, "country": "NL"}, True)
    model = models.export(learner)
    with pytest.raises(RecordError, match="in record 1, feature 'a' is a text, and the model"):
        models.onnx_inputs(model, [{"a": 1.0}, {"a": "one"}])
    with pytest.raises(RecordError, match="feature 'a' is infinite"):
        models.onnx_inputs(model, [{"a": math.inf}])


def test_what_goes_with_a_graph() -> None:
    learner = taught(auc.PairFTRL(1.0, 1e-4, 200, warmup=50, noise_key=KEY), 120)
    graph = models.to_onnx(models.export(learner, time=17, metadata={"application": "fraud"}))
    props = {entry.key.removeprefix("streampair."): json.loads(entry.value) for entry in graph.metadata_props}
    model = models.export(learner)
    assert props == {
        "format": "streampair.model",
        "version": 1,
        "kind": "linear",
        "class": "auc.PairFTRL",
        "steps": [],
        "features": list(model.features),
        "strings": [],
        "text_features": [],
        "classes": list(model.classes),
        "slots": 120,
        "time": 17,
        "privacy": model.privacy,
        "metadata": {"application": "fraud"},
    }


def test_a_model_without_anything_to_compute_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"this auc\.PairOGD knows no features yet"):
        models.to_onnx(models.export(auc.PairOGD()))
    with pytest.raises(ConfigError, match=r"this metric\.PairFTRL has learned no metric yet"):
        models.to_onnx(models.export(metric.PairFTRL(1.0, 1e-4, 200, features=["a"], noise_key=KEY)))
    classes = auc.MulticlassForest(2, 3, positive="a", seed=1)
    classes.learn_one({"a": 1.0}, "a")
    fields = json.loads(models.dumps(classes))
    fields["classes"]["labels"] = []
    with pytest.raises(ConfigError, match="has learned no class yet"):
        models.to_onnx(models.loads(json.dumps(fields).encode()))
    with pytest.raises(ConfigError, match=r"a PairOGD is no model. Fix: give models.export\(learner\)"):
        models.to_onnx(auc.PairOGD())  # type: ignore[arg-type]


def test_the_ending_of_a_file_decides(tmp_path: Path) -> None:
    learner, path = taught(auc.PairOGD(), 20), tmp_path / "model.onnx"
    models.save(learner, path)
    data = path.read_bytes()
    models.save(models.export(learner), str(path))
    assert path.read_bytes() == data, "the same model gives the same bytes"
    model = models.export(learner)
    (score, _) = onnxruntime.InferenceSession(path).run(None, models.onnx_inputs(model, [{"f0": 1.0}]))
    assert score[0] == pytest.approx(learner.score_one({"f0": 1.0}))
    with pytest.raises(SnapshotError, match=r"model\.onnx is an ONNX graph"):
        models.load(path)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[onnx\]'"):
        models.to_onnx(models.export(taught(auc.PairOGD(), 20)))
