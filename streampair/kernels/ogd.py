"""Online gradient descent on the pairs of a record with the rows of a buffer.

A record is given by the places of its features, ascending, and their values; or, without places, by the
values of all features. Time and memory are those of the features that it has, with AdaGrad's steps, no ridge
term and no ball; else steps take passes over all features. What a zero adds to a sum changes no bit of it, so
both forms of a record give the same bits.
"""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.buffers import CLASSES, ogd_buffer, other_class
from streampair.kernels.losses import loss_of_errors, pair_slope
from streampair.kernels.platt import link_learn, link_proba
from streampair.kernels.scaling import (
    ABSENT_BITS,
    AVERAGED,
    CENTRE,
    EFFECT,
    GRADIENT,
    PREVIOUS,
    RECORD,
    TOUCHED,
    UNIT,
    WEIGHTS,
    after_vectors,
    centre_row,
    column,
    effects,
    excess_at,
    excess_row,
    leave,
    look,
    observe,
    observe_whole,
    rescale,
    score_at,
    score_row,
    score_whole,
    weigh,
    weigh_all,
)
from streampair.kernels.sparse import sort_places
from streampair.kernels.state import (
    ADAGRAD,
    ALIKE,
    AVERAGE,
    CAP,
    CONSTANT,
    ETAS,
    FILLED,
    GRADIENTS,
    HEADER,
    INVERSE_TIME,
    KEEP,
    L2,
    LINK,
    LOSS,
    POLICY,
    POSITIVES,
    RADIUS,
    RATE,
    RECORDS,
    ROOM,
    SAMPLED,
    SCALE,
    SCHEDULE,
    SIZE,
    START,
    WIDTH,
    D,
)
from streampair.kernels.vectors import (
    MAX_ABS,
    dot,
    dot_difference,
    first_unusable,
    project_ball,
    view,
    viewed_as,
)

# A sum of squares below it has faded: what is left is rounding.
_GONE = 1e-200


@kernel
def ogd_rate(s: Array, squares: float) -> tuple[float, float]:
    """The step size for a gradient of this squared norm, and the share of an iterate in the average.

    With KEEP the sums fade: steps then have the size of that many, and all the same weight in the average.
    Weights by step would let one long silence, in which the sum of squares dwindles, outweigh what follows.
    """
    rate = s[RATE]
    keep = s[KEEP]
    steps = s[RECORDS] - 1.0
    if keep > 0.0:
        s[ETAS] *= keep
        steps = s[ETAS] + 1.0
        s[GRADIENTS] = s[GRADIENTS] * keep if s[GRADIENTS] > _GONE else 0.0
    if rate > 0.0:
        if s[SCHEDULE] == CONSTANT:
            eta = rate
        elif s[SCHEDULE] == INVERSE_TIME:
            eta = rate / (steps + 1.0)
        else:
            eta = rate / math.sqrt(steps)
    else:
        s[GRADIENTS] += squares
        eta = s[RADIUS] * math.sqrt(2.0 / s[GRADIENTS]) if s[GRADIENTS] > 0.0 else 0.0
    weight = 1.0 if keep > 0.0 else steps if s[AVERAGE] > 1.0 else eta
    s[ETAS] += weight
    return eta, weight / s[ETAS] if s[ETAS] > 0.0 else 0.0


@kernel
def _faded(squares: float, keep: float, records: float) -> float:
    """A sum of squares after so many records, with KEEP."""
    share = 1.0
    while records > 0.0:
        if records % 2.0 == 1.0:
            share *= keep
        keep *= keep
        records = records // 2.0
    squares *= share
    return squares if squares > _GONE else 0.0


@kernel
def ogd_move(s: Array, g: Array, w: Array, previous: Array, averaged: Array) -> None:
    """Average the iterates, then step w against the gradient g. The caller projects w."""
    eta, share = ogd_rate(s, dot(g, g) if s[RATE] <= 0.0 else 0.0)
    if share > 0.0:
        for i in range(w.shape[0]):
            averaged[i] += share * (previous[i] - averaged[i])
    for i in range(w.shape[0]):
        previous[i] = w[i]
        w[i] -= eta * g[i]


@kernel
def adagrad_step(s: Array, i: int) -> None:
    """Move one weight by its gradient in raw units, and let its squares fade since it was last moved."""
    cap = int(s[CAP])
    at = HEADER + i
    g = s[at + GRADIENT * cap] * s[at + UNIT * cap]
    squares = s[at + PREVIOUS * cap]
    if s[KEEP] > 0.0:
        squares = _faded(squares, s[KEEP], s[RECORDS] - s[at + TOUCHED * cap])
        s[at + TOUCHED * cap] = s[RECORDS]
    squares += g * g
    s[at + PREVIOUS * cap] = squares
    s[at + WEIGHTS * cap] -= s[RATE] * (g / math.sqrt(max(squares + s[START], _GONE)))
    s[at + GRADIENT * cap] = 0.0
    weigh(s, i)


@kernel
def adagrad_steps(s: Array) -> None:
    """`adagrad_step` of all weights: those whose gradient is 0 stay."""
    g, w, squares = column(s, GRADIENT), column(s, WEIGHTS), column(s, PREVIOUS)
    unit, effect = column(s, UNIT), column(s, EFFECT)
    if s[KEEP] > 0.0:
        for i in range(g.shape[0]):
            if g[i] != 0.0:
                adagrad_step(s, i)
        return
    rate, start = s[RATE], s[START]
    # Two loops: of more arrays at once no vectors are made.
    for i in range(g.shape[0]):
        step = g[i] * unit[i]
        total = squares[i] + step * step
        squares[i] = total
        g[i] = step / math.sqrt(max(total + start, _GONE))
    for i in range(g.shape[0]):
        w[i] -= rate * g[i]
        effect[i] = w[i] * unit[i]
        g[i] = 0.0


@kernel
def sampled_move(s: Array, y: float) -> None:
    """OAM's step: the sampled partners stand for all there were, once those are more than fit."""
    g, w, previous, averaged = (
        column(s, GRADIENT),
        column(s, WEIGHTS),
        column(s, PREVIOUS),
        column(s, AVERAGED),
    )
    others = s[RECORDS] - 1.0 - s[POSITIVES] if y > 0.0 else s[POSITIVES]
    weight = s[RATE] * max(1.0, others / s[SIZE])
    s[ETAS] += 1.0
    for i in range(w.shape[0]):
        averaged[i] += (previous[i] - averaged[i]) / s[ETAS]
        previous[i] = w[i]
        w[i] -= weight * g[i]


@kernel
def published(s: Array) -> int:
    """Which of the vectors is published."""
    return AVERAGED if s[AVERAGE] > 0.0 else WEIGHTS


@kernel
def published_score(s: Array, x: Array) -> float:
    """Score of a packed record (d,) under the published weights."""
    return float(score_row(s, published(s), x))


@kernel
def link_record(s: Array, x: Array, y: float) -> None:
    """Teach the link, if there is one, by the score of x (d,), which is about to be learned.

    Of a value that is learned as a nearer one, the link gets that one, too.
    """
    if s[LINK] > 0.0:
        link_learn(s, published_score(s, x) - excess_row(s, published(s), x), y)


@kernel
def _add_few(
    s: Array,
    places: Array,
    values: Array,
    theirs: Array,
    partner: Array,
    k: float,
    moved: Array,
    n: int,
) -> int:
    """Add a pair's gradient at the features of either, and list them in `moved`; how many are listed.

    A feature whose gradients have cancelled may be listed again.
    """
    g, centre = column(s, GRADIENT), column(s, CENTRE)
    count, other = values.shape[0], theirs.shape[0]
    i = 0
    j = 0
    while i < count or j < other:
        mine = int(places[i]) if i < count else g.shape[0]
        place = min(mine, int(theirs[j]) if j < other else g.shape[0])
        x = 0.0
        y = 0.0
        if mine == place:
            x = float(values[i])
            i += 1
        if j < other and theirs[j] == place:
            y = float(partner[j])
            j += 1
        x -= float(centre[place])
        y -= float(centre[place])
        off = (x if x == x else 0.0) - (y if y == y else 0.0)
        if off != 0.0:
            if g[place] == 0.0:
                moved[n] = place
                n += 1
            g[place] += k * off
    return n


@kernel
def _add_whole(s: Array, x: Array, y: float, pairs: float, rows: int, at: int) -> None:
    """Add the gradients of the pairs of a record with rows that all have all features, in raw units."""
    d = x.shape[0]
    room = int(s[ROOM])
    stride = 2 + 2 * room
    at += 2 + room
    code = int(s[LOSS])
    width = s[WIDTH]
    of_errors = loss_of_errors(code)
    g, w = column(s, GRADIENT), effects(s, WEIGHTS)
    scaled = s[SCALE] > 0.0
    score = 0.0 if scaled else float(dot(w, x))
    for _r in range(rows):
        label = s[at - 2 - room]
        if label != y or of_errors:
            row = view(s, at, d)
            # What is scaled may be far from 0.
            margin = dot_difference(w, x, row) if scaled else score - dot(w, row)
            k = pair_slope(code, y - label, margin, width) / pairs
            if k != 0.0:
                # By differences, so that equal records cancel exactly: the self-tuned step would take what
                # rounding leaves of them for a gradient, and leap.
                for i in range(d):
                    g[i] += k * (x[i] - row[i])
        at += stride


@kernel
def _add_pairs(
    s: Array, places: Array, values: Array, y: float, pairs: float, rows: int, at: int, moved: Array
) -> int:
    """Add the gradients of the pairs of a record with rows that may lack features, in raw units.

    Returns how many features `moved` lists.
    """
    room = int(s[ROOM])
    code = int(s[LOSS])
    width = s[WIDTH]
    of_errors = loss_of_errors(code)
    score = score_at(s, WEIGHTS, places, values)
    n = 0
    for _r in range(rows):
        label = s[at]
        if label != y or of_errors:
            count = int(s[at + 1])
            theirs, row = view(s, at + 2, count), view(s, at + 2 + room, count)
            k = pair_slope(code, y - label, score - score_at(s, WEIGHTS, theirs, row), width) / pairs
            if k != 0.0:
                n = _add_few(s, places, values, theirs, row, k, moved, n)
        at += 2 + 2 * room
    return n


@kernel
def _are_whole(s: Array, rows: int, at: int) -> bool:
    """Whether all rows have all features, and no gap."""
    room = int(s[ROOM])
    for _r in range(rows):
        if s[at + 1] != s[D]:
            return False
        at += 2 + 2 * room
    return True


@kernel
def ridge(s: Array, i: int) -> float:
    """Gradient of the ridge term in one weight, in raw units."""
    cap = int(s[CAP])
    unit = s[HEADER + UNIT * cap + i]
    return s[L2] * s[HEADER + WEIGHTS * cap + i] / unit if unit > 0.0 else 0.0


@kernel
def move_freely(s: Array, y: float, moved: Array, count: int) -> None:
    """Step the weights against the gradient in raw units, of which `moved` lists the features, and clear it.

    With `count` -1 it may be of all features.
    """
    if s[SCHEDULE] == ADAGRAD:
        if count < 0:
            adagrad_steps(s)
        else:
            for j in range(count):
                adagrad_step(s, int(moved[j]))
    else:
        g = column(s, GRADIENT)
        rescale(s, g)
        if s[SCHEDULE] == SAMPLED:
            sampled_move(s, y)
        else:
            ogd_move(s, g, column(s, WEIGHTS), column(s, PREVIOUS), column(s, AVERAGED))
        weigh_all(s)
        for i in range(g.shape[0]):
            g[i] = 0.0


@kernel
def project(s: Array) -> None:
    """Scale the weights onto the ball, if they are outside."""
    project_ball(column(s, WEIGHTS), s[RADIUS])
    weigh_all(s)


@kernel
def move(s: Array, y: float, moved: Array, count: int) -> None:
    """Step the weights, and project them: see `move_freely`."""
    move_freely(s, y, moved, count)
    if s[RADIUS] < math.inf:
        project(s)


@kernel
def _partners(s: Array, y: float) -> tuple[float, int, int]:
    """Divisor of a sum over pairs, number of rows that a record of label y is paired with, and the first."""
    at = after_vectors(s)
    if s[POLICY] != CLASSES:
        return s[FILLED], int(s[FILLED]), at
    # The mean over all past records, of which only the other class counts: its sample stands for it.
    pairs, rows, first = other_class(s, y)
    return 1.0 if s[SCHEDULE] == SAMPLED else pairs, rows, at + first * (2 + 2 * int(s[ROOM]))


@kernel
def _add_ridge(s: Array) -> None:
    """Begin a gradient with that of the ridge term."""
    if s[L2] > 0.0:
        g = column(s, GRADIENT)
        for i in range(g.shape[0]):
            g[i] = ridge(s, i)


@kernel
def _check_room(s: Array, count: int) -> None:
    """Raise ValueError if a row of the buffer has no room for so many features."""
    if count > s[ROOM]:
        raise ValueError("a record has more features than a row of the buffer has room for")


@kernel
def _few_step(s: Array, places: Array, values: Array, y: float) -> None:
    """One record: step on the pairs with the buffer, then into the buffer.

    It has these values at these places, ascending; values may change.
    """
    _check_room(s, values.shape[0])
    s[RECORDS] += 1.0
    if s[SCALE] > 0.0:
        leave(s)
        for j in range(values.shape[0]):
            values[j] = observe(s, int(places[j]), values[j])
        look(s)
    if s[FILLED] > 0.0:
        pairs, rows, at = _partners(s, y)
        _add_ridge(s)
        moved = np.empty(rows * (values.shape[0] + int(s[ROOM])))
        count = _add_pairs(s, places, values, y, pairs, rows, at, moved)
        move(s, y, moved, -1 if s[L2] > 0.0 else count)
    ogd_buffer(s, places, values, y, after_vectors(s), int(s[ROOM]))


@kernel
def _mixed_step(s: Array, x: Array, y: float, pairs: float, rows: int, at: int) -> None:
    """Step on the pairs of a record that has all features, (d,), with rows that may lack some."""
    moved = np.empty(rows * (x.shape[0] + int(s[ROOM])))
    places = np.arange(x.shape[0]).astype(np.float64)
    count = _add_pairs(s, places, x, y, pairs, rows, at, moved)
    move(s, y, moved, -1 if s[L2] > 0.0 else count)


@kernel
def _meets_whole(s: Array, y: float) -> bool:
    """Whether a record of label y that came now would be paired with rows that all have all features."""
    if s[FILLED] == 0.0 or s[ALIKE] > 0.0:
        return True
    s[RECORDS] += 1.0
    _, rows, at = _partners(s, y)
    s[RECORDS] -= 1.0
    return _are_whole(s, rows, at)


@kernel
def _observed(s: Array, x: Array) -> Array:
    """Count a record that has all features, (d,): as it is learned."""
    _check_room(s, x.shape[0])
    s[RECORDS] += 1.0
    if s[SCALE] > 0.0 and not observe_whole(s, x):
        return column(s, RECORD)
    return x


@kernel
def _keep_whole(s: Array, x: Array, y: float) -> None:
    """Let a record that has all features into the buffer."""
    ogd_buffer(s, view(s, 0, 0), x, y, after_vectors(s), int(s[ROOM]))


@kernel
def _step_among_whole(s: Array, x: Array, y: float) -> None:
    """`_few_step` of a record that has all features, (d,), and is paired with such rows only."""
    x = _observed(s, x)
    if s[FILLED] > 0.0:
        pairs, rows, at = _partners(s, y)
        _add_ridge(s)
        _add_whole(s, x, y, pairs, rows, at)
        move(s, y, x, -1)
    _keep_whole(s, x, y)


@kernel
def _whole_step(s: Array, x: Array, y: float) -> None:
    """`_few_step` of a record that has all features, (d,)."""
    if _meets_whole(s, y):
        _step_among_whole(s, x, y)
    else:
        x = _observed(s, x)
        pairs, rows, at = _partners(s, y)
        _add_ridge(s)
        _mixed_step(s, x, y, pairs, rows, at)
        _keep_whole(s, x, y)


@kernel
def link_few(s: Array, places: Array, values: Array, y: float) -> None:
    """`link_record` of a record that has these values at these places, ascending."""
    if s[LINK] > 0.0:
        which = published(s)
        link_learn(s, score_at(s, which, places, values) - excess_at(s, which, places, values), y)


@kernel
def arrange(entries: Array, count: int, gaps: bool) -> bool:
    """Sort a record that is given as of `scatter`, and make numbers of its places.

    False if a value is unusable; NaN is, without `gaps`.
    """
    places, values = viewed_as(entries[:count], np.int64), entries[count : 2 * count]
    usable = True
    for j in range(count):
        usable = usable and (abs(values[j]) <= MAX_ABS or (gaps and values[j] != values[j]))
    sort_places(places, viewed_as(values, np.int64))
    for j in range(count):
        entries[j] = places[j]
    return usable


@kernel
def fill_gaps(s: Array, values: Array) -> None:
    """Where features are not scaled, a gap is 0: the neutral value."""
    if s[SCALE] == 0.0:
        for j in range(values.shape[0]):
            if values[j] != values[j]:
                values[j] = 0.0


@kernel
def ogd_learn(s: Array, y: float) -> int:
    """Learn the packed record with label y.

    Returns 0; or, with nothing changed, 1 + the unusable column, or 1 if a row of the buffer has no room; or
    -1 if it is to be paired with rows that lack features, as `ogd_learn_few` can.
    """
    s = view(s, 0, s.shape[0])  # not counted as a reference in any call
    d = int(s[D])
    x = view(s, HEADER, d)
    bad = first_unusable(x)
    if bad >= 0 or d > int(s[ROOM]):
        return max(bad, 0) + 1
    # To be paired with rows that lack features takes as much code again, which most streams never need.
    if not _meets_whole(s, y):
        return -1
    if s[LINK] > 0.0:
        link_learn(s, score_whole(s, published(s), x) - excess_row(s, published(s), x), y)
    _step_among_whole(s, x, y)
    return 0


@kernel
def ogd_learn_few(s: Array, entries: Array, count: int, gaps: bool, y: float) -> int:
    """`ogd_learn` of a record that has `count` features, given as of `scatter`; with `gaps` NaN is one.

    With `count` -1 it is the packed record, whose values are usable. Returns 0; or 1, with nothing changed,
    if a value is unusable.
    """
    s = view(s, 0, s.shape[0])  # not counted as a reference in any call
    if count < 0:
        x = view(s, HEADER, int(s[D]))
        if s[LINK] > 0.0:
            link_learn(s, score_whole(s, published(s), x) - excess_row(s, published(s), x), y)
        _whole_step(s, x, y)
        return 0
    if not arrange(entries, count, gaps):
        return 1
    places, values = view(entries, 0, count), view(entries, count, count)
    whole = count == int(s[D])
    for j in range(count):
        whole = whole and values[j] == values[j]
    fill_gaps(s, values)
    link_few(s, places, values, y)
    if whole:  # the margin of a pair of whole records is of other bits
        _whole_step(s, values, y)
    else:
        _few_step(s, places, values, y)
    return 0


@kernel
def first_large(rows: Array, limit: float) -> int:
    """1 + the flat index of the first value of (n, d) rows beyond the limit, else 0; NaN is none."""
    cells = rows.reshape(rows.size)
    large = 0
    for i in range(cells.shape[0]):
        large |= 1 if abs(cells[i]) > limit else 0
    if large:
        for i in range(cells.shape[0]):
            if abs(cells[i]) > limit:
                return i + 1
    return 0


@kernel
def any_lacking(rows: Array) -> bool:
    """Whether any of (n, d) rows lacks a feature or has a gap."""
    cells = rows.reshape(rows.size)
    lacking = 0
    for i in range(cells.shape[0]):
        lacking |= 0 if cells[i] == cells[i] else 1
    return lacking > 0


@kernel
def present(x: Array, places: Array, values: Array) -> int:
    """Write places and values of what a packed record (d,) has; how many. -1: all, and no gap among them."""
    lacking = 0
    for i in range(x.shape[0]):
        lacking |= 0 if x[i] == x[i] else 1
    if lacking == 0:
        return -1
    cells = viewed_as(x, np.int64)
    count = 0
    for i in range(x.shape[0]):
        if cells[i] != ABSENT_BITS:
            places[count] = i
            values[count] = x[i]
            count += 1
    return count


@kernel
def ogd_learn_many(s: Array, rows: Array, labels: Array, scores: Array) -> int:
    """Learn (n, d) rows in order; `scores` (n,), if it is not empty, gets that of each row before it is
    learned. A row of label NaN is not. NaN is a gap, or, with the bits ABSENT_BITS, what a row lacks. Returns
    0; or, with nothing changed, 1 + the flat index of the first unusable value.
    """
    s = view(s, 0, s.shape[0])  # not counted as a reference in any call
    bad: int = first_large(rows, MAX_ABS)
    if bad == 0:
        d = int(s[D])
        flat = rows.reshape(rows.size)
        some = np.empty(2 * d)
        whole = not any_lacking(rows)
        for r in range(rows.shape[0]):
            x = view(flat, r * d, d)
            count = -1 if whole else present(x, view(some, 0, d), view(some, d, d))
            places, values = view(some, 0, max(count, 0)), x if count < 0 else view(some, d, count)
            learned = labels[r] == labels[r]
            if scores.shape[0] > 0 or (learned and s[LINK] > 0.0):
                which = published(s)
                score = score_whole(s, which, x) if count < 0 else score_at(s, which, places, values)
                if scores.shape[0] > 0:
                    scores[r] = score
                if learned and s[LINK] > 0.0:
                    link_learn(s, score - excess_row(s, which, x), labels[r])
            if learned and count < 0:
                _whole_step(s, x, labels[r])
            elif learned:
                fill_gaps(s, values)
                _few_step(s, places, values, labels[r])
    return bad


@kernel
def ogd_score(s: Array) -> float:
    """Score of the packed record under the published weights; NaN if a value is unusable."""
    s = view(s, 0, s.shape[0])  # not counted as a reference in any call
    d = int(s[D])
    x = view(s, HEADER, d)
    if first_unusable(x) >= 0:
        return math.nan
    return float(score_whole(s, published(s), x))


@kernel
def ogd_proba(s: Array) -> float:
    """Probability of the packed record; NaN if a value is unusable."""
    score = ogd_score(s)
    if score != score:
        return math.nan
    return float(link_proba(s, score))


@kernel
def ogd_score_few(s: Array, entries: Array, count: int, gaps: bool) -> float:
    """Score of a record that is given as of `ogd_learn_few`; NaN if a value is unusable."""
    s = view(s, 0, s.shape[0])  # not counted as a reference in any call
    if not arrange(entries, count, gaps):
        return math.nan
    return float(score_at(s, published(s), view(entries, 0, count), view(entries, count, count)))


@kernel
def ogd_score_many(s: Array, rows: Array, out: Array) -> int:
    """Scores of (n, d) rows, given as of `ogd_learn_many`. Returns as that does."""
    s = view(s, 0, s.shape[0])  # not counted as a reference in any call
    bad: int = first_large(rows, MAX_ABS)
    if bad == 0:
        d = int(s[D])
        flat = rows.reshape(rows.size)
        w, centre, record = effects(s, published(s)), column(s, CENTRE), column(s, RECORD)
        whole = not any_lacking(rows)
        for r in range(rows.shape[0]):
            x = view(flat, r * d, d)
            if whole:
                out[r] = dot_difference(w, x, centre)
            else:
                centre_row(s, x, record)
                out[r] = dot(w, record)
    return bad
