"""Learning rate schedules: the step sizes of gradient descent.

A schedule can be given as `learning_rate` of `auc.PairOGD`, `ranking.PairOGD`, `metric.PairOGD` and
`offline.PairSGD`; `AdaGrad`, whose steps depend on the gradients, of the first two. Steps are numbered from
1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from river import base

from streampair.errors import ConfigError
from streampair.kernels import state

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["AdaGrad", "Constant", "InverseSqrt", "InverseTime", "Schedule"]


class Schedule(base.Base):
    """Base class of the schedules, which have parameters and no state.

    `code` is the integer by which the compiled kernels know the schedule, `scale` its largest factor.
    """

    code: ClassVar[int] = state.INVERSE_SQRT

    def __str__(self) -> str:
        return repr(self)

    @property
    def scale(self) -> float:
        """The factor that the kernels multiply."""
        raise ConfigError(f"{self!r} is no schedule", fix="give one such as schedules.Constant(0.01)")

    def sizes(self, first: int, count: int) -> Floats:
        """Sizes of `count` steps, from step number `first` on.

        Examples
        --------
        >>> from streampair import schedules
        >>> schedules.InverseTime(2.0).sizes(1, 3).round(4).tolist()
        [0.5, 0.3333, 0.25]
        """
        raise NotImplementedError


def _check(name: str, value: float) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    if not (ok and math.isfinite(value) and 0.0 < value <= 1e12):
        raise ConfigError(f"{name} is {value!r}", fix=f"give a finite {name} above 0 and at most 1e12")


@dataclass(frozen=True)
class _RateSchedule(Schedule):
    """Base class of the schedules that have one parameter, a rate."""

    rate: float

    def __post_init__(self) -> None:
        _check("rate", self.rate)

    @property
    def scale(self) -> float:
        """The rate."""
        return float(self.rate)


@dataclass(frozen=True)
class AdaGrad(_RateSchedule):
    """A step size for each weight: ``rate / sqrt(start + g_1^2 + ... + g_j^2)``, over its gradients so far.

    With ``start=0`` no feature has a scale that steps depend on: the first step of a weight has the size
    `rate`, whatever the unit of its feature. The last iterate is published, projected onto the l2 ball of the
    learner's radius, if it has one.

    Parameters
    ----------
    rate
        Size of the first step of a weight, above 0 and at most 1e12.
    start
        What the sums of squares begin at, 0 or above and at most 1e12. With features of order 1, 1 keeps the
        first steps of a rare feature small.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    The regret bound of Duchi et al. is for a projection in the norm that the step sizes define. The learners
    project in the l2 norm, whatever the steps, so the theorem does not cover them. What the regret is on
    streams that stay the same: docs/benchmarks/regret.md.

    References
    ----------
    Duchi, J., Hazan, E. and Singer, Y. (2011). Adaptive subgradient methods for online learning and
    stochastic optimization. JMLR 12.

    Examples
    --------
    >>> from streampair import auc, schedules
    >>> model = auc.PairOGD(learning_rate=schedules.AdaGrad(0.05))
    """

    code = state.ADAGRAD
    start: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = isinstance(self.start, int | float) and not isinstance(self.start, bool)
        if not whole or not 0.0 <= self.start <= 1e12:
            raise ConfigError(f"start is {self.start!r}", fix="give a number from 0 to 1e12")

    def sizes(self, first: int, count: int) -> Floats:
        """ConfigError: the sizes follow from the gradients."""
        raise ConfigError(
            f"the steps of {self!r} depend on the gradients",
            fix="give another schedule such as schedules.Constant(0.01)",
        )


@dataclass(frozen=True)
class Constant(_RateSchedule):
    """Constant step size.

    Theorem 1 of Yang et al. (2021), for losses that are not smooth, takes ``T = n^2`` steps of a size
    proportional to ``T^(-3/4)``; Theorem 2, for smooth losses, ``T = n`` steps of a size proportional to
    ``T^(-1/2)`` and at most ``2 / L``.

    Parameters
    ----------
    rate
        Size of a step, above 0 and at most 1e12.

    Raises
    ------
    ConfigError
        If the rate is out of range.

    References
    ----------
    Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
    algorithms for pairwise learning. NeurIPS. Theorems 1 and 2.

    Examples
    --------
    >>> from streampair import auc, schedules
    >>> model = auc.PairOGD(learning_rate=schedules.Constant(0.01))
    """

    code = state.CONSTANT

    def sizes(self, first: int, count: int) -> Floats:
        """``rate``, `count` times."""
        return np.full(count, self.scale)


@dataclass(frozen=True)
class InverseSqrt(_RateSchedule):
    """Step size ``rate / sqrt(j)`` for step j; a number given to `auc.PairOGD` means this schedule.

    Parameters
    ----------
    rate
        Size of the first step, above 0 and at most 1e12.

    Raises
    ------
    ConfigError
        If the rate is out of range.

    Examples
    --------
    >>> from streampair import auc, schedules
    >>> model = auc.PairOGD(learning_rate=schedules.InverseSqrt(0.1))  # as learning_rate=0.1
    """

    code = state.INVERSE_SQRT

    def sizes(self, first: int, count: int) -> Floats:
        """``rate / sqrt(j)``."""
        sizes: Floats = self.scale / np.sqrt(np.arange(first, first + count, dtype=np.float64))
        return sizes


@dataclass(frozen=True)
class InverseTime(Schedule):
    """Step size ``2 / (alpha (j + 1))`` for step j, for a loss with a ridge term ``l2 = alpha``.

    Theorem 6 (b) of Yang et al. (2021) publishes the average of the iterates weighted by these sizes;
    Theorem 7 (b) the average weighted by j.

    Parameters
    ----------
    alpha
        Strong convexity of the loss, above 0 and at most 1e12.

    Raises
    ------
    ConfigError
        If alpha is out of range.

    References
    ----------
    Yang, Z., Lei, Y., Wang, P., Yang, T. and Ying, Y. (2021). Simple stochastic and online gradient descent
    algorithms for pairwise learning. NeurIPS. Theorems 6 (b) and 7 (b).

    Examples
    --------
    >>> from streampair import auc, schedules
    >>> model = auc.PairOGD(learning_rate=schedules.InverseTime(0.1), l2=0.1, average="linear")
    """

    alpha: float

    code = state.INVERSE_TIME

    def __post_init__(self) -> None:
        _check("alpha", self.alpha)

    @property
    def scale(self) -> float:
        """2 / alpha."""
        return 2.0 / float(self.alpha)

    def sizes(self, first: int, count: int) -> Floats:
        """``2 / (alpha (j + 1))``."""
        sizes: Floats = self.scale / (np.arange(first, first + count, dtype=np.float64) + 1.0)
        return sizes
