"""metric.PairOGD: against its reference implementation, in pipelines, and its labels."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import naive
import numpy as np
import pandas as pd
import polars as pl
import pytest
from harness.every_loss import MARGIN
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from river import base, compose, datasets, neighbors

from streampair import buffers, losses, metric
from streampair.base.targets import class_number
from streampair.errors import RecordError
from streampair.kernels import buffers as buffers_kernels
from streampair.kernels import metric as metric_kernels
from streampair.kernels import symmetric as symmetric_kernels

eighths = st.integers(-16, 16).map(lambda v: v / 8)


def frozen(model: metric.PairOGD) -> bytes:
    return pickle.dumps({**model.to_state(), "y_name": None})


def stream(n: int, d: int = 4, seed: int = 0) -> list[tuple[dict[str, float], str]]:
    """Three classes that differ in f0 only."""
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        kind = rng.randrange(3)
        out.append(({f"f{i}": rng.gauss(kind if i == 0 else 0, 0.4) for i in range(d)}, "abc"[kind]))
    return out


def taught(model: metric.PairOGD, n: int = 30, d: int = 4) -> metric.PairOGD:
    for x, y in stream(n, d):
        model.learn_one(x, y)
    return model


# ---- kernels -----------------------------------------------------------------------------------------------


def symmetric(d: int, seed: int, rank: int) -> np.ndarray:
    """Of the given rank, with eigenvalues of both signs over several orders of size."""
    rng = np.random.default_rng(seed)
    vectors = np.linalg.qr(rng.normal(size=(d, d)))[0][:, :rank]
    values = rng.normal(size=rank) * 10.0 ** rng.uniform(-3, 1, size=rank)
    w = vectors * values @ vectors.T
    return 0.5 * (w + w.T)


@given(st.integers(1, 8), st.integers(0, 2**32 - 1), st.data())
def test_eigenvalues_and_what_is_built_on_them(d: int, seed: int, data: st.DataObject) -> None:
    w = symmetric(d, seed, data.draw(st.integers(0, d)))
    size = max(float(np.linalg.norm(w)), 1e-300)
    for unit in (1.0, 1e-200, 1e200):  # no square of an entry may overflow or vanish
        vectors, values = w * unit, np.empty(d)
        symmetric_kernels.eigen(vectors, values)
        values /= unit
        np.testing.assert_allclose(np.sort(values), np.linalg.eigvalsh(w), atol=1e-13 * size)
        np.testing.assert_allclose(vectors @ vectors.T, np.eye(d), atol=1e-13)
        np.testing.assert_allclose(vectors.T * values @ vectors, w, atol=1e-13 * size)

    positive = naive.project_psd(w)
    projected = w.copy()
    symmetric_kernels.project_psd(projected)
    assert (projected == projected.T).all()
    np.testing.assert_allclose(projected, positive, atol=1e-12 * size)
    again = projected + 1e-3 * size * np.eye(d)
    kept = again.copy()
    symmetric_kernels.project_psd(kept)
    assert (kept == again).all()  # not a bit of a positive definite matrix is touched
    assert symmetric_kernels.positive_definite(again)
    assert not symmetric_kernels.positive_definite(w - (np.linalg.eigvalsh(w)[0] + 1e-3 * size) * np.eye(d))

    root = np.empty((d, d))
    found = symmetric_kernels.psd_root(w, root)
    assert found or np.linalg.eigvalsh(w)[-1] <= 1e-15 * size
    assert (root == root.T).all()
    np.testing.assert_allclose(root @ root, positive, atol=1e-12 * size)


def test_eigenvectors_of_entries_that_all_but_vanish() -> None:
    """Rows of 1e-300 next to rows of 1, which a feature leaves that was learned once and then decayed."""
    rng = np.random.default_rng(0)
    for _ in range(3000):
        d = int(rng.integers(2, 7))
        units = 10.0 ** (-rng.choice([0.0, 1.0], d) * rng.uniform(0, 320)) * (rng.random(d) < 0.9)
        w = symmetric(d, int(rng.integers(2**32)), int(rng.integers(1, d + 1))) * np.outer(units, units)
        size = float(np.abs(w).max())
        if size < 1e-300:
            continue
        vectors, values = w.copy(), np.empty(d)
        symmetric_kernels.eigen(vectors, values)
        np.testing.assert_allclose(vectors @ vectors.T, np.eye(d), atol=1e-13)
        np.testing.assert_allclose(vectors.T * values @ vectors / size, w / size, atol=1e-13)


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_map(d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    w, rows = symmetric(d, seed, d), rng.normal(size=(3, d))
    out = np.empty((3, d))
    assert metric_kernels.map_rows(w, rows, out) == 0
    np.testing.assert_allclose(out, rows @ w, rtol=1e-9, atol=1e-9)
    rows[1, d - 1] = 1e31
    assert metric_kernels.map_rows(w, rows, out) == 2 * d


# ---- the algorithm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [buffers.FIFO(3), buffers.Reservoir(3), buffers.FullHistory()], ids=str)
@pytest.mark.parametrize("loss", MARGIN, ids=str)
@settings(max_examples=40)
@given(data=st.data())
def test_against_the_reference(loss: losses.PairLoss, buffer: buffers.Buffer, data: st.DataObject) -> None:
    psd = data.draw(st.booleans())
    d = data.draw(st.integers(1, 4))
    records = data.draw(
        st.lists(
            st.tuples(st.lists(eighths, min_size=d, max_size=d), st.sampled_from("abc")),
            min_size=1,
            max_size=12,
        )
    )
    rate = data.draw(st.sampled_from([None, 0.05, 0.5]))
    radius = data.draw(st.sampled_from([0.1, 1.0, 10.0]))
    l2 = data.draw(st.sampled_from([0.0, 0.25]))
    policy = {
        buffers_kernels.FIFO: "fifo",
        buffers_kernels.RESERVOIR: "reservoir",
        buffers_kernels.FULL: "full",
    }[buffer.code]
    reference = naive.PairMetric(d, type(loss).__name__, policy, buffer.size, rate, radius, l2, 7, psd)
    options: dict[str, Any] = {"learning_rate": rate, "radius": radius, "l2": l2, "psd": psd, "seed": 7}
    averaged = metric.PairOGD(loss, buffer, **options)
    last = metric.PairOGD(loss, buffer, average=False, **options)
    for x, y in records:
        named = {f"f{i}": v for i, v in enumerate(x)}
        averaged.learn_one(named, y)
        last.learn_one(named, y)
        reference.learn(x, y)
        assume(reference.nearest_kink > 1e-7 or not isinstance(loss, losses.Hinge))
        assume(reference.least_gradient > 1e-7)
        w = last.metric_
        assert (w == w.T).all()
        assert np.linalg.norm(w) <= radius * (1 + 1e-12)
        if psd:
            assert np.linalg.eigvalsh(w)[0] >= -1e-12 * radius
    np.testing.assert_allclose(last.metric_, reference.last, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(averaged.metric_, reference.average, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("psd", [True, False])
def test_it_finds_the_direction_that_tells_classes_apart(psd: bool) -> None:
    model = taught(metric.PairOGD(psd=psd), 1500)
    w = model.metric_
    assert w[0, 0] > 0.5
    assert w[0, 0] ** 2 > 0.8 * np.sum(w**2)
    held_out = stream(200, seed=1)
    near, far = [], []
    for (x, y), (x2, y2) in itertools.pairwise(held_out):
        (near if y == y2 else far).append(model.distance_one(x, x2))
    assert np.mean(near) < 0.6 * np.mean(far)


# ---- distances and the transformation ----------------------------------------------------------------------


def test_before_anything_is_learned_it_is_the_identity() -> None:
    model = metric.PairOGD()
    for again in range(2):
        assert model.transform_one({"a": 3, "b": -4.5}) == {"a": 3.0, "b": -4.5}
        assert model.distance_one({"a": 3.0}, {"b": 4.0}) == 5.0
        assert model.score_one({"a": 3.0, "b": 4.0}) == 5.0
        assert list(model.transform_many(pd.DataFrame({"b": [1], "a": [2]}))) == ["b", "a"]
        if not again:
            assert model.weights == {}
            model.learn_one({"a": 1.0}, "first")  # nobody to pair with
    assert model.weights == {("a", "a"): 0.0}


@pytest.mark.parametrize("psd", [True, False])
def test_the_transformation_is_the_root_of_the_metric(psd: bool) -> None:
    model = taught(metric.PairOGD(psd=psd, average=psd), 200)
    w = model.metric_
    positive = naive.project_psd(w)
    xs = [x for x, _ in stream(20, seed=2)]
    mapped = [np.array(list(model.transform_one(x).values())) for x in xs]
    assert list(model.transform_one(xs[0])) == list(model.feature_names)
    for x, x2, a, b in zip(xs, xs[1:], mapped, mapped[1:], strict=False):
        u = model.design(x) - model.design(x2)
        assert np.linalg.norm(a - b) == pytest.approx(math.sqrt(u @ positive @ u))
        assert model.distance_one(x, x2) == pytest.approx(np.linalg.norm(a - b), rel=1e-12)
    assert model.distance_one(xs[0], xs[0]) == 0.0
    assert model.score_one(xs[0]) == pytest.approx(model.distance_one(xs[0], dict.fromkeys(xs[0], 0.0)))
    assert model.transform_one({"f1": 1.0, "new": 9.0}) == model.transform_one(
        {**dict.fromkeys(xs[0], 0), "f1": 1}
    )
    assert model.weights["f0", "f1"] == model.weights["f1", "f0"] == w[0, 1]
    assert len(model.weights) == 16
    model.metric_[:] = 7.0  # a copy
    assert 7.0 not in model.weights.values()


@pytest.mark.parametrize("backend", [pd, pl], ids=lambda b: b.__name__)
def test_frames(backend: Any) -> None:
    records = stream(60)
    one, many = metric.PairOGD(seed=0), metric.PairOGD(seed=0)
    for x, y in records:
        one.learn_one(x, y)
    X, y = backend.DataFrame([x for x, _ in records]), backend.Series([y for _, y in records])
    for part in (slice(0, 1), slice(1, 40), slice(40, 60)):
        many.learn_many(X[part], y[part])
    assert frozen(one) == frozen(many)
    out = many.transform_many(X)
    assert isinstance(out, backend.DataFrame)
    wanted = [one.transform_one(x) for x, _ in records]
    assert list(out.columns) == list(wanted[0])
    assert out.to_numpy().tolist() == [list(row.values()) for row in wanted]
    with pytest.raises(RecordError, match="'f1' in row 1 is NaN"):
        many.transform_many(backend.DataFrame({"f1": [1.0, math.nan]}))
    with pytest.raises(RecordError, match=r"in row 1, the label is (None|nan), so its class is unknown"):
        many.learn_many(X[:2], backend.Series(["a", None]))
    assert frozen(one) == frozen(many)


def by_hand(records: list[Any]) -> tuple[list[Any], neighbors.KNNClassifier]:
    learner, classifier, said = metric.PairOGD(), neighbors.KNNClassifier(n_neighbors=3), []
    for x, y in records:
        mapped = learner.transform_one(x)
        said.append(classifier.predict_one(mapped))
        learner.learn_one(x, y)
        classifier.learn_one(mapped, y)
    return said, classifier


class Trap(base.SupervisedTransformer):
    """The same learner with River's class for supervised transformers alone, as one would think is enough."""

    def __init__(self) -> None:
        self.learner = metric.PairOGD()

    def learn_one(self, x: Any, y: Any) -> None:
        self.learner.learn_one(x, y)

    def transform_one(self, x: Any) -> Any:
        return self.learner.transform_one(x)


def piped(step: Any, records: list[Any]) -> tuple[list[Any], compose.Pipeline]:
    model, said = step | neighbors.KNNClassifier(n_neighbors=3), []
    for x, y in records:
        said.append(model.predict_one(x))
        model.learn_one(x, y)
    return said, model


def test_a_pipeline_does_the_two_steps() -> None:
    """The neighbours get transformed records: the same answers as the two steps by hand."""
    records = list(datasets.Phishing())[:400]
    said, classifier = by_hand(records)
    answers, model = piped(metric.PairOGD(), records)
    assert answers == said
    assert piped(Trap(), records)[0] != said  # or the test could not tell
    assert np.mean([a == y for a, (_, y) in zip(said, records, strict=True)]) > 0.8
    x = records[0][0]
    assert model.predict_proba_one(x) == classifier.predict_proba_one(model["PairOGD"].transform_one(x))


def test_pipelines_take_it_for_a_transformer_wherever_it_stands() -> None:
    model = taught(metric.PairOGD())
    assert isinstance(model, base.Transformer)
    assert isinstance(model, base.SupervisedTransformer)
    x = stream(1, seed=5)[0][0]
    last = compose.Select("f0", "f1", "f2", "f3") | model
    assert last.transform_one(x) == model.transform_one(x)
    X = pd.DataFrame([x])
    assert last.transform_many(X).equals(model.transform_many(X))
    union = (model + compose.Select("f0") | compose.Prefixer("raw_")).transform_one(x)
    assert len(union) == 4


# ---- labels, features, state -------------------------------------------------------------------------------


def test_equal_labels_are_one_class() -> None:
    model = metric.PairOGD()
    one = [True, 1, 1.0, np.int64(1), np.float32(1), np.bool_(True), "1", "1.0", "True", b"1"]
    assert len({model._task.label(y) for y in one}) == 1
    texts = ["a", np.str_("a"), b"a"]
    assert len({model._task.label(y) for y in texts}) == 1
    different = [1, 0, 2, 0.5, -1, "a", "", "\ud800", 2**70, 1e300]
    assert len({model._task.label(y) for y in different}) == len(different)
    for y in different:
        assert 0 <= model._task.label(y) < 2**53
    # Beyond 2**53 a float is the same for neighbours: identifiers of persons are often that large.
    for large in (2**53, 2**60, 2**63):
        near = [large - 1, large, large + 1, large + 2]
        assert len({model._task.label(y) for y in near}) == len({model._task.label(-y) for y in near}) == 4
        same = [large + 1, Decimal(large + 1), Fraction(large + 1), np.uint64(large + 1)]
        for y in same:
            class_number.cache_clear()
            assert model._task.label(y) == model._task.label(large + 1)
        assert model._task.label(float(large)) == model._task.label(large)
        assert len(set(model._task.labels(np.array(near, dtype=np.uint64)).tolist())) == 4
    class_number.cache_clear()
    assert model._task.label("x" * 10_000) != model._task.label("x" * 10_001)
    assert class_number.cache_info().currsize == 0  # what could be large is not remembered
    # Fixed for ever: snapshots hold these numbers.
    assert model._task.label("a") == 5801712245909554.0
    assert model._task.label(False) == 5964530359861509.0


def test_large_numbers_do_not_overflow() -> None:
    for loss in MARGIN:
        model = metric.PairOGD(loss, buffers.FIFO(2), radius=1e12, l2=1e12)
        for t in range(20):
            model.learn_one({"a": 1e30 * (-1) ** t, "b": 1e-300, "c": t}, t % 3)
        assert np.isfinite(model.metric_).all()
        assert math.isfinite(model.score_one({"a": 1e30, "b": -1e30, "c": 1e30}))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_full_history_is_a_window_that_holds_everything(dtype: str) -> None:
    options: dict[str, Any] = {"loss": losses.Logistic(), "l2": 0.1, "seed": 0}
    window = metric.PairOGD(buffer=buffers.FIFO(200), **options)
    full = metric.PairOGD(buffer=buffers.FullHistory(dtype, max_records=100), **options)
    many = full.clone()
    records = [
        ({name: float(np.float32(v)) for name, v in x.items() if name != "f3" or t > 70}, y)
        for t, (x, y) in enumerate(stream(100))
    ]
    for x, y in records:
        window.learn_one(x, y)
        full.learn_one(x, y)
    assert full.metric_ == pytest.approx(window.metric_, rel=1e-9, abs=1e-12)
    assert full.buffer_records == 100
    early, late = records[:71], records[71:]
    for part in (early, late):
        many.learn_many(pd.DataFrame([x for x, _ in part]), pd.Series([y for _, y in part]))
    assert frozen(many) == frozen(full)
    copied = pickle.loads(pickle.dumps(full))
    assert frozen(copied) == frozen(full)
    with pytest.raises(RecordError, match="max_records=100"):
        full.learn_one(records[0][0], "a")


def test_arrays() -> None:
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = np.where(X[:, 0] > 0, "up", "down")
    one, many = metric.PairOGD(seed=0), metric.PairOGD(seed=0)
    assert many.transform_many(X).tolist() == X.tolist()
    many.learn_many(X, y)
    for row, label in zip(X.tolist(), y.tolist(), strict=True):
        one.learn_one(dict(enumerate(row)), label)
    assert frozen(one) == frozen(many)
    out = many.transform_many(X)
    assert out.tolist() == [list(one.transform_one(dict(enumerate(row))).values()) for row in X.tolist()]
    with pytest.raises(RecordError, match="names such as 'f0'"):
        taught(metric.PairOGD()).transform_many(X)


def test_new_names_get_new_columns_up_to_the_limit() -> None:
    grown, whole = (metric.PairOGD(buffer=buffers.FIFO(4), max_features=7) for _ in range(2))
    records = stream(30, d=7)
    names = sorted(records[0][0])
    for i, (x, y) in enumerate(records):
        known = names[: 1 + i // 4]
        grown.learn_one({n: x[n] for n in known}, y)
        whole.learn_one({n: x[n] if n in known else 0.0 for n in names}, y)
    assert grown.weights == pytest.approx(whole.weights, rel=1e-9, abs=1e-12)
    with pytest.raises(RecordError, match="max_features=7"):
        grown.learn_one({"one more": 1.0}, "a")


def test_a_loaded_state_is_what_transforms() -> None:
    """Also into a learner that has transformed with another metric of the same number of records."""
    a, b = taught(metric.PairOGD(seed=0)), metric.PairOGD(seed=0)
    for x, y in stream(30, seed=8):
        b.learn_one(x, y)
    x = stream(1)[0][0]
    b.transform_one(x)
    b.load_state(a.to_state())
    assert b.transform_one(x) == a.transform_one(x)
