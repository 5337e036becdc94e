"""Online forests as ONNX graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.kernels import forest, numerics
from streampair.models.format import ForestModel, classes_of
from streampair.models.onnx_graph import FEATURES, PROBABILITIES, SCORE, TEXTS, Graph

__all__ = ["add_forest"]

Array = NDArray[np.float64]

# Lanes of the hashes of texts, as docs/models.md has them.
_BUCKET_LANE = 11
_SPLIT_LANE = 7
_MASK = 2**64 - 1


def add_forest(graph: Graph, document: ForestModel) -> None:
    """Add the score of an online forest, and the probabilities of a classifier."""
    d, blocks = len(document.features), document.blocks
    experts = document.experts
    stack = experts.stack.numbers("stack", blocks, forest.EXPERTS)
    mean, variance = document.mean.numbers("mean", d), document.variance.numbers("variance", d)
    linear = experts.linear.numbers("linear", blocks, d, forest.EXPERTS) * (variance > 0.0)[:, None]
    z = graph.op("Sub", FEATURES, mean)
    z = graph.clip(graph.op("Div", z, np.sqrt(np.where(variance > 0.0, variance, 1.0))), 4.0)
    z = graph.op("Where", graph.op("IsNaN", FEATURES), np.array(0.0), z)
    # The linear parts of all experts at once: their weights, times those of the stack.
    scores = graph.op("MatMul", z, np.einsum("bdk,bk->db", linear, stack))
    values = FEATURES
    if document.text_features:
        table = experts.texts.numbers("texts", blocks, len(document.buckets), forest.EXPERTS)
        scores = graph.op("Add", scores, _text_scores(graph, document, np.einsum("btk,bk->tb", table, stack)))
        values = _with_texts(graph, document)
    splits = _Splits(document)
    rows = (
        graph.op("Concat", values, _bits(graph, document, splits.hashed), axis=1) if splits.hashed else values
    )
    for expert, (cut, part) in enumerate(zip(document.cuts, experts.leaves, strict=True), start=1):
        nodes, count = splits.cut(cut)
        weights = part.numbers("leaves", blocks, count) * stack[:, expert : expert + 1]
        reached = graph.op("Gather", weights.T, graph.trees(rows, len(splits.sizes), nodes))
        scores = graph.op("Add", scores, graph.sum(reached))
    _forest_outputs(graph, document, scores)


def _forest_outputs(graph: Graph, document: ForestModel, scores: str) -> None:
    """Score and probabilities from the scores of the classes, (n, classes)."""
    block = 0
    if document.classes is not None:
        labels = list(document.classes.labels)
        known = document.classes.positive in labels
        block = labels.index(document.classes.positive) if known else 0
        if not known:
            graph.op("Mul", graph.op("Gather", scores, np.array(0), axis=1), np.array(0.0), name=SCORE)
        shares = graph.op("Sigmoid", scores)
        total = graph.op("Max", graph.sum(shares, keep=True), np.array(1e-300))
        graph.op("Div", shares, total, name=PROBABILITIES)
        if not known:
            return
    score = graph.op("Gather", scores, np.array(block), axis=1)
    if document.label_mean is not None and document.label_variance is not None:
        score = graph.op("Mul", score, np.array(math.sqrt(document.label_variance)))
        score = graph.op("Add", score, np.array(document.label_mean))
    graph.op("Identity", score, name=SCORE)
    if document.probability is not None:
        graph.probabilities(document.probability, both=len(classes_of(document)) == 2)


def _with_texts(graph: Graph, document: ForestModel) -> str:
    """The values, where a text is above every threshold, (n, d)."""
    d, coded = len(document.features), np.array(document.text_features)
    # Feature j is column `columns[j]` of the texts; features without texts have a column of zeros.
    columns = np.full(d, len(coded))
    columns[coded] = np.arange(len(coded))
    padded = graph.op("Pad", TEXTS, np.array([0, 0, 0, 1]), np.array(0))
    texts = graph.op("Gather", padded, columns, axis=1)
    return graph.op("Where", graph.op("Equal", texts, np.array(0)), FEATURES, np.array(math.inf))


def _hashed(graph: Graph, seeds: str, counters: NDArray[np.int64], lane: int) -> str:
    """`kernels.numerics.uniform` of seeds (n, m) and counters (m,), in units of 2^-64: integers of 64 bits.

    Signed products and sums have the same bits as unsigned ones; exclusive or needs unsigned ones.
    """

    def signed(value: int) -> NDArray[np.int64]:
        return np.array(value & _MASK, dtype=np.uint64).view(np.int64)

    golden = 0x9E3779B97F4A7C15
    steps = [(golden * (int(counter) + 1)) & _MASK for counter in counters]
    z = graph.op("Add", seeds, np.array(steps, dtype=np.uint64).view(np.int64))
    turn = np.array((0xD1B54A32D192ED03 * (lane + 1)) & _MASK, dtype=np.uint64)
    z = graph.cast(graph.op("BitwiseXor", graph.cast(z, "UINT64"), turn), "INT64")

    def shifted(value: str, bits: int) -> str:
        whole = graph.cast(value, "UINT64")
        down = graph.op("BitShift", whole, np.array(bits, dtype=np.uint64), direction="RIGHT")
        return graph.cast(graph.op("BitwiseXor", whole, down), "INT64")

    for _ in range(2):
        z = graph.op("Add", z, signed(golden))
        z = graph.op("Mul", shifted(z, 30), signed(0xBF58476D1CE4E5B9))
        z = graph.op("Mul", shifted(z, 27), signed(0x94D049BB133111EB))
        z = shifted(z, 31)
    return z


def _text_scores(graph: Graph, document: ForestModel, weights: Array) -> str:
    """What the buckets of the texts add to the scores, (n, classes); `weights` are (buckets, classes)."""
    rows = np.zeros(4096, dtype=np.int64)
    rows[list(document.buckets)] = np.arange(1, len(document.buckets) + 1)
    hashed = _hashed(graph, TEXTS, np.array(document.text_features), _BUCKET_LANE)
    top = graph.op("BitShift", graph.cast(hashed, "UINT64"), np.array(52, dtype=np.uint64), direction="RIGHT")
    row = graph.op("Gather", rows, graph.cast(top, "INT64"))
    row = graph.op("Where", graph.op("Equal", TEXTS, np.array(0)), np.array(0), row)
    table = np.vstack([np.zeros((1, weights.shape[1])), weights])
    return graph.sum(graph.op("Gather", table, row))


def _bits(graph: Graph, document: ForestModel, hashed: Sequence[tuple[int, int]]) -> str:
    """Columns of 1 where a text goes right by a hash, else 0, (n, hashed)."""
    places = {feature: place for place, feature in enumerate(document.text_features)}
    seeds = graph.op("Gather", TEXTS, np.array([places[feature] for feature, _ in hashed]), axis=1)
    found = _hashed(graph, seeds, np.array([number for _, number in hashed]), _SPLIT_LANE)
    # Below one half: its highest bit is 0.
    return graph.cast(graph.op("GreaterOrEqual", found, np.array(0)), "DOUBLE")


class _Splits:
    """The trees of a forest.

    Attributes
    ----------
    sizes
        Number of nodes of each tree.
    hashed
        Features of texts and numbers of hashes that nodes split by: each is a column after the features.
    """

    def __init__(self, document: ForestModel) -> None:
        splits = document.splits
        self.sizes = splits.sizes.whole("sizes", *splits.sizes.shape).tolist()
        count = sum(self.sizes)
        self._columns = splits.columns.whole("columns", count).tolist()
        self._values = splits.values.array("values", "<f8", count).tolist()
        self._children = splits.children.whole("children", count).tolist()
        self._features = len(document.features)
        inner = [(-1 - c, int(v)) for c, v in zip(self._columns, self._values, strict=True) if c < 0]
        coded = set(document.text_features)
        self.hashed = sorted({pair for pair in inner if pair[0] in coded})
        self._hash_columns = {pair: self._features + place for place, pair in enumerate(self.hashed)}

    def cut(self, cut: int) -> tuple[dict[str, list[Any]], int]:
        """Arguments of `Graph.trees` for the trees below a cut, and the number of their nodes."""
        nodes: dict[str, list[Any]] = {
            name: []
            for name in (
                *("nodes_treeids", "nodes_nodeids", "nodes_modes", "nodes_featureids", "nodes_truenodeids"),
                *("nodes_falsenodeids", "nodes_missing_value_tracks_true", "values", "numbers"),
                *("target_treeids", "target_nodeids", "target_ids"),
            )
        }
        first, start = 0, 0
        for tree, size in enumerate(self.sizes):
            self._tree(nodes, tree, first, start, cut)
            first, start = first + size, start + min(size, cut)
        return nodes, start

    def _tree(self, nodes: dict[str, list[Any]], tree: int, first: int, start: int, cut: int) -> None:
        """Add a tree: its nodes are renumbered, from the root on."""
        queue = [self._settled(first, 0, cut)]
        if not 0 < self._children[first + queue[0]] < cut:
            # A tree of one leaf, which runtimes read differently: a split with the leaf on both sides.
            _add(nodes, tree, 0, "BRANCH_GT", 0, 0.0, 1, 2)
            _leaf(nodes, tree, 1, start + queue[0])
            _leaf(nodes, tree, 2, start + queue[0])
            return
        for number, node in enumerate(queue):
            left = self._children[first + node]
            if not 0 < left < cut:
                _leaf(nodes, tree, number, start + node)
                continue
            column, value = self._columns[first + node], self._values[first + node]
            if column < 0:
                column, value = self._hash_columns[-1 - column, int(value)], 0.5
            _add(nodes, tree, number, "BRANCH_GT", column, value, len(queue) + 1, len(queue))
            queue += [self._settled(first, left, cut), self._settled(first, left + 1, cut)]

    def _settled(self, first: int, node: int, cut: int) -> int:
        """The node, or the one below it that all records reach: those of a hash of what has no texts."""
        while 0 < (left := self._children[first + node]) < cut:
            column, value = self._columns[first + node], self._values[first + node]
            if column >= 0 or (-1 - column, int(value)) in self._hash_columns:
                break
            node = left + bool(numerics.uniform(0, int(value), _SPLIT_LANE) < 0.5)
        return node


def _add(
    nodes: dict[str, list[Any]],
    tree: int,
    number: int,
    mode: str,
    column: int,
    value: float,
    yes: int,
    no: int,
) -> None:
    nodes["nodes_treeids"].append(tree)
    nodes["nodes_nodeids"].append(number)
    nodes["nodes_modes"].append(mode)
    nodes["nodes_featureids"].append(column)
    nodes["values"].append(value)
    nodes["nodes_truenodeids"].append(yes)
    nodes["nodes_falsenodeids"].append(no)
    nodes["nodes_missing_value_tracks_true"].append(0)


def _leaf(nodes: dict[str, list[Any]], tree: int, number: int, leaf: int) -> None:
    _add(nodes, tree, number, "LEAF", 0, 0.0, 0, 0)
    nodes["target_treeids"].append(tree)
    nodes["target_nodeids"].append(number)
    nodes["target_ids"].append(tree)
    nodes["numbers"].append(float(leaf))
