"""An online forest that ranks: its flat state, trees, scores, pairs, parts of a score, several classes."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.boosted_trees import (
    BOOSTED_BUILT,
    BOOSTED_TREES,
    INNER,
    LEAVES,
    boosted_average,
    boosted_due,
    boosted_explain,
    boosted_hand,
    boosted_importances,
    boosted_judge,
    boosted_keep,
    boosted_rebuild,
    boosted_save,
    boosted_score,
    boosted_step,
    boosted_target,
    ring_append,
    ring_bin_due,
    ring_codes,
    ring_due,
    ring_has_newest,
    ring_slope,
)
from streampair.kernels.losses import loss_slope
from streampair.kernels.numerics import exp_negative, log_positive, sigmoid, uniform
from streampair.kernels.platt import link_learn
from streampair.kernels.sparse import sort_places
from streampair.kernels.vectors import MAX_ABS, viewed_as

Bits: TypeAlias = NDArray[np.int64]
Links: TypeAlias = NDArray[np.int32]

# Scalars.
FOREST_D = 0
FOREST_CAP = 1
FOREST_TREES = 2
FOREST_NODES = 3
FOREST_SEED = 4
FOREST_TEXTS = 5  # places for weights of texts: 0 until there is one
FOREST_TASK = 6  # 0: logistic loss of records; 1: squared loss on real labels; FOREST_PAIRS + code: of pairs
FOREST_RECORDS = 7
FOREST_DRAWS = 8  # random numbers drawn
FOREST_READY = 9  # the scratch has the leaves and scores of the record in `last`; 2: of the one that has FEW
FOREST_SINCE = 10  # records since the slow expert began
FOREST_BEST = 11  # the best average loss that it has had since
FOREST_SLOW = 12  # its own sum of weights, as it may begin again
FOREST_SEEN = 13  # the sum of weights of the average losses
FOREST_MEAN = 14  # of the labels, if the loss is squared
FOREST_SPREAD = 15  # their sum of squared distances from it
FOREST_STACK = 16  # weights of the scores in the stack
FOREST_STEPS = 21  # sums that set their steps
FOREST_LOSSES = 26  # average losses of the scores, not yet divided by the sum of weights
SCORES = 31  # scratch: scores of the experts, and of the boosted trees
FOREST_GUIDED = 36  # 1: half of the columns are drawn by what decisions by them have gained
FOREST_BASE = 37  # running mean of the targets
FOREST_BRISK = 38  # 1: stack and deepest expert take larger steps where things move
FOREST_FEW = 39  # 1: the record was scattered, and its places are the `COUNT` ones of the list
FOREST_COUNT = 40  # columns that the record has, once its leaves were found
FOREST_DECIDED = 41  # 1 + columns that have decided anything; 0: they are to be counted
FOREST_RING = 42  # where the ring of records begins (kernels/boosted_trees.py)
FOREST_BOOSTED = 43  # where the boosted trees of a block begin
FOREST_HEADER = 44

FOREST_PAIRS = 2

# What a kernel returns that learns a record.
UNUSABLE = 1
DUE = 2  # `forest_rebuild` is to be called before the next one

EXPERTS = 4  # that share the random trees
BOOSTED = 4  # place of the boosted trees, the last expert, among the scores
STACKED = 5
FOREST_BUCKETS = 4096
# Cells of a column: count, mean, M2, 4 weights, 4 sums; record, last, standardised; gains, decisions, worth;
# and two lists of columns: those that the record has, those that have decided anything.
FOREST_COLUMN = 19
RECORD_AT = 11
GAINS_AT = 14
PRESENT_AT = 17
DECIDED_AT = 18
FOREST_KEPT = 32  # last records of each class that further ones are paired with
FOREST_LINK = 32  # cells of the link from score to probability: as many as the scalars of other learners
SLOW = 2  # the expert that never forgets: it is reset instead

FOREST_ETA = (0.1, 0.2, 0.02, 0.1)  # step sizes of the experts
FOREST_GAMMA = (0.99, 0.95, 1.0, 1.0)  # what is left of their sums of squares from one record to the next

_CUT = (0, 31, 127, 1 << 30)
PAYLOAD = (1 << 51) - 1
# Masks that change no place, and no tree nor node: they tell the compiler that none is negative, which would
# be counted from the end.
INDEX = 0x7FFFFFFF
SHORT = 0xFFFF


@kernel
def forest_cut(expert: int, nodes: int) -> int:
    """Number of nodes of a tree that an expert sees."""
    return min(_CUT[expert], nodes)


@kernel
def forest_weights_at(expert: int, trees: int, nodes: int) -> int:
    """Offset of the node weights of an expert among those of all."""
    at = 0
    for k in range(1, expert):
        at += 2 * trees * forest_cut(k, nodes)
    return at


@kernel
def forest_places(trees: int, nodes: int, cap: int, texts: int) -> tuple[int, int, int, int, int, int]:
    """Layout of a state: places of texts, nodes, node weights of each cut expert and scratch; its length.

    What labels have a say in stands before the trees: a block, which each of several classes has, is as long.

    Returns
    -------
    tuple
        (texts, weights of the nodes, used nodes of each tree, nodes, scratch, length).
    """
    at_texts = FOREST_HEADER + FOREST_COLUMN * cap
    at_weights = at_texts + 2 * EXPERTS * texts
    at_used = at_weights + forest_weights_at(EXPERTS, trees, nodes)
    at_nodes = at_used + trees
    at_scratch = at_nodes + 2 * trees * nodes
    return at_texts, at_weights, at_used, at_nodes, at_scratch, at_scratch + (EXPERTS + 1) * trees


@kernel
def forest_pair_places(trees: int, cap: int) -> tuple[int, int, int, int, int]:
    """Layout of what a forest that learns from pairs needs, behind all else.

    Returns
    -------
    tuple
        (how many records of each class came, the record at hand with its standardised values, its leaves and
        scores, the records that are kept, length); the link is at 0.
    """
    at_current = FOREST_LINK + 2
    at_leaves = at_current + 2 * cap
    at_kept = at_leaves + EXPERTS * trees + STACKED
    return FOREST_LINK, at_current, at_leaves, at_kept, at_kept + 2 * FOREST_KEPT * cap


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
    """Child that a record goes to: a number beyond the mark and a text to the right, nothing to the left.

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
    present = viewed_as(s[at : at + cap], np.int64)
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
    columns = viewed_as(s[first : first + cap], np.int64)
    if s[FOREST_DECIDED] == 0.0:
        count = 0
        gains = FOREST_HEADER + GAINS_AT * cap
        for j in range(int(s[FOREST_D])):
            if s[gains + j] != 0.0 or s[gains + cap + j] != 0.0:
                columns[count] = j
                count += 1
        s[FOREST_DECIDED] = 1.0 + count
    return columns[: int(s[FOREST_DECIDED]) - 1]  # type: ignore[no-any-return]


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
    """Mean gain of splits by each column, with one that gained nothing; their sum.

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
    common with the target: for an uninformative column, 0 in the mean. The trees take turns.
    """
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    trees, nodes, texts = int(s[FOREST_TREES]), int(s[FOREST_NODES]), int(s[FOREST_TEXTS])
    _, at_weights, _, at_nodes, at_scratch, _ = forest_places(trees, nodes, cap, texts)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    bits = viewed_as(x, np.int64)
    marks = s[at_nodes:at_scratch]
    links = viewed_as(marks, np.int32)
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
    bits = viewed_as(x, np.int64)
    marks = s[at_nodes:at_scratch]
    mark_bits, links = viewed_as(marks, np.int64), viewed_as(marks, np.int32)
    leaves = viewed_as(s[at_scratch:end], np.int64)
    cells, spare = viewed_as(s, np.int64), end - 1  # the last cell of the scratch
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
                leaf = at + 2 * (tree * cut + child + i)
                block[leaf] = block[parent]
                block[leaf + 1] = 0.5 * block[parent + 1]
        at += 2 * trees * cut


@kernel
def _forget(block: Array, at_weights: int, trees: int, nodes: int, tree: int) -> None:
    """Reset the leaf weights of a tree to 0."""
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


_CLIP = 4.0
_UNVARIED = 5  # values of a column, all equal: then a value stands for its presence, if other records lack it


@kernel
def _deeper(
    x: Array,
    bits: Bits,
    plain: bool,
    marks: Array,
    links: Links,
    leaves: Bits,
    going: Bits,
    nodes: int,
    cut: int,
) -> None:
    """Let a record go on in each tree from where it is, to the last node below `cut`.

    All trees a level down, then the next level: no step waits for the one before it. Which way it goes, and
    whether at all, is chosen and not branched on, for nobody could predict it: a leaf takes a step as well,
    and stays. So a cut tree is a pass of its own.
    """
    count = going.shape[0]
    for t in range(count):
        going[t] = t
    while count > 0:
        left = 0
        for i in range(count):
            t = going[i] & SHORT
            node = leaves[4 * t + 3] & SHORT
            at = t * (nodes & SHORT) + node
            child, column = links[4 * at + 3], links[4 * at + 2]
            if plain and column >= 0:
                right = int(x[column] > marks[2 * at])
            else:
                right = forest_right(column, marks[2 * at], x, bits)
            goes = (child > 0) & (child < cut)
            leaves[4 * t + 3] = child + right if goes else node
            going[left] = t
            left += int(goes)
        count = left


@kernel
def _list_present(s: Array, bits: Bits, known: Bits, present: Bits) -> None:
    """Keep a record that was packed as the last one, and list its columns."""
    count = 0
    for j in range(bits.shape[0]):
        known[j] = bits[j]
        present[count] = j
        x = s[FOREST_HEADER + RECORD_AT * int(s[FOREST_CAP]) + j]
        count += 1 if x == x or bits[j] & PAYLOAD else 0
    s[FOREST_COUNT] = count


@kernel
def forest_descend(s: Array) -> bool:
    """Standardise the record in the state and find its leaves; False if those at hand are its own."""
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    trees, nodes = int(s[FOREST_TREES]), int(s[FOREST_NODES])
    _, _, _, at_nodes, at_scratch, end = forest_places(trees, nodes, cap, int(s[FOREST_TEXTS]))
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    last = s[FOREST_HEADER + (RECORD_AT + 1) * cap : FOREST_HEADER + (RECORD_AT + 1) * cap + d]
    z = s[FOREST_HEADER + (RECORD_AT + 2) * cap : FOREST_HEADER + (RECORD_AT + 2) * cap + d]
    bits, known = viewed_as(x, np.int64), viewed_as(last, np.int64)
    at = FOREST_HEADER + PRESENT_AT * cap
    present = viewed_as(s[at : at + cap], np.int64)
    few = s[FOREST_FEW] == 1.0
    if few:
        if s[FOREST_READY] == 2.0:
            return False
    else:
        if s[FOREST_READY] == 1.0:
            same = True
            for j in range(d):
                same = same and bits[j] == known[j]
            if same:
                return False
        for j in range(d):
            z[j] = 0.0
        _list_present(s, bits, known, present)
    count = int(s[FOREST_COUNT])
    plain = count == d  # a number in each column
    for i in range(count):
        j = present[i]
        value = x[j]
        z[j] = 0.0
        if value == value:
            spread = s[FOREST_HEADER + 2 * cap + j]
            if spread > 0.0:
                scaled = (value - s[FOREST_HEADER + cap + j]) / math.sqrt(spread / s[FOREST_HEADER + j])
                z[j] = min(max(scaled, -_CLIP), _CLIP)
            elif _UNVARIED <= s[FOREST_HEADER + j] < s[FOREST_RECORDS]:
                z[j] = 1.0  # it says no more than that it is there, as a word of a text does
        else:
            plain = False
    marks = s[at_nodes:at_scratch]
    links = viewed_as(marks, np.int32)
    leaves = viewed_as(s[at_scratch:end], np.int64)
    going = viewed_as(s[end - trees : end], np.int64)
    for t in range(trees):
        leaves[4 * t + 3] = 0
    at = 0
    for k in range(1, EXPERTS):
        cut = forest_cut(k, nodes)
        if d > 0:
            _deeper(x, bits, plain, marks, links, leaves, going, nodes, cut)
        for t in range(trees):
            leaves[4 * t + k - 1] = at + 2 * (t * cut + leaves[4 * t + 3])
        at += 2 * trees * cut
    ring_codes(forest_ring(s), x, present[:count])
    s[FOREST_READY] = 2.0 if few else 1.0
    return True


@kernel
def forest_add(s: Array, block: Array) -> None:
    """Scores that the experts of a block give the record whose leaves are at hand."""
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    trees, texts = int(s[FOREST_TREES]), int(s[FOREST_TEXTS])
    at_texts, at_weights, at_used, _, at_scratch, end = forest_places(trees, int(s[FOREST_NODES]), cap, texts)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    z = s[FOREST_HEADER + (RECORD_AT + 2) * cap : FOREST_HEADER + (RECORD_AT + 2) * cap + d]
    bits, leaves = viewed_as(x, np.int64), viewed_as(s[at_scratch:end], np.int64)
    weights = block[at_weights:at_used]
    s0 = 0.0
    s1 = 0.0
    s2 = 0.0
    s3 = 0.0
    first = FOREST_HEADER + PRESENT_AT * cap
    present = viewed_as(s[first : first + cap], np.int64)
    for i in range(int(s[FOREST_COUNT])):
        j = present[i]
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
        s1 += weights[leaves[4 * t] & INDEX]
        s2 += weights[leaves[4 * t + 1] & INDEX]
        s3 += weights[leaves[4 * t + 2] & INDEX]
    block[SCORES] = s0
    block[SCORES + 1] = s1
    block[SCORES + 2] = s2
    block[SCORES + 3] = s3
    block[SCORES + BOOSTED] = boosted_score(forest_ring(s), forest_boosted(block), x)


@kernel
def forest_stacked(block: Array) -> float:
    """Stacked scores of a block."""
    score = 0.0
    for k in range(STACKED):
        score += block[FOREST_STACK + k] * block[SCORES + k]
    return score


@kernel
def forest_evaluate(s: Array) -> float:
    """Score of the record in the state, by the stack of all experts; its leaves are at hand then."""
    if forest_descend(s):
        forest_add(s, s)
    return forest_stacked(s)


@kernel
def forest_step(s: Array, weight: int, total: int, h: float, eta: float, gamma: float) -> None:
    """AdaGrad step of a weight against the derivative h, with a decaying sum of squares."""
    s[total] = gamma * s[total] + h * h
    s[weight] -= np.divide(eta * h, math.sqrt(s[total] + 0.1))  # `/` would look for a 0


@kernel
def forest_pair(s: Array, target: float) -> bool:
    """Learn the record that is evaluated, of class 1 or 0, beside one of the other class; False if none came.

    Then the scores at hand are the differences of those of the two records.
    """
    d, cap, trees = int(s[FOREST_D]), int(s[FOREST_CAP]), int(s[FOREST_TREES])
    _, _, _, _, at_scratch, end = forest_places(trees, int(s[FOREST_NODES]), cap, int(s[FOREST_TEXTS]))
    tail = s[end:]
    came, at_current, at_leaves, at_kept, _ = forest_pair_places(trees, cap)
    bits = viewed_as(s[FOREST_HEADER + RECORD_AT * cap :], np.int64)
    z = s[FOREST_HEADER + (RECORD_AT + 2) * cap :]
    leaves = viewed_as(s[at_scratch:end], np.int64)
    current, current_leaves = (
        viewed_as(tail[at_current:at_leaves], np.int64),
        viewed_as(tail[at_leaves:at_kept], np.int64),
    )
    kept = viewed_as(tail[at_kept:], np.int64)
    link_learn(tail, forest_stacked(s), 2.0 * target - 1.0)
    mine = 1 if target > 0.5 else 0
    known = int(tail[came + 1 - mine])
    if known > 0:
        for j in range(d):
            current[j] = bits[j]
            tail[at_current + cap + j] = z[j]
        for i in range(EXPERTS * trees):
            current_leaves[i] = leaves[i]
        for k in range(STACKED):
            tail[at_kept - STACKED + k] = s[SCORES + k]
        slot = (1 - mine) * FOREST_KEPT + int(forest_draw(s) * min(known, FOREST_KEPT))
        for j in range(d):
            bits[j] = kept[slot * cap + j]
        s[FOREST_READY] = 0.0
        forest_descend(s)
        forest_add(s, s)
        _fit_pair(s, 1.0 if mine == 1 else -1.0)
        # The trees are to be visited by the record itself, not by its partner.
        for j in range(d):
            bits[j] = current[j]
        for i in range(EXPERTS * trees):
            leaves[i] = current_leaves[i]
    slot = mine * FOREST_KEPT + int(tail[came + mine]) % FOREST_KEPT
    for j in range(d):
        kept[slot * cap + j] = bits[j]
    tail[came + mine] += 1.0
    return known > 0


@kernel
def _fit_pair(s: Array, sign: float) -> None:
    """Step experts and stack along the loss of the record that was put aside and its partner, at hand."""
    d, cap, trees = int(s[FOREST_D]), int(s[FOREST_CAP]), int(s[FOREST_TREES])
    texts = int(s[FOREST_TEXTS])
    at_texts, at_weights, _, _, at_scratch, end = forest_places(trees, int(s[FOREST_NODES]), cap, texts)
    tail = s[end:]
    _, at_current, at_leaves, at_kept, _ = forest_pair_places(trees, cap)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    z = s[FOREST_HEADER + (RECORD_AT + 2) * cap : FOREST_HEADER + (RECORD_AT + 2) * cap + d]
    current, current_z = tail[at_current : at_current + d], tail[at_current + cap : at_current + cap + d]
    bits, current_bits = viewed_as(x, np.int64), viewed_as(current, np.int64)
    leaves, current_leaves = (
        viewed_as(s[at_scratch:end], np.int64),
        viewed_as(tail[at_leaves:at_kept], np.int64),
    )
    code = int(s[FOREST_TASK]) - FOREST_PAIRS
    apart = 0.0
    for k in range(STACKED):
        s[SCORES + k] = tail[at_kept - STACKED + k] - s[SCORES + k]
        apart += s[FOREST_STACK + k] * s[SCORES + k]
    q = sign * loss_slope(code, sign * apart)
    share = 50.0 / trees
    for k in range(EXPERTS):
        g = sign * loss_slope(code, sign * s[SCORES + k])
        eta, gamma = FOREST_ETA[k], FOREST_GAMMA[k]
        for j in range(d):
            if x[j] == x[j] or current[j] == current[j]:
                at = FOREST_HEADER + 3 * cap + EXPERTS * j + k
                forest_step(s, at, at + EXPERTS * cap, g * (current_z[j] - z[j]), eta, gamma)
            one, two = current_bits[j] & PAYLOAD, bits[j] & PAYLOAD
            if texts == 0 or current_bits[j] == bits[j]:
                continue
            if current[j] != current[j] and one != 0:
                at = at_texts + 2 * EXPERTS * forest_bucket(j, one) + k
                forest_step(s, at, at + EXPERTS, g, eta, gamma)
            if x[j] != x[j] and two != 0:
                at = at_texts + 2 * EXPERTS * forest_bucket(j, two) + k
                forest_step(s, at, at + EXPERTS, -g, eta, gamma)
        if k > 0:
            h2 = g * g
            h = eta * share * g
            for t in range(trees):
                one, two = current_leaves[4 * t + k - 1], leaves[4 * t + k - 1]
                if one != two:
                    total = gamma * s[at_weights + one + 1] + h2
                    s[at_weights + one + 1] = total
                    s[at_weights + one] -= h / math.sqrt(total + 0.1)
                    total = gamma * s[at_weights + two + 1] + h2
                    s[at_weights + two + 1] = total
                    s[at_weights + two] += h / math.sqrt(total + 0.1)
    for k in range(STACKED):
        r = q * s[SCORES + k]
        s[FOREST_STEPS + k] = 0.999 * s[FOREST_STEPS + k] + r * r
        step = 0.03 * r / math.sqrt(s[FOREST_STEPS + k] + 1.0)
        s[FOREST_STACK + k] = max(0.0, s[FOREST_STACK + k] - step)


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
    bits = viewed_as(x, np.int64)
    leaves, room = viewed_as(s[at_scratch:end], np.int64), s[end - trees : end]
    slopes = (
        _slope(squared, block[SCORES], label),
        _slope(squared, block[SCORES + 1], label),
        _slope(squared, block[SCORES + 2], label),
        _slope(squared, block[SCORES + 3], label),
    )
    first = FOREST_HEADER + PRESENT_AT * cap
    present = viewed_as(s[first : first + cap], np.int64)
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
    for k in range(STACKED):
        r = q * block[SCORES + k]
        block[FOREST_STEPS + k] = 0.999 * block[FOREST_STEPS + k] + r * r
        step = (0.1 if moved else 0.03) * r / math.sqrt(block[FOREST_STEPS + k] + 1.0)
        block[FOREST_STACK + k] = max(0.0, block[FOREST_STACK + k] - step)


@kernel
def _judge(s: Array, block: Array, label: float) -> None:
    """Average the losses; the slow expert and the boosted trees begin again where they are behind."""
    squared = s[FOREST_TASK] == 1.0
    for k in range(STACKED):
        block[FOREST_LOSSES + k] = 0.995 * block[FOREST_LOSSES + k] + 0.005 * _loss(
            squared, block[SCORES + k], label
        )
    block[FOREST_SEEN] = 0.995 * block[FOREST_SEEN] + 0.005
    block[FOREST_SLOW] = 0.995 * block[FOREST_SLOW] + 0.005
    block[FOREST_SINCE] += 1.0
    least = _WORST
    for k in range(EXPERTS):
        if k != SLOW:
            least = min(least, block[FOREST_LOSSES + k] / block[FOREST_SEEN])
    if boosted_judge(forest_ring(s), forest_boosted(block), block[FOREST_LOSSES + BOOSTED], least):
        block[FOREST_LOSSES + BOOSTED] = block[SCORES + BOOSTED] = 0.0
    if block[FOREST_SINCE] < 200.0:
        return
    slow_loss = block[FOREST_LOSSES + SLOW] / block[FOREST_SLOW]
    if slow_loss > least + 0.1 and slow_loss > block[FOREST_BEST] + 0.1:
        _begin_again(s, block)
    else:
        block[FOREST_BEST] = min(block[FOREST_BEST], slow_loss)


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
    """Standard deviation of the labels so far."""
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
def forest_ring(s: Array) -> Array:
    """The ring of records that the boosted trees learn from."""
    return s[int(s[FOREST_RING]) :]


@kernel
def forest_boosted(block: Array) -> Array:
    """The boosted trees of a block."""
    return block[int(block[FOREST_BOOSTED]) :]


@kernel
def _boost(s: Array, others: Array, label: float) -> bool:
    """Let the record that all blocks have scored into the ring; whether `forest_rebuild` is due then.

    `label` is the target, or with several classes the number of the class.
    """
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    first = FOREST_HEADER + PRESENT_AT * cap
    present = viewed_as(s[first : first + int(s[FOREST_COUNT])], np.int64)
    ring = forest_ring(s)
    for i in range(1 + others.shape[0]):
        block = s if i == 0 else others[i - 1]
        boosted, score = forest_boosted(block), block[SCORES + BOOSTED]
        boosted_keep(ring, boosted, score)
        boosted_step(ring, boosted, ring_slope(ring, score, boosted_target(ring, label, i)))
    ring_append(ring, x, present, label)
    due = ring_due(ring)
    for i in range(1 + others.shape[0]):
        boosted = forest_boosted(s if i == 0 else others[i - 1])
        boosted_save(boosted)
        due |= boosted_due(ring, boosted)
    return due


@kernel
def forest_rebuild(s: Array, others: Array) -> None:
    """Bin the columns and rebuild the boosted trees that are due: to be called once a record has said so.

    A kernel of its own, which no other calls: the first records need not wait until it is compiled.
    """
    ring = forest_ring(s)
    ring_bin_due(ring)
    for i in range(1 + others.shape[0]):
        boosted = forest_boosted(s if i == 0 else others[i - 1])
        if boosted_due(ring, boosted):
            boosted_rebuild(ring, boosted, i)


@kernel
def forest_visit(s: Array, others: Array, label: float) -> bool:
    """Let the record into the ring, the moments and the trees, once all blocks have learned it.

    Returns whether `forest_rebuild` is due.
    """
    due = _boost(s, others, label)
    forest_moments(s)
    forest_grow(s, others)
    s[FOREST_RECORDS] += 1.0
    s[FOREST_READY] = 0.0
    past = int(s[FOREST_RECORDS]) - 2 * int(s[FOREST_NODES])
    if past >= 0 and past % _EVERY == 0:
        forest_empty(s, others, past // _EVERY % int(s[FOREST_TREES]))
    return due


@kernel
def _score_again(s: Array) -> None:
    """The boosted trees' score and leaves of the record itself, once it was compared with its partner."""
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    first = FOREST_HEADER + PRESENT_AT * cap
    present = viewed_as(s[first : first + cap], np.int64)
    bits, count = viewed_as(x, np.int64), 0
    for j in range(d):
        present[count] = j
        count += 1 if x[j] == x[j] or bits[j] & PAYLOAD else 0
    s[FOREST_COUNT] = count
    ring = forest_ring(s)
    ring_codes(ring, x, present[:count])
    s[SCORES + BOOSTED] = boosted_score(ring, forest_boosted(s), x)


@kernel
def _grow(s: Array, target: float) -> bool:
    """What follows once the experts have learned the record; whether `forest_rebuild` is due then."""
    if s[FOREST_GUIDED] == 1.0:
        forest_gain(s, target)
    return forest_visit(s, s[:0].reshape(0, 0), target)


@kernel
def _take(s: Array, label: float) -> bool:
    """Learn the record that is evaluated: a label above 0 is 1, any other 0, unless the loss is squared.

    Returns whether `forest_rebuild` is due.
    """
    target = 1.0 if label > 0.0 else 0.0
    if s[FOREST_TASK] == 1.0:
        target = _standardised(s, label)
    forest_fit(s, s, target)
    return _grow(s, target)


@kernel
def _take_pair(s: Array, label: float) -> bool:
    """`_take` where the loss is of pairs: of the record, and one of the other class if there is one."""
    target = 1.0 if label > 0.0 else 0.0
    if forest_pair(s, target):
        _judge(s, s, target)
    _score_again(s)
    return _grow(s, target)


@kernel
def forest_scatter(s: Array, entries: Array, count: int) -> None:
    """Put a record that is given as of `scatter` into the state; columns that it lacks are gaps."""
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    first = FOREST_HEADER + RECORD_AT * cap
    x = s[first : first + d]
    bits = viewed_as(x, np.int64)
    at = FOREST_HEADER + PRESENT_AT * cap
    present = viewed_as(s[at : at + cap], np.int64)
    places, values = viewed_as(entries[:count], np.int64), viewed_as(entries[count : 2 * count], np.int64)
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
    bits = viewed_as(x, np.int64)
    if not gaps:
        s[FOREST_FEW] = 0.0  # it was packed, over whatever was scattered
    if s[FOREST_FEW] == 1.0:
        at = FOREST_HEADER + PRESENT_AT * cap
        present = viewed_as(s[at : at + cap], np.int64)
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
def _in_label_units(s: Array, score: float) -> float:
    """Convert a score to the unit of the labels, if the loss is squared."""
    return s[FOREST_MEAN] + forest_deviation(s) * score if s[FOREST_TASK] == 1.0 else score


@kernel
def forest_score(s: Array, gaps: bool) -> float:
    """Score of the record in the state; NaN if it cannot be used. `gaps`: features may be missing."""
    return _in_label_units(s, forest_evaluate(s)) if forest_usable(s, gaps) else math.nan


@kernel
def forest_proba(s: Array, gaps: bool) -> float:
    """Logistic curve of the score of the record in the state, whose loss is logistic; NaN as of the score."""
    return sigmoid(forest_evaluate(s)) if forest_usable(s, gaps) else math.nan


@kernel
def forest_learn(s: Array, label: float, gaps: bool) -> int:
    """Learn the record in the state by a loss of records; its leaves are at hand if it was scored last.

    Returns `UNUSABLE`, with nothing changed, if it cannot be used; `DUE` if `forest_rebuild` is to be called;
    else 0.
    """
    if not forest_usable(s, gaps):
        return UNUSABLE
    forest_evaluate(s)
    return DUE if _take(s, label) else 0


@kernel
def forest_learn_pair(s: Array, label: float, gaps: bool) -> int:
    """`forest_learn` where the loss is of pairs: other forests need not wait until this is compiled."""
    if not forest_usable(s, gaps):
        return UNUSABLE
    forest_evaluate(s)
    return DUE if _take_pair(s, label) else 0


@kernel
def forest_load(s: Array, row: Array) -> None:
    at = FOREST_HEADER + RECORD_AT * int(s[FOREST_CAP])
    bits, values = viewed_as(s[at : at + row.shape[0]], np.int64), viewed_as(row, np.int64)
    s[FOREST_FEW] = 0.0
    for j in range(row.shape[0]):
        bits[j] = values[j]


@kernel
def forest_score_many(s: Array, rows: Array, scores: Array) -> None:
    """Scores (n,) of usable rows (n, d)."""
    for i in range(rows.shape[0]):
        forest_load(s, rows[i])
        scores[i] = _in_label_units(s, forest_evaluate(s))


@kernel
def forest_learn_many(s: Array, rows: Array, labels: Array, scores: Array, begin: int) -> int:
    """Learn usable rows (n, d) in order; `scores` gets the score of each before it, if it has any room.

    Returns the row to begin with next, once `forest_rebuild` was called; 0: all are learned.
    """
    for i in range(begin, rows.shape[0]):
        forest_load(s, rows[i])
        score = forest_evaluate(s)
        if scores.shape[0] > 0:
            scores[i] = _in_label_units(s, score)
        if _take(s, labels[i]):
            return i + 1
    return 0


@kernel
def forest_learn_pairs(s: Array, rows: Array, labels: Array, scores: Array, begin: int) -> int:
    """`forest_learn_many` where the loss is of pairs."""
    for i in range(begin, rows.shape[0]):
        forest_load(s, rows[i])
        score = forest_evaluate(s)
        if scores.shape[0] > 0:
            scores[i] = score
        if _take_pair(s, labels[i]):
            return i + 1
    return 0


@kernel
def forest_begin(block: Array) -> None:
    """Stack and averages of a zeroed block."""
    for k in range(STACKED):
        block[FOREST_STACK + k] = 1.0 / STACKED
    block[FOREST_BEST] = _WORST


@kernel
def forest_fresh(s: Array) -> None:
    """Trees, stack and averages of a zeroed state whose first scalars are set."""
    for t in range(int(s[FOREST_TREES])):
        forest_empty(s, s[:0].reshape(0, 0), t)
    forest_begin(s)


@kernel
def _means(links: Links, weights: Array, first: int, cut: int, used: int, means: Array) -> None:
    """Value of each node of a tree that is cut: its weight, or the mean of its children."""
    for node in range(min(used, cut) - 1, -1, -1):
        child = links[4 * (first + node) + 3]
        if child > 0 and child + 1 < cut:
            means[node] = 0.5 * (means[child] + means[child + 1])
        else:
            means[node] = weights[2 * node]


# Kept between two explanations: 1 + the number of records that the means are of, and the boosted trees built.
_KEPT_RECORDS = 0
_KEPT_BUILT = 1
_KEPT_HEADER = 2
_LEVELS = 48  # of a path that is kept; a tree with a longer one is averaged anew


@kernel
def forest_kept_places(trees: int, nodes: int, cap: int) -> tuple[int, int, int, int, int, int]:
    """Layout of what is kept between two explanations by the experts of a block.

    Returns
    -------
    tuple
        (means of the nodes of the experts' trees, of the boosted ones, the record explained last, its leaves
        in the boosted trees, depth and nodes of its paths in the others, length).
    """
    at_boosted = _KEPT_HEADER + forest_weights_at(EXPERTS, trees, nodes) // 2
    at_record = at_boosted + BOOSTED_TREES * (INNER + LEAVES)
    at_hand = at_record + cap
    at_paths = at_hand + BOOSTED_TREES
    return _KEPT_HEADER, at_boosted, at_record, at_hand, at_paths, at_paths + trees * (1 + _LEVELS)


@kernel
def _averaged(s: Array, block: Array, kept: Array, tree: int, expert: int) -> None:
    """Average a whole tree, as an expert sees it."""
    cap, trees, nodes = int(s[FOREST_CAP]), int(s[FOREST_TREES]), int(s[FOREST_NODES])
    _, at_weights, at_used, at_nodes, at_scratch, _ = forest_places(trees, nodes, cap, int(s[FOREST_TEXTS]))
    links, cut = viewed_as(s[at_nodes:at_scratch], np.int32), forest_cut(expert, nodes)
    before = forest_weights_at(expert, trees, nodes)
    weights = block[at_weights + before + 2 * tree * cut : at_used]
    means = kept[_KEPT_HEADER + before // 2 + tree * cut :]
    _means(links, weights, tree * nodes, cut, int(s[at_used + tree]), means)


@kernel
def _average_paths(weights: Array, means: Array, paths: Bits, links: Links, trees: int, nodes: int) -> None:
    """Average the nodes of all trees above the leaves of a record, for each expert.

    A tree whose path is not kept is left out. One call for all trees: a call costs more than a path.

    Parameters
    ----------
    weights, means
        Of the nodes of all trees, as the experts see them.
    paths
        For each tree the depth of the leaf, and the nodes on the way to it.
    links
        Of the nodes; the leaf may have been parted since.
    """
    for t in range(trees):
        at = t * (1 + _LEVELS)
        end = paths[at]
        if end < 0:
            continue
        child = int(links[4 * (t * nodes + paths[(at + 1 + end) & INDEX]) + 3])
        before = 0
        for k in range(1, EXPERTS):
            cut = forest_cut(k, nodes)
            first, depth = before + t * cut, end
            while paths[(at + 1 + depth) & INDEX] >= cut:
                depth -= 1
            node = paths[(at + 1 + depth) & INDEX] & INDEX
            mean = weights[(2 * (first + node)) & INDEX]
            if depth == end and 0 < child < cut:
                for i in range(2):
                    means[(first + child + i) & INDEX] = weights[(2 * (first + child + i)) & INDEX]
                mean = 0.5 * (means[(first + child) & INDEX] + means[(first + child + 1) & INDEX])
            means[(first + node) & INDEX] = mean
            for level in range(depth, 0, -1):
                other = ((node - 1) ^ 1) + 1  # the first of two children is odd
                mean = 0.5 * (mean + means[(first + other) & INDEX])
                node = paths[(at + level) & INDEX] & INDEX
                means[(first + node) & INDEX] = mean
            before += trees * cut


@kernel
def _average(s: Array, block: Array, kept: Array) -> None:
    """Bring the means of all nodes up to date.

    One learned record changes its own leaves alone, and splits some. If it is the record that was explained
    before, as it is where each record is scored, explained and learned, the means above its leaves are
    computed again, and no others: they get the same bits.
    """
    cap, trees, nodes = int(s[FOREST_CAP]), int(s[FOREST_TREES]), int(s[FOREST_NODES])
    _, at_weights, at_used, at_nodes, at_scratch, _ = forest_places(trees, nodes, cap, int(s[FOREST_TEXTS]))
    _, at_boosted, at_record, at_hand, at_paths, end = forest_kept_places(trees, nodes, cap)
    if kept[_KEPT_RECORDS] == s[FOREST_RECORDS] + 1.0:
        return
    boosted = forest_boosted(block)
    one = (
        kept[_KEPT_RECORDS] == s[FOREST_RECORDS]
        and s[FOREST_TASK] < FOREST_PAIRS  # leaves of a partner are changed as well
        and ring_has_newest(
            forest_ring(s), viewed_as(kept[at_record : at_record + int(s[FOREST_D])], np.int64)
        )
    )
    paths, links = viewed_as(kept[at_paths:end], np.int64), viewed_as(s[at_nodes:at_scratch], np.int32)
    weights, means = block[at_weights:at_used], kept[_KEPT_HEADER:at_boosted]
    if one:
        _average_paths(weights, means, paths, links, trees, nodes)
    again = one and block[FOREST_SINCE] == 0.0  # the slow expert has begun again
    for t in range(trees):
        if not one or paths[t * (1 + _LEVELS)] < 0 or s[at_used + t] <= 1.0:
            for k in range(1, EXPERTS):
                _averaged(s, block, kept, t, k)
        elif again:
            _averaged(s, block, kept, t, SLOW)
    boosted_average(
        forest_ring(s),
        boosted,
        kept[at_boosted:at_record],
        viewed_as(kept[at_hand:at_paths], np.int64),
        kept[_KEPT_BUILT] if one else -1.0,
    )
    kept[_KEPT_RECORDS], kept[_KEPT_BUILT] = s[FOREST_RECORDS] + 1.0, boosted[BOOSTED_BUILT]


@kernel
def _explain_linear(s: Array, block: Array, out: Array) -> None:
    """Add the linear terms of all experts to the parts of their columns."""
    d, cap, texts = int(s[FOREST_D]), int(s[FOREST_CAP]), int(s[FOREST_TEXTS])
    at_texts, _, _, _, _, _ = forest_places(int(s[FOREST_TREES]), int(s[FOREST_NODES]), cap, texts)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    bits = viewed_as(x, np.int64)
    for j in range(d):
        if x[j] == x[j]:
            z = s[FOREST_HEADER + (RECORD_AT + 2) * cap + j]
            for k in range(EXPERTS):
                out[j] += block[FOREST_STACK + k] * z * block[FOREST_HEADER + 3 * cap + EXPERTS * j + k]
        elif texts > 0 and bits[j] & PAYLOAD:
            at = at_texts + 2 * EXPERTS * forest_bucket(j, bits[j] & PAYLOAD)
            for k in range(EXPERTS):
                out[j] += block[FOREST_STACK + k] * block[at + k]


@kernel
def _explain_trees(s: Array, block: Array, means: Array, paths: Bits, out: Array) -> None:
    """Add the parts of the random trees, and note the paths of the record.

    Parameters
    ----------
    means, paths
        As in `forest_kept_places`.
    """
    d, cap, texts = int(s[FOREST_D]), int(s[FOREST_CAP]), int(s[FOREST_TEXTS])
    trees, nodes = int(s[FOREST_TREES]), int(s[FOREST_NODES])
    _, _, _, at_nodes, at_scratch, _ = forest_places(trees, nodes, cap, texts)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    bits, marks = viewed_as(x, np.int64), s[at_nodes:at_scratch]
    links = viewed_as(marks, np.int32)
    small, middle, large = block[FOREST_STACK + 1], block[FOREST_STACK + 2], block[FOREST_STACK + 3]
    few, more = forest_cut(1, nodes), forest_cut(2, nodes)
    at_middle = forest_weights_at(2, trees, nodes) // 2
    at_large = forest_weights_at(3, trees, nodes) // 2
    going, at_node = np.empty(trees, dtype=np.int64), np.zeros(trees, dtype=np.int64)
    for t in range(trees):
        going[t] = t
        paths[t * (1 + _LEVELS)] = paths[t * (1 + _LEVELS) + 1] = 0
        out[d] += small * means[t * few] + middle * means[at_middle + t * more]
        out[d] += large * means[at_large + t * nodes]
    # All trees a level down, then the next level: no step waits for the one before it.
    count, level = trees, 0
    while count > 0:
        level, left = level + 1, 0
        for i in range(count):
            t = going[i] & SHORT
            node = at_node[t] & SHORT
            at = (t * nodes + node) & INDEX
            child, column = int(links[4 * at + 3]), links[4 * at + 2]
            if child <= 0:
                continue
            child += forest_right(column, marks[2 * at], x, bits)
            first = at_large + t * nodes
            change = large * (means[(first + child) & INDEX] - means[(first + node) & INDEX])
            if child < more:
                first = at_middle + t * more
                change += middle * (means[(first + child) & INDEX] - means[(first + node) & INDEX])
                if child < few:
                    first = t * few
                    change += small * (means[(first + child) & INDEX] - means[(first + node) & INDEX])
            out[(column if column >= 0 else ~column) & INDEX] += change
            at_node[t] = child
            if level < _LEVELS:
                paths[(t * (1 + _LEVELS)) & INDEX] = level
                paths[(t * (1 + _LEVELS) + 1 + level) & INDEX] = child
            else:
                paths[t * (1 + _LEVELS)] = -1
            going[left & INDEX] = t
            left += 1
        count = left


@kernel
def forest_explain(s: Array, block: Array, kept: Array, out: Array) -> None:
    """Parts of the score of the record in the state that is usable: of each column, and of none, (d + 1,).

    By the experts of a block, which of one class is the state itself.

    Down a path the part of a column is how much the mean below changes where it decides; what the roots stand
    for belongs to none. The parts add up to the score, but for rounding.

    `kept` (`forest_kept_places`) is all 0 at first, and is given back for the next explanation.
    """
    if forest_descend(s):
        forest_add(s, block)
    _average(s, block, kept)
    cap, trees, nodes = int(s[FOREST_CAP]), int(s[FOREST_TREES]), int(s[FOREST_NODES])
    _, at_boosted, at_record, at_hand, at_paths, end = forest_kept_places(trees, nodes, cap)
    record, bits = (
        viewed_as(kept[at_record:at_hand], np.int64),
        viewed_as(s[FOREST_HEADER + RECORD_AT * cap :], np.int64),
    )
    for j in range(int(s[FOREST_D])):
        record[j] = bits[j]
    out[:] = 0.0
    _explain_linear(s, block, out)
    _explain_trees(s, block, kept[_KEPT_HEADER:at_boosted], viewed_as(kept[at_paths:end], np.int64), out)
    boosted_explain(
        forest_ring(s),
        forest_boosted(block),
        block[FOREST_STACK + BOOSTED],
        kept[at_boosted:at_record],
        out,
    )
    boosted_hand(forest_ring(s), forest_boosted(block), viewed_as(kept[at_hand:at_paths], np.int64))
    if s[FOREST_TASK] == 1.0:  # in the unit of the labels, as the score is
        out *= forest_deviation(s)
        out[-1] += s[FOREST_MEAN]


@kernel
def forest_largest(parts: Array, columns: Bits, values: Array) -> None:
    """The parts (d,) that are largest in absolute value, and their columns (k,), the largest first.

    Of equal ones the first comes first, and none is 0. Where there are fewer than k, the column is -1.
    """
    count, most = 0, columns.shape[0]
    columns[:] = -1
    for j in range(parts.shape[0]):
        size, at = abs(parts[j]), count
        while at > 0 and abs(values[at - 1]) < size:
            at -= 1
        if at == most or size == 0.0:
            continue
        count = min(count + 1, most)
        for i in range(count - 1, at, -1):
            columns[i], values[i] = columns[i - 1], values[i - 1]
        columns[at], values[at] = j, parts[j]


@kernel
def forest_learn_explained(
    s: Array,
    kept: Array,
    rows: Array,
    labels: Array,
    scores: Array,
    columns: Bits,
    values: Array,
    begin: int,
) -> int:
    """`forest_learn_many`, and the largest parts (n, k) of each score, as `forest_explain` gives them.

    A row whose label is NaN is not learned.
    """
    parts = np.empty(rows.shape[1] + 1)
    for i in range(begin, rows.shape[0]):
        forest_load(s, rows[i])
        scores[i] = _in_label_units(s, forest_evaluate(s))
        forest_explain(s, s, kept, parts)
        forest_largest(parts[:-1], columns[i], values[i])
        if labels[i] != labels[i]:
            continue
        if _take_pair(s, labels[i]) if s[FOREST_TASK] >= FOREST_PAIRS else _take(s, labels[i]):
            return i + 1
    return 0


@kernel
def forest_importances(s: Array, block: Array, out: Array) -> None:
    """Importance of each column (d,): its linear weights, and the splits that it decides.

    A split counts by the difference of its children's means, halved at each level.
    """
    cap = int(s[FOREST_CAP])
    trees, nodes, texts = int(s[FOREST_TREES]), int(s[FOREST_NODES]), int(s[FOREST_TEXTS])
    _, at_weights, at_used, at_nodes, at_scratch, _ = forest_places(trees, nodes, cap, texts)
    links = viewed_as(s[at_nodes:at_scratch], np.int32)
    means, parts = np.zeros(nodes), np.zeros(nodes)
    out[:] = 0.0
    for k in range(EXPERTS):
        share = block[FOREST_STACK + k]
        for j in range(out.shape[0]):
            out[j] += share * abs(block[FOREST_HEADER + 3 * cap + EXPERTS * j + k])
        if k == 0:
            continue
        cut = forest_cut(k, nodes)
        for t in range(trees):
            first = t * nodes
            used = min(int(s[at_used + t]), cut)
            at = at_weights + forest_weights_at(k, trees, nodes) + 2 * t * cut
            _means(links, block[at:at_used], first, cut, used, means)
            parts[0] = 1.0
            for node in range(used):
                child = links[4 * (first + node) + 3]
                if child > 0 and child + 1 < cut:
                    column = links[4 * (first + node) + 2]
                    apart = abs(means[child + 1] - means[child])
                    out[column if column >= 0 else ~column] += share * parts[node] * apart
                    parts[child] = parts[child + 1] = 0.5 * parts[node]
    boosted_importances(forest_ring(s), forest_boosted(block), block[FOREST_STACK + BOOSTED], out)


@kernel
def _score(s: Array, others: Array, scores: Array) -> None:
    """Scores (1 + others,) of the record in the state."""
    if forest_descend(s):
        forest_add(s, s)
        for i in range(others.shape[0]):
            forest_add(s, others[i])
    scores[0] = forest_stacked(s)
    for i in range(others.shape[0]):
        scores[1 + i] = forest_stacked(others[i])


@kernel
def _learn(s: Array, others: Array, which: int) -> bool:
    """Learn the record that was scored: each class learns whether the record is its own.

    Returns whether `forest_rebuild` is due.
    """
    forest_fit(s, s, 1.0 if which == 0 else 0.0)
    for i in range(others.shape[0]):
        forest_fit(s, others[i], 1.0 if which == 1 + i else 0.0)
    return forest_visit(s, others, float(which))


@kernel
def forest_score_classes(s: Array, others: Array, gaps: bool, scores: Array) -> int:
    """Scores (1 + others,) of the record in the state; 1 if it cannot be used."""
    if not forest_usable(s, gaps):
        return 1
    _score(s, others, scores)
    return 0


@kernel
def forest_learn_class(s: Array, others: Array, which: int, gaps: bool) -> int:
    """Learn the record in the state, of the class `which`; returns what `forest_learn` does."""
    if not forest_usable(s, gaps):
        return UNUSABLE
    _score(s, others, np.empty(1 + others.shape[0]))
    return DUE if _learn(s, others, which) else 0


@kernel
def forest_score_classes_many(s: Array, others: Array, rows: Array, scores: Array) -> None:
    """Scores (n, 1 + others) of usable rows (n, d)."""
    for i in range(rows.shape[0]):
        forest_load(s, rows[i])
        _score(s, others, scores[i])


@kernel
def forest_learn_classes(
    s: Array, others: Array, rows: Array, classes: NDArray[np.int64], scores: Array, begin: int
) -> int:
    """Learn usable rows (n, d) in order; `scores` (n, 1 + others) gets those of each before it.

    Returns what `forest_learn_many` does.
    """
    for i in range(begin, rows.shape[0]):
        forest_load(s, rows[i])
        _score(s, others, scores[i])
        if _learn(s, others, classes[i]):
            return i + 1
    return 0
