"""What the three families of pair learners share: features, frames, scores, and the state's fingerprint.

What differs between them, the labels and River's interface, is in `_families`.
"""

from __future__ import annotations

import abc
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from river import base

from streampair import losses
from streampair._tables import Table, label_values
from streampair.errors import ConfigError, RecordError, SnapshotError

if TYPE_CHECKING:
    from streampair.privacy import PrivacyReport

__all__ = ["LinearPairLearner", "Nothing", "PairLearner"]

Array = NDArray[np.float64]


class Nothing:
    """A label that no record has; equal to its copies in nothing, and cheap to copy and pickle."""


class PairLearner(base.Estimator):
    """Base of all pair learners: learns records in order, one by one or the rows of a frame.

    A family (`_families`) provides `_label`, and `_labels` where many can be read faster. An update rule
    provides `learn_one`, `_learn_rows`, `feature_names`, `pair_loss`, `_export` and `_import`.
    """

    _y_name: Any = None
    # Whether a cell of a frame that is no number is an error (else it reaches `_learn_rows` as NaN).
    _strict_frames: bool = True
    # Labels that are recognised by identity, as +1 and -1; none are, unless a family sets them.
    _high: Any = Nothing()
    _low: Any = Nothing()
    # Whether labels are +1 and -1, so that records can be kept apart by them.
    _two_classes: bool = False
    # How two labels and the weights make the margin of a pair.
    _form: losses.Form = "raw"
    # Whether labels are relevances rather than classes.
    _real_labels: bool = False

    def _checked_loss(self, loss: Any) -> losses.PairLoss:
        """The loss, if the family can use it; None is the hinge.

        Raises
        ------
        ConfigError
        """
        if loss is None:
            return losses.Hinge()
        if not isinstance(loss, losses.PairLoss):
            raise ConfigError(f"loss is {loss!r}", fix="give a pair loss such as losses.Logistic()")
        if loss.of_errors and not self._real_labels:
            raise ConfigError(
                f"{loss!r} compares errors of a real-valued relevance, which labels are not",
                fix="use losses.Logistic() or another loss of the margin, or a learner of ranking",
            )
        return loss

    # ---- what a family provides ------------------------------------------------------------------------

    @abc.abstractmethod
    def _label(self, y: Any) -> float:
        """The number that the kernels know the label by.

        Raises
        ------
        RecordError
            If the label is unknown or cannot be used.
        """

    def _labels(self, y: NDArray[Any] | list[Any]) -> Array:
        """`_label` of every row of an array of booleans or numbers, or of a list; an error names the row."""
        labels = np.empty(len(y))
        for i, label in enumerate(y if isinstance(y, list) else y.tolist()):
            try:
                labels[i] = self._label(label)
            except RecordError as error:
                raise RecordError(f"in row {i}, {error.problem}", fix=error.fix, stage="label") from None
        return labels

    # ---- what an update rule provides ------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def feature_names(self) -> tuple[Hashable, ...]:
        """Names of the columns of the design, in order."""

    @property
    @abc.abstractmethod
    def pair_loss(self) -> losses.PairLoss:
        """The pair loss in use."""

    @property
    @abc.abstractmethod
    def comparator_radius(self) -> float:
        """Radius of the ball that the weights, and so the comparator of a regret, are kept in."""

    @abc.abstractmethod
    def design(self, x: Mapping[Any, Any]) -> Array:
        """Vector (d,) of the record that the published weights are applied to."""

    @abc.abstractmethod
    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Design vectors of several records, shape (n, d)."""

    @abc.abstractmethod
    def _learn_rows(self, columns: list[Hashable], rows: Array, labels: Array) -> None:
        """Learn (n, columns) raw rows in order, with one kernel call; nothing changes if it raises."""

    @abc.abstractmethod
    def _export(self) -> dict[str, Any]:
        """What has been learned, as plain values and arrays."""

    @abc.abstractmethod
    def _import(self, saved: Mapping[str, Any]) -> None:
        """Take what `_export` gave; ValueError and the like if it cannot be that."""

    # ---- River -----------------------------------------------------------------------------------------

    @property
    def privacy(self) -> PrivacyReport | None:
        """What is guaranteed, and how much of the budget is spent; None if nothing is promised."""
        return None

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn the rows of a data frame or an array in order: as `learn_one` row by row, bit for bit.

        The work is one call of compiled code, without Python's global lock.

        Parameters
        ----------
        X
            Data frame of numbers (pandas, polars or another that narwhals knows), or NumPy array of shape
            (n, d): its features are named 0 to d - 1.
        y
            Series or NumPy array of labels, one for each row.

        Raises
        ------
        RecordError
            If any cell or label cannot be used, or if it is an array and the learner knows its features by
            other names; then no row has been learned.
        """
        table = Table(X, strict=self._strict_frames, names=self.feature_names)
        table.check_names(self.feature_names)
        values, name = label_values(y)
        if len(table) != len(values):
            raise RecordError(
                f"there are {len(table)} rows and {len(values)} labels",
                fix="give one label for each row",
                stage="label",
            )
        labels = self._labels(values)
        if len(labels):
            try:
                self._learn_rows(table.columns, table.rows, labels)
            except RecordError:  # names the first cell of a row, in what order its frame has
                self._learn_rows(*table.as_given(), labels)
                raise
        self._y_name = name

    # ---- state -----------------------------------------------------------------------------------------

    def _fingerprint(self) -> dict[str, object]:
        """Class and constructor parameters as text: what a saved state must agree with."""
        params = {name: repr(getattr(self, name)) for name in self._get_params()}
        return {"class": f"{type(self).__module__}.{type(self).__qualname__}", **params}

    def _checked_export(self) -> dict[str, object]:
        """What `to_state` returns, if a snapshot can hold the feature names."""
        for name in self.feature_names:
            if not isinstance(name, str | int | float):
                raise SnapshotError(
                    f"the feature name {name!r} is a {type(name).__name__}, which a snapshot cannot hold",
                    fix="use text as feature names",
                )
        return {"version": 1, "params": self._fingerprint(), **self._export()}

    def _checked_import(self, state: Mapping[str, object]) -> None:
        """Take a state of this version and of a learner with these parameters."""
        if state.get("version") != 1:
            raise SnapshotError(
                f"the saved state has version {state.get('version')!r}, this release reads version 1",
                fix="use the release that saved it",
            )
        self._check_fingerprint(state)
        try:
            self._import(state)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, SnapshotError) as error:
            raise SnapshotError(
                f"the saved state is damaged ({error})", fix="use an earlier snapshot"
            ) from None

    def _check_fingerprint(self, state: Mapping[str, object]) -> None:
        saved = state.get("params")
        if not isinstance(saved, Mapping):
            raise SnapshotError(
                "the saved state has no parameters, so it is not a state of this package",
                fix="give what `to_state` returned",
            )
        own = self._fingerprint()
        for name in sorted(own.keys() | saved.keys()):
            if own.get(name) != saved.get(name):
                raise SnapshotError(
                    f"the saved state belongs to a learner with {name}={saved.get(name)}, "
                    f"this one has {name}={own.get(name)}",
                    fix="construct the learner with the parameters that the state was saved with",
                )


class LinearPairLearner(PairLearner):
    """A pair learner whose score is ``w . design(x)``: that of ranking by labels or by relevance.

    An update rule provides `score_one`, `_score_rows` and `weights_vector` too.
    """

    @property
    @abc.abstractmethod
    def weights_vector(self) -> Array:
        """Published weights, shape (d,), in the order of `feature_names`: a copy."""

    @abc.abstractmethod
    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record under the published weights: higher ranks higher."""

    @abc.abstractmethod
    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        """Scores (n,) of raw rows: the same bits as `score_one` row by row."""

    @property
    def weights(self) -> dict[Any, float]:
        """Published weights by feature name."""
        return dict(zip(self.feature_names, self.weights_vector.tolist(), strict=True))

    def _table_scores(self, X: Any) -> tuple[Table, Array]:
        table = Table(X, names=self.feature_names)
        table.check_names(self.feature_names)
        try:
            return table, self._score_rows(table.columns, table.rows)
        except RecordError:  # names the first cell of a row, in what order its frame has
            return table, self._score_rows(*table.as_given())

    def score_many(self, X: Any) -> Any:
        """Scores of the rows: of a frame as a series of the same kind with its index, of an array as one."""
        table, scores = self._table_scores(X)
        return table.series(scores, None)
