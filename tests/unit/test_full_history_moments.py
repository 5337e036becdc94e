"""Least squares with the full history by moments: equal to the sum over all records."""

from __future__ import annotations

import pickle
import random
from typing import Any

import naive
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampair import auc, buffers, losses, ranking
from streampair.errors import SnapshotError
from streampair.kernels import least_squares, scaling, state

SQUARE, FULL = losses.Square(), buffers.FullHistory()
FAMILIES = {"auc": auc.PairOGD, "ranking": ranking.PairOGD}


def make(family: str, **options: Any) -> Any:
    return FAMILIES[family](**{"loss": SQUARE, "buffer": FULL, "seed": 0, "scale": None, **options})


def stream(family: str, n: int, d: int, shift: float = 0.0, seed: int = 0) -> list[Any]:
    """Records whose features lie around `shift`; two classes, or relevances."""
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        x = {f"f{i}": shift + rng.gauss(0, 1) for i in range(d)}
        out.append((x, rng.random() < 0.3 if family == "auc" else rng.uniform(-1, 1)))
    return out


def frozen(model: Any) -> bytes:
    return pickle.dumps(model.to_state())


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
def test_against_the_reference(family: str, data: st.DataObject) -> None:
    d = data.draw(st.integers(1, 4))
    eighths = st.integers(-32, 32).map(lambda v: v / 8)
    label = st.sampled_from([-1.0, 1.0] if family == "auc" else [-1.0, -0.5, 0.0, 0.25, 1.0])
    records = data.draw(
        st.lists(st.tuples(st.lists(eighths, min_size=d, max_size=d), label), min_size=1, max_size=25)
    )
    rate = data.draw(st.sampled_from([0.05, 2.0]))
    l2 = data.draw(st.sampled_from([0.0, 0.25]))
    reference = naive.PairOGD(d, "Square", "full", 1, rate, 3.0, l2)
    model = make(family, learning_rate=rate, radius=3.0, l2=l2, average=False)
    for x, y in records:
        named = {f"f{i}": v for i, v in enumerate(x)}
        model.learn_one(named, y == 1.0 if family == "auc" else y)
        reference.learn(x, y)
    assert model.weights_vector == pytest.approx(np.array(reference.last), rel=1e-9, abs=1e-9)
    assert model.records == model.buffer_records == len(records)


def gradient(model: Any, x: dict[str, float], y: float) -> np.ndarray:
    """Gradient of the next step, by the kernel of the step."""
    add = least_squares._moments_class if model.two_classes else least_squares._moments_real
    region = state.HEADER + scaling.VECTORS * int(model._state[state.CAP])
    g = np.zeros(len(x))
    add(model._state, region, np.array(list(x.values())), y, model._vectors()["w"], g)
    return g / model.records


def explicit(w: np.ndarray, past: np.ndarray, labels: np.ndarray, x: np.ndarray, y: float) -> np.ndarray:
    """Mean over all past records of the pairs' gradients, in extended precision."""
    u = (x - past).astype(np.longdouble)
    c = (y - labels).astype(np.longdouble)
    slope = -2 * c + 2 * c**2 * (u @ w.astype(np.longdouble))
    return np.asarray((slope[:, None] * u).mean(axis=0), dtype=np.float64)


def uncentred(w: np.ndarray, past: np.ndarray, labels: np.ndarray, x: np.ndarray, y: float) -> np.ndarray:
    """The mutant that must fail: the same from sums of x and xx', without their means."""
    use = labels != y
    n, total, square = use.sum(), past[use].sum(axis=0), past[use].T @ past[use]
    spread = n * x * (w @ x) - x * (total @ w) - total * (w @ x) + square @ w
    return (-4 * y * (n * x - total) + 8 * spread) / len(past)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_equal_to_the_explicit_sum(family: str, shift: float) -> None:
    """To 1e-9 of its size after 3000 records, also where means are large beside the spread."""
    records = stream(family, 3000, 6, shift)
    model = make(family)
    for x, y in records[:-5]:
        model.learn_one(x, y)
    past = np.array([list(x.values()) for x, _ in records])
    labels = np.array([(1.0 if y else -1.0) if family == "auc" else y for _, y in records])
    w = model._vectors()["w"]
    for i in range(2995, 3000):
        wanted = explicit(w, past[:2995], labels[:2995], past[i], labels[i])
        got = gradient(model, records[i][0], labels[i])
        assert np.linalg.norm(got - wanted) <= 1e-9 * np.linalg.norm(wanted)
        if family == "auc" and shift:
            off = uncentred(w, past[:2995], labels[:2995], past[i], labels[i]) - wanted
            assert np.linalg.norm(off) > 1e-9 * np.linalg.norm(wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_state_does_not_grow_and_continues_bit_for_bit(family: str) -> None:
    records = stream(family, 400, 3)
    model = make(family, buffer=buffers.FullHistory(max_records=50))  # the limit is for stored rows
    for x, y in records[:200]:
        # A name that comes later was 0 before.
        model.learn_one({n: v for n, v in x.items() if n != "f2" or model.records > 60}, y)
    size = len(pickle.dumps(model))
    copied = model.clone()
    copied.load_state(model.to_state())
    copies = [copied, pickle.loads(pickle.dumps(model)), model.clone(include_attributes=True)]
    for x, y in records[200:]:
        for learner in (model, *copies):
            learner.learn_one(x, y)
    assert {frozen(learner) for learner in copies} == {frozen(model)}
    assert len(pickle.dumps(model)) <= size + 64
    whole = make(family, buffer=buffers.FullHistory(max_records=50))
    for i, (x, y) in enumerate(records):
        whole.learn_one({**x, "f2": 0.0 if i <= 60 else x["f2"]}, y)
    assert whole.weights == pytest.approx(model.weights, rel=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_records_make_no_step(family: str) -> None:
    model = make(family, average=False)
    for t in range(20):
        model.learn_one({"a": 3.1, "b": -0.7}, t % 3 == 0 if family == "auc" else (t % 3) / 4)
    assert model.weights == {"a": 0.0, "b": 0.0}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "damage",
    [
        lambda s: {**s, "counts": s["counts"] + 1},
        lambda s: {**s, "counts": s["counts"][:1]},
        lambda s: {**s, "first_moments": s["first_moments"][:, :-1]},
        lambda s: {**s, "moments": s["moments"] * np.nan},
        lambda s: {**s, "scalars": {**s["scalars"], "FILLED": 1.0}},
    ],
)
def test_a_damaged_state_is_refused(family: str, damage: Any) -> None:
    model = make(family)
    for x, y in stream(family, 9, 3):
        model.learn_one(x, y)
    with pytest.raises(SnapshotError, match="damaged"):
        make(family).load_state(damage(model.to_state()))
