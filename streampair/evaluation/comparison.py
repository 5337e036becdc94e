"""Comparison of two learners on the same events: DeLong's test of the difference of two AUCs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampair.evaluation.quality import checked_weights, placements, stderr_of_means

__all__ = ["AUCDifference", "delong"]

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
    labels: Sequence[bool] | Flags,
    first: Sequence[float] | Floats,
    second: Sequence[float] | Floats,
    weights: Sequence[float] | Floats | None = None,
) -> AUCDifference | None:
    """Compare two AUCs on the same events.

    Parameters
    ----------
    labels
        (n,), whether each event is positive.
    first, second
        (n,), the scores of the two learners, finite.
    weights
        (n,), in [1e-150, 1e150]: one over the probability with which an event is seen, the same for both
        learners. None: all are 1.

    Returns
    -------
    AUCDifference or None
        None where a class has fewer than two events.

    Raises
    ------
    ConfigError
        If there is not one weight for each event, or one is not in [1e-150, 1e150].

    Notes
    -----
    With V10 the share of negatives that each positive is ranked above, and V01 the share of positives that
    each negative is ranked below, the variance of the difference is S10 / m + S01 / n for m positives and n
    negatives, with S10 and S01 the sample variances of the differences of the two learners' V10 and V01:
    equation 9 of the paper with the contrast (-1, 1). It takes O(n log n) time. Events count as independent:
    in a stream whose events come in bursts, the true error is larger.

    With weights, a pair of events weighs the product of its weights, and the variances are those of the
    jackknife, as in `quality_of`; with equal weights they are S10 / m and S01 / n.

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
    checked = checked_weights(weights, len(flags))
    # Nothing depends on their unit, and sums of these do not overflow.
    each = None if checked is None else checked / checked.max()
    positives, negatives = int(flags.sum()), int(len(flags) - flags.sum())
    if min(positives, negatives) < 2:
        return None
    placed = [placements(np.asarray(scores, dtype=np.float64), flags, each) for scores in (first, second)]
    of_positives = None if each is None else each[flags]
    a, b = (float(np.average(values[flags], weights=of_positives)) for values in placed)
    gap, error = b - a, stderr_of_means(placed[1] - placed[0], flags, each)
    # Without any variance, but for rounding, the learners differ by the same amount on every pair.
    p_value = math.erfc(abs(gap) / (error * math.sqrt(2.0))) if error > 1e-12 else float(abs(gap) < 1e-12)
    stderr_a, stderr_b = (stderr_of_means(values, flags, each) for values in placed)
    return AUCDifference(len(flags), a, b, stderr_a, stderr_b, gap, error, p_value)
