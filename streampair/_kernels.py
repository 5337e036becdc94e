"""Every compiled function of the package.

All of them live in one file because numba's on-disk cache notices a change in the file of the function
that it compiles, not in the files of the functions that this one calls. Rules: float64, C order, no
fastmath (a replay must give the same bits on another processor), losses as integer codes, numpy and numba
only. Each has a slow, obvious twin in ``tests/naive.py`` (or ``tests/privacy``).
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import carray, config, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils as _cgutils
from numba.extending import intrinsic
from numba.np import arrayobj
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

# ---- shared: losses, link, projection ------------------------------------------------------------------

LOGISTIC = 0
HINGE = 1
SQUARED_HINGE = 2
SQUARE = 3
ENTROPY = 4  # of the difference of two errors: see pair_slope

# A feature beyond this size is refused like infinity: below it no product in any kernel can overflow.
MAX_ABS = 1e50
MAX_ABS_METRIC = 1e30  # the gradient of a metric is quadratic in the features

_LOG2E = 1.4426950408889634
_LN2_HI = 6.93147180369123816490e-01
_LN2_LO = 1.90821492927058770002e-10
_QUARTER_PI = 7.85398163397448279e-01
_HALVINGS = np.ldexp(1.0, -np.arange(1023))  # exact; a look-up takes half the time of ldexp


@njit(cache=True, nogil=True)
def exp_negative(a: float) -> float:
    """exp(-a) for a >= 0, within 1 ulp (0 where that is below the normal range), from + - * / only.

    libm's exp picks another code path, and sometimes another last bit, on a processor with fused
    multiply-add. A replay on another machine must not differ, so this one is spelled out, as in fdlibm:
    ``exp(r) = 1 + 2 r / (R(r) - r)`` on ``|r| <= ln(2) / 2``.
    """
    if not a < 708.39:
        return 0.0 if a >= 708.39 else math.nan
    k = math.floor(0.5 - a * _LOG2E)
    high = -a - k * _LN2_HI
    low = k * _LN2_LO
    r = high - low
    t = r * r
    c = r - t * (
        1.66666666666666019037e-01
        + t
        * (
            -2.77777777770155933842e-03
            + t
            * (
                6.61375632143793436117e-05
                + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08)
            )
        )
    )
    return float((1.0 - ((low - (r * c) / (2.0 - c)) - high)) * _HALVINGS[-int(k)])


@njit(cache=True, nogil=True)
def sigmoid(a: float) -> float:
    """1 / (1 + exp(-a)) without overflow."""
    e = exp_negative(abs(a))
    return (e if a < 0.0 else 1.0) / (1.0 + e)


@njit(cache=True, nogil=True)
def loss_slope(code: int, m: float) -> float:
    """Derivative of the pair loss with the given code at margin m (a subgradient at the hinge's kink)."""
    if code == HINGE:
        return -1.0 if m < 1.0 else 0.0
    if code == LOGISTIC:
        return -sigmoid(-m)
    if code == SQUARED_HINGE:
        return -2.0 * (1.0 - m) if m < 1.0 else 0.0
    return -2.0 * (1.0 - m)


@njit(cache=True, nogil=True)
def pair_slope(code: int, c: float, s: float, width: float) -> float:
    """Derivative of the loss of a pair in ``s = w.(x - x')``, for ``c = y - y'``.

    All losses but one are functions of the margin c s. The minimum error entropy of the given width is one
    of the difference of the errors, c - s.
    """
    if code == ENTROPY:
        e = c - s
        return -e * exp_negative(e * e / (2.0 * width * width))
    return c * loss_slope(code, c * s)


def _sum_in_lanes(typing_context: Any, a: Any, b: Any) -> Any:
    """`dot`, with the four sums in the lanes of one vector.

    Written in LLVM's own terms, because numba makes vectors of sums only if it may reorder them. Each lane
    rounds as the sum alone would, on every processor, whatever the width of its registers.
    """

    cgutils: Any = _cgutils  # it has no types

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        double = ir.DoubleType()
        lanes = ir.VectorType(double, 4)
        arrays = [
            context.make_array(t)(context, builder, v) for t, v in zip(signature.args, args, strict=True)
        ]
        single = [t.dtype == types.float32 for t in signature.args]
        n = builder.extract_value(arrays[0].shape, 0)
        whole = builder.and_(n, ir.Constant(n.type, -4))

        def load(which: int, i: Any, kind: Any) -> Any:
            place = builder.gep(arrays[which].data, [i])
            element = ir.FloatType() if single[which] else double
            if kind is lanes:
                place = builder.bitcast(place, ir.VectorType(element, 4).as_pointer())
            value = builder.load(place, align=4 if single[which] else 8)
            return builder.fpext(value, kind) if single[which] else value

        def add(total: Any, i: Any, kind: Any) -> None:
            product = builder.fmul(load(0, i, kind), load(1, i, kind))
            builder.store(builder.fadd(builder.load(total), product), total)

        zero, one, four = (ir.Constant(n.type, value) for value in (0, 1, 4))
        sums = cgutils.alloca_once_value(builder, ir.Constant(lanes, [0.0] * 4))
        with cgutils.for_range_slice(builder, zero, whole, four) as (i, _):
            add(sums, i, lanes)
        parts = [
            builder.extract_element(builder.load(sums), ir.Constant(ir.IntType(32), j)) for j in range(4)
        ]
        first = cgutils.alloca_once_value(builder, parts[0])
        with cgutils.for_range_slice(builder, whole, n, one) as (i, _):
            add(first, i, double)
        left = builder.fadd(builder.load(first), parts[1])
        return builder.fadd(left, builder.fadd(parts[2], parts[3]))

    return types.float64(a, b), codegen


_in_lanes: Any = intrinsic(_sum_in_lanes)


if config.DISABLE_JIT:  # type: ignore[attr-defined]

    def dot(a: Array, b: Array) -> float:
        """Inner product in one fixed order: four interleaved sums, and what is left over to the first."""
        whole = len(a) - len(a) % 4
        sums = [0.0] * 4
        for i in range(len(a)):
            sums[i % 4 if i < whole else 0] += float(a[i]) * float(b[i])
        return (sums[0] + sums[1]) + (sums[2] + sums[3])

else:

    @njit(cache=True, nogil=True)
    def dot(a: Array, b: Array) -> float:
        """Inner product in one fixed order: four interleaved sums, and what is left over to the first."""
        return _in_lanes(a, b)  # type: ignore[no-any-return]


def _view_at(typing_context: Any, array: Any, start: Any, length: Any) -> Any:
    """`view(a, start, length)`: the slice ``a[start : start + length]``, not counted as a reference to a.

    To count costs a good part of a step with nine features. For use while the caller holds a.
    """

    fill: Any = arrayobj.populate_array  # it has no types

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, args[0])
        made = context.make_array(signature.return_type)(context, builder)
        itemsize = context.get_constant(types.intp, 8)
        fill(
            made,
            data=builder.gep(source.data, [args[1]]),
            shape=[args[2]],
            strides=[itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return made._getvalue()

    return types.Array(types.float64, 1, "C")(array, types.intp, types.intp), codegen


def _slice(a: Array, start: int, length: int) -> Array:
    return a[start : start + length]


view: Any = _slice if config.DISABLE_JIT else intrinsic(_view_at)  # type: ignore[attr-defined]


@njit(cache=True, nogil=True)
def project_ball(w: Array, radius: float) -> None:
    """Scale w in place onto the l2 ball of the given radius if it lies outside."""
    norm2 = dot(w, w)
    if norm2 > radius * radius:
        scale = radius / math.sqrt(norm2)
        for i in range(w.shape[0]):
            w[i] *= scale


@njit(cache=True, nogil=True)
def first_beyond(x: Array, limit: float) -> int:
    """Index of the first value that is NaN, infinite or larger than the limit; -1 if there is none."""
    for i in range(x.shape[0]):
        if not abs(x[i]) <= limit:  # also catches NaN
            return i
    return -1


@njit(cache=True, nogil=True)
def unusable_row(rows: Array, limit: float) -> int:
    """1 + the flat index of the first value of (n, d) rows that is NaN or larger than the limit; else 0."""
    for r in range(rows.shape[0]):
        bad = first_beyond(rows[r], limit)
        if bad >= 0:
            flat: int = r * rows.shape[1] + bad + 1
            return flat
    return 0


@njit(cache=True, nogil=True)
def first_unusable(x: Array) -> int:
    """Index of the first value that is NaN, infinite or beyond MAX_ABS; -1 if there is none."""
    return first_beyond(x, MAX_ABS)


@njit(cache=True, nogil=True)
def uniform(seed: int, counter: int, lane: int) -> float:
    """Counter-based uniform number in [0, 1) with 53 bits: a hash (SplitMix64) of its three arguments.

    Counter-based, so a learner that is restored at event t continues with the same coins.
    """
    z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * (np.uint64(counter) + np.uint64(1))
    z ^= np.uint64(0xD1B54A32D192ED03) * (np.uint64(lane) + np.uint64(1))
    for _ in range(2):
        z += np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


# ---- OGD -----------------------------------------------------------------------------------------------
#
# The whole state of one learner is one float64 array, because numba's dispatch costs more per array
# argument than a step with nine features. Layout, with room for `cap` features:
#
#     [0, HEADER)  scalars
#     x[cap]       the packed record: scratch
#     gradient[cap]: scratch
#     w[cap]       iterate w_{j-1};  previous[cap]  w_{j-2};  averaged[cap]
#     rows[size][1 + cap]  buffer: sign, then features; CLASSES has two such tables, that of the negatives
#                          first; FULL has none: its rows are in the blocks of HISTORY, below
#
# Counters, and addresses, are exact up to 2**53 as floats.

D = 0  # features in use
CAP = 1
RECORDS = 2  # records learned, t
SIZE = 3  # rows that the buffer has room for (CLASSES: of each class)
POLICY = 4  # FIFO, RESERVOIR, RESERVOIR_REPLACE, FULL, CLASSES
FILLED = 5  # rows in use
NEXT = 6  # FIFO: row that is overwritten next
LOSS = 7
RATE = 8  # > 0: eta_j = RATE / sqrt(j); 0: the self-tuned schedule
RADIUS = 9
L2 = 10
AVERAGE = 11
GRADIENTS = 12  # running sum of squared gradient norms
ETAS = 13  # running sum of step sizes
SEED = 14
POSITIVES = 15  # CLASSES: records of the positive class so far
TABLE = 16  # FULL: address of the table of blocks
BLOCKS = 17  # FULL: its length
WIDTH = 18  # parameter of the loss
PSD = 19  # metrics: whether W is kept positive semi-definite
SINGLE = 20  # FULL: rows are float32
HEADER = 24

FIFO = 0
RESERVOIR = 1
RESERVOIR_REPLACE = 2
FULL = 3
CLASSES = 4
MOMENTS = 5  # the full history under least squares, labels +1 and -1
MOMENTS_REAL = 6  # the same for real-valued labels

NO_ROOM = -1  # what a kernel returns, with nothing changed, if the blocks of FULL are full
MAX_SINGLE = 3.4028234663852886e38  # largest float32


@njit(cache=True, nogil=True)
def _ogd_store(s: Array, x: Array, y: float, row: int, cap: int, rows: int) -> None:
    at = rows + row * (1 + cap)
    s[at] = y
    for i in range(x.shape[0]):
        s[at + 1 + i] = x[i]


@njit(cache=True, nogil=True)
def _replaced(u: float, size: int, t: int) -> int:
    """How many of `size` coins that fall so with probability 1/t do, by one uniform number u; t > size.

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


@njit(cache=True, nogil=True)
def _ogd_buffer(s: Array, x: Array, y: float, cap: int, rows: int) -> None:
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
        if t <= size:
            _ogd_store(s, x, y, t - 1, cap, rows)
            s[FILLED] = float(t)
        else:
            row = int(uniform(seed, t, 0) * t)
            if row < size:
                _ogd_store(s, x, y, row, cap, rows)
        return
    if policy == CLASSES:
        first = 0
        seen = t - int(s[POSITIVES])
        if y > 0.0:
            s[POSITIVES] += 1.0
            first = size
            seen = int(s[POSITIVES])
        if seen <= size:
            _ogd_store(s, x, y, first + seen - 1, cap, rows)
            s[FILLED] += 1.0
        else:
            row = int(uniform(seed, seen, 1 if y > 0.0 else 0) * seen)
            if row < size:
                _ogd_store(s, x, y, first + row, cap, rows)
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


@njit(cache=True, nogil=True)
def _ogd_move(s: Array, g: Array, w: Array, previous: Array, averaged: Array) -> None:
    """Average the iterates, then step w against the gradient g. The caller projects w."""
    rate = s[RATE]
    if rate > 0.0:
        eta = rate / math.sqrt(s[RECORDS] - 1.0)
    else:
        s[GRADIENTS] += dot(g, g)
        eta = s[RADIUS] * math.sqrt(2.0 / s[GRADIENTS]) if s[GRADIENTS] > 0.0 else 0.0
    s[ETAS] += eta
    if s[ETAS] > 0.0:
        share = eta / s[ETAS]
        for i in range(w.shape[0]):
            averaged[i] += share * (previous[i] - averaged[i])
    for i in range(w.shape[0]):
        previous[i] = w[i]
        w[i] -= eta * g[i]


@njit(cache=True, nogil=True)
def _ogd_other_class(s: Array, y: float) -> tuple[float, int, int]:
    """What a sum over the sample of the other class is divided by, its rows, and which row is its first."""
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


# With many rows (on fewer, what is gained is lost again), each step of a pair's gradient is done for so many
# of them before the next step: which of them have another label, their margins, their slopes, the sum. A
# processor cannot foresee the labels, but it can overlap what is the same for all.
_MANY = 32
_TILE = 128


@njit(cache=True, nogil=True)
def _ogd_pairs(
    s: Array, at: int, rows: int, pairs: float, x: Array, y: float, w: Array, score: float, g: Array
) -> None:
    """Add the pair gradients with the rows of the buffer at `at` to g: the bits of one row after another."""
    d = x.shape[0]
    stride = 1 + int(s[CAP])
    code = int(s[LOSS])
    width = s[WIDTH]
    places = np.empty(_TILE, np.int64)
    margins = np.empty(_TILE)
    for start in range(0, rows, _TILE):
        n = 0
        for r in range(start, min(start + _TILE, rows)):
            place = at + r * stride
            places[n] = place
            n += 1 if s[place] != y or code == ENTROPY else 0
        for j in range(n):
            place = places[j] + 1
            margins[j] = score - dot(w, view(s, place, d))
        active = 0
        for j in range(n):
            place = places[j]
            k = pair_slope(code, y - s[place], margins[j], width) / pairs
            places[active] = place
            margins[active] = k
            active += 1 if k != 0.0 else 0
        for j in range(active):
            k = margins[j]
            place = places[j] + 1
            row = view(s, place, d)
            for i in range(d):
                g[i] += k * (x[i] - row[i])


@njit(cache=True, nogil=True)
def _ogd_step(s: Array, x: Array, y: float) -> None:
    """One record: step on the pairs with the buffer, then into the buffer."""
    d = int(s[D])
    cap = int(s[CAP])
    filled = int(s[FILLED])
    s[RECORDS] += 1.0
    if filled > 0:
        code = int(s[LOSS])
        width = s[WIDTH]
        l2 = s[L2]
        at = HEADER + cap
        g = view(s, at, d)
        at += cap
        w = view(s, at, d)
        at += cap
        previous = view(s, at, d)
        at += cap
        averaged = view(s, at, d)
        at += cap
        pairs = s[FILLED]
        rows = filled
        if s[POLICY] == CLASSES:
            # The mean over all past records, of which only the other class counts: its sample stands for it.
            pairs, rows, first = _ogd_other_class(s, y)
            at += first * (1 + cap)
        for i in range(d):
            g[i] = l2 * w[i]
        score = dot(w, x)
        if rows >= _MANY:
            _ogd_pairs(s, at, rows, pairs, x, y, w, score, g)
            rows = 0
        for _r in range(rows):
            label = s[at]
            if label != y or code == ENTROPY:
                row = view(s, at + 1, d)
                k = pair_slope(code, y - label, score - dot(w, row), width) / pairs
                if k != 0.0:
                    # By differences, so that equal records cancel exactly: the self-tuned step would
                    # take what rounding leaves of them for a gradient, and leap.
                    for i in range(d):
                        g[i] += k * (x[i] - row[i])
            at += 1 + cap
        _ogd_move(s, g, w, previous, averaged)
        project_ball(w, s[RADIUS])
    _ogd_buffer(s, x, y, cap, HEADER + 5 * cap)


@njit(cache=True, nogil=True)
def ogd_learn(s: Array, y: float) -> int:
    """Learn the packed record with label y. Returns 0; or 1 + the unusable column, with nothing changed."""
    d = int(s[D])
    x = view(s, HEADER, d)
    bad = first_unusable(x)
    if bad >= 0:
        return bad + 1
    _ogd_step(s, x, y)
    return 0


@njit(cache=True, nogil=True)
def ogd_learn_many(s: Array, rows: Array, labels: Array) -> int:
    """Learn (n, d) rows in order. Returns 0; or, with nothing changed, 1 + the flat index of the first
    unusable value.
    """
    bad: int = unusable_row(rows, MAX_ABS)
    if bad == 0:
        for r in range(rows.shape[0]):
            _ogd_step(s, rows[r], labels[r])
    return bad


@njit(cache=True, nogil=True)
def ogd_score(s: Array) -> float:
    """Score of the packed record under the published weights; NaN if a value is unusable."""
    d = int(s[D])
    x = view(s, HEADER, d)
    if first_unusable(x) >= 0:
        return math.nan
    at = HEADER + (4 if s[AVERAGE] > 0.0 else 2) * int(s[CAP])
    return float(dot(view(s, at, d), x))


@njit(cache=True, nogil=True)
def ogd_proba(s: Array) -> float:
    """Sigmoid of the score of the packed record; NaN if a value is unusable."""
    score = ogd_score(s)
    if score != score:
        return math.nan
    return float(sigmoid(score))


@njit(cache=True, nogil=True)
def score_many(w: Array, rows: Array, out: Array) -> int:
    """Scores of (n, d) rows. Returns 0, or 1 + the flat index of the first unusable value."""
    for r in range(rows.shape[0]):
        bad = first_unusable(rows[r])
        if bad >= 0:
            flat: int = r * rows.shape[1] + bad + 1
            return flat
        out[r] = dot(w, rows[r])
    return 0


@njit(cache=True, nogil=True)
def sigmoid_many(scores: Array, out: Array) -> None:
    """Element-wise sigmoid: the same bits as one at a time."""
    for r in range(scores.shape[0]):
        out[r] = sigmoid(scores[r])


# ---- MOMENTS -------------------------------------------------------------------------------------------
#
# Least squares with the full history in time independent of its length. For ``a = x - mean`` the sum over
# all records of a class of (x - x_j)(x - x_j)' is n a a' + C, with C the sum of (x_j - mean)(x_j - mean)':
# counts, means and centred second moments give the gradient exactly. Centred, so that large means cost no
# digits.
#
# Region of the state for two classes, negative first:  n[2], mean[2][cap], C[2][cap * cap].
# For real labels, with e and v the deviations of label and record from their means over all records:
#     n, mean label, sum e^2 | mean[cap], sum e v, sum e^2 v | sum v v' [cap * cap], sum e v v', sum e^2 v v'.


@njit(cache=True, nogil=True)
def _moments_class(s: Array, at: int, x: Array, y: float, w: Array, g: Array) -> None:
    """Add the summed least-squares gradients of (x, y) with all records of the other class to g."""
    d = x.shape[0]
    cap = int(s[CAP])
    other = 0 if y > 0.0 else 1
    n = s[at + other]
    if n == 0.0:
        return
    mean = view(s, at + 2 + other * cap, d)
    matrix = at + 2 + 2 * cap + other * cap * cap
    along = 0.0
    for i in range(d):
        along += w[i] * (x[i] - mean[i])
    # With c = y - y' = 2 y the slope of a pair is -2 c + 2 c^2 w.(x - x').
    k = n * (-4.0 * y + 8.0 * along)
    for i in range(d):
        row = view(s, matrix + i * cap, d)
        g[i] += k * (x[i] - mean[i]) + 8.0 * dot(row, w)


@njit(cache=True, nogil=True)
def _moments_class_add(s: Array, at: int, x: Array, y: float) -> None:
    """Let (x, y) into the moments of its class."""
    d = x.shape[0]
    cap = int(s[CAP])
    own = 1 if y > 0.0 else 0
    before = s[at + own]
    s[at + own] = before + 1.0
    share = 1.0 / (before + 1.0)
    mean = view(s, at + 2 + own * cap, d)
    matrix = at + 2 + 2 * cap + own * cap * cap
    for i in range(d):
        off = (x[i] - mean[i]) * (before * share)
        for j in range(d):
            s[matrix + i * cap + j] += off * (x[j] - mean[j])
    for i in range(d):
        mean[i] += (x[i] - mean[i]) * share


@njit(cache=True, nogil=True)
def _moments_real(s: Array, at: int, x: Array, y: float, w: Array, g: Array) -> None:
    """Add the summed least-squares gradients of (x, y) with all records to g.

    With b and a the deviations of (y, x) from the means: the sum over the records (e, v) of
    ``(-2 (b - e) + 2 (b - e)^2 w.(a - v)) (a - v)``, multiplied out.
    """
    d = x.shape[0]
    cap = int(s[CAP])
    n = s[at]
    b = y - s[at + 1]
    e2 = s[at + 2]
    at += 3
    mean = view(s, at, d)
    ev = view(s, at + cap, d)
    e2v = view(s, at + 2 * cap, d)
    vv = at + 3 * cap
    along = 0.0
    for i in range(d):
        along += w[i] * (x[i] - mean[i])
    ev_along = dot(ev, w)
    e2v_along = dot(e2v, w)
    a_part = 2.0 * (b * b * n * along + 2.0 * b * ev_along + e2 * along - e2v_along) - 2.0 * n * b
    ev_part = 4.0 * b * along - 2.0
    for i in range(d):
        first = vv + i * cap
        second = first + cap * cap
        third = second + cap * cap
        spread = (
            b * b * dot(view(s, first, d), w)
            - 2.0 * b * dot(view(s, second, d), w)
            + dot(view(s, third, d), w)
        )
        g[i] += a_part * (x[i] - mean[i]) + ev_part * ev[i] - 2.0 * along * e2v[i] + 2.0 * spread


@njit(cache=True, nogil=True)
def _moments_real_add(s: Array, at: int, x: Array, y: float) -> None:
    """Let (x, y) into the moments: move them to the new means, then add the record."""
    d = x.shape[0]
    cap = int(s[CAP])
    n = s[at]
    share = 1.0 / (n + 1.0)
    e = y - s[at + 1]
    h = e * share  # how far the mean of the labels moves
    rest = e - h
    e2 = s[at + 2]
    vectors = at + 3
    mean = view(s, vectors, d)
    ev = view(s, vectors + cap, d)
    e2v = view(s, vectors + 2 * cap, d)
    vv = vectors + 3 * cap
    ev2 = vv + cap * cap
    e2v2 = ev2 + cap * cap
    for i in range(d):
        off = x[i] - mean[i]
        p = off * share
        own = off - p
        for j in range(d):
            off_j = x[j] - mean[j]
            q = off_j * share
            cell = i * cap + j
            both = p * q
            mine = own * (off_j - q)
            cross = ev[i] * q + p * ev[j]
            vv_old = s[vv + cell]
            ev_old = s[ev2 + cell]
            s[vv + cell] = vv_old + n * both + mine
            s[ev2 + cell] = ev_old - cross - h * (vv_old + n * both) + rest * mine
            s[e2v2 + cell] += (
                e2 * both
                - (e2v[i] * q + p * e2v[j])
                - 2.0 * h * (ev_old - cross)
                + h * h * (vv_old + n * both)
                + rest * rest * mine
            )
    for i in range(d):
        off = x[i] - mean[i]
        p = off * share
        own = off - p
        e2v[i] += rest * rest * own - 2.0 * h * ev[i] - p * (e2 + n * h * h)
        ev[i] += n * h * p + rest * own
        mean[i] += p
    s[at] = n + 1.0
    s[at + 1] += h
    s[at + 2] = e2 + n * h * h + rest * rest


@njit(cache=True, nogil=True)
def _moments_step(s: Array, x: Array, y: float) -> None:
    """One record: step on the pairs with all records of the past, then into their moments."""
    d = int(s[D])
    cap = int(s[CAP])
    before = s[RECORDS]
    s[RECORDS] = s[FILLED] = before + 1.0
    real = int(s[POLICY]) == MOMENTS_REAL
    region = HEADER + 5 * cap
    if before > 0.0:
        at = HEADER + cap
        g = view(s, at, d)
        w = view(s, at + cap, d)
        for i in range(d):
            g[i] = 0.0
        if real:
            _moments_real(s, region, x, y, w, g)
        else:
            _moments_class(s, region, x, y, w, g)
        for i in range(d):
            g[i] = g[i] / before + s[L2] * w[i]
        previous = view(s, at + 2 * cap, d)
        averaged = view(s, at + 3 * cap, d)
        _ogd_move(s, g, w, previous, averaged)
        project_ball(w, s[RADIUS])
    if real:
        _moments_real_add(s, region, x, y)
    else:
        _moments_class_add(s, region, x, y)


@njit(cache=True, nogil=True)
def moments_learn(s: Array, y: float) -> int:
    """Learn the packed record with label y. Returns 0; or 1 + the unusable column, with nothing changed."""
    d = int(s[D])
    x = view(s, HEADER, d)
    bad = first_unusable(x)
    if bad >= 0:
        return bad + 1
    _moments_step(s, x, y)
    return 0


@njit(cache=True, nogil=True)
def moments_learn_many(s: Array, rows: Array, labels: Array) -> int:
    """Learn (n, d) rows in order. Returns 0, or 1 + the flat index of the first unusable value."""
    d = int(s[D])
    for r in range(rows.shape[0]):
        bad = first_unusable(rows[r])
        if bad >= 0:
            return r * d + bad + 1
    for r in range(rows.shape[0]):
        _moments_step(s, rows[r], labels[r])
    return 0


# ---- METRIC --------------------------------------------------------------------------------------------
#
# OGD on a symmetric matrix W (PRIVACY.md 2; H20, Example 1). The state is that of OGD, with matrices
# [cap][cap] in place of the vectors of weights:
#     [0, HEADER)  x[cap]  gradient  W  previous  averaged  rows[size][1 + cap]
# The label of a row is a number that stands for its class.


@njit(cache=True, nogil=True)
def _tridiagonal(u: Array, d: Array, e: Array) -> None:
    """Householder reduction of a symmetric matrix: `u` to the transposed rotation, d and e to the result."""
    n = d.shape[0]
    for j in range(n):
        d[j] = u[j, n - 1]
    for i in range(n - 1, 0, -1):
        size = 0.0
        for k in range(i):
            size += abs(d[k])
        h = 0.0
        if size == 0.0:
            e[i] = d[i - 1]
            for j in range(i):
                d[j] = u[j, i - 1]
                u[j, i] = 0.0
                u[i, j] = 0.0
        else:
            for k in range(i):
                d[k] /= size
                h += d[k] * d[k]
            f = d[i - 1]
            g = -math.sqrt(h) if f > 0.0 else math.sqrt(h)
            e[i] = size * g
            h -= f * g
            d[i - 1] = f - g
            for j in range(i):
                e[j] = 0.0
            for j in range(i):
                f = d[j]
                u[i, j] = f
                line = u[j]
                g = e[j] + line[j] * f
                for k in range(j + 1, i):
                    g += line[k] * d[k]
                    e[k] += line[k] * f
                e[j] = g
            f = 0.0
            for j in range(i):
                e[j] /= h
                f += e[j] * d[j]
            half = f / (h + h)
            for j in range(i):
                e[j] -= half * d[j]
            for j in range(i):
                f = d[j]
                g = e[j]
                line = u[j]
                for k in range(j, i):
                    line[k] -= f * e[k] + g * d[k]
                d[j] = line[i - 1]
                line[i] = 0.0
        d[i] = h
    for i in range(n - 1):
        u[i, n - 1] = u[i, i]
        u[i, i] = 1.0
        h = d[i + 1]
        own = u[i + 1]
        if h != 0.0:
            for k in range(i + 1):
                d[k] = own[k] / h
            for j in range(i + 1):
                line = u[j]
                g = dot(own[: i + 1], line[: i + 1])
                for k in range(i + 1):
                    line[k] -= g * d[k]
        for k in range(i + 1):
            own[k] = 0.0
    for j in range(n):
        d[j] = u[j, n - 1]
        u[j, n - 1] = 0.0
    u[n - 1, n - 1] = 1.0
    e[0] = 0.0


@njit(cache=True, nogil=True)
def _diagonal(u: Array, d: Array, e: Array) -> None:
    """Implicit QL on what `_tridiagonal` left: eigenvalues to d, eigenvectors to the rows of u."""
    n = d.shape[0]
    for i in range(1, n):
        e[i - 1] = e[i]
    e[n - 1] = 0.0
    f = 0.0
    largest = 0.0
    for at in range(n):
        largest = max(largest, abs(d[at]) + abs(e[at]))
        small = 2.220446049250313e-16 * largest
        m = at
        while m < n - 1 and abs(e[m]) > small:
            m += 1
        turns = 0
        while m > at and abs(e[at]) > small and turns < 100:
            turns += 1
            g = d[at]
            p = (d[at + 1] - g) / (2.0 * e[at])
            r = math.sqrt(p * p + 1.0)
            if p < 0.0:
                r = -r
            d[at] = e[at] / (p + r)
            d[at + 1] = e[at] * (p + r)
            next_d = d[at + 1]
            h = g - d[at]
            for i in range(at + 2, n):
                d[i] -= h
            f += h
            p = d[m]
            c = c2 = c3 = 1.0
            next_e = e[at + 1]
            sine = sine2 = 0.0
            for i in range(m - 1, at - 1, -1):
                c3 = c2
                c2 = c
                sine2 = sine
                g = c * e[i]
                h = c * p
                r = math.sqrt(p * p + e[i] * e[i])
                e[i + 1] = sine * r
                sine = e[i] / r
                c = p / r
                p = c * d[i] - sine * g
                d[i + 1] = h + sine * (c * g + sine * d[i])
                low = u[i]
                high = u[i + 1]
                for k in range(n):
                    h = high[k]
                    high[k] = sine * low[k] + c * h
                    low[k] = c * low[k] - sine * h
            p = -sine * sine2 * c3 * next_e * e[at] / next_d
            e[at] = sine * p
            d[at] = c * p
        d[at] += f
        e[at] = 0.0


@njit(cache=True, nogil=True)
def eigen(a: Array, values: Array) -> None:
    """Eigenvalues of the symmetric matrix `a` (n, n), in no order; its rows become the eigenvectors.

    Householder reduction and implicit QL (Bowdler, Martin, Reinsch and Wilkinson 1968: tred2 and tql2 of
    EISPACK), on the transpose, so that inner loops run along rows. Only + - * / and square roots in one fixed
    order: the same bits on every processor, which a library of linear algebra does not promise.
    """
    n = a.shape[0]
    largest = 0.0
    for i in range(n):
        for j in range(n):
            largest = max(largest, abs(a[i, j]))
    if largest == 0.0:
        for i in range(n):
            values[i] = 0.0
            a[i, i] = 1.0
        return
    # By a power of two, so exactly: no square overflows or vanishes.
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1)
    for i in range(n):
        for j in range(n):
            a[i, j] /= scale
    e = np.empty(n)
    _tridiagonal(a, values, e)
    _diagonal(a, values, e)
    for i in range(n):
        values[i] *= scale


@njit(cache=True, nogil=True)
def positive_definite(w: Array) -> bool:
    """Whether the symmetric matrix (d, d) is certainly positive definite: its Cholesky factor exists."""
    d = w.shape[0]
    factor = np.empty((d, d))
    for i in range(d):
        for j in range(i + 1):
            left = w[i, j] - dot(factor[i, :j], factor[j, :j])
            if i == j:
                if not left > 1e-12 * w[i, i]:
                    return False
                factor[i, i] = math.sqrt(left)
            else:
                factor[i, j] = left / factor[j, j]
    return True


@njit(cache=True, nogil=True)
def project_psd(w: Array) -> None:
    """Project the symmetric matrix (d, d) in place onto the cone of positive semi-definite ones.

    Takes the negative part away, so that a matrix without one keeps its bits.
    """
    d = w.shape[0]
    if positive_definite(w):
        return
    vectors = w.copy()
    values = np.empty(d)
    eigen(vectors, values)
    for k in range(d):
        if values[k] < 0.0:
            vector = vectors[k]
            for i in range(d):
                scaled = values[k] * vector[i]
                row = w[i]
                for j in range(i + 1):
                    row[j] -= scaled * vector[j]
    for i in range(d):
        for j in range(i):
            w[j, i] = w[i, j]


@njit(cache=True, nogil=True)
def psd_root(w: Array, out: Array) -> bool:
    """Symmetric square root of the positive part of a symmetric matrix (d, d); False if it has none."""
    d = w.shape[0]
    vectors = w.copy()
    values = np.empty(d)
    eigen(vectors, values)
    found = False
    for i in range(d):
        for j in range(d):
            out[i, j] = 0.0
    for k in range(d):
        if values[k] > 0.0:
            found = True
            root = math.sqrt(values[k])
            vector = vectors[k]
            for i in range(d):
                scaled = root * vector[i]
                row = out[i]
                for j in range(i + 1):
                    row[j] += scaled * vector[j]
    for i in range(d):
        for j in range(i):
            out[j, i] = out[i, j]
    return found


@njit(cache=True, nogil=True)
def quadratic(w: Array, u: Array) -> float:
    """u'Wu for a symmetric W (d, d)."""
    total = 0.0
    for i in range(u.shape[0]):
        total += u[i] * dot(w[i], u)
    return total


@njit(cache=True, nogil=True)
def _metric_pair(flat: Array, u: Array, same: float, cap: int, code: int, pairs: int, g: Array) -> None:
    """Add the gradient of one of so many pairs, with the difference u, to the lower triangle of g."""
    d = u.shape[0]
    distance = 0.0
    for i in range(d):
        distance += u[i] * dot(flat[i * cap : i * cap + d], u)
    k = -same * loss_slope(code, same * (1.0 - distance)) / pairs
    if k != 0.0:
        for i in range(d):
            scaled = k * u[i]
            for j in range(i + 1):
                g[i * cap + j] += scaled * u[j]


@njit(cache=True, nogil=True)
def _metric_move(s: Array) -> None:
    """Step W against the gradient, of which the lower triangle is filled, and project it."""
    d = int(s[D])
    cap = int(s[CAP])
    cells = cap * cap
    at = HEADER + cap
    g = view(s, at, cells)
    flat = s[at + cells : at + 2 * cells]
    previous = s[at + 2 * cells : at + 3 * cells]
    averaged = s[at + 3 * cells : at + 4 * cells]
    for i in range(d):
        for j in range(i):
            g[j * cap + i] = g[i * cap + j]
    _ogd_move(s, g, flat, previous, averaged)
    if s[PSD] > 0.0:
        w = np.empty((d, d))
        for i in range(d):
            w[i] = flat[i * cap : i * cap + d]
        project_psd(w)
        for i in range(d):
            flat[i * cap : i * cap + d] = w[i]
    project_ball(flat, s[RADIUS])


@njit(cache=True, nogil=True)
def _metric_step(s: Array, x: Array, y: float) -> None:
    """One record: step on the pairs with the buffer, then into the buffer."""
    d = int(s[D])
    cap = int(s[CAP])
    cells = cap * cap
    filled = int(s[FILLED])
    rows = HEADER + cap + 4 * cells
    s[RECORDS] += 1.0
    if filled > 0:
        code = int(s[LOSS])
        at = HEADER + cap
        g = view(s, at, cells)
        flat = s[at + cells : at + 2 * cells]
        for i in range(cells):
            g[i] = s[L2] * flat[i]
        u = np.empty(d)
        place = rows
        for _r in range(filled):
            for i in range(d):
                u[i] = x[i] - s[place + 1 + i]
            _metric_pair(flat, u, 1.0 if s[place] == y else -1.0, cap, code, filled, g)
            place += 1 + cap
        _metric_move(s)
    _ogd_buffer(s, x, y, cap, rows)


@njit(cache=True, nogil=True)
def metric_learn(s: Array, y: float) -> int:
    """Learn the packed record with class y. Returns 0; or 1 + the unusable column, with nothing changed."""
    d = int(s[D])
    x = view(s, HEADER, d)
    bad = first_beyond(x, MAX_ABS_METRIC)
    if bad >= 0:
        return bad + 1
    _metric_step(s, x, y)
    return 0


@njit(cache=True, nogil=True)
def metric_learn_many(s: Array, rows: Array, labels: Array) -> int:
    """Learn (n, d) rows in order. Returns 0; or, with nothing changed, 1 + the flat index of the first
    unusable value.
    """
    bad: int = unusable_row(rows, MAX_ABS_METRIC)
    if bad == 0:
        for r in range(rows.shape[0]):
            _metric_step(s, rows[r], labels[r])
    return bad


@njit(cache=True, nogil=True)
def map_rows(matrix: Array, rows: Array, out: Array) -> int:
    """Rows (n, d) times a symmetric matrix. Returns 0, or 1 + the flat index of the first unusable value."""
    for r in range(rows.shape[0]):
        bad = first_beyond(rows[r], MAX_ABS_METRIC)
        if bad >= 0:
            flat: int = r * rows.shape[1] + bad + 1
            return flat
        for i in range(rows.shape[1]):
            out[r, i] = dot(matrix[i], rows[r])
    return 0


# ---- HISTORY -------------------------------------------------------------------------------------------
#
# Every record of the past, in blocks that never move. A kernel cannot take a list of arrays that grows, so
# it gets a table (blocks, 4) of int64: address of the rows, address of the labels, columns, rows of room.
# The rows of a block are float64 or, if `single`, float32, in the order of arrival; the labels are float64.
# Names that came after a block was opened count as 0 in its rows. `_history.History` owns the memory.


def _as_pointer(typing_context: Any, address: Any) -> Any:
    """An address as a pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), codegen


_pointer: Any = intrinsic(_as_pointer)


if config.DISABLE_JIT:  # type: ignore[attr-defined]

    class _Memory:
        """Memory at an address, for numpy."""

        def __init__(self, address: int, shape: tuple[int, int], kind: str) -> None:
            data = (int(address), False)
            self.__array_interface__ = {"version": 3, "shape": shape, "typestr": kind, "data": data}

    def _doubles(address: int, rows: int, columns: int) -> Array:
        return np.asarray(_Memory(address, (rows, columns), "=f8"))

    def _singles(address: int, rows: int, columns: int) -> NDArray[np.float32]:
        return np.asarray(_Memory(address, (rows, columns), "=f4"))

    def _integers(address: int, rows: int, columns: int) -> NDArray[np.int64]:
        return np.asarray(_Memory(address, (rows, columns), "=i8"))

else:

    @njit(cache=True, nogil=True)
    def _doubles(address: int, rows: int, columns: int) -> Array:
        """The float64 matrix at an address."""
        return carray(_pointer(address), (rows, columns), np.float64)

    @njit(cache=True, nogil=True)
    def _singles(address: int, rows: int, columns: int) -> NDArray[np.float32]:
        """The float32 matrix at an address."""
        return carray(_pointer(address), (rows, columns), np.float32)

    @njit(cache=True, nogil=True)
    def _integers(address: int, rows: int, columns: int) -> NDArray[np.int64]:
        """The int64 matrix at an address."""
        return carray(_pointer(address), (rows, columns), np.int64)


@njit(cache=True, nogil=True)
def _history_block(
    w: Array,
    x: Array,
    y: float,
    score: float,
    rows: NDArray[np.floating[Any]],
    labels: Array,
    code: int,
    width: float,
    out: Array,
) -> None:
    """Add the pair gradients with the rows (n, columns) of one block to `out`; see `history_gradient`."""
    d = x.shape[0]
    columns = rows.shape[1]
    places = np.empty(_TILE, np.int64)
    margins = np.empty(_TILE)
    for start in range(0, rows.shape[0], _TILE):
        n = 0
        for r in range(start, min(start + _TILE, rows.shape[0])):
            places[n] = r
            n += 1 if labels[r, 0] != y or code == ENTROPY else 0
        for j in range(n):
            margins[j] = score - dot(w, rows[places[j]])
        active = 0
        for j in range(n):
            r = places[j]
            k = pair_slope(code, y - labels[r, 0], margins[j], width)
            places[active] = r
            margins[active] = k
            active += 1 if k != 0.0 else 0
        for j in range(active):
            k = margins[j]
            row = rows[places[j]]
            # By differences, so that equal records cancel exactly.
            for i in range(columns):
                out[i] += k * (x[i] - row[i])
            for i in range(columns, d):
                out[i] += k * x[i]


@njit(cache=True, nogil=True)
def history_gradient(
    w: Array,
    x: Array,
    y: float,
    table: NDArray[np.int64],
    records: int,
    single: bool,
    code: int,
    width: float,
    out: Array,
) -> None:
    """Add the gradients of the pairs of (x, y) with the first `records` stored records to `out`, a sum.

    ``sum_b c_b phi'(c_b w.(x - x_b)) (x - x_b)`` with ``c_b = y - y_b``; see `pair_slope`.
    """
    score = dot(w, x)
    left = records
    for b in range(table.shape[0]):
        n = min(left, int(table[b, 3]))
        if n <= 0:
            break
        columns = int(table[b, 2])
        labels = _doubles(table[b, 1], n, 1)
        part = w[:columns]
        if single:
            rows32 = _singles(table[b, 0], n, columns)
            _history_block(part, x, y, score, rows32, labels, code, width, out)
        else:
            rows64 = _doubles(table[b, 0], n, columns)
            _history_block(part, x, y, score, rows64, labels, code, width, out)
        left -= n


@njit(cache=True, nogil=True)
def history_store(x: Array, y: float, table: NDArray[np.int64], records: int, single: bool) -> None:
    """Store (x, y) behind the first `records` records, for which a block must have room."""
    row = records
    for b in range(table.shape[0]):
        room = int(table[b, 3])
        if row < room:
            columns = int(table[b, 2])
            _doubles(table[b, 1], room, 1)[row, 0] = y
            if single:
                rows32 = _singles(table[b, 0], room, columns)
                for i in range(columns):
                    rows32[row, i] = x[i]
            else:
                rows64 = _doubles(table[b, 0], room, columns)
                for i in range(columns):
                    rows64[row, i] = x[i]
            return
        row -= room


@njit(cache=True, nogil=True)
def _admit(s: Array, x: Array, limit: float) -> int:
    """Whether the packed record can be learned: 0, or 1 + the unusable column, or NO_ROOM."""
    bad = first_beyond(x, min(limit, MAX_SINGLE) if s[SINGLE] > 0.0 else limit)
    if bad >= 0:
        return bad + 1
    return NO_ROOM if s[RECORDS] >= s[SIZE] else 0


@njit(cache=True, nogil=True)
def _admit_many(s: Array, rows: Array, limit: float) -> int:
    """Whether all rows (n, d) can be learned: 0, or 1 + the flat index of an unusable value, or NO_ROOM."""
    bad: int = unusable_row(rows, min(limit, MAX_SINGLE) if s[SINGLE] > 0.0 else limit)
    if bad > 0:
        return bad
    return NO_ROOM if s[RECORDS] + rows.shape[0] > s[SIZE] else 0


@njit(cache=True, nogil=True)
def _as_stored(s: Array, x: Array) -> Array:
    """The record as it will be stored: itself, or rounded to float32 in the place of the packed record.

    So equal records cancel exactly.
    """
    if s[SINGLE] > 0.0:
        packed = s[HEADER : HEADER + x.shape[0]]
        for i in range(x.shape[0]):
            packed[i] = np.float64(np.float32(x[i]))
        return packed
    return x


@njit(cache=True, nogil=True)
def _history_table(s: Array) -> NDArray[np.int64]:
    """The table of blocks."""
    return _integers(int(s[TABLE]), int(s[BLOCKS]), 4)


@njit(cache=True, nogil=True)
def _history_step(s: Array, x: Array, y: float) -> None:
    """One record of OGD: step on the pairs with all records of the past, then into the blocks."""
    d = int(s[D])
    cap = int(s[CAP])
    past = int(s[RECORDS])
    table = _history_table(s)
    single = s[SINGLE] > 0.0
    s[RECORDS] = s[FILLED] = past + 1.0
    if past > 0:
        at = HEADER + cap
        g = view(s, at, d)
        w = view(s, at + cap, d)
        for i in range(d):
            g[i] = 0.0
        history_gradient(w, x, y, table, past, single, int(s[LOSS]), s[WIDTH], g)
        for i in range(d):
            g[i] = s[L2] * w[i] + g[i] / past
        previous = view(s, at + 2 * cap, d)
        averaged = view(s, at + 3 * cap, d)
        _ogd_move(s, g, w, previous, averaged)
        project_ball(w, s[RADIUS])
    history_store(x, y, table, past, single)


@njit(cache=True, nogil=True)
def history_learn(s: Array, y: float) -> int:
    """Learn the packed record with label y. Returns 0; or, with nothing changed, 1 + the unusable column, or
    NO_ROOM.
    """
    x = s[HEADER : HEADER + int(s[D])]
    code: int = _admit(s, x, MAX_ABS)
    if code == 0:
        _history_step(s, _as_stored(s, x), y)
    return code


@njit(cache=True, nogil=True)
def history_learn_many(s: Array, rows: Array, labels: Array) -> int:
    """Learn (n, d) rows in order. Returns 0; or, with nothing changed, 1 + the flat index of the first
    unusable value, or NO_ROOM.
    """
    code: int = _admit_many(s, rows, MAX_ABS)
    if code == 0:
        for r in range(rows.shape[0]):
            _history_step(s, _as_stored(s, rows[r]), labels[r])
    return code


@njit(cache=True, nogil=True)
def _metric_block(
    flat: Array,
    x: Array,
    y: float,
    rows: NDArray[np.floating[Any]],
    labels: Array,
    cap: int,
    code: int,
    pairs: int,
    u: Array,
    g: Array,
) -> None:
    """`_metric_pair` with each row of a block of the full history."""
    for r in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            u[i] = x[i] - rows[r, i]
        for i in range(rows.shape[1], x.shape[0]):
            u[i] = x[i]
        _metric_pair(flat, u, 1.0 if labels[r, 0] == y else -1.0, cap, code, pairs, g)


@njit(cache=True, nogil=True)
def _metric_history_step(s: Array, x: Array, y: float) -> None:
    """One record of a metric: step on the pairs with all records of the past, then into the blocks."""
    cap = int(s[CAP])
    cells = cap * cap
    past = int(s[RECORDS])
    table = _history_table(s)
    single = s[SINGLE] > 0.0
    s[RECORDS] = s[FILLED] = past + 1.0
    if past > 0:
        code = int(s[LOSS])
        at = HEADER + cap
        g = view(s, at, cells)
        flat = s[at + cells : at + 2 * cells]
        for i in range(cells):
            g[i] = s[L2] * flat[i]
        u = np.empty(x.shape[0])
        left = past
        for b in range(table.shape[0]):
            n = min(left, int(table[b, 3]))
            if n <= 0:
                break
            labels = _doubles(table[b, 1], n, 1)
            if single:
                rows32 = _singles(table[b, 0], n, int(table[b, 2]))
                _metric_block(flat, x, y, rows32, labels, cap, code, past, u, g)
            else:
                rows64 = _doubles(table[b, 0], n, int(table[b, 2]))
                _metric_block(flat, x, y, rows64, labels, cap, code, past, u, g)
            left -= n
        _metric_move(s)
    history_store(x, y, table, past, single)


@njit(cache=True, nogil=True)
def metric_history_learn(s: Array, y: float) -> int:
    """Learn the packed record with class y. Returns 0; or, with nothing changed, 1 + the unusable column, or
    NO_ROOM.
    """
    x = s[HEADER : HEADER + int(s[D])]
    code: int = _admit(s, x, MAX_ABS_METRIC)
    if code == 0:
        _metric_history_step(s, _as_stored(s, x), y)
    return code


@njit(cache=True, nogil=True)
def metric_history_learn_many(s: Array, rows: Array, labels: Array) -> int:
    """Learn (n, d) rows in order. Returns 0; or, with nothing changed, 1 + the flat index of the first
    unusable value, or NO_ROOM.
    """
    code: int = _admit_many(s, rows, MAX_ABS_METRIC)
    if code == 0:
        for r in range(rows.shape[0]):
            _metric_history_step(s, _as_stored(s, rows[r]), labels[r])
    return code


# ---- FTRL ----------------------------------------------------------------------------------------------
#
# Noise, preparation of records, and the steps of PairFTRL (PRIVACY.md 4.3, 4.4, 7).
# Twins: tests/privacy/naive_ftrl.py.


@njit(cache=True, nogil=True)
def log_one_plus(f: float) -> float:
    """log(1 + f) for f in [sqrt(1/2) - 1, sqrt(2) - 1], within 1 ulp, from + - * / only (as in fdlibm)."""
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    odd = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    half = 0.5 * f * f
    return f - (half - s * (half + (odd + even)))


@njit(cache=True, nogil=True)
def log_positive(x: float) -> float:
    """log(x) of a normal number above 0, within 2 ulp: the same bits on every processor."""
    m, k = math.frexp(x)
    if m < 0.7071067811865476:
        m *= 2.0
        k -= 1
    return k * _LN2_HI + (log_one_plus(m - 1.0) + k * _LN2_LO)


@njit(cache=True, nogil=True)
def sin_octant(a: float) -> float:
    """sin(a) for a in [0, pi/4], within 1 ulp, from + - * only (as in fdlibm)."""
    z = a * a
    r = 8.33333333332248946124e-03 + z * (
        -1.98412698298579493134e-04
        + z
        * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10))
    )
    return a + z * a * (-1.66666666666666324348e-01 + z * r)


@njit(cache=True, nogil=True)
def cos_octant(a: float) -> float:
    """cos(a) for a in [0, pi/4], within 1 ulp, from + - * only (as in fdlibm)."""
    z = a * a
    r = z * (
        4.16666666666666019037e-02
        + z
        * (
            -1.38888888888741095749e-03
            + z
            * (
                2.48015872894767294178e-05
                + z
                * (
                    -2.75573143513906633035e-07
                    + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11)
                )
            )
        )
    )
    half = 0.5 * z
    w = 1.0 - half
    return w + (((1.0 - w) - half) + z * r)


@njit(cache=True, nogil=True)
def normals_from_bits(words: NDArray[np.uint64], out: Array) -> None:
    """Independent standard normals from uniform bits: three 64-bit words give two (Box & Muller 1958).

    96 bits each for radius and angle. The radius is exact in relative terms at both ends (the complement
    of a uniform near 1 is taken in integers), the angle in every octant, so the tails reach 11.5 and the
    centre has no gap that a double could show. Logarithm, sine and cosine are spelled out: a replay on
    another processor must draw the same noise to the last bit (PRIVACY.md 8).
    """
    two32 = 4294967296.0
    low = np.uint64(0xFFFFFFFF)
    for k in range(out.shape[0] // 2):
        a = words[3 * k]
        b = words[3 * k + 1]
        c = words[3 * k + 2]
        tail = b >> np.uint64(32)
        rest = np.float64(~a) * two32 + np.float64(low - tail) + 0.5
        if a >> np.uint64(62) == np.uint64(3):
            radius = math.sqrt(-2.0 * log_one_plus(-rest * 2.0**-96))
        else:
            uniform = (np.float64(a) * two32 + np.float64(tail) + 0.5) * 2.0**-96
            radius = math.sqrt(-2.0 * log_positive(uniform))
        octant = c >> np.uint64(61)
        part = np.float64(c & np.uint64(0x1FFFFFFFFFFFFFFF)) * two32 + np.float64(b & low) + 0.5
        angle = part * 2.0**-93 * _QUARTER_PI
        first = radius * cos_octant(angle)
        second = radius * sin_octant(angle)
        if octant & np.uint64(4):
            first, second = second, first
        out[2 * k] = -first if octant & np.uint64(2) else first
        out[2 * k + 1] = -second if octant & np.uint64(1) else second


@njit(cache=True, nogil=True)
def blt_noise(omega: Array, theta: Array, memory: Array, sigma: float, z: Array) -> None:
    """Replace the rows of z by those of sigma C^-1 z for a BLT, and advance its memory (h, d).

    From C n = z: `n_t = z_t - sum_j omega_j M_j`, then `M_j <- theta_j M_j + n_t`.
    """
    for t in range(z.shape[0]):
        for i in range(z.shape[1]):
            value = z[t, i]
            for j in range(omega.shape[0]):
                value -= omega[j] * memory[j, i]
            for j in range(omega.shape[0]):
                memory[j, i] = theta[j] * memory[j, i] + value
            z[t, i] = sigma * value


@njit(cache=True, nogil=True)
def toeplitz_noise(inverse: Array, history: Array, start: int, sigma: float, out: Array) -> None:
    """Rows `start, start + 1, ...` of sigma C^-1 z, with all z so far in `history` and C^-1 by its column."""
    d = out.shape[1]
    for r in range(out.shape[0]):
        t = start + r
        row = out[r]
        for i in range(d):
            row[i] = 0.0
        for k in range(t + 1):
            weight = inverse[t - k]
            past = history[k]
            for i in range(d):
                row[i] += weight * past[i]
        for i in range(d):
            row[i] *= sigma


@njit(cache=True, nogil=True)
def prepare_rows(
    raw: Array,
    scale: Array,
    shift: Array,
    standardise: bool,
    mean: Array,
    factor: Array,
    cap: float,
    out: Array,
    whole: Array,
) -> None:
    """Raw values (n, d) to the vectors that are learned: bounds, standardisation, unit ball.

    A value that is NaN or infinite becomes 0, the neutral value, and `whole[row]` 0 instead of 1. With
    `standardise` the scaled values are clipped to [-1, 1] first, and the standardised ones to [-cap, cap]
    (PRIVACY.md 4.4). A finite value of any size is used.
    """
    for r in range(raw.shape[0]):
        x = out[r]
        whole[r] = 1.0
        largest = 0.0
        for i in range(raw.shape[1]):
            value = raw[r, i]
            if not math.isfinite(value):
                whole[r] = 0.0
                x[i] = 0.0
                continue
            value = min(max(value, -1e100), 1e100) * scale[i] + shift[i]
            if standardise:
                value = (min(max(value, -1.0), 1.0) - mean[i]) * factor[i]
                value = min(max(value, -cap), cap)
            x[i] = value
            largest = max(largest, abs(value))
        # The norm of values up to 1e200 must not overflow.
        unit = 1.0
        if largest > 1e50:
            unit = 1.0 / largest
            for i in range(raw.shape[1]):
                x[i] *= unit
        norm = math.sqrt(dot(x, x))
        if norm > unit:
            for i in range(raw.shape[1]):
                x[i] /= norm


@njit(cache=True, nogil=True)
def clip_rows(raw: Array, scale: Array, shift: Array, out: Array, whole: Array) -> None:
    """Raw values (n, d) scaled by their bounds and clipped to [-1, 1]; a row that is not finite becomes 0."""
    for r in range(raw.shape[0]):
        whole[r] = 1.0
        for i in range(raw.shape[1]):
            value = raw[r, i]
            if not math.isfinite(value):
                whole[r] = 0.0
                value = 0.0
            value = min(max(value, -1e100), 1e100) * scale[i] + shift[i]
            out[r, i] = min(max(value, -1.0), 1.0)
        if whole[r] == 0.0:
            for i in range(raw.shape[1]):
                out[r, i] = 0.0


@njit(cache=True, nogil=True)
def moment_sums(rows: Array, whole: Array, per_unit: float, sums: NDArray[np.int64]) -> None:
    """Add the rows, and their squares, to integer sums (2, d) in steps of 1 / per_unit (PRIVACY.md 4.4)."""
    for r in range(rows.shape[0]):
        if whole[r] != 0.0:
            for i in range(rows.shape[1]):
                value = rows[r, i]
                sums[0, i] += np.int64(math.floor(value * per_unit + 0.5))
                sums[1, i] += np.int64(math.floor(value * value * per_unit + 0.5))


# ---- PRIVATE BUFFERS AND STEPS --------------------------------------------------------------------------
#
# What the private learners of all families share (PRIVACY.md 3, 4.1 to 4.3). A label NaN marks a null record.
# Weights of metrics are the p = d (d + 1) / 2 isometric coordinates of a symmetric matrix: the diagonal, and
# the entries beside it times sqrt(2), row by row, so that norms and noise are those of the matrix. `ints` of
# a run by these places. Twins: tests/privacy/naive_ftrl.py, naive_descent.py.

FAMILY = 0
LOSS_CODE = 1
BUFFER = 2  # WINDOW, SAMPLE, ALL
PLACES = 3
USES = 4  # SAMPLE: steps after which a record is blanked, 0: never
COINS = 5  # SAMPLE: seed of the coins, which are functions of the slot alone
TANGENT = 6

LINEAR_PAIRS = 0
METRIC_PAIRS = 1
WINDOW = 0
SAMPLE = 1
ALL = 2

_ROOT2 = math.sqrt(2.0)


@njit(cache=True, nogil=True)
def pair_gradient(
    w: Array,
    x: Array,
    y: float,
    buffer: Array,
    labels: Array,
    filled: int,
    places: float,
    code: int,
    clip: float,
    tangent: bool,
    out: Array,
) -> None:
    """Mean over `places` of the clipped gradients of the pairs of (x, y) with the first `filled` rows.

    Labels are +1 and -1, or a real relevance in [-1, 1] (then never `tangent`); NaN marks a null record. The
    denominator is constant, whatever the places hold, and each pair is clipped by itself (PRIVACY.md 2, 3),
    so that all gradients with one fixed fellow record lie in a ball of radius `clip`: replacing the other
    record moves the gradient by at most 2 clip. Without `tangent` that is the ball around 0. With it, for a
    decreasing loss, it is the ball around -clip y_p p, where (p, y_p) is the fellow and |p| <= 1: the
    gradients with a fellow point away from y_p p, the ball has 0 inside, and it lets norms up to 2 clip
    through. The pair is scaled until it is in the ball of either record. This is better where the records lie
    around 0.
    """
    d = x.shape[0]
    for i in range(d):
        out[i] = 0.0
    if y != y:
        return
    score = dot(w, x)
    room = max(1.0 - dot(x, x), 0.0)
    for b in range(filled):
        c = y - labels[b]
        if not (c < 0.0 or c > 0.0):  # equal labels; NaN: a null record
            continue
        row = buffer[b]
        k = c * loss_slope(code, c * (score - dot(w, row)))
        if k == 0.0:
            continue
        square = 0.0
        along = 0.0
        size = 0.0
        for i in range(d):
            u = x[i] - row[i]
            square += u * u
            along += u * x[i]
            size += row[i] * row[i]
        if square == 0.0:
            continue
        if not tangent:
            limit = clip / math.sqrt(square)
        else:
            # Largest |k| with |k u| in both balls: the positive root of a quadratic, for each record.
            other = square - along
            limit = min(
                along + math.sqrt(along * along + square * room),
                other + math.sqrt(other * other + square * max(1.0 - size, 0.0)),
            )
            limit = clip * limit / square
        if abs(k) > limit:
            k = math.copysign(limit, k)
        for i in range(d):
            out[i] += k * (x[i] - row[i])
    for i in range(d):
        out[i] /= places


@njit(cache=True, nogil=True)
def metric_gradient(
    w: Array,
    x: Array,
    y: float,
    buffer: Array,
    labels: Array,
    filled: int,
    places: float,
    code: int,
    clip: float,
    out: Array,
) -> None:
    """Mean over `places` of the clipped gradients of `phi(s (1 - u'Wu))`, in isometric coordinates (p,).

    u = x - x_b, and s = 1 for equal labels, -1 for different ones. Each pair's gradient is a multiple of uu',
    of Frobenius norm |u|^2, and is clipped by itself to the norm `clip` (PRIVACY.md 2).
    """
    d = x.shape[0]
    for i in range(out.shape[0]):
        out[i] = 0.0
    if y != y:
        return
    for b in range(filled):
        label = labels[b]
        if label != label:
            continue
        row = buffer[b]
        square = 0.0
        form = 0.0
        at = 0
        for i in range(d):
            u = x[i] - row[i]
            square += u * u
            form += w[at] * (u * u)
            at += 1
            part = 0.0
            for j in range(i + 1, d):
                part += w[at] * (x[j] - row[j])
                at += 1
            form += _ROOT2 * (part * u)
        if square == 0.0:
            continue
        s = 1.0 if label == y else -1.0
        k = -s * loss_slope(code, s * (1.0 - form))
        limit = clip / square
        if abs(k) > limit:
            k = math.copysign(limit, k)
        if k == 0.0:
            continue
        at = 0
        for i in range(d):
            u = x[i] - row[i]
            out[at] += k * (u * u)
            at += 1
            side = _ROOT2 * k * u
            for j in range(i + 1, d):
                out[at] += side * (x[j] - row[j])
                at += 1
    for i in range(out.shape[0]):
        out[i] /= places


@njit(cache=True, nogil=True)
def private_gradient(
    w: Array,
    x: Array,
    y: float,
    steps: int,
    ints: NDArray[np.int64],
    clip: float,
    buffer: Array,
    labels: Array,
    out: Array,
) -> None:
    """Averaged gradient of the pairs of (x, y) with the buffer after `steps` slots, for either family.

    The denominator is the number of places, filled or not; of a full history the number of slots so far.
    """
    size = int(ints[PLACES])
    if ints[BUFFER] == ALL:
        filled = steps
        places = float(max(steps, 1))
    else:
        filled = min(steps, size)
        places = float(size)
    code = int(ints[LOSS_CODE])
    if ints[FAMILY] == METRIC_PAIRS:
        metric_gradient(w, x, y, buffer, labels, filled, places, code, clip, out)
    else:
        tangent = ints[TANGENT] != 0
        pair_gradient(w, x, y, buffer, labels, filled, places, code, clip, tangent, out)


@njit(cache=True, nogil=True)
def private_store(
    x: Array,
    y: float,
    steps: int,
    ints: NDArray[np.int64],
    buffer: Array,
    labels: Array,
    ages: NDArray[np.int64],
) -> None:
    """Let the record of slot `steps + 1` into the buffer, null ones too: by slots and coins alone."""
    size = int(ints[PLACES])
    policy = ints[BUFFER]
    place = steps
    if policy == WINDOW:
        place = steps % size
    elif policy == SAMPLE:
        if ints[USES] > 0:
            for b in range(min(steps, size)):
                ages[b] += 1
                if ages[b] >= ints[USES]:
                    labels[b] = math.nan
        if steps >= size:
            place = int(uniform(int(ints[COINS]), steps + 1, 0) * (steps + 1))
            if place >= size:
                return
        ages[place] = 0
    labels[place] = y
    for i in range(x.shape[0]):
        buffer[place, i] = x[i] if y == y else 0.0


@njit(cache=True, nogil=True)
def to_cells(values: Array, gamma: float, cells: NDArray[np.int64]) -> None:
    """Nearest whole numbers of grid steps, halves up (PRIVACY.md 7)."""
    for i in range(values.shape[0]):
        cells[i] = np.int64(math.floor(values[i] / gamma + 0.5))


@njit(cache=True, nogil=True)
def gradient_cells(
    rows: Array,
    labels: Array,
    steps: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    buffer: Array,
    held: Array,
    cells: NDArray[np.int64],
) -> None:
    """Rounded gradient of one slot (rows (1, d)) at the iterate `vectors[0]`: what noise is added to."""
    private_gradient(vectors[0], rows[0], labels[0], steps, ints, scalars[0], buffer, held, vectors[2])
    to_cells(vectors[2], scalars[2], cells)


@njit(cache=True, nogil=True)
def ftrl_move(
    noise: Array, eta: float, steps: int, scalars: Array, vectors: Array, total: NDArray[np.int64]
) -> None:
    """Add the rounded gradient `vectors[2]` and the rounded noise to the sum; iterate and average follow."""
    gamma = scalars[2]
    w = vectors[0]
    average = vectors[1]
    g = vectors[2]
    share = 2.0 / (steps + 2.0)
    for i in range(w.shape[0]):
        total[i] += np.int64(g[i]) + np.int64(math.floor(noise[i] / gamma + 0.5))
        w[i] = -eta * (gamma * np.float64(total[i]))
    project_ball(w, scalars[1])
    for i in range(w.shape[0]):
        average[i] += share * (w[i] - average[i])


@njit(cache=True, nogil=True)
def ftrl_steps(
    rows: Array,
    labels: Array,
    noise: Array,
    etas: Array,
    start: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    total: NDArray[np.int64],
    buffer: Array,
    held: Array,
    ages: NDArray[np.int64],
) -> None:
    """Slots `start + 1, ...` of FTRL with correlated noise (PRIVACY.md 4.3, 7).

    For each row: gradient at the current iterate; then, in whole steps of the grid,
    `T <- T + rnd(g / gamma) + rnd(noise / gamma)`; then the new iterate `Proj_R(-eta gamma T)`, its
    t-weighted average, and the record (null ones too) into the buffer.

    scalars: clip, radius, gamma, sigma. vectors (3, p): iterate, average, gradient of the last slot.
    """
    g = vectors[2]
    for r in range(rows.shape[0]):
        steps = start + r
        private_gradient(vectors[0], rows[r], labels[r], steps, ints, scalars[0], buffer, held, g)
        for i in range(g.shape[0]):
            g[i] = math.floor(g[i] / scalars[2] + 0.5)
        ftrl_move(noise[r], etas[r], steps, scalars, vectors, total)
        private_store(rows[r], labels[r], steps, ints, buffer, held, ages)


@njit(cache=True, nogil=True)
def ftrl_keyed(
    words: NDArray[np.uint64],
    shape: Array,
    memory: Array,
    cells: NDArray[np.int64],
    rows: Array,
    labels: Array,
    eta: float,
    steps: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    total: NDArray[np.int64],
    buffer: Array,
    held: Array,
    ages: NDArray[np.int64],
) -> None:
    """One slot of `ftrl_steps`, from the bits of its noise on, whose gradient is known: (1, d) rows.

    The same as `normals_from_bits`, `blt_noise` and `ftrl_steps` one after the other. shape (2, h): omega and
    theta of the BLT. scalars[3]: sigma.
    """
    p = cells.shape[0]
    z = np.empty(words.shape[0] // 3 * 2)
    normals_from_bits(words, z)
    noise = z[:p].reshape(1, p)
    blt_noise(shape[0], shape[1], memory, scalars[3], noise)
    for i in range(p):
        vectors[2, i] = np.float64(cells[i])
    ftrl_move(noise[0], eta, steps, scalars, vectors, total)
    private_store(rows[0], labels[0], steps, ints, buffer, held, ages)


@njit(cache=True, nogil=True)
def noisy_move(
    cells: NDArray[np.int64], noise: Array, eta: float, steps: int, scalars: Array, vectors: Array
) -> None:
    """Step on the noisy gradient of a slot: `w <- Proj_R(w - eta (gamma (g + rnd(noise / gamma)) + l2 w))`.

    The average of the iterates is weighted by t. scalars: clip, radius, gamma, l2. vectors (3, p): iterate,
    average, gradient; the last one becomes the noisy gradient.
    """
    w = vectors[0]
    average = vectors[1]
    noisy = vectors[2]
    gamma = scalars[2]
    share = 2.0 / (steps + 2.0)
    for i in range(w.shape[0]):
        released = cells[i] + np.int64(math.floor(noise[i] / gamma + 0.5))
        noisy[i] = gamma * np.float64(released)
        w[i] -= eta * (noisy[i] + scalars[3] * w[i])
    project_ball(w, scalars[1])
    for i in range(w.shape[0]):
        average[i] += share * (w[i] - average[i])


@njit(cache=True, nogil=True)
def noisy_steps(
    rows: Array,
    labels: Array,
    noise: Array,
    etas: Array,
    start: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    buffer: Array,
    held: Array,
    ages: NDArray[np.int64],
) -> None:
    """Slots `start + 1, ...` of gradient descent with noise in every gradient (PRIVACY.md 4.2, 7)."""
    cells = np.empty(vectors.shape[1], dtype=np.int64)
    for r in range(rows.shape[0]):
        steps = start + r
        gradient_cells(rows[r : r + 1], labels[r : r + 1], steps, ints, scalars, vectors, buffer, held, cells)
        noisy_move(cells, noise[r], etas[r], steps, scalars, vectors)
        private_store(rows[r], labels[r], steps, ints, buffer, held, ages)


@njit(cache=True, nogil=True)
def output_steps(
    rows: Array,
    labels: Array,
    etas: Array,
    gammas: Array,
    start: int,
    ints: NDArray[np.int64],
    scalars: Array,
    vectors: Array,
    buffer: Array,
    held: Array,
    ages: NDArray[np.int64],
    cells: NDArray[np.int64],
) -> None:
    """Slots `start + 1, ...` of descent without noise, and the rounded iterate (n, p) after each (4.1, 7).

    `w <- Proj_R(w - eta_t (g_t + alpha (w - w_0)))`; a null slot has g = 0 and takes the ridge term's step.
    scalars: clip, radius, alpha. vectors (3, p): iterate, w_0, gradient.
    """
    w = vectors[0]
    centre = vectors[1]
    g = vectors[2]
    for r in range(rows.shape[0]):
        steps = start + r
        if etas[r] > 0.0:
            private_gradient(w, rows[r], labels[r], steps, ints, scalars[0], buffer, held, g)
            for i in range(w.shape[0]):
                w[i] -= etas[r] * (g[i] + scalars[2] * (w[i] - centre[i]))
            project_ball(w, scalars[1])
        private_store(rows[r], labels[r], steps, ints, buffer, held, ages)
        to_cells(w, gammas[r], cells[r])


@njit(cache=True, nogil=True)
def output_releases(
    cells: NDArray[np.int64],
    z: Array,
    sigmas: Array,
    gammas: Array,
    last: bool,
    radius: float,
    total: float,
    average: Array,
    published: Array,
) -> float:
    """Releases of rounded iterates (n, p) under noise into their average, weighted by `1 / sigma^2`.

    Rows with an infinite sigma are not released; z has p normals for each of the others. With `last` the
    average is the last release alone. Returns the sum of the weights so far.
    """
    d = average.shape[0]
    at = 0
    for r in range(cells.shape[0]):
        if not sigmas[r] < math.inf:
            continue
        weight = 1.0 / (sigmas[r] * sigmas[r])
        total = weight if last else total + weight
        share = weight / total
        for i in range(d):
            noise = sigmas[r] * z[at + i]
            released = cells[r, i] + np.int64(math.floor(noise / gammas[r] + 0.5))
            average[i] += share * (gammas[r] * np.float64(released) - average[i])
        at += d
    if at > 0:
        for i in range(d):
            published[i] = average[i]
        project_ball(published, radius)
    return total


# ---- OUTPUT PERTURBATION: SENSITIVITY -------------------------------------------------------------------
#
# How far one record moves a strongly convex run, and what its releases cost (PRIVACY.md 4.1).
# Twins: tests/privacy/naive_output.py.


@njit(cache=True, nogil=True)
def stay_sensitivities(etas: Array, factors: Array, shares: Array, diameter: float, out: Array) -> None:
    """Largest move of iterate t by any record so far, where records stay for ever.

    `S_t = max(c_t S_(t-1) + eta_t D q_t, eta_t D)`, with q_t the weight of one copy in the buffer.
    """
    s = 0.0
    for t in range(etas.shape[0]):
        own = etas[t] * diameter
        s = max(factors[t] * s + own * shares[t], own)
        out[t] = s


@njit(cache=True, nogil=True)
def window_sensitivities(
    etas: Array, factors: Array, shares: Array, window: int, diameter: float, out: Array
) -> None:
    """Largest move of iterate t by any record so far, where each is used in `window` steps after its own.

    In the window every record obeys the same affine map `v <- c_t v + eta_t D q_t`, so the order of two
    records in it never changes, and a queue of the candidates gives the largest in O(1) a step: its keys are
    the moves in units of the product P of the factors so far, less what all of them gain. Records that have
    left only decay: `M <- c_t max(M, v)`.
    """
    keys = np.empty(window + 1)
    born = np.empty(window + 1, dtype=np.int64)
    first = 0
    count = 0
    product = 1.0
    gained = 0.0
    merged = 0.0
    for t in range(etas.shape[0]):
        if count > 0 and born[first] < t - window:
            merged = max(merged, product * (keys[first] + gained))
            first = (first + 1) % (window + 1)
            count -= 1
        merged *= factors[t]
        product *= factors[t]
        if product < 1e-150:
            for k in range(count):
                keys[(first + k) % (window + 1)] *= product
            gained *= product
            product = 1.0
        own = etas[t] * diameter
        gained += own * shares[t] / product
        key = own / product - gained
        while count > 0 and keys[(first + count - 1) % (window + 1)] <= key:
            count -= 1
        place = (first + count) % (window + 1)
        keys[place] = key
        born[place] = t
        count += 1
        out[t] = max(merged, product * (keys[first] + gained))


@njit(cache=True, nogil=True)
def window_spend(
    etas: Array,
    factors: Array,
    shares: Array,
    window: int,
    diameter: float,
    bounds: Array,
    grids: Array,
    precisions: Array,
    count: int,
) -> float:
    """Largest cost of one record over the first `count` steps, `max_i sum_t ((v_i(t) + grid_t) / sigma_t)^2`.

    A step maps `v -> c v + b` and costs a square of the result; a run of steps is a map of the same kind
    with a quadratic cost, `(C, B, q2, q1, q0)`, and two runs compose. The window of every record is the end
    of one block of `window` steps and the beginning of the next, so O(1) compositions a step give them all.
    After the window `F_t = c_t^2 (1 / sigma_t^2 + F_(t+1))` and its like for the mixed and the constant term.

    bounds: `S_t` of all records, which no move exceeds (it knows of the radius, the maps do not): each part
    is cut at the cost of moving by `S_t`.
    """
    n = count
    # Cost of moving by S_t from step t on.
    most = np.zeros(n + 1)
    f2 = np.zeros(n + 1)
    f1 = np.zeros(n + 1)
    f0 = np.zeros(n + 1)
    for t in range(n - 1, -1, -1):
        h = precisions[t]
        c = factors[t]
        g = grids[t]
        most[t] = most[t + 1] + h * (bounds[t] + g) * (bounds[t] + g)
        f2[t] = c * c * (h + f2[t + 1])
        f1[t] = c * (h * g + f1[t + 1])
        f0[t] = h * g * g + f0[t + 1]
    suffix = np.empty((window + 1, 5))
    worst = 0.0
    # The windows of the records of steps start-1 .. start+window-2 begin in start .. start+window-1.
    for start in range(1, n + window, window):
        suffix[window, 0] = 1.0
        for j in range(1, 5):
            suffix[window, j] = 0.0
        for o in range(window - 1, -1, -1):
            t = start + o
            if t >= n:
                for j in range(5):
                    suffix[o, j] = suffix[o + 1, j]
                continue
            c = factors[t]
            h = precisions[t]
            b = etas[t] * diameter * shares[t]
            e = b + grids[t]
            # Step t, then the rest of the block.
            c2, b2, q2, q1, q0 = suffix[o + 1]
            suffix[o, 0] = c2 * c
            suffix[o, 1] = c2 * b + b2
            suffix[o, 2] = h * c * c + q2 * c * c
            suffix[o, 3] = h * c * e + q2 * c * b + q1 * c
            suffix[o, 4] = h * e * e + q2 * b * b + 2.0 * q1 * b + q0
        pc = 1.0
        pb = 0.0
        p2 = 0.0
        p1 = 0.0
        p0 = 0.0
        for o in range(window):
            i = start + o - 1  # the record whose window begins at start + o
            if i >= n:
                break
            if o > 0:
                t = start + window + o - 1  # the last step of this window
                if t < n:
                    c = factors[t]
                    h = precisions[t]
                    b = etas[t] * diameter * shares[t]
                    e = c * pb + b + grids[t]
                    p2 += h * c * c * pc * pc
                    p1 += h * c * pc * e
                    p0 += h * e * e
                    pb = c * pb + b
                    pc = c * pc
            own = min(etas[i] * diameter, bounds[i])
            cost = precisions[i] * (own + grids[i]) * (own + grids[i])
            c1, b1, q2, q1, q0 = suffix[o]
            after = c1 * own + b1
            inside = q2 * own * own + 2.0 * q1 * own + q0
            inside += p2 * after * after + 2.0 * p1 * after + p0
            end = min(i + window + 1, n)
            cost += min(inside, most[i + 1] - most[end])
            if end < n:
                left = min(pc * after + pb, bounds[end - 1])
                cost += min(f2[end] * left * left + 2.0 * f1[end] * left + f0[end], most[end])
            worst = max(worst, cost)
    return worst


# ---- rolling AUC ---------------------------------------------------------------------------------------
#
# The window of latest events and, for each distinct score in it, a node of a search tree (a treap: by score
# from left to right, by random priority from top to bottom) that counts the positives and negatives below
# it. So an event that comes or goes finds how many of the other class it beats and ties in O(log window).
# One float64 array, as for OGD; its counts are exact up to 2**53:
#
#     [0, AUC_HEADER)   scalars
#     scores[window], labels[window]     a ring
#     nodes[1 + window][9]               node 0 stands for none

AUC_WINDOW = 0
AUC_COUNT = 1  # events in the window
AUC_NEXT = 2  # place in the ring of the next event
AUC_ROOT = 3
AUC_FREE = 4  # first of the list of nodes that were given back, linked by _LEFT
AUC_USED = 5  # nodes that were ever taken
AUC_TICKET = 6  # priorities drawn
AUC_POSITIVE = 7
AUC_NEGATIVE = 8
AUC_WINS = 9  # 2 for each pair that is ranked rightly, 1 for each tie
AUC_HEADER = 10
AUC_NODE = 9

_KEY = 0
_LEFT = 1
_RIGHT = 2
_UP = 3
_PRIORITY = 4
_OWN = 5  # negatives, then positives, with this score
_BELOW = 7  # the same in the whole subtree


@njit(cache=True, nogil=True)
def _auc_rotate(s: Array, nodes: Array, child: int) -> None:
    """Let a node change places with the one above it."""
    parent = int(nodes[child, _UP])
    top = int(nodes[parent, _UP])
    side, other = (_LEFT, _RIGHT) if int(nodes[parent, _LEFT]) == child else (_RIGHT, _LEFT)
    inner = int(nodes[child, other])
    nodes[parent, side] = inner
    if inner:
        nodes[inner, _UP] = parent
    nodes[child, other] = parent
    nodes[parent, _UP] = child
    nodes[child, _UP] = top
    if top:
        nodes[top, _LEFT if int(nodes[top, _LEFT]) == parent else _RIGHT] = child
    else:
        s[AUC_ROOT] = child
    left = int(nodes[parent, _LEFT])
    right = int(nodes[parent, _RIGHT])
    for c in range(2):
        nodes[child, _BELOW + c] = nodes[parent, _BELOW + c]
        nodes[parent, _BELOW + c] = (
            nodes[parent, _OWN + c] + nodes[left, _BELOW + c] + nodes[right, _BELOW + c]
        )


@njit(cache=True, nogil=True)
def _auc_change(s: Array, nodes: Array, key: float, label: int, step: float) -> None:
    """Put an event into the tree (step 1) or take one out (step -1), and count its pairs."""
    other = 1 - label
    node = int(s[AUC_ROOT])
    parent = 0
    smaller = 0.0  # of the other class
    same = 0.0
    while node:
        nodes[node, _BELOW + label] += step
        parent = node
        left = int(nodes[node, _LEFT])
        if key == nodes[node, _KEY]:
            smaller += nodes[left, _BELOW + other]
            same = nodes[node, _OWN + other]
            break
        if key < nodes[node, _KEY]:
            node = left
        else:
            smaller += nodes[left, _BELOW + other] + nodes[node, _OWN + other]
            node = int(nodes[node, _RIGHT])
    wins = 2.0 * smaller + same if label == 1 else 2.0 * (s[AUC_POSITIVE] - smaller) - same
    s[AUC_WINS] += step * wins
    s[AUC_NEGATIVE + (AUC_POSITIVE - AUC_NEGATIVE) * label] += step
    if node:
        nodes[node, _OWN + label] += step
        if nodes[node, _OWN] + nodes[node, _OWN + 1] > 0.0:
            return
        while True:  # down to where it has no child
            left = int(nodes[node, _LEFT])
            right = int(nodes[node, _RIGHT])
            if not left and not right:
                break
            if not right or (left and nodes[left, _PRIORITY] > nodes[right, _PRIORITY]):
                _auc_rotate(s, nodes, left)
            else:
                _auc_rotate(s, nodes, right)
        parent = int(nodes[node, _UP])
        if parent:
            nodes[parent, _LEFT if int(nodes[parent, _LEFT]) == node else _RIGHT] = 0.0
        else:
            s[AUC_ROOT] = 0.0
        nodes[node, _LEFT] = s[AUC_FREE]
        s[AUC_FREE] = node
        return
    node = int(s[AUC_FREE])
    if node:
        s[AUC_FREE] = nodes[node, _LEFT]
    else:
        s[AUC_USED] += 1.0
        node = int(s[AUC_USED])
    for i in range(AUC_NODE):
        nodes[node, i] = 0.0
    nodes[node, _KEY] = key
    nodes[node, _UP] = parent
    nodes[node, _OWN + label] = 1.0
    nodes[node, _BELOW + label] = 1.0
    s[AUC_TICKET] += 1.0
    nodes[node, _PRIORITY] = uniform(0, int(s[AUC_TICKET]), 0)
    if parent:
        nodes[parent, _LEFT if key < nodes[parent, _KEY] else _RIGHT] = node
    else:
        s[AUC_ROOT] = node
    while True:
        parent = int(nodes[node, _UP])
        if not parent or nodes[parent, _PRIORITY] >= nodes[node, _PRIORITY]:
            return
        _auc_rotate(s, nodes, node)


@njit(cache=True, nogil=True)
def auc_add(s: Array, score: float, label: int) -> None:
    """Let an event with a score that is not NaN and label 0 or 1 in, and the oldest out when full."""
    window = int(s[AUC_WINDOW])
    nodes = s[AUC_HEADER + 2 * window :].reshape(window + 1, AUC_NODE)
    place = int(s[AUC_NEXT])
    at = AUC_HEADER + place
    if s[AUC_COUNT] == window:
        _auc_change(s, nodes, s[at], int(s[at + window]), -1.0)
    else:
        s[AUC_COUNT] += 1.0
    s[at] = score
    s[at + window] = label
    s[AUC_NEXT] = 0.0 if place + 1 == window else place + 1.0
    _auc_change(s, nodes, score, label, 1.0)


@njit(cache=True, nogil=True)
def auc_add_many(s: Array, scores: Array, labels: NDArray[np.bool_]) -> None:
    """`auc_add` for each event in order."""
    for i in range(scores.shape[0]):
        auc_add(s, scores[i], 1 if labels[i] else 0)


@njit(cache=True, nogil=True)
def auc_revert(s: Array, score: float, label: int) -> bool:
    """Take the latest event with this score and label out; False if there is none."""
    window = int(s[AUC_WINDOW])
    count = int(s[AUC_COUNT])
    ring = s[AUC_HEADER : AUC_HEADER + window]
    labels = s[AUC_HEADER + window : AUC_HEADER + 2 * window]
    end = int(s[AUC_NEXT]) + window
    for back in range(1, count + 1):
        at = (end - back) % window
        if ring[at] == score and int(labels[at]) == label:
            for later in range(back - 1, 0, -1):
                after = (end - later) % window
                ring[at] = ring[after]
                labels[at] = labels[after]
                at = after
            s[AUC_NEXT] = at
            s[AUC_COUNT] -= 1.0
            nodes = s[AUC_HEADER + 2 * window :].reshape(window + 1, AUC_NODE)
            _auc_change(s, nodes, score, label, -1.0)
            return True
    return False


# ---- random features -----------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def sin_cos(a: float) -> tuple[float, float]:
    """Sine and cosine within about 1 ulp for |a| up to 1e6, from + - * / only: the same bits everywhere.

    Reduction by Cody and Waite. A larger argument loses its phase, as it does in
    its own last bit; the squares still add up to 1. NaN for what is not finite.
    """
    if not abs(a) <= 1e6:
        a = np.fmod(a, 6.283185307179586)  # exact, and NaN for an infinite a
        if a != a:
            return math.nan, math.nan
    k = math.floor(a * 0.63661977236758134308 + 0.5)
    r = (a - k * 1.57079632673412561417) - k * 6.07710050650619224932e-11
    s = math.copysign(sin_octant(abs(r)), r)
    c = cos_octant(abs(r))
    quadrant = int(k) & 3
    if quadrant == 0:
        return s, c
    if quadrant == 1:
        return c, -s
    if quadrant == 2:
        return -s, -c
    return -c, s


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def fourier_rows(rows: Array, frequencies: Array, out: Array) -> None:
    """Sines and cosines of the projections of (n, d) rows on (m, d) frequencies, (n, 2 m), norm 1."""
    m = frequencies.shape[0]
    scale = 1.0 / math.sqrt(m)
    for r in range(rows.shape[0]):
        for j in range(m):
            s, c = sin_cos(dot(rows[r], frequencies[j]))
            out[r, 2 * j] = scale * s
            out[r, 2 * j + 1] = scale * c


# ---- comparators: OAM and SPAUC ------------------------------------------------------------------------
#
# In the flat state of OGD. OAM has the buffer of CLASSES; SPAUC has in its place the mean record of the
# negatives [cap] and that of the positives [cap].


@njit(cache=True, nogil=True)
def _oam_step(s: Array, x: Array, y: float) -> None:
    """One record of OAM's gradient version (Zhao et al. 2011, Algorithms 1, 2 and 4)."""
    d = int(s[D])
    cap = int(s[CAP])
    s[RECORDS] += 1.0
    if s[RECORDS] > 1.0:
        at = HEADER + cap
        g = s[at : at + d]
        w = s[at + cap : at + cap + d]
        previous = s[at + 2 * cap : at + 2 * cap + d]
        averaged = s[at + 3 * cap : at + 3 * cap + d]
        _, rows, first = _ogd_other_class(s, y)
        others = s[RECORDS] - 1.0 - s[POSITIVES] if y > 0.0 else s[POSITIVES]
        # The sampled partners stand for all there were, once those are more than fit.
        weight = s[RATE] * max(1.0, others / s[SIZE])
        for i in range(d):
            g[i] = 0.0
        score = dot(w, x)
        at += 4 * cap + first * (1 + cap)
        for _r in range(rows):
            row = s[at + 1 : at + 1 + d]
            if 2.0 * y * (score - dot(w, row)) < 1.0:
                for i in range(d):
                    g[i] += x[i] - row[i]
            at += 1 + cap
        s[ETAS] += 1.0
        for i in range(d):
            averaged[i] += (previous[i] - averaged[i]) / s[ETAS]
            previous[i] = w[i]
            w[i] += 2.0 * y * weight * g[i]
        project_ball(w, s[RADIUS])
    _ogd_buffer(s, x, y, cap, HEADER + 5 * cap)


@njit(cache=True, nogil=True)
def _spauc_step(s: Array, x: Array, y: float) -> None:
    """One record of SPAUC (Lei & Ying 2021, Algorithm 1), with the ridge as the proximal term."""
    d = int(s[D])
    cap = int(s[CAP])
    s[RECORDS] += 1.0
    at = HEADER + cap
    g = s[at : at + d]
    w = s[at + cap : at + cap + d]
    previous = s[at + 2 * cap : at + 2 * cap + d]
    averaged = s[at + 3 * cap : at + 3 * cap + d]
    at += 4 * cap
    low = s[at : at + d]
    high = s[at + cap : at + cap + d]
    if y > 0.0:
        s[POSITIVES] += 1.0
        own, share = high, 1.0 / s[POSITIVES]
    else:
        own, share = low, 1.0 / (s[RECORDS] - s[POSITIVES])
    for i in range(d):
        own[i] += share * (x[i] - own[i])
    if s[RECORDS] < 2.0:
        return
    p = s[POSITIVES] / s[RECORDS]
    # Half the derivative of each square; with margins 2 w.(x - x') the factor before both is 4 * 2 / 2.
    within = 2.0 * (dot(w, x) - dot(w, own)) * (1.0 - p if y > 0.0 else p)
    between = p * (1.0 - p) * (2.0 * (dot(w, low) - dot(w, high)) + 1.0)
    for i in range(d):
        g[i] = 4.0 * (within * (x[i] - own[i]) + between * (low[i] - high[i]))
    before = s[ETAS]
    _ogd_move(s, g, w, previous, averaged)
    shrink = 1.0 / (1.0 + (s[ETAS] - before) * s[L2])
    for i in range(d):
        w[i] *= shrink
    project_ball(w, s[RADIUS])


@njit(cache=True, nogil=True)
def online_auc_learn(s: Array, y: float) -> int:
    """`ogd_learn` for OAM, whose buffer is CLASSES, and SPAUC."""
    x = s[HEADER : HEADER + int(s[D])]
    bad = first_unusable(x)
    if bad >= 0:
        return bad + 1
    if s[POLICY] == CLASSES:
        _oam_step(s, x, y)
    else:
        _spauc_step(s, x, y)
    return 0


@njit(cache=True, nogil=True)
def online_auc_learn_many(s: Array, rows: Array, signs: Array) -> int:
    """`ogd_learn_many` for OAM and SPAUC."""
    for r in range(rows.shape[0]):
        bad = first_unusable(rows[r])
        if bad >= 0:
            flat: int = r * rows.shape[1] + bad + 1
            return flat
    for r in range(rows.shape[0]):
        if s[POLICY] == CLASSES:
            _oam_step(s, rows[r], signs[r])
        else:
            _spauc_step(s, rows[r], signs[r])
    return 0


# ---- ENTITIES ------------------------------------------------------------------------------------------
#
# A table of 64-bit keys with open addressing; 0 marks an empty cell (PRIVACY.md 8).
# Twin: a dict, in tests/privacy/test_entities.py.


@njit(cache=True, nogil=True)
def entity_cell(keys: NDArray[np.uint64], key: np.uint64) -> int:
    """Index of the cell that holds the key, or of the empty one where it belongs. Cells: a power of two."""
    mask = np.uint64(keys.shape[0] - 1)
    # Fibonacci hashing: the high bits of the product depend on all bits of the key.
    at = ((key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(17)) & mask
    while keys[at] != np.uint64(0) and keys[at] != key:
        at = (at + np.uint64(1)) & mask
    return int(at)


@njit(cache=True, nogil=True)
def entity_fill(
    keys: NDArray[np.uint64],
    last: NDArray[np.int64],
    count: NDArray[np.uint16],
    new_keys: NDArray[np.uint64],
    new_last: NDArray[np.int64],
    new_count: NDArray[np.uint16],
) -> None:
    """Put entries into an empty table that has room for them."""
    for i in range(new_keys.shape[0]):
        at = entity_cell(keys, new_keys[i])
        keys[at] = new_keys[i]
        last[at] = new_last[i]
        count[at] = new_count[i]


# ---- LEADER --------------------------------------------------------------------------------------------
#
# Second moments of learned records in whole steps of a grid (privacy/plan_leader.py).
# Twin: tests/privacy/naive_leader.py.


@njit(cache=True, nogil=True)
def leader_sums(
    rows: Array, labels: Array, centre: float, weight: float, grid: float, sums: NDArray[np.int64]
) -> None:
    """Add `rnd((x x', weight (y - centre) x) / grid)` of each row (n, d) to the sums.

    Of x x' the lower triangle is kept, row by row, off-diagonals times sqrt 2, so that the norm is
    Frobenius'. A row whose label is NaN is a null record and adds 0.
    """
    d = rows.shape[1]
    root = math.sqrt(2.0) / grid
    unit = 1.0 / grid
    for r in range(rows.shape[0]):
        if labels[r] != labels[r]:
            continue
        x = rows[r]
        at = 0
        for i in range(d):
            scaled = x[i] * root
            for j in range(i):
                sums[at] += np.int64(math.floor(scaled * x[j] + 0.5))
                at += 1
            sums[at] += np.int64(math.floor(x[i] * x[i] * unit + 0.5))
            at += 1
        s = weight * (labels[r] - centre) * unit
        for i in range(d):
            sums[at + i] += np.int64(math.floor(s * x[i] + 0.5))
