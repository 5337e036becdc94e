"""Quality of the latest scores: AUC, precision, recall, calibration and drift, without River's metrics.

Everything is computed on request from the window of scores and labels of the AUC, so nothing else is kept or
saved. It is for operators only, not for publication.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, SnapshotError
from streampair.kernels import dp_steps, rolling_auc

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

__all__ = [
    "BINS",
    "LEVELS",
    "AUCWindow",
    "Quality",
    "average_precision",
    "placements",
    "quality_of",
]

BINS = 32
LEVELS = 10
SHARES = (0.01,)
_MOST = 10_000  # most events used
_WATCHED = 1_000  # most events used for drift detection
_PART = 32  # fewest events on either side of a cut
_CONFIDENCE = 0.002  # significance level of ADWIN's test, as in River


@dataclass(frozen=True)
class Quality:
    """Quality of the latest scores.

    Parameters
    ----------
    bins
        Bins of the score, in standard deviations from its mean, drawn through a sigmoid.
    positives, negatives
        Number of events of each class in each bin, from the lowest scores to the highest.
    average_precision
        Mean of the precision over the positives, from the highest score down; tied scores are taken at once.
    recall_at_top
        Recall among the highest scores, by their share of all events.
    drift
        Whether ADWIN's test detects a change of the AUC within the latest thousand events.
    auc_stderr
        Standard error of the AUC of the window for independent events (DeLong, DeLong and Clarke-Pearson
        1988); None: a class has one event.
    reliability
        The reliability diagram: for each tenth of the probabilities with events, their mean, the share of
        positives, the standard error of that share if the probabilities are right, and the number of events.
        The probabilities are those of the present model for these scores; None: it has none.
    events
        Number of events of which the AUC is.
    recall_at_threshold
        Share of the positives whose score is at least the operator's threshold; None: there is no threshold.
    """

    bins: int
    positives: tuple[int, ...]
    negatives: tuple[int, ...]
    average_precision: float
    recall_at_top: dict[str, float]
    drift: bool
    auc_stderr: float | None = None
    reliability: tuple[tuple[float, float, float, int], ...] | None = None
    events: int = 0
    recall_at_threshold: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        found = asdict(self)
        return {**found, "positives": list(self.positives), "negatives": list(self.negatives)}


def quality_of(
    scores: Floats,
    labels: Flags,
    probabilities: Callable[[Floats], Floats] | None = None,
    *,
    threshold: float | None = None,
) -> Quality | None:
    """Compute the quality of scores, oldest first; None until both classes were seen.

    Parameters
    ----------
    scores
        (n,), finite. Only the latest ten thousand are used.
    labels
        (n,), whether each event is positive.
    probabilities
        Function from scores (n,) to probabilities of the positive class; None: there is none.
    threshold
        Events whose score is at least this count as found; None: there is no threshold.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.evaluation import quality_of
    >>> found = quality_of(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]))
    >>> round(found.average_precision, 4), found.recall_at_top, found.drift
    (0.8333, {'0.01': 0.5}, False)
    """
    sizes = int(labels.sum()), int(len(labels) - labels.sum())
    scores, labels = scores[-_MOST:], labels[-_MOST:]
    if labels.all() or not labels.any():
        return None
    ranked = _ranked(scores, labels)
    hits, seen = ranked.hits, ranked.seen
    shares = {f"{share:g}": _recall(hits, seen, math.ceil(share * len(scores))) for share in SHARES}
    counts = np.zeros((2, BINS), dtype=np.int64)
    spread = float(scores.std())
    slope = 1.0 / spread if spread > 0.0 else 1.0
    dp_steps.class_bins(scores, np.where(labels, 1.0, -1.0), slope, -slope * float(scores.mean()), counts)
    positives, negatives = counts.tolist()
    placed = _placed(ranked)
    drift, late = False, labels[-_WATCHED:]
    if len(scores) <= _WATCHED:
        drift = _drifts(placed)
    elif late.any() and not late.all():
        drift = _drifts(placements(scores[-_WATCHED:], late))
    return Quality(
        BINS,
        tuple(positives),
        tuple(negatives),
        _precision(ranked),
        shares,
        drift,
        auc_stderr=_stderr(placed, labels, sizes),
        reliability=None if probabilities is None else _reliability(probabilities(scores), labels),
        events=sum(sizes),
        recall_at_threshold=None if threshold is None else float((scores[labels] >= threshold).mean()),
    )


def average_precision(scores: Floats, labels: Flags) -> float | None:
    """Mean of the precision over the positives, from the highest score down; tied scores are taken at once.

    Parameters
    ----------
    scores
        (n,), finite.
    labels
        (n,), whether each event is positive.

    Returns
    -------
    float or None
        None where no event is positive.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.evaluation import average_precision
    >>> round(average_precision(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False])), 4)
    0.8333
    """
    return _precision(_ranked(scores, labels)) if labels.any() else None


class _Ranked(NamedTuple):
    """Events in decreasing order of their scores.

    Attributes
    ----------
    order
        Indices of the events.
    labels
        Labels in this order.
    hits, seen
        Number of positives, and of all events, down to the end of each run of equal scores.
    """

    order: NDArray[np.intp]
    labels: Flags
    hits: Floats
    seen: Floats


def _ranked(scores: Floats, labels: Flags) -> _Ranked:
    order = np.argsort(-scores, kind="stable")
    above, flags = scores[order], labels[order]
    ends = np.append(np.flatnonzero(above[1:] != above[:-1]), len(scores) - 1)
    return _Ranked(order, flags, np.cumsum(flags)[ends].astype(np.float64), ends + 1.0)


def _precision(ranked: _Ranked) -> float:
    fresh = np.diff(ranked.hits, prepend=0.0)
    return float((fresh * ranked.hits / ranked.seen).sum() / ranked.hits[-1])


def _placed(ranked: _Ranked) -> Floats:
    """`placements` of events that include both classes."""
    order, flags, hits, seen = ranked
    out = np.empty(len(order))
    runs = np.diff(seen, prepend=0.0).astype(np.intp)
    for positive, others in ((True, seen - hits), (False, hits)):
        # Events of the other class below a run, plus half of those in it.
        below = others[-1] - 0.5 * (others + np.append(0.0, others[:-1]))
        share = np.repeat(below / others[-1], runs)[flags == positive]
        out[order[flags == positive]] = share if positive else 1.0 - share
    return out


def _stderr(values: Floats, labels: Flags, sizes: tuple[int, int]) -> float | None:
    """Standard error of the AUC over `sizes` positives and negatives, estimated from the latest events."""
    groups = [values[labels], values[~labels]]
    if min(map(len, groups)) < 2:
        return None
    return math.sqrt(sum(float(part.var(ddof=1)) / size for part, size in zip(groups, sizes, strict=True)))


def _reliability(probabilities: Floats, labels: Flags) -> tuple[tuple[float, float, float, int], ...]:
    """Points of the reliability diagram; see `Quality`."""
    probabilities = np.clip(probabilities, 0.0, 1.0)
    level = np.minimum((probabilities * LEVELS).astype(np.int64), LEVELS - 1)
    count, sums, found, spread = (
        np.bincount(level, weights, LEVELS)
        for weights in (None, probabilities, labels, probabilities * (1.0 - probabilities))
    )
    return tuple(
        (float(sums[i] / n), float(found[i] / n), math.sqrt(spread[i]) / n, n)
        for i, n in enumerate(count.tolist())
        if n
    )


def _recall(hits: Floats, seen: Floats, most: int) -> float:
    """Share of the positives among the `most` highest scores; of a run of ties as many as fit, on average."""
    return float(np.interp(most, np.append(0.0, seen), np.append(0.0, hits)) / hits[-1])


def placements(scores: Floats, labels: Flags) -> Floats:
    """Share of the other class that each event is ranked correctly against; their mean is the AUC."""
    return _placed(_ranked(scores, labels))


def _drifts(values: Floats) -> bool:
    """ADWIN's test (Bifet and Gavalda 2007, 3.2) over all cuts of the events in two, on their placements.

    Equivalent to `river.drift.ADWIN`, which the tests compare with and which takes two seconds to import.
    """
    n = len(values)
    first = np.arange(_PART, n - _PART + 1)
    if not len(first):
        return False
    sums = np.cumsum(values)[first - 1]
    gap = np.abs(sums / first - (values.sum() - sums) / (n - first))
    inverse = 1.0 / first + 1.0 / (n - first)
    log = math.log(2.0 * math.log(n) / _CONFIDENCE)
    return bool((gap > np.sqrt(2.0 * inverse * values.var() * log) + 2.0 / 3.0 * inverse * log).any())


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
