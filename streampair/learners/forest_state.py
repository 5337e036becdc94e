"""The flat state of a forest: where everything is, and what is saved of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampair import kernels as k

if TYPE_CHECKING:
    from streampair.learners.forest import ForestLearner

__all__ = ["columns_of", "exported", "pairs_moved", "pairs_widened", "restore", "sections_of"]

Array = NDArray[np.float64]
Bits = NDArray[np.int64]

_VISITS = 20
_SALTS = 1 << 20
_SCALARS = ("RECORDS", "DRAWS", "SEED", "SINCE")
_AVERAGES = ("BEST", "SLOW", "SEEN")
_LABELS = ("MEAN", "SPREAD")  # of a forest that fits them by least squares
_LINK = ("INFORMATION", "CENTRE", "SPREAD", "OFFSET", "SLOPE")  # of a forest that learns from pairs
_STACKED = ("STACK", "STEPS", "LOSSES")
# What a column has: its place among the cells of columns, and how many cells.
_PARTS = {"counts": (0, 1), "means": (1, 1), "squares": (2, 1), "weights": (3, 4), "sums": (7, 4)}
_GAINS = {"gains": (14, 1), "decisions": (15, 1)}  # of a forest in which they guide


def columns_of(state: Array) -> dict[str, Array]:
    """Views of what each known column has, shape (d,) or (d, experts)."""
    d, cap = int(state[k.FOREST_D]), int(state[k.FOREST_CAP])
    views = {}
    for name, (first, each) in (_PARTS | _GAINS if state[k.FOREST_GUIDED] else _PARTS).items():
        at = k.FOREST_HEADER + first * cap
        view = state[at : at + each * d]
        views[name] = view if each == 1 else view.reshape(d, each)
    return views


def sections_of(state: Array) -> dict[str, Array]:
    """Views of the weights of texts, how many nodes of each tree are used, the nodes, their weights."""
    scalars = (k.FOREST_TREES, k.FOREST_NODES, k.FOREST_CAP, k.FOREST_TEXTS)
    at = k.forest_places(*(int(state[i]) for i in scalars))
    return {name: state[at[i] : at[i + 1]] for i, name in enumerate(("texts", "leaves", "used", "nodes"))}


def _pairs_of(tail: Array, trees: int, cap: int, d: int) -> tuple[Array, Bits]:
    """Views of how many records of each class came, and of the bits of those that are kept, (2, kept, d)."""
    at_came, at_own, _, at_kept, end = k.forest_pair_places(trees, cap)
    kept = tail[at_kept:end].view(np.int64).reshape(2, k.FOREST_KEPT, cap)
    return tail[at_came:at_own], kept[:, :, :d]


def pairs_moved(learner: ForestLearner, before: Array, cap: int, d: int) -> None:
    """Take what pairs need from a tail of `cap` columns, d of them known."""
    tail = learner._tail
    tail[: k.FOREST_LINK] = before[: k.FOREST_LINK]
    came, kept = _pairs_of(tail, learner.trees, int(learner._state[k.FOREST_CAP]), d)
    old_came, old = _pairs_of(before, learner.trees, cap, d)
    came[:] = old_came
    kept[...] = old


def pairs_widened(learner: ForestLearner, d: int) -> None:
    """The kept records have gaps in the columns from d on, which are new."""
    _, kept = _pairs_of(learner._tail, learner.trees, int(learner._state[k.FOREST_CAP]), learner._d)
    kept[:, :, d:] = np.array([np.nan]).view(np.int64)


def _exported_pairs(learner: ForestLearner) -> dict[str, Any]:
    tail, d = learner._tail, len(learner.feature_names)
    came, kept = _pairs_of(tail, learner.trees, int(learner._state[k.FOREST_CAP]), d)
    link = np.array([tail[getattr(k, name)] for name in _LINK])
    return {"link": link, "came": came.astype(np.int64), "kept": kept.copy()}


def _checked_pairs(saved: Mapping[str, Any], d: int) -> tuple[Array, Bits, Bits]:
    """Link, counts and kept records: kernels trust counts as indices, and records as usable."""
    link, came = _floats(saved["link"], (len(_LINK),)), _whole_numbers(saved["came"], (2,))
    if link[0] < 0.0 or link[2] < 0.0 or link[4] < k.LEAST:
        raise ValueError("a link that is none")
    if not ((came >= 0) & (came < 2**53)).all():
        raise ValueError("counts of records out of range")
    kept = _whole_numbers(saved["kept"], (2, k.FOREST_KEPT, d))
    if (np.abs(kept.view(np.float64)) > k.MAX_ABS).any():
        raise ValueError("kept records that cannot be")
    return link, came, kept


def exported(learner: ForestLearner) -> dict[str, Any]:
    """What has been learned, as plain values and arrays."""
    state = learner._state
    sections = sections_of(state)
    coded = np.zeros(len(learner.feature_names), dtype=np.int64)
    coded[list(learner._coded)] = 1
    stacked = [getattr(k, f"FOREST_{name}") for name in _STACKED]
    return {
        "names": list(learner.feature_names),
        "coded": coded,
        "scalars": {name: float(state[getattr(k, f"FOREST_{name}")]) for name in _SCALARS},
        "averages": _scalars(state, _AVERAGES),
        "stack": np.array([state[at : at + k.EXPERTS] for at in stacked]),
        **({"labels": _scalars(state, _LABELS)} if learner._squared else {}),
        **({"base": _scalars(state, ("BASE",))} if state[k.FOREST_GUIDED] else {}),
        **({} if learner._pairs is None else {"pairs": _exported_pairs(learner)}),
        **{name: view.copy() for name, view in columns_of(state).items()},
        **({"texts": sections["texts"].copy()} if learner._coded else {}),
        "used": sections["used"].astype(np.int64),
        "nodes": sections["nodes"].view(np.int64).copy(),
        "leaves": sections["leaves"].copy(),
        "y_name": learner._y_name,
        **learner._learned_labels(),
    }


def exported_block(block: Array, *, texts: bool) -> dict[str, Any]:
    """What a further class has learned."""
    columns, sections = columns_of(block), sections_of(block)
    stacked = [getattr(k, f"FOREST_{name}") for name in _STACKED]
    return {
        "since": float(block[k.FOREST_SINCE]),
        "averages": _scalars(block, _AVERAGES),
        "stack": np.array([block[at : at + k.EXPERTS] for at in stacked]),
        **{name: columns[name].copy() for name in ("weights", "sums")},
        **({"texts": sections["texts"].copy()} if texts else {}),
        "leaves": sections["leaves"].copy(),
    }


def restore_block(block: Array, saved: Mapping[str, Any]) -> None:
    """Take what `exported_block` gave into a block of its size, in which nothing is learned yet."""
    since = float(saved["since"])
    if not 0.0 <= since < 2**53 or not since.is_integer():
        raise ValueError(f"SINCE is {since!r}")
    block[k.FOREST_SINCE] = since
    _take_averages(block, saved)
    for views in (columns_of(block), sections_of(block)):
        for name in ("weights", "sums", "texts", "leaves"):
            if name in views and views[name].size:
                views[name][...] = _floats(saved[name], views[name].shape)
    columns, sections = columns_of(block), sections_of(block)
    if any((sums < 0.0).any() for sums in (columns["sums"], sections["leaves"][1::2])):
        raise ValueError("sums of squares below 0")


def _scalars(state: Array, names: Sequence[str]) -> Array:
    return np.array([state[getattr(k, f"FOREST_{name}")] for name in names])


def restore(learner: ForestLearner, saved: Mapping[str, Any]) -> None:
    """Take what `exported` gave. Checked in full first: kernels trust the counters as indices."""
    names = tuple(saved["names"])
    d = len(names)
    if len(set(names)) != d or d > learner.max_features:
        raise ValueError("feature names that occur twice, or too many")
    header = _checked_header(learner._header(), saved)
    parts = _PARTS | _GAINS if header[k.FOREST_GUIDED] else _PARTS
    coded = _whole_numbers(saved["coded"], (d,))
    if not ((coded == 0) | (coded == 1)).all():
        raise ValueError("columns that are neither coded nor not")
    columns = {
        name: _floats(saved[name], (d,) if each == 1 else (d, each)) for name, (_, each) in parts.items()
    }
    if header[k.FOREST_GUIDED]:
        header[k.FOREST_BASE] = _floats(saved["base"], (1,))[0]
    if any((view < 0.0).any() for name, view in columns.items() if name not in ("means", "weights", "gains")):
        raise ValueError("counts or sums below 0")
    trees, nodes = learner.trees, learner.nodes
    lengths = np.diff(k.forest_places(trees, nodes, 0, k.FOREST_BUCKETS if coded.any() else 0)).tolist()
    texts = _floats(saved["texts"], (lengths[0],)) if lengths[0] else np.empty(0)
    leaves = _floats(saved["leaves"], (lengths[1],))
    used, links = _whole_numbers(saved["used"], (trees,)), _whole_numbers(saved["nodes"], (lengths[3],))
    _check_trees(used, links.reshape(trees, nodes, 2), d)
    if (leaves[1::2] < 0.0).any():
        raise ValueError("sums of squares below 0")
    y_name, negative = saved["y_name"], learner._checked_label(saved)
    pairs = None if learner._pairs is None else _checked_pairs(saved["pairs"], d)
    learner._allocate(names, header, capacity=d, coded=tuple(np.flatnonzero(coded).tolist()))
    for name, view in columns_of(learner._state).items():
        view[:] = columns[name]
    sections = sections_of(learner._state)
    sections["texts"][:], sections["used"][:], sections["leaves"][:] = texts, used, leaves
    sections["nodes"].view(np.int64)[:] = links
    if pairs is not None:
        came, kept = _pairs_of(learner._tail, trees, d, d)
        came[:], kept[...] = pairs[1], pairs[2]
        for name, value in zip(_LINK, pairs[0].tolist(), strict=True):
            learner._tail[getattr(k, name)] = value
    learner._y_name = y_name
    learner._learn_label(negative)


def _checked_header(header: Array, saved: Mapping[str, Any]) -> Array:
    """The scalars of the parameters, with those that were saved."""
    for name in _SCALARS:
        value = float(saved["scalars"][name])
        if not 0.0 <= value < 2**53 or not value.is_integer():
            raise ValueError(f"{name} is {value!r}")
        header[getattr(k, f"FOREST_{name}")] = value
    _take_averages(header, saved)
    if header[k.FOREST_TASK] == 1.0:
        labels = _floats(saved["labels"], (len(_LABELS),))
        if labels[1] < 0.0:
            raise ValueError("a spread of labels below 0")
        header[k.FOREST_MEAN], header[k.FOREST_SPREAD] = labels
    return header


def _take_averages(header: Array, saved: Mapping[str, Any]) -> None:
    """Averages and stack, checked, into the scalars of a state or a block."""
    averages = _floats(saved["averages"], (len(_AVERAGES),))
    stack = _floats(saved["stack"], (len(_STACKED), k.EXPERTS))
    if (averages < 0.0).any() or (stack < 0.0).any():
        raise ValueError("averages or a stack below 0")
    for name, average in zip(_AVERAGES, averages.tolist(), strict=True):
        header[getattr(k, f"FOREST_{name}")] = average
    for name, row in zip(_STACKED, stack, strict=True):
        at = getattr(k, f"FOREST_{name}")
        header[at : at + k.EXPERTS] = row


def _floats(value: Any, shape: tuple[int, ...]) -> Array:
    array = np.asarray(value, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError("numbers of another shape, or not finite")
    return array


def _whole_numbers(value: Any, shape: tuple[int, ...]) -> Bits:
    if not isinstance(value, np.ndarray) or value.dtype != np.int64 or value.shape != shape:
        raise ValueError("whole numbers of another kind or shape")
    return value


def _check_trees(used: Bits, nodes: Bits, d: int) -> None:
    """ValueError if a descent could leave its tree, or a record: children stand behind their parents."""
    trees, most, _ = nodes.shape
    if not ((used >= 1) & (used <= most)).all():
        raise ValueError("trees of another size")
    links = np.ascontiguousarray(nodes).view(np.int32).reshape(trees, most, 4)
    column, child = links[..., 2].astype(np.int64), links[..., 3].astype(np.int64)
    at, there = np.arange(most), np.arange(most) < used[:, None]
    inner = (child > at) & (child + 1 < used[:, None]) & (column >= -d) & (column < d)
    leaf = (child <= 0) & (child >= -_VISITS) & (column >= 0) & (column < max(d, 1))
    if not np.where(there, inner | leaf, (nodes == 0).all(axis=2)).all():
        raise ValueError("nodes that make no trees")
    salts = np.ascontiguousarray(nodes[..., 0]).view(np.float64)[there & (child > 0) & (column < 0)]
    if not ((salts >= 0.0) & (salts < _SALTS)).all():
        raise ValueError("salts out of range")
