"""Leaves that are fitted to pairs: each record beside a recent one of the other class, both scored anew.

A pair's loss is a function of the difference of two scores, so it moves what only one of the records has: two
records in one leaf, or two equal texts, leave its weight alone. The records that are kept, the last ones of
each class, stand behind all else that a forest has; so does the link that makes probabilities of scores,
which pairs give neither intercept nor scale.
"""

from __future__ import annotations

import math

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.forest_layout import (
    EXPERTS,
    FOREST_CAP,
    FOREST_D,
    FOREST_ETA,
    FOREST_GAMMA,
    FOREST_HEADER,
    FOREST_KEPT,
    FOREST_NODES,
    FOREST_PAIRS,
    FOREST_READY,
    FOREST_STACK,
    FOREST_STEPS,
    FOREST_TASK,
    FOREST_TEXTS,
    FOREST_TREES,
    PAYLOAD,
    RECORD_AT,
    SCORES,
    forest_pair_places,
    forest_places,
)
from streampair.kernels.forest_scores import forest_add, forest_descend, forest_stacked
from streampair.kernels.forest_trees import forest_bucket, forest_draw
from streampair.kernels.link import link_learn
from streampair.kernels.losses import loss_slope


@kernel
def forest_step(s: Array, weight: int, total: int, h: float, eta: float, gamma: float) -> None:
    """One step of a weight, against the derivative h, by the sum of squares that fades."""
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
    came, at_own, at_leaves, at_kept, _ = forest_pair_places(trees, cap)
    bits = s[FOREST_HEADER + RECORD_AT * cap :].view(np.int64)
    z = s[FOREST_HEADER + (RECORD_AT + 2) * cap :]
    leaves = s[at_scratch:end].view(np.int64)
    own, own_leaves = tail[at_own:at_leaves].view(np.int64), tail[at_leaves:at_kept].view(np.int64)
    kept = tail[at_kept:].view(np.int64)
    link_learn(tail, forest_stacked(s), 2.0 * target - 1.0)
    mine = 1 if target > 0.5 else 0
    known = int(tail[came + 1 - mine])
    if known > 0:
        for j in range(d):
            own[j] = bits[j]
            tail[at_own + cap + j] = z[j]
        for i in range(EXPERTS * trees):
            own_leaves[i] = leaves[i]
        for k in range(EXPERTS):
            tail[at_kept - EXPERTS + k] = s[SCORES + k]
        slot = (1 - mine) * FOREST_KEPT + int(forest_draw(s) * min(known, FOREST_KEPT))
        for j in range(d):
            bits[j] = kept[slot * cap + j]
        s[FOREST_READY] = 0.0
        forest_descend(s)
        forest_add(s, s)
        _fit_pair(s, 1.0 if mine == 1 else -1.0)
        # The trees are to be visited by the record itself, not by its partner.
        for j in range(d):
            bits[j] = own[j]
        for i in range(EXPERTS * trees):
            leaves[i] = own_leaves[i]
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
    _, at_own, at_leaves, at_kept, _ = forest_pair_places(trees, cap)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    z = s[FOREST_HEADER + (RECORD_AT + 2) * cap : FOREST_HEADER + (RECORD_AT + 2) * cap + d]
    own, own_z = tail[at_own : at_own + d], tail[at_own + cap : at_own + cap + d]
    bits, own_bits = x.view(np.int64), own.view(np.int64)
    leaves, own_leaves = s[at_scratch:end].view(np.int64), tail[at_leaves:at_kept].view(np.int64)
    code = int(s[FOREST_TASK]) - FOREST_PAIRS
    apart = 0.0
    for k in range(EXPERTS):
        s[SCORES + k] = tail[at_kept - EXPERTS + k] - s[SCORES + k]
        apart += s[FOREST_STACK + k] * s[SCORES + k]
    q = sign * loss_slope(code, sign * apart)
    share = 50.0 / trees
    for k in range(EXPERTS):
        g = sign * loss_slope(code, sign * s[SCORES + k])
        eta, gamma = FOREST_ETA[k], FOREST_GAMMA[k]
        for j in range(d):
            if x[j] == x[j] or own[j] == own[j]:
                at = FOREST_HEADER + 3 * cap + EXPERTS * j + k
                forest_step(s, at, at + EXPERTS * cap, g * (own_z[j] - z[j]), eta, gamma)
            one, two = own_bits[j] & PAYLOAD, bits[j] & PAYLOAD
            if texts == 0 or own_bits[j] == bits[j]:
                continue
            if own[j] != own[j] and one != 0:
                at = at_texts + 2 * EXPERTS * forest_bucket(j, one) + k
                forest_step(s, at, at + EXPERTS, g, eta, gamma)
            if x[j] != x[j] and two != 0:
                at = at_texts + 2 * EXPERTS * forest_bucket(j, two) + k
                forest_step(s, at, at + EXPERTS, -g, eta, gamma)
        if k > 0:
            h2 = g * g
            h = eta * share * g
            for t in range(trees):
                one, two = own_leaves[4 * t + k - 1], leaves[4 * t + k - 1]
                if one != two:
                    total = gamma * s[at_weights + one + 1] + h2
                    s[at_weights + one + 1] = total
                    s[at_weights + one] -= h / math.sqrt(total + 0.1)
                    total = gamma * s[at_weights + two + 1] + h2
                    s[at_weights + two + 1] = total
                    s[at_weights + two] += h / math.sqrt(total + 0.1)
        r = q * s[SCORES + k]
        s[FOREST_STEPS + k] = 0.999 * s[FOREST_STEPS + k] + r * r
        step = 0.03 * r / math.sqrt(s[FOREST_STEPS + k] + 1.0)
        s[FOREST_STACK + k] = max(0.0, s[FOREST_STACK + k] - step)
