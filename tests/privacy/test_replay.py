"""A private learner with a noise key: a replay of the same records releases the same bytes.

See docs/privacy 8.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from harness.learners import through_pickle
from harness.options import folded
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair import auc
from streampair.privacy import ChainedNoise, Origin

KEY = bytes(range(32))
Event = tuple[Any, Any]


def events(count: int, seed: int = 0) -> list[Event]:
    rng = np.random.default_rng(seed)
    out: list[Event] = []
    for i in range(count):
        y = bool(rng.integers(2))
        x = {"a": float(rng.normal(0.3 if y else -0.3, 0.3)), "b": float(rng.uniform(-1, 1))}
        out.append((x, y) if i % 7 else ({"a": "text"}, y))
    return out


def make(**options: Any) -> auc.PairFTRL:
    parameters: dict[str, Any] = {"delta": 1e-3, "horizon": 60, "features": ["a", "b"], "noise_key": KEY}
    return auc.PairFTRL(**folded({**parameters, **options}))


def releases(model: auc.PairFTRL, data: list[Event]) -> list[bytes]:
    out = []
    for x, y in data:
        model.learn_one(x, y)
        out.append(model.weights_vector.tobytes() + model.run.released.tobytes())
    return out


OPTIONS: list[dict[str, Any]] = [
    {},
    {"warmup": 13},
    {"horizon": None, "warmup": 13},
    {"strategy": "blt"},
    {"features": None},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("way", ["state", "pickle", "deepcopy"])
def test_a_replay_repeats_every_release(options: dict[str, Any], way: str) -> None:
    data = events(40)[1:] if "features" in options else events(40)
    expected = releases(make(**options), data)
    for slot in (1, 9, 12, 30):
        model = make(**options)
        assert releases(model, data[:slot]) == expected[:slot]
        if way == "state":
            other = make(**options)
            other.load_state(model.to_state())
        else:
            other = copy.deepcopy(model) if way == "deepcopy" else through_pickle(model)
        releases(model, data[slot : slot + 3])  # lost in the crash
        assert releases(other, data[slot:]) == expected[slot:]


@pytest.mark.parametrize("change", ["swap", "flip", "value", "null", "context"])
@settings(max_examples=8, deadline=None)
@given(slot=st.integers(0, 20), warmup=st.sampled_from([0, 10]))
def test_another_record_gives_fresh_noise_from_there_on(change: str, slot: int, warmup: int) -> None:
    data = [event for event in events(40) if "b" in event[0]][:31]
    changed = list(data)
    x, y = changed[slot]
    if change == "swap":
        changed[slot : slot + 2] = changed[slot : slot + 2][::-1]
    elif change == "flip":
        changed[slot] = (x, not y)
    elif change == "value":
        changed[slot] = ({**x, "a": math.nextafter(x["a"], 9.0)}, y)
    elif change == "null":
        changed[slot] = ({}, y)
    one, two = make(warmup=warmup), make(warmup=warmup)
    first = noise_of(one, data)
    second = noise_of(two, changed, Origin(b"") if change == "context" else None)
    slot = 0 if change == "context" else slot
    begin = max(slot, warmup) - warmup
    assert np.array_equal(first[:begin], second[:begin])
    assert not_shared(first[begin:], second[begin:])


def not_shared(one: np.ndarray, two: np.ndarray) -> bool:
    """Whether the noise of the same slots is different; one slot in 1e6 may agree by chance."""
    return np.count_nonzero((one == two).all(axis=1)) <= 1


def noise_of(model: auc.PairFTRL, data: list[Event], origin: Origin | None = None) -> np.ndarray:
    """The noise of each learning slot: what the sum moved by, less the gradient; the first from `origin`."""
    out = []
    for x, y in data:
        rule = model.run.state
        assert rule is not None
        before, steps = rule.gate.total.copy(), rule.steps
        model.learn_one(x, y, origin)
        origin = None
        if rule.steps > steps:
            out.append(rule.gate.total - before - rule.gate._scratch[2])
    return np.array(out)


def test_keyed_by_the_step_alone_the_gradients_could_be_subtracted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: docs/privacy 8: with the same noise two releases differ by the raw gradient."""
    data = [event for event in events(40) if "b" in event[0]][:30]
    changed = [*data[:20], (data[20][0], not data[20][1]), *data[21:]]

    def difference() -> np.ndarray:
        one, two = make(), make()
        return noise_of(one, data) - noise_of(two, changed)

    assert np.count_nonzero(difference()[20:]) > 15
    with monkeypatch.context() as patch:
        true = ChainedNoise.advance

        def by_step(self: ChainedNoise, values: bytes) -> None:
            self._record = None
            true(self, b"")

        patch.setattr(ChainedNoise, "advance", by_step)
        assert np.all(difference() == 0)


def test_other_parameters_another_key_and_another_name_give_other_noise() -> None:
    data = events(10)[1:7]  # all whole
    base = noise_of(make(), data)
    named = make()
    named.bind_noise("another lane")
    for other in (make(noise_key=b"1" * 32), make(delta=1e-4), make(horizon=61), make(radius=4.0), named):
        assert not_shared(base, noise_of(other, data))
    assert np.array_equal(base, noise_of(make(), data))


@pytest.mark.parametrize("options", [{}, {"warmup": 13}])
def test_frames_are_learned_like_one_by_one(options: dict[str, Any]) -> None:
    data = [event for event in events(50) if "b" in event[0]]
    one, many = make(**options), make(**options)
    releases(one, data)
    for a, b in ((0, 1), (1, 20), (20, len(data))):
        frame = pd.DataFrame([x for x, _ in data[a:b]])
        many.learn_many(frame, pd.Series([y for _, y in data[a:b]], dtype=bool))
    assert np.array_equal(one.weights_vector, many.weights_vector)
    assert one.slots == many.slots


def test_what_the_caller_says_identifies_a_record() -> None:
    """In a lane that is its place and payload, also of records without any value."""
    outputs = []
    for contexts in (b"abc", b"abc", b"abd"):
        model, digests = make(features=None), list[bytes]()
        model.bind_noise("lane", digests)
        for context, (x, y) in zip(contexts, [({}, None), ({}, None), *events(9)[1:]], strict=False):
            model.learn_one(x, y, Origin(bytes([context])))
        outputs.append(digests)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 3
    assert outputs[0][:2] == outputs[2][:2]
    assert outputs[0][2] != outputs[2][2]


def test_the_report_says_holds_and_past_the_horizon_nothing_moves() -> None:
    model = make()
    releases(model, events(60))
    assert model.privacy.kind == "holds"
    assert model.privacy.epsilon_spent == pytest.approx(1.0)
    chain = model.to_state()["chain"]
    releases(model, events(3))
    assert model.to_state()["chain"] == chain


@pytest.mark.parametrize("options", [{"strategy": "blt"}, {"horizon": None, "warmup": 5, "strategy": "blt"}])
def test_the_short_way_of_a_keyed_slot_gives_the_bits_of_the_long_one(options: dict[str, Any]) -> None:
    """One kernel from the cipher's words on, against normals, noise and step by themselves."""
    data = [event for event in events(60) if "b" in event[0]]
    short, long = make(**options), make(**options)
    long.run.state._keyed_in_one_call = False
    assert releases(short, data) == releases(long, data)
    assert short.to_state()["chain"] == long.to_state()["chain"]
