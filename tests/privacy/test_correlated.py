"""The strategies: C times C^-1, closed forms against sums, and the quality of the fit.

See docs/privacy 4.3.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import dense

from streampair.errors import ConfigError
from streampair.privacy.noise import BLTNoise, NormalStream, ToeplitzNoise
from streampair.privacy.sensitivity import BLT, Toeplitz, fifo_pattern, fit_blt, square_root_coefficients


def test_the_square_root_squares_to_the_prefix_sums() -> None:
    forward, inverse = square_root_coefficients(40)
    assert forward[:5] == pytest.approx([math.comb(2 * k, k) / 4**k for k in range(5)])
    assert dense(forward) @ dense(forward) == pytest.approx(np.tril(np.ones((40, 40))))
    assert dense(forward) @ dense(inverse) == pytest.approx(np.eye(40), abs=1e-12)


def blt(seed: int, terms: int, horizon: int | None = None) -> BLT:
    rng = np.random.default_rng(seed)
    return BLT(rng.uniform(0, 0.5, terms), 10.0 ** rng.uniform(-5, -0.05, terms), horizon)


@pytest.mark.parametrize("terms", [1, 2, 5])
def test_the_recursion_of_a_blt_inverts_it(terms: int) -> None:
    steps, dim, strategy = 200, 3, blt(terms, terms)
    z = NormalStream(5).take(steps * (dim + 1))[0].reshape(steps, dim + 1)[:, :dim]  # a pair is in one row
    noise = BLTNoise(strategy.omega, strategy.theta, dim, 2.5)
    stream = NormalStream(5)
    n = np.concatenate([noise.rows(count, stream)[0] for count in (1, 99, 100)])
    assert dense(strategy.column(steps)) @ n == pytest.approx(2.5 * z, abs=1e-9)


def test_the_recursion_of_the_square_root_inverts_it() -> None:
    steps, dim, strategy = 200, 3, Toeplitz.square_root(200)
    z = NormalStream(5).take(steps * (dim + 1))[0].reshape(steps, dim + 1)[:, :dim]  # a pair is in one row
    noise = ToeplitzNoise(strategy.inverse, dim, 2.5)
    stream = NormalStream(5)
    n = np.concatenate([noise.rows(count, stream)[0] for count in (1, 99, 100)])
    assert dense(strategy.column) @ n == pytest.approx(2.5 * z, abs=1e-9)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10**6), terms=st.integers(1, 5))
def test_the_closed_form_of_the_prefix_error(seed: int, terms: int) -> None:
    strategy, steps = blt(seed, terms), 120
    b = np.cumsum(np.linalg.solve(dense(strategy.column(steps)), np.eye(steps)[:, 0]))
    direct = np.cumsum(b**2)
    t = np.arange(1.0, steps + 1.0)
    assert strategy.variances(t) == pytest.approx(direct, rel=1e-7)
    assert strategy.error(steps) == pytest.approx(math.sqrt(direct[-1]), rel=1e-7)
    assert strategy.error(0) == 0.0
    assert Toeplitz.square_root(4).error(4) == pytest.approx(np.linalg.norm(square_root_coefficients(4)[0]))


@pytest.mark.parametrize("size", [1, 32, 700])
@pytest.mark.parametrize("horizon", [300, 5000, 40_000])
def test_a_fit_for_a_horizon_is_as_good_as_the_square_root(size: int, horizon: int) -> None:
    fitted = fit_blt(fifo_pattern(size, horizon), horizon)
    assert np.all(fitted.omega >= 0)
    assert np.all(fitted.theta < 1)
    assert fitted.excess(fifo_pattern(size), horizon) <= 1.03


@pytest.mark.parametrize("size", [1, 32])
def test_a_fit_without_a_horizon_is_close_to_the_square_root_at_every_length(size: int) -> None:
    fitted = fit_blt(fifo_pattern(size))
    assert np.all(fitted.theta < 1)
    for steps, slack in ((1000, 1.22), (10_000, 1.10), (100_000, 1.06), (1_000_000, 1.15)):
        assert fitted.excess(fifo_pattern(size), steps) <= slack


def test_the_fit_is_the_same_every_time() -> None:
    first = fit_blt(fifo_pattern(8, 500), 500)
    assert fit_blt(fifo_pattern(8, 500), 500) is first
    from streampair.privacy import sensitivity

    sensitivity._fit_blt.cache_clear()
    again = fit_blt(fifo_pattern(8, 500), 500)
    assert np.array_equal(again.omega, first.omega)
    assert np.array_equal(again.decay, first.decay)


@pytest.mark.parametrize("parts", [([-0.1], [0.5]), ([0.1], [0.0]), ([0.1], [1.5]), ([0.1, 0.2], [0.5])])
def test_a_blt_outside_its_domain_is_refused(parts: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ConfigError):
        BLT(np.array(parts[0]), np.array(parts[1]), None)


def test_a_fit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError):
        fit_blt(fifo_pattern(1), 0)
