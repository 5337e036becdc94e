"""Model files as ONNX graphs, with the scores and probabilities of the model (docs/models.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, RecordError, SnapshotError
from streampair.kernels import forest, numerics
from streampair.models.format import (
    FORMAT,
    VERSION,
    Curve,
    Document,
    ForestModel,
    Label,
    LinearModel,
    MetricModel,
    Name,
    Promise,
    RandomForestModel,
    Scaling,
    check_version,
    classes_of,
    is_online,
)
from streampair.models.onnx_steps import FEATURES, STRINGS, FrontGraph, Recorder
from streampair.models.scoring import front_of, raw_weights
from streampair.records.features import hashes
from streampair.steps import FrozenSteps

if TYPE_CHECKING:
    import onnx

__all__ = [
    "FEATURES",
    "PROBABILITIES",
    "SCORE",
    "TEXTS",
    "Graph",
    "add_forest",
    "facts_of",
    "front_graph",
    "inputs_of",
    "load_onnx",
    "onnx_of",
]


TEXTS: Final = "texts"
SCORE: Final = "score"
PROBABILITIES: Final = "probabilities"


def load_onnx() -> Any:
    """The package onnx.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        import onnx
        import onnx.checker
        import onnx.helper
    except ImportError:
        raise ConfigError(
            "ONNX needs the package onnx, which is not installed",
            fix="pip install '.[onnx]' in the clone, or pip install onnx; or save the model as .json",
        ) from None
    return onnx


class Graph:
    """Nodes and constants of a graph; a value is known by its name."""

    def __init__(self) -> None:
        self._onnx = load_onnx()
        #: The features of the learner: an input, or what the steps in front of it return.
        self.features = FEATURES
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: NDArray[Any]) -> str:
        """Add an array, and return its name."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def op(self, kind: str, *inputs: str | NDArray[Any], name: str | None = None, **attributes: Any) -> str:
        """Add a node with one output, and return the output's name."""
        output = f"{kind.lower()}_{len(self.nodes)}" if name is None else name
        domain = "ai.onnx.ml" if kind.startswith(("Tree", "Label")) else ""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append(self._onnx.helper.make_node(kind, names, [output], domain=domain, **attributes))
        return output

    def trees(self, rows: str, leaves: int, nodes: dict[str, list[Any]]) -> str:
        """Number of the leaf that each row reaches in each of the trees, (n, trees)."""
        helper, double = self._onnx.helper, self._onnx.TensorProto.DOUBLE

        def tensor(name: str, values: list[float]) -> Any:
            return helper.make_tensor(name, double, [len(values)], values)

        found = self.op(
            "TreeEnsembleRegressor",
            rows,
            n_targets=leaves,
            nodes_values_as_tensor=tensor("nodes_values", nodes.pop("values")),
            target_weights_as_tensor=tensor("target_weights", nodes.pop("numbers")),
            **dict[str, Any](nodes),
        )
        # The operator returns floats of 32 bits, which hold whole numbers below 2^24 exactly.
        return self.op("Cast", found, to=self._onnx.TensorProto.INT64)

    def cast(self, value: str, kind: str) -> str:
        """Cast to a type such as ``"DOUBLE"``."""
        return self.op("Cast", value, to=getattr(self._onnx.TensorProto, kind))

    def sum(self, values: str, *, keep: bool = False) -> str:
        """Sum over the columns, (n,) or (n, 1)."""
        return self.op("ReduceSum", values, np.array([1]), keepdims=int(keep))

    def clip(self, values: str, limit: float) -> str:
        """Clip to [-limit, limit]."""
        return self.op("Clip", values, np.array(-limit), np.array(limit))

    def probabilities(self, curve: Curve, *, both: bool) -> None:
        """Add the output of the probabilities of two classes; not of `both`: of the one that is known."""
        spread, slope = (curve.spread, curve.slope) if curve.spread > 0.0 else (1.0, 0.0)
        odds = self.op("Div", self.op("Sub", SCORE, np.array(curve.centre)), np.array(spread))
        odds = self.op("Add", self.op("Mul", odds, np.array(slope)), np.array(curve.offset))
        high = self.op("Unsqueeze", self.op("Sigmoid", odds), np.array([1]))
        if both:
            low = self.op("Sub", np.array(1.0), high)
            self.op("Concat", low, high, axis=1, name=PROBABILITIES)
        else:
            self.op("Identity", high, name=PROBABILITIES)


Array = NDArray[np.float64]

# Lanes of the hashes of texts, as docs/models.md has them.
_BUCKET_LANE = 11
_SPLIT_LANE = 7
_MASK = 2**64 - 1


def add_forest(graph: Graph, document: ForestModel) -> None:
    """Add the score of an online forest, and the probabilities of a classifier."""
    d, blocks = len(document.features), document.blocks
    experts = document.experts
    stack = experts.stack.numbers("stack", blocks, forest.STACKED)
    mean, variance = document.mean.numbers("mean", d), document.variance.numbers("variance", d)
    present = np.isin(np.arange(d), list(document.present or ()))
    used = present | (variance > 0.0)
    linear = experts.linear.numbers("linear", blocks, d, forest.EXPERTS) * used[:, None]
    z = graph.op("Sub", graph.features, mean)
    z = graph.clip(graph.op("Div", z, np.sqrt(np.where(variance > 0.0, variance, 1.0))), 4.0)
    if present.any():
        z = graph.op("Where", present, np.array(1.0), z)
    z = graph.op("Where", graph.op("IsNaN", graph.features), np.array(0.0), z)
    # The linear parts of all experts at once: their weights, times those of the stack.
    scores = graph.op("MatMul", z, np.einsum("bdk,bk->db", linear, stack[:, : forest.EXPERTS]))
    values = graph.features
    if document.text_features:
        table = experts.texts.numbers("texts", blocks, len(document.buckets), forest.EXPERTS)
        weights = np.einsum("btk,bk->tb", table, stack[:, : forest.EXPERTS])
        scores = graph.op("Add", scores, _text_scores(graph, document, weights))
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
    boosted = _boosted_scores(graph, document)
    scores = graph.op("Add", scores, graph.op("Mul", boosted, stack[:, forest.BOOSTED]))
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
    return graph.op("Where", graph.op("Equal", texts, np.array(0)), graph.features, np.array(math.inf))


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


def _boosted_scores(graph: Graph, document: ForestModel) -> str:
    """Scores of the boosted trees, (n, classes)."""
    boosted = document.boosted
    blocks, trees, inner = boosted.columns.shape
    columns = boosted.columns.whole("columns", blocks, trees, inner)
    sets = np.ascontiguousarray(boosted.sets.whole("sets", blocks, trees, inner, 2)).view(np.uint64)[..., 0]
    thresholds: Array = boosted.thresholds.array("thresholds", "<f8", blocks, trees, inner)
    leaves = boosted.leaves.numbers("leaves", blocks, trees, inner + 1)
    bias = boosted.bias.numbers("bias", blocks)
    d = len(document.features)
    pairs = sorted(
        {(-1 - int(c), int(v)) for c, v in zip(columns[columns < 0], sets[columns < 0], strict=True)}
    )
    place_of = {pair: d + place for place, pair in enumerate(pairs)}
    rows = (
        graph.op("Concat", graph.features, _sets(graph, document, pairs), axis=1) if pairs else graph.features
    )
    scores = []
    for block in range(blocks):
        nodes = _no_nodes()
        for tree in range(trees):
            splits = [
                (place_of[-1 - column, value], 0.5) if column < 0 else (column, threshold)
                for column, value, threshold in zip(
                    columns[block, tree].tolist(),
                    sets[block, tree].tolist(),
                    thresholds[block, tree].tolist(),
                    strict=True,
                )
            ]
            _boosted_tree(nodes, tree, splits)
        reached = graph.op("Gather", leaves[block].ravel(), graph.trees(rows, trees, nodes))
        scores.append(graph.op("Add", graph.sum(reached, keep=True), np.array(bias[block])))
    return graph.op("Concat", *scores, axis=1)


def _boosted_tree(nodes: dict[str, list[Any]], tree: int, splits: Sequence[tuple[int, float]]) -> None:
    """Add a complete tree without the nodes that do not split: all records go to their left."""

    def settled(node: int) -> int:
        while node < len(splits) and splits[node][1] == math.inf:
            node = 2 * node + 1
        return node

    queue = [settled(0)]
    if queue[0] >= len(splits):
        _single_leaf(nodes, tree, (len(splits) + 1) * tree + queue[0] - len(splits))
        return
    for number, node in enumerate(queue):
        if node >= len(splits):
            _leaf(nodes, tree, number, (len(splits) + 1) * tree + node - len(splits))
            continue
        _add(nodes, tree, number, "BRANCH_GT", *splits[node], len(queue) + 1, len(queue))
        queue += [settled(2 * node + 1), settled(2 * node + 2)]


def _sets(graph: Graph, document: ForestModel, pairs: Sequence[tuple[int, int]]) -> str:
    """Columns of 1 where the code of a feature is in a set of codes, else 0, (n, pairs)."""
    boosted = document.boosted
    (count,) = boosted.coded.shape
    coded = boosted.coded.whole("coded", count)
    hashes, numbers = boosted.hashes.numbers("hashes", count), boosted.numbers.numbers("numbers", count)
    places = {feature: place for place, feature in enumerate(document.text_features)}
    found = []
    for feature, codes in pairs:
        mine = coded == feature
        ones = np.array([codes >> (1 + i) & 1 for i in range(int(mine.sum()))], dtype=np.float64)
        # No text feature, no texts.
        text: str | NDArray[np.int64] = np.zeros((1, 1), dtype=np.int64)
        if feature in places:
            text = graph.op("Gather", TEXTS, np.array([places[feature]]), axis=1)
        number = graph.op("Gather", graph.features, np.array([feature]), axis=1)
        no_text = graph.op("Equal", text, np.array(0))
        is_text = graph.op("Equal", text, np.where(hashes[mine] > 0.0, hashes[mine], -1.0).astype(np.int64))
        is_number = graph.op("And", graph.op("Equal", number, numbers[mine]), hashes[mine] == 0.0)
        hit = graph.cast(graph.op("Or", is_text, graph.op("And", is_number, no_text)), "DOUBLE")
        gap = graph.cast(graph.op("And", graph.op("IsNaN", number), no_text), "DOUBLE")
        rest = graph.op("Sub", np.array(1.0), graph.op("Add", graph.sum(hit, keep=True), gap))
        value = graph.sum(graph.op("Mul", hit, ones), keep=True)
        value = graph.op("Add", value, graph.op("Mul", gap, np.array(float(codes & 1))))
        found.append(graph.op("Add", value, graph.op("Mul", rest, np.array(float(codes >> 63 & 1)))))
    return graph.op("Concat", *found, axis=1)


def _no_nodes() -> dict[str, list[Any]]:
    """Arguments of `Graph.trees` without a node."""
    return {
        name: []
        for name in (
            *("nodes_treeids", "nodes_nodeids", "nodes_modes", "nodes_featureids", "nodes_truenodeids"),
            *("nodes_falsenodeids", "nodes_missing_value_tracks_true", "values", "numbers"),
            *("target_treeids", "target_nodeids", "target_ids"),
        )
    }


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
        nodes = _no_nodes()
        first, start = 0, 0
        for tree, size in enumerate(self.sizes):
            self._tree(nodes, tree, first, start, cut)
            first, start = first + size, start + min(size, cut)
        return nodes, start

    def _tree(self, nodes: dict[str, list[Any]], tree: int, first: int, start: int, cut: int) -> None:
        """Add a tree: its nodes are renumbered, from the root on."""
        queue = [self._settled(first, 0, cut)]
        if not 0 < self._children[first + queue[0]] < cut:
            _single_leaf(nodes, tree, start + queue[0])
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


def _single_leaf(nodes: dict[str, list[Any]], tree: int, leaf: int) -> None:
    """Add a tree of one leaf, which runtimes read differently: a split with the leaf on both sides."""
    _add(nodes, tree, 0, "BRANCH_GT", 0, 0.0, 1, 2)
    _leaf(nodes, tree, 1, leaf)
    _leaf(nodes, tree, 2, leaf)


def _leaf(nodes: dict[str, list[Any]], tree: int, number: int, leaf: int) -> None:
    _add(nodes, tree, number, "LEAF", 0, 0.0, 0, 0)
    nodes["target_treeids"].append(tree)
    nodes["target_nodeids"].append(number)
    nodes["target_ids"].append(tree)
    nodes["numbers"].append(float(leaf))


_FACTS = "streampair."

# Of 2023: the first with BitwiseXor, and the newest trees whose nodes split by doubles everywhere.
_OPSET = 18
_ML_OPSET = 3
_IR_VERSION = 8

# Seeds of the coins of a private forest, as docs/models.md has them.
_CATEGORY_SEED = 22440
_MISSING_SEED = 22448


def _check(document: Document) -> None:
    """Refuse what has no graph."""
    name = document.class_name
    if document.steps and getattr(document, "text_features", ()):
        raise ConfigError(
            f"this {name} has learned texts that its steps let pass, and such a graph has no place for them",
            fix="encode texts, as by river.preprocessing.OneHotEncoder, or save the model as .json",
        )
    if getattr(document, "shared", 0):
        raise ConfigError(
            f"this {name} has more names than max_features, and such a graph has no columns for the others",
            fix="learn with a larger max_features, or save the model as .json",
        )
    if not document.features:
        raise ConfigError(
            f"this {name} knows no features yet, so it has no ONNX graph",
            fix="export it after its first records, or save the model as .json",
        )
    if isinstance(document, MetricModel) and document.root is None:
        raise ConfigError(
            f"this {name} has learned no metric yet, so it has no ONNX graph",
            fix="export it after its warm-up, or save the model as .json",
        )
    if isinstance(document, ForestModel) and document.classes is not None and not document.classes.labels:
        raise ConfigError(
            f"this {name} has learned no class yet, so it has no ONNX graph",
            fix="export it after its first labels, or save the model as .json",
        )


def onnx_of(document: Document, version: str) -> onnx.ModelProto:
    """The graph of a model.

    Parameters
    ----------
    document
        The fields of the model.
    version
        Of this release.

    Raises
    ------
    ConfigError
        If the package onnx is not installed, or the model has no graph.
    """
    graph, package = Graph(), load_onnx()
    _check(document)
    helper, kinds = package.helper, package.TensorProto
    widths = {FEATURES: len(document.features), TEXTS: len(getattr(document, "text_features", ()))}
    if document.steps or is_online(document):
        front = FrontGraph(document, front_of(document), graph)
        graph.features = front.features
        widths = {FEATURES: len(front.numbers), STRINGS: len(front.strings)}
    types = {FEATURES: kinds.DOUBLE, TEXTS: kinds.INT64, STRINGS: kinds.STRING}
    inputs = [
        helper.make_tensor_value_info(name, types[name], ["n", width])
        for name, width in widths.items()
        if width
    ]
    outputs = [helper.make_tensor_value_info(SCORE, kinds.DOUBLE, ["n"])]
    labels = classes_of(document)
    if labels:
        outputs.append(helper.make_tensor_value_info(PROBABILITIES, kinds.DOUBLE, ["n", len(labels)]))
    if isinstance(document, ForestModel):
        add_forest(graph, document)
    else:
        missing = graph.op("IsNaN", graph.features)
        if isinstance(document, MetricModel):
            assert document.root is not None
            mapped = graph.op(
                "MatMul", _vectors(graph, missing, document.scaling)[0], np.array(document.root).T
            )
            graph.op("Sqrt", graph.sum(graph.op("Mul", mapped, mapped)), name=SCORE)
        else:
            assert isinstance(document, LinearModel)
            _linear(graph, missing, document)
    made = helper.make_model(
        helper.make_graph(graph.nodes, "streampair", inputs, outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)],
        ir_version=_IR_VERSION,
        producer_name="streampair",
        producer_version=version,
    )
    helper.set_model_props(made, _facts(document))
    package.checker.check_model(made)
    return made  # type: ignore[no-any-return]


def _whole(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else "unknown"


class _Facts(msgspec.Struct, rename={"class_name": "class"}):
    class_name: str
    kind: str
    steps: list[str]
    features: list[Name]
    strings: list[Name]
    classes: list[Label]
    slots: int
    time: int | None
    privacy: Promise | None
    metadata: dict[str, Any]


def facts_of(data: bytes) -> dict[str, Any]:
    """What goes with a graph that `onnx_of` has made, by name.

    Raises
    ------
    ConfigError
        If the package onnx is not installed.
    SnapshotError
        If the data are no such graph.
    """
    package = load_onnx()
    try:
        made = package.ModelProto.FromString(data)
        found = {entry.key.removeprefix(_FACTS): entry.value for entry in made.metadata_props}
    except Exception as error:  # of the parser of protocol buffers, whose package is not ours
        raise SnapshotError(
            f"this is not an ONNX graph: it is damaged or cut short ({type(error).__name__})",
            fix="give an undamaged copy, or export the model again",
        ) from None
    if found.get("format") != json.dumps(FORMAT):
        raise SnapshotError(
            "this ONNX graph is not a model of streampair",
            fix="give what `streampair model export` or streampair.models.save has written",
        )
    check_version(_whole(found.get("version", "")))
    try:
        facts = msgspec.convert({name: json.loads(value) for name, value in found.items()}, _Facts)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise SnapshotError(
            f"the model is damaged ({error})", fix="give an undamaged copy, or export the model again"
        ) from None
    plain: dict[str, Any] = msgspec.to_builtins(facts)
    return plain


def front_graph(document: Document, front: FrozenSteps | None) -> FrontGraph | None:
    """What is in front of the learner in the graph of a model with these steps, without the graph.

    None: nothing is, so its inputs are the features of the learner.
    """
    return FrontGraph(document, front, Recorder()) if document.steps or is_online(document) else None


def inputs_of(
    document: Document,
    front: FrontGraph | None,
    records: Sequence[Mapping[Any, Any]],
    read: Callable[[Any], float],
) -> dict[str, NDArray[Any]]:
    """Inputs of the graph by name.

    Parameters
    ----------
    document
        The fields of the model.
    front
        What is in front of the learner, as `front_graph` returns it.
    records
        Records that the model scores.
    read
        Returns the number of a value, or the code of a text.

    Raises
    ------
    RecordError
        If there is a text where the model has learned none, or several categories in one field.
    """
    if front is not None:
        return front.inputs(records)
    values = np.full((len(records), len(document.features)), math.nan)
    for i, x in enumerate(records):
        for j, name in enumerate(document.features):
            if name in x:
                values[i, j] = read(x[name])
    texts, coded = hashes(values), list(getattr(document, "text_features", ()))
    stray = texts != 0
    stray[:, coded] = False
    for i, j in np.argwhere(stray).tolist():
        raise RecordError(
            f"in record {i}, feature {document.features[j]!r} is a text, and the model has learned none",
            fix="give a number, leave the feature out, or score with the model file",
            stage="features",
        )
    values[texts != 0] = math.nan
    return {FEATURES: values, TEXTS: texts[:, coded]} if coded else {FEATURES: values}


def _facts(document: Document) -> dict[str, str]:
    """What is no part of the graph: JSON by name."""
    names: dict[str, Sequence[Name]] = {"features": document.features, "strings": ()}
    if (front := front_graph(document, front_of(document))) is not None:
        names = {
            "features": [field.name for field in front.numbers],
            "strings": [field.name for field in front.strings],
        }
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "class": document.class_name,
        "kind": type(document).__struct_config__.tag,
        "steps": [step.name for step in document.steps or ()],
        **names,
        "text_features": [document.features[j] for j in getattr(document, "text_features", ())],
        "classes": classes_of(document),
        "slots": document.slots,
        "time": document.time,
        "privacy": document.privacy,
        "metadata": document.metadata,
    }
    return {f"{_FACTS}{name}": json.dumps(msgspec.to_builtins(value)) for name, value in facts.items()}


# ---- linear models, metrics ------------------------------------------------------------------------------


def _vectors(graph: Graph, missing: str, scaling: Scaling | None) -> tuple[str, str]:
    """Vectors (n, d) of the records; and their values as they are after step 2 of the scaling."""
    if scaling is None:
        return graph.op("Where", missing, np.array(0.0), graph.features), graph.features
    low, high = np.array(scaling.bounds).T
    values = graph.op("Sub", graph.op("Mul", graph.features, np.array(2.0)), high)
    values = graph.op("Div", graph.op("Sub", values, low), high - low)
    if scaling.mean is not None and scaling.factor is not None:
        values = graph.op("Sub", graph.clip(values, 1.0), np.array(scaling.mean))
        values = graph.op("Mul", values, np.array(scaling.factor))
        if scaling.cap is not None:
            values = graph.clip(values, scaling.cap)
    known = graph.op("Where", missing, np.array(0.0), values)
    norm = graph.op("Sqrt", graph.sum(graph.op("Mul", known, known), keep=True))
    return graph.op("Div", known, graph.op("Max", norm, np.array(1.0))), values


def _linear(graph: Graph, missing: str, document: LinearModel) -> None:
    vectors, values, weights = graph.features, graph.features, raw_weights(document)[0]
    if not is_online(document):
        vectors, values = _vectors(graph, missing, document.scaling)
        if document.running:
            vectors = graph.op("Sub", vectors, raw_weights(document)[1])
    score = graph.op("MatMul", vectors, weights)
    if isinstance(document, RandomForestModel):
        assert document.scaling is not None
        if document.scaling.mean is not None:
            assert document.scaling.cap is not None
            places = _places(graph, missing, values, document.scaling.cap, document.field_sizes)
            score = graph.op("Add", score, _complete_trees(graph, places, document))
    graph.op("Identity", score, name=SCORE)
    if document.probability is not None:
        graph.probabilities(document.probability, both=len(classes_of(document)) == 2)


# ---- private forests -------------------------------------------------------------------------------------


def _places(graph: Graph, missing: str, values: str, cap: float, sizes: Sequence[int]) -> str:
    """Place of a record in each field, (n, fields): NaN for a missing number."""
    starts = np.cumsum([0, *sizes[:-1]])
    numeric = [field for field, size in enumerate(sizes) if size == 1]
    order = list(numeric)
    parts = []
    if numeric:
        z = graph.op("Gather", values, starts[numeric], axis=1)
        z = graph.op("Div", graph.op("Mul", z, np.array(3.0)), np.array(cap))
        norm = graph.op("Sqrt", graph.op("Add", graph.op("Mul", z, z), np.array(0.98)))
        half = graph.op("Div", graph.op("Mul", z, np.array(0.5)), norm)
        parts.append(graph.op("Add", half, np.array(0.5)))
    known = graph.op("Where", missing, np.array(0.0), graph.features)
    for field, size in enumerate(sizes):
        if size > 1:
            cells = graph.op("Gather", known, starts[field] + np.arange(size), axis=1)
            on = graph.cast(graph.op("Greater", cells, np.array(0.5)), "DOUBLE")
            # A last column of ones: the place of a record without any of the categories.
            on = graph.op("Pad", on, np.array([0, 0, 0, 1]), np.array(1.0))
            parts.append(graph.cast(graph.op("ArgMax", on, axis=1, keepdims=1), "DOUBLE"))
            order.append(field)
    both = parts[0] if len(parts) == 1 else graph.op("Concat", *parts, axis=1)
    return graph.op("Gather", both, np.argsort(order), axis=1)


def _complete_trees(graph: Graph, places: str, document: RandomForestModel) -> str:
    """Sum of the weights of the leaves that a record reaches, (n,)."""
    fields, values, weights = document.arrays()
    trees, count = fields.shape
    sizes = np.array(document.field_sizes)[fields]
    missing = np.zeros((trees, count), dtype=bool)
    offsets = np.zeros((trees, count), dtype=np.int64)
    coins: list[bool] = [False]
    for t, n in np.ndindex(trees, count):
        if sizes[t, n] == 1:
            missing[t, n] = _uniform(_MISSING_SEED, t, 65536 * n) < 0.5
            continue
        offsets[t, n] = len(coins)
        seed = _CATEGORY_SEED + int(values[t, n])
        coins += [_uniform(seed, t, 65536 * n + c) < 0.5 for c in range(sizes[t, n] + 1)]
    first = count * np.arange(trees)[None]

    def of(table: NDArray[Any], cells: str | NDArray[Any]) -> str | NDArray[Any]:
        return graph.op("Gather", table.ravel(), cells) if isinstance(cells, str) else table.ravel()[cells]

    node: str | NDArray[Any] = np.ones((1, trees), dtype=np.int64)
    for _ in range(count.bit_length() - 1):
        cells = graph.op("Add", node, first) if isinstance(node, str) else node + first
        field = of(fields.astype(np.int64), cells)
        if isinstance(field, str):
            place = graph.op("GatherElements", places, field, axis=1)
        else:
            place = graph.op("Gather", places, field[0], axis=1)
        nothing = graph.op("IsNaN", place)
        right = graph.op("And", nothing, of(missing, cells))
        right = graph.op("Or", right, graph.op("Greater", place, of(values, cells)))
        if len(coins) > 1:
            number = graph.cast(graph.op("Where", nothing, np.array(0.0), place), "INT64")
            # Places of numbers are in [0, 1): of their nodes the coin is the first, which is never right.
            coin = graph.op("Gather", np.array(coins), graph.op("Add", number, of(offsets, cells)))
            right = graph.op("Or", coin, graph.op("And", right, of(sizes == 1, cells)))
        twice = graph.op("Mul", node, np.array(2))
        node = graph.op("Add", twice, graph.cast(right, "INT64"))
    leaf = graph.op("Add", node, first - count)
    return graph.sum(graph.op("Gather", weights.ravel(), leaf))


def _uniform(seed: int, counter: int, lane: int) -> float:
    return float(numerics.uniform(seed, counter, lane))
