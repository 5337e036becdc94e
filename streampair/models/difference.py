"""What differs between two model files."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.kernels import forest
from streampair.models.format import (
    Document,
    ForestModel,
    LinearModel,
    MetricModel,
    RandomForestModel,
    classes_of,
)

__all__ = ["difference"]

Array = NDArray[np.float64]


def difference(before: Document, after: Document) -> dict[str, Any]:
    """What differs between two models, as JSON can hold it.

    Returns
    -------
    dict
        `same`: whether scores, labels and probabilities are the same for all records. `features`: lists of
        those `added` and `removed`. `weights`: `before` and `after` of each feature whose weight differs, the
        largest changes first, a feature that is not there with None; of several classes for each class.
        `trees`, of forests: nodes `before` and `after`. `changed`: what else differs, each with `before` and
        `after`.
    """
    old, new = set(before.features), set(after.features)
    changed: dict[str, Any] = {}
    for name, values in _facts(before).items():
        if values != (other := _facts(after)[name]):
            changed[name] = {"before": values, "after": other}
    found: dict[str, Any] = {
        "same": _scored_by(before) == _scored_by(after),
        "changed": changed,
        "features": {
            "added": [name for name in after.features if name not in old],
            "removed": [name for name in before.features if name not in new],
        },
        "weights": _moved(_weights(before), _weights(after)),
    }
    sizes = _nodes(before), _nodes(after)
    if any(sizes):
        found["trees"] = {"before": sizes[0], "after": sizes[1]}
    return found


def _facts(document: Document) -> dict[str, Any]:
    privacy = document.privacy
    return {
        "class": document.class_name,
        "kind": type(document).__struct_config__.tag,
        "slots": document.slots,
        "time": document.time,
        "classes": list(classes_of(document)),
        "epsilon_spent": None if privacy is None else privacy.epsilon_spent,
        "epsilon_budget": None if privacy is None else privacy.epsilon_budget,
        "guarantee": None if privacy is None else privacy.kind,
        "application": document.metadata.get("application"),
        "configuration": document.metadata.get("configuration"),
    }


def _scored_by(document: Document) -> dict[str, Any]:
    """All fields that scores, labels and probabilities depend on."""
    others = {"class_name", "slots", "time", "privacy", "metadata"}
    fields = {name: getattr(document, name) for name in document.__struct_fields__ if name not in others}
    return {"kind": type(document), **fields}


def _weights(document: Document) -> dict[Hashable, dict[Hashable, float]]:
    """Weights by feature, of each class of several; empty for a metric."""
    if isinstance(document, LinearModel):
        return {None: dict(zip(document.features, document.weights, strict=True))}
    if not isinstance(document, ForestModel):
        return {}
    blocks, d = document.blocks, len(document.features)
    stack = document.experts.stack.numbers("stack", blocks, forest.STACKED)[:, : forest.EXPERTS]
    linear = document.experts.linear.numbers("linear", blocks, d, forest.EXPERTS)
    # The linear parts of the experts, as the stack weighs them: for standardised values.
    weights = np.einsum("bdk,bk->bd", linear, stack)
    labels = (None,) if document.classes is None else document.classes.labels or (None,)
    return {
        label: dict(zip(document.features, row.tolist(), strict=True))
        for label, row in zip(labels, weights, strict=True)
    }


def _moved(
    before: Mapping[Hashable, Mapping[Hashable, float]], after: Mapping[Hashable, Mapping[Hashable, float]]
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for label in dict.fromkeys([*before, *after]):
        old, new = before.get(label, {}), after.get(label, {})
        for name in dict.fromkeys([*old, *new]):
            was, now = old.get(name), new.get(name)
            if was != now:
                row: dict[str, Any] = {"feature": name, "before": was, "after": now}
                rows.append(row if label is None else {"class": label, **row})
    rows.sort(key=lambda row: -abs((row["after"] or 0.0) - (row["before"] or 0.0)))
    return rows


def _nodes(document: Document) -> int:
    """Number of nodes of the trees; of a metric and of linear models 0."""
    if isinstance(document, ForestModel):
        return int(document.splits.sizes.whole("sizes", *document.splits.sizes.shape).sum())
    if isinstance(document, RandomForestModel) and document.scaling is not None:
        trees, leaves = document.leaf_weights.shape
        return trees * (2 * leaves - 1) if document.scaling.mean is not None else 0
    assert isinstance(document, LinearModel | MetricModel)
    return 0
