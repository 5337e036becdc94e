"""Lemmas of docs/privacy that no other test checks: a search for a counter-example, and mutants."""

from __future__ import annotations

import itertools
import math
import operator
import re
from fractions import Fraction
from typing import Any

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import dense
from scipy import special

from streampair import auc, losses, offline, privacy
from streampair.errors import ConfigError
from streampair.kernels import double_double
from streampair.privacy import compose, delta_from, mu_from
from streampair.privacy.accounting import ROUNDING_SHARE
from streampair.privacy.noise import BLTNoise, NormalStream, ToeplitzNoise, rounded, scaled
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
    """A fit whose column rises: then the worst record is another one."""
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


HALF = Fraction(1, 2)


def test_noise_near_the_borders_of_cells_is_rounded_as_the_exact_one() -> None:
    """Standard deviations chosen so that each draw is within some 2^-52 of a border, against 60 digits."""
    words = np.random.default_rng(1).integers(0, 2**64, 3 * 100, dtype=np.uint64)
    z = np.empty((2, 200))
    double_double.normals_from_bits(words, z)
    normals = [Fraction(value) for value in naive.exact_normals(words.tolist())]
    wrong = np.zeros(2)
    for border in (0.5, 1.5, 6.5, 2.0**17 + 0.5):
        scales = border / np.abs(z[0])
        exact = [Fraction(s) * n for s, n in zip(scales.tolist(), normals, strict=True)]
        assert max(abs(abs(n) - Fraction(border)) for n in exact) < 2.0**-51 * border
        noise = scaled(z, scales)
        bounds = [Fraction(s) * Fraction(2) ** -95 for s in scales.tolist()]
        for high, low, true, bound in zip(*noise.tolist(), exact, bounds, strict=True):
            assert abs(Fraction(high) + Fraction(low) - true) <= bound
        wanted = np.array([math.floor(n + HALF) for n in exact])
        assert np.array_equal(rounded(noise), wanted)
        # The mutants: a double normal, and a product that is a double.
        wrong[0] += np.mean(rounded(scaled(z * [[1.0], [0.0]], scales)) != wanted)
        wrong[1] += np.mean(rounded(np.stack((scales * z[0], np.zeros(200)))) != wanted)
    assert wrong.min() > 0.2


def test_noise_is_rounded_exactly() -> None:
    """Halves, and what is less than the last place of a double from them."""
    tiny = 2.0**-70
    high = np.array(
        [
            2.0**-54 - 0.5,
            2.0**-54 - 0.5,
            0.5,
            0.5,
            -0.5,
            -0.5,
            2.5,
            -3.5,
            7.0,
            1.0 - 2.0**-53,
            -(2.0**40) - 0.5,
            0.0,
        ]
    )
    low = np.array([0.0, -(2.0**-56), 0.0, -tiny, 0.0, -tiny, -tiny, tiny, tiny, 2.0**-60, tiny, -tiny])
    wanted = [math.floor(Fraction(h) + Fraction(e) + HALF) for h, e in zip(high, low, strict=True)]
    assert rounded(np.stack((high, low))).tolist() == wanted


def test_the_memory_of_a_blt_is_as_exact_as_its_normals() -> None:
    """Rows of correlated noise against whole-number arithmetic on the same normals; mutants are seen."""
    strategy, steps = fit_blt(fifo_pattern(32), 2000), 300
    z = NormalStream(3).take(2 * steps).reshape(2, steps, 2)
    got = BLTNoise(strategy.omega, strategy.theta, 2, 3.0).rows(steps, NormalStream(3))
    omega, theta = ([Fraction(v) for v in part.tolist()] for part in (strategy.omega, strategy.theta))
    memory = [Fraction(0)] * len(omega)
    worst = double = Fraction(0)
    unit = Fraction(2) ** -200
    for t in range(steps):
        n = Fraction(z[0, t, 1]) + Fraction(z[1, t, 1]) - sum(map(operator.mul, omega, memory))
        memory = [round((q * m + n) / unit) * unit for q, m in zip(theta, memory, strict=True)]
        worst = max(worst, abs(Fraction(got[0, t, 1]) + Fraction(got[1, t, 1]) - 3 * n))
        double = max(double, abs(Fraction(got[0, t, 1]) - 3 * n))
    assert worst < 3 * Fraction(2) ** -92 < Fraction(2) ** -60 < double


@pytest.mark.parametrize("seed", range(5))
def test_what_the_memory_rounds_is_within_its_bound(seed: int) -> None:
    """`memory_error`: the mean of each row, given the noise of the rows before, against exact arithmetic."""
    steps, dim = 200, 2
    strategy = Toeplitz.square_root(steps)
    z = NormalStream(seed).take(steps * dim).reshape(2, steps, dim)
    got = ToeplitzNoise(strategy.inverse, dim, 1.0).rows(steps, NormalStream(seed))
    moved = 0.0
    for t in range(steps):
        for i in range(dim):
            exact = sum(
                Fraction(strategy.inverse[t - k]) * (Fraction(z[0, k, i]) + Fraction(z[1, k, i]))
                for k in range(t + 1)
            )
            moved += float(Fraction(got[0, t, i]) + Fraction(got[1, t, i]) - exact) ** 2
    # Both of two runs; how the later rows take it up is the first factor of the bound.
    assert 0.0 < 2.0 * math.sqrt(moved) * strategy.column.sum() < strategy.memory_error(steps, dim) < 1e-9


def test_a_blt_is_that_of_the_factors_in_use() -> None:
    """1 - 1e-9 is no double: the sensitivity is of the memory as it decays, not as it was fitted."""
    strategy = BLT(np.array([0.4]), np.array([1e-9]), None)
    assert strategy.decay[0] == 1.0 - strategy.theta[0] != 1e-9
    again = BLT.of(strategy.omega.tolist(), strategy.decay.tolist(), None)
    assert again.decay[0] == strategy.decay[0]


def plans(delta: float) -> list[Any]:
    return [
        auc.PairFTRL(1.0, delta, 100_000, mechanism=privacy.PairGradients(), features=[*"abc"]),
        auc.PairFTRL(1.0, delta, 100_000, mechanism=privacy.SecondMoments(), features=[*"abc"]),
        auc.PairFTRL(1.0, delta, None, mechanism=privacy.PairGradients(), features=[*"abc"]),
    ]


def test_the_part_of_delta_of_floating_point_is_charged() -> None:
    """The delta of the ideal noise and the part for its rounding are within the delta that is printed."""
    for model in plans(1e-6):
        report = model.privacy
        share = math.fsum(line["floating_point_delta"] for line in report.card)
        mu = model.run.settings.mu
        assert 0.0 < share <= ROUNDING_SHARE * report.delta
        assert delta_from(1.0, mu) + share < report.delta
        assert report.mu_budget == mu
        # Room for the rounding of sensitivities, too.
        assert (1.0 + 2.0**-31) * mu < mu_from(1.0, (1.0 - ROUNDING_SHARE) * 1e-6)
        assert (
            f"{ROUNDING_SHARE * 1e-6:.1g} of delta is for them, and they need {share:.1g}" in report.details
        )


def test_a_delta_that_rounding_cannot_keep_is_refused() -> None:
    """The counter-example: at a delta of 1e-300 the report said that the promise holds."""
    with pytest.raises(ConfigError, match="the rounding of noise alone needs") as caught:
        auc.PairFTRL(1.0, 1e-300, 100_000, mechanism=privacy.SecondMoments(), features=[*"abc"])
    least = float(re.search(r"at least ([0-9.e-]+[0-9])", str(caught.value)).group(1))  # type: ignore[union-attr]
    assert 1e-20 < least < 1e-12
    auc.PairFTRL(1.0, least, 100_000, mechanism=privacy.SecondMoments(), features=[*"abc"])
    with pytest.raises(ConfigError, match="no delta can be kept at 100"):
        auc.PairFTRL(100.0, 1e-6, 100_000, mechanism=privacy.SecondMoments(), features=[*"abc"])
    with pytest.raises(ConfigError, match="the rounding of noise alone needs"):
        offline.DPGDSC(epsilon=1.0, delta=1e-30, bounds=(-1.0, 1.0)).fit(np.eye(4), [0, 1, 0, 1])


def test_a_stream_without_end_stops_before_rounding_exceeds_its_part() -> None:
    model = plans(1e-6)[2]
    run = model.run
    card = model.privacy.card
    (line,) = (line for line in card if line["releases"] is None)
    each = line["floating_point_delta"] / 2**20
    learned = run.end - run.settings.warmup
    others = math.fsum(other["floating_point_delta"] for other in card if other is not line)
    assert 0.999 * ROUNDING_SHARE * 1e-6 < others + learned * each <= ROUNDING_SHARE * 1e-6
    assert learned > 1e9
    run.end = 3
    for i in range(5):
        model.learn_one({"a": 0.1 * i, "b": 0.2, "c": -0.1}, bool(i % 2))
    assert run.slots == 3


def test_the_normals_end_where_it_is_said() -> None:
    """The largest radius of 96 bits is 11.6, and what lies beyond has a mass below 1e-30."""
    largest = math.sqrt(2.0 * 97.0 * math.log(2.0))
    assert largest == pytest.approx(11.6, abs=0.01)
    assert 2.0 * special.ndtr(-largest) < 1e-30
    assert np.abs(NormalStream(0).take(100_000)[0]).max() < largest
