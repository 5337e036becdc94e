"""Rows of a table as whole steps, column by column, and hashes of row ids (docs/privacy 10.7).

Columns lie behind each other, (d, n), so that each loop over the rows of a column is made of vectors.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.vectors import MAX_FINITE

Word = np.uint64
Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def design_columns(raw: Array, scaling: Array, cap: float, out: Array, labels: Array) -> None:
    """Raw columns (d, n) to design vectors (d, n), the same bits as of `prepare_rows` with `standardise`.

    The label (n,) of a row that is not finite becomes NaN, and its vector has no meaning. The cap is below
    1e50, so no square overflows.
    """
    d, n = raw.shape
    scale, shift, mean, factor = scaling[0], scaling[1], scaling[2], scaling[3]
    # The squares add up as in `dot`: four interleaved sums, and what is left over to the first.
    squares = np.zeros((4, n))
    for j in range(d):
        values, x = raw[j], out[j]
        total = squares[j % 4 if j < d - d % 4 else 0]
        a, b, m, f = scale[j], shift[j], mean[j], factor[j]
        for r in range(n):
            labels[r] = labels[r] if abs(values[r]) <= MAX_FINITE else math.nan
            value = min(max(values[r], -1e100), 1e100) * a + b
            value = (min(max(value, -1.0), 1.0) - m) * f
            value = min(max(value, -cap), cap)
            x[r] = value
            total[r] += value * value
    first, second, third, fourth = squares[0], squares[1], squares[2], squares[3]
    for r in range(n):
        first[r] = max(math.sqrt((first[r] + second[r]) + (third[r] + fourth[r])), 1.0)
    for j in range(d):
        x = out[j]
        for r in range(n):
            x[r] /= first[r]


@kernel
def ball_steps(columns: Array, labels: Array, steps: float) -> None:
    """Replace vectors of the unit ball, columns (d, n), by whole steps with a norm of at most `steps`.

    A coordinate is rounded to the nearest step; in a row that this makes too long, towards 0. A row that is
    then still too long, or not finite, becomes 0, and so does one whose label (n,) is NaN.
    """
    d, n = columns.shape
    most = steps * steps
    near, short = np.zeros(n), np.zeros(n)
    for j in range(d):
        x = columns[j]
        for r in range(n):
            k = np.floor(x[r] * steps + 0.5)
            near[r] += k * k  # integers of at most 2^53, so the sum is exact
    for j in range(d):
        x = columns[j]
        for r in range(n):
            k = np.floor(x[r] * steps + 0.5)
            x[r] = k if near[r] <= most else np.trunc(x[r] * steps)
            short[r] += x[r] * x[r]
    for r in range(n):
        if not short[r] <= most or labels[r] != labels[r]:
            for j in range(d):
                columns[j, r] = 0.0


@kernel
def mixed(word: Word) -> Word:
    """The mixing function of SplitMix64, a bijection (Steele, Lea and Flood 2014)."""
    word = word + _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@kernel
def id_hashes(ids: Words, first: Word, second: Word, out: Words) -> None:
    """Hashes (n,) of whole numbers (n,) under the two words of a key."""
    for r in range(ids.shape[0]):
        out[r] = mixed(mixed(ids[r] ^ first) ^ second)


@kernel
def id_sum(hashes: Words) -> Word:
    """A sum over hashes, modulo 2^64: the same for any order, and another one for other hashes."""
    total = np.uint64(0)
    for r in range(hashes.shape[0]):
        total += mixed(hashes[r] ^ _GOLDEN)
    return total


@kernel
def repeated(hashes: Words, table: Words) -> int:
    """How many of the hashes (n,) have come before in them; the table has 2^k > n cells of 0."""
    last = np.uint64(table.shape[0] - 1)
    count = zeros = 0
    for r in range(hashes.shape[0]):
        word = hashes[r]
        if word == np.uint64(0):  # as an empty cell
            count += 1 if zeros > 0 else 0
            zeros += 1
            continue
        at = word & last
        while table[at] != np.uint64(0) and table[at] != word:
            at = (at + np.uint64(1)) & last
        if table[at] == word:
            count += 1
        table[at] = word
    return count
