"""The sample of a stream's pairs that a regret is estimated from: which records enter, and where they lie.

A sample has one stratum, or two, by label. Each has two parts, of which either knows beforehand which item
enters next: *steps*, of which item j enters with odds of about 1/sqrt(j), and *records*, a uniform reservoir
that the partners of steps are drawn from (see `streampair.evaluation.regret`). All is in one flat array::

    [0, SAMPLE_HEADER)      scalars
    SAMPLE_STRATUM numbers  for each stratum: counters, and which item is next
    rank[size], order[size], heap[size]
                            for each stratum, of its steps: the rank and the number of each item, and a heap
                            of the places, that of the largest rank first

Uniform numbers are those of Python's `random.Random`, whose 625 words are in an array of their own.
Logarithms are libm's: a sample may differ in a last bit on another machine.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel

SAMPLE_STRATA = 0
SAMPLE_EXACT = 1  # of the first events none is a step
SAMPLE_OFF = 2  # whether nothing enters any more
SAMPLE_NEXT = 3  # uniform number that the partner of the next step is drawn by
SAMPLE_STEPS = 4  # room for steps, of each stratum
SAMPLE_RECORDS = 5  # room for records, of each stratum
SAMPLE_HEADER = 8

# Within a stratum.
SEEN = 0  # events
LEFT = 1  # number of next events of which none enters
STEP = 2  # number of the next item that could be a step, and of the one that will be
STEP_HIT = 3
RECORD = 4  # the same of records
RECORD_HIT = 5
LOG_W = 6  # logarithm of the largest of as many uniform numbers as there is room for records (Li 1994)
SAMPLE_STRATUM = 8

# Fields of an event that enters.
HIT_AT = 0  # its number in the batch
HIT_STRATUM = 1
HIT_RECORD = 2  # its place among the records; -1: it does not enter there
HIT_STEP = 3
HIT_PARTNER = 4  # the place of its partner among the records; -1: there is none
HIT_WEIGHT = 5  # share of the events before it that its partner was drawn for
SAMPLE_HIT = 6

# Columns before the features: of a table of steps (those of the record, then of its partner), and of records.
STEP_ID = 0
STEP_PARTNER = 1
STEP_LABEL = 2
STEP_OTHER = 3  # label of the partner
STEP_WEIGHT = 4
STEP_MARGIN = 5
STEP_COLUMNS = 6
RECORD_ID = 0
RECORD_LABEL = 1
RECORD_COLUMNS = 2

_FOR_EVER = 2.0**62
_WORDS = 624

Words = NDArray[np.uint64]


@kernel
def _twist(words: Words) -> None:
    """The next 624 words of the Mersenne Twister (Matsumoto and Nishimura 1998)."""
    for i in range(_WORDS):
        y = (words[i] & np.uint64(0x80000000)) | (words[(i + 1) % _WORDS] & np.uint64(0x7FFFFFFF))
        word = words[(i + 397) % _WORDS] ^ (y >> np.uint64(1))
        if y & np.uint64(1):
            word ^= np.uint64(0x9908B0DF)
        words[i] = word
    words[_WORDS] = np.uint64(0)


@kernel
def _word(words: Words) -> int:
    if words[_WORDS] >= np.uint64(_WORDS):
        _twist(words)
    y = words[int(words[_WORDS])]
    words[_WORDS] += np.uint64(1)
    y ^= y >> np.uint64(11)
    y ^= (y << np.uint64(7)) & np.uint64(0x9D2C5680)
    y ^= (y << np.uint64(15)) & np.uint64(0xEFC60000)
    y ^= y >> np.uint64(18)
    return int(y)


@kernel
def _random(words: Words) -> float:
    """`random.Random.random`."""
    high = _word(words) >> 5
    low = _word(words) >> 6
    return float((high * 67108864.0 + low) * (1.0 / 9007199254740992.0))


@kernel
def _ranks(s: Array, stratum: int) -> int:
    """Offset of the ranks of a stratum; the order of its items and the heap follow."""
    strata = int(s[SAMPLE_STRATA])
    return SAMPLE_HEADER + strata * SAMPLE_STRATUM + stratum * 3 * int(s[SAMPLE_STEPS])


@kernel
def _sift_down(s: Array, rank: int, heap: int, at: int, size: int) -> None:
    """Let what is at a place of the heap sink below what has a larger rank."""
    item = s[heap + at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and s[rank + int(s[heap + child + 1])] > s[rank + int(s[heap + child])]:
            child += 1
        if s[rank + int(s[heap + child])] <= s[rank + int(item)]:
            break
        s[heap + at] = s[heap + child]
        at = child
    s[heap + at] = item


@kernel
def _heapify(s: Array, rank: int, size: int) -> None:
    """Make a heap of all places; of use once all are taken."""
    heap = rank + 2 * size
    for place in range(size):
        s[heap + place] = place
    for at in range(size // 2 - 1, -1, -1):
        _sift_down(s, rank, heap, at, size)


@kernel
def sample_heap(s: Array) -> None:
    """Make the heap of each stratum anew from its ranks."""
    size = int(s[SAMPLE_STEPS])
    for stratum in range(int(s[SAMPLE_STRATA])):
        _heapify(s, _ranks(s, stratum), size)


@kernel
def _take_record(s: Array, base: int, words: Words) -> int:
    """Let the next item of a stratum in among the records (Li 1994, Algorithm L); its place."""
    size = int(s[SAMPLE_RECORDS])
    place = int(s[base + RECORD]) if s[base + RECORD] < size else int(_random(words) * size)
    s[base + RECORD] += 1.0
    if s[base + RECORD] < size:
        s[base + RECORD_HIT] = s[base + RECORD]
    else:
        # 1 - u: never 0.
        s[base + LOG_W] += math.log(1.0 - _random(words)) / size
        a = min(s[base + LOG_W], -1e-18)
        # log(1 - e^a), without cancellation at either end.
        log = math.log(-math.expm1(a)) if a > -0.7 else math.log1p(-math.exp(a))
        skip = math.log(1.0 - _random(words)) / log
        s[base + RECORD_HIT] = s[base + RECORD] + math.floor(min(skip, _FOR_EVER))
    return place


@kernel
def _take_step(s: Array, base: int, rank: int, words: Words) -> int:
    """Let the next item of a stratum in among the steps (Efraimidis and Spirakis 2006); its place."""
    size = int(s[SAMPLE_STEPS])
    order, heap = rank + size, rank + 2 * size
    count = s[base + STEP]
    at = s[SAMPLE_EXACT] + count
    odds = 2.0 / (math.sqrt(at + 1.0) + math.sqrt(at))
    if count < size:
        place = int(count)
        s[rank + place] = -math.log(1.0 - _random(words)) / odds
        if place + 1 == size:
            _heapify(s, rank, size)
    else:
        place = int(s[heap])
        # The rank of an item that enters is known to be below the largest.
        largest = s[rank + place]
        s[rank + place] = -math.log1p(_random(words) * math.expm1(-odds * largest)) / odds
        _sift_down(s, rank, heap, 0, size)
    s[order + place] = count
    s[base + STEP] = count + 1.0
    if s[base + STEP] < size:
        s[base + STEP_HIT] = s[base + STEP]
    else:
        # The odds add up to a square root, so the item at which their sum times the largest rank passes an
        # exponential variable has a closed form.
        root = math.sqrt(at + 1.0) - 0.5 * math.log(1.0 - _random(words)) / s[rank + int(s[heap])]
        hit = math.ceil(min(root * root, _FOR_EVER)) - s[SAMPLE_EXACT] - 1.0
        s[base + STEP_HIT] = max(s[base + STEP], hit)
    return place


@kernel
def sample_left(s: Array) -> None:
    """Compute anew, for each stratum, of how many next events none enters."""
    strata = int(s[SAMPLE_STRATA])
    seen = 0.0
    for c in range(strata):
        seen += s[SAMPLE_HEADER + c * SAMPLE_STRATUM + SEEN]
    for c in range(strata):
        base = SAMPLE_HEADER + c * SAMPLE_STRATUM
        if s[SAMPLE_OFF] > 0.0:
            s[base + LEFT] = _FOR_EVER
        elif seen < s[SAMPLE_EXACT]:
            s[base + LEFT] = 0.0
        else:
            s[base + LEFT] = min(s[base + STEP_HIT] - s[base + STEP], s[base + RECORD_HIT] - s[base + RECORD])


@kernel
def _pass_over(s: Array, numbers: tuple[float, float]) -> None:
    """Count so many events of each stratum that do not enter."""
    for c in range(int(s[SAMPLE_STRATA])):
        base = SAMPLE_HEADER + c * SAMPLE_STRATUM
        s[base + SEEN] += numbers[c]
        s[base + LEFT] -= numbers[c]
        s[base + STEP] += numbers[c]
        s[base + RECORD] += numbers[c]


@kernel
def sample_draw(s: Array, words: Words, strata: NDArray[np.uint8], hits: Array) -> int:
    """Count events of these strata (n,), and draw which enter: how many, each with a row of `hits`."""
    count = 0
    two = s[SAMPLE_STRATA] > 1.0
    passed = (0.0, 0.0)  # events that did not enter and are not counted yet, of each stratum
    left = s[SAMPLE_HEADER + LEFT], s[SAMPLE_HEADER + SAMPLE_STRATUM + LEFT] if two else 0.0
    for i in range(strata.shape[0]):
        c = int(strata[i])
        if passed[c] < left[c]:
            passed = (passed[0], passed[1] + 1.0) if c else (passed[0] + 1.0, passed[1])
            continue
        _pass_over(s, passed)
        base = SAMPLE_HEADER + c * SAMPLE_STRATUM
        other = SAMPLE_HEADER + (1 - c) * SAMPLE_STRATUM if two else base
        seen = s[base + SEEN] + s[other + SEEN] if two else s[base + SEEN]
        early = seen < s[SAMPLE_EXACT]
        row = hits[count]
        row[HIT_AT] = i
        row[HIT_STRATUM] = c
        row[HIT_RECORD] = -1.0
        row[HIT_STEP] = -1.0
        row[HIT_PARTNER] = -1.0
        row[HIT_WEIGHT] = 0.0
        record = s[base + RECORD] == s[base + RECORD_HIT]
        step = not early and s[base + STEP] == s[base + STEP_HIT]
        if step:
            size = s[SAMPLE_RECORDS]
            filled = min(s[other + RECORD], size)
            if filled > 0.0:
                first = size if two and c == 0 else 0.0
                row[HIT_PARTNER] = math.floor(s[SAMPLE_NEXT] * filled) + first
                row[HIT_WEIGHT] = s[other + SEEN] / seen if two else 1.0
        if record:
            row[HIT_RECORD] = _take_record(s, base, words) + (s[SAMPLE_RECORDS] if c == 1 else 0.0)
        else:
            s[base + RECORD] += 1.0
        if step:
            row[HIT_STEP] = _take_step(s, base, _ranks(s, c), words) + (s[SAMPLE_STEPS] if c == 1 else 0.0)
            s[SAMPLE_NEXT] = _random(words)
        elif not early:
            s[base + STEP] += 1.0
        s[base + SEEN] += 1.0
        if seen + 1.0 <= s[SAMPLE_EXACT]:
            sample_left(s)
        else:
            s[base + LEFT] = min(s[base + STEP_HIT] - s[base + STEP], s[base + RECORD_HIT] - s[base + RECORD])
        count += 1 if record or step else 0
        passed = (0.0, 0.0)
        left = s[SAMPLE_HEADER + LEFT], s[SAMPLE_HEADER + SAMPLE_STRATUM + LEFT] if two else 0.0
    _pass_over(s, passed)
    return count


@kernel
def sample_keep(
    hits: Array, rows: Array, labels: Array, first: int, steps: Array, records: Array, others: Array
) -> int:
    """Put what was drawn into the tables, one after the other: how many have a partner.

    Parameters
    ----------
    hits
        (k, SAMPLE_HIT), the result of `sample_draw`.
    rows, labels
        Of these events, (k, d) and (k,).
    first
        Number of the batch's first event in the stream.
    steps, records
        The tables: (steps, STEP_COLUMNS + 2 d) and (records, RECORD_COLUMNS + d).
    others
        Gets the partners (k, d), of those that have one.
    """
    d = rows.shape[1]
    count = 0
    for j in range(hits.shape[0]):
        at, record, step = hits[j, HIT_AT], int(hits[j, HIT_RECORD]), int(hits[j, HIT_STEP])
        if step >= 0:
            row = steps[step]
            row[STEP_ID] = first + at
            row[STEP_LABEL] = labels[j]
            row[STEP_WEIGHT] = hits[j, HIT_WEIGHT]
            row[STEP_MARGIN] = 0.0
            row[STEP_COLUMNS : STEP_COLUMNS + d] = rows[j]
            partner = int(hits[j, HIT_PARTNER])
            if partner >= 0:
                other = records[partner]
                row[STEP_PARTNER] = other[RECORD_ID]
                row[STEP_OTHER] = other[RECORD_LABEL]
                row[STEP_COLUMNS + d :] = other[RECORD_COLUMNS:]
                others[count] = other[RECORD_COLUMNS:]
                count += 1
            else:
                row[STEP_PARTNER] = -1.0
                row[STEP_OTHER] = math.nan
                row[STEP_COLUMNS + d :] = math.nan
        if record >= 0:
            row = records[record]
            row[RECORD_ID] = first + at
            row[RECORD_LABEL] = labels[j]
            row[RECORD_COLUMNS:] = rows[j]
    return count


@kernel
def sample_take(
    s: Array,
    words: Words,
    strata: NDArray[np.uint8],
    hits: Array,
    rows: Array,
    steps: Array,
    records: Array,
    others: Array,
    stops: NDArray[np.int64],
) -> int:
    """`sample_draw` and `sample_keep` of the rows (n, d) of a batch, whose labels are their strata.

    Gives how many have a partner; `stops` (2, n) gets their numbers in the batch, and their places.
    """
    first = s[SAMPLE_HEADER + SEEN]
    if s[SAMPLE_STRATA] > 1.0:
        first += s[SAMPLE_HEADER + SAMPLE_STRATUM + SEEN]
    count = sample_draw(s, words, strata, hits)
    if count == 0:
        return 0
    drawn = np.empty((count, rows.shape[1]))
    at = 0
    for j in range(count):
        drawn[j] = rows[int(hits[j, HIT_AT])]
        if hits[j, HIT_PARTNER] >= 0.0:
            stops[0, at] = int(hits[j, HIT_AT])
            stops[1, at] = int(hits[j, HIT_STEP])
            at += 1
    return sample_keep(
        hits[:count], drawn, hits[:count, HIT_STRATUM].copy(), int(first), steps, records, others
    )


@kernel
def woven(
    rows: Array, labels: Array, stops: NDArray[np.int64], others: Array, out: Array, out_labels: Array
) -> None:
    """Rows (n, d) with others (m, d), which have no label, before those at the stops: into (n + m, d)."""
    begin = 0
    for at in range(stops.shape[0] + 1):
        end = stops[at] if at < stops.shape[0] else rows.shape[0]
        out[begin + at : end + at] = rows[begin:end]
        out_labels[begin + at : end + at] = labels[begin:end]
        if at < stops.shape[0]:
            out[end + at] = others[at]
            out_labels[end + at] = math.nan
        begin = end
