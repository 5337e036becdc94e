"""The families of pair learners: what a label is, and which of River's interfaces a learner has.

AUCLearner       one label ranks high, every other low: a classifier
RankingLearner   a real number ranks: a regressor
MetricLearner    a class, one of any number: a supervised transformer
"""

from __future__ import annotations

import abc
import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from river import base

from streampair import _features, kernels
from streampair._learner import LinearPairLearner, Nothing, PairLearner
from streampair._tables import Table
from streampair.errors import ConfigError, RecordError

__all__ = ["AUCLearner", "MetricLearner", "RankingLearner"]

Array = NDArray[np.float64]


class AUCLearner(LinearPairLearner, base.MiniBatchClassifier):
    """Ranks the records of one label above all others; River's classifier.

    A subclass calls `_init_labels(positive)` in its constructor.
    """

    positive: Any
    _two_classes = True

    # ---- labels ----------------------------------------------------------------------------------------

    def _init_labels(self, positive: Any) -> None:
        if positive is None or (isinstance(positive, float) and math.isnan(positive)):
            raise ConfigError(
                f"positive is {positive!r}, which marks an unknown label",
                fix="name the label that ranks high, for example True, 1 or 'fraud'",
            )
        # Identity with these two settles nearly every label without a comparison.
        self._high = positive
        self._low = (not positive) if isinstance(positive, bool) else Nothing()
        # With a label that equals False as the positive one, the key False gets the high probability:
        # the keys are the labels themselves wherever labels are booleans.
        self._flipped = isinstance(positive, bool | int | np.bool_ | np.integer) and not positive

    def _label(self, y: Any) -> float:
        """+1 for the positive label, -1 for any other.

        Raises
        ------
        RecordError
            If the label is unknown (None or NaN) or cannot be compared.
        """
        try:
            unknown = y is None or bool(y != y)
            same = bool(y == self.positive)
        except (TypeError, ValueError):  # an array, or pandas.NA
            raise RecordError(
                f"the label is not a single known value: {_features._short(y)}",
                fix="give one label, for example True or False",
                stage="label",
            ) from None
        if unknown:
            raise RecordError(
                f"the label is {y!r}, so it is unknown",
                fix="learn the record when its label is there, or leave it out",
                stage="label",
            )
        return 1.0 if same else -1.0

    def _labels(self, y: NDArray[Any] | list[Any]) -> Array:
        # Only where NumPy compares as Python does: whole numbers with whole ones, and none that is NaN.
        if (
            isinstance(y, np.ndarray)
            and y.dtype.kind in "biu"
            and isinstance(self.positive, bool | int | np.bool_ | np.integer)
        ):
            return np.where(y == self.positive, 1.0, -1.0)
        return super()._labels(y)

    # ---- River -----------------------------------------------------------------------------------------

    def predict_proba_one(  # type: ignore[override]  # keyword arguments would cost every call a dict
        self, x: Mapping[Any, Any]
    ) -> dict[Any, float]:
        """``{False: 1 - p, True: p}`` with p the sigmoid of the score.

        A pairwise loss learns no intercept: p orders records, it is not calibrated. With a `positive` label
        that equals False the two keys change places, so that they stay the labels themselves.
        """
        p = kernels.sigmoid(self.score_one(x))
        return {False: p, True: 1.0 - p} if self._flipped else {False: 1.0 - p, True: p}

    def predict_one(self, x: Mapping[Any, Any], **kwargs: Any) -> bool:
        """Whether the score is above 0 (for a `positive` label that equals False: whether it is not)."""
        return (self.score_one(x) > 0.0) is not self._flipped

    def predict_proba_many(self, X: Any) -> Any:
        """Probabilities of the rows; columns False and True (as text outside pandas, none for an array)."""
        table, scores = self._table_scores(X)
        p = np.empty_like(scores)
        kernels.sigmoid_many(scores, p)
        columns = {False: p, True: 1.0 - p} if self._flipped else {False: 1.0 - p, True: p}
        return table.frame(columns)

    def predict_many(self, X: Any) -> Any:
        """Predicted labels of the rows, as a boolean series with the frame's index, or an array."""
        table, scores = self._table_scores(X)
        return table.series((scores > 0.0) != self._flipped, self._y_name)


class RankingLearner(LinearPairLearner, base.MiniBatchRegressor):
    """Ranks records by a real-valued relevance; River's regressor.

    A subclass calls `_init_labels` in its constructor.
    """

    _real_labels = True
    # What a relevance in range is scaled to.
    _least, _most = -1.0, 1.0

    # ---- labels ----------------------------------------------------------------------------------------

    def _init_labels(self, relevance: Any, limit: float | None = None) -> None:
        """Take the range of relevances; None stands for numbers of at most the size `limit`, as they are."""
        if relevance is None and limit is not None:
            self._low_relevance = self._least = -limit
            self._high_relevance = self._most = limit
            self._middle, self._half = 0.0, 1.0
            return
        try:
            low, high = (_features.as_number(bound) for bound in relevance)
        except (TypeError, ValueError, OverflowError):
            low = high = math.nan
        size = max(abs(low), abs(high))
        if not (size <= 1e100 and high - low > max(1e-100, 1e-9 * size)):
            raise ConfigError(
                f"relevance is {relevance!r}",
                fix="give the lowest and the highest relevance there can be, for example (0, 4)",
            )
        self._low_relevance, self._high_relevance = low, high
        self._middle, self._half = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low

    def _label(self, y: Any) -> float:
        """The relevance, scaled to [-1, 1] if a range was declared.

        Raises
        ------
        RecordError
            If it is unknown (None or NaN), no number, or out of range.
        """
        try:
            value = y if type(y) is float else _features.as_number(y)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        low, high = self._low_relevance, self._high_relevance
        if low <= value <= high:
            return min(max((value - self._middle) / self._half, self._least), self._most)
        shown = _features._short(y)
        if y is None or (isinstance(y, float | np.floating) and y != y):
            raise RecordError(
                f"the relevance is {shown}, so it is unknown",
                fix="learn the record when its relevance is there, or leave it out",
                stage="label",
            )
        raise RecordError(
            f"the relevance is {shown}, not a number from {low:g} to {high:g}",
            fix="declare the range that the relevance has, for example relevance=(0, 4), or scale it",
            stage="label",
        )

    def _labels(self, y: NDArray[Any] | list[Any]) -> Array:
        if isinstance(y, np.ndarray):
            values = np.asarray(y, dtype=np.float64)
            if bool(np.all((values >= self._low_relevance) & (values <= self._high_relevance))):
                scaled: Array = np.clip((values - self._middle) / self._half, self._least, self._most)
                return scaled
        return super()._labels(y)

    # ---- River -----------------------------------------------------------------------------------------

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """The score: higher ranks higher. Only differences are learned, so its zero means nothing."""
        return self.score_one(x)

    def predict_many(self, X: Any) -> Any:
        """Scores of the rows: of a frame as a series of the same kind with its index, of an array as one."""
        table, scores = self._table_scores(X)
        return table.series(scores, self._y_name)


def _whole(y: Any, number: float) -> int:
    """The integer that y is. The float may be its neighbour: identifiers of persons are often of 64 bits."""
    whole = int(number)
    return whole if y == whole else int(y)


@lru_cache(maxsize=1024)
def _class_number(y: Any) -> float:
    """A number below 2**53 for a class: the same for equal labels, in every process.

    A hash rather than a table of the labels seen, which would grow with them, and have to be saved. Two of n
    classes share a number with a probability of n^2 / 2^54.

    Raises
    ------
    TypeError, ValueError
        If the label is unknown, or neither text nor a number.
    """
    if isinstance(y, str):
        text = f"s{y}"
    elif isinstance(y, bytes):
        text = f"b{y.hex()}"
    else:
        number = _features.as_number(y)  # None and NaN are none
        if number != number:
            raise ValueError("NaN")
        text = f"n{_whole(y, number)}" if number.is_integer() else f"n{number!r}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return float(int.from_bytes(digest, "big") >> 11)


class MetricLearner(  # type: ignore[misc]  # River's own classes take labels, or do not
    PairLearner, base.MiniBatchSupervisedTransformer, base.MiniBatchTransformer, base.SupervisedTransformer
):
    """Learns distances: near within a class, far between classes; River's supervised transformer.

    River looks for each of its classes somewhere. A Pipeline takes a step for a transformer only if it is a
    `Transformer` (both mini-batch classes are), and a last step transforms frames only if it is a
    `MiniBatchTransformer`; a TransformerUnion hands labels on only to a `SupervisedTransformer`, and those of
    frames only to a `MiniBatchSupervisedTransformer`.
    """

    _form = "metric"
    # The map of the published metric and the number of records that it is of; see `_map`.
    _root: tuple[int, Array | None] = (-1, None)

    # ---- labels ----------------------------------------------------------------------------------------

    def _label(self, y: Any) -> float:
        """The number of the class.

        Raises
        ------
        RecordError
            If the label is unknown (None or NaN), or neither text nor a number.
        """
        try:
            # Long texts are not remembered: a thousand of them could be much.
            if isinstance(y, str | bytes) and len(y) > 100:
                return _class_number.__wrapped__(y)
            return _class_number(y)
        except (TypeError, ValueError, OverflowError):
            pass
        try:
            unknown = y is None or bool(y != y)
        except (TypeError, ValueError):
            unknown = False
        if unknown:
            raise RecordError(
                f"the label is {y!r}, so its class is unknown",
                fix="learn the record when its label is there, or leave it out",
                stage="label",
            )
        raise RecordError(
            f"the label is neither text nor a number: {_features._short(y)}",
            fix="give the class as text, a number or True and False",
            stage="label",
        )

    def _labels(self, y: NDArray[Any] | list[Any]) -> Array:
        values = y if isinstance(y, list) else y.tolist()
        try:
            numbers = {label: self._label(label) for label in set(values)}
            return np.array([numbers[label] for label in values], dtype=np.float64)
        except (TypeError, RecordError):  # a label that is none: which row is it?
            return super()._labels(values)

    # ---- what an update rule provides ------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def records(self) -> int:
        """Number of records taken."""

    @property
    @abc.abstractmethod
    def metric_(self) -> Array:
        """Published W, symmetric, shape (d, d), in the order of `feature_names`: a copy."""

    @abc.abstractmethod
    def _design_rows(self, columns: list[Any], rows: Array) -> Array:
        """Designs (n, d) of the raw rows (n, columns) of a frame.

        Raises
        ------
        RecordError
            If a value cannot be used.
        """

    # ---- the metric ------------------------------------------------------------------------------------

    @property
    def _supervised(self) -> bool:
        return True

    @property
    def weights(self) -> dict[tuple[Any, Any], float]:
        """Entries of W by the names of two features, both ways round."""
        w, names = self.metric_.tolist(), self.feature_names
        return {(a, b): w[i][j] for i, a in enumerate(names) for j, b in enumerate(names)}

    def _map(self) -> Array | None:
        """Symmetric root of the positive semi-definite part of W; None, the identity, where that is 0."""
        if self._root[0] != self.records:
            w = self.metric_
            out = np.empty_like(w)
            self._root = (self.records, out if len(w) and kernels.psd_root(w, out) else None)
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
            return _features.read_record(x)
        row = self.design(x)
        return {name: kernels.dot(line, row) for name, line in zip(self.feature_names, root, strict=True)}

    def transform_many(self, X: Any) -> Any:
        """`transform_one` of the rows: of a frame as a frame of the same kind with its index, of an array as
        one.
        """
        table = Table(X)
        table.check_names(self.feature_names)
        designs = self._design_rows(table.columns, table.rows)
        root = self._map()
        if root is None:
            names, out = table.columns, table.rows
        else:
            names, out = list(self.feature_names), np.empty_like(designs)
            kernels.map_rows(root, designs, out)
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
