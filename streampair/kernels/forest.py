"""Random trees whose leaves are fitted online, by four experts that share them, and the stack of the experts.

A leaf draws a column, keeps one of its values, and parts later values from it; which columns are drawn more
often is all that labels say of a tree. Expert k sees each tree cut to its first nodes, so that one descent
serves all.

The whole state is one flat array: scalars; columns (moments, weights, the record and its standardised
values); weights of texts; nodes; weights of the nodes; scratch. A value of a record is a number, a text (a
NaN that carries a hash) or missing (a NaN that carries nothing).
"""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.forest_layout import (
    EXPERTS,
    FOREST_BEST,
    FOREST_BRISK,
    FOREST_CAP,
    FOREST_COUNT,
    FOREST_D,
    FOREST_ETA,
    FOREST_FEW,
    FOREST_GAMMA,
    FOREST_GUIDED,
    FOREST_HEADER,
    FOREST_LOSSES,
    FOREST_MEAN,
    FOREST_NODES,
    FOREST_PAIRS,
    FOREST_READY,
    FOREST_RECORDS,
    FOREST_SEEN,
    FOREST_SINCE,
    FOREST_SLOW,
    FOREST_SPREAD,
    FOREST_STACK,
    FOREST_STEPS,
    FOREST_TASK,
    FOREST_TEXTS,
    FOREST_TREES,
    INDEX,
    PAYLOAD,
    PRESENT_AT,
    RECORD_AT,
    SCORES,
    SLOW,
    forest_cut,
    forest_places,
    forest_weights_at,
)
from streampair.kernels.forest_pairs import forest_pair, forest_step
from streampair.kernels.forest_scores import forest_evaluate, forest_stacked
from streampair.kernels.forest_trees import (
    forest_bucket,
    forest_empty,
    forest_gain,
    forest_grow,
    forest_moments,
)
from streampair.kernels.numerics import exp_negative, log_positive, sigmoid
from streampair.kernels.sparse import sort_places
from streampair.kernels.vectors import MAX_ABS

_EVERY = 1000  # records after which a tree is emptied
_WORST = 5.0
_MOVED = 4000.0  # records for which things are taken to move, once the slow expert has begun again
_BRISKLY = 0.15  # step size of the deepest expert meanwhile


@kernel
def _slope(squared: bool, score: float, label: float) -> float:
    """Derivative of the loss at a score; a label is 0 or 1, or standardised if squared."""
    return score - label if squared else sigmoid(score) - label


@kernel
def _loss(squared: bool, score: float, label: float) -> float:
    """Half the squared error, or the logistic loss; at most 5."""
    if squared:
        return min(0.5 * (score - label) * (score - label), _WORST)
    margin = score if label > 0.5 else -score
    loss = log_positive(1.0 + exp_negative(abs(margin))) + max(-margin, 0.0)
    return min(loss, _WORST)


@kernel
def _fit(s: Array, block: Array, label: float) -> None:
    """Step every expert of a block along its own loss, and the stack along that of all."""
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    trees, nodes, texts = int(s[FOREST_TREES]), int(s[FOREST_NODES]), int(s[FOREST_TEXTS])
    squared = s[FOREST_TASK] == 1.0
    at_texts, at_weights, _, _, at_scratch, end = forest_places(trees, nodes, cap, texts)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    z = s[FOREST_HEADER + (RECORD_AT + 2) * cap : FOREST_HEADER + (RECORD_AT + 2) * cap + d]
    bits = x.view(np.int64)
    leaves, room = s[at_scratch:end].view(np.int64), s[end - trees : end]
    slopes = (
        _slope(squared, block[SCORES], label),
        _slope(squared, block[SCORES + 1], label),
        _slope(squared, block[SCORES + 2], label),
        _slope(squared, block[SCORES + 3], label),
    )
    first = FOREST_HEADER + PRESENT_AT * cap
    present = s[first : first + cap].view(np.int64)
    for i in range(int(s[FOREST_COUNT])):
        j = present[i]
        if x[j] == x[j]:
            at = FOREST_HEADER + 3 * cap + EXPERTS * j
            for k in range(EXPERTS):
                h = slopes[k] * z[j]
                forest_step(block, at + k, at + EXPERTS * cap + k, h, FOREST_ETA[k], FOREST_GAMMA[k])
        elif texts > 0 and bits[j] & PAYLOAD:
            at = at_texts + 2 * EXPERTS * forest_bucket(j, bits[j] & PAYLOAD)
            for k in range(EXPERTS):
                forest_step(block, at + k, at + EXPERTS + k, slopes[k], FOREST_ETA[k], FOREST_GAMMA[k])
    share = 50.0 / trees
    moved = s[FOREST_BRISK] == 1.0 and block[FOREST_SINCE] < min(s[FOREST_RECORDS], _MOVED)
    for k in range(1, EXPERTS):
        gamma, h2 = FOREST_GAMMA[k], slopes[k] * slopes[k]
        h = (_BRISKLY if moved and k == EXPERTS - 1 else FOREST_ETA[k]) * share * slopes[k]
        for t in range(trees):
            at = at_weights + (leaves[4 * t + k - 1] & INDEX)
            total = gamma * block[at + 1] + h2
            block[at + 1] = total
            room[t] = total
        # Side by side, several are computed at once.
        for t in range(trees):
            room[t] = np.divide(h, math.sqrt(room[t] + 0.1))
        for t in range(trees):
            block[at_weights + (leaves[4 * t + k - 1] & INDEX)] -= room[t]
    q = _slope(squared, forest_stacked(block), label)
    for k in range(EXPERTS):
        r = q * block[SCORES + k]
        block[FOREST_STEPS + k] = 0.999 * block[FOREST_STEPS + k] + r * r
        step = (0.1 if moved else 0.03) * r / math.sqrt(block[FOREST_STEPS + k] + 1.0)
        block[FOREST_STACK + k] = max(0.0, block[FOREST_STACK + k] - step)


@kernel
def _judge(s: Array, block: Array, label: float) -> None:
    """Average the losses of the experts; the slow one begins again where it is left behind."""
    squared = s[FOREST_TASK] == 1.0
    for k in range(EXPERTS):
        block[FOREST_LOSSES + k] = 0.995 * block[FOREST_LOSSES + k] + 0.005 * _loss(
            squared, block[SCORES + k], label
        )
    block[FOREST_SEEN] = 0.995 * block[FOREST_SEEN] + 0.005
    block[FOREST_SLOW] = 0.995 * block[FOREST_SLOW] + 0.005
    block[FOREST_SINCE] += 1.0
    if block[FOREST_SINCE] < 200.0:
        return
    own = block[FOREST_LOSSES + SLOW] / block[FOREST_SLOW]
    least = own
    for k in range(EXPERTS):
        if k != SLOW:
            least = min(least, block[FOREST_LOSSES + k] / block[FOREST_SEEN])
    if own > least + 0.1 and own > block[FOREST_BEST] + 0.1:
        _begin_again(s, block)
    else:
        block[FOREST_BEST] = min(block[FOREST_BEST], own)


@kernel
def _begin_again(s: Array, block: Array) -> None:
    """Forget all that the slow expert has learned."""
    cap, trees, nodes = int(s[FOREST_CAP]), int(s[FOREST_TREES]), int(s[FOREST_NODES])
    texts = int(s[FOREST_TEXTS])
    at_texts, at_weights, _, _, _, _ = forest_places(trees, nodes, cap, texts)
    for j in range(cap):
        at = FOREST_HEADER + 3 * cap + EXPERTS * j + SLOW
        block[at] = 0.0
        block[at + EXPERTS * cap] = 0.0
    for i in range(texts):
        at = at_texts + 2 * EXPERTS * i + SLOW
        block[at] = 0.0
        block[at + EXPERTS] = 0.0
    first = at_weights + forest_weights_at(SLOW, trees, nodes)
    for i in range(first, first + 2 * trees * forest_cut(SLOW, nodes)):
        block[i] = 0.0
    block[FOREST_LOSSES + SLOW] = 0.0
    block[FOREST_SLOW] = 0.0
    block[FOREST_SINCE] = 0.0
    block[FOREST_BEST] = _WORST


@kernel
def forest_deviation(s: Array) -> float:
    """Of the labels so far."""
    return math.sqrt(s[FOREST_SPREAD] / s[FOREST_RECORDS]) if s[FOREST_RECORDS] > 0.0 else 0.0


@kernel
def _standardised(s: Array, label: float) -> float:
    """A label by the mean and the deviation of all labels, itself among them: they are no smaller than that.

    So it is at most the root of their number: a huge one makes no sums of squares that stop experts.
    """
    count = s[FOREST_RECORDS] + 1.0
    apart = label - s[FOREST_MEAN]
    s[FOREST_MEAN] += apart / count
    s[FOREST_SPREAD] += apart * (label - s[FOREST_MEAN])
    deviation = math.sqrt(s[FOREST_SPREAD] / count)
    return (label - s[FOREST_MEAN]) / deviation if deviation > 0.0 else 0.0


@kernel
def forest_fit(s: Array, block: Array, target: float) -> None:
    """Let a block learn the record whose leaves are at hand, and that it has scored."""
    _fit(s, block, target)
    _judge(s, block, target)


@kernel
def forest_visit(s: Array, others: Array) -> None:
    """Let the record into the moments and the trees, once all blocks have learned it."""
    forest_moments(s)
    forest_grow(s, others)
    s[FOREST_RECORDS] += 1.0
    s[FOREST_READY] = 0.0
    past = int(s[FOREST_RECORDS]) - 2 * int(s[FOREST_NODES])
    if past >= 0 and past % _EVERY == 0:
        forest_empty(s, others, past // _EVERY % int(s[FOREST_TREES]))


@kernel
def _take(s: Array, label: float) -> None:
    """Learn the record that is evaluated: a label above 0 is 1, any other 0, unless the loss is squared."""
    target = 1.0 if label > 0.0 else 0.0
    if s[FOREST_TASK] >= FOREST_PAIRS:
        if forest_pair(s, target):
            _judge(s, s, target)
    else:
        if s[FOREST_TASK] == 1.0:
            target = _standardised(s, label)
        forest_fit(s, s, target)
    if s[FOREST_GUIDED] == 1.0:
        forest_gain(s, target)
    forest_visit(s, s[:0].reshape(0, 0))


@kernel
def forest_scatter(s: Array, given: Array, count: int) -> None:
    """Put a record that is given as of `scatter` into the state; columns that it lacks are gaps."""
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    first = FOREST_HEADER + RECORD_AT * cap
    x = s[first : first + d]
    bits = x.view(np.int64)
    at = FOREST_HEADER + PRESENT_AT * cap
    present = s[at : at + cap].view(np.int64)
    places, values = given[:count].view(np.int64), given[count : 2 * count].view(np.int64)
    sort_places(places, values)
    known = int(s[FOREST_COUNT])
    if s[FOREST_FEW] == 1.0:
        same = known == count
        for j in range(count if same else 0):
            same = same and present[j] == places[j] and bits[places[j]] == values[j]
        if same:
            return
        for j in range(known):
            x[present[j]] = math.nan
    else:
        for j in range(d):
            x[j] = math.nan
    for j in range(count):
        present[j] = places[j]
        bits[places[j]] = values[j]
    s[FOREST_FEW], s[FOREST_COUNT], s[FOREST_READY] = 1.0, count, 0.0


@kernel
def forest_usable(s: Array, gaps: bool) -> bool:
    """Whether the record in the state has numbers that can be used, texts, and if it may, gaps."""
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    bits = x.view(np.int64)
    if not gaps:
        s[FOREST_FEW] = 0.0  # it was packed, over whatever was scattered
    if s[FOREST_FEW] == 1.0:
        at = FOREST_HEADER + PRESENT_AT * cap
        present = s[at : at + cap].view(np.int64)
        for i in range(int(s[FOREST_COUNT])):
            j = present[i]
            if not abs(x[j]) <= MAX_ABS and not (x[j] != x[j] and bits[j] & PAYLOAD):
                return False
        return True
    for j in range(d):
        if not abs(x[j]) <= MAX_ABS and not (x[j] != x[j] and (gaps or bits[j] & PAYLOAD)):
            return False
    return True


@kernel
def _told(s: Array, score: float) -> float:
    """What a score is to others: in the unit of the labels, if the loss is squared."""
    return s[FOREST_MEAN] + forest_deviation(s) * score if s[FOREST_TASK] == 1.0 else score


@kernel
def forest_score(s: Array, gaps: bool) -> float:
    """Score of the record in the state; NaN if it cannot be used. `gaps`: features may be missing."""
    return _told(s, forest_evaluate(s)) if forest_usable(s, gaps) else math.nan


@kernel
def forest_proba(s: Array, gaps: bool) -> float:
    """Logistic curve of the score of the record in the state, whose loss is logistic; NaN as of the score."""
    return sigmoid(forest_evaluate(s)) if forest_usable(s, gaps) else math.nan


@kernel
def forest_learn(s: Array, label: float, gaps: bool) -> int:
    """Learn the record in the state, its leaves at hand if it was scored last; 1 if it cannot be used."""
    if not forest_usable(s, gaps):
        return 1
    forest_evaluate(s)
    _take(s, label)
    return 0


@kernel
def forest_load(s: Array, row: Array) -> None:
    at = FOREST_HEADER + RECORD_AT * int(s[FOREST_CAP])
    bits, given = s[at : at + row.shape[0]].view(np.int64), row.view(np.int64)
    s[FOREST_FEW] = 0.0
    for j in range(row.shape[0]):
        bits[j] = given[j]


@kernel
def forest_score_many(s: Array, rows: Array, scores: Array) -> None:
    """Scores (n,) of usable rows (n, d)."""
    for i in range(rows.shape[0]):
        forest_load(s, rows[i])
        scores[i] = _told(s, forest_evaluate(s))


@kernel
def forest_learn_many(s: Array, rows: Array, labels: Array, scores: Array) -> None:
    """Learn usable rows (n, d) in order; `scores` gets the score of each before it, if it has any room."""
    for i in range(rows.shape[0]):
        forest_load(s, rows[i])
        score = forest_evaluate(s)
        if scores.shape[0] > 0:
            scores[i] = _told(s, score)
        _take(s, labels[i])


@kernel
def forest_begin(block: Array) -> None:
    """Stack and averages of a zeroed block."""
    for k in range(EXPERTS):
        block[FOREST_STACK + k] = 1.0 / EXPERTS
    block[FOREST_BEST] = _WORST


@kernel
def forest_fresh(s: Array) -> None:
    """Trees, stack and averages of a zeroed state whose first scalars are set."""
    for t in range(int(s[FOREST_TREES])):
        forest_empty(s, s[:0].reshape(0, 0), t)
    forest_begin(s)
