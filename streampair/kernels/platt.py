"""From score to probability: a logistic curve of two parameters, learned from the scores that were given.

Pairs learn no intercept, and scores have whatever scale the weights have. So each record first teaches the
link, by its label and the score that it gets before it is learned, and then the learner::

    p = sigmoid(OFFSET + SLOPE (score - CENTRE) / SPREAD)        (Platt 1999)

Centre and spread are the running mean and standard deviation of the scores, so that the two parameters mean
the same on any scale, and follow one that drifts. A record steps them by Newton's method: by its gradient
over the information so far, one recursive step each (the extended Kalman filter of logistic regression). In
standard units of the scores, weighted as here, the two do not interact and have the same information, so
there is no matrix.

The weight of a record is ``|r| / 2``, with r = label - p: of the same mean as the Fisher information
``p (1 - p)`` where p is right, and larger where it is wrong, so that a surprise cannot throw the curve far: a
record moves its own log-odds by at most ``2 + |r| / PRIOR``.

The constants are arguments, not fits:

PRIOR
    Information that the start, log-odds of one standard unit of the score, counts for: that of four records
    at p = 1/2.
MEMORY
    Information that is kept; older records fade. Two parameters then cost ``p (1 - p) / (2 MEMORY)`` nats a
    record, 0.00125 at most, as of 400 records of balanced classes. By information rather than by records,
    because a rare class is then remembered for as many of its own: about 100, which give the log-odds of the
    rate a standard error of 0.07.
RECENT
    Before that, share of the information that has faded: scores of the beginning are another model's.
REACH
    Scores further out, in standard units, count as if they were there: one wild score cannot set the scale.
LEAST
    Smallest slope, above 0: the ranking never turns. Where scores say nothing it costs LEAST^2 / 8 nats,
    0.0005.
EQUAL
    Scores whose spread is a smaller share of their size differ by rounding alone.
"""

from __future__ import annotations

import math

from streampair.kernels._jit import Array, kernel
from streampair.kernels.numerics import sigmoid
from streampair.kernels.state import CENTRE, INFORMATION, OFFSET, SLOPE, SPREAD

PRIOR = 1.0
MEMORY = 100.0
RECENT = 0.5
REACH = 10.0
LEAST = 0.0625
EQUAL = 1e-9


@kernel
def _spread(s: Array) -> float:
    """Standard deviation of the scores; 0 where they have been equal but for rounding."""
    spread = s[SPREAD]
    return float(spread if spread > EQUAL * abs(s[CENTRE]) else 0.0)


@kernel
def link_proba(s: Array, score: float) -> float:
    """Probability of a score."""
    spread = _spread(s)
    log_odds = s[OFFSET]
    if spread > 0.0:
        log_odds += s[SLOPE] * ((score - s[CENTRE]) / spread)
    return float(sigmoid(log_odds))


@kernel
def link_learn(s: Array, score: float, y: float) -> None:
    """Learn that a record of this score has the label y, +1 or -1."""
    r = (1.0 if y > 0.0 else 0.0) - link_proba(s, score)
    weight = 0.5 * abs(r)
    if weight == 0.0:
        return
    spread = _spread(s)
    off = score - s[CENTRE]
    if spread > 0.0:
        off = min(max(off, -REACH * spread), REACH * spread)
    known = s[INFORMATION]
    known = known * (1.0 - weight * max(RECENT / (known + PRIOR), 1.0 / MEMORY)) + weight
    share = weight / known
    s[INFORMATION] = known
    s[CENTRE] += share * off
    s[SPREAD] = math.sqrt((1.0 - share) * (s[SPREAD] * s[SPREAD] + share * (off * off)))
    step = r / (known + PRIOR)
    s[OFFSET] += step
    spread = _spread(s)
    if spread > 0.0:
        s[SLOPE] = max(s[SLOPE] + step * ((1.0 - share) * off / spread), LEAST)


@kernel
def link_many(s: Array, scores: Array, out: Array) -> None:
    """Probabilities of the scores (n,) into `out`: the same bits as one at a time."""
    for r in range(scores.shape[0]):
        out[r] = link_proba(s, scores[r])
