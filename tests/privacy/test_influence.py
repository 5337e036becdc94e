"""Influence pattern (docs/privacy 3, 9.2): where gradients differ, the releases being the same.

Both runs are fed the released state of the first one after every slot, which is what
"the same earlier releases" means in the proof; then gradients may differ only where
section 3 says, and by no more than D v plus the rounding of both to the grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import naive
import numpy as np
import pytest
from harness.options import folded
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair import auc, buffers, losses, privacy
from streampair.errors import ConfigError

DIM = 2
NAMES = ["a", "b"]
Event = tuple[dict[str, Any] | None, Any]

value = st.floats(-1.5, 1.5, width=32)
good = st.tuples(st.fixed_dictionaries(dict.fromkeys(NAMES, value)), st.booleans())
bad = st.sampled_from(
    [
        (None, None),  # refused before the learner: a null slot
        ({"a": 1.0}, True),
        ({"a": 1.0, "b": math.nan}, True),
        ({"a": math.inf, "b": 0.0}, False),
        ({"a": "x", "b": 0.0}, True),
        ({"a": None, "b": 0.0}, True),
        ({"a": 0.5, "b": 0.5}, None),
        ({"a": 0.5, "b": 0.5}, math.nan),
        ({}, True),
        ({"a": 1e300, "b": -1e300}, True),
    ]
)
event = st.one_of(good, good, good, bad)


def feed(model: auc.PairFTRL, item: Event) -> None:
    x, y = item
    if x is None:
        model.learn_null()
    else:
        model.learn_one(x, y)


def gradients(
    model: auc.PairFTRL, stream: Sequence[Event], releases: list[Any] | None = None
) -> tuple[np.ndarray, list[Any]]:
    """Rounded gradient of every slot, and the released state after it; or the slots under given releases."""
    out, seen = [], []
    rule = model.run.state
    assert rule is not None
    for t, item in enumerate(stream):
        feed(model, item)
        out.append(rule.gate._scratch[2] * rule.plan.grid)
        seen.append((rule.gate.total.copy(), rule.gate._scratch.copy()))
        if releases is not None:
            rule.gate.total[:] = releases[t][0]
            rule.gate._scratch[:] = releases[t][1]
    return np.array(out), seen


def build(size: int, loss: losses.PairLoss, **options: Any) -> auc.PairFTRL:
    options = {"epsilon": 5.0, "delta": 1e-3, "horizon": 40, "warmup": 0, **options}
    return auc.PairFTRL(**folded({**options, "loss": loss, "buffer": buffers.FIFO(size), "features": NAMES}))


def check(
    first: np.ndarray, second: np.ndarray, position: int, size: int, diameter: float, grid: float
) -> None:
    """The two sequences of gradients differ at most as section 3 says."""
    v = naive.fifo_influence(position, len(first), size)
    allowed = diameter * v + grid * math.sqrt(DIM) * (v > 0)
    moved = np.linalg.norm(first - second, axis=1)
    assert np.all(moved <= allowed * (1 + 1e-9)), (moved, allowed)


cases = st.tuples(st.lists(event, min_size=1, max_size=14), st.integers(0, 13), event, st.integers(1, 5))


@settings(deadline=None, max_examples=200)
@given(
    case=cases,
    loss=st.sampled_from([losses.Hinge(), losses.Logistic(), losses.Square()]),
    clip=st.sampled_from([0.5, 1.0]),
)
def test_gradients_differ_only_where_they_may(
    case: tuple[list[Event], int, Event, int], loss: losses.PairLoss, clip: float
) -> None:
    stream, position, other, size = case
    position %= len(stream)
    neighbour = [*stream[:position], other, *stream[position + 1 :]]
    one, two = build(size, loss, clip=clip), build(size, loss, clip=clip)
    first, releases = gradients(one, stream)
    second, _ = gradients(two, neighbour, releases)
    assert one.run is not None
    plan = one.run.state.plan
    check(first, second, position, size, plan.diameter, plan.grid)


def test_the_bound_is_reached() -> None:
    # x = +1 against x = -1 in front of opposite records at 0: every pair swings by 2 clip = D.
    size = 3
    base: list[Event] = [({"a": 0.0, "b": 0.0}, False)] * 10
    stream, neighbour = list(base), list(base)
    stream[4], neighbour[4] = ({"a": 1.0, "b": 0.0}, True), ({"a": -1.0, "b": 0.0}, True)
    # A tiny radius: no pair is ever satisfied.
    one, two = (build(size, losses.Hinge(), radius=1e-3) for _ in range(2))
    first, releases = gradients(one, stream)
    second, _ = gradients(two, neighbour, releases)
    moved = np.linalg.norm(first - second, axis=1)
    assert moved == pytest.approx(2.0 * naive.fifo_influence(4, 10, size), abs=2 * one.run.state.plan.grid)  # type: ignore[union-attr]


@settings(deadline=None, max_examples=60)
@given(case=cases, warmup=st.integers(1, 6))
def test_a_record_is_in_the_prefix_or_after_it(
    case: tuple[list[Event], int, Event, int], warmup: int
) -> None:
    stream, position, other, size = case
    stream = (stream * 14)[:14]
    neighbour = [*stream[:position], other, *stream[position + 1 :]]
    one, two = (build(size, losses.Hinge(), warmup=warmup) for _ in range(2))
    for model, items in ((one, stream), (two, neighbour)):
        for item in items[: warmup - 1]:
            feed(model, item)
        assert not model.run.warmed
        assert model.privacy.releases == 0
        sums_before = model.run.warmup.sums.to_state().copy()
        feed(model, items[warmup - 1])
        assert model.run.warmed
        assert not np.any(model.run.warmup.sums.to_state())
        assert model.run is not None
        assert model.run.state.steps == 0
        if model is one:
            before = sums_before
    if position >= warmup - 1:
        assert np.array_equal(before, sums_before)
    two.run.design.standardise(one.run.design.mean, one.run.design.factor)  # the same earlier release
    first, releases = gradients(one, stream[warmup:])
    second, _ = gradients(two, neighbour[warmup:], releases)
    plan = one.run.state.plan  # type: ignore[union-attr]
    if position < warmup:
        # A record of the prefix has no part in the learning: the buffer starts empty.
        assert np.array_equal(first, second)
    else:
        check(first, second, position - warmup, size, plan.diameter, plan.grid)


@settings(deadline=None, max_examples=60)
@given(stream=st.lists(event, min_size=4, max_size=4), position=st.integers(0, 3), other=event)
def test_the_moments_move_within_their_sensitivity(stream: list[Event], position: int, other: Event) -> None:
    from streampair.privacy.mechanisms.standardization import SQUARE_WEIGHT, WarmupPlan, moment_sensitivity

    sums = []
    for items in (stream, [*stream[:position], other, *stream[position + 1 :]]):
        model = build(2, losses.Hinge(), warmup=5)
        for item in items:
            feed(model, item)
        sums.append(model.run.warmup.sums.to_state() / (WarmupPlan.PER_UNIT * 5))
    moved = (sums[0] - sums[1]) * [[1.0], [SQUARE_WEIGHT]]
    bound = moment_sensitivity(DIM, grid=1 / WarmupPlan.PER_UNIT) / 5
    assert np.linalg.norm(moved) <= bound * (1 + 1e-12)


# ---- mutants that the check must catch -------------------------------------------------------------------

Vector = list[float]


def opposite_class(w: Vector, x: Vector, y: float, buffer: Sequence[tuple[Vector, float]]) -> Vector:
    """Divides by the number of opposite records: a swing of one label rescales everybody's gradient."""
    number = max(1, sum(label == -y for _, label in buffer))
    return naive.mean_gradient(w, x, y, buffer, number, 1, 1.0)


def growing(w: Vector, x: Vector, y: float, buffer: Sequence[tuple[Vector, float]]) -> Vector:
    """Divides by the number of usable records, so null records show."""
    number = max(1, sum(not naive.null(label) for _, label in buffer))
    return naive.mean_gradient(w, x, y, buffer, number, 1, 1.0)


def mean_clipped(w: Vector, x: Vector, y: float, buffer: Sequence[tuple[Vector, float]]) -> Vector:
    """Clips the average instead of each pair."""
    g = naive.mean_gradient(w, x, y, buffer, 3, 1, math.inf)
    norm = math.hypot(*g)
    return [v * min(1.0, 1.0 / norm) for v in g] if norm else g


def right(w: Vector, x: Vector, y: float, buffer: Sequence[tuple[Vector, float]]) -> Vector:
    return naive.mean_gradient(w, x, y, buffer, 3, 1, 1.0)


def worst_excess(
    gradient: Callable[..., Vector], *, evict_by_label: bool = False, round_sum: bool = False
) -> float:
    """Largest move beyond what section 3 allows, over random neighbouring streams at fixed releases."""
    rng = np.random.default_rng(0)
    size, grid, worst = 3, 2.0**-6, -math.inf
    for _ in range(300):
        labels = rng.choice([1.0, -1.0, math.nan], 10)
        rows = rng.uniform(-0.7, 0.7, (10, DIM))
        ws = rng.uniform(-1, 1, (10, DIM))
        position = int(rng.integers(10))
        both = []
        for k in range(2):
            y, x = labels.copy(), rows.copy()
            if k:
                y[position], x[position] = rng.choice([1.0, -1.0, math.nan]), rng.uniform(-0.7, 0.7, DIM)
            buffer: list[tuple[Vector, float]] = []
            out, total = [], np.zeros(DIM)
            for t in range(10):
                g = np.array(
                    gradient(ws[t].tolist(), x[t].tolist(), float(y[t]), buffer)
                    if not naive.null(y[t])
                    else [0.0] * DIM
                )
                if round_sum:
                    step = np.floor((total + g) / grid + 0.5) - np.floor(total / grid + 0.5)
                    total = total + g
                else:
                    step = np.floor(g / grid + 0.5)
                out.append(step * grid)
                buffer = [*buffer, (x[t].tolist(), float(y[t]))]
                if evict_by_label:
                    kept = [[b for b in buffer if b[1] == label][-size:] for label in (1.0, -1.0)]
                    buffer = kept[0] + kept[1]
                else:
                    buffer = buffer[-size:]
            both.append(np.array(out))
        v = naive.fifo_influence(position, 10, size)
        allowed = 2.0 * v + grid * math.sqrt(DIM) * (v > 0)
        worst = max(worst, float((np.linalg.norm(both[0] - both[1], axis=1) - allowed).max()))
    return worst


def test_the_check_passes_the_right_rule_and_catches_the_broken_ones() -> None:
    assert worst_excess(right) <= 1e-9
    assert worst_excess(opposite_class) > 0.01
    assert worst_excess(growing) > 0.01
    assert worst_excess(mean_clipped) > 0.01
    assert worst_excess(right, evict_by_label=True) > 0.01
    assert worst_excess(right, round_sum=True) > 0.01


@pytest.mark.parametrize(
    ("buffer", "reason"),
    [
        (buffers.Reservoir(8, replacement=True), "many copies"),
        ("FIFO", "cannot use"),
    ],
)
def test_unsuitable_buffers_are_refused_with_the_reason(buffer: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        auc.PairFTRL(mechanism=privacy.PairGradients(buffer=buffer))
