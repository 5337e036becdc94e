"""Scores of a batch, each under the model before its record: the bits of one record after the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from harness.learners import LEARNERS, every_learner, frozen, is_private, name_of, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair import auc, buffers, losses, privacy
from streampair.errors import ConfigError, RecordError
from streampair.privacy import EntityLimit

FLAT = [model for model in LEARNERS if not is_private(model) and not hasattr(model, "metric_")]
every_flat = pytest.mark.parametrize(
    "model", FLAT, ids=[f"{name_of(model)}-{i}" for i, model in enumerate(FLAT)]
)


def one_by_one(model: Any, batch: list[tuple[Any, Any]]) -> list[float]:
    scores = []
    for x, y in batch:
        scores.append(model.score_one(x))
        model.learn_one(x, y)
    return scores


@every_learner
@pytest.mark.parametrize("backend", [pd, pl, None], ids=["pandas", "polars", "arrays"])
def test_score_learn_many_is_score_one_then_learn_one(model: Any, backend: Any) -> None:
    """A score under a model that has learned the record already; each learner loads its kernels here."""
    if hasattr(model, "metric_"):
        assert not hasattr(model, "score_learn_many")  # it compares records, and ranks none
        return
    one, many = model.clone(), model.clone()
    if not is_private(model):
        many.load_state(one.to_state())  # the seed, if it was drawn
    rows = stream(model, 150)
    if backend is None and many.feature_names:
        return  # it knows its features by other names than an array has
    for start, stop in ((0, 1), (1, 40), (40, 40), (40, 150)):
        batch = rows[start:stop]
        y = [y for _, y in batch]
        if backend is None:
            batch = [(dict(enumerate(x.values())), y) for x, y in batch]
            X: Any = np.array([list(x.values()) for x, _ in batch]).reshape(len(batch), 5)
            given_scores = many.score_learn_many(X, np.array(y))
        else:
            X = backend.DataFrame([x for x, _ in batch] or {name: [] for name in rows[0][0]})
            given_scores = many.score_learn_many(X, backend.Series(y))
        assert list(given_scores) == one_by_one(one, batch)
        assert frozen(one) == frozen(many)
        if backend is pd:
            assert given_scores.index.equals(X.index)


@every_flat
@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, 60), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_ready_many_is_score_one_then_learn_one(model: Any, cuts: list[int], seed: int) -> None:
    one, many = model.clone(), model.clone()
    many.load_state(one.to_state())  # the seed, if it was drawn
    rows = stream(model, sum(cuts), seed=seed)
    for other in (one, many):
        other.learn_one(*rows[0])  # the names are known from here on
    start = 0
    for cut in cuts:
        batch = rows[start : start + cut]
        start += cut
        ready = many.prepare_many([x for x, _ in batch], [y for _, y in batch])
        assert ready is not None
        assert ready.take() == one_by_one(one, batch)
        assert frozen(one) == frozen(many)


@every_flat
def test_what_ready_many_does_not_take_changes_nothing(model: Any) -> None:
    learner = model.clone()
    rows = stream(model, 20)
    xs, ys = [x for x, _ in rows], [y for _, y in rows]
    assert learner.prepare_many(xs, ys) is None  # nobody knows the names
    for x, y in rows:
        learner.learn_one(x, y)
    before = frozen(learner)
    others = [{**xs[5], "new": 1.0}, {"f0": 1.0}]
    if model.takes_gaps and not is_private(model):
        others += [{**xs[5], "f0": value} for value in (None, math.nan, "text")]
    for other in others:
        assert learner.prepare_many([*xs[:5], other, *xs[6:]], ys) is None
    assert learner.prepare_many([], []) is None
    assert frozen(learner) == before


@every_flat
@pytest.mark.parametrize("cut", [1, 40])
@pytest.mark.parametrize("tables", [False, True])
def test_what_is_refused_or_null_leaves_no_trace_in_its_batch(model: Any, tables: bool, cut: int) -> None:
    one, many = model.clone(), model.clone()
    many.load_state(one.to_state())
    (first, label), *rows = stream(model, 41)
    for learner in (one, many):
        learner.learn_one(first, label)
    bad: dict[int, Any] = {11: 1e200, 30: math.inf}
    gaps = model.takes_gaps and not is_private(model)
    if not gaps:
        bad[8] = math.nan
    if not tables:
        bad |= {35: 10**400, 36: [1.0]}
        if not gaps:
            bad[3] = None
    nulls, labels = [1, 20], {12: None, 31: math.nan}
    rows = [({**x, "f1": bad[i]} if i in bad else x, labels.get(i, y)) for i, (x, y) in enumerate(rows)]
    for start in range(0, 40, cut):
        xs, ys = [x for x, _ in rows[start : start + cut]], [y for _, y in rows[start : start + cut]]
        null = [i - start for i in nulls if start <= i < start + cut]
        if tables:
            ready = many.prepare_rows(list(first), np.array([list(x.values()) for x in xs]), ys, nulls=null)
        else:
            ready = many.prepare_many(xs, ys, nulls=null)
        scores = ready.take()
        for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
            try:
                score = one.score_one(x)
                if i not in null:
                    one.learn_one(x, y)
            except RecordError as error:
                score = str(error)
            assert score == (str(ready.refused.pop(i)) if i in ready.refused else scores[i])
        assert not ready.refused
    assert frozen(one) == frozen(many)


def test_a_history_that_is_full_takes_nothing() -> None:
    learner = auc.PairOGD(losses.Logistic(), buffers.FullHistory(max_records=30), seed=1)
    rows = stream(learner, 40)
    for x, y in rows[:20]:
        learner.learn_one(x, y)
    assert learner.prepare_many([x for x, _ in rows[20:]], [y for _, y in rows[20:]]) is None
    assert learner.records == 20


def test_methods_of_a_subclass_are_not_passed_over() -> None:
    class Counting(auc.PairOGD):
        learned = 0

        def learn_one(self, x: Any, y: Any) -> None:
            self.learned += 1
            super().learn_one(x, y)

    learner = Counting(seed=1)
    for x, y in stream(learner, 10):
        learner.learn_one(x, y)
    rows = stream(learner, 10)
    assert learner.prepare_many([x for x, _ in rows], [y for _, y in rows]) is None


def test_a_frame_that_cannot_be_used_is_not_learned() -> None:
    model = auc.PairOGD(seed=0)
    rows = stream(model, 30)
    for x, y in rows:
        model.learn_one(x, y)
    before = frozen(model)
    X = pd.DataFrame([x for x, _ in rows])
    X.loc[7, "f2"] = math.inf
    with pytest.raises(RecordError, match="f2"):
        model.score_learn_many(X, pd.Series([y for _, y in rows]))
    with pytest.raises(RecordError, match="one label for each row"):
        model.score_learn_many(X, pd.Series([True]))
    assert frozen(model) == before


@pytest.mark.parametrize("mechanism", [privacy.PairGradients(), privacy.SecondMoments()], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, "text", None])
def test_in_front_of_a_private_learner_a_bad_cell_costs_its_row_alone(mechanism: Any, bad: Any) -> None:
    model = auc.PairFTRL(warmup=5, mechanism=mechanism, features=[f"f{i}" for i in range(5)], seed=0)
    rows = stream(model, 30)
    X = pd.DataFrame([x for x, _ in rows])
    X["f2"] = [bad if i == 7 else value for i, value in enumerate(X["f2"])]
    one, many = model.clone(), model.clone()
    given_scores = many.score_learn_many(X, pd.Series([y for _, y in rows]))
    expected = []
    for i, (x, y) in enumerate(rows):
        x = {**x, "f2": bad} if i == 7 else x
        expected.append(math.nan if i == 7 else one.score_one(x))
        one.learn_one(x, y)
    np.testing.assert_array_equal(given_scores, expected)
    assert frozen(one) == frozen(many)
    assert many.slots == 30
    assert many.null_slots == 1
    with pytest.raises(RecordError, match="one label for each row"):
        many.score_learn_many(X, pd.Series([True]))


def test_entities_are_named_row_by_row() -> None:
    learner = auc.PairFTRL(horizon=100, delta=1e-3, entity=EntityLimit(2), features=[0, 1], seed=0)
    with pytest.raises(ConfigError, match="does not know entities"):
        learner.score_learn_many(np.zeros((2, 2)), np.array([True, False]))
