"""Stochastic descent by phases on disjoint parts of a table, private (Yang et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import numpy as np

from streampair.batch.base import Problem, TableLearner
from streampair.batch.epochs import halves, seeds
from streampair.batch.stochastic import pair_steps
from streampair.errors import ConfigError
from streampair.privacy.mechanisms.descent import contraction, neighbours_move
from streampair.privacy.mechanisms.offline import TablePlan, VectorDoor, plan_table

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
    shuffled by coins first.

    Parameters
    ----------
    epsilon, delta, task, radius, bounds, random_state
        As in `DPGDSC`.
    loss
        A pair loss; None is `losses.Logistic`. It need not be smooth: with the hinge, two runs may part a
        little at every step, and the noise is that much larger.
    calibration
        ``"tight"``. There is no ``"paper"``: the paper draws records again and again, and spends a part of
        delta on how often, which is another algorithm than this.
    learning_rate
        The size eta that steps are ``4^-k`` of; for a smooth loss ``eta / 4`` is at most ``2 / L``. None: the
        one of `DPEGD`; for the hinge the least of ``4 radius / (G sqrt(n))`` and what balances noise with
        progress.

    Attributes
    ----------
    coef_, metric_, classes_, privacy
        As in `DPGDSC`.

    Notes
    -----
    Guarantee: (epsilon, delta)-DP for the replacement of one record of n, pure for delta 0, by
    docs/privacy.md, Lemma 68, or Lemma 69 where the loss is not smooth, and Lemma 74. It takes n steps of
    O(d). A phase of fewer than two records is merged into the one before.

    Reconstructed: of the paper there was the main text, which has Algorithm 3 and says of Algorithms 4 and 5,
    in its appendix, what they come to. Phases, their sizes and steps are those of Algorithm 3, as in Feldman,
    Koren and Talwar (2020); a pass in a random order takes the place of draws with replacement, as there, so
    that how often a record is met is no coin. For losses that are not smooth the account is that of Bassily
    et al. (2020), in one pass, where the paper takes n^2 steps.

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
    >>> from streampair import batch
    >>> rng = np.random.default_rng(1)
    >>> y = rng.random(2000) < 0.5
    >>> X = rng.normal(size=(2000, 3)) / 4 + 0.3 * y[:, None]
    >>> report = batch.LocalizedPairSGD(epsilon=1.0, delta=1e-5).fit(X, y).privacy
    >>> report.releases, report.epsilon_spent
    (10, 1.0)
    """

    _: KW_ONLY
    learning_rate: float | None = None

    def _parallel(self) -> bool:
        return True

    def _smooth(self, problem: Problem) -> float | None:
        """L, or None where there is none."""
        try:
            return problem.smoothness
        except ConfigError:
            return None

    def _rate(self, problem: Problem, smooth: float | None) -> float:
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

    def _release(self, problem: Problem) -> tuple[Floats, list[TablePlan], int]:
        plan_table(self.epsilon, self.delta, dim=1, sensitivity=1.0, name="", lemma="")  # the checks of both
        if self.calibration == "paper":
            raise ConfigError(
                "the paper's noise is for records that are drawn again and again, and here each is met once",
                fix='use calibration="tight"',
            )
        smooth = self._smooth(problem)
        rate = self._rate(problem, smooth)
        if smooth is not None:
            contraction(rate / 4.0, 0.0, smooth)
            jump = 0.0
        else:  # slopes of one sign differ by no more than they are steep
            jump = problem.lipschitz * (1.0 if problem.loss.decreasing else 2.0)
        parts, w = halves(problem.n), np.zeros(problem.dim)
        table = problem.shuffled(np.random.default_rng(problem.seed).permutation(problem.n))
        plans, left = [], 0
        for number, (part, seed) in enumerate(zip(parts, seeds(problem, len(parts)), strict=True), 1):
            steps, eta = part.stop - part.start - 1, rate * 4.0**-number
            plan = plan_table(
                self.epsilon,
                self.delta,
                dim=problem.dim,
                sensitivity=neighbours_move(
                    steps, eta, diameter=problem.diameter, jump=jump, radius=problem.radius
                ),
                blank=problem.blank,
                name=f"phase {number}, the average iterate",
                lemma=f"docs/privacy.md, Lemma {68 if smooth is not None else 69}",
            )
            at, total = np.arange(part.start, part.stop), np.zeros(problem.dim)
            last, before = pair_steps(table, (at[1:], at[:-1]), eta, w, w, total)
            # The sum lags by two steps, and begins with two iterates that are public.
            mean = (total + before + last - 2.0 * w) / steps
            door = VectorDoor(plan, seed)
            w = problem.inside(door.emit(mean))
            plans.append(plan)
            left += door.emitted
        return w, plans, left

    def _describe(self) -> tuple[str, str]:
        return (
            "Mechanism: one pass of gradient descent over one part of the table after the other, each record "
            "paired with the one before it in its part, without noise and in secret; the mean of the "
            "iterates of each part is released under noise, and the next part goes on from it. A record is "
            "in one part, which is drawn by coins, so each part has the whole budget (parallel composition).",
            "Yang et al. (2021), Algorithm 3",
        )
