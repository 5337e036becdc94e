"""Online forests as model files: from a learner to the fields, and back to a state that scores."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair import auc, ranking
from streampair.base.boosted import BoostedTrees, Ring, check_columns
from streampair.base.forest import ForestLearner, check_trees, columns_of, sections_of
from streampair.kernels import boosted_trees, forest
from streampair.models.format import BoostedSplits, EncodedArray, Experts, ForestModel, Splits
from streampair.records import features

__all__ = ["forest_of", "forest_parts"]

Array = NDArray[np.float64]


# Values of a feature, all equal, from which on one stands for its presence.
_UNVARIED = forest._UNVARIED
# Of a restored forest: more than _UNVARIED, and a power of 2, so that the spread of the labels is exact.
_RECORDS = 8.0


def _cuts(nodes: int) -> tuple[int, int, int]:
    """Cuts of the experts 1, 2 and 3."""
    one, two, three = (int(forest.forest_cut(k, nodes)) for k in (1, 2, 3))
    return one, two, three


def _leaf_views(block: Array, trees: int, nodes: int) -> list[Array]:
    """Views of the node weights of the experts 1, 2 and 3 in a block, (trees, cut)."""
    leaves, views, start = sections_of(block)["leaves"], [], 0
    for cut in _cuts(nodes):
        end = start + 2 * trees * cut
        views.append(leaves[start:end].reshape(trees, cut, 2)[:, :, 0])
        start = end
    return views


def _text_view(block: Array) -> Array:
    """View of the text weights in a block, (buckets, experts)."""
    texts: Array = sections_of(block)["texts"].reshape(-1, 2, forest.EXPERTS)[:, 0]
    return texts


def _used(sizes: NDArray[Any], most: int) -> NDArray[np.bool_]:
    """Which of the first `most` nodes of each tree exist, (trees, most)."""
    used: NDArray[np.bool_] = np.arange(most) < sizes[:, None]
    return used


def forest_parts(learner: ForestLearner) -> dict[str, Any]:
    """What a forest scores by, as fields of its model; what it only learns by is left out."""
    state, blocks, trees, nodes = learner._state, learner._blocks(), learner.trees, learner.nodes
    columns, sections = columns_of(state), sections_of(state)
    counts, squares = columns["counts"], columns["squares"]
    variance = np.divide(squares, counts, out=np.zeros_like(squares), where=counts > 0.0)
    some = (counts >= _UNVARIED) & (counts < state[forest.FOREST_RECORDS]) & (squares <= 0.0)
    sizes = sections["used"].astype(np.int64)
    cells = sections["nodes"].reshape(trees, nodes, 2)[_used(sizes, nodes)]
    links = np.ascontiguousarray(cells).view(np.int32).reshape(-1, 4)
    # A leaf keeps a value of a record for its next split.
    inner = links[:, 3] > 0
    texts = [_text_view(block) for block in blocks] if learner._coded else []
    buckets = (
        np.flatnonzero(np.any([view.any(axis=1) for view in texts], axis=0)) if texts else np.empty(0, int)
    )
    leaves = [
        np.array([view[_used(sizes, view.shape[1])] for view in views])
        for views in zip(*(_leaf_views(block, trees, nodes) for block in blocks), strict=True)
    ]
    squared = state[forest.FOREST_TASK] == 1.0
    records = float(state[forest.FOREST_RECORDS])
    stack = slice(forest.FOREST_STACK, forest.FOREST_STACK + forest.STACKED)
    return {
        "label_mean": float(state[forest.FOREST_MEAN]) if squared else None,
        "label_variance": (float(state[forest.FOREST_SPREAD]) / max(records, 1.0)) if squared else None,
        "text_features": tuple(learner._coded),
        "buckets": tuple(buckets.tolist()),
        "mean": EncodedArray.floats(columns["means"]),
        "variance": EncodedArray.floats(variance),
        "present": tuple(np.flatnonzero(some).tolist()) if some.any() else msgspec.UNSET,
        "cuts": _cuts(nodes),
        "splits": Splits(
            sizes=EncodedArray.integers(sizes),
            columns=EncodedArray.integers(np.where(inner, links[:, 2], 0)),
            values=EncodedArray.floats(np.where(inner, cells[:, 0], 0.0)),
            children=EncodedArray.integers(np.where(inner, links[:, 3], 0)),
        ),
        "experts": Experts(
            stack=EncodedArray.floats(np.array([block[stack] for block in blocks])),
            linear=EncodedArray.floats(np.array([columns_of(block)["weights"] for block in blocks])),
            texts=EncodedArray.floats(
                np.array([view[buckets] for view in texts])
                if texts
                else np.empty((len(blocks), 0, forest.EXPERTS))
            ),
            leaves=(
                EncodedArray.floats(leaves[0]),
                EncodedArray.floats(leaves[1]),
                EncodedArray.floats(leaves[2]),
            ),
        ),
        "boosted": _boosted_parts(learner),
    }


def _boosted_parts(learner: ForestLearner) -> BoostedSplits:
    """The boosted trees of all classes, and the codes of texts."""
    ring = Ring(learner._state)
    trees = [BoostedTrees(block, ring) for block in learner._blocks()]
    columns = np.array([each.columns for each in trees])
    marks = np.array([each.marks for each in trees])
    codes = [(j, key) for j, row in enumerate(ring.columns) for key in row[: _known(row)].tolist()]
    keys = np.array([key for _, key in codes], dtype=np.int64)
    values = keys.view(np.float64)
    return BoostedSplits(
        bias=EncodedArray.floats(np.array([each.bias for each in trees])),
        columns=EncodedArray.integers(columns),
        thresholds=EncodedArray.floats(np.where(columns < 0, 0.0, marks.view(np.float64))),
        sets=EncodedArray.integers(np.where(columns < 0, marks, 0)[..., None].view(np.int32)),
        leaves=EncodedArray.floats(np.array([each.values for each in trees])),
        coded=EncodedArray.integers(np.array([j for j, _ in codes], dtype=np.int64)),
        hashes=EncodedArray.floats(np.where(np.isnan(values), keys & forest.PAYLOAD, 0)),
        numbers=EncodedArray.floats(np.nan_to_num(values, nan=0.0)),
    )


def _known(row: NDArray[np.int64]) -> int:
    """Number of codes of a column of a ring."""
    return max(-1 - int(row.view(np.float64)[-1]), 0)


def _restore_boosted(learner: ForestLearner, document: ForestModel) -> None:
    """Fill the boosted trees of all classes, and the codes of texts."""
    ring, boosted, blocks = Ring(learner._state), document.boosted, document.blocks
    size, inner = (blocks, boosted_trees.BOOSTED_TREES), boosted_trees.INNER
    columns = boosted.columns.whole("columns", *size, inner).astype(np.int64)
    check_columns(columns, ring.d)
    thresholds: Array = boosted.thresholds.array("thresholds", "<f8", *size, inner)
    if np.isnan(thresholds).any():
        raise ValueError("a threshold is no number")
    sets = np.ascontiguousarray(boosted.sets.whole("sets", *size, inner, 2)).view(np.int64)[..., 0]
    leaves = boosted.leaves.numbers("leaves", *size, boosted_trees.LEAVES)
    bias = boosted.bias.numbers("bias", blocks)
    count = boosted.coded.shape[0] if len(boosted.coded.shape) == 1 else -1
    coded = boosted.coded.whole("coded", count)
    hashes, numbers = boosted.hashes.numbers("hashes", count), boosted.numbers.numbers("numbers", count)
    if not ((hashes >= 0.0) & (hashes <= forest.PAYLOAD) & (hashes % 1.0 == 0.0)).all():
        raise ValueError("a code has a hash that no text has")
    keys = np.where(hashes > 0.0, features.code_bits(hashes.astype(np.int64)), numbers.view(np.int64))
    for j in np.unique(coded).tolist():
        found = keys[coded == j]
        if not 0 <= j < ring.d or len(found) > boosted_trees.REST - 1:
            raise ValueError("codes of no feature, or too many")
        ring.columns[j, : len(found)] = found
        ring.columns[j, -1:].view(np.float64)[:] = -1.0 - len(found)
    ring.cells[boosted_trees.RING_TEXTS] = float(len(coded) > 0)
    for i, block in enumerate(learner._blocks()):
        trees = BoostedTrees(block, ring)
        trees.fill(float(bias[i]), columns[i], thresholds[i].view(np.int64), leaves[i])
        trees.marks[columns[i] < 0] = sets[i][columns[i] < 0]


def forest_of(document: ForestModel) -> ForestLearner:
    """A learner that scores by a model; it is never to learn.

    Raises
    ------
    ValueError
        If the parts do not fit together.
    """
    trees, d, blocks = _size_of(document), len(document.features), document.blocks
    most = document.cuts[2]
    if not 1 <= most <= 32_767 or document.cuts != _cuts(most):
        raise ValueError("cuts are out of range")
    splits, experts = document.splits, document.experts
    sizes = splits.sizes.whole("sizes", trees)
    if not ((sizes >= 1) & (sizes <= most)).all():
        raise ValueError("a tree has too many nodes")
    nodes = int(sizes.max())  # no tree will grow
    learner = _new(document, trees, nodes)
    header = learner._header()
    if document.label_mean is not None:
        assert document.label_variance is not None
        header[forest.FOREST_MEAN] = document.label_mean
        header[forest.FOREST_SPREAD] = _RECORDS * document.label_variance
    header[forest.FOREST_RECORDS] = _RECORDS
    learner._allocate(document.features, header, capacity=d, coded=document.text_features)
    for label in () if document.classes is None else document.classes.labels:
        assert isinstance(learner, auc.MulticlassForest)
        learner._admit(label)
    columns, sections = columns_of(learner._state), sections_of(learner._state)
    _restore_moments(columns, document)
    sections["used"][:] = sizes
    sections["nodes"].view(np.int64)[:] = _nodes_of(splits, sizes, nodes, d).ravel()
    stack = experts.stack.numbers("stack", blocks, forest.STACKED)
    linear = experts.linear.numbers("linear", blocks, d, forest.EXPERTS)
    buckets = list(document.buckets)
    texts = experts.texts.numbers("texts", blocks, len(buckets), forest.EXPERTS)
    if buckets and not document.text_features:
        raise ValueError("there are weights of texts without a feature of texts")
    leaves = [
        part.numbers("leaves", blocks, int(np.minimum(sizes, cut).sum()))
        for part, cut in zip(experts.leaves, document.cuts, strict=True)
    ]
    for i, block in enumerate(learner._blocks()):
        block[forest.FOREST_STACK : forest.FOREST_STACK + forest.STACKED] = stack[i]
        columns_of(block)["weights"][...] = linear[i]
        if buckets:
            _text_view(block)[buckets] = texts[i]
        for view, part in zip(_leaf_views(block, trees, nodes), leaves, strict=True):
            view[_used(sizes, view.shape[1])] = part[i]
    _restore_boosted(learner, document)
    return learner


def _restore_moments(columns: Any, document: ForestModel) -> None:
    """Fill counts, means and variances of the features."""
    d = len(document.features)
    columns["counts"][:] = 1.0
    columns["means"][:] = document.mean.numbers("mean", d)
    columns["squares"][:] = document.variance.numbers("variance", d)
    if (columns["squares"] < 0.0).any():
        raise ValueError("a variance is below 0")
    present = list(document.present or ())
    if columns["squares"][present].any():
        raise ValueError("a feature that stands for its presence has a variance")
    columns["counts"][present] = _UNVARIED


def _size_of(document: ForestModel) -> int:
    shape = document.splits.sizes.shape
    if len(shape) != 1 or not 1 <= shape[0] <= 1000:
        raise ValueError("sizes has another shape")
    return shape[0]


def _new(document: ForestModel, trees: int, nodes: int) -> ForestLearner:
    """A learner of this size that has learned nothing."""
    most = max(len(document.features), 1)
    if document.classes is not None:
        return auc.MulticlassForest(
            trees,
            nodes,
            positive=document.classes.positive,
            max_classes=max(len(document.classes.labels), 2),
            seed=0,
            max_features=most,
        )
    if document.relevance is not None:
        return ranking.Forest(trees, nodes, seed=0, max_features=most)
    return auc.Forest(trees, nodes, seed=0, max_features=most)


def _nodes_of(splits: Splits, sizes: NDArray[np.int32], nodes: int, d: int) -> NDArray[np.int64]:
    """Nodes as a state has them, (trees, nodes, 2): checked, for a descent must end in a leaf."""
    count = int(sizes.sum())
    columns, children = splits.columns.whole("columns", count), splits.children.whole("children", count)
    values: Array = splits.values.array("values", "<f8", count)
    if np.isnan(values).any() or (values == math.inf).any():
        raise ValueError("a threshold is no number")
    if (values[columns < 0] % 1.0 != 0.0).any():
        raise ValueError("the number of a hash is not whole")
    links = np.zeros((count, 4), dtype=np.int32)
    links.view(np.float64)[:, 0] = values
    links[:, 2], links[:, 3] = columns, children
    out = np.zeros((len(sizes), nodes, 2), dtype=np.int64)
    out[_used(sizes, nodes)] = links.view(np.int64)
    if (children < 0).any():
        raise ValueError("a child has a number below 0")
    check_trees(sizes.astype(np.int64), out, d)
    return out
