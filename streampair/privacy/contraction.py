"""Sensitivity of the iterates of strongly convex pairwise gradient descent (docs/privacy 4.1).

Pairwise GIGA (Huai et al. 2020, Algorithm 1) runs without noise, and each release adds fresh noise to the
iterate. With a loss of smoothness L and a ridge term of strength alpha every step is a contraction, by
`c_t = max(|1 - eta_t alpha|, |1 - eta_t (L + alpha)|)`. So the effect of a record, at its own step and while
it is in the buffer, decays, and a recursion bounds it. Relation: replace one record's content, its label
included. Precondition: the average over the buffer is that of convex losses, L-smooth each (clipping a pair's
gradient along its own direction keeps both), its denominator is constant, and projections are on convex sets
within the ball of the given radius.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from streampair.errors import ConfigError
from streampair.kernels import sensitivity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streampair.privacy.sensitivity import Influence

    Floats = NDArray[np.float64]

__all__ = ["giga_steps", "output_sensitivities", "output_spend", "paper_steps", "paper_warmup"]


def giga_steps(alpha: float, smoothness: float, count: int) -> tuple[Floats, Floats]:
    """Step sizes `eta_t` and contractions `c_t` of slots 1 to `count`.

    `eta_1 = 0`, `eta_t = min(2 (t-1) / ((t-2) alpha t), 2 / (alpha + L'))` with `L' = L + alpha`: capped, so
    that every step contracts and no warm-up is needed.

    Parameters
    ----------
    alpha
        Strength of the ridge term, above 0.
    smoothness
        L of the pair loss.
    count
        Number of slots.

    Returns
    -------
    tuple
        eta and c, of shape (count,).

    Raises
    ------
    ConfigError
        If alpha or the smoothness is not above 0.

    Examples
    --------
    >>> from streampair.privacy.contraction import giga_steps
    >>> giga_steps(1.0, 1.0, 3)
    (array([0.        , 0.66666667, 0.66666667]), array([1.        , 0.33333333, 0.33333333]))
    """
    _check_convexity(alpha, smoothness)
    t = np.arange(1.0, count + 1.0)
    free = 2.0 * (t - 1.0) / (np.maximum(t - 2.0, 1e-300) * alpha * t)
    etas = np.minimum(free, 2.0 / (2.0 * alpha + smoothness))
    etas[:1] = 0.0
    return etas, _contractions(etas, alpha, smoothness)


def paper_warmup(alpha: float, smoothness: float) -> int:
    """Number of random outputs that H20's Algorithm 1 begins with, `T_1 = max(ceil(16 L'^2 / alpha^2), 7)`.

    Examples
    --------
    >>> from streampair.privacy.contraction import paper_warmup
    >>> paper_warmup(0.5, 4.0)
    1296
    """
    _check_convexity(alpha, smoothness)
    ratio = (smoothness + alpha) / alpha
    return max(math.ceil(16.0 * (ratio * ratio)), 7)


def paper_steps(alpha: float, smoothness: float, count: int) -> tuple[Floats, Floats]:
    """Step sizes and contractions of H20's Algorithm 1: 0 up to T_1, then `2 (t-1) / ((t-2) alpha t)`."""
    etas, _ = giga_steps(alpha, smoothness, count)
    first = min(paper_warmup(alpha, smoothness), count)
    t = np.arange(first + 1.0, count + 1.0)
    etas[:first] = 0.0
    etas[first:] = 2.0 * (t - 1.0) / ((t - 2.0) * alpha * t)
    return etas, _contractions(etas, alpha, smoothness)


def _check_convexity(alpha: float, smoothness: float) -> None:
    if not (alpha > 0.0 and smoothness > 0.0 and math.isfinite(smoothness / alpha)):
        raise ConfigError(
            f"a ridge term of {alpha!r} and a smoothness of {smoothness!r}",
            fix="give numbers above 0: without a ridge term the effect of a record does not decay",
        )


def _contractions(etas: Floats, alpha: float, smoothness: float) -> Floats:
    result: Floats = np.maximum(np.abs(1.0 - etas * alpha), np.abs(1.0 - etas * (alpha + smoothness)))
    return result


def output_sensitivities(
    etas: Floats,
    factors: Floats,
    influence: Influence,
    diameter: float,
    radius: float,
    *,
    filling: bool = True,
) -> Floats:
    """l2 sensitivity `S_t` of each iterate: how far replacing one earlier record can move it.

    By recursion, in O(1) a step (docs/privacy 4.1): the move v of a record starts at `eta_t D p_t`, with p_t
    the share of the places that are filled; it grows in the buffer, `v <- c_t v + eta_t D q_t`, and decays
    after it, `v <- c_t v`. Two iterates in a ball are at most 2 R apart. Where records never leave the
    buffer, v is capped at 2 R in every step, and the maximum is exact for the recursion. Where they leave,
    only the maximum is capped; it is a bound, and exact while it is below the cap.

    Parameters
    ----------
    etas, factors
        Step sizes and contractions, (n,).
    influence
        The buffer.
    diameter
        Replacement diameter D of the pair loss.
    radius
        Radius R of the ball of the iterates.
    filling
        Whether empty places of the buffer reduce the weight of a record's own step; False takes `p_t = 1`,
        as the joint cost of an entity's records does (docs/privacy, Lemma 56).

    Returns
    -------
    NDArray
        (n,).

    Examples
    --------
    >>> from streampair.privacy import Influence
    >>> from streampair.privacy.contraction import giga_steps, output_sensitivities
    >>> etas, factors = giga_steps(1.0, 1.0, 4)
    >>> output_sensitivities(etas, factors, Influence.fifo(1), 1.0, 10.0).round(4)
    array([0.    , 0.6667, 0.8889, 0.8889])
    """
    n = len(etas)
    out = np.empty(n)
    owns, shares = _weights(influence, n, filling=filling)
    if influence.uses is None or influence.uses >= n:
        sensitivity.stay_sensitivities(etas, factors, owns, shares, diameter, 2.0 * radius, out)
    else:
        sensitivity.window_sensitivities(etas, factors, owns, shares, influence.uses, diameter, out)
    return np.minimum(out, 2.0 * radius, out=out)


def _weights(influence: Influence, count: int, *, filling: bool) -> tuple[Floats, Floats]:
    """Weights of a record's pairs at its own step, and of one copy of it in the buffer."""
    return influence.owns(count) if filling else np.ones(count), influence.shares(0, count)


def output_spend(
    etas: Floats,
    factors: Floats,
    influence: Influence,
    diameter: float,
    bounds: Floats,
    grids: Floats,
    precisions: Floats,
    count: int | None = None,
    *,
    filling: bool = True,
) -> float:
    """`mu^2` of the first releases for one record: `max_i sum_t ((v_i(t) + grid_t) / sigma_t)^2`.

    The maximum is over single records; a sum of per-step maxima would be larger where records stay in
    the buffer. Exact for the recursion where no move reaches the radius; else a bound. The iterates do not
    depend on earlier releases, so all of them are one Gaussian release with a shifted mean.

    Parameters
    ----------
    etas, factors, influence, diameter, filling
        As in `output_sensitivities`.
    bounds
        The result of `output_sensitivities`, (n,).
    grids
        Most that rounding released iterates to their grid adds to a move: `gamma_t sqrt(d)`, (n,).
    precisions
        `1 / sigma_t^2`, 0 where nothing is released, (n,).
    count
        Steps counted; None for all.
    """
    n = len(etas) if count is None else min(count, len(etas))
    owns, shares = _weights(influence, len(etas), filling=filling)
    if influence.uses is None or influence.uses >= len(etas):
        if filling:
            return float(
                sensitivity.stay_spend(etas, factors, owns, shares, diameter, bounds, grids, precisions, n)
            )
        moves = bounds[:n] + grids[:n]
        return float(precisions[:n] @ (moves * moves))
    return float(
        sensitivity.window_spend(
            etas, factors, owns, shares, influence.uses, diameter, bounds, grids, precisions, n
        )
    )
