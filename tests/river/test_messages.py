"""What is given in a wrong form is refused with words that name the fix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from harness.support import in_one_case

from streampair import auc, metric, offline
from streampair.errors import ConfigError, RecordError

X = pd.DataFrame({"a": [0.5, 1.0]})
Y = pd.Series([True, False])
PRIVATE = auc.PairFTRL(1.0, 1e-4, 50, features=["a"])


@pytest.mark.parametrize("model", [auc.PairOGD(), auc.Forest(), PRIVATE], ids=lambda m: type(m).__name__)
@in_one_case(
    ("frame", "labels", "message"),
    [
        (X, [True, False], r"labels are a list.*numpy\.array\(y\)"),
        (X, None, r"labels are a NoneType.*Series"),
        (X, X, r"labels are a DataFrame.*frame\['label'\]"),
        (X["a"], Y, r"a Series is one column.*X\.to_frame\(\)"),
        (pl.Series([0.5, 1.0]), Y, r"a Series is one column.*X\.to_frame\(\)"),
        (pl.LazyFrame({"a": [0.5, 1.0]}), Y, r"until it is collected.*X\.collect\(\)"),
        ([{"a": 0.5}], Y, r"a list is not a data frame.*DataFrame"),
        ({"a": 0.5}, Y, r"a dict is not a data frame.*learn_one"),
    ],
)
def test_what_is_no_frame_or_no_labels(model: Any, frame: Any, labels: Any, message: str) -> None:
    """By its type, not by what a record holds: of a private learner, too."""
    before = model.records
    with pytest.raises(RecordError, match=message):
        model.learn_many(frame, labels)
    if "labels" not in message:
        with pytest.raises(RecordError, match=message):
            model.score_many(frame)
    assert model.records == before


@pytest.mark.parametrize("number", [10**400, 10**5000, -(10**400)], ids=["large", "very large", "negative"])
def test_a_whole_number_beyond_floats(number: int) -> None:
    """A private learner takes a null slot, and says nothing."""
    for call in (lambda m: m.score_one({"a": number}), lambda m: m.learn_one({"a": number}, True)):
        with pytest.raises(RecordError, match=r"'a' is an integer beyond the range of a float.*logarithm"):
            call(auc.PairOGD())
    frame = pd.DataFrame({"a": [0.5, number]})
    with pytest.raises(RecordError, match=r"'a' in row 1 is an integer beyond the range of a float"):
        auc.PairOGD().learn_many(frame, Y)
    model = auc.PairFTRL(1.0, 1e-4, 50, features=["a"])
    model.learn_one({"a": number}, True)
    model.learn_many(frame, Y)
    assert (model.slots, model.null_slots) == (3, 2)


def test_the_text_that_made_text_of_a_column_is_named() -> None:
    frame = pd.DataFrame({"a": ["0.5", "1.0", "abc", "2.0"]})
    with pytest.raises(RecordError, match="feature 'a' in row 2 is text: 'abc'"):
        metric.PairOGD().learn_many(frame, pd.Series([True] * 4))
    with pytest.raises(RecordError, match="feature 'a' in row 2 is text: 'abc'"):
        PRIVATE.score_many(frame)


def test_a_frame_is_no_record() -> None:
    with pytest.raises(RecordError, match=r"not a mapping from names to numbers: a 0 0\.5.*learn_many"):
        auc.PairOGD().learn_one(X, True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"a": [0.5, 1.0, 2.0], "c": ["1", "NL", "BE"]}),
        pl.DataFrame({"a": [0.5, 1.0, 2.0], "c": ["1", "NL", "BE"]}),
        np.array([[0.5, "1"], [1.0, "NL"], [2.0, "BE"]], dtype=object),
        [[0.5, "1"], [1.0, "NL"], [2.0, "BE"]],
    ],
    ids=["pandas", "polars", "numpy", "list"],
)
@pytest.mark.parametrize("kind", [offline.DPGDSC, offline.PairSGD, offline.DPPMetricLearner])
def test_a_table_with_text_is_refused_by_name(kind: Any, table: Any) -> None:
    with pytest.raises(ConfigError, match=r"feature ('c'|1) in row 1 is text: 'NL'.*leave the column out"):
        kind().fit(table, [True, False, True])
    model = offline.DPGDSC().fit(np.eye(2), [True, False])
    with pytest.raises(ConfigError, match="is text: 'NL'"):
        model.decision_function(np.array(table, dtype=object))
