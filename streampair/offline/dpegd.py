"""Descent over disjoint parts of a table, each with a release of its own (Xue et al. 2021, Algorithm 3)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from streampair.offline.base import PairwiseProblem, TableLearner
from streampair.offline.dpgd import checked_steps, paper_factor, released_descent
from streampair.privacy.mechanisms.offline import TableAccount

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["DPEGD"]


def halves(n: int) -> list[slice]:
    """Parts of n records: half of them, half of the rest, and so on; each has two records or more.

    Examples
    --------
    >>> from streampair.offline.dpegd import halves
    >>> [part.stop - part.start for part in halves(13)]
    [6, 3, 4]
    """
    parts, start, size = [], 0, n // 2
    while size >= 2 and n - start - size >= 2:
        parts.append(slice(start, start + size))
        start += size
        size //= 2
    return [*parts, slice(start, n)]


def seeds(problem: PairwiseProblem, count: int) -> list[int | None]:
    """A seed of noise for each part; None where there is none."""
    if problem.seed is None:
        return [None] * count
    return [int(seed) for seed in np.random.default_rng(problem.seed + 1).integers(2**31 - 1, size=count)]


@dataclass(eq=False, repr=False)
class DPEGD(TableLearner):
    """Gradient descent over halves of what is left of a table, each from where the one before was released.

    Part i has ``n / 2^i`` records, steps of size ``4^-i`` of the learning rate, and as many of them as
    records; the mean of its iterates is released, and the next part begins there. A record is in one part, so
    each part has the whole budget. The records are shuffled first.

    Parameters
    ----------
    epsilon, delta, task, loss, radius, bounds, calibration, random_state, start
        As in `DPGDSC`. With ``calibration="paper"`` a release of part i moves by ``4 G eta_i``.
    learning_rate
        The size eta that steps are ``4^-i`` of; ``eta / 4`` is at most ``2 / L``. None: that of the paper's
        Theorem 3, ``2 radius / G`` times the least of ``4 / sqrt(n)`` and
        ``epsilon / sqrt(d log(1 / delta))`` (``epsilon / d`` for delta 0), where the loss allows it.
    steps
        Steps of a part, at most; None: as many as it has records.

    Attributes
    ----------
    coef_, metric_, classes_, privacy
        As in `DPGDSC`.

    Notes
    -----
    Parts of fewer than two records are merged into the one before: they have no pair. Time is that of n / 2
    gradients of n / 2 records.

    References
    ----------
    Xue et al. (2021), Algorithm 3.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import offline
    >>> rng = np.random.default_rng(1)
    >>> y = rng.random(2000) < 0.5
    >>> X = rng.normal(size=(2000, 3)) / 4 + 0.3 * y[:, None]
    >>> report = offline.DPEGD(epsilon=1.0, delta=1e-5, steps=50).fit(X, y).privacy
    >>> report.releases, report.epsilon_spent
    (10, 1.0)
    """

    _: KW_ONLY
    learning_rate: float | None = None
    steps: int | None = None

    _starts = True

    def _parallel(self) -> bool:
        return True

    def _rate(self, problem: PairwiseProblem) -> float:
        if self.learning_rate is not None:
            return float(self.learning_rate)
        noise = math.sqrt(problem.dim * math.log(1.0 / self.delta)) if self.delta else float(problem.dim)
        most = min(4.0 / math.sqrt(problem.n), self.epsilon / noise)
        return min(2.0 * problem.radius / problem.lipschitz * most, 8.0 / problem.smoothness)

    def _release(self, problem: PairwiseProblem, account: TableAccount) -> Floats:
        parts, w = halves(problem.n), problem.start
        rate = self._rate(problem)
        table = problem.shuffled(np.random.default_rng(problem.seed).permutation(problem.n))
        for number, (part, seed) in enumerate(zip(parts, seeds(problem, len(parts)), strict=True), 1):
            subset = replace(table, rows=table.rows[part], labels=table.labels[part], start=w)
            eta = rate * 4.0**-number
            noise = None
            if self.calibration == "paper":
                noise = 4.0 * problem.lipschitz * eta * paper_factor(self.epsilon, self.delta, problem.dim)
            released = released_descent(
                subset,
                account,
                subset.n if self.steps is None else min(subset.n, checked_steps(self.steps)),
                eta,
                name=f"part {number}, the average iterate",
                lemma="docs/privacy, Lemma 74",
                noise=noise,
                seed=seed,
            )
            w = problem.inside(released)
        return w

    def _describe(self) -> tuple[str, str]:
        return (
            "Mechanism: gradient descent on all pairs of one part of the table after the other, without "
            "noise and in secret; the mean of the iterates of each part is released under noise, and the "
            "next part goes on from it. A record is in one part, which is drawn at random, so each part has "
            "the whole budget (parallel composition).",
            "Xue et al. (2021), Algorithm 3",
        )
