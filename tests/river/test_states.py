"""The state of every learner: plain values, copies that continue to the bit, no trust in what is loaded."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from harness.learners import (
    LEARNERS,
    PRIVATE,
    each_base,
    every_learner,
    frozen,
    is_private,
    looks,
    name_of,
    same,
    stream,
    taught,
    through_pickle,
)
from harness.support import at_row

from streampair import buffers, losses, metric, privacy
from streampair.errors import ConfigError, SnapshotError


def through_state(model: Any) -> Any:
    fresh = model.clone()
    if not is_private(model):  # what was found out before is forgotten
        looks(fresh)[0]({"f0": 1.0})
    fresh.load_state(model.to_state())
    return fresh


WAYS: dict[str, Callable[[Any], Any]] = {
    "state": through_state,
    "pickle": through_pickle,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "clone": lambda m: m.clone(include_attributes=True),
}


# Each way at two of the four ages, each age by two or three of the ways.
COPIES = [(way, age) for i, way in enumerate(WAYS) for j, age in enumerate([0, 1, 30, 2]) if (i + j) % 2 == 0]


@every_learner
def test_a_copy_continues_bit_for_bit(model: Any) -> None:
    for way, learned in COPIES:
        with at_row(way, learned):
            _check_copy(copy.deepcopy(model), way, learned)


def _check_copy(fresh: Any, way: str, learned: int) -> None:
    records = stream(fresh, 50)
    # A name that comes late. (The products of a metric depend on the room that it has, in the last bit.)
    late = learned > 5 and not is_private(fresh) and not hasattr(fresh, "metric_")
    for t, (x, y) in enumerate(records):
        if late and t < 10:
            del x["f3"]
        if t == learned:
            duplicate = WAYS[way](fresh)
            assert frozen(duplicate) == frozen(fresh)
        if t >= learned:
            for look, other in zip(looks(duplicate), looks(fresh), strict=True):
                assert same(look(x), other(x))
            duplicate.learn_one(x, y)
        fresh.learn_one(x, y)
    assert frozen(duplicate) == frozen(fresh)
    # Nothing is shared.
    before = frozen(fresh)
    duplicate.learn_one(*records[0])
    assert frozen(fresh) == before != frozen(duplicate)


@every_learner
def test_a_state_is_plain_values_and_the_same_ones_every_time(fresh: Any) -> None:
    state = taught(fresh, 30).to_state()
    for _, value in walk(state):
        if isinstance(value, np.ndarray):
            assert value.dtype in (np.float64, np.int64, np.float32)
        elif isinstance(value, dict):
            assert all(isinstance(key, str) for key in value)
        else:
            assert value is None or type(value) in (bool, int, float, str, bytes, list)
    assert pickle.dumps(fresh.to_state()) == pickle.dumps(fresh.to_state())


@each_base
def test_names_that_a_snapshot_cannot_hold(model: Any) -> None:
    declared = getattr(model, "features", None) is not None
    fresh = model.clone({"features": [("a", 1), "b"]} if declared else {})
    fresh.learn_one({("a", 1): 1.0, "b": 1.0}, stream(fresh, 1)[0][1])
    with pytest.raises(SnapshotError, match=r"feature name.* a tuple, which a snapshot cannot hold"):
        fresh.to_state()


OTHER = {
    "radius": 2.5,
    "l2": 0.7,
    "clip": 2.5,
    "mechanism": privacy.PairGradients(clip=2.5),
    "epsilon": 3.0,
    "delta": 1e-7,
    "horizon": 5001,
    "buffer": buffers.FIFO(5),
    "loss": losses.Square(),
    "positive": "other",
    "relevance": (-3, 3),
    "size": 5,
}


@every_learner
def test_a_state_of_other_parameters_is_refused(fresh: Any) -> None:
    state = taught(fresh, 12).to_state()
    for name in OTHER.keys() & fresh._get_params().keys():
        try:
            other = fresh.clone({name: OTHER[name]})
        except ConfigError:
            continue  # not with this learner
        if getattr(other, name) == getattr(fresh, name):
            continue
        before = frozen(other)
        with pytest.raises(SnapshotError, match=rf"{name}.*Fix: "):
            other.load_state(state)
        assert frozen(other) == before


# ---- damages -----------------------------------------------------------------------------------------------


def walk(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value in a state with the keys that lead to it."""
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from walk(part, (*path, key))


MISSING = object()


def replaced(state: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of the state with another value, or nothing, at the end of the path."""
    if not path:
        return new
    key, *rest = path
    out = copy.copy(state)
    if not rest and new is MISSING:
        del out[key]
    else:
        out[key] = replaced(state[key], tuple(rest), new)
    return out


#: What nothing else in a state tells the truth of: a name, and the flags and counts of a private learner.
ALONE = ("y_name", "pending", "null_slots", "ignored_features", "charged", "refused_records", "entities",
         "continued", "standardised", "folded", "chain", "restarts", "slots")  # fmt: skip


def damages(path: tuple[Any, ...], value: Any) -> Iterator[Any]:
    """What may stand in the place of a value and can be told from it."""
    if path[0] in ALONE or (path[0] in ("names", "classes") and len(path) > 1):
        return
    if path[0] in ("version", "params"):
        yield from (MISSING, None, {"kind": "x"}, "much", -1)
    elif path[0] == "negative":  # any number but the positive one, or none that was seen yet
        yield from ({"kind": "x"}, "much", math.nan, True, 2)
    elif path[0] in ("void", "accepted"):
        yield from (MISSING, None, {"kind": "x"}, "much", [1])
    elif path[0] in ("sums", "mean", "factor"):
        yield from (None, {"kind": "x"}, np.zeros((7, 7))) if value is not None else ()
    elif path[0] == "mechanism":
        yield from (None, {"kind": "x"}, np.zeros((7, 7))) if value is not None else ()
        if path[-1] == "coins" or isinstance(value, np.ndarray | dict):
            yield -1
    else:
        yield from (MISSING, {"kind": "x"}, "much")
        if type(value) in (int, float):
            yield from (None, math.nan, math.inf, -1, -0.5)
        if isinstance(value, np.ndarray):
            yield from (None, np.zeros((7, 7)), value.ravel() if value.ndim > 1 else value[None])
            if value.size:  # else it is as before
                yield from (value * math.nan, value + math.inf)
            if path[0] != "blocks":  # whose rows may be short: names that came later
                yield value[..., :-1]


#: Damages that are plausible by themselves: the scalars of learners without noise.
SCALARS = {"NEXT": 1e6, "FILLED": 7.0, "HIGH": 31.0, "SEED": 2.0**60}


def all_damages(state: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    yield "empty", {}
    yield "nothing", None
    yield "version", {**state, "version": 2}
    names = state["names"]
    if names:
        for other in (names[:-1], names * 2):
            yield ("names", other), {**state, "names": other}
    if "mechanism" in state:
        for name, new in (("slots", "much"), ("restarts", None), ("mean", np.zeros(7))):
            yield (name, new), {**state, name: new}
    for path, value in walk(state):
        if path:
            for new in damages(path, value):
                if type(new) is not type(value) or isinstance(new, np.ndarray) or new != value:
                    yield (path, new), replaced(state, path, new)
    if "cuts" in state:  # an exponent of 2: beyond what a processor can convert, too
        for most in (1001.0, 2.0**31, 1e300):
            yield ("cuts", most), {**state, "cuts": np.full(len(names), most)}
    for name, new in SCALARS.items():
        if state.get("scalars", {}).get(name, new) != new:
            yield (name, new), replaced(state, ("scalars", name), new)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # products of what is not finite
@pytest.mark.parametrize(
    "model",
    [*LEARNERS, *(pytest.param(make(), id=f"private-{name}") for name, make in PRIVATE.items())],
    ids=lambda m: name_of(m),
)
def test_a_damaged_state_is_refused_and_changes_nothing(fresh: Any) -> None:
    state, new, accepted = taught(fresh, 30).to_state(), fresh.clone(), []
    before = frozen(new)
    for what, damaged in all_damages(state):
        try:
            new.load_state(damaged)
        except SnapshotError as error:
            if "Fix: " not in str(error) or frozen(new) != before:
                accepted.append(what)
        else:
            accepted.append(what)
            new = fresh.clone()
    assert not accepted
    new.load_state(state)
    assert frozen(new) == frozen(fresh)


def test_a_metric_that_is_not_symmetric_is_refused() -> None:
    model = taught(metric.PairOGD(), 30)
    state = model.to_state()
    with pytest.raises(SnapshotError, match="damaged"):
        metric.PairOGD().load_state({**state, "w": state["w"] + np.triu(np.ones((5, 5)), 1)})
