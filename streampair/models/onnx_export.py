"""Model files as ONNX graphs, with the scores and probabilities of the model (docs/models.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, RecordError, SnapshotError
from streampair.kernels import numerics
from streampair.models.format import (
    FORMAT,
    VERSION,
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
)
from streampair.models.onnx_forest import add_forest
from streampair.models.onnx_graph import FEATURES, PROBABILITIES, SCORE, TEXTS, Graph, load_onnx
from streampair.records.features import hashes

if TYPE_CHECKING:
    import onnx

__all__ = ["facts_of", "inputs_of", "onnx_of"]

Array = NDArray[np.float64]

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
    inputs = [helper.make_tensor_value_info(FEATURES, kinds.DOUBLE, ["n", len(document.features)])]
    coded = getattr(document, "text_features", ())
    if coded:
        inputs.append(helper.make_tensor_value_info(TEXTS, kinds.INT64, ["n", len(coded)]))
    outputs = [helper.make_tensor_value_info(SCORE, kinds.DOUBLE, ["n"])]
    labels = classes_of(document)
    if labels:
        outputs.append(helper.make_tensor_value_info(PROBABILITIES, kinds.DOUBLE, ["n", len(labels)]))
    if isinstance(document, ForestModel):
        add_forest(graph, document)
    else:
        missing = graph.op("IsNaN", FEATURES)
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
    features: list[Name]
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


def inputs_of(
    document: Document, records: Sequence[Mapping[Any, Any]], read: Callable[[Any], float]
) -> dict[str, NDArray[Any]]:
    """Inputs of the graph by name.

    Parameters
    ----------
    document
        The fields of the model.
    records
        Records that the model scores.
    read
        Returns the number of a value, or the code of a text.

    Raises
    ------
    RecordError
        If there is a text where the model has learned none.
    """
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
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "class": document.class_name,
        "kind": type(document).__struct_config__.tag,
        "features": document.features,
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
        return graph.op("Where", missing, np.array(0.0), FEATURES), FEATURES
    low, high = np.array(scaling.bounds).T
    values = graph.op("Sub", graph.op("Mul", FEATURES, np.array(2.0)), high)
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
    vectors, values = _vectors(graph, missing, document.scaling)
    score = graph.op("MatMul", vectors, np.array(document.weights))
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
    known = graph.op("Where", missing, np.array(0.0), FEATURES)
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
