"""The small kernels against their reference implementations."""

from __future__ import annotations

import math

import naive
import numpy as np
import pytest
from harness.every_loss import MARGIN
from hypothesis import given
from hypothesis import strategies as st

from streampair import losses
from streampair.kernels import losses as losses_kernels
from streampair.kernels import numerics, vectors

reals = st.floats(-1e3, 1e3)


@given(st.floats(0.0, 800.0))
def test_exp_negative_is_within_two_units_in_the_last_place(a: float) -> None:
    true = math.exp(-a)
    if true < 2.3e-308:  # below the normal range it is 0
        assert numerics.exp_negative(a) <= 2.4e-308
    else:
        assert abs(numerics.exp_negative(a) - true) <= 2 * math.ulp(true)


@pytest.mark.parametrize(
    "a", [0.0, 1e-300, 1e-20, 0.34, 0.35, 0.6931471805599453, 708.0, 708.389, 1e300, math.inf]
)
def test_exp_negative_at_its_corners(a: float) -> None:
    assert numerics.exp_negative(a) == pytest.approx(math.exp(-a), rel=4e-16, abs=3e-308)


def test_not_a_number_stays_one() -> None:
    assert math.isnan(numerics.exp_negative(math.nan))
    assert math.isnan(numerics.sigmoid(math.nan))


@given(st.floats(allow_nan=False))
def test_sigmoid(a: float) -> None:
    p = numerics.sigmoid(a)
    assert 0.0 <= p <= 1.0
    assert p == pytest.approx(naive.sigmoid(max(min(a, 700.0), -700.0)), rel=1e-14, abs=1e-300)
    assert p + numerics.sigmoid(-a) == pytest.approx(1.0, abs=1e-15)


@given(
    st.lists(st.lists(st.floats() | st.sampled_from([1e50, -1e50]), min_size=5, max_size=5), max_size=7),
    st.sampled_from([1.0, 1e50, vectors.MAX_FINITE]),
)
def test_unusable_values(rows: list[list[float]], limit: float) -> None:
    x = np.array(rows, dtype=float).reshape(-1, 5)
    assert vectors.unusable_row(x, limit) == naive.unusable_row(x.tolist(), limit)
    assert vectors.first_unusable(x.ravel()) == naive.first_unusable(x.ravel().tolist())


@given(st.lists(reals, min_size=1, max_size=9), st.floats(1e-3, 1e3))
def test_project_ball(w: list[float], radius: float) -> None:
    out = np.array(w)
    vectors.project_ball(out, radius)
    assert out == pytest.approx(np.array(naive.project_ball(w, radius)), rel=1e-12, abs=1e-12)
    assert np.linalg.norm(out) <= radius * (1 + 1e-14)


@pytest.mark.parametrize("loss", MARGIN, ids=str)
@given(m=st.floats(-50, 50))
def test_loss_slope(loss: losses.PairLoss, m: float) -> None:
    slope = losses_kernels.loss_slope(loss.code, m)
    assert slope == pytest.approx(naive.loss_slope(type(loss).__name__, m), rel=1e-13, abs=1e-300)
    assert slope == pytest.approx(loss.slope(m), rel=1e-13, abs=1e-300)


def _looks_uniform(u: np.ndarray) -> bool:
    """Five sigma on the first two moments, the serial correlation and 16 equal cells."""
    n = len(u)
    cells = np.bincount((u * 16).astype(int), minlength=16)
    return bool(
        abs(u.mean() - 0.5) < 5 * math.sqrt(1 / 12 / n)
        and abs((u**2).mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / n)
        and abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / math.sqrt(n)
        and (((cells - n / 16) ** 2) / (n / 16)).sum() < 15 + 5 * math.sqrt(30)
    )


@pytest.mark.parametrize("axis", ["seed", "counter", "lane"])
def test_uniform_is_uniform_along_each_argument(axis: str) -> None:
    base = {"seed": 7, "counter": 11, "lane": 3}
    u = np.array([numerics.uniform(**{**base, axis: i}) for i in range(20_000)])
    assert _looks_uniform(u)
    # The test must be able to fail: coins that are slightly bent, or that stick to the last one.
    assert not _looks_uniform(u**1.05)
    assert not _looks_uniform(np.where(u < 0.1, np.roll(u, 1), u))


@pytest.mark.parametrize("single", [False, True])
@given(n=st.integers(0, 40), seed=st.integers(0, 2**32 - 1))
def test_dot_rounds_as_four_sums_do(single: bool, n: int, seed: int) -> None:
    """To the last bit: a replay on another processor has to find it."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n)) * 10.0 ** rng.integers(-8, 8, size=(2, n))
    if single:
        b = b.astype(np.float32)
    sums, whole = [0.0] * 4, n - n % 4
    for i, (p, q) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        sums[i % 4 if i < whole else 0] += p * q
    assert vectors.dot(a, b) == (sums[0] + sums[1]) + (sums[2] + sums[3])
