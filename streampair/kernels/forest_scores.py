"""What a forest makes of a record: its leaves, the scores of the experts, and that of their stack."""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.forest_layout import (
    EXPERTS,
    FOREST_CAP,
    FOREST_COUNT,
    FOREST_D,
    FOREST_FEW,
    FOREST_HEADER,
    FOREST_NODES,
    FOREST_READY,
    FOREST_STACK,
    FOREST_TEXTS,
    FOREST_TREES,
    INDEX,
    PAYLOAD,
    PRESENT_AT,
    RECORD_AT,
    SCORES,
    SHORT,
    Bits,
    Links,
    forest_cut,
    forest_places,
)
from streampair.kernels.forest_trees import forest_bucket, forest_right

_CLIP = 4.0


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
    bits, known = x.view(np.int64), last.view(np.int64)
    at = FOREST_HEADER + PRESENT_AT * cap
    present = s[at : at + cap].view(np.int64)
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
        else:
            plain = False
    marks = s[at_nodes:at_scratch]
    links = marks.view(np.int32)
    leaves = s[at_scratch:end].view(np.int64)
    going = s[end - trees : end].view(np.int64)
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
    bits, leaves = x.view(np.int64), s[at_scratch:end].view(np.int64)
    weights = block[at_weights:at_used]
    s0 = 0.0
    s1 = 0.0
    s2 = 0.0
    s3 = 0.0
    first = FOREST_HEADER + PRESENT_AT * cap
    present = s[first : first + cap].view(np.int64)
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
