"""Stochastic descent by phases on disjoint parts of a table, private (Yang et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from streampair.errors import ConfigError
from streampair.offline.base import PairwiseProblem, TableLearner
from streampair.offline.dpegd import halves, seeds
from streampair.offline.pair_sgd import pair_steps
from streampair.privacy.accounting import ROUNDING_SHARE
from streampair.privacy.mechanisms.offline import (
    TableAccount,
    TablePlan,
    contraction,
    epsilon_of_draws,
    neighbours_move,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["LocalizedPairSGD"]


@dataclass(eq=False, repr=False)
class LocalizedPairSGD(TableLearner):
    """One pass over halves of what is left of a table, each record paired with the one before, in phases.

    Phase k has ``n / 2^k`` records and steps of size ``4^-k`` of the learning rate, a step for each two
    records that follow each other; the mean of its iterates is released, and the next phase begins there. A
    record is in one phase, and there in two steps, so each phase has the whole budget. The records are
    shuffled first.

    Parameters
    ----------
    epsilon, delta, task, radius, bounds, random_state
        As in `DPGDSC`.
    loss
        A pair loss; None is `losses.Logistic`. It need not be smooth: with the hinge, two runs may part a
        little at every step, and the noise is that much larger.
    calibration
        ``"tight"``: the above. ``"paper"``: Algorithm 3 with its constants. Part k takes
        ``ceil(n_k log(4 / delta))`` steps, each with a record that is drawn from the part with replacement,
        paired with the one drawn before, and the noise has the standard deviation
        ``12 G eta_k log(4 / delta) sqrt(2 log(2.5 / delta)) / epsilon``. It needs a smooth loss and a delta.
        The report says what is spent.
    learning_rate
        The size eta that steps are ``4^-k`` of; for a smooth loss ``eta / 4`` is at most ``2 / L``. None: the
        one of `DPEGD`; for the hinge the least of ``4 radius / (G sqrt(n))`` and what balances noise with
        progress. With the paper's calibration that of its Theorem 10, and at most ``2 / L``, as it assumes.

    Attributes
    ----------
    coef_, metric_, classes_, privacy
        As in `DPGDSC`.

    Notes
    -----
    Guarantee: (epsilon, delta)-DP for the replacement of one record of n, pure for delta 0, by
    docs/privacy, Lemma 68, or Lemma 69 where the loss is not smooth, and Lemma 74. It takes n steps of
    O(d). A phase of fewer than two records is merged into the one before.

    With ``calibration="tight"`` phases, their sizes and steps are those of Algorithm 3; a pass in a random
    order takes the place of draws with replacement, as in Feldman, Koren and Talwar (2020), so that each
    record is met once. For losses that are not smooth the account is that of Bassily et al. (2020), in one
    pass. Algorithms 4 and 5 of the paper are in its appendix, and are not here.

    With ``calibration="paper"`` Algorithm 3 is as in the main text of the paper, but for two choices. A phase
    begins at the nearest point of the ball, for Algorithm 1 asks for a first iterate in the ball; and phases
    of fewer than two records, which have no pair, are merged into the one before. Guarantee: the epsilon of
    the report, by Lemma 95 and Lemma 74, which holds for whoever does not see which records were drawn. It
    counts how often a record is drawn by its law. `mu_spent` holds whatever was drawn, and is far larger.
    For small epsilon the noise of the paper is more than its promise needs.

    References
    ----------
    Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
    algorithms for pairwise learning. NeurIPS. Algorithm 3.

    Feldman, V., Koren, T. and Talwar, K. (2020). Private stochastic convex optimization: optimal rates in
    linear time. STOC.

    Bassily, R., Feldman, V., Guzman, C. and Talwar, K. (2020). Stability of stochastic gradient descent on
    nonsmooth convex losses. NeurIPS.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import offline
    >>> rng = np.random.default_rng(1)
    >>> y = rng.random(2000) < 0.5
    >>> X = rng.normal(size=(2000, 3)) / 4 + 0.3 * y[:, None]
    >>> report = offline.LocalizedPairSGD(epsilon=1.0, delta=1e-5).fit(X, y).privacy
    >>> report.releases, report.epsilon_spent
    (10, 1.0)
    """

    _: KW_ONLY
    learning_rate: float | None = None

    def _parallel(self) -> bool:
        return True

    def _smooth(self, problem: PairwiseProblem) -> float | None:
        """L, or None where there is none."""
        try:
            return problem.smoothness
        except ConfigError:
            return None

    def _rate(self, problem: PairwiseProblem, smooth: float | None) -> float:
        if self.learning_rate is not None:
            eta = float(self.learning_rate)
            if not (math.isfinite(eta) and eta > 0.0):
                raise ConfigError(f"learning_rate is {eta!r}", fix="give a finite number above 0")
            return eta
        n, unit = problem.n, problem.radius / problem.lipschitz
        noise = math.sqrt(problem.dim * math.log(1.0 / self.delta)) if self.delta else float(problem.dim)
        if smooth is None:
            # R^2 / (eta n) of what is left to go against G eta sqrt(n) of noise.
            return 4.0 * unit * min(1.0, math.sqrt(self.epsilon / noise / math.sqrt(n))) / math.sqrt(n)
        return min(2.0 * unit * min(4.0 / math.sqrt(n), self.epsilon / noise), 8.0 / smooth)

    def _release(self, problem: PairwiseProblem, account: TableAccount) -> Floats:
        self._amplified_epsilon = None
        if self.calibration == "paper":
            return self._to_the_letter(problem, account)
        smooth = self._smooth(problem)
        rate = self._rate(problem, smooth)
        if smooth is not None:
            contraction(rate / 4.0, 0.0, smooth)
            jump = 0.0
        else:  # slopes of one sign differ by no more than they are steep
            jump = problem.lipschitz * (1.0 if problem.loss.decreasing else 2.0)
        parts, w = halves(problem.n), np.zeros(problem.dim)
        table = problem.shuffled(np.random.default_rng(problem.seed).permutation(problem.n))
        for number, (part, seed) in enumerate(zip(parts, seeds(problem, len(parts)), strict=True), 1):
            steps, eta = part.stop - part.start - 1, rate * 4.0**-number
            plan = account.plan(
                sensitivity=neighbours_move(
                    steps, eta, diameter=problem.diameter, jump=jump, radius=problem.radius
                ),
                name=f"phase {number}, the average iterate",
                lemma=f"docs/privacy, Lemma {68 if smooth is not None else 69}",
            )
            rows, total = np.arange(part.start, part.stop), np.zeros(problem.dim)
            last, before = pair_steps(table, (rows[1:], rows[:-1]), eta, w, w, total)
            # The sum lags by two steps, and begins with two iterates that are public.
            mean = (total + before + last - 2.0 * w) / steps
            w = problem.inside(account.gate(plan, seed).privatize(mean))
        return w

    def _to_the_letter(self, problem: PairwiseProblem, account: TableAccount) -> Floats:
        """Algorithm 3 with the constants of Theorem 10."""
        smooth = self._smooth(problem)
        if smooth is None or not self.delta:
            raise ConfigError(
                "the constants of Theorem 10 are for a smooth loss and a delta above 0",
                fix='give losses.Logistic() and a delta, or use calibration="tight"',
            )
        often = math.log(4.0 / self.delta)
        wide = 12.0 * often * math.sqrt(2.0 * math.log(2.5 / self.delta)) / self.epsilon
        if self.learning_rate is None:
            least = min(often / math.sqrt(problem.n), 1.0 / (wide * math.sqrt(problem.dim)))
            rate = min(2.0 * problem.radius / problem.lipschitz * least, 2.0 / smooth)
        else:
            rate = self._rate(problem, smooth)
        contraction(rate / 4.0, 0.0, smooth)
        parts, w, rng = halves(problem.n), np.zeros(problem.dim), np.random.default_rng(problem.seed)
        table = problem.shuffled(rng.permutation(problem.n))
        spent = 0.0
        for number, (part, seed) in enumerate(zip(parts, seeds(problem, len(parts)), strict=True), 1):
            n, eta = part.stop - part.start, rate * 4.0**-number
            steps = math.ceil(n * often)
            drawn, total = part.start + rng.integers(n, size=steps + 1), np.zeros(problem.dim)
            pair_steps(table, (drawn[1:], drawn[:-1]), eta, w, w, total)
            plan = self._drawn_plan(problem, account, number, steps, eta, wide * problem.lipschitz * eta)
            # Iterates up to the last but two are in the mean: drawn after that, a record moves nothing.
            times = np.arange(min(steps - 1, 40 + 40 * math.ceil(often)) + 1.0)
            moves = np.minimum(2.0 * times * eta * problem.diameter, 2.0 * problem.radius)
            moves[-1] = plan.sensitivity  # for whatever comes beyond
            moves[1:] += plan.grid * math.sqrt(problem.dim)
            delta = (1.0 - ROUNDING_SHARE) * self.delta
            spent = max(spent, epsilon_of_draws(steps - 1, 1.0 / n, moves.tolist(), plan.sigma, delta))
            w = problem.inside(account.gate(plan, seed).privatize(total / steps))
        self._amplified_epsilon = spent
        self._notes = (
            *self._notes,
            "Epsilon counts how often a record is drawn by the law of the draws, which nobody may see; mu is "
            "for a record that is drawn every time.",
        )
        return w

    @staticmethod
    def _drawn_plan(
        problem: PairwiseProblem, account: TableAccount, number: int, steps: int, eta: float, noise: float
    ) -> TablePlan:
        """The plan of a part, with the sensitivity to a record that is drawn at every step."""
        moved = 2.0 * eta * problem.diameter
        plan = account.plan(  # a grid that is fine for a record that is drawn once
            sensitivity=moved,
            name=f"phase {number}, the average iterate",
            lemma="docs/privacy, Lemma 95",
            noise=noise,
        )
        return replace(plan, sensitivity=min((steps - 1) * moved, 2.0 * problem.radius))

    def _describe(self) -> tuple[str, str]:
        if self.calibration == "paper":
            return (
                "Mechanism: stochastic gradient descent over one part of the table after the other, each "
                "step with a record that is drawn from the part and the one drawn before, without noise and "
                "in secret; the mean of the iterates of each part is released under noise, and the next part "
                "goes on from it. A record is in one part, which is drawn at random, so each part has the "
                "whole budget (parallel composition).",
                "Yang et al. (2021), Algorithm 3",
            )
        return (
            "Mechanism: one pass of gradient descent over one part of the table after the other, each record "
            "paired with the one before it in its part, without noise and in secret; the mean of the "
            "iterates of each part is released under noise, and the next part goes on from it. A record is "
            "in one part, drawn at random, so each part has the whole budget (parallel composition).",
            "Yang et al. (2021), Algorithm 3",
        )
