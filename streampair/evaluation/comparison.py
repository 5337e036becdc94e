"""Comparison of several learners on the same events: DeLong's test of the difference of two AUCs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, SnapshotError
from streampair.evaluation.quality import placements

__all__ = ["AUCDifference", "ScoreTable", "delong"]

_MOST_EVENTS = 10_000  # of a `ScoreTable`: a test of more takes longer than the commit that publishes it

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class AUCDifference(NamedTuple):
    """AUCs of two learners on the same events, and DeLong's test of their difference.

    Attributes
    ----------
    events
        Number of events.
    first, second
        The two AUCs.
    first_stderr, second_stderr
        Their standard errors.
    difference
        `second - first`.
    difference_stderr
        Its standard error: smaller than that of independent AUCs where the learners agree on most events.
    p_value
        Two-sided, of the hypothesis that both AUCs are equal; 1 where the scores rank all pairs alike.
    """

    events: int
    first: float
    second: float
    first_stderr: float
    second_stderr: float
    difference: float
    difference_stderr: float
    p_value: float


def delong(
    labels: Sequence[bool] | Flags, first: Sequence[float] | Floats, second: Sequence[float] | Floats
) -> AUCDifference | None:
    """Compare two AUCs on the same events.

    Parameters
    ----------
    labels
        (n,), whether each event is positive.
    first, second
        (n,), the scores of the two learners, finite.

    Returns
    -------
    AUCDifference or None
        None where a class has fewer than two events.

    Notes
    -----
    With V10 the share of negatives that each positive is ranked above, and V01 the share of positives that
    each negative is ranked below, the variance of the difference is S10 / m + S01 / n for m positives and n
    negatives, with S10 and S01 the sample variances of the differences of the two learners' V10 and V01:
    equation 9 of the paper with the contrast (-1, 1). It takes O(n log n) time. Events count as independent:
    in a stream whose events come in bursts, the true error is larger.

    References
    ----------
    DeLong, DeLong and Clarke-Pearson 1988, Comparing the areas under two or more correlated receiver
    operating characteristic curves: a nonparametric approach. Biometrics 44.

    Examples
    --------
    >>> from streampair.evaluation import delong
    >>> labels = [True, True, True, False, False, False]
    >>> found = delong(labels, [0.9, 0.4, 0.3, 0.5, 0.2, 0.1], [0.9, 0.8, 0.7, 0.2, 0.6, 0.1])
    >>> round(found.first, 4), found.second, round(found.p_value, 4)
    (0.7778, 1.0, 0.3711)
    """
    flags = np.asarray(labels, dtype=np.bool_)
    positives, negatives = int(flags.sum()), int(len(flags) - flags.sum())
    if min(positives, negatives) < 2:
        return None
    placed = [placements(np.asarray(scores, dtype=np.float64), flags) for scores in (first, second)]
    a, b = (float(values[flags].mean()) for values in placed)
    gap, error = b - a, _stderr(placed[1] - placed[0], flags)
    # Without any variance the learners differ by the same amount on every pair.
    p_value = math.erfc(abs(gap) / (error * math.sqrt(2.0))) if error > 0.0 else float(abs(gap) < 1e-12)
    stderr_a, stderr_b = (_stderr(values, flags) for values in placed)
    return AUCDifference(len(flags), a, b, stderr_a, stderr_b, gap, error, p_value)


def _stderr(values: Floats, flags: Flags) -> float:
    """Standard error of the mean over pairs, from the mean over the other class of each event."""
    groups = values[flags], values[~flags]
    return math.sqrt(sum(float(part.var(ddof=1)) / len(part) for part in groups))


class ScoreTable:
    """Latest labelled events with the scores that several learners gave them before they learned them.

    Parameters
    ----------
    window
        Number of latest events; at most ten thousand are kept.

    Examples
    --------
    >>> from streampair.evaluation import ScoreTable
    >>> table = ScoreTable(100)
    >>> table.extend({"a": ([1, 2, 3, 4], [1, 0, 1, 0], [0.9, 0.1, 0.8, 0.3]),
    ...               "b": ([2, 3, 4], [0, 1, 0], [0.5, 0.6, 0.7])})
    >>> table.extend({"a": ([5], [1], [0.7]), "b": ([5], [1], [0.9])})
    >>> table.compare("a", "b").events  # event 1 has no score of b
    4
    """

    def __init__(self, window: int) -> None:
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ConfigError(f"window={window!r}", fix="give an integer of at least 1")
        self.window = min(window, _MOST_EVENTS)
        self._labels = np.zeros(0, dtype=np.bool_)
        self._scores: dict[str, Floats] = {}

    def extend(self, taken: Mapping[str, tuple[Sequence[int], Sequence[int], Sequence[float]]]) -> None:
        """Add events.

        Parameters
        ----------
        taken
            By learner: the offsets of the labelled events that it scored, ascending; whether each is
            positive; and its scores. An event that any of them has scored takes one row.
        """
        known = list(taken.values())
        offsets, labels = (known[0][0], known[0][1]) if known else ([], [])
        if all(each[0] == offsets for each in known):
            columns = {name: np.array(each[2], dtype=np.float64) for name, each in taken.items()}
        else:
            flags = {offset: label for each in known for offset, label in zip(each[0], each[1], strict=True)}
            rows = {offset: row for row, offset in enumerate(sorted(flags))}
            labels = [flags[offset] for offset in rows]
            columns = {}
            for name, (places, _, scores) in taken.items():
                column = columns[name] = np.full(len(rows), np.nan)
                column[[rows[offset] for offset in places]] = scores
        if not len(labels):
            return
        before = len(self._labels)
        self._labels = np.append(self._labels, np.array(labels, dtype=np.bool_))[-self.window :]
        for name in {*self._scores, *columns}:
            old, new = self._scores.get(name), columns.get(name)
            old = np.full(before, np.nan) if old is None else old
            new = np.full(len(labels), np.nan) if new is None else new
            self._scores[name] = np.concatenate((old, new))[-self.window :]

    def compare(self, first: str, second: str) -> AUCDifference | None:
        """Compare two learners on the events that both have scored; None where there are too few."""
        a, b = self._scores.get(first), self._scores.get(second)
        if a is None or b is None:
            return None
        both = ~(np.isnan(a) | np.isnan(b))
        return delong(self._labels[both], a[both], b[both])

    def drop(self, name: str) -> None:
        """Forget the scores of a learner."""
        self._scores.pop(name, None)

    def to_state(self) -> dict[str, Any]:
        """The table as plain values, for a snapshot."""
        return {"labels": self._labels.copy(), "scores": {k: v.copy() for k, v in self._scores.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `to_state`; a smaller window keeps the latest events.

        Raises
        ------
        SnapshotError
            If the state is not one of a table.
        """
        try:
            labels = np.asarray(state["labels"], dtype=np.bool_)
            scores = {str(k): np.asarray(v, dtype=np.float64) for k, v in state["scores"].items()}
            if labels.ndim != 1 or any(column.shape != labels.shape for column in scores.values()):
                raise ValueError("columns of different lengths")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(
                f"the table of scores is damaged ({error})", fix="restore with the release that wrote it"
            ) from None
        self._labels = labels[-self.window :]
        self._scores = {name: column[-self.window :] for name, column in scores.items()}
