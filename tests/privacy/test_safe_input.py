"""What may stand in front of a private learner raises on nothing; a bad cell costs its own record alone."""

from __future__ import annotations

import contextlib
import copy
import decimal
import math
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from river import base, compose
from river import preprocessing as rivers

from streampair import auc, metric, privacy
from streampair.errors import ConfigError, RecordError
from streampair.preprocessing import Bounds, Guarded, Hashing, OneHot, RandomFourier, UnitBall
from streampair.privacy import check_pipeline, pipeline_check, pipeline_report
from streampair.privacy.mechanisms.second_moments import second_moments_diameter
from streampair.records.features import number
from streampair.records.frames import FeatureTable

NAMES = ["a", "b", "c"]
STEPS: list[Any] = [
    Bounds({"a": (0, 10), "b": (-1, 1), 3: (0, 1)}),
    UnitBall(),
    UnitBall(1e-300),
    OneHot({"a": ["x", "y"], "b": [1, 2], "d": ["", "\u00e9"]}),
    Hashing(3),
    RandomFourier(4, seed=1),
    RandomFourier(4, seed=1, features=["a", "b"]),
    Guarded(compose.Select("a", "b")),
    Guarded(rivers.Normalizer()),
    Guarded(compose.Renamer({"a": "b"})),
    Guarded(compose.FuncTransformer(lambda x: x["a"] * x["b"])),
]
every_step = pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)


class Hostile:
    """A value that answers every question with an error."""

    def __float__(self) -> float:
        raise RuntimeError("secret")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("secret")

    def __hash__(self) -> int:
        raise RuntimeError("secret")

    def __repr__(self) -> str:
        raise RuntimeError("secret")


values = st.one_of(
    st.floats(),
    st.text(max_size=4),
    st.just("\ud800"),
    st.builds(Hostile),
    st.integers(),
    st.sampled_from(
        [
            *(None, True, 10**400, -(10**400), b"1", 1j, [], [1.0], {}, {"a": {"b": 1}}, (1,), {1}),
            *(pd.NA, pd.NaT, np.ma.masked, np.float32(0.5), np.array([1.0, 2.0])),
            *(decimal.Decimal("0.5"), decimal.Decimal("sNaN"), object),
        ]
    ),
)
records = st.one_of(
    st.dictionaries(st.sampled_from([*NAMES, "a=x", 3, (1, 2), None, "\ud800"]), values, max_size=5),
    st.sampled_from([None, 3, math.nan, "text", b"", [], [("a", 1)], {1, 2}, np.ones(3), object()]),
)
numpys_warning = pytest.mark.filterwarnings("ignore:.*converting a masked element to nan")


def test_every_step_that_is_called_total_is_here() -> None:
    assert {f"{type(step).__module__}.{type(step).__qualname__}" for step in STEPS} == pipeline_check.TOTAL
    assert pipeline_check.TOTAL < pipeline_check.STATELESS


@every_step
@numpys_warning
@settings(deadline=None, max_examples=60)
@given(x=records)
def test_it_raises_on_no_record_and_leaves_it_as_it_was(step: Any, x: Any) -> None:
    before = list(x.items()) if isinstance(x, dict) else None
    out = step.transform_one(x)
    assert type(out) is dict
    assert out is not x
    if before is not None:
        assert [name for name, _ in before] == list(x)
        assert all(x[name] is value for name, value in before)
    assert not isinstance(out, float)


@numpys_warning
@settings(deadline=None, max_examples=60)
@given(x=records, y=values)
def test_a_private_learner_behind_takes_exactly_one_slot(x: Any, y: Any) -> None:
    for step in STEPS:
        learner = auc.PairFTRL(1.0, 1e-4, 50, features=NAMES, warmup=5, seed=1)
        learner.learn_one(step.transform_one(x), y)
        assert learner.slots == 1


def test_the_property_catches_steps_that_are_not() -> None:
    for step in (compose.Select("a"), rivers.Normalizer(), compose.Discard("a"), rivers.Binarizer()):
        raised = 0
        for x in ({"b": 1.0}, {"a": None}, {"a": "text"}, None):
            try:
                step.transform_one(x)  # type: ignore[arg-type]
            except Exception:
                raised += 1
        assert raised


# ---- frames ------------------------------------------------------------------------------------------------


def rows_of(frame: Any) -> list[list[Any]]:
    """As a private learner reads them."""
    return FeatureTable(frame, strict=False, read=number).rows.tolist()


@pytest.mark.parametrize("step", [s for s in STEPS if isinstance(s, base.MiniBatchTransformer)])
@pytest.mark.parametrize("named", [True, False])
@numpys_warning
@settings(deadline=None, max_examples=25)
@given(bad=values, row_index=st.integers(0, 3), column=st.integers(0, 2))
def test_a_bad_cell_of_a_frame_changes_its_own_row_alone(
    step: Any, named: bool, bad: Any, row_index: int, column: int
) -> None:
    cells = [[0.5, 1.0, 2.0], [5.0, 2.0, -1.0], [0.0, 0.0, 0.0], [-9.0, 0.25, 1e9]]
    names: list[Any] = NAMES if named else [5, 1, 3]
    good = {name: [row[j] for row in cells] for j, name in enumerate(names)}
    cells[row_index][column] = bad
    worse = {name: pd.Series([row[j] for row in cells], dtype=object) for j, name in enumerate(names)}
    clean, hit = step.transform_many(pd.DataFrame(good)), step.transform_many(pd.DataFrame(worse))
    assert list(clean.columns) == list(hit.columns)
    for i in range(4):
        if i != row_index:
            np.testing.assert_array_equal(rows_of(clean)[i], rows_of(hit)[i])
    if not named or not isinstance(bad, str | float | None) or bad == "\ud800":
        return  # polars has no place for it
    other = step.transform_many(
        pl.DataFrame({name: list(column) for name, column in worse.items()}, strict=False)
    )
    assert len(other) == 4


def test_masked_cells_are_null() -> None:
    X = np.ma.array([[0.5, 1.0], [2.0, 7.0], [3.0, 4.0]], mask=[[0, 0], [0, 1], [0, 0]])
    for kind in (X, X.astype(int), X.astype(object)):
        assert np.isnan(FeatureTable(kind, strict=False).rows).tolist() == X.mask.tolist()
        assert np.isnan(np.asarray(UnitBall().transform_many(kind))).any(axis=1).tolist() == [
            False,
            True,
            False,
        ]
    y = np.array([True, False, True])
    learner = auc.PairFTRL(1.0, 1e-4, 50, features=[0, 1], warmup=5, seed=1)
    learner.learn_many(X, y)
    assert (learner.slots, learner.null_slots) == (3, 1)
    assert np.isnan(learner.score_learn_many(X, y)).tolist() == [False, True, False]
    assert (learner.slots, learner.null_slots) == (6, 2)
    with pytest.raises(RecordError, match="feature 1 in row 1 is NaN"):
        metric.PairOGD().learn_many(X, y)


@pytest.mark.parametrize(
    "y",
    [
        np.ma.array([True, False, True], mask=[0, 1, 0]),
        np.ma.array([1, 0, 1], mask=[0, 1, 0]),
        np.ma.array([1.0, 0.0, 1.0], mask=[0, 1, 0]),
        pd.Series([True, None, True], dtype="boolean"),
        pd.Series([1, None, 1], dtype="Int64"),
        pd.Series([True, pd.NA, True]),
        pl.Series([True, None, True]),
    ],
    ids=lambda y: f"{type(y).__module__.partition('.')[0]}-{y.dtype}",
)
def test_masked_labels_are_null(y: Any) -> None:
    X = np.array([[0.5], [0.25], [1.0]])
    learner = auc.PairFTRL(1.0, 1e-4, 50, features=[0], warmup=5, seed=1)
    learner.learn_many(X, y)
    assert (learner.slots, learner.null_slots) == (3, 1)
    with pytest.raises(RecordError, match=r"row 1, the label"):
        auc.PairOGD().learn_many(X, y)


def test_a_masked_label_is_none_of_the_two() -> None:
    learner = auc.PairFTRL(1.0, 1e-4, 50, features=["a"], warmup=5, seed=1)
    for y in (np.ma.masked, np.ma.array(True, mask=True), pd.NA, pd.NaT):
        learner.learn_one({"a": 0.5}, y)
        with pytest.raises(RecordError, match="label"):
            auc.PairOGD().learn_one({"a": 0.5}, y)
    assert learner.null_slots == learner.slots == 4


# ---- the sum of a block ------------------------------------------------------------------------------------


class Strict(UnitBall):
    """The mutant: as it was, it raises at a cell that is no number."""

    def transform_many(self, X: Any) -> Any:
        FeatureTable(X)
        return super().transform_many(X)


def block_sum(step: Any, bad: Any) -> Any:
    """The sum of an open block of 100 records, fed in one frame, of which one holds `bad`; in real units."""
    learner = auc.PairFTRL(
        1.0, 1e-4, horizon=None, features=["a", "b"], warmup=1000, mechanism=privacy.SecondMoments(), seed=1
    )
    model = compose.Pipeline(step, learner)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.uniform(-1, 1, size=(1000, 2)), columns=["a", "b"])
    model.learn_many(frame, pd.Series(rng.random(1000) < 0.5))
    frame = pd.DataFrame({"a": [1.0] * 100, "b": [0.2] * 100}).astype(object)
    frame.at[40, "a"] = bad
    with contextlib.suppress(RecordError):  # what a loop over frames does to go on
        model.learn_many(frame, pd.Series([True] * 100))
    rule = learner.run.state  # type: ignore[union-attr]
    assert rule.releases == 0  # the block is open
    return np.frombuffer(rule.block.cells(), dtype=np.int64) * rule.plan.grid, rule.plan  # type: ignore[attr-defined]


@pytest.mark.parametrize("bad", ["text", None, math.nan, math.inf, 10**400, {"a": 1}, -1.0])
def test_neighbours_that_differ_in_one_cell_have_sums_within_the_diameter(bad: Any) -> None:
    """With the mutant the sums are tens of diameters apart: 99 records lose their slots with the bad one."""
    distances = []
    for step in (UnitBall(), Strict()):
        (one, plan), (other, _) = block_sum(step, 1.0), block_sum(step, bad)
        distances.append(float(np.linalg.norm(one - other)))
    largest = second_moments_diameter() + plan.grid * math.sqrt(plan.dim)
    assert distances[0] <= largest
    if isinstance(bad, str | dict) or bad == 10**400:
        assert distances[1] > 20 * largest


# ---- categories --------------------------------------------------------------------------------------------


def test_one_hot_by_hand() -> None:
    one_hot = OneHot({"country": ["NL", "BE"], "zone": [1, 2]})
    assert one_hot.columns == ["country=NL", "country=BE", "zone=1", "zone=2"]
    x = {"amount": 3, "country": "BE", "zone": 2}
    assert one_hot.transform_one(x) == {
        **{"amount": 3, "country=NL": 0.0, "country=BE": 1.0},
        **{"zone=1": 0.0, "zone=2": 1.0},
    }
    zeros = dict.fromkeys(one_hot.columns, 0.0)
    for unknown in ("FR", "", "nl", None, math.nan, 1, ["NL"]):
        assert one_hot.transform_one({"country": unknown}) == zeros
    # A text that reads as a number is that number, as in a column that a text has made text of.
    assert one_hot.transform_one({"zone": "1"}) == one_hot.transform_one({"zone": 1.0}) != zeros
    # A field that passes does not take the name of a column.
    assert one_hot.transform_one({"country=NL": 9.0}) == zeros
    for nothing in ({}, None):
        assert all(map(math.isnan, one_hot.transform_one(nothing).values()))  # type: ignore[arg-type]
    assert copy.deepcopy(one_hot).transform_one(x) == one_hot.clone().transform_one(x)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
@settings(deadline=None, max_examples=30)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["NL", "BE", "FR", None]), st.none() | st.floats(-1e9, 1e9)), max_size=6
    )
)
def test_one_hot_of_a_frame_is_that_of_its_rows(make: Any, rows: list[Any]) -> None:
    one_hot = OneHot({"country": ["NL", "BE"]})
    frame = make({"country": [c for c, _ in rows], "amount": [a for _, a in rows]})
    out = one_hot.transform_many(frame)
    assert type(out) is make
    assert list(out.columns) == ["amount", *one_hot.columns]
    for (country, amount), row in zip(rows, rows_of(out), strict=True):
        expected = one_hot.transform_one(
            {"amount": math.nan if amount is None else amount, "country": country}
        )
        np.testing.assert_array_equal(row, list(expected.values()))


@pytest.mark.parametrize("library", [pd, pl])
def test_one_hot_passes_texts_and_booleans_of_other_fields(library: Any) -> None:
    rows = [{"k": "ab"[t % 2], "t": "xyz"[t % 3], "b": t % 5 == 0, "v": t} for t in range(60)]
    frame = library.DataFrame(rows)
    one, many = (OneHot({"k": ["a", "b"]}) | auc.PairOGD() for _ in range(2))
    for t, row in enumerate(rows):
        one.learn_one(row, t % 3 == 0)
    many.learn_many(frame, library.Series([t % 3 == 0 for t in range(60)]))
    assert one["PairOGD"].weights == many["PairOGD"].weights
    assert {"t=x", "b", "v", "k=a"} <= set(one["PairOGD"].weights)


def test_one_hot_keeps_an_index_and_takes_columns_of_any_type() -> None:
    frame = pd.DataFrame({"c": pd.Categorical(["x", None, "y"]), 1: ["u", "t", 2]}, index=[7, 5, 3])
    out = OneHot({"c": ["x"], 1: ["t"]}).transform_many(frame)
    assert out.index.tolist() == [7, 5, 3]
    assert rows_of(out) == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    with pytest.raises(RecordError, match="give a data frame"):
        OneHot({0: ["x"]}).transform_many(np.array([["x"]]))


@pytest.mark.parametrize(
    ("categories", "message"),
    [
        ({}, "give a dict"),
        ([("a", ["x"])], "give a dict"),
        ({"a": "xy"}, "give a list"),
        ({"a": 3}, "give a list"),
        ({"a": []}, "has no values"),
        ({"a": ["x", "x"]}, "'x' is twice"),
        ({"a": [1, True]}, "True is twice"),
        ({"a": [1.5]}, "integers"),
        ({"a": [None]}, "integers"),
        ({"a": ["\ud800"]}, "printable strings"),
        ({"a": [1, "1"]}, "'1' is twice"),
        ({"a": ["b=c"], "a=b": ["c"]}, "make a column 'a=b=c'"),
    ],
    ids=str,
)
def test_bad_categories(categories: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OneHot(categories)


def test_text_reaches_a_private_learner_without_hashing() -> None:
    one_hot = OneHot({"country": ["NL", "BE"]})
    learner = auc.PairFTRL(
        *(1.0, 1e-4, 50),
        features=["amount", *one_hot.columns],
        bounds={"amount": (0, 10), **dict.fromkeys(one_hot.columns, (0, 1))},
    )
    model = one_hot | learner
    assert check_pipeline(model) == ()
    for i in range(50):
        model.learn_one({"amount": i % 10, "country": ["NL", "BE", "FR", None][i % 4]}, i % 2 == 0)
    assert (learner.slots, learner.null_slots) == (50, 0)


# ---- Guarded, and what a pipeline is told --------------------------------------------------------------


def test_total_refuses_what_may_learn() -> None:
    for step in (
        rivers.StandardScaler(),
        rivers.FeatureHasher(),
        compose.Select("a") | rivers.MinMaxScaler(),
        3,
    ):
        with pytest.raises(ConfigError, match="may learn"):
            Guarded(step)
    both = Guarded(compose.Select("a") + compose.Select("b") | rivers.Normalizer())
    assert both.transform_one({"a": 3.0, "b": 4.0}) == {"a": 0.6, "b": 0.8}
    assert both.transform_one({"a": 3.0, "b": "text"}) == {}


def test_a_learner_sees_nothing_of_a_pipeline_in_front_of_it_and_says_so() -> None:
    learner = auc.PairFTRL(1.0, 1e-4, 50, features=["a"])
    model = compose.Pipeline(rivers.StandardScaler(), learner)
    model.learn_one({"a": 1.0}, True)
    assert learner.privacy.kind == "holds"
    assert any("pipeline_report" in note for note in learner.privacy.notes)
    report = pipeline_report(model)
    assert report.kind == "void"
    assert "StandardScaler learns from the stream in front of PairFTRL" in report.guarantee
    assert report.releases == learner.privacy.releases
    seeded = rivers.StandardScaler() | auc.PairFTRL(1.0, 1e-4, 50, features=["a"], seed=1)
    assert pipeline_report(seeded).guarantee.startswith("void (fixed seed; StandardScaler learns")
    assert pipeline_report(learner) == learner.privacy == pipeline_report(Bounds({"a": (0, 1)}) | learner)
