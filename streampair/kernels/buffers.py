"""Buffers of past records: which are kept, and which of them a new one replaces."""

from __future__ import annotations

from streampair.kernels._jit import Array, kernel
from streampair.kernels.numerics import uniform
from streampair.kernels.state import CAP, FILLED, NEXT, POLICY, POSITIVES, RECORDS, SEED, SIZE
from streampair.kernels.vectors import view

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
def _store(s: Array, places: Array, values: Array, y: float, at: int, room: int) -> None:
    """Write a record into the row at `at`: see `state`. Without places its features are the first ones."""
    s[at] = y
    count = values.shape[0]
    if room == 0:
        row = view(s, at + 1, count)
        for i in range(count):
            row[i] = values[i]
        return
    theirs, row = view(s, at + 2, count), view(s, at + 2 + room, count)
    gaps = 0
    for j in range(count):
        gaps |= 0 if values[j] == values[j] else 1
        row[j] = values[j]
    if places.shape[0] > 0:
        for j in range(count):
            theirs[j] = places[j]
    elif s[at + 1] != count:  # else it held a record of all features, too
        for j in range(count):
            theirs[j] = j
    s[at + 1] = count + 0.5 if gaps else count


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
def ogd_buffer(s: Array, places: Array, values: Array, y: float, rows: int, room: int) -> None:
    """Let record t = s[RECORDS] (counted from 1) into the buffer at `rows`, as its policy says.

    With `room` 0 it is a table of whole records, (1 + cap) cells each; else each row has room for so many
    features.
    """
    stride = 2 + 2 * room if room > 0 else 1 + int(s[CAP])
    size = int(s[SIZE])
    policy = int(s[POLICY])
    if policy == FIFO:
        row = int(s[NEXT])
        _store(s, places, values, y, rows + row * stride, room)
        s[NEXT] = 0.0 if row + 1 == size else row + 1.0
        if s[FILLED] < size:
            s[FILLED] += 1.0
        return
    t = int(s[RECORDS])
    seed = int(s[SEED])
    if policy == RESERVOIR:
        row = row_to_replace(RESERVOIR, seed, t, size, 0)
        if row >= 0:
            _store(s, places, values, y, rows + row * stride, room)
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
            _store(s, places, values, y, rows + (first + row) * stride, room)
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
            _store(s, places, values, y, rows + row * stride, room)
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
