"""The noise source: right distribution to the tails, never the same stream twice, no key to be found."""

from __future__ import annotations

import copy
import math
import multiprocessing
import pickle
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import exact_normals
from scipy import stats

from streampair import kernels
from streampair.errors import SnapshotError
from streampair.kernels import double_double, numerics
from streampair.privacy.noise import BLTNoise, NormalStream, ToeplitzNoise
from streampair.privacy.sensitivity import square_root_coefficients

word = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 2**61, 2**63 - 1, 2**63, 2**64 - 1]),
    st.integers(0, 2**20),
)


BOUND = 2.0**-96  # of Lemma 21


def errors(words: list[int], broken: Callable[[np.ndarray], np.ndarray] = np.asarray) -> float:
    """Largest distance of the computed normals from those of 60 digits."""
    out = np.empty((2, len(words) // 3 * 2))
    double_double.normals_from_bits(np.array(words, dtype=np.uint64), out)
    high, low = broken(out).tolist()
    with localcontext() as context:
        context.prec = 60
        exact = exact_normals(words)
        return float(max(abs(Decimal(h) + Decimal(e) - z) for h, e, z in zip(high, low, exact, strict=True)))


@given(words=st.lists(st.tuples(word, word, word), min_size=1, max_size=4))
def test_the_kernel_agrees_with_whole_number_arithmetic(words: list[tuple[int, int, int]]) -> None:
    flat = [w for triple in words for w in triple]
    assert errors(flat) <= BOUND


def test_bits_near_every_border_of_the_tables_agree_too() -> None:
    """Radius and angle at the ends of the cells of the tables, and where one formula follows another."""
    radii = [2**57 * j + k for j in (*range(64, 128), 1, 3) for k in (-1, 0, 1)]
    radii += [2**63 - 1, 2**63, 2**62 - 1, 2**62, 2**64 - 1, 2**64 - 2**20, 0, 1, 2, 2**20, 2**40]
    angles = [2**55 * j + k for j in (*range(64), 127, 200, 511) for k in (-1, 0, 1)]
    flat = [(word % 2**64) for a in radii for word in (a, 2**64 - 1, 2**55 * (a % 512))]
    flat += [(word % 2**64) for c in angles for word in (2**40 + c, 0, c)]
    flat += [(word % 2**64) for c in angles for word in (2**61, 2**64 - 1, c)]
    assert errors(flat) <= BOUND
    # Mutants: the low parts are lost, or one bit of a table is wrong.
    assert errors(flat, lambda out: out * [[1.0], [0.0]]) > 1e5 * BOUND
    table, kept = double_double._CIRCLE, double_double._CIRCLE.copy()
    if kernels.DISABLED:  # compiled kernels hold a copy of it
        table[5, 1] += 2.0**-90
        assert errors(flat) > BOUND
        table[:] = kept


def test_the_tails_reach_as_far_as_96_bits_allow() -> None:
    out = np.empty((2, 2))
    double_double.normals_from_bits(np.zeros(3, dtype=np.uint64), out)
    assert math.hypot(*out[0]) == pytest.approx(math.sqrt(2 * 97 * math.log(2)), rel=1e-12)
    double_double.normals_from_bits(np.full(3, 2**64 - 1, dtype=np.uint64), out)
    assert 0 < math.hypot(*out[0]) < 1e-14


def rejects(sample: np.ndarray) -> bool:
    """Whether mean, variance, kurtosis, tails or shape are off at about 1e-5 together."""
    n = len(sample)
    cut = 5.0
    checks = [
        abs(sample.mean()) * math.sqrt(n) > cut,
        abs((sample**2).mean() - 1) * math.sqrt(n / 2) > cut,
        abs((sample**4).mean() - 3) * math.sqrt(n / 96) > cut,
        stats.kstest(sample, "norm").pvalue < 1e-6,
    ]
    for threshold in (2.0, 3.0, 3.5, 4.0):
        p = 2 * stats.norm.sf(threshold)
        count = np.count_nonzero(np.abs(sample) > threshold)
        checks.append(min(stats.binom.sf(count - 1, n, p), stats.binom.cdf(count, n, p)) < 1e-6)
    pairs = sample[: n // 2 * 2].reshape(-1, 2)
    checks.append(abs((pairs[:, 0] * pairs[:, 1]).mean()) * math.sqrt(n / 2) > cut)
    return any(checks)


@pytest.mark.parametrize("seed", range(5))
def test_the_sample_is_standard_normal(seed: int) -> None:
    sample = NormalStream(seed).take(200_001)[0]
    assert not rejects(sample)
    # Mutants that the check must catch.
    assert rejects(sample * 1.02)
    assert rejects(np.clip(sample, -3.5, 3.5))
    assert rejects(np.repeat(sample[::2], 2))


def test_the_sample_from_the_operating_system_is_standard_normal() -> None:
    assert not rejects(NormalStream().take(200_000)[0])


@given(counts=st.lists(st.integers(0, 700), max_size=8))
def test_how_numbers_are_asked_for_does_not_matter(counts: list[int]) -> None:
    stream = NormalStream(3)
    parts = [stream.take(count) for count in counts]
    assert np.array_equal(np.hstack([*parts, np.empty((2, 0))]), NormalStream(3).take(sum(counts)))


def test_streams_are_fresh_unless_seeded() -> None:
    assert np.array_equal(NormalStream(1).take(4), NormalStream(1).take(4))
    assert not np.array_equal(NormalStream(1).take(4), NormalStream(2).take(4))
    assert not np.array_equal(NormalStream().take(4), NormalStream().take(4))


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_copy_draws_its_own_noise(seed: int | None, copier: object) -> None:
    stream = NormalStream(seed)
    stream.take(10)
    other = copier(stream)  # type: ignore[operator]
    assert not other.seeded
    assert not np.any(np.isin(other.take(1000), stream.take(1000)))


def _draw(stream: NormalStream, pipe: object) -> None:
    pipe.send(stream.take(100))  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_draws_its_own_noise(seed: int | None) -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system does not fork")
    context = multiprocessing.get_context("fork")
    stream = NormalStream(seed)
    stream.take(10)
    here, there = context.Pipe()
    child = context.Process(target=_draw, args=(stream, there))
    child.start()
    theirs = here.recv()
    child.join()
    assert not np.any(np.isin(theirs, stream.take(100)))


def test_no_key_can_be_found() -> None:
    stream = NormalStream()
    stream.take(3)
    assert "NormalStream" in repr(stream)
    assert len(pickle.dumps(stream)) < 100  # a class name, and no more
    attributes = [getattr(stream, name) for name in stream.__slots__]
    assert not any(isinstance(value, bytes | bytearray | str) for value in attributes)
    # What was handed out is not kept.
    assert not np.any(stream._block[:, :3])


def test_memory_of_another_shape_is_refused() -> None:
    with pytest.raises(SnapshotError):
        BLTNoise(np.ones(2), np.zeros(2), 3, 1.0).load_state(np.zeros((2, 3, 3)))
    noise = ToeplitzNoise(square_root_coefficients(4)[1], 3, 1.0)
    for bad in (np.zeros((5, 3)), np.zeros((2, 2))):
        with pytest.raises(SnapshotError):
            noise.load_state(bad)


# ---- the same bits everywhere (docs/privacy 8)
# -------------------------------------------------------------


PINNED = [
    "-0x1.319c9bb3b9b84p-1",
    "0x1.8e9dcd1bfd5dfp-1",
    "0x1.3931e8925fda7p-1",
    "-0x1.0fbeaaaa71f11p+0",
    "0x1.246670d1eb08bp-1",
    "0x1.622de8b00f463p+0",
    "-0x1.c9e224a6cdd17p+0",
    "-0x1.e7913580e65b0p-2",
    "-0x1.2e5164cfa289ep-57",
    "-0x1.7ca53c2fdcbe4p-57",
    "0x1.b63e463608272p-55",
    "0x1.119730aa97e06p-56",
    "-0x1.d1692b638bbbap-55",
    "0x1.aac78d80675acp-54",
    "0x1.1fd88c1798954p-54",
    "-0x1.5bff2867a0db0p-56",
]


def ulps(got: float, exact: Decimal) -> float:
    return float(abs(Decimal(got) - exact) / Decimal(math.ulp(got)))


@given(x=st.floats(2.0**-97, 1.0, allow_subnormal=False))
def test_the_logarithm_is_right_to_the_last_bits(x: float) -> None:
    with localcontext() as context:
        context.prec = 60
        assert ulps(numerics.log_positive(x), Decimal(x).ln()) <= 2.0
        if 0.72 <= x < 1.0:
            assert ulps(numerics.log_one_plus(x - 1.0), Decimal(x).ln()) <= 1.0


def series(a: float, first: int) -> Decimal:
    """Sine (first = 1) or cosine (first = 0) by their series, to 50 digits."""
    x, term, total = Decimal(a), Decimal(1), Decimal(0)
    for n in range(1, 60):
        if n - 1 >= first and (n - 1 - first) % 2 == 0:
            total += term
            term = -term
        term *= x / n
    return total


@given(a=st.floats(0.0, math.pi / 4, allow_subnormal=False))
def test_sine_and_cosine_are_right_to_the_last_bits(a: float) -> None:
    with localcontext() as context:
        context.prec = 60
        if a > 0.0:
            assert ulps(numerics.sin_octant(a), series(a, 1)) <= 1.0
        assert ulps(numerics.cos_octant(a), series(a, 0)) <= 1.0


def test_the_bits_are_those_of_other_machines() -> None:
    """Written down once; a processor, compiler or library that gives others would break every replay."""
    words = np.arange(1, 13, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    out = np.empty((2, 8))
    double_double.normals_from_bits(words, out)
    assert [value.hex() for value in out.ravel().tolist()] == PINNED
