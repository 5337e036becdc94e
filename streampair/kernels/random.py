"""Random numbers from a key or a seed: Laplace noise, public coins, random Fourier features."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.numerics import (
    exp_negative,
    log_one_plus,
    log_positive,
    sin_cos,
    uniform,
)
from streampair.kernels.symmetric import eigen
from streampair.kernels.vectors import dot


@kernel
def normals_from_seed(seed: int, out: Array) -> None:
    """Standard normals that depend on a seed only, for public coins: not for noise.

    Ratio of uniforms (Kinderman & Monahan 1977), which needs no logarithm, so that the bits are the same on
    every processor.
    """
    for i in range(out.shape[0]):
        attempt = 0
        while True:
            u = 1.0 - uniform(seed, i, attempt)
            x = (2.0 * uniform(seed, i, attempt + 1) - 1.0) * 0.8577638849607068 / u
            attempt += 2
            if u <= exp_negative(0.25 * x * x):
                out[i] = x
                break


@kernel
def fourier_rows(rows: Array, frequencies: Array, out: Array) -> None:
    """Sines and cosines of the projections of (n, d) rows on (m, d) frequencies, (n, 2 m), norm 1."""
    m = frequencies.shape[0]
    scale = 1.0 / math.sqrt(m)
    for r in range(rows.shape[0]):
        for j in range(m):
            s, c = sin_cos(dot(rows[r], frequencies[j]))
            out[r, 2 * j] = scale * s
            out[r, 2 * j + 1] = scale * c


Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

# In place of a position: the words are used up, or a bound has more than 64 bits.
_NO_WORDS = -1
LARGE_BOUND = -2


@kernel
def _below(words: Words, at: int, bound: np.uint64) -> tuple[np.uint64, int]:
    """Uniform in 0, ..., bound - 1, and the position behind: words of too much are drawn again."""
    most = bound - np.uint64(1)
    mask = most
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> np.uint64(shift)
    while at < len(words):
        value = words[at] & mask
        at += 1
        if value <= most:
            return value, at
    return np.uint64(0), _NO_WORDS


@kernel
def _falls(words: Words, at: int, above: np.uint64, below: np.uint64) -> tuple[bool, int]:
    """True with probability ``exp(-above / below)``, for above <= below."""
    k = np.uint64(1)
    while True:
        if k > np.uint64(0xFFFFFFFFFFFFFFFF) // below:
            return False, LARGE_BOUND
        value, at = _below(words, at, below * k)
        if at < 0:
            return False, at
        if value >= above:
            return k % np.uint64(2) == np.uint64(1), at
        k += np.uint64(1)


@kernel
def _geometric(words: Words, at: int, scale: np.uint64) -> tuple[np.int64, int]:
    """An integer n >= 0 with probability proportional to ``exp(-n / scale)``; -1: to be drawn again."""
    low, at = _below(words, at, scale)
    if at < 0:
        return np.int64(-1), at
    falls, at = _falls(words, at, low, scale)
    if at < 0 or not falls:
        return np.int64(-1), at
    out = np.int64(low)
    while True:
        falls, at = _falls(words, at, np.uint64(1), np.uint64(1))
        if at < 0:
            return np.int64(-1), at
        if not falls:
            return out, at
        out += np.int64(scale)


@kernel
def laplace_integers(
    words: Words, width: np.uint64, inner: np.uint64, scale: np.uint64, out: Ints
) -> tuple[int, int]:
    """Fill out, as far as the words reach: how many were drawn, and the words that they used.

    Integers ``+-(j width + i)``, 0 <= i < width, j >= 0, with probability proportional to
    ``exp(-j / scale)`` for i < inner, else ``exp(-(j + 1) / scale)``; of width 1 and inner 1 that is
    ``exp(-|k| / scale)``. By the algorithm of Canonne, Kamath and Steinke (2020): in integers throughout. The
    words of one that was begun are not used; a number of used words of `LARGE_BOUND` is an error.

    Parameters
    ----------
    words
        Uniform in 0, ..., 2^64 - 1.
    width, inner, scale
        At least 1, inner at most the width.
    out
        Gets the integers, (count,).
    """
    at = start = 0
    for made in range(len(out)):
        while True:
            within, within_kept = np.uint64(0), True
            if width > np.uint64(1):
                within, at = _below(words, at, width)
                if at >= 0 and within >= inner:
                    within_kept, at = _falls(words, at, np.uint64(1), scale)
                if at < 0:
                    return made, (LARGE_BOUND if at == LARGE_BOUND else start)
            steps, at = _geometric(words, at, scale)
            if at < 0:
                return made, (LARGE_BOUND if at == LARGE_BOUND else start)
            if steps < 0 or not within_kept:
                continue
            sign, at = _below(words, at, np.uint64(2))
            if at < 0:
                return made, start
            size = steps * np.int64(width) + np.int64(within)
            negative = sign == np.uint64(1)
            if not (negative and size == 0):  # 0 has one sign
                break
        out[made] = -size if negative else size
        start = at
    return len(out), start


@kernel
def _log_of_one_minus(slack: float) -> float:
    """log |1 - slack|, also where slack is tiny; -inf at 1."""
    if -0.29 < slack < 0.29:
        return log_one_plus(-slack)
    if slack == 1.0:
        return -math.inf
    return log_positive(abs(1.0 - slack))


@kernel
def blt_variances(omega: Array, decay: Array, steps: Array, out: Array) -> None:
    """Variance of the noise in the prefix sums of `steps` whole numbers of terms, for unit z, in closed form.

    `B = A C^-1` of a BLT with omega and 1 - theta is `b_k = floor + sum_j r_j p_j^k`: its memories obey
    `M' = (diag(theta) - 1 omega^T) M + 1 z`, which is similar to the symmetric `diag(theta) - q q^T`,
    `q = sqrt(omega)`, whose eigenvalues are the p_j.
    """
    h = omega.shape[0]
    matrix = np.empty((h, h))
    rest = 1.0
    for i in range(h):
        rest += omega[i] / decay[i]
        for j in range(h):
            matrix[i, j] = math.sqrt(omega[i]) * math.sqrt(omega[j])
        matrix[i, i] += decay[i]
    floor = 1.0 / rest
    slack = np.empty(h)  # 1 - p
    eigen(matrix, slack)
    weight = np.empty(h)
    logs = np.empty(h)
    for j in range(h):
        along = 0.0
        for i in range(h):
            along += math.sqrt(omega[i]) * matrix[j, i]
        weight[j] = along * along / slack[j]
        logs[j] = _log_of_one_minus(slack[j])
    power = np.empty(h)
    for r in range(steps.shape[0]):
        t = max(steps[r], 0.0)
        for j in range(h):
            a = -t * logs[j]
            power[j] = 1.0
            if t > 0.0:
                power[j] = exp_negative(a) if a >= 0.0 else 1.0 / exp_negative(-a)
                if slack[j] > 1.0 and t % 2.0 == 1.0:
                    power[j] = -power[j]
        single = 0.0
        double = 0.0
        for j in range(h):
            single += weight[j] * ((1.0 - power[j]) / slack[j])
            for i in range(h):
                gap = slack[i] + slack[j] - slack[i] * slack[j]
                double += weight[i] * weight[j] * ((1.0 - power[i] * power[j]) / gap)
        out[r] = t * floor * floor + 2.0 * floor * single + double
