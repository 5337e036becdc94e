"""Where everything is in the flat state of a forest."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import kernel

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
FOREST_STACK = 16  # weights of the experts in the stack
FOREST_STEPS = 20  # sums that set their steps
FOREST_LOSSES = 24  # average losses of the experts, not yet divided by the sum of weights
SCORES = 28  # scratch: scores of the experts
FOREST_GUIDED = 32  # 1: half of the columns are drawn by what decisions by them have gained
FOREST_BASE = 33  # running mean of the targets
FOREST_BRISK = 34  # 1: stack and deepest expert take larger steps where things move
FOREST_FEW = 35  # 1: the record was scattered, and its places are the `COUNT` ones of the list
FOREST_COUNT = 36  # columns that the record has, once its leaves were found
FOREST_DECIDED = 37  # 1 + columns that have decided anything; 0: they are to be counted
FOREST_HEADER = 38

FOREST_PAIRS = 2

EXPERTS = 4
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
    """How many nodes of a tree an expert sees."""
    return min(_CUT[expert], nodes)


@kernel
def forest_places(trees: int, nodes: int, cap: int, texts: int) -> tuple[int, int, int, int, int, int]:
    """Where a state has its texts, nodes, the weights of the nodes of each cut expert, scratch; its length.

    What labels have a say in stands before the trees: a block, which each of several classes has, is as long.

    Returns
    -------
    tuple
        (texts, weights of the nodes, used nodes of each tree, nodes, scratch, length).
    """
    at_texts = FOREST_HEADER + FOREST_COLUMN * cap
    at_weights = at_texts + 2 * EXPERTS * texts
    cells = 0
    for k in range(1, EXPERTS):
        cells += forest_cut(k, nodes)
    at_used = at_weights + 2 * trees * cells
    at_nodes = at_used + trees
    at_scratch = at_nodes + 2 * trees * nodes
    return at_texts, at_weights, at_used, at_nodes, at_scratch, at_scratch + (EXPERTS + 1) * trees


@kernel
def forest_weights_at(expert: int, trees: int, nodes: int) -> int:
    """Where the weights of the nodes of an expert begin, among those of all."""
    at = 0
    for k in range(1, expert):
        at += 2 * trees * forest_cut(k, nodes)
    return at


@kernel
def forest_pair_places(trees: int, cap: int) -> tuple[int, int, int, int, int]:
    """Where a forest that learns from pairs has what they need, behind all else.

    Returns
    -------
    tuple
        (how many records of each class came, the record at hand with its standardised values, its leaves and
        scores, the records that are kept, length); the link is at 0.
    """
    at_own = FOREST_LINK + 2
    at_leaves = at_own + 2 * cap
    at_kept = at_leaves + EXPERTS * trees + EXPERTS
    return FOREST_LINK, at_own, at_leaves, at_kept, at_kept + 2 * FOREST_KEPT * cap
