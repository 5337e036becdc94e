"""Running centre and spread of each feature, by which a linear learner scales it.

Weights, their sums and the radius are in scaled units: a feature x counts as ``(x - CENTRE) UNIT``, with UNIT
one over the spread. The statistics change before the gradient of a record, and after its score. When they
change, weights do not, except where a column of enough values changes its kind: then weight over spread
stays, and with it the ranking.

A column has a set of kinds, added up:

DENSE
    It is given, as a value or a gap, in at least half of the records, which is looked at when their number
    reaches a power of 2: its centre is the mean of its values. Else the centre is 0, and the spread is the
    root mean square: to centre it would give a record that lacks it a value, and a bag of words all words.
SCALED
    It has held more than two values. Until then half of their difference counts as the spread, which is what
    it is where both are as frequent: their own would make much of a rare one. Of a column that is not dense
    0 is one of the two, and the other one counts as the spread, as a constant does.
FIXED
    An indicator, of a text or of a gap: centre 0 and spread 1 for ever.
BEGUN
    Its weight was given, in units of the raw feature: until there are enough values the centre counts as 0
    and the spread as 1.

A spread below LEAST_SPREAD counts as none: such a column does not count.

With a half-life mean and variance fade. The variance of a column that has held one value for two half-lives
fades no more, until another value comes.

With ``SCALE = 0`` no statistics are kept: centre 0 and spread 1 give the bits of unscaled features.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from streampair.kernels._jit import DISABLED, Array, kernel
from streampair.kernels.state import (
    ADAGRAD,
    ALIKE,
    BEFORE,
    CAP,
    CENTRED,
    FADES_TO,
    HEADER,
    KEEP,
    RECORDS,
    SCALE,
    SCHEDULE,
    D,
)
from streampair.kernels.vectors import dot, dot_difference, viewed_as

# Vectors of the state, by their number after the packed record.
GRADIENT = 1
WEIGHTS = 2
PREVIOUS = 3
AVERAGED = 4
CENTRE = 5
UNIT = 6
MEAN = 7
VARIANCE = 8
COUNT = 9  # of values
OCCURRENCES = 10  # how often it was given: as a value or a gap
KIND = 11
TOUCHED = 12  # the record that last moved the weight
CUTS = 13  # how many values were learned as nearer ones: see REACH
REST = 14  # what the sum of a mean and its steps has lost by rounding: added to the next
LOW = 15  # the values that a column has held before it was SCALED
HIGH = 16
LISTED = 17  # places of the centred columns, ascending
RECORD = 18  # scratch: the record, centred
EFFECT = 19  # weights times units, always
PARTNER = 20  # scratch: the same of other weights
VECTORS = 21  # how many there are, with the packed record; two more where spreads fade (FADES_TO):
NEWEST = 21  # the newest value of a column: see `_is_constant`
RUN = 22  # what the first of the values that are equal to it counts for, of those without another one between

DENSE = 1
SCALED = 2
FIXED = 4
BEGUN = 8

#: A value is learned as if it were at most so many spreads away from the centre. Each time this cuts one, its
#: column takes twice as many from then on: one wild value is an error, several are how the column is. With a
#: half-life that fades.
REACH = 5.0
#: More cuts than numbers allow: after so many no feature is too far away.
MOST_CUTS = 1000.0
#: So many values are taken as they are before.
ENOUGH = 30.0
#: From so many values on the unit is measured at every eighth: a spread hardly moves, and roots are slow.
SETTLED = 64.0

#: Of a smaller spread the unit is 0: values are at most one over it, and squares of their product are finite.
LEAST_SPREAD = 1e-50
#: From this variance on `_observe_alike` knows that the spread stays above it.
LEAST_VARIANCE = 2.0 * LEAST_SPREAD * LEAST_SPREAD

#: The bits of a cell of a packed record that the record does not have.
ABSENT_BITS = 0x7FFF_FFFF_FFFF_FFFF


def _column_at(typing_context: Any, state: Any, which: Any) -> Any:
    """`column`, in LLVM's own terms: a call would cost more than a pass over nine features."""
    fill: Any = arrayobj.populate_array  # it has no types

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, args[0])
        made = context.make_array(signature.return_type)(context, builder)
        whole = args[1].type
        d, cap = (
            builder.fptosi(builder.load(builder.gep(source.data, [ir.Constant(whole, place)])), whole)
            for place in (D, CAP)
        )
        start = builder.add(ir.Constant(whole, HEADER), builder.mul(args[1], cap))
        itemsize = context.get_constant(types.intp, 8)
        fill(
            made,
            data=builder.gep(source.data, [start]),
            shape=[d],
            strides=[itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return made._getvalue()

    return types.Array(types.float64, 1, "C")(state, types.intp), codegen


def _column(s: Array, which: int) -> Array:
    """One of the vectors of the state, (d,): a view, for use while the caller holds the state."""
    start = HEADER + which * int(s[CAP])
    return s[start : start + int(s[D])]


_in_place: Any = intrinsic(_column_at)
column = _column if DISABLED else _in_place


@kernel
def seen(s: Array) -> float:
    """How many records the statistics count."""
    return float(s[RECORDS] + s[BEFORE])


@kernel
def _spread(kind: int, mean: float, variance: float) -> float:
    """Standard deviation of a dense column, root mean square of another one."""
    return math.sqrt(variance) if kind & DENSE else math.sqrt(variance + mean * mean)


@kernel
def _spread_of_two(kind: int, low: float, high: float) -> float:
    """What counts as the spread of a column that has held these values alone: see SCALED."""
    spread = 0.5 * (high - low) if kind & DENSE and low < high else max(abs(low), abs(high))
    return spread if spread > 0.0 else 1.0


@kernel
def weigh(s: Array, i: int) -> None:
    """Set what a weight does to its feature less its centre."""
    cap = int(s[CAP])
    s[HEADER + EFFECT * cap + i] = s[HEADER + WEIGHTS * cap + i] * s[HEADER + UNIT * cap + i]


@kernel
def weigh_all(s: Array) -> None:
    """`weigh` of all weights."""
    w, unit, out = column(s, WEIGHTS), column(s, UNIT), column(s, EFFECT)
    for i in range(w.shape[0]):
        out[i] = w[i] * unit[i]


@kernel
def _scale_weight(s: Array, i: int, factor: float) -> None:
    """Multiply the weight of a column by a factor, and all that is in its unit."""
    cap = int(s[CAP])
    s[HEADER + WEIGHTS * cap + i] *= factor
    if s[SCHEDULE] == ADAGRAD:
        if s[HEADER + PREVIOUS * cap + i] > 0.0:  # the square of the factor may be 0, too
            s[HEADER + PREVIOUS * cap + i] /= factor * factor
    else:
        s[HEADER + PREVIOUS * cap + i] *= factor
        s[HEADER + AVERAGED * cap + i] *= factor
    weigh(s, i)


@kernel
def _measure(s: Array, i: int) -> None:
    """Set centre and unit of a column by its statistics."""
    at = HEADER + i
    cap = int(s[CAP])
    kind = int(s[at + KIND * cap])
    mean = s[at + MEAN * cap]
    s[at + CENTRE * cap] = mean if kind & DENSE and not kind & BEGUN else 0.0
    if not kind & BEGUN:
        if kind & SCALED:
            spread = _spread(kind, mean, s[at + VARIANCE * cap])
        else:
            spread = _spread_of_two(kind, s[at + LOW * cap], s[at + HIGH * cap])
        s[at + UNIT * cap] = 1.0 / spread if spread >= LEAST_SPREAD else 0.0
    weigh(s, i)


@kernel
def _change(s: Array, i: int, kind: int) -> None:
    """Give a column another kind; its weight over its spread stays."""
    place = HEADER + KIND * int(s[CAP]) + i
    unit = HEADER + UNIT * int(s[CAP]) + i
    s[place] = kind
    before = s[unit]
    _measure(s, i)
    if before > 0.0 and s[unit] > 0.0 and before != s[unit]:
        _scale_weight(s, i, before / s[unit])


@kernel
def _are_three(kind: int, low: float, high: float, x: float) -> bool:
    """Whether a value is one too many besides those that a column has held."""
    return low < high if kind & DENSE else (low != 0.0 or high != 0.0) and x != 0.0


@kernel
def _hold(s: Array, i: int, x: float) -> None:
    """Keep a new value of a column that is not SCALED; the third one makes it that.

    From enough values on no score jumps. Before, two of them may lie close together by chance, and weights of
    scaled features stay, as they do where a spread moves.
    """
    cap = int(s[CAP])
    at = HEADER + i
    count, kind = s[at + COUNT * cap], int(s[at + KIND * cap])
    low, high = s[at + LOW * cap], s[at + HIGH * cap]
    if count > 1.0 and _are_three(kind, low, high, x):
        kind |= SCALED
    else:
        s[at + LOW * cap] = min(low, x) if count > 1.0 else x
        s[at + HIGH * cap] = max(high, x) if count > 1.0 else x
    if count >= ENOUGH:
        _change(s, i, kind)
    else:
        s[at + KIND * cap] = kind
        _measure(s, i)


@kernel
def _nearer(s: Array, i: int, x: float) -> float:
    """The value of a column as it is learned: see REACH. NaN is a gap."""
    cap = int(s[CAP])
    at = HEADER + i
    centre, unit = s[at + CENTRE * cap], s[at + UNIT * cap]
    far = abs((x - centre) * unit)
    kind = int(s[at + KIND * cap])
    if not far > REACH or kind & FIXED or (s[ALIKE] == 0.0 and s[at + COUNT * cap] < ENOUGH):
        return x
    spread = s[at + VARIANCE * cap] if kind & DENSE else s[at + VARIANCE * cap] + abs(s[at + MEAN * cap])
    reach = math.ldexp(REACH, int(s[at + CUTS * cap]))
    if far <= reach or spread == 0.0:
        return x
    return float(centre + math.copysign(reach / unit, x - centre))


@kernel
def _excess(s: Array, which: int, i: int, x: float) -> float:
    """What a value adds to the score of some weights beyond the value as it is learned."""
    cap = int(s[CAP])
    off = x - _nearer(s, i, x)
    return float(off * (s[HEADER + which * cap + i] * s[HEADER + UNIT * cap + i])) if off != 0.0 else 0.0


@kernel
def excess_at(s: Array, which: int, places: Array, values: Array) -> float:
    """What a record's score is above that of the record as it is learned; given as of `score_at`."""
    total = 0.0
    if s[SCALE] > 0.0:
        for j in range(values.shape[0]):
            if values[j] == values[j]:
                total += _excess(s, which, int(places[j]), values[j])
    return total


@kernel
def excess_row(s: Array, which: int, x: Array) -> float:
    """`excess_at` of a packed record (d,)."""
    if s[SCALE] == 0.0:
        return 0.0
    centre, unit = column(s, CENTRE), column(s, UNIT)
    far = 0
    for i in range(x.shape[0]):
        far |= 1 if abs((x[i] - centre[i]) * unit[i]) > REACH else 0
    total = 0.0
    if far:
        for i in range(x.shape[0]):
            if x[i] == x[i]:
                total += _excess(s, which, i, x[i])
    return total


@kernel
def _is_due(count: float) -> bool:
    """Whether the unit is measured at this value."""
    return count < SETTLED or int(count) & 7 == 0


@kernel
def after_vectors(s: Array) -> int:
    """Where the buffer of gradient steps begins."""
    return HEADER + (VECTORS if s[FADES_TO] == 0.0 else VECTORS + 2) * int(s[CAP])


@kernel
def _is_constant(s: Array, i: int, x: float) -> bool:
    """Whether a column has held this value for so long that its variance fades no more.

    Else its unit would grow without end, and with it the score of the next other value.
    """
    newest = HEADER + NEWEST * int(s[CAP]) + i
    run = HEADER + RUN * int(s[CAP]) + i
    if x != s[newest] or s[run] == 0.0:
        s[newest], s[run] = x, 1.0
    elif s[run] > s[FADES_TO]:
        s[run] *= s[KEEP]
    return bool(s[run] <= s[FADES_TO])


@kernel
def observe(s: Array, i: int, x: float) -> float:
    """Let the value of a column into its statistics, and set centre and unit: the value as it is learned.

    NaN is a gap.
    """
    cap = int(s[CAP])
    at = HEADER + i
    kind = int(s[at + KIND * cap])
    if kind & FIXED:
        return x
    s[at + OCCURRENCES * cap] += 1.0
    if x != x:
        return x
    keep = s[KEEP]
    if keep > 0.0:
        s[at + CUTS * cap] *= keep
    near = _nearer(s, i, x)
    if near != x:
        s[at + CUTS * cap] += 1.0
        x = near
    count = s[at + COUNT * cap] + 1.0
    s[at + COUNT * cap] = count
    mean = s[at + MEAN * cap]
    variance = s[at + VARIANCE * cap]
    rest = s[at + REST * cap]
    off = (x - mean) - rest  # far from 0 a mean has few bits for what it moves by
    share = max(1.0 / count, 1.0 - keep if keep > 0.0 else 0.0)
    step = rest + share * off
    s[at + MEAN * cap] = mean + step
    s[at + REST * cap] = step - (s[at + MEAN * cap] - mean)
    if s[FADES_TO] == 0.0 or not _is_constant(s, i, x):
        s[at + VARIANCE * cap] = (1.0 - share) * (variance + share * (off * off))
    if kind & BEGUN:
        if count >= ENOUGH:
            _change(s, i, (kind & ~BEGUN) | SCALED)
    elif not kind & SCALED and (count == 1.0 or (x != s[at + LOW * cap] and x != s[at + HIGH * cap])):
        _hold(s, i, x)
    elif _is_due(count):
        _measure(s, i)
    elif kind & DENSE:
        s[at + CENTRE * cap] = s[at + MEAN * cap]
    return x


@kernel
def _are_alike(s: Array) -> bool:
    """Whether all records so far had all features, which are dense numbers."""
    counts, kinds = column(s, COUNT), column(s, KIND)
    records = seen(s)
    alike = records > ENOUGH and s[KEEP] == 0.0
    for i in range(kinds.shape[0]):
        alike = alike and counts[i] == records and int(kinds[i]) & ~SCALED == DENSE
    return bool(alike)


@kernel
def look(s: Array) -> None:
    """Where the number of records is a power of 2: see which columns are dense, and list the centred ones."""
    records = int(seen(s))
    if s[SCALE] == 0.0 or s[ALIKE] > 0.0 or records & (records - 1):
        return
    occurrences, kinds, listed = column(s, OCCURRENCES), column(s, KIND), column(s, LISTED)
    lows, highs = column(s, LOW), column(s, HIGH)
    n = 0
    for i in range(kinds.shape[0]):
        kind = int(kinds[i])
        if kind & FIXED:
            continue
        wanted = kind & ~DENSE
        if 2.0 * occurrences[i] >= records:
            wanted |= DENSE
        elif lows[i] < highs[i] and lows[i] != 0.0 and highs[i] != 0.0:
            wanted |= SCALED  # 0 is the third value
        if wanted != kind:
            _change(s, i, wanted)
        if wanted & DENSE:
            listed[n] = i
            n += 1
    s[CENTRED] = n
    s[ALIKE] = _are_alike(s)


@kernel
def leave(s: Array) -> None:
    """Count for each feature again how often it was set: the newest record may not have them all."""
    if s[ALIKE] > 0.0:
        counts, occurrences = column(s, COUNT), column(s, OCCURRENCES)
        for i in range(counts.shape[0]):
            counts[i] = occurrences[i] = seen(s) - 1.0
        s[ALIKE] = 0.0


@kernel
def observe_whole(s: Array, x: Array) -> bool:
    """Let a record that has all features into the statistics; whether it is learned as it is.

    Else what is learned is in RECORD.
    """
    alike = s[ALIKE]
    if alike > 0.0 and _observe_alike(s, x):
        return True
    leave(s)
    out = column(s, RECORD)
    for i in range(x.shape[0]):
        out[i] = observe(s, i, x[i])
    s[ALIKE] = alike  # it had all features
    look(s)
    return False


@kernel
def observe_row(s: Array, x: Array) -> Array:
    """Let a packed record (d,) into the statistics: scratch, the record as it is learned.

    What it lacks is 0, and a gap the centre.
    """
    out = column(s, RECORD)
    cells = viewed_as(x, np.int64)
    lacking = 0
    for i in range(x.shape[0]):
        lacking |= 0 if x[i] == x[i] else 1
    if lacking == 0:
        if s[SCALE] == 0.0 or observe_whole(s, x):
            for i in range(x.shape[0]):
                out[i] = x[i]
        return out
    leave(s)
    for i in range(x.shape[0]):
        if cells[i] != ABSENT_BITS:
            out[i] = observe(s, i, x[i]) if s[SCALE] > 0.0 else x[i]
    look(s)
    centre = column(s, CENTRE)
    for i in range(x.shape[0]):
        if x[i] != x[i]:
            out[i] = 0.0 if cells[i] == ABSENT_BITS else centre[i]
    return out


@kernel
def _observe_alike(s: Array, x: Array) -> bool:
    """`observe` of all features at once, the same bits; False, with nothing changed, where one is not usual.

    Loops without branches are made of vectors.
    """
    mean, rest, variance, offs = column(s, MEAN), column(s, REST), column(s, VARIANCE), column(s, RECORD)
    kinds, unit, lows, highs = column(s, KIND), column(s, UNIT), column(s, LOW), column(s, HIGH)
    unusual = 0
    for i in range(x.shape[0]):
        off = x[i] - mean[i]
        # A variance of 0, or NaN, is unusual, too; and the third value of a column of two.
        usual = (abs(off * unit[i]) <= REACH) & (variance[i] >= LEAST_VARIANCE)
        usual &= (kinds[i] != DENSE) | (x[i] == lows[i]) | (x[i] == highs[i])
        unusual |= 0 if usual else 1
        offs[i] = off - rest[i]
    if unusual:
        return False
    records = seen(s)
    share = 1.0 / records
    centre, w, effect = column(s, CENTRE), column(s, WEIGHTS), column(s, EFFECT)
    for i in range(x.shape[0]):
        step = rest[i] + share * offs[i]
        centre[i] = mean[i] + step
        rest[i] = step - (centre[i] - mean[i])
        mean[i] = centre[i]
        variance[i] = (1.0 - share) * (variance[i] + share * (offs[i] * offs[i]))
    if _is_due(records):
        for i in range(x.shape[0]):
            unit[i] = 1.0 / math.sqrt(variance[i]) if kinds[i] != DENSE else unit[i]
            effect[i] = w[i] * unit[i]
    return True


@kernel
def score_whole(s: Array, which: int, x: Array) -> float:
    """`score_row` of a record that has all features."""
    if s[SCALE] == 0.0:
        return float(dot(column(s, which), x))
    return float(dot_difference(effects(s, which), x, column(s, CENTRE)))


@kernel
def centre_row(s: Array, x: Array, out: Array) -> None:
    """A packed record (d,) less the centres: what it lacks counts as 0, a gap as the centre."""
    centre = column(s, CENTRE)
    cells = viewed_as(x, np.int64)
    for i in range(x.shape[0]):
        off = x[i] - centre[i]
        out[i] = off if off == off else -centre[i] if cells[i] == ABSENT_BITS else 0.0


@kernel
def effects(s: Array, which: int) -> Array:
    """What one of the vectors of weights multiplies features less their centres by, (d,): perhaps scratch."""
    if which == WEIGHTS:
        return column(s, EFFECT)
    w, unit, out = column(s, which), column(s, UNIT), column(s, PARTNER)
    for i in range(w.shape[0]):
        out[i] = w[i] * unit[i]
    return out


@kernel
def score_row(s: Array, which: int, x: Array) -> float:
    """Score of a packed record (d,) under one of the vectors of weights."""
    record = column(s, RECORD)
    centre_row(s, x, record)
    return float(dot(effects(s, which), record))


@kernel
def score_at(s: Array, which: int, places: Array, values: Array) -> float:
    """`score_row` of a record that has these values at these places, ascending, and lacks the others.

    In the order and the lanes of `dot`, of which zeros change no bit.
    """
    w, unit, centre, listed = column(s, which), column(s, UNIT), column(s, CENTRE), column(s, LISTED)
    d = w.shape[0]
    whole = d - d % 4
    sums = np.zeros(4)
    count, centred = places.shape[0], int(s[CENTRED])
    j = 0
    m = 0
    while j < count or m < centred:
        i = int(listed[m]) if m < centred else d
        if j < count and places[j] <= i:
            m += 1 if places[j] == i else 0
            i = int(places[j])
            off = values[j] - centre[i]
            j += 1
        else:
            off = -centre[i]
            m += 1
        if off == off:
            sums[i % 4 if i < whole else 0] += w[i] * unit[i] * off
    return float((sums[0] + sums[1]) + (sums[2] + sums[3]))


@kernel
def rescale(s: Array, g: Array) -> None:
    """A gradient in the weights of raw features (d,) to one in those of scaled features."""
    unit = column(s, UNIT)
    for i in range(g.shape[0]):
        g[i] *= unit[i]


@kernel
def restore(s: Array) -> None:
    """Set all that follows from the weights and statistics of a state that was saved."""
    kinds, listed = column(s, KIND), column(s, LISTED)
    means, centres = column(s, MEAN), column(s, CENTRE)
    n = 0
    for i in range(kinds.shape[0]):
        if s[SCALE] > 0.0 and int(kinds[i]) & DENSE:
            centres[i] = 0.0 if int(kinds[i]) & BEGUN else means[i]
            listed[n] = i
            n += 1
    weigh_all(s)
    s[CENTRED] = n
    s[ALIKE] = s[SCALE] > 0.0 and _are_alike(s)
