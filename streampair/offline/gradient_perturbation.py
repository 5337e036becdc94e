"""Noise in every gradient of all pairs (Xue et al. 2021, Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streampair.errors import ConfigError
from streampair.offline.base import PairwiseProblem, TableLearner
from streampair.offline.dpgd import checked_steps, descend
from streampair.privacy.mechanisms.offline import TableAccount, TablePlan

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

    def _lipschitz(self, problem: PairwiseProblem) -> float:
        """G: bound on the norm of a gradient."""
        return problem.lipschitz

    def _rate(self, problem: PairwiseProblem, plan: TablePlan) -> float:
        """The size of a step."""
        eta = self.learning_rate
        if eta is None:
            squared = self._lipschitz(problem) ** 2 + plan.dim * plan.sigma**2
            return problem.radius / math.sqrt(plan.releases * squared)
        if not (math.isfinite(eta) and eta > 0.0):
            raise ConfigError(f"learning_rate is {eta!r}", fix="give a finite number above 0")
        return float(eta)

    def _release(self, problem: PairwiseProblem, account: TableAccount) -> Floats:
        _, total = self._noisy_descent(problem, account, problem.risk().gradient, problem.start)
        return (problem.start + total) / (self.steps + 1.0)  # w_0 counts

    def _noisy_descent(
        self,
        problem: PairwiseProblem,
        account: TableAccount,
        gradient: Callable[[Floats], Floats],
        start: Floats,
        **release: Any,
    ) -> tuple[Floats, Floats]:
        """`descend` on gradients that leave under noise; `release`: where it is not that of linear scores."""
        steps = checked_steps(self.steps)
        self._pure_is_refused()
        settings: dict[str, Any] = {"sensitivity": problem.push, "lemma": "docs/privacy, Lemma 75", **release}
        noise = self._paper_noise(problem, steps) if self.calibration == "paper" else None
        plan = account.plan(releases=steps, name="gradients of all pairs", noise=noise, **settings)
        eta, gate = self._rate(problem, plan), account.gate(plan)
        return descend(problem, lambda w: gate.privatize(gradient(w)), steps, eta, start)

    def _describe(self) -> tuple[str, str]:
        return (
            f"Mechanism: gradient descent on all pairs; each of {self.steps} gradients is released under "
            "noise, and the model is the mean of the iterates.",
            "Xue et al. (2021), Algorithm 2",
        )
