"""Quality of the latest scores: AUC, precision, recall, calibration and drift, without River's metrics.

Everything is computed on request from the window of scores and labels of the AUC, so nothing else is kept or
saved. It is for operators only, not for publication.

Weights are for events that are seen with a known probability only. Where a score stops events, and a share of
those is let pass to learn how they end (explored), an explored event stands for 1 / share events: that is its
weight. Sums of weights are then unbiased estimates of numbers of events, and a pair of events weighs the
product of its weights. A figure is a ratio of two such sums, so it is consistent, but not unbiased.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, RecordError, SnapshotError
from streampair.kernels import rolling_auc

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

__all__ = [
    "BINS",
    "FEWEST",
    "FEWEST_OF_AUC",
    "LEVELS",
    "AUCWindow",
    "Quality",
    "average_precision",
    "checked_weights",
    "explored_positives",
    "placements",
    "quality_of",
    "stderr_of_means",
    "too_few",
]

BINS = 32
LEVELS = 10
SHARES = (0.01,)
FEWEST = 30
"""Fewest explored positives for average precision, recall and precision; below, their errors exceed .1."""
FEWEST_OF_AUC = 3
"""Fewest explored positives for the standard error of an AUC: an interval of 95 % covers in 88 % below."""
_MOST = 10_000  # most events used
_MOST_EXPLORED = 100_000  # where some are explored: few of them have weight, and 10,000 may hold none
_WATCHED = 1_000  # most events used for drift detection
_PART = 32  # fewest events on either side of a cut
_EPSILON = float(np.finfo(np.float64).eps)
LEAST_WEIGHT, MOST_WEIGHT = 1e-150, 1e150
"""Bounds of a weight: a ratio of two of them, and a product of two, are normal numbers."""
_WEIGHTS: Final = (
    f"a weight from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}: one over the probability with which such an "
    "event is seen"
)
_CONFIDENCE = 0.002  # significance level of ADWIN's test, as in River


@dataclass(frozen=True)
class Quality:
    """Quality of the latest scores.

    Parameters
    ----------
    bins
        Bins of the score, in standard deviations from its mean, drawn through a sigmoid.
    positives, negatives
        Number of events of each class in each bin, from the lowest scores to the highest; with weights, their
        sum.
    average_precision
        Mean of the precision over the positives, from the highest score down; tied scores are taken at once.
        None: `too_few`.
    recall_at_top
        Recall among the highest scores, by their share of all events; empty: `too_few`.
    drift
        Whether ADWIN's test detects a change of the AUC within the latest thousand events. It counts each
        event once, whatever its weight.
    auc_stderr
        Standard error of the AUC of the window for independent events (DeLong, DeLong and Clarke-Pearson
        1988); None: a class has one event, or there are fewer than 3 explored positives.
    reliability
        The reliability diagram: for each tenth of the probabilities with events, their mean, the share of
        positives, the standard error of that share if the probabilities are right, and the number of events.
        The probabilities are those of the present model for these scores; None: it has none.
    events
        Number of events of which the AUC is.
    recall_at_threshold
        Share of the positives whose score is at least the operator's threshold; None: there is no threshold,
        or `too_few`.
    precision_at_threshold
        Share of the positives among the events whose score is at least the threshold; None: there is no
        threshold or no such event, or `too_few`.
    explored_positives
        Number of positives whose weight is above 1, and whose score is at least the threshold if there is
        one; None: no event has such a weight, and none was stopped.
    too_few
        Whether there are fewer than 30 explored positives. What depends on these most is then left out.
    """

    bins: int
    positives: tuple[float, ...]
    negatives: tuple[float, ...]
    average_precision: float | None
    recall_at_top: dict[str, float]
    drift: bool
    auc_stderr: float | None = None
    reliability: tuple[tuple[float, float, float, int], ...] | None = None
    events: int = 0
    recall_at_threshold: float | None = None
    precision_at_threshold: float | None = None
    explored_positives: int | None = None
    too_few: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        found = asdict(self)
        return {**found, "positives": list(self.positives), "negatives": list(self.negatives)}


def quality_of(
    scores: Floats,
    labels: Flags,
    weights: Floats | None = None,
    *,
    probabilities: Callable[[Floats], Floats] | None = None,
    threshold: float | None = None,
    stopped: bool = False,
) -> Quality | None:
    """Compute the quality of scores, oldest first; None until both classes were seen.

    Parameters
    ----------
    scores
        (n,), finite. Only the latest ten thousand are used; a hundred thousand if some have a weight other
        than 1.
    labels
        (n,), whether each event is positive.
    weights
        (n,), in [1e-150, 1e150]: one over the probability with which an event is seen. None: all are 1.
    probabilities
        Function from scores (n,) to probabilities of the positive class; None: there is none.
    threshold
        Events whose score is at least this count as found; None: there is no threshold.
    stopped
        Whether events may be missing since their score stopped them. Some figures then need explored
        positives, as with weights above 1: `Quality.too_few`.

    Raises
    ------
    ConfigError
        If there is not one weight for each event, or one is not in [1e-150, 1e150].

    Notes
    -----
    With weights the standard error of the AUC is that of the jackknife, which leaves out one event at a time.
    For positives with weights w, weighted shares V of the negatives that they are ranked above, weighted mean
    A of V, and W = sum w, their part of the variance is

    (m - 1) / m sum (w (V - A) / (W - w))^2,

    in which w^2 says that an event of weight w counts w times, but varies as one; negatives likewise. It is
    DeLong's where all weights are equal. Where few events are explored, an interval of 1.96 standard errors
    is too narrow if by chance none of them is positive, hence the least number.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.evaluation import quality_of
    >>> found = quality_of(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False]))
    >>> round(found.average_precision, 4), found.recall_at_top, found.drift
    (0.8333, {'0.01': 0.5}, False)

    Events above 1 are stopped, but for a tenth of them:

    >>> scores, labels = np.arange(400) / 250, np.arange(400) % 4 == 0
    >>> found = quality_of(scores, labels, np.where(scores >= 1, 10.0, 1.0), threshold=1)
    >>> found.explored_positives, round(found.recall_at_threshold, 3), found.precision_at_threshold > 0.2
    (37, 0.855, True)
    >>> quality_of(scores[:300], labels[:300], np.where(scores[:300] >= 1, 10.0, 1.0), threshold=1).too_few
    True
    """
    weights = checked_weights(weights, len(scores))
    sizes = int(labels.sum()), int(len(labels) - labels.sum())
    most = _MOST if weights is None else _MOST_EXPLORED
    scores, labels = scores[-most:], labels[-most:]
    if labels.all() or not labels.any():
        return None
    exact, weights = weights is None, _each(weights, labels)
    # Of the events below the threshold there may be a sample, with weights above 1, too.
    above = labels if threshold is None else labels & (scores >= threshold)
    explored = explored_positives(above, weights, stopped=stopped)
    few = too_few(explored)
    positives, negatives = _histogram(scores, labels, weights)
    weights = weights / weights.max()  # no other figure depends on their unit: their sums do not overflow
    ranked = _ranked(scores, labels, weights)
    total = ranked.hits[-1] + ranked.misses[-1]
    tops = {share: math.ceil(share * total) if exact else share * total for share in SHARES}
    shares = {f"{share:g}": _recall(ranked, top) for share, top in tops.items()}
    placed = _placed(ranked)
    error = None if too_few(explored, FEWEST_OF_AUC) else _stderr(placed, labels, weights, sizes)
    recall, precision = (None, None) if few else _at_threshold(scores, labels, weights, threshold)
    return Quality(
        BINS,
        positives,
        negatives,
        None if few else _precision(ranked),
        {} if few else shares,
        _drift(scores, labels, placed if exact else None),
        auc_stderr=error,
        reliability=None if probabilities is None else _reliability(probabilities(scores), labels, weights),
        events=sum(sizes),
        recall_at_threshold=recall,
        precision_at_threshold=precision,
        explored_positives=explored,
        too_few=few,
    )


def explored_positives(positive: Flags, weights: Floats, *, stopped: bool) -> int | None:
    """Number of positives (n,) with a weight above 1; None: none is `stopped`, and no event has one."""
    above = weights > 1.0
    return int((positive & above).sum()) if stopped or above.any() else None


def too_few(explored: int | None, least: int = FEWEST) -> bool:
    """Whether a figure is to be left out, since it depends on as many explored positives; None: on none."""
    return explored is not None and explored < least


def checked_weights(weights: Sequence[float] | Floats | None, n: int) -> Floats | None:
    """Weights as an array (n,); None where all are 1.

    Parameters
    ----------
    weights
        One for each event; None: all are 1.
    n
        Number of events.

    Raises
    ------
    ConfigError
        If there is not one weight for each event, or one is not in [1e-150, 1e150].

    Examples
    --------
    >>> from streampair.evaluation.quality import checked_weights
    >>> checked_weights([1, 50], 2), checked_weights([1, 1], 2)
    (array([ 1., 50.]), None)
    """
    if weights is None:
        return None
    try:
        found = np.asarray(weights, dtype=np.float64)
    except (OverflowError, TypeError, ValueError):
        raise ConfigError("a weight is no float", fix=f"give {_WEIGHTS}") from None
    if found.shape != (n,):
        raise ConfigError(
            f"weights have the shape {found.shape} for {n} events", fix="give one weight for each event"
        )
    wrong = ~_usable(found)
    if wrong.any():
        raise ConfigError(
            f"the weight at place {int(wrong.argmax())} is {found[wrong.argmax()]}",
            fix=f"give {_WEIGHTS}",
        )
    return None if (found == 1.0).all() else found


def average_precision(scores: Floats, labels: Flags, weights: Floats | None = None) -> float | None:
    """Mean of the precision over the positives, from the highest score down; tied scores are taken at once.

    Parameters
    ----------
    scores
        (n,), finite.
    labels
        (n,), whether each event is positive.
    weights
        (n,), as in `quality_of`; None: all are 1.

    Returns
    -------
    float or None
        None where no event is positive.

    Raises
    ------
    ConfigError
        As in `quality_of`.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.evaluation import average_precision
    >>> round(average_precision(np.array([0.9, 0.8, 0.7, 0.1]), np.array([True, False, True, False])), 4)
    0.8333
    """
    weights = checked_weights(weights, len(scores))
    return _precision(_ranked(scores, labels, _each(weights, labels))) if labels.any() else None


def _each(weights: Floats | None, labels: Flags) -> Floats:
    """The weights of the latest events, as many as labels; None: all are 1."""
    return np.ones(len(labels)) if weights is None else weights[-len(labels) :]


class _Ranked(NamedTuple):
    """Events in decreasing order of their scores.

    Attributes
    ----------
    order
        Indices of the events.
    labels
        Labels in this order.
    ends
        Number of events down to the end of each run of equal scores.
    hits, misses
        Sum of the weights of the positives, and of the negatives, down to there.
    """

    order: NDArray[np.intp]
    labels: Flags
    ends: NDArray[np.intp]
    hits: Floats
    misses: Floats


def _ranked(scores: Floats, labels: Flags, weights: Floats) -> _Ranked:
    order = np.argsort(-scores, kind="stable")
    above, flags = scores[order], labels[order]
    last = np.append(np.flatnonzero(above[1:] != above[:-1]), len(scores) - 1)
    ends = last + 1
    ordered = weights[order] / weights.max()
    hits, misses = (np.cumsum(np.where(of_class, ordered, 0.0))[last] for of_class in (flags, ~flags))
    return _Ranked(order, flags, ends, hits, misses)


def _precision(ranked: _Ranked) -> float:
    hits = ranked.hits
    fresh = np.diff(hits, prepend=0.0)
    return float((fresh * hits / (hits + ranked.misses)).sum() / hits[-1])


def _recall(ranked: _Ranked, most: float) -> float:
    """Share of the positives among the `most` highest scores; of a run of ties as many as fit, on average."""
    hits, seen = ranked.hits, ranked.hits + ranked.misses
    return float(np.interp(most, np.append(0.0, seen), np.append(0.0, hits)) / hits[-1])


def _placed(ranked: _Ranked) -> Floats:
    """`placements` of events that include both classes."""
    order, flags, ends, hits, misses = ranked
    out = np.empty(len(order))
    runs = np.diff(ends, prepend=0)
    for positive, others in ((True, misses), (False, hits)):
        # Events of the other class below a run, plus half of those in it.
        below = others[-1] - 0.5 * (others + np.append(0.0, others[:-1]))
        share = np.repeat(below / others[-1], runs)[flags == positive]
        out[order[flags == positive]] = share if positive else 1.0 - share
    return out


def _histogram(scores: Floats, labels: Flags, weights: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Positives and negatives by bin; see `Quality`."""
    each = weights / weights.max()
    mean = float(np.average(scores, weights=each))
    spread = math.sqrt(float(np.average((scores - mean) ** 2, weights=each)))
    slope = 1.0 / spread if spread > 0.0 else 1.0
    share = 0.5 + 0.5 * np.tanh(0.5 * slope * (scores - mean))
    bins = np.minimum((BINS * share).astype(np.int64), BINS - 1)
    first, second = (np.bincount(bins[of], weights[of], BINS).tolist() for of in (labels, ~labels))
    return tuple(first), tuple(second)


def _stderr(values: Floats, labels: Flags, weights: Floats, sizes: tuple[int, int]) -> float | None:
    """Standard error of the AUC over `sizes` positives and negatives, estimated from the latest events."""
    if min(int(labels.sum()), int((~labels).sum())) < 2:
        return None
    return stderr_of_means(values, labels, weights, sizes)


def stderr_of_means(
    values: Floats, labels: Flags, weights: Floats | None = None, sizes: tuple[int, int] | None = None
) -> float:
    """Standard error of the weighted mean over pairs, from the mean over the other class of each event.

    Parameters
    ----------
    values
        (n,), the mean over the other class of each event, such as `placements`. Each class has two events.
    labels
        (n,), whether each event is positive.
    weights
        (n,), as in `quality_of`; None: all are 1.
    sizes
        Number of positives and of negatives whose mean it is, where the values are a part of them; None:
        those of the values.
    """
    total, each = 0.0, _each(weights, labels)
    for number, chosen in enumerate((labels, ~labels)):
        part = values[chosen]
        size = len(part) if sizes is None else sizes[number]
        share = each[chosen] / each[chosen].max()
        share /= share.sum()
        # Not `share @ part`: a BLAS shares long vectors among threads, for more time and other bits.
        gap = share * (part - (share * part).sum())
        left_out = gap / np.maximum(1.0 - share, _EPSILON)  # 0 / 0 where one weight is all
        total += (len(part) - 1) / size * float((left_out * left_out).sum())
    return math.sqrt(total)


def _reliability(
    probabilities: Floats, labels: Flags, weights: Floats
) -> tuple[tuple[float, float, float, int], ...]:
    """Points of the reliability diagram; see `Quality`."""
    probabilities = np.clip(probabilities, 0.0, 1.0)
    level = np.minimum((probabilities * LEVELS).astype(np.int64), LEVELS - 1)
    count = np.bincount(level, minlength=LEVELS)
    spread = weights * weights * probabilities * (1.0 - probabilities)
    total, sums, found, squares = (
        np.bincount(level, values, LEVELS)
        for values in (weights, weights * probabilities, weights * labels, spread)
    )
    return tuple(
        (float(sums[i] / total[i]), float(found[i] / total[i]), math.sqrt(squares[i]) / float(total[i]), n)
        for i, n in enumerate(count.tolist())
        if n
    )


def _at_threshold(
    scores: Floats, labels: Flags, weights: Floats, threshold: float | None
) -> tuple[float | None, float | None]:
    """Recall and precision of the events whose score is at least the threshold; see `Quality`."""
    if threshold is None:
        return None, None
    above = scores >= threshold
    found, positive, taken = (float(weights[each].sum()) for each in (labels & above, labels, above))
    return found / positive, found / taken if taken else None


def placements(scores: Floats, labels: Flags, weights: Floats | None = None) -> Floats:
    """Share of the other class that each event is ranked correctly against; their mean is the AUC.

    With weights, the share of the weight of the other class; the weighted mean of each class is the AUC.
    """
    return _placed(_ranked(scores, labels, _each(weights, labels)))


def _drift(scores: Floats, labels: Flags, placed: Floats | None) -> bool:
    """Whether the AUC of the latest events has changed; `placed` are the unweighted placements, if known."""
    if placed is not None and len(scores) <= _WATCHED:
        return _drifts(placed)
    scores, labels = scores[-_WATCHED:], labels[-_WATCHED:]
    return bool(labels.any() and not labels.all()) and _drifts(placements(scores, labels))


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

    While an event of the window has a weight other than 1, `get` sorts the window, and `revert` builds it
    anew.

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
        self._late_weights: list[float] = []  # of the pending events
        self._weights: Floats | None = None  # a ring, as that of the scores; None: all are 1
        self._state = np.zeros(
            rolling_auc.AUC_HEADER + 2 * self.size + rolling_auc.AUC_NODE * (self.size + 1)
        )
        self._state[rolling_auc.AUC_WINDOW] = self.size

    def add(self, positive: bool, score: float, w: float = 1.0) -> None:
        """Add one event, and forget the oldest when the window is full.

        Parameters
        ----------
        positive
            The label.
        score
            Not NaN.
        w
            Weight, in [1e-150, 1e150]: one over the probability with which such an event is seen.

        Raises
        ------
        RecordError
            If the weight is not in [1e-150, 1e150]; the window is unchanged.
        """
        if w != 1.0:
            _check_weight(w)
        self._settle()
        if w != 1.0 or self._weights is not None:
            self._weigh(1, w)
        rolling_auc.auc_add(self._state, score, 1 if positive else 0)

    def extend(
        self, labels: Sequence[int], scores: Sequence[float], weights: Sequence[float] | Floats | None = None
    ) -> None:
        """Add many events; they are counted on the next query, and only those that are in the window then.

        Parameters
        ----------
        labels
            True or False, or 1 or 0.
        scores
            Not NaN.
        weights
            As in `add`; None: all are 1.

        Raises
        ------
        ConfigError
            If there is not one score and one weight for each label, or a weight is not in [1e-150, 1e150];
            the window is unchanged.
        """
        if len(labels) != len(scores):
            raise ConfigError(
                f"there are {len(labels)} labels and {len(scores)} scores",
                fix="give one score for each label",
            )
        checked = checked_weights(weights, len(labels))
        self._labels.extend(labels)  # += would add an array to what is in the list
        self._late_weights += [1.0] * len(labels) if checked is None else checked.tolist()
        self._scores.extend(scores)
        if len(self._labels) > 2 * self.size:
            for pending in (self._labels, self._scores, self._late_weights):
                del pending[: -self.size]

    def _settle(self) -> None:
        """Apply the pending events."""
        labels, scores, weights = self._labels, self._scores, self._late_weights
        if not labels:
            return
        if len(labels) >= self.size:  # nothing from before them is in the window
            labels, scores, weights = labels[-self.size :], scores[-self.size :], weights[-self.size :]
            self._clear()
        self._labels, self._scores, self._late_weights = [], [], []
        self._weigh(len(labels), None if weights.count(1.0) == len(weights) else weights)
        rolling_auc.auc_add_many(
            self._state, np.array(scores, dtype=np.float64), np.array(labels, dtype=np.bool_)
        )

    def _weigh(self, count: int, weights: Sequence[float] | Floats | float | None) -> None:
        """Write the weights of the next events into the ring; None: all are 1."""
        if weights is None and self._weights is None:
            return
        if self._weights is None:
            self._weights = np.ones(self.size)
        places = int(self._state[rolling_auc.AUC_NEXT]) + np.arange(count)
        self._weights[places % self.size] = 1.0 if weights is None else weights

    def revert(self, positive: bool, score: float, w: float = 1.0) -> bool:
        """Remove the latest event with this label, score and weight; False if there is none."""
        self._settle()
        if self._weights is None:
            return w == 1.0 and bool(rolling_auc.auc_revert(self._state, score, 1 if positive else 0))
        scores, labels, weights = self.events()
        found = np.flatnonzero((scores == score) & (labels == positive) & (weights == w))
        if not len(found):
            return False
        left = np.arange(len(scores)) != found[-1]
        self._fill(scores[left], labels[left], weights[left])
        return True

    def get(self) -> float:
        """The AUC of the window; NaN if it lacks one of the classes."""
        self._settle()
        pairs = 2.0 * self._state[rolling_auc.AUC_POSITIVE] * self._state[rolling_auc.AUC_NEGATIVE]
        if not pairs:
            return math.nan
        if self._weights is not None:
            scores, labels, weights = self.events()
            if (weights != 1.0).any():
                return _weighted_auc(scores, labels, weights)
            self._weights = None
        # Wins and half the ties, counted in whole numbers: exact, whatever the window.
        return float(self._state[rolling_auc.AUC_WINS] / pairs)

    @property
    def n(self) -> int:
        """Number of events in the window."""
        self._settle()
        return int(self._state[rolling_auc.AUC_COUNT])

    def events(self) -> tuple[Floats, Flags, Floats]:
        """Scores, labels and weights (n,) of the window, the oldest first: copies."""
        self._settle()
        oldest = int(self._state[rolling_auc.AUC_NEXT]) - self.n
        order = (oldest + np.arange(self.n)) % self.size
        return (
            self._state[rolling_auc.AUC_HEADER + order],
            self._state[rolling_auc.AUC_HEADER + self.size + order] == 1.0,
            np.ones(self.n) if self._weights is None else self._weights[order],
        )

    def to_state(self) -> dict[str, object]:
        """The window as plain values, for a snapshot; with weights only where one is not 1."""
        scores, labels, weights = self.events()
        state: dict[str, object] = {"window": self.size, "scores": scores, "labels": labels}
        return state if (weights == 1.0).all() else {**state, "weights": weights}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `to_state`; a smaller window keeps the latest events.

        Raises
        ------
        SnapshotError
            If the state is not one of a window.
        """
        scores, labels = np.asarray(state["scores"]), np.asarray(state["labels"])
        weights = np.asarray(state.get("weights", np.ones(scores.shape)))
        wrong = scores.dtype != np.float64 or labels.dtype != np.bool_ or weights.dtype != np.float64
        wrong = wrong or scores.shape != labels.shape or scores.shape != weights.shape
        if wrong or scores.ndim != 1 or np.isnan(scores).any() or not _usable(weights).all():
            raise SnapshotError("the window of the AUC cannot be read", fix="restore an undamaged snapshot")
        latest = slice(-self.size, None)
        self._fill(scores[latest].copy(), labels[latest].copy(), weights[latest])

    def _fill(self, scores: Floats, labels: Flags, weights: Floats) -> None:
        """Let these events be the window, the oldest first."""
        self._clear()
        self._weigh(len(weights), None if (weights == 1.0).all() else weights)
        rolling_auc.auc_add_many(self._state, scores, labels)

    def __getstate__(self) -> dict[str, object]:
        # The window alone: the tree is several times its size, and most of it may be unused.
        return self.to_state()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.size = state["window"]
        self.load_state(state)


def _weighted_auc(scores: Floats, labels: Flags, weights: Floats) -> float:
    """AUC of events that include both classes."""
    hits, misses = _ranked(scores, labels, weights)[3:]
    below = misses[-1] - 0.5 * (misses + np.append(0.0, misses[:-1]))
    return float((np.diff(hits, prepend=0.0) * below).sum() / (hits[-1] * misses[-1]))


def _usable(weights: Floats) -> Flags:
    return (weights >= LEAST_WEIGHT) & (weights <= MOST_WEIGHT)


def _check_weight(w: float) -> None:
    try:
        usable = isinstance(w, numbers.Real) and LEAST_WEIGHT <= float(w) <= MOST_WEIGHT
    except OverflowError:  # an int
        usable = False
    if not usable:
        raise RecordError(
            f"the weight w is {w!r:.40}",
            fix=f"give {_WEIGHTS}",
            stage="learn",
        )
