"""Reference tasks: the effect of a mechanism's noise on a ranking or a metric, without any data.

A task has a number of features, and the level that the best model reaches. The learned weights are the best
direction plus noise, and the level follows from the angle between them. A forecast draws noise and features
in simulated runs (`streampair.assurance.simulated_runs`); benchmarks/planner.py measures its errors.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy import special

from streampair.assurance.simulated_runs import RUNS, Designs, Standardised, designs
from streampair.privacy.mechanisms.ftrl import FTRLPlan
from streampair.privacy.mechanisms.output_perturbation import OutputPerturbationPlan
from streampair.privacy.mechanisms.second_moments import SecondMomentsPlan
from streampair.privacy.mechanisms.standardization import WarmupPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Built", "Distances", "Reference", "Relevances", "TwoClasses"]

_NORMAL = NormalDist()


@dataclass(frozen=True)
class Built:
    """A mechanism whose noise is known.

    Parameters
    ----------
    plan, warmup
        Plans of the mechanism and of its warm-up; None: it has none.
    steps
        Number of learned slots.
    reach
        Norm of records, so that each coordinate has variance `reach^2 / d`.
    """

    plan: Any
    warmup: WarmupPlan | None
    steps: int
    reach: float


@dataclass(frozen=True)
class Reference(abc.ABC):
    """A task of d features whose best model reaches `best`.

    `one_hot` has the number of columns of each text field among the features.
    """

    d: int
    best: float
    one_hot: tuple[int, ...] = ()

    #: Name of the measure.
    measure: ClassVar[str]

    @property
    def coordinates(self) -> int:
        """Number of coordinates of the weights orthogonal to the best direction, each of which gets noise."""
        return self.d - 1

    @abc.abstractmethod
    def level(self, error: float) -> float:
        """Level of the best weights plus an error of `error` times their norm."""

    @abc.abstractmethod
    def regression(self, runs: Designs, records: Standardised, std: float, spread: float) -> Floats:
        """Weights of the runs by least squares; parameters as of `Designs.regression`."""

    @abc.abstractmethod
    def sampling(self, n: float) -> float:
        """Squared error of the best weights from n records."""

    @abc.abstractmethod
    def moments(self, std: float) -> float:
        """Squared error of least squares from mean second moments with noise `std` in each coordinate."""

    @abc.abstractmethod
    def force(self, reach: float, clip: float, tangent: bool, slope: float) -> float:
        """Norm of the mean gradient at 0, of a loss with this slope there."""

    @abc.abstractmethod
    def bend(self, reach: float, clip: float) -> float:
        """Mean curvature of the logistic loss in the best direction."""

    def ratio(self, built: Built) -> float:
        """Noise of one coordinate of weights that follow gradients, relative to the weights' norm.

        Raises
        ------
        TypeError
            If the plan's mechanism has no forecast.
        """
        plan, steps, reach = built.plan, built.steps, built.reach
        match plan:
            case FTRLPlan():
                noise = plan.sigma * plan.strategy.error(steps)
                force = steps * self.force(reach, plan.clip, plan.tangent, 2.0)
            case OutputPerturbationPlan():
                precision = float(np.sum(1.0 / plan.sigmas[np.isfinite(plan.sigmas)] ** 2))
                noise = 1.0 / math.sqrt(precision)
                pull = self.force(reach, plan.clip, False, 1.0)
                force = min(pull / (plan.alpha + self.bend(reach, plan.clip)), plan.radius)
            case other:
                raise TypeError(f"no forecast for {type(other).__name__}")
        return float(noise / force)

    def error(self, built: Built) -> float:
        """Squared error of the weights by the noise of a mechanism, if records are standardised exactly."""
        if isinstance(built.plan, SecondMomentsPlan):
            known = built.plan.information(built.steps)
            return self.moments(1.0 / math.sqrt(known)) if known > 0.0 else math.inf
        return self.coordinates * self.ratio(built) ** 2

    def levels(self, built: Built, n: int) -> Floats:
        """Levels of the weights that simulated runs of n records learn, (runs,)."""
        plan, runs = built.plan, designs(self.d, self.one_hot)
        records = runs.standardised(built.warmup, built.reach)
        if not isinstance(plan, SecondMomentsPlan):
            weights = runs.disturbed(records, self.ratio(built))
        elif known := plan.information(built.steps):
            weights = self.regression(runs, records, 1.0 / math.sqrt(known), plan.spread)
        else:
            return np.full(RUNS, 0.5)
        cosines = runs.cosines(weights, math.sqrt(self.sampling(n) / max(runs.m - 1, 1)))
        above = [self.level(math.sqrt(1.0 / max(c * c, 1e-12) - 1.0)) for c in cosines.tolist()]
        return np.where(cosines > 0.0, above, 1.0 - np.array(above))


@dataclass(frozen=True)
class TwoClasses(Reference):
    """Two classes of records; `best` is the AUC of the best direction."""

    rate: float = 0.5

    measure: ClassVar[str] = "AUC"

    @cached_property
    def gap(self) -> float:
        """Distance of the class means, in standard deviations of a score in the best direction."""
        return math.sqrt(2.0) * _NORMAL.inv_cdf(self.best)

    def level(self, error: float) -> float:
        """AUC."""
        return _NORMAL.cdf(self.gap / math.sqrt(2.0) / math.sqrt(1.0 + error * error))

    def regression(self, runs: Designs, records: Standardised, std: float, spread: float) -> Floats:
        """Of a label of 1 or 0, less the released share of positives."""
        signal = self.rate * (1.0 - self.rate) * self.gap
        centre = np.clip(2.0 * self.rate - 1.0 + records.label, -1.0, 1.0)
        tilt = 0.5 * (2.0 * self.rate - 1.0 - centre)
        return runs.regression(records, signal, tilt, std, 0.5 * (1.0 + np.abs(centre)), spread)

    def sampling(self, n: float) -> float:
        """Squared error of the difference of the class means, in coordinates with the identity covariance."""
        spread = self.rate * (1.0 - self.rate)
        return self.coordinates * (1.0 / spread + self.gap**2) / (n * self.gap**2)

    def moments(self, std: float) -> float:
        """Squared error by noise of the difference of the means, and of the matrix of moments."""
        v = 1.0 / self.d
        signal = self.rate * (1.0 - self.rate) * self.gap * math.sqrt(v)
        weight = 1.0 + abs(2.0 * self.rate - 1.0)
        vector = self.coordinates * (0.5 * weight * std / signal) ** 2
        return vector + _matrix(self.d, std)

    def force(self, reach: float, clip: float, tangent: bool, slope: float) -> float:
        """Mean over a share `2 p (1 - p)` of pairs, clipped, in the best direction."""
        each = min(slope, 1.0 if tangent else clip / (math.sqrt(2.0) * reach))
        return 2.0 * self.rate * (1.0 - self.rate) * each * self.gap * reach / math.sqrt(self.d)

    def bend(self, reach: float, clip: float) -> float:
        """Mean over the same share of pairs."""
        each = min(1.0, clip / (math.sqrt(2.0) * reach))
        return 4.0 * self.rate * (1.0 - self.rate) * each * reach**2 / self.d


@dataclass(frozen=True)
class Relevances(Reference):
    """Records with a normal relevance; `best` is the share of pairs in order by the best direction.

    The declared range of relevances is two standard deviations to each side.
    """

    measure: ClassVar[str] = "pairs in order"
    STD: ClassVar[float] = 0.5

    @cached_property
    def correlation(self) -> float:
        """Correlation of the relevance with a score in the best direction."""
        return math.sin(math.pi * (self.best - 0.5))

    def level(self, error: float) -> float:
        """Share of pairs in order, of a bivariate normal distribution (Kendall's tau)."""
        return 0.5 + math.asin(self.correlation / math.sqrt(1.0 + error * error)) / math.pi

    def regression(self, runs: Designs, records: Standardised, std: float, spread: float) -> Floats:
        """Of a relevance whose middle is declared."""
        return runs.regression(
            records, self.correlation * self.STD, np.zeros(RUNS), std, np.ones(RUNS), spread
        )

    def sampling(self, n: float) -> float:
        """Squared error of a linear regression."""
        return self.coordinates * (1.0 - self.correlation**2) / (n * self.correlation**2)

    def moments(self, std: float) -> float:
        """Squared error by noise of the products with the relevance, and of the matrix."""
        signal = self.correlation * self.STD / math.sqrt(self.d)
        return self.coordinates * (std / signal) ** 2 + _matrix(self.d, std)

    def _each(self, reach: float, clip: float) -> float:
        """Share that clipping leaves of the gradient of a pair with the mean difference of relevances."""
        length = math.sqrt(2.0) * reach * 2.0 * self.STD / math.sqrt(math.pi)
        return min(1.0, clip / length)

    def force(self, reach: float, clip: float, tangent: bool, slope: float) -> float:
        """Covariance of relevances and records, over pairs."""
        each = 0.5 * slope * self._each(reach, clip)
        return 2.0 * each * self.correlation * self.STD * reach / math.sqrt(self.d)

    def bend(self, reach: float, clip: float) -> float:
        """Mean of `(y - y')^2 u^2 / 4` in one coordinate."""
        return self._each(reach, clip) * self.STD**2 * reach**2 / self.d


@dataclass(frozen=True)
class Distances(Reference):
    """Two classes whose means differ in one direction; `best` is the share of pairs of distances in order.

    In order: two records of one class are nearer to each other than two of different classes.
    """

    measure: ClassVar[str] = "distances in order"

    # Grid of quantiles of the normal distribution; the level is an average over it.
    _GRID: ClassVar[Any] = special.ndtri((np.arange(128) + 0.5) / 128)

    @property
    def coordinates(self) -> int:
        """Number of coordinates of a symmetric matrix, less one."""
        return self.d * (self.d + 1) // 2 - 1

    @cached_property
    def gap(self) -> float:
        """Distance of the class means, in standard deviations within a class.

        Of two independent differences A ~ N(0, 2) and B ~ N(gap, 2) the second is longer if B - A and B + A
        have one sign, and these are independent.
        """
        return 2.0 * _NORMAL.inv_cdf(0.5 * (1.0 + math.sqrt(2.0 * self.best - 1.0)))

    def level(self, error: float) -> float:
        """Mean over A and B of the probability that `B^2 - A^2` plus normal noise is above 0.

        Half of a symmetric noise is removed with its negative eigenvalues.
        """
        products = np.outer(self.gap + 2.0 * self._GRID, self.gap + 2.0 * self._GRID)
        blur = max(4.0 * error / math.sqrt(2.0), 1e-9)
        return float(np.mean(special.ndtr(products / blur)))

    def regression(self, runs: Designs, records: Standardised, std: float, spread: float) -> Floats:
        """Raise an error: a metric is not a direction, and has `levels` of its own."""
        raise NotImplementedError

    def levels(self, built: Built, n: int) -> Floats:
        """The error of all cells together, and the loss of signal in records that are clipped."""
        runs = designs(self.d, self.one_hot)
        length = np.maximum(runs.standardised(built.warmup, built.reach).length, 1.0)
        size = length if isinstance(built.plan, SecondMomentsPlan) else length**2
        spread = 2.0 / (9.0 * max(self.coordinates, 1))
        # Of a chi-squared variable by its number of coordinates (Wilson & Hilferty).
        drawn = np.maximum(1.0 - spread + math.sqrt(spread) * runs.labels, 0.0) ** 3
        errors = self.sampling(n) + self.error(built) * size**2 * drawn
        return np.array([self.level(error) for error in np.sqrt(errors).tolist()])

    def sampling(self, n: float) -> float:
        """Squared error of the difference of two scatter matrices."""
        return self.coordinates * 16.0 / (n * self.gap**4)

    def moments(self, std: float) -> float:
        """Squared error of a direction from the class means, and of its square as a matrix."""
        signal = 0.25 * self.gap / math.sqrt(self.d)
        direction = (self.d - 1) * (0.5 * std / signal) ** 2 + _matrix(self.d, std)
        return 2.0 * direction + direction**2

    def force(self, reach: float, clip: float, tangent: bool, slope: float) -> float:
        """Mean over half of the pairs, clipped: the excess of pairs of two classes in the best direction."""
        each = min(0.5 * slope, clip / (2.0 * reach**2))
        return 0.5 * each * self.gap**2 * reach**2 / self.d

    def bend(self, reach: float, clip: float) -> float:
        """Mean of `u^4 / 4` in one coordinate."""
        each = min(1.0, clip / (2.0 * reach**2))
        return 3.0 * each * (reach**2 / self.d) ** 2


def _matrix(d: int, std: float) -> float:
    """Squared error by noise in the second moments of records of norm 1, with the learner's ridge term."""
    return 0.5 * d * (std / (1.0 / d + math.sqrt(d) * std)) ** 2
