"""Probabilities from scores of a table: a logistic curve fitted to released moments of scores and labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from streampair.privacy.mechanisms.base import normal_link

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["MOVE", "curve_of", "score_moments"]

MOVE = math.sqrt(8.0)
"""Sensitivity of the sum of (s, t, st, t^2) to a replaced record (docs/privacy, Lemma 93)."""


def score_moments(scores: Floats, labels: Floats, reach: float) -> Floats:
    """Means of label, score, label times score, and squared score, (4,): secret.

    Parameters
    ----------
    scores
        Of the records, (n,); in units of `reach`, cut to [-1, 1].
    labels
        +1 or -1, (n,).
    reach
        Above 0.
    """
    t = np.clip(scores / reach, -1.0, 1.0)
    return np.array([labels.mean(), t.mean(), (labels * t).mean(), (t * t).mean()])


def curve_of(means: Floats, std: float, n: int, reach: float) -> tuple[float, float]:
    """Slope, above 0, and intercept of the log-odds ``slope (score + intercept)``.

    The log-odds where the scores of each class are normal, with one variance. What noise may have made of the
    difference between the classes is taken off, by the positive part of James and Stein.

    Parameters
    ----------
    means
        As released, (4,).
    std
        Of their noise; 0: none.
    n, reach
        Records, and the unit of the scores.

    Examples
    --------
    Classes around -.2 and .2 of one size, with a variance of .04 each:

    >>> import numpy as np
    >>> from streampair.offline.probabilities import curve_of
    >>> slope, intercept = curve_of(np.array([0.0, 0.0, 0.2, 0.08]), 0.0, 1000, 1.0)
    >>> round(slope, 6), intercept
    (10.0, 0.0)
    """
    label, score, product, square = (float(value) for value in means)
    label = min(max(label, -1.0), 1.0)
    least = max(0.5 / n, min(0.5 * std, 0.25))
    rate = min(max((1.0 + label) / 2.0, least), 1.0 - least)
    along = (product - label * score) / 2.0
    noise = std * std * (1.0 + label * label + score * score) / 4.0
    along *= max(1.0 - noise / (along * along), 0.0) if along else 0.0
    variance = max(square - score * score + std * std, std, 1e-12)
    link = normal_link(along, variance, rate)
    return link.slope / reach, (link.offset / link.slope - score) * reach
