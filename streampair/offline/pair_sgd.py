"""Stochastic gradient descent over the pairs of a table, a pair at a step (Yang et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from streampair import schedules
from streampair.errors import ConfigError
from streampair.kernels import pairs as pairs_kernels
from streampair.offline.base import PairLearner, PairwiseProblem, designs, warn_of_scale
from streampair.offline.dpgd import checked_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Places = NDArray[np.int64]

__all__ = ["PairSGD", "pair_steps"]

# Places that are drawn at once.
_DRAWN = 65_536


def pair_steps(
    problem: PairwiseProblem,
    pairs: tuple[Places, Places],
    etas: float | Floats,
    w: Floats,
    before: Floats,
    total: Floats,
    *,
    worth: float | Floats = 1.0,
    l2: float = 0.0,
) -> tuple[Floats, Floats]:
    """Projected steps, a pair at each: the last two iterates, the former one last.

    Parameters
    ----------
    problem
        What is learned.
    pairs
        Places of the records of the pairs, two of shape (T,).
    etas
        Sizes of the steps, (T,), or one size for all.
    w, before
        The iterate that is begun with, and the one before it.
    total
        What the one before, at each step, is added to, (dim,).
    worth
        What the one before weighs in the total at each step, (T,), or one weight for all.
    l2
        Strength of the ridge term.
    """
    w, before, steps = w.copy(), before.copy(), len(pairs[0])
    pairs_kernels.pair_descent(
        problem.loss.code,
        problem.form == "metric",
        l2,
        problem.radius,
        np.full(steps, etas, dtype=np.float64),
        np.full(steps, worth, dtype=np.float64),
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
        Size of every step, above 0, or a schedule (`streampair.schedules`). None: without a ridge term the
        constant ``radius / (G sqrt(T))``, G the largest norm of a gradient; with one
        ``schedules.InverseTime(l2)``.
    l2
        Strength of the ridge term ``l2 / 2 |w|^2``, 0 or above.
    output
        ``"average"``: the mean of the iterates that are two steps before each pair, weighted by the sizes of
        the steps, ``sum_j eta_j w_(j-2) / sum_j eta_j``, as in the paper; the iterate before a pair has
        learned one of its records. ``"linear"``: weighted by j in place of ``eta_j``. ``"last"``: the last
        iterate.
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
    Nothing is protected: what is learned discloses the records. A step takes O(d), for a metric O(d^2).

    The settings of the paper's theorems, with c of order 1 and n records:

    - Theorem 1, not smooth: ``steps=n**2, learning_rate=c * n**-1.5``
    - Theorem 2, smooth: ``steps=n, learning_rate=c * n**-0.5``, at most ``2 / L``
    - Theorem 6 (b): ``l2=alpha``, which takes ``schedules.InverseTime(alpha)``
    - Theorem 7 (b): the same with ``output="linear"``

    References
    ----------
    Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
    algorithms for pairwise learning. NeurIPS. Algorithm 1.

    Lei, Y., Ledent, A. and Kloft, M. (2020). Sharper generalization bounds for pairwise learning. NeurIPS.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import offline
    >>> rng = np.random.default_rng(1)
    >>> y = rng.random(2000) < 0.5
    >>> X = rng.normal(size=(2000, 3)) / 4 + 0.3 * y[:, None]
    >>> offline.PairSGD(pairing="random", random_state=1).fit(X, y).score(X, y) > 0.9
    True
    """

    pairing: Literal["previous", "random"] = "previous"
    _: KW_ONLY
    steps: int | None = None
    learning_rate: float | schedules.Schedule | None = None
    l2: float = 0.0
    output: Literal["average", "linear", "last"] = "average"

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
        X, labels = self._table(X, y)
        warn_of_scale(X, self.bounds, self._scale_fix)
        problem = self._problem(designs(X, self.bounds), labels, self._seed())
        if self.pairing not in ("previous", "random"):
            raise ConfigError(f"pairing is {self.pairing!r}", fix='give "previous" or "random"')
        if self.output not in ("average", "linear", "last"):
            raise ConfigError(f"output is {self.output!r}", fix='give "average", "linear" or "last"')
        if not (math.isfinite(self.l2) and self.l2 >= 0.0):
            raise ConfigError(f"l2 is {self.l2!r}", fix="give a finite number of at least 0")
        steps = 5 * problem.n if self.steps is None else checked_steps(self.steps)
        schedule, weighed = self._schedule(problem, steps), 0.0
        rng = np.random.default_rng(problem.seed)
        w = before = np.zeros(problem.dim)
        total, last = np.zeros(problem.dim), rng.integers(problem.n, size=1)
        for start in range(0, steps, _DRAWN):
            one = rng.integers(problem.n, size=min(_DRAWN, steps - start))
            if self.pairing == "previous":
                other = np.concatenate([last, one[:-1]])
                last = one[-1:]
            else:  # any other record than the first
                other = (one + rng.integers(1, problem.n, size=len(one))) % problem.n
            etas, worth = schedule.sizes(start + 1, len(one)), np.ones(len(one))
            if self.output == "linear":
                worth = np.arange(start + 1.0, start + 1.0 + len(one))
            elif not isinstance(schedule, schedules.Constant):  # equal weights are a plain mean
                worth = etas
            weighed += float(worth.sum())
            w, before = pair_steps(
                problem, (one, other), etas, w, before, total, worth=worth, l2=float(self.l2)
            )
        self._publish(w if self.output == "last" else total / weighed)
        return self

    def _schedule(self, problem: PairwiseProblem, steps: int) -> schedules.Schedule:
        rate = self.learning_rate
        if isinstance(rate, schedules.Schedule):
            return rate
        if rate is None and self.l2:
            return schedules.InverseTime(self.l2)
        if rate is None:
            rate = problem.radius / (problem.lipschitz * math.sqrt(steps))
        if not (math.isfinite(rate) and rate > 0.0):
            raise ConfigError(f"learning_rate is {rate!r}", fix="give a finite number above 0")
        return schedules.Constant(float(rate))
