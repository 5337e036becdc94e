"""Lemmas of docs/privacy that no other test checks: a search for a counter-example, and mutants."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import dense
from scipy import special

from streampair import losses
from streampair.privacy import Influence, compose, delta_from, mu_from
from streampair.privacy.mechanisms.ftrl import plan_ftrl
from streampair.privacy.mechanisms.second_moments import plan_second_moments
from streampair.privacy.mechanisms.standardization import plan_warmup
from streampair.privacy.noise import BLTNoise, NormalStream
from streampair.privacy.sensitivity import BLT, Toeplitz, fifo_pattern, fit_blt

Array = np.ndarray

# ---- accounting ------------------------------------------------------------------------------------------


def privacy_loss_delta(epsilon: float, mus: list[float]) -> float:
    """delta of a vector of Gaussians, by numerical integration of its privacy loss, release by release.

    The loss of one Gaussian is N(mu^2 / 2, mu^2); losses of independent releases are convolved on a grid.
    """
    step = 2.0**-9
    total = np.array([1.0])
    low = 0.0
    for mu in mus:
        span = 0.5 * mu * mu + np.array([-9.0, 9.0]) * mu
        edges = np.arange(math.floor(span[0] / step), math.ceil(span[1] / step) + 1) * step
        mass = np.diff(special.ndtr((edges - 0.5 * mu * mu) / mu))
        total = np.convolve(total, mass)
        low += float(edges[0]) + 0.5 * step
    loss = low + step * np.arange(len(total))
    return float((total * np.maximum(0.0, -np.expm1(epsilon - loss))).sum())


@pytest.mark.parametrize("mus", [[0.5], [0.3, 0.4], [1.0, 0.2, 0.5, 0.1]])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0])
def test_composition_is_that_of_the_joint_release(mus: list[float], epsilon: float) -> None:
    assert privacy_loss_delta(epsilon, mus) == pytest.approx(delta_from(epsilon, compose(mus)), rel=1e-3)
    if len(mus) > 1:  # the mutant: the largest one alone
        assert privacy_loss_delta(epsilon, mus) > 1.1 * delta_from(epsilon, max(mus))


# ---- clipping and losses -----------------------------------------------------------------------------------


def clipped(loss: losses.PairLoss, w: Array, u: Array, c: float, limit: float) -> Array:
    """Gradient of one pair in w, scaled to a norm of at most `limit`."""
    gradient = c * loss.slope(c * float(w @ u)) * u
    norm = float(np.linalg.norm(gradient))
    return gradient * min(1.0, limit / norm) if norm > 0.0 else gradient


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.SquaredHinge(), losses.Square()])
def test_a_clipped_pair_still_has_a_convex_smooth_loss(loss: losses.PairLoss) -> None:
    """Cocoercive: `<g(w) - g(v), w - v> >= |g(w) - g(v)|^2 / L`, which is both, for gradients."""
    rng = np.random.default_rng(0)
    smooth = loss.smoothness(1.0, 1.0)
    averages = 0
    for _ in range(3000):
        w, v = rng.normal(size=(2, 3))
        pairs = [(rng.uniform(-1, 1, 3) / math.sqrt(3) * 2, float(rng.choice([-2.0, 2.0]))) for _ in range(2)]
        limit = float(rng.uniform(0.05, 3.0))
        for u, c in pairs:
            change = clipped(loss, w, u, c, limit) - clipped(loss, v, u, c, limit)
            assert change @ (w - v) >= float(change @ change) / smooth - 1e-12
        # The mutant: the clipped average is no gradient of a convex function.
        ends = []
        for point in (w, v):
            mean = sum(clipped(loss, point, u, c, math.inf) for u, c in pairs) / 2
            ends.append(mean * min(1.0, limit / max(float(np.linalg.norm(mean)), 1e-300)))
        averages += float((ends[0] - ends[1]) @ (w - v)) < -1e-6
    assert averages > 0


def test_sign_coded_ordinal_labels_have_the_full_diameter() -> None:
    """A fellow of the middle level: records above and below it pull in opposite ways, 2 G apart."""
    loss, radius, k = losses.Hinge(), 1e-6, 2.0
    g = loss.lipschitz(1.0, radius)
    fellow, one, two = np.array([1.0, 0.0]), np.array([-1.0, 0.0]), np.array([-1.0, 0.0])
    w = np.zeros(2)
    above = clipped(loss, w, one - fellow, k * 1.0, math.inf)  # sign(high - middle)
    below = clipped(loss, w, two - fellow, k * -1.0, math.inf)  # sign(low - middle)
    assert np.linalg.norm(above - below) == pytest.approx(2.0 * g)
    assert np.linalg.norm(above - below) > 1.9 * loss.diameter(1.0, radius)
    # Labels that are differences in [-1, 1] keep D = G in the same place.
    above = clipped(loss, w, one - fellow, 1.0 - 0.0, math.inf)
    below = clipped(loss, w, two - fellow, -1.0 - 0.0, math.inf)
    assert np.linalg.norm(above - below) <= loss.diameter(1.0, radius) * (1 + 1e-12)


@settings(deadline=None)
@given(
    alpha=st.floats(0.01, 2.0),
    eta=st.floats(0.01, 3.0),
    limit=st.floats(0.1, 5.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_step_contracts_by_the_factor(alpha: float, eta: float, limit: float, seed: int) -> None:
    """For any step size: `max(|1 - eta alpha|, |1 - eta (alpha + L)|)`."""
    rng = np.random.default_rng(seed)
    loss = losses.Logistic()
    factor = max(abs(1.0 - eta * alpha), abs(1.0 - eta * (alpha + loss.smoothness(1.0, 1.0))))
    pairs = [(rng.uniform(-1, 1, 2), float(rng.choice([-2.0, 2.0]))) for _ in range(3)]
    w, v = rng.normal(size=(2, 2))
    after = [p - eta * (sum(clipped(loss, p, u, c, limit) for u, c in pairs) / 4 + alpha * p) for p in (w, v)]
    assert np.linalg.norm(after[0] - after[1]) <= factor * np.linalg.norm(w - v) * (1 + 1e-9)


# ---- entities --------------------------------------------------------------------------------------------


falling = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9).map(lambda v: sorted(v, reverse=True))


@settings(deadline=None, max_examples=300)
@given(column=falling, pattern=falling, rows=st.integers(1, 14), data=st.data())
def test_records_nearer_together_move_more(
    column: list[float], pattern: list[float], rows: int, data: st.DataObject
) -> None:
    """For C and v that fall: earlier and nearer is worse, in a run of any length."""
    c = dense((column + [0.0] * rows)[:rows])
    shifted = np.zeros((rows + 1, rows))
    for place in range(rows):
        part = pattern[: rows - place]
        shifted[place, place : place + len(part)] = part
    images = shifted @ c.T
    count = data.draw(st.integers(1, 4))
    separation = data.draw(st.integers(1, 5))
    gaps = data.draw(st.lists(st.integers(separation, separation + 4), min_size=count, max_size=count))
    slots = [data.draw(st.integers(0, 3)), *itertools.accumulate(gaps)]
    slots = [slots[0], *(slots[0] + s for s in slots[1:])][:count]
    apart = sum(images[min(s, rows)] for s in slots)
    densest = sum(images[min(j * separation, rows)] for j in range(count))
    assert np.linalg.norm(apart) <= np.linalg.norm(densest) * (1 + 1e-12) + 1e-12


def test_the_pairing_of_the_proof() -> None:
    """Each entry on the side of the larger lag has one of its own that is neither later nor further."""
    for p, q, j in itertools.product(range(1, 7), range(1, 7), range(9)):
        if p > q:
            continue
        fewer, more = list(range(p)), list(range(q))
        pairs: list[tuple[tuple[int, int], tuple[str, int]]] = []
        for i in more[p:]:
            pairs.append(((i, j + p), ("more", i - p)))
        for i in fewer:  # the block of p against itself
            mirror = 2 * j + p - i
            pairs.append(((i, j + p), ("fewer", mirror if mirror in fewer else i)))
            pairs.append(((i, j + q), ("more", q - 1 - i)))
        taken = [place_of for _, place_of in pairs]
        assert len(set(taken)) == len(taken) == p + q
        for (row, place), (_, place_of) in pairs:
            assert abs(place_of - j) <= abs(row - place)
            assert max(place_of, j) <= max(row, place)


@pytest.mark.parametrize("size", [1, 32, 700])
@pytest.mark.parametrize("horizon", [None, 500, 40_000])
def test_the_strategies_fall_as_the_proof_needs(size: int, horizon: int | None) -> None:
    strategy = fit_blt(fifo_pattern(size), horizon)
    column = strategy.column(2000)
    assert np.all(column >= 0.0)
    assert np.all(np.diff(column) <= 0.0)
    assert np.all(np.diff(Toeplitz.square_root(2000).column) <= 0.0)
    # The mutant: memories that are too loud for it.
    assert BLT(np.array([3.0]), np.array([0.5]), None).column(2)[1] > 1.0


# ---- floating point ----------------------------------------------------------------------------------------


def test_an_error_flips_a_cell_as_often_as_stated() -> None:
    rng = np.random.default_rng(0)
    ideal = rng.normal(size=2_000_000) * 50.0  # in steps of the grid
    error = 1e-3
    for sign in (-1.0, 1.0):
        flips = np.mean(np.floor(ideal + 0.5) != np.floor(ideal + sign * error + 0.5))
        assert flips == pytest.approx(
            error, rel=0.1
        )  # half of the bound 2 e / gamma, which allows both signs
    random = rng.uniform(-error, error, ideal.shape)
    assert np.mean(np.floor(ideal + 0.5) != np.floor(ideal + random + 0.5)) <= 2.0 * error


def test_the_computed_noise_is_as_close_as_stated() -> None:
    """Rows of correlated noise in doubles against extended precision: mean error below 1e-15 of sigma."""
    if np.finfo(np.longdouble).eps > 2e-19:
        pytest.skip("this machine has no longer floating-point numbers to compare with")
    strategy = fit_blt(fifo_pattern(32))
    z = NormalStream(3).take(20_000).reshape(-1, 4)
    noise = BLTNoise(strategy.omega, strategy.theta, 4, 1.0)
    got = noise.rows(len(z), NormalStream(3))
    omega, theta = strategy.omega.astype(np.longdouble), strategy.theta.astype(np.longdouble)
    memory, want = np.zeros((len(omega), 4), dtype=np.longdouble), np.zeros(z.shape, dtype=np.longdouble)
    for t, row in enumerate(z):
        want[t] = row - omega @ memory
        memory = theta[:, None] * memory + want[t]
    assert float(np.abs(got - want).mean()) < 5e-16
    # The normals themselves: radius and angle are within 3 units in the last place of a double.
    assert 3 * np.finfo(float).eps < 1e-15


SHARES = {
    # n, d: of all gradients of PairFTRL, of the moments solver's blocks, of the warm-up
    (1_000, 9): (5e-6, 2e-7, 5e-9),
    (100_000, 9): (7e-4, 2e-7, 5e-9),
}


@pytest.mark.parametrize(("n", "d"), SHARES)
def test_the_floating_point_share_of_delta_is_of_the_stated_size(n: int, d: int) -> None:
    """`(1 + e^eps) N 2 e / gamma` with e = 1e-15 sigma, as docs/privacy 7 prints it."""
    epsilon, delta = 1.0, 1e-6
    mu = mu_from(epsilon, delta)
    ftrl = plan_ftrl(
        mu, dim=d, influence=Influence.fifo(32), diameter=2.0, clip=1.0, radius=3.0, horizon=n
    )  # fmt: skip
    blocks = plan_second_moments(mu, features=d, base=0.1 * n, radius=30.0, horizon=n - n // 10)
    warm = plan_warmup(mu, dim=d, slots=n // 10, labels=True)
    each = (1.0 + math.exp(epsilon)) * 2.0 * 1e-15
    got = (
        each * n * d * ftrl.sigma / ftrl.grid,
        each * blocks.releases(n) * blocks.dim * max(blocks.sigma, blocks.sigma_last) / blocks.grid,
        each * 2 * (d + 1) * warm.sigma_sum * warm.PER_UNIT,
    )
    for value, stated in zip(got, SHARES[n, d], strict=True):
        assert 0.3 * stated < value < 1.5 * stated


def test_the_normals_end_where_it_is_said() -> None:
    """The largest radius of 96 bits is 11.6, and what lies beyond has a mass below 1e-30."""
    largest = math.sqrt(2.0 * 97.0 * math.log(2.0))
    assert largest == pytest.approx(11.6, abs=0.01)
    assert 2.0 * special.ndtr(-largest) < 1e-30
    assert np.abs(NormalStream(0).take(100_000)).max() < largest
