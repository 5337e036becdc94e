"""Stochastic gradient descent over the pairs of a table, a pair at a step (Yang et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from streampair import kernels
from streampair.batch.base import PairLearner, Problem
from streampair.batch.descent import checked_steps
from streampair.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Places = NDArray[np.int64]

__all__ = ["PairSGD", "pair_steps"]

# Places that are drawn at once.
_DRAWN = 65_536


def pair_steps(
    problem: Problem, pairs: tuple[Places, Places], eta: float, w: Floats, before: Floats, total: Floats
) -> tuple[Floats, Floats]:
    """Projected steps, a pair at each: the last two iterates, the former one last.

    Parameters
    ----------
    problem, eta
        What is learned, and the size of a step.
    pairs
        Places of the records of the pairs, two of shape (T,).
    w, before
        The iterate that is begun with, and the one before it.
    total
        What the one before, at each step, is added to, (dim,).
    """
    w, before = w.copy(), before.copy()
    kernels.pair_descent(
        problem.loss.code,
        problem.form == "metric",
        eta,
        problem.radius,
        problem.rows,
        problem.labels,
        *pairs,
        w,
        before,
        total,
    )
    return w, before


@dataclass(eq=False, repr=False)
class PairSGD(PairLearner):
    """Stochastic gradient descent over a table, a pair at a step. Not private (Yang et al., Algorithm 1).

    Parameters
    ----------
    pairing
        ``"previous"``: each step draws a record, and pairs it with that of the step before, as in the paper.
        ``"random"``: each step draws two records, as in Lei et al. (2020).
    steps
        Steps T; None: five for each record.
    learning_rate
        Size of a step, above 0; None: ``radius / (G sqrt(T))``, G the largest norm of a gradient.
    output
        ``"average"``: the mean of the iterates that are two steps before each pair, as in the paper, for the
        one before knows a record of it. ``"last"``: the last one.
    task, loss, radius, bounds
        As in `DPGDSC`; the loss need not be smooth.
    random_state
        Of the records that are drawn.

    Attributes
    ----------
    coef_, metric_, classes_
        As in `DPGDSC`.

    Notes
    -----
    Nothing is protected: what is learned tells of the records. A step takes O(d), for a metric O(d^2).

    References
    ----------
    Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
    algorithms for pairwise learning. NeurIPS. Algorithm 1.

    Lei, Y., Ledent, A. and Kloft, M. (2020). Sharper generalization bounds for pairwise learning. NeurIPS.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import batch
    >>> rng = np.random.default_rng(1)
    >>> y = rng.random(2000) < 0.5
    >>> X = rng.normal(size=(2000, 3)) / 4 + 0.3 * y[:, None]
    >>> batch.PairSGD(pairing="random", random_state=1).fit(X, y).score(X, y) > 0.9
    True
    """

    pairing: Literal["previous", "random"] = "previous"
    _: KW_ONLY
    steps: int | None = None
    learning_rate: float | None = None
    output: Literal["average", "last"] = "average"

    _largest_radius: ClassVar[float] = 1e6  # nothing is protected, so nothing has to be bounded for it

    def fit(self, X: Any, y: Any) -> Any:
        """Learn a table, without privacy.

        Parameters
        ----------
        X
            Features, (n, d): numbers, and none of them missing.
        y
            Labels, (n,): two classes, or, for a metric, two or more.

        Raises
        ------
        ConfigError
            If a parameter is out of range, or the table cannot be learned: fewer than two records, values
            that are not finite, one class, or more than two for the AUC.
        """
        problem = self._problem(*self._table(X, y))
        if self.pairing not in ("previous", "random"):
            raise ConfigError(f"pairing is {self.pairing!r}", fix='give "previous" or "random"')
        if self.output not in ("average", "last"):
            raise ConfigError(f"output is {self.output!r}", fix='give "average" or "last"')
        steps = 5 * problem.n if self.steps is None else checked_steps(self.steps)
        eta = self.learning_rate
        if eta is None:
            eta = problem.radius / (problem.lipschitz * math.sqrt(steps))
        if not (math.isfinite(eta) and eta > 0.0):
            raise ConfigError(f"learning_rate is {eta!r}", fix="give a finite number above 0")
        coins = np.random.default_rng(problem.seed)
        w = before = np.zeros(problem.dim)
        total, last = np.zeros(problem.dim), coins.integers(problem.n, size=1)
        for start in range(0, steps, _DRAWN):
            one = coins.integers(problem.n, size=min(_DRAWN, steps - start))
            if self.pairing == "previous":
                other = np.concatenate([last, one[:-1]])
                last = one[-1:]
            else:  # any other record than the first
                other = (one + coins.integers(1, problem.n, size=len(one))) % problem.n
            w, before = pair_steps(problem, (one, other), float(eta), w, before, total)
        self._publish(total / steps if self.output == "average" else w)
        return self
