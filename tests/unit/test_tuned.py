"""A race of learners: who leaves when, that the one that is left has learned everything, and its state."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from river import datasets
from sklearn.metrics import roc_auc_score
from streampair_connectors.config import parse_config
from streampair_connectors.worker.factory import build_learner

from streampair import auc, buffers, losses, metric, models, privacy
from streampair.auc.tuned import rank_auc, rungs
from streampair.engine.snapshot import pack, unpack
from streampair.errors import ConfigError, RecordError, SnapshotError

RECORDS = list(datasets.Phishing())
NAMES = sorted(RECORDS[0][0])
ROWS = np.array([[x[name] for name in NAMES] for x, _ in RECORDS])
LABELS = np.array([y for _, y in RECORDS])


def linear() -> list[Any]:
    return [
        *(auc.PairOGD(radius=radius, seed=1) for radius in (0.01, 1.0, 10.0)),
        *(auc.PairOGD(losses.Logistic(), buffers.Reservoir(8), seed=1), auc.SPAUC(), auc.OAM(seed=2)),
    ]


def tuned(race: int = 400) -> auc.Tuned:
    return auc.Tuned(linear(), race=race)


def taught(model: Any, begin: int = 0, end: int = len(RECORDS)) -> Any:
    for x, y in RECORDS[begin:end]:
        model.learn_one(x, y)
    return model


def state(model: Any) -> bytes:
    return pack(model.to_state())


# ---- who leaves ------------------------------------------------------------------------------------------


def test_rungs() -> None:
    assert rungs(8, 4000) == (1000, 2000, 4000)
    assert rungs(2, 100) == (100,)
    assert rungs(6, 400) == (100, 200, 400)
    for count in range(2, 65):
        ends = rungs(count, count)
        assert list(ends) == sorted(set(ends))
        assert ends[0] >= 1
        assert ends[-1] == count


def test_the_auc_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        labels, scores = rng.choice([-1.0, 1.0], 30), rng.integers(0, 8, 30).astype(float)
        assert rank_auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert rank_auc(np.ones(3), np.arange(3.0)) == 0.5


def test_the_half_with_the_lower_auc_leaves_and_the_last_one_has_learned_all() -> None:
    """Beside learners that run alone: the AUC of each stretch, of scores before learning."""
    alone, scores = linear(), []
    for learner in alone:
        scores.append([])
        for x, y in RECORDS:
            scores[-1].append(learner.score_one(x))
            learner.learn_one(x, y)
    left, begin, model = list(range(6)), 0, tuned()
    for end in (100, 200, 400):
        taught(model, begin, end)
        found = {i: roc_auc_score(LABELS[begin:end], scores[i][begin:end]) for i in left}
        left = sorted(left, key=lambda i: -found[i])[: (len(left) + 1) // 2]
        assert list(model.remaining) == left
        assert model.records == end
        begin = end
    taught(model, 400)
    (last,) = left
    assert np.array_equal(model.weights_vector, alone[last].weights_vector)
    x = RECORDS[0][0]
    assert model.score_one(x) == alone[last].score_one(x)
    assert model.predict_proba_one(x) == alone[last].predict_proba_one(x)
    assert model.best._get_params() == linear()[last]._get_params()


def test_in_the_first_rung_the_first_learner_scores() -> None:
    model, first = taught(tuned(), 0, 99), taught(linear()[0], 0, 99)
    assert model.score_one(RECORDS[99][0]) == first.score_one(RECORDS[99][0])


# ---- how records come ------------------------------------------------------------------------------------


def test_batches_and_restored_states_give_the_same_bits() -> None:
    rng = np.random.default_rng(3)
    whole = state(taught(tuned()))
    some, many = taught(tuned(), 0, 150), tuned()
    many.learn_many(_frame(ROWS[:150]), LABELS[:150])
    for name in ("scores", "labels", "left"):
        assert np.array_equal(some._export()[name], many._export()[name])
    for _ in range(4):
        model, begin, scores = tuned(), 0, []
        while begin < len(RECORDS):
            end = begin + int(rng.integers(1, 300))
            frame = _frame(ROWS[begin:end])
            if rng.random() < 0.5:
                model.learn_many(frame, pd.Series(LABELS[begin:end]))
            else:
                scores.append((begin, model.score_learn_many(frame, pd.Series(LABELS[begin:end])).to_numpy()))
            begin = end
            if rng.random() < 0.5:
                again = tuned()
                again.load_state(unpack(state(model)))
                model = rng.choice([again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))])
        assert np.array_equal(model.weights_vector, taught(tuned()).weights_vector)
        assert model.remaining == taught(tuned()).remaining
        one = tuned()
        expected = []
        for x, y in RECORDS:
            expected.append(one.score_one(x))
            one.learn_one(x, y)
        for begin, batch in scores:
            assert np.array_equal(batch, expected[begin : begin + len(batch)])
    assert whole == state(taught(tuned()))


@pytest.mark.parametrize("learned", [0, 50, 150, 500])
def test_what_cannot_be_used_changes_nothing(learned: int) -> None:
    model = taught(tuned(), 0, learned)
    before, x = state(model), RECORDS[0][0]
    for bad, y in (({**x, "ip_in_url": None}, True), ({**x, "new": "text"}, True), (x, "maybe"), ({}, True)):
        with pytest.raises(RecordError):
            model.learn_one(bad, y)
        assert state(model) == before
    broken = ROWS[:300].copy()
    broken[299, 2] = np.nan
    with pytest.raises(RecordError):
        model.score_learn_many(_frame(broken), LABELS[:300])
    assert state(model) == before


def _frame(rows: np.ndarray) -> Any:
    return pd.DataFrame(rows, columns=NAMES)


def test_forests_take_texts_and_gaps() -> None:
    forests = [auc.Forest(3, 31, seed=1), auc.Forest(3, 31, loss=losses.Logistic(), seed=2)]
    model = auc.Tuned(forests, race=60)
    for i in range(200):
        x: dict[str, Any] = {"colour": "red" if i % 3 else "blue", **({"size": i % 7} if i % 5 else {})}
        model.learn_one(x, i % 3 == 0)
    assert len(model.remaining) == 1
    assert model.score_one({"colour": "blue"}) > model.score_one({"colour": "red"})
    with pytest.raises(ConfigError, match="do not accept the same records"):
        auc.Tuned([auc.Forest(), auc.PairOGD()])


def test_labels_that_nobody_declared_are_shown(tmp_path: Path) -> None:
    learners = [auc.PairOGD(positive="yes", radius=radius) for radius in (1.0, 10.0)]
    for many in (False, True):
        model = auc.Tuned(learners, race=20, positive="yes")
        words = np.where(LABELS[:60], "yes", "no")
        if many:
            model.learn_many(_frame(ROWS[:60]), words)
        else:
            for (x, _), y in zip(RECORDS, words.tolist(), strict=False):
                model.learn_one(x, y)
        assert set(model.predict_proba_one(RECORDS[0][0])) == {"yes", "no"}
        models.save(model, tmp_path / "model.json")
        assert set(models.load(tmp_path / "model.json").predict_proba_one(RECORDS[0][0])) == {"yes", "no"}


# ---- states and parameters -------------------------------------------------------------------------------


def test_a_damaged_state_is_refused() -> None:
    for learned in (150, 500):
        model = taught(tuned(), 0, learned)
        good = model.to_state()
        for damage in (
            {"left": [4]},  # another kind of learner
            {"left": [0, 0, 1]},
            {"left": [7, 8, 9]},
            {"taken": learned + 5},
            {"scores": np.zeros((3, 2))},
            {"scores": np.full((3, 50), np.nan)},
            {"labels": np.full(50, 0.5)},
            {"learners": []},
            {"learners": [taught(linear()[i], 0, 7)._export() for i in model.remaining]},
        ):
            other = tuned()
            before = state(other)
            with pytest.raises(SnapshotError):
                other.load_state({**good, **damage})
            assert state(other) == before


BAD: list[tuple[dict[str, Any], str]] = [
    ({"learners": []}, "give a list of 2 to 64"),
    ({"learners": [auc.PairOGD()]}, "give a list of 2 to 64"),
    ({"learners": 3}, "give a list of 2 to 64"),
    ({"learners": [auc.PairOGD(), metric.PairOGD()]}, "no learner of two classes"),
    ({"learners": [auc.PairOGD(), auc.PairFTRL(1.0, 1e-4)]}, "is private"),
    ({"learners": [auc.PairOGD(), auc.PairOGD(positive="yes")]}, "give both the same"),
    ({"learners": [auc.PairOGD(), auc.PairOGD(max_features=5)]}, "do not accept the same"),
    ({"learners": [auc.PairOGD(), auc.PairOGD(buffer=buffers.FullHistory("float32"))]}, "do not accept"),
    ({"race": 2}, "race is"),
    ({"race": 2_000_000}, "race is"),
    ({"race": 9.5}, "race is"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=lambda value: str(value)[:30])
def test_parameters_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        auc.Tuned(**{"learners": linear(), **options})


def test_the_learners_that_it_is_given_stay_new() -> None:
    learners = linear()
    model = taught(auc.Tuned(learners, race=400), 0, 300)
    assert all(learner.records == 0 for learner in learners)
    assert model.clone().records == 0
    assert state(model.clone(include_attributes=True)) == state(model)


def test_a_configuration_names_it() -> None:
    learners = [{"class": "streampair.auc.PairOGD", "radius": radius} for radius in (1.0, 10.0)]
    parts = {"class": "streampair.auc.Tuned", "options": {"race": 100, "learners": learners}}
    table = {"topic": "events", "label": "y"}
    model = build_learner(parse_config({"app": "a", "input": table, "learner": parts}))
    assert isinstance(model, auc.Tuned)
    assert [learner.radius for learner in model.learners] == [1.0, 10.0]


def test_a_model_file_has_the_best_learner(tmp_path: Path) -> None:
    model = taught(tuned())
    models.save(model, tmp_path / "model.json")
    x = RECORDS[0][0]
    assert models.load(tmp_path / "model.json").score_one(x) == model.score_one(x)


def test_a_private_learner_has_another_way() -> None:
    with pytest.raises(ConfigError, match="SecondMoments"):
        auc.Tuned([auc.PairFTRL(mechanism=privacy.SecondMoments()), auc.PairOGD()])
