"""Integers under the discrete laws of Laplace and of staircases, exactly, from uniform words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import kernel

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
