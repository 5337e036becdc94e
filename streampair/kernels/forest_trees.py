"""The trees of a forest: which way a record goes, and how they grow.

If labels have a say, then in which columns are drawn more often: never in where a value is parted.
"""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.forest_layout import (
    DECIDED_AT,
    EXPERTS,
    FOREST_BASE,
    FOREST_BUCKETS,
    FOREST_CAP,
    FOREST_COUNT,
    FOREST_D,
    FOREST_DECIDED,
    FOREST_DRAWS,
    FOREST_GUIDED,
    FOREST_HEADER,
    FOREST_NODES,
    FOREST_PAIRS,
    FOREST_RECORDS,
    FOREST_SEED,
    FOREST_TASK,
    FOREST_TEXTS,
    FOREST_TREES,
    GAINS_AT,
    INDEX,
    PAYLOAD,
    PRESENT_AT,
    RECORD_AT,
    Bits,
    Links,
    forest_cut,
    forest_places,
    forest_weights_at,
)
from streampair.kernels.numerics import uniform

_VISITS = 20
_SALTS = 8
_KEPT = 0.999  # of the gains, from one record to the next
_SHARE = 0.01  # of a target in the running mean


@kernel
def _bit(hashed: int, salt: int) -> bool:
    """A public coin for a text, under a salt."""
    return uniform(hashed, salt, 7) < 0.5


@kernel
def _hash(bits: int, value: float) -> int:
    """The hash that a text carries; 0 for a number and for nothing."""
    return bits & PAYLOAD if value != value else 0


@kernel
def forest_bucket(column: int, hashed: int) -> int:
    """The place of the weights of a text in a column."""
    return int(uniform(hashed, column, 11) * FOREST_BUCKETS)


@kernel
def forest_right(column: int, mark: float, x: Array, bits: Bits) -> int:
    """Which child a record goes to: a number beyond the mark and a text to the right, nothing to the left.

    A node that parts texts (its column is inverted) tosses their coin under the salt that is its mark.
    """
    if column >= 0:
        value = x[column]
        if value != value:
            return 1 if bits[column] & PAYLOAD else 0
        return int(value > mark)
    return 1 if _bit(_hash(bits[~column], x[~column]), int(mark)) else 0


@kernel
def forest_draw(s: Array) -> float:
    u = uniform(int(s[FOREST_SEED]), int(s[FOREST_DRAWS]), 0)
    s[FOREST_DRAWS] += 1.0
    return u


@kernel
def forest_moments(s: Array) -> None:
    """Let the numbers of the record into the means and variances of their columns."""
    cap = int(s[FOREST_CAP])
    at = FOREST_HEADER + PRESENT_AT * cap
    present = s[at : at + cap].view(np.int64)
    pairs = s[FOREST_TASK] >= FOREST_PAIRS  # then the list is of the partner
    for i in range(int(s[FOREST_D] if pairs else s[FOREST_COUNT])):
        j = i if pairs else present[i]
        value = s[FOREST_HEADER + RECORD_AT * cap + j]
        if value == value:
            s[FOREST_HEADER + j] += 1.0
            apart = value - s[FOREST_HEADER + cap + j]
            s[FOREST_HEADER + cap + j] += apart / s[FOREST_HEADER + j]
            s[FOREST_HEADER + 2 * cap + j] += apart * (value - s[FOREST_HEADER + cap + j])


@kernel
def _decided(s: Array) -> Bits:
    """The columns that have decided anything, ascending: all others have gained nothing."""
    cap = int(s[FOREST_CAP])
    first = FOREST_HEADER + DECIDED_AT * cap
    columns = s[first : first + cap].view(np.int64)
    if s[FOREST_DECIDED] == 0.0:
        count = 0
        gains = FOREST_HEADER + GAINS_AT * cap
        for j in range(int(s[FOREST_D])):
            if s[gains + j] != 0.0 or s[gains + cap + j] != 0.0:
                columns[count] = j
                count += 1
        s[FOREST_DECIDED] = 1.0 + count
    return columns[: int(s[FOREST_DECIDED]) - 1]


@kernel
def _decides(s: Array, column: int) -> None:
    """Let a column into the list of those that have decided anything."""
    known = _decided(s)
    low, high = 0, known.shape[0]
    while low < high:
        middle = (low + high) // 2
        if known[middle] < column:
            low = middle + 1
        else:
            high = middle
    if low < known.shape[0] and known[low] == column:
        return
    s[FOREST_DECIDED] += 1.0
    longer = _decided(s)
    for i in range(longer.shape[0] - 1, low, -1):
        longer[i] = longer[i - 1]
    longer[low] = column


@kernel
def _worths(s: Array) -> float:
    """What a decision by each column has gained in the mean, with one that gained nothing; their sum.

    A column whose decisions have lost is worth 0.
    """
    cap = int(s[FOREST_CAP])
    at = FOREST_HEADER + GAINS_AT * cap
    total = 0.0
    for column in _decided(s):
        j = at + column
        worth = s[j] / (1.0 + s[j + cap]) if s[j] > 0.0 else 0.0
        s[j + 2 * cap] = worth
        total += worth
    return total


@kernel
def _column(s: Array, u: float, total: float) -> int:
    """The column of a random number: any, or in a guided forest for one half of them by worth."""
    d = int(s[FOREST_D])
    if s[FOREST_GUIDED] == 0.0:
        return int(u * d)
    if u < 0.5:
        return int(2.0 * u * d)
    u = 2.0 * u - 1.0
    if total == 0.0:
        return int(u * d)
    left, last = u * total, 0
    at = FOREST_HEADER + (GAINS_AT + 2) * int(s[FOREST_CAP])
    for j in _decided(s):
        worth = s[at + j]
        if worth > 0.0:
            left -= worth
            last = j
            if left < 0.0:
                break
    return last


@kernel
def _drawn(s: Array, total: float) -> tuple[int, float]:
    """A column, and the sum of the worths, computed for the first of a record that asks."""
    u = forest_draw(s)
    if total < 0.0 and u >= 0.5 and s[FOREST_GUIDED] == 1.0:
        total = _worths(s)
    return _column(s, u, total), total


@kernel
def forest_gain(s: Array, target: float) -> None:
    """Let the decisions that one tree makes about the record into the gains of their columns.

    A decision gains what the difference between the weights on both sides, by the deepest expert, has in
    common with the target: of a column that tells nothing, nothing in the mean. The trees take turns.
    """
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    trees, nodes, texts = int(s[FOREST_TREES]), int(s[FOREST_NODES]), int(s[FOREST_TEXTS])
    _, at_weights, _, at_nodes, at_scratch, _ = forest_places(trees, nodes, cap, texts)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    bits = x.view(np.int64)
    marks = s[at_nodes:at_scratch]
    links = marks.view(np.int32)
    gains = FOREST_HEADER + GAINS_AT * cap
    for j in _decided(s):
        s[gains + j] *= _KEPT
        s[gains + cap + j] *= _KEPT
    apart = target - s[FOREST_BASE]
    s[FOREST_BASE] += _SHARE * apart
    first = int(s[FOREST_RECORDS]) % trees * nodes
    at = at_weights + forest_weights_at(EXPERTS - 1, trees, nodes) + 2 * first
    node = 0
    while True:
        child = links[4 * (first + node) + 3]
        if child <= 0:
            break
        column = links[4 * (first + node) + 2]
        right = forest_right(column, marks[2 * (first + node)], x, bits)
        if column < 0:
            column = ~column
        node = child + right
        s[gains + column] += (s[at + 2 * node] - s[at + 2 * (child + 1 - right)]) * apart
        s[gains + cap + column] += 1.0
        if s[gains + cap + column] == 1.0:  # any other is in the list
            _decides(s, column)


@kernel
def forest_grow(s: Array, others: Array) -> None:
    """Let the record visit its leaves: each draws a column, keeps one of its values, and at last splits.

    `others` (classes, cells) are the blocks of further classes.
    """
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    trees, nodes, texts = int(s[FOREST_TREES]), int(s[FOREST_NODES]), int(s[FOREST_TEXTS])
    _, at_weights, at_used, at_nodes, at_scratch, end = forest_places(trees, nodes, cap, texts)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    bits = x.view(np.int64)
    marks = s[at_nodes:at_scratch]
    mark_bits, links = marks.view(np.int64), marks.view(np.int32)
    leaves = s[at_scratch:end].view(np.int64)
    cells, spare = s.view(np.int64), end - 1  # the last cell of the scratch
    seed, draws = int(s[FOREST_SEED]), int(s[FOREST_DRAWS])
    total = -1.0  # of the worths: none are known yet
    for t in range(trees):
        used = int(s[at_used + t])
        if used + 2 > nodes:
            continue
        node = (t * nodes + leaves[4 * t + 3]) & INDEX
        visits = 1 - links[4 * node + 3]
        column = links[4 * node + 2] & INDEX
        if 1 < visits < _VISITS:
            # Nearly all visits: the value is kept or not without a branch, which nobody could predict.
            links[4 * node + 3] = -visits
            at = at_nodes + 2 * node if uniform(seed, draws, 0) * visits < 1.0 else spare
            cells[at & INDEX] = bits[column]
            draws += 1
            continue
        s[FOREST_DRAWS] = draws
        if visits <= _VISITS:
            links[4 * node + 3] = -visits
        if visits == 1 or not _part(s, marks, mark_bits, links, node, x, bits):
            column, total = _drawn(s, total)
            links[4 * node + 2] = column
            mark_bits[2 * node] = bits[column]
        else:
            links[4 * node + 3] = used
            s[at_used + t] = used + 2.0
            _inherit(s, at_weights, trees, nodes, t, leaves[4 * t + 3], used)
            for i in range(others.shape[0]):
                _inherit(others[i], at_weights, trees, nodes, t, leaves[4 * t + 3], used)
        draws = int(s[FOREST_DRAWS])
    s[FOREST_DRAWS] = draws


@kernel
def _part(s: Array, marks: Array, mark_bits: Bits, links: Links, node: int, x: Array, bits: Bits) -> bool:
    """Make a leaf a node that parts the value that it keeps from that of the record; False if it cannot."""
    column = links[4 * node + 2]
    kept, value = marks[2 * node], x[column]
    if mark_bits[2 * node] == bits[column] or kept == value:
        return False
    one, two = _hash(mark_bits[2 * node], kept), _hash(bits[column], value)
    if one != 0 or two != 0:
        for _ in range(_SALTS):
            salt = math.floor(forest_draw(s) * 1048576.0)
            if _bit(one, int(salt)) != _bit(two, int(salt)):
                marks[2 * node] = salt
                links[4 * node + 2] = ~column
                return True
        return False
    if kept != kept or value != value:
        if kept != kept and value != value:
            return False
        marks[2 * node] = -math.inf  # nothing to the left, any number to the right
        return True
    low, high = min(kept, value), max(kept, value)
    mark = low + forest_draw(s) * (high - low)
    marks[2 * node] = mark if mark < high else low
    return True


@kernel
def _inherit(block: Array, at_weights: int, trees: int, nodes: int, tree: int, node: int, child: int) -> None:
    """Both children begin with the weights of the parent, and half of what set its steps."""
    at = at_weights
    for k in range(1, EXPERTS):
        cut = forest_cut(k, nodes)
        if child + 1 < cut:
            parent = at + 2 * (tree * cut + node)
            for i in range(2):
                own = at + 2 * (tree * cut + child + i)
                block[own] = block[parent]
                block[own + 1] = 0.5 * block[parent + 1]
        at += 2 * trees * cut


@kernel
def _forget(block: Array, at_weights: int, trees: int, nodes: int, tree: int) -> None:
    """What the leaves of a tree have learned becomes 0."""
    at = at_weights
    for k in range(1, EXPERTS):
        cut = forest_cut(k, nodes)
        for i in range(at + 2 * tree * cut, at + 2 * (tree + 1) * cut):
            block[i] = 0.0
        at += 2 * trees * cut


@kernel
def forest_empty(s: Array, others: Array, tree: int) -> None:
    """A tree becomes a root that knows nothing, of no class."""
    cap, trees, nodes = int(s[FOREST_CAP]), int(s[FOREST_TREES]), int(s[FOREST_NODES])
    _, at_weights, at_used, at_nodes, _, _ = forest_places(trees, nodes, cap, int(s[FOREST_TEXTS]))
    s[at_used + tree] = 1.0
    for i in range(at_nodes + 2 * tree * nodes, at_nodes + 2 * (tree + 1) * nodes):
        s[i] = 0.0
    _forget(s, at_weights, trees, nodes, tree)
    for i in range(others.shape[0]):
        _forget(others[i], at_weights, trees, nodes, tree)
