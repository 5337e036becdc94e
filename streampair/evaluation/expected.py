"""Quality before labels come: the AUC and the share of positives that calibrated probabilities predict."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampair.errors import ConfigError, RecordError, SnapshotError
from streampair.evaluation.drift import ALARM, FeatureDrift, FeatureMoved

__all__ = ["ExpectedQuality", "QualityBeforeLabels", "expected_auc"]

LABELLED: Final = 10_000
"""Latest labelled events that the curve of probabilities is fitted to."""

_FEWEST = 30  # labelled events of either class without which there is no curve
_KNOTS = (0.25, 0.5, 0.75)
_RIDGE = 1.0
_REACH = 8.0  # scores further out, in standard deviations, count as if they were there
_STEPS = 30
_RUNS = 250
_WORST = 5
_SCORE: Final[Sequence[str]] = ("score",)

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class ExpectedQuality:
    """What is known of the latest events before their labels come.

    It cannot see concept drift: where the same features come to mean something else, the expected AUC stays
    as it was until labels show it.

    Parameters
    ----------
    auc
        Expected AUC of the latest scores; None: withheld (`moved`), or too few labels.
    positive_share
        Expected share of positives among the latest events; None as for `auc`.
    moved
        Features that left the range of the reference, furthest first. Where there is one, `auc` and
        `positive_share` are withheld, since the curve of probabilities may not hold any more.
    psi
        The five features whose population stability index is largest, and their index, largest first.
    score_psi
        The index of the scores, which also moves as the model learns; None while scores were all equal.
    drifted
        Number of features whose index is at least .2.
    """

    auc: float | None
    positive_share: float | None
    moved: tuple[FeatureMoved, ...]
    psi: tuple[tuple[Any, float], ...]
    score_psi: float | None
    drifted: int

    def as_dict(self) -> dict[str, Any]:
        """As plain values, at most five features in `moved`."""
        found = dataclasses.asdict(self)
        moved = [each._asdict() for each in self.moved[:_WORST]]
        return {**found, "moved": moved, "psi": list(map(list, self.psi)), "features_moved": len(self.moved)}


def expected_auc(scores: Floats, probabilities: Floats) -> float | None:
    """The AUC that scores have on average, where each event is positive with its probability.

    The expected number of pairs of a positive and a negative in order, over the expected number of pairs.
    Time is O(n log n).

    Parameters
    ----------
    scores
        (n,), finite.
    probabilities
        (n,), from 0 to 1: of each event to be positive, independently.

    Returns
    -------
    float or None
        None where no pair is expected.

    Raises
    ------
    ConfigError
        If a probability is missing, or not from 0 to 1.

    References
    ----------
    NannyML calls the method confidence-based performance estimation (CBPE).

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.evaluation import expected_auc
    >>> expected_auc(np.array([2.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0]))
    1.0
    >>> expected_auc(np.array([2.0, 1.0, 0.0]), np.array([0.5, 0.5, 0.5]))
    0.5
    """
    scores, probabilities = np.asarray(scores, np.float64), np.asarray(probabilities, np.float64)
    if scores.shape != probabilities.shape or not ((probabilities >= 0.0) & (probabilities <= 1.0)).all():
        raise ConfigError(
            f"{scores.shape} scores and {probabilities.shape} probabilities, not all of them from 0 to 1",
            fix="give a probability from 0 to 1 for each score",
        )
    _, run = np.unique(scores, return_inverse=True)
    positive, negative = np.bincount(run, probabilities), np.bincount(run, 1.0 - probabilities)
    below = np.cumsum(negative) - negative
    alone = float((probabilities * (1.0 - probabilities)).sum())  # an event is no pair with itself
    pairs = float(positive.sum() * negative.sum()) - alone
    if not pairs > 1e-9 * len(scores):
        return None
    found = float((positive * (below + 0.5 * negative)).sum()) - 0.5 * alone
    return min(max(found / pairs, 0.0), 1.0)


class QualityBeforeLabels:
    """Expected AUC and share of positives of the latest events, and drift of their features and scores.

    Where labels take a month, the AUC of labelled events is a month old. This one is of the latest scores: a
    curve from score to probability, fitted to the latest 10,000 labelled events, says how likely each of them
    is positive. It holds for as long as the features mean what they did. So it is withheld while a feature
    leaves the range of the reference: other shares of missing values, texts that are new, numbers outside.

    Concept drift, where the same features come to mean something else, moves no feature: neither this class
    nor any other sees it before labels come.

    Parameters
    ----------
    reference
        Number of events that the reference spans, the first ones: whole seasons. See `FeatureDrift`.
    window
        Number of latest events.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Attributes
    ----------
    features
        The drift of the features.

    Notes
    -----
    Figures are functions of raw records: they are for operators, not for publication (docs/privacy 7).

    Examples
    --------
    >>> import math, random
    >>> from streampair.evaluation import QualityBeforeLabels
    >>> rng, quality = random.Random(1), QualityBeforeLabels(reference=1000, window=500)
    >>> for _ in range(2000):
    ...     x = {"amount": rng.gauss(0, 1)}
    ...     quality.update(x, x["amount"])
    ...     quality.update_label(rng.random() < 1 / (1 + math.exp(-2 * x["amount"])), x["amount"])
    >>> found = quality.get()
    >>> round(found.auc, 2), round(found.positive_share, 2)
    (0.85, 0.49)
    >>> for _ in range(500):  # another unit
    ...     quality.update({"amount": 100 * rng.gauss(0, 1)}, 0.0)
    >>> found = quality.get()
    >>> found.auc, found.moved[0].name, found.moved[0].what
    (None, 'amount', 'out of range')
    """

    def __init__(self, reference: int = 10_000, window: int = 1000) -> None:
        self.features = FeatureDrift(reference, window)
        self._scores = FeatureDrift(reference, window)
        self._started = False  # whether scores have differed
        # Arrays: thousands of floats that are kept alive, each an object, cost more than all the rest.
        self._latest = array("d")
        self._labelled = array("d"), bytearray()
        self._labels = 0
        self._curve: tuple[int, _Curve | None] = (-1, None)

    @property
    def window(self) -> int:
        """Number of latest events."""
        return self.features.window

    # ---- events ----------------------------------------------------------------------------------------

    def update(self, x: Mapping[Any, Any], score: float) -> None:
        """Add an event that was scored.

        Parameters
        ----------
        x
            Its features, as of `FeatureDrift.update`.
        score
            Finite.

        Raises
        ------
        RecordError
            If `x` is no mapping, or the score not finite.
        """
        if not math.isfinite(score):
            raise RecordError(f"the score is {score!r}", fix="give a finite number", stage="learn")
        self.features.update(x)
        self.update_scores([score])

    def update_scores(self, scores: Sequence[float] | Floats) -> None:
        """Add finite scores of events whose features `features` gets, oldest first."""
        if not len(scores):
            return
        values = np.asarray(scores, dtype=np.float64)
        self._latest.frombytes(values.tobytes())
        if len(self._latest) > 2 * self.window:
            del self._latest[: -self.window]
        # A model that has learned nothing yet, as before the warm-up of a private one, gives all the same.
        if not self._started:
            last = self._latest[0] if len(self._latest) > len(values) else values[0]
            fresh = np.flatnonzero(values != last)
            if not len(fresh):
                return
            self._started, values = True, values[fresh[0] :]
        self._scores.update_rows(_SCORE, values[:, None])

    def update_label(self, positive: bool, score: float) -> None:
        """Add the label of an event, with the score that it had: a finite number."""
        self.update_labels([positive], [score])

    def update_labels(
        self, positives: Sequence[int] | NDArray[Any], scores: Sequence[float] | Floats
    ) -> None:
        """Add labels of events, True or False or 1 or 0, and their scores, as the labels came.

        Raises
        ------
        ConfigError
            If there is not one score for each label.
        """
        if len(positives) != len(scores):
            raise ConfigError(
                f"there are {len(positives)} labels and {len(scores)} scores",
                fix="give one score for each label",
            )
        known, flags = self._labelled
        known.frombytes(np.asarray(scores, dtype=np.float64).tobytes())
        # Each byte of an array of larger numbers would count as a label.
        flags.extend(positives.astype(np.bool_) if isinstance(positives, np.ndarray) else positives)
        self._labels += len(scores)
        if len(known) > 2 * LABELLED:
            del known[:-LABELLED], flags[:-LABELLED]

    # ---- figures ---------------------------------------------------------------------------------------

    def get(self) -> ExpectedQuality | None:
        """What is known now; None until the reference is complete and the window behind it full."""
        if not self.features.ready:
            return None
        psi, moved = self.features.psi, tuple(self.features.moved)
        worst = sorted(psi.items(), key=lambda item: -item[1])
        curve = None if moved else self._fitted()
        share = area = None
        if curve is not None:
            scores = np.array(self._latest[-self.window :])
            probabilities = curve(scores)
            share, area = float(probabilities.mean()), expected_auc(scores, probabilities)
        drifted = sum(value >= ALARM for value in psi.values())
        return ExpectedQuality(
            area, share, moved, tuple(worst[:_WORST]), self._scores.psi.get(_SCORE[0]), drifted
        )

    def _fitted(self) -> _Curve | None:
        """The curve from scores to probabilities; fitted again once all of its labels are new."""
        fitted, curve = self._curve
        if curve is None or self._labels - fitted >= min(fitted, LABELLED):
            curve = _curve_of(*self._labels_kept())
            self._curve = self._labels, curve
        return curve

    def _labels_kept(self) -> tuple[Floats, Flags]:
        scores, flags = self._labelled
        return np.array(scores[-LABELLED:]), np.frombuffer(flags[-LABELLED:], dtype=np.uint8).astype(np.bool_)

    # ---- state -----------------------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """The state as plain values and arrays, for a snapshot."""
        scores, flags = self._labels_kept()
        return {
            "features": self.features.to_state(),
            "scores": self._scores.to_state(),
            "started": self._started,
            "latest": np.array(self._latest[-self.window :], dtype=np.float64),
            "labelled": scores,
            "flags": flags,
            "labels": self._labels,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `to_state`. Drift begins anew where the reference or the window is another one.

        Raises
        ------
        SnapshotError
            If it cannot be read.
        """
        try:
            self.features.load_state(state["features"])
            self._scores.load_state(state["scores"])
            self._started = bool(state["started"]) and self._scores.n > 0
            self._latest = array("d", np.asarray(state["latest"], dtype=np.float64).tolist())
            scores, flags = state["labelled"], state["flags"]
            if scores.shape != flags.shape or not np.isfinite(scores).all():
                raise ValueError("labels and scores differ")
            self._labelled = array("d", scores.tolist()), bytearray(flags.tolist())
            self._labels, self._curve = int(state["labels"]), (-1, None)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(
                f"the quality before labels cannot be read ({type(error).__name__})",
                fix="restore an undamaged snapshot",
            ) from error


class _Curve(NamedTuple):
    """Function from scores to probabilities.

    Attributes
    ----------
    low, high
        Scores beyond count as these.
    size, centre, spread
        Unit of the scores.
    knots
        Where the curve bends.
    offset, slopes
        Of the log-odds.
    """

    low: float
    high: float
    size: float
    centre: float
    spread: float
    knots: Floats
    offset: float
    slopes: Floats

    def __call__(self, scores: Floats) -> Floats:
        z = (np.clip(scores, self.low, self.high) / self.size - self.centre) / self.spread
        return _sigmoid(self.offset + _bent(z, self.knots) @ self.slopes)


def _bent(z: Floats, knots: Floats) -> Floats:
    """Columns whose weighted sum is a line that bends at the knots."""
    z = np.clip(z, -_REACH, _REACH)
    return np.stack([z, *(np.maximum(z - knot, 0.0) for knot in knots)], axis=1)


def _curve_of(scores: Floats, positive: Flags) -> _Curve | None:
    """Function from scores to probabilities, fitted to labelled ones; None: there are too few of a class.

    Logistic regression on the score, bent at three quantiles of both classes in equal shares: a logistic
    curve alone, as of `predict_proba_one`, errs by .04 in the expected AUC where scores are far from normal.
    """
    count, others = int(positive.sum()), int((~positive).sum())
    if min(count, others) < _FEWEST:
        return None
    low, high = float(scores.min()), float(scores.max())
    size = max(abs(low), abs(high)) or 1.0  # so that squares of huge scores are finite
    scores = scores / size
    centre, spread = float(scores.mean()), float(scores.std()) or 1.0
    z = np.clip((scores - centre) / spread, -_REACH, _REACH)
    # Runs of neighbours count as one, and half precision finds them: the fit then takes half a millisecond.
    order = _ascending(z.astype(np.float16))
    cuts = np.arange(min(_RUNS, len(z))) * len(z) // min(_RUNS, len(z))
    counts = np.diff(cuts, append=len(z)).astype(np.float64)
    z, hits = (np.add.reduceat(each[order], cuts) for each in (z, positive.astype(np.float64)))
    z /= counts
    weight = np.cumsum(0.5 * hits / count + 0.5 * (counts - hits) / others)
    knots = z[np.minimum(np.searchsorted(weight, _KNOTS), len(z) - 1)]
    columns = _bent(z, knots)
    means, scales = columns.mean(axis=0), columns.std(axis=0)
    scales[scales == 0.0] = 1.0
    fit = _logistic(np.column_stack((np.ones(len(z)), (columns - means) / scales)), hits, counts)
    slopes = fit[1:] / scales
    return _Curve(low, high, size, centre, spread, knots, float(fit[0] - slopes @ means), slopes)


def _ascending(values: NDArray[np.float16]) -> NDArray[np.intp]:
    """Places of numbers in their order: NumPy sorts integers of 16 bits by radix, ten times as fast."""
    bits = values.view(np.int16)
    return np.argsort(np.where(bits < 0, bits ^ 0x7FFF, bits), kind="stable")


def _logistic(columns: Floats, hits: Floats, counts: Floats) -> Floats:
    """Coefficients of a logistic regression, the first column ones, with a small ridge on the others.

    Row i stands for `counts[i]` events, of which `hits[i]` are positive.
    """
    ridge = np.full(columns.shape[1], _RIDGE)
    ridge[0] = 0.0
    share = float(hits.sum() / counts.sum())
    fit = np.zeros(columns.shape[1])
    fit[0] = math.log(share / (1.0 - share))
    penalty = np.diag(ridge)
    for _ in range(_STEPS):
        p = _sigmoid(columns @ fit)
        slope = columns.T @ (hits - counts * p) - ridge * fit
        bend = (columns * (counts * p * (1.0 - p) + 1e-9)[:, None]).T @ columns + penalty
        step = np.clip(np.linalg.solve(bend, slope), -1.0, 1.0)
        fit += step
        if np.abs(step).max() < 1e-3:  # a Newton step is about the square of the one before
            break
    return fit


def _sigmoid(values: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values, -30.0, 30.0))))
