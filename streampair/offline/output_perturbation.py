"""Noise in every gradient, for models that need not be convex (Kang et al. 2021)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import numpy as np

from streampair.errors import ConfigError
from streampair.offline.base import PairwiseProblem
from streampair.offline.gradient_perturbation import DPGDC2
from streampair.offline.risk import score_slopes
from streampair.privacy.mechanisms.base import Link
from streampair.privacy.mechanisms.offline import TableAccount

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["GradientPerturbation"]

# Scores beyond it are cut off, for the exponentials of the logistic loss.
_FARTHEST = 100.0


class Network:
    """Scores ``v.tanh(U x + b)`` of one hidden layer, and their gradient in all of (U, b, v).

    Parameters
    ----------
    features, hidden
        d, and the width h.
    """

    def __init__(self, features: int, hidden: int) -> None:
        self._d, self._h = features, hidden
        self.dim = hidden * (features + 2)

    def _parts(self, weights: Floats) -> tuple[Floats, Floats, Floats]:
        d, h = self._d, self._h
        return weights[: d * h].reshape(h, d), weights[d * h : d * h + h], weights[d * h + h :]

    def scores(self, rows: Floats, weights: Floats) -> Floats:
        """Scores of rows (n, d), (n,)."""
        u, b, v = self._parts(weights)
        out: Floats = np.tanh(rows @ u.T + b) @ v
        return out

    def jacobian(self, rows: Floats, weights: Floats) -> Floats:
        """The gradient of each row's score, (n, dim)."""
        u, b, v = self._parts(weights)
        active = np.tanh(rows @ u.T + b)
        inner = v * (1.0 - active * active)
        outer = (inner[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
        return np.concatenate([outer, inner, active], axis=1)


def clipped(rows: Floats, clip: float) -> Floats:
    """Rows clipped to a norm of `clip`."""
    norms = np.linalg.norm(rows, axis=1)
    out: Floats = rows * np.minimum(1.0, clip / np.maximum(norms, 1e-300))[:, None]
    return out


@dataclass(eq=False, repr=False)
class GradientPerturbation(DPGDC2):
    """Gradient descent with noise in every gradient, its last iterate published (Kang et al., Algorithm 1).

    With ``hidden=0`` scores are linear, as elsewhere. With more they are ``v.tanh(U x + b)``, and the risk is
    not convex: the guarantee needs neither. The gradient of each record's score in the parameters is clipped,
    so that a pair's gradient, slope times the difference of two of them, has a bound.

    Parameters
    ----------
    epsilon, delta, task, loss, radius, bounds, calibration, random_state, start
        As in `DPGDC2`. With a hidden layer the slope of the loss is between -1 and 0 at every margin, as of
        `losses.Hinge` and `losses.Logistic`, the task is ``"auc"``, and the radius bounds the distance from
        where the descent begins.
    steps
        Steps T.
    learning_rate
        Size of a step, above 0; None: as in `DPGDC2`.
    hidden
        Width of the hidden layer; 0: none.
    clip
        Largest norm C of the gradient of a record's score, with a hidden layer.

    Attributes
    ----------
    coef_
        All parameters, (h (d + 2),) with a hidden layer: U row by row, b, v.
    metric_, classes_, privacy
        As in `DPGDSC`.

    References
    ----------
    Kang, Y., Liu, Y., Li, J. and Wang, W. (2021). Towards sharper utility bounds for differentially private
    pairwise learning. Algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair import offline
    >>> rng = np.random.default_rng(1)
    >>> X = rng.uniform(-0.6, 0.6, (4000, 2))
    >>> y = np.abs(X[:, 0]) > 0.3  # no linear score ranks it: each has .5
    >>> model = offline.GradientPerturbation(8.0, 1e-5, hidden=16, radius=20.0, steps=200).fit(X, y)
    >>> model.score(X, y) > 0.8, model.privacy.epsilon_spent  # mostly .97 to .999, by where it began
    (True, 8.0)
    """

    _: KW_ONLY
    hidden: int = 0
    clip: float = 1.0

    def _paper_noise(self, problem: PairwiseProblem, steps: int) -> float:
        return (
            8.0
            * self._lipschitz(problem)
            * math.sqrt(steps * math.log(1.0 / self.delta))
            / (problem.n * self.epsilon)
        )

    def _lipschitz(self, problem: PairwiseProblem) -> float:
        """G: with a hidden layer ``2 k C`` for slopes of at most 1, k = 2."""
        return 4.0 * self.clip if self.hidden else problem.lipschitz

    def _checked(self, problem: PairwiseProblem) -> None:
        if isinstance(self.hidden, bool) or not isinstance(self.hidden, int | np.integer) or self.hidden < 0:
            raise ConfigError(f"hidden is {self.hidden!r}", fix="give a whole number of 0 or more")
        if not (math.isfinite(self.clip) and self.clip > 0.0):
            raise ConfigError(f"clip is {self.clip!r}", fix="give a finite number above 0")
        if self.hidden and self.task != "auc":
            raise ConfigError("a hidden layer makes scores, not distances", fix='use task="auc" or hidden=0')
        if self.hidden and self.start is not None:
            raise ConfigError(
                "a network begins at random weights, and start is given", fix="leave it out, or hidden=0"
            )
        if self.hidden and not (problem.loss.decreasing and problem.loss.steepest <= 1.0):
            raise ConfigError(
                f"the slope of {problem.loss!r} is not between -1 and 0 for every network",
                fix="use losses.Logistic() or losses.Hinge(), or hidden=0",
            )

    def _release(self, problem: PairwiseProblem, account: TableAccount) -> Floats:
        self._checked(problem)
        if not self.hidden:
            return self._noisy_descent(problem, account, problem.risk().gradient, problem.start)[0]
        network, positive = Network(problem.rows.shape[1], self.hidden), problem.labels > 0.0
        # Random weights, and no noise: they hide nothing. The ball is around them.
        centre = np.random.default_rng(problem.seed).uniform(-1.0, 1.0, network.dim)

        def gradient(moved: Floats) -> Floats:
            weights = centre + moved
            scores = np.clip(network.scores(problem.rows, weights), -_FARTHEST, _FARTHEST)
            slopes = score_slopes(problem.loss, scores, positive)
            out: Floats = slopes @ clipped(network.jacobian(problem.rows, weights), self.clip)
            return out

        moved, _ = self._noisy_descent(
            problem,
            account,
            gradient,
            np.zeros(network.dim),
            dim=network.dim,
            sensitivity=2.0 * self._lipschitz(problem) / problem.n,
            blank=1.0,
            lemma="docs/privacy, Lemma 76",
        )
        return centre + moved

    def _published(self, problem: PairwiseProblem, weights: Floats) -> Floats:
        return weights  # it is around another centre than 0, and in its ball already

    def _scores(self, rows: Floats) -> Floats:
        d = rows.shape[1]
        if len(self.coef_) == d:
            return super()._scores(rows)
        return Network(d, len(self.coef_) // (d + 2)).scores(rows, self.coef_)

    def _unit(self, weights: Floats) -> Link:
        return super()._unit(weights) if len(weights) == self.n_features_in_ else Link()

    def _describe(self) -> tuple[str, str]:
        shape = f"a network of {self.hidden} hidden units, its gradients clipped at {self.clip:g}"
        return (
            f"Mechanism: gradient descent on all pairs of {shape if self.hidden else 'linear scores'}; each "
            f"of {self.steps} gradients is released under noise.",
            "Kang et al. (2021), Algorithm 1",
        )
