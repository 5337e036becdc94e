"""The AUC of a learner's latest scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from river import base, metrics

from streampair import kernels as k
from streampair.errors import ConfigError, RecordError, SnapshotError

__all__ = ["RollingAUC"]


class RollingAUC(metrics.base.BinaryMetric):
    """Area under the ROC curve of the latest events, exact, right under ties.

    The share of (positive, negative) pairs in the window that the scores rank rightly, a tie counting one
    half (the Mann-Whitney statistic with midranks). Only the order of the scores matters, so probabilities
    and raw scores give the same value. Undefined (NaN) until the window holds both classes: 0.5 would read as
    a useless model.

    `update` costs O(log window), expected, whatever the order of the scores; `get` costs nothing. Memory is
    O(window).

    Parameters
    ----------
    window
        Number of latest events, at most 1e7.
    pos_val
        The label that should rank high.

    Raises
    ------
    ConfigError
        If `window` is not an integer in that range.

    References
    ----------
    Hanley and McNeil 1982, The meaning and use of the area under a ROC curve.

    Seidel and Aragon 1996, Randomized search trees. (The tree that keeps the order of the scores.)

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
        if isinstance(window, bool) or not isinstance(window, int) or not 1 <= window <= 10_000_000:
            raise ConfigError(f"window={window!r}", fix="give an integer from 1 to 10000000")
        self.window = window
        self.pos_val = pos_val
        self._clear()

    def _clear(self) -> None:
        window = self.window
        self._state = np.zeros(k.AUC_HEADER + 2 * window + k.AUC_NODE * (window + 1))
        self._state[k.AUC_WINDOW] = window

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
        k.auc_add(self._state, score, 1 if y_true == self.pos_val else 0)

    def extend(self, labels: Sequence[bool], scores: Sequence[float]) -> None:
        """Add many events whose labels are already True or False and whose scores are known not to be NaN."""
        k.auc_add_many(self._state, np.array(scores, dtype=np.float64), np.array(labels, dtype=np.bool_))

    def revert(self, y_true: Any, y_pred: Any, w: float = 1.0) -> None:
        """Take the latest event with this label and score back out.

        Raises
        ------
        RecordError
            If the window holds no such event.
        """
        if not k.auc_revert(self._state, self._score(y_pred), 1 if y_true == self.pos_val else 0):
            raise RecordError(
                "the window holds no such event", fix="revert only what was added", stage="learn"
            )

    def get(self) -> float:
        """The AUC of the window; NaN if it lacks one of the classes."""
        pairs = 2.0 * self._state[k.AUC_POSITIVE] * self._state[k.AUC_NEGATIVE]
        # Wins and half the ties, counted in whole numbers: exact, whatever the window.
        return float(self._state[k.AUC_WINS] / pairs) if pairs else math.nan

    @property
    def n(self) -> int:
        """Number of events in the window."""
        return int(self._state[k.AUC_COUNT])

    def to_state(self) -> dict[str, object]:
        """The window as plain values, for a snapshot."""
        oldest = int(self._state[k.AUC_NEXT]) - self.n
        order = (oldest + np.arange(self.n)) % self.window
        return {
            "window": self.window,
            "scores": self._state[k.AUC_HEADER + order],
            "labels": self._state[k.AUC_HEADER + self.window + order] == 1.0,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `to_state`; a smaller window keeps the latest events.

        Raises
        ------
        SnapshotError
            If the state is not one of this metric.
        """
        scores, labels = np.asarray(state["scores"]), np.asarray(state["labels"])
        wrong = scores.dtype != np.float64 or labels.dtype != np.bool_ or scores.shape != labels.shape
        if wrong or scores.ndim != 1 or np.isnan(scores).any():
            raise SnapshotError("the window of the AUC cannot be read", fix="restore an undamaged snapshot")
        self._clear()
        k.auc_add_many(self._state, scores[-self.window :].copy(), labels[-self.window :].copy())

    def __getstate__(self) -> dict[str, Any]:
        # The window alone: the tree is several times its size, and most of it may be unused.
        own = {name: value for name, value in self.__dict__.items() if name != "_state"}
        return {"own": own, "saved": self.to_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["own"])
        self.load_state(state["saved"])

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
