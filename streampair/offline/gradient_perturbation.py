"""Noise in every gradient of all pairs (Xue et al. 2021, Algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import numpy as np

from streampair.errors import ConfigError
from streampair.offline.base import PairwiseProblem, TableLearner
from streampair.offline.dpgd import checked_steps
from streampair.privacy.mechanisms.offline import TablePlan, VectorGate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["DPGDC2"]


@dataclass(eq=False, repr=False)
class DPGDC2(TableLearner):
    """Gradient descent on all pairs with noise in every gradient (Xue et al., Algorithm 2).

    Every gradient is a release, and all iterates are computed from releases; the model is their mean. So the
    loss need not be smooth: the hinge is allowed.

    Parameters
    ----------
    epsilon, delta, task, loss, radius, bounds, calibration, random_state, start
        As in `DPGDSC`; delta is above 0, for pure epsilons of many releases add up.
    steps
        Steps T.
    learning_rate
        Size of a step, above 0; None: ``radius / sqrt(T (G^2 + d sigma^2))``, the best constant of a descent
        whose gradients are so large.

    Attributes
    ----------
    coef_, metric_, classes_, privacy
        As in `DPGDSC`.

    References
    ----------
    Xue et al. (2021), Algorithm 2.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import offline, losses
    >>> rng = np.random.default_rng(1)
    >>> y = rng.random(5000) < 0.5
    >>> X = rng.normal(size=(5000, 3)) / 4 + 0.3 * y[:, None]
    >>> model = offline.DPGDC2(epsilon=1.0, delta=1e-6, loss=losses.Hinge()).fit(X, y)
    >>> model.score(X, y) > 0.8, model.privacy.releases
    (True, 50)
    """

    _: KW_ONLY
    steps: int = 50
    learning_rate: float | None = None

    _starts = True

    def _paper_noise(self, problem: PairwiseProblem, steps: int) -> float:
        root = math.sqrt(1.25 * steps * math.log(1.0 / self.delta))
        return 4.0 * problem.lipschitz * root / (problem.n * self.epsilon)

    def _pure_is_refused(self) -> None:
        if self.delta == 0.0:
            raise ConfigError(
                "delta is 0, and pure epsilons of many gradients add up",
                fix="give a delta, or use DPGDC or DPEGD",
            )

    def _rate(self, problem: PairwiseProblem, largest: float, dim: int, sigma: float, steps: int) -> float:
        """The size of a step; `largest` bounds the norm of a gradient."""
        eta = self.learning_rate
        if eta is None:
            return problem.radius / math.sqrt(steps * (largest**2 + dim * sigma**2))
        if not (math.isfinite(eta) and eta > 0.0):
            raise ConfigError(f"learning_rate is {eta!r}", fix="give a finite number above 0")
        return float(eta)

    def _release(self, problem: PairwiseProblem) -> tuple[Floats, list[TablePlan], int]:
        steps = checked_steps(self.steps)
        self._pure_is_refused()
        plan = self._plan(
            problem,
            sensitivity=problem.push,
            releases=steps,
            name="gradients of all pairs",
            lemma="docs/privacy, Lemma 75",
            noise=self._paper_noise(problem, steps) if self.calibration == "paper" else None,
        )
        eta = self._rate(problem, problem.lipschitz, problem.dim, plan.sigma, steps)
        gate, risk = VectorGate(plan, problem.seed), problem.risk()
        w, total = problem.start, problem.start.copy()
        for _ in range(steps):
            w = problem.inside(w - eta * gate.privatize(risk.gradient(w)))
            total += w
        return total / (steps + 1.0), [plan], gate.releases  # w_0 counts

    def _describe(self) -> tuple[str, str]:
        return (
            f"Mechanism: gradient descent on all pairs; each of {self.steps} gradients is released under "
            "noise, and the model is the mean of the iterates.",
            "Xue et al. (2021), Algorithm 2",
        )
