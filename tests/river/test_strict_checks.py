"""What River's checks leave out, on a learner of each base class; with ``--everything`` on all.

River never feeds NaN, text or ``{}``, lets a learner pass that keeps every record, and asks nothing of
names that never end or of predictions that change what they look at.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness.learners import (
    LEARNERS,
    NAMES,
    by_base,
    each_base,
    frozen,
    is_private,
    keeps_all,
    looks,
    name_of,
    same,
    stream,
    taught,
)
from harness.support import at_row

from streampair import auc, buffers, losses, privacy
from streampair.errors import RecordError
from streampair.privacy.pipeline_check import class_name

BAD_VALUES = [
    (math.nan, "is NaN"),
    (np.float64("nan"), "is NaN"),
    (math.inf, "is infinite"),
    (-math.inf, "is infinite"),
    (None, "is None"),
    ("1.5", "is text: '1.5'"),
    (b"1.5", "is text"),
    ("x" * 10_000, "is text: 'xxx"),
    ([1.0], "is not a number"),
    ({}, "is not a number"),
    (1j, "is not a number"),
    (10**400, "is an integer beyond the range of a float"),
    (np.array([1.0, 2.0]), "is not a number"),
    (1e51, "beyond the limit"),
]


@each_base
def test_bad_values(model: Any) -> None:
    for number, (value, message) in enumerate(BAD_VALUES):
        with at_row(value, message):
            _check_bad_value(copy.deepcopy(model), value, message, (0, 12)[number % 2])


def _takes(model: Any, value: Any) -> bool:
    """Whether it is a feature, or a gap, to the learner."""
    if isinstance(value, str):
        return bool(model.takes_text)
    return (
        model.takes_gaps
        and not is_private(model)
        and (value is None or (isinstance(value, float) and math.isnan(value)))
    )


def _check_bad_value(fresh: Any, value: Any, message: str, learned: int) -> None:
    whole = stream(fresh, 1)[0][0]
    if _takes(fresh, value):
        taught(fresh, learned).learn_one({**whole, "f3": value}, stream(fresh, 1)[0][1])
        assert fresh.records == learned + 1
        assert math.isfinite(fresh.score_one({**whole, "f3": value}))
        return
    if is_private(fresh):
        if message == "beyond the limit" or str(value) in (
            "1.5",
            "b'1.5'",
        ):  # a text that reads as a number is one
            taught(fresh, learned).learn_one({**whole, "f3": value}, stream(fresh, 1)[0][1])
            assert fresh.null_slots == 0  # any finite number: design vectors are bounded
            return
        _check_bad_record(fresh, learned, {**whole, "f3": value}, f"feature 'f3'.*{message}")
        return
    if message == "beyond the limit" and hasattr(fresh, "metric_"):
        value = 1e31  # it is squared
    taught(fresh, learned)
    for x in ({**whole, "f3": value}, {"f1": 1.0, "f3": value}, {**whole, "zz": 1.0, "f3": value}):
        _check_bad_record(copy.deepcopy(fresh), 0, x, f"feature 'f3'.*{message}")
    # A private learner leaves unknown names out.
    _check_bad_record(fresh, 0, {**whole, "unknown": value}, f"feature 'unknown'.*{message}")


@each_base
def test_no_record_at_all(model: Any) -> None:
    for x, learned in itertools.product(({}, None, 3, "text", [1.0], np.zeros(5)), (0, 12)):
        with at_row(x, learned):
            _check_bad_record(copy.deepcopy(model), learned, x, "no features|not a mapping")


def needs_warmup(model: Any) -> bool:
    kinds = (privacy.SecondMoments, privacy.DecayedMoments)
    trees = getattr(model, "trees", None) is not None
    return trees or isinstance(getattr(model, "mechanism", None), kinds)


def with_control(model: Any, learned: int) -> tuple[Any, Any]:
    """Two that learned the same; if private, under one seed, where a null record draws the same noise."""
    if is_private(model):
        # What fades and what has trees has to have a warm-up.
        short = int(needs_warmup(model))
        one, two = (
            taught(model.clone({"noise_key": None, "seed": 1, "warmup": short}), learned) for _ in range(2)
        )
        return one, two
    return taught(model, learned), copy.deepcopy(model)


def _refused(call: Callable[[], Any], message: str, stage: str) -> None:
    with pytest.raises(RecordError, match=rf"(?s)({message}).*Fix: ") as caught:
        call()
    assert caught.value.stage == stage
    assert len(str(caught.value)) < 300


def _check_bad_record(model: Any, learned: int, x: Any, message: str) -> None:
    """Refused with an error that names the way out, and nothing changes; or, if private, a null slot."""
    model, control = with_control(model, learned)
    before = frozen(model)
    for look in looks(model):
        _refused(lambda look=look: look(x), message, "features")
    good, y = stream(model, 1)[0]
    if hasattr(model, "distance_one"):
        _refused(lambda: model.distance_one(good, x), message, "features")
    assert frozen(model) == before
    if is_private(model):
        model.learn_one(x, y)
        if learned and getattr(model, "trees", None) is not None and isinstance(x, dict) and len(x) > 1:
            # Leaves learn what is there of it, and a bad value is none.
            control.learn_one({name: value for name, value in x.items() if name != "f3"}, y)
        else:
            control.learn_null()
        assert model.slots == control.slots
        if not control.feature_names:  # which a bad value may tell and a null record does not
            return
    else:
        _refused(lambda: model.learn_one(x, y), message, "features")
    # And it goes on as if nothing, or a null record, had been.
    assert frozen(model) == frozen(control)
    for each in (model, control):
        each.learn_one(good, y)
    assert frozen(model) == frozen(control)


BAD_LABELS: dict[str, list[tuple[Any, str]]] = {
    "every": [(None, ""), (math.nan, ""), (np.float64("nan"), ""), (np.array([True, False]), "")],
    "streampair.auc": [([1], ""), (1j, ""), (pd.NA, "")],
    "streampair.metric": [
        (None, "is unknown"),
        (math.nan, "is unknown"),
        (pd.NA, "neither text nor a finite number"),
        (np.array([1, 2]), "neither text nor a finite number"),
        (("a",), "neither text nor a finite number"),
        ([1], "neither text nor a finite number"),
    ],
    "streampair.ranking": [
        (None, "unknown"),
        (math.nan, "unknown"),
        (math.inf, "not a number"),
        ("high", "not a number"),
        (np.array([0.5, 0.5]), "not a number"),
        ([1], "not a number"),
        (1j, "not a number"),
    ],
}


@each_base
@pytest.mark.parametrize("learned", [0, 12])
def test_bad_labels(fresh: Any, learned: int) -> None:
    fresh, control = with_control(fresh, learned)
    good, y = stream(fresh, 1)[0]
    for bad, message in BAD_LABELS["every"] + BAD_LABELS.get(class_name(fresh).rpartition(".")[0], []):
        before = frozen(fresh)
        if is_private(fresh):
            fresh.learn_one(good, bad)
            control.learn_null()
            assert fresh.slots == control.slots
            if not control.feature_names:
                return
        else:
            for x in (good, {"new": 1.0}):
                _refused(lambda x=x, bad=bad: fresh.learn_one(x, bad), message, "label")
                assert frozen(fresh) == before
        assert frozen(fresh) == frozen(control)
        for each in (fresh, control):
            each.learn_one(good, y)
        assert frozen(fresh) == frozen(control)


@each_base
def test_predictions_change_nothing(fresh: Any) -> None:
    taught(fresh, 25)
    before, pickled = frozen(fresh), pickle.dumps(fresh)
    probes = [stream(fresh, 1, seed=9)[0][0], {"f0": 1.0}, {"f1": 2.0, "unknown": 3.0}]
    for look in looks(fresh):
        first = [look(x) for x in probes]
        assert all(same(look(x), seen) for x, seen in zip(probes, first, strict=True))
    X = pd.DataFrame([x for x, _ in stream(fresh, 6, seed=3)])
    for name in ("score_many", "predict_many", "predict_proba_many", "transform_many"):
        if hasattr(fresh, name):
            getattr(fresh, name)(X)
            getattr(fresh, name)(X[["f2"]])
    assert frozen(fresh) == before
    assert pickle.dumps(fresh) == pickled


@each_base
def test_the_order_of_features_does_not_matter(fresh: Any) -> None:
    rng = random.Random(5)
    control = copy.deepcopy(fresh)
    for x, y in stream(fresh, 30):
        names = list(x)
        rng.shuffle(names)
        shuffled = {name: x[name] for name in names}
        fresh.learn_one(x, y)
        control.learn_one(shuffled, y)
        for look, other in zip(looks(fresh), looks(control), strict=True):
            assert same(look(x), other(shuffled))
    assert frozen(control) == frozen(fresh)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, id=name_of(model), marks=marks)
        for model, marks in by_base([m for m in LEARNERS if not keeps_all(m)])
    ],
)
def test_memory_stays_where_it_is(fresh: Any) -> None:
    # Private ones begin with a warm-up; then their buffers fill. Boosted trees keep 4,000 records.
    for x, _ in stream(taught(fresh, 5000 if "Forest" in type(fresh).__name__ else 700), 1):
        looks(fresh)[0](x)
    frozen(fresh)  # no record waits to be hashed
    size, saved = fresh._raw_memory_usage, len(pickle.dumps(fresh))
    for x, y in stream(fresh, 1500, seed=1):
        fresh.learn_one(x, y)
        looks(fresh)[0](x)
    frozen(fresh)
    assert fresh._raw_memory_usage <= size + 256
    assert len(pickle.dumps(fresh)) <= saved + 256


@each_base
def test_names_that_never_end(fresh: Any) -> None:
    """An explicit limit on names, beyond which linear learners share columns and others refuse the record;
    or, if private, the names of the first record, and the others counted.
    """
    if hasattr(fresh, "max_features"):
        fresh = fresh.clone({"max_features": 12})
    taught(fresh, 10)
    private, shares = is_private(fresh), fresh.takes_nulls
    for t in range(60):
        before = frozen(fresh)
        x, y = stream(fresh, 1, seed=t)[0]
        x = {**x, f"id-{t}": 1.0}
        if shares and t == 7:
            with pytest.warns(UserWarning, match=r"max_features=12 .*share 3 columns. Fix: raise"):
                fresh.learn_one(x, y)
        elif private or shares or t < 7:
            fresh.learn_one(x, y)
        else:
            with pytest.raises(RecordError, match=r"max_features=12.*Fix: "):
                fresh.learn_one(x, y)
            assert frozen(fresh) == before
    assert len(fresh.feature_names) == (5 if private else 15 if shares else 12)
    size = fresh._raw_memory_usage
    for t in range(200):
        x = {**stream(fresh, 1)[0][0], f"other-{t}": 1.0}
        if shares and not keeps_all(fresh):
            fresh.learn_one(x, y)
        elif not private and not shares:
            _refused(lambda x=x: fresh.learn_one(x, y), "max_features=12", "features")
    assert fresh._raw_memory_usage <= size + 256 * shares
    if private:
        assert fresh.ignored_features == 60


# ---- many records ------------------------------------------------------------------------------------------


def _many(model: Any, n: int) -> tuple[pd.DataFrame, pd.Series]:
    records = stream(model, n)
    return pd.DataFrame([x for x, _ in records]), pd.Series([y for _, y in records])


@each_base
@pytest.mark.parametrize("as_array", [False, True])
def test_many_records_are_the_same_as_one_by_one(fresh: Any, as_array: bool) -> None:
    if as_array and getattr(fresh, "features", None):
        fresh = fresh.clone({"features": list(range(5))})
    many = copy.deepcopy(fresh)
    X, y = _many(fresh, 60)
    if as_array:
        X.columns = range(5)
    for row, target in zip(X.to_dict("records"), y.tolist(), strict=True):
        fresh.learn_one(row, target)
    for part in (slice(0, 1), slice(1, 40), slice(40, 60)):
        rows, labels = (X[part].to_numpy(), y[part].to_numpy()) if as_array else (X[part], y[part])
        many.learn_many(rows, labels)
    assert frozen(many) == frozen(fresh)


def _python_calls(run: Callable[[], None]) -> int:
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


@each_base
def test_many_records_are_one_call_of_a_kernel(model: Any) -> None:
    """The number of Python's calls does not depend on the number of rows."""
    private = {"features": NAMES, "noise_key": None, "warmup": 0}
    options: dict[str, Any] = private if is_private(model) else {}
    if is_private(model) and needs_warmup(model):
        options["warmup"] = 1
    if isinstance(getattr(model, "mechanism", None), privacy.DecayedMoments):
        options["mechanism"] = privacy.DecayedMoments(10**5)  # a release is no call of a kernel
    if hasattr(model, "releases"):
        options["releases"] = 10
    fresh = model.clone(options)
    X, y = _many(fresh, 900)
    fresh.learn_many(X[:300], y[:300])  # what happens once: names, room, the draws of noise in advance
    if isinstance(model, auc.PrivateForest):
        fresh.run.state._due = 10**9
    short, long = (X[300:350], y[300:350]), (X[350:900], y[350:900])
    once = model.clone(options)  # and what happens once in a process: kernels are loaded
    for part in (slice(300), slice(300, 350), slice(350, 900)):
        once.learn_many(X[part], y[part])
    few = _python_calls(lambda: fresh.learn_many(*short))
    many = _python_calls(lambda: fresh.learn_many(*long))
    room = 250  # the long part has up to three releases more
    assert many <= few + room
    # A loop over the records is caught.
    records = list(zip(X[350:].to_dict("records"), y[350:].tolist(), strict=True))
    looped = _python_calls(lambda: [fresh.learn_one(x, target) for x, target in records] and None)
    assert looped > few + room


# ---- Python's global lock ----------------------------------------------------------------------------------


class Watcher(threading.Thread):
    """Collects the first weights that it sees, in Python, which takes the global lock."""

    def __init__(self, model: Any) -> None:
        super().__init__(daemon=True)
        self.model = model
        self.seen: set[float] = set()
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            self.seen.add(float(self.model.weights_vector[0]))


def test_python_goes_on_while_a_batch_is_learned() -> None:
    """A thread sees weights within a batch; with the lock taken, those before and after it alone."""
    model = auc.PairOGD(losses.Logistic(), buffers.FIFO(400))
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(10_000, 10)), rng.random(10_000) < 0.5
    model.learn_many(X[:10], y[:10])
    for _ in range(20):  # a busy machine may not let the thread run within the first batch
        watcher = Watcher(model)
        watcher.start()
        try:
            model.learn_many(X, y)
        finally:
            watcher.stop.set()
            watcher.join()
        if len(watcher.seen) > 2:
            return
    pytest.fail("no weights but those before and after a batch were seen")
