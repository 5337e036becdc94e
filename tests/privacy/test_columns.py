"""One record of a frame never decides what the others are: the type of a column says nothing of a cell.

The frames are those that `pandas.read_csv`, polars and NumPy make of the same records: nobody forces a type.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator
from csv import writer
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.stats
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streampair import auc, metric, preprocessing, ranking
from streampair.base.dp_session import PrivateSession
from streampair.errors import RecordError
from streampair.records import features, frames

LEARNERS: dict[str, Callable[[], Any]] = {
    "auc": partial(auc.PairFTRL, 1.0, 1e-4, 60, features=["a", "b"]),
    "auc, text": partial(auc.OnPairC, 1.0, 1e-4, 60, features=["a", "b"], positive="yes", negative="no"),
    "forest": partial(auc.PrivateForest, 1.0, 1e-4, 60, features=["a", "b"], trees=3, depth=2, warmup=4),
    "ranking": partial(ranking.PairFTRL, 1.0, 1e-4, 60, features=["a", "b"], relevance=(0, 4)),
    "metric": partial(metric.PairFTRL, 1.0, 1e-4, 60, features=["a", "b"], classes=[0, 1, 2]),
    "waiting": partial(auc.PairFTRL, 1.0, 1e-4, 60),
}
COLUMNS: dict[str, list[Any]] = {
    "floats": [0.5, -0.1, 1e-7, 12345.678901234567, 0.30000000000000004, 1e22],
    "whole numbers": [1, 0, -3, 7, 2**60 + 1, 5],
    "truth values": [True, False, True, True, False, False],
    "with gaps": [0.5, None, 1.0, None, 2.0, 3.0],
}
LABELS: dict[str, list[Any]] = {
    "truth values": [True, False, True, False, False, True],
    "whole numbers": [1, 0, 2, 1, 0, 1],
    "floats": [1.0, 0.0, 0.5, 1.0, 0.0, 4.0],
    "texts": ["yes", "no", "yes", "no", "no", "yes"],
    "with gaps": [1, None, 0, 1, 1, 0],
}
BAD: list[Any] = ["abc", "", "NaN", "None", "True", "0", "1e400", "0x1F", "9" * 25, "9" * 400, "1_000", "inf"]
BAD += ["2024-01-01", "{}", "[1.0]", "1j", "1,5", " 7 ", "-.5e-3", "\u0661", "null"]
OBJECTS: list[Any] = [
    *BAD,
    None,
    math.nan,
    math.inf,
    10**400,
    2**70,
    True,
    0.25,
    b"abc",
    b"1",
    object(),
    (1,),
]


def taken(make: Callable[[], Any], tables: Iterator[tuple[Any, Any]] | Any) -> tuple[Any, Any, Any]:
    """What the rows of frames are to a learner: raw values and labels by row; and the learner."""
    rows, labels = [], []
    take_many = PrivateSession.take_many

    def spy(run: PrivateSession, raw: Any, labels_given: Any, *args: Any, **kwargs: Any) -> Any:
        rows.append(np.array(raw))
        labels.append(np.array(labels_given))
        return take_many(run, raw, labels_given, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateSession, "take_many", spy)
        model = make()
        for X, y in tables:
            model.learn_many(X, y)
    return np.concatenate(rows), np.concatenate(labels), model


def differing(make: Callable[[], Any], one: Any, other: Any) -> tuple[list[int], bool]:
    """Which records the learner takes for others in two frames, and whether one of the reports is void."""
    raw, labels, model = taken(make, [one])
    raw2, labels2, model2 = taken(make, [other])
    apart = ~((raw == raw2) | (np.isnan(raw) & np.isnan(raw2))).all(axis=1)
    apart |= ~((labels == labels2) | (np.isnan(labels) & np.isnan(labels2)))
    return np.flatnonzero(apart).tolist(), "void" in {model.privacy.kind, model2.privacy.kind}


def csv(columns: dict[str, list[Any]]) -> str:
    """The text of a file: each cell as Python writes it, an empty one where there is none."""
    out = io.StringIO()
    lines = writer(out)
    lines.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        lines.writerow(["" if cell is None else cell for cell in row])
    return out.getvalue()


def of_pandas(columns: dict[str, list[Any]]) -> tuple[Any, Any]:
    frame = pd.read_csv(io.StringIO(csv(columns)))
    return frame[["a", "b"]], frame["y"]


def of_polars(columns: dict[str, list[Any]]) -> tuple[Any, Any]:
    frame = pl.read_csv(io.StringIO(csv(columns)), infer_schema_length=None)
    return frame[["a", "b"]], frame["y"]


def built(kind: str, columns: dict[str, list[Any]]) -> tuple[Any, Any]:
    if kind == "pandas":
        frame: Any = pd.DataFrame(columns)
        return frame[["a", "b"]], frame["y"]
    if kind == "polars":
        frame = pl.DataFrame(columns, strict=False)
        return frame[["a", "b"]], frame["y"]
    return np.array([columns["a"], columns["b"]]).T, np.array(columns["y"])


def replaced(columns: dict[str, list[Any]], name: str, index: int, cell: Any) -> dict[str, list[Any]]:
    return {
        key: [cell if key == name and i == index else v for i, v in enumerate(column)]
        for key, column in columns.items()
    }


def table_of(data: st.DataObject) -> dict[str, list[Any]]:
    return {
        "a": data.draw(st.sampled_from(list(COLUMNS.values()))),
        "b": data.draw(st.sampled_from(list(COLUMNS.values()))),
        "y": data.draw(st.sampled_from(list(LABELS.values()))),
    }


@pytest.mark.parametrize("read", [of_pandas, of_polars])
@pytest.mark.parametrize("name", LEARNERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_one_cell_of_a_csv_file_changes_its_own_record_alone(
    name: str, read: Any, data: st.DataObject
) -> None:
    columns = table_of(data)
    where, index = data.draw(st.sampled_from(["a", "b", "y"])), data.draw(st.integers(0, 5))
    other = replaced(columns, where, index, data.draw(st.sampled_from(BAD)))
    try:
        given_frames = read(columns), read(other)
    except pl.exceptions.ComputeError:  # polars has no place for a number of 400 digits
        return
    apart, void = differing(LEARNERS[name], *given_frames)
    assert not void
    assert set(apart) <= {index}


@pytest.mark.parametrize("kind", ["pandas", "polars", "numpy"])
@pytest.mark.parametrize("name", LEARNERS)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_one_cell_of_a_frame_changes_its_own_record_alone(name: str, kind: str, data: st.DataObject) -> None:
    """Or, where a library has thrown the other cells away, the report says that nothing holds."""
    columns = table_of(data)
    nested = [{}, {"a": 1.0}, [1.0], 1j, pd.Timestamp(0), pd.Timedelta(1)]
    where, index = data.draw(st.sampled_from(["a", "b", "y"])), data.draw(st.integers(0, 5))
    other = replaced(columns, where, index, data.draw(st.sampled_from([*OBJECTS, *nested])))
    make = LEARNERS[name]
    if kind == "numpy" and name != "waiting":
        make = partial(make, features=[0, 1])
    try:
        given_frames = built(kind, columns), built(kind, other)
    except Exception:  # the library has no place for the cell
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        apart, void = differing(make, *given_frames)
    assert void or set(apart) <= {index}


# ---- one cell --------------------------------------------------------------------------------------------


@settings(max_examples=600, deadline=None)
@given(
    text=st.text("0123456789.eE+-_xinfaINFT ", max_size=7) | st.floats().map(repr) | st.integers().map(str)
)
@example("True")
@example("false")
@example("Infinity")
@example("-NaN")
@example(str(2**127))
def test_a_text_is_the_number_that_pandas_and_polars_read_in_a_column_of_numbers(text: str) -> None:
    """Else the numbers of a column would move a little when a text joins them."""
    columns = [pd.read_csv(io.StringIO(f'a\n"{text}"\n')).a]
    try:
        columns.append(pl.read_csv(io.StringIO(f'a\n"{text}"\n'))["a"])
    except pl.exceptions.ComputeError:  # polars has no place for an integer above 2**127
        assert abs(int(text)) >= 2**127
    for column in columns:
        if len(column) == 1 and str(column.dtype).lower() in ("float64", "int64", "bool", "boolean"):
            read = float(column[0]) if column[0] is not None else math.nan
            if read == read:
                assert features.number(text) == read


def test_a_cell_by_hand() -> None:
    assert [features.number(x) for x in (2, True, "2", b"2.5", " 1e3\n", "TRUE", "false", "-.5")] == [
        *(2.0, 1.0, 2.0, 2.5, 1000.0, 1.0, 0.0, -0.5)
    ]
    for word in ("", "abc", "1_000", "0x1F", "1,5", "- 1", "1j", "\u0661", "yes", "1 2"):
        assert features.real(word) is None
        with pytest.raises(ValueError, match="not a number"):
            features.number(word)
    assert [features.real(x) for x in ("nan", "inf", "1e400", "9" * 400, None, [], 10**400)] == [None] * 7
    assert [features.label(y) for y in ("1", "1.0", "True", "yes", b"no", 0.5, None)] == [
        *(1, 1.0, True, True, False, 0.5, None)
    ]
    assert features.label(str(2**60 + 1)) == 2**60 + 1


# ---- from outside ----------------------------------------------------------------------------------------

RUNS, SPOT = 200, 17
# A lower bound of epsilon is above the claim of a right learner less often than this.
CHANCE = 1e-6


def canary(cell: str, labels: tuple[str, str] = ("True", "False"), label: str | None = None) -> pd.DataFrame:
    """A file of 1,000 records as `read_csv` reads it, with this cell in one of them, or this label."""
    rng = np.random.default_rng(5)
    values, positive = rng.uniform(-1.0, 1.0, (1000, 2)), rng.random(1000) < 0.5
    values[:, 0] = np.where(positive, 0.9, -0.9)
    lines = [
        [repr(a), repr(b), labels[0] if y else labels[1]]
        for (a, b), y in zip(values.tolist(), positive, strict=True)
    ]
    lines[SPOT][0] = cell
    if label is not None:
        lines[SPOT][2] = label
    return pd.read_csv(io.StringIO("\n".join(["a,b,y", *map(",".join, lines)])))


def observed_epsilon(one: pd.DataFrame, other: pd.DataFrame) -> float:
    """The epsilon that the published models of two neighbours show, at the least (Clopper and Pearson)."""
    scores: Any = np.empty((2, RUNS))
    for side, frame in enumerate((one, other)):
        for run in range(RUNS):
            model = auc.PairFTRL(1.0, 1e-5, 1000, features=["a", "b"], warmup=0)
            model.learn_many(frame[["a", "b"]], frame["y"])
            assert model.privacy.kind == "holds"
            scores[side, run] = model.weights["a"]
    # The threshold comes from the first half of the runs, the bound from the second.
    half = RUNS // 2
    threshold = float(np.median(scores[:, :half]))
    hits = (scores[:, half:] > threshold).sum(axis=1)
    best = 0.0
    for more, fewer in (hits, hits[::-1], half - hits, half - hits[::-1]):
        low = scipy.stats.beta.ppf(CHANCE / 16, more, half - more + 1) if more else 0.0
        high = scipy.stats.beta.ppf(1.0 - CHANCE / 16, fewer + 1, half - fewer) if fewer < half else 1.0
        if low > 1e-5:
            best = max(best, math.log((low - 1e-5) / high))
    return best


@pytest.mark.parametrize("cell", ["abc", "1_000", "2024-01-01"])
def test_a_text_in_one_cell_shows_no_more_than_is_promised(cell: str) -> None:
    """One text in a column changes how its other cells are read."""
    assert observed_epsilon(canary("0.5"), canary(cell)) <= 1.0


@pytest.mark.parametrize("label", ["maybe", "", "0.5"])
def test_a_text_for_a_label_shows_no_more_than_is_promised(label: str) -> None:
    """One label that cannot be read changes how the others are read."""
    assert observed_epsilon(canary("0.5"), canary("0.5", label=label)) <= 1.0


# ---- steps in front, and records one by one ---------------------------------------------------------------

STEPS: dict[str, Callable[[], Any]] = {
    "Bounds": lambda: preprocessing.Bounds({"a": (0, 2), "b": (-1, 1)}),
    "UnitBall": preprocessing.UnitBall,
    "OneHot": lambda: preprocessing.OneHot({"a": [0, 1, "abc", "7"]}),
    "Hashing": lambda: preprocessing.Hashing(3),
    "RandomFourier": lambda: preprocessing.RandomFourier(4, features=["a", "b"]),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["csv", "pandas", "polars"])
@settings(max_examples=180, deadline=None)  # of 20 none shows that a column was forgotten
@given(data=st.data())
def test_a_step_in_front_keeps_cells_apart_too(step: str, kind: str, data: st.DataObject) -> None:
    columns = table_of(data)
    bad: list[Any] = BAD if kind == "csv" else [*OBJECTS, {}, [1.0], 1j, pd.Timestamp(0)]
    where, index = data.draw(st.sampled_from(["a", "b"])), data.draw(st.integers(0, 5))
    other = replaced(columns, where, index, data.draw(st.sampled_from(bad)))
    made = STEPS[step]()
    try:
        (X, y), (X2, y2) = map(of_pandas if kind == "csv" else partial(built, kind), (columns, other))
    except Exception:  # the library has no place for the cell
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, two = (made.transform_many(frame) for frame in (X, X2))
        make = partial(auc.PairFTRL, 1.0, 1e-4, 60, features=list(one.columns))
        apart, void = differing(make, (one, y), (two, y2))
    assert void or set(apart) <= {index}
    assert not (void and kind == "csv")


@pytest.mark.parametrize("name", LEARNERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_record_is_the_same_alone_and_in_a_frame(name: str, data: st.DataObject) -> None:
    columns = table_of(data)
    where, index = data.draw(st.sampled_from(["a", "b", "y"])), data.draw(st.integers(0, 5))
    columns = replaced(columns, where, index, data.draw(st.sampled_from([*BAD, {}, [1.0], None])))
    # The first record is whole: it names the features.
    X = pd.DataFrame({name: pd.Series(columns[name], dtype=object) for name in ("a", "b")})
    many, one = LEARNERS[name](), LEARNERS[name]()
    many.learn_many(X, pd.Series(columns["y"], dtype=object))
    for i in range(6):
        one.learn_one({name: columns[name][i] for name in ("a", "b")}, columns["y"][i])
    assert (many.slots, many.null_slots) == (one.slots, one.null_slots)
    if name == "metric":
        return  # it scores no frame as it learns
    scores = many.score_learn_many(X, pd.Series(columns["y"], dtype=object)).to_numpy()
    for i in range(6):
        x = {name: columns[name][i] for name in ("a", "b")}
        readable = all(features.real(value) is not None for value in x.values())
        assert math.isnan(scores[i]) is not readable
        if readable:
            one.score_one(x)
        else:
            with pytest.raises(RecordError, match="feature"):
                one.score_one(x)


@pytest.mark.parametrize(
    ("X", "y", "problem"),
    [
        (pl.DataFrame({"a": [{}, 0.5], "b": [1.0, 2.0]}, strict=False), [True, False], "column 'a'"),
        (pd.DataFrame({"a": [1j, 0.5], "b": [1.0, 2.0]}), [True, False], "column 'a'"),
        (pd.DataFrame({"a": [0.5, 0.5], "b": [1.0, 2.0]}), [1j, 0.0], "labels of type complex128"),
    ],
)
def test_a_column_that_cannot_be_read_record_by_record_voids_the_report(X: Any, y: Any, problem: str) -> None:
    model = auc.PairFTRL(1.0, 1e-4, 60, features=["a", "b"])
    with warnings.catch_warnings(record=True) as warned:  # of the first label that cannot be used, too
        warnings.simplefilter("always")
        model.learn_many(X, np.array(y))
    assert any(problem in str(warning.message) for warning in warned)
    assert model.privacy.kind == "void"
    assert "a frame cannot be read record by record" in model.privacy.guarantee
    # One that is no feature of the learner says nothing.
    other = auc.PairFTRL(1.0, 1e-4, 60, features=["b"])
    if "column" in problem:
        other.learn_many(X, np.array(y))
        assert other.privacy.kind == "holds"


def test_labels_that_a_gap_has_rounded_void_the_report() -> None:
    """A number of a person beyond 2^53 is another one in the floats that a gap makes of its column."""
    X, y = np.array([[0.5], [1.0]]), np.array([2.0**53, math.nan])
    makes: list[tuple[Callable[..., Any], bool]] = [
        (metric.PairFTRL, True),
        (partial(metric.PairFTRL, classes=[1, 2]), False),
        (partial(auc.PairFTRL, positive=2**60 + 1, negative=0), True),
        (auc.PairFTRL, False),
    ]
    for make, void in makes:
        model = make(1.0, 1e-4, 60, features=[0])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.learn_many(X, y)
        assert ["labels beyond 2^53" in str(w.message) for w in caught if "2^53" in str(w.message)] == [
            True
        ] * void
        assert (model.privacy.kind == "void") is void


def test_types_that_are_read_one_by_one() -> None:
    for kind in (pd.Timestamp(0), pd.Interval(0, 1)):
        assert frames.label_type(pd.Series([kind])) is not None
    for column in (pd.Series([1, "a"]), pl.Series([None, None]), pd.Series(["a"]).astype("category")):
        assert frames.label_type(column) is None
