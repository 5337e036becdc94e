"""Buffers of past records: which are kept, and which of them a new one replaces."""

from __future__ import annotations

from streampair.kernels._jit import Array, kernel
from streampair.kernels.numerics import uniform
from streampair.kernels.state import FILLED, NEXT, POLICY, POSITIVES, RECORDS, SEED, SIZE

# One table for all learners; the private ones use the first two and FULL.
FIFO = 0
RESERVOIR = 1
RESERVOIR_REPLACE = 2
FULL = 3
CLASSES = 4  # a reservoir for each class
MOMENTS = 5  # the full history under least squares, labels +1 and -1
MOMENTS_REAL = 6  # the same for real-valued labels


@kernel
def row_to_replace(policy: int, seed: int, t: int, size: int, coin: int) -> int:
    """The row that record t (from 1) of a stream takes in a buffer of `size` rows; -1: none.

    FIFO, RESERVOIR (Vitter's Algorithm R, by a coin that is a function of seed, t and its number) or FULL. It
    depends on no record, so that a private learner's places are public.
    """
    if policy == FIFO:
        return (t - 1) % size
    if policy == FULL or t <= size:
        return t - 1
    row = int(uniform(seed, t, coin) * t)
    return row if row < size else -1


@kernel
def _ogd_store(s: Array, x: Array, y: float, row: int, cap: int, rows: int) -> None:
    at = rows + row * (1 + cap)
    s[at] = y
    for i in range(x.shape[0]):
        s[at + 1 + i] = x[i]


@kernel
def _replaced(u: float, size: int, t: int) -> int:
    """Binomial draw (`size` trials of probability 1/t) by inversion of one uniform number u; t > size.

    The inverse of the binomial distribution from 0 upwards: for most records the first comparison decides,
    and no coin has to be tossed.
    """
    part = 1.0  # the probability of 0: a power by squaring, the same bits everywhere
    base = 1.0 - 1.0 / t
    exponent = size
    while exponent > 0:
        if exponent % 2 == 1:
            part *= base
        base *= base
        exponent //= 2
    total = part
    count = 0
    while u >= total and count < size:
        part *= (size - count) / ((count + 1.0) * (t - 1.0))
        total += part
        count += 1
    return count


@kernel
def ogd_buffer(s: Array, x: Array, y: float, cap: int, rows: int) -> None:
    """Let record t = s[RECORDS] (counted from 1) into the buffer at `rows`, as its policy says."""
    size = int(s[SIZE])
    policy = int(s[POLICY])
    if policy == FIFO:
        row = int(s[NEXT])
        _ogd_store(s, x, y, row, cap, rows)
        s[NEXT] = 0.0 if row + 1 == size else row + 1.0
        if s[FILLED] < size:
            s[FILLED] += 1.0
        return
    t = int(s[RECORDS])
    seed = int(s[SEED])
    if policy == RESERVOIR:
        row = row_to_replace(RESERVOIR, seed, t, size, 0)
        if row >= 0:
            _ogd_store(s, x, y, row, cap, rows)
        s[FILLED] = float(min(t, size))
        return
    if policy == CLASSES:
        first = 0
        seen = t - int(s[POSITIVES])
        if y > 0.0:
            s[POSITIVES] += 1.0
            first = size
            seen = int(s[POSITIVES])
        row = row_to_replace(RESERVOIR, seed, seen, size, 1 if y > 0.0 else 0)
        if row >= 0:
            _ogd_store(s, x, y, first + row, cap, rows)
        if seen <= size:
            s[FILLED] += 1.0
        return
    s[FILLED] = float(size)
    left = size  # rows that the record will take
    if t > size:
        left = _replaced(uniform(seed, t, size), size, t)
        if left == 0:
            return
    for row in range(size):
        # A coin for each row; or, given how many coins fall so, which ones.
        odds = left / (size - row) if t > size else 1.0 / t
        if uniform(seed, t, row) < odds:
            _ogd_store(s, x, y, row, cap, rows)
            left -= 1


@kernel
def other_class(s: Array, y: float) -> tuple[float, int, int]:
    """Sample of the other class: the divisor of its sums, its number of rows, and its first row."""
    size = int(s[SIZE])
    past = s[RECORDS] - 1.0
    if y > 0.0:
        others = past - s[POSITIVES]
        first = 0
    else:
        others = s[POSITIVES]
        first = size
    rows = min(int(others), size)
    return past * (rows / others) if rows > 0 else 1.0, rows, first
