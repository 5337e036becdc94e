"""The regret of a learner, estimated online from a stratified sample of pairs.

Estimated is H20 Eq. 4 with the full-history penalty of H20 Eq. 3::

    R_T = sum_{t=2..T} L_t(w_{t-1}) - min_{|w| <= R} sum_{t=2..T} L_t(w),
    L_t(w) = 1/(t-1) sum_{i<t} loss((y_t - y_i)(s_w(x_t) - s_w(x_i)))

over the pairs of unequal labels: the others have margin 0 under every w, so they cancel in the regret, and
they cost nothing in `pair_loss` and `comparator_loss` either.

The first `exact` steps are kept whole, all their pairs. Of the later steps a sample is kept for each label,
so that rare labels are seen as well as frequent ones. It thins out with time: the j-th step of a label enters
with odds of about 1/sqrt(j), as the regret of a learner that converges does, or else the few early steps that
make up most of it would be missed. (Sequential bottom-k sampling with exponential ranks: Efraimidis and
Spirakis 2006; Cohen and Kaplan 2007. On a stationary stream it costs 15 % in the standard error.) Each step
comes with one partner, drawn uniformly from a reservoir of the past records of the other label (Li 1994,
Algorithm L), and with the margin that the learner had on that pair at that time. A step of label c that met m
records of the other label among t - 1 has weight m/(t-1), so that in expectation

    sum_t L_t = (exact part) + sum_c N_c mean_c(weight * loss),

with the N_c steps of label c after the exact part, and means weighted by the inverse of the probability of
inclusion. Both samples know beforehand which record enters next, so all others cost nothing.

Randomness comes from one Mersenne Twister of its own, which is part of the saved state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streampair.evaluation.estimate import PairSample, RegretEstimate, estimate
from streampair.evaluation.pair_sampler import PairSampler
from streampair.evaluation.sampling import stands_for
from streampair.kernels import sampling as layout

__all__ = ["PairRegret"]


class PairRegret(PairSampler):
    """Online estimate of the regret with the full-history penalty.

    Parameters
    ----------
    loss
        Pair loss with ``value(margins)`` and ``slope(margins)``; None is the hinge.
    radius
        Radius of the ball of comparators.
    pairs
        Number of sampled pairs; the standard error falls with its square root. Memory: 3 records a pair.
    exact
        Number of first events whose pairs are all kept; up to there the estimate is exact.
    seed
        Of the sample; the same seed and stream give the same sample.

    Raises
    ------
    ConfigError
        If a number is out of range.

    Notes
    -----
    Features must be finite numbers. When one is not (text for a tree, say), there is no design to
    compare with: estimation ends, and `unusable` says why.

    Examples
    --------
    >>> from river import datasets
    >>> from streampair import auc
    >>> from streampair.evaluation import PairRegret
    >>> model = auc.PairOGD(seed=1)
    >>> regret = PairRegret(model.pair_loss, model.comparator_radius)
    >>> for x, y in datasets.Phishing():
    ...     regret.observe(x, y, model.score_one(x), model.score_one)
    ...     model.learn_one(x, y)
    >>> estimate = regret.estimate(model.design_many)
    >>> estimate.n, estimate.exact, estimate.pair_loss > estimate.comparator_loss
    (1250, False, True)
    """

    # Estimating

    def estimate(self, design_many: Callable[[list[Any]], Any] | None = None) -> RegretEstimate | None:
        """The regret of all events so far.

        Parameters
        ----------
        design_many
            From a list of records to the (n, d) matrix that the learner's weights multiply. None: the
            features in sorted order as they are, a missing one 0.

        Returns
        -------
        RegretEstimate or None
            None before the second event, or if `unusable`.
        """
        n = self.seen
        # A solution costs as much as learning ten thousand events: with this spacing, one percent.
        self._solve_at = 4 * n if n < 32 * self.pairs else n + max(n // 2, 1024 * self.pairs)
        if n < 2 or self.unusable is not None:
            return None
        everything = self._sampled()
        result, self._warm = estimate(everything, design_many, self.loss, self.radius, self._warm)
        return result

    def _sampled(self) -> PairSample:
        """The pairs that the sample holds now."""
        sample = self._sample
        counted = [sample.counted(c) for c in (0, 1)]
        scale = np.concatenate([stands_for(*sample.ranks(c), counted[c], self.exact) for c in (0, 1)])
        steps = sample.steps
        slots = np.flatnonzero((steps[:, layout.STEP_PARTNER] >= 0.0) & (scale > 0.0))
        kept = [int(np.count_nonzero(part)) for part in np.split(scale, 2)]
        return PairSample(
            n=self.seen,
            exact=self.seen <= self.exact,
            first=[row for row, _ in self._first],
            first_labels=np.array([label for _, label in self._first], dtype=np.bool_),
            first_loss=self._first_loss,
            own=sample.at("own", slots),
            partner=sample.at("partner", slots),
            own_id=steps[slots, layout.STEP_ID],
            partner_id=steps[slots, layout.STEP_PARTNER],
            labels=slots >= sample.size,
            margin=steps[slots, layout.STEP_MARGIN],
            weight=steps[slots, layout.STEP_WEIGHT],
            scale=scale[slots],
            kept=(kept[0], kept[1]),
            steps=(counted[0], counted[1]),
        )
