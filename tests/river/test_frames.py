"""Mini-batches: the same bits as one record at a time, on pandas and polars."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import polars as pl
import polars.testing
import pytest
from harness.support import in_one_case
from hypothesis import example, given, settings
from hypothesis import strategies as st
from river import datasets

from streampair import auc, buffers, losses, metric, preprocessing
from streampair.errors import RecordError
from streampair.kernels import ogd
from streampair.records.frames import FeatureTable, label_values, open_frame

PHISHING = list(datasets.Phishing().take(120))
BACKENDS = [pd, pl]


def frozen(model: Any) -> bytes:
    """All that was learned; the name of the label series is only for naming predictions."""
    return pickle.dumps({**model.to_state(), "y_name": None})


def frame(backend: Any, xs: list[dict[str, Any]]) -> Any:
    return backend.DataFrame(xs)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
@pytest.mark.parametrize(
    "buffer", [buffers.FIFO(1), buffers.FIFO(5), buffers.Reservoir(7), buffers.Reservoir(7, True)], ids=str
)
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_learn_many_is_learn_one(backend: Any, buffer: buffers.Buffer, cuts: list[int], seed: int) -> None:
    one = auc.PairOGD(loss=losses.Logistic(), buffer=buffer, l2=0.01, seed=seed)
    many = one.clone()
    start = 0
    for cut in cuts:
        batch = PHISHING[start : start + cut]
        start += cut
        if not batch:
            break
        for x, y in batch:
            one.learn_one(x, y)
        many.learn_many(frame(backend, [x for x, _ in batch]), backend.Series([y for _, y in batch]))
        assert frozen(one) == frozen(many)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
def test_columns_in_any_order_and_coming_and_going(backend: Any) -> None:
    one, many = auc.PairOGD(seed=0), auc.PairOGD(seed=0)
    names = list(PHISHING[0][0])
    subsets = [names[:4], names[::-1], names[4:], names[:1], [*names[5:], *names[:5]]]
    for i, subset in enumerate(subsets):
        batch = [({n: x[n] for n in subset}, y) for x, y in PHISHING[20 * i : 20 * i + 20]]
        for x, y in batch:
            one.learn_one(x, y)
        many.learn_many(frame(backend, [x for x, _ in batch]), backend.Series([y for _, y in batch]))
        assert frozen(one) == frozen(many)
        X = frame(backend, [x for x, _ in batch])
        assert list(many.score_many(X)) == [one.score_one(x) for x, _ in batch]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
@pytest.mark.parametrize("positive", [True, False])
def test_predictions(backend: Any, positive: bool) -> None:
    model = auc.PairOGD(positive=positive)
    X = frame(backend, [x for x, _ in PHISHING])
    model.learn_many(
        X,
        backend.Series(
            name="is_phishing", **{"data" if backend is pd else "values": [y for _, y in PHISHING]}
        ),
    )
    before = frozen(model)
    probabilities = model.predict_proba_many(X)
    labels = model.predict_many(X)
    assert isinstance(probabilities, backend.DataFrame)
    assert isinstance(labels, backend.Series)
    assert labels.name == "is_phishing"
    one = [model.predict_proba_one(x) for x, _ in PHISHING]
    for key in (False, True):
        column = probabilities[key if backend is pd else str(key)]
        assert list(column) == [p[key] for p in one]
    assert list(labels) == [model.predict_one(x) for x, _ in PHISHING]
    assert frozen(model) == before


def test_the_pandas_index_is_kept() -> None:
    model = auc.PairOGD()
    X = pd.DataFrame([x for x, _ in PHISHING[:5]], index=list("vwxyz"))
    model.learn_many(X, pd.Series([y for _, y in PHISHING[:5]]))
    for out in (model.predict_many(X), model.predict_proba_many(X), model.score_many(X)):
        assert list(out.index) == list("vwxyz")


def test_one_kernel_call_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = ogd.ogd_learn_many

    def counting(*args: Any) -> int:
        calls.append(len(args[1]))
        return real(*args)

    monkeypatch.setattr(ogd, "ogd_learn_many", counting)
    model = auc.PairOGD()
    model.learn_many(pd.DataFrame([x for x, _ in PHISHING]), pd.Series([y for _, y in PHISHING]))
    assert calls == [120]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
@pytest.mark.parametrize("positive", [True, "fraud", 2])
def test_labels_of_any_kind(backend: Any, positive: Any) -> None:
    other = {True: False, "fraud": "fine", 2: 7}[positive]
    one, many = auc.PairOGD(positive=positive, seed=0), auc.PairOGD(positive=positive, seed=0)
    labels = [positive if y else other for _, y in PHISHING]
    for (x, _), y in zip(PHISHING, labels, strict=True):
        one.learn_one(x, y)
    many.learn_many(frame(backend, [x for x, _ in PHISHING]), backend.Series(labels))
    assert frozen(one) == frozen(many)


def _bad(backend: Any, column: list[Any]) -> Any:
    good = [0.5] * len(column)
    if backend is pl:
        return pl.DataFrame({"a": good, "b": pl.Series(column, strict=False, dtype=_dtype(column))})
    return pd.DataFrame({"a": good, "b": column})


def _dtype(column: list[Any]) -> Any:
    return pl.String if any(isinstance(v, str) for v in column) else pl.Float64


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
@in_one_case(
    ("column", "message"),
    [
        ([1.0, 2.0, math.inf], "feature 'b' in row 2 is infinite"),
        ([1.0, 2e50, 1.0], "feature 'b' in row 1 is 2e+50, beyond the limit"),
        ([1.0, math.nan, math.inf], "feature 'b' in row 2 is infinite"),
    ],
)
@pytest.mark.parametrize("state", ["fresh", "known", "new"])
def test_bad_cells_change_nothing(backend: Any, column: list[Any], message: str, state: str) -> None:
    model = auc.PairOGD()
    if state != "fresh":
        for t in range(5):
            model.learn_one({"a": t, "b": -t} if state == "known" else {"a": t}, t % 2 == 0)
    before = frozen(model)
    X = _bad(backend, column)
    for call in (
        lambda: model.learn_many(X, backend.Series([True, False, True])),
        lambda: model.predict_many(X),
        lambda: model.predict_proba_many(X),
        lambda: model.score_many(X),
    ):
        with pytest.raises(RecordError) as caught:
            call()
        assert message in str(caught.value)
        assert frozen(model) == before


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
@in_one_case(
    ("column", "message"),
    [
        ([1.0, math.nan, 2.0], "feature 'b' in row 1 is NaN"),
        ([1.0, None, 2.0], "feature 'b' in row 1 is NaN"),
        (["1", "2", "3"], "feature 'b' in row 0 is text: '1'"),
    ],
)
def test_what_is_no_number_is_refused_by_a_metric(backend: Any, column: list[Any], message: str) -> None:
    model = metric.PairOGD()
    model.learn_one({"a": 1.0}, True)
    before, X = frozen(model), _bad(backend, column)
    for call in (
        lambda: model.learn_many(X, backend.Series([True, False, True])),
        lambda: model.transform_many(X),
    ):
        with pytest.raises(RecordError) as caught:
            call()
        assert message in str(caught.value)
        assert frozen(model) == before


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
@in_one_case(
    "column",
    [
        [1.0, math.nan, 2.0, 2.0],
        [1.0, None, 2.0, None],
        ["1", "2", "3", "1"],
        ["red", None, "blue", "red"],
        [None, None, None, None],
    ],
)
@pytest.mark.parametrize("state", ["fresh", "known", "new"])
def test_gaps_and_texts_in_a_frame_are_those_of_records(backend: Any, column: list[Any], state: str) -> None:
    one = auc.PairOGD(seed=1)
    if state != "fresh":
        for t in range(5):
            one.learn_one({"a": t, "b": -t} if state == "known" else {"a": t}, t % 2 == 0)
    X, y = _bad(backend, column), [True, False, True, False]
    many, scored = one.clone(include_attributes=True), one.clone(include_attributes=True)
    scores = []
    for b, label in zip(column, y, strict=True):
        scores.append(one.score_one({"a": 0.5, "b": b}))
        one.learn_one({"a": 0.5, "b": b}, label)
    many.learn_many(X, backend.Series(y))
    assert list(scored.score_learn_many(X, backend.Series(y))) == scores
    assert frozen(one) == frozen(many) == frozen(scored)
    assert list(many.score_many(X)) == [one.score_one({"a": 0.5, "b": b}) for b in column]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
def test_categories_and_nullable_types_are_texts_and_gaps(backend: Any) -> None:
    kinds, flags, counts = ["red", "blue", None, "red"], [True, None, False, True], [1, None, 3, 2]
    if backend is pd:
        X = pd.DataFrame(
            {
                "kind": pd.Series(kinds, dtype="category"),
                "flag": pd.array(flags, dtype="boolean"),
                "count": pd.array(counts, dtype="Int64"),
            }
        )
    else:
        X = pl.DataFrame({"kind": pl.Series(kinds, dtype=pl.Categorical), "flag": flags, "count": counts})
    y = [True, False, True, False]
    one, many = auc.PairOGD(seed=0), auc.PairOGD(seed=0)
    for kind, flag, count, label in zip(kinds, flags, counts, y, strict=True):
        one.learn_one({"kind": kind, "flag": flag, "count": count}, label)
    many.learn_many(X, backend.Series(y))
    assert frozen(one) == frozen(many)
    texts = {"kind", "kind=red", "kind=blue", "kind="}
    assert {*many.feature_names} == texts | {"flag", "flag=", "count", "count="}


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
def test_bad_labels_and_shapes_change_nothing(backend: Any) -> None:
    model = auc.PairOGD()
    model.learn_one({"a": 1.0}, True)
    before = frozen(model)
    X = frame(backend, [{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4.0}])
    with pytest.raises(RecordError, match="in row 1, the label is"):
        model.learn_many(X, backend.Series([True, None]))
    with pytest.raises(RecordError, match="2 rows and 3 labels"):
        model.learn_many(X, backend.Series([True, False, True]))
    with pytest.raises(RecordError, match="no columns"):
        model.learn_many(backend.DataFrame(), backend.Series([], dtype=None))
    assert frozen(model) == before
    model.learn_many(X[:0], backend.Series([True])[:0])
    assert frozen(model) == before
    assert len(model.predict_many(X[:0])) == 0


def test_pandas_in_its_other_types() -> None:
    X = pd.DataFrame(
        {
            "nullable": pd.array([1, 2, 3], dtype="Int64"),
            "flag": [True, False, True],
            "object": pd.Series([1, 2.5, True], dtype=object),
            "small": np.array([1, 2, 3], dtype=np.float32),
        }
    )
    one, many = auc.PairOGD(seed=0), auc.PairOGD(seed=0)
    for row, y in zip(X.to_dict("records"), [True, False, True], strict=True):
        one.learn_one(row, y)
    many.learn_many(X, pd.Series([True, False, True]))
    assert frozen(one) == frozen(many)
    missing = X.assign(nullable=pd.array([1, None, 3], dtype="Int64"))
    for row, y in zip(missing.to_dict("records"), [True, False, True], strict=True):
        one.learn_one(row, y)
    many.learn_many(missing, pd.Series([True, False, True]))
    assert frozen(one) == frozen(many)


def test_columns_that_are_not_text() -> None:
    X = pd.DataFrame(np.arange(12.0).reshape(4, 3))
    y = pd.Series([True, False, True, False])
    one, many = auc.PairOGD(seed=0), auc.PairOGD(seed=0)
    for row, label in zip(X.to_dict("records"), y, strict=True):
        one.learn_one(row, label)
    many.learn_many(X, y)
    assert frozen(one) == frozen(many)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
def test_transformers(backend: Any) -> None:
    xs = [{"a": 3.0, "b": 4.0}, {"a": -30.0, "b": 0.25}, {"a": 0.0, "b": 0.0}]
    for model in (preprocessing.Bounds({"a": (-10, 10)}), preprocessing.UnitBall(0.5)):
        out = model.transform_many(frame(backend, xs))
        assert isinstance(out, backend.DataFrame)
        rows = out.to_dict("records") if backend is pd else out.to_dicts()
        for row, x in zip(rows, xs, strict=True):
            assert row == pytest.approx(model.transform_one(x), rel=1e-15)


# ---- arrays ------------------------------------------------------------------------------------------------


def _arrays(n: int = 120, d: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, X[:, 0] + rng.normal(size=n) > 0


@pytest.mark.parametrize("labels", ["bool", "int", "float", "text"])
@pytest.mark.parametrize("make", [np.asarray, np.asfortranarray, lambda X: X[:, ::-1][:, ::-1]])
def test_arrays_are_records_with_numbers_as_names(labels: str, make: Any) -> None:
    X, positive = _arrays()
    y = {"bool": positive, "int": positive.astype(np.int8), "float": positive * 1.0}.get(
        labels, np.where(positive, "yes", "no")
    )
    model = auc.PairOGD(seed=0, positive="yes" if labels == "text" else 1)
    one, many, framed = model.clone(), model.clone(), model.clone()
    rows = make(X)
    rows.flags.writeable = False
    many.learn_many(rows[:70], y[:70])
    many.learn_many(rows[70:], y[70:])
    framed.learn_many(pd.DataFrame(X), pd.Series(y))
    for row, label in zip(X.tolist(), y.tolist(), strict=True):
        one.learn_one(dict(enumerate(row)), label)
    assert frozen(one) == frozen(many) == frozen(framed)
    assert many.feature_names == tuple(range(12))  # so nothing has to be put in order
    scores = many.score_many(rows)
    assert scores.tolist() == [one.score_one(dict(enumerate(row))) for row in X.tolist()]
    p = many.predict_proba_many(rows)
    low = "no" if labels == "text" else 0
    assert many.predict_many(rows).tolist() == [model.positive if q > 0.5 else low for q in p[:, 1]]
    assert p.shape == (120, 2)
    assert p[:, 1].tolist() == [
        one.predict_proba_one(dict(enumerate(row)))[model.positive] for row in X.tolist()
    ]
    assert (p[:, 0] == 1.0 - p[:, 1]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, bool, object])
def test_arrays_of_other_types(dtype: Any) -> None:
    X, y = _arrays(40, 3)
    X = np.abs(X * 10).astype(dtype)
    one, many = auc.PairOGD(seed=0), auc.PairOGD(seed=0)
    many.learn_many(X, y)
    for row, label in zip(X.astype(float).tolist(), y, strict=True):
        one.learn_one(dict(enumerate(row)), label)
    assert frozen(one) == frozen(many)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.ones(3), np.ones(3, bool), r"shape \(3,\)"),
        (np.ones((3, 0)), np.ones(3, bool), "no columns"),
        (np.ones((3, 2)), np.ones(2, bool), "3 rows and 2 labels"),
        (np.ones((3, 2)), np.ones((3, 1), bool), r"labels has shape \(3, 1\)"),
        (np.array([[1.0, math.inf]]), np.ones(1, bool), "feature 1 in row 0 is infinite"),
        (np.array([[1.0, [2.0]]], dtype=object), np.ones(1, bool), "feature 1 in row 0 is not a number"),
        (np.array([[1.0, 10**400]], dtype=object), np.ones(1, bool), "feature 1 in row 0 is an integer"),
        (np.ones((2, 2)), np.array([1.0, math.nan]), "in row 1, the label is nan"),
        (np.ones((2, 2)), np.array([True, None]), "in row 1, the label is None"),
    ],
)
def test_bad_arrays_change_nothing(X: np.ndarray, y: np.ndarray, message: str) -> None:
    model = auc.PairOGD()
    model.learn_one({0: 1.0}, True)
    before = frozen(model)
    with pytest.raises(RecordError, match=message):
        model.learn_many(X, y)
    assert frozen(model) == before


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.array([[1.0, math.nan]]), "feature 1 in row 0 is NaN"),
        (np.array([[1.0, "x"]], dtype=object), "feature 1 in row 0 is text"),
        (np.array([["1", "2"]]), "feature 0 in row 0 is text"),
    ],
)
def test_gaps_and_texts_in_an_array_are_those_of_records(X: np.ndarray, message: str) -> None:
    one, many, other = auc.PairOGD(seed=0), auc.PairOGD(seed=0), metric.PairOGD()
    one.learn_one(dict(enumerate(X[0].tolist())), True)
    many.learn_many(X, np.ones(1, bool))
    assert frozen(one) == frozen(many)
    with pytest.raises(RecordError, match=message):
        other.learn_many(X, np.ones(1, bool))
    assert not other.records


def test_an_array_cannot_meet_names() -> None:
    X, y = _arrays(20, 3)
    model = auc.PairOGD()
    model.learn_one({"a": 1.0}, True)
    before = frozen(model)
    for call in (lambda: model.learn_many(X, y), lambda: model.score_many(X), lambda: model.predict_many(X)):
        with pytest.raises(RecordError, match=r"names such as 'a'.*data frame"):
            call()
    assert frozen(model) == before
    with pytest.raises(RecordError, match="give a data frame"):
        preprocessing.RandomFourier(4, 1.0, 0).transform_many(X)
    assert preprocessing.UnitBall().transform_many(X).shape == X.shape


def test_labels_beyond_what_floats_tell_apart() -> None:
    big = 2**53
    one, many = auc.PairOGD(seed=0, positive=float(big)), auc.PairOGD(seed=0, positive=float(big))
    y = np.array([big, big + 1, big, 3])
    X = np.arange(8.0).reshape(4, 2)
    many.learn_many(X, y)
    for row, label in zip(X.tolist(), y.tolist(), strict=True):
        one.learn_one(dict(enumerate(row)), label)
    assert frozen(one) == frozen(many)


def test_two_columns_of_one_name() -> None:
    model = auc.PairOGD()
    X = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["a", "a"])
    with pytest.raises(RecordError, match="two columns of the same name"):
        model.learn_many(X, pd.Series([True, False]))
    assert model.weights == {}


# ---- pandas and polars in their own words, against the way by narwhals -------------------------------------
#
# A frame that narwhals has wrapped takes the general way: it is the counterpart of the same frame as it is.

FLOATS = st.floats(width=64) | st.integers(-3, 3).map(float)
SMALL_FLOATS = st.floats(width=32)
DECIMALS = st.decimals(-1000, 1000, places=3)
SPANS = st.timedeltas(timedelta(-9), timedelta(9))
TIMES = st.datetimes(datetime(1990, 1, 1), datetime(2030, 1, 1))
PANDAS_COLUMNS: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "float64": (FLOATS, np.float64),
    "float32": (SMALL_FLOATS, np.float32),
    "float16": (st.floats(width=16), np.float16),
    "int64": (st.integers(-(2**63), 2**63 - 1), np.int64),
    "uint64": (st.integers(0, 2**64 - 1), np.uint64),
    "int8": (st.integers(-128, 127), np.int8),
    "bool": (st.booleans(), np.bool_),
    "Int64": (st.integers(-(2**63), 2**63 - 1) | st.none(), "Int64"),
    "UInt8": (st.integers(0, 255), "UInt8"),
    "Float32": (SMALL_FLOATS | st.none(), "Float32"),
    "boolean": (st.booleans() | st.none(), "boolean"),
    "sparse": (FLOATS, "Sparse[float64]"),
    "object": (FLOATS | st.booleans() | st.integers(-(2**70), 2**70) | st.none() | DECIMALS, object),
    "text": (st.text("12a", max_size=2) | st.none(), "str"),
    "numeral": (st.sampled_from(["1", "2.5"]), object),
    "category": (st.integers(0, 2), "category"),
    "names": (st.sampled_from(["a", "b"]) | st.none(), "category"),
    "time": (TIMES, "datetime64[us]"),
    "span": (SPANS, "timedelta64[us]"),
    "complex": (st.complex_numbers(max_magnitude=1e9), np.complex128),
}
if find_spec("pyarrow") is not None:
    PANDAS_COLUMNS |= {
        "int64[pyarrow]": (st.integers(-(2**63), 2**63 - 1) | st.none(), "int64[pyarrow]"),
        "double[pyarrow]": (FLOATS | st.none(), "double[pyarrow]"),
        "bool[pyarrow]": (st.booleans() | st.none(), "bool[pyarrow]"),
        "string[pyarrow]": (st.text("12a", max_size=2) | st.none(), "string[pyarrow]"),
    }
POLARS_COLUMNS: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "Float64": (FLOATS, pl.Float64),
    "Float64 with nulls": (FLOATS | st.none(), pl.Float64),
    "Float32": (SMALL_FLOATS | st.none(), pl.Float32),
    "Int64": (st.integers(-(2**63), 2**63 - 1) | st.none(), pl.Int64),
    "UInt64": (st.integers(0, 2**64 - 1), pl.UInt64),
    "Int8": (st.integers(-128, 127), pl.Int8),
    "Int128": (st.integers(-(2**70), 2**70), pl.Int128),
    "Boolean": (st.booleans() | st.none(), pl.Boolean),
    "String": (st.text("12a", max_size=2) | st.none(), pl.String),
    "Categorical": (st.sampled_from(["a", "b"]) | st.none(), pl.Categorical),
    "Decimal": (DECIMALS | st.none(), pl.Decimal(20, 3)),
    "Datetime": (TIMES, pl.Datetime("us")),
    "Date": (st.dates(), pl.Date),
    "Duration": (SPANS, pl.Duration("us")),
    "Null": (st.none(), pl.Null),
    "Object": (st.integers(0, 3), pl.Object),
}
NUMBERS = ["float64", "float32", "int64", "uint64", "int8", "bool", "Int64", "Float32", "sparse"]
POLARS_NUMBERS = ["Float64", "Float64 with nulls", "Float32", "Int64", "UInt64", "Int8", "Boolean"]
INDICES = {
    "range": lambda n: pd.RangeIndex(n),
    "text": lambda n: pd.Index([f"i{i}" for i in range(n)], name="row"),
    "repeated": lambda n: pd.Index([0] * n),
    "times": lambda n: pd.date_range("2026-01-01", periods=n, freq="D"),
    "levels": lambda n: pd.MultiIndex.from_arrays([range(n), ["x"] * n], names=["a", "b"]),
}
NAMES = {
    "text": lambda d: [f"c{j}" for j in range(d)],
    "numbers": lambda d: list(range(d)),
    "mixed": lambda d: [0, "0", 2.5, ("t", 1), True, None, "x"][:d],
    "levels": lambda d: pd.MultiIndex.from_arrays([["u"] * d, range(d)]),
    "twice": lambda d: ["a", "b", "a", *range(d)][:d],
    "none": lambda d: [f"c{j}" for j in range(d)],
}


def _column(draw: st.DrawFn, kinds: dict[str, Any], usual: list[str], n: int) -> tuple[list[Any], Any]:
    """Cells and type of a column: in most frames of numbers, so that the frames differ in how they begin."""
    values, dtype = kinds[draw(st.sampled_from(usual) | st.sampled_from(list(kinds)))]
    return draw(st.lists(values, min_size=n, max_size=n)), dtype


@st.composite
def pandas_frames(draw: st.DrawFn) -> pd.DataFrame:
    n, d = draw(st.integers(0, 6)), draw(st.integers(0, 5))
    index = INDICES[draw(st.sampled_from(list(INDICES)))](n)
    if draw(st.booleans()):  # one array, in either order
        kind = draw(st.sampled_from(["float64", "float32", "int64", "bool"]))
        values, dtype = PANDAS_COLUMNS[kind]
        cells = draw(st.lists(values, min_size=n * d, max_size=n * d))
        array = np.array(cells, dtype=dtype).reshape(n, d)
        out = pd.DataFrame(np.asfortranarray(array) if draw(st.booleans()) else array, index=index)
    else:
        columns = [_column(draw, PANDAS_COLUMNS, NUMBERS, n) for _ in range(d)]
        out = pd.DataFrame(
            {j: pd.Series(cells, dtype=dtype) for j, (cells, dtype) in enumerate(columns)}
        ).set_axis(index)
    out.columns = NAMES[draw(st.sampled_from(list(NAMES)))](d)
    part = draw(st.sampled_from(["all", "rows", "columns", "reversed"]))
    if part == "rows":
        return out.iloc[1::2]
    return out if part == "all" else out.iloc[:, ::-1] if part == "columns" else out.iloc[::-1]


@st.composite
def polars_frames(draw: st.DrawFn) -> pl.DataFrame:
    n, d = draw(st.integers(0, 6)), draw(st.integers(0, 5))
    columns = [_column(draw, POLARS_COLUMNS, POLARS_NUMBERS, n) for _ in range(d)]
    out = pl.DataFrame([pl.Series(f"c{j}", cells, dtype=t) for j, (cells, t) in enumerate(columns)])
    part = draw(st.sampled_from(["all", "rows", "chunks"]))
    if part == "chunks" and pl.Object not in out.dtypes:
        return pl.concat([out, out], rechunk=False)
    return out[1::2] if part == "rows" and d else out


def same(a: Any, b: Any) -> None:
    """The two are series, frames or arrays of one library, with the same bits, types, names and index."""
    assert type(a) is type(b)
    if isinstance(a, pd.DataFrame):
        pd.testing.assert_frame_equal(a, b, check_exact=True, check_flags=True, check_column_type="exact")
        assert a.columns.dtype == b.columns.dtype
    elif isinstance(a, pd.Series):
        pd.testing.assert_series_equal(a, b, check_exact=True, check_flags=True)
    elif isinstance(a, pl.DataFrame):
        pl.testing.assert_frame_equal(a, b, check_exact=True)
    elif isinstance(a, pl.Series):
        pl.testing.assert_series_equal(a, b, check_exact=True)
    else:
        assert isinstance(a, np.ndarray)
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def outcome(call: Callable[[], Any]) -> Any:
    """What the call gives, or the class and the words of its error."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


@given(X=pandas_frames() | polars_frames(), strict=st.booleans())
@settings(max_examples=300)
def test_native_frames_are_read_as_narwhals_reads_them(X: Any, strict: bool) -> None:
    """A faster way through a frame that reads another value."""
    fast = outcome(lambda: FeatureTable(X, strict=strict))
    slow = outcome(lambda: FeatureTable(open_frame(X), strict=strict))
    assert type(fast) is type(slow)
    if not isinstance(fast, FeatureTable):
        assert fast == slow
        return
    assert fast.columns == slow.columns
    assert [type(name) for name in fast.columns] == [type(name) for name in slow.columns]
    same(fast.rows, slow.rows)
    for table in (fast, slow):
        assert table.rows.flags.c_contiguous
        assert table.rows.flags.writeable
    values = np.arange(len(fast), dtype=np.float64)
    for name in (None, "y"):
        same(fast.series(values, name), slow.series(values, name))
        same(fast.series(values > 1.0, name), slow.series(values > 1.0, name))
    same(
        fast.frame({False: values, True: 1.0 - values}),
        slow.frame({False: values, True: 1.0 - values}),
    )
    names = [f"out{j}" for j in range(len(fast.columns))]  # narwhals takes no other names than text here
    same(fast.matrix(fast.rows, names), slow.matrix(slow.rows, names))
    n = len(fast)
    if n:
        square = np.asfortranarray(np.arange(float(n * n)).reshape(n, n))  # which polars alone might turn
        same(
            fast.matrix(square, [f"s{j}" for j in range(n)]), slow.matrix(square, [f"s{j}" for j in range(n)])
        )
    same(fast.matrix(fast.rows[:, :1], ["out"]), slow.matrix(slow.rows[:, :1], ["out"]))


@given(X=pandas_frames() | polars_frames(), data=st.data())
def test_columns_are_put_into_the_order_asked_for(X: Any, data: st.DataObject) -> None:
    unordered = outcome(lambda: FeatureTable(X, strict=False))
    if not isinstance(unordered, FeatureTable):
        return
    names = data.draw(st.permutations(unordered.columns))
    ordered = FeatureTable(X, strict=False, names=names)
    assert ordered.columns == names
    assert ordered.rows.flags.c_contiguous
    assert ordered.rows.flags.writeable
    same(
        ordered.rows,
        np.ascontiguousarray(unordered.rows[:, [unordered.columns.index(name) for name in names]]),
    )
    columns, rows = ordered.columns_and_rows()
    assert columns == unordered.columns
    same(rows, unordered.rows)
    for others in (names[1:], [*names[1:], "other"], [*names, "other"], ()):
        as_it_is = FeatureTable(X, strict=False, names=others)
        assert as_it_is.columns == unordered.columns
        same(as_it_is.rows, unordered.rows)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
def test_the_first_bad_cell_is_that_of_the_frame(backend: Any) -> None:
    """Whatever order the learner has its features in."""
    for model in (auc.PairOGD(), auc.PairFTRL(1.0, 1e-6, 1000, features=["a", "b", "c"], seed=0)):
        model.learn_many(backend.DataFrame({"a": [1.0], "b": [0.5], "c": [0.0]}), backend.Series([True]))
        X = backend.DataFrame({"c": [1.0, math.inf], "b": [0.0, -math.inf], "a": [0.0, math.inf]})
        with pytest.raises(RecordError, match="feature 'c' in row 1 is infinite"):
            model.score_many(X)
        if isinstance(model, auc.PairOGD):
            with pytest.raises(RecordError, match="feature 'c' in row 1 is infinite"):
                model.learn_many(X, backend.Series([True, False]))


@st.composite
def label_series(draw: st.DrawFn) -> Any:
    n = draw(st.integers(0, 6))
    name = draw(st.sampled_from([None, "y"]))
    if draw(st.booleans()):
        cells, dtype = _column(draw, PANDAS_COLUMNS, NUMBERS, n)
        return pd.Series(cells, dtype=dtype, name=name)
    cells, dtype = _column(draw, POLARS_COLUMNS, POLARS_NUMBERS, n)
    return pl.Series(name, cells, dtype=dtype)


@given(y=label_series())
@example(y=pd.Series([1.0, math.nan]))
@example(y=pl.Series([1.0, math.nan]))
@example(y=pl.Series([True, None]))
@example(y=pl.Series([1, None]))
@settings(max_examples=300)
def test_native_labels_are_read_as_narwhals_reads_them(y: Any) -> None:
    fast, slow = (outcome(lambda s=s: label_values(s)) for s in (y, nw.from_native(y, series_only=True)))
    if isinstance(fast[0], np.ndarray):
        same(fast[0], slow[0])
    else:
        assert repr(fast[0]) == repr(slow[0])  # NaN is not equal to itself
    assert fast[1] == slow[1]


def test_a_derived_class_of_frames_keeps_its_own_ways() -> None:
    class Doubled(pd.DataFrame):
        @property
        def _constructor(self) -> Any:
            return Doubled

        def to_numpy(self, *args: Any, **kwargs: Any) -> Any:
            return 2.0 * super().to_numpy(*args, **kwargs)

    X = Doubled({"a": [1.0, 2.0]})
    assert FeatureTable(X).rows.tolist() == [[2.0], [4.0]]
    assert FeatureTable(pd.DataFrame(X)).rows.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.__name__)
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_comes_out_shares_nothing_with_the_frame(backend: Any, order: Any) -> None:
    """A learner may be handed the frame again, and its user may write to what it got."""
    values = np.array([[1.0, 2.0], [3.0, 4.0]], order=order)
    X = (
        pd.DataFrame(values, columns=["a", "b"])
        if backend is pd
        else pl.DataFrame({"a": values[:, 0], "b": values[:, 1]})
    )
    before = X.to_numpy().tolist()
    table = FeatureTable(X)
    if backend is pd:
        for out in (table.matrix(table.rows, ["a", "b"]), table.frame({False: table.rows[:, 0]})):
            out.iloc[0, 0] = 9.0
            assert out.iloc[0, 0] == 9.0
        series = table.series(table.rows[:, 0].copy(), None)
        series.iloc[0] = 9.0
        assert series.iloc[0] == 9.0
    table.rows[:] = 7.0
    assert X.to_numpy().tolist() == before == values.tolist()
