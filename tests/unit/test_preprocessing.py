"""Scaling by declared bounds, the projection on the ball, random features, and hashing."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import naive
import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import compose, datasets
from sklearn.metrics import roc_auc_score

from streampair import auc, metric, preprocessing
from streampair.errors import ConfigError, RecordError
from streampair.kernels import numerics
from streampair.kernels import random as random_kernels
from streampair.records.frames import FeatureTable


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(allow_nan=False, allow_infinity=False))
def test_bounds(low: float, width: float, value: float) -> None:
    high = low + width
    scale = preprocessing.Bounds({"a": (low, high)})
    out = scale.transform_one({"a": value})["a"]
    assert -1.0 <= out <= 1.0
    inside = min(max(value, low), high)
    assert out == pytest.approx(2 * (inside - low) / (high - low) - 1, abs=1e-9)
    assert scale.transform_one({"a": low})["a"] == -1.0
    assert scale.transform_one({"a": high})["a"] == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("value", [None, "three", "1e400", math.inf])
def test_what_is_no_number_passes_unchanged(value: Any) -> None:
    x = {"a": value, "b": 7.0}
    for model in (preprocessing.Bounds({"a": (0, 1)}), preprocessing.UnitBall()):
        assert model.transform_one(x) == x
        assert model.transform_one(x) is not x
    assert math.isnan(preprocessing.Bounds({"a": (0, 1)}).transform_one({"a": math.nan})["a"])


def test_features_without_bounds_and_absent_ones() -> None:
    scale = preprocessing.Bounds({"a": (0, 10), "absent": (0, 1)})
    assert scale.transform_one({"a": 5, "b": 5}) == {"a": 0.0, "b": 5}


@pytest.mark.parametrize(
    "bounds",
    [{"a": (1, 1)}, {"a": (2, 1)}, {"a": 3}, {"a": (0,)}, {"a": ("0", 1)}, {"a": (0, math.inf)},
     {"a": (math.nan, 1)}, {"a": (-1e308, 1e308)}, [("a", (0, 1))]],
    ids=str,
)  # fmt: skip
def test_bad_bounds(bounds: Any) -> None:
    with pytest.raises(ConfigError, match="bounds"):
        preprocessing.Bounds(bounds)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=8), st.floats(1e-3, 1e3))
def test_unit_ball(values: list[float], radius: float) -> None:
    x = {str(i): v for i, v in enumerate(values)}
    out = preprocessing.UnitBall(radius).transform_one(x)
    norm = math.hypot(*values)
    assert math.hypot(*out.values()) <= radius * (1 + 1e-12)
    if norm <= radius:
        assert out == x
    else:
        assert out == pytest.approx({n: v * (radius / norm) for n, v in x.items()}, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf, "1"])
def test_bad_radius(radius: Any) -> None:
    with pytest.raises(ConfigError, match="radius"):
        preprocessing.UnitBall(radius)


# ---- texts in frames ----------------------------------------------------------------------------------


MIXED = {
    "age": [30.0, None, 90.0, 120.0],
    "town": ["Bern", "Chur", None, "Bern"],
    "visits": ["3", "many", "4", None],
    "member": [True, False, True, False],
}
scalers = pytest.mark.parametrize(
    "scale",
    [preprocessing.Bounds({"age": (0, 120), "visits": (0, 10)}), preprocessing.UnitBall(2.0)],
    ids=["Bounds", "UnitBall"],
)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
@scalers
def test_texts_of_a_frame_are_those_of_its_records(scale: Any, make: Any) -> None:
    frame = make(MIXED)
    before = frame.copy() if make is pd.DataFrame else frame.clone()
    found = FeatureTable.of_cells(scale.transform_many(frame))
    records = FeatureTable.of_cells(frame).records
    assert records is not None
    assert found.records is not None
    for x, out in zip(records, found.records, strict=True):
        for name, value in scale.transform_one(x).items():
            missing = value is None or value != value
            assert (out[name] is None or math.isnan(out[name])) if missing else out[name] == value
    assert frame.equals(before)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
@scalers
def test_a_linear_learner_gets_the_texts_of_a_frame(scale: Any, make: Any) -> None:
    frame, y = make(MIXED), [True, False, True, True]
    one, many = (compose.Pipeline(scale.clone(), auc.PairOGD(seed=0)) for _ in range(2))
    many.learn_many(frame, pd.Series(y))
    for x, label in zip(FeatureTable.of_cells(frame).records or [], y, strict=True):
        one.learn_one(x, label)
    learner = many["PairOGD"]
    assert "town=Bern" in learner.feature_names
    assert learner.weights == one["PairOGD"].weights


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
@scalers
def test_a_private_learner_takes_a_frame_with_texts(scale: Any, make: Any) -> None:
    """A row with a text in a feature is a null record."""
    learner = auc.PairFTRL(1.0, 1e-4, 50, features=["age", "visits"], warmup=5, seed=1)
    learner.learn_many(scale.transform_many(make(MIXED)), pd.Series([True, False, True, True]))
    assert (learner.slots, learner.null_slots) == (4, 2)


@scalers
def test_a_library_without_mixed_columns_keeps_the_numbers(scale: Any) -> None:
    """A frame that narwhals has wrapped takes the way of other libraries."""
    frame = pd.DataFrame({"age": [30.0, 3.0], "visits": ["many", "4"]}, index=[7, 5])
    out = scale.transform_many(nw.from_native(frame))
    assert out.index.tolist() == [7, 5]
    found = FeatureTable.of_cells(out).records
    assert found is not None
    assert found[0]["visits"] is None
    assert found[1] == scale.transform_one({"age": 3.0, "visits": "4"})


def test_arrays_with_texts() -> None:
    X = np.array([[30.0, "Bern"], [60.0, "3"], [None, [1.0]]], dtype=object)
    out = preprocessing.Bounds({0: (0, 120), 1: (0, 6)}).transform_many(X)
    assert out.tolist() == [[-0.5, "Bern"], [0.0, 0.0], [None, [1.0]]]
    assert preprocessing.UnitBall().transform_many(X[1:2]).dtype == np.float64


# ---- random features -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(-1e6, 1e6) | st.integers(-600_000, 600_000).map(lambda i: i * math.pi / 4))
def test_sine_and_cosine(angle: float) -> None:
    s, c = numerics.sin_cos(angle)
    assert abs(s - math.sin(angle)) <= 3e-16
    assert abs(c - math.cos(angle)) <= 3e-16


@pytest.mark.parametrize("angle", [1e7, -1e18, 1.7e308])
def test_sine_and_cosine_of_huge_angles_stay_on_the_circle(angle: float) -> None:
    s, c = numerics.sin_cos(angle)
    assert s * s + c * c == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("angle", [math.nan, math.inf, -math.inf])
def test_what_is_no_angle_has_no_sine(angle: float) -> None:
    assert all(map(math.isnan, numerics.sin_cos(angle)))


def test_public_normals_are_those_of_the_reference() -> None:
    out = np.empty(2000)
    random_kernels.normals_from_seed(7, out)
    # The reference's square root and constant round differently.
    assert out.tolist() == pytest.approx(naive.normals_from_seed(7, 2000), rel=1e-14)
    assert abs(out.mean()) < 6 / math.sqrt(2000)
    assert abs((out**2).mean() - 1) < 6 * math.sqrt(2 / 2000)


@settings(deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6), st.integers(1, 6), st.integers(0, 2**60))
def test_random_features_are_those_of_the_reference(x: list[float], pairs: int, seed: int) -> None:
    frequencies = np.empty((pairs, len(x)))
    random_kernels.normals_from_seed(seed, frequencies.reshape(-1))
    out = np.empty((1, 2 * pairs))
    random_kernels.fourier_rows(np.array([x]), frequencies, out)
    assert out[0].tolist() == pytest.approx(naive.fourier(x, frequencies.tolist()), abs=1e-11)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.floats(allow_nan=False, allow_infinity=False), min_size=1),
    st.integers(1, 40),
)
def test_random_features_have_norm_one_in_any_order(x: dict[str, float], pairs: int) -> None:
    transform = preprocessing.RandomFourier(2 * pairs, gamma=0.5, seed=3)
    out = transform.transform_one(x)
    if any(math.isnan(v) for v in out.values()):  # a projection overflowed
        assert max(map(abs, x.values())) > 1e300
        return
    assert math.hypot(*out.values()) == pytest.approx(1.0, abs=1e-13)
    assert transform.transform_one(dict(reversed(x.items()))) == out


def test_random_features_approximate_the_kernel() -> None:
    """The error of the inner product is at most 1 / sqrt(m) (Sutherland and Schneider 2015); 6 times that."""
    rng = np.random.default_rng(0)
    for gamma in (0.1, 1.0):
        transform = preprocessing.RandomFourier(2000, gamma=gamma, seed=1)
        for _ in range(20):
            a, b = rng.normal(size=(2, 3))
            za, zb = (np.array(list(transform.transform_one(dict(enumerate(v))).values())) for v in (a, b))
            assert abs(za @ zb - math.exp(-gamma * ((a - b) ** 2).sum())) < 6 / math.sqrt(1000)


def test_random_features_depend_on_seed_names_and_gamma_alone() -> None:
    x = {"a": 0.3, "b": -0.4}
    one = preprocessing.RandomFourier(8, seed=1)
    used = preprocessing.RandomFourier(8, seed=1)
    for i in range(30):  # more schemas than are kept ready
        used.transform_one({f"other{i}": 1.0, "a": 2.0})
    assert used.transform_one(x) == one.transform_one(x)
    assert pickle.loads(pickle.dumps(used)).transform_one(x) == one.transform_one(x)
    assert copy.deepcopy(used).transform_one(x) == one.transform_one(x)
    for other in (preprocessing.RandomFourier(8, seed=2), preprocessing.RandomFourier(8, gamma=2.0, seed=1)):
        assert other.transform_one(x) != one.transform_one(x)
    assert one.transform_one({1: 0.5}) != one.transform_one({"1": 0.5})


def test_declared_features() -> None:
    transform = preprocessing.RandomFourier(6, seed=1, features=["b", "a"])
    free = preprocessing.RandomFourier(6, seed=1)
    assert transform.transform_one({"a": 1.0, "b": 2.0, "c": 9.0}) == free.transform_one({"a": 1.0, "b": 2.0})
    assert transform.transform_one({"a": 1.0}) == transform.transform_one({"a": 1.0, "b": 0.0})
    assert all(math.isnan(v) for v in transform.transform_one({"c": 1.0}).values())


@pytest.mark.parametrize("x", [{}, {"a": None}, {"a": "one"}, {"a": math.nan}, {"a": 1.0, "b": math.inf}])
@pytest.mark.parametrize("transform", [preprocessing.RandomFourier(6), preprocessing.Hashing(6)])
def test_what_cannot_be_mapped_is_refused_by_the_learner(transform: Any, x: dict[str, Any]) -> None:
    if isinstance(transform, preprocessing.Hashing) and x == {"a": "one"}:
        return  # text is a category
    out = transform.transform_one(x)
    assert len(out) == 6
    assert all(map(math.isnan, out.values()))
    with pytest.raises(RecordError):
        metric.PairOGD().learn_one(out, True)
    linear = auc.PairOGD()
    linear.learn_one(out, True)
    assert linear.feature_names[1] == f"{linear.feature_names[0]}="  # a missing value
    private = auc.PairFTRL(horizon=5, warmup=0)
    private.learn_one(out, True)
    assert private.null_slots == 1


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize(
    "transform",
    [
        preprocessing.RandomFourier(10, seed=1),
        preprocessing.RandomFourier(10, seed=1, features=["b", "c"]),
        preprocessing.Hashing(5, seed=1),
    ],
)
def test_frames_give_the_same_bits(transform: Any, make: Any) -> None:
    columns = {"b": [0.5, -1.25, math.nan, 3.0], "a": [1.0, 2.0, 3.0, 1e9]}
    out = transform.transform_many(make(columns))
    assert type(out) is make
    for i in range(4):
        expected = transform.transform_one({name: column[i] for name, column in columns.items()})
        assert list(out.columns) == list(expected)
        np.testing.assert_array_equal(np.asarray(out)[i], list(expected.values()))
    assert len(transform.transform_many(make(columns)[:0])) == 0


@pytest.mark.parametrize(
    "options",
    [{"components": 3}, {"components": 0}, {"components": True}, {"components": 2.0}, {"gamma": 0.0},
     {"gamma": math.inf}, {"gamma": math.nan}, {"gamma": "1"}, {"seed": None}, {"seed": 1.5},
     {"seed": 2**127}, {"features": []}, {"features": "ab"}, {"features": ["a", "a"]}],
    ids=str,
)  # fmt: skip
def test_bad_settings_of_random_features(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        preprocessing.RandomFourier(**options)


@pytest.mark.parametrize("options", [{"size": 0}, {"size": True}, {"seed": None}], ids=str)
def test_bad_settings_of_hashing(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        preprocessing.Hashing(**options)


def test_hashing() -> None:
    hashing = preprocessing.Hashing(64, seed=5)
    x = {"amount": 0.5, "country": "NL", "card=": "x"}
    out = hashing.transform_one(x)
    assert sorted(abs(v) for v in out.values() if v) == [0.5, 1.0, 1.0]
    assert hashing.transform_one(dict(reversed(x.items()))) == out
    assert hashing.transform_one({**x, "country": "BE"}) != out
    # A name with "=" in it is not another name with its text.
    assert hashing.transform_one({"card": "=x"}) != hashing.transform_one({"card=": "x"})
    frame = hashing.transform_many(pd.DataFrame([x]))
    assert frame.iloc[0].to_dict() == out


def test_hashing_keeps_inner_products_on_average() -> None:
    """Over the hash: the mean of <h(x), h(x')> is <x, x'>, its deviation at most sqrt(2 / size) |x| |x'|."""
    a = {f"f{i}": 0.1 * i for i in range(10)}
    b = {f"f{i}": 1.0 - 0.1 * i for i in range(10)}
    va, vb = np.array(list(a.values())), np.array(list(b.values()))
    products = []
    for seed in range(400):
        hashing = preprocessing.Hashing(32, seed=seed)
        products.append(
            np.dot(list(hashing.transform_one(a).values()), list(hashing.transform_one(b).values()))
        )
    deviation = math.sqrt(2 / 32) * np.linalg.norm(va) * np.linalg.norm(vb)
    assert abs(np.mean(products) - va @ vb) < 5 * deviation / math.sqrt(400)


@pytest.mark.parametrize("horizon", [None, 4240])
def test_a_private_learner_on_random_features_bends_around_bananas(horizon: int | None) -> None:
    """At epsilon 1 with every other parameter at its default. Measured .94 with a horizon, .92 without."""
    data = list(datasets.Bananas())
    frame = pd.DataFrame([x for x, _ in data])
    labels = pd.Series([y for _, y in data])
    random = preprocessing.RandomFourier(components=40, gamma=1.0, seed=0)
    scores: dict[str, list[float]] = {"linear": [], "random": []}
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(data))
        train, test = order[:4240], order[4240:]
        for name, rows in (("linear", frame), ("random", random.transform_many(frame))):
            model = auc.PairFTRL(epsilon=1, horizon=horizon, seed=seed)
            model.learn_many(rows.iloc[train], labels.iloc[train])
            scores[name].append(roc_auc_score(labels.iloc[test], model.score_many(rows.iloc[test])))
    assert np.mean(scores["linear"]) < 0.6
    assert np.mean(scores["random"]) > 0.87
    assert min(scores["random"]) > 0.85


def test_random_features_in_a_pipeline() -> None:
    model = compose.Pipeline(
        preprocessing.Bounds({"a": (0, 10)}),
        preprocessing.RandomFourier(8),
        auc.PairFTRL(horizon=9, warmup=0),
    )
    for i in range(9):
        model.learn_one({"a": float(i), "b": 0.1}, i % 2 == 0)
        assert 0.0 <= model.predict_proba_one({"a": 3.0, "b": 0.2})[True] <= 1.0
    assert model[-1].null_slots == 0
