"""Random forests with online leaf weights, for two classes and for more."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair.base.boosted import BoostedTrees, Ring, length_of
from streampair.base.forest import (
    ForestLearner,
    ForestRows,
    check_whole,
    columns_of,
    exported,
    exported_block,
    restore,
    restore_block,
)
from streampair.base.learner import ClassifierMixin, Explanation, MulticlassClassifierMixin
from streampair.errors import RecordError
from streampair.kernels import forest, numerics
from streampair.records import features
from streampair.records.frames import FeatureTable

__all__ = [
    "Forest",
    "MulticlassForest",
]


@dataclass(eq=False, repr=False)
class Forest(ClassifierMixin, ForestLearner):
    """Random forest with online leaf weights, and boosted trees on recent records; not private.

    An ensemble of extremely randomised trees (Geurts et al. 2006). A leaf draws a feature and samples one
    value of it by reservoir. From its 20th record on, the leaf splits as soon as a record has another value:
    at a threshold drawn between the two values, or for strings by a bit of a salted hash. Half of the
    features are drawn uniformly, half in proportion to their gain, so that uninformative features use up few
    splits. The gain of a feature is the mean, over recent splits by it, of the centred label times the
    difference of the leaf weights on both sides. No threshold is searched for.

    Only the leaves of these trees learn. Four experts of different depth and memory share them. The score of
    an expert is the sum of its leaf weights and a linear part, trained by AdaGrad on the logistic loss.

    The fifth expert is 50 boosted histogram trees of depth 6 (Chen and Guestrin 2016, Ke et al. 2017) on the
    last 4000 records. One tree at a time is fitted anew, to the gradients that the scores of these records
    left when they came, by the best splits of up to 10 features at 47 quantiles. It takes its turn whenever
    enough work has been saved up, so that the time of a record is bounded. Between fits, leaf weights learn
    by AdaGrad.

    Stacking, also trained by AdaGrad, combines the experts. To follow concept drift, random trees are reset
    in turn, and an expert without forgetting is reset when it falls behind; the boosted trees then begin
    again with the last 200 records. After a reset of the slow expert, the stack and the deepest expert take
    larger steps for 4000 records (without a pair loss only).

    Parameters
    ----------
    trees
        Number of trees, from 1 to 1000. Time and memory grow with it.
    nodes
        Largest number of nodes of a tree, from 1 to 32767. A full tree does not split any more.
    positive
        The label that ranks high: text, a number, True or False.
    negative
        The label that ranks low; any other is a RecordError. None: the opposite of True, False, 1 or 0;
        beside any other `positive` all labels of its type rank low, and predictions show the first one
        learned.
    loss
        None: the logistic loss of the record. Or a pair loss, such as `losses.Logistic`: the record is paired
        with one of the last 32 of the other class, both are scored again, and both are updated with the loss
        of the difference of their scores. The boosted trees still learn the logistic loss of records, and
        only their weight in the stack is fitted to pairs. It takes about 1.4 times as long; docs/papers.md
        compares the two.
    seed
        Seed of the random draws; None takes one from the operating system.
    max_features
        Largest number of feature names; a record that would exceed it raises RecordError.

    Notes
    -----
    Features are real numbers or strings by name, in any order; no scaling or encoding is needed. A missing
    feature is a value of its own, and so is every string. A new name gets a new column. None, NaN and
    `pandas.NA` are missing features. A number that never varies, such as 1 for each word of a text, stands
    for its presence. Where absent means 0 and numbers vary, as counts do, give 0. A number given as text, as
    by `river.stream.iter_csv` without `converters`, is a text; after 100 such records there is a warning.
    Infinity, numbers beyond 1e50, bytes and records without a feature raise `RecordError` and leave the
    learner unchanged.

    A record takes O(trees log nodes + features), and memory is bounded: 2.2 MB, with strings 2.5 MB, and 37
    kB a feature. From 1000 features on, fewer records are kept for the boosted trees: 4 million values, but
    at least 500 records. Only the first 8000 features are in them. A state is at most as large as the memory.
    Strings share 4096 linear weights; in the boosted trees the first 62 of a feature have codes of their own,
    the others share one.

    The score is the log-odds of the stack, and `predict_proba_one` is its logistic function. A pair loss has
    no intercept: probabilities then come from Platt scaling, learned online as for `PairOGD`, and memory is
    528 bytes a feature more. `weights` are those of the linear part alone. A `learn_one` after a score of the
    same record reuses its leaves.

    References
    ----------
    Geurts, P., Ernst, D. and Wehenkel, L. (2006). Extremely randomized trees. Machine Learning 63.

    Duchi, J., Hazan, E. and Singer, Y. (2011). Adaptive subgradient methods for online learning and
    stochastic optimization. JMLR 12.

    Chen, T. and Guestrin, C. (2016). XGBoost: A scalable tree boosting system. KDD.

    Ke, G. et al. (2017). LightGBM: A highly efficient gradient boosting decision tree. NeurIPS.

    Gomes, H. M. et al. (2017). Adaptive random forests for evolving data stream classification. Machine
    Learning 106. (The forest of the comparison in the documentation.)

    Examples
    --------
    >>> from river import datasets, evaluate
    >>> from streampair import auc, evaluation
    >>> metric = evaluation.RollingAUC(window=1250)
    >>> evaluate.progressive_val_score(datasets.Phishing(), auc.Forest(seed=1), metric)  # doctest: +ELLIPSIS
    RollingAUC: 96...%

    Texts and missing values need no preprocessing:

    >>> model = auc.Forest(seed=1)
    >>> for i in range(60):
    ...     model.learn_one({"country": "NL", "amount": 5.0 + i % 7}, False)
    ...     model.learn_one({"country": "XX"}, True)
    >>> model.predict_one({"country": "XX"}), model.predict_one({"country": "NL", "amount": 9.0})
    (True, False)
    >>> parts = model.explain_one({"country": "XX"})
    >>> abs(parts.baseline + sum(parts.features.values()) - model.score_one({"country": "XX"})) < 1e-9
    True
    """

    trees: int = 50
    nodes: int = 1023
    _: KW_ONLY
    loss: losses.PairLoss | None = None
    seed: int | None = None
    max_features: int = 10_000

    def predict_proba_one(  # type: ignore[override]  # as in the base
        self, x: Mapping[Any, Any]
    ) -> dict[Any, float]:
        """Probabilities of both labels: as in the base class, in fewer calls.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        if self._pairs is not None or not self._in_one:
            return super().predict_proba_one(x)
        columns = self._columns
        if self._coded or type(x) is not dict or len(x) != columns.expected:
            gaps = self._read(x, grow=False)
        else:
            try:
                columns.pack(*columns.take(x))
                gaps = False
            except Exception:  # an unknown name, or a value that struct refuses
                gaps = self._read(x, grow=False)
        p: float = forest.forest_proba(self._state, gaps)
        return self.predict_proba_one(self._present(x)) if p != p else self._labelled(p)


Array = NDArray[np.float64]

_SIZES = (
    forest.FOREST_TREES,
    forest.FOREST_NODES,
    forest.FOREST_CAP,
    forest.FOREST_TEXTS,
)
_SIZED = [forest.FOREST_D, *_SIZES]
_LABELS = (str, bool, int, float)


@dataclass(eq=False, repr=False)
class MulticlassForest(MulticlassClassifierMixin, ForestLearner):
    """Random forest with online leaf weights, one class against the others; not private.

    The multiclass form of `Forest`. All classes share one set of random trees, whose growth does not depend
    on the labels: features are not drawn by gain, since the gain for one class is none for another. Each
    class has its own leaf weights, experts, boosted trees and stack. They learn as those of a forest for this
    class alone would, over the same random trees, from the first record of the class on. Classes need not be
    declared: a class is known from its first record on.

    Parameters
    ----------
    trees
        Number of trees, from 1 to 1000. Time and memory grow with it.
    nodes
        Largest number of nodes of a tree, from 1 to 32767. A full tree does not split any more.
    max_classes
        Largest number of classes, from 2 to 1000; a label that would exceed it raises RecordError. It bounds
        the memory if new labels keep coming.
    positive
        The class by which `score_one` and a lane rank; predictions do not depend on it.
    seed
        Seed of the random draws; None takes one from the operating system.
    max_features
        Largest number of feature names; a record that would exceed it raises RecordError.

    Notes
    -----
    Labels are strings, numbers, or True and False; labels of equal meaning, as 1 and "1", are one class,
    which is reported as its first label. Features are as in `Forest`. Memory: as of `Forest`, and 1.3 MB for
    each class beyond the first, with strings 0.26 MB more. Time grows with the number of classes, except for
    the descent of the random trees, which all classes share.

    Probabilities are the logistic functions of the scores of all classes, divided by their sum. Before the
    first label there are none, and the prediction is None.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streampair import auc
    >>> model = auc.MulticlassForest(seed=1)
    >>> stream = datasets.ImageSegments().take(1000)
    >>> evaluate.progressive_val_score(stream, model, metrics.Accuracy())  # doctest: +ELLIPSIS
    Accuracy: 8...%
    """

    trees: int = 50
    nodes: int = 1023
    _: KW_ONLY
    max_classes: int = 64
    seed: int | None = None
    max_features: int = 10_000

    _several: ClassVar[bool] = True
    _guided: ClassVar[bool] = False  # a gain of one class would be none of another
    _brisk: ClassVar[bool] = False  # a class that came late would seem to have begun again
    _derived: ClassVar[frozenset[str]] = ForestLearner._derived | {
        *("_others", "_classes", "_numbers", "_further"),
    }

    def __post_init__(self) -> None:
        check_whole("max_classes", self.max_classes, 2, 1000)
        super().__post_init__()

    def _bind(self) -> None:
        super()._bind()
        self._classes: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._further: dict[int, Any] = {}  # new classes of the labels that are about to be learned
        cls, base = type(self), MulticlassForest
        self._in_one = cls.score_one is base.score_one and cls.learn_one is base.learn_one
        self._others = np.empty((0, 0))

    @property
    def _multiclass(self) -> bool:
        return True

    @property
    def classes(self) -> tuple[Any, ...]:
        """Known classes, in the order of their first records."""
        return tuple(self._classes)

    # ---- blocks of classes -----------------------------------------------------------------------------

    def _blocks(self) -> list[Array]:
        return [self._state, *self._others]

    def _allocate(
        self,
        names: tuple[Hashable, ...],
        header: Array,
        capacity: int,
        coded: tuple[int, ...] = (),
        d: int = 0,
    ) -> None:
        super()._allocate(names, header, capacity, coded, d)
        self._others = self._room(self._others)

    def _room(self, others: Array, more: int = 0) -> Array:
        """Blocks for the present classes and `more` new ones; scalars are copied."""
        places = forest.forest_places(*(int(self._state[i]) for i in _SIZES))
        ring = Ring(self._state)
        room = np.zeros((len(others) + more, places[2] + length_of(ring.width, ring.rows)[1]))
        if len(others):
            room[: len(others), : forest.FOREST_HEADER] = others[:, : forest.FOREST_HEADER]
        room[:, _SIZED] = self._state[_SIZED]
        room[:, forest.FOREST_BOOSTED] = places[2]
        for block in room:
            BoostedTrees(block, ring).begin()
        return room

    def _admit(self, label: Any) -> None:
        """Make room for a new class; the first class lies in the state of the trees."""
        if self._classes:
            old = self._others
            self._others = self._room(old, 1)
            self._others[:-1] = old
            forest.forest_begin(self._others[-1])
        self._numbers[features.label(label, several=True)] = len(self._classes)
        self._classes.append(label)

    def _class(self, y: Any, further: Mapping[int, Any]) -> tuple[Any, int]:
        """A label as it is stored, and the number of its class: known, one of `further`, or new.

        Raises
        ------
        RecordError
            If it is unknown, no label, or one too many.
        """
        label = y.item() if isinstance(y, np.generic) else y
        meaning = features.label(label, several=True)
        if meaning is None or (isinstance(meaning, float) and meaning != meaning):
            raise RecordError(
                f"the label is {features.short(y)}, so its class is unknown",
                fix="learn the record when its label is there, or leave it out",
                stage="label",
            )
        if not isinstance(meaning, _LABELS) or meaning in (math.inf, -math.inf):
            raise RecordError(
                f"the label is neither text nor a finite number: {features.short(y)}",
                fix="give the class as text, a number or True and False",
                stage="label",
            )
        label = meaning if isinstance(label, bytes) else label
        if meaning in self._numbers:
            return label, self._numbers[meaning]
        for number, other in further.items():
            if meaning == features.label(other, several=True):
                return label, number
        number = len(self._classes) + len(further)
        if number >= self.max_classes:
            raise RecordError(
                f"the label {features.short(y)} is one more than max_classes={self.max_classes}",
                fix="group rare classes under one label, or raise max_classes",
                stage="label",
            )
        return label, number

    def _labels(self, y: NDArray[Any] | list[Any]) -> Array:
        """Numbers of the classes of labels; those that are new get the next ones, in order."""
        values = y if isinstance(y, list) else y.tolist()
        self._further = {}
        out = np.full(len(values), -1.0)
        if set(map(type, values)) <= set(_LABELS):  # most are known
            known = map(self._numbers.get, values)
            out[:] = [-1 if number is None else number for number in known]
        for i in np.flatnonzero(out < 0.0).tolist():
            try:
                label, out[i] = self._class(values[i], self._further)
            except RecordError as error:
                raise RecordError(f"in row {i}, {error.problem}", fix=error.fix, stage="label") from None
            self._further.setdefault(int(out[i]), label)
        return out

    def _ready(
        self, rows: Array, ys: Sequence[Any], nulls: Sequence[int], refused: dict[int, RecordError]
    ) -> ForestRows:
        unlearned, further = {*nulls, *refused}, dict[int, Any]()
        numbers = np.full(len(ys), math.nan)
        for i, y in enumerate(ys):
            if i not in unlearned:
                try:
                    label, number = self._class(y, further)
                except RecordError as error:
                    refused[i] = error
                    continue
                numbers[i] = number
                if number >= len(self._classes):
                    further.setdefault(number, label)
        return _ClassRows(self, rows, numbers, refused, further)

    # ---- one record ------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Update the experts of each class with a record, then grow the trees.

        Parameters
        ----------
        x
            Real numbers and strings by feature name; a known feature may be missing.
        y
            Label.

        Raises
        ------
        RecordError
            If a feature or the label cannot be used; then nothing has changed.
        """
        label, which = self._class(y, {})
        gaps = self._read(x, grow=True)
        if which == len(self._classes):
            if forest.forest_score_classes(self._state, self._others, gaps, self._scratch()):
                self.learn_one(self._present(x), y)
                return
            self._admit(label)
        done = forest.forest_learn_class(self._state, self._others, which, gaps)
        if done == forest.UNUSABLE:
            self.learn_one(self._present(x), y)
            return
        if done == forest.DUE:
            forest.forest_rebuild(self._state, self._others)
        if self._coded and self._watching:
            self._watch(x)

    def _scratch(self) -> Array:
        return np.empty(1 + len(self._others))

    def _scores(self, x: Mapping[Any, Any]) -> Array:
        """Scores of the known classes, (classes,)."""
        gaps = self._read(x, grow=False)
        scores = self._scratch()
        if forest.forest_score_classes(self._state, self._others, gaps, scores):
            return self._scores(self._present(x))
        return scores[: len(self._classes)]

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of the class `positive`: the log-odds against all others; 0 until it has had a record.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        scores, number = self._scores(x), self._positive_number
        return 0.0 if number is None else float(scores[number])

    @property
    def _positive_number(self) -> int | None:
        """Number of the class `positive`, if it is known."""
        return self._numbers.get(features.label(self.positive, several=True))

    def scores_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """Scores of all known classes: the log-odds of each against all others.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        return dict(zip(self._classes, self._scores(x).tolist(), strict=True))

    def predict_proba_one(  # type: ignore[override]  # as in the base
        self, x: Mapping[Any, Any]
    ) -> dict[Any, float]:
        """Probability of each known class; empty before the first label."""
        return dict(zip(self._classes, self._shares(self._scores(x)[None])[0].tolist(), strict=True))

    def predict_one(self, x: Mapping[Any, Any], **kwargs: Any) -> Any:
        """The class of the highest score; None before the first label."""
        scores = self._scores(x)
        return self._classes[int(np.argmax(scores))] if len(scores) else None

    def explain_one(self, x: Mapping[Any, Any], label: Any = None) -> Explanation:
        """Contribution of each feature to the score of a class: see `Forest.explain_one`.

        Parameters
        ----------
        x
            Record.
        label
            A known class; None: the one that is predicted.

        Raises
        ------
        RecordError
            If a feature cannot be used, or the class is not known.
        """
        scores = self._scores(x)
        if not len(scores):
            return Explanation(0.0, {})
        meaning = features.label(label, several=True)
        number = int(np.argmax(scores)) if label is None else self._numbers.get(meaning, -1)
        if number < 0:
            raise RecordError(
                f"no record had the label {features.short(label)}",
                fix="name one of `classes`",
                stage="label",
            )
        return self._explained(self._blocks()[number], number)

    @property
    def feature_importances(self) -> dict[Any, float]:
        """Importance of each feature, as shares that add up to 1: the mean over the classes."""
        total = np.zeros(self._columns.count)
        for block in self._blocks():
            out = np.empty(self._columns.count)
            forest.forest_importances(self._state, block, out)
            total += out / (out.sum() or 1.0)
        whole = float(total.sum())
        return dict(zip(self._columns.names, (total / whole if whole > 0.0 else total).tolist(), strict=True))

    # ---- many records ----------------------------------------------------------------------------------

    def _learn_rows(
        self, columns: list[Hashable], rows: Array, labels: Array, scores: Array | None = None
    ) -> None:
        self._check_rows(columns, rows)
        for part in self._stretches(columns, rows):
            arranged = self._columns.arrange(columns, rows[part])
            self._take_rows(arranged, labels[part], self._further, None if scores is None else scores[part])

    def _take_rows(
        self, rows: Array, labels: Array, further: Mapping[int, Any], scores: Array | None = None
    ) -> None:
        """Learn rows (n, d) of the columns; a class is known from its first record on, and not before."""
        which, begin = labels.astype(np.int64), 0
        while begin < len(rows):
            new = np.flatnonzero(which[begin:] >= len(self._classes))
            if len(new) and not new[0]:
                self._admit(further[int(which[begin])])
                continue
            part = slice(begin, begin + int(new[0]) if len(new) else len(rows))
            class_scores = np.empty((len(rows[part]), 1 + len(self._others)))
            row = 0
            while row := forest.forest_learn_classes(
                self._state, self._others, rows[part], which[part], class_scores, row
            ):
                forest.forest_rebuild(self._state, self._others)
            if scores is not None:
                scores[part] = (
                    0.0 if self._positive_number is None else class_scores[:, self._positive_number]
                )
            begin = part.stop

    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        self._check_rows(columns, rows)
        return self._ranked(self._columns.arrange(columns, rows))

    def _ranked(self, rows: Array) -> Array:
        """`score_one` of rows (n, d) of the columns."""
        number = self._positive_number
        return (
            np.zeros(len(rows))
            if number is None
            else np.ascontiguousarray(self._class_scores(rows)[:, number])
        )

    def _rows_scores(self, columns: list[Hashable], rows: Array) -> Array:
        """(n, classes)."""
        self._check_rows(columns, rows)
        return self._class_scores(self._columns.arrange(columns, rows))

    def _class_scores(self, rows: Array) -> Array:
        """Scores (n, classes) of rows (n, d) of the columns."""
        scores = np.empty((len(rows), 1 + len(self._others)))
        forest.forest_score_classes_many(self._state, self._others, rows, scores)
        return scores[:, : len(self._classes)]

    @staticmethod
    def _shares(scores: Array) -> Array:
        p = np.empty(scores.size)
        numerics.sigmoid_many(np.ascontiguousarray(scores).ravel(), p)
        table = p.reshape(scores.shape)
        shares: Array = table / np.maximum(table.sum(axis=1, keepdims=True), 1e-300)
        return shares

    def predict_proba_many(self, X: Any) -> Any:
        """Probabilities of the rows: a column for each known class (as text outside pandas)."""
        table, scores = self._table_of(X)
        return table.frame(dict(zip(self._classes, self._shares(scores).T, strict=True)))

    def predict_many(self, X: Any) -> Any:
        """Predicted classes of the rows, as a series with the frame's index, or an array."""
        table, scores = self._table_of(X)
        if not self._classes:
            return table.series(np.full(len(scores), None), self._y_name)
        # As they are: NumPy alone would make texts of numbers that are beside texts.
        alike = len({type(label) for label in self._classes}) == 1
        labels = np.array(self._classes, dtype=None if alike else object)
        return table.series(labels[np.argmax(scores, axis=1)], self._y_name)

    def _table_of(self, X: Any) -> tuple[FeatureTable, Array]:
        """Rows, and their scores (n, classes)."""
        table = FeatureTable(X, names=self.feature_names, read=self._read_cell)
        table.check_names(self.feature_names)
        try:
            return table, self._rows_scores(table.columns, table.rows)
        except RecordError:  # names the first cell of a row, in what order its frame has
            return table, self._rows_scores(*table.columns_and_rows())

    # ---- state -----------------------------------------------------------------------------------------

    def _published(self) -> Array:
        if self._positive_number is None:
            return np.zeros(self._columns.count)
        block = self._blocks()[self._positive_number]
        stack = block[forest.FOREST_STACK : forest.FOREST_STACK + forest.EXPERTS]
        weights: Array = (columns_of(block)["weights"] * stack).sum(axis=1)
        return weights

    def _export(self) -> dict[str, Any]:
        ring = Ring(self._state)
        others = [exported_block(block, ring, texts=bool(self._coded)) for block in self._others]
        return {**exported(self), "classes": list(self._classes), "others": others}

    def _import(self, saved: Mapping[str, Any]) -> None:
        classes, others = saved["classes"], saved["others"]
        if not isinstance(classes, list) or len(classes) > self.max_classes:
            raise ValueError("classes that are no list, or too many")
        if any(not isinstance(y, _LABELS) or y != y for y in classes):
            raise ValueError("a class that is no label")
        if len({features.label(y, several=True) for y in classes}) != len(classes) or len(others) != max(
            len(classes) - 1, 0
        ):
            raise ValueError("classes that occur twice, or without what they have learned")
        fresh = self.clone()
        restore(fresh, saved)
        for label in classes:
            fresh._admit(label)
        for block, saved_block in zip(fresh._others, others, strict=True):
            restore_block(block, Ring(fresh._state), saved_block)
        self._columns, self._state = fresh._columns, fresh._state
        self._coded, self._tail = fresh._coded, fresh._tail
        self._others, self._classes, self._numbers = fresh._others, fresh._classes, fresh._numbers
        self._y_name = fresh._y_name


class _ClassRows(ForestRows):
    """Rows of a multiclass forest: labels are class numbers, and `further` says which classes are new."""

    _learner: MulticlassForest

    def __init__(
        self,
        learner: MulticlassForest,
        rows: Array,
        labels: Array,
        refused: Mapping[int, RecordError],
        further: Mapping[int, Any],
    ) -> None:
        super().__init__(learner, rows, labels, refused)
        self._further = further

    def take(self, stops: Sequence[int] = (), others: Sequence[Mapping[Any, Any]] = ()) -> list[float]:
        """As of `ForestRows`."""
        if stops:
            copied, begin, other_scores = self._learner.clone(include_attributes=True), 0, []
            for stop, x in zip(stops, others, strict=True):
                self._learn_with(copied, begin, stop)
                other_scores.append(float(copied._ranked(copied._row_of(x)[None])[0]))
                begin = stop
            self.other_scores = other_scores
        scores = np.zeros(len(self._rows))
        self._learn_with(self._learner, 0, len(self._rows), scores)
        values: list[float] = scores.tolist()
        return values

    def _learn_with(
        self, learner: MulticlassForest, begin: int, end: int, scores: Array | None = None
    ) -> None:
        """Learn the rows from `begin` to before `end`; those without a label are scored alone."""
        for stop in [*(stop for stop in self._unlearned if begin <= stop < end), end]:
            part = slice(begin, stop)
            out = None if scores is None else scores[part]
            learner._take_rows(self._rows[part], self._labels[part], self._further, out)
            if stop < end and scores is not None and stop not in self.refused:
                scores[stop : stop + 1] = learner._ranked(self._rows[stop : stop + 1])
            begin = stop + 1
