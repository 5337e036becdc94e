"""What a forest says of itself: the parts that the features have in a score, and in all scores."""

from __future__ import annotations

import numpy as np

from streampair.kernels._jit import Array, kernel
from streampair.kernels.forest import forest_deviation
from streampair.kernels.forest_layout import (
    EXPERTS,
    FOREST_CAP,
    FOREST_D,
    FOREST_HEADER,
    FOREST_MEAN,
    FOREST_NODES,
    FOREST_STACK,
    FOREST_TASK,
    FOREST_TEXTS,
    FOREST_TREES,
    PAYLOAD,
    RECORD_AT,
    Links,
    forest_cut,
    forest_places,
    forest_weights_at,
)
from streampair.kernels.forest_scores import forest_descend
from streampair.kernels.forest_trees import forest_bucket, forest_right


@kernel
def _means(links: Links, weights: Array, first: int, cut: int, used: int, means: Array) -> None:
    """What each node of a tree that is cut stands for: its weight, or the mean of its children."""
    for node in range(min(used, cut) - 1, -1, -1):
        child = links[4 * (first + node) + 3]
        if child > 0 and child + 1 < cut:
            means[node] = 0.5 * (means[child] + means[child + 1])
        else:
            means[node] = weights[2 * node]


@kernel
def forest_explain(s: Array, block: Array, out: Array) -> None:
    """Parts of the score of the record in the state that is usable: of each column, and of none, (d + 1,).

    By the experts of a block, which of one class is the state itself.

    Down a path the part of a column is how much the mean below changes where it decides; what the roots stand
    for belongs to none. The parts add up to the score, but for rounding.
    """
    forest_descend(s)
    d, cap = int(s[FOREST_D]), int(s[FOREST_CAP])
    trees, nodes, texts = int(s[FOREST_TREES]), int(s[FOREST_NODES]), int(s[FOREST_TEXTS])
    at_texts, at_weights, at_used, at_nodes, at_scratch, _ = forest_places(trees, nodes, cap, texts)
    x = s[FOREST_HEADER + RECORD_AT * cap : FOREST_HEADER + RECORD_AT * cap + d]
    bits = x.view(np.int64)
    marks = s[at_nodes:at_scratch]
    links = marks.view(np.int32)
    means = np.zeros(nodes)
    out[:] = 0.0
    for k in range(EXPERTS):
        share = block[FOREST_STACK + k]
        for j in range(d):
            if x[j] == x[j]:
                z = s[FOREST_HEADER + (RECORD_AT + 2) * cap + j]
                out[j] += share * z * block[FOREST_HEADER + 3 * cap + EXPERTS * j + k]
            elif texts > 0 and bits[j] & PAYLOAD:
                out[j] += share * block[at_texts + 2 * EXPERTS * forest_bucket(j, bits[j] & PAYLOAD) + k]
        if k == 0:
            continue
        cut = forest_cut(k, nodes)
        for t in range(trees):
            first = t * nodes
            at = at_weights + forest_weights_at(k, trees, nodes) + 2 * t * cut
            _means(links, block[at:at_used], first, cut, int(s[at_used + t]), means)
            node = 0
            out[d] += share * means[0]
            while True:
                child = links[4 * (first + node) + 3]
                if child <= 0 or child + 1 >= cut:
                    break
                column = links[4 * (first + node) + 2]
                child += forest_right(column, marks[2 * (first + node)], x, bits)
                out[column if column >= 0 else ~column] += share * (means[child] - means[node])
                node = child
    if s[FOREST_TASK] == 1.0:  # in the unit of the labels, as the score is
        out *= forest_deviation(s)
        out[d] += s[FOREST_MEAN]


@kernel
def forest_importances(s: Array, block: Array, out: Array) -> None:
    """How much each column (d,) moves the score: its linear weights, and the splits that it decides.

    A split counts by the difference of its children's means, halved at each level.
    """
    cap = int(s[FOREST_CAP])
    trees, nodes, texts = int(s[FOREST_TREES]), int(s[FOREST_NODES]), int(s[FOREST_TEXTS])
    _, at_weights, at_used, at_nodes, at_scratch, _ = forest_places(trees, nodes, cap, texts)
    links = s[at_nodes:at_scratch].view(np.int32)
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
