"""From a private learner's score to a probability: post-processing of releases (docs/privacy.md 10.9)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streampair import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Link", "normal_link", "rate_link", "unit_link"]


@dataclass(frozen=True)
class Link:
    """`p = sigmoid(slope score + offset)`, a function of releases and public parameters.

    Parameters
    ----------
    slope
        Above 0: probabilities rank as scores do.
    offset
        Log-odds of the score 0.
    """

    slope: float = 1.0
    offset: float = 0.0

    def one(self, score: float) -> float:
        """Probability of a score."""
        return float(kernels.sigmoid(self.slope * score + self.offset))

    def many(self, scores: Floats) -> Floats:
        """Probabilities of scores (n,): the same bits."""
        out = np.empty(len(scores))
        kernels.sigmoid_many(self.slope * scores + self.offset, out)
        return out


def _log_odds(rate: float) -> float:
    # Our own logarithm: a library's has other last digits elsewhere.
    return float(kernels.log_positive(rate) - kernels.log_positive(1.0 - rate))


def rate_link(rate: float) -> Link:
    """Of a learner that knows the share of positives and has no weights yet."""
    return Link(1.0, _log_odds(rate))


def unit_link(weights: Floats, spread: float) -> Link:
    """Of a learner whose releases do not tell the classes apart: the scores in standard units, no offset.

    Parameters
    ----------
    weights
        Released weights (d,).
    spread
        Root of the mean squared length of a record, which its d coordinates share alike.
    """
    length = math.sqrt(float(kernels.dot(weights, weights)))
    return Link(math.sqrt(len(weights)) / (spread * length)) if length > 0.0 else Link()


def normal_link(along: float, variance: float, rate: float) -> Link:
    """Log-odds where the scores of both classes are normal with one variance.

    Parameters
    ----------
    along
        Covariance of the score with the label (1 for a positive and 0 for a negative), cleared of what noise
        adds to it.
    variance
        Variance of the score over all records, above 0.
    rate
        Share of positives, in (0, 1).

    Notes
    -----
    The class means differ by `along / (rate (1 - rate))`, and the variance within a class is what that leaves
    of the variance. Scores have the mean 0, for records are centred. The slope is at least that of
    `kernels.LEAST` log-odds in a standard deviation: where the noise leaves nothing of the difference, the
    ranking still does not turn.
    """
    odds = rate * (1.0 - rate)
    gap = max(along, 0.0) / odds
    within = max(variance - odds * gap * gap, 1e-3 * variance)
    slope = float(max(gap / within, kernels.LEAST / math.sqrt(variance)))
    # Of the class means (1 - rate) gap and -rate gap the middle has the log-odds of the rate.
    return Link(slope, float(_log_odds(rate) - slope * (0.5 - rate) * gap))
