"""Models as files: what is loaded scores as the learner did, and what is no model is refused."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness.learners import KEY, NAMES, every_learner, label, stream, taught
from river import compose, linear_model, preprocessing

from streampair import auc, metric, models, privacy, ranking
from streampair.errors import ConfigError, RecordError, SnapshotError


def outcome(function: Any, x: Any) -> Any:
    """What a function returns, or the text of its error."""
    try:
        return function(x)
    except RecordError as error:
        return str(error)


def records(model: Any) -> list[Any]:
    """Records as they come: whole, with gaps, with names that are not known, and such as cannot be used."""
    rng = random.Random(5)
    whole = [x for x, _ in stream(model, 12, seed=3)]
    gaps = [{name: value for name, value in x.items() if rng.random() < 0.6} for x in whole]
    new = [{**x, "new": 2.0} for x in whole[:3]]
    far = [{name: 1e6 * value for name, value in x.items()} for x in whole[:3]]
    odd: list[Any] = [
        {},
        {"f0": math.nan},
        {"f1": None},
        {"f0": "0.5", "f1": 1},
        {"f2": "text"},
        {"f0": 1e60},
    ]
    return [*whole, *gaps, *new, *far, *odd, {**whole[0], "new": math.inf}, {"f0": True}, {"other": 1}, 3]


def without_forests(model: Any) -> None:
    """Skip a forest, which cannot be exported yet."""
    if "Forest" in type(model).__name__:
        pytest.skip("forests cannot be exported")


def compare(learner: Any, model: models.Model, xs: list[Any]) -> None:
    """All that a model does with one record, against the learner: bits and errors."""
    for x in xs:
        assert outcome(model.score_one, x) == outcome(learner.score_one, x)
        for name in ("predict_proba_one", "predict_one"):
            if hasattr(learner, name):
                assert outcome(getattr(model, name), x) == outcome(getattr(learner, name), x)


@pytest.mark.parametrize("count", [0, 2, 130, 330])
@every_learner
def test_a_loaded_model_scores_as_the_learner(model: Any, count: int) -> None:
    without_forests(model)
    learner = taught(model.clone(), count)
    loaded = models.loads(models.dumps(learner))
    assert loaded.slots == learner.records
    assert loaded.features == tuple(learner.feature_names)
    assert (loaded.privacy is None) == (learner.privacy is None)
    xs = records(learner)
    compare(learner, loaded, xs)
    usable = [x for x in xs if not isinstance(outcome(learner.score_one, x), str)]
    assert loaded.score_many(usable).tolist() == [learner.score_one(x) for x in usable]
    whole = [x for x in usable if x.keys() == set(NAMES)]
    assert loaded.score_many(whole).tolist() == [learner.score_one(x) for x in whole]
    for frame in (pd.DataFrame(whole), pd.DataFrame(whole)[["f3", "f1"]], pd.DataFrame(whole).assign(z=1.0)):
        pd.testing.assert_series_equal(loaded.score_many(frame), learner.score_many(frame), check_exact=True)


@every_learner
def test_a_model_stays_when_its_learner_goes_on(model: Any) -> None:
    without_forests(model)
    learner = taught(model.clone(), 130)
    exported = models.export(learner)
    xs = [x for x, _ in stream(learner, 20, seed=3)]
    before = [learner.score_one(x) for x in xs]
    taught(learner, 60)
    assert [exported.score_one(x) for x in xs] == before
    assert models.dumps(exported) == models.dumps(models.loads(models.dumps(exported)))


def test_an_array_is_scored_by_numbers() -> None:
    learner = auc.PairOGD()
    X = np.random.default_rng(0).normal(size=(50, 4))
    learner.learn_many(X, X[:, 0] > 0.0)
    loaded = models.loads(models.dumps(learner))
    assert loaded.features == (0, 1, 2, 3)
    assert loaded.score_many(X).tolist() == learner.score_many(X).tolist()
    named = models.export(taught(auc.PairOGD(), 10))
    with pytest.raises(RecordError, match="an array has no names"):
        named.score_many(X)


def test_labels_are_those_of_the_learner() -> None:
    learner = auc.PairOGD(positive="fraud")
    model = models.loads(models.dumps(learner))
    assert (model.classes, model.predict_one({"a": 1.0})) == (("fraud",), None)
    for x, y in stream(auc.PairOGD(), 40):
        learner.learn_one(x, "fraud" if y else "fine")
    model = models.loads(models.dumps(learner))
    assert model.classes == ("fine", "fraud")
    compare(learner, model, records(learner))
    # A number, a truth value and a text of one are different labels to whoever compares them.
    for positive, negative in ((1, 0), (1.0, 0.0), ("1", "0"), (np.int64(2), np.int64(3))):
        exported = models.export(auc.PairOGD(positive=positive, negative=negative))
        assert exported.classes == (negative, positive)
        assert type(exported.classes[1]) in (type(positive), int)


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    learner = taught(auc.PairOGD(), 20)
    models.save(learner, path)
    models.save(
        models.export(learner, slots=25, time=1_700_000_000_000, metadata={"app": "fraud"}), str(path)
    )
    assert [file.name for file in tmp_path.iterdir()] == ["model.json"]
    model = models.load(path)
    assert (model.slots, model.time, model.metadata) == (25, 1_700_000_000_000, {"app": "fraud"})
    assert repr(model) == "Model(auc.PairOGD, 5 features, 25 slots)"
    with pytest.raises(FileNotFoundError):
        models.load(tmp_path / "none.json")
    with pytest.raises(OSError, match="missing"):
        models.save(learner, tmp_path / "missing" / "model.json")


def test_metadata_goes_with_the_model() -> None:
    model = models.export(auc.PairOGD())
    facts = {"application": "fraud", "positions": [[0, 17], [1, 5]], "share": 0.1, "on": True, "by": None}
    model.metadata.update(facts)
    assert models.loads(models.dumps(model)).metadata == facts
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    for bad in (math.nan, {1: 2}, {"a": object()}, b"bytes", np.float64(1.0), deep):
        model.metadata["bad"] = bad
        with pytest.raises(ConfigError, match="metadata"):
            models.dumps(model)
    with pytest.raises(ConfigError, match="metadata is 3"):
        models.export(auc.PairOGD(), metadata=3)  # type: ignore[arg-type]


class Doubled(auc.PairOGD):
    def score_one(self, x: Any) -> float:
        return 2.0 * super().score_one(x)


@pytest.mark.parametrize(
    ("learner", "reason"),
    [
        (linear_model.LogisticRegression(), "a LogisticRegression cannot be exported"),
        (preprocessing.StandardScaler() | auc.PairOGD(), "a pipeline cannot be exported"),
        (compose.Pipeline(auc.PairOGD()), "a pipeline cannot be exported"),
        (Doubled(), "since its score_one is not streampair's"),
        (None, "a NoneType cannot be exported"),
        (auc.PairOGD(positive=b"yes", negative=b"no"), "the label b'yes' is a bytes"),
    ],
)
def test_what_cannot_be_exported_is_named(learner: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        models.export(learner)


def test_a_feature_name_that_json_cannot_hold_is_named() -> None:
    for name in (("a", "b"), True, None, "\ud800", math.inf):
        learner = auc.PairOGD()
        learner.learn_one({name: 1.0}, True)
        with pytest.raises(ConfigError, match=r"a model file cannot hold|cannot be written as JSON"):
            models.export(learner)
    with pytest.raises(ConfigError, match="slots is -1"):
        models.export(auc.PairOGD(), slots=-1)
    with pytest.raises(ConfigError, match=r"time is 0\.5"):
        models.export(auc.PairOGD(), time=0.5)  # type: ignore[arg-type]


def test_a_model_that_predicts_nothing_says_so() -> None:
    ranked = models.export(taught(ranking.PairOGD(), 20))
    with pytest.raises(ConfigError, match="gives no probabilities"):
        ranked.predict_proba_one({"f0": 1.0})
    distances = models.export(taught(metric.PairOGD(), 20))
    with pytest.raises(ConfigError, match="predicts nothing"):
        distances.predict_one({"f0": 1.0})


# ---- what a private model holds --------------------------------------------------------------------------


def test_a_private_model_says_what_was_promised() -> None:
    learner = taught(auc.PairFTRL(1.0, 1e-4, 200, warmup=50, noise_key=KEY), 120)
    report, model = learner.privacy, models.loads(models.dumps(learner))
    names = ("epsilon_spent", "epsilon_budget", "delta", "mu_spent", "mu_budget", "unit", "adjacency", "kind")
    assert model.privacy is not None
    assert model.privacy == {name: getattr(report, name) for name in (*names, "guarantee", "horizon")}
    learner.mark(void=["a column of dates, of record 17"])
    void = models.export(learner).privacy
    assert void is not None
    assert (void["kind"], void["guarantee"]) == ("void", "void")
    assert b"dates" not in models.dumps(learner)


@every_learner
def test_a_private_model_holds_nothing_raw(model: Any) -> None:
    """No value of a record, and no count that depends on what was in it."""
    if model.privacy is None:
        pytest.skip("not private")
    without_forests(model)
    learner = model.clone()
    rows = stream(learner, 150)
    for i, (x, y) in enumerate(rows):
        if i % 10 == 7:
            learner.learn_null()
        else:
            learner.learn_one(x if i % 10 else {**x, "f1": "no number"}, y if i % 10 != 3 else None)
    data = models.dumps(learner)
    text = data.decode()
    for x, _ in rows:
        for value in x.values():
            assert repr(value) not in text
    fields = json.loads(text)
    assert fields["slots"] == 150
    common = {"kind", "format", "version", "class", "features", "slots", "time", "privacy", "metadata"}
    parts = {
        "linear": {"labels", "probability", "scaling", "weights"},
        "metric": {"scaling", "root"},
        "random_forest": {"labels", "probability", "scaling", "weights", "sizes", "fields", "cuts", "leaves"},
    }
    assert set(fields) == common | parts[fields["kind"]]
    assert KEY.hex() not in text


def test_neighbours_in_a_null_slot_have_one_form() -> None:
    """Whether a record could be used shows in no count of a model."""
    sizes = []
    for x in ({"f0": 0.5}, {"f0": math.nan}):
        learner = auc.PairFTRL(1.0, 1e-4, 200, warmup=0, features=["f0"], noise_key=KEY)
        learner.learn_one(x, label(learner, random.Random(0)))
        fields = json.loads(models.dumps(learner))
        sizes.append({name: fields[name] for name in ("slots", "features", "privacy", "scaling")})
    assert sizes[0] == sizes[1]


# ---- what is no model ------------------------------------------------------------------------------------

SAMPLES: dict[str, Any] = {
    "auc.PairOGD": taught(auc.PairOGD(), 40),
    "auc.PairFTRL": taught(auc.PairFTRL(warmup=20, mechanism=privacy.PairGradients(), noise_key=KEY), 40),
    "metric.PairOGD": taught(metric.PairOGD(), 40),
}


def test_what_is_no_model_is_refused() -> None:
    for data in (
        b"",
        b"PK\x03\x04",
        b"[1]",
        b"{}",
        b"null",
        b'{"format": "other", "version": 1}',
        b"\xff\xfe",
    ):
        with pytest.raises(SnapshotError, match="this is not a model"):
            models.loads(data)
    with pytest.raises(SnapshotError, match="this is not a model"):
        models.loads(b"[" * 100_000)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_cut_model_is_refused(name: str) -> None:
    data = models.dumps(SAMPLES[name])
    for length in range(0, len(data), 7):
        with pytest.raises(SnapshotError, match="Fix: "):
            models.loads(data[:length])


def test_a_newer_model_is_refused() -> None:
    fields = json.loads(models.dumps(SAMPLES["auc.PairOGD"]))
    for version in (0, 2):
        data = json.dumps({**fields, "version": version, "kind": "new"}).encode()
        with pytest.raises(SnapshotError, match=f"the model has version {version}, this release reads"):
            models.loads(data)


def set_at(fields: Any, path: str, value: Any) -> Any:
    """Change one entry of a tree; a path such as ``scaling.bounds.0``."""
    *parents, last = path.split(".")
    for name in parents:
        fields = fields[int(name) if isinstance(fields, list) else name]
    fields[int(last) if isinstance(fields, list) else last] = value


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("auc.PairOGD", "kind", "pickle"),
        ("auc.PairOGD", "class", None),
        ("auc.PairOGD", "slots", -1),
        ("auc.PairOGD", "slots", 1.5),
        ("auc.PairOGD", "time", "now"),
        ("auc.PairOGD", "unknown", 1),
        ("auc.PairOGD", "features", ["f0", "f1", "f2", "f3", "f3"]),
        ("auc.PairOGD", "features", ["f0"]),
        ("auc.PairOGD", "features.0", None),
        ("auc.PairOGD", "weights", [1.0] * 6),
        ("auc.PairOGD", "weights.0", math.nan),
        ("auc.PairOGD", "weights.0", math.inf),
        ("auc.PairOGD", "weights.0", None),
        ("auc.PairOGD", "weights.0", "1"),
        ("auc.PairOGD", "labels", None),
        ("auc.PairOGD", "labels.negative", True),
        ("auc.PairOGD", "probability", None),
        ("auc.PairOGD", "probability.slope", 0.0),
        ("auc.PairOGD", "probability.spread", -1.0),
        ("auc.PairFTRL", "privacy.kind", "good"),
        ("auc.PairFTRL", "scaling.bounds.0", [1.0, 1.0]),
        ("auc.PairFTRL", "scaling.bounds.0", [1.0]),
        ("auc.PairFTRL", "scaling.bounds", []),
        ("auc.PairFTRL", "scaling.mean", None),
        ("auc.PairFTRL", "scaling.factor", [1.0]),
        ("auc.PairFTRL", "scaling.cap", 0.0),
        ("auc.PairFTRL", "features", ["f4", "f3", "f2", "f1", "f0"]),
        ("metric.PairOGD", "root", [[1.0]]),
        ("metric.PairOGD", "root.2", [1.0]),
        ("metric.PairOGD", "root.2.2", math.nan),
    ],
)
def test_a_damaged_model_is_refused(name: str, path: str, value: Any) -> None:
    fields = json.loads(models.dumps(SAMPLES[name]))
    assert models.loads(json.dumps(fields).encode()).slots == 40
    set_at(fields, path, value)
    with pytest.raises(SnapshotError, match="is damaged"):
        models.loads(json.dumps(fields).encode())
