"""Random trees whose leaves are fitted online, by four experts that share them, and the stack of the experts.

Nothing about a tree is fitted to labels: a leaf draws a column, keeps one of its values, and parts later
values from it. Expert k sees each tree cut to its first nodes, so that one descent serves all.

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
    FOREST_CAP,
    FOREST_D,
    FOREST_HEADER,
    FOREST_LOSSES,
    FOREST_MEAN,
    FOREST_NODES,
    FOREST_READY,
    FOREST_RECORDS,
    FOREST_SEEN,
    FOREST_SINCE,
    FOREST_SLOW,
    FOREST_SPREAD,
    FOREST_SQUARED,
    FOREST_STACK,
    FOREST_STEPS,
    FOREST_TEXTS,
    FOREST_TREES,
    PAYLOAD,
    RECORD_AT,
    SCORES,
    SLOW,
    forest_cut,
    forest_places,
    forest_weights_at,
)
from streampair.kernels.forest_trees import (
    forest_bucket,
    forest_empty,
    forest_grow,
    forest_moments,
    forest_right,
)
from streampair.kernels.numerics import exp_negative, log_positive, sigmoid
from streampair.kernels.vectors import MAX_ABS

_ETA = (0.1, 0.2, 0.02, 0.1)
_GAMMA = (0.99, 0.95, 1.0, 1.0)
_EVERY = 1000  # records after which a tree is emptied
_CLIP = 4.0
_WORST = 5.0


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
def forest_descend(s: Array) -> bool:
    """Standardise the record in the state and find its leaves; False if those at hand are its own."""
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    trees, nodes = int(s[FOREST_TREES]), int(s[FOREST_NODES])
    _, _, _, at_nodes, at_scratch, end = forest_places(trees, nodes, cap, int(s[FOREST_TEXTS]))
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    last = s[FOREST_HEADER + (RECORD_AT + 1) * cap : FOREST_HEADER + (RECORD_AT + 1) * cap + d]
    z = s[FOREST_HEADER + (RECORD_AT + 2) * cap : FOREST_HEADER + (RECORD_AT + 2) * cap + d]
    bits, known = x.view(np.int64), last.view(np.int64)
    if s[FOREST_READY] == 1.0:
        same = True
        for j in range(d):
            same = same and bits[j] == known[j]
        if same:
            return False
    for j in range(d):
        known[j] = bits[j]
        value = x[j]
        z[j] = 0.0
        if value == value:
            spread = s[FOREST_HEADER + 2 * cap + j]
            if spread > 0.0:
                scaled = (value - s[FOREST_HEADER + cap + j]) / math.sqrt(spread / s[FOREST_HEADER + j])
                z[j] = min(max(scaled, -_CLIP), _CLIP)
    marks = s[at_nodes:at_scratch]
    links = marks.view(np.int32)
    leaves = s[at_scratch:end].view(np.int64)
    one, two, three = forest_cut(1, nodes), forest_cut(2, nodes), forest_cut(3, nodes)
    at_two, at_three = 2 * trees * one, 2 * trees * (one + two)
    # All trees a level down, then the next level: no step waits for the one before it.
    going = s[end - trees : end].view(np.int64)
    for t in range(trees):
        going[t] = t
        leaves[4 * t] = 0
        leaves[4 * t + 1] = 0
        leaves[4 * t + 3] = 0
    count = trees
    while count > 0:
        left = 0
        for i in range(count):
            t = going[i]
            at = t * nodes + leaves[4 * t + 3]
            child = links[4 * at + 3]
            if child > 0:
                node = child + forest_right(links[4 * at + 2], marks[2 * at], x, bits)
                leaves[4 * t + 3] = node
                if child < two:
                    leaves[4 * t + 1] = node
                    if child < one:
                        leaves[4 * t] = node
                going[left] = t
                left += 1
        count = left
    for t in range(trees):
        leaves[4 * t] = 2 * (t * one + leaves[4 * t])
        leaves[4 * t + 1] = at_two + 2 * (t * two + leaves[4 * t + 1])
        leaves[4 * t + 2] = at_three + 2 * (t * three + leaves[4 * t + 3])
    s[FOREST_READY] = 1.0
    return True


@kernel
def forest_add(s: Array, block: Array) -> None:
    """Scores that the experts of a block give the record whose leaves are at hand."""
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    trees, texts = int(s[FOREST_TREES]), int(s[FOREST_TEXTS])
    at_texts, at_weights, at_used, _, at_scratch, end = forest_places(trees, int(s[FOREST_NODES]), cap, texts)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    z = s[FOREST_HEADER + (RECORD_AT + 2) * cap : FOREST_HEADER + (RECORD_AT + 2) * cap + d]
    bits, leaves = x.view(np.int64), s[at_scratch:end].view(np.int64)
    weights = block[at_weights:at_used]
    s0 = 0.0
    s1 = 0.0
    s2 = 0.0
    s3 = 0.0
    for j in range(d):
        if x[j] == x[j]:
            at = FOREST_HEADER + 3 * cap + EXPERTS * j
            s0 += z[j] * block[at]
            s1 += z[j] * block[at + 1]
            s2 += z[j] * block[at + 2]
            s3 += z[j] * block[at + 3]
        elif texts > 0 and bits[j] & PAYLOAD:
            at = at_texts + 2 * EXPERTS * forest_bucket(j, bits[j] & PAYLOAD)
            s0 += block[at]
            s1 += block[at + 1]
            s2 += block[at + 2]
            s3 += block[at + 3]
    for t in range(trees):
        s1 += weights[leaves[4 * t]]
        s2 += weights[leaves[4 * t + 1]]
        s3 += weights[leaves[4 * t + 2]]
    block[SCORES] = s0
    block[SCORES + 1] = s1
    block[SCORES + 2] = s2
    block[SCORES + 3] = s3


@kernel
def forest_stacked(block: Array) -> float:
    """What the stack makes of the scores of a block."""
    score = 0.0
    for k in range(EXPERTS):
        score += block[FOREST_STACK + k] * block[SCORES + k]
    return score


@kernel
def forest_evaluate(s: Array) -> float:
    """Score of the record in the state, by the stack of all experts; its leaves are at hand then."""
    if forest_descend(s):
        forest_add(s, s)
    return forest_stacked(s)


@kernel
def _step(s: Array, weight: int, total: int, h: float, eta: float, gamma: float) -> None:
    """One step of a weight, against the derivative h, by the sum of squares that fades."""
    s[total] = gamma * s[total] + h * h
    s[weight] -= eta * h / math.sqrt(s[total] + 0.1)


@kernel
def _fit(s: Array, block: Array, label: float) -> None:
    """Step every expert of a block along its own loss, and the stack along that of all."""
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    trees, nodes, texts = int(s[FOREST_TREES]), int(s[FOREST_NODES]), int(s[FOREST_TEXTS])
    squared = s[FOREST_SQUARED] == 1.0
    at_texts, at_weights, _, _, at_scratch, end = forest_places(trees, nodes, cap, texts)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    z = s[FOREST_HEADER + (RECORD_AT + 2) * cap : FOREST_HEADER + (RECORD_AT + 2) * cap + d]
    bits = x.view(np.int64)
    leaves = s[at_scratch:end].view(np.int64)
    q = _slope(squared, forest_stacked(block), label)
    share = 50.0 / trees
    for k in range(EXPERTS):
        g = _slope(squared, block[SCORES + k], label)
        eta, gamma = _ETA[k], _GAMMA[k]
        for j in range(d):
            if x[j] == x[j]:
                at = FOREST_HEADER + 3 * cap + EXPERTS * j + k
                _step(block, at, at + EXPERTS * cap, g * z[j], eta, gamma)
            elif texts > 0 and bits[j] & PAYLOAD:
                at = at_texts + 2 * EXPERTS * forest_bucket(j, bits[j] & PAYLOAD) + k
                _step(block, at, at + EXPERTS, g, eta, gamma)
        if k > 0:
            h2 = g * g
            h = eta * share * g
            for t in range(trees):
                at = at_weights + leaves[4 * t + k - 1]
                total = gamma * block[at + 1] + h2
                block[at + 1] = total
                block[at] -= h / math.sqrt(total + 0.1)
        r = q * block[SCORES + k]
        block[FOREST_STEPS + k] = 0.999 * block[FOREST_STEPS + k] + r * r
        step = 0.03 * r / math.sqrt(block[FOREST_STEPS + k] + 1.0)
        block[FOREST_STACK + k] = max(0.0, block[FOREST_STACK + k] - step)


@kernel
def _judge(s: Array, block: Array, label: float) -> None:
    """Average the losses of the experts; the slow one begins again where it is left behind."""
    squared = s[FOREST_SQUARED] == 1.0
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
    if s[FOREST_SQUARED] == 1.0:
        target = _standardised(s, label)
    forest_fit(s, s, target)
    forest_visit(s, s[:0].reshape(0, 0))


@kernel
def forest_usable(s: Array, gaps: bool) -> bool:
    """Whether the record in the state has numbers that can be used, texts, and if it may, gaps."""
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    bits = x.view(np.int64)
    for j in range(d):
        if not abs(x[j]) <= MAX_ABS and not (x[j] != x[j] and (gaps or bits[j] & PAYLOAD)):
            return False
    return True


@kernel
def _told(s: Array, score: float) -> float:
    """What a score is to others: in the unit of the labels, if the loss is squared."""
    return s[FOREST_MEAN] + forest_deviation(s) * score if s[FOREST_SQUARED] == 1.0 else score


@kernel
def forest_score(s: Array, gaps: bool) -> float:
    """Score of the record in the state; NaN if it cannot be used. `gaps`: features may be missing."""
    return _told(s, forest_evaluate(s)) if forest_usable(s, gaps) else math.nan


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
