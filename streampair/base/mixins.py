"""Mixins that implement River's Classifier, Regressor and Transformer interfaces."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from river import base

from streampair import losses
from streampair.base.learner import Learner
from streampair.base.targets import BinaryTarget, ClassTarget, OneClassTarget, RelevanceTarget
from streampair.errors import ConfigError
from streampair.kernels import metric, symmetric, vectors
from streampair.records import features
from streampair.records.frames import FeatureTable

__all__ = [
    "ClassifierMixin",
    "MulticlassClassifierMixin",
    "RegressorMixin",
    "TransformerMixin",
]

Array = NDArray[np.float64]


def _symmetric(coordinates: Array, d: int) -> Array:
    """The matrix of isometric coordinates: upper triangle, entries beside the diagonal times sqrt(2)."""
    out = np.zeros((d, d))
    out[np.triu_indices(d)] = coordinates
    out *= math.sqrt(0.5)
    out = out + out.T
    diagonal = np.diag_indices(d)
    out[diagonal] *= math.sqrt(0.5)
    return out


# Methods of several mixins, which have no other base in common than `Learner`.


def _score_learn_many(self: Learner, X: Any, y: Any) -> Any:
    """Scores of the rows, each under the model before it, and learn them: `score_one`, then `learn_one`,
    row by row, bit for bit.

    What an evaluation of a stream needs (predict, then learn), in one call of compiled code for the
    learners that are not private.

    Parameters
    ----------
    X, y
        As of `learn_many`.

    Returns
    -------
    series or array
        Of a frame as a series of the same kind with its index, of an array as one. For a private learner
        NaN where a row cannot be scored: it takes its slot as in `learn_one`, and the others are as they
        would be without it.

    Raises
    ------
    RecordError
        If any cell or label cannot be used; then no row has been learned. Not for a private learner.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import auc
    >>> X = np.array([[1.0], [0.0], [1.0], [0.5], [1.0]])
    >>> auc.PairOGD().score_learn_many(X, np.array([True, False, True, False, True])).round(2)
    array([0.  , 0.  , 0.  , 0.  , 0.33])
    """
    table, scores = self._with_rows(X, y, self._score_learn_rows)
    return table.series(np.empty(0) if scores is None else scores, None)


def _probabilities_of(self: Learner, scores: Array) -> Array:
    """Probabilities of the `positive` label, (n,), that the model gives now for these scores (n,).

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import auc
    >>> model = auc.PairOGD()
    >>> for a, y in [(0.9, True), (0.1, False)] * 20:
    ...     model.learn_one({"a": a}, y)
    >>> x = {"a": 0.9}
    >>> model.probabilities_of(np.array([model.score_one(x)]))[0] == model.predict_proba_one(x)[True]
    np.True_
    """
    return self._probas(np.asarray(scores, dtype=np.float64))


@dataclass(eq=False, repr=False)
class MulticlassClassifierMixin(Learner, base.MiniBatchClassifier):
    """Distinguishes classes, and ranks the records of one of them above all others; River's classifier."""

    _: KW_ONLY
    positive: Any = True

    def _make_task(self) -> OneClassTarget:
        return OneClassTarget(self.positive)

    score_learn_many = _score_learn_many
    probabilities_of = _probabilities_of


@dataclass(eq=False, repr=False)
class ClassifierMixin(Learner, base.MiniBatchClassifier):
    """Ranks the records of one label above those of another; River's classifier.

    Where labels are neither True and False nor 1 and 0 and no `negative` is declared, every label of the type
    of `positive` ranks low, and the first of them that was learned stands for all in predictions.
    """

    _: KW_ONLY
    positive: Any = True
    negative: Any = None

    def _make_task(self) -> BinaryTarget:
        task = BinaryTarget(self.positive, self.negative)
        self._negative = task.negative
        self._unnamed = task.negative is None
        if self._unnamed and not self._learns_labels:
            raise ConfigError(
                f"positive is {self.positive!r}, and the label that ranks low is not declared; a private "
                "learner takes it from no record, because its predictions would show it",
                fix="give negative=, for example positive='yes', negative='no'",
            )
        return task

    def _learned_labels(self) -> dict[str, Any]:
        return {"negative": self._negative} if self._task.negative is None and not self._unnamed else {}

    def _checked_label(self, saved: Mapping[str, Any]) -> Any:
        label = saved.get("negative")
        task = self._task
        if label is not None and (task.negative is not None or task.label_or_null(label) != -1.0):
            raise ValueError("a negative label that is none")
        return label

    def _learn_label(self, y: Any) -> None:
        if self._task.negative is None:
            self._negative = y.item() if isinstance(y, np.generic) else y
            self._unnamed = y is None

    def predict_proba_one(  # type: ignore[override]  # keyword arguments would cost every call a dict
        self, x: Mapping[Any, Any]
    ) -> dict[Any, float]:
        """``{negative: 1 - p, positive: p}`` with p an increasing function of the score.

        A pairwise loss learns no intercept and no scale, so the function has two parameters of its own: see
        the notes of the class. The keys are the labels: False and True, unless others were declared or seen.
        Before the first negative label that is not declared there is only `positive`.
        """
        return self._labelled(self._proba(self.score_one(x)))

    def _labelled(self, p: float) -> dict[Any, float]:
        """The probabilities of both labels."""
        return {self.positive: p} if self._unnamed else {self._negative: 1.0 - p, self.positive: p}

    def predict_one(self, x: Mapping[Any, Any], **kwargs: Any) -> Any:
        """The label `positive` if p is above one half, else the other one; None if that is not known yet."""
        return self.positive if self._proba(self.score_one(x)) > 0.5 else self._negative

    def predict_proba_many(self, X: Any) -> Any:
        """Probabilities of the rows; columns are the negative label, if it is known, and `positive` (as text
        outside pandas, without names for an array).
        """
        table, scores = self._table_scores(X)
        p = self._probas(scores)
        low = {} if self._unnamed else {self._negative: 1.0 - p}
        return table.frame(low | {self.positive: p})

    score_learn_many = _score_learn_many
    probabilities_of = _probabilities_of

    def predict_many(self, X: Any) -> Any:
        """Predicted labels of the rows, as a series with the frame's index, or an array."""
        table, scores = self._table_scores(X)
        low, high = self._negative, self.positive
        # As they are: NumPy alone would make a text of a number that stands with a text.
        labels = np.array([low, high], dtype=None if type(low) is type(high) else object)
        return table.series(labels[(self._probas(scores) > 0.5).astype(np.intp)], self._y_name)


@dataclass(eq=False, repr=False)
class RegressorMixin(Learner, base.MiniBatchRegressor):
    """Ranks records by a real-valued relevance; River's regressor."""

    _: KW_ONLY
    relevance: tuple[float, float] | None = (-1.0, 1.0)

    def _make_task(self) -> RelevanceTarget:
        return RelevanceTarget(self.relevance)

    score_learn_many = _score_learn_many

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """The score: higher ranks higher. Only differences are learned, so its zero means nothing."""
        return self.score_one(x)

    def predict_many(self, X: Any) -> Any:
        """Scores of the rows: of a frame as a series of the same kind with its index, of an array as one."""
        table, scores = self._table_scores(X)
        return table.series(scores, self._y_name)


class TransformerMixin(  # type: ignore[misc]  # River's own classes take labels, or do not
    Learner, base.MiniBatchSupervisedTransformer, base.MiniBatchTransformer, base.SupervisedTransformer
):
    """Learns distances: near within a class, far between classes; River's supervised transformer.

    River looks for each of its classes somewhere. A Pipeline takes a step for a transformer only if it is a
    `TransformerMixin` (both mini-batch classes are), and a last step transforms frames only if it is a
    `MiniBatchTransformer`; a TransformerUnion hands labels on only to a `SupervisedTransformer`, and those of
    frames only to a `MiniBatchSupervisedTransformer`.
    """

    # The map of the published metric and the number of records that it is of; see `_map`.
    _root: tuple[int, Array | None] = (-1, None)

    def _make_task(self) -> ClassTarget:
        return ClassTarget(getattr(self, "classes", None))

    @property
    def metric_(self) -> Array:
        """Published W, symmetric, shape (d, d), in the order of `feature_names`: a copy."""
        w = self._published()
        return w.copy() if w.ndim == 2 else _symmetric(w, len(self.feature_names))

    @property
    def pair_form(self) -> losses.Form:
        """``"psd"`` where W is kept positive semi-definite, else ``"metric"``."""
        return "psd" if getattr(self, "psd", False) else "metric"

    def quadratic_many(self, x: Mapping[Any, Any], others: Sequence[Mapping[Any, Any]]) -> Array:
        """``u'Wu`` for the difference u of a record from each of the others, (n,).

        What the pair loss is of; a squared distance only where W is positive semi-definite. 0 before
        anything is learned.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        rows = self.design_many([x, *others])
        u = rows[1:] - rows[0]
        out: Array = np.einsum("ij,ij->i", u @ self.metric_, u)
        return out

    @property
    def weights_vector(self) -> Array:
        """Entries of W, row by row, shape (d * d,): a copy."""
        return self.metric_.ravel()

    @property
    def _supervised(self) -> bool:
        return True

    @property
    def weights(self) -> dict[tuple[Any, Any], float]:
        """Entries of W by the names of two features, both ways round."""
        w, names = self.metric_.tolist(), self.feature_names
        return {(a, b): w[i][j] for i, a in enumerate(names) for j, b in enumerate(names)}

    @property
    def weights_noise(self) -> dict[tuple[Any, Any], float] | None:
        """Standard deviation of what noise adds to each of `weights`; None where it is not known."""
        noise = self._noise_of_weights()
        if noise is None:
            return None
        entries, names = _symmetric(noise, len(self.feature_names)).tolist(), self.feature_names
        return {(a, b): entries[i][j] for i, a in enumerate(names) for j, b in enumerate(names)}

    def _map(self) -> Array | None:
        """Symmetric root of the positive semi-definite part of W; None, the identity, where that is 0."""
        if self._root[0] != self.records:
            w = self.metric_
            out = np.empty_like(w)
            self._root = (self.records, out if len(w) and symmetric.psd_root(w, out) else None)
        return self._root[1]

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """The record in coordinates in which the Euclidean distance is the learned one.

        x times the symmetric root of the positive semi-definite part of W, under the names of the features.
        Until something is learned it is the identity. Later, unknown features are left out, and known ones
        that are missing count as neutral.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        root = self._map()
        if root is None:
            self.design(x)
            return features.read_record(x, read=self._read_cell)
        row = self.design(x)
        return {name: vectors.dot(line, row) for name, line in zip(self.feature_names, root, strict=True)}

    def transform_many(self, X: Any) -> Any:
        """`transform_one` of the rows: of a frame as a frame of the same kind with its index, of an array as
        one.
        """
        table = FeatureTable(X, read=self._read_cell)
        table.check_names(self.feature_names)
        designs = self._design_rows(table.columns, table.rows)
        root = self._map()
        if root is None:
            names, out = table.columns, table.rows
        else:
            names, out = list(self.feature_names), np.empty_like(designs)
            metric.map_rows(root, designs, out)
        return table.matrix(out, names)

    def distance_one(self, x: Mapping[Any, Any], x2: Mapping[Any, Any]) -> float:
        """Distance of two records: the Euclidean one between what `transform_one` makes of them.

        ``sqrt(u'W+u)`` for the difference u of their designs, with W+ the positive semi-definite part of W:
        directions with a negative eigenvalue count nothing. Before anything is learned it is the Euclidean
        distance.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        a, b = self.transform_one(x), self.transform_one(x2)
        return math.sqrt(
            math.fsum((a.get(name, 0.0) - b.get(name, 0.0)) ** 2 for name in a.keys() | b.keys())
        )

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Distance of a record from the one whose features are all neutral: how unusual it is, if centred.

        For monitoring: a metric compares records, and ranks none.

        Raises
        ------
        RecordError
            If a feature cannot be used.
        """
        return math.sqrt(math.fsum(value * value for value in self.transform_one(x).values()))

    def score_many(self, X: Any) -> Any:
        """`score_one` of the rows: as a series of the frame's kind with its index, or as an array."""
        table = FeatureTable(X, read=self._read_cell)
        table.check_names(self.feature_names)
        designs = self._design_rows(table.columns, table.rows)
        root = self._map()
        if root is None:
            out = table.rows
        else:
            out = np.empty_like(designs)
            metric.map_rows(root, designs, out)
        return table.series(np.array([math.sqrt(math.fsum(row * row)) for row in out]), None)
