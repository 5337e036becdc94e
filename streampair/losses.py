"""Pair losses, and their constants for the calibration of noise.

All but one are convex functions of the margin of a pair, which is positive for a correctly ordered pair. The
margin depends on the *form* of the labels:

| form | margin of a pair, with ``u = x - x'`` | learners |
|---|---|---|
| "raw" | ``(y - y') w.u``, labels or relevances in [-1, 1], ``norm(w) <= R`` | `auc`, `ranking` |
| "halved" | ``(y - y') w.u / 2`` | none here; some papers |
| "metric" | ``yy' (1 - u'Wu)``, yy' = 1 for one class, else -1; ``norm(W) <= R`` (Frobenius) | `metric` |
| "psd" | the same with W positive semi-definite | `metric` with ``psd=True`` |

In the first two forms pairs of equal labels have margin 0 for every w, and no gradient. The exception is
`MinimumErrorEntropy`, a function of the difference of two errors. (`ranking.PairOGD` is not private and takes
relevances of any size; the constants do not apply to its steps.)
"""

from __future__ import annotations

import abc
import math
from typing import Literal, TypeAlias, get_args, overload

import numpy as np
import scipy  # its modules are loaded on first use
from numpy.typing import NDArray
from river import base

from streampair.errors import ConfigError
from streampair.kernels import losses

__all__ = [
    "Hinge",
    "Logistic",
    "MinimumErrorEntropy",
    "PairLoss",
    "Square",
    "SquaredHinge",
    "registered",
    "registry",
]

Form: TypeAlias = Literal["raw", "halved", "metric", "psd"]
"""How the margin of a pair is computed from its labels and the weights."""


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0.0):
        raise ConfigError(f"{name} is {value!r}", fix=f"give a finite {name} above 0")
    return float(value)


def _metric_diameter(loss: PairLoss, steepest: float, reach: float) -> float:
    """Most that a replaced record moves a pair's gradient, over 4 B^2 (docs/privacy, Lemma 92).

    `steepest` is the largest slope M, `reach` the largest score 4 B^2 R of a pair.
    """
    # Descending from 1 to .825: the larger of the two pairs' P = |u|^2 / 4 if both are equal. In each cell
    # what depends on it is taken at the end that makes it larger.
    p = 1.0 - np.linspace(0.0, math.sqrt(0.175), 2001) ** 2
    nearest = 8.0 * p**3 * (1.0 - p)  # the squared distance of the two pairs' matrices, in (4 B^2)^2
    farthest = np.append(nearest[1:], 1.0)
    size = 2.0 * p * p
    total = np.minimum(loss._opposed(reach * np.sqrt(farthest)), 2.0 * steepest)
    squares = total**2 * (size - 1.0) + total * steepest * (2.0 - size)
    squares -= steepest * (total - steepest) * nearest
    return max(steepest, float(np.sqrt(squares[total >= steepest].max(initial=0.0))))


def _checked_form(form: str) -> str:
    if form not in get_args(Form):
        raise ConfigError(f"form is {form!r}", fix='give "raw", "halved", "metric" or "psd"')
    return form


class PairLoss(base.Base, abc.ABC):
    """Base class of the pair losses, which have parameters and no state.

    `code` is the integer by which the compiled kernels know the loss, and `width` its parameter there.
    `convex` says whether the loss is convex in the weights, which output perturbation needs. `decreasing`
    says whether it decreases with the margin everywhere, which halves the replacement diameter. `of_errors`
    says whether it is a function of the difference of two errors instead of the margin. `pieces` is the slope
    as a sum of linear pieces, ``(until, step, bend, zero)``: below the margin `until`, each adds
    ``step + bend (m - zero)``. With it the gradient over all pairs of a table takes a sort; without it, a
    pass over all pairs.

    Learners accept only the losses of `registry`. A subclass of your own has a value and a slope for
    `streampair.evaluation`; a learner refuses it, because its compiled steps have no slope for it.
    """

    code: int
    width: float = 0.0
    convex: bool = True
    decreasing: bool = True
    of_errors: bool = False
    pieces: tuple[tuple[float, float, float, float], ...] | None = None

    @abc.abstractmethod
    def _value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]: ...

    @abc.abstractmethod
    def _slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]: ...

    @abc.abstractmethod
    def _steepest(self, low: float, high: float) -> float:
        """Largest absolute slope at margins from low < 0 to high > 0."""

    @abc.abstractmethod
    def _curvature(self) -> float:
        """Largest absolute second derivative."""

    def _opposed(self, gap: NDArray[np.float64]) -> NDArray[np.float64]:
        """Largest sum of the sizes of two slopes that push a metric in opposite directions, or a bound on it.

        One slope is that of a pair with ``u'Wu = q``, the other that of a pair with ``q' >= q - gap``.
        Infinite if no bound is known.
        """
        return np.full_like(gap, math.inf)

    @overload
    def value(self, margin: float) -> float: ...
    @overload
    def value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def value(self, margin: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """Loss at a margin (a float, or an array of any shape, element by element)."""
        out = self._value(np.asarray(margin, dtype=np.float64))
        return out if isinstance(margin, np.ndarray) else float(out)

    @overload
    def slope(self, margin: float) -> float: ...
    @overload
    def slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def slope(self, margin: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """Derivative at a margin; at a kink the subgradient of smallest size."""
        out = self._slope(np.asarray(margin, dtype=np.float64))
        return out if isinstance(margin, np.ndarray) else float(out)

    @property
    def steepest(self) -> float:
        """Largest absolute slope over all margins; infinite if the slope is unbounded."""
        return self._steepest(-math.inf, math.inf)

    def _reach(self, feature_bound: float, radius: float, form: str) -> tuple[float, float, float]:
        """Largest norm of the margin's gradient in the weights, and the lowest and highest margin."""
        b, r = _positive("feature_bound", feature_bound), _positive("radius", radius)
        if _checked_form(form) in ("raw", "halved"):
            k = 2.0 if form == "raw" else 1.0  # |y - y'| at most
            return 2.0 * k * b, -2.0 * k * b * r, 2.0 * k * b * r
        longest = 4.0 * b * b  # |u|^2, and the Frobenius norm of uu', at most
        if form == "metric":
            return longest, -(1.0 + longest * r), 1.0 + longest * r
        return longest, min(1.0 - longest * r, -1.0), max(1.0, longest * r - 1.0)

    def lipschitz(self, feature_bound: float, radius: float, form: Form = "raw") -> float:
        """Largest norm G of the gradient of one pair (Frobenius, for a metric).

        Parameters
        ----------
        feature_bound
            B, the bound on the l2 norm of every record.
        radius
            R, the bound on the l2 norm of the weights, or on the Frobenius norm of the metric.
        form
            Form of the margin; see the module.

        Raises
        ------
        ConfigError
            If a bound is not above 0, or the loss has no such form.

        Notes
        -----
        docs/privacy 2. The bound is reached, up to rounding, in every form.
        """
        scale, low, high = self._reach(feature_bound, radius, form)
        return scale * self._steepest(low, high)

    def smoothness(self, feature_bound: float, radius: float, form: Form = "raw") -> float:
        """Lipschitz constant L of the gradient of one pair in the weights.

        Parameters and errors are those of `lipschitz`.
        """
        return self._reach(feature_bound, radius, form)[0] ** 2 * self._curvature()

    def diameter(
        self, feature_bound: float, radius: float, clip: float | None = None, form: Form = "raw"
    ) -> float:
        """Replacement diameter D: largest change of a pair's gradient when one of its records is replaced.

        Parameters
        ----------
        feature_bound, radius, form
            As for `lipschitz`.
        clip
            Largest norm that a pair's gradient is clipped to, or None.

        Raises
        ------
        ConfigError
            If a bound is not above 0, or the loss has no such form.

        Notes
        -----
        For labels or relevances in [-1, 1], form "raw" or "halved", and a convex decreasing loss, D = G: half
        of the triangle inequality's 2G (docs/privacy 2). For `Square` and for `MinimumErrorEntropy` it is
        2G in these forms. For metrics it is 2G for `Hinge`, G for `SquaredHinge` and `Square` (at most 1.5 G
        with form "psd"), and between the two for `Logistic`: 1.42 G for radius 1 (docs/privacy, Lemma 92).
        With per-pair clipping it is at most ``2 clip`` too.
        """
        scale, low, high = self._reach(feature_bound, radius, form)
        steepest = self._steepest(low, high)
        if form in ("metric", "psd"):
            d = scale * _metric_diameter(self, steepest, scale * radius)
        else:
            d = scale * steepest * (1.0 if self.decreasing else 2.0)
        return d if clip is None else min(2.0 * _positive("clip", clip), d)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(repr(self))


class Logistic(PairLoss):
    """Logistic pair loss ``log(1 + exp(-m))``; smooth.

    Examples
    --------
    >>> from streampair import losses
    >>> loss = losses.Logistic()
    >>> round(loss.value(0.0), 4), loss.slope(0.0)
    (0.6931, -0.5)
    >>> loss.smoothness(feature_bound=1.0, radius=1.0)
    4.0
    """

    code = losses.LOGISTIC

    def _value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.logaddexp(0.0, -margin)

    def _slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        out: NDArray[np.float64] = -scipy.special.expit(-margin)
        return out

    def _steepest(self, low: float, high: float) -> float:
        return float(scipy.special.expit(-low))

    def _curvature(self) -> float:
        return 0.25

    def _opposed(self, gap: NDArray[np.float64]) -> NDArray[np.float64]:
        out: NDArray[np.float64] = 2.0 * scipy.special.expit(gap / 2.0)
        return out


class Hinge(PairLoss):
    """Hinge pair loss ``max(0, 1 - m)``; not smooth.

    Examples
    --------
    >>> from streampair import losses
    >>> loss = losses.Hinge()
    >>> loss.value(0.25), loss.slope(0.25), loss.slope(2.0)
    (0.75, -1.0, 0.0)
    >>> loss.diameter(feature_bound=1.0, radius=3.0, clip=1.0)
    2.0
    """

    code = losses.HINGE
    pieces = ((1.0, -1.0, 0.0, 0.0),)

    def _value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.maximum(0.0, 1.0 - margin)

    def _slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(margin < 1.0, -1.0, 0.0)

    def _steepest(self, low: float, high: float) -> float:
        return 1.0

    def _curvature(self) -> float:
        raise ConfigError(
            "the hinge loss is not smooth: its slope jumps at margin 1, so it has no smoothness constant",
            fix="use losses.Logistic() or losses.SquaredHinge() where a smooth loss is needed",
        )


class SquaredHinge(PairLoss):
    """Squared hinge pair loss ``max(0, 1 - m)^2``; smooth.

    Examples
    --------
    >>> from streampair import losses
    >>> losses.SquaredHinge().value(-1.0), losses.SquaredHinge().slope(-1.0)
    (4.0, -4.0)
    """

    code = losses.SQUARED_HINGE
    pieces = ((1.0, 0.0, 2.0, 1.0),)

    def _value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.square(np.maximum(0.0, 1.0 - margin))

    def _slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return -2.0 * np.maximum(0.0, 1.0 - margin) + 0.0  # + 0.0: no negative zero

    def _steepest(self, low: float, high: float) -> float:
        return 2.0 * (1.0 - low)

    def _curvature(self) -> float:
        return 2.0

    def _opposed(self, gap: NDArray[np.float64]) -> NDArray[np.float64]:
        return 4.0 + 2.0 * gap


class Square(PairLoss):
    """Least squares pair loss ``(1 - m)^2``; smooth.

    It also penalises margins above 1, so it is not decreasing and its replacement diameter is 2G.

    Examples
    --------
    >>> from streampair import losses
    >>> losses.Square().value(3.0), losses.Square().slope(3.0)
    (4.0, 4.0)
    """

    code = losses.SQUARE
    pieces = ((math.inf, 0.0, 2.0, 1.0),)
    decreasing = False

    def _value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.square(1.0 - margin)

    def _slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        return 2.0 * (margin - 1.0)

    def _steepest(self, low: float, high: float) -> float:
        return 2.0 * max(1.0 - low, high - 1.0)

    def _curvature(self) -> float:
        return 2.0

    def _opposed(self, gap: NDArray[np.float64]) -> NDArray[np.float64]:
        return 4.0 + 2.0 * gap


class MinimumErrorEntropy(PairLoss):
    """Minimum error entropy loss ``h^2 (1 - exp(-e^2 / (2 h^2)))`` for regression; not convex.

    Its argument is ``e = (y - y') - w.(x - x')``, the difference of the errors of the two records of a pair.
    The sum over all pairs is, up to constants, minus the information potential of the errors, whose logarithm
    is Renyi's quadratic entropy, estimated with a Gaussian window. The loss is at most h^2, so outliers have
    little effect; for large h it is half the square of e. Pairs of equal relevance count too.

    Since it is not convex, gradient descent need not find the global minimum, and output perturbation refuses
    it. Only the learners of `ranking` accept it.

    Parameters
    ----------
    width
        h, the width of the window, in units of the relevance: from 1e-3 to 1e3.

    Raises
    ------
    ConfigError
        If the width is out of range.

    References
    ----------
    Hu, T., Fan, J., Wu, Q. and Zhou, D.-X. (2013). Learning theory approach to minimum error entropy
    criterion. JMLR 14. Section 1, with the window G(u) = exp(-u).

    Yang, Z. et al. (2021). Simple stochastic and online gradient descent algorithms for pairwise learning.
    NeurIPS. Section 2.

    Examples
    --------
    >>> from streampair import losses
    >>> loss = losses.MinimumErrorEntropy(width=1.0)
    >>> loss.value(0.0), loss.slope(0.0), round(loss.slope(1.0), 4), round(loss.slope(9.0), 4)
    (0.0, 0.0, 0.6065, 0.0)
    >>> round(loss.lipschitz(feature_bound=1.0, radius=1.0), 4)
    1.2131
    """

    code = losses.ENTROPY
    convex = False
    decreasing = False
    of_errors = True

    def __init__(self, width: float = 1.0) -> None:
        ok = isinstance(width, int | float) and not isinstance(width, bool)
        if not (ok and 1e-3 <= width <= 1e3):
            raise ConfigError(f"width is {width!r}", fix="give a width from 1e-3 to 1e3, such as 0.5")
        self.width = width

    def _value(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        h2 = float(self.width) ** 2
        out: NDArray[np.float64] = -h2 * np.expm1(-np.square(margin) / (2.0 * h2))
        return out

    def _slope(self, margin: NDArray[np.float64]) -> NDArray[np.float64]:
        out: NDArray[np.float64] = margin * np.exp(-np.square(margin) / (2.0 * float(self.width) ** 2))
        return out

    def _steepest(self, low: float, high: float) -> float:
        steepest = min(high, float(self.width))  # the slope rises up to h and falls beyond; it is odd
        return float(self._slope(np.asarray(steepest)))

    def _curvature(self) -> float:
        return 1.0

    def _reach(self, feature_bound: float, radius: float, form: str) -> tuple[float, float, float]:
        b, r = _positive("feature_bound", feature_bound), _positive("radius", radius)
        if _checked_form(form) in ("metric", "psd"):
            raise ConfigError(
                "the minimum error entropy is a loss for relevances, not for metrics",
                fix="use losses.Hinge() or losses.Logistic() for a metric",
            )
        furthest = (2.0 if form == "raw" else 1.0) + 2.0 * b * r
        return 2.0 * b, -furthest, furthest

    def __repr__(self) -> str:
        return f"MinimumErrorEntropy(width={self.width!r})"

    __str__ = __repr__


registry: dict[int, type[PairLoss]] = {
    loss.code: loss for loss in (Logistic, Hinge, SquaredHinge, Square, MinimumErrorEntropy)
}
"""The class of every loss code that the compiled steps know."""


def registered(loss: object) -> PairLoss:
    """The loss itself, after a check that its class is in `registry` and that no attribute was set by hand.

    Raises
    ------
    ConfigError
        If it is no pair loss, or not one of `registry`, whose slope and constants the learners use.

    Examples
    --------
    >>> from streampair import losses
    >>> losses.registered(losses.Hinge())
    Hinge()
    """
    if not isinstance(loss, PairLoss):
        raise ConfigError(f"loss is {loss!r}", fix="give a pair loss such as losses.Logistic()")
    if type(loss) not in registry.values():
        names = ", ".join(sorted(kind.__name__ for kind in registry.values()))
        raise ConfigError(
            f"loss is {loss!r}, and learners have no compiled slope for {type(loss).__name__}",
            fix=f"use one of streampair.losses: {names}; or add this loss as docs/extending/loss.md says",
        )
    if vars(loss).keys() != vars(type(loss)()).keys():
        raise ConfigError(
            f"an attribute of {loss!r} was set by hand, so its slope and its constants need not agree",
            fix="make a new loss, with its parameters in the constructor",
        )
    return loss
