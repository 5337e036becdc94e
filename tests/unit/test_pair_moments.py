"""Least squares over all pairs in closed form: what it minimises, cuts of batches, sums, many names."""

from __future__ import annotations

import functools
import itertools
import operator
import pickle
import warnings
from typing import Any

import naive
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
        x = {f"f{i}": 10.0 ** (i % 4) * (row[i] + 0.3 * row[0] + 7.0) for i in range(d)}
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
    model = taught(FAMILIES[family](half_life=half_life), data[:100])
    assert model.buffer_records > 0
    copies = [pickle.loads(pickle.dumps(model)), model.clone()]
    copies[1].load_state(model.to_state())
    taught(model, data[100:])
    assert all(frozen(taught(copy, data[100:])) == frozen(model) for copy in copies)


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


def test_a_sum_knows_which_values_a_column_has_held() -> None:
    """Two of one part and another two of the other are more than two; a sparse column has held 0."""
    make = functools.partial(auc.PairMoments, half_life=None)
    columns = {
        "same": ([2.0, 6.0], [6.0, 2.0]),
        "other": ([2.0, 6.0], [6.0, 9.0]),
        "constant": ([5.0, 5.0], [5.0, 5.0]),
        "constants": ([5.0, 5.0], [7.0, 7.0]),
    }
    parts = []
    for part in range(2):
        data = [
            ({name: values[part][i % 2] for name, values in columns.items()}, i % 3 > 0) for i in range(40)
        ]
        for i in range(part, 40, 8):
            data[i][0].update({"rare": 4.0, "rares": 4.0 - part, "mine" if part else "yours": -4.0})
        parts.append(taught(make(), data))
    for both in (parts[0] + parts[1], parts[1] + parts[0]):
        units = dict(zip(both.feature_names, both.to_state()["units"], strict=True))
        assert [units[name] for name in ("same", "constant", "constants")] == [1 / 2, 1 / 5, 1.0]
        assert units["other"] == pytest.approx(1 / np.std([2.0, 6.0, 6.0, 9.0]))
        assert [units[name] for name in ("rare", "mine", "yours")] == [1 / 4] * 3
        assert units["rares"] == pytest.approx(1 / np.sqrt((16.0 + 9.0) / 2.0))


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
    with pytest.raises(ConfigError, match="has half_life=1000, the other half_life=20"):
        auc.PairMoments() + auc.PairMoments(half_life=20)
    with pytest.raises(TypeError, match="unsupported operand"):
        one + 1
    with pytest.raises(ConfigError, match=r"auc\.PairMoments and a streampair\.ranking\.PairMoments cannot"):
        one + ranking.PairMoments()
    with pytest.raises(ConfigError, match=r"auc\.PairMoments and a streampair\.auc\.PairOGD cannot be added"):
        one + auc.PairOGD()


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
    """A table of 100 rows and 101 columns has weights."""
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

    assert weights(1.1) == weights(0.0)  # of 0.1 the moments are 0, too


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
        ({"moments": np.array([1.0, 1.001, 1.0, *[0.0] * 2, 1.0, *[0.0] * 3, 1.0])}, "no covariances"),
        ({"moments": np.array([1.0, -4.0, 9.0, *[0.0] * 2, 1.0, *[0.0] * 3, 1.0])}, "no covariances"),
        ({"first_moments": np.array([[0.0] * 4, [0.0, 1e12, 0.0, 0.0]])}, "no covariances"),
    ],
)
def test_a_damaged_state_is_refused(change: dict[str, Any], what: str) -> None:
    model = taught(auc.PairMoments(), numbers("auc", 100))
    state = model.to_state() | change
    before = frozen(model)
    with pytest.raises(SnapshotError, match=what):
        model.load_state(state)
    assert frozen(model) == before


@family_of
@pytest.mark.parametrize("half_life", [None, 3])
def test_moments_of_copies_and_of_any_size_are_covariances(family: str, half_life: int | None) -> None:
    """A correlation of 1 up to rounding, constants, sums of squares that underflow: the state is loaded."""
    model = FAMILIES[family](half_life=half_life)
    for t, (x, y) in enumerate(numbers(family, 400)):
        f = x["f0"]
        more = {"copy": -3.0 * f, "far": 1e8 + 1e-7 * f, "one": 0.1, "tiny": 1e-165 * f, "huge": 1e48 * f}
        model.learn_one({**x, **more}, y)
        if t % 7 == 0:
            FAMILIES[family](half_life=half_life).load_state(model.to_state())


# ---- what is summed up: against sums over all records, and over all pairs of them


def states_of(data: Stream, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, d), 0 where a record lacks one, and labels (n,), of two classes +1 and -1."""
    X = np.array([[x.get(name, 0.0) for name in names] for x, _ in data])
    return X, np.array([(1.0 if y else -1.0) if isinstance(y, bool) else y for _, y in data])


def ages(n: int, half_life: int | None) -> np.ndarray:
    """What each of so many records counts, (n,), the last one 1."""
    return np.ones(n) if half_life is None else 0.5 ** (np.arange(n - 1, -1, -1) / half_life)


def check_sums(model: Any, X: np.ndarray, y: np.ndarray, counts: np.ndarray) -> None:
    """The moments in the state of a sum of learners are those of weighted records; labels are +1 and -1."""
    state, total = model.to_state(), counts.sum()
    assert len(state["rows"]) == 0
    means, label = counts @ X / total, counts @ y / total
    products = (X - means).T @ np.diag(counts) @ (X - means)
    cross = (X - means).T @ (counts * (y - label))
    spreads = np.sqrt(np.diag(products))
    weight, every, fresh, since, mean_label, squares = state["counts"]
    assert (weight, every, fresh, since) == pytest.approx((total, total, 0.0, 0.0), rel=1e-9)
    assert (mean_label, squares) == pytest.approx((label, counts @ (y - label) ** 2), rel=1e-9)
    assert state["first_moments"][0] == pytest.approx(means, rel=1e-9, abs=1e-12)
    assert state["first_moments"][1] / spreads == pytest.approx(cross / spreads, rel=1e-9, abs=1e-7)
    below = np.tril_indices(len(means))
    correlations = (products / np.outer(spreads, spreads))[below]
    assert state["moments"] / np.outer(spreads, spreads)[below] == pytest.approx(correlations, abs=1e-9)


def check_weights(model: Any, X: np.ndarray, y: np.ndarray, counts: np.ndarray) -> None:
    """Least squares over all pairs, by brute force, a pair counting the product; labels up to a factor."""
    one, other = np.triu_indices(len(y), 1)
    root = np.sqrt(counts[one] * counts[other])
    least = np.linalg.lstsq(root[:, None] * (X[one] - X[other]), root * (y[one] - y[other]), rcond=None)[0]
    found, spreads = model.weights_vector, X.std(axis=0)
    if isinstance(model, auc.PairMoments):
        found = found * (least[0] / found[0])
    assert found * spreads == pytest.approx(least * spreads, abs=1e-4)


@family_of
@pytest.mark.parametrize("half_life", [None, 40])
def test_sums_count_each_record_by_its_age(family: str, half_life: int | None) -> None:
    data = numbers(family, 200, d=3)
    make = functools.partial(FAMILIES[family], 1e-6, half_life)
    model = taught(make(), data) + make()
    names = [*model.feature_names]
    X, y = states_of(data, names)
    check_sums(model, X, y, ages(200, half_life))
    check_weights(model, X, y, ages(200, half_life))
    # A mutant: every record weighs the same.
    if half_life is not None:
        with pytest.raises(AssertionError):
            check_sums(model, X, y, ages(200, None))
        with pytest.raises(AssertionError):
            check_weights(model, X, y, ages(200, None))


@family_of
@pytest.mark.parametrize("half_life", [None, 40])
def test_a_sum_counts_the_records_of_both_by_age_and_goes_on(family: str, half_life: int | None) -> None:
    """Of parts of different lengths, whose names come in another order, one of them in one part alone."""
    make = functools.partial(FAMILIES[family], 1e-6, half_life)
    data = numbers(family, 330, d=3)
    first = [({k: x[k] for k in ("f2", "f0", "f1")}, y) for x, y in data[:130]]
    second = [({"f1": x["f1"], "own": x["f0"] % 3.0, "f0": x["f0"]}, y) for x, y in data[130:220]]
    third = data[220:]
    total = taught(make(), first) + taught(make(), second)
    names = [*total.feature_names]
    assert sorted(names) == ["f0", "f1", "f2", "own"]
    X, y = states_of(first + second, names)
    counts = np.concatenate([ages(130, half_life), ages(90, half_life)])
    check_sums(total, X, y, counts)
    check_weights(total, X, y, counts)

    copies = [pickle.loads(pickle.dumps(total)), total.clone()]
    copies[1].load_state(total.to_state())
    taught(total, third)
    assert all(frozen(taught(copy, third)) == frozen(total) for copy in copies)
    X, y = states_of(first + second + third, names)
    late = ages(110, half_life)
    faded = 1.0 if half_life is None else 0.5 ** (110 / half_life)
    check_sums(total + make(), X, y, np.concatenate([faded * counts, late]))


@family_of
def test_far_values_are_summed_up_as_they_are_learned(family: str) -> None:
    """One is cut to 5 spreads and the next, in its column, to 10: not so much as their squares remain."""
    data = numbers(family, 150, d=2)
    data[100] = (data[100][0] | {"f0": 1e12}, data[100][1])
    data[120] = (data[120][0] | {"f0": -1e12}, data[120][1])
    make = functools.partial(FAMILIES[family], 1e-6, None)
    model = taught(make(), data) + make()
    names = [*model.feature_names]
    columns = naive.Columns(True)
    learned = [columns.observe(dict(enumerate(x[name] for name in names))) for x, _ in data]
    X, y = np.array([[*x.values()] for x in learned]), states_of(data, names)[1]
    assert abs(X[100, names.index("f0")]) < 20.0  # of a column of mean 7 and spread 1
    check_sums(model, X, y, np.ones(150))


@family_of
def test_a_sum_with_an_empty_learner(family: str) -> None:
    make = functools.partial(FAMILIES[family], half_life=None)
    nothing = make() + make()
    assert nothing.records == 0
    assert nothing.weights == {}
    one = taught(make(), numbers(family, 130))
    sums = [one + make(), make() + one]
    names = [*one.feature_names]
    for each in sums:
        assert [*each.feature_names] == names
        check_sums(each, *states_of(numbers(family, 130), names), np.ones(130))
    assert sums[1].weights == pytest.approx(sums[0].weights, rel=1e-12)
    assert frozen(taught(nothing, numbers(family, 130))) == frozen(one)


@family_of
def test_a_sum_scales_features_as_one_learner_of_all_would(family: str) -> None:
    """By their statistics: dense and sparse columns, of 0 and 1, indicators, gaps, and a late one."""
    rng = np.random.default_rng(1)
    data = raw(family, 1024)  # a power of 2: a single learner has just looked which columns are dense
    data = [(x | ({"some": 5.0 + rng.normal()} if rng.random() < 0.3 else {}), y) for x, y in data]
    data = [(x | {"bit": float(t % 3 == 0), "soon": float(t % 7)}, y) for t, (x, y) in enumerate(data)]
    parts = [data[:300], data[300:]]
    parts[0] = [({k: v for k, v in x.items() if k != "soon"}, y) for x, y in parts[0]]
    make = functools.partial(FAMILIES[family], half_life=None)
    whole = taught(make(), [*parts[0], *parts[1]]).to_state()
    for order in (parts, parts[::-1]):
        found = (taught(make(), order[0]) + taught(make(), order[1])).to_state()
        places = [found["names"].index(name) for name in whole["names"]]
        assert len(places) == len(found["names"])
        for what in ("means", "variances", "values_set", "given", "kinds", "cuts"):
            assert found[what][places] == pytest.approx(whole[what], rel=1e-9, abs=1e-12)
        # A unit is measured at every eighth value.
        assert found["units"][places] == pytest.approx(whole["units"], rel=0.02)


def test_statistics_with_a_half_life_count_as_many_values_as_it_keeps() -> None:
    """A part of ten times as many records, all of them long ago but the last ones, counts no more."""

    def part(n: int, mean: float) -> Any:
        return taught(auc.PairMoments(half_life=5), [({"a": mean + i % 2}, i % 3 == 0) for i in range(n)])

    both = part(1000, 0.0) + part(100, 10.0)
    mean, variance = (both.to_state()[what][0] for what in ("means", "variances"))
    assert mean == pytest.approx(5.5, abs=0.1)
    assert variance == pytest.approx(25.25, abs=0.1)


def test_the_limit_of_far_values_is_the_larger_one_of_both() -> None:
    def part(wild: int) -> Any:
        data = [({"a": float(i % 5)}, i % 3 == 0) for i in range(60)]
        return taught(auc.PairMoments(half_life=None), [*data, *[({"a": 1e9}, True)] * wild])

    for one, two in ((0, 2), (2, 0), (2, 3)):
        assert (part(one) + part(two)).to_state()["cuts"][0] == max(one, two)


def test_probabilities_of_a_sum_begin_between_those_of_both() -> None:
    """Centre, spread, offset and slope are means, weighted by what each part knows of them."""
    data = numbers("auc", 700)
    one, two = (taught(auc.PairMoments(half_life=None), part) for part in (data[:100], data[100:]))
    known, more, both = (model.to_state()["link"] for model in (one, two, one + two))
    assert 0.0 < known[0] != more[0]
    assert both[0] == max(known[0], more[0])
    assert both[1:] == pytest.approx((known[0] * known[1:] + more[0] * more[1:]) / (known[0] + more[0]))


# ---- when the weights are solved for


def solved_at(model: Any, data: Stream) -> list[int]:
    """After which of the records, counted from 1, there are new weights of scaled features."""
    out, before = [], model.to_state()["w"]
    for t, (x, y) in enumerate(data, 1):
        model.learn_one(x, y)
        after = model.to_state()["w"]
        if after.any() and not np.array_equal(before, after):
            out.append(t)
        before = after
    return out


def due(n: int, d: int, half_life: int | None, before: float = 0.0) -> list[int]:
    """From 8 records on, when a twentieth of the weight and d / 3 of them are new; `before` came earlier."""
    keep = 1.0 if half_life is None else 0.5 ** (1.0 / half_life)
    out, total, fresh, since = [], before, 0.0, 0
    for t in range(1, n + 1):
        total, fresh, since = total * keep + 1.0, fresh * keep + 1.0, since + 1
        if before + t >= 8 and 3 * since >= d and fresh >= 0.05 * total:
            out.append(t)
            fresh, since = 0.0, 0
    return out


@pytest.mark.parametrize("half_life", [None, 300])
def test_weights_are_solved_for_when_a_twentieth_of_the_weight_is_new(half_life: int | None) -> None:
    model = ranking.PairMoments(half_life=half_life)
    assert solved_at(model, numbers("ranking", 900, d=2)) == due(900, 2, half_life)


def test_a_sum_is_solved_again_when_a_twentieth_of_both_is_new() -> None:
    data = numbers("ranking", 900, d=2)
    one, two = (taught(ranking.PairMoments(half_life=None), part) for part in (data[:300], data[300:700]))
    assert solved_at(one + two, data[700:]) == due(200, 2, None, 700.0)


@pytest.mark.parametrize(
    ("d", "when"),
    [(3, [*range(8, 21)]), (12, [8, 12, 16, 20]), (24, [8, 16]), (25, [9, 18]), (48, [16])],
)
def test_weights_are_solved_for_when_a_third_as_many_records_as_columns_are_new(
    d: int, when: list[int]
) -> None:
    """From 8 records on; a twentieth of 20 records is one."""
    assert solved_at(ranking.PairMoments(half_life=None), numbers("ranking", 20, d=d)) == when


def test_a_rare_class_is_learned_from() -> None:
    """One positive in 2,000 records; with none, nothing is."""
    rows = [({"a": float(i % 11)}, i == 500) for i in range(2000)]
    model = taught(auc.PairMoments(half_life=None), rows) + auc.PairMoments(half_life=None)
    assert model.weights["a"] != 0.0
