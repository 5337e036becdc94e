"""One pass in which each record meets all before it, and one release (Huai et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from streampair.errors import ConfigError
from streampair.offline.base import PairwiseProblem, TableLearner
from streampair.privacy.contraction import giga_steps, paper_steps, paper_warmup
from streampair.privacy.mechanisms.offline import TableAccount, mean_move

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["OffPairC", "OffPairStrC"]


@dataclass(eq=False, repr=False)
class OffPairStrC(TableLearner):
    """One pass of gradient descent, each record with all before it; a mean of the iterates is released.

    Step t takes the mean gradient of the pairs of record t with the t - 1 records before it, and of the ridge
    term ``l2 / 2 |w|^2``. The pass is without noise, in secret. The records are shuffled first, for
    tables are often sorted.

    Parameters
    ----------
    epsilon, delta, task, loss, radius, bounds, random_state, start
        As in `DPGDSC`.
    calibration
        ``"tight"``: capped steps ``min(2 (t-1) / ((t-2) l2 t), 2 / (2 l2 + L))``, and noise by the recursion
        of docs/privacy, Lemma 73. ``"paper"``: to the letter, with
        ``T_1 = max(ceil(16 (L + l2)^2 / l2^2), 7)`` random iterates first. For records in the unit ball, as
        here, and a small `l2` these are more than there are records; for records in a smaller ball they are
        fewer (``docs/papers.md``). The report says what it guarantees.
    l2
        Strength of the ridge term, above 0.
    output
        ``"average"``: the mean of the iterates weighted by t; with the paper's calibration the plain mean, as
        there. ``"last"``: the last one.

    Attributes
    ----------
    coef_, metric_, classes_, privacy
        As in `DPGDSC`.

    Notes
    -----
    O(n^2 d): 10,000 records take seconds. `DPGDSC` sees every pair in every step, and moves less far.

    References
    ----------
    Huai, M., Wang, D., Miao, C., Xu, J. and Zhang, A. (2020). Pairwise learning with differential privacy
    guarantees. AAAI. Algorithm 3.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import offline
    >>> rng = np.random.default_rng(1)
    >>> y = rng.random(1000) < 0.5
    >>> X = rng.normal(size=(1000, 3)) / 4 + 0.3 * y[:, None]
    >>> offline.OffPairStrC(epsilon=8.0, delta=1e-4, l2=0.5).fit(X, y).privacy.epsilon_spent
    8.0
    """

    _: KW_ONLY
    l2: float | None = 0.1
    output: Literal["average", "last"] = "average"

    _starts = True

    def _strength(self, problem: PairwiseProblem, account: TableAccount) -> tuple[float, float]:
        """The ridge term, and the radius of the ball."""
        return self._checked_l2(), problem.radius

    def _checked_l2(self) -> float:
        if self.l2 is None or not (math.isfinite(self.l2) and self.l2 > 0.0):
            raise ConfigError(f"l2 is {self.l2!r}", fix="give a finite number above 0")
        return float(self.l2)

    def _release(self, problem: PairwiseProblem, account: TableAccount) -> Floats:
        if self.output not in ("average", "last"):
            raise ConfigError(f"output is {self.output!r}", fix='give "average" or "last"')
        alpha, reach = self._strength(problem, account)
        smooth, n, paper = problem.smoothness, problem.n, self.calibration == "paper"
        etas, factors = (paper_steps if paper else giga_steps)(alpha, smooth, n)
        weights = np.zeros(n)
        weights[1:] = 1.0 if paper else np.arange(2.0, n + 1.0)
        weights[0] = float(paper)
        if self.output == "last":
            weights[:-1] = 0.0
        weights /= weights.sum()
        noise, first = None, 0
        if paper:
            if not self.delta:
                raise ConfigError(
                    "the paper has no constants for delta 0", fix='give a delta, or use calibration="tight"'
                )
            first = min(paper_warmup(alpha, smooth), n)
            g = problem.lipschitz + alpha * reach
            noise = (
                math.sqrt(128.0 * math.log(1.25 / self.delta)) * g * math.log(n) / (alpha * n * self.epsilon)
            )
        plan = account.plan(
            sensitivity=mean_move(etas, factors, weights, problem.diameter, problem.radius),
            name=f"the {self.output} iterate",
            lemma="docs/privacy, Lemma 73",
            noise=noise,
        )
        return account.gate(plan).privatize(self._pass(problem, etas, weights, alpha, first))

    @staticmethod
    def _pass(problem: PairwiseProblem, etas: Floats, weights: Floats, alpha: float, first: int) -> Floats:
        """The weighted mean of the iterates: secret. The first ones are random points of the ball."""
        rng = np.random.default_rng(problem.seed)
        risk = problem.shuffled(rng.permutation(problem.n)).risk()
        w, total = problem.start, np.zeros(problem.dim)
        for t in range(problem.n):
            if t < first:
                z = rng.normal(size=problem.dim + 2)
                w = z[: problem.dim] * (problem.radius / float(np.linalg.norm(z)))
            elif t:
                w = problem.inside(w - etas[t] * (risk.with_earlier(t, w) + alpha * w))
            total += weights[t] * w
        return total

    def _describe(self) -> tuple[str, str]:
        return (
            "Mechanism: one pass of gradient descent with a ridge term, each record paired with all before "
            f"it, without noise and in secret; the {self.output} iterate is released under noise. The order "
            "of the records is drawn at random, independently of them.",
            "Huai et al. (2020), Algorithm 3",
        )


@dataclass(eq=False, repr=False)
class OffPairC(OffPairStrC):
    """`OffPairStrC` for losses that are convex only: with a weak ridge term of its own (Algorithm 4).

    Parameters
    ----------
    epsilon, delta, task, loss, radius, bounds, calibration, random_state, start, output
        As in `OffPairStrC`.
    l2
        Strength of the ridge term; None: ``1 / sqrt(n)`` with the paper's calibration, else what balances its
        bias with the noise, ``2 D / R sqrt(r / n)``, r the norm of the noise for a move of 1.

    Attributes
    ----------
    coef_, metric_, classes_, privacy
        As in `DPGDSC`.

    References
    ----------
    Huai et al. (2020), Algorithm 4.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import offline
    >>> rng = np.random.default_rng(1)
    >>> y = rng.random(500) < 0.5
    >>> X = rng.normal(size=(500, 3)) / 4 + 0.3 * y[:, None]
    >>> offline.OffPairC(epsilon=8.0, delta=0.0).fit(X, y).privacy.delta
    0.0
    """

    _: KW_ONLY
    l2: float | None = None

    def _strength(self, problem: PairwiseProblem, account: TableAccount) -> tuple[float, float]:
        reach = 2.0 * problem.radius  # the paper's centre is any point of the ball
        if self.l2 is not None:
            return self._checked_l2(), reach
        if self.calibration == "paper":
            return 1.0 / math.sqrt(problem.n), reach
        unit = account.plan(sensitivity=1.0, blank=1.0, name="", lemma="")
        noise = unit.noise_std * math.sqrt(problem.dim)
        return 2.0 * problem.diameter / problem.radius * math.sqrt(noise / problem.n), reach

    def _describe(self) -> tuple[str, str]:
        return super()._describe()[0], "Huai et al. (2020), Algorithm 4"
