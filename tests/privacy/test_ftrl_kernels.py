"""The FTRL kernels against their reference implementations."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import naive
import numpy as np
import pytest
from harness.every_loss import MARGIN
from hypothesis import given, settings
from hypothesis import strategies as st

from streampair import losses
from streampair.kernels import buffers, dp_steps
from streampair.kernels import vectors as vectors_kernels
from streampair.privacy import Influence
from streampair.privacy.mechanisms.buffer import BufferPlan, PairBuffer
from streampair.privacy.mechanisms.ftrl import FTRLState, plan_ftrl
from streampair.privacy.noise import NormalStream

FOUR: dict[str, Any] = {"influence": Influence.fifo(4), "diameter": 2.0, "clip": 1.0, "radius": 3.0}

unit = st.floats(-1, 1, width=32)


def fifo(size: int, dim: int, loss: losses.PairLoss, tangent: bool = False) -> PairBuffer:
    """An empty FIFO buffer for pairs of labels."""
    plan = BufferPlan(buffers.FIFO, Influence.fifo(size))
    return PairBuffer(
        plan, dim, None, family=dp_steps.LINEAR_PAIRS, loss_code=loss.code, tangent=tangent, seed=1
    )


@st.composite
def streams(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    dim, steps = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    rows = draw(st.lists(st.lists(unit, min_size=dim, max_size=dim), min_size=steps, max_size=steps))
    labels = draw(st.lists(st.sampled_from([1.0, -1.0, math.nan]), min_size=steps, max_size=steps))
    x = np.array(rows)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)
    return x, np.array(labels)


@settings(deadline=None)
@given(
    data=streams(),
    size=st.integers(1, 5),
    clip=st.sampled_from([0.25, 1.0, 4.0]),
    radius=st.sampled_from([0.1, 3.0]),
    loss=st.sampled_from(MARGIN),
    seed=st.integers(0, 1000),
    tangent=st.booleans(),
)
def test_the_steps(
    data: tuple[np.ndarray, np.ndarray],
    size: int,
    clip: float,
    radius: float,
    loss: losses.PairLoss,
    seed: int,
    tangent: bool,
) -> None:
    rows, labels = data
    tangent = tangent and loss != losses.Square()
    steps, dim = rows.shape
    grid = 2.0**-12
    noise = NormalStream(seed).take(steps * dim)[0].reshape(steps, dim)
    whole = np.floor(noise / grid + 0.5).astype(np.int64)
    rates = np.linspace(0.5, 0.1, steps)
    vectors, total = np.zeros((4, dim)), np.zeros(dim, dtype=np.int64)
    vectors[:2] = vectors[3] = origin = np.linspace(-0.2, 0.1, dim)
    expected = naive.ftrl(
        rows.tolist(),
        labels.tolist(),
        noise.tolist(),
        rates.tolist(),
        size=size,
        radius=radius,
        grid=grid,
        gradient=partial(naive.mean_gradient, size=size, code=loss.code, clip=clip, tangent=tangent),
        start=origin.tolist(),
    )
    buffer = fifo(size, dim, loss, tangent)
    buffer.extend([clip, radius, grid])
    for t in range(steps):
        one, before = slice(t, t + 1), total.copy()
        dp_steps.ftrl_steps(
            rows[one],
            labels[one],
            whole[one],
            rates[one],
            t,
            buffer.numbers,
            vectors,
            total,
            buffer.places,
        )
        # Each gradient is rounded by itself, and so is the noise: what is added is exact.
        assert np.array_equal(vectors[2], np.floor(vectors[2]))
        assert np.array_equal(total, before + vectors[2] + whole[t])
        # A gradient that rounds the other way moves a cell, once in a while.
        assert np.abs(total - expected["total"][t]).max() <= 1 + t // 4
        assert np.abs(vectors[2] - expected["gradient"][t]).max() <= 2
        assert vectors[0] == pytest.approx(np.array(expected["w"][t]), abs=0.02)
        assert vectors[1] == pytest.approx(np.array(expected["average"][t]), abs=0.02)
        assert np.linalg.norm(vectors[0]) <= radius * (1 + 1e-12)
        assert np.all(np.abs(total) < 2**40)


@given(
    raw=st.lists(
        st.one_of(st.floats(-10, 10), st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 1e30])),
        min_size=1,
        max_size=4,
    ),
    standardise=st.booleans(),
    cap=st.sampled_from([0.3, math.inf]),
)
def test_preparation(raw: list[float], standardise: bool, cap: float) -> None:
    dim = len(raw)
    bounds = [(-2.0, 3.0), (0.0, 1.0), (-1.0, 1.0), (5.0, 9.0)][:dim]
    low, high = np.array(bounds).T
    mean, std = np.linspace(-0.5, 0.5, dim), np.linspace(0.1, 1.0, dim)
    out, whole = np.empty((1, dim)), np.empty(1)
    scaling = np.array([2 / (high - low), -(high + low) / (high - low), mean, 1 / std / math.sqrt(dim)])
    vectors_kernels.prepare_rows(np.array([raw]), scaling, standardise, cap, out, whole)
    big = [min(max(v, -1e100), 1e100) if math.isfinite(v) else v for v in raw]
    moments = (mean.tolist(), std.tolist()) if standardise else None
    assert out[0] == pytest.approx(np.array(naive.prepared(big, bounds, moments, cap)), abs=1e-9)
    assert np.linalg.norm(out[0]) <= 1 + 1e-15 * dim
    assert whole[0] == float(np.all(np.isfinite(raw)))


@given(
    raw=st.lists(
        st.lists(st.one_of(st.floats(-3, 3), st.just(math.nan)), min_size=2, max_size=2),
        min_size=1,
        max_size=6,
    )
)
def test_moment_sums(raw: list[list[float]]) -> None:
    rows = np.array(raw)
    scale, shift = np.array([1.0, 0.5]), np.array([0.0, 0.25])
    out, whole, sums = np.empty(rows.shape), np.empty(len(rows)), np.zeros((2, 2), dtype=np.int64)
    vectors_kernels.clip_rows(rows, np.array([scale, shift]), out, whole)
    dp_steps.moment_sums(out, whole, 64.0, sums)
    expected = [[0, 0], [0, 0]]
    for row in raw:
        if not all(math.isfinite(v) for v in row):
            continue  # a null record adds 0
        for i, v in enumerate(row):
            x = min(max(v * scale[i] + shift[i], -1.0), 1.0)
            expected[0][i] += naive.cells(x, 1 / 64)
            expected[1][i] += naive.cells(x * x, 1 / 64)
    assert sums.tolist() == expected


@pytest.mark.parametrize("horizon", [None, 3000])
def test_slots_in_any_batches_give_the_same_bits(horizon: int | None) -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.uniform(-0.5, 0.5, (2500, 3)), rng.choice([1.0, -1.0, math.nan], 2500)
    plan = plan_ftrl(1.0, dim=3, horizon=horizon, **FOUR)

    def run(cuts: list[int]) -> FTRLState:
        rule, stream = FTRLState(plan, fifo(4, 3, losses.Hinge())), NormalStream(1)
        for a, b in zip([0, *cuts], [*cuts, 2500], strict=True):
            rule.learn(rows[a:b], labels[a:b], stream)
        return rule

    whole = run([])
    for cuts in ([1, 2, 1023, 1025], [1024, 2048], list(range(1, 1100, 7))):
        parts = run(cuts)
        assert np.array_equal(whole.gate.total, parts.gate.total)
        assert np.array_equal(whole.gate.vectors, parts.gate.vectors)


def test_step_sizes_follow_the_rule() -> None:
    wide = plan_ftrl(1.0, dim=9, horizon=100, tangent=True, **FOUR)
    noise = wide.sigma * wide.strategy.error(100)
    assert wide.rates(0, 1) == pytest.approx([3.0 / math.sqrt(100 * 2 * (2 + 3 * noise))])
    plan = plan_ftrl(1.0, dim=9, horizon=100, **FOUR)
    noise = plan.sigma * plan.strategy.error(100)
    assert plan.rates(7, 3) == pytest.approx([3.0 / math.sqrt(100 * (1 + 3 * noise))] * 3)
    endless = plan_ftrl(1.0, dim=9, **FOUR)
    expected = [3.0 / math.sqrt(t * (1 + 3 * endless.sigma * endless.strategy.error(t))) for t in (8, 9)]
    assert endless.rates(7, 2) == pytest.approx(expected)
