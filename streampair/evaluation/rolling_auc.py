"""Rolling AUC, as a metric of River."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from river import base, metrics

from streampair.errors import RecordError
from streampair.evaluation.quality import AUCWindow
from streampair.records.features import TwoLabels

__all__ = ["RollingAUC"]


class RollingAUC(metrics.base.BinaryMetric):
    """Exact area under the ROC curve of the latest events.

    The share of (positive, negative) pairs in the window that the scores rank correctly; a tie counts one
    half (the Mann-Whitney statistic with midranks). It depends on the order of the scores only, so
    probabilities and raw scores give the same value. It is NaN until the window holds both classes, since 0.5
    would look like a useless model.

    An event may have a weight, one over the probability with which it is seen; a pair weighs the product of
    its weights. Where a score stops events and a tenth of those is let pass to learn how they end, these have
    weight 10. The AUC is then that of all events, but for chance: consistent, not unbiased.

    `update` takes O(log window) expected time for any order of the scores, `get` O(1). Memory is O(window).
    While an event of the window has a weight other than 1, `get` and `revert` take O(window log window).

    Parameters
    ----------
    window
        Number of latest events, at most 1e7.
    positive
        The label that should rank high, as for the learner.
    negative
        The label that should rank low. None: the opposite of True, False, 1 or 0; else every label of the
        type of `positive` does.

    Raises
    ------
    ConfigError
        If `window` is not an integer in that range, or a label is none.

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

    Of the fraud that is stopped above .5, one half is let pass, and stands for all of it:

    >>> metric = RollingAUC(window=100)
    >>> for y, p in [(True, 0.4), (False, 0.45), (True, 0.8), (False, 0.1)]:
    ...     metric.update(y, p, w=2.0 if p >= 0.5 else 1.0)
    >>> metric
    RollingAUC: 83.33%
    """

    def __init__(self, window: int = 1000, positive: Any = True, negative: Any = None) -> None:
        self.window = window
        self.positive = positive
        self.negative = negative
        self._labels = TwoLabels(positive, negative)
        self._latest = AUCWindow(window)

    def works_with(self, model: base.Estimator) -> bool:
        """Whether the model is a classifier or an anomaly detector."""
        return isinstance(model, base.Classifier | base.AnomalyDetector | base.AnomalyFilter)

    @property
    def requires_labels(self) -> bool:
        """False: the metric takes scores or probabilities."""
        return False

    @property
    def works_with_weights(self) -> bool:
        """True."""
        return True

    def update(self, y_true: Any, y_pred: Any, w: float = 1.0) -> None:
        """Add one event, and forget the oldest when the window is full.

        Parameters
        ----------
        y_true
            The label.
        y_pred
            A score, or River's table of probabilities by label.
        w
            Weight, in [1e-150, 1e150]: one over the probability with which such an event is seen.

        Raises
        ------
        RecordError
            If the label is unknown or neither of the two, the score is NaN or no number, a table has
            probabilities of other labels, or the weight is not in [1e-150, 1e150]; the metric is
            unchanged.
        """
        score = self._score(y_pred)
        self._latest.add(self._labels.sign(y_true) > 0.0, score, w)

    def extend(
        self, labels: Sequence[bool], scores: Sequence[float], weights: Sequence[float] | None = None
    ) -> None:
        """Add many events, with labels True or False, scores that are not NaN, and weights as in `update`.

        Raises
        ------
        ConfigError
            If there is not one score and one weight for each label, or a weight is not in [1e-150, 1e150];
            the metric is unchanged.
        """
        self._latest.extend(labels, scores, weights)

    def revert(self, y_true: Any, y_pred: Any, w: float = 1.0) -> None:
        """Remove the latest event with this label, score and weight.

        Raises
        ------
        RecordError
            If the window holds no such event.
        """
        if not self._latest.revert(self._labels.sign(y_true) > 0.0, self._score(y_pred), w):
            raise RecordError(
                "the window holds no such event", fix="revert only what was added", stage="learn"
            )

    def get(self) -> float:
        """The AUC of the window; NaN if it lacks one of the classes."""
        return self._latest.get()

    @property
    def n(self) -> int:
        """Number of events in the window."""
        return self._latest.n

    def to_state(self) -> dict[str, object]:
        """The window as plain values, for a snapshot."""
        return self._latest.to_state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `to_state`; a smaller window keeps the latest events.

        Raises
        ------
        SnapshotError
            If the state is not one of this metric.
        """
        self._latest.load_state(state)

    def _score(self, y_pred: Any) -> float:
        value = y_pred
        if isinstance(y_pred, dict):
            value = y_pred.get(self.positive)
            if value is None:  # 0 where all are of labels that rank low
                value = 0.0
                for label in y_pred:
                    self._labels.sign(label)
        try:
            score = float(value)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        if math.isnan(score):
            raise RecordError(
                f"the score {value!r} has no rank", fix="give a number that is not NaN", stage="learn"
            )
        return score
