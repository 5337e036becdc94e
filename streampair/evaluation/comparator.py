"""The comparator of the regret: the best fixed weights for a sample of pairs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampair import losses
from streampair.evaluation.pairs import Linear, Pairs
from streampair.kernels import comparator

__all__ = ["minimise"]

Array = NDArray[np.float64]

#: The most weights that the compiled search is given: of more, products of matrices take most of the time.
_FEW = 64


def _compiled(loss: Any) -> bool:
    """Whether the compiled search knows the loss: others are taken by their `value` and `slope`."""
    return type(loss) in losses.registry.values() and not loss.of_errors


def minimise(
    pairs: Array | Pairs,
    weights: Array,
    loss: Any,
    radius: float,
    start: Array,
    *,
    near: bool = False,
    iterations: int = 300,
) -> Array:
    """Minimise ``sum_j weights_j loss(arguments_j(w))`` over the weights w in a ball.

    Accelerated projected gradient with restarts (Beck and Teboulle 2009; O'Donoghue and Candes 2015); the
    step size is found by backtracking. The hinge is smoothed over a width that shrinks in stages.

    Parameters
    ----------
    pairs
        n pairs with d weights. An array of shape (n, d) has the arguments ``rows @ w``.
    weights
        (n,), nonnegative.
    loss
        With `value` and `slope`.
    radius
        Radius of the ball.
    start
        (d,).
    near
        Whether `start` is close to the minimum; the coarse stage is then left out.
    iterations
        Largest number of iterations in all stages together, before it is multiplied by the pairs' `patience`.

    Returns
    -------
    numpy.ndarray
        (d,), the best of the points seen under the loss itself.
    """
    if isinstance(pairs, np.ndarray):
        pairs = Linear(pairs)
    mass = float(weights.sum())
    if not len(pairs) or mass <= 0.0 or not pairs.size:
        return start.copy()
    use = weights > 0.0
    pairs, share = pairs.only(use), weights[use] / mass
    hinge = type(loss) is losses.Hinge  # a subclass has a slope of its own
    widths: tuple[float, ...] = (0.0,)
    if hinge:
        widths = (0.05, 0.01) if near else (0.3, 0.05, 0.01)
    best = pairs.project(start, radius)
    best_value = float(share @ loss.value(pairs.arguments(best)))
    w = best
    # A first guess at the curvature: the backtracking corrects it.
    reach = pairs.reach() or 1.0
    rows = pairs.rows if isinstance(pairs, Linear) and pairs.size <= _FEW else None
    for width in widths:
        most = pairs.patience * iterations // len(widths)
        if rows is not None and _compiled(loss):
            w = w.copy()
            comparator.descent(rows, share, loss.code, width, radius, w, reach, most)
        else:
            w = _accelerate(pairs, share, loss, width, radius, w, reach, most)
        value = float(share @ loss.value(pairs.arguments(w)))
        if value < best_value:
            best, best_value = w, value
    return best


def _accelerate(
    pairs: Pairs,
    share: Array,
    loss: Any,
    width: float,
    radius: float,
    w: Array,
    reach: float,
    iterations: int,
) -> Array:
    def value_slope(margins: Array) -> tuple[float, Array]:
        if width > 0.0:
            # Hinge smoothed by a parabola of this width left of 1.
            u = np.clip((1.0 - margins) / width, 0.0, 1.0)
            return float(share @ (u * (1.0 - margins) - 0.5 * width * u * u)), -u
        return float(share @ loss.value(margins)), np.asarray(loss.slope(margins))

    curvature = reach / width if width > 0.0 else reach
    curvature *= 0.1
    momentum, v = 1.0, w
    # Affine in the weights, so that the arguments of a combination are that combination of the arguments.
    mw = pairs.arguments(w)
    mv = mw
    value = value_slope(mw)[0]
    for _ in range(iterations):
        fv, slope = value_slope(mv)
        gradient = pairs.gradient(share * slope)
        while True:
            new = pairs.project(v - gradient / curvature, radius)
            move = new - v
            mnew = pairs.arguments(new)
            f_new = value_slope(mnew)[0]
            bound = fv + float(gradient @ move) + 0.5 * curvature * float(move @ move)
            if f_new <= bound + 1e-12 * max(1.0, abs(fv)) or curvature > 1e15:
                break
            curvature *= 2.0
        if f_new > value:
            if momentum == 1.0:
                break  # a plain step from w does not help: done
            momentum, v, mv = 1.0, w, mw
            continue
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
        ahead = (momentum - 1.0) / following
        done = value - f_new < 1e-7 * max(abs(value), 1e-3) and float(np.max(np.abs(new - w))) < 1e-4 * radius
        v, mv = new + ahead * (new - w), mnew + ahead * (mnew - mw)
        w, mw, value, momentum = new, mnew, f_new, following
        if done:
            break
        curvature *= 0.95
    return w
