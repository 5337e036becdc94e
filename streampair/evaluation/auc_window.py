"""The AUC of the latest scores, without River's metrics, whose import takes most of a second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, SnapshotError
from streampair.kernels import rolling_auc

__all__ = ["AUCWindow"]


class AUCWindow:
    """Area under the ROC curve of the latest events; the implementation of `RollingAUC`.

    Parameters
    ----------
    window
        Number of latest events, at most 1e7.

    Raises
    ------
    ConfigError
        If `window` is not an integer in that range.
    """

    def __init__(self, window: int) -> None:
        if isinstance(window, bool) or not isinstance(window, int) or not 1 <= window <= 10_000_000:
            raise ConfigError(f"window={window!r}", fix="give an integer from 1 to 10000000")
        self.size = window
        self._clear()

    def _clear(self) -> None:
        self._labels: list[int] = []
        self._scores: list[float] = []
        self._state = np.zeros(
            rolling_auc.AUC_HEADER + 2 * self.size + rolling_auc.AUC_NODE * (self.size + 1)
        )
        self._state[rolling_auc.AUC_WINDOW] = self.size

    def add(self, positive: bool, score: float) -> None:
        """Add one event, and forget the oldest when the window is full. The score must not be NaN."""
        self._settle()
        rolling_auc.auc_add(self._state, score, 1 if positive else 0)

    def extend(self, labels: Sequence[int], scores: Sequence[float]) -> None:
        """Add many events: labels True or False, or 1 or 0, and scores that are not NaN.

        They are counted on the next query, and only those that are in the window then.
        """
        self._labels += labels
        self._scores += scores
        if len(self._labels) > 2 * self.size:
            self._labels, self._scores = self._labels[-self.size :], self._scores[-self.size :]

    def _settle(self) -> None:
        """Apply the pending events."""
        labels, scores = self._labels, self._scores
        if not labels:
            return
        if len(labels) >= self.size:  # nothing from before them is in the window
            labels, scores = labels[-self.size :], scores[-self.size :]
            self._clear()
        self._labels, self._scores = [], []
        rolling_auc.auc_add_many(
            self._state, np.array(scores, dtype=np.float64), np.array(labels, dtype=np.bool_)
        )

    def revert(self, positive: bool, score: float) -> bool:
        """Remove the latest event with this label and score; False if there is none."""
        self._settle()
        return bool(rolling_auc.auc_revert(self._state, score, 1 if positive else 0))

    def get(self) -> float:
        """The AUC of the window; NaN if it lacks one of the classes."""
        self._settle()
        pairs = 2.0 * self._state[rolling_auc.AUC_POSITIVE] * self._state[rolling_auc.AUC_NEGATIVE]
        # Wins and half the ties, counted in whole numbers: exact, whatever the window.
        return float(self._state[rolling_auc.AUC_WINS] / pairs) if pairs else math.nan

    @property
    def n(self) -> int:
        """Number of events in the window."""
        self._settle()
        return int(self._state[rolling_auc.AUC_COUNT])

    def events(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Scores and labels (n,) of the window, the oldest first: copies."""
        self._settle()
        oldest = int(self._state[rolling_auc.AUC_NEXT]) - self.n
        order = (oldest + np.arange(self.n)) % self.size
        return self._state[rolling_auc.AUC_HEADER + order], self._state[
            rolling_auc.AUC_HEADER + self.size + order
        ] == 1.0

    def to_state(self) -> dict[str, object]:
        """The window as plain values, for a snapshot."""
        scores, labels = self.events()
        return {"window": self.size, "scores": scores, "labels": labels}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `to_state`; a smaller window keeps the latest events.

        Raises
        ------
        SnapshotError
            If the state is not one of a window.
        """
        scores, labels = np.asarray(state["scores"]), np.asarray(state["labels"])
        wrong = scores.dtype != np.float64 or labels.dtype != np.bool_ or scores.shape != labels.shape
        if wrong or scores.ndim != 1 or np.isnan(scores).any():
            raise SnapshotError("the window of the AUC cannot be read", fix="restore an undamaged snapshot")
        self._clear()
        rolling_auc.auc_add_many(self._state, scores[-self.size :].copy(), labels[-self.size :].copy())

    def __getstate__(self) -> dict[str, object]:
        # The window alone: the tree is several times its size, and most of it may be unused.
        return self.to_state()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.size = state["window"]
        self.load_state(state)
