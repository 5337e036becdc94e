"""How well a learner does, online: the AUC of its latest scores, and its regret.

Both are functions of raw data: for the operator's eyes, not for publication (PRIVACY.md 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from river import base, metrics

from streampair._regret import PairRegret, RegretEstimate
from streampair.errors import ConfigError, RecordError, SnapshotError

__all__ = ["PairRegret", "RegretEstimate", "RollingAUC"]


class RollingAUC(metrics.base.BinaryMetric):
    """Area under the ROC curve of the latest events, exact, right under ties.

    The share of (positive, negative) pairs in the window that the scores rank rightly, a tie counting one
    half (the Mann-Whitney statistic with midranks). Only the order of the scores matters, so probabilities
    and raw scores give the same value. Undefined (NaN) until the window holds both classes: 0.5 would read as
    a useless model.

    `update` costs O(1); `get` sorts what is in the window, once after a change.

    Parameters
    ----------
    window
        Number of latest events.
    pos_val
        The label that should rank high.

    Raises
    ------
    ConfigError
        If `window` is not a positive integer.

    References
    ----------
    Hanley and McNeil 1982, The meaning and use of the area under a ROC curve.

    Examples
    --------
    >>> from streampair.evaluation import RollingAUC
    >>> metric = RollingAUC(window=4)
    >>> for y, p in [(False, 0.9), (False, 0.1), (True, 0.4), (False, 0.4), (True, 0.8)]:
    ...     metric.update(y, p)
    >>> metric
    RollingAUC: 87.50%
    """

    def __init__(self, window: int = 1000, pos_val: Any = True) -> None:
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ConfigError(f"window={window!r} holds no event", fix="give a positive integer")
        self.window = window
        self.pos_val = pos_val
        # Rings would save memory and cost time: lists that are cut back when twice too long are faster.
        self._scores: list[float] = []
        self._labels: list[bool] = []
        self._value: float | None = None

    def works_with(self, model: base.Estimator) -> bool:
        """Classifiers, and anomaly detectors, whose scores rank."""
        return isinstance(model, base.Classifier | base.AnomalyDetector | base.AnomalyFilter)

    @property
    def requires_labels(self) -> bool:
        """False: it wants scores or probabilities."""
        return False

    @property
    def works_with_weights(self) -> bool:
        """False."""
        return False

    def update(self, y_true: Any, y_pred: Any, w: float = 1.0) -> None:
        """Add one event, and forget the oldest when the window is full.

        Parameters
        ----------
        y_true
            The label.
        y_pred
            A score, or River's table of probabilities.
        w
            Must be 1.

        Raises
        ------
        RecordError
            If the score is NaN or no number; the metric is unchanged.
        """
        if w != 1.0:
            raise RecordError("RollingAUC takes no weights", fix="leave w out", stage="learn")
        score = self._score(y_pred)
        self._labels.append(bool(y_true == self.pos_val))
        self._scores.append(score)
        self._trim()

    def extend(self, labels: Iterable[bool], scores: Iterable[float]) -> None:
        """Add many events whose labels are already True or False and whose scores are known to be finite."""
        self._labels.extend(labels)
        self._scores.extend(scores)
        self._trim()

    def revert(self, y_true: Any, y_pred: Any, w: float = 1.0) -> None:
        """Take the latest event with this label and score back out.

        Raises
        ------
        RecordError
            If the window holds no such event.
        """
        score, label = self._score(y_pred), bool(y_true == self.pos_val)
        first = max(0, len(self._scores) - self.window)
        for i in range(len(self._scores) - 1, first - 1, -1):
            if self._scores[i] == score and self._labels[i] == label:
                # What has left the window must not come back into it.
                self._scores, self._labels = self._scores[first:], self._labels[first:]
                del self._scores[i - first], self._labels[i - first]
                self._value = None
                return
        raise RecordError("the window holds no such event", fix="revert only what was added", stage="learn")

    def get(self) -> float:
        """The AUC of the window; NaN if it lacks one of the classes."""
        if self._value is None:
            self._value = _auc(self._labels[-self.window :], self._scores[-self.window :])
        return self._value

    @property
    def n(self) -> int:
        """Number of events in the window."""
        return min(len(self._scores), self.window)

    def to_state(self) -> dict[str, object]:
        """The window as plain values, for a snapshot."""
        return {
            "window": self.window,
            "scores": np.array(self._scores[-self.window :], dtype=np.float64),
            "labels": np.array(self._labels[-self.window :], dtype=np.bool_),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `to_state`; a smaller window keeps the latest events.

        Raises
        ------
        SnapshotError
            If the state is not one of this metric.
        """
        scores, labels = np.asarray(state["scores"]), np.asarray(state["labels"])
        if scores.dtype != np.float64 or labels.dtype != np.bool_ or scores.shape != labels.shape:
            raise SnapshotError("the window of the AUC cannot be read", fix="restore an undamaged snapshot")
        self._scores, self._labels = scores.tolist(), labels.tolist()
        self._value = None
        self._trim()

    def _score(self, y_pred: Any) -> float:
        value = y_pred.get(self.pos_val, 0.0) if isinstance(y_pred, dict) else y_pred
        try:
            score = float(value)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        if math.isnan(score):
            raise RecordError(
                f"the score {value!r} has no rank", fix="give a number that is not NaN", stage="learn"
            )
        return score

    def _trim(self) -> None:
        self._value = None
        if len(self._scores) > 2 * self.window + 64:
            del self._scores[: -self.window], self._labels[: -self.window]


def _auc(labels: list[bool], scores: list[float]) -> float:
    truth = np.array(labels, dtype=np.bool_)
    value = np.array(scores, dtype=np.float64)
    positive, negative = value[truth], np.sort(value[~truth])
    if not positive.size or not negative.size:
        return math.nan
    # Wins and half the ties, counted in integers: exact, whatever the window.
    below = np.searchsorted(negative, positive, side="left").sum()
    not_above = np.searchsorted(negative, positive, side="right").sum()
    return float(int(below) + int(not_above)) / float(2 * positive.size * negative.size)
