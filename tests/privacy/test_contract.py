"""The life of every private learner: its spend, its copies, its noise key, its last slot."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness.learners import NAMES, PRIVATE, stream, taught, through_pickle, through_state

from streampair import buffers
from streampair.errors import RecordError, SnapshotError
from streampair.privacy.mechanisms.dp_forest import DPForestState
from streampair.privacy.mechanisms.metric_moments import MetricMomentsState

every_private_learner = pytest.mark.parametrize("name", PRIVATE)


def released(model: Any) -> np.ndarray:
    """The released weights; of a metric by moments and of a forest, which may be 0, the released sums."""
    if model.run is not None and isinstance(model.run.state, MetricMomentsState | DPForestState):
        return np.asarray(model.run.state.to_state()["weighted"])
    return np.asarray(model.metric_.ravel() if hasattr(model, "metric_") else model.weights_vector)


COPIES: list[Callable[[Any], Any]] = [copy.deepcopy, through_pickle, through_state]


@every_private_learner
def test_the_life_of_a_learner(name: str) -> None:
    model = taught(PRIVATE[name](seed=1), 30)
    assert (model.slots, model.null_slots) == (30, 0)
    many = PRIVATE[name](seed=1, features=NAMES[::-1])
    rows = stream(many, 30)
    many.learn_many(pd.DataFrame([x for x, _ in rows]), pd.Series([y for _, y in rows]))
    if not isinstance(getattr(model, "buffer", None), buffers.Reservoir):
        assert np.array_equal(released(many), released(model))
    for x, y in stream(model, 60, seed=1):
        model.learn_one(x, y)
    assert model.privacy.epsilon_spent <= 1.0
    assert model.privacy.kind == "void"  # the seed
    assert np.linalg.norm(model.weights_vector) <= model.comparator_radius * (1 + 1e-12)
    with pytest.raises(RecordError):
        model.design({"f0": "text"})
    if model.horizon is None:
        assert model.slots == 90
        return
    # Past the horizon it scores, and learns no more.
    weights, report = released(model), model.privacy
    assert report.horizon_left == model.horizon_left == 0
    assert report.epsilon_spent == pytest.approx(1.0, rel=1e-6) or name == "auc-paper"
    assert "learns no more" in str(report)
    for x, y in stream(model, 5):
        model.learn_one(x, y)
        model.learn_null()
    model.learn_many(pd.DataFrame([x for x, _ in rows[:5]]), pd.Series([y for _, y in rows[:5]]))
    assert np.array_equal(released(model), weights)
    assert model.privacy == report
    assert model.slots == 60


@every_private_learner
@pytest.mark.parametrize("copier", COPIES, ids=["deepcopy", "pickle", "state"])
@pytest.mark.parametrize("seed", [None, 1])
def test_a_copy_keeps_the_spend_and_draws_its_own_noise(name: str, copier: Any, seed: int | None) -> None:
    model = taught(PRIVATE[name](seed=seed), 20)
    other = copier(model)
    assert np.array_equal(released(model), released(other))
    ours, theirs = model.privacy, other.privacy
    for part in ("epsilon_spent", "releases", "horizon_left"):
        assert getattr(ours, part) == getattr(theirs, part)
    if name != "auc-paper":
        assert (ours.kind, theirs.kind) == (("void", "void") if seed else ("holds", "unvouched"))
    third = None
    for each, following in ((model, other), (other, None)):
        if following is None:
            each, following = other, (third := copier(other))
        for _ in range(15):
            each.learn_null()
            following.learn_null()
        assert not np.any(released(each) == released(following))
    assert third is not None
    clone = model.clone()
    assert (clone.slots, clone.privacy.releases, clone.privacy.epsilon_spent) == (0, 0, 0.0)


@every_private_learner
@pytest.mark.parametrize("copier", COPIES, ids=["deepcopy", "pickle", "state"])
def test_the_copy_of_an_unused_learner_is_a_new_one(name: str, copier: Any) -> None:
    features: dict[str, Any] = {"features": NAMES}
    if name != "auc-paper":
        assert copier(PRIVATE[name](**features)).privacy.kind == "holds"
    # Fixed seeds (void anyway) make equal learners, as River's checks expect; without one they never are.
    for seed in (1, None):
        one = PRIVATE[name](**features, seed=seed)
        two = copier(one)
        for _ in range(20):
            one.learn_null()
            two.learn_null()
        assert (
            np.array_equal(released(one), released(two))
            if seed
            else not np.any(released(one) == released(two))
        )


@every_private_learner
def test_the_noise_key_repeats_a_run_and_nothing_else(name: str) -> None:
    def run(events: list[Any]) -> np.ndarray:
        model, out = PRIVATE[name](noise_key=bytes(range(32))), []
        for x, y in events:
            model.learn_one(x, y)
            out.append(released(model))
        assert model.privacy.kind == "holds" or name == "auc-paper"
        wide = max(map(len, out))
        return np.array([row if len(row) == wide else np.zeros(wide) for row in out])

    data = stream(PRIVATE[name](), 40)
    one = run(data)
    assert np.array_equal(one, run(data))
    null = ({**data[20][0], "f0": math.nan}, data[20][1])
    for other in ([*data[:20], data[21], data[20], *data[22:]], [*data[:20], null, *data[21:]]):
        changed = run(other)
        assert np.array_equal(one[:20], changed[:20])
        assert not np.any(one[-1] == changed[-1])


VOID = "a breaker stops the lane because of what events contain"
ACCEPTED = "2026-11-22 (the log was lost)"


@every_private_learner
@pytest.mark.parametrize("copier", COPIES, ids=["deepcopy", "pickle", "state"])
def test_what_was_put_on_record_stays_on_it(name: str, copier: Any) -> None:
    """What voids a guarantee, and what an operator vouched for, outlives its reason (docs/privacy 8)."""
    model = taught(PRIVATE[name](noise_key=bytes(range(32))), 5)
    model.mark(accepted=[ACCEPTED])
    other = copier(model)
    other.mark_restarted(clean=True)
    for each in (model, other):
        if name != "auc-paper":
            assert each.privacy.kind == "unvouched"
        assert f"vouched by the operator on {ACCEPTED}" in each.privacy.guarantee
    model.mark(void=[VOID, VOID], accepted=[ACCEPTED])
    model.mark(void=["another", VOID])
    other = copier(model)
    other.mark_restarted(clean=True)
    for each in (model, other, copier(other)):
        assert (each.privacy.kind, each.privacy.guarantee) == ("void", f"void ({VOID}; another)")
        assert f"Vouched by the operator on {ACCEPTED}." in each.privacy.notes
    assert f"NO GUARANTEE HOLDS: void ({VOID}; another)" in str(other.privacy)
    # A new learner of the same parameters has no past.
    assert not {"void", "unvouched"} & {PRIVATE[name](noise_key=bytes(range(32))).privacy.kind}
    assert VOID not in str(model.clone().privacy)
    # What a lane knows before it restores stays too.
    third = model.clone()
    third.mark(void=["known before"])
    third.load_state(model.to_state())
    assert third.privacy.guarantee == f"void ({VOID}; another; known before)"
    # So it does where the state that it is given is damaged, and so does its name.
    fourth, named = model.clone(), model.clone()
    for each in (fourth, named):
        each.bind_noise("a lane")
        each.mark(void=["known before"])
    with pytest.raises(SnapshotError):
        fourth.load_state({**model.to_state(), "restarts": "broken"})
    assert fourth.privacy == named.privacy
    for each in (fourth, named):
        taught(each, 20)
    assert np.array_equal(released(fourth), released(named))
    seeded = PRIVATE[name](seed=1)
    seeded.mark(void=[VOID])
    assert seeded.privacy.guarantee == f"void ({VOID}; fixed seed)"


def spoilt(state: dict[str, Any]) -> Any:
    """States that no learner can have had, each with what is wrong."""
    for name in ("slots", "pending", "null_slots", "ignored_features", "refused_records", "charged"):
        for value in (-1, 1.5, None, True):
            yield f"{name} is {value}", {**state, name: value}
    yield "more null slots than slots", {**state, "null_slots": state["slots"] + 1}
    yield "another number of slots", {**state, "slots": state["slots"] - 1}
    yield "slots beyond the horizon", {**state, "slots": state["slots"] + 1000}
    yield "restarts", {**state, "restarts": [-1, 0]}
    yield "restarts of one kind", {**state, "restarts": [0]}
    for name in ("continued", "standardised"):
        yield f"{name} is a word", {**state, name: "yes"}
    yield "moments or none", {**state, "standardised": not state["standardised"]}
    yield "a feature twice", {**state, "names": [state["names"][0], *state["names"][:-1]]}
    for name in ("mean", "factor"):
        yield f"{name} with NaN", {**state, name: state[name] * math.nan}
    for name, value in state["mechanism"].items():
        values = {"buffer": value} if name != "buffer" else value
        for key, array in values.items():
            if key == "strategy" or not isinstance(array, np.ndarray) or array.dtype.kind != "f":
                continue
            if not array.size:
                continue
            for bad in (math.nan, math.inf):
                if key != "labels" or bad == math.inf:
                    damaged = np.full_like(array, bad)
                    rule = {name: damaged} if name != "buffer" else {name: {**value, key: damaged}}
                    yield f"{name} {key} {bad}", {**state, "mechanism": {**state["mechanism"], **rule}}


@every_private_learner
def test_a_state_that_no_learner_can_have_had_is_refused(name: str) -> None:
    """Such a state would give NaN for ever after, or an account that is too small."""
    model = PRIVATE[name](noise_key=bytes(range(32)))
    for x, y in stream(model, 30):
        model.learn_one(x, y)
    state, new = model.to_state(), model.clone()
    for nothing in (None, [], "state", 3):
        with pytest.raises(SnapshotError, match=r"no saved state\. Fix: give what `to_state` returned"):
            new.load_state(nothing)
    taken = []
    for what, damaged in spoilt(state):
        try:
            new.load_state(damaged)
        except SnapshotError as error:
            if "Fix: " in str(error) and new.slots == 0:
                continue
        taken.append(what)
        new = model.clone()
    assert taken == []
    new.load_state(state)
    assert new.slots == 30
