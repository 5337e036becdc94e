"""What all linear pair learners share: labels, links, frames, and the state's fingerprint."""

from __future__ import annotations

import abc
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import narwhals.stable.v2 as nw
import numpy as np
from numpy.typing import NDArray
from river import base, utils

from streampair import _features, _kernels, losses
from streampair.errors import ConfigError, RecordError, SnapshotError

if TYPE_CHECKING:
    from streampair.privacy import PrivacyReport

__all__ = ["LinearPairLearner"]

Array = NDArray[np.float64]


class LinearPairLearner(base.MiniBatchClassifier):
    """Base of the learners whose score is ``w . design(x)``.

    A subclass calls `_init_labels(positive)` in its constructor and provides `learn_one`, `score_one`,
    `_learn_rows`, `_score_rows`, `feature_names`, `weights_vector`, `pair_loss`, `comparator_radius`,
    `design` and `design_many`.
    """

    positive: Any
    _y_name: Any = None
    # Whether a cell of a frame that is no number is an error (else it reaches `_learn_rows` as NaN).
    _strict_frames: bool = True

    # ---- labels ----------------------------------------------------------------------------------------

    def _init_labels(self, positive: Any) -> None:
        if positive is None or (isinstance(positive, float) and math.isnan(positive)):
            raise ConfigError(
                f"positive is {positive!r}, which marks an unknown label",
                fix="name the label that ranks high, for example True, 1 or 'fraud'",
            )
        # Identity with these two settles nearly every label without a comparison.
        self._high: Any = positive
        self._low: Any = (not positive) if isinstance(positive, bool) else _Nothing()
        # With a label that equals False as the positive one, the key False gets the high probability:
        # the keys are the labels themselves wherever labels are booleans.
        self._flipped = isinstance(positive, bool | int | np.bool_ | np.integer) and not positive

    def _sign(self, y: Any) -> float:
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

    def _signs(self, y: nw.Series[Any]) -> Array:
        if y.dtype == nw.Boolean and self.positive in (True, False) and not y.null_count():
            return np.where(np.asarray(y.to_numpy(), dtype=bool) == bool(self.positive), 1.0, -1.0)
        signs = np.empty(len(y))
        for i, label in enumerate(y.to_list()):
            try:
                signs[i] = self._sign(label)
            except RecordError as error:
                raise RecordError(f"in row {i}, {error.problem}", fix=error.fix, stage="label") from None
        return signs

    # ---- what a subclass provides ----------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def feature_names(self) -> tuple[Hashable, ...]:
        """Names of the columns of the design, in order."""

    @property
    @abc.abstractmethod
    def weights_vector(self) -> Array:
        """Published weights, shape (d,), in the order of `feature_names`: a copy."""

    @property
    @abc.abstractmethod
    def pair_loss(self) -> losses.PairLoss:
        """The pair loss in use."""

    @property
    @abc.abstractmethod
    def comparator_radius(self) -> float:
        """Radius of the ball that the weights, and so the comparator of a regret, are kept in."""

    @abc.abstractmethod
    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Score of a record under the published weights: higher ranks higher."""

    @abc.abstractmethod
    def design(self, x: Mapping[Any, Any]) -> Array:
        """Vector (d,) that the published weights multiply: ``score_one(x) == design(x) @ weights_vector``."""

    @abc.abstractmethod
    def design_many(self, xs: Sequence[Mapping[Any, Any]]) -> Array:
        """Design vectors of several records, shape (n, d)."""

    @abc.abstractmethod
    def _export(self) -> dict[str, Any]:
        """What has been learned, as plain values and arrays."""

    @abc.abstractmethod
    def _import(self, saved: Mapping[str, Any]) -> None:
        """Take what `_export` gave; ValueError and the like if it cannot be that."""

    @abc.abstractmethod
    def _learn_rows(self, columns: list[Hashable], rows: Array, signs: Array) -> None:
        """Learn (n, columns) raw rows in order, with one kernel call; nothing changes if it raises."""

    @abc.abstractmethod
    def _score_rows(self, columns: list[Hashable], rows: Array) -> Array:
        """Scores (n,) of raw rows: the same bits as `score_one` row by row."""

    # ---- River -----------------------------------------------------------------------------------------

    @property
    def privacy(self) -> PrivacyReport | None:
        """What is guaranteed, and how much of the budget is spent; None if nothing is promised."""
        return None

    @property
    def weights(self) -> dict[Any, float]:
        """Published weights by feature name."""
        return dict(zip(self.feature_names, self.weights_vector.tolist(), strict=True))

    def predict_proba_one(  # type: ignore[override]  # keyword arguments would cost every call a dict
        self, x: Mapping[Any, Any]
    ) -> dict[Any, float]:
        """``{False: 1 - p, True: p}`` with p the sigmoid of the score.

        A pairwise loss learns no intercept: p orders records, it is not calibrated. With a `positive` label
        that equals False the two keys change places, so that they stay the labels themselves.
        """
        p = _kernels.sigmoid(self.score_one(x))
        return {False: p, True: 1.0 - p} if self._flipped else {False: 1.0 - p, True: p}

    def predict_one(self, x: Mapping[Any, Any], **kwargs: Any) -> bool:
        """Whether the score is above 0 (for a `positive` label that equals False: whether it is not)."""
        return (self.score_one(x) > 0.0) is not self._flipped

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn the rows of a data frame in order: the same as `learn_one` row by row, bit for bit.

        Parameters
        ----------
        X
            Data frame of numbers (pandas, polars or another that narwhals knows).
        y
            Series of labels, as long as the frame.

        Raises
        ------
        RecordError
            If any cell or label cannot be used; then no row has been learned.
        """
        frame = _features.open_frame(X)
        series = utils.dataframe.into_series(y)
        if len(frame) != len(series):
            raise RecordError(
                f"there are {len(frame)} rows and {len(series)} labels",
                fix="give one label for each row",
                stage="label",
            )
        signs = self._signs(series)
        columns, rows = _features.frame_rows(frame, strict=self._strict_frames)
        if len(signs):
            self._learn_rows(columns, rows, signs)
        self._y_name = series.name

    def _frame_scores(self, X: Any) -> tuple[nw.DataFrame[Any], Array]:
        frame = _features.open_frame(X)
        columns, rows = _features.frame_rows(frame)
        return frame, self._score_rows(columns, rows)

    def score_many(self, X: Any) -> Any:
        """Scores of the rows of a data frame, as a series of the same kind with the frame's index."""
        frame, scores = self._frame_scores(X)
        return utils.dataframe.to_native_series(scores, name=None, like=frame)

    def predict_proba_many(self, X: Any) -> Any:
        """Probabilities of the rows of a data frame; columns False and True (as text outside pandas)."""
        frame, scores = self._frame_scores(X)
        p = np.empty_like(scores)
        _kernels.sigmoid_many(scores, p)
        columns = {False: p, True: 1.0 - p} if self._flipped else {False: 1.0 - p, True: p}
        return utils.dataframe.to_native_frame(columns, like=frame)

    def predict_many(self, X: Any) -> Any:
        """Predicted labels of the rows of a data frame, as a boolean series with the frame's index."""
        frame, scores = self._frame_scores(X)
        return utils.dataframe.to_native_series(
            (scores > 0.0) != self._flipped, name=self._y_name, like=frame
        )

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


class _Nothing:
    """A label that no record has; equal to its copies in nothing, and cheap to copy and pickle."""
