"""The online forest behind `auc.Forest` and `ranking.Forest`: parameters, state, scores and explanations."""

from __future__ import annotations

import math
import secrets
import struct
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair.base.boosted import (
    BoostedTrees,
    Ring,
    checked_ring,
    checked_trees,
    floats,
    length_of,
    whole_numbers,
)
from streampair.base.learner import Columns, Explanation, Learner
from streampair.base.mini_batch import encode_labels, low_label, refuse_rows, score_error
from streampair.errors import ConfigError, RecordError
from streampair.kernels import boosted_trees, forest, numerics, platt, vectors
from streampair.kernels import state as layout
from streampair.records import features as _features

__all__ = [
    "ExplainedForestRows",
    "ForestLearner",
    "ForestRows",
    "Reasons",
    "check_trees",
    "columns_of",
    "exported",
    "pairs_moved",
    "pairs_widened",
    "restore",
    "sections_of",
]

Array = NDArray[np.float64]
Reasons: TypeAlias = list[list[tuple[str, float]]]
"""Of each record, the largest contributions to its score: features, and what they add."""

_NO_SCORES: Array = np.empty(0)
NO_CLASSES: Array = np.empty((0, 0))
"""Blocks of further classes, for a forest of two."""


def learn_rows(learner: ForestLearner, state: Array, rows: Array, labels: Array, scores: Array) -> None:
    """Learn usable rows (n, d) in order; `scores` gets the score of each before it, if it has any room.

    `state` is that of the learner, or a copy.
    """
    begin, learn = 0, forest.forest_learn_many if learner._pairs is None else forest.forest_learn_pairs
    while begin := learn(state, rows, labels, scores, begin):
        forest.forest_rebuild(state, NO_CLASSES)


class ForestRows:
    """Checked rows of a forest, to be scored and learned in order; refused rows have no effect.

    Parameters
    ----------
    learner
        The forest.
    rows
        Array (n, d); refused rows have arbitrary content.
    labels
        Label numbers (n,); NaN for rows that are only scored, or refused.
    refused
        Error of `score_one` or `learn_one` by row index: the row's score is meaningless.
    low
        Label that ranks low, for predictions; None: they have one already.

    Attributes
    ----------
    admitted
        None: a forest knows no entities.
    refused
        As given.
    """

    admitted: list[bool] | None = None
    other_scores: Sequence[float] = ()

    def __init__(
        self,
        learner: ForestLearner,
        rows: Array,
        labels: Array,
        refused: Mapping[int, RecordError],
        low: Any = None,
    ) -> None:
        self._learner, self._rows, self._labels, self._low = learner, rows, labels, low
        self.refused = refused
        self._unlearned = np.flatnonzero(np.isnan(labels)).tolist()

    def take(self, stops: Sequence[int] = (), others: Sequence[Mapping[Any, Any]] = ()) -> list[float]:
        """Scores of the rows, each as `score_one` before `learn_one`, with the same bits. Call it once.

        Parameters
        ----------
        stops
            Indices of rows, ascending.
        others
            A usable record for each stop, scored just before that row into `other_scores`, and not learned.
        """
        state, scores = self._begin(stops, others)
        self._learn(state, 0, len(self._rows), scores)
        return self._end(scores)

    def _begin(self, stops: Sequence[int], others: Sequence[Mapping[Any, Any]]) -> tuple[Array, Array]:
        """The state, and room for the scores; `others` are scored."""
        state = self._learner._state
        if stops:
            self.other_scores = self._score_before(state.copy(), stops, others)
        return state, np.zeros(len(self._rows))

    def _end(self, scores: Array) -> list[float]:
        if self._low is not None:
            self._learner._learn_label(self._low)
        values: list[float] = scores.tolist()
        return values

    def _learn(self, state: Array, begin: int, end: int, scores: Array | None = None) -> None:
        """Learn the rows from `begin` to before `end`; rows without a label are only scored."""
        for stop in [*(stop for stop in self._unlearned if begin <= stop < end), end]:
            out = _NO_SCORES if scores is None else scores[begin:stop]
            learn_rows(self._learner, state, self._rows[begin:stop], self._labels[begin:stop], out)
            if stop < end and scores is not None and stop not in self.refused:
                forest.forest_score_many(state, self._rows[stop : stop + 1], scores[stop : stop + 1])
            begin = stop + 1

    def _score_before(
        self, state: Array, stops: Sequence[int], others: Sequence[Mapping[Any, Any]]
    ) -> list[float]:
        """`score_one` of each other record, just before the row at its stop.

        One copy learns the rows again up to each stop: a copy for each stop would take megabytes.
        """
        begin, score, scores = 0, np.empty(1), []
        for stop, x in zip(stops, others, strict=True):
            self._learn(state, begin, stop)
            forest.forest_score_many(state, self._learner._row_of(x)[None], score)
            scores.append(float(score[0]))
            begin = stop
        return scores


class ExplainedForestRows(ForestRows):
    """`ForestRows` of a forest whose reasons are those of its one score."""

    def take_explained(
        self, count: int, stops: Sequence[int] = (), others: Sequence[Mapping[Any, Any]] = ()
    ) -> tuple[list[float], Reasons]:
        """As `take`, and the largest contributions to each score, as `largest_parts` of `explain_one`.

        Parameters
        ----------
        count
            How many contributions at most.
        stops, others
            As of `take`.
        """
        state, scores = self._begin(stops, others)
        places, values = np.full((len(scores), count), -1), np.zeros((len(scores), count))
        kept, begin = self._learner._kept_means(0), 0
        for stop in [*sorted(self.refused), len(scores)]:
            part = slice(begin, stop)
            args = self._rows[part], self._labels[part], scores[part], places[part], values[part]
            row = 0
            while row := forest.forest_learn_explained(state, kept, *args, row):
                forest.forest_rebuild(state, NO_CLASSES)
            begin = stop + 1
        return self._end(scores), self._learner._reasons(places, values)


Bits = NDArray[np.int64]

_VISITS = 20
_SALTS = 1 << 20
_SCALARS = ("RECORDS", "DRAWS", "SEED", "SINCE")
_AVERAGES = ("BEST", "SLOW", "SEEN")
_LABELS = ("MEAN", "SPREAD")  # with least-squares leaves
_LINK = ("INFORMATION", "CENTRE", "SPREAD", "OFFSET", "SLOPE")  # with leaves fitted to pairs
_STACKED = ("STACK", "STEPS", "LOSSES")
# Arrays by column: first cell, and number of cells for each column.
_PARTS = {"counts": (0, 1), "means": (1, 1), "squares": (2, 1), "weights": (3, 4), "sums": (7, 4)}
_GAINS = {"gains": (14, 1), "decisions": (15, 1)}  # with guided splits


def columns_of(state: Array) -> dict[str, Array]:
    """Views of the arrays by column, shape (d,) or (d, experts)."""
    d, cap = int(state[forest.FOREST_D]), int(state[forest.FOREST_CAP])
    views = {}
    for name, (first, each) in (_PARTS | _GAINS if state[forest.FOREST_GUIDED] else _PARTS).items():
        start = forest.FOREST_HEADER + first * cap
        view = state[start : start + each * d]
        views[name] = view if each == 1 else view.reshape(d, each)
    return views


def sections_of(state: Array) -> dict[str, Array]:
    """Views of category weights, leaf weights, number of used nodes by tree, and nodes."""
    scalars = (
        forest.FOREST_TREES,
        forest.FOREST_NODES,
        forest.FOREST_CAP,
        forest.FOREST_TEXTS,
    )
    end = int(state[forest.FOREST_BOOSTED])  # the block of a further class has no trees
    starts = [min(start, end) for start in forest.forest_places(*(int(state[i]) for i in scalars))]
    return {
        name: state[starts[i] : starts[i + 1]] for i, name in enumerate(("texts", "leaves", "used", "nodes"))
    }


def _pairs_of(tail: Array, trees: int, cap: int, d: int) -> tuple[Array, Bits]:
    """Views of the record counts by class, and of the bits of the sampled records, (2, kept, d)."""
    at_came, at_own, _, at_kept, end = forest.forest_pair_places(trees, cap)
    kept = tail[at_kept:end].view(np.int64).reshape(2, forest.FOREST_KEPT, cap)
    return tail[at_came:at_own], kept[:, :, :d]


def pairs_moved(learner: ForestLearner, before: Array, cap: int, d: int) -> None:
    """Copy the data for pairs from a tail with `cap` columns, d of them known."""
    tail = learner._tail
    tail[: forest.FOREST_LINK] = before[: forest.FOREST_LINK]
    came, kept = _pairs_of(tail, learner.trees, int(learner._state[forest.FOREST_CAP]), d)
    old_came, old = _pairs_of(before, learner.trees, cap, d)
    came[:] = old_came
    kept[...] = old


def pairs_widened(learner: ForestLearner, d: int) -> None:
    """Mark the new columns, from d on, as missing in the sampled records."""
    cap = int(learner._state[forest.FOREST_CAP])
    _, kept = _pairs_of(learner._tail, learner.trees, cap, learner._columns.count)
    kept[:, :, d:] = np.array([np.nan]).view(np.int64)


def _exported_pairs(learner: ForestLearner) -> dict[str, Any]:
    tail, d = learner._tail, len(learner.feature_names)
    came, kept = _pairs_of(tail, learner.trees, int(learner._state[forest.FOREST_CAP]), d)
    link = np.array([tail[getattr(layout, name)] for name in _LINK])
    return {"link": link, "came": came.astype(np.int64), "kept": kept.copy()}


def _checked_pairs(saved: Mapping[str, Any], d: int) -> tuple[Array, Bits, Bits]:
    """Checked link, counts and sampled records: kernels use counts as indices."""
    link, came = floats(saved["link"], (len(_LINK),)), whole_numbers(saved["came"], (2,))
    if link[0] < 0.0 or link[2] < 0.0 or link[4] < platt.LEAST:
        raise ValueError("a link that is none")
    if not ((came >= 0) & (came < 2**53)).all():
        raise ValueError("counts of records out of range")
    kept = whole_numbers(saved["kept"], (2, forest.FOREST_KEPT, d))
    if (np.abs(kept.view(np.float64)) > vectors.MAX_ABS).any():
        raise ValueError("kept records that cannot be")
    return link, came, kept


def exported(learner: ForestLearner) -> dict[str, Any]:
    """The learned state, as plain values and arrays."""
    state = learner._state
    sections, ring = sections_of(state), Ring(state)
    coded = np.zeros(len(learner.feature_names), dtype=np.int64)
    coded[list(learner._coded)] = 1
    stacked = [getattr(forest, f"FOREST_{name}") for name in _STACKED]
    return {
        "names": list(learner.feature_names),
        "coded": coded,
        "scalars": {name: float(state[getattr(forest, f"FOREST_{name}")]) for name in _SCALARS},
        "averages": _scalars(state, _AVERAGES),
        "stack": np.array([state[start : start + forest.STACKED] for start in stacked]),
        **({"labels": _scalars(state, _LABELS)} if learner._squared else {}),
        **({"base": _scalars(state, ("BASE",))} if state[forest.FOREST_GUIDED] else {}),
        **({} if learner._pairs is None else {"pairs": _exported_pairs(learner)}),
        **{name: view.copy() for name, view in columns_of(state).items()},
        **({"texts": sections["texts"].copy()} if learner._coded else {}),
        "used": sections["used"].astype(np.int64),
        "nodes": sections["nodes"].view(np.int64).copy(),
        "leaves": sections["leaves"].copy(),
        "ring": ring.exported(),
        "boosted": BoostedTrees(state, ring).exported(),
        "y_name": learner._y_name,
        **learner._learned_labels(),
    }


def exported_block(block: Array, ring: Ring, *, texts: bool) -> dict[str, Any]:
    """The learned state of a further class."""
    columns, sections = columns_of(block), sections_of(block)
    stacked = [getattr(forest, f"FOREST_{name}") for name in _STACKED]
    return {
        "since": float(block[forest.FOREST_SINCE]),
        "averages": _scalars(block, _AVERAGES),
        "stack": np.array([block[start : start + forest.STACKED] for start in stacked]),
        **{name: columns[name].copy() for name in ("weights", "sums")},
        **({"texts": sections["texts"].copy()} if texts else {}),
        "leaves": sections["leaves"].copy(),
        "boosted": BoostedTrees(block, ring).exported(),
    }


def restore_block(block: Array, ring: Ring, saved: Mapping[str, Any]) -> None:
    """Restore the result of `exported_block` into a fresh block of the same size."""
    boosted = checked_trees(saved["boosted"], ring.d, ring.count)
    since = float(saved["since"])
    if not 0.0 <= since < 2**53 or not since.is_integer():
        raise ValueError(f"SINCE is {since!r}")
    block[forest.FOREST_SINCE] = since
    _take_averages(block, saved)
    for views in (columns_of(block), sections_of(block)):
        for name in ("weights", "sums", "texts", "leaves"):
            if name in views and views[name].size:
                views[name][...] = floats(saved[name], views[name].shape)
    columns, sections = columns_of(block), sections_of(block)
    if any((sums < 0.0).any() for sums in (columns["sums"], sections["leaves"][1::2])):
        raise ValueError("sums of squares below 0")
    BoostedTrees(block, ring).restore(boosted)


def _scalars(state: Array, names: Sequence[str]) -> Array:
    return np.array([state[getattr(forest, f"FOREST_{name}")] for name in names])


def restore(learner: ForestLearner, saved: Mapping[str, Any]) -> None:
    """Restore the result of `exported`. All is checked first: kernels use the counters as indices."""
    names = tuple(saved["names"])
    d = len(names)
    if len(set(names)) != d or d > learner.max_features:
        raise ValueError("feature names that occur twice, or too many")
    header = _checked_header(learner._header(), saved)
    parts = _PARTS | _GAINS if header[forest.FOREST_GUIDED] else _PARTS
    coded = whole_numbers(saved["coded"], (d,))
    if not ((coded == 0) | (coded == 1)).all():
        raise ValueError("columns that are neither coded nor not")
    columns = {
        name: floats(saved[name], (d,) if each == 1 else (d, each)) for name, (_, each) in parts.items()
    }
    if header[forest.FOREST_GUIDED]:
        header[forest.FOREST_BASE] = floats(saved["base"], (1,))[0]
    if any((view < 0.0).any() for name, view in columns.items() if name not in ("means", "weights", "gains")):
        raise ValueError("counts or sums below 0")
    trees, nodes = learner.trees, learner.nodes
    lengths = np.diff(
        forest.forest_places(trees, nodes, 0, forest.FOREST_BUCKETS if coded.any() else 0)
    ).tolist()
    texts = floats(saved["texts"], (lengths[0],)) if lengths[0] else np.empty(0)
    leaves = floats(saved["leaves"], (lengths[1],))
    used, links = whole_numbers(saved["used"], (trees,)), whole_numbers(saved["nodes"], (lengths[3],))
    check_trees(used, links.reshape(trees, nodes, 2), d)
    if (leaves[1::2] < 0.0).any():
        raise ValueError("sums of squares below 0")
    y_name, negative = saved["y_name"], learner._checked_label(saved)
    pairs = None if learner._pairs is None else _checked_pairs(saved["pairs"], d)
    saved_ring = checked_ring(saved["ring"], d)
    boosted = checked_trees(saved["boosted"], d, len(saved_ring["labels"]))
    learner._allocate(names, header, capacity=d, coded=tuple(np.flatnonzero(coded).tolist()))
    ring = Ring(learner._state)
    ring.restore(saved_ring)
    BoostedTrees(learner._state, ring).restore(boosted)
    for name, view in columns_of(learner._state).items():
        view[:] = columns[name]
    sections = sections_of(learner._state)
    sections["texts"][:], sections["used"][:], sections["leaves"][:] = texts, used, leaves
    sections["nodes"].view(np.int64)[:] = links
    if pairs is not None:
        came, kept = _pairs_of(learner._tail, trees, d, d)
        came[:], kept[...] = pairs[1], pairs[2]
        for name, value in zip(_LINK, pairs[0].tolist(), strict=True):
            learner._tail[getattr(layout, name)] = value
    learner._y_name = y_name
    learner._learn_label(negative)


def _checked_header(header: Array, saved: Mapping[str, Any]) -> Array:
    """The scalars of a fresh state, with the saved ones checked and set."""
    for name in _SCALARS:
        value = float(saved["scalars"][name])
        if not 0.0 <= value < 2**53 or not value.is_integer():
            raise ValueError(f"{name} is {value!r}")
        header[getattr(forest, f"FOREST_{name}")] = value
    _take_averages(header, saved)
    if header[forest.FOREST_TASK] == 1.0:
        labels = floats(saved["labels"], (len(_LABELS),))
        if labels[1] < 0.0:
            raise ValueError("a spread of labels below 0")
        header[forest.FOREST_MEAN], header[forest.FOREST_SPREAD] = labels
    return header


def _take_averages(header: Array, saved: Mapping[str, Any]) -> None:
    """Averages and stack, checked, into the scalars of a state or a block."""
    averages = floats(saved["averages"], (len(_AVERAGES),))
    stack = floats(saved["stack"], (len(_STACKED), forest.STACKED))
    if (averages < 0.0).any() or (stack < 0.0).any():
        raise ValueError("averages or a stack below 0")
    for name, average in zip(_AVERAGES, averages.tolist(), strict=True):
        header[getattr(forest, f"FOREST_{name}")] = average
    for name, row in zip(_STACKED, stack, strict=True):
        start = getattr(forest, f"FOREST_{name}")
        header[start : start + forest.STACKED] = row


def check_trees(used: Bits, nodes: Bits, d: int) -> None:
    """Raise ValueError if a descent could leave its tree or the columns: children come after parents."""
    trees, most, _ = nodes.shape
    if not ((used >= 1) & (used <= most)).all():
        raise ValueError("trees of another size")
    links = np.ascontiguousarray(nodes).view(np.int32).reshape(trees, most, 4)
    column, child = links[..., 2].astype(np.int64), links[..., 3].astype(np.int64)
    node, in_use = np.arange(most), np.arange(most) < used[:, None]
    inner = (child > node) & (child + 1 < used[:, None]) & (column >= -d) & (column < d)
    leaf = (child <= 0) & (child >= -_VISITS) & (column >= 0) & (column < max(d, 1))
    if not np.where(in_use, inner | leaf, (nodes == 0).all(axis=2)).all():
        raise ValueError("nodes that make no trees")
    salts = np.ascontiguousarray(nodes[..., 0]).view(np.float64)[in_use & (child > 0) & (column < 0)]
    if not ((salts >= 0.0) & (salts < _SALTS)).all():
        raise ValueError("salts out of range")


_MOST_NODES = 32_767

# Of how many records texts are looked at, and how many different numbers in a column are no categories.
_WATCHED, _NUMBERS = 100, 20


class ForestLearner(Learner):
    """Base of the online forests: random trees with leaf weights fitted online."""

    #: A text is a feature like any other.
    takes_text: ClassVar[bool] = True
    takes_gaps: ClassVar[bool] = True
    _squared: ClassVar[bool] = False
    _several: ClassVar[bool] = False  # labels are numbers of classes
    _guided: ClassVar[bool] = True  # gains say which columns are drawn more often
    _brisk: ClassVar[bool] = True  # fitted to records of two classes, it steps quicker where things move
    _derived: ClassVar[frozenset[str]] = frozenset(
        (
            *("_state", "_columns", "_coded", "_pairs", "_tail", "_kept"),
            *("_task", "_high", "_low", "_in_one", "_watching", "_watched"),
        )
    )

    trees: int
    nodes: int
    seed: int | None
    max_features: int

    _in_one: bool

    def __post_init__(self) -> None:
        check_whole("trees", self.trees, 1, 1000)
        check_whole("nodes", self.nodes, 1, _MOST_NODES)
        check_whole("max_features", self.max_features, 1, 1_000_000)
        self._bind()
        self._allocate((), self._header(), capacity=0)
        forest.forest_fresh(self._state)

    def _bind(self) -> None:
        """Set what the hot path needs, from the parameters."""
        task = self._make_task()
        self._pairs: losses.PairLoss | None = task.checked_loss(getattr(self, "loss", None))
        self._task, self._high, self._low = task, task.high, task.low
        self._columns = Columns(missing=math.nan)
        cls, base = type(self), ForestLearner
        self._in_one = cls.score_one is base.score_one and cls.learn_one is base.learn_one
        # For so many more records the numbers that each column had as texts; None: it has other texts.
        self._watching = _WATCHED
        self._watched: dict[Hashable, set[float] | None] = {}

    def _header(self) -> Array:
        """The scalars of a fresh state, from the checked parameters."""
        header, seed = np.zeros(forest.FOREST_HEADER), self.seed
        header[forest.FOREST_TREES] = self.trees
        header[forest.FOREST_NODES] = self.nodes
        header[forest.FOREST_GUIDED] = self._guided
        header[forest.FOREST_BRISK] = self._brisk and not self._squared and self._pairs is None
        header[forest.FOREST_TASK] = (
            self._squared if self._pairs is None else forest.FOREST_PAIRS + self._pairs.code
        )
        if seed is None:
            header[forest.FOREST_SEED] = secrets.randbits(53)
        elif isinstance(seed, int | np.integer):
            header[forest.FOREST_SEED] = int(seed) % 2**53
        else:
            raise ConfigError(f"seed is {seed!r}", fix="give an integer or None")
        return header

    # ---- columns ---------------------------------------------------------------------------------------

    def _allocate(
        self,
        names: tuple[Hashable, ...],
        header: Array,
        capacity: int,
        coded: tuple[int, ...] = (),
        d: int = 0,
    ) -> None:
        """A state for these names and scalars.

        `coded` are the columns that have had texts. `d`, the number of names that there will be, decides how
        many records the ring has room for.
        """
        texts = forest.FOREST_BUCKETS if coded else 0
        end = forest.forest_places(self.trees, self.nodes, capacity, texts)[-1]
        at_ring = end + (0 if self._pairs is None else forest.forest_pair_places(self.trees, capacity)[-1])
        rows = boosted_trees.ring_rows(max(d, len(names)))
        ring, boosted = length_of(capacity, rows)
        state = np.zeros(at_ring + ring + boosted)
        state[: forest.FOREST_HEADER] = header
        self._tail = state[end:at_ring]  # what pairs need
        self._tail[layout.SLOPE : layout.SLOPE + 1] = 1.0
        state[forest.FOREST_CAP], state[forest.FOREST_TEXTS] = capacity, texts
        state[forest.FOREST_DECIDED] = 0.0
        state[forest.FOREST_RING], state[forest.FOREST_BOOSTED] = at_ring, at_ring + ring
        Ring.begin(state, capacity, rows, 1 if self._squared else 2 if self._several else 0)
        BoostedTrees(state, Ring(state)).begin()
        self._state, self._coded = state, coded
        self._kept: dict[int, Array] = {}  # by class: means of nodes, between two explanations
        self._columns.clear()
        self._widen(names)

    def _widen(self, names: Sequence[Hashable]) -> None:
        """Assign the next columns, which exist and are empty, to new names."""
        self._columns.add(
            names,
            self._state,
            forest.FOREST_HEADER + forest.RECORD_AT * int(self._state[forest.FOREST_CAP]),
        )
        for block in self._blocks():
            block[forest.FOREST_D] = self._columns.count
        Ring(self._state).widen(self._columns.count)
        self._state[[forest.FOREST_READY, forest.FOREST_FEW]] = 0.0

    def _know(self, new: list[Hashable], coded_names: Sequence[Hashable]) -> None:
        """Make room for new names, and for texts in the features `coded_names`.

        Raises
        ------
        RecordError
            If there would be too many names; then nothing has changed.
        """
        d, names = self._columns.count, self._columns.count + len(new)
        later = dict(zip(_features.in_order(new), range(d, names), strict=True))
        index = self._columns.index
        coded = {*self._coded, *((later if name in later else index)[name] for name in coded_names)}
        if not new and len(coded) == len(self._coded):
            return
        self._columns.check_room(len(new), self.max_features)
        capacity = int(self._state[forest.FOREST_CAP])
        if names > capacity:
            # Doubling keeps the copying linear in the number of names; the first record is taken as it is.
            capacity = names if not d else min(max(names, 2 * capacity), self.max_features)
            self._move(capacity, tuple(sorted(coded)), names)
        elif (coded and not self._coded) or Ring(self._state).rows != boosted_trees.ring_rows(names):
            self._move(capacity, tuple(sorted(coded)), names)
        else:
            self._coded = tuple(sorted(coded))
        self._widen(list(later))
        if self._pairs is not None:
            pairs_widened(self, d)

    def _move(self, capacity: int, coded: tuple[int, ...], names: int) -> None:
        """Copy into a state of another size, with room for more columns, for texts, or for fewer records."""
        before, d, kept = self._blocks(), self._columns.count, self._tail
        self._allocate(self._columns.names, self._state[: forest.FOREST_HEADER], capacity, coded, names)
        old_ring, ring = Ring(before[0]), Ring(self._state)
        ring.restore(old_ring.exported())
        for old, block in zip(before, self._blocks(), strict=True):
            columns, sections = columns_of(old), sections_of(old)
            for name, view in columns_of(block).items():
                view[:] = columns[name]
            for name, view in sections_of(block).items():
                if name != "texts" or len(sections[name]):
                    view.view(np.int64)[:] = sections[name].view(np.int64)
            BoostedTrees(block, ring).restore(BoostedTrees(old, old_ring).exported())
        if self._pairs is not None:
            pairs_moved(self, kept, int(before[0][forest.FOREST_CAP]), d)

    def _blocks(self) -> list[Array]:
        """The label-dependent block of each class; the state is the first of them."""
        return [self._state]

    # ---- one record ------------------------------------------------------------------------------------

    def _read(self, x: Any, *, grow: bool) -> bool:
        """Pack a record; True if features may be missing.

        Raises
        ------
        RecordError
            If a value cannot be used, as far as it is looked at here: the kernel looks at all numbers.
        """
        columns = self._columns
        try:
            if type(x) is not dict or len(x) != columns.expected:
                raise KeyError
            if self._coded:
                row = list(columns.take(x))
                for j in self._coded:
                    if type(row[j]) is str:
                        row[j] = _features.as_code(row[j])
                columns.pack(*row)
            else:
                columns.pack(*columns.take(x))
        except Exception:  # an unknown name, or a value that struct refuses
            if type(x) is dict and len(x) == columns.expected:
                # Values before the one that was refused have been packed, over whatever was scattered.
                self._state[forest.FOREST_FEW] = 0.0
            if type(x) is dict and x and self._pairs is None:
                if columns.expected < 0:
                    columns.prepare(x)
                if self._write(x):
                    return True
            return self._read_checked(x, grow=grow)
        return False

    def _read_checked(self, x: Any, *, grow: bool) -> bool:
        """Pack a record value by value, for new names and texts; True if features may be missing."""
        values, columns = self._values(x), self._columns
        if grow:
            new = [name for name in values if name not in columns.index]
            self._know(new, [name for name in values if isinstance(x[name], str)])
        known = {name: value for name, value in values.items() if name in columns.index}
        if columns.expected < 0:
            columns.prepare(known)
        if len(known) == columns.expected:  # all: no kernel is to be compiled for that
            columns.pack(*columns.take(known))
            return False
        self._write(known)
        return True

    def _write(self, values: Mapping[Any, Any]) -> bool:
        """Put a record with gaps into the state; False if a name is unknown, or a value is no number."""
        if self._pairs is not None:  # its partners have gaps of their own
            return self._columns.scatter(values)
        gathered = self._columns.gather(values)
        if gathered:
            forest.forest_scatter(self._state, self._columns.gathered, len(values))
        return gathered

    @staticmethod
    def _read_cell(cell: Any) -> float:
        return _features.code_or_number(cell)

    @staticmethod
    def _values(x: Any) -> dict[Hashable, float]:
        """All features of a record that are not missing, each checked; texts as their codes."""
        if not isinstance(x, Mapping) or not x:
            _features.read_record(x)
        x = _features.present(x)
        if not any(isinstance(value, str) for value in x.values()):
            return _features.read_record(x)
        values: dict[Hashable, float] = {}
        for name, value in x.items():
            if isinstance(value, str):
                values[name] = _features.as_code(value)
            else:
                values |= _features.read_record({name: value})
        return values

    def _watch(self, x: Mapping[Any, Any]) -> None:
        """Watch the texts of a record, to warn of numbers stored as text, which would be categories."""
        for name in (self._columns.names[j] for j in self._coded):
            text, numbers = x.get(name), self._watched.setdefault(name, set())
            if isinstance(text, str) and numbers is not None:
                try:
                    numbers.add(float(text))
                except ValueError:
                    self._watched[name] = None
        self._watching -= 1
        if self._watching:
            return
        # Too many different numbers to be codes of categories.
        names = [repr(name) for name, found in self._watched.items() if len(found or ()) >= _NUMBERS]
        self._watched = {}
        if names:
            warnings.warn(
                f"{', '.join(names[:10])}{' ...' * (len(names) > 10)} had texts that read as numbers, and "
                "each different text is a category of its own; if they are numbers, convert them first, for "
                "example with river.stream.iter_csv(..., converters={'amount': float})",
                UserWarning,
                stacklevel=3,
            )

    def _present(self, x: Any) -> dict[Any, Any]:
        """The record that the kernel has refused, without what is missing in it.

        Raises
        ------
        RecordError
            If another value cannot be used.
        """
        self._values(x)
        remaining = _features.present(x)
        if len(remaining) == len(x):
            raise AssertionError("the kernel refused a record that the slow check accepts")
        return remaining

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Update every expert on this record, then count it in its leaves, which may split.

        Parameters
        ----------
        x
            Real numbers and texts by feature name; a known feature may be missing.
        y
            Label.

        Raises
        ------
        RecordError
            If a feature or the label cannot be used; then nothing has changed.
        """
        label = 1.0 if y is self._high else -1.0 if y is self._low else self._task.label(y)
        columns = self._columns
        if self._coded or type(x) is not dict or len(x) != columns.expected:
            gaps = self._read(x, grow=True)  # which may make another state
        else:
            try:  # as in `_read`: a call more is some per cent of a record
                columns.pack(*columns.take(x))
                gaps = False
            except Exception:
                gaps = self._read(x, grow=True)
        learn = forest.forest_learn if self._pairs is None else forest.forest_learn_pair
        done = learn(self._state, label, gaps)
        if done == forest.UNUSABLE:
            self.learn_one(self._present(x), y)
            return
        if done == forest.DUE:
            forest.forest_rebuild(self._state, NO_CLASSES)
        if self._unnamed and label < 0.0:
            self._learn_label(y)
        if self._coded and self._watching:
            self._watch(x)

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record: higher ranks higher; 0 before any record.

        The leaves are cached for a following `learn_one` of the same record.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        gaps = self._read(x, grow=False)
        score: float = forest.forest_score(self._state, gaps)
        return self.score_one(self._present(x)) if score != score else score

    def explain_one(self, x: Mapping[Any, Any]) -> Explanation:
        """Contribution of each feature to the score of a record.

        Along the path in a tree, a split feature is credited with the change that it makes to the mean of
        the leaves below; linear terms are its own.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        self.score_one(x)
        return self._explained(self._state, 0)

    def _explained(self, block: Array, number: int) -> Explanation:
        """Explain the score that a block, of the class of this number, gave the record in the state."""
        out = np.empty(self._columns.count + 1)
        forest.forest_explain(self._state, block, self._kept_means(number), out)
        *parts, baseline = out.tolist()
        return Explanation(baseline, dict(zip(self._columns.names, parts, strict=True)))

    @property
    def explain_rows(self) -> Callable[[Sequence[Hashable], Array, int], tuple[list[float], Reasons]] | None:
        """Function that scores and explains the rows (n, d) of an array whose columns have these names.

        It returns their scores, and the largest contributions to each, at most so many, as
        `streampair.engine.pipeline.largest_parts` gives them. None: the forest explains records one by one.
        """
        ours = type(self).explain_one is ForestLearner.explain_one
        return self._explain_rows if ours and type(self).score_one is ForestLearner.score_one else None

    def _explain_rows(
        self, columns: Sequence[Hashable], rows: Array, count: int
    ) -> tuple[list[float], Reasons]:
        self._check_rows(columns, rows)
        arranged = np.ascontiguousarray(self._columns.arrange(columns, rows))
        return ExplainedForestRows(self, arranged, np.full(len(rows), math.nan), {}).take_explained(count)

    def _kept_means(self, number: int) -> Array:
        """What is kept between two explanations of the class of this number."""
        kept = self._kept.get(number)
        if kept is None:
            cap = int(self._state[forest.FOREST_CAP])
            kept = self._kept[number] = np.zeros(forest.forest_kept_places(self.trees, self.nodes, cap)[-1])
        return kept

    def _reasons(self, places: Bits, values: Array) -> Reasons:
        """Names and values of the largest contributions of records, from their columns; -1: there is none."""
        names = [name if isinstance(name, str) else str(name) for name in self._columns.names]
        return [
            [(names[j], value) for j, value in zip(columns, parts, strict=True) if j >= 0]
            for columns, parts in zip(places.tolist(), values.tolist(), strict=True)
        ]

    @property
    def feature_importances(self) -> dict[Any, float]:
        """Importance of each feature, as shares that add up to 1; all 0 before any record.

        Its linear weights, for a standard deviation, and the splits that it decides: the difference of the
        means of the leaves on both sides, halved at each level.
        """
        out = np.empty(self._columns.count)
        forest.forest_importances(self._state, self._state, out)
        total = float(out.sum())
        return dict(zip(self._columns.names, (out / total if total > 0.0 else out).tolist(), strict=True))

    # ---- many records ----------------------------------------------------------------------------------

    @staticmethod
    def _check_rows(columns: Sequence[Hashable], rows: Array) -> None:
        good = np.abs(rows) <= vectors.MAX_ABS
        if not good.all():
            bad = np.argwhere(~(good | np.isnan(rows)))
            if len(bad):
                i, j = bad[0].tolist()
                raise _features.unusable_value(columns[j], float(rows[i, j]), row=i)
            empty = np.flatnonzero(~(good | _features.which(rows)).any(axis=1))
            if len(empty):
                problem, row = f"row {empty[0]} has no features", int(empty[0])
                raise RecordError(problem, fix="give at least one, or drop the row", row=row)

    def _learn_rows(
        self, columns: list[Hashable], rows: Array, labels: Array, scores: Array = _NO_SCORES
    ) -> None:
        self._check_rows(columns, rows)
        for part in self._stretches(columns, rows):
            arranged = self._columns.arrange(columns, rows[part])
            learn_rows(self, self._state, arranged, labels[part], scores[part])

    def _stretches(self, columns: Sequence[Hashable], rows: Array) -> Iterator[slice]:
        """Stretches of rows, each once the names and texts of its first row are known.

        As record by record: a column is known from the first row on that has a value in it. The order of the
        columns, and how many there are, decide what trees draw.

        Raises
        ------
        RecordError
            If there would be too many names; then nothing has changed.
        """
        index, texts = self._columns.index, _features.which(rows)
        new = [j for j, name in enumerate(columns) if name not in index]
        coded = np.flatnonzero(texts.any(axis=0)).tolist()
        begin = 0
        if new or any(index[columns[j]] not in self._coded for j in coded):
            present = ~np.isnan(rows) | texts
            first: dict[int, tuple[list[Hashable], list[Hashable]]] = {}
            for kind, places, mask in ((0, new, present), (1, coded, texts)):
                for j in places:
                    if mask[:, j].any():
                        first.setdefault(int(mask[:, j].argmax()), ([], []))[kind].append(columns[j])
            self._columns.check_room(sum(len(names) for names, _ in first.values()), self.max_features)
            for start in sorted(first):
                if start > begin:
                    yield slice(begin, start)
                self._know(*first[start])
                begin = start
        yield slice(begin, len(rows))

    def _score_learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> Array:
        scores = np.empty(len(rows))
        self._learn_rows(columns, rows, labels, scores)
        return scores

    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        self._check_rows(columns, rows)
        out = np.empty(len(rows))
        forest.forest_score_many(self._state, self._columns.arrange(columns, rows), out)
        return out

    def _design_rows(self, columns: list[Any], rows: Array) -> Array:
        self._check_rows(columns, rows)
        out: Array = np.nan_to_num(self._columns.arrange(columns, rows), nan=0.0)
        return out

    def prepare_many(
        self, xs: Sequence[Mapping[Any, Any]], ys: Sequence[Any], *, nulls: Sequence[int] = ()
    ) -> ForestRows | None:
        """As `OnlinePairLearner.prepare_many`; known features may be texts where there have been some.

        Returns
        -------
        ForestRows or None
            None, with nothing changed, where one of the records has other features.
        """
        if not self._in_one:
            return None
        refused: dict[int, RecordError] = {}
        rows = self._packed(xs)
        if rows is None:
            rows = self._packed_each(xs, refused)
        if rows is not None and self._coded and self._watching:
            for x in (x for i, x in enumerate(xs[: self._watching]) if i not in refused):
                self._watch(x)
        return None if rows is None else self._ready(rows, ys, nulls, refused)

    def _packed(self, xs: Sequence[Mapping[Any, Any]]) -> Array | None:
        return self._coded_rows(xs) if self._coded else _features.packed(self._columns.names, xs)

    def _packed_each(self, xs: Sequence[Mapping[Any, Any]], refused: dict[int, RecordError]) -> Array | None:
        """Rows of the records, zeros for one that is refused; None if one has other features."""
        rows = np.zeros((len(xs), self._columns.count))
        for i, x in enumerate(xs):
            row = self._packed([x])
            if row is not None:
                rows[i : i + 1].view(np.int64)[:] = row.view(np.int64)
                continue
            error = score_error(self, x)
            if error is None:
                return None
            refused[i] = error
        return rows if len(xs) else None

    def _coded_rows(self, xs: Sequence[Mapping[Any, Any]]) -> Array | None:
        columns = self._columns
        rows = np.empty((len(xs), columns.count))
        if columns.expected < 0 and len(xs) and type(xs[0]) is dict:
            columns.prepare(xs[0])
        try:
            for row, x in zip(rows, xs, strict=True):
                if type(x) is not dict or len(x) != columns.count:
                    return None
                values = list(columns.take(x))
                for j in self._coded:
                    if type(values[j]) is str:
                        values[j] = _features.as_code(values[j])
                struct.pack_into(f"{columns.count}d", row.data, 0, *values)
        except Exception:  # a name that is missing, or a value that struct refuses
            return None
        return (
            rows if len(rows) and ((np.abs(rows) <= vectors.MAX_ABS) | _features.which(rows)).all() else None
        )

    def prepare_rows(
        self, columns: Sequence[Hashable], rows: Array, ys: Sequence[Any], *, nulls: Sequence[int] = ()
    ) -> ForestRows | None:
        """`prepare_many` of the rows of an array (n, d) of numbers whose columns have these names."""
        if not self._in_one or not self._columns.match(columns):
            return None
        usable = refuse_rows(self, columns, rows, vectors.MAX_ABS)
        if usable is None:
            return None
        rows, refused = usable
        arranged = np.ascontiguousarray(self._columns.arrange(columns, rows))
        return self._ready(arranged, ys, nulls, refused)

    def _ready(
        self, rows: Array, ys: Sequence[Any], nulls: Sequence[int], refused: dict[int, RecordError]
    ) -> ForestRows:
        labels = encode_labels(self._task, ys, nulls, refused)
        kind = ForestRows if self.explain_rows is None else ExplainedForestRows
        return kind(self, rows, labels, refused, low_label(ys, labels) if self._unnamed else None)

    def _row_of(self, x: Mapping[Any, Any]) -> Array:
        """A usable record as a row (d,)."""
        values = self._values(x)
        return np.array([values.get(name, math.nan) for name in self._columns.names])

    # ---- what others look at ---------------------------------------------------------------------------

    def _published(self) -> Array:
        stack = self._state[forest.FOREST_STACK : forest.FOREST_STACK + forest.EXPERTS]
        weights: Array = (columns_of(self._state)["weights"] * stack).sum(axis=1)
        return weights

    @property
    def weights_vector(self) -> Array:
        """Weights of the linear part alone, for standardised features, (d,): a copy."""
        return self._published()

    def _proba(self, score: float) -> float:
        return float(numerics.sigmoid(score) if self._pairs is None else platt.link_proba(self._tail, score))

    def _probas(self, scores: Array) -> Array:
        p = np.empty(len(scores))
        if self._pairs is None:
            numerics.sigmoid_many(scores, p)
        else:
            platt.link_many(self._tail, scores, p)
        return p

    @property
    def feature_names(self) -> tuple[Hashable, ...]:
        """Known feature names, in the order of the columns."""
        return self._columns.names

    @property
    def pair_loss(self) -> losses.PairLoss:
        """The pair loss for regret; logistic if leaves are not fitted to pairs."""
        return losses.Logistic() if self._pairs is None else self._pairs

    @property
    def comparator_radius(self) -> float:
        """1: nothing is projected."""
        return 1.0

    @property
    def records(self) -> int:
        """Number of records learned."""
        return int(self._state[forest.FOREST_RECORDS])

    def design(self, x: Mapping[Any, Any]) -> Array:
        """Known features of x in the order of the columns, (d,): missing ones and texts 0."""
        values = self._values(x)
        out: Array = np.nan_to_num(np.array([values.get(name, 0.0) for name in self._columns.names]), nan=0.0)
        return out

    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """`design` of several records, (n, d)."""
        rows = _features.packed(self._columns.names, xs)
        if rows is not None:
            return rows
        return np.array([self.design(x) for x in xs]).reshape(len(xs), self._columns.count)

    # ---- state -----------------------------------------------------------------------------------------

    def _export(self) -> dict[str, Any]:
        return exported(self)

    def _import(self, saved: Mapping[str, Any]) -> None:
        restore(self, saved)


def check_whole(name: str, value: Any, low: int, high: int) -> None:
    """ConfigError for a constructor argument that is no integer in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}", fix=f"give an integer from {low} to {high}")
