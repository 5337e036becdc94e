"""Least squares over all pairs in closed form: what it minimises, cuts of batches, sums, many names."""

from __future__ import annotations

import functools
import itertools
import operator
import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness.learners import frozen
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from streampair import auc, losses, ranking
from streampair.errors import ConfigError, SnapshotError

Stream = list[tuple[dict[str, Any], Any]]
FAMILIES: dict[str, Any] = {"auc": auc.PairMoments, "ranking": ranking.PairMoments}
family_of = pytest.mark.parametrize("family", FAMILIES)


def numbers(family: str, n: int, seed: int = 0, d: int = 4) -> Stream:
    """Records of numbers with offsets and units of their own."""
    rng = np.random.default_rng(seed)
    out: Stream = []
    for row in rng.normal(size=(n, d)):
        margin = row[0] - 0.5 * row[1] + rng.normal()
        x = {f"f{i}": 10.0**i * (row[i] + 0.3 * row[0] + 7.0) for i in range(d)}
        out.append((x, bool(margin > 1.0) if family == "auc" else margin))
    return out


def raw(family: str, n: int, seed: int = 0) -> Stream:
    """The same with texts, booleans, gaps, and a name that comes late."""
    rng = np.random.default_rng(seed)
    out: Stream = []
    for t, (x, y) in enumerate(numbers(family, n, seed, 2)):
        more: dict[str, Any] = {"town": str(rng.choice(["Bern", "Chur"])), "on": bool(rng.random() < 0.4)}
        more["age"] = None if rng.random() < 0.2 else 40.0 + rng.normal()
        if t > n // 2:
            more["late"] = rng.normal()
        out.append(({**x, **more}, y))
    return out


def taught(model: Any, data: Stream) -> Any:
    for x, y in data:
        model.learn_one(x, y)
    return model


@family_of
def test_the_least_mean_square_over_all_pairs(family: str) -> None:
    """By brute force over the pairs, up to the little ridge, and a factor where labels are classes."""
    data = numbers(family, 300)
    model = taught(FAMILIES[family](1e-6, None), data)
    model = model + FAMILIES[family](1e-6, None)  # solved at the last record
    X = np.array([[*x.values()] for x, _ in data])
    y = np.array([float(label) for _, label in data])
    one, other = np.triu_indices(len(y), 1)
    least = np.linalg.lstsq(X[one] - X[other], y[one] - y[other], rcond=None)[0]
    found = model.weights_vector / (model.weights_vector[0] / least[0] if family == "auc" else 1.0)
    spreads = X.std(axis=0)  # the ridge is about 3e-6 of a correlation
    assert found * spreads == pytest.approx(least * spreads, abs=1e-5)
    # A mutant: pairs of neighbours alone.
    fewer = np.linalg.lstsq(np.diff(X, axis=0), np.diff(y), rcond=None)[0]
    assert found * spreads != pytest.approx(fewer * spreads, abs=1e-3)


@family_of
@given(cuts=st.lists(st.integers(0, 200), max_size=6), half_life=st.sampled_from([None, 30]))
def test_the_same_bits_for_any_cut(family: str, cuts: list[int], half_life: int | None) -> None:
    data = numbers(family, 200)
    frame = pd.DataFrame([x for x, _ in data])
    labels = pd.Series([y for _, y in data])
    alone = taught(FAMILIES[family](half_life=half_life), data)
    model = FAMILIES[family](half_life=half_life)
    for start, end in itertools.pairwise([0, *sorted(cuts), 200]):
        model.learn_many(frame[start:end], labels[start:end])
    assert frozen(model) == frozen(alone)


@family_of
def test_the_same_bits_for_raw_records_in_frames(family: str) -> None:
    data = raw(family, 160)
    data = [(x, y) for x, y in data if "late" not in x]
    frame, labels = pd.DataFrame([x for x, _ in data]), pd.Series([y for _, y in data])
    model = FAMILIES[family]()
    scores = []
    for x, y in data:
        scores.append(model.score_one(x))
        model.learn_one(x, y)
    other = FAMILIES[family]()
    assert other.score_learn_many(frame, labels).tolist() == scores
    assert frozen(other) == frozen(model)


@family_of
@pytest.mark.parametrize("half_life", [None, 40])
def test_a_copy_in_the_middle_of_a_block_goes_on(family: str, half_life: int | None) -> None:
    data = raw(family, 250)
    model = taught(FAMILIES[family](half_life=half_life), data[:101])
    assert model.buffer_records > 0
    copies = [pickle.loads(pickle.dumps(model)), model.clone()]
    copies[1].load_state(model.to_state())
    taught(model, data[101:])
    assert all(frozen(taught(copy, data[101:])) == frozen(model) for copy in copies)


@family_of
def test_a_sum_has_learned_the_records_of_all(family: str) -> None:
    """Of parts with names of their own, dealt out in turn; and in any order."""
    data = [(x | {f"own {i % 3}": float(i % 7)}, y) for i, (x, y) in enumerate(numbers(family, 900))]
    make = functools.partial(FAMILIES[family], half_life=None)
    parts = [taught(make(), data[i::3]) for i in range(3)]
    before = [frozen(part) for part in parts]
    whole = taught(make(), data) + make()
    for order in itertools.permutations(parts):
        total = functools.reduce(operator.add, order)
        assert total.records == 900
        for name, weight in whole.weights.items():
            assert total.weights[name] == pytest.approx(weight, rel=1e-9, abs=1e-12)
        assert total.intercept == pytest.approx(whole.intercept, rel=1e-9)
    assert [frozen(part) for part in parts] == before
    taught(total, data)  # and learns on


def test_a_sum_knows_texts_gaps_and_labels() -> None:
    data = [(x, "yes" if y else "no") for x, y in raw("auc", 400)]
    one, two = (taught(auc.PairMoments(half_life=None, positive="yes"), data[i::2]) for i in range(2))
    both = one + two
    assert {*both.feature_names} == {*one.feature_names, *two.feature_names}
    assert both.predict_proba_one(data[0][0]).keys() == {"yes", "no"}
    empty = auc.PairMoments(half_life=None, positive="yes")
    assert (empty + one).predict_proba_one(data[0][0]).keys() == {"yes", "no"}
    x = data[-1][0]
    assert sum(both.explain_one(x).features.values()) == pytest.approx(both.score_one(x))


def test_sums_that_cannot_be() -> None:
    one = taught(auc.PairMoments(max_features=3), [({"a": 1.0, "b": 2.0}, True)])
    two = taught(auc.PairMoments(max_features=3), [({"c": 1.0, "d": 2.0}, True)])
    with pytest.raises(ConfigError, match="have 4 features, more than max_features=3"):
        one + two
    with pytest.raises(ConfigError, match="has max_features=3, the other max_features=256"):
        one + auc.PairMoments()
    with pytest.raises(TypeError, match="unsupported operand"):
        one + 1


def test_names_beyond_the_limit_share_columns_with_a_warning_that_names_another_learner() -> None:
    model = auc.PairMoments(max_features=8)
    with pytest.warns(UserWarning, match=r"at most 1024\).*use PairOGD"):
        taught(model, [({"id": f"k{i}", "v": float(i % 5)}, i % 2 == 0) for i in range(200)])
    assert len(model.feature_names) == 10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn_one({"id": "another"}, True)


def test_weights_follow_what_changes() -> None:
    """With a half-life; without one the past counts as much as the present."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 1))
    y = (X[:, 0] + rng.normal(size=6000) > 0.0) ^ (np.arange(6000) >= 3500)
    for half_life, sign in ((200, -1.0), (None, 1.0)):
        model = auc.PairMoments(half_life=half_life)
        model.learn_many(X, y)
        assert np.sign(model.weights[0]) == sign


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_the_scale_is_that_of_the_square_loss_of_pairs(share: float) -> None:
    """Whatever the share of the positives: a multiple of the weights does hardly better."""
    rng = np.random.default_rng(0)
    y = rng.random(4000) < share
    X = rng.normal(size=(4000, 3)) + 1.5 * y[:, None]
    model = auc.PairMoments(1e-6, None)
    model.learn_many(X, y)
    scores = X @ model.weights_vector

    def loss(factor: float) -> float:
        margins = 2.0 * factor * (scores[y][:, None] - scores[~y])
        return float(losses.Square().value(margins).mean())

    assert loss(1.0) < 1.001 * min(loss(factor) for factor in np.linspace(0.5, 2.0, 31))
    assert loss(0.5) > 1.1 * loss(1.0)


def test_fewer_records_than_columns_are_learned_from() -> None:
    """Weights are solved for when d records are new: a table of 100 rows and 101 columns had none."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 101))
    y = X[:, :5].sum(axis=1) + rng.normal(size=300) > 0.0
    model = auc.PairMoments(half_life=None)
    model.learn_many(X[:100], y[:100])
    scores = model.score_many(X[100:])
    assert roc_auc_score(y[100:], scores) > 0.65


def test_one_class_alone_moves_nothing() -> None:
    model = taught(auc.PairMoments(), [({"a": float(i)}, False) for i in range(300)])
    assert model.weights == {"a": 0.0}


def test_constants_and_copies_of_a_feature_do_no_harm() -> None:
    """No correlation is made of rounding, and a ridge shares a weight out."""
    data = [
        ({"a": float(i % 7), "copy": float(i % 7), "constant": 0.1, "far": 1e9}, i % 7 + i % 2 > 3)
        for i in range(500)
    ]
    model = taught(auc.PairMoments(), data)
    assert model.weights["constant"] == model.weights["far"] == 0.0
    assert model.weights["a"] == pytest.approx(model.weights["copy"]) != 0.0


def test_a_constant_has_no_correlation_of_rounding() -> None:
    """The other weights are those of a column of zeros, whose moments are exactly 0."""

    def weights(constant: float) -> list[float]:
        model = taught(auc.PairMoments(), [(x | {"f9": constant}, y) for x, y in numbers("auc", 300)])
        return [weight for name, weight in model.weights.items() if name != "f9"]

    assert weights(0.1) == weights(0.0)


def test_an_offset_changes_nothing() -> None:
    data = numbers("auc", 400)
    model = taught(auc.PairMoments(), data)
    moved = taught(auc.PairMoments(), [({k: v + 2.0**30 for k, v in x.items()}, y) for x, y in data])
    for name, weight in model.weights.items():
        assert moved.weights[name] == pytest.approx(weight, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"moments": np.full(10, np.nan)}, "not finite"),
        ({"moments": -np.ones(10)}, "below 0"),
        ({"moments": np.ones(9)}, "another shape"),
        ({"counts": -np.ones(6)}, "below 0"),
        ({"first_moments": np.ones((1, 4))}, "another shape"),
        ({"rows": np.ones((70, 5))}, "another shape"),
    ],
)
def test_a_damaged_state_is_refused(change: dict[str, Any], what: str) -> None:
    model = taught(auc.PairMoments(), numbers("auc", 100))
    state = model.to_state() | change
    before = frozen(model)
    with pytest.raises(SnapshotError, match=what):
        model.load_state(state)
    assert frozen(model) == before
