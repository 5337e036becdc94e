"""Running scales of features: each rule of `streampair.kernels.scaling`, by what it promises."""

from __future__ import annotations

import hashlib
import itertools
import math
import pickle
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import naive
import numpy as np
import pandas as pd
import polars as pl
import pytest
from harness.learners import frozen, through_pickle, through_state
from harness.support import in_one_case
from hypothesis import example, given, settings
from hypothesis import strategies as st
from river import feature_extraction, preprocessing

from streampair import auc, buffers, losses, metric, models, ranking, schedules
from streampair.base.online import OnlinePairLearner
from streampair.errors import RecordError
from streampair.kernels import scaling
from streampair.kernels import state as layout
from streampair.models import format as models_format

Record = dict[str, Any]
Stream = list[tuple[Record, Any]]
Make = Callable[..., Any]

MAKERS: dict[str, Make] = {
    "auc.PairOGD": lambda **more: auc.PairOGD(seed=0, **more),
    "FIFO": lambda **more: auc.PairOGD(losses.Logistic(), buffers.FIFO(3), 0.3, l2=0.01, seed=0, **more),
    "Reservoir": lambda **more: auc.PairOGD(losses.Logistic(), buffers.Reservoir(8), None, seed=1, **more),
    "replacement": lambda **more: auc.PairOGD(
        losses.SquaredHinge(), buffers.Reservoir(8, replacement=True), average=False, seed=2, **more
    ),
    "ClassReservoir": lambda **more: auc.PairOGD(buffer=buffers.ClassReservoir(4), seed=3, **more),
    "FullHistory": lambda **more: auc.PairOGD(losses.Logistic(), buffers.FullHistory(), None, seed=4, **more),
    "least squares": lambda **more: auc.PairOGD(losses.Square(), buffers.FullHistory(), seed=5, **more),
    "half-life": lambda **more: auc.PairOGD(half_life=20, seed=6, **more),
    "OAM": lambda **more: auc.OAM(size=4, seed=7, **more),
    "SPAUC": lambda **more: auc.SPAUC(l2=0.01, **more),
    "ranking.PairOGD": lambda **more: ranking.PairOGD(losses.MinimumErrorEntropy(0.5), seed=8, **more),
    "ranking, least squares": lambda **more: ranking.PairOGD(
        losses.Square(), buffers.FullHistory(), seed=9, **more
    ),
}
each = pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))


def label(make: Make, rng: np.random.Generator, score: float = 0.0) -> Any:
    """A label that rises with a score, as the learner takes it."""
    value = float(np.clip(score + rng.normal(), -3.0, 3.0)) / 3.0
    return value if isinstance(make(), ranking.PairOGD) else value > 0.0


def raw_records(make: Make, n: int, seed: int = 0, *, whole: bool = False) -> Stream:
    """Records as they come: numbers far from 0, counts, booleans, texts, gaps, far values, new names.

    With `whole` each has all of the first names, as the rows of a frame do.
    """
    rng = np.random.default_rng(seed)
    out: Stream = []
    for t in range(n):
        a, b = rng.normal(size=2)
        x: Record = {
            "income": 40_000.0 + 9_000.0 * a if t % 41 else 1e9,
            "share": 0.5 * b,
            "member": bool(rng.random() < 0.4),
            "visits": float(rng.integers(0, 2 if t < 20 else 5)),
            "town": str(rng.choice(["Bern", "Chur", "Genf"])),
            "age": None if rng.random() < 0.2 else math.nan if rng.random() < 0.1 else 40.0 + 9.0 * b,
            "note": None if rng.random() < 0.5 else "seen",
        }
        if not whole:
            x = {name: value for name, value in x.items() if name == "share" or rng.random() < 0.9}
            if rng.random() < (0.9 if t < 12 else 0.2):
                x["rare"] = rng.normal() + 2.0
            if t > 15 and rng.random() < 0.7:
                x["late"] = rng.normal() ** 2
        out.append((x, label(make, rng, a + b)))
    return out


def learn(model: Any, data: Stream) -> list[float]:
    """Score each record, then learn it."""
    scores = []
    for x, y in data:
        scores.append(model.score_one(x))
        model.learn_one(x, y)
    return scores


def statistic(model: OnlinePairLearner, what: str, name: str) -> float:
    """What is known of a feature, as a saved state calls it."""
    return float(model.to_state()[what][model.feature_names.index(name)])


def unit(model: OnlinePairLearner, name: str) -> float:
    """One over the spread of a feature."""
    return float(model._column(scaling.UNIT)[model.feature_names.index(name)])


def centre(model: OnlinePairLearner, name: str) -> float:
    return float(model._column(scaling.CENTRE)[model.feature_names.index(name)])


# ---- the rules, by the reference -------------------------------------------------------------------------

REFERENCES: dict[str, Callable[..., Any]] = {
    "auc.PairOGD": lambda d, **more: naive.PairOGD(
        d, "Hinge", "fifo", 16, 1 / 16, math.inf, schedule="adagrad", first=1.0, **more
    ),
    "FIFO": lambda d, **more: naive.PairOGD(d, "Logistic", "fifo", 3, 0.3, math.inf, 0.01, **more),
    "Reservoir": lambda d, **more: naive.PairOGD(d, "Logistic", "reservoir", 8, None, 2.0, seed=1, **more),
    "replacement": lambda d, **more: naive.PairOGD(
        d, "SquaredHinge", "replace", 8, 1 / 16, math.inf, seed=2, schedule="adagrad", first=1.0, **more
    ),
    "ClassReservoir": lambda d, **more: naive.PairOGD(
        d, "Hinge", "classes", 4, 1 / 16, math.inf, seed=3, schedule="adagrad", first=1.0, **more
    ),
    "FullHistory": lambda d, **more: naive.FullHistory(d, "Logistic", 2.0, 0.0, **more),
    "least squares": lambda d, **more: naive.PairOGD(
        d, "Square", "full", 1, 1 / 16, math.inf, schedule="adagrad", first=1.0, **more
    ),
    "half-life": lambda d, **more: naive.PairOGD(
        d,
        "Hinge",
        "fifo",
        16,
        1 / 16,
        math.inf,
        keep=0.5 ** (1 / 20),
        ends=True,
        schedule="adagrad",
        first=1.0,
        **more,
    ),
    "OAM": lambda d, **more: naive.OAM(d, 0.01, 4, 1.0, 7, **more),
    "SPAUC": lambda d, **more: naive.SPAUC(d, None, 1.0, 0.01, **more),
    "ranking.PairOGD": lambda d, **more: naive.PairOGD(
        d, "MinimumErrorEntropy", "fifo", 1, None, 1.0, width=0.5, **more
    ),
    "ranking, least squares": lambda d, **more: naive.PairOGD(d, "Square", "full", 1, None, 1.0, **more),
}


def columns_of(x: Record) -> dict[str, float]:
    """A record by its columns: a text and a gap have one of their own."""
    out: dict[str, float] = {}
    for name, value in x.items():
        if isinstance(value, str):
            out[f"{name}={value}"] = 1.0
        elif value is None or value != value:
            out[name] = math.nan
            out[f"{name}="] = 1.0
        else:
            out[name] = float(value)
    return out


@pytest.mark.parametrize("name", MAKERS)
def test_raw_records_against_the_reference(name: str) -> None:
    """Half-lives too: sums that fade where a feature comes are those that fade with each record.

    A probability is of the score of the record; the link has learned from records with nearer values.
    One partner and self-tuned steps of an error's window make ten times as much of a rounding in 10 records.
    """
    make = MAKERS[name]
    data = raw_records(make, 100 if name == "ranking.PairOGD" else 140)
    if name == "half-life":  # and a column that holds one value for more than two
        constant = [2.0 if 40 <= t < 110 else math.sin(t) for t in range(140)]
        data = [({**x, "constant": value}, y) for (x, y), value in zip(data, constant, strict=True)]
    names = list(dict.fromkeys(column for x, _ in data for column in columns_of(x)))
    fixed = [i for i, column in enumerate(names) if "=" in column]
    model, reference = make(), REFERENCES[name](len(names), scale=True, fixed=fixed)
    average, link = bool(model._state[layout.AVERAGE]), naive.Link()
    for x, y in data:
        record = {names.index(column): value for column, value in columns_of(x).items()}
        score = reference.score(record, average=average)
        assert model.score_one(x) == pytest.approx(score, rel=1e-8, abs=1e-8)
        if isinstance(y, bool):
            assert model.predict_proba_one(x)[True] == pytest.approx(link.probability(score), rel=1e-6)
            link.learn(reference.score(reference.columns.nearer(record), average=average), 1.0 if y else -1.0)
        model.learn_one(x, y)
        reference.learn(record, float(y) if isinstance(model, ranking.PairOGD) else 1.0 if y else -1.0)
    for column, weight in zip(names, reference.average if average else reference.last, strict=True):
        i = names.index(column)
        scaled = weight * reference.columns.unit(i)
        assert model.weights[column] == pytest.approx(scaled, rel=1e-7, abs=1e-12)
        assert centre(model, column) == pytest.approx(reference.columns.centre(i), rel=1e-12)


# ---- shift and scale -------------------------------------------------------------------------------------


def numbers(make: Make, n: int, d: int = 3, seed: int = 0) -> tuple[np.ndarray, list[Any]]:
    """Rows of numbers that are multiples of 1/1024, and labels."""
    rng = np.random.default_rng(seed)
    rows = np.round(rng.normal(size=(n, d)) * 1024.0) / 1024.0
    return rows, [label(make, rng, row @ [1.0, -1.0, 0.5][:d]) for row in rows]


def scores_of(make: Make, rows: np.ndarray, labels: Sequence[Any]) -> np.ndarray:
    """Score of each row before it is learned."""
    scores: np.ndarray = make().score_learn_many(rows, np.array(labels))
    return scores


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference of scores, by how large they are."""
    return float(np.abs(a - b).max() / max(1.0, np.abs(a).max()))


@each
@settings(max_examples=20)
@given(
    shifts=st.lists(st.integers(-(2**20), 2**20), min_size=3, max_size=3),
    powers=st.lists(st.integers(-40, 40), min_size=3, max_size=3),
    seed=st.integers(0, 100),
)
def test_no_shift_or_scale_of_a_column_changes_the_scores(
    make: Make, shifts: list[int], powers: list[int], seed: int
) -> None:
    """By powers of 2 and whole numbers, which round nothing in the records."""
    rows, labels = numbers(make, 80, seed=seed)
    moved = (rows + np.array(shifts)) * 2.0 ** np.array(powers)
    assert apart(scores_of(make, rows, labels), scores_of(make, moved, labels)) < 1e-5


@each
@settings(max_examples=10)
@given(
    low=st.integers(-(2**20), 2**20),
    span=st.integers(1, 2**20),
    power=st.integers(-40, 40),
    swapped=st.booleans(),
    third=st.sampled_from([1, 2, 3, 40, 200]),
    seed=st.integers(0, 100),
)
def test_two_values_count_as_0_and_1(
    make: Make, low: int, span: int, power: int, swapped: bool, third: int, seed: int
) -> None:
    """A column of any two values beside numbers, with a third from some record on, perhaps far off."""
    rng = np.random.default_rng(seed)
    rows, labels = numbers(make, 80, seed=seed)
    bits = (rng.random(80) < rng.choice([0.1, 0.5])).astype(np.float64)
    bits[third:] = np.where(rng.random(80) < 0.2, rng.choice([4.0, 1024.0]), bits)[third:]
    rows[:, 1] = bits
    moved = rows.copy()
    moved[:, 1] = ((1.0 - bits if swapped else bits) * span + low) * 2.0**power
    one, other = make(), make()
    scores = one.score_learn_many(rows, np.array(labels))
    assert apart(scores, other.score_learn_many(moved, np.array(labels))) < 1e-5
    assert other._column(scaling.UNIT)[1] == pytest.approx(
        one._column(scaling.UNIT)[1] / (span * 2.0**power), rel=1e-6
    )


@each
def test_offsets_cancel_but_for_rounding(make: Make) -> None:
    rows, labels = numbers(make, 300)
    scores = scores_of(make, rows, labels)
    for offset in (1e3, 2.0**20, 2.0**30):
        moved = rows + offset * np.array([1.0, -1.0, 0.5])
        # One partner and self-tuned steps of an error's window make more of a rounding.
        most = 1e-4 if make is MAKERS["ranking.PairOGD"] and offset > 2.0**20 else 1e-6
        assert apart(scores, scores_of(make, moved, labels)) < most


@pytest.mark.parametrize("whole", [True, False])
def test_far_from_0_a_mean_is_that_of_all_values_but_for_its_last_bit(whole: bool) -> None:
    """Steps of a mean that are rounded on their own would be lost one by one: they are below its last bit."""
    rng = np.random.default_rng(0)
    values = np.round(rng.normal(size=4000) * 1024.0) / 1024.0
    moved = values + 2.0**30
    model = auc.PairOGD(seed=0)
    columns = {"a": moved} if whole else {"a": moved, "b": np.where(rng.random(4000) < 0.9, values, np.nan)}
    model.score_learn_many(pd.DataFrame(columns), pd.Series(values > 0.0))
    assert abs(centre(model, "a") - 2.0**30 - values.mean()) <= 2.0**-23
    assert statistic(model, "variances", "a") == pytest.approx(values.var(), rel=1e-9)


def test_an_offset_that_is_not_taken_off_is_caught() -> None:
    def make() -> Any:
        return auc.PairOGD(scale=None, seed=0)

    rows, labels = numbers(make, 300)
    moved = rows + 1000.0
    assert apart(scores_of(make, rows, labels), scores_of(make, moved, labels)) > 0.1
    moved = rows * 1000.0
    assert apart(scores_of(make, rows, labels), scores_of(make, moved, labels)) > 0.1


@each
def test_weights_and_an_intercept_of_raw_features_are_the_score(make: Make) -> None:
    model = make()
    learn(model, raw_records(make, 60))
    for x, _ in raw_records(make, 20, seed=1):
        raw = float(np.dot(model.weights_vector, model.design(x))) + model.intercept
        assert raw == pytest.approx(model.score_one(x), rel=1e-9, abs=1e-9)


# ---- the order -------------------------------------------------------------------------------------------


def test_scaled_weights_do_not_change_with_the_unit_of_a_feature() -> None:
    """Those of a lane's gauges, which compares them."""
    rows, labels = numbers(auc.PairOGD, 200)
    plain, scaled = auc.PairOGD(seed=0), auc.PairOGD(seed=0)
    for (a, b, c), y in zip(rows.tolist(), labels, strict=True):
        plain.learn_one({"a": a, "b": b, "c": c}, y)
        scaled.learn_one({"a": a * 2.0**20, "b": b, "c": c}, y)
    assert scaled.scaled_weights == plain.scaled_weights
    assert scaled.weights["a"] == plain.weights["a"] / 2.0**20
    for name, weight in plain.scaled_weights.items():
        assert plain.weights[name] == weight * unit(plain, name)
    unscaled, metrics = auc.PairOGD(seed=0, scale=None), metric.PairOGD()
    for model in (unscaled, metrics):
        for row, y in zip(rows.tolist()[:20], labels[:20], strict=True):
            model.learn_one(dict(zip("abc", row, strict=True)), y)
        assert model.scaled_weights == model.weights


def test_a_score_is_by_the_statistics_of_the_records_before() -> None:
    model = auc.PairOGD(seed=0)
    learn(model, [({"a": float(t)}, t % 3 == 0) for t in range(40)])
    x = {"a": 300.0}
    scored = model.score_learn_many(pd.DataFrame([x]), pd.Series([True]))[0]
    other = auc.PairOGD(seed=0)
    learn(other, [({"a": float(t)}, t % 3 == 0) for t in range(40)])
    assert scored == other.score_one(x)
    other.learn_one(x, True)
    assert frozen(model) == frozen(other)
    assert scored != other.score_one(x)  # it has moved the centre


def test_a_gradient_is_by_statistics_that_have_its_record() -> None:
    """Two records: their spread is half of their difference, so the step has one size at any scale."""
    for spread in (1e-3, 1.0, 1e6):
        model = auc.PairOGD(learning_rate=0.1, average=False, seed=0)
        learn(model, [({"a": 5.0 * spread}, False), ({"a": 7.0 * spread}, True)])
        # The hinge's slope is -2 for labels 1 and -1, and the records are two spreads apart.
        assert model.weights["a"] * spread == pytest.approx(0.1 * 2.0 * 2.0, rel=1e-9)


@each
def test_looking_and_unlabelled_records_change_nothing(make: Make) -> None:
    model = make()
    data = raw_records(make, 50, whole=True)
    learn(model, data[:40])
    before = frozen(model)
    for x, _ in data[40:]:
        model.score_one(x)
        model.score_one({**x, "unknown": 1e40, "income": -1e40})
        model.design(x)
    model.score_many(pd.DataFrame([x for x, _ in data[40:]]))
    if hasattr(model, "predict_proba_one"):
        model.predict_proba_one(data[0][0])
    assert frozen(model) == before


@each
def test_records_without_a_label_change_no_statistics(make: Make) -> None:
    rows, labels = numbers(make, 60)
    named = [dict(zip("abc", row, strict=True)) for row in rows.tolist()]
    model, other = make(), make()
    for each_model in (model, other):
        learn(each_model, list(zip(named[:20], labels[:20], strict=True)))
    nulls = [2, 3, 17, 39]
    batch = model.prepare_many(named[20:], labels[20:], nulls=nulls)
    assert batch is not None
    scores = batch.take()
    for i, (x, y) in enumerate(zip(named[20:], labels[20:], strict=True)):
        assert scores[i] == other.score_one(x)
        if i not in nulls:
            other.learn_one(x, y)
    assert frozen(model) == frozen(other)


# ---- far values ------------------------------------------------------------------------------------------


def ranked(scores: np.ndarray, labels: Sequence[bool]) -> float:
    """AUC."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    y = np.array(labels)
    positives = int(y.sum())
    return float((ranks[y].sum() - positives * (positives + 1) / 2) / (positives * (len(y) - positives)))


def noisy(n: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Rows of unlike spreads and offsets, and classes that they tell with an AUC of about .9."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 4))
    y = rows @ [1.0, -0.8, 0.6, 0.4] + 0.8 * rng.normal(size=n) > 0.0
    return rows * [1.0, 300.0, 0.01, 5.0] + [0.0, 1e4, 1.0, -50.0], y


def cost_of_a_far_value(score: Callable[[np.ndarray, np.ndarray], np.ndarray], place: int) -> float:
    """What one value of a million spreads takes away from the AUC of the other records."""
    rows, y = noisy(6000)
    wild = rows.copy()
    wild[place, 1] = 1e4 + 300.0 * 1e6
    others = np.arange(len(y)) != place
    plain, hit = score(rows, y), score(wild, y)
    return ranked(plain[others], y[others]) - ranked(hit[others], y[others])


LINEAR = [name for name in MAKERS if "ranking" not in name and name != "FullHistory"]  # it is quadratic


@pytest.mark.parametrize("name", LINEAR)
def test_one_wild_value_costs_little(name: str) -> None:
    for place in (50, 100, 1000, 5000):
        cost = cost_of_a_far_value(lambda rows, y: MAKERS[name]().score_learn_many(rows, y), place)
        assert cost < 0.01, place


def test_a_scale_that_one_value_ruins_is_caught() -> None:
    def score(rows: np.ndarray, y: np.ndarray) -> np.ndarray:
        model = preprocessing.StandardScaler() | auc.PairOGD(scale=None, seed=0)
        return np.array(
            learn(model, [(dict(enumerate(row)), bool(z)) for row, z in zip(rows.tolist(), y, strict=True)])
        )

    assert cost_of_a_far_value(score, 100) > 0.02


@pytest.mark.parametrize("n", [40, 400])
def test_a_far_value_enters_as_five_spreads_and_each_later_one_as_twice_as_many(n: int) -> None:
    rng = np.random.default_rng(0)
    model = auc.PairOGD(seed=0)
    values = (rng.normal(size=n) * 2.0 + 7.0).tolist()
    learn(model, [({"a": v}, bool(rng.random() < 0.5)) for v in values])
    for cuts, wild in enumerate((1e30, -1e30, 1e9)):
        assert statistic(model, "cuts", "a") == cuts
        values.append(centre(model, "a") + math.copysign(5.0 * 2.0**cuts / unit(model, "a"), wild))
        model.learn_one({"a": wild}, True)
        assert statistic(model, "means", "a") == pytest.approx(np.mean(values), rel=1e-9)
        assert statistic(model, "variances", "a") == pytest.approx(np.var(values), rel=1e-9)
        assert np.isclose(model.to_state()["values"], values[-1], rtol=1e-9).any()  # in the buffer, too
    assert model.score_one({"a": 2e30}) == pytest.approx(2 * model.score_one({"a": 1e30}), rel=1e-6)


def test_far_values_that_come_again_and_again_are_learned_as_they_are() -> None:
    rng = np.random.default_rng(0)
    model = auc.PairOGD(seed=0)
    values = rng.normal(size=20_000)
    values[::100] *= 1e4
    model.score_learn_many(pd.DataFrame({"a": values}), pd.Series(rng.random(20_000) < 0.5))
    assert 0 < statistic(model, "cuts", "a") < 15
    assert 1.0 / unit(model, "a") == pytest.approx(values.std(), rel=0.05)


def test_with_a_half_life_the_limit_of_far_values_comes_back() -> None:
    """One error in each 2,000 records: without it the tenth counts as 1e3 spreads, and the column is lost."""
    rng = np.random.default_rng(0)
    model = auc.PairOGD(half_life=200, seed=0)
    values = rng.normal(size=20_000)
    values[1999::2000] = 1e9
    model.score_learn_many(pd.DataFrame({"a": values}), pd.Series(rng.random(20_000) < 0.5))
    assert statistic(model, "cuts", "a") == pytest.approx(1.0, abs=0.01)
    assert 1.0 / unit(model, "a") < 2.0


@in_one_case(("constant", "half_life"), itertools.product([0.0, 0.1, 1.0, 7.0], [None, 50]))
def test_the_first_other_value_of_a_constant_column_has_no_limit(
    constant: float, half_life: int | None
) -> None:
    """Without a spread nothing is far: it makes the spread, by which the next far one is limited."""
    model = auc.PairOGD(half_life=half_life, seed=0)
    learn(model, [({"a": constant, "b": float(t % 7)}, t % 3 == 0) for t in range(100)])
    assert model.weights["a"] == 0.0
    assert model.score_one({"a": 1e6, "b": 2.0}) == model.score_one({"a": constant, "b": 2.0})
    model.learn_one({"a": 1e6, "b": 2.0}, True)
    share = max(1.0 / 101.0, 1.0 - 2.0 ** (-1.0 / half_life) if half_life else 0.0)
    assert statistic(model, "cuts", "a") == 0.0
    assert statistic(model, "means", "a") == pytest.approx(constant + share * (1e6 - constant))
    assert statistic(model, "variances", "a") == pytest.approx(share * (1.0 - share) * (1e6 - constant) ** 2)
    assert (model.to_state()["values"] == 1e6).any()  # in the buffer, too
    learn(model, [({"a": constant, "b": 2.0}, t % 3 == 0) for t in range(8)])  # the spread is measured
    model.learn_one({"a": 1e12, "b": 2.0}, True)
    assert statistic(model, "cuts", "a") == 1.0


@in_one_case("half_life", [50, 1])
def test_with_a_half_life_the_spread_of_a_column_that_stays_constant_fades_for_two(half_life: int) -> None:
    """Without that end the weight of the raw feature doubles every two half-lives, for ever."""
    rng = np.random.default_rng(0)
    model = auc.PairOGD(half_life=half_life, seed=0)
    learn(model, [({"a": x}, bool(x + rng.normal() > 0.0)) for x in rng.normal(size=400).tolist()])
    model.learn_one({"a": 0.5}, True)
    before, scores, variances = model.weights["a"], [], [statistic(model, "variances", "a")]
    for t in range(40 * half_life):
        model.learn_one({"a": 0.5}, t % 2 == 0)
        variances.append(statistic(model, "variances", "a"))
    assert model.weights["a"] <= 2.0 * before * (1.0 + 1e-9)
    # It fades with each record, and after two half-lives no more.
    assert [n for n, (a, b) in enumerate(itertools.pairwise(variances), 1) if a != b] == list(
        range(1, 2 * half_life)
    )
    # The next other value is scored by that spread, and lets it fade again.
    for restored in (model, through_state(model)):
        scores.append(restored.score_one({"a": 0.6}))
        restored.learn_one({"a": 0.6}, True)
        restored.learn_one({"a": 0.5}, False)
        assert statistic(restored, "variances", "a") < variances[-1]
    assert abs(scores[0]) < 1.0
    assert scores[0] == scores[1]
    # Only learners with a half-life keep newest values and runs.
    plain = auc.PairOGD(seed=0)
    plain.learn_one({"a": 0.5}, True)
    assert model._state.size == plain._state.size + 2
    # A column of two values has no spread that fades.
    model = auc.PairOGD(half_life=half_life, seed=0)
    learn(model, [({"a": float(t % 2 and t < 99)}, t % 2 == 0) for t in range(900)])
    assert unit(model, "a") == 2.0


def test_limits_of_a_model_file_are_those_of_the_kernels() -> None:
    """A file is read without the kernels, so it has numbers of its own."""
    assert scaling.MOST_CUTS == models_format.MOST_CUTS
    assert scaling.FIXED == models_format.INDICATOR
    assert 2 * scaling.BEGUN == models_format.MOST_KINDS


def test_no_other_column_has_cuts() -> None:
    """A rare 1, and the first value of a column of zeros: nothing is known of how far it may be."""
    model = auc.PairOGD(seed=0)
    for t in range(500):
        x = {"bit": float(t % 100 == 99), "zeros": 4000.0 if t == 499 else 0.0, "text": "a", "gap": None}
        model.learn_one(x, t % 3 == 0)
    assert model.to_state()["cuts"].tolist() == [0.0] * len(model.feature_names)
    assert unit(model, "bit") == 2.0
    assert unit(model, "zeros") == 2.0 / 4000.0


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("name", LINEAR)
def test_the_link_learns_from_the_record_as_it_is_learned(name: str, one_by_one: bool) -> None:
    """A score of a million spreads would flatten the curve for the records to come."""
    rows, y = noisy(101)
    links = []
    for wild in (True, False):
        model: Any = MAKERS[name]()
        model.score_learn_many(rows[:100], y[:100])
        last = rows[100:].copy()
        last[0, 1] = -1e9 if wild else model._column(scaling.CENTRE)[1] - 5.0 / model._column(scaling.UNIT)[1]
        if one_by_one:
            model.learn_one(dict(enumerate(last[0].tolist())), bool(y[100]))
        else:
            model.score_learn_many(last, y[100:])
        links.append(model.to_state()["link"])
    assert links[0] == pytest.approx(links[1], rel=1e-6)


# ---- kinds of columns ------------------------------------------------------------------------------------


@each
def test_sparse_columns_stay_at_0_where_they_are_absent(make: Make) -> None:
    model = make()
    rng = np.random.default_rng(0)
    for _ in range(70):
        words = rng.permutation(20)[:4].tolist()
        x = {f"word{i}": float(rng.integers(1, 6)) for i in words}
        model.learn_one({"length": 40.0 + rng.normal(), **x}, label(make, rng))
    assert centre(model, "length") == pytest.approx(40.0, abs=1.0)
    x = {"length": 41.0, "word3": 2.0}
    for i in range(20):
        assert centre(model, f"word{i}") == 0.0
        if i != 3:
            assert model.score_one({**x, f"word{i}": 0.0}) == model.score_one(x)
    mean, variance = (statistic(model, what, "word3") for what in ("means", "variances"))
    assert mean > 1.0  # of its values, not of what is absent
    assert 1.0 / unit(model, "word3") == pytest.approx(math.sqrt(variance + mean**2), rel=0.1)


@each
def test_an_absent_feature_scores_as_0(make: Make) -> None:
    model = make()
    learn(model, raw_records(make, 60))
    numeric = ["income", "share", "member", "visits", "age", "rare", "late"]
    for x, _ in raw_records(make, 30, seed=1):
        x = {name: value for name, value in x.items() if value is not None}
        absent = [name for name in numeric if name not in x]
        assert model.score_one(x) == model.score_one({**x, **dict.fromkeys(absent, 0.0)})


def only_last(**more: Any) -> auc.PairOGD:
    """A learner with one partner, the last record, and so no step where two of a class follow each other."""
    return auc.PairOGD(buffer=buffers.FIFO(1), seed=0, **more)


def test_0_and_1_count_as_they_are_until_a_third_value() -> None:
    """Spread 1, or 1/2 in a dense column that has held both; the third value lets no weight jump."""
    rng = np.random.default_rng(0)
    model = only_last()
    model.learn_one({"bit": 1.0, "b": 0.25}, True)
    assert (unit(model, "bit"), unit(model, "b")) == (1.0, 4.0)
    bits = {1.0}
    for _ in range(40):
        bit = float(rng.random() < 0.6)
        model.learn_one({"bit": bit, "b": rng.normal()}, bool((rng.random() < 0.8) == (bit > 0.0)))
        bits.add(bit)
        assert unit(model, "bit") == len(bits)
    assert bits == {0.0, 1.0}
    model.learn_one({"bit": 1.0, "b": 0.0}, True)
    before, other = model.weights["bit"], unit(model, "b")
    x = {"b": 0.5}
    gain = model.score_one({"bit": 1.0, **x}) - model.score_one({"bit": 0.0, **x})
    assert before > 0.05
    model.learn_one({"bit": 7.0, "b": 0.4}, True)
    assert unit(model, "bit") not in (1.0, 2.0)
    assert unit(model, "b") != other
    assert model.weights["bit"] == pytest.approx(before, rel=1e-12)
    assert model.score_one({"bit": 1.0, **x}) - model.score_one({"bit": 0.0, **x}) == pytest.approx(gain)


@pytest.mark.parametrize("name", ["auc.PairOGD", "FIFO", "Reservoir", "OAM", "SPAUC", "half-life"])
def test_a_third_value_moves_what_goes_with_the_weight(name: str) -> None:
    """Sums of squared gradients by the square; iterates before and their average as the weight."""
    make = MAKERS[name]
    model = make()
    rng = np.random.default_rng(1)
    for _ in range(40):
        bit = float(rng.random() < 0.6)
        model.learn_one({"bit": bit}, bool((rng.random() < 0.8) == (bit > 0.0)))
    before = model.to_state()
    scaling._change(model._state, 0, scaling.DENSE | scaling.SCALED)
    after = model.to_state()
    ratio = before["units"][0] / after["units"][0]
    assert ratio != 1.0
    assert after["w"] == pytest.approx(before["w"] * ratio)
    if isinstance(getattr(model, "learning_rate", None), str):
        assert after["previous"] == pytest.approx(before["previous"] / ratio**2)
    else:
        assert after["previous"] == pytest.approx(before["previous"] * ratio)
        assert after["averaged"] == pytest.approx(before["averaged"] * ratio)


def test_an_early_third_value_leaves_weights_of_scaled_features() -> None:
    """Two of a few values may lie close together by chance; later ones are cut, and no score jumps."""
    for n in (4, 40):
        model = only_last()
        learn(model, [({"a": 5.0 + t % 2, "b": 1.0}, t % 2 == 0) for t in range(n)])
        scaled, raw = model.scaled_weights["a"], model.weights["a"]
        assert abs(scaled) > 0.1
        model.learn_one({"a": 1e6, "b": 1.0}, False)  # as the last one: no pair, no step
        if n < 30:
            assert model.scaled_weights["a"] == scaled
        else:
            assert model.weights["a"] == pytest.approx(raw, rel=1e-12)
            assert abs(model.scaled_weights["a"]) < 2.0 * abs(scaled)


def test_in_a_sparse_column_0_is_one_of_two_values() -> None:
    """So one other value counts as 1, whatever it is; and a second one as the spread says."""
    model = only_last()
    learn(model, [({"b": float(t)}, True) for t in range(3)])
    for t in range(2):
        model.learn_one({"b": 2.0, "rare": -8.0, "word": 8.0}, t > 0)
    model.learn_one({"b": 2.0, "rare": 0.0}, True)
    assert [unit(model, name) for name in ("rare", "word")] == [1 / 8] * 2
    before = model.weights["rare"]
    model.learn_one({"b": 1.0, "rare": -8.0}, True)
    # At the 8th record most have it, and it has held 0 and -8.
    model.learn_one({"b": 1.0, "rare": -8.0}, True)
    assert (model.records, unit(model, "rare"), unit(model, "word")) == (8, 1 / 4, 1 / 8)
    assert model.weights["rare"] == pytest.approx(before)
    model.learn_one({"b": 1.0, "word": 4.0}, True)
    assert unit(model, "word") == pytest.approx(1 / math.sqrt((8.0**2 + 8.0**2 + 4.0**2) / 3))


def test_two_values_of_a_column_that_turns_sparse_are_three_with_0() -> None:
    model = only_last()
    learn(model, [({"b": 1.0, "a": 8.0 if t % 2 else 4.0}, True) for t in range(8)])
    assert (unit(model, "a"), centre(model, "a")) == (1 / 2, 6.0)
    learn(model, [({"b": 1.0}, True) for t in range(24)])
    assert centre(model, "a") == 0.0
    assert unit(model, "a") == pytest.approx(1 / math.sqrt((4.0**2 + 8.0**2) / 2))


def test_a_constant_that_some_records_lack_is_learned() -> None:
    """Absent it is 0: what it is has no spread, but tells classes apart."""
    rng = np.random.default_rng(0)
    data = [(bool(rng.random() < 0.5), rng.normal()) for _ in range(200)]
    gains = []
    for value in (1.0, 5000.0):
        model = auc.PairOGD(seed=0)
        for t, (y, b) in enumerate(data):
            model.learn_one({"b": b, **({"paid": value} if y or t % 3 == 0 else {})}, y)
        assert centre(model, "paid") == value
        gains.append(model.score_one({"b": 0.0, "paid": value}) - model.score_one({"b": 0.0}))
    assert gains[0] == pytest.approx(gains[1], rel=1e-9)
    assert gains[0] > 0.5


def test_flips_between_dense_and_sparse_keep_weights_and_ranking() -> None:
    """Looked at when the number of records reaches a power of 2."""
    rng = np.random.default_rng(0)
    model = only_last()

    def record(*, often: bool) -> Record:
        return {"b": rng.normal(), **({"a": 9.0 + rng.normal()} if often else {})}

    def at_power(records: int, *, often: bool) -> tuple[float, float]:
        """Learn up to a power of 2; the weight before its record, which has no pair, and after."""
        while model.records < records - 2:
            x = record(often=often)
            model.learn_one(x, bool(rng.random() < (0.8 if x.get("a", 9.0) > 9.0 else 0.2)))
        model.learn_one(record(often=often), True)
        low, high = {"b": 0.0, "a": 8.0}, {"b": 0.0, "a": 10.0}
        before, apart_before = model.weights["a"], model.score_one(high) - model.score_one(low)
        model.learn_one(record(often=False), True)
        assert model.records == records
        assert model.score_one(high) - model.score_one(low) == pytest.approx(apart_before, rel=1e-9)
        return before, model.weights["a"]

    before, after = at_power(16, often=True)
    assert centre(model, "a") == pytest.approx(9.0, abs=1.0)
    assert (before, unit(model, "a") > 0.5) == (pytest.approx(after, rel=1e-9), True)
    at_power(32, often=False)  # 15 of 32
    assert centre(model, "a") == 0.0
    assert 1.0 / unit(model, "a") == pytest.approx(9.0, abs=1.0)
    at_power(64, often=True)
    assert centre(model, "a") == pytest.approx(9.0, abs=1.0)
    assert unit(model, "a") > 0.5
    assert abs(model.weights["a"]) > 0.01


def test_between_powers_of_2_a_column_stays_as_it_is() -> None:
    model = only_last()
    for t in range(16):
        model.learn_one({"a": 5.0 + t % 3, "b": float(t)}, t % 2 == 0)
    for t in range(15):
        model.learn_one({"b": float(t)}, t % 2 == 0)
        assert centre(model, "a") > 5.0
    model.learn_one({"b": 1.0}, False)
    assert model.records == 32
    assert centre(model, "a") > 5.0  # half of them
    for t in range(32):
        model.learn_one({"b": float(t)}, t % 2 == 0)
    assert centre(model, "a") == 0.0


def test_a_gap_is_at_the_centre_and_has_an_indicator() -> None:
    model = auc.PairOGD(seed=0)
    rng = np.random.default_rng(0)
    for t in range(200):
        y = bool(rng.random() < 0.5)
        a = None if rng.random() < (0.5 if y else 0.1) else 50.0 + 5.0 * rng.normal()
        model.learn_one({"a": a, "b": rng.normal()}, y)
        if t == 0:
            assert model.score_one({"a": None}) == 0.0
    assert set(model.feature_names) == {"a", "a=", "b"}
    assert unit(model, "a=") == 1.0
    assert centre(model, "a=") == 0.0
    x = {"b": 0.2}
    gap, middle = model.score_one({"a": None, **x}), model.score_one({"a": centre(model, "a"), **x})
    assert gap == pytest.approx(middle + model.weights["a="], rel=1e-12)
    assert model.weights["a="] > 0.05  # gaps are of the positives
    for missing in (math.nan, np.nan, pd.NA):
        assert model.score_one({"a": missing, **x}) == gap
    assert statistic(model, "given", "a") == 200.0 > statistic(model, "values_set", "a")
    assert statistic(model, "means", "a") == pytest.approx(50.0, abs=2.0)


def test_texts_are_indicators_and_are_not_scaled() -> None:
    model = auc.PairOGD(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(300):
        y = bool(rng.random() < 0.5)
        model.learn_one({"town": str(rng.choice(["Bern", "Chur"], p=[0.8, 0.2] if y else [0.3, 0.7]))}, y)
    assert set(model.feature_names) == {"town=Bern", "town=Chur"}
    assert [unit(model, name) for name in model.feature_names] == [1.0, 1.0]
    assert [centre(model, name) for name in model.feature_names] == [0.0, 0.0]
    assert model.score_one({"town": "Bern"}) > 0.0 > model.score_one({"town": "Chur"})
    assert model.score_one({"town": "Genf"}) == model.score_one({"unknown": 1.0}) == 0.0


def test_two_features_of_a_record_cannot_have_one_name() -> None:
    """In a record as in a frame, and nothing is learned; in different records they are one feature."""
    model = auc.PairOGD(seed=0)
    learn(model, [({"a=b": float(i), "a=": 1.0 + i, "c": float(i * i)}, i % 2 == 0) for i in range(5)])
    before = frozen(model)
    bad: list[list[Record]] = [
        [{"a=b": 1.0, "a": "x"}, {"a=b": 1.0, "a": "b"}],
        [{"a=": 1.0, "a": 2.0}, {"a=": 1.0, "a": math.nan}],
        [{"d": 1.0, "d=": 1.0, "e": math.nan}, {"d": math.nan, "d=": 1.0, "e": 1.0}],
    ]
    for records in bad:
        X, y = pd.DataFrame(records), pd.Series([True, False])
        calls: list[Callable[[], Any]] = [
            lambda x=records[1]: model.score_one(x),
            lambda x=records[1]: model.learn_one(x, True),
            lambda X=X: model.score_many(X),
            lambda X=X, y=y: model.learn_many(X, y),
            lambda X=X, y=y: model.score_learn_many(X, y),
        ]
        for call in calls:
            with pytest.raises(RecordError, match="two features of the record are called"):
                call()
            assert frozen(model) == before
    model.learn_one({"a": "b", "c": 1.0}, True)
    assert set(model.feature_names) == {"a=b", "a=", "c"}


def test_a_text_that_no_file_can_have_counts_by_its_digest() -> None:
    model = auc.PairOGD(seed=0)
    learn(model, [({"a": text}, text == "b") for text in ("\ud800", "b", "\U0001f600", "b")])
    assert sorted(map(len, model.feature_names)) == [3, 3, 35]
    loaded = models.loads(models.dumps(models.export(model)))
    assert loaded.score_one({"a": "\ud800"}) == model.score_one({"a": "\ud800"}) != 0.0


def words(n: int, seed: int = 0) -> list[tuple[str, bool]]:
    """Messages of a few of many words, of which some are more frequent in one class."""
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        y = bool(rng.random() < 0.5)
        odds = np.ones(400)
        odds[:40] = 8.0 if y else 2.0
        odds[40:80] = 2.0 if y else 8.0
        out.append((" ".join(f"w{i}" for i in rng.choice(400, 12, p=odds / odds.sum())), y))
    return out


def auc_of_words(data: list[tuple[str, bool]]) -> float:
    """Of the second half, each message before it is learned."""
    model = feature_extraction.BagOfWords() | auc.PairOGD(seed=0)
    scores = []
    for text, y in data:
        scores.append(model.predict_proba_one(text).get(True, 0.5))
        model.learn_one(text, y)
    half = len(data) // 2
    return ranked(np.array(scores[half:]), [y for _, y in data[half:]])


def test_a_bag_of_words_is_learned_as_it_is() -> None:
    data = words(1500)
    assert auc_of_words(data) > 0.9
    rng = np.random.default_rng(1)
    assert auc_of_words([(text, bool(rng.random() < 0.5)) for text, _ in data]) < 0.6


# ---- one record, many, frames, and again -----------------------------------------------------------------


@each
@settings(max_examples=12)
@given(cuts=st.lists(st.integers(1, 50), min_size=1, max_size=5), seed=st.integers(0, 100))
@example(cuts=[1, 1, 35, 40], seed=0)
def test_frames_in_any_cuts_are_one_record_after_the_other(make: Make, cuts: list[int], seed: int) -> None:
    """With texts, gaps and a column that changes its kind."""
    one, many, again = make(), make(), make()
    data = raw_records(make, sum(cuts), seed=seed, whole=True)
    scores = learn(one, data)
    start = 0
    for cut in cuts:
        part = data[start : start + cut]
        X, y = pd.DataFrame([x for x, _ in part]), pd.Series([y for _, y in part])
        found = many.score_learn_many(X, y)
        assert found.tolist() == scores[start : start + cut]
        again.learn_many(X, y)
        start += cut
    assert frozen(one) == frozen(many) == frozen(again)
    rest = raw_records(make, 10, seed=seed + 1, whole=True)
    assert one.score_many(pd.DataFrame([x for x, _ in rest])).tolist() == [many.score_one(x) for x, _ in rest]


@each
@settings(max_examples=12)
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=5), seed=st.integers(0, 100))
def test_numbers_in_any_form_are_one_record_after_the_other(make: Make, cuts: list[int], seed: int) -> None:
    """Arrays, frames and batches, of numbers with gaps among them at times."""
    rng = np.random.default_rng(seed)
    rows, labels = numbers(make, sum(cuts) + 1, seed=seed)
    rows[(rng.random(rows.shape) < 0.05) & (np.arange(len(rows)) % 3 == 0)[:, None]] = math.nan
    named = [dict(zip("abc", row, strict=True)) for row in rows.tolist()]
    one, frames, batches = make(), make(), make()
    for model in (one, frames, batches):
        model.learn_one(named[0], labels[0])
    start = 1
    for cut in cuts:
        part, ys = named[start : start + cut], labels[start : start + cut]
        scores = learn(one, list(zip(part, ys, strict=True)))
        assert frames.score_learn_many(pd.DataFrame(part), pd.Series(ys)).tolist() == scores
        batch = batches.prepare_many(part, ys)
        assert scores == (learn(batches, list(zip(part, ys, strict=True))) if batch is None else batch.take())
        start += cut
        assert frozen(one) == frozen(frames) == frozen(batches)


#: Values of columns, by the types that pandas and polars have for them.
TYPED: list[tuple[list[Any], Any, Any]] = [
    ([0.5, -0.0, 7.25, math.nan], "float32", pl.Float32),
    ([3, None, 0, -5], "Int64", pl.Int32),
    ([True, None, False], "boolean", pl.Boolean),
    (["red", None, "blue", "", "x" * 150], "category", pl.Categorical),
    (["1", "1.0", "True", None], "string", pl.String),
    ([1, "1", True, None, np.bool_(True), np.float32(0.5), np.int64(7)], object, None),
]


@each
def test_columns_of_any_type_in_any_cuts(make: Make) -> None:
    """Records, frames of pandas and polars and arrays, saved and restored at times: the same bits."""
    for seed in range(4):
        check_cuts(make, seed)


def check_cuts(make: Make, seed: int) -> None:
    rng = random.Random(seed)
    columns = rng.sample(TYPED, 4)
    n = 60
    cells = [[rng.choice(values) for _ in range(n)] for values, _, _ in columns]
    labels = [label(make, np.random.default_rng(t)) for t in range(n)]
    names = ["a", "b=", "c=1", "d"]
    one = make()
    scores = learn(one, [*zip(records_of(names, cells), labels, strict=True)])
    kept = [(name, cell, *types[1:]) for name, cell, types in zip(names, cells, columns, strict=True)]
    frames: list[Any] = [pd.DataFrame({name: pd.Series(cell, dtype=kind) for name, cell, kind, _ in kept})]
    if all(kind is not None for *_, kind in kept):
        frames.append(pl.DataFrame({name: pl.Series(cell, dtype=kind) for name, cell, _, kind in kept}))
    for X in frames:
        y = (pd if isinstance(X, pd.DataFrame) else pl).Series(labels)
        many, start = make(), 0
        while start < n:
            end = min(n, start + rng.choice([1, 2, 9, 30]))
            found = many.score_learn_many(X[start:end], y[start:end])
            assert [*found] == scores[start:end]
            many, start = through_state(many), end
        assert frozen(many) == frozen(one)
        assert [*many.score_many(X)] == [one.score_one(x) for x in records_of(names, cells)]
    array, numbered = make(), make()
    array.learn_many(np.array([*zip(*cells, strict=True)], dtype=object), np.array(labels))
    learn(numbered, [*zip(records_of(range(4), cells), labels, strict=True)])
    assert frozen(array) == frozen(numbered)


def records_of(names: Sequence[Any], columns: list[list[Any]]) -> list[dict[Any, Any]]:
    return [dict(zip(names, x, strict=True)) for x in zip(*columns, strict=True)]


@each
def test_a_learner_goes_on_from_any_record(make: Make) -> None:
    """Saved and restored, pickled, begun anew: the bits of one that was never interrupted."""
    data = raw_records(make, 90)
    whole = make()
    scores = learn(whole, data)
    restored, pickled = make(), make()
    for i, (x, y) in enumerate(data):
        restored, pickled = through_state(restored), through_pickle(pickled)
        for model in (restored, pickled):
            assert model.score_one(x) == scores[i]
            model.learn_one(x, y)
    assert frozen(restored) == frozen(pickled) == frozen(whole)
    again = whole.clone()
    assert learn(again, data) == scores
    assert frozen(again) == frozen(whole)


def whole_records(make: Make) -> Stream:
    """Numbers and columns of 0 and 1, of which one varies late, and then has a third value."""
    rows, labels = numbers(make, 100)
    bits = (np.random.default_rng(0).random((100, 2)) < 0.5).astype(np.float64)
    bits[:40, 1], bits[55, 1] = 0.0, 0.5
    rows = np.concatenate((rows, bits), axis=1)
    return [(dict(zip("abcef", row, strict=True)), y) for row, y in zip(rows.tolist(), labels, strict=True)]


@each
def test_whole_records_go_on_from_any_record(make: Make) -> None:
    """While all records have all features less is counted for each; a saved state has all."""
    data = whole_records(make)
    data.insert(90, ({"a": 1.5, "d": 2.5}, data[0][1]))
    whole, restored = make(), make()
    for x, y in data:
        assert whole.score_one(x) == restored.score_one(x)
        whole.learn_one(x, y)
        restored.learn_one(x, y)
        restored = pickle.loads(pickle.dumps(through_state(restored)))
        assert frozen(restored) == frozen(whole)


@each
def test_whole_records_have_the_bits_of_one_column_after_the_other(make: Make) -> None:
    whole, apart = make(), make()
    for x, y in whole_records(make):
        apart._count_columns()
        apart._state[layout.ALIKE] = 0.0
        assert whole.score_one(x) == apart.score_one(x)
        whole.learn_one(x, y)
        apart.learn_one(x, y)
        assert frozen(apart) == frozen(whole)
    assert whole._state[layout.ALIKE] == (0.0 if whole._state[layout.KEEP] else 1.0)


def test_weights_that_were_given_go_on_from_any_record() -> None:
    """They are of raw features until there are enough values, and then weight over spread stays."""
    data = [({"a": 5.0 + x["share"], "b": x["share"]}, y) for x, y in raw_records(auc.PairOGD, 50)]
    for values in ({"a": 0.5, "b": -0.25}, {"a": 0.5, "b": -0.25, "c": 1.0}):
        whole, restored = auc.PairOGD(seed=0), auc.PairOGD(seed=0)
        for model in (whole, restored):
            model.begin_at(values, 10)
        assert whole.score_one({"a": 3.0, "b": 1.0}) == pytest.approx(1.25)
        for i, (x, y) in enumerate(data):
            assert (unit(whole, "a") == 1.0) == (i < 30)
            restored = through_state(restored)
            assert restored.score_one(x) == whole.score_one(x)
            before = whole.weights["a"]
            restored.learn_one(x, y)
            whole.learn_one(x, y)
            assert frozen(restored) == frozen(whole)
            assert whole.weights["a"] == pytest.approx(before, abs=0.1)


# ---- names without end -----------------------------------------------------------------------------------


def many_names(make: Make, n: int, seed: int = 0) -> Stream:
    rng = np.random.default_rng(seed)
    return [
        (
            {
                "a": 10.0 + rng.normal(),
                **{f"word{i}": float(rng.integers(1, 4)) for i in rng.integers(0, 5000, 4)},
                "town": f"town {rng.integers(0, 500)}",
            },
            label(make, rng),
        )
        for _ in range(n)
    ]


@each
def test_names_beyond_the_most_share_columns(make: Make) -> None:
    """One warning, no error, memory that is bounded, and the same in any form and after a pause."""
    model, restored = make(max_features=40), make(max_features=40)
    data = many_names(make, 120)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scores = learn(model, data)
    caught = [w for w in caught if w.category is UserWarning]
    assert [str(w.message).partition(":")[0] for w in caught] == [
        "there are more than max_features=40 feature names"
    ]
    assert len(model.feature_names) == 40 + 10
    assert "shared column 9" in model.feature_names
    cells = len(model._state)
    keeps_all = isinstance(getattr(model, "buffer", None), buffers.FullHistory)
    size = len(pickle.dumps(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        learn(model, many_names(make, 120, seed=1))
        assert len(model._state) == cells
        assert len(pickle.dumps(model)) < (3.0 if keeps_all else 1.1) * size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, (x, y) in enumerate(data):
            assert restored.score_one(x) == scores[i]
            restored.learn_one(x, y)
            restored = through_state(restored)
        again = make(max_features=40)
        for start in range(0, 120, 7):
            for x, y in data[start : start + 7]:
                again.learn_one(dict(reversed(x.items())), y)
            again = pickle.loads(pickle.dumps(again))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        once = make(max_features=40)
        learn(once, data)
    assert frozen(once) == frozen(restored) == frozen(again)


@each
def test_rows_of_a_frame_share_columns_as_records_do(make: Make) -> None:
    one, many = make(max_features=12), make(max_features=12)
    data = raw_records(make, 60, whole=True)
    data = [({**x, "id": f"id {i % 30}"}, y) for i, (x, y) in enumerate(data)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = learn(one, data)
        for start in range(0, 60, 13):
            part = data[start : start + 13]
            found = many.score_learn_many(pd.DataFrame([x for x, _ in part]), pd.Series([y for _, y in part]))
            assert found.tolist() == scores[start : start + 13]
    assert frozen(one) == frozen(many)
    assert one.score_many(pd.DataFrame([x for x, _ in data])).tolist() == [one.score_one(x) for x, _ in data]


@each
def test_values_that_share_a_column_are_added_up_to_the_largest(make: Make) -> None:
    model = make(max_features=1)
    x = {"a": 1.0, "b": 1e50, "c": 1e50, "d": -1e50}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for t in range(10):
            model.learn_one({**x, "a": float(t)}, label(make, np.random.default_rng(t)))
            assert math.isfinite(model.score_one(x))
    assert model.records == 10
    assert model.design(x).tolist() == [1.0, 0.0]


def test_arrays_share_columns_as_records_do() -> None:
    one, many = auc.PairOGD(seed=0, max_features=6), auc.PairOGD(seed=0, max_features=6)
    data = [({0: float(i % 7), 1: f"id {i % 20}", 2: 1.0}, i % 3 == 0) for i in range(60)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scores = learn(one, data)
        for start in range(0, 60, 13):
            part = data[start : start + 13]
            X = np.array([[*x.values()] for x, _ in part], dtype=object)
            found = many.score_learn_many(X, np.array([y for _, y in part]))
            assert found.tolist() == scores[start : start + 13]
    assert frozen(one) == frozen(many)


def test_a_feature_may_be_called_like_a_shared_column() -> None:
    """Before there are shared columns it has one of its own, and after that one of theirs."""
    model = auc.PairOGD(seed=0, max_features=4)
    data = [
        ({"shared column 0": float(i), f"w{i}": 1.0, "shared column' 0": 0.5 * i}, i % 2 == 0)
        for i in range(40)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x, y in data:
            restored = through_state(model)
            for learner in (model, restored):
                learner.learn_one(x, y)
            assert frozen(model) == frozen(restored)
    assert len(set(model.feature_names)) == 5
    assert model.feature_names[-1] == "shared column'' 0"


# ---- without scale ---------------------------------------------------------------------------------------

#: Of scores and weights of whole records, as they were before there was a scale.
DIGESTS = {
    "adagrad": "a5f2262141110411",
    "reservoir": "bc2a3b2df170674b",
    "replacement": "5a74392acb56656b",
    "classes": "111bd62cab484fdd",
    "full history": "e6a6cd0780f2a87d",
    "least squares": "74be5ca03ba3c161",
    "half-life": "e171cdfbc7bc2228",
    "OAM": "432cae7c9a793b9f",
    "SPAUC": "ffd420f9fe7fde65",
    "ranking": "ecc6d32c8fb07261",
}
PLAIN: dict[str, Make] = {
    "adagrad": lambda: auc.PairOGD(seed=0, scale=None),
    "reservoir": lambda: auc.PairOGD(
        losses.Logistic(), buffers.Reservoir(8), 0.1, l2=0.01, average=False, seed=1, scale=None
    ),
    "replacement": lambda: auc.PairOGD(
        losses.SquaredHinge(), buffers.Reservoir(8, replacement=True), None, seed=2, scale=None
    ),
    "classes": lambda: auc.PairOGD(losses.Logistic(), buffers.ClassReservoir(4), None, seed=3, scale=None),
    "full history": lambda: auc.PairOGD(losses.Logistic(), buffers.FullHistory(), None, seed=4, scale=None),
    "least squares": lambda: auc.PairOGD(losses.Square(), buffers.FullHistory(), seed=5, scale=None),
    "half-life": lambda: auc.PairOGD(losses.Logistic(), buffers.FIFO(3), None, half_life=20, scale=None),
    "OAM": lambda: auc.OAM(size=4, seed=6, scale=None),
    "SPAUC": lambda: auc.SPAUC(l2=0.01, scale=None),
    "ranking": lambda: ranking.PairOGD(
        losses.MinimumErrorEntropy(0.5), buffers.FullHistory(), seed=8, scale=None
    ),
}


@pytest.mark.parametrize("name", DIGESTS)
def test_without_scale_whole_records_have_the_bits_of_the_papers_algorithm(name: str) -> None:
    rng, model, found = random.Random(0), PLAIN[name](), []
    for _ in range(150):
        x = {f"f{i}": rng.gauss(0.0, 2.0) for i in range(5)}
        y = rng.uniform(-1, 1) if name == "ranking" else rng.random() < 0.4
        found.append(model.score_one(x))
        model.learn_one(x, y)
    values = np.array([*found, *model.weights_vector])
    assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == DIGESTS[name]
    assert model.intercept == 0.0
    assert model._statistics() == {}


def test_without_scale_a_gap_is_0() -> None:
    model = auc.PairOGD(scale=None, seed=0, learning_rate=schedules.Constant(0.1))
    learn(model, [({"a": float(t % 5)}, t % 5 > 2) for t in range(30)])
    assert model.score_one({"a": None}) == model.score_one({"a": 0.0}) == 0.0


@each
def test_without_scale_a_learner_goes_on_from_any_record(make: Make) -> None:
    """Numbers alone at first, of which a saved state has no kinds."""
    data = [(x, y) for x, y in raw_records(make, 60) if "share" in x]
    data = [({"share": x["share"]}, y) for x, y in data[:20]] + data[20:]
    whole, restored = make(scale=None), make(scale=None)
    for x, y in data:
        assert whole.score_one(x) == restored.score_one(x)
        whole.learn_one(x, y)
        restored.learn_one(x, y)
        restored = through_state(restored)
        assert frozen(restored) == frozen(whole)


@pytest.mark.parametrize("records", [33, 75, 200])
def test_values_of_whole_records_are_counted_when_a_new_name_moves_the_state(records: int) -> None:
    model = auc.PairOGD()
    for i in range(records):
        model.learn_one({"a": float(i % 7), "b": i / records}, i % 2 == 0)
    model.learn_one({"a": "x", "b": 1.0}, True)
    counts = dict(zip(model.feature_names, model._statistics()["values_set"], strict=True))
    assert (counts["a"], counts["b"]) == (records, records + 1)


@each
def test_states_after_tiny_and_far_values_are_loaded(make: Make) -> None:
    several = [2e-160], [1e-160, 2e-160], [1e-70, 2e-70, 4e-70], [1e-45, 2e-45, 4e-45]
    for records, values in itertools.product((3, 4, 30, 31, 40), several):
        rng = np.random.default_rng(0)
        model = make()
        for t in range(records):
            model.learn_one({"a": values[t % len(values)], "b": float(t % 3)}, label(make, rng, t % 3 - 1.0))
        for t, far in enumerate((1e25, 1e50, -1e50)):
            model.learn_one({"a": far, "b": float(t)}, label(make, rng, t - 1.0))
        assert frozen(through_state(model)) == frozen(model)


def test_a_column_of_tiny_values_does_not_count() -> None:
    """Its unit is 0 below a spread of 1e-50, for one, two and more values."""
    for scale, counts in ((1e-49, True), (1e-51, False), (1e-160, False)):
        for values in (1, 2, 3):
            model = auc.PairOGD(seed=0)
            for t in range(100):
                model.learn_one({"a": scale * (5.0 + 4.0 * (t % values)), "b": float(t % 3)}, t % 2 == 0)
            unit = model._column(scaling.UNIT)[model.feature_names.index("a")]
            assert (unit > 0.0) == counts


def test_a_spread_that_falls_below_the_least_has_the_same_bits_in_frames() -> None:
    """Where all features are taken at once, too."""
    values = [3e-50 * (1.0 + math.sin(7.0 * t)) / (1.0 + t / 40.0) ** 2 for t in range(600)]
    frame = pd.DataFrame({"a": values, "b": [math.cos(5.0 * t) for t in range(600)]})
    labels = pd.Series([math.cos(5.0 * t) > 0.2 for t in range(600)])
    whole, single = auc.PairOGD(seed=0), auc.PairOGD(seed=0)
    whole.learn_many(frame, labels)
    units = set()
    for x, y in zip(frame.to_dict("records"), labels.tolist(), strict=True):
        single.learn_one(x, y)
        units.add(single._column(scaling.UNIT)[0] > 0.0)
    assert units == {True, False}
    assert frozen(whole) == frozen(single)
