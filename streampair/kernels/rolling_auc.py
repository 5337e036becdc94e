"""The AUC of the latest events, exact, as one comes and one goes.

The window and, for each distinct score in it, a node of a search tree (a treap: by score from left to right,
by random priority from top to bottom) that counts the positives and negatives below it. So an event that
comes or goes finds how many of the other class it beats and ties in O(log window). One float64 array, as for
OGD; its counts are exact up to 2**53::

    [0, AUC_HEADER)   scalars
    scores[window], labels[window]     a ring
    nodes[1 + window][9]               node 0 stands for none
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampair.kernels._jit import Array, kernel
from streampair.kernels.numerics import uniform

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
_COUNTS = 5  # negatives, then positives, with this score
_BELOW = 7  # the same in the whole subtree


@kernel
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
            nodes[parent, _COUNTS + c] + nodes[left, _BELOW + c] + nodes[right, _BELOW + c]
        )


@kernel
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
            same = nodes[node, _COUNTS + other]
            break
        if key < nodes[node, _KEY]:
            node = left
        else:
            smaller += nodes[left, _BELOW + other] + nodes[node, _COUNTS + other]
            node = int(nodes[node, _RIGHT])
    wins = 2.0 * smaller + same if label == 1 else 2.0 * (s[AUC_POSITIVE] - smaller) - same
    s[AUC_WINS] += step * wins
    s[AUC_NEGATIVE + (AUC_POSITIVE - AUC_NEGATIVE) * label] += step
    if node:
        nodes[node, _COUNTS + label] += step
        if nodes[node, _COUNTS] + nodes[node, _COUNTS + 1] > 0.0:
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
    nodes[node, _COUNTS + label] = 1.0
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


@kernel
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


@kernel
def auc_add_many(s: Array, scores: Array, labels: NDArray[np.bool_]) -> None:
    """`auc_add` for each event in order."""
    for i in range(scores.shape[0]):
        auc_add(s, scores[i], 1 if labels[i] else 0)


@kernel
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
