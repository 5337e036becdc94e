"""Gradient descent on all pairs, and one release at its end (Xue et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from streampair.errors import ConfigError
from streampair.offline.base import PairwiseProblem, TableLearner
from streampair.privacy.mechanisms.offline import (
    TableAccount,
    contraction,
    descent_moves,
    largest_step,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["DPGDC", "DPGDSC"]


def descend(
    problem: PairwiseProblem,
    gradient: Callable[[Floats], Floats],
    steps: int,
    eta: float,
    start: Floats,
    *,
    l2: float = 0.0,
) -> tuple[Floats, Floats]:
    """Projected gradient descent: the last iterate, and the sum of all after the start.

    Both are as secret as the gradients that `gradient` returns for given weights.
    """
    w, total = start, np.zeros_like(start)
    for _ in range(steps):
        w = problem.inside(w - eta * (gradient(w) + l2 * w))
        total += w
    return w, total


def released_descent(
    problem: PairwiseProblem,
    account: TableAccount,
    steps: int,
    eta: float,
    *,
    name: str,
    lemma: str = "docs/privacy, Lemma 71",
    output: Literal["average", "last"] = "average",
    l2: float = 0.0,
    noise: float | None = None,
    seed: int | None = None,
) -> Floats:
    """Descend on all pairs in secret, and release one vector: the last iterate, or the mean of the iterates.

    Parameters
    ----------
    problem, account
        What is learned, from its start on, and where the release is entered.
    steps, eta
        Number of steps and their size.
    name, lemma, noise
        Of the release, as of `TableAccount.plan`.
    output
        What is released.
    l2
        Strength of the ridge term.
    seed
        As of `TableAccount.gate`.
    """
    moves = descent_moves(
        steps, eta, alpha=l2, smoothness=problem.smoothness, push=problem.push, radius=problem.radius
    )
    moved = float(moves.mean() if output == "average" else moves[-1])
    plan = account.plan(sensitivity=moved, name=name, lemma=lemma, noise=noise)
    last, total = descend(problem, problem.risk().gradient, steps, eta, problem.start, l2=l2)
    return account.gate(plan, seed).privatize(total / steps if output == "average" else last)


def paper_factor(epsilon: float, delta: float, dim: int) -> float:
    """Noise multiplier of the papers: for Gaussian noise, or with delta 0 for Laplace noise."""
    return math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon if delta else math.sqrt(dim) / epsilon


def checked_steps(steps: int, name: str = "steps") -> int:
    """Validate a number of steps, or another count, by its name."""
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ConfigError(f"{name} is {steps!r}", fix="give a whole number of 1 or more")
    return int(steps)


@dataclass(eq=False, repr=False)
class DPGDSC(TableLearner):
    """Gradient descent on all pairs with a ridge term; its end is released (Xue et al., Algorithm 1).

    The risk is the mean of the pair loss over all pairs, plus ``l2 / 2 |w|^2``. The descent runs without
    noise, in secret, and one vector leaves: the last iterate under Gaussian noise, or Laplace noise with
    ``delta=0``, which makes the guarantee pure.

    Parameters
    ----------
    epsilon, delta
        The promise, for the replacement of one record. With ``delta=0`` it is pure epsilon.
    task
        ``"auc"`` ranks the second of the two `classes_` above the first; ``"metric"`` learns a distance.
    loss
        A smooth pair loss; None is `losses.Logistic`. The hinge is refused.
    radius
        R of the l2 (Frobenius) ball of the weights, at most 100.
    bounds
        Declared public (low, high): two numbers, or one for each feature in both. Features are scaled by them
        to [-1, 1], then each record is pulled into the unit ball. None: they are scaled.
    calibration
        ``"tight"``: by the recursion of docs/privacy, Lemma 71. ``"paper"``: the noise of the paper to the
        letter; the report says what it guarantees.
    random_state
        None: noise under a key of the operating system. Anything else is for tests: the noise can be computed
        from it, and the report says that nothing is guaranteed.
    start
        Where the descent begins: None for 0; weights of the features as they come, (d,), (d, d) for a metric,
        or by name, which are taken as public; or a private online learner, or a fitted learner of this
        module, whose guarantee is its own: of records that are in both, both are spent. A learner that is not
        private is refused. What is outside the ball is pulled into it.
    l2
        Strength of the ridge term, above 0: what a record does fades with it.
    steps
        Steps T.
    learning_rate
        Size of a step, at most ``2 / (L + l2)``; None: ``2 / (L + 2 l2)``, which contracts most.

    Attributes
    ----------
    coef_
        Weights, (d,), for the AUC.
    metric_
        W, (d, d), symmetric, for a metric.
    classes_
        Labels in order; the last one ranks high.
    privacy
        The report of the last fit.

    Notes
    -----
    Guarantee: (epsilon, delta)-DP for the replacement of one record of n, by docs/privacy, Lemma 71. n is
    public. It is an upper bound: docs/privacy 5 says what share of it the worst neighbours that are known
    show. A gradient takes O(n log n + n d), with the logistic loss a pass over all pairs.

    References
    ----------
    Xue, Z., Yang, S., Huai, M. and Wang, D. (2021). Differentially private pairwise learning revisited.
    IJCAI. Algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import offline
    >>> rng = np.random.default_rng(1)
    >>> y = rng.random(5000) < 0.5
    >>> X = rng.normal(size=(5000, 3)) / 4 + 0.3 * y[:, None]
    >>> model = offline.DPGDSC(epsilon=1.0, delta=1e-6, l2=0.1).fit(X, y)
    >>> model.score(X, y) > 0.8, model.privacy.epsilon_spent
    (True, 1.0)
    """

    _: KW_ONLY
    l2: float = 0.1
    steps: int = 100
    learning_rate: float | None = None

    _starts = True

    def _release(self, problem: PairwiseProblem, account: TableAccount) -> Floats:
        alpha, steps = float(self.l2), checked_steps(self.steps)
        if not (math.isfinite(alpha) and alpha > 0.0):
            raise ConfigError(f"l2 is {self.l2!r}", fix="give a finite number above 0, or use DPGDC")
        smooth = problem.smoothness
        eta = largest_step(alpha, smooth) if self.learning_rate is None else float(self.learning_rate)
        contraction(eta, alpha, smooth)
        noise = None
        if self.calibration == "paper":
            g = problem.lipschitz + alpha * problem.radius
            noise = 8.0 * g / (alpha * problem.n) * paper_factor(self.epsilon, self.delta, problem.dim)
        return released_descent(
            problem, account, steps, eta, name="the last iterate", output="last", l2=alpha, noise=noise
        )

    def _describe(self) -> tuple[str, str]:
        return (
            "Mechanism: gradient descent on all pairs with a ridge term, without noise and in secret; the "
            "last iterate is released under noise.",
            "Xue et al. (2021), Algorithm 1",
        )


@dataclass(eq=False, repr=False)
class DPGDC(TableLearner):
    """Gradient descent on all pairs, without a ridge term; one release (Xue et al., Algorithm 4).

    Nothing fades here: noise grows with the number of steps times their size.

    Parameters
    ----------
    epsilon, delta, task, loss, radius, bounds, calibration, random_state, start
        As in `DPGDSC`.
    steps
        Steps T.
    learning_rate
        Size of a step, at most ``2 / L``; None: the least of ``2 / L`` and ``4 radius / steps``, by which
        gradients of norm 1 would come four times as far as the ball reaches.
    output
        ``"average"`` releases the mean of the iterates, as the paper does; ``"last"`` the last one, which
        moves about twice as far.

    Attributes
    ----------
    coef_, metric_, classes_, privacy
        As in `DPGDSC`.

    References
    ----------
    Xue et al. (2021), Algorithm 4.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import offline
    >>> rng = np.random.default_rng(1)
    >>> y = rng.random(5000) < 0.5
    >>> X = rng.normal(size=(5000, 3)) / 4 + 0.3 * y[:, None]
    >>> offline.DPGDC(epsilon=1.0, delta=0.0).fit(X, y).privacy.delta
    0.0
    """

    _: KW_ONLY
    steps: int = 50
    learning_rate: float | None = None
    output: Literal["average", "last"] = "average"

    _starts = True

    def _release(self, problem: PairwiseProblem, account: TableAccount) -> Floats:
        if self.output not in ("average", "last"):
            raise ConfigError(f"output is {self.output!r}", fix='give "average" or "last"')
        steps, smooth = checked_steps(self.steps), problem.smoothness
        eta = self.learning_rate
        eta = min(2.0 / smooth, 4.0 * problem.radius / steps) if eta is None else float(eta)
        noise = None
        if self.calibration == "paper":
            moved = 4.0 * problem.lipschitz * eta * steps / problem.n
            noise = moved * paper_factor(self.epsilon, self.delta, problem.dim)
        name = f"the {self.output} iterate"
        return released_descent(problem, account, steps, eta, name=name, output=self.output, noise=noise)

    def _describe(self) -> tuple[str, str]:
        return (
            "Mechanism: gradient descent on all pairs, without noise and in secret; the "
            f"{self.output} iterate is released under noise.",
            "Xue et al. (2021), Algorithm 4",
        )
