"""How far one record moves what a descent over a whole table comes to (docs/privacy.md 5).

Every step is ``w <- Proj(w - eta_t (gradient + alpha w))`` with a gradient that one record moves by at most
`push`. The loss is smooth and convex, so steps bring two runs nearer, or at least not farther apart.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from streampair.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["contraction", "descent_moves", "largest_step", "mean_move", "neighbours_move"]


def contraction(eta: float, alpha: float, smoothness: float) -> float:
    """By what a step brings two runs nearer: ``max(|1 - eta alpha|, |1 - eta (alpha + L)|)``, at most 1.

    Raises
    ------
    ConfigError
        If it may bring them farther apart.
    """
    factor = max(abs(1.0 - eta * alpha), abs(1.0 - eta * (alpha + smoothness)))
    if not (eta > 0.0 and factor <= 1.0 + 1e-12):
        raise ConfigError(
            f"a step of {eta:.6g} does not keep two runs together: the smoothness of the loss with its ridge "
            f"term is {smoothness + alpha:.6g}",
            fix=f"give a learning rate above 0 and at most {2.0 / (smoothness + alpha):.6g}",
        )
    return min(factor, 1.0)


def largest_step(alpha: float, smoothness: float) -> float:
    """The step that contracts most: ``2 / (2 alpha + L)`` (Xue et al. 2021, with L + alpha for their L)."""
    return 2.0 / (2.0 * alpha + smoothness)


def descent_moves(
    steps: int, eta: float, *, alpha: float, smoothness: float, push: float, radius: float
) -> Floats:
    """How far each of the iterates w_1 to w_T moves when one record is replaced (docs/privacy.md, Lemma 71).

    Parameters
    ----------
    steps, eta
        T, and the size of a step.
    alpha, smoothness
        Strength of the ridge term, and L of the pair loss.
    push
        How far a record moves the gradient.
    radius
        R of the ball that the iterates are in.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.descent import descent_moves
    >>> descent_moves(3, 0.5, alpha=0.0, smoothness=4.0, push=0.1, radius=1.0).round(6)
    array([0.05, 0.1 , 0.15])
    """
    factor = contraction(eta, alpha, smoothness)
    # w_1 = push eta, w_t = factor w_(t-1) + push eta: a geometric sum.
    t = np.arange(1.0, steps + 1.0)
    if factor == 1.0:
        moves = push * eta * t
    elif factor == 0.0:
        moves = np.full(steps, push * eta)
    else:
        moves = push * eta * np.expm1(t * math.log(factor)) / (factor - 1.0)
    result: Floats = np.minimum(moves, 2.0 * radius)
    return result


def mean_move(etas: Floats, factors: Floats, weights: Floats, diameter: float, radius: float) -> float:
    """How far a weighted mean of the iterates of one pass moves, by the worst record.

    By docs/privacy.md, Lemma 73. At step t the gradient is the mean over the pairs of record t with
    the t - 1 records before it.

    Parameters
    ----------
    etas, factors
        Step sizes and contractions of steps 1 to n, (n,); the first step has size 0.
    weights
        Of the iterates, (n,), at least 0.
    diameter, radius
        D of the pair loss, and R of the ball.

    Examples
    --------
    >>> import numpy as np
    >>> from streampair.privacy.mechanisms.descent import mean_move
    >>> mean_move(np.array([0.0, 0.5]), np.ones(2), np.array([0.0, 1.0]), 1.0, 9.0)
    0.5
    """
    n = len(etas)
    after = 0.0  # what later steps of a record that is among the partners add
    worth = 0.0  # what moving iterate t by 1 moves the mean, through it and all later ones
    most = 0.0
    for t in range(n - 1, 0, -1):
        worth = weights[t] + (factors[t + 1] * worth if t + 1 < n else 0.0)
        most = max(most, etas[t] * diameter * worth + after)
        after += etas[t] * diameter / t * worth
    return float(min(max(most, after), 2.0 * radius * weights.sum()))


def neighbours_move(steps: int, eta: float, *, diameter: float, jump: float, radius: float) -> float:
    """How far the mean of w_1 to w_T of a pass moves, in which each record meets the one before.

    By docs/privacy.md, Lemma 68 and Lemma 69. The worst record is the second: it is in the first two steps.

    Parameters
    ----------
    steps, eta
        T, one fewer than there are records, and the size of a step.
    diameter, radius
        D of the pair loss, and R of the ball.
    jump
        How far the gradients of two runs may differ at one pair, in the direction in which they part; 0 where
        the loss is smooth and the step at most 2 / L, so that steps bring no two runs farther apart.

    Examples
    --------
    >>> from streampair.privacy.mechanisms.descent import neighbours_move
    >>> neighbours_move(4, 0.5, diameter=0.5, jump=0.0, radius=9.0)  # 0.25, then 0.5 three times
    0.4375
    """
    first = eta * diameter
    second = math.hypot(first, eta * jump) + first
    later = np.hypot(second, eta * jump * np.sqrt(np.arange(steps - 1.0)))
    moves = np.minimum(np.concatenate([[first], later]), 2.0 * radius)
    return float(moves.mean())
