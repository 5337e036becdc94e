"""Forests: what only they take and tell. The contract of all learners is in tests/river."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from harness.learners import frozen
from harness.support import at_row
from river import datasets
from river.datasets import synth
from sklearn.metrics import log_loss, roc_auc_score
from streampair_connectors.config import parse_config
from streampair_connectors.worker.factory import build_learner

from streampair import auc, losses, ranking
from streampair.base.forest import sections_of
from streampair.errors import ConfigError, RecordError, SnapshotError
from streampair.kernels import boosted_trees, forest
from streampair.records.features import as_code, which


def small(**options: Any) -> auc.Forest:
    return auc.Forest(**{"trees": 4, "nodes": 63, "seed": 3, **options})


def mixed(n: int, seed: int = 0) -> list[tuple[dict[str, Any], bool]]:
    """Records with texts, gaps, and names that come late."""
    rng, rows = random.Random(seed), []
    for i in range(n):
        y = rng.random() < 0.4
        x: dict[str, Any] = {"amount": rng.gauss(1.0 * y, 1.0), "country": rng.choice("NB" if y else "NX")}
        if rng.random() < 0.3:
            del x[rng.choice(["amount", "country"])]
        if i > 60:
            x["late"] = rng.choice([1, 2, "three"])
        rows.append((x, y))
    return rows


def in_frames(
    backend: Any, rows: list[Any], learners: tuple[Any, Any, Any], first: Any
) -> Iterator[tuple[Any, list[Any]]]:
    """Compare equal learners of the same rows, one by one and in frames; yields frames with their rows."""
    one, many, both = learners
    names = ["amount", "country", "late"]
    for each in learners:  # a frame has all its columns from the first row on
        each.learn_one({"amount": 1.0, "country": "N", "late": "three"}, first)
    start = 0
    for cut in (1, 30, len(rows) - 31):
        part = rows[start : start + cut]
        start += cut
        X = backend.DataFrame({name: [x.get(name) for x, _ in part] for name in names})
        y = backend.Series([y for _, y in part])
        many.learn_many(X, y)
        scores = []
        for x, label in part:
            scores.append(one.score_one(x))
            one.learn_one(x, label)
        assert list(both.score_learn_many(X, y)) == scores
        assert frozen(one) == frozen(many) == frozen(both)
        assert list(many.score_many(X)) == [one.score_one(x) for x, _ in part]
        yield X, part


@pytest.mark.parametrize("backend", [pd, pl])
@pytest.mark.parametrize("seed", range(3))
def test_frames_with_texts_and_gaps_are_records_one_by_one(backend: Any, seed: int) -> None:
    rows = [row for row in mixed(200, seed) if isinstance(row[0].get("late", ""), str)]
    for _ in in_frames(backend, rows, (small(), small(), small()), True):
        pass


@pytest.mark.parametrize("cut", [1, 7, 200])
@pytest.mark.parametrize(
    ("made", "labels"),
    [
        (auc.Forest, [False, True]),
        (auc.MulticlassForest, ["low", "middle", "high"]),
        (ranking.Forest, [0.0, 1.0, 2.5]),
    ],
    ids=["auc", "classes", "ranking"],
)
def test_a_column_of_a_frame_is_known_from_its_first_value_on(made: Any, labels: list[Any], cut: int) -> None:
    """As record by record: names and texts that come late, first records with gaps, an empty column."""
    rng, rows = random.Random(5), []
    for i in range(200):
        x: dict[str, Any] = {"z": rng.gauss(0.0, 1.0), "b": rng.gauss(0.0, 1.0), "a": rng.choice("NX")}
        x = {name: value for name, value in x.items() if rng.random() < 0.7 and (name != "a" or i > 20)}
        if i == 0 or not x:
            x = {"z": 1.0}
        if i > 60:
            x["late"] = rng.gauss(0.0, 1.0)
        rows.append((x, labels[min(int(abs(x.get("z", 0.0)) * 1.5), len(labels) - 1)]))
    one, many = (made(trees=4, nodes=63, seed=3) for _ in range(2))
    for start in range(0, len(rows), cut):
        part = rows[start : start + cut]
        frame = {name: [x.get(name) for x, _ in part] for name in ("a", "b", "empty", "late", "z")}
        many.learn_many(pd.DataFrame(frame), pd.Series([y for _, y in part]))
        for x, y in part:
            one.learn_one(x, y)
        assert many.feature_names == one.feature_names
    assert one.feature_names == ("z", "b", "a", "late")
    assert frozen(one) == frozen(many)


def test_a_row_without_any_feature_is_refused_as_a_record_is() -> None:
    model = small()
    model.learn_one({"a": 1.0, "b": 2.0}, True)
    before = frozen(model)
    frame = pd.DataFrame({"a": [1.0, None], "b": [2.0, None]})
    for call in (model.score_many, lambda X: model.learn_many(X, pd.Series([True, False]))):
        with pytest.raises(RecordError, match=r"row 1 has no features\. Fix: give at least one, or drop"):
            call(frame)
    with pytest.raises(RecordError, match="no features"):
        model.learn_one({}, True)
    assert frozen(model) == before


def test_a_frame_with_too_many_columns_changes_nothing() -> None:
    model = small(max_features=2)
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [None, 1.0], "c": [None, 3.0]})
    before = frozen(model)
    with pytest.raises(RecordError, match="more than max_features=2"):
        model.learn_many(frame, pd.Series([True, False]))
    assert frozen(model) == before


def test_texts_from_the_first_event_on() -> None:
    model = small()
    for x, y in mixed(300):
        assert math.isfinite(model.score_one(x))
        model.learn_one(x, y)
    assert model.feature_names == ("amount", "country", "late")
    assert model.score_one({"country": "B"}) > model.score_one({"country": "X"})
    assert math.isfinite(model.score_one({"country": "never seen", "new": "x"}))
    other = small()
    other.load_state(model.to_state())
    assert frozen(other) == frozen(model)
    for x, y in mixed(50, seed=1):
        for each in (model, other):
            each.learn_one(x, y)
        assert other.score_one(x) == model.score_one(x)


@pytest.mark.parametrize("bad", [b"bytes", math.inf, 1e51, [1.0]], ids=repr)
@pytest.mark.parametrize("others", [{}, {"amount": 1.0, "new": "x"}])
def test_what_stays_no_feature(bad: Any, others: dict[str, Any]) -> None:
    model = small()
    for x, y in mixed(100):
        model.learn_one(x, y)
    before = frozen(model)
    for call in (model.score_one, model.explain_one, lambda x: model.learn_one(x, True)):
        with pytest.raises(RecordError, match=r"feature 'country'.*Fix: "):
            call({"country": bad, **others})
    assert frozen(model) == before
    X = pd.DataFrame({"amount": [1.0, 2.0], "country": ["N", b"x"]}, dtype=object)
    with pytest.raises(RecordError, match="country"):
        model.learn_many(X, pd.Series([True, False]))
    assert frozen(model) == before


@pytest.mark.parametrize("bad", [None, math.nan, [1.0], b"x", math.inf])
def test_a_record_that_is_refused_leaves_no_value_to_the_next(bad: Any) -> None:
    """Its first values have been packed when the second is refused; the next record lacks the first."""
    model, rng = auc.Forest(4, 63, seed=3), random.Random(1)
    for _ in range(200):
        a, b = rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)
        model.learn_one({"a": a, "b": b}, a + b > 0.0)
    score, before = model.score_one({"b": 1.0}), frozen(model)
    assert score != model.score_one({"a": 5.0, "b": 1.0})
    assert model.score_one({"b": 1.0}) == score
    with contextlib.suppress(RecordError):
        model.score_one({"a": 5.0, "b": bad})
    assert model.score_one({"b": 1.0}) == score
    assert frozen(model) == before


@pytest.mark.parametrize(
    "model",
    [
        auc.Forest(4, 63, seed=3),
        auc.Forest(4, 63, seed=3, loss=losses.Hinge()),
        auc.MulticlassForest(4, 63, seed=3),
        ranking.Forest(4, 63, seed=3),
    ],
    ids=repr,
)
def test_a_missing_value_is_a_feature_that_is_left_out(model: Any) -> None:
    """Whatever says so; of a number, of a text, and of a name that no record has had."""
    one, two = model.clone(), model.clone()
    values = (None, math.nan, np.float64("nan"), pd.NA, pd.NaT)
    for i, (x, y) in enumerate(mixed(300)):
        missing = {name: values[i % 5] for j, name in enumerate((*x, "new")) if (i + j) % 4 == 0}
        remaining = {name: value for name, value in x.items() if name not in missing}
        whole, label = {**x, **missing}, float(y) if isinstance(model, ranking.Forest) else y
        if not remaining:
            continue
        for call in ("explain_one", "predict_one"):
            assert getattr(one, call)(whole) == getattr(two, call)(remaining)
        one.learn_one(whole, label)
        two.learn_one(remaining, label)
        if i == 200:
            assert frozen(one) == frozen(two)
    assert frozen(one) == frozen(two)
    assert "new" not in one.feature_names
    with pytest.raises(RecordError, match="no features"):
        one.learn_one({"amount": None}, y)
    assert frozen(one) == frozen(two)


def test_a_score_before_changes_nothing_of_what_is_learned() -> None:
    """Its leaves are used, where the record is the same; else they are not."""
    one, two = small(), small()
    rows = mixed(300)
    for i, (x, y) in enumerate(rows):
        one.score_one(x if i % 3 else rows[i - 1][0])
        one.learn_one(x, y)
        two.learn_one(x, y)
    assert frozen(one) == frozen(two)


@pytest.mark.parametrize("loss", [None, losses.Hinge()], ids=repr)
def test_parts_add_up_to_the_score(loss: Any) -> None:
    model = small(loss=loss)
    assert model.explain_one({"a": 1.0}) == (0.0, {})
    for x, y in mixed(300):
        model.learn_one(x, y)
    for x, _ in mixed(30, seed=2):
        parts = model.explain_one(x)
        assert parts.baseline + sum(parts.features.values()) == pytest.approx(model.score_one(x), abs=1e-12)
        assert set(parts.features) == {"amount", "country", "late"}
    telling, other = model.explain_one({"country": "B"}), model.explain_one({"country": "X"})
    assert telling.features["country"] > other.features["country"] + 0.5


@pytest.mark.parametrize("loss", [None, losses.Hinge()], ids=repr)
def test_importances_tell_what_matters(loss: Any) -> None:
    rng, model = random.Random(1), small(loss=loss)
    assert model.feature_importances == {}
    for _ in range(500):
        x = {name: rng.gauss(0, 1) for name in "abc"}
        model.learn_one(x, x["b"] > 0)
    importances = model.feature_importances
    assert sum(importances.values()) == pytest.approx(1.0)
    assert importances["b"] > 0.6


def _auc(model: Any) -> float:
    records = list(datasets.Bananas().take(3000))
    scores = model.score_learn_many(pd.DataFrame([x for x, _ in records]), pd.Series([y for _, y in records]))
    return float(roc_auc_score([y for _, y in records][1500:], scores[1500:]))


def unboosted(model: Any) -> Any:
    """A forest whose boosted trees are never built, and so never begin again."""
    block = forest.forest_boosted(model._state)
    block[boosted_trees.BOOSTED_CREDIT], block[boosted_trees.BOOSTED_SEEN] = -math.inf, math.inf
    return model


def test_it_ranks_what_no_line_parts() -> None:
    assert _auc(unboosted(auc.Forest(seed=1))) > 0.95
    assert _auc(auc.Forest(nodes=1, seed=1)) > 0.95  # by the boosted trees alone
    assert _auc(unboosted(auc.Forest(nodes=1, seed=1))) < 0.7  # trees that never split are caught
    assert _auc(auc.PairOGD(seed=1)) < 0.7


@pytest.mark.parametrize("loss", [None, losses.Hinge()], ids=["records", "pairs"])
def test_words_that_a_record_lacks_are_as_good_as_zeros(loss: Any) -> None:
    """For the linear parts alone: trees see what is missing."""
    rng = np.random.default_rng(1)
    there = rng.random((4000, 40)) < 0.1
    y = pd.Series(there @ rng.normal(size=40) + 0.5 * rng.normal(size=4000) > 0)
    frame = pd.DataFrame(there.astype(float), columns=[f"word{j}" for j in range(40)])
    frame["length"] = 1.0  # always there, and always the same
    aucs = [
        roc_auc_score(
            y[2000:], unboosted(auc.Forest(nodes=1, loss=loss, seed=1)).score_learn_many(X, y)[2000:]
        )
        for X in (frame, frame.where(frame != 0.0))
    ]
    assert aucs[1] > aucs[0] - 0.02


def test_a_number_that_is_always_there_is_no_feature() -> None:
    """As pixels at the edge of an image: many of them would be one large step."""
    learner = unboosted(auc.Forest(nodes=1, seed=1))
    for i in range(60):
        learner.learn_one({"edge": 1.0, "value": float(i % 7)}, i % 3 == 0)
    assert learner.explain_one({"edge": 1.0, "value": 3.0}).features["edge"] == 0.0


class Unguided(auc.Forest):
    """Without gains: no label has a say in which columns are drawn; and no step is brisk."""

    _guided = False
    _brisk = False


class Slower(auc.Forest):
    """Without brisk steps."""

    _brisk = False


def _one_of_many(kind: type[auc.Forest]) -> float:
    """AUC where one column of fifty tells, and no line does."""
    aucs = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(6000, 50))
        y = np.abs(X[:, 7]) < 0.6
        scores = unboosted(kind(seed=seed)).score_learn_many(X, y)
        aucs.append(roc_auc_score(y[3000:], scores[3000:]))
    return float(np.mean(aucs))


def test_a_column_that_tells_is_drawn_more_often_than_others() -> None:
    guided = _one_of_many(auc.Forest)
    assert guided > 0.8
    assert guided > _one_of_many(Unguided) + 0.05


def test_only_forests_fitted_to_records_of_two_classes_are_brisk() -> None:
    kinds = (auc.Forest(seed=1), auc.Forest(loss=losses.Logistic(), seed=1))
    others = (auc.MulticlassForest(seed=1), ranking.Forest(seed=1))
    assert [bool(each._header()[forest.FOREST_BRISK]) for each in (*kinds, *others)] == [
        True,
        False,
        False,
        False,
    ]


def _turning(kind: type[auc.Forest], turned: bool) -> float:
    """AUC of the thousand records after labels were turned round, or not."""
    aucs = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(4000, 4))
        y = X[:, 0] * X[:, 1] > 0
        y[3000:] ^= turned
        scores = unboosted(kind(seed=seed)).score_learn_many(X, y)
        aucs.append(roc_auc_score(y[3000:], scores[3000:]))
    return float(np.mean(aucs))


def test_brisk_steps_follow_labels_that_turn_and_cost_nothing_where_none_do() -> None:
    assert _turning(auc.Forest, True) > _turning(Slower, True) + 0.05
    assert _turning(auc.Forest, False) > _turning(Slower, False) - 0.005


def test_brisk_steps_follow_centres_that_move() -> None:
    moving = {"n_centroids": 50, "n_drift_centroids": 50, "change_speed": 0.001}
    records = list(synth.RandomRBFDrift(21, 21, n_features=10, **moving).take(10_000))
    X, y = np.array([list(x.values()) for x, _ in records]), np.array([bool(y) for _, y in records])
    aucs = []
    for kind in (auc.Forest, Slower):
        scores = [kind(seed=seed).score_learn_many(X, y) for seed in (1, 2)]
        aucs.append(np.mean([roc_auc_score(y[5000:], each[5000:]) for each in scores]))
    assert aucs[0] > aucs[1] + 0.005


def refuses(model: Any, rows: list[Any], section: str, damage: list[tuple[str, Any]]) -> None:
    """A learner of these rows takes no state with other values in a section; "": in the state itself."""
    for x, y in rows:
        model.learn_one(x, y)
    state, before = model.to_state(), frozen(model)
    for name, value in damage:
        changed = {section: {**state[section], name: value}} if section else {name: value}
        with at_row(name, value), pytest.raises(SnapshotError, match="damaged"):
            model.load_state({**state, **changed})
        assert frozen(model) == before


def test_a_snapshot_of_gains_that_is_damaged() -> None:
    damage = [
        ("base", np.array([math.nan])),
        ("base", np.zeros(2)),
        ("gains", np.full(3, math.inf)),
        ("gains", np.zeros(2)),
        ("decisions", np.array([1.0, -1.0, 0.0])),
    ]
    refuses(small(), mixed(100), "", damage)


def test_labels_that_are_turned_round_are_learned_anew() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 4))
    y = X[:, 0] * X[:, 1] > 0
    y[3000:] = ~y[3000:]
    scores = auc.Forest(seed=1).score_learn_many(X, y)
    assert roc_auc_score(y[2000:3000], scores[2000:3000]) > 0.9
    assert roc_auc_score(y[5000:], scores[5000:]) > 0.9


# ---- boosted trees


@pytest.mark.parametrize(
    ("made", "labels"),
    [(auc.Forest, [False, True]), (auc.MulticlassForest, [0, 1, 2]), (ranking.Forest, [0.0, 1.0, 2.5])],
    ids=["auc", "classes", "ranking"],
)
def test_a_restored_state_goes_on_bit_by_bit(made: Any, labels: list[Any]) -> None:
    rng = np.random.default_rng(0)
    X = np.where(rng.random((400, 3)) < 0.1, np.nan, rng.normal(size=(400, 3)))
    X[:, 0] = rng.normal(size=400)
    y = np.array([labels[int(abs(x) * 1.5) % len(labels)] for x in X[:, 0]])
    straight, model = (made(trees=4, nodes=63, seed=3) for _ in range(2))
    straight.learn_many(X, y)
    for start in range(0, 400, 80):
        model.learn_many(X[start : start + 80], y[start : start + 80])
        restored = made(trees=4, nodes=63, seed=3)
        restored.load_state(model.to_state())
        model = restored
    assert frozen(model) == frozen(straight)
    assert forest.forest_boosted(model._state)[boosted_trees.BOOSTED_BUILT] > 50.0


def test_the_work_of_a_record_is_bounded() -> None:
    """At most one tree and one column: of 25 columns and a full ring, half a millisecond."""
    assert boosted_trees.boosted_cost(boosted_trees.MOST_ROWS, 25) < 250_000
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 25))
    model = auc.Forest(4, 63, seed=1)
    most, trees = 0, 0
    model.learn_many(X[:60], X[:60, 0] > 0.0)
    block, ring = forest.forest_boosted(model._state), forest.forest_ring(model._state)
    for row in X[60:]:
        column, built = ring[boosted_trees.RING_COLUMN], block[boosted_trees.BOOSTED_BUILT]
        model.learn_many(row[None], row[:1] > 0.0)
        binned = (ring[boosted_trees.RING_COLUMN] - column) % 25
        trees += int(block[boosted_trees.BOOSTED_BUILT] - built)
        most = max(most, int(block[boosted_trees.BOOSTED_BUILT] - built), int(binned))
    assert most == 1
    assert 20 < trees < 90


def test_boosted_trees_of_several_classes_learn_their_labels() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    classes = np.digitize(X[:, 0], [-0.5, 0.5])
    model = auc.MulticlassForest(4, 1, seed=1)
    model.learn_many(X, classes)
    names = model.feature_names
    for number, value in enumerate((-2.0, 0.0, 2.0)):
        model.scores_one({names[0]: value, names[1]: 0.0})
        scores = {
            label: block[forest.SCORES + forest.BOOSTED]
            for label, block in zip(model.classes, model._blocks(), strict=True)
        }
        assert max(scores, key=scores.__getitem__) == number


def test_a_column_that_comes_late_is_missing_in_the_ring() -> None:
    rng, model = np.random.default_rng(0), auc.Forest(4, 63, seed=1)
    for value in rng.normal(size=80).tolist():
        model.learn_one({"a": value}, value > 0.0)
    model.learn_one({"a": 1.0, "b": 2.0}, True)
    model.learn_one({"a": 1.0, "c": 2.0}, True)
    values = model.to_state()["ring"]["values"].view(np.float64)  # type: ignore[index, call-overload]
    assert np.isnan(values[:80, 1:]).all()
    assert values[80, 1] == 2.0 == values[81, 2]


def test_the_first_text_of_a_column_makes_codes_of_its_numbers() -> None:
    model = auc.Forest(4, 63, seed=1)
    for i in range(80):
        model.learn_one({"a": float(-(i % 5))}, i % 2 == 0)
    model.learn_one({"a": "x"}, True)
    bins = boosted_trees.ring_bins(forest.forest_ring(model._state))
    assert bins[:80].tolist() == [1 + i % 5 for i in range(80)]  # in the order in which they came
    assert bins[80] == 6


def test_a_snapshot_of_boosted_trees_that_is_damaged() -> None:
    ring = [
        ("scalars", np.array([2.0, 0.0, 0.0])),
        ("scalars", np.array([0.0, 0.0, math.nan])),
        ("columns", np.full((3, 64), 70.0).view(np.int64)),
        ("labels", np.zeros(3)),
        ("values", np.full((100, 3), math.inf).view(np.int64)),
    ]
    boosted = [
        ("columns", np.full((50, 63), 3)),
        ("columns", np.full((50, 63), -4)),
        ("marks", np.zeros((50, 64), dtype=np.int64)),
        ("sums", np.full((50, 64), -1.0)),
        ("scores", np.zeros(99)),
        ("scalars", np.array([101.0, *[0.0] * 8])),
        ("scalars", np.array([100.0, 50.0, *[0.0] * 7])),
    ]
    refuses(small(), mixed(100), "ring", ring)
    refuses(small(), mixed(100), "boosted", boosted)


# ---- pairs


def test_pairs_of_texts_gaps_and_late_names_come_back_bit_for_bit() -> None:
    """Records that are kept get a column for a name that came later, and go with the state."""
    model, rows = small(loss=losses.Hinge()), mixed(300)
    for i, (x, y) in enumerate(rows):
        if i % 40 == 0:
            other = small(loss=losses.Hinge())
            other.load_state(model.to_state())
            assert frozen(other) == frozen(model)
            model = other
        one = model.clone(include_attributes=True)
        assert model.predict_proba_one(x) == one.predict_proba_one(x)
        model.learn_one(x, y)
        one.learn_one(x, y)
        assert frozen(one) == frozen(model)
    assert model.feature_names == ("amount", "country", "late")
    straight = small(loss=losses.Hinge())
    for x, y in rows:
        straight.learn_one(x, y)
    assert frozen(straight) == frozen(model)
    assert straight.pair_loss == losses.Hinge()


def test_pairs_rank_what_no_line_parts_and_tell_probabilities() -> None:
    model = auc.Forest(trees=20, seed=1, loss=losses.Logistic())
    assert model.predict_proba_one({"1": 0.5}) == {False: 0.5, True: 0.5}
    assert _auc(model) > 0.93
    records = [(x, y) for x, y in datasets.Bananas()][3000:5000]
    probabilities = [model.predict_proba_one(x)[True] for x, _ in records]
    truth = [bool(y) for _, y in records]
    assert log_loss(truth, probabilities) < 0.45  # of the base rate: .69
    assert np.mean(probabilities) == pytest.approx(np.mean(truth), abs=0.05)


def test_records_that_are_kept_for_pairs_survive_a_new_name() -> None:
    model = small(loss=losses.Hinge())
    rows = mixed(40)
    for x, y in rows:
        model.learn_one(x, y)
    before = model.to_state()["pairs"]["kept"]  # type: ignore[index]
    model.learn_one({"amount": 1.0, "new": 2.0}, True)
    after = model.to_state()["pairs"]["kept"]  # type: ignore[index]
    assert (after[0, :, :2] == before[0]).all()  # negatives: none came
    assert np.isnan(after[0, :, 2].copy().view(np.float64)).all()  # a gap in all of them


def test_one_class_alone_makes_no_pairs() -> None:
    model = small(loss=losses.Square())
    for i in range(100):
        model.learn_one({"a": float(i % 7)}, True)
    # The boosted trees learn from records, not from pairs; the experts from pairs alone.
    assert model._state[forest.SCORES : forest.SCORES + forest.EXPERTS].tolist() == [0.0] * 4
    assert model.predict_proba_one({"a": 3.0})[True] > 0.9
    model.learn_one({"a": 3.0}, False)
    model.score_one({"a": 3.0})
    assert max(model._state[forest.SCORES : forest.SCORES + forest.EXPERTS]) < 0.0


def test_memory_of_pairs_is_bounded() -> None:
    model = small(loss=losses.Logistic())
    for x, y in mixed(200):
        model.learn_one(x, y)
    before = model._raw_memory_usage
    for x, y in mixed(2000, seed=1):
        model.learn_one(x, y)
    assert model._raw_memory_usage <= before


def test_a_snapshot_of_pairs_that_is_damaged() -> None:
    damage = [
        ("link", np.array([1.0, 0.0, 1.0, 0.0, 0.0])),  # a slope that could turn the ranking
        ("link", np.array([1.0, 0.0, math.nan, 0.0, 1.0])),
        ("came", np.array([-1, 3])),
        ("came", np.array([1.0, 3.0])),
        ("kept", np.zeros((2, 31, 3), dtype=np.int64)),
        ("kept", np.full((2, 32, 3), math.inf).view(np.int64)),
    ]
    refuses(small(loss=losses.Logistic()), mixed(100), "pairs", damage)


@pytest.mark.parametrize("loss", [losses.MinimumErrorEntropy(), "logistic", 1])
def test_what_is_no_loss_of_pairs(loss: Any) -> None:
    with pytest.raises(ConfigError, match=r"Fix: "):
        small(loss=loss)


# ---- regression


def relevances(n: int, seed: int = 0) -> list[tuple[dict[str, Any], float]]:
    """A saw over one number, a step at a text; a shift and a unit far from those of a standard score."""
    rng, rows = random.Random(seed), []
    for _ in range(n):
        x = {
            "at": rng.uniform(0.0, 10.0),
            "kind": rng.choice(["bed", "sofa"]),
            "nothing": rng.gauss(0.0, 1.0),
        }
        rows.append((x, 5000.0 + 40.0 * abs(x["at"] - 5.0) + 100.0 * (x["kind"] == "bed")))
    return rows


def _unexplained(model: Any, rows: list[tuple[dict[str, Any], float]]) -> float:
    """Share of the variance that predictions before learning leave, over the second half."""
    predictions = []
    for x, y in rows:
        predictions.append(model.predict_one(x))
        model.learn_one(x, y)
    half = len(rows) // 2
    y = np.array([y for _, y in rows])[half:]
    return float(((y - predictions[half:]) ** 2).mean() / y.var())


def test_a_regression_predicts_in_the_unit_of_the_relevance() -> None:
    rows = relevances(4000)
    assert _unexplained(ranking.Forest(seed=1), rows) < 0.05
    assert _unexplained(ranking.Forest(seed=1, relevance=(0, 10_000)), rows) < 0.05
    assert _unexplained(ranking.Forest(nodes=1, seed=1), rows) < 0.05  # by the boosted trees alone
    # Trees that never split are caught.
    assert _unexplained(unboosted(ranking.Forest(nodes=1, seed=1)), rows) > 0.2

    class Unscaled(ranking.Forest):
        def score_one(self, x: Any) -> float:
            state = self._state
            mean = state[forest.FOREST_MEAN]
            deviation = math.sqrt(state[forest.FOREST_SPREAD] / max(self.records, 1)) or 1.0
            return float((super().score_one(x) - mean) / deviation)

    assert _unexplained(Unscaled(seed=1), rows) > 100.0  # and scores that stay standardised


def test_a_declared_relevance_changes_the_unit_of_the_score_alone() -> None:
    """Whatever the range: it is standardised away. But for rounding, which a split would not forgive."""
    one, two = ranking.Forest(4, 63, seed=3), ranking.Forest(4, 63, relevance=(-4, 4), seed=3)
    for x, y in relevances(300):
        assert one.predict_one(x) == two.predict_one(x)
        assert one.score_one(x) == 4.0 * two.score_one(x)
        for each in (one, two):
            each.learn_one(x, (y - 5000.0) / 128.0)
    rows = pd.DataFrame([x for x, _ in relevances(20, seed=1)])
    assert list(one.predict_many(rows)) == list(two.predict_many(rows))
    assert list(one.predict_many(rows)) == [one.predict_one(x) for x in rows.to_dict("records")]
    scores = one.score_learn_many(rows, pd.Series([3.0] * 20))
    for x, score in zip(rows.to_dict("records"), scores, strict=True):
        assert two.predict_one(x) == score
        two.learn_one(x, 3.0)


def test_parts_of_a_prediction_add_up_to_it() -> None:
    model = ranking.Forest(4, 63, seed=3)
    assert model.explain_one({"at": 1.0}) == (0.0, {})
    for x, y in relevances(500):
        model.learn_one(x, y)
    for x, _ in relevances(20, seed=2):
        parts = model.explain_one(x)
        assert parts.baseline + sum(parts.features.values()) == pytest.approx(model.predict_one(x), rel=1e-12)
    assert model.feature_importances["nothing"] < 0.2


def _turned_round(n: int) -> list[tuple[dict[str, Any], bool]]:
    """Records whose labels one number decides; they are turned round every 210 records."""
    rng = random.Random(0)
    records = [{"a": rng.gauss(0.0, 1.0), "b": rng.gauss(0.0, 1.0)} for _ in range(n)]
    return [(x, (x["a"] > 0.0) ^ (i // 210 % 2 == 1)) for i, x in enumerate(records)]


def _chain(n: int) -> list[tuple[dict[str, Any], bool]]:
    """Ever larger numbers, each beyond all marks: the trees become long chains."""
    return [({"a": float(i)}, i % 3 == 0) for i in range(n)]


def _explain_twice(model: Any, x: dict[str, Any]) -> None:
    """With the means that were kept, and without."""
    found, kept = model.explain_one(x), model._kept
    model._kept = {}
    assert found == model.explain_one(x)
    model._kept = kept


@pytest.mark.parametrize(
    ("made", "rows"),
    [
        (lambda: small(trees=2, nodes=31), _turned_round(330)),
        (lambda: small(nodes=301), _turned_round(1000) + mixed(1000)),
        (lambda: small(nodes=1), mixed(300)),
        (lambda: unboosted(auc.Forest(1, 1023, seed=2)), _chain(1700)),
        (lambda: small(trees=2, loss=losses.Hinge()), mixed(120)),
        (lambda: auc.MulticlassForest(4, 63, seed=1), _turned_round(1000)),
        (lambda: ranking.Forest(4, 63, seed=3), relevances(1500)),
    ],
    ids=["begun again", "large", "roots", "chains", "pairs", "classes", "relevances"],
)
def test_an_explanation_after_others_has_the_bits_of_the_first(made: Any, rows: list[Any]) -> None:
    """Means above leaves that did not change are kept: across splits, resets, and trees that are emptied."""
    model, rng = made(), random.Random(0)
    for x, y in rows:
        _explain_twice(model, x)
        kind = rng.random()
        if kind < 0.02:
            model.explain_one(rows[rng.randrange(len(rows))][0])  # of a record that is not learned next
        elif kind < 0.04:
            model.learn_one(*rows[rng.randrange(len(rows))])  # of a record that was not explained
        model.learn_one(x, y)


def test_an_explanation_once_the_boosted_trees_began_again() -> None:
    model, rows = small(trees=2, nodes=31), _turned_round(210)
    for x, y in rows:
        model.explain_one(x)
        model.learn_one(x, y)
    block = forest.forest_boosted(model._state)
    model._state[forest.FOREST_LOSSES + forest.BOOSTED], block[boosted_trees.BOOSTED_BEST] = 5.0, 0.0
    assert block[boosted_trees.BOOSTED_BUILT] > 0.0
    for x, y in rows[:3]:
        _explain_twice(model, x)
        model.learn_one(x, y)
    assert block[boosted_trees.BOOSTED_SINCE] < 5.0  # it did


def test_one_huge_relevance_makes_no_huge_step() -> None:
    """Nor a sum of squares after which no expert that never forgets would move again."""
    model = ranking.Forest(4, 63, seed=3)
    for x, y in relevances(500):
        model.learn_one(x, y)
    before = sections_of(model._state)["leaves"].copy()
    model.learn_one({"at": 1.0, "kind": "bed", "nothing": 0.0}, 1e50)
    after = sections_of(model._state)["leaves"]
    assert np.abs(after - before)[::2].max() < 5.0
    assert 0.0 < after[1::2].max() < 2000.0
    for x, y in relevances(50):
        assert math.isfinite(model.score_one(x))
        model.learn_one(x, y)
    with pytest.raises(RecordError, match="relevance"):
        model.learn_one({"at": 1.0}, 2e50)


def test_moments_of_relevances_that_cannot_be() -> None:
    moments = np.array([0.0, -1.0]), np.array([math.nan, 1.0]), np.array([0.0])
    refuses(ranking.Forest(3, 31, seed=1), relevances(50), "", [("labels", bad) for bad in moments])


def three(n: int, seed: int = 0) -> list[tuple[dict[str, Any], str]]:
    """Mixed records, whose class is new now and then."""
    rng, rows = random.Random(seed), []
    for i, (x, y) in enumerate(mixed(n, seed)):
        label = "yes" if y else "no"
        if i >= 40 and rng.random() < 0.3:
            label, x["amount"] = ("late" if i < 120 else rng.choice(["late", "later"])), rng.gauss(4.0, 1.0)
        rows.append((x, label))
    return rows


def test_the_first_class_is_a_forest_of_its_own() -> None:
    """Bit for bit, whatever other classes there are; the others from their first record on.

    Of one in whose trees no label has a say, for these are the trees of all classes.
    """
    rows = three(400)
    first = rows[0][1]
    several = auc.MulticlassForest(4, 63, seed=3, positive=first)
    alone = Unguided(4, 63, seed=3)
    for x, y in rows:
        assert several.score_one(x) == alone.score_one(x)
        several.learn_one(x, y)
        alone.learn_one(x, y == first)
    x = rows[-1][0]
    assert several.explain_one(x, first) == alone.explain_one(x)
    assert several.weights == alone.weights
    other = auc.MulticlassForest(4, 63, seed=3, positive=first)
    for x, y in rows:
        other.learn_one(x, "no" if y == "yes" else "yes" if y == "no" else y)
    assert other.score_one(x) != alone.score_one(x)  # it can fail


@pytest.mark.parametrize("backend", [pd, pl])
@pytest.mark.parametrize("seed", range(2))
def test_frames_of_several_classes_are_records_one_by_one(backend: Any, seed: int) -> None:
    rows = [row for row in three(300, seed) if isinstance(row[0].get("late", ""), str)]
    one, many, both = (auc.MulticlassForest(4, 63, seed=3, positive="late") for _ in range(3))
    for X, part in in_frames(backend, rows, (one, many, both), "no"):
        assert list(many.predict_many(X)) == [one.predict_one(x) for x, _ in part]
        shares = many.predict_proba_many(X).to_numpy()
        assert shares.tolist() == [list(one.predict_proba_one(x).values()) for x, _ in part]
    assert one.classes[:2] == ("no", "yes")
    assert set(one.classes) == {"no", "yes", "late", "later"}


def test_several_classes_are_distinguished() -> None:
    records = list(datasets.ImageSegments().take(1000))
    model, wrong = auc.MulticlassForest(seed=1), 0
    broken, astray = auc.MulticlassForest(seed=1), 0  # which tells every class from the first alone
    for x, y in records:
        wrong += model.predict_one(x) != y
        model.learn_one(x, y)
        astray += broken.predict_one(x) != y
        broken.learn_one(x, y if y in ("path", "sky") else "path")
    assert wrong < 200
    assert astray > 500
    assert sum(model.predict_proba_one(records[0][0]).values()) == pytest.approx(1.0)
    assert model._raw_memory_usage < 2_900_000 + 1_400_000 * 6


def test_the_parts_of_a_class_add_up_to_its_score() -> None:
    model = auc.MulticlassForest(4, 63, seed=3)
    assert model.explain_one({"a": 1.0}) == (0.0, {})
    assert (model.predict_one({"a": 1.0}), model.predict_proba_one({"a": 1.0})) == (None, {})
    for x, y in three(300):
        model.learn_one(x, y)
    for x, _ in three(20, seed=5):
        scores = model.scores_one(x)
        for label, score in scores.items():
            parts = model.explain_one(x, label)
            assert parts.baseline + sum(parts.features.values()) == pytest.approx(score, abs=1e-12)
        assert model.explain_one(x) == model.explain_one(x, max(scores, key=scores.__getitem__))
        assert model.predict_one(x) == max(scores, key=scores.__getitem__)
    assert sum(model.feature_importances.values()) == pytest.approx(1.0)
    with pytest.raises(RecordError, match=r"no record had.*Fix: "):
        model.explain_one(x, "unheard of")


@pytest.mark.parametrize(
    "bad", [None, math.nan, math.inf, "nan", "inf", [1], object()], ids=lambda bad: type(bad).__name__
)
def test_what_is_no_class(bad: Any) -> None:
    model = auc.MulticlassForest(4, 63, seed=3)
    for x, y in three(100):
        model.learn_one(x, y)
    before = frozen(model)
    with pytest.raises(RecordError, match=r"the label.*Fix: "):
        model.learn_one({"amount": 1.0}, bad)
    with pytest.raises(RecordError, match=r"in row 1, the label.*Fix: "):
        model.learn_many(pd.DataFrame({"amount": [1.0, 2.0]}), pd.Series(["new", bad], dtype=object))
    for x in ({"amount": math.inf}, {"amount": None}, {"fresh": [1]}):
        with pytest.raises(RecordError, match=r"amount|fresh|no features"):
            model.learn_one(x, "new")
    assert frozen(model) == before


def test_classes_that_never_end() -> None:
    model = auc.MulticlassForest(2, 15, max_classes=3, seed=1)
    for y in (1, 2, True, 1.0, np.int64(2), "1", "two", b"two"):  # equal labels are one class
        model.learn_one({"a": 1.0}, y)
    assert model.classes == (1, 2, "two")
    before = frozen(model)
    with pytest.raises(RecordError, match=r"max_classes=3.*Fix: "):
        model.learn_one({"a": 1.0}, "more")
    with pytest.raises(RecordError, match=r"in row 1.*max_classes=3"):
        model.learn_many(pd.DataFrame({"a": [1.0, 2.0]}), pd.Series([1, 7]))
    assert frozen(model) == before


def test_a_snapshot_of_classes_that_is_damaged() -> None:
    model = auc.MulticlassForest(3, 31, seed=1)
    for x, y in three(200):
        model.learn_one(x, y)
    saved = model.to_state()
    one = saved["others"][0]
    broken = [
        {"classes": ["no", "no", "yes", "late"]},
        {"classes": saved["classes"][:-1]},
        {"classes": [*saved["classes"][:-1], None]},
        {"others": saved["others"][:-1]},
        {"others": [{**one, "since": -1.0}, *saved["others"][1:]]},
        {"others": [{**one, "leaves": one["leaves"][:-1]}, *saved["others"][1:]]},
        {"others": [{**one, "sums": -1.0 - one["sums"]}, *saved["others"][1:]]},
        {"others": [{**one, "stack": one["stack"] * math.nan}, *saved["others"][1:]]},
    ]
    before = frozen(model)
    for part in broken:
        with pytest.raises(SnapshotError, match="damaged"):
            model.load_state({**saved, **part})
        assert frozen(model) == before
    other = auc.MulticlassForest(3, 31, seed=1)
    other.load_state(saved)
    for x, y in three(100, seed=1):
        assert other.scores_one(x) == model.scores_one(x)
        for each in (model, other):
            each.learn_one(x, y)
    assert frozen(other) == frozen(model)


def test_memory_is_bounded() -> None:
    model = auc.Forest(seed=1)
    model.learn_one({f"f{i}": float(i) for i in range(1000)} | {"t": "x"}, True)
    for i in range(20):  # texts that never end
        model.learn_one({"t": f"text {i}"}, i % 2 == 0)
    assert model._raw_memory_usage < 25_000_000
    model.learn_one({f"g{i}": float(i) for i in range(8000)}, False)  # fewer records are kept
    assert model._raw_memory_usage < 70_000_000
    few = auc.Forest(seed=1)
    few.learn_one({f"f{i}": float(i) for i in range(24)} | {"t": "x"}, True)
    assert few._raw_memory_usage < 5_000_000


def test_a_configuration_names_it() -> None:
    config = parse_config(
        {
            "app": "fraud",
            "input": {"topic": "t", "label": "y"},
            "learner": {"class": "streampair.auc.Forest", "options": {"trees": 7, "seed": 1}},
        }
    )
    learner = build_learner(config)
    assert (learner.trees, learner.nodes, type(learner)) == (7, 1023, auc.Forest)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trees": 0}, "trees is 0"),
        ({"trees": 1.5}, "trees is 1.5"),
        ({"nodes": True}, "nodes is True"),
        ({"nodes": 40_000}, "nodes is 40000"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"max_features": 0}, "max_features is 0"),
        ({"positive": None}, "positive is None"),
    ],
)
def test_parameters_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"{message}.*Fix: "):
        auc.Forest(**options)


def test_codes_of_texts() -> None:
    codes = np.array([as_code(text) for text in ("a", "b", "", "x" * 1000, "\ud800")])
    assert np.isnan(codes).all()
    assert len({int(bits) for bits in codes.view(np.int64)}) == 5
    assert (
        which(np.concatenate((codes, [math.nan, -math.nan, 1.0, math.inf]))).tolist()
        == [True] * 5 + [False] * 4
    )
    assert np.array(as_code("a")).view(np.int64) == np.array(as_code("a")).view(np.int64)
